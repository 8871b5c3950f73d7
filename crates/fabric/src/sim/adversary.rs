//! Adversary: tears single operations on purpose, within the limits of the contract.
//!
//! `fate.rs` delays and loses messages.
//!
//! - **ADV-1** Everything happens inside the time that the server's card takes for the operation
//!   anyway, so that mean throughput stays what it is, but for what is stretched.
//! - **ADV-2** A word is never split.
//! - **ADV-3** Nothing contradicts the configured [`Capabilities`].
//! - **ADV-4** Every choice follows from the seed, the post's number, the operation's place in its list
//!   and the fault's name alone. So the adversary keeps no state between two instants, and no choice
//!   depends on another.

use std::sync::atomic::Ordering;

use super::config::{AdversaryConfig, PS, SimConfig};
use super::trace::mix;
use crate::{Buf, Capabilities, GlobalAddr, Op, Words};

/// Words per chunk of a mask.
const CHUNK: usize = 64;

/// The most instants at which the words of one operation may be sampled or land.
const INSTANTS_MAX: u64 = 4;

/// Subject of a choice. The numbers are part of a seed's meaning.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Torn = 1,
    SplitRmw = 2,
    Instants = 3,
    Mask = 4,
    Cut = 5,
    Late = 6,
    LateBy = 7,
    LateWay = 8,
    Lost = 9,
    Outcome = 10,
    LostBy = 11,
    Prefix = 12,
    Repeated = 13,
    RepeatedBy = 14,
    Stretch = 15,
}

#[derive(Debug)]
pub(super) struct Adversary {
    pub(super) config: AdversaryConfig,
    capabilities: Capabilities,
    seed: u64,
    /// Operations may be torn or split; messages may be late or lost.
    pub(super) tears: bool,
    pub(super) harms: bool,
}

/// Times of a torn operation's later instants, after the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Later {
    after: [u64; INSTANTS_MAX as usize - 1],
    count: usize,
}

impl Later {
    pub(super) const NONE: Later = Later { after: [0; 3], count: 0 };

    pub(super) fn is_none(&self) -> bool {
        self.count == 0
    }

    /// In order of time.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.after.into_iter().take(self.count)
    }
}

impl Adversary {
    pub(super) fn new(config: &SimConfig) -> Self {
        let AdversaryConfig { torn, split_rmw, late, lost, .. } = config.adversary;
        Adversary {
            config: config.adversary.clone(),
            capabilities: config.capabilities,
            seed: mix(config.seed, 0x5eed),
            tears: torn > 0.0 || split_rmw > 0.0,
            harms: late > 0.0 || lost > 0.0,
        }
    }

    /// A random number for one choice (ADV-4).
    #[inline]
    pub(super) fn roll(&self, fault: Fault, serial: u64, part: u16) -> u64 {
        mix(self.seed ^ u64::from(part) << 48 ^ (fault as u64) << 40, serial)
    }

    /// Returns whether a fault of that probability strikes an operation.
    #[inline]
    pub(super) fn strikes(&self, fault: Fault, probability: f64, serial: u64, part: u16) -> bool {
        probability > 0.0
            && self.config.window.contains(&serial)
            && (self.roll(fault, serial, part) >> 11) as f64 * (0.5_f64).powi(53) < probability
    }

    /// Returns the times of the later instants after the first, less than `window_ps`. Atomics stay
    /// `atomic_ps` apart.
    pub(super) fn later(
        &self,
        op: &Op,
        serial: u64,
        part: u16,
        window_ps: u64,
        atomic_ps: u64,
    ) -> Later {
        let (window_ps, count) = if matches!(op, Op::Cas { .. } | Op::Faa { .. }) {
            let strikes = self.strikes(Fault::SplitRmw, self.config.split_rmw, serial, part);
            (window_ps.min(atomic_ps), usize::from(strikes && !self.capabilities.write_vs_rmw))
        } else if self.is_torn(op, serial, part) {
            (window_ps, self.instants(op, serial, part) - 1)
        } else {
            return Later::NONE;
        };
        if count == 0 || window_ps < 2 {
            return Later::NONE;
        }
        let mut after = [u64::MAX; INSTANTS_MAX as usize - 1];
        for (number, after) in after.iter_mut().enumerate().take(count) {
            let random = mix(self.roll(Fault::Instants, serial, part), number as u64);
            *after = 1 + random % (window_ps - 1);
        }
        after.sort_unstable();
        Later { after, count }
    }

