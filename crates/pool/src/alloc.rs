//! Allocation: takes an object of a size class on a server, from the nearest source that has one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use crate::audit::{SCAN_WORDS, block_words};
use crate::block::{check_front, pairs_in};
use crate::class::{class_of, group_of};
use crate::geometry::BlockId;
use crate::on_drop::OnDrop;
use crate::pages::{Run, longest_stretch};
use crate::placement::{Placement, UseUp};
use crate::reliable::Reliable;
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError, Session};

/// First time to wait for another session that looks for the same; then twice as long each
/// time, up to about 1 ms: its thread may not be running at the moment.
const WAIT_NS: u64 = 1_000;
const WAIT_DOUBLINGS: usize = 10;
/// Own runs that are harvested before another block is taken.
const HARVEST_RUNS: usize = 8;
/// Ticks that reclaim retired objects before others are asked for memory.
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
    /// Own pages; own bitmaps, some; orphans that say that they have room; free blocks.
    Usual,
    /// All own bitmaps, and orphans whatever they say; runs as short as they may be.
    Hard,
}

/// The end of a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refilled {
    /// The server has objects of the class.
    Found(ServerId),
    /// There is nothing.
    Nothing,
    /// Another session is taking a block, which may have room.
    Wait,
}

/// An orphan, and what its bitmaps and page map show.
#[derive(Clone, Copy, Debug)]
struct Peeked {
    block: BlockId,
    word: BlockWord,
    /// The longest stretch of pages without an object in use.
    stretch: u32,
    /// Free objects of the class that is looked for.
    objects: u32,
    /// Bytes of free objects, and of pages in no run.
    free_bytes: u64,
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
        let class = class_of(bytes).filter(|class| geometry.shape().run_pages(*class) > 0);
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
        let mut ticks = 0;
        for round in 0..ROUNDS_MAX {
            let (server, taken) = {
                let mut alloc = pool.alloc();
                let server = match place {
                    Placement::Near(server) if is_strict => server,
                    Placement::Near(server) if !alloc.is_passed_over(server, class, now_ns) => {
                        server
                    }
                    _ => alloc.choose(class, now_ns),
                };
                (server, alloc.take(server, class))
            };
            if let Some(addr) = taken {
                return Ok(addr);
            }
            let Some(refilling) = begin_refill(pool, server, class) else {
                self.endpoint().sleep(WAIT_NS << round.min(WAIT_DOUBLINGS)).await;
                continue;
            };
            match self.refill(server, class, place, is_strict).await? {
                Refilled::Found(found) => {
                    if let Some(addr) = pool.alloc().take(found, class) {
                        return Ok(addr);
                    }
                    continue;
                }
                Refilled::Wait => {
                    drop(refilling);
                    self.endpoint().sleep(WAIT_NS << round.min(WAIT_DOUBLINGS)).await;
                    continue;
                }
                Refilled::Nothing => {}
            }
            drop(refilling);
            if ticks == FULL_TICKS {
                let near = if let Placement::Near(near) = place { near } else { server };
                let found = pool.fullness(self.reliable(), is_strict.then_some(near)).await?;
                return Err(PoolError::Full { server: near, bytes, found: Box::new(found) });
            }
            ticks += 1;
            self.tick().await?;
            if ticks > 2 {
                self.endpoint().sleep(FULL_WAIT_NS).await;
            }
        }
        // Nobody knows whether there is memory.
        Err(PoolError::Searching)
    }

    /// Looks for objects of the class, on `server` first. Called by the one that refills the class there.
    async fn refill(
        &self,
        server: ServerId,
        class: usize,
        place: Placement,
        is_strict: bool,
    ) -> Result<Refilled, PoolError> {
        let pool = self.pool();
        let is_spread = place == Placement::Spread;
        self.take_from_inbox().await?;
        {
            let alloc = pool.alloc();
            let now_ns = || self.endpoint().now_ns();
            let best = if is_spread { alloc.choose(class, now_ns) } else { server };
            if alloc.has_free(best, class) {
                return Ok(Refilled::Found(best));
            }
        }
        let others = match is_strict {
            true => vec![server],
            false => pool.alloc().servers_from(class, server, is_spread),
        };
        // INV-PLACE-2
        let anywhere = is_spread && pool.alloc().takes_little(class);
        for at in others.iter().copied().filter(|at| anywhere || *at == server) {
            if self.carve_run(at, class, false).await? {
                return Ok(Refilled::Found(at));
            }
        }
        for effort in [Effort::Usual, Effort::Hard] {
            let now_ns = self.endpoint().now_ns();
            if effort == Effort::Usual && pool.alloc().is_empty(server, class, now_ns) {
                continue;
            }
            if effort == Effort::Usual && self.harvest_some(server, class, HARVEST_RUNS).await? {
                return Ok(Refilled::Found(server));
            }
            let mut tables = BTreeMap::new();
            if effort == Effort::Usual && is_spread && pool.geometry().servers() > 1 {
                let Some(_taking) = begin_taking(pool, server) else { return Ok(Refilled::Wait) };
                tables = pool.read_block_tables(self.reliable()).await?;
                if let Some(found) = self.adopt_any(server, class, &tables).await? {
                    return Ok(Refilled::Found(found));
                }
            }
            for other in others.iter().copied() {
                let is_target = other == server;
                if !is_target && pool.alloc().has_free(other, class) {
                    return Ok(Refilled::Found(other));
                }
                let refilling = begin_refill(pool, other, class);
                if refilling.is_none() && !is_target {
                    continue;
                }
                match self.refill_on(other, class, effort, tables.remove(&other)).await? {
                    Refilled::Nothing => {}
                    found => return Ok(found),
                }
            }
        }
        Ok(Refilled::Nothing)
    }

    /// Adopts an orphan of any of these servers, of which `server` is preferred: one with free objects of the class, or
    /// with pages for a run of it. If it is not there, the next objects come from it until it is used up
    /// (INV-PLACE-2).
    ///
    /// Cost: 1 READ for each of up to 16 such orphans, together; what adopting costs for one, and perhaps 1 WRITE.
    async fn adopt_any(
        &self,
        server: ServerId,
        class: usize,
        tables: &BTreeMap<ServerId, Vec<(BlockId, BlockWord)>>,
    ) -> Result<Option<ServerId>, PoolError> {
        let pool = self.pool();
        let (order, use_up) = {
            let alloc = pool.alloc();
            (alloc.servers_from(class, server, false), alloc.use_up(class))
        };
        let fewest = pool.geometry().shape().run_pages(class);
        let is_of_use =
            |word: &BlockWord| word.has_group(group_of(class)) || word.stretch() >= fewest;
        let in_order = order.iter().filter_map(|at| tables.get(at)).flatten();
        let mut orphans: Vec<(BlockId, BlockWord)> =
            orphans_of(in_order).filter(|(_, word)| is_of_use(word)).collect();
        let turn = |at: ServerId| order.iter().position(|other| *other == at);
        let key = |at: BlockId, word: BlockWord, free: u64| match use_up {
            UseUp::FullestOfAll => (None, free, at.server, word.0),
            UseUp::Fullest => (turn(at.server), free, at.server, word.0),
            UseUp::Emptiest => (turn(at.server), u64::MAX - free, at.server, word.0),
        };
        orphans.sort_by_key(|(at, word)| key(*at, *word, word.stretch().into()));
        orphans.truncate(PEEKS);
        let mut seen = pool.peek(self.reliable(), class, &orphans).await?;
        seen.retain(|seen| seen.objects > 0 || seen.stretch >= fewest);
        seen.sort_by_key(|seen| key(seen.block, seen.word, seen.free_bytes));
        for orphan in seen {
            if let Some(found) = self.adopt_for(class, orphan).await? {
                if orphan.block.server != server {
                    let at = orphan.block.server;
                    pool.alloc().of_class_mut(at, class).turns = found;
                }
                return Ok(Some(orphan.block.server));
            }
        }
        Ok(None)
    }

    /// Adopts an orphan for the class; how many objects it has then.
    async fn adopt_for(&self, class: usize, orphan: Peeked) -> Result<Option<u32>, PoolError> {
        let (pool, server) = (self.pool(), orphan.block.server);
        let held = pool.adopt(self.reliable(), orphan.block, orphan.word).await?;
        if held.is_none() {
            return Ok(None);
        }
        drop(held);
        // At most what it may have come with: in the hands of others by now, perhaps.
        if pool.alloc().has_free(server, class) {
            return Ok(Some(orphan.objects.max(1)));
        }
        // Runs of other classes that came with it may be wholly free.
        pool.alloc().drop_free_runs(server);
        let is_carved = self.carve_run(server, class, true).await?;
        Ok(is_carved.then_some(1))
    }

    /// Takes what others have freed in up to `most` of the member's own runs; whether there is anything.
    async fn harvest_some(
        &self,
        server: ServerId,
        class: usize,
        most: usize,
    ) -> Result<bool, PoolError> {
        let pool = self.pool();
        let runs = pool.alloc().harvest_round(server, class, most);
        for (block, page) in runs {
            let Some(held) = pool.hold(block) else { continue };
            if pool.harvest(self.reliable(), &held, page).await? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes what others have freed in all of the member's blocks on the server.
    async fn harvest_server(&self, server: ServerId) -> Result<(), PoolError> {
        let pool = self.pool();
        let blocks = pool.alloc().owned_on(server);
        for block in blocks {
            let Some(held) = pool.hold(block) else { continue };
            pool.harvest_all(self.reliable(), &held).await?;
        }
        pool.alloc().drop_free_runs(server);
        Ok(())
    }

    /// Looks for objects of the class on one server and makes them this member's. `table`: the server's block table,
    /// if it was read just now and its orphans are of no use.
    async fn refill_on(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
        table: Option<Vec<(BlockId, BlockWord)>>,
    ) -> Result<Refilled, PoolError> {
        let pool = self.pool();
        let now_ns = self.endpoint().now_ns();
        if effort == Effort::Usual && pool.alloc().is_empty(server, class, now_ns) {
            return Ok(Refilled::Nothing);
        }
        if effort == Effort::Hard {
            self.harvest_server(server).await?;
            if pool.alloc().has_free(server, class) {
                return Ok(Refilled::Found(server));
            }
        } else if self.harvest_some(server, class, HARVEST_RUNS).await? {
            return Ok(Refilled::Found(server));
        } else {
            pool.alloc().drop_free_runs(server);
        }
        if self.carve_run(server, class, effort == Effort::Hard).await? {
            return Ok(Refilled::Found(server));
        }
        // One session at a time: the next one may find room in the block that this one takes.
        let Some(_taking) = begin_taking(pool, server) else { return Ok(Refilled::Wait) };
        let found = match table {
            Some(table) => self.carve_any(class, &table).await?,
            None => self.find_block(server, class, effort).await?,
        };
        if found {
            return Ok(Refilled::Found(server));
        }
        pool.alloc().of_class_mut(server, class).empty_until_ns = now_ns + EMPTY_NS;
        Ok(Refilled::Nothing)
    }

    /// Adopts an orphan with room for the class, or carves a free block.
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
        if self.carve_any(class, table).await? {
            return Ok(true);
        }
        if effort == Effort::Hard {
            let fewest = pool.geometry().shape().run_pages(class);
            let orphans: Vec<(BlockId, BlockWord)> = orphans_of(table).collect();
            for some in orphans.chunks(PEEKS) {
                let mut seen = pool.peek(client, class, some).await?;
                seen.retain(|seen| seen.objects > 0 || seen.stretch >= fewest);
                for orphan in seen {
                    if self.adopt_for(class, orphan).await?.is_some() {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Carves a free block, with a run of the class.
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

    /// Finds out what of orphans is free, for a class. Damaged ones are left out. 1 READ for each, together.
    async fn peek(
        &self,
        client: Reliable<'_>,
        class: usize,
        orphans: &[(BlockId, BlockWord)],
    ) -> Result<Vec<Peeked>, PoolError> {
        let shape = self.geometry().shape();
        let mut ops = client.client().ops();
        for (block, _) in orphans {
            let front = client.buf(shape.front_bytes() as usize);
            ops.read(self.geometry().block_addr(*block), front);
        }
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let fronts = client.post_many(ops).await?;
        let all = orphans.iter().enumerate().filter_map(|(index, (block, word))| {
            let front = fronts.buf(index).words();
            let runs = check_front(shape, front).ok()?;
            let free = |run: &Run| -> u32 {
                let pairs = pairs_in(shape, front, run).chunks_exact(2).enumerate();
                pairs
                    .map(|(at, pair)| (pair[0] ^ pair[1]) & run.valid_bits(at))
                    .map(u64::count_ones)
                    .sum()
            };
            let frees: Vec<u32> = runs.iter().map(free).collect();
            let (mut objects, mut free_bytes) = (0, shape.usable_bytes());
            let mut is_used = vec![false; shape.pages as usize];
            for (run, free) in runs.iter().zip(frees) {
                objects += if run.class == class { free } else { 0 };
                free_bytes -= u64::from(run.pages) * shape.page_bytes;
                free_bytes += u64::from(free) * run.object_bytes();
                is_used[run.page as usize..run.end() as usize].fill(free < run.count);
            }
            let stretch = longest_stretch(shape, |page| !is_used[page as usize]);
            Some(Peeked { block: *block, word: *word, stretch, objects, free_bytes })
        });
        Ok(all.collect())
    }

    /// Frees an orphan if it has shown that all of it is free.
    ///
    /// Cost: none if it is not; else 2 CAS and a READ, and a batch of CAS per 64 words of its bitmaps.
    async fn free_orphan(&self, client: Reliable<'_>, orphan: Peeked) -> Result<(), PoolError> {
        if orphan.stretch < self.geometry().shape().usable_pages() {
            return Ok(());
        }
        let Some(held) = self.adopt(client, orphan.block, orphan.word).await? else {
            return Ok(());
        };
        drop(held);
        let freed = self.alloc().remove_if_free(orphan.block);
        let Some(word) = freed else { return Ok(()) };
        self.release(client, orphan.block, word).await
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
                orphans_of(&table).filter(|(_, word)| word.has_room()).collect();
            if orphans.len() > PEEKS {
                let from = client.endpoint().random() as usize % orphans.len();
                orphans.rotate_left(from);
                orphans.truncate(PEEKS);
            }
            for orphan in self.peek(client, 0, &orphans).await? {
                self.free_orphan(client, orphan).await?;
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

/// Begins to take another block of the server, until what this returns is dropped; `None` if a session does already.
fn begin_taking(pool: &Pool, server: ServerId) -> Option<OnDrop<impl FnMut()>> {
    let taking = |to: bool| std::mem::replace(&mut pool.alloc().servers[server.index()].taking, to);
    // Made only if it is the first: dropping one ends it.
    (!taking(true)).then(|| {
        OnDrop(move || {
            pool.alloc().servers[server.index()].taking = false;
        })
    })
}
