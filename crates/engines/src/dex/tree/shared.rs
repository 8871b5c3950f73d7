//! Shared nodes: inner nodes that cross a bound of partitions.
//!
//! Several compute servers cache them, and each changes them in remote memory under their lock, by
//! [`farleaf_index::blink`]'s protocol: the lock's CAS travels with the READ of the content, so that whoever
//! has the lock has the current image, and the dead's locks are taken over with their redo
//! records. Here:
//!
//! - `INV-DEX-SHARED-1` A cached shared node is never dirty and never written back. It may be out of
//!   date; it then lacks separators, and leads to nodes that have been split since. Shared nodes are
//!   never merged away, so that its children are nodes of the tree as long as they cover keys of this
//!   compute server; what has become another's alone may be gone, which the arrival there shows.
//! - `INV-DEX-SHARED-2` For the keys of this compute server, a cached shared node has all separators
//!   that this compute server has added, because it also adds them to its copy.
//!
//! - `INV-DEX-SHARED-3` The parent of a cached shared node is shared, or the top, and is the
//!   copy under which it was read: a shared node has no second chance. So a copy that is out of date
//!   never passes for a node that has become exclusive.
//!
//! - `INV-DEX-SHARED-4` A task that changes a shared node in remote memory holds SX of a cached copy
//!   that covers the place, at the node's level or below. As long as that copy is Hot, whatever has
//!   become of the node since is not cached by this compute server, so that it is not taken for
//!   exclusive, and changed in the cache, at the same time.
//!
//! - `INV-DEX-SHARED-5` While a shared node is compared with remote memory and taken for exclusive
//!   (`INV-DEX-PART-3`), this compute server changes no shared node remotely: a change may go up by
//!   several levels, and holds no latch of what is above the copy that it began at.
//!
//! - `INV-DEX-SHARED-6` An operation that a copy leads right posts the missing separator only if the
//!   copy equals remote memory. Otherwise the copy may be of a time before the bounds moved, and the
//!   separator be in a node that has been another's alone since, and there in the cache only: in remote
//!   memory it would be added, or the node split for it, behind its owner's back.
//!
//! - `INV-DEX-SHARED-7` An operation that misses a child of a shared copy goes by the address in it only if the copy was
//!   read, or found to equal remote memory, under the ownership map that is known now. So the operation's key has been
//!   this compute server's since.
//!
//! Addresses in cached nodes outlive the pins of the operations that read them, so the pool's epochs do
//! not keep them from being reused. Those in an exclusive node lead to nodes that this compute server
//! alone retires, and forgets before. Those in a shared copy lead, for keys that have been this compute
//! server's since the copy was read, to nodes that live: they are its own, or shared. For keys that it has been given
//! since, they may lead to nodes that are gone, if the node has been exclusive to another in between; the memory may
//! be another node's, with the same fences even, such as a right half that a dead owner never linked. So a copy of an
//! earlier map is compared with remote memory before it leads anywhere (`INV-DEX-SHARED-7`): 1 READ for each shared copy
//! and each change of the map, if something below it is missed.
//!
//! A copy that has turned out to be out of date is dropped with all that is cached below it, and read
//! again. That happens about once for each split of a shared node, of which there are as many as levels
//! for each bound. (The paper's refresh in place keeps what is below.)

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::sync::{Mutex, lock};
use farleaf_pool::Session;

use super::UnfinishedSplit;
use super::{DexFail, DexTree};
use crate::dex::cache::Mapping;
use crate::dex::cache::Sx;
use crate::dex::cache::{FrameState, TOP};

farleaf_fabric::canaries! {
    pub TRUST_OLD_COPY = "trust-old-copy",
        "a shared copy of an earlier map leads to a child without a look whether it is current";
}

/// Tries at a latch on the way through what is dropped.
const TRIES_MAX: u32 = 1_000;

/// The work in remote memory that comes before a copy is dropped.
#[derive(Debug)]
pub(super) enum First {
    /// Nothing: the copy is just out of date.
    Nothing,
    /// Perhaps a separator is missing there, too.
    Post(UnfinishedSplit),
    /// The node of this level needs room for a separator.
    MakeRoom(u8, Vec<u8>),
}

