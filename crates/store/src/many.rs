//! Batches: run many operations of one thread at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use farleaf_fabric::Endpoint;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::error::Result;
use crate::thread_context::{Session, ThreadContext};

/// Operations of one call that are in flight at once, at most.
pub(crate) const IN_FLIGHT_MAX: usize = 32;

/// Does `op` for every number below `count`, several at a time, each on a session of its own. Where
/// operations wait, those that are in flight together are of numbers far apart: neighbours are often
/// neighbours in the table, too, and would wait for each other's locks.
///
/// A wake-up polls the operation that it is for, and no other. After the first failure nothing more is
/// begun; what is in flight ends, and the failure is returned. On a fabric where nothing waits this makes
/// one future and uses one session.
pub(crate) async fn for_each(
    context: &ThreadContext,
    count: usize,
    op: impl AsyncFn(&Session, usize) -> Result<()>,
) -> Result<()> {
    let next = Cell::new(0);
    let stop = Cell::new(false);
    // Operations that cannot be lost on their way do not wait.
    let waits = context.endpoint().is_lossy();
    let clients_begun = Cell::new(0);
    let clients_most = Cell::new(IN_FLIGHT_MAX);
    let client = || async {
        // Before it waits: others begin meanwhile, and only the first may not do without.
        let begun = clients_begun.replace(clients_begun.get() + 1);
        let session = if begun == 0 {
            context.session().await?
        } else if let Some(session) = context.spare_session().await {
            session
        } else {
            // No session can be spared: those that there are will do.
            clients_begun.set(clients_begun.get() - 1);
            clients_most.set(clients_begun.get());
            return Ok(());
        };
        while next.get() < count && !stop.get() {
            let number = next.replace(next.get() + 1);
            op(&session, if waits { spread(number, count) } else { number }).await?;
            session.count_op().await;
        }
        Ok(())
    };
    let may_begin =
        |clients: usize| clients < clients_most.get() && next.get() < count && !stop.get();
    let mut clients = FuturesUnordered::new();
    let mut result = Ok(());
    poll_fn(|context| {
        loop {
            let begins = may_begin(clients.len());
            if begins {
                clients.push(client());
            }
            match clients.poll_next_unpin(context) {
                Poll::Ready(Some(ended)) => {
                    if ended.is_err() && !stop.replace(true) {
                        result = ended;
                    }
                }
                Poll::Ready(None) => return Poll::Ready(()),
                // One client more may begin beside those that wait.
                Poll::Pending if begins => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    drop(clients);
    result
}

/// The numbers below `count` in another order: dealt to [`IN_FLIGHT_MAX`] equal stretches in turn.
fn spread(number: usize, count: usize) -> usize {
    let (stretch, at) = (number % IN_FLIGHT_MAX, number / IN_FLIGHT_MAX);
    let (length, longer) = (count / IN_FLIGHT_MAX, count % IN_FLIGHT_MAX);
    stretch * length + stretch.min(longer) + at
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use farleaf_fabric::yield_now;

    use super::*;
    use crate::error::Error;
    use crate::store::Farleaf;

    fn run<T>(op: impl AsyncFnOnce(&ThreadContext) -> T) -> T {
        let db = Farleaf::builder().pool_bytes(256 << 20).open("mem:").unwrap();
        ThreadContext::run(db.core(), async |context| Ok(op(context).await)).unwrap()
    }

    #[test]
    fn what_waits_overlaps_within_the_bound_and_is_done_once() {
        let in_flight = Cell::new(0);
        let in_flight_most = Cell::new(0);
        let done = RefCell::new(vec![0; 200]);
        run(async |context| {
            for_each(context, 200, async |_, at| {
                in_flight.set(in_flight.get() + 1);
                in_flight_most.set(in_flight.get().max(in_flight_most.get()));
                for _ in 0..at % 5 {
                    yield_now().await;
                }
                in_flight.set(in_flight.get() - 1);
                done.borrow_mut()[at] += 1;
                Ok(())
            })
            .await
        })
        .unwrap();
        assert_eq!(in_flight_most.get(), IN_FLIGHT_MAX);
        assert_eq!(*done.borrow(), [1; 200]);
    }

    #[test]
    fn all_numbers_come_once_and_those_together_are_far_apart() {
        for count in [0, 1, 31, 32, 33, 63, 64, 65, 1000] {
            let order: Vec<usize> = (0..count).map(|number| spread(number, count)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
            for together in order.chunks(IN_FLIGHT_MAX) {
                let apart = together.windows(2).map(|pair| pair[1] - pair[0]).min();
                assert!(apart.is_none_or(|apart| apart >= count / IN_FLIGHT_MAX), "{count}");
            }
        }
    }

    /// Every wake-up polled all operations in flight: 32 that ended one after the other took 500 polls.
    #[test]
    fn a_wake_up_polls_its_own_operation_alone() {
        let polls = Cell::new(0);
        let wakers = RefCell::new(std::collections::VecDeque::new());
        let ended = Cell::new(0);
        run(async |context| {
            let all = for_each(context, IN_FLIGHT_MAX, async |_, _| {
                let mut is_first = true;
                poll_fn(|context| {
                    polls.set(polls.get() + 1);
                    if std::mem::take(&mut is_first) {
                        wakers.borrow_mut().push_back(context.waker().clone());
                        return Poll::Pending;
                    }
                    ended.set(ended.get() + 1);
                    Poll::Ready(())
                })
                .await;
                Ok(())
            });
            let wake_one_by_one = async {
                while ended.get() < IN_FLIGHT_MAX {
                    let first = wakers.borrow_mut().pop_front();
                    if let Some(waker) = first {
                        waker.wake();
                    }
                    yield_now().await;
                }
            };
            futures_util::future::join(all, wake_one_by_one).await.0
        })
        .unwrap();
        assert_eq!((polls.get(), ended.get()), (2 * IN_FLIGHT_MAX, IN_FLIGHT_MAX));
    }

    #[test]
    fn what_does_not_wait_takes_one_session() {
        let sessions = run(async |context| {
            for_each(context, 100, async |_, _| Ok(())).await.unwrap();
            context.idle_sessions()
        });
        assert_eq!(sessions, 1);
    }

    #[test]
    fn the_first_failure_ends_it_when_what_is_in_flight_has_ended() {
        let (begun, ended) = (Cell::new(0), Cell::new(0));
        let result = run(async |context| {
            for_each(context, 1000, async |_, at| {
                begun.set(begun.get() + 1);
                yield_now().await;
                ended.set(ended.get() + 1);
                if at >= 40 { Err(Error::invalid(at.to_string())) } else { Ok(()) }
            })
            .await
        });
        assert_eq!(result.unwrap_err().to_string(), "40");
        assert_eq!(begun.get(), ended.get());
        assert!(begun.get() <= 40 + IN_FLIGHT_MAX);
    }
}
