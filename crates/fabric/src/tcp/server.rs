//! Memory server: exposes its words to every client that connects.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Token, Waker};

use super::listening::Listening;
use super::offer::Offer;
use super::peers::CallServer;
use super::region::Region;
use super::served::Served;
use super::session::Host;
use super::tls::Tls;
use super::worker::Worker;
use crate::calls::check_reach;
use crate::{FabricError, Processors, ServerId, Service, ServiceId, Words};

pub(super) const LISTENER: Token = Token(usize::MAX);
pub(super) const WAKER: Token = Token(usize::MAX - 1);

/// Settings of a memory server.
#[derive(Clone, Debug)]
pub struct MemoryServerConfig {
    /// Address to listen at. Port 0 takes a free one; see [`MemoryServer::address`].
    pub listen: SocketAddr,
    /// Its number in the pool.
    pub server: ServerId,
    /// Number of memory servers in the pool.
    pub servers: usize,
    /// Threads that serve connections.
    pub threads: usize,
    /// Processors for these threads, if some are named: one for each thread in turn.
    pub pin: Processors,
    /// Time without a sign of life after which a compute server counts as dead.
    pub lease: Duration,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Time after which a connection that has not greeted is closed.
    pub greeting_timeout: Duration,
    /// Allows an address that other machines can reach although there is no `tls`. Then nobody is
    /// authenticated and nothing encrypted: anybody who reaches the address can read and destroy the pool.
    pub insecure_public: bool,
    /// Encrypts connections, and lets in only clients with a certificate.
    pub tls: Option<Tls>,
}

impl Default for MemoryServerConfig {
    fn default() -> Self {
        MemoryServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            server: ServerId(0),
            servers: 1,
            threads: 1,
            pin: Processors::default(),
            lease: Duration::from_millis(500),
            connections_max: 4_096,
            greeting_timeout: Duration::from_secs(5),
            insecure_public: false,
            tls: None,
        }
    }
}

/// A memory server of this process. It stops when it is dropped.
#[derive(Debug)]
pub struct MemoryServer {
    shared: Arc<ServerShared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

/// State that the threads of a server share.
pub(super) struct ServerShared {
    pub(super) host: Arc<Host>,
    listen: SocketAddr,
    pub(super) greeting_timeout: Duration,
    pub(super) tls: Option<Tls>,
    pub(super) stopping: AtomicBool,
    /// Connections, those of strangers included.
    pub(super) open: AtomicUsize,
    /// One per thread: its new connections, and the waker that tells it of them.
    pub(super) inboxes: Vec<ThreadInbox>,
}

pub(super) struct ThreadInbox {
    pub(super) streams: Mutex<Vec<TcpStream>>,
    /// Connections that have replies to send.
    pub(super) replied: Mutex<Vec<usize>>,
    pub(super) waker: Waker,
}

impl MemoryServer {
    /// Listens, and serves `words`.
    ///
    /// # Errors
    /// [`FabricError::Config`] for a public address with neither `tls` nor `insecure_public`, an invalid
    /// number of threads or servers, or processors that cannot be had. [`FabricError::Unreachable`] if the
    /// address cannot be had.
    pub fn start(config: MemoryServerConfig, words: Arc<Words>) -> Result<Self, FabricError> {
        Self::start_with(config, Region::over(words), None, None)
    }

    /// Listens for the calls of other compute servers, and for their operations on `region`.
    pub(super) fn start_for_peers(
        config: MemoryServerConfig,
        call_server: CallServer,
        region: Option<Arc<Words>>,
        offer: Option<Arc<dyn Offer>>,
    ) -> Result<Self, FabricError> {
        let no_memory = FabricError::NoMemory { bytes: 0, server: config.server };
        let words = match region {
            Some(words) => words,
            // Out of everybody's bounds.
            None => Arc::new(Words::anonymous(0).ok_or(no_memory)?),
        };
        Self::start_with(config, Region::over(words), offer, Some(call_server))
    }

    /// State that its connections share.
    pub(super) fn host(&self) -> Arc<Host> {
        Arc::clone(&self.shared.host)
    }

