//! Verbs transport: drives one thread's queue pairs.
//!
//! - **VERBS-5** Operations to a server go out in the order of posting, on one queue pair. While there
//!   is none, they wait for the next one or never go out (F10).
//! - **VERBS-6** The transport cuts a queue pair that has lost one operation: all outstanding
//!   operations on it have failed, and none touches this side's memory any more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::posts::CardPosts;
use crate::exec::Driver;
use crate::post::Carrier;
use crate::posts::{self, Kept};
use crate::raw::verbs::{Completions, HeldLoad, Hold, SendQueue, Work, send_queue_of};
use crate::tcp;
use crate::wake::Notify;
use crate::{Buf, Executor, FabricError, GlobalAddr, Op, OpError, OpErrorKind, ServerId, access};

/// Drives after which the thread reads the clock.
const LOOK_EVERY: u32 = 1_024;
/// Silence after which the transport probes whether the server's queue pair is still there: a message that
/// was sent in whole does not fail by itself.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// State of the queue pair.
#[derive(Debug, Default)]
enum PairState {
    Up(Box<SendQueue>),
    /// A task is connecting one. Posts wait for it.
    Connecting,
    #[default]
    Down,
    /// The server has cut this compute server off.
    Fenced,
}

#[derive(Debug, Default)]
struct ServerQueue {
    pair: PairState,
    backlog: VecDeque<Work>,
    calls: Calls,
    /// RPCs go by the card.
    takes_calls: bool,
    /// Posts that wait for the new queue pair.
    reconnects: Vec<u32>,
    /// First number of the next send queue, so that no completion of an older one counts for it.
    next: u64,
    /// Something has moved, or began to wait, since the clock was read.
    has_moved: bool,
    /// Time of that, as far as it is known.
    moved_ns: u64,
    /// Lists that were posted on send queues that are gone, and work requests in them.
    posted: (u64, u64),
}

#[derive(Default)]
pub(crate) struct TransportState {
    queues: Vec<ServerQueue>,
    posts: CardPosts,
    /// Parts of a list in posting: server, part, fence flag. Kept for its memory.
    planned: Vec<(usize, u32, bool)>,
    /// The answer that has come, kept for its memory.
    answer: Vec<u8>,
}

/// A thread's way to all servers: queue pairs for operations, and connections for all else.
pub(super) struct Transport {
    tcp: Rc<tcp::Transport>,
    completions: Arc<Completions>,
    region_bytes: Vec<u64>,
    op_timeout: Duration,
    list_max: usize,
    state: RefCell<TransportState>,
    drives: Cell<u32>,
    start: Instant,
}

impl Transport {
    /// With no queue pair yet.
    pub(super) fn new(
        tcp: Rc<tcp::Transport>,
        completions: Arc<Completions>,
        region_bytes: Vec<u64>,
        op_timeout: Duration,
        list_max: usize,
    ) -> Result<Self, FabricError> {
        let failed = FabricError::io("watch completions of", Path::new("this thread"));
        tcp.watch(completions.as_fd()).map_err(failed)?;
        let queues = region_bytes.iter().map(|_| ServerQueue::default()).collect();
        let state = TransportState { queues, ..TransportState::default() };
        Ok(Transport {
            tcp,
            completions,
            region_bytes,
            op_timeout,
            list_max,
            state: RefCell::new(state),
            drives: Cell::new(0),
            start: Instant::now(),
        })
    }

