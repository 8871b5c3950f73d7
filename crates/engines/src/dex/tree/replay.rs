//! Replay: brings the log of a dead owner into remote memory before its ranges change hands.
//!
//! - `INV-DEX-RECOVER-1` The map names a log until every change that it has is in remote memory: the
//!   map that gives the ranges to another owner does not name the log any more. So if a new owner dies
//!   while it takes over, the next one finds the same log, and does the same again.
//! - `INV-DEX-RECOVER-2` The new owner replays changes in the order of their numbers, and seals each
//!   written leaf with the number of the last. So it does no change twice, and none over a newer one,
//!   however often it begins again.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_fabric::codec::Reader;
use farleaf_index::bnode::{Kind, Node};
use farleaf_index::compute::ownership::{Ownership, Partitions, View, change_map_now};
use farleaf_index::detach::detach;
use farleaf_index::retry::backoff;
use farleaf_index::{Change, IndexError, Seek};
use farleaf_pool::Session;

use super::context::{DexFail, OpContext};
use super::pages::write_surely;
use super::{DexTree, Need, range_of};
use crate::dex::change::OwnedLeafChange;
use crate::dex::log::{
    Durability, LogPlace, Record, RecordKind, read_log, read_ring, write_floors,
};
use crate::dex::{DexOptions, FRAMES_MIN};

farleaf_fabric::canaries! {
    pub(crate) REPLAY_OLDER = "replay-older",
        "a dead owner's log is gone through without a look at what the nodes hold";
}

/// Least and most frames of the cache that replays a log.
const REPLAY_FRAMES: (u64, u64) = (64, 4096);

impl DexTree {
    /// Makes the log before the tree serves its first range, if it needs one, and names it in the map.
    /// Returns the newest map. The caller has a pin.
    ///
    /// Cost: none; for the first range with a log 1 WRITE and a change of the map.
    pub(crate) async fn name_log(
        self: &Arc<Self>,
        session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        if self.log.is_open() {
            return Ok(map);
        }
        let (tree, task_session) = (Arc::clone(self), session.without_deadline());
        let me = session.endpoint().incarnation().0;
        detach(session, async move {
            let Some((place, object)) = tree.log.make(&task_session).await? else {
                return Ok(map);
            };
            let word = object.addr().word();
            let map = change_map_now(&tree, &task_session, async |map| {
                let mut new = map.clone();
                // Another task of this tree may have been quicker.
                if new.logs.iter().all(|(owner, _)| *owner != me) {
                    new.logs.push((me, word));
                }
                Ok::<_, IndexError>(new)
            })
            .await?;
            if map.logs.contains(&(me, word)) {
                object.keep();
                // Most of its block is free: other members' logs go there.
                task_session.hand_on(object.addr());
                tree.log.start(&place);
            }
            let mut attempt = 0;
            while !tree.log.is_open() {
                backoff(&task_session, attempt).await;
                attempt += 1;
            }
            Ok(map)
        })
        .await
    }

    /// Replays the log that the dead compute server `dead` left, if the map names one. Remote memory then
    /// has its changes of the partitions that the map still gives to `dead`. `dead` is cut off, and the
    /// caller holds the map's lock.
    ///
    /// Cost: none without a log; else 1 READ for each of its segments, and about what the changes cost that
    /// are not in remote memory yet.
    pub(crate) async fn replay_dead(
        &self,
        session: &Session,
        map: &Partitions,
        dead: u64,
    ) -> Result<(), IndexError> {
        let Some((_, word)) = map.logs.iter().find(|(owner, _)| *owner == dead) else {
            return Ok(());
        };
        let log = read_log(&self.remote, session, *word).await?;
        let owned = map.owners.iter().map(|owner| *owner == dead).collect();
        let view = View { owned, ..View::new(map.clone()) };
        match Box::pin(self.replay(session, &log, view)).await {
            Ok(()) => Ok(()),
            Err(DexFail::Error(error)) => Err(error),
            Err(DexFail::Restart | DexFail::NoFrame) => Err(IndexError::Unavailable(
                "the log of a dead compute server could not be gone through: try again".into(),
            )),
        }
    }

