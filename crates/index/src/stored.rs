//! Tables as they lie in the pool, for whoever looks after them without using them: recovery, dropping,
//! checks.

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Root, Session};

use crate::IndexError;
use crate::blink::BlinkOptions;
use crate::bnode::Layout;
use crate::drops::retire_all;
use crate::engines::Engine;
use crate::engines::btree::BTree;
use crate::engines::dex;
use crate::index::{Index, TableReport};
use crate::spec::TableFormat;

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

    /// Its nodes; of all engines so far they are those of the B+-tree.
    fn tree(&self) -> BTree {
        BTree::open(self.meta, self.layout, BlinkOptions::default())
    }

    /// Checks what lies in the pool, and marks it in `audit`. What the owner of a part of a table has
    /// in its cache alone is not counted; [`crate::AnyIndex`]'s `verify` writes it back first.
    ///
    /// Cost: 1 READ for each level of each node.
    ///
    /// # Errors
    /// As [`Index::verify`].
    pub async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        match self.format.engine {
            Engine::BTree => self.tree().verify(session, audit).await,
            Engine::Dex => {
                let _pin = session.begin(OpKind::Other).await?;
                dex::verify_stored(session, self.meta, self.layout, audit).await
            }
        }
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
        match self.format.engine {
            Engine::BTree => Ok(0),
            Engine::Dex => dex::release_dead(session, self.meta, self.layout).await,
        }
    }

    /// The compute servers that have something of it to themselves.
    pub(crate) async fn check_unowned(&self, session: &Session) -> Result<(), IndexError> {
        match self.format.engine {
            Engine::BTree => Ok(()),
            Engine::Dex => dex::check_unowned(session, self.meta, self.layout).await,
        }
    }

    /// Objects beside the tree, the first `most` of them.
    async fn extras(
        &self,
        session: &Session,
        most: Option<u64>,
    ) -> Result<Vec<(GlobalAddr, usize)>, IndexError> {
        if self.format.engine == Engine::BTree || most == Some(0) {
            return Ok(Vec::new());
        }
        let mut extras = dex::extras(session, self.meta, self.layout).await?;
        extras.truncate(most.map_or(usize::MAX, |most| most as usize));
        Ok(extras)
    }

    /// The first `left` of the objects that it consists of, or all, in an order that stays the same
    /// while nobody changes it: the meta object, what is beside the tree, the tree's.
    pub(crate) async fn collect(
        &self,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        let extras = {
            let _pin = session.begin(OpKind::Other).await?;
            self.extras(session, left.map(|left| left.saturating_sub(1))).await?
        };
        let left = left.map(|left| left - extras.len() as u64);
        let mut objects = self.tree().collect(session, left).await?;
        let after_meta = objects.len().min(1);
        objects.splice(after_meta..after_meta, extras.into_iter().map(|(addr, _)| addr));
        Ok(objects)
    }

    /// Marks the first `left` of the objects of [`StoredTable::collect`]; what is wrong.
    pub(crate) async fn mark_left(
        &self,
        session: &Session,
        audit: &mut Audit,
        left: u64,
    ) -> Result<Vec<String>, IndexError> {
        let extras = {
            let _pin = session.begin(OpKind::Other).await?;
            self.extras(session, Some(left.saturating_sub(1))).await?
        };
        let mut problems =
            self.tree().mark_left(session, audit, left - extras.len() as u64).await?;
        for (addr, bytes) in extras {
            problems.extend(audit.mark(addr, bytes).err().map(|problem| problem.to_string()));
        }
        Ok(problems)
    }

    /// Frees all that it consists of. Nobody may have come to know of it.
    pub(crate) async fn destroy(&self, session: &Session) -> Result<(), IndexError> {
        let objects = self.collect(session, None).await?;
        retire_all(session, objects).await
    }

    /// Makes its nodes look as if they had been changed for ages: their versions wrap soon. For
    /// tests; nobody may have the table open. Does nothing for [`Engine::Dex`], whose versions are
    /// numbers of changes, in order: 64 bits of them do not wrap.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    ///
    /// # Errors
    /// As [`Index::verify`].
    pub async fn age(&self, session: &Session) -> Result<(), IndexError> {
        match self.format.engine {
            Engine::BTree => self.tree().age(session).await,
            Engine::Dex => Ok(()),
        }
    }
}
