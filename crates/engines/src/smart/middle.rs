//! Middle: a key that halves a range, for an engine whose ranges have owners.

use farleaf_index::{IndexError, KeyFormat, ScanRange};
use farleaf_pool::Session;

use super::scan::Item;
use super::tree::{Fail, Tree};

/// So many subtrees of a range tell where its middle is.
const MIDDLE_OF: usize = 64;

impl Tree {
    /// Returns a key in the middle of `range`, by the subtrees that it meets; `None` if it meets fewer than two.
    ///
    /// Cost: 1 READ for each node of the levels down to one with 64 subtrees of the range.
    pub(crate) async fn middle(
        &self,
        session: &Session,
        range: ScanRange<'_>,
    ) -> Result<Option<Vec<u8>>, IndexError> {
        let middle = self.try_middle(session, range).await;
        middle.map_err(|fail| fail.or_unavailable("a walk lost its way: try again"))
    }

    async fn try_middle(
        &self,
        session: &Session,
        range: ScanRange<'_>,
    ) -> Result<Option<Vec<u8>>, Fail> {
        let root = self.root_node(session).await?;
        let mut subtrees = self.expand(&root, &[], &range);
        let is_node = |item: &Item| matches!(item, Item::Child { slot, .. } if !slot.is_leaf());
        while subtrees.len() < MIDDLE_OF && subtrees.iter().any(is_node) {
            let mut below = Vec::new();
            for item in subtrees {
                match item {
                    Item::Child { slot, up, prefix } if !slot.is_leaf() => {
                        let held =
                            self.read_child(session, slot, (&prefix, prefix.len()), up).await?;
                        below.extend(self.expand(&held, &prefix, &range));
                    }
                    leaf => below.push(leaf),
                }
            }
            subtrees = below;
        }
        let prefixes = subtrees.into_iter().filter_map(|item| match item {
            Item::Child { prefix, .. } => Some(prefix),
            _ => None,
        });
        let mut prefixes: Vec<Vec<u8>> = prefixes.collect();
        if prefixes.len() < 2 {
            return Ok(None);
        }
        let middle = prefixes.len() / 2;
        Ok(match self.spec.key {
            // The last key that the left one may hold.
            KeyFormat::Fixed(bytes) => {
                let mut key = prefixes.swap_remove(middle - 1);
                key.resize(bytes, 0xff);
                Some(key)
            }
            // The first key that the right one may hold.
            KeyFormat::Bytes { .. } => Some(prefixes.swap_remove(middle)),
        })
    }
}
