//! Misses: read a node from remote memory, and decide whether the cache admits it.
//!
//! - `INV-DEX-IO` A node is read from, and a leaf that is not cached written to, remote memory only
//!   under the `Io` mark of its address. So no two tasks of this compute server work on one node
//!   remotely, and only the first that misses it reads it.
//! - `INV-DEX-PTR` Bit 63, which marks a pointer to a frame, is in no word of remote memory.
//!   Looked at before every WRITE of a page, and after every READ.
//! - `INV-DEX-PIN` A mark holds a pin on the parent's frame: the parent stays Hot, and keeps
//!   the child, as long as the mark is there.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr};
use farleaf_pool::Session;

use super::admission_policy::Admission;
use super::eviction::OwnedFrame;
use super::frames::{State, TOP};
use super::mapping_table::Entry;
use crate::IndexError;
use crate::bnode::{Cover, Kind, Node, Stored};
use crate::engines::dex::stats::Cause;
use crate::engines::dex::tree::Unfinished;
use crate::engines::dex::{Cache, Fail};
use crate::local::{Ended, Version};

/// READs of one node whose checksum does not fit before it counts as damaged. Nobody writes an
/// exclusive node while it is read, so this is never needed but after a crash.
const READS_MAX: u32 = 3;

/// The right and the duty to see to a node that is not cached: the `Io` mark and the pin on its
/// parent. Dropped, both are given back.
#[derive(Debug)]
pub(crate) struct IoMark {
    pub(crate) cache: Arc<Cache>,
    pub(crate) addr: u64,
    pub(crate) parent: u32,
    /// The node's level.
    pub(crate) level: u8,
    /// Others may change the node, or the parent, which may then be out of date.
    pub(crate) shared: bool,
    shared_parent: bool,
    /// The range that the parent gives it.
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    /// What it is read for.
    pub(crate) cause: Cause,
    pub(crate) armed: bool,
}

/// How a node looks to the parent that led to it.
pub(crate) enum Arrival {
    /// As it must.
    Fits,
    /// It was split and the parent does not know.
    Unfinished(Unfinished),
    /// It has taken in its right neighbour and the parent does not know.
    Absorbed(Vec<u8>),
}

impl IoMark {
    /// Marks a node that has no entry, below a parent that was Hot at `version`.
    pub(crate) fn take(
        cache: &Arc<Cache>,
        addr: u64,
        parent: u32,
        version: Version,
        level: u8,
        low: Option<Vec<u8>>,
        high: Option<Vec<u8>>,
    ) -> Option<IoMark> {
        if cache.map.claim(addr, Entry::Io).is_err() {
            return None;
        }
        if !cache.frames.pin(parent, version) {
            cache.map.exchange(addr, Some(Entry::Io), None);
            cache.lot.unpark(addr);
            return None;
        }
        // What is missed below it, too, is a use of a node.
        if parent != TOP {
            cache.frames.note_use(parent);
        }
        let shared_parent = cache.frames.ctl(parent).is_shared();
        // Below an exclusive parent it is exclusive still (INV-DEX-SHARED-3), also if a range is just
        // being given away: the parent is pinned, and becomes shared before it.
        let shared = shared_parent && cache.crosses_bounds(low.as_deref(), high.as_deref());
        let cache = Arc::clone(cache);
        let (cause, armed) = (Cause::Descent, true);
        Some(IoMark { cache, addr, parent, level, shared, shared_parent, low, high, cause, armed })
    }

    /// The node.
    pub(crate) fn addr(&self) -> GlobalAddr {
        GlobalAddr::from_word(self.addr).unwrap_or(GlobalAddr::NULL)
    }

