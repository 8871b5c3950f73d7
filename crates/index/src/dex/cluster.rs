//! Compute servers of one process: requests go from one to the other over queues.
//!
//! Each compute server has a *desk*: a queue of requests, and tasks of its own that answer them one at a
//! time, each with a session ([`Cluster::serve`]). Nothing here is of one thread: on mapped memory
//! desks serve between threads, and in the simulator all follows from the seed.
//!
//! - `INV-DEX-DESK-1` A request is taken from its queue once. What is answered for it when its taker is
//!   gone says whether it had been begun.
//! - `INV-DEX-DESK-2` A desk at which nobody serves has an empty queue, and takes nothing in.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use farleaf_fabric::{Endpoint, Incarnation};
use farleaf_pool::Session;

use super::Dex;
use super::forward::{Forward, Replied, Reply, Request, WrongOwner};
use crate::IndexError;
use crate::sync::{Mutex, lock};

/// How often who serves a desk ticks, and looks up from it.
const TICK_NS: u64 = 100_000;

type Outcome = Result<Reply, IndexError>;

/// The compute servers of one process that work on one table. See the module's page (`cluster`).
#[derive(Debug, Default)]
pub struct Cluster {
    latency_ns: u64,
    desks: Mutex<BTreeMap<u64, Arc<Desk>>>,
}

#[derive(Debug, Default)]
struct Desk(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    letters: VecDeque<Letter>,
    /// Who waits for a letter.
    idle: Vec<Waker>,
    /// Tasks that serve.
    servers: usize,
    leaving: bool,
}

#[derive(Debug)]
struct Letter {
    request: Request,
    answer: Answer,
}

/// Where an answer is left.
#[derive(Debug, Default)]
struct Slot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    /// Nobody waits for it any more.
    abandoned: bool,
}

/// The duty to answer. Dropped, it answers what is known then.
#[derive(Debug)]
struct Answer {
    slot: Option<Arc<Mutex<Slot>>>,
    is_change: bool,
    begun: bool,
}

impl Answer {
    fn is_wanted(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| !lock(slot).abandoned)
    }

    fn give(&mut self, outcome: Outcome) {
        let Some(slot) = self.slot.take() else { return };
        let waker = {
            let mut slot = lock(&slot);
            slot.outcome = Some(outcome);
            slot.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.begun && self.is_change {
            self.give(Err(IndexError::OutcomeUnknown(
                "the key's owner went away in the middle of the operation".into(),
            )));
        } else {
            self.give(Ok(Reply::Gone));
        }
    }
}

/// The wait for an answer.
struct Waiting(Arc<Mutex<Slot>>);

impl Future for Waiting {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut slot = lock(&self.0);
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).abandoned = true;
    }
}

/// A task that serves a desk. Dropped, it has stood up; the last one clears the desk.
struct Seat {
    desk: Arc<Desk>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let letters = {
            let mut queue = lock(&self.desk.0);
            queue.servers -= 1;
            if queue.servers == 0 { std::mem::take(&mut queue.letters) } else { VecDeque::new() }
        };
        // Each is answered when it is dropped, without the lock.
        drop(letters);
    }
}

