//! Ablation: the gain of each technique, one after the other (Figure 8).

use farleaf_engines::Engine;

use super::{
    Repro,
    driver::{self, BYTES, Driver, MOPS, Step, TRIPS},
    error::ReproError,
    keys, papers,
    report::{ReproChart, ReproReport},
};

const WORKLOADS: [&str; 2] = ["ycsb-a", "ycsb-c"];
/// The engine that the paper begins from, with node locks and without, and then the techniques one after the other.
const STEPS: [Step; 6] = [
    Step {
        name: "plain ART, locked",
        engine: Engine::Art,
        set: &[("node_locks", "node"), ("cache", "0")],
    },
    Step { name: "plain ART", engine: Engine::Art, set: &[("node_locks", "off"), ("cache", "0")] },
    dart("whole nodes", &[("buckets", "false"), ("compound_pointers", "false"), ("est", "false")]),
    dart(
        "+ hashed nodes",
        &[("buckets", "true"), ("compound_pointers", "false"), ("est", "false")],
    ),
    dart("+ compound pointers", &[("buckets", "true"), ("est", "false")]),
    dart("+ skip table", &[("buckets", "true"), ("est", "true")]),
];
const LOCKED: usize = 0;
const ART: usize = 1;
const HASHED: usize = 3;
const POINTERS: usize = 4;
const TABLE: usize = 5;

/// A step of DART.
const fn dart(name: &'static str, set: &'static [(&'static str, &'static str)]) -> Step {
    Step { name, engine: Engine::Dart, set }
}

/// Throughput and costs of a step.
struct Reached {
    mops: f64,
    trips: f64,
    bytes: f64,
}

/// Figure 8.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    for (keys, spec) in keys() {
        let title = format!("throughput by technique, {keys}");
        let mut chart = ReproChart::bars(&title, "technique", "Mops");
        for name in WORKLOADS {
            let mut reached = Vec::new();
            for step in &STEPS {
                chart.place(step.name);
                let case = format!("{name}, {keys}, {}", step.name);
                let config = step.on(driver.named(step.engine, &spec, name)?);
                let measured = driver.record(report, &case, &config, &[MOPS, TRIPS, BYTES])?;
                let mops = driver::mops(&measured);
                let trips = measured.run.per_op.round_trips;
                let bytes = driver::bytes(&measured);
                chart.add(name, step.name, mops);
                reached.push(Reached { mops, trips, bytes });
            }
            // The paper gives the most that a technique gains: pointers with writes, the others with gets.
            let writes = name == "ycsb-a";
            let told = &paper.ablation;
            let over = |step: usize, base: usize| reached[step].mops / reached[base].mops;
            let case = |step: usize| format!("{name}, {keys}, {}", STEPS[step].name);
            let hashed = (!writes).then_some(told.hashed_nodes);
            report.gain(&case(HASHED), "gain over plain ART", hashed, over(HASHED, ART), "");
            let pointers = over(POINTERS, HASHED);
            report.gain(&case(POINTERS), "gain over the step before", None, pointers, "");
            // A header that is changed with a slot needs a lock, so the paper's step before has locks.
            let told_pointers = writes.then_some(told.compound_pointers);
            let unlocked = pointers * over(ART, LOCKED);
            let what = "gain over the step before, times that of plain ART without locks";
            report.gain(&case(POINTERS), what, told_pointers, unlocked, "");
            let table = (!writes).then_some(told.skip_table);
            report.gain(
                &case(TABLE),
                "gain over the step before",
                table,
                over(TABLE, POINTERS),
                "",
            );
            if writes {
                continue;
            }
            let bytes = told.hashed_nodes_bytes.get(keys).map(|[low, high]| (low + high) / 2.0);
            let ratio = reached[ART].bytes / reached[HASHED].bytes;
            report.row(&case(HASHED), "bytes of plain ART over its own", bytes, ratio, "");
            let trips = told.skip_table_trips.get(keys).copied();
            let saved = reached[POINTERS].trips - reached[TABLE].trips;
            report.row(&case(TABLE), "round trips saved", trips, saved, "");
        }
        report.charts.push(chart);
    }
    Ok(())
}
