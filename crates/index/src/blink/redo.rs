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
//! A record of *hops* names a leaf alone: pairs of it were about to move from slot to slot ([`super::hops`]). Its taker READs
//! that leaf and mends it, so that no pair stays in two slots (`INV-HOP-3`).
//!
//! Layout, words: 0 magic, 1 token, 2 count of nodes, 3 bytes of a node, 4 to 6 addresses,
//! 7 checksum of the rest; then the nodes, each with the token that its lock word holds.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Ops, ServerId};
use farleaf_pool::{LockToken, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::BlinkTree;
use super::lock::Locked;
use crate::IndexError;
use crate::bnode::{
    ChangeError, GuardedLayout, GuardedLeafMut, Kind, Layout, Node, NodeMut, kind_of, level_of,
};
use crate::detach::unfinished_work;
use crate::remote_lock::Lock;
use crate::retry::LockWait;

farleaf_fabric::canaries! {
    pub LOSE_REDO_RECORD = "lose-redo-record", "a change of many words leaves no redo record";
    pub REDO_OF_ANY_TOKEN = "redo-of-any-token",
        "a taker of a lock also replays the redo record of another lock";
    pub SIBLING_TAKEN_ALONE = "sibling-taken-alone",
        "a taker frees the lock of a new leaf before the old one is whole";
    pub OPEN_UNFINISHED = "open-unfinished",
        "a dead owner's range opens before its redo records are carried out";
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

/// Bytes that the largest record of a tree with guarded leaves takes: three inner nodes, or two leaves and their parent.
pub fn redo_bytes_beside(node_bytes: usize, leaf_bytes: usize) -> usize {
    redo_bytes(node_bytes).max(HEADER_WORDS * 8 + node_bytes + 2 * leaf_bytes)
}

/// Tells whether a WRITE of so many bytes can be cut short by the writer's death. If not, a change of one node
/// needs no record.
pub(super) fn is_needed(session: &Session, bytes: usize) -> bool {
    !LOSE_REDO_RECORD.is_armed()
        && (session.endpoint().capabilities().crash_atomic_bytes as usize) < bytes
}

/// Bits of a record's third word above the count of its parts: those of the parts that are guarded leaves.
const GUARDED_SHIFT: u32 = 8;
/// The record's one part is some bytes of a leaf; their place is the high half of the fourth word.
const ENTRY_BIT: u64 = 1 << 16;
/// The record's one part is a leaf whose pairs hop; nothing is written from it.
const HOPS_BIT: u64 = 1 << 17;

/// The content of a part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    /// Its content; the first word is its lock word's.
    Node,
    /// Bytes of it.
    Entry,
    /// That its pairs hop.
    Hops,
}

/// A part of a record: what is written again.
#[derive(Clone, Copy, Debug)]
struct RecordPart {
    /// The node.
    addr: GlobalAddr,
    /// The first word of the part in the record: the token that the node's lock word holds. Behind it what is written.
    at: usize,
    words: usize,
    /// Offset in the node at which that goes.
    to: u64,
    kind: PartKind,
}

impl RecordPart {
    fn image(self, record: &Buf) -> &[u64] {
        &record.words()[self.at..self.at + self.words]
    }

    /// The token that the node's lock word holds.
    fn held(self, record: &Buf) -> u64 {
        record.words()[self.at]
    }

    fn is_dead(self, record: &Buf) -> bool {
        self.kind == PartKind::Node && kind_of(self.image(record)) == Kind::Dead
    }

    /// The address that the part goes to, and its content.
    fn write(self, session: &Session, record: &Buf) -> (GlobalAddr, Buf) {
        let bytes = self.words * 8;
        let mut buf = session.client().buf(bytes);
        buf.words_mut().copy_from_slice(self.image(record));
        (self.addr.plus(self.to), buf.window(8..bytes))
    }
}

/// A record that was read, and its parts.
type FoundRecord = (Buf, Vec<RecordPart>);

/// The parts of a record under `token`, if `buf` holds one.
fn decode(
    buf: &Buf,
    token: u64,
    layout: &Layout,
    guarded: Option<&GuardedLayout>,
) -> Option<Vec<RecordPart>> {
    let words = buf.words();
    let [magic, of, third, fourth] = *words.first_chunk::<4>()?;
    let count = (third & 0xff) as usize;
    let mask = (third >> GUARDED_SHIFT) & 0xff;
    let kind = match third & (ENTRY_BIT | HOPS_BIT) {
        0 => PartKind::Node,
        HOPS_BIT => PartKind::Hops,
        _ => PartKind::Entry,
    };
    let leaf_words = guarded.map_or(0, GuardedLayout::leaf_words);
    let sizes = match kind {
        PartKind::Node => {
            third >> (GUARDED_SHIFT + NODES_MAX as u32) == 0
                && (mask == 0 || guarded.is_some())
                && fourth == sizes_word(layout, guarded, mask)
        }
        PartKind::Entry => third == ONE_LEAF | ENTRY_BIT && guarded.is_some(),
        PartKind::Hops => {
            third == ONE_LEAF | HOPS_BIT
                && fourth == 0
                && guarded.is_some_and(GuardedLayout::is_hopscotch)
        }
    };
    let fits = magic == MAGIC
        && (of == token || REDO_OF_ANY_TOKEN.is_armed())
        && (1..=NODES_MAX).contains(&count)
        && sizes;
    if !fits {
        return None;
    }
    let (mut parts, mut at) = (Vec::with_capacity(count), HEADER_WORDS);
    for index in 0..count {
        let addr = GlobalAddr::from_word(words[4 + index])?;
        let (size, to) = match (kind, mask >> index & 1) {
            (PartKind::Entry, _) => ((fourth as u32 / 8) as usize, fourth >> 32),
            (PartKind::Hops, _) => (1, 0),
            (PartKind::Node, 0) => (layout.node_words(), 8),
            (PartKind::Node, _) => (leaf_words, 8),
        };
        let leaf_bytes = 8 * leaf_words as u64;
        if kind == PartKind::Entry
            && (size < 2 || to < 64 || to + 8 * (size as u64 - 1) > leaf_bytes)
        {
            return None;
        }
        parts.push(RecordPart { addr, at, words: size, to, kind });
        at += size;
    }
    (words.len() >= at && words[7] == sum(&buf.bytes()[..at * 8])).then_some(parts)
}

/// The third word of a record of one guarded leaf, but for its kind.
const ONE_LEAF: u64 = 1 | 1 << GUARDED_SHIFT;

/// The fourth word of a record of nodes: bytes of a node; those of a guarded leaf in the high half, if it has any.
fn sizes_word(layout: &Layout, guarded: Option<&GuardedLayout>, mask: u64) -> u64 {
    let leaf_bytes = guarded.filter(|_| mask != 0).map_or(0, GuardedLayout::leaf_bytes);
    layout.node_bytes() as u64 | ((leaf_bytes as u64) << 32)
}

/// A record of one guarded leaf.
fn leaf_record(
    session: &Session,
    token: u64,
    addr: GlobalAddr,
    [third, fourth]: [u64; 2],
    words: &[u64],
) -> Buf {
    let mut buf = session.client().buf((HEADER_WORDS + 1 + words.len()) * 8);
    let record = buf.words_mut();
    record.fill(0);
    record[..5].copy_from_slice(&[MAGIC, token, third, fourth, addr.word()]);
    record[HEADER_WORDS] = token;
    record[HEADER_WORDS + 1..].copy_from_slice(words);
    buf.words_mut()[7] = sum(buf.bytes());
    buf
}

/// Checksum of a record, its own word taken as 0.
fn sum(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[HEADER_WORDS * 8..], xxh3_64_with_seed(&bytes[..7 * 8], MAGIC))
}

