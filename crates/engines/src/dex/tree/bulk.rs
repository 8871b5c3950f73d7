//! Bulk load: fills an empty table.
//!
//! The loader builds a tree beside the empty one, and replaces that by naming the new root. Every bound
//! is also a leaf's high fence in the new tree (`INV-DEX-PART-1`). The loader owns all partitions and
//! keeps them closed meanwhile, as for a move: the old nodes must stay empty until it has replaced
//! them.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, OpKind};
use farleaf_index::blink::remote::NewTree;
use farleaf_index::bnode::{Node, NodeMut};
use farleaf_index::compute::MoveError;
use farleaf_index::compute::ownership::{Range, WholeTable};
use farleaf_index::detach::{run_to_end, unfinished_change};
use farleaf_index::{IndexError, SortedPairs};
use farleaf_pool::Session;

use super::DexTree;

/// Most nodes of an empty table that another is built for: as many as a session can retire at a time,
/// with room for what waits to be freed.
const EMPTY_NODES_MAX: usize = 400;

impl DexTree {
    /// Builds a tree beside the empty one, which is `whole`, and puts it in its place; the nodes are not cached.
    /// Operations wait meanwhile.
    ///
    /// Cost: 1 READ and 2 WRITEs for each node of the empty table, 1 WRITE for each new one, up to 16 in
    /// one round trip, and 1 for each record; 4 READs and 1 WRITE.
    ///
    /// # Errors
    /// `Invalid` if the table is not empty, or has so many partitions that it must be loaded before it is cut. It
    /// is as it was then.
    pub(crate) async fn fill(
        self: &Arc<Self>,
        session: &Session,
        whole: WholeTable,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let _pin = session.begin(OpKind::BulkLoad).await?;
        self.flush(session).await?;
        let old = self.empty_nodes(session).await?;
        self.drop_range(session, &Range::default()).await.map_err(|error| match error {
            MoveError::Index(error) => error,
            other => IndexError::Unavailable(other.to_string()),
        })?;
        let mut new = self.remote.build(session, pairs, &whole.bounds).await?;
        let count = new.count();
        let (tree, task_session) = (Arc::clone(self), session.clone());
        // The table stays closed until that is done, whatever becomes of the caller.
        let task = async move {
            let _whole = whole;
            tree.replace_all(&task_session, old, &mut new).await
        };
        let placed = run_to_end(session, Box::pin(task), ()).await;
        placed.unwrap_or_else(|| Err(unfinished_change("the change")))?;
        Ok(count)
    }

    /// Returns every node of the tree in remote memory, if it is empty.
    ///
    /// Cost: 1 READ each.
    async fn empty_nodes(&self, session: &Session) -> Result<Vec<(GlobalAddr, Buf)>, IndexError> {
        let (root, top) = self.remote.read_root(session).await?;
        let mut firsts = vec![(root, top)];
        while let Some((addr, level @ 1..)) = firsts.last().copied() {
            let image = self.whole_node(session, addr, level).await?;
            let first = Node::new(self.layout(), image.words()).child(0);
            firsts.push((self.remote.pointer(first.unwrap_or(0), addr)?, level - 1));
        }
        let mut nodes = Vec::new();
        // Leaves first: of a table that is not empty not much is read.
        for (first, level) in firsts.into_iter().rev() {
            let mut next = Some(first);
            while let Some(addr) = next {
                let image = self.whole_node(session, addr, level).await?;
                let node = Node::new(self.layout(), image.words());
                if level == 0 && node.count() > 0 {
                    return Err(not_empty());
                }
                if nodes.len() == EMPTY_NODES_MAX {
                    return Err(IndexError::Invalid(
                        "a table of so many partitions is loaded in bulk before it is cut".into(),
                    ));
                }
                next = match node.right() {
                    0 => None,
                    right => Some(self.remote.pointer(right, addr)?),
                };
                nodes.push((addr, image));
            }
        }
        Ok(nodes)
    }

    async fn whole_node(
        &self,
        session: &Session,
        addr: GlobalAddr,
        level: u8,
    ) -> Result<Buf, IndexError> {
        let image = self.remote.read_shared(session, addr, level).await?;
        image.ok_or_else(|| {
            IndexError::Unavailable(format!(
                "a death has left node {addr} half merged: use the table, and load it then"
            ))
        })
    }

    /// Puts the new tree in the place of the `old` nodes, which no compute server caches, by naming another
    /// root.
    async fn replace_all(
        self: &Arc<Self>,
        session: &Session,
        old: Vec<(GlobalAddr, Buf)>,
        new: &mut NewTree,
    ) -> Result<(), IndexError> {
        let mut retiring = Vec::new();
        for (addr, _) in &old {
            retiring.push(session.prepare_retire(*addr).await?);
        }
        // Nobody may replay changes of the empty table into the new one.
        self.log.void(session).await?;
        new.keep();
        let (addr, level) = new.root();
        let published = self.publish_root(session, addr, level).await;
        self.ownership.must_succeed(published)?;
        // Compute servers with old copies of shared nodes are led to dead nodes, and then to the root word.
        for (addr, mut image) in old {
            let version = Node::new(self.layout(), image.words()).version() + 1;
            let mut dead = NodeMut::new(self.layout(), image.words_mut());
            dead.mark_dead();
            dead.seal(version);
            let written = self.write_page(session, addr, image, 8).await;
            self.ownership.must_succeed(written)?;
            let forgotten = self.log.forget_images(session, addr).await;
            self.ownership.must_succeed(forgotten)?;
        }
        retiring.into_iter().for_each(|retiring| session.retire(retiring));
        Ok(())
    }
}

fn not_empty() -> IndexError {
    IndexError::Invalid("a bulk load needs an empty table, and this one has keys".into())
}
