//! RPC server: threads of the memory server that answer the RPCs that come by the card.
//!
//! Each thread has a completion queue for the queue pairs that it serves; a queue pair's place there is
//! its RPC slot.
//!
//! - **VERBS-7** One thread runs an RPC slot's requests in their order, each under the gate of its
//!   connection (TCP-13). While another thread holds that, other RPC slots' requests go first.
//! - **VERBS-8** The thread posts the receive of a request again before it sends the answer. So a
//!   client with no more open requests than the server granted always finds a receive posted.
//! - **VERBS-9** The completion queue has room for all completions of its RPC slots. An abandoned RPC slot
//!   counts until no completion of it can be left there.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use super::VerbsError;
use super::flow::ServerFlow;
use crate::raw::verbs::{Completions, Device, QueuePair};
use crate::sync::lock;
use crate::tcp::SPIN;
use crate::tcp::call::{Called, Caller, RpcAnswer};

/// Most requests of one queue pair under way.
pub(super) const CALLS_MAX: u16 = 16;
/// RPC slots per thread. RPCs of further queue pairs come by their connections.
const SLOTS_MAX: u32 = 1_024;
/// Completions of an RPC slot that may lie in the queue: of its receives, and of its answers.
const COMPLETIONS_PER_SLOT: u32 = 2 * CALLS_MAX as u32;
/// Time after which it checks again whether a gate is free.
const PAUSE: Duration = Duration::from_millis(1);

/// A thread that answers RPCs. It ends when this is dropped.
pub(super) struct RpcServer {
    inner: Arc<RpcServerInner>,
    thread: Option<JoinHandle<()>>,
}

struct RpcServerInner {
    completions: Arc<Completions>,
    rpc_slots: Mutex<BTreeMap<u64, Arc<RpcSlot>>>,
    slots_max: usize,
    /// RPC slots in use, abandoned ones included whose completions may still come (VERBS-9).
    taken: AtomicUsize,
    /// RPC slots abandoned since the thread last looked.
    left: AtomicUsize,
    next: AtomicU64,
    stopping: AtomicBool,
    waker: Waker,
}

/// A queue pair, and the connection in whose name its requests are carried out.
pub(super) struct RpcSlot {
    caller: Caller,
    state: Mutex<RpcSlotState>,
}

struct RpcSlotState {
    pair: QueuePair,
    requests: ServerFlow,
    /// It stands in the thread's list.
    is_listed: bool,
    /// The thread takes no more requests from it.
    is_broken: bool,
}

/// A reserved RPC slot. Given back when it is dropped.
pub(super) struct Reservation {
    inner: Arc<RpcServerInner>,
    number: u64,
}

impl RpcServer {
    /// Starts the thread.
    pub(super) fn start(device: &Arc<Device>, number: usize) -> Result<RpcServer, VerbsError> {
        let failed = device.failed("watch completions");
        let entries = (SLOTS_MAX * COMPLETIONS_PER_SLOT).min(device.facts.completions_max);
        let completions = Completions::new(device, entries)?;
        let poll = Poll::new().map_err(&failed)?;
        let fd = completions.as_fd().as_raw_fd();
        poll.registry()
            .register(&mut SourceFd(&fd), Token(0), Interest::READABLE)
            .map_err(&failed)?;
        let inner = Arc::new(RpcServerInner {
            completions,
            rpc_slots: Mutex::default(),
            slots_max: (entries / COMPLETIONS_PER_SLOT) as usize,
            taken: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            waker: Waker::new(poll.registry(), Token(1)).map_err(&failed)?,
        });
        let own = Arc::clone(&inner);
        let thread = thread::Builder::new()
            .name(format!("farleaf-card-{number}"))
            .spawn(move || RpcWorker::new(own).run(poll))
            .map_err(&failed)?;
        Ok(RpcServer { inner, thread: Some(thread) })
    }

    /// Completion queue of its queue pairs.
    pub(super) fn completions(&self) -> &Arc<Completions> {
        &self.inner.completions
    }

    /// Reserves an RPC slot for one more queue pair, if there is one.
    pub(super) fn reserve(&self) -> Option<Reservation> {
        let more = |taken| (taken < self.inner.slots_max).then_some(taken + 1);
        self.inner.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        Some(Reservation { inner: Arc::clone(&self.inner), number })
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        // Waking fails only if the thread has ended.
        let _ = self.inner.waker.wake();
        // If this thread was the last holder of the server, it ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Reservation {
    /// Posts the receives of a pair that is not connected.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn expect(&self, pair: &mut QueuePair, calls: u16) -> io::Result<()> {
        (0..u64::from(calls)).try_for_each(|number| pair.expect(number, self.number))
    }

    /// From here on the thread answers the requests that come to `rpc_slot`.
    pub(super) fn attach(&self, rpc_slot: &Arc<RpcSlot>) {
        lock(&self.inner.rpc_slots).insert(self.number, Arc::clone(rpc_slot));
    }
}

impl Drop for Reservation {
    /// The caller has destroyed the queue pair, or never connected it.
    fn drop(&mut self) {
        let rpc_slot = lock(&self.inner.rpc_slots).remove(&self.number);
        self.inner.left.fetch_add(1, Ordering::SeqCst);
        // Not while the list is locked: the last of them may drop a server.
        drop(rpc_slot);
        let _ = self.inner.waker.wake();
    }
}

