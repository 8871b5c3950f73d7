//! Load: counts operations on own keys, with decay, and samples their keys.

use super::op_counters::LINES;
use crate::Seek;
use crate::sync::{Mutex, lock};

/// One operation in so many leaves its key in the sample.
const EVERY: u64 = 16;
/// Keys of a line's sample; newer ones replace the oldest.
const KEYS: usize = 128;

/// Operations and a sample of their keys.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Operations, the older ones counted less.
    pub(crate) ops: u64,
    /// Keys of some of them.
    pub(crate) keys: Vec<Vec<u8>>,
}

/// Counts operations and samples their keys, a sample for each line of [`super::op_counters`].
#[derive(Debug)]
pub(super) struct Meter {
    samples: Box<[Mutex<Vec<Vec<u8>>>]>,
    tally: Mutex<Tally>,
}

/// A count of operations that decays with time.
#[derive(Debug, Default)]
struct Tally {
    /// Operations that had entered at the last decay.
    before: u64,
    /// The rest of their count at that time.
    kept: u64,
}

impl Meter {
    pub(super) fn new() -> Self {
        let samples = (0..LINES).map(|_| Mutex::default()).collect();
        Meter { samples, tally: Mutex::default() }
    }

    /// Samples the key of a line's operation of this number, if it is its turn.
    #[inline]
    pub(super) fn count(&self, line: usize, number: u64, seek: Seek<'_>) {
        if number % EVERY == EVERY - 1 {
            self.sample(line, number, seek);
        }
    }

    #[cold]
    fn sample(&self, line: usize, number: u64, seek: Seek<'_>) {
        let (Seek::At(key) | Seek::After(key)) = seek else { return };
        let mut keys = lock(&self.samples[line]);
        if keys.len() < KEYS {
            keys.push(key.to_vec());
        } else {
            let at = (number / EVERY) as usize % KEYS;
            keys[at].clear();
            keys[at].extend_from_slice(key);
        }
    }

    /// The load by now, `entered` operations having entered in all; half of it is forgotten then if it
    /// `decays`.
    pub(super) fn load(&self, entered: u64, decays: bool) -> Load {
        let mut tally = lock(&self.tally);
        let mut load = Load { ops: tally.kept + entered - tally.before, keys: Vec::new() };
        for sample in &self.samples {
            let mut keys = lock(sample);
            load.keys.extend(keys.iter().cloned());
            if decays {
                // The newer half is anywhere in the ring; any half is a sample.
                let mut at = 0;
                keys.retain(|_| {
                    at += 1;
                    at % 2 == 0
                });
            }
        }
        if decays {
            *tally = Tally { before: entered, kept: load.ops / 2 };
        }
        load
    }
}