    /// Names the executor whose tasks post most. The first call counts.
    pub(super) fn belongs_to(&self, executor: &Executor) {
        self.state.borrow_mut().posts.belong_to(executor);
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Lists that were posted so far, and work requests in them.
    pub(super) fn posted(&self) -> (u64, u64) {
        self.state.borrow().queues.iter().fold((0, 0), |sum, queue| {
            let (lists, requests) = queue.posted();
            (sum.0 + lists, sum.1 + requests)
        })
    }

    /// Returns whether short RPCs to a server go by the card.
    pub(super) fn takes_calls(&self, server: ServerId) -> bool {
        self.state.borrow().queues.get(server.index()).is_some_and(|queue| queue.takes_calls)
    }

    /// Returns the reason for which nothing can be posted to a server, if there is one.
    fn refusal_of(&self, queues: &[ServerQueue], server: ServerId) -> Option<OpError> {
        let error = |kind| Some(OpError { server, kind });
        if self.tcp.has_given_up() {
            return error(OpErrorKind::Fenced);
        }
        match queues[server.index()].pair {
            PairState::Up(_) | PairState::Connecting => None,
            PairState::Down => error(OpErrorKind::Unavailable),
            PairState::Fenced => error(OpErrorKind::Fenced),
        }
    }

    /// Returns the reason for which an operation cannot be posted, if there is one.
    fn refusal(&self, queues: &[ServerQueue], op: &Op) -> Option<OpError> {
        let (addr, bytes) = (op.addr(), op.bytes());
        let server = addr.server();
        let error = |kind| Some(OpError { server, kind });
        let Some(region_bytes) = self.region_bytes.get(server.index()).copied() else {
            return Some(access::out_of_bounds(None, addr, bytes));
        };
        if addr.offset() + bytes as u64 > region_bytes {
            return error(OpErrorKind::OutOfBounds { addr, bytes: bytes as u64, region_bytes });
        }
        let is_registered = match op {
            Op::Read { into: buf, .. } | Op::Write { from: buf, .. } => buf.is_registered(),
            Op::WriteWord { .. } | Op::Cas { .. } | Op::Faa { .. } => {
                if !addr.offset().is_multiple_of(8) {
                    return error(OpErrorKind::Misaligned { addr });
                }
                true
            }
        };
        if !is_registered && bytes > 0 {
            return error(OpErrorKind::Unregistered);
        }
        self.refusal_of(queues, server)
    }

    /// Begins to connect a new queue pair (F10). Returns the slot to wait for, and whether the caller has to
    /// connect. Operations in flight fail.
    pub(super) fn reconnect(&self, server: ServerId, context: &Context<'_>) -> (u32, bool) {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, answer, .. } = &mut *state;
        let (index, _, before) = posts.open(context);
        let mut begins = false;
        let refused = match queues.get_mut(server.index()) {
            None => Some(access::out_of_bounds(None, GlobalAddr::new(server, 0), 0)),
            Some(ServerQueue { pair, .. })
                if matches!(pair, PairState::Fenced) || self.tcp.has_given_up() =>
            {
                Some(OpError { server, kind: OpErrorKind::Fenced })
            }
            Some(queue) => {
                if !matches!(queue.pair, PairState::Connecting) {
                    begins = true;
                    if let PairState::Up(send_queue) = &mut queue.pair {
                        send_queue.stop();
                    }
                    // An operation that has completed so far has succeeded.
                    self.take_completions(queues, posts, answer);
                }
                let queue = &mut queues[server.index()];
                let error = OpError { server, kind: OpErrorKind::Timeout };
                queue.lose(PairState::Connecting, error, posts);
                queue.reconnects.push(index);
                posts.wait(index);
                None
            }
        };
        posts.posted(index, refused);
        drop(state);
        drop(before);
        posts::wake(&self.state);
        (index, begins)
    }

    /// Returns the first number of the next send queue to a server.
    pub(super) fn next(&self, server: ServerId) -> u64 {
        self.state.borrow().queues[server.index()].next
    }

    /// A queue pair was connected, or the attempt failed.
    pub(super) fn connected(&self, server: ServerId, result: Result<SendQueue, OpErrorKind>) {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, .. } = &mut *state;
        let queue = &mut queues[server.index()];
        queue.has_moved = true;
        let result = match result {
            Ok(send_queue) => {
                queue.takes_calls = send_queue.takes_messages();
                if !queue.takes_calls {
                    // A caller that tries again goes by the connection.
                    queue.calls.lose(unavailable(server.index()), posts);
                }
                queue.pair = PairState::Up(Box::new(send_queue));
                Ok(())
            }
            Err(kind) => {
                let error = OpError { server, kind };
                let is_fenced = kind == OpErrorKind::Fenced;
                let pair = if is_fenced { PairState::Fenced } else { PairState::Down };
                queue.lose(pair, error, posts);
                Err(error)
            }
        };
        for slot in std::mem::take(&mut queue.reconnects) {
            posts.ended(slot, result);
        }
        drop(state);
        posts::wake(&self.state);
    }

