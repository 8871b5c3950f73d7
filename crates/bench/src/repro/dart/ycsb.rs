//! YCSB: throughput, latency, round trips and bytes of its workloads (Figures 6 and 7).

use farleaf_engines::Engine;
use farleaf_index::knobs::CACHE;

use super::{
    ART, B_TREES, DART, PAPER_OTHERS, Repro, SMART,
    driver::{self, BYTES, Driver, LOAD, MOPS, Metric, P50, P99, TRIPS, VERBS},
    ends,
    error::ReproError,
    keys,
    papers::{self, DartPaper, SearchCost},
    report::{ReproChart, ReproReport},
};
use crate::{report::Report, workload::OpKind};

const GETS: &str = "ycsb-c";
const SCANS: &str = "ycsb-e";
const WORKLOADS: [&str; 6] = [LOAD, "ycsb-a", "ycsb-b", GETS, "ycsb-d", SCANS];
/// Most round trips of a get of YCSB C, at scale 1.
const TRIP_BARS: [(&str, f64); 2] = [("randint", 3.1), ("email", 5.8)];
/// Most bytes of a get of YCSB C, at scale 1.
const BYTE_BARS: [(&str, f64); 1] = [("randint", 320.0)];
/// The least that scans reach of the other radix tree's.
const SCAN_BAR: f64 = 0.9;

const MAINTENANCE: Metric = ("of these for maintenance, round trips", driver::maintenance);

/// Figure 6.
pub(super) fn throughput(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    for (keys, spec) in keys() {
        let chart =
            |what: &str, unit| ReproChart::bars(&format!("{what}, {keys}"), "workload", unit);
        let mut mops = chart("throughput", "Mops");
        let mut p50 = chart("median latency", "us");
        for name in WORKLOADS {
            for engine in driver::engines() {
                let config = driver.named(engine, &spec, name)?;
                let case = format!("{name}, {keys}, {engine}");
                let measured = driver.record(report, &case, &config, &[MOPS, P50, P99])?;
                mops.add(engine.name(), name, driver::mops(&measured));
                p50.add(engine.name(), name, measured.run.latency_us.p50);
            }
            for (other, gain) in mops.gains(DART, name) {
                let case = format!("{name}, {keys}, dart over {other}");
                report.row(&case, "throughput, ratio", None, gain, "");
                add_bar(report, keys, name, &other, gain);
            }
        }
        add_gains(report, &paper, keys, &mops, &p50);
        report.charts.push(mops);
        report.charts.push(p50);
    }
    report.note(
        "Load is inserts into a table that holds half of the keys; scans are a tenth as many operations.",
    );
    report.note(
        "Operations cost a compute server 400 ns of processor time in the simulator, whatever the engine. The \
         email keys are made, so their figures compare in order only.",
    );
    Ok(())
}

/// The bounds of the gains over the others, as far as the paper tells them.
fn add_gains(
    report: &mut ReproReport,
    paper: &DartPaper,
    keys: &str,
    mops: &ReproChart,
    p50: &ReproChart,
) {
    let by_workload = WORKLOADS.iter().filter(|name| **name != SCANS);
    let all: Vec<_> = by_workload.clone().flat_map(|name| mops.gains(DART, name)).collect();
    let others = |(other, _): &(String, f64)| match keys {
        // The paper runs the other radix tree alone on these keys.
        "email" => other == SMART,
        _ => PAPER_OTHERS.contains(&other.as_str()),
    };
    let all: Vec<_> = all.into_iter().filter(others).collect();
    let why = "";
    if let (Some([least, most]), Some([low, high])) = (ends(&all), paper.gains.get(keys)) {
        let case = format!("{keys}, dart over others, all but scans");
        report.gain(&case, "least ratio of throughput", Some(*low), least, why);
        report.gain(&case, "largest ratio of throughput", Some(*high), most, why);
    }
    let lower = by_workload.flat_map(|name| p50.gains(DART, name)).filter(others);
    let lower = lower.map(|(_, ratio)| 1.0 / ratio);
    if let (Some(most), "randint") = (lower.reduce(f64::max), keys) {
        let told = Some(paper.latency_gain_max);
        report.row("randint, dart below others", "largest ratio of latency", told, most, why);
    }
}

fn add_bar(report: &mut ReproReport, keys: &str, name: &str, other: &str, gain: f64) {
    let least = match (name == SCANS, other == SMART, B_TREES.contains(&other)) {
        (true, true, _) => SCAN_BAR,
        (false, true, _) => 1.0,
        (false, _, true) if keys == "randint" => 1.0,
        _ => return,
    };
    let what = format!("{name}, {keys}: at least {least} times the throughput of {other}");
    report.bar(what, gain >= least);
}

/// Figure 7.
pub(super) fn costs(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    for (keys, spec) in keys() {
        let chart =
            |what: &str, unit| ReproChart::bars(&format!("{what}, {keys}"), "workload", unit);
        let mut trips = chart("round trips of an operation", "round trips");
        let mut bytes = chart("bytes of an operation but scans", "bytes");
        for name in WORKLOADS {
            for engine in driver::engines() {
                let mut config = driver.named(engine, &spec, name)?;
                if engine.name() == ART {
                    // The paper's plain ART caches nothing.
                    config.settings.set(CACHE, "0");
                }
                let case = format!("{name}, {keys}, {engine}");
                let metrics = [TRIPS, VERBS, BYTES, MAINTENANCE];
                let measured = driver.record(report, &case, &config, &metrics)?;
                trips.add(engine.name(), name, measured.run.per_op.round_trips);
                if name != SCANS {
                    bytes.add(engine.name(), name, driver::bytes(&measured));
                }
                if name == GETS {
                    add_search(report, &paper, keys, engine, &measured);
                }
            }
        }
        for (name, costs) in paper.search.get(keys).into_iter().flatten() {
            if driver::engine(name).is_none() {
                let case = format!("get, {keys}, {name}");
                let why = driver::no_engine(name);
                report.missing(&case, "round trips /op", Some(costs.round_trips), &why);
                report.missing(&case, "bytes /op", Some(costs.bytes), &why);
            }
        }
        report.charts.push(trips);
        report.charts.push(bytes);
    }
    report.note("Figures of an operation include its share of maintenance.");
    Ok(())
}

/// Adds the paper's figures for gets, and the checks on ours.
fn add_search(
    report: &mut ReproReport,
    paper: &DartPaper,
    keys: &str,
    engine: Engine,
    measured: &Report,
) {
    let cost = driver::kind(measured, OpKind::Get).per_op;
    let bytes = cost.bytes_read + cost.bytes_written;
    let case = format!("get, {keys}, {engine}");
    let told = paper.search.get(keys).and_then(|by| by.get(engine.name()));
    let reason = "";
    let of = |figure: fn(&SearchCost) -> f64| told.map(figure);
    report.row(&case, "round trips /op", of(|it| it.round_trips), cost.round_trips, reason);
    report.row(&case, "bytes /op", of(|it| it.bytes), bytes, reason);
    if engine.name() != DART {
        return;
    }
    let trips = TRIP_BARS.iter().map(|it| (it, "round trips", cost.round_trips));
    let all = trips.chain(BYTE_BARS.iter().map(|it| (it, "bytes", bytes)));
    for ((_, most), what, ours) in all.filter(|it| it.0.0 == keys) {
        report.bar(format!("{case}: at most {most} {what}"), ours <= *most);
    }
}
