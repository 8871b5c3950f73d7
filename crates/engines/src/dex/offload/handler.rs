//! Offload handler: runs one operation on a subtree in the memory server's own memory.
//!
//! The handler reads at most as many nodes as the subtree has levels; a scan (`range`) reads those of a
//! bounded number of leaves. It allocates and frees nothing in the pool, changes no node but the leaf,
//! and leaves the leaf's lock word alone.
//!
//! - `INV-DEX-OFF-1` The handler changes a leaf only after every node on its way, the leaf included, had
//!   its address, level, kind and checksum, covered the key, and lay on this server; and the first had
//!   a range within the sender's partition. All else is refused with nothing done.
//! - `INV-DEX-OFF-2` The handler does a change at most once for each (session, channel, sequence): a
//!   resent request gets the first reply, and the handler refuses older ones. Sessions are of this
//!   service's life, so a change of an earlier life of it is never taken for a new one.
//!
//! Nobody else writes the subtree meanwhile: the sender holds its `OffX` mark, and the contract's F6
//! and F10 keep out late operations of dead senders and lost connections. So the handler reads and
//! writes node words without order; the checksum shows that they were not torn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{GlobalAddr, ServerId, Service, ServiceId, ServiceReply, Words};
use farleaf_index::bnode::{
    ChangeError, Cover, Kind, Node, NodeMut, RecordRef, StoredValue, Value,
};
use farleaf_index::sync::{Mutex, lock};
use xxhash_rust::xxh3::xxh3_64;

use super::range::gather;
use super::wire::{OffloadReply, OffloadRequest, Operation, RECORD_BYTES, REPLY_BYTES, Status};

/// The number of the service.
pub const OFFLOAD_SERVICE: ServiceId = ServiceId(0x0dec);

/// Sessions that are remembered; then the one that was used longest ago is forgotten.
pub(super) const SESSIONS_MAX: usize = 4096;
/// Channels of a session.
pub(crate) const CHANNELS_MAX: u16 = 1024;
/// Loads of a node before it counts as damaged: nobody writes it.
const LOADS_MAX: u32 = 3;
/// The simulator's price of a request, in nanoseconds of a thread of a memory server: for each request, for
/// each node, and for a change.
const COST_NS: (u64, u64, u64) = (100, 150, 150);

/// The counts of one memory server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadServiceStats {
    /// Requests, refused ones included.
    pub requests: u64,
    /// Resent requests that were answered from memory.
    pub duplicates: u64,
    /// Bytes that were no request.
    pub refused: u64,
    /// Requests whose senders were told to fetch.
    pub fallbacks: u64,
    /// Nanoseconds in the handler: measured if there is a clock, else what the simulator counts.
    pub busy_ns: u64,
}

#[derive(Debug, Default)]
struct ServiceCounts {
    requests: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
    fallbacks: AtomicU64,
    busy_ns: AtomicU64,
}

/// The last change of one channel.
#[derive(Debug, Default)]
struct LastChange {
    sequence: u64,
    reply: Option<OffloadReply>,
}

#[derive(Debug)]
struct Session {
    incarnation: u64,
    used: u64,
    channels: BTreeMap<u16, Arc<Mutex<LastChange>>>,
}

#[derive(Debug, Default)]
struct Sessions {
    granted: u64,
    uses: u64,
    all: BTreeMap<u64, Session>,
}

/// The service that runs operations of other compute servers on this memory server: register it as
/// [`OFFLOAD_SERVICE`]. Without it they fetch what they need.
///
/// Costs the memory server a few hundred nanoseconds a request, and about 100 bytes for each change
/// that a compute server has under way at a time.
#[derive(Debug)]
pub struct OffloadService {
    life: u64,
    clock: Option<fn() -> u64>,
    sessions: Mutex<Sessions>,
    counts: ServiceCounts,
}

