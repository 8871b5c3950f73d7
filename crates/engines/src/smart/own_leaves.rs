//! Own leaves: an owner stores a leaf by WRITEs alone, without a CAS of its lock.
//!
//! - `INV-SMART-13` Of a leaf whose key has an owner, only the owner and takers of dead clients' locks change a word. An
//!   owner WRITEs lock and content in one chain only if a READ has shown the leaf whole, free and last stored by this
//!   compute server in its present life. Also, no own change of the leaf has begun or ended since before that READ, and
//!   none is under way. Every other own change of the leaf waits until the chain has ended. Else the owner takes the
//!   lock by CAS, as it does once with a leaf that another compute server has stored. The words of a READ may be of
//!   different moments. While a dead client's lock is taken over, a READ may show that lock and whole content, though
//!   the taker holds the lock.
//! - `INV-SMART-14` A token of a closed session counts as a dead client's. So a taker asks first, and takes the lock
//!   only if a READ that began later shows the leaf locked or torn by that token. An own leaf that is whole stays whole
//!   until the owner's chain, whose lock word lands first.
//!
//! If an owner dies, the leaf looks as if a client had locked it by CAS. The lock lands in front of the content, and
//! behind a redo record. If a completion is lost, a READ of the leaf answers. If the leaf is not whole by the own token,
//! no other client has taken it, and the chain is posted again. `own_leaf.rs` of the model has both rules.

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Session;

use super::changes::LeafChanges;
use super::ladder::OwnerWrites;
use super::leaf::Leaf;
use super::tree::Tree;

farleaf_fabric::canaries! {
    pub(crate) STORE_LEAF_BESIDE = "store-leaf-beside",
        "an owner stores a leaf that another of its operations has changed since it was read";
}

/// A change of a leaf under way.
#[derive(Debug)]
pub(super) struct OwnLeafChange<'a> {
    changes: Option<&'a LeafChanges>,
    leaf: GlobalAddr,
}

impl Drop for OwnLeafChange<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.changes {
            changes.end(self.leaf);
        }
    }
}

impl Tree {
    fn stores_alone(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.writes() == OwnerWrites::Exclusive)
    }

    /// The moment before a READ of the leaf at `addr`; `None` if it cannot be stored by WRITEs alone.
    pub(super) fn leaf_stamp(&self, addr: GlobalAddr) -> Option<u64> {
        if self.stores_alone() { self.leaf_changes.of(addr) } else { None }
    }

    /// Begins a change of the leaf at `addr` that takes its lock by CAS, once no other one has it alone.
    pub(super) async fn changing_leaf(&self, leaf: GlobalAddr) -> OwnLeafChange<'_> {
        let changes = self.owner.as_ref().map(|_| &self.leaf_changes);
        if let Some(changes) = changes {
            changes.begin(leaf).await;
        }
        OwnLeafChange { changes, leaf }
    }

    /// Begins a change of a leaf that has it alone, if its READ began at `stamp`. Inside the range guard.
    pub(super) fn changing_leaf_alone(
        &self,
        session: &Session,
        (leaf, is_read): (GlobalAddr, Leaf<'_>),
        stamp: Option<u64>,
    ) -> Option<OwnLeafChange<'_>> {
        let stamp = stamp?;
        let is_own = self.owner.as_ref().is_some_and(|owner| owner.owns(is_read.key()));
        if !is_own || !session.is_own_token(is_read.by()) {
            return None;
        }
        let may_begin = |now: Option<u64>| now == Some(stamp) || STORE_LEAF_BESIDE.is_armed();
        let changes = &self.leaf_changes;
        let begins = changes.begin_alone(leaf, may_begin);
        // Not made unless it begins: its drop ends the change.
        begins.then(|| OwnLeafChange { changes: Some(changes), leaf })
    }
}
