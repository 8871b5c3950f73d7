//! Verbs transport: drives one thread's queue pairs.
//!
//! - **VERBS-5** Operations to a server go out in the order of posting, on one queue pair. While there
//!   is none, they wait for the next one or never go out (F10).
//! - **VERBS-6** The transport cuts a queue pair that has lost one operation: all outstanding
//!   operations on it have failed, and none touches this side's memory any more.
//! - **VERBS-14** A queue leads to one memory server, to one life of another compute server, or to the own
//!   region. When the process attaches another life to the number, or learns of the life's end, everything
//!   on the queue fails with `Gone`, and a later operation gets another queue (F11.5, F11.6).
//! - **VERBS-15** Operations that wait for a queue pair and were named to other threads (F13) go out only if the
//!   connection of that queue pair stands for them (TCP-15). If their mark was ended before, they never go out.

use std::cell::{Cell, OnceCell, RefCell};
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
use super::server::End;
use crate::exec::Driver;
use crate::post::Carrier;
use crate::posts::{self, Kept};
use crate::raw::verbs::{Completion, Completions, HeldLoad, Hold, SendQueue, Work, send_queue_of};
use crate::tcp::{self, Found, TcpCalls};
use crate::wake::Notify;
use crate::{
    Buf, ConnectionMark, Executor, FabricError, GlobalAddr, Incarnation, Op, OpError, OpErrorKind,
    Peer, ServerId, access,
};

/// Drives after which the thread reads the clock.
const LOOK_EVERY: u32 = 1_024;
/// Silence after which the transport probes whether the server's queue pair is still there: a message that
/// was sent in whole does not fail by itself.
const PROBE_EVERY: Duration = Duration::from_millis(200);

/// Memory that a queue leads to (VERBS-14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Target {
    /// None now: the next compute server gets the queue.
    #[default]
    Free,
    Memory(ServerId),
    /// The region that this compute server exposes.
    Own(ServerId),
    Peer(Peer),
}

impl Target {
    /// The number that leads there.
    pub(super) fn server(self) -> ServerId {
        match self {
            Target::Free => ServerId::MAX,
            Target::Memory(server) | Target::Own(server) => server,
            Target::Peer(peer) => peer.server,
        }
    }

    fn is_memory(self) -> bool {
        matches!(self, Target::Memory(_))
    }
}

/// Meaning of a server's number for this thread.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The queue of that index leads there, to so many bytes.
    Queue(usize, u64),
    /// The life has ended.
    Gone(Incarnation),
    /// There is no such server, or it exposes nothing.
    Nobody,
}

/// Starts a task that connects the queue of that index, by that attempt.
pub(super) type Connector = Box<dyn Fn(usize, u64)>;

/// State of the queue pair.
#[derive(Debug, Default)]
enum PairState {
    Up(Box<SendQueue>),
    /// A task is connecting one. Posts wait for it.
    Connecting,
    /// At a memory server until the thread reconnects, at a compute server until the next post.
    #[default]
    Down,
    /// The server has cut this compute server off.
    Fenced,
}

#[derive(Debug, Default)]
struct ServerQueue {
    target: Target,
    pair: PairState,
    /// The other end of a queue pair with the own region.
    own_end: Option<End>,
    /// Counts attempts to connect: the result of an earlier one is dropped.
    attempt: u64,
    /// The present attempt ends all earlier operations and calls (F10).
    renews: bool,
    /// Number of the connection to which the queue pair belongs.
    connection: u64,
    /// Line and count of the oldest operation that waits and was named to other threads (F13), if there is one.
    named: Option<(u64, u64)>,
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
    /// Queues that a post needs, and attempts to connect them.
    needed: Vec<(usize, u64)>,
    /// Version of what the process knows of peers.
    peers_version: u64,
    /// Numbers of compute servers that this thread has used, with their meaning at that version.
    known: Vec<(ServerId, Place)>,
}

