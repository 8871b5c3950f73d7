//! Redo records: describe a writer's change, for the client that takes over its locks.
//!
//! A record lies in its client's redo area on a node's server and says: under lock token *t*, these
//! nodes get these contents. It is written in whole before the first of the nodes is touched; a
//! record that was cut short does not have its checksum. A node that is locked under *t* by a dead
//! client is therefore either untouched (no record of *t*), or gets its content from the record:
//! writing it again does no harm, because nobody else could change a node that is still locked
//! under *t*.
//!
//! A change of several nodes is finished in the order in which its writer would have finished it, and
//! the record's first node is unlocked last. So that node's lock decides who finishes the change: a
//! taker writes a record of its own, puts its token there, and leaves the other nodes under the token
//! that they are under. A client that meets one of those finds the first node under another token, and
//! waits for it. If the taker dies, a client that meets the first node finds the taker's record, which
//! names for each node the token that its lock word holds.
//!
//! A client carries out a record that marks the root dead only if the root word names another root,
//! because the record is older than that word.
//!
//! Without a record the node may still carry half of a WRITE that changed one payload word, the
//! version and the checksum (`INV-BT-6`). Every mixture of these is a legal content: it is sealed
//! again.
//!
//! Layout, words: 0 magic, 1 token, 2 count of nodes, 3 bytes of a node, 4 to 6 addresses,
//! 7 checksum of the rest; then the nodes, each with the token that its lock word holds.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, ServerId};
use farleaf_pool::{LockToken, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::lock::Locked;
use super::{BlinkTree, DEAD};
use crate::IndexError;
use crate::bnode::{Kind, Layout, Node, NodeMut};
use crate::detach::unfinished_work;
use crate::remote_lock::Lock;
use crate::retry::LockWait;

farleaf_fabric::canaries! {
    pub LOSE_REDO_RECORD = "lose-redo-record", "a change of many words leaves no redo record";
    pub REDO_OF_ANY_TOKEN = "redo-of-any-token",
        "a taker of a lock also replays the redo record of another lock";
}

/// Most nodes of one record.
pub(super) const NODES_MAX: usize = 3;
const HEADER_WORDS: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FLredo01");

/// Bytes at the end of each redo area that records of nodes of at most 1 KiB leave free in every pool: an engine that
/// keeps a B-link tree beside structures of its own has its records there.
pub const ENGINE_REDO_BYTES: usize = 960;

/// Bytes that the largest record of a tree with such nodes takes, at the start of a redo area.
pub(super) fn redo_bytes(node_bytes: usize) -> usize {
    HEADER_WORDS * 8 + NODES_MAX * node_bytes
}

/// Tells whether a WRITE of a node can be cut short by the writer's death. If not, a change of one node
/// needs no record.
pub(super) fn is_needed(session: &Session, layout: &Layout) -> bool {
    !LOSE_REDO_RECORD.is_armed()
        && (session.endpoint().capabilities().crash_atomic_bytes as usize) < layout.node_bytes()
}

/// A record of the nodes' new contents, each with the token that its lock word holds.
pub(super) fn encode(session: &Session, token: u64, nodes: &[(GlobalAddr, u64, &[u64])]) -> Buf {
    let node_words = nodes.first().map_or(0, |(.., words)| words.len());
    let mut buf = session.client().buf((HEADER_WORDS + nodes.len() * node_words) * 8);
    let (header, images) = buf.words_mut().split_at_mut(HEADER_WORDS);
    header.fill(0);
    header[..4].copy_from_slice(&[MAGIC, token, nodes.len() as u64, node_words as u64 * 8]);
    for (index, (addr, held, words)) in nodes.iter().enumerate() {
        header[4 + index] = addr.word();
        let image = &mut images[index * node_words..(index + 1) * node_words];
        image.copy_from_slice(words);
        image[0] = *held;
    }
    buf.words_mut()[7] = sum(buf.bytes());
    buf
}

/// The nodes of a record under `token`, if `bytes` hold one.
fn decode(buf: &Buf, token: u64, layout: &Layout) -> Option<Vec<(GlobalAddr, usize)>> {
    let words = buf.words();
    let [magic, of, count, bytes] = *words.first_chunk::<4>()?;
    let node_words = layout.node_words();
    let count = usize::try_from(count).ok()?;
    let fits = magic == MAGIC
        && (of == token || REDO_OF_ANY_TOKEN.is_armed())
        && (1..=NODES_MAX).contains(&count)
        && bytes == node_words as u64 * 8;
    let len = HEADER_WORDS + count * node_words;
    if !fits || words.len() < len || words[7] != sum(&buf.bytes()[..len * 8]) {
        return None;
    }
    (0..count)
        .map(|index| {
            Some((GlobalAddr::from_word(words[4 + index])?, HEADER_WORDS + index * node_words))
        })
        .collect()
}

/// Checksum of a record, its own word taken as 0.
fn sum(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[HEADER_WORDS * 8..], xxh3_64_with_seed(&bytes[..7 * 8], MAGIC))
}

