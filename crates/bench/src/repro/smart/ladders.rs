//! Ladders: the techniques one after the other, as settings by name (Figures 15 to 17).

use super::{
    ART, ReproOptions, SMART, begin,
    driver::{self, Curves, Step},
    error::ReproError,
    report::{ChartKind, ReproReport},
};
use crate::{keys::KeySpec, run::Progress};

/// A step of the ladder, the technique's name in the paper, and the workload that shows it.
struct Factor {
    step: Step,
    technique: Option<(&'static str, &'static str)>,
}

const PATHS: (&str, &str) = ("node_locks", "path");
const FREE: (&str, &str) = ("node_locks", "off");
const COARSE: (&str, &str) = ("types", "4-16-48-256");
const FINE: (&str, &str) = ("types", "fine");
const REPLACED: (&str, &str) = ("leaf", "replaced");
const IN_PLACE: (&str, &str) = ("leaf", "in-place");
const TABLE: (&str, &str) = ("lock", "table");
const REAR: (&str, &str) = ("lock", "rear");
const ALONE: (&str, &str) = ("read_delegation", "off");
const DELEGATED: (&str, &str) = ("read_delegation", "strict");
const SINGLE: (&str, &str) = ("write_combining", "false");
const COMBINED: (&str, &str) = ("write_combining", "true");
const HASHED: (&str, &str) = ("cache_index", "hash");
const RADIX: (&str, &str) = ("cache_index", "radix");

const FACTORS: [Factor; 7] = [
    Factor { step: Step { name: "plain ART", engine: ART, set: &[PATHS] }, technique: None },
    Factor {
        step: Step {
            name: "all off",
            engine: SMART,
            set: &[PATHS, COARSE, REPLACED, ALONE, SINGLE],
        },
        technique: None,
    },
    Factor {
        step: Step {
            name: "+ lock-free nodes",
            engine: SMART,
            set: &[FREE, FINE, REPLACED, ALONE, SINGLE],
        },
        technique: Some((LOCK_FREE, LOAD)),
    },
    Factor {
        step: Step {
            name: "+ in-place leaves",
            engine: SMART,
            set: &[FREE, FINE, IN_PLACE, TABLE, ALONE, SINGLE],
        },
        technique: Some(("in-place leaves", "ycsb-b")),
    },
    Factor {
        step: Step {
            name: "+ rear lock",
            engine: SMART,
            set: &[FREE, FINE, IN_PLACE, REAR, ALONE, SINGLE],
        },
        technique: Some(("rear lock", "ycsb-a")),
    },
    Factor {
        step: Step {
            name: "+ read delegation",
            engine: SMART,
            set: &[FREE, FINE, IN_PLACE, REAR, DELEGATED, SINGLE],
        },
        technique: Some(("read delegation", "ycsb-c")),
    },
    Factor {
        step: Step {
            name: "+ write combining",
            engine: SMART,
            set: &[FREE, FINE, IN_PLACE, REAR, DELEGATED, COMBINED],
        },
        technique: Some(("write combining", "ycsb-a")),
    },
];

/// The engine as it comes, whatever settings a build has.
const DEFAULT: Step = Step { name: "by default", engine: SMART, set: &[] };

/// The technique that takes the node locks away.
const LOCK_FREE: &str = "lock-free nodes";
const LOAD: &str = "load";
const WORKLOADS: [&str; 4] = [LOAD, "ycsb-a", "ycsb-b", "ycsb-c"];

/// Figure 15.
pub(super) fn factors(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "throughput as the techniques come together";
    let (mut report, driver, paper) = begin("smart-factors", title, options, progress)?;
    for name in WORKLOADS {
        let title = format!("throughput by technique, {name}");
        let mut chart = Curves::new(ChartKind::Bars, &title, "technique", "Mops");
        let default = Factor { step: DEFAULT, technique: None };
        let mut before: Option<f64> = None;
        for Factor { step, technique } in FACTORS.iter().chain([&default]) {
            chart.place(step.name);
            let case = format!("{name}, {}", step.name);
            let told = technique.filter(|(_, shown)| *shown == name);
            let told = told.and_then(|(technique, _)| paper.factors.get(technique)).copied();
            let quantity = "gain over the step before";
            let (engine, settings) = match step.find() {
                Ok(found) => found,
                Err(why) => {
                    report.missing(&case, "Mops", None, &why);
                    if told.is_some() {
                        report.missing(&case, quantity, told, &why);
                    }
                    before = None;
                    continue;
                }
            };
            let mut config = if name == LOAD {
                let uniform = crate::distribution::RequestDistribution::Uniform;
                let mix = [(crate::workload::OpKind::Insert, 1.0)];
                let workload = driver::mixed(LOAD, &mix, uniform)?;
                driver::inserts(driver.case(engine, &KeySpec::Randint, workload))
            } else {
                driver.case(engine, &KeySpec::Randint, driver::workload(name)?)
            };
            config.settings.set_all(&settings);
            let measured = driver.measure(&config)?;
            let mops = driver::mops(&measured);
            report.row(&case, "Mops", None, mops, "");
            report.row(&case, "remote operations /op", None, driver::verbs(&measured), "");
            report.row(&case, "bytes /op", None, driver::bytes(&measured), "");
            report.row(&case, "p99, us", None, measured.run.latency_us.p99, "");
            chart.add(SMART, step.name, mops);
            let leaves_locks = technique.is_some_and(|(name, _)| name == LOCK_FREE);
            let why = if leaves_locks { driver::PATH_LOCKS } else { driver::LOCKS_DIFFER };
            match (before, technique) {
                (Some(before), Some(_)) => report.row(&case, quantity, told, mops / before, why),
                (None, Some(_)) if told.is_some() => {
                    report.missing(&case, quantity, told, "the step before is missing");
                }
                _ => {}
            }
            before = Some(mops);
        }
        chart.finish(&mut report);
    }
    report.notes.push(
        "The paper's gains are the most that it tells, each with the workload that shows it best; gains of other \
         workloads stand without."
            .to_owned(),
    );
    Ok(report)
}

