//! Hand-over queue: passes a held remote lock from one task of a compute server to the next, without a CAS of its own.
//!
//! A task enters with a fresh token of its own session. The first task of a lock word asks for it by a CAS. The holder's
//! last chain may leave a waiter's token in the lock word in place of 0. The waiter then holds the word: the word names a
//! client that acts under it, so that redo records and checks of a dead owner need no rule of their own.
//!
//! | holder | waiter |
//! |---|---|
//! | [`Holding::choose`]: takes the next waiter out of the line | stays [pending](Entering) |
//! | posts its last chain, which leaves [`Passing::token`] in the word | |
//! | the chain has completed: [`Passing::done`] | gets [`Entered::Passed`], with the image if it wants the same node |
//! | or it is not known whether the chain was done: keeps the [`Passing`] until that is settled | waits |
//! | or nobody is chosen: releases the word, drops the [`Holding`] | the next one gets [`Entered::Ask`] |
//!
//! # Invariants
//!
//! - `INV-HAND-1` Of a lock word, one task of the compute server has a [`Holding`] or a [`Passing`] at a time.
//! - `INV-HAND-2` A waiter learns of a pass after the chain in front of it has completed, never when it was posted.
//! - `INV-HAND-3` Each wait has a token of its own. Under a session's one token, a taker would carry the redo record of an
//!   earlier turn out over later changes.
//! - `INV-HAND-4` The turn of a chosen waiter that was dropped is never lost. Before the chain has completed, the task that
//!   passes gets it back, under the waiter's token, and passes it on or releases the word. After, the waiter's `orphan`
//!   gets it.
//! - `INV-HAND-5` After `passes_max` passes in a row nobody is chosen: the word becomes 0, and tasks of other compute
//!   servers get their turn.
//!
//! No remote operation. Source: Wang, Lu, Shu, SIGMOD 2022, section 4.3 (local lock tables, at most a bound of hand-overs).
//! Differs: there the word stays as it is during a hand-over, so that it does not name the client that acts under it.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use farleaf_fabric::GlobalAddr;

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Lists, so that tasks at different locks seldom meet. A power of two.
const LISTS: usize = 64;

/// A node's content as the holder left it.
pub type NodeImage = Arc<[u64]>;

#[derive(Debug)]
struct LineWaiter {
    ticket: u64,
    token: u64,
    /// The node that it wants to lock by the word.
    wants: GlobalAddr,
    waker: Option<Waker>,
}

/// The task that the lock goes to.
#[derive(Debug)]
enum Chosen {
    /// Its chain is under way; `None` once the waiter was dropped.
    Under(u64, Option<Waker>),
    /// The lock is its own, and it was not polled since.
    Told(u64, Entered),
}

#[derive(Debug)]
struct WordEntry {
    word: u64,
    passes: u32,
    chosen: Option<Chosen>,
    line: VecDeque<LineWaiter>,
}

/// The way in which a task came to its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The task asks for the word by a CAS.
    Ask,
    /// The word holds the task's token. The image is the wanted node's, if the task before had it.
    Passed(Option<NodeImage>),
}

/// See the [module page](self).
#[derive(Debug)]
pub struct HandOver {
    lists: Box<[Mutex<Vec<WordEntry>>]>,
    tickets: AtomicU64,
    passes_max: u32,
    passes: AtomicU64,
    images: AtomicU64,
}

impl HandOver {
    /// A queue that passes a lock at most `passes_max` times in a row; 0 passes none.
    pub fn new(passes_max: u32) -> Arc<Self> {
        let lists = (0..LISTS).map(|_| Mutex::default()).collect();
        let (passes, images) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(HandOver { lists, tickets: AtomicU64::new(1), passes_max, passes, images })
    }

    /// Waits for the turn at the lock word at `word` under `token`, which was never used before, to change the node at
    /// `wants`. If the wait is dropped when the word holds `token` already, `orphan` gets the turn: it has a task release
    /// the word.
    pub fn enter<F: FnOnce(Holding) + Unpin>(
        self: &Arc<Self>,
        word: GlobalAddr,
        token: u64,
        wants: GlobalAddr,
        orphan: F,
    ) -> Entering<F> {
        let (queue, word) = (Arc::clone(self), word.word());
        Entering { queue, word, token, wants, ticket: 0, orphan: Some(orphan) }
    }

