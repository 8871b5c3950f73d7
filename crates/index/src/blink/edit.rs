//! Edit: changes several entries of one leaf under its one lock.
//!
//! An engine that keeps ranges of keys as entries, each named by its largest key, divides a range by two entries of one
//! leaf. Readers see both changes or none. If the leaf has no room for them, it is split in the same step: the right
//! part is written before the left one is published, so that the edit and the split have one instant.
//!
//! [`BlinkTree::begin_edit`] does all that can fail for want of memory, and holds the leaf's lock afterwards. So an
//! engine changes what the entries name in between, and [`Edit::publish`] only posts what is ready.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{Session, Unlinked};

use super::lock::Locked;
use super::read::Unfinished;
use super::{BlinkFail, BlinkTree};
use crate::bnode::{ChangeError, Head, LeafEntry, Node, Value};
use crate::retry::{Attempts, RetryPolicy};
use crate::{IndexError, Seek};

/// Entries of a leaf, in the order of their keys.
pub type LeafPairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A change of a locked leaf that is ready to be published. Dropped, it changes nothing.
#[derive(Debug)]
pub struct Edit {
    leaf: Locked,
    /// The right part, written, if the leaf is split.
    right: Option<(Unlinked, Vec<u8>)>,
    /// A leaf to the right of this one that its parent does not know.
    unfinished: Option<Unfinished>,
    key: Vec<u8>,
    is_sparse: bool,
}

/// The end of an attempt to put entries into a leaf, or into two.
enum Filled {
    /// The right part, if the leaf is split.
    Ready(Option<(Unlinked, Vec<u8>)>),
    /// Two leaves have no room for them.
    Crowded,
}

impl BlinkTree {
    /// The leaf that `seek` leads to: its address, and its image.
    ///
    /// Cost: 1 READ for each level; the root's is remembered.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    pub async fn leaf_image(
        self: &Arc<Self>,
        session: &Session,
        seek: Seek<'_>,
    ) -> Result<(GlobalAddr, Buf), IndexError> {
        let mut attempts = Attempts::new(&RetryPolicy::WAY);
        loop {
            match self.node_at(session, seek, 0).await {
                Ok(found) => return Ok(found),
                Err(BlinkFail::Restart) => self.again(session, &mut attempts).await?,
                Err(BlinkFail::Error(error)) => return Err(error),
            }
        }
    }

    /// Locks the leaf that covers `key`, and makes the change of its entries ready; `None` if `change` returns `false`.
    /// All entries must stay inside the leaf's fences, with values that it holds itself. The caller has a pin, and
    /// lets no future of an edit be dropped: it is a task's.
    ///
    /// Cost: a READ for each level above the leaves; 1 CAS and 1 READ; 1 WRITE of a new leaf if this one is split.
    ///
    /// # Errors
    /// `Full`: nothing was changed. Others as [`BlinkTree::change`].
    pub async fn begin_edit(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        change: impl Fn(&mut LeafPairs) -> bool,
    ) -> Result<Option<Edit>, IndexError> {
        let (mut attempts, mut unfinished) = (Attempts::new(&RetryPolicy::WAY), None);
        let (leaf, right) = loop {
            let addr = match self.way_to(session, key, 0, &mut unfinished).await {
                Ok(addr) => self.lock_covering(session, addr, key, 0, &mut unfinished).await,
                Err(fail) => Err(fail),
            };
            let mut leaf = match addr {
                Ok(leaf) => leaf,
                Err(BlinkFail::Restart) => {
                    self.again(session, &mut attempts).await?;
                    continue;
                }
                Err(BlinkFail::Error(error)) => return Err(error),
            };
            let held = leaf.node().count();
            let mut pairs = pairs_of(&leaf.node());
            if !change(&mut pairs) {
                leaf.unlock().await?;
                return Ok(None);
            }
            match self.fill(session, &mut leaf, &pairs).await {
                Ok(Filled::Ready(right)) => break (leaf, right),
                // Three long entries may need three leaves: one split by itself, with fewer entries beside the new one.
                Ok(Filled::Crowded) if held > 1 => {
                    self.split(session, leaf, key.to_vec()).await?;
                    self.again(session, &mut attempts).await?;
                }
                Ok(Filled::Crowded) => {
                    let addr = leaf.addr;
                    leaf.unlock().await?;
                    return Err(self.damaged(addr, ChangeError::NothingToSplit));
                }
                Err(error) => {
                    leaf.unlock().await?;
                    return Err(error);
                }
            }
        };
        let is_sparse = right.is_none() && self.is_sparse(&leaf.node());
        Ok(Some(Edit { leaf, right, unfinished, key: key.to_vec(), is_sparse }))
    }

    /// Puts `pairs` into the private image of a locked leaf; the right part of a split is written. If two leaves have no
    /// room for them, the image stays.
    async fn fill(
        &self,
        session: &Session,
        leaf: &mut Locked,
        pairs: &LeafPairs,
    ) -> Result<Filled, IndexError> {
        let (addr, node) = (leaf.addr, leaf.node());
        let [mut low, mut high] = [Vec::new(), Vec::new()];
        let low = node.low_fence(&mut low).then_some(low);
        let high = node.high_fence(&mut high).then_some(high);
        let version = node.version();
        let head = Head {
            addr: addr.word(),
            right: node.right(),
            incarnation: node.incarnation(),
            version,
            low: low.as_deref(),
            high: high.as_deref(),
            ..Head::default()
        };
        let held = leaf.image.words()[0];
        let entries: Vec<LeafEntry<'_>> = pairs.iter().map(entry).collect();
        let mut image = session.client().buf(self.layout.node_bytes());
        match self.layout.encode_leaf(image.words_mut(), &head, &entries) {
            Ok(()) => {
                image.words_mut()[0] = held;
                leaf.image = image;
                return Ok(Filled::Ready(None));
            }
            Err(ChangeError::NoRoom) => {}
            Err(error) => return Err(self.damaged(addr, error)),
        }
        let place = self.place_beside(session, addr, 0);
        let object = session.alloc_unlinked(place, self.layout.node_bytes()).await?;
        self.note_place(session, 0, place, object.addr()).await?;
        let mut right = session.client().buf(self.layout.node_bytes());
        // The cut nearest to the middle at which both parts fit.
        let middle = entries.len() / 2;
        let nearest = (0..entries.len())
            .flat_map(|by| [middle.checked_sub(by), Some(middle + by)])
            .flatten()
            .filter(|cut| (1..entries.len()).contains(cut));
        for cut in nearest {
            let mut separator = Vec::new();
            self.layout.separator(entries[cut - 1].key, entries[cut].key, &mut separator);
            let left_head = Head { right: object.addr().word(), high: Some(&separator), ..head };
            let right_head = Head {
                addr: object.addr().word(),
                incarnation: 0,
                // Not below the old leaf's, as in `BlinkTree::split_now`.
                version: version.wrapping_add(2),
                low: Some(&separator),
                ..head
            };
            let done =
                self.layout.encode_leaf(image.words_mut(), &left_head, &entries[..cut]).and_then(
                    |()| self.layout.encode_leaf(right.words_mut(), &right_head, &entries[cut..]),
                );
            match done {
                Ok(()) => {
                    object.write(right).await?;
                    image.words_mut()[0] = held;
                    leaf.image = image;
                    return Ok(Filled::Ready(Some((object, separator))));
                }
                Err(ChangeError::NoRoom) => {}
                Err(error) => return Err(self.damaged(addr, error)),
            }
        }
        Ok(Filled::Crowded)
    }
}

