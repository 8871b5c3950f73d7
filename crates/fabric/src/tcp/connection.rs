//! Client connection: sends one thread's requests to one server in the order of posting.
//!
//! The answers come back in the same order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::thread;

use super::TcpShared;
use super::inbox::{Ended, Inbox, Sink, Waiting};
use super::link::Link;
use super::marks::{LineMarks, Lines};
use super::output::Output;
use super::wire::{Request, call_head};
use crate::calls::UNDER_WAY_MAX;
use crate::sync::lock;
use crate::wake::Notify;
use crate::{
    CallError, ConnectionMark, Incarnation, OpError, OpErrorKind, Peer, ServerId, ServiceId,
};

/// Requests that are worth a message of their own, so that the server need not wait for the others.
const HURRY_MIN: usize = 8;

/// State of the connection.
#[derive(Debug)]
enum ConnectionState {
    Up(Link<TcpStream>),
    /// A thread is connecting. Posts wait for the result.
    Connecting(Arc<Mutex<Option<Connected>>>),
    Down,
    /// The server has cut this compute server off.
    Fenced,
}

type Connected = Result<(Link<TcpStream>, u64), Ended>;

#[derive(Debug)]
pub(super) struct Connection {
    server: ServerId,
    state: ConnectionState,
    /// The server's number for the last connection that there was.
    number: u64,
    output: Output,
    inbox: Inbox,
    /// Posts that wait for the new connection.
    reconnects: Vec<u32>,
    /// The compute server at the other end, if it is one.
    peer: Option<Peer>,
    /// Calls that wait for others to end (F12.10).
    blocked: VecDeque<(Waiting, ServiceId, Vec<u8>)>,
    /// Marks by which other threads may end it (F13), from the first one on.
    marks: Option<LineMarks>,
}

impl Connection {
    pub(super) fn new(server: ServerId) -> Self {
        Connection {
            server,
            state: ConnectionState::Down,
            number: 0,
            output: Output::default(),
            inbox: Inbox::default(),
            reconnects: Vec::new(),
            peer: None,
            blocked: VecDeque::new(),
            marks: None,
        }
    }

    /// To a compute server; it is not connected yet.
    pub(super) fn to_peer(peer: Peer) -> Self {
        Connection { peer: Some(peer), ..Connection::new(peer.server) }
    }

    pub(super) fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// The server's number of the last connection; 0 before the first one.
    #[cfg(feature = "verbs")]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Begins to connect, unless that has begun.
    pub(super) fn connect(&mut self, shared: &Arc<TcpShared>, notify: &Notify) {
        if matches!(self.state, ConnectionState::Down) {
            self.state = self.begin(shared, notify);
        }
    }

    /// Finds out whether an idle connection has ended meanwhile.
    pub(super) fn look(&mut self, sink: &mut impl Sink) {
        if self.is_up()
            && self.inbox.is_empty()
            && let Err(ended) = self.receive(sink)
        {
            self.end(ended, sink);
        }
    }

    /// Returns whether calls may be added: there is a connection, or will be, and the peer has not left.
    pub(super) fn takes_calls(&self) -> bool {
        self.takes_posts() && !self.inbox.has_left()
    }

    /// Adds a call; it is sent as soon as there are few enough.
    pub(super) fn call(&mut self, waiting: Waiting, service: ServiceId, request: Vec<u8>) {
        if self.inbox.calls() >= UNDER_WAY_MAX {
            return self.blocked.push_back((waiting, service, request));
        }
        let number = self.inbox.expect_reply(waiting);
        self.output.push(&call_head(number, service, request.len()).encode());
        self.output.push(&request);
    }

    /// Lets calls in that waited for others to end.
    fn let_in(&mut self, sink: &mut impl Sink) {
        if self.inbox.has_left() {
            self.refuse_blocked(sink);
        }
        while self.inbox.calls() < UNDER_WAY_MAX
            && let Some((waiting, service, request)) = self.blocked.pop_front()
        {
            self.call(waiting, service, request);
        }
    }

    /// The peer has ended its life or detached: everything fails.
    pub(super) fn part(&mut self, sink: &mut impl Sink) {
        let who = self.peer.map_or(Incarnation(0), |peer| peer.incarnation);
        // All that it sent before its end has arrived (F12.6).
        let _ = self.receive(sink);
        self.give_up(OpErrorKind::Gone { who }, sink);
    }

    /// Names the posts so far for other threads (F13); `None` if there was none. `waits` if operations wait that will
    /// go another way of the connection.
    pub(super) fn mark(&mut self, lines: &Arc<Lines>, waits: bool) -> Option<ConnectionMark> {
        let is_unsent =
            matches!(self.state, ConnectionState::Connecting(_)) && !self.inbox.is_empty();
        if self.number == 0 && !is_unsent && !waits {
            return None;
        }
        let number = self.number;
        let marks = self.marks.get_or_insert_with(|| lines.add(number));
        let (line, posts) = marks.take(is_unsent);
        let life = self.peer.map_or(ConnectionMark::MEMORY, |peer| peer.incarnation);
        Some(ConnectionMark { server: self.server, life, line, number, posts })
    }

