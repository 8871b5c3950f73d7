//! Remote lock: a word of remote memory that names its holder, taken by a CAS and given back whatever becomes of the taker.

mod left_lock;

use std::any::Any;
use std::future::Future;
use std::pin::pin;

use farleaf_fabric::{Buf, Client, Endpoint, GlobalAddr, Incarnation, OpError, OpErrorKind, Ops};
use farleaf_pool::{Retiring, Session, Tries, is_open};

use crate::IndexError;
use crate::compute::regions::{LOOKS_MAX, Watched, looks_in, watch};
use crate::local::hand_over::NodeImage;
use crate::local::{Holding, Passing, QueuePlace};
use crate::oneshot::{Receiver, channel};
use crate::retry::LockWait;
pub use left_lock::{LeftLock, LockKeeper};

/// A lock that its holder has done with is left if its home cannot be reached for as long; one that the holder gives up,
/// mostly as it has just waited for that home, sooner.
const LEAVE_NS: u64 = 1_000_000_000;
const LEAVE_SOON_NS: u64 = 200_000_000;

farleaf_fabric::canaries! {
    pub RESEND_BLINDLY = "resend-blindly",
        "a lost change is written again without a look whether its lock is still held";
    pub PASS_WHEN_POSTED = "pass-when-posted",
        "a waiter learns of a pass when the holder's last chain is posted, not when it is done";
    pub LOSE_CHOSEN_TURN = "lose-chosen-turn",
        "the lock of a chosen waiter that went away is kept for ever";
    pub END_TURN_EARLY = "end-turn-early",
        "the turn at an own leaf ends with its caller, while the change is under way";
}

/// The place of a lock word that may move between servers.
#[derive(Debug)]
pub struct LockHome {
    /// The compute server whose memory has it, if one has. Once its life has ended, nothing is left to be given back.
    pub owner: Option<Incarnation>,
    /// Dropped when the lock has been given back, or is lost with its owner.
    pub kept: Box<dyn LockKeeper>,
}

impl LockHome {
    /// The outcome of `work`, which gives a lock word back: `place` says where it is, its token, and what follows. `None` if
    /// its owner dies first, or if that cannot be reached for `patience_ns`: then the lock is left, with the WRITEs of
    /// `spare`.
    async fn wait<T>(
        home: &mut Option<LockHome>,
        session: &Session,
        work: impl Future<Output = T>,
        place: (GlobalAddr, u64, u64),
        (spare, patience_ns): (Option<&Ops>, u64),
    ) -> Option<T> {
        let Some((owner, takes)) =
            home.as_ref().and_then(|home| Some((home.owner?, home.kept.takes())))
        else {
            return Some(work.await);
        };
        let can_leave = takes && session.endpoint().is_lossy();
        let looks = if can_leave { looks_in(session, patience_ns) } else { LOOKS_MAX };
        let end = watch(session, owner, pin!(work), looks).await;
        match end {
            Watched::Ended(outcome) => Some(outcome),
            Watched::Dead => None,
            Watched::Late => {
                if let Some(home) = home.take() {
                    home.kept.leave(LeftLock::new(session, owner, place, spare));
                }
                None
            }
        }
    }
}

/// A lock word that holds this client's token, given back when dropped.
#[derive(Debug)]
pub struct Lock {
    session: Session,
    word: GlobalAddr,
    token: u64,
    state: LockState,
    /// The task's place among those of this compute server that want it.
    pub(crate) place: Option<QueuePlace>,
    /// `None` for a word that stays where it is, on a memory server.
    home: Option<LockHome>,
    /// Its turn in a hand-over queue, which it passes on or which ends with the release.
    turn: Option<Holding>,
    /// The waiter that the release passes the word to.
    passing: Option<Passing>,
    /// The turn alone is the lock: no word names the holder.
    is_local: bool,
    /// Dropped once no operation under the lock is under way any more.
    kept: Option<Box<dyn Any>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    /// The only CAS for it may be under way; or it is held.
    Taken,
    /// Asked for again, as the outcome of the first CAS is not known: it may be held by that one while the
    /// next is under way.
    Doubtful,
    /// The operation that gives it back may be under way.
    Releasing,
    /// Not this one's to give back.
    Gone,
}

