//! Canaries: seeded bugs that tests and the lab must find.
//!
//! A lab that finds nothing may have nothing to find, or may not look. So each kind of bug that the design guards
//! against has a switch, which stands in the file that it breaks (`canaries!`). `farleaf check canaries` turns on one
//! switch at a time and counts the seeds until the lab reports a fault.
//!
//! Without the feature `canary` nobody can turn on a switch outside of this crate's unit tests, and the
//! compiler removes the bugs. Code asks on the thread that armed one, so they are for the simulator and
//! for tests of one thread.

use std::fmt;

/// A seeded bug. Only a static is one, because it is told from others by its address.
pub struct Canary {
    /// Its name on the command line.
    pub name: &'static str,
    /// The wrong step, as a sentence.
    pub what: &'static str,
}

impl Canary {
    /// Returns whether this thread has armed the canary. Always `false` without the feature `canary`.
    #[inline]
    pub fn is_armed(&'static self) -> bool {
        #[cfg(any(test, feature = "canary"))]
        return armed::ARMED.get().is_some_and(|armed| std::ptr::eq(armed, self));
        #[cfg(not(any(test, feature = "canary")))]
        false
    }
}

impl PartialEq for Canary {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Canary {}

impl fmt::Debug for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines seeded bugs in the file that they break: visibility, name in code, name on the command line, wrong step.
///
/// ```
/// farleaf_fabric::canaries! {
///     pub STEAL_LOCK = "steal-lock", "a lock that is held for long is taken from a living holder";
/// }
/// assert!(!STEAL_LOCK.is_armed());
/// ```
#[macro_export]
macro_rules! canaries {
    ($($visible:vis $canary:ident = $name:literal, $what:literal;)+) => {$(
        #[doc = concat!("Seeded bug: ", $what, ".")]
        $visible static $canary: $crate::Canary = $crate::Canary { name: $name, what: $what };
    )+};
}

/// Arming, for tests.
#[cfg(any(test, feature = "canary"))]
mod armed {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::Canary;

    thread_local! {
        pub(super) static ARMED: Cell<Option<&'static Canary>> = const { Cell::new(None) };
    }

    /// Keeps a canary armed on this thread until it is dropped.
    #[derive(Debug)]
    #[must_use = "the canary is disarmed when this is dropped"]
    pub struct ArmedCanary {
        before: Option<&'static Canary>,
        /// Belongs to its thread.
        _thread: PhantomData<*const ()>,
    }

    impl Canary {
        /// Turns the bug on for all code that this thread runs.
        pub fn arm(&'static self) -> ArmedCanary {
            ArmedCanary { before: ARMED.replace(Some(self)), _thread: PhantomData }
        }

        /// Returns whether this thread has armed any canary.
        pub fn is_any_armed() -> bool {
            ARMED.get().is_some()
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

crate::canaries! {
    pub DELIVER_TWICE = "deliver-twice",
        "a request that comes twice is executed twice, and answered again when it is stale";
    pub LOST_IS_NOT_BEGUN = "lost-is-not-begun",
        "a lost reply is taken for a request that was not begun";
    pub STALE_REPLY = "stale-reply",
        "a reply is matched to a request by its number alone, across connections";
    pub BEGIN_BEHIND_FENCE = "begin-behind-fence", "a request of a fenced life is begun";
    pub REPLY_AS_ZOMBIE = "reply-as-zombie", "a reply leaves without a lease";
    pub REGION_OUTLIVES_LIFE = "region-outlives-life",
        "a new life keeps the words of the old region";
    pub NUMBER_FOLLOWS_SLOT = "number-follows-slot",
        "an operation for an old life lands in its successor's region";
    pub FENCE_SKIPS_REGIONS = "fence-skips-regions", "a fence goes to memory servers alone";
    pub LOOPBACK_BY_PROCESSOR = "loopback-by-processor",
        "the owner's CAS and FAA are done by its processor although rmw_global is off";
    pub END_SPARES_POSTED = "end-spares-posted",
        "operations on their way take effect after another thread has ended their connection";
}

/// The bugs of calls and regions, which the conformance suite and the simulator's tests have to find.
pub static CANARIES: &[&Canary] = &[
    &DELIVER_TWICE,
    &LOST_IS_NOT_BEGUN,
    &STALE_REPLY,
    &BEGIN_BEHIND_FENCE,
    &REPLY_AS_ZOMBIE,
    &REGION_OUTLIVES_LIFE,
    &NUMBER_FOLLOWS_SLOT,
    &FENCE_SKIPS_REGIONS,
    &LOOPBACK_BY_PROCESSOR,
    &END_SPARES_POSTED,
];
