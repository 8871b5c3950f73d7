//! Options: settings by which one compute server opens a table of this engine.

use super::offload::Offload;
use super::{Admission, Durability, FRAMES_MIN, MoveOptions};
use crate::IndexError;
use crate::bnode::Layout;

/// What can be set when a table of this engine is opened. Concerns this compute server alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DexOptions {
    /// Bytes of cached images, at least 8 nodes. Beside them a frame takes 73 bytes, and about 20 in
    /// lists. An operation needs the height of the tree and 2 more frames at a time.
    pub cache_bytes: u64,
    /// Share of the frames that may be Cooling.
    pub cooling_ratio: f64,
    /// Keep Cooling frames in one queue behind one lock instead of the cooling map's buckets: what
    /// the paper's Figure 9 measures them against.
    pub single_queue: bool,
    /// Victims that are sampled at a time when a frame is needed, at least 1.
    pub sample_count: u32,
    /// Cooling buckets that are looked into before that, at least 1.
    pub probe_buckets: usize,
    /// Leaves that are not cached and that a scan reads, if it is likely to want them, in the same round trip
    /// with one that it has missed; 0 reads each by itself. At most 64.
    pub scan_prefetch: usize,
    /// Which leaves are kept when they are missed, once the cache is full.
    pub admission: Admission,
    /// Most changes of a cached leaf that who holds its latch does with its own, for others that wait for the
    /// latch; 0: each waits, and does its own.
    pub combine: usize,
    /// A node below this share is merged with a neighbour if the sum is at most `merge_sum`.
    pub merge_low: f64,
    /// See `merge_low`.
    pub merge_sum: f64,
    /// Share of a node that a bulk load fills.
    pub bulk_fill: f64,
    /// What an acknowledged change survives.
    pub durability: Durability,
    /// Whether an image of a node is kept in the pool while the node is written, where a WRITE of one can
    /// be cut short by a death. Without it such a node is lost, with all its entries. Always so if
    /// changes are logged.
    pub wb_journal: bool,
    /// Bytes of the log, if changes are logged: at least 8 KiB, and at most what one object of the pool
    /// holds. The smaller, the earlier changed nodes have to be written back.
    pub log_bytes: u64,
    /// Which operations that miss a low node are sent to the memory server. Needs the fabric's capability
    /// `cpu_visible`, and [`super::offload::OffloadService`] on the memory servers; without either they read.
    pub offload: Offload,
    /// Highest level of a node whose miss may be offloaded.
    pub offload_level: u8,
    /// Whether the miss of a leaf may.
    pub offload_leaf_miss: bool,
    /// Whether scans may, that miss an inner node: the memory server then goes through the leaves below it.
    pub offload_scans: bool,
    /// How ranges are given to other compute servers.
    pub moves: MoveOptions,
}

impl Default for DexOptions {
    fn default() -> Self {
        DexOptions {
            cache_bytes: 256 << 20,
            cooling_ratio: 0.1,
            single_queue: false,
            sample_count: 2,
            probe_buckets: 8,
            scan_prefetch: 8,
            admission: Admission::Again,
            combine: 64,
            merge_low: 0.25,
            merge_sum: 0.75,
            bulk_fill: 0.7,
            durability: Durability::Logged,
            wb_journal: false,
            log_bytes: 1 << 20,
            offload: Offload::Never,
            offload_level: 3,
            offload_leaf_miss: true,
            offload_scans: false,
            moves: MoveOptions::default(),
        }
    }
}

impl DexOptions {
    /// Refuses what no table of such nodes can be opened with.
    ///
    /// # Errors
    /// `Invalid` for a cache of fewer than 8 nodes, and for what no cache works with.
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
