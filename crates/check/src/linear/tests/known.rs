//! Known histories: histories known to be right or wrong.

use super::super::{Held, ScanFault};
use super::*;

#[test]
fn a_read_after_a_change_sees_it() {
    let stale = |seen: Answer| {
        vec![event(1, 0, 10, upsert("k", "new"), NO), event(2, 11, 20, get("k"), seen)]
    };
    right(&[("k", "old")], stale(value("new")));
    let violation = wrong(&[("k", "old")], stale(value("old")));
    let Violation::Key(violation) = violation else { panic!("{violation}") };
    assert_eq!(violation.rows[violation.blocked].event, 1);
    assert_eq!(violation.unplaced().map(|row| row.event).collect::<Vec<_>>(), [1]);
    wrong(&[("k", "old")], stale(ABSENT));
    wrong(&[("k", "old")], stale(value("never written")));
}

#[test]
fn a_read_beside_a_change_sees_either_but_never_goes_back() {
    let beside = |first: &str, second: &str| {
        vec![
            event(1, 0, 100, upsert("k", "new"), NO),
            event(2, 10, 20, get("k"), value(first)),
            event(3, 30, 40, get("k"), value(second)),
        ]
    };
    right(&[("k", "old")], beside("old", "old"));
    right(&[("k", "old")], beside("old", "new"));
    right(&[("k", "old")], beside("new", "new"));
    wrong(&[("k", "old")], beside("new", "old"));
}

#[test]
fn two_readers_agree_on_the_order_of_two_changes() {
    let order = |last: &str| {
        vec![
            event(1, 0, 100, upsert("k", "a"), NO),
            event(2, 0, 100, upsert("k", "b"), NO),
            event(3, 10, 20, get("k"), value("a")),
            event(4, 30, 40, get("k"), value("b")),
            event(5, 101, 110, get("k"), value(last)),
        ]
    };
    right(&[("k", "old")], order("b"));
    wrong(&[("k", "old")], order("a"));
}

#[test]
fn no_change_is_lost() {
    let swap = |from: &str, to: &str| {
        let held = Some(bytes(from));
        (exchange("k", Some(from), Some(to)), Answer::Exchanged { done: true, held })
    };
    let (one, told_one) = swap("0", "1");
    let (two, told_two) = swap("0", "2");
    let lost =
        vec![event(1, 0, 50, one.clone(), told_one.clone()), event(2, 10, 60, two, told_two)];
    wrong(&[("k", "0")], lost);
    let (two, told_two) = swap("1", "2");
    right(&[("k", "0")], vec![event(1, 0, 50, one, told_one), event(2, 10, 60, two, told_two)]);
}

#[test]
fn an_exchange_says_what_was_there() {
    let told = |done, held: Option<&str>| {
        let answer = Answer::Exchanged { done, held: held.map(bytes) };
        vec![event(1, 0, 1, exchange("k", None, Some("v")), answer)]
    };
    right(&[], told(true, None));
    right(&[("k", "x")], told(false, Some("x")));
    wrong(&[("k", "x")], told(false, Some("y")));
    wrong(&[("k", "x")], told(true, Some("x")));
    wrong(&[("k", "x")], told(true, None));
    wrong(&[], told(false, None));
}

#[test]
fn a_key_is_inserted_once() {
    let twice = |second: Answer| {
        vec![event(1, 0, 50, insert("k", "a"), YES), event(2, 10, 60, insert("k", "b"), second)]
    };
    right(&[], twice(NO));
    wrong(&[], twice(YES));
}

#[test]
fn flags_report_presence() {
    for (call, present, flag, is_right) in [
        (update("k", "v"), true, true, true),
        (update("k", "v"), false, true, false),
        (update("k", "v"), false, false, true),
        (update("k", "v"), true, false, false),
        (upsert("k", "v"), false, true, true),
        (upsert("k", "v"), true, true, false),
        (upsert("k", "v"), true, false, true),
        (remove("k"), true, true, true),
        (remove("k"), false, true, false),
        (remove("k"), true, false, false),
        (insert("k", "v"), true, false, true),
        (insert("k", "v"), false, false, false),
    ] {
        let initial: &[(&str, &str)] = if present { &[("k", "0")] } else { &[] };
        let told = run(initial, vec![event(1, 0, 1, call.clone(), Answer::Flag(flag))]);
        assert_eq!(told.is_ok(), is_right, "{call:?} {present} {flag}");
    }
}

#[test]
fn a_removed_key_stays_absent() {
    let events =
        |seen: Answer| vec![event(1, 0, 10, remove("k"), YES), event(2, 20, 30, get("k"), seen)];
    right(&[("k", "v")], events(ABSENT));
    wrong(&[("k", "v")], events(value("v")));
}

