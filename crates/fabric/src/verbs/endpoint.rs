//! Verbs endpoint: runs one thread's operations on the memory servers by RDMA.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::VerbsShared;
use super::transport::Transport;
use super::wire::{PairAnswer, PairOutcome, Question, VERSION};
use crate::post::{Post, list, old_word};
use crate::raw::verbs::{
    Call, Completions, Ends, HeldLoad, QueuePair, Remote, SendQueue, Size, WordsKey,
    registered_slab,
};
use crate::single::Single;
use crate::tcp::call::{MESSAGE_BYTES_MAX, fits};
use crate::tcp::{self, TcpEndpoint};
use crate::{
    Buf, CallError, Endpoint, Executor, FabricError, GlobalAddr, Incarnation, Local, Op, OpError,
    OpErrorKind, Ops, Refusal, ServerId, ServiceId, Words,
};

/// One thread's queue pairs and connections to all memory servers.
#[derive(Clone, Debug)]
pub struct VerbsEndpoint {
    thread: Rc<Thread>,
}

#[derive(Debug)]
struct Thread {
    shared: Arc<VerbsShared>,
    transport: Rc<Transport>,
    completions: Arc<Completions>,
    /// Result words of atomics, one range per server.
    results: Vec<Arc<WordsKey>>,
    /// For longer RPCs, fences, questions about lives, time, tasks and randomness.
    tcp: TcpEndpoint,
}

