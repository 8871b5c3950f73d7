//! TCP messages: carry requests between compute servers of different processes.
//!
//! A [`Post`] is one compute server's side of it, for all its tables: it listens, puts what comes for a
//! table at that table's desk ([`Cluster`]), whose tasks answer, and carries what is for others to where
//! they listen, over one connection to each. Any number of requests are under way on a connection, and
//! replies come in any order. `docs/design/post.md` has the bytes.
//!
//! With [`PostConfig::tls`] both sides show certificates and all is encrypted. Without, nothing is authenticated:
//! who reaches the address and has read the pool can read and change the tables.
//!
//! - `INV-DEX-POST-1` A request is written to one connection at most, once. From just before that on it
//!   counts as begun (`INV-DEX-FWD-1`).
//! - `INV-DEX-POST-2` No request is read from a connection whose two ends have not agreed on version, pool
//!   and both incarnations: an address that is out of date reaches nobody by mistake.
#![allow(
    clippy::disallowed_methods,
    reason = "connections between processes, on threads of their own: never in the simulator"
)]

mod line;
mod office;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, future, io};

use farleaf_fabric::tcp::{Listening, Tls};
use farleaf_fabric::{GlobalAddr, Incarnation};

use super::Cluster;
use super::forward::{Forward, Replied, Reply, Request, WrongOwner};
use crate::sync::{Mutex, lock};
use line::Line;

/// How long an operation may be passed on, and wait for its reply, before it fails.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How long a reply is waited for before the owner's life is looked at.
const ALIVE_CHECK_NS: u64 = 20_000_000;
/// How long connecting, and being greeted, may take.
const GREETING_TIME: Duration = Duration::from_secs(2);

/// How a compute server takes part in the post.
#[derive(Clone, Debug)]
pub struct PostConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where others reach it, if that is elsewhere; port 0 stands for the one that it listens on.
    pub advertise: Option<SocketAddr>,
    /// How the compute servers of the pool know each other.
    pub tls: Option<Tls>,
    /// Allows an address that others than this machine can reach without `tls`: whoever reaches it can read
    /// and change the tables.
    pub insecure_public: bool,
    /// The pool that it works on.
    pub pool: u128,
    /// Who it is.
    pub me: Incarnation,
    /// Connections that others may have open to it.
    pub connections_max: usize,
}

/// Why a compute server cannot be reached by others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The address is public, and that was not asked for.
    #[error(
        "{0} can be reached from other machines, and nothing is authenticated without TLS: set it up, \
         listen on a loopback address, or allow it by `insecure_public` in a network that you trust"
    )]
    Public(SocketAddr),
    /// The address is none that others could be told.
    #[error(
        "{0} stands for all addresses of this machine: name, or advertise, the one that others reach"
    )]
    NoAddress(SocketAddr),
    /// The system refuses.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

/// Whether a compute server may listen there, and be reached at `advertise` if that is another address.
///
/// # Errors
/// [`PostError::Public`] for a public address without TLS that was not asked for; [`PostError::NoAddress`].
pub fn check_address(
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    may_be_public: bool,
) -> Result<(), PostError> {
    // What is advertised opens nothing.
    if !listen.ip().is_loopback() && !may_be_public {
        return Err(PostError::Public(listen));
    }
    let told = advertise.unwrap_or(listen);
    match told.ip().is_unspecified() {
        true => Err(PostError::NoAddress(told)),
        false => Ok(()),
    }
}

/// One compute server's side of the post. See the module's page ([`self`]).
pub struct Post {
    shared: Arc<Shared>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: PostConfig,
    /// Where it listens, and what others are told.
    listens: SocketAddr,
    address: SocketAddr,
    on_request: Box<dyn Fn() + Send + Sync>,
    desks: Mutex<BTreeMap<u64, Arc<Cluster>>>,
    /// Connections to others, and where those listen of whom that is known.
    lines: Mutex<BTreeMap<u64, Arc<Line>>>,
    addresses: Mutex<BTreeMap<u64, SocketAddr>>,
    /// Connections from others.
    incoming: Mutex<BTreeMap<u64, TcpStream>>,
    incoming_number: AtomicU64,
    refused: AtomicU64,
    /// Seconds since the start are counted for the log: in which of them it last told of a refusal, and how many
    /// were left out since.
    since: Instant,
    told_at: AtomicU64,
    left_out: AtomicU64,
    is_closed: AtomicBool,
}

/// Carries the requests for one table.
struct Route {
    shared: Arc<Shared>,
    table: GlobalAddr,
}

