//! Progress: tells an observer the phase and the progress of a bench.

/// A phase of a bench.
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

/// Observes the progress of a bench. Several threads call it, some thousand times a second at most.
pub trait Progress: Sync {
    /// Begins a phase of `total` steps, or 0 if the number is unknown; the phase before it is over.
    fn begin(&self, phase: Phase, total: u64);

    /// Reports `steps` more steps.
    fn advance(&self, steps: u64);

    /// Precedes a slice of the measured operations
    /// ([`BenchConfig::slices`](crate::BenchConfig::slices)). No client works until this returns.
    fn pause(&self) {}
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn begin(&self, _phase: Phase, _total: u64) {}

    fn advance(&self, _steps: u64) {}
}
