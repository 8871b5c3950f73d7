//! Setting bits of blocks' bitmaps: how an object goes back to a block that is not this member's.

use farleaf_fabric::{Client, Endpoint, GlobalAddr, ServerId};

use crate::class::BLOCK_HEADER_BYTES;
use crate::words::{BlockState, BlockWord};
use crate::{Pool, PoolError};

/// Operations posted together.
pub(crate) const BATCH: usize = 64;
/// A CAS fails only because another succeeded; so many in a row are somebody's malfunction.
const ATTEMPTS_MAX: usize = 1 << 16;

/// Bits of one word of a bitmap that are to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetBits {
    pub(crate) at: GlobalAddr,
    pub(crate) bits: u64,
    /// What the word is thought to hold.
    pub(crate) expected: u64,
}

impl Pool {
    /// Gives objects back to the bitmaps of their blocks.
    ///
    /// Cost: per 64 objects 1 batch of READs and 1 of CAS, plus 1 for those that meet another's.
    ///
    /// # Errors
    /// `Corrupt` if an address is no object's or its object is free already (the others are given
    /// back); `Fabric` (those whose outcome is unknown may be lost until a sweep finds them).
    pub(crate) async fn give_back<E: Endpoint>(
        &self,
        client: &Client<E>,
        objects: &[GlobalAddr],
    ) -> Result<(), PoolError> {
        let mut outcome = Ok(());
        for objects in objects.chunks(BATCH) {
            let mut ops = client.ops();
            for addr in objects {
                let (block, _) = self.block_of(*addr)?;
                let at = self.geometry().block_word_addr(addr.server(), block);
                ops.read(at, client.buf(8));
            }
            let ops = client.post_many(ops).await?;
            let mut sets: Vec<SetBits> = Vec::with_capacity(objects.len());
            for (index, addr) in objects.iter().enumerate() {
                let set = match self.bit_of(*addr, BlockWord(ops.buf(index).words()[0])) {
                    Ok(set) => set,
                    Err(error) => {
                        outcome = Err(error);
                        continue;
                    }
                };
                match sets.iter_mut().find(|other| other.at == set.at) {
                    Some(other) if other.bits & set.bits == 0 => other.bits |= set.bits,
                    Some(_) => outcome = Err(freed_twice(set)),
                    None => sets.push(set),
                }
            }
            if let Some(set) = self.set_bits(client, sets).await? {
                outcome = Err(freed_twice(set));
            }
        }
        outcome
    }

    /// Sets bits; the first that were set already, if any (the others are set).
    pub(crate) async fn set_bits<E: Endpoint>(
        &self,
        client: &Client<E>,
        mut sets: Vec<SetBits>,
    ) -> Result<Option<SetBits>, PoolError> {
        let mut twice = None;
        for _ in 0..ATTEMPTS_MAX {
            if sets.is_empty() {
                return Ok(twice);
            }
            let count = sets.len().min(BATCH);
            let mut ops = client.ops();
            for set in &sets[..count] {
                ops.cas(set.at, set.expected, set.expected | set.bits);
            }
            let ops = client.post_many(ops).await?;
            let mut failed = Vec::new();
            for (index, mut set) in sets.drain(..count).enumerate() {
                let found = ops.old(index);
                if found == set.expected {
                    continue;
                }
                if found & set.bits != 0 {
                    twice = twice.or(Some(set));
                    set.bits &= !found;
                }
                set.expected = found;
                if set.bits != 0 {
                    failed.push(set);
                }
            }
            sets.extend(failed);
        }
        Err(PoolError::Corrupt("a block's bitmap never holds still".into()))
    }

    /// The block of an address, and the offset in it.
    pub(crate) fn block_of(&self, addr: GlobalAddr) -> Result<(u32, u64), PoolError> {
        let outside = || PoolError::Corrupt(format!("{addr} is in no block"));
        self.geometry().block_of(addr).ok_or_else(outside)
    }

    /// The bit of an object in a block with that word.
    pub(crate) fn bit_of(&self, addr: GlobalAddr, word: BlockWord) -> Result<SetBits, PoolError> {
        let (block, offset) = self.block_of(addr)?;
        let is_carved = match word.state()? {
            BlockState::Owned | BlockState::Orphan | BlockState::Recovering => true,
            BlockState::Free | BlockState::Carving | BlockState::Damaged => false,
        };
        let index = (is_carved && word.class() < crate::class::CLASS_COUNT)
            .then(|| self.geometry().shape(word.class()).object_at(offset))
            .flatten()
            .ok_or_else(|| PoolError::Corrupt(format!("no object starts at {addr}")))?;
        let at = self.bitmap_addr(addr.server(), block, (index / 64) as usize);
        Ok(SetBits { at, bits: 1 << (index % 64), expected: 0 })
    }

    /// The address of a word of a block's bitmap.
    pub(crate) fn bitmap_addr(&self, server: ServerId, block: u32, word: usize) -> GlobalAddr {
        self.geometry().block_addr(server, block).plus(BLOCK_HEADER_BYTES + word as u64 * 8)
    }
}

fn freed_twice(set: SetBits) -> PoolError {
    PoolError::Corrupt(format!("an object is freed twice: {:#x} at {}", set.bits, set.at))
}
