//! Range reads, both ways, a leaf at a time.
//!
//! A leaf is copied and the copy validated, so that each leaf is of one moment. The next one is the one
//! that covers the place behind its fence: splits, merges and evictions in between can neither hide a
//! key nor show one twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::{Buf, Endpoint, OpKind};
use farleaf_pool::Session;

use super::prefetch::{Ahead, Span};
use super::walk::Seek;
use super::{Cache, Found, Restarts};
use crate::btree::remote::{Next, Passage};
use crate::node::Node;
use crate::{Entries, IndexError};

/// Entries of a leaf, before a scan has met one.
const LEAF_ENTRIES: usize = 64;

impl Cache {
    /// Appends the pairs that `passage` still wants to `out`, as far as its places are own keys: the
    /// partition of the first that is not, `None` if all is done.
    ///
    /// Cost: 1 READ for each leaf that is not cached, one after the other, or together with up to
    /// `scan_prefetch` others below the same parent; those of records up to 16 at once.
    pub(super) async fn scan_own<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        passage: &mut Passage<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        let mut image = session.client().buf(self.layout().node_bytes());
        let mut ahead = Ahead::default();
        let reads_ahead = self.options.scan_prefetch > 0;
        loop {
            let (next, reverse) = passage.next();
            let seek = match next {
                Next::End if reverse => Seek::Last,
                Next::End => Seek::First,
                Next::At(key) => Seek::At(key),
                Next::After(key) => Seek::After(key),
            };
            // For each leaf anew, so that a long scan does not keep a range from changing hands.
            let _inside = match self.enter(session, seek).await? {
                Ok(inside) => inside,
                Err(number) => return Ok(Some(number)),
            };
            image = match ahead.take(self.layout(), seek) {
                Some(image) => image,
                None => {
                    let span = self.span(passage.wanted(out));
                    self.leaf_image(session, seek, image, (passage, span, &mut ahead)).await?
                }
            };
            let leaf = Node::new(self.layout(), image.words());
            if reads_ahead {
                self.leaf_entries.store(leaf.count(), Ordering::Relaxed);
            }
            if !passage.pass(&self.remote, session, &leaf, out).await? {
                return Ok(None);
            }
        }
    }

    /// How far a scan that wants so many pairs is to read ahead, behind a leaf that it has missed.
    fn span(&self, wanted: usize) -> Span {
        let entries = match self.leaf_entries.load(Ordering::Relaxed) {
            0 => LEAF_ENTRIES,
            entries => entries,
        };
        // On average it begins in the middle of a leaf.
        let leaves = wanted.saturating_add(entries / 2) / entries;
        Span { missing: self.options.scan_prefetch, leaves }
    }

    /// A copy of the leaf that `seek` wants; leaves that were read with it are left in `ahead`.
    async fn leaf_image<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        seek: Seek<'_>,
        mut image: Buf,
        (passage, span, ahead): (&Passage<'_>, Span, &mut Ahead),
    ) -> Result<Buf, IndexError> {
        let reads_ahead = span.missing > 0;
        let mut restarts = Restarts::scanning(reads_ahead);
        loop {
            match self.find(session, seek, 0, true, &mut restarts).await? {
                Found::Spot(spot) => {
                    self.frames.copy(spot.frame, image.words_mut());
                    if self.frames.ctl(spot.frame).latch.validate(spot.version) {
                        return Ok(image);
                    }
                    restarts.again(self, session).await?;
                }
                Found::Missing(claim) if reads_ahead => {
                    let behind = self.claim_behind(&claim, passage, span);
                    match self.read_leaves(session, claim, behind).await {
                        Ok(mut images) => {
                            let first = images.pop_front();
                            ahead.refill(images);
                            if let Some(first) = first {
                                return Ok(first);
                            }
                        }
                        Err(fail) => restarts.after(fail, self, session).await?,
                    }
                }
                Found::Missing(claim) => match self.stream(session, claim).await {
                    Ok(image) => return Ok(image),
                    Err(fail) => restarts.after(fail, self, session).await?,
                },
                Found::Offload(_) => restarts.again(self, session).await?,
                Found::TooLow => return Err(self.no_level()),
            }
        }
    }
}
