//! What goes wrong on purpose, within what the contract allows.
//!
//! - **ADV-1** Everything happens inside the time that the server's card takes for the operation
//!   anyway, so that mean throughput stays what it is.
//! - **ADV-2** A word is never split.
//! - **ADV-3** Nothing contradicts the configured [`Capabilities`].
//!
//! Which words belong to which instant follows from the seed and the operation's number alone, so
//! that nothing has to be remembered between the two instants.

use std::sync::atomic::Ordering;

use super::config::{AdversaryConfig, SimConfig};
use super::trace::mix;
use crate::{Buf, Capabilities, GlobalAddr, Op, Words};

/// Words per chunk of a mask.
const CHUNK: usize = 64;

#[derive(Debug)]
pub(super) struct Adversary {
    config: AdversaryConfig,
    capabilities: Capabilities,
    rng: fastrand::Rng,
    seed: u64,
}

impl Adversary {
    pub(super) fn new(config: &SimConfig) -> Self {
        Adversary {
            config: config.adversary.clone(),
            capabilities: config.capabilities,
            rng: fastrand::Rng::with_seed(mix(config.seed, 0xad)),
            seed: mix(config.seed, 0x5eed),
        }
    }

    /// How long after the first instant the second comes, less than `window_ps`; `None` if the
    /// operation has one instant only. `atomic_ps` is how long atomics are kept apart.
    #[inline]
    pub(super) fn second_after(&mut self, op: &Op, window_ps: u64, atomic_ps: u64) -> Option<u64> {
        let (probability, window_ps) = match op {
            Op::Cas { .. } | Op::Faa { .. } if self.capabilities.write_vs_rmw => return None,
            Op::Cas { .. } | Op::Faa { .. } => (self.config.split_rmw, window_ps.min(atomic_ps)),
            Op::Write { from, .. } if from.window_len() <= self.crash_atomic_bytes() => {
                return None;
            }
            Op::Read { .. } | Op::Write { .. } => (self.config.torn, window_ps),
            Op::WriteWord { .. } => return None,
        };
        if probability == 0.0 || words_of(op).len() < 2 && matches!(op, Op::Read { .. }) {
            return None;
        }
        let happens = probability >= 1.0 || self.rng.f64() < probability;
        (happens && window_ps > 1).then(|| self.rng.u64(1..window_ps))
    }

    /// Whether a WRITE that a fence meets before its first instant lands in part.
    pub(super) fn cuts(&mut self, from: &Buf) -> bool {
        self.config.torn > 0.0
            && from.window_len() > self.crash_atomic_bytes()
            && self.rng.f64() < self.config.torn / 2.0
    }

    fn crash_atomic_bytes(&self) -> usize {
        self.capabilities.crash_atomic_bytes as usize
    }

    /// The words of `op` that belong to its second instant.
    pub(super) fn mask(&self, op: &Op, serial: u64, part: u16) -> Mask {
        let seed = mix(self.seed ^ u64::from(part) << 48, serial);
        let words = words_of(op);
        let shape = if matches!(op, Op::Write { .. }) && self.capabilities.write_inorder {
            let first = words.start + (seed % words.len().max(1) as u64) as usize;
            Shape::From(if self.capabilities.line_atomic { first / 8 * 8 } else { first })
        } else if self.capabilities.line_atomic {
            Shape::Lines
        } else {
            Shape::Words
        };
        Mask { seed, shape }
    }
}

/// The words of the region that a READ or WRITE touches.
fn words_of(op: &Op) -> std::ops::Range<usize> {
    let first = op.addr().offset() as usize;
    first / 8..(first + op.bytes()).div_ceil(8)
}

/// A choice of words of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    seed: u64,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Any words.
    Words,
    /// Whole lines of 64 bytes.
    Lines,
    /// Every word from this one on.
    From(usize),
}

impl Mask {
    /// The bits of the words `chunk * 64` to `chunk * 64 + 63`.
    #[inline]
    fn bits(self, chunk: usize) -> u64 {
        let random = mix(self.seed, chunk as u64);
        match self.shape {
            Shape::Words => random,
            Shape::Lines => {
                (0..8).filter(|line| random >> line & 1 == 1).map(|line| 0xff << (8 * line)).sum()
            }
            Shape::From(first) => match first.saturating_sub(chunk * CHUNK) {
                before @ 0..CHUNK => u64::MAX << before,
                _ => 0,
            },
        }
    }

    /// Calls `each` with the index of every word of `range` that is in the mask, or is not if
    /// `inverted`.
    #[inline]
    fn each(self, range: std::ops::Range<usize>, inverted: bool, mut each: impl FnMut(usize)) {
        if range.is_empty() {
            return;
        }
        for chunk in range.start / CHUNK..=(range.end - 1) / CHUNK {
            let mut bits = self.bits(chunk) ^ if inverted { u64::MAX } else { 0 };
            let base = chunk * CHUNK;
            if range.start > base {
                bits &= u64::MAX << (range.start - base);
            }
            if range.end < base + CHUNK {
                bits &= !(u64::MAX << (range.end - base));
            }
            while bits != 0 {
                each(base + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

/// Samples the masked words of a READ once more. The range has been checked before.
pub(super) fn read_masked(words: &Words, from: GlobalAddr, into: &mut Buf, mask: Mask) {
    let (at, len) = (into.window_start(), into.window_len());
    let offset = from.offset() as usize;
    let range = offset / 8..(offset + len).div_ceil(8);
    if (offset | at | len).is_multiple_of(8) {
        let source = words.as_slice();
        let window = &mut into.words_mut()[at / 8..(at + len) / 8];
        let first = range.start;
        mask.each(range, false, |word| {
            window[word - first] = source[word].load(Ordering::Relaxed);
        });
    } else {
        let window = &mut into.bytes_mut()[at..at + len];
        mask.each(range, false, |word| {
            let (start, end) = ((word * 8).max(offset), (word * 8 + 8).min(offset + len));
            words.load_bytes(start, &mut window[start - offset..end - offset]);
        });
    }
}

/// Lands the masked words of a WRITE, or with `inverted` the others. The range has been checked
/// before.
pub(super) fn write_masked(words: &Words, to: GlobalAddr, from: &Buf, mask: Mask, inverted: bool) {
    let len = from.window_len();
    let offset = to.offset() as usize;
    let range = offset / 8..(offset + len).div_ceil(8);
    let at = from.window_start();
    if (offset | at | len).is_multiple_of(8) {
        let target = words.as_slice();
        let window = &from.words()[at / 8..(at + len) / 8];
        let first = range.start;
        mask.each(range, inverted, |word| {
            target[word].store(window[word - first], Ordering::Relaxed);
        });
    } else {
        let window = from.window_bytes();
        mask.each(range, inverted, |word| {
            let (start, end) = ((word * 8).max(offset), (word * 8 + 8).min(offset + len));
            words.store_bytes(start, &window[start - offset..end - offset]);
        });
    }
}