    /// Takes the turn at the lock word at `word` at once; `None` if a task of this compute server has it or waits for it.
    pub fn try_enter(self: &Arc<Self>, word: GlobalAddr, token: u64) -> Option<Holding> {
        let (queue, word) = (Arc::clone(self), word.word());
        let mut list = lock(self.list(word));
        if list.iter().any(|entry| entry.word == word) {
            return None;
        }
        list.push(WordEntry { word, passes: 0, chosen: None, line: VecDeque::new() });
        drop(list);
        Some(Holding { queue, word, token, is_over: false })
    }

    /// Passes so far, and how many of them took an image along.
    pub fn counts(&self) -> (u64, u64) {
        (self.passes.load(Ordering::Relaxed), self.images.load(Ordering::Relaxed))
    }

    fn list(&self, word: u64) -> &Mutex<Vec<WordEntry>> {
        let hash = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.lists[hash as usize % LISTS]
    }

    /// Runs `change` on the entry of `word`; one without a task goes away when `change` returns `false`.
    fn with_entry(&self, word: u64, change: impl FnOnce(&mut WordEntry) -> (bool, Option<Waker>)) {
        let mut list = lock(self.list(word));
        let Some(at) = list.iter().position(|entry| entry.word == word) else { return };
        let (stays, waker) = change(&mut list[at]);
        if !stays {
            list.swap_remove(at);
        }
        drop(list);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The holder has released the word: the next waiter asks.
    fn released(&self, word: u64) {
        self.with_entry(word, |entry| {
            entry.passes = 0;
            let Some(next) = entry.line.pop_front() else { return (false, None) };
            entry.chosen = Some(Chosen::Told(next.ticket, Entered::Ask));
            (true, next.waker)
        });
    }
}

/// A task that waits for its turn.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Entering<F: FnOnce(Holding) + Unpin> {
    queue: Arc<HandOver>,
    word: u64,
    token: u64,
    wants: GlobalAddr,
    /// 0 before it is in the line, and once its turn has come.
    ticket: u64,
    orphan: Option<F>,
}

impl<F: FnOnce(Holding) + Unpin> Future for Entering<F> {
    type Output = (Holding, Entered);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut list = lock(this.queue.list(this.word));
        let place = list.iter().position(|entry| entry.word == this.word);
        let entered = match place {
            None => {
                debug_assert_eq!(this.ticket, 0, "the entry stays while a task waits");
                let (word, line) = (this.word, VecDeque::new());
                list.push(WordEntry { word, passes: 0, chosen: None, line });
                Entered::Ask
            }
            Some(at) => {
                let entry = &mut list[at];
                if this.ticket == 0 {
                    this.ticket = this.queue.tickets.fetch_add(1, Ordering::Relaxed);
                    let (ticket, token, wants) = (this.ticket, this.token, this.wants);
                    entry.line.push_back(LineWaiter { ticket, token, wants, waker: None });
                }
                match &mut entry.chosen {
                    Some(Chosen::Told(ticket, entered)) if *ticket == this.ticket => {
                        let entered = entered.clone();
                        entry.chosen = None;
                        entered
                    }
                    Some(Chosen::Under(ticket, waker)) if *ticket == this.ticket => {
                        *waker = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                    _ => {
                        let own = entry.line.iter_mut().find(|it| it.ticket == this.ticket);
                        own.into_iter().for_each(|it| it.waker = Some(context.waker().clone()));
                        return Poll::Pending;
                    }
                }
            }
        };
        drop(list);
        this.ticket = 0;
        let (queue, word, token) = (Arc::clone(&this.queue), this.word, this.token);
        Poll::Ready((Holding { queue, word, token, is_over: false }, entered))
    }
}

