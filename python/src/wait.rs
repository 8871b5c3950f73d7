//! Wait: waits for a future of the store, and lets Ctrl-C end the wait.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::error::raised;

/// Time between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The result of `future`, without the interpreter lock. A signal whose handler raises drops the future: the chunk under
/// way ends, and none begins after it.
///
/// # Errors
/// The future's, and the handler's.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = farleaf::Result<T>> + Send,
) -> PyResult<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        let polled = py.detach(|| poll_for(future.as_mut(), &waker));
        match polled {
            Poll::Ready(result) => return result.map_err(|error| raised(py, &error)),
            Poll::Pending => py.check_signals()?,
        }
    }
}

/// Polls `future` for as long as [`LOOK_EVERY`].
fn poll_for<T>(mut future: Pin<&mut impl Future<Output = T>>, waker: &Waker) -> Poll<T> {
    let deadline = Instant::now() + LOOK_EVERY;
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(waker));
        let rest = deadline.saturating_duration_since(Instant::now());
        if polled.is_ready() || rest.is_zero() {
            return polled;
        }
        thread::park_timeout(rest);
    }
}
