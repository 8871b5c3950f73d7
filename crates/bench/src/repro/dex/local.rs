//! Local comparison: a cache that is larger than the data, beside trees in local memory.
//!
//! It shows the cost of remote memory that is not needed, on mapped memory with real threads.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock},
};

use farleaf_index::{
    Index,
    engines::dex::{Dex, DexOptions},
};
use serde_json::{Value, json};

use super::{
    ReproOptions,
    error::ReproError,
    local_tree::LocalTree,
    papers::{self, DexPaper},
    report::ReproReport,
    setup,
    slices::{self, BenchThread, SlicePlan, THREADS, Testbed, Times, Wanted, number_of},
};
use crate::{
    report::TimeKind,
    run::{Phase, Progress, sorted::SortedItems},
};

const KEYS: u64 = 10_000_000;
const FILL: f64 = 0.7;
const SLICE_OPS: usize = 5_000;
const ROUNDS: usize = 100;
const SCALE_MIN: f64 = 0.0001;

/// Maps that take turns. The first three are the comparison, the others stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Dex,
    Local,
    LocalPrefetching,
    BTreeMap,
    #[cfg(feature = "peers")]
    SkipList,
    #[cfg(feature = "peers")]
    TreeIndex,
}

impl Side {
    const ALL: &[Side] = &[
        Side::Dex,
        Side::Local,
        Side::LocalPrefetching,
        Side::BTreeMap,
        #[cfg(feature = "peers")]
        Side::SkipList,
        #[cfg(feature = "peers")]
        Side::TreeIndex,
    ];

    fn name(self) -> &'static str {
        match self {
            Side::Dex => "dex",
            Side::Local => "local B+-tree, same nodes",
            Side::LocalPrefetching => "the same, prefetching",
            Side::BTreeMap => "std BTreeMap, RwLock",
            #[cfg(feature = "peers")]
            Side::SkipList => "crossbeam-skiplist",
            #[cfg(feature = "peers")]
            Side::TreeIndex => "scc::TreeIndex",
        }
    }
}

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Get,
    Update,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Get => "get",
            Work::Update => "update",
        }
    }
}

/// All maps that hold the pairs.
struct Sides {
    dex: Dex,
    local: LocalTree,
    /// A tree of its own: nodes of a shared one could still lie in the processor's caches.
    prefetching: LocalTree,
    map: RwLock<BTreeMap<u64, u64>>,
    #[cfg(feature = "peers")]
    skip_list: crossbeam_skiplist::SkipMap<u64, u64>,
    #[cfg(feature = "peers")]
    tree_index: scc::TreeIndex<u64, u64>,
}

pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let paper = papers::dex()?;
    options.check_scale(SCALE_MIN, "there are too few keys")?;
    let keys = (KEYS as f64 * options.scale) as u64;
    // Room for every node, half as many again.
    let cache_bytes = (keys * 16 * 2).max(1 << 20);
    let title = "throughput of a cache that holds all, beside trees in local memory";
    let mut report = ReproReport::new("dex-local", title, &paper.source, TimeKind::Real);
    let testbed = Testbed::new(keys, options.seed)?;
    progress.begin(Phase::Load, keys * 3);
    let sides = Sides::new(&testbed, keys, cache_bytes, setup::with_settings(options)?, progress)?;
    report.scale = options.scale;
    let config: [(&str, Value); 11] = [
        ("engine", json!("dex")),
        ("fabric", json!("mapped")),
        ("seed", json!(options.seed)),
        ("keys", json!(keys)),
        ("distribution", json!("uniform")),
        ("threads", json!(THREADS)),
        ("cache_bytes", json!(cache_bytes)),
        ("bulk_fill", json!(FILL)),
        ("local_nodes", json!(sides.local.nodes())),
        ("slice_ops", json!(SLICE_OPS)),
        ("rounds", json!(ROUNDS)),
    ];
    config.into_iter().for_each(|(name, value)| report.set(name, value));
    let mut verbs = 0;
    for work in [Work::Get, Work::Update] {
        let plan = SlicePlan {
            sides: Side::ALL.len(),
            rounds: ROUNDS,
            slice_ops: SLICE_OPS,
            seed: options.seed,
            draw: &|rng| rng.u64(..keys),
            slice: &|side, thread, wanted| sides.slice(Side::ALL[side], work, thread, wanted),
        };
        let times = testbed.measure(&plan, progress)?;
        verbs += times.cost.verbs();
        add(&mut report, &paper, work, &times);
    }
    report.check("an operation on a warm cache does no remote operation", Some(verbs == 0));
    report.notes.push(
        "Each row is the median over rounds; in a round every side runs for some milliseconds on \
         both threads at once, one side after the other. The share is by processor time, so that \
         what else runs on the machine does not count; Mops are by real time."
            .to_owned(),
    );
    Ok(report)
}

