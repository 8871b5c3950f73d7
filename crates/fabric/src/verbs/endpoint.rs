//! Verbs endpoint: runs one thread's operations on the memory servers by RDMA.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use super::VerbsShared;
use super::server::End;
use super::transport::{Target, Transport};
use super::wire::{PairAnswer, PairOutcome, Question, VERSION};
use crate::post::{Post, list, old_word};
use crate::raw::verbs::{
    Call, Completions, Ends, HeldLoad, QueuePair, Remote, SendQueue, Size, WordsKey,
    registered_slab,
};
use crate::single::Single;
use crate::sync::lock;
use crate::tcp::call::{MESSAGE_BYTES_MAX, fits};
use crate::tcp::{self, TcpEndpoint};
use crate::{
    Buf, CallError, ConnectionMark, Endpoint, Executor, FabricError, GlobalAddr, Incarnation,
    Local, Op, OpError, OpErrorKind, Ops, Peer, Refusal, ServerId, ServiceId, Words,
};

/// Queues to compute servers whose completions come to one completion queue.
const PEERS_TOGETHER: u32 = 8;

/// One thread's queue pairs and connections to all memory servers, and to compute servers that expose memory.
#[derive(Clone, Debug)]
pub struct VerbsEndpoint {
    thread: Rc<Thread>,
}

#[derive(Debug)]
struct Thread {
    shared: Arc<VerbsShared>,
    transport: Rc<Transport>,
    /// Completion queues: of the memory servers, and then of compute servers, [`PEERS_TOGETHER`] to each.
    completions: RefCell<Vec<Arc<Completions>>>,
    /// Result words of atomics, one range per queue.
    results: RefCell<Vec<Arc<WordsKey>>>,
    /// For longer RPCs, fences, questions about lives, time, tasks and randomness.
    tcp: TcpEndpoint,
}

impl VerbsEndpoint {
    pub(super) fn connect(shared: Arc<VerbsShared>) -> Result<Self, FabricError> {
        let (device, config) = (&shared.card_port.device, &shared.config);
        let servers = config.tcp.servers.len() as u32;
        let completions = shared.completions(servers)?;
        let results = (0..servers).map(|_| shared.results()).collect::<Result<_, _>>()?;
        let side = Rc::new(tcp::Transport::connect(Arc::clone(shared.tcp.shared()))?);
        let transport = Rc::new(Transport::new(
            Rc::clone(&side),
            Arc::clone(&completions),
            shared.tcp.shared().region_bytes(),
            (Arc::clone(&shared.tcp.shared().calls), shared.tcp.incarnation()),
            config.tcp.op_timeout,
            config.list_max,
        )?);
        let executor = Executor::with_driver(Rc::clone(&transport));
        transport.belongs_to(&executor);
        let (counters, seed) = shared.tcp.new_thread();
        let (inner, slab) = (Arc::clone(shared.tcp.shared()), registered_slab(device));
        let tcp = TcpEndpoint::over(
            inner,
            side,
            executor.clone(),
            counters,
            slab,
            seed,
            shared.capabilities,
        );
        let (completions, results) = (RefCell::new(vec![completions]), RefCell::new(results));
        let thread = Rc::new(Thread { shared, transport, completions, results, tcp });
        for server in 0..servers {
            let target = Target::Memory(ServerId(server as u16));
            let connected = executor.block_on(thread.connect(server as usize, target))?;
            thread.transport.connected(server as usize, 0, Ok(connected));
        }
        let own = Rc::downgrade(&thread);
        thread.transport.connect_by(Box::new(move |index, attempt| {
            if let Some(thread) = own.upgrade() {
                let connects = Rc::clone(&thread).connect_again(index, attempt);
                thread.tcp.spawn(connects);
            }
        }));
        Ok(VerbsEndpoint { thread })
    }

    /// Doorbells that this thread has rung, and operations that it has posted by them.
    pub fn posted(&self) -> (u64, u64) {
        self.thread.transport.posted()
    }

