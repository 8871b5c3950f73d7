//! Guests of DEX: the remote tree in which a compute server works on keys that nobody owns ([`farleaf_index::compute`]).
//!
//! A guest works by [`farleaf_index::blink`]'s protocol, as on a shared node.
//!
//! - `INV-DEX-GUEST-3` A guest merges no nodes, because others may have cached the shared ones above
//!   (`INV-DEX-SHARED-1`).
//! - `INV-DEX-GUEST-4` The lock of the map is taken over from a dead guest only when the redo record of its last
//!   change has been carried out. Every change of a guest has one where a WRITE can be cut short. So an owner
//!   meets whole nodes, and ignores the lock words that a dead guest has left.

use std::sync::Arc;

use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::compute::Unowned;
use farleaf_index::{Change, Entries, IndexError, Outcome, ScanRange};
use farleaf_pool::Session;

use super::DexTree;

/// The tree in which a guest works: the remote one, by the protocol that is safe beside others.
#[derive(Debug)]
pub struct DexGuest(RemoteTree);

impl Unowned<DexTree> for DexGuest {
    fn new(tree: &Arc<DexTree>) -> Option<Self> {
        let options = BlinkOptions { merge_low: 0.0, ..BlinkOptions::default() };
        let remote = RemoteTree::open(tree.remote.meta(), *tree.layout(), options);
        remote.set_subtree_level(tree.remote.subtree_level());
        Some(DexGuest(remote))
    }

    async fn get(
        &self,
        _tree: &Arc<DexTree>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.get(session, key, value).await
    }

    async fn change(
        &self,
        _tree: &Arc<DexTree>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.change(session, change, held).await
    }

    async fn scan(
        &self,
        _tree: &Arc<DexTree>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.0.scan(session, range, limit, out).await
    }

    /// By its redo record (`INV-DEX-GUEST-4`).
    async fn finish_dead(
        tree: &Arc<DexTree>,
        session: &Session,
        dead: u64,
    ) -> Result<(), IndexError> {
        let (meta, layout) = (tree.remote.meta(), *tree.layout());
        let remote = RemoteTree::open(meta, layout, BlinkOptions::default());
        remote.finish_change_of(session, dead).await
    }
}
