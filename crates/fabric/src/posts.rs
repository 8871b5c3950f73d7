//! What a thread has posted and has not taken back, and who waits for it.
//!
//! - **INV-POST-1** A slot is given back exactly once: by the future that takes its result, or, if that was
//!   dropped, when the last part has come back. Until then it owns the buffers (F7).
//! - **INV-POST-2** No waker is called or dropped while anything here is borrowed: it may drop a task, and
//!   with it futures that come back here. For a task of the own executor, which are most, a slot keeps the
//!   number instead; making that ready runs nothing.

use std::cell::{OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::post::Load;
use crate::tasks::Ready;
use crate::{Buf, Executor, Op, OpError};

/// The number of no task.
pub(crate) const NO_TASK: u32 = u32::MAX;

/// What a slot holds.
pub(crate) trait Kept {
    /// What is put into it, and taken out.
    type Load: Load;

    /// Holds nothing.
    fn empty() -> Self;

    /// Puts a load where there is none.
    fn put(&mut self, load: Self::Load);

    /// Takes the load.
    fn take(&mut self) -> Self::Load;
}

/// One post.
#[derive(Debug)]
pub(crate) struct Slot<K> {
    pub(crate) kept: K,
    /// Parts that have not come back.
    pub(crate) missing: u32,
    pub(crate) error: Option<OpError>,
    /// The task that waits, or waited last; [`NO_TASK`] if it is somebody else.
    task: u32,
    /// That one's waker.
    waker: Option<Waker>,
    /// Its future is gone.
    pub(crate) abandoned: bool,
}

/// All posts whose futures have not taken their results.
#[derive(Debug)]
pub(crate) struct Posts<K> {
    slots: Vec<Slot<K>>,
    free: Vec<u32>,
    /// Tasks that are to be made ready.
    ready: Vec<u32>,
    /// Slots of others who are to be woken.
    to_wake: Vec<u32>,
}

/// What a transport changes together, with its posts in it.
pub(crate) trait Table {
    type Kept: Kept;

    fn posts(&mut self) -> &mut Posts<Self::Kept>;
}

/// The executor whose tasks post, mostly.
#[derive(Default)]
pub(crate) struct Poster(OnceCell<Rc<Ready>>);

impl Poster {
    /// The first call counts.
    pub(crate) fn belongs_to(&self, executor: &Executor) {
        self.0.get_or_init(|| executor.ready());
    }

    /// The task that `context` is of, if it is one of the executor, or [`NO_TASK`].
    #[inline(always)]
    pub(crate) fn task_of(&self, context: &Context<'_>) -> u32 {
        let task = self.0.get().and_then(|ready| ready.polled(context.waker()));
        task.unwrap_or(NO_TASK)
    }

    /// Makes the tasks ready, and calls the wakers of the slots, that have gathered.
    pub(crate) fn wake<T: Table>(&self, table: &RefCell<T>) {
        let mut all = table.borrow_mut();
        let posts = all.posts();
        if let Some(ready) = self.0.get() {
            ready.push_all(posts.ready.drain(..));
        }
        if posts.to_wake.is_empty() {
            return;
        }
        let mut slots = std::mem::take(&mut posts.to_wake);
        for slot in slots.drain(..) {
            // Not in its slot while it is called (INV-POST-2).
            let Some(waker) = all.posts().slot(slot).waker.take() else { continue };
            drop(all);
            waker.wake_by_ref();
            all = table.borrow_mut();
            let after = all.posts().slot(slot).waker.replace(waker);
            if let Some(after) = after {
                // Somebody else waits there by now.
                let before = all.posts().slot(slot).waker.replace(after);
                drop(all);
                drop(before);
                all = table.borrow_mut();
            }
        }
        // What a waker has brought about gathers anew, and is called by the next call of this.
        let posts = all.posts();
        if posts.to_wake.is_empty() {
            posts.to_wake = slots;
        }
    }

    /// The table, if the slot's post has come back; else whoever polls will be woken.
    #[inline(always)]
    fn finished<'a, T: Table>(
        &self,
        table: &'a RefCell<T>,
        index: u32,
        context: &Context<'_>,
    ) -> Option<RefMut<'a, T>> {
        let mut all = table.borrow_mut();
        let slot = all.posts().slot(index);
        if slot.missing == 0 {
            return Some(all);
        }
        let before = slot.wait(self.task_of(context), context.waker());
        drop(all);
        drop(before);
        None
    }

    /// What has come back, if it has, and its error: the slot is given back.
    #[inline(always)]
    pub(crate) fn result<T: Table>(
        &self,
        table: &RefCell<T>,
        index: u32,
        context: &Context<'_>,
    ) -> Option<(<T::Kept as Kept>::Load, Option<OpError>)> {
        let mut all = self.finished(table, index, context)?;
        Some(all.posts().take(index))
    }

    /// As [`Poster::result`], of a READ or WRITE: its buffer, or none if it failed. Then the slot is given
    /// back by [`take_error`].
    #[inline(always)]
    pub(crate) fn buf<T: Table>(
        &self,
        table: &RefCell<T>,
        index: u32,
        context: &Context<'_>,
    ) -> Option<Option<Buf>> {
        let mut all = self.finished(table, index, context)?;
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
}

