//! Memory: bytes beside keys and values after a bulk load (Table 2).

use super::{
    ART, DART, ReproOptions, begin,
    driver::{self, Curves},
    error::ReproError,
    keys,
    report::{ChartKind, ReproReport},
};
use crate::{config::BenchConfig, run::Progress};

/// At most so many bytes for each key beyond the paper's 128 of a pair, at scale 1: engine, keys, bytes.
const INDEX_BARS: [(&str, &str, f64); 4] = [
    ("dart", "randint", 16.0),
    ("dart", "email", 27.0),
    ("smart", "randint", 21.0),
    ("smart", "email", 29.0),
];

/// Table 2.
pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "memory beside keys and values";
    let (mut report, driver, paper) = begin("dart-table2", title, options, progress)?;
    let title = "bytes of a key beside keys and values";
    let mut chart = Curves::new(ChartKind::Bars, title, "keys", "bytes /key");
    let mut totals = Curves::new(ChartKind::Bars, "", "", "");
    for (keys, spec) in keys() {
        for engine in driver::engines() {
            let config = driver.case(engine, &spec, driver::workload("ycsb-c")?);
            let ops = config.clients as u64;
            let config = BenchConfig { warmup_ops: 0, ops, ..config };
            let measured = driver.measure(&config)?;
            let count = config.keys as f64;
            let all = measured.memory.index_bytes as f64 / count;
            let case = format!("{keys}, {engine}");
            let beside = all - measured.memory.data_bytes as f64 / count;
            report.row(&case, "bytes /key beside keys and values", None, beside, "");
            chart.add(engine.name(), keys, beside);
            totals.add(engine.name(), keys, all);
            let per_key = |gb: f64| gb * (1u64 << 30) as f64 / paper.setup.keys as f64;
            let told = paper.index_gb.get(keys).and_then(|by| by.get(engine.name()));
            let beyond = all - per_key(paper.data_gb);
            let reason = "the paper's SMART reserves each node at its largest size, ours relocates nodes; our \
                          B+-trees pack pairs into nodes, and need less than 128 bytes for each";
            report.row(&case, "bytes /key", told.map(|gb| per_key(*gb)), beyond, reason);
            let bars = INDEX_BARS.iter().filter(|it| (it.0, it.1) == (engine.name(), keys));
            for (_, _, most) in bars {
                let what = format!("{case}: at most {most} bytes /key");
                report.check(what, driver.asked(beyond <= *most));
            }
        }
        let told = paper.memory_below_art.get(keys).copied();
        let case = format!("{keys}, dart below art");
        let quantity = "share of all memory saved";
        match (totals.at(DART, keys), totals.at(ART, keys)) {
            (Some(dart), Some(art)) => {
                let why = "our ART is SMART's code with whole nodes, and pads each to a class of the pool";
                report.row(&case, quantity, told, 1.0 - dart / art, why);
            }
            _ => report.missing(&case, quantity, told, &driver::no_engine(ART)),
        }
    }
    chart.finish(&mut report);
    report.notes.push(
        "The paper's figures are beyond 7.15 GB of data, which is an object of 128 bytes for each pair; so are \
         the bytes /key beside them."
            .to_owned(),
    );
    Ok(report)
}
