//! Mapped endpoint: does each operation in place, on memory of this process.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use super::calls::{PeerRegion, replace};
use super::{CAPABILITIES, MappedShared};
use crate::local::PoolFacts;
use crate::raw::SlabRef;
use crate::{
    Buf, CallError, ConnectionMark, Counters, Endpoint, Executor, GlobalAddr, Incarnation, Local,
    OpError, OpErrorKind, Ops, ServerId, ServiceId, Words, access,
};

/// One thread's access to mapped memory servers.
#[derive(Clone, Debug)]
pub struct MappedEndpoint {
    thread: Rc<Thread>,
}

#[derive(Debug)]
struct Thread {
    shared: Arc<MappedShared>,
    local: Local,
    /// Number among the compute server's threads, for its links to others.
    number: u64,
    /// Memory of compute servers that this thread has used.
    peers: RefCell<PeerRegions>,
}

/// Meanings of compute servers' numbers, at one version of what is known of them.
#[derive(Default)]
struct PeerRegions {
    version: u64,
    list: Vec<(ServerId, PeerRegion)>,
}

impl std::fmt::Debug for PeerRegions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} regions", self.list.len())
    }
}

impl MappedEndpoint {
    pub(super) fn new(
        shared: Arc<MappedShared>,
        counters: Arc<Counters>,
        seed: u64,
        number: u64,
        executor: Executor,
    ) -> Self {
        let calls = Arc::clone(&shared.calls) as _;
        let pool = PoolFacts {
            incarnation: shared.incarnation,
            capabilities: CAPABILITIES,
            region_bytes: shared.regions.iter().map(Words::bytes).collect(),
            own: Arc::clone(&shared.calls.own),
        };
        let local = Local::new(pool, counters, SlabRef::new(), seed, executor, calls);
        MappedEndpoint {
            thread: Rc::new(Thread { shared, local, number, peers: RefCell::default() }),
        }
    }

    #[inline]
    fn now<W>(&self, work: W) -> Now<'_, W> {
        Now { endpoint: self, work }
    }

    /// Does `work` on the memory in which `addr` lies, if it is there.
    #[inline(always)]
    fn on<T>(
        &self,
        addr: GlobalAddr,
        work: impl FnOnce(Option<&Words>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        match self.thread.shared.region(addr.server()) {
            None => self.on_peer(addr.server(), work),
            region => work(region),
        }
    }

    fn is_own(&self, server: ServerId) -> bool {
        self.thread.shared.calls.own.get().is_some_and(|own| own.number == server)
    }

    /// As [`MappedEndpoint::on`], for memory that compute servers expose.
    #[cold]
    #[inline(never)]
    fn on_peer<T>(
        &self,
        server: ServerId,
        work: impl FnOnce(Option<&Words>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let Thread { shared, peers, .. } = &*self.thread;
        let region = {
            let mut peers = peers.borrow_mut();
            let version = shared.calls.version();
            if peers.version != version {
                peers.list.clear();
                peers.version = version;
            }
            match peers.list.iter().find(|(number, _)| *number == server) {
                Some((_, region)) => region.clone(),
                None => {
                    let region = shared.peer_region(server);
                    // A region that is away may come.
                    if !matches!(region, PeerRegion::Away) {
                        peers.list.push((server, region.clone()));
                    }
                    region
                }
            }
        };
        match region {
            PeerRegion::Words(words) => work(Some(&words)),
            PeerRegion::None => work(None),
            PeerRegion::Away => Err(OpError { server, kind: OpErrorKind::Unavailable }),
            PeerRegion::Gone(who) => Err(OpError { server, kind: OpErrorKind::Gone { who } }),
        }
    }
}

/// Work at the first poll.
trait MappedWork {
    type Done;
    fn run(&mut self, endpoint: &MappedEndpoint) -> Result<Self::Done, OpError>;
}

/// The future of `W`, which is always inlined. An `async fn` in its place would be polled by a call. Moving
/// an operation in and out of that call costs more than a short READ.
struct Now<'e, W> {
    endpoint: &'e MappedEndpoint,
    work: W,
}

impl<W> Unpin for Now<'_, W> {}

impl<W: MappedWork> Future for Now<'_, W> {
    type Output = Result<W::Done, OpError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Poll::Ready(this.work.run(this.endpoint))
    }
}

/// Nobody polls a future again that was ready.
const AGAIN: &str = "polled after it was ready";

struct Read {
    from: GlobalAddr,
    into: Option<Buf>,
}

impl MappedWork for Read {
    type Done = Buf;

    #[inline(always)]
    fn run(&mut self, endpoint: &MappedEndpoint) -> Result<Buf, OpError> {
        let mut into = self.into.take().expect(AGAIN);
        endpoint.on(self.from, |region| access::read(region, self.from, &mut into))?;
        Ok(into)
    }
}

struct Write {
    to: GlobalAddr,
    from: Option<Buf>,
}

impl MappedWork for Write {
    type Done = Buf;

    #[inline(always)]
    fn run(&mut self, endpoint: &MappedEndpoint) -> Result<Buf, OpError> {
        let from = self.from.take().expect(AGAIN);
        endpoint.on(self.to, |region| access::write(region, self.to, &from))?;
        Ok(from)
    }
}