impl BlinkTree {
    /// A record of the nodes' new contents, each with the token that its lock word holds.
    pub(super) fn record(
        &self,
        session: &Session,
        token: u64,
        nodes: &[(GlobalAddr, u64, &[u64])],
    ) -> Buf {
        let content: usize = nodes.iter().map(|(.., words)| words.len()).sum();
        let mut buf = session.client().buf((HEADER_WORDS + content) * 8);
        let (header, mut images) = buf.words_mut().split_at_mut(HEADER_WORDS);
        header.fill(0);
        let mut mask = 0;
        for (index, (addr, held, words)) in nodes.iter().enumerate() {
            header[4 + index] = addr.word();
            mask |= u64::from(self.is_guarded(level_of(words))) << index;
            let (image, rest) = images.split_at_mut(words.len());
            image.copy_from_slice(words);
            image[0] = *held;
            images = rest;
        }
        let third = nodes.len() as u64 | (mask << GUARDED_SHIFT);
        let fourth = sizes_word(&self.layout, self.guarded.as_ref(), mask);
        header[..4].copy_from_slice(&[MAGIC, token, third, fourth]);
        buf.words_mut()[7] = sum(buf.bytes());
        buf
    }

    /// A record of bytes of a guarded leaf, in whole words, that are to be written at `to` of the leaf at `addr`.
    pub(super) fn entry_record(
        &self,
        session: &Session,
        token: u64,
        addr: GlobalAddr,
        (to, words): (usize, &[u64]),
    ) -> Buf {
        let fourth = (8 * (words.len() as u64 + 1)) | ((to as u64) << 32);
        leaf_record(session, token, addr, [ONE_LEAF | ENTRY_BIT, fourth], words)
    }

