//! Load: counts operations on own keys, with decay, and samples their keys.

use super::walk::Seek;

/// One operation in so many leaves its key in the sample.
const EVERY: u64 = 16;
/// Keys of a line's sample; newer ones replace the oldest.
const KEYS: usize = 128;

/// What one line of the gate has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Operations, of which half are forgotten at each decay.
    pub(super) ops: u64,
    /// Keys of some of them.
    pub(super) keys: Vec<Vec<u8>>,
    ticks: u64,
}

impl Meter {
    /// Counts one.
    #[inline]
    pub(super) fn count(&mut self, seek: Seek<'_>) {
        self.ops += 1;
        self.ticks += 1;
        if self.ticks.is_multiple_of(EVERY) {
            self.keep(seek);
        }
    }

    #[cold]
    fn keep(&mut self, seek: Seek<'_>) {
        let (Seek::At(key) | Seek::After(key)) = seek else { return };
        if self.keys.len() < KEYS {
            self.keys.push(key.to_vec());
        } else {
            let at = (self.ticks / EVERY) as usize % KEYS;
            self.keys[at].clear();
            self.keys[at].extend_from_slice(key);
        }
    }

    /// Both together.
    pub(super) fn add(mut self, other: &Meter) -> Meter {
        self.ops += other.ops;
        self.keys.extend(other.keys.iter().cloned());
        self
    }

    /// Forgets half.
    pub(super) fn decay(&mut self) {
        self.ops /= 2;
        let keep = self.keys.len().div_ceil(2);
        // The newer half is anywhere in the ring; any half is a sample.
        let mut at = 0;
        self.keys.retain(|_| {
            at += 1;
            at % 2 == 0
        });
        self.keys.truncate(keep);
    }
}
