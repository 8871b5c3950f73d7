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
/// The engine that the paper begins from, and then the techniques one after the other.
const STEPS: [Step; 5] = [
    Step { name: "plain ART", engine: Engine::Art, set: &[("node_locks", "off"), ("cache", "0")] },
    dart("whole nodes", &[("buckets", "false"), ("compound_pointers", "false"), ("est", "false")]),
    dart(
        "+ hashed nodes",
        &[("buckets", "true"), ("compound_pointers", "false"), ("est", "false")],
    ),
    dart("+ compound pointers", &[("buckets", "true"), ("est", "false")]),
    dart("+ skip table", &[("buckets", "true"), ("est", "true")]),
];
const HASHED: usize = 2;
const POINTERS: usize = 3;
const TABLE: usize = 4;

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
            let around = |step: usize| (&reached[step - 1], &reached[step]);
            // The paper gives the most that a technique gains: pointers with writes, the others with gets.
            let writes = name == "ycsb-a";
            let told = &paper.ablation;
            let hashed = "a node read whole has the size of its type here, and room for 256 children in the paper";
            let pointers = "our step before has no locks, and its header READ goes out with the bucket's: it saves \
                            bytes and READs, and no round trip";
            let table = "a smaller tree has fewer levels to skip, and the email keys are made";
            for (step, told, why) in [
                (HASHED, (!writes).then_some(told.hashed_nodes), hashed),
                (POINTERS, writes.then_some(told.compound_pointers), pointers),
                (TABLE, (!writes).then_some(told.skip_table), table),
            ] {
                let case = format!("{name}, {keys}, {}", STEPS[step].name);
                let (before, after) = around(step);
                let gain = after.mops / before.mops;
                report.row(&case, "gain over the step before", told, gain, why);
            }
            if writes {
                continue;
            }
            let bytes = told.hashed_nodes_bytes.get(keys).map(|[low, high]| (low + high) / 2.0);
            let case = format!("{name}, {keys}, {}", STEPS[HASHED].name);
            let (before, after) = around(HASHED);
            let ratio = before.bytes / after.bytes;
            report.row(&case, "bytes before over after", bytes, ratio, hashed);
            let trips = told.skip_table_trips.get(keys).copied();
            let case = format!("{name}, {keys}, {}", STEPS[TABLE].name);
            let (before, after) = around(TABLE);
            report.row(&case, "round trips saved", trips, before.trips - after.trips, table);
        }
        report.charts.push(chart);
    }
    Ok(())
}
