//! Lab: the demands of the lab and of tests on an engine, each in the engine's own folder.
//!
//! The lab knows no tree. It asks an engine for small shapes, settings to draw, seeded bugs, and the structural changes
//! that its operations make, by name. Only builds with the feature `lab` have this module.

pub mod changes;
mod crash;
mod hunt;

use std::future::Future;

use farleaf_pool::Session;
use fastrand::Rng;

pub use crash::{
    Action, CrashState, CrashStep, INITIAL, Order, Script, Setup, WRITTEN, died_in, grow, keys,
    merges, met, met_before, node_inserts, shrink,
};
pub use hunt::Hunt;

use crate::engine::{Engine, StoredOf};
use crate::{IndexError, Setting, Settings, Spec, TableReport, TableSpec};

/// The size of the nodes of a table in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabSize {
    /// A few keys make a deep structure.
    Tiny,
    /// Small nodes.
    Small,
    /// The engine's.
    Usual,
}

/// A further kind of table of an engine, with crash cases of its own.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in the names of crash cases.
    pub name: &'static str,
    /// Settings of the shape that it has beside those of [`LabSize::Tiny`], as in `nodes=reserve`; none if empty.
    pub settings: &'static str,
    /// Bytes of its values; 8 if not given.
    pub value_bytes: Option<usize>,
    /// Bytes of a usual object.
    pub object_bytes: usize,
    /// Bytes of memory that each compute server exposes in the crash cases; 0 for none.
    pub expose_bytes: u64,
    /// Names of the crash cases that it is tried with; `None` for all.
    pub cases: Option<&'static [&'static str]>,
    /// True if runs from seeds have such tables as well.
    pub is_drawn: bool,
}

impl Variant {
    /// Values of several words, in nodes with room for them.
    pub const WIDE: Variant = Variant {
        name: "wide",
        settings: "node_bytes=512",
        value_bytes: Some(24),
        object_bytes: 512,
        expose_bytes: 0,
        cases: None,
        is_drawn: false,
    };
}

/// An engine as the lab and tests see it.
pub trait Lab: Engine {
    /// True if a change touches few objects of many. Else suites keep the tables small.
    const GROWS: bool = true;
    /// True if long values are stored in another way than short ones.
    const HAS_RECORDS: bool = true;
    /// True if a compute server works on keys that nobody owns without becoming their owner; for engines with owners.
    const HAS_GUESTS: bool = true;
    /// True if the space of a removed key is given up by a task, or when the table is closed.
    const UNLINKS_LATER: bool = false;
    /// Bytes of a memory server in the small pools of crash cases.
    const SERVER_BYTES: u64 = 768 << 10;
    /// Bytes of a redo area there.
    const REDO_BYTES: u32 = 1 << 10;
    /// Names of the work that the engine does by itself while operations run.
    const BACKGROUND: &'static [&'static str] = &[];

    /// Seeded bugs that the lab hunts with this engine, and how.
    fn hunts() -> Vec<Hunt> {
        Vec::new()
    }

    /// Returns the shape of a table of that size for such keys and values.
    fn shape(size: LabSize, spec: &Spec) -> Self::Shape;

    /// Further kinds of tables.
    fn variants() -> &'static [Variant] {
        &[]
    }

    /// Settings for one run of the lab on such tables, drawn from `rng`: small ones, so that caches
    /// run full and rare paths are taken. Names every setting that it draws. The dead must lose nothing. A setting of
    /// the shape counts only if the table leaves it open.
    fn draw(_rng: &mut Rng, _table: &TableSpec<Self::Shape>) -> Settings {
        Settings::default()
    }

    /// Returns whether one operation between two walks has made the structural change `name`.
    fn is_change(_name: &str, _before: &TableReport, _after: &TableReport) -> bool {
        false
    }

    /// Crash cases of this engine beside those of every engine, by name.
    fn cases() -> Vec<(&'static str, CrashState)> {
        Vec::new()
    }

    /// Makes the table look as if it had been changed for ages, so that what counts up wraps soon.
    /// Does nothing where nothing wraps. Nobody may have the table open.
    ///
    /// # Errors
    /// As [`Engine::walk`].
    fn age(
        _session: &Session,
        _table: &StoredOf<Self>,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// Does at once the work of [`Lab::BACKGROUND`] with that name, which the engine would do when it is due.
    ///
    /// # Errors
    /// `Invalid` for another name; those of the work.
    fn work_in_background(
        _table: &Self::Table,
        _session: &Session,
        name: &str,
    ) -> impl Future<Output = Result<(), IndexError>> {
        let unknown = format!("engine {} does no work named \"{name}\"", Self::NAME);
        async { Err(IndexError::Invalid(unknown)) }
    }
}

/// The settings of `text`, as in `nodes=reserve,first_slots=6`.
///
/// # Panics
/// If it has another form.
pub fn settings(text: &str) -> Settings {
    let pairs = text.split(',').filter(|pair| !pair.is_empty()).map(str::parse::<Setting>);
    match pairs.collect() {
        Ok(settings) => settings,
        Err(error) => panic!("settings {text:?} of the lab: {error}"),
    }
}

/// One of a list, drawn from `rng`.
pub fn choose<T: Copy>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.usize(..list.len())]
}