/// The error of a slot that has one, and the slot is given back.
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

impl<K: Kept> Slot<K> {
    /// `task`, or who has `waker`, waits; gives the waker that does not any more.
    #[inline(always)]
    fn wait(&mut self, task: u32, waker: &Waker) -> Option<Waker> {
        self.task = task;
        match &self.waker {
            _ if task != NO_TASK => None,
            Some(own) if own.will_wake(waker) => None,
            _ => self.waker.replace(waker.clone()),
        }
    }
}

impl<K: Kept> Posts<K> {
    /// The slot of that number.
    #[inline(always)]
    pub(crate) fn slot(&mut self, index: u32) -> &mut Slot<K> {
        &mut self.slots[index as usize]
    }

    /// A slot without anything in it, for which `task`, or who has `waker`, waits, and the waker that was
    /// there.
    #[inline(always)]
    pub(crate) fn open(&mut self, task: u32, waker: &Waker) -> (u32, Option<Waker>) {
        let index = self.free.pop().unwrap_or_else(|| self.add());
        let slot = self.slot(index);
        (slot.missing, slot.abandoned) = (0, false);
        (index, slot.wait(task, waker))
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let (task, waker) = (NO_TASK, None);
        let slot =
            Slot { kept: K::empty(), missing: 0, error: None, task, waker, abandoned: false };
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    /// Gives a slot back; what has come back, and the error.
    #[inline(always)]
    pub(crate) fn take(&mut self, index: u32) -> (K::Load, Option<OpError>) {
        let slot = self.slot(index);
        let taken = (slot.kept.take(), slot.error.take());
        self.free.push(index);
        taken
    }

    /// The future of a post is gone: what it leaves, to be dropped when nothing is borrowed.
    pub(crate) fn abandon(&mut self, index: u32) -> (Option<Waker>, Option<K::Load>) {
        let slot = self.slot(index);
        let waker = slot.waker.take();
        slot.abandoned = true;
        let is_done = slot.missing == 0;
        (waker, is_done.then(|| self.take(index).0))
    }

    /// One part of a post has come back.
    #[inline(always)]
    pub(crate) fn came_back(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.missing -= 1;
        if slot.missing > 0 {
            return;
        }
        if slot.abandoned {
            drop(self.take(index));
            return;
        }
        self.has_come(index);
    }

    /// One part of a post has failed.
    pub(crate) fn failed(&mut self, index: u32, error: OpError) {
        self.slot(index).error.get_or_insert(error);
        self.came_back(index);
    }

    /// Who waits for a slot is to go on.
    #[inline]
    pub(crate) fn has_come(&mut self, index: u32) {
        match self.slot(index).task {
            NO_TASK => self.to_wake.push(index),
            task => self.ready.push(task),
        }
    }

    /// Whether [`Poster::wake`] has anything to do.
    #[inline]
    pub(crate) fn wakes(&self) -> bool {
        !self.ready.is_empty() || !self.to_wake.is_empty()
    }
}

impl<K> Default for Posts<K> {
    fn default() -> Self {
        Posts { slots: Vec::new(), free: Vec::new(), ready: Vec::new(), to_wake: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;
    use crate::Ops;

    #[derive(Debug, PartialEq)]
    struct Mark(Option<u64>);

    impl Load for Mark {
        const EMPTY: Self = Mark(None);

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

        fn empty() -> Self {
            Mark(None)
        }

        fn put(&mut self, load: Mark) {
            assert_eq!(std::mem::replace(self, load), Mark::EMPTY);
        }

        fn take(&mut self) -> Mark {
            std::mem::replace(self, Mark(None))
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
        let (index, before) = posts.open(NO_TASK, waker);
        assert!(before.is_none(), "its waker was taken");
        posts.slot(index).kept.put(Mark(Some(mark)));
        posts.slot(index).missing = parts;
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

    /// Whose post is given up by the other's waker.
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
        let poster = Poster::default();
        ALL.with(|all| {
            {
                let posts = &mut all.borrow_mut().0;
                assert_eq!(post(posts, 1, 1, &own), FIRST);
                assert_eq!(post(posts, 2, 1, Waker::noop()), SECOND);
                posts.came_back(FIRST);
                posts.came_back(SECOND);
                assert!(posts.wakes());
            }
            poster.wake(all);
            let posts = &mut all.borrow_mut().0;
            assert!(!posts.wakes());
            assert_eq!(posts.slot(SECOND).kept, Mark(None));
            assert_eq!(posts.take(FIRST), (Mark(Some(1)), None));
            assert_eq!(posts.free, [SECOND, FIRST]);
        });
    }
}
