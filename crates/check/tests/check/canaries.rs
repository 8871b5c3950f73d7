//! Canary tests: the lab finds the seeded bugs that take few seeds; `make check` hunts them all.

use std::sync::atomic::AtomicBool;

use farleaf_check::canaries::{Canary, hunt};
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
    let results = hunt(QUICK, &Choices::default(), 1_500, 2, &never, &|_| {});
    let _ = std::panic::take_hook();
    let missed: Vec<&str> = results
        .iter()
        .filter(|result| result.found.is_none())
        .map(|result| result.canary.name())
        .collect();
    assert_eq!(missed, Vec::<&str>::new(), "not found in 1500 seeds");
    assert_eq!(results.len(), QUICK.len());
}

#[test]
fn canaries_have_names_of_their_own() {
    let mut names: Vec<&str> = Canary::ALL.iter().map(|canary| canary.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Canary::ALL.len());
    assert!(names.len() >= 12);
    assert!(Canary::ALL.iter().all(|canary| !canary.is_armed()));
}
