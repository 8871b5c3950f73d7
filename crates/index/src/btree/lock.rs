//! One node, locked.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Ops};
use farleaf_pool::{LockToken, Session};

use super::read::{LOCK_WAIT_MAX_NS, OWNER_CHECK_NS, backoff, locked_too_long};
use super::{DEAD, Fail, Tree, redo};
use crate::IndexError;
use crate::node::{Kind, Node, NodeMut};

/// Tries at giving back a lock whose taker was dropped, and the wait between them.
const RELEASE_TRIES: u32 = 50;
const RELEASE_WAIT_NS: u64 = 100_000;

/// A lock word that holds this client's token, given back when dropped.
#[derive(Debug)]
pub(super) struct Lock<E: Endpoint> {
    session: Session<E>,
    word: GlobalAddr,
    token: u64,
    armed: bool,
}

impl<E: Endpoint> Lock<E> {
    /// A lock that is about to be asked for: dropped from here on, it is given back.
    pub(super) fn about_to_take(session: &Session<E>, word: GlobalAddr, token: u64) -> Self {
        Lock { session: session.clone(), word, token, armed: true }
    }

    /// The lock was not taken, or is given back by an operation that is posted before the next
    /// await.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Adds the release to `ops` and disarms.
    ///
    /// Without `write_vs_rmw` a WRITE could be lost against another's CAS, so it is a CAS there.
    pub(super) fn release_in(&mut self, ops: &mut Ops) {
        self.release_as_in(ops, 0);
    }

    /// As [`Lock::release_in`], leaving `word` in the lock word.
    pub(super) fn release_as_in(&mut self, ops: &mut Ops, word: u64) {
        self.disarm();
        if self.session.endpoint().capabilities().write_vs_rmw {
            ops.write_word(self.word, word);
        } else {
            ops.cas(self.word, self.token, word);
        }
    }

    /// Gives it back. 1 round trip.
    pub(super) async fn release(mut self) -> Result<(), IndexError> {
        let mut ops = self.session.client().ops();
        self.release_in(&mut ops);
        self.session.client().chain(ops).await?;
        Ok(())
    }
}

impl<E: Endpoint> Drop for Lock<E> {
    /// The taker was dropped, or failed, between taking and releasing. The lock's own CAS may still
    /// be under way, so the release is tried for a while; the token is unique, so that it can never
    /// release somebody else's lock.
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (session, word, token) = (self.session.clone(), self.word, self.token);
        self.session.endpoint().spawn(async move {
            for _ in 0..RELEASE_TRIES {
                match session.client().cas(word, token, 0).await {
                    Ok(old) if old == token => return,
                    _ => session.endpoint().sleep(RELEASE_WAIT_NS).await,
                }
            }
        });
    }
}

/// Waiting for somebody else's lock.
#[derive(Debug, Default)]
pub(super) struct LockWait {
    since_ns: u64,
    holder: u64,
    tries: u32,
}

impl LockWait {
    /// Waits before one more try at the lock word at `word`, which holds `holder`; true at once if
    /// the holder is dead, and fenced.
    ///
    /// # Errors
    /// `Unavailable` if one holder keeps it too long.
    pub(super) async fn again<E: Endpoint>(
        &mut self,
        session: &Session<E>,
        word: GlobalAddr,
        holder: u64,
    ) -> Result<bool, IndexError> {
        let now_ns = session.endpoint().now_ns();
        if self.holder != holder {
            (self.since_ns, self.holder) = (now_ns, holder);
        }
        let waited_ns = now_ns - self.since_ns;
        if waited_ns >= OWNER_CHECK_NS
            && LockToken::from_word(holder).is_some()
            && session.owner_is_dead(holder).await?
        {
            return Ok(true);
        }
        if waited_ns >= LOCK_WAIT_MAX_NS {
            return Err(locked_too_long(word, holder));
        }
        backoff(session, self.tries).await;
        self.tries += 1;
        Ok(false)
    }
}

