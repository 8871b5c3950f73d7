//! Skip table: its maintenance beside inserts, and the adjustment of its prefix lengths (Figures 10 and 11).

use farleaf_engines::Engine;

use super::{
    Repro,
    driver::{self, Driver, P50, Step},
    error::ReproError,
    keys, papers,
    report::{ReproChart, ReproReport},
};
use crate::{
    config::BenchConfig, distribution::RequestDistribution, report::KindReport, units::Rate,
    workload::OpKind,
};

const MAINTENANCE: [Step; 2] = [
    Step { name: "no maintenance", engine: Engine::Dart, set: &[("est_maintenance", "false")] },
    Step { name: "maintenance", engine: Engine::Dart, set: &[("est_maintenance", "true")] },
];

/// Figure 10.
pub(super) fn maintenance(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut chart = ReproChart::bars("gets and inserts half and half", "keys", "Mops");
    for (keys, spec) in keys() {
        let mut reached = [(0.0, 0.0, 0.0); MAINTENANCE.len()];
        for (step, reached) in MAINTENANCE.iter().zip(&mut reached) {
            let case = format!("{keys}, {}", step.name);
            let mix = [(OpKind::Get, 0.5), (OpKind::Insert, 0.5)];
            let latest = RequestDistribution::Latest { theta: 0.99 };
            let workload = driver::mixed("gets and inserts", &mix, latest)?;
            let config = step.on(driver::inserts(driver.case(step.engine, &spec, workload)));
            let measured = driver.measure(&config)?;
            let [get, insert] =
                [OpKind::Get, OpKind::Insert].map(|kind| driver::kind(&measured, kind));
            let median = |it: KindReport| it.latency_us.unwrap_or_default().p50;
            let share = driver::maintenance(&measured) / measured.run.per_op.round_trips;
            report.row(&case, "Mops", None, driver::mops(&measured), "");
            report.row(&case, "round trips /get", None, get.per_op.round_trips, "");
            report.row(&case, "p50 of a get, us", None, median(get), "");
            report.row(&case, "round trips /insert", None, insert.per_op.round_trips, "");
            report.row(&case, "p50 of an insert, us", None, median(insert), "");
            report.row(&case, "maintenance, share of round trips", None, share, "");
            chart.add(step.name, keys, driver::mops(&measured));
            *reached = (median(get), median(insert), share);
        }
        let case = format!("{keys}, maintenance over none");
        let [(get_none, insert_none, share_none), (get, insert, share)] = reached;
        let told = (keys == "randint").then_some(paper.maintenance.search_gain);
        report.gain(&case, "gets, ratio of speed", told, get_none / get, "");
        report.row(&case, "inserts, ratio of speed", Some(1.0), insert_none / insert, "");
        let told = Some(paper.maintenance.trips_share);
        report.row(&case, "further round trips, share", told, share - share_none, "");
    }
    report.charts.push(chart);
    Ok(())
}

/// Operations per second of all clients: about a tenth of what they can do, so that virtual time passes.
const RATE: u64 = 30_000;
/// Clients, one for each compute server.
const CLIENTS: usize = 3;
const SECOND: u64 = RATE;

/// Length of a moment of the measurement, in tenths of a second.
const DURING: u64 = 5;

/// A moment of the measurement: its name, setting, and the time before it, in tenths of a second.
struct Moment {
    step: Step,
    before: u64,
}

/// The paper's lengths before an adjustment. Else a bulk load would choose others.
const POWERS: &str = "1+2+4+8+16+32";

const MOMENTS: [Moment; 3] = [
    Moment {
        step: Step {
            name: "before",
            engine: Engine::Dart,
            set: &[("prefixes", POWERS), ("adjust_s", "0"), ("freq_sample", "8")],
        },
        before: 5,
    },
    Moment {
        step: Step {
            name: "during",
            engine: Engine::Dart,
            set: &[("prefixes", POWERS), ("adjust_s", "1"), ("freq_sample", "8")],
        },
        before: 9,
    },
    Moment {
        step: Step {
            name: "after",
            engine: Engine::Dart,
            set: &[("prefixes", POWERS), ("adjust_s", "1"), ("freq_sample", "8")],
        },
        before: 30,
    },
];

/// Figure 11.
pub(super) fn adjustment(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    report.set("rate_ops_per_s", RATE);
    report.set("clients", CLIENTS);
    let mut chart = ReproChart::lines("median latency of a get", "moment", "us");
    for (keys, spec) in keys() {
        let mut reached = [0.0; MOMENTS.len()];
        for (moment, reached) in MOMENTS.iter().zip(&mut reached) {
            let case = format!("{keys}, {}", moment.step.name);
            let config = moment.step.on(driver.named(moment.step.engine, &spec, "ycsb-c")?);
            let measured = driver.measure(&BenchConfig {
                clients: CLIENTS,
                threads: CLIENTS,
                warmup_ops: SECOND * moment.before / 10,
                ops: SECOND * DURING / 10,
                rate: Rate::new(RATE),
                ..config
            })?;
            let cost = driver::kind(&measured, OpKind::Get).per_op;
            let p50 = measured.run.latency_us.p50;
            report.row(&case, "round trips /op", None, cost.round_trips, "");
            report.row(&case, "bytes /op", None, cost.bytes_read, "");
            report.row(&case, P50.0, None, p50, "");
            chart.add(keys, moment.step.name, p50);
            *reached = p50;
        }
        let [before, during, after] = reached;
        let case = format!("{keys}, after over before");
        let told = (keys == "randint").then_some(paper.adjustment.gain);
        report.gain(&case, "speed, ratio", told, before / after, "");
        let cost = (1.0 - before / during).max(0.0);
        let told = Some(paper.adjustment.cost);
        let why = "the paper gives a bound";
        report.row(&format!("{keys}, during"), "loss of speed, share", told, cost, why);
    }
    report.charts.push(chart);
    report.note(
        "Three clients at a rate at which virtual time passes, so speed is that of one operation: the inverse \
         of its latency.",
    );
    Ok(())
}
