//! Offload client: decides to offload an operation, sends it, and handles the reply.

use std::sync::{Arc, OnceLock};

use farleaf_fabric::{Endpoint, GlobalAddr, OpErrorKind, ServerId};
use farleaf_pool::{Session, Trial};

use super::channels::{Channel, Channels};
use super::handler::OFFLOAD_SERVICE;
use super::mark::Off;
use super::model::{Choice, Model, Offload, Work};
use super::range::LEAVES_MAX;
use super::wire::{
    Answer, Ask, FOUND_BYTES, Gathered, Operation, RECORD_BYTES, REPLY_BYTES, Status, Sweep,
    key_bytes_max, u64_at,
};
use crate::IndexError;
use crate::blink::remote::{Next, Passage};
use crate::bnode::{Cover, RecordRef};
use crate::change::Outcome;
use crate::engines::dex::cache::Entry;
use crate::engines::dex::cache::IoMark;
use crate::engines::dex::cache::State;
use crate::engines::dex::tree::{Intent, OwnedIntent, unfinished_change};
use crate::engines::dex::{Cache, TimedOut};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// Sessions that one operation may be granted before it fetches.
const GRANTS_MAX: u32 = 3;
/// Times that a server may turn away a change that it may have done.
const TRIES_MAX: u32 = 10_000;

/// What an operation may have done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines::dex) enum Wish {
    Read,
    Change,
    /// A scan that probably wants so many leaves.
    Scan(usize),
}

impl Wish {
    pub(in crate::engines::dex) fn reads(self) -> bool {
        self != Wish::Change
    }

    /// Whether it may be done at a node of `level` where others read. Of a leaf a scan has no more than it
    /// would have of a READ.
    pub(in crate::engines::dex) fn joins(self, level: u8) -> bool {
        match self {
            Wish::Read => true,
            Wish::Change => false,
            Wish::Scan(_) => level > 0,
        }
    }
}

/// What is known of one memory server.
#[derive(Debug, Default)]
struct Server {
    model: Mutex<Model>,
    /// The session that it has granted, 0 if none.
    session: AtomicU64,
    calls: AtomicU64,
    handler_ns: AtomicU64,
}

/// What a compute server has had done by one memory server, and how long that takes of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OffloadServer {
    /// Requests that were answered.
    pub calls: u64,
    /// Nanoseconds that they kept its threads busy, by its own account.
    pub handler_ns: u64,
    /// Mean time of a READ of a node; measured with [`Offload::Adaptive`] alone, and not of what is
    /// older than a second.
    pub read_ns: Option<f64>,
    /// Mean time of a request, as above.
    pub call_ns: Option<f64>,
}

/// Everything about offloading that a cache keeps.
#[derive(Debug, Default)]
pub(in crate::engines::dex) struct Offloads {
    /// One for each memory server, once it is known how many there are.
    servers: OnceLock<Box<[Server]>>,
    pub(super) channels: Mutex<Channels>,
    /// Changes whose outcome is not known and that may still happen.
    unsettled: AtomicUsize,
}

impl Offloads {
    fn server(&self, session: &Session, server: ServerId) -> Option<&Server> {
        let count = || (0..session.endpoint().server_count()).map(|_| Server::default()).collect();
        self.servers.get_or_init(count).get(server.index())
    }
}

/// What is asked, for a task that may outlive its caller.
struct Question {
    operation: Operation,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Bytes that an answer may have beside its head.
    room: usize,
    partition: Worker,
}

/// Which partition it concerns.
#[derive(Clone, Copy)]
enum Worker {
    /// The key's.
    Key,
    /// That of the place just above the key.
    Above,
    First,
    Last,
}

/// Bytes of pairs that one answer to a scan may have, at most.
const SCAN_ROOM: usize = 16 << 10;

/// How asking ended.
enum Asked {
    /// A definite answer, and the value that came with it.
    Answered(Answer, Vec<u8>),
    /// Nothing was done, and the operation fetches.
    Fetch,
    /// It may have been done.
    Unknown(IndexError),
}

