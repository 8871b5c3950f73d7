//! Server worker: one thread of a memory server, with its sockets.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::SPIN;
use super::link::Link;
use super::listening::Listening;
use super::loss::notice_loss;
use super::output::Output;
use super::served::Tally;
use super::server::{LISTENER, ServerShared, WAKER};
use super::session::{Gone, Session, UNSENT_MAX};
use super::wire::GreetingStatus;
use crate::sync::lock;
use crate::wake::Notify;

/// Connections up to which a spinning thread polls each socket itself rather than the system for all.
const HOT_MAX: usize = 4;
/// Events for which a connection is registered.
const INTEREST: Interest = Interest::READABLE.add(Interest::WRITABLE);
/// Busy turns after which the thread deregisters a connection from the system, because the registration costs
/// the sender at each message.
const OWN_FROM: u32 = 64;
/// Polls in vain after which the thread registers a connection again.
const VAIN_MAX: u32 = 256;
/// Rounds after which a spinning thread also asks the system, for new connections.
const ROUNDS_MAX: u32 = 64;
/// Rounds for which the thread asks only the system, once more connections were busy than can be hot.
const CROWDED_ROUNDS: u32 = 4_096;
/// Room to read into, at first.
const INPUT_BYTES: usize = 64 << 10;
/// Connections beyond the limit that may still greet, and learn that there is no room.
const STRANGERS_MAX: usize = 256;
/// Refusals that a thread logs in a second.
const REFUSALS_TOLD: u32 = 10;
/// Leases after which a silent compute server's connections are closed, because it is gone.
const SILENT_LEASES: u64 = 20;

/// A connection that was busy recently.
struct Hot {
    at: usize,
    /// Rounds in which it was busy.
    busy: u32,
    /// Polls in vain since then.
    vain: u32,
    /// Only this thread watches it: it is not registered.
    is_own: bool,
}

