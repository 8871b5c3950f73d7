//! Server: event loops that read commands, run them on the tables, and send the replies.
//!
//! Each thread has an event loop of its own, and its own session of the store. The first one accepts connections and
//! deals them out in turn. A round takes the next commands of each connection that has some: their operations are one
//! batch for each table, so that commands of many clients share the waits for remote memory.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf::{Answer, ErrorKind, Farleaf, Operation, Table};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::GatewayOptions;
use crate::client::Client;
use crate::commands::{Failure, error_text};
use crate::connection::{Asked, Connection, Item, Part};
use crate::resp::replies::Replies;
use crate::shared::{Shared, lock};

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
/// Between two looks for clients that take nothing.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A client with waiting replies that takes nothing for so long is closed.
const SLOW_AFTER: Duration = Duration::from_secs(60);
/// Time for the last replies when the gateway ends.
const END_WITHIN: Duration = Duration::from_secs(10);
const BUFFER_BYTES: usize = 64 << 10;
const EVENTS: usize = 1024;

/// A failure to start a gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses a thread or an event queue.
    #[error("cannot start a thread of the gateway: {0}")]
    Start(#[source] io::Error),
}

/// A gateway that serves clients until it is dropped or [stopped](Gateway::stop).
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    address: SocketAddr,
    wakers: Vec<Arc<Waker>>,
    threads: Vec<JoinHandle<()>>,
}

/// Counts of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayCounts(Arc<Shared>);

impl GatewayCounts {
    /// Connections now.
    pub fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Relaxed) as u64
    }

    /// Connections since it began.
    pub fn connected(&self) -> u64 {
        self.0.connected.load(Ordering::Relaxed)
    }

    /// Connections that it has refused, because there were too many.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Commands that it has done.
    pub fn commands(&self) -> u64 {
        self.0.commands_done.load(Ordering::Relaxed)
    }
}

/// Connections that the first thread has accepted for another one.
type Dealt = Arc<Mutex<VecDeque<TcpStream>>>;

impl Gateway {
    /// Listens, and serves the tables of `db` from now on.
    ///
    /// # Errors
    /// `Options`, `Listen`, `Start`: nothing is served.
    pub fn start(db: Farleaf, options: GatewayOptions) -> Result<Gateway, GatewayError> {
        if options.tables.is_empty() {
            return Err(GatewayError::Options("a gateway needs a table to serve".to_owned()));
        }
        if !(1..=GatewayOptions::THREADS_MAX).contains(&options.threads) {
            return Err(GatewayError::Options(format!(
                "{} threads: a gateway has 1 to {}",
                options.threads,
                GatewayOptions::THREADS_MAX
            )));
        }
        if options.connections_max == 0 {
            return Err(GatewayError::Options("no connections: give at least 1".to_owned()));
        }
        let address = options.listen;
        let refused = |source| GatewayError::Listen { address, source };
        let mut listener = Some(TcpListener::bind(address).map_err(refused)?);
        let address = match &listener {
            Some(listener) => listener.local_addr().map_err(refused)?,
            None => address,
        };
        let shared = Arc::new(Shared::new(db, options));
        shared.port.store(address.port().into(), Ordering::Relaxed);
        let (mut polls, mut wakers, mut dealt) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..shared.options.threads {
            let poll = Poll::new().map_err(GatewayError::Start)?;
            let waker = Waker::new(poll.registry(), WAKER).map_err(GatewayError::Start)?;
            wakers.push(Arc::new(waker));
            polls.push(poll);
            dealt.push(Dealt::default());
        }
        let deals: Vec<_> = dealt.iter().cloned().zip(wakers.iter().cloned()).collect();
        let mut gateway = Gateway { shared, address, wakers, threads: Vec::new() };
        for (number, (poll, dealt)) in polls.into_iter().zip(dealt).enumerate() {
            let listens =
                listener.take().map(|listener| Listening { listener, deals: deals.clone() });
            let event_loop = EventLoop::new(poll, Arc::clone(&gateway.shared), dealt, listens);
            let event_loop = event_loop.map_err(GatewayError::Start)?;
            let name = format!("farleaf-redis-{number}");
            let thread = thread::Builder::new().name(name).spawn(move || event_loop.run());
            gateway.threads.push(thread.map_err(GatewayError::Start)?);
        }
        Ok(gateway)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its counts, which go on while it serves.
    pub fn counts(&self) -> GatewayCounts {
        GatewayCounts(Arc::clone(&self.shared))
    }

    /// Accepts nothing more, answers what has been received, and ends: within 10 s.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stops.store(true, Ordering::SeqCst);
        for waker in &self.wakers {
            // A thread that has ended needs no waking.
            let _ = waker.wake();
        }
        for thread in self.threads.drain(..) {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

/// The listening side, of the first thread.
struct Listening {
    listener: TcpListener,
    deals: Vec<(Dealt, Arc<Waker>)>,
}

/// The event loop of a thread.
struct EventLoop {
    poll: Poll,
    shared: Arc<Shared>,
    dealt: Dealt,
    listens: Option<Listening>,
    /// By their tokens.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// The next thread that gets a connection.
    next: usize,
    /// The listener may have connections to accept.
    accepts: bool,
}

impl EventLoop {
    fn new(
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
            next: 0,
            accepts: true,
        })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut active: Vec<usize> = Vec::new();
        let mut looked = Instant::now();
        let mut ends_at = None;
        loop {
            // Clients that have more to read or to run are not waited for.
            let wait = if active.is_empty() { LOOK_EVERY } else { Duration::ZERO };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the event loop of the gateway ends");
                return;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accepts = true,
                    WAKER => {}
                    Token(number) => {
                        if let Some(Some(connection)) = self.connections.get_mut(number) {
                            let is_over = event.is_read_closed() || event.is_error();
                            connection.wake(event.is_readable() || is_over, event.is_writable());
                            active.push(number);
                        }
                    }
                }
            }
            let stops = self.shared.stops.load(Ordering::SeqCst);
            if stops {
                // The gateway answers what it has received, and reads nothing more.
                self.listens = None;
                let ends_at = *ends_at.get_or_insert_with(|| Instant::now() + END_WITHIN);
                active = (0..self.connections.len()).collect();
                self.serve(&mut active, None);
                let waits = self.connections.iter().flatten().any(Connection::waits);
                if !waits || Instant::now() >= ends_at {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.accept();
            self.take_dealt(&mut active);
            // One event may follow another of the same connection, or of a turn before.
            active.sort_unstable();
            active.dedup();
            self.serve(&mut active, Some(&mut buffer));
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.close_slow();
            }
        }
    }

