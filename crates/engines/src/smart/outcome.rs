//! Outcome: tells whether a slot's CAS whose completion was lost has happened.
//!
//! Such a CAS is never just posted again. Over a slot without a child, others may have removed the new leaf,
//! unlinked and freed it since; a second CAS would link freed memory. What the slot, the tree and the leaf's lock say
//! together decides: a leaf that no client has locked and that no path reaches was never linked (INV-SMART-4).

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::retry::Attempts;
use farleaf_pool::{Session, Tries};

use super::layout::Slot;
use super::tree::{Fail, Tree};

farleaf_fabric::canaries! {
    pub(crate) REPOST_SLOT_CAS = "repost-slot-cas",
        "a slot's lost CAS is posted again, and its answer believed";
}

/// A leaf that a CAS makes reachable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linking<'a> {
    /// Its key.
    pub(super) key: &'a [u8],
    pub(super) addr: GlobalAddr,
    pub(super) lock_addr: GlobalAddr,
    /// The token that its lock holds until somebody locks it.
    pub(super) token: u64,
}

impl Tree {
    /// Stores `new`, by which `leaf` is reached, in the slot at `at` if that holds `expected`; otherwise the inner
    /// error is what it holds, and `leaf` has not been linked. 1 CAS.
    ///
    /// # Errors
    /// Only final ones: the session has no deadline.
    pub(super) async fn link(
        &self,
        session: &Session,
        at: GlobalAddr,
        (expected, new): (Slot, Slot),
        leaf: Linking<'_>,
    ) -> Result<Result<(), Slot>, IndexError> {
        let mark = session.reliable().post_mark();
        let error = match session.client().cas(at, expected.0, new.0).await {
            Ok(found) if found == expected.0 => return Ok(Ok(())),
            Ok(found) => return Ok(Err(Slot(found))),
            Err(error) => error,
        };
        session.reliable().again(&mut Tries::default(), mark, error).await?;
        if REPOST_SLOT_CAS.is_armed() {
            let found = session.reliable().cas(at, expected.0, new.0).await?;
            let is_linked = [expected.0, new.0].contains(&found);
            return Ok(if is_linked { Ok(()) } else { Err(Slot(found)) });
        }
        let now = Slot(session.reliable().word(at).await?);
        let is_linked = now.thawed() == new
            || self.reaches(session, leaf.key, leaf.addr).await?
            || session.reliable().word(leaf.lock_addr).await? != leaf.token;
        Ok(if is_linked { Ok(()) } else { Err(now) })
    }

    /// Returns whether the way from the root to `key` passes the object at `addr`.
    pub(super) async fn reaches(
        &self,
        session: &Session,
        key: &[u8],
        addr: GlobalAddr,
    ) -> Result<bool, IndexError> {
        let mut attempts = Attempts::default();
        loop {
            match self.way(session, key).await {
                Ok(path) => return Ok(path.reaches(addr)),
                Err(Fail::Again) => attempts.again(session).await?,
                Err(Fail::Error(error)) => return Err(error),
            }
        }
    }
}
