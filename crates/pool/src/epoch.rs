//! Epochs: tell when no operation can hold a retired object any more.
//!
//! `G` is the global epoch, a word on server 0. Every member has a *view* `L` of it (its last READ)
//! and an *announcement* `A` in its entry: an epoch, or idle. Operations pin `L` of their member.
//!
//! INV-EPOCH-1: `A <= L`, and `A <=` every pin of the member, while it is announced live. (`A` is
//! the least of `L` and the pins, `L` read before the pins; later pins are at least that `L`.)
//! INV-EPOCH-2: `G` goes from `g` to `g + 1` only by a CAS whose initiator, after it had read `g`,
//! saw every live member announced at `g` or idle.
//! INV-EPOCH-3: while a member is announced live, `L <= G <= L + 1`. Going live, it announces first
//! and reads `G` after. A CAS from `G` whose initiator looked before may still come; the next one's
//! initiator must look after that and finds `A <= L < G`.
//! INV-EPOCH-4: no operation reads remote memory before its pin is visible and its member is
//! announced live. Going idle, a tick first clears `announced_live` and then looks at the pins; an
//! operation pins first and then looks at `announced_live`: one of the two sees the other.
//!
//! INV-EPOCH-5, why reuse is safe: let an object be unlinked, and then retired at epoch `e`, the `L` of
//! its member, which is live because the retiring operation is pinned. A reader that holds the object
//! began before, so that its pin is at most the `G` of then, at most `e + 1` by 3. As long as it runs,
//! its member's `A` is live and at most `e + 1` by 1. The object is reused only after a look at all
//! members, begun after the retirement, found each at `A >= e + 2`, idle, or dead. A member that was
//! idle in that look begins its operations after it, by 4, when the object was unlinked. A dead member
//! is fenced; the results of its reads go nowhere.
//!
//! INV-EPOCH-6: the pool hands out an address again only once `G >= e + 2`, also if every member is
//! idle and nothing is pinned. Recovery and sweeps do not know `e`; they wait until `G` has passed its
//! value after the walk. So an idle member with objects to free also moves `G` on.
//!
//! INV-EPOCH-7, remembered addresses: a *moment* of a member is a number that rises before `L` does,
//! and before the member is announced live. Let an operation read a pointer to an object at moment `m`,
//! and let a later operation of the member, after its pin, find the moment `m` still. Then nobody has
//! handed out the address again, and nobody will while that operation is pinned. For `G` was at least
//! `p` then, the `L` of the moment, and the object was linked: it is retired at an `e` of at least
//! `p - 1` (by 3), and reused by others once they have found `A >= e + 2 > p` or idleness after that. But
//! the member has been live since, at `A <= L = p`. Its own sessions reuse it once `L >= e + 2 > p`, by
//! 6, which is another moment; they look at `L` first and then at the pins, so that they see the pin of
//! an operation that still found `m`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{Endpoint, OpErrorKind};

use crate::geometry::{EPOCH_WORDS, MEMBER_BYTES};
use crate::member;
use crate::pins::UNPINNED;
use crate::reliable::Reliable;
use crate::words::{AnnounceWord, EPOCH_MAX, MemberState, MemberWord};
use crate::{Pool, PoolError};

/// Time to wait for another session that is announcing.
const WAIT_NS: u64 = 1_000;
/// Looks at the members between questions whether one that does not lag lives.
const CALM_LOOKS: u64 = 64;
/// Looks of which one is at all members if there is nothing to free.
const LOOK_EVERY: u64 = 4;
/// Ticks that a member may lag before the fabric is asked whether it lives, and between questions.
const LAG_TICKS: u8 = 4;
const ATTEMPTS_MAX: usize = 16;
/// Bits of a moment that count; the others tell the members apart that this process has been, since one
/// handle of a table may serve several.
const MOMENT_BITS: u32 = 44;
static POOLS: AtomicU64 = AtomicU64::new(1);

/// A member's epochs.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// `L`.
    pub(crate) view: AtomicU64,
    pub(crate) announced_live: AtomicBool,
    /// The member's moment (INV-EPOCH-7).
    moment: AtomicU64,
    announced: Mutex<Announced>,
    begun_before: AtomicU64,
    lag: Mutex<Vec<u8>>,
    /// Nobody lagged when it was last looked.
    is_calm: AtomicBool,
    /// There was no other member when it was last looked.
    is_alone: AtomicBool,
    looks: AtomicU64,
    /// Slot of the member that was asked after last without lagging.
    calm_asked: AtomicU32,
}

/// Known state of the own announcement.
#[derive(Clone, Copy, Debug, Default)]
enum Announced {
    Known(AnnounceWord),
    /// A CAS on it had no known outcome.
    #[default]
    Unknown,
    /// A session is changing it.
    Busy,
}

