//! Bridge: completes asyncio's futures when the store's have ended.
//!
//! One bridge for each event loop. A call polls its future once, which hands the work to a worker thread of the store.
//! When a future can go on, its waker notes its number and rings an eventfd, once for all that end together. The loop
//! watches the eventfd and calls [`Bridge::drain`], which polls them and completes asyncio's futures.
//!
//! - **INV-PYAIO-1** A waker takes no interpreter lock: a worker that completes operations never waits for Python.
//! - **INV-PYAIO-2** No wake-up is lost: a waker first notes the number and then signals; the loop first takes the signal back
//!   and then the numbers.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::raised;
use crate::held::Held;

/// Makes Python's object of a result, on the loop's thread.
type Answer = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Work = Pin<Box<dyn Future<Output = farleaf::Result<Answer>> + Send>>;

/// The event loop's side of the store's futures.
#[pyclass(frozen, weakref, module = "farleaf._native")]
pub(crate) struct Bridge {
    inner: Held<Inner>,
}

struct Inner {
    ready: Arc<ReadyTasks>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    next: u64,
    waiting: HashMap<u64, Task>,
}

/// A future of the store, and asyncio's that waits for it.
struct Task {
    work: Work,
    waker: Waker,
    waiter: Py<PyAny>,
}

/// Tells the loop which futures can go on.
struct ReadyTasks {
    numbers: Mutex<Vec<u64>>,
    is_signalled: AtomicBool,
    event: OwnedFd,
}

struct TaskWaker {
    ready: Arc<ReadyTasks>,
    number: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.ready.numbers).push(self.number);
        if !self.ready.is_signalled.swap(true, Ordering::SeqCst) {
            // A counter that is full wakes the loop all the same.
            let _ = rustix::io::write(&self.ready.event, &1_u64.to_ne_bytes());
        }
    }
}

impl ReadyTasks {
    /// Takes the signal back; returns the numbers.
    fn take(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        self.is_signalled.store(false, Ordering::SeqCst);
        std::mem::take(&mut *lock(&self.numbers))
    }
}

impl Bridge {
    /// Begins `work`, for whose result `waiter` (an `asyncio.Future` of this bridge's loop) waits.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        waiter: &Bound<'_, PyAny>,
        work: impl Future<Output = farleaf::Result<T>> + Send + 'static,
        answer: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<()> {
        let inner = self.inner.get(waiter.py())?;
        let work = Box::pin(async move {
            let told = work.await?;
            Ok::<Answer, farleaf::Error>(Box::new(move |py: Python<'_>| answer(py, told)))
        });
        let number = {
            let mut tasks = lock(&inner.tasks);
            tasks.next += 1;
            tasks.next
        };
        let waker = Waker::from(Arc::new(TaskWaker { ready: Arc::clone(&inner.ready), number }));
        inner.poll(waiter.py(), number, Task { work, waker, waiter: waiter.clone().unbind() })
    }
}

impl Inner {
    /// Polls a task; completes it, or keeps it until it is woken.
    fn poll(&self, py: Python<'_>, number: u64, mut task: Task) -> PyResult<()> {
        let waker = task.waker.clone();
        match task.work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                lock(&self.tasks).waiting.insert(number, task);
                Ok(())
            }
            Poll::Ready(result) => complete(py, &task.waiter, result),
        }
    }
}

/// Tells asyncio's future the result, unless it was cancelled.
fn complete(py: Python<'_>, waiter: &Py<PyAny>, result: farleaf::Result<Answer>) -> PyResult<()> {
    let waiter = waiter.bind(py);
    if waiter.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    let result = result.map_err(|error| raised(py, &error)).and_then(|answer| answer(py));
    match result {
        Ok(answer) => waiter.call_method1("set_result", (answer,))?,
        Err(error) => waiter.call_method1("set_exception", (error,))?,
    };
    Ok(())
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                PyOSError::new_err((error.raw_os_error(), "cannot make an eventfd"))
            })?;
        let ready = ReadyTasks { numbers: Mutex::default(), is_signalled: false.into(), event };
        Ok(Bridge { inner: Held::new(Inner { ready: Arc::new(ready), tasks: Mutex::default() }) })
    }

    /// The descriptor that the loop watches for reading.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.inner.get(py)?.ready.event.as_raw_fd())
    }

    /// Completes what has ended.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get(py)?;
        for number in inner.ready.take() {
            let task = lock(&inner.tasks).waiting.remove(&number);
            if let Some(task) = task
                && let Err(error) = inner.poll(py, number, task)
            {
                // One future's callbacks must not keep the others waiting.
                error.write_unraisable(py, None);
            }
        }
        Ok(())
    }

    /// Operations that have not ended.
    fn pending(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(lock(&self.inner.get(py)?.tasks).waiting.len())
    }
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
