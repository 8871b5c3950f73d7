//! Client calls: choose a client's next operation.

use std::ops::Bound;

use super::values::Shape;
use crate::history::Op;

/// Most calls of one job, and so the clients of a thread in the history.
pub(super) const CALLS_MAX: usize = 4;
/// Jobs between two phases: one adds more than it removes, the next removes more, so that nodes
/// are split and merged all the time.
const PHASE_JOBS: u64 = 512;

/// Way to make calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A call of the blocking API.
    Blocking,
    /// A call of the async API.
    Async,
    /// Several calls in one of the blocking API: `get_many` and its like.
    Many,
}

/// One or more calls to make together.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) form: Form,
    /// One, or several of a kind with different keys.
    pub(super) calls: Vec<Op>,
}

/// Draws jobs of one thread.
#[derive(Debug)]
pub(super) struct Jobs {
    pub(super) shape: Shape,
    rng: fastrand::Rng,
    keys: u32,
    client: u32,
    sequence: u32,
    count: u64,
    /// Content that this thread last saw for each key.
    seen: Vec<Option<Vec<u8>>>,
}

impl Jobs {
    pub(super) fn new(shape: Shape, keys: u32, client: u32, seed: u64) -> Self {
        let (rng, seen) = (fastrand::Rng::with_seed(seed), vec![None; keys as usize]);
        Jobs { shape, rng, keys, client, sequence: 0, count: 0, seen }
    }

    /// Records that the key of `number` held `stamp`.
    pub(super) fn saw(&mut self, key: &[u8], stamp: Option<Vec<u8>>) {
        if let Some(number) = self.shape.number_of(key)
            && let Some(seen) = self.seen.get_mut(number as usize)
        {
            *seen = stamp;
        }
    }

    /// The next job.
    pub(super) fn next(&mut self) -> Job {
        self.count += 1;
        let grows = (self.count / PHASE_JOBS).is_multiple_of(2);
        let form = match self.rng.u32(..100) {
            0..=5 => Form::Async,
            6..=10 => Form::Many,
            _ => Form::Blocking,
        };
        if form == Form::Many {
            let kind = self.rng.u32(..4);
            // For several changes the answer gives only the number of new keys: two at most, so
            // that it often tells which.
            let keys = self.some_keys(if kind < 2 { CALLS_MAX } else { 2 });
            let calls = keys.into_iter().map(|key| match kind {
                0 | 1 => Op::Get { key },
                2 => Op::Upsert { key, value: self.stamp() },
                _ => Op::Remove { key },
            });
            let calls = calls.collect();
            return Job { form, calls };
        }
        let call = match self.rng.u32(..100) {
            0..=21 => Op::Get { key: self.key() },
            22..=33 => Op::Insert { key: self.key(), value: self.stamp() },
            34..=47 => Op::Update { key: self.key(), value: self.stamp() },
            48..=57 => Op::Upsert { key: self.key(), value: self.stamp() },
            58..=73 if grows && self.rng.u32(..3) > 0 => {
                Op::Upsert { key: self.key(), value: self.stamp() }
            }
            58..=73 => Op::Remove { key: self.key() },
            74..=87 => self.compare_exchange(),
            _ => self.scan(),
        };
        Job { form, calls: vec![call] }
    }

    fn number(&mut self) -> u32 {
        // Half of the calls meet on an eighth of the keys.
        let most = if self.rng.bool() { self.keys } else { self.keys.div_ceil(8) };
        self.rng.u32(..most)
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.number();
        self.shape.key(number)
    }

    /// Different keys, at least one.
    fn some_keys(&mut self, most: usize) -> Vec<Vec<u8>> {
        let count = self.rng.usize(1..=most);
        let mut numbers: Vec<u32> = (0..count).map(|_| self.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| self.shape.key(number)).collect()
    }

    /// The stamp of a new value.
    fn stamp(&mut self) -> Vec<u8> {
        self.sequence += 1;
        let bytes = match self.rng.u32(..200) {
            0 => self.rng.u32(10_000..100_000),
            1..=20 => self.rng.u32(400..8_000),
            21..=80 => self.rng.u32(40..400),
            _ => self.rng.u32(12..40),
        };
        self.shape.stamp(self.client, self.sequence, bytes)
    }

    fn compare_exchange(&mut self) -> Op {
        let number = self.number();
        // Mostly the value last seen, at times an older one.
        let expected = self.seen[number as usize].clone();
        let new = if self.rng.u32(..4) > 0 { Some(self.stamp()) } else { None };
        Op::CompareExchange { key: self.shape.key(number), expected, new }
    }

    fn scan(&mut self) -> Op {
        let limit = if self.rng.bool() { usize::MAX } else { self.rng.usize(1..20) };
        let reverse = self.rng.u32(..3) == 0;
        let (mut low, mut high) = (self.rng.u32(..self.keys), self.rng.u32(..self.keys));
        if low > high {
            (low, high) = (high, low);
        }
        let from = match self.rng.u32(..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(self.shape.key(low)),
            _ => Bound::Included(self.shape.key(low)),
        };
        let to = match self.rng.u32(..4) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.shape.key(high)),
            _ => Bound::Excluded(self.shape.key(high)),
        };
        Op::Scan { from, to, reverse, limit }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_call_comes_and_every_value_is_new() {
        for shape in Shape::ALL {
            let mut jobs = Jobs::new(shape, 30, 5, 1);
            let (mut kinds, mut stamps) = (BTreeSet::new(), BTreeSet::new());
            for _ in 0..20_000 {
                let job = jobs.next();
                assert!((1..=CALLS_MAX).contains(&job.calls.len()));
                assert!(job.calls.len() == 1 || job.form == Form::Many);
                for call in job.calls {
                    let (kind, stamp) = match call {
                        Op::Get { .. } => (0, None),
                        Op::Insert { value, .. } => (1, Some(value)),
                        Op::Update { value, .. } => (2, Some(value)),
                        Op::Upsert { value, .. } => (3, Some(value)),
                        Op::Remove { .. } => (4, None),
                        Op::CompareExchange { new, .. } => (5, new),
                        Op::Scan { reverse, .. } => (6 + u32::from(reverse), None),
                    };
                    kinds.insert((kind, job.form == Form::Many));
                    if let Some(stamp) = stamp {
                        assert!(stamps.insert(stamp), "a value came twice");
                    }
                }
            }
            assert_eq!(kinds.len(), 8 + 3);
        }
    }
}
