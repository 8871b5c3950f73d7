//! Express skip table: leads lookups to nodes deep in the tree.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::{Reliable, Session};

use super::Tree;
use super::descent::{NodeRef, Place, Start, Way};
use super::leaf::Leaf;
use super::meta::CheckLine;
use super::outcome::Attempt;
use super::word::Word;
use crate::IndexError;
use crate::index::TableReport;
use crate::walk::Visitor;

/// The starts that an operation has left, in their order.
pub(super) struct Starts {
    line: CheckLine,
    roots: u8,
}

impl Starts {
    /// The root alone.
    pub(super) fn root(line: CheckLine) -> Starts {
        Starts { line, roots: 0 }
    }
}

impl Tree {
    pub(super) async fn starts(
        &self,
        _session: &Session,
        _io: Reliable<'_>,
        _key: &[u8],
        line: CheckLine,
    ) -> Result<Starts, IndexError> {
        Ok(Starts::root(line))
    }

    /// The next start; `None` after the root.
    pub(super) async fn next_start(
        &self,
        session: &Session,
        io: Reliable<'_>,
        starts: &mut Starts,
    ) -> Result<Option<Start>, IndexError> {
        starts.roots += 1;
        match starts.roots {
            1 => Ok(Some(self.root_start(session, io, starts.line).await?)),
            2 if starts.line.is_remembered => {
                Ok(Some(Start::Root(self.fresh_line(session, io).await?)))
            }
            _ => Ok(None),
        }
    }

    /// A start has led to an answer, or has not.
    pub(super) fn starts_ended(
        self: &Arc<Self>,
        _session: &Session,
        _starts: &mut Starts,
        _key: &[u8],
        _way: &Way,
        _trail: &[Place],
        _has_answer: bool,
    ) {
    }

    pub(super) async fn read_counted_leaf(
        &self,
        io: Reliable<'_>,
        word: Word,
    ) -> Result<Leaf, IndexError> {
        self.read_leaf(io, word).await
    }

    /// A CAS has linked a new node.
    pub(super) async fn node_linked(&self, _session: &Session, _key: &[u8], _attempt: &Attempt) {}

    /// A CAS has unlinked `node`, and put `put` in its place.
    pub(super) async fn node_unlinked(
        &self,
        _session: &Session,
        _key: &[u8],
        _node: NodeRef,
        _put: Word,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    pub(super) async fn begin_loading(
        &self,
        _session: &Session,
        _line: CheckLine,
    ) -> Result<(), IndexError> {
        Ok(())
    }

    pub(super) async fn end_loading(
        &self,
        _session: &Session,
        _loading: &mut (),
    ) -> Result<(), IndexError> {
        Ok(())
    }

    /// Visits the objects of the tables; whether the walk goes on.
    pub(super) async fn walk_tables(
        &self,
        _io: Reliable<'_>,
        _tables: u64,
        _visitor: &mut impl Visitor,
        _report: &mut TableReport,
    ) -> Result<bool, IndexError> {
        let _: Option<GlobalAddr> = None;
        Ok(true)
    }
}