impl RpcSlot {
    /// The slot of a pair that may have `calls` requests under way.
    pub(super) fn new(pair: QueuePair, caller: Caller, calls: u16) -> Arc<RpcSlot> {
        let requests = ServerFlow::new(calls);
        let state = RpcSlotState { pair, requests, is_listed: false, is_broken: false };
        Arc::new(RpcSlot { caller, state: Mutex::new(state) })
    }

    /// Cuts its queue pair; see [`QueuePair::cut`].
    pub(super) fn cut(&self) -> io::Result<()> {
        lock(&self.state).pair.cut()
    }
}

/// Outcome of an RPC slot's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// A request was carried out.
    Done,
    /// Another thread holds its gate.
    Later,
    /// It has no work now.
    Idle,
}

/// The thread itself.
struct RpcWorker {
    inner: Arc<RpcServerInner>,
    /// RPC slots with work.
    ready: VecDeque<(u64, Arc<RpcSlot>)>,
    message: Vec<u8>,
    answer: RpcAnswer,
}

impl RpcWorker {
    fn new(inner: Arc<RpcServerInner>) -> RpcWorker {
        RpcWorker {
            inner,
            ready: VecDeque::new(),
            message: Vec::new(),
            answer: RpcAnswer::default(),
        }
    }

    fn run(mut self, mut poll: Poll) {
        let mut events = Events::with_capacity(4);
        let mut busy_at = Instant::now();
        while !self.inner.stopping.load(Ordering::SeqCst) {
            let came = self.collect();
            if self.serve() || came {
                busy_at = Instant::now();
                continue;
            }
            if busy_at.elapsed() < SPIN {
                thread::yield_now();
                continue;
            }
            // A completion between the poll and the wait raises an event; an earlier one does not.
            let is_armed = self.inner.completions.arm();
            if self.collect() {
                continue;
            }
            let patience = (!is_armed || !self.ready.is_empty()).then_some(PAUSE);
            if let Err(error) = poll.poll(&mut events, patience)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return;
            }
            self.inner.completions.take_events();
        }
    }

    /// Takes completions; true if there were any.
    fn collect(&mut self) -> bool {
        // Before the poll: their queue pairs are destroyed, so they get no later completion.
        let left = self.inner.left.swap(0, Ordering::SeqCst);
        let rpc_slots = lock(&self.inner.rpc_slots);
        let ready = &mut self.ready;
        let count = self.inner.completions.poll(|completion| {
            // A flushed entry of an abandoned slot.
            let Some(rpc_slot) = rpc_slots.get(&completion.number) else { return };
            let mut state = lock(&rpc_slot.state);
            if state.completed(completion.is_done, completion.received) {
                ready.push_back((completion.number, Arc::clone(rpc_slot)));
            }
        });
        drop(rpc_slots);
        self.inner.taken.fetch_sub(left, Ordering::SeqCst);
        count > 0
    }

    /// Carries out one request of each RPC slot that has one; true if it could carry out any.
    fn serve(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..self.ready.len() {
            let Some((number, rpc_slot)) = self.ready.pop_front() else { break };
            match self.turn(number, &rpc_slot) {
                Turn::Done => progress = true,
                Turn::Later => {}
                Turn::Idle => continue,
            }
            self.ready.push_back((number, rpc_slot));
        }
        progress
    }

    fn turn(&mut self, number: u64, rpc_slot: &RpcSlot) -> Turn {
        let mut state = lock(&rpc_slot.state);
        if !state.next(&mut self.message) {
            state.is_listed = false;
            return Turn::Idle;
        }
        // Not while a handler runs.
        drop(state);
        match rpc_slot.caller.call(&self.message, &mut self.answer) {
            Called::Later => return Turn::Later,
            Called::Done => {
                let mut state = lock(&rpc_slot.state);
                if state.answer(number, self.answer.bytes()).is_err() {
                    state.is_broken = true;
                }
            }
            Called::Shut => lock(&rpc_slot.state).is_broken = true,
            Called::Malformed => {
                tracing::warn!("what came by the card is not of this protocol: queue pair stopped");
                let mut state = lock(&rpc_slot.state);
                state.is_broken = true;
                state.pair.stop();
            }
        }
        Turn::Done
    }
}

impl RpcSlotState {
    /// Notes a completion; returns whether to list the slot from now on.
    fn completed(&mut self, is_done: bool, received: Option<u32>) -> bool {
        match received {
            _ if !is_done => self.is_broken = true,
            Some(bytes) => self.requests.came(bytes),
            None => self.requests.sent(),
        }
        let lists = !self.is_listed && self.requests.has_waiting();
        self.is_listed |= lists;
        lists
    }

    /// Copies the next request, if it can be answered.
    fn next(&mut self, message: &mut Vec<u8>) -> bool {
        if self.is_broken {
            return false;
        }
        let Some((request, bytes)) = self.requests.next() else { return false };
        self.pair.take(request, bytes, message).is_ok()
    }

    /// Posts the receive of the request that was carried out again, and then sends its answer (VERBS-8).
    fn answer(&mut self, number: u64, answer: &[u8]) -> io::Result<()> {
        let (request, next) = self.requests.carried_out();
        self.pair.expect(next, number)?;
        self.pair.send(request, answer, number)
    }
}
