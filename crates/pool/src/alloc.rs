//! Allocation: takes an object of a size class on a server, from the nearest source that has one.

use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};

use crate::class::class_of;
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError, Session};

/// First time to wait for another session that looks for the same; then twice as long each
/// time, up to about 1 ms: its thread may not be running at the moment.
const WAIT_NS: u64 = 1_000;
const WAIT_DOUBLINGS: usize = 10;
/// Own blocks that are harvested before another block is taken.
const HARVEST_BLOCKS: usize = 8;
/// Words of the block table that are read at once.
const SCAN_WORDS: u32 = 8192;
/// Ticks that reclaim retired objects before the server counts as full.
const FULL_TICKS: usize = 6;
/// Between those ticks, so that other members come to theirs.
const FULL_WAIT_NS: u64 = 20_000;
/// Rounds of refilling in which others took all that was found.
const ROUNDS_MAX: usize = 1000;

/// The places that a refill searches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Own bitmaps, some; orphans of the class; free blocks.
    Usual,
    /// All own bitmaps, spare blocks of other classes, wholly free orphans of other classes.
    Hard,
}

impl Session {
    /// See [`Session::alloc`].
    pub(crate) async fn alloc_object(
        &self,
        server: ServerId,
        bytes: usize,
    ) -> Result<GlobalAddr, PoolError> {
        let pool = self.pool();
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
            if !pool.alloc().begin_refill(server, class) {
                self.endpoint().sleep(WAIT_NS << round.min(WAIT_DOUBLINGS)).await;
                continue;
            }
            let refilling = Refilling { pool, server, class };
            if self.refill(server, class, Effort::Usual).await?
                || self.refill(server, class, Effort::Hard).await?
            {
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

    /// Looks for objects of the class and makes them this member's; whether there is any now.
    async fn refill(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        if effort == Effort::Usual {
            self.take_from_inbox().await?;
            if pool.alloc().has_free(server, class) {
                return Ok(true);
            }
        }
        let most = if effort == Effort::Usual { HARVEST_BLOCKS } else { usize::MAX };
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
        self.find_block(server, class, effort).await
    }

    /// Adopts an orphan of the class with free objects, or carves a free block.
    async fn find_block(
        &self,
        server: ServerId,
        class: usize,
        effort: Effort,
    ) -> Result<bool, PoolError> {
        let (pool, client) = (self.pool(), self.reliable());
        let count = pool.geometry().block_count(server);
        let mut from = 0;
        while from < count {
            let words = SCAN_WORDS.min(count - from);
            let at = pool.geometry().block_word_addr(server, from);
            let table = client.read(at, client.buf(words as usize * 8)).await?;
            let blocks = || {
                let words = table.words().iter().map(|word| BlockWord(*word));
                (from..).zip(words)
            };
            for (block, word) in blocks() {
                let is_candidate = word.is(BlockState::Orphan)
                    && (word.class() == class || effort == Effort::Hard);
                if !is_candidate {
                    continue;
                }
                let Some(held) = pool.adopt(client, server, block, word).await? else { continue };
                let found = pool.harvest(client, &held).await?;
                if word.class() == class {
                    if found > 0 {
                        return Ok(true);
                    }
                    continue;
                }
                // Of another class: of use only if it is wholly free.
                drop(held);
                let freed = pool.alloc().remove_if_free(pool.geometry(), server, block);
                if let Some(word) = freed {
                    pool.release(client, server, block, word).await?;
                    let free = word.next(BlockState::Free, 0, 0);
                    if self.carve(server, block, free, class).await? {
                        return Ok(true);
                    }
                    continue;
                }
                let removed = pool
                    .hold(server, block)
                    .and_then(|_held| pool.alloc().remove(pool.geometry(), server, block));
                if let Some((word, left)) = removed {
                    pool.abandon(client, server, block, word, left).await?;
                }
            }
            for (block, word) in blocks() {
                if word.is(BlockState::Free) && self.carve(server, block, word, class).await? {
                    return Ok(true);
                }
            }
            from += words;
        }
        Ok(false)
    }
}

/// Lets others refill once this one is done, however it ends.
struct Refilling<'a> {
    pool: &'a Pool,
    server: ServerId,
    class: usize,
}

impl Drop for Refilling<'_> {
    fn drop(&mut self) {
        self.pool.alloc().end_refill(self.server, self.class);
    }
}
