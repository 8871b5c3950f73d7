//! Workers: threads that run the calls of the async API.
//!
//! - **INV-WORK-1** A job that a worker has begun runs to its end, whatever becomes of the future
//!   that asked for it.
//! - **INV-WORK-2** Closing takes no more jobs, ends those that were taken, and joins the threads.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use async_channel::{Receiver, Sender};
use farleaf_fabric::yield_now;
use farleaf_index::sync::lock;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::thread_context::ThreadContext;

/// Jobs that a worker has in flight at once, at most.
const IN_FLIGHT_MAX: usize = 32;
/// Jobs that wait for a worker, at most; whoever asks for more waits.
const QUEUE_MAX: usize = 1024;

/// Makes the future of a job, on the worker's thread.
type WorkerJob = Box<dyn FnOnce(Rc<ThreadContext>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The workers of a store; started by the first job.
#[derive(Debug)]
pub(crate) struct Workers {
    count: usize,
    state: Mutex<WorkerState>,
}

#[derive(Debug)]
enum WorkerState {
    Asleep,
    Running { jobs: Sender<WorkerJob>, threads: Vec<JoinHandle<()>> },
    Closed,
}

impl Workers {
    pub(crate) fn new(count: usize) -> Self {
        Workers { count, state: Mutex::new(WorkerState::Asleep) }
    }

    /// Has a worker do `op` and waits for its result. Nothing happens before the first poll;
    /// dropped afterwards, `op` may happen or not.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        core: &Arc<Core>,
        op: impl AsyncFnOnce(&ThreadContext) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let jobs = self.start(core)?;
        let (reply, result) = async_channel::bounded(1);
        let job: WorkerJob = Box::new(move |context| {
            Box::pin(async move {
                // Nobody may be left who waits for it.
                let _ = reply.try_send(op(&context).await);
            })
        });
        jobs.send(job).await.map_err(|_| self.gone())?;
        result.recv().await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Ends the workers when they have done what was asked of them.
    pub(crate) fn close(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), WorkerState::Closed);
        if let WorkerState::Running { jobs, threads } = state {
            jobs.close();
            // The caller is a worker if it was a waker's drop that dropped the last handle.
            let others =
                threads.into_iter().filter(|it| it.thread().id() != thread::current().id());
            for thread in others {
                // One that panicked has said so.
                let _ = thread.join();
            }
        }
    }

    fn start(&self, core: &Arc<Core>) -> Result<Sender<WorkerJob>> {
        let mut state = lock(&self.state);
        match &*state {
            WorkerState::Running { jobs, .. } => return Ok(jobs.clone()),
            WorkerState::Closed => return Err(Error::closed()),
            WorkerState::Asleep => {}
        }
        let (jobs, queue) = async_channel::bounded(QUEUE_MAX);
        let mut threads = Vec::with_capacity(self.count);
        for number in 0..self.count {
            let (started, has_started) = mpsc::channel();
            let (core, queue) = (Arc::clone(core), queue.clone());
            let thread = thread::Builder::new()
                .name(format!("farleaf-async-{number}"))
                .spawn(move || work(&core, queue, &started))
                .map_err(|source| Error::io("cannot start a worker thread", source))?;
            threads.push(thread);
            has_started.recv().unwrap_or_else(|_| Err(self.gone()))?;
        }
        *state = WorkerState::Running { jobs: jobs.clone(), threads };
        Ok(jobs)
    }

    #[cold]
    fn gone(&self) -> Error {
        match self.state.try_lock().as_deref() {
            Ok(WorkerState::Closed) => Error::closed(),
            _ => Error::new(ErrorKind::Internal, "a worker thread ended by a panic"),
        }
    }
}

/// A worker's life: as many tasks as jobs may be in flight, each of which takes the next job when
/// it has done one.
fn work(core: &Arc<Core>, queue: Receiver<WorkerJob>, started: &mpsc::Sender<Result<()>>) {
    let context = match ThreadContext::new(core) {
        Ok(context) => Rc::new(context),
        Err(error) => {
            // The thread that waits for this reports it.
            let _ = started.send(Err(error));
            return;
        }
    };
    // As above.
    let _ = started.send(Ok(()));
    let executor = context.endpoint().executor().clone();
    for _ in 0..IN_FLIGHT_MAX {
        let (context, queue) = (Rc::clone(&context), queue.clone());
        executor.spawn(async move {
            while let Ok(job) = queue.recv().await {
                context.count_job();
                job(Rc::clone(&context)).await;
                // Work that the job left (a split of a node) comes before the next one.
                yield_now().await;
            }
        });
    }
    drop(queue);
    executor.block_on(async {});
}
