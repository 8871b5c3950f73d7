//! DEX, Figures 4 and 5: one technique and its alternatives over threads.

use farleaf_engines::dex::{Admission, DexOptions, offload::Offload};

use super::{
    Repro,
    error::ReproError,
    papers,
    report::{ReproChart, ReproReport},
    setup::{self, HANDOVER_NS},
    world::{Measured, World},
};

/// Clients of all compute servers.
const CLIENTS: [usize; 3] = [4, 36, 144];

const QUEUE: &str = "one queue";
const MAP: &str = "cooling map";

/// An alternative: its name, and its options.
type Alternative = (&'static str, fn(DexOptions) -> DexOptions);

/// One alternative with a number of clients.
struct ThreadsRun {
    clients: usize,
    name: &'static str,
    measured: Measured,
}

fn one_queue(base: DexOptions) -> DexOptions {
    DexOptions { single_queue: true, ..cooling_map(base) }
}

fn cooling_map(base: DexOptions) -> DexOptions {
    DexOptions { admission: Admission::EAGER, ..base }
}

/// Figure 4: where frames cool. Section 2.3: the replacements that 36 threads of a compute server ask for, and those
/// that one queue does.
pub(super) fn cooling(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let paper = papers::papers()?.dex;
    let added = setup::Added { handover_ns: Some(HANDOVER_NS), ..setup::Added::default() };
    let world = setup::begin(repro, report, &paper, added)?;
    let bytes = paper.setup.cache_bytes;
    let alternatives: [Alternative; 2] = [(QUEUE, one_queue), (MAP, cooling_map)];
    let runs = over_threads(repro, report, &world, "read-intensive", &alternatives, bytes)?;
    let all = paper.setup.threads;
    let rate = |measured: &Measured| measured.mega_evictions_per_s(paper.setup.compute_servers);
    let of = |name: &str| {
        let run = runs.iter().find(|run| run.clients == all && run.name == name);
        run.map_or(0.0, |run| rate(&run.measured))
    };
    let (queue, map, told) = (of(QUEUE), of(MAP), &paper.replacements);
    let case = |name: &str| format!("{all} threads, {name}");
    let quantity = "replacements of a compute server, M/s";
    let why = "one lock that goes from thread to thread in 130 ns lets 7.7 M changes a second through on each server; \
               with the time that a change takes in the paper's queue: below";
    report.row(&case(QUEUE), quantity, Some(told.queue_mega_per_s), queue, why);
    report.row(&case(MAP), quantity, Some(told.map_mega_per_s), map, "");
    let gain = if queue > 0.0 { map / queue } else { 0.0 };
    let published = told.map_mega_per_s / told.queue_mega_per_s;
    report.gain(&case(&format!("{MAP} over {QUEUE}")), "replacements", Some(published), gain, why);
    // The reason of the gap, tested: all is the same but for the time of a handover.
    let handover_ns = (1e3 / told.queue_mega_per_s) as u64;
    let added = setup::Added { handover_ns: Some(handover_ns), ..setup::Added::default() };
    let world = setup::begin(repro, report, &paper, added)?;
    report.set("handover_ns", HANDOVER_NS);
    world.partition()?;
    let dex = setup::with_settings(repro.options)?;
    let dex = DexOptions { cache_bytes: repro.options.scaled(bytes), ..dex };
    let load = setup::paced(report, &paper, repro.options, "read-intensive")?;
    let slow = rate(&world.run_dex(one_queue(dex), &load)?);
    let case = case(&format!("{QUEUE}, handover {handover_ns} ns"));
    report.row(&case, quantity, Some(told.queue_mega_per_s), slow, "");
    report.note(
        "Figure 4 has curves and no numbers; the replacements are of section 2.3. A lock of Cooling frames that changes \
         hands between threads costs handover_ns, and threads wait for one another; no other lock does.",
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
) -> Result<Vec<ThreadsRun>, ReproError> {
    let (paper, options) = (papers::papers()?.dex, repro.options);
    world.partition()?;
    let base = DexOptions { cache_bytes: options.scaled(bytes), ..setup::with_settings(options)? };
    report.set("workload", workload);
    report.set("cache_bytes", base.cache_bytes);
    let mut load = setup::paced(report, &paper, options, workload)?;
    let title = format!("{workload}, throughput over threads");
    let mut chart = ReproChart::lines(&title, "threads", "Mops");
    let mut runs = Vec::new();
    for clients in CLIENTS {
        load.clients = Some(clients);
        for (name, with) in alternatives {
            let measured = world.run_dex(with(base), &load)?;
            let case = format!("{clients} threads, {name}");
            report.row(&case, "Mops", None, measured.mops(), "");
            report.row(&case, "remote operations /op", None, measured.verbs_per_op(), "");
            report.row(&case, "memory servers' threads busy", None, measured.handlers_busy, "");
            chart.add(name, &clients.to_string(), measured.mops());
            runs.push(ThreadsRun { clients, name, measured });
        }
    }
    report.charts.push(chart);
    world.record_hash(report);
    Ok(runs)
}