impl Lock {
    /// A lock that is about to be asked for: dropped from here on, it is given back.
    pub(crate) fn about_to_take(session: &Session, word: GlobalAddr, token: u64) -> Self {
        let (state, session) = (LockState::Taken, session.clone());
        let (place, home, turn, passing, kept) = (None, None, None, None, None);
        Lock { session, word, token, state, place, home, turn, passing, is_local: false, kept }
    }

    /// The lock of what this compute server alone changes: a turn in a hand-over queue, and no word. `word` lies on the
    /// server of what it protects. `kept` is dropped when the turn ends, after all that was posted under it has landed.
    pub fn local(session: &Session, word: GlobalAddr, turn: Holding, kept: Box<dyn Any>) -> Self {
        let mut lock = Lock::about_to_take(session, word, turn.token());
        lock.disarm();
        (lock.is_local, lock.turn, lock.kept) = (true, Some(turn), Some(kept));
        lock
    }

    /// Returns whether the turn alone is the lock.
    pub fn is_local(&self) -> bool {
        self.is_local
    }

    /// Keeps `kept` until the lock is given back and no operation under it is under way any more.
    pub fn keep(&mut self, kept: impl Any) {
        self.kept = Some(Box::new(kept));
    }

    /// The lock of a word that holds the token of `turn`: another task of this compute server has passed it on.
    pub fn passed(session: &Session, word: GlobalAddr, turn: Holding) -> Self {
        let mut lock = Lock::about_to_take(session, word, turn.token());
        lock.turn = Some(turn);
        lock
    }

    /// Gives the lock, which is held, its turn in the hand-over queue of its word.
    #[must_use]
    pub fn in_turn(mut self, turn: Holding) -> Self {
        self.turn = Some(turn);
        self
    }

    /// Chooses the waiter of this compute server that the release passes the word to; the node that it wants. The caller
    /// calls [`Lock::finish_handing`] next.
    pub fn choose(&mut self) -> Option<GlobalAddr> {
        match self.turn.take()?.choose() {
            Ok(passing) => {
                let wants = passing.wants();
                self.passing = Some(passing);
                Some(wants)
            }
            Err(turn) => {
                self.turn = Some(turn);
                None
            }
        }
    }

    /// Takes it if the word holds `expected`; what was found: `expected` if it is taken. 1 CAS.
    ///
    /// # Errors
    /// As [`farleaf_pool::Reliable::cas`].
    pub(crate) async fn take(&mut self, expected: u64) -> Result<u64, OpError> {
        let session = self.session.clone();
        let mut tries = Tries::default();
        loop {
            let mark = session.reliable().post_mark();
            match session.client().cas(self.word, expected, self.token).await {
                Ok(found) => {
                    self.set_taken();
                    let was_first = tries.in_doubt() && found == self.token;
                    return Ok(if was_first { expected } else { found });
                }
                Err(error) => {
                    self.doubt();
                    session.reliable().again(&mut tries, mark, error).await?;
                }
            }
        }
    }

    /// The token by which the word names this client.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The outcome of the CAS for it is not known, and another is about to be posted. Or a WRITE to what it protects, on its
    /// server, may still be under way: it is given back once that takes no more effect.
    pub fn doubt(&mut self) {
        self.state = LockState::Doubtful;
    }

    /// The only CAS for it has come back.
    pub(crate) fn set_taken(&mut self) {
        self.state = LockState::Taken;
    }

    /// Leaves the lock to the client that recovers this compute server, which has been cut off.
    pub fn abandon(mut self) {
        self.disarm();
    }

    /// Makes its release wait as long as `session` does.
    pub fn with_session(mut self, session: &Session) -> Self {
        self.session = session.clone();
        self
    }

