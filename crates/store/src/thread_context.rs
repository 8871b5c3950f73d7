//! Thread context: holds the endpoint and sessions of one thread, and finds them again.
//!
//! An endpoint and its sessions stay on the thread that made them. A thread that calls the
//! blocking API keeps them in a thread-local list, keyed by the store's number.
//!
//! - **INV-CONTEXT-1** A context runs one operation at a time. An operation from inside another one (the
//!   caller's iterator of a bulk load asks a table) takes or makes a second context.
//! - **INV-CONTEXT-2** An operation of the blocking API holds its context's operation lock while it runs. A thread that
//!   sets a flag and then takes every operation lock knows that all operations which run have seen the flag, if they
//!   check it while they hold the lock.
//! - **INV-CONTEXT-3** The contexts of a closed store are dropped when their thread next calls any store,
//!   or ends. Until then they hold the mapping of the pool, or connections to it, and nothing else.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farleaf_fabric::{AnyEndpoint, Endpoint, ToAny, close_life_locks_after_fork};
use farleaf_pool::PoolError;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::op_lock::OpLock;

/// One logical thread of operations on the pool.
pub(crate) type Session = farleaf_pool::Session;

/// Operations of a session between two ticks of it.
const TICK_OPS: u32 = 64;
/// Length of an operation's waits for a session, and of those after [`SESSION_PATIENCE_NS`].
const SESSION_WAIT_NS: u64 = 10_000_000;
const SESSION_WAIT_LONG_NS: u64 = 100_000_000;
/// Time that it waits in all if this store has many sessions itself.
const SESSION_PATIENCE_NS: u64 = 1_000_000_000;
/// A store takes no more than this part of the pool's sessions for overlapping operations.
const SPARE_PART: usize = 4;
/// Operations leave a quarter of the pool's sessions to maintenance threads, which need them to open the pool, to
/// recover dead members and to leave. A dead member holds its sessions until it is recovered.
const MAINTENANCE_PART: u32 = 4;

/// One thread's endpoint, its executor and its sessions.
pub(crate) struct ThreadContext {
    core: Arc<Core>,
    endpoint: AnyEndpoint,
    idle: RefCell<Vec<Counted>>,
    op_lock: Arc<OpLock>,
}

/// A session, and how many operations it has done.
struct Counted {
    session: Session,
    ops: Cell<u32>,
}

impl ThreadContext {
    /// A new context for the calling thread.
    pub(crate) fn new(core: &Arc<Core>) -> Result<ThreadContext> {
        Ok(ThreadContext::on(core, core.fabric.any_endpoint()?))
    }

    /// A new context for the calling thread, which waits for other descriptors as well.
    pub(crate) fn watching(core: &Arc<Core>) -> Result<ThreadContext> {
        Ok(ThreadContext::on(core, core.fabric.watching_endpoint()?))
    }

    fn on(core: &Arc<Core>, endpoint: AnyEndpoint) -> ThreadContext {
        let op_lock = Arc::new(OpLock::default());
        core.op_locks.add(&op_lock);
        ThreadContext { core: Arc::clone(core), endpoint, idle: RefCell::default(), op_lock }
    }

    /// Runs `op` on the calling thread to its end.
    pub(crate) fn run<T>(
        core: &Arc<Core>,
        op: impl AsyncFnOnce(&ThreadContext) -> Result<T>,
    ) -> Result<T> {
        let context = Borrowed::take(core)?;
        let _at_work = context.op_lock.enter(&core.activity);
        if core.is_closed() {
            return Err(Error::closed());
        }
        context.endpoint.executor().block_on(op(&context))
    }

