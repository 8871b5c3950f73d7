//! DEX: a B+-tree whose nodes a compute server caches, changes in its cache and writes back.
//!
//! After B. Lu, K. Huang, C. Liang, T. Wang, E. Lo: "DEX: Scalable Range Indexing on Disaggregated
//! Memory", PVLDB 17(10), 2024. Its ideas: *logical partitioning* gives every compute server ranges
//! of keys that it alone changes, so that leaves and low inner nodes need no remote locks and may be
//! cached dirty; *path-aware caching* keeps paths from the root down, with pointers swizzled to
//! frames, and chooses victims by sampling from the bottom up; *opportunistic offloading* sends an
//! operation to the memory server when that is cheaper than reading.
//!
//! This folder has the cache and the tree of compute servers that own ranges of a table's keys, one of
//! them all or several a part each, and the offloading. Remote memory holds `crates/index/src/blink`'s tree,
//! byte for byte: after [`Dex::close`] either engine can open it. `docs/design/dex.md` lists the
//! differences to the paper with their reasons, the costs, and the missing parts.
//!
//! | the folder's files | what |
//! |---|---|
//! | `walk` | the way down: optimistic lock coupling over swizzled pointers |
//! | `admission`, `keep` | misses: read, keep or stream; the root; which leaves are kept |
//! | `eviction` | sampling, write-back, cooling |
//! | `frames`, `mapping_table`, `cooling_map` (`cooling_queue`), `free_frames` | what the threads share |
//! | `ops` (`combine`), `scan` (`prefetch`), `bulk` | operations |
//! | `split`, `merge`, `heal` | changes of the tree's shape, and what a crash left of them |
//! | `partitions`, `member`, `gate`, `shared` | several compute servers: who owns what, joining and taking over, who may work on which keys now, inner nodes that cross bounds |
//! | `forward` | operations on others' keys, which [`crate::compute`] carries |
//! | `repartition`, `load` | ranges that change owners, by call or by load |
//! | `log`, `journal`, `ring`, `log_object`, `recover` | changes and images of nodes in pool memory, and what becomes of them after a death |
//! | `placement` | which memory server nodes lie on |
//! | `offload` | operations that the memory server does |
//! | `flush`, `verify` | the whole of it |
//! | `options` | settings by which one compute server opens a table |
//! | `stored` | a table as one of several engines': opened once in each member, or not at all |
//!
//! Invariants `INV-DEX-*` stand in these files; `docs/design/dex.md` lists them.

mod admission_policy;
mod bulk;
mod combine;
mod cooling_map;
mod cooling_queue;
mod eviction;
mod flush;
mod forward;
mod frames;
mod free_frames;
mod heal;
mod index;
mod journal;
mod load;
mod log;
mod log_object;
mod mapping_table;
mod member;
mod merge;
mod miss;
pub mod offload;
mod op_counters;
mod ops;
mod options;
mod partitions;
mod placement;
mod prefetch;
mod range_guard;
mod recover;
mod repartition;
mod ring;
mod scan;
mod shared;
mod split;
mod stats;
mod stored;
mod verify;
mod walk;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farleaf_fabric::{Endpoint, GlobalAddr, OpError, OpKind};
use farleaf_pool::{PoolError, Session};

use crate::IndexError;
use crate::blink::BlinkOptions;
use crate::blink::remote::{RemoteTree, TimedOut};
use crate::bnode::Layout;
pub use crate::compute::{MoveError, PartLoad};
use crate::drops::retire_all;
use crate::index::TableReport;
use crate::local::{Combiner, ParkingLot, Version};
use crate::retry::backoff;
use crate::walk::Collector;
use admission_policy::Ghosts;
pub use admission_policy::{Admission, UnknownAdmission};
use combine::Combined;
use cooling_map::CoolingMap;
pub use forward::Owner;
use frames::Frames;
use free_frames::FreeFrames;
use log::Log;
pub use log::{Durability, UnknownDurability};
use mapping_table::{Entry, MappingTable};
use member::Part;
pub use member::{JoinOptions, Take};
use miss::IoMark;
use offload::{Off, OffloadServer, Offloads, Wish};
use ops::OwnedIntent;
pub use options::DexOptions;
use partitions::create_map;
pub use partitions::{equal_width, sampled};
pub use repartition::{Balance, BalanceOptions, Balancer, Decision, MoveOptions};
pub use stats::DexStats;
use stats::{Cause, Stats};
use stored::walk_stored;
use walk::{Seek, Spot, Walk};

