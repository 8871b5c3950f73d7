//! Operation records: describe every remote operation, for timelines.

use std::collections::VecDeque;

use super::config::PS;
use super::machine::Machine;
use super::slots::SimPayload;
use crate::{GlobalAddr, Incarnation, Op, OpErrorKind, ServerId};

/// Records that are kept: the newest.
pub(super) const RECORDS_MAX: usize = 1 << 20;

/// Kind of a recorded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// READ.
    Read,
    /// WRITE of a buffer.
    Write,
    /// WRITE of one word, part of a list.
    WriteWord,
    /// CAS.
    Cas,
    /// FAA.
    Faa,
    /// RPC.
    Rpc,
    /// Fence of another life.
    Fence,
    /// Reconnect.
    Reconnect,
    /// End of another thread's connection.
    EndConnection,
    /// Call of another compute server.
    Call,
    /// Reply to a call, which has no record.
    Reply,
}

impl Verb {
    /// Returns the kind of the operation `part` of a payload, if that is no wait.
    pub(super) fn of(payload: &SimPayload, part: u16) -> Option<Verb> {
        Some(match payload {
            SimPayload::Empty | SimPayload::Sleep { .. } | SimPayload::Work { .. } => return None,
            SimPayload::Rpc { .. } => Verb::Rpc,
            SimPayload::Fence { .. } => Verb::Fence,
            SimPayload::Reconnect { .. } => Verb::Reconnect,
            SimPayload::EndConnection { .. } => Verb::EndConnection,
            SimPayload::Call(_) => Verb::Call,
            SimPayload::Reply => Verb::Reply,
            SimPayload::Op(_) | SimPayload::Chain(_) | SimPayload::Batch(_) => {
                match payload.op(part)? {
                    Op::Read { .. } => Verb::Read,
                    Op::Write { .. } => Verb::Write,
                    Op::WriteWord { .. } => Verb::WriteWord,
                    Op::Cas { .. } => Verb::Cas,
                    Op::Faa { .. } => Verb::Faa,
                }
            }
        })
    }

    /// Its name, as in `write_word`.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::WriteWord => "write_word",
            Verb::Cas => "cas",
            Verb::Faa => "faa",
            Verb::Rpc => "rpc",
            Verb::Fence => "fence",
            Verb::Reconnect => "reconnect",
            Verb::EndConnection => "end_connection",
            Verb::Call => "call",
            Verb::Reply => "reply",
        }
    }
}

/// List in which an operation was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Alone.
    Alone,
    /// In a chain.
    Chain,
    /// With [`crate::Endpoint::post_many`].
    Batch,
}

/// One remote operation, each of a chain or batch. Times are of the true clock.
#[derive(Clone, Debug, PartialEq)]
pub struct OpRecord {
    /// Number of its post, from 1 on; one chain or batch is one post.
    pub serial: u64,
    /// The list in which it was posted.
    pub posted: Posted,
    /// Its place in its chain or batch.
    pub index: u16,
    /// The compute server that posted it.
    pub compute: usize,
    /// That server's worker thread.
    pub thread: usize,
    /// That server's life.
    pub life: Incarnation,
    /// The server that it went to; from [`ServerId::COMPUTE_FIRST`] on a compute server.
    pub server: ServerId,
    /// Its kind.
    pub verb: Verb,
    /// The first byte that it touches; offset 0 for an RPC, and for what ends a connection.
    pub addr: GlobalAddr,
    /// The bytes that it touches; those of an RPC's request.
    pub bytes: u64,
    /// Time of the post.
    pub posted_ns: u64,
    /// Its first and its last instant at the server, if it took effect.
    pub effect_ns: Option<(u64, u64)>,
    /// Time at which its post came back to the client, with a result or an error. `None` while it is under
    /// way, and if the client is gone.
    pub back_ns: Option<u64>,
    /// Word that a CAS expected.
    pub expected: Option<u64>,
    /// New word of a CAS or a `write_word`, addend of an FAA, incarnation that a fence cuts off.
    pub operand: Option<u64>,
    /// The word that a CAS or FAA found.
    pub old: Option<u64>,
    /// Faults that struck it, each once, in order: `"torn"`, `"split"`, `"late"`, `"lost: ..."`, `"cut"`,
    /// `"held"`, `"repeated"`, `"server stopped"`, `"owner dead"`, `"request cut off"`, `"reply cut off"`, `"refused"`.
    pub faults: Vec<&'static str>,
    /// Error of its post, if the client received one.
    pub error: Option<OpErrorKind>,
}

/// The newest records.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    list: VecDeque<OpRecord>,
    /// Number of the first that is kept.
    first: u64,
}

