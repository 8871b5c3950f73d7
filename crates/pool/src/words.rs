//! State words: encode the words that members change by CAS.
//!
//! INV-WORD-1: every change of a block's, member's or announcement's word also changes its version,
//! generation or sequence. So a late CAS with an unknown outcome finds another word and does nothing
//! once anybody has changed the word since.

use crate::PoolError;

/// State of a block, in its word of the block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Nobody's, content arbitrary. The zero word.
    Free,
    /// Claimed; its header is being written. Becomes free if the owner dies.
    Carving,
    /// Its owner hands out its objects.
    Owned,
    /// Carved, with objects in use, and nobody's: any member may adopt it.
    Orphan,
    /// Being searched for lost objects by the recoverer of its owner (or by its owner, if it was an
    /// orphan).
    Recovering,
    /// Its header was found damaged: left alone.
    Damaged,
}

impl BlockState {
    /// Tells whether the block has a whole header and objects.
    pub(crate) fn is_carved(self) -> bool {
        matches!(self, BlockState::Owned | BlockState::Orphan | BlockState::Recovering)
    }
}

/// Bits 0 to 3 state, 12 to 26 owner's slot, 27 to 63 version. An orphan's word says what was free when the block
/// was given up (INV-BLOCK-4): 4 to 11 the longest stretch of pages in no run, and in the owner's place a bit for each
/// group of classes with a free object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockWord(pub(crate) u64);

impl BlockWord {
    /// Free, with the last version of all.
    pub(crate) fn aged() -> BlockWord {
        BlockWord(u64::MAX << 27 | BlockState::Free as u64)
    }

    pub(crate) fn state(self) -> Result<BlockState, PoolError> {
        use BlockState::{Carving, Damaged, Free, Orphan, Owned, Recovering};
        let states = [Free, Carving, Owned, Orphan, Recovering, Damaged];
        let state = states.get((self.0 & 15) as usize).copied();
        state.ok_or_else(|| PoolError::Corrupt(format!("block table holds {:#x}", self.0)))
    }

    pub(crate) fn is(self, state: BlockState) -> bool {
        self.0 & 15 == state as u64
    }

    pub(crate) fn owner(self) -> u32 {
        (self.0 >> 12) as u32 & 0x7fff
    }

    pub(crate) fn version(self) -> u64 {
        self.0 >> 27
    }

    /// Tells whether a version is of a word after this one; versions wrap.
    pub(crate) fn is_before(self, version: u64) -> bool {
        let later = version.wrapping_sub(self.version()) << 27;
        later != 0 && later <= 1 << 63
    }

    /// The longest stretch of an orphan's pages in no run.
    pub(crate) fn stretch(self) -> u32 {
        (self.0 >> 4) as u32 & 0xff
    }

    /// Tells whether an orphan has a free object of the group of classes, as far as the word says.
    pub(crate) fn has_group(self, group: u32) -> bool {
        self.owner() >> group & 1 == 1
    }

    /// Tells whether anything of an orphan is free, as far as the word says.
    pub(crate) fn has_room(self) -> bool {
        self.stretch() > 0 || self.owner() != 0
    }

    /// The word after this one, of an orphan.
    pub(crate) fn orphan(self, stretch: u32, groups: u32) -> BlockWord {
        BlockWord(self.next(BlockState::Orphan, groups).0 | u64::from(stretch.min(0xff)) << 4)
    }

    /// The word after this one, of an orphan with a free object of these groups as well.
    pub(crate) fn with_groups(self, groups: u32) -> BlockWord {
        self.orphan(self.stretch(), self.owner() | groups)
    }

    /// The word after this one.
    pub(crate) fn next(self, state: BlockState, owner: u32) -> BlockWord {
        let version = self.version().wrapping_add(1) << 27;
        BlockWord(version | u64::from(owner) << 12 | state as u64)
    }
}

/// State of a member's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberState {
    /// Nobody's; joining, if the incarnation is set.
    Free,
    /// A member.
    Live,
    /// Fenced, or gone of its own will with something left behind. Waits for recovery.
    Dead,
    /// Being recovered by the member named in the word.
    Recovering,
}

/// Bits 0 to 3 state, 4 to 18 recoverer's slot, 19 to 31 low bits of the recoverer's generation,
/// 32 to 63 generation (one more with every life).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberWord(pub(crate) u64);

impl MemberWord {
    pub(crate) fn new(state: MemberState, generation: u32) -> Self {
        MemberWord(u64::from(generation) << 32 | state as u64)
    }

    /// Free, with the last generation but one.
    pub(crate) fn aged() -> Self {
        MemberWord::new(MemberState::Free, u32::MAX - 1)
    }

    pub(crate) fn recovering(self, slot: u32, generation: u32) -> Self {
        let recoverer = u64::from(slot) << 4 | u64::from(generation & 0x1fff) << 19;
        MemberWord(self.0 >> 32 << 32 | recoverer | MemberState::Recovering as u64)
    }

