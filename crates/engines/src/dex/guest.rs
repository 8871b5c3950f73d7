//! Guests of DEX: the remote tree in which a compute server works on keys that nobody owns ([`farleaf_index::compute`]).
//!
//! A guest works by [`farleaf_index::blink`]'s protocol, as on a shared node.
//!
//! - `INV-DEX-GUEST-3` A guest merges no nodes, because others may have cached the shared ones above
//!   (`INV-DEX-SHARED-1`).
//! - `INV-DEX-GUEST-4` The lock of the map is taken over from a dead guest only when the redo record of its last
//!   change has been carried out. Every change of a guest has one where a WRITE can be cut short. So an owner
//!   meets whole nodes, and ignores the lock words that a dead guest has left.

use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::compute::Guest;

use super::Dex;

/// The right to work on keys that nobody owns, and the tree to do it in.
#[derive(Debug)]
pub(super) struct DexGuest {
    pub(super) guest: Guest,
    remote: RemoteTree,
}

impl Dex {
    /// Makes this compute server a guest, for so many operations on keys that nobody owns.
    pub(super) fn be_guest(&self, operations: u64) {
        let (guest, remote) = (Guest::new(operations), self.shared_tree());
        // The second opening of a table in a member gets the first one's cache.
        let _ = self.0.guest.set(DexGuest { guest, remote });
    }

    /// The remote tree by the protocol that is safe beside others.
    fn shared_tree(&self) -> RemoteTree {
        let options = BlinkOptions { merge_low: 0.0, ..BlinkOptions::default() };
        let remote = RemoteTree::open(self.0.remote.meta(), *self.0.layout(), options);
        remote.set_subtree_level(self.0.remote.subtree_level());
        remote
    }

    pub(super) fn guest_tree(&self) -> RemoteTree {
        self.0.guest.get().map_or_else(|| self.shared_tree(), |it| it.remote.clone())
    }
}
