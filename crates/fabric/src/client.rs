//! Client: issues the operations of one logical thread and counts them.

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;

use crate::{
    AnyEndpoint, Buf, CallError, ConnectionMark, Cost, Endpoint, GlobalAddr, Incarnation, Op,
    OpError, OpErrorKind, OpKind, Ops, ServerId, ServiceId, Words, canary,
};

/// One coroutine's view of an endpoint: the same operations, counted per server and per kind of index
/// operation (see [`Client::begin`]).
///
/// Every method is a plain function that counts and returns the endpoint's own future; wrapping
/// one `async fn` in another costs more than the operation on `mapped`.
#[derive(Debug)]
pub struct Client<E = AnyEndpoint> {
    endpoint: E,
    kind: Cell<OpKind>,
}

impl<E: Endpoint> Client<E> {
    /// A client on `endpoint`'s thread.
    pub fn new(endpoint: E) -> Self {
        Client { endpoint, kind: Cell::new(OpKind::Other) }
    }

    /// The endpoint, for everything that is not counted: buffers, clock, sleep, tasks, randomness.
    #[inline]
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// Starts an index operation: later remote operations count for `kind`, and `kind` counts one more.
    #[inline]
    pub fn begin(&self, kind: OpKind) {
        self.kind.set(kind);
        self.endpoint.counters().add_ops(kind, 1);
    }

    /// Makes later remote operations count for `kind` without counting an index operation; returns the kind
    /// before.
    pub fn charge_to(&self, kind: OpKind) -> OpKind {
        self.kind.replace(kind)
    }

    /// A buffer of `len` bytes; see [`Endpoint::buf`].
    #[inline]
    pub fn buf(&self, len: usize) -> Buf {
        self.endpoint.buf(len)
    }

    /// An empty list of operations; see [`Endpoint::ops`].
    #[inline]
    pub fn ops(&self) -> Ops {
        self.endpoint.ops()
    }

