//! Aging: makes nodes look as if writers had changed them for a very long time.

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::Session;

use super::BlinkTree;
use super::verify::NODE;
use crate::bnode::{GuardedLeaf, NodeMut, Stamp, level_of};
use crate::walk::Visitor;
use crate::{IndexError, TableReport};

/// Changes that a node's version has left before it wraps.
const LEFT: u64 = 2;

impl BlinkTree {
    /// Seals every node with one of the last versions or stamps that there are, so that they wrap soon. Nobody
    /// else may use the table.
    ///
    /// Cost: 2 READs and 1 WRITE for each node.
    pub async fn age(self: &Arc<Self>, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        let mut nodes = AgedNodes(Vec::new());
        self.walk(session, &mut nodes, &mut TableReport::default()).await?;
        let reliable = session.reliable();
        for (addr, bytes) in nodes.0 {
            let mut image = reliable.read(addr, reliable.buf(bytes)).await?;
            match &self.guarded {
                Some(layout) if level_of(image.words()) == 0 => {
                    let old = image.words().to_vec();
                    let aged = GuardedLeaf::new(layout, &old)
                        .with_stamp(Stamp::of_word(u64::MAX - LEFT), image.words_mut());
                    aged.map_err(|error| self.damaged(addr, error))?;
                }
                _ => NodeMut::new(&self.layout, image.words_mut()).seal(u64::MAX - LEFT),
            }
            reliable.write(addr, image).await?;
        }
        Ok(())
    }
}

struct AgedNodes(Vec<(GlobalAddr, usize)>);

impl Visitor for AgedNodes {
    fn object(&mut self, kind: &'static str, addr: GlobalAddr, bytes: usize) {
        if kind == NODE {
            self.0.push((addr, bytes));
        }
    }
}