    pub(crate) fn state(self) -> Result<MemberState, PoolError> {
        use MemberState::{Dead, Free, Live, Recovering};
        let state = [Free, Live, Dead, Recovering].get((self.0 & 15) as usize).copied();
        state.ok_or_else(|| PoolError::Corrupt(format!("member table holds {:#x}", self.0)))
    }

    pub(crate) fn is(self, state: MemberState) -> bool {
        self.0 & 15 == state as u64
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Slot and low bits of the generation of the member that recovers this one.
    pub(crate) fn recoverer(self) -> (u32, u32) {
        ((self.0 >> 4) as u32 & 0x7fff, (self.0 >> 19) as u32 & 0x1fff)
    }
}

/// Bit 63 idle, 48 to 62 sequence, 0 to 47 epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnnounceWord(pub(crate) u64);

/// Epochs stay below this.
pub(crate) const EPOCH_MAX: u64 = 1 << 48;

impl AnnounceWord {
    /// Idle, with the last sequence but two.
    pub(crate) fn aged() -> AnnounceWord {
        AnnounceWord(1 << 63 | 0x7ffd << 48)
    }

    /// The announced epoch; `None` if idle.
    pub(crate) fn epoch(self) -> Option<u64> {
        (self.0 >> 63 == 0).then_some(self.0 & (EPOCH_MAX - 1))
    }

    fn next_sequence(self) -> u64 {
        ((self.0 >> 48).wrapping_add(1) & 0x7fff) << 48
    }

    pub(crate) fn next_live(self, epoch: u64) -> AnnounceWord {
        debug_assert!(epoch < EPOCH_MAX);
        AnnounceWord(self.next_sequence() | epoch)
    }

    pub(crate) fn next_idle(self) -> AnnounceWord {
        AnnounceWord(1 << 63 | self.next_sequence())
    }
}

/// The word that names a client's owner: bit 63 set, 48 to 62 member's slot, 16 to 47 its
/// generation, 0 to 15 a number of the session, so that a late release hits no later session.
pub(crate) fn owner_word(member: u32, generation: u32, session: u16) -> u64 {
    1 << 63 | u64::from(member) << 48 | u64::from(generation) << 16 | u64::from(session)
}

/// Number of no session: the owner has left, and the client with what it has announced.
pub(crate) const SESSION_LEFT: u16 = u16::MAX;

/// Tells whether the owner that this word of a client names has left the pool without it.
pub(crate) fn is_left_client(word: u64) -> bool {
    owner_of(word).is_some() && word as u16 == SESSION_LEFT
}

/// Slot and generation of a client's owner; `None` if the client is free.
pub(crate) fn owner_of(word: u64) -> Option<(u32, u32)> {
    (word >> 63 == 1).then_some(((word >> 48) as u32 & 0x7fff, (word >> 16) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_words_keep_their_parts() {
        let word = BlockWord(0).next(BlockState::Owned, 0x7fff);
        assert_eq!(word.state(), Ok(BlockState::Owned));
        assert_eq!((word.owner(), word.version()), (0x7fff, 1));
        let next = word.next(BlockState::Free, 0);
        assert_eq!((next.state(), next.version()), (Ok(BlockState::Free), 2));
        assert!(BlockWord(15).state().is_err());
        let last = BlockWord(u64::MAX).orphan(300, 1 << 14);
        assert_eq!((last.version(), last.stretch()), (0, 255));
        let more = last.with_groups(1 | 1 << 3);
        assert_eq!(
            (more.version(), more.stretch(), more.state()),
            (1, 255, Ok(BlockState::Orphan))
        );
        let groups = (0..15).filter(|group| more.has_group(*group));
        assert_eq!(groups.collect::<Vec<_>>(), [0, 3, 14]);
        assert!(more.has_room() && !BlockWord(0).orphan(0, 0).has_room());
    }

    #[test]
    fn member_words_keep_their_parts() {
        let live = MemberWord::new(MemberState::Live, 7);
        let taken = live.recovering(0x7abc, 0x2001);
        assert_eq!(taken.state(), Ok(MemberState::Recovering));
        assert_eq!((taken.generation(), taken.recoverer()), (7, (0x7abc, 1)));
        assert_eq!(owner_of(owner_word(0x7fff, u32::MAX, 9)), Some((0x7fff, u32::MAX)));
        assert_eq!(owner_of(0), None);
    }

    #[test]
    fn announcements_never_repeat_at_once() {
        let idle = AnnounceWord(u64::MAX).next_idle();
        assert_eq!(idle.epoch(), None);
        let live = idle.next_live(9);
        assert_eq!(live.epoch(), Some(9));
        assert_ne!(live.next_live(9), live);
        assert_ne!(live.next_idle(), idle);
    }
}
