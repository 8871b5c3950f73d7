//! Published figures: those of the papers (`data/papers.json`) and of their programs.
//!
//! `data/peers.json` holds the figures of the programs that were published with the papers.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{driver::PaperCluster, error::ReproError};

const TEXT: &str = include_str!("../../data/papers.json");
const PEERS: &str = include_str!("../../data/peers.json");

/// The figures of the papers.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Papers {
    pub(super) dex: DexPaper,
    pub(super) dart: DartPaper,
    pub(super) smart: SmartPaper,
    pub(super) dmtree: DmTreePaper,
}

/// Least and most of a figure, over several systems or distributions; the same twice where the paper gives one.
pub(super) type Range = [f64; 2];
/// Ranges by operation or workload, and system.
pub(super) type Ranges = BTreeMap<String, BTreeMap<String, Range>>;

/// DMTree, FAST 2026.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DmTreePaper {
    pub(super) source: String,
    /// Section 5.1, with the card model of these experiments, which is ours.
    pub(super) setup: PaperCluster,
    /// Share of the throughput that the verbs of an operation allow (Figure 3).
    pub(super) share_of_expected: Ranges,
    /// Throughput over another system's, by operation, the system and the other (Figure 3).
    pub(super) fig3_over: BTreeMap<String, BTreeMap<String, BTreeMap<String, Range>>>,
    /// DMTree over others, uniform (Figure 11).
    pub(super) uniform: Ranges,
    /// DMTree over others, Zipf (Figure 12).
    pub(super) zipfian: Ranges,
    /// Share by which DMTree's P99 is lower, uniform and Zipf (Figure 13).
    pub(super) p99_lower: BTreeMap<String, Ranges>,
    /// DMTree over others by workload (Figure 14).
    pub(super) ycsb: Ranges,
    /// Microseconds of the steps of a search and of a write (Table 1).
    pub(super) latency_us: BTreeMap<String, BTreeMap<String, f64>>,
    /// GB of a compute server for all pairs (section 5.3).
    pub(super) compute_gb: BTreeMap<String, f64>,
    /// Parts of DMTree's.
    pub(super) compute_parts_gb: BTreeMap<String, f64>,
    /// GB of the pool.
    pub(super) pool_gb: BTreeMap<String, f64>,
    /// Throughput with the smallest cache over that with the largest (Figure 15).
    pub(super) small_cache: BTreeMap<String, Range>,
    /// Gains of a step over the one before, by step and operation (Figure 16).
    pub(super) ladder: Ranges,
    /// Share of a compute server's operations in use during inserts (Figures 5 and 17).
    pub(super) compute_card: BTreeMap<String, f64>,
    /// DMTree over others by bytes of a pair and workload (Figure 18).
    pub(super) pair_bytes: BTreeMap<String, Ranges>,
    /// DMTree over others by the most pairs of a scan (Figure 19).
    pub(super) scan_length: Ranges,
}

/// DART, PACMMOD 4(1).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DartPaper {
    pub(super) source: String,
    /// Section 5.1.
    pub(super) setup: PaperCluster,
    /// Gets of YCSB C, by keys and engine (section 2.2, Figure 7).
    pub(super) search: BTreeMap<String, BTreeMap<String, SearchCost>>,
    /// GiB of all pairs: an object of 128 bytes for each (Table 2).
    pub(super) data_gb: f64,
    /// By keys and engine: GiB beyond [`DartPaper::data_gb`] (Table 2).
    pub(super) index_gb: BTreeMap<String, BTreeMap<String, f64>>,
    /// Share of plain ART's memory that the paper's tree saves, by keys (section 3.2).
    pub(super) memory_below_art: BTreeMap<String, f64>,
    /// Plain ART with and without node locks, by distribution (Table 1).
    pub(super) locks: BTreeMap<String, DartLocks>,
    /// Least and most of its throughput over another engine's, by keys (Figure 6).
    pub(super) gains: BTreeMap<String, [f64; 2]>,
    /// The most by which its latency is lower (Figure 6).
    pub(super) latency_gain_max: f64,
    pub(super) ablation: DartAblation,
    pub(super) maintenance: DartMaintenance,
    pub(super) adjustment: DartAdjustment,
    /// The most by which B+-trees are ahead on short scans (Figure 12).
    pub(super) short_scans_btree_gain: f64,
    /// The most by which it is ahead of DEX with a small cache (Figure 13).
    pub(super) small_cache_gain_over_dex: f64,
    /// Least and most of its throughput over another engine's, over skews (Figure 14).
    pub(super) skew_gains: [f64; 2],
}

