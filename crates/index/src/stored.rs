//! Stored table: the spec and the address of a table in the pool, for the engine that reads it.

use std::ops::Deref;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Session};

use crate::engine::Engine;
use crate::walk::{Collector, Marker, Visitor};
use crate::{IndexError, Shape, TableReport, TableSpec};

/// A table in the pool as its engine needs it, be it open or not.
#[derive(Clone, Copy, Debug)]
pub struct Stored<S> {
    /// Keys, values and shape.
    pub table: TableSpec<S>,
    /// The address of its meta object.
    pub meta: GlobalAddr,
}

impl<S> Deref for Stored<S> {
    type Target = TableSpec<S>;

    fn deref(&self) -> &TableSpec<S> {
        &self.table
    }
}

impl<S: Shape> Stored<S> {
    /// The first `left` of the objects that it consists of, or all, in the order of [`Engine::walk`] of its
    /// engine.
    ///
    /// Cost: that of a walk.
    ///
    /// # Errors
    /// Those of the walk; `Corrupt` if there are fewer objects than `left`, or one is linked twice.
    pub async fn collect<E: Engine<Shape = S>>(
        &self,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        let mut collector = Collector::new(left);
        self.walk::<E>(session, &mut collector, &mut TableReport::default()).await?;
        collector.finish()
    }

    /// Marks the first `left` of the objects of [`Stored::collect`], or all; reports what is wrong.
    ///
    /// Cost: that of a walk.
    ///
    /// # Errors
    /// Those of the walk.
    pub async fn mark<E: Engine<Shape = S>>(
        &self,
        session: &Session,
        audit: &mut Audit,
        left: Option<u64>,
    ) -> Result<TableReport, IndexError> {
        let (mut marker, mut report) = (Marker::new(audit, left), TableReport::default());
        let walked = self.walk::<E>(session, &mut marker, &mut report).await;
        marker.finish(walked, report)
    }

    async fn walk<E: Engine<Shape = S>>(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        if visitor.is_done() {
            return Ok(());
        }
        let _pin = session.begin(OpKind::Other).await?;
        E::walk(session, self, visitor, report).await
    }
}
