//! Executor: runs the tasks of one thread in real time, for all fabrics but the simulator.
#![allow(clippy::disallowed_methods, reason = "this is where real time and real threads come in")]

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use crate::tasks::{PART, Ready, Tasks};
use crate::timers::{Moment, Timers};
use crate::wake::{Home, Notify};

/// A thread spins through shorter waits: a parked thread wakes later than that.
const SPIN_NS: u64 = 60_000;
/// Number of ready tasks from which on the posts of the first half do not wait for the second half.
const HALVES_FROM: usize = 96;
/// Longest time that posts of a part of the tasks wait for the other tasks: about as long as sending takes.
/// Tasks that compute little are done before.
const PART_NS: u64 = 20_000;

/// Origin of time for all executors of this process, so that threads can compare times that other threads
/// noted.
static START: OnceLock<Instant> = OnceLock::new();

/// Work of a fabric for a thread's operations between the thread's tasks.
pub(crate) trait Driver {
    /// Sends posts and takes completions, without waiting. True if anything came.
    fn drive(&self) -> bool;

    /// Returns whether [`Driver::hurry`] may have work before the next [`Driver::drive`].
    fn may_hurry(&self) -> bool {
        false
    }

    /// Some of many tasks have run. Sends their posts to servers that have nothing to do for this thread
    /// meanwhile.
    fn hurry(&self) {}

    /// Returns whether a completion may come at any moment.
    fn is_busy(&self) -> bool;

    /// Waits until something comes, `at_most` has passed, or the notifier is called.
    fn wait(&self, at_most: Option<Duration>);

    /// The root has ended, and tasks have kept its caller for this time. Called before a wait.
    fn linger(&self, _kept: Duration) {}

    /// Makes waits end when there is something to read at another descriptor as well.
    fn watch(&self, _other: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Ends a wait from any thread; the next one, if nothing waits (INV-WAKE-1).
    fn notifier(&self) -> Notify;
}

/// A single-threaded executor with timers. Clone it freely; it stays on its thread.
#[derive(Clone)]
pub struct Executor(Rc<ExecutorInner>);

struct ExecutorInner {
    tasks: Tasks,
    timers: Timers,
    running: Cell<bool>,
    start: Instant,
    driver: Option<Rc<dyn Driver>>,
    /// Time at which the driver last brought something, and a mark that it has brought more since.
    driven_ns: Cell<u64>,
    is_driven: Cell<bool>,
    /// Counted in [`SPINNING`].
    spins: Cell<bool>,
}

/// Threads of this process that poll without sleeping: at most one per processor. Further ones would take the
/// CPU from the threads that they wait for.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// Processors of this process; of the thread, if it is the first to ask.
pub(crate) fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

impl ExecutorInner {
    /// Returns whether this thread may poll for work without sleeping.
    fn may_spin(&self) -> bool {
        if self.spins.get() {
            return true;
        }
        let is_room = SPINNING.fetch_add(1, Ordering::Relaxed) < processors();
        self.spins.set(true);
        if !is_room {
            self.stop_spinning();
        }
        is_room
    }

