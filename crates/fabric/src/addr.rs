//! Addresses: name a memory server and an offset in its memory.

use std::fmt;

/// A server that exposes memory, by its number in the pool: 0 to [`ServerId::MAX`].
///
/// Memory servers come first; compute servers that expose memory follow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerId(pub u16);

impl ServerId {
    /// The largest number that an address can hold (15 bits).
    pub const MAX: ServerId = ServerId(0x7fff);

    /// Numbers from here on name compute servers: the slot in the pool's table of members, plus this.
    pub const COMPUTE_FIRST: ServerId = ServerId(0x4000);

    /// True for the number of a compute server.
    #[inline]
    pub fn is_compute(self) -> bool {
        self >= Self::COMPUTE_FIRST
    }

    /// The number as an index into tables of servers.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A global address: one byte of one server's exposed memory, in 64 bits.
///
/// Bits 0 to 47 are the offset in bytes, bits 48 to 62 the server. Bit 63 is free for an engine's
/// own tag and is never set in an address that is handed to the fabric. The word 0 is
/// [`GlobalAddr::NULL`]: offset 0 of server 0 holds that server's superblock, so that no object
/// ever lives there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GlobalAddr(u64);

impl GlobalAddr {
    /// No address.
    pub const NULL: GlobalAddr = GlobalAddr(0);
    /// Bits of the offset.
    pub const OFFSET_BITS: u32 = 48;
    /// The largest offset.
    pub const OFFSET_MAX: u64 = (1 << Self::OFFSET_BITS) - 1;

    /// The address of byte `offset` of `server`.
    ///
    /// # Panics
    /// If the offset takes more than 48 bits or the server more than 15: both come from this
    /// program's own arithmetic. Words that were read from remote memory go through
    /// [`GlobalAddr::from_word`].
    pub fn new(server: ServerId, offset: u64) -> Self {
        assert!(offset <= Self::OFFSET_MAX, "offset {offset:#x} takes more than 48 bits");
        assert!(server <= ServerId::MAX, "server {server} takes more than 15 bits");
        GlobalAddr(u64::from(server.0) << Self::OFFSET_BITS | offset)
    }

    /// The address held by a word of remote memory, or `None` if its tag bit is set.
    pub fn from_word(word: u64) -> Option<Self> {
        (word >> 63 == 0).then_some(GlobalAddr(word))
    }

    /// The word that stands for this address in remote memory.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The server that holds the byte.
    pub fn server(self) -> ServerId {
        ServerId((self.0 >> Self::OFFSET_BITS) as u16)
    }

    /// The byte's offset on its server.
    pub fn offset(self) -> u64 {
        self.0 & Self::OFFSET_MAX
    }

    /// Returns whether this is the null address.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address `bytes` further on the same server.
    pub fn plus(self, bytes: u64) -> Self {
        GlobalAddr::new(self.server(), self.offset() + bytes)
    }
}

impl fmt::Display for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.server(), self.offset())
    }
}

impl fmt::Debug for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalAddr({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_returns_its_parts() {
        let addr = GlobalAddr::new(ServerId(5), 0x1234_5678);
        assert_eq!((addr.server(), addr.offset()), (ServerId(5), 0x1234_5678));
        assert_eq!(GlobalAddr::from_word(addr.word()), Some(addr));
        assert_eq!(GlobalAddr::from_word(addr.word() | 1 << 63), None);
        let last = GlobalAddr::new(ServerId::MAX, GlobalAddr::OFFSET_MAX);
        assert_eq!((last.server(), last.offset()), (ServerId::MAX, GlobalAddr::OFFSET_MAX));
        assert_eq!(last.word() >> 63, 0);
        assert!(GlobalAddr::NULL.is_null());
    }
}
