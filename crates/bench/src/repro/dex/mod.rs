//! DEX: the experiments of its paper.

mod fig10;
mod fig11;
mod fig12;
mod fig8;
mod fig9;
mod local;
mod local_tree;
mod setup;
mod systems;
mod table2;
mod threads;
mod watch;
mod world;

use farleaf_engines::Engine;
use farleaf_index::knobs::CACHE;

use super::{Kind, Repro, ReproOptions, Spec, driver, error, maps, papers, report, slices};
use crate::report::TimeKind;

const ENGINES: &[Engine] = &[Engine::Dex];

/// The parts of experiments that are too small at the least scale.
const PATHS: &str = "the caches do not hold the paths of all clients";
const SMALL: &str = "1 % of the data is less than the clients' paths take";

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    Spec {
        name: "dex-table2",
        about: "DEX, Table 2: remote operations and bytes for each index operation",
        title: "remote operations and bytes for each index operation",
        usual_scale: 1.0,
        small_scale: 0.02,
        least: (table2::SCALE_MIN, PATHS),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE],
        engines: Engine::ALL,
        run: table2::run,
    },
    Spec {
        name: "dex-fig4",
        about: "DEX, Figure 4: the cooling map and one queue over threads",
        title: "the cooling map and one queue over threads, every leaf kept",
        usual_scale: 0.02,
        small_scale: 0.01,
        least: (table2::SCALE_MIN, PATHS),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "single_queue", "admission"],
        engines: ENGINES,
        run: threads::cooling,
    },
    Spec {
        name: "dex-fig5",
        about: "DEX, Figure 5: offloading never, by cost and always, over threads",
        title: "offloading never, by cost and always, over threads, cache 1 %",
        usual_scale: 0.02,
        small_scale: 0.01,
        least: (fig8::SCALE_MIN, SMALL),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "offload"],
        engines: ENGINES,
        run: threads::offloading,
    },
    Spec {
        name: "dex-fig6",
        about: "DEX, Figure 6: five workloads over threads, skewed, beside the paper's systems",
        title: "throughput of five workloads over threads, zipfian keys",
        usual_scale: systems::SCALE,
        small_scale: systems::SCALE,
        least: (driver::SCALE_MIN, "clients have no operations"),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "admission"],
        engines: Engine::ALL,
        run: systems::skewed,
    },
    Spec {
        name: "dex-fig7",
        about: "DEX, Figure 7: five workloads over threads, uniform, beside the paper's systems",
        title: "throughput of five workloads over threads, uniform keys",
        usual_scale: systems::SCALE,
        small_scale: systems::SCALE,
        least: (driver::SCALE_MIN, "clients have no operations"),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "admission"],
        engines: Engine::ALL,
        run: systems::uniform,
    },
    Spec {
        name: "dex-fig8",
        about: "DEX, Figure 8: what each technique adds",
        title: "throughput as the techniques come together, write-intensive, cache 1 %",
        usual_scale: 0.05,
        small_scale: 0.01,
        least: (fig8::SCALE_MIN, SMALL),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "offload"],
        engines: ENGINES,
        run: fig8::run,
    },
    Spec {
        name: "dex-fig9",
        about: "DEX, Figure 9: the cooling map against one queue, admission of leaves by chance",
        title: "the cooling map against one queue, leaves kept by chance against always",
        usual_scale: 0.05,
        small_scale: 0.01,
        least: (fig9::SCALE_MIN, PATHS),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "single_queue", "admission"],
        engines: ENGINES,
        run: fig9::run,
    },
    Spec {
        name: "dex-fig10",
        about: "DEX, Figure 10: throughput while ranges move to a new server",
        title: "throughput while ranges move to a compute server that is added",
        usual_scale: 0.01,
        small_scale: 0.002,
        least: (fig10::SCALE_MIN, PATHS),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE],
        engines: ENGINES,
        run: fig10::run,
    },
    Spec {
        name: "dex-fig11",
        about: "DEX, Figure 11: throughput over the size of the cache",
        title: "throughput over the size of the cache",
        usual_scale: 0.02,
        small_scale: 0.01,
        least: (fig8::SCALE_MIN, SMALL),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE],
        engines: ENGINES,
        run: fig11::run,
    },
    Spec {
        name: "dex-fig12",
        about: "DEX, Figure 12: offloading over memory servers' threads",
        title: "offloading by threads of each memory server, cache 1 %",
        usual_scale: 0.02,
        small_scale: 0.01,
        least: (fig8::SCALE_MIN, SMALL),
        kind: Kind::Figure,
        time: TimeKind::Virtual,
        chosen: &[CACHE, "offload"],
        engines: ENGINES,
        run: fig12::run,
    },
    Spec {
        name: "dex-local",
        about: "DEX: a cache that holds all, beside trees in local memory (real time)",
        title: "throughput of a cache that holds all, beside trees in local memory",
        usual_scale: 1.0,
        small_scale: 0.02,
        least: (local::SCALE_MIN, "there are too few keys"),
        kind: Kind::Figure,
        time: TimeKind::Real,
        chosen: &[CACHE, "bulk_fill"],
        engines: ENGINES,
        run: local::run,
    },
];
