//! Detached tasks: run a change of several nodes to its end, although the caller drops its future.

use std::future::Future;
use std::pin::Pin;

use farleaf_pool::Session;

/// A task on its way to the executor. Boxed where it is made: each of the futures that it goes through would
/// else have room for all of it, and copy it.
pub(crate) type Task<T> = Pin<Box<dyn Future<Output = T>>>;

/// Runs `task` on this thread to its end, and waits for it. `None` if it goes on for longer than the caller
/// waits: then a memory server cannot be reached, and the session's next operation begins once the task is
/// done. `kept` is dropped when it is done.
pub(crate) async fn run_to_end<T: 'static>(
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