    /// A session that nobody else uses meanwhile. Waits for one if the pool has none left.
    ///
    /// # Errors
    /// `Full` if there is none for a second, and this store has many itself; if others have them, who may be dead and
    /// not recovered yet, after the time of [`Builder::join_timeout`](crate::Builder::join_timeout).
    pub(crate) async fn session(&self) -> Result<SessionGuard<'_>> {
        self.await_session(kept(&self.core)).await
    }

    /// The same for recovering the dead, and for leaving the pool, on which others may wait: there are more.
    ///
    /// # Errors
    /// As [`ThreadContext::session`].
    pub(crate) async fn maintenance_session(&self) -> Result<SessionGuard<'_>> {
        self.await_session(0).await
    }

    async fn await_session(&self, kept: u32) -> Result<SessionGuard<'_>> {
        let mut waited_ns = 0;
        loop {
            match self.take_session(kept).await {
                // Those of threads that have ended come back with the next tick, those of the dead with a recovery.
                Err(error) if error.kind() == ErrorKind::Full && waited_ns < self.patience_ns() => {
                    self.core.activity.note();
                    let is_long = waited_ns >= SESSION_PATIENCE_NS;
                    let wait_ns = if is_long { SESSION_WAIT_LONG_NS } else { SESSION_WAIT_NS };
                    self.endpoint.sleep(wait_ns).await;
                    waited_ns += wait_ns;
                }
                session => return session,
            }
        }
    }

    /// Time that an operation waits for a session: longer if this store has few of the pool's.
    fn patience_ns(&self) -> u64 {
        match self.core.pool.sessions() >= self.sessions_most() {
            true => SESSION_PATIENCE_NS,
            false => self.core.patience_ns.max(SESSION_PATIENCE_NS),
        }
    }

    /// Sessions that this store takes for overlapping operations.
    pub(crate) fn sessions_most(&self) -> usize {
        self.core.pool.geometry().options().clients_max as usize / SPARE_PART
    }

    /// One more session for a call that already has one, if this store has few enough: the pool's
    /// are for all threads of all processes, and closing and recovery need one, too.
    pub(crate) async fn spare_session(&self) -> Option<SessionGuard<'_>> {
        let most = self.sessions_most();
        let making = self.idle.borrow().is_empty().then(|| UnderWay::begin(&self.core.making));
        // Those that are being made count: many threads ask at once.
        if making.as_ref().is_some_and(|own| self.core.pool.sessions() + own.others >= most) {
            return None;
        }
        self.take_session(kept(&self.core)).await.ok()
    }

    /// A session of this context's, or a new one if more than `kept` are free.
    ///
    /// # Errors
    /// `Full` if the pool has none left.
    async fn take_session(&self, kept: u32) -> Result<SessionGuard<'_>> {
        let idle = self.idle.borrow_mut().pop();
        let counted = match idle {
            Some(counted) => counted,
            None => {
                let pool = &self.core.pool;
                let session = pool.session_leaving(self.endpoint.clone(), kept).await;
                let session = session.map_err(|error| no_session(error, kept))?;
                Counted { session, ops: Cell::new(0) }
            }
        };
        let guard = SessionGuard { context: self, counted: Some(counted) };
        guard.count_op().await;
        Ok(guard)
    }

    /// Sessions that nobody uses.
    pub(crate) fn idle_sessions(&self) -> usize {
        self.idle.borrow().len()
    }

    /// The thread's endpoint.
    pub(crate) fn endpoint(&self) -> &AnyEndpoint {
        &self.endpoint
    }

    /// Counts a job of a worker as an operation. A context has many at a time, so that none keeps the lock.
    pub(crate) fn count_job(&self) {
        drop(self.op_lock.enter(&self.core.activity));
    }
}

/// Sessions that a store's operations leave free.
pub(crate) fn kept(core: &Core) -> u32 {
    core.pool.geometry().options().clients_max / MAINTENANCE_PART
}

/// The error for a session that could not be had by whoever leaves `kept` free.
#[cold]
fn no_session(error: PoolError, kept: u32) -> Error {
    match error {
        PoolError::NoSlot("client", all) if kept > 0 => Error::new(
            ErrorKind::Full,
            format!(
                "all {} sessions that operations may have of the pool's {all} are taken, one for each thread of \
                 each process: use fewer threads or processes, or make a larger pool",
                all.saturating_sub(kept as usize)
            ),
        ),
        error => error.into(),
    }
}