impl BlinkTree {
    /// Finishes or undoes what a dead client was doing to the node at `addr` under the lock word
    /// `held`, and unlocks. The caller has made sure of its death and has fenced it.
    ///
    /// Cost: 1 READ per memory server, and about 4 operations per node.
    #[cold]
    pub(super) async fn recover(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        held: u64,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            tree.recover_now(&session, addr, held).await
        })
        .await
        .unwrap_or_else(|| Err(unfinished_work("taking over a dead compute server's lock")))
    }

    async fn recover_now(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        held: u64,
    ) -> Result<(), IndexError> {
        loop {
            let Some((record, nodes)) = self.find_record(session, addr, held).await? else {
                return self.undo(session, addr, held).await;
            };
            let first = nodes[0].0;
            let found = self.finish_record(session, &record, &nodes, held).await?;
            if found == held || addr == first {
                return Ok(());
            }
            // The change has been finished, or somebody is at it, alive or dead.
            if LockToken::from_word(found).is_none() || session.reliable().word(addr).await? != held
            {
                return Ok(());
            }
            self.outwait(session, first, found).await?;
        }
    }

    /// Carries out the record that the dead client of the lock word `holder` has left, if nobody has, and waits
    /// for whoever is at it. The caller has fenced that client, which changed keys that nobody owns under the lock
    /// of that word ([`super::remote::RemoteTree::change`]).
    ///
    /// Cost: 1 READ per memory server; if there is such a record, that of a recovery of the node.
    pub async fn finish_change_of(
        self: &Arc<Self>,
        session: &Session,
        holder: u64,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let bytes = redo_bytes(self.layout.node_bytes());
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), holder)?;
            let record = reliable.read(area, reliable.buf(bytes)).await?;
            let token = record.words()[1];
            let Some(nodes) = decode(&record, token, &self.layout) else { continue };
            let image = |at: usize| &record.words()[at..at + self.layout.node_words()];
            let is_dead = |at: usize| Node::new(&self.layout, image(at)).kind() == Kind::Dead;
            if nodes.iter().any(|&(_, at)| is_dead(at)) {
                // Of another table: what this lock protects is changed without merges.
                continue;
            }
            let first = nodes[0].0;
            if reliable.word(first).await? == token {
                self.recover(session, first, token).await?;
            }
            // Another taker may have been quicker, and is not done before it unlocks the first node. A taker has a
            // record of its own; without one the word is no lock of a node any more.
            let taker = reliable.word(first).await?;
            match self.find_record(session, first, taker).await {
                Ok(Some(_)) => self.outwait(session, first, taker).await?,
                Ok(None) | Err(IndexError::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Unlocks a node that a dead client had locked, and not changed but in one word.
    async fn undo(&self, session: &Session, addr: GlobalAddr, held: u64) -> Result<(), IndexError> {
        let mut lock = Lock::about_to_take(session, addr, session.lock_token());
        if lock.take(held).await? != held {
            lock.disarm();
            return Ok(());
        }
        self.seal_again(session, addr, lock).await
    }

    /// Takes over the first node of a record, gives all that are still locked their contents, and
    /// unlocks them, the first one last. Gives what the first one's lock word held: nothing has
    /// happened unless that is `held`. A node that the record buries is then retired, as its death is
    /// what unlinked it.
    ///
    /// The first one is last because a merged left node must not be changed while its right neighbour
    /// can still be read (see [`super::merge`]). And a merged node must not be dead before its parent
    /// forgets it: if the taker died in between, all who come through the parent would be led to the
    /// dead one and never to the parent's lock.
    ///
    /// Cost: 1 WRITE of the record, 1 CAS; 2 WRITEs for each node, 1 READ for each but the first;
    /// 1 WRITE for one that dies, 1 READ if that is the first.
    async fn finish_record(
        &self,
        session: &Session,
        record: &Buf,
        nodes: &[(GlobalAddr, usize)],
        held: u64,
    ) -> Result<u64, IndexError> {
        let (reliable, bytes) = (session.reliable(), self.layout.node_bytes());
        let token = session.lock_token();
        let image = |at: usize| &record.words()[at..at + self.layout.node_words()];
        let is_dead = |at: usize| Node::new(&self.layout, image(at)).kind() == Kind::Dead;
        let (first, first_at) = nodes[0];
        // Our own record first: if we die half way, the next one finds ours.
        let contents: Vec<(GlobalAddr, u64, &[u64])> = nodes
            .iter()
            .map(|&(node, at)| (node, if node == first { token } else { image(at)[0] }, image(at)))
            .collect();
        let own = encode(session, token, &contents);
        reliable.write(session.redo_addr(first.server()), own).await?;
        // Before anything is locked, because there may be no room for it.
        let mut retiring = None;
        if let Some(&(node, _)) = nodes.iter().find(|&&(_, at)| is_dead(at)) {
            retiring = Some(session.prepare_retire(node).await?);
        }
        let mut lock = Lock::about_to_take(session, first, token);
        let found = lock.take(held).await?;
        // From here on, what fails is that this compute server has been cut off: then the locks are for
        // whoever recovers it.
        lock.disarm();
        if found != held {
            if let Some(retiring) = retiring {
                session.cancel_retire(retiring);
            }
            return Ok(found);
        }
        let written = |at: usize| {
            let mut buf = session.client().buf(bytes);
            buf.words_mut().copy_from_slice(image(at));
            buf.window(8..bytes)
        };
        let mut ops = session.client().ops();
        let mut left = 0;
        if nodes.len() > 1 {
            reliable.write(first.plus(8), written(first_at)).await?;
        } else if is_dead(first_at) && self.read_root(session).await?.0 == first {
            // Its writer did not come to naming another root.
        } else {
            ops.write(first.plus(8), written(first_at));
            left = if is_dead(first_at) { DEAD } else { 0 };
        }
        for &(node, at) in &nodes[1..] {
            let held = image(at)[0];
            // Only who has the first node's lock changes the lock word of one that is held.
            if reliable.word(node).await? != held {
                continue;
            }
            let mut ops = session.client().ops();
            ops.write(node.plus(8), written(at));
            let (left, retiring) = match is_dead(at) {
                true => (DEAD, retiring.take()),
                false => (0, None),
            };
            Lock::about_to_take(session, node, held).finish(ops, left, retiring).await?;
        }
        let dies = if left == DEAD { retiring.take() } else { None };
        lock.finish(ops, left, dies).await?;
        if let Some(retiring) = retiring {
            // It was dead, or stays.
            session.cancel_retire(retiring);
        }
        Ok(held)
    }

    /// Leaves a record that the root, which is locked, is dead: to be carried out if its writer dies once
    /// the root word names another. 1 WRITE.
    ///
    /// Without it a root that has given way would stay alive, unlinked: whoever remembers the root word of
    /// before could change keys there that nobody else finds.
    pub(super) async fn record_burial(
        &self,
        session: &Session,
        root: &Locked,
    ) -> Result<(), IndexError> {
        if LOSE_REDO_RECORD.is_armed() {
            return Ok(());
        }
        let dead = self.dead_image(session, &root.image);
        let nodes = [(root.addr, root.token(), dead.words())];
        let record = encode(session, root.token(), &nodes);
        session.reliable().write(session.redo_addr(root.addr.server()), record).await?;
        Ok(())
    }

    /// The image of a node once it is dead.
    pub(super) fn dead_image(&self, session: &Session, alive: &Buf) -> Buf {
        let mut dead = session.client().buf(self.layout.node_bytes());
        dead.words_mut().copy_from_slice(alive.words());
        let version = Node::new(&self.layout, alive.words()).version().wrapping_add(1);
        let mut dead_mut = NodeMut::new(&self.layout, dead.words_mut());
        dead_mut.mark_dead();
        dead_mut.seal(version);
        dead
    }

    /// Waits until `taker` has given back the lock of the node at `addr`; takes over from it if it
    /// has died as well.
    async fn outwait(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        taker: u64,
    ) -> Result<(), IndexError> {
        let mut wait = LockWait::default();
        while session.reliable().word(addr).await? == taker {
            if wait.again(session, ("node", addr), taker).await? {
                Box::pin(self.recover_now(session, addr, taker)).await?;
            }
        }
        Ok(())
    }

    /// The dead client's record of `held`, if it left one that names `addr`.
    async fn find_record(
        &self,
        session: &Session,
        addr: GlobalAddr,
        held: u64,
    ) -> Result<Option<(Buf, Vec<(GlobalAddr, usize)>)>, IndexError> {
        if LockToken::from_word(held).is_none() {
            return Ok(None);
        }
        let reliable = session.reliable();
        let bytes = redo_bytes(self.layout.node_bytes());
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), held)?;
            let record = reliable.read(area, reliable.buf(bytes)).await?;
            if let Some(nodes) = decode(&record, held, &self.layout)
                && nodes.iter().any(|(node, _)| *node == addr)
            {
                return Ok(Some((record, nodes)));
            }
        }
        Ok(None)
    }

    /// Unlocks a node that is untouched, or half changed in one word.
    async fn seal_again(
        &self,
        session: &Session,
        addr: GlobalAddr,
        lock: Lock,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let mut image = reliable.read(addr, reliable.buf(self.layout.node_bytes())).await?;
        let mut ops = session.client().ops();
        if !self.has_owners && !Node::new(&self.layout, image.words()).sum_ok() {
            let version = Node::new(&self.layout, image.words()).version().wrapping_add(1);
            NodeMut::new(&self.layout, image.words_mut()).seal(version);
            ops.write(addr.plus(48), image.window(48..64));
        }
        lock.finish(ops, 0, None).await
    }
}
