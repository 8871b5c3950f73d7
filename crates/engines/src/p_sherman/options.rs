//! Options: settings by which one compute server opens a table of this engine.

use farleaf_index::{KnobKind, knobs};

use crate::sherman::{ShermanOptions, WriteBack};

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct PShermanOptions {
        /// Bytes of copies of inner nodes for each table. 0 keeps none: then each operation reads every node on its way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "256 MB (DEX, section 7.1)";
        /// Times in a row that the lock word of an inner node goes from one task of this compute server to the next; 0
        /// releases it each time.
        "hand_over" => hand_over: u32 = 8, KnobKind::count(0, "passes");
        /// A turn or a lock that is passed on takes the node's content along, which saves a READ.
        "hand_image" => hand_image: bool = true, KnobKind::Flag;
        /// A change that needs a lock word takes it and reads the node in one chain. Else it waits for the lock first.
        "combine_lock" => combine_lock: bool = true, KnobKind::Flag;
        /// The part of a leaf that a change writes back: its entry or the node.
        "write_back" => write_back: WriteBack = WriteBack::Entry, KnobKind::Words { words: WriteBack::WORDS, also: None };
        /// Share of a node that a bulk load fills; 0.7 leaves room as random inserts do.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// A node that is filled below this share is merged with a neighbour, if the sum is at most `merge_sum`.
        "merge_low" => merge_low: f64 = 0.25, KnobKind::Share;
        /// Share of a node that two nodes may fill together to be merged.
        "merge_sum" => merge_sum: f64 = 0.75, KnobKind::Share;
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 16, KnobKind::Count { min: 1, max: 256, unit: "leaves" };
    }
}

impl From<PShermanOptions> for ShermanOptions {
    fn from(owned: PShermanOptions) -> ShermanOptions {
        ShermanOptions {
            cache_bytes: owned.cache_bytes,
            hand_over: owned.hand_over,
            hand_image: owned.hand_image,
            combine_lock: owned.combine_lock,
            write_back: owned.write_back,
            bulk_fill: owned.bulk_fill,
            merge_low: owned.merge_low,
            merge_sum: owned.merge_sum,
            scan_batch: owned.scan_batch,
            ..ShermanOptions::default()
        }
    }
}
