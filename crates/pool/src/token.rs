//! Lock token: names the holder of a lock by member, client and use.

use std::fmt;

/// The identity of one locking by one client, as it stands in a lock word.
///
/// Bit 63 is set, bits 48 to 62 are the member's slot, bits 36 to 47 the client, bits 0 to 35 a
/// number that this member and client never use again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockToken(u64);

impl LockToken {
    /// Bits of the number.
    pub const COUNTER_BITS: u32 = 36;
    /// Bits of the client.
    pub const CLIENT_BITS: u32 = 12;
    /// Bits of the member's slot.
    pub const MEMBER_BITS: u32 = 15;

    pub(crate) fn new(member: u32, client: u32, counter: u64) -> Self {
        debug_assert!(member < 1 << Self::MEMBER_BITS);
        debug_assert!(client < 1 << Self::CLIENT_BITS);
        debug_assert!(counter < 1 << Self::COUNTER_BITS);
        let client = u64::from(client) << Self::COUNTER_BITS;
        LockToken(1 << 63 | u64::from(member) << 48 | client | counter)
    }

    /// The token in a lock word, or `None` if bit 63 is clear.
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> 63 == 1).then_some(LockToken(word))
    }

    /// The word for the lock.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Slot of the member in the pool's member table.
    pub fn member(self) -> u32 {
        (self.0 >> 48) as u32 & ((1 << Self::MEMBER_BITS) - 1)
    }

    /// Index of the client in the pool's client table.
    pub fn client(self) -> u32 {
        (self.0 >> Self::COUNTER_BITS) as u32 & ((1 << Self::CLIENT_BITS) - 1)
    }

    /// The number of this locking.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockToken({}.{}.{})", self.member(), self.client(), self.counter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_out() {
        let token = LockToken::new(0x7abc, 0xdef, 0x9_8765_4321);
        assert_eq!((token.member(), token.client()), (0x7abc, 0xdef));
        assert_eq!(token.counter(), 0x9_8765_4321);
        assert_eq!(LockToken::from_word(token.word()), Some(token));
        assert_eq!(LockToken::from_word(token.word() & !(1 << 63)), None);
    }
}
