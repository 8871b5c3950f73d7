//! Fabric chosen at run time: the one endpoint type that the pool, the engines and the store use.
//!
//! Each operation branches once on the fabric. `crates/bench/examples/any_rate.rs` measures the cost of
//! that on mapped memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::mapped::{Mapped, MappedEndpoint};
use crate::sim::SimEndpoint;
use crate::tcp::{Tcp, TcpEndpoint};
#[cfg(feature = "verbs")]
use crate::verbs::{Verbs, VerbsEndpoint};
use crate::{
    Buf, CallError, ConnectionMark, Counters, Endpoint, Executor, Exposed, Fabric, FabricError,
    GlobalAddr, Incarnation, Incoming, ListenConfig, Local, OpError, Ops, Peer, ServerId, Service,
    ServiceId, Words,
};

/// One of the fabrics that run in real time. Clones share it.
#[derive(Clone, Debug)]
pub enum AnyFabric {
    /// Memory that is mapped into this process.
    Mapped(Mapped),
    /// Memory servers on a network.
    Tcp(Tcp),
    /// Memory servers reached by RDMA.
    #[cfg(feature = "verbs")]
    Verbs(Verbs),
}

/// An endpoint of any fabric: one thread's way to the memory servers.
#[derive(Clone, Debug)]
pub enum AnyEndpoint {
    /// Reaches memory that is mapped into this process.
    Mapped(MappedEndpoint),
    /// Reaches memory servers on a network.
    Tcp(TcpEndpoint),
    /// Reaches memory servers by RDMA.
    #[cfg(feature = "verbs")]
    Verbs(VerbsEndpoint),
    /// Reaches simulated memory servers.
    Sim(SimEndpoint),
}

/// A fabric whose endpoints are some of [`AnyEndpoint`]'s: each of this crate.
pub trait ToAny {
    /// As [`Fabric::endpoint`], as the type that everything above the fabric uses.
    ///
    /// # Errors
    /// As [`Fabric::endpoint`].
    fn any_endpoint(&self) -> Result<AnyEndpoint, FabricError>;
}

impl<F: Fabric> ToAny for F
where
    F::Endpoint: Into<AnyEndpoint>,
{
    fn any_endpoint(&self) -> Result<AnyEndpoint, FabricError> {
        self.endpoint().map(Into::into)
    }
}

impl From<MappedEndpoint> for AnyEndpoint {
    fn from(endpoint: MappedEndpoint) -> Self {
        AnyEndpoint::Mapped(endpoint)
    }
}

impl From<TcpEndpoint> for AnyEndpoint {
    fn from(endpoint: TcpEndpoint) -> Self {
        AnyEndpoint::Tcp(endpoint)
    }
}

#[cfg(feature = "verbs")]
impl From<VerbsEndpoint> for AnyEndpoint {
    fn from(endpoint: VerbsEndpoint) -> Self {
        AnyEndpoint::Verbs(endpoint)
    }
}

impl From<SimEndpoint> for AnyEndpoint {
    fn from(endpoint: SimEndpoint) -> Self {
        AnyEndpoint::Sim(endpoint)
    }
}

/// Evaluates one expression on the fabric behind an `AnyFabric`.
macro_rules! on_fabric {
    ($any:expr, $it:ident => $does:expr) => {
        match $any {
            AnyFabric::Mapped($it) => $does,
            AnyFabric::Tcp($it) => $does,
            #[cfg(feature = "verbs")]
            AnyFabric::Verbs($it) => $does,
        }
    };
}

/// Evaluates one expression on the endpoint behind an `AnyEndpoint`.
macro_rules! on_endpoint {
    ($any:expr, $it:ident => $does:expr) => {
        match $any {
            AnyEndpoint::Mapped($it) => $does,
            AnyEndpoint::Tcp($it) => $does,
            #[cfg(feature = "verbs")]
            AnyEndpoint::Verbs($it) => $does,
            AnyEndpoint::Sim($it) => $does,
        }
    };
}

/// Posts an operation on the endpoint behind an `AnyEndpoint`. All futures are `Unpin`, so that no call
/// lies between this one and theirs.
macro_rules! operation {
    ($any:expr, $it:ident => $does:expr) => {
        match $any {
            AnyEndpoint::Mapped($it) => Futures::Mapped($does),
            AnyEndpoint::Tcp($it) => Futures::Tcp($does),
            #[cfg(feature = "verbs")]
            AnyEndpoint::Verbs($it) => Futures::Verbs($does),
            AnyEndpoint::Sim($it) => Futures::Sim($does),
        }
    };
}

/// An operation's future on any of the fabrics.
enum OperationFuture<M, T, S, V> {
    Mapped(M),
    Tcp(T),
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "built without verbs"))]
    Verbs(V),
    Sim(S),
}

#[cfg(feature = "verbs")]
use OperationFuture as Futures;
#[cfg(not(feature = "verbs"))]
type Futures<M, T, S> = OperationFuture<M, T, S, std::future::Pending<<M as Future>::Output>>;

impl<M, T, S, V> Future for OperationFuture<M, T, S, V>
where
    M: Future + Unpin,
    T: Future<Output = M::Output> + Unpin,
    S: Future<Output = M::Output> + Unpin,
    V: Future<Output = M::Output> + Unpin,
{
    type Output = M::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            OperationFuture::Mapped(future) => Pin::new(future).poll(context),
            OperationFuture::Tcp(future) => poll_apart(future, context),
            OperationFuture::Verbs(future) => poll_apart(future, context),
            OperationFuture::Sim(future) => poll_apart(future, context),
        }
    }
}

