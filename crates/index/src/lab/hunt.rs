//! Hunt: a seeded bug, and the runs that make it likely.

use farleaf_pool::canary::Canary;

/// A seeded bug of an engine, and how to hunt it.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// The bug.
    pub canary: &'static Canary,
    /// The part that the runs have in common, as flags of `farleaf check` and their texts. `a|b` takes one by the seed.
    pub flags: &'static [(&'static str, &'static str)],
    /// The crash case whose points show the bug, without the engine's name, as in `records/update`. Then no run is
    /// drawn from a seed.
    pub case: Option<&'static str>,
}

impl Hunt {
    /// Any run.
    pub const fn any(canary: &'static Canary) -> Hunt {
        Hunt { canary, flags: &[], case: None }
    }

    /// Runs with these flags.
    pub const fn with(
        canary: &'static Canary,
        flags: &'static [(&'static str, &'static str)],
    ) -> Hunt {
        Hunt { canary, flags, case: None }
    }

    /// The points of a crash case: for a bug that needs a death within one WRITE, or at one moment.
    pub const fn at(canary: &'static Canary, case: &'static str) -> Hunt {
        Hunt { canary, flags: &[], case: Some(case) }
    }
}