pub(super) struct Worker {
    shared: Arc<ServerShared>,
    number: usize,
    poll: Poll,
    listener: Option<Listening<TcpListener>>,
    /// The thread has to ask the listener again, without an event.
    listens_again: bool,
    connections: Vec<Option<ServedConnection>>,
    /// Connections that were busy recently.
    hot: Vec<Hot>,
    /// Rounds for which none is hot.
    crowded: u32,
    /// Connections that have not greeted.
    strangers: usize,
    next_inbox: usize,
    looked_at: Instant,
    refusals: Refusals,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<ServerShared>,
        number: usize,
        poll: Poll,
        listener: Option<Listening<TcpListener>>,
    ) -> Self {
        Worker {
            shared,
            number,
            poll,
            listener,
            listens_again: false,
            connections: Vec::new(),
            hot: Vec::new(),
            crowded: 0,
            strangers: 0,
            next_inbox: 0,
            looked_at: Instant::now(),
            refusals: Refusals { since: Instant::now(), told: 0, left_out: 0 },
        }
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut busy_at = Instant::now();
        let mut rounds = 0;
        while !self.shared.stopping.load(Ordering::SeqCst) {
            let spins = busy_at.elapsed() < SPIN;
            let mut progress = false;
            if spins {
                progress |= self.ask_the_hot();
                self.crowded = self.crowded.saturating_sub(1);
                rounds += 1;
            } else {
                self.give_all_back();
            }
            if !spins || self.hot.is_empty() || rounds > ROUNDS_MAX {
                rounds = 0;
                let wait = if spins { Some(Duration::ZERO) } else { self.patience() };
                if let Err(error) = self.poll.poll(&mut events, wait)
                    && error.kind() != io::ErrorKind::Interrupted
                {
                    return;
                }
                for event in &events {
                    match event.token() {
                        LISTENER => self.listens_again = true,
                        WAKER => {
                            self.adopt();
                            progress |= self.send_replies();
                        }
                        Token(at) => {
                            if self.turn(at, event.is_read_closed()) {
                                progress = true;
                                self.heat(at);
                            }
                        }
                    }
                }
                if self.listens_again {
                    self.accept();
                }
                self.send_away();
            }
            if progress {
                busy_at = Instant::now();
            } else if spins {
                thread::yield_now();
            }
        }
    }

    /// Polls the sockets of the recently busy connections; true if one still is.
    fn ask_the_hot(&mut self) -> bool {
        let mut progress = false;
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain_mut(|hot| {
            if self.turn(hot.at, false) {
                (hot.vain, hot.busy) = (0, hot.busy + 1);
                progress = true;
                if hot.busy == OWN_FROM {
                    hot.is_own = self.disown(hot.at);
                }
            } else {
                hot.vain += 1;
            }
            if self.connections.get(hot.at).is_none_or(Option::is_none) {
                return false;
            }
            let stays = hot.vain < VAIN_MAX;
            if !stays {
                self.give_back(hot);
            }
            stays
        });
        self.hot = hot;
        progress
    }

    /// Marks a connection as busy.
    fn heat(&mut self, at: usize) {
        if self.crowded > 0 || self.hot.iter().any(|hot| hot.at == at) {
            return;
        }
        if self.hot.len() == HOT_MAX {
            self.give_all_back();
            self.hot.clear();
            self.crowded = CROWDED_ROUNDS;
        } else {
            self.hot.push(Hot { at, busy: 0, vain: 0, is_own: false });
        }
    }

    /// Deregisters a connection; returns whether that succeeded.
    fn disown(&mut self, at: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(at) else { return false };
        self.poll.registry().deregister(connection.link.socket()).is_ok()
    }

    /// Registers a connection again; the system tells at once of bytes that have come meanwhile.
    fn give_back(&mut self, hot: &mut Hot) {
        hot.busy = 0;
        if !std::mem::take(&mut hot.is_own) {
            return;
        }
        let Some(Some(connection)) = self.connections.get_mut(hot.at) else { return };
        let socket = connection.link.socket();
        if self.poll.registry().register(socket, Token(hot.at), INTEREST).is_err() {
            // Nobody would watch it.
            let is_stranger = connection.session.is_stranger();
            self.close(hot.at, is_stranger, &Gone::Ended);
        }
    }

    fn give_all_back(&mut self) {
        let mut hot = std::mem::take(&mut self.hot);
        hot.iter_mut().for_each(|hot| self.give_back(hot));
        self.hot = hot;
    }

    /// Returns how long this thread may sleep if nothing comes.
    fn patience(&self) -> Option<Duration> {
        if self.listens_again {
            Some(Duration::from_millis(10))
        } else if self.connections.is_empty() {
            None
        } else {
            Some(self.look_every())
        }
    }

    fn look_every(&self) -> Duration {
        let silent = Duration::from_millis(self.silent_ms_max() / 2);
        if self.strangers > 0 { silent.min(self.shared.greeting_timeout / 5) } else { silent }
    }

    fn silent_ms_max(&self) -> u64 {
        u64::from(self.shared.host.lease_ms) * SILENT_LEASES
    }

    fn accept(&mut self) {
        self.listens_again = false;
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, peer)) => {
                    let most = self.shared.host.connections_max + STRANGERS_MAX;
                    if self.shared.open.load(Ordering::Relaxed) >= most {
                        Tally::one(&self.shared.host.served.refused);
                        if let Some(left_out) = self.refusals.may_tell() {
                            let server = self.shared.host.server.0;
                            tracing::warn!(server, %peer, left_out, why = %GreetingStatus::Full, "refused");
                        }
                        continue;
                    }
                    self.shared.open.fetch_add(1, Ordering::Relaxed);
                    let inbox = &self.shared.inboxes[self.next_inbox];
                    self.next_inbox = (self.next_inbox + 1) % self.shared.inboxes.len();
                    lock(&inbox.streams).push(stream);
                    // A thread that has ended serves nobody.
                    let _ = inbox.waker.wake();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Out of descriptors, for now.
                Err(_) => {
                    self.listens_again = true;
                    return;
                }
            }
        }
    }

    fn adopt(&mut self) {
        let inbox = &self.shared.inboxes[self.number].streams;
        let streams = std::mem::take(&mut *lock(inbox));
        for mut stream in streams {
            let peer = stream.peer_addr().ok();
            let open = self.connections.iter().position(Option::is_none);
            let at = open.unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let registered = self.poll.registry().register(&mut stream, Token(at), INTEREST);
            let link = registered
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| Link::accept(stream, self.shared.tls.as_ref()));
            if let Ok(link) = link {
                self.strangers += 1;
                let session = match &self.shared.host.call_server {
                    None => Session::default(),
                    Some(_) => {
                        // A caller may wait silently for long.
                        let _ = notice_loss(link.socket_ref());
                        Session::notifying(self.notify(at))
                    }
                };
                self.connections[at] = Some(ServedConnection::new(link, peer, session));
                self.turn(at, false);
            } else {
                self.shared.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Sends the replies to calls that other threads have put; true if it did something.
    fn send_replies(&mut self) -> bool {
        let inbox = &self.shared.inboxes[self.number].replied;
        let replied = std::mem::take(&mut *lock(inbox));
        let mut progress = false;
        for at in replied {
            progress |= self.turn(at, false);
        }
        progress
    }

    /// Returns the function by which other threads say that the connection `at` has replies to send.
    fn notify(&self, at: usize) -> Notify {
        let (shared, number) = (Arc::downgrade(&self.shared), self.number);
        Arc::new(move || {
            // A server that has stopped sends nothing.
            let Some(shared) = shared.upgrade() else { return };
            let inbox = &shared.inboxes[number];
            lock(&inbox.replied).push(at);
            let _ = inbox.waker.wake();
        })
    }

    /// Does the work of one connection; true if there was any.
    fn turn(&mut self, at: usize, is_closed: bool) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(at) else { return false };
        let was_stranger = connection.session.is_stranger();
        let turned = connection.turn(&self.shared, is_closed);
        if was_stranger && turned.is_ok() && !connection.session.is_stranger() {
            self.strangers -= 1;
        }
        match turned {
            Ok(progress) => progress,
            Err(gone) => {
                self.close(at, was_stranger, &gone);
                true
            }
        }
    }

    fn close(&mut self, at: usize, is_stranger: bool, gone: &Gone) {
        if let Some(closed) = self.connections[at].take() {
            self.tell_end(&closed, gone);
        }
        // Another connection may get its slot.
        self.hot.retain(|hot| hot.at != at);
        self.strangers -= usize::from(is_stranger);
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        while self.connections.last().is_some_and(Option::is_none) {
            self.connections.pop();
        }
    }

    /// Counts and logs the end of a connection.
    fn tell_end(&mut self, closed: &ServedConnection, gone: &Gone) {
        let server = self.shared.host.server.0;
        let peer = closed.peer.map(tracing::field::display);
        if closed.session.is_stranger() {
            Tally::one(&self.shared.host.served.refused);
            let Some(left_out) = self.refusals.may_tell() else { return };
            match closed.session.refused() {
                Some(status) => tracing::warn!(server, peer, left_out, why = %status, "refused"),
                None => tracing::warn!(server, peer, left_out, why = %gone, "refused"),
            }
        } else if matches!(gone, Gone::Nonsense | Gone::Uncut | Gone::Silent) {
            tracing::warn!(server, peer, why = %gone, "closed");
        } else {
            tracing::debug!(server, peer, why = %gone, "closed");
        }
    }

    /// Closes the connections of silent clients that have not greeted, and of those that have been silent for
    /// too long.
    fn send_away(&mut self) {
        if self.connections.is_empty() || self.looked_at.elapsed() < self.look_every() {
            return;
        }
        self.looked_at = Instant::now();
        let (now_ms, most_ms) = (self.shared.host.now_ms(), self.silent_ms_max());
        for at in (0..self.connections.len()).rev() {
            let Some(Some(connection)) = self.connections.get(at) else { continue };
            let is_stranger = connection.session.is_stranger();
            let is_late = is_stranger && connection.since.elapsed() > self.shared.greeting_timeout;
            // Compute servers send each other no signs of life.
            let is_silent = connection.session.silent_ms(now_ms) > most_ms
                && self.shared.host.call_server.is_none();
            if is_late || is_silent {
                self.close(at, is_stranger, &Gone::Silent);
            }
        }
    }
}