impl DexTree {
    /// Does what is to be done `first`, then drops the shared node in `frame` and everything below it,
    /// so that it is read again. Does nothing at all if the frame holds another node by now. Called by
    /// tasks that run to their end.
    ///
    /// Cost: 1 WRITE for each dirty node below it, and what comes first.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
        addr: u64,
        first: First,
    ) -> Result<(), DexFail> {
        // One at a time: each waits for latches upwards and downwards.
        let _turn = self.turn_to_refresh().await;
        let ctl = self.pages.frames.ctl(frame);
        self.stats.refreshes.add();
        let Some(sx) = self.sx_of(session, frame, addr).await? else { return Ok(()) };
        if !ctl.is_shared() {
            // It was read again meanwhile, and lies within this partition now.
            return Ok(());
        }
        // INV-DEX-SHARED-4: with the copy's SX held.
        match first {
            First::Nothing => {}
            First::Post(UnfinishedSplit { level, separator, right }) => {
                if !self.may_post(session, frame).await? {
                    return self.drop_shared(session, sx).await;
                }
                let _turn = self.post_turn(false).await;
                let right = self.remote.pointer(right, self.remote.meta())?;
                self.remote.post_separator(session, level, &separator, right).await?;
            }
            First::MakeRoom(level, separator) => {
                let _turn = self.post_turn(false).await;
                self.remote.make_room(session, level, &separator).await?;
            }
        }
        self.drop_shared(session, sx).await
    }

    /// Returns whether a separator that is missing in the copy in `frame`, whose SX is held, is also missing in
    /// remote memory (`INV-DEX-SHARED-6`).
    ///
    /// Cost: 1 READ.
    async fn may_post(&self, session: &Session, frame: u32) -> Result<bool, IndexError> {
        if self.pages.frames.ctl(frame).parent() == TOP {
            return Ok(self.remote.read_root(session).await?.0 == self.pages.frames.addr(frame));
        }
        self.is_as_remote(session, frame).await
    }

    /// Returns whether the shared node in `frame`, whose SX is held, is as remote memory has it. It may have been freed
    /// there, so what is read tells nothing but this; `false` as well while somebody changes it.
    ///
    /// Cost: 1 READ.
    pub(super) async fn is_as_remote(
        &self,
        session: &Session,
        frame: u32,
    ) -> Result<bool, IndexError> {
        let ctl = self.pages.frames.ctl(frame);
        let mut cached = session.client().buf(self.layout().node_bytes());
        self.pages.frames.copy(frame, cached.words_mut());
        let cached = self.pages.remote_image(cached, ctl.version());
        let at = self.pages.frames.addr(frame);
        self.stats.reads_compared.add();
        let remote = session.reliable();
        let remote = remote.read(at, remote.buf(self.layout().node_bytes())).await?;
        // All but the lock word.
        Ok(cached.words()[1..] == remote.words()[1..])
    }

    /// Drops the shared node whose SX is held and everything below it.
    ///
    /// Cost: 1 WRITE for each dirty node below it.
    async fn drop_shared(self: &Arc<Self>, session: &Session, sx: Sx) -> Result<(), DexFail> {
        let frame = sx.frame();
        let ctl = self.pages.frames.ctl(frame);
        if !self.drain_pins(session, frame).await {
            return Err(DexFail::Restart);
        }
        self.drop_below(session, &sx).await?;
        debug_assert!(!ctl.is_dirty(), "INV-DEX-SHARED-1");
        // Nothing is swizzled below it, and with its SX held nothing comes.
        for _ in 0..TRIES_MAX {
            let parent = ctl.parent();
            if !self.pages.x_now(parent) {
                self.pages.wait_for_frame(parent).await;
                session.endpoint().yield_now().await;
                continue;
            }
            if !self.pages.unlink(parent, frame) {
                self.pages.release_x(parent);
                continue;
            }
            sx.into_x();
            self.pages.unmap(frame, session.id());
            self.pages.release_x(parent);
            return Ok(());
        }
        Err(DexFail::Restart)
    }

    /// Waits until no other refresh runs. The mark stands under an address within the meta object.
    async fn turn_to_refresh(self: &Arc<Self>) -> RefreshTurn {
        // An address at which no node is.
        let addr = self.remote.meta().word() + 128;
        loop {
            if self.pages.map.claim(addr, Mapping::Io).is_ok() {
                return RefreshTurn { tree: Arc::clone(self), addr };
            }
            self.pages.wait_for_node(addr).await;
        }
    }

    /// SX of a frame, waited for, if it still holds the node at `addr`, Hot.
    async fn sx_of(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
        addr: u64,
    ) -> Result<Option<Sx>, DexFail> {
        let ctl = self.pages.frames.ctl(frame);
        for _ in 0..TRIES_MAX {
            let Some(version) = ctl.latch.sample() else {
                if ctl.state() == FrameState::Free {
                    return Ok(None);
                }
                session.endpoint().yield_now().await;
                continue;
            };
            if let Some(sx) = self.pages.try_sx(frame, version) {
                let same = ctl.state() == FrameState::Hot && ctl.addr_word() == addr;
                return Ok(same.then_some(sx));
            }
            self.pages.wait_for_frame(frame).await;
        }
        Err(DexFail::Restart)
    }

    /// Writes back and un-swizzles everything below a frame whose SX is held. The latches are taken from
    /// parent to child, and who waits for a parent's holds none of its children's.
    async fn drop_below(self: &Arc<Self>, session: &Session, sx: &Sx) -> Result<(), DexFail> {
        let frame = sx.frame();
        let ctl = self.pages.frames.ctl(frame);
        let node = self.pages.frames.node(self.layout(), frame);
        if ctl.swizzled() == 0 {
            return Ok(());
        }
        for (index, child) in self.pages.frames.children(node) {
            let below = self.pages.frames.ctl(child);
            let addr = below.addr_word();
            // With the parent's SX held it stays its child, Hot.
            let Some(child_sx) = self.sx_of(session, child, addr).await? else {
                return Err(DexFail::Restart);
            };
            if !self.drain_pins(session, child).await {
                return Err(DexFail::Restart);
            }
            Box::pin(self.drop_below(session, &child_sx)).await?;
            if below.is_dirty() {
                self.write_back(session, &child_sx).await?;
                self.stats.written_back.add();
            }
            ctl.latch.sx_to_x();
            child_sx.into_x();
            self.pages.detach_child(frame, index, addr);
            let out = self.pages.start_cooling(child, session.id());
            ctl.latch.x_to_sx();
            if let Some(out) = out {
                self.pages.evict(out, session.id());
            }
        }
        Ok(())
    }
}

