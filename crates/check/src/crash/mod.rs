//! Crash points: kills a compute server at each remote operation of each action, one by one.
//!
//! It dies before the operation, after it, or within it.
//!
//! A [`CrashCase`] is an action of a compute server in a state in which it does something
//! particular. Actions are an insert, a scan, joining, recovery itself; states let it split a leaf,
//! grow the root, take the last object of a block. A run without a death counts the action's remote
//! operations. Then there is one run for each operation and each way to die there. In each, the
//! survivors go on at once: two clients read and change the keys concerned and their neighbours, a
//! third recovers the dead. A compute server that was only stopped goes on after that. The lab
//! checks:
//!
//! - `CHECK-1` The answers of all clients have an order in which each is right, with the dead
//!   action done at some moment or never.
//! - `CHECK-2` No other key has changed; a scan, a reverse scan and gets agree.
//! - `CHECK-3` The engine's `verify` and the pool's audit have nothing to say, and every object is
//!   live, free or retired. One exception: an object that the dead had taken out of a table, in a
//!   survivor's block, may be lost for a while. It is found once the survivor has left and a sweep
//!   has passed the block; the run does both.
//! - `CHECK-4` Every entry of the member, client and root tables can be claimed again.
//! - `CHECK-5` A zombie changes no word of a memory server, nor in the region of a living compute server, and learns that
//!   it has been cut off.
//! - `CHECK-6` All this takes bounded virtual time, and no survivor meets an error.
//!
//! Compute servers of some variants expose memory, publish it, and do the regular work on partitions. They hold the lines of
//! the table by their settings. In some cases a third one lives and changes keys beside the action; its death, alone or with
//! the actor's, adds points.
//!
//! A point has a name, `ENGINE/u64-tiny/insert-root-growth#k=7,within=prefix:3`, and everything that
//! happens there follows from it; [`by_name`] runs it again.

mod action;
mod all;
mod cases;
mod formats;
mod point;
mod run;
mod state;
mod survivors;

use std::fmt;
use std::sync::{Arc, OnceLock};

use farleaf_engines::Engine;
use farleaf_fabric::Capabilities;
use farleaf_fabric::sim::CountedOp;
use farleaf_harness::HarnessError;
use farleaf_index::lab::Setup;

pub use all::{CrashOptions, CrashReport, Progress, run_all};
pub use point::{CrashPoint, NoCrashPoint};

use crate::run::caught;
use formats::Format;
use state::{Found, Start};

/// One action in one state, on a table of one engine and format. Clones share the state that the
/// first of them has found.
#[derive(Clone)]
pub struct CrashCase(Arc<Case>);

struct Case {
    name: String,
    start: Start,
    prepared: OnceLock<Result<Prepared, CrashFault>>,
}

struct Prepared {
    found: Found,
    ops: Vec<CountedOp>,
}

/// A death after which a check failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what}")]
pub struct CrashFailure {
    /// The name by which [`by_name`] runs it again.
    pub name: String,
    /// The check's finding.
    pub what: String,
    /// The state or the death was not reached, so that nothing was checked.
    pub is_missed: bool,
}

/// The end of a run that did not pass.
#[derive(Clone, Debug)]
enum CrashFault {
    /// The run did not come to what the case is there for.
    Missed(String),
    /// A check failed.
    Found(String),
}

impl CrashFault {
    /// The error of a step that only leads to what the case is there for.
    fn missed(error: HarnessError) -> CrashFault {
        CrashFault::Missed(error.0)
    }

    fn into_error(self) -> HarnessError {
        let (CrashFault::Missed(what) | CrashFault::Found(what)) = self;
        HarnessError(what)
    }

    fn at(self, name: String) -> CrashFailure {
        let is_missed = matches!(self, CrashFault::Missed(_));
        let (CrashFault::Missed(what) | CrashFault::Found(what)) = self;
        CrashFailure { name, what, is_missed }
    }
}

impl<E> From<E> for CrashFault
where
    HarnessError: From<E>,
{
    fn from(error: E) -> CrashFault {
        CrashFault::Found(HarnessError::from(error).0)
    }
}

