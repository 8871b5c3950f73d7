//! Locked node: one node whose remote lock the caller holds.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Ops};
use farleaf_pool::{Retiring, Session};

use super::leaf::NodeView;
use super::remembered::NodePointer;
use super::{BlinkFail, BlinkTree, DEAD, redo};
use crate::IndexError;
use crate::bnode::{GuardedLeafMut, Mend, Node, NodeMut};
use crate::join::within;
use crate::local::hand_over::NodeImage;
use crate::local::{Entered, Holding};
use crate::remote_lock::{Lock, release_turn, try_lock_reading};
use crate::retry::{LOCK_WAIT_MAX_NS, LockWait, queue_for};
use crate::sync::Ordering;

farleaf_fabric::canaries! {
    pub UNLOCK_BEFORE_WRITE = "unlock-before-write",
        "a change unlocks its node before it writes it";
    pub ANSWER_BEFORE_WRITE = "answer-before-write",
        "a change is acknowledged before it is written";
}

/// A locked node and the private copy of its content.
#[derive(Debug)]
pub(super) struct Locked {
    tree: Arc<BlinkTree>,
    pub(super) session: Session,
    pub(super) addr: GlobalAddr,
    pub(super) level: u8,
    pub(super) image: Buf,
    pub(super) lock: Lock,
    /// Slots of a guarded leaf that dead writers had left half written, mended in the image.
    mends: Vec<Mend>,
    /// Of a guarded leaf the image has the neighbourhood of a key alone.
    pub(super) is_part: bool,
    /// The mended slots stay as they are in remote memory.
    is_unmended: bool,
}