#[test]
fn an_unknown_change_happens_late_or_never_but_not_twice() {
    let late = |seen: &[(u64, Answer)]| {
        let mut events = vec![unknown(1, 0, upsert("k", "new"))];
        let reads = seen.iter().cloned();
        events.extend(reads.map(|(at_ns, seen)| event(2, at_ns, at_ns + 5, get("k"), seen)));
        events
    };
    let old = || value("old");
    let new = || value("new");
    right(&[("k", "old")], late(&[(10, old()), (100, old()), (1000, new())]));
    right(&[("k", "old")], late(&[(10, old()), (100, old())]));
    wrong(&[("k", "old")], late(&[(10, new()), (100, old())]));
    // Applied, overwritten by another, and applied once more.
    let mut twice = late(&[(10, new()), (100, new())]);
    twice.push(event(3, 50, 60, upsert("k", "other"), NO));
    wrong(&[("k", "old")], twice);
    // Two of them may.
    let mut two = late(&[(10, new()), (100, new())]);
    two.push(event(3, 50, 60, upsert("k", "other"), NO));
    two.push(unknown(4, 70, upsert("k", "new")));
    right(&[("k", "old")], two);
    // Not before its call.
    let early = vec![event(2, 0, 10, get("k"), new()), unknown(1, 20, upsert("k", "new"))];
    wrong(&[("k", "old")], early);
}

#[test]
fn unknown_changes_build_on_each_other() {
    let events = vec![
        unknown(1, 0, update("k", "late")),
        unknown(2, 0, insert("k", "early")),
        event(3, 10, 20, get("k"), value("late")),
        event(3, 30, 40, get("k"), ABSENT),
    ];
    wrong(&[], events.clone());
    let mut removed = events;
    removed.push(unknown(4, 5, remove("k")));
    right(&[], removed);
}

#[test]
fn an_operation_that_certainly_failed_did_nothing() {
    let events = |seen: Answer| {
        let failed = event(1, 0, 10, upsert("k", "new"), Answer::Nothing);
        vec![failed, event(2, 5, 20, get("k"), seen)]
    };
    right(&[("k", "old")], events(value("old")));
    wrong(&[("k", "old")], events(value("new")));
}

#[test]
fn a_client_sees_its_own_change_in_the_same_nanosecond() {
    let events = |reader| {
        vec![event(1, 0, 10, upsert("k", "new"), NO), event(reader, 10, 20, get("k"), value("old"))]
    };
    right(&[("k", "old")], events(2));
    wrong(&[("k", "old")], events(1));
}

#[test]
fn a_scan_returns_what_was_there_throughout() {
    let initial = &[("a", "1"), ("b", "2"), ("c", "3")];
    let all = [("a", "1"), ("b", "2"), ("c", "3")];
    right(initial, vec![event(1, 0, 10, scan(9), pairs(&all))]);
    let violation = wrong(initial, vec![event(1, 0, 10, scan(9), pairs(&[all[0], all[2]]))]);
    let Violation::Key(violation) = violation else { panic!("{violation}") };
    assert_eq!(violation.key, b"b");
    // The limit ends the range that it has looked at.
    right(initial, vec![event(1, 0, 10, scan(2), pairs(&all[..2]))]);
    right(initial, vec![event(1, 0, 10, scan(0), pairs(&[]))]);
    wrong(initial, vec![event(1, 0, 10, scan(2), pairs(&[all[0], all[2]]))]);
    wrong(initial, vec![event(1, 0, 10, scan(4), pairs(&all[..2]))]);
    // The same with changed keys: nothing happens to them while the scan runs.
    let changed = |seen: &[(&str, &str)], limit| {
        let mut events = vec![event(9, 100, 110, scan(limit), pairs(seen))];
        for key in ["a", "b", "c"] {
            events.push(event(1, 0, 10, upsert(key, "x"), NO));
        }
        events
    };
    right(initial, changed(&[("a", "x"), ("b", "x"), ("c", "x")], 9));
    right(initial, changed(&[("a", "x"), ("b", "x")], 2));
    wrong(initial, changed(&[("a", "x"), ("c", "x")], 9));
    wrong(initial, changed(&[("a", "x"), ("c", "x")], 2));
    wrong(initial, changed(&[("a", "x"), ("b", "x")], 9));
    wrong(initial, changed(&[("a", "1"), ("b", "x"), ("c", "x")], 9));
}

#[test]
fn a_scan_sees_no_phantoms() {
    wrong(&[], vec![event(1, 0, 10, scan(9), pairs(&[("k", "v")]))]);
    let events = |from_ns, seen: &[(&str, &str)]| {
        vec![
            event(1, 0, 10, insert("k", "v"), YES),
            event(1, 20, 30, remove("k"), YES),
            event(2, from_ns, 40, scan(9), pairs(seen)),
        ]
    };
    right(&[], events(25, &[("k", "v")]));
    right(&[], events(25, &[]));
    right(&[], events(5, &[]));
    wrong(&[], events(31, &[("k", "v")]));
    right(&[], events(31, &[]));
}

