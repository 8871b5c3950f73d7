//! Shape of a B-link tree: its nodes, and the redo records of its changes.

use super::redo::redo_bytes;
use crate::bnode::BnodeShape;
use crate::{IndexError, Shape, Spec};

impl Shape for BnodeShape {
    /// Chooses the size of a node.
    ///
    /// # Errors
    /// `Invalid` if there are no such nodes.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        let bytes = self.layout(spec)?.node_bytes();
        Ok(BnodeShape { node_bytes: Some(bytes as u32), ..self })
    }

    fn node_bytes(&self, spec: &Spec) -> usize {
        self.bytes_of_node(spec)
    }

    fn redo_bytes(&self, spec: &Spec) -> usize {
        redo_bytes(self.bytes_of_node(spec))
    }
}