    /// The lock was not taken, or is left to whoever recovers this compute server.
    pub(crate) fn disarm(&mut self) {
        self.state = LockState::Gone;
    }

    /// Adds the release to `ops`, leaving `word` in the lock word.
    ///
    /// Without `write_vs_rmw` a WRITE could be lost against another's CAS, so it is a CAS there.
    fn release_in(&self, ops: &mut Ops, word: u64) {
        if self.session.endpoint().capabilities().write_vs_rmw {
            ops.write_word(self.word, word);
        } else {
            ops.cas(self.word, self.token, word);
        }
    }

    /// Gives it back; by a task, if the outcome is lost. 1 round trip.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn release(mut self) -> Result<(), IndexError> {
        if self.is_local {
            return Ok(());
        }
        let client = self.session.client();
        let mut ops = client.ops();
        self.release_in(&mut ops, 0);
        self.state = LockState::Releasing;
        match self.session.client().chain(ops).await {
            Ok(_) => self.disarm(),
            Err(error) if is_open(error) => {}
            Err(error) => {
                self.disarm();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Posts `ops`, all WRITEs to what the lock protects or to this client's own areas on the lock's
    /// server, and leaves `word` in the lock word, in one chain; `retiring` is retired then. Whatever
    /// becomes of the caller and of the completion, it is done to its end (`INV-BT-8`).
    ///
    /// # Errors
    /// `OutcomeUnknown` if it takes longer than the caller waits; it will happen once the server can
    /// be reached.
    pub async fn finish(
        self,
        ops: Ops,
        word: u64,
        retiring: Option<Retiring>,
    ) -> Result<(), IndexError> {
        self.finish_handing(ops, word, retiring, None).await
    }

    /// As [`Lock::finish`]. If a waiter was [chosen](Lock::choose), its token stays in the lock word in place of `word`, and
    /// it gets `image`, the content of the node that it wants, once the chain has completed.
    ///
    /// # Errors
    /// As [`Lock::finish`].
    pub async fn finish_handing(
        mut self,
        mut ops: Ops,
        word: u64,
        retiring: Option<Retiring>,
        image: Option<NodeImage>,
    ) -> Result<(), IndexError> {
        let session = self.session.clone();
        let (lock, token, is_local) = (self.word, self.token, self.is_local);
        let pass = self.passing.take().map(|passing| Pass { passing, image, is_local });
        if is_local && ops.is_empty() {
            if let Some(pass) = pass {
                pass.tell(&session, lock);
            }
            return Ok(());
        }
        let spare = session.reliable().spare_ops(&ops);
        let word = pass.as_ref().map_or(word, |pass| pass.passing.token());
        if !is_local {
            self.release_in(&mut ops, word);
        }
        self.disarm();
        let (home, kept) = (self.home.take(), self.kept.take());
        // The turn of a lock without a word ends with what was posted. Else the word says when the next task may go on.
        let kept = Kept { turn: if is_local { self.turn.take() } else { None }, kept };
        let place = (lock, token, word);
        let mut posted =
            PostedChain { session: &session, spare, place, is_local, retiring, home, pass, kept };
        if PASS_WHEN_POSTED.is_armed()
            && let Some(pass) = posted.pass.take()
        {
            pass.tell(&session, lock);
        }
        match session.client().chain(ops).await {
            Ok(_) => {
                (posted.spare, posted.kept) = (None, Kept::default());
                if let Some(pass) = posted.pass.take() {
                    pass.tell(&session, lock);
                }
                if let Some(retiring) = posted.retiring.take() {
                    session.retire(retiring);
                }
                Ok(())
            }
            Err(error) if is_open(error) => {
                let unknown = || IndexError::OutcomeUnknown(error.to_string());
                let done = posted.settle().ok_or_else(unknown)?;
                let done = session.reliable().within(done).await;
                done.and_then(Result::ok).ok_or_else(unknown)
            }
            Err(error) => {
                // This compute server has been cut off, and so have the waiters.
                (posted.spare, posted.pass, posted.kept) = (None, None, Kept::default());
                Err(IndexError::OutcomeUnknown(error.to_string()))
            }
        }
    }

    /// Posts `ops`, WRITEs to what the lock protects, and the release in one chain, by a task that nobody waits for.
    ///
    /// Cost: `ops` and 1 CAS, or a WRITE with `write_vs_rmw`; no wait.
    pub fn release_unawaited(mut self, build: impl FnOnce(&Session, &mut Ops) + 'static) {
        let session = self.session.clone();
        session.spawn(async move |session| {
            let mut ops = session.client().ops();
            build(&session, &mut ops);
            let spare = session.reliable().spare_ops(&ops);
            self.release_in(&mut ops, 0);
            let (place, mut home) = ((self.word, self.token, 0), self.home.take());
            self.disarm();
            let posted = session.client().unawaited().chain(ops);
            let left = (spare.as_ref(), LEAVE_NS);
            let error = match LockHome::wait(&mut home, &session, posted, place, left).await {
                Some(Err(error)) if is_open(error) => error,
                // Done, or lost with its owner, or left.
                _ => return,
            };
            if let Some(spare) = spare {
                debug_assert_eq!(error.server, place.0.server());
                let settled = settle_chain(&session, &spare, place, false);
                // An error is final: this compute server has been cut off.
                let _ = LockHome::wait(
                    &mut home,
                    &session,
                    settled,
                    place,
                    (Some(&spare), LEAVE_SOON_NS),
                )
                .await;
            }
        });
    }
}

/// Has a chain whose completion was lost done to its end: `spare`, and `word` in place of `token` in the lock word, which
/// a local lock has not.
async fn settle_chain(
    session: &Session,
    spare: &Ops,
    (lock, token, word): (GlobalAddr, u64, u64),
    is_local: bool,
) -> Result<(), OpError> {
    let reliable = session.maintenance();
    reliable.settle(lock.server()).await?;
    if is_local {
        return reliable.chain(|ops| reliable.copy_into(spare, ops)).await.map(drop);
    }
    if reliable.word(lock).await? != token && !RESEND_BLINDLY.is_armed() {
        return Ok(());
    }
    let chain = |ops: &mut Ops| {
        reliable.copy_into(spare, ops);
        ops.cas(lock, token, word);
    };
    reliable.release(lock, token, chain).await
}

/// A waiter whose token the chain under way leaves in the lock word, and what it gets.
#[derive(Debug)]
struct Pass {
    passing: Passing,
    image: Option<NodeImage>,
    is_local: bool,
}

impl Pass {
    /// The chain has completed: tells the waiter. If it is gone, a task releases the word.
    fn tell(self, session: &Session, word: GlobalAddr) {
        if let Err(turn) = self.passing.done(self.image)
            && !self.is_local
            && !LOSE_CHOSEN_TURN.is_armed()
        {
            release_turn(session, word, turn);
        }
    }
}

/// The turn, and what else ends with the last operation under a lock.
#[derive(Debug, Default)]
struct Kept {
    turn: Option<Holding>,
    kept: Option<Box<dyn Any>>,
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.turn.is_none() && self.kept.is_none()
    }
}

/// Releases a word that holds the token of a turn which nobody waits for any more, or passes it on: by a task.
pub fn release_turn(session: &Session, word: GlobalAddr, turn: Holding) {
    session.spawn(async move |session| {
        let reliable = session.maintenance();
        // An error is final: this compute server has been cut off.
        let _ = reliable.cas_release(word, turn.token(), 0).await;
        drop(turn);
    });
}

impl Drop for Lock {
    /// The taker was dropped, or failed, between taking and releasing, or the release's outcome was
    /// lost. The token is unique, so that giving it back can never release another client's lock.
    fn drop(&mut self) {
        if self.state == LockState::Gone {
            return;
        }
        let is_lossy = self.session.endpoint().is_lossy();
        let (word, token, state) = (self.word, self.token, self.state);
        if state == LockState::Releasing && !is_lossy {
            return;
        }
        // The turn ends here, as a task of a compute server that dies may never run: the next one asks until the word is free.
        drop(self.turn.take());
        let mut home = self.home.take();
        let pass = self.passing.take();
        let pass = pass.map(|passing| Pass { passing, image: None, is_local: false });
        let left = pass.as_ref().map_or(0, |pass| pass.passing.token());
        self.session.spawn(async move |session| {
            let released = async {
                let reliable = session.maintenance();
                if state == LockState::Taken {
                    let found = reliable.client().cas(word, token, left).await;
                    if found == Ok(token) || !is_lossy {
                        return found.is_ok();
                    }
                }
                // A CAS for the lock, or a release by WRITE, may be under way still.
                reliable.settle(word.server()).await.is_ok()
                    // An error is final: this compute server has been cut off.
                    && reliable.cas_release(word, token, left).await.is_ok()
            };
            let place = (word, token, left);
            let released =
                LockHome::wait(&mut home, &session, released, place, (None, LEAVE_SOON_NS)).await;
            if let (Some(pass), Some(true)) = (pass, released) {
                pass.tell(&session, word);
            }
        });
    }
}

/// A chain that has been posted and must be done to its end. Dropped, a task sees to that.
struct PostedChain<'a> {
    session: &'a Session,
    /// The WRITEs; `None` once they are done, or where no completion is ever lost.
    spare: Option<Ops>,
    /// The lock word, the token in it, and the value that stays there.
    place: (GlobalAddr, u64, u64),
    is_local: bool,
    retiring: Option<Retiring>,
    home: Option<LockHome>,
    /// The waiter that the chain passes the lock to.
    pass: Option<Pass>,
    kept: Kept,
}

