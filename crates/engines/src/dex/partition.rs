//! Partition: DEX's side of ownership, [`RangeOwner`]; ranges of keys have owners, and leaves one each.
//!
//! - `INV-DEX-PART-1` Every bound is the high fence of a leaf. So a leaf belongs to one partition, and
//!   no leaf is ever shared.
//! - `INV-DEX-PART-2` A node is *exclusive* to a partition if its range lies in it, by its own fences, and
//!   *shared* otherwise. Exclusive nodes are read and written by the partition's owner alone; shared
//!   ones are changed under their remote lock only.
//! - `INV-DEX-PART-3` A node that was cached as shared is taken for exclusive only once its image
//!   has been compared with remote memory, after the map gave all of its range to this compute server.

use farleaf_fabric::{GlobalAddr, Incarnation, OpKind};
use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::compute::ownership::{MapWords, Ownership, Partitions, Range};
use farleaf_index::compute::{Guest, MoveError, RangeOwner};
use farleaf_index::{Change, Entries, IndexError, Outcome, ScanCursor, ScanRange, Seek};
use farleaf_pool::Session;

use super::tree::Need;
use super::{Dex, DexFail, OpContext};

/// The words of the meta object that hold the ownership map.
pub(super) fn map_words(meta: GlobalAddr) -> MapWords {
    let [map, lock] = [0, 1].map(|number| RemoteTree::free_word(meta, number));
    MapWords { meta, map, lock }
}

impl RangeOwner for Dex {
    fn ownership(&self) -> &Ownership {
        &self.0.ownership
    }

    fn takes_key(&self, len: usize) -> bool {
        self.0.layout().takes_key(len)
    }

    fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.0.check_change(change)
    }

    async fn get_own(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let _pin = session.begin(OpKind::Get).await?;
        self.0.get(session, key, value).await
    }

    async fn change_own(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.modify(session, change, held).await
    }

    async fn scan_own(
        &self,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        self.0.scan_own(session, cursor, out).await
    }

    fn guest(&self) -> Option<&Guest> {
        self.0.guest.get().map(|it| &it.guest)
    }

    async fn get_unowned(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.guest_tree().get(session, key, value).await
    }

    async fn change_unowned(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.guest_tree().change(session, change, held).await
    }

    /// By its redo record (`INV-DEX-GUEST-4`).
    async fn finish_dead_guest(&self, session: &Session, dead: u64) -> Result<(), IndexError> {
        let tree = RemoteTree::open(self.meta(), *self.layout(), BlinkOptions::default());
        tree.finish_change_of(session, dead).await
    }

    async fn scan_unowned(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        self.guest_tree().scan(session, range, limit, out).await
    }

    /// Splits the leaf that has `bound` so that it ends there (`INV-DEX-PART-1`).
    async fn make_bound(&self, session: &Session, bound: &[u8]) -> Result<(), IndexError> {
        let mut restarts = OpContext::default();
        loop {
            match self.0.split(session, Need::Bound(bound.to_vec())).await {
                Ok(()) => return Ok(()),
                Err(fail) => restarts.after(fail, &self.0, session).await?,
            }
        }
    }

    /// Cost: 1 READ for each child, of inner nodes that cross `bound`, that is not cached.
    async fn heal_around(&self, session: &Session, bound: &[u8]) -> Result<(), IndexError> {
        self.0.visit_children(session, bound).await
    }

    /// Cost: 1 WRITE each.
    async fn write_back(
        &self,
        session: &Session,
        range: &Range,
        most: usize,
    ) -> Result<usize, IndexError> {
        let tasks = self.0.options.flush_tasks;
        self.0.flush_range(session, range, tasks, most).await
    }

    async fn flush(&self, session: &Session) -> Result<(), IndexError> {
        self.0.flush(session).await
    }

    async fn share_bounds(&self, session: &Session) -> Result<(), MoveError> {
        self.0.share_crossing(session).await
    }

    async fn hand_over(&self, session: &Session, range: &Range) -> Result<(), MoveError> {
        self.0.drop_range(session, range).await?;
        self.0.log.forget_images_in(&self.0.remote, session, range).await?;
        Ok(())
    }

    /// The log of this cache is made, if it needs one, and named in the map.
    async fn prepare_to_own(
        &self,
        session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        self.0.name_log(session, map).await
    }

    async fn take_in(&self, session: &Session) -> Result<(), IndexError> {
        self.0.adopt(session).await
    }

    async fn replay(
        &self,
        session: &Session,
        map: &Partitions,
        dead: Incarnation,
    ) -> Result<(), IndexError> {
        self.0.replay_dead(session, map, dead.0).await
    }

    /// By the separators of the highest level that has some in `range`; `None` if it is all one leaf.
    async fn middle(&self, session: &Session, range: &Range) -> Result<Option<Vec<u8>>, MoveError> {
        let cache = &self.0;
        let _pin = session.begin(OpKind::Maintenance).await.map_err(IndexError::from)?;
        let seek = range.low.as_deref().map_or(Seek::First, Seek::After);
        let Ok(_inside) = cache.ownership.acquire(session, seek).await? else {
            return Err(MoveError::NotOwned);
        };
        // From the root down, along the way to the range's lower end.
        let mut best = Vec::new();
        for level in 1.. {
            let mut restarts = OpContext::default();
            let found = cache.reach(session, seek, level, &mut restarts).await?;
            let Some(spot) = found else { break };
            let mut inside = cache.separators(spot).unwrap_or_default();
            inside.retain(|at| range.holds(at, false) && range.high.as_ref() != Some(at));
            if !inside.is_empty() {
                best = inside;
            }
        }
        Ok((!best.is_empty()).then(|| best.swap_remove(best.len() / 2)))
    }

    fn let_go(&self, session: &Session) {
        session.pool().let_go(self.meta(), &self.0);
    }
}

impl From<DexFail> for MoveError {
    fn from(fail: DexFail) -> Self {
        match fail {
            DexFail::Restart | DexFail::NoFrame => MoveError::Busy,
            DexFail::Error(error) => MoveError::Index(error),
        }
    }
}
