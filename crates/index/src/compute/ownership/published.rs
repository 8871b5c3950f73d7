//! Published view: what operations go by at the moment, numbered, and how many operations are inside.
//!
//! Views are immutable and numbered. Each thread caches the views that it has used last. An operation
//! compares the number of its cached view with the published number, and locks nothing; see
//! [`super::op_counters`] for the counters and their memory orderings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_pool::Session;

use super::op_counters::{CounterEntry, OpCounters};
use crate::retry::backoff;
use crate::sync::{Mutex, lock};

/// Turns of a drain. An operation starts a task, which may start another and end before it; each has entered
/// at the latest in the turn after its starter's.
const DRAIN_TURNS: usize = 3;
/// Views of one kind that a thread caches: those of so many tables.
const VIEWS_CACHED: usize = 8;

/// A kind of view, with the place where each thread caches those that it has used last.
pub(in crate::compute) trait Viewed: Sized + 'static {
    /// Calls `with` with this thread's cache.
    fn with_cache<T>(with: impl FnOnce(&mut ViewCache<Self>) -> T) -> T;
}

/// For each table the view that a thread has used last; tables with the same place take turns.
pub(in crate::compute) type ViewCache<V> = [Option<(u64, NumberedView<V>)>; VIEWS_CACHED];

/// A cache without views.
pub(in crate::compute) const fn no_views<V>() -> ViewCache<V> {
    [const { None }; VIEWS_CACHED]
}

/// A view with its number.
#[derive(Debug)]
pub(in crate::compute) struct NumberedView<V> {
    number: u64,
    view: Arc<V>,
}

impl<V> Clone for NumberedView<V> {
    fn clone(&self) -> Self {
        NumberedView { number: self.number, view: Arc::clone(&self.view) }
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub(in crate::compute) struct Published<V> {
    counters: OpCounters,
    /// Tells tables apart in what threads cache.
    id: u64,
    /// Changed under this lock.
    latest: Mutex<NumberedView<V>>,
}

/// An operation or a task that is inside.
#[derive(Debug)]
pub(in crate::compute) struct ViewEntry {
    entry: CounterEntry,
    /// The number of the view by which it entered.
    pub(in crate::compute) view: u64,
    /// Its number in its line and generation.
    pub(in crate::compute) op: u64,
}

impl ViewEntry {
    /// The line of counters.
    pub(in crate::compute) fn line(&self) -> usize {
        self.entry.line()
    }
}

impl<V: Viewed> Published<V> {
    /// Publishes `view` as number 0; nobody is inside.
    pub(in crate::compute) fn new(view: V) -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        Published {
            counters: OpCounters::new(),
            id: TABLES.fetch_add(1, Ordering::Relaxed),
            latest: Mutex::new(NumberedView { number: 0, view: Arc::new(view) }),
        }
    }

    /// The latest view.
    pub(in crate::compute) fn view(&self) -> Arc<V> {
        Arc::clone(&lock(&self.latest).view)
    }

    /// Publishes what `change` makes of the view, or leaves it if that is `None`; gives the one that is
    /// published then. Operations that are inside go on by the view before until a drain.
    pub(in crate::compute) fn change(&self, change: impl FnOnce(&V) -> Option<V>) -> Arc<V> {
        let mut latest = lock(&self.latest);
        if let Some(view) = change(&latest.view) {
            // Under the lock, so that view and number belong together for all who take it.
            *latest = NumberedView { number: self.counters.publish(), view: Arc::new(view) };
        }
        Arc::clone(&latest.view)
    }

    /// The number of the view that is published.
    #[inline]
    pub(in crate::compute) fn number(&self) -> u64 {
        self.counters.state().view()
    }

    /// Calls `with` with the view of this number; `None` if another has been published since.
    #[inline]
    pub(in crate::compute) fn with_view<T>(
        &self,
        number: u64,
        with: impl FnOnce(&V) -> T,
    ) -> Option<T> {
        V::with_cache(|views| {
            let place = &mut views[self.id as usize % VIEWS_CACHED];
            match place {
                Some((id, cached)) if *id == self.id && cached.number == number => {
                    Some(with(&cached.view))
                }
                _ => {
                    let latest = lock(&self.latest).clone();
                    let is_current = latest.number == number;
                    let cached = &place.insert((self.id, latest)).1;
                    is_current.then(|| with(&cached.view))
                }
            }
        })
    }

    /// Enters, if `decide` admits the operation by the published view. Begins anew only as often as views change
    /// and drains run.
    #[inline]
    pub(in crate::compute) fn try_enter<T, E>(
        &self,
        session: u32,
        decide: impl Fn(&V) -> Result<T, E>,
    ) -> Result<(ViewEntry, T), E> {
        loop {
            let state = self.counters.state();
            let Some(decided) = self.with_view(state.view(), &decide) else { continue };
            let admitted = decided?;
            if let Some((entry, op)) = self.counters.enter(state, session) {
                return Ok((ViewEntry { entry, view: state.view(), op }, admitted));
            }
        }
    }

    /// Enters for a task that an operation which is inside leaves behind.
    pub(in crate::compute) fn enter_task(&self, session: u32) -> ViewEntry {
        ViewEntry { entry: self.counters.enter_task(session), view: self.number(), op: 0 }
    }

    /// Leaves.
    #[inline]
    pub(in crate::compute) fn leave(&self, entry: &ViewEntry) {
        self.counters.leave(&entry.entry);
    }

    /// Waits until all operations have left that are inside now, with the tasks that they leave behind.
    pub(in crate::compute) async fn drain(&self, session: &Session) {
        for _ in 0..DRAIN_TURNS {
            let generation = self.counters.flip();
            let mut attempt = 0;
            while !self.counters.is_empty(generation) {
                backoff(session, attempt).await;
                attempt = (attempt + 1).min(4);
            }
        }
    }

    /// Numbers of operations that have entered.
    pub(in crate::compute) fn entered(&self) -> u64 {
        self.counters.entered()
    }
}