/// Findings of a tick.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) epoch: u64,
    /// The least announcement of other live members; [`UNPINNED`] if none is announced live.
    pub(crate) least_of_others: u64,
    /// Members that have lagged for a while, and now and then one that does not lag: the fabric is to be
    /// asked whether they live.
    pub(crate) suspects: Vec<(u32, MemberWord)>,
    /// Slots below this have members.
    pub(crate) slots: u32,
}

/// # Errors
/// `Corrupt` if it can be no global epoch.
pub(crate) fn check(epoch: u64) -> Result<(), PoolError> {
    if !(1..EPOCH_MAX - 1).contains(&epoch) {
        return Err(PoolError::Corrupt(format!("the global epoch is {epoch:#x}")));
    }
    Ok(())
}

impl Epochs {
    /// Of a member that has read the global epoch `view` before it joined.
    pub(crate) fn new(announced: AnnounceWord, members: u32, view: u64) -> Self {
        Epochs {
            view: AtomicU64::new(view),
            moment: AtomicU64::new(POOLS.fetch_add(1, Ordering::Relaxed) << MOMENT_BITS),
            announced: Mutex::new(Announced::Known(announced)),
            lag: Mutex::new(vec![0; members as usize]),
            ..Epochs::default()
        }
    }

    /// The member's moment, to be asked for by a pinned operation (INV-EPOCH-7).
    pub(crate) fn moment(&self) -> u64 {
        self.moment.load(Ordering::SeqCst)
    }

    fn announced(&self) -> MutexGuard<'_, Announced> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unknown(&self) -> bool {
        matches!(*self.announced(), Announced::Unknown)
    }

    /// The right to change the announcement, if no other session has it.
    fn acquire(&self) -> Option<Announcing<'_>> {
        let mut announced = self.announced();
        let before = match *announced {
            Announced::Busy => return None,
            Announced::Known(word) => Some(word),
            Announced::Unknown => None,
        };
        *announced = Announced::Busy;
        Some(Announcing { epochs: self, before, after: None })
    }
}

/// Gives the right back, with what is known then.
struct Announcing<'a> {
    epochs: &'a Epochs,
    before: Option<AnnounceWord>,
    after: Option<AnnounceWord>,
}

impl Drop for Announcing<'_> {
    fn drop(&mut self) {
        *self.epochs.announced() = self.after.map_or(Announced::Unknown, Announced::Known);
    }
}

impl Pool {
    /// Sees to it that this member is announced live. Nothing if it is; otherwise 1 chain.
    pub(crate) async fn ensure_live(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let epochs = &self.epochs;
        let mut announcing = loop {
            if epochs.announced_live.load(Ordering::SeqCst) {
                return Ok(());
            }
            if let Some(announcing) = epochs.acquire() {
                break announcing;
            }
            client.endpoint().sleep(WAIT_NS).await;
        };
        if epochs.announced_live.load(Ordering::SeqCst) {
            announcing.after = announcing.before;
            return Ok(());
        }
        let at = self.geometry().member_addr(self.member).plus(16);
        let mut before = self.announcement(client, &announcing).await?;
        for _ in 0..ATTEMPTS_MAX {
            let epoch = self.pins.announceable(&epochs.view);
            let live = before.next_live(epoch);
            let (ops, again) = client
                .chain(|ops| {
                    ops.cas(at, before.0, live.0);
                    ops.read(self.geometry().epoch_addr(), client.buf(8));
                })
                .await?;
            if ops.old(0) == before.0 || again && ops.old(0) == live.0 {
                self.note_epoch(ops.buf(1).words()[0])?;
                announcing.after = Some(live);
                // INV-EPOCH-7: nothing held objects back while it was idle.
                epochs.moment.fetch_add(1, Ordering::SeqCst);
                epochs.announced_live.store(true, Ordering::SeqCst);
                return Ok(());
            }
            before = AnnounceWord(ops.old(0));
        }
        Err(PoolError::Corrupt("this member's announcement is changed by others".into()))
    }

    /// READs the epoch, the numbers of left clients beside it, and all members' announcements. 1 chain.
    pub(crate) async fn observe(&self, client: Reliable<'_>) -> Result<Observation, PoolError> {
        self.observe_as(client, self.next_look()).await
    }