    /// Posts waiting operations and takes completions; true if anything moved.
    fn advance(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, answer, .. } = &mut *state;
        let (mut progress, mut in_flight) = (false, false);
        for (server, queue) in queues.iter_mut().enumerate() {
            let PairState::Up(send_queue) = &mut queue.pair else { continue };
            let was_idle = send_queue.in_flight() == 0;
            let mut given = queue.calls.send(send_queue);
            if given.is_ok() && (!queue.backlog.is_empty() || send_queue.has_unposted()) {
                given = send_queue.post(&mut queue.backlog, self.list_max).map(|count| {
                    progress |= count > 0;
                    queue.has_moved |= was_idle && count > 0;
                });
            }
            if given.is_err() {
                queue.lose(PairState::Down, unavailable(server), posts);
                progress = true;
                continue;
            }
            in_flight |= send_queue.in_flight() > 0 || queue.calls.awaits();
        }
        if in_flight {
            progress |= self.take_completions(queues, posts, answer);
        }
        drop(state);
        progress
    }

    fn take_completions(
        &self,
        queues: &mut [ServerQueue],
        posts: &mut CardPosts,
        answer: &mut Vec<u8>,
    ) -> bool {
        let count = self.completions.poll(|completion| {
            let (server, count) = send_queue_of(completion.number);
            let Some(queue) = queues.get_mut(server) else { return };
            let PairState::Up(send_queue) = &mut queue.pair else { return };
            if let Some(bytes) = completion.received.filter(|_| completion.is_done) {
                let Some(heard) = send_queue.heard(count, bytes, answer) else { return };
                if heard.is_err() || !queue.calls.answered(answer, posts) {
                    queue.lose(PairState::Down, unavailable(server), posts);
                }
                return;
            }
            if completion.received.is_some() || !send_queue.is_outstanding(count) {
                return;
            }
            if completion.is_done {
                send_queue.retire(count, |slot| posts.came_back(slot));
                queue.has_moved = true;
            } else {
                queue.lose(PairState::Down, unavailable(server), posts);
            }
        });
        count > 0
    }

    /// Gives up servers on which nothing moves.
    fn check_time(&self) {
        let limit_ns = self.op_timeout.as_nanos() as u64;
        let now_ns = self.now_ns();
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, .. } = &mut *state;
        for (server, queue) in queues.iter_mut().enumerate() {
            if std::mem::take(&mut queue.has_moved) {
                queue.moved_ns = now_ns;
            }
            let called_ns = queue.calls.look(now_ns);
            let is_stuck =
                queue.has_operations() && now_ns.saturating_sub(queue.moved_ns) > limit_ns;
            if !is_stuck && called_ns <= limit_ns {
                if let PairState::Up(send_queue) = &mut queue.pair
                    && queue.calls.is_due(called_ns, now_ns, PROBE_EVERY.as_nanos() as u64)
                {
                    send_queue.probe();
                }
                continue;
            }
            let error = OpError { server: ServerId(server as u16), kind: OpErrorKind::Timeout };
            match queue.pair {
                // The connecting goes on.
                PairState::Connecting => queue.lose(PairState::Connecting, error, posts),
                _ => queue.lose(PairState::Down, error, posts),
            }
        }
    }
}

fn unavailable(server: usize) -> OpError {
    OpError { server: ServerId(server as u16), kind: OpErrorKind::Unavailable }
}

impl ServerQueue {
    fn push(&mut self, work: Work) {
        self.has_moved |= !self.has_operations();
        self.backlog.push_back(work);
    }

    /// Lists that were posted so far, and work requests in them.
    fn posted(&self) -> (u64, u64) {
        match &self.pair {
            PairState::Up(send_queue) => {
                let (lists, requests) = send_queue.posted();
                (self.posted.0 + lists, self.posted.1 + requests)
            }
            _ => self.posted,
        }
    }

