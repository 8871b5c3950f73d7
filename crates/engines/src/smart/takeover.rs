//! Takeover: finishes or undoes what dead clients were doing to leaves.
//!
//! A writer of several words of a value writes a redo record first, in one chain with them. It says: under lock token
//! *t*, this leaf gets this value. A leaf that a dead client has locked under *t* gets the value of its record. The
//! taker writes a record of its own before it takes the lock, because it may die as well. Without a record at most
//! one word of the value has changed: every mixture is the old or the new content, and is made whole.
//!
//! Redo record, words: 0 magic, 1 token, 2 leaf, 3 bytes of the leaf's object, 4 bytes of the value, 5 table,
//! 6 checksum of the rest; then the value.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, ServerId};
use farleaf_index::IndexError;
use farleaf_index::retry::{LOCK_WAIT_MAX_NS, OWNER_CHECK_NS, backoff, locked_too_long};
use farleaf_pool::{LockToken, Recovery, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::{LeafClass, NodeForm};
use super::leaf::{Leaf, NewValue, seal, set_content};
use super::locked::{LeafImage, Storing, lock_addr};
use super::tree::{Fail, LEAF, Tree, count, is_owner_dead, owner};

farleaf_fabric::canaries! {
    pub(crate) TAKE_OVER_UNRECORDED = "take-over-unrecorded",
        "a takeover of a leaf writes no redo record of its own";
}

/// Bytes of a redo record beside the value.
pub(super) const HEADER_BYTES: usize = 56;
const HEADER_WORDS: usize = HEADER_BYTES / 8;
const MAGIC: u64 = u64::from_le_bytes(*b"FLredoS1");
/// READs of one leaf before waiting in between.
const REREADS_QUICK: u32 = 16;
/// A leaf that is not whole for so long, and whose lock names no client, is corrupt.
const CORRUPT_AFTER_NS: u64 = 50_000_000;

/// The record of a leaf's new words, whose value is in the leaf.
pub(super) fn redo_record(session: &Session, table: u64, addr: GlobalAddr, new: &[u64]) -> Buf {
    let leaf = Leaf::new(table, addr, new);
    let value = match leaf.content() {
        NewValue::Inline(value) => value,
        _ => &[],
    };
    encode(session, (leaf.by(), addr, new.len() * 8, table), value)
}

fn encode(
    session: &Session,
    (token, addr, bytes, table): (u64, GlobalAddr, usize, u64),
    value: &[u8],
) -> Buf {
    let mut buf = session.client().buf(HEADER_BYTES + value.len().next_multiple_of(8));
    buf.words_mut().fill(0);
    let words = [MAGIC, token, addr.word(), bytes as u64, value.len() as u64, table];
    buf.words_mut()[..6].copy_from_slice(&words);
    buf.bytes_mut()[HEADER_BYTES..HEADER_BYTES + value.len()].copy_from_slice(value);
    buf.words_mut()[6] = sum(buf.bytes());
    buf
}

/// Checksum of a record, its own word left out.
fn sum(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(&bytes[HEADER_BYTES..], xxh3_64_with_seed(&bytes[..48], MAGIC))
}

/// A redo record that was read.
struct Redo {
    token: u64,
    addr: GlobalAddr,
    bytes: usize,
    value: Vec<u8>,
}

fn decode(buf: &Buf, shape: &NodeForm) -> Option<Redo> {
    let [magic, token, addr, bytes, len, of, found] = *buf.words().first_chunk::<HEADER_WORDS>()?;
    let (bytes, len) = (usize::try_from(bytes).ok()?, usize::try_from(len).ok()?);
    let end = HEADER_BYTES + len.checked_next_multiple_of(8)?;
    if magic != MAGIC || of != shape.table || end > buf.len() || found != sum(&buf.bytes()[..end]) {
        return None;
    }
    let lead = 8 * shape.mode.lead();
    let object = bytes.checked_add(lead)?;
    let is_leaf = LeafClass::of(object).is_some_and(|class| class.bytes() == object);
    let is_head = |addr: &GlobalAddr| addr.offset() % 64 == lead as u64;
    let addr = GlobalAddr::from_word(addr).filter(|addr| is_leaf && is_head(addr))?;
    let value = buf.bytes()[HEADER_BYTES..HEADER_BYTES + len].to_vec();
    Some(Redo { token, addr, bytes, value })
}

impl Tree {
    /// READs a leaf that a fresh slot led to until it is whole, or its key is absent whatever else lands. Takes over
    /// from a dead writer.
    pub(super) async fn settle_leaf(
        self: &Arc<Self>,
        session: &Session,
        addr: GlobalAddr,
        mut image: Buf,
    ) -> Result<Buf, Fail> {
        let start_ns = session.endpoint().now_ns();
        let (mut tries, mut dead) = (0, None);
        loop {
            let leaf = self.leaf(addr, &image);
            if !leaf.is_sound() {
                return Err(self
                    .corrupt(addr, "INV-SMART-5: a leaf is longer than its object")
                    .into());
            }
            // Both words hold tokens from the first WRITE on.
            if [leaf.by(), owner(leaf.lock())].iter().any(|it| LockToken::from_word(*it).is_none())
            {
                return Err(self.corrupt(addr, "INV-SMART-5: no client has written it").into());
            }
            if !leaf.is_valid() || leaf.is_whole() {
                return Ok(image);
            }
            let waited_ns = session.endpoint().now_ns() - start_ns;
            if tries >= REREADS_QUICK {
                backoff(session, tries - REREADS_QUICK).await;
            }
            let (lock, by) = (leaf.lock(), leaf.by());
            // The token may have landed in front of the rest.
            if dead == Some(lock) {
                // A leaf that is not whole is linked: each leaf that leaves the table was whole before.
                self.take_over(session, self.leaf_image(addr, &image), lock).await?;
            } else if waited_ns >= OWNER_CHECK_NS && is_owner_dead(session, lock).await? {
                // It was read before that was known (INV-SMART-14).
                dead = Some(lock);
            } else if waited_ns >= CORRUPT_AFTER_NS && LockToken::from_word(owner(lock)).is_none()
                || waited_ns >= LOCK_WAIT_MAX_NS && lock == by
            {
                let what =
                    "INV-SMART-5: its checksum does not fit its content and nobody is writing it";
                return Err(self.corrupt(addr, what).into());
            } else if waited_ns >= LOCK_WAIT_MAX_NS {
                return Err(locked_too_long(LEAF, addr, owner(lock)).into());
            }
            tries += 1;
            let reliable = session.reliable();
            image = reliable.read(addr, reliable.buf(image.len())).await?;
        }
    }

    /// Takes the lock of a linked leaf from a dead client, which is fenced, and makes the leaf whole.
    pub(super) async fn take_over(
        self: &Arc<Self>,
        session: &Session,
        leaf: LeafImage,
        lock: u64,
    ) -> Result<(), IndexError> {
        let tree = Arc::clone(self);
        let done = self.finish(session, async move |session| {
            let area = session.redo_addr_of(leaf.addr.server(), owner(lock))?;
            let redo = tree.read_redo(&session, area).await?;
            let redo = redo.filter(|it| it.token == owner(lock) && it.addr == leaf.addr);
            tree.take_over_now(&session, &leaf, lock, redo).await
        });
        match done.await {
            Err(IndexError::OutcomeUnknown(why)) => Err(IndexError::Unavailable(why)),
            done => done,
        }
    }

    async fn take_over_now(
        &self,
        session: &Session,
        leaf: &LeafImage,
        lock: u64,
        redo: Option<Redo>,
    ) -> Result<(), IndexError> {
        let (reliable, token) = (session.reliable(), session.lock_token());
        if let Some(redo) = &redo
            && !TAKE_OVER_UNRECORDED.is_armed()
        {
            // The own record first: if this client dies half way, the next one finds it.
            let place = (token, leaf.addr, redo.bytes, self.shape.table);
            let own = encode(session, place, &redo.value);
            reliable.write(session.redo_addr(leaf.addr.server()), own).await?;
        }
        let _changing = self.changing_leaf(leaf.addr).await;
        if reliable.cas(leaf.lock_addr(), lock, token).await? != lock {
            return Ok(());
        }
        let now = self.read_locked(session, leaf).await?;
        let mut new = now.words.clone();
        match &redo {
            Some(redo) => {
                let value = NewValue::Inline(&redo.value);
                set_content(self.shape.table, leaf.addr, &mut new, value, token);
            }
            None => seal(self.shape.table, leaf.addr, &mut new, token),
        }
        self.write_content(session, &now, &new, Storing::Recorded).await?;
        count(&self.counts.taken_over);
        Ok(())
    }

    async fn read_redo(
        &self,
        session: &Session,
        area: GlobalAddr,
    ) -> Result<Option<Redo>, IndexError> {
        let reliable = session.reliable();
        let bytes = HEADER_BYTES + self.inline_max(session).next_multiple_of(8);
        let buf = reliable.read(area, reliable.buf(bytes.min(session.redo_bytes()))).await?;
        Ok(decode(&buf, &self.shape))
    }

    /// Gives the leaves that the dead were writing the values of their redo records, before the pool zeroes these.
    ///
    /// Cost: 1 READ for each dead client and memory server, and a takeover for each leaf that it had locked.
    pub(super) async fn redo_dead(
        self: &Arc<Self>,
        session: &Session,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        let servers = (0..session.endpoint().server_count()).map(|it| ServerId(it as u16));
        for (server, client) in
            servers.flat_map(|it| recovery.clients().iter().map(move |c| (it, *c)))
        {
            let area = recovery.redo_addr(server, client);
            let Some(redo) = self.read_redo(session, area).await? else { continue };
            let held = session.reliable().word(lock_addr(redo.addr, redo.bytes)).await?;
            // A token is never used again, so that it stands nowhere but in the leaf that it locked.
            if held == redo.token && LockToken::from_word(held).is_some() {
                let (addr, words) = (redo.addr, vec![0; redo.bytes / 8]);
                let leaf = LeafImage { addr, words, back: None };
                self.take_over(session, leaf, held).await?;
            }
        }
        Ok(())
    }
}
