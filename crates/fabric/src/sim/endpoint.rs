//! Simulated endpoint: posts the operations of one simulated worker thread.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use super::SimInner;
use super::calls::CallPost;
use super::config::PS;
use super::leases::Clock;
use super::post::SimPost;
use super::slots::{Failure, Poster, SimPayload};
use crate::local::PoolFacts;
use crate::raw::SlabRef;
use crate::{
    Buf, CallError, ConnectionMark, Counters, Endpoint, FabricError, GlobalAddr, Incarnation,
    Incoming, Local, Op, OpError, Ops, Peer, ServerId, ServiceId,
};

/// One worker thread's way to the simulated memory servers.
#[derive(Clone)]
pub struct SimEndpoint {
    thread: Rc<Thread>,
}

struct Thread {
    inner: Rc<SimInner>,
    poster: Poster,
    local: Local,
    clock: Clock,
}

impl SimEndpoint {
    pub(super) fn new(
        inner: Rc<SimInner>,
        poster: Poster,
        counters: Arc<Counters>,
        seed: u64,
    ) -> Self {
        let pool = PoolFacts {
            incarnation: Incarnation(u64::from(poster.life) + 1),
            capabilities: inner.config.capabilities,
            region_bytes: vec![inner.config.region_bytes; inner.config.memory_servers],
            own: Arc::clone(&inner.machine.borrow().lives[poster.life as usize].own),
        };
        let local = Local::simulated(pool, counters, SlabRef::new(), seed);
        let clock = Clock::new(&inner.config, poster.thread as usize / inner.config.threads);
        let thread = Thread { inner, poster, local, clock };
        SimEndpoint { thread: Rc::new(thread) }
    }

    /// The worker thread that pays for this endpoint's operations, counted over the compute server.
    pub fn thread(&self) -> usize {
        self.thread.poster.thread as usize % self.thread.inner.config.threads
    }

    #[inline]
    pub(super) fn inner(&self) -> &SimInner {
        &self.thread.inner
    }

    #[inline]
    pub(super) fn poster(&self) -> Poster {
        self.thread.poster
    }

    pub(super) fn inner_rc(&self) -> Rc<SimInner> {
        Rc::clone(&self.thread.inner)
    }

    #[inline]
    pub(super) fn wait(&self, payload: SimPayload) -> SimPost<'_, ()> {
        SimPost::new(self, payload, |_, _| ())
    }

    fn yielding_ps(&self) -> u64 {
        self.thread.inner.config.cpu.yield_ns * PS
    }
}

impl std::fmt::Debug for SimEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Poster { thread, life, .. } = self.thread.poster;
        write!(f, "SimEndpoint(thread {thread}, life {life})")
    }
}

impl Endpoint for SimEndpoint {
    #[inline]
    fn local(&self) -> &Local {
        &self.thread.local
    }