/// Fewest frames of a cache.
const FRAMES_MIN: u64 = 8;
/// Most frames: their numbers have 32 bits, and the last is taken.
const FRAMES_MAX: u64 = 1 << 31;
/// Steps of one operation before it gives up.
const TURNS_MAX: u32 = 100_000;
/// OpContext that follow each other at once, then those that only let other tasks run.
const RESTARTS_QUICK: u32 = 16;
const RESTARTS_YIELDING: u32 = 64;

/// Whose the tree is.
const UNOWNED: u8 = 0;
const OWNED: u8 = 1;
const CLOSED: u8 = 2;
const BROKEN: u8 = 3;

/// A table of this engine and this compute server's cache of it, for all its threads. Clones share it.
///
/// What an acknowledged change survives is [`DexOptions::durability`]. Where that is *volatile*, changes
/// are in this compute server's memory until [`Dex::flush`] or [`Dex::close`], or until their node is
/// evicted; its death loses the others, whether they were acknowledged or not.
#[derive(Clone, Debug)]
pub struct Dex(Arc<Cache>);

#[derive(Debug)]
struct Cache {
    remote: RemoteTree,
    /// Which keys it serves.
    part: Part,
    options: DexOptions,
    frames: Frames,
    map: MappingTable,
    cooling: CoolingMap,
    free: FreeFrames,
    lot: ParkingLot,
    /// Changes that wait for a frame's latch.
    combiner: Combiner<OwnedIntent, Combined>,
    /// Keys of gets that wait for a leaf that somebody reads and does not keep, and their values.
    shared_reads: Combiner<Vec<u8>, Option<Vec<u8>>>,
    /// Leaves that were missed of late, if that counts.
    ghosts: Option<Ghosts>,
    stats: Stats,
    log: Log,
    offloads: Offloads,
    /// Entries of a leaf as the last scan found them; 0 before the first. A hint.
    leaf_entries: AtomicUsize,
    ownership: AtomicU8,
    /// Why nothing works any more.
    broken: Mutex<String>,
}

/// Why an attempt did not come to an end.
#[derive(Debug)]
enum Fail {
    /// Something changed: walk again.
    Restart,
    /// No frame was to be had.
    NoFrame,
    /// It failed for good.
    Error(IndexError),
}

impl From<IndexError> for Fail {
    fn from(error: IndexError) -> Self {
        Fail::Error(error)
    }
}

impl From<OpError> for Fail {
    fn from(error: OpError) -> Self {
        Fail::Error(error.into())
    }
}

impl From<PoolError> for Fail {
    fn from(error: PoolError) -> Self {
        Fail::Error(error.into())
    }
}

impl<T> TimedOut for Result<T, Fail> {
    fn timed_out() -> Self {
        let error: Result<T, IndexError> = TimedOut::timed_out();
        error.map_err(Fail::Error)
    }
}

/// What a search through the cache has found.
#[derive(Debug)]
enum Found {
    /// The node, Hot.
    Spot(Spot),
    /// The node is not cached and not to be kept: its claim.
    Missing(IoMark),
    /// A node on the way to it is not cached, and the memory server is to do the rest.
    Offload(Off),
    /// Somebody else is at work on the node with that address, and nobody has waited for it yet.
    Awaited(u64),
    /// The tree has no such level.
    TooLow,
}

/// Counts attempts at one operation and spaces them out.
#[derive(Debug, Default)]
struct OpContext {
    count: u32,
    turns: u32,
    /// The next leaf that is missed is kept.
    keep: bool,
    /// No frame could be had for it, so it is not.
    no_frame: bool,
    /// What may be offloaded.
    wish: Option<Wish>,
    /// A leaf that is missed is the caller's to read, whether it is to be kept or not.
    ahead: bool,
    /// Where somebody else is at work on a node, waiting is the caller's.
    joins: bool,
    /// What it reads nodes for.
    cause: Cause,
}

impl OpContext {
    /// Of an operation that may be offloaded.
    fn wishing(wish: Option<Wish>) -> Self {
        OpContext { wish, ..OpContext::default() }
    }

    /// Of a get.
    fn getting() -> Self {
        OpContext { wish: Some(Wish::Read), joins: true, ..OpContext::default() }
    }

    /// Of a scan, which reads ahead or does not, and may be offloaded or not.
    fn scanning(ahead: bool, wish: Option<Wish>) -> Self {
        OpContext { ahead, wish, cause: Cause::Scan, ..OpContext::default() }
    }

