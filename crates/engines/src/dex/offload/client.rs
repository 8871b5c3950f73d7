//! Offload client: decides to offload an operation, sends it, and handles the reply.

use std::sync::{Arc, OnceLock};

use farleaf_fabric::{Endpoint, GlobalAddr, OpErrorKind, ServerId};
use farleaf_index::IndexError;
use farleaf_index::bnode::Cover;
use farleaf_index::compute::ownership::View;
use farleaf_index::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use farleaf_pool::{Session, Tries};

use super::channels::{Channel, Channels};
use super::handler::OFFLOAD_SERVICE;
use super::mark::OffloadMark;
use super::model::{Choice, CostModel, Offload, OffloadWork};
use super::range::LEAVES_MAX;
use super::wire::{OffloadReply, OffloadRequest, Operation, REPLY_BYTES, Status};
use crate::dex::DexOptions;
use crate::dex::cache::{FrameState, IoMark, Mapping, PageCache, share_of};
use crate::dex::change::LeafChange;
use crate::dex::stats::Stats;

/// Sessions that one operation may be granted before it fetches.
const GRANTS_MAX: u32 = 3;
/// Times that a server may turn away a change that it may have done.
const TRIES_MAX: u32 = 10_000;

/// An operation that a memory server may execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offloadable {
    Get,
    Change,
    /// A scan that probably wants so many leaves.
    Scan(usize),
}

impl Offloadable {
    /// Returns the change as one that may be offloaded, unless it expects a value or brings a record.
    pub(crate) fn of(change: &LeafChange<'_>) -> Option<Self> {
        (change.expected.is_none() && change.record.is_none()).then_some(Offloadable::Change)
    }

    pub(crate) fn reads(self) -> bool {
        self != Offloadable::Change
    }

    /// Returns whether it may run at a node of `level` where others read. For a leaf alone, a scan gains
    /// nothing over a READ.
    pub(crate) fn joins(self, level: u8) -> bool {
        match self {
            Offloadable::Get => true,
            Offloadable::Change => false,
            Offloadable::Scan(_) => level > 0,
        }
    }
}

/// The state of one memory server, as this compute server knows it.
#[derive(Debug, Default)]
struct ServerState {
    model: Mutex<CostModel>,
    /// The session that it has granted, 0 if none.
    session: AtomicU64,
    calls: AtomicU64,
    handler_ns: AtomicU64,
}

/// The requests that one memory server executed for a compute server, and the time that they take.
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

/// One compute server's side of offloading for a table.
#[derive(Debug)]
pub(crate) struct Offloads {
    options: DexOptions,
    /// One for each memory server, once their number is known.
    servers: OnceLock<Box<[ServerState]>>,
    pub(super) channels: Mutex<Channels>,
    /// Changes whose outcome is not known and that may still happen.
    unsettled: AtomicUsize,
    pages: Arc<PageCache>,
    stats: Arc<Stats>,
}

/// A request, for a task that may outlive its caller.
pub(crate) struct Question {
    pub(crate) operation: Operation,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Bytes that a reply may have beside its head.
    pub(crate) room: usize,
    pub(crate) partition: Target,
}

/// The partition that a request concerns.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// The key's.
    Key,
    /// That of the place just above the key.
    Above,
    First,
    Last,
}

/// The result of asking.
pub(crate) enum Asked {
    /// A definite reply, and the value that came with it.
    Answered(OffloadReply, Vec<u8>),
    /// Nothing was done, and the operation fetches.
    Fetch,
    /// It may have been done.
    Unknown(IndexError),
}

impl Offloads {
    pub(crate) fn new(options: &DexOptions, pages: Arc<PageCache>, stats: Arc<Stats>) -> Self {
        Offloads {
            options: *options,
            servers: OnceLock::new(),
            channels: Mutex::default(),
            unsettled: AtomicUsize::new(0),
            pages,
            stats,
        }
    }

    fn server(&self, session: &Session, server: ServerId) -> Option<&ServerState> {
        let servers = 0..session.endpoint().server_count();
        let states = || servers.map(|_| ServerState::default()).collect();
        self.servers.get_or_init(states).get(server.index())
    }

