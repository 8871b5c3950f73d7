//! Canary hunt: turns on seeded bugs and counts the seeds until the lab finds each.
//!
//! The suite arms each [`Canary`] and runs seeds until one fails. If the lab finds a canary late or
//! never, the suite fails: then the lab does not look for that kind of bug.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farleaf_engines::Engine;
use farleaf_index::Settings;
pub use farleaf_pool::canary::Canary;

use crate::crash::{CrashFailure, cases};
use crate::report::on_threads;
use crate::run::{Failure, run};
use crate::scenario::{Choices, Events, FaultKind, FormatName, Scenario, TimedFault, Workload};

/// Result of the hunt for one canary.
#[derive(Clone, Debug)]
pub struct CanaryResult {
    /// The bug.
    pub canary: Canary,
    /// The engine that it was hunted with; `None` for bugs of the pool.
    pub engine: Option<Engine>,
    /// Seeds that were run, the one that found it included.
    pub seeds: u64,
    /// The scenario and failure that found it; `None` if none did.
    pub found: Option<(Scenario, Failure)>,
    /// The crash point that found it, for bugs that only a death at one moment shows. `seeds` counts the points
    /// that were run then.
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

    /// The command line or the crash point that shows it.
    pub fn replay(&self) -> Option<String> {
        let by_seed = self.found.as_ref().map(|(scenario, _)| scenario.to_string());
        by_seed.or(self.found_at.as_ref().map(|failure| failure.name.clone()))
    }
}

/// Returns each bug with each engine to hunt it with: `only` if that is given, else all that list it.
pub fn with_engines(canaries: &[Canary], only: Option<Engine>) -> Vec<(Canary, Option<Engine>)> {
    let of = |canary: &Canary| {
        let listing = |engine: &&Engine| only.is_none() && engine.has_canary(*canary);
        let mut engines: Vec<_> = Engine::ALL.iter().filter(listing).copied().map(Some).collect();
        if engines.is_empty() {
            engines.push(only);
        }
        let canary = *canary;
        engines.into_iter().map(move |engine| (canary, engine)).collect::<Vec<_>>()
    };
    canaries.iter().flat_map(of).collect()
}