    /// Nothing of it is offloaded any more (`INV-DEX-OFF-6`).
    fn fetch(&mut self) {
        self.wish = None;
    }

    /// As [`OpContext::fetch`], as it was told by a memory server, or could not be asked.
    fn fall_back(&mut self) {
        self.fetch();
        self.cause = Cause::Fallback;
    }

    /// The leaf must be cached for what comes next.
    fn keep(&mut self) {
        self.keep = true;
        self.fetch();
    }

    /// One step more.
    fn turn(&mut self) -> Result<(), IndexError> {
        self.turns += 1;
        if self.turns <= TURNS_MAX {
            return Ok(());
        }
        Err(IndexError::Unavailable(format!(
            "gave up after {TURNS_MAX} steps through the cache: it may be too small for so many \
             operations at once"
        )))
    }

    /// Before one more attempt: waits when there were many.
    async fn again(&mut self, cache: &Cache, session: &Session) -> Result<(), IndexError> {
        self.turn()?;
        self.count += 1;
        cache.stats.restarts.add();
        if self.count > RESTARTS_YIELDING {
            backoff(session, self.count - RESTARTS_YIELDING).await;
        } else if self.count > RESTARTS_QUICK {
            session.endpoint().yield_now().await;
        }
        Ok(())
    }

    /// As [`OpContext::again`], because of `fail`, if that is nothing final.
    async fn after(
        &mut self,
        fail: Fail,
        cache: &Cache,
        session: &Session,
    ) -> Result<(), IndexError> {
        match fail {
            Fail::Restart => self.again(cache, session).await,
            Fail::NoFrame => {
                self.no_frame = true;
                // Others have to finish first.
                self.count = self.count.max(RESTARTS_YIELDING);
                self.again(cache, session).await
            }
            Fail::Error(error) => Err(error),
        }
    }
}