    /// Brings the log of a dead owner into remote memory, as far as `view` says that it owned the keys.
    async fn replay(&self, session: &Session, log: &LogPlace, view: View) -> Result<(), DexFail> {
        // A tree of its own, which goes when it is done.
        let node_bytes = self.layout().node_bytes() as u64;
        let frames = self.options.cache_bytes / node_bytes;
        let frames = frames.clamp(REPLAY_FRAMES.0.max(FRAMES_MIN), REPLAY_FRAMES.1);
        let options = DexOptions {
            cache_bytes: frames * node_bytes,
            durability: Durability::Volatile,
            wb_journal: false,
            ..self.options
        };
        let (meta, layout) = (self.remote.meta(), *self.layout());
        let is_own = |key: &[u8]| view.owned[view.map.of(key, false)];
        let ownership = Ownership::of_view(*self.ownership.words(), view.clone());
        let tree = Arc::new(DexTree::empty(meta, layout, options, Arc::new(ownership))?);
        tree.ownership.set_owned();
        tree.remote.set_subtree_level(self.remote.subtree_level());
        if let Some(place) = log.journal() {
            let (segment, generation, images) = read_ring(session, place).await?;
            let last = images.iter().map(|image| image.number).max().unwrap_or(0);
            let last = last.max(log.floors[1]);
            let mut merges = tree.repair(session, images, log.floors[1]).await?;
            tree.log.take_journal(log, place, (segment, generation), last);
            // The next walk goes through remote memory as it is, and heals nothing: so these merges end
            // here.
            merges.retain(|(_, low)| {
                view.owned[low.as_ref().map_or(0, |low| view.map.of(low, true))]
            });
            for (level, low) in merges {
                tree.visit(session, low.as_deref().map_or(Seek::First, Seek::After), level).await?;
            }
            // The nodes that this changed must not need the images any more when they are void.
            tree.flush(session).await?;
            // The images have served, and the memory of their nodes may come to be used for something else.
            write_floors(session, log.addr, [log.floors[0], last]).await?;
        }
        let Some(place) = log.changes() else {
            tree.flush(session).await?;
            self.stats.take_in(&tree.stats);
            return Ok(());
        };
        let (_, _, mut changes) = read_ring(session, place).await?;
        changes.retain(|change| change.number > log.floors[0] && is_own(&change.key));
        changes.sort_by_key(|change| change.number);
        for change in &changes {
            tree.log.replay_at(change.number);
            tree.redo(session, change).await?;
        }
        tree.flush(session).await?;
        self.stats.take_in(&tree.stats);
        Ok(())
    }

    /// Writes nodes again whose WRITE was cut short. Returns level and lower end of each node that a merge
    /// had made dead.
    ///
    /// Cost: 1 READ for each node that there is an image of, 1 WRITE for one that is torn.
    async fn repair(
        &self,
        session: &Session,
        mut images: Vec<Record>,
        floor: u64,
    ) -> Result<Vec<(u8, Option<Vec<u8>>)>, IndexError> {
        images.retain(|image| image.number > floor);
        images.sort_by_key(|image| image.number);
        let mut newest = BTreeMap::new();
        for image in images {
            // The lock word, word 0, is left out.
            let Ok(addr) = Reader::new(&image.value).u64() else { continue };
            match image.kind {
                RecordKind::Forget => drop(newest.remove(&addr)),
                _ => drop(newest.insert(addr, image.value)),
            }
        }
        let reliable = session.reliable();
        let mut merges = Vec::new();
        for (addr, bytes) in newest {
            let at = self.remote.pointer(addr, self.remote.meta())?;
            let mut image = reliable.buf(self.layout().node_bytes());
            if bytes.len() + 8 != image.len() {
                continue;
            }
            image.bytes_mut()[..8].fill(0);
            image.bytes_mut()[8..].copy_from_slice(&bytes);
            let node = Node::new(self.layout(), image.words());
            if !node.sum_ok() || self.is_shared(&node) {
                continue;
            }
            if node.kind() == Kind::Dead {
                merges.push((node.level(), range_of(&node).low));
            }
            let there = reliable.read(at, reliable.buf(image.len())).await?;
            let there = Node::new(self.layout(), there.words());
            if there.sum_ok() && there.self_addr() == addr {
                continue;
            }
            write_surely(session, at, image, 8).await?;
            self.stats.repaired.add();
        }
        Ok(merges)
    }

    /// Applies one change of the log, if the leaf does not hold it.
    async fn redo(self: &Arc<Self>, session: &Session, change: &Record) -> Result<(), IndexError> {
        let leaf_change = OwnedLeafChange::inline(&match change.kind {
            RecordKind::Put => Change::upsert(&change.key, &change.value),
            _ => Change::remove(&change.key),
        });
        let mut context = OpContext::default();
        loop {
            let found = self.reach(session, Seek::At(&change.key), 0, &mut context).await?;
            let location = found.ok_or_else(|| self.no_level())?;
            let ctl = self.pages.frames.ctl(location.frame);
            if ctl.version() >= change.number && !REPLAY_OLDER.is_armed() {
                if ctl.latch.validate(location.version) {
                    return Ok(());
                }
                context.again(self, session).await?;
                continue;
            }
            match self.apply_now(location, &leaf_change) {
                Ok(true) => {
                    self.stats.replayed.add();
                    return Ok(());
                }
                Ok(false) => {
                    let need = Need::Room(leaf_change.clone());
                    if let Err(fail) = self.split(session, need).await {
                        context.after(fail, self, session).await?;
                    }
                }
                Err(fail) => context.after(fail, self, session).await?,
            }
        }
    }
}
