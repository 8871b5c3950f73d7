//! Remote free: returns an object to a block of another owner, by turning its *given* bit.
//!
//! The rule is INV-ALLOC-3.
//!
//! INV-GIVE-1: a member does not simply repeat a turn with an unknown outcome. If the turn has
//! happened, the block may since have become wholly free, and another member may have carved it anew.
//! The word may then belong to other objects and hold the expected content. So the member first checks
//! that the block is still of the same carving; only then does the bit tell.

use farleaf_fabric::GlobalAddr;

use crate::block::CARVED_AT;
use crate::class::BLOCK_HEADER_BYTES;
use crate::geometry::BlockId;
use crate::reliable::{Cas, Reliable, Trial, servers_of};
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
    /// The block's word while the objects were in use.
    block: BlockWord,
}

/// The place of an object's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bit {
    pub(crate) given: GlobalAddr,
    pub(crate) taken: GlobalAddr,
    pub(crate) bit: u64,
    /// The block's word that this is by.
    block: BlockWord,
}

impl Pool {
    /// Gives objects back to the bitmaps of their blocks. The member is announced live and pinned at
    /// an epoch from before they were last seen in use, until this has returned; and it must not be
    /// dropped.
    ///
    /// Cost: per 64 objects 2 batches of READs and 1 of CAS, plus 1 for those that meet another's, 1 for full
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
                match self.block_of(*addr) {
                    Ok((block, _)) => in_blocks.push((*addr, block)),
                    Err(error) => outcome = Err(error),
                }
            }
            let at = in_blocks.iter().map(|(_, block)| self.geometry().block_word_addr(*block));
            let words = client.words(at).await?;
            let mut bits = Vec::with_capacity(objects.len());
            for ((addr, _), word) in in_blocks.into_iter().zip(words) {
                match self.bit_of(addr, BlockWord(word)) {
                    Ok(bit) => bits.push(bit),
                    Err(error) => outcome = Err(error),
                }
            }
            if bits.is_empty() {
                continue;
            }
            let found = client.words(bits.iter().flat_map(|bit| [bit.given, bit.taken])).await?;
            let mut turns: Vec<Turn> = Vec::with_capacity(objects.len());
            for (bit, pair) in bits.iter().zip(found.chunks_exact(2)) {
                let (given, taken) = (pair[0], pair[1]);
                // The object's two bits cannot change but by this.
                if (given ^ taken) & bit.bit != 0 {
                    outcome = Err(freed_twice(bit.bit, bit.given));
                    continue;
                }
                match turns.iter_mut().find(|other| other.at == bit.given) {
                    Some(other) if other.bits & bit.bit == 0 => {
                        // Of this bit, the expected word holds what this READ saw.
                        other.expected = other.expected & !bit.bit | given & bit.bit;
                        other.bits |= bit.bit;
                    }
                    Some(_) => outcome = Err(freed_twice(bit.bit, bit.given)),
                    None => turns.push(Turn {
                        at: bit.given,
                        bits: bit.bit,
                        expected: given,
                        block: bit.block,
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

    /// Marks full orphans that have been given objects (INV-BLOCK-4). 1 CAS for each. The objects are free whether
    /// the marks arrive or not, so a mark that fails is no failure of the caller's.
    async fn note_given(&self, client: Reliable<'_>, bits: &[Bit]) {
        let mut list: Vec<Cas> = Vec::new();
        for Bit { given, block: word, .. } in bits {
            let Ok((block, _)) = self.block_of(*given) else { continue };
            if word.is(BlockState::Orphan) && word.free_hint() == 0 {
                let at = self.geometry().block_word_addr(block);
                if list.iter().all(|cas| cas.at != at) {
                    list.push(Cas { at, expected: word.0, new: word.orphan(word.class(), 1).0 });
                }
            }
        }
        if !list.is_empty() {
            let _ = client.cas_many(&list).await;
        }
    }

    /// Turns bits; the inner error tells of some that somebody else has turned.
    async fn turn_bits(
        &self,
        client: Reliable<'_>,
        mut turns: Vec<Turn>,
    ) -> Result<Result<(), PoolError>, PoolError> {
        let mut outcome = Ok(());
        let mut trial = Trial::default();
        for _ in 0..ATTEMPTS_MAX {
            if turns.is_empty() {
                return Ok(outcome);
            }
            let mut ops = client.client().ops();
            for turn in &turns {
                ops.cas(turn.at, turn.expected, turn.expected ^ turn.bits);
            }
            let posting = client.posting();
            let ops = match client.client().post_many(ops).await {
                Ok(ops) => ops,
                Err(error) => {
                    let servers = servers_of(turns.iter().map(|turn| turn.at));
                    client.again_on(&mut trial, posting, error, &servers).await?;
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
        // In this order: a header that is of the old carving still, once the block is seen not to be being
        // carved, was so when the bits were read.
        let given = client.words(turns.iter().map(|turn| turn.at)).await?;
        let mut places = Vec::with_capacity(turns.len());
        for turn in &turns {
            places.push(self.block_of(turn.at)?.0);
        }
        let geometry = self.geometry();
        let at = places.iter().map(|block| geometry.block_word_addr(*block));
        let words = client.words(at).await?;
        let at = places.iter().map(|block| geometry.block_addr(*block).plus(CARVED_AT));
        let carved = client.words(at).await?;
        let mut undone = Vec::new();
        for (index, mut turn) in turns.into_iter().enumerate() {
            // Only a block without objects in use becomes free.
            let is_over = match BlockWord(words[index]).state()? {
                BlockState::Free | BlockState::Carving => true,
                BlockState::Owned | BlockState::Orphan | BlockState::Recovering => {
                    turn.block.is_before(carved[index])
                }
                BlockState::Damaged => {
                    return Err(PoolError::Corrupt(format!("{} is damaged", places[index])));
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

    /// The bits of an object in a block with that word.
    pub(crate) fn bit_of(&self, addr: GlobalAddr, word: BlockWord) -> Result<Bit, PoolError> {
        let (block, offset) = self.block_of(addr)?;
        let nowhere = || PoolError::Corrupt(format!("no object starts at {addr}"));
        if !word.state()?.is_carved() || word.class() >= crate::class::CLASS_COUNT {
            return Err(nowhere());
        }
        let shape = self.geometry().shape(word.class());
        let index = shape.object_at(offset).ok_or_else(nowhere)?;
        let at = (index / 64) as usize;
        Ok(Bit {
            given: self.given_addr(block, at),
            taken: self.taken_addr(block, shape.bitmap_words(), at),
            bit: 1 << (index % 64),
            block: word,
        })
    }

    /// The address of a word of a block's *given*.
    pub(crate) fn given_addr(&self, block: BlockId, word: usize) -> GlobalAddr {
        self.geometry().block_addr(block).plus(BLOCK_HEADER_BYTES + word as u64 * 8)
    }

    /// The address of a word of the *taken* of a block whose bitmaps have `words` words each.
    pub(crate) fn taken_addr(&self, block: BlockId, words: usize, word: usize) -> GlobalAddr {
        self.given_addr(block, words + word)
    }
}

fn freed_twice(bits: u64, at: GlobalAddr) -> PoolError {
    PoolError::Corrupt(format!("an object is freed twice: {bits:#x} at {at}"))
}