impl<F: FnOnce(Holding) + Unpin> Drop for Entering<F> {
    fn drop(&mut self) {
        if self.ticket == 0 {
            return;
        }
        let mut told = None;
        self.queue.with_entry(self.word, |entry| {
            entry.line.retain(|waiter| waiter.ticket != self.ticket);
            match &mut entry.chosen {
                // The task that passes finds it gone.
                Some(Chosen::Under(ticket, _)) if *ticket == self.ticket => *ticket = 0,
                Some(Chosen::Told(ticket, entered)) if *ticket == self.ticket => {
                    told = Some(entered.clone());
                    entry.chosen = None;
                }
                _ => {}
            }
            (true, None)
        });
        match (told, self.orphan.take()) {
            (Some(Entered::Passed(_)), Some(orphan)) => {
                let (queue, word, token) = (Arc::clone(&self.queue), self.word, self.token);
                orphan(Holding { queue, word, token, is_over: false });
            }
            (Some(_), _) => self.queue.released(self.word),
            (None, _) => {}
        }
    }
}

/// A task's turn at a lock word. Dropped when the word is released, or was not taken, the next task asks.
#[derive(Debug)]
pub struct Holding {
    queue: Arc<HandOver>,
    word: u64,
    token: u64,
    is_over: bool,
}

impl Holding {
    /// The token by which the word names the task, once it holds it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Chooses the waiter that the holder's last chain passes the word to; gives the turn back if nobody waits, or after
    /// as many passes in a row as there may be.
    ///
    /// # Errors
    /// The turn, to release the word and drop.
    pub fn choose(mut self) -> Result<Passing, Holding> {
        let mut next = None;
        let passes_max = self.queue.passes_max;
        self.queue.with_entry(self.word, |entry| {
            if entry.passes < passes_max {
                next = entry.line.pop_front();
            }
            if let Some(next) = &mut next {
                entry.passes += 1;
                entry.chosen = Some(Chosen::Under(next.ticket, next.waker.take()));
            }
            (true, None)
        });
        let Some(next) = next else { return Err(self) };
        self.is_over = true;
        let (queue, word) = (Arc::clone(&self.queue), self.word);
        Ok(Passing { queue, word, token: next.token, wants: next.wants, is_over: false })
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if !self.is_over {
            self.queue.released(self.word);
        }
    }
}

/// A pass that is under way: kept until the chain that makes it has completed, by a task if its caller goes away.
#[derive(Debug)]
#[must_use = "the waiter waits until it is told"]
pub struct Passing {
    queue: Arc<HandOver>,
    word: u64,
    token: u64,
    wants: GlobalAddr,
    is_over: bool,
}

/// Nobody knows whether the chain was done: this compute server has been cut off. The waiter asks.
impl Drop for Passing {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut is_gone = false;
        self.queue.with_entry(self.word, |entry| match entry.chosen.take() {
            Some(Chosen::Under(ticket, waker)) if ticket != 0 => {
                entry.chosen = Some(Chosen::Told(ticket, Entered::Ask));
                (true, waker)
            }
            _ => {
                is_gone = true;
                (true, None)
            }
        });
        if is_gone {
            self.queue.released(self.word);
        }
    }
}

impl Passing {
    /// The waiter's token: what the chain leaves in the lock word.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The node that the waiter wants.
    pub fn wants(&self) -> GlobalAddr {
        self.wants
    }

