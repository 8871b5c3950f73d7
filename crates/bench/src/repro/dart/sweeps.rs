//! Sweeps: every engine over one parameter (Figures 9 and 12 to 15).

use farleaf_engines::Engine;

use super::{
    B_TREES, DART, PAPER_OTHERS, Repro, SMART,
    driver::{self, BYTES, Driver, MOPS, PaperCluster, Step},
    ends,
    error::ReproError,
    keys, papers,
    report::{ReproChart, ReproReport},
};
use crate::{
    config::BenchConfig, distribution::RequestDistribution, keys::KeySpec, workload::ScanLength,
};

/// Sizes of a bucket, bytes.
const BUCKETS: [Step; 4] = [
    Step { name: "64", engine: Engine::Dart, set: &[("bucket_bytes", "64")] },
    Step { name: "128", engine: Engine::Dart, set: &[("bucket_bytes", "128")] },
    Step { name: "256", engine: Engine::Dart, set: &[("bucket_bytes", "256")] },
    Step { name: "512", engine: Engine::Dart, set: &[("bucket_bytes", "512")] },
];
const BUCKET_DEFAULT: &str = "128";

/// Figure 9.
pub(super) fn buckets(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup);
    let chart = |title, y| ReproChart::lines(title, "bytes of a bucket", y);
    let mut mops = chart("throughput over the size of a bucket", "Mops");
    let mut memory = chart("memory over the size of a bucket", "bytes /key");
    for (keys, spec) in keys() {
        for step in &BUCKETS {
            mops.place(step.name);
            memory.place(step.name);
            for name in ["ycsb-a", "ycsb-c"] {
                let config = step.on(driver.named(step.engine, &spec, name)?);
                let case = format!("{keys}, {name}, {} bytes", step.name);
                let measured = driver.record(report, &case, &config, &[MOPS, BYTES])?;
                mops.add(&format!("{keys}, {name}"), step.name, driver::mops(&measured));
                if name == "ycsb-c" {
                    let all = measured.memory.index_bytes - measured.memory.data_bytes;
                    let each = all as f64 / config.keys as f64;
                    report.row(&case, "bytes /key beside keys and values", None, each, "");
                    memory.add(keys, step.name, each);
                }
            }
        }
        for name in ["ycsb-a", "ycsb-c"] {
            let series = format!("{keys}, {name}");
            let own = mops.at(&series, BUCKET_DEFAULT);
            let others = BUCKETS.iter().filter(|step| step.name != BUCKET_DEFAULT);
            let others: Vec<_> = others.filter_map(|it| mops.at(&series, it.name)).collect();
            if let (Some(own), Some(best)) = (own, others.into_iter().reduce(f64::max)) {
                let why = "the paper's best is 128 bytes";
                let case = format!("{series}, 128 bytes over the best other");
                report.row(&case, "throughput, ratio", Some(1.0), own / best, why);
            }
        }
    }
    report.charts.push(mops);
    report.charts.push(memory);
    report.note(
        "The paper's curves have no numbers: 128 bytes are best, 64 are no faster and a little less dense, more \
         are slower and less dense.",
    );
    Ok(())
}

/// Pairs of a scan.
const LENGTHS: [u32; 4] = [10, 50, 100, 200];

/// Figure 12.
pub(super) fn scans(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    for (keys, spec) in keys() {
        let mut chart = ReproChart::lines(&format!("scans, {keys}"), "pairs of a scan", "Mops");
        for length in LENGTHS {
            let at = length.to_string();
            let case = format!("{keys}, {length} pairs");
            driver.sweep(report, &mut chart, &case, &at, |engine| {
                let mut workload = driver::workload("ycsb-e")?;
                workload.scan_length = ScanLength::Fixed(length);
                let config = driver.case(engine, &spec, workload);
                // As many pairs for each length.
                let ops = config.ops * u64::from(LENGTHS[0]) / u64::from(length);
                Ok(BenchConfig { ops: ops.max(config.clients as u64), ..config })
            })?;
            for (other, gain) in chart.gains(DART, &at) {
                let same = (other == SMART).then_some(1.0);
                let case = format!("{case}, dart over {other}");
                report.row(&case, "throughput, ratio", same, gain, "");
            }
            let trees = chart.gains(DART, &at).into_iter();
            let trees = trees.filter(|it| B_TREES.contains(&it.0.as_str()));
            let best = trees.map(|(_, gain)| 1.0 / gain).reduce(f64::max);
            if let (Some(best), true) = (best, length == LENGTHS[0]) {
                let told = (keys == "randint").then_some(paper.short_scans_btree_gain);
                let case = format!("{case}, best B+-tree over dart");
                report.row(&case, "throughput, ratio", told, best, "");
            }
        }
        report.charts.push(chart);
    }
    Ok(())
}

/// Caches of each compute server, MiB at scale 1.
const CACHES_MIB: [u64; 6] = [1, 4, 16, 64, 128, 400];

