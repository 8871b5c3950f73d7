//! Delegation: one operation on a key does the work of the others on that key in this compute server.
//!
//! The first operation on a key *leads* it; operations that come meanwhile *join* and wait. The leader takes members of
//! the queue, does their work with its own, and answers them. When it ends, the oldest member that still waits leads.
//! [`Combiner`](super::Combiner) is the other form, for work on what a latch guards: there the latch says who works.
//!
//! - **Reads.** A leader takes the members that wait ([`Lead::close`]), then begins its READ: a closed generation. Later
//!   arrivals are the next one. So every answer comes from a READ that began after the get did, and a get waits for
//!   two READs at most. A generation with `batch_limit` members begins at once, beside the one under way.
//! - **Changes.** A leader takes members when it holds the remote lock and knows what the lock guards ([`Lead::seal`]).
//!   Each change is applied to what the ones before it have left. All are acknowledged once one remote change has
//!   completed. Members beyond `batch_limit` are the next batch: beside this one they would contend for its lock.
//!
//! - `INV-DELEGATE-1` Work is done by one: it is taken, or taken back by its owner, under one lock.
//! - `INV-DELEGATE-2` A member that was taken gets an answer: an outcome, or that nothing was done.
//! - `INV-DELEGATE-3` A key whose members wait has a leader. A leader that is dropped hands over; so does a member
//!   that is dropped after the lead has come to it.
//!
//! Keys are compared whole. Nothing here waits but [`Joined`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use xxhash_rust::xxh3::xxh3_64;

use crate::sync::{Mutex, lock};

#[derive(Debug)]
enum DelegationState<W, R> {
    Waiting(W),
    Taken,
    /// The lead has come to it.
    Leads,
    /// `None` if nothing was done.
    Answered(Option<R>),
}

#[derive(Debug)]
struct Member<W, R> {
    key: Arc<[u8]>,
    ticket: u64,
    state: DelegationState<W, R>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct DelegationStripe<W, R> {
    tickets: u64,
    /// Keys with a leader, and how many lead: more than one only where full batches begin at once.
    led: Vec<(Arc<[u8]>, usize)>,
    /// The oldest first.
    members: Vec<Member<W, R>>,
}

impl<W, R> DelegationStripe<W, R> {
    fn at(&self, ticket: u64) -> Option<usize> {
        self.members.iter().position(|member| member.ticket == ticket)
    }

    fn waiting<'a>(&'a mut self, key: &'a [u8]) -> impl Iterator<Item = &'a mut Member<W, R>> {
        let waits =
            |member: &&mut Member<W, R>| matches!(member.state, DelegationState::Waiting(_));
        self.members.iter_mut().filter(move |member| *member.key == *key).filter(waits)
    }

    /// A leader of `key` has ended: the oldest member that waits leads.
    fn hand_over(&mut self, key: &[u8]) -> Option<Waker> {
        if let Some(next) = self.waiting(key).next() {
            next.state = DelegationState::Leads;
            return next.waker.take();
        }
        if let Some(at) = self.led.iter().position(|(led, _)| **led == *key) {
            self.led[at].1 -= 1;
            if self.led[at].1 == 0 {
                self.led.swap_remove(at);
            }
        }
        None
    }
}

/// See the [module page](self).
#[derive(Debug)]
pub struct Delegation<W, R> {
    stripes: Box<[Mutex<DelegationStripe<W, R>>]>,
    /// Most operations that one of them does.
    batch_limit: usize,
    full_at_once: bool,
}

impl<W, R> Delegation<W, R> {
    /// A queue for reads, whose keys share `stripes` lists, a power of two. `batch_limit` 0 sets no limit.
    pub fn of_reads(stripes: usize, batch_limit: usize) -> Arc<Self> {
        Self::new(stripes, batch_limit, true)
    }

    /// The same for changes.
    pub fn of_changes(stripes: usize, batch_limit: usize) -> Arc<Self> {
        Self::new(stripes, batch_limit, false)
    }

    fn new(stripes: usize, batch_limit: usize, full_at_once: bool) -> Arc<Self> {
        let stripe =
            || Mutex::new(DelegationStripe { tickets: 0, led: Vec::new(), members: Vec::new() });
        let batch_limit = if batch_limit == 0 { usize::MAX } else { batch_limit };
        let stripes = (0..stripes.next_power_of_two()).map(|_| stripe()).collect();
        Arc::new(Delegation { stripes, batch_limit, full_at_once })
    }

    fn stripe(&self, key: &[u8]) -> &Mutex<DelegationStripe<W, R>> {
        let hash = xxh3_64(key) as usize;
        &self.stripes[hash & (self.stripes.len() - 1)]
    }

