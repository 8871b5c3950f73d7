//! Clocks and leases: give compute servers wrong clocks, and end the lives whose lease expires.
//!
//! - **LEASE-1** A compute server's clock is ahead of true time by at most
//!   [`super::SimConfig::clock_skew_ns`] at the start, runs wrong by at most
//!   [`super::SimConfig::clock_drift_ppm`], and never goes back. All lives of a compute server have
//!   one clock.
//! - **LEASE-2** A life whose lease somebody has seen expired is dead to everybody from then on.

use super::SimInner;
use super::config::{PS, SimConfig};
use super::trace::mix;
use crate::Incarnation;

/// The clock of one compute server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    ahead_ps: u64,
    drift_ppm: i64,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    pub(super) fn new(config: &SimConfig, compute: usize) -> Self {
        let random = mix(mix(config.seed, 0xc10c), compute as u64);
        let drift = i64::from(config.clock_drift_ppm);
        Clock {
            ahead_ps: random % (config.clock_skew_ns * PS + 1),
            drift_ppm: (mix(random, 1) % (2 * drift as u64 + 1)) as i64 - drift,
        }
    }

    /// Returns its reading at true time `ps`.
    #[inline]
    pub(super) fn at(self, ps: u64) -> u64 {
        if self.drift_ppm == 0 {
            return ps.saturating_add(self.ahead_ps);
        }
        let drifted = i128::from(ps) * i128::from(self.drift_ppm) / MILLION;
        let shown = i128::from(ps) + drifted + i128::from(self.ahead_ps);
        u64::try_from(shown).unwrap_or(u64::MAX)
    }

    /// Returns the true time in which the clock goes on by at least `ps`.
    #[inline]
    pub(super) fn true_ps(self, ps: u64) -> u64 {
        if self.drift_ppm == 0 {
            return ps;
        }
        let rate = MILLION + i128::from(self.drift_ppm);
        // Each reading of the clock is rounded by less than one.
        let exact = (i128::from(ps) + 2) * MILLION / rate + 1;
        u64::try_from(exact).unwrap_or(u64::MAX)
    }
}

impl SimInner {
    /// Returns whether `who` is dead to the owner of `clock`.
    pub(super) fn is_dead(&self, who: Incarnation, clock: Clock) -> bool {
        let mut machine = self.machine.borrow_mut();
        let now = machine.now;
        let Some(life) = machine.life_of(who) else { return true };
        let life = &mut machine.lives[life];
        if let Some(since) = life.stopped_since
            && self.config.lease_ns > 0
        {
            // The lease was given by one clock and is judged by another.
            let given = Clock::new(&self.config, life.compute).at(since);
            let over = clock.at(now) > given.saturating_add(self.config.lease_ns * PS);
            life.expired |= over;
        }
        life.dead || life.expired
    }
}
