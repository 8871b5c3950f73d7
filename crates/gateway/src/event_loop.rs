//! Event loop: reads the commands of a thread's connections, runs them, and sends the replies.
//!
//! The first thread's loop accepts connections and deals them out in turn. A round takes the next commands of each
//! connection that has some: their operations are one batch for each table, so that commands of many clients share the
//! waits for remote memory.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farleaf::{Answer, Operation};
use farleaf_fabric::tcp::Link;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::client::Client;
use crate::commands::{Failure, LOADING, Work, error_text};
use crate::connection::{Asked, Connection, Item, Part};
use crate::shared::{Shared, lock};
use farleaf_resp::replies::Replies;

const LISTENER: Token = Token(usize::MAX);
pub(crate) const WAKER: Token = Token(usize::MAX - 1);
/// Between two looks for clients that take nothing, or have not said who they are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time until a client has said who it is, if there are users.
const AUTH_WITHIN: Duration = Duration::from_secs(10);
/// Time for the last replies when the gateway ends.
const END_WITHIN: Duration = Duration::from_secs(10);
/// A client that has much of the memory that is short, and neither sends nor takes anything for so long, is closed.
const SHORT_FOR: Duration = Duration::from_secs(10);
/// Time from the last reply to a client that is refused to the end of its connection. Until then nothing is read of it: it
/// gets to see the reply, and one that connects again at once does not keep the gateway busy.
const LINGER: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 64 << 10;
const EVENTS: usize = 1024;
/// Operations of a round, and of one connection in it; fewer if values are large, so that a round reads about so many
/// bytes.
const ROUND_OPS: usize = 128;
const PART_OPS: usize = 64;
/// Bytes of values of one connection in a round, about: its last values tell how large the next are.
const PART_BYTES: usize = 4 << 20;
const ROUND_BYTES: usize = 16 << 20;
/// Replies of so many bytes are sent before the other connections are served.
const SEND_BYTES: usize = 64 << 10;
/// Bytes of a bulk string's head and end, at most.
const HEAD_BYTES: usize = 32;
/// A client may have so many bytes of its own however many clients there are.
const SHARE_LEAST: usize = 16 << 10;

/// Connections that the first thread has accepted for another one.
pub(crate) type Dealt = Arc<Mutex<VecDeque<TcpStream>>>;

/// The listening side, of the first thread.
pub(crate) struct Listening {
    listener: TcpListener,
    deals: Vec<(Dealt, Arc<Waker>)>,
    /// The next thread that gets a connection.
    next: usize,
    /// There may be connections to accept.
    accepts: bool,
    /// A failure that has been logged, until a connection is accepted.
    is_failing: bool,
}

impl Listening {
    pub(crate) fn new(listener: TcpListener, deals: Vec<(Dealt, Arc<Waker>)>) -> Self {
        Listening { listener, deals, next: 0, accepts: true, is_failing: false }
    }

    /// Accepts connections, and deals them to the threads in turn.
    fn accept(&mut self) {
        while self.accepts {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    self.is_failing = false;
                    let (dealt, waker) = &self.deals[self.next];
                    lock(dealt).push_back(socket);
                    if self.next > 0 {
                        // Its thread looks once a second at least.
                        let _ = waker.wake();
                    }
                    self.next = (self.next + 1) % self.deals.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.accepts = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(%error, "cannot accept connections (ulimit -n?), and tries again each second");
                    }
                    return;
                }
            }
        }
    }
}

/// The event loop of a thread.
pub(crate) struct EventLoop {
    poll: Poll,
    shared: Arc<Shared>,
    dealt: Dealt,
    listens: Option<Listening>,
    /// By their tokens.
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Connections with something to do.
    active: Vec<usize>,
    /// Those of them that may have commands to run.
    ready: VecDeque<usize>,
    /// Connections that are to be closed, each with the moment and the number of its client; the first one first.
    lingering: VecDeque<(Instant, usize, u64)>,
    /// Some are not read because memory is short.
    has_paused: bool,
    /// Bytes of the largest value of late.
    largest: usize,
    buffer: Vec<u8>,
}

