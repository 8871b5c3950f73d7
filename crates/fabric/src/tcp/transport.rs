//! TCP transport: holds one thread's posts and its connections.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use super::TcpShared;
use super::connection::Connection;
use super::inbox::{Sink, Waiting};
use super::peers::Found;
use super::wire::{Request, RequestKind, Status, word_at};
use crate::exec::Driver;
use crate::post::{Carrier, Load};
use crate::posts::{self, Kept, Posts, Slot};
use crate::socket_waiter::SocketWaiter;
use crate::wake::Notify;
use crate::{
    Buf, CallError, ConnectionMark, Executor, FabricError, GlobalAddr, Incarnation, Op, OpError,
    OpErrorKind, Ops, Peer, ServerId, ServiceId, Words, access,
};

/// Drives after which the oldest requests' times are looked at.
const LOOK_EVERY: u32 = 1_024;

/// Content of a post; comes back with the results in it.
#[derive(Debug, Default)]
pub(crate) enum Payload {
    /// Nothing: the result has been taken, or the call was not begun.
    #[default]
    Empty,
    Op(Op),
    Chain(Ops),
    Batch(Ops),
    Rpc {
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
        reply_len: usize,
    },
    Fence(ServerId, Incarnation),
    IsDead(ServerId, Incarnation, bool),
    Reconnect(ServerId),
    /// A question about another way, which becomes the answer.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "only cards ask"))]
    Ask(ServerId, Vec<u8>),
    /// A call's request, which becomes the reply.
    Call(ServerId, ServiceId, Vec<u8>),
}

/// See [`Slot`].
const _: () = assert!(size_of::<Slot<Payload>>() == 64);

impl Load for Payload {
    #[inline]
    fn is_empty(&self) -> bool {
        matches!(self, Payload::Chain(ops) | Payload::Batch(ops) if ops.is_empty())
    }

    #[inline]
    fn into_op(self) -> Result<Op, Self> {
        match self {
            Payload::Op(op) => Ok(op),
            other => Err(other),
        }
    }

    #[inline]
    fn into_ops(self) -> Result<Ops, Self> {
        match self {
            Payload::Chain(ops) | Payload::Batch(ops) => Ok(ops),
            other => Err(other),
        }
    }
}

impl Kept for Payload {
    type Load = Payload;

    #[inline]
    fn exchange(&mut self, load: Payload) -> Payload {
        std::mem::replace(self, load)
    }
}

/// Posts of this thread.
#[derive(Debug, Default)]
pub(super) struct PostTable {
    pub(super) posts: Posts<Payload>,
    /// Bytes that each server exposes.
    region_bytes: Vec<u64>,
}

/// State that posting and driving change.
pub(crate) struct TransportState {
    table: PostTable,
    connections: Vec<Connection>,
    /// Connections to compute servers, from the first message on.
    peers: Vec<Connection>,
    /// Of what is known of peers.
    peers_version: u64,
    /// Numbers of compute servers that this thread has used, and what they stand for at that version.
    known: Vec<(ServerId, Known)>,
}

/// Memory that a compute server's number leads to.
#[derive(Clone)]
enum Known {
    Own(Arc<Words>),
    /// Of a peer with a region of so many bytes.
    Peer(u64),
    Gone(Incarnation),
    Nobody,
}

/// The connection to a server, if there is one.
fn line<'a>(
    connections: &'a mut [Connection],
    peers: &'a mut [Connection],
    server: ServerId,
) -> Option<&'a mut Connection> {
    match connections.get_mut(server.index()) {
        None => peers.iter_mut().find(|line| line.peer().is_some_and(|peer| peer.server == server)),
        found => found,
    }
}

/// A thread's way to all servers.
pub(crate) struct Transport {
    shared: Arc<TcpShared>,
    state: RefCell<TransportState>,
    waiter: SocketWaiter,
    /// Other descriptors to wait for.
    others: RefCell<Vec<OwnedFd>>,
    drives: Cell<u32>,
    start: Instant,
}