    /// The node is in `frame` now, which is filled: makes it the parent's child, or leaves it
    /// Cooling if somebody holds the parent.
    fn settle(mut self, frame: u32, worker: u32) {
        let cache = Arc::clone(&self.cache);
        let ctl = cache.frames.ctl(frame);
        let above = &cache.frames.ctl(self.parent).latch;
        let to = Some(Entry::Resident(frame));
        let taken = above.sample().is_some_and(|version| above.try_x(version));
        let slot = taken
            .then(|| cache.frames.node(cache.layout(), self.parent).find_child(self.addr))
            .flatten();
        if let Some(index) = slot {
            cache.swizzle_in(self.parent, index, frame);
            ctl.latch.revive();
            let settled = cache.map.exchange(self.addr, Some(Entry::Io), to);
            debug_assert!(settled, "INV-DEX-MAP-2");
        } else {
            debug_assert!(!taken, "INV-DEX-PIN: the parent keeps the child");
            if ctl.is_shared() {
                // INV-DEX-SHARED-3: it is read again.
                ctl.set_state(State::Free);
                cache.free.push(worker, frame);
                return;
            }
            ctl.set_state(State::Cooling);
            ctl.latch.revive();
            let settled = cache.map.exchange(self.addr, Some(Entry::Io), to);
            debug_assert!(settled, "INV-DEX-MAP-2");
            cache.put_cooling(self.addr, frame, worker);
        }
        if taken {
            cache.release_x(self.parent);
        }
        self.armed = false;
        self.give_back();
    }

    fn give_back(&self) {
        self.cache.frames.unpin(self.parent);
        self.cache.lot.unpark(self.addr);
    }

    /// What the node that was read there is to the parent.
    pub(crate) fn arrival(&self, node: &Node<'_, u64>) -> Result<Arrival, IndexError> {
        let bound = self.high.as_deref();
        if node.has_fences(self.low.as_deref(), bound) {
            return Ok(Arrival::Fits);
        }
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let has_low = node.low_fence(&mut low);
        let has_high = node.high_fence(&mut high);
        let same_low = has_low.then_some(low.as_slice()) == self.low.as_deref();
        if same_low && has_high && node.right() != 0 && bound.is_none_or(|bound| *high < *bound) {
            let (level, right) = (self.level + 1, node.right());
            return Ok(Arrival::Unfinished(Unfinished { level, separator: high, right }));
        }
        if let Some(bound) = bound
            && same_low
            && (!has_high || *high > *bound)
        {
            return Ok(Arrival::Absorbed(bound.to_vec()));
        }
        Err(IndexError::Corrupt(format!(
            "node {} (level {}) does not cover the range that its parent gives it",
            self.addr(),
            self.level
        )))
    }
}

impl Drop for IoMark {
    fn drop(&mut self) {
        if self.armed {
            self.cache.map.exchange(self.addr, Some(Entry::Io), None);
            self.give_back();
        }
    }
}

impl Cache {
    /// Whether the leaf at `addr`, which is missed now, is to be kept.
    pub(crate) fn admits(&self, session: &Session, addr: u64) -> bool {
        match (self.options.admission, &self.ghosts) {
            (Admission::Again, Some(ghosts)) => ghosts.note(addr) || self.free.has_fresh(),
            (Admission::Again, None) => true,
            (Admission::Chance(chance), _) => {
                self.free.has_fresh()
                    || chance >= 1.0
                    || (session.endpoint().random() >> 11) as f64 / ((1_u64 << 53) as f64) < chance
            }
        }
    }

    /// Reads a claimed node into a frame. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 1 READ; 1 WRITE for each dirty node that has to make room.
    pub(crate) async fn load(
        self: &Arc<Self>,
        session: &Session,
        claim: IoMark,
    ) -> Result<(), Fail> {
        let (cache, task_session) = (Arc::clone(self), session.clone());
        self.detach(session, async move { cache.load_now(&task_session, claim).await }).await
    }

    async fn load_now(self: &Arc<Self>, session: &Session, claim: IoMark) -> Result<(), Fail> {
        let Some(frame) = self.frame(session).await? else { return Err(Fail::NoFrame) };
        let image = match self.read_claimed(session, &claim).await? {
            Ok(image) => image,
            Err(unfinished) => {
                drop((claim, frame));
                // Boxed, as what hardly ever happens would make every load's task larger.
                Box::pin(self.heal(session, unfinished)).await?;
                return Err(Fail::Restart);
            }
        };
        self.keep(claim, frame, &image, session.id());
        Ok(())
    }

