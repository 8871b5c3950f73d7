//! Join: runs futures of one task together, or one for a time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use farleaf_fabric::{AnyEndpoint, Endpoint};

/// Polls both futures until both have ended; so they post their remote operations side by side.
pub async fn join<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut of_first, mut of_second) = (None, None);
    poll_fn(|context| {
        if of_first.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            of_first = Some(output);
        }
        if of_second.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            of_second = Some(output);
        }
        match (of_first.take(), of_second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (of_first, of_second) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// Polls all futures until each has ended; so they post their remote operations side by side.
pub async fn join_all<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    poll_fn(|context| {
        for (one, output) in &mut all {
            if output.is_none()
                && let Poll::Ready(ready) = one.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if all.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// The outcome of `work`, if that comes within `ns`.
pub(crate) async fn within<F: Future>(
    endpoint: &AnyEndpoint,
    mut work: Pin<&mut F>,
    ns: u64,
) -> Option<F::Output> {
    let mut pause = pin!(endpoint.sleep(ns));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => pause.as_mut().poll(context).map(|()| None),
    })
    .await
}
