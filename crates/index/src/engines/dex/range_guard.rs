//! Range guard: admits an operation only while this compute server owns its key.
//!
//! Before a range moves, it drains the running operations.
//!
//! Every operation on own keys acquires the guard, which looks its key up in a *view*: the ownership map as
//! it is known here. The operation is *inside* until it ends, and so are the tasks that it leaves behind. A
//! range that is about to be given away is *closed*: an operation that wants it waits, and looks again when
//! it opens. The giver *drains* the guard: it waits until all operations have ended that were inside when
//! the range was closed.
//!
//! - `INV-DEX-GATE-1` An operation is inside only if its key was this cache's and open by the view that was
//!   published when it entered.
//! - `INV-DEX-GATE-2` After a drain no operation is inside that entered before the drain began, nor under a
//!   view older than the one published then, nor a task of such an operation.
//! - `INV-DEX-GATE-3` No operation waits for the guard while inside. So a drain ends.
//!
//! Views are immutable and numbered. Each thread caches the views that it has used last. An operation
//! compares the number of its cached view with the published number, and locks nothing; see
//! [`super::op_counters`] for the counters and their memory orderings.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_fabric::Incarnation;
use farleaf_pool::Session;

use super::Cache;
use super::load::{Load, Meter};
use super::op_counters::{Entry, OpCounters};
use super::partitions::{Partitions, Range};
use super::tree::Seek;
use crate::IndexError;
use crate::blink::remote::TimedOut;
use crate::detach::run_to_end;
use crate::retry::backoff;
use crate::sync::{Mutex, lock};

/// Turns of a drain. An operation starts a task, which may start another and end before it; each has entered
/// at the latest in the turn after its starter's.
const DRAIN_TURNS: usize = 3;
/// Views that a thread caches: those of so many tables.
const VIEWS_CACHED: usize = 8;

/// What a cache knows of the map, and does with it.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) map: Partitions,
    /// Which partitions are this cache's.
    pub(super) owned: Vec<bool>,
    /// Bounds that there are about to be: a node that crosses one is shared already.
    pub(super) cuts: Vec<Vec<u8>>,
    /// What is being given away; nobody enters.
    pub(super) closed: Option<Range>,
}

/// How a key is to this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Own,
    /// It is about to be another's.
    Closed,
    /// Of this partition, which is not this cache's.
    Foreign(usize),
}

impl View {
    pub(super) fn new(map: Partitions) -> Self {
        let owned = vec![false; map.count()];
        View { map, owned, cuts: Vec::new(), closed: None }
    }

    fn standing(&self, seek: Seek<'_>) -> Standing {
        let (number, is_closed) = match seek {
            Seek::At(key) => (self.map.of(key, false), self.is_closed_at(key, false)),
            Seek::After(key) => (self.map.of(key, true), self.is_closed_at(key, true)),
            Seek::First => (0, self.closed.as_ref().is_some_and(|range| range.low.is_none())),
            Seek::Last => {
                let last = self.map.count() - 1;
                (last, self.closed.as_ref().is_some_and(|range| range.high.is_none()))
            }
        };
        match (self.owned[number], is_closed) {
            (false, _) => Standing::Foreign(number),
            (true, true) => Standing::Closed,
            (true, false) => Standing::Own,
        }
    }

    fn is_closed_at(&self, key: &[u8], after: bool) -> bool {
        self.closed.as_ref().is_some_and(|range| range.holds(key, after))
    }

    /// Whether others may change a node of this range, now or once a move that is under way is done.
    pub(super) fn crosses(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let number = low.map_or(0, |low| self.map.of(low, true));
        !self.owned[number]
            || !self.map.owned_range(number).contains(low, high)
            || self.is_cut(low, high)
    }

    /// Whether a bound that there is about to be lies inside.
    pub(super) fn is_cut(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.cuts.iter().any(|cut| {
            low.is_none_or(|low| low < cut.as_slice())
                && high.is_none_or(|high| high > cut.as_slice())
        })
    }
}

/// The view that is published, with its number.
#[derive(Clone, Debug)]
struct Published {
    number: u64,
    view: Arc<View>,
}

/// See the [module page](self).
#[derive(Debug)]
pub(super) struct RangeGuard {
    counters: OpCounters,
    meter: Meter,
    /// Tells guards apart in what threads cache.
    id: u64,
    /// Changed under this lock.
    published: Mutex<Published>,
    /// A range is being given away: nodes are not merged.
    moving: AtomicBool,
}

thread_local! {
    /// For each guard the view that this thread has used last; guards with the same place take turns.
    static VIEWS: RefCell<[Option<(u64, Published)>; VIEWS_CACHED]> =
        const { RefCell::new([const { None }; VIEWS_CACHED]) };
}

