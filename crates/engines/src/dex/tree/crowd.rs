//! Crowd: lets operations that find no free frame go through the cache one after the other.
//!
//! A cache has room for the paths of some operations at a time. If there are more, they evict each other's nodes, or
//! each waits for a frame while its own path keeps the frames that the others wait for. So an operation that finds every
//! frame in use asks for the *turn*. While tasks have or want it, the others miss nothing more: each waits until those
//! that asked before it have ended, and goes on. The operation with the turn may take frames of the reserve, so that its
//! path fits, however tall the tree is.
//!
//! - `INV-DEX-CROWD-1` A task that waits for a turn, or for the end of one, holds no frame, pin, mark or latch.
//! - `INV-DEX-CROWD-2` The turn is its session's: the tasks of the operation have it as well, and do not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farleaf_index::local::{LockQueue, QueuePlace};
use farleaf_index::retry::queue_for;
use farleaf_pool::Session;

/// The queue's only key.
const KEY: u64 = 0;

/// Operations that have or want the turn.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    queue: Arc<LockQueue>,
    /// Number of those operations.
    count: AtomicU32,
    /// The session that has the turn, and 1; 0 for none.
    owner: AtomicU64,
}

/// The right to take the last frames. Dropped, the next task has it.
#[derive(Debug)]
pub(super) struct CrowdTurn {
    crowd: Arc<Crowd>,
    /// `None` if those before it take too long: it goes on beside them.
    place: Option<QueuePlace>,
}

impl Crowd {
    /// Returns whether an operation of this session has the turn.
    pub(super) fn has_turn(&self, session: &Session) -> bool {
        self.owner.load(Ordering::SeqCst) == u64::from(session.id()) + 1
    }

    /// Returns whether a task of this session has to let others go first.
    pub(super) fn holds_back(&self, session: &Session) -> bool {
        self.count.load(Ordering::SeqCst) > 0 && !self.has_turn(session)
    }

    /// Waits for the turn.
    pub(super) async fn turn(self: &Arc<Self>, session: &Session) -> CrowdTurn {
        self.count.fetch_add(1, Ordering::SeqCst);
        let mut turn = CrowdTurn { crowd: Arc::clone(self), place: None };
        turn.place = queue_for(session, &self.queue, KEY).await;
        if turn.place.is_some() {
            self.owner.store(u64::from(session.id()) + 1, Ordering::SeqCst);
        }
        turn
    }

    /// Waits until the operations that have asked for the turn by now have ended.
    pub(super) async fn pass(&self, session: &Session) {
        drop(queue_for(session, &self.queue, KEY).await);
    }
}

impl Drop for CrowdTurn {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.crowd.owner.store(0, Ordering::SeqCst);
            drop(place);
        }
        self.crowd.count.fetch_sub(1, Ordering::SeqCst);
    }
}
