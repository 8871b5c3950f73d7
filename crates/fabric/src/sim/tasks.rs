//! Simulated tasks: polls the tasks of all threads one at a time, in the order of their wake-ups.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};

pub(super) use super::woken::Woken;

/// The number that stands for the future of `block_on`.
pub(super) const ROOT: u32 = u32::MAX;

pub(super) type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The waker of one task.
struct TaskWaker {
    woken: Arc<Woken>,
    task: u32,
    generation: u32,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.push(self.task, self.generation);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.push(self.task, self.generation);
    }
}

/// A waker for the task `task` in its life `generation`.
pub(super) fn waker(woken: &Arc<Woken>, task: u32, generation: u32) -> Waker {
    Waker::from(Arc::new(TaskWaker { woken: Arc::clone(woken), task, generation }))
}

/// A slot of the task list, for one task at a time.
struct TaskEntry {
    /// `None` while it is being polled, and when the slot is free.
    future: Option<TaskFuture>,
    waker: Rc<Waker>,
    /// Counts the tasks that have had this slot, so that late wake-ups of one miss the next.
    generation: u32,
    life: u32,
    live: bool,
    /// Woken while its server was stopped.
    parked: bool,
}

/// A task taken out to be polled.
pub(super) struct Taken {
    pub future: TaskFuture,
    pub waker: Rc<Waker>,
    pub generation: u32,
}

#[derive(Default)]
pub(super) struct SimTasks {
    list: Vec<TaskEntry>,
    free: Vec<u32>,
}

impl SimTasks {
    /// Adds a task of `life`; returns its number.
    pub(super) fn insert(&mut self, woken: &Arc<Woken>, life: u32, future: TaskFuture) -> u32 {
        let index = self.free.pop().unwrap_or(self.list.len() as u32);
        let generation = self.list.get(index as usize).map_or(0, |entry| entry.generation);
        let waker = Rc::new(waker(woken, index, generation));
        let future = Some(future);
        let entry = TaskEntry { future, waker, generation, life, live: true, parked: false };
        match self.list.get_mut(index as usize) {
            Some(place) => *place = entry,
            None => self.list.push(entry),
        }
        index
    }

    /// Returns whether `task` is still the task that the waker was made for.
    pub(super) fn is_current(&self, task: u32, generation: u32) -> bool {
        self.list.get(task as usize).is_some_and(|entry| entry.generation == generation)
    }

    /// The life that a task belongs to, if there is such a task.
    #[inline]
    pub(super) fn life(&self, task: u32) -> Option<u32> {
        self.list.get(task as usize).filter(|entry| entry.live).map(|entry| entry.life)
    }

    /// Remembers that a task of a stopped server was woken.
    pub(super) fn park(&mut self, task: u32) {
        self.list[task as usize].parked = true;
    }

    /// Returns the tasks of `life` that were woken meanwhile, in the order of their numbers.
    pub(super) fn unpark(&mut self, life: u32) -> Vec<u32> {
        let parked = self.list.iter_mut().enumerate();
        parked
            .filter(|(_, entry)| entry.live && entry.life == life)
            .filter_map(|(index, entry)| std::mem::take(&mut entry.parked).then_some(index as u32))
            .collect()
    }

    /// The waker of a task.
    #[inline]
    pub(super) fn waker(&self, task: u32) -> Option<&Waker> {
        self.list.get(task as usize).map(|entry| &*entry.waker)
    }

    /// Takes a task out to poll it.
    #[inline]
    pub(super) fn take(&mut self, task: u32) -> Option<Taken> {
        let entry = self.list.get_mut(task as usize)?;
        let future = entry.future.take()?;
        Some(Taken { future, waker: Rc::clone(&entry.waker), generation: entry.generation })
    }

    /// Puts an unfinished task back. Returns the future if the task has been killed meanwhile.
    #[inline]
    pub(super) fn put(&mut self, task: u32, taken: Taken) -> Option<TaskFuture> {
        let entry = &mut self.list[task as usize];
        if entry.generation != taken.generation {
            return Some(taken.future);
        }
        entry.future = Some(taken.future);
        None
    }

    /// A task is done, unless it has been killed meanwhile.
    pub(super) fn finish(&mut self, task: u32, generation: u32) {
        if self.list[task as usize].generation == generation {
            self.clear(task as usize);
        }
    }

    /// Takes out every task, or those of one life. The caller drops them without holding any
    /// borrow: their destructors may call back.
    pub(super) fn clear_all(&mut self, life: Option<u32>) -> Vec<TaskFuture> {
        let mut futures = Vec::new();
        for index in 0..self.list.len() {
            let entry = &mut self.list[index];
            if entry.live && life.is_none_or(|life| entry.life == life) {
                futures.extend(entry.future.take());
                self.clear(index);
            }
        }
        futures
    }

    fn clear(&mut self, index: usize) {
        let entry = &mut self.list[index];
        entry.live = false;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(index as u32);
    }

    /// Tasks of `life` that are not done.
    pub(super) fn len_of(&self, life: u32) -> usize {
        self.list.iter().filter(|entry| entry.live && entry.life == life).count()
    }

    /// Tasks that are not done.
    pub(super) fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }
}
