//! Recovery: frees dead members' blocks, retired objects and entries, and lost objects of orphans.
//!
//! A recoverer claims, lets the caller walk all tables, and then gives every object of the claimed
//! blocks that is unreachable, not free and not retired by somebody running back to its bitmap.
//!
//! INV-REC-1: claimed blocks hand out nothing: their owner is fenced, or they were nobody's, and
//! nobody adopts a block in state recovering. Their bits are only set meanwhile.
//! INV-REC-2, nobody holds an object that recovery frees. The object was unreachable in the walk, so
//! nobody will unlink it later. If it was unlinked during the walk or shortly before, its unlinker holds
//! the epoch of then until it has announced it (INV-RETIRE-1):
//! - The recoverer is pinned from before the walk to its end, so that nobody reclaims what was reachable
//!   when it began. Then it drops the pin, and waits until everybody announces a later epoch or idleness.
//!   Now the retire pages have all that was unlinked before, and is not freed: recovery leaves it alone.
//! - If the word was cleared before, its reclaimer freed the object right after, announced live and
//!   pinned at an epoch of at most the global one then (INV-RETIRE-2). So after the pages the
//!   recoverer waits again, and only then reads the bitmaps: the bit is set. (Or the object came by the
//!   inbox of the dead, which takes nothing more: INV-INBOX-1.)
//!
//! While members do not tick, the recoverer waits and keeps what the walk has found. If the wait ends without
//! success nevertheless, recovery frees nothing, and the dead stay dead with their blocks, pages and entries
//! (INV-REC-7, [`crate::recoverer`]). If recovery released such a block, its adopter would own it, and nobody
//! would search it for lost objects any more.
//! INV-REC-3: in blocks that it has not claimed, recovery frees the objects that the dead had announced
//! (INV-RETIRE-3), each once: it clears the dead's pages before. What they had unlinked and not announced is
//! lost until a sweep of its block.
//! INV-REC-4: recovery frees the entries of member and clients last, so that tokens name the dead until
//! it has recovered everything of theirs.
//! INV-REC-5: recovery claims an orphan only after the walk and the waits, and only if its word is still what it was
//! before: then the block was nobody's throughout, and handed out nothing. So members may adopt orphans meanwhile,
//! and do not carve new blocks instead. An adopted one is left to the next sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use crate::address::Published;
use crate::audit::{mark_word, object_at};
use crate::block::{check_front, pairs_in};
use crate::class::group_of;
use crate::geometry::{BlockId, RETIRE_BYTES};
use crate::member::{is_left, read_table};
use crate::pages::{PAIR_BYTES, Run, longest_stretch};
use crate::pins::{UNPINNED, pin_at};
use crate::reliable::{Cas, Reliable};
use crate::remote_free::BATCH;
use crate::words::{AnnounceWord, BlockState, BlockWord, MemberState, MemberWord, owner_of};
use crate::{Audit, Pool, PoolError, Session};

/// Time for which others may lag, unless the caller says otherwise: longer than any walk of theirs that holds an epoch.
const PATIENCE_NS: u64 = 600_000_000_000;
/// Time between looks at their announcements: at most so long, or this part of the wait until then, up to the last.
const GRACE_WAIT_NS: u64 = 1_000_000;
const GRACE_WAIT_PART: u64 = 64;
const GRACE_WAIT_NS_MAX: u64 = 20_000_000;

/// Dead members and orphan blocks that this member has taken in hand, until it is dropped or
/// finished.
#[derive(Debug)]
pub struct Recovery {
    pool: Arc<Pool>,
    members: Vec<Dead>,
    /// The dead's clients. As they are fenced, there will be no more.
    clients: Vec<u32>,
    /// True if this member's slot had an earlier life that is dead, too.
    inherits: bool,
    /// Claimed blocks with whole headers, and their words now.
    blocks: Vec<(BlockId, BlockWord)>,
    /// Orphans with whole headers that are not claimed yet (INV-REC-5).
    orphans: Vec<(BlockId, BlockWord)>,
    /// The runs of both: nobody changes the page map of a block of the dead, or of an orphan.
    runs: BTreeMap<BlockId, Vec<Run>>,
    /// Objects that the dead had announced.
    announced: Vec<GlobalAddr>,
    problems: Vec<String>,
    patience_ns: u64,
    is_begun: bool,
    /// Has claimed orphans, which are this member's then.
    has_orphans: bool,
    is_finished: bool,
}