fn add(report: &mut ReproReport, paper: &DexPaper, work: Work, times: &Times) {
    let name = work.name();
    let share = times.processor_ratio(0, 1);
    let published = (work == Work::Get).then_some(paper.local.share_of_local_tree);
    let why = "dex has the processor fetch what a search may touch, the local tree does not: see the next \
               row; and the smaller the trees, the more of them lies in the processor's caches, and the \
               more weighs what an operation does beside waiting for memory";
    report.row(name, "share of the local tree's throughput", published, share, why);
    let quantity = "share of a local tree's throughput that prefetches as dex does";
    report.row(name, quantity, None, times.processor_ratio(0, 2), "");
    if work == Work::Get {
        let least = paper.local.share_of_local_tree;
        // Smaller trees lie in the processor's cache, and so measure something else.
        let holds = (report.scale >= 1.0).then_some(share >= least);
        report.check(format!("get: at least {least} of the local tree's throughput"), holds);
    }
    for (at, side) in Side::ALL.iter().enumerate() {
        report.row(&format!("{name}, {}", side.name()), "Mops", None, times.mops(at), "");
    }
    if cfg!(not(feature = "peers")) {
        for peer in ["crossbeam-skiplist", "scc::TreeIndex"] {
            let why = "not built in: build with --features peers";
            report.missing(&format!("{name}, {peer}"), "Mops", None, why);
        }
    }
}

impl Sides {
    fn new(
        testbed: &Testbed,
        keys: u64,
        cache_bytes: u64,
        base: DexOptions,
        progress: &dyn Progress,
    ) -> Result<Self, ReproError> {
        let local = || {
            let mut pairs = slices::pairs(&slices::KEYS, keys, progress);
            LocalTree::build(testbed.layout, &mut pairs, keys, FILL)
                .ok_or_else(|| ReproError::Wrong("no memory for the local tree".to_owned()))
        };
        let options = DexOptions { cache_bytes, bulk_fill: FILL, ..base };
        let items = || SortedItems::new(&slices::KEYS, keys);
        let numbers = || items().map(|item| (number_of(item), item));
        Ok(Sides {
            dex: testbed.table(keys, options, progress)?,
            local: local()?,
            prefetching: local()?,
            #[cfg(feature = "peers")]
            skip_list: numbers().collect(),
            #[cfg(feature = "peers")]
            tree_index: {
                let index = scc::TreeIndex::new();
                for (key, value) in numbers() {
                    let _ = index.insert_sync(key, value);
                }
                index
            },
            map: RwLock::new(numbers().collect()),
        })
    }

    fn slice(
        &self,
        side: Side,
        work: Work,
        thread: &BenchThread,
        wanted: &Wanted,
    ) -> Result<usize, ReproError> {
        let mut value = Vec::with_capacity(8);
        Ok(match (side, work) {
            (Side::Dex, _) => thread.block_on(self.dex_slice(work, thread, wanted))?,
            (Side::Local, Work::Get) => {
                count(wanted, |key, _| self.local.get::<false>(key, &mut value))
            }
            (Side::Local, Work::Update) => {
                count(wanted, |key, item| self.local.update::<false>(key, &item.to_le_bytes()))
            }
            (Side::LocalPrefetching, Work::Get) => {
                count(wanted, |key, _| self.prefetching.get::<true>(key, &mut value))
            }
            (Side::LocalPrefetching, Work::Update) => {
                count(wanted, |key, item| self.prefetching.update::<true>(key, &item.to_le_bytes()))
            }
            (Side::BTreeMap, Work::Get) => count(wanted, |key, _| {
                let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
                map.get(&u64::from_be_bytes(*key)).is_some()
            }),
            (Side::BTreeMap, Work::Update) => count(wanted, |key, item| {
                let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
                map.get_mut(&u64::from_be_bytes(*key)).map(|value| *value = item).is_some()
            }),
            #[cfg(feature = "peers")]
            (Side::SkipList, Work::Get) => {
                count(wanted, |key, _| self.skip_list.get(&u64::from_be_bytes(*key)).is_some())
            }
            #[cfg(feature = "peers")]
            (Side::SkipList, Work::Update) => count(wanted, |key, item| {
                // Replaces the entry: values do not change in place.
                self.skip_list.insert(u64::from_be_bytes(*key), item);
                true
            }),
            #[cfg(feature = "peers")]
            (Side::TreeIndex, Work::Get) => count(wanted, |key, _| {
                self.tree_index.peek_with(&u64::from_be_bytes(*key), |_, _| ()).is_some()
            }),
            #[cfg(feature = "peers")]
            (Side::TreeIndex, Work::Update) => count(wanted, |key, item| {
                // As above; the other thread may do the same.
                self.tree_index.remove_sync(&u64::from_be_bytes(*key));
                let _ = self.tree_index.insert_sync(u64::from_be_bytes(*key), item);
                true
            }),
        })
    }

    async fn dex_slice(
        &self,
        work: Work,
        thread: &BenchThread,
        wanted: &Wanted,
    ) -> Result<usize, ReproError> {
        let (session, kind) = (&thread.session, work.name());
        let failed = |source| ReproError::Operation { kind, source };
        let mut value = Vec::with_capacity(8);
        let mut found = 0;
        for (key, item) in wanted {
            let is_there = match work {
                Work::Get => self.dex.get(session, key, &mut value).await,
                Work::Update => self.dex.update(session, key, &item.to_le_bytes()).await,
            };
            found += usize::from(is_there.map_err(failed)?);
        }
        Ok(found)
    }
}

#[inline]
fn count(wanted: &Wanted, mut found: impl FnMut(&[u8; 8], u64) -> bool) -> usize {
    wanted.iter().filter(|(key, item)| found(key, *item)).count()
}