    /// Returns whether anybody waits for it.
    fn is_waiting(&self) -> bool {
        self.has_operations() || !self.calls.is_empty()
    }

    /// Returns whether operations are in flight, or wait to be posted.
    fn has_operations(&self) -> bool {
        let in_flight =
            matches!(&self.pair, PairState::Up(send_queue) if send_queue.in_flight() > 0);
        in_flight || !self.backlog.is_empty()
    }

    /// Cuts the queue pair, if there is one; all outstanding and waiting operations fail (VERBS-6).
    fn lose(&mut self, pair: PairState, error: OpError, posts: &mut CardPosts) {
        self.posted = self.posted();
        if let PairState::Up(mut send_queue) = std::mem::replace(&mut self.pair, pair) {
            send_queue.cut(|slot| posts.failed(slot, error));
            self.next = send_queue.next();
        }
        self.calls.lose(error, posts);
        for work in self.backlog.drain(..) {
            let slot = work.slot;
            drop(work);
            posts.failed(slot, error);
        }
    }
}

/// Fence flags of a list's operations: the flag makes an operation wait for those in front of it.
///
/// A reliable connection carries requests out in the order of posting, with one exception: it answers READs
/// and atomics later, and a request behind them need not wait for that. So in a chain, the operation behind a
/// READ gets the fence flag, and so does a WRITE behind an atomic. The card carries out READs and atomics
/// behind an atomic in order by itself. `docs/design/verbs.md` has the table.
struct Plan {
    is_chain: bool,
    read: bool,
    atomic: bool,
}

impl Plan {
    fn new(is_chain: bool) -> Plan {
        Plan { is_chain, read: false, atomic: false }
    }

    /// Returns whether the next operation gets the fence flag.
    fn is_fenced(&mut self, op: &Op) -> bool {
        if !self.is_chain {
            return false;
        }
        let is_write = matches!(op, Op::Write { .. } | Op::WriteWord { .. });
        let is_fenced = self.read || self.atomic && is_write;
        if is_fenced {
            (self.read, self.atomic) = (false, false);
        }
        self.read |= matches!(op, Op::Read { .. });
        self.atomic |= matches!(op, Op::Cas { .. } | Op::Faa { .. });
        is_fenced
    }
}

impl Carrier for Transport {
    type Table = TransportState;

    #[inline]
    fn table(&self) -> &RefCell<TransportState> {
        &self.state
    }

    fn post(&self, load: HeldLoad, context: &Context<'_>) -> u32 {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, planned, .. } = &mut *state;
        let refused = match &load {
            HeldLoad::Call(call) => self.refusal_of(queues, call.server),
            load => load.ops().find_map(|op| self.refusal(queues, op)),
        };
        let mut plan = Plan::new(matches!(load, HeldLoad::Chain(_)));
        let mut called = None;
        match &load {
            _ if refused.is_some() => {}
            HeldLoad::Call(call) => called = Some(call.server),
            load => {
                // Planned before the load is given away.
                let parts = load.ops().zip(0..).filter(|(op, _)| op.bytes() > 0);
                planned.extend(
                    parts.map(|(op, part)| (op.addr().server().index(), part, plan.is_fenced(op))),
                );
            }
        }
        let (index, slot, before) = posts.open(context);
        slot.kept.put(load);
        if let Some(server) = called {
            let hold = posts.part(index);
            queues[server.index()].calls.push(index, hold);
        }
        for (server, part, is_fenced) in planned.drain(..) {
            let hold = posts.part(index);
            queues[server].push(Work { hold, part, slot: index, is_fenced });
        }
        let is_done = posts.posted(index, refused);
        drop(state);
        drop(before);
        if is_done {
            posts::wake(&self.state);
        }
        index
    }