impl Cache {
    /// Whether an operation that missed the node of `claim` is to be offloaded.
    pub(in crate::engines::dex) fn offloads(
        &self,
        session: &Session,
        claim: &IoMark,
        wish: Wish,
    ) -> bool {
        let options = &self.options;
        let mode = options.offload;
        // Above the subtree level the way goes on elsewhere.
        let top = self.remote.subtree_level().unwrap_or(u8::MAX).min(options.offload_level);
        if mode == Offload::Never
            || claim.level > top
            || (claim.level == 0 && !options.offload_leaf_miss)
            || claim.shared
            || (claim.level == 0 && matches!(wish, Wish::Scan(_)))
        {
            return false;
        }
        // Without it a handler may not see what was written before, and nothing else makes it.
        if !session.endpoint().capabilities().cpu_visible {
            self.stats.offload_blind.add();
            return false;
        }
        let Some(server) = self.offloads.server(session, claim.addr().server()) else {
            return false;
        };
        let now_ns = session.endpoint().now_ns();
        let mut model = lock(&server.model);
        if !model.is_open(now_ns) {
            return false;
        }
        let random = || (session.endpoint().random() >> 11) as f64 / (1_u64 << 53) as f64;
        let choice = match mode {
            Offload::Never => Choice { offload: false, explores: false },
            Offload::Always => Choice { offload: true, explores: false },
            Offload::Ratio(share) => Choice { offload: random() < share, explores: false },
            Offload::Adaptive => {
                let path = u32::from(claim.level) + 1;
                let (work, reads) = match wish {
                    Wish::Read | Wish::Change => (Work::Point, path),
                    // Further leaves are read several at a time.
                    Wish::Scan(leaves) => {
                        let leaves = leaves.clamp(1, LEAVES_MAX.into()) - 1;
                        let more = leaves.div_ceil(1 + options.scan_prefetch);
                        (Work::Scan, path + more as u32)
                    }
                };
                model.decide(work, reads, now_ns, random())
            }
        };
        drop(model);
        if choice.explores {
            self.stats.offload_explored.add();
        }
        let decided =
            if choice.offload { &self.stats.offload_chosen } else { &self.stats.offload_declined };
        decided.add();
        choice.offload
    }

    /// The time, if it is to be noted how long a READ of a node that begins now takes.
    pub(in crate::engines::dex) fn begin_read(&self, session: &Session) -> Option<u64> {
        (self.options.offload == Offload::Adaptive).then(|| session.endpoint().now_ns())
    }

    /// Notes how long a READ of a node took that began at `begun_ns`.
    pub(in crate::engines::dex) fn note_read(
        &self,
        session: &Session,
        addr: GlobalAddr,
        begun_ns: Option<u64>,
    ) {
        if let Some(begun_ns) = begun_ns
            && let Some(server) = self.offloads.server(session, addr.server())
        {
            let now_ns = session.endpoint().now_ns();
            lock(&server.model).add_read(now_ns, now_ns.saturating_sub(begun_ns));
        }
    }

    /// What each memory server has done for this cache.
    pub(in crate::engines::dex) fn offload_servers(&self, session: &Session) -> Vec<OffloadServer> {
        let now_ns = session.endpoint().now_ns();
        let servers = self.offloads.servers.get().map_or(&[][..], |servers| servers);
        let of = |server: &Server| {
            let (read_ns, call_ns) = lock(&server.model).means(Work::Point, now_ns);
            let [calls, handler_ns] =
                [&server.calls, &server.handler_ns].map(|count| count.load(Ordering::Relaxed));
            OffloadServer { calls, handler_ns, read_ns, call_ns }
        };
        servers.iter().map(of).collect()
    }

    /// Whether a change that was offloaded may still happen, so that the table must not be given up.
    pub(in crate::engines::dex) fn check_settled(&self) -> Result<(), IndexError> {
        if self.offloads.unsettled.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        Err(IndexError::Unavailable(
            "a memory server has not answered yet whether it has changed a leaf: try again".into(),
        ))
    }

