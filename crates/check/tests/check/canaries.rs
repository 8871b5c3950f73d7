//! Canary tests: the lab finds the seeded bugs that take few seeds; `make check` hunts them all.
//!
//! `FARLEAF_CANARIES=free-slot,skip-birth` hunts those, with `FARLEAF_ENGINE` with that engine; it prints the seeds that
//! each took.

use std::sync::atomic::AtomicBool;

use farleaf_check::canaries::{Canary, Hunted, hunt, hunts, names, with_engines};
use farleaf_check::crash::cases;
use farleaf_check::scenario::Choices;
use farleaf_engines::Engine;

/// Canaries that took at most a hundred seeds or two.
const QUICK: &[&str] = &[
    "unlock-before-write",
    "answer-before-write",
    "redo-of-any-token",
    "drop-sibling",
    "separator-unchecked",
    "forget-retire",
    "grow-from-old-root",
    "skip-cover-check",
    "compare-unlocked",
    "scan-back",
    "skip-fence",
    "resend-blindly",
    "settle-without-reconnect",
    "adopt-unchecked",
    "cool-unwritten",
    "lose-log-record",
    "replay-older",
    "lost-is-not-begun",
    "deliver-twice",
    "believe-cached-absence",
    "skip-birth",
    "lock-proves-nothing",
    "resend-content",
    "revive-head-first",
    "free-slot",
    "unlink-unlocked",
    "move-unmarked",
    "copy-unfrozen",
    "trust-dead-node",
    "grow-unhelped",
    "lose-run",
    "hops-in-one-chain",
    "hops-unrecorded",
    "believe-old-pointer",
    "fence-skips-regions",
    "header-proves-leaf",
];

#[test]
fn seeded_bugs_are_found() {
    // A seeded bug may panic, which means nothing here. Panics of other tests are still printed.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !Canary::is_any_armed() {
            usual(panic);
        }
    }));
    let never = AtomicBool::new(false);
    let named = std::env::var("FARLEAF_CANARIES").ok();
    let is_hunt_named = named.is_some();
    let is_named = |name: &str| named.iter().any(|all| all.split(',').any(|one| one == name));
    let chosen: Vec<&str> = match named {
        Some(_) => names().into_iter().filter(|name| is_named(name)).collect(),
        None => QUICK.to_vec(),
    };
    // One engine each: `make check` hunts with all that list a bug.
    let engine = std::env::var("FARLEAF_ENGINE").ok().filter(|_| is_hunt_named);
    let engine = engine.map(|name| name.parse().expect("an engine"));
    let first = |name: &&str| with_engines(name, engine).into_iter().next();
    let hunted: Vec<Hunted> = chosen.iter().filter_map(first).collect();
    let results = hunt(&hunted, &Choices::default(), None, 1_500, 2, &never, &|done| {
        let (name, by, replay) = (done.canary.name, done.found_by(), done.replay());
        println!("{name}: {} seeds, {:?}, {by:?}: {replay:?}", done.seeds, done.elapsed);
    });
    let _ = std::panic::take_hook();
    let missed: Vec<&str> = results
        .iter()
        .filter(|result| result.found_by().is_none())
        .map(|result| result.canary.name)
        .collect();
    assert_eq!(missed, Vec::<&str>::new(), "not found in 1500 seeds");
    assert_eq!(results.len(), chosen.len());
}

/// An engine lists a bug once, and the case that shows one exists.
#[test]
fn hunts_have_names_and_cases() {
    let (hunts, cases) = (hunts(), cases());
    let mut listed: Vec<_> = hunts.iter().map(|it| (it.engine, it.hunt.canary.name)).collect();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed.len(), hunts.len());
    assert!(names().len() >= 60, "{}", names().len());
    for Hunted { hunt, engine } in hunts {
        assert!(!hunt.canary.is_armed());
        let Some(case) = hunt.case else { continue };
        let name = format!("{}/{case}", engine.expect("an engine lists it"));
        assert!(cases.iter().any(|case| case.name() == name), "{name}");
    }
}

/// Another engine's case is no case of its own: then scenarios are drawn.
#[test]
fn an_engine_that_does_not_list_a_bug_is_hunted_without_the_case_of_another() {
    let case_of = |name, engine| {
        let hunted = with_engines(name, Some(engine));
        assert_eq!(hunted.len(), 1);
        assert_eq!(hunted[0].engine, Some(engine));
        hunted[0].hunt.case
    };
    assert_eq!(case_of("hops-unrecorded", Engine::Chime), Some("hops/update-over-two-copies"));
    assert_eq!(case_of("hops-unrecorded", Engine::BTree), None);
    // One of the same name.
    assert_eq!(case_of("build-keeps-torn", Engine::PSherman), Some("u64-tiny/insert"));
    assert!(with_engines("no-such-bug", Some(Engine::BTree)).is_empty());
}
