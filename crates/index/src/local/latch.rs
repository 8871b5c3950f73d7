//! Latch: guards one cached node for optimistic readers, one intending writer or one writer.
//!
//! One word: bit 0 X (being written), bit 1 SX (somebody is going to write and keeps other writers
//! out; readers pass), bit 2 DEAD (holds no node), the rest a version that grows whenever X is
//! released. A reader samples the version, reads words that may change under it, and *validates*:
//! if the version is the same and X never came, what it read is of one moment.
//!
//! - `INV-LATCH-1` Words under a latch change only while X or DEAD is set, and by one thread.
//! - `INV-LATCH-2` The version never comes back: it survives the node that the latch belonged to, so
//!   that a reader of a recycled frame finds it changed.
//! - `INV-LATCH-3` X is never held across an await. SX may be.
//!
//! Nobody waits in here: every method tries once.

use crate::sync::{AtomicU64, Ordering, fence};

const X: u64 = 1;
const SX: u64 = 2;
const DEAD: u64 = 4;
const STEP: u64 = 8;

/// A version at which a latch was neither X nor DEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

/// See the [module page](self).
#[derive(Debug, Default)]
pub struct Latch(AtomicU64);

impl Latch {
    /// A latch of something that is alive.
    pub fn new() -> Self {
        Latch(AtomicU64::new(0))
    }

    /// A latch of a frame without a node.
    pub fn new_dead() -> Self {
        Latch(AtomicU64::new(DEAD))
    }

    /// The version, unless somebody writes or there is nothing to read.
    #[inline]
    pub fn sample(&self) -> Option<Version> {
        let word = self.0.load(Ordering::Acquire);
        (word & (X | DEAD) == 0).then_some(Version(word & !SX))
    }

    /// Tells whether everything read since `version` was sampled is of one moment.
    #[inline]
    pub fn validate(&self, version: Version) -> bool {
        // Reads from before must not be older than this load sees.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) & !SX == version.0
    }

    /// Tells whether nothing has changed since `version` and nobody intends to: for a reader that has just announced
    /// itself by a store that a writer looks for after it has set SX or X.
    #[inline]
    pub fn is_quiet_at(&self, version: Version) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::SeqCst) == version.0
    }

    /// Tells whether somebody holds it as X or SX.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (X | SX) != 0
    }

    /// Takes SX, if nobody holds the latch and the version is still `version`.
    #[inline]
    pub fn try_sx(&self, version: Version) -> bool {
        let taken =
            self.0.compare_exchange(version.0, version.0 | SX, Ordering::SeqCst, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        taken.is_ok()
    }

    /// Takes X, if nobody holds the latch and the version is still `version`.
    #[inline]
    pub fn try_x(&self, version: Version) -> bool {
        let taken =
            self.0.compare_exchange(version.0, version.0 | X, Ordering::SeqCst, Ordering::Relaxed);
        // The words' stores must not come before X is seen. What a reader announced before it found the
        // latch quiet must be seen by the loads that follow: there, announcement and look at the latch
        // are both SeqCst, as here this exchange and the look for announcements are.
        fence(Ordering::Release);
        taken.is_ok()
    }

    /// The holder of SX takes X beside it.
    #[inline]
    pub fn sx_to_x(&self) {
        let word = self.0.fetch_or(X, Ordering::SeqCst);
        debug_assert!(word & (X | SX | DEAD) == SX, "SX is held, and nothing else");
        fence(Ordering::SeqCst);
    }

    /// Releases X, and SX if it was held beside it: the next version.
    #[inline]
    pub fn release_x(&self) {
        self.leave_x(0);
    }

    /// Releases X and keeps SX: the next version.
    pub fn x_to_sx(&self) {
        self.leave_x(SX);
    }

    /// Releases X; there is nothing to read any more.
    pub fn x_to_dead(&self) {
        self.leave_x(DEAD);
    }

    fn leave_x(&self, flags: u64) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & (X | DEAD) == X, "X is held");
        self.0.store(((word & !(X | SX)) + STEP) | flags, Ordering::Release);
    }

    /// Releases SX, and X was not taken: the same version.
    #[inline]
    pub fn release_sx(&self) {
        let word = self.0.fetch_and(!SX, Ordering::Release);
        debug_assert!(word & (X | SX | DEAD) == SX, "SX is held, and nothing else");
    }

    /// The one owner of a dead frame has filled it.
    pub fn revive(&self) {
        let word = self.0.load(Ordering::Relaxed);
        debug_assert!(word & (X | SX | DEAD) == DEAD, "dead, and nobody holds it");
        self.0.store((word & !DEAD) + STEP, Ordering::Release);
    }

    /// The one owner of a dead frame begins to fill it: orders its stores behind DEAD, for readers
    /// that still hold a reference from the frame's life before.
    pub fn begin_filling(&self) {
        debug_assert!(self.0.load(Ordering::Relaxed) & DEAD != 0, "dead");
        fence(Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_writes_from_intentions() {
        let latch = Latch::new();
        let first = latch.sample().expect("alive");
        assert!(latch.try_sx(first));
        assert!(latch.validate(first) && !latch.is_quiet_at(first) && latch.is_held());
        assert_eq!(latch.sample(), Some(first), "readers pass SX");
        assert!(!latch.try_sx(first) && !latch.try_x(first), "one writer");
        latch.release_sx();
        assert!(latch.is_quiet_at(first) && !latch.is_held());
        assert!(latch.try_x(first));
        assert!(latch.sample().is_none() && !latch.validate(first));
        latch.release_x();
        assert!(!latch.validate(first));
        let second = latch.sample().expect("alive");
        assert!(latch.try_sx(second));
        latch.sx_to_x();
        latch.x_to_sx();
        assert!(latch.is_held() && !latch.validate(second));
        latch.sx_to_x();
        latch.release_x();
        assert!(!latch.is_held());
    }

    #[test]
    fn the_version_survives_recycling() {
        let latch = Latch::new_dead();
        assert!(latch.sample().is_none());
        let mut seen = Vec::new();
        for _ in 0..3 {
            latch.begin_filling();
            latch.revive();
            let version = latch.sample().expect("alive");
            assert!(!seen.contains(&version));
            seen.push(version);
            assert!(latch.try_x(version));
            latch.x_to_dead();
            assert!(seen.iter().all(|version| !latch.validate(*version)));
            assert!(!latch.try_x(version) && !latch.try_sx(version), "dead");
        }
    }
}