/// A CAS or an FAA: `change` does it on a word of a region, and returns the word that was there.
struct Atomic<F> {
    at: GlobalAddr,
    change: F,
}

impl<F: Fn(&Words, usize) -> u64> MappedWork for Atomic<F> {
    type Done = u64;

    #[inline(always)]
    fn run(&mut self, endpoint: &MappedEndpoint) -> Result<u64, OpError> {
        endpoint.on(self.at, |region| {
            let (region, word) = access::word(region, self.at)?;
            Ok((self.change)(region, word))
        })
    }
}

/// A chain or a batch.
struct OpList(Option<Ops>);

impl MappedWork for OpList {
    type Done = Ops;

    #[inline]
    fn run(&mut self, endpoint: &MappedEndpoint) -> Result<Ops, OpError> {
        let mut ops = self.0.take().expect(AGAIN);
        ops.iter_mut()
            .try_for_each(|op| endpoint.on(op.addr(), |region| access::run(region, op)))?;
        Ok(ops)
    }
}

impl Endpoint for MappedEndpoint {
    #[inline]
    fn local(&self) -> &Local {
        &self.thread.local
    }

    /// Operations are done when they are posted.
    fn is_lossy(&self) -> bool {
        false
    }

    #[inline]
    fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        self.now(Read { from, into: Some(into) })
    }

    #[inline]
    async fn read_frame(
        &self,
        from: GlobalAddr,
        frame: &Arc<Words>,
        first: usize,
        words: usize,
    ) -> Result<(), OpError> {
        let mut buf = self.buf(words * 8);
        self.on(from, |region| access::read(region, from, &mut buf))?;
        frame.store(first, &buf.words()[..words]);
        Ok(())
    }

    #[inline]
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        self.now(Write { to, from: Some(from) })
    }

    #[inline]
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        self.now(Atomic { at, change: move |region: &Words, word| region.cas(word, expected, new) })
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        self.now(Atomic { at, change: move |region: &Words, word| region.faa(word, add) })
    }

    #[inline]
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        ops.assert_chain();
        self.now(OpList(Some(ops)))
    }

    #[inline]
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        self.now(OpList(Some(ops)))
    }

    async fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        mut reply: Buf,
    ) -> Result<Buf, OpError> {
        let shared = &self.thread.shared;
        if server.is_compute() {
            return Err(OpError { server, kind: OpErrorKind::NoService { service: service.0 } });
        }
        let region = shared.region(server);
        let memory = access::check(region, GlobalAddr::new(server, 0), 0)?;
        let services = shared.services.read().unwrap_or_else(PoisonError::into_inner);
        let Some(handler) = services.get(&service).cloned() else {
            return Err(OpError { server, kind: OpErrorKind::NoService { service: service.0 } });
        };
        drop(services);
        let (at, room) = (reply.window_start(), reply.window_len());
        let answer =
            handler.call(memory, request.window_bytes(), &mut reply.bytes_mut()[at..at + room]);
        Ok(reply.window(at..at + answer.len.min(room)))
    }

    async fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        let Thread { shared, number, .. } = &*self.thread;
        shared
            .calls
            .call(to, *number, service, request, |peer, number| shared.link(peer, number))
            .await
    }

    async fn fence(&self, server: ServerId, who: Incarnation) -> Result<(), OpError> {
        let shared = &self.thread.shared;
        if !shared.is_dead(who) {
            return Err(OpError { server, kind: OpErrorKind::StillAlive });
        }
        if server.is_compute() {
            match shared.calls.peer(server) {
                Ok(peer) => shared.fence_at(peer, who),
                // The dead store nothing, in the own region either.
                Err(_) if self.is_own(server) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// An operation here has taken effect when its future is ready. Calls may be under way.
    async fn reconnect(&self, server: ServerId) -> Result<(), OpError> {
        if !server.is_compute() {
            return Ok(());
        }
        let Thread { shared, number, .. } = &*self.thread;
        let peer = match shared.calls.peer(server) {
            Err(_) if self.is_own(server) => return Ok(()),
            peer => peer?,
        };
        let connection = shared.calls.give_up_link(peer, *number);
        let Some(folder) = shared.folder() else { return Ok(()) };
        let replaced = replace(folder, shared.incarnation, peer, connection).await;
        replaced.map_err(|kind| {
            let is_dead = shared.is_dead(peer.incarnation);
            let kind = if is_dead { OpErrorKind::Gone { who: peer.incarnation } } else { kind };
            OpError { server, kind }
        })
    }

    /// An operation here has taken effect when its future is ready, and none goes on without it.
    fn connection(&self, _: ServerId) -> Option<ConnectionMark> {
        None
    }

    async fn end_connection(&self, _: ConnectionMark) -> Result<(), OpError> {
        Ok(())
    }

    async fn is_dead(&self, who: Incarnation) -> bool {
        let is_dead = self.thread.shared.is_dead(who);
        if is_dead {
            self.thread.shared.calls.told_dead(who);
        }
        is_dead
    }

    fn may_meet_regions(&self) -> bool {
        self.thread.shared.may_meet_regions()
    }

    /// Only a process that has ended is dead.
    #[inline]
    fn holds_lease(&self) -> bool {
        true
    }
}