    #[inline]
    fn post<T>(
        &self,
        load: HeldLoad,
        finish: fn(HeldLoad, Option<OpError>) -> T,
    ) -> Post<'_, Transport, T> {
        Post::new(&self.thread.transport, load, finish)
    }
}

impl Thread {
    /// Makes a queue pair for the queue of that index. 1 round trip over the connection, none for the own
    /// region, whose end comes along.
    async fn connect(
        &self,
        index: usize,
        target: Target,
    ) -> Result<(SendQueue, Option<End>), FabricError> {
        let (shared, card_port) = (&self.shared, &self.shared.card_port);
        // Memory servers come first.
        let is_memory = index < shared.config.tcp.servers.len();
        let (completions, results) = self.completions_of(index)?;
        let calls = if is_memory { shared.calls } else { 0 };
        let size = Size {
            depth: shared.depth,
            inline_max: shared.config.inline_max,
            messages: calls,
            message_bytes: MESSAGE_BYTES_MAX,
        };
        let mut pair = QueuePair::new(&completions, size, card_port.port, false)?;
        let first = self.transport.next(index);
        let number = index as u16;
        SendQueue::expect_answers(&mut pair, number, (first, calls))
            .map_err(card_port.device.failed("post receives to a queue pair"))?;
        let first_packet = self.tcp.random() as u32 & 0xff_ffff;
        let ends = card_port.ends(pair.number(), first_packet);
        let question = Question { calls, ..shared.question(ends, true) };
        let (answer, own_end) = match target {
            Target::Own(server) => {
                let cards = lock(&shared.region).clone();
                let cards = cards.ok_or_else(|| shared.not_asked(server, NOTHING_THERE))?;
                let (answer, end) = cards.connect_own(&question)?;
                (answer, Some(end))
            }
            Target::Memory(server) | Target::Peer(Peer { server, .. }) => {
                let answer = self.tcp.ask(server, question.encode()).await;
                let answer = answer.map_err(|error| shared.not_asked(server, error.kind))?;
                (shared.check_answer(server, &answer)?, None)
            }
            Target::Free => return Err(shared.not_asked(target.server(), NOTHING_THERE)),
        };
        if !is_memory && answer.torn_words && shared.capabilities.word_atomic {
            let why = "its card tears words, and those of the memory servers do not";
            return Err(shared.refused(target.server(), Refusal::NoWay, why.to_owned()));
        }
        let flights = card_port.device.facts.flights_max.min(answer.answers);
        let here = card_port.here(first_packet, answer.mtu.min(card_port.mtu), 1, flights);
        pair.connect(&here, &answer.ends)?;
        let remote = Remote { base: answer.base, key: answer.key };
        let mail = (first, answer.calls.min(calls));
        let send_queue = SendQueue::new(pair, number, shared.depth as usize, remote, results, mail);
        Ok((send_queue, own_end))
    }

    /// Completion queue and result words of the queue of that index.
    fn completions_of(
        &self,
        index: usize,
    ) -> Result<(Arc<Completions>, Arc<WordsKey>), FabricError> {
        let shared = &self.shared;
        let mut results = self.results.borrow_mut();
        while results.len() <= index {
            results.push(shared.results()?);
        }
        let together = shared.peers_together();
        let group = match index.checked_sub(shared.config.tcp.servers.len()) {
            None => 0,
            Some(number) => 1 + number / together as usize,
        };
        let mut completions = self.completions.borrow_mut();
        while completions.len() <= group {
            let more = shared.completions(together)?;
            self.transport.add_completions(Arc::clone(&more))?;
            completions.push(more);
        }
        Ok((Arc::clone(&completions[group]), Arc::clone(&results[index])))
    }

