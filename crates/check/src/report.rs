//! Seed report: runs many seeds on many threads and collects their outcomes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Failure, Outcome, RunStats, run};
use crate::scenario::{Choices, Scenario};

/// One in this many seeds is run twice: both runs must be the same.
const TWICE: u64 = 20;

/// Plan of a run over many seeds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seeds.
    pub seeds: Range<u64>,
    /// Pinned parts of the scenarios.
    pub choices: Choices,
    /// Threads; each runs one seed at a time.
    pub threads: usize,
    /// Time after which the run ends, with seeds left.
    pub time: Option<Duration>,
    /// Failures after which the run ends.
    pub failures_max: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            seeds: 0..2_000,
            choices: Choices::default(),
            threads: 1,
            time: None,
            failures_max: 10,
        }
    }
}

/// A scenario that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The scenario; it prints as the command line that replays it.
    pub scenario: Scenario,
    /// The check that it failed.
    pub failure: Failure,
}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Seeds of these that were run twice to compare.
    pub twice: u64,
    /// True if all seeds of the plan were run, or `failures_max` failures found.
    pub is_complete: bool,
    /// Sums over all runs.
    pub stats: RunStats,
    /// The failures, in order of seeds.
    pub failures: Vec<Failed>,
    /// Real time.
    pub elapsed: Duration,
}

impl Report {
    /// Seeds per second of real time.
    pub fn seeds_per_s(&self) -> f64 {
        self.seeds as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Operations of clients, all checked, per second of real time.
    pub fn ops_per_s(&self) -> f64 {
        self.stats.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs `plan`. `stop` ends it early. Calls `each` for every seed that was run, on the thread that
/// ran it, with the outcome, and the failure if there is one.
pub fn check(
    plan: &Plan,
    stop: &AtomicBool,
    each: &(dyn Fn(u64, &Outcome, Option<&Failed>) + Sync),
) -> Report {
    let began = Instant::now();
    let next = AtomicU64::new(plan.seeds.start);
    let report = Mutex::new(Report::default());
    let out_of_time = || plan.time.is_some_and(|time| began.elapsed() >= time);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !out_of_time() {
            if lock(&report).failures.len() >= plan.failures_max {
                return;
            }
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !plan.seeds.contains(&seed) {
                return;
            }
            let scenario = Scenario::from_seed(seed, &plan.choices);
            let mut outcome = run(&scenario);
            let is_twice = seed.is_multiple_of(TWICE) && outcome.failure.is_none();
            if is_twice {
                outcome.failure = differs(outcome.trace_hash, run(&scenario).trace_hash);
            }
            let failed = outcome.failure.take().map(|failure| Failed { scenario, failure });
            each(seed, &outcome, failed.as_ref());
            let mut report = lock(&report);
            report.seeds += 1;
            report.twice += u64::from(is_twice);
            report.stats.add(&outcome.stats);
            report.failures.extend(failed);
        }
    };
    on_threads(plan.threads, work);
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by_key(|failed| failed.scenario.seed);
    report.is_complete = report.seeds == plan.seeds.end.saturating_sub(plan.seeds.start)
        || report.failures.len() >= plan.failures_max;
    report.elapsed = began.elapsed();
    report
}

/// Does the work on each of so many threads, at least one, and waits for all.
pub(crate) fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(&work);
        }
    });
}

fn differs(first: u64, second: u64) -> Option<Failure> {
    (first != second).then(|| Failure::Diverged(format!("traces {first:016x} and {second:016x}")))
}

fn lock(report: &Mutex<Report>) -> std::sync::MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}
