//! Counters of an open table: named counts of an engine's own work, and the control of its cache.
//!
//! Reports, the bench and the metrics of a compute server print them by name, and know no engine. The fabric
//! counts remote operations by itself.

use std::collections::BTreeMap;

use farleaf_pool::Session;

use crate::{IndexError, Work};

/// Named counts of what one compute server has done with a table. They only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSet {
    counts: BTreeMap<&'static str, u64>,
    misses: Option<u64>,
}

impl CounterSet {
    /// Adds `count` to the counter `name`.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.counts.entry(name).or_default() += count;
    }

    /// Adds operations on a key whose leaf was not in a cache of leaves. An engine that caches no leaves gives
    /// no misses.
    pub fn add_misses(&mut self, count: u64) {
        *self.misses.get_or_insert(0) += count;
    }

    /// Adds the counts of another compute server.
    pub fn add_all(&mut self, other: &CounterSet) {
        other.iter().for_each(|(name, count)| self.add(name, count));
        other.misses.into_iter().for_each(|misses| self.add_misses(misses));
    }

    /// Returns the difference to the earlier counts `before`.
    pub fn since(&self, before: &CounterSet) -> CounterSet {
        let since = |(name, count)| (name, u64::wrapping_sub(count, before.get(name)));
        let misses = self.misses.map(|misses| misses - before.misses.unwrap_or(0));
        CounterSet { counts: self.iter().map(since).collect(), misses }
    }

    /// Returns the count of that name; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Returns the operations on a key whose leaf was not in the cache, of an engine that caches leaves.
    pub fn misses(&self) -> Option<u64> {
        self.misses
    }

    /// Every count with its name, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().map(|(name, count)| (*name, *count))
    }

    /// Returns whether the engine counts nothing.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The cache of an open table on this compute server, as tools and tests control it.
pub trait CacheControl {
    /// Writes all cached changes to remote memory, which then holds every change acknowledged before the call.
    /// A cache that holds no changes does nothing.
    ///
    /// Cost: 1 WRITE for each changed node.
    ///
    /// # Errors
    /// As any operation; nodes that could not be written are still in the cache.
    fn flush<'a>(&'a self, _session: &'a Session) -> Work<'a, Result<(), IndexError>> {
        Box::pin(async { Ok(()) })
    }

    /// Checks the cache and returns each violated invariant with its place; empty if all is well. Meant for a
    /// moment at which no operation runs.
    fn check(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the bytes that the cache takes now.
    fn resident_bytes(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_and_taken_away_by_name() {
        let mut before = CounterSet::default();
        before.add("reads_leaf", 3);
        before.add("forwarded", 1);
        before.add_misses(2);
        let mut sum = before.clone();
        let mut other = CounterSet::default();
        other.add("reads_leaf", 4);
        other.add("merges", 2);
        other.add_misses(5);
        sum.add_all(&other);
        assert_eq!((sum.get("reads_leaf"), sum.get("no such"), sum.misses()), (7, 0, Some(7)));
        let since = sum.since(&before);
        let named: Vec<_> = since.iter().collect();
        assert_eq!(named, [("forwarded", 0), ("merges", 2), ("reads_leaf", 4)]);
        assert_eq!(since.misses(), Some(5));
    }

    #[test]
    fn an_engine_without_a_cache_of_leaves_has_no_misses() {
        let mut set = CounterSet::default();
        assert!(set.is_empty());
        set.add("splits", 1);
        assert_eq!((set.is_empty(), set.misses(), set.since(&set).misses()), (false, None, None));
    }
}