impl Transport {
    /// Connects to every server, waiting.
    pub(crate) fn connect(shared: Arc<TcpShared>) -> Result<Self, FabricError> {
        let own = FabricError::io("watch connections of", Path::new("this thread"));
        let waiter = SocketWaiter::new().map_err(&own)?;
        let mut connections = Vec::new();
        for server in 0..shared.config.servers.len() {
            let server = ServerId(server as u16);
            let (config, who) = (&shared.config, shared.incarnation);
            let (stream, welcome) = super::greet(config, who, server, shared.of_thread(), 0)?;
            let mut connection = Connection::new(server);
            connection.attach(stream, welcome.connection).map_err(&own)?;
            connections.push(connection);
        }
        let table = PostTable { region_bytes: shared.region_bytes(), ..PostTable::default() };
        Ok(Transport {
            shared,
            state: RefCell::new(TransportState {
                table,
                connections,
                peers: Vec::new(),
                peers_version: 0,
                known: Vec::new(),
            }),
            waiter,
            others: RefCell::default(),
            drives: Cell::new(0),
            start: Instant::now(),
        })
    }

    /// Its posts are those of `executor`'s tasks, mostly. The first call counts.
    pub(super) fn belongs_to(&self, executor: &Executor) {
        self.state.borrow_mut().table.posts.belong_to(executor);
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns whether this compute server has given the pool up.
    #[cfg(feature = "verbs")]
    pub(crate) fn has_given_up(&self) -> bool {
        self.shared.has_given_up()
    }

    /// See [`Driver::linger`]; `is_cut` if something else than a connection is.
    pub(crate) fn linger_beside(&self, kept: Duration, is_cut: bool) {
        let limit = self.shared.config.linger_timeout;
        if kept > limit
            && (is_cut || self.state.borrow().connections.iter().any(|line| !line.is_up()))
        {
            self.shared.give_up();
        }
    }

    /// Looks after the connections to compute servers: those that lead to nobody any more end.
    #[cold]
    fn check_peers(&self, state: &mut TransportState) {
        let calls = &self.shared.calls;
        let version = calls.version();
        if state.peers_version == version {
            return;
        }
        state.peers_version = version;
        state.known.clear();
        let TransportState { table, peers, .. } = state;
        peers.retain_mut(|line| {
            let stays = line.peer().is_some_and(|peer| {
                // The size of its region is no matter of the connection.
                let now = calls.peer(peer.server);
                now.is_some_and(|now| Peer { region_bytes: peer.region_bytes, ..now } == peer)
            });
            if stays {
                line.look_for_cut(table);
            } else {
                line.part(table);
            }
            stays
        });
    }

    /// Gets the connection to a compute server, if it is attached and lives.
    #[cold]
    fn prepare_peer(&self, state: &mut TransportState, server: ServerId) {
        self.check_peers(state);
        let Some(peer) = self.shared.calls.peer(server) else { return };
        let TransportState { table, connections, peers, .. } = state;
        if line(connections, peers, server).is_none() {
            peers.push(Connection::to_peer(peer));
        }
        if let Some(line) = line(connections, peers, server) {
            // A peer that has ended its life ends the connection, which nobody has read since.
            line.look(table);
            line.connect(&self.shared, self.waiter.notify());
        }
    }

    /// Returns the present meaning of a compute server's number.
    fn known(&self, state: &mut TransportState, server: ServerId) -> Known {
        self.check_peers(state);
        if let Some((_, known)) = state.known.iter().find(|(number, _)| *number == server) {
            return known.clone();
        }
        let calls = &self.shared.calls;
        let known = match (calls.own_region(server, self.shared.incarnation), calls.find(server)) {
            (Some(words), _) => Known::Own(Arc::clone(words)),
            (None, Found::Peer(peer)) => Known::Peer(peer.region_bytes),
            (None, Found::Dead(who)) => Known::Gone(who),
            (None, Found::Nobody) => Known::Nobody,
        };
        state.known.push((server, known.clone()));
        known
    }

    /// Looks at a post's operations on regions before any is sent: finds out which are to be refused, begins
    /// to connect, and does those on the own region, whose number it returns.
    ///
    /// # Errors
    /// That of a post of which nothing may be sent.
    #[cold]
    fn prepare_regions(
        &self,
        state: &mut TransportState,
        index: u32,
    ) -> Result<Option<ServerId>, OpError> {
        let servers: Vec<(GlobalAddr, usize)> = match &state.table.posts.slot(index).kept {
            Payload::Op(op) => vec![(op.addr(), op.bytes())],
            Payload::Chain(ops) | Payload::Batch(ops) => {
                ops.iter().map(|op| (op.addr(), op.bytes())).collect()
            }
            Payload::Rpc { server, service, .. } => {
                let kind = OpErrorKind::NoService { service: service.0 };
                return Err(OpError { server: *server, kind });
            }
            _ => return Ok(None),
        };
        let mut own = None;
        for (addr, bytes) in servers {
            let server = addr.server();
            if !server.is_compute() {
                continue;
            }
            let region_bytes = match self.known(state, server) {
                Known::Gone(who) => {
                    return Err(OpError { server, kind: OpErrorKind::Gone { who } });
                }
                Known::Nobody => 0,
                Known::Own(words) => {
                    own = Some((server, words));
                    continue;
                }
                Known::Peer(region_bytes) => region_bytes,
            };
            if addr.offset() + bytes as u64 > region_bytes {
                let kind = OpErrorKind::OutOfBounds { addr, bytes: bytes as u64, region_bytes };
                return Err(OpError { server, kind });
            }
            self.connect_peer(state, server);
        }
        let Some((server, words)) = own else { return Ok(None) };
        // The processor's atomics are those of the threads that serve the region.
        let run = |op: &mut Op| match op.addr().server() == server {
            true => access::run(Some(&words), op),
            false => Ok(()),
        };
        match &mut state.table.posts.slot(index).kept {
            Payload::Op(op) => run(op)?,
            Payload::Chain(ops) | Payload::Batch(ops) => ops.iter_mut().try_for_each(run)?,
            _ => {}
        }
        Ok(Some(server))
    }

    /// Has a connection to an attached compute server, up or on its way.
    fn connect_peer(&self, state: &mut TransportState, server: ServerId) {
        let TransportState { connections, peers, .. } = state;
        if let Some(line) = line(connections, peers, server) {
            return line.connect(&self.shared, self.waiter.notify());
        }
        if let Some(peer) = self.shared.calls.peer(server) {
            let mut line = Connection::to_peer(peer);
            line.connect(&self.shared, self.waiter.notify());
            peers.push(line);
        }
    }

    /// See [`crate::Endpoint::connection`]. `waits` if operations wait that will go another way of the connection.
    pub(crate) fn mark(&self, server: ServerId, waits: bool) -> Option<ConnectionMark> {
        let (calls, me) = (&self.shared.calls, self.shared.incarnation);
        // Operations on the own region are done when they are posted, or go by a way of their own.
        if server.is_compute() && calls.own_region(server, me).is_some() {
            return None;
        }
        let mut state = self.state.borrow_mut();
        self.check_peers(&mut state);
        let TransportState { connections, peers, .. } = &mut *state;
        if waits
            && line(connections, peers, server).is_none()
            && let Some(peer) = calls.peer(server)
        {
            peers.push(Connection::to_peer(peer));
        }
        let line = line(connections, peers, server);
        let mark = line.and_then(|line| line.mark(&self.shared.lines, waits));
        drop(state);
        // Posts to peers that have ended.
        posts::wake(&self.state);
        mark
    }

    /// Returns the number of the line's last connection to a server.
    #[cfg(feature = "verbs")]
    pub(crate) fn number(&self, server: ServerId) -> u64 {
        let TransportState { connections, peers, .. } = &mut *self.state.borrow_mut();
        line(connections, peers, server).map_or(0, |line| line.number())
    }

    /// Returns whether another thread has ended connection `number` to a server.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_cut(&self, server: ServerId, number: u64) -> bool {
        let TransportState { connections, peers, .. } = &mut *self.state.borrow_mut();
        line(connections, peers, server).is_some_and(|line| line.is_cut(number))
    }

