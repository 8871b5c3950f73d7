//! Inbox: brings freed objects home to the owners of their blocks, many with one WRITE.
//!
//! A member has a ring for each other member, and a *head* for each ring, all of which lie together. A
//! sender WRITEs addresses of objects that it has freed into its ring of the owner of their blocks. The
//! owner READs its rings now and then, takes what is new, and WRITEs the heads: how many words of each
//! ring it has taken. A head also says for which life of its owner the inbox is open.
//!
//! A ring's word holds an address, whose low 6 bits say in which lap of the ring it was written, or such
//! bits alone, of which nothing comes. Only the sender writes a ring, only the owner the heads.
//!
//! INV-INBOX-1: a sender READs the head under its reclaim pin. A dead owner's recoverer closes the inbox
//! before it walks, and waits for such pins before it reads the retire pages. So what came by the inbox is
//! in no page, and recovery frees it with the owner's blocks; what did not come before it is given back to
//! the bitmaps.
//! INV-INBOX-2: an owner opens its inbox once in a life. It zeroes rings and heads, waits until the others
//! have announced a later epoch, so that no sender to an earlier life is under way, zeroes them again, and
//! then opens. An owner that leaves closes it, waits likewise, and takes the rest, before it gives its
//! blocks up.
//! INV-INBOX-3: what comes for a block that is not the owner's any more, it gives back to the bitmaps.
//!
//! Objects without a ring (the owner has no inbox open, the ring is full, the block is nobody's) go to the
//! bitmaps of their blocks (`remote_free`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{Endpoint, GlobalAddr};

use crate::epoch::Observation;
use crate::geometry::{BlockId, RING_BYTES, RING_WORDS};
use crate::pages::MapWord;
use crate::pins::{PinGuard, pin_at};
use crate::reliable::{Reliable, wait_until};
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError, Session};

/// Ticks of a member between looks at its rings.
const LOOK_TICKS: u32 = 2;
/// The same while it does nothing.
const QUIET_LOOK_TICKS: u32 = 16;
/// Objects that came back by bitmaps before the inbox is worth opening.
const OPENS_AFTER: u64 = 64;
/// Objects that are sent by what is known of their block before its owner is looked up anew.
const USES: u32 = 64;
/// Pages of others' blocks whose objects' sizes are remembered.
const SIZES_MAX: usize = 1 << 16;
/// Between looks whether a task is done.
const TASK_WAIT_NS: u64 = 500;
/// Looks at the others, and waits between, of an owner that has closed its inbox and leaves.
const LEAVE_LOOKS: usize = 32;
const LEAVE_WAIT_NS: u64 = 20_000;
const OPEN: u64 = 1 << 63;
const LIFE: u32 = 0x7fff_ffff;
/// The bits of a ring's word that tell the lap.
const LAP: u64 = 63;

/// One member's inbox, and what it knows of others'.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    own: Mutex<Own>,
    others: Mutex<Others>,
}

#[derive(Debug, Default)]
struct Own {
    phase: Phase,
    /// A task is at it.
    busy: bool,
    error: Option<PoolError>,
    /// Words taken of each ring.
    taken: Vec<u32>,
    /// Slots below this have had a member.
    slots: u32,
    /// Objects that came back by bitmaps.
    returned: u64,
    ticks: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Also if it was closed again.
    #[default]
    Closed,
    /// Zeroed; to be opened once the others have announced a later epoch than this.
    Zeroed(u64),
    Open,
}

#[derive(Debug, Default)]
struct Others {
    rings: BTreeMap<u32, Ring>,
    blocks: BTreeMap<BlockId, Known>,
    /// Bytes of objects by block and page, as they were once: for estimates alone.
    sizes: BTreeMap<(BlockId, u32), u64>,
}

