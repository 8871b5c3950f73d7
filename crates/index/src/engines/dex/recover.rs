//! Log recovery: creates the log of a table or partition, replays a dead owner's log, and closes it.
//!
//! - `INV-DEX-RECOVER-1` The map names a log until every change that it has is in remote memory: the
//!   map that gives the ranges to another owner does not name the log any more. So if a new owner dies
//!   while it takes over, the next one finds the same log, and does the same again.
//! - `INV-DEX-RECOVER-2` The new owner replays changes in the order of their numbers, and seals each
//!   written leaf with the number of the last. So it does no change twice, and none over a newer one,
//!   however often it begins again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;

use super::log::{Durability, Live};
use super::log_object::{FLOOR_WORD, LogPlace, read_log};
use super::member::Part;
use super::ops::OwnedIntent;
use super::partitions::{Partitions, change_map_now};
use super::range_guard::View;
use super::ring::{Kind, Place, Record, Ring, records_of};
use super::split::Need;
use super::walk::Seek;
use super::{Cache, Dex, DexOptions, FRAMES_MIN, Fail, Found, OWNED, OpContext};
use crate::IndexError;
use crate::blink::remote::RemoteTree;
use crate::bnode::Node;
use crate::retry::backoff;
use crate::sync::Mutex;

/// Least and most frames of the cache that goes through a log.
const REPLAY_FRAMES: (u64, u64) = (64, 4096);

/// What the rings' waiters wait under: no address, and no frame's key.
const KEYS: u64 = 1 << 63 | 1 << 40;

impl Cache {
    /// From now on this is the log.
    fn start_log(&self, place: &LogPlace) {
        let ring = |place: Option<Place>, part: u64| {
            place.map(|place| {
                let last = place.segments - 1;
                Ring::new(place, [KEYS + 2 * part, KEYS + 2 * part + 1], last, 0)
            })
        };
        let live = Live {
            addr: place.addr,
            changes: ring(place.changes(), 0),
            journal: ring(place.journal(), 1),
            images: AtomicU64::new(0),
            recent: Mutex::default(),
        };
        debug_assert!(self.log.live.get().is_none(), "it is begun once");
        let _ = self.log.live.set(live);
    }

    /// Before a cache serves its first range: makes its log, if it needs one, and
    /// names it in the map. Gives the newest map. The caller has a pin.
    ///
    /// Cost: none; for the first range with a log 1 WRITE and a change of the map.
    pub(super) async fn name_log(
        self: &Arc<Self>,
        session: &Session,
        map: Partitions,
    ) -> Result<Partitions, IndexError> {
        if self.log.live.get().is_some() {
            return Ok(map);
        }
        let (cache, task_session) = (Arc::clone(self), session.without_deadline());
        let me = session.endpoint().incarnation().0;
        RemoteTree::detach(session, async move {
            let Some((place, object)) = cache.make_log(&task_session).await? else {
                return Ok(map);
            };
            let word = object.addr().word();
            let map = change_map_now(&cache.remote, &task_session, async |map| {
                let mut new = map.clone();
                // Another task of this cache may have been quicker.
                if new.logs.iter().all(|(owner, _)| *owner != me) {
                    new.logs.push((me, word));
                }
                Ok(new)
            })
            .await?;
            if map.logs.contains(&(me, word)) {
                object.keep();
                // Most of its block is free: other members' logs go there.
                task_session.hand_on(object.addr());
                cache.start_log(&place);
            }
            let mut attempt = 0;
            while cache.log.live.get().is_none() {
                backoff(&task_session, attempt).await;
                attempt += 1;
            }
            Ok(map)
        })
        .await
    }

    /// Goes through the log that the dead compute server `dead` has left, if the map names one: what it
    /// says about the partitions that the map still gives to `dead` is in remote memory then. `dead` is
    /// cut off, and the caller holds the map's lock.
    ///
    /// Cost: none without a log; else 1 READ for each of its segments, and about what the changes cost that
    /// are not in remote memory yet.
    pub(super) async fn replay_dead(
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
        match Box::pin(self.go_through(session, &log, view)).await {
            Ok(()) => Ok(()),
            Err(Fail::Error(error)) => Err(error),
            Err(Fail::Restart | Fail::NoFrame) => Err(IndexError::Unavailable(
                "the log of a dead compute server could not be gone through: try again".into(),
            )),
        }
    }

    /// What the log holds so far is in remote memory in any case, and must not be done again: keys are
    /// about to be changed beside it. Waits until no WRITE of a node is under way.
    ///
    /// Cost: 1 WRITE if there is a log.
    pub(super) async fn void_log(&self, session: &Session) -> Result<(), IndexError> {
        let Some(live) = self.log.live.get() else { return Ok(()) };
        let mut attempt = 0;
        let images = loop {
            let images = live.images.load(Ordering::SeqCst);
            if live.journal.as_ref().is_none_or(Ring::is_closed) {
                break images;
            }
            backoff(session, attempt).await;
            attempt += 1;
        };
        self.write_floors(session, live.addr, [self.log.version(0, 0), images]).await
    }

    async fn write_floors(
        &self,
        session: &Session,
        log: GlobalAddr,
        floors: [u64; 2],
    ) -> Result<(), IndexError> {
        let mut buf = session.reliable().buf(16);
        buf.words_mut().copy_from_slice(&floors);
        self.write_surely(session, log.plus(FLOOR_WORD * 8), buf, 0).await
    }

