//! DEX: the experiments of its paper.

mod fig10;
mod fig11;
mod fig12;
mod fig8;
mod fig9;
mod local;
mod local_tree;
mod setup;
mod table2;
mod watch;
mod world;

use farleaf_engines::Engine;
use farleaf_index::knobs::CACHE;

use super::{Kind, ReproOptions, RunFn, Spec, driver, error, maps, papers, report, slices};

const ENGINES: &[Engine] = &[Engine::Dex];

/// The experiments.
pub(super) const SPECS: &[Spec] = &[
    Spec {
        name: "dex-table2",
        about: "DEX, Table 2: remote operations and bytes for each index operation",
        usual_scale: 1.0,
        small_scale: 0.02,
        kind: Kind::Figure,
        chosen: &[CACHE],
        engines: Engine::ALL,
        run: RunFn::Alone(table2::run),
    },
    Spec {
        name: "dex-fig8",
        about: "DEX, Figure 8: what each technique adds",
        usual_scale: 0.05,
        small_scale: 0.01,
        kind: Kind::Figure,
        chosen: &[CACHE, "offload"],
        engines: ENGINES,
        run: RunFn::Alone(fig8::run),
    },
    Spec {
        name: "dex-fig9",
        about: "DEX, Figure 9: the cooling map against one queue, admission of leaves by chance",
        usual_scale: 0.05,
        small_scale: 0.01,
        kind: Kind::Figure,
        chosen: &[CACHE, "single_queue", "admission"],
        engines: ENGINES,
        run: RunFn::Alone(fig9::run),
    },
    Spec {
        name: "dex-fig10",
        about: "DEX, Figure 10: throughput while ranges move to a new server",
        usual_scale: 0.01,
        small_scale: 0.002,
        kind: Kind::Figure,
        chosen: &[CACHE],
        engines: ENGINES,
        run: RunFn::Alone(fig10::run),
    },
    Spec {
        name: "dex-fig11",
        about: "DEX, Figure 11: throughput over the size of the cache",
        usual_scale: 0.02,
        small_scale: 0.01,
        kind: Kind::Figure,
        chosen: &[CACHE],
        engines: ENGINES,
        run: RunFn::Alone(fig11::run),
    },
    Spec {
        name: "dex-fig12",
        about: "DEX, Figure 12: offloading over memory servers' threads",
        usual_scale: 0.02,
        small_scale: 0.01,
        kind: Kind::Figure,
        chosen: &[CACHE, "offload"],
        engines: ENGINES,
        run: RunFn::Alone(fig12::run),
    },
    Spec {
        name: "dex-local",
        about: "DEX: a cache that holds all, beside trees in local memory (real time)",
        usual_scale: 1.0,
        small_scale: 0.02,
        kind: Kind::Figure,
        chosen: &[CACHE, "bulk_fill"],
        engines: ENGINES,
        run: RunFn::Alone(local::run),
    },
];
