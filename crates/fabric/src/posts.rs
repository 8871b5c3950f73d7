//! Post slots: hold a thread's posted operations, their buffers and their waiters, until taken back.
//!
//! - **INV-POST-1** A slot is given back exactly once: by the future that takes its result, or, if that was
//!   dropped, when the last part has come back. Until then it owns the buffers (F7).
//! - **INV-POST-2** No waker is called or dropped while anything here is borrowed: it may drop a task, and
//!   with it futures that come back here. For a task of the own executor, which are most, a slot keeps the
//!   number instead; making that ready runs nothing.

use std::cell::{RefCell, RefMut};
use std::mem::discriminant;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::post::Load;
use crate::tasks::Ready;
use crate::{Buf, Executor, Op, OpError};

/// In place of a task's number: the waiter is no task of the executor.
const NO_TASK: u32 = u32::MAX;
/// In place of a task's number: the future is gone.
const ABANDONED: u32 = u32::MAX - 1;

/// Content of a slot. The default holds nothing.
pub(crate) trait Kept: Default {
    /// Load that goes into the slot and comes out of it.
    type Load: Load;

    /// Exchanges the load.
    fn exchange(&mut self, load: Self::Load) -> Self::Load;

    /// Puts a load where there is none.
    #[inline]
    fn put(&mut self, load: Self::Load) {
        let before = self.exchange(load);
        debug_assert!(
            discriminant(&before) == discriminant(&Self::Load::default()),
            "a slot is given out once"
        );
        // Nothing that would have to be dropped.
        std::mem::forget(before);
    }

    /// Takes the load.
    #[inline]
    fn take(&mut self) -> Self::Load {
        self.exchange(Self::Load::default())
    }
}

/// One post. The thread touches each slot in flight twice, so each takes one cache line and no more.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Slot<K> {
    pub(crate) kept: K,
    /// Parts that have not come back.
    pub(crate) missing: u32,
    /// The task that waits, or waited last, or [`NO_TASK`], or [`ABANDONED`].
    task: u32,
    pub(crate) error: Option<Box<OpError>>,
}

/// All posts whose futures have not taken their results.
#[derive(Debug)]
pub(crate) struct Posts<K> {
    slots: Vec<Slot<K>>,
    /// By slot: the waker of a waiter that is no task.
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// Ready list of the executor whose tasks post most.
    ready: Option<Rc<Ready>>,
    /// Slots whose wakers are to be called.
    to_wake: Vec<u32>,
}

/// State that a transport borrows together with its posts.
pub(crate) trait Table {
    type Kept: Kept;

    fn posts(&mut self) -> &mut Posts<Self::Kept>;
}

/// Calls the wakers of the slots that have gathered.
pub(crate) fn wake<T: Table>(table: &RefCell<T>) {
    let mut all = table.borrow_mut();
    let posts = all.posts();
    if posts.to_wake.is_empty() {
        return;
    }
    let mut slots = std::mem::take(&mut posts.to_wake);
    for slot in slots.drain(..) {
        // Not in its slot while it is called (INV-POST-2).
        let Some(waker) = all.posts().waker(slot).take() else { continue };
        drop(all);
        waker.wake_by_ref();
        all = table.borrow_mut();
        let after = all.posts().waker(slot).replace(waker);
        if let Some(after) = after {
            // Another future has begun to wait there meanwhile.
            let before = all.posts().waker(slot).replace(after);
            drop(all);
            drop(before);
            all = table.borrow_mut();
        }
    }
    // Slots that a waker has added meanwhile wait for the next call.
    let posts = all.posts();
    if posts.to_wake.is_empty() {
        posts.to_wake = slots;
    }
}

/// Returns the table if the slot's post has come back; else registers the polling task's wake-up.
#[inline(always)]
fn finished<'a, T: Table>(
    table: &'a RefCell<T>,
    index: u32,
    context: &Context<'_>,
) -> Option<RefMut<'a, T>> {
    let mut all = table.borrow_mut();
    let posts = all.posts();
    if posts.slot(index).missing == 0 {
        return Some(all);
    }
    let before = posts.wait_for(index, context);
    drop(all);
    drop(before);
    None
}