/// Maps under which shared copies were read, or found to equal remote memory (`INV-DEX-SHARED-7`): address and epoch
/// by frame. A copy that is not in it was exclusive when it was read.
#[derive(Debug, Default)]
pub(super) struct Proofs(Mutex<BTreeMap<u32, (u64, u64)>>);

impl DexTree {
    /// The epoch of the ownership map that is known now.
    pub(super) fn map_epoch(&self) -> u64 {
        self.ownership.guard().with_current(|view| view.map.epoch)
    }

    /// The shared node at `addr` in `frame` is as remote memory had it under the map of `epoch`, or later.
    pub(super) fn note_proven(&self, frame: u32, addr: u64, epoch: u64) {
        lock(&self.proofs.0).insert(frame, (addr, epoch));
    }

    /// Returns whether the shared node in `frame` may lead to children that are not cached (`INV-DEX-SHARED-7`).
    pub(super) fn is_proven(&self, frame: u32) -> bool {
        let addr = self.pages.frames.ctl(frame).addr_word();
        let epoch = self.map_epoch();
        let is_proven = lock(&self.proofs.0).get(&frame) == Some(&(addr, epoch));
        is_proven || TRUST_OLD_COPY.is_armed()
    }

    /// Compares the shared node at `addr` in `frame` with remote memory; drops it, with all below it, if they differ.
    ///
    /// Cost: 1 READ; if they differ, as [`DexTree::refresh`].
    pub(super) async fn prove(
        self: &Arc<Self>,
        session: &Session,
        frame: u32,
        addr: u64,
    ) -> Result<(), DexFail> {
        let _turn = self.turn_to_refresh().await;
        if self.is_proven(frame) {
            return Ok(());
        }
        let Some(sx) = self.sx_of(session, frame, addr).await? else { return Ok(()) };
        if !self.pages.frames.ctl(frame).is_shared() {
            return Ok(());
        }
        let epoch = self.map_epoch();
        if self.is_as_remote(session, frame).await? {
            self.note_proven(frame, addr, epoch);
            return Ok(());
        }
        self.stats.refreshes.add();
        self.drop_shared(session, sx).await
    }
}

/// The right to refresh.
struct RefreshTurn {
    tree: Arc<DexTree>,
    addr: u64,
}

impl Drop for RefreshTurn {
    fn drop(&mut self) {
        self.tree.pages.map.exchange(self.addr, Some(Mapping::Io), None);
        self.tree.pages.lot.unpark(self.addr);
    }
}

/// Changes of shared nodes in remote memory by this compute server, and adoptions, which exclude them
/// (`INV-DEX-SHARED-5`).
#[derive(Debug, Default)]
pub(super) struct Posts(Mutex<(u32, bool)>);

/// The right to change shared nodes in remote memory, or to adopt.
pub(super) struct PostTurn {
    tree: Arc<DexTree>,
    adopts: bool,
}

impl Drop for PostTurn {
    fn drop(&mut self) {
        {
            let mut posts = lock(&self.tree.posts.0);
            match self.adopts {
                true => posts.1 = false,
                false => posts.0 -= 1,
            }
        }
        self.tree.pages.lot.unpark(self.tree.posts_key());
    }
}

impl DexTree {
    fn posts_key(&self) -> u64 {
        self.remote.meta().word() + 192
    }

    /// Waits for the turn to change shared nodes remotely, or to adopt.
    pub(super) async fn post_turn(self: &Arc<Self>, adopts: bool) -> PostTurn {
        let posts = &self.posts.0;
        let is_free = |(count, adopting): (u32, bool)| !adopting && (!adopts || count == 0);
        loop {
            {
                let mut posts = lock(posts);
                if is_free(*posts) {
                    match adopts {
                        true => posts.1 = true,
                        false => posts.0 += 1,
                    }
                    return PostTurn { tree: Arc::clone(self), adopts };
                }
            }
            self.pages.lot.park(self.posts_key(), || is_free(*lock(posts))).await;
        }
    }
}
