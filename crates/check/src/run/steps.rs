//! Steps: compute a client's operation from the scenario, the client and the step alone.

use std::ops::Bound;

use farleaf_engines::TableFormat;
use farleaf_index::{KeyFormat, ValueFormat};
use fastrand::Rng;

use crate::history::Op;
use crate::scenario::{Scenario, Workload, mix};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An operation.
    Do(Op),
    /// Compare-exchange with the content that the client knows of the key, or with its absence.
    Exchange { key: Vec<u8>, of_absent: bool, new: Option<Vec<u8>> },
    /// Adds one to a number by compare-exchange.
    Count(Vec<u8>),
    /// Looks for the longest key that this begins with.
    LongestPrefix(Vec<u8>),
    /// Operations that are done together, each of a key.
    Batch(Vec<Op>),
}

/// Draws steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps<'a> {
    scenario: &'a Scenario,
    table: TableFormat,
}

impl<'a> Steps<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        Steps { scenario, table: scenario.table() }
    }

    /// The pairs that the table holds at first, in order of keys.
    pub(super) fn preload(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let scenario = self.scenario;
        let mut rng = Rng::with_seed(mix(scenario.seed, 0x10ad));
        let mut numbers: Vec<u64> = (0..scenario.keys).collect();
        rng.shuffle(&mut numbers);
        numbers.truncate(usize::try_from(scenario.preload).unwrap_or(usize::MAX));
        let pair = |number: u64| {
            let mut rng = Rng::with_seed(mix(scenario.seed ^ 0x10ad, number));
            (self.key(number), self.value(&mut rng, 0xff, number as u32))
        };
        let mut pairs: Vec<_> = numbers.into_iter().map(pair).collect();
        pairs.sort();
        pairs.dedup_by(|a, b| a.0 == b.0);
        pairs
    }

    /// All keys, in order.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<_> = (0..self.scenario.keys).map(|number| self.key(number)).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Step `index` of `client`.
    pub(super) fn step(&self, client: usize, index: u32) -> Step {
        let scenario = self.scenario;
        let mut rng =
            Rng::with_seed(mix(mix(scenario.seed, 0x57e9 + client as u64), u64::from(index)));
        let weights = scenario.workload.weights();
        if scenario.workload == Workload::Batches && rng.u8(..3) > 0 {
            return Step::Batch(self.batch(&mut rng, client, index));
        }
        let key = self.key(self.number(&mut rng, client, index));
        let value = |rng: &mut Rng| self.value(rng, client as u8, index);
        let mut left = rng.u32(..100);
        let mut takes = |weight: u32| {
            let taken = left < weight;
            left = if taken { u32::MAX } else { left - weight };
            taken
        };
        if takes(weights.get) {
            if scenario.workload == Workload::Prefixes && rng.u8(..4) > 0 {
                return Step::LongestPrefix(self.longer(&mut rng, key));
            }
            Step::Do(Op::Get { key })
        } else if takes(weights.insert) {
            Step::Do(Op::Insert { key, value: value(&mut rng) })
        } else if takes(weights.update) {
            Step::Do(Op::Update { key, value: value(&mut rng) })
        } else if takes(weights.upsert) {
            Step::Do(Op::Upsert { key, value: value(&mut rng) })
        } else if takes(weights.remove) {
            Step::Do(Op::Remove { key })
        } else if takes(weights.exchange) {
            let of_absent = rng.u8(..4) == 0;
            let new = (rng.u8(..4) > 0).then(|| value(&mut rng));
            Step::Exchange { key, of_absent, new }
        } else if takes(weights.count) {
            Step::Count(key)
        } else {
            Step::Do(self.scan(&mut rng, key))
        }
    }

    fn batch(&self, rng: &mut Rng, client: usize, index: u32) -> Vec<Op> {
        let mut calls = Vec::new();
        for _ in 0..rng.usize(2..9) {
            let key = self.key(rng.u64(..self.scenario.keys));
            let value = self.value(rng, client as u8, index);
            calls.push(match rng.u8(..8) {
                0..=2 => Op::Get { key },
                3 => Op::Insert { key, value },
                4 => Op::Update { key, value },
                5 => Op::Upsert { key, value },
                6 => Op::CompareExchange { key, expected: None, new: Some(value) },
                _ => Op::Remove { key },
            });
        }
        calls
    }

    /// A key that begins with `key`, or `key`.
    fn longer(&self, rng: &mut Rng, mut key: Vec<u8>) -> Vec<u8> {
        if let KeyFormat::Bytes { max } = self.table.spec.key
            && rng.bool()
        {
            key.extend(self.key(rng.u64(..self.scenario.keys)));
            key.truncate(max);
        }
        key
    }

    fn scan(&self, rng: &mut Rng, key: Vec<u8>) -> Op {
        let bound = |rng: &mut Rng, key: Vec<u8>| match rng.u8(..4) {
            0 | 1 => Bound::Unbounded,
            2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        };
        let other = self.key(rng.u64(..self.scenario.keys));
        let (low, high) = if key <= other { (key, other) } else { (other, key) };
        Op::Scan {
            from: bound(rng, low),
            to: bound(rng, high),
            reverse: rng.bool(),
            limit: if rng.u8(..3) == 0 { rng.usize(1..20) } else { usize::MAX },
        }
    }

    /// Draws the number of a key.
    fn number(&self, rng: &mut Rng, client: usize, index: u32) -> u64 {
        let (keys, clients) = (self.scenario.keys, self.scenario.clients as u64);
        match self.scenario.workload {
            Workload::Hot if rng.u8(..5) > 0 => rng.u64(..3.min(keys)),
            Workload::Ascending => {
                let next = u64::from(index) * clients + client as u64;
                let back = if rng.u8(..4) == 0 { rng.u64(..clients * 4) } else { 0 };
                next.saturating_sub(back).min(keys - 1)
            }
            _ => rng.u64(..keys),
        }
    }

    /// The key of a number; awkward ones among them.
    fn key(&self, number: u64) -> Vec<u8> {
        let is_dense = self.scenario.workload == Workload::Ascending;
        match self.table.spec.key {
            KeyFormat::Fixed(bytes) => fixed_key(bytes, number, self.scenario.keys, is_dense),
            KeyFormat::Bytes { max } => {
                let mut key = match self.scenario.workload {
                    Workload::Ascending => format!("log/{number:08}").into_bytes(),
                    Workload::Prefixes => nested_key(number),
                    _ => odd_key(number, max),
                };
                key.truncate(max);
                key
            }
        }
    }

    /// A value, different for every step where there is room.
    fn value(&self, rng: &mut Rng, client: u8, index: u32) -> Vec<u8> {
        let bytes = match self.table.spec.value {
            ValueFormat::Fixed(bytes) => bytes,
            ValueFormat::Bytes if self.scenario.workload == Workload::Large => match rng.u8(..8) {
                0 => rng.usize(..20_000),
                // Alike, so that a record's memory is used for another of its length.
                1..3 => 2_000,
                3..5 => rng.usize(..3_000),
                _ => rng.usize(..100),
            },
            ValueFormat::Bytes => match rng.u8(..40) {
                0 => rng.usize(..6_000),
                1..4 => rng.usize(..600),
                4..10 => rng.usize(..100),
                _ => rng.usize(..20),
            },
        };
        let mut value = vec![client, index as u8, (index >> 8) as u8];
        let first = rng.u8(..);
        value.extend((0..bytes.saturating_sub(3)).map(|at| first.wrapping_add(at as u8)));
        value.truncate(bytes);
        value
    }

    /// The value of a counter.
    pub(super) fn count_value(&self, count: u64) -> Vec<u8> {
        let bytes = match self.table.spec.value {
            ValueFormat::Fixed(bytes) => bytes,
            ValueFormat::Bytes => 8,
        };
        let mut value = count.to_le_bytes().to_vec();
        value.resize(bytes, 0);
        value
    }
}