/// The kinds of locks of Figure 16.
const LOCKS: [Step; 3] = [
    Step { name: "lock table (HOCL)", engine: SMART, set: &[IN_PLACE, TABLE, ALONE, SINGLE] },
    Step { name: "rear lock (E-HOCL)", engine: SMART, set: &[IN_PLACE, REAR, ALONE, SINGLE] },
    Step {
        name: "rear lock, delegation and combining (RDWC)",
        engine: SMART,
        set: &[IN_PLACE, REAR, DELEGATED, COMBINED],
    },
];

/// Figure 16.
pub(super) fn locks(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "locks, gets and updates half and half";
    let (mut report, driver, _) = begin("smart-locks", title, options, progress)?;
    let mut chart = Curves::new(ChartKind::Bars, "throughput by lock", "lock", "Mops");
    for step in LOCKS.iter().chain([&DEFAULT]) {
        chart.place(step.name);
        let (engine, settings) = match step.find() {
            Ok(found) => found,
            Err(why) => {
                report.missing(step.name, "Mops", None, &why);
                continue;
            }
        };
        let mut config = driver.case(engine, &KeySpec::Randint, driver::workload("ycsb-a")?);
        config.settings.set_all(&settings);
        let measured = driver.measure(&config)?;
        let update = driver::kind(&measured, crate::workload::OpKind::Update);
        report.row(step.name, "Mops", None, driver::mops(&measured), "");
        report.row(step.name, "remote operations /op", None, driver::verbs(&measured), "");
        report.row(step.name, "atomics /update", None, update.per_op.atomics, "");
        report.row(step.name, "round trips /update", None, update.per_op.round_trips, "");
        report.row(step.name, "p99, us", None, measured.run.latency_us.p99, "");
        chart.add(SMART, step.name, driver::mops(&measured));
    }
    chart.finish(&mut report);
    report.notes.push(
        "The paper gives bars and no numbers. An update that finds a lock held tries again: atomics above one \
         an update are retries."
            .to_owned(),
    );
    Ok(report)
}

/// The caches of Figure 17.
const CACHES: [Step; 4] = [
    Step { name: "base", engine: SMART, set: &[("types", "whole"), HASHED] },
    Step { name: "+ homogeneous nodes", engine: SMART, set: &[FINE, HASHED] },
    Step { name: "+ radix index", engine: SMART, set: &[FINE, RADIX] },
    DEFAULT,
];
/// Caches of each compute server, MiB at scale 1.
const CACHES_MIB: [u64; 4] = [150, 200, 250, 300];

/// Figure 17.
pub(super) fn caches(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "gets of email keys over the size of the cache";
    let (mut report, driver, _) = begin("smart-cache", title, options, progress)?;
    let chart = |title, y| Curves::new(ChartKind::Lines, title, "MiB of cache at scale 1", y);
    let mut mops = chart("throughput, email", "Mops");
    let mut reads = chart("READs of a get, email", "READs");
    for step in &CACHES {
        let (engine, settings) = match step.find() {
            Ok(found) => found,
            Err(why) => {
                report.missing(step.name, "Mops", None, &why);
                continue;
            }
        };
        for mib in CACHES_MIB {
            let mut config = driver.case(engine, &KeySpec::Email, driver::workload("ycsb-c")?);
            config.settings.set_all(&settings);
            let bytes = driver.cache_bytes(mib << 20, driver.cluster.clients);
            config.settings.set(farleaf_index::knobs::CACHE, &bytes.to_string());
            let measured = driver.measure(&config)?;
            let (case, at) = (format!("{mib} MiB, {}", step.name), mib.to_string());
            report.row(&case, "Mops", None, driver::mops(&measured), "");
            report.row(&case, "READs /op", None, measured.run.per_op.reads, "");
            report.row(&case, "bytes /op", None, driver::bytes(&measured), "");
            mops.add(step.name, &at, driver::mops(&measured));
            reads.add(step.name, &at, measured.run.per_op.reads);
        }
    }
    mops.finish(&mut report);
    reads.finish(&mut report);
    report.notes.push("The paper gives curves and no numbers. The email keys are made.".to_owned());
    Ok(report)
}