impl PostedChain<'_> {
    /// Has it done by a task; a receiver that hears of the end. `None` if nothing is to be done.
    fn settle(&mut self) -> Option<Receiver<Result<(), OpError>>> {
        let Some(spare) = self.spare.take() else {
            self.tell_later();
            return None;
        };
        let (sender, receiver) = channel();
        let hold = self.session.hold();
        let (place, is_local, retiring) = (self.place, self.is_local, self.retiring.take());
        let (mut home, pass, kept) =
            (self.home.take(), self.pass.take(), std::mem::take(&mut self.kept));
        self.session.spawn(async move |session| {
            let settled = settle_chain(&session, &spare, place, is_local);
            // Only a home with an owner can be gone.
            let who = home.as_ref().and_then(|home| home.owner).unwrap_or(Incarnation(0));
            let gone = OpError { server: place.0.server(), kind: OpErrorKind::Gone { who } };
            let left = (Some(&spare), LEAVE_SOON_NS);
            let done = LockHome::wait(&mut home, &session, settled, place, left).await;
            let done = done.unwrap_or(Err(gone));
            if let (Ok(()), Some(pass)) = (done, pass) {
                pass.tell(&session, place.0);
            }
            if let (Ok(()), Some(retiring)) = (done, retiring) {
                session.retire(retiring);
            }
            drop((hold, home, kept));
            sender.send(done);
        });
        Some(receiver)
    }

    /// The caller went away while the chain was under way, on a fabric where no completion is lost: tells the waiter, and
    /// lets the next task go on, once an operation behind the chain has come back.
    fn tell_later(&mut self) {
        let (pass, kept) = (self.pass.take(), std::mem::take(&mut self.kept));
        if pass.is_none() && kept.is_empty() {
            return;
        }
        let lock = self.place.0;
        self.session.spawn(async move |session| {
            let is_done = session.maintenance().word(lock).await.is_ok();
            drop(kept);
            if let (Some(pass), true) = (pass, is_done) {
                pass.tell(&session, lock);
            }
        });
    }
}

