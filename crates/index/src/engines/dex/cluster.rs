//! Local cluster: passes requests between compute servers of one process over queues.
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
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use farleaf_fabric::{Endpoint, Incarnation};
use farleaf_pool::Session;

use super::Dex;
use super::answer::{Answer, promise};
use super::forward::{Forward, Replied, Reply, Request, WrongOwner};
use crate::IndexError;
use crate::sync::{Mutex, lock};

/// How often who serves a desk ticks, and looks up from it.
const TICK_NS: u64 = 100_000;
/// The same in real time.
const REAL_TICK_NS: u64 = 10_000_000;
/// Ticks after the last request before who serves in real time looks up no more until the next.
const QUIET_TICKS: u32 = 20;

/// The compute servers of one process that work on one table. See the module's page (`cluster`).
#[derive(Debug, Default)]
pub struct Cluster {
    latency_ns: u64,
    /// Those who serve rest when nothing happens, and leave a tick that failed to the next one.
    rests: bool,
    desks: Mutex<BTreeMap<u64, Arc<Mailbox>>>,
}

#[derive(Debug, Default)]
struct Mailbox(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    letters: VecDeque<Pending>,
    /// Who waits for a letter.
    idle: Vec<Waker>,
    /// Tasks that serve.
    servers: usize,
    leaving: bool,
}

#[derive(Debug)]
struct Pending {
    request: Request,
    answer: Answer,
}

/// A task that serves a desk. Dropped, it has stood up; the last one clears the desk.
struct Worker {
    desk: Arc<Mailbox>,
}

impl Drop for Worker {
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

impl Worker {
    /// The next letter; `None` once the desk is closed.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Pending>> {
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

    /// One in real time, which waits for requests without looking up when there are none for a while:
    /// somebody else must tick the member's sessions then. Its tasks end by [`Cluster::leave`] alone.
    pub fn resting() -> Arc<Self> {
        Arc::new(Cluster { rests: true, ..Cluster::default() })
    }

    fn desk(&self, who: Incarnation) -> Arc<Mailbox> {
        Arc::clone(lock(&self.desks).entry(who.0).or_default())
    }

    /// Answers what is sent to this compute server, one request at a time, until
    /// [`Cluster::leave`]. Run in some tasks, each with a session of its own; one that gives a range
    /// away is busy that long, so there should be two or more. Ticks the session. It takes requests in
    /// from this call on, before it is polled.
    ///
    /// # Errors
    /// Those of the session's ticks: this compute server has been cut off.
    pub fn serve(
        &self,
        dex: Dex,
        session: Session,
    ) -> impl Future<Output = Result<(), IndexError>> + use<> {
        let desk = self.desk(session.endpoint().incarnation());
        {
            let mut queue = lock(&desk.0);
            queue.leaving = false;
            queue.servers += 1;
        }
        Cluster::answer(Worker { desk }, self.rests, dex, session)
    }

    async fn answer(
        seat: Worker,
        rests: bool,
        dex: Dex,
        session: Session,
    ) -> Result<(), IndexError> {
        let endpoint = session.endpoint();
        let tick_ns = if rests { REAL_TICK_NS } else { TICK_NS };
        let mut ticked_ns = endpoint.now_ns();
        let mut quiet_ticks = 0;
        loop {
            let is_resting = rests && quiet_ticks >= QUIET_TICKS;
            let mut pause = pin!(endpoint.sleep(if is_resting { 0 } else { tick_ns }));
            let next = std::future::poll_fn(|context| match seat.poll_next(context) {
                Poll::Ready(next) => Poll::Ready(Some(next)),
                Poll::Pending if is_resting => Poll::Pending,
                Poll::Pending => pause.as_mut().poll(context).map(|()| None),
            });
            match next.await {
                None => {}
                Some(None) => return Ok(()),
                Some(Some(Pending { request, mut answer })) if answer.is_wanted() => {
                    quiet_ticks = 0;
                    answer.begin();
                    let outcome = dex.serve(&session, request).await;
                    answer.give(outcome);
                }
                // Its sender has gone away.
                Some(Some(_)) => {}
            }
            if endpoint.now_ns() - ticked_ns >= tick_ns {
                quiet_ticks += 1;
                match session.tick().await {
                    Err(error) if !rests => return Err(error.into()),
                    _ => {}
                }
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

    /// Whether nobody serves for it any more.
    pub fn has_left(&self, who: Incarnation) -> bool {
        lock(&self.desk(who).0).servers == 0
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
        let (answer, waiting) = promise(!request.is_read());
        let idle = {
            let mut queue = lock(&desk.0);
            if queue.servers == 0 || queue.leaving {
                return Box::pin(std::future::ready(Ok(Reply::Gone)));
            }
            queue.letters.push_back(Pending { request, answer });
            std::mem::take(&mut queue.idle)
        };
        idle.into_iter().for_each(Waker::wake);
        Box::pin(waiting)
    }

    fn latency_ns(&self) -> u64 {
        self.latency_ns
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::super::answer::Outcome;
    use super::*;

    fn poll(waiting: &mut Replied) -> Poll<Outcome> {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn sit(cluster: &Cluster, who: u64) -> Worker {
        let desk = cluster.desk(Incarnation(who));
        lock(&desk.0).servers += 1;
        Worker { desk }
    }

    fn to(who: u64) -> WrongOwner {
        WrongOwner { partition: 0, owner: Some(Incarnation(who)), epoch: 1 }
    }

    fn put() -> Request {
        Request::Upsert { key: vec![1], value: vec![2] }
    }

    fn take(seat: &Worker) -> Pending {
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
        begun.answer.begin();
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
