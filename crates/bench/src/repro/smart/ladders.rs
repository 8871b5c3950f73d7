//! Ladders: the techniques one after the other, as settings by name (Figures 15 to 17).

use farleaf_engines::Engine;

use super::{
    Repro, SMART,
    driver::{self, BYTES, Driver, LOAD, MOPS, Metric, P99, READS, Step, VERBS},
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport, is_near},
};
use crate::{
    config::BenchConfig,
    keys::KeySpec,
    report::{PerOp, Report},
    workload::OpKind,
};

/// A setting and its value; a technique and its workload.
type Pair = (&'static str, &'static str);

/// A step of the ladder, the technique's name in the paper, and the workload that shows it.
struct Factor {
    step: Step,
    technique: Option<Pair>,
}

/// A step of SMART.
const fn smart(name: &'static str, set: &'static [Pair]) -> Step {
    Step { name, engine: Engine::Smart, set }
}

/// A step of SMART with a technique more.
const fn with(name: &'static str, technique: Pair, set: &'static [Pair]) -> Factor {
    Factor { step: smart(name, set), technique: Some(technique) }
}

const PATHS: Pair = ("node_locks", "path");
const FREE: Pair = ("node_locks", "off");
const COARSE: Pair = ("types", "4-16-48-256");
const FINE: Pair = ("types", "fine");
const REPLACED: Pair = ("leaf", "replaced");
const IN_PLACE: Pair = ("leaf", "in-place");
const TABLE: Pair = ("lock", "table");
const REAR: Pair = ("lock", "rear");
/// Locks go from one task of a compute server to the next, as often as in Sherman.
const HANDED: Pair = ("hand_over", "8");
const ALONE: Pair = ("read_delegation", "off");
const DELEGATED: Pair = ("read_delegation", "strict");
const SINGLE: Pair = ("write_combining", "false");
const COMBINED: Pair = ("write_combining", "true");
const HASHED: Pair = ("cache_index", "hash");
const RADIX: Pair = ("cache_index", "radix");

const FACTORS: [Factor; 7] = [
    Factor {
        step: Step { name: "plain ART", engine: Engine::Art, set: &[PATHS] },
        technique: None,
    },
    Factor { step: smart("all off", &[PATHS, COARSE, REPLACED, ALONE, SINGLE]), technique: None },
    with("+ lock-free nodes", (LOCK_FREE, LOAD), &[FREE, FINE, REPLACED, ALONE, SINGLE]),
    with(
        "+ in-place leaves",
        ("in-place leaves", "ycsb-b"),
        &[FREE, FINE, IN_PLACE, TABLE, HANDED, ALONE, SINGLE],
    ),
    with(
        "+ rear lock",
        ("rear lock", "ycsb-a"),
        &[FREE, FINE, IN_PLACE, REAR, HANDED, ALONE, SINGLE],
    ),
    with(
        "+ read delegation",
        ("read delegation", "ycsb-c"),
        &[FREE, FINE, IN_PLACE, REAR, HANDED, DELEGATED, SINGLE],
    ),
    with(
        "+ write combining",
        (COMBINING, COMBINING_ON),
        &[FREE, FINE, IN_PLACE, REAR, HANDED, DELEGATED, COMBINED],
    ),
];

/// The engine as it comes.
const DEFAULT: Step = smart("by default", &[]);

/// The technique that takes the node locks away.
const LOCK_FREE: &str = "lock-free nodes";
/// The technique that joins changes of a key, the last of the steps, and the workload that shows it.
const COMBINING: &str = "write combining";
const COMBINING_ON: &str = "ycsb-a";
/// Clients of each compute server with which few changes wait for the hottest leaf.
const FEW: usize = 3;
const HOT_LEAF: &str = "changes of the hottest leaf take turns, which binds before this step with so many clients, and \
                        nothing else does here; with few clients the gain is the paper's";
const GAIN: &str = "gain over the step before";
const WORKLOADS: [&str; 4] = [LOAD, "ycsb-a", "ycsb-b", "ycsb-c"];

