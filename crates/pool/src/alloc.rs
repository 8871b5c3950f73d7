//! Allocation: takes an object of a size class on a server, from the nearest source that has one.

use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use crate::class::{CLASS_COUNT, class_of};
use crate::place::Place;
use crate::reliable::Reliable;
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError, Session};

/// First time to wait for another session that looks for the same; then twice as long each
/// time, up to about 1 ms: its thread may not be running at the moment.
const WAIT_NS: u64 = 1_000;
const WAIT_DOUBLINGS: usize = 10;
/// Own blocks that are harvested before another block is taken.
const HARVEST_BLOCKS: usize = 8;
/// Ticks that reclaim retired objects before the pool counts as full.
const FULL_TICKS: usize = 6;
/// Between those ticks, so that other members come to theirs.
const FULL_WAIT_NS: u64 = 20_000;
/// Rounds of refilling in which others took all that was found.
const ROUNDS_MAX: usize = 1000;
/// Time for which a server that had nothing of a class is passed over while others have room.
const EMPTY_NS: u64 = 10_000_000;
/// Orphans whose bitmaps are read together.
const PEEKS: usize = 16;
/// One of so many parts of a block: a member that has taken less of a class writes little (INV-PLACE-2).
const LITTLE_PART: u64 = 16;

/// The places that a refill searches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Effort {
    /// Own bitmaps, some; orphans of the class.
    Little,
    /// Those, and free blocks.
    Usual,
    /// All own bitmaps, spare blocks of other classes, full orphans, and wholly free ones of other classes.
    Hard,
}

impl Session {
    /// See [`Session::alloc`]; only on `place`'s server if `is_strict`.
    pub(crate) async fn alloc_object(
        &self,
        place: Place,
        is_strict: bool,
        bytes: usize,
    ) -> Result<GlobalAddr, PoolError> {
        let (pool, server) = (self.pool(), place.server());
        pool.check_open()?;
        let geometry = pool.geometry();
        let class = class_of(bytes).filter(|class| geometry.shape(*class).count > 0);
        let Some(class) = class.filter(|_| server.index() < geometry.servers()) else {
            return Err(PoolError::Invalid(format!(
                "{bytes} bytes on memory server {server}: the pool has {} servers and objects of \
                 at most {} bytes",
                geometry.servers(),
                geometry.object_bytes_max()
            )));
        };
        let mut ticks = 0;
        for round in 0..ROUNDS_MAX {
            if let Some(addr) = pool.alloc().take(geometry, server, class) {
                return Ok(addr);
            }
            let Some(refilling) = Refilling::begin(pool, server, class) else {
                self.endpoint().sleep(WAIT_NS << round.min(WAIT_DOUBLINGS)).await;
                continue;
            };
            let is_little =
                place.is_any() && pool.alloc().takes_little(geometry, class, LITTLE_PART);
            if let Some(found) = self.refill_near(server, class, is_strict, is_little).await? {
                if let Some(addr) = pool.alloc().take(geometry, found, class) {
                    return Ok(addr);
                }
                continue;
            }
            drop(refilling);
            if ticks == FULL_TICKS {
                break;
            }
            ticks += 1;
            self.tick().await?;
            if ticks > 2 {
                self.endpoint().sleep(FULL_WAIT_NS).await;
            }
        }
        Err(PoolError::Full { server, bytes })
    }

    /// Looks for objects of the class, on `server` first; the server that has some now. Called by the one
    /// that refills the class there.
    async fn refill_near(
        &self,
        server: ServerId,
        class: usize,
        is_strict: bool,
        is_little: bool,
    ) -> Result<Option<ServerId>, PoolError> {
        let pool = self.pool();
        let servers = if is_strict { vec![server] } else { pool.servers_near(server) };
        self.take_from_inbox().await?;
        for effort in [Effort::Little, Effort::Usual, Effort::Hard] {
            // A single server is asked for orphans first in any case.
            if effort == Effort::Little && (!is_little || servers.len() == 1) {
                continue;
            }
            for other in &servers {
                if pool.alloc().has_free(*other, class) {
                    return Ok(Some(*other));
                }
                let refilling = Refilling::begin(pool, *other, class);
                if refilling.is_none() && *other != server {
                    continue;
                }
                if self.refill(*other, class, effort).await? {
                    return Ok(Some(*other));
                }
            }
        }
        Ok(None)
    }

