//! Locate: finds the leaf of a key by cached records, and learns of leaves that have changed.
//!
//! A record whose version the line does not bear is refreshed by the leaf's header: 1 READ in place of one for each level of
//! the upper tree. The header counts if its checksum fits, it is not dead, and the leaf is not younger than the record
//! (`INV-FP-7`): an address that was used again may hold a leaf that nothing leads to, because its splitter died.
//!
//! The header names the right neighbour and not where that ends. So the rest of the old range gets a record of version 0:
//! an operation that needs it READs the neighbour's header, which tells both.

use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::Seek;
use farleaf_index::retry::{Attempts, OWNER_CHECK_NS};
use farleaf_pool::{LockToken, Session};

use super::cache::{LeafRecord, RecordNode, SeenRecord};
use super::homes::Op;
use super::layout::Header;
use super::{LeafTree, count};

farleaf_fabric::canaries! {
    pub(crate) BELIEVE_OLD_HEADER = "believe-old-header",
        "a leaf's header counts whenever the leaf was born";
}

/// Most headers that a refresh READs to the right before it descends.
const HOPS_MAX: usize = 4;

/// An operation that finds a leaf other than its record says, and waits for whoever changes it.
#[derive(Debug, Default)]
pub(super) struct StaleWait {
    attempts: Attempts,
    since_ns: Option<u64>,
    /// The record that the last refresh brought.
    last: Option<LeafRecord>,
}

impl StaleWait {
    /// Tells whether the last refresh has brought that record: its leaf's header has the record's version.
    pub(super) fn confirms(&self, record: LeafRecord) -> bool {
        self.last == Some(record)
    }
}

impl LeafTree {
    /// The record that covers `key`: a cached one, or one that the upper tree has. Its version is not 0.
    ///
    /// Cost: none if it is cached; else a READ for each level of the upper tree.
    pub(super) async fn locate(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
    ) -> Result<SeenRecord, IndexError> {
        let cached = self.cache.find(key, false);
        let cached = cached.map(|node| (node.position(key, false), node));
        match cached {
            Some((index, node)) if index < node.count() => {
                let seen = node.record(index);
                if seen.record.version != 0 {
                    return Ok(seen);
                }
                match self.follow(session, key, seen).await? {
                    Some(found) => Ok(found),
                    None => self.look_up(session, key).await,
                }
            }
            _ => self.look_up(session, key).await,
        }
    }

    /// The record that covers `key`, as the upper tree has it now.
    pub(super) async fn look_up(
        &self,
        session: &Session,
        key: &[u8],
    ) -> Result<SeenRecord, IndexError> {
        let node = self.read_records(session, Seek::At(key)).await?;
        let index = node.position(key, false);
        if index >= node.count() {
            return Err(self.corrupt("INV-FP-1: no record covers a key"));
        }
        Ok(node.record(index))
    }

    /// READs the node of records that `seek` leads to, and caches it.
    pub(super) async fn read_records(
        &self,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<Arc<RecordNode>, IndexError> {
        let epoch = session.epoch();
        let (_, image) = self.upper.leaf_image(session, seek).await?;
        let node = Arc::new(RecordNode::new(&self.shape.upper, image.words(), epoch)?);
        self.cache.put(&node);
        Ok(node)
    }

    /// READs the header of a leaf, if there is one. 1 READ.
    pub(super) async fn read_header(
        &self,
        session: &Session,
        leaf: GlobalAddr,
    ) -> Result<Option<Header>, IndexError> {
        let reliable = session.reliable();
        let buf = reliable.read(leaf, reliable.buf(self.shape.header_bytes)).await?;
        Ok(self.shape.header(leaf, buf.bytes()))
    }

    /// The leaf that the record of `key` leads to is not, or not wholly, what the record says: somebody is changing it,
    /// or has. Finds the record that holds now, after a wait if that has not helped before. If a dead client was changing
    /// the leaf, finishes that.
    ///
    /// Cost: 1 READ of a header for each leaf on the way; if headers do not help a READ for each level of the upper tree;
    /// after 10 ms 1 READ of the line, and that of a rescue.
    ///
    /// # Errors
    /// `Unavailable` after very many attempts.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        session: &Op<'_>,
        key: &[u8],
        old: SeenRecord,
        changing: &mut StaleWait,
    ) -> Result<SeenRecord, IndexError> {
        if changing.last == Some(old.record) {
            // The header did not help: the leaf is being changed, or is out of the tree.
            self.await_change(session, key, old.record, changing).await?;
            let found = self.look_up(session, key).await?;
            changing.last = Some(found.record);
            return Ok(found);
        }
        let found = match self.follow(session, key, old).await? {
            Some(found) => found,
            None => self.look_up(session, key).await?,
        };
        changing.last = Some(found.record);
        Ok(found)
    }

