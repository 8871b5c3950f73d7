//! Detached tasks: run a change of several nodes to its end, although the caller drops its future.

use std::future::Future;
use std::pin::Pin;

use farleaf_pool::Session;

use crate::IndexError;

/// A task on its way to the executor. Boxed where it is made: each of the futures that it goes through would
/// else have room for all of it, and copy it.
pub type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Runs `task` on this thread to its end, and waits for it. `None` if it goes on for longer than the caller
/// waits; the session's next operation begins once the task is done. `kept` is dropped when it is done.
pub async fn run_to_end<T: 'static>(
    session: &Session,
    task: Task<T>,
    kept: impl Sized + 'static,
) -> Option<T> {
    let (sender, receiver) = crate::oneshot::channel();
    let hold = session.hold();
    session.spawn(async move |_| {
        let result = task.await;
        drop(kept);
        drop(hold);
        sender.send(result);
    });
    session.reliable().within(receiver).await
}

/// Errors for work that goes on for longer than its caller waits.
pub trait TimedOut {
    /// That; for work that has not changed any key.
    fn timed_out() -> Self;
}

impl TimedOut for () {
    fn timed_out() -> Self {}
}

impl<T, E: From<IndexError>> TimedOut for Result<T, E> {
    fn timed_out() -> Self {
        Err(unfinished_work("the operation").into())
    }
}

/// Runs `task` to its end whatever becomes of the caller, and waits for it; if it goes on for longer
/// than the caller waits, gives what `T` says about that.
pub fn detach<T: TimedOut + 'static>(
    session: &Session,
    task: impl Future<Output = T> + 'static,
) -> impl Future<Output = T> {
    let done = run_to_end(session, Box::pin(task), ());
    async { done.await.unwrap_or_else(T::timed_out) }
}

/// The error for work on which a task goes on when its caller waits no longer; it changes no key.
pub fn unfinished_work(what: &str) -> IndexError {
    IndexError::Unavailable(format!("{}: try again", takes_long(what)))
}

/// The error for a change of a key on which a task goes on when its caller waits no longer.
pub fn unfinished_change(what: &str) -> IndexError {
    IndexError::OutcomeUnknown(format!("{}; it goes on once it can", takes_long(what)))
}

fn takes_long(what: &str) -> String {
    format!(
        "{what} takes longer than it is waited for, as it does while a memory server cannot be reached"
    )
}