impl Recorder {
    fn next(&self) -> u64 {
        self.first + self.list.len() as u64
    }

    fn push(&mut self, record: OpRecord) {
        if self.list.len() == RECORDS_MAX {
            self.list.pop_front();
            self.first += 1;
        }
        self.list.push_back(record);
    }

    fn get(&mut self, number: u64) -> Option<&mut OpRecord> {
        self.list.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn to_vec(&self) -> Vec<OpRecord> {
        self.list.iter().cloned().collect()
    }
}

impl Machine {
    /// A post begins.
    #[inline]
    pub(super) fn record_post(&mut self, index: u32) {
        if self.recorder.is_some() {
            self.record_parts(index);
        }
    }

    #[cold]
    fn record_parts(&mut self, index: u32) {
        let compute = self.compute(index);
        let (threads, now_ns) = (self.threads_each, self.now / PS);
        let Some(recorder) = &mut self.recorder else { return };
        self.slots[index].record = recorder.next();
        let slot = &self.slots[index];
        let posted = match &slot.payload {
            SimPayload::Chain(_) => Posted::Chain,
            SimPayload::Batch(_) => Posted::Batch,
            _ => Posted::Alone,
        };
        for part in 0..slot.payload.op_count() as u16 {
            let Some(verb) = Verb::of(&slot.payload, part) else { continue };
            let server = slot.server(part).unwrap_or(ServerId(0));
            let mut record = OpRecord {
                serial: slot.serial,
                posted,
                index: part,
                compute,
                thread: slot.poster.thread as usize % threads,
                life: Incarnation(u64::from(slot.poster.life) + 1),
                server,
                verb,
                addr: GlobalAddr::new(server, 0),
                bytes: 0,
                posted_ns: now_ns,
                effect_ns: None,
                back_ns: None,
                expected: None,
                operand: None,
                old: None,
                faults: Vec::new(),
                error: None,
            };
            match &slot.payload {
                SimPayload::Rpc { list, .. } => record.bytes = list.get(0).bytes() as u64,
                SimPayload::Fence { who, .. } => record.operand = Some(who.0),
                SimPayload::Call(posted) => record.bytes = posted.request.len() as u64,
                _ => {}
            }
            if let Some(op) = slot.payload.op(part) {
                record.addr = op.addr();
                record.bytes = op.bytes() as u64;
                (record.expected, record.operand) = match op {
                    Op::Read { .. } | Op::Write { .. } => (None, None),
                    Op::WriteWord { value, .. } => (None, Some(*value)),
                    Op::Cas { expected, new, .. } => (Some(*expected), Some(*new)),
                    Op::Faa { add, .. } => (None, Some(*add)),
                };
            }
            recorder.push(record);
        }
    }

    /// One of its instants at the server is now.
    #[inline]
    pub(super) fn record_effect(&mut self, index: u32, part: u16) {
        if let Some(recorder) = &mut self.recorder {
            let slot = &self.slots[index];
            let Some(record) = recorder.get(slot.record + u64::from(part)) else { return };
            let now_ns = self.now / PS;
            let first_ns = record.effect_ns.map_or(now_ns, |(first_ns, _)| first_ns);
            record.effect_ns = Some((first_ns, now_ns));
            if let Some(Op::Cas { old, .. } | Op::Faa { old, .. }) = slot.payload.op(part) {
                record.old = Some(*old);
            }
        }
    }

    /// The post comes back to its client.
    #[inline]
    pub(super) fn record_back(&mut self, index: u32) {
        if let Some(recorder) = &mut self.recorder {
            let slot = &self.slots[index];
            let error = slot.failure().map(|error| error.kind);
            for part in 0..slot.payload.op_count() as u16 {
                if let Some(record) = recorder.get(slot.record + u64::from(part)) {
                    record.back_ns = Some(self.now / PS);
                    record.error = error;
                }
            }
        }
    }

    /// A fault strikes one operation.
    #[inline]
    pub(super) fn strike(&mut self, index: u32, part: u16, fault: &'static str) {
        if let Some(recorder) = &mut self.recorder {
            let number = self.slots[index].record + u64::from(part);
            if let Some(record) = recorder.get(number)
                && !record.faults.contains(&fault)
            {
                record.faults.push(fault);
            }
        }
    }

    /// A fault strikes a message: every operation of a chain.
    #[inline]
    pub(super) fn strike_message(&mut self, index: u32, part: u16, fault: &'static str) {
        if self.recorder.is_some() {
            let chained = match &self.slots[index].payload {
                SimPayload::Chain(ops) => ops.len() as u16,
                _ => return self.strike(index, part, fault),
            };
            (0..chained).for_each(|part| self.strike(index, part, fault));
        }
    }
}