    /// Leads `key`, unless another operation does that this one can join.
    pub fn try_lead(self: &Arc<Self>, key: &[u8]) -> Option<Lead<W, R>> {
        let mut stripe = lock(self.stripe(key));
        let key = match stripe.led.iter().position(|(led, _)| **led == *key) {
            None => {
                let key: Arc<[u8]> = key.into();
                stripe.led.push((Arc::clone(&key), 1));
                key
            }
            Some(at) => {
                if !self.full_at_once || stripe.waiting(key).count() + 1 < self.batch_limit {
                    return None;
                }
                stripe.led[at].1 += 1;
                Arc::clone(&stripe.led[at].0)
            }
        };
        Some(Lead::new(self, key))
    }

    /// Leaves `work` to the leader of `key`; leads, if there is none.
    pub fn join(self: &Arc<Self>, key: &[u8], work: W) -> Joined<W, R> {
        let mut stripe = lock(self.stripe(key));
        let led = stripe.led.iter().find(|(led, _)| **led == *key).map(|(led, _)| Arc::clone(led));
        let (key, state) = match led {
            Some(key) => (key, DelegationState::Waiting(work)),
            None => {
                let key: Arc<[u8]> = key.into();
                stripe.led.push((Arc::clone(&key), 1));
                (key, DelegationState::Leads)
            }
        };
        stripe.tickets += 1;
        let ticket = stripe.tickets;
        stripe.members.push(Member { key: Arc::clone(&key), ticket, state, waker: None });
        Joined { of: Arc::clone(self), key, ticket }
    }

    /// Returns whether no operation leads or waits.
    #[cfg(any(test, loom))]
    pub fn is_idle(&self) -> bool {
        self.stripes.iter().map(lock).all(|it| it.led.is_empty() && it.members.is_empty())
    }
}

/// The end of a member's waiting.
#[derive(Debug)]
pub enum Turn<W, R> {
    /// It leads from now on; its own work is not done.
    Lead(Lead<W, R>),
    /// The leader has done its work.
    Done(R),
    /// Nothing was done, and it is in no queue.
    Back,
}

/// A member that waits. Dropped, it leaves nothing; work that was taken is done all the same.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Joined<W, R> {
    of: Arc<Delegation<W, R>>,
    key: Arc<[u8]>,
    /// 0 once it has ended.
    ticket: u64,
}

impl<W, R> Joined<W, R> {
    /// Waits no longer; returns whether a leader has taken the work, and may have done it.
    pub fn leave(mut self) -> bool {
        let state = self.end();
        matches!(state, Some(DelegationState::Taken | DelegationState::Answered(Some(_))))
    }
}

impl<W, R> Future for Joined<W, R> {
    type Output = Turn<W, R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn<W, R>> {
        let member = {
            let mut stripe = lock(self.of.stripe(&self.key));
            let Some(at) = stripe.at(self.ticket) else { return Poll::Ready(Turn::Back) };
            let member = &mut stripe.members[at];
            if matches!(member.state, DelegationState::Waiting(_) | DelegationState::Taken) {
                member.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            stripe.members.remove(at)
        };
        self.ticket = 0;
        Poll::Ready(match member.state {
            DelegationState::Leads => Turn::Lead(Lead::new(&self.of, member.key)),
            DelegationState::Answered(Some(answer)) => Turn::Done(answer),
            DelegationState::Answered(None)
            | DelegationState::Waiting(_)
            | DelegationState::Taken => Turn::Back,
        })
    }
}

impl<W, R> Joined<W, R> {
    /// Takes it out of the queue, and hands the lead over if it has come here.
    fn end(&mut self) -> Option<DelegationState<W, R>> {
        let (state, next) = {
            let mut stripe = lock(self.of.stripe(&self.key));
            let at = stripe.at(std::mem::take(&mut self.ticket))?;
            let state = stripe.members.remove(at).state;
            let was_leader = matches!(state, DelegationState::Leads);
            (state, was_leader.then(|| stripe.hand_over(&self.key)).flatten())
        };
        next.into_iter().for_each(Waker::wake);
        Some(state)
    }
}

impl<W, R> Drop for Joined<W, R> {
    fn drop(&mut self) {
        if self.ticket != 0 {
            self.end();
        }
    }
}

/// The lead of a key. Dropped, it is handed over.
#[derive(Debug)]
pub struct Lead<W, R> {
    of: Arc<Delegation<W, R>>,
    key: Arc<[u8]>,
    /// Members that were taken, and their answers where they are known.
    taken: Vec<(u64, Option<R>)>,
    /// The answer of those that the leader leaves without one; none: nothing was done.
    lost: Option<fn() -> R>,
}

impl<W, R> Lead<W, R> {
    fn new(of: &Arc<Delegation<W, R>>, key: Arc<[u8]>) -> Self {
        Lead { of: Arc::clone(of), key, taken: Vec::new(), lost: None }
    }

