//! Experiment tests: each figure at a small scale, and what must hold at any.
#![allow(clippy::unwrap_used)]

use farleaf_bench::{
    NoProgress,
    repro::{
        Experiment, Finding, Host, HostError, Hosts, ReproOptions, ReproReport, Scale, TOLERANCE,
        page,
    },
};
use farleaf_engines::Engine;

use crate::well_formed::check_well_formed;

/// The least scale of the experiments on radix trees.
const SCALE_LEAST: f64 = 1.0 / 65_536.0;

/// Hosts of experiments that need none.
struct NoHosts;

impl Hosts for NoHosts {
    fn memory_server(&self, _region_bytes: u64) -> Result<Box<dyn Host>, HostError> {
        Err("no memory server is to be started".into())
    }
}

fn named(name: &str) -> Experiment {
    name.parse().unwrap()
}

fn tiny(seed: u64) -> ReproOptions {
    ReproOptions { scale: 0.002, seed, ..ReproOptions::default() }
}

fn figure(report: &ReproReport, case: &str, quantity: &str) -> f64 {
    let row = report.rows.iter().find(|row| row.case == case && row.quantity == quantity);
    row.unwrap_or_else(|| panic!("no {quantity} of {case}")).ours.unwrap()
}

/// INV-REPRO-1, and that a hit costs nothing: at most one node for each operation is read.
#[test]
fn table2_repeats_from_its_seed() {
    let run = |seed| named("dex-table2").run(&tiny(seed), &NoHosts, &NoProgress).unwrap();
    let report = run(1);
    assert_eq!(report, run(1));
    let hash = |report: &ReproReport| report.config["trace_hash"].clone();
    assert_ne!(hash(&report), hash(&run(2)));
    let quantities = ["READs /op", "WRITEs /op", "atomics /op", "two-sided /op", "bytes /op"];
    let cases = ["read-only", "write-intensive"];
    let own = report.rows.iter().filter(|row| cases.contains(&row.case.as_str()));
    let shape: Vec<_> = own.map(|row| (row.case.as_str(), row.quantity.as_str())).collect();
    let expected: Vec<_> =
        cases.iter().flat_map(|case| quantities.map(|quantity| (*case, quantity))).collect();
    assert_eq!(shape, expected);
    let ours = |case: &str, quantity: &str| figure(&report, case, quantity);
    for case in cases {
        let reads = ours(case, "READs /op");
        assert!((0.2..0.8).contains(&reads), "{case}: {reads} READs");
        assert_eq!(ours(case, "two-sided /op"), 0.0);
    }
    assert_eq!(ours("read-only", "WRITEs /op"), 0.0);
    assert!(ours("write-intensive", "WRITEs /op") > 0.05);
    // A check that does not apply at this scale neither holds nor fails.
    assert_eq!(report.failed().count(), 0);
    assert_eq!(report.checks.iter().filter(|check| check.holds == Some(true)).count(), 2);
    for row in &report.rows {
        let differs = row.ratio.is_some_and(|ratio| (ratio - 1.0).abs() > TOLERANCE);
        assert!(!differs || row.reason.is_some(), "INV-REPRO-2: {row:?}");
    }
}

/// Each technique makes it quicker, and the base is the same again from its seed.
#[test]
fn fig8_grows_step_by_step() {
    let options = ReproOptions { scale: 0.01, seed: 3, ..ReproOptions::default() };
    let report = named("dex-fig8").run(&options, &NoHosts, &NoProgress).unwrap();
    let mops = |case: &str| figure(&report, case, "Mops");
    for name in ["skewed", "uniform"] {
        let steps = ["base (btree)", "+ partitioning", "+ cache"];
        let [base, cut, cached] = steps.map(|step| mops(&format!("{name}, {step}")));
        assert!(base < cut && cut < cached, "{name}: {base}, {cut}, {cached}");
        let off = format!("{name}, + offloading");
        assert!(figure(&report, &off, "RPCs /op") > 0.0);
        assert!(figure(&report, &off, "gain over the step before") > 0.9);
    }
    assert!(report.rows.iter().all(|row| {
        row.ratio.is_none_or(|ratio| (ratio - 1.0).abs() <= TOLERANCE) || row.reason.is_some()
    }));
}

