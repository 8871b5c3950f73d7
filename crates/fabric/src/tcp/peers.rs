//! Peers: the compute servers that this one calls over TCP, and the server that takes in their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::lives::{AdmissionState, ConnectionAdmission, Uncut};
use super::offer::Offer;
use super::{Lease, MemoryServer, MemoryServerConfig};
use crate::calls::{
    Admission, OwnRegion, PeerCalls, Requests, check_exposed, check_number, exposed_twice,
    region_words,
};
use crate::local::OwnRegionCell;
use crate::sync::lock;
use crate::{Exposed, FabricError, Incarnation, ListenConfig, Peer, ServerId, Words};

/// State of calls that the threads of a compute server share.
#[derive(Debug, Default)]
pub(crate) struct TcpCalls {
    pub(crate) requests: Arc<Requests>,
    /// Memory that this compute server exposes.
    pub(crate) own: OwnRegionCell,
    state: Mutex<PeersState>,
    /// Changes with what stands in the state.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct PeersState {
    peers: BTreeMap<ServerId, Peer>,
    /// Lives that this compute server was told are dead.
    dead: BTreeSet<Incarnation>,
    server: Option<MemoryServer>,
}

/// Meaning of a compute server's number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// Nothing is attached there.
    Nobody,
    /// This compute server was told that the life has ended.
    Dead(Incarnation),
    Peer(Peer),
}

/// Parts of a server that takes calls in.
#[derive(Debug)]
pub(crate) struct CallServer {
    pub(super) requests: Arc<Requests>,
    /// The life that others must mean.
    pub(super) me: Incarnation,
    pub(super) lease: Arc<Lease>,
}

/// Makes another way to a region's words, which their server offers.
pub(crate) type OfferOf<'a> = &'a dyn Fn(&Arc<Words>) -> Result<Arc<dyn Offer>, FabricError>;

impl TcpCalls {
    /// Listens, takes calls in, and serves a region of `bytes`, with the way of `offer` to it if there is one.
    pub(super) fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
        servers: usize,
        (me, lease): (Incarnation, &Arc<Lease>),
        offer: Option<OfferOf<'_>>,
    ) -> Result<Exposed, FabricError> {
        check_exposed(number, bytes)?;
        listen.check()?;
        let mut state = lock(&self.state);
        if state.server.is_some() {
            return Err(exposed_twice());
        }
        let region = region_words(number, bytes)?;
        let offer = offer.zip(region.as_ref()).map(|(offer, words)| offer(words)).transpose()?;
        let config = MemoryServerConfig {
            listen: listen.listen,
            server: number,
            servers,
            connections_max: listen.connections_max,
            threads: listen.threads,
            insecure_public: listen.insecure_public,
            tls: listen.tls.clone(),
            ..MemoryServerConfig::default()
        };
        let call_server =
            CallServer { requests: Arc::clone(&self.requests), me, lease: Arc::clone(lease) };
        let server = MemoryServer::start_for_peers(config, call_server, region.clone(), offer)?;
        if !self.requests.open() {
            return Err(exposed_twice());
        }
        let listens = server.address();
        let mut address = listen.advertise.unwrap_or(listens);
        if address.port() == 0 {
            address.set_port(listens.port());
        }
        state.server = Some(server);
        if let Some(words) = region {
            let _ = self.own.set(OwnRegion { number, words });
        }
        drop(state);
        self.version.fetch_add(1, Ordering::Release);
        Ok(Exposed { listens, address })
    }

    /// Returns the peer of a number, unless the peer is known to be dead.
    pub(crate) fn peer(&self, server: ServerId) -> Option<Peer> {
        match self.find(server) {
            Found::Peer(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns what a number of a compute server stands for.
    pub(crate) fn find(&self, server: ServerId) -> Found {
        let state = lock(&self.state);
        match state.peers.get(&server).copied() {
            Some(peer) if state.dead.contains(&peer.incarnation) => Found::Dead(peer.incarnation),
            Some(peer) => Found::Peer(peer),
            None => Found::Nobody,
        }
    }

    /// The own region, if `server` is its number and stands for nobody else.
    pub(crate) fn own_region(&self, server: ServerId, me: Incarnation) -> Option<&Arc<Words>> {
        let own = self.own.get().filter(|own| own.number == server)?;
        let is_mine = match self.find(server) {
            Found::Peer(peer) => peer.incarnation == me,
            Found::Dead(_) => false,
            Found::Nobody => true,
        };
        is_mine.then_some(&own.words)
    }

    /// Cuts `who` off from this compute server: from its region and its calls.
    pub(super) fn fence_own(&self, who: Incarnation) -> Result<(), Uncut> {
        let host = lock(&self.state).server.as_ref().map(MemoryServer::host);
        host.map_or(Ok(()), |host| host.lives.fence(who, host.now_ms()))
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Threads look at their connections to compute servers.
    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// `who` is dead: no reply of it is taken any more (F12.6).
    pub(super) fn told_dead(&self, who: Incarnation) {
        let mut state = lock(&self.state);
        let is_peer = state.peers.values().any(|peer| peer.incarnation == who);
        if is_peer && state.dead.insert(who) {
            drop(state);
            self.version.fetch_add(1, Ordering::Release);
        }
    }
}

impl PeerCalls for TcpCalls {
    fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        check_number(peer.server)?;
        if peer.address.is_none() {
            return Err(FabricError::Config(format!(
                "compute server {} has no address",
                peer.server
            )));
        }
        lock(&self.state).peers.insert(peer.server, peer);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn detach(&self, server: ServerId) {
        lock(&self.state).peers.remove(&server);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn peers(&self) -> Vec<Peer> {
        lock(&self.state).peers.values().copied().collect()
    }

    fn peer_of(&self, who: Incarnation) -> Option<Peer> {
        lock(&self.state).peers.values().find(|peer| peer.incarnation == who).copied()
    }
}

impl Drop for TcpCalls {
    fn drop(&mut self) {
        // Waiting requests are not begun.
        self.requests.close();
    }
}

/// Decides whether calls of a connection may begin, and whether replies may leave.
pub(super) struct GateAdmission {
    pub(super) admission: Arc<ConnectionAdmission>,
    pub(super) lease: Arc<Lease>,
}

impl Admission for GateAdmission {
    /// A thread that closes the admission takes it: nothing begins afterwards.
    fn may_begin(&self, _from: Incarnation) -> bool {
        *self.admission.lock() == AdmissionState::Open
    }

    fn holds_lease(&self) -> bool {
        self.lease.holds()
    }
}
