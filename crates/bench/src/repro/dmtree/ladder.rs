//! Ladder: the techniques one after the other, from FP-B+-tree to DMTree (Figure 16).

use farleaf_engines::Engine;

use super::{
    Repro,
    driver::{self, Step},
    error::ReproError,
    report::{ReproChart, ReproReport},
    setup::{self, KEYS, Micro, PaperRuns, THREADS, with_range},
};
use crate::distribution::RequestDistribution;

/// A step, and the operations that an update does on the memory server in it.
struct Rung {
    step: Step,
    update_verbs: f64,
}

const RUNGS: [Rung; 4] = [
    Rung {
        step: Step {
            name: "base",
            engine: Engine::FpTree,
            set: &[("filter", "false"), ("delegate", "false")],
        },
        update_verbs: 5.0,
    },
    Rung { step: Step { name: "RDMA Opt", engine: Engine::FpTree, set: &[] }, update_verbs: 5.0 },
    Rung {
        step: Step { name: "Cache", engine: Engine::DmTree, set: &[("locks", "memory")] },
        update_verbs: 4.0,
    },
    Rung { step: Step { name: "Concur", engine: Engine::DmTree, set: &[] }, update_verbs: 2.0 },
];
/// The most by which an update may differ from its step: READs of other keys with the same fingerprint,
/// and maintenance.
const VERBS_WITHIN: f64 = 0.4;

const NO_LOCKS: &str =
    "the engine has no shape `locks` yet: tables and locks move to compute servers together";

/// Figure 16.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let runs = PaperRuns::begin(repro, report)?;
    for micro in Micro::ALL {
        let name = micro.name();
        let title = format!("throughput by technique, {name}");
        let mut chart = ReproChart::bars(&title, "technique", "Mops");
        let mut before: Option<(&str, f64)> = None;
        let mut skipped: Option<&str> = None;
        for Rung { step, update_verbs } in &RUNGS {
            chart.place(step.name);
            let case = format!("{name}, + {}", step.name);
            let told = runs.paper.ladder.get(step.name).and_then(|by| by.get(name)).copied();
            let quantity = with_range("gain over the step before", told);
            if step.engine.split(&setup::settings(step.set)).is_err() {
                report.missing(&case, &quantity, told.map(|it| it[0]), NO_LOCKS);
                skipped = Some(step.name);
                continue;
            }
            let workload = micro.workload(RequestDistribution::Uniform)?;
            let config = step.on(runs.case(step.engine, &KEYS, workload, THREADS)?);
            let measured = runs.record(report, &case, &config)?;
            let mops = driver::mops(&measured);
            chart.add("DMTree", step.name, mops);
            match (before, skipped.take()) {
                (Some((_, base)), None) => {
                    let gain = mops / base;
                    setup::nearest(report, &case, "gain over the step before", told, gain);
                }
                (Some((last, base)), Some(lacking)) => {
                    report.missing(&case, &quantity, told.map(|it| it[0]), NO_LOCKS);
                    // A search takes no lock: all of its gain is the missing step's.
                    let of_both = runs.paper.ladder.get(lacking).and_then(|by| by.get(name));
                    let of_both = of_both.filter(|_| micro == Micro::Search).copied();
                    let case = format!("{name}, + {lacking} + {}", step.name);
                    let quantity = format!("gain over {last}");
                    setup::nearest(report, &case, &quantity, of_both, mops / base);
                }
                (None, _) => {}
            }
            before = Some((step.name, mops));
            if micro == Micro::Update {
                let verbs = driver::verbs(&driver::on_memory(&measured));
                let what =
                    format!("{case}: an update is {update_verbs} operations on memory servers");
                report.check(what, Some((verbs - update_verbs).abs() <= VERBS_WITHIN));
            }
        }
        report.charts.push(chart);
    }
    report.note(
        "An unlock is an operation of its own in our FP-B+-tree; the paper's writes the lock word with its table. So our \
         base does 5 operations for an update and 5 for an insert where the paper's does 4.",
    );
    Ok(())
}