impl BlinkTree {
    /// Locks the node of `level` at `addr` and reads it: 1 CAS and 1 READ in one round trip, more
    /// if another compute server has it locked. Waits for the tasks of this one without remote operations.
    pub(super) async fn lock(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Locked, BlinkFail> {
        if self.remembered.is_some() {
            return Box::pin(self.lock_proven(session, &NodePointer::fresh(addr), level)).await;
        }
        let mut wait = LockWait::default();
        let place = queue_for(session, &self.lock_queue, addr.word()).await;
        loop {
            let token = session.lock_token();
            let holder = match self.try_lock(session, addr, level, token).await? {
                Ok(mut locked) => {
                    locked.lock.place = place;
                    return Ok(locked);
                }
                Err(DEAD) => return Err(BlinkFail::Restart),
                Err(holder) => holder,
            };
            if wait.again(session, ("node", addr), holder).await? {
                self.recover(session, addr, holder).await?;
                return Err(BlinkFail::Restart);
            }
        }
    }

    /// Locks the node of `level` that a pointer leads to, reads and proves it (`INV-REM-3`), after the tasks of this
    /// compute server that came before. One of them may pass the lock on.
    ///
    /// Cost: 1 CAS and 1 READ, 1 round trip; no CAS if the lock was passed on, and no READ if its content came along. No CAS
    /// for a leaf that this compute server alone changes.
    pub(super) async fn lock_proven(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
        level: u8,
    ) -> Result<Locked, BlinkFail> {
        let what = (pointer.addr, self.bytes_at(level));
        let (lock, image) = match self.own_leaves(level) {
            Some(own) => self.lock_own(session, own, pointer.addr).await?,
            None => self.lock_reading(session, pointer.addr, level, what).await?,
        };
        self.prove_locked(session, pointer, level, lock, image).await
    }

    /// Takes the lock word of the node of `level` at `addr`, and READs `what` of the node. The caller proves it.
    pub(super) async fn lock_reading(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        what: (GlobalAddr, usize),
    ) -> Result<(Lock, Buf), BlinkFail> {
        let (remembered, token) = (self.remembered(), session.lock_token());
        let word = self.lock_word_of(addr);
        let began_ns = session.endpoint().now_ns();
        let orphan = {
            let session = session.clone();
            move |turn: Holding| release_turn(&session, word, turn)
        };
        let entered = session.reliable().within(remembered.turns.enter(word, token, addr, orphan));
        let entered = within(session.endpoint(), pin!(entered), LOCK_WAIT_MAX_NS).await.flatten();
        Ok(match entered {
            Some((turn, Entered::Passed(image))) => {
                let lock = Lock::passed(session, word, turn);
                // A pointer that is old may want a node of another level, and size, at this address.
                let image = image.filter(|content| content.len() * 8 == what.1);
                let image = match image {
                    Some(content) => {
                        let mut image = session.client().buf(what.1);
                        image.words_mut().copy_from_slice(&content);
                        image
                    }
                    None => {
                        let reliable = session.reliable();
                        reliable.read(what.0, reliable.buf(what.1)).await?
                    }
                };
                (lock, image)
            }
            Some((turn, Entered::Ask)) => {
                if remembered.options.hand_over > 0 && session.endpoint().now_ns() > began_ns {
                    self.let_others_ask(session).await;
                }
                let (lock, image) = self.ask(session, (addr, level), what, word).await?;
                (lock.in_turn(turn), image)
            }
            // The tasks ahead take long: it asks beside them.
            None => self.ask(session, (addr, level), what, word).await?,
        })
    }

    /// Proves a node that is locked (`INV-REM-3`), or unlocks it.
    pub(super) async fn prove_locked(
        self: &Arc<Self>,
        session: &Session,
        pointer: &NodePointer,
        level: u8,
        lock: Lock,
        image: Buf,
    ) -> Result<Locked, BlinkFail> {
        let addr = pointer.addr;
        let proven =
            self.is_current(&image, addr, level) && self.is_born_by(image.words(), pointer.view);
        if !proven {
            let is_damaged = pointer.view.is_none() && self.is_torn_node(level, image.words());
            lock.release().await?;
            if is_damaged {
                return Err(self.torn_for_good(addr, level));
            }
            self.remembered().counts.refused.fetch_add(1, Ordering::Relaxed);
            self.refuse(pointer);
            return Err(BlinkFail::Restart);
        }
        Ok(self.locked(session, (addr, level), lock, image))
    }

    /// The locks of this compute server went from task to task as often as they may, or were released: waits 2 round
    /// trips and a random part, so that other compute servers get their turn.
    async fn let_others_ask(&self, session: &Session) {
        let endpoint = session.endpoint();
        let chain_ns = self.remembered().chain_ns.load(Ordering::Relaxed);
        endpoint.sleep(2 * chain_ns + endpoint.random() % (chain_ns + 1)).await;
    }

    /// Asks for a lock word until it is this client's, and READs `what` of the node.
    async fn ask(
        self: &Arc<Self>,
        session: &Session,
        (addr, level): (GlobalAddr, u8),
        what: (GlobalAddr, usize),
        word: GlobalAddr,
    ) -> Result<(Lock, Buf), BlinkFail> {
        let remembered = self.remembered();
        if remembered.options.read_locks && level == 0 {
            let reliable = session.reliable();
            reliable.read(addr, reliable.buf(8)).await?;
        }
        let mut wait = LockWait::default();
        loop {
            let asked_ns = session.endpoint().now_ns();
            // A CAS whose outcome was lost never passes for a later one.
            let token = session.lock_token();
            let tried = if remembered.options.combine_lock {
                try_lock_reading(session, word, 0, token, what).await?
            } else {
                let mut lock = Lock::about_to_take(session, word, token);
                match lock.take(0).await? {
                    0 => {
                        let reliable = session.reliable();
                        Ok((lock, reliable.read(what.0, reliable.buf(what.1)).await?))
                    }
                    holder => {
                        lock.disarm();
                        Err(holder)
                    }
                }
            };
            match tried {
                Ok(locked) => {
                    let took_ns = session.endpoint().now_ns() - asked_ns;
                    remembered.chain_ns.store(took_ns, Ordering::Relaxed);
                    return Ok(locked);
                }
                Err(holder) => {
                    if wait.again(session, ("node", addr), holder).await? {
                        self.recover(session, word, holder).await?;
                    }
                }
            }
        }
    }

    /// As [`BlinkTree::try_lock`]; `None` if somebody else is busy there.
    pub(super) async fn lock_if_free(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        token: u64,
    ) -> Result<Option<Locked>, BlinkFail> {
        let mut turn = None;
        if let Some(own) = self.own_leaves(level) {
            turn = own.turns.try_enter(addr, session.lock_token());
            if turn.is_none() {
                return Ok(None);
            }
        }
        match self.try_lock(session, addr, level, token).await {
            Ok(Ok(mut locked)) => {
                turn.into_iter().for_each(|turn| locked.lock.keep(turn));
                Ok(Some(locked))
            }
            Ok(Err(_)) | Err(BlinkFail::Restart) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tries once to lock and read a node under `token`; the inner error is the lock word that was
    /// found. 1 round trip. The pointer is fresh.
    pub(super) async fn try_lock(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        token: u64,
    ) -> Result<Result<Locked, u64>, BlinkFail> {
        let what = (addr, self.bytes_at(level));
        let word = self.lock_word_of(addr);
        let (lock, image) = match try_lock_reading(session, word, 0, token, what).await? {
            Ok(locked) => locked,
            Err(found) => return Ok(Err(found)),
        };
        if !self.is_current(&image, addr, level) {
            if !self.is_torn_node(level, image.words()) {
                // Another node, or another kind of object, lives there now.
                return Err(BlinkFail::Restart);
            }
            return Err(self.torn_for_good(addr, level));
        }
        Ok(Ok(self.locked(session, (addr, level), lock, image)))
    }

    /// Returns whether the image looks like a node of this tree, and its checksum does not fit.
    fn is_torn_node(&self, level: u8, words: &[u64]) -> bool {
        Self::looks_like_node(words) && !self.is_whole(level, words)
    }

    fn torn_for_good(&self, addr: GlobalAddr, level: u8) -> BlinkFail {
        BlinkFail::Error(IndexError::Corrupt(format!(
            "node {addr} (level {level}) of the table at {}: its checksum does not fit its \
             content, although nobody writes it",
            self.meta
        )))
    }

    fn locked(
        self: &Arc<Self>,
        session: &Session,
        (addr, level): (GlobalAddr, u8),
        lock: Lock,
        mut image: Buf,
    ) -> Locked {
        let mut mends = Vec::new();
        if let (Some(layout), 0) = (&self.guarded, level) {
            mends = GuardedLeafMut::new(layout, image.words_mut()).mend();
            let mended = &self.remembered().counts.mended;
            mended.fetch_add(mends.len() as u64, Ordering::Relaxed);
        }
        let (tree, session) = (Arc::clone(self), session.clone());
        Locked {
            tree,
            session,
            addr,
            level,
            image,
            lock,
            mends,
            is_part: false,
            is_unmended: false,
        }
    }

    /// A locked leaf whose image has a neighbourhood alone, whose slots fit.
    pub(super) fn locked_part(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        lock: Lock,
        image: Buf,
    ) -> Locked {
        let (tree, session, mends) = (Arc::clone(self), session.clone(), Vec::new());
        Locked {
            tree,
            session,
            addr,
            level: 0,
            image,
            lock,
            mends,
            is_part: true,
            is_unmended: false,
        }
    }
}

impl Locked {
    /// The content.
    pub(super) fn node(&self) -> Node<'_, u64> {
        Node::new(&self.tree.layout, self.image.words())
    }

    /// READs the whole leaf in place of a part of it. 1 READ.
    pub(super) async fn complete(self) -> Result<Locked, BlinkFail> {
        let Locked { tree, session, addr, level, lock, .. } = self;
        let reliable = session.reliable();
        let image = reliable.read(addr, reliable.buf(tree.bytes_at(level))).await?;
        if !tree.is_current(&image, addr, level) {
            lock.release().await?;
            return Err(tree.torn_for_good(addr, level));
        }
        Ok(tree.locked(&session, (addr, level), lock, image))
    }

    /// Returns whether it is so empty that a neighbour could take it in; of a part, whether that is empty.
    pub(super) fn is_sparse(&self) -> bool {
        if self.is_part {
            return self.view().count() == 0;
        }
        self.tree.is_sparse_at(self.level, self.image.words())
    }

    /// The content, to change.
    pub(super) fn node_mut(&mut self) -> NodeMut<'_, &mut [u64]> {
        NodeMut::new(&self.tree.layout, self.image.words_mut())
    }

    /// The token that its lock word holds.
    pub(super) fn token(&self) -> u64 {
        self.lock.token()
    }

    /// The content of a node of either kind.
    pub(super) fn view(&self) -> NodeView<'_> {
        self.tree.view(self.level, self.image.words())
    }