/// Hunts `canaries`, each with an engine, on `threads` threads and with at most `seeds_max` seeds each. `choices` pins
/// what the scenarios have in common; a workload that it leaves open is chosen to suit the bug. `stop` ends the hunt
/// early, without the canaries not found until then. The hunt calls `each` for every canary that is done.
pub fn hunt(
    canaries: &[(Canary, Option<Engine>)],
    choices: &Choices,
    seeds_max: u64,
    threads: usize,
    stop: &AtomicBool,
    each: &(dyn Fn(&CanaryResult) + Sync),
) -> Vec<CanaryResult> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    on_threads(threads, || {
        while let Some(hunted) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(result) = hunt_one(*hunted, choices, seeds_max, stop) else { return };
            each(&result);
            done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |result: &CanaryResult| {
        canaries.iter().position(|hunted| *hunted == (result.canary, result.engine))
    };
    done.sort_by_key(place);
    done
}

/// Returns the scenarios to hunt a bug with: of a kind that makes the bug likely. Bugs that no engine lists are the
/// pool's: their clients go from one object to the next for as long as any.
fn scenarios_for(canary: Canary, engine: Option<Engine>, seed: u64) -> Choices {
    let mut suited = Choices { engine, ..Choices::default() };
    if !Engine::ALL.iter().any(|engine| engine.has_canary(canary)) {
        suited.workload = Some(Workload::Large);
    }
    match canary {
        // Full nodes of which several clients want a slot.
        Canary::GrowUnhelped => {
            suited.format = Some(FormatName::U64Reserved);
            suited.workload = Some([Workload::Ascending, Workload::Mixed][seed as usize % 2]);
            (suited.compute_servers, suited.clients) = (Some(3), Some(6));
        }
        // Objects come and go, and their addresses are used again while caches lead there.
        Canary::SkipBirth => {
            suited.workload = Some(Workload::Churn);
            suited.settings = Settings::default().with("unlink_batch", "1").with("cache", "256MiB");
            (suited.compute_servers, suited.memory_servers) = (Some(3), Some(1));
            suited.keys = Some([5, 20, 60, 150][seed as usize % 4]);
            (suited.ops, suited.think_ns) = (Some(200), Some(4_000));
        }
        // A leaf's address is used again for another range while a compute server's cache leads there.
        Canary::BelieveOldHeader => {
            suited.format = Some(FormatName::U64Tiny);
            suited.workload = Some(Workload::Churn);
            suited.settings = Settings::default().with("cache", "256MiB").with("merge", "0.4");
            (suited.compute_servers, suited.clients) = (Some(4), Some(4));
            suited.keys = Some([60, 100, 150, 300][seed as usize % 4]);
            (suited.memory_servers, suited.ops, suited.think_ns) =
                (Some(1), Some(400), Some(2_000));
            suited.events = Some(Events::default());
        }
        // Clients of one compute server on the same keys.
        Canary::JoinOpenRead | Canary::SealLate => {
            suited.workload = Some(Workload::Hot);
            suited.settings = match engine.is_some_and(|engine| engine.traits().upper_tree) {
                true => Settings::default().with("combine", "true").with("batch_limit", "8"),
                false => Settings::default()
                    .with("read_delegation", "strict")
                    .with("write_combining", "true"),
            };
            (suited.compute_servers, suited.clients) = (Some(2), Some(8));
        }
        // Nodes are replaced again and again, and each has entries.
        Canary::EntryValidAtOnce | Canary::EntryMovedAtOnce => {
            suited.workload = Some(Workload::Churn);
            let entries = [("est_nodes", "1"), ("prefixes", "1+2+3+4+5+6+7")];
            suited.settings = skip_table(&entries);
            (suited.compute_servers, suited.clients, suited.keys) = (Some(3), Some(6), Some(20));
        }
        // Nodes with entries in the skip table come and go while clients die.
        Canary::KeepEntriesOfFreed => {
            suited.workload = Some(Workload::Churn);
            suited.settings = skip_table(&[("est_nodes", "4")]);
            (suited.compute_servers, suited.memory_servers) = (Some(3), Some(1));
            (suited.keys, suited.ops, suited.think_ns) = (Some(60), Some(200), Some(2_000));
            let death = |compute, at_ns| TimedFault { at_ns, kind: FaultKind::Kill(compute) };
            let life = |compute, at_ns| TimedFault { at_ns, kind: FaultKind::Restart(compute) };
            suited.events = Some(Events(vec![
                death(1, 200_000),
                death(2, 500_000),
                life(1, 900_000),
                life(2, 1_200_000),
            ]));
        }
        _ => {}
    }
    suited
}

/// Settings with which lookups begin at entries of a skip table, any of a bucket.
fn skip_table(more: &[(&str, &str)]) -> Settings {
    let always = [("est", "true"), ("est_maintenance", "true"), ("print_bits", "0")];
    let all = always.iter().chain(more);
    all.fold(Settings::default(), |all, (name, text)| all.with(name, text))
}

/// Returns whether slots of the engine's leaves hold values of several words.
fn has_wide_slots(engine: Engine) -> bool {
    let name = format!("{engine}/wide/update");
    cases().iter().any(|case| case.name() == name)
}

/// The crash case that shows a bug which needs a death within one WRITE, or at one moment.
fn crash_case_for(canary: Canary, engine: Option<Engine>) -> Option<String> {
    let engine = engine?;
    let case = match canary {
        // Values of several words stand in slots of leaves.
        Canary::LoseLeafRedo if has_wide_slots(engine) => "wide/update",
        Canary::TakeOverUnrecorded if engine.traits().upper_tree => "wide/takeover-update",
        Canary::LoseLeafRedo => "records/update",
        Canary::TakeOverUnrecorded => "records/takeover-update",
        Canary::ReviveHeadFirst => "records/revive",
        // A client with the old record looks for a key that another inserts into the new leaf.
        Canary::UnlockNewLeafEarly => "u64-tiny/insert-leaf-split-watched",
        Canary::BuildClearsTorn => "u64-tiny/update",
        Canary::BuildKeepsTorn => "u64-tiny/insert",
        _ => return None,
    };
    Some(format!("{engine}/{case}"))
}

/// Runs the points of a crash case until one shows the bug. Without it, all of them must pass.
fn hunt_at_points(canary: Canary, name: &str, result: &mut CanaryResult) {
    let case = || cases().into_iter().find(|case| case.name() == name);
    let (Some(with), Some(without)) = (case(), case()) else { return };
    let armed = canary.arm();
    let points = with.points().unwrap_or_default();
    let failure = points.into_iter().find_map(|point| {
        result.seeds += 1;
        with.run(point).err()
    });
    drop(armed);
    let passes = |point| without.run(point).is_ok();
    if without.points().is_ok_and(|points| points.into_iter().all(passes)) {
        result.found_at = failure;
    }
}

fn hunt_one(
    (canary, engine): (Canary, Option<Engine>),
    choices: &Choices,
    seeds_max: u64,
    stop: &AtomicBool,
) -> Option<CanaryResult> {
    let began = Instant::now();
    let mut result = CanaryResult {
        canary,
        engine,
        seeds: 0,
        found: None,
        found_at: None,
        unseeded: None,
        elapsed: Duration::ZERO,
    };
    if let Some(case) = crash_case_for(canary, engine) {
        hunt_at_points(canary, &case, &mut result);
        result.elapsed = began.elapsed();
        return Some(result);
    }
    while result.found.is_none() && result.seeds < seeds_max {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let suited = scenarios_for(canary, engine, result.seeds);
        let mut settings = suited.settings;
        settings.set_all(&choices.settings);
        let choices = &Choices {
            engine: suited.engine,
            workload: choices.workload.or(suited.workload),
            format: choices.format.or(suited.format),
            settings,
            memory_servers: choices.memory_servers.or(suited.memory_servers),
            compute_servers: choices.compute_servers.or(suited.compute_servers),
            keys: choices.keys.or(suited.keys),
            clients: choices.clients.or(suited.clients),
            ops: choices.ops.or(suited.ops),
            think_ns: choices.think_ns.or(suited.think_ns),
            events: choices.events.clone().or(suited.events),
            ..choices.clone()
        };
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
