//! Verbs fabric: reaches memory servers by RDMA through rdma-core, on InfiniBand and RoCE cards.
//!
//! A [`VerbsServer`] is a [`tcp::MemoryServer`] whose words are registered with a card. A [`Verbs`] is
//! one compute server's way to all memory servers of a pool. Every thread has a connection of `tcp` and
//! a reliable queue pair to each of them. READ, WRITE, CAS and FAA, alone, in chains and in batches, go
//! by the queue pair and take no processor of the server. RPCs of up to 4 KiB each way go by it as
//! messages. The connection carries all else: greeting, signs of life, fences, what both ends of a
//! queue pair must know of each other, and longer RPCs.
//!
//! The fabric loads libibverbs at its first use. Without the library, or without a card, [`Verbs::connect`]
//! and [`VerbsServer::start`] return an error, and everything else goes on.
//!
//! `docs/design/verbs.md` states the guarantees and their reasons. The fabric neither authenticates nor
//! encrypts: every client that can connect has the key to all words.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use farleaf_fabric::tcp::MemoryServerConfig;
//! use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsServer};
//! use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ServerId, Words};
//!
//! let words = Arc::new(Words::anonymous(1 << 17).expect("1 MiB"));
//! let (config, card) = (MemoryServerConfig::default(), CardConfig::default());
//! let server = VerbsServer::start(config, &card, words)?;
//! let fabric = Verbs::connect(VerbsConfig::to([server.address()]))?;
//! let endpoint = fabric.endpoint()?;
//! let there = GlobalAddr::new(ServerId(0), 4096);
//! let old = endpoint.executor().block_on(async { endpoint.faa(there, 5).await })?;
//! assert_eq!(old, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`tcp::MemoryServer`]: crate::tcp::MemoryServer
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a network is real time and real threads"
)]

mod calls;
mod card_port;
mod endpoint;
mod error;
mod flow;
mod posts;
mod rpc_server;
mod self_test;
mod server;
mod transport;
mod wire;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

pub use card_port::CardConfig;
pub use endpoint::VerbsEndpoint;
pub use error::VerbsError;
pub(crate) use flow::ClientFlow;
pub use server::VerbsServer;

use crate::raw::verbs::device_names;
use crate::sync::lock;
use crate::tcp::offer::Offer;
use crate::tcp::{Tcp, TcpConfig, ask_once};
use crate::{
    Capabilities, Counters, Exposed, Fabric, FabricError, Incarnation, ListenConfig, ServerId,
    Service, ServiceId, Words,
};
use card_port::CardPort;
use self_test::Findings;
use server::Cards;

/// Memory servers of a pool, the card that reaches them, and settings.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Addresses of the memory servers, and time limits for them.
    pub tcp: TcpConfig,
    /// The card of this side.
    pub card: CardConfig,
    /// Operations that a thread may have outstanding at each server; more wait. Less if the card has no
    /// room for as many.
    pub depth: u32,
    /// Most operations per doorbell.
    pub list_max: usize,
    /// WRITEs and messages up to so many bytes travel in the request itself, if the card can.
    pub inline_max: u32,
    /// RPCs that a thread may have under way at each server by the card, at most 16; more wait. With 0, or if
    /// a server has no slot for them, all RPCs go by the connection.
    pub calls: u16,
}

impl VerbsConfig {
    /// The usual settings, for the memory servers at these addresses.
    pub fn to(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        VerbsConfig {
            tcp: TcpConfig::to(servers),
            card: CardConfig::default(),
            depth: 256,
            list_max: 64,
            inline_max: 64,
            calls: rpc_server::CALLS_MAX,
        }
    }
}

/// Names of the RDMA devices of this machine.
///
/// # Errors
/// [`VerbsError::NoLibrary`] if rdma-core is not there.
pub fn devices() -> Result<Vec<String>, VerbsError> {
    device_names()
}

/// Memory servers that one compute server reaches by RDMA. Clones share it; when the last one, and the
/// last endpoint, is dropped, the compute server says goodbye and counts as dead.
#[derive(Clone, Debug)]
pub struct Verbs(Arc<VerbsShared>);