    /// The chain has completed: tells the waiter. `image` is the content of the node that it wants, if the holder has it.
    ///
    /// # Errors
    /// The turn, if the waiter was dropped: the word holds [`Holding::token`], and the caller passes it on or releases it.
    pub fn done(mut self, image: Option<NodeImage>) -> Result<(), Holding> {
        self.is_over = true;
        let mut is_gone = false;
        let has_image = image.is_some();
        self.queue.with_entry(self.word, |entry| match entry.chosen.take() {
            Some(Chosen::Under(ticket, waker)) if ticket != 0 => {
                entry.chosen = Some(Chosen::Told(ticket, Entered::Passed(image)));
                (true, waker)
            }
            _ => {
                is_gone = true;
                (true, None)
            }
        });
        let (queue, word, token) = (Arc::clone(&self.queue), self.word, self.token);
        if is_gone {
            return Err(Holding { queue, word, token, is_over: false });
        }
        queue.passes.fetch_add(1, Ordering::Relaxed);
        queue.images.fetch_add(u64::from(has_image), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use farleaf_fabric::ServerId;

    use super::*;
    use crate::local::wakes::Wakes;

    fn addr(number: u64) -> GlobalAddr {
        GlobalAddr::new(ServerId(0), 4096 + number * 64)
    }

    fn poll<F: FnOnce(Holding) + Unpin>(
        entering: &mut Entering<F>,
        wakes: &Arc<Wakes>,
    ) -> Option<(Holding, Entered)> {
        let waker = Waker::from(Arc::clone(wakes));
        match Pin::new(entering).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(entered) => Some(entered),
            Poll::Pending => None,
        }
    }

    fn no_orphan(_: Holding) {
        panic!("the turn comes to nobody");
    }

    fn is_empty(queue: &HandOver) -> bool {
        queue.lists.iter().all(|list| lock(list).is_empty())
    }

    #[test]
    fn a_lock_goes_on_by_arrival_and_is_released_after_as_many_passes() {
        let queue = HandOver::new(2);
        let wakes: [Arc<Wakes>; 5] = std::array::from_fn(|_| Arc::default());
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst));
        let mut tasks =
            [1, 2, 3, 4, 5].map(|token| queue.enter(addr(0), token, addr(9), no_orphan));
        let (holding, how) = poll(&mut tasks[0], &wakes[0]).expect("nobody is there");
        assert_eq!(how, Entered::Ask);
        for at in 1..5 {
            assert!(poll(&mut tasks[at], &wakes[at]).is_none());
        }
        let mut other = queue.enter(addr(1), 6, addr(9), no_orphan);
        drop(poll(&mut other, &wakes[0]).expect("another lock"));

