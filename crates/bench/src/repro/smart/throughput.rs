//! Throughput: YCSB over clients, every engine (Figure 11).

use super::{
    Repro, SHERMAN, SMART,
    driver::{self, Driver, LOAD, MOPS, P50, P99, VERBS},
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
};
use crate::{config::BenchConfig, keys::KeySpec};

const WORKLOADS: [&str; 5] = [LOAD, "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d"];
/// Workloads that run with fewer clients as well, up to the paper's most.
const SWEPT: [&str; 2] = ["ycsb-a", "ycsb-c"];
/// Clients of each compute server.
const EACH: [usize; 4] = [2, 8, 24, 48];
/// Clients of each compute server in the other figures.
const USUAL: usize = 24;

/// Figure 11.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.smart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut bars = ReproChart::bars("384 clients, randint", "workload", "Mops");
    for name in WORKLOADS {
        let title = format!("{name}, randint");
        let mut lines = ReproChart::lines(&title, "clients of each compute server", "Mops");
        let swept = SWEPT.contains(&name);
        for each in EACH.into_iter().filter(|each| swept || *each == USUAL) {
            for engine in driver::engines() {
                let case = format!("{name}, 16 x {each} clients, {engine}");
                let config = driver.named(engine, &KeySpec::Randint, name)?;
                let clients = each * driver.cluster.compute_servers;
                let ops = config.ops.max(clients as u64);
                let config = BenchConfig { clients, threads: clients, ops, ..config };
                let metrics = [MOPS, P50, P99, VERBS];
                let mops = driver::mops(&driver.record(report, &case, &config, &metrics)?);
                lines.add(engine.name(), &each.to_string(), mops);
                if each == USUAL {
                    bars.add(engine.name(), name, mops);
                }
            }
        }
        for (other, gain) in bars.gains(SMART, name) {
            let told = paper.over_sherman.get(name).filter(|_| other == SHERMAN).copied();
            let why = driver::LOCKS_DIFFER;
            let case = format!("{name}, {SMART} over {other}");
            report.gain(&case, "throughput, ratio", told, gain, why);
        }
        if let (None, Some(told)) = (driver::engine(SHERMAN), paper.over_sherman.get(name)) {
            let case = format!("{name}, {SMART} over {SHERMAN}");
            let why = driver::no_engine(SHERMAN);
            report.missing(&case, "throughput, ratio", Some(*told), &why);
        }
        if swept {
            report.charts.push(lines);
        }
    }
    report.charts.push(bars);
    report.note(
        "Load is inserts into a table that holds half of the keys. The paper gives the most over Sherman: 6.1 \
         times with half updates, 2.8 times with gets.",
    );
    Ok(())
}
