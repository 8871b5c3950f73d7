//! Allocation: takes an object of a size class on a server, from the nearest source that has one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use crate::audit::{SCAN_WORDS, block_words};
use crate::class::{CLASS_COUNT, class_of};
use crate::geometry::BlockId;
use crate::on_drop::OnDrop;
use crate::placement::{Placement, UseUp};
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

/// The places that a refill searches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Own bitmaps, some; orphans of the class; free blocks.
    Usual,
    /// All own bitmaps, spare blocks of other classes, full orphans, and wholly free ones of other classes.
    Hard,
}

impl Session {
    /// See [`Session::alloc`]; only on `place`'s server if `is_strict`.
    pub(crate) async fn alloc_object(
        &self,
        place: Placement,
        is_strict: bool,
        bytes: usize,
    ) -> Result<GlobalAddr, PoolError> {
        let pool = self.pool();
        pool.check_open()?;
        let geometry = pool.geometry();
        let class = class_of(bytes).filter(|class| geometry.shape(*class).count > 0);
        let asked = match place {
            Placement::Near(server) | Placement::Beside(server) => Some(server),
            Placement::Spread => None,
        };
        let is_known = asked.is_none_or(|server| server.index() < geometry.servers());
        let Some(class) = class.filter(|_| is_known) else {
            let whose = asked.map(|server| format!(" on memory server {server}"));
            let whose = whose.unwrap_or_default();
            return Err(PoolError::Invalid(format!(
                "{bytes} bytes{whose}: the pool has {} servers and objects of at most {} bytes",
                geometry.servers(),
                geometry.object_bytes_max()
            )));
        };
        let place = match place {
            Placement::Beside(server) => pool.alloc().beside(class, server),
            _ => place,
        };
        let now_ns = || self.endpoint().now_ns();
        let (mut ticks, mut server) = (0, ServerId(0));
        for round in 0..ROUNDS_MAX {
            let taken = {
                let mut alloc = pool.alloc();
                server = match place {
                    Placement::Near(server) if is_strict => server,
                    Placement::Near(server) if !alloc.is_passed_over(server, class, now_ns) => {
                        server
                    }
                    _ => alloc.choose(class, now_ns),
                };
                alloc.take(server, class)
            };
            if let Some(addr) = taken {
                return Ok(addr);
            }
            let Some(refilling) = begin_refill(pool, server, class) else {
                self.endpoint().sleep(WAIT_NS << round.min(WAIT_DOUBLINGS)).await;
                continue;
            };
            if let Some(found) = self.refill(server, class, place, is_strict).await? {
                if let Some(addr) = pool.alloc().take(found, class) {
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
        if let Placement::Near(near) = place {
            server = near;
        }
        Err(PoolError::Full { server, bytes })
    }

    /// Looks for objects of the class, on `server` first; the server that has some now. Called by the one
    /// that refills the class there.
    async fn refill(
        &self,
        server: ServerId,
        class: usize,
        place: Placement,
        is_strict: bool,
    ) -> Result<Option<ServerId>, PoolError> {
        let pool = self.pool();
        let is_spread = place == Placement::Spread;
        self.take_from_inbox().await?;
        {
            let alloc = pool.alloc();
            let now_ns = || self.endpoint().now_ns();
            let best = if is_spread { alloc.choose(class, now_ns) } else { server };
            if alloc.has_free(best, class) {
                return Ok(Some(best));
            }
        }
        for effort in [Effort::Usual, Effort::Hard] {
            let now_ns = self.endpoint().now_ns();
            if effort == Effort::Usual && pool.alloc().is_empty(server, class, now_ns) {
                continue;
            }
            if effort == Effort::Usual && self.harvest_some(server, class, HARVEST_BLOCKS).await? {
                return Ok(Some(server));
            }
            let mut tables = BTreeMap::new();
            if effort == Effort::Usual && is_spread && pool.geometry().servers() > 1 {
                tables = pool.read_block_tables(self.reliable()).await?;
                if let Some(found) = self.adopt_any(server, class, &tables).await? {
                    return Ok(Some(found));
                }
            }
            let others = match is_strict {
                true => vec![server],
                false => pool.alloc().servers_from(class, server, is_spread),
            };
            for other in others {
                let is_target = other == server;
                if !is_target && pool.alloc().has_free(other, class) {
                    return Ok(Some(other));
                }
                let refilling = begin_refill(pool, other, class);
                if refilling.is_none() && !is_target {
                    continue;
                }
                if self.refill_on(other, class, effort, tables.remove(&other)).await? {
                    return Ok(Some(other));
                }
            }
        }
        Ok(None)
    }

    /// Adopts an orphan of the class with free objects, of any of these servers, of which `server` is preferred. If it
    /// is not there, the next objects come from it until it is used up (INV-PLACE-2).
    ///
    /// Cost: 1 READ for each of up to 16 such orphans, together; 1 CAS, 1 READ, 1 batch of CAS for one.
    async fn adopt_any(
        &self,
        server: ServerId,
        class: usize,
        tables: &BTreeMap<ServerId, Vec<(BlockId, BlockWord)>>,
    ) -> Result<Option<ServerId>, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        let (order, use_up) = {
            let alloc = pool.alloc();
            (alloc.servers_from(class, server, false), alloc.use_up(class))
        };
        let is_of_use = |word: &BlockWord| word.class() == class && word.free_hint() > 0;
        let in_order = order.iter().filter_map(|at| tables.get(at)).flatten();
        let mut orphans: Vec<(BlockId, BlockWord)> =
            orphans_of(in_order).filter(|(_, word)| is_of_use(word)).collect();
        let turn = |at: ServerId| order.iter().position(|other| *other == at);
        let key = |(at, word): &(BlockId, BlockWord), free: u32| match use_up {
            UseUp::FullestOfAll => (None, free, at.server, word.0),
            UseUp::Fullest => (turn(at.server), free, at.server, word.0),
            UseUp::Emptiest => (turn(at.server), u32::MAX - free, at.server, word.0),
        };
        orphans.sort_by_key(|orphan| key(orphan, orphan.1.free_hint()));
        if orphans.len() > 1 {
            // Others may have freed objects since the word was written.
            orphans.truncate(PEEKS);
            let seen = pool.peek(client, &orphans).await?;
            let mut seen: Vec<_> = seen.into_iter().filter(|(_, free)| *free > 0).collect();
            seen.sort_by_key(|(orphan, free)| key(orphan, *free));
            orphans = seen.into_iter().map(|(orphan, _)| orphan).collect();
        }
        for (at, word) in orphans {
            let Some(held) = pool.adopt(client, at, word).await? else { continue };
            let found = pool.harvest(client, &held).await?;
            if found > 0 {
                if at.server != server {
                    pool.alloc().of_class_mut(at.server, class).turns = found;
                }
                return Ok(Some(at.server));
            }
        }
        Ok(None)
    }

    /// Takes what others have freed in up to `most` of the member's own blocks; whether there is anything.
    async fn harvest_some(
        &self,
        server: ServerId,
        class: usize,
        most: usize,
    ) -> Result<bool, PoolError> {
        let pool = self.pool();
        let blocks = pool.alloc().harvest_round(server, class, most);
        for block in blocks {
            let Some(held) = pool.hold(block) else { continue };
            if pool.harvest(self.reliable(), &held).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for objects of the class on one server and makes them this member's; whether there is any now.
    /// `table`: the server's block table, if it was read just now and its orphans are of no use.
    async fn refill_on(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
        table: Option<Vec<(BlockId, BlockWord)>>,
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        let now_ns = self.endpoint().now_ns();
        if effort == Effort::Usual && pool.alloc().is_empty(server, class, now_ns) {
            return Ok(false);
        }
        let most = if effort == Effort::Hard { usize::MAX } else { HARVEST_BLOCKS };
        if self.harvest_some(server, class, most).await? {
            return Ok(true);
        }
        if effort == Effort::Hard {
            loop {
                // Not in the loop's head: the lock must not be held across the release.
                let spare = pool.alloc().take_spare(server);
                let Some((block, word)) = spare else { break };
                pool.release(client, block, word).await?;
            }
        }
        let found = match table {
            Some(table) => self.carve_any(class, &table).await?,
            None => self.find_block(server, class, effort).await?,
        };
        if !found {
            pool.alloc().of_class_mut(server, class).empty_until_ns = now_ns + EMPTY_NS;
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
        let tables = BTreeMap::from([(server, table)]);
        if self.adopt_any(server, class, &tables).await?.is_some() {
            return Ok(true);
        }
        let table = &tables[&server];
        if effort == Effort::Hard {
            let orphans: Vec<(BlockId, BlockWord)> = orphans_of(table).collect();
            for some in orphans.chunks(PEEKS) {
                if self.adopt_by_bitmap(class, some).await? {
                    return Ok(true);
                }
            }
        }
        self.carve_any(class, table).await
    }

    /// Carves a free block for the class.
    async fn carve_any(
        &self,
        class: usize,
        table: &[(BlockId, BlockWord)],
    ) -> Result<bool, PoolError> {
        for (block, word) in table.iter().filter(|(_, word)| word.is(BlockState::Free)) {
            if self.carve(*block, *word, class).await? {
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
        class: usize,
        orphans: &[(BlockId, BlockWord)],
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        for ((block, word), free) in pool.peek(client, orphans).await? {
            if word.class() == class && free > 0 {
                let Some(held) = pool.adopt(client, block, word).await? else { continue };
                if pool.harvest(client, &held).await? > 0 {
                    return Ok(true);
                }
            } else if let Some(free) = pool.free_orphan(client, block, word, free).await?
                && self.carve(block, free, class).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Pool {
    /// Reads the block tables of all servers. 1 READ per 64 KiB of each, together.
    async fn read_block_tables(
        &self,
        client: Reliable<'_>,
    ) -> Result<BTreeMap<ServerId, Vec<(BlockId, BlockWord)>>, PoolError> {
        let geometry = self.geometry();
        let mut ops = client.client().ops();
        let mut parts = Vec::new();
        for server in geometry.server_ids() {
            let count = geometry.block_count(server);
            for number in (0..count).step_by(SCAN_WORDS as usize) {
                let words = SCAN_WORDS.min(count - number);
                let first = BlockId { server, number };
                ops.read(geometry.block_word_addr(first), client.buf(words as usize * 8));
                parts.push(first);
            }
        }
        let read = client.post_many(ops).await?;
        let mut tables: BTreeMap<ServerId, Vec<(BlockId, BlockWord)>> = BTreeMap::new();
        for (index, first) in parts.into_iter().enumerate() {
            let words = block_words(first, read.buf(index).words());
            tables.entry(first.server).or_default().extend(words);
        }
        for (server, table) in &tables {
            self.note_free_blocks(*server, table);
        }
        Ok(tables)
    }

    /// Counts the free objects that orphans' bitmaps show. 1 READ for each, together.
    async fn peek(
        &self,
        client: Reliable<'_>,
        orphans: &[(BlockId, BlockWord)],
    ) -> Result<Vec<((BlockId, BlockWord), u32)>, PoolError> {
        let orphans = orphans.iter().filter(|(_, word)| word.class() < CLASS_COUNT);
        let orphans: Vec<(BlockId, BlockWord)> = orphans.copied().collect();
        let words = |word: BlockWord| self.geometry().shape(word.class()).bitmap_words();
        let mut ops = client.client().ops();
        for (block, word) in &orphans {
            ops.read(self.given_addr(*block, 0), client.buf(words(*word) * 16));
        }
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let bitmaps = client.post_many(ops).await?;
        let free = orphans.into_iter().enumerate().map(|(index, orphan)| {
            let (given, taken) = bitmaps.buf(index).words().split_at(words(orphan.1));
            let free = given.iter().zip(taken).map(|(given, taken)| (given ^ taken).count_ones());
            (orphan, free.sum())
        });
        Ok(free.collect())
    }

    /// Frees an orphan that has shown `free` free objects, if those are all; gives its word then.
    ///
    /// Cost: none if they are not all; else 3 CAS, 2 READs.
    async fn free_orphan(
        &self,
        client: Reliable<'_>,
        block: BlockId,
        word: BlockWord,
        free: u32,
    ) -> Result<Option<BlockWord>, PoolError> {
        if free < self.geometry().shape(word.class()).count {
            return Ok(None);
        }
        let Some(held) = self.adopt(client, block, word).await? else { return Ok(None) };
        self.harvest(client, &held).await?;
        drop(held);
        let freed = self.alloc().remove_if_free(block);
        let Some(word) = freed else { return Ok(None) };
        self.release(client, block, word).await?;
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
            let mut orphans: Vec<(BlockId, BlockWord)> =
                orphans_of(&table).filter(|(_, word)| word.free_hint() > 0).collect();
            if orphans.len() > PEEKS {
                let from = client.endpoint().random() as usize % orphans.len();
                orphans.rotate_left(from);
                orphans.truncate(PEEKS);
            }
            for ((block, word), free) in self.peek(client, &orphans).await? {
                self.free_orphan(client, block, word, free).await?;
            }
        }
        Ok(())
    }
}

/// The orphans of a block table.
fn orphans_of<'a>(
    table: impl IntoIterator<Item = &'a (BlockId, BlockWord)>,
) -> impl Iterator<Item = (BlockId, BlockWord)> {
    table.into_iter().filter(|(_, word)| word.is(BlockState::Orphan)).copied()
}

/// Begins to refill the class there, until what this returns is dropped; `None` if somebody does already.
fn begin_refill(pool: &Pool, server: ServerId, class: usize) -> Option<OnDrop<impl FnMut()>> {
    let begun = pool.alloc().begin_refill(server, class);
    // Made only if it is the first: dropping one ends it.
    begun.then(|| OnDrop(move || pool.alloc().of_class_mut(server, class).refilling = false))
}