    /// Operations since `oldest` that waited will go another way of the line's present connection. False if they
    /// have been ended (TCP-15).
    #[cfg(feature = "verbs")]
    pub(crate) fn carry(&self, line: u64, oldest: u64) -> bool {
        self.shared.lines.carry(line, oldest)
    }

    /// Has the connections send what stands in the slot.
    fn submit(&self, index: u32) {
        let mut state = self.state.borrow_mut();
        let given_up = self.shared.has_given_up();
        // The number of the own region, where the operations have been done.
        let mut own = None;
        if is_for_regions(&state.table.posts.slot(index).kept) {
            match self.prepare_regions(&mut state, index) {
                Ok(number) => own = number,
                Err(error) => {
                    state.table.posts.posted(index, Some(error));
                    if state.table.posts.wakes() {
                        drop(state);
                        posts::wake(&self.state);
                    }
                    return;
                }
            }
        }
        if let Payload::Call(server, ..)
        | Payload::Fence(server, _)
        | Payload::Reconnect(server)
        | Payload::Ask(server, _) = state.table.posts.slot(index).kept
            && server.is_compute()
            && !given_up
        {
            self.prepare_peer(&mut state, server);
        }
        let TransportState { table, connections, peers, .. } = &mut *state;
        if let Payload::Call(server, service, request) = &mut table.posts.slot(index).kept {
            let (server, service, request) = (*server, *service, std::mem::take(request));
            let slot = table.posts.slot(index);
            match line(connections, peers, server).filter(|line| !given_up && line.takes_calls()) {
                Some(line) => {
                    slot.missing = 1;
                    line.call(Waiting { slot: index, part: 0 }, service, request);
                }
                None => {
                    slot.kept = Payload::Empty;
                    table.posts.has_come(index);
                }
            }
        } else if let Payload::Reconnect(server) = table.posts.slot(index).kept {
            table.posts.slot(index).missing = 1;
            match line(connections, peers, server) {
                Some(_) if given_up => table.reconnected(index, Err(fenced(server))),
                Some(line) => line.reconnect(index, &self.shared, self.waiter.notify(), table),
                // Operations on the own region are done at once.
                None if self.shared.calls.own_region(server, self.shared.incarnation).is_some() => {
                    table.reconnected(index, Ok(()));
                }
                None => table.reconnected(index, Err(self.nobody(server, 0, 0))),
            }
        } else {
            let slot = table.posts.slot(index);
            let (mut part, mut refused) = (0, None);
            for_each_request(&slot.kept, |server, request, operands| {
                let waiting = Waiting { slot: index, part };
                part += 1;
                if own == Some(server) {
                    return;
                }
                let refusal = match line(connections, peers, server) {
                    None => {
                        let (addr, bytes) = target(&slot.kept, waiting.part as usize);
                        self.nobody(server, addr.offset(), bytes)
                    }
                    Some(_) if given_up => fenced(server),
                    Some(connection) => match connection.refusal() {
                        Some(error) => error,
                        None => {
                            slot.missing += 1;
                            return connection.post(waiting, request, operands);
                        }
                    },
                };
                refused.get_or_insert(refusal);
            });
            table.posts.posted(index, refused);
        }
        if !table.posts.wakes() {
            return;
        }
        drop(state);
        posts::wake(&self.state);
    }