/// A locked node and the private copy of its content.
#[derive(Debug)]
pub(super) struct Locked<E: Endpoint> {
    tree: Arc<Tree>,
    pub(super) session: Session<E>,
    pub(super) addr: GlobalAddr,
    pub(super) image: Buf,
    pub(super) lock: Lock<E>,
}

impl Tree {
    /// Locks the node of `level` at `addr` and reads it: 1 CAS and 1 READ in one round trip, more
    /// if it has to wait.
    pub(super) async fn lock<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Locked<E>, Fail> {
        let mut wait = LockWait::default();
        loop {
            let token = session.lock_token();
            let holder = match self.try_lock(session, addr, level, token).await? {
                Ok(locked) => return Ok(locked),
                Err(DEAD) => return Err(Fail::Restart),
                Err(holder) => holder,
            };
            if wait.again(session, addr, holder).await? {
                self.recover(session, addr, holder).await?;
                return Err(Fail::Restart);
            }
        }
    }

    /// Tries once to lock and read a node under `token`; the inner error is the lock word that was
    /// found. 1 round trip.
    pub(super) async fn try_lock<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        addr: GlobalAddr,
        level: u8,
        token: u64,
    ) -> Result<Result<Locked<E>, u64>, Fail> {
        let client = session.client();
        let mut ops = client.ops();
        ops.cas(addr, 0, token);
        ops.read(addr, client.buf(self.layout.node_bytes()));
        let mut lock = Lock::about_to_take(session, addr, token);
        let mut ops = client.chain(ops).await?;
        if ops.old(0) != 0 {
            lock.disarm();
            return Ok(Err(ops.old(0)));
        }
        let image = ops.take_buf(1);
        if !self.is_current(&image, addr, level) {
            let node = Node::new(&self.layout, image.words());
            if node.sum_ok() || node.kind() == Kind::Invalid {
                // Another node, or another kind of object, lives there now.
                return Err(Fail::Restart);
            }
            return Err(Fail::Error(IndexError::Corrupt(format!(
                "node {addr} (level {level}) of the table at {}: its checksum does not fit its \
                 content, although nobody writes it",
                self.meta
            ))));
        }
        let (tree, session) = (Arc::clone(self), session.clone());
        Ok(Ok(Locked { tree, session, addr, image, lock }))
    }
}

impl<E: Endpoint> Locked<E> {
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
        self.lock.token
    }

    /// Unlocks a node that has not been changed. 1 WRITE, 1 round trip.
    pub(super) async fn unlock(self) -> Result<(), IndexError> {
        self.lock.release().await
    }

    /// Seals the content as the node's next version.
    pub(super) fn seal(&mut self) {
        let version = self.node().version() + 1;
        self.node_mut().seal(version);
    }

    /// Writes the changed content back and unlocks, in one chain: 2 WRITEs, and one more for the
    /// redo record if `many_words` were changed (`INV-BT-6`).
    ///
    /// # Errors
    /// `OutcomeUnknown`; the lock stays until this compute server leaves or is declared dead.
    pub(super) async fn publish(mut self, many_words: bool) -> Result<(), IndexError> {
        self.seal();
        let client = self.session.client();
        let mut ops = client.ops();
        if many_words && redo::is_needed(&self.session, &self.tree.layout) {
            let record =
                redo::encode(&self.session, self.lock.token, &[(self.addr, self.image.words())]);
            ops.write(self.session.redo_addr(self.addr.server()), record);
        }
        let bytes = self.tree.layout.node_bytes();
        let image = std::mem::replace(&mut self.image, client.buf(0));
        ops.write(self.addr.plus(8), image.window(8..bytes));
        self.lock.release_in(&mut ops);
        let posted = client.chain(ops).await;
        posted.map(drop).map_err(|error| IndexError::OutcomeUnknown(error.to_string()))
    }
}
