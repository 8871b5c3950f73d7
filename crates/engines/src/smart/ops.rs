//! Operations: gets, and changes as attempts by the cache and then from the root.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::local::QueuePlace;
use farleaf_index::retry::{Attempts, LockWait};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::{Placement, Session};

use super::delegation::ChangeLead;
use super::descent::{CachedStart, Path, PathEnd, Proof};
use super::insert::NewLeaf;
use super::layout::Slot;
use super::leaf::{NewValue, class_for};
use super::locked::{LeafContent, LeafImage, Stored};
use super::relocate::Helped;
use super::tree::{Fail, LEAF, Tree, count, owner};

farleaf_fabric::canaries! {
    pub(crate) BELIEVE_CACHED_ABSENCE = "believe-cached-absence",
        "a key is absent because the leaf of a cached slot says so";
}

/// The pointers that an operation goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartFrom {
    /// Cached pointers.
    Cache,
    /// Cached pointers, with a READ of the node whose slot is to change.
    Node,
    /// Fresh pointers from the root on, so that each node's parent is known.
    Root,
}

impl StartFrom {
    /// The pointers after an attempt that met another's lock by such a way.
    fn after(path: Option<&Path>) -> StartFrom {
        match path {
            Some(path) if !path.is_cached() => StartFrom::Root,
            _ => StartFrom::Cache,
        }
    }
}

/// A leaf that was READ by a cached slot, and linked there at a moment of that READ.
struct SeenLeaf {
    slot: Slot,
    image: Buf,
    /// The moment before the READ.
    stamp: Option<u64>,
    /// It is that of the operation's key.
    is_of_key: bool,
}

/// The end of an attempt at a change.
enum Step {
    Done(Outcome),
    Again(StartFrom),
}

/// A change under way.
struct ChangeState<'a> {
    change: &'a Change<'a>,
    held: &'a mut Vec<u8>,
    wait: LockWait,
    /// The lock that a dead client holds, which is fenced.
    dead: Option<u64>,
    /// The leaf that is to be linked if the key is absent.
    leaf: Option<NewLeaf>,
    /// The new value, if it is in a record and no leaf names it yet.
    record: Option<LeafContent>,
    /// The lead among the changes of the key.
    lead: Option<ChangeLead>,
    /// Members of the lead's queue that joined before the attempt began.
    mark: u64,
    /// Its turn at the node in which its way ends, if it locks nodes.
    turn: Option<QueuePlace>,
}