impl Dex {
    /// Makes the remote structure of an empty table, with an ownership map of one partition that nobody
    /// owns; returns the address of its meta object. Its nodes are spread until it is opened with offloading.
    ///
    /// Cost: 1 CAS, 4 WRITEs, 5 round trips.
    ///
    /// # Errors
    /// `Full` if the pool has no room; `Invalid` if nodes are too large for redo records.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        let meta = RemoteTree::create(session, layout).await?;
        let remote = RemoteTree::open(meta, *layout, BlinkOptions::default());
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&remote, session).await?;
        Ok(meta)
    }

    /// As [`Dex::create`], with subtrees of a height that stay together from the beginning: nodes of
    /// `subtree_level` and all below them on one memory server, as long as it has room. Higher ones can be offloaded at from further up, lower ones
    /// spread smaller tables over more servers.
    ///
    /// # Errors
    /// As [`Dex::create`]; `Invalid` if it is more than 30.
    pub async fn create_placed(
        session: &Session,
        layout: &Layout,
        subtree_level: u8,
    ) -> Result<GlobalAddr, IndexError> {
        placement::check_level(subtree_level)?;
        let meta = Dex::create(session, layout).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        placement::place_table(session, meta, subtree_level).await?;
        Ok(meta)
    }

    /// Cuts the table into one partition more than there are `bounds`, which are inclusive upper
    /// bounds, ascending, of the partitions but the last; and closes it. From then on each partition
    /// has nobody until a compute server that opens the table takes it. No operation may be running.
    ///
    /// Cost: a split for each bound, a flush, a change of the map.
    ///
    /// # Errors
    /// `Invalid` for bounds that are no keys of the table or do not ascend, or a table that has several
    /// partitions already; `Unavailable` if another compute server has it. The table is as it was.
    pub async fn partition(&self, session: &Session, bounds: &[Vec<u8>]) -> Result<(), IndexError> {
        let (moving, old) = self.close_whole(session).await?;
        if !old.is_empty() {
            return Err(IndexError::Invalid(format!(
                "this is done before a table is partitioned, and this one has {} partitions",
                old.len() + 1
            )));
        }
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.partition(session, bounds, moving).await?;
        session.pool().let_go(self.meta(), &self.0);
        Ok(())
    }

    fn with(
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        part: Part,
    ) -> Result<Self, IndexError> {
        options.check(&layout)?;
        let frames = options.cache_bytes / layout.node_bytes() as u64;
        let frames = frames.min(FRAMES_MAX) as usize;
        let remote_options = BlinkOptions {
            bulk_fill: options.bulk_fill,
            merge_low: options.merge_low,
            merge_sum: options.merge_sum,
            ..BlinkOptions::default()
        };
        Ok(Dex(Arc::new(Cache {
            frames: Frames::new(&layout, frames)?,
            map: MappingTable::new(frames),
            cooling: CoolingMap::new(frames, options.cooling_ratio, options.single_queue),
            free: FreeFrames::new(frames),
            lot: ParkingLot::new(64),
            combiner: Combiner::new(64),
            shared_reads: Combiner::new(64),
            ghosts: (options.admission == Admission::Again).then(|| Ghosts::new(frames)),
            stats: Stats::default(),
            offloads: Offloads::default(),
            leaf_entries: AtomicUsize::new(0),
            ownership: AtomicU8::new(UNOWNED),
            broken: Mutex::default(),
            remote: RemoteTree::open(meta, layout, remote_options),
            part,
            log: Log::new(&options),
            options,
        })))
    }

    /// Where its meta object is.
    pub fn meta(&self) -> GlobalAddr {
        self.0.remote.meta()
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        self.0.layout()
    }

    /// How it was opened.
    pub fn options(&self) -> &DexOptions {
        &self.0.options
    }

    /// What the cache has done so far.
    pub fn stats(&self) -> DexStats {
        self.0.stats.get()
    }

    /// What each memory server has done for this cache; empty as long as nothing was offloaded.
    pub fn offload_servers(&self, session: &Session) -> Vec<OffloadServer> {
        self.0.offload_servers(session)
    }

    /// Writes all changed nodes back. What was acknowledged before the call is in remote memory after.
    ///
    /// Cost: 1 WRITE for each changed node.
    ///
    /// # Errors
    /// As any operation; what could not be written is still in the cache.
    pub async fn flush(&self, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.flush(session).await
    }

    /// Closes the table in this member of the pool: writes everything back and gives up what this compute
    /// server owns. No operation may be running; later ones fail with `Closed`.
    ///
    /// Cost: that of a flush, and a change of the map.
    ///
    /// # Errors
    /// As [`Dex::flush`]; the table is then still open.
    pub async fn close(&self, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.close(session).await?;
        session.pool().let_go(self.meta(), &self.0);
        Ok(())
    }

    /// What is wrong in the cache, each with its invariant; empty if all is well. Meant for a moment
    /// at which no operation runs.
    pub fn check_cache(&self) -> Vec<String> {
        self.0.check_cache()
    }

    /// Frees everything that the table consists of, the meta object included. Nobody may use the
    /// table any more.
    ///
    /// # Errors
    /// As [`crate::Index::verify`].
    pub async fn destroy(&self, session: &Session) -> Result<(), IndexError> {
        if self.0.ownership() == OWNED {
            // Records that only dirty leaves refer to are found in remote memory then.
            self.flush(session).await?;
        }
        self.0.set_ownership(CLOSED);
        let mut collector = Collector::new(None);
        {
            let _pin = session.begin(OpKind::Other).await?;
            walk_stored(&self.0.remote, session, &mut collector, &mut TableReport::default())
                .await?;
        }
        // Another table may come to lie there.
        session.pool().let_go(self.meta(), &self.0);
        retire_all(session, collector.finish()?).await
    }
}

impl Cache {
    #[inline]
    fn layout(&self) -> &Layout {
        self.remote.layout()
    }

    fn ownership(&self) -> u8 {
        self.ownership.load(Ordering::Acquire)
    }

    fn set_ownership(&self, ownership: u8) {
        self.ownership.store(ownership, Ordering::Release);
    }

    #[inline]
    fn check_open(&self) -> Result<(), IndexError> {
        if self.ownership() <= OWNED { Ok(()) } else { Err(self.closed()) }
    }

    #[cold]
    fn closed(&self) -> IndexError {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        IndexError::Closed(match broken.as_str() {
            "" => "the table has been closed".into(),
            why => format!("the table must be opened anew: {why}"),
        })
    }

    /// A change of the tree's shape has begun in remote memory and must not stop half way: if it did,
    /// cache and remote memory do not fit together any more.
    fn must_succeed(&self, done: Result<(), IndexError>) -> Result<(), IndexError> {
        done.map_err(|error| {
            let text = error.to_string();
            *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = text.clone();
            self.set_ownership(BROKEN);
            IndexError::OutcomeUnknown(text)
        })
    }

    fn no_level(&self) -> IndexError {
        IndexError::Corrupt(format!(
            "the table at {} has lost its lowest level",
            self.remote.meta()
        ))
    }

    /// What waiters for a frame's latch wait under. No address has bit 63.
    fn frame_key(frame: u32) -> u64 {
        1 << 63 | u64::from(frame)
    }