#[test]
fn a_scan_sees_values_of_its_own_time() {
    let events = |seen| {
        vec![
            event(1, 0, 10, upsert("k", "1"), NO),
            event(1, 20, 30, upsert("k", "2"), NO),
            event(1, 40, 50, upsert("k", "3"), NO),
            event(2, 25, 45, scan(9), pairs(&[("k", seen)])),
        ]
    };
    for seen in ["1", "2", "3"] {
        right(&[("k", "0")], events(seen));
    }
    let violation = wrong(&[("k", "0")], events("0"));
    let Violation::Key(violation) = violation else { panic!("{violation}") };
    // The example leaves out what was certain before.
    assert_eq!(violation.starts, [Held::Unseen]);
    assert!(violation.rows.iter().all(|row| row.event != 0), "{:?}", violation.rows);
}

#[test]
fn a_scan_and_a_get_agree_on_the_order() {
    // The scan saw the new value, and a get that began after it did not.
    let events = |seen| {
        vec![
            event(1, 0, 100, upsert("k", "new"), NO),
            event(2, 10, 20, scan(9), pairs(&[("k", "new")])),
            event(3, 30, 40, get("k"), value(seen)),
        ]
    };
    right(&[("k", "old")], events("new"));
    wrong(&[("k", "old")], events("old"));
}

#[test]
fn malformed_answers_of_scans_are_refused() {
    let fault = |call: Op, seen: &[(&str, &str)]| {
        let initial = &[("a", "1"), ("b", "2"), ("c", "3")];
        match run(initial, vec![event(1, 0, 10, call, pairs(seen))]) {
            Err(Violation::Scan(violation)) => Some(violation.fault),
            Err(violation) => panic!("{violation}"),
            Ok(_) => None,
        }
    };
    let (a, b, c) = (("a", "1"), ("b", "2"), ("c", "3"));
    assert_eq!(fault(scan(9), &[a, b, b, c]), Some(ScanFault::Twice));
    assert_eq!(fault(scan(9), &[b, a, c]), Some(ScanFault::OutOfOrder));
    assert_eq!(fault(scan(2), &[a, b, c]), Some(ScanFault::OverLimit));
    let part = |reverse, limit| Op::Scan {
        from: Bound::Excluded(bytes("a")),
        to: Bound::Included(bytes("c")),
        reverse,
        limit,
    };
    assert_eq!(fault(part(false, 9), &[a, b, c]), Some(ScanFault::OutOfRange));
    assert_eq!(fault(part(false, 9), &[b, c]), None);
    assert_eq!(fault(part(true, 9), &[c, b]), None);
    assert_eq!(fault(part(true, 9), &[b, c]), Some(ScanFault::OutOfOrder));
    assert_eq!(fault(part(true, 1), &[c]), None);
}

#[test]
fn a_malformed_history_is_refused() {
    let malformed = |result: Result<Checked, Violation>| {
        assert!(matches!(result, Err(Violation::Malformed { .. })), "{result:?}");
    };
    malformed(run(&[], vec![event(1, 10, 0, get("k"), ABSENT)]));
    malformed(run(&[], vec![event(1, 0, 10, get("k"), YES)]));
    malformed(run(&[("k", "1"), ("k", "2")], vec![]));
}

#[test]
fn the_first_violation_is_reported_and_the_others_counted() {
    let mut events = Vec::new();
    for (at_ns, key) in [(300, "a"), (100, "b"), (200, "c")] {
        events.push(event(1, at_ns, at_ns + 1, upsert(key, "x"), YES));
        events.push(event(1, at_ns + 2, at_ns + 3, get(key), ABSENT));
    }
    let violation = wrong(&[], events);
    let text = violation.to_string();
    let Violation::Key(violation) = violation else { panic!("{text}") };
    assert_eq!((&violation.key[..], violation.others), (&b"b"[..], 2));
    assert!(text.contains("cannot be placed before it ends: get of client 1"), "{text}");
}

#[test]
fn too_many_orders_are_undecided() {
    // Each unknown value is seen once, beside all others: too many orders to try. The last read
    // is wrong, which only trying them all would show.
    let mut events = Vec::new();
    for number in 0..24 {
        events.push(unknown(number, 0, exchange("k", Some("0"), Some("1"))));
        events.push(unknown(100 + number, 0, exchange("k", Some("1"), Some("0"))));
        let name = number.to_string();
        events.push(event(200 + number, 1, 1000, upsert("k", &name), NO));
        events.push(event(300 + number, 1, 1000, get("k"), value(&name)));
    }
    events.push(event(999, 2000, 2001, get("k"), value("never")));
    let history = History { initial: content(&[("k", "0")]), events };
    let limits = Limits { key_steps_max: 20_000, ..Limits::default() };
    let checked = check(&history, &limits).expect("undecided is no violation");
    assert!(!checked.is_decided());
    assert_eq!(checked.undecided[0].key, b"k");
    assert_eq!(checked.undecided[0].unknown, 48);
    assert!(checked.steps <= 20_001, "{}", checked.steps);
}