    /// Returns whether another thread has ended connection `number` of this line (F13).
    pub(super) fn is_cut(&self, number: u64) -> bool {
        self.marks.as_ref().is_some_and(|marks| marks.is_cut(number))
    }

    /// Finds out whether another thread has ended it. Then everything under way fails, except for answers that
    /// have come.
    pub(super) fn look_for_cut(&mut self, sink: &mut impl Sink) {
        if self.is_up() && self.is_cut(self.number) {
            match self.receive(sink) {
                Ok(_) => self.lose(ConnectionState::Down, OpErrorKind::Timeout, sink),
                Err(ended) => self.end(ended, sink),
            }
        }
    }

    /// The server has let in connection `number`, on which waiting posts go, unless they are void (TCP-15).
    fn was_let_in(&mut self, number: u64, sink: &mut impl Sink) {
        if self.marks.as_mut().is_some_and(|marks| !marks.let_in(number)) {
            self.lose_posts(false, OpErrorKind::Timeout, sink);
        }
    }

    /// Takes a connection that the server has let in under `number`.
    pub(super) fn attach(&mut self, mut link: Link<TcpStream>, number: u64) -> io::Result<()> {
        link.socket().set_nonblocking(true)?;
        self.state = ConnectionState::Up(link);
        self.number = number;
        Ok(())
    }

    /// Returns whether the thread waits for answers or for the connection.
    pub(super) fn is_busy(&self) -> bool {
        !self.inbox.is_empty() || matches!(self.state, ConnectionState::Connecting(_))
    }

    /// Returns the socket if answers are to come, and whether there are bytes to send.
    pub(super) fn awaited(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.state {
            ConnectionState::Up(link) if !self.inbox.is_empty() => {
                Some((link.socket_ref().as_fd(), !self.output.is_empty() || link.is_pending()))
            }
            _ => None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, ConnectionState::Up(_))
    }

    /// Returns whether it accepts posts.
    #[inline]
    pub(super) fn takes_posts(&self) -> bool {
        matches!(self.state, ConnectionState::Up(_) | ConnectionState::Connecting(_))
    }

