//! DEX, Figure 12: offloading by the number of threads that memory servers have for it.

use farleaf_engines::dex::{DexOptions, offload::Offload};

use super::{
    Repro, error::ReproError, fig8::OFFLOADING, papers, report::ReproReport, setup, world::Measured,
};
/// Threads of each memory server.
const THREADS: [usize; 5] = [1, 2, 3, 4, 8];
/// The number of threads behind the paper's figures.
const PAPER_THREADS: usize = 4;

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    let world = setup::begin(repro, report, &paper, setup::Added::default())?;
    world.partition()?;
    let cache_bytes = options.scaled(paper.fig8.cache_bytes);
    report.set("cache_bytes", cache_bytes);
    report.set("offload", "adaptive");
    let never = DexOptions { cache_bytes, ..setup::with_settings(options)? };
    let adaptive = DexOptions { offload: Offload::Adaptive, ..never };
    for (name, published) in &paper.fig12 {
        let load = setup::paced(report, &paper, options, name)?;
        let none = world.run_dex(never, &load)?;
        add(report, &format!("{name}, none"), &none);
        for threads in THREADS {
            world.set_handler_threads(threads);
            let some = world.run_dex(adaptive, &load)?;
            let case = format!("{name}, {threads}");
            add(report, &case, &some);
            let published = (threads == PAPER_THREADS).then_some(published);
            // The paper counts one-sided and two-sided operations.
            let saved = 1.0 - some.verbs_per_op() / none.verbs_per_op();
            let gain = some.mops() / none.mops();
            let quantity = "remote operations saved";
            report.row(&case, quantity, published.map(|it| it.saved), saved, OFFLOADING);
            report.gain(&case, "gain over none", published.map(|it| it.gain), gain, OFFLOADING);
        }
    }
    world.record_hash(report);
    Ok(())
}

/// READs and WRITEs for each operation.
fn one_sided(measured: &Measured) -> f64 {
    let each = measured.per_op();
    each.reads + each.writes
}

fn add(report: &mut ReproReport, case: &str, measured: &Measured) {
    report.row(case, "Mops", None, measured.mops(), "");
    report.row(case, "READs and WRITEs /op", None, one_sided(measured), "");
    report.row(case, "RPCs /op", None, measured.per_op().rpcs, "");
    report.row(case, "remote operations /op", None, measured.verbs_per_op(), "");
    report.row(case, "memory servers' threads busy", None, measured.handlers_busy, "");
}
