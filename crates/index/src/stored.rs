//! Stored tree: the geometry and the address of a table in the pool, for the engine that reads it.

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Session};

use crate::bnode::Layout;
use crate::engine::Engine;
use crate::walk::{Collector, Marker, Visitor};
use crate::{IndexError, TableReport};

/// A table in the pool as its engine needs it, be it open or not.
#[derive(Clone, Debug)]
pub struct Stored {
    layout: Layout,
    meta: GlobalAddr,
}

impl Stored {
    /// The table with the meta object at `meta`, whose nodes have that geometry.
    pub fn new(layout: Layout, meta: GlobalAddr) -> Self {
        Stored { layout, meta }
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The address of its meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.meta
    }

    /// The first `left` of the objects that it consists of, or all, in the order of [`Engine::walk`] of its
    /// engine.
    ///
    /// Cost: that of a walk.
    ///
    /// # Errors
    /// Those of the walk; `Corrupt` if there are fewer objects than `left`, or one is linked twice.
    pub async fn collect<E: Engine>(
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
    pub async fn mark<E: Engine>(
        &self,
        session: &Session,
        audit: &mut Audit,
        left: Option<u64>,
    ) -> Result<TableReport, IndexError> {
        let (mut marker, mut report) = (Marker::new(audit, left), TableReport::default());
        let walked = self.walk::<E>(session, &mut marker, &mut report).await;
        marker.finish(walked, report)
    }

    async fn walk<E: Engine>(
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
