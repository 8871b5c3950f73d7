//! DEX, Figure 11: throughput over the size of the cache.

use farleaf_engines::dex::DexOptions;

use super::{
    Repro,
    driver::{self, Driver, PaperCluster},
    error::ReproError,
    papers::{self, DexPaper},
    report::{ReproChart, ReproReport},
    setup,
};
use crate::keys::{KeyOrder, KeySpec};

/// Sizes of each compute server's cache in percent of all pairs' bytes.
const SIZES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The share by which noise may make a larger cache seem slower.
const NOISE: f64 = 0.01;

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    let world = setup::begin(repro, report, &paper, setup::Added::default())?;
    world.partition()?;
    let title = "throughput over the size of the cache";
    let mut chart = ReproChart::lines(title, "cache, % of the data", "Mops");
    for name in ["read-intensive", "write-intensive"] {
        let load = setup::paced(report, &paper, options, name)?;
        let mut last = 0.0;
        let mut grows = true;
        for percent in SIZES {
            let cache_bytes = world.data_bytes() * percent / 100;
            let cache = DexOptions { cache_bytes, ..setup::with_settings(options)? };
            let measured = world.run_dex(cache, &load)?;
            let case = format!("{name}, {percent} %");
            report.row(&case, "Mops", None, measured.mops(), "");
            report.row(&case, "READs /op", None, measured.per_op().reads, "");
            report.row(&case, "WRITEs /op", None, measured.per_op().writes, "");
            chart.add(name, &percent.to_string(), measured.mops());
            grows &= measured.mops() >= last * (1.0 - NOISE);
            last = measured.mops();
        }
        report.check(format!("{name}: a larger cache is never slower"), Some(grows));
    }
    world.record_hash(report);
    let data_bytes = world.data_bytes();
    // Its memory is for the other engine.
    drop(world);
    add_sherman(repro, report, &paper, data_bytes, &mut chart)?;
    report.charts.push(chart);
    report.note(
        "The paper gives curves and no numbers. Read-intensive grows with the cache there, as here. \
         Write-intensive is highest near 8 % there and falls beyond, which it puts down to latches that \
         wander between sockets; the simulator has no processors' caches, so it grows here.",
    );
    report.note(
        "A partition's nodes take about 36 % of the bytes of all pairs, so a cache of 64 % holds it \
         all; what it has not read by the end of the warm-up it still has to read.",
    );
    Ok(())
}

/// Sherman over the same sizes, read-intensive: it caches inner nodes alone, so that a larger cache is of no use once
/// they fit.
fn add_sherman(
    repro: &Repro<'_>,
    report: &mut ReproReport,
    paper: &DexPaper,
    data_bytes: u64,
    chart: &mut ReproChart,
) -> Result<(), ReproError> {
    let (name, workload) = ("sherman", "read-intensive");
    let driver = Driver::new(repro, PaperCluster::of(&paper.setup));
    let Some(engine) = driver::engine(name) else {
        report.missing(&format!("{workload}, {name}"), "Mops", None, &driver::no_engine(name));
        return Ok(());
    };
    let mut reads = Vec::new();
    for percent in SIZES {
        let mut config = driver.named(engine, &KeySpec::U64(KeyOrder::Hashed), workload)?;
        config.settings.set("cache", &(data_bytes * percent / 100).to_string());
        config.local_ns = paper.setup.cached_page_access_ns;
        let measured = driver.measure(&config)?;
        let case = format!("{workload}, {name}, {percent} %");
        report.row(&case, "Mops", None, driver::mops(&measured), "");
        report.row(&case, "READs /op", None, measured.run.per_op.reads, "");
        chart.add(&format!("{workload}, {name}"), &percent.to_string(), driver::mops(&measured));
        reads.push(measured.run.per_op.reads);
    }
    // Inner nodes take some 5 % of the bytes of all pairs.
    let fit = &reads[reads.len() - 3..];
    let is_constant = fit.iter().all(|it| (it / fit[0] - 1.0).abs() <= 0.01);
    report.check(
        format!("{workload}, {name}: READs stay within 1 % from 16 % of the data on"),
        Some(is_constant),
    );
    Ok(())
}
