//! Locked leaf: takes a leaf's lock and changes it in place.
//!
//! The CAS of the lock from the token that wrote the content to an own token proves that content: nobody else has
//! changed it since it was read. All this runs in tasks, so a caller that goes away leaves no lock behind.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, OpError, Ops};
use farleaf_index::IndexError;
use farleaf_index::local::Holding;
use farleaf_index::retry::LockWait;
use farleaf_pool::{Session, Tries};

use super::delegation::ChangeLead;
use super::ladder::{LeafTurn, LockSet, release_leaf};
use super::leaf::{Leaf, NewValue, REWRITE_EQUAL_WORDS, changed, set_content};
use super::record::NewRecord;
use super::takeover::redo_record;
use super::tree::{LEAF, Tree, count, owner};

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
    /// Under the lock, which this token takes in front of the content (`INV-SMART-16`).
    Passing(u64),
    /// Behind the lock word, in one chain, by an owner (`INV-SMART-13`); behind a redo record as above.
    Alone,
}

/// The end of a try to change a leaf in place.
#[derive(Debug)]
pub(super) enum Stored {
    /// It has the new content. `is_removed`: its key is absent now.
    Done { is_removed: bool },
    /// Another had the lock. `dead`: a client that is dead holds it.
    Lost { content: LeafContent, lead: Option<ChangeLead>, dead: Option<u64> },
}

/// The end of a change's try to take the lock of a leaf in its turn.
enum InTurn {
    Locked,
    /// The leaf is not what the change has READ any more.
    Changed,
    /// A client that is dead, and fenced, holds this lock.
    Dead(u64),
}