/// Polls out of line: a call costs nothing beside a network, but inlined into every caller it would slow
/// mapped memory down.
#[inline(never)]
fn poll_apart<F: Future + Unpin>(future: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
    Pin::new(future).poll(context)
}

impl AnyFabric {
    /// As [`ToAny::any_endpoint`], for a thread that waits for other descriptors as well ([`Executor::watch`]).
    ///
    /// # Errors
    /// As [`Fabric::endpoint`].
    pub fn watching_endpoint(&self) -> Result<AnyEndpoint, FabricError> {
        match self {
            AnyFabric::Mapped(mapped) => mapped.watching_endpoint().map(Into::into),
            other => other.any_endpoint(),
        }
    }
}

impl Fabric for AnyFabric {
    type Endpoint = AnyEndpoint;

    fn endpoint(&self) -> Result<AnyEndpoint, FabricError> {
        on_fabric!(self, fabric => fabric.any_endpoint())
    }

    fn name(&self) -> &'static str {
        on_fabric!(self, fabric => fabric.name())
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        on_fabric!(self, fabric => fabric.serve(id, service));
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        on_fabric!(self, fabric => fabric.counters())
    }

    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError> {
        on_fabric!(self, fabric => fabric.expose(number, bytes, listen))
    }
}

/// Without the trait in scope, for callers that open a pool and have no other use for it.
impl AnyEndpoint {
    /// See [`Endpoint::executor`].
    pub fn executor(&self) -> &Executor {
        Endpoint::executor(self)
    }

    /// See [`Endpoint::seed`].
    pub fn seed(&self, seed: u64) {
        Endpoint::seed(self, seed);
    }

    /// See [`Endpoint::buffers_out`].
    pub fn buffers_out(&self) -> usize {
        Endpoint::buffers_out(self)
    }
}

impl Endpoint for AnyEndpoint {
    #[inline]
    fn local(&self) -> &Local {
        on_endpoint!(self, it => it.local())
    }

    #[inline]
    fn waits_in_real_time(&self) -> bool {
        on_endpoint!(self, it => it.waits_in_real_time())
    }

    #[inline]
    fn is_lossy(&self) -> bool {
        on_endpoint!(self, it => it.is_lossy())
    }

    #[inline]
    fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        operation!(self, it => it.read(from, into))
    }

    #[inline]
    async fn read_frame(
        &self,
        from: GlobalAddr,
        frame: &Arc<Words>,
        first: usize,
        words: usize,
    ) -> Result<(), OpError> {
        on_endpoint!(self, it => it.read_frame(from, frame, first, words).await)
    }

    #[inline]
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        operation!(self, it => it.write(to, from))
    }

    #[inline]
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        operation!(self, it => it.cas(at, expected, new))
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        operation!(self, it => it.faa(at, add))
    }

    #[inline]
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        operation!(self, it => it.chain(ops))
    }

    #[inline]
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        operation!(self, it => it.post_many(ops))
    }

    async fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> Result<Buf, OpError> {
        on_endpoint!(self, it => it.rpc(server, service, request, reply).await)
    }

    async fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        on_endpoint!(self, it => it.call(to, service, request).await)
    }

    async fn next_call(&self, service: ServiceId) -> Option<Incoming> {
        on_endpoint!(self, it => it.next_call(service).await)
    }

    async fn leave(&self) {
        on_endpoint!(self, it => it.leave().await);
    }

    fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        on_endpoint!(self, it => it.attach(peer))
    }

    fn detach(&self, server: ServerId) {
        on_endpoint!(self, it => it.detach(server));
    }

    fn peers(&self) -> Vec<Peer> {
        on_endpoint!(self, it => it.peers())
    }

    fn peer_of(&self, who: Incarnation) -> Option<Peer> {
        on_endpoint!(self, it => it.peer_of(who))
    }

    async fn fence(&self, server: ServerId, who: Incarnation) -> Result<(), OpError> {
        on_endpoint!(self, it => it.fence(server, who).await)
    }

    async fn reconnect(&self, server: ServerId) -> Result<(), OpError> {
        on_endpoint!(self, it => it.reconnect(server).await)
    }

    fn connection(&self, server: ServerId) -> Option<ConnectionMark> {
        on_endpoint!(self, it => it.connection(server))
    }

    async fn end_connection(&self, mark: ConnectionMark) -> Result<(), OpError> {
        on_endpoint!(self, it => it.end_connection(mark).await)
    }

    async fn is_dead(&self, who: Incarnation) -> bool {
        on_endpoint!(self, it => it.is_dead(who).await)
    }

    #[inline]
    fn holds_lease(&self) -> bool {
        on_endpoint!(self, it => it.holds_lease())
    }

    fn may_meet_regions(&self) -> bool {
        on_endpoint!(self, it => it.may_meet_regions())
    }

    fn now_ns(&self) -> u64 {
        on_endpoint!(self, it => it.now_ns())
    }

    async fn sleep(&self, ns: u64) {
        on_endpoint!(self, it => it.sleep(ns).await)
    }

    async fn yield_now(&self) {
        on_endpoint!(self, it => it.yield_now().await)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        on_endpoint!(self, it => it.spawn(task));
    }

    /// Passes time in the simulator alone: elsewhere the work itself takes it.
    async fn work(&self, ns: u64) {
        if let AnyEndpoint::Sim(endpoint) = self {
            endpoint.work(ns).await;
        }
    }
}