/// Something under way, as a spare session that is being made. Counts until it is dropped.
pub(crate) struct UnderWay<'a> {
    count: &'a AtomicUsize,
    /// Number of others that were under way.
    others: usize,
}

impl<'a> UnderWay<'a> {
    pub(crate) fn begin(count: &'a AtomicUsize) -> Self {
        UnderWay { count, others: count.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A session on loan from its context.
pub(crate) struct SessionGuard<'a> {
    context: &'a ThreadContext,
    counted: Option<Counted>,
}

impl SessionGuard<'_> {
    /// Counts an operation that is about to begin. Every so often, the session frees first what
    /// it has retired, which nobody else can.
    #[inline]
    pub(crate) async fn count_op(&self) {
        let ops = self.counted().ops.get().wrapping_add(1);
        self.counted().ops.set(ops);
        if ops.is_multiple_of(TICK_OPS) {
            // The next tick does what this one could not do, and the operation says what is wrong.
            let _ = self.tick_if_due().await;
        }
    }

    #[inline]
    fn counted(&self) -> &Counted {
        // The session is there until the guard is dropped.
        self.counted.as_ref().expect("a session on loan")
    }
}

impl Deref for SessionGuard<'_> {
    type Target = Session;

    #[inline]
    fn deref(&self) -> &Session {
        &self.counted().session
    }
}

impl Drop for SessionGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // A panic may have left the session in the middle of something.
        if let Some(counted) = self.counted.take()
            && !std::thread::panicking()
        {
            self.context.idle.borrow_mut().push(counted);
        }
    }
}

/// A context out of the thread's list; goes back when dropped.
struct Borrowed {
    context: Option<ThreadContext>,
}

/// A thread's contexts of one store.
struct Place {
    store: u64,
    idle: Vec<ThreadContext>,
    /// Contexts at work: more than one if operations are nested.
    out: usize,
}

/// A thread's contexts.
#[derive(Default)]
struct Places {
    places: Vec<Place>,
    /// Value of [`CLOSED`] at the last look for contexts of closed stores.
    seen_closed: u64,
}

thread_local! {
    static PLACES: RefCell<Places> = RefCell::default();
}

/// Stores closed so far in this process.
static CLOSED: AtomicU64 = AtomicU64::new(0);

impl Borrowed {
    #[inline]
    fn take(core: &Arc<Core>) -> Result<Borrowed> {
        match Borrowed::find(core, CLOSED.load(Ordering::Relaxed)) {
            Some(context) => Ok(Borrowed { context: Some(context) }),
            None => Borrowed::make(core),
        }
    }

    /// An idle context, if nothing was closed since contexts of closed stores were last looked for.
    #[inline]
    fn find(core: &Core, closed: u64) -> Option<ThreadContext> {
        let context = PLACES.try_with(|places| {
            let mut places = places.borrow_mut();
            if places.seen_closed != closed {
                return None;
            }
            let place = places.places.iter_mut().find(|place| place.store == core.number)?;
            let context = place.idle.pop()?;
            place.out += 1;
            Some(context)
        });
        // In a thread that is ending there may be no list any more.
        context.unwrap_or(None)
    }

    #[cold]
    fn make(core: &Arc<Core>) -> Result<Borrowed> {
        let closed = purge();
        if core.is_closed() {
            return Err(Error::closed());
        }
        if let Some(context) = Borrowed::find(core, closed) {
            return Ok(Borrowed { context: Some(context) });
        }
        let context = Some(ThreadContext::new(core)?);
        // Without the list the context lives for this one operation.
        note_inside(core);
        Ok(Borrowed { context })
    }
}

impl Deref for Borrowed {
    type Target = ThreadContext;

    #[inline]
    fn deref(&self) -> &ThreadContext {
        // The context is there until the loan is dropped.
        self.context.as_ref().expect("a context on loan")
    }
}