    /// Copies `key`'s value, as the memory server says, into `value`; `None` if it is to be fetched.
    ///
    /// Cost: 1 RPC, 1 READ for a value in a record.
    pub(in crate::engines::dex) async fn get_offloaded(
        self: &Arc<Self>,
        session: &Session,
        off: Off,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, IndexError> {
        let (operation, key) = (Operation::Get, key.to_vec());
        let room = RECORD_BYTES.max(self.layout().inline_value_max());
        let partition = Worker::Key;
        let question = Question { operation, key, value: Vec::new(), room, partition };
        let (answer, content) = match self.offload(session, off, question).await? {
            Some(answered) => answered,
            None => return Ok(None),
        };
        match answer.status {
            Status::Ok if answer.is_record => {
                let record = RecordRef { addr: u64_at(&content, 0), len: u64_at(&content, 8) };
                self.remote.read_record(session, record, value).await?;
                Ok(Some(true))
            }
            Status::Ok => {
                *value = content;
                Ok(Some(true))
            }
            _ => {
                value.clear();
                Ok(Some(false))
            }
        }
    }

    /// The pairs that `passage` wants next, as the memory server has them, and what ends them; `None` if it
    /// is to fetch.
    ///
    /// Cost: 1 RPC.
    pub(in crate::engines::dex) async fn scan_offloaded(
        self: &Arc<Self>,
        session: &Session,
        off: Off,
        passage: &Passage<'_>,
        wanted: usize,
    ) -> Result<Option<Gathered>, IndexError> {
        let (next, reverse) = passage.next();
        let (key, excluded) = match next {
            Next::End => (None, false),
            // The key that a descending scan goes on at may be the end of its range, and not in it.
            Next::At(key) => (Some(key), reverse && passage.leaves_out(key)),
            Next::After(key) => (Some(key), true),
        };
        let partition = match (key, excluded && !reverse) {
            (None, _) if reverse => Worker::Last,
            (None, _) => Worker::First,
            (Some(_), true) => Worker::Above,
            (Some(_), false) => Worker::Key,
        };
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let (from_end, far) = (key.is_none(), passage.far_end());
        let sweep = Sweep { reverse, excluded, from_end, wanted, far };
        if !sweep.fits(self.layout(), key.map_or(0, <[u8]>::len)) {
            return Ok(None);
        }
        let value = sweep.encode();
        let pairs = (wanted as usize).saturating_mul(Gathered::pair_bytes_max(self.layout()));
        let room = FOUND_BYTES + key_bytes_max(self.layout()) + pairs.min(SCAN_ROOM);
        let key = key.unwrap_or(&[]).to_vec();
        let question = Question { operation: Operation::Scan, key, value, room, partition };
        let node = off.addr();
        let Some((_, content)) = self.offload(session, off, question).await? else {
            return Ok(None);
        };
        match Gathered::decode(self.layout(), &content) {
            Some(found) => {
                self.stats.offload_scans.add();
                self.stats.offload_scan_pairs.add_many(found.count.into());
                Ok(Some(found))
            }
            None => Err(IndexError::Corrupt(format!(
                "the memory server's answer to a scan at node {node:#x} is not one of this table"
            ))),
        }
    }

    /// Whether a change may be offloaded at all.
    pub(in crate::engines::dex) fn wish_of(intent: &Intent<'_>) -> Option<Wish> {
        (intent.expected.is_none() && intent.record.is_none()).then_some(Wish::Change)
    }

    /// Has a leaf changed by its memory server; `None` if it is to be fetched. Whether it was changed
    /// stands beside the outcome.
    ///
    /// Cost: 1 RPC.
    pub(in crate::engines::dex) async fn change_offloaded(
        self: &Arc<Self>,
        session: &Session,
        off: Off,
        owned: OwnedIntent,
    ) -> Result<Option<(Outcome, bool)>, IndexError> {
        let intent = owned.intent();
        let operation = match (intent.value, intent.add, intent.change) {
            (None, ..) => Operation::Remove,
            (Some(_), true, true) => Operation::Upsert,
            (Some(_), true, false) => Operation::Insert,
            (Some(_), false, _) => Operation::Update,
        };
        let value = intent.value.map_or(Vec::new(), <[u8]>::to_vec);
        let (room, partition) = (0, Worker::Key);
        let question = Question { operation, key: owned.key, value, room, partition };
        let Some((answer, _)) = self.offload(session, off, question).await? else {
            return Ok(None);
        };
        let outcome = Outcome { existed: answer.existed, differs: false };
        Ok(Some((outcome, answer.status == Status::Ok)))
    }

    /// Asks and acts upon the answer, in a task that runs to its end. `None`: fetch.
    async fn offload(
        self: &Arc<Self>,
        session: &Session,
        off: Off,
        question: Question,
    ) -> Result<Option<(Answer, Vec<u8>)>, IndexError> {
        let (cache, session_too) = (Arc::clone(self), session.clone());
        let reads = off.reads();
        let task = async move { cache.offload_now(&session_too, off, question).await };
        match self.detach_within(session, task).await {
            Some(done) => done,
            None if reads => TimedOut::timed_out(),
            None => Err(unfinished_change()),
        }
    }

    async fn offload_now(
        self: &Arc<Self>,
        session: &Session,
        off: Off,
        question: Question,
    ) -> Result<Option<(Answer, Vec<u8>)>, IndexError> {
        let channel = if off.reads() { None } else { Channel::take(self) };
        if !off.reads() && channel.is_none() {
            return Ok(None);
        }
        let asked = self.ask(session, &off, &question, channel.as_ref()).await;
        let (answer, value) = match asked {
            Asked::Answered(answer, value) => (answer, value),
            Asked::Fetch => return Ok(None),
            Asked::Unknown(error) => {
                self.stats.offload_unknown.add();
                if !off.reads() {
                    self.settle_later(session, off, question.key);
                }
                return Err(error);
            }
        };
        let stats = &self.stats;
        let count = match answer.status {
            Status::Ok => &stats.offload_ok,
            Status::Absent => &stats.offload_absent,
            Status::Exists => &stats.offload_exists,
            Status::NeedSmo => &stats.offload_need_smo,
            Status::WrongFence => &stats.offload_wrong_fence,
            Status::CrossServer => &stats.offload_cross_server,
            Status::Busy => &stats.offload_busy,
            Status::NoSession | Status::Refused => &stats.offload_refused,
        };
        count.add();
        match answer.status {
            Status::Ok if !off.reads() => {
                // INV-DEX-OFF-5.
                self.forget_leaf(session, answer.leaf)?;
                Ok(Some((answer, value)))
            }
            Status::Ok | Status::Absent | Status::Exists => Ok(Some((answer, value))),
            _ => Ok(None),
        }
    }

    /// Sends a question until there is a definite answer, or none is to be had.
    async fn ask(
        &self,
        session: &Session,
        off: &Off,
        question: &Question,
        channel: Option<&Channel>,
    ) -> Asked {
        let Some(node) = GlobalAddr::from_word(off.addr()) else { return Asked::Fetch };
        let Some(server) = self.offloads.server(session, node.server()) else {
            return Asked::Fetch;
        };
        let (endpoint, reliable) = (session.endpoint(), session.reliable());
        let work = match question.operation {
            Operation::Scan => Work::Scan,
            _ => Work::Point,
        };
        let view = self.view();
        let (low, high) = view.map.range(match question.partition {
            Worker::Key => view.map.of(&question.key, false),
            Worker::Above => view.map.of(&question.key, true),
            Worker::First => 0,
            Worker::Last => view.map.count() - 1,
        });
        let mut trial = Trial::default();
        let mut grants = 0;
        let mut turned_away = 0;
        // It was sent under a session, and what became of it is not known: then it is sent under that
        // session only.
        let mut in_doubt = false;
        let mut granted = 0;
        loop {
            if channel.is_some() && !in_doubt {
                granted = server.session.load(Ordering::SeqCst);
            }
            let bytes = Ask {
                operation: question.operation,
                level: off.level,
                node: off.addr(),
                incarnation: endpoint.incarnation().0,
                session: granted,
                sequence: channel.map_or(0, |channel| channel.sequence),
                epoch: view.map.epoch,
                channel: channel.map_or(0, |channel| channel.number),
                layout: *self.layout(),
                key: &question.key,
                value: &question.value,
                low,
                high,
            }
            .encode();
            let mut request = reliable.buf(bytes.len());
            request.bytes_mut().copy_from_slice(&bytes);
            let (posting, begun_ns) = (reliable.posting(), endpoint.now_ns());
            let reply = reliable.buf(REPLY_BYTES + question.room);
            let called = session.client().rpc(node.server(), OFFLOAD_SERVICE, request, reply).await;
            let now_ns = endpoint.now_ns();
            let reply = match called {
                Ok(reply) => reply,
                Err(error) if matches!(error.kind, OpErrorKind::NoService { .. }) => {
                    lock(&server.model).is_absent(now_ns);
                    self.stats.offload_no_service.add();
                    return if in_doubt { Asked::Unknown(restarted(node)) } else { Asked::Fetch };
                }
                Err(error) => {
                    in_doubt |= granted != 0;
                    match reliable.again(&mut trial, posting, error).await {
                        Ok(()) => self.stats.offload_resent.add(),
                        Err(error) if in_doubt && error.kind != OpErrorKind::Fenced => {
                            return Asked::Unknown(IndexError::OutcomeUnknown(error.to_string()));
                        }
                        Err(error) => return Asked::Unknown(error.into()),
                    }
                    continue;
                }
            };
            let bytes = reply.window_bytes();
            let Some((answer, value)) = Answer::decode(bytes) else {
                // Another service, or another version of this one.
                lock(&server.model).is_absent(now_ns);
                self.stats.offload_refused.add();
                return if in_doubt { Asked::Unknown(restarted(node)) } else { Asked::Fetch };
            };
            server.calls.fetch_add(1, Ordering::Relaxed);
            server.handler_ns.fetch_add(u64::from(answer.handler_ns), Ordering::Relaxed);
            self.stats.offload_handler_ns.add_many(answer.handler_ns.into());
            match answer.status {
                Status::NoSession if in_doubt => {
                    // It has forgotten what it did.
                    server.session.store(answer.leaf, Ordering::SeqCst);
                    return Asked::Unknown(restarted(node));
                }
                Status::NoSession => {
                    // Of several that are granted at a time the first stays, as it is in use.
                    let at = &server.session;
                    let _ = at.compare_exchange(
                        granted,
                        answer.leaf,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    );
                    self.stats.offload_sessions.add();
                    grants += 1;
                    if grants > GRANTS_MAX {
                        return Asked::Fetch;
                    }
                    continue;
                }
                // Turned away: said before it was looked at, and whatever it is in answer to, an
                // earlier try may have been done.
                Status::Busy => {
                    lock(&server.model).is_busy(now_ns);
                    if !in_doubt {
                        return Asked::Answered(answer, Vec::new());
                    }
                    self.stats.offload_busy.add();
                    turned_away += 1;
                    if turned_away > TRIES_MAX {
                        let why = "a memory server turns every request away";
                        return Asked::Unknown(IndexError::OutcomeUnknown(why.into()));
                    }
                    endpoint.sleep(BUSY_WAIT_NS).await;
                    continue;
                }
                Status::Refused => lock(&server.model).is_absent(now_ns),
                _ if trial.in_doubt() => {}
                _ => lock(&server.model).add_call(work, now_ns, now_ns.saturating_sub(begun_ns)),
            }
            return Asked::Answered(answer, value.to_vec());
        }
    }

    /// A change may still happen: keeps the mark until it cannot any more, and drops what it may have
    /// made out of date. Nothing below the mark is merged away meanwhile, so no epoch has to be held.
    fn settle_later(self: &Arc<Self>, session: &Session, off: Off, key: Vec<u8>) {
        let cache = Arc::clone(self);
        cache.offloads.unsettled.fetch_add(1, Ordering::SeqCst);
        session.spawn(async move |session: Session| {
            let server = GlobalAddr::from_word(off.addr()).map(GlobalAddr::server);
            if let Some(server) = server {
                // It ends with an error only if this compute server has been cut off: then nothing
                // of it takes effect any more, and nothing else that it does.
                let _ = session.maintenance().settle(server).await;
            }
            for frame in cache.cooling.frames() {
                let ctl = cache.frames.ctl(frame);
                let addr = ctl.addr_word();
                let node = cache.frames.node(cache.layout(), frame);
                // The leaf's own frame stays as it is, and what others' look like does not matter.
                let is_it = ctl.level() == 0 && node.covers(&key) == Cover::Inside;
                if is_it && cache.cooling.remove(addr, frame) {
                    cache.stats.offload_invalidated.add();
                    cache.evict(frame, session.id());
                }
            }
            cache.offloads.unsettled.fetch_sub(1, Ordering::SeqCst);
            drop(off);
        });
    }

    /// Drops the cached copy of a leaf that was changed remotely, if there is one. It is Cooling, as no
    /// parent of it is cached, or being evicted by somebody else: then it has left its bucket, and
    /// nobody finds it any more.
    fn forget_leaf(&self, session: &Session, leaf: u64) -> Result<(), IndexError> {
        if leaf == 0 || leaf >> 63 != 0 {
            return self.must_succeed(Err(misled(leaf)));
        }
        let entry = self.map.get(leaf);
        let Some(Entry::Resident(frame)) = entry else { return Ok(()) };
        if self.cooling.remove(leaf, frame) {
            self.stats.offload_invalidated.add();
            self.evict(frame, session.id());
            return Ok(());
        }
        let is_hot = self.frames.ctl(frame).state() == State::Hot;
        // Under the mark it does not come back, so that it was this node's frame all the time.
        if is_hot && self.map.get(leaf) == entry {
            return self.must_succeed(Err(misled(leaf)));
        }
        Ok(())
    }
}

/// What waits before a change that may have been done is sent once more to a server that is busy.
const BUSY_WAIT_NS: u64 = 5_000;

fn restarted(node: GlobalAddr) -> IndexError {
    IndexError::OutcomeUnknown(format!(
        "memory server {} has been started anew while it changed a leaf",
        node.server()
    ))
}

fn misled(leaf: u64) -> IndexError {
    IndexError::Corrupt(format!(
        "INV-DEX-OFF-3: a memory server has changed the leaf at {leaf:#x}, which is in the cache"
    ))
}