    /// Releases X and wakes who waits for the latch.
    fn release_x(&self, frame: u32) {
        self.frames.ctl(frame).latch.release_x();
        self.lot.unpark(Self::frame_key(frame));
    }

    /// Waits until nobody holds the latch.
    async fn wait_for_frame(&self, frame: u32) {
        let latch = &self.frames.ctl(frame).latch;
        self.lot.park(Self::frame_key(frame), || !latch.is_held()).await;
    }

    /// Waits until nobody works on the node at `addr`.
    async fn wait_for_node(&self, addr: u64) {
        self.lot.park(addr, || !self.is_worked_on(addr)).await;
    }

    /// Whether somebody is at work on the node at `addr` remotely.
    fn is_worked_on(&self, addr: u64) -> bool {
        matches!(self.map.get(addr), Some(Entry::Io | Entry::OffX | Entry::OffS(_)))
    }

    /// Waits until no child of a frame is on its way; the caller holds SX, so that no new one comes.
    /// Gives up after a while.
    async fn drain_pins(&self, session: &Session, frame: u32) -> bool {
        for attempt in 0..64 {
            if self.frames.ctl(frame).pins() == 0 {
                return true;
            }
            backoff(session, attempt).await;
        }
        false
    }

    /// Finds the Hot node of `level` that `seek` wants, reading what is not cached on the way. A leaf
    /// that is missed and not to be kept is given as such if `may_stream`.
    ///
    /// Cost: 1 READ for each level that is not cached.
    async fn find(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        level: u8,
        may_stream: bool,
        restarts: &mut OpContext,
    ) -> Result<Found, IndexError> {
        loop {
            self.check_open()?;
            let failed = match self.walk(seek, level) {
                Walk::At(spot) => return Ok(Found::Spot(spot)),
                Walk::TooLow => return Ok(Found::TooLow),
                Walk::Miss(mut claim) => {
                    claim.cause = restarts.cause;
                    if let Some(wish) = restarts.wish
                        && self.offloads(session, &claim, wish)
                    {
                        return Ok(Found::Offload(Off::of(claim, wish.reads())));
                    }
                    let streams = claim.level == 0 && may_stream && !restarts.keep;
                    if streams
                        && (restarts.ahead
                            || restarts.no_frame
                            || !self.admits(session, claim.addr))
                    {
                        return Ok(Found::Missing(claim));
                    }
                    // Boxed, as all that goes to the fabric from here: futures of operations stay small.
                    Box::pin(self.load(session, claim)).await
                }
                Walk::NoRoot => Box::pin(self.load_root(session)).await,
                Walk::Wait(addr) => {
                    self.stats.waits.add();
                    if restarts.joins {
                        return Ok(Found::Awaited(addr));
                    }
                    self.wait_for_node(addr).await;
                    Ok(())
                }
                Walk::Readers { addr, parent, version, level } => {
                    if restarts.wish.is_some_and(|wish| wish.joins(level))
                        && let Some(off) = Off::join(self, addr, parent, version, level)
                    {
                        self.stats.offload_joined.add();
                        return Ok(Found::Offload(off));
                    }
                    self.stats.waits.add();
                    self.wait_for_node(addr).await;
                    Ok(())
                }
                Walk::Busy(frame) => {
                    self.wait_for_frame(frame).await;
                    Ok(())
                }
                Walk::Again => Err(Fail::Restart),
                Walk::Heal(heal) => {
                    let (cache, task_session) = (Arc::clone(self), session.clone());
                    let healing = async move { cache.heal(&task_session, heal).await };
                    Box::pin(self.detach(session, healing)).await
                }
                Walk::Astray(addr) => {
                    return Err(IndexError::Corrupt(format!(
                        "the cached node at {addr:#x} of the table at {} does not cover what its \
                         parent says",
                        self.remote.meta()
                    )));
                }
            };
            match failed {
                Ok(()) => restarts.turn()?,
                Err(fail) => restarts.after(fail, self, session).await?,
            }
        }
    }

    /// Names `root` in the root word.
    async fn publish_root(
        &self,
        session: &Session,
        root: GlobalAddr,
        level: u8,
    ) -> Result<(), IndexError> {
        let (at, word) = self.remote.root_word(root, level);
        let mut buf = session.client().buf(8);
        buf.words_mut()[0] = word;
        self.write_surely(session, at, buf, 0).await?;
        self.remote.forget_root();
        Ok(())
    }
}
