//! Bench: workloads, their distributions, and the runs of them on any engine.
//!
//! These parts need no engine: operations ([`Workload`], [`OpGenerator`], [`LoadPlan`]), keys and
//! values ([`KeyMaker`], [`ValueMaker`]), durations ([`LatencyHistogram`]) and reports ([`Report`]).
//!
//! Items and keys are different things. An *item* is a number, `0..count`, in the order in which
//! items come to exist; a [`KeyMaker`] turns it into a key. Distributions choose items.
//!
//! ```
//! use std::sync::Arc;
//!
//! use farleaf_bench::{ItemSpace, KeyMaker, KeyOrder, OpGenerator, Workload};
//!
//! let workload: Workload = "ycsb-a".parse()?;
//! let space = Arc::new(ItemSpace::new(1_000, None));
//! let mut ops = OpGenerator::new(&workload, space, 42, 0, 1)?;
//! let keys = KeyMaker::U64(KeyOrder::Hashed);
//!
//! let mut key = Vec::with_capacity(keys.key_bytes_max());
//! let op = ops.next_op().expect("workload a inserts nothing, so that items never run out");
//! keys.write_key(op.item, &mut key)?;
//! assert_eq!(key.len(), 8);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod config;
mod distribution;
mod email;
mod generator;
mod histogram;
mod item_space;
#[cfg(test)]
mod item_space_tests;
mod keys;
mod lines;
mod load;
mod machine;
mod mix64;
mod parts;
mod report;
pub mod repro;
mod run;
mod sync;
mod values;
mod workload;
mod ycsb;

pub use farleaf_index::units;

pub use config::{
    BenchConfig, BenchConfigError, CapabilityKind, CardModel, Cluster, FabricKind, LoadKind,
};
pub use distribution::{
    DistributionError, Exponential, Hotspot, ItemChooser, Latest, RequestDistribution, Scramble,
    Sequential, Uniform, ZIPFIAN_THETA_DEFAULT, Zipfian,
};
pub use generator::{Op, OpGenerator};
pub use histogram::LatencyHistogram;
pub use item_space::ItemSpace;
pub use keys::{KeyError, KeyMaker, KeyOrder, KeySpec};
pub use lines::{LineKeys, LinesError};
pub use load::LoadPlan;
pub use machine::Machine;
pub use parts::{Boundaries, Parts, Routing};
pub use report::{
    CounterReport, KindReport, LatencyUs, LoopKind, MemoryReport, PerOp, PhaseReport, Report,
    ReportKind, Row, RunReport, TargetCosts, TimeKind, build_commit,
};
pub use run::{BenchError, NoProgress, Phase, Progress, region_bytes, run};
pub use values::ValueMaker;
pub use workload::{Mix, OpKind, ScanLength, Workload, WorkloadError};
pub use ycsb::{YcsbConfig, YcsbError, YcsbOrigin, YcsbProperties};