#[derive(Clone, Copy, Debug)]
struct Dead {
    slot: u32,
    word: MemberWord,
}

/// Results of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Dead members cleared away.
    pub members: usize,
    /// Blocks looked at.
    pub blocks: usize,
    /// Objects that were lost and are free again.
    pub objects_freed: u64,
    /// True if lost objects were looked for. Not if another member neither ticked nor was idle: then
    /// the dead stay claimed, and recovery is to be begun again later.
    pub complete: bool,
    /// Damage that the recovery found and left alone.
    pub problems: Vec<String>,
}

impl Session {
    /// Finds out which members are dead, and claims them and their blocks, and notes all orphan blocks. `None`
    /// if none is dead and nothing is left of an earlier recovery of this member's, if another member that
    /// lives recovers, or this member does already.
    ///
    /// Before the walk, or during it, the caller must finish or undo what the dead have left half
    /// done in the tables, announcing and retiring itself what that unlinks. The walk must mark every
    /// object that is reachable throughout. Until the recovery is finished or dropped, nothing in
    /// the pool is reclaimed.
    ///
    /// Cost: a chain of 2 READs and 2 READs of the member table, a look by the fabric at each live member; if
    /// somebody is dead, 2 READs and 1 CAS to become the recoverer, 1 READ of the client table, 1 CAS per dead
    /// member and per block, and 1 READ per block and retire page.
    ///
    /// # Errors
    /// `Fabric`, `Corrupt`: try again, or call [`Session::recover_give_up`]; until then what was claimed is
    /// this member's.
    pub async fn recover_begin(&self) -> Result<Option<Recovery>, PoolError> {
        self.begin_recovery(true).await
    }

    /// Notes the orphan blocks, to look for lost objects in them; as [`Session::recover_begin`]
    /// otherwise. `None` if there is none or this member is recovering already.
    ///
    /// # Errors
    /// As [`Session::recover_begin`].
    pub async fn sweep_begin(&self) -> Result<Option<Recovery>, PoolError> {
        self.begin_recovery(false).await
    }

    async fn begin_recovery(&self, with_members: bool) -> Result<Option<Recovery>, PoolError> {
        let (pool, client) = (self.pool(), self.maintenance());
        pool.check_open()?;
        if pool.recovering.swap(true, Ordering::SeqCst) {
            return Ok(None);
        }
        let mut recovery = Recovery {
            pool: Arc::clone(pool),
            members: Vec::new(),
            clients: Vec::new(),
            inherits: false,
            blocks: Vec::new(),
            orphans: Vec::new(),
            runs: BTreeMap::new(),
            announced: Vec::new(),
            problems: Vec::new(),
            patience_ns: PATIENCE_NS,
            is_begun: false,
            has_orphans: false,
            is_finished: false,
        };
        let is_left = pool.recovery_unfinished.load(Ordering::SeqCst);
        if with_members && !pool.has_dead(client).await? && !is_left {
            return Ok(None);
        }
        if !pool.take_recoverer(client).await? {
            return Ok(None);
        }
        pool.adopt_left_clients(client).await?;
        // A member that was idle knows an epoch of long ago: its pin would hold everybody back there.
        pool.observe(client).await?;
        pin_at(&pool.pins.recovery, &pool.epochs.view);
        pool.ensure_live(client).await?;
        if with_members {
            recovery.members = pool.claim_dead(client).await?;
            // Before the walk (INV-INBOX-1).
            for dead in &recovery.members {
                pool.close_inbox_of(client, dead.slot).await?;
            }
            recovery.inherits = pool.inherits.load(Ordering::SeqCst);
            if recovery.members.is_empty() && !is_left {
                pool.release_recoverer(client).await?;
                return Ok(None);
            }
        }
        recovery.claim_blocks(client).await?;
        let clients = pool.read_clients(client).await?;
        let dead = clients.into_iter().filter(|(_, owner)| recovery.is_dead(*owner));
        recovery.clients = dead.map(|(id, _)| id).collect();
        let announced = pool.read_retired(client, recovery.clients.iter().copied()).await?;
        recovery.announced = announced.into_iter().map(|(_, addr)| addr).collect();
        let has_dead = !recovery.members.is_empty() || recovery.inherits;
        let is_empty = !has_dead && recovery.blocks.is_empty() && recovery.orphans.is_empty();
        if is_empty && with_members {
            pool.recovery_unfinished.store(false, Ordering::SeqCst);
        }
        if is_empty {
            pool.release_recoverer(client).await?;
            return Ok(None);
        }
        pool.recoveries.begun.fetch_add(1, Ordering::Relaxed);
        recovery.is_begun = true;
        Ok(Some(recovery))
    }