    /// Decides whether an operation that missed the node of `mark` is offloaded, in a table whose subtrees
    /// lie on one memory server up to level `subtree_level`.
    pub(crate) fn chooses(
        &self,
        session: &Session,
        mark: &IoMark,
        work: Offloadable,
        subtree_level: Option<u8>,
    ) -> bool {
        let options = &self.options;
        let mode = options.offload;
        // Above the subtree level the way goes on elsewhere.
        let top = subtree_level.unwrap_or(u8::MAX).min(options.offload_level);
        if mode == Offload::Never
            || mark.level > top
            || (mark.level == 0 && !options.offload_leaf_miss)
            || mark.shared
            || (mark.level == 0 && matches!(work, Offloadable::Scan(_)))
        {
            return false;
        }
        // Without that capability a handler may miss earlier WRITEs, and nothing else makes them visible.
        if !session.endpoint().capabilities().cpu_visible {
            self.stats.offload_blind.add();
            return false;
        }
        let Some(server) = self.server(session, mark.addr().server()) else {
            return false;
        };
        let now_ns = session.endpoint().now_ns();
        let mut model = lock(&server.model);
        if !model.is_open(now_ns) {
            return false;
        }
        let random = || share_of(session.endpoint().random());
        let choice = match mode {
            Offload::Never => Choice { offload: false, explores: false },
            Offload::Always => Choice { offload: true, explores: false },
            Offload::Ratio(share) => Choice { offload: random() < share, explores: false },
            Offload::Adaptive => {
                let path = u32::from(mark.level) + 1;
                let (kind, reads) = match work {
                    Offloadable::Get | Offloadable::Change => (OffloadWork::Point, path),
                    // Further leaves are read several at a time.
                    Offloadable::Scan(leaves) => {
                        let leaves = leaves.clamp(1, LEAVES_MAX.into()) - 1;
                        let more = leaves.div_ceil(1 + options.scan_prefetch);
                        (OffloadWork::Scan, path + more as u32)
                    }
                };
                model.decide(kind, reads, now_ns, random())
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

    /// Returns the time if the cost model measures the READ of a node that begins now.
    pub(crate) fn begin_read(&self, session: &Session) -> Option<u64> {
        (self.options.offload == Offload::Adaptive).then(|| session.endpoint().now_ns())
    }

    /// Measures the READ of a node that began at `begun_ns`.
    pub(crate) fn note_read(&self, session: &Session, addr: GlobalAddr, begun_ns: Option<u64>) {
        if let Some(begun_ns) = begun_ns
            && let Some(server) = self.server(session, addr.server())
        {
            let now_ns = session.endpoint().now_ns();
            lock(&server.model).add_read(now_ns, now_ns.saturating_sub(begun_ns));
        }
    }

    /// Returns the work of each memory server for this compute server.
    pub(crate) fn server_reports(&self, session: &Session) -> Vec<OffloadServer> {
        let now_ns = session.endpoint().now_ns();
        let servers = self.servers.get().map_or(&[][..], |servers| servers);
        let of = |server: &ServerState| {
            let (read_ns, call_ns) = lock(&server.model).means(OffloadWork::Point, now_ns);
            let [calls, handler_ns] =
                [&server.calls, &server.handler_ns].map(|count| count.load(Ordering::Relaxed));
            OffloadServer { calls, handler_ns, read_ns, call_ns }
        };
        servers.iter().map(of).collect()
    }

    /// Fails if an offloaded change may still happen: then the table must not be given up.
    pub(crate) fn check_settled(&self) -> Result<(), IndexError> {
        if self.unsettled.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        Err(IndexError::Unavailable(
            "a memory server has not answered yet whether it has changed a leaf: try again".into(),
        ))
    }

    /// Sends a question until there is a definite answer, or none is to be had.
    pub(in crate::dex) async fn ask(
        &self,
        session: &Session,
        mark: &OffloadMark,
        question: &Question,
        view: &View,
        channel: Option<&Channel>,
    ) -> Asked {
        let Some(node) = GlobalAddr::from_word(mark.addr()) else { return Asked::Fetch };
        let Some(server) = self.server(session, node.server()) else {
            return Asked::Fetch;
        };
        let (endpoint, reliable) = (session.endpoint(), session.reliable());
        let work = match question.operation {
            Operation::Scan => OffloadWork::Scan,
            _ => OffloadWork::Point,
        };
        let (low, high) = view.map.range(match question.partition {
            Target::Key => view.map.of(&question.key, false),
            Target::Above => view.map.of(&question.key, true),
            Target::First => 0,
            Target::Last => view.map.count() - 1,
        });
        let mut tries = Tries::default();
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
            let bytes = OffloadRequest {
                operation: question.operation,
                level: mark.level,
                node: mark.addr(),
                incarnation: endpoint.incarnation().0,
                session: granted,
                sequence: channel.map_or(0, |channel| channel.sequence),
                epoch: view.map.epoch,
                channel: channel.map_or(0, |channel| channel.number),
                layout: *self.pages.layout(),
                key: &question.key,
                value: &question.value,
                low,
                high,
            }
            .encode();
            let mut request = reliable.buf(bytes.len());
            request.bytes_mut().copy_from_slice(&bytes);
            let (mark, begun_ns) = (reliable.post_mark(), endpoint.now_ns());
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
                    match reliable.again(&mut tries, mark, error).await {
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
            let Some((answer, value)) = OffloadReply::decode(bytes) else {
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
                    // The server has forgotten its replies.
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
                _ if tries.in_doubt() => {}
                _ => lock(&server.model).add_call(work, now_ns, now_ns.saturating_sub(begun_ns)),
            }
            return Asked::Answered(answer, value.to_vec());
        }
    }

    /// Keeps the mark of a change that may still happen until it cannot any more, and drops the copies that
    /// the change may have made out of date. Nothing below the mark is merged away meanwhile, so the task
    /// holds no epoch.
    pub(crate) fn settle_later(
        self: &Arc<Self>,
        session: &Session,
        mark: OffloadMark,
        key: Vec<u8>,
    ) {
        let offloads = Arc::clone(self);
        offloads.unsettled.fetch_add(1, Ordering::SeqCst);
        session.spawn(async move |session: Session| {
            let server = GlobalAddr::from_word(mark.addr()).map(GlobalAddr::server);
            if let Some(server) = server {
                // It ends with an error only if this compute server has been cut off: then neither the
                // change nor anything else of it takes effect any more.
                let _ = session.maintenance().settle(server).await;
            }
            let pages = &offloads.pages;
            for frame in pages.cooling_frames() {
                let ctl = pages.frames.ctl(frame);
                let addr = ctl.addr_word();
                let node = pages.frames.node(pages.layout(), frame);
                // The leaf's own frame stays as it is; other frames may change under this look.
                let is_it = ctl.level() == 0 && node.covers(&key) == Cover::Inside;
                if is_it && pages.drop_cooling(addr, frame, session.id()) {
                    offloads.stats.offload_invalidated.add();
                }
            }
            offloads.unsettled.fetch_sub(1, Ordering::SeqCst);
            drop(mark);
        });
    }

    /// Drops the cached copy of a leaf that a memory server changed, if there is one. The copy is Cooling, as
    /// no parent of it is cached, or another thread is evicting it: then it has left its bucket, and
    /// nobody finds it any more.
    ///
    /// # Errors
    /// `Corrupt` if the leaf cannot be the one that was changed (`INV-DEX-OFF-3`).
    pub(crate) fn drop_copy(&self, session: &Session, leaf: u64) -> Result<(), IndexError> {
        if leaf == 0 || leaf >> 63 != 0 {
            return Err(misled(leaf));
        }
        let pages = &self.pages;
        let entry = pages.map.get(leaf);
        let Some(Mapping::Resident(frame)) = entry else { return Ok(()) };
        if pages.drop_cooling(leaf, frame, session.id()) {
            self.stats.offload_invalidated.add();
            return Ok(());
        }
        let is_hot = pages.frames.ctl(frame).state() == FrameState::Hot;
        // Under the mark the leaf does not come back, so the frame was this node's all the time.
        if is_hot && pages.map.get(leaf) == entry {
            return Err(misled(leaf));
        }
        Ok(())
    }
}

/// Nanoseconds before a change that may have been done is sent once more to a server that is busy.
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
