//! TCP fabric: memory servers on a network, and the compute servers' connections to them.
//!
//! A [`MemoryServer`] exposes words; a [`Tcp`] is one compute server's way to all memory servers of a
//! pool. Every thread has a connection of its own to each of them. When none of its tasks can go on,
//! all posts go out in one message per server, and the answers come back in one. So throughput grows
//! with the number of operations in flight. An idle side spins for a moment, and then sleeps.
//!
//! `docs/design/wire.md` specifies the bytes. With [`Tls`] both sides show certificates and encrypt
//! connections. A server without TLS listens on a loopback address unless its configuration names
//! another.
//!
//! ```
//! use std::sync::Arc;
//!
//! use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
//! use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ServerId, Words};
//!
//! let words = Arc::new(Words::anonymous(1 << 17).expect("1 MiB"));
//! let server = MemoryServer::start(MemoryServerConfig::default(), words)?;
//! let fabric = Tcp::connect(TcpConfig::to([server.address()]))?;
//! let endpoint = fabric.endpoint()?;
//! let there = GlobalAddr::new(ServerId(0), 4096);
//! let old = endpoint.executor().block_on(async { endpoint.faa(there, 5).await })?;
//! assert_eq!(old, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Deaths
//!
//! Each compute server sends signs of life. Memory server 0 decides on deaths: a compute server that says
//! goodbye, or is silent for a whole lease, is dead from the first question about it on. A fence goes to
//! memory server 0 first, and then to the others. A memory server runs an operation only once its last byte
//! has come, under a lock that fences take as well. So each operation of a dead compute server takes effect
//! in whole or not at all. A reader may still see some words of a WRITE before others.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a network is real time, real threads, and processes that must draw different numbers"
)]

#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only cards carry messages"))]
pub(crate) mod call;
mod connection;
#[cfg(feature = "dax")]
mod dax;
mod endpoint;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod link;
mod listening;
mod lives;
mod loss;
mod marks;
pub(crate) mod offer;
mod output;
mod peers;
mod region;
mod served;
mod server;
mod session;
mod tls;
mod transport;
pub(crate) mod wire;
mod worker;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use endpoint::TcpEndpoint;
pub use link::Link;
#[cfg(feature = "verbs")]
pub(crate) use peers::{Found, OfferOf};
pub use region::{HugePages, Region};
pub use served::Served;
pub use server::{MemoryServer, MemoryServerConfig};
pub use tls::{Tls, TlsFiles};
#[cfg(feature = "verbs")]
pub(crate) use transport::Transport;

use crate::mapped::{check_servers, new_number};
use crate::sync::lock;
use crate::{
    Counters, Exposed, Fabric, FabricError, Incarnation, ListenConfig, Peer, Refusal, ServerId,
    Service, ServiceId,
};
use inbox::Ended;
use marks::Lines;
pub(crate) use peers::TcpCalls;
use wire::{
    ANSWER_BYTES, GREETING_BYTES, GreetingStatus, Hello, Request, RequestKind, Status, VERSION,
    Welcome,
};

/// Time for which a side polls after its last work before it sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// Memory servers of a pool, and time limits for them.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// One address per memory server, in the order of their numbers.
    pub servers: Vec<SocketAddr>,
    /// Longest time for making a connection.
    pub connect_timeout: Duration,
    /// Time after which an operation fails with `Timeout`.
    pub op_timeout: Duration,
    /// Longest wait at the end of a call for operations that it must not leave half done, on an unreachable
    /// server. Then this compute server gives the pool up: it says goodbye, as if it had been fenced, and
    /// others finish or undo the operations.
    pub linger_timeout: Duration,
    /// Connections are encrypted, and both sides show certificates.
    pub tls: Option<Tls>,
}

impl TcpConfig {
    /// The usual time limits, for the memory servers at these addresses.
    pub fn to(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        TcpConfig {
            servers: servers.into_iter().collect(),
            connect_timeout: Duration::from_secs(2),
            op_timeout: Duration::from_secs(5),
            linger_timeout: Duration::from_secs(10),
            tls: None,
        }
    }
}

/// Memory servers that one compute server reaches over TCP. Clones share it; when the last one, and
/// the last endpoint, is dropped, the compute server says goodbye and counts as dead.
#[derive(Clone, Debug)]
pub struct Tcp(Arc<TcpShared>);

