//! DEX, Figures 4 and 5: one technique and its alternatives over threads.

use farleaf_engines::dex::{Admission, DexOptions, offload::Offload};

use super::{
    Repro,
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
    setup::{self, HANDOVER_NS},
    world::World,
};

/// Clients of all compute servers.
const CLIENTS: [usize; 3] = [4, 36, 144];

/// An alternative: its name, and its options.
type Alternative = (&'static str, fn(DexOptions) -> DexOptions);

/// Figure 4: where frames cool.
pub(super) fn cooling(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let alternatives: [Alternative; 2] = [
        ("one queue", |base| DexOptions {
            single_queue: true,
            admission: Admission::EAGER,
            ..base
        }),
        ("cooling map", |base| DexOptions { admission: Admission::EAGER, ..base }),
    ];
    let paper = papers::papers()?.dex;
    let added = setup::Added { handover_ns: Some(HANDOVER_NS), ..setup::Added::default() };
    let world = setup::begin(repro, report, &paper, added)?;
    let bytes = paper.setup.cache_bytes;
    over_threads(repro, report, &world, "read-intensive", &alternatives, bytes)?;
    report.note(
        "The paper gives curves and no numbers. A lock of Cooling frames that changes hands between threads costs \
         handover_ns, and threads wait for one another; no other lock does.",
    );
    Ok(())
}

/// Figure 5: who does an operation on a leaf that is not cached.
pub(super) fn offloading(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let alternatives: [Alternative; 3] = [
        ("never", |base| DexOptions { offload: Offload::Never, ..base }),
        ("by cost", |base| DexOptions { offload: Offload::Adaptive, ..base }),
        ("always", |base| DexOptions { offload: Offload::Always, ..base }),
    ];
    let paper = papers::papers()?.dex;
    let world = setup::begin(repro, report, &paper, setup::Added::default())?;
    let bytes = paper.fig8.cache_bytes;
    over_threads(repro, report, &world, "write-intensive", &alternatives, bytes)?;
    report.note(
        "The paper gives curves and no numbers: always is ahead with few threads and falls once the memory servers' \
         threads are busy, by cost is ahead throughout.",
    );
    Ok(())
}

/// Runs each alternative with each number of clients, and a cache of `bytes` at scale 1.
fn over_threads(
    repro: &Repro<'_>,
    report: &mut ReproReport,
    world: &World<'_>,
    workload: &str,
    alternatives: &[Alternative],
    bytes: u64,
) -> Result<(), ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    world.partition()?;
    let base = DexOptions { cache_bytes: options.scaled(bytes), ..setup::with_settings(options)? };
    report.set("workload", workload);
    report.set("cache_bytes", base.cache_bytes);
    let mut load = setup::paced(report, &paper, options, workload)?;
    let title = format!("{workload}, throughput over threads");
    let mut chart = ReproChart::lines(&title, "threads", "Mops");
    for clients in CLIENTS {
        load.clients = Some(clients);
        for (name, with) in alternatives {
            let measured = world.run_dex(with(base), &load)?;
            let case = format!("{clients} threads, {name}");
            report.row(&case, "Mops", None, measured.mops(), "");
            report.row(&case, "remote operations /op", None, measured.verbs_per_op(), "");
            report.row(&case, "memory servers' threads busy", None, measured.handlers_busy, "");
            chart.add(name, &clients.to_string(), measured.mops());
        }
    }
    report.charts.push(chart);
    world.record_hash(report);
    Ok(())
}