/// The ring of this member in another's inbox.
#[derive(Clone, Copy, Debug)]
enum Ring {
    /// A task looks where an earlier life of this member has ended.
    Unknown,
    Known {
        life: u32,
        next: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    word: BlockWord,
    uses: u32,
}

/// A sender's chance at a ring.
enum Chance {
    /// The inbox is closed, or of a later life of its slot, which owns no block that is known as the slot's.
    Closed,
    /// The end of the ring has to be found first, of an owner's life with so many words taken.
    Unknown(u32, u32),
    /// Room for some, from a position on.
    Room(u32, usize),
}

/// The lap's bits of a position.
fn lap(position: u32) -> u64 {
    u64::from(position / RING_WORDS as u32) % LAP + 1
}

fn place(position: u32) -> usize {
    position as usize % RING_WORDS
}

impl Inbox {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects have come back by bitmaps.
    pub(crate) fn note_returned(&self, count: u32) {
        self.own().returned += u64::from(count);
    }

    /// Bytes of an object in a page of another's block; 0 if that is not known.
    pub(crate) fn bytes_at(&self, block: BlockId, page: u32) -> u64 {
        self.others().sizes.get(&(block, page)).copied().unwrap_or(0)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.own().phase == Phase::Open
    }
}

impl Others {
    /// The owner of a block, as far as it is known.
    fn owner(&mut self, at: BlockId) -> Option<u32> {
        let known = self.blocks.get_mut(&at)?;
        known.uses += 1;
        known.word.is(BlockState::Owned).then(|| known.word.owner())
    }

    fn is_known(&self, at: BlockId) -> bool {
        self.blocks.get(&at).is_some_and(|known| known.uses < USES)
    }

    fn forget_owner(&mut self, owner: u32) {
        self.rings.remove(&owner);
        self.blocks.retain(|_, known| known.word.owner() != owner);
    }

    /// Takes words of a ring whose head is `head`, for at most `count` objects.
    fn reserve(&mut self, owner: u32, head: u64, count: usize) -> Chance {
        if head & OPEN == 0 {
            return Chance::Closed;
        }
        let (of, taken) = ((head >> 32) as u32 & LIFE, head as u32);
        match self.rings.get_mut(&owner) {
            Some(Ring::Known { life, next }) if *life == of => {
                let used = next.wrapping_sub(taken) as usize;
                let count = count.min(RING_WORDS.saturating_sub(used));
                let from = *next;
                *next = next.wrapping_add(count as u32);
                Chance::Room(from, count)
            }
            Some(Ring::Unknown) => Chance::Room(0, 0),
            Some(Ring::Known { .. }) => Chance::Closed,
            None => {
                self.rings.insert(owner, Ring::Unknown);
                Chance::Unknown(of, taken)
            }
        }
    }
}

impl Session {
    /// Looks after the own inbox: opens it once it is worth it, and takes what has come.
    ///
    /// Cost: nothing while objects hardly come back. To open it 3 WRITEs. Then, every other tick of a member
    /// that is at work, 1 READ of 512 bytes per member, and 1 WRITE if something came.
    pub(crate) async fn tend_inbox(
        &self,
        seen: Option<&Observation>,
        bound: u64,
        is_quiet: bool,
    ) -> Result<(), PoolError> {
        let pool = self.pool();
        if pool.member >= pool.geometry().inboxes() {
            return Ok(());
        }
        let phase = {
            let mut own = pool.inbox.own();
            own.slots = own.slots.max(seen.map_or(0, |seen| seen.slots));
            own.ticks = own.ticks.wrapping_add(1);
            let every = if is_quiet { QUIET_LOOK_TICKS } else { LOOK_TICKS };
            let is_due = match own.phase {
                Phase::Closed => own.returned >= OPENS_AFTER && own.slots > 1,
                Phase::Zeroed(epoch) => bound > epoch,
                Phase::Open => own.ticks.is_multiple_of(every),
            };
            if !is_due {
                return Ok(());
            }
            own.phase
        };
        match phase {
            Phase::Closed => self.run_inbox(Pool::zero_inbox).await,
            Phase::Zeroed(_) => self.run_inbox(Pool::open_inbox).await,
            Phase::Open => self.take_from_inbox().await,
        }
    }

