//! Locked leaf: takes a leaf's lock and changes it in place.
//!
//! The CAS of the lock from the token that wrote the content to an own token proves that content: nobody else has
//! changed it since it was read. All this runs in tasks, so a caller that goes away leaves no lock behind.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, OpError, Ops};
use farleaf_index::IndexError;
use farleaf_pool::{Session, Tries};

use super::delegation::ChangeLead;
use super::ladder::LockSet;
use super::leaf::{Leaf, NewValue, REWRITE_EQUAL_WORDS, changed, set_content};
use super::record::NewRecord;
use super::takeover::redo_record;
use super::tree::{Tree, count};

farleaf_fabric::canaries! {
    pub(crate) LOCK_PROVES_NOTHING = "lock-proves-nothing",
        "a leaf's lock is taken from whatever word it holds by now";
    pub(crate) SEAL_LATE = "seal-late", "changes join a batch that has been written";
    pub(crate) RESEND_CONTENT = "resend-content",
        "a leaf's lost WRITE is sent again without a look at its lock";
    pub(crate) LOSE_LEAF_REDO = "lose-leaf-redo",
        "a change of several words of a value leaves no redo record";
}

/// A leaf's place, and its words when it was read, from its head on.
#[derive(Clone, Debug)]
pub(super) struct LeafImage {
    pub(super) addr: GlobalAddr,
    pub(super) words: Vec<u64>,
    /// The word in front of its head, if objects point back and it was read.
    pub(super) back: Option<u64>,
}

impl LeafImage {
    /// The address of its lock word.
    pub(super) fn lock_addr(&self) -> GlobalAddr {
        lock_addr(self.addr, self.words.len() * 8)
    }
}

/// The lock word of a leaf in an object of `bytes`.
pub(super) fn lock_addr(addr: GlobalAddr, bytes: usize) -> GlobalAddr {
    addr.plus(bytes as u64 - 8)
}

/// The new content of a leaf, owned by the task that stores it.
#[derive(Debug)]
pub(super) enum LeafContent {
    Absent,
    Inline(Vec<u8>),
    Record(NewRecord),
}

impl LeafContent {
    pub(super) fn as_new(&self) -> NewValue<'_> {
        match self {
            LeafContent::Absent => NewValue::Absent,
            LeafContent::Inline(value) => NewValue::Inline(value),
            LeafContent::Record(record) => NewValue::Record(record.word()),
        }
    }

    /// The leaf that holds it is about to be linked or written, by an operation that will be finished.
    pub(super) fn keep(&self) {
        if let LeafContent::Record(record) = self {
            record.keep();
        }
    }

    /// The leaf that was to hold it has not come to hold it, and never will.
    pub(super) fn unkeep(&self) {
        if let LeafContent::Record(record) = self {
            record.unkeep();
        }
    }
}

/// The way in which a leaf's content is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storing {
    /// Under the leaf's lock; behind a redo record if a death could tear the value.
    Locked,
    /// Under the lock, by a client that has written a redo record if one is needed.
    Recorded,
    /// Behind the lock word, in one chain, by an owner (`INV-SMART-13`); behind a redo record as above.
    Alone,
}

/// The end of a try to change a leaf in place.
#[derive(Debug)]
pub(super) enum Stored {
    /// It has the new content. `is_removed`: its key is absent now.
    Done { is_removed: bool },
    /// Another had the lock.
    Lost { content: LeafContent, lead: Option<ChangeLead> },
}

impl Tree {
    /// Gives a leaf that was whole and free a new content, to which the changes of the lead's members are applied:
    /// 1 CAS and 1 WRITE, more if several runs of words differ or a redo record is needed. An owner needs a WRITE in
    /// place of the CAS, in the same chain, if it has stored the leaf last, and has not since the READ at `stamp`. A
    /// change without an expectation READs the leaf once more if it has waited for its lock in the lock table.
    ///
    /// # Errors
    /// `OutcomeUnknown` if it takes longer than the caller waits.
    pub(super) async fn store(
        self: &Arc<Self>,
        session: &Session,
        (leaf, stamp): (LeafImage, Option<u64>),
        (content, is_blind): (LeafContent, bool),
        lead: Option<ChangeLead>,
    ) -> Result<Stored, IndexError> {
        let tree = Arc::clone(self);
        let locks = self.ladder.leaf_locks(leaf.addr, LockSet::default());
        self.finish(session, async move |session| {
            let store = async |has_waited| {
                let mut leaf = leaf;
                if has_waited && is_blind {
                    tree.look_again(&session, &mut leaf, &content).await?;
                }
                tree.store_now(&session, (leaf, stamp), content, lead).await
            };
            tree.ladder.under((&session, &tree.counts), locks, store).await
        })
        .await
    }

    /// READs a leaf again, and takes what it holds now if `content` can take the place of that as well.
    async fn look_again(
        &self,
        session: &Session,
        leaf: &mut LeafImage,
        content: &LeafContent,
    ) -> Result<(), IndexError> {
        let now = self.read_locked(session, leaf).await?;
        let [old, new] = [&*leaf, &now].map(|it| Leaf::new(self.shape.table, it.addr, &it.words));
        let is_record = |leaf: Leaf<'_>| matches!(leaf.content(), NewValue::Record(_));
        let is_alike = new.is_whole()
            && new.is_free()
            && new.is_valid() == old.is_valid()
            && is_record(new) == is_record(old)
            && new.has_room(content.as_new().bytes());
        if is_alike {
            *leaf = LeafImage { back: leaf.back, ..now };
        }
        Ok(())
    }

