//! Journal: stores images of nodes while the cache writes the nodes in their place.
//!
//! A WRITE of a node can be cut short by its writer's death where the fabric promises less than a
//! node's bytes ([`farleaf_fabric::Capabilities::crash_atomic_bytes`]). Then the rest of the node fits
//! no checksum, and its entries are lost, also those that no log has any more.
//!
//! - `INV-DEX-JOURNAL-1` Where a WRITE of an exclusive node that others lead to can be cut short, the
//!   image has landed in the journal before, and stays there until the WRITE has landed.
//! - `INV-DEX-JOURNAL-2` Of the images of one node that a journal holds, the one of the largest number
//!   is that of its last WRITE. Before a node's memory is freed, its images are made void. So a compute
//!   server that finds a torn node may write the node's image from the journal.
//!
//! - `INV-DEX-JOURNAL-3` Of a node that another compute server owns by the ownership map, the journal
//!   has no image that counts.
//!
//! Shared nodes are written under their remote lock, with `btree`'s redo records, and are not in here.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::Session;

use super::Cache;
use super::log::Live;
use super::log_object::IMAGES_MAX;
use super::ring::{Appended, Entry, Kind, Ring};
use crate::IndexError;
use crate::bnode::Node;
use crate::compute::ownership::Range;
use crate::sync::lock;

/// Most images that are put there at once. A segment has room for them.
pub(super) const BATCH_MAX: usize = 8;

/// An image that must stay in the journal. Dropped, it need not any more.
#[derive(Debug)]
pub(super) struct Journalled<'a> {
    cache: &'a Cache,
    segment: usize,
}

impl Drop for Journalled<'_> {
    fn drop(&mut self) {
        if let Some((_, ring)) = self.cache.journal_ring() {
            ring.close(&self.cache.lot, self.segment);
        }
    }
}

impl Cache {
    /// Puts the images of nodes into the journal, if there is one; they stay until what this gives is
    /// dropped. At most [`BATCH_MAX`]. Runs in tasks that end.
    ///
    /// Cost: 1 WRITE for all, and for what others put there at the same time.
    ///
    /// # Errors
    /// This compute server has been cut off.
    pub(super) async fn journal(
        &self,
        session: &Session,
        images: &[&Buf],
    ) -> Result<Option<Journalled<'_>>, IndexError> {
        let Some((live, ring)) = self.journal_ring() else { return Ok(None) };
        // The lock word is not part of an image.
        let entries: Vec<_> = images
            .iter()
            .map(|image| Entry {
                kind: Kind::Image,
                key: &[],
                value: &image.bytes()[8..],
                frame: None,
            })
            .collect();
        let appended = self.append(live, ring, &entries).await;
        let mut recent = lock(&live.recent);
        recent.extend(images.iter().map(|image| self.node_of(image).self_addr()));
        let spare = recent.len().saturating_sub(IMAGES_MAX);
        drop(recent.drain(..spare));
        drop(recent);
        let kept = Journalled { cache: self, segment: appended.segment };
        self.land(session, ring, appended).await?;
        self.stats.journalled.add_many(images.len() as u64);
        Ok(Some(kept))
    }

    /// Makes the images of a node void whose memory is about to be freed. Runs in tasks that end.
    ///
    /// Cost: 1 WRITE if there is a journal.
    ///
    /// # Errors
    /// As [`Cache::journal`].
    pub(super) async fn forget_images(
        &self,
        session: &Session,
        of: GlobalAddr,
    ) -> Result<(), IndexError> {
        let Some((live, ring)) = self.journal_ring() else { return Ok(()) };
        let addr = of.word().to_le_bytes();
        let entry = Entry { kind: Kind::Forget, key: &[], value: &addr, frame: None };
        let appended = self.append(live, ring, &[entry]).await;
        // Until it has landed, its segment must not come round again.
        let _kept = Journalled { cache: self, segment: appended.segment };
        self.land(session, ring, appended).await
    }

    /// Makes the images of nodes void that lie in `range` and were written back for the last time here:
    /// another compute server is about to write them, and may free them. Runs in tasks that end.
    ///
    /// Cost: none without a journal; else 1 READ for each node of which it may have an image, 32 at most,
    /// and 1 WRITE for each of the range's.
    ///
    /// # Errors
    /// As [`Cache::journal`].
    pub(super) async fn forget_images_in(
        &self,
        session: &Session,
        range: &Range,
    ) -> Result<(), IndexError> {
        let Some((live, _)) = self.journal_ring() else { return Ok(()) };
        let recent: BTreeSet<u64> = lock(&live.recent).iter().copied().collect();
        let reliable = session.reliable();
        for addr in recent {
            let at = self.remote.pointer(addr, self.remote.meta())?;
            let image = reliable.read(at, reliable.buf(self.layout().node_bytes())).await?;
            let node = self.node_of(&image);
            if !node.sum_ok() || node.self_addr() != addr {
                // Being written, and so none of the range's, or freed, and forgotten for that.
                continue;
            }
            let (mut low, mut high) = (Vec::new(), Vec::new());
            let low = node.low_fence(&mut low).then_some(&low[..]);
            let high = node.high_fence(&mut high).then_some(&high[..]);
            if range.contains(low, high) {
                self.forget_images(session, at).await?;
            }
        }
        Ok(())
    }

    fn node_of<'a>(&'a self, image: &'a Buf) -> Node<'a, u64> {
        Node::new(self.layout(), image.words())
    }

    /// Where images are put, if they are put anywhere.
    fn journal_ring(&self) -> Option<(&Live, &Ring)> {
        let live = self.log.live.get()?;
        Some((live, live.journal.as_ref()?))
    }

    /// The segment stays until it is closed. Holds nothing while it waits, so that whoever keeps the room
    /// comes to an end.
    async fn append(&self, live: &Live, ring: &Ring, entries: &[Entry<'_>]) -> Appended {
        loop {
            let number = || live.images.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(appended) = ring.append(entries, true, number) {
                return appended;
            }
            ring.wait_for_room(&self.lot).await;
        }
    }

    async fn land(
        &self,
        session: &Session,
        ring: &Ring,
        appended: Appended,
    ) -> Result<(), IndexError> {
        let writes = ring.land(session, &self.lot, appended.count).await?;
        self.stats.journal_writes.add_many(writes);
        Ok(())
    }
}
