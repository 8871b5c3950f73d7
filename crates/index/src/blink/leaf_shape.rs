//! Shape of a tree with guarded leaves: the layouts that follow from a table's settings.

use super::redo::redo_bytes_beside;
use crate::bnode::{BnodeShape, GuardedLayout, GuardedLayoutError, Layout};
use crate::{IndexError, Shape, Spec};

/// Lock words of each memory server unless the table says otherwise.
const LOCK_WORDS: u32 = 1 << 16;
/// Leaves have multiples of this size, up to the largest.
const LEAF_BYTES_STEP: usize = 64;
const LEAF_BYTES_MAX: usize = 64 << 10;

/// The layouts of a table's nodes.
#[derive(Clone, Copy, Debug)]
pub struct TreeLayouts {
    /// Of inner nodes, and of all leaves that are not guarded.
    pub nodes: Layout,
    /// Of leaves whose slots are written one by one.
    pub leaves: Option<GuardedLayout>,
}

/// Settings of a tree whose leaves are guarded if keys and values have a fixed length in whole words.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardedShape {
    /// Bytes of an inner node, and of a leaf that is not guarded.
    pub node_bytes: Option<u32>,
    /// Bytes of a guarded leaf. If they are not given, and `usual_leaf_bytes` hold too few pairs, the least that are enough.
    pub leaf_bytes: Option<u32>,
    /// Bytes of a guarded leaf if the table does not say.
    pub usual_leaf_bytes: usize,
    /// Most entries of a leaf.
    pub cap_leaf: Option<u16>,
    /// Most separators of an inner node.
    pub cap_inner: Option<u16>,
    /// Slots in which a key of a guarded leaf may lie; 0 for all.
    pub neighbourhood: usize,
}

impl GuardedShape {
    /// The layouts of such a table, bound to the tree of that number. No cost.
    ///
    /// # Errors
    /// `Invalid`, with what would fit.
    pub fn layouts(&self, spec: &Spec, number: u64) -> Result<TreeLayouts, IndexError> {
        let GuardedShape { node_bytes, leaf_bytes, cap_leaf, cap_inner, .. } = *self;
        let inner = BnodeShape { node_bytes, cap_inner, cap_leaf: None };
        let wanted = leaf_bytes.map_or(self.usual_leaf_bytes, |bytes| bytes as usize);
        let leaves = match self.leaves(wanted, spec, number) {
            Err(GuardedLayoutError::Format) => None,
            Err(_) if leaf_bytes.is_none() => Some(self.least_leaf(wanted, spec, number)?),
            Err(error) => return Err(IndexError::Invalid(error.to_string())),
            Ok(leaves) => Some(leaves),
        };
        if leaves.is_some() {
            let nodes = inner.layout(spec)?.for_tree(number);
            return Ok(TreeLayouts { nodes, leaves });
        }
        let nodes = BnodeShape { cap_leaf, ..inner }.layout(spec)?.for_tree(number);
        if leaf_bytes.is_some_and(|bytes| bytes as usize != nodes.node_bytes()) {
            return Err(IndexError::Invalid(format!(
                "leaf_bytes of a table whose keys or values have no fixed length in whole words are node_bytes, here {}: \
                 leave them out, or set node_bytes",
                nodes.node_bytes()
            )));
        }
        Ok(TreeLayouts { nodes, leaves })
    }

    fn leaves(
        &self,
        bytes: usize,
        spec: &Spec,
        number: u64,
    ) -> Result<GuardedLayout, GuardedLayoutError> {
        let leaves = GuardedLayout::new(bytes, spec, self.cap_leaf, number)?;
        if self.neighbourhood == 0 {
            Ok(leaves)
        } else {
            leaves.with_neighbourhood(self.neighbourhood)
        }
    }

    /// The smallest leaf from `wanted` bytes on that has as many slots as it must.
    fn least_leaf(
        &self,
        wanted: usize,
        spec: &Spec,
        number: u64,
    ) -> Result<GuardedLayout, IndexError> {
        let sizes =
            (wanted.next_multiple_of(LEAF_BYTES_STEP)..=LEAF_BYTES_MAX).step_by(LEAF_BYTES_STEP);
        let mut last = IndexError::Invalid(format!("no leaf has {wanted} bytes"));
        for bytes in sizes {
            match self.leaves(bytes, spec, number) {
                Ok(leaves) => return Ok(leaves),
                Err(error) => last = IndexError::Invalid(error.to_string()),
            }
        }
        Err(last)
    }

    /// Bytes of an inner node.
    pub fn node_bytes(&self, spec: &Spec) -> usize {
        let node_bytes = self.node_bytes;
        BnodeShape { node_bytes, ..BnodeShape::default() }.node_bytes(spec)
    }

    /// Bytes that such a table needs of each redo area, once its leaves have their size.
    pub fn redo_bytes(&self, spec: &Spec) -> usize {
        let node_bytes = self.node_bytes(spec);
        redo_bytes_beside(node_bytes, self.leaf_bytes.map_or(node_bytes, |bytes| bytes as usize))
    }
}

/// Lock words of each memory server, a power of two.
///
/// # Errors
/// `Invalid` for another number.
pub fn lock_words(wanted: Option<u32>) -> Result<u32, IndexError> {
    let words = wanted.unwrap_or(LOCK_WORDS);
    if words.is_power_of_two() {
        return Ok(words);
    }
    Err(IndexError::Invalid(format!(
        "lock_words of {words}: a power of two is expected, such as {}",
        words.next_power_of_two()
    )))
}