impl Post {
    /// Listens. `on_request` is called for each request that comes, from a thread of its connection.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn start(
        config: PostConfig,
        on_request: impl Fn() + Send + Sync + 'static,
    ) -> Result<Post, PostError> {
        let listen = config.listen;
        check_address(listen, config.advertise, config.insecure_public || config.tls.is_some())?;
        let refused = |source| PostError::Listen { address: listen, source };
        let listener = Listening::new(TcpListener::bind(listen).map_err(refused)?);
        let listens = listener.local_addr().map_err(refused)?;
        let mut address = config.advertise.unwrap_or(listens);
        if address.port() == 0 {
            address.set_port(listens.port());
        }
        let shared = Arc::new(Shared {
            config,
            listens,
            address,
            on_request: Box::new(on_request),
            desks: Mutex::default(),
            lines: Mutex::default(),
            addresses: Mutex::default(),
            incoming: Mutex::default(),
            incoming_number: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            since: Instant::now(),
            told_at: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::Builder::new()
            .name("farleaf-post".to_owned())
            .spawn(move || office::accept(&accepting, &listener))
            .map_err(refused)?;
        Ok(Post { shared, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Where others reach it: what they are to be told.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Where it listens.
    pub fn listens(&self) -> SocketAddr {
        self.shared.listens
    }

    /// The desk at which requests for the table with this meta object are put: serve there.
    pub fn desk(&self, table: GlobalAddr) -> Arc<Cluster> {
        let mut desks = lock(&self.shared.desks);
        Arc::clone(desks.entry(table.word()).or_insert_with(Cluster::resting))
    }

    /// What carries requests for that table to others.
    pub fn route(&self, table: GlobalAddr) -> Arc<dyn Forward> {
        Arc::new(Route { shared: Arc::clone(&self.shared), table })
    }

    /// Connections that were not let in, or said what is no request.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Listens no more, and ends all connections. What is under way gets the answer that is known then.
    pub fn shut_down(&self) {
        let shared = &self.shared;
        if shared.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        // Ends the wait for the next connection.
        let woken = TcpStream::connect_timeout(&here(shared.listens), GREETING_TIME);
        let acceptor = lock(&self.acceptor).take();
        if woken.is_ok() {
            // One that panicked has said so.
            let _ = acceptor.map(JoinHandle::join);
        }
        let lines = std::mem::take(&mut *lock(&shared.lines));
        lines.into_values().for_each(|line| line.end(None));
        for stream in lock(&shared.incoming).values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Where this machine itself reaches what listens there.
fn here(mut listens: SocketAddr) -> SocketAddr {
    match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => listens.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => listens.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listens
}

impl Drop for Post {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

impl Shared {
    /// The connection to `owner`, which is made if there is an address; `None` if there is none.
    fn line_to(self: &Arc<Self>, owner: Incarnation) -> Option<Arc<Line>> {
        let mut lines = lock(&self.lines);
        lines.retain(|_, line| !line.is_ended());
        if let Some(line) = lines.get(&owner.0) {
            return Some(Arc::clone(line));
        }
        let address = lock(&self.addresses).get(&owner.0).copied();
        if self.is_closed.load(Ordering::SeqCst) {
            return None;
        }
        let line = Line::open(self, owner, address?);
        lines.insert(owner.0, Arc::clone(&line));
        Some(line)
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} from {})", self.table, self.shared.address)
    }
}

impl Forward for Route {
    fn forward(&self, to: WrongOwner, request: Request) -> Replied {
        // Twice, as the connection may end just then.
        for _ in 0..2 {
            let line = to.owner.and_then(|owner| self.shared.line_to(owner));
            let Some(line) = line else { break };
            match line.send(self.table, &request) {
                Ok(Some(waiting)) => return Box::pin(waiting),
                Ok(None) => {}
                Err(refused) => return Box::pin(future::ready(Err(refused))),
            }
        }
        Box::pin(future::ready(Ok(Reply::Gone)))
    }

    fn patience_ns(&self) -> Option<u64> {
        Some(PATIENCE_NS)
    }

    fn alive_check_ns(&self) -> u64 {
        ALIVE_CHECK_NS
    }

    fn wants_address(&self, who: Incarnation) -> bool {
        let has_line = lock(&self.shared.lines).get(&who.0).is_some_and(|line| !line.is_ended());
        !has_line && !lock(&self.shared.addresses).contains_key(&who.0)
    }

    fn learn_address(&self, who: Incarnation, address: SocketAddr) {
        lock(&self.shared.addresses).insert(who.0, address);
    }
}