    /// Connects the queue of that index anew. If its thread has asked for that (F10), the connection is a new
    /// one as well.
    async fn connect_again(self: Rc<Self>, index: usize, attempt: u64) {
        let Some(target) = self.transport.target(index, attempt) else { return };
        let server = target.server();
        // The server cuts the old queue pair before it lets the new connection in, or makes a new one.
        let renewed = match self.transport.renews(index) {
            true => self.tcp.reconnect(server).await.map_err(|error| error.kind),
            false => Ok(()),
        };
        let result = match renewed {
            Ok(()) => self.connect(index, target).await.map_err(|error| {
                tracing::debug!(%server, %error, "no queue pair");
                match error {
                    FabricError::CutOff { .. } => OpErrorKind::Fenced,
                    _ => OpErrorKind::Unavailable,
                }
            }),
            Err(kind) => Err(kind),
        };
        self.transport.connected(index, attempt, result);
    }
}

/// A region that ended while its queue was being connected.
const NOTHING_THERE: OpErrorKind = OpErrorKind::Unavailable;

impl VerbsShared {
    /// A completion queue for that many queue pairs of a thread.
    fn completions(&self, pairs: u32) -> Result<Arc<Completions>, FabricError> {
        let device = &self.card_port.device;
        // Each place may complete, and flushed entries of an earlier send queue may still lie there.
        let each = self.depth.saturating_add(self.calls.into());
        let entries = pairs.saturating_mul(each).saturating_mul(2).saturating_add(64);
        Ok(Completions::new(device, entries.min(device.facts.completions_max))?)
    }

    /// Queue pairs with compute servers for which one completion queue has room.
    fn peers_together(&self) -> u32 {
        let room = self.card_port.device.facts.completions_max / (2 * self.depth);
        room.clamp(1, PEERS_TOGETHER)
    }

    /// Words for the results of one queue pair's atomics.
    fn results(&self) -> Result<Arc<WordsKey>, FabricError> {
        let words = Words::anonymous(self.depth as usize);
        let bytes = u64::from(self.depth) * 8;
        let words = words.ok_or(FabricError::NoMemory { bytes, server: ServerId(0) })?;
        Ok(Arc::new(self.card_port.device.register(Arc::new(words), false)?))
    }

    pub(super) fn question(&self, ends: Ends, connects: bool) -> Question {
        Question {
            version: VERSION,
            connects,
            mtu: self.card_port.mtu,
            flights: self.card_port.device.facts.flights_max,
            is_ethernet: self.card_port.facts.is_ethernet,
            ends,
            calls: self.calls,
        }
    }

    /// Returns the reason for which a server did not answer a question.
    pub(super) fn not_asked(&self, server: ServerId, kind: OpErrorKind) -> FabricError {
        match kind {
            OpErrorKind::Fenced => FabricError::CutOff { server },
            OpErrorKind::NoService { .. } => {
                let why = "it serves tcp alone: start it with verbs, or connect by tcp";
                self.refused(server, Refusal::NoCard, why.to_owned())
            }
            kind => self.refused(server, Refusal::NoWay, format!("it did not answer: {kind}")),
        }
    }

    fn refused(&self, server: ServerId, reason: Refusal, why: String) -> FabricError {
        let memory = self.config.tcp.servers.get(server.index()).copied();
        let peer = || self.tcp.shared().calls.peer(server)?.address;
        let address = memory.or_else(peer).map_or_else(String::new, |address| address.to_string());
        FabricError::Refused { server, address, reason, why }
    }

    /// Returns the answer, if it is one and grants the question.
    pub(super) fn check_answer(
        &self,
        server: ServerId,
        answer: &[u8],
    ) -> Result<PairAnswer, FabricError> {
        let Some(answer) = PairAnswer::decode(answer) else {
            let why = "it does not keep to the protocol".to_owned();
            return Err(self.refused(server, Refusal::NoMemoryServer, why));
        };
        let here = if self.card_port.facts.is_ethernet { "Ethernet" } else { "InfiniBand" };
        let (reason, why) = match answer.outcome {
            PairOutcome::Done if answer.version == VERSION => return Ok(answer),
            PairOutcome::Done | PairOutcome::OtherVersion => {
                let why = format!(
                    "it speaks version {} of verbs, this program version {VERSION}: use the same \
                     version of Farleaf on both sides",
                    answer.version
                );
                (Refusal::OtherVersion, why)
            }
            PairOutcome::OtherNetwork => {
                let why =
                    format!("its card is on another kind of network than {here}, as it is here");
                (Refusal::NoWay, why)
            }
            PairOutcome::NoQueuePair => {
                let why = "it cannot make a queue pair: its card has no more, or cannot reach this \
                           one's address";
                (Refusal::NoWay, why.to_owned())
            }
        };
        Err(self.refused(server, reason, why))
    }
}