    /// Forgets the marks of orphans that others have adopted since `recovery` began: what lies there is not this
    /// recovery's to free. After the walk, and before anybody acts on what [`Audit::is_marked`] says.
    ///
    /// Cost: 1 READ of the block table.
    ///
    /// # Errors
    /// `Fabric`: begin anew.
    pub async fn recover_forget_adopted(
        &self,
        recovery: &mut Recovery,
        audit: &mut Audit,
    ) -> Result<(), PoolError> {
        let pool = self.pool();
        let mut now = BTreeMap::new();
        for server in pool.geometry().server_ids() {
            let words = pool.read_block_words(self.maintenance(), server).await?;
            now.extend(words);
        }
        let is_same = |(block, word): &(BlockId, BlockWord)| now.get(block) == Some(word);
        let adopted = recovery.orphans.extract_if(.., |orphan| !is_same(&*orphan));
        let adopted: Vec<_> = adopted.map(|(block, _)| block).collect();
        audit.forget(&adopted);
        Ok(())
    }

    /// Frees what `audit`, marked in a walk since `recovery` began, shows to be lost, makes the
    /// blocks orphans or free, and clears the dead members' entries. Not within an operation: it
    /// waits for everybody's pins, and keeps the audit meanwhile. If that takes longer than
    /// [`Recovery::set_patience`] says, it is not [`Recovered::complete`], and is to be begun anew.
    ///
    /// Then it looks whether more have died. If not, or if it is not complete, this member is the pool's
    /// recoverer no more, and what was claimed is left as it was found. Otherwise
    /// [`Session::recover_begin`] goes on with them.
    ///
    /// Cost: 1 READ of the client table; per block 1 READ and a batch of CAS per 64 words with lost
    /// objects, and 1 CAS; per client and server 1 READ; per dead client and server 1 WRITE, and 1 READ and
    /// 1 CAS; per dead member 1 READ and 1 chain; some ticks' worth of waiting.
    ///
    /// # Errors
    /// `Invalid` if the audit is of before the recovery; `Fabric`, `Corrupt`. Then begin anew.
    pub async fn recover_finish(
        &self,
        mut recovery: Recovery,
        audit: &Audit,
    ) -> Result<Recovered, PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        let missing = recovery
            .blocks
            .iter()
            .chain(&recovery.orphans)
            .find(|(block, _)| audit.marks(*block, recovery.runs.get(block)).is_none());
        if let Some((block, _)) = missing {
            return Err(PoolError::Invalid(format!(
                "the audit does not know {block}: begin it after the recovery"
            )));
        }
        pool.pins.recovery.store(UNPINNED, Ordering::SeqCst);
        // Until all that was unlinked before the walk ended is announced.
        let patience_ns = recovery.patience_ns;
        let is_announced = self.wait_for_others(patience_ns).await?;
        let announced = pool.read_retired(client, recovery.clients.iter().copied()).await?;
        let others = pool.read_clients(client).await?.into_iter();
        let others = others.filter(|(_, owner)| !recovery.is_dead(*owner)).map(|(id, _)| id);
        let others = pool.read_retired(client, others).await?;
        let others: BTreeSet<GlobalAddr> = others.into_iter().map(|(_, addr)| addr).collect();
        let mut done = Recovered {
            members: recovery.members(),
            complete: is_announced && self.wait_for_others(patience_ns).await?,
            problems: recovery.problems.clone(),
            ..Recovered::default()
        };
        // From here on nobody else could finish it: what has been zeroed is known here alone.
        let client = client.without_deadline();
        if done.complete {
            pool.ending_recovery.store(true, Ordering::SeqCst);
            // As one who clears words and frees must be, from the first to the last (INV-RETIRE-2): another
            // recoverer may have claimed the block of an object, and not see the word any more.
            pin_at(&pool.pins.recovery, &pool.epochs.view);
            pool.ensure_live(client).await?;
            for id in &recovery.clients {
                pool.zero_areas(client, *id).await?;
            }
            // Not before the waits: members that need memory meanwhile adopt orphans.
            recovery.claim_orphans(client).await?;
        }
        done.blocks = recovery.blocks.len();
        for (block, word) in &recovery.blocks {
            let Some(runs) = recovery.runs.get(block) else { continue };
            let Some(marks) = audit.marks(*block, Some(runs)) else { continue };
            pool.rebuild(client, (*block, *word), (runs, marks), &others, &mut done).await?;
        }
        let claimed: BTreeSet<BlockId> = recovery.blocks.iter().map(|(block, _)| *block).collect();
        let mut lost: Vec<GlobalAddr> = announced.into_iter().map(|(_, addr)| addr).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|addr| {
            let block = pool.geometry().block_of(*addr);
            block.is_some_and(|(block, _)| !claimed.contains(&block))
                && audit.is_marked(*addr) == Some(false)
                && !others.contains(addr)
        });
        if done.complete {
            // Pinned, as one who gives back must be (INV-ALLOC-3).
            pool.free_announced(client, &lost, &mut done).await?;
            pool.pins.recovery.store(UNPINNED, Ordering::SeqCst);
            // INV-REC-4
            pool.free_clients(client, &recovery).await?;
            for member in &recovery.members {
                pool.clear_member(client, member).await?;
            }
            recovery.is_finished = true;
            pool.inherits.store(false, Ordering::SeqCst);
            pool.recovery_unfinished.store(false, Ordering::SeqCst);
            pool.recoveries.done.fetch_add(1, Ordering::Relaxed);
            pool.recoveries.members.fetch_add(done.members as u64, Ordering::Relaxed);
        }
        let has_more = done.complete && pool.has_dead(client).await?;
        drop(recovery);
        if !done.complete {
            self.recover_give_up().await?;
        } else if !has_more {
            pool.release_recoverer(client).await?;
        }
        Ok(done)
    }

    /// Waits until the global epoch has moved on, and every other member announces an epoch after the
    /// current one, or idleness; whether that came about in time.
    async fn wait_for_others(&self, patience_ns: u64) -> Result<bool, PoolError> {
        let (pool, client) = (&**self.pool(), self.maintenance());
        let mut seen = pool.observe(client).await?;
        let from = seen.epoch;
        let from_ns = self.endpoint().now_ns();
        let mut wait_ns = 1_000;
        loop {
            self.announce_pending(true, None).await?;
            pool.announce(client).await?;
            pool.advance(client, &seen, true).await?;
            // Not judged by what was seen before, when objects may have been unlinked since.
            seen = pool.observe(client).await?;
            if pool.reuse_bound(&seen) > from {
                return Ok(true);
            }
            pool.ask_for_suspects(client, &seen).await?;
            let waited_ns = self.endpoint().now_ns().saturating_sub(from_ns);
            if waited_ns >= patience_ns {
                return Ok(false);
            }
            self.endpoint().sleep(wait_ns).await;
            let longest_ns = (waited_ns / GRACE_WAIT_PART).clamp(GRACE_WAIT_NS, GRACE_WAIT_NS_MAX);
            wait_ns = (wait_ns * 2).min(longest_ns);
        }
    }
}