    /// Takes what has come, if the inbox is open.
    ///
    /// Cost: 1 READ, and 1 WRITE if something came.
    pub(crate) async fn take_from_inbox(&self) -> Result<(), PoolError> {
        if !self.pool().inbox.is_open() {
            return Ok(());
        }
        self.run_inbox(async |pool, client| pool.take_rings(client, true).await).await
    }

    /// Closes the inbox, and takes what has come once nobody sends any more.
    pub(crate) async fn close_inbox(&self) -> Result<(), PoolError> {
        let pool = self.pool();
        if pool.inbox.own().phase == Phase::Closed {
            return Ok(());
        }
        self.run_inbox(async |pool, client| pool.close_inbox_of(client, pool.member).await).await?;
        let from = pool.observe(self.maintenance()).await?.epoch;
        for _ in 0..LEAVE_LOOKS {
            let client = self.maintenance();
            self.announce_pending(true, None).await?;
            let seen = pool.observe(client).await?;
            pool.announce(client).await?;
            pool.advance(client, &seen, true).await?;
            if pool.reuse_bound(&seen) > from {
                break;
            }
            self.endpoint().sleep(LEAVE_WAIT_NS).await;
        }
        self.run_inbox(async |pool, client| pool.take_rings(client, false).await).await?;
        pool.inbox.own().phase = Phase::Closed;
        Ok(())
    }

    /// Runs one task at a time on the inbox to its end, and waits for it.
    async fn run_inbox(
        &self,
        task: impl AsyncFnOnce(&Pool, Reliable<'_>) -> Result<(), PoolError> + 'static,
    ) -> Result<(), PoolError> {
        let pool = self.pool();
        if std::mem::replace(&mut pool.inbox.own().busy, true) {
            return Ok(());
        }
        self.spawn(async move |session| {
            let pool = session.pool();
            let done = task(pool, session.maintenance()).await;
            let mut own = pool.inbox.own();
            own.error = done.err();
            own.busy = false;
        });
        wait_until(self.maintenance(), TASK_WAIT_NS, || !pool.inbox.own().busy).await;
        pool.inbox.own().error.take().map_or(Ok(()), Err)
    }
}

impl Pool {
    async fn zero_inbox(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        self.zero_rings(client).await?;
        // The global epoch is at most one ahead of the view.
        let epoch = self.epochs.view.load(Ordering::SeqCst) + 1;
        self.inbox.own().phase = Phase::Zeroed(epoch);
        Ok(())
    }

    async fn zero_rings(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        let mut zeros = client.buf(self.geometry().inbox_bytes() as usize);
        zeros.words_mut().fill(0);
        client.write(self.geometry().inbox_addr(self.member), zeros).await?;
        Ok(())
    }

    async fn open_inbox(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        self.zero_rings(client).await?;
        let count = self.geometry().inboxes();
        self.inbox.own().taken = vec![0; count as usize];
        self.write_heads(client, count).await?;
        self.inbox.own().phase = Phase::Open;
        Ok(())
    }

    async fn write_heads(&self, client: Reliable<'_>, slots: u32) -> Result<(), PoolError> {
        let life = u64::from(self.generation & LIFE) << 32;
        let mut heads = client.buf(slots as usize * 8);
        let taken = self.inbox.own().taken.clone();
        heads.words_mut().iter_mut().zip(taken).for_each(|(head, taken)| {
            *head = OPEN | life | u64::from(taken);
        });
        client.write(self.geometry().inbox_addr(self.member), heads).await?;
        Ok(())
    }