impl Tree {
    /// Gives a leaf that was whole and free a new content, to which the changes of the lead's members are applied:
    /// 1 CAS and 1 WRITE, more if several runs of words differ or a redo record is needed. An owner needs a WRITE in
    /// place of the CAS, in the same chain, if it has stored the leaf last, and has not since the READ at `stamp`. A
    /// change without an expectation READs the leaf once more if it has waited for its lock in the lock table, or for
    /// its turn. It needs no CAS if the change before it has passed the lock on.
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
                let (mut leaf, mut turn) = (leaf, None);
                if is_blind && tree.ladder.queues(&content) {
                    turn = tree.ladder.leaf_turn(&session, &leaf).await;
                } else if has_waited && is_blind {
                    tree.look_again(&session, &mut leaf, &content).await?;
                }
                if let Some(turn) = &turn {
                    match tree.lock_in_turn(&session, &mut leaf, &content, turn).await? {
                        InTurn::Locked => {}
                        InTurn::Changed => {
                            return Ok(Stored::Lost { content, lead, dead: None });
                        }
                        InTurn::Dead(lock) => {
                            return Ok(Stored::Lost { content, lead, dead: Some(lock) });
                        }
                    }
                }
                tree.store_now(&session, (leaf, stamp), content, (lead, turn)).await
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
        if self.may_follow(leaf, &now, content)
            && Leaf::new(self.shape.table, now.addr, &now.words).is_free()
        {
            *leaf = LeafImage { back: leaf.back, ..now };
        }
        Ok(())
    }

    /// Returns whether a change to `content` that was to follow the content `old` may follow `now` as well.
    fn may_follow(&self, old: &LeafImage, now: &LeafImage, content: &LeafContent) -> bool {
        let [old, new] = [old, now].map(|it| Leaf::new(self.shape.table, it.addr, &it.words));
        let is_record = |leaf: Leaf<'_>| matches!(leaf.content(), NewValue::Record(_));
        new.is_whole()
            && new.is_valid() == old.is_valid()
            && is_record(new) == is_record(old)
            && new.has_room(content.as_new().bytes())
    }

    /// Takes the lock of a leaf in the turn of a change, with the content that it guards in `leaf`: that which was passed
    /// on, or by a CAS. READs the leaf before the CAS unless it is free in `leaf` and no change came before.
    async fn lock_in_turn(
        &self,
        session: &Session,
        leaf: &mut LeafImage,
        content: &LeafContent,
        turn: &LeafTurn,
    ) -> Result<InTurn, IndexError> {
        let (token, back) = (turn.turn.token(), leaf.back);
        if let Some(image) = &turn.passed {
            let now = LeafImage { addr: leaf.addr, words: image.to_vec(), back };
            if !self.may_follow(leaf, &now, content) {
                self.unlock(session, &now, token).await?;
                return Ok(InTurn::Changed);
            }
            *leaf = now;
            return Ok(InTurn::Locked);
        }
        // Others of this compute server wait meanwhile.
        let mut wait = LockWait::of_leader(true);
        let mut looks = turn.has_waited || !self.leaf_of(leaf).is_free();
        loop {
            let by = self.leaf_of(leaf).by();
            let holder = if looks {
                let now = self.read_locked(session, leaf).await?;
                let view = self.leaf_of(&now);
                if view.is_whole() && view.is_free() {
                    if !self.may_follow(leaf, &now, content) {
                        return Ok(InTurn::Changed);
                    }
                    *leaf = LeafImage { back, ..now };
                    looks = false;
                    continue;
                }
                if view.is_moving() || !view.is_valid() {
                    // It may have left the table, and stay locked.
                    return Ok(InTurn::Changed);
                }
                view.lock()
            } else {
                looks = true;
                match session.reliable().cas(leaf.lock_addr(), by, token).await? {
                    found if found == by => return Ok(InTurn::Locked),
                    found => found,
                }
            };
            count(&self.counts.lock_lost);
            if wait.again(session, (LEAF, leaf.addr), owner(holder)).await? {
                return Ok(InTurn::Dead(holder));
            }
        }
    }

    fn leaf_of<'a>(&self, image: &'a LeafImage) -> Leaf<'a> {
        Leaf::new(self.shape.table, image.addr, &image.words)
    }

    async fn store_now(
        &self,
        session: &Session,
        (leaf, stamp): (LeafImage, Option<u64>),
        content: LeafContent,
        (mut lead, turn): (Option<ChangeLead>, Option<LeafTurn>),
    ) -> Result<Stored, IndexError> {
        let old = Leaf::new(self.shape.table, leaf.addr, &leaf.words);
        let retiring = match old.content() {
            NewValue::Record(word) => {
                let (record, _) = self.record_place(word)?;
                Some(session.prepare_retire(record).await?)
            }
            _ => None,
        };
        let is_locked = turn.is_some();
        let token = match &turn {
            Some(turn) => turn.turn.token(),
            None => session.lock_token(),
        };
        let mut by = old.by();
        if LOCK_PROVES_NOTHING.is_armed() {
            by = session.reliable().word(leaf.lock_addr()).await?;
        }
        let alone = match is_locked {
            true => None,
            false => self.changing_leaf_alone(session, (leaf.addr, old), stamp),
        };
        let is_alone = alone.is_some();
        let _changing = match alone {
            Some(alone) => alone,
            None => self.changing_leaf(leaf.addr).await,
        };
        if !is_alone
            && !is_locked
            && session.reliable().cas(leaf.lock_addr(), by, token).await? != by
        {
            if let Some(retiring) = retiring {
                session.cancel_retire(retiring);
            }
            count(&self.counts.lock_lost);
            return Ok(Stored::Lost { content, lead, dead: None });
        }
        debug_assert!(
            !is_alone || self.leaf_changes.is_alone(leaf.addr),
            "INV-SMART-13: others change the leaf"
        );
        let content = self.combine(self.inline_max(session), old, content, lead.as_mut());
        content.keep();
        let mut new = leaf.words.clone();
        set_content(self.shape.table, leaf.addr, &mut new, content.as_new(), token);
        let needs_redo = changed(&leaf.words, &new).needs_redo;
        let passing = turn.map(|it| it.turn).filter(|_| !needs_redo).map(Holding::choose);
        let (turn, passing) = match passing {
            Some(Ok(passing)) => (None, Some(passing)),
            Some(Err(turn)) => (Some(turn), None),
            None => (None, None),
        };
        let how = match &passing {
            Some(passing) => Storing::Passing(passing.token()),
            None if is_alone => Storing::Alone,
            None => Storing::Locked,
        };
        if let Some(lead) = &mut lead {
            lead.close_gets();
        }
        self.write_content(session, &leaf, &new, how).await?;
        // The lock is free: the next change of this compute server asks for it.
        drop(turn);
        if let Some(passing) = passing {
            if let Some(lock) = new.last_mut() {
                *lock = passing.token();
            }
            match passing.done(Some(new.as_slice().into())) {
                Ok(()) => count(&self.counts.passed),
                Err(turn) => release_leaf(session, (leaf.addr, new.len() * 8), turn),
            }
        }
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
            if how == Storing::Alone {
                continue;
            }
            let lock = session.reliable().word(leaf.lock_addr()).await?;
            let is_held = lock == token || how == Storing::Passing(lock);
            if !is_held && !RESEND_CONTENT.is_armed() {
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
        match how {
            Storing::Alone => {
                ops.write_word(old.lock_addr(), new[2]);
            }
            // Without `write_vs_rmw` another's CAS, which fails, could bring the old word back.
            Storing::Passing(next) if session.endpoint().capabilities().write_vs_rmw => {
                ops.write_word(old.lock_addr(), next);
            }
            Storing::Passing(next) => {
                ops.cas(old.lock_addr(), new[2], next);
            }
            Storing::Locked | Storing::Recorded => {}
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
