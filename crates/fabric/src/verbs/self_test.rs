//! ! Card self-test: tests the card's capabilities on a connection of the card with itself.
//!
//! Each side tests its own card when it starts, on memory of its own, so that it touches no other
//! server's memory and asks nothing of a busy server. A test can show that a card lacks a capability,
//! never that it has it. So no claim rests on the test alone.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::VerbsError;
use super::card_port::CardPort;
use crate::raw::SlabRef;
use crate::raw::verbs::{
    Completions, HeldLoad, Hold, QueuePair, Remote, SendQueue, Size, WordsKey, Work,
    registered_slab,
};
use crate::{GlobalAddr, Op, Ops, ServerId, Words};

/// Longest time for one operation.
const PATIENCE: Duration = Duration::from_secs(2);
/// READs that race with WRITEs, and the longest time for them.
const RACES: usize = 1_000;
const RACE: Duration = Duration::from_millis(60);
/// Words of the raced line.
const LINE: usize = 8;

/// Behaviour that the test found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Findings {
    /// A READ that raced with a WRITE saw a word in part, or the card is known to do that.
    pub(super) torn_words: bool,
    /// Its atomics are atomic against the processor's, as the card states itself.
    pub(super) global_atomics: bool,
}

/// Tests the card at `card_port`.
///
/// # Errors
/// [`VerbsError::Unfit`] if it does not do what every engine needs.
pub(super) fn run(card_port: &CardPort) -> Result<Findings, VerbsError> {
    let words =
        Words::anonymous(512).ok_or_else(|| card_port.device.unfit("no memory to test it on"))?;
    let key = Arc::new(card_port.device.register(Arc::new(words), true)?);
    let mut probe = Probe::new(card_port, &key)?;
    probe.check_operations()?;
    let is_torn = race(card_port, &key, &mut probe)?;
    Ok(Findings {
        // Soft-RoCE copies by the processor, in steps of any size.
        torn_words: is_torn || card_port.device.facts.is_soft_roce,
        global_atomics: card_port.device.facts.global_atomics,
    })
}

/// Returns whether a READ sees a word in part while another queue pair writes it.
fn race(
    card_port: &CardPort,
    key: &Arc<WordsKey>,
    probe: &mut Probe<'_>,
) -> Result<bool, VerbsError> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<(), VerbsError> {
            let mut writer = Probe::new(card_port, key)?;
            let mut fill: u8 = 0;
            while !stop.load(Ordering::Relaxed) {
                fill = fill.wrapping_add(0x5b);
                let mut from = writer.slab.buf(LINE * 8);
                from.bytes_mut().fill(fill);
                writer.one(Op::Write { to: at(8), from })?;
            }
            Ok(())
        });
        let start = Instant::now();
        let mut torn = Ok(false);
        for _ in 0..RACES {
            torn = probe.line_is_torn();
            if !matches!(torn, Ok(false)) || start.elapsed() > RACE {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.and(torn)
    })
}

/// A connection of a card with itself.
struct Probe<'a> {
    card_port: &'a CardPort,
    send_queue: SendQueue,
    slab: SlabRef,
    hold: Rc<Hold>,
    completions: Arc<Completions>,
    // Destroyed after the send queue.
    _target: QueuePair,
}

