//! One change of one key: finds out what its slot holds, prepares what it links, and publishes it by one CAS.
//!
//! Nobody waits for anybody: a sealed slot is helped to its end (`node_switch`), a lost CAS is tried again with
//! the word that was found.

use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::{Reliable, Session, Unlinked};

use super::DartTree;
use super::descent::{NodeRef, Path, PathEnd, SlotPlace};
use super::leaf::{self, Before, LeafCopy};
use super::node_switch::{Grown, Growth};
use super::ops::Below;
use super::outcome::{Attempt, PublishedKind};
use super::publish::{Publication, Published};
use super::word::{SESSION_MASK, SlotContent, SlotWord, Step};

farleaf_fabric::canaries! {
    pub(crate) INSERT_UNPROVEN = "insert-unproven",
        "an insert that began at an entry takes a slot without a proof";
    pub(crate) ABSORB_ANY = "absorb-any",
        "a blind change that lost to any change counts as done just before it";
    pub(crate) ERASE_REMOVED = "erase-removed", "a remove leaves an empty slot, not a TOMB";
}

/// The end of one attempt at a change.
pub(super) enum AttemptEnd {
    Done(Outcome),
    /// This start leads nowhere: the next shorter one.
    NextStart,
    /// Begin at the root.
    Again,
}

/// One change under way.
pub(super) struct Changing<'a> {
    pub(super) tree: &'a Arc<DartTree>,
    pub(super) session: &'a Session,
    pub(super) io: Reliable<'a>,
    pub(super) change: &'a Change<'a>,
    pub(super) held: &'a mut Vec<u8>,
    /// The object of the new leaf, while it is linked nowhere.
    pub(super) leaf: Option<Unlinked>,
}

