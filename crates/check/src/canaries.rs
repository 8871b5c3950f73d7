//! Canary hunt: turns on seeded bugs and counts the seeds until the lab finds each.
//!
//! The suite arms each seeded bug ([`Hunted`]) and runs seeds until one fails. If the lab finds a canary late or
//! never, the suite fails: then the lab does not look for that kind of bug.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farleaf_engines::Engine;
use farleaf_index::lab::Hunt;
pub use farleaf_pool::canary::Canary;

use crate::crash::{CrashFailure, cases};
use crate::report::on_threads;
use crate::run::{Failure, run};
use crate::scenario::{Choices, Scenario};

/// Result of the hunt for one canary.
#[derive(Clone, Debug)]
pub struct CanaryResult {
    /// The bug.
    pub canary: &'static Canary,
    /// The engine that it was hunted with; `None` for bugs of the pool.
    pub engine: Option<Engine>,
    /// Seeds that were run, the one that found it included.
    pub seeds: u64,
    /// The scenario and failure that found it; `None` if none did.
    pub found: Option<(Scenario, Failure)>,
    /// The crash point that found it, for bugs that only a death at one moment shows, or the case, if its run without a
    /// death did. `seeds` counts the points that were run then.
    pub found_at: Option<CrashFailure>,
    /// A scenario that fails without it as well: a bug that nobody seeded.
    pub unseeded: Option<(Scenario, Failure)>,
    /// Time of the hunt.
    pub elapsed: Duration,
}

impl CanaryResult {
    /// The kind of the failure that found it.
    pub fn found_by(&self) -> Option<&'static str> {
        let by_seed = self.found.as_ref().map(|(_, failure)| failure.kind());
        by_seed.or(self.found_at.as_ref().map(|_| "crash point"))
    }

    /// The failure that found it, in words.
    pub fn finding(&self) -> Option<String> {
        let by_seed = self.found.as_ref().map(|(_, failure)| failure.to_string());
        by_seed.or(self.found_at.as_ref().map(|failure| failure.what.clone()))
    }

    /// The command line or the crash point that shows it.
    pub fn replay(&self) -> Option<String> {
        let by_seed = self.found.as_ref().map(|(scenario, _)| scenario.to_string());
        by_seed.or(self.found_at.as_ref().map(|failure| failure.name.clone()))
    }
}

/// A bug to hunt, and how.
#[derive(Clone, Copy, Debug)]
pub struct Hunted {
    /// The bug, and the runs that make it likely.
    pub hunt: Hunt,
    /// The engine to hunt it with; `None` for bugs of the pool, which any engine shows.
    pub engine: Option<Engine>,
}

/// Every bug with each engine that lists it, then those of the pool.
pub fn hunts() -> Vec<Hunted> {
    let listed = Engine::ALL.iter().flat_map(|engine| {
        engine.hunts().into_iter().map(|hunt| Hunted { hunt, engine: Some(*engine) })
    });
    let of_pool = farleaf_pool::canary::CANARIES.iter().map(|canary| {
        // Their clients go from one object to the next for as long as any.
        Hunted { hunt: Hunt::with(canary, &[("workload", "large")]), engine: None }
    });
    listed.chain(of_pool).collect()
}

/// The names of all bugs, each once.
pub fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for Hunted { hunt, .. } in hunts() {
        if !names.contains(&hunt.canary.name) {
            names.push(hunt.canary.name);
        }
    }
    names
}

/// Returns the bug of that name with each engine to hunt it with: `only` if that is given, else all that list it. An engine
/// that does not list it has another one's runs; without the crash case of those, scenarios.
pub fn with_engines(name: &str, only: Option<Engine>) -> Vec<Hunted> {
    let mut named = hunts();
    named.retain(|hunted| hunted.hunt.canary.name == name);
    let Some(only) = only else { return named };
    if let Some(own) = named.iter().find(|hunted| hunted.engine == Some(only)) {
        return vec![*own];
    }
    let Some(Hunted { hunt, .. }) = named.first() else { return Vec::new() };
    let has_case = |case: &&str| cases().iter().any(|it| it.name() == format!("{only}/{case}"));
    let hunt = Hunt { case: hunt.case.filter(has_case), ..*hunt };
    vec![Hunted { hunt, engine: Some(only) }]
}