impl Tree {
    /// Copies the value of `key`.
    pub(super) async fn get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        value.clear();
        let mut attempts = Attempts::default();
        loop {
            match self.try_get(session, key, value).await {
                Err(Fail::Again) => attempts.again(session).await?,
                Err(Fail::Error(error)) => return Err(error),
                Ok(found) => return Ok(found),
            }
        }
    }

    async fn try_get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, Fail> {
        let guess = self.guess(key);
        if guess.as_ref().is_some_and(|guess| guess.proof == Proof::Absent) {
            return Ok(false);
        }
        let seen = self.proven_leaf(session, guess.as_ref(), key).await?;
        if let Some(SeenLeaf { image, is_of_key: true, .. }) = &seen {
            return self
                .value_of(session, self.leaf(GlobalAddr::NULL, image).content(), value)
                .await;
        }
        if BELIEVE_CACHED_ABSENCE.is_armed()
            && let Some(slot) = guess.as_ref().and_then(|it| it.slot).filter(|it| it.is_leaf())
        {
            let image = self.read_leaf(session, slot).await?;
            let leaf = self.leaf(slot.addr(), &image);
            if leaf.is_whole() && (!leaf.is_valid() || leaf.key() != key) {
                return Ok(false);
            }
        }
        let path = self.path(session, guess.as_ref(), key).await?;
        let PathEnd::Leaf { index, slot } = path.landing else { return Ok(false) };
        if seen.is_some_and(|seen| seen.slot == slot.thawed()) {
            return Ok(false);
        }
        let image = self.read_fresh_leaf(session, (path.last().slot_addr(index), slot)).await?;
        let leaf = self.leaf(slot.addr(), &image);
        if leaf.key() != key {
            return Ok(false);
        }
        self.value_of(session, leaf.content(), value).await
    }

    /// The leaf that a cached slot leads to, if that is proven: 1 READ. Not that of an exact entry, whose slot is as
    /// good as one that was READ.
    async fn proven_leaf(
        &self,
        session: &Session,
        guess: Option<&CachedStart>,
        key: &[u8],
    ) -> Result<Option<SeenLeaf>, Fail> {
        let Some(guess) = guess.filter(|it| it.proof != Proof::Exact) else { return Ok(None) };
        let Some(slot) = guess.slot.filter(|slot| slot.is_leaf()) else { return Ok(None) };
        let stamp = self.leaf_stamp(slot.addr());
        let image = self.read_leaf(session, slot).await?;
        let is_proven = self.is_proven(guess, slot, &image);
        let is_of_key = is_proven && self.leaf(slot.addr(), &image).key() == key;
        count(if is_of_key { &self.counts.proven } else { &self.counts.unproven });
        Ok(is_proven.then_some(SeenLeaf { slot, image, stamp, is_of_key }))
    }

    /// The way to `key`, from the deepest node that the cache knows of.
    async fn path(
        &self,
        session: &Session,
        guess: Option<&CachedStart>,
        key: &[u8],
    ) -> Result<Path, Fail> {
        let proven = match guess {
            Some(guess) => self.prove(session, guess, key, None).await?,
            None => None,
        };
        let start = match proven {
            Some(held) => held,
            None => self.root_node(session).await?,
        };
        self.descend(session, start, key).await
    }

    /// The node in which the cached way to `key` ends. No remote operation.
    fn cached_end(&self, key: &[u8]) -> Option<GlobalAddr> {
        let guess = self.guess(key)?;
        let below = guess.slot.filter(|slot| !slot.is_leaf());
        Some(below.map_or_else(|| guess.entry.addr(), Slot::addr))
    }

    /// READs the leaf that a fresh slot at an address leads to.
    async fn read_fresh_leaf(
        self: &Arc<Self>,
        session: &Session,
        (at, slot): (GlobalAddr, Slot),
    ) -> Result<Buf, Fail> {
        let image = self.read_leaf(session, slot).await?;
        self.shape.mode.met_leaf(self, session, (at, slot), image.words()[0]);
        self.settle_leaf(session, slot.addr(), image).await
    }

    pub(super) async fn value_of(
        &self,
        session: &Session,
        content: NewValue<'_>,
        value: &mut Vec<u8>,
    ) -> Result<bool, Fail> {
        match content {
            NewValue::Absent => return Ok(false),
            NewValue::Inline(held) => {
                value.clear();
                value.extend_from_slice(held);
            }
            NewValue::Record(word) => self.read_record(session, word, value).await?,
        }
        Ok(true)
    }

    /// Refuses a change that the table does not take.
    pub(super) fn check_change(&self, change: &Change<'_>) -> Result<(), IndexError> {
        self.spec.check_change(change)
    }

    /// Changes one key. What it held is left in `held` if the change has an expectation.
    pub(crate) async fn change(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        lead: Option<ChangeLead>,
    ) -> Result<Outcome, IndexError> {
        let leads = lead.is_some();
        let (wait, dead, leaf, record) = (LockWait::of_leader(leads), None, None, None);
        let (mark, turn) = (0, None);
        let mut op = ChangeState { change, held, wait, dead, leaf, record, lead, mark, turn };
        let mut attempts = Attempts::of_leader(leads);
        let starts_at_root = self.ladder.starts_at_root(change);
        let mut by = if starts_at_root { StartFrom::Root } else { StartFrom::Cache };
        loop {
            op.turn = self.ladder.slot_turn(session, || self.cached_end(change.key)).await;
            op.mark = op.lead.as_ref().map_or(0, ChangeLead::mark);
            by = match self.attempt(session, &mut op, by).await {
                Ok(Step::Done(outcome)) => return Ok(outcome),
                Ok(Step::Again(by)) => by,
                Err(Fail::Again) => StartFrom::Root,
                Err(Fail::Error(error)) => return Err(error),
            };
            if let Some(lead) = &mut op.lead {
                lead.give_up_gets();
            }
            op.turn = None;
            attempts.again(session).await?;
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        session: &Session,
        op: &mut ChangeState<'_>,
        by: StartFrom,
    ) -> Result<Step, Fail> {
        let (key, mut seen) = (op.change.key, None);
        let path = if by == StartFrom::Root {
            self.way(session, key).await?
        } else {
            let guess = self.guess(key);
            seen = self.proven_leaf(session, guess.as_ref(), key).await?;
            if let Some(SeenLeaf { slot, image, stamp, .. }) = seen.take_if(|seen| seen.is_of_key) {
                return self.on_leaf(session, op, slot, (image, stamp), None).await;
            }
            let splits = seen.is_some() && by == StartFrom::Cache;
            self.path_of_change(session, op, guess.as_ref(), splits).await?
        };
        if let PathEnd::Leaf { index, slot } = path.landing {
            let seen = seen.filter(|seen| seen.slot == slot.thawed());
            let (stamp, image) = match seen {
                Some(seen) => (seen.stamp, seen.image),
                None => {
                    let (stamp, at) = (self.leaf_stamp(slot.addr()), path.last().slot_addr(index));
                    (stamp, self.read_fresh_leaf(session, (at, slot)).await?)
                }
            };
            if self.leaf(slot.addr(), &image).key() == key {
                return self.on_leaf(session, op, slot, (image, stamp), Some(path)).await;
            }
            let other = self.leaf_image(slot.addr(), &image);
            return self.on_absent(session, op, path, Some(other)).await;
        }
        self.on_absent(session, op, path, None).await
    }

    /// The way to the key of a change, from the deepest node that the cache knows of. A new leaf for which the cache
    /// knows no slot is written in the round trip in which that node is READ. The node is not READ if the change
    /// `splits` a proven leaf of it and it never leaves the tree.
    async fn path_of_change(
        self: &Arc<Self>,
        session: &Session,
        op: &mut ChangeState<'_>,
        guess: Option<&CachedStart>,
        splits: bool,
    ) -> Result<Path, Fail> {
        let change = op.change;
        let adds = change.value.is_some() && change.adds;
        let Some(guess) = guess.filter(|it| adds && it.proof != Proof::Exact) else {
            return self.path(session, guess, change.key).await;
        };
        if splits
            && matches!(change.decide(false, None), Decision::Apply(_))
            && let Some(held) = self.unread(session, guess)
        {
            return self.descend(session, held, change.key).await;
        }
        if guess.slot.is_some() {
            return self.path(session, Some(guess), change.key).await;
        }
        self.prepare(session, op, Some(guess.entry.addr())).await?;
        if let (Some(leaf), Some(at)) = (op.leaf.as_mut(), guess.at) {
            leaf.aim(self, at);
        }
        // If objects point back, once its slot is known.
        let is_aimed = !self.shape.mode.needs_parents() || guess.at.is_some();
        let leaf = op.leaf.as_ref().filter(|_| is_aimed);
        let new = leaf.and_then(|leaf| leaf.unwritten(session));
        let is_new = new.is_some();
        let proven = self.prove(session, guess, change.key, new).await?;
        if let Some(leaf) = op.leaf.as_mut().filter(|_| is_new) {
            leaf.is_written = true;
        }
        let start = match proven {
            Some(held) => held,
            None => self.root_node(session).await?,
        };
        self.descend(session, start, change.key).await
    }

    /// The key has a leaf, READ at `stamp`. `path` is the way there, unless a cached slot led to it.
    async fn on_leaf(
        self: &Arc<Self>,
        session: &Session,
        op: &mut ChangeState<'_>,
        slot: Slot,
        (image, stamp): (Buf, Option<u64>),
        path: Option<Path>,
    ) -> Result<Step, Fail> {
        let (leaf, change) = (self.leaf(slot.addr(), &image), op.change);
        let existed = leaf.is_valid();
        if change.expected.is_some() {
            op.held.clear();
            self.value_of(session, leaf.content(), op.held).await?;
        }
        let held = existed.then_some(op.held.as_slice());
        let outcome = match change.decide(existed, held) {
            Decision::Leave(outcome) => {
                let held = leaf.content().inline();
                self.answer_alike(op.lead.as_ref(), op.mark, change.key, (existed, held));
                return Ok(Step::Done(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        if !leaf.is_whole() || !leaf.is_free() {
            let held = leaf.lock();
            if op.dead == Some(held) && path.is_some() {
                // The slot was read after its death, so that the leaf is linked.
                self.take_over(session, self.leaf_image(slot.addr(), &image), held).await?;
                return Ok(Step::Again(StartFrom::Root));
            }
            if op.wait.again(session, (LEAF, slot.addr()), owner(held)).await? {
                op.dead = Some(held);
            }
            let by =
                if op.dead.is_some() { StartFrom::Root } else { StartFrom::after(path.as_ref()) };
            return Ok(Step::Again(by));
        }
        let content = match change.value {
            None => LeafContent::Absent,
            Some(value) => self.content(session, op, value).await?,
        };
        let stays = self.ladder.stays(&content);
        let same = match (leaf.content(), content.as_new()) {
            (NewValue::Absent, _) | (_, NewValue::Absent) => true,
            (NewValue::Record(_), new) => matches!(new, NewValue::Record(_)),
            (NewValue::Inline(_), new) => matches!(new, NewValue::Inline(_)),
        };
        let (image, has_room) =
            (self.leaf_image(slot.addr(), &image), leaf.has_room(content.as_new().bytes()));
        if stays && same && has_room {
            let content = (content, change.expected.is_none());
            match self.store(session, (image, stamp), content, op.lead.take()).await? {
                Stored::Done { is_removed } => {
                    if is_removed {
                        self.note_removed(session, change.key);
                    }
                    return Ok(Step::Done(outcome));
                }
                Stored::Lost { content, lead } => {
                    op.give_back(content);
                    op.lead = lead;
                    return Ok(Step::Again(StartFrom::after(path.as_ref())));
                }
            }
        }
        if self.shape.mode.keeps_leaves() {
            let what = "INV-SMART-8: a leaf of a table with nodes=reverse has no room for a value";
            return Err(self.corrupt(slot.addr(), what).into());
        }
        op.give_back(content);
        let Some(path) = path.filter(|path| path.nodes[0].up.is_some()) else {
            return Ok(Step::Again(StartFrom::Root));
        };
        self.prepare(session, op, None).await?;
        let Some(new) = op.leaf.take() else { return Err(Fail::Again) };
        match self.move_leaf(session, change.key, &path, image, new).await? {
            Ok(()) => Ok(Step::Done(outcome)),
            Err(new) => {
                op.leaf = Some(new);
                // Another task's new node is in the cache, but a leaf is replaced by the way from the root.
                self.help(session, path, change.key).await?;
                Ok(Step::Again(StartFrom::Root))
            }
        }
    }

    /// The key has no leaf: fresh evidence says so. `other` is the leaf of another key that the way ends at.
    async fn on_absent(
        self: &Arc<Self>,
        session: &Session,
        op: &mut ChangeState<'_>,
        path: Path,
        other: Option<LeafImage>,
    ) -> Result<Step, Fail> {
        if op.change.expected.is_some() {
            op.held.clear();
        }
        let outcome = match op.change.decide(false, None) {
            Decision::Leave(outcome) => {
                self.answer_alike(op.lead.as_ref(), op.mark, op.change.key, (false, None));
                return Ok(Step::Done(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        self.prepare(session, op, Some(path.last().addr)).await?;
        let Some(new) = op.leaf.take() else { return Err(Fail::Again) };
        let Err((new, path)) =
            self.insert(session, op.change.key, path, other, new, &mut op.turn).await?
        else {
            return Ok(Step::Done(outcome));
        };
        op.leaf = Some(new);
        if self.shape.mode.keeps_nodes() && path.is_cached() {
            // The cached slot has changed.
            return Ok(Step::Again(StartFrom::Node));
        }
        let key = op.change.key;
        let copy = match self.help(session, path, key).await? {
            // The nodes above it would have to be locked as well.
            Helped::Linked(copy) if !self.ladder.locks_paths() => copy,
            Helped::Linked(_) | Helped::No => return Ok(Step::Again(StartFrom::Root)),
            Helped::ByAnother => return Ok(Step::Again(StartFrom::Cache)),
        };
        // The node that has room now, as this operation has linked it: the key is absent there.
        let path = self.descend(session, copy, key).await?;
        if !matches!(path.landing, PathEnd::None) {
            return Ok(Step::Again(StartFrom::Root));
        }
        let Some(new) = op.leaf.take() else { return Err(Fail::Again) };
        match self.insert(session, key, path, None, new, &mut op.turn).await? {
            Ok(()) => Ok(Step::Done(outcome)),
            Err((new, _)) => {
                op.leaf = Some(new);
                Ok(Step::Again(StartFrom::Root))
            }
        }
    }

    /// The new value as a leaf holds it; writes a record if it needs one.
    async fn content(
        &self,
        session: &Session,
        op: &mut ChangeState<'_>,
        value: &[u8],
    ) -> Result<LeafContent, Fail> {
        if let Some(record) = op.record.take() {
            return Ok(record);
        }
        if let Some(leaf) = op.leaf.take() {
            // One that was made for an absent key.
            let content = leaf.into_content();
            if matches!(content, LeafContent::Record(_)) {
                return Ok(content);
            }
        }
        let fits = class_for(self.shape.mode.lead(), op.change.key.len(), value.len()).is_some();
        if fits && value.len() <= self.inline_max(session) {
            return Ok(LeafContent::Inline(value.to_vec()));
        }
        Ok(LeafContent::Record(self.write_record(session, value).await?))
    }

    /// Makes the leaf that is to be linked, unless there is one. An owner has it beside its node.
    async fn prepare(
        &self,
        session: &Session,
        op: &mut ChangeState<'_>,
        node: Option<GlobalAddr>,
    ) -> Result<(), Fail> {
        if let (None, Some(value)) = (&op.leaf, op.change.value) {
            let content = self.content(session, op, value).await?;
            let near = node.filter(|_| self.has_exact_entries());
            let on = near.map_or_else(|| session.place(), |node| Placement::Beside(node.server()));
            op.leaf = Some(self.new_leaf(session, on, op.change.key, content).await?);
        }
        Ok(())
    }
}

impl ChangeState<'_> {
    /// Keeps a record for the next attempt.
    fn give_back(&mut self, content: LeafContent) {
        if matches!(content, LeafContent::Record(_)) {
            self.record = Some(content);
        }
    }
}