impl<'a> Probe<'a> {
    fn new(card_port: &'a CardPort, key: &Arc<WordsKey>) -> Result<Probe<'a>, VerbsError> {
        let completions = Completions::new(&card_port.device, 64)?;
        let size = |depth, inline_max| Size { depth, inline_max, messages: 0, message_bytes: 0 };
        let mut source = QueuePair::new(&completions, size(16, 64), card_port.port, false)?;
        let mut target = QueuePair::new(&completions, size(1, 0), card_port.port, true)?;
        let here = card_port.here(1, card_port.mtu, 1, 1);
        source.connect(&here, &card_port.ends(target.number(), 1))?;
        target.connect(&here, &card_port.ends(source.number(), 1))?;
        let results = Words::anonymous(16)
            .ok_or_else(|| card_port.device.unfit("no memory to test it on"))?;
        let results = Arc::new(card_port.device.register(Arc::new(results), false)?);
        let remote = Remote { base: key.base(), key: key.remote() };
        let send_queue = SendQueue::new(source, 0, 16, remote, results, (0, 0));
        let slab = registered_slab(&card_port.device);
        Ok(Probe { card_port, send_queue, slab, hold: Rc::default(), completions, _target: target })
    }

    /// Posts a chain and waits for it.
    fn run(&mut self, load: HeldLoad) -> Result<HeldLoad, VerbsError> {
        let count = load.ops().count();
        let in_use = |_| self.card_port.device.unfit("an operation that ended was still in flight");
        Hold::swap(&mut self.hold, load).map_err(in_use)?;
        let mut backlog = VecDeque::new();
        for part in 0..count as u32 {
            let hold = Rc::clone(&self.hold);
            // In order, for each pair of neighbours.
            backlog.push_back(Work { hold, part, slot: 0, is_fenced: part > 0 });
        }
        let failed = self.card_port.device.failed("post to a queue pair");
        let start = Instant::now();
        while self.send_queue.in_flight() > 0 || !backlog.is_empty() {
            self.send_queue.post(&mut backlog, 16).map_err(&failed)?;
            let (send_queue, mut status) = (&mut self.send_queue, None);
            let came = self.completions.poll(|completion| {
                if completion.is_done {
                    send_queue.retire(completion.number, |_| {});
                } else {
                    status.get_or_insert(completion.status);
                }
            });
            if let Some(status) = status {
                let why = format!(
                    "an operation on its own memory failed with status {status} (see ibv_wc_status)"
                );
                return Err(self.card_port.device.unfit(&why));
            }
            if start.elapsed() > PATIENCE {
                return Err(self.card_port.device.unfit("it does not answer itself within 2 s"));
            }
            if came == 0 {
                thread::yield_now();
            }
        }
        let in_use = |_| self.card_port.device.unfit("an operation that ended was still in flight");
        Hold::swap(&mut self.hold, HeldLoad::Empty).map_err(in_use)
    }

    fn one(&mut self, op: Op) -> Result<HeldLoad, VerbsError> {
        self.run(HeldLoad::One(op))
    }

    /// WRITE, inline and not, READ, CAS and FAA, with a value that shows the order of bytes.
    fn check_operations(&mut self) -> Result<(), VerbsError> {
        const VALUE: u64 = 0x0102_0304_0506_0708;
        let mut ops = Ops::new(self.slab.clone());
        ops.write_word(at(0), VALUE);
        let mut long = self.slab.buf(1024);
        long.bytes_mut().fill(0x77);
        ops.write(at(128), long);
        let hit = ops.cas(at(0), VALUE, VALUE + 1);
        let miss = ops.cas(at(0), VALUE, 0);
        let added = ops.faa(at(0), 5);
        let word = ops.read(at(0), self.slab.buf(8));
        let block = ops.read(at(128), self.slab.buf(1024));
        let HeldLoad::Chain(ops) = self.run(HeldLoad::Chain(ops))? else {
            return Err(self.card_port.device.unfit("a chain came back as something else"));
        };
        let found = [ops.old(hit), ops.old(miss), ops.old(added), ops.buf(word).words()[0]];
        if found != [VALUE, VALUE + 1, VALUE + 1, VALUE + 6] {
            let why = format!("CAS, CAS, FAA and READ of one word gave {found:x?}");
            return Err(self.card_port.device.unfit(&why));
        }
        if ops.buf(block).bytes() != [0x77; 1024] {
            return Err(self.card_port.device.unfit("a READ gave something else than was written"));
        }
        Ok(())
    }

    fn line_is_torn(&mut self) -> Result<bool, VerbsError> {
        let read = self.one(Op::Read { from: at(8), into: self.slab.buf(LINE * 8) })?;
        let HeldLoad::One(Op::Read { into, .. }) = read else { return Ok(false) };
        // Each WRITE fills the line with one byte.
        Ok(into.bytes().chunks_exact(8).any(|word| word.iter().any(|byte| *byte != word[0])))
    }
}

/// The raced line stands at word 8, the places of other tests before and behind it.
fn at(word: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(0), word * 8)
}
