//! Fabric contract: the rules that every engine relies on, with the traits [`Fabric`] and [`Endpoint`].
//!
//! - **F1** Only aligned 8-byte words are atomic. The words of one READ may be sampled, and the
//!   words of one WRITE may land, in any order.
//! - **F2** CAS and FAA are atomic against every other fabric atomic on that word; not against
//!   CPU atomics of the server ([`Capabilities::rmw_global`]), and not against a WRITE to that
//!   word ([`Capabilities::write_vs_rmw`]).
//! - **F3** The operations of a *chain* take effect in the order in which they were added. It is
//!   one round trip with one completion.
//! - **F4** Operations outside a chain have no order: wait for completion. Completion means that
//!   the effect is visible to every operation that anyone posts later.
//! - **F5** A failed operation has an unknown effect, a WRITE in part too, which may even come
//!   later, until the initiator is fenced (F6), its thread has reconnected (F10) or another thread has
//!   ended the connection (F13). [`OpError`] names the kinds that are known to have done nothing.
//! - **F6** When [`Endpoint::fence`] has returned, no operation of that incarnation takes effect
//!   on that server any more. A WRITE that was in flight may have landed in part, at the grain of
//!   [`Capabilities::crash_atomic_bytes`].
//! - **F7** A buffer belongs to the operation until it completes, also when the future is dropped:
//!   then the operation completes unseen and its buffer goes home afterwards.
//! - **F8** An operation is posted when its future is first polled. Dropped before that, it did
//!   not happen.
//! - **F9** Time, randomness, sleeping and tasks come from the endpoint alone. That makes the
//!   simulator deterministic.
//! - **F10** When [`Endpoint::reconnect`] has returned, no operation that this thread posted to
//!   that server before takes effect there any more. One that was in flight may have, a WRITE in
//!   part too (F6). So a thread that lost a completion can find out what became of it.
//! - **F11** A compute server exposes memory to the others ([`Fabric::expose`]), its *region*:
//!   1. A region belongs to one life: zeroed, without a superblock, bytes 0 to
//!      [`Endpoint::region_bytes`]. It ends with that life. A restart is another life, which exposes an
//!      empty region.
//!   2. READ, WRITE, CAS, FAA, chains and batches reach it under the rules F1 to F10, with the same errors. A batch
//!      may mix both kinds of server and is one round trip. Regions answer no RPCs (`NoService`).
//!   3. The owner's own operations on its region are operations like any other's (*loopback*). Lock words
//!      change through the fabric alone, by their owner as well (F2).
//!   4. The owner's processor may load words of its region ([`Endpoint::own_region`]) at any time. A word
//!      is never torn. A completed WRITE of another compute server may not be visible yet, unless
//!      [`Capabilities::cpu_visible`]. The owner's processor stores to words, or does atomics on them, only
//!      where nobody else does, or with [`Capabilities::rmw_global`].
//!   5. A number stands for one life at a time in a process. An operation goes to the life for which it was
//!      posted, or nowhere. A later [`Endpoint::attach`] never leads it to a new life.
//!   6. Once [`Endpoint::is_dead`] has told a poster's process that the life has ended, every operation on
//!      it fails with `Gone`, in flight or new. Before that it fails with `Timeout` or `Unavailable`. `Gone`
//!      is final: it needs no reconnect.
//!   7. Success proves nothing after a death: where memory outlives its process (`mapped`), operations
//!      succeed until the poster has been told.
//!   8. [`Endpoint::fence`] cuts a life off from a region as from a memory server. Whoever takes over locks
//!      of the dead fences at all memory servers first, *then* reads which members expose regions, attaches
//!      those, and fences there. A life that is cut off from memory server 0 learns of no further region, so
//!      those members are all that it can know. A region that is `Gone` counts as fenced.
//!   9. A region does not ask who is dead. It refuses those that a fence has named to it.
//!   10. A fenced life keeps its own region: no fence reaches loopback. So a server that answers from its
//!       own memory asks [`Endpoint::holds_lease`] afterwards.
//!   11. Costs have three kinds: on memory servers, on other compute servers, and on the own region
//!       ([`crate::Snapshot`]). A mixed batch counts its round trip for its first operation's server.
//!   12. [`Capabilities`] are what holds for both kinds of server. `native_atomics` and
//!       `needs_target_progress` speak of memory servers alone.
//! - **F12** Compute servers call each other ([`Endpoint::call`], [`Endpoint::next_call`]):
//!   1. A call is one request and one reply. The receiver gets a request at most once, however often
//!      the network repeats it, because it remembers the numbers of each connection.
//!   2. `Ok` says that the request was done once. `NotBegun` says that it was not begun and never will
//!      be. `Unknown` says nothing. A change is sent again after `NotBegun` alone.
//!   3. A request that was not written to a connection is `NotBegun`. So is one that waits unbegun when
//!      its receiver leaves ([`Endpoint::leave`]) or can still say so. A lost reply is never `NotBegun`.
//!   4. When [`Endpoint::reconnect`] to a compute server has returned, no request that this thread sent
//!      it before is begun any more. One that was begun goes on.
//!   5. Calls have no order among each other or with operations, but "completed before posted".
//!   6. When [`Endpoint::fence`] at a compute server has returned, it begins no request of the fenced
//!      life any more. A sender takes no reply of a life that comes after it was told that the life
//!      is dead: the call is `Unknown`.
//!   7. A reply leaves only while the receiver holds its lease. So a receiver may answer from its own
//!      memory.
//!   8. A reply belongs to one request of one connection. A late reply to a request whose sender waits
//!      no more is dropped.
//!   9. A caller that drops the future leaves its request: it is done unseen, or dropped if it was not
//!      begun. An [`Incoming`] that its receiver drops is `NotBegun` before [`Incoming::begin`] and
//!      `Unknown` after it.
//!   10. At most 1,024 calls are under way on a connection. Further ones wait at the sender.
//!   11. Calls are counted like RPCs: one call, the bytes both ways, one round trip. In the simulator
//!       a call and a reply are numbered crash points.
//! - **F13** [`Endpoint::connection`] names the operations that a thread has posted to a server so far. When
//!   [`Endpoint::end_connection`] of that mark has returned `Ok` in any thread of the same compute server, none of
//!   them takes effect there any more. One that was in flight may have, a WRITE in part too (F6). So a thread
//!   settles what another one lost, also if that one never runs again.

