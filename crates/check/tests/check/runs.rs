//! Run tests: runs repeat, and a wrong last look is found.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use farleaf_check::history::Answer;
use farleaf_check::run::{Failure, judge, run};
use farleaf_check::scenario::{Choices, Scenario};

#[test]
fn the_same_scenario_is_the_same_run() {
    for seed in 0..6 {
        let scenario = Scenario::from_seed(seed, &Choices::default());
        let (first, second) = (run(&scenario), run(&scenario));
        assert_eq!(first.trace_hash, second.trace_hash);
        assert_eq!(first.history, second.history);
        assert_eq!(first.failure, second.failure);
        let salted = run(&Scenario { salt: 1, ..scenario });
        assert_ne!(first.trace_hash, salted.trace_hash);
    }
}

/// Operations go wrong for as long as clients are at work, whether or not an event befalls a server.
#[test]
fn operations_go_wrong_without_events() {
    let run_with = |faults: &str| {
        let mut choices = Choices::default();
        for (flag, text) in [("event", "none"), ("clients", "3"), ("ops", "40"), ("keys", "20")] {
            choices.set(flag, text).unwrap();
        }
        choices.set("faults", faults).unwrap();
        let outcome = run(&choices.scenario(3));
        assert_eq!(outcome.failure, None);
        outcome.stats.virtual_ns
    };
    let (plain, late) = (run_with("none"), run_with("late=1,late-ns=10000"));
    // Each of some hundred messages comes up to 10 us later.
    assert!(late > plain + 500_000, "{late} {plain}");
    assert!(run_with("torn=1,stretch=10000") > plain + 100_000);
}

/// The lab finds a last look that does not fit.
#[test]
fn a_wrong_last_look_is_found() {
    let mut choices = Choices::default();
    for (flag, text) in [
        ("clients", "1"),
        ("ops", "20"),
        ("faults", "none"),
        ("event", "none"),
        ("impatience", "0"),
    ] {
        choices.set(flag, text).unwrap();
    }
    let mut outcome = run(&choices.scenario(3));
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.stats.unknown + outcome.stats.unavailable + outcome.stats.killed, 0);
    // The judge includes the last look, backwards and forwards.
    let scan = outcome.steps.iter().position(Option::is_none).unwrap();
    let answer = outcome.history.events[scan].answer.as_mut().unwrap();
    answer.1 = Answer::Pairs(vec![(b"nobody".to_vec(), b"wrote this".to_vec())]);
    judge(&mut outcome);
    let failure = outcome.failure.unwrap();
    assert!(matches!(&failure, Failure::NotLinearizable { .. }), "{failure}");
}
