//! Verbs server: a memory server whose words cards can reach.
//!
//! - **VERBS-1** All queue pairs of a connection belong to its gate (TCP-7). A fence, a reconnect and
//!   the connection's end move them to the error state and destroy them before the server answers.
//! - **VERBS-2** There is one registration of the words, and one protection domain: every accepted
//!   client has the key. The server cuts off clients by their queue pairs, never by keys.
//! - **VERBS-13** A compute server reaches its own region by a queue pair whose ends are both in its process.
//!   No connection and no gate has to do with it, so no fence cuts it (F11.10).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::VerbsError;
use super::card_port::{CardConfig, CardPort};
use super::rpc_server::{self, CALLS_MAX, RpcServer, RpcSlot};
use super::self_test::{self, Findings};
use super::wire::{PairAnswer, PairOutcome, Question, VERSION};
use crate::raw::verbs::{Completions, QueuePair, Size, WordsKey};
use crate::tcp::call::{Caller, MESSAGE_BYTES_MAX};
use crate::tcp::offer::{Offer, Offered, Way};
use crate::tcp::{MemoryServer, MemoryServerConfig, Region};
use crate::{FabricError, Service, ServiceId, Words};

/// A memory server of this process that offers its words to cards, and answers RPCs that come by them. It
/// listens, and answers fences and questions about lives, as a [`MemoryServer`] does. It also serves `tcp`
/// clients, but see [`VerbsServer::start`]. It stops when it is dropped.
#[derive(Debug)]
pub struct VerbsServer {
    server: Arc<MemoryServer>,
    queue_pairs: Arc<AtomicUsize>,
    card: String,
}

/// State that its connections share.
pub(super) struct Cards {
    card_port: CardPort,
    /// Threads that answer RPCs: as many as serve connections. None for the region of a compute server.
    rpc_servers: Vec<RpcServer>,
    /// Completion queue of queue pairs that carry no messages: nothing ever completes there.
    quiet: Arc<Completions>,
    key: WordsKey,
    findings: Findings,
    queue_pairs: Arc<AtomicUsize>,
    packets: AtomicU32,
    next_rpc_server: AtomicUsize,
}

/// Answers up to so many bytes travel in the work request itself, if the card can.
const INLINE_MAX: u32 = 64;

impl VerbsServer {
    /// Opens the card, tests it, registers `words` (which locks all of it in memory), and listens.
    ///
    /// At any time the server lets in either compute servers that use the card or those of `tcp` alone,
    /// unless the card states that its atomics are atomic against the processor's. It tells that reason to a
    /// client of the other way.
    ///
    /// # Errors
    /// [`FabricError::Verbs`] names the fault of the card; otherwise as [`MemoryServer::start`].
    pub fn start(
        config: MemoryServerConfig,
        card: &CardConfig,
        words: Arc<Words>,
    ) -> Result<Self, FabricError> {
        Self::start_over(config, card, Region::over(words))
    }

    /// The same with `region`. A server that is restarted over a region's file serves the same words. It
    /// still refuses the incarnations that this one has cut off. Not every file system lets a card use its
    /// files' memory: `/dev/shm` does.
    ///
    /// # Errors
    /// As [`VerbsServer::start`].
    pub fn start_over(
        config: MemoryServerConfig,
        card: &CardConfig,
        region: Region,
    ) -> Result<Self, FabricError> {
        let card_port = CardPort::open(card)?;
        let findings = self_test::run(&card_port)?;
        let name = card_port.to_string();
        let mut cards = Cards::over(&card_port, findings, region.words())?;
        cards.rpc_servers = (0..config.threads.max(1))
            .map(|number| RpcServer::start(&card_port.device, number))
            .collect::<Result<_, _>>()?;
        let queue_pairs = Arc::clone(&cards.queue_pairs);
        let server = MemoryServer::start_with(config, region, Some(Arc::new(cards)), None)?;
        Ok(VerbsServer { server: Arc::new(server), queue_pairs, card: name })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The memory that it exposes.
    pub fn words(&self) -> &Arc<Words> {
        self.server.words()
    }

    /// Adds a service that answers RPCs.
    pub fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.server.serve(id, service);
    }

    /// Its present queue pairs: one per thread of a compute server.
    pub fn queue_pairs(&self) -> usize {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Its card, the port, GID index and largest packet.
    pub fn card(&self) -> &str {
        &self.card
    }

    /// Returns the server on the network. It stops when its last holder drops it.
    pub fn memory_server(&self) -> &Arc<MemoryServer> {
        &self.server
    }
}

impl Offer for Cards {
    fn mixes(&self) -> bool {
        self.findings.global_atomics
    }

    fn answer(&self, question: &[u8], caller: Caller) -> Option<Offered> {
        let question = Question::decode(question)?;
        let mut answer = self.describe(&question);
        let mut way: Option<Box<dyn Way>> = None;
        if question.version != VERSION {
            answer.outcome = PairOutcome::OtherVersion;
        } else if question.is_ethernet != answer.is_ethernet {
            answer.outcome = PairOutcome::OtherNetwork;
        } else if question.connects {
            match self.connect(&question, &mut answer, Some(caller)) {
                Ok(end) => way = Some(Box::new(end)),
                Err(_) => answer.outcome = PairOutcome::NoQueuePair,
            }
        }
        Some(Offered { answer: answer.encode(), way })
    }
}

impl Cards {
    /// Registers `words` with a card that was tested, which locks all of them in memory. No thread answers
    /// RPCs yet.
    pub(super) fn over(
        card_port: &CardPort,
        findings: Findings,
        words: &Arc<Words>,
    ) -> Result<Cards, VerbsError> {
        let device = &card_port.device;
        Ok(Cards {
            key: device.register(Arc::clone(words), true)?,
            rpc_servers: Vec::new(),
            quiet: Completions::new(device, 1)?,
            card_port: card_port.clone(),
            findings,
            queue_pairs: Arc::new(AtomicUsize::new(0)),
            packets: AtomicU32::new(std::process::id()),
            next_rpc_server: AtomicUsize::new(0),
        })
    }