/// The systems that this build has are compared, and those that it lacks are rows that say so.
#[test]
fn fig6_has_a_row_for_each_system_of_the_paper() {
    // At 0.0001, 4 threads do a few scans each, whose rate swings by half with equal READs.
    let options = ReproOptions { scale: 0.0005, ..ReproOptions::default() };
    let report = named("dex-fig6").run(&options, &NoHosts, &NoProgress).unwrap();
    for name in ["read-only", "read-intensive", "write-intensive", "scan-intensive"] {
        for other in ["sherman", "smart", "p-sherman", "p-smart"] {
            let case = format!("{name}, dex over {other}");
            let row = report.rows.iter().find(|row| row.case == case).unwrap();
            assert!(row.paper.is_some(), "{row:?}");
            let is_built = Engine::ALL.iter().any(|engine| engine.name() == other);
            assert_eq!(row.ours.is_some(), is_built, "{row:?}");
        }
        let few = figure(&report, &format!("{name}, 4 threads, dex"), "Mops");
        let many = figure(&report, &format!("{name}, 144 threads, dex"), "Mops");
        // At this scale 4 threads do a few operations each, whose rate swings by half.
        assert!(few * 4.0 < many, "{name}: {few}, {many}");
    }
    assert_eq!(report.charts.len(), 5);
}

/// Uniform keys; twice the cache is no slower.
#[test]
fn fig7_compares_systems_and_caches() {
    let options = ReproOptions { scale: 0.0001, ..ReproOptions::default() };
    let report = named("dex-fig7").run(&options, &NoHosts, &NoProgress).unwrap();
    let gain = figure(&report, "read-only, dex with 512 MiB over 256 MiB", "throughput, ratio");
    assert!(gain > 0.95, "{gain}");
    assert!(figure(&report, "read-only, dex over smart", "throughput, ratio") > 0.5);
    assert_eq!(report.charts.len(), 5);
}

/// Offloading all of it is bound by the memory servers' threads, and by cost is no slower than either.
#[test]
fn fig5_offloads_by_cost() {
    let options = ReproOptions { scale: 0.01, seed: 1, ..ReproOptions::default() };
    let report = named("dex-fig5").run(&options, &NoHosts, &NoProgress).unwrap();
    let mops = |case: &str| figure(&report, case, "Mops");
    let best = mops("144 threads, never").max(mops("144 threads, always"));
    assert!(mops("144 threads, by cost") > 0.95 * best);
    let busy = |case: &str| figure(&report, case, "memory servers' threads busy");
    assert!(busy("144 threads, always") > busy("4 threads, always"));
    assert_eq!(busy("144 threads, never"), 0.0);
}

/// One queue costs no more remote operations than the map, but its lock changes hands between all threads.
#[test]
fn fig4_has_both_alternatives_over_threads() {
    let report = named("dex-fig4").run(&tiny(1), &NoHosts, &NoProgress).unwrap();
    for threads in [4, 144] {
        let of = |name: &str| {
            figure(&report, &format!("{threads} threads, {name}"), "remote operations /op")
        };
        let ratio = of("cooling map") / of("one queue");
        assert!((0.8..1.25).contains(&ratio), "{threads}: {ratio}");
    }
    let many = |name: &str| figure(&report, &format!("144 threads, {name}"), "Mops");
    assert!(many("cooling map") > many("one queue"));
    let replaced = |name: &str| {
        figure(&report, &format!("144 threads, {name}"), "replacements of a compute server, M/s")
    };
    assert!(replaced("cooling map") > replaced("one queue") && replaced("one queue") > 0.0);
    assert!(report.notes.iter().any(|note| note.contains("handover_ns")));
}

