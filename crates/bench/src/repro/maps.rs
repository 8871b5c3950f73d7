//! Ordered maps in local memory, to stand beside tables: the standard library's, and with the feature `peers` those
//! of crates.io.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use farleaf_index::Index;

use super::{
    error::ReproError,
    slices::{self, BenchThread, Wanted, Work, number_of},
};

/// A map under measurement, with its name.
pub(super) struct Side {
    pub(super) name: String,
    pub(super) map: Box<dyn BenchMap>,
}

impl Side {
    pub(super) fn new(name: impl Into<String>, map: Box<dyn BenchMap>) -> Self {
        Side { name: name.into(), map }
    }
}

/// A map that takes part in slices.
pub(super) trait BenchMap: Sync {
    /// Does the work on each key. Returns the number of keys found.
    ///
    /// # Errors
    /// `Operation`.
    fn slice(&self, work: Work, thread: &BenchThread, wanted: &Wanted)
    -> Result<usize, ReproError>;
}

/// An open table.
pub(super) struct BenchTable<T>(pub(super) T);

impl<T: Index> BenchMap for BenchTable<T> {
    fn slice(
        &self,
        work: Work,
        thread: &BenchThread,
        wanted: &Wanted,
    ) -> Result<usize, ReproError> {
        thread.block_on(slices::work_on(&thread.session, &self.0, work, wanted))
    }
}

/// A map that needs no session. Its functions return the number of keys found.
struct Local<M> {
    map: M,
    get: fn(&M, &Wanted) -> usize,
    update: fn(&M, &Wanted) -> usize,
}

impl<M: Sync> BenchMap for Local<M> {
    fn slice(&self, work: Work, _: &BenchThread, wanted: &Wanted) -> Result<usize, ReproError> {
        Ok(match work {
            Work::Get => (self.get)(&self.map, wanted),
            Work::Update => (self.update)(&self.map, wanted),
        })
    }
}

/// A map that needs no session.
pub(super) fn local<M: Sync + 'static>(
    map: M,
    get: fn(&M, &Wanted) -> usize,
    update: fn(&M, &Wanted) -> usize,
) -> Box<dyn BenchMap> {
    Box::new(Local { map, get, update })
}

fn number(key: &[u8; 8]) -> u64 {
    u64::from_be_bytes(*key)
}

/// All maps of this build with the pairs, inserted in the order of the items.
pub(super) fn all(keys: u64) -> Vec<Side> {
    let own = Side::new(STD_MAP, std_map(keys));
    std::iter::once(own).chain(peers(keys)).collect()
}

#[cfg(feature = "peers")]
fn peers(keys: u64) -> Vec<Side> {
    vec![
        Side::new(MASSTREE, masstree(keys)),
        Side::new("bbtree", bbtree(keys)),
        Side::new("congee", congee(keys)),
        Side::new("crossbeam-skiplist", skip_list(keys)),
        Side::new("scc::TreeIndex", tree_index(keys)),
    ]
}

#[cfg(not(feature = "peers"))]
fn peers(_keys: u64) -> Vec<Side> {
    Vec::new()
}

/// The name of the standard library's map.
pub(super) const STD_MAP: &str = "std BTreeMap, RwLock";
/// The name of the map with which the others are compared, in a build that has it.
pub(super) const MASSTREE: &str = "masstree";

/// Maps that this build lacks, and the reason.
pub(super) fn missing() -> (&'static [&'static str], &'static str) {
    let names: &[&str] = match cfg!(feature = "peers") {
        true => &[],
        false => &[MASSTREE, "bbtree", "congee", "crossbeam-skiplist", "scc::TreeIndex"],
    };
    (names, "not built in: build with --features peers")
}

fn std_map(keys: u64) -> Box<dyn BenchMap> {
    let map: BTreeMap<u64, u64> = (0..keys).map(|item| (number_of(item), item)).collect();
    local(
        RwLock::new(map),
        |map, wanted| {
            slices::count(wanted, |key, _| {
                let map = map.read().unwrap_or_else(PoisonError::into_inner);
                map.get(&number(key)).is_some()
            })
        },
        |map, wanted| {
            slices::count(wanted, |key, item| {
                let mut map = map.write().unwrap_or_else(PoisonError::into_inner);
                map.get_mut(&number(key)).map(|value| *value = item).is_some()
            })
        },
    )
}

#[cfg(feature = "peers")]
fn masstree(keys: u64) -> Box<dyn BenchMap> {
    let map: masstree::MassTree<u64> = masstree::MassTree::new();
    {
        let guard = map.guard();
        for item in 0..keys {
            map.insert_with_guard(&number_of(item).to_be_bytes(), item, &guard);
        }
    }
    // A guard for each operation, as each operation of an engine pins its epoch.
    local(
        map,
        |map, wanted| {
            slices::count(wanted, |key, _| map.get_with_guard(key, &map.guard()).is_some())
        },
        |map, wanted| {
            slices::count(wanted, |key, item| {
                map.insert_with_guard(key, item, &map.guard()).is_some()
            })
        },
    )
}

#[cfg(feature = "peers")]
fn bbtree(keys: u64) -> Box<dyn BenchMap> {
    let map: bbtree::BBTreeMap<u64, u64> = bbtree::BBTreeMap::new();
    for item in 0..keys {
        let _ = map.insert(number_of(item), item);
    }
    local(
        map,
        |map, wanted| slices::count(wanted, |key, _| map.get_copied(&number(key)).is_some()),
        |map, wanted| {
            slices::count(wanted, |key, item| {
                map.update(&number(key), |_, value| *value = item).is_some()
            })
        },
    )
}

#[cfg(feature = "peers")]
fn congee(keys: u64) -> Box<dyn BenchMap> {
    let map: congee::Congee<usize, usize> = congee::Congee::default();
    {
        let guard = map.pin();
        for item in 0..keys {
            let _ = map.insert(number_of(item) as usize, item as usize, &guard);
        }
    }
    local(
        map,
        |map, wanted| {
            slices::count(wanted, |key, _| map.get(&(number(key) as usize), &map.pin()).is_some())
        },
        |map, wanted| {
            slices::count(wanted, |key, item| {
                let guard = map.pin();
                let new = |_: usize| Some(item as usize);
                map.compute_if_present(&(number(key) as usize), new, &guard).is_some()
            })
        },
    )
}

#[cfg(feature = "peers")]
fn skip_list(keys: u64) -> Box<dyn BenchMap> {
    let map: crossbeam_skiplist::SkipMap<u64, u64> = crossbeam_skiplist::SkipMap::new();
    for item in 0..keys {
        map.insert(number_of(item), item);
    }
    local(
        map,
        |map, wanted| slices::count(wanted, |key, _| map.get(&number(key)).is_some()),
        // Values do not change in place: the entry is replaced.
        |map, wanted| {
            slices::count(wanted, |key, item| {
                map.insert(number(key), item);
                true
            })
        },
    )
}

#[cfg(feature = "peers")]
fn tree_index(keys: u64) -> Box<dyn BenchMap> {
    let map: scc::TreeIndex<u64, u64> = scc::TreeIndex::new();
    for item in 0..keys {
        let _ = map.insert_sync(number_of(item), item);
    }
    local(
        map,
        |map, wanted| {
            slices::count(wanted, |key, _| map.peek_with(&number(key), |_, _| ()).is_some())
        },
        // As above; the other thread may do the same.
        |map, wanted| {
            slices::count(wanted, |key, item| {
                map.remove_sync(&number(key));
                let _ = map.insert_sync(number(key), item);
                true
            })
        },
    )
}