impl Endpoint for VerbsEndpoint {
    #[inline]
    fn local(&self) -> &Local {
        self.thread.tcp.local()
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
        self.post(HeldLoad::One(Op::Cas { at, expected, new, old: 0 }), old_word)
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        self.post(HeldLoad::One(Op::Faa { at, add, old: 0 }), old_word)
    }

    /// Posted on one queue pair, in order, with the fence flag if a READ or an atomic has to end first. Such
    /// a chain takes more than one trip of the wire, though one wait.
    #[inline]
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        ops.assert_chain();
        self.post(HeldLoad::Chain(ops), list)
    }

    #[inline]
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        self.post(HeldLoad::Batch(ops), list)
    }

    /// By the card if request and room for the reply have at most 4 KiB each and the server grants that, else
    /// over the connection.
    async fn rpc(
        &self,
        server: ServerId,
        service: ServiceId,
        request: Buf,
        reply: Buf,
    ) -> Result<Buf, OpError> {
        let is_short = !server.is_compute() && fits(request.window_len(), reply.window_len());
        if !is_short || !self.thread.transport.takes_calls(server) {
            return self.thread.tcp.rpc(server, service, request, reply).await;
        }
        let call = Call { server, service, request, reply, reply_len: 0 };
        self.post(HeldLoad::Call(call), |load, error| match (load, error) {
            (_, Some(error)) => Err(error),
            (HeldLoad::Call(Call { reply, reply_len, .. }), None) => {
                let at = reply.window_start();
                Ok(reply.window(at..at + reply_len))
            }
            (other, None) => unreachable!("an RPC came back as {other:?}"),
        })
        .await
    }

    /// Over a connection.
    fn call(
        &self,
        to: ServerId,
        service: ServiceId,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, CallError>> {
        self.thread.tcp.call(to, service, request)
    }

    /// Asks memory server 0 first, which refuses to fence the living: 2 round trips for the others.
    fn fence(
        &self,
        server: ServerId,
        who: Incarnation,
    ) -> impl Future<Output = Result<(), OpError>> {
        self.thread.tcp.fence(server, who)
    }

    async fn reconnect(&self, server: ServerId) -> Result<(), OpError> {
        let transport = &self.thread.transport;
        if server.is_compute() && !transport.has_queue(server) {
            // It takes calls alone, or is gone.
            return self.thread.tcp.reconnect(server).await;
        }
        let begun = poll_fn(|context| Poll::Ready(transport.reconnect(server, context)));
        let (slot, begins) = begun.await;
        if let Some((index, attempt)) = begins {
            self.thread.tcp.spawn(Rc::clone(&self.thread).connect_again(index, attempt));
        }
        // Dropped, it leaves the reconnecting to its task.
        Post::sent(&**transport, slot, |_, error| error.map_or(Ok(()), Err)).await
    }

    /// `None` for the own region: its card alone has operations under way there, and no connection carries them.
    fn connection(&self, server: ServerId) -> Option<ConnectionMark> {
        self.thread.transport.mark(server)
    }

    /// The server cuts the queue pair of that connection before it lets the caller's greeting in (VERBS-1).
    fn end_connection(&self, mark: ConnectionMark) -> impl Future<Output = Result<(), OpError>> {
        self.thread.tcp.end_connection(mark)
    }

    fn is_dead(&self, who: Incarnation) -> impl Future<Output = bool> {
        self.thread.tcp.is_dead(who)
    }

    fn holds_lease(&self) -> bool {
        self.thread.tcp.holds_lease()
    }
}