impl Changing<'_> {
    pub(super) async fn attempt(
        &mut self,
        path: &Path,
        trail: &[SlotPlace],
    ) -> Result<AttemptEnd, IndexError> {
        match &path.landing {
            PathEnd::Stale | PathEnd::Met(_) => Ok(AttemptEnd::NextStart),
            PathEnd::Full(node, bucket) => self.at_full(path, *node, bucket, trail).await,
            PathEnd::Edge(place) => self.at_edge(path, *place, trail).await,
            PathEnd::Slot(place, bucket) => {
                self.at_slot(path, *place, bucket.as_ref(), trail).await
            }
        }
    }

    /// Returns whether the change is blind: an update or upsert that needs no answer about the value.
    fn is_blind(&self) -> bool {
        let Change { value, replaces, expected, .. } = self.change;
        value.is_some() && *replaces && expected.is_none()
    }

    fn absent(&mut self, outcome: Outcome) -> Result<AttemptEnd, IndexError> {
        if self.change.expected.is_some() {
            self.held.clear();
        }
        Ok(AttemptEnd::Done(outcome))
    }

    /// At a bucket that has neither the key's step nor an empty slot: the key is absent, if it belongs there, and
    /// a change that adds it grows the node.
    ///
    /// Cost: none for one that adds nothing, on a fresh way; else 1 READ if bytes of the way are unproven, and for a
    /// change that adds the key that of [`DartTree::grow`].
    async fn at_full(
        &mut self,
        path: &Path,
        node: NodeRef,
        bucket: &Buf,
        trail: &[SlotPlace],
    ) -> Result<AttemptEnd, IndexError> {
        let decision = self.change.decide(false, None);
        if let (Decision::Leave(outcome), true) = (decision, path.is_fresh) {
            return self.absent(outcome);
        }
        let (key, mut proof) = (self.change.key, None);
        if !path.is_fresh || path.has_gaps {
            proof = match self.leaf_for_proof(path, node, Some(bucket)).await? {
                Ok(word) => Some(word),
                Err(end) => return Ok(end),
            };
        }
        // Read before the node is touched: if nothing is to be added, or the way is fresh. There a key that leaves it in
        // front of the node splits an edge, which has to be as it was read.
        let adds = matches!(decision, Decision::Apply(_));
        if let Some(word) = proof.take_if(|_| path.is_fresh || !adds) {
            let leaf = self.tree.read_leaf(self.io, word).await?;
            if !leaf.shares(key, node.plen) {
                return match path.is_fresh {
                    true => self.split_edge(path, &leaf, trail).await,
                    false => Ok(AttemptEnd::NextStart),
                };
            }
        }
        let outcome = match decision {
            Decision::Leave(outcome) => return self.absent(outcome),
            Decision::Apply(outcome) => outcome,
        };
        self.tree.counters.slot_taken.add(1);
        let content = self.encode_leaf(Before::Nothing, false).await?;
        let (Some(content), Some(leaf)) = (content, self.leaf.take()) else {
            return Ok(AttemptEnd::Again);
        };
        let (step, code) = (Step::at(key, node.plen), self.code());
        let is_whole = bucket.words().len() == self.tree.shape.slots(node.kind);
        let words =
            is_whole.then(|| bucket.words().iter().map(|word| SlotWord::from_raw(*word)).collect());
        let may_use = |place: &&SlotPlace| {
            place.child() == Some(node)
                && !place.word.is_sealed()
                && (path.is_fresh || place.node.is_some())
        };
        let place = trail.last().filter(may_use).copied();
        let growth =
            Growth { node, step, words, place, proof, leaf, code, content, is_below: true };
        match self.tree.grow(self.session, key, growth).await? {
            Grown::Inserted => self.absent(outcome),
            Grown::Late(leaf) => {
                self.leaf = Some(leaf);
                Ok(AttemptEnd::Again)
            }
            Grown::NotBelow(leaf) => {
                self.leaf = Some(leaf);
                Ok(AttemptEnd::NextStart)
            }
        }
    }

    /// The word of a leaf below `node`, which tells whether the key belongs there; else the end of the attempt. A node
    /// without leaves is switched, if the way is fresh.
    async fn leaf_for_proof(
        &self,
        path: &Path,
        node: NodeRef,
        bucket: Option<&Buf>,
    ) -> Result<Result<SlotWord, AttemptEnd>, IndexError> {
        self.tree.counters.proof_reads.add(1);
        let (io, key) = (self.io, self.change.key);
        Ok(match self.tree.some_leaf(io, node, bucket, key, path.is_fresh).await? {
            Below::Leaf(word) => Ok(word),
            Below::Empty(node, prefix) if path.is_fresh => {
                self.tree.switch(self.session, &prefix, node).await?;
                Err(AttemptEnd::Again)
            }
            Below::Empty(..) | Below::Stale => Err(AttemptEnd::NextStart),
        })
    }

    /// In front of an inner node behind more bytes than the key has.
    async fn at_edge(
        &mut self,
        path: &Path,
        place: SlotPlace,
        trail: &[SlotPlace],
    ) -> Result<AttemptEnd, IndexError> {
        let decision = self.change.decide(false, None);
        if let (Decision::Leave(outcome), true) = (decision, path.is_fresh) {
            return self.absent(outcome);
        }
        if place.word.is_sealed() {
            return self.at_sealed(place).await;
        }
        let Some(child) = place.child() else { return Ok(AttemptEnd::Again) };
        let leaf = match self.leaf_for_proof(path, child, None).await? {
            Ok(word) => self.tree.read_leaf(self.io, word).await?,
            Err(end) => return Ok(end),
        };
        if let Decision::Leave(outcome) = decision {
            return match leaf.shares(self.change.key, place.plen()) {
                true => self.absent(outcome),
                false => Ok(AttemptEnd::NextStart),
            };
        }
        self.split_edge(path, &leaf, trail).await
    }

    /// A sealed slot: its node is being replaced, and this client helps.
    async fn at_sealed(&self, place: SlotPlace) -> Result<AttemptEnd, IndexError> {
        self.tree.counters.met_seal.add(1);
        match place.node {
            Some(node) => {
                self.tree.switch(self.session, self.change.key, node).await?;
                Ok(AttemptEnd::Again)
            }
            None => Err(IndexError::Corrupt("the root slot is sealed".into())),
        }
    }

    async fn at_slot(
        &mut self,
        path: &Path,
        mut place: SlotPlace,
        bucket: Option<&Buf>,
        trail: &[SlotPlace],
    ) -> Result<AttemptEnd, IndexError> {
        let mut may_absorb = false;
        loop {
            if place.word.is_sealed() {
                return self.at_sealed(place).await;
            }
            let next = match place.word.child() {
                SlotContent::Node(..) => return Ok(AttemptEnd::Again),
                SlotContent::Leaf(_) => {
                    self.at_leaf(path, place, bucket, trail, &mut may_absorb).await?
                }
                SlotContent::Empty | SlotContent::Tomb => {
                    self.at_vacancy(path, place, bucket, trail).await?
                }
            };
            match next {
                NextStep::Ended(step) => return Ok(step),
                // Another has been quicker: the same slot, with what it holds now.
                NextStep::Found(word) => {
                    if word.step() != Some(place.step) && place.node.is_some() {
                        return Ok(AttemptEnd::Again);
                    }
                    place.word = word;
                }
            }
        }
    }

    /// At an empty slot or a TOMB: the key is absent, if it belongs there.
    async fn at_vacancy(
        &mut self,
        path: &Path,
        place: SlotPlace,
        bucket: Option<&Buf>,
        trail: &[SlotPlace],
    ) -> Result<NextStep, IndexError> {
        let decision = self.change.decide(false, None);
        if let (Decision::Leave(outcome), true) = (decision, path.is_fresh) {
            return Ok(NextStep::Ended(self.absent(outcome)?));
        }
        let proof = match place.node {
            Some(_) if INSERT_UNPROVEN.is_armed() => None,
            Some(node) if !path.is_fresh || path.has_gaps => {
                match self.leaf_for_proof(path, node, bucket).await? {
                    Ok(word) => Some(word),
                    Err(end) => return Ok(NextStep::Ended(end)),
                }
            }
            _ => None,
        };
        // One list: the proof, the new leaf, and what a TOMB names.
        let mut ops = self.session.client().ops();
        let proof = proof.map(|word| {
            let SlotContent::Leaf(code) = word.child() else {
                unreachable!("some_leaf finds leaves")
            };
            (word, ops.read(word.addr(), self.io.buf(leaf::read_bytes(code))))
        });
        let puts = self.change.value.is_some() && matches!(decision, Decision::Apply(_));
        if puts {
            self.write_leaf(&mut ops, Before::of(place.word, place.at), false).await?;
        }
        let is_tomb = place.word.is_tomb() && self.session.endpoint().is_lossy();
        let removed = is_tomb.then(|| ops.read(place.word.addr(), self.io.buf(8)));
        let mut removed_word = None;
        if !ops.is_empty() {
            let mut ops = self.io.post_many(ops).await?;
            self.leaf_written();
            removed_word = removed.map(|index| ops.buf(index).words()[0]);
            if let Some((word, index)) = proof {
                let leaf = self.tree.whole_leaf(self.io, word, ops.take_buf(index)).await?;
                if !leaf.shares(self.change.key, place.plen()) {
                    return Ok(NextStep::Ended(match decision {
                        _ if !path.is_fresh => AttemptEnd::NextStart,
                        Decision::Leave(outcome) => self.absent(outcome)?,
                        Decision::Apply(_) => self.split_edge(path, &leaf, trail).await?,
                    }));
                }
            }
        }
        let outcome = match decision {
            Decision::Leave(outcome) => return Ok(NextStep::Ended(self.absent(outcome)?)),
            Decision::Apply(outcome) => outcome,
        };
        let Some(leaf) = self.leaf.take() else { return Ok(NextStep::Ended(AttemptEnd::Again)) };
        if place.word.is_tomb() {
            self.tree.counters.tomb_reused.add(1);
        }
        let put = SlotWord::leaf(place.step, self.code(), leaf.addr());
        let attempt =
            Attempt { removed: removed_word, ..attempt_at(&place, put, PublishedKind::Leaf) };
        if self.change.expected.is_some() {
            self.held.clear();
        }
        self.publish(&place, attempt, vec![leaf], None, outcome).await
    }

    /// At a leaf: of this key, or of another one.
    async fn at_leaf(
        &mut self,
        path: &Path,
        place: SlotPlace,
        bucket: Option<&Buf>,
        trail: &[SlotPlace],
        may_absorb: &mut bool,
    ) -> Result<NextStep, IndexError> {
        let SlotContent::Leaf(code) = place.word.child() else {
            return Ok(NextStep::Ended(AttemptEnd::Again));
        };
        // One list: the old leaf, and the new one.
        let mut ops = self.session.client().ops();
        let read = ops.read(place.word.addr(), self.io.buf(leaf::read_bytes(code)));
        let mut retiring = None;
        if self.change.replaces {
            if self.change.value.is_some() {
                let before = Before::Leaf(place.word.addr());
                self.write_leaf(&mut ops, before, self.is_blind()).await?;
            }
            let addr = place.word.addr();
            let prepared = self.session.prepare_retire(addr).await;
            retiring = Some(prepared.map_err(|error| self.tree.misled(error))?);
        }
        let posted = self.io.post_many(ops).await;
        let mut ops = posted.map_err(|error| self.tree.misled(error))?;
        self.leaf_written();
        let old = self.tree.whole_leaf(self.io, place.word, ops.take_buf(read)).await?;
        let difference = self.tree.difference(&place, &old, self.change.key);
        if let Ok(None) = difference {
            return self.over_own(place, bucket, &old, retiring, may_absorb).await;
        }
        if let Some(retiring) = retiring {
            self.session.cancel_retire(retiring);
        }
        let Some(position) = difference? else { return Ok(NextStep::Ended(AttemptEnd::Again)) };
        let decision = self.change.decide(false, None);
        if position < place.plen() {
            return Ok(NextStep::Ended(match decision {
                _ if !path.is_fresh => AttemptEnd::NextStart,
                Decision::Leave(outcome) => self.absent(outcome)?,
                Decision::Apply(_) => self.split_edge(path, &old, trail).await?,
            }));
        }
        match decision {
            Decision::Leave(outcome) => Ok(NextStep::Ended(self.absent(outcome)?)),
            Decision::Apply(outcome) => {
                let old = place.word.moved(Step::at(old.key(), position), 0);
                self.branch(place, old, position, outcome).await
            }
        }
    }

    /// The slot holds the leaf of this key.
    async fn over_own(
        &mut self,
        place: SlotPlace,
        bucket: Option<&Buf>,
        old: &LeafCopy,
        retiring: Option<farleaf_pool::Retiring>,
        may_absorb: &mut bool,
    ) -> Result<NextStep, IndexError> {
        if self.change.expected.is_some() {
            self.held.clear();
            self.held.extend_from_slice(old.value());
        }
        let held = self.change.expected.is_some().then_some(old.value());
        let is_blind = old.is_blind() || ABSORB_ANY.is_armed();
        let absorbed = *may_absorb && is_blind && self.tree.options.absorb;
        let outcome = match self.change.decide(true, held) {
            // A blind change that another blind change has overtaken: as if done just before that one.
            Decision::Apply(outcome) if absorbed => {
                self.tree.counters.absorbed.add(1);
                if let Some(retiring) = retiring {
                    self.session.cancel_retire(retiring);
                }
                return Ok(NextStep::Ended(AttemptEnd::Done(outcome)));
            }
            Decision::Leave(outcome) => {
                if let Some(retiring) = retiring {
                    self.session.cancel_retire(retiring);
                }
                return Ok(NextStep::Ended(AttemptEnd::Done(outcome)));
            }
            Decision::Apply(outcome) => outcome,
        };
        *may_absorb = self.is_blind();
        let (put, mine, objects) = match self.leaf.take() {
            Some(leaf) => {
                let put = SlotWord::leaf(place.step, self.code(), leaf.addr());
                (put, PublishedKind::Leaf, vec![leaf])
            }
            None => {
                let session = self.session.id() & SESSION_MASK;
                let tomb = SlotWord::tomb(place.step, place.word.addr(), session);
                let put = if ERASE_REMOVED.is_armed() { SlotWord::EMPTY } else { tomb };
                (put, PublishedKind::Tomb, Vec::new())
            }
        };
        let attempt = attempt_at(&place, put, mine);
        let next = self.publish(&place, attempt, objects, retiring, outcome).await?;
        if mine == PublishedKind::Tomb
            && let NextStep::Ended(AttemptEnd::Done(_)) = next
        {
            self.tree.counters.tomb_made.add(1);
            if let (Some(node), Some(bucket)) = (place.node, bucket) {
                self.tree.after_remove(self.session, self.change.key, node, bucket);
            }
        }
        Ok(next)
    }

    /// A new node at `position` takes `old`, the child of the slot, and the new leaf.
    async fn branch(
        &mut self,
        place: SlotPlace,
        old: SlotWord,
        position: usize,
        outcome: Outcome,
    ) -> Result<NextStep, IndexError> {
        let key = self.change.key;
        let mut ops = self.session.client().ops();
        self.write_leaf(&mut ops, Before::Nothing, false).await?;
        let Some(leaf) = self.leaf.take() else { return Ok(NextStep::Ended(AttemptEnd::Again)) };
        let children = [old, SlotWord::leaf(Step::at(key, position), self.code(), leaf.addr())];
        let branch = self.tree.new_branch(self.session, &mut ops, &place, key, position, &children);
        let (put, mut objects) = branch.await?;
        objects.push(leaf);
        self.io.post_many(ops).await?;
        objects.iter().for_each(Unlinked::written);
        self.tree.counters.split.add(1);
        self.tree.counters.chain.add(objects.len() as u64 - 2);
        let attempt = attempt_at(&place, put, PublishedKind::Node);
        if self.change.expected.is_some() {
            self.held.clear();
        }
        self.publish(&place, attempt, objects, None, outcome).await
    }

    /// The key leaves an edge of the way within its compressed bytes, as `other`, a leaf below, tells: a new
    /// node there takes the edge's child and the new leaf.
    async fn split_edge(
        &mut self,
        path: &Path,
        other: &LeafCopy,
        trail: &[SlotPlace],
    ) -> Result<AttemptEnd, IndexError> {
        let key = self.change.key;
        let Decision::Apply(outcome) = self.change.decide(false, None) else {
            return Ok(AttemptEnd::Again);
        };
        let again = if path.is_fresh { AttemptEnd::Again } else { AttemptEnd::NextStart };
        let Some(position) = other.difference(key) else { return Ok(again) };
        let edge = trail.iter().find_map(|place| {
            let child = place.child()?;
            (place.bytes_before_child()..child.plen).contains(&position).then_some((*place, child))
        });
        let Some((place, child)) = edge else { return Ok(again) };
        if place.word.is_sealed() {
            return self.at_sealed(place).await;
        }
        let old = place.word.moved(Step::at(other.key(), position), child.plen - position - 1);
        match self.branch(place, old, position, outcome).await? {
            NextStep::Ended(step) => Ok(step),
            NextStep::Found(_) => Ok(AttemptEnd::Again),
        }
    }

    /// Posts the CAS. The objects of a lost one are used again, or freed.
    async fn publish(
        &mut self,
        place: &SlotPlace,
        attempt: Attempt,
        objects: Vec<Unlinked>,
        retiring: Option<farleaf_pool::Retiring>,
        outcome: Outcome,
    ) -> Result<NextStep, IndexError> {
        let (tree, session, key) = (self.tree, self.session, self.change.key);
        let publication = Publication::new(tree, session, key, attempt, objects, retiring);
        match publication.run().await? {
            Published::Done => {
                if attempt.mine == PublishedKind::Node {
                    tree.node_linked(session, key, place, attempt.put);
                }
                Ok(NextStep::Ended(AttemptEnd::Done(outcome)))
            }
            Published::Lost(found, mut objects) => {
                tree.counters.changed.add(1);
                // The leaf is the last.
                self.leaf = if attempt.mine == PublishedKind::Tomb { None } else { objects.pop() };
                Ok(match found {
                    Some(word) => NextStep::Found(word),
                    None => NextStep::Ended(AttemptEnd::Again),
                })
            }
        }
    }

    fn code(&self) -> u8 {
        leaf::code_of(self.change.key.len(), self.change.value.map_or(0, <[u8]>::len))
    }

    /// Adds the WRITE of the new leaf to `ops`.
    async fn write_leaf(
        &mut self,
        ops: &mut farleaf_fabric::Ops,
        before: Before,
        is_blind: bool,
    ) -> Result<(), IndexError> {
        let content = self.encode_leaf(before, is_blind).await?;
        if let (Some(content), Some(leaf)) = (content, &self.leaf) {
            leaf.write_in(ops, content);
        }
        Ok(())
    }

    /// The content of the new leaf, which gets an object if it has none; `None` for a change without a value.
    async fn encode_leaf(
        &mut self,
        before: Before,
        is_blind: bool,
    ) -> Result<Option<Buf>, IndexError> {
        let Change { key, value: Some(value), .. } = *self.change else { return Ok(None) };
        let bytes = leaf::object_bytes(key.len(), value.len());
        let alloc = || self.session.alloc_unlinked(self.session.place(), bytes);
        if self.leaf.is_none() {
            self.leaf = Some(alloc().await?);
        }
        // Over the TOMB of what was at the same address, a lost CAS could not be judged: the slot would look the
        // same before it and after a remove by the TOMB's session. The first object is freed behind the second.
        if let (Before::Tomb(removed, _), Some(leaf)) = (before, &self.leaf)
            && removed == leaf.addr()
        {
            let another = alloc().await?;
            self.leaf = Some(another);
        }
        let ids = (self.tree.table, leaf::writing(self.session));
        let bufs = self.leaf.as_ref().map(|leaf| self.session.client().buf(leaf.bytes()));
        Ok(bufs.map(|buf| leaf::encode(buf, (key, value), (before, is_blind), ids)))
    }

    fn leaf_written(&self) {
        self.leaf.iter().for_each(Unlinked::written);
    }
}

/// The CAS that puts `put` into a slot.
pub(super) fn attempt_at(place: &SlotPlace, put: SlotWord, mine: PublishedKind) -> Attempt {
    let (at, expected, shared) = (place.at, place.word, place.bytes_before_child());
    Attempt { at, expected, put, mine, shared, removed: None }
}

/// The next step at a slot.
enum NextStep {
    Ended(AttemptEnd),
    /// The CAS was lost to this word.
    Found(SlotWord),
}
