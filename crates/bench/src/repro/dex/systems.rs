//! DEX, Figures 6 and 7: five workloads over threads, beside the systems of the paper.
//!
//! An operation takes its worker thread the paper's time for a cached page, whatever the engine, as all systems of the
//! paper run on the same processors.

use farleaf_engines::{Engine, dex::Admission};

use super::{
    Repro,
    driver::{self, Driver, PaperCluster, READS, VERBS},
    error::ReproError,
    papers::{self, DexPaper},
    report::{ReproChart, ReproReport},
};
use crate::{
    config::BenchConfig,
    distribution::RequestDistribution,
    keys::{KeyOrder, KeySpec},
    report::Report,
};

const DEX: &str = "dex";
const P_SHERMAN: &str = "p-sherman";
/// The systems of the paper's figures, in its order.
const SYSTEMS: [&str; 5] = [DEX, "sherman", P_SHERMAN, "smart", "p-smart"];
const WORKLOADS: [&str; 5] =
    ["read-only", "read-intensive", "write-intensive", "insert-intensive", "scan-intensive"];
const SCANS: &str = "scan-intensive";
/// A scan counts as so many operations, as it reads as many pairs and more.
const SCAN_WEIGHT: u64 = 10;
/// Threads of all compute servers; the last is the paper's most, of which its text tells ratios.
const THREADS: [usize; 4] = [4, 36, 72, 144];
const MOST: usize = 144;
/// 400,000 keys: a table of the paper's shape that loads within a second.
pub(super) const SCALE: f64 = 0.002;

/// Figure 6: zipfian keys.
pub(super) fn skewed(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dex;
    let zipfian = RequestDistribution::Zipfian { theta: paper.setup.zipf_theta };
    let runs = Runs::begin(repro, report, &paper, zipfian);
    for name in WORKLOADS {
        let chart = runs.over_threads(report, name)?;
        for (other, gain) in chart.gains(DEX, &MOST.to_string()) {
            let told = paper.fig6.get(name).and_then(|by| by.get(&other)).copied();
            let case = format!("{name}, dex over {other}");
            report.gain(&case, "throughput, ratio", told, gain, "");
        }
        for (other, told) in paper.fig6.get(name).into_iter().flatten() {
            if driver::engine(other).is_none() {
                let case = format!("{name}, dex over {other}");
                let why = driver::no_engine(other);
                report.missing(&case, "throughput, ratio", Some(*told), &why);
            }
        }
        report.charts.push(chart);
    }
    report.note(
        "The paper's text has no ratios for the insert-intensive workload: \"similar trend as write-intensive\".",
    );
    Ok(())
}

/// Figure 7: uniform keys, and twice the cache.
pub(super) fn uniform(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dex;
    let mut runs = Runs::begin(repro, report, &paper, RequestDistribution::Uniform);
    for name in WORKLOADS {
        let chart = runs.over_threads(report, name)?;
        let at = MOST.to_string();
        let gains = chart.gains(DEX, &at);
        for (other, gain) in &gains {
            let told = (other == P_SHERMAN).then_some(paper.fig7.over_p_sherman);
            report.row(&format!("{name}, dex over {other}"), "throughput, ratio", told, *gain, "");
        }
        if driver::engine(P_SHERMAN).is_none() {
            let (case, why) =
                (format!("{name}, dex over {P_SHERMAN}"), driver::no_engine(P_SHERMAN));
            let told = Some(paper.fig7.over_p_sherman);
            report.missing(&case, "throughput, ratio", told, &why);
        }
        let others = gains.iter().filter(|(other, _)| other != P_SHERMAN);
        let is_ahead = others.map(|(_, gain)| *gain).all(|gain| gain >= 1.0);
        report.bar(format!("{name}: dex is not behind SMART and P-SMART"), is_ahead);
        report.charts.push(chart);
    }
    let name = WORKLOADS[0];
    let usual = driver::mops(&runs.measure(Engine::Dex, name, MOST)?);
    runs.driver.cluster.cache_bytes *= 2;
    let twice = driver::mops(&runs.measure(Engine::Dex, name, MOST)?);
    let case = format!("{name}, dex with 512 MiB over 256 MiB");
    report.gain(&case, "throughput, ratio", Some(paper.fig7.gain_of_512_mib), twice / usual, "");
    report.note(
        "The paper's text says \"about\" P-Sherman, and ahead of the others by less than skewed.",
    );
    Ok(())
}

/// Runs of one distribution.
struct Runs<'a> {
    driver: Driver<'a>,
    request: RequestDistribution,
    local_ns: u64,
}

impl<'a> Runs<'a> {
    fn begin(
        repro: &Repro<'a>,
        report: &mut ReproReport,
        paper: &DexPaper,
        request: RequestDistribution,
    ) -> Self {
        let driver = Driver::begin(repro, report, &paper.source, PaperCluster::of(&paper.setup));
        let local_ns = paper.setup.cached_page_access_ns;
        report.set("distribution", request.to_string());
        report.set("local_ns", local_ns);
        report.set("admission", Admission::LAZY.to_string());
        Runs { driver, request, local_ns }
    }

    /// Throughput of every system of the paper that this build has.
    fn over_threads(&self, report: &mut ReproReport, name: &str) -> Result<ReproChart, ReproError> {
        let mut chart = ReproChart::lines(name, "threads", "Mops");
        for threads in THREADS {
            for engine in SYSTEMS.into_iter().filter_map(driver::engine) {
                let case = format!("{name}, {threads} threads, {engine}");
                let measured = self.measure(engine, name, threads)?;
                let mops = driver::mops(&measured);
                report.row(&case, "Mops", None, mops, "");
                for (quantity, of) in [READS, VERBS] {
                    report.row(&case, quantity, None, of(&measured), "");
                }
                chart.add(engine.name(), &threads.to_string(), mops);
            }
        }
        Ok(chart)
    }

    fn measure(&self, engine: Engine, name: &str, threads: usize) -> Result<Report, ReproError> {
        let mut workload = driver::workload(name)?;
        workload.request = self.request;
        let config = self.driver.case(engine, &KeySpec::U64(KeyOrder::Hashed), workload);
        let weight = if name == SCANS { SCAN_WEIGHT } else { 1 };
        // Fewer clients measure for as long.
        let share = |ops: u64| ops * threads as u64 / MOST as u64;
        let mut config = BenchConfig {
            clients: threads,
            threads,
            local_ns: self.local_ns,
            ops: share(config.ops).max(threads as u64 * SCAN_WEIGHT / weight),
            ..config
        };
        if engine.name() == DEX {
            config.settings.set("admission", &Admission::LAZY.to_string());
        }
        self.driver.measure(&config)
    }
}
