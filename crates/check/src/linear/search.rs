//! Search: finds an order of one key's operations.
//!
//! As Wing and Gong (JPDC 1993) with the memory of Lowe (Concurrency and Computation, 2017): a
//! list of calls and returns in order of time; an operation whose call stands before the first
//! return in the list may be next; it is lifted out of the list, and put back if that led nowhere.
//! A configuration (the set of operations placed, and the state) is looked at once. Beyond that:
//!
//! - A configuration is remembered as a 128-bit sum of random numbers, one for each operation
//!   placed (Zobrist hashing). This costs the same for a short and a long history. Two of n
//!   configurations have the same sum with a chance of n^2 / 2^129: below 10^-24 for ten millions.
//! - An operation that with its answer can change no state (a get, a failed insert) is placed as
//!   soon as it fits, without alternatives: in any order that places it later it can be moved here.
//! - An operation without an answer is placed only where it is needed. Each order can be brought
//!   into the form in which a run of them is followed by an answered operation that would not have
//!   fitted before the run: otherwise that operation and the run can change places, or the run be
//!   left out. In a run, none is followed by one that would have led to the same state without it.
//!   Of two that do the same, the one called first is taken first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use super::ops::{KeyOp, KeyState, NONE};

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchVerdict {
    /// There is an order.
    Ordered,
    /// There is none: this operation, the first to return among those that no order could pass.
    Impossible {
        /// Its place among the key's operations.
        blocked: u32,
    },
    /// The steps ran out.
    GaveUp,
}

/// Record of a second search of an impossible history.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The longest order that got as far as any: operation, and state after it.
    pub(super) best: Vec<(u32, KeyState)>,
    best_at: u32,
    /// For each moment without an answered operation under way, named by the next to be called:
    /// the states that the key may have had then.
    pub(super) quiet: BTreeMap<u32, BTreeSet<KeyState>>,
}

/// A step of the order under construction.
#[derive(Clone, Copy)]
struct Frame {
    op: u32,
    /// There is no alternative to try.
    forced: bool,
    state: KeyState,
    run: SearchRun,
}

/// The run of unanswered operations placed last: the state before it, and before its last one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SearchRun {
    base: KeyState,
    prev: KeyState,
}

/// The last operation placed was an answered one.
const NO_RUN: SearchRun = SearchRun { base: NONE, prev: NONE };

/// Hasher for keys that are random already.
#[derive(Default)]
struct Low(u64);

impl Hasher for Low {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, sum: u128) {
        self.0 = sum as u64;
    }
}

/// Searches; keeps its memory from one key to the next.
#[derive(Default)]
pub(super) struct Search {
    /// For each entry of the list (0 is its head): the operation, and true for its return.
    entries: Vec<(u32, bool)>,
    next: Vec<u32>,
    prev: Vec<u32>,
    /// Per operation: its call and its return in the list.
    call: Vec<u32>,
    back: Vec<u32>,
    placed: Vec<bool>,
    /// Operations without an answer, in order of their calls, and the one before that does the
    /// same.
    unknown: Vec<(u32, u32)>,
    returns: Vec<u32>,
    frames: Vec<Frame>,
    seen: HashSet<u128, BuildHasherDefault<Low>>,
    sum: u128,
    state: KeyState,
    left: usize,
}

impl Search {
    /// Looks for an order of `ops`, sorted by the times of their calls, from `initial` on. Takes
    /// its steps from `steps`.
    pub(super) fn run(
        &mut self,
        ops: &[KeyOp],
        initial: KeyState,
        steps: &mut u64,
        mut trace: Option<&mut Trace>,
    ) -> SearchVerdict {
        self.prepare(ops, initial);
        let quiet = if trace.is_some() { quiet_calls(ops) } else { BTreeMap::new() };
        let mut run = NO_RUN;
        // The furthest return that no order has passed.
        let mut furthest = 0;
        loop {
            if self.left == 0 {
                return SearchVerdict::Ordered;
            }
            let mut choice = None;
            let mut at = self.next[0];
            let first = self.entries[at as usize].0;
            let stop = loop {
                if *steps == 0 {
                    return SearchVerdict::GaveUp;
                }
                *steps -= 1;
                let (op, is_return) = self.entries[at as usize];
                if is_return {
                    break Some(at);
                }
                if self.fits(ops, op, run) {
                    if ops[op as usize].is_pure() {
                        choice = Some(op);
                        break None;
                    }
                    choice = choice.or(Some(op));
                }
                at = self.next[at as usize];
            };
            let forced = stop.is_none();
            if let Some(stop) = stop {
                furthest = furthest.max(stop);
                if let Some(trace) = trace.as_deref_mut() {
                    self.note(trace, stop, quiet.get(&first).copied(), first);
                }
                let new = self.seen.insert(self.sum ^ mark(self.state, run));
                choice = match choice {
                    _ if !new => None,
                    None => self.unanswered(ops, 0, stop, run, steps),
                    some => some,
                };
            }
            if let Some(op) = choice {
                run = self.place(ops, op, forced, run);
                continue;
            }
            // Back to the last step that has an alternative.
            loop {
                let Some(frame) = self.frames.pop() else {
                    return SearchVerdict::Impossible {
                        blocked: self.entries[furthest as usize].0,
                    };
                };
                self.undo(ops, frame);
                if frame.forced {
                    continue;
                }
                run = frame.run;
                let Some(op) = self.alternative(ops, frame.op, run, steps) else { continue };
                run = self.place(ops, op, false, run);
                break;
            }
        }
    }

