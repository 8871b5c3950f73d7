//! Options: settings by which one compute server opens a table of this engine.

use farleaf_index::bnode::Layout;
use farleaf_index::knob_words;
use farleaf_index::{IndexError, KnobKind, knobs};

use super::offload::Offload;
use super::{Admission, Durability, FRAMES_MIN};

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct DexOptions {
        /// Bytes of cached nodes for each table, at least 8 nodes. Each frame takes about 93 bytes beside its
        /// node. An operation needs the height of the tree and 2 more frames at a time. A cache of fewer than 48
        /// nodes has the others in reserve, for one operation at a time that finds no room for its path.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 1, max: u64::MAX }, paper "256 MB (section 7.1)";
        /// The failures that an acknowledged change survives. volatile: not the death of this compute
        /// server. logged: its death, because a change is in a log or in its node in the pool before it is
        /// acknowledged.
        "durability" => durability: Durability = Durability::Logged,
            KnobKind::Words { words: &["volatile", "logged"], also: None }, paper "volatile";
        /// The operations that a memory server executes if they miss a low node. adaptive chooses those
        /// that it measures to be quicker there. Needs the fabric's capability `cpu_visible` and memory
        /// servers that run the offload service; without them operations read.
        "offload" => offload: Offload = Offload::Never,
            KnobKind::Words { words: &["never", "always", "adaptive"], also: Some("ratio: and a share, as in ratio:0.3") },
            paper "adaptive";
        /// The missed leaves that stay once the cache is full. again keeps those that are missed again
        /// within as many misses as the cache has frames, lazy one in ten, eager all. Inner nodes always
        /// stay.
        "admission" => admission: Admission = Admission::Again,
            KnobKind::Words { words: &["again", "lazy", "eager"], also: Some("a probability from 0 to 1") },
            paper "0.1 (section 4.3)";
        /// Share of the frames that may be Cooling.
        "cooling_ratio" => cooling_ratio: f64 = 0.1, KnobKind::Share, paper "0.1";
        /// Keep Cooling frames in one queue behind one lock instead of the cooling map's buckets.
        "single_queue" => single_queue: bool = false, KnobKind::Flag, paper "false; true is the comparison of Figure 9";
        /// Victims that are sampled at a time when a frame is needed.
        "sample_count" => sample_count: u32 = 2, KnobKind::count(1, "frames");
        /// Cooling buckets that are looked into before victims are sampled.
        "probe_buckets" => probe_buckets: usize = 8, KnobKind::count(1, "buckets");
        /// Leaves that a scan reads ahead, in the same round trip with one that it has missed. 0 reads each by
        /// itself.
        "scan_prefetch" => scan_prefetch: usize = 8, KnobKind::Count { min: 0, max: 64, unit: "leaves" }, paper "0";
        /// Most changes of others that the holder of a leaf's latch executes with its own. 0: each operation
        /// waits for the latch.
        "combine" => combine: usize = 64, KnobKind::count(0, "changes"), paper "0";
        /// A node that is filled below this share is merged with a neighbour, if the sum is at most `merge_sum`.
        "merge_low" => merge_low: f64 = 0.25, KnobKind::Share;
        /// Share of a node that two nodes may fill together to be merged.
        "merge_sum" => merge_sum: f64 = 0.75, KnobKind::Share;
        /// Share of a node that a bulk load fills.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// Keep an image of a node in the pool while the node is written, where a death can cut a WRITE short.
        /// Without it such a node is lost with all its entries. Always so if changes are logged.
        "wb_journal" => wb_journal: bool = false, KnobKind::Flag;
        /// Bytes of the log if changes are logged: at most what one object of the pool holds. The smaller it
        /// is, the earlier changed nodes are written back.
        "log_bytes" => log_bytes: u64 = 1 << 20, KnobKind::Bytes { min: 8 << 10, max: u64::MAX };
        /// Highest level of a node whose miss may be offloaded; leaves have level 0.
        "offload_level" => offload_level: u8 = 3, KnobKind::Count { min: 0, max: 255, unit: "levels" }, paper "3";
        /// Allow offloading for the miss of a leaf.
        "offload_leaf_miss" => offload_leaf_miss: bool = true, KnobKind::Flag, paper "true";
        /// Allow offloading for scans that miss an inner node: the memory server then reads the leaves
        /// below it.
        "offload_scans" => offload_scans: bool = false, KnobKind::Flag, paper "false";
        /// Nodes that are written back at the same time when a range moves to another compute server.
        "flush_tasks" => flush_tasks: usize = 1, KnobKind::count(1, "nodes"),
            paper "1 (Figure 10)";
    }
}

knob_words!(Admission, Durability, Offload);

impl DexOptions {
    /// Refuses options with which no table of such nodes can be opened.
    ///
    /// # Errors
    /// `Invalid` for a cache of fewer than 8 nodes, and for values with which no cache works.
    pub fn check(&self, layout: &Layout) -> Result<(), IndexError> {
        let frames = self.cache_bytes / layout.node_bytes() as u64;
        if frames < FRAMES_MIN {
            return Err(IndexError::Invalid(format!(
                "a cache of {} bytes holds {frames} nodes; the least is {FRAMES_MIN}, {} bytes",
                self.cache_bytes,
                FRAMES_MIN * layout.node_bytes() as u64
            )));
        }
        let chance = match self.admission {
            Admission::Chance(chance) => chance,
            Admission::Again => 0.0,
        };
        let shares = [
            ("cooling_ratio", self.cooling_ratio),
            ("admission", chance),
            ("merge_low", self.merge_low),
            ("merge_sum", self.merge_sum),
            ("bulk_fill", self.bulk_fill),
        ];
        if let Some((name, share)) = shares.iter().find(|(_, it)| !(0.0..=1.0).contains(it)) {
            return Err(IndexError::Invalid(format!("{name} is a share, 0 to 1, not {share}")));
        }
        if self.sample_count == 0 || self.probe_buckets == 0 {
            return Err(IndexError::Invalid(
                "sample_count and probe_buckets are at least 1: else no frame is ever freed".into(),
            ));
        }
        Ok(())
    }
}