    /// Takes the members that wait; returns how many. A read of theirs and of the leader begins after.
    pub fn close(&mut self) -> usize {
        self.take(|_| Some(None));
        self.taken.len()
    }

    /// Gives all that were taken the same answer.
    pub fn answer(&mut self, mut answer: impl FnMut() -> R) {
        for taken in &mut self.taken {
            taken.1 = Some(answer());
        }
        self.acknowledge();
    }

    /// Takes members as long as `apply` does their work in the leader's copy, and returns their answers; returns how
    /// many. They get these from [`Lead::acknowledge`], and `lost` if the leader ends without it.
    pub fn seal(&mut self, lost: fn() -> R, mut apply: impl FnMut(&W) -> Option<R>) -> usize {
        self.take(|work| apply(work).map(Some));
        self.lost = Some(lost);
        self.taken.len()
    }

    fn take(&mut self, mut accept: impl FnMut(&W) -> Option<Option<R>>) {
        let (most, mut taken) = (self.of.batch_limit - 1, std::mem::take(&mut self.taken));
        {
            let mut stripe = lock(self.of.stripe(&self.key));
            for member in stripe.waiting(&self.key) {
                let DelegationState::Waiting(work) = &member.state else { continue };
                if taken.len() >= most {
                    break;
                }
                let Some(answer) = accept(work) else { break };
                taken.push((member.ticket, answer));
                member.state = DelegationState::Taken;
            }
        }
        self.taken = taken;
    }

    /// A moment, for [`Lead::answer_until`].
    pub fn mark(&self) -> u64 {
        lock(self.of.stripe(&self.key)).tickets
    }

    /// Answers the members that joined before `mark` and for which `decide` has an answer, by what was read since;
    /// returns how many.
    pub fn answer_until(&self, mark: u64, mut decide: impl FnMut(&W) -> Option<R>) -> usize {
        let mut woken = Vec::new();
        let mut count = 0;
        {
            let mut stripe = lock(self.of.stripe(&self.key));
            for member in stripe.waiting(&self.key).filter(|it| it.ticket <= mark) {
                let DelegationState::Waiting(work) = &member.state else { continue };
                let Some(answer) = decide(work) else { continue };
                member.state = DelegationState::Answered(Some(answer));
                woken.extend(member.waker.take());
                count += 1;
            }
        }
        woken.into_iter().for_each(Waker::wake);
        count
    }

    /// The remote change has completed: gives all that were taken their answers.
    pub fn acknowledge(&mut self) {
        self.finish(false);
    }

