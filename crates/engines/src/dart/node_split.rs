//! Node splits: new nodes over a leaf, or over an inner node, where a key leaves the way to it.
//!
//! A common path of more than 15 bytes is a chain of nodes with one child each. It is built privately and
//! published by one CAS.

use farleaf_fabric::Ops;
use farleaf_index::IndexError;
use farleaf_pool::{Session, Unlinked};

use super::DartTree;
use super::descent::SlotPlace;
use super::word::{DartNodeType, LEN_MAX, SlotWord, Step};

/// Positions of the nodes of a chain that leads from behind `from` bytes to a node at `to`, and the compressed
/// bytes in front of that.
pub(super) fn chain(from: usize, to: usize) -> (Vec<usize>, usize) {
    let (mut positions, mut base) = (Vec::new(), from);
    while to - base > LEN_MAX {
        positions.push(base + LEN_MAX);
        base += LEN_MAX + 1;
    }
    (positions, to - base)
}

impl DartTree {
    /// Makes a node at position `to` with `children`, and the chain that leads to it from `place` along `key`.
    /// Adds the WRITEs to `ops`. Returns the word for `place`, and the objects.
    pub(super) async fn new_branch(
        &self,
        session: &Session,
        ops: &mut Ops,
        place: &SlotPlace,
        key: &[u8],
        to: usize,
        children: &[SlotWord],
    ) -> Result<(SlotWord, Vec<Unlinked>), IndexError> {
        let (positions, mut len) = chain(place.bytes_before_child(), to);
        let kind = self.shape.fit(children);
        let mut objects = vec![self.new_node(session, ops, kind, children).await?];
        let mut child = (kind, objects[0].addr());
        for position in positions.into_iter().rev() {
            let word = SlotWord::node(Step::at(key, position), len, child.0, child.1);
            let node = self.new_node(session, ops, DartNodeType::N8, &[word]).await?;
            child = (DartNodeType::N8, node.addr());
            objects.push(node);
            len = LEN_MAX;
        }
        Ok((SlotWord::node(place.step, len, child.0, child.1), objects))
    }

    /// Makes a node of that type, and adds its WRITE to `ops`.
    pub(super) async fn new_node(
        &self,
        session: &Session,
        ops: &mut Ops,
        kind: DartNodeType,
        children: &[SlotWord],
    ) -> Result<Unlinked, IndexError> {
        let node = session.alloc_unlinked(session.place(), self.shape.bytes(kind)).await?;
        let mut content = session.client().buf(node.bytes());
        self.shape.fill(kind, children, content.words_mut());
        node.write_in(ops, content);
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_take_sixteen_bytes_a_node() {
        assert_eq!(chain(0, 15), (vec![], 15));
        assert_eq!(chain(0, 16), (vec![15], 0));
        assert_eq!(chain(1, 17), (vec![16], 0));
        assert_eq!(chain(0, 31), (vec![15], 15));
        assert_eq!(chain(0, 32), (vec![15, 31], 0));
        assert_eq!(chain(3, 36), (vec![18, 34], 1));
        let (positions, len) = chain(5, 205);
        assert_eq!((positions.len(), len), (12, 8));
        assert!(positions.windows(2).all(|pair| pair[1] - pair[0] == 16));
    }
}
