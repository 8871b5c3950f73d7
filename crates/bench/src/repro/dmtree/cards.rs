//! Cards: operations of compute servers' cards and of the memory server's in use during inserts (Figures 5 and 17).

use super::{
    DMTREE, Repro,
    driver::{self, MOPS},
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, Micro, PaperRuns, THREADS},
};
use crate::{distribution::RequestDistribution, report::Report};

const FPTREE: &str = "fptree";

/// Figure 5.
pub(super) fn baseline(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    run(repro, report, &[FPTREE])
}

/// Figure 17.
pub(super) fn both(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    run(repro, report, &[FPTREE, DMTREE])
}

fn run(
    repro: &Repro<'_>,
    report: &mut ReproReport,
    systems: &[&'static str],
) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    let title = "inserts: share of a card's operations in use";
    let mut chart = ReproChart::bars(title, "server", "share");
    for engine in systems.iter().filter_map(|name| driver::engine(name)) {
        let name = engine.name();
        let workload = Micro::Insert.workload(RequestDistribution::Uniform)?;
        let config = runs.case(engine, &KEYS, workload, THREADS)?;
        let metrics = [MOPS, setup::MEMORY_VERBS, setup::COMPUTE_VERBS];
        let measured = runs.driver.record(report, name, &config, &metrics)?;
        let [sent, served] = compute_card(&runs, &measured);
        let told = runs.paper.compute_card.get(name).copied();
        report.row(name, "share of a compute server's card, operations sent", told, sent, "");
        report.row(
            name,
            "share of a compute server's card, operations sent and served",
            None,
            sent + served,
            "",
        );
        let memory = runs.memory_card(&measured);
        for (part, share) in memory {
            let quantity = format!("share of the memory server's card, {part}");
            let told = (part == "operations").then_some(1.0);
            report.row(name, &quantity, told, share, "");
        }
        chart.add(name, "a compute server", sent);
        chart.add(name, "the memory server", memory[0].1);
    }
    report.charts.push(chart);
    report.note(
        "The figures of a compute server are averages over the six. An operation on the own region is sent and not \
         served. The paper's text says that the memory server's card is full.",
    );
    Ok(())
}

/// Shares of a compute server's card for operations that it sends, and for those that it serves to others.
fn compute_card(runs: &PaperRuns<'_>, measured: &Report) -> [f64; 2] {
    let cluster = &runs.driver.cluster;
    let rate = measured.run.phase.ops_per_s / cluster.compute_servers as f64;
    let Some(card) = cluster.card else { return [0.0; 2] };
    let share = |count: f64| count * rate / card.ops_per_s as f64;
    let served = measured.run.targets.map_or(0.0, |it| driver::verbs(&it.compute));
    [share(driver::verbs(&measured.run.per_op)), share(served)]
}