/// More threads take more requests, which save READs and WRITEs.
#[test]
fn fig12_offloads_more_with_more_threads() {
    let options = ReproOptions { scale: 0.01, seed: 1, ..ReproOptions::default() };
    let report = named("dex-fig12").run(&options, &NoHosts, &NoProgress).unwrap();
    for name in ["read-intensive", "write-intensive"] {
        let ours =
            |threads: &str, quantity| figure(&report, &format!("{name}, {threads}"), quantity);
        assert_eq!(ours("none", "RPCs /op"), 0.0);
        let rpcs = ["1", "2", "4"].map(|threads| ours(threads, "RPCs /op"));
        assert!(0.0 < rpcs[0] && rpcs[0] < rpcs[1] && rpcs[1] < rpcs[2], "{rpcs:?}");
        assert!(ours("4", "remote operations saved") > ours("1", "remote operations saved"));
        for threads in ["1", "4"] {
            let busy = ours(threads, "memory servers' threads busy");
            assert!((0.01..=1.0).contains(&busy), "{threads} threads are busy for {busy}");
        }
    }
}

/// Ranges move under load, three times over, and move back between.
#[test]
fn fig10_moves_ranges_and_loses_nothing() {
    let report = named("dex-fig10").run(&tiny(1), &NoHosts, &NoProgress).unwrap();
    assert_eq!(report.failed().count(), 0, "{:?}", report.checks);
    for case in ["256 MiB", "512 MiB", "1024 MiB"] {
        let ours = |quantity| figure(&report, case, quantity);
        assert_eq!(ours("items whose last write is lost"), 0.0);
        assert!(ours("acknowledged writes") > 5_000.0);
        // The three moves give away three quarters, a half and a quarter of a cache, each written
        // twice.
        let written = ours("nodes written back, for each that a cache holds");
        assert!((0.5..3.1).contains(&written), "{case}: {written}");
        assert!(ours("longest operation inside, ms") > ours("longest operation outside, ms"));
        for when in ["before", "during", "after"] {
            assert!(figure(&report, &format!("{case}, {when}"), "Mops") > 1.0, "{case}, {when}");
        }
    }
}

/// On a warm cache an operation does no remote operation, whatever else the machine does.
#[test]
fn a_cache_that_holds_all_needs_no_remote_operation() {
    let options = ReproOptions { scale: 0.0005, seed: 1, ..ReproOptions::default() };
    let report = named("dex-local").run(&options, &NoHosts, &NoProgress).unwrap();
    let check = |what: &str| report.checks.iter().find(|check| check.what.contains(what)).unwrap();
    assert_eq!(check("no remote operation").holds, Some(true));
    assert_eq!(check("local tree's throughput").holds, None, "not at this scale");
    assert_eq!(report.rows.iter().filter(|row| row.quantity.starts_with("share")).count(), 4);
    assert!(report.rows.iter().filter_map(|row| row.ours).all(|ours| ours > 0.0));
}

#[test]
fn invalid_options_are_refused_with_a_message() {
    let refusal = |scale| {
        let options = ReproOptions { scale, seed: 1, ..ReproOptions::default() };
        named("dex-table2").run(&options, &NoHosts, &NoProgress).unwrap_err().to_string()
    };
    for scale in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(refusal(scale).contains("is invalid"), "{scale}");
    }
    assert!(refusal(1e-6).contains("give at least"));
    let unknown = "dex-tabel2".parse::<Experiment>().unwrap_err().to_string();
    assert!(unknown.contains("did you mean \"dex-table2\"?"), "{unknown}");
}

#[test]
fn names_are_read_and_listed() {
    for experiment in Experiment::all() {
        assert_eq!(experiment.name().parse::<Experiment>().unwrap(), experiment);
        assert!(!experiment.about().is_empty());
    }
}

#[test]
fn every_experiment_has_its_scales() {
    for experiment in Experiment::all() {
        for scale in [Scale::Small, Scale::Usual, Scale::Full] {
            assert!((0.0..=1.0).contains(&scale.of(experiment)), "{}", experiment.name());
        }
        assert!(experiment.small_scale() <= experiment.usual_scale());
    }
}

