//! Seeded bugs, and how soon they are found.
//!
//! Each [`Canary`] is armed, and seeds are run until one fails. A canary that sings too late, or not at
//! all, fails the suite: then the lab does not look where such a bug would be.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_index::Engine;
pub use farleaf_pool::canary::Canary;

use crate::run::{Failure, run};
use crate::scenario::{Choices, Scenario};

/// What became of one canary.
#[derive(Clone, Debug)]
pub struct Sung {
    /// The bug.
    pub canary: Canary,
    /// Seeds that were run, the one that found it included.
    pub seeds: u64,
    /// What found it; `None` if nothing did.
    pub found: Option<(Scenario, Failure)>,
    /// What it took.
    pub elapsed: Duration,
}

/// Hunts `canaries` with the scenarios of `choices`, each with at most `seeds_max` seeds, on so many
/// threads. `stop` ends it early, leaving out those that were not found by then; `each` is told of
/// every one that is done.
pub fn hunt(
    canaries: &[Canary],
    choices: &Choices,
    seeds_max: u64,
    threads: usize,
    stop: &AtomicBool,
    each: &(dyn Fn(&Sung) + Sync),
) -> Vec<Sung> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(sung) = hunt_one(*canary, choices, seeds_max, stop) else { return };
                    each(&sung);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(sung);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|sung: &Sung| sung.canary);
    done
}

/// The engine that the bug is in, or whose scenarios find it where it is in what all engines use.
fn engine_of(canary: Canary) -> Engine {
    match canary {
        Canary::AdoptUnchecked
        | Canary::CoolUnwritten
        | Canary::LoseLogRecord
        | Canary::ReplayOlder
        | Canary::ForwardUnchecked
        | Canary::GiveUndrained
        | Canary::AnswerAsZombie
        | Canary::SplitOldFirst => Engine::Dex,
        _ => Engine::BTree,
    }
}

fn hunt_one(canary: Canary, choices: &Choices, seeds_max: u64, stop: &AtomicBool) -> Option<Sung> {
    let began = Instant::now();
    let _armed = canary.arm();
    let engine = choices.engine.unwrap_or(engine_of(canary));
    let choices = &Choices { engine: Some(engine), ..choices.clone() };
    for seed in 0..seeds_max {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let scenario = Scenario::from_seed(seed, choices);
        if let Some(failure) = run(&scenario).failure {
            let (seeds, found) = (seed + 1, Some((scenario, failure)));
            return Some(Sung { canary, seeds, found, elapsed: began.elapsed() });
        }
    }
    Some(Sung { canary, seeds: seeds_max, found: None, elapsed: began.elapsed() })
}
