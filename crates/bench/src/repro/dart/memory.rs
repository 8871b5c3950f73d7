//! Memory: bytes beside keys and values after a bulk load (Table 2).

use farleaf_engines::Engine;

use super::{
    ART, DART, Repro,
    driver::{self, Driver, Step},
    error::ReproError,
    keys, papers,
    report::{ReproChart, ReproReport},
};
use crate::config::BenchConfig;

/// At most so many bytes for each key beyond the paper's 128 of a pair, at scale 1: engine, keys, bytes.
const INDEX_BARS: [(&str, &str, f64); 4] = [
    ("dart", "randint", 16.0),
    ("dart", "email", 27.0),
    ("smart", "randint", 21.0),
    ("smart", "email", 29.0),
];

/// The engine whose nodes can have the room that the paper's have: with it, and with leaves that hold a pointer back
/// as well.
const PARITY: [Step; 2] = [
    Step { name: ", nodes=reserve", engine: Engine::Smart, set: &[("nodes", "reserve")] },
    Step { name: ", nodes=reverse", engine: Engine::Smart, set: &[("nodes", "reverse")] },
];
/// Bytes of an object that holds a node of 257 slots.
const RESERVED_BYTES: f64 = 2_112.0;
/// So far the parity mode may be from the paper, and from what random keys must cost.
const PARITY_WITHIN: f64 = 0.05;

/// Inner nodes for each of `count` random keys of 63 bits: a node stands where keys that begin alike go on with
/// different bytes.
fn nodes_per_random_key(count: f64) -> f64 {
    let mut nodes = 1.0;
    let mut places = 128.0;
    for _ in 0..7 {
        let keys: f64 = count / places;
        // Poisson: not one key, and not all of them in one of 256 children. The share of places of no node falls to
        // next to nothing; its factors are 0 and infinite then.
        let none_or_alike = match keys > 500.0 {
            true => 0.0,
            false => (-keys).exp() * (1.0 + 256.0 * (keys / 256.0).exp_m1()),
        };
        nodes += places * (1.0 - none_or_alike);
        places *= 256.0;
    }
    nodes / count
}

/// Table 2.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let title = "bytes of a key beside keys and values";
    let mut chart = ReproChart::bars(title, "keys", "bytes /key");
    let mut totals = ReproChart::bars("", "", "");
    for (keys, spec) in keys() {
        let usual = driver::engines().map(|engine| Step { name: "", engine, set: &[] });
        for step in usual.chain(PARITY) {
            let (engine, reserves) = (step.engine, !step.set.is_empty());
            let config = step.on(driver.named(engine, &spec, "ycsb-c")?);
            let ops = config.clients as u64;
            let config = BenchConfig { warmup_ops: 0, ops, ..config };
            let measured = driver.measure(&config)?;
            let count = config.keys as f64;
            let all = measured.memory.index_bytes as f64 / count;
            let name = format!("{engine}{}", step.name);
            let case = format!("{keys}, {name}");
            let beside = all - measured.memory.data_bytes as f64 / count;
            report.row(&case, "bytes /key beside keys and values", None, beside, "");
            chart.add(&name, keys, beside);
            totals.add(&name, keys, all);
            let per_key = |gb: f64| gb * (1u64 << 30) as f64 / paper.setup.keys as f64;
            let told = paper.index_gb.get(keys).and_then(|by| by.get(engine.name()));
            let beyond = all - per_key(paper.data_gb);
            let reason = match reserves {
                false => {
                    "the paper's SMART reserves each node at its largest size, ours relocates nodes; our B+-trees \
                     pack pairs into nodes, and need less than 128 bytes for each"
                }
                true => "the keys differ",
            };
            report.row(&case, "bytes /key", told.map(|gb| per_key(*gb)), beyond, reason);
            if reserves && keys == "randint" {
                let computed = RESERVED_BYTES * nodes_per_random_key(count);
                report.row(&case, "bytes /key, computed for so many keys", None, computed, "");
                let is_near = |told: f64| (beyond / told - 1.0).abs() <= PARITY_WITHIN;
                let what = format!("{case}: within 5 % of what so many random keys must cost");
                report.check(what, Some(is_near(computed)));
                if let Some(gb) = told {
                    let what = format!("{case}: within 5 % of the paper");
                    report.bar(what, is_near(per_key(*gb)));
                }
            }
            let bars = INDEX_BARS.iter().filter(|_| !reserves);
            let bars = bars.filter(|it| (it.0, it.1) == (engine.name(), keys));
            for (_, _, most) in bars {
                let what = format!("{case}: at most {most} bytes /key");
                report.bar(what, beyond <= *most);
            }
        }
        let told = paper.memory_below_art.get(keys).copied();
        let case = format!("{keys}, dart below art");
        if let (Some(dart), Some(art)) = (totals.at(DART, keys), totals.at(ART, keys)) {
            let why =
                "our ART is SMART's code with whole nodes, and pads each to a class of the pool";
            report.row(&case, "share of all memory saved", told, 1.0 - dart / art, why);
        }
    }
    report.charts.push(chart);
    report.note(
        "The paper's figures are beyond 7.15 GB of data, which is an object of 128 bytes for each pair; so are \
         the bytes /key beside them.",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::nodes_per_random_key;

    #[test]
    fn sixty_million_random_keys_have_nine_million_nodes() {
        assert!((nodes_per_random_key(60e6) - 0.1532).abs() < 0.0005);
        // Hardly ever do two keys share their first byte.
        assert!((nodes_per_random_key(2.0) * 2.0 - 1.0).abs() < 0.02);
    }
}