impl Drop for PostedChain<'_> {
    fn drop(&mut self) {
        if END_TURN_EARLY.is_armed() {
            self.kept = Kept::default();
        }
        let _ = self.settle();
    }
}

/// Locks a word that is a lock and nothing else. A dead holder's lock is taken over, so what the lock
/// protects is in order whenever its holder dies.
///
/// Cost: 1 CAS, more if another holds the lock.
///
/// # Errors
/// `Unavailable` if one holder keeps it too long.
pub async fn lock_word(session: &Session, word: GlobalAddr) -> Result<Lock, IndexError> {
    lock_word_after(session, word, async |_| Ok(())).await
}

/// As [`lock_word`], where the holder may have been changing something else under the lock: `finish` finishes
/// that before the lock of a dead holder, whose token it gets, is taken over. Several takers may call it at once.
pub(crate) async fn lock_word_after(
    session: &Session,
    word: GlobalAddr,
    finish: impl AsyncFn(u64) -> Result<(), IndexError>,
) -> Result<Lock, IndexError> {
    lock_word_beside(session, word, async || Ok(()), finish).await
}

/// As [`lock_word_after`], where the holder may wait for something of this compute server's: `meanwhile` is done
/// before each further try.
pub(crate) async fn lock_word_beside(
    session: &Session,
    word: GlobalAddr,
    meanwhile: impl AsyncFn() -> Result<(), IndexError>,
    finish: impl AsyncFn(u64) -> Result<(), IndexError>,
) -> Result<Lock, IndexError> {
    let mut wait = LockWait::default();
    let mut expected = 0;
    loop {
        let token = session.lock_token();
        let mut lock = Lock::about_to_take(session, word, token);
        let holder = lock.take(expected).await?;
        if holder == expected {
            return Ok(lock);
        }
        lock.disarm();
        meanwhile().await?;
        let is_dead = holder != 0 && wait.again(session, ("node", word), holder).await?;
        if is_dead {
            finish(holder).await?;
        }
        expected = if is_dead { holder } else { 0 };
    }
}