    /// Time of the oldest request's post.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.inbox.oldest_ns()
    }

    fn error(&self, kind: OpErrorKind) -> OpError {
        OpError { server: self.server, kind }
    }

    /// Returns the reason for which nothing can be posted, if there is one.
    pub(super) fn refusal(&self) -> Option<OpError> {
        match self.state {
            ConnectionState::Up(_) | ConnectionState::Connecting(_) => None,
            ConnectionState::Down => Some(self.error(OpErrorKind::Unavailable)),
            ConnectionState::Fenced => Some(self.error(OpErrorKind::Fenced)),
        }
    }

    /// Adds a request without operands, or their beginning; as [`Connection::post`].
    #[inline(always)]
    pub(super) fn post_head(&mut self, waiting: Waiting, request: Request) {
        self.output.push_head(request.encode());
        self.inbox.expect(waiting);
    }

    /// Adds a request; the next [`Connection::drive`] sends it.
    #[inline]
    pub(super) fn post(&mut self, waiting: Waiting, request: Request, operands: [&[u8]; 2]) {
        self.post_head(waiting, request);
        self.output.push(operands[0]);
        self.output.push(operands[1]);
    }

    /// Sends posts and takes answers; true if anything came.
    pub(super) fn drive(&mut self, now_ns: impl FnOnce() -> u64, sink: &mut impl Sink) -> bool {
        if self.inbox.is_empty() && !matches!(self.state, ConnectionState::Connecting(_)) {
            return false;
        }
        self.inbox.mark(now_ns);
        if let ConnectionState::Connecting(found) = &self.state {
            let found = lock(found).take();
            return match found {
                Some(found) => {
                    self.connected(found, sink);
                    true
                }
                None => false,
            };
        }
        // Requests being sent now have no answer yet; the executor comes again.
        let sends = !self.output.is_empty();
        let driven = match self.send() {
            Ok(()) if sends && self.output.is_empty() => return true,
            sent => sent.and_then(|()| self.receive(sink)),
        };
        match driven {
            Ok(count) => {
                if !self.blocked.is_empty() {
                    self.let_in(sink);
                }
                count > 0
            }
            Err(ended) => {
                self.end(ended, sink);
                true
            }
        }
    }

    /// Returns whether the server has nothing to do for this connection.
    pub(super) fn may_hurry(&self) -> bool {
        self.is_up() && !self.inbox.is_under_way()
    }

    /// Sends the posted requests if the server has nothing else to do for this connection, and they are worth
    /// a message of their own. The next [`Connection::drive`] sends the rest.
    pub(super) fn hurry(&mut self, now_ns: impl FnOnce() -> u64) {
        if self.may_hurry() && self.inbox.unmarked() >= HURRY_MIN {
            self.inbox.mark(now_ns);
            let _ = self.send();
        }
    }

    fn send(&mut self) -> Result<(), Ended> {
        let ConnectionState::Up(link) = &mut self.state else { return Ok(()) };
        while !self.output.is_empty() {
            match link.write(self.output.unsent()) {
                Ok(0) => return Err(Ended::Lost),
                Ok(count) => self.output.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The server's last word, that it has cut this side off, may still be there to read.
                Err(_) => self.output.clear(),
            }
        }
        if link.is_pending() {
            // The next call sends the rest, as above.
            let _ = link.flush();
        }
        Ok(())
    }

    /// Takes all answers that have come; returns their number.
    fn receive(&mut self, sink: &mut impl Sink) -> Result<usize, Ended> {
        let mut count = 0;
        let ConnectionState::Up(link) = &mut self.state else { return Ok(count) };
        loop {
            let room = self.inbox.room();
            let room_bytes = room.len();
            let bytes = match link.fill(room) {
                Ok(0) => return Err(Ended::Lost),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(_) => return Err(Ended::Lost),
            };
            let calls = self.inbox.calls();
            count += self.inbox.came(bytes, sink)?;
            count += calls - self.inbox.calls();
            if bytes < room_bytes {
                return Ok(count);
            }
        }
    }

    /// Gives up all requests, and a connection that does not come about.
    pub(super) fn give_up(&mut self, kind: OpErrorKind, sink: &mut impl Sink) {
        self.lose(ConnectionState::Down, kind, sink);
        self.tell_reconnects(Err(self.error(kind)), sink);
    }

    fn tell_reconnects(&mut self, result: Result<(), OpError>, sink: &mut impl Sink) {
        for slot in std::mem::take(&mut self.reconnects) {
            sink.reconnected(slot, result);
        }
    }

    fn end(&mut self, ended: Ended, sink: &mut impl Sink) {
        let state = match ended {
            Ended::Lost => ConnectionState::Down,
            Ended::Fenced => ConnectionState::Fenced,
        };
        self.lose(state, ended.kind(), sink);
    }

    fn lose(&mut self, state: ConnectionState, kind: OpErrorKind, sink: &mut impl Sink) {
        let is_sent = self.is_up();
        self.state = state;
        self.lose_posts(is_sent, kind, sink);
    }

    fn lose_posts(&mut self, is_sent: bool, kind: OpErrorKind, sink: &mut impl Sink) {
        if let Some(marks) = &mut self.marks {
            marks.nothing_waits();
        }
        self.output.clear();
        self.lose_calls(is_sent, kind, sink);
        let error = self.error(kind);
        self.inbox.lose(error, sink);
    }

    /// Calls that may have been written are `Unknown`, the others `NotBegun` (F12.3).
    fn lose_calls(&mut self, is_sent: bool, kind: OpErrorKind, sink: &mut impl Sink) {
        self.inbox.lose_calls(CallError::unanswered(is_sent, kind), sink);
        self.refuse_blocked(sink);
    }

    fn refuse_blocked(&mut self, sink: &mut impl Sink) {
        for (waiting, ..) in std::mem::take(&mut self.blocked) {
            sink.reply(waiting, Err(CallError::NotBegun));
        }
    }

    /// Begins to make a new connection, for the post `slot` (F10). Operations in flight fail.
    pub(super) fn reconnect(
        &mut self,
        slot: u32,
        shared: &Arc<TcpShared>,
        notify: &Notify,
        sink: &mut impl Sink,
    ) {
        match self.state {
            ConnectionState::Fenced => {
                let error = self.error(OpErrorKind::Fenced);
                return sink.reconnected(slot, Err(error));
            }
            // Another post has begun it. Posts since then have not been sent.
            ConnectionState::Connecting(_) => {
                self.reconnects.push(slot);
                return self.lose_posts(false, OpErrorKind::Timeout, sink);
            }
            ConnectionState::Up(_) | ConnectionState::Down => {}
        }
        let state = self.begin(shared, notify);
        self.lose(state, OpErrorKind::Timeout, sink);
        self.reconnects.push(slot);
    }

    /// Starts a thread that makes a new connection, in place of the last one.
    fn begin(&self, shared: &Arc<TcpShared>, notify: &Notify) -> ConnectionState {
        let found = Arc::new(Mutex::new(None));
        let (shared, notify) = (Arc::clone(shared), Arc::clone(notify));
        let (server, number, peer) = (self.server, self.number, self.peer);
        let put = Arc::clone(&found);
        // Connecting waits, and this thread has other work.
        let begun = thread::Builder::new().name("farleaf-connect".to_owned()).spawn(move || {
            let result = super::take_place(&shared, server, peer, shared.of_thread(), number);
            *lock(&put) = Some(result);
            notify();
        });
        if begun.is_err() {
            *lock(&found) = Some(Err(Ended::Lost));
        }
        ConnectionState::Connecting(found)
    }

    fn connected(&mut self, found: Connected, sink: &mut impl Sink) {
        let result = found.and_then(|(link, number)| {
            self.was_let_in(number, sink);
            self.attach(link, number).map_err(|_| Ended::Lost)
        });
        if let Err(ended) = result {
            self.end(ended, sink);
        }
        self.tell_reconnects(result.map_err(|ended| self.error(ended.kind())), sink);
    }
}
