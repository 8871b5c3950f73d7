//! Operation counters: how many operations are inside, by line and generation.
//!
//! A word, the *state*, holds the number of the published view and the generation. An operation reads the
//! state, decides by the view of that number, counts itself in its line and generation, and reads the state
//! again: if that has changed, it takes its count back and begins anew. A drain flips the generation and
//! waits until every line has as many operations that left as entered.
//!
//! Each line has its own cache lines, and the state is written only when a view changes or a drain runs. So
//! entering and leaving cost one read-modify-write each, of a word that no other thread's operations touch.
//!
//! **Why nothing slips in.** An operation that counts itself while a drain looks must either be seen by the
//! drain or see the flip. Both change the same word, `entered`: the operation adds 1 with acquire, the drain
//! adds 0 with acquire and release. All changes of one word have one order. If the operation's comes first,
//! the drain reads its count and waits. If the drain's comes first, the operation's reads from it (or from a
//! change that continues it), so what the drain did before, the flip, happens before the operation's second
//! load of the state, which reads it. A plain load in the drain, sequentially consistent or not, would need a
//! full fence in the operation, between its store and its load: without one both may read what was before.
//!
//! **Why the looks at two words suffice.** A drain reads `left` first, then `entered`, which does not fall but
//! by those who take their count back. As long as an operation that is to be waited for is inside, `left` is
//! less than the count of `entered` at that moment without those, and so less than the later one.

use crate::sync::{AtomicU64, Ordering};

/// Lines. The models have fewer threads.
pub(super) const LINES: usize = if cfg!(loom) { 2 } else { 16 };

/// The counters of some sessions. Two cache lines, as processors fetch them by pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Line {
    /// Operations that have entered, by generation.
    entered: [AtomicU64; 2],
    /// Those that have left, less the tasks that are inside.
    left: [AtomicU64; 2],
}

/// The number of the published view, above one bit for the generation.
#[derive(Debug)]
#[repr(align(128))]
struct StateWord(AtomicU64);

/// See the [module page](self).
#[derive(Debug)]
pub(super) struct OpCounters {
    state: StateWord,
    lines: [Line; LINES],
}

/// The number of the published view and the generation, of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ViewState(u64);

impl ViewState {
    /// The number of the view.
    pub(super) fn view(self) -> u64 {
        self.0 >> 1
    }

    fn generation(self) -> usize {
        (self.0 & 1) as usize
    }
}

/// The counter in which an operation or a task has counted itself.
#[derive(Debug)]
pub(super) struct CounterEntry {
    line: usize,
    generation: usize,
}

impl CounterEntry {
    /// The line.
    pub(super) fn line(&self) -> usize {
        self.line
    }
}

impl OpCounters {
    /// Counters with nobody inside and view 0 published.
    pub(super) fn new() -> Self {
        let pair = || [AtomicU64::new(0), AtomicU64::new(0)];
        OpCounters {
            state: StateWord(AtomicU64::new(0)),
            lines: std::array::from_fn(|_| Line { entered: pair(), left: pair() }),
        }
    }

    /// The state to decide by.
    #[inline]
    pub(super) fn state(&self) -> ViewState {
        ViewState(self.state.0.load(Ordering::Acquire))
    }

    /// Enters as an operation if the state is still `state`; gives the operation's number in its line and
    /// generation, too.
    #[inline]
    pub(super) fn enter(&self, state: ViewState, session: u32) -> Option<(CounterEntry, u64)> {
        let (line, generation) = (session as usize % LINES, state.generation());
        let entered = &self.lines[line].entered[generation];
        let number = entered.fetch_add(1, Ordering::Acquire);
        if self.state() == state {
            return Some((CounterEntry { line, generation }, number));
        }
        // It did nothing that anybody has to see.
        entered.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// Enters as a task of something that is inside by the same session's line, and that leaves later.
    ///
    /// No check of the state: as long as the starter is inside, a drain flips the generation once at most.
    /// The drain that reads that the starter has left reads this count as well.
    pub(super) fn enter_task(&self, session: u32) -> CounterEntry {
        let (line, generation) = (session as usize % LINES, self.state().generation());
        self.lines[line].left[generation].fetch_sub(1, Ordering::Relaxed);
        CounterEntry { line, generation }
    }

    /// Leaves. What was done inside happens before the end of a drain that waited for it.
    #[inline]
    pub(super) fn leave(&self, entry: &CounterEntry) {
        self.lines[entry.line].left[entry.generation].fetch_add(1, Ordering::Release);
    }

    /// Numbers of operations that have entered.
    pub(super) fn entered(&self) -> u64 {
        let of = |line: &Line| -> u64 {
            line.entered.iter().map(|entered| entered.load(Ordering::Relaxed)).sum()
        };
        self.lines.iter().map(of).sum()
    }

    /// Publishes the next view; gives its number. The caller has put the view in its place.
    pub(super) fn publish(&self) -> u64 {
        ViewState(self.state.0.fetch_add(2, Ordering::AcqRel) + 2).view()
    }

    /// Begins a turn of a drain; gives the generation to wait for. One drain runs at a time.
    pub(super) fn flip(&self) -> usize {
        ViewState(self.state.0.fetch_xor(1, Ordering::AcqRel)).generation()
    }

    /// Returns whether no operation is inside in a generation that has been flipped.
    pub(super) fn is_empty(&self, generation: usize) -> bool {
        self.lines.iter().all(|line| {
            let left = line.left[generation].load(Ordering::Acquire);
            // Changes nothing, but has a place in the order of the word's changes.
            left == line.entered[generation].fetch_add(0, Ordering::AcqRel)
        })
    }

    /// As [`OpCounters::is_empty`], wrong: by a load, which may miss who is entering.
    #[cfg(loom)]
    pub(super) fn is_empty_by_load(&self, generation: usize) -> bool {
        self.lines.iter().all(|line| {
            let left = line.left[generation].load(Ordering::Acquire);
            left == line.entered[generation].load(Ordering::Acquire)
        })
    }
}
