//! Neighbourhoods: READs of the few slots in which a key may lie, in place of its leaf.
//!
//! A neighbourhood has no header. Its slots' checks are bound to the leaf's stamp, which this compute server remembers beside
//! the child in its copy of the parent.
//!
//! - `INV-NEAR-1` A leaf's address and a stamp name one range of keys and one history of content: each rewrite of the leaf,
//!   its death and the next use of its memory bring another stamp.
//! - `INV-NEAR-2` A stamp is remembered for a child only if the leaf's range included that of the child in that copy, and the
//!   leaf was proven (`INV-REM-1`). Else a key of a new sibling would seem absent. That of a leaf open at both ends is not
//!   (`INV-REM-4`).
//! - `INV-NEAR-3` So one slot that fits under the remembered stamp proves that the leaf is alive, and the one for the key. If
//!   none fits, the stamp is out of date. If some do not, a writer is at them, or has died.
//! - `INV-NEAR-4` One READ proves no absence, as a pair may hop from a slot that is sampled late to one that was sampled
//!   early. A second one between two equal READs of the count of hops does (`INV-HOP-2`).
//! - `INV-NEAR-5` Under its leaf's lock, one slot that fits and has the key is enough to change the pair: no other slot has
//!   it (`INV-HOP-3`).
//!
//! A reader that cannot tell READs the whole leaf, by the rules of [`super::remembered`].
//!
//! | operation, parents cached | READ | bytes, keys and values of 8, neighbourhoods of 8 |
//! |---|---|---|
//! | get, hint right / no hint / hint wrong | 1 / 1 / 2 | 24 / 192 / 216 |
//! | get, stamp not known / out of date | 2 / 3 | 256 / 448 |
//! | get, key absent | 4 | 400 |
//! | update, hint right / no hint / hint wrong | 1 / 1 / 2 | 24 / 192 / 216 |
//!
//! Source: Luo et al., "CHIME" (SOSP 2024). Differs: the stamp stands in place of metadata that is repeated in each
//! neighbourhood, and of a comparison of right siblings, which a merge and the next use of memory make wrong.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, OpError};
use farleaf_pool::Session;
use xxhash_rust::xxh3::xxh3_64;

use super::lock::Locked;
use super::read::Unfinished;
use super::remembered::{NodePointer, Remembered, UpperNode, count};
use super::{BlinkFail, BlinkTree};
use crate::Seek;
use crate::bnode::{Cover, GuardedLayout, GuardedLeaf, Lookup, Node, SlotState, Stamp};
use crate::change::Change;
use crate::local::{CachedNode, SlotHints};
use crate::sync::{AtomicU64, Mutex, lock};

farleaf_fabric::canaries! {
    pub ABSENT_AT_ONCE = "absent-at-once", "a key counts as absent after one READ of its neighbourhood";
    pub LEARN_FOR_SIBLING = "learn-for-sibling",
        "a stamp is remembered for a child whose range goes beyond the leaf's";
    pub SPECULATE_BY_KEY = "speculate-by-key", "a hint's slot is believed by its key, whatever its check says";
}

/// Copies that led astray and whose stamps are kept.
const KEPT_MAX: usize = 8;
/// READs of a neighbourhood whose slots do not all fit, and looks for an absent key, before the whole leaf is READ.
const LOOKS_MAX: u32 = 4;

crate::words! {
    /// The part of a leaf that a get READs.
    #[derive(Default)]
    PointRead {
        /// The leaf.
        Leaf = "leaf",
        /// Its header, and the neighbourhood of the key.
        Header = "header",
        /// The neighbourhood of the key, under a stamp that is remembered.
        #[default]
        Neighbourhood = "neighbourhood",
    }
}

/// Settings by which a compute server opens a tree of leaves with neighbourhoods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopscotchOptions {
    /// Bytes of hints: slots of hot keys, which a get READs alone. 0 keeps none.
    pub hint_bytes: u64,
    /// The part of a leaf that a get READs.
    pub point_read: PointRead,
    /// A change READs the neighbourhood of its key. Else it READs the leaf.
    pub change_near: bool,
}

/// Hints, settings and counts of a compute server for leaves with neighbourhoods.
#[derive(Debug)]
pub(super) struct Hopscotch {
    options: HopscotchOptions,
    hints: SlotHints,
    /// Copies of parents that led astray, the last ones: their stamps pass to the next copies.
    stale_copies: Mutex<VecDeque<(GlobalAddr, Arc<CachedNode>)>>,
    pub(super) counts: HopscotchCounts,
}

