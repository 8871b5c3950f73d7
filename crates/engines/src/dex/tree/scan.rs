//! Scan: reads a range in both directions, a leaf at a time.
//!
//! A scan copies a leaf and validates the copy, so that each leaf is of one moment. The next leaf is
//! the one that covers the place behind the fence: splits, merges and evictions in between can neither
//! hide a key nor show one twice.
//!
//! With [`DexOptions::offload_scans`](crate::dex::DexOptions::offload_scans) a scan that misses an inner node may
//! have the memory server go through the leaves below it, and goes on behind the last one in the same way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, OpKind};
use farleaf_index::bnode::Node;
use farleaf_index::compute::ownership::ScanEnd;
use farleaf_index::{Entries, IndexError, ScanCursor, Seek};
use farleaf_pool::Session;

use super::prefetch::{Span, take_ahead};
use super::walk::SearchEnd;
use super::{DexTree, OpContext};
use crate::dex::offload::{Gathered, Offloadable};

/// Entries of a leaf, before a scan has met one.
const LEAF_ENTRIES: usize = 64;

/// The part of a scan that is still to do.
struct ScanRest<'p, 'r> {
    cursor: &'p ScanCursor<'r>,
    /// Pairs.
    wanted: usize,
    span: Span,
    /// A memory server may be asked.
    offloads: bool,
}

/// The next part of a scan.
enum ScanPart {
    Leaf(Buf),
    /// A buffer for the next leaf, and what a memory server has found.
    Pairs(Buf, Gathered),
}

impl DexTree {
    /// Appends the pairs that `cursor` still wants to `out`, as far as this compute server owns their
    /// places.
    ///
    /// Cost: 1 READ for each leaf that is not cached, one after the other, or together with up to
    /// `scan_prefetch` others below the same parent; those of records up to 16 at once. 1 RPC for up to 64
    /// leaves where it is offloaded.
    pub(crate) async fn scan(
        self: &Arc<Self>,
        session: &Session,
        cursor: &mut ScanCursor<'_>,
        out: &mut Entries,
    ) -> Result<ScanEnd, IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        let mut image = session.client().buf(self.layout().node_bytes());
        let mut ahead = VecDeque::new();
        let reads_ahead = self.options.scan_prefetch > 0;
        let mut offloads = self.options.offload_scans;
        loop {
            let seek = cursor.seek();
            // For each leaf anew, so that a long scan does not keep a range from changing hands.
            let _inside = match self.ownership.acquire(session, seek).await? {
                Ok(inside) => inside,
                Err(number) => return Ok(ScanEnd::Foreign(number)),
            };
            image = match take_ahead(&mut ahead, self.layout(), seek) {
                Some(image) => image,
                None => {
                    let wanted = cursor.wanted(out);
                    let mut rest = ScanRest { cursor, wanted, span: self.span(wanted), offloads };
                    let got =
                        self.leaf_image(session, seek, image, (&mut rest, &mut ahead)).await?;
                    offloads = rest.offloads;
                    match got {
                        ScanPart::Leaf(image) => image,
                        ScanPart::Pairs(buf, found) => {
                            image = buf;
                            let entries = found.count as usize / usize::from(found.leaves.max(1));
                            self.leaf_entries.store(entries, Ordering::Relaxed);
                            let (pairs, fence) = (found.pairs(self.layout()), found.fence());
                            let remote = &self.remote;
                            if remote.take_pairs_until(session, pairs, fence, cursor, out).await? {
                                continue;
                            }
                            return Ok(ScanEnd::Done);
                        }
                    }
                }
            };
            let leaf = Node::new(self.layout(), image.words());
            if reads_ahead || offloads {
                self.leaf_entries.store(leaf.count(), Ordering::Relaxed);
            }
            if !self.remote.take_leaf(session, &leaf, cursor, out).await? {
                return Ok(ScanEnd::Done);
            }
        }
    }

    /// Returns the number of leaves to read ahead behind one that a scan has missed, if it wants so many
    /// pairs.
    fn span(&self, wanted: usize) -> Span {
        let entries = match self.leaf_entries.load(Ordering::Relaxed) {
            0 => LEAF_ENTRIES,
            entries => entries,
        };
        // On average it begins in the middle of a leaf.
        let leaves = wanted.saturating_add(entries / 2) / entries;
        Span { missing: self.options.scan_prefetch, leaves }
    }

    /// Returns a copy of the leaf that `seek` wants, and leaves those that it read with that in `ahead`; or
    /// the pairs that a memory server has found there and behind.
    async fn leaf_image(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
        mut image: Buf,
        (rest, ahead): (&mut ScanRest<'_, '_>, &mut VecDeque<Buf>),
    ) -> Result<ScanPart, IndexError> {
        let (cursor, span) = (rest.cursor, rest.span);
        let reads_ahead = span.missing > 0;
        let offloadable = rest.offloads.then_some(Offloadable::Scan(span.leaves));
        let mut context = OpContext::scan(reads_ahead, offloadable);
        loop {
            match self.find(session, seek, 0, &mut context).await? {
                SearchEnd::Node(location) => {
                    self.pages.frames.copy(location.frame, image.words_mut());
                    if self.pages.frames.ctl(location.frame).latch.validate(location.version) {
                        return Ok(ScanPart::Leaf(image));
                    }
                    context.again(self, session).await?;
                }
                SearchEnd::Missing(mark) if reads_ahead => {
                    let behind = self.mark_behind(&mark, cursor, span);
                    match self.read_leaves(session, mark, behind).await {
                        Ok(mut images) => {
                            let first = images.pop_front();
                            // The old ones were passed by or are out of date.
                            *ahead = images;
                            if let Some(first) = first {
                                return Ok(ScanPart::Leaf(first));
                            }
                        }
                        Err(fail) => context.after(fail, self, session).await?,
                    }
                }
                SearchEnd::Missing(mark) => match self.stream(session, mark).await {
                    Ok(image) => return Ok(ScanPart::Leaf(image)),
                    Err(fail) => context.after(fail, self, session).await?,
                },
                SearchEnd::Offload(mark) => {
                    let asked = self.scan_offloaded(session, mark, cursor, rest.wanted);
                    if let Some(pairs) = Box::pin(asked).await? {
                        return Ok(ScanPart::Pairs(image, pairs));
                    }
                    rest.offloads = false;
                    context.fall_back();
                }
                SearchEnd::TooLow | SearchEnd::Awaited(_) | SearchEnd::Crowded => {
                    return Err(self.no_level());
                }
            }
        }
    }
}