/// Figure 13.
pub(super) fn caches(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let mut driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut chart = ReproChart::lines("gets, randint", "MiB of cache at scale 1", "Mops");
    for mib in CACHES_MIB {
        driver.cluster.cache_bytes = mib << 20;
        let at = mib.to_string();
        driver.sweep(report, &mut chart, &format!("{mib} MiB"), &at, |engine| {
            driver.named(engine, &KeySpec::Randint, "ycsb-c")
        })?;
        for (other, gain) in chart.gains(DART, &at) {
            let told = match (other.as_str(), mib) {
                ("dex", 1) => Some(paper.small_cache_gain_over_dex),
                ("dex", 400) => Some(1.0),
                _ => None,
            };
            let case = format!("{mib} MiB, dart over {other}");
            let is_larger = driver::engine(&other).is_some_and(|it| driver.has_larger_cache(it));
            if let (Some(_), true) = (told, is_larger) {
                let why = "at this scale its cache has to be larger than the paper's share: it holds the path of \
                           each client";
                report.missing(&case, "throughput, ratio", told, why);
                continue;
            }
            report.row(&case, "throughput, ratio", told, gain, "");
        }
    }
    report.charts.push(chart);
    report.note("An engine without a cache of that kind has one speed for all sizes.");
    Ok(())
}

/// Exponents of Zipf's law; 0 draws evenly.
const THETAS: [f64; 5] = [0.0, 0.5, 0.8, 0.9, 0.99];

/// Figure 14.
pub(super) fn skews(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    let driver = Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut chart =
        ReproChart::lines("gets and updates, randint", "exponent of Zipf's law", "Mops");
    for theta in THETAS {
        let at = theta.to_string();
        driver.sweep(report, &mut chart, &format!("theta {theta}"), &at, |engine| {
            let mut workload = driver::workload("ycsb-a")?;
            workload.request = match theta {
                0.0 => RequestDistribution::Uniform,
                theta => RequestDistribution::Zipfian { theta },
            };
            Ok(driver.case(engine, &KeySpec::Randint, workload))
        })?;
        for (other, gain) in chart.gains(DART, &at) {
            let case = format!("theta {theta}, dart over {other}");
            report.row(&case, "throughput, ratio", None, gain, "");
        }
    }
    let all = THETAS.iter().flat_map(|theta| chart.gains(DART, &theta.to_string()));
    let all: Vec<_> = all.filter(|(other, _)| PAPER_OTHERS.contains(&other.as_str())).collect();
    if let Some([least, most]) = ends(&all) {
        let why = "";
        let [low, high] = paper.skew_gains.map(Some);
        report.gain("dart over others, all skews", "least ratio of throughput", low, least, why);
        report.gain("dart over others, all skews", "largest ratio of throughput", high, most, why);
    }
    let own: Vec<_> =
        THETAS.iter().filter_map(|theta| chart.at(DART, &theta.to_string())).collect();
    let (low, high) = (own.iter().copied().reduce(f64::min), own.into_iter().reduce(f64::max));
    if let (Some(low), Some(high)) = (low, high) {
        report.row("dart, all skews", "largest over least throughput", Some(1.0), high / low, "");
    }
    report.charts.push(chart);
    Ok(())
}

/// Clients of all compute servers; the last is beyond the paper's.
const CLIENTS: [usize; 7] = [3, 21, 42, 84, 126, 168, 336];
/// Throughput may not fall from each of these to the next; a little of it is noise.
const GROWS: [usize; 3] = [84, 168, 336];
const NOISE: f64 = 0.02;

/// Figure 15.
pub(super) fn clients(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dart;
    Driver::begin(repro, report, &paper.source, paper.setup.clone());
    let mut chart = ReproChart::lines("gets and updates, randint", "clients", "Mops");
    for clients in CLIENTS {
        let cluster = PaperCluster { clients, ..paper.setup.clone() };
        let driver = Driver::new(repro, cluster);
        let (case, at) = (format!("{clients} clients"), clients.to_string());
        driver.sweep(report, &mut chart, &case, &at, |engine| {
            driver.named(engine, &KeySpec::Randint, "ycsb-a")
        })?;
    }
    for pair in GROWS.windows(2) {
        let [fewer, more] = [pair[0], pair[1]].map(|clients| chart.at(DART, &clients.to_string()));
        if let (Some(fewer), Some(more)) = (fewer, more) {
            let what = format!("dart: {} clients are no slower than {}", pair[1], pair[0]);
            report.bar(what, more >= fewer * (1.0 - NOISE));
            let case = format!("dart, {} clients over {}", pair[1], pair[0]);
            report.row(&case, "throughput, ratio", None, more / fewer, "");
        }
    }
    report.charts.push(chart);
    report.note(
        "The paper's curves have no numbers: its tree grows to 168 clients, others stop at 84 or 126.",
    );
    Ok(())
}
