//! Options: settings by which one compute server opens a table of this engine.

use farleaf_index::{KnobKind, knobs};

use crate::smart::{OwnerWrites, ReadDelegation, SmartOptions};

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PSmartOptions {
        /// Bytes of cached inner nodes for each table. 0 caches none: then each operation reads every node on its
        /// way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "256 MB (DEX, section 7.1)";
        /// Most leaves and nodes that a scan reads at once.
        "scan_window" => scan_window: usize = 32, KnobKind::Count { min: 1, max: 256, unit: "objects" };
        /// Removed keys after which a task takes their leaves out of the tree.
        "unlink_batch" => unlink_batch: usize = 64, KnobKind::Count { min: 1, max: 4096, unit: "leaves" };
        /// Gets of one key that share a READ. strict: those that began before it. lax: those that began before it
        /// ended, which may return a value of the past. off: none.
        "read_delegation" => read_delegation: ReadDelegation = ReadDelegation::Strict,
            KnobKind::Words { words: ReadDelegation::WORDS, also: None }, paper "lax";
        /// Write changes of one key that arrive while another is under way together, under one lock.
        "write_combining" => write_combining: bool = true, KnobKind::Flag, paper "true";
        /// Most operations that one READ or one locked WRITE serves. 0 sets no limit.
        "batch_limit" => batch_limit: usize = 8, KnobKind::count(0, "operations"), paper "none";
        /// Rights of an owner beyond the protocol that compute servers share. exclusive: its cache answers for
        /// absent keys, and WRITEs link and change leaves. shared: nothing.
        "owner_writes" => owner_writes: OwnerWrites = OwnerWrites::Exclusive,
            KnobKind::Words { words: OwnerWrites::WORDS, also: None }, paper "exclusive";
    }
}

impl From<PSmartOptions> for SmartOptions {
    fn from(owned: PSmartOptions) -> SmartOptions {
        SmartOptions {
            cache_bytes: owned.cache_bytes,
            scan_window: owned.scan_window,
            unlink_batch: owned.unlink_batch,
            read_delegation: owned.read_delegation,
            write_combining: owned.write_combining,
            batch_limit: owned.batch_limit,
            ..SmartOptions::default()
        }
    }
}