use std::future::Future;
use std::sync::Arc;

use crate::{
    Buf, CallError, Capabilities, ConnectionMark, Counters, Executor, Exposed, FabricError,
    GlobalAddr, Incarnation, Incoming, ListenConfig, Local, OpError, Ops, OwnRegion, Peer,
    ServerId, Service, ServiceId, Words, calls,
};

/// A set of memory servers that this process can reach, and the maker of endpoints to them.
pub trait Fabric: Clone + 'static {
    /// Endpoint that its threads use.
    type Endpoint: Endpoint;

    /// A new endpoint for the calling thread.
    ///
    /// # Errors
    /// [`FabricError`] if no connection or memory can be had.
    fn endpoint(&self) -> Result<Self::Endpoint, FabricError>;

    /// Name of the implementation, as in `mapped` or `sim`.
    fn name(&self) -> &'static str;

    /// Adds a service that answers RPCs on every memory server that this process hosts.
    fn serve(&self, id: ServiceId, service: Arc<dyn Service>);

    /// The counters of every endpoint made so far, those of finished threads included.
    fn counters(&self) -> Vec<Arc<Counters>>;

    /// Takes calls in under `number`, and exposes `bytes` of zeroed memory there (F11; a multiple of 4,096,
    /// 0 for none), from now until this life ends. Once per life. Memory is reserved, and committed as it is
    /// touched. Returns its addresses, where there are some.
    ///
    /// # Errors
    /// [`FabricError::Config`] for a number below [`ServerId::COMPUTE_FIRST`], for `bytes` that no region
    /// has or that do not fit, for a second call, and for an address that may not or cannot be used;
    /// [`FabricError::NoMemory`] for memory that cannot be had; otherwise the system's error. After an error
    /// nothing is exposed, and the call may be repeated, with 0 bytes for calls alone.
    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError>;
}