    #[inline]
    fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        SimPost::new(self, SimPayload::Op(Op::Read { from, into }), buffer)
    }

    #[inline]
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        SimPost::new(self, SimPayload::Op(Op::Write { to, from }), buffer)
    }

    #[inline]
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        SimPost::new(self, SimPayload::Op(Op::Cas { at, expected, new, old: 0 }), old_word)
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        SimPost::new(self, SimPayload::Op(Op::Faa { at, add, old: 0 }), old_word)
    }

    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        ops.assert_chain();
        SimPost::new(self, SimPayload::Chain(ops), list)
    }

    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        SimPost::new(self, SimPayload::Batch(ops), list)
    }

    fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> impl Future<Output = Result<Buf, OpError>> {
        let mut list = self.ops();
        list.write(GlobalAddr::new(server, 0), request);
        list.read(GlobalAddr::new(server, 0), reply);
        let payload = SimPayload::Rpc { service, reply_len: 0, list };
        SimPost::new(self, payload, |payload, failure| match (payload, failure) {
            (_, Some(error)) => Err(*error),
            (SimPayload::Rpc { reply_len, list, .. }, None) => {
                let reply = list.take_buf(1);
                let at = reply.window_start();
                Ok(reply.window(at..at + *reply_len as usize))
            }
            (other, None) => unreachable!("an RPC came back as {other:?}"),
        })
    }

    fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, CallError>> {
        let posted = CallPost { to, service, request, outcome: None };
        SimPost::new(self, SimPayload::Call(Box::new(posted)), |payload, _| match payload {
            SimPayload::Call(posted) => posted.outcome.take().expect("an outcome"),
            other => unreachable!("a call came back as {other:?}"),
        })
    }

    fn next_call(&self, service: ServiceId) -> impl Future<Output = Option<Incoming>> {
        self.take_call(service)
    }

    /// Returns at once: messages that come later are told that nothing was begun.
    async fn leave(&self) {
        self.leave_calls();
    }

    fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        self.thread.inner.machine.borrow_mut().attach_peer(self.thread.poster.life, peer)
    }

    fn detach(&self, server: ServerId) {
        self.thread.inner.machine.borrow_mut().detach_peer(self.thread.poster.life, server);
    }

    fn peers(&self) -> Vec<Peer> {
        self.thread.inner.peers(self.thread.poster.life)
    }

    fn peer_of(&self, who: Incarnation) -> Option<Peer> {
        self.peers().into_iter().find(|peer| peer.incarnation == who)
    }

    fn fence(
        &self,
        server: ServerId,
        who: Incarnation,
    ) -> impl Future<Output = Result<(), OpError>> {
        SimPost::new(self, SimPayload::Fence { server, who }, done)
    }

    fn reconnect(&self, server: ServerId) -> impl Future<Output = Result<(), OpError>> {
        SimPost::new(self, SimPayload::Reconnect { server }, done)
    }

    fn connection(&self, server: ServerId) -> Option<ConnectionMark> {
        self.thread.inner.machine.borrow().mark(self.thread.poster, server)
    }

    fn end_connection(&self, mark: ConnectionMark) -> impl Future<Output = Result<(), OpError>> {
        let ConnectionMark { server, life, line, posts, .. } = mark;
        let payload = SimPayload::EndConnection { server, life, thread: line as u32, posts };
        SimPost::new(self, payload, done)
    }

    async fn is_dead(&self, who: Incarnation) -> bool {
        self.wait(SimPayload::Work { ps: self.yielding_ps() }).await;
        let inner = &self.thread.inner;
        let is_dead = inner.is_dead(who, self.thread.clock);
        if is_dead {
            let mut machine = inner.machine.borrow_mut();
            if let Some(life) = machine.life_of(who) {
                machine.tell_dead(self.thread.poster.life, life as u32);
            }
        }
        is_dead
    }

    fn holds_lease(&self) -> bool {
        let life = &self.thread.inner.machine.borrow().lives[self.thread.poster.life as usize];
        !life.dead && !life.expired
    }

    fn may_meet_regions(&self) -> bool {
        self.thread.inner.machine.borrow().has_regions
    }

    fn waits_in_real_time(&self) -> bool {
        false
    }

    fn now_ns(&self) -> u64 {
        self.thread.clock.at(self.thread.inner.now_ps()) / PS
    }

    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        let ps = self.thread.clock.true_ps(ns.max(1).saturating_mul(PS));
        self.wait(SimPayload::Sleep { ps })
    }

    fn yield_now(&self) -> impl Future<Output = ()> {
        self.wait(SimPayload::Work { ps: self.yielding_ps() })
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.thread.inner.spawn(self.thread.poster.life, Box::pin(task));
    }

    fn work(&self, ns: u64) -> impl Future<Output = ()> {
        self.wait(SimPayload::Work { ps: ns.saturating_mul(PS) })
    }
}

fn done(_: &mut SimPayload, failure: Failure) -> Result<(), OpError> {
    failure.map_or(Ok(()), |error| Err(*error))
}

#[inline]
fn buffer(payload: &mut SimPayload, failure: Failure) -> Result<Buf, OpError> {
    if let Some(error) = failure {
        return Err(*error);
    }
    match std::mem::take(payload) {
        SimPayload::Op(Op::Read { into: buf, .. } | Op::Write { from: buf, .. }) => Ok(buf),
        other => unreachable!("a READ or WRITE came back as {other:?}"),
    }
}

#[inline]
fn old_word(payload: &mut SimPayload, failure: Failure) -> Result<u64, OpError> {
    match (payload, failure) {
        (_, Some(error)) => Err(*error),
        (SimPayload::Op(Op::Cas { old, .. } | Op::Faa { old, .. }), None) => Ok(*old),
        (other, None) => unreachable!("an atomic came back as {other:?}"),
    }
}

fn list(payload: &mut SimPayload, failure: Failure) -> Result<Ops, OpError> {
    if let Some(error) = failure {
        return Err(*error);
    }
    match std::mem::take(payload) {
        SimPayload::Chain(ops) | SimPayload::Batch(ops) => Ok(ops),
        other => unreachable!("a list came back as {other:?}"),
    }
}
