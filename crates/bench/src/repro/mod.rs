//! Experiments: repeat the experiments of papers, and compare this index with other programs.
//!
//! The other programs are the papers' own, and Redis.
//!
//! Each experiment sets up the paper's cluster at a share of its sizes ([`ReproOptions::scale`]),
//! in the simulator unless it says otherwise. It runs the paper's workloads and gives a
//! [`ReproReport`].

mod error;
mod fig10;
mod fig11;
mod fig12;
mod fig8;
mod fig9;
mod hosts;
mod local;
mod local_tree;
mod papers;
mod peers;
mod radix;
mod redis;
mod report;
mod router;
mod setup;
mod slices;
mod svg;
mod table2;
#[cfg(test)]
mod tests;
mod watch;
mod world;

use std::str::FromStr;

pub use error::ReproError;
pub use hosts::{Host, HostError, Hosts};
pub use redis::{RedisError, RespError};
pub use report::{ReproCheck, ReproReport, ReproRow, ReproTable, TOLERANCE};

use farleaf_index::knobs::{CACHE, DURABILITY};
use farleaf_index::suggest::nearest;
use farleaf_index::{Engine, Settings};

use crate::run::Progress;

/// An experiment of a paper, or against another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// DEX, Table 2.
    DexTable2,
    /// DEX, Figure 8.
    DexFig8,
    /// DEX, Figure 9.
    DexFig9,
    /// DEX, Figure 10.
    DexFig10,
    /// DEX, Figure 11.
    DexFig11,
    /// DEX, Figure 12.
    DexFig12,
    /// DEX, section 7: the cost of a cache that holds everything.
    DexLocal,
    /// DART, Figures 6 and 7, with every engine on the same keys.
    DartYcsb,
    /// DART, Table 2, with every engine on the same keys.
    DartTable2,
    /// SMART, section 3: bytes moved for each byte asked for.
    SmartAmplification,
    /// The papers' programs, beside ours by RDMA.
    Peers,
    /// Redis on this machine, beside Farleaf over TCP.
    Redis,
}

/// Options of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct ReproOptions {
    /// Share of the paper's keys, cache and operations: above 0, at most 1.
    pub scale: f64,
    /// Seed of all randomness.
    pub seed: u64,
    /// Settings of the engine, in place of the paper's and of the defaults. The experiment itself chooses
    /// those that it compares.
    pub settings: Settings,
}

impl Default for ReproOptions {
    fn default() -> Self {
        ReproOptions { scale: 1.0, seed: 1, settings: Settings::default() }
    }
}

