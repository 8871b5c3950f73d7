//! Stored table: a table in the pool that is not open, for recovery, dropping and checks.

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Recovery, Root, Session};

use crate::IndexError;
use crate::bnode::Layout;
use crate::drops::retire_all;
use crate::engine::Engine;
use crate::engines::on_engine;
use crate::index::TableReport;
use crate::spec::TableFormat;
use crate::walk::{Collector, Marker, Visitor};

/// A table in the pool that is not opened. What compute servers that have it open keep to themselves
/// does not show.
#[derive(Clone, Debug)]
pub struct StoredTable {
    format: TableFormat,
    layout: Layout,
    meta: GlobalAddr,
}

impl StoredTable {
    /// The table that `root` names. No remote operation.
    ///
    /// # Errors
    /// `Invalid` for an engine or a version that this program does not have, `Corrupt`.
    pub fn of(root: &Root) -> Result<Self, IndexError> {
        let (format, tree) = TableFormat::from_root(root)?;
        let layout = format.layout().map_err(|error| {
            IndexError::Corrupt(format!("the root of table {:?}: {error}", root.name))
        })?;
        Ok(StoredTable::at(format, layout.for_tree(tree), root.addr))
    }

    /// The table with the meta object at `meta`.
    pub(crate) fn at(format: TableFormat, layout: Layout, meta: GlobalAddr) -> Self {
        StoredTable { format, layout, meta }
    }

    /// Engine, formats and geometry.
    pub fn format(&self) -> &TableFormat {
        &self.format
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where its meta object is.
    pub fn meta(&self) -> GlobalAddr {
        self.meta
    }

    /// Checks what lies in the pool, and marks it in `audit`. What the owner of a part of a table has
    /// in its cache alone is not counted; [`crate::AnyIndex`]'s `verify` writes it back first.
    ///
    /// Cost: 1 READ for each level of each node.
    ///
    /// # Errors
    /// As [`crate::Index::verify`].
    pub async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.mark(session, audit, None).await
    }

    /// Takes from the dead what they had of it: what they had acknowledged is in the pool then, and
    /// nobody owns what was theirs until somebody opens it. How many dead those were.
    ///
    /// Cost: none where compute servers own nothing; else 2 READs, and for each dead one a fence for
    /// each memory server, a change of the ownership map, and what going through its log costs.
    ///
    /// # Errors
    /// `Unavailable` if another takes over at the same time: try again. `Corrupt`.
    pub async fn release_dead(&self, session: &Session) -> Result<usize, IndexError> {
        on_engine!(self.format.engine, Design => Design::release_dead(session, self).await)
    }

    /// See [`Engine::redo_dead`].
    pub(crate) async fn redo_dead(
        &self,
        session: &Session,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::redo_dead(session, self, recovery).await)
    }

    /// See [`Engine::before_free`].
    pub(crate) async fn before_free(
        &self,
        session: &Session,
        marks: &Audit,
    ) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::before_free(session, self, marks).await)
    }

    /// Refuses a table of which some compute server owns a part.
    pub(crate) async fn check_unowned(&self, session: &Session) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::check_unowned(session, self).await)
    }

    /// The first `left` of the objects that it consists of, or all, in the order of [`Engine::walk`].
    ///
    /// Cost: that of a walk.
    pub(crate) async fn collect(
        &self,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        let mut collector = Collector::new(left);
        self.walk(session, &mut collector, &mut TableReport::default()).await?;
        collector.finish()
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
        let (mut marker, mut report) = (Marker::new(audit, left), TableReport::default());
        let walked = self.walk(session, &mut marker, &mut report).await;
        marker.finish(walked, report)
    }

    async fn walk(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        if visitor.is_done() {
            return Ok(());
        }
        let _pin = session.begin(OpKind::Other).await?;
        on_engine!(self.format.engine, Design => Design::walk(session, self, visitor, report).await)
    }

    /// Frees all that it consists of. Nobody may have come to know of it.
    pub(crate) async fn destroy(&self, session: &Session) -> Result<(), IndexError> {
        let objects = self.collect(session, None).await?;
        retire_all(session, objects).await
    }

    /// Makes its nodes look as if they had been changed for ages: their versions wrap soon. For
    /// tests; nobody may have the table open. Does nothing for an engine in which nothing wraps.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    ///
    /// # Errors
    /// As [`crate::Index::verify`].
    pub async fn age(&self, session: &Session) -> Result<(), IndexError> {
        on_engine!(self.format.engine, Design => Design::age(session, self).await)
    }
}
