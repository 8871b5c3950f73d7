//! Experiments: repeat the experiments of papers, and compare this index with other programs.
//!
//! The other programs are the papers' own, and Redis.
//!
//! Each experiment sets up the paper's cluster at a share of its sizes ([`ReproOptions::scale`]),
//! in the simulator unless it says otherwise. It runs the paper's workloads and gives a
//! [`ReproReport`]. One folder holds the experiments of one paper; `driver` runs any engine of the
//! table of engines on a paper's cluster. [`page`] sets several reports on one page.

mod dart;
mod dex;
mod dmtree;
mod driver;
mod error;
mod hosts;
mod local_maps;
mod maps;
mod options;
mod overview;
mod page;
mod papers;
mod peers;
mod redis;
mod report;
mod slices;
mod smart;
mod svg;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

pub use error::ReproError;
pub use hosts::{Host, HostError, Hosts};
pub use options::{ReproOptions, Scale};
pub use overview::{Agreement, FIGURES, PaperFigure, Repeated, overview};
pub use page::{Finding, page};
pub use redis::RedisError;
pub use report::{
    ChartKind, ReproChart, ReproCheck, ReproReport, ReproRow, ReproSeries, ReproTable, TOLERANCE,
};

use farleaf_engines::Engine;
use farleaf_index::Settings;
use farleaf_index::knobs::{CACHE, DURABILITY};
use farleaf_index::suggest::nearest;

use crate::{report::TimeKind, run::Progress};

/// The word for [every figure](Experiment::figures), which is no experiment's name.
pub const ALL_FIGURES: &str = "all";

/// An experiment of a paper, or against another program.
#[derive(Clone, Copy)]
pub struct Experiment(&'static Spec);

/// A request for an experiment.
struct Repro<'a> {
    options: &'a ReproOptions,
    hosts: &'a dyn Hosts,
    progress: &'a dyn Progress,
    /// Set by the first run of a system that unlocks by WRITE.
    unlocked_by_write: Rc<Cell<bool>>,
}

/// Runs an experiment and fills its report.
type RunFn = fn(&Repro<'_>, &mut ReproReport) -> Result<(), ReproError>;

/// The subject of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A figure, a table or a section of a paper.
    Figure,
    /// Another program on this machine.
    Program,
}

/// A line of the table of experiments.
struct Spec {
    name: &'static str,
    about: &'static str,
    /// Title of its report.
    title: &'static str,
    usual_scale: f64,
    small_scale: f64,
    /// The least scale, and the part that is too small below it.
    least: (f64, &'static str),
    kind: Kind,
    /// Clock of its report.
    time: TimeKind,
    /// Settings that the experiment chooses itself, or compares.
    chosen: &'static [&'static str],
    /// Engines whose settings it takes.
    engines: &'static [Engine],
    run: RunFn,
}

/// 234,375 keys: the nodes of 60 M random numbers, one level higher.
const RADIX_SCALE: f64 = 1.0 / 256.0;

impl Spec {
    /// A figure of the papers of radix trees, with every engine, by default at a scale that is small already.
    const fn of_all_engines(
        name: &'static str,
        about: &'static str,
        title: &'static str,
        chosen: &'static [&'static str],
        run: RunFn,
    ) -> Spec {
        Spec {
            name,
            about,
            title,
            usual_scale: RADIX_SCALE,
            small_scale: RADIX_SCALE,
            least: (driver::SCALE_MIN, "clients have no operations"),
            kind: Kind::Figure,
            time: TimeKind::Virtual,
            chosen,
            engines: Engine::ALL,
            run,
        }
    }
}