    /// The error for a server that there is not, or whose life has ended.
    #[cold]
    fn nobody(&self, server: ServerId, offset: u64, bytes: usize) -> OpError {
        match self.shared.calls.find(server) {
            Found::Dead(who) => OpError { server, kind: OpErrorKind::Gone { who } },
            _ => access::out_of_bounds(None, GlobalAddr::new(server, offset), bytes),
        }
    }

    /// Gives up connections whose oldest request has waited for too long.
    fn check_time(&self) {
        let limit_ns = self.shared.config.op_timeout.as_nanos() as u64;
        let now_ns = self.now_ns();
        let TransportState { table, connections, peers, .. } = &mut *self.state.borrow_mut();
        for connection in connections.iter_mut().chain(peers) {
            if connection.oldest_ns().is_some_and(|posted| now_ns.saturating_sub(posted) > limit_ns)
            {
                connection.give_up(OpErrorKind::Timeout, table);
            }
        }
    }

    /// As [`Driver::drive`], for the connections to compute servers.
    #[cold]
    fn drive_peers(&self, state: &mut TransportState) -> bool {
        self.check_peers(state);
        let TransportState { table, peers, .. } = state;
        let mut progress = false;
        for line in peers {
            progress |= line.drive(|| self.now_ns(), table);
        }
        progress
    }
}

impl Carrier for Transport {
    type Table = TransportState;

    #[inline]
    fn table(&self) -> &RefCell<TransportState> {
        &self.state
    }