/// A thread's way to all servers: queue pairs for operations, and connections for all else.
pub(super) struct Transport {
    tcp: Rc<tcp::Transport>,
    /// Of the memory servers, and then of compute servers, some to each.
    completions: RefCell<Vec<Arc<Completions>>>,
    /// Bytes that each memory server exposes.
    region_bytes: Vec<u64>,
    calls: Arc<TcpCalls>,
    me: Incarnation,
    connector: OnceCell<Connector>,
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
        (calls, me): (Arc<TcpCalls>, Incarnation),
        op_timeout: Duration,
        list_max: usize,
    ) -> Result<Self, FabricError> {
        let servers = (0..region_bytes.len()).map(|server| ServerId(server as u16));
        let targets = servers.map(Target::Memory);
        let queues = targets.map(|target| ServerQueue { target, ..ServerQueue::default() });
        let state = TransportState { queues: queues.collect(), ..TransportState::default() };
        let transport = Transport {
            tcp,
            completions: RefCell::default(),
            region_bytes,
            calls,
            me,
            connector: OnceCell::new(),
            op_timeout,
            list_max,
            state: RefCell::new(state),
            drives: Cell::new(0),
            start: Instant::now(),
        };
        transport.add_completions(completions)?;
        Ok(transport)
    }

    /// Takes completions of one more queue from here on.
    pub(super) fn add_completions(&self, completions: Arc<Completions>) -> Result<(), FabricError> {
        let failed = FabricError::io("watch completions of", Path::new("this thread"));
        self.tcp.watch(completions.as_fd()).map_err(failed)?;
        self.completions.borrow_mut().push(completions);
        Ok(())
    }

    /// Names what connects queues to compute servers. The first call counts.
    pub(super) fn connect_by(&self, connector: Connector) {
        let _ = self.connector.set(connector);
    }

    /// Looks after the queues to compute servers: those that lead to nobody any more end (VERBS-14).
    #[cold]
    fn check_peers(&self, state: &mut TransportState) {
        let version = self.calls.version();
        if state.peers_version == version {
            return;
        }
        state.peers_version = version;
        state.known.clear();
        let TransportState { queues, posts, answer, .. } = state;
        let stays = |target| match target {
            Target::Free | Target::Memory(_) => true,
            Target::Own(server) => self.calls.own_region(server, self.me).is_some(),
            // The size of its region is no matter of the queue.
            Target::Peer(peer) => self
                .calls
                .peer(peer.server)
                .is_some_and(|now| Peer { region_bytes: peer.region_bytes, ..now } == peer),
        };
        // Another thread has ended its connection, and the queue pair with it (F13).
        let is_cut = |queue: &ServerQueue| {
            matches!((queue.target, &queue.pair), (Target::Peer(_), PairState::Up(_)))
                && self.tcp.is_cut(queue.target.server(), queue.connection)
        };
        if queues.iter().all(|queue| stays(queue.target) && !is_cut(queue)) {
            return;
        }
        // An operation that has completed so far has succeeded.
        self.take_completions(queues, posts, answer);
        for queue in queues.iter_mut() {
            if stays(queue.target) {
                if is_cut(queue) {
                    let error =
                        OpError { server: queue.target.server(), kind: OpErrorKind::Timeout };
                    queue.lose(PairState::Down, error, posts);
                }
                continue;
            }
            let (server, who) = match queue.target {
                Target::Peer(peer) => (peer.server, peer.incarnation),
                target => (target.server(), self.me),
            };
            let error = OpError { server, kind: OpErrorKind::Gone { who } };
            queue.lose(PairState::Down, error, posts);
            for slot in std::mem::take(&mut queue.reconnects) {
                posts.ended(slot, Err(error));
            }
            queue.target = Target::Free;
            queue.attempt += 1;
        }
    }

    /// Returns the present meaning of a server's number.
    #[inline]
    fn place(&self, state: &mut TransportState, server: ServerId) -> Place {
        match self.region_bytes.get(server.index()) {
            Some(bytes) => Place::Queue(server.index(), *bytes),
            None if server.is_compute() => self.place_of_compute(state, server),
            None => Place::Nobody,
        }
    }

    #[cold]
    fn place_of_compute(&self, state: &mut TransportState, server: ServerId) -> Place {
        self.check_peers(state);
        if let Some((_, place)) = state.known.iter().find(|(number, _)| *number == server) {
            return *place;
        }
        let found = (self.calls.own_region(server, self.me), self.calls.find(server));
        let (target, bytes) = match found {
            (Some(words), _) => (Target::Own(server), words.bytes()),
            (None, Found::Peer(peer)) => (Target::Peer(peer), peer.region_bytes),
            (None, Found::Dead(_) | Found::Nobody) => (Target::Free, 0),
        };
        let place = match (bytes, found.1) {
            (0, Found::Dead(who)) => Place::Gone(who),
            (0, _) => Place::Nobody,
            _ => Place::Queue(state.queue_to(target), bytes),
        };
        state.known.push((server, place));
        place
    }

    /// Returns whether operations on a compute server's memory have a queue.
    pub(super) fn has_queue(&self, server: ServerId) -> bool {
        let mut state = self.state.borrow_mut();
        matches!(self.place(&mut state, server), Place::Queue(..))
    }

    /// Returns what the queue of that index leads to, if that attempt to connect it still counts.
    pub(super) fn target(&self, index: usize, attempt: u64) -> Option<Target> {
        let state = self.state.borrow();
        let queue = &state.queues[index];
        (queue.attempt == attempt && queue.target != Target::Free).then_some(queue.target)
    }

    /// Has tasks connect the queues that a post needs.
    #[cold]
    fn connect_needed(&self) {
        let needed = std::mem::take(&mut self.state.borrow_mut().needed);
        if let Some(connector) = self.connector.get() {
            needed.into_iter().for_each(|(index, attempt)| connector(index, attempt));
        }
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
    fn refusal_of(&self, queue: &ServerQueue) -> Option<OpError> {
        let error = |kind| Some(OpError { server: queue.target.server(), kind });
        if self.tcp.has_given_up() {
            return error(OpErrorKind::Fenced);
        }
        match queue.pair {
            PairState::Up(_) | PairState::Connecting => None,
            PairState::Down if queue.target.is_memory() => error(OpErrorKind::Unavailable),
            PairState::Down => None,
            PairState::Fenced => error(OpErrorKind::Fenced),
        }
    }

    /// Returns the reason for which an operation cannot be posted, if there is one.
    fn refusal(&self, queues: &[ServerQueue], place: Place, op: &Op) -> Option<OpError> {
        let (addr, bytes) = (op.addr(), op.bytes());
        let server = addr.server();
        let error = |kind| Some(OpError { server, kind });
        let (index, region_bytes) = match place {
            Place::Queue(index, region_bytes) => (index, region_bytes),
            Place::Gone(who) => return error(OpErrorKind::Gone { who }),
            Place::Nobody => return Some(access::out_of_bounds(None, addr, bytes)),
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
        self.refusal_of(&queues[index])
    }

    /// Begins to connect a new queue pair (F10). Returns the slot to wait for, and the queue and attempt that
    /// the caller has to connect, if nobody does. Operations in flight fail.
    pub(super) fn reconnect(
        &self,
        server: ServerId,
        context: &Context<'_>,
    ) -> (u32, Option<(usize, u64)>) {
        let mut state = self.state.borrow_mut();
        let place = self.place(&mut state, server);
        let TransportState { queues, posts, answer, .. } = &mut *state;
        let (index, _, before) = posts.open(context);
        let mut begins = None;
        let refused = match place {
            Place::Nobody => Some(access::out_of_bounds(None, GlobalAddr::new(server, 0), 0)),
            Place::Gone(who) => Some(OpError { server, kind: OpErrorKind::Gone { who } }),
            Place::Queue(at, _)
                if matches!(queues[at].pair, PairState::Fenced) || self.tcp.has_given_up() =>
            {
                Some(OpError { server, kind: OpErrorKind::Fenced })
            }
            Place::Queue(at, _) => {
                let queue = &mut queues[at];
                if !matches!(queue.pair, PairState::Connecting) || !queue.renews {
                    queue.attempt += 1;
                    queue.renews = true;
                    begins = Some((at, queue.attempt));
                    if let PairState::Up(send_queue) = &mut queue.pair {
                        send_queue.stop();
                    }
                    // An operation that has completed so far has succeeded.
                    self.take_completions(queues, posts, answer);
                }
                let queue = &mut queues[at];
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

    /// See [`crate::Endpoint::connection`]. Operations that wait for a queue pair are named as well (VERBS-15).
    pub(super) fn mark(&self, server: ServerId) -> Option<ConnectionMark> {
        let mut state = self.state.borrow_mut();
        let place = self.place(&mut state, server);
        let queue = match place {
            Place::Queue(index, _) => Some(&mut state.queues[index]),
            Place::Gone(_) | Place::Nobody => None,
        };
        let waiting =
            queue.filter(|queue| matches!(queue.pair, PairState::Connecting) && queue.is_waiting());
        let mark = self.tcp.mark(server, waiting.is_some());
        if let (Some(queue), Some(mark)) = (waiting, mark) {
            queue.named.get_or_insert((mark.line, mark.posts - 1));
        }
        drop(state);
        posts::wake(&self.state);
        mark
    }

    /// Returns whether that attempt to connect is to end all earlier operations and calls (F10).
    pub(super) fn renews(&self, index: usize) -> bool {
        self.state.borrow().queues[index].renews
    }

    /// Returns the first number of the queue's next send queue.
    pub(super) fn next(&self, index: usize) -> u64 {
        self.state.borrow().queues[index].next
    }

    /// A queue pair was connected by that attempt, with its other end if that is in this process, or the
    /// attempt failed.
    pub(super) fn connected(
        &self,
        index: usize,
        attempt: u64,
        result: Result<(SendQueue, Option<End>), OpErrorKind>,
    ) {
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, .. } = &mut *state;
        let queue = &mut queues[index];
        if queue.attempt != attempt {
            return;
        }
        queue.has_moved = true;
        queue.renews = false;
        let server = queue.target.server();
        let result = match result {
            Ok((send_queue, own_end)) => {
                if let Some((line, oldest)) = queue.named.take()
                    && !self.tcp.carry(line, oldest)
                {
                    let error = OpError { server, kind: OpErrorKind::Timeout };
                    queue.lose(PairState::Connecting, error, posts);
                }
                queue.connection = self.tcp.number(server);
                queue.own_end = own_end;
                queue.takes_calls = send_queue.takes_messages();
                if !queue.takes_calls {
                    // A caller that tries again goes by the connection.
                    queue.calls.lose(queue.unavailable(), posts);
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
        for queue in queues.iter_mut() {
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
                queue.lose(PairState::Down, queue.unavailable(), posts);
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
        let mut take = |completion: Completion| {
            let (index, count) = send_queue_of(completion.number);
            let Some(queue) = queues.get_mut(index) else { return };
            let PairState::Up(send_queue) = &mut queue.pair else { return };
            if let Some(bytes) = completion.received.filter(|_| completion.is_done) {
                let Some(heard) = send_queue.heard(count, bytes, answer) else { return };
                if heard.is_err() || !queue.calls.answered(answer, posts) {
                    queue.lose(PairState::Down, queue.unavailable(), posts);
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
                queue.lose(PairState::Down, queue.unavailable(), posts);
            }
        };
        let all = self.completions.borrow();
        all.iter().map(|completions| completions.poll(&mut take)).sum::<usize>() > 0
    }

    /// Gives up servers on which nothing moves.
    fn check_time(&self) {
        let limit_ns = self.op_timeout.as_nanos() as u64;
        let now_ns = self.now_ns();
        let mut state = self.state.borrow_mut();
        let TransportState { queues, posts, .. } = &mut *state;
        for queue in queues.iter_mut() {
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
            let error = OpError { server: queue.target.server(), kind: OpErrorKind::Timeout };
            match queue.pair {
                // The connecting goes on.
                PairState::Connecting => queue.lose(PairState::Connecting, error, posts),
                _ => queue.lose(PairState::Down, error, posts),
            }
        }
    }
}

impl TransportState {
    /// Index of the queue to a compute server's memory; makes one if there is none.
    fn queue_to(&mut self, target: Target) -> usize {
        // The bytes of a peer's region are no matter of its queue.
        let same = |queue: &ServerQueue| match (queue.target, target) {
            (Target::Peer(one), Target::Peer(other)) => {
                Peer { region_bytes: other.region_bytes, ..one } == other
            }
            (one, other) => one == other,
        };
        let is_free = |queue: &ServerQueue| queue.target == Target::Free;
        let found = self.queues.iter().position(same);
        let index = found.or_else(|| self.queues.iter().position(is_free));
        let index = index.unwrap_or_else(|| {
            self.queues.push(ServerQueue::default());
            self.queues.len() - 1
        });
        self.queues[index].target = target;
        index
    }

    /// Adds an operation to a queue. A queue to a compute server is connected at its first one, and at the
    /// first one after it was lost.
    fn push(&mut self, index: usize, work: Work) {
        let TransportState { queues, needed, .. } = self;
        let queue = &mut queues[index];
        if matches!(queue.pair, PairState::Down) {
            queue.pair = PairState::Connecting;
            queue.attempt += 1;
            needed.push((index, queue.attempt));
        }
        queue.has_moved |= !queue.has_operations();
        queue.backlog.push_back(work);
    }
}

impl ServerQueue {
    fn unavailable(&self) -> OpError {
        OpError { server: self.target.server(), kind: OpErrorKind::Unavailable }
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
        self.own_end = None;
        self.named = None;
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
        let mut planned = std::mem::take(&mut state.planned);
        let mut plan = Plan::new(matches!(load, HeldLoad::Chain(_)));
        let (mut refused, mut called) = (None, None);
        match &load {
            HeldLoad::Call(call) => {
                refused = self.refusal_of(&state.queues[call.server.index()]);
                called = Some(call.server).filter(|_| refused.is_none());
            }
            load => {
                // Planned before the load is given away.
                for (op, part) in load.ops().zip(0..) {
                    let place = self.place(&mut state, op.addr().server());
                    refused = self.refusal(&state.queues, place, op);
                    match place {
                        _ if refused.is_some() => break,
                        Place::Queue(index, _) if op.bytes() > 0 => {
                            planned.push((index, part, plan.is_fenced(op)));
                        }
                        _ => {}
                    }
                }
            }
        }
        if refused.is_some() {
            planned.clear();
        }
        let (index, slot, before) = state.posts.open(context);
        slot.kept.put(load);
        if let Some(server) = called {
            let hold = state.posts.part(index);
            state.queues[server.index()].calls.push(index, hold);
        }
        for (queue, part, is_fenced) in planned.drain(..) {
            let hold = state.posts.part(index);
            state.push(queue, Work { hold, part, slot: index, is_fenced });
        }
        state.planned = planned;
        let is_done = state.posts.posted(index, refused);
        let connects = !state.needed.is_empty();
        drop(state);
        drop(before);
        if connects {
            self.connect_needed();
        }
        if is_done {
            posts::wake(&self.state);
        }
        index
    }

    #[inline]
    fn post_single(&self, is_read: bool, at: GlobalAddr, buf: Buf, context: &Context<'_>) -> u32 {
        let mut state = self.state.borrow_mut();
        let (place, bytes) = (self.place(&mut state, at.server()), buf.window_len());
        let op = match is_read {
            true => Op::Read { from: at, into: buf },
            false => Op::Write { to: at, from: buf },
        };
        let refused = self.refusal(&state.queues, place, &op);
        let (index, slot, before) = state.posts.open(context);
        slot.kept.put(HeldLoad::One(op));
        if let Place::Queue(queue, _) = place
            && refused.is_none()
            && bytes > 0
        {
            let hold = state.posts.part(index);
            state.push(queue, Work { hold, part: 0, slot: index, is_fenced: false });
            let connects = !state.needed.is_empty();
            drop(state);
            drop(before);
            if connects {
                self.connect_needed();
            }
        } else {
            state.posts.posted(index, refused);
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
        if self.state.borrow().queues.len() > self.region_bytes.len() {
            self.check_peers(&mut self.state.borrow_mut());
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
                let mut is_armed = true;
                self.completions.borrow().iter().for_each(|queue| is_armed &= queue.arm());
                if self.advance() || !is_armed {
                    return posts::wake(&self.state);
                }
                let limit = (self.op_timeout / 4).min(PROBE_EVERY);
                Some(at_most.map_or(limit, |at_most| at_most.min(limit)))
            }
            false => at_most,
        };
        self.tcp.wait(at_most);
        self.completions.borrow().iter().for_each(|queue| queue.take_events());
        self.check_time();
        posts::wake(&self.state);
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.tcp.watch(other)
    }

    /// The card may be cut off from a memory server whose connection is up.
    fn linger(&self, kept: Duration) {
        let is_cut = self
            .state
            .borrow()
            .queues
            .iter()
            .any(|queue| queue.target.is_memory() && !matches!(queue.pair, PairState::Up(_)));
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