impl Experiment {
    /// Every experiment.
    pub const ALL: [Experiment; 12] = [
        Experiment::DexTable2,
        Experiment::DexFig8,
        Experiment::DexFig9,
        Experiment::DexFig10,
        Experiment::DexFig11,
        Experiment::DexFig12,
        Experiment::DexLocal,
        Experiment::DartYcsb,
        Experiment::DartTable2,
        Experiment::SmartAmplification,
        Experiment::Peers,
        Experiment::Redis,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::DexTable2 => "dex-table2",
            Experiment::DexFig8 => "dex-fig8",
            Experiment::DexFig9 => "dex-fig9",
            Experiment::DexFig10 => "dex-fig10",
            Experiment::DexFig11 => "dex-fig11",
            Experiment::DexFig12 => "dex-fig12",
            Experiment::DexLocal => "dex-local",
            Experiment::DartYcsb => "dart-ycsb",
            Experiment::DartTable2 => "dart-table2",
            Experiment::SmartAmplification => "smart-amplification",
            Experiment::Peers => "peers",
            Experiment::Redis => "redis",
        }
    }

    /// The experiment's subject, for people.
    pub fn about(self) -> &'static str {
        match self {
            Experiment::DexTable2 => {
                "DEX, Table 2: remote operations and bytes for each index operation"
            }
            Experiment::DexFig8 => "DEX, Figure 8: what each technique adds",
            Experiment::DexFig9 => {
                "DEX, Figure 9: the cooling map against one queue, admission of leaves by chance"
            }
            Experiment::DexFig10 => "DEX, Figure 10: throughput while ranges move to a new server",
            Experiment::DexFig11 => "DEX, Figure 11: throughput over the size of the cache",
            Experiment::DexFig12 => "DEX, Figure 12: offloading over memory servers' threads",
            Experiment::DexLocal => {
                "DEX: a cache that holds all, beside trees in local memory (real time)"
            }
            Experiment::DartYcsb => {
                "DART, Figures 6 and 7: throughput, round trips and bytes of YCSB, every engine"
            }
            Experiment::DartTable2 => "DART, Table 2: memory beside keys and values, every engine",
            Experiment::SmartAmplification => {
                "SMART, section 3: bytes moved for each byte of a pair, every engine"
            }
            Experiment::Peers => "the programs of DEX and Sherman, beside ours by RDMA (real time)",
            Experiment::Redis => "Redis beside dex and btree over TCP: gets, YCSB (real time)",
        }
    }

    /// The default scale: 1 if the experiment's checks are stated for 1, else one at which it takes
    /// a minute or two.
    pub fn usual_scale(self) -> f64 {
        match self {
            Experiment::DexTable2
            | Experiment::DexLocal
            | Experiment::Peers
            | Experiment::Redis => 1.0,
            Experiment::DexFig8 | Experiment::DexFig9 => 0.05,
            Experiment::DexFig11 | Experiment::DexFig12 => 0.02,
            Experiment::DexFig10 => 0.01,
            Experiment::DartYcsb | Experiment::DartTable2 | Experiment::SmartAmplification => {
                radix::USUAL_SCALE
            }
        }
    }

    /// Settings that the experiment chooses itself, or compares.
    fn chosen(self) -> &'static [&'static str] {
        match self {
            Experiment::DexFig8 | Experiment::DexFig12 => &[CACHE, "offload"],
            Experiment::DexFig9 => &[CACHE, "single_queue", "admission"],
            Experiment::DexLocal => &[CACHE, "bulk_fill"],
            Experiment::Peers => &[CACHE, DURABILITY],
            Experiment::Redis => &[CACHE, "admission"],
            Experiment::DexTable2
            | Experiment::DexFig10
            | Experiment::DexFig11
            | Experiment::DartYcsb
            | Experiment::DartTable2
            | Experiment::SmartAmplification => &[CACHE],
        }
    }

    /// Refuses settings that no table of the experiment takes, or that the experiment chooses
    /// itself.
    ///
    /// # Errors
    /// `Setting`, `Chosen`.
    fn check_settings(self, settings: &Settings) -> Result<(), ReproError> {
        let engines: &[Engine] = match self {
            Experiment::Peers | Experiment::Redis => &[Engine::Dex, Engine::BTree],
            Experiment::DartYcsb | Experiment::DartTable2 | Experiment::SmartAmplification => {
                Engine::ALL
            }
            _ => &[Engine::Dex],
        };
        Engine::check_some(engines, settings).map_err(ReproError::Setting)?;
        match settings.iter().find(|(name, _)| self.chosen().contains(name)) {
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
        match self {
            Experiment::DexTable2 => table2::run(options, progress),
            Experiment::DexFig8 => fig8::run(options, progress),
            Experiment::DexFig9 => fig9::run(options, progress),
            Experiment::DexFig10 => fig10::run(options, progress),
            Experiment::DexFig11 => fig11::run(options, progress),
            Experiment::DexFig12 => fig12::run(options, progress),
            Experiment::DexLocal => local::run(options, progress),
            Experiment::DartYcsb => radix::ycsb(options, progress),
            Experiment::DartTable2 => radix::memory(options, progress),
            Experiment::SmartAmplification => radix::amplification(options, progress),
            Experiment::Peers => peers::run(options, progress),
            Experiment::Redis => redis::run(options, hosts, progress),
        }
    }
}

impl FromStr for Experiment {
    type Err = ReproError;

    fn from_str(text: &str) -> Result<Self, ReproError> {
        let lower = text.trim().to_ascii_lowercase();
        let known = || Experiment::ALL.map(Experiment::name);
        Experiment::ALL.into_iter().find(|it| it.name() == lower).ok_or_else(|| {
            ReproError::UnknownExperiment {
                read: text.to_owned(),
                suggestion: nearest(&lower, known()).map(str::to_owned),
                known: known().join(", "),
            }
        })
    }
}
