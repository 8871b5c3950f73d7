//! Records tests: every engine against an oracle, and compute servers that die within a change of a hash.

mod deaths;
mod oracle;

/// Multiplies the seeds of the soak.
fn soak() -> u64 {
    std::env::var("FARLEAF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Returns whether this run tests the engine.
fn is_chosen(engine: &farleaf_engines::Engine) -> bool {
    std::env::var("FARLEAF_ENGINE").ok().is_none_or(|name| name == engine.name())
}
