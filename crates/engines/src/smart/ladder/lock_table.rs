//! Lock table: words of remote memory that hold the locks of plain ART's nodes and leaves.
//!
//! With `node_locks` an operation locks nodes before it changes a slot, with `lock=table` a leaf before it changes
//! its value. The locks stand in front of the lock-free protocol, which stays in force: they cost what the paper's
//! baseline pays, and the table is right whatever the settings of the members that share it. So a lock guards
//! nothing that a dead holder could leave half done, and the next client takes it over as it is.
//!
//! The first member that needs the lock table makes it; the meta object names it. A lock word is 0, or the holder's
//! token. An operation takes its locks in the order of their words, so that no two wait for each other.
//!
//! Operations of one compute server wait for each other in its own memory ([`LockQueue`]), in the order of their
//! arrival. One that is to change a slot takes its *turn* at the node in which the cached way to its key ends before it
//! READs anything: what it READs is then not out of date when it has the locks. The turn ends when the slot is changed,
//! so the locks are given back while the next operation READs.

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::local::QueuePlace;
use farleaf_index::retry::{LockWait, queue_for};
use farleaf_index::sync::lock;
use farleaf_pool::Session;

use super::super::layout::META_LOCKS;
use super::super::tree::{Counts, corrupt, count};
use super::Ladder;

/// Locks of a table.
const LOCKS: u64 = 1_024;
/// Bytes of the lock table.
pub(in crate::smart) const LOCKS_BYTES: usize = LOCKS as usize * 8;
/// Nodes at which an operation waits for its turn before it does without: each wait saw the tree grow.
const TURNS_MAX: usize = 64;

/// The locks that one operation takes, in the order in which it takes them.
#[derive(Debug, Default)]
pub(in crate::smart) struct LockSet(Vec<u64>);

impl LockSet {
    pub(super) fn add(&mut self, addr: GlobalAddr) {
        let index = (addr.word().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % LOCKS;
        if let Err(at) = self.0.binary_search(&index) {
            self.0.insert(at, index);
        }
    }
}

impl FromIterator<GlobalAddr> for LockSet {
    fn from_iter<I: IntoIterator<Item = GlobalAddr>>(addrs: I) -> LockSet {
        let mut locks = LockSet::default();
        addrs.into_iter().for_each(|addr| locks.add(addr));
        locks
    }
}

impl Ladder {
    /// Does `work` under `locks`, and tells it whether another has had one of them. In a task, which runs to its end.
    ///
    /// Cost: 1 CAS and 1 round trip for each lock; 1 CAS for each and 1 round trip to give all back. None without
    /// locks.
    ///
    /// # Errors
    /// Those of `work`; `Unavailable` if a lock is not given back for long, `Full` if there is no room for the lock
    /// table: then nothing was done. `OutcomeUnknown` if the work is done and its locks could not be given back.
    pub(in crate::smart) async fn under<T>(
        &self,
        (session, counts): (&Session, &Counts),
        locks: LockSet,
        work: impl AsyncFnOnce(bool) -> Result<T, IndexError>,
    ) -> Result<T, IndexError> {
        if locks.0.is_empty() {
            return work(false).await;
        }
        let (table, token) = (self.lock_table(session).await?, session.lock_token());
        let (mut held, mut has_waited) = (Vec::with_capacity(locks.0.len()), false);
        // Given up after the locks, so that the next task finds its lock free.
        let mut places = Vec::with_capacity(locks.0.len());
        for index in locks.0 {
            let at = table.plus(index * 8);
            match self.take_lock((session, counts), at, token).await {
                Ok((place, waited)) => {
                    has_waited |= waited;
                    places.extend(place);
                }
                Err(error) => {
                    self.give_back(session, &held, token).await?;
                    return Err(error);
                }
            }
            held.push(at);
        }
        let done = work(has_waited).await;
        let given_back = self.give_back(session, &held, token).await;
        drop(places);
        let done = done?;
        // The work is done, and nobody may take it for undone.
        given_back.map_err(|error| IndexError::OutcomeUnknown(error.to_string()))?;
        Ok(done)
    }