/// Tries once to change the lock word from `expected` to `token`, and READs what it protects; the inner error is the
/// word that was found. Both are on one server.
///
/// Cost: 1 CAS and 1 READ, 1 round trip.
///
/// # Errors
/// As [`farleaf_pool::Reliable::cas`].
pub async fn try_lock_reading(
    session: &Session,
    word: GlobalAddr,
    expected: u64,
    token: u64,
    what: (GlobalAddr, usize),
) -> Result<Result<(Lock, Buf), u64>, OpError> {
    let lock = Lock::about_to_take(session, word, token);
    try_lock(lock, session.client(), expected, what).await
}

/// As [`try_lock_reading`], of a word that may move between servers.
///
/// # Errors
/// As [`try_lock_reading`].
pub async fn try_lock_at_home(
    session: &Session,
    word: GlobalAddr,
    (expected, token): (u64, u64),
    what: (GlobalAddr, usize),
    home: LockHome,
) -> Result<Result<(Lock, Buf), u64>, OpError> {
    let mut lock = Lock::about_to_take(session, word, token);
    lock.home = Some(home);
    try_lock(lock, session.client(), expected, what).await
}

async fn try_lock(
    mut lock: Lock,
    client: &Client,
    expected: u64,
    (from, bytes): (GlobalAddr, usize),
) -> Result<Result<(Lock, Buf), u64>, OpError> {
    let (word, token, session) = (lock.word, lock.token, lock.session.clone());
    let mut tries = Tries::default();
    let mut ops = loop {
        let mut ops = client.ops();
        ops.cas(word, expected, token);
        ops.read(from, client.buf(bytes));
        let mark = session.reliable().post_mark();
        match client.chain(ops).await {
            Ok(ops) => break ops,
            Err(error) => {
                lock.doubt();
                session.reliable().again(&mut tries, mark, error).await?;
            }
        }
    };
    lock.set_taken();
    let found = ops.old(0);
    if found != expected && !(tries.in_doubt() && found == token) {
        lock.disarm();
        return Ok(Err(found));
    }
    Ok(Ok((lock, ops.take_buf(1))))
}
