//! DEX, Figure 12: offloading by the number of threads that memory servers have for it.

use farleaf_engines::dex::{DexOptions, offload::Offload};

use super::{
    ReproOptions,
    error::ReproError,
    fig8::OFFLOADING,
    papers,
    report::ReproReport,
    setup,
    world::{Load, Measured},
};
use crate::{
    run::{BenchError, Progress},
    workload::Workload,
};

/// Threads of each memory server.
const THREADS: [usize; 5] = [1, 2, 3, 4, 8];
/// The number of threads behind the paper's figures.
const PAPER_THREADS: usize = 4;
/// As in Figure 8.
const SCALE_MIN: f64 = 0.01;

pub(super) fn run(
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<ReproReport, ReproError> {
    let paper = papers::dex()?;
    options.check_scale(SCALE_MIN, "1 % of the data is less than the clients' paths take")?;
    let title = "offloading by threads of each memory server, cache 1 %";
    let title = ("dex-fig12", title);
    let (mut report, world) = setup::begin(title, &paper, options, 0, progress)?;
    world.partition()?;
    let cache_bytes = options.scaled(paper.fig8.cache_bytes);
    report.set("cache_bytes", cache_bytes);
    report.set("offload", "adaptive");
    let (ops, local_ns) = setup::paced(&mut report, &paper, options);
    let never = DexOptions { cache_bytes, ..setup::with_settings(options)? };
    let adaptive = DexOptions { offload: Offload::Adaptive, ..never };
    for (name, published) in &paper.fig12 {
        let workload = Workload::named(name).map_err(BenchError::from)?;
        let load = Load { workload: &workload, warmup: ops, ops, local_ns, clients: None };
        let none = world.run_dex(never, &load, progress)?;
        add(&mut report, &format!("{name}, none"), &none);
        for threads in THREADS {
            world.set_handler_threads(threads);
            let some = world.run_dex(adaptive, &load, progress)?;
            let case = format!("{name}, {threads}");
            add(&mut report, &case, &some);
            let published = (threads == PAPER_THREADS).then_some(published);
            let saved = 1.0 - one_sided(&some) / one_sided(&none);
            let gain = some.mops() / none.mops();
            let (paper_saved, paper_gain) =
                (published.map(|it| it.saved), published.map(|it| it.gain));
            report.row(&case, "READs and WRITEs saved", paper_saved, saved, OFFLOADING);
            report.row(&case, "gain over none", paper_gain, gain, OFFLOADING);
        }
    }
    report.set("trace_hash", format!("{:016x}", world.trace_hash()));
    Ok(report)
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
    report.row(case, "memory servers' threads busy", None, measured.handlers_busy, "");
}
