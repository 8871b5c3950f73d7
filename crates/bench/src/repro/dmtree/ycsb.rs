//! YCSB: throughput of its six workloads (Figure 14).

use super::{
    Repro, driver,
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, PaperRuns, THREADS},
};

const WORKLOADS: [&str; 6] = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];

/// Figure 14.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let mut chart = ReproChart::bars("YCSB", "workload", "Mops");
    for name in WORKLOADS {
        for engine in driver::engines() {
            let config = runs.case(engine, &KEYS, driver::workload(name)?, THREADS)?;
            let case = format!("{name}, {engine}");
            chart.add(engine.name(), name, driver::mops(&runs.record(report, &case, &config)?));
        }
        let ranges = runs.paper.ycsb.get(name);
        let range = |other: &str| ranges.and_then(|by| by.get(other)).copied();
        let others = ranges.into_iter().flatten().map(|(other, _)| other.as_str());
        setup::ratios(report, &chart, (name, name), range, others);
    }
    report.charts.push(chart);
    report.note(
        "The paper's text gives ranges over all workloads but E; a row stands beside the nearest value of its range.",
    );
    Ok(())
}