    /// Returns whether the answered operation `op` can be placed now.
    fn fits(&self, ops: &[KeyOp], op: u32, run: SearchRun) -> bool {
        let op = &ops[op as usize];
        self.is_ready(op)
            && op.apply(self.state).is_some()
            && (run == NO_RUN || (op.apply(run.base).is_none() && op.apply(run.prev).is_none()))
    }

    fn is_ready(&self, op: &KeyOp) -> bool {
        op.after == NONE || self.placed[op.after as usize]
    }

    /// Returns the operation to try after `op` has failed.
    fn alternative(&self, ops: &[KeyOp], op: u32, run: SearchRun, steps: &mut u64) -> Option<u32> {
        let mut first = 0;
        let mut at = self.next[0];
        if ops[op as usize].is_known() {
            at = self.next[self.call[op as usize] as usize];
        } else {
            first = self.unknown.partition_point(|&(other, _)| other <= op);
        }
        loop {
            *steps = steps.saturating_sub(1);
            let (other, is_return) = self.entries[at as usize];
            if is_return {
                return self.unanswered(ops, first, at, run, steps);
            }
            if first == 0 && self.fits(ops, other, run) {
                return Some(other);
            }
            at = self.next[at as usize];
        }
    }

    /// The first operation without an answer, from `first` on, that is worth placing before the
    /// return `stop`.
    fn unanswered(
        &self,
        ops: &[KeyOp],
        first: usize,
        stop: u32,
        run: SearchRun,
        steps: &mut u64,
    ) -> Option<u32> {
        let until = ops[self.entries[stop as usize].0 as usize].to_ns;
        for &(index, twin) in self.unknown.get(first..)? {
            let op = &ops[index as usize];
            if op.from_ns > until {
                break;
            }
            *steps = steps.saturating_sub(1);
            if self.placed[index as usize] || !self.is_ready(op) {
                continue;
            }
            if twin != NONE && !self.placed[twin as usize] && self.is_ready(&ops[twin as usize]) {
                continue;
            }
            let next = op.apply(self.state);
            if next == Some(self.state) {
                continue;
            }
            if run != NO_RUN {
                let needless = [run.base, run.prev]
                    .into_iter()
                    .any(|state| op.apply(state) == next || next == Some(state));
                if needless {
                    continue;
                }
            }
            return Some(index);
        }
        None
    }

    fn place(&mut self, ops: &[KeyOp], index: u32, forced: bool, run: SearchRun) -> SearchRun {
        let op = &ops[index as usize];
        self.frames.push(Frame { op: index, forced, state: self.state, run });
        let before = self.state;
        self.state = op.apply(before).unwrap_or(before);
        self.placed[index as usize] = true;
        self.sum ^= number(u64::from(index));
        if op.is_known() {
            self.lift(self.call[index as usize]);
            self.lift(self.back[index as usize]);
            self.left -= 1;
            NO_RUN
        } else if run == NO_RUN {
            SearchRun { base: before, prev: before }
        } else {
            SearchRun { base: run.base, prev: before }
        }
    }

    fn undo(&mut self, ops: &[KeyOp], frame: Frame) {
        self.state = frame.state;
        self.placed[frame.op as usize] = false;
        self.sum ^= number(u64::from(frame.op));
        if ops[frame.op as usize].is_known() {
            self.put_back(self.back[frame.op as usize]);
            self.put_back(self.call[frame.op as usize]);
            self.left += 1;
        }
    }

