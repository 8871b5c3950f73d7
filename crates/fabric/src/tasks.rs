//! Task set: holds the tasks of one thread, and the lists of those that are ready.
//!
//! A wake-up on the thread itself costs no more than an entry in the thread's own list.
//!
//! - **INV-TASK-1** A wake-up on the task's own thread, while its executor runs there, puts the task's
//!   number into that thread's list, once. Any other wake-up puts it into the queue that threads share,
//!   once (INV-WAKE-3). A task of both is polled twice, which a future must bear. Code on that thread
//!   may keep a task's number ([`Ready::polled`]) instead of its waker, and wake the task by it.
//! - **INV-TASK-2** Only its own thread polls a task, and never while it polls it: its future is
//!   borrowed meanwhile.
#![allow(clippy::disallowed_methods, reason = "part of the executor of real threads")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::wake::{Asked, Flag, Home, Queue};

/// Tasks of a part; see [`Tasks::run`].
pub(crate) const PART: usize = 32;
/// Slots in one block. Tasks mostly run in the order of their slots, so that the next ones are in the
/// processor's cache.
const BLOCK: usize = 32;

type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    /// Ready tasks of the executor that runs on this thread, if one does.
    static RUNNING: RefCell<Option<Rc<Ready>>> = const { RefCell::new(None) };
}

/// All tasks of an executor, and the root's waker.
pub(crate) struct Tasks {
    ready: Rc<Ready>,
    table: RefCell<TaskTable>,
    root: Arc<Root>,
    root_waker: Waker,
    /// Buffer for the requests of other threads; empty between uses.
    asked: Cell<VecDeque<u32>>,
}

/// Tasks that the own thread has made ready.
pub(crate) struct Ready {
    /// Requests of other threads; its identity names the executor.
    queue: Arc<Queue<u32>>,
    lists: RefCell<Lists>,
    /// Tasks of a round that a panic broke off, the last first; empty between uses.
    left: Cell<Vec<u32>>,
    root: Cell<bool>,
    /// The task that is polled, or was polled last.
    polled: Cell<Polled>,
}

/// A task, and the address of its waker. As long as there are tasks, no other waker has that address.
#[derive(Clone, Copy)]
struct Polled {
    waker: *const Waker,
    number: u32,
}

impl Polled {
    const NONE: Polled = Polled { waker: std::ptr::null(), number: 0 };
}

#[derive(Default)]
struct Lists {
    /// Tasks of the next round.
    next: Vec<u32>,
    /// By task: it stands in `next`, or waits in this round.
    listed: Vec<bool>,
}

/// The tasks of this round that have not run, the last first.
struct Round<'a> {
    ready: &'a Ready,
    tasks: Vec<u32>,
}

#[derive(Default)]
struct TaskTable {
    blocks: Vec<Rc<[TaskSlot; BLOCK]>>,
    free: Vec<u32>,
    live: usize,
}

/// The slot of one task, and of another after it.
struct TaskSlot {
    future: RefCell<Option<BoxedTask>>,
    origin: Arc<Origin>,
    /// Waker of that origin.
    waker: Waker,
}

/// Wakes a task.
struct Origin {
    queue: Arc<Queue<u32>>,
    number: u32,
    asked: Asked,
}

/// Wakes the future of `block_on`.
struct Root {
    queue: Arc<Queue<u32>>,
    flag: Flag,
}

/// Until its drop, wake-ups on this thread go to the thread's own list.
pub(crate) struct Entered(Option<Rc<Ready>>);

impl Tasks {
    /// No tasks yet, of the calling thread.
    pub(crate) fn new(home: Home) -> Self {
        let queue = Arc::new(Queue::new(home.clone()));
        let root = Arc::new(Root { queue: Arc::clone(&queue), flag: Flag::new(home) });
        let ready = Ready {
            queue,
            lists: RefCell::default(),
            left: Cell::default(),
            root: Cell::new(false),
            polled: Cell::new(Polled::NONE),
        };
        Tasks {
            ready: Rc::new(ready),
            table: RefCell::default(),
            root_waker: Waker::from(Arc::clone(&root)),
            root,
            asked: Cell::default(),
        }
    }

    /// Returns the list by which the own thread makes tasks ready without wakers.
    pub(crate) fn ready(&self) -> &Rc<Ready> {
        &self.ready
    }

    /// Makes wake-ups on this thread find this executor.
    pub(crate) fn enter(&self) -> Entered {
        Entered(RUNNING.replace(Some(Rc::clone(&self.ready))))
    }

