//! Watch: records every operation of a run while ranges move.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use crate::{generator::Op, run::client::Observer, workload::OpKind};

/// Interval at which a waiting task checks again.
pub(super) const LOOK_NS: u64 = 10_000;

/// A span of virtual time, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) began_ns: u64,
    pub(super) ended_ns: u64,
}

impl Span {
    fn meets(self, other: Span) -> bool {
        self.began_ns <= other.ended_ns && other.began_ns <= self.ended_ns
    }

    fn len(self) -> u64 {
        self.ended_ns - self.began_ns
    }
}

/// Writes of an item that may be the last one.
type Candidates = Vec<(u64, Span)>;

/// See the [module page](self).
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Bounds, the lower ones exclusive, of the ranges that move.
    moved: Vec<(Vec<u8>, Vec<u8>)>,
    /// 0: operations are not recorded.
    slot_ns: u64,
    measuring: Cell<bool>,
    over: Cell<bool>,
    /// The move, which has no end as long as it goes on.
    move_span: Cell<Option<Span>>,
    /// Operations that ended in each slot, from the beginning of time.
    slots: RefCell<Vec<u64>>,
    /// The longest operation that met the move, outside and inside of the ranges.
    longest_ns: Cell<[u64; 2]>,
    written: RefCell<BTreeMap<u64, Candidates>>,
    acknowledged: Cell<u64>,
}

impl Observer for Watch {
    fn is_over(&self) -> bool {
        self.over.get()
    }

    fn note(&self, op: Op, key: &[u8], version: u64, began_ns: u64, ended_ns: u64) {
        if self.slot_ns > 0 {
            let span = Span { began_ns, ended_ns };
            self.note_op(key, span);
            if op.kind == OpKind::Update {
                self.note_write(op.item, version, span);
            }
        }
    }
}

impl Watch {
    pub(super) fn new(moved: Vec<(Vec<u8>, Vec<u8>)>, slot_ns: u64) -> Self {
        Watch { moved, slot_ns, ..Watch::default() }
    }

    /// Ends the warm-up.
    pub(super) fn begin_measuring(&self) {
        self.measuring.set(true);
    }

    pub(super) fn is_measuring(&self) -> bool {
        self.measuring.get()
    }

    /// Stops the clients.
    pub(super) fn end(&self) {
        self.over.set(true);
    }

    pub(super) fn begin_move(&self, now_ns: u64) {
        self.move_span.set(Some(Span { began_ns: now_ns, ended_ns: u64::MAX }));
    }

    pub(super) fn end_move(&self, now_ns: u64) {
        let began_ns = self.move_span.get().map_or(now_ns, |span| span.began_ns);
        self.move_span.set(Some(Span { began_ns, ended_ns: now_ns }));
    }

    /// The time during which the ranges moved.
    pub(super) fn move_span(&self) -> Span {
        self.move_span.get().unwrap_or_default()
    }

    /// Records an operation.
    fn note_op(&self, key: &[u8], span: Span) {
        let slot = (span.ended_ns / self.slot_ns) as usize;
        let mut slots = self.slots.borrow_mut();
        if slots.len() <= slot {
            slots.resize(slot + 1, 0);
        }
        slots[slot] += 1;
        if self.move_span.get().is_some_and(|moving| moving.meets(span)) {
            let has_moved =
                self.moved.iter().any(|(low, high)| low.as_slice() < key && key <= high.as_slice());
            let mut longest_ns = self.longest_ns.get();
            let longest = &mut longest_ns[usize::from(has_moved)];
            *longest = span.len().max(*longest);
            self.longest_ns.set(longest_ns);
        }
    }

    /// Records an acknowledged write of `version` to `item`. Called in the order of
    /// acknowledgement.
    fn note_write(&self, item: u64, version: u64, span: Span) {
        self.acknowledged.set(self.acknowledged.get() + 1);
        let mut written = self.written.borrow_mut();
        let candidates = written.entry(item).or_default();
        // Writes that ended before this one began cannot be seen any more.
        candidates.retain(|(_, other)| other.ended_ns >= span.began_ns);
        candidates.push((version, span));
    }

    /// The number of acknowledged writes.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.get()
    }

    /// Every item that was written, with the versions one of which it must have.
    pub(super) fn written(&self) -> Vec<(u64, Vec<u64>)> {
        let written = self.written.borrow();
        let versions = |all: &Candidates| all.iter().map(|(version, _)| *version).collect();
        written.iter().map(|(item, all)| (*item, versions(all))).collect()
    }

    /// The longest operations that met the move, outside and inside of the ranges.
    pub(super) fn longest_ns(&self) -> [u64; 2] {
        self.longest_ns.get()
    }

    /// Million operations per second of virtual time, from one slot up to another's end.
    pub(super) fn mops(&self, span: Span) -> f64 {
        let (first, last) = (span.began_ns / self.slot_ns, span.ended_ns / self.slot_ns);
        let slots = self.slots.borrow();
        let ops: u64 = (first..=last).filter_map(|slot| slots.get(slot as usize)).sum();
        ops as f64 * 1e3 / ((last - first + 1) * self.slot_ns) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began_ns: u64, ended_ns: u64) -> Span {
        Span { began_ns, ended_ns }
    }

    #[test]
    fn only_last_writes_may_be_read() {
        let watch = Watch::new(Vec::new(), 10);
        watch.note_write(7, 1, span(0, 10));
        watch.note_write(7, 2, span(5, 12));
        watch.note_write(8, 1, span(0, 12));
        assert_eq!(watch.written(), [(7, vec![1, 2]), (8, vec![1])]);
        watch.note_write(7, 3, span(11, 20));
        assert_eq!(watch.written()[0], (7, vec![2, 3]));
        watch.note_write(7, 4, span(21, 30));
        assert_eq!(watch.written()[0], (7, vec![4]));
        assert_eq!(watch.acknowledged(), 5);
    }

    #[test]
    fn stalls_are_recorded_by_range_and_throughput_by_time() {
        let watch = Watch::new(vec![(vec![10], vec![20])], 10);
        watch.note_op(&[10], span(0, 50));
        watch.begin_move(60);
        watch.note_op(&[10], span(40, 62));
        watch.note_op(&[11], span(61, 68));
        watch.note_op(&[20], span(61, 69));
        watch.end_move(70);
        watch.note_op(&[21], span(71, 99));
        watch.note_op(&[20], span(70, 75));
        assert_eq!(watch.longest_ns(), [22, 8]);
        assert_eq!(watch.move_span(), span(60, 70));
        assert_eq!(watch.mops(span(60, 69)), 300.0);
        assert_eq!(watch.mops(span(60, 79)), 200.0);
        assert_eq!(watch.mops(span(200, 209)), 0.0);
    }
}
