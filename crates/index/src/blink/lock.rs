//! Locked node: one node whose remote lock the caller holds.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr};
use farleaf_pool::{Retiring, Session};

use super::{BlinkFail, BlinkTree, DEAD, redo};
use crate::IndexError;
use crate::bnode::{Kind, Node, NodeMut};
use crate::remote_lock::{Lock, try_lock_reading};
use crate::retry::{LockWait, queue_for};

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
    pub(super) image: Buf,
    pub(super) lock: Lock,
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

    /// As [`BlinkTree::try_lock`]; `None` if somebody else is busy there.
    pub(super) async fn lock_if_free(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        token: u64,
    ) -> Result<Option<Locked>, BlinkFail> {
        match self.try_lock(session, addr, level, token).await {
            Ok(locked) => Ok(locked.ok()),
            Err(BlinkFail::Restart) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tries once to lock and read a node under `token`; the inner error is the lock word that was
    /// found. 1 round trip.
    pub(super) async fn try_lock(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
        token: u64,
    ) -> Result<Result<Locked, u64>, BlinkFail> {
        let what = (addr, self.layout.node_bytes());
        let (lock, image) = match try_lock_reading(session, addr, 0, token, what).await? {
            Ok(locked) => locked,
            Err(found) => return Ok(Err(found)),
        };
        if !self.is_current(&image, addr, level) {
            let node = Node::new(&self.layout, image.words());
            if node.sum_ok() || node.kind() == Kind::Invalid {
                // Another node, or another kind of object, lives there now.
                return Err(BlinkFail::Restart);
            }
            return Err(BlinkFail::Error(IndexError::Corrupt(format!(
                "node {addr} (level {level}) of the table at {}: its checksum does not fit its \
                 content, although nobody writes it",
                self.meta
            ))));
        }
        let (tree, session) = (Arc::clone(self), session.clone());
        Ok(Ok(Locked { tree, session, addr, image, lock }))
    }
}

impl Locked {
    /// The content.
    pub(super) fn node(&self) -> Node<'_, u64> {
        Node::new(&self.tree.layout, self.image.words())
    }

    /// The content, to change.
    pub(super) fn node_mut(&mut self) -> NodeMut<'_, &mut [u64]> {
        NodeMut::new(&self.tree.layout, self.image.words_mut())
    }

    /// The token that its lock word holds.
    pub(super) fn token(&self) -> u64 {
        self.lock.token()
    }

    /// Unlocks a node that has not been changed. 1 WRITE, 1 round trip.
    pub(super) async fn unlock(self) -> Result<(), IndexError> {
        self.lock.release().await
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
        let client = self.session.client();
        let mut ops = client.ops();
        if many_words && redo::is_needed(&self.session, &self.tree.layout) {
            let (token, nodes) = (self.token(), [(self.addr, self.token(), self.image.words())]);
            let record = redo::encode(&self.session, token, &nodes);
            ops.write(self.session.redo_addr(self.addr.server()), record);
        }
        let bytes = self.tree.layout.node_bytes();
        ops.write(self.addr.plus(8), self.image.window(8..bytes));
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
        self.lock.finish(ops, 0, retiring).await
    }
}