    /// Brings what a dead owner's log holds of the owner's partitions, by `view`, to remote memory.
    async fn go_through(&self, session: &Session, log: &LogPlace, view: View) -> Result<(), Fail> {
        // A cache of its own, which goes when it is done.
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
        let cache = Dex::with(meta, layout, options, Part::of_view(view.clone()))?.0;
        cache.set_ownership(OWNED);
        cache.remote.set_subtree_level(self.remote.subtree_level());
        if let Some(place) = log.journal() {
            let (segment, generation, images) = read_ring(session, place).await?;
            let last = images.iter().map(|image| image.number).max().unwrap_or(0);
            let last = last.max(log.floors[1]);
            let mut merges = cache.repair(session, images, log.floors[1]).await?;
            let ring = Ring::new(place, [KEYS, KEYS + 1], segment, generation);
            let (addr, recent) = (log.addr, Mutex::default());
            let images = AtomicU64::new(last);
            let _ = cache.log.live.set(Live {
                addr,
                changes: None,
                journal: Some(ring),
                images,
                recent,
            });
            // The tree is walked next as it lies in remote memory, by who heals nothing.
            merges.retain(|(_, low)| {
                view.owned[low.as_ref().map_or(0, |low| view.map.of(low, true))]
            });
            for (level, low) in merges {
                cache
                    .visit(session, low.as_deref().map_or(Seek::First, Seek::After), level)
                    .await?;
            }
            // What that has changed must not need the images any more when they are void.
            cache.flush(session).await?;
            // They have served, and their nodes' memory may come to be used for something else.
            self.write_floors(session, log.addr, [log.floors[0], last]).await?;
        }
        let Some(place) = log.changes() else {
            cache.flush(session).await?;
            self.stats.take_in(&cache.stats);
            return Ok(());
        };
        let (_, _, mut changes) = read_ring(session, place).await?;
        changes.retain(|change| change.number > log.floors[0] && is_own(&change.key));
        changes.sort_by_key(|change| change.number);
        for change in &changes {
            cache.log.replay_at(change.number);
            cache.do_again(session, change).await?;
        }
        cache.flush(session).await?;
        self.stats.take_in(&cache.stats);
        Ok(())
    }

    /// Writes nodes again whose WRITE was cut short. Gives where nodes are that a merge had made dead: their
    /// level, and their lower end.
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
            let word = |at: usize| {
                let bytes = image.value.get(at * 8..at * 8 + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            // The lock word, word 0, is left out.
            let Some(addr) = word(0) else { continue };
            match image.kind {
                Kind::Forget => drop(newest.remove(&addr)),
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
            if node.kind() == crate::bnode::Kind::Dead {
                let mut low = Vec::new();
                let low = node.low_fence(&mut low).then_some(low);
                merges.push((node.level(), low));
            }
            let there = reliable.read(at, reliable.buf(image.len())).await?;
            let there = Node::new(self.layout(), there.words());
            if there.sum_ok() && there.self_addr() == addr {
                continue;
            }
            self.write_surely(session, at, image, 8).await?;
            self.stats.repaired.add();
        }
        Ok(merges)
    }

    /// Does one change of the log, if the leaf does not hold it.
    async fn do_again(
        self: &Arc<Self>,
        session: &Session,
        change: &Record,
    ) -> Result<(), IndexError> {
        let value = (change.kind == Kind::Put).then(|| change.value.clone());
        let intent = OwnedIntent::of_log(change.key.clone(), value);
        let mut restarts = OpContext::default();
        restarts.keep();
        loop {
            let spot =
                match self.find(session, Seek::At(&change.key), 0, false, &mut restarts).await? {
                    Found::Spot(spot) => spot,
                    _ => return Err(self.no_level()),
                };
            let ctl = self.frames.ctl(spot.frame);
            if ctl.version() >= change.number && !Canary::ReplayOlder.is_armed() {
                if ctl.latch.validate(spot.version) {
                    return Ok(());
                }
                restarts.again(self, session).await?;
                continue;
            }
            match self.apply_now(spot, &intent) {
                Ok(true) => {
                    self.stats.replayed.add();
                    return Ok(());
                }
                Ok(false) => {
                    let need = Need::Room(intent.clone());
                    if let Err(fail) = self.split(session, need).await {
                        restarts.after(fail, self, session).await?;
                    }
                }
                Err(fail) => restarts.after(fail, self, session).await?,
            }
        }
    }
}

/// Reads a ring's segments: the last that was begun, its generation, and all records.
///
/// Cost: 1 READ for each segment.
async fn read_ring(
    session: &Session,
    place: Place,
) -> Result<(usize, u64, Vec<Record>), IndexError> {
    let reliable = session.reliable();
    let (mut last, mut records) = ((0, place.segments - 1), Vec::new());
    for index in 0..place.segments {
        let buf = reliable.buf(place.segment_words * 8);
        let segment = reliable.read(place.segment(index), buf).await?;
        let (mut found, generation) = records_of(segment.words(), place.seed);
        last = last.max((generation, index));
        records.append(&mut found);
    }
    Ok((last.1, last.0, records))
}