/// Logged refusals: so few per second that connection attempts fill no disk.
struct Refusals {
    since: Instant,
    told: u32,
    left_out: u32,
}

impl Refusals {
    /// Returns whether to log one more, with the number of unlogged ones before it.
    fn may_tell(&mut self) -> Option<u32> {
        if self.since.elapsed() > Duration::from_secs(1) {
            (self.since, self.told) = (Instant::now(), 0);
        }
        if self.told == REFUSALS_TOLD {
            self.left_out += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

struct ServedConnection {
    link: Link<TcpStream>,
    /// Address of the other side, as far as the system knows.
    peer: Option<SocketAddr>,
    session: Session,
    since: Instant,
    /// Received bytes, those from `taken` to `filled` not carried out yet.
    input: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Some of it was left until answers have been sent (TCP-6).
    is_held: bool,
    /// Nothing more comes.
    is_closed: bool,
    output: Output,
}

impl ServedConnection {
    fn new(link: Link<TcpStream>, peer: Option<SocketAddr>, session: Session) -> Self {
        ServedConnection {
            link,
            peer,
            session,
            since: Instant::now(),
            input: Vec::new(),
            taken: 0,
            filled: 0,
            is_held: false,
            is_closed: false,
            output: Output::default(),
        }
    }

    /// Sends, carries out and receives until one of them has to wait; true if it did anything.
    fn turn(&mut self, shared: &ServerShared, is_closed: bool) -> Result<bool, Gone> {
        let mut progress = false;
        loop {
            self.session.put_replies(&mut self.output);
            progress |= self.send()?;
            if self.has_sent_all() {
                self.session.sent();
            }
            if self.output.unsent_bytes() > UNSENT_MAX {
                return Ok(progress);
            }
            if self.session.ends() {
                return if self.has_sent_all() { Err(Gone::Ended) } else { Ok(progress) };
            }
            if self.is_held {
                self.take(shared)?;
                progress = true;
                continue;
            }
            if self.is_closed {
                // A client that has shut down its sending side still gets the answers.
                return if self.has_sent_all() { Err(Gone::Ended) } else { Ok(progress) };
            }
            let (count, is_full) = self.receive()?;
            if count == 0 && !self.is_closed {
                return Ok(progress);
            }
            progress = true;
            if count > 0 {
                self.take(shared)?;
            }
            // Saves one more read. But the system does not notify again of an end behind these bytes.
            let may_go_on = is_full || is_closed || self.is_closed || self.is_held;
            if !may_go_on && !self.session.is_stranger() && !self.session.ends() {
                self.send()?;
                return Ok(true);
            }
        }
    }

    /// Carries out the received requests.
    fn take(&mut self, shared: &ServerShared) -> Result<(), Gone> {
        let input = &self.input[self.taken..self.filled];
        self.taken += self.session.take(&shared.host, input, &mut self.output)?;
        self.is_held = self.output.unsent_bytes() > UNSENT_MAX;
        Ok(())
    }

    fn has_sent_all(&self) -> bool {
        self.output.is_empty() && !self.link.is_pending()
    }

    /// Sends as much as the socket takes; true if it took anything.
    fn send(&mut self) -> Result<bool, Gone> {
        let mut any = false;
        while !self.output.is_empty() {
            match self.link.write(self.output.unsent()) {
                Ok(0) => return Err(Gone::Ended),
                Ok(count) => self.output.sent(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(Gone::Broken(error)),
            }
            any = true;
        }
        if self.link.is_pending() {
            match self.link.flush() {
                Ok(()) => any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Gone::Broken(error)),
            }
        }
        Ok(any)
    }

    /// Reads once; returns the bytes, and whether there may be more.
    fn receive(&mut self) -> Result<(usize, bool), Gone> {
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        let wanted = self.session.wanted(&self.input[..self.filled]);
        let room = if self.session.is_stranger() { wanted } else { INPUT_BYTES.max(wanted) };
        if self.input.len() < room {
            self.input.resize(room, 0);
        } else if self.input.len() > room && self.filled <= INPUT_BYTES {
            // A large WRITE has been carried out: its room is freed.
            self.input.truncate(room);
            self.input.shrink_to_fit();
        }
        loop {
            match self.link.fill(&mut self.input[self.filled..room]) {
                Ok(0) => {
                    self.is_closed = true;
                    return Ok((0, false));
                }
                Ok(count) => {
                    self.filled += count;
                    return Ok((count, self.filled == room));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((0, false)),
                Err(error) => return Err(Gone::Broken(error)),
            }
        }
    }
}