/// Without a device the report compares costs with the programs', and no throughput.
#[test]
fn peers_are_compared_on_each_workload() {
    let options = ReproOptions { scale: 0.02, seed: 1, ..ReproOptions::default() };
    let run = || named("peers").run(&options, &NoHosts, &NoProgress).unwrap();
    let mut report = run();
    // Two threads in real time share a cache: the gets of `smart` READ 1.498 times, and once, beside other work, 1.5 times or
    // more. The quietest of three runs counts.
    for _ in 0..2 {
        if figure(&report, "smart, c", "READs /op") >= 1.5 {
            report = run();
        }
    }
    let reads = |case: &str| figure(&report, case, "READs /op");
    assert!(reads("dex, c") < reads("dex, c uniform"));
    assert!(reads("dex, c uniform") < 1.0);
    assert_eq!(figure(&report, "dex, c", "WRITEs /op"), 0.0);
    for (case, least, most) in [
        ("sherman, c", 1.0, 1.01),
        ("sherman read=locked3, c", 2.98, 3.01),
        ("chime, c", 0.0, 1.05),
        ("smart, c", 0.0, 1.5),
    ] {
        assert!((least..most).contains(&reads(case)), "{case}: {}", reads(case));
    }
    assert!((0.4..=0.5).contains(&figure(&report, "sherman, a", "atomics /op")));
    assert_eq!(report.failed().count(), 0);
    assert!(report.checks.len() >= 20 && report.checks.iter().all(|check| check.holds.is_none()));
}

/// Refuses an experiment whose rows differ by more than the tolerance and do not say why.
fn check_reasons(report: &ReproReport) {
    for row in &report.rows {
        let differs = row.ratio.is_some_and(|ratio| (ratio - 1.0).abs() > TOLERANCE);
        let is_told = row.reason.is_some();
        assert!(!differs || is_told, "INV-REPRO-2: {}: {row:?}", report.experiment);
        assert!(row.ours.is_some() || is_told, "{}: {row:?}", report.experiment);
    }
}

/// Every figure of the radix trees' papers, at the least scale, on one page.
#[test]
fn every_figure_of_radix_trees_runs_at_a_tiny_scale() {
    let options = ReproOptions { scale: SCALE_LEAST, ..ReproOptions::default() };
    let mut findings = Vec::new();
    for experiment in Experiment::figures() {
        let name = experiment.name();
        let is_run = !name.starts_with("dex-") && !name.starts_with("dmtree-");
        let result = is_run.then(|| {
            let report = experiment.run(&options, &NoHosts, &NoProgress).unwrap();
            assert_eq!(report.experiment, name);
            assert!(report.rows.iter().any(|row| row.ours.is_some()), "{name} shows nothing");
            assert!(!report.charts.is_empty(), "{name} has no chart");
            assert_eq!(report.failed().count(), 0, "{name}: {:?}", report.checks);
            check_reasons(&report);
            Ok(report)
        });
        let about = experiment.about().to_owned();
        findings.push(Finding { name: name.to_owned(), about, result });
    }
    assert!(findings.iter().filter(|it| it.result.is_some()).count() >= 17);
    let text = page("figures", &findings).unwrap();
    check_well_formed(&text);
    for finding in findings.iter().filter(|it| it.result.is_some()) {
        assert!(text.contains(&format!("farleaf repro {} ", finding.name)), "{}", finding.name);
    }
}

/// INV-REPRO-1, with a row for each engine.
#[test]
fn every_engine_runs_the_experiments_of_radix_trees() {
    // `dex` caches almost everything at the least scale: whether a get misses is chance there.
    for (experiment, quantity, scale) in [
        ("dart-table2", "bytes /key beside keys and values", SCALE_LEAST),
        ("smart-amplification", "bytes READ /byte, get", 16.0 * SCALE_LEAST),
    ] {
        let options = ReproOptions { scale, ..ReproOptions::default() };
        let run = || named(experiment).run(&options, &NoHosts, &NoProgress).unwrap();
        let report = run();
        assert_eq!(report, run());
        for engine in Engine::ALL.iter().filter(|engine| !engine.is_example()) {
            let mut rows = report.rows.iter().filter(|row| row.quantity == quantity);
            let row = rows.find(|row| row.case.ends_with(engine.name()));
            assert!(
                row.and_then(|row| row.ours).is_some_and(|ours| ours > 0.0),
                "{engine}: {row:?}"
            );
        }
    }
}

