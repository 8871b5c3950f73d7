//! Cursors: stand for "after this key" between the calls of a `SCAN`.
//!
//! A cursor is a slot of a table and the slot's generation: decimal, never 0, and below 2^53, which is as far as
//! clients in JavaScript count. It is good on every connection of the gateway, and may be sent again. Once the slot
//! belongs to a newer cursor, or at another gateway, it is unknown, and the caller says so: a scan that went on from
//! elsewhere would leave keys out.

/// Cursors that are known at once.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 14;
/// A number of 52 bits, of which the upper ones are the generation.
const GENERATION_BITS: u32 = 38;

/// The cursors of a gateway. Threads share it behind a lock.
#[derive(Debug)]
pub(crate) struct Cursors {
    slots: Vec<Slot>,
    next: usize,
    /// Of the slots' next round.
    generation: u64,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    cursor: u64,
    table: u64,
    after: Vec<u8>,
}

impl Cursors {
    /// None yet. `random` keeps a restarted gateway from knowing an earlier one's.
    pub(crate) fn new(random: u64) -> Self {
        Cursors { slots: Vec::new(), next: 0, generation: random & ((1 << GENERATION_BITS) - 1) }
    }

    /// A cursor that goes on after the key `after` of a table.
    pub(crate) fn give(&mut self, table: u64, after: Vec<u8>) -> u64 {
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        if slot == 0 {
            // Never 0, with which a scan begins and ends.
            self.generation = (self.generation % ((1 << GENERATION_BITS) - 1)) + 1;
        }
        let cursor = self.generation << SLOT_BITS | slot as u64;
        let content = Slot { cursor, table, after };
        match self.slots.get_mut(slot) {
            Some(place) => *place = content,
            None => self.slots.push(content),
        }
        cursor
    }

    /// The key behind which `cursor` goes on; `None` if it is not known any more, or another table's.
    pub(crate) fn find(&self, table: u64, cursor: u64) -> Option<&[u8]> {
        let slot = self.slots.get(cursor as usize % SLOTS)?;
        (slot.cursor == cursor && slot.table == table).then_some(&slot.after[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_known_until_16384_newer_ones_were_given() {
        for random in [0, 1, u64::MAX, 1 << 37] {
            let mut cursors = Cursors::new(random);
            let mut given = Vec::new();
            for number in 0..40_000_u64 {
                let cursor = cursors.give(7, number.to_be_bytes().to_vec());
                assert!(cursor > 0 && cursor < 1 << 53, "{cursor}");
                given.push(cursor);
            }
            for (number, cursor) in given.iter().enumerate() {
                let expected = (number as u64).to_be_bytes();
                let is_known = number >= 40_000 - SLOTS;
                assert_eq!(cursors.find(7, *cursor), is_known.then_some(&expected[..]), "{number}");
                assert_eq!(cursors.find(8, *cursor), None);
            }
            let mut other = Cursors::new(random.wrapping_add(12_345));
            other.give(7, Vec::new());
            assert!(given.iter().all(|cursor| other.find(7, *cursor).is_none()));
        }
        assert_eq!(Cursors::new(5).find(7, 4711), None);
    }
}
