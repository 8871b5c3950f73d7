//! Stored table: a table of any engine in the pool that is not open, for recovery, dropping and checks.

use farleaf_fabric::GlobalAddr;
use farleaf_index::engine::Engine;
use farleaf_index::retire::retire_all;
use farleaf_index::{IndexError, Stored, TableReport};
use farleaf_pool::{Audit, Recovery, Root, Session};

use super::TableFormat;

/// A table in the pool that is not opened. Changes that are only in a compute server's cache are not visible.
#[derive(Clone, Debug)]
pub struct StoredTable {
    format: TableFormat,
    number: u64,
    meta: GlobalAddr,
}

impl StoredTable {
    /// The table that `root` names. No remote operation.
    ///
    /// # Errors
    /// `Invalid` for an engine, a version or a shape that this program does not have, `Corrupt`.
    pub fn of(root: &Root) -> Result<Self, IndexError> {
        let (format, number) = TableFormat::from_root(root)?;
        format.check_build()?;
        let format = format.complete().map_err(|error| {
            IndexError::Corrupt(format!("the root of table {:?}: {error}", root.name))
        })?;
        Ok(StoredTable::new(format, number, root.addr))
    }

    /// The table of that format, which is complete.
    pub(crate) fn new(format: TableFormat, number: u64, meta: GlobalAddr) -> Self {
        StoredTable { format, number, meta }
    }

    /// The table as its engine `D` reads it.
    ///
    /// # Errors
    /// `Corrupt` if it is a table of another engine with a shape that `D` does not have.
    pub fn of_engine<D: Engine>(&self) -> Result<Stored<D::Shape>, IndexError> {
        Ok(Stored { table: self.format.table::<D>(self.number)?, meta: self.meta })
    }

    /// Engine, formats and shape.
    pub fn format(&self) -> &TableFormat {
        &self.format
    }

    /// The address of its meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.meta
    }

    /// Checks what lies in the pool, and marks it in `audit`. Changes that are only in an owner's cache are not counted;
    /// [`crate::AnyIndex`]'s `verify` writes them back first.
    ///
    /// Cost: 1 or 2 READs for each node, many of a level or of a node in one round trip; the engine says more.
    ///
    /// # Errors
    /// As [`farleaf_index::Index::verify`].
    pub async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.mark(session, audit, None).await
    }

    /// Releases the ranges of dead compute servers, and returns how many servers those were. The pool then holds every
    /// change that they acknowledged. The ranges have no owner until a compute server opens the table.
    ///
    /// Cost: none where compute servers own nothing; else 2 READs, and for each dead one a fence for
    /// each memory server, a change of the ownership map, and what going through its log costs.
    ///
    /// # Errors
    /// `Unavailable` if another takes over at the same time: try again. `Corrupt`.
    pub async fn release_dead(&self, session: &Session) -> Result<usize, IndexError> {
        on_engine!(self.format.engine, Design => Design::release_dead(session, &self.of_engine::<Design>()?).await)
    }

    /// See [`Engine::redo_dead`].
    pub(crate) async fn redo_dead(
        &self,
        session: &Session,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::redo_dead(session, &self.of_engine::<Design>()?, recovery).await)
    }

    /// See [`Engine::before_free`].
    pub(crate) async fn before_free(
        &self,
        session: &Session,
        marks: &Audit,
    ) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::before_free(session, &self.of_engine::<Design>()?, marks).await)
    }

    /// Refuses a table of which some compute server owns a part.
    pub(crate) async fn check_unowned(&self, session: &Session) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::check_unowned(session, &self.of_engine::<Design>()?).await)
    }

    /// The first `left` of the objects that it consists of, or all, in the order of [`Engine::walk`].
    ///
    /// Cost: that of a walk.
    pub(crate) async fn collect(
        &self,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        on_engine!(self.format.engine, Design => self.of_engine::<Design>()?.collect::<Design>(session, left).await)
    }

    /// Marks the first `left` of the objects of [`StoredTable::collect`], or all; reports what is wrong.
    ///
    /// Cost: that of a walk.
    pub(crate) async fn mark(
        &self,
        session: &Session,
        audit: &mut Audit,
        left: Option<u64>,
    ) -> Result<TableReport, IndexError> {
        on_engine!(self.format.engine, Design => self.of_engine::<Design>()?.mark::<Design>(session, audit, left).await)
    }

    /// Frees all that it consists of. Nobody may have come to know of it.
    pub(crate) async fn destroy(&self, session: &Session) -> Result<(), IndexError> {
        let objects = self.collect(session, None).await?;
        retire_all(session, objects).await
    }
}