impl Drop for Borrowed {
    #[inline]
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        let store = context.core.number;
        let mut context = Some(context);
        let _ = PLACES.try_with(|places| {
            let places = &mut places.borrow_mut().places;
            if let Some(place) = places.iter_mut().find(|place| place.store == store) {
                place.out -= 1;
                if !std::thread::panicking() {
                    place.idle.extend(context.take());
                }
            }
        });
        // The ones that did not go back are dropped here, outside of the list's borrow.
        drop(context);
    }
}

/// Counts an operation that begins on the calling thread, if that has its list still.
fn note_inside(core: &Core) {
    let _ = PLACES.try_with(|places| {
        let places = &mut places.borrow_mut().places;
        match places.iter_mut().find(|place| place.store == core.number) {
            Some(place) => place.out += 1,
            None => places.push(Place { store: core.number, idle: Vec::new(), out: 1 }),
        }
    });
}

/// An operation of a [`Local`](crate::Local) that is under way on the calling thread.
pub(crate) struct Inside {
    core: Arc<Core>,
}

impl Inside {
    pub(crate) fn begin(core: &Arc<Core>) -> Inside {
        core.local_ops.fetch_add(1, Ordering::SeqCst);
        note_inside(core);
        Inside { core: Arc::clone(core) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let store = self.core.number;
        let _ = PLACES.try_with(|places| {
            let places = &mut places.borrow_mut().places;
            if let Some(place) = places.iter_mut().find(|place| place.store == store) {
                place.out -= 1;
            }
        });
        self.core.local_ops.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Drops this thread's idle contexts of closed stores; returns how many stores had been closed.
pub(crate) fn purge() -> u64 {
    let closed = CLOSED.load(Ordering::Relaxed);
    let mut gone = Vec::new();
    let _ = PLACES.try_with(|places| {
        let mut places = places.borrow_mut();
        places.seen_closed = closed;
        for place in &mut places.places {
            if place.idle.first().is_some_and(|context| context.core.is_closed()) {
                gone.append(&mut place.idle);
            }
        }
        places.places.retain(|place| place.out > 0 || !place.idle.is_empty());
    });
    drop(gone);
    closed
}

/// Forgets what the calling thread holds of stores, without giving it back: for the child of a `fork`.
///
/// The child has copies of its parent's endpoints and sessions, which the parent goes on using. A drop of them would wait
/// forever for a lock that another thread of the parent held at the fork, and the last one would close connections in
/// the parent's name. Call this in the child, on the thread that forked, before it uses a store or ends. The child must
/// not use or drop handles of before the fork either ([`std::mem::forget`]), since that would leave the pool in the
/// parent's name; it opens the pool by itself.
///
/// It also closes the child's copies of the locks by which others know that the parent lives, on pools in a folder.
///
/// ```
/// let db = farleaf::Farleaf::open("mem:")?;
/// // In the child of a fork:
/// farleaf::forget_after_fork();
/// std::mem::forget(db);
/// let own = farleaf::Farleaf::open("mem:")?;
/// # Ok::<(), farleaf::Error>(())
/// ```
pub fn forget_after_fork() {
    forget_contexts();
    close_life_locks_after_fork();
}

fn forget_contexts() {
    let forgotten = PLACES.try_with(RefCell::take);
    if let Ok(places) = forgotten {
        std::mem::forget(places);
    }
}

/// Has every thread look for contexts of closed stores when it next calls one.
pub(crate) fn note_closed() {
    CLOSED.fetch_add(1, Ordering::Relaxed);
}

/// Returns whether the calling thread is inside an operation of the store.
fn is_inside(core: &Core) -> bool {
    PLACES
        .try_with(|places| {
            let places = &places.borrow().places;
            places.iter().any(|place| place.store == core.number && place.out > 0)
        })
        .unwrap_or(false)
}

/// Asks whether the calling thread may wait for all operations of the store.
///
/// # Errors
/// `Invalid` from inside an operation of the store, which would wait for itself.
pub(crate) fn check_outside(core: &Core) -> Result<()> {
    if is_inside(core) {
        return Err(Error::invalid(
            "this cannot be done from inside an operation of the same store",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Farleaf;

    fn small() -> Farleaf {
        Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap()
    }

    /// Idle contexts of the store on this thread, and those at work.
    fn contexts(db: &Farleaf) -> (usize, usize) {
        PLACES.with(|places| {
            let places = &places.borrow().places;
            let place = places.iter().find(|place| place.store == db.core().number);
            place.map_or((0, 0), |place| (place.idle.len(), place.out))
        })
    }

    #[test]
    fn a_nested_operation_has_a_lane_of_its_own() {
        let db = small();
        let again = |depth| {
            ThreadContext::run(db.core(), async |_| {
                let inner = ThreadContext::run(db.core(), async |_| Ok(contexts(&db)));
                assert_eq!(inner?, (0, 2));
                Ok(depth)
            })
        };
        for depth in 0..3 {
            assert_eq!(again(depth).unwrap(), depth);
            assert_eq!(contexts(&db), (2, 0));
        }
        assert!(check_outside(db.core()).is_ok());
    }

    /// Of 200 threads that loaded over a network, all took sessions for overlapping operations before any of
    /// these was counted: there was none left for other threads.
    #[test]
    fn sessions_that_are_being_made_count_as_spare_ones() {
        let db = small();
        let most = db.core().pool.geometry().options().clients_max as usize / SPARE_PART;
        ThreadContext::run(db.core(), async |context| {
            let _own = context.session().await?;
            let others: Vec<_> = (0..most).map(|_| UnderWay::begin(&db.core().making)).collect();
            assert!(context.spare_session().await.is_none());
            drop(others);
            assert!(context.spare_session().await.is_some());
            assert_eq!(db.core().making.load(Ordering::SeqCst), 0);
            Ok(())
        })
        .unwrap();
    }

    /// In a fork's child, a drop would have given back the parent's session.
    #[test]
    fn forgotten_contexts_give_no_session_back() {
        let db = small();
        ThreadContext::run(db.core(), async |context| context.session().await.map(drop)).unwrap();
        let sessions = db.core().pool.sessions();
        assert!(sessions > 0);
        forget_contexts();
        assert_eq!((contexts(&db), db.core().pool.sessions()), ((0, 0), sessions));
        ThreadContext::run(db.core(), async |context| context.session().await.map(drop)).unwrap();
        assert_eq!((contexts(&db).0, db.core().pool.sessions()), (1, sessions + 1));
    }

    #[test]
    fn a_panic_takes_its_context_with_it_and_no_other() {
        let db = small();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ThreadContext::run(db.core(), async |context| {
                let _session = context.session().await?;
                if contexts(&db).1 == 1 { panic!("on purpose") } else { Ok(()) }
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(contexts(&db), (0, 0));
        assert!(ThreadContext::run(db.core(), async |_| Ok(())).is_ok());
        assert_eq!(contexts(&db), (1, 0));
    }

    #[test]
    fn lanes_of_closed_stores_go_at_the_next_call_of_any() {
        let (closed, other) = (small(), small());
        let core = Arc::clone(closed.core());
        std::thread::scope(|scope| {
            let (used, is_used) = std::sync::mpsc::channel();
            let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
            let (core, other) = (&core, &other);
            scope.spawn(move || {
                ThreadContext::run(core, async |_| Ok(())).unwrap();
                used.send(()).unwrap();
                may_go_on.recv().unwrap();
                let count = || PLACES.with(|places| places.borrow().places.len());
                assert_eq!(count(), 1);
                ThreadContext::run(other.core(), async |_| Ok(())).unwrap();
                assert_eq!(count(), 1, "the other store's alone");
            });
            is_used.recv().unwrap();
            closed.close().unwrap();
            go_on.send(()).unwrap();
        });
        assert!(ThreadContext::run(&core, async |_| Ok(())).is_err());
    }
}