/// Plain ART's writes with 168 clients, and their latency with one.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DartLocks {
    pub(super) locked_mops: f64,
    pub(super) free_mops: f64,
    pub(super) locked_us: f64,
    pub(super) free_us: f64,
}

/// Figure 8: the most that each technique gains.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DartAblation {
    pub(super) compound_pointers: f64,
    pub(super) hashed_nodes: f64,
    /// Least and most by which bytes shrink, by keys.
    pub(super) hashed_nodes_bytes: BTreeMap<String, [f64; 2]>,
    pub(super) skip_table: f64,
    /// Round trips that it saves, by keys.
    pub(super) skip_table_trips: BTreeMap<String, f64>,
}

/// Figure 10: the maintenance of the skip table beside inserts.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DartMaintenance {
    pub(super) search_gain: f64,
    /// Share of the round trips that it takes, at most.
    pub(super) trips_share: f64,
}

/// Figure 11: the adjustment of prefix lengths at run time.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DartAdjustment {
    pub(super) gain: f64,
    /// Share of the throughput that it costs while it runs, at most.
    pub(super) cost: f64,
}

/// SMART, OSDI 2023.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SmartPaper {
    pub(super) source: String,
    pub(super) setup: PaperCluster,
    /// Throughput over Sherman's, by workload (Figure 11).
    pub(super) over_sherman: BTreeMap<String, f64>,
    /// Gain of each technique, by its name (Figure 15).
    pub(super) factors: BTreeMap<String, f64>,
}

/// Cost of one get.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct SearchCost {
    pub(super) round_trips: f64,
    pub(super) bytes: f64,
}

/// DEX, PVLDB 17(10).
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexPaper {
    pub(super) source: String,
    pub(super) setup: DexSetup,
    /// Costs of an index operation, by workload.
    pub(super) table2: BTreeMap<String, Table2Row>,
    /// The same of other engines, by workload and engine.
    pub(super) table2_others: BTreeMap<String, BTreeMap<String, Table2Row>>,
    pub(super) replacements: DexReplacements,
    /// Throughput over another system's, by workload and system (Figure 6, skewed, all threads).
    pub(super) fig6: BTreeMap<String, BTreeMap<String, f64>>,
    pub(super) fig7: DexFig7,
    pub(super) fig8: DexFig8,
    pub(super) fig9: DexFig9,
    pub(super) fig10: DexFig10,
    /// Gains of offloading, by workload.
    pub(super) fig12: BTreeMap<String, DexFig12>,
    pub(super) local: DexLocal,
}

/// Section 8.1.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexSetup {
    pub(super) keys: u64,
    pub(super) key_bytes: u64,
    pub(super) value_bytes: u64,
    pub(super) compute_servers: usize,
    pub(super) memory_servers: usize,
    pub(super) threads: usize,
    /// Threads of all memory servers.
    pub(super) memory_threads: usize,
    /// Highest level at which the paper offloads (M).
    pub(super) offload_level: u8,
    /// Bytes of each compute server's cache.
    pub(super) cache_bytes: u64,
    pub(super) warmup_ops: u64,
    pub(super) zipf_theta: f64,
    pub(super) cached_page_access_ns: u64,
}

/// Remote operations and bytes for each index operation: of one workload in Table 2, or of a run.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Table2Row {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) atomics: f64,
    pub(super) rpcs: f64,
    pub(super) bytes: f64,
}

/// Section 2.3: millions of pages a second that a compute server of 36 threads has to replace, and that one FIFO queue
/// does.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DexReplacements {
    pub(super) map_mega_per_s: f64,
    pub(super) queue_mega_per_s: f64,
}

/// Figure 7: uniform keys.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DexFig7 {
    /// Throughput over P-Sherman's: "about" the same.
    pub(super) over_p_sherman: f64,
    /// Gain of a cache of 512 MiB over one of 256.
    pub(super) gain_of_512_mib: f64,
}

/// Figure 8: the factor by which each technique multiplies the throughput.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexFig8 {
    pub(super) cache_bytes: u64,
    pub(super) partitioning_gain_2_threads: f64,
    /// Gains by distribution.
    pub(super) cache_gain: BTreeMap<String, f64>,
    pub(super) offloading_gain: BTreeMap<String, f64>,
}

/// Figure 9: gains in throughput, by megabytes of cache.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexFig9 {
    pub(super) cooling_map_gain: BTreeMap<String, f64>,
    pub(super) leaf_admission_gain: BTreeMap<String, f64>,
}