impl VerbsEndpoint {
    pub(super) fn connect(shared: Arc<VerbsShared>) -> Result<Self, FabricError> {
        let (device, config) = (&shared.card_port.device, &shared.config);
        let servers = config.tcp.servers.len() as u32;
        // Each place may complete, and flushed entries of an earlier send queue may still lie there.
        let each = shared.depth.saturating_add(shared.calls.into());
        let entries = servers.saturating_mul(each).saturating_mul(2).saturating_add(64);
        let completions = Completions::new(device, entries.min(device.facts.completions_max))?;
        let stretch = || {
            let words = Words::anonymous(shared.depth as usize);
            let words = words.ok_or(FabricError::NoMemory {
                bytes: u64::from(shared.depth) * 8,
                server: ServerId(0),
            })?;
            Ok::<_, FabricError>(Arc::new(device.register(Arc::new(words), false)?))
        };
        let results = (0..servers).map(|_| stretch()).collect::<Result<_, _>>()?;
        let side = Rc::new(tcp::Transport::connect(Arc::clone(shared.tcp.shared()))?);
        let transport = Rc::new(Transport::new(
            Rc::clone(&side),
            Arc::clone(&completions),
            shared.tcp.shared().region_bytes(),
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
        let thread = Rc::new(Thread { shared, transport, completions, results, tcp });
        for server in 0..servers {
            let server = ServerId(server as u16);
            let send_queue = executor.block_on(thread.connect(server))?;
            thread.transport.connected(server, Ok(send_queue));
        }
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

/// Route of an operation: by the card to memory servers, over a connection to compute servers.
enum Route<C, T> {
    Card(C),
    Connection(T),
}

impl<C: Future + Unpin, T: Future<Output = C::Output> + Unpin> Future for Route<C, T> {
    type Output = C::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        match self.get_mut() {
            Route::Card(future) => Pin::new(future).poll(context),
            Route::Connection(future) => Pin::new(future).poll(context),
        }
    }
}

impl VerbsEndpoint {
    /// A batch to both kinds of server: each part goes its way, and both are under way at once.
    async fn post_both_ways(&self, mut ops: Ops) -> Result<Ops, OpError> {
        let (mut by_card, mut by_connection) = (self.ops(), self.ops());
        let is_compute = |op: &Op| op.addr().server().is_compute();
        let ways: Vec<bool> = ops.iter().map(is_compute).collect();
        for op in ops.as_mut_slice() {
            let list = if is_compute(op) { &mut by_connection } else { &mut by_card };
            let nothing = Op::WriteWord { to: GlobalAddr::NULL, value: 0 };
            list.push(std::mem::replace(op, nothing));
        }
        let mut card = pin!(self.post(HeldLoad::Batch(by_card), list));
        let mut connection = pin!(self.thread.tcp.post_many(by_connection));
        let (mut first, mut second) = (None, None);
        poll_fn(|context| {
            if first.is_none()
                && let Poll::Ready(result) = card.as_mut().poll(context)
            {
                first = Some(result);
            }
            if second.is_none()
                && let Poll::Ready(result) = connection.as_mut().poll(context)
            {
                second = Some(result);
            }
            if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let (Some(by_card), Some(by_connection)) = (first, second) else {
            unreachable!("both are ready")
        };
        let (mut by_card, mut by_connection) = (by_card?, by_connection?);
        let mut came = [by_card.as_mut_slice().iter_mut(), by_connection.as_mut_slice().iter_mut()];
        for (op, is_compute) in ops.as_mut_slice().iter_mut().zip(ways) {
            if let Some(done) = came[usize::from(is_compute)].next() {
                std::mem::swap(op, done);
            }
        }
        Ok(ops)
    }
}

impl Thread {
    /// Makes a queue pair to a server, over the existing connection. 1 round trip.
    async fn connect(&self, server: ServerId) -> Result<SendQueue, FabricError> {
        let (shared, card_port) = (&self.shared, &self.shared.card_port);
        let size = Size {
            depth: shared.depth,
            inline_max: shared.config.inline_max,
            messages: shared.calls,
            message_bytes: MESSAGE_BYTES_MAX,
        };
        let mut pair = QueuePair::new(&self.completions, size, card_port.port, false)?;
        let first = self.transport.next(server);
        SendQueue::expect_answers(&mut pair, server.0, (first, shared.calls))
            .map_err(card_port.device.failed("post receives to a queue pair"))?;
        let first_packet = self.tcp.random() as u32 & 0xff_ffff;
        let question = shared.question(card_port.ends(pair.number(), first_packet), true);
        let answer = self.tcp.ask(server, question.encode()).await;
        let answer = answer.map_err(|error| shared.not_asked(server, error.kind))?;
        let answer = shared.check_answer(server, &answer)?;
        let flights = card_port.device.facts.flights_max.min(answer.answers);
        let here = card_port.here(first_packet, answer.mtu.min(card_port.mtu), 1, flights);
        pair.connect(&here, &answer.ends)?;
        let remote = Remote { base: answer.base, key: answer.key };
        let results = Arc::clone(&self.results[server.index()]);
        let mail = (first, answer.calls.min(shared.calls));
        Ok(SendQueue::new(pair, server.0, shared.depth as usize, remote, results, mail))
    }

    /// Makes a new connection and a new queue pair (F10).
    async fn connect_again(self: Rc<Self>, server: ServerId) {
        // The server cuts the old queue pair before it lets the new connection in.
        let result = match self.tcp.reconnect(server).await {
            Ok(()) => self.connect(server).await.map_err(|error| match error {
                FabricError::CutOff { .. } => OpErrorKind::Fenced,
                _ => OpErrorKind::Unavailable,
            }),
            Err(error) => Err(error.kind),
        };
        self.transport.connected(server, result);
    }
}

impl VerbsShared {
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
        let address = self.config.tcp.servers[server.index()].to_string();
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
        match from.server().is_compute() {
            false => Route::Card(Single::read(&*self.thread.transport, from, into)),
            true => Route::Connection(self.thread.tcp.read(from, into)),
        }
    }

    #[inline]
    fn write(&self, to: GlobalAddr, from: Buf) -> impl Future<Output = Result<Buf, OpError>> {
        match to.server().is_compute() {
            false => Route::Card(Single::write(&*self.thread.transport, to, from)),
            true => Route::Connection(self.thread.tcp.write(to, from)),
        }
    }

    #[inline]
    fn cas(
        &self,
        at: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> impl Future<Output = Result<u64, OpError>> {
        match at.server().is_compute() {
            false => {
                let op = Op::Cas { at, expected, new, old: 0 };
                Route::Card(self.post(HeldLoad::One(op), old_word))
            }
            true => Route::Connection(self.thread.tcp.cas(at, expected, new)),
        }
    }

    #[inline]
    fn faa(&self, at: GlobalAddr, add: u64) -> impl Future<Output = Result<u64, OpError>> {
        match at.server().is_compute() {
            false => Route::Card(self.post(HeldLoad::One(Op::Faa { at, add, old: 0 }), old_word)),
            true => Route::Connection(self.thread.tcp.faa(at, add)),
        }
    }

    /// Posted on one queue pair, in order, with the fence flag if a READ or an atomic has to end first. Such
    /// a chain takes more than one trip of the wire, though one wait.
    #[inline]
    fn chain(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        ops.assert_chain();
        match ops.server().is_some_and(ServerId::is_compute) {
            false => Route::Card(self.post(HeldLoad::Chain(ops), list)),
            true => Route::Connection(self.thread.tcp.chain(ops)),
        }
    }

    #[inline]
    fn post_many(&self, ops: Ops) -> impl Future<Output = Result<Ops, OpError>> {
        let has_regions = ops.iter().any(|op| op.addr().server().is_compute());
        match has_regions {
            false => Route::Card(self.post(HeldLoad::Batch(ops), list)),
            true => Route::Connection(Box::pin(self.post_both_ways(ops))),
        }
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
        if server.is_compute() {
            return self.thread.tcp.reconnect(server).await;
        }
        let transport = &self.thread.transport;
        let begun = poll_fn(|context| Poll::Ready(transport.reconnect(server, context)));
        let (slot, begins) = begun.await;
        if begins {
            self.thread.tcp.spawn(Rc::clone(&self.thread).connect_again(server));
        }
        // Dropped, it leaves the reconnecting to its task.
        Post::sent(&**transport, slot, |_, error| error.map_or(Ok(()), Err)).await
    }

    fn is_dead(&self, who: Incarnation) -> impl Future<Output = bool> {
        self.thread.tcp.is_dead(who)
    }

    fn holds_lease(&self) -> bool {
        self.thread.tcp.holds_lease()
    }
}