impl EventLoop {
    pub(crate) fn new(
        poll: Poll,
        shared: Arc<Shared>,
        dealt: Dealt,
        mut listens: Option<Listening>,
    ) -> io::Result<Self> {
        if let Some(listening) = &mut listens {
            poll.registry().register(&mut listening.listener, LISTENER, Interest::READABLE)?;
        }
        Ok(EventLoop {
            poll,
            shared,
            dealt,
            listens,
            connections: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            ready: VecDeque::new(),
            lingering: VecDeque::new(),
            has_paused: false,
            largest: 0,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut looked = Instant::now();
        let mut ends_at = None;
        loop {
            // Connections with something to do are not waited for.
            let wait = match self.lingering.front() {
                _ if !self.active.is_empty() => Duration::ZERO,
                Some((ends, ..)) => ends.saturating_duration_since(Instant::now()).min(LOOK_EVERY),
                None => LOOK_EVERY,
            };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the event loop of the gateway ends");
                return;
            }
            let mut is_woken = false;
            for event in &events {
                match event.token() {
                    LISTENER => {
                        if let Some(listening) = &mut self.listens {
                            listening.accepts = true;
                        }
                    }
                    WAKER => is_woken = true,
                    Token(number) => {
                        if let Some(Some(connection)) = self.connections.get_mut(number) {
                            connection.wake(event);
                            self.activate(number);
                        }
                    }
                }
            }
            if self.shared.stops.load(Ordering::SeqCst) {
                // Received commands are answered; nothing more is read.
                self.listens = None;
                let ends_at = *ends_at.get_or_insert_with(|| Instant::now() + END_WITHIN);
                (0..self.connections.len()).for_each(|number| self.activate(number));
                self.serve(false);
                let waits = self.connections.iter().flatten().any(|it| it.waits());
                if !waits || Instant::now() >= ends_at {
                    (0..self.connections.len()).for_each(|number| self.close(number));
                    return;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            if let Some(listening) = &mut self.listens {
                listening.accept();
            }
            self.take_dealt();
            self.serve(true);
            self.end_lingering();
            if is_woken || looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.look_after();
            }
        }
    }

    fn activate(&mut self, number: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(number)
            && !mem::replace(&mut connection.is_active, true)
        {
            self.active.push(number);
        }
    }

    /// Reads, runs and answers until no active connection has more now.
    fn serve(&mut self, reads: bool) {
        let mut active = mem::take(&mut self.active);
        let share = self.shared.is_short().then(|| self.share());
        for number in &active {
            let Some(Some(connection)) = self.connections.get_mut(*number) else { continue };
            if reads {
                connection.read(&mut self.buffer, &self.shared, share);
            }
            self.ready.push_back(*number);
        }
        while !self.ready.is_empty() {
            while self.round() {}
            for number in &active {
                let Some(Some(connection)) = self.connections.get_mut(*number) else { continue };
                if connection.flush() {
                    self.ready.push_back(*number);
                }
            }
        }
        let share = self.share();
        let is_short = self.shared.is_short();
        active.retain(|number| {
            let Some(Some(connection)) = self.connections.get_mut(*number) else { return false };
            let is_done = connection.is_done();
            if is_done && !connection.lingers() {
                self.close(*number);
                return false;
            }
            connection.release();
            let bytes = connection.private_bytes();
            charge(&self.shared, connection, bytes);
            if is_short && bytes >= share {
                connection.is_paused = true;
                self.has_paused = true;
            }
            connection.is_active = connection.has_work();
            if is_done && !mem::replace(&mut connection.is_lingering, true) {
                let ends = Instant::now() + LINGER;
                self.lingering.push_back((ends, *number, connection.client.card.id));
            }
            connection.is_active
        });
        // Nothing was added meanwhile.
        self.active = active;
        while self.shared.is_full() && self.close_largest() {}
        if self.has_paused && !self.shared.is_short() {
            self.go_on();
        }
    }

    /// Closes the connections whose clients were refused a while ago.
    fn end_lingering(&mut self) {
        while let Some((ends, number, id)) = self.lingering.front().copied()
            && ends <= Instant::now()
        {
            self.lingering.pop_front();
            // Another one may have the number by now.
            let is_same = |it: &Connection| it.client.card.id == id;
            if self.connections[number].as_deref().is_some_and(is_same) {
                self.close(number);
            }
        }
    }

    /// Bytes that each client may have if memory is short.
    fn share(&self) -> usize {
        let clients = self.shared.connections.load(Ordering::Relaxed).max(1);
        (self.shared.options.client_memory / clients).max(SHARE_LEAST)
    }

    /// There is memory again.
    fn go_on(&mut self) {
        self.has_paused = false;
        for number in 0..self.connections.len() {
            if let Some(connection) = &mut self.connections[number]
                && mem::take(&mut connection.is_paused)
            {
                self.activate(number);
            }
        }
    }

    /// Runs the next commands of ready connections; false if there were none.
    fn round(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut room = (ROUND_BYTES / self.largest.max(1)).clamp(1, ROUND_OPS);
        let mut batches: Vec<(usize, Batch)> = Vec::new();
        let mut alone = Vec::new();
        for _ in 0..self.ready.len() {
            if room == 0 {
                break;
            }
            let Some(number) = self.ready.pop_front() else { break };
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            let most = (PART_BYTES / connection.value_bytes.max(1)).clamp(1, PART_OPS);
            match connection.next_part(&shared, room.min(most)) {
                Part::Nothing => continue,
                Part::Alone(name, work) => alone.push((number, name, work)),
                Part::Batch(operations, items) => {
                    room = room.saturating_sub(operations.len());
                    let table = connection.client.table;
                    let place = batches.iter().position(|(of, _)| *of == table);
                    let place = place.unwrap_or_else(|| {
                        batches.push((table, Batch::default()));
                        batches.len() - 1
                    });
                    let batch = &mut batches[place].1;
                    batch.parts.push((number, operations.len(), items));
                    batch.operations.extend(operations);
                }
            }
            self.ready.push_back(number);
        }
        let has_run = !batches.is_empty() || !alone.is_empty();
        // Values become smaller again, too.
        self.largest -= self.largest / 8;
        for (table, batch) in batches {
            self.run_batch(table, batch);
        }
        for (number, name, work) in alone {
            self.run_alone(number, name, work);
        }
        has_run
    }

    fn run_alone(&mut self, number: usize, name: &str, work: Work) {
        let shared = &self.shared;
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let Client { protocol, table: place, .. } = connection.client;
        let mut replies = Replies { protocol, ..Replies::default() };
        let done = match shared.is_lost() {
            true => Err(Failure::Text(LOADING.to_owned())),
            false => shared.table(place).map_err(Failure::from),
        };
        let done = done.and_then(|table| work(&table, shared, &mut replies));
        if let Err(failure) = done {
            replies.bytes.clear();
            let text = match failure {
                Failure::Text(text) => text,
                Failure::Store(error) => {
                    shared.note(place, &error);
                    error_text(name, None, &error)
                }
            };
            replies.error(&text);
        }
        connection.answer(&replies.bytes);
        connection.hold(shared);
        if connection.waiting() > SEND_BYTES {
            connection.flush();
        }
    }

    fn run_batch(&mut self, place: usize, batch: Batch) {
        let Batch { operations, parts } = batch;
        let answers = match operations.len() {
            0 => Ok(Vec::new()),
            _ => self
                .shared
                .table(place)
                .and_then(|table| table.run_batch(operations.iter().map(Operation::borrowed))),
        };
        let answers =
            answers.unwrap_or_else(|error| operations.iter().map(|_| Err(error.clone())).collect());
        for answer in &answers {
            self.largest = self.largest.max(value_bytes(answer));
            if let Err(error) = answer {
                self.shared.note(place, error);
            }
        }
        let mut from = 0;
        for (number, count, items) in parts {
            let (mut at, end) = (from, from + count);
            let values: usize = answers[from..end].iter().map(value_bytes).sum();
            let largest = answers[from..end].iter().map(value_bytes).max().unwrap_or(0);
            from = end;
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            if largest > 0 {
                connection.value_bytes = largest;
            }
            connection.reserve(values + count * HEAD_BYTES, values > SEND_BYTES);
            // Its first command may have changed it; those behind it are answered in the new one.
            connection.replies.protocol = connection.client.protocol;
            for item in items {
                match item {
                    Item::Ready(bytes) => connection.replies.bytes.extend_from_slice(&bytes),
                    Item::Asked(Asked { name, shape, operations: own }) => {
                        let range = at..at + own;
                        at += own;
                        shape.write(
                            name,
                            &operations[range.clone()],
                            &answers[range],
                            &mut connection.replies,
                        );
                    }
                    Item::Long(own) => {
                        let range = at..at + own;
                        at += own;
                        connection.answer_long(&operations[range.clone()], &answers[range]);
                    }
                }
            }
            connection.hold(&self.shared);
            if connection.waiting() > SEND_BYTES {
                connection.flush();
            }
        }
    }

    /// Takes the connections that were dealt to this thread.
    fn take_dealt(&mut self) {
        loop {
            let Some(socket) = lock(&self.dealt).pop_front() else { return };
            self.add(socket);
        }
    }

    fn add(&mut self, mut socket: TcpStream) {
        let shared = &self.shared;
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.options.connections_max {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            shared.count(&shared.refused);
            if shared.options.tls.is_none() {
                // The client may be gone; the socket is closed all the same.
                let _ = io::Write::write(&mut socket, b"-ERR max number of clients reached\r\n");
            }
            return;
        }
        let id = shared.connected.fetch_add(1, Ordering::Relaxed) + 1;
        let address = socket.peer_addr().map(|it| it.to_string()).unwrap_or_default();
        // A small reply must not wait for another.
        let _ = socket.set_nodelay(true);
        let link = match &shared.options.tls {
            None => Ok(Link::plain(socket)),
            Some(tls) => tls.accept(socket),
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        let connection = link.and_then(|link| {
            let mut connection = Box::new(Connection::new(link, Client::new(id, address)));
            self.poll.registry().register(connection.socket(), Token(number), interest)?;
            Ok(connection)
        });
        match connection {
            Ok(connection) => {
                lock(&shared.clients).insert(id, Arc::clone(&connection.client.card));
                self.connections[number] = Some(connection);
                self.activate(number);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot serve a connection");
                self.free.push(number);
                shared.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn close(&mut self, number: usize) {
        if let Some(mut connection) = self.connections[number].take() {
            // It ends with the socket in any case.
            let _ = self.poll.registry().deregister(connection.socket());
            charge(&self.shared, &mut connection, 0);
            lock(&self.shared.clients).remove(&connection.client.card.id);
            self.free.push(number);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes a connection whose client broke a limit.
    fn cut_off(&mut self, number: usize, why: &str) {
        let Some(Some(connection)) = self.connections.get(number) else { return };
        let card = &connection.client.card;
        tracing::warn!(address = %card.address, name = %card.name(), why, "closes a connection");
        self.shared.count(&self.shared.closed);
        self.close(number);
    }

    /// Closes clients that take nothing, that have not said who they are, whose user is gone, and that others end.
    fn look_after(&mut self) {
        let shared = Arc::clone(&self.shared);
        let options = &shared.options;
        let users = shared.users();
        let is_short = shared.is_short();
        for number in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[number] else { continue };
            let waits = connection.waits();
            let client = &mut connection.client;
            if let Some(user) = &client.user {
                match users.now(user) {
                    Some(now) if !Arc::ptr_eq(now, user) => {
                        let now = Arc::clone(now);
                        // A table that is its no more leads to its first one.
                        let name = shared.table_name(client.table);
                        let number = now.tables.iter().position(|it| it == name).unwrap_or(0);
                        let place = shared.place(Some(&*now), number).unwrap_or(0);
                        client.set_user(now, place);
                        client.tell(|told| told.database = number);
                    }
                    Some(_) => {}
                    None => {
                        self.cut_off(number, "its user is gone");
                        continue;
                    }
                }
            }
            let why = if client.card.is_killed() {
                Some("CLIENT KILL")
            } else if !shared.knows(client) && client.card.since.elapsed() > AUTH_WITHIN {
                Some("no AUTH within 10 s")
            } else if waits && connection.taken.elapsed() > options.slow_client {
                Some("takes no replies")
            } else if options.idle.is_some_and(|idle| !waits && connection.heard.elapsed() > idle) {
                Some("idle")
            } else if is_short
                && connection.is_paused
                && connection.heard.max(connection.taken).elapsed() > SHORT_FOR
            {
                Some("memory for clients is short, and it neither sends nor takes anything")
            } else {
                None
            };
            if let Some(why) = why {
                self.cut_off(number, why);
            }
        }
        if is_short && self.has_paused {
            // One at least goes on, so that memory comes back.
            let paused = self.connections.iter_mut().enumerate();
            let paused = paused.filter_map(|(at, it)| Some((at, it.as_mut()?)));
            let largest =
                paused.filter(|(_, it)| it.is_paused).max_by_key(|(_, it)| it.private_bytes());
            if let Some((number, connection)) = largest {
                connection.is_paused = false;
                self.activate(number);
            }
        }
    }

    /// Closes the client with most bytes of its own; false if this thread's clients have none.
    fn close_largest(&mut self) -> bool {
        let all = self.connections.iter().enumerate();
        let all = all.filter_map(|(at, it)| Some((at, it.as_ref()?.charged)));
        match all.max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > 0) {
            Some((number, _)) => {
                self.cut_off(number, "memory for clients is gone, and it has most of it");
                true
            }
            None => false,
        }
    }
}

/// Counts `bytes` for a connection.
fn charge(shared: &Shared, connection: &mut Connection, bytes: usize) {
    let before = mem::replace(&mut connection.charged, bytes);
    if bytes >= before {
        shared.client_bytes.fetch_add(bytes - before, Ordering::Relaxed);
    } else {
        shared.client_bytes.fetch_sub(before - bytes, Ordering::Relaxed);
    }
}

fn value_bytes(answer: &farleaf::Result<Answer>) -> usize {
    answer.as_ref().map_or(0, Answer::bytes)
}

/// Operations of several connections on one table.
#[derive(Default)]
struct Batch {
    operations: Vec<Operation>,
    /// Connection, number of operations, and replies.
    parts: Vec<(usize, usize, Vec<Item>)>,
}
