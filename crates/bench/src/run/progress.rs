//! Progress: tells an observer the phase and the progress of a bench.

/// A part of a bench that takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Items are loaded.
    Load,
    /// Operations that are not measured.
    WarmUp,
    /// Operations that are measured.
    Run,
    /// The table is walked and checked.
    Verify,
}

impl Phase {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::WarmUp => "warm-up",
            Self::Run => "run",
            Self::Verify => "verify",
        }
    }
}

/// Is told how far a bench is, from several threads, some thousand times a second at most.
pub trait Progress: Sync {
    /// A phase of `total` steps begins, and the one before it is over; 0 if nobody knows how many.
    fn begin(&self, phase: Phase, total: u64);

    /// So many more steps are done.
    fn advance(&self, steps: u64);

    /// A slice of the measured operations is about to begin ([`BenchConfig::slices`](crate::BenchConfig::slices)), and
    /// nobody is at work until this returns.
    fn pause(&self) {}
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _steps: u64) {}
}