    fn post(&self, payload: Payload, context: &Context<'_>) -> u32 {
        let mut state = self.state.borrow_mut();
        let (index, slot, before) = state.table.posts.open(context);
        slot.kept.put(payload);
        drop(state);
        drop(before);
        self.submit(index);
        index
    }

    #[inline(always)]
    fn post_single(&self, is_read: bool, at: GlobalAddr, buf: Buf, context: &Context<'_>) -> u32 {
        let mut state = self.state.borrow_mut();
        let TransportState { table, connections, .. } = &mut *state;
        let (index, slot, before) = table.posts.open(context);
        let mut is_posted = false;
        if let Some(connection) = connections.get_mut(at.server().index())
            && connection.takes_posts()
            && !self.shared.has_given_up()
        {
            let waiting = Waiting { slot: index, part: 0 };
            let length = buf.window_len() as u32;
            if is_read {
                let request =
                    Request { verb: RequestKind::Read, more: false, length, offset: at.offset() };
                connection.post_head(waiting, request);
            } else {
                let request =
                    Request { verb: RequestKind::Write, more: false, length, offset: at.offset() };
                connection.post(waiting, request, [buf.window_bytes(), &[]]);
            }
            is_posted = true;
        }
        slot.missing = is_posted.into();
        slot.kept.put(match is_read {
            true => Payload::Op(Op::Read { from: at, into: buf }),
            false => Payload::Op(Op::Write { to: at, from: buf }),
        });
        drop(state);
        drop(before);
        if !is_posted {
            self.submit(index);
        }
        index
    }
}

impl Driver for Transport {
    fn drive(&self) -> bool {
        let mut progress = false;
        // A thread that never waits looks at the time, too.
        self.drives.set(self.drives.get().wrapping_add(1));
        if self.drives.get().is_multiple_of(LOOK_EVERY) {
            self.check_time();
        }
        {
            let mut state = self.state.borrow_mut();
            let TransportState { table, connections, peers, .. } = &mut *state;
            for connection in connections {
                progress |= connection.drive(|| self.now_ns(), table);
            }
            if !peers.is_empty() {
                progress |= self.drive_peers(&mut state);
            }
        }
        posts::wake(&self.state);
        progress
    }

    fn may_hurry(&self) -> bool {
        let state = self.state.borrow();
        state.connections.iter().chain(&state.peers).any(Connection::may_hurry)
    }

    fn hurry(&self) {
        let TransportState { connections, peers, .. } = &mut *self.state.borrow_mut();
        for connection in connections.iter_mut().chain(peers) {
            connection.hurry(|| self.now_ns());
        }
    }

    fn is_busy(&self) -> bool {
        let state = self.state.borrow();
        state.connections.iter().chain(&state.peers).any(Connection::is_busy)
    }

    fn wait(&self, at_most: Option<Duration>) {
        // The oldest request is looked at now and then.
        let limit = self.shared.config.op_timeout / 4;
        let at_most = match self.is_busy() {
            true => Some(at_most.map_or(limit, |at_most| at_most.min(limit))),
            false => at_most,
        };
        let state = self.state.borrow();
        let lines = state.connections.iter().chain(&state.peers);
        let sockets = lines.filter_map(Connection::awaited);
        let others = self.others.borrow();
        let others = others.iter().map(|other| (other.as_fd(), false));
        let waited = self.waiter.wait(sockets.chain(others), at_most);
        drop(state);
        if let Err(error) = waited
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Nothing can be waited for: go on asking instead.
            std::thread::yield_now();
        }
        self.check_time();
        posts::wake(&self.state);
    }

    fn watch(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        self.others.borrow_mut().push(other.try_clone_to_owned()?);
        Ok(())
    }

    /// An operation on an unreachable server may keep the caller.
    fn linger(&self, kept: Duration) {
        self.linger_beside(kept, false);
    }

    fn notifier(&self) -> Notify {
        Arc::clone(self.waiter.notify())
    }
}

impl posts::Table for TransportState {
    type Kept = Payload;

    #[inline(always)]
    fn posts(&mut self) -> &mut Posts<Payload> {
        &mut self.table.posts
    }
}

