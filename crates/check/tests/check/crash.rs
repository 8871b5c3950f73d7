//! Crash tests: compute servers die at every remote operation, one by one.
//!
//! An engine that goes short (`farleaf_harness::depth`) dies at every eighth operation of the cases of its smallest
//! nodes, and of some with lines on compute servers, from `FARLEAF_FIRST` on. `FARLEAF_SOAK=1` goes through all cases;
//! `FARLEAF_CRASH=records/remove` through those whose name contains that, or, with a `#`, through that one point. A failing
//! point prints its name.
//! `FARLEAF_POINTS=FILE` writes the list of all cases and their points instead, and runs none.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use farleaf_check::crash::{CrashCase, CrashOptions, CrashReport, by_name, cases, run_all};
use farleaf_engines::Engine;
use farleaf_harness::{Depth, depth};

/// Returns whether the default run includes a case. It leaves to `FARLEAF_SOAK` those that are patient, and those of
/// formats that add nothing to the others.
fn is_chosen(name: &str, patient: &BTreeSet<String>) -> bool {
    let Some((_, case)) = name.split_once('/') else { return false };
    let (format, action) = case.split_once('/').unwrap_or((case, ""));
    let starts = |with: &[&str]| with.iter().any(|with| action.starts_with(with));
    match format {
        "u64-tiny" => !patient.contains(name),
        "lines" => {
            starts(&["held-merge", "beside-insert", "leave-copy-locked", "join-copy-locked"])
        }
        "records" => starts(&["up", "remove-merge-own", "exchange", "tick-own", "drop-table-own"]),
        _ => action == "insert-leaf-split" || action == "remove-merge-right",
    }
}

/// Every eighth point of a case is run with an engine that goes short.
const SHORT_STRIDE: usize = 8;

/// Returns the engine of a case.
fn engine_of(name: &str) -> Option<Engine> {
    name.split_once('/').and_then(|(engine, _)| engine.parse().ok())
}

/// Returns whether the default run goes through every eighth point of a case.
fn is_sampled(name: &str) -> bool {
    let is_short = engine_of(name).is_some_and(|engine| depth(engine) == Depth::Short);
    is_short && ["/u64-tiny/", "/lines/"].iter().any(|format| name.contains(format))
}

/// Returns whether the default run goes through all points of a case.
fn is_full(name: &str) -> bool {
    engine_of(name).is_some_and(|engine| depth(engine) == Depth::Full)
}

fn go_through(filter: impl Fn(&str) -> bool) -> CrashReport {
    let report = walk(filter, &CrashOptions::default());
    assert_eq!(report.left_out, 0);
    report
}

fn walk(filter: impl Fn(&str) -> bool, options: &CrashOptions) -> CrashReport {
    let report = run_all(filter, options, |done| {
        println!(
            "{:44} {:4} operations, {:4} points, {:2} failures, {:4} ms",
            done.name,
            done.ops,
            done.points,
            done.failures,
            done.took.as_millis()
        );
    });
    for failure in &report.failures {
        println!("FARLEAF_CRASH='{}'\n  {}", failure.name, failure.what);
    }
    println!(
        "{} cases, {} points, {} left out; after {} points {} objects waited for a sweep; {:?}",
        report.cases, report.points, report.left_out, report.swept.0, report.swept.1, report.took
    );
    assert_eq!(report.failures, Vec::new(), "their names stand above");
    assert_eq!(report.cases_left_out, 0);
    report
}

/// Writes a line for each case: name, remote operations, points, and a hash over the points' names.
fn write_points(file: &Path) {
    let (cases, next, lines) = (cases(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let list = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            lines.lock().expect("lines").push(line_of(case));
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(list))));
    let mut lines = lines.into_inner().expect("lines");
    lines.sort();
    std::fs::write(file, lines.join("\n") + "\n").expect("the list is written");
}