    /// Unlocks a node that has not been changed, or passes its lock on. 1 WRITE, 1 round trip.
    pub(super) async fn unlock(mut self) -> Result<(), IndexError> {
        let wants = self.lock.choose();
        if self.mends.is_empty() && wants.is_none() {
            return self.lock.release().await;
        }
        let mut ops = self.session.client().ops();
        self.mend_in(&mut ops);
        let image = self.image_for(wants);
        // No key was changed: a release that takes longer than the caller waits is no news.
        let _ = self.lock.finish_handing(ops, 0, None, image).await;
        Ok(())
    }

    /// Slots that were mended in the image, and are not written yet.
    pub(super) fn has_mends(&self) -> bool {
        !self.mends.is_empty()
    }

    /// Forgets the slots that were mended: they have been written.
    pub(super) fn forget_mends(&mut self) {
        self.mends.clear();
    }

    /// Takes the lock word of a leaf that is locked by its turn alone: a change of it leaves a redo record.
    ///
    /// Cost: 1 CAS, more if another compute server holds the word.
    ///
    /// # Errors
    /// Nothing was changed.
    pub(super) async fn take_word(mut self) -> Result<Self, IndexError> {
        if self.lock.is_local() {
            let word = self.tree.take_word(&self.session, self.addr).await?;
            let turn = std::mem::replace(&mut self.lock, word);
            self.lock.keep(turn);
        }
        Ok(self)
    }

