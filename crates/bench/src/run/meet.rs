//! Barriers: let tasks and threads wait for each other, on any fabric.

use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    task::{Poll, Waker},
};

use farleaf_fabric::{AnyEndpoint, Endpoint};

use super::error::BenchError;

/// Time between two checks of a barrier. Short, so that threads start together; a thread with nothing
/// else to do yields its processor meanwhile.
const BARRIER_NS: u64 = 20_000;

/// Brings a thread's tasks together: each hands in its result, one waits for all of them.
#[derive(Debug)]
pub(crate) struct Gather<T>(Rc<RefCell<Gathered<T>>>);

#[derive(Debug)]
struct Gathered<T> {
    results: Vec<T>,
    missing: usize,
    steps: u64,
    waker: Option<Waker>,
}

impl<T> Clone for Gather<T> {
    fn clone(&self) -> Self {
        Gather(Rc::clone(&self.0))
    }
}

impl<T> Gather<T> {
    /// For `tasks` tasks.
    pub(crate) fn new(tasks: usize) -> Self {
        let results = Vec::with_capacity(tasks);
        Gather(Rc::new(RefCell::new(Gathered { results, missing: tasks, steps: 0, waker: None })))
    }

    /// Reports `steps` more steps of a task.
    pub(crate) fn advance(&self, steps: u64) {
        self.change(|gathered| gathered.steps += steps);
    }

    /// Hands in a task's result.
    pub(crate) fn finish(&self, result: T) {
        self.change(|gathered| {
            gathered.results.push(result);
            gathered.missing -= 1;
        });
    }

    /// Changes the state and wakes the task that waits.
    fn change(&self, change: impl FnOnce(&mut Gathered<T>)) {
        let mut gathered = self.0.borrow_mut();
        change(&mut gathered);
        let waker = gathered.waker.take();
        drop(gathered);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for all tasks, and passes on their steps meanwhile.
    pub(crate) async fn all(&self, mut on_steps: impl FnMut(u64)) -> Vec<T> {
        poll_fn(|context| {
            let mut gathered = self.0.borrow_mut();
            let steps = std::mem::take(&mut gathered.steps);
            let done = (gathered.missing == 0).then(|| std::mem::take(&mut gathered.results));
            gathered.waker = Some(context.waker().clone());
            drop(gathered);
            if steps > 0 {
                on_steps(steps);
            }
            done.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// A barrier that opens when every thread has arrived, several times in a row.
#[derive(Debug)]
pub(crate) struct PhaseBarrier {
    threads: usize,
    arrived: AtomicUsize,
    aborted: AtomicBool,
}

impl PhaseBarrier {
    /// For `threads` threads.
    pub(crate) fn new(threads: usize) -> Self {
        PhaseBarrier { threads, arrived: AtomicUsize::new(0), aborted: AtomicBool::new(false) }
    }

    /// Waits until all threads have come for the `turn`-th time, counting from 1. The thread's
    /// other tasks go on meanwhile: another thread may wait for a lock of theirs.
    ///
    /// # Errors
    /// [`BenchError::Aborted`] if a thread has given up.
    pub(crate) async fn pass(&self, endpoint: &AnyEndpoint, turn: usize) -> Result<(), BenchError> {
        self.arrived.fetch_add(1, SeqCst);
        while self.arrived.load(SeqCst) < self.threads * turn {
            self.check()?;
            endpoint.sleep(BARRIER_NS).await;
        }
        self.check()
    }

    /// # Errors
    /// [`BenchError::Aborted`] if a thread has given up.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.aborted.load(SeqCst) { Err(BenchError::Aborted) } else { Ok(()) }
    }

    /// Returns a guard that tells all others that this thread gives up, unless [`Promise::keep`] is
    /// called.
    pub(crate) fn promise(&self) -> Promise<'_> {
        Promise { barrier: self, kept: false }
    }
}

/// See [`PhaseBarrier::promise`].
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    barrier: &'a PhaseBarrier,
    kept: bool,
}

impl Promise<'_> {
    /// Marks that the thread has come to the last barrier.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.barrier.aborted.store(true, SeqCst);
        }
    }
}
