//! Engine interface: everything that store, command, bench and lab may ask of a design.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, Service, ServiceId};
use farleaf_pool::{Audit, Recovery, Session};

use crate::walk::Visitor;
use crate::{Index, IndexError, Knobs, OpenOptions, Shape, Spec, Stored, TableReport, TableSpec};

/// A design of index: how its tables are made, opened, walked and looked after.
///
/// One folder of `engines/` implements it, and one line of the table of engines names it.
pub trait Engine: Sized + 'static {
    /// Its name in roots, on command lines and in reports.
    const NAME: &'static str;
    /// One line for help texts: what it is; paper, venue, year.
    const ABOUT: &'static str;
    /// Its traits.
    const TRAITS: Traits;

    /// Settings of a table that are fixed when it is made.
    type Shape: Shape;
    /// Settings by which one compute server opens a table.
    type Options: Knobs;
    /// An open table.
    type Table: Index + Clone + fmt::Debug;

    /// Completes the shape of a table of such keys and values: the table's root keeps the result. Completing it again
    /// changes nothing. An engine that makes fewer shapes than [`Shape::complete`] refuses the others here.
    ///
    /// # Errors
    /// `Invalid` if the engine has no such tables.
    fn shape_for(spec: &Spec, wanted: Self::Shape) -> Result<Self::Shape, IndexError> {
        wanted.complete(spec)
    }

    /// Makes the remote structure of an empty table; returns the address of its meta object.
    ///
    /// # Errors
    /// `Full` if the pool has no room; `Invalid` if the engine cannot use this pool for such a table.
    fn create(
        session: &Session,
        table: &TableSpec<Self::Shape>,
    ) -> impl Future<Output = Result<GlobalAddr, IndexError>>;

    /// Opens a table in this member of the pool by `options`; of `join` it needs what owners need.
    ///
    /// # Errors
    /// `Invalid` for options that make no sense; `Unavailable` if another member of this compute server has
    /// the table open; `Corrupt`.
    fn open(
        session: &Session,
        table: &StoredOf<Self>,
        options: Self::Options,
        join: &OpenOptions,
    ) -> impl Future<Output = Result<Self::Table, IndexError>>;

    /// Refuses options with which no such table can be opened.
    ///
    /// # Errors
    /// `Invalid`.
    fn check_options(
        _options: &Self::Options,
        _table: &TableSpec<Self::Shape>,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Visits every object of a table and checks it, the meta object first. What the owner of a part has in
    /// its cache alone is not seen. The caller has a pin.
    ///
    /// The order stays the same while nobody changes the table, and every prefix of it can be walked again:
    /// the walk reads nothing behind the object at which the visitor is done. Recovery marks by it, drop
    /// collects by it.
    ///
    /// # Errors
    /// `Corrupt` if the walk cannot go on; `report` has what was found before.
    fn walk(
        session: &Session,
        table: &StoredOf<Self>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> impl Future<Output = Result<(), IndexError>>;

    /// Releases the ranges of dead compute servers, and returns how many servers those were. The pool then holds every
    /// change that they acknowledged.
    ///
    /// # Errors
    /// `Unavailable` if another takes over at the same time, `Corrupt`.
    fn release_dead(
        _session: &Session,
        _table: &StoredOf<Self>,
    ) -> impl Future<Output = Result<usize, IndexError>> {
        async { Ok(0) }
    }

    /// Completes or undoes what the dead have left half done in redo areas of their own
    /// ([`Recovery::clients`]), which the recovery zeroes when it ends. Before the walk that marks.
    ///
    /// # Errors
    /// `Corrupt`, `Unavailable`: the recovery is given up, and begun anew later.
    fn redo_dead(
        _session: &Session,
        _table: &StoredOf<Self>,
        _recovery: &Recovery,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// Removes remote hints, such as entries of a directory, that lead to objects that a recovery or a
    /// sweep is about to free. After all objects of all tables are marked, and before any is freed.
    /// [`Audit::is_marked`] tells: `Some(false)` may be freed; `None` is not this recovery's to free.
    ///
    /// # Errors
    /// As [`Engine::redo_dead`].
    fn before_free(
        _session: &Session,
        _table: &StoredOf<Self>,
        _marks: &Audit,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// Refuses a table of which some compute server owns a part.
    ///
    /// # Errors
    /// `Invalid`, and says who.
    fn check_unowned(
        _session: &Session,
        _table: &StoredOf<Self>,
    ) -> impl Future<Output = Result<(), IndexError>> {
        async { Ok(()) }
    }

    /// Services that memory servers run for the engine. `life` differs from that of every process that ran
    /// them on the same memory before: the time at which the process began, say.
    fn services(_life: u64) -> Vec<(ServiceId, Arc<dyn Service>)> {
        Vec::new()
    }
}

/// A table of the engine `E` in the pool.
pub type StoredOf<E> = Stored<<E as Engine>::Shape>;

/// The traits of a design. Store, command, bench and lab ask this, and compare no names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Compute servers cache nodes; the setting `cache` says how many bytes.
    pub cached: bool,
    /// Compute servers own ranges of keys, which can be moved, and forward operations to owners.
    pub owned: bool,
    /// Acknowledged changes that are only in a cache survive in a log, if the setting `durability` says so.
    pub logged: bool,
    /// Memory servers execute operations; the setting `offload` says which.
    pub offloads: bool,
    /// Compute servers expose memory that other compute servers read.
    pub exposes: bool,
}

impl Traits {
    /// Those of an engine that has none.
    pub const NONE: Traits =
        Traits { cached: false, owned: false, logged: false, offloads: false, exposes: false };

    /// Returns whether compute servers serve such tables: they own keys, or expose memory with a part of the table.
    pub fn is_served(&self) -> bool {
        self.owned || self.exposes
    }

    /// The names of those that it has.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let Traits { cached, owned, logged, offloads, exposes } = *self;
        [
            ("cached", cached),
            ("owned", owned),
            ("logged", logged),
            ("offloads", offloads),
            ("exposes", exposes),
        ]
        .into_iter()
        .filter_map(|(name, has)| has.then_some(name))
    }
}