    #[inline]
    fn stop_spinning(&self) {
        if self.spins.take() {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// See [`Executor::sleep`].
struct Sleep {
    inner: Rc<ExecutorInner>,
    moment: Moment,
    is_armed: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_armed {
            return self.inner.timers.poll(self.moment, context);
        }
        self.is_armed = true;
        self.inner.timers.arm(self.moment, context.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if self.is_armed {
            self.inner.timers.disarm(self.moment);
        }
    }
}

impl Executor {
    /// An executor for the calling thread.
    pub fn new() -> Self {
        Self::over(None)
    }

    /// An executor for the calling thread that also drives a fabric.
    pub(crate) fn with_driver(driver: Rc<impl Driver + 'static>) -> Self {
        Self::over(Some(driver))
    }

    fn over(driver: Option<Rc<dyn Driver>>) -> Self {
        let home = Home::new(driver.as_ref().map(|driver| driver.notifier()));
        Executor(Rc::new(ExecutorInner {
            tasks: Tasks::new(home),
            timers: Timers::default(),
            running: Cell::new(false),
            start: *START.get_or_init(Instant::now),
            driver,
            driven_ns: Cell::new(0),
            is_driven: Cell::new(false),
            spins: Cell::new(false),
        }))
    }

    /// The lists by which a fabric makes this executor's tasks ready without wakers.
    pub(crate) fn ready(&self) -> Rc<Ready> {
        Rc::clone(self.0.tasks.ready())
    }

    /// Runs `task` on this thread whenever [`Executor::block_on`] runs.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn(task);
    }

    /// Runs `root` to its end, then every task that was spawned, and returns `root`'s result.
    ///
    /// If nothing has to wait, this costs a few nanoseconds and allocates nothing.
    ///
    /// # Panics
    /// If called from inside itself.
    pub fn block_on<T>(&self, root: impl Future<Output = T>) -> T {
        assert!(!self.0.running.replace(true), "block_on inside block_on");
        let _running = RunningRoot(&self.0);
        let mut root = pin!(root);
        let tasks = &self.0.tasks;
        let mut entered = None;
        let mut is_first = true;
        let mut result = None;
        let mut ended_ns = None;
        loop {
            let mut progress = false;
            if result.is_none()
                && (std::mem::take(&mut is_first) || tasks.take_root())
                && let Poll::Ready(value) = tasks.poll_root(root.as_mut())
            {
                result = Some(value);
                progress = true;
            }
            if result.is_none() || tasks.live() > 0 {
                // Only now, so that a root that does not wait costs nothing.
                entered.get_or_insert_with(|| tasks.enter());
                let mut parts = Parts::default();
                progress |= tasks.run(|ran, count| parts.before(self, ran, count));
            }
            progress |= self.0.timers.fire(|| self.now_ns());
            // After the tasks, so that their posts go out together.
            progress |= self.drive();
            if tasks.live() == 0
                && let Some(value) = result.take()
            {
                return value;
            }
            if progress {
                self.0.stop_spinning();
            } else {
                if result.is_some()
                    && let Some(driver) = &self.0.driver
                {
                    let now_ns = self.now_ns();
                    let kept_ns = now_ns - *ended_ns.get_or_insert(now_ns);
                    driver.linger(Duration::from_nanos(kept_ns));
                }
                self.idle(result.is_none(), None);
            }
        }
    }

    /// Runs the tasks that are ready, once each, sends their posts, and takes completions; waits for nothing. Returns
    /// the nanoseconds until a task is ready by itself: 0 if one is ready now, `None` if none waits for a time.
    ///
    /// With [`Executor::wait`] a thread runs its tasks beside work of its own, in place of [`Executor::block_on`].
    ///
    /// # Panics
    /// If called from inside itself or `block_on`.
    pub fn turn(&self) -> Option<u64> {
        assert!(!self.0.running.replace(true), "a turn inside block_on, or inside a turn");
        let _running = RunningRoot(&self.0);
        {
            let _entered = self.0.tasks.enter();
            let mut parts = Parts::default();
            self.0.tasks.run(|ran, count| parts.before(self, ran, count));
            self.0.timers.fire(|| self.now_ns());
            self.drive();
        }
        if self.0.tasks.are_ready() {
            return Some(0);
        }
        self.0.timers.next_ns().map(|at_ns| at_ns.saturating_sub(self.look()))
    }

    /// Waits until [`Executor::turn`] has something to do, one of the watched descriptors can be read, or `at_most` has
    /// passed. May end earlier.
    ///
    /// # Panics
    /// As [`Executor::turn`].
    pub fn wait(&self, at_most: Option<Duration>) {
        assert!(!self.0.running.replace(true), "a wait inside block_on, or inside a turn");
        let _running = RunningRoot(&self.0);
        let at_most_ns = at_most.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = at_most_ns.map(|ns| self.now_ns().saturating_add(ns));
        loop {
            if self.0.tasks.are_ready() || self.drive() {
                return;
            }
            let ends_ns = [self.0.timers.next_ns(), until_ns].into_iter().flatten().min();
            if ends_ns.is_some_and(|ends_ns| ends_ns <= self.look()) {
                return;
            }
            if self.idle(false, until_ns) {
                return;
            }
        }
    }

    /// Makes [`Executor::wait`] end when there is something to read at `other`, for as long as this executor lives.
    ///
    /// # Errors
    /// The system's; `Unsupported` if this executor cannot wait for descriptors: see
    /// [`AnyFabric::watching_endpoint`](crate::AnyFabric::watching_endpoint).
    pub fn watch(&self, other: &impl AsFd) -> io::Result<()> {
        match &self.0.driver {
            Some(driver) => driver.watch(other.as_fd()),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Nanoseconds since the first executor of this process was made.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Waits for `ns` nanoseconds; other tasks run meanwhile. They run even if the time is over at once,
    /// because reading the clock may take longer than a short wait.
    pub fn sleep(&self, ns: u64) -> impl Future<Output = ()> + use<> {
        let moment = self.0.timers.moment(self.now_ns(), ns);
        Sleep { inner: Rc::clone(&self.0), moment, is_armed: false }
    }

    /// Reads the time, and tells it to the timers.
    fn look(&self) -> u64 {
        let now_ns = self.now_ns();
        self.0.timers.looked(now_ns);
        now_ns
    }

    fn drive(&self) -> bool {
        let came = self.0.driver.as_ref().is_some_and(|driver| driver.drive());
        if came {
            // The time is noted when there is nothing else to do, because reading it costs.
            self.0.is_driven.set(true);
        }
        came
    }

    /// Nothing is ready: lets other threads run, or sleeps until a timer, `until_ns` or a wake-up. Returns whether it
    /// slept.
    fn idle(&self, root_waits: bool, until_ns: Option<u64>) -> bool {
        if root_waits && self.0.tasks.is_root_woken() {
            // The root only yielded; it may wait for other threads on this core.
            thread::yield_now();
            return false;
        }
        let next_ns = [self.0.timers.next_ns(), until_ns].into_iter().flatten().min();
        if next_ns.is_none() && self.0.driver.is_none() {
            thread::park();
            return true;
        }
        let now_ns = self.look();
        let wait_ns = next_ns.map(|at_ns| at_ns.saturating_sub(now_ns));
        if let Some(driver) = &self.0.driver {
            if self.0.is_driven.take() {
                self.0.driven_ns.set(now_ns);
            }
            let is_near = wait_ns.is_some_and(|wait_ns| wait_ns < SPIN_NS);
            let spins = driver.is_busy() && now_ns - self.0.driven_ns.get() < SPIN_NS;
            if (is_near || spins) && self.0.may_spin() {
                thread::yield_now();
                return false;
            }
            self.0.stop_spinning();
            // A wait of zero would not wait.
            let wait_ns = wait_ns.map(|wait_ns| wait_ns.saturating_sub(SPIN_NS / 2).max(1));
            driver.wait(wait_ns.map(Duration::from_nanos));
            return true;
        }
        match wait_ns {
            Some(wait_ns) if wait_ns < SPIN_NS => {
                thread::yield_now();
                return false;
            }
            Some(wait_ns) => thread::park_timeout(Duration::from_nanos(wait_ns - SPIN_NS / 2)),
            None => thread::park(),
        }
        true
    }
}

/// Decides when posts of a round's first tasks leave before the round ends, so that servers work meanwhile.
#[derive(Default)]
struct Parts {
    /// None if nothing would be sent.
    sent_ns: Option<u64>,
    is_halved: bool,
}

impl Parts {
    /// `ran` of `count` tasks have run, the others follow.
    fn before(&mut self, executor: &Executor, ran: usize, count: usize) {
        if count <= PART {
            return;
        }
        let Some(driver) = &executor.0.driver else { return };
        if ran == 0 {
            // If the driver has nothing to hurry, the time is of no use, and reading it costs.
            self.sent_ns = driver.may_hurry().then(|| executor.look());
            return;
        }
        let Some(sent_ns) = self.sent_ns else { return };
        let now_ns = executor.look();
        let is_half = !self.is_halved && count >= HALVES_FROM && ran >= count / 2;
        if is_half || now_ns - sent_ns >= PART_NS {
            self.is_halved |= is_half;
            driver.hurry();
            self.sent_ns = Some(now_ns);
        }
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executor({} tasks)", self.0.tasks.live())
    }
}

impl Default for Executor {
    fn default() -> Self {
        Executor::new()
    }
}

/// Lets the other tasks of the thread run once.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

struct RunningRoot<'a>(&'a ExecutorInner);

impl Drop for RunningRoot<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.stop_spinning();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn tasks_interleave_and_all_end() {
        let executor = Executor::new();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for task in 0..3 {
            let seen = Rc::clone(&seen);
            executor.spawn(async move {
                for round in 0..2 {
                    seen.borrow_mut().push((round, task));
                    yield_now().await;
                }
            });
        }
        assert_eq!(executor.block_on(async { 7 }), 7);
        assert_eq!(*seen.borrow(), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }

    /// If reading the clock is slow, a short wait may be over at the first reading.
    #[test]
    fn an_expired_sleep_lets_other_tasks_run() {
        let executor = Executor::new();
        let done = Rc::new(Cell::new(false));
        let seen = Rc::clone(&done);
        let waits = executor.clone();
        executor.spawn(async move {
            while !seen.get() {
                waits.sleep(0).await;
            }
        });
        let sets = Rc::clone(&done);
        executor.spawn(async move { sets.set(true) });
        executor.block_on(async {});
        assert!(done.get());
    }

    #[test]
    fn no_more_threads_spin_than_there_are_processors() {
        let all: Vec<_> = (0..processors() + 2).map(|_| Executor::new()).collect();
        let may = |of: &Executor| of.0.may_spin();
        // Other tests may spin at the same time.
        assert!(all.iter().filter(|of| may(of)).count() <= processors());
        assert!(all.iter().all(|of| !of.0.spins.get() || may(of)), "who does goes on");
        all.iter().for_each(|of| of.0.stop_spinning());
        assert!(all.iter().all(|of| !of.0.spins.get()));
    }

    /// Counts its calls of `hurry` before all tasks have run, if it allows them.
    struct Hurried(bool, Cell<u32>);

    impl Driver for Hurried {
        fn drive(&self) -> bool {
            false
        }

        fn may_hurry(&self) -> bool {
            self.0
        }

        fn hurry(&self) {
            self.1.set(self.1.get() + 1);
        }

        fn is_busy(&self) -> bool {
            false
        }

        fn wait(&self, _: Option<Duration>) {}

        fn notifier(&self) -> Notify {
            Arc::new(|| ())
        }
    }

    #[test]
    fn posts_leave_before_a_long_round_ends() {
        for (may, count, work_ns, expected) in [
            (true, PART, PART_NS, 0..=0),
            // One part after the other.
            (true, 3 * PART, PART_NS, 2..=2),
            // Tasks that compute little may lose the processor meanwhile.
            (true, HALVES_FROM, 0, 1..=2),
            (false, HALVES_FROM, PART_NS, 0..=0),
        ] {
            let driver = Rc::new(Hurried(may, Cell::new(0)));
            let executor = Executor::with_driver(Rc::clone(&driver));
            for _ in 0..count {
                let clock = executor.clone();
                executor.spawn(async move {
                    let end_ns = clock.now_ns() + work_ns;
                    while clock.now_ns() < end_ns {}
                });
            }
            executor.block_on(async {});
            assert!(expected.contains(&driver.1.get()), "{count}: {}", driver.1.get());
        }
    }

    #[test]
    fn timers_fire_in_order() {
        let executor = Executor::new();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for ns in [300_000, 10_000, 200_000] {
            let (seen, sleep) = (Rc::clone(&seen), executor.sleep(ns));
            executor.spawn(async move {
                sleep.await;
                seen.borrow_mut().push(ns);
            });
        }
        let before_ns = executor.now_ns();
        executor.block_on(async {});
        assert_eq!(*seen.borrow(), [10_000, 200_000, 300_000]);
        assert!(executor.now_ns() - before_ns >= 200_000);
    }

    #[test]
    fn another_thread_wakes_the_root() {
        let executor = Executor::new();
        let done = Arc::new(AtomicBool::new(false));
        let mut started = false;
        executor.block_on(std::future::poll_fn(|context| {
            if !std::mem::replace(&mut started, true) {
                let (done, waker) = (Arc::clone(&done), context.waker().clone());
                thread::spawn(move || {
                    done.store(true, Ordering::SeqCst);
                    waker.wake();
                });
            }
            if done.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert!(done.load(Ordering::SeqCst));
    }
}