impl Sink for PostTable {
    #[inline]
    fn answer(&mut self, waiting: Waiting, status: Status, content: &[u8]) -> bool {
        let slot = self.posts.slot(waiting.slot);
        if status == Status::Done
            && let Payload::Op(Op::Read { into, .. }) = &mut slot.kept
            && content.len() == into.window_len()
        {
            // The most frequent answer.
            let at = into.window_start();
            into.bytes_mut()[at..at + content.len()].copy_from_slice(content);
            self.posts.came_back(waiting.slot);
            return true;
        }
        let part = waiting.part as usize;
        let mut fits = true;
        if status != Status::Done || !accept(&mut slot.kept, part, content) {
            let error = error_of(&slot.kept, part, status, &self.region_bytes);
            fits = error.kind != OpErrorKind::Unavailable || status == Status::Skipped;
            slot.fail(error);
        }
        self.posts.came_back(waiting.slot);
        fits
    }

    fn fail(&mut self, waiting: Waiting, error: OpError) {
        self.posts.failed(waiting.slot, error);
    }

    fn reply(&mut self, waiting: Waiting, outcome: Result<&[u8], CallError>) {
        let slot = self.posts.slot(waiting.slot);
        match (outcome, &mut slot.kept) {
            (Ok(bytes), Payload::Call(_, _, reply)) => *reply = bytes.to_vec(),
            (Err(CallError::Unknown(kind)), Payload::Call(server, ..)) => {
                let error = OpError { server: *server, kind };
                return self.posts.failed(waiting.slot, error);
            }
            (_, kept) => *kept = Payload::Empty,
        }
        self.posts.came_back(waiting.slot);
    }

    fn reconnected(&mut self, slot: u32, result: Result<(), OpError>) {
        self.posts.ended(slot, result);
    }
}

/// Puts what came where it belongs; false if it is not what was asked for.
#[inline]
fn accept(payload: &mut Payload, part: usize, content: &[u8]) -> bool {
    let op = match payload {
        Payload::Op(op) => op,
        Payload::Chain(ops) | Payload::Batch(ops) => ops.get_mut(part),
        Payload::Rpc { reply, reply_len, .. } => {
            let (at, room) = (reply.window_start(), reply.window_len());
            if content.len() > room {
                return false;
            }
            reply.bytes_mut()[at..at + content.len()].copy_from_slice(content);
            *reply_len = content.len();
            return true;
        }
        Payload::IsDead(_, _, is_dead) => {
            *is_dead = content == [1];
            return content.len() == 1;
        }
        Payload::Ask(_, text) => {
            text.clear();
            text.extend_from_slice(content);
            return true;
        }
        Payload::Fence(..) => return content.is_empty(),
        Payload::Empty | Payload::Reconnect(_) | Payload::Call(..) => return false,
    };
    match op {
        Op::Read { into, .. } => {
            let (at, len) = (into.window_start(), into.window_len());
            if content.len() != len {
                return false;
            }
            into.bytes_mut()[at..at + len].copy_from_slice(content);
            true
        }
        Op::Write { .. } | Op::WriteWord { .. } => content.is_empty(),
        Op::Cas { old, .. } | Op::Faa { old, .. } => {
            let fits = content.len() == 8;
            if fits {
                *old = word_at(content, 0);
            }
            fits
        }
    }
}

/// The error that a status stands for.
#[cold]
fn error_of(payload: &Payload, part: usize, status: Status, region_bytes: &[u64]) -> OpError {
    let (addr, bytes) = target(payload, part);
    let server = addr.server();
    let kind = match (status, payload) {
        (Status::OutOfBounds, _) => {
            let region_bytes = region_bytes.get(server.index()).copied().unwrap_or(0);
            OpErrorKind::OutOfBounds { addr, bytes: bytes as u64, region_bytes }
        }
        (Status::Misaligned, _) => OpErrorKind::Misaligned { addr },
        (Status::NoService, Payload::Rpc { service, .. }) => {
            OpErrorKind::NoService { service: service.0 }
        }
        (Status::NoService, Payload::Ask(..)) => OpErrorKind::NoService { service: 0 },
        (Status::StillAlive, _) => OpErrorKind::StillAlive,
        (Status::Fenced, _) => OpErrorKind::Fenced,
        // An answer that does not belong to its request: whatever it is, it is no answer.
        _ => OpErrorKind::Unavailable,
    };
    OpError { server, kind }
}