/// Figure 10: a range moves to a compute server that is added.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexFig10 {
    /// Sizes of the caches, MiB of each compute server.
    pub(super) caches_mib: Vec<u64>,
    /// An upper bound of the move's time.
    pub(super) seconds: f64,
}

/// Figure 12: the gain of four threads of each memory server over none.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct DexFig12 {
    /// Share of the READs and WRITEs that offloading saves.
    pub(super) saved: f64,
    pub(super) gain: f64,
}

/// The comparison with a tree in local memory.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DexLocal {
    pub(super) share_of_local_tree: f64,
}

/// The figures of the papers.
///
/// # Errors
/// [`ReproError::Figures`] if the file that was built in cannot be read.
pub(super) fn papers() -> Result<Papers, ReproError> {
    serde_json::from_str(TEXT).map_err(ReproError::Figures)
}

/// Results of the papers' programs on Soft-RoCE.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Peers {
    pub(super) source: String,
    /// READs of 1 KiB that perftest reaches there, thousands per second.
    pub(super) read_1kib_kops: f64,
    pub(super) threads: usize,
    pub(super) programs: Vec<Peer>,
}

/// Results of one program, and the engine that stands beside it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) engine: String,
    /// Settings of the engine, by name.
    #[serde(default)]
    pub(super) settings: BTreeMap<String, String>,
    pub(super) keys: u64,
    /// As in `digits:24`; numbers of 8 bytes if not given.
    #[serde(default)]
    pub(super) key_type: Option<String>,
    /// Bytes of its cache.
    pub(super) cache_bytes: u64,
    /// Operations before those that count fill the cache, which does not hold all.
    #[serde(default)]
    pub(super) fills_cache: bool,
    /// The engine needs no more operations and bytes.
    #[serde(default)]
    pub(super) is_bar: bool,
    /// By so much a count of the program may be above the figure, which is rounded; a hundred times that of bytes.
    #[serde(default)]
    pub(super) rounding: f64,
    /// Workloads for which it may need more.
    #[serde(default)]
    pub(super) allowed: BTreeMap<String, AllowedWrites>,
    /// Figures by workload.
    pub(super) rows: BTreeMap<String, PeerRow>,
}

/// WRITEs and bytes written that an engine may need where the program needs less.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct AllowedWrites {
    pub(super) writes: f64,
    pub(super) bytes_written: f64,
}

/// Thousands of operations per second, and the cost of each.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct PeerRow {
    pub(super) kops: f64,
    pub(super) reads: f64,
    pub(super) bytes_read: f64,
    pub(super) writes: f64,
    pub(super) bytes_written: f64,
    pub(super) atomics: f64,
}

impl PeerRow {
    /// Both ways.
    pub(super) fn bytes(&self) -> f64 {
        self.bytes_read + self.bytes_written
    }
}

/// The figures of the programs.
///
/// # Errors
/// [`ReproError::Figures`] if the file that was built in cannot be read.
pub(super) fn peers() -> Result<Peers, ReproError> {
    serde_json::from_str(PEERS).map_err(ReproError::Figures)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_figures_are_there() {
        let paper = papers().unwrap().dex;
        assert_eq!(
            paper.setup.keys * (paper.setup.key_bytes + paper.setup.value_bytes),
            3_200_000_000
        );
        assert_eq!(paper.setup.threads % paper.setup.compute_servers, 0);
        // Section 16 of the design: bytes are about 1,024 times READs and WRITEs.
        for (name, row) in &paper.table2 {
            let nodes = row.bytes / 1024.0;
            assert!((nodes - row.reads - row.writes).abs() < 0.01, "{name}: {row:?}");
        }
        assert_eq!(paper.fig9.cooling_map_gain.len(), paper.fig9.leaf_admission_gain.len());
    }

    #[test]
    fn the_programs_figures_are_there() {
        let peers = peers().unwrap();
        let rows = || peers.programs.iter().flat_map(|peer| peer.rows.values());
        assert_eq!((peers.programs.len(), rows().count()), (5, 19));
        assert!(rows().all(|row| row.kops > 0.0 && row.reads > 0.0));
        let engines = peers.programs.iter().map(|peer| super::super::driver::engine(&peer.engine));
        assert!(engines.into_iter().all(|engine| engine.is_some()));
        // DEX moves nodes of 1 KiB, no less.
        for (name, row) in &peers.programs[0].rows {
            let nodes = row.bytes() / 1024.0;
            assert!((nodes - row.reads - row.writes).abs() < 0.02, "{name}: {row:?}");
        }
    }
}