/// The experiments of DMTree's paper with rows that each must have: case and quantity.
const DMTREE: [(&str, &[(&str, &str)]); 13] = [
    ("dmtree-fig3", &[("scan, uniform, smart over sherman", "throughput, ratio")]),
    ("dmtree-fig5", &[("fptree", "share of a compute server's card, operations sent")]),
    ("dmtree-fig11", &[("scan, dmtree over smart", "throughput, ratio")]),
    ("dmtree-fig12", &[("search, 24 random bytes, dmtree over sherman", "throughput, ratio")]),
    ("dmtree-fig13", &[("one hot key, 6 x 72 x 4 clients, batches of 8", "p99, us")]),
    ("dmtree-fig14", &[("ycsb-e, dmtree over smart", "throughput, ratio")]),
    ("dmtree-table1", &[("insert, fingerprint sync", "us"), ("search, pair", "us")]),
    ("dmtree-memory", &[("dmtree, own lines", "bytes /key, compute server")]),
    ("dmtree-fig15", &[("smart, nodes=reserve, 2.5 over 20 GB", "throughput, ratio")]),
    ("dmtree-fig16", &[("update, + Concur", "Mops"), ("scan, + base", "Mops")]),
    ("dmtree-fig17", &[("dmtree", "share of a compute server's card, operations sent")]),
    ("dmtree-fig18", &[("scan, 128 bytes, dmtree over smart", "throughput, ratio")]),
    ("dmtree-fig19", &[("scan, up to 1000 pairs, dmtree over smart", "throughput, ratio")]),
];

/// Every figure of DMTree's paper, at the least scale: its card model, its rows, and the systems that are not built. They
/// take minutes: the default run goes through the quickest.
#[test]
fn every_figure_of_dmtree_runs_at_a_tiny_scale() {
    let options = ReproOptions { scale: SCALE_LEAST, ..ReproOptions::default() };
    let is_default = |name: &str| name == "dmtree-table1" || std::env::var("FARLEAF_SOAK").is_ok();
    for (name, rows) in DMTREE.into_iter().filter(|(name, _)| is_default(name)) {
        let report = named(name).run(&options, &NoHosts, &NoProgress).unwrap();
        for (case, quantity) in rows {
            assert!(figure(&report, case, quantity) > 0.0, "{name}: {case}");
        }
        assert!(!report.charts.is_empty(), "{name} has no chart");
        assert_eq!(report.failed().count(), 0, "{name}: {:?}", report.checks);
        assert_eq!(report.config["card_ops_per_s"], 55_000_000, "{name}");
        assert!(report.notes.iter().any(|note| note.starts_with("Card model: 55 M")), "{name}");
        check_reasons(&report);
        let of_paper = |row: &&farleaf_bench::repro::ReproRow| row.case.contains("over rolex");
        let absent = report.rows.iter().filter(of_paper);
        assert!(absent.clone().all(|row| row.ours.is_none() && row.paper.is_some()), "{name}");
        if name == "dmtree-fig11" {
            assert!(absent.count() >= 4);
        }
    }
}

/// INV-REPRO-1 with regions and moves of partitions, and an insert waits for lock, fingerprint and pair in turn.
#[test]
fn steps_of_dmtree_repeat_from_their_seed() {
    let options = ReproOptions { scale: SCALE_LEAST, ..ReproOptions::default() };
    let run = || named("dmtree-table1").run(&options, &NoHosts, &NoProgress).unwrap();
    let report = run();
    assert_eq!(report, run());
    let us = |case: &str| figure(&report, case, "us");
    assert_eq!(us("search, lock") + us("search, fingerprint sync"), 0.0);
    // Lines that are built count there.
    assert!(us("update, fingerprint sync") < 0.2, "an update leaves the line as it is");
    for step in ["insert, lock", "insert, fingerprint sync", "insert, pair"] {
        assert!((1.0..4.0).contains(&us(step)), "{step}: {}", us(step));
    }
}