    #[inline]
    fn post_single(&self, is_read: bool, at: GlobalAddr, buf: Buf, context: &Context<'_>) -> u32 {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, .. } = &mut *state;
        let (server, bytes) = (at.server().index(), buf.window_len());
        let op = match is_read {
            true => Op::Read { from: at, into: buf },
            false => Op::Write { to: at, from: buf },
        };
        let refused = self.refusal(queues, &op);
        let (index, slot, before) = posts.open(context);
        slot.kept.put(HeldLoad::One(op));
        if refused.is_none() && bytes > 0 {
            let hold = posts.part(index);
            queues[server].push(Work { hold, part: 0, slot: index, is_fenced: false });
            drop(state);
            drop(before);
        } else {
            posts.posted(index, refused);
            drop(state);
            drop(before);
            posts::wake(&self.state);
        }
        index
    }
}

impl posts::Table for TransportState {
    type Kept = Rc<Hold>;

    #[inline]
    fn posts(&mut self) -> &mut CardPosts {
        &mut self.posts
    }
}

impl Driver for Transport {
    fn drive(&self) -> bool {
        let mut progress = self.tcp.drive();
        self.drives.set(self.drives.get().wrapping_add(1));
        if self.drives.get().is_multiple_of(LOOK_EVERY) {
            self.check_time();
        }
        progress |= self.advance();
        posts::wake(&self.state);
        progress
    }

    fn is_busy(&self) -> bool {
        self.tcp.is_busy() || self.state.borrow().queues.iter().any(ServerQueue::is_waiting)
    }

    fn wait(&self, at_most: Option<Duration>) {
        let is_waiting = self.state.borrow().queues.iter().any(ServerQueue::is_waiting);
        let at_most = match is_waiting {
            true => {
                // A completion between the poll and the wait raises an event; an earlier one does not.
                let is_armed = self.completions.arm();
                if self.advance() || !is_armed {
                    return posts::wake(&self.state);
                }
                let limit = (self.op_timeout / 4).min(PROBE_EVERY);
                Some(at_most.map_or(limit, |at_most| at_most.min(limit)))
            }
            false => at_most,
        };
        self.tcp.wait(at_most);
        self.completions.take_events();
        self.check_time();
        posts::wake(&self.state);
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.tcp.watch(other)
    }

    /// The card may be cut off from a server whose connection is up.
    fn linger(&self, kept: Duration) {
        let is_cut =
            self.state.borrow().queues.iter().any(|queue| !matches!(queue.pair, PairState::Up(_)));
        self.tcp.linger_beside(kept, is_cut);
    }

    fn notifier(&self) -> Notify {
        self.tcp.notifier()
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transport({} servers)", self.region_bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::SlabRef;
    use crate::{Buf, Ops};

    fn fences(build: impl FnOnce(&mut Ops, &dyn Fn() -> Buf), is_chain: bool) -> Vec<bool> {
        let slab = SlabRef::new();
        let mut ops = Ops::new(slab.clone());
        build(&mut ops, &|| slab.buf(8));
        let mut plan = Plan::new(is_chain);
        ops.iter().map(|op| plan.is_fenced(op)).collect()
    }

    const AT: GlobalAddr = GlobalAddr::NULL;

    #[test]
    fn an_operation_behind_a_read_is_fenced() {
        let build = |ops: &mut Ops, buf: &dyn Fn() -> Buf| {
            ops.read(AT, buf());
            ops.write(AT, buf());
            ops.cas(AT, 0, 0);
            ops.read(AT, buf());
            ops.read(AT, buf());
            ops.faa(AT, 0);
            ops.faa(AT, 0);
            ops.write_word(AT, 0);
            ops.write_word(AT, 0);
        };
        let wanted = [false, true, false, false, true, true, false, true, false];
        assert_eq!(fences(build, true), wanted);
        assert_eq!(fences(build, false), [false; 9], "a batch has no order");
    }

    #[test]
    fn the_usual_chain_waits_for_nothing() {
        let build = |ops: &mut Ops, buf: &dyn Fn() -> Buf| {
            ops.write(AT, buf());
            ops.write(AT, buf());
            ops.cas(AT, 0, 0);
            ops.read(AT, buf());
        };
        assert_eq!(fences(build, true), [false; 4]);
    }
}