/// Hunts `canaries`, each with an engine, on `threads` threads and with at most `seeds_max` seeds each. `choices` pins
/// what the scenarios have in common; a workload that it leaves open is chosen to suit the bug. In place of scenarios, `at`
/// names a crash case with its engine, whose points are run. `stop` ends the hunt early, without the canaries not found
/// until then. The hunt calls `each` for every canary that is done.
pub fn hunt(
    canaries: &[Hunted],
    choices: &Choices,
    at: Option<&str>,
    seeds_max: u64,
    threads: usize,
    stop: &AtomicBool,
    each: &(dyn Fn(&CanaryResult) + Sync),
) -> Vec<CanaryResult> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    on_threads(threads, || {
        while let Some(hunted) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(result) = hunt_one(hunted, choices, at, seeds_max, stop) else { return };
            each(&result);
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |result: &CanaryResult| {
        canaries.iter().position(|hunted| {
            (hunted.hunt.canary, hunted.engine) == (result.canary, result.engine)
        })
    };
    done.sort_by_key(place);
    done
}

/// Returns the scenarios to hunt a bug with: of a kind that makes the bug likely.
///
/// # Panics
/// If a flag of the hunt makes no sense.
fn scenarios_for(hunted: &Hunted, seed: u64) -> Choices {
    let mut suited = Choices { engine: hunted.engine, ..Choices::default() };
    for (flag, texts) in hunted.hunt.flags {
        let texts: Vec<&str> = texts.split('|').collect();
        if let Err(error) = suited.set(flag, texts[seed as usize % texts.len()]) {
            panic!("the hunt for {}: {error}", hunted.hunt.canary.name);
        }
    }
    suited
}

/// Runs the points of a crash case until a check fails; that of the run without a death, which lists them, counts as well.
/// A run that misses its state or its death shows nothing. Without the bug, all of them must pass.
fn hunt_at_points(canary: &'static Canary, name: &str, result: &mut CanaryResult) {
    let case = || cases().into_iter().find(|case| case.name() == name);
    let (Some(with), Some(without)) = (case(), case()) else { return };
    let armed = canary.arm();
    let mut run = |point| {
        result.seeds += 1;
        with.run(point).err().filter(|failure| !failure.is_missed)
    };
    let failure = match with.points() {
        Ok(points) => points.into_iter().find_map(&mut run),
        Err(failure) => Some(failure).filter(|failure| !failure.is_missed),
    };
    drop(armed);
    let passes = |point| without.run(point).is_ok();
    if without.points().is_ok_and(|points| points.into_iter().all(passes)) {
        result.found_at = failure;
    }
}

fn hunt_one(
    hunted: &Hunted,
    choices: &Choices,
    at: Option<&str>,
    seeds_max: u64,
    stop: &AtomicBool,
) -> Option<CanaryResult> {
    let began = Instant::now();
    let Hunted { hunt: Hunt { canary, case, .. }, engine } = *hunted;
    let mut result = CanaryResult {
        canary,
        engine,
        seeds: 0,
        found: None,
        found_at: None,
        unseeded: None,
        elapsed: Duration::ZERO,
    };
    let own = case.zip(engine).map(|(case, engine)| format!("{engine}/{case}"));
    if let Some(case) = at.map(str::to_owned).or(own) {
        hunt_at_points(canary, &case, &mut result);
        result.elapsed = began.elapsed();
        return Some(result);
    }
    while result.found.is_none() && result.seeds < seeds_max {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let suited = scenarios_for(hunted, result.seeds);
        let engine = suited.engine;
        let choices = &Choices { engine, ..choices.clone().or(suited) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_a_hunt_makes_sense() {
        for hunted in hunts() {
            let texts = hunted.hunt.flags.iter().map(|(_, texts)| texts.split('|').count() as u64);
            for seed in 0..texts.max().unwrap_or(1) {
                let suited = scenarios_for(&hunted, seed);
                assert_eq!(suited.engine, hunted.engine);
            }
        }
    }
}
