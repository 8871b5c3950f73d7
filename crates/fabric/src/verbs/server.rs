//! A memory server whose words cards reach, too.
//!
//! - **VERBS-1** All queue pairs of a connection belong to its gate (TCP-7): a fence, a reconnect and
//!   the connection's end move them to the error state and destroy them, and are answered afterwards.
//! - **VERBS-2** There is one registration of the words, and one protection domain: whoever is let in
//!   has the key. Nobody is cut off by keys, only by queue pairs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::VerbsError;
use super::place::{CardConfig, Place};
use super::self_test::{self, Findings};
use super::wire::{Answer, Outcome, Question, VERSION};
use crate::raw::verbs::{Completions, Ends, QueuePair, WordsKey};
use crate::tcp::offer::{Offer, Offered, Way};
use crate::tcp::{MemoryServer, MemoryServerConfig, Region};
use crate::{FabricError, Service, ServiceId, Words};

/// A memory server of this process that offers its words to cards. It listens, and answers RPCs,
/// fences and questions of life, as a [`MemoryServer`] does, and serves `tcp` clients too, but see
/// [`VerbsServer::start`]. It stops when it is dropped.
#[derive(Debug)]
pub struct VerbsServer {
    server: Arc<MemoryServer>,
    queue_pairs: Arc<AtomicUsize>,
    card: String,
}

/// What its connections share.
struct Cards {
    place: Place,
    completions: Arc<Completions>,
    key: WordsKey,
    findings: Findings,
    queue_pairs: Arc<AtomicUsize>,
    packets: AtomicU32,
}

impl VerbsServer {
    /// Opens the card, tests it, registers `words` (which locks all of it in memory), and listens.
    ///
    /// Compute servers that use the card and those of `tcp` alone are not let in at the same time, unless
    /// the card says that its atomics are atomic against the processor's: whoever comes while others use
    /// the other way is told so.
    ///
    /// # Errors
    /// [`FabricError::Verbs`] says what is wrong with the card; otherwise as [`MemoryServer::start`].
    pub fn start(
        config: MemoryServerConfig,
        card: &CardConfig,
        words: Arc<Words>,
    ) -> Result<Self, FabricError> {
        Self::start_over(config, card, Region::over(words))
    }

    /// The same with `region`. If that lies in a file, a server that is started again over the file
    /// serves the same words, and still refuses whom this one has cut off. Not every file system lets
    /// a card use its files' memory: `/dev/shm` does.
    ///
    /// # Errors
    /// As [`VerbsServer::start`].
    pub fn start_over(
        config: MemoryServerConfig,
        card: &CardConfig,
        region: Region,
    ) -> Result<Self, FabricError> {
        let place = Place::open(card)?;
        let findings = self_test::run(&place)?;
        let queue_pairs = Arc::new(AtomicUsize::new(0));
        let name = place.to_string();
        let cards = Cards {
            // Nothing is ever posted here, so nothing completes.
            completions: Completions::new(&place.device, 16)?,
            key: place.device.register(Arc::clone(region.words()), true)?,
            place,
            findings,
            queue_pairs: Arc::clone(&queue_pairs),
            packets: AtomicU32::new(std::process::id()),
        };
        let server = MemoryServer::start_with(config, region, Some(Arc::new(cards)))?;
        Ok(VerbsServer { server: Arc::new(server), queue_pairs, card: name })
    }

    /// Where it listens.
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

    /// Queue pairs that it has now: one per thread of a compute server.
    pub fn queue_pairs(&self) -> usize {
        self.queue_pairs.load(Ordering::Relaxed)
    }

    /// Its card, the port, GID index and largest packet.
    pub fn card(&self) -> &str {
        &self.card
    }

    /// What answers on the network. It stops when nobody has it any more.
    pub fn memory_server(&self) -> &Arc<MemoryServer> {
        &self.server
    }
}

impl Offer for Cards {
    fn mixes(&self) -> bool {
        self.findings.global_atomics
    }

    fn answer(&self, question: &[u8]) -> Option<Offered> {
        let question = Question::decode(question)?;
        let mut answer = Answer {
            version: VERSION,
            outcome: Outcome::Done,
            mtu: self.place.mtu.min(question.mtu).max(1),
            answers: self.place.device.facts.answers_max,
            is_ethernet: self.place.facts.is_ethernet,
            ends: Ends {
                queue: 0,
                first_packet: 0,
                gid: self.place.gid,
                lid: self.place.facts.lid,
            },
            torn_words: self.findings.torn_words,
            global_atomics: self.findings.global_atomics,
            key: self.key.remote(),
            base: self.key.base(),
        };
        let mut way: Option<Box<dyn Way>> = None;
        if question.version != VERSION {
            answer.outcome = Outcome::OtherVersion;
        } else if question.is_ethernet != answer.is_ethernet {
            answer.outcome = Outcome::OtherNetwork;
        } else if question.connects {
            match self.connect(&question, &mut answer) {
                Ok(pair) => way = Some(Box::new(pair)),
                Err(_) => answer.outcome = Outcome::NoQueuePair,
            }
        }
        Some(Offered { answer: answer.encode(), way })
    }
}

impl Cards {
    fn connect(&self, question: &Question, answer: &mut Answer) -> Result<Counted, VerbsError> {
        let mut pair = QueuePair::new(&self.completions, 1, 0, self.place.port, true)?;
        // Late packets of an earlier connection with the same numbers are out of order.
        let packet = self.packets.fetch_add(0x51_7cc1, Ordering::Relaxed) & 0xff_ffff;
        let answers = answer.answers.min(question.flights);
        pair.connect(&self.place.here(packet, answer.mtu, answers, 1), &question.ends)?;
        answer.ends.queue = pair.number();
        answer.ends.first_packet = packet;
        answer.answers = answers;
        self.queue_pairs.fetch_add(1, Ordering::Relaxed);
        Ok(Counted { pair, count: Some(Arc::clone(&self.queue_pairs)) })
    }
}

/// One end of a connection, counted while it is there.
struct Counted {
    pair: QueuePair,
    count: Option<Arc<AtomicUsize>>,
}

impl Way for Counted {
    fn cut(&mut self) -> io::Result<()> {
        self.pair.cut()?;
        if let Some(count) = self.count.take() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // If it fails, the queue pair says so to nobody, and stays counted.
        let _ = self.cut();
    }
}
