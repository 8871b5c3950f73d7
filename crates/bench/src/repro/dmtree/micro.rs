//! Micro-benchmarks: search, insert, update and scan (Figures 3, 11, 12 and 13).

use farleaf_engines::Engine;

use super::{
    DMTREE, Repro,
    driver::{self, P99},
    error::ReproError,
    papers::{Range, Ranges},
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, Micro, PaperRuns, SYSTEMS, THREADS, absent, distributions, with_range},
};
use crate::{
    config::BenchConfig,
    distribution::RequestDistribution,
    keys::KeySpec,
    workload::{OpKind, ScanLength, Workload},
};

/// Threads of each compute server.
const SWEPT: [usize; 3] = [6, 24, THREADS];
/// The systems of Figure 3; the others are figures of the paper alone.
const FIGURE3: [&str; 4] = ["sherman", "smart", "chime", "fptree"];

/// Figure 3.
pub(super) fn expected(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let card = runs.paper.setup.card.map_or(0.0, |card| card.ops_per_s as f64 / 1e6);
    for (distribution, request) in distributions() {
        for micro in Micro::ALL {
            let what = format!("{}, {distribution}", micro.name());
            let mut chart = ReproChart::lines(&what, "threads of each compute server", "Mops");
            for each in [24, THREADS] {
                for engine in FIGURE3.into_iter().filter_map(driver::engine) {
                    let config = runs.case(engine, &KEYS, micro.workload(request)?, each)?;
                    let case = format!("{what}, 6 x {each} threads, {engine}");
                    let mops = driver::mops(&runs.record(report, &case, &config)?);
                    chart.add(engine.name(), &each.to_string(), mops);
                }
            }
            shares(report, &runs, (&what, micro), &chart, card);
            report.charts.push(chart);
        }
    }
    report.note(
        "Expected is the throughput that the memory server's card allows if a search is 1 READ, and an insert or an \
         update 2 operations. Where the paper's text gives a range, a row stands beside its nearest value.",
    );
    Ok(())
}

/// Adds the shares of the expected throughput, and the ratios that the text gives.
fn shares(
    report: &mut ReproReport,
    runs: &PaperRuns<'_>,
    (what, micro): (&str, Micro),
    chart: &ReproChart,
    card: f64,
) {
    let at = THREADS.to_string();
    let expected = match micro {
        Micro::Search => Some(card),
        Micro::Insert | Micro::Update => Some(card / 2.0),
        Micro::Scan => None,
    };
    let by_system = runs.paper.share_of_expected.get(micro.name());
    for system in FIGURE3.into_iter().chain(["rolex", "dlsm"]) {
        let range = by_system.and_then(|by| by.get(system)).copied();
        let case = format!("{what}, {system}");
        match (expected, chart.at(system, &at)) {
            (Some(expected), Some(mops)) => {
                let share = mops / expected;
                let quantity = with_range("share of the expected throughput", range);
                let told = range.map(|[low, high]| share.clamp(low, high));
                report.row(&case, &quantity, told, share, "");
            }
            (Some(_), None) if range.is_some() => {
                let quantity = with_range("share of the expected throughput", range);
                report.missing(&case, &quantity, range.map(|it| it[0]), &absent(system));
            }
            _ => {}
        }
    }
    for (system, others) in runs.paper.fig3_over.get(micro.name()).into_iter().flatten() {
        for (other, range) in others {
            let case = format!("{what}, {system} over {other}");
            match (chart.at(system, &at), chart.at(other, &at)) {
                (Some(own), Some(base)) => {
                    let ratio = "throughput, ratio";
                    setup::nearest(report, &case, ratio, Some(*range), own / base);
                }
                (own, _) => {
                    let lacking = if own.is_none() { system } else { other };
                    let quantity = with_range("throughput, ratio", Some(*range));
                    report.missing(&case, &quantity, Some(range[0]), &absent(lacking));
                }
            }
        }
    }
}

/// Figure 11: uniform keys.
pub(super) fn uniform(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let told = runs.paper.uniform.clone();
    over_threads(report, &runs, RequestDistribution::Uniform, &told)
}

/// Figure 12: skewed keys.
pub(super) fn skewed(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let told = runs.paper.zipfian.clone();
    over_threads(report, &runs, RequestDistribution::Zipfian { theta: 0.99 }, &told)
}

