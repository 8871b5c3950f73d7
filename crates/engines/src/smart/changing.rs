//! Changing: one change of one key, as attempts by the cache and then from the root.

use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::local::QueuePlace;
use farleaf_index::retry::{Attempts, LockWait};
use farleaf_index::{Change, Decision, IndexError, Outcome};
use farleaf_pool::{Placement, Session};

use super::delegation::ChangeLead;
use super::descent::{CachedStart, Path, PathEnd, Proof, ReadNode};
use super::insert::NewLeaf;
use super::layout::Slot;
use super::leaf::{Leaf, NewValue, class_for};
use super::locked::{LeafContent, LeafImage, Stored};
use super::ops::SeenLeaf;
use super::relocate::Helped;
use super::tree::{Fail, LEAF, Tree, owner};

/// The pointers that an attempt goes by.
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

/// The end of an attempt.
enum AttemptEnd {
    Done(Outcome),
    Again(StartFrom),
}

/// A leaf of the key, as it was READ.
struct FoundLeaf {
    slot: Slot,
    image: Buf,
    /// The moment before the READ.
    stamp: Option<u64>,
    /// The way there; `None` if a cached slot led to it.
    path: Option<Path>,
}

/// A change under way.
pub(super) struct Changing<'a> {
    tree: &'a Arc<Tree>,
    session: &'a Session,
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