/// A case that cannot be set up has its error in place of its points, which must be the same as well.
fn line_of(case: &CrashCase) -> String {
    let (points, ops) = match case.points().and_then(|points| Ok((points, case.ops()?))) {
        Ok(case) => case,
        Err(error) => return format!("{} {}", case.name(), error.what),
    };
    let names = points.iter().map(|point| format!("{point} ")).collect::<String>();
    let hash = names
        .bytes()
        .fold(7, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
    format!("{} {ops} {} {hash:016x}", case.name(), points.len())
}

#[test]
fn a_death_at_any_operation_leaves_all_in_order() {
    if let Some(file) = std::env::var_os("FARLEAF_POINTS") {
        return write_points(Path::new(&file));
    }
    let wanted = std::env::var("FARLEAF_CRASH").unwrap_or_default();
    if wanted.contains('#') {
        assert_eq!(by_name(&wanted), Ok(()));
        return;
    }
    if !wanted.is_empty() {
        assert!(go_through(|name| name.contains(&wanted)).points > 0);
        return;
    }
    let soaks = std::env::var("FARLEAF_SOAK").is_ok();
    let patient = cases().into_iter().filter(CrashCase::is_patient);
    let patient: BTreeSet<String> = patient.map(|case| case.name().to_owned()).collect();
    let full = go_through(|name| soaks || is_full(name) && is_chosen(name, &patient));
    let first = std::env::var("FARLEAF_FIRST").map_or(0, |first| first.parse().expect("a number"));
    println!("FARLEAF_FIRST={first}");
    let options = CrashOptions { stride: SHORT_STRIDE, first, ..CrashOptions::default() };
    let sampled = walk(|name| !soaks && is_sampled(name) && is_chosen(name, &patient), &options);
    let cases = full.cases + sampled.cases;
    assert!(cases > 50 && full.points + sampled.points > 2_000, "{cases} cases");
}

/// Recovery walked on with the image that it had read before it wrote a dead writer's redo record
/// again (or before a survivor did). It did not mark the nodes that the record links, and freed
/// their block. Found at `k=3,within=prefix:39`.
#[test]
fn recovery_marks_nodes_that_a_redo_record_links() {
    go_through(|name| name == "btree/u64-tiny/insert-first-growth");
    go_through(|name| name == "btree/records/upsert-present");
}

/// Recovery took a merge by another client for damage and failed: a parent that it had read pointed
/// to a node, which was merged away before recovery reached it. Found at `k=17,within=prefix:16`.
#[test]
fn a_merge_during_recovery_is_no_damage() {
    go_through(|name| name == "btree/bytes-tiny/remove-merge-left");
}

/// A died in a merge, B while it took over from A, holding the parent's lock. C met the merged node
/// first and marked it dead by A's record. It took B's lock on the parent for a sign that the
/// parent had been written. From then on every client was led to the dead node. Found at
/// `k=31,before`.
#[test]
fn a_merged_node_is_marked_dead_after_its_parent_is_written() {
    go_through(|name| name == "btree/records/recover-merge");
}

#[test]
fn names_are_unique_and_lead_back() {
    let cases = cases();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), cases.len());
    let case = cases.iter().find(|case| case.name().ends_with("u64-tiny/update"));
    let case = case.expect("there is such a case");
    let points = case.points().expect("it has points");
    assert!(points.len() > 4 * case.ops().expect("it has operations") - 4);
    assert_eq!(by_name(&format!("{}#{}", case.name(), points[0])), Ok(()));
    // A point that no run reaches is no success.
    for wrong in ["#k=1000,before", "#k=0,sometimes", ""] {
        assert!(by_name(&format!("{}{wrong}", case.name())).is_err(), "{wrong}");
    }
    assert!(by_name("btree/u64-tiny/nothing#k=0,before").is_err());
}

/// The default run goes through some cases alone, so one whose state is never reached would not show there.
#[test]
fn every_case_can_be_set_up() {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let set_up = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            case.points().unwrap_or_else(|error| panic!("{error}"));
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(set_up))));
}