impl OffloadService {
    /// Makes a service. `life` differs from that of every service that ran on the same memory before, as
    /// the time at which the process began does. `clock` measures the time in the handler, in nanoseconds;
    /// without one the service estimates it.
    pub fn new(life: u64, clock: Option<fn() -> u64>) -> Self {
        OffloadService { life, clock, sessions: Mutex::default(), counts: ServiceCounts::default() }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> OffloadServiceStats {
        let ServiceCounts { requests, duplicates, refused, fallbacks, busy_ns } = &self.counts;
        let [requests, duplicates, refused, fallbacks, busy_ns] =
            [requests, duplicates, refused, fallbacks, busy_ns]
                .map(|count| count.load(Ordering::Relaxed));
        OffloadServiceStats { requests, duplicates, refused, fallbacks, busy_ns }
    }

    /// Returns the channel that a change came on, or a session instead if there is none.
    fn channel(&self, ask: &OffloadRequest<'_>) -> Result<Arc<Mutex<LastChange>>, OffloadReply> {
        if ask.channel >= CHANNELS_MAX || ask.sequence == 0 {
            return Err(OffloadReply::bare(Status::Refused));
        }
        let mut sessions = lock(&self.sessions);
        sessions.uses += 1;
        let uses = sessions.uses;
        if let Some(session) = sessions.all.get_mut(&ask.session)
            && session.incarnation == ask.incarnation
        {
            session.used = uses;
            return Ok(Arc::clone(session.channels.entry(ask.channel).or_default()));
        }
        if sessions.all.len() >= SESSIONS_MAX {
            let oldest = sessions.all.iter().min_by_key(|(_, session)| session.used);
            if let Some(number) = oldest.map(|(number, _)| *number) {
                sessions.all.remove(&number);
            }
        }
        sessions.granted += 1;
        // The same number of another life is as improbable as two equal hashes.
        let number = xxh3_64(&[self.life.to_le_bytes(), sessions.granted.to_le_bytes()].concat());
        let number = number.max(1);
        let session =
            Session { incarnation: ask.incarnation, used: uses, channels: BTreeMap::new() };
        sessions.all.insert(number, session);
        Err(OffloadReply { leaf: number, ..OffloadReply::bare(Status::NoSession) })
    }

    /// Executes one request; the value of a get goes into `value`, as far as there is room.
    fn answer(
        &self,
        memory: &Words,
        request: &[u8],
        value: &mut Vec<u8>,
        room: usize,
    ) -> OffloadReply {
        let Some(ask) = OffloadRequest::decode(request) else {
            return OffloadReply::bare(Status::Refused);
        };
        let answer = if ask.operation == Operation::Scan {
            gather(&ask, memory, value, room)
        } else if ask.operation.reads() {
            run(&ask, memory, value, room)
        } else {
            match self.channel(&ask) {
                Err(answer) => answer,
                Ok(channel) => {
                    let mut last = lock(&channel);
                    match last.reply {
                        Some(reply) if last.sequence == ask.sequence => {
                            self.counts.duplicates.fetch_add(1, Ordering::Relaxed);
                            reply
                        }
                        Some(_) if last.sequence > ask.sequence => {
                            OffloadReply::bare(Status::Refused)
                        }
                        _ => {
                            let reply = run(&ask, memory, value, room);
                            *last = LastChange { sequence: ask.sequence, reply: Some(reply) };
                            reply
                        }
                    }
                }
            }
        };
        OffloadReply { sequence: ask.sequence, ..answer }
    }

    fn count(&self, answer: &OffloadReply, busy_ns: u64) {
        let add = |count: &AtomicU64, by| count.fetch_add(by, Ordering::Relaxed);
        add(&self.counts.requests, 1);
        add(&self.counts.busy_ns, busy_ns);
        match answer.status {
            Status::Ok | Status::Absent | Status::Exists | Status::NoSession => 0,
            Status::Refused => add(&self.counts.refused, 1),
            _ => add(&self.counts.fallbacks, 1),
        };
    }
}

impl Service for OffloadService {
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let begun = self.clock.map(|clock| clock());
        let Some(room) = reply.len().checked_sub(REPLY_BYTES) else {
            return ServiceReply { len: 0, cpu_ns: 0 };
        };
        let mut value = Vec::new();
        let mut answer = self.answer(memory, request, &mut value, room);
        let (each, node, change) = COST_NS;
        let is_change = answer.sequence != 0;
        let cpu_ns = each + node * u64::from(answer.nodes) + if is_change { change } else { 0 };
        let spent_ns = match (self.clock, begun) {
            (Some(clock), Some(begun)) => clock().saturating_sub(begun),
            _ => cpu_ns,
        };
        self.count(&answer, spent_ns);
        answer.handler_ns = u32::try_from(spent_ns).unwrap_or(u32::MAX);
        answer.value_len = value.len() as u32;
        let (head, rest) = reply.split_at_mut(REPLY_BYTES);
        head.copy_from_slice(&answer.encode());
        // It has room: `run` has looked.
        let Some(into) = rest.get_mut(..value.len()) else {
            return ServiceReply { len: 0, cpu_ns };
        };
        into.copy_from_slice(&value);
        ServiceReply { len: REPLY_BYTES + value.len(), cpu_ns }
    }

