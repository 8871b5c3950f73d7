//! Calls: one compute server's requests to another one, and their replies (F12 of [`crate::contract`]).
//!
//! This folder has the contract's types, and the parts that the fabrics in real time share: the queues
//! from which a receiver's tasks take requests ([`Requests`]), and the promise that a request leaves
//! with its sender ([`promise`]).

mod link;
mod promise;
mod replies;
mod requests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::tcp::Tls;
use crate::{FabricError, GlobalAddr, Incarnation, OpErrorKind, ServerId, Words};

pub(crate) use link::CallLink;
pub(crate) use promise::{Answer, CallOutcome, promise};
pub(crate) use replies::{ALL_OTHERS, Admission, Outcome, Replies, Reply};
pub(crate) use requests::{Queued, Requests, leave, next};

/// Most bytes of a call's request, and of its reply.
pub const CALL_BYTES_MAX: usize = 16 << 20;
/// Calls that are under way on one connection. Further ones wait at the sender (F12.10).
pub(crate) const UNDER_WAY_MAX: usize = 1_024;

/// One life of a compute server, and where it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number, from [`ServerId::COMPUTE_FIRST`] on.
    pub server: ServerId,
    /// Its life.
    pub incarnation: Incarnation,
    /// The address at which it listens. `None` if the life alone leads there (`mapped`, `sim`).
    pub address: Option<SocketAddr>,
    /// Bytes of the region that it exposes (F11); 0 if it takes calls alone.
    pub region_bytes: u64,
}

/// Memory that this compute server exposes under its number (F11).
#[derive(Clone, Debug)]
pub struct OwnRegion {
    /// The number that leads to it.
    pub number: ServerId,
    /// Its words, for loads by this process (F11.4).
    pub words: Arc<Words>,
}

/// The address at which a compute server listens for the others, and the peers that it lets in. Fabrics without a network
/// (`mapped`, `sim`) ignore it.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The address. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address that others use, if it differs (containers, NAT). Port 0 stands for the port that
    /// `listen` got.
    pub advertise: Option<SocketAddr>,
    /// Encrypts connections, and lets in only who shows a certificate.
    pub tls: Option<Tls>,
    /// Allows an address that other machines can reach without `tls`.
    pub insecure_public: bool,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Threads that serve connections, and so operations on the region where no card does.
    pub threads: usize,
}

impl Default for ListenConfig {
    fn default() -> Self {
        ListenConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            tls: None,
            insecure_public: false,
            connections_max: 4_096,
            threads: 1,
        }
    }
}

/// The addresses of a compute server that takes calls in over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The address at which it listens.
    pub listens: SocketAddr,
    /// The address that others use: that of its [`Peer`].
    pub address: SocketAddr,
}

impl ListenConfig {
    /// Checks that a compute server may listen there, and that others can be told its address.
    ///
    /// # Errors
    /// [`FabricError::Config`](crate::FabricError::Config) for an address that other machines can reach
    /// with neither `tls` nor `insecure_public`, and for one that stands for all of a machine.
    pub fn check(&self) -> Result<(), FabricError> {
        let listen = self.listen;
        // An advertised address opens nothing.
        check_reach(listen, self.tls.is_some() || self.insecure_public)?;
        let told = self.advertise.unwrap_or(listen);
        if told.ip().is_unspecified() {
            return Err(FabricError::Config(format!(
                "{told} stands for all addresses of this machine: listen on, or advertise, the one that \
                 others reach"
            )));
        }
        Ok(())
    }
}

/// Refuses to listen where other machines reach this one, unless that is allowed.
pub(crate) fn check_reach(listen: SocketAddr, is_allowed: bool) -> Result<(), FabricError> {
    if !listen.ip().is_loopback() && !is_allowed {
        return Err(FabricError::Config(format!(
            "{listen} can be reached from other machines, and nobody is authenticated: listen on a \
             loopback address, set up TLS, or allow it by insecure_public in a network that you trust"
        )));
    }
    Ok(())
}

/// The way in which a call failed (F12.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request was not begun and never will be: it may be sent again.
    #[error("the request was not begun, and never will be")]
    NotBegun,
    /// The request may have been done, may be under way, or may not have been begun.
    #[error("it is unknown whether the request was executed: {0}")]
    Unknown(OpErrorKind),
    /// The request has more than [`CALL_BYTES_MAX`] bytes. It was not sent.
    #[error("the request is longer than {CALL_BYTES_MAX} bytes")]
    TooLong,
}

impl CallError {
    /// The error of a call without a reply, by whether its work may have begun.
    pub(crate) fn unanswered(is_begun: bool, kind: OpErrorKind) -> CallError {
        if is_begun { CallError::Unknown(kind) } else { CallError::NotBegun }
    }
}

