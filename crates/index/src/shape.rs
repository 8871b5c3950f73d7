//! Shape: settings of a table's geometry, fixed when it is made.

use crate::KnobKind;
use crate::bnode::{BUCKET_BYTES_MAX, BUCKET_BYTES_MIN};

crate::knobs! {
    /// The geometry of a table's nodes, as far as it is not left to the engine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Shape {
        /// Bytes of a node, a power of two. The engine takes 1024 for short keys and values of fixed length,
        /// else 4096, or as much as the longest key needs.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "1 KB (DEX, section 7.1)";
        /// Most entries of a leaf, if fewer than fit.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "entries" };
        /// Most separators of an inner node, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
        /// Bytes of a bucket of an inner node, a power of two. The sizes of nodes follow it: the smallest is half a
        /// bucket, the largest has one slot for each byte. The engine takes 128.
        "bucket_bytes" => bucket_bytes: Option<u16> = None, KnobKind::Bytes { min: BUCKET_BYTES_MIN as u64, max: BUCKET_BYTES_MAX as u64 }, paper "128 (DART, Figure 9)";
        /// Room of a radix tree's node. relocate: as much as its slots need; a larger node takes the place of a full one.
        /// reserve: as much as the largest node needs; a node grows in place, and its address stays.
        "nodes" => nodes: NodeRoom = NodeRoom::Relocate, KnobKind::Words { words: NodeRoom::WORDS, also: None }, paper "reserve (SMART)";
        /// Proof of a cached pointer by the object that it leads to. birth: the epoch in which the object was made.
        /// reverse: the address of the slot that leads to the object; it needs nodes=reserve and values of one length.
        "check" => check: PointerCheck = PointerCheck::Birth, KnobKind::Words { words: PointerCheck::WORDS, also: None }, paper "reverse (SMART)";
    }
}

crate::words! {
    /// The room that each node of a radix tree has.
    #[derive(Default)]
    NodeRoom {
        /// As much as its slots need. A larger node takes the place of a full one.
        #[default]
        Relocate = "relocate",
        /// As much as the largest node needs. A node grows in place.
        Reserve = "reserve",
    }
}

crate::words! {
    /// The word by which an object of a radix tree proves a cached pointer to it.
    #[derive(Default)]
    PointerCheck {
        /// The epoch in which the object was made.
        #[default]
        Birth = "birth",
        /// The address of the slot that leads to the object.
        Reverse = "reverse",
    }
}