    fn busy(&self, reply: &mut [u8]) -> Option<ServiceReply> {
        let head = reply.get_mut(..REPLY_BYTES)?;
        let answer = OffloadReply::bare(Status::Busy);
        self.count(&answer, 0);
        head.copy_from_slice(&answer.encode());
        Some(ServiceReply { len: REPLY_BYTES, cpu_ns: 0 })
    }
}

/// Walks down to the leaf and executes the request there.
fn run(ask: &OffloadRequest<'_>, memory: &Words, value: &mut Vec<u8>, room: usize) -> OffloadReply {
    let layout = &ask.layout;
    let mut image = vec![0; layout.node_words()];
    let Some(mut at) = GlobalAddr::from_word(ask.node) else {
        return OffloadReply::bare(Status::Refused);
    };
    let server = at.server();
    for level in (0..=ask.level).rev() {
        let nodes = u16::from(ask.level - level) + 1;
        let ended = |status| OffloadReply { nodes, ..OffloadReply::bare(status) };
        let first = match arrive(ask, memory, at, level, &mut image) {
            Ok(first) => first,
            // The sender's own address.
            Err(Status::Refused) if nodes > 1 => return ended(Status::WrongFence),
            Err(status) => return ended(status),
        };
        let node = Node::new(layout, &image[..]);
        if node.covers(ask.key) != Cover::Inside || (nodes == 1 && !is_within(&node, ask)) {
            return ended(Status::WrongFence);
        }
        if level == 0 {
            let done = in_leaf(ask, memory, first, &mut image, value, room);
            return OffloadReply { nodes, leaf: at.word(), ..done };
        }
        at = match child_there(node.child_for(ask.key).1, server) {
            Ok(child) => child,
            Err(status) => return ended(status),
        };
    }
    OffloadReply::bare(Status::Refused)
}

/// Returns the address of a child, which must be on this server.
pub(super) fn child_there(word: u64, server: ServerId) -> Result<GlobalAddr, Status> {
    match GlobalAddr::from_word(word) {
        Some(child) if child.server() != server => Err(Status::CrossServer),
        Some(child) => Ok(child),
        // INV-DEX-PTR: a pointer to a frame has no place here.
        None => Err(Status::WrongFence),
    }
}

