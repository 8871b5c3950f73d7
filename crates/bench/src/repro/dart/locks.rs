//! Locks: writes of plain ART with node locks and without (Table 1).

use farleaf_engines::Engine;

use super::{
    ART, Repro,
    driver::{self, Driver, Step, VERBS},
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
};
use crate::{
    config::BenchConfig, distribution::RequestDistribution, keys::KeySpec, report::Report,
    workload::OpKind,
};

/// The two variants of plain ART, without a cache as in the paper: a lock of the node that a write changes, and none.
const STEPS: [Step; 2] = [
    Step { name: "locked", engine: Engine::Art, set: &[("node_locks", "node"), ("cache", "0")] },
    Step { name: "lock-free", engine: Engine::Art, set: &[("node_locks", "off"), ("cache", "0")] },
];

/// Table 1.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut chart = ReproChart::bars("updates by 168 clients", "keys drawn", "Mops");
    for (name, request) in [
        ("zipfian", RequestDistribution::Zipfian { theta: 0.99 }),
        ("uniform", RequestDistribution::Uniform),
    ] {
        let Some(told) = paper.locks.get(name) else { continue };
        let published = [(told.locked_mops, told.locked_us), (told.free_mops, told.free_us)];
        let mut art = [(0.0, 0.0); STEPS.len()];
        for (step, reached) in STEPS.iter().zip(&mut art) {
            let config = step.on(updates(&driver, step.engine, request)?);
            let (all, one) = measure(&driver, config)?;
            add(report, &format!("{name}, art {}", step.name), &all, &one);
            chart.add(&format!("art {}", step.name), name, driver::mops(&all));
            *reached = (driver::mops(&all), one.run.latency_us.p50);
        }
        let case = format!("{name}, art lock-free over locked");
        let why = driver::LOCKS_DIFFER;
        let ratios = |[locked, free]: [(f64, f64); 2]| (free.0 / locked.0, locked.1 / free.1);
        let (paper, ours) = (ratios(published), ratios(art));
        report.row(&case, "throughput, ratio", Some(paper.0), ours.0, why);
        report.row(&case, "latency, ratio", Some(paper.1), ours.1, why);
        for engine in driver::engines().filter(|engine| engine.name() != ART) {
            let (all, one) = measure(&driver, updates(&driver, engine, request)?)?;
            add(report, &format!("{name}, {engine}"), &all, &one);
            chart.add(engine.name(), name, driver::mops(&all));
        }
    }
    report.charts.push(chart);
    Ok(())
}

fn updates(
    driver: &Driver<'_>,
    engine: Engine,
    request: RequestDistribution,
) -> Result<BenchConfig, ReproError> {
    let workload = driver::mixed("updates", &[(OpKind::Update, 1.0)], request)?;
    Ok(driver.case(engine, &KeySpec::Randint, workload))
}

/// With all clients, and with one.
fn measure(driver: &Driver<'_>, all: BenchConfig) -> Result<(Report, Report), ReproError> {
    let clients = all.clients as u64;
    let one = BenchConfig {
        clients: 1,
        threads: 1,
        compute_servers: 1,
        warmup_ops: all.warmup_ops / clients,
        ops: (all.ops / clients).max(100),
        ..all.clone()
    };
    Ok((driver.measure(&all)?, driver.measure(&one)?))
}

fn add(report: &mut ReproReport, case: &str, all: &Report, one: &Report) {
    report.row(case, "Mops", None, driver::mops(all), "");
    report.row(case, "p50 of one client, us", None, one.run.latency_us.p50, "");
    report.row(case, VERBS.0, None, VERBS.1(all), "");
}