impl Hopscotch {
    pub(super) fn new(options: HopscotchOptions) -> Self {
        let hints = SlotHints::new(options.hint_bytes);
        let (stale_copies, counts) = Default::default();
        Hopscotch { options, hints, stale_copies, counts }
    }

    /// Keeps a copy that led astray, for its stamps: the next READ of the node takes them over.
    pub(super) fn add_stale_copy(&self, addr: GlobalAddr, copy: &Arc<CachedNode>) {
        let mut kept = lock(&self.stale_copies);
        kept.retain(|(at, _)| *at != addr);
        kept.truncate(KEPT_MAX - 1);
        kept.push_front((addr, Arc::clone(copy)));
    }

    /// Takes the stale copy of the node at `addr`, if it is still there.
    fn take_stale_copy(&self, addr: GlobalAddr) -> Option<Arc<CachedNode>> {
        let mut kept = lock(&self.stale_copies);
        let at = kept.iter().position(|(at, _)| *at == addr)?;
        Some(kept.remove(at)?.1)
    }

    /// Bytes of hints.
    pub(super) fn hint_bytes(&self) -> u64 {
        self.hints.bytes()
    }
}

/// Events of a compute server since it opened the tree.
#[derive(Debug, Default)]
pub struct HopscotchCounts {
    /// Hints by which a slot was READ.
    pub hints_tried: AtomicU64,
    /// Those that were right.
    pub hints_right: AtomicU64,
    /// Stamps that were learned.
    pub learned: AtomicU64,
    /// Stamps that were out of date.
    pub stale: AtomicU64,
    /// Second looks at a neighbourhood for a key that is absent.
    pub second_looks: AtomicU64,
    /// Gets that READ the whole leaf.
    pub whole_leaves: AtomicU64,
    /// Pairs that an insert moved.
    pub hops: AtomicU64,
    /// Changes that READ the whole leaf under its lock.
    pub read_on: AtomicU64,
    /// Splits that were put off, as the new leaf's lock was busy.
    pub siblings_busy: AtomicU64,
}

/// A child of a node above the leaves, for a key.
#[derive(Debug)]
pub(super) struct ChildPlace {
    upper: UpperNode,
    index: usize,
    pub(super) pointer: NodePointer,
}

impl ChildPlace {
    /// The stamp that is remembered.
    fn stamp(&self) -> Option<Stamp> {
        Some(self.upper.node.note(self.index)).filter(|&word| word != 0).map(Stamp::of_word)
    }

    fn forget_stamp(&self) {
        self.upper.node.set_note(self.index, 0);
    }
}

/// The answer of a leaf to a get.
enum NearAnswer {
    Hit,
    /// All slots fit under the stamp, and none has the key.
    NotSeen(Stamp),
    /// The stamp is out of date.
    Stale,
    /// Some slots do not fit, or the leaf is not the one for the key.
    Unclear,
}

/// The range of a child: above `low`, up to `high`; `None` is without an end.
fn child_range(node: &Node<'_, u64>, index: usize) -> [Option<Vec<u8>>; 2] {
    let [mut low, mut high] = [Vec::new(), Vec::new()];
    let has_low = match index.checked_sub(1) {
        None => node.low_fence(&mut low),
        Some(before) => node.separator(before, &mut low),
    };
    let has_high = match index == node.count() {
        true => node.high_fence(&mut high),
        false => node.separator(index, &mut high),
    };
    [has_low.then_some(low), has_high.then_some(high)]
}

/// Returns whether the first range includes the other one.
fn includes(
    [low, high]: &[Option<Vec<u8>>; 2],
    [other_low, other_high]: &[Option<Vec<u8>>; 2],
) -> bool {
    let above = match (high, other_high) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(high), Some(other)) => other <= high,
    };
    // `None` is below every key.
    low <= other_low && above
}

/// An image that has the READ slots alone, under `stamp`.
fn part_of(
    layout: &GuardedLayout,
    (addr, stamp): (GlobalAddr, Stamp),
    slots: &Range<usize>,
    words: &[u64],
) -> Vec<u64> {
    let mut image = vec![0; layout.leaf_words()];
    layout.fill_part(&mut image, (addr.word(), stamp), slots, words);
    image
}