/// Proof that an operation is inside. Dropped, it has left.
#[derive(Debug)]
pub(super) struct OpGuard<G: AsRef<RangeGuard>> {
    guard: G,
    entry: Entry,
}

impl<G: AsRef<RangeGuard>> Drop for OpGuard<G> {
    #[inline]
    fn drop(&mut self) {
        self.guard.as_ref().counters.leave(&self.entry);
    }
}

impl AsRef<RangeGuard> for RangeGuard {
    fn as_ref(&self) -> &RangeGuard {
        self
    }
}

impl RangeGuard {
    pub(super) fn new(map: Partitions) -> Self {
        static GUARDS: AtomicU64 = AtomicU64::new(0);
        RangeGuard {
            counters: OpCounters::new(),
            meter: Meter::new(),
            id: GUARDS.fetch_add(1, Ordering::Relaxed),
            published: Mutex::new(Published { number: 0, view: Arc::new(View::new(map)) }),
            moving: AtomicBool::new(false),
        }
    }

    /// What is known of the map.
    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&lock(&self.published).view)
    }

    /// Publishes what `change` makes of the view, or leaves it if that is `None`; gives the one that is
    /// published then. Operations that are inside go on by the view before until a drain.
    pub(super) fn change(&self, change: impl FnOnce(&View) -> Option<View>) -> Arc<View> {
        let mut published = lock(&self.published);
        if let Some(view) = change(&published.view) {
            // Under the lock, so that view and number belong together for all who take it.
            *published = Published { number: self.counters.publish(), view: Arc::new(view) };
        }
        Arc::clone(&published.view)
    }

    /// Calls `with` with the view of this number; `None` if another has been published since.
    #[inline]
    fn with_view<T>(&self, number: u64, with: impl FnOnce(&View) -> T) -> Option<T> {
        VIEWS.with_borrow_mut(|views| {
            let place = &mut views[self.id as usize % VIEWS_CACHED];
            match place {
                Some((id, cached)) if *id == self.id && cached.number == number => {
                    Some(with(&cached.view))
                }
                _ => {
                    let published = lock(&self.published).clone();
                    let is_current = published.number == number;
                    let cached = &place.insert((self.id, published)).1;
                    is_current.then(|| with(&cached.view))
                }
            }
        })
    }

    /// Calls `with` with the view that is published.
    pub(super) fn with_current<T>(&self, with: impl Fn(&View) -> T) -> T {
        loop {
            if let Some(done) = self.with_view(self.counters.state().view(), &with) {
                return done;
            }
        }
    }

    /// Enters, if the key is this cache's and open. Begins anew only as often as views change and drains run.
    #[inline]
    fn try_acquire(&self, session: u32, seek: Seek<'_>) -> Result<OpGuard<&RangeGuard>, Standing> {
        loop {
            let state = self.counters.state();
            match self.with_view(state.view(), |view| view.standing(seek)) {
                Some(Standing::Own) => {}
                Some(other) => return Err(other),
                None => continue,
            }
            if let Some((entry, number)) = self.counters.enter(state, session) {
                self.meter.count(entry.line(), number, seek);
                return Ok(OpGuard { guard: self, entry });
            }
        }
    }

    /// Waits until all operations have left that are inside now, with the tasks that they leave behind.
    pub(super) async fn drain(&self, session: &Session) {
        for _ in 0..DRAIN_TURNS {
            let generation = self.counters.flip();
            let mut attempt = 0;
            while !self.counters.is_empty(generation) {
                backoff(session, attempt).await;
                attempt = (attempt + 1).min(4);
            }
        }
    }

    pub(super) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::SeqCst)
    }

    /// Begins to give something away, unless that is under way.
    pub(super) fn begin_moving(&self) -> bool {
        !self.moving.swap(true, Ordering::SeqCst)
    }

    pub(super) fn end_moving(&self) {
        self.change(|view| Some(View { cuts: Vec::new(), closed: None, ..view.clone() }));
        self.moving.store(false, Ordering::SeqCst);
    }

    /// The load that was counted; half of it is forgotten then if it `decays`.
    pub(super) fn load(&self, decays: bool) -> Load {
        self.meter.load(self.counters.entered(), decays)
    }
}

/// Changes of shared nodes in remote memory by this compute server, and adoptions, which exclude them
/// (`INV-DEX-SHARED-5`).
#[derive(Debug, Default)]
pub(super) struct Posts(Mutex<(u32, bool)>);

/// The right to change shared nodes in remote memory, or to adopt.
pub(super) struct PostTurn {
    cache: Arc<Cache>,
    adopts: bool,
}

impl Drop for PostTurn {
    fn drop(&mut self) {
        {
            let mut posts = lock(&self.cache.part.posts.0);
            match self.adopts {
                true => posts.1 = false,
                false => posts.0 -= 1,
            }
        }
        self.cache.pages.lot.unpark(self.cache.posts_key());
    }
}