/// Loads the node of `level` at `at` and checks that it is that node; returns the index of its first word.
/// `Refused` if the address leads nowhere.
pub(super) fn arrive(
    ask: &OffloadRequest<'_>,
    memory: &Words,
    at: GlobalAddr,
    level: u8,
    image: &mut [u64],
) -> Result<usize, Status> {
    let layout = &ask.layout;
    let first = first_word(memory, at, layout.node_bytes()).ok_or(Status::Refused)?;
    let is_whole = |image: &mut [u64]| {
        memory.load(first, image);
        Node::new(layout, &*image).sum_ok()
    };
    if !(0..LOADS_MAX).any(|_| is_whole(image)) {
        return Err(Status::WrongFence);
    }
    let node = Node::new(layout, &*image);
    let kind = if level == 0 { Kind::Leaf } else { Kind::Inner };
    let fits = node.self_addr() == at.word() && node.level() == level && node.kind() == kind;
    if fits { Ok(first) } else { Err(Status::WrongFence) }
}

/// Returns the index of a node's first word, if all of it is there.
fn first_word(memory: &Words, at: GlobalAddr, node_bytes: usize) -> Option<usize> {
    let there = at.offset().checked_add(node_bytes as u64)? <= memory.bytes();
    (there && at.offset() != 0 && at.offset().is_multiple_of(8)).then_some(at.offset() as usize / 8)
}

/// Returns whether a node is the sender's alone.
pub(super) fn is_within(node: &Node<'_, u64>, ask: &OffloadRequest<'_>) -> bool {
    let mut fence = Vec::new();
    let above = ask.low.is_none_or(|low| node.low_fence(&mut fence) && fence.as_slice() >= low);
    let below = ask.high.is_none_or(|high| node.high_fence(&mut fence) && fence.as_slice() <= high);
    above && below
}

/// Executes the request in the leaf whose image is there and whose first word is `first`.
fn in_leaf(
    ask: &OffloadRequest<'_>,
    memory: &Words,
    first: usize,
    image: &mut [u64],
    value: &mut Vec<u8>,
    room: usize,
) -> OffloadReply {
    let node = Node::new(&ask.layout, &*image);
    let found = node.find(ask.key);
    let existed = found.is_ok();
    let bare = |status| OffloadReply { existed, ..OffloadReply::bare(status) };
    match (ask.operation, found) {
        (Operation::Get, Ok(index)) => {
            let is_record = match node.value(index, value) {
                Some(StoredValue::Inline) => false,
                Some(StoredValue::Record(RecordRef { addr, len })) => {
                    value.clear();
                    value.extend([addr, len].into_iter().flat_map(u64::to_le_bytes));
                    true
                }
                None => return bare(Status::WrongFence),
            };
            if value.len() > room {
                value.clear();
                return bare(Status::NeedSmo);
            }
            debug_assert!(!is_record || value.len() == RECORD_BYTES);
            return OffloadReply { is_record, ..bare(Status::Ok) };
        }
        (Operation::Get | Operation::Update | Operation::Remove, Err(_)) => {
            return bare(Status::Absent);
        }
        (Operation::Insert, Ok(_)) => return bare(Status::Exists),
        _ => {}
    }
    // A record that a change gives up is the sender's to retire (`INV-DEX-REC`).
    if found.is_ok_and(|index| node.record(index).is_some()) {
        return bare(Status::NeedSmo);
    }
    let version = node.version() + 1;
    let mut leaf = NodeMut::new(&ask.layout, &mut *image);
    let changed = match found {
        Ok(index) if ask.operation == Operation::Remove => leaf.remove(index),
        Ok(index) => leaf.replace(index, Value::Inline(ask.value)),
        Err(_) => leaf.insert(ask.key, Value::Inline(ask.value)).map(drop),
    };
    match changed {
        Ok(()) => {}
        // A value of this length is the sender's to put into a record.
        Err(ChangeError::NoRoom | ChangeError::BadValue { .. }) => return bare(Status::NeedSmo),
        Err(_) => return bare(Status::WrongFence),
    }
    // The header's version is one up, as for any other write of the leaf. This change has no log record, so the leaf keeps
    // its log number: every logged change before it is in this image already.
    leaf.seal(version);
    // All but the lock word.
    memory.store(first + 1, &image[1..]);
    bare(Status::Ok)
}
