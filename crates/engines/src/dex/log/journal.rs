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
use farleaf_index::IndexError;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::Node;
use farleaf_index::compute::ownership::Range;
use farleaf_index::sync::lock;
use farleaf_pool::Session;

use super::log_object::IMAGES_MAX;
use super::ring::{Appended, LogEntry, RecordKind, Ring};
use super::{Log, OpenLog};
use crate::dex::tree::range_of;

/// The most images that one record batch holds. A segment has room for them.
pub(crate) const BATCH_MAX: usize = 8;

/// An image that must stay in the journal. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Journalled<'a> {
    log: &'a Log,
    segment: usize,
}

impl Drop for Journalled<'_> {
    fn drop(&mut self) {
        if let Some((_, ring)) = self.log.journal_ring() {
            ring.close(&self.log.pages.lot, self.segment);
        }
    }
}

impl Log {
    /// Puts the images of up to [`BATCH_MAX`] nodes into the journal, if there is one. They stay until the
    /// caller drops the result. The calling task runs to its end.
    ///
    /// Cost: 1 WRITE for all, and for what others put there at the same time.
    ///
    /// # Errors
    /// This compute server has been cut off.
    pub(crate) async fn journal(
        &self,
        session: &Session,
        images: &[&Buf],
    ) -> Result<Option<Journalled<'_>>, IndexError> {
        let Some((open, ring)) = self.journal_ring() else { return Ok(None) };
        // The lock word is not part of an image.
        let entries: Vec<_> = images
            .iter()
            .map(|image| LogEntry {
                kind: RecordKind::Image,
                key: &[],
                value: &image.bytes()[8..],
                frame: None,
            })
            .collect();
        let appended = self.append(open, ring, &entries).await;
        let mut recent = lock(&open.recent);
        recent.extend(images.iter().map(|image| self.node_of(image).self_addr()));
        let spare = recent.len().saturating_sub(IMAGES_MAX);
        drop(recent.drain(..spare));
        drop(recent);
        let kept = Journalled { log: self, segment: appended.segment };
        self.land(session, ring, appended).await?;
        self.stats.journalled.add_many(images.len() as u64);
        Ok(Some(kept))
    }

    /// Voids the images of a node whose memory is about to be freed. The calling task runs to its end.
    ///
    /// Cost: 1 WRITE if there is a journal.
    ///
    /// # Errors
    /// As [`Log::journal`].
    pub(crate) async fn forget_images(
        &self,
        session: &Session,
        of: GlobalAddr,
    ) -> Result<(), IndexError> {
        let Some((open, ring)) = self.journal_ring() else { return Ok(()) };
        let addr = of.word().to_le_bytes();
        let entry = LogEntry { kind: RecordKind::Forget, key: &[], value: &addr, frame: None };
        let appended = self.append(open, ring, &[entry]).await;
        // Until the record has landed, its segment must not come round again.
        let _kept = Journalled { log: self, segment: appended.segment };
        self.land(session, ring, appended).await
    }

    /// Voids the images of nodes that lie in `range`, which this compute server has written back for the
    /// last time: another one is about to write them, and may free them. The calling task runs to its end.
    ///
    /// Cost: none without a journal; else 1 READ for each node of which it may have an image, 32 at most,
    /// and 1 WRITE for each of the range's.
    ///
    /// # Errors
    /// As [`Log::journal`].
    pub(crate) async fn forget_images_in(
        &self,
        remote: &RemoteTree,
        session: &Session,
        range: &Range,
    ) -> Result<(), IndexError> {
        let Some((open, _)) = self.journal_ring() else { return Ok(()) };
        let recent: BTreeSet<u64> = lock(&open.recent).iter().copied().collect();
        let reliable = session.reliable();
        for addr in recent {
            let at = remote.pointer(addr, self.meta)?;
            let image = reliable.read(at, reliable.buf(self.layout.node_bytes())).await?;
            let node = self.node_of(&image);
            if !node.sum_ok() || node.self_addr() != addr {
                // A node that is being written is none of the range's. The images of a freed one are void
                // already.
                continue;
            }
            let held = range_of(&node);
            if range.contains(held.low.as_deref(), held.high.as_deref()) {
                self.forget_images(session, at).await?;
            }
        }
        Ok(())
    }

    fn node_of<'a>(&'a self, image: &'a Buf) -> Node<'a, u64> {
        Node::new(&self.layout, image.words())
    }

    /// Returns the ring of images, if there is one.
    fn journal_ring(&self) -> Option<(&OpenLog, &Ring)> {
        let open = self.open.get()?;
        Some((open, open.journal.as_ref()?))
    }

    /// Appends records; their segment stays until it is closed. The task holds nothing while it waits, so
    /// that the tasks which hold the room come to an end.
    async fn append(&self, open: &OpenLog, ring: &Ring, entries: &[LogEntry<'_>]) -> Appended {
        loop {
            let number = || open.images.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(appended) = ring.append(entries, true, number) {
                return appended;
            }
            ring.wait_for_room(&self.pages.lot).await;
        }
    }

    async fn land(
        &self,
        session: &Session,
        ring: &Ring,
        appended: Appended,
    ) -> Result<(), IndexError> {
        let writes = ring.land(session, &self.pages.lot, appended.count).await?;
        self.stats.journal_writes.add_many(writes);
        Ok(())
    }
}