    /// Adds a task that is ready.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut table = self.table.borrow_mut();
        if table.free.is_empty() {
            self.add_block(&mut table);
        }
        let number = table.free.pop().expect("a block has slots");
        table.live += 1;
        table.slot(number).future.replace(Some(Box::pin(task)));
        drop(table);
        self.ready.push(number);
    }

    fn add_block(&self, table: &mut TaskTable) {
        let first = (table.blocks.len() * BLOCK) as u32;
        let slot = |at| {
            let number = first + at as u32;
            let (queue, asked) = (Arc::clone(&self.ready.queue), Asked::default());
            let origin = Arc::new(Origin { queue, number, asked });
            let waker = Waker::from(Arc::clone(&origin));
            TaskSlot { future: RefCell::default(), origin, waker }
        };
        table.blocks.push(Rc::new(std::array::from_fn(slot)));
        // The first of them is the next.
        table.free.extend((first..first + BLOCK as u32).rev());
        self.ready.lists.borrow_mut().listed.resize(table.blocks.len() * BLOCK, false);
    }

    /// Tasks that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.table.borrow().live
    }

    /// Runs the tasks that are ready now, not those that they make ready; false if there are none. Before
    /// every [`PART`] of them, calls `before` with the number of tasks that have run, and of all.
    pub(crate) fn run(&self, mut before: impl FnMut(usize, usize)) -> bool {
        self.list_asked();
        let mut round = self.ready.begin();
        let count = round.tasks.len();
        let mut block = None;
        for ran in (0..count).step_by(PART) {
            before(ran, count);
            for _ in 0..PART.min(count - ran) {
                let Some(number) = round.next() else { break };
                let at = number as usize / BLOCK;
                let slots = match &block {
                    Some((last, slots)) if *last == at => slots,
                    _ => &block.insert((at, Rc::clone(&self.table.borrow().blocks[at]))).1,
                };
                self.poll(number, &slots[number as usize % BLOCK]);
            }
        }
        count > 0
    }

    /// Lists the tasks that other threads have asked for.
    fn list_asked(&self) {
        if self.ready.queue.is_empty() {
            return;
        }
        let mut asked = self.asked.take();
        self.ready.queue.take(&mut asked);
        let table = self.table.borrow();
        for number in asked.drain(..) {
            table.slot(number).origin.asked.take();
            self.ready.push(number);
        }
        self.asked.set(asked);
    }

    #[inline(always)]
    fn poll(&self, number: u32, TaskSlot { future, waker, .. }: &TaskSlot) {
        let ending = Ending { tasks: self, future, number };
        let is_pending = match &mut *future.borrow_mut() {
            Some(task) => {
                self.ready.polled.set(Polled { waker, number });
                task.as_mut().poll(&mut Context::from_waker(waker)).is_pending()
            }
            // The task has ended, and is woken late.
            None => true,
        };
        if is_pending {
            std::mem::forget(ending);
        }
    }

    #[cold]
    fn end(&self, future: &RefCell<Option<BoxedTask>>, number: u32) {
        // Futures that drop with it may spawn others; these get no slot that is not free yet.
        drop(future.take());
        let mut table = self.table.borrow_mut();
        table.live -= 1;
        table.free.push(number);
    }

    /// Polls the root.
    pub(crate) fn poll_root<T>(&self, root: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        root.poll(&mut Context::from_waker(&self.root_waker))
    }

    /// Returns whether the root has been woken since the last call.
    pub(crate) fn take_root(&self) -> bool {
        let by_own = self.ready.root.take();
        let by_others = self.root.flag.is_raised() && self.root.flag.take();
        by_own || by_others
    }

    /// Returns whether the next [`Tasks::run`] has tasks to run.
    pub(crate) fn are_ready(&self) -> bool {
        self.ready.has_any() || !self.ready.queue.is_empty()
    }

    /// Returns whether the next [`Tasks::take_root`] will return true.
    pub(crate) fn is_root_woken(&self) -> bool {
        self.ready.root.get() || self.root.flag.is_raised()
    }
}

impl TaskTable {
    fn slot(&self, number: u32) -> &TaskSlot {
        &self.blocks[number as usize / BLOCK][number as usize % BLOCK]
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.ready.polled.set(Polled::NONE);
    }
}

impl Ready {
    /// Returns the number of the polled task, if `waker` is its own. [`Ready::push`] with that number wakes
    /// it at less cost than the waker.
    #[inline(always)]
    pub(crate) fn polled(&self, waker: &Waker) -> Option<u32> {
        let polled = self.polled.get();
        std::ptr::eq(polled.waker, waker).then_some(polled.number)
    }

    /// Makes a task ready.
    #[inline(always)]
    pub(crate) fn push(&self, number: u32) {
        self.lists.borrow_mut().push(number);
    }

    /// Returns whether a round would have tasks.
    fn has_any(&self) -> bool {
        let left = self.left.take();
        let is_left = !left.is_empty();
        self.left.set(left);
        is_left || !self.lists.borrow().next.is_empty()
    }

    /// Begins a round. Tasks that a panicked round left over come first.
    fn begin(&self) -> Round<'_> {
        let mut tasks = self.left.take();
        if tasks.is_empty() {
            std::mem::swap(&mut tasks, &mut self.lists.borrow_mut().next);
            tasks.reverse();
        }
        Round { ready: self, tasks }
    }
}