    /// Leaves slots of the dead as they are in remote memory: the leaf may be another compute server's.
    pub(super) fn leave_unmended(&mut self) {
        self.is_unmended = !std::mem::take(&mut self.mends).is_empty();
    }

    /// Adds the WRITEs of what was mended.
    pub(super) fn mend_in(&self, ops: &mut Ops) {
        for mend in &self.mends {
            self.write_in(ops, mend.bytes.clone());
        }
    }

    /// Adds a WRITE of some bytes of the image, whole words.
    pub(super) fn write_in(&self, ops: &mut Ops, bytes: Range<usize>) {
        let mut part = self.session.client().buf(bytes.len());
        part.words_mut().copy_from_slice(&self.image.words()[bytes.start / 8..bytes.end / 8]);
        ops.write(self.addr.plus(bytes.start as u64), part);
    }

    /// The content, for the waiter that wants this node.
    fn image_for(&self, wants: Option<GlobalAddr>) -> Option<NodeImage> {
        let is_wanted = wants == Some(self.addr) && self.tree.remembered().options.hand_image;
        (is_wanted && !self.is_unmended && !self.is_part).then(|| self.image.words().into())
    }

    /// Posts `ops`, which bring the node to the content of the image, and unlocks it or passes its lock on.
    ///
    /// # Errors
    /// `OutcomeUnknown`, as [`Lock::finish`].
    pub(super) async fn finish(
        mut self,
        ops: Ops,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        if UNLOCK_BEFORE_WRITE.is_armed() {
            self.lock.release().await?;
            self.session.client().chain(ops).await?;
            return Ok(());
        }
        if ANSWER_BEFORE_WRITE.is_armed() {
            let (session, lock) = (self.session.clone(), self.lock);
            session.endpoint().spawn(async move { drop(lock.finish(ops, 0, retiring).await) });
            return Ok(());
        }
        let wants = self.lock.choose();
        let image = self.image_for(wants);
        self.lock.finish_handing(ops, 0, retiring, image).await
    }

    /// Seals the content as the node's next version.
    pub(super) fn seal(&mut self) {
        let version = self.node().version().wrapping_add(1);
        self.node_mut().seal(version);
    }

    /// Makes whatever goes on with it wait as long as `session` does.
    pub(super) fn with_session(mut self, session: &Session) -> Self {
        self.session = session.clone();
        self.lock = self.lock.with_session(session);
        self
    }

    /// Writes the changed content back and unlocks, in one chain: 2 WRITEs, and one more for the
    /// redo record if `many_words` were changed (`INV-BT-6`). Then `retiring` is retired.
    ///
    /// # Errors
    /// `OutcomeUnknown`, as [`Lock::finish`].
    pub(super) async fn publish(
        mut self,
        many_words: bool,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        self.seal();
        self.publish_sealed(many_words, retiring).await
    }

    /// As [`Locked::publish`], of content that has its version and checksum.
    pub(super) async fn publish_sealed(
        mut self,
        many_words: bool,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        let client = self.session.client();
        let mut ops = client.ops();
        let bytes = self.tree.bytes_at(self.level);
        if many_words && redo::is_needed(&self.session, bytes) {
            let (token, nodes) = (self.token(), [(self.addr, self.token(), self.image.words())]);
            let record = self.tree.record(&self.session, token, &nodes);
            ops.write(self.session.redo_addr(self.addr.server()), record);
        }
        if self.tree.remembered.is_some() {
            self.write_in(&mut ops, 8..bytes);
        } else {
            let empty = self.session.client().buf(0);
            let image = std::mem::replace(&mut self.image, empty);
            ops.write(self.addr.plus(8), image.window(8..bytes));
        }
        self.finish(ops, retiring).await
    }
}