    /// Listens, and serves `region`. A server that is restarted over a region's file serves the same words.
    /// It still refuses the incarnations that this one has cut off.
    ///
    /// # Errors
    /// As [`MemoryServer::start`].
    pub fn start_over(config: MemoryServerConfig, region: Region) -> Result<Self, FabricError> {
        Self::start_with(config, region, None, None)
    }

    /// The same, and offers another way to the words, or takes calls in.
    pub(crate) fn start_with(
        config: MemoryServerConfig,
        region: Region,
        offer: Option<Arc<dyn Offer>>,
        call_server: Option<CallServer>,
    ) -> Result<Self, FabricError> {
        check(&config)?;
        let failed = FabricError::unreachable(config.server, config.listen);
        let mut listener = Listening::new(TcpListener::bind(config.listen).map_err(&failed)?);
        let address = listener.local_addr().map_err(&failed)?;
        let polls: Vec<Poll> =
            (0..config.threads).map(|_| Poll::new()).collect::<Result<_, _>>().map_err(&failed)?;
        polls[0]
            .registry()
            .register(&mut *listener, LISTENER, Interest::READABLE)
            .map_err(&failed)?;
        let inboxes = polls
            .iter()
            .map(|poll| {
                let waker = Waker::new(poll.registry(), WAKER)?;
                Ok(ThreadInbox { streams: Mutex::default(), replied: Mutex::default(), waker })
            })
            .collect::<io::Result<Vec<_>>>()
            .map_err(&failed)?;
        let shared = Arc::new(ServerShared {
            host: Arc::new(Host::new(&config, region, offer, call_server)),
            listen: address,
            greeting_timeout: config.greeting_timeout,
            tls: config.tls,
            stopping: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            inboxes,
        });
        let mut listener = Some(listener);
        let mut server = MemoryServer { shared, address, threads: Vec::new() };
        for (number, poll) in polls.into_iter().enumerate() {
            let (shared, listener) = (Arc::clone(&server.shared), listener.take());
            let pin = config.pin.clone();
            let thread = thread::Builder::new()
                .name(format!("farleaf-memory-{number}"))
                .spawn(move || {
                    pin.pin(number);
                    Worker::new(shared, number, poll, listener).run();
                })
                .map_err(FabricError::unreachable(config.server, address))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The memory that it exposes.
    pub fn words(&self) -> &Arc<Words> {
        &self.shared.host.words
    }

    /// Adds a service that answers RPCs.
    pub fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.shared.host.serve(id, service);
    }

    /// Returns its work so far.
    pub fn served(&self) -> Served {
        self.shared.host.served.sums()
    }

    /// Connections that it has let in.
    pub fn connections(&self) -> usize {
        self.shared.host.guests.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for inbox in &self.shared.inboxes {
            // Waking fails only if the thread has ended.
            let _ = inbox.waker.wake();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn check(config: &MemoryServerConfig) -> Result<(), FabricError> {
    check_reach(config.listen, config.tls.is_some() || config.insecure_public)?;
    if config.threads == 0 || config.threads > 1_024 {
        return Err(FabricError::Config(format!("{} threads: take 1 to 1024", config.threads)));
    }
    if config.connections_max == 0 {
        let why = "no connections at a time: a memory server that lets nobody in serves nobody";
        return Err(FabricError::Config(why.to_owned()));
    }
    config.pin.check()?;
    if config.servers == 0
        || config.servers > usize::from(u16::MAX)
        || config.server.index() >= config.servers && !config.server.is_compute()
    {
        return Err(FabricError::Config(format!(
            "memory server {} of a pool of {}: numbers begin with 0",
            config.server, config.servers
        )));
    }
    if config.lease < Duration::from_millis(10) || config.lease > Duration::from_secs(3_600) {
        return Err(FabricError::Config(format!(
            "a lease of {:?}: take 10 ms to an hour",
            config.lease
        )));
    }
    Ok(())
}

impl std::fmt::Debug for ServerShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "memory server {} at {}", self.host.server, self.listen)
    }
}