    /// As [`Self::observe`], with the number of the look.
    pub(crate) async fn observe_as(
        &self,
        client: Reliable<'_>,
        look: u64,
    ) -> Result<Observation, PoolError> {
        let geometry = self.geometry();
        let bytes = geometry.options().members_max as usize * MEMBER_BYTES as usize;
        let (ops, _) = client
            .chain(|ops| {
                ops.read(geometry.epoch_addr(), client.buf(EPOCH_WORDS * 8));
                ops.read(geometry.member_addr(0), client.buf(bytes));
            })
            .await?;
        let &[epoch, left, adopted] = ops.buf(0).words() else {
            unreachable!("the buffer has {EPOCH_WORDS} words")
        };
        self.note_epoch(epoch)?;
        self.has_left_clients.store(left != adopted, Ordering::Relaxed);
        let table = ops.buf(1).words();
        let mut seen = Observation {
            epoch,
            least_of_others: UNPINNED,
            suspects: Vec::new(),
            slots: self.member + 1,
        };
        let (mut needs_recovery, mut has_recoverer) = (false, false);
        let (mut is_calm, mut is_alone) = (true, true);
        // A member that is idle, or announced at an epoch that nobody moves on, does not lag. This member asks after
        // such members one by one: the next of them, or the first again.
        let asks_calm = look.is_multiple_of(CALM_LOOKS);
        let asked = self.epochs.calm_asked.load(Ordering::Relaxed);
        let (mut first_calm, mut next_calm) = (None, None);
        let mut lag = self.epochs.lag.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, (entry, lag)) in member::entries(table).zip(lag.iter_mut()).enumerate() {
            let slot = slot as u32;
            let state = entry.word.state()?;
            if slot == self.member {
                if entry.word != MemberWord::new(MemberState::Live, self.generation) {
                    // Declared dead and fenced.
                    self.close();
                    return Err(PoolError::Closed);
                }
                continue;
            }
            is_alone &= state == MemberState::Free;
            has_recoverer |= entry.is_recoverer;
            if state != MemberState::Free {
                seen.slots = seen.slots.max(slot + 1);
            }
            needs_recovery |= match state {
                MemberState::Dead => true,
                MemberState::Recovering => {
                    !member::is_there(member::entries(table), entry.word.recoverer())
                }
                MemberState::Free | MemberState::Live => false,
            };
            let announced = entry.announced.epoch().filter(|_| state == MemberState::Live);
            seen.least_of_others = seen.least_of_others.min(announced.unwrap_or(UNPINNED));
            *lag = if announced.is_some_and(|at| at < epoch) { *lag + 1 } else { 0 };
            if asks_calm && state == MemberState::Live && *lag == 0 {
                let calm = Some((slot, entry.word));
                first_calm = first_calm.or(calm);
                next_calm = next_calm.or(calm.filter(|_| slot > asked));
            }
            is_calm &= *lag == 0;
            if *lag == LAG_TICKS {
                *lag = 0;
                seen.suspects.push((slot, entry.word));
            }
        }
        if let Some(calm) = next_calm.or(first_calm) {
            self.epochs.calm_asked.store(calm.0, Ordering::Relaxed);
            seen.suspects.push(calm);
        }
        self.epochs.is_calm.store(is_calm, Ordering::Relaxed);
        self.epochs.is_alone.store(is_alone, Ordering::Relaxed);
        self.needs_recovery.store(needs_recovery, Ordering::Relaxed);
        self.has_recoverer.store(has_recoverer, Ordering::Relaxed);
        Ok(seen)
    }

    /// The number of the member's next look or glance. Each has its own, as several sessions look at once: else the one
    /// that asks after members that do not lag would fall to a glance.
    pub(crate) fn next_look(&self) -> u64 {
        self.epochs.looks.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Tells whether a member with nothing to free may skip the look of this number at the members: three looks in
    /// four, unless one lags or the look is one that asks after those that do not.
    pub(crate) fn may_glance(&self, look: u64) -> bool {
        let is_due = look.is_multiple_of(LOOK_EVERY) || look.is_multiple_of(CALM_LOOKS);
        !is_due && self.epochs.is_calm.load(Ordering::Relaxed)
    }

    /// Tells whether the last look found no other member: then nobody waits for the epoch to move on.
    pub(crate) fn is_alone(&self) -> bool {
        self.epochs.is_alone.load(Ordering::Relaxed)
    }

    /// In place of a look: READs the epoch alone; whether it is what this member has seen before. 1 READ of
    /// 8 bytes.
    pub(crate) async fn glance(&self, client: Reliable<'_>) -> Result<bool, PoolError> {
        let epoch = client.word(self.geometry().epoch_addr()).await?;
        Ok(epoch == self.epochs.view.load(Ordering::SeqCst))
    }

    /// Tells whether nobody waits for a tick of this member: it is announced idle, so that the epoch moves on without
    /// it, and no session that has ended waits to be freed. No remote operation.
    pub fn is_at_rest(&self) -> bool {
        let is_live = self.epochs.announced_live.load(Ordering::SeqCst);
        !is_live && !self.epochs.is_unknown() && self.closed().is_empty()
    }

    /// Tells whether no operation has begun since the last announcement.
    pub(crate) fn is_quiet(&self) -> bool {
        self.epochs.begun_before.load(Ordering::Relaxed) == self.pins.begun()
    }

    /// Announces what this member holds on to, or that it is idle. At most 1 CAS.
    pub(crate) async fn announce(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let epochs = &self.epochs;
        let begun = self.pins.begun();
        let quiet = epochs.begun_before.swap(begun, Ordering::Relaxed) == begun;
        if !epochs.announced_live.load(Ordering::SeqCst) && !epochs.is_unknown() {
            return Ok(());
        }
        let Some(mut announcing) = epochs.acquire() else { return Ok(()) };
        if !epochs.announced_live.load(Ordering::SeqCst) {
            return self.announce_idle(client, announcing).await;
        }
        let at = self.geometry().member_addr(self.member).plus(16);
        let mut before = self.announcement(client, &announcing).await?;
        for _ in 0..ATTEMPTS_MAX {
            let idle = quiet && self.pins.try_idle(&epochs.announced_live);
            let epoch = self.pins.announceable(&epochs.view);
            let next = if idle { before.next_idle() } else { before.next_live(epoch) };
            if !idle && before.epoch() == Some(epoch) {
                announcing.after = Some(before);
                return Ok(());
            }
            let found = client.cas(at, before.0, next.0).await?;
            if found == before.0 {
                announcing.after = Some(next);
                return Ok(());
            }
            before = AnnounceWord(found);
        }
        Err(PoolError::Corrupt("this member's announcement is changed by others".into()))
    }

    /// Sees to it that a member that takes itself for idle is announced so: the CAS that was to say
    /// so may have been dropped.
    async fn announce_idle(
        &self,
        client: Reliable<'_>,
        mut announcing: Announcing<'_>,
    ) -> Result<(), PoolError> {
        if announcing.before.is_some() {
            announcing.after = announcing.before;
            return Ok(());
        }
        let before = self.announcement(client, &announcing).await?;
        if before.epoch().is_none() {
            announcing.after = Some(before);
            return Ok(());
        }
        // Whoever begins meanwhile waits until this is done (INV-EPOCH-4).
        let at = self.geometry().member_addr(self.member).plus(16);
        let idle = before.next_idle();
        if client.cas(at, before.0, idle.0).await? == before.0 {
            announcing.after = Some(idle);
        }
        Ok(())
    }

    /// Moves the global epoch on if everybody is there; a member that is announced idle needs it only
    /// if it has something to free (INV-EPOCH-6). At most 1 CAS.
    pub(crate) async fn advance(
        &self,
        client: Reliable<'_>,
        seen: &Observation,
        if_idle: bool,
    ) -> Result<(), PoolError> {
        let is_there = match *self.epochs.announced() {
            Announced::Known(word) => word.epoch().map_or(if_idle, |own| own >= seen.epoch),
            Announced::Unknown | Announced::Busy => false,
        };
        if !is_there || seen.least_of_others < seen.epoch {
            return Ok(());
        }
        // Whenever it lands, it is what this tick has seen to be right; so its outcome need not be
        // known.
        match client.client().cas(self.geometry().epoch_addr(), seen.epoch, seen.epoch + 1).await {
            Ok(found) if found == seen.epoch => self.note_epoch(seen.epoch + 1),
            Err(error) if error.kind == OpErrorKind::Fenced => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Objects retired at an epoch two or more below this may be reused, if they were retired
    /// before `seen` was looked at. At most the global epoch (INV-EPOCH-6).
    pub(crate) fn reuse_bound(&self, seen: &Observation) -> u64 {
        seen.least_of_others.min(self.pins.announceable(&self.epochs.view))
    }

    fn note_epoch(&self, epoch: u64) -> Result<(), PoolError> {
        check(epoch)?;
        if self.epochs.view.load(Ordering::SeqCst) < epoch {
            self.epochs.moment.fetch_add(1, Ordering::SeqCst);
            self.epochs.view.fetch_max(epoch, Ordering::SeqCst);
        }
        Ok(())
    }

    async fn announcement(
        &self,
        client: Reliable<'_>,
        announcing: &Announcing<'_>,
    ) -> Result<AnnounceWord, PoolError> {
        if let Some(word) = announcing.before {
            return Ok(word);
        }
        let at = self.geometry().member_addr(self.member).plus(16);
        Ok(AnnounceWord(client.word(at).await?))
    }
}