/// Returns a post's load and error once it has come back, and gives its slot back.
#[inline(always)]
pub(crate) fn result<T: Table>(
    table: &RefCell<T>,
    index: u32,
    context: &Context<'_>,
) -> Option<(<T::Kept as Kept>::Load, Option<OpError>)> {
    let mut all = finished(table, index, context)?;
    Some(all.posts().take(index))
}

/// As [`result`], for a READ or WRITE: its buffer, or none if it failed. After a failure, [`take_error`]
/// gives the slot back.
#[inline(always)]
pub(crate) fn buf<T: Table>(
    table: &RefCell<T>,
    index: u32,
    context: &Context<'_>,
) -> Option<Option<Buf>> {
    let mut all = finished(table, index, context)?;
    let posts = all.posts();
    let slot = posts.slot(index);
    if slot.error.is_some() {
        return Some(None);
    }
    let load = slot.kept.take();
    posts.free.push(index);
    match load.into_op() {
        Ok(Op::Read { into: buf, .. } | Op::Write { from: buf, .. }) => Some(Some(buf)),
        _ => unreachable!("a READ or WRITE came back as something else"),
    }
}

/// Returns the error of a failed slot, and gives the slot back.
#[cold]
pub(crate) fn take_error<T: Table>(table: &RefCell<T>, index: u32) -> OpError {
    let (load, error) = table.borrow_mut().posts().take(index);
    drop(load);
    error.expect("it failed")
}

/// The future of a post is gone.
pub(crate) fn abandon<T: Table>(table: &RefCell<T>, index: u32) {
    let left = table.borrow_mut().posts().abandon(index);
    drop(left);
}

impl<K> Slot<K> {
    /// A part cannot be carried out. The first error counts.
    pub(crate) fn fail(&mut self, error: OpError) {
        self.error.get_or_insert_with(|| Box::new(error));
    }
}