/// Every case of every engine and format.
pub fn cases() -> Vec<CrashCase> {
    let mut cases = Vec::new();
    for engine in Engine::ALL {
        for format in Format::of(*engine) {
            for (action, state) in cases::table(*engine, format.variant) {
                let name = format!("{engine}/{}/{action}", format.name);
                let seed = name.bytes().fold(7, |seed: u64, byte| {
                    seed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
                });
                let (start, prepared) = (Start { seed, format, state }, OnceLock::new());
                cases.push(CrashCase(Arc::new(Case { name, start, prepared })));
            }
        }
    }
    cases
}

/// Runs the point called `name`, as in
/// `ENGINE/u64-tiny/insert-root-growth#k=7,within=prefix:3`.
///
/// # Errors
/// The failed check; also a name that stands for no point.
pub fn by_name(name: &str) -> Result<(), CrashFailure> {
    let none = |what: &str| CrashFault::Missed(what.to_owned()).at(name.to_owned());
    let (case, point) = name.split_once('#').ok_or_else(|| none("no # between case and point"))?;
    let point: CrashPoint =
        point.parse().map_err(|error: NoCrashPoint| none(&error.to_string()))?;
    let case = cases().into_iter().find(|other| other.name() == case);
    case.ok_or_else(|| none("there is no such case"))?.run(point).map(drop)
}

impl CrashCase {
    /// Engine, format and action: `ENGINE/u64-tiny/insert-root-growth`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns whether it has hundreds of points, most of them waits, so that the default run leaves it out.
    pub fn is_patient(&self) -> bool {
        self.0.start.state.is_patient
    }

    /// Every point at which the compute server can die. The first call finds the state and makes a
    /// run without a death.
    ///
    /// # Errors
    /// If there is no such state, or the action fails without a death.
    pub fn points(&self) -> Result<Vec<CrashPoint>, CrashFailure> {
        let Prepared { found, ops } = self.prepared()?;
        let owners = self.0.start.state.setup == Setup::Beside;
        let mut points = CrashPoint::all(ops, Capabilities::NONE.crash_atomic_bytes, owners);
        // Before it loses an operation, it does what a case without the loss does.
        points.retain(|point| found.lost.is_none_or(|lost| point.0.op >= lost));
        Ok(points)
    }

    /// Remote operations of the action.
    ///
    /// # Errors
    /// As [`CrashCase::points`].
    pub fn ops(&self) -> Result<usize, CrashFailure> {
        Ok(self.prepared()?.ops.len())
    }

    /// Dies at `point`, takes over and checks everything. Takes some milliseconds of real time.
    /// Returns the number of objects that only a later sweep found (`CHECK-3`).
    ///
    /// # Errors
    /// The failed check.
    pub fn run(&self, point: CrashPoint) -> Result<u64, CrashFailure> {
        let prepared = self.prepared()?;
        let name = format!("{}#{point}", self.name());
        guarded(&name, || run::run(&self.0.start, &prepared.found, point))
            .map_err(|fault| fault.at(name))
    }

    fn prepared(&self) -> Result<&Prepared, CrashFailure> {
        let Case { name, start, prepared } = &*self.0;
        let prepared = prepared.get_or_init(|| {
            guarded(name, || {
                let found = state::find(start, run::TRIALS).map_err(CrashFault::missed)?;
                let ops = run::without_death(start, &found)?;
                Ok(Prepared { found, ops })
            })
        });
        prepared.as_ref().map_err(|fault| fault.clone().at(name.clone()))
    }
}

impl fmt::Debug for CrashCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CrashCase({})", self.name())
    }
}

/// Runs the case or the point of that name; a panic is a finding.
fn guarded<T>(name: &str, run: impl FnOnce() -> Result<T, CrashFault>) -> Result<T, CrashFault> {
    caught(name, run).unwrap_or_else(|panic| Err(CrashFault::Found(format!("panicked: {panic}"))))
}