    fn lift(&mut self, entry: u32) {
        let (prev, next) = (self.prev[entry as usize], self.next[entry as usize]);
        self.next[prev as usize] = next;
        self.prev[next as usize] = prev;
    }

    fn put_back(&mut self, entry: u32) {
        let (prev, next) = (self.prev[entry as usize], self.next[entry as usize]);
        self.next[prev as usize] = entry;
        self.prev[next as usize] = entry;
    }

    fn note(&self, trace: &mut Trace, stop: u32, quiet: Option<u32>, first: u32) {
        let is_better = (stop, self.frames.len()) > (trace.best_at, trace.best.len());
        if is_better || trace.best_at == 0 {
            trace.best_at = stop;
            let after = self.frames.iter().skip(1).map(|frame| frame.state).chain([self.state]);
            trace.best = self.frames.iter().map(|frame| frame.op).zip(after).collect();
        }
        let placed = self.returns.len() - self.left;
        if quiet.is_some_and(|before| placed as u32 == before) {
            trace.quiet.entry(first).or_default().insert(self.state);
        }
    }

    /// Builds the list.
    fn prepare(&mut self, ops: &[KeyOp], initial: KeyState) {
        self.entries.clear();
        self.unknown.clear();
        self.frames.clear();
        self.returns.clear();
        self.returns.extend((0..ops.len() as u32).filter(|&op| ops[op as usize].is_known()));
        self.left = self.returns.len();
        self.returns.sort_by_key(|&op| ops[op as usize].to_ns);
        for per_op in [&mut self.call, &mut self.back] {
            per_op.clear();
            per_op.resize(ops.len(), NONE);
        }
        self.placed.clear();
        self.placed.resize(ops.len(), false);
        self.entries.push((NONE, false));
        let mut returned = 0;
        for (index, op) in ops.iter().enumerate() {
            if !op.is_known() {
                let same = |&&(other, _): &&(u32, u32)| ops[other as usize].kind == op.kind;
                let twin = self.unknown.iter().rev().find(same).map_or(NONE, |&(other, _)| other);
                self.unknown.push((index as u32, twin));
                continue;
            }
            // At the same moment, calls stand before returns: the two may have overlapped.
            while returned < self.returns.len() {
                let back = self.returns[returned];
                if ops[back as usize].to_ns >= op.from_ns {
                    break;
                }
                self.back[back as usize] = self.entries.len() as u32;
                self.entries.push((back, true));
                returned += 1;
            }
            self.call[index] = self.entries.len() as u32;
            self.entries.push((index as u32, false));
        }
        for &back in &self.returns[returned..] {
            self.back[back as usize] = self.entries.len() as u32;
            self.entries.push((back, true));
        }
        let count = self.entries.len() as u32;
        self.next.clear();
        self.next.extend((0..count).map(|entry| (entry + 1) % count));
        self.prev.clear();
        self.prev.extend((0..count).map(|entry| (entry + count - 1) % count));
        if self.seen.capacity() > 1 << 16 {
            self.seen = HashSet::default();
        }
        self.seen.clear();
        self.sum = 0;
        self.state = initial;
    }
}

/// The answered operations at whose call no other is under way, and how many were called before.
fn quiet_calls(ops: &[KeyOp]) -> BTreeMap<u32, u32> {
    let mut quiet = BTreeMap::new();
    let mut busy_until = None;
    for (before, (index, op)) in ops.iter().enumerate().filter(|(_, op)| op.is_known()).enumerate()
    {
        if busy_until.is_none_or(|until| until < op.from_ns) {
            quiet.insert(index as u32, before as u32);
        }
        busy_until = busy_until.max(Some(op.to_ns));
    }
    quiet
}

/// The random number of a state and a run.
fn mark(state: KeyState, run: SearchRun) -> u128 {
    number(1 << 34 | u64::from(state))
        ^ number(2 << 34 | u64::from(run.base))
        ^ number(3 << 34 | u64::from(run.prev))
}

/// The `index`-th of a fixed sequence of random numbers.
fn number(index: u64) -> u128 {
    let low = spread(index.wrapping_mul(2));
    let high = spread(index.wrapping_mul(2).wrapping_add(1));
    u128::from(high) << 64 | u128::from(low)
}

/// `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
fn spread(index: u64) -> u64 {
    let mut word = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
