//! Seed tests: a small part of what `make check` runs, with all checks and every engine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farleaf_check::linear::{Limits, check as check_history};
use farleaf_check::report::{Plan, check};
use farleaf_check::run::{Failure, run};
use farleaf_check::scenario::{Choices, Scenario, Workload};
use farleaf_engines::Engine;
use farleaf_harness::depth;

fn soak() -> u64 {
    std::env::var("FARLEAF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// `FARLEAF_TRACES=FILE` appends a line for each run: engine, seed, hash, virtual time, events. A change of form alone
/// leaves every line as it was: `scripts/same-runs.sh`.
#[test]
fn seeds_pass_every_check() {
    let traces = std::env::var_os("FARLEAF_TRACES").map(PathBuf::from);
    let only = std::env::var("FARLEAF_ENGINE").ok();
    let is_chosen = |it: &&Engine| only.as_deref().is_none_or(|name| it.name() == name);
    for engine in Engine::ALL.iter().filter(is_chosen) {
        let depth = depth(*engine);
        let plan = Plan {
            seeds: 0..depth.pick(40, 200) * soak(),
            choices: Choices { engine: Some(*engine), ..Choices::default() },
            threads: if traces.is_some() { 2 } else { 1 },
            ..Plan::default()
        };
        let told = AtomicU64::new(0);
        let lines = Mutex::new(BTreeMap::new());
        let report = check(&plan, &AtomicBool::new(false), &|seed, ran, failed| {
            told.fetch_add(1, Ordering::Relaxed);
            let (hash, now_ns, events) = (ran.trace_hash, ran.stats.virtual_ns, ran.events);
            let line = format!("{engine} {seed} {hash:016x} {now_ns} {events}\n");
            lines.lock().unwrap().insert(seed, line);
            if let Some(failed) = failed {
                println!("{}\n    {}", failed.scenario, failed.failure);
            }
        });
        if let Some(path) = &traces {
            let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
            let lines: String = lines.into_inner().unwrap().into_values().collect();
            file.write_all(lines.as_bytes()).unwrap();
        }
        assert_eq!(report.failures.len(), 0, "replay with the command lines above");
        assert!(report.is_complete);
        assert_eq!((report.seeds, told.into_inner()), (plan.seeds.end, plan.seeds.end));
        assert_eq!(report.twice, plan.seeds.end.div_ceil(20));
        // The planned faults happened.
        let stats = &report.stats;
        assert!(stats.ops > 300 * report.seeds, "{stats:?}");
        assert!(stats.scans > 10 * report.seeds, "{stats:?}");
        let told = [stats.unknown, stats.full, stats.killed, stats.restarted, stats.cut_off];
        // Few seeds need not have all.
        let least = depth.pick(3, told.len());
        assert!(told.iter().filter(|count| **count > 0).count() >= least, "{stats:?}");
        assert!(stats.recovered > stats.killed / 3, "{stats:?}");
        assert!(stats.undecided <= report.seeds / 50, "{stats:?}");
    }
}

/// Memory that compute servers expose changes what deaths cost, and nothing else. A survivor fences at every
/// member's memory, although some are dead, stopped or cut off.
#[test]
fn exposed_memory_stands_in_nobodys_way() {
    for name in ["btree", "dex", "smart"] {
        let engine = Some(name.parse().unwrap());
        let choices = Choices { engine, expose_kib: Some(64), ..Choices::default() };
        let plan = Plan { seeds: 0..60 * soak(), choices, threads: 1, ..Plan::default() };
        let report = check(&plan, &AtomicBool::new(false), &|_, _, failed| {
            if let Some(failed) = failed {
                println!("{}\n    {}", failed.scenario, failed.failure);
            }
        });
        assert_eq!(report.failures.len(), 0, "replay with the command lines above");
        let stats = &report.stats;
        assert!(stats.killed > 0 && stats.recovered > stats.killed / 3, "{stats:?}");
        let without = Choices { expose_kib: Some(0), ..plan.choices.clone() };
        let hash = |choices: &Choices| run(&Scenario::from_seed(3, choices)).trace_hash;
        assert_ne!(hash(&plan.choices), hash(&without), "it is published");
    }
}

/// Every workload gives histories with operations, and the checker refuses them if one answer is
/// changed.
#[test]
fn histories_are_worth_checking() {
    for workload in Workload::all() {
        let choices = Choices { workload: Some(workload), ..Choices::default() };
        let scenario = Scenario { impatience: 0.0, ..choices.scenario(11) };
        let outcome = run(&scenario);
        assert_eq!(outcome.failure, None, "{scenario}");
        let mut history = outcome.history;
        assert!(check_history(&history, &Limits::default()).is_ok());
        // The last look finds a key that it did not find before, or the other way round.
        let last = history.events.last_mut().unwrap();
        let (_, answer) = last.answer.as_mut().unwrap();
        use farleaf_check::history::Answer;
        *answer = match answer {
            Answer::Value(None) => Answer::Value(Some(b"never written".to_vec())),
            _ => Answer::Value(None),
        };
        assert!(check_history(&history, &Limits::default()).is_err(), "{scenario}");
    }
}

/// The longest prefix of a key, beside writers, faults and deaths: by the radix trees' own descents, and by floors.
#[test]
fn longest_prefixes_are_linearizable() {
    let only = std::env::var("FARLEAF_ENGINE").ok();
    for name in ["smart", "p-smart", "art", "dart", "btree"] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let mut looks = 0;
        for seed in 0..60 * soak() {
            let format = ["bytes", "short-tiny"][seed as usize % 2];
            let scenario = Choices {
                engine: name.parse().ok(),
                workload: Some(Workload::Prefixes),
                format: format.parse().ok(),
                ..Choices::default()
            }
            .scenario(seed);
            let outcome = run(&scenario);
            assert_eq!(outcome.failure, None, "{scenario}");
            looks += outcome.history.events.len();
        }
        assert!(looks > 5_000, "{name}: {looks}");
    }
}

/// Batches to the owners of keys, beside writers, faults, moves of ranges and deaths.
#[test]
fn batches_are_linearizable() {
    let only = std::env::var("FARLEAF_ENGINE").ok();
    for name in ["dex", "p-smart", "p-sherman"] {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let (mut batched, mut killed) = (0, 0);
        for seed in 0..60 * soak() {
            let scenario = Choices {
                engine: name.parse().ok(),
                workload: Some(Workload::Batches),
                compute_servers: Some(3),
                ..Choices::default()
            }
            .scenario(seed);
            let outcome = run(&scenario);
            assert_eq!(outcome.failure, None, "{scenario}");
            batched += outcome.stats.batched;
            killed += outcome.stats.killed;
        }
        assert!(batched > 500 && killed > 5, "{name}: {batched} in batches, {killed} deaths");
    }
}

/// Counters that start just before they wrap give another run, which passes as well.
#[test]
fn counters_that_wrap_do_no_harm() {
    for seed in 0..40 * soak() {
        let of = |aged| Choices { aged: Some(aged), ..Choices::default() }.scenario(seed);
        let (aged, new) = (run(&of(true)), run(&of(false)));
        assert_eq!((&aged.failure, &new.failure), (&None, &None), "{}", of(true));
        assert_ne!(aged.trace_hash, new.trace_hash, "{}", of(true));
    }
}

#[test]
fn time_and_interrupts_end_a_run_early() {
    let plan = Plan { seeds: 0..u64::MAX, threads: 2, ..Plan::default() };
    let stop = AtomicBool::new(false);
    let report = check(&plan, &stop, &|seed, _, _| {
        if seed >= 3 {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(!report.is_complete && (4..8).contains(&report.seeds), "{}", report.seeds);
    let plan = Plan { time: Some(Duration::from_millis(300)), ..plan };
    let report = check(&plan, &AtomicBool::new(false), &|_, _, _| {});
    assert!(!report.is_complete && report.seeds > 0);
}

/// A scenario that cannot work is a failure of the run, not of the program.
#[test]
fn an_impossible_scenario_is_reported() {
    let drawn = Choices::default().scenario(2);
    let outcome = run(&Scenario { region_kib: 600, ..drawn });
    match outcome.failure {
        Some(Failure::Setup(why)) => assert!(why.contains("no room for a block"), "{why}"),
        other => panic!("{other:?}"),
    }
}