impl Edit {
    /// Publishes the change and unlocks the leaf; then its parents learn of a split, or sparse leaves are merged.
    ///
    /// Cost: 2 WRITEs and a redo record in one chain (see the [module page](super)); that of a separator after a split.
    ///
    /// # Errors
    /// `OutcomeUnknown`, `Closed`: this compute server has been cut off. What is left undone above the leaves is no error.
    pub async fn publish(self, tree: &Arc<BlinkTree>, session: &Session) -> Result<(), IndexError> {
        let Edit { leaf, right, unfinished, key, is_sparse } = self;
        if let Some((object, _)) = &right {
            object.keep();
        }
        leaf.publish(true, None).await?;
        let split = right.map(|(object, separator)| Unfinished {
            level: 1,
            separator,
            right: object.addr(),
        });
        for unfinished in unfinished.into_iter().chain(split) {
            // The change has happened; a separator that cannot be added now is added by another.
            let _ = tree.finish_split_now(session, unfinished).await;
        }
        if is_sparse {
            tree.merge(session, &key, 1).await;
        }
        Ok(())
    }

    /// Changes nothing, and unlocks the leaf.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn give_up(self) -> Result<(), IndexError> {
        self.leaf.unlock().await
    }
}

fn entry((key, value): &(Vec<u8>, Vec<u8>)) -> LeafEntry<'_> {
    LeafEntry { key, value: Value::Inline(value) }
}

/// The entries of a leaf that holds its values itself.
fn pairs_of(node: &Node<'_, u64>) -> LeafPairs {
    let (mut pairs, mut index) = (LeafPairs::new(), 0);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while node.key(index, &mut key) {
        let _ = node.value(index, &mut value);
        pairs.push((std::mem::take(&mut key), std::mem::take(&mut value)));
        index += 1;
    }
    pairs
}