impl Recovery {
    /// An audit that tracks only what this recovery has to know of, for a walk of tables that
    /// others are changing meanwhile: marks elsewhere are ignored. ([`Audit::new`] serves as well
    /// where nothing else goes on.)
    pub fn audit(&self) -> Audit {
        let blocks = self.blocks.iter().chain(&self.orphans);
        Audit::of(&self.pool, blocks, &self.runs, &self.announced)
    }

    /// Sets the time for which others may lag, each of the two times that [`Session::recover_finish`] waits for
    /// them. Default: 10 minutes.
    pub fn set_patience(&mut self, ns: u64) {
        self.patience_ns = ns;
    }

    /// Dead members that were claimed, and the dead one whose place this member has taken.
    pub fn members(&self) -> usize {
        self.members.len() + usize::from(self.inherits)
    }

    /// The clients of the dead: their redo areas and retire pages hold what they left, until
    /// [`Session::recover_finish`] zeroes them. None if this is a sweep.
    pub fn clients(&self) -> &[u32] {
        &self.clients
    }

    /// The redo area of one of [`Recovery::clients`] on `server`: [`Session::redo_bytes`] bytes, which
    /// nobody writes any more, because the dead are fenced.
    pub fn redo_addr(&self, server: ServerId, client: u32) -> GlobalAddr {
        self.pool.geometry().redo_addr(server, client)
    }

