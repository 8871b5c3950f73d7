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
//!
//! With `hand_over` the operation that gives a lock back leaves the token of the next one of its compute server in the
//! word ([`HandOver`]), which needs no CAS then.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::local::{Entered, HandOver, Holding, QueuePlace};
use farleaf_index::remote_lock::release_turn;
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

/// A lock of the table that an operation has, and its place among the operations of this compute server.
#[derive(Debug)]
struct HeldLock {
    at: GlobalAddr,
    token: u64,
    /// Given up after the lock, so that the next task finds it free.
    _place: Option<QueuePlace>,
    /// The turn, if the lock may be passed on.
    turn: Option<Holding>,
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
        let table = self.lock_table(session).await?;
        let (mut held, mut has_waited) = (Vec::with_capacity(locks.0.len()), false);
        for index in locks.0 {
            match self.take_lock((session, counts), table.plus(index * 8)).await {
                Ok((lock, waited)) => {
                    has_waited |= waited;
                    held.push(lock);
                }
                Err(error) => {
                    self.give_back((session, counts), held).await?;
                    return Err(error);
                }
            }
        }
        let done = work(has_waited).await;
        let given_back = self.give_back((session, counts), held).await;
        let done = done?;
        // The work is done, and nobody may take it for undone.
        given_back.map_err(|error| IndexError::OutcomeUnknown(error.to_string()))?;
        Ok(done)
    }

    /// Takes a lock, after the tasks of this compute server that came before; returns it, and whether another has had
    /// the lock.
    async fn take_lock(
        &self,
        (session, counts): (&Session, &Counts),
        at: GlobalAddr,
    ) -> Result<(HeldLock, bool), IndexError> {
        let (reliable, mut wait) = (session.reliable(), LockWait::default());
        let mut lock = HeldLock { at, token: session.lock_token(), _place: None, turn: None };
        let mut has_waited;
        match &self.turns {
            None => {
                has_waited = self.queue.is_taken(at.word());
                lock._place = queue_for(session, &self.queue, at.word()).await;
            }
            Some(turns) => {
                let (turn, entered, waited) = table_turn(session, turns, &lock).await;
                lock.turn = Some(turn);
                if let Entered::Passed(_) = entered {
                    return Ok((lock, true));
                }
                has_waited = waited;
            }
        }
        loop {
            let found = reliable.cas(at, 0, lock.token).await?;
            if found == 0 {
                return Ok((lock, has_waited));
            }
            has_waited = true;
            count(&counts.table_lock_lost);
            let is_dead = wait.again(session, ("the lock at", at), found).await?;
            if is_dead && reliable.cas(at, found, lock.token).await? == found {
                return Ok((lock, true));
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

    /// Gives locks back, or passes them on.
    async fn give_back(
        &self,
        (session, counts): (&Session, &Counts),
        mut held: Vec<HeldLock>,
    ) -> Result<(), IndexError> {
        let mut passing = Vec::new();
        let mut ops = session.client().ops();
        for lock in &mut held {
            let chosen = lock.turn.take().map(Holding::choose);
            let (next, passed) = match chosen {
                Some(Ok(passed)) => (passed.token(), Some(passed)),
                Some(Err(turn)) => {
                    lock.turn = Some(turn);
                    (0, None)
                }
                None => (0, None),
            };
            ops.cas(lock.at, lock.token, next);
            passing.push((next, passed));
        }
        if !held.is_empty() && session.client().post_many(ops).await.is_err() {
            for (lock, (next, _)) in held.iter().zip(&passing) {
                // Only the holder takes its token away, so a lost CAS may be posted again.
                session.reliable().cas_release(lock.at, lock.token, *next).await?;
            }
        }
        for (lock, (_, passed)) in held.iter().zip(passing) {
            match passed.map(|passed| passed.done(None)) {
                Some(Ok(())) => count(&counts.passed),
                Some(Err(turn)) => release_turn(session, lock.at, turn),
                None => {}
            }
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

/// Waits for the turn at a lock of the table; also returns whether another has had it. No remote operation.
async fn table_turn(
    session: &Session,
    turns: &Arc<HandOver>,
    lock: &HeldLock,
) -> (Holding, Entered, bool) {
    let (began_ns, at) = (session.endpoint().now_ns(), lock.at);
    let orphan = {
        let session = session.clone();
        move |turn: Holding| release_turn(&session, at, turn)
    };
    let (turn, entered) = turns.enter(at, lock.token, at, orphan).await;
    (turn, entered, session.endpoint().now_ns() > began_ns)
}

/// The lock table that a word of the meta object at `meta` names.
pub(in crate::smart) fn lock_table_at(
    meta: GlobalAddr,
    word: u64,
) -> Result<GlobalAddr, IndexError> {
    let addr = GlobalAddr::from_word(word).filter(|addr| addr.offset() % 64 == 0);
    addr.ok_or_else(|| corrupt(meta, meta, "its lock table is at no address"))
}