/// State that the endpoints of a process share.
#[derive(Debug)]
pub(crate) struct TcpShared {
    config: TcpConfig,
    incarnation: Incarnation,
    memory: Vec<Memory>,
    /// This compute server has given up a pool that it could not reach.
    given_up: AtomicBool,
    counters: Mutex<Vec<Arc<Counters>>>,
    pub(crate) lease: Arc<Lease>,
    /// Operations go by the servers' cards.
    by_card: bool,
    pub(crate) calls: Arc<TcpCalls>,
    /// Connections of its threads that other threads may end.
    lines: Arc<Lines>,
    /// Says goodbye when it is dropped.
    heart: Heart,
}

/// Memory that a server exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    bytes: u64,
    /// The same after a restart only if the content is the same.
    id: u64,
}

impl Memory {
    fn of(welcome: &Welcome) -> Self {
        Memory { bytes: welcome.region_bytes, id: welcome.region_id }
    }
}

impl Tcp {
    /// Connects to every memory server.
    ///
    /// # Errors
    /// [`FabricError::Unreachable`] names the server that cannot be reached;
    /// [`FabricError::Refused`] names the reason of a server that refuses this process.
    pub fn connect(config: TcpConfig) -> Result<Self, FabricError> {
        Self::connect_for(config, false)
    }

    /// The same for operations that go by the servers' cards, or by the connections.
    pub(crate) fn connect_for(config: TcpConfig, by_card: bool) -> Result<Self, FabricError> {
        check_servers(config.servers.len())?;
        let incarnation = Incarnation(new_number());
        let mut memory = Vec::new();
        let mut links = Vec::new();
        let mut shortest = Duration::MAX;
        let mut lease = None;
        for server in 0..config.servers.len() {
            let server = ServerId(server as u16);
            let asked = Instant::now();
            let (link, welcome) = greet(&config, incarnation, server, Use::Control, 0)?;
            memory.push(Memory::of(&welcome));
            let given = Duration::from_millis(u64::from(welcome.lease_ms));
            shortest = shortest.min(given);
            // Server 0 decides on deaths.
            lease.get_or_insert_with(|| Arc::new(Lease::new(given, asked)));
            links.push(link);
        }
        let lease = lease.unwrap_or_else(|| Arc::new(Lease::new(shortest, Instant::now())));
        let heart = Heart::start(&config, incarnation, links, shortest / 4, &lease)?;
        Ok(Tcp(Arc::new(TcpShared {
            config,
            incarnation,
            memory,
            given_up: AtomicBool::new(false),
            counters: Mutex::default(),
            lease,
            by_card,
            calls: Arc::default(),
            lines: Arc::default(),
            heart,
        })))
    }

