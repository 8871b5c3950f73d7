//! Remote free: returns an object to a block of another owner, by turning its *given* bit.
//!
//! The rule is INV-ALLOC-3.
//!
//! INV-GIVE-1: a member does not simply repeat a turn with an unknown outcome. If the turn has
//! happened, the block may since have become wholly free, and another member may have carved it anew.
//! The word may then belong to other objects and hold the expected content. So the member first checks
//! that the block is still of the same carving; only then does the bit tell.

use std::collections::BTreeMap;

use farleaf_fabric::GlobalAddr;

use crate::block::CARVED_AT;
use crate::class::group_of;
use crate::geometry::BlockId;
use crate::local_block::no_object;
use crate::pages::{MapWord, PAIR_BYTES};
use crate::reliable::{Cas, Reliable, Tries, servers_of};
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError};

/// Operations posted together.
pub(crate) const BATCH: usize = 64;
/// A CAS fails only because another succeeded; so many in a row are somebody's malfunction.
const ATTEMPTS_MAX: usize = 1 << 16;

/// Bits of one word of *given* that are to be turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    at: GlobalAddr,
    bits: u64,
    /// The expected content of the word, with unchanged `bits`.
    expected: u64,
    home: Home,
}

/// The block and the run of an object that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home {
    block: BlockId,
    page: u32,
    /// Their words.
    word: BlockWord,
    map: MapWord,
}

/// The place of an object's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bit {
    /// The pair of words: *given*, then *taken*.
    pair: GlobalAddr,
    bit: u64,
    class: usize,
    home: Home,
}

impl Pool {
    /// Gives objects back to the bitmaps of their blocks. The member is announced live and pinned at
    /// an epoch from before they were last seen in use, until this has returned; and it must not be
    /// dropped.
    ///
    /// Cost: per 64 objects 2 batches of READs (3 each) and 1 of CAS, plus 1 for those that meet another's, 1 for
    /// orphans among their blocks, and 3 batches of READs for a batch whose outcome was lost.
    ///
    /// # Errors
    /// `Corrupt` if an address is no object's or its object is free already (the others are given
    /// back); `Fabric` (those whose outcome is unknown may be lost until a sweep finds them).
    pub(crate) async fn give_back(
        &self,
        client: Reliable<'_>,
        objects: &[GlobalAddr],
    ) -> Result<(), PoolError> {
        let mut outcome = Ok(());
        for objects in objects.chunks(BATCH) {
            let mut in_blocks = Vec::with_capacity(objects.len());
            for addr in objects {
                match self.page_of(*addr) {
                    Ok(place) => in_blocks.push((*addr, place)),
                    Err(error) => outcome = Err(error),
                }
            }
            let at = in_blocks.iter().flat_map(|(_, (block, page, _))| {
                [self.geometry().block_word_addr(*block), self.map_addr(*block, *page)]
            });
            let words = client.words(at).await?;
            let mut bits = Vec::with_capacity(objects.len());
            for ((addr, (block, page, offset)), pair) in
                in_blocks.into_iter().zip(words.chunks_exact(2))
            {
                let (word, map) = (BlockWord(pair[0]), MapWord(pair[1]));
                match self.bit_of(Home { block, page, word, map }, offset) {
                    Ok(Some(bit)) => bits.push(bit),
                    Ok(None) => outcome = Err(no_object(addr)),
                    Err(error) => outcome = Err(error),
                }
            }
            if bits.is_empty() {
                continue;
            }
            let mut pairs = client.client().ops();
            for bit in &bits {
                pairs.read(bit.pair, client.buf(PAIR_BYTES as usize));
            }
            let pairs = client.post_many(pairs).await?;
            let mut turns: Vec<Turn> = Vec::with_capacity(objects.len());
            for (index, bit) in bits.iter().enumerate() {
                let pair = pairs.buf(index).words();
                let (given, taken) = (pair[0], pair[1]);
                // The object's two bits cannot change but by this.
                if (given ^ taken) & bit.bit != 0 {
                    outcome = Err(freed_twice(bit.bit, bit.pair));
                    continue;
                }
                match turns.iter_mut().find(|other| other.at == bit.pair) {
                    Some(other) if other.bits & bit.bit == 0 => {
                        // Of this bit, the expected word holds what this READ saw.
                        other.expected = other.expected & !bit.bit | given & bit.bit;
                        other.bits |= bit.bit;
                    }
                    Some(_) => outcome = Err(freed_twice(bit.bit, bit.pair)),
                    None => turns.push(Turn {
                        at: bit.pair,
                        bits: bit.bit,
                        expected: given,
                        home: bit.home,
                    }),
                }
            }
            if let Err(error) = self.turn_bits(client, turns).await? {
                outcome = Err(error);
            }
            self.note_given(client, &bits).await;
        }
        outcome
    }

    /// Adds to the words of orphans the groups of objects that they have been given (INV-BLOCK-4). 1 CAS for each. The
    /// objects are free whether the marks arrive or not, so a mark that fails is no failure of the caller's.
    async fn note_given(&self, client: Reliable<'_>, bits: &[Bit]) {
        let mut marks: BTreeMap<BlockId, (BlockWord, u32)> = BTreeMap::new();
        for Bit { class, home, .. } in bits {
            let group = group_of(*class);
            if home.word.is(BlockState::Orphan) && !home.word.has_group(group) {
                marks.entry(home.block).or_insert((home.word, 0)).1 |= 1 << group;
            }
        }
        if marks.is_empty() {
            return;
        }
        let mark = |(block, (word, groups)): (&BlockId, &(BlockWord, u32))| Cas {
            at: self.geometry().block_word_addr(*block),
            expected: word.0,
            new: word.with_groups(*groups).0,
        };
        let list: Vec<Cas> = marks.iter().map(mark).collect();
        let _ = client.cas_many(&list).await;
    }

