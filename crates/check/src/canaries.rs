//! Canary hunt: turns on seeded bugs and counts the seeds until the lab finds each.
//!
//! The suite arms each [`Canary`] and runs seeds until one fails. If the lab finds a canary late or
//! never, the suite fails: then the lab does not look for that kind of bug.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_index::Engine;
pub use farleaf_pool::canary::Canary;

use crate::run::{Failure, run};
use crate::scenario::{Choices, Scenario, Workload};

/// Result of the hunt for one canary.
#[derive(Clone, Debug)]
pub struct CanaryResult {
    /// The bug.
    pub canary: Canary,
    /// Seeds that were run, the one that found it included.
    pub seeds: u64,
    /// The scenario and failure that found it; `None` if none did.
    pub found: Option<(Scenario, Failure)>,
    /// A scenario that fails without it as well: a bug that nobody seeded.
    pub unseeded: Option<(Scenario, Failure)>,
    /// Time of the hunt.
    pub elapsed: Duration,
}

/// Hunts `canaries` on `threads` threads, each with at most `seeds_max` seeds. `choices` pins what
/// the scenarios have in common; engine and workload that it leaves open are chosen to suit the
/// bug. `stop` ends the hunt early, without the canaries not found until then. The hunt calls
/// `each` for every canary that is done.
pub fn hunt(
    canaries: &[Canary],
    choices: &Choices,
    seeds_max: u64,
    threads: usize,
    stop: &AtomicBool,
    each: &(dyn Fn(&CanaryResult) + Sync),
) -> Vec<CanaryResult> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(result) = hunt_one(*canary, choices, seeds_max, stop) else { return };
                    each(&result);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|result: &CanaryResult| result.canary);
    done
}

/// Returns the scenarios to hunt a bug with: those of the engine that lists it. Bugs that no engine
/// lists are the pool's: their clients go from one object to the next for as long as any.
fn scenarios_for(canary: Canary) -> Choices {
    match Engine::ALL.iter().find(|engine| engine.has_canary(canary)) {
        Some(engine) => Choices { engine: Some(*engine), ..Choices::default() },
        None => Choices { workload: Some(Workload::Large), ..Choices::default() },
    }
}

fn hunt_one(
    canary: Canary,
    choices: &Choices,
    seeds_max: u64,
    stop: &AtomicBool,
) -> Option<CanaryResult> {
    let began = Instant::now();
    let suited = scenarios_for(canary);
    let choices = &Choices {
        engine: choices.engine.or(suited.engine),
        workload: choices.workload.or(suited.workload),
        ..choices.clone()
    };
    let mut result =
        CanaryResult { canary, seeds: 0, found: None, unseeded: None, elapsed: Duration::ZERO };
    while result.found.is_none() && result.seeds < seeds_max {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let scenario = Scenario::from_seed(result.seeds, choices);
        result.seeds += 1;
        let armed = canary.arm();
        let failure = run(&scenario).failure;
        drop(armed);
        if let Some(failure) = failure {
            match run(&scenario).failure {
                None => result.found = Some((scenario, failure)),
                Some(failure) => result.unseeded = Some((scenario, failure)),
            }
        }
    }
    result.elapsed = began.elapsed();
    Some(result)
}