impl Cache {
    fn posts_key(&self) -> u64 {
        self.remote.meta().word() + 192
    }

    /// Waits for the turn to change shared nodes remotely, or to adopt.
    pub(super) async fn post_turn(self: &Arc<Self>, adopts: bool) -> PostTurn {
        let posts = &self.part.posts.0;
        let is_free = |(count, adopting): (u32, bool)| !adopting && (!adopts || count == 0);
        loop {
            {
                let mut posts = lock(posts);
                if is_free(*posts) {
                    match adopts {
                        true => posts.1 = true,
                        false => posts.0 += 1,
                    }
                    return PostTurn { cache: Arc::clone(self), adopts };
                }
            }
            self.pages.lot.park(self.posts_key(), || is_free(*lock(posts))).await;
        }
    }
}

/// A cache, for the tasks that are inside.
#[derive(Debug)]
struct Holder(Arc<Cache>);

impl AsRef<RangeGuard> for Holder {
    fn as_ref(&self) -> &RangeGuard {
        &self.0.part.guard
    }
}

impl Cache {
    /// What is known of the map.
    pub(super) fn view(&self) -> Arc<View> {
        self.part.guard.view()
    }

    /// What waits for a range to open waits under this: an address at which no node is.
    fn guard_key(&self) -> u64 {
        self.remote.meta().word() + 64
    }

    /// Lets in those who wait for a range that was closed.
    pub(super) fn wake_guard(&self) {
        self.pages.lot.unpark(self.guard_key());
    }

    /// Acquires the guard for an operation at `seek`, once that is open; `Err` is the partition that it is in,
    /// and that is not this cache's. The caller has no pin, is not inside, and acquires again for the next
    /// operation.
    #[inline]
    pub(super) async fn acquire(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<OpGuard<&RangeGuard>, usize>, IndexError> {
        match self.part.guard.try_acquire(session.id(), seek) {
            Ok(inside) => Ok(Ok(inside)),
            Err(Standing::Foreign(number)) => {
                self.check_open()?;
                Ok(Err(number))
            }
            Err(_) => Box::pin(self.acquire_opened(session, seek)).await,
        }
    }

    /// As [`Cache::acquire`], after a wait for the range to open.
    #[cold]
    async fn acquire_opened(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Result<OpGuard<&RangeGuard>, usize>, IndexError> {
        let guard = &self.part.guard;
        loop {
            self.stats.parked.add();
            let is_open =
                || self.check_open().is_err() || guard.view().standing(seek) != Standing::Closed;
            self.pages.lot.park(self.guard_key(), is_open).await;
            self.check_open()?;
            match guard.try_acquire(session.id(), seek) {
                Ok(inside) => return Ok(Ok(inside)),
                Err(Standing::Foreign(number)) => return Ok(Err(number)),
                Err(_) => {}
            }
        }
    }

    /// As [`RemoteTree::detach`], for a task of an operation that is inside: so is the task.
    pub(super) fn detach<T: TimedOut + 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> {
        let done = self.detach_within(session, task);
        async { done.await.unwrap_or_else(T::timed_out) }
    }

    /// As [`Cache::detach`]; `None` if it goes on for longer than the caller waits.
    pub(super) fn detach_within<T: 'static>(
        self: &Arc<Self>,
        session: &Session,
        task: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = Option<T>> {
        run_to_end(session, Box::pin(task), self.acquire_for_task(session))
    }

    /// Runs a task that nobody waits for, inside as [`Cache::detach`]'s. It begins no operation, and has no
    /// pin: the nodes that it deals with are those whose latches it holds.
    pub(super) fn spawn(
        self: &Arc<Self>,
        session: &Session,
        task: impl AsyncFnOnce(Session) + 'static,
    ) {
        let inside = self.acquire_for_task(session);
        session.spawn(async move |session| {
            task(session).await;
            drop(inside);
        });
    }

    fn acquire_for_task(self: &Arc<Self>, session: &Session) -> OpGuard<Holder> {
        let entry = self.part.guard.counters.enter_task(session.id());
        OpGuard { guard: Holder(Arc::clone(self)), entry }
    }

    /// Whether others may change a node of this range.
    pub(super) fn crosses_bounds(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.part.guard.with_current(|view| view.crosses(low, high))
    }

    /// Whether nodes must not be merged now, as a range is being given away.
    pub(super) fn merges_rest(&self) -> bool {
        self.part.guard.is_moving()
    }

    /// Who serves partition `number`, as far as it is known here.
    pub(super) fn known_owner(&self, number: usize) -> (Option<Incarnation>, u64) {
        let view = self.view();
        let owner = view.map.owners.get(number).copied().filter(|owner| *owner != 0);
        (owner.map(Incarnation), view.map.epoch)
    }
}