    /// Turns bits; the inner error tells of some that somebody else has turned.
    async fn turn_bits(
        &self,
        client: Reliable<'_>,
        mut turns: Vec<Turn>,
    ) -> Result<Result<(), PoolError>, PoolError> {
        let mut outcome = Ok(());
        let mut tries = Tries::default();
        for _ in 0..ATTEMPTS_MAX {
            if turns.is_empty() {
                return Ok(outcome);
            }
            let mut ops = client.client().ops();
            for turn in &turns {
                ops.cas(turn.at, turn.expected, turn.expected ^ turn.bits);
            }
            let mark = client.post_mark();
            let ops = match client.client().post_many(ops).await {
                Ok(ops) => ops,
                Err(error) => {
                    let servers = servers_of(turns.iter().map(|turn| turn.at));
                    client.again_on(&mut tries, mark, error, &servers).await?;
                    turns = self.undone(client, turns).await?;
                    continue;
                }
            };
            let mut failed = Vec::new();
            for (index, mut turn) in turns.drain(..).enumerate() {
                let found = ops.old(index);
                if found == turn.expected {
                    continue;
                }
                match (found ^ turn.expected) & turn.bits {
                    // Others have turned theirs.
                    0 => {
                        turn.expected = found;
                        failed.push(turn);
                    }
                    turned => outcome = Err(freed_twice(turned, turn.at)),
                }
            }
            turns = failed;
        }
        Err(PoolError::Corrupt("a block's bitmap changed during every read".into()))
    }

    /// Those of `turns` that have not happened, once none that was posted happens any more.
    ///
    /// Cost: 3 batches of READs.
    async fn undone(&self, client: Reliable<'_>, turns: Vec<Turn>) -> Result<Vec<Turn>, PoolError> {
        // In this order: a header and a page's word that are of the old carving still, once the block is seen not to
        // be being carved, were so when the bits were read.
        let given = client.words(turns.iter().map(|turn| turn.at)).await?;
        let geometry = self.geometry();
        let at = turns.iter().map(|turn| geometry.block_word_addr(turn.home.block));
        let words = client.words(at).await?;
        let at = turns.iter().flat_map(|Turn { home, .. }| {
            let header = geometry.block_addr(home.block);
            [header.plus(CARVED_AT), self.map_addr(home.block, home.page)]
        });
        let carved = client.words(at).await?;
        let mut undone = Vec::new();
        for (index, mut turn) in turns.into_iter().enumerate() {
            let (carved, map) = (carved[index * 2], carved[index * 2 + 1]);
            // Only a block without objects in use becomes free, and only such a run is carved anew.
            let is_over = match BlockWord(words[index]).state()? {
                BlockState::Free | BlockState::Carving => true,
                BlockState::Owned | BlockState::Orphan | BlockState::Recovering => {
                    turn.home.word.is_before(carved) || turn.home.map.0 != map
                }
                BlockState::Damaged => {
                    return Err(PoolError::Corrupt(format!("{} is damaged", turn.home.block)));
                }
            };
            let turned = (given[index] ^ turn.expected) & turn.bits;
            if is_over || turned == turn.bits {
                continue;
            }
            if turned != 0 {
                return Err(freed_twice(turned, turn.at));
            }
            turn.expected = given[index];
            undone.push(turn);
        }
        Ok(undone)
    }

    /// The block of an address, and the offset in it.
    pub(crate) fn block_of(&self, addr: GlobalAddr) -> Result<(BlockId, u64), PoolError> {
        let outside = || PoolError::Corrupt(format!("{addr} is in no block"));
        self.geometry().block_of(addr).ok_or_else(outside)
    }

    /// The block of an address, the page there, and the offset in the block.
    pub(crate) fn page_of(&self, addr: GlobalAddr) -> Result<(BlockId, u32, u64), PoolError> {
        let (block, offset) = self.block_of(addr)?;
        Ok((block, self.geometry().shape().page_of(offset), offset))
    }

    /// The bits of the object at an offset of a block; `None` if no object starts there.
    fn bit_of(&self, home: Home, offset: u64) -> Result<Option<Bit>, PoolError> {
        if !home.word.state()?.is_carved() {
            return Ok(None);
        }
        let shape = self.geometry().shape();
        let Some((class, first)) = home.map.run_at(home.page, shape) else { return Ok(None) };
        // The run's length is not known here; it reaches behind this page at least.
        let run = shape.run(class, first, shape.pages - first);
        let bit = run.object_at(offset).map(|index| Bit {
            pair: self.pair_addr(home.block, first, (index / 64) as usize),
            bit: 1 << (index % 64),
            class,
            home,
        });
        Ok(bit)
    }

    /// The address of a page's word of a block's page map.
    pub(crate) fn map_addr(&self, block: BlockId, page: u32) -> GlobalAddr {
        self.geometry().block_addr(block).plus(self.geometry().shape().map_at(page))
    }

    /// The address of a pair of bitmap words of the run that begins at a page: *given*, then *taken*.
    pub(crate) fn pair_addr(&self, block: BlockId, page: u32, word: usize) -> GlobalAddr {
        let at = self.geometry().shape().pairs_at(page) + word as u64 * PAIR_BYTES;
        self.geometry().block_addr(block).plus(at)
    }
}

fn freed_twice(bits: u64, at: GlobalAddr) -> PoolError {
    PoolError::Corrupt(format!("an object is freed twice: {bits:#x} at {at}"))
}
