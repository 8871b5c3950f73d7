//! Options: the shape of a table of this engine, and the settings by which one compute server opens it.

use farleaf_index::{IndexError, KeyFormat, KnobKind, Shape, Spec, knobs, shape, words};

use super::ladder::{CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, ReadDelegation};
use super::mode::NodeMode;

/// One word of a few.
const fn word_of(words: &'static [&'static str]) -> KnobKind {
    KnobKind::Words { words, also: None }
}

words! {
    /// The slots of a new node.
    #[derive(Default)]
    FirstSlots {
        /// As many as suit the keys.
        #[default]
        Auto = "auto",
        /// The smallest nodes.
        Six = "6",
        /// The second smallest nodes.
        Fourteen = "14",
    }
}

words! {
    /// The room that each node has, and the word by which an object proves a cached pointer to it.
    #[derive(Default)]
    NodeRoom {
        /// As much as its slots need: a larger node takes the place of a full one. Proof is the epoch of an object.
        #[default]
        Relocate = "relocate",
        /// As much as the largest node needs: a node grows in place. Proof is the epoch of an object.
        Reserve = "reserve",
        /// As much as the largest node needs. Proof is the address of the slot that leads to an object.
        Reverse = "reverse",
    }
}

shape! {
    /// The form of a table's nodes.
    pub struct SmartShape {
        /// Slots of a new node. The engine takes 14 for keys of one length up to 16 bytes, else 6.
        "first_slots" => first_slots: FirstSlots = FirstSlots::Auto, word_of(FirstSlots::WORDS);
        /// Room of a node, and proof of a cached pointer. relocate: as much as its slots need; a larger node takes the
        /// place of a full one. reserve: as much as the largest node needs; a node grows in place, and its address
        /// stays. reverse: as reserve, and the proof is no longer the epoch in which an object was made but the address
        /// of the slot that leads to it; it needs values of one length.
        "nodes" => nodes: NodeRoom = NodeRoom::Relocate, word_of(NodeRoom::WORDS), paper "reverse (SMART)";
    }
}

impl SmartShape {
    /// The slots of a new node of such a table.
    pub(super) fn first_slots(self, spec: &Spec) -> FirstSlots {
        match (self.first_slots, spec.key) {
            (FirstSlots::Auto, KeyFormat::Fixed(..=16)) => FirstSlots::Fourteen,
            (FirstSlots::Auto, _) => FirstSlots::Six,
            (chosen, _) => chosen,
        }
    }

    /// As [`SmartShape::complete`], for the engine `name`, whose objects have no pointers back.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn complete_forward(self, spec: &Spec, name: &str) -> Result<Self, IndexError> {
        if self.nodes == NodeRoom::Reverse {
            return Err(IndexError::Invalid(format!(
                "engine {name}: nodes=reverse is for tables of the engine smart"
            )));
        }
        self.complete(spec)
    }
}

impl Shape for SmartShape {
    fn check_build(&self) -> Result<(), IndexError> {
        NodeMode::check_build(self.nodes)
    }

    /// Chooses the first slots. Refuses nodes that this build leaves out, or that cannot hold such values.
    ///
    /// # Errors
    /// `Invalid`.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        self.check_build()?;
        NodeMode::check_spec(self.nodes, spec)?;
        Ok(SmartShape { first_slots: self.first_slots(spec), ..self })
    }
}

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct SmartOptions {
        /// Bytes of cached inner nodes for each table. 0 caches none: then each operation reads every node on its
        /// way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "600 MB";
        /// Most leaves and nodes that a scan reads at once.
        "scan_window" => scan_window: usize = 32, KnobKind::Count { min: 1, max: 256, unit: "objects" };
        /// Removed keys after which a task takes their leaves out of the tree.
        "unlink_batch" => unlink_batch: usize = 64, KnobKind::Count { min: 1, max: 4096, unit: "leaves" };
        /// Gets of one key that share a READ. strict: those that began before it. lax: those that began before it
        /// ended, which may return a value of the past. off: none.
        "read_delegation" => read_delegation: ReadDelegation = ReadDelegation::Strict, word_of(ReadDelegation::WORDS),
            paper "lax";
        /// Write changes of one key that arrive while another is under way together, under one lock.
        "write_combining" => write_combining: bool = true, KnobKind::Flag, paper "true";
        /// Most operations that one READ or one locked WRITE serves. 0 sets no limit.
        "batch_limit" => batch_limit: usize = 8, KnobKind::count(0, "operations"), paper "none";
        /// Way of a new value into a leaf. in-place: under its lock. replaced: another leaf takes its place.
        "leaf" => leaf: LeafUpdate = LeafUpdate::InPlace, word_of(LeafUpdate::WORDS), paper "in-place";
        /// Lock that a change of a leaf takes. rear: the one in the leaf. table: one of a lock table as well.
        "lock" => lock: LeafLock = LeafLock::Rear, word_of(LeafLock::WORDS), paper "rear";
        /// Times in a row that the lock of a leaf, or of the lock table, goes from one change of this compute server to
        /// the next. 0 releases it each time.
        "hand_over" => hand_over: u32 = 0, KnobKind::count(0, "passes"), paper "as in Sherman";
        /// Nodes that an operation locks in the lock table before it changes a slot.
        "node_locks" => node_locks: NodeLocks = NodeLocks::Off, word_of(NodeLocks::WORDS), paper "off";
        /// Sizes that nodes grow through. whole: all have the largest.
        "types" => types: NodeTypes = NodeTypes::Fine, word_of(NodeTypes::WORDS), paper "7 types";
        /// Way to the deepest cached node above a key: from the root down, or a hash lookup for each length.
        "cache_index" => cache_index: CacheIndex = CacheIndex::Radix, word_of(CacheIndex::WORDS), paper "radix";
    }
}