fn over_threads(
    report: &mut ReproReport,
    runs: &PaperRuns<'_>,
    request: RequestDistribution,
    told: &Ranges,
) -> Result<(), ReproError> {
    let most = THREADS.to_string();
    for micro in Micro::ALL {
        let name = micro.name();
        let mut chart = ReproChart::lines(name, "threads of each compute server", "Mops");
        for each in SWEPT {
            // Others than the paper's systems stand beside them once.
            let is_shown = |it: &Engine| each == THREADS || SYSTEMS.contains(&it.name());
            for engine in driver::engines().filter(is_shown) {
                let case = format!("{name}, 6 x {each} threads, {engine}");
                let config = runs.case(engine, &KEYS, micro.workload(request)?, each)?;
                let mops = driver::mops(&runs.record(report, &case, &config)?);
                chart.add(engine.name(), &each.to_string(), mops);
            }
        }
        let ranges = told.get(name);
        let range = |other: &str| ranges.and_then(|by| by.get(other)).copied();
        let others = ranges.into_iter().flatten().map(|(other, _)| other.as_str());
        setup::ratios(report, &chart, (name, &most), range, others);
        report.charts.push(chart);
        let mut random = ReproChart::bars("", "", "");
        let keys = KeySpec::Random(24);
        for engine in setup::systems() {
            let case = format!("{name}, 24 random bytes, {engine}");
            let config = runs.case(engine, &keys, micro.workload(request)?, THREADS)?;
            random.add(engine.name(), name, driver::mops(&runs.record(report, &case, &config)?));
        }
        let what = format!("{name}, 24 random bytes");
        let none = std::iter::empty();
        setup::ratios(report, &random, (&what, name), |_| None, none);
    }
    report.note(
        "Where the paper's text gives a range over systems and distributions, a row stands beside its nearest value. \
         Throughput is of virtual time: it counts as ratios within one run.",
    );
    Ok(())
}

/// Figure 13.
pub(super) fn tails(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    for (distribution, request) in distributions() {
        let told = runs.paper.p99_lower.get(distribution).cloned().unwrap_or_default();
        let title = format!("P99, {distribution}");
        let mut chart = ReproChart::bars(&title, "operation", "us");
        for micro in Micro::ALL {
            let name = micro.name();
            for engine in setup::systems() {
                let case = format!("{name}, {distribution}, {engine}");
                let mut config = runs.case(engine, &KEYS, micro.workload(request)?, THREADS)?;
                if micro == Micro::Scan {
                    // The paper measures scans without coroutines.
                    config = BenchConfig { clients: config.threads, ..config };
                }
                let measured = runs.driver.record(report, &case, &config, &[P99])?;
                chart.add(engine.name(), name, measured.run.latency_us.p99);
            }
            let ranges = told.get(name);
            for (other, ratio) in chart.gains(DMTREE, name) {
                let case = format!("{name}, {distribution}, {DMTREE} below {other}");
                let range = ranges.and_then(|by| by.get(&other)).copied();
                lower(report, &case, range, 1.0 - ratio);
            }
            for (other, range) in ranges.into_iter().flatten() {
                if driver::engine(other).is_none() {
                    let case = format!("{name}, {distribution}, {DMTREE} below {other}");
                    let quantity = with_range(LOWER, Some(*range));
                    report.missing(&case, &quantity, Some(range[1]), &absent(other));
                }
            }
        }
        report.charts.push(chart);
    }
    hot_key(report, &runs)?;
    report.note(
        "The paper's text also says that Sherman's P99 of skewed updates is 20 ms, and that dLSM waits for more than \
         600 ms at times. Ours is one run, as a seed gives the same run.",
    );
    Ok(())
}

const LOWER: &str = "share by which P99 is lower";

/// Adds the share by which a P99 is lower: what is left of the other's latency is compared.
fn lower(report: &mut ReproReport, case: &str, range: Option<Range>, ours: f64) {
    let quantity = with_range(LOWER, range);
    let told = range.map(|[low, high]| ours.clamp(low, high));
    report.row(case, &quantity, told, ours, "");
}

/// One key that half of the operations are updates of, over batch limits, and with twice the clients.
fn hot_key(report: &mut ReproReport, runs: &PaperRuns<'_>) -> Result<(), ReproError> {
    let Some(engine) = driver::engine(DMTREE) else { return Ok(()) };
    let mut chart = ReproChart::lines("one hot key", "operations of a batch", "P99, us");
    for each in [THREADS / 2, THREADS, 2 * THREADS] {
        for limit in ["2", "8", "32"] {
            let mix = [(OpKind::Get, 0.5), (OpKind::Update, 0.5)];
            let set_share = 1.0 / runs.driver.options.scaled(runs.paper.setup.keys) as f64;
            let request = RequestDistribution::Hotspot { set_share, op_share: 1.0 };
            let workload = Workload {
                scan_length: ScanLength::Fixed(1),
                ..driver::mixed("one hot key", &mix, request)?
            };
            let mut config = runs.case(engine, &KEYS, workload, each)?;
            config.settings.set("batch_limit", limit);
            let case = format!("one hot key, 6 x {each} x 4 clients, batches of {limit}");
            let measured = runs.driver.record(report, &case, &config, &[driver::MOPS, P99])?;
            chart.add(&format!("{each} threads"), limit, measured.run.latency_us.p99);
        }
    }
    report.charts.push(chart);
    Ok(())
}