impl<'a> Changing<'a> {
    /// A change that has not begun. What the key held is left in `held` if the change has an expectation.
    pub(super) fn new(
        (tree, session): (&'a Arc<Tree>, &'a Session),
        change: &'a Change<'a>,
        held: &'a mut Vec<u8>,
        lead: Option<ChangeLead>,
    ) -> Changing<'a> {
        let wait = LockWait::of_leader(lead.is_some());
        let (dead, leaf, record, mark, turn) = (None, None, None, 0, None);
        Changing { tree, session, change, held, wait, dead, leaf, record, lead, mark, turn }
    }

    /// Makes the change, in as many attempts as it takes.
    pub(super) async fn run(mut self) -> Result<Outcome, IndexError> {
        let (tree, session, key) = (self.tree, self.session, self.change.key);
        let mut attempts = Attempts::of_leader(self.lead.is_some());
        let mut from = match tree.ladder.starts_at_root(self.change) {
            true => StartFrom::Root,
            false => StartFrom::Cache,
        };
        loop {
            self.turn = tree.ladder.slot_turn(session, || tree.cached_end(key)).await;
            self.mark = self.lead.as_ref().map_or(0, ChangeLead::mark);
            from = match self.attempt(from).await {
                Ok(AttemptEnd::Done(outcome)) => return Ok(outcome),
                Ok(AttemptEnd::Again(from)) => from,
                Err(Fail::Again) => StartFrom::Root,
                Err(Fail::Error(error)) => return Err(error),
            };
            if let Some(lead) = &mut self.lead {
                lead.give_up_gets();
            }
            self.turn = None;
            attempts.again(session).await?;
        }
    }

    async fn attempt(&mut self, from: StartFrom) -> Result<AttemptEnd, Fail> {
        let (tree, session, key) = (self.tree, self.session, self.change.key);
        let mut seen = None;
        let path = if from == StartFrom::Root {
            tree.way(session, key).await?
        } else {
            let guess = tree.guess(key);
            seen = tree.proven_leaf(session, guess.as_ref(), key).await?;
            if let Some(SeenLeaf { slot, image, stamp, .. }) = seen.take_if(|seen| seen.is_of_key) {
                return self.at_leaf(FoundLeaf { slot, image, stamp, path: None }).await;
            }
            let splits = seen.is_some() && from == StartFrom::Cache;
            self.path(guess.as_ref(), splits).await?
        };
        let PathEnd::Leaf { index, slot } = path.landing else {
            return self.at_absent(path, None).await;
        };
        let seen = seen.filter(|seen| seen.slot == slot.thawed());
        let (stamp, image) = match seen {
            Some(seen) => (seen.stamp, seen.image),
            None => {
                let (stamp, at) = (tree.leaf_stamp(slot.addr()), path.last().slot_addr(index));
                (stamp, tree.read_fresh_leaf(session, (at, slot)).await?)
            }
        };
        if tree.leaf(slot.addr(), &image).key() == key {
            return self.at_leaf(FoundLeaf { slot, image, stamp, path: Some(path) }).await;
        }
        let other = tree.leaf_image(slot.addr(), &image);
        self.at_absent(path, Some(other)).await
    }

    /// The way to the key, from the deepest node that the cache knows of. A new leaf for which the cache knows no slot
    /// is written in the round trip in which that node is READ. The node is not READ if the change `splits` a proven
    /// leaf of it and it never leaves the tree.
    async fn path(&mut self, guess: Option<&CachedStart>, splits: bool) -> Result<Path, Fail> {
        let (tree, session, change) = (self.tree, self.session, self.change);
        let adds = change.value.is_some() && change.adds;
        let Some(guess) = guess.filter(|it| adds && it.proof != Proof::Exact) else {
            return tree.path(session, guess, change.key).await;
        };
        if splits
            && matches!(change.decide(false, None), Decision::Apply(_))
            && let Some(held) = tree.unread(session, guess)
        {
            return tree.descend(session, held, change.key).await;
        }
        if guess.slot.is_some() {
            return tree.path(session, Some(guess), change.key).await;
        }
        self.prepare(Some(guess.entry.addr())).await?;
        if let (Some(leaf), Some(at)) = (self.leaf.as_mut(), guess.at) {
            leaf.aim(tree, at);
        }
        // If objects point back, once its slot is known.
        let is_aimed = !tree.shape.mode.needs_parents() || guess.at.is_some();
        let leaf = self.leaf.as_ref().filter(|_| is_aimed);
        let new = leaf.and_then(|leaf| leaf.unwritten(session));
        let is_new = new.is_some();
        let proven = tree.prove(session, guess, change.key, new).await?;
        if let Some(leaf) = self.leaf.as_mut().filter(|_| is_new) {
            leaf.is_written = true;
        }
        let start: ReadNode = match proven {
            Some(held) => held,
            None => tree.root_node(session).await?,
        };
        tree.descend(session, start, change.key).await
    }

    /// The key has a leaf.
    async fn at_leaf(&mut self, found: FoundLeaf) -> Result<AttemptEnd, Fail> {
        let (tree, change) = (self.tree, self.change);
        let leaf = tree.leaf(found.slot.addr(), &found.image);
        let existed = leaf.is_valid();
        if change.expected.is_some() {
            self.held.clear();
            tree.value_of(self.session, leaf.content(), self.held).await?;
        }
        let held = existed.then_some(self.held.as_slice());
        let outcome = match change.decide(existed, held) {
            Decision::Leave(outcome) => {
                let held = leaf.content().inline();
                tree.answer_alike(self.lead.as_ref(), self.mark, change.key, (existed, held));
                return Ok(AttemptEnd::Done(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        // One that has its turn among the changes of this compute server waits for the lock there.
        let queues = self.dead.is_none() && change.expected.is_none() && leaf.is_whole();
        let waits = !leaf.is_whole() || !leaf.is_free();
        if waits && !(queues && tree.ladder.has_turns()) {
            let lock = leaf.lock();
            return self.at_locked(found, lock).await;
        }
        let content = match change.value {
            None => LeafContent::Absent,
            Some(value) => self.content(value).await?,
        };
        if waits && !tree.ladder.queues(&content) {
            let lock = leaf.lock();
            self.give_back(content);
            return self.at_locked(found, lock).await;
        }
        if tree.ladder.stays(&content) && fits_in(leaf, content.as_new()) {
            return self.store(found, content, outcome).await;
        }
        if tree.shape.mode.keeps_leaves() {
            let what = "INV-SMART-8: a leaf of a table with nodes=reverse has no room for a value";
            return Err(tree.corrupt(found.slot.addr(), what).into());
        }
        self.give_back(content);
        self.replace(found, outcome).await
    }

    /// Another holds the lock of the key's leaf, or has died with it.
    async fn at_locked(&mut self, found: FoundLeaf, lock: u64) -> Result<AttemptEnd, Fail> {
        let FoundLeaf { slot, image, path, .. } = found;
        if self.dead == Some(lock) && path.is_some() {
            // The slot was read after its death, so that the leaf is linked.
            let image = self.tree.leaf_image(slot.addr(), &image);
            self.tree.take_over(self.session, image, lock).await?;
            return Ok(AttemptEnd::Again(StartFrom::Root));
        }
        if self.wait.again(self.session, (LEAF, slot.addr()), owner(lock)).await? {
            self.dead = Some(lock);
        }
        Ok(AttemptEnd::Again(match self.dead {
            Some(_) => StartFrom::Root,
            None => StartFrom::after(path.as_ref()),
        }))
    }

    /// Stores `content` in the leaf of the key.
    async fn store(
        &mut self,
        found: FoundLeaf,
        content: LeafContent,
        outcome: Outcome,
    ) -> Result<AttemptEnd, Fail> {
        let (tree, session, change) = (self.tree, self.session, self.change);
        let image = tree.leaf_image(found.slot.addr(), &found.image);
        let content = (content, change.expected.is_none());
        let stored = tree.store(session, (image, found.stamp), content, self.lead.take());
        match stored.await? {
            Stored::Done { is_removed } => {
                if is_removed {
                    tree.note_removed(session, change.key);
                }
                Ok(AttemptEnd::Done(outcome))
            }
            Stored::Lost { content, lead, dead } => {
                self.give_back(content);
                (self.lead, self.dead) = (lead, dead.or(self.dead));
                Ok(AttemptEnd::Again(match dead {
                    Some(_) => StartFrom::Root,
                    None => StartFrom::after(found.path.as_ref()),
                }))
            }
        }
    }

    /// Links another leaf in place of that of the key, by the way from the root.
    async fn replace(&mut self, found: FoundLeaf, outcome: Outcome) -> Result<AttemptEnd, Fail> {
        let (tree, session, key) = (self.tree, self.session, self.change.key);
        let Some(path) = found.path.filter(|path| path.nodes[0].up.is_some()) else {
            return Ok(AttemptEnd::Again(StartFrom::Root));
        };
        let image = tree.leaf_image(found.slot.addr(), &found.image);
        self.prepare(None).await?;
        let Some(new) = self.leaf.take() else { return Err(Fail::Again) };
        match tree.move_leaf(session, key, &path, image, new).await? {
            Ok(()) => Ok(AttemptEnd::Done(outcome)),
            Err(new) => {
                self.leaf = Some(new);
                // Another task's new node is in the cache, but a leaf is replaced by the way from the root.
                tree.help(session, path, key).await?;
                Ok(AttemptEnd::Again(StartFrom::Root))
            }
        }
    }

    /// The key has no leaf: fresh evidence says so. `other` is the leaf of another key that the way ends at.
    async fn at_absent(
        &mut self,
        path: Path,
        other: Option<LeafImage>,
    ) -> Result<AttemptEnd, Fail> {
        let (tree, session, key) = (self.tree, self.session, self.change.key);
        if self.change.expected.is_some() {
            self.held.clear();
        }
        let outcome = match self.change.decide(false, None) {
            Decision::Leave(outcome) => {
                tree.answer_alike(self.lead.as_ref(), self.mark, key, (false, None));
                return Ok(AttemptEnd::Done(outcome));
            }
            Decision::Apply(outcome) => outcome,
        };
        self.prepare(Some(path.last().addr)).await?;
        let Some(new) = self.leaf.take() else { return Err(Fail::Again) };
        let inserted = tree.insert(session, key, path, other, new, &mut self.turn).await?;
        let Err((new, path)) = inserted else { return Ok(AttemptEnd::Done(outcome)) };
        self.leaf = Some(new);
        if tree.shape.mode.keeps_nodes() && path.is_cached() {
            // The cached slot has changed.
            return Ok(AttemptEnd::Again(StartFrom::Node));
        }
        let copy = match tree.help(session, path, key).await? {
            // The nodes above it would have to be locked as well.
            Helped::Linked(copy) if !tree.ladder.locks_paths() => copy,
            Helped::Linked(_) | Helped::No => return Ok(AttemptEnd::Again(StartFrom::Root)),
            Helped::ByAnother => return Ok(AttemptEnd::Again(StartFrom::Cache)),
        };
        // The node that has room now, as this operation has linked it: the key is absent there.
        let path = tree.descend(session, copy, key).await?;
        if !matches!(path.landing, PathEnd::None) {
            return Ok(AttemptEnd::Again(StartFrom::Root));
        }
        let Some(new) = self.leaf.take() else { return Err(Fail::Again) };
        match tree.insert(session, key, path, None, new, &mut self.turn).await? {
            Ok(()) => Ok(AttemptEnd::Done(outcome)),
            Err((new, _)) => {
                self.leaf = Some(new);
                Ok(AttemptEnd::Again(StartFrom::Root))
            }
        }
    }

    /// The new value as a leaf holds it; writes a record if it needs one.
    async fn content(&mut self, value: &[u8]) -> Result<LeafContent, Fail> {
        if let Some(record) = self.record.take() {
            return Ok(record);
        }
        if let Some(leaf) = self.leaf.take() {
            // One that was made for an absent key.
            let content = leaf.into_content();
            if matches!(content, LeafContent::Record(_)) {
                return Ok(content);
            }
        }
        let (tree, session) = (self.tree, self.session);
        let class = class_for(tree.shape.mode.lead(), self.change.key.len(), value.len());
        if class.is_some() && value.len() <= tree.inline_max(session) {
            return Ok(LeafContent::Inline(value.to_vec()));
        }
        Ok(LeafContent::Record(tree.write_record(session, value).await?))
    }

    /// Makes the leaf that is to be linked, unless there is one. An owner has it beside its node.
    async fn prepare(&mut self, node: Option<GlobalAddr>) -> Result<(), Fail> {
        let (tree, session) = (self.tree, self.session);
        if let (None, Some(value)) = (&self.leaf, self.change.value) {
            let content = self.content(value).await?;
            let near = node.filter(|_| tree.has_exact_entries());
            let on = near.map_or_else(|| session.place(), |node| Placement::Beside(node.server()));
            self.leaf = Some(tree.new_leaf(session, on, self.change.key, content).await?);
        }
        Ok(())
    }

    /// Keeps a record for the next attempt.
    fn give_back(&mut self, content: LeafContent) {
        if matches!(content, LeafContent::Record(_)) {
            self.record = Some(content);
        }
    }
}

/// Returns whether a leaf takes that content in its place: it holds its value in the same way, or none, and has room.
fn fits_in(leaf: Leaf<'_>, new: NewValue<'_>) -> bool {
    let is_alike = match (leaf.content(), new) {
        (NewValue::Absent, _) | (_, NewValue::Absent) => true,
        (NewValue::Record(_), new) => matches!(new, NewValue::Record(_)),
        (NewValue::Inline(_), new) => matches!(new, NewValue::Inline(_)),
    };
    is_alike && leaf.has_room(new.bytes())
}