    /// Puts a claimed node that was read and is in order into a frame.
    pub(crate) fn keep(&self, claim: IoMark, frame: OwnedFrame, image: &Buf, worker: u32) {
        let count = match claim.level {
            0 => &self.stats.leaves_admitted,
            _ => &self.stats.inner_admitted,
        };
        count.add();
        let node = Node::new(self.layout(), image.words());
        let frame = frame.take();
        self.frames.fill(frame, image.words(), claim.addr, claim.level, node.version());
        self.frames.ctl(frame).set_shared(claim.shared_parent && self.is_shared(&node));
        claim.settle(frame, worker);
    }

    /// Reads a claimed node and checks that it is the one that its parent names. Returns its image, or what
    /// must be healed first.
    pub(crate) async fn read_claimed(
        &self,
        session: &Session,
        claim: &IoMark,
    ) -> Result<Result<Buf, Heal>, Fail> {
        let stale = |unfinished| {
            let addr = self.frames.ctl(claim.parent).addr_word();
            Heal::Stale { frame: claim.parent, addr, unfinished }
        };
        self.stats.note_read(claim.cause, claim.level, claim.shared);
        let image = if claim.shared {
            // Boxed for the case that others are at work on it.
            Box::pin(self.remote.read_shared(session, claim.addr(), claim.level)).await?
        } else {
            let begun_ns = self.begin_read(session);
            let read = self.read_node(session, claim.addr(), claim.level).await;
            self.note_read(session, claim.addr(), begun_ns);
            match read {
                Ok(image) => Some(image),
                // Perhaps it has been another's alone for long, and is gone.
                Err(IndexError::Corrupt(_)) if claim.shared_parent => None,
                Err(error) => return Err(error.into()),
            }
        };
        let Some(image) = image else { return Ok(Err(stale(None))) };
        let node = Node::new(self.layout(), image.words());
        if claim.shared_parent {
            let fits = match node.kind() {
                Kind::Dead => Err(None),
                _ => match claim.arrival(&node) {
                    Ok(Arrival::Fits) => Ok(()),
                    Ok(Arrival::Unfinished(unfinished)) => Err(Some(unfinished)),
                    Ok(Arrival::Absorbed(_)) | Err(_) => Err(None),
                },
            };
            return Ok(fits.map(|()| image).map_err(stale));
        }
        let level = claim.level + 1;
        if node.kind() == Kind::Dead {
            return Ok(Err(Heal::Dead { level, low: claim.low.clone(), image }));
        }
        Ok(match claim.arrival(&node)? {
            Arrival::Fits => Ok(image),
            Arrival::Unfinished(unfinished) => Err(Heal::Separator(unfinished)),
            Arrival::Absorbed(bound) => Err(Heal::Absorbed { level, bound }),
        })
    }

