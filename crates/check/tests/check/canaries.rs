//! Canary tests: the lab finds the seeded bugs that take few seeds; `make check` hunts them all.
//!
//! `FARLEAF_CANARIES=free-slot,skip-birth` hunts those, with `FARLEAF_ENGINE` with that engine; it prints the seeds that
//! each took.

use std::sync::atomic::AtomicBool;

use farleaf_check::canaries::{Canary, hunt, with_engines};
use farleaf_check::scenario::Choices;

/// Canaries that took at most a hundred seeds or two.
const QUICK: &[Canary] = &[
    Canary::UnlockBeforeWrite,
    Canary::AnswerBeforeWrite,
    Canary::RedoOfAnyToken,
    Canary::DropSibling,
    Canary::SeparatorUnchecked,
    Canary::ForgetRetire,
    Canary::GrowFromOldRoot,
    Canary::SkipCoverCheck,
    Canary::CompareUnlocked,
    Canary::ScanBack,
    Canary::SkipFence,
    Canary::ResendBlindly,
    Canary::SettleWithoutReconnect,
    Canary::AdoptUnchecked,
    Canary::CoolUnwritten,
    Canary::LoseLogRecord,
    Canary::ReplayOlder,
    Canary::LostIsNotBegun,
    Canary::DeliverTwice,
    Canary::BelieveCachedAbsence,
    Canary::SkipBirth,
    Canary::LockProvesNothing,
    Canary::ResendContent,
    Canary::ReviveHeadFirst,
    Canary::FreeSlot,
    Canary::UnlinkUnlocked,
    Canary::MoveUnmarked,
    Canary::CopyUnfrozen,
    Canary::TrustDeadNode,
    Canary::GrowUnhelped,
    Canary::LoseRun,
];

#[test]
fn seeded_bugs_are_found() {
    // A seeded bug may panic, which means nothing here. Panics of other tests are still printed.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !Canary::ALL.iter().any(|canary| canary.is_armed()) {
            usual(panic);
        }
    }));
    let never = AtomicBool::new(false);
    let named = std::env::var("FARLEAF_CANARIES").ok();
    let is_hunt_named = named.is_some();
    let is_named = |name: &str| named.iter().any(|all| all.split(',').any(|one| one == name));
    let chosen: Vec<Canary> = match named {
        Some(_) => Canary::ALL.iter().copied().filter(|it| is_named(&it.name())).collect(),
        None => QUICK.to_vec(),
    };
    // One engine each: `make check` hunts with all that list a bug.
    let engine = std::env::var("FARLEAF_ENGINE").ok().filter(|_| is_hunt_named);
    let engine = engine.map(|name| name.parse().expect("an engine"));
    let mut hunted = with_engines(&chosen, engine);
    hunted.dedup_by_key(|(canary, _)| *canary);
    let results = hunt(&hunted, &Choices::default(), 1_500, 2, &never, &|done| {
        let (name, by, replay) = (done.canary.name(), done.found_by(), done.replay());
        println!("{name}: {} seeds, {:?}, {by:?}: {replay:?}", done.seeds, done.elapsed);
    });
    let _ = std::panic::take_hook();
    let missed: Vec<String> = results
        .iter()
        .filter(|result| result.found_by().is_none())
        .map(|result| result.canary.name())
        .collect();
    assert_eq!(missed, Vec::<String>::new(), "not found in 1500 seeds");
    assert_eq!(results.len(), chosen.len());
}

#[test]
fn canaries_have_names_of_their_own() {
    let mut names: Vec<String> = Canary::ALL.iter().map(|canary| canary.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Canary::ALL.len());
    assert!(names.len() >= 12);
    assert!(Canary::ALL.iter().all(|canary| !canary.is_armed()));
}
