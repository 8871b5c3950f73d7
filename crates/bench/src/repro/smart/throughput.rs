//! Throughput: YCSB over clients, every engine (Figure 11).

use super::{
    ReproOptions, SHERMAN, SMART, begin,
    driver::{self, Curves, Driver},
    error::ReproError,
    gains,
    report::{ChartKind, ReproReport},
};
use crate::{
    config::BenchConfig, distribution::RequestDistribution, keys::KeySpec, report::Report,
    run::Progress, workload::OpKind,
};

const LOAD: &str = "load";
const WORKLOADS: [&str; 5] = [LOAD, "ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d"];
/// Workloads that run with fewer clients as well, up to the paper's most.
const SWEPT: [&str; 2] = ["ycsb-a", "ycsb-c"];
/// Clients of each compute server.
const EACH: [usize; 4] = [2, 8, 24, 48];
/// Clients of each compute server in the other figures.
const USUAL: usize = 24;

/// Figure 11.
pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "throughput and latency of YCSB's workloads over clients";
    let (mut report, driver, paper) = begin("smart-throughput", title, options, progress)?;
    let mut bars = Curves::new(ChartKind::Bars, "384 clients, randint", "workload", "Mops");
    for name in WORKLOADS {
        let title = format!("{name}, randint");
        let mut lines =
            Curves::new(ChartKind::Lines, &title, "clients of each compute server", "Mops");
        let swept = SWEPT.contains(&name);
        for each in EACH.into_iter().filter(|each| swept || *each == USUAL) {
            for engine in driver::engines() {
                let measured = measure(&driver, engine, name, each)?;
                let case = format!("{name}, 16 x {each} clients, {engine}");
                let (mops, latency) = (driver::mops(&measured), measured.run.latency_us);
                report.row(&case, "Mops", None, mops, "");
                report.row(&case, "p50, us", None, latency.p50, "");
                report.row(&case, "p99, us", None, latency.p99, "");
                report.row(&case, "remote operations /op", None, driver::verbs(&measured), "");
                lines.add(engine.name(), &each.to_string(), mops);
                if each == USUAL {
                    bars.add(engine.name(), name, mops);
                }
            }
        }
        for (other, gain) in gains(&bars, name) {
            let told = paper.over_sherman.get(name).filter(|_| other == SHERMAN).copied();
            let why = driver::LOCKS_DIFFER;
            let case = format!("{name}, {SMART} over {other}");
            report.row(&case, "throughput, ratio", told, gain, why);
        }
        if let (None, Some(told)) = (driver::engine(SHERMAN), paper.over_sherman.get(name)) {
            let case = format!("{name}, {SMART} over {SHERMAN}");
            let why = driver::no_engine(SHERMAN);
            report.missing(&case, "throughput, ratio", Some(*told), &why);
        }
        if swept {
            lines.finish(&mut report);
        }
    }
    bars.finish(&mut report);
    report.notes.push(
        "Load is inserts into a table that holds half of the keys. The paper gives the most over Sherman: 6.1 \
         times with half updates, 2.8 times with gets."
            .to_owned(),
    );
    Ok(report)
}

fn measure(
    driver: &Driver<'_>,
    engine: farleaf_engines::Engine,
    name: &str,
    each: usize,
) -> Result<Report, ReproError> {
    let clients = each * driver.cluster.compute_servers;
    let keys = &KeySpec::Randint;
    let config = if name == LOAD {
        let uniform = RequestDistribution::Uniform;
        let workload = driver::mixed(LOAD, &[(OpKind::Insert, 1.0)], uniform)?;
        driver::inserts(driver.case(engine, keys, workload))
    } else {
        driver.case(engine, keys, driver::workload(name)?)
    };
    let ops = config.ops.max(clients as u64);
    driver.measure(&BenchConfig { clients, threads: clients, ops, ..config })
}