    /// READ; see [`Endpoint::read`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::read`].
    #[inline]
    pub fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        self.count(from.server(), Cost { bytes_read: into.window_len() as u64, ..READ });
        self.endpoint.read(from, into)
    }

    /// READ into a shared frame; see [`Endpoint::read_frame`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::read_frame`].
    #[inline]
    pub fn read_frame(
        &self,
        from: GlobalAddr,
        frame: &Arc<Words>,
        first: usize,
        words: usize,
    ) -> impl Future<Output = Result<(), OpError>> {
        self.count(from.server(), Cost { bytes_read: words as u64 * 8, ..READ });
        self.endpoint.read_frame(from, frame, first, words)
    }

    /// WRITE; see [`Endpoint::write`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    #[inline]
    pub fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        self.count(to.server(), Cost { bytes_written: from.window_len() as u64, ..WRITE });
        self.endpoint.write(to, from)
    }

    /// CAS; returns the word that was there. See [`Endpoint::cas`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::cas`].
    #[inline]
    pub fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        self.count(at.server(), CAS);
        self.endpoint.cas(at, expected, new)
    }

    /// FAA; returns the word that was there. See [`Endpoint::faa`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::faa`].
    #[inline]
    pub fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        self.count(at.server(), FAA);
        self.endpoint.faa(at, add)
    }

    /// Operations on one server in order; see [`Endpoint::chain`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::chain`].
    #[inline]
    pub fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        self.count_list(&ops, Cost { chains: 1, round_trips: 1, ..ZERO });
        self.endpoint.chain(ops)
    }

    /// Independent operations at once; see [`Endpoint::post_many`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::post_many`].
    #[inline]
    pub fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        self.count_list(&ops, Cost { round_trips: 1, ..ZERO });
        self.endpoint.post_many(ops)
    }

    /// RPC; see [`Endpoint::rpc`]. 1 round trip. The reply's bytes count as its window's length.
    ///
    /// # Errors
    /// As [`Endpoint::rpc`].
    pub async fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> Result<Buf, OpError> {
        let sent = request.window_len() as u64;
        self.count(server, Cost { rpcs: 1, round_trips: 1, bytes_written: sent, ..ZERO });
        let reply = self.endpoint.rpc(server, service, request, reply).await?;
        self.count(server, Cost { bytes_read: reply.window_len() as u64, ..ZERO });
        Ok(reply)
    }

    /// Calls another compute server; see [`Endpoint::call`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::call`].
    pub async fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let sent = request.len() as u64;
        let cost = Cost { calls: 1, round_trips: 1, bytes_written: sent, ..ZERO };
        self.endpoint.counters().add_elsewhere(self.kind.get(), to, false, cost);
        let reply = self.endpoint.call(to, service, request).await?;
        let cost = Cost { bytes_read: reply.len() as u64, ..ZERO };
        self.endpoint.counters().add_elsewhere(self.kind.get(), to, false, cost);
        Ok(reply)
    }

    /// Cuts off a dead compute server from every memory server and every attached compute server; see
    /// [`Endpoint::fence`]. A compute server that is dead itself, or detached, begins nobody's requests.
    ///
    /// If regions hold locks that others take over, the caller goes in two steps instead (F11.8):
    /// [`Client::fence_memory`], then it attaches every live member that exposes a region, then
    /// [`Client::fence_peers`].
    ///
    /// # Errors
    /// As [`Endpoint::fence`].
    pub async fn fence_everywhere(&self, who: Incarnation) -> Result<(), OpError> {
        self.fence_memory(who).await?;
        self.fence_peers(who).await
    }

    /// Cuts off a dead compute server from every memory server.
    ///
    /// # Errors
    /// As [`Endpoint::fence`].
    pub async fn fence_memory(&self, who: Incarnation) -> Result<(), OpError> {
        for server in 0..self.endpoint.server_count() {
            self.endpoint.fence(ServerId(server as u16), who).await?;
        }
        Ok(())
    }

    /// Cuts off a dead compute server from every attached compute server: from its region, and from the
    /// calls that it takes in.
    ///
    /// # Errors
    /// As [`Endpoint::fence`]. A region that is `Gone`, and one of a member that is dead itself or has been detached
    /// meanwhile, counts as fenced.
    pub async fn fence_peers(&self, who: Incarnation) -> Result<(), OpError> {
        if canary::FENCE_SKIPS_REGIONS.is_armed() {
            return Ok(());
        }
        for peer in self.endpoint.peers() {
            if peer.incarnation == who || peer.incarnation == self.endpoint.incarnation() {
                continue;
            }
            if let Err(error) = self.endpoint.fence(peer.server, who).await
                && !matches!(error.kind, OpErrorKind::Gone { .. })
                && self.endpoint.peer_of(peer.incarnation).is_some()
                && !self.endpoint.is_dead(peer.incarnation).await
            {
                return Err(error);
            }
        }
        // Others reach this one's own region, too.
        match self.endpoint.own_region().map(|own| own.number) {
            Some(own) => self.endpoint.fence(own, who).await,
            None => Ok(()),
        }
    }

    /// Ends doubt about this thread's posts to `server`; see [`Endpoint::reconnect`].
    ///
    /// # Errors
    /// As [`Endpoint::reconnect`].
    pub async fn reconnect(&self, server: ServerId) -> Result<(), OpError> {
        self.count(server, Cost { round_trips: 1, ..ZERO });
        self.endpoint.reconnect(server).await
    }

    /// Names this thread's operations on `server` so far; see [`Endpoint::connection`].
    pub fn connection(&self, server: ServerId) -> Option<ConnectionMark> {
        self.endpoint.connection(server)
    }

    /// Ends doubt about another thread's posts; see [`Endpoint::end_connection`]. 1 round trip.
    ///
    /// # Errors
    /// As [`Endpoint::end_connection`].
    pub async fn end_connection(&self, mark: ConnectionMark) -> Result<(), OpError> {
        self.count(mark.server(), Cost { round_trips: 1, ..ZERO });
        self.endpoint.end_connection(mark).await
    }

    /// The same operations, for posts that the present index operation does not wait for, or waits for
    /// beside another one: they count no round trip. The view counts for the kind that is current at each post.
    #[inline]
    pub fn unawaited(&self) -> Unawaited<'_, E> {
        Unawaited(self)
    }

    #[inline]
    fn count(&self, server: ServerId, cost: Cost) {
        if !self.endpoint.counters().add(self.kind.get(), server, cost) {
            self.count_elsewhere(server, cost);
        }
    }

    #[cold]
    fn count_elsewhere(&self, server: ServerId, cost: Cost) {
        let is_own = self.endpoint.own_region().is_some_and(|own| own.number == server);
        self.endpoint.counters().add_elsewhere(self.kind.get(), server, is_own, cost);
    }

    /// Counts a list's operations, each for its server; `extra` goes to the first one's.
    #[inline]
    fn count_list(&self, ops: &Ops, extra: Cost) {
        if let Some(server) = ops.server() {
            self.count(server, extra);
        }
        for op in ops.iter() {
            let bytes = op.bytes() as u64;
            let cost = match op {
                Op::Read { .. } => Cost { reads: 1, bytes_read: bytes, ..ZERO },
                Op::Write { .. } | Op::WriteWord { .. } => {
                    Cost { writes: 1, bytes_written: bytes, ..ZERO }
                }
                Op::Cas { .. } => Cost { round_trips: 0, ..CAS },
                Op::Faa { .. } => Cost { round_trips: 0, ..FAA },
            };
            self.count(op.addr().server(), cost);
        }
    }
}

