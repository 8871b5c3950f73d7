//! Options: the shape of a table of this engine, and the settings by which one compute server opens it.

use farleaf_index::blink::ENGINE_REDO_BYTES;
use farleaf_index::bnode::BnodeShape;
use farleaf_index::{IndexError, KnobKind, Shape, Spec, knobs, shape};

use super::layout::{LeafShape, SPAN_MAX};

shape! {
    /// The geometry of a table's leaves and of the nodes above them.
    pub struct FpTreeShape {
        /// Bytes of a node of the upper tree, a power of two. The engine takes 1024 for short keys and values of fixed
        /// length, else 4096.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 };
        /// Slots of a leaf, if fewer than the 32 that its line has fingerprints for.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: SPAN_MAX as u64, unit: "entries" },
            paper "32";
        /// Most separators of an inner node of the upper tree, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
    }
}

impl FpTreeShape {
    /// The shape of the upper tree.
    fn upper(&self) -> BnodeShape {
        let FpTreeShape { node_bytes, cap_inner, .. } = *self;
        BnodeShape { node_bytes, cap_inner, cap_leaf: None }
    }
}

impl Shape for FpTreeShape {
    /// Chooses the size of a node.
    ///
    /// # Errors
    /// `Invalid` if there are no such leaves, or no such upper tree.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        let node_bytes = Some(self.node_bytes(spec) as u32);
        let whole = FpTreeShape { node_bytes, ..self };
        LeafShape::new(spec, &whole, 0)?;
        Ok(whole)
    }

    fn node_bytes(&self, spec: &Spec) -> usize {
        self.upper().node_bytes(spec)
    }

    /// Records of the upper tree, and the engine's own at the end of the area.
    fn redo_bytes(&self, spec: &Spec) -> usize {
        self.upper().redo_bytes(spec) + ENGINE_REDO_BYTES
    }
}

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct FpTreeOptions {
        /// Bytes of cached records for each table. 0 caches none: then each operation reads every node on its way.
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
    }
}