        let passing = holding.choose().expect("four wait");
        assert_eq!((passing.token(), passing.wants()), (2, addr(9)));
        // It hears of the pass when the chain has completed (INV-HAND-2).
        assert!(poll(&mut tasks[1], &wakes[1]).is_none());
        assert_eq!(woken(), [0; 5]);
        let image: NodeImage = vec![7, 8].into();
        passing.done(Some(Arc::clone(&image))).expect("the waiter is there");
        assert_eq!(woken(), [0, 1, 0, 0, 0]);
        let (holding, how) = poll(&mut tasks[1], &wakes[1]).expect("its turn");
        assert_eq!((holding.token(), how), (2, Entered::Passed(Some(image))));
        let passing = holding.choose().expect("three wait");
        passing.done(None).expect("the waiter is there");
        let (holding, how) = poll(&mut tasks[2], &wakes[2]).expect("its turn");
        assert_eq!((holding.token(), how), (3, Entered::Passed(None)));
        let holding = holding.choose().expect_err("two passes in a row");
        drop(holding);
        // The next one asks, and may pass again.
        let (holding, how) = poll(&mut tasks[3], &wakes[3]).expect("its turn");
        assert_eq!((holding.token(), how), (4, Entered::Ask));
        holding.choose().expect("one waits").done(None).expect("the waiter is there");
        let (holding, _) = poll(&mut tasks[4], &wakes[4]).expect("its turn");
        assert_eq!(queue.counts(), (3, 1));
        drop(holding.choose().expect_err("nobody waits"));
        assert!(is_empty(&queue));
    }

    #[test]
    fn a_bound_of_none_passes_nothing() {
        let (queue, wakes) = (HandOver::new(0), Arc::default());
        let mut tasks = [1, 2].map(|token| queue.enter(addr(0), token, addr(9), no_orphan));
        let (holding, _) = poll(&mut tasks[0], &wakes).expect("nobody is there");
        assert!(poll(&mut tasks[1], &wakes).is_none());
        drop(holding.choose().expect_err("no pass"));
        assert_eq!(poll(&mut tasks[1], &wakes).expect("its turn").1, Entered::Ask);
        assert!(is_empty(&queue));
    }

    #[test]
    fn a_waiter_dropped_in_any_state_loses_no_turn() {
        let (queue, wakes) = (HandOver::new(8), Arc::default());
        let orphans = Rc::new(RefCell::new(Vec::new()));
        let enter = |token| {
            let orphans = Rc::clone(&orphans);
            let orphan = move |holding: Holding| orphans.borrow_mut().push(holding);
            queue.enter(addr(0), token, addr(9), orphan)
        };
        let mut tasks = [1, 2, 3, 4, 5, 6].map(|token| Some(enter(token)));
        let mut polled = |at: usize| tasks[at].as_mut().and_then(|task| poll(task, &wakes));
        let (holding, _) = polled(0).expect("nobody is there");
        (1..6).for_each(|at| assert!(polled(at).is_none()));
        // In the line.
        tasks[1] = None;
        // Chosen, before the chain has completed: the task that passed has the turn again, under its token.
        let passing = holding.choose().expect("four wait");
        assert_eq!(passing.token(), 3);
        tasks[2] = None;
        let holding = passing.done(None).expect_err("the waiter is gone");
        assert_eq!(holding.token(), 3);
        // Told, and not polled since: its orphan has the turn.
        let passing = holding.choose().expect("three wait");
        assert_eq!(passing.token(), 4);
        passing.done(None).expect("the waiter is there");
        tasks[3] = None;
        let holding = orphans.borrow_mut().pop().expect("an orphan's turn");
        assert_eq!(holding.token(), 4);
        drop(holding);
        // Told to ask, and not polled since: the next one asks.
        tasks[4] = None;
        let (last, how) = tasks[5].as_mut().and_then(|it| poll(it, &wakes)).expect("its turn");
        assert_eq!((last.token(), how), (6, Entered::Ask));
        assert!(orphans.borrow().is_empty());
        drop(last);
        assert!(is_empty(&queue));
        // Before it was ever polled.
        drop(enter(7));
        assert!(is_empty(&queue));
    }

    /// Random tasks that come, pass, release and go away: the word always names the one task that acts, and all end.
    #[test]
    fn the_word_names_the_one_task_that_acts_in_any_order_of_events() {
        for seed in 0..400_u64 {
            let queue = HandOver::new((seed % 4) as u32);
            let wakes = Arc::default();
            let orphans = Rc::new(RefCell::new(Vec::new()));
            let mut state = seed;
            let mut random = move |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                (state >> 33) as usize % below
            };
            let (mut word, mut holding, mut passing) = (0, None::<Holding>, None::<Passing>);
            let (mut waiting, mut next_token, mut passed, mut done) = (Vec::new(), 1, 0, 0);
            for step in 0.. {
                assert!(step < 20_000, "all tasks end");
                if let Some(orphan) = orphans.borrow_mut().pop() {
                    assert!(holding.is_none() && passing.is_none());
                    holding = Some(orphan);
                }
                match random(6) {
                    0 if next_token <= 40 => {
                        let orphans = Rc::clone(&orphans);
                        let orphan = move |turn: Holding| orphans.borrow_mut().push(turn);
                        waiting.push(queue.enter(addr(0), next_token, addr(9), orphan));
                        next_token += 1;
                    }
                    1 if !waiting.is_empty() && random(4) == 0 => {
                        drop(waiting.swap_remove(random(waiting.len())));
                        done += 1;
                    }
                    2 => match holding.take().map(Holding::choose) {
                        Some(Ok(next)) => passing = Some(next),
                        Some(Err(turn)) => {
                            word = 0;
                            drop(turn);
                        }
                        None => {}
                    },
                    3 => {
                        if let Some(next) = passing.take() {
                            word = next.token();
                            passed += 1;
                            holding = next.done(None).err();
                        }
                    }
                    _ if !waiting.is_empty() => {
                        let at = random(waiting.len());
                        if let Some((turn, how)) = poll(&mut waiting[at], &wakes) {
                            assert!(holding.is_none() && passing.is_none(), "INV-HAND-1");
                            drop(waiting.swap_remove(at));
                            done += 1;
                            match how {
                                Entered::Ask => {
                                    assert_eq!(word, 0);
                                    word = turn.token();
                                }
                                Entered::Passed(_) => assert_eq!(word, turn.token()),
                            }
                            holding = Some(turn);
                        }
                    }
                    _ => {}
                }
                let is_over = holding.is_none() && passing.is_none() && orphans.borrow().is_empty();
                if done == 40 && waiting.is_empty() && is_over {
                    break;
                }
            }
            assert!(is_empty(&queue) && word == 0 || seed % 4 == 0);
            assert!((passed > 0) == (seed % 4 != 0), "{passed} passes");
        }
    }
}