    /// Waits a while for whoever changes the leaf of `record`, which covers `key`; if that is a dead client, finishes its
    /// change. If nobody holds the leaf's lock, looks whether the leaf is damaged.
    pub(super) async fn await_change(
        self: &Arc<Self>,
        session: &Op<'_>,
        key: &[u8],
        record: LeafRecord,
        changing: &mut StaleWait,
    ) -> Result<(), IndexError> {
        changing.attempts.again(session).await?;
        let now_ns = session.endpoint().now_ns();
        let since_ns = *changing.since_ns.get_or_insert(now_ns);
        if now_ns - since_ns < OWNER_CHECK_NS {
            return Ok(());
        }
        let at = self.line_of(session, record.leaf).await?;
        self.check_fresh(session, at)?;
        let (_, lock) = self.read_line(session, at).await?;
        if lock == 0 {
            changing.since_ns = None;
            self.examine(session, key, record).await
        } else if LockToken::from_word(lock).is_some() && session.owner_is_dead(lock).await? {
            changing.since_ns = None;
            self.rescue(session, (record.leaf, at), lock).await
        } else {
            Ok(())
        }
    }

    /// The record that covers `key` by the headers of the leaf of `old` and of those to its right; `None` if they do not
    /// tell.
    async fn follow(
        &self,
        session: &Session,
        key: &[u8],
        old: SeenRecord,
    ) -> Result<Option<SeenRecord>, IndexError> {
        let end = self.cache.end_of(key, old.record);
        let (mut leaf, mut seen) = (old.record.leaf, old.epoch);
        let mut parts = Vec::new();
        for _ in 0..HOPS_MAX {
            let epoch = session.epoch();
            let header = self.read_header(session, leaf).await?;
            let counts = |header: &Header| {
                !header.is_dead && (header.birth <= seen || BELIEVE_OLD_HEADER.is_armed())
            };
            let Some(header) = header.filter(counts) else { return Ok(None) };
            count(&self.counts.header_refreshes);
            let high = self.fence_key(session, &header.high).await?;
            let high = high.unwrap_or_else(|| self.shape.largest());
            let found = SeenRecord { record: LeafRecord { leaf, version: header.version }, epoch };
            let right = GlobalAddr::from_word(header.right).filter(|right| !right.is_null());
            let is_found = key <= high.as_slice();
            parts.push((high, found));
            if !is_found {
                let Some(right) = right else { return Ok(None) };
                // A leaf in the tree leads to it now.
                (leaf, seen) = (right, epoch);
                continue;
            }
            if let Some(end) = end {
                let last = parts.last_mut().map(|(high, _)| high);
                match (last, right) {
                    // A leaf that has taken in its neighbour reaches further than its record.
                    (Some(last), _) if *last >= end => *last = end,
                    (_, Some(right)) => {
                        let record = LeafRecord { leaf: right, version: 0 };
                        parts.push((end, SeenRecord { record, epoch }));
                    }
                    _ => return Ok(Some(found)),
                }
                self.cache.replace(key, old.record, &parts);
            }
            return Ok(Some(found));
        }
        Ok(None)
    }
}
