//! Options: the shape of a table whose lines lie on compute servers, and the settings by which one compute server opens it.

use farleaf_index::compute::partitions::MoveWay;
use farleaf_index::{IndexError, KnobKind, Shape, Spec, knobs, shape, words};

use super::{FpTreeOptions, FpTreeShape};

shape! {
    /// The geometry of a table's leaves and of the nodes above them.
    pub struct DmTreeShape {
        /// Bytes of a node of the upper tree, a power of two. The engine takes 1024 for short keys and values of fixed
        /// length, else 4096.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 };
        /// Slots of a leaf, if fewer than the 32 that its line has fingerprints for.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: 32, unit: "entries" },
            paper "32";
        /// Most separators of an inner node of the upper tree, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
    }
}

impl From<DmTreeShape> for FpTreeShape {
    fn from(shape: DmTreeShape) -> FpTreeShape {
        let DmTreeShape { node_bytes, cap_leaf, cap_inner } = shape;
        FpTreeShape { node_bytes, cap_leaf, cap_inner }
    }
}

impl From<FpTreeShape> for DmTreeShape {
    fn from(shape: FpTreeShape) -> DmTreeShape {
        let FpTreeShape { node_bytes, cap_leaf, cap_inner } = shape;
        DmTreeShape { node_bytes, cap_leaf, cap_inner }
    }
}

impl Shape for DmTreeShape {
    /// Chooses the size of a node.
    ///
    /// # Errors
    /// `Invalid` if there are no such leaves, or no such upper tree.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        Ok(FpTreeShape::from(self).complete(spec)?.into())
    }

    fn node_bytes(&self, spec: &Spec) -> usize {
        FpTreeShape::from(*self).node_bytes(spec)
    }

    fn redo_bytes(&self, spec: &Spec) -> usize {
        FpTreeShape::from(*self).redo_bytes(spec)
    }
}

words! {
    /// The way of lines to another compute server, when this one opens or closes the table.
    LineMove {
        /// They are built from their leaves when they are needed.
        Build = "build",
        /// They are copied, lock words included.
        Copy = "copy",
    }
}

impl From<LineMove> for MoveWay {
    fn from(way: LineMove) -> MoveWay {
        match way {
            LineMove::Build => MoveWay::Build,
            LineMove::Copy => MoveWay::Copy,
        }
    }
}

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct DmTreeOptions {
        /// Bytes of cached records for each table, and of replicas. 0 caches none: then each operation reads every node on its
        /// way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "25 GB";
        /// Share of a leaf that a bulk load fills; 0.7 leaves room as random inserts do.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// Most leaves that a scan reads at once.
        "scan_window" => scan_window: usize = 16, KnobKind::Count { min: 1, max: 256, unit: "leaves" };
        /// Scans read the lines of leaves first, then the slots that have a fingerprint. Else they read whole leaves.
        "filter" => filter: bool = true, KnobKind::Flag, paper "true";
        /// Slots without a fingerprint that a scan reads along, so that two runs of slots are one READ.
        "gap_join" => gap_join: usize = 2, KnobKind::Count { min: 0, max: 32, unit: "slots" };
        /// Gets of one key share READs, and changes of one key that arrive while another is under way are written together.
        "delegate" => delegate: bool = true, KnobKind::Flag, paper "true";
        /// Most operations that share one READ or one locked WRITE. 0 sets no limit.
        "batch_limit" => batch_limit: usize = 8, KnobKind::count(0, "operations"), paper "none";
        /// Share of its slots that a leaf fills at most to be merged with a neighbour. 0 merges empty leaves alone.
        "merge" => merge: f64 = 0.4, KnobKind::Share, paper "0";
        /// Keep lines of leaves as they were seen last: a get of a key that is there reads its slot at once.
        "replica" => replica: bool = true, KnobKind::Flag, paper "true";
        /// An update reads the slot that the replica names while it locks the leaf.
        "speculate" => speculate: bool = true, KnobKind::Flag, paper "true";
        /// This compute server's share of the partitions, if it exposes memory, beside those of others. 0: none.
        "weight" => weight: u16 = 1, KnobKind::Count { min: 0, max: 64, unit: "shares" }, paper "1";
        /// The way of lines to and from this compute server when it opens or closes the table. build: the first change of
        /// each leaf reads the leaf. copy: the partitions are closed for longer.
        "move" => move_way: LineMove = LineMove::Build, KnobKind::Words { words: LineMove::WORDS, also: None };
    }
}

impl From<DmTreeOptions> for FpTreeOptions {
    fn from(options: DmTreeOptions) -> FpTreeOptions {
        let DmTreeOptions { cache_bytes, bulk_fill, scan_window, filter, .. } = options;
        let DmTreeOptions { gap_join, delegate, batch_limit, merge, .. } = options;
        FpTreeOptions {
            cache_bytes,
            bulk_fill,
            scan_window,
            filter,
            gap_join,
            delegate,
            batch_limit,
            merge,
        }
    }
}