/// One thread's way to the memory servers. Cheap to clone; stays on its thread.
///
/// Engines use it through [`crate::Client`], which counts. Costs are in round trips (one wait) and
/// verbs (READ, WRITE, CAS, FAA).
pub trait Endpoint: Clone + 'static {
    /// The parts of it that belong to its thread.
    fn local(&self) -> &Local;

    /// The executor that this thread's tasks run on.
    ///
    /// # Panics
    /// In the simulator, which runs tasks itself.
    fn executor(&self) -> &Executor {
        self.local().executor()
    }

    /// Buffers that a caller or an operation holds; 0 when all are back.
    fn buffers_out(&self) -> usize {
        self.local().slab.buffers_out()
    }

    /// Starts this thread's random numbers anew from `seed`.
    ///
    /// # Panics
    /// In the simulator, whose random numbers follow from its own seed.
    fn seed(&self, seed: u64) {
        self.local().seed(seed);
    }

    /// Number of servers that expose memory.
    fn server_count(&self) -> usize {
        self.local().pool.region_bytes.len()
    }

    /// Bytes that `server` exposes, a memory server, an attached compute server or this one; 0 if there is no
    /// such server.
    fn region_bytes(&self, server: ServerId) -> u64 {
        if let Some(bytes) = self.local().pool.region_bytes.get(server.index()) {
            return *bytes;
        }
        if let Some(own) = self.own_region().filter(|own| own.number == server) {
            return own.words.bytes();
        }
        let peer = self.peers().into_iter().find(|peer| peer.server == server);
        peer.map_or(0, |peer| peer.region_bytes)
    }

    /// This compute server's own exposed region, once it has one: its number, and its words for plain loads
    /// (F11.4).
    fn own_region(&self) -> Option<&OwnRegion> {
        self.local().pool.own.get()
    }

    /// Returns the promises of this fabric beyond the contract.
    fn capabilities(&self) -> Capabilities {
        self.local().pool.capabilities
    }

    /// Returns whether sleeps and deadlines wait in real time; in the simulator, time is virtual.
    fn waits_in_real_time(&self) -> bool {
        true
    }

    /// Returns whether an operation may fail with `Timeout` or `Unavailable`. If none can, a caller need not
    /// keep content in order to send it again.
    fn is_lossy(&self) -> bool {
        true
    }

    /// This compute server's current life.
    fn incarnation(&self) -> Incarnation {
        self.local().pool.incarnation
    }

    /// This thread's counters. [`crate::Client`] writes them.
    #[inline]
    fn counters(&self) -> &Arc<Counters> {
        &self.local().counters
    }

    /// A buffer of `len` bytes of memory that the fabric can reach. Its content is arbitrary but
    /// initialised. No allocation once the thread has warmed up.
    #[inline]
    fn buf(&self, len: usize) -> Buf {
        self.local().slab.buf(len)
    }

    /// An empty list of operations. No allocation once the thread has warmed up.
    #[inline]
    fn ops(&self) -> Ops {
        Ops::new(self.local().slab.clone())
    }

    /// READ: fills the buffer's window from `from`. 1 round trip.
    ///
    /// # Errors
    /// [`OpError`]; the buffer has gone home.
    fn read(&self, from: GlobalAddr, into: Buf) -> impl Future<Output = Result<Buf, OpError>>;

    /// READ into a shared frame of atomic words (a page of a cache): `words` words from word
    /// `first` of `frame` on. 1 round trip. Other threads may look at the frame meanwhile and see
    /// any mixture of old and new words.
    ///
    /// This form goes through a buffer; a fabric whose frames are registered lands there directly.
    ///
    /// # Errors
    /// [`OpError`]; the frame's words are old, new or mixed.
    fn read_frame(
        &self,
        from: GlobalAddr,
        frame: &Arc<Words>,
        first: usize,
        words: usize,
    ) -> impl Future<Output = Result<(), OpError>> {
        async move {
            let buf = self.read(from, self.buf(words * 8)).await?;
            frame.store(first, &buf.words()[..words]);
            Ok(())
        }
    }

    /// WRITE: stores the buffer's window at `to`. 1 round trip.
    ///
    /// # Errors
    /// [`OpError`]; effect unknown.
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>>;

    /// CAS: stores `new` at `at` if the word there is `expected`; returns the word that was there.
    /// 1 round trip.
    ///
    /// # Errors
    /// [`OpError`]; effect unknown.
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>>;

    /// FAA: adds `add` (wrapping) to the word at `at`; returns the word that was there. 1 round
    /// trip.
    ///
    /// # Errors
    /// [`OpError`]; effect unknown.
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>>;

    /// Posts `ops`, all to one server, as a chain (F3): in order, one round trip, one completion.
    /// A CAS that finds another word than it expects stores nothing and the chain goes on.
    ///
    /// # Errors
    /// [`OpError`]; every operation's effect is unknown, but none took effect before those in
    /// front of it.
    ///
    /// # Panics
    /// If the operations go to different servers.
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>>;

    /// Posts independent `ops` to any servers together: one round trip, no order.
    ///
    /// # Errors
    /// The first [`OpError`]; every operation's effect is unknown.
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>>;

    /// Sends `request` to a service on `server`; the answer comes back in `reply`, its window cut
    /// to what the service wrote. 1 round trip.
    ///
    /// # Errors
    /// [`OpError`]; effect unknown unless the kind is `NoService`.
    fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> impl Future<Output = Result<Buf, OpError>>;

    /// Sends `request` to a service of the compute server that `to` stands for
    /// ([`Endpoint::attach`]), and waits for the reply (F12). 1 round trip and the receiver's work.
    ///
    /// The wait has no limit of its own as long as the connection holds. A caller that runs out of
    /// patience drops the future.
    ///
    /// # Errors
    /// [`CallError`] says whether the request may have been done.
    fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, CallError>>;

    /// Waits for the next request for `service` that came to this compute server. Any of its threads may
    /// wait; each request goes to one of them. `None` once this compute server has left.
    fn next_call(&self, service: ServiceId) -> impl Future<Output = Option<Incoming>> {
        calls::next(self.local().calls().requests(), service)
    }

    /// Takes in no more calls: this compute server leaves. What has not been begun is `NotBegun`, and
    /// [`Endpoint::next_call`] returns `None`. What was begun can still be replied to.
    ///
    /// Returns once each connected sender has been sent all that it needs to tell what was begun: then
    /// the end of this process leaves no call `Unknown`. It waits at most a second for requests that were
    /// begun, and for senders that take nothing.
    fn leave(&self) -> impl Future<Output = ()> {
        calls::leave(self.local().calls().requests(), self.executor())
    }

    /// Makes `peer.server` stand for that life in all endpoints of this process from now on. Another
    /// life that the number stood for is detached. Endpoints connect at their first call.
    ///
    /// # Errors
    /// [`FabricError::Config`] for a number below [`ServerId::COMPUTE_FIRST`], or if a necessary address is
    /// missing.
    fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        self.local().calls().attach(peer)
    }

    /// Makes `server` stand for nobody. Calls that are posted from now on are `NotBegun`. Those under
    /// way are `Unknown`, unless they are known not to have been begun.
    fn detach(&self, server: ServerId) {
        self.local().calls().detach(server);
    }

    /// The attached peers, by their numbers.
    fn peers(&self) -> Vec<Peer> {
        self.local().calls().peers()
    }

    /// The attached peer of this life, if there is one. Called for each operation that travels.
    fn peer_of(&self, who: Incarnation) -> Option<Peer> {
        self.local().calls().peer_of(who)
    }

    /// Cuts off `who` from `server` (F6, F12.6), a memory server or an attached compute server.
    /// Idempotent.
    ///
    /// # Errors
    /// `StillAlive` if the fabric can fence only the dead (`mapped`) and this one lives; otherwise as any
    /// operation.
    fn fence(
        &self,
        server: ServerId,
        who: Incarnation,
    ) -> impl Future<Output = Result<(), OpError>>;

    /// Gives up this thread's connection to `server` and makes a new one (F10). Operations still in flight on
    /// the old one fail with `Timeout`, those of other tasks included, at the latest when this returns.
    /// Operations posted to `server` after the call wait for the new connection. They take effect after all
    /// earlier ones are dead, and never belong to those. 1 round trip.
    ///
    /// # Errors
    /// As any operation; `Fenced` if this compute server has been cut off. Then the outcome of operations in
    /// flight is unknown, and the call may be repeated.
    fn reconnect(&self, server: ServerId) -> impl Future<Output = Result<(), OpError>>;

    /// Names the operations that this thread has posted to `server` so far, for [`Endpoint::end_connection`] by any
    /// thread (F13). Those whose futures were dropped count. `None` if none of them can still be under way. No remote
    /// operation.
    fn connection(&self, server: ServerId) -> Option<ConnectionMark>;

    /// Ends the connection that carries the operations of `mark`, of any thread of this compute server (F13). Once
    /// this returns `Ok`, none of them takes effect any more. The caller's own connection stays as it is. A mark that
    /// was ended, or whose thread has reconnected or gone, is `Ok`. 1 round trip, or none.
    ///
    /// Operations that the other thread still waits for fail with `Timeout` or `Unavailable`, later ones on that
    /// connection among them, and its calls as by a lost connection. At a compute server its next operation goes by a
    /// new connection; at a memory server the thread reconnects first, as after any loss.
    ///
    /// # Errors
    /// As any operation: `Unavailable` or `Timeout` while the server cannot be reached, and the call may be repeated;
    /// `Fenced` if this compute server has been cut off; `Gone` if the life at the other end has ended for this
    /// process, or its number stands for another one.
    fn end_connection(&self, mark: ConnectionMark) -> impl Future<Output = Result<(), OpError>>;

    /// Returns whether `who` is known to have died or lost its lease. "No" is always a legal answer.
    fn is_dead(&self, who: Incarnation) -> impl Future<Output = bool>;

    /// Returns whether, up to this call, nobody has learned that this compute server is dead. While that
    /// holds, nobody takes over its own keys and memory. So it may answer from its own memory with words that
    /// it read there before the call. "No" is always a legal answer, and may be right again later. No remote
    /// operation.
    ///
    /// If leases decide on deaths, two clocks may differ in rate by an eighth.
    fn holds_lease(&self) -> bool;

    /// False if it is certain that no compute server of the pool has exposed memory up to this call. True is
    /// always a legal answer. No remote operation.
    fn may_meet_regions(&self) -> bool {
        true
    }

    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64 {
        self.executor().now_ns()
    }

    /// Waits.
    fn sleep(&self, ns: u64) -> impl Future<Output = ()> {
        self.executor().sleep(ns)
    }

    /// Lets the thread's other tasks run.
    fn yield_now(&self) -> impl Future<Output = ()> {
        crate::yield_now()
    }

    /// Runs `task` on this thread to its end, even if the caller is dropped. For work that must finish once
    /// begun.
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.executor().spawn(task);
    }

    /// The next number of this thread's seeded generator.
    fn random(&self) -> u64 {
        self.local().rng.borrow_mut().u64(..)
    }

    /// Stands for `ns` of local CPU work; costs virtual time in the simulator and nothing elsewhere.
    fn work(&self, _ns: u64) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}
