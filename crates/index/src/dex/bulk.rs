//! Filling an empty table.

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_pool::Session;

use super::frames::TOP;
use super::mapping_table::Entry;
use super::ops::unfinished_change;
use super::walk::Seek;
use super::{Cache, Fail, Found, Restarts};
use crate::IndexError;
use crate::btree::remote::{NewTree, Remote};
use crate::index::SortedPairs;
use crate::node::{Kind, NodeMut};

/// Tries at taking the place of the root.
const TRIES_MAX: u32 = 1_000;

impl Cache {
    /// Builds a tree beside the empty one and puts it in its place; the nodes are not cached.
    ///
    /// Cost: 1 WRITE per node, up to 16 in one round trip, and 1 per record; then 3 WRITEs.
    pub(super) async fn bulk_load<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        // Where nodes go is known then. Of one with an ownership map, the caller has seen to it.
        let mut restarts = Restarts::default();
        while let Err(fail) = self.own(session).await {
            restarts.after(fail, self, session).await?;
        }
        let mut new = self.remote.build(session, pairs).await?;
        let count = new.count();
        let (cache, task_session) = (Arc::clone(self), session.clone());
        // The task has the new tree: who does not wait any longer must not free what it is about to name.
        let placed = Remote::detach_within(session, async move {
            let mut tries = 0;
            loop {
                match cache.replace_root(&task_session, &mut new).await {
                    Err(Fail::Restart | Fail::NoFrame) if tries < TRIES_MAX => {
                        tries += 1;
                        Remote::backoff(&task_session, tries).await;
                    }
                    Err(Fail::Error(error)) => return Err(error),
                    Err(_) => return Err(IndexError::Unavailable("the root is busy".into())),
                    Ok(()) => return Ok(()),
                }
            }
        })
        .await;
        placed.unwrap_or_else(|| Err(unfinished_change()))?;
        Ok(count)
    }

    /// Names another root, if the tree is an empty leaf still.
    async fn replace_root<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        new: &mut NewTree<E>,
    ) -> Result<(), Fail> {
        let mut restarts = Restarts::default();
        restarts.keep();
        let spot = match self.find(session, Seek::First, 0, false, &mut restarts).await? {
            Found::Spot(spot) if spot.parent == TOP => spot,
            _ => return Err(not_empty().into()),
        };
        // The top's, so that nobody puts a root over it meanwhile.
        let Some(above) = self.try_sx(TOP, spot.parent_version) else {
            self.wait_for_frame(TOP).await;
            return Err(Fail::Restart);
        };
        let Some(sx) = self.try_sx(spot.frame, spot.version) else {
            drop(above);
            self.wait_for_frame(spot.frame).await;
            return Err(Fail::Restart);
        };
        let node = self.frames.node(self.layout(), spot.frame);
        if node.kind() != Kind::Leaf || node.count() > 0 || node.right() != 0 {
            return Err(not_empty().into());
        }
        let old = self.frames.addr(spot.frame);
        let retiring = session.announce_retire(old).await?;
        // What has been logged of the empty table must not come to the new one.
        if self.frames.ctl(spot.frame).is_dirty() {
            self.write_back(session, &sx).await?;
        }
        self.void_log(session).await?;
        let mut image = session.client().buf(self.layout().node_bytes());
        self.frames.copy(spot.frame, image.words_mut());
        let version = self.frames.ctl(spot.frame).version() + 1;
        let mut dead = NodeMut::new(self.layout(), image.words_mut());
        dead.mark_dead();
        dead.seal(version);
        new.keep();
        let (addr, level) = new.root();
        let published = self.publish_root(session, addr, level).await;
        self.must_succeed(published)?;
        let buried = self.write_page(session, old, &image, 8).await;
        self.must_succeed(buried)?;
        let forgotten = self.forget_images(session, old).await;
        self.must_succeed(forgotten)?;
        // The next walk reads the root word.
        let (top, frame) = (above.into_x(), sx.into_x());
        self.frames.set_root(0);
        let gone = self.map.exchange(old.word(), Some(Entry::Resident(frame)), None);
        debug_assert!(gone, "INV-DEX-MAP-1");
        self.bury_frame(frame, session.id());
        self.release_x(top);
        session.retire(retiring);
        Ok(())
    }
}

fn not_empty() -> IndexError {
    IndexError::Invalid("a bulk load needs an empty table, and this one has keys".into())
}