    /// Closes the inbox of a member that is dead, or this one's. 1 WRITE.
    pub(crate) async fn close_inbox_of(
        &self,
        client: Reliable<'_>,
        member: u32,
    ) -> Result<(), PoolError> {
        let count = self.geometry().inboxes();
        if member >= count {
            return Ok(());
        }
        let mut heads = client.buf(count as usize * 8);
        heads.words_mut().fill(0);
        client.write(self.geometry().inbox_addr(member), heads).await?;
        Ok(())
    }

    /// Takes what has come into the rings.
    async fn take_rings(&self, client: Reliable<'_>, is_open: bool) -> Result<(), PoolError> {
        let (slots, mut taken) = {
            let own = self.inbox.own();
            (own.slots.min(self.geometry().inboxes()), own.taken.clone())
        };
        if slots == 0 || taken.is_empty() {
            return Ok(());
        }
        let rings = client.buf(slots as usize * RING_BYTES as usize);
        let rings = client.read(self.geometry().ring_addr(self.member, 0), rings).await?;
        let mut objects = Vec::new();
        for (ring, taken) in rings.words().chunks_exact(RING_WORDS).zip(&mut taken) {
            for _ in 0..RING_WORDS {
                let word = ring[place(*taken)];
                if word & LAP != lap(*taken) {
                    break;
                }
                *taken = taken.wrapping_add(1);
                objects.extend(GlobalAddr::from_word(word & !LAP).filter(|addr| !addr.is_null()));
            }
        }
        if taken == self.inbox.own().taken {
            return Ok(());
        }
        self.inbox.own().taken = taken;
        let (mut strays, mut outcome) = (Vec::new(), Ok(()));
        for addr in objects {
            match self.alloc().free(addr) {
                Ok(true) => {}
                Ok(false) => strays.push(addr),
                Err(error) => outcome = Err(error),
            }
        }
        if is_open {
            self.write_heads(client, slots).await?;
        }
        if !strays.is_empty() {
            pin_at(&self.pins.inbox, &self.epochs.view);
            let _pinned = PinGuard(&self.pins.inbox);
            self.ensure_live(client).await?;
            self.give_back(client, &strays).await?;
        }
        outcome
    }

    /// Frees objects of any blocks: own ones here, others by their owners' inboxes or their bitmaps. As for
    /// [`Pool::give_back`], the member is announced live and pinned, and this must not be dropped.
    ///
    /// Cost: 1 READ for each owner, now and then 1 of a block's word, once 1 of each page's, and 1 or 2 WRITEs for each owner; for
    /// objects without a ring what `give_back` costs.
    ///
    /// # Errors
    /// As [`Pool::give_back`].
    pub(crate) async fn give_home(
        &self,
        client: Reliable<'_>,
        objects: &[GlobalAddr],
    ) -> Result<(), PoolError> {
        let (mut foreign, mut rest, mut outcome) = (Vec::new(), Vec::new(), Ok(()));
        for addr in objects {
            // Adopted since it was retired, it is an own one.
            match self.alloc().free(*addr) {
                Ok(true) => {}
                Ok(false) => {
                    let (block, page, _) = self.page_of(*addr)?;
                    foreign.push((*addr, block, page));
                }
                Err(error) => outcome = Err(error),
            }
        }
        let places = foreign.iter().map(|(_, block, page)| (*block, *page));
        self.look_up(client, places.collect()).await?;
        let mut by_owner: BTreeMap<u32, Vec<GlobalAddr>> = BTreeMap::new();
        for (addr, block, _) in foreign {
            let owner = self.inbox.others().owner(block);
            let has_ring = self.member < self.geometry().inboxes();
            let owner = owner.filter(|owner| has_ring && *owner < self.geometry().inboxes());
            match owner.filter(|owner| *owner != self.member) {
                Some(owner) => by_owner.entry(owner).or_default().push(addr),
                None => rest.push(addr),
            }
        }
        let own_head = u64::from(self.member) * 8;
        let heads = by_owner.keys().map(|owner| self.geometry().inbox_addr(*owner).plus(own_head));
        let heads = client.words(heads).await?;
        let mut sent = client.client().ops();
        for ((owner, mut objects), head) in by_owner.into_iter().zip(heads) {
            let chance = self.inbox.others().reserve(owner, head, objects.len());
            let chance = match chance {
                Chance::Unknown(life, taken) => {
                    self.find_end(client, owner, life, taken).await?;
                    self.inbox.others().reserve(owner, head, objects.len())
                }
                chance => chance,
            };
            let Chance::Room(from, count) = chance else {
                self.inbox.others().forget_owner(owner);
                rest.append(&mut objects);
                continue;
            };
            rest.extend(objects.drain(count..));
            let words = (0..).zip(&objects).map(|(at, addr)| {
                let position = from.wrapping_add(at);
                (place(position), addr.word() | lap(position))
            });
            let words: Vec<(usize, u64)> = words.collect();
            for run in words.chunk_by(|one, next| one.0 < next.0) {
                let mut content = client.buf(run.len() * 8);
                content.words_mut().iter_mut().zip(run).for_each(|(to, (_, word))| *to = *word);
                sent.write(self.ring_word(owner, run[0].0), content);
            }
        }
        if !sent.is_empty() {
            client.post_many(sent).await?;
        }
        if !rest.is_empty() {
            self.give_back(client, &rest).await?;
        }
        outcome
    }