    /// Reads, runs and answers until no connection of `active` has more now. Without a buffer nothing is read.
    fn serve(&mut self, active: &mut Vec<usize>, buffer: Option<&mut [u8]>) {
        if let Some(buffer) = buffer {
            for number in active.iter() {
                if let Some(Some(connection)) = self.connections.get_mut(*number) {
                    connection.read(buffer);
                }
            }
        }
        loop {
            while self.round(active) {}
            let mut goes_on = false;
            for number in active.iter() {
                if let Some(Some(connection)) = self.connections.get_mut(*number) {
                    // One that goes on has commands that have not run, though all replies so far are sent.
                    if connection.flush() {
                        goes_on = true;
                    } else if connection.is_done() {
                        self.close(*number);
                    }
                }
            }
            if !goes_on {
                break;
            }
        }
        let connections = &self.connections;
        active.retain(|number| {
            connections[*number].as_ref().is_some_and(|connection| connection.has_work())
        });
    }

    /// Runs the next commands of each connection; false if none has any.
    fn round(&mut self, active: &[usize]) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut batches: Vec<(usize, Batch)> = Vec::new();
        let mut alone = Vec::new();
        for number in active {
            let Some(Some(connection)) = self.connections.get_mut(*number) else { continue };
            let database = connection.client.database;
            match connection.next_part(&shared) {
                Part::Nothing => {}
                Part::Alone(name, work) => alone.push((*number, name, work)),
                Part::Batch(operations, items) => {
                    // A command of this part may have selected another table, behind no operation.
                    let database =
                        if operations.is_empty() { database } else { connection.client.database };
                    let place = batches.iter().position(|(of, _)| *of == database);
                    let place = place.unwrap_or_else(|| {
                        batches.push((database, Batch::default()));
                        batches.len() - 1
                    });
                    let batch = &mut batches[place].1;
                    batch.parts.push((*number, operations.len(), items));
                    batch.operations.extend(operations);
                }
            }
        }
        let has_run = !batches.is_empty() || !alone.is_empty();
        for (database, batch) in batches {
            self.run_batch(&shared, database, batch);
        }
        for (number, name, work) in alone {
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            let protocol = connection.client.protocol;
            let mut replies = Replies { protocol, ..Replies::default() };
            let database = connection.client.database;
            let done = shared.table(database).map_err(Failure::from);
            let done = done.and_then(|table: Table| work(&table, &shared, &mut replies));
            if let Err(failure) = done {
                replies.bytes.clear();
                let text = match failure {
                    Failure::Text(text) => text,
                    Failure::Store(error) => {
                        shared.forget(database, &error);
                        error_text(name, &error)
                    }
                };
                replies.error(&text);
            }
            connection.answer(replies.bytes);
        }
        has_run
    }

    fn run_batch(&mut self, shared: &Shared, database: usize, batch: Batch) {
        let count = batch.operations.len();
        let answers = match count {
            0 => Ok(Vec::new()),
            _ => shared.table(database).and_then(|table| table.run_batch(batch.operations)),
        };
        let answers = answers.unwrap_or_else(|error| vec![Err(error); count]);
        if let Some(Err(error)) =
            answers.iter().find(|it| it.as_ref().is_err_and(|it| it.kind() == ErrorKind::NotFound))
        {
            shared.forget(database, error);
        }
        let mut answers = answers.into_iter();
        for (number, operations, items) in batch.parts {
            let mut own = answers.by_ref().take(operations);
            let Some(Some(connection)) = self.connections.get_mut(number) else {
                own.for_each(drop);
                continue;
            };
            // Its first command may have changed it; those behind it are answered in the new one.
            connection.replies.protocol = connection.client.protocol;
            for item in items {
                match item {
                    Item::Ready(bytes) => connection.replies.bytes.extend_from_slice(&bytes),
                    Item::Asked(Asked { name, shape, operations }) => {
                        let own: Vec<farleaf::Result<Answer>> =
                            own.by_ref().take(operations).collect();
                        shape.write(name, &own, &mut connection.replies);
                    }
                }
            }
            connection.hold();
        }
    }

    fn accept(&mut self) {
        while self.accepts {
            let Some(listening) = &self.listens else { return };
            match listening.listener.accept() {
                Ok((socket, _)) => {
                    let (dealt, waker) = &listening.deals[self.next];
                    lock(dealt).push_back(socket);
                    if self.next > 0 {
                        // Its thread looks once a second at least.
                        let _ = waker.wake();
                    }
                    self.next = (self.next + 1) % listening.deals.len();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.accepts = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // As when there are no descriptors left: the next turn tries again.
                    return;
                }
            }
        }
    }

    /// Takes the connections that were dealt to this thread.
    fn take_dealt(&mut self, active: &mut Vec<usize>) {
        loop {
            let Some(socket) = lock(&self.dealt).pop_front() else { return };
            self.add(socket, active);
        }
    }

    fn add(&mut self, mut socket: TcpStream, active: &mut Vec<usize>) {
        let shared = &self.shared;
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.options.connections_max {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            shared.count(&shared.refused);
            // The client may be gone; the socket is closed all the same.
            let _ = io::Write::write(&mut socket, b"-ERR max number of clients reached\r\n");
            return;
        }
        let id = shared.connected.fetch_add(1, Ordering::Relaxed) + 1;
        let address = socket.peer_addr().map(|it| it.to_string()).unwrap_or_default();
        // A small reply must not wait for another.
        let _ = socket.set_nodelay(true);
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut socket, Token(number), interest) {
            tracing::warn!(%error, "cannot watch a connection");
            self.free.push(number);
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.connections[number] = Some(Connection::new(socket, Client::new(id, address)));
        active.push(number);
    }

    fn close(&mut self, number: usize) {
        if let Some(mut connection) = self.connections[number].take() {
            // It ends with the socket in any case.
            let _ = self.poll.registry().deregister(&mut connection.socket);
            self.free.push(number);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes clients that take no replies.
    fn close_slow(&mut self) {
        for number in 0..self.connections.len() {
            let Some(connection) = &self.connections[number] else { continue };
            if connection.waits() && connection.taken.elapsed() > SLOW_AFTER {
                let (address, name) = (&connection.client.address, &connection.client.name);
                tracing::warn!(%address, name = %name.escape_ascii(), "closes a client that takes no replies");
                self.close(number);
            }
        }
    }
}

/// Operations of several connections on one table.
#[derive(Default)]
struct Batch {
    operations: Vec<Operation>,
    /// Connection, operations and replies.
    parts: Vec<(usize, usize, Vec<Item>)>,
}
