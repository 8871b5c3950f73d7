//! Amplification: bytes moved for each byte that was asked for or changed (section 3).

use super::{
    Repro,
    driver::{self, Driver},
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
};
use crate::{keys::KeySpec, workload::OpKind};

/// Bytes of a pair: the key and the value.
const PAIR_BYTES: f64 = 16.0;

/// Pairs of 16 bytes, gets and updates half and half, on the cluster of DART's experiments.
pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let papers = papers::papers()?;
    let cluster = driver::PaperCluster { value_bytes: 8, ..papers.dart.setup };
    let driver = Driver::begin(repro, report, &papers.smart.source, cluster);
    let title = "bytes moved for each byte of a pair";
    let mut chart = ReproChart::bars(title, "direction and operation", "bytes /byte");
    for engine in driver::engines() {
        let config = driver.named(engine, &KeySpec::Randint, "ycsb-a")?;
        let measured = driver.measure(&config)?;
        let case = engine.to_string();
        let of = |kind| driver::kind(&measured, kind).per_op;
        let (get, update) = (of(OpKind::Get), of(OpKind::Update));
        for (what, bytes) in [
            ("READ /byte, get", get.bytes_read),
            ("READ /byte, update", update.bytes_read),
            ("written /byte, update", update.bytes_written),
        ] {
            report.row(&case, &format!("bytes {what}"), None, bytes / PAIR_BYTES, "");
            chart.add(engine.name(), what, bytes / PAIR_BYTES);
        }
    }
    report.charts.push(chart);
    report.note(
        "SMART's paper gives 32 for a B+-tree of 32 pairs a leaf, READ and written, and 1 for a radix tree, \
         without the headers of nodes and leaves.",
    );
    Ok(())
}
