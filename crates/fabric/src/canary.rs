//! Canaries: seeded bugs of calls and regions, which the conformance suite and the simulator's tests must find.
//!
//! Without the feature `canary` nobody can turn on a switch outside of this crate's unit tests, and the
//! compiler removes the bugs. Code asks on the thread that armed one, so they are for the simulator and
//! for tests of one thread.

/// Implements `is_armed`, `arm` and the guard `ArmedCanary` for an enum of seeded bugs, in the crate's own features:
/// `$when` says whether they can be armed at all. `$below` arms bugs of the layer below that belong to one.
#[doc(hidden)]
#[macro_export]
macro_rules! arm_canaries {
    (
        $canary:ident, when $when:meta, $visible:vis,
        below |$it:ident| $below:expr => $guard:ty
    ) => {
        impl $canary {
            /// Returns whether this thread has armed the canary. Always `false` without the feature `canary`.
            #[inline]
            $visible fn is_armed(self) -> bool {
                #[cfg($when)]
                return armed::ARMED.get() == Some(self);
                #[cfg(not($when))]
                false
            }
        }

        /// Arming, for tests.
        #[cfg($when)]
        mod armed {
            use std::cell::Cell;
            use std::marker::PhantomData;

            use super::$canary;

            thread_local! {
                pub(super) static ARMED: Cell<Option<$canary>> = const { Cell::new(None) };
            }

            /// Keeps a canary armed on this thread until it is dropped.
            #[derive(Debug)]
            #[must_use = "the canary is disarmed when this is dropped"]
            pub struct ArmedCanary {
                before: Option<$canary>,
                /// Of the layer below.
                _below: $guard,
                /// Belongs to its thread.
                _thread: PhantomData<*const ()>,
            }

            impl $canary {
                /// Turns the bug on for all code that this thread runs.
                pub fn arm(self) -> ArmedCanary {
                    let below = |$it: $canary| -> $guard { $below };
                    let _below = below(self);
                    ArmedCanary { before: ARMED.replace(Some(self)), _below, _thread: PhantomData }
                }
            }

            impl Drop for ArmedCanary {
                fn drop(&mut self) {
                    ARMED.set(self.before);
                }
            }
        }

        #[cfg($when)]
        pub use armed::ArmedCanary;
    };
}

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
    /// A new life keeps the words of the old region.
    RegionOutlivesLife,
    /// An operation for an old life lands in its successor's region.
    NumberFollowsSlot,
    /// A fence goes to memory servers alone.
    FenceSkipsRegions,
    /// The owner's CAS and FAA are done by its processor although `rmw_global` is off.
    LoopbackByProcessor,
}

impl Canary {
    /// All bugs that the suites have to find.
    pub const ALL: &[Canary] = &[
        Canary::DeliverTwice,
        Canary::LostIsNotBegun,
        Canary::StaleReply,
        Canary::BeginBehindFence,
        Canary::ReplyAsZombie,
        Canary::RegionOutlivesLife,
        Canary::NumberFollowsSlot,
        Canary::FenceSkipsRegions,
        Canary::LoopbackByProcessor,
    ];
}

crate::arm_canaries!(
    Canary, when any(test, feature = "canary"), pub(crate),
    below |_canary| None => Option<()>
);