    /// A record that pairs of the guarded leaf at `addr` are about to hop.
    pub(super) fn hops_record(&self, session: &Session, token: u64, addr: GlobalAddr) -> Buf {
        leaf_record(session, token, addr, [ONE_LEAF | HOPS_BIT, 0], &[])
    }

    /// Bytes at the start of a redo area that a record of this tree may take.
    fn record_bytes_max(&self) -> usize {
        let node_bytes = self.layout.node_bytes();
        match &self.guarded {
            None => redo_bytes(node_bytes),
            Some(leaf) => redo_bytes_beside(node_bytes, leaf.leaf_bytes()),
        }
    }

    /// Finishes or undoes what a dead client was doing under the lock word at `word`, which holds `held`, and unlocks:
    /// its record, whichever of the word's nodes that is of. The caller has made sure of its death and has fenced it.
    ///
    /// Cost: 1 READ per memory server, and about 4 operations per node.
    #[cold]
    pub(super) async fn recover(
        self: &Arc<Self>,
        session: &Session,
        word: GlobalAddr,
        held: u64,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        BlinkTree::detach(session, async move |session| {
            tree.recover_now(&session, word, held).await
        })
        .await
        .unwrap_or_else(|| Err(unfinished_work("taking over a dead compute server's lock")))
    }

    async fn recover_now(
        self: &Arc<Self>,
        session: &Session,
        word: GlobalAddr,
        held: u64,
    ) -> Result<(), IndexError> {
        loop {
            let Some((record, parts)) = self.find_record(session, word, held).await? else {
                return self.undo(session, word, held).await;
            };
            let first = self.lock_word_of(parts[0].addr);
            if SIBLING_TAKEN_ALONE.is_armed() && word != first {
                return self.undo(session, word, held).await;
            }
            let found = self.finish_record(session, &record, &parts, held).await?;
            if found == held || word == first {
                return Ok(());
            }
            // The change has been finished, or somebody is at it, alive or dead.
            if LockToken::from_word(found).is_none() || session.reliable().word(word).await? != held
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
        let bytes = self.record_bytes_max();
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), holder)?;
            let record = reliable.read(area, reliable.buf(bytes)).await?;
            let token = record.words()[1];
            let parts = decode(&record, token, &self.layout, self.guarded.as_ref());
            let Some(parts) = parts else { continue };
            if parts.iter().any(|part| part.is_dead(&record)) {
                // Of another table: what this lock protects is changed without merges.
                continue;
            }
            let first = self.lock_word_of(parts[0].addr);
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

