//! Acknowledgements: which members of a table go by which map, in a word for each slot of the pool's member table.
//!
//! A word: bit 0 the member takes part, bits 1 to 31 the last epoch that it has acknowledged, bits 32 to 63
//! the generation of its life; 0 for none. A member changes its own word by CAS, as a conductor clears those of the
//! dead by CAS.
//!
//! - `INV-PART-ACK-1` A member's word is there before it READs its first map. So a conductor that does not find the
//!   word, after it has changed the map, knows that the member goes by the new map.
//! - `INV-PART-ACK-2` A member acknowledges an epoch when no operation of an older one is inside. The word of a life
//!   that is cut off counts as acknowledged: nothing of it takes effect any more.

use farleaf_fabric::GlobalAddr;
use farleaf_pool::{Pool, Session};

use crate::IndexError;

/// Bytes of the acknowledgements of a table in this pool; zeroed in a new table.
pub fn ack_bytes(pool: &Pool) -> usize {
    pool.geometry().options().members_max as usize * 8
}

/// One word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AckWord(pub(super) u64);

impl AckWord {
    /// The word of a member that acknowledges `epoch`; of epoch 0 it goes by no map yet.
    pub(super) fn new(generation: u32, epoch: u32) -> Self {
        AckWord(u64::from(generation) << 32 | u64::from(epoch) << 1 | 1)
    }

    pub(super) fn takes_part(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn epoch(self) -> u32 {
        self.0 as u32 >> 1
    }
}

/// The word of a slot.
pub(super) fn ack_addr(acks: GlobalAddr, slot: u32) -> GlobalAddr {
    acks.plus(u64::from(slot) * 8)
}

/// The words of all members that take part, with their slots. 1 READ.
pub(super) async fn read_acks(
    session: &Session,
    acks: GlobalAddr,
) -> Result<Vec<(u32, AckWord)>, IndexError> {
    let reliable = session.reliable();
    let words = reliable.read(acks, reliable.buf(ack_bytes(session.pool()))).await?;
    let words = (0..).zip(words.words().iter().map(|word| AckWord(*word)));
    Ok(words.filter(|(_, word)| word.takes_part()).collect())
}

/// Clears the word of a member that is cut off, or has left; leaves the slot's next life's alone. 1 CAS.
pub(super) async fn clear_ack(
    session: &Session,
    acks: GlobalAddr,
    slot: u32,
    seen: AckWord,
) -> Result<(), IndexError> {
    session.reliable().cas_release(ack_addr(acks, slot), seen.0, 0).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        for (generation, epoch) in [(0, 0), (1, 7), (u32::MAX, (1 << 31) - 1)] {
            let word = AckWord::new(generation, epoch);
            assert!(word.takes_part());
            assert_eq!((word.generation(), word.epoch()), (generation, epoch));
        }
        assert!(!AckWord(0).takes_part());
    }
}