    /// Counters and the seed of one more thread.
    pub(crate) fn new_thread(&self) -> (Arc<Counters>, u64) {
        let shared = &self.0;
        let counters = Counters::new(shared.config.servers.len());
        let number = {
            let mut all = lock(&shared.counters);
            all.push(Arc::clone(&counters));
            all.len() as u64
        };
        (counters, shared.incarnation.0 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// State that its endpoints share.
    #[cfg(feature = "verbs")]
    pub(crate) fn shared(&self) -> &Arc<TcpShared> {
        &self.0
    }

    /// Its incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }
}

impl TcpShared {
    /// Bytes that each server exposes.
    pub(crate) fn region_bytes(&self) -> Vec<u64> {
        self.memory.iter().map(|memory| memory.bytes).collect()
    }

    /// Posts nothing from here on, and others may take over at once.
    fn give_up(&self) {
        if !self.given_up.swap(true, Ordering::SeqCst) {
            self.lease.end();
            self.calls.requests.close();
            self.heart.stop();
        }
    }

    /// Use of a thread's connections.
    fn of_thread(&self) -> Use {
        if self.by_card { Use::BesideCard } else { Use::Operations }
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

impl Fabric for Tcp {
    type Endpoint = TcpEndpoint;

    /// Connects the calling thread to every memory server.
    fn endpoint(&self) -> Result<TcpEndpoint, FabricError> {
        if self.0.has_given_up() {
            return Err(FabricError::GivenUp);
        }
        let (counters, seed) = self.new_thread();
        TcpEndpoint::connect(Arc::clone(&self.0), counters, seed)
    }

    fn name(&self) -> &'static str {
        "tcp"
    }

    /// Does nothing: this process hosts no memory server. Use [`MemoryServer::serve`].
    fn serve(&self, _id: ServiceId, _service: Arc<dyn Service>) {}

    fn counters(&self) -> Vec<Arc<Counters>> {
        lock(&self.0.counters).clone()
    }

    /// Listens, as a memory server does.
    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError> {
        let TcpShared { calls, config, incarnation, lease, .. } = &*self.0;
        let life = (*incarnation, lease);
        calls.expose(number, bytes, listen, config.servers.len(), life, None).map(Some)
    }
}

#[cfg(feature = "verbs")]
impl Tcp {
    /// The same, and offers another way to the region's words.
    pub(crate) fn expose_with(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
        offer: OfferOf<'_>,
    ) -> Result<Option<Exposed>, FabricError> {
        let TcpShared { calls, config, incarnation, lease, .. } = &*self.0;
        let life = (*incarnation, lease);
        calls.expose(number, bytes, listen, config.servers.len(), life, Some(offer)).map(Some)
    }
}

/// The life of the compute server that begins a connection with these bytes. For tools between two ends.
pub fn greeting_of(bytes: &[u8]) -> Option<Incarnation> {
    let hello = bytes.first_chunk::<GREETING_BYTES>().and_then(Hello::decode)?;
    Some(Incarnation(hello.incarnation))
}

/// The bytes with which a connection from a compute server to another one begins. For tools.
pub fn greeting(from: Incarnation, to: Peer) -> Vec<u8> {
    Hello::to(to.server, to.incarnation.0, from).encode().to_vec()
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Signs of life, or the end of another connection.
    Control,
    /// A thread's operations.
    Operations,
    /// All of a thread but its operations, which go by the server's card.
    BesideCard,
}

/// Connects and greets, waiting.
fn greet(
    config: &TcpConfig,
    incarnation: Incarnation,
    server: ServerId,
    purpose: Use,
    replaces: u64,
) -> Result<(Link<TcpStream>, Welcome), FabricError> {
    /// Time between two tries while others use the other way.
    const PAUSE: Duration = Duration::from_millis(10);
    let start = Instant::now();
    let to = (server, config.servers[server.index()], 0);
    loop {
        match greet_at(config, incarnation, to, purpose, replaces) {
            // The others may have just ended, and the server not have noticed yet.
            Err(FabricError::Refused { reason: Refusal::OtherWay, .. })
                if start.elapsed() < config.connect_timeout =>
            {
                thread::sleep(PAUSE);
            }
            greeted => return greeted,
        }
    }
}

/// Greets a server again, in the place of connection `replaces`, waiting. Returns the new connection's number as well.
fn take_place(
    shared: &TcpShared,
    server: ServerId,
    peer: Option<Peer>,
    purpose: Use,
    replaces: u64,
) -> Result<(Link<TcpStream>, u64), Ended> {
    let greeted = match peer {
        None => greet_again(shared, server, purpose, replaces),
        Some(peer) => greet_peer(shared, peer, purpose, replaces),
    };
    match greeted {
        Ok((link, welcome)) => Ok((link, welcome.connection)),
        Err(FabricError::CutOff { .. }) => Err(Ended::Fenced),
        // The old memory is gone, and with it the pool as this compute server knew it.
        Err(FabricError::Refused { reason: Refusal::OtherMemory, .. }) => {
            shared.give_up();
            Err(Ended::Fenced)
        }
        Err(_) => Err(Ended::Lost),
    }
}

/// Greets a compute server, in the place of connection `replaces`.
fn greet_peer(
    shared: &TcpShared,
    peer: Peer,
    purpose: Use,
    replaces: u64,
) -> Result<(Link<TcpStream>, Welcome), FabricError> {
    let Some(address) = peer.address else {
        return Err(FabricError::Config(format!("compute server {} has no address", peer.server)));
    };
    let to = (peer.server, address, peer.incarnation.0);
    let (config, who) = (&shared.config, shared.incarnation);
    let (link, welcome) = greet_at(config, who, to, purpose, replaces)?;
    let failed = FabricError::unreachable(peer.server, address);
    loss::notice_loss(link.socket_ref()).map_err(&failed)?;
    Ok((link, welcome))
}

/// Greets the server of that number, address and life; 0 for a memory server's.
fn greet_at(
    config: &TcpConfig,
    incarnation: Incarnation,
    (server, address, meant): (ServerId, SocketAddr, u64),
    purpose: Use,
    replaces: u64,
) -> Result<(Link<TcpStream>, Welcome), FabricError> {
    let failed = FabricError::unreachable(server, address);
    let refused = |reason, why: String| FabricError::Refused {
        server,
        address: address.to_string(),
        reason,
        why,
    };
    let stream = TcpStream::connect_timeout(&address, config.connect_timeout).map_err(&failed)?;
    stream.set_nodelay(true).map_err(&failed)?;
    stream.set_read_timeout(Some(config.connect_timeout)).map_err(&failed)?;
    stream.set_write_timeout(Some(config.connect_timeout)).map_err(&failed)?;
    let hello = Hello {
        control: purpose == Use::Control,
        by_card: purpose == Use::BesideCard,
        servers: config.servers.len() as u16,
        replaces,
        ..Hello::to(server, meant, incarnation)
    };
    let mut link = Link::connect(stream, config.tls.as_ref(), address).map_err(&failed)?;
    let mut bytes = [0; GREETING_BYTES];
    let greeted = link.write_all(&hello.encode()).and_then(|()| link.read_exact(&mut bytes));
    if let Err(error) = greeted {
        let error = named_silence(error, config.connect_timeout);
        let why = distrust(&error, bytes[0], config.tls.is_some());
        return Err(why.map_or_else(|| failed(error), |why| refused(Refusal::NotTrusted, why)));
    }
    let Some(welcome) = Welcome::decode(&bytes) else {
        let why = "the process that answers there is not a memory server of Farleaf".to_owned();
        return Err(refused(Refusal::NoMemoryServer, why));
    };
    let (reason, why) = match welcome.status {
        GreetingStatus::LetIn => return Ok((link, welcome)),
        GreetingStatus::Fenced => return Err(FabricError::CutOff { server }),
        GreetingStatus::OtherVersion => {
            let why = format!(
                "it speaks version {} of the protocol, this program version {VERSION}: use the \
                 same version of Farleaf on both sides",
                welcome.version
            );
            (Refusal::OtherVersion, why)
        }
        GreetingStatus::OtherServer => {
            let why = format!(
                "it is memory server {} of {}, and was taken for {server} of {}: check the list \
                 of addresses and its order",
                welcome.server,
                welcome.servers,
                config.servers.len()
            );
            (Refusal::OtherServer, why)
        }
        GreetingStatus::Full => {
            (Refusal::Full, "it has reached its limit of connections".to_owned())
        }
        GreetingStatus::OtherWay => {
            let theirs = if purpose == Use::BesideCard { "by tcp" } else { "by verbs" };
            let why = format!(
                "others use it {theirs}, and the atomics of its processor and of its card are \
                 not atomic against each other: use the same fabric, or wait until they end"
            );
            (Refusal::OtherWay, why)
        }
    };
    Err(refused(reason, why))
}

/// Finds the reason of TLS for which a connection ended during the greeting, if there is one. `first` is the
/// first byte that came.
fn distrust(error: &io::Error, first: u8, has_tls: bool) -> Option<String> {
    /// First byte of a TLS alert.
    const ALERT: u8 = 21;
    let source = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
    match source {
        Some(rustls::Error::AlertReceived(alert)) => {
            Some(format!("it does not trust this side's certificate: it says {alert:?}"))
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            Some("it does not use TLS: start it with certificates, or connect without them".into())
        }
        Some(error) => Some(format!("this side does not trust it: {error}")),
        None if first == ALERT && !has_tls => {
            Some("it accepts TLS only: connect with certificates".into())
        }
        // A server without TLS does not answer a handshake.
        None if has_tls && is_closed(error) => Some(
            "it closed the connection instead of answering: it probably does not use TLS".into(),
        ),
        None => None,
    }
}

/// Says of an answer that did not come within `limit` what that is: the system calls it a resource that is
/// temporarily unavailable.
fn named_silence(error: io::Error, limit: Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let why = format!("it accepts connections, and has not answered within {limit:?}");
            io::Error::new(io::ErrorKind::TimedOut, why)
        }
        _ => error,
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Asks about another way to a server's words (see [`offer`]), on a connection of its own, waiting.
#[cfg(feature = "verbs")]
pub(crate) fn ask_once(
    tcp: &Tcp,
    server: ServerId,
    question: &[u8],
) -> Result<Result<Vec<u8>, crate::OpErrorKind>, FabricError> {
    use wire::{Status, decode_answer};
    let config = &tcp.0.config;
    let (mut stream, _) = greet(config, tcp.0.incarnation, server, tcp.0.of_thread(), 0)?;
    let length = question.len() as u32;
    let request = Request { verb: RequestKind::Ask, more: false, length, offset: 0 }.encode();
    let mut head = [0; ANSWER_BYTES];
    let asked = stream
        .write_all(&[&request, question].concat())
        .and_then(|()| stream.read_exact(&mut head))
        .map_err(|error| named_silence(error, config.connect_timeout))
        .map_err(FabricError::unreachable(server, config.servers[server.index()]));
    asked?;
    let (status, length) = decode_answer(&head).unwrap_or((Status::Skipped, 0));
    let mut answer = vec![0; length];
    let read = stream.read_exact(&mut answer);
    Ok(match status {
        Status::Done if read.is_ok() => Ok(answer),
        Status::NoService => Err(crate::OpErrorKind::NoService { service: 0 }),
        Status::Fenced => Err(crate::OpErrorKind::Fenced),
        _ => Err(crate::OpErrorKind::Unavailable),
    })
}

/// Greets anew, in the place of connection `replaces`. The server must expose the same memory as before.
fn greet_again(
    shared: &TcpShared,
    server: ServerId,
    purpose: Use,
    replaces: u64,
) -> Result<(Link<TcpStream>, Welcome), FabricError> {
    let (config, who) = (&shared.config, shared.incarnation);
    let (link, welcome) = greet(config, who, server, purpose, replaces)?;
    let memory = Memory::of(&welcome);
    if memory != shared.memory[server.index()] {
        return Err(FabricError::Refused {
            server,
            address: shared.config.servers[server.index()].to_string(),
            reason: Refusal::OtherMemory,
            why: "it serves other memory than before: open the pool again".to_owned(),
        });
    }
    Ok((link, welcome))
}

/// The threads that send signs of life, and say goodbye: one per server, so that a silent server does not
/// delay those to the others.
#[derive(Debug)]
struct Heart {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Heart {
    fn start(
        config: &TcpConfig,
        incarnation: Incarnation,
        links: Vec<Link<TcpStream>>,
        every: Duration,
        lease: &Arc<Lease>,
    ) -> Result<Self, FabricError> {
        let mut heart = Heart { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        for (server, link) in links.into_iter().enumerate() {
            let server = ServerId(server as u16);
            let (stop, own) = (Arc::clone(&heart.stop), config.clone());
            let lease = (server == ServerId(0)).then(|| Arc::clone(lease));
            let thread = thread::Builder::new()
                .name("farleaf-heart".to_owned())
                .spawn(move || beat(&own, incarnation, server, link, every, &stop, lease))
                .map_err(FabricError::unreachable(server, config.servers[server.index()]))?;
            heart.threads.push(thread);
        }
        Ok(heart)
    }

    /// Makes it say goodbye, and does not wait for that.
    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in &self.threads {
            thread.thread().unpark();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Signs of life to one server, until `stop`; then goodbye.
fn beat(
    config: &TcpConfig,
    incarnation: Incarnation,
    server: ServerId,
    link: Link<TcpStream>,
    every: Duration,
    stop: &AtomicBool,
    lease: Option<Arc<Lease>>,
) {
    let mut line = Some(link);
    while !stop.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let sent = line.as_mut().map(|link| say(link, RequestKind::Beat));
        if !matches!(sent, Some(Ok(()))) {
            // The server may come back; until then its lease for this process runs out.
            let again = greet(config, incarnation, server, Use::Control, 0);
            line = again.ok().map(|(link, _)| link);
        }
        if let (Some(Ok(())), Some(lease)) = (sent, &lease) {
            lease.extend(asked);
        }
        thread::park_timeout(every);
    }
    // A server that is gone needs no goodbye.
    if let Some(link) = &mut line {
        let _ = say(link, RequestKind::Bye);
    }
}

/// Sends a request without operands and waits for its answer.
fn say(link: &mut Link<TcpStream>, verb: RequestKind) -> io::Result<()> {
    link.write_all(&Request { verb, more: false, length: 0, offset: 0 }.encode())?;
    let mut answer = [0; ANSWER_BYTES];
    link.read_exact(&mut answer)?;
    match wire::decode_answer(&answer) {
        Ok((Status::Done, _)) => Ok(()),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

/// Time, by this process's clock, until which nobody learns that this compute server is dead. The server that
/// decides waits for a whole lease after the last sign of life, which it received after this process had sent
/// it.
#[derive(Debug)]
pub(crate) struct Lease {
    start: Instant,
    /// From `start`, in nanoseconds.
    until: AtomicU64,
    length: Duration,
}

impl Lease {
    const ENDED: u64 = 0;

    /// A lease of `given`, requested at `asked`.
    fn new(given: Duration, asked: Instant) -> Self {
        let length = given - given / 8;
        Lease { start: asked, until: AtomicU64::new(length.as_nanos() as u64), length }
    }

    /// Extends it, unless it has ended.
    fn extend(&self, asked: Instant) {
        let until = (asked.duration_since(self.start) + self.length).as_nanos() as u64;
        let longer = |before| (before != Self::ENDED).then(|| until.max(before));
        let _ = self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer);
    }

    /// Ends it for good: others learn at once that this compute server is dead.
    fn end(&self) {
        self.until.store(Self::ENDED, Ordering::SeqCst);
    }

    pub(crate) fn holds(&self) -> bool {
        self.start.elapsed().as_nanos() as u64 <= self.until.load(Ordering::SeqCst)
    }
}