    /// Finishes what dead compute servers were doing under lock words, and waits for those that do so (`INV-OWN-3`). The dead
    /// owner whose range is about to open has been fenced.
    ///
    /// Cost: 1 READ of the lock table of each memory server; for each word that is held 1 READ, 1 of a redo area of each
    /// server, and that of a recovery.
    ///
    /// # Errors
    /// `Corrupt`, `Unavailable`.
    pub async fn finish_words_of_dead(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<(), IndexError> {
        let Some(remembered) = self.remembered.as_ref().filter(|_| !OPEN_UNFINISHED.is_armed())
        else {
            return Ok(());
        };
        for (word, held) in remembered.locks.held(session).await? {
            if LockToken::from_word(held).is_some() && session.owner_is_dead(held).await? {
                self.recover(session, word, held).await?;
            }
            // Another taker may have been quicker, and carries out a record that may be the dead owner's.
            let taker = session.reliable().word(word).await?;
            if self.find_record(session, word, taker).await?.is_some() {
                self.outwait(session, word, taker).await?;
            }
        }
        Ok(())
    }

    /// Unlocks a node that a dead client had locked, and not changed but in one word. A slot of a guarded leaf that it
    /// left half written is for the client that meets it.
    async fn undo(&self, session: &Session, word: GlobalAddr, held: u64) -> Result<(), IndexError> {
        let mut lock = Lock::about_to_take(session, word, session.lock_token());
        if lock.take(held).await? != held {
            lock.disarm();
            return Ok(());
        }
        if self.remembered.is_some() {
            return lock.finish(session.client().ops(), 0, None).await;
        }
        self.seal_again(session, word, lock).await
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
    /// 1 WRITE for one that dies, 1 READ if that is the first. Of hops 1 READ of the leaf, and what it mends.
    async fn finish_record(
        &self,
        session: &Session,
        record: &Buf,
        parts: &[RecordPart],
        held: u64,
    ) -> Result<u64, IndexError> {
        let reliable = session.reliable();
        let token = session.lock_token();
        let first = parts[0];
        // Our own record first: if we die half way, the next one finds ours.
        let end = parts.last().map_or(0, |last| last.at + last.words);
        let mut own = session.client().buf(end * 8);
        own.words_mut().copy_from_slice(&record.words()[..end]);
        own.words_mut()[1] = token;
        own.words_mut()[first.at] = token;
        own.words_mut()[7] = sum(own.bytes());
        reliable.write(session.redo_addr(first.addr.server()), own).await?;
        // Before anything is locked, because there may be no room for it.
        let mut retiring = None;
        if let Some(part) = parts.iter().find(|part| part.is_dead(record)) {
            retiring = Some(session.prepare_retire(part.addr).await?);
        }
        let mut lock = Lock::about_to_take(session, self.lock_word_of(first.addr), token);
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
        let mut ops = session.client().ops();
        let mut left = 0;
        let first_dies = first.is_dead(record);
        if first.kind == PartKind::Hops {
            self.mend_hops(session, first.addr, &mut ops).await?;
        } else if parts.len() > 1 {
            let (to, content) = first.write(session, record);
            reliable.write(to, content).await?;
        } else if first_dies && self.read_root(session).await?.0 == first.addr {
            // Its writer did not come to naming another root.
        } else {
            let (to, content) = first.write(session, record);
            ops.write(to, content);
            left = if first_dies { self.dead_word() } else { 0 };
        }
        let is_buried = first_dies && !ops.is_empty();
        for part in &parts[1..] {
            let held = part.held(record);
            let word = self.lock_word_of(part.addr);
            // Only who has the first node's lock changes the lock word of one that is held.
            if reliable.word(word).await? != held {
                continue;
            }
            let mut ops = session.client().ops();
            let (to, content) = part.write(session, record);
            ops.write(to, content);
            let (left, retiring) = match part.is_dead(record) {
                true => (self.dead_word(), retiring.take()),
                false => (0, None),
            };
            Lock::about_to_take(session, word, held).finish(ops, left, retiring).await?;
        }
        let dies = if is_buried { retiring.take() } else { None };
        lock.finish(ops, left, dies).await?;
        if let Some(retiring) = retiring {
            // It was dead, or stays.
            session.cancel_retire(retiring);
        }
        Ok(held)
    }

    /// Adds the WRITEs after which each pair of a leaf, whose dead writer was moving some, stands in one slot
    /// (`INV-HOP-3`). The caller has its lock. 1 READ.
    async fn mend_hops(
        &self,
        session: &Session,
        addr: GlobalAddr,
        ops: &mut Ops,
    ) -> Result<(), IndexError> {
        let reliable = session.reliable();
        let mut image = reliable.read(addr, reliable.buf(self.bytes_at(0))).await?;
        let Some(layout) = self.guarded.as_ref().filter(|_| self.is_current(&image, addr, 0))
        else {
            return Err(self.damaged(addr, ChangeError::Damaged));
        };
        for mend in GuardedLeafMut::new(layout, image.words_mut()).mend() {
            let words = &image.words()[mend.bytes.start / 8..mend.bytes.end / 8];
            let mut part = session.client().buf(mend.bytes.len());
            part.words_mut().copy_from_slice(words);
            ops.write(addr.plus(mend.bytes.start as u64), part);
        }
        Ok(())
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
        let dead = self.dead_image(session, root.level, &root.image);
        let nodes = [(root.addr, root.token(), dead.words())];
        let record = self.record(session, root.token(), &nodes);
        session.reliable().write(session.redo_addr(root.addr.server()), record).await?;
        Ok(())
    }

    /// Waits until `taker` has given back the lock at `word`; takes over from it if it
    /// has died as well.
    async fn outwait(
        self: &Arc<Self>,
        session: &Session,
        word: GlobalAddr,
        taker: u64,
    ) -> Result<(), IndexError> {
        let mut wait = LockWait::default();
        while session.reliable().word(word).await? == taker {
            if wait.again(session, ("node", word), taker).await? {
                Box::pin(self.recover_now(session, word, taker)).await?;
            }
        }
        Ok(())
    }

    /// The dead client's record of `held`, if it left one that names a node with the lock word at `word`.
    async fn find_record(
        &self,
        session: &Session,
        word: GlobalAddr,
        held: u64,
    ) -> Result<Option<FoundRecord>, IndexError> {
        if LockToken::from_word(held).is_none() {
            return Ok(None);
        }
        let reliable = session.reliable();
        let bytes = self.record_bytes_max();
        for server in 0..session.endpoint().server_count() {
            let area = session.redo_addr_of(ServerId(server as u16), held)?;
            let record = reliable.read(area, reliable.buf(bytes)).await?;
            if let Some(parts) = decode(&record, held, &self.layout, self.guarded.as_ref())
                && parts.iter().any(|part| self.lock_word_of(part.addr) == word)
            {
                return Ok(Some((record, parts)));
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
