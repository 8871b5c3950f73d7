//! Canaries: seeded bugs of calls, which the conformance suite and the simulator's tests must find.
//!
//! Without the feature `canary` nobody can turn on a switch outside of this crate's unit tests, and the
//! compiler removes the bugs. Code asks on the thread that armed one, so they are for the simulator and
//! for tests of one thread.

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Canary {
    /// The receiver forgets the numbers of the requests that it has seen.
    DeliverTwice,
    /// A lost reply counts as `NotBegun`.
    LostIsNotBegun,
    /// A reply is matched to a request by its number alone, across connections.
    StaleReply,
    /// A request of a fenced life is begun.
    BeginBehindFence,
    /// A reply leaves without a lease.
    ReplyAsZombie,
}

impl Canary {
    /// All bugs that the suites have to find.
    pub const ALL: &[Canary] = &[
        Canary::DeliverTwice,
        Canary::LostIsNotBegun,
        Canary::StaleReply,
        Canary::BeginBehindFence,
        Canary::ReplyAsZombie,
    ];

    /// Returns whether this thread has armed the canary. Always `false` without the feature `canary`.
    #[inline]
    pub(crate) fn is_armed(self) -> bool {
        #[cfg(any(test, feature = "canary"))]
        return armed::ARMED.get() == Some(self);
        #[cfg(not(any(test, feature = "canary")))]
        false
    }
}

/// Arming, for tests.
#[cfg(any(test, feature = "canary"))]
mod armed {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::Canary;

    thread_local! {
        pub(super) static ARMED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Keeps a canary armed on this thread until it is dropped.
    #[derive(Debug)]
    #[must_use = "the canary is disarmed when this is dropped"]
    pub struct ArmedCanary {
        before: Option<Canary>,
        /// Belongs to its thread.
        _thread: PhantomData<*const ()>,
    }

    impl Canary {
        /// Turns the bug on for all code that this thread runs.
        pub fn arm(self) -> ArmedCanary {
            ArmedCanary { before: ARMED.replace(Some(self)), _thread: PhantomData }
        }
    }

    impl Drop for ArmedCanary {
        fn drop(&mut self) {
            ARMED.set(self.before);
        }
    }
}

#[cfg(any(test, feature = "canary"))]
pub use armed::ArmedCanary;