    /// Tells whether a client's owner is among the dead. A dead slot has none but dead lives: it may have been
    /// succeeded to by one that died before it recovered the one before (INV-MEM-3).
    fn is_dead(&self, (slot, generation): (u32, u32)) -> bool {
        let is_own = slot == self.pool.member;
        is_own && self.inherits && generation != self.pool.generation
            || self.members.iter().any(|dead| dead.slot == slot)
    }

    /// Claims the dead members' blocks, and notes all orphans.
    async fn claim_blocks(&mut self, client: Reliable<'_>) -> Result<(), PoolError> {
        let pool = Arc::clone(&self.pool);
        for server in pool.geometry().server_ids() {
            for (block, word) in pool.read_block_words(client, server).await? {
                let state = word.state()?;
                let of_dead = self.members.iter().any(|dead| dead.slot == word.owner());
                let at = pool.geometry().block_word_addr(block);
                let next = match state {
                    BlockState::Owned | BlockState::Recovering if of_dead => {
                        word.next(BlockState::Recovering, word.owner())
                    }
                    BlockState::Carving if of_dead => word.next(BlockState::Free, 0),
                    BlockState::Orphan => word,
                    // Left over from a recovery of this member's that was dropped.
                    BlockState::Recovering if word.owner() == pool.member => {
                        word.next(BlockState::Recovering, pool.member)
                    }
                    _ => continue,
                };
                let is_orphan = state == BlockState::Orphan;
                if !is_orphan && client.cas(at, word.0, next.0).await? != word.0 {
                    continue;
                }
                if !is_orphan && !next.is(BlockState::Recovering) {
                    continue;
                }
                let shape = pool.geometry().shape();
                let front = client.buf(shape.map_end() as usize);
                let front = client.read(pool.geometry().block_addr(block), front).await?;
                let runs = match check_front(shape, front.words()) {
                    Ok(runs) => runs,
                    Err(why) => {
                        let damaged = next.next(BlockState::Damaged, 0);
                        // An orphan may have been adopted, given up and carved anew meanwhile.
                        if client.cas_release(at, next.0, damaged.0).await? == next.0 || !is_orphan
                        {
                            let BlockId { server, number } = block;
                            self.problems.push(format!("block {number} of server {server}: {why}"));
                        }
                        continue;
                    }
                };
                self.runs.insert(block, runs);
                let list = if is_orphan { &mut self.orphans } else { &mut self.blocks };
                list.push((block, next));
            }
        }
        Ok(())
    }