/// A reply that did not leave: this compute server does not hold its lease, or the connection has ended.
/// The sender of the request learns `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reply did not leave: this compute server holds no lease, or the connection has ended")]
pub struct Closed;

/// A request that came to this compute server (see [`crate::Endpoint::next_call`]).
///
/// Dropped without a reply, it tells its sender [`CallError::NotBegun`] before [`Incoming::begin`], and
/// [`CallError::Unknown`] after it.
pub struct Incoming {
    /// The life that sent it.
    pub from: Incarnation,
    /// Its bytes.
    pub request: Vec<u8>,
    responder: Box<dyn Responder>,
}

impl Incoming {
    pub(crate) fn new(from: Incarnation, request: Vec<u8>, responder: Box<dyn Responder>) -> Self {
        Incoming { from, request, responder }
    }

    /// Declares that the request's work begins. From here on its sender learns `NotBegun` no more.
    ///
    /// False if the sender has been fenced, has left or has reconnected (F12.4, F12.6): nothing of the
    /// request may be done.
    #[must_use = "false: nothing of the request may be done"]
    pub fn begin(&mut self) -> bool {
        self.responder.begin()
    }

    /// Sends the reply. Costs no wait.
    ///
    /// # Errors
    /// [`Closed`] if this compute server does not hold its lease (F12.7), or the sender has gone.
    ///
    /// # Panics
    /// If the reply has more than [`CALL_BYTES_MAX`] bytes, or [`Incoming::begin`] has not returned true.
    pub fn reply(mut self, reply: Vec<u8>) -> Result<(), Closed> {
        assert!(reply.len() <= CALL_BYTES_MAX, "a reply of {} bytes", reply.len());
        self.responder.reply(reply)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({} bytes from {})", self.request.len(), self.from)
    }
}

/// Obligation of a request's receiver to its sender. Dropped, it tells the sender how far the request was.
pub(crate) trait Responder {
    /// See [`Incoming::begin`].
    fn begin(&mut self) -> bool;

    /// See [`Incoming::reply`]; called once.
    fn reply(&mut self, reply: Vec<u8>) -> Result<(), Closed>;
}

/// The compute servers that this one calls, and the requests that come to it, in real time.
pub(crate) trait PeerCalls {
    /// Requests that came.
    fn requests(&self) -> &Arc<Requests>;

    /// See [`crate::Endpoint::attach`].
    fn attach(&self, peer: Peer) -> Result<(), FabricError>;

    /// See [`crate::Endpoint::detach`].
    fn detach(&self, server: ServerId);

    /// See [`crate::Endpoint::peers`].
    fn peers(&self) -> Vec<Peer>;

    /// See [`crate::Endpoint::peer_of`].
    fn peer_of(&self, who: Incarnation) -> Option<Peer>;
}

/// Grain of a region's size: a page.
const REGION_GRAIN: u64 = 4096;

/// Refuses a number that no compute server has.
pub(crate) fn check_number(number: ServerId) -> Result<(), FabricError> {
    if number.is_compute() && number <= ServerId::MAX {
        return Ok(());
    }
    Err(FabricError::Config(format!(
        "compute servers have numbers from {} to {}, and {number} is none of them",
        ServerId::COMPUTE_FIRST,
        ServerId::MAX
    )))
}

/// Refuses a number that no compute server has, and a size that no region has.
pub(crate) fn check_exposed(number: ServerId, bytes: u64) -> Result<(), FabricError> {
    check_number(number)?;
    if !bytes.is_multiple_of(REGION_GRAIN) || bytes > GlobalAddr::OFFSET_MAX {
        return Err(FabricError::Config(format!(
            "a compute server's region of {bytes} bytes: it takes a multiple of {REGION_GRAIN} below \
             2^{}, or 0 to take calls alone",
            GlobalAddr::OFFSET_BITS
        )));
    }
    Ok(())
}

/// Zeroed memory for the region that `number` stands for; `None` for 0 bytes.
pub(crate) fn region_words(
    number: ServerId,
    bytes: u64,
) -> Result<Option<Arc<Words>>, FabricError> {
    if bytes == 0 {
        return Ok(None);
    }
    let words = Words::anonymous((bytes / 8) as usize);
    words.map(|words| Some(Arc::new(words))).ok_or(FabricError::NoMemory { bytes, server: number })
}

/// The error for a compute server that exposes twice.
pub(crate) fn exposed_twice() -> FabricError {
    FabricError::Config("a compute server exposes itself once in its life".to_owned())
}