    /// Returns whether a READ or WRITE is torn.
    pub(super) fn is_torn(&self, op: &Op, serial: u64, part: u16) -> bool {
        let can_be = match op {
            Op::Write { from, .. } => from.window_len() > self.crash_atomic_bytes(),
            Op::Read { .. } => true,
            _ => false,
        };
        can_be
            && self.strikes(Fault::Torn, self.config.torn, serial, part)
            && words_of(op).len() > 1
    }

    /// Returns the further time that an operation takes.
    #[inline]
    pub(super) fn stretch_ps(&self, op: &Op, serial: u64, part: u16) -> u64 {
        let most_ps = self.config.stretch_ns * PS;
        if most_ps == 0 || !self.is_torn(op, serial, part) {
            return 0;
        }
        let roll = self.roll(Fault::Stretch, serial, part);
        if roll & 1 == 0 { 0 } else { (roll >> 1) % most_ps }
    }

    /// Returns the number of instants of a torn operation.
    fn instants(&self, op: &Op, serial: u64, part: u16) -> usize {
        let most = INSTANTS_MAX.min(words_of(op).len() as u64);
        2 + (self.roll(Fault::Instants, serial, part) >> 8) as usize % (most as usize - 1)
    }

    /// Returns whether a WRITE that a fence meets before its first instant lands in part.
    pub(super) fn cuts(&self, from: &Buf, serial: u64, part: u16) -> bool {
        from.window_len() > self.crash_atomic_bytes()
            && self.strikes(Fault::Cut, self.config.torn / 2.0, serial, part)
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn crash_atomic_bytes(&self) -> usize {
        self.capabilities.crash_atomic_bytes as usize
    }

    /// Assigns the words of a torn or cut READ or WRITE to instants.
    pub(super) fn mask(&self, op: &Op, serial: u64, part: u16) -> Mask {
        let seed = self.roll(Fault::Mask, serial, part);
        let words = words_of(op);
        let instants = if words.len() > 1 { self.instants(op, serial, part) } else { 2 } as u8;
        let shape = if matches!(op, Op::Write { .. }) && self.capabilities.write_inorder {
            let mut ends = [usize::MAX; INSTANTS_MAX as usize];
            for (number, end) in ends.iter_mut().enumerate().take(usize::from(instants) - 1) {
                let random = mix(seed, number as u64);
                *end = words.start + (random % words.len().max(1) as u64) as usize;
                if self.capabilities.line_atomic {
                    *end = *end / 8 * 8;
                }
            }
            ends.sort_unstable();
            Shape::InOrder(ends)
        } else if self.capabilities.line_atomic {
            Shape::Lines
        } else {
            Shape::Words
        };
        Mask { seed, instants, shape }
    }
}

/// The words of the region that a READ or WRITE touches.
pub(super) fn words_of(op: &Op) -> std::ops::Range<usize> {
    let first = op.addr().offset() as usize;
    first / 8..(first + op.bytes()).div_ceil(8)
}

/// A choice of instants for words of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    seed: u64,
    instants: u8,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Any word at any instant.
    Words,
    /// Whole lines of 64 bytes.
    Lines,
    /// At each instant the words before its end that have not landed yet.
    InOrder([usize; INSTANTS_MAX as usize]),
}

impl Mask {
    /// The number of its last instant.
    pub(super) fn last(&self) -> u8 {
        self.instants - 1
    }

    /// The first `count` words of a WRITE at instant 0; of its whole lines, if `by_line`.
    pub(super) fn prefix(op: &Op, count: u32, by_line: bool) -> Mask {
        let words = words_of(op);
        let end = (words.start + count as usize).min(words.end);
        let mut ends = [usize::MAX; INSTANTS_MAX as usize];
        ends[0] = if by_line { end / 8 * 8 } else { end };
        Mask { seed: 0, instants: 2, shape: Shape::InOrder(ends) }
    }