impl Seat {
    /// The next letter; `None` once the desk is closed.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Letter>> {
        let mut queue = lock(&self.desk.0);
        if queue.leaving {
            return Poll::Ready(None);
        }
        match queue.letters.pop_front() {
            Some(letter) => Poll::Ready(Some(letter)),
            None => {
                if !queue.idle.iter().any(|waker| waker.will_wake(context.waker())) {
                    queue.idle.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Cluster {
    /// One in which a message takes `latency_ns`, one way.
    pub fn new(latency_ns: u64) -> Arc<Self> {
        Arc::new(Cluster { latency_ns, ..Cluster::default() })
    }

    fn desk(&self, who: Incarnation) -> Arc<Desk> {
        Arc::clone(lock(&self.desks).entry(who.0).or_default())
    }

    /// Answers what is sent to this compute server, one request at a time, until
    /// [`Cluster::leave`]. Run in some tasks, each with a session of its own; one that gives a range
    /// away is busy that long, so there should be two or more. Ticks the session. It takes requests in
    /// from this call on, before it is polled.
    ///
    /// # Errors
    /// Those of the session's ticks: this compute server has been cut off.
    pub fn serve<E: Endpoint>(
        &self,
        dex: Dex,
        session: Session<E>,
    ) -> impl Future<Output = Result<(), IndexError>> + use<E> {
        let desk = self.desk(session.endpoint().incarnation());
        {
            let mut queue = lock(&desk.0);
            queue.leaving = false;
            queue.servers += 1;
        }
        Cluster::answer(Seat { desk }, dex, session)
    }

    async fn answer<E: Endpoint>(
        seat: Seat,
        dex: Dex,
        session: Session<E>,
    ) -> Result<(), IndexError> {
        let endpoint = session.endpoint();
        let mut ticked_ns = endpoint.now_ns();
        loop {
            let mut pause = pin!(endpoint.sleep(TICK_NS));
            let next = std::future::poll_fn(|context| match seat.poll_next(context) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending => pause.as_mut().poll(context).map(|()| None),
            });
            match next.await {
                None => {}
                Some(None) => return Ok(()),
                Some(Some(Letter { request, mut answer })) if answer.is_wanted() => {
                    answer.begun = true;
                    let outcome = dex.serve(&session, request).await;
                    answer.give(outcome);
                }
                // Its sender has gone away.
                Some(Some(_)) => {}
            }
            if endpoint.now_ns() - ticked_ns >= TICK_NS {
                session.tick().await?;
                ticked_ns = endpoint.now_ns();
            }
        }
    }

    /// A compute server serves no more: its tasks end when they have answered what they are at, and
    /// what has not been begun is answered [`Reply::Gone`].
    pub fn leave(&self, who: Incarnation) {
        let desk = self.desk(who);
        let (letters, idle) = {
            let mut queue = lock(&desk.0);
            queue.leaving = true;
            (std::mem::take(&mut queue.letters), std::mem::take(&mut queue.idle))
        };
        drop(letters);
        idle.into_iter().for_each(Waker::wake);
    }

    /// Who serves at the moment.
    pub fn members(&self) -> Vec<Incarnation> {
        let desks = lock(&self.desks);
        let serving = desks.iter().filter(|(_, desk)| {
            let queue = lock(&desk.0);
            queue.servers > 0 && !queue.leaving
        });
        serving.map(|(who, _)| Incarnation(*who)).collect()
    }
}

impl Forward for Cluster {
    fn forward(&self, to: WrongOwner, request: Request) -> Replied {
        let desk = to.owner.and_then(|owner| lock(&self.desks).get(&owner.0).map(Arc::clone));
        let Some(desk) = desk else { return Box::pin(std::future::ready(Ok(Reply::Gone))) };
        let slot = Arc::new(Mutex::new(Slot::default()));
        let is_change = !request.is_read();
        let answer = Answer { slot: Some(Arc::clone(&slot)), is_change, begun: false };
        let idle = {
            let mut queue = lock(&desk.0);
            if queue.servers == 0 || queue.leaving {
                return Box::pin(std::future::ready(Ok(Reply::Gone)));
            }
            queue.letters.push_back(Letter { request, answer });
            std::mem::take(&mut queue.idle)
        };
        idle.into_iter().for_each(Waker::wake);
        Box::pin(Waiting(slot))
    }

    fn latency_ns(&self) -> u64 {
        self.latency_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(waiting: &mut Replied) -> Poll<Outcome> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn sit(cluster: &Cluster, who: u64) -> Seat {
        let desk = cluster.desk(Incarnation(who));
        lock(&desk.0).servers += 1;
        Seat { desk }
    }

    fn to(who: u64) -> WrongOwner {
        WrongOwner { partition: 0, owner: Some(Incarnation(who)), epoch: 1 }
    }

    fn put() -> Request {
        Request::Upsert { key: vec![1], value: vec![2] }
    }

    fn take(seat: &Seat) -> Letter {
        match seat.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(letter)) => letter,
            other => panic!("no letter: {other:?}"),
        }
    }

    #[test]
    fn what_was_not_begun_says_so_and_what_was_does_not() {
        let cluster = Cluster::new(0);
        assert_eq!(poll(&mut cluster.forward(to(5), put())), Poll::Ready(Ok(Reply::Gone)));
        let seat = sit(&cluster, 5);
        assert_eq!(cluster.members(), [Incarnation(5)]);
        let mut replies: Vec<Replied> = (0..4).map(|_| cluster.forward(to(5), put())).collect();
        let mut read = cluster.forward(to(5), Request::Get { key: vec![1] });
        assert!(replies.iter_mut().all(|reply| poll(reply).is_pending()));
        let mut answered = take(&seat);
        answered.answer.give(Ok(Reply::Done(true)));
        // The second is begun, and the third's sender goes away before it is.
        let mut begun = take(&seat);
        begun.answer.begun = true;
        drop(replies.remove(2));
        assert!(!take(&seat).answer.is_wanted());
        drop(begun);
        drop(seat);
        assert_eq!(poll(&mut replies[0]), Poll::Ready(Ok(Reply::Done(true))));
        let lost = poll(&mut replies[1]);
        assert!(matches!(lost, Poll::Ready(Err(IndexError::OutcomeUnknown(_)))), "{lost:?}");
        assert_eq!(poll(&mut replies[2]), Poll::Ready(Ok(Reply::Gone)));
        assert_eq!(poll(&mut read), Poll::Ready(Ok(Reply::Gone)));
        assert_eq!(cluster.members(), []);
    }
}