    /// READs the words of blocks that are not known, or have been trusted for long, and of pages that are not.
    async fn look_up(
        &self,
        client: Reliable<'_>,
        mut pages: BTreeSet<(BlockId, u32)>,
    ) -> Result<(), PoolError> {
        let mut blocks: BTreeSet<BlockId> = pages.iter().map(|(block, _)| *block).collect();
        {
            let others = self.inbox.others();
            blocks.retain(|at| !others.is_known(*at));
            pages.retain(|at| !others.sizes.contains_key(at));
        }
        let of_blocks = blocks.iter().map(|block| self.geometry().block_word_addr(*block));
        let of_pages = pages.iter().map(|(block, page)| self.map_addr(*block, *page));
        let words = client.words(of_blocks.chain(of_pages)).await?;
        let (of_blocks, of_pages) = words.split_at(blocks.len());
        let mut others = self.inbox.others();
        for (at, word) in blocks.into_iter().zip(of_blocks) {
            others.blocks.insert(at, Known { word: BlockWord(*word), uses: 0 });
        }
        if others.sizes.len() + of_pages.len() > SIZES_MAX {
            others.sizes.clear();
        }
        others.sizes.extend(
            pages.into_iter().zip(of_pages).map(|(at, word)| (at, MapWord(*word).object_bytes())),
        );
        Ok(())
    }

    /// Finds the end of this member's ring in an inbox, which an earlier life of its slot may have written:
    /// behind the last word that came, with words of which nothing comes in the gaps before.
    ///
    /// Cost: 1 READ, and 1 WRITE for each gap.
    async fn find_end(
        &self,
        client: Reliable<'_>,
        owner: u32,
        life: u32,
        taken: u32,
    ) -> Result<(), PoolError> {
        let ring = client.buf(RING_BYTES as usize);
        let ring = client.read(self.geometry().ring_addr(owner, self.member), ring).await?;
        let positions = || (0..RING_WORDS as u32).map(|at| taken.wrapping_add(at));
        let came = |position: u32| ring.words()[place(position)] & LAP == lap(position);
        let next = positions().rfind(|at| came(*at)).map_or(taken, |at| at.wrapping_add(1));
        for gap in positions().take_while(|at| *at != next).filter(|at| !came(*at)) {
            client.write_word(self.ring_word(owner, place(gap)), lap(gap)).await?;
        }
        self.inbox.others().rings.insert(owner, Ring::Known { life, next });
        Ok(())
    }

    fn ring_word(&self, owner: u32, place: usize) -> GlobalAddr {
        self.geometry().ring_addr(owner, self.member).plus(place as u64 * 8)
    }
}