    /// Some words of a WRITE at instant 0, chosen by `seed` within what the capabilities allow.
    pub(super) fn subset(op: &Op, seed: u64, capabilities: &Capabilities) -> Mask {
        let seed = mix(seed, 0x5b5e7);
        if capabilities.write_inorder {
            let count = seed % (words_of(op).len() as u64 + 1);
            return Mask::prefix(op, count as u32, capabilities.line_atomic);
        }
        let shape = if capabilities.line_atomic { Shape::Lines } else { Shape::Words };
        Mask { seed, instants: 2, shape }
    }

    /// The bits of those of the words `chunk * 64` to `chunk * 64 + 63` that belong to `instant`.
    #[inline]
    fn bits(&self, chunk: usize, instant: u8) -> u64 {
        match self.shape {
            Shape::Words => self.choice(instant, self.random(chunk, 0), self.random(chunk, 1)),
            Shape::Lines => {
                let lines = |random: u64| -> u64 {
                    let chosen = (0..8).filter(|line| random >> line & 1 == 1);
                    chosen.map(|line| 0xff << (8 * line)).sum()
                };
                let (one, other) = (self.random(chunk, 0), self.random(chunk, 1));
                self.choice(instant, lines(one), lines(other))
            }
            Shape::InOrder(ends) => {
                let up_to = |end: usize| match end.saturating_sub(chunk * CHUNK) {
                    within @ 0..CHUNK => !(u64::MAX << within),
                    _ => u64::MAX,
                };
                let before = match usize::from(instant).checked_sub(1) {
                    Some(before) => up_to(ends[before]),
                    None => 0,
                };
                up_to(ends[usize::from(instant)]) & !before
            }
        }
    }

    #[inline]
    fn random(&self, chunk: usize, number: u64) -> u64 {
        mix(self.seed ^ number << 63, chunk as u64)
    }

    /// The words that `instant` has of two random masks: together the instants give every word once.
    #[inline]
    fn choice(&self, instant: u8, one: u64, other: u64) -> u64 {
        match (self.instants, instant) {
            (2, 0) | (3, 0) => !one,
            (2, 1) => one,
            (_, 0) => !one & !other,
            (4, 3) => !one & other,
            (_, 1) => one & other,
            _ => one & !other,
        }
    }

    /// Calls `each` with the index of every word of `range` that belongs to `instant`.
    #[inline]
    fn each(&self, range: std::ops::Range<usize>, instant: u8, mut each: impl FnMut(usize)) {
        if range.is_empty() {
            return;
        }
        for chunk in range.start / CHUNK..=(range.end - 1) / CHUNK {
            let mut bits = self.bits(chunk, instant);
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

/// Samples the words of a READ that belong to `instant` once more. The range has been checked
/// before.
pub(super) fn read_masked(
    words: &Words,
    from: GlobalAddr,
    into: &mut Buf,
    mask: &Mask,
    instant: u8,
) {
    let (at, len) = (into.window_start(), into.window_len());
    let offset = from.offset() as usize;
    let range = offset / 8..(offset + len).div_ceil(8);
    if (offset | at | len).is_multiple_of(8) {
        let source = words.as_slice();
        let window = &mut into.words_mut()[at / 8..(at + len) / 8];
        let first = range.start;
        mask.each(range, instant, |word| {
            window[word - first] = source[word].load(Ordering::Relaxed);
        });
    } else {
        let window = &mut into.bytes_mut()[at..at + len];
        mask.each(range, instant, |word| {
            let (start, end) = ((word * 8).max(offset), (word * 8 + 8).min(offset + len));
            words.load_bytes(start, &mut window[start - offset..end - offset]);
        });
    }
}

/// Lands the words of a WRITE that belong to `instant`. The range has been checked before.
pub(super) fn write_masked(words: &Words, to: GlobalAddr, from: &Buf, mask: &Mask, instant: u8) {
    let len = from.window_len();
    let offset = to.offset() as usize;
    let range = offset / 8..(offset + len).div_ceil(8);
    let at = from.window_start();
    if (offset | at | len).is_multiple_of(8) {
        let target = words.as_slice();
        let window = &from.words()[at / 8..(at + len) / 8];
        let first = range.start;
        mask.each(range, instant, |word| {
            target[word].store(window[word - first], Ordering::Relaxed);
        });
    } else {
        let window = from.window_bytes();
        mask.each(range, instant, |word| {
            let (start, end) = ((word * 8).max(offset), (word * 8 + 8).min(offset + len));
            words.store_bytes(start, &window[start - offset..end - offset]);
        });
    }
}