/// A [`Client`]'s operations without their round trips, see [`Client::unawaited`].
#[derive(Debug)]
pub struct Unawaited<'c, E>(&'c Client<E>);

impl<'c, E: Endpoint> Unawaited<'c, E> {
    /// READ; see [`Endpoint::read`].
    ///
    /// # Errors
    /// As [`Endpoint::read`].
    pub fn read(
        self,
        from: GlobalAddr,
        into: Buf,
    ) -> impl Future<Output = Result<Buf, OpError>> + use<'c, E> {
        let cost = Cost { round_trips: 0, bytes_read: into.window_len() as u64, ..READ };
        self.0.count(from.server(), cost);
        self.0.endpoint.read(from, into)
    }

    /// WRITE; see [`Endpoint::write`].
    ///
    /// # Errors
    /// As [`Endpoint::write`].
    pub fn write(
        self,
        to: GlobalAddr,
        from: Buf,
    ) -> impl Future<Output = Result<Buf, OpError>> + use<'c, E> {
        let cost = Cost { round_trips: 0, bytes_written: from.window_len() as u64, ..WRITE };
        self.0.count(to.server(), cost);
        self.0.endpoint.write(to, from)
    }

    /// CAS; see [`Endpoint::cas`].
    ///
    /// # Errors
    /// As [`Endpoint::cas`].
    pub fn cas(
        self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> + use<'c, E> {
        self.0.count(at.server(), Cost { round_trips: 0, ..CAS });
        self.0.endpoint.cas(at, expected, new)
    }

    /// FAA; see [`Endpoint::faa`].
    ///
    /// # Errors
    /// As [`Endpoint::faa`].
    pub fn faa(
        self,
        at: GlobalAddr,
        add: u64,
    ) -> impl Future<Output = Result<u64, OpError>> + use<'c, E> {
        self.0.count(at.server(), Cost { round_trips: 0, ..FAA });
        self.0.endpoint.faa(at, add)
    }

    /// Operations on one server in order; see [`Endpoint::chain`].
    ///
    /// # Errors
    /// As [`Endpoint::chain`].
    pub fn chain(self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> + use<'c, E> {
        self.0.count_list(&ops, Cost { chains: 1, ..ZERO });
        self.0.endpoint.chain(ops)
    }

    /// Independent operations at once; see [`Endpoint::post_many`].
    ///
    /// # Errors
    /// As [`Endpoint::post_many`].
    pub fn post_many(self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> + use<'c, E> {
        self.0.count_list(&ops, ZERO);
        self.0.endpoint.post_many(ops)
    }
}

const ZERO: Cost = Cost::ZERO;
const READ: Cost = Cost { reads: 1, round_trips: 1, ..ZERO };
const WRITE: Cost = Cost { writes: 1, round_trips: 1, ..ZERO };
const CAS: Cost = Cost { cas: 1, round_trips: 1, bytes_written: 8, ..ZERO };
const FAA: Cost = Cost { faa: 1, round_trips: 1, bytes_written: 8, ..ZERO };