    /// Claims the noted orphans whose words are still the same (INV-REC-5). 1 CAS each.
    async fn claim_orphans(&mut self, client: Reliable<'_>) -> Result<(), PoolError> {
        let pool = Arc::clone(&self.pool);
        for (block, word) in std::mem::take(&mut self.orphans) {
            let at = pool.geometry().block_word_addr(block);
            let next = word.next(BlockState::Recovering, pool.member);
            if client.cas(at, word.0, next.0).await? == word.0 {
                self.has_orphans = true;
                self.blocks.push((block, next));
            }
        }
        Ok(())
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        if !self.is_finished && (self.inherits || self.has_orphans) {
            self.pool.recovery_unfinished.store(true, Ordering::SeqCst);
        }
        if !self.is_finished && self.is_begun {
            self.pool.recoveries.in_vain.fetch_add(1, Ordering::Relaxed);
        }
        if !self.is_finished && !self.members.is_empty() {
            self.pool.needs_recovery.store(true, Ordering::Relaxed);
        }
        self.pool.ending_recovery.store(false, Ordering::SeqCst);
        self.pool.pins.recovery.store(UNPINNED, Ordering::SeqCst);
        self.pool.recovering.store(false, Ordering::SeqCst);
    }
}

impl Pool {
    /// Asks after all members that are announced live; whether somebody is to be recovered.
    ///
    /// Cost: 1 READ of the member table, and of each live member's incarnation, and a look by the fabric at it.
    async fn has_dead(&self, client: Reliable<'_>) -> Result<bool, PoolError> {
        let mut has_dead = false;
        for (slot, entry) in (0..).zip(read_table(client, self.geometry()).await?) {
            has_dead |= match entry.word.state()? {
                _ if slot == self.member => false,
                MemberState::Live => self.declare_dead(client, slot, entry.word).await?,
                // If another recovers it, that one has the pool's recoverer word.
                MemberState::Dead | MemberState::Recovering => true,
                MemberState::Free => false,
            };
        }
        Ok(has_dead)
    }

    /// Makes the dead this member's to recover.
    async fn claim_dead(&self, client: Reliable<'_>) -> Result<Vec<Dead>, PoolError> {
        let table = read_table(client, self.geometry()).await?;
        let mut dead = Vec::new();
        for (slot, entry) in (0..).zip(&table) {
            let is_mine =
                is_left(client, self.geometry(), (slot, entry.word), &table, true).await?;
            let word = entry.word.recovering(self.member, self.generation);
            let at = self.geometry().member_addr(slot);
            if is_mine && client.cas(at, entry.word.0, word.0).await? == entry.word.0 {
                dead.push(Dead { slot, word });
            }
        }
        Ok(dead)
    }

    /// Frees a claimed block's lost objects and lets the block go. If the recovery is not complete,
    /// a dead member's block with lost objects stays claimed.
    async fn rebuild(
        &self,
        client: Reliable<'_>,
        (block, word): (BlockId, BlockWord),
        (runs, marks): (&[Run], &[u64]),
        retired: &BTreeSet<GlobalAddr>,
        done: &mut Recovered,
    ) -> Result<(), PoolError> {
        let shape = self.geometry().shape();
        let front = client.buf(shape.front_bytes() as usize);
        let start = self.geometry().block_addr(block);
        let front = client.read(start, front).await?;
        let end = start.plus(self.geometry().options().block_bytes - 1);
        let mut kept = marks.to_vec();
        for addr in retired.range(start..=end) {
            match object_at(runs, addr.offset() - start.offset()) {
                Some((run, index)) => kept[mark_word(shape, run, index)] |= 1 << (index % 64),
                None => done.problems.push(format!("{addr} is retired, where no object starts")),
            }
        }
        let mut list = Vec::new();
        let mut found = Vec::new();
        let mut in_use = false;
        // Pages of runs with an object in use, and groups with a free object.
        let (mut is_used, mut groups) = (vec![false; shape.pages as usize], 0);
        for run in runs {
            let pairs = pairs_in(shape, front.words(), run).chunks_exact(2).enumerate();
            let mut free_count = 0;
            for (at, pair) in pairs {
                let (given, taken) = (pair[0], pair[1]);
                let kept = kept[mark_word(shape, run, at as u32 * 64)];
                // An object that is marked and free now has been removed since the walk.
                let lost = run.valid_bits(at) & !kept & !(given ^ taken);
                if lost != 0 && done.complete {
                    done.objects_freed += u64::from(lost.count_ones());
                    let bits = (0..64).filter(|bit| lost >> bit & 1 == 1);
                    found.extend(bits.map(|bit| start.plus(run.offset_of(at as u32 * 64 + bit))));
                    list.push(Cas {
                        at: self.pair_addr(block, run.page, at).plus(PAIR_BYTES / 2),
                        expected: taken,
                        new: taken ^ lost,
                    });
                }
                if lost != 0 && !done.complete {
                    if word.owner() != self.member || self.inherits.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    in_use = true;
                }
                in_use |= kept & run.valid_bits(at) != 0;
                let lost = if done.complete { lost } else { 0 };
                free_count += ((given ^ taken) & run.valid_bits(at) | lost).count_ones();
            }
            is_used[run.page as usize..run.end() as usize].fill(free_count < run.count);
            groups |= u32::from(free_count > 0) << group_of(run.class);
        }
        self.poison(client, &found).await?;
        // Free only if nothing else is in it: then nobody has an object left to give back.
        if in_use {
            for list in list.chunks(BATCH) {
                client.cas_many(list).await?;
            }
        }
        let at = self.geometry().block_word_addr(block);
        let next = match in_use {
            true => word.orphan(longest_stretch(shape, |page| !is_used[page as usize]), groups),
            false => word.next(BlockState::Free, 0),
        };
        let found = client.cas_release(at, word.0, next.0).await?;
        if found != word.0 {
            return Err(PoolError::Corrupt(format!(
                "{block} was changed to {found:#x} while it was being recovered"
            )));
        }
        Ok(())
    }

