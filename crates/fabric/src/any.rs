//! A fabric that is chosen when the program runs: what a store is written against, so that one
//! type of handle serves them all.
//!
//! Each operation asks once which fabric it is on. `crates/bench/examples/any_rate.rs` measures
//! what that costs on mapped memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::mapped::{Mapped, MappedEndpoint};
use crate::tcp::{Tcp, TcpEndpoint};
#[cfg(feature = "verbs")]
use crate::verbs::{Verbs, VerbsEndpoint};
use crate::{
    Buf, Capabilities, Counters, Endpoint, Executor, Fabric, FabricError, GlobalAddr, Incarnation,
    OpError, Ops, ServerId, Service, ServiceId, Words,
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

/// One thread's way to the memory servers of an [`AnyFabric`].
#[derive(Clone, Debug)]
pub enum AnyEndpoint {
    /// Of memory that is mapped into this process.
    Mapped(MappedEndpoint),
    /// Of memory servers on a network.
    Tcp(TcpEndpoint),
    /// Of memory servers reached by RDMA.
    #[cfg(feature = "verbs")]
    Verbs(VerbsEndpoint),
}

/// The same expression on whichever it is.
macro_rules! each {
    ($type:ident, $any:expr, $it:ident => $does:expr) => {
        match $any {
            $type::Mapped($it) => $does,
            $type::Tcp($it) => $does,
            #[cfg(feature = "verbs")]
            $type::Verbs($it) => $does,
        }
    };
}

/// The operation on whichever it is. All futures can be moved, so that no call lies between this one
/// and theirs.
macro_rules! operation {
    ($any:expr, $it:ident => $does:expr) => {
        match $any {
            AnyEndpoint::Mapped($it) => Futures::Mapped($does),
            AnyEndpoint::Tcp($it) => Futures::Tcp($does),
            #[cfg(feature = "verbs")]
            AnyEndpoint::Verbs($it) => Futures::Verbs($does),
        }
    };
}

/// The future of one of the fabrics.
enum Each<M, T, V> {
    Mapped(M),
    Tcp(T),
    #[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "there are but two"))]
    Verbs(V),
}

#[cfg(feature = "verbs")]
use Each as Futures;
#[cfg(not(feature = "verbs"))]
type Futures<M, T> = Each<M, T, std::future::Pending<<M as Future>::Output>>;

impl<M, T, V> Future for Each<M, T, V>
where
    M: Future + Unpin,
    T: Future<Output = M::Output> + Unpin,
    V: Future<Output = M::Output> + Unpin,
{
    type Output = M::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Each::Mapped(future) => Pin::new(future).poll(context),
            Each::Tcp(future) => poll_apart(future, context),
            Each::Verbs(future) => poll_apart(future, context),
        }
    }
}

/// A call costs nothing beside what a network does; unrolled into every caller, it would cost those on
/// mapped memory.
#[inline(never)]
fn poll_apart<F: Future + Unpin>(future: &mut F, context: &mut Context<'_>) -> Poll<F::Output> {
    Pin::new(future).poll(context)
}

impl Fabric for AnyFabric {
    type Endpoint = AnyEndpoint;

    fn endpoint(&self) -> Result<AnyEndpoint, FabricError> {
        Ok(match self {
            AnyFabric::Mapped(fabric) => AnyEndpoint::Mapped(fabric.endpoint()?),
            AnyFabric::Tcp(fabric) => AnyEndpoint::Tcp(fabric.endpoint()?),
            #[cfg(feature = "verbs")]
            AnyFabric::Verbs(fabric) => AnyEndpoint::Verbs(fabric.endpoint()?),
        })
    }

    fn name(&self) -> &'static str {
        each!(AnyFabric, self, fabric => fabric.name())
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        each!(AnyFabric, self, fabric => fabric.serve(id, service));
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        each!(AnyFabric, self, fabric => fabric.counters())
    }
}

impl AnyEndpoint {
    /// The executor that this thread's tasks run on.
    pub fn executor(&self) -> &Executor {
        each!(AnyEndpoint, self, it => it.executor())
    }

    /// Starts this thread's random numbers anew from `seed`.
    pub fn seed(&self, seed: u64) {
        each!(AnyEndpoint, self, it => it.seed(seed));
    }

    /// Buffers that are in somebody's hands or with an operation; 0 when all have come home.
    pub fn buffers_out(&self) -> usize {
        each!(AnyEndpoint, self, it => it.buffers_out())
    }
}

impl Endpoint for AnyEndpoint {
    fn server_count(&self) -> usize {
        each!(AnyEndpoint, self, it => it.server_count())
    }

    fn region_bytes(&self, server: ServerId) -> u64 {
        each!(AnyEndpoint, self, it => it.region_bytes(server))
    }

    fn capabilities(&self) -> Capabilities {
        each!(AnyEndpoint, self, it => it.capabilities())
    }

    #[inline]
    fn is_lossy(&self) -> bool {
        each!(AnyEndpoint, self, it => it.is_lossy())
    }

    fn incarnation(&self) -> Incarnation {
        each!(AnyEndpoint, self, it => it.incarnation())
    }

    #[inline]
    fn counters(&self) -> &Arc<Counters> {
        each!(AnyEndpoint, self, it => it.counters())
    }

    #[inline]
    fn buf(&self, len: usize) -> Buf {
        each!(AnyEndpoint, self, it => it.buf(len))
    }

    #[inline]
    fn ops(&self) -> Ops {
        each!(AnyEndpoint, self, it => it.ops())
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
        each!(AnyEndpoint, self, it => it.read_frame(from, frame, first, words).await)
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
        each!(AnyEndpoint, self, it => it.rpc(server, service, request, reply).await)
    }

    async fn fence(&self, server: ServerId, who: Incarnation) -> Result<(), OpError> {
        each!(AnyEndpoint, self, it => it.fence(server, who).await)
    }

    async fn reconnect(&self, server: ServerId) -> Result<(), OpError> {
        each!(AnyEndpoint, self, it => it.reconnect(server).await)
    }

    async fn is_dead(&self, who: Incarnation) -> bool {
        each!(AnyEndpoint, self, it => it.is_dead(who).await)
    }

    #[inline]
    fn holds_lease(&self) -> bool {
        each!(AnyEndpoint, self, it => it.holds_lease())
    }

    fn now_ns(&self) -> u64 {
        each!(AnyEndpoint, self, it => it.now_ns())
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.executor().sleep(ns)
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        crate::yield_now()
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor().spawn(task);
    }

    fn random(&self) -> u64 {
        each!(AnyEndpoint, self, it => it.random())
    }

    /// Nothing: no fabric here has virtual time.
    async fn work(&self, _ns: u64) {}
}