    /// READs a node that this compute server alone may write: 1 READ. It may be dead.
    pub(crate) async fn read_node(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, IndexError> {
        let reliable = session.reliable();
        for attempt in 0..READS_MAX {
            if attempt > 0 {
                self.stats.reads_again.add();
            }
            let image = reliable.read(addr, reliable.buf(self.layout().node_bytes())).await?;
            let node = Node::new(self.layout(), image.words());
            let dead = node.kind() == Kind::Dead && node.self_addr() == addr.word();
            if self.remote.is_current(&image, addr, level) || dead && node.sum_ok() {
                if Self::has_swizzled(&node, level) {
                    return Err(IndexError::Corrupt(format!(
                        "INV-DEX-PTR: node {addr} of the table at {} holds a pointer to a frame",
                        self.remote.meta()
                    )));
                }
                return Ok(image);
            }
        }
        Err(IndexError::Corrupt(format!(
            "node {addr} (level {level}) of the table at {} does not hold what it must, and nobody \
             writes it",
            self.remote.meta()
        )))
    }

    /// Whether others may change a node, by its own fences.
    pub(crate) fn is_shared(&self, node: &Node<'_, u64>) -> bool {
        let (mut low, mut high) = (Vec::new(), Vec::new());
        let low = node.low_fence(&mut low).then_some(low.as_slice());
        let high = node.high_fence(&mut high).then_some(high.as_slice());
        self.crosses_bounds(low, high)
    }

    /// Whether a node of `level`, dead or alive, points to a frame.
    fn has_swizzled(node: &Node<'_, u64>, level: u8) -> bool {
        level > 0 && (0..=node.count()).filter_map(|at| node.child(at)).any(|word| word >> 63 != 0)
    }

    /// WRITEs a page, of one that exists all but its lock word (others may hold the lock), and waits until it
    /// has landed; sends it again until it has, as nobody else writes the page. Where such a WRITE can be cut
    /// short, an image of it is in the journal first.
    ///
    /// Cost: 1 WRITE; with a journal 2 for a page that exists.
    pub(crate) async fn write_page(
        &self,
        session: &Session,
        addr: GlobalAddr,
        image: Buf,
        from: usize,
    ) -> Result<(), IndexError> {
        let node = Node::new(self.layout(), image.words());
        debug_assert_eq!(node.self_addr(), addr.word());
        assert!(!Self::has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
        // A page that is written in whole is new: nothing leads to it.
        let _kept = match from {
            0 => None,
            _ => self.journal(session, &[&image]).await?,
        };
        self.write_surely(session, addr, image, from).await
    }

    /// As [`Cache::write_page`] of pages that exist, together. 1 WRITE each, and 1 for all with a journal.
    pub(crate) async fn write_pages(
        &self,
        session: &Session,
        mut pages: Vec<(GlobalAddr, Buf)>,
    ) -> Result<(), IndexError> {
        if pages.len() == 1
            && let Some((addr, image)) = pages.pop()
        {
            return self.write_page(session, addr, image, 8).await;
        }
        let images: Vec<&Buf> = pages.iter().map(|(_, image)| image).collect();
        let _kept = self.journal(session, &images).await?;
        let session = session.without_deadline();
        let mut ops = session.client().ops();
        let is_any = !pages.is_empty();
        for (addr, image) in pages {
            let node = Node::new(self.layout(), image.words());
            assert!(!Self::has_swizzled(&node, node.level()), "INV-DEX-PTR: about to write {addr}");
            let written = 8..image.len();
            ops.write(addr.plus(8), image.window(written));
        }
        if is_any {
            session.reliable().post_many(ops).await?;
        }
        Ok(())
    }

    /// WRITEs `image` from byte `from` on to where nobody else writes, until it has landed.
    ///
    /// # Errors
    /// This compute server has been cut off.
    pub(crate) async fn write_surely(
        &self,
        session: &Session,
        addr: GlobalAddr,
        image: Buf,
        from: usize,
    ) -> Result<(), IndexError> {
        let session = session.without_deadline();
        let written = from..image.len();
        Ok(session.reliable().write(addr.plus(from as u64), image.window(written)).await?)
    }

    /// Reads a claimed leaf and does not keep it. Not as a task of its own: if the caller ends meanwhile,
    /// the claim is given back, and a READ changes nothing. What was left half done is healed to its
    /// end.
    ///
    /// Cost: 1 READ.
    pub(crate) async fn stream(
        self: &Arc<Self>,
        session: &Session,
        claim: IoMark,
    ) -> Result<Buf, Fail> {
        match self.read_claimed(session, &claim).await? {
            Ok(image) => {
                self.stats.leaves_streamed.add();
                self.tell_audience(&claim, &image);
                Ok(image)
            }
            Err(heal) => {
                drop(claim);
                let (cache, task_session) = (Arc::clone(self), session.clone());
                let healing = async move { cache.heal(&task_session, heal).await };
                Box::pin(self.detach(session, healing)).await?;
                Err(Fail::Restart)
            }
        }
    }

    /// Somebody is at work on the node at `addr`: waits until that has ended, or, if it is a READ of a leaf
    /// that is not kept, for what it finds (`INV-DEX-AUDIENCE`); whether there is a value, which is
    /// in `value` then. `None` if nobody has told.
    ///
    /// Cost: none.
    pub(crate) async fn join(&self, addr: u64, key: &[u8], value: &mut Vec<u8>) -> Option<bool> {
        let mut left = self.shared_reads.leave(addr, key.to_vec());
        loop {
            self.lot.park(addr, || left.is_over(|| self.is_worked_on(addr))).await;
            let found = match left.end() {
                Ended::NotYet => continue,
                Ended::Back => return None,
                Ended::Done(found) => found,
            };
            value.clear();
            value.extend_from_slice(found.as_deref().unwrap_or_default());
            return Some(found.is_some());
        }
    }

    /// Tells those who wait for the leaf what it holds.
    ///
    /// `INV-DEX-AUDIENCE` Nobody but the claim's holder writes the leaf while it is claimed, and who waits came
    /// while it was: so it holds the same at that time. A shared leaf is others' to write, too.
    fn tell_audience(&self, claim: &IoMark, image: &Buf) {
        if claim.shared || !self.shared_reads.has_work(claim.addr) {
            return;
        }
        let node = Node::new(self.layout(), image.words());
        for taken in self.shared_reads.take(claim.addr, usize::MAX) {
            let key = taken.work.as_slice();
            let mut value = Vec::new();
            let stored = node.find(key).ok().and_then(|index| node.value(index, &mut value));
            let told = match stored {
                _ if node.covers(key) != Cover::Inside => None,
                None => Some(None),
                Some(Stored::Inline) => Some(Some(value)),
                // Its record is its own to read.
                Some(Stored::Record(_)) => None,
            };
            self.stats.gets_joined.add_many(told.is_some().into());
            self.shared_reads.answer(claim.addr, &taken, told);
        }
    }

    /// Caches the root. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 1 READ of the root word, 1 READ; for the first time 1 CAS to make the tree this cache's.
    pub(crate) async fn load_root(self: &Arc<Self>, session: &Session) -> Result<(), Fail> {
        let claim = self.claim_root().await?;
        let (cache, task_session) = (Arc::clone(self), session.clone());
        self.detach(session, async move { cache.load_root_now(&task_session, claim).await }).await
    }

    /// The right to cache the root, which one task has at a time; waits, and begins again, if another
    /// has it.
    pub(crate) async fn claim_root(self: &Arc<Self>) -> Result<IoMark, Fail> {
        // The meta object's address stands for the root's until that is known.
        let meta = self.remote.meta().word();
        let Some(version) = self.frames.ctl(TOP).latch.sample() else { return Err(Fail::Restart) };
        if let Some(claim) = IoMark::take(self, meta, TOP, version, 0, None, None) {
            return Ok(claim);
        }
        self.lot.park(meta, || self.map.get(meta).is_none()).await;
        Err(Fail::Restart)
    }

    async fn load_root_now(self: &Arc<Self>, session: &Session, claim: IoMark) -> Result<(), Fail> {
        if self.frames.root() != 0 {
            return Ok(());
        }
        let Some(frame) = self.frame(session).await? else { return Err(Fail::NoFrame) };
        let (addr, level) = self.remote.read_root(session).await?;
        self.stats.reads_root.add();
        let Some(image) = self.remote.read_shared(session, addr, level).await? else {
            return Err(Fail::Restart);
        };
        let latch = &self.frames.ctl(TOP).latch;
        if !latch.sample().is_some_and(|version| latch.try_x(version)) {
            return Err(Fail::Restart);
        }
        let frame = frame.take();
        let node = Node::new(self.layout(), image.words());
        self.frames.fill(frame, image.words(), addr.word(), level, node.version());
        // With a growth that is not finished, the root word names a node that may lie in one partition;
        // what is done above it concerns all.
        // By what is known now: a range may have begun to be given away since it was read.
        let view = self.view();
        let shared = view.map.count() > 1 || view.crosses(None, None);
        self.frames.ctl(frame).set_shared(shared);
        self.frames.ctl(frame).set_state(State::Hot);
        let entered = self.map.claim(addr.word(), Entry::Resident(frame));
        debug_assert_eq!(entered, Ok(()), "nobody knew of it");
        self.frames.ctl(frame).latch.revive();
        self.frames.set_root(self.frames.swizzle(frame));
        self.release_x(TOP);
        drop(claim);
        Ok(())
    }
}

/// What a crash has left half done, as it was met.
#[derive(Debug)]
pub(crate) enum Heal {
    /// A separator is missing.
    Separator(Unfinished),
    /// A child of the node of `level` that covers the place above `low` is dead.
    Dead { level: u8, low: Option<Vec<u8>>, image: Buf },
    /// The copy of the shared node at `addr` that `frame` holds is out of date; perhaps because of
    /// a split that nobody has finished.
    Stale { frame: u32, addr: u64, unfinished: Option<Unfinished> },
    /// The child that ends at `bound`, says the node of `level`, covers the next one, too.
    Absorbed { level: u8, bound: Vec<u8> },
}