    /// Looks for objects of the class and makes them this member's; whether there is any now.
    async fn refill(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        let now_ns = self.endpoint().now_ns();
        if effort != Effort::Hard && pool.alloc().is_empty(server, class, now_ns) {
            return Ok(false);
        }
        let most = if effort == Effort::Hard { usize::MAX } else { HARVEST_BLOCKS };
        let blocks = pool.alloc().harvest_round(server, class, most);
        for block in blocks {
            let Some(held) = pool.hold(server, block) else { continue };
            if pool.harvest(client, &held).await? > 0 {
                return Ok(true);
            }
        }
        if effort == Effort::Hard {
            loop {
                // Not in the loop's head: the lock must not be held across the release.
                let spare = pool.alloc().take_spare(pool.geometry(), server);
                let Some((block, word)) = spare else { break };
                pool.release(client, server, block, word).await?;
            }
        }
        let found = self.find_block(server, class, effort).await?;
        if !found && effort != Effort::Little {
            pool.alloc().note_empty(server, class, now_ns + EMPTY_NS);
        }
        Ok(found)
    }

    /// Adopts an orphan of the class with free objects, or carves a free block.
    async fn find_block(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        let table = pool.read_block_words(client, server).await?;
        pool.note_free_blocks(server, &table);
        // This member's own recovery searches them.
        let may_adopt = !pool.recovering.load(Ordering::SeqCst);
        let is_orphan = |word: &BlockWord| may_adopt && word.is(BlockState::Orphan);
        let orphans = || table.iter().filter(|(_, word)| is_orphan(word));
        // INV-BLOCK-4. The fullest first for a member that takes little, so that the others may become empty.
        let mut of_class: Vec<(u32, BlockWord)> = orphans()
            .filter(|(_, word)| word.class() == class && word.free_hint() > 0)
            .copied()
            .collect();
        of_class.sort_by_key(|(_, word)| word.free_hint());
        if !pool.alloc().takes_little(pool.geometry(), class, LITTLE_PART) {
            of_class.reverse();
        }
        for (block, word) in of_class {
            let Some(held) = pool.adopt(client, server, block, word).await? else { continue };
            if pool.harvest(client, &held).await? > 0 {
                return Ok(true);
            }
        }
        if effort == Effort::Hard {
            let rest: Vec<(u32, BlockWord)> = orphans().copied().collect();
            for some in rest.chunks(PEEKS) {
                if self.adopt_by_bitmap(server, class, some).await? {
                    return Ok(true);
                }
            }
        }
        if effort == Effort::Little {
            return Ok(false);
        }
        for (block, word) in table.iter().filter(|(_, word)| word.is(BlockState::Free)) {
            if self.carve(server, *block, *word, class).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adopts one of these orphans whose bitmap shows that it is of use: of the class, with a free object, or
    /// of another and wholly free, which is carved anew.
    ///
    /// Cost: 1 READ for each, together; for the first that is of use what adopting costs.
    async fn adopt_by_bitmap(
        &self,
        server: ServerId,
        class: usize,
        orphans: &[(u32, BlockWord)],
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        for (block, word, free) in pool.peek(client, server, orphans).await? {
            if word.class() == class && free > 0 {
                let Some(held) = pool.adopt(client, server, block, word).await? else { continue };
                if pool.harvest(client, &held).await? > 0 {
                    return Ok(true);
                }
            } else if let Some(free) = pool.free_orphan(client, server, (block, word), free).await?
                && self.carve(server, block, free, class).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Pool {
    /// Counts the free objects that orphans' bitmaps show. 1 READ for each, together.
    async fn peek(
        &self,
        client: Reliable<'_>,
        server: ServerId,
        orphans: &[(u32, BlockWord)],
    ) -> Result<Vec<(u32, BlockWord, u32)>, PoolError> {
        let orphans = orphans.iter().filter(|(_, word)| word.class() < CLASS_COUNT);
        let orphans: Vec<&(u32, BlockWord)> = orphans.collect();
        let words = |word: &BlockWord| self.geometry().shape(word.class()).bitmap_words();
        let mut ops = client.client().ops();
        for (block, word) in &orphans {
            ops.read(self.given_addr(server, *block, 0), client.buf(words(word) * 16));
        }
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let bitmaps = client.post_many(ops).await?;
        let free = orphans.into_iter().enumerate().map(|(index, (block, word))| {
            let (given, taken) = bitmaps.buf(index).words().split_at(words(word));
            let free = given.iter().zip(taken).map(|(given, taken)| (given ^ taken).count_ones());
            (*block, *word, free.sum())
        });
        Ok(free.collect())
    }

    /// Frees an orphan that has shown `free` free objects, if those are all; gives its word then.
    ///
    /// Cost: none if they are not all; else 3 CAS, 2 READs.
    async fn free_orphan(
        &self,
        client: Reliable<'_>,
        server: ServerId,
        (block, word): (u32, BlockWord),
        free: u32,
    ) -> Result<Option<BlockWord>, PoolError> {
        if free < self.geometry().shape(word.class()).count {
            return Ok(None);
        }
        let Some(held) = self.adopt(client, server, block, word).await? else { return Ok(None) };
        self.harvest(client, &held).await?;
        drop(held);
        let freed = self.alloc().remove_if_free(self.geometry(), server, block);
        let Some(word) = freed else { return Ok(None) };
        self.release(client, server, block, word).await?;
        Ok(Some(word.next(BlockState::Free, 0, 0)))
    }

    /// Frees wholly free orphans, of which each call looks at some.
    ///
    /// Cost: for each server 1 READ per 64 KiB of its block table and 1 for each of up to 16 orphans.
    pub(crate) async fn free_orphans(&self, client: Reliable<'_>) -> Result<(), PoolError> {
        if self.recovering.load(Ordering::SeqCst) {
            return Ok(());
        }
        for server in self.geometry().server_ids() {
            let table = self.read_block_words(client, server).await?;
            self.note_free_blocks(server, &table);
            let is_candidate =
                |word: &BlockWord| word.is(BlockState::Orphan) && word.free_hint() > 0;
            let mut orphans: Vec<(u32, BlockWord)> =
                table.into_iter().filter(|(_, word)| is_candidate(word)).collect();
            if orphans.len() > PEEKS {
                let from = client.endpoint().random() as usize % orphans.len();
                orphans.rotate_left(from);
                orphans.truncate(PEEKS);
            }
            for (block, word, free) in self.peek(client, server, &orphans).await? {
                self.free_orphan(client, server, (block, word), free).await?;
            }
        }
        Ok(())
    }
}

/// Lets others refill once this one is done, however it ends.
struct Refilling<'a> {
    pool: &'a Pool,
    server: ServerId,
    class: usize,
}

impl<'a> Refilling<'a> {
    /// `None` if somebody refills the class there already.
    fn begin(pool: &'a Pool, server: ServerId, class: usize) -> Option<Self> {
        let begun = pool.alloc().begin_refill(server, class);
        // Made only if it is the first: dropping one ends it.
        begun.then(|| Refilling { pool, server, class })
    }
}

impl Drop for Refilling<'_> {
    fn drop(&mut self) {
        self.pool.alloc().end_refill(self.server, self.class);
    }
}