    /// Makes the other end of a queue pair of this process with its own words (VERBS-13).
    pub(super) fn connect_own(&self, question: &Question) -> Result<(PairAnswer, End), VerbsError> {
        let mut answer = self.describe(question);
        let end = self.connect(question, &mut answer, None)?;
        Ok((answer, end))
    }

    fn describe(&self, question: &Question) -> PairAnswer {
        PairAnswer {
            version: VERSION,
            outcome: PairOutcome::Done,
            mtu: self.card_port.mtu.min(question.mtu).max(1),
            answers: self.card_port.device.facts.answers_max,
            is_ethernet: self.card_port.facts.is_ethernet,
            ends: self.card_port.ends(0, 0),
            torn_words: self.findings.torn_words,
            global_atomics: self.findings.global_atomics,
            calls: 0,
            key: self.key.remote(),
            base: self.key.base(),
        }
    }

    /// The thread that answers the next caller's RPCs, if there are some.
    fn rpc_server(&self) -> Option<&RpcServer> {
        let number = self.next_rpc_server.fetch_add(1, Ordering::Relaxed);
        self.rpc_servers.get(number.checked_rem(self.rpc_servers.len())?)
    }

    fn connect(
        &self,
        question: &Question,
        answer: &mut PairAnswer,
        caller: Option<Caller>,
    ) -> Result<End, VerbsError> {
        let calls = question.calls.min(CALLS_MAX);
        // Without an RPC slot, or memory for messages, RPCs go by the connection.
        let rpc_server = self.rpc_server().filter(|_| calls > 0);
        let reserved = caller.zip(rpc_server).and_then(|(caller, rpc_server)| {
            let taken = rpc_server.reserve()?;
            let mut pair = self.pair(rpc_server.completions(), calls).ok()?;
            taken.expect(&mut pair, calls).ok()?;
            Some((pair, (taken, caller)))
        });
        let (mut pair, reserved) = match reserved {
            Some((pair, reserved)) => (pair, Some(reserved)),
            None => (self.pair(&self.quiet, 0)?, None),
        };
        // Late packets of an earlier connection with the same numbers are out of order.
        let packet = self.packets.fetch_add(0x51_7cc1, Ordering::Relaxed) & 0xff_ffff;
        let answers = answer.answers.min(question.flights);
        pair.connect(&self.card_port.here(packet, answer.mtu, answers, 1), &question.ends)?;
        answer.ends = self.card_port.ends(pair.number(), packet);
        answer.answers = answers;
        answer.calls = if reserved.is_some() { calls } else { 0 };
        self.queue_pairs.fetch_add(1, Ordering::Relaxed);
        let held = match reserved {
            Some((reservation, caller)) => {
                let rpc_slot = RpcSlot::new(pair, caller, calls);
                reservation.attach(&rpc_slot);
                Held::WithRpcs { rpc_slot, reservation: Some(reservation) }
            }
            None => Held::Alone(pair),
        };
        Ok(End { held, count: Some(Arc::clone(&self.queue_pairs)) })
    }

    fn pair(&self, completions: &Arc<Completions>, calls: u16) -> Result<QueuePair, VerbsError> {
        let size = Size {
            depth: u32::from(calls.max(1)),
            inline_max: if calls > 0 { INLINE_MAX } else { 0 },
            messages: calls,
            message_bytes: MESSAGE_BYTES_MAX,
        };
        QueuePair::new(completions, size, self.card_port.port, true)
    }
}

/// One end of a connection, counted while it is there.
#[derive(Debug)]
pub(super) struct End {
    held: Held,
    count: Option<Arc<AtomicUsize>>,
}

/// The queue pair of an end.
enum Held {
    /// With its place at the thread that answers its RPCs.
    WithRpcs {
        rpc_slot: Arc<RpcSlot>,
        reservation: Option<rpc_server::Reservation>,
    },
    Alone(QueuePair),
}

impl Way for End {
    fn cut(&mut self) -> io::Result<()> {
        match &mut self.held {
            Held::WithRpcs { rpc_slot, reservation } => {
                rpc_slot.cut()?;
                *reservation = None;
            }
            Held::Alone(pair) => pair.cut()?,
        }
        if let Some(count) = self.count.take() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.cut().is_err()
            && let Held::WithRpcs { reservation, .. } = &mut self.held
        {
            // The queue pair reports that to nobody, stays counted, and keeps its slot.
            std::mem::forget(reservation.take());
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Held::WithRpcs { .. } => "WithRpcs",
            Held::Alone(_) => "Alone",
        })
    }
}

impl std::fmt::Debug for Cards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cards({}, {} bytes)", self.card_port, self.key.words().bytes())
    }
}