/// The error for whoever has given up.
#[cold]
fn fenced(server: ServerId) -> OpError {
    OpError { server, kind: OpErrorKind::Fenced }
}

/// Returns whether an operation of a post, or its RPC, goes to a compute server.
#[inline]
fn is_for_regions(payload: &Payload) -> bool {
    let is_compute = |op: &Op| op.addr().server().is_compute();
    match payload {
        Payload::Op(op) => is_compute(op),
        Payload::Chain(ops) => ops.server().is_some_and(ServerId::is_compute),
        Payload::Batch(ops) => ops.iter().any(is_compute),
        Payload::Rpc { server, .. } => server.is_compute(),
        _ => false,
    }
}

/// Returns the address of a part of a post, and the bytes that it moves.
fn target(payload: &Payload, part: usize) -> (GlobalAddr, usize) {
    match payload {
        Payload::Op(op) => (op.addr(), op.bytes()),
        Payload::Chain(ops) | Payload::Batch(ops) => (ops.get(part).addr(), ops.get(part).bytes()),
        Payload::Rpc { server, .. }
        | Payload::Fence(server, _)
        | Payload::IsDead(server, ..)
        | Payload::Reconnect(server)
        | Payload::Ask(server, ..)
        | Payload::Call(server, ..) => (GlobalAddr::new(*server, 0), 0),
        Payload::Empty => (GlobalAddr::NULL, 0),
    }
}

/// Calls `each` with the server, the request and the operands of every part of a post.
#[inline]
pub(super) fn for_each_request(
    payload: &Payload,
    mut each: impl FnMut(ServerId, Request, [&[u8]; 2]),
) {
    match payload {
        Payload::Empty | Payload::Reconnect(_) | Payload::Call(..) => {}
        Payload::Op(op) => request_of(op, false, &mut each),
        Payload::Chain(ops) => {
            let last = ops.len() - 1;
            ops.iter().enumerate().for_each(|(part, op)| request_of(op, part < last, &mut each));
        }
        Payload::Batch(ops) => ops.iter().for_each(|op| request_of(op, false, &mut each)),
        Payload::Rpc { server, service, request, reply, .. } => {
            let offset = (reply.window_len() as u64) << 32 | u64::from(service.0);
            let bytes = request.window_bytes();
            let request =
                Request { verb: RequestKind::Rpc, more: false, length: bytes.len() as u32, offset };
            each(*server, request, [bytes, &[]]);
        }
        Payload::Fence(server, who) => {
            let request = Request { verb: RequestKind::Fence, more: false, length: 8, offset: 0 };
            each(*server, request, [&who.0.to_le_bytes(), &[]]);
        }
        Payload::IsDead(server, who, _) => {
            let request = Request { verb: RequestKind::IsDead, more: false, length: 8, offset: 0 };
            each(*server, request, [&who.0.to_le_bytes(), &[]]);
        }
        Payload::Ask(server, question) => {
            let length = question.len() as u32;
            let request = Request { verb: RequestKind::Ask, more: false, length, offset: 0 };
            each(*server, request, [question, &[]]);
        }
    }
}

#[inline]
fn request_of(op: &Op, more: bool, each: &mut impl FnMut(ServerId, Request, [&[u8]; 2])) {
    let (server, offset) = (op.addr().server(), op.addr().offset());
    let of = |verb, length: usize| Request { verb, more, length: length as u32, offset };
    match op {
        Op::Read { into, .. } => each(server, of(RequestKind::Read, into.window_len()), [&[], &[]]),
        Op::Write { from, .. } => {
            let bytes = from.window_bytes();
            each(server, of(RequestKind::Write, bytes.len()), [bytes, &[]]);
        }
        Op::WriteWord { value, .. } => {
            each(server, of(RequestKind::WriteWord, 8), [&value.to_le_bytes(), &[]]);
        }
        Op::Cas { expected, new, .. } => {
            each(server, of(RequestKind::Cas, 16), [&expected.to_le_bytes(), &new.to_le_bytes()]);
        }
        Op::Faa { add, .. } => each(server, of(RequestKind::Faa, 8), [&add.to_le_bytes(), &[]]),
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transport({} servers)", self.state.borrow().connections.len())
    }
}