    /// Frees objects that the dead had announced, outside of claimed blocks.
    async fn free_announced(
        &self,
        client: Reliable<'_>,
        objects: &[GlobalAddr],
        done: &mut Recovered,
    ) -> Result<(), PoolError> {
        self.poison(client, objects).await?;
        for addr in objects {
            let own = self.alloc().free(*addr);
            let freed = match own {
                Ok(true) => Ok(()),
                Ok(false) => self.give_back(client, std::slice::from_ref(addr)).await,
                Err(error) => Err(error),
            };
            match freed {
                Ok(()) => done.objects_freed += 1,
                Err(PoolError::Corrupt(why)) => done.problems.push(why),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a dead client's redo areas and retire pages zero.
    async fn zero_areas(&self, client: Reliable<'_>, id: u32) -> Result<(), PoolError> {
        let redo_bytes = self.geometry().options().redo_bytes as usize;
        for server in self.geometry().server_ids() {
            let mut area = client.buf(redo_bytes + RETIRE_BYTES as usize);
            area.words_mut().fill(0);
            client.write(self.geometry().redo_addr(server, id), area).await?;
        }
        Ok(())
    }

    /// Frees the clients that the dead had.
    async fn free_clients(&self, client: Reliable<'_>, of: &Recovery) -> Result<(), PoolError> {
        for id in &of.clients {
            let at = self.geometry().client_addr(*id);
            let word = client.word(at).await?;
            if owner_of(word).is_some_and(|owner| of.is_dead(owner)) {
                client.cas_release(at, word, 0).await?;
            }
        }
        Ok(())
    }

    /// Frees a recovered member's entry.
    async fn clear_member(&self, client: Reliable<'_>, dead: &Dead) -> Result<(), PoolError> {
        let at = self.geometry().member_addr(dead.slot);
        let entry = client.read(at, client.buf(Published::bytes(client))).await?;
        let (incarnation, announced) = (entry.words()[1], AnnounceWord(entry.words()[2]));
        let published = Published::of_entry(entry.words());
        let free = MemberWord::new(MemberState::Free, dead.word.generation());
        // Repeated, it does nothing to the entry's next user: no word comes back.
        client
            .chain(|ops| {
                ops.cas(at.plus(16), announced.0, announced.next_idle().0);
                published.clear(at, ops);
                ops.cas(at, dead.word.0, free.0);
                ops.cas(at.plus(8), incarnation, 0);
            })
            .await?;
        Ok(())
    }
}
