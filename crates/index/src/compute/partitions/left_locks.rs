//! Left locks: the locks of this compute server at owners that could not be reached when it had done with them.
//!
//! - `INV-PART-LEFT-1` A left lock's holder is not inside the guard any more. So no map in which its partition is closed is
//!   acknowledged before the word has been given back: its lines may be copied with their lock words.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use farleaf_pool::Session;

use super::PartitionedTable;
use super::map::{PartitionMap, PartitionState};
use crate::remote_lock::LeftLock;
use crate::sync::{Mutex, lock};

/// See the [module page](self).
#[derive(Debug, Default)]
pub(super) struct LeftLocks {
    /// Nobody gives these back yet, each with its partition.
    waiting: Mutex<Vec<(u32, LeftLock)>>,
    /// Those that have not been given back, by partition.
    counts: Mutex<BTreeMap<u32, usize>>,
    ends: AtomicBool,
}

impl LeftLocks {
    pub(super) fn add(&self, partition: u32, left: LeftLock) {
        *lock(&self.counts).entry(partition).or_default() += 1;
        lock(&self.waiting).push((partition, left));
    }

    fn remove(&self, partition: u32) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&partition) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }

    /// Number of locks that have not been given back.
    pub(super) fn len(&self) -> usize {
        lock(&self.counts).values().sum()
    }

    /// Returns whether there are some in partitions that are not open in `map`.
    pub(super) fn has_in_closed(&self, map: &PartitionMap) -> bool {
        let is_open =
            |partition: &u32| map.entries[*partition as usize].state == PartitionState::Open;
        !lock(&self.counts).keys().all(is_open)
    }

    /// From now on none is given back.
    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }
}

/// Gives left locks back, by tasks of the caller's thread, which always runs.
///
/// Cost: nothing if there are none; see [`LeftLock::give_back`].
pub(super) fn give_back_left<T: PartitionedTable>(table: &T, session: &Session) {
    let Some(own) = table.membership() else { return };
    for (partition, mut left) in std::mem::take(&mut *lock(&own.left.waiting)) {
        let table = table.clone();
        session.spawn(async move |session| {
            let Some(own) = table.membership() else { return };
            if left.give_back(&session, || own.left.ends.load(Ordering::SeqCst)).await {
                own.left.remove(partition);
            }
        });
    }
}
