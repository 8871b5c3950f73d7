//! Verbs server: a memory server whose words cards can reach.
//!
//! - **VERBS-1** All queue pairs of a connection belong to its gate (TCP-7). A fence, a reconnect and
//!   the connection's end move them to the error state and destroy them before the server answers.
//! - **VERBS-2** There is one registration of the words, and one protection domain: every accepted
//!   client has the key. The server cuts off clients by their queue pairs, never by keys.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::VerbsError;
use super::card_port::{CardConfig, CardPort};
use super::rpc_server::{self, CALLS_MAX, RpcServer, RpcSlot};
use super::self_test::{self, Findings};
use super::wire::{PairAnswer, PairOutcome, Question, VERSION};
use crate::raw::verbs::{QueuePair, Size, WordsKey};
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
struct Cards {
    card_port: CardPort,
    /// Threads that answer RPCs: as many as serve connections.
    rpc_servers: Vec<RpcServer>,
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
        let queue_pairs = Arc::new(AtomicUsize::new(0));
        let name = card_port.to_string();
        let cards = Cards {
            key: card_port.device.register(Arc::clone(region.words()), true)?,
            rpc_servers: (0..config.threads.max(1))
                .map(|number| RpcServer::start(&card_port.device, number))
                .collect::<Result<_, _>>()?,
            card_port,
            findings,
            queue_pairs: Arc::clone(&queue_pairs),
            packets: AtomicU32::new(std::process::id()),
            next_rpc_server: AtomicUsize::new(0),
        };
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
        let mut answer = PairAnswer {
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
        };
        let mut way: Option<Box<dyn Way>> = None;
        if question.version != VERSION {
            answer.outcome = PairOutcome::OtherVersion;
        } else if question.is_ethernet != answer.is_ethernet {
            answer.outcome = PairOutcome::OtherNetwork;
        } else if question.connects {
            match self.connect(&question, &mut answer, caller) {
                Ok(end) => way = Some(Box::new(end)),
                Err(_) => answer.outcome = PairOutcome::NoQueuePair,
            }
        }
        Some(Offered { answer: answer.encode(), way })
    }
}

impl Cards {
    fn connect(
        &self,
        question: &Question,
        answer: &mut PairAnswer,
        caller: Caller,
    ) -> Result<End, VerbsError> {
        let rpc_server =
            self.next_rpc_server.fetch_add(1, Ordering::Relaxed) % self.rpc_servers.len();
        let rpc_server = &self.rpc_servers[rpc_server];
        let calls = question.calls.min(CALLS_MAX);
        // Without an RPC slot, or memory for messages, RPCs go by the connection.
        let taken = if calls > 0 { rpc_server.reserve() } else { None };
        let reserved = taken.and_then(|taken| {
            let mut pair = self.pair(rpc_server, calls).ok()?;
            taken.expect(&mut pair, calls).ok()?;
            Some((pair, taken))
        });
        let (mut pair, reservation) = match reserved {
            Some((pair, taken)) => (pair, Some(taken)),
            None => (self.pair(rpc_server, 0)?, None),
        };
        // Late packets of an earlier connection with the same numbers are out of order.
        let packet = self.packets.fetch_add(0x51_7cc1, Ordering::Relaxed) & 0xff_ffff;
        let answers = answer.answers.min(question.flights);
        pair.connect(&self.card_port.here(packet, answer.mtu, answers, 1), &question.ends)?;
        answer.ends = self.card_port.ends(pair.number(), packet);
        answer.answers = answers;
        answer.calls = if reservation.is_some() { calls } else { 0 };
        self.queue_pairs.fetch_add(1, Ordering::Relaxed);
        let rpc_slot = RpcSlot::new(pair, caller, calls);
        if let Some(reservation) = &reservation {
            reservation.attach(&rpc_slot);
        }
        Ok(End { rpc_slot, reservation, count: Some(Arc::clone(&self.queue_pairs)) })
    }

    fn pair(&self, rpc_server: &RpcServer, calls: u16) -> Result<QueuePair, VerbsError> {
        let size = Size {
            depth: u32::from(calls.max(1)),
            inline_max: if calls > 0 { INLINE_MAX } else { 0 },
            messages: calls,
            message_bytes: MESSAGE_BYTES_MAX,
        };
        QueuePair::new(rpc_server.completions(), size, self.card_port.port, true)
    }
}

/// One end of a connection, counted while it is there.
struct End {
    rpc_slot: Arc<RpcSlot>,
    /// Its place at the thread that answers its RPCs.
    reservation: Option<rpc_server::Reservation>,
    count: Option<Arc<AtomicUsize>>,
}

impl Way for End {
    fn cut(&mut self) -> io::Result<()> {
        self.rpc_slot.cut()?;
        if let Some(count) = self.count.take() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        self.reservation = None;
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.cut().is_err() {
            // The queue pair reports that to nobody, stays counted, and keeps its slot.
            std::mem::forget(self.reservation.take());
        }
    }
}
