//! Options: settings by which one compute server opens a table of this engine.

use crate::{KnobKind, knobs};

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
    }
}