/// The count in a value.
pub(super) fn count_of(value: &[u8]) -> u64 {
    value.iter().take(8).enumerate().map(|(at, byte)| u64::from(*byte) << (8 * at)).sum()
}

/// Keys of fixed length: dense, or spread with both ends among them.
fn fixed_key(bytes: usize, number: u64, keys: u64, is_dense: bool) -> Vec<u8> {
    let word = if is_dense || number == 0 {
        number
    } else if number + 1 == keys {
        u64::MAX
    } else {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15 >> (number % 2))
    };
    let mut key = word.to_be_bytes().to_vec();
    if bytes < 8 {
        // Dense keys differ in the low bytes, others in the high ones.
        let from = if is_dense { 8 - bytes } else { 0 };
        key = key[from..from + bytes].to_vec();
    }
    key.resize(bytes, if number % 3 == 1 { 0xff } else { 0 });
    key
}

/// Keys of which many begin with others, by short steps and by long ones.
fn nested_key(number: u64) -> Vec<u8> {
    let (mut key, mut rest) = (Vec::new(), number);
    while rest > 0 {
        key.extend_from_slice([&b"a"[..], b"b/", b"c/and/more/bytes"][(rest % 3) as usize]);
        rest /= 3;
    }
    key
}

/// Keys of many lengths and shapes.
fn odd_key(number: u64, max: usize) -> Vec<u8> {
    match mix(number, 9) % 9 {
        0 if number == 0 => Vec::new(),
        1 => vec![0; (number as usize * 7) % (max + 1)],
        2 => vec![0xff; (number as usize * 5) % (max + 1)],
        3 => number.to_string().into_bytes(),
        4 => format!("{number:x}").repeat(3).into_bytes(),
        5 => {
            // Long, alike for long, and as long as can be.
            let mut key = vec![b'a' + (number % 2) as u8; max - 2];
            key.extend_from_slice(&(number as u16).to_be_bytes());
            key
        }
        6 => {
            let mut key = vec![b'p'; (number % 11) as usize];
            key.extend_from_slice(&[0, (number % 7) as u8]);
            key
        }
        _ => format!("user:{number:06}/name").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::Choices;

    #[test]
    fn steps_follow_from_their_place_alone() {
        let scenario = Scenario::from_seed(7, &Choices::default());
        let fewer = Scenario { salt: 9, ops: 1, ..scenario.clone() };
        for index in [0, 1, 50] {
            assert_eq!(Steps::new(&scenario).step(1, index), Steps::new(&fewer).step(1, index));
        }
    }

    #[test]
    fn keys_fit_their_format_and_differ() {
        for seed in 0..200 {
            let scenario = Scenario::from_seed(seed, &Choices::default());
            let steps = Steps::new(&scenario);
            let keys: BTreeSet<_> = steps.keys().into_iter().collect();
            assert!(keys.len() as u64 > scenario.keys / 2, "{scenario}: {}", keys.len());
            for (key, value) in steps.preload() {
                assert!(keys.contains(&key));
                match steps.table.spec.key {
                    KeyFormat::Fixed(bytes) => assert_eq!(key.len(), bytes),
                    KeyFormat::Bytes { max } => assert!(key.len() <= max),
                }
                if let ValueFormat::Fixed(bytes) = steps.table.spec.value {
                    assert_eq!(value.len(), bytes);
                }
            }
        }
    }
}