/// Experiments beside other programs.
const PROGRAMS: &[Spec] = &[
    Spec {
        name: "local-maps",
        about: "every engine on mapped memory, beside ordered maps of crates.io (real time)",
        title: "gets and updates of every engine on mapped memory, beside local ordered maps",
        usual_scale: 1.0,
        small_scale: 0.02,
        least: (local_maps::SCALE_MIN, "there are too few keys"),
        kind: Kind::Program,
        time: TimeKind::Real,
        chosen: &[CACHE, DURABILITY],
        engines: Engine::ALL,
        run: local_maps::run,
    },
    Spec {
        name: "peers",
        about: "the programs of DEX, Sherman, CHIME and SMART, beside ours by RDMA (real time)",
        title: "what the papers' programs need and reach on Soft-RoCE",
        usual_scale: 1.0,
        small_scale: 0.05,
        least: (peers::SCALE_MIN, "the cache does not hold the paths of both threads"),
        kind: Kind::Program,
        time: TimeKind::Real,
        chosen: &[CACHE, DURABILITY, "read"],
        engines: &[Engine::Dex, Engine::Sherman, Engine::Chime, Engine::Smart],
        run: peers::run,
    },
    Spec {
        name: "redis",
        about: "Redis beside dex and btree over TCP: gets, YCSB (real time)",
        title: "the same gets and YCSB's workloads, on one thread of a client and one of a server",
        usual_scale: 1.0,
        small_scale: 0.05,
        least: (redis::SCALE_MIN, "there are too few keys"),
        kind: Kind::Program,
        time: TimeKind::Real,
        chosen: &[CACHE, "admission"],
        engines: &[Engine::Dex, Engine::BTree],
        run: redis::run,
    },
    Spec {
        name: "gateway",
        about: "a gateway beside redis-server, by redis-benchmark (real time)",
        title: "redis-benchmark on a gateway of one thread and on redis-server, on the same processor",
        usual_scale: 1.0,
        small_scale: 0.02,
        least: (redis::SCALE_MIN, "there are too few keys"),
        kind: Kind::Program,
        time: TimeKind::Real,
        chosen: &[CACHE],
        engines: &[],
        run: redis::gateway::run,
    },
];

impl Experiment {
    /// Every experiment.
    pub fn all() -> impl Iterator<Item = Experiment> {
        [dex::SPECS, dart::SPECS, smart::SPECS, dmtree::SPECS, PROGRAMS]
            .into_iter()
            .flatten()
            .map(Experiment)
    }

    /// The experiments that repeat figures of papers; the others need a program or a device beside them.
    pub fn figures() -> impl Iterator<Item = Experiment> {
        Self::all().filter(|it| it.0.kind == Kind::Figure)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The experiment's subject, for people.
    pub fn about(self) -> &'static str {
        self.0.about
    }

    /// The default scale: 1 if the experiment's checks are stated for 1, else one at which it takes
    /// a minute or two.
    pub fn usual_scale(self) -> f64 {
        self.0.usual_scale
    }

    /// A scale at which it takes at most a minute.
    pub fn small_scale(self) -> f64 {
        self.0.small_scale
    }

    /// Refuses settings that no table of the experiment takes, or that the experiment chooses
    /// itself.
    ///
    /// # Errors
    /// `Setting`, `Chosen`.
    fn check_settings(self, settings: &Settings) -> Result<(), ReproError> {
        Engine::check_some(self.0.engines, settings).map_err(ReproError::Setting)?;
        match settings.iter().find(|(name, _)| self.0.chosen.contains(name)) {
            Some((name, _)) => {
                Err(ReproError::Chosen { experiment: self.name(), setting: name.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Runs the experiment, on memory servers that `hosts` starts if it needs some.
    ///
    /// # Errors
    /// [`ReproError`] if the options make no sense, or if a step fails or a program is missing. A
    /// figure that differs from the paper's, or a check that fails, is no error.
    pub fn run(
        self,
        options: &ReproOptions,
        hosts: &dyn Hosts,
        progress: &dyn Progress,
    ) -> Result<ReproReport, ReproError> {
        self.check_settings(&options.settings)?;
        let Spec { name, title, least: (least, what), time, run, .. } = self.0;
        options.check_scale(*least, what)?;
        let mut report = ReproReport::new(name, title, *time);
        report.scale = options.scale;
        let unlocked_by_write = Rc::default();
        let repro = Repro { options, hosts, progress, unlocked_by_write };
        run(&repro, &mut report)?;
        if repro.unlocked_by_write.get() {
            report.note(driver::UNLOCKED_BY_WRITE);
        }
        Ok(report)
    }
}

impl PartialEq for Experiment {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Experiment {}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Experiment {
    type Err = ReproError;

    fn from_str(text: &str) -> Result<Self, ReproError> {
        let lower = text.trim().to_ascii_lowercase();
        let known = || Experiment::all().map(Experiment::name).chain([ALL_FIGURES]);
        let found = Experiment::all().find(|it| it.name() == lower);
        found.ok_or_else(|| ReproError::UnknownExperiment {
            read: text.to_owned(),
            suggestion: nearest(&lower, known()).map(str::to_owned),
            known: known().collect::<Vec<_>>().join(", "),
        })
    }
}
