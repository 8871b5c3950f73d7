//! TCP endpoint: runs one thread's operations on the memory servers.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use super::TcpShared;
use super::transport::{Payload, Transport};
use super::wire::CAPABILITIES;
use crate::local::PoolFacts;
use crate::post::{Post, list, old_word};
use crate::raw::SlabRef;
use crate::single::Single;
use crate::{
    Buf, CALL_BYTES_MAX, CallError, Capabilities, ConnectionMark, Counters, Endpoint, Executor,
    FabricError, GlobalAddr, Incarnation, Local, Op, OpError, OpErrorKind, Ops, ServerId,
    ServiceId,
};

/// One thread's connections to all memory servers.
#[derive(Clone, Debug)]
pub struct TcpEndpoint {
    thread: Rc<Thread>,
}

#[derive(Debug)]
struct Thread {
    shared: Arc<TcpShared>,
    transport: Rc<Transport>,
    local: Local,
}

impl TcpEndpoint {
    pub(super) fn connect(
        shared: Arc<TcpShared>,
        counters: Arc<Counters>,
        seed: u64,
    ) -> Result<Self, FabricError> {
        let transport = Rc::new(Transport::connect(Arc::clone(&shared))?);
        let executor = Executor::with_driver(Rc::clone(&transport));
        let slab = SlabRef::new();
        Ok(Self::over(shared, transport, executor, counters, slab, seed, CAPABILITIES))
    }

    /// Over a transport that `executor` drives.
    pub(crate) fn over(
        shared: Arc<TcpShared>,
        transport: Rc<Transport>,
        executor: Executor,
        counters: Arc<Counters>,
        slab: SlabRef,
        seed: u64,
        capabilities: Capabilities,
    ) -> Self {
        transport.belongs_to(&executor);
        let calls = Arc::clone(&shared.calls) as _;
        let (incarnation, region_bytes) = (shared.incarnation, shared.region_bytes());
        let own = Arc::clone(&shared.calls.own);
        let pool = PoolFacts { incarnation, capabilities, region_bytes, own };
        let local = Local::new(pool, counters, slab, seed, executor, calls);
        TcpEndpoint { thread: Rc::new(Thread { shared, transport, local }) }
    }

    /// Asks about another way to the server's words; see [`super::offer`]. 1 round trip.
    ///
    /// # Errors
    /// `NoService` if the server offers none; otherwise as any operation.
    #[cfg(feature = "verbs")]
    pub(crate) fn ask(
        &self,
        server: ServerId,
        question: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, OpError>> {
        self.post(Payload::Ask(server, question), |payload, error| match (payload, error) {
            (_, Some(error)) => Err(error),
            (Payload::Ask(_, answer), None) => Ok(answer),
            (other, None) => unreachable!("a question came back as {other:?}"),
        })
    }

    #[inline]
    fn post<T>(
        &self,
        payload: Payload,
        finish: fn(Payload, Option<OpError>) -> T,
    ) -> Post<'_, Transport, T> {
        Post::new(&self.thread.transport, payload, finish)
    }
}

fn nothing(_: Payload, error: Option<OpError>) -> Result<(), OpError> {
    error.map_or(Ok(()), Err)
}

impl Endpoint for TcpEndpoint {
    #[inline]
    fn local(&self) -> &Local {
        &self.thread.local
    }

    #[inline]
    fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        Single::read(&*self.thread.transport, from, into)
    }

    #[inline]
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        Single::write(&*self.thread.transport, to, from)
    }

    #[inline]
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        self.post(Payload::Op(Op::Cas { at, expected, new, old: 0 }), old_word)
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        self.post(Payload::Op(Op::Faa { at, add, old: 0 }), old_word)
    }

    /// The server carries out requests of one connection in their order; those of a chain stop at an error.
    #[inline]
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        ops.assert_chain();
        self.post(Payload::Chain(ops), list)
    }

    #[inline]
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        self.post(Payload::Batch(ops), list)
    }

    fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> impl Future<Output = Result<Buf, OpError>> {
        let payload = Payload::Rpc { server, service, request, reply, reply_len: 0 };
        self.post(payload, |payload, error| match (payload, error) {
            (_, Some(error)) => Err(error),
            (Payload::Rpc { reply, reply_len, .. }, None) => {
                let at = reply.window_start();
                Ok(reply.window(at..at + reply_len))
            }
            (other, None) => unreachable!("an RPC came back as {other:?}"),
        })
    }

    async fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        if request.len() > CALL_BYTES_MAX {
            return Err(CallError::TooLong);
        }
        let payload = Payload::Call(to, service, request);
        let called = self.post(payload, |payload, error| match (payload, error) {
            (_, Some(error)) => Err(CallError::Unknown(error.kind)),
            (Payload::Call(_, _, reply), None) => Ok(reply),
            (_, None) => Err(CallError::NotBegun),
        });
        called.await
    }

    /// Asks memory server 0 first, which refuses to fence the living: 2 round trips for the others.
    async fn fence(&self, server: ServerId, who: Incarnation) -> Result<(), OpError> {
        let judge = ServerId(0);
        if server != judge {
            let judged = self.post(Payload::Fence(judge, who), nothing).await;
            judged.map_err(|error| match error.kind {
                OpErrorKind::StillAlive => OpError { server, ..error },
                // Memory server 0, which decides, must be reached.
                _ => error,
            })?;
        }
        let Thread { shared, .. } = &*self.thread;
        if shared.calls.own_region(server, shared.incarnation).is_some() {
            // Nothing of it goes over a connection.
            let fenced = shared.calls.fence_own(who);
            return fenced.map_err(|_| OpError { server, kind: OpErrorKind::Unavailable });
        }
        self.post(Payload::Fence(server, who), nothing).await
    }

    fn reconnect(&self, server: ServerId) -> impl Future<Output = Result<(), OpError>> {
        self.post(Payload::Reconnect(server), nothing)
    }

    fn connection(&self, server: ServerId) -> Option<ConnectionMark> {
        self.thread.transport.mark(server, false)
    }

    async fn end_connection(&self, mark: ConnectionMark) -> Result<(), OpError> {
        self.thread.shared.end_connection(mark).await
    }

    /// Asks memory server 0. If it cannot be reached, nothing is known, and the answer is no.
    async fn is_dead(&self, who: Incarnation) -> bool {
        if who == self.thread.shared.incarnation {
            return false;
        }
        let payload = Payload::IsDead(ServerId(0), who, false);
        let is_dead = self.post(payload, |payload, error| {
            error.is_none() && matches!(payload, Payload::IsDead(_, _, true))
        });
        let is_dead = is_dead.await;
        if is_dead {
            self.thread.shared.calls.told_dead(who);
        }
        is_dead
    }

    fn holds_lease(&self) -> bool {
        self.thread.shared.lease.holds()
    }
}
