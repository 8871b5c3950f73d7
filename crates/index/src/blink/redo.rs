//! Redo records: what a writer was about to do, for whoever takes over its locks.
//!
//! A record lies in its client's redo area on a node's server and says: under lock token *t*, these
//! nodes get these contents. It is written in whole before the first of the nodes is touched; a
//! record that was cut short does not have its checksum. A node that is locked under *t* by a dead
//! client is therefore either untouched (no record of *t*), or gets its content from the record:
//! writing it again does no harm, because nobody else could change a node that is still locked
//! under *t*.
//!
//! Without a record the node may still carry half of a WRITE that changed one payload word, the
//! version and the checksum (`INV-BT-6`). Every mixture of these is a legal content: it is sealed
//! again.
//!
//! Layout, words: 0 magic, 1 token, 2 count of nodes, 3 bytes of a node, 4 to 6 addresses,
//! 7 checksum of the rest; then the nodes, each with lock word 0.

use std::collections::BTreeSet;
use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, ServerId};
use farleaf_pool::canary::Canary;
use farleaf_pool::{LockToken, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::lock::{Lock, LockWait};
use super::{DEAD, Tree, unfinished_work};
use crate::IndexError;
use crate::bnode::{Kind, Layout, Node, NodeMut};

/// Most nodes of one record.
pub(super) const NODES_MAX: usize = 3;
const HEADER_WORDS: usize = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FLredo01");

/// Whether a WRITE of a node can be cut short by the writer's death.
pub(super) fn is_needed(session: &Session, layout: &Layout) -> bool {
    !Canary::LoseRedoRecord.is_armed()
        && (session.endpoint().capabilities().crash_atomic_bytes as usize) < layout.node_bytes()
}

/// Whether the pool's redo areas hold a record of this layout's largest change.
pub(super) fn check_room(session: &Session, layout: &Layout) -> Result<(), IndexError> {
    let needs = HEADER_WORDS * 8 + NODES_MAX * layout.node_bytes();
    let has = session.redo_bytes();
    if needs > has {
        return Err(IndexError::Invalid(format!(
            "nodes of {} bytes need redo areas of {needs} bytes, this pool's have {has}: \
             take nodes of at most {} bytes",
            layout.node_bytes(),
            ((has - HEADER_WORDS * 8) / NODES_MAX + 1).next_power_of_two() / 2
        )));
    }
    Ok(())
}

/// A record of the nodes' new contents.
pub(super) fn encode(session: &Session, token: u64, nodes: &[(GlobalAddr, &[u64])]) -> Buf {
    let node_words = nodes.first().map_or(0, |(_, words)| words.len());
    let mut buf = session.client().buf((HEADER_WORDS + nodes.len() * node_words) * 8);
    let (header, images) = buf.words_mut().split_at_mut(HEADER_WORDS);
    header.fill(0);
    header[..4].copy_from_slice(&[MAGIC, token, nodes.len() as u64, node_words as u64 * 8]);
    for (index, (addr, words)) in nodes.iter().enumerate() {
        header[4 + index] = addr.word();
        let image = &mut images[index * node_words..(index + 1) * node_words];
        image.copy_from_slice(words);
        image[0] = 0;
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
        && (of == token || Canary::RedoOfAnyToken.is_armed())
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

impl Tree {
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
        Tree::detach(session, async move |session| tree.recover_now(&session, addr, held).await)
            .await
            .unwrap_or_else(|| Err(unfinished_work("taking over a dead compute server's lock")))
    }

    async fn recover_now(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        held: u64,
    ) -> Result<(), IndexError> {
        let mut done = BTreeSet::new();
        while let Some((node, taker)) = self.recover_once(session, addr, held, &done).await? {
            self.outwait(session, node, taker).await?;
            done.insert(node);
        }
        Ok(())
    }

    /// As [`Tree::recover_now`], unless one of the nodes has been taken over by another: gives that
    /// node and the other's token, for what comes after it in the record has to wait.
    async fn recover_once(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        held: u64,
        done: &BTreeSet<GlobalAddr>,
    ) -> Result<Option<(GlobalAddr, u64)>, IndexError> {
        let steady = session.steady();
        let token = session.lock_token();
        let Some((record, nodes)) = self.find_record(session, addr, held).await? else {
            let mut lock = Lock::about_to_take(session, addr, token);
            if lock.take(held).await? != held {
                lock.disarm();
                return Ok(None);
            }
            self.seal_again(session, addr, lock).await?;
            return Ok(None);
        };
        // Our own record first: if we die half way, the next one finds ours for the nodes that we
        // took and the old one for those that we did not.
        let contents: Vec<(GlobalAddr, &[u64])> = nodes
            .iter()
            .map(|&(node, at)| (node, &record.words()[at..at + self.layout.node_words()]))
            .collect();
        let record = encode(session, token, &contents);
        steady.write(session.redo_addr(addr.server()), record).await?;
        for (node, words) in contents {
            let found = self.write_again(session, node, words, held, token).await?;
            // Whoever has it may be taking over, too, and not have written it yet: if a merged node
            // were dead before its parent forgets it, and that taker died, all who come through the
            // parent would be led to the dead one and never to the parent's lock.
            if found != held && LockToken::from_word(found).is_some() && !done.contains(&node) {
                return Ok(Some((node, found)));
            }
        }
        Ok(None)
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
        while session.steady().word(addr).await? == taker {
            if wait.again(session, addr, taker).await? {
                Box::pin(self.recover_now(session, addr, taker)).await?;
            }
        }
        Ok(())
    }

    /// Takes over one node of a record, gives it its content, and releases it. A node that the
    /// record buries is then retired, as its death is what unlinked it. Gives the lock word that was
    /// found.
    async fn write_again(
        &self,
        session: &Session,
        addr: GlobalAddr,
        words: &[u64],
        held: u64,
        token: u64,
    ) -> Result<u64, IndexError> {
        let client = session.client();
        let is_dead = Node::new(&self.layout, words).kind() == Kind::Dead;
        let retiring = match is_dead {
            true => Some(session.announce_retire(addr).await?),
            false => None,
        };
        let mut lock = Lock::about_to_take(session, addr, token);
        let found = lock.take(held).await?;
        if found != held {
            // Released, then its content has been written, and whoever released it retires; or
            // taken over by another.
            lock.disarm();
            if let Some(retiring) = retiring {
                session.cancel_retire(retiring).await?;
            }
            return Ok(found);
        }
        let mut image = client.buf(self.layout.node_bytes());
        image.words_mut().copy_from_slice(words);
        let mut ops = client.ops();
        ops.write(addr.plus(8), image.window(8..self.layout.node_bytes()));
        lock.finish(ops, if is_dead { DEAD } else { 0 }, retiring).await?;
        Ok(held)
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
        let steady = session.steady();
        let bytes = HEADER_WORDS * 8 + NODES_MAX * self.layout.node_bytes();
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), held)?;
            let record = steady.read(area, steady.buf(bytes)).await?;
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
        let steady = session.steady();
        let mut image = steady.read(addr, steady.buf(self.layout.node_bytes())).await?;
        let mut ops = session.client().ops();
        if !Node::new(&self.layout, image.words()).sum_ok() {
            let version = Node::new(&self.layout, image.words()).version().wrapping_add(1);
            NodeMut::new(&self.layout, image.words_mut()).seal(version);
            ops.write(addr.plus(48), image.window(48..64));
        }
        lock.finish(ops, 0, None).await
    }
}
