//! Range reads, both ways, a leaf at a time.
//!
//! A leaf is copied and the copy validated, so that each leaf is of one moment. The next one is the one
//! that covers the place behind its fence: splits, merges and evictions in between can neither hide a
//! key nor show one twice.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, OpKind};
use farleaf_pool::Session;

use super::walk::Seek;
use super::{Cache, Found, Restarts};
use crate::btree::remote::{Next, Passage};
use crate::node::Node;
use crate::{Entries, IndexError};

impl Cache {
    /// Appends the pairs that `passage` still wants to `out`, as far as its places are own keys: the
    /// partition of the first that is not, `None` if all is done.
    ///
    /// Cost: 1 READ for each leaf that is not cached, one after the other; those of records up to
    /// 16 at once.
    pub(super) async fn scan_own<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        passage: &mut Passage<'_>,
        out: &mut Entries,
    ) -> Result<Option<usize>, IndexError> {
        let _pin = session.begin(OpKind::Scan).await?;
        let mut image = session.client().buf(self.layout().node_bytes());
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
            image = self.leaf_image(session, seek, image).await?;
            let leaf = Node::new(self.layout(), image.words());
            if !passage.pass(&self.remote, session, &leaf, out).await? {
                return Ok(None);
            }
        }
    }

    /// A copy of the leaf that `seek` wants.
    async fn leaf_image<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        seek: Seek<'_>,
        mut image: Buf,
    ) -> Result<Buf, IndexError> {
        let mut restarts = Restarts::default();
        loop {
            match self.find(session, seek, 0, true, &mut restarts).await? {
                Found::Spot(spot) => {
                    self.frames.copy(spot.frame, image.words_mut());
                    if self.frames.ctl(spot.frame).latch.validate(spot.version) {
                        return Ok(image);
                    }
                    restarts.again(self, session).await?;
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