impl<K: Kept> Posts<K> {
    /// The slot of that number.
    #[inline(always)]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot<K> {
        &mut self.slots[index as usize]
    }

    /// Names the executor whose tasks post most. The first call counts.
    pub(crate) fn belong_to(&mut self, executor: &Executor) {
        self.ready.get_or_insert_with(|| executor.ready());
    }

    /// Returns the number of the task that `context` belongs to, if it is one of the executor's, or
    /// [`NO_TASK`].
    #[inline(always)]
    fn task_of(&self, context: &Context<'_>) -> u32 {
        let task = self.ready.as_ref().and_then(|ready| ready.polled(context.waker()));
        task.unwrap_or(NO_TASK)
    }

    fn waker(&mut self, index: u32) -> &mut Option<Waker> {
        &mut self.wakers[index as usize]
    }

    /// Makes the polling task wait for a slot; returns the waker that it replaces.
    fn wait_for(&mut self, index: u32, context: &Context<'_>) -> Option<Waker> {
        let task = self.task_of(context);
        self.slot(index).task = task;
        if task == NO_TASK { self.keep_waker(index, context.waker()) } else { None }
    }

    #[cold]
    fn keep_waker(&mut self, index: u32, waker: &Waker) -> Option<Waker> {
        match self.waker(index) {
            Some(own) if own.will_wake(waker) => None,
            own => own.replace(waker.clone()),
        }
    }

    /// Opens an empty slot, for which the polling task waits. Returns its number, the slot, and the waker
    /// that was there.
    #[inline(always)]
    pub(crate) fn open(&mut self, context: &Context<'_>) -> (u32, &mut Slot<K>, Option<Waker>) {
        let index = self.free.pop().unwrap_or_else(|| self.add());
        let task = self.task_of(context);
        let is_other = task == NO_TASK;
        let before = if is_other { self.keep_waker(index, context.waker()) } else { None };
        let slot = self.slot(index);
        (slot.missing, slot.task) = (0, task);
        (index, slot, before)
    }

    #[cold]
    fn add(&mut self) -> u32 {
        self.slots.push(Slot { kept: K::default(), missing: 0, task: NO_TASK, error: None });
        self.wakers.push(None);
        (self.slots.len() - 1) as u32
    }

    /// Gives a slot back; returns its load and the error.
    #[inline(always)]
    pub(crate) fn take(&mut self, index: u32) -> (K::Load, Option<OpError>) {
        let slot = self.slot(index);
        let taken = (slot.kept.take(), slot.error.take().map(|error| *error));
        self.free.push(index);
        taken
    }

    /// The future of a post is gone. Returns the values to drop when nothing is borrowed.
    pub(crate) fn abandon(&mut self, index: u32) -> (Option<Waker>, Option<K::Load>) {
        let waker = self.waker(index).take();
        let slot = self.slot(index);
        slot.task = ABANDONED;
        let is_done = slot.missing == 0;
        (waker, is_done.then(|| self.take(index).0))
    }

    /// One part of a post has come back.
    #[inline(always)]
    pub(crate) fn came_back(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.missing -= 1;
        if slot.missing == 0 {
            self.has_come(index);
        }
    }

    /// One part of a post has failed.
    pub(crate) fn failed(&mut self, index: u32, error: OpError) {
        self.slot(index).fail(error);
        self.came_back(index);
    }

    /// All parts have been posted; true if there was none: then the result is there.
    #[inline]
    pub(crate) fn posted(&mut self, index: u32, error: Option<OpError>) -> bool {
        let slot = self.slot(index);
        if let Some(error) = error {
            slot.fail(error);
        }
        let is_done = slot.missing == 0;
        if is_done {
            self.has_come(index);
        }
        is_done
    }

    /// One part has ended.
    pub(crate) fn ended(&mut self, index: u32, result: Result<(), OpError>) {
        match result {
            Ok(()) => self.came_back(index),
            Err(error) => self.failed(index, error),
        }
    }

    /// All parts of a slot have come back: makes its waiter ready.
    #[inline(always)]
    pub(crate) fn has_come(&mut self, index: u32) {
        match (self.slot(index).task, &self.ready) {
            (task, Some(ready)) if task < ABANDONED => ready.push(task),
            (task, _) => self.has_come_for(task, index),
        }
    }

    #[cold]
    fn has_come_for(&mut self, task: u32, index: u32) {
        match task {
            ABANDONED => drop(self.take(index)),
            _ => self.to_wake.push(index),
        }
    }

    /// Returns whether [`wake`] has anything to do.
    #[inline]
    pub(crate) fn wakes(&self) -> bool {
        !self.to_wake.is_empty()
    }
}