/// Looks at the slots in which `key` may lie, of an image of the leaf at `addr` that has these.
fn judge(
    (near, layout): (&Hopscotch, &GuardedLayout),
    (addr, image): (GlobalAddr, &[u64]),
    key: &[u8],
    value: &mut Vec<u8>,
) -> NearAnswer {
    let leaf = GuardedLeaf::new(layout, image);
    if let Lookup::Hit(index) = leaf.find(key) {
        leaf.value(index, value);
        near.hints.put(addr, xxh3_64(key), index);
        return NearAnswer::Hit;
    }
    match leaf.fits_in(&layout.window(key)) {
        (_, _, 0) => NearAnswer::NotSeen(leaf.stamp()),
        (0, 0, _) => NearAnswer::Stale,
        _ => NearAnswer::Unclear,
    }
}

impl BlinkTree {
    /// Hints and settings for leaves with neighbourhoods, and the layout of those.
    fn near(&self) -> Option<(&Hopscotch, &GuardedLayout)> {
        Some((self.hopscotch.as_ref()?, self.guarded.as_ref()?))
    }

    /// Events since the tree was opened, where leaves have neighbourhoods.
    pub fn hopscotch_counts(&self) -> Option<&HopscotchCounts> {
        self.hopscotch.as_ref().map(|it| &it.counts)
    }

    /// Takes a node into the cache. A parent of leaves keeps the stamps that its copy of before remembers for the same
    /// leaf, and a range that included the present one (`INV-NEAR-2`).
    pub(super) fn put_copy(
        &self,
        remembered: &Remembered,
        addr: GlobalAddr,
        (level, epoch): (u8, u64),
        words: &[u64],
    ) -> Arc<CachedNode> {
        if level != 1 || !self.is_hopscotch(0) {
            return remembered.nodes.put(addr, level, epoch, words);
        }
        let node = Node::new(&self.layout, words);
        let mut notes = vec![0; node.count() + 1];
        let kept = self.hopscotch.as_ref().and_then(|it| it.take_stale_copy(addr));
        let old = remembered.nodes.peek(addr).or(kept);
        if let Some(old) = old.filter(|old| old.level() == 1) {
            let before = Node::new(&self.layout, old.words());
            let mut at = 0;
            for (index, note) in notes.iter_mut().enumerate() {
                let same = |at: &usize| before.child(*at) == node.child(index);
                // Children stay in their order.
                let Some(found) = (at..=before.count()).find(same) else { continue };
                at = found;
                let stamp = old.note(found);
                if stamp != 0 && includes(&child_range(&before, found), &child_range(&node, index))
                {
                    *note = stamp;
                }
            }
        }
        remembered.nodes.put_noted(addr, (level, epoch), words, &notes)
    }