    /// Answers those that were taken. At the leader's end their own answers come too late, and the lead goes on.
    fn finish(&mut self, is_end: bool) {
        if !is_end && self.taken.is_empty() {
            return;
        }
        let (taken, lost) = (std::mem::take(&mut self.taken), self.lost.take());
        let mut woken = Vec::new();
        {
            let mut stripe = lock(self.of.stripe(&self.key));
            for (ticket, answer) in taken {
                // A member that waits no longer is gone.
                let Some(at) = stripe.at(ticket) else { continue };
                let answer = if is_end { lost.map(|lost| lost()) } else { answer };
                stripe.members[at].state = DelegationState::Answered(answer);
                woken.extend(stripe.members[at].waker.take());
            }
            if is_end {
                woken.extend(stripe.hand_over(&self.key));
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl<W, R> Drop for Lead<W, R> {
    fn drop(&mut self) {
        self.finish(true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Queue = Arc<Delegation<u32, u32>>;

    fn poll(joined: &mut Joined<u32, u32>) -> Poll<Turn<u32, u32>> {
        Pin::new(joined).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn lead(joined: &mut Joined<u32, u32>) -> Lead<u32, u32> {
        match poll(joined) {
            Poll::Ready(Turn::Lead(lead)) => lead,
            other => panic!("it leads: {other:?}"),
        }
    }

    fn is_done(joined: &mut Joined<u32, u32>, answer: u32) -> bool {
        matches!(poll(joined), Poll::Ready(Turn::Done(found)) if found == answer)
    }

    /// A generation is closed before its READ begins; arrivals after that are the next one, led by the oldest.
    #[test]
    fn a_read_answers_only_members_that_came_before_it() {
        let queue: Queue = Delegation::of_reads(1, 0);
        let mut first = queue.try_lead(b"k").expect("nobody leads");
        assert_eq!(first.close(), 0);
        assert!(queue.try_lead(b"k").is_none() && queue.try_lead(b"other").is_some());
        let mut members: Vec<_> = (0..3).map(|_| queue.join(b"k", 0)).collect();
        assert!(members.iter_mut().all(|member| poll(member).is_pending()));
        first.answer(|| 1);
        assert!(members.iter_mut().all(|member| poll(member).is_pending()), "of the next one");
        drop(first);
        let mut second = lead(&mut members[0]);
        assert_eq!(second.close(), 2);
        let mut late = queue.join(b"k", 0);
        second.answer(|| 2);
        drop(second);
        assert!(is_done(&mut members[1], 2) && is_done(&mut members[2], 2));
        drop(lead(&mut late));
        assert!(queue.is_idle());
    }

    #[test]
    fn a_full_generation_begins_at_once() {
        let queue: Queue = Delegation::of_reads(4, 3);
        let first = queue.try_lead(b"k").expect("nobody leads");
        let mut members: Vec<_> = (0..2)
            .map(|_| {
                assert!(queue.try_lead(b"k").is_none());
                queue.join(b"k", 0)
            })
            .collect();
        let mut third = queue.try_lead(b"k").expect("it is full");
        assert_eq!(third.close(), 2);
        assert!(queue.try_lead(b"k").is_none());
        let mut next = queue.join(b"k", 0);
        drop(first);
        let led = lead(&mut next);
        third.answer(|| 7);
        assert!(members.iter_mut().all(|member| is_done(member, 7)));
        drop((third, led));
        assert!(queue.is_idle());
    }

    /// Members are applied in order to what the ones before them have left, up to the limit or the first that the
    /// leader cannot do.
    #[test]
    fn a_batch_is_applied_in_order_and_acknowledged_together() {
        let queue: Queue = Delegation::of_changes(1, 4);
        let mut leader = queue.try_lead(b"k").expect("nobody leads");
        let mut members: Vec<_> = (1..=5).map(|work| queue.join(b"k", work)).collect();
        assert!(queue.try_lead(b"k").is_none(), "a full batch of changes waits");
        let mut sum = 0;
        let count = leader.seal(
            || 99,
            |work| {
                sum += work;
                Some(sum)
            },
        );
        assert_eq!((count, sum), (3, 6));
        assert!(members.iter_mut().all(|member| poll(member).is_pending()));
        assert!(members.remove(2).leave(), "its change is being done");
        assert!(!members.remove(3).leave(), "of the next batch");
        leader.acknowledge();
        assert!(is_done(&mut members[0], 1) && is_done(&mut members[1], 3));
        drop(leader);
        let mut next = lead(&mut members[2]);
        assert_eq!(next.seal(|| 99, |_| None), 0, "it is not the leader's to do");
        drop(next);
        drop(members);
        assert!(queue.is_idle());
    }

    /// A value that the leader has read answers only the members that joined before.
    #[test]
    fn evidence_answers_members_that_came_before_it() {
        let queue: Queue = Delegation::of_changes(1, 8);
        let leader = queue.try_lead(b"k").expect("nobody leads");
        let (mut early, mut applies) = (queue.join(b"k", 1), queue.join(b"k", 2));
        let mark = leader.mark();
        let mut late = queue.join(b"k", 1);
        assert_eq!(leader.answer_until(mark, |work| (*work == 1).then_some(5)), 1);
        assert!(is_done(&mut early, 5) && poll(&mut late).is_pending());
        drop(leader);
        drop(lead(&mut applies));
        drop(lead(&mut late));
        assert!(queue.is_idle());
    }

    #[test]
    fn dropped_leaders_hand_over_and_dropped_members_leave_nothing() {
        let queue: Queue = Delegation::of_changes(1, 8);
        let mut leader = queue.try_lead(b"k").expect("nobody leads");
        let (mut first, second) = (queue.join(b"k", 1), queue.join(b"k", 2));
        let (third, mut fourth) = (queue.join(b"k", 3), queue.join(b"k", 4));
        drop(second);
        assert_eq!(leader.seal(|| 99, |work| (*work == 1).then_some(1)), 1);
        // Its change was begun and has no known end.
        drop(leader);
        assert!(is_done(&mut first, 99));
        // The lead has come to a member that is dropped.
        drop(third);
        let mut next = lead(&mut fourth);
        let mut fifth = queue.join(b"k", 5);
        next.close();
        drop(next);
        assert!(matches!(poll(&mut fifth), Poll::Ready(Turn::Back)), "nothing was done");
        assert!(queue.is_idle());
        drop(queue.join(b"k", 6));
        assert!(queue.is_idle(), "it had the lead");
    }
}