    async fn store_now(
        &self,
        session: &Session,
        (leaf, stamp): (LeafImage, Option<u64>),
        content: LeafContent,
        mut lead: Option<ChangeLead>,
    ) -> Result<Stored, IndexError> {
        let old = Leaf::new(self.shape.table, leaf.addr, &leaf.words);
        let retiring = match old.content() {
            NewValue::Record(word) => {
                let (record, _) = self.record_place(word)?;
                Some(session.prepare_retire(record).await?)
            }
            _ => None,
        };
        let (mut by, token) = (old.by(), session.lock_token());
        if LOCK_PROVES_NOTHING.is_armed() {
            by = session.reliable().word(leaf.lock_addr()).await?;
        }
        let alone = self.changing_leaf_alone(session, (leaf.addr, old), stamp);
        let is_alone = alone.is_some();
        let _changing = match alone {
            Some(alone) => alone,
            None => self.changing_leaf(leaf.addr).await,
        };
        if !is_alone && session.reliable().cas(leaf.lock_addr(), by, token).await? != by {
            if let Some(retiring) = retiring {
                session.cancel_retire(retiring);
            }
            count(&self.counts.lock_lost);
            return Ok(Stored::Lost { content, lead });
        }
        debug_assert!(
            !is_alone || self.leaf_changes.is_alone(leaf.addr),
            "INV-SMART-13: others change the leaf"
        );
        let content = self.combine(self.inline_max(session), old, content, lead.as_mut());
        content.keep();
        let mut new = leaf.words.clone();
        set_content(self.shape.table, leaf.addr, &mut new, content.as_new(), token);
        let how = if is_alone { Storing::Alone } else { Storing::Locked };
        if let Some(lead) = &mut lead {
            lead.close_gets();
        }
        self.write_content(session, &leaf, &new, how).await?;
        if let Some(retiring) = retiring {
            session.retire(retiring);
        }
        if let (true, NewValue::Inline(value)) = (SEAL_LATE.is_armed(), content.as_new()) {
            let written = LeafContent::Inline(value.to_vec());
            self.combine(self.inline_max(session), old, written, lead.as_mut());
        }
        if let Some(lead) = lead {
            lead.acknowledge(&content);
        }
        Ok(Stored::Done { is_removed: matches!(content, LeafContent::Absent) })
    }

    /// Writes `new` over the words of a leaf that this client has locked, or has alone.
    pub(super) async fn write_content(
        &self,
        session: &Session,
        leaf: &LeafImage,
        new: &[u64],
        how: Storing,
    ) -> Result<(), IndexError> {
        let token = new[2];
        let (mut tries, mut now) = (Tries::default(), leaf.clone());
        loop {
            let mark = session.reliable().post_mark();
            let Err(error) = self.post_content(session, &now, new, how).await else {
                return Ok(());
            };
            session.reliable().again(&mut tries, mark, error).await?;
            // Nothing lands later. If another has seen the whole content, the lock may be its own by now, so the
            // lock is looked at after the content.
            now = self.read_locked(session, leaf).await?;
            let view = Leaf::new(self.shape.table, leaf.addr, &now.words);
            if view.is_whole() && view.by() == token {
                return Ok(());
            }
            if how != Storing::Alone
                && session.reliable().word(leaf.lock_addr()).await? != token
                && !RESEND_CONTENT.is_armed()
            {
                return Ok(());
            }
        }
    }

    pub(super) async fn read_locked(
        &self,
        session: &Session,
        leaf: &LeafImage,
    ) -> Result<LeafImage, IndexError> {
        let reliable = session.reliable();
        let image = reliable.read(leaf.addr, reliable.buf(leaf.words.len() * 8)).await?;
        Ok(LeafImage { addr: leaf.addr, words: image.words().to_vec(), back: None })
    }

    async fn post_content(
        &self,
        session: &Session,
        old: &LeafImage,
        new: &[u64],
        how: Storing,
    ) -> Result<(), OpError> {
        let client = session.client();
        let found = changed(&old.words, new);
        let mut ops: Ops = client.ops();
        let atomic = session.endpoint().capabilities().crash_atomic_bytes as usize;
        let is_atomic = found.runs.len() == 1 && found.runs[0].len() * 8 <= atomic;
        let needs_redo = how != Storing::Recorded && found.needs_redo && !is_atomic;
        if needs_redo && !LOSE_LEAF_REDO.is_armed() {
            let record = redo_record(session, self.shape.table, old.addr, new);
            ops.write(session.redo_addr(old.addr.server()), record);
        }
        if how == Storing::Alone {
            let mut lock = client.buf(8);
            lock.words_mut()[0] = new[2];
            ops.write(old.lock_addr(), lock);
        }
        for run in found.runs {
            debug_assert!(
                REWRITE_EQUAL_WORDS.is_armed()
                    || [run.start, run.end - 1].iter().all(|at| old.words[*at] != new[*at]),
                "INV-SMART-5: a WRITE begins or ends with a word that stays"
            );
            let mut buf = client.buf(run.len() * 8);
            buf.words_mut().copy_from_slice(&new[run.clone()]);
            ops.write(old.addr.plus(run.start as u64 * 8), buf);
        }
        if ops.len() == 1 {
            // A chain of one is a list of one, which costs no order.
            client.post_many(ops).await?;
        } else {
            client.chain(ops).await?;
        }
        Ok(())
    }

    /// Gives a lock back whose leaf was not changed.
    pub(super) async fn unlock(
        &self,
        session: &Session,
        leaf: &LeafImage,
        lock: u64,
    ) -> Result<(), IndexError> {
        let by = Leaf::new(self.shape.table, leaf.addr, &leaf.words).by();
        session.reliable().cas_release(leaf.lock_addr(), lock, by).await?;
        Ok(())
    }
}