/// State that the endpoints of a process share.
#[derive(Debug)]
pub(crate) struct VerbsShared {
    tcp: Tcp,
    config: VerbsConfig,
    card_port: CardPort,
    /// Findings of the test of this side's card.
    findings: Findings,
    capabilities: Capabilities,
    /// The region that this compute server exposes, as its card serves it.
    region: Mutex<Option<Arc<Cards>>>,
    /// Work requests that a queue pair may have outstanding.
    depth: u32,
    /// RPCs that it may have under way, if a server has a slot for them.
    calls: u16,
}

impl Verbs {
    /// Opens the card, tests it, connects to every memory server and asks for the properties of its card.
    ///
    /// # Errors
    /// [`FabricError::Verbs`] names the fault of the card, or of a server's; otherwise as [`Tcp::connect`].
    pub fn connect(config: VerbsConfig) -> Result<Self, FabricError> {
        if config.depth == 0 || config.list_max == 0 {
            let why = "a depth and a length of lists of at least 1 are needed".to_owned();
            return Err(VerbsError::Config(why).into());
        }
        let card_port = CardPort::open(&config.card)?;
        let own = self_test::run(&card_port)?;
        let tcp = Tcp::connect_for(config.tcp.clone(), true)?;
        // A completion queue that overflows is broken for good. So it has room for all possible completions,
        // and for flushed ones of queue pairs that are gone.
        let facts = &card_port.device.facts;
        let share = facts.completions_max / (2 * config.tcp.servers.len() as u32);
        let calls = config.calls.min(rpc_server::CALLS_MAX);
        let room = share.saturating_sub(calls.into());
        let depth = config.depth.min(facts.queue_max).min(room).max(1);
        let mut capabilities = Capabilities {
            word_atomic: !own.torn_words,
            // All cards that do atomics decide on this: the servers' below, and this one for the own region.
            rmw_global: own.global_atomics,
            native_atomics: true,
            needs_target_progress: false,
            ..Capabilities::NONE
        };
        let (findings, region) = (own, Mutex::default());
        let mut shared =
            VerbsShared { tcp, config, card_port, findings, capabilities, region, depth, calls };
        for server in 0..shared.config.tcp.servers.len() {
            let server = ServerId(server as u16);
            let question = shared.question(shared.card_port.ends(0, 0), false).encode();
            let answer = ask_once(&shared.tcp, server, &question)?
                .map_err(|kind| shared.not_asked(server, kind))?;
            let answer = shared.check_answer(server, &answer)?;
            capabilities.word_atomic &= !answer.torn_words;
            capabilities.rmw_global &= answer.global_atomics;
        }
        shared.capabilities = capabilities;
        Ok(Verbs(Arc::new(shared)))
    }

    /// Its incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.0.tcp.incarnation()
    }

    /// The card, port, GID index and largest packet of this side.
    pub fn place(&self) -> String {
        self.0.card_port.to_string()
    }
}

impl Fabric for Verbs {
    type Endpoint = VerbsEndpoint;

    /// Connects the calling thread to every memory server.
    fn endpoint(&self) -> Result<VerbsEndpoint, FabricError> {
        if self.0.tcp.shared().has_given_up() {
            return Err(FabricError::GivenUp);
        }
        VerbsEndpoint::connect(Arc::clone(&self.0))
    }

    fn name(&self) -> &'static str {
        "verbs"
    }

    /// Does nothing: this process hosts no memory server. Use [`VerbsServer::serve`].
    fn serve(&self, _id: ServiceId, _service: Arc<dyn Service>) {}

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.0.tcp.counters()
    }

    /// Registers the region with the card, which locks all of it in memory, and serves it by queue pairs.
    ///
    /// # Errors
    /// [`VerbsError::Memory`] if so much memory cannot be locked; otherwise as [`Fabric::expose`].
    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError> {
        let VerbsShared { tcp, card_port, findings, region, .. } = &*self.0;
        let offer = |words: &Arc<Words>| {
            let cards = Arc::new(Cards::over(card_port, *findings, words)?);
            // The words become this compute server's own only after this.
            *lock(region) = Some(Arc::clone(&cards));
            Ok(cards as Arc<dyn Offer>)
        };
        let exposed = tcp.expose_with(number, bytes, listen, &offer);
        if exposed.is_err() && tcp.shared().calls.own.get().is_none() {
            // Nobody will use them: they are unlocked.
            *lock(region) = None;
        }
        exposed
    }
}
