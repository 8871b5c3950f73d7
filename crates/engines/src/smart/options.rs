//! Options: settings by which one compute server opens a table of this engine.

use farleaf_index::{KnobKind, knobs};

use super::switches::{CacheIndex, LeafLock, LeafUpdate, NodeLocks, NodeTypes, ReadDelegation};

/// One word of a few.
const fn words(words: &'static [&'static str]) -> KnobKind {
    KnobKind::Words { words, also: None }
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
        "read_delegation" => read_delegation: ReadDelegation = ReadDelegation::Strict, words(ReadDelegation::WORDS),
            paper "lax";
        /// Write changes of one key that arrive while another is under way together, under one lock.
        "write_combining" => write_combining: bool = true, KnobKind::Flag, paper "true";
        /// Most operations that one READ or one locked WRITE serves. 0 sets no limit.
        "batch_limit" => batch_limit: usize = 8, KnobKind::count(0, "operations"), paper "none";
        /// Way of a new value into a leaf. in-place: under its lock. replaced: another leaf takes its place.
        "leaf" => leaf: LeafUpdate = LeafUpdate::InPlace, words(LeafUpdate::WORDS), paper "in-place";
        /// Lock that a change of a leaf takes. rear: the one in the leaf. table: one of a lock table as well.
        "lock" => lock: LeafLock = LeafLock::Rear, words(LeafLock::WORDS), paper "rear";
        /// Nodes that an operation locks in the lock table before it changes a slot.
        "node_locks" => node_locks: NodeLocks = NodeLocks::Off, words(NodeLocks::WORDS), paper "off";
        /// Sizes that nodes grow through. whole: all have the largest.
        "types" => types: NodeTypes = NodeTypes::Fine, words(NodeTypes::WORDS), paper "7 types";
        /// Way to the deepest cached node above a key: from the root down, or a hash lookup for each length.
        "cache_index" => cache_index: CacheIndex = CacheIndex::Radix, words(CacheIndex::WORDS), paper "radix";
    }
}