    /// The child of the parent that has the place of `key`; `None` if the tree has one level.
    async fn child_place(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Option<ChildPlace>, BlinkFail> {
        let seek = Seek::At(key);
        let Some(upper) = self.parent_of(session, seek, unfinished).await? else {
            return Ok(None);
        };
        let (index, child) = Node::new(&self.layout, upper.node.words()).child_at_place(seek);
        let pointer = upper.pointer(self.pointer(child, upper.addr)?);
        Ok(Some(ChildPlace { upper, index, pointer }))
    }

    /// Remembers the stamp of a leaf that was proven, if its range is large enough (`INV-NEAR-2`).
    fn learn(&self, place: &ChildPlace, words: &[u64]) {
        let Some((near, layout)) = self.near() else { return };
        let leaf = GuardedLeaf::new(layout, words);
        let range = [leaf.low_fence(), leaf.high_fence()];
        let parent = Node::new(&self.layout, place.upper.node.words());
        let is_lone = leaf.right() == 0 && range[0].is_none();
        let includes = includes(&range, &child_range(&parent, place.index));
        if !is_lone && (includes || LEARN_FOR_SIBLING.is_armed()) {
            count(&near.counts.learned);
            place.upper.node.set_note(place.index, leaf.stamp().word());
        }
    }

    /// READs some slots of the leaf at `addr`. 1 READ.
    async fn read_slots(
        &self,
        session: &Session,
        layout: &GuardedLayout,
        addr: GlobalAddr,
        slots: &Range<usize>,
    ) -> Result<Buf, OpError> {
        let (offset, bytes) = layout.bytes_of(slots);
        session.reliable().read(addr.plus(offset), session.reliable().buf(bytes)).await
    }

    /// The value of `key` from its neighbourhood; `None` if the whole leaf is to be READ.
    pub(super) async fn get_near(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, BlinkFail> {
        let Some((near, layout)) = self.near() else { return Ok(None) };
        let by = near.options.point_read;
        if by == PointRead::Leaf {
            return Ok(None);
        }
        let Some(place) = self.child_place(session, key, &mut None).await? else {
            return Ok(None);
        };
        let mut probe = match place.stamp().filter(|_| by == PointRead::Neighbourhood) {
            Some(stamp) => self.probe(session, &place, stamp, key, value).await?,
            None => NearAnswer::Stale,
        };
        if let NearAnswer::Stale = probe {
            probe = self.probe_headed(session, &place, key, value).await?;
        }
        let stamp = match probe {
            NearAnswer::Hit => return Ok(Some(true)),
            NearAnswer::NotSeen(_) if ABSENT_AT_ONCE.is_armed() => return Ok(Some(false)),
            NearAnswer::NotSeen(stamp) => stamp,
            NearAnswer::Stale | NearAnswer::Unclear => {
                count(&near.counts.whole_leaves);
                return Ok(None);
            }
        };
        let found = self.look_again(session, (near, layout), place.pointer.addr, stamp, key, value);
        let found = found.await?;
        if found.is_none() {
            count(&near.counts.whole_leaves);
        }
        Ok(found)
    }

    /// Looks for `key` under a stamp that is remembered. 1 READ; 1 more if a hint is wrong, or slots do not fit.
    async fn probe(
        self: &Arc<Self>,
        session: &Session,
        place: &ChildPlace,
        stamp: Stamp,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<NearAnswer, BlinkFail> {
        let Some((near, layout)) = self.near() else { return Ok(NearAnswer::Unclear) };
        let (addr, window, hash) = (place.pointer.addr, layout.window(key), xxh3_64(key));
        if let Some(slot) = near.hints.get(addr, hash).filter(|slot| window.contains(slot)) {
            count(&near.counts.hints_tried);
            let slots = slot..slot + 1;
            let words = self.read_slots(session, layout, addr, &slots).await?;
            let image = part_of(layout, (addr, stamp), &slots, words.words());
            let leaf = GuardedLeaf::new(layout, &image);
            let fits = leaf.slot(slot) == SlotState::Pair || SPECULATE_BY_KEY.is_armed();
            if fits && leaf.key(slot) == key {
                count(&near.counts.hints_right);
                leaf.value(slot, value);
                return Ok(NearAnswer::Hit);
            }
            near.hints.forget(addr, hash);
        }
        for _ in 0..LOOKS_MAX {
            let words = self.read_slots(session, layout, addr, &window).await?;
            let image = part_of(layout, (addr, stamp), &window, words.words());
            match judge((near, layout), (addr, &image), key, value) {
                NearAnswer::Unclear => {}
                NearAnswer::Stale => {
                    count(&near.counts.stale);
                    place.forget_stamp();
                    return Ok(NearAnswer::Stale);
                }
                clear => return Ok(clear),
            }
        }
        Ok(NearAnswer::Unclear)
    }

    /// READs header and neighbourhood of `key`, in this order, and remembers the stamp. 2 READs in one chain.
    async fn probe_headed(
        self: &Arc<Self>,
        session: &Session,
        place: &ChildPlace,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<NearAnswer, BlinkFail> {
        let Some((near, layout)) = self.near() else { return Ok(NearAnswer::Unclear) };
        let (addr, window) = (place.pointer.addr, layout.window(key));
        let (offset, bytes) = layout.bytes_of(&window);
        let reliable = session.reliable();
        let chain = reliable.chain(|ops| {
            ops.read(addr, reliable.buf(layout.header_bytes()));
            ops.read(addr.plus(offset), reliable.buf(bytes));
        });
        let (ops, _) = chain.await?;
        let mut image = session.client().buf(layout.leaf_bytes());
        layout.fill_headed(image.words_mut(), ops.buf(0).words(), &window, ops.buf(1).words());
        let is_proven =
            self.is_current(&image, addr, 0) && self.is_born_by(image.words(), place.pointer.view);
        let leaf = GuardedLeaf::new(layout, image.words());
        let is_lone = leaf.right() == 0 && leaf.low_fence().is_none();
        if !is_proven || is_lone || leaf.covers(key) != Cover::Inside {
            return Ok(NearAnswer::Unclear);
        }
        let probe = judge((near, layout), (addr, image.words()), key, value);
        if let NearAnswer::Hit | NearAnswer::NotSeen(_) = probe {
            self.learn(place, image.words());
        }
        Ok(probe)
    }

    /// Makes sure that `key`, which was not seen, is absent (`INV-NEAR-4`). 3 READs in one chain; `None` if slots do not
    /// fit, or pairs hop all the time.
    async fn look_again(
        self: &Arc<Self>,
        session: &Session,
        (near, layout): (&Hopscotch, &GuardedLayout),
        addr: GlobalAddr,
        stamp: Stamp,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, BlinkFail> {
        let (reliable, window) = (session.reliable(), layout.window(key));
        let (offset, bytes) = layout.bytes_of(&window);
        for _ in 0..LOOKS_MAX {
            count(&near.counts.second_looks);
            let chain = reliable.chain(|ops| {
                ops.read(addr, reliable.buf(8));
                ops.read(addr.plus(offset), reliable.buf(bytes));
                ops.read(addr, reliable.buf(8));
            });
            let (ops, _) = chain.await?;
            let image = part_of(layout, (addr, stamp), &window, ops.buf(1).words());
            let have_hopped = ops.buf(0).words() != ops.buf(2).words();
            match judge((near, layout), (addr, &image), key, value) {
                NearAnswer::Hit => return Ok(Some(true)),
                NearAnswer::NotSeen(_) if !have_hopped => return Ok(Some(false)),
                NearAnswer::NotSeen(_) | NearAnswer::Unclear => {}
                NearAnswer::Stale => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Locks the leaf of the change's key and READs the slot that a hint names, or the neighbourhood, by which the stamp
    /// proves the leaf; else the leaf. A remove READs no slot alone, as it asks whether the neighbourhood is empty.
    ///
    /// Cost: 1 CAS and 1 READ, 1 round trip. 1 READ more if the hint is wrong, and 1 of the leaf if a slot does not fit.
    pub(super) async fn lock_near(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Locked, BlinkFail> {
        let key = change.key;
        let place = match self.near() {
            Some(_) => self.child_place(session, key, unfinished).await?,
            None => None,
        };
        let (Some((near, layout)), Some(place)) = (self.near(), place) else {
            return self.lock_level(session, key, 0, unfinished).await;
        };
        let addr = place.pointer.addr;
        if let Some(stamp) = place.stamp().filter(|_| near.options.change_near) {
            let (window, hash) = (layout.window(key), xxh3_64(key));
            let guesses =
                change.value.is_some() && near.options.point_read == PointRead::Neighbourhood;
            let hint = if guesses { near.hints.get(addr, hash) } else { None };
            let hint = hint.filter(|slot| window.contains(slot));
            let slots = hint.map_or(window.clone(), |slot| slot..slot + 1);
            let (offset, bytes) = layout.bytes_of(&slots);
            let what = (addr.plus(offset), bytes);
            let (lock, mut part) = self.lock_reading(session, addr, 0, what).await?;
            let mut image = session.client().buf(layout.leaf_bytes());
            if let Some(slot) = hint {
                count(&near.counts.hints_tried);
                layout.fill_part(image.words_mut(), (addr.word(), stamp), &slots, part.words());
                let leaf = GuardedLeaf::new(layout, image.words());
                if leaf.slot(slot) == SlotState::Pair && leaf.key(slot) == key {
                    count(&near.counts.hints_right);
                    return Ok(self.locked_part(session, addr, lock, image));
                }
                near.hints.forget(addr, hash);
                part = self.read_slots(session, layout, addr, &window).await?;
            }
            layout.fill_part(image.words_mut(), (addr.word(), stamp), &window, part.words());
            let leaf = GuardedLeaf::new(layout, image.words());
            let (pairs, empty, torn) = leaf.fits_in(&window);
            if torn == 0 {
                if let (Lookup::Hit(slot), Some(_)) = (leaf.find(key), change.value) {
                    near.hints.put(addr, hash, slot);
                }
                return Ok(self.locked_part(session, addr, lock, image));
            }
            if pairs + empty == 0 {
                count(&near.counts.stale);
                place.forget_stamp();
            }
            count(&near.counts.read_on);
            let reliable = session.reliable();
            let image = reliable.read(addr, reliable.buf(layout.leaf_bytes())).await?;
            let leaf = self.prove_locked(session, &place.pointer, 0, lock, image).await?;
            if leaf.view().covers(key) == Cover::Inside {
                self.learn(&place, leaf.image.words());
                return Ok(leaf);
            }
            leaf.unlock().await?;
        }
        let leaf = self.lock_from(session, place.pointer.clone(), key, 0, unfinished).await?;
        if leaf.addr == addr {
            self.learn(&place, leaf.image.words());
        }
        Ok(leaf)
    }
}