    /// Takes a lock, after the tasks of this compute server that came before; returns the place in front of it, and
    /// whether another has had the lock.
    async fn take_lock(
        &self,
        (session, counts): (&Session, &Counts),
        at: GlobalAddr,
        token: u64,
    ) -> Result<(Option<QueuePlace>, bool), IndexError> {
        let (reliable, mut wait) = (session.reliable(), LockWait::default());
        let mut has_waited = self.queue.is_taken(at.word());
        let place = queue_for(session, &self.queue, at.word()).await;
        loop {
            let found = reliable.cas(at, 0, token).await?;
            if found == 0 {
                return Ok((place, has_waited));
            }
            has_waited = true;
            count(&counts.table_lock_lost);
            let is_dead = wait.again(session, ("the lock at", at), found).await?;
            if is_dead && reliable.cas(at, found, token).await? == found {
                return Ok((place, true));
            }
        }
    }

    /// Waits for the turn among the operations of this compute server that are to change a slot of the node in which
    /// the cached way to a key ends, which `end` tells. `None` if they lock no nodes, or it takes too long. No remote
    /// operation.
    pub(in crate::smart) async fn slot_turn(
        &self,
        session: &Session,
        end: impl Fn() -> Option<GlobalAddr>,
    ) -> Option<QueuePlace> {
        if !self.locks_nodes() {
            return None;
        }
        // Each that locks its path locks the root.
        let end = || end().or(self.locks_paths().then_some(self.meta));
        let mut at = end()?;
        for _ in 0..TURNS_MAX {
            let place = queue_for(session, &self.queue, at.word()).await?;
            let now = end()?;
            if now == at {
                return Some(place);
            }
            // The tree has grown meanwhile.
            at = now;
        }
        None
    }

    async fn give_back(
        &self,
        session: &Session,
        held: &[GlobalAddr],
        token: u64,
    ) -> Result<(), IndexError> {
        let mut ops = session.client().ops();
        for at in held {
            ops.cas(*at, token, 0);
        }
        if held.is_empty() || session.client().post_many(ops).await.is_ok() {
            return Ok(());
        }
        for at in held {
            // Only the holder takes its token away, so a lost CAS may be posted again.
            session.reliable().cas_release(*at, token, 0).await?;
        }
        Ok(())
    }

    /// The lock table's address. 1 READ the first time, 1 WRITE and 1 CAS more if there is none.
    async fn lock_table(&self, session: &Session) -> Result<GlobalAddr, IndexError> {
        if let Some(known) = *lock(&self.lock_table) {
            return Ok(known);
        }
        let (reliable, at) = (session.reliable(), self.meta.plus(META_LOCKS));
        let mut word = reliable.word(at).await?;
        if word == 0 {
            let object = session.alloc_unlinked(session.place(), LOCKS_BYTES).await?;
            let mut buf = session.client().buf(LOCKS_BYTES);
            buf.words_mut().fill(0);
            object.write(buf).await?;
            object.keep();
            word = reliable.cas(at, 0, object.addr().word()).await?;
            if word == 0 {
                word = object.addr().word();
            } else {
                object.unkeep();
            }
        }
        let addr = lock_table_at(self.meta, word)?;
        *lock(&self.lock_table) = Some(addr);
        Ok(addr)
    }
}

/// The lock table that a word of the meta object at `meta` names.
pub(in crate::smart) fn lock_table_at(
    meta: GlobalAddr,
    word: u64,
) -> Result<GlobalAddr, IndexError> {
    let addr = GlobalAddr::from_word(word).filter(|addr| addr.offset() % 64 == 0);
    addr.ok_or_else(|| corrupt(meta, meta, "its lock table is at no address"))
}