impl Round<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let number = self.tasks.pop()?;
        self.ready.lists.borrow_mut().listed[number as usize] = false;
        Some(number)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.ready.left.set(std::mem::take(&mut self.tasks));
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready(task {})", self.polled.get().number)
    }
}

impl Lists {
    #[inline(always)]
    fn push(&mut self, number: u32) {
        if !std::mem::replace(&mut self.listed[number as usize], true) {
            self.next.push(number);
        }
    }
}

/// Calls `does` if `queue` belongs to the executor that runs on this thread; returns whether it did.
fn with_own(queue: &Arc<Queue<u32>>, does: impl FnOnce(&Ready)) -> bool {
    let own = RUNNING.try_with(|running| match &*running.borrow() {
        Some(ready) if Arc::ptr_eq(&ready.queue, queue) => {
            does(ready);
            true
        }
        _ => false,
    });
    own.unwrap_or(false)
}

/// A task has ended, if only by a panic.
struct Ending<'a> {
    tasks: &'a Tasks,
    future: &'a RefCell<Option<BoxedTask>>,
    number: u32,
}

impl Drop for Ending<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.tasks.end(self.future, self.number);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.replace(self.0.take());
    }
}

impl Wake for Origin {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !with_own(&self.queue, |ready| ready.push(self.number)) {
            self.queue.push_once(&self.asked, self.number);
        }
    }
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !with_own(&self.queue, |ready| ready.root.set(true)) {
            self.flag.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn tasks() -> Tasks {
        Tasks::new(Home::new(None))
    }

    fn run(tasks: &Tasks) -> bool {
        tasks.run(|_, _| ())
    }

    /// A waker of a task that goes on when `goes_on` is set, and how often it was polled.
    fn parked(tasks: &Tasks) -> (Waker, Rc<Cell<u32>>, Rc<Cell<bool>>) {
        let (polls, goes_on) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let waker = Rc::new(RefCell::new(None));
        let (own_polls, own_goes_on, own) = (polls.clone(), goes_on.clone(), waker.clone());
        tasks.spawn(poll_fn(move |context| {
            own_polls.set(own_polls.get() + 1);
            own.replace(Some(context.waker().clone()));
            if own_goes_on.get() { Poll::Ready(()) } else { Poll::Pending }
        }));
        run(tasks);
        let waker = waker.take().expect("it was polled");
        (waker, polls, goes_on)
    }

    #[test]
    fn a_task_is_listed_once_however_often_it_is_woken() {
        let tasks = tasks();
        let (waker, polls, goes_on) = parked(&tasks);
        for is_entered in [true, false] {
            let entered = is_entered.then(|| tasks.enter());
            (0..3).for_each(|_| waker.wake_by_ref());
            assert!(run(&tasks) && !run(&tasks));
            drop(entered);
        }
        assert_eq!(polls.get(), 3);
        // Woken in both ways, and from another thread.
        let entered = tasks.enter();
        waker.wake_by_ref();
        std::thread::scope(|scope| drop(scope.spawn(|| waker.wake_by_ref())));
        goes_on.set(true);
        assert!(run(&tasks) && !run(&tasks));
        assert_eq!((polls.get(), tasks.live()), (4, 0));
        // Its slot has another task, which bears one poll too many.
        let (_, polls, _) = parked(&tasks);
        waker.wake();
        assert!(run(&tasks));
        assert_eq!((polls.get(), tasks.live()), (2, 1));
        drop(entered);
    }

    #[test]
    fn a_task_that_panics_takes_no_other_with_it() {
        let tasks = tasks();
        let ran = Rc::new(Cell::new(0));
        for number in 0..4 {
            let ran = Rc::clone(&ran);
            tasks.spawn(async move {
                assert_ne!(number, 1, "one of them panics");
                ran.set(ran.get() + 1);
            });
        }
        assert!(catch_unwind(AssertUnwindSafe(|| run(&tasks))).is_err());
        assert_eq!((ran.get(), tasks.live()), (1, 2));
        assert!(run(&tasks));
        assert_eq!((ran.get(), tasks.live()), (3, 0));
    }

    #[test]
    fn parts_are_told_before_they_run() {
        let tasks = tasks();
        let ran = Rc::new(Cell::new(0));
        for count in [0, 1, PART, PART + 1, 3 * PART] {
            ran.set(0);
            for _ in 0..count {
                let ran = Rc::clone(&ran);
                tasks.spawn(async move { ran.set(ran.get() + 1) });
            }
            let mut seen = Vec::new();
            tasks.run(|told, of| {
                assert_eq!((told, of), (ran.get(), count));
                seen.push(told);
            });
            assert_eq!(ran.get(), count);
            assert_eq!(seen, (0..count).step_by(PART).collect::<Vec<_>>());
        }
    }
}