/// Figure 15.
pub(super) fn factors(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.smart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let few = gain_of_few(&driver)?;
    let few_case = format!("{COMBINING_ON}, + {COMBINING}, {FEW} clients of each compute server");
    for name in WORKLOADS {
        let title = format!("throughput by technique, {name}");
        let mut chart = ReproChart::bars(&title, "technique", "Mops");
        let default = Factor { step: DEFAULT, technique: None };
        let mut before: Option<f64> = None;
        for Factor { step, technique } in FACTORS.iter().chain([&default]) {
            chart.place(step.name);
            let case = format!("{name}, {}", step.name);
            let told = technique.filter(|(_, shown)| *shown == name);
            let told = told.and_then(|(technique, _)| paper.factors.get(technique)).copied();
            let config = step.on(driver.named(step.engine, &KeySpec::Randint, name)?);
            let metrics = [MOPS, VERBS, BYTES, P99];
            let mops = driver::mops(&driver.record(report, &case, &config, &metrics)?);
            chart.add(SMART, step.name, mops);
            if let (Some(before), Some((technique, _))) = (before, technique) {
                let why = match *technique {
                    LOCK_FREE => driver::PATH_LOCKS,
                    COMBINING if told.is_some_and(|told| is_near(told, few)) => HOT_LEAF,
                    _ => "",
                };
                report.gain(&case, GAIN, told, mops / before, why);
                if (*technique, name) == (COMBINING, COMBINING_ON) {
                    report.gain(&few_case, GAIN, told, few, "");
                }
            }
            before = Some(mops);
        }
        report.charts.push(chart);
    }
    report.note(
        "The paper's gains are the most that it tells, each with the workload that shows it best; gains of other \
         workloads stand without.",
    );
    Ok(())
}

/// The gain of write combining with [`FEW`] clients of each compute server.
fn gain_of_few(driver: &Driver<'_>) -> Result<f64, ReproError> {
    let at = FACTORS.len() - 1;
    let mops = |factor: &Factor| {
        let step = &factor.step;
        let config = step.on(driver.named(step.engine, &KeySpec::Randint, COMBINING_ON)?);
        let clients = FEW * driver.cluster.compute_servers;
        let config = BenchConfig { clients, threads: clients, ..config };
        Ok::<_, ReproError>(driver::mops(&driver.measure(&config)?))
    };
    Ok(mops(&FACTORS[at])? / mops(&FACTORS[at - 1])?)
}

/// The kinds of locks of Figure 16.
const LOCKS: [Step; 5] = [
    smart("lock table, released each time", &[IN_PLACE, TABLE, ALONE, SINGLE]),
    smart("lock table (HOCL)", &[IN_PLACE, TABLE, HANDED, ALONE, SINGLE]),
    smart("rear lock, released each time", &[IN_PLACE, REAR, ALONE, SINGLE]),
    smart("rear lock (E-HOCL)", &[IN_PLACE, REAR, HANDED, ALONE, SINGLE]),
    smart(
        "rear lock, delegation and combining (RDWC)",
        &[IN_PLACE, REAR, HANDED, DELEGATED, COMBINED],
    ),
];

const UPDATE_ATOMICS: Metric = ("atomics /update", |it| update(it).atomics);
const UPDATE_TRIPS: Metric = ("round trips /update", |it| update(it).round_trips);

fn update(report: &Report) -> PerOp {
    driver::kind(report, OpKind::Update).per_op
}

/// Figure 16.
pub(super) fn locks(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.smart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup);
    let mut chart = ReproChart::bars("throughput by lock", "lock", "Mops");
    for step in LOCKS.iter().chain([&DEFAULT]) {
        chart.place(step.name);
        let config = step.on(driver.named(step.engine, &KeySpec::Randint, "ycsb-a")?);
        let metrics = [MOPS, VERBS, UPDATE_ATOMICS, UPDATE_TRIPS, P99];
        let measured = driver.record(report, step.name, &config, &metrics)?;
        chart.add(SMART, step.name, driver::mops(&measured));
    }
    report.charts.push(chart);
    report.note(
        "The paper gives bars and no numbers. An update that finds a lock held tries again: atomics above one \
         an update are retries.",
    );
    Ok(())
}

/// The caches of Figure 17.
const CACHES: [Step; 4] = [
    smart("base", &[("types", "whole"), HASHED]),
    smart("+ homogeneous nodes", &[FINE, HASHED]),
    smart("+ radix index", &[FINE, RADIX]),
    DEFAULT,
];
/// Caches of each compute server, MiB at scale 1.
const CACHES_MIB: [u64; 4] = [150, 200, 250, 300];

/// Figure 17.
pub(super) fn caches(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.smart;
    let mut driver = Driver::begin(repro, report, &paper.source, paper.setup);
    let chart = |title, y| ReproChart::lines(title, "MiB of cache at scale 1", y);
    let mut mops = chart("throughput, email", "Mops");
    let mut reads = chart("READs of a get, email", "READs");
    for step in &CACHES {
        for mib in CACHES_MIB {
            driver.cluster.cache_bytes = mib << 20;
            let config = step.on(driver.named(step.engine, &KeySpec::Email, "ycsb-c")?);
            let (case, at) = (format!("{mib} MiB, {}", step.name), mib.to_string());
            let measured = driver.record(report, &case, &config, &[MOPS, READS, BYTES])?;
            mops.add(step.name, &at, driver::mops(&measured));
            reads.add(step.name, &at, measured.run.per_op.reads);
        }
    }
    report.charts.push(mops);
    report.charts.push(reads);
    report.note("The paper gives curves and no numbers. The email keys are made.");
    Ok(())
}
