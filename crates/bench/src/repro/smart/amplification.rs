//! Amplification: bytes moved for each byte that was asked for or changed (section 3).

use super::{
    ReproOptions,
    driver::{self, Curves, Driver, Heading},
    error::ReproError,
    papers,
    report::{ChartKind, ReproReport},
};
use crate::{keys::KeySpec, run::Progress, workload::OpKind};

/// Bytes of a pair: the key and the value.
const PAIR_BYTES: f64 = 16.0;

/// Pairs of 16 bytes, gets and updates half and half, on the cluster of DART's experiments.
pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let title = "bytes moved for each byte of a pair of 16 bytes, gets and updates half and half";
    let (paper, dart) = (papers::smart()?, papers::dart()?);
    let heading = Heading { name: "smart-amplification", title, source: &paper.source };
    let cluster = driver::PaperCluster { value_bytes: 8, ..dart.setup };
    let (mut report, driver) = Driver::begin(heading, cluster, options, progress)?;
    let title = "bytes moved for each byte of a pair";
    let mut chart = Curves::new(ChartKind::Bars, title, "direction and operation", "bytes /byte");
    for engine in driver::engines() {
        let config = driver.case(engine, &KeySpec::Randint, driver::workload("ycsb-a")?);
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
    chart.finish(&mut report);
    report.notes.push(
        "SMART's paper gives 32 for a B+-tree of 32 pairs a leaf, READ and written, and 1 for a radix tree, \
         without the headers of nodes and leaves."
            .to_owned(),
    );
    Ok(report)
}