impl<K> Default for Posts<K> {
    fn default() -> Self {
        Posts {
            slots: Vec::new(),
            wakers: Vec::new(),
            free: Vec::new(),
            ready: None,
            to_wake: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::{Poll, Wake};

    use super::*;
    use crate::{Ops, yield_now};

    #[derive(Debug, Default, PartialEq)]
    struct Mark(Option<u64>);

    impl Load for Mark {
        fn is_empty(&self) -> bool {
            self.0.is_none()
        }

        fn into_op(self) -> Result<Op, Self> {
            Err(self)
        }

        fn into_ops(self) -> Result<Ops, Self> {
            Err(self)
        }
    }

    impl Kept for Mark {
        type Load = Mark;

        fn exchange(&mut self, load: Mark) -> Mark {
            assert!(self.0.is_none() || load.0.is_none(), "a slot is given out once");
            std::mem::replace(self, load)
        }
    }

    #[derive(Default)]
    struct All(Posts<Mark>);

    impl Table for All {
        type Kept = Mark;

        fn posts(&mut self) -> &mut Posts<Mark> {
            &mut self.0
        }
    }

    /// A post of `parts`.
    fn post(posts: &mut Posts<Mark>, mark: u64, parts: u32, waker: &Waker) -> u32 {
        let (index, slot, before) = posts.open(&Context::from_waker(waker));
        assert!(before.is_none(), "its waker was taken");
        slot.kept.put(Mark(Some(mark)));
        slot.missing = parts;
        index
    }

    #[test]
    fn a_slot_is_given_back_once() {
        let mut posts = Posts::default();
        let slot = post(&mut posts, 7, 2, Waker::noop());
        let other = post(&mut posts, 8, 1, Waker::noop());
        let (waker, load) = posts.abandon(slot);
        assert!(waker.is_some());
        assert_eq!(load, None, "it is in flight");
        let error = OpError { server: crate::ServerId(0), kind: crate::OpErrorKind::Unavailable };
        posts.failed(slot, error);
        assert_eq!(posts.slot(slot).kept, Mark(Some(7)));
        posts.came_back(slot);
        assert_eq!(posts.slot(slot).kept, Mark(None));
        assert!(!posts.wakes(), "nobody waits");
        assert_eq!(post(&mut posts, 9, 1, Waker::noop()), slot);
        assert_eq!(posts.slot(slot).error, None);
        posts.came_back(slot);
        assert_eq!(posts.take(slot), (Mark(Some(9)), None));
        posts.came_back(other);
        assert_eq!(posts.abandon(other).1, Some(Mark(Some(8))));
    }

    thread_local! {
        static ALL: RefCell<All> = RefCell::default();
    }

    /// The post whose waker abandons the other one, and that other one.
    const FIRST: u32 = 0;
    const SECOND: u32 = 1;

    struct GivesUp;

    impl Wake for GivesUp {
        fn wake(self: Arc<Self>) {
            ALL.with(|all| abandon(all, SECOND));
        }
    }

    /// INV-POST-2.
    #[test]
    fn a_waker_may_give_up_other_posts() {
        let own = Waker::from(Arc::new(GivesUp));
        ALL.with(|all| {
            {
                let posts = &mut all.borrow_mut().0;
                assert_eq!(post(posts, 1, 1, &own), FIRST);
                assert_eq!(post(posts, 2, 1, Waker::noop()), SECOND);
                posts.came_back(FIRST);
                posts.came_back(SECOND);
                assert!(posts.wakes());
            }
            wake(all);
            let posts = &mut all.borrow_mut().0;
            assert!(!posts.wakes());
            assert_eq!(posts.slot(SECOND).kept, Mark(None));
            assert_eq!(posts.take(FIRST), (Mark(Some(1)), None));
            assert_eq!(posts.free, [SECOND, FIRST]);
        });
    }

    /// A copy of a task's waker is a waker like any other.
    #[test]
    fn tasks_go_on_by_their_number_or_by_a_copy_of_their_waker() {
        let executor = Executor::new();
        let all = Rc::new(RefCell::new(All::default()));
        all.borrow_mut().0.belong_to(&executor);
        let done = Rc::new(Cell::new(0));
        for copies in [false, true] {
            let (all, done) = (Rc::clone(&all), Rc::clone(&done));
            let mut slot = None;
            executor.spawn(async move {
                let load = poll_fn(|context| {
                    let copy = context.waker().clone();
                    let own = Context::from_waker(if copies { &copy } else { context.waker() });
                    let Some(slot) = slot else {
                        let waker = own.waker();
                        slot = Some(post(&mut all.borrow_mut().0, u64::from(copies), 1, waker));
                        return Poll::Pending;
                    };
                    result(&all, slot, &own).map_or(Poll::Pending, Poll::Ready)
                });
                assert_eq!(load.await, (Mark(Some(u64::from(copies))), None));
                done.set(done.get() + 1);
            });
        }
        executor.block_on(async {
            yield_now().await;
            {
                let posts = &mut all.borrow_mut().0;
                posts.came_back(FIRST);
                posts.came_back(SECOND);
                assert_eq!(posts.to_wake, [SECOND]);
            }
            yield_now().await;
            assert_eq!(done.get(), 1);
            wake(&all);
        });
        assert_eq!(done.get(), 2);
    }
}
