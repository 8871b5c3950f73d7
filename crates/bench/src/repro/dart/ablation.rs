//! Ablation: the gain of each technique, one after the other (Figure 8).

use super::{
    ART, DART, Repro,
    driver::{self, BYTES, Driver, MOPS, Step, TRIPS},
    error::ReproError,
    keys, papers,
    report::{ReproChart, ReproReport},
};

const WORKLOADS: [&str; 2] = ["ycsb-a", "ycsb-c"];
/// The engine that the paper begins from, and then the techniques one after the other.
const STEPS: [Step; 5] = [
    Step { name: "plain ART", engine: ART, set: &[("node_locks", "off"), ("cache", "0")] },
    Step {
        name: "whole nodes",
        engine: DART,
        set: &[("buckets", "false"), ("compound_pointers", "false"), ("est", "false")],
    },
    Step {
        name: "+ hashed nodes",
        engine: DART,
        set: &[("buckets", "true"), ("compound_pointers", "false"), ("est", "false")],
    },
    Step {
        name: "+ compound pointers",
        engine: DART,
        set: &[("buckets", "true"), ("est", "false")],
    },
    Step { name: "+ skip table", engine: DART, set: &[("buckets", "true"), ("est", "true")] },
];
const HASHED: usize = 2;
const POINTERS: usize = 3;
const TABLE: usize = 4;

/// Throughput and costs of a step.
#[derive(Clone, Copy)]
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
            let mut reached: [Option<Reached>; STEPS.len()] = [None; STEPS.len()];
            for (step, reached) in STEPS.iter().zip(&mut reached) {
                chart.place(step.name);
                let case = format!("{name}, {keys}, {}", step.name);
                let Some((engine, settings)) = step.find_or_report(report, &case, MOPS) else {
                    continue;
                };
                let mut config = driver.named(engine, &spec, name)?;
                config.settings.set_all(&settings);
                let measured = driver.record(report, &case, &config, &[MOPS, TRIPS, BYTES])?;
                let mops = driver::mops(&measured);
                let trips = measured.run.per_op.round_trips;
                let bytes = driver::bytes(&measured);
                chart.add(name, step.name, mops);
                *reached = Some(Reached { mops, trips, bytes });
            }
            let gain = |step: usize| {
                let (before, after) = (reached[step - 1]?, reached[step]?);
                Some([
                    after.mops / before.mops,
                    before.bytes / after.bytes,
                    before.trips - after.trips,
                ])
            };
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
                let quantity = "gain over the step before";
                match gain(step) {
                    Some([mops, _, _]) => report.row(&case, quantity, told, mops, why),
                    None => report.missing(&case, quantity, told, "the step before is missing"),
                }
            }
            if writes {
                continue;
            }
            let told = &paper.ablation;
            if let Some([_, bytes, _]) = gain(HASHED) {
                let told = told.hashed_nodes_bytes.get(keys).map(|[low, high]| (low + high) / 2.0);
                let case = format!("{name}, {keys}, {}", STEPS[HASHED].name);
                report.row(&case, "bytes before over after", told, bytes, hashed);
            }
            if let Some([_, _, trips]) = gain(TABLE) {
                let told = told.skip_table_trips.get(keys).copied();
                let case = format!("{name}, {keys}, {}", STEPS[TABLE].name);
                report.row(&case, "round trips saved", told, trips, table);
            }
        }
        report.charts.push(chart);
    }
    Ok(())
}
