//! Node switches: replace a node by a larger, smaller or clean one, by its only child, or by a TOMB.
//!
//! 1. Each slot is sealed, the empty ones too: no CAS on it succeeds any more.
//! 2. What was live is copied to a new node.
//! 3. One CAS on the slot that leads to the node puts the new one in its place. If that slot is sealed, its node
//!    is switched first.
//!
//! Any client that needs a switch runs it, any number at once; nobody waits for a particular other, and a dead
//! client leaves only sealed slots, which the next one finishes. The winner of the CAS takes the node's entries out
//! of the skip table and retires it, by a task: the operation that needed the switch does not wait for that.
//!
//! If at most one child is live, the word that is put does not tell whose CAS it was. So whoever may have
//! unlinked such a node claims it first: it puts its session into a dead slot of the node. A client whose
//! completion was lost finds out by the claim whether it is the one to retire the node. Two tasks of one session would
//! put the same word, and after a lost completion both would take it for their own. So at most one switch of a
//! compute server claims a node ([`Claims`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, Ops};
use farleaf_index::IndexError;
use farleaf_index::detach::{run_to_end, unfinished_change, unfinished_work};
use farleaf_index::join::join;
use farleaf_index::retry::Attempts;
use farleaf_index::sync::{Mutex, lock};
use farleaf_pool::{Reliable, Retiring, Session, Tries, Unlinked, is_open};

use super::DartTree;
use super::descent::{NodeRef, PathEnd, SlotPlace, Start};
use super::leaf::{self, LeafCopy};
use super::outcome::Verdict;
use super::skip_table::Starts;
use super::word::{DartNodeType, LEN_MAX, SlotContent, SlotWord, Step};

farleaf_fabric::canaries! {
    pub(crate) TAKE_OUT_BEFORE_SEAL = "take-out-before-seal",
        "the entries of a node are taken out before it is sealed";
    pub(crate) SWITCH_UNSEALED = "switch-unsealed",
        "a node is replaced whose slots were not sealed";
    pub(crate) COLLAPSE_UNCLAIMED = "collapse-unclaimed",
        "every client that may have unlinked a node retires it";
}

/// The progress of a switch.
enum Progress {
    /// The node is gone. The node that has its slot may have become empty, too.
    Over(Option<NodeRef>),
    /// The node that has the slot has to be switched first.
    First(NodeRef),
    /// The slot has changed.
    Again,
}

/// A node whose bucket has no slot for a step, and the leaf that its key wants there.
pub(super) struct Growth {
    pub(super) node: NodeRef,
    pub(super) step: Step,
    /// The words of the node, if a READ has shown all.
    pub(super) words: Option<Vec<SlotWord>>,
    /// The slot that leads to the node, if the way has come by it.
    pub(super) place: Option<SlotPlace>,
    /// The word of a leaf below the node, which has to show that the key belongs there; `None` if that is known.
    pub(super) proof: Option<SlotWord>,
    /// The object of the new leaf.
    pub(super) leaf: Unlinked,
    pub(super) code: u8,
    /// The leaf's content.
    pub(super) content: Buf,
    /// The key belongs below the node.
    pub(super) is_below: bool,
}

/// The end of [`DartTree::grow`].
pub(super) enum Grown {
    /// The leaf is in the tree.
    Inserted,
    /// The node is gone, or has no children left: the leaf is linked nowhere.
    Late(Unlinked),
    /// The key does not belong below the node.
    NotBelow(Unlinked),
}

/// The client that unlinked a node.
enum Winner {
    Mine,
    /// Perhaps this client: the claim decides.
    Perhaps,
    Another,
}

/// The switches of this compute server that are under way, by the address of their node.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<BTreeMap<u64, NodeSwitches>>);

/// The switches of one node.
#[derive(Debug, Default)]
struct NodeSwitches {
    count: usize,
    /// One of them has gone to claim the node; the others must not.
    is_claimed: bool,
}

impl Claims {
    /// A switch begins, before it reads the node.
    fn enter(&self, node: GlobalAddr) {
        lock(&self.0).entry(node.word()).or_default().count += 1;
    }

    /// Returns whether the switch may claim the node: it is the first of this compute server.
    fn may_claim(&self, node: GlobalAddr) -> bool {
        let mut all = lock(&self.0);
        all.get_mut(&node.word()).is_some_and(|its| !std::mem::replace(&mut its.is_claimed, true))
    }

    /// A switch ends. A later one reads the claim in the node.
    fn leave(&self, node: GlobalAddr) {
        let mut all = lock(&self.0);
        if let Some(its) = all.get_mut(&node.word()) {
            its.count -= 1;
            if its.count == 0 {
                all.remove(&node.word());
            }
        }
    }
}

impl DartTree {
    /// Switches `node`, to which `key` leads. A task does it, to its end.
    ///
    /// Cost: as [`DartTree::grow`], and 1 READ of the node.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than the caller waits.
    pub(super) async fn switch(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        node: NodeRef,
    ) -> Result<(), IndexError> {
        self.wait_for_maintenance(session).await?;
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        self.counters.switch_started.add(1);
        let task = async move {
            let first = Switch::new(&tree, &patient, Cow::Owned(key), node);
            tree.switch_all(first).await.map(drop)
        };
        run_to_end(session, Box::pin(task), ()).await.unwrap_or_else(|| Err(takes_long()))
    }

    /// Waits for the tasks of earlier switches of this session, so that their pins do not overlap without end.
    async fn wait_for_maintenance(&self, session: &Session) -> Result<(), IndexError> {
        if session.finish_pinned_tasks().await { Ok(()) } else { Err(takes_long()) }
    }

    /// Switches a full node to one that has a new leaf of `key` as well: the CAS that puts the new node in its place
    /// also publishes the leaf. A task does it, to its end. If the leaf of the proof shows that the key belongs elsewhere,
    /// the node is switched nevertheless, because its slots are sealed by then.
    ///
    /// Cost: 1 list with a CAS for each slot, 2 WRITEs and the READ of the leaf for the proof; 1 CAS. Unless the slot
    /// that leads to the node is known, the list also has a probe of the skip table, and a READ for each level from
    /// there follows if that leads to no N256 above the node. A node of several buckets costs 1 READ and 1 round
    /// trip more. A task goes on with maintenance ([`DartTree::node_unlinked`]).
    ///
    /// # Errors
    /// `OutcomeUnknown` if it fails once the CAS may have been posted, or takes longer than the caller waits.
    pub(super) async fn grow(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        growth: Growth,
    ) -> Result<Grown, IndexError> {
        self.wait_for_maintenance(session).await?;
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        self.counters.switch_started.add(1);
        let task = async move {
            let mut first = Switch::new(&tree, &patient, Cow::Owned(key), growth.node);
            first.is_proven = true;
            first.growth = Some(growth);
            tree.switch_all(first).await
        };
        let ended = run_to_end(session, Box::pin(task), ()).await;
        let ended = ended.unwrap_or_else(|| Err(unfinished_change("replacing a node for the key")));
        let Some(growth) = ended? else { return Ok(Grown::Inserted) };
        Ok(if growth.is_below { Grown::Late(growth.leaf) } else { Grown::NotBelow(growth.leaf) })
    }

    /// Runs a switch to its end, and first those of the nodes above it that are being replaced. Returns the growth of
    /// the first, unless its leaf is in the tree.
    async fn switch_all(self: &Arc<Self>, first: Switch<'_>) -> Result<Option<Growth>, IndexError> {
        let (session, io, is_maintenance) = (first.session, first.io, first.is_maintenance);
        let new = |key: Vec<u8>, node, is_proven| {
            let mut switch = Switch::new(self, session, Cow::Owned(key), node);
            (switch.io, switch.is_proven, switch.is_maintenance) = (io, is_proven, is_maintenance);
            switch
        };
        let (mut nodes, mut left) = (vec![first], None);
        let mut attempts = Attempts::default();
        while let Some(switch) = nodes.last_mut() {
            match switch.go_on().await? {
                Progress::Over(above) => {
                    let (key, is_proven) = (switch.key.to_vec(), switch.is_proven);
                    let ended = nodes.pop();
                    if nodes.is_empty() {
                        left = left.or(ended.and_then(|mut switch| switch.growth.take()));
                    }
                    if let Some(node) = above
                        && self.is_nearly_empty(io, node).await?
                    {
                        nodes.push(new(key, node, is_proven));
                    }
                }
                Progress::First(node) => {
                    let key = switch.key.to_vec();
                    nodes.push(new(key, node, false));
                }
                Progress::Again => attempts.again(session).await?,
            }
        }
        Ok(left)
    }

    /// After a remove from a slot of `bucket` of `node`: a task replaces the node if at most one child is left,
    /// or if it has become too large. It counts as maintenance, and an error leaves that to the next one. The
    /// session's next operation waits only while two such tasks run, so that nobody makes empty nodes faster than
    /// they go.
    ///
    /// Cost: none if the bucket, as it was, holds two more; else 1 READ, which the caller does not wait for.
    pub(super) fn after_remove(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        node: NodeRef,
        bucket: &Buf,
    ) {
        let live =
            bucket.words().iter().filter(|word| SlotWord::from_raw(**word).is_live()).count();
        if live > 2 {
            return;
        }
        let (tree, key, pin) = (Arc::clone(self), key.to_vec(), session.pin_for_task());
        let running = self.maintenance.task_begins();
        session.spawn(async move |session| {
            let _ = tree.shrink(&session, &key, node).await;
            drop(pin);
            drop(running);
        });
    }

    /// Returns whether a node has no child left, or one leaf, as the end of a chain may.
    async fn is_nearly_empty(&self, io: Reliable<'_>, node: NodeRef) -> Result<bool, IndexError> {
        let words = self.read_node(io, node).await?;
        let live: Vec<SlotWord> =
            words.words().iter().map(|word| SlotWord::from_raw(*word)).collect();
        let mut live = live.iter().filter(|word| word.is_live());
        let is_leaf = live.next().is_none_or(|word| matches!(word.child(), SlotContent::Leaf(_)));
        Ok(is_leaf && live.next().is_none())
    }

    async fn shrink(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        node: NodeRef,
    ) -> Result<(), IndexError> {
        let io = session.maintenance();
        let words = self.read_node(io, node).await?;
        let live = words.words().iter().filter(|word| SlotWord::from_raw(**word).is_live()).count();
        let capacity = self.shape.slots(node.kind);
        if live <= 1 || (node.kind != DartNodeType::N8 && live <= capacity / 4) {
            self.counters.switch_started.add(1);
            let mut switch = Switch::new(self, session, Cow::Borrowed(key), node);
            (switch.io, switch.is_proven, switch.is_maintenance) = (io, true, true);
            self.switch_all(switch).await?;
        }
        Ok(())
    }
}

/// One node that is being switched.
struct Switch<'a> {
    tree: &'a Arc<DartTree>,
    session: &'a Session,
    io: Reliable<'a>,
    /// A key to which a way leads by the node.
    key: Cow<'a, [u8]>,
    node: NodeRef,
    /// All keys below it begin as `key`.
    is_proven: bool,
    /// It runs in a task that no operation waits for.
    is_maintenance: bool,
    /// Its words, once all are sealed.
    sealed: Option<Vec<SlotWord>>,
    /// The new node, if there is to be one.
    new: Option<(DartNodeType, Unlinked)>,
    /// A CAS may have unlinked the node.
    in_doubt: bool,
    /// The leaf that the new node is to have, until it is in the tree.
    growth: Option<Growth>,
    /// The new node has it.
    has_leaf: bool,
    /// Counts the switch, up to the end of the task that retires the node.
    counted: Option<CountedSwitch>,
}

/// A switch in [`Claims`]: leaves them when it is dropped.
struct CountedSwitch {
    tree: Arc<DartTree>,
    node: GlobalAddr,
}

impl CountedSwitch {
    fn new(tree: &Arc<DartTree>, node: GlobalAddr) -> Self {
        tree.claims.enter(node);
        CountedSwitch { tree: Arc::clone(tree), node }
    }
}

impl Drop for CountedSwitch {
    fn drop(&mut self) {
        self.tree.claims.leave(self.node);
    }
}

/// A node that a switch has unlinked, and the task that its winner owes the table: takes its entries out, then
/// retires it.
struct UnlinkedNode {
    node: NodeRef,
    winner: Winner,
    /// Its words, all sealed.
    sealed: Vec<SlotWord>,
    /// The slot that led to it, and the word that was put there, if this switch knows.
    put: Option<(SlotPlace, SlotWord)>,
    /// A key of which the node's prefix is known to be a part.
    proven: Option<Vec<u8>>,
    retiring: Option<Retiring>,
}

impl<'a> Switch<'a> {
    fn new(
        tree: &'a Arc<DartTree>,
        session: &'a Session,
        key: Cow<'a, [u8]>,
        node: NodeRef,
    ) -> Self {
        let io = session.reliable();
        let (is_proven, in_doubt, has_leaf) = (false, false, false);
        let counted = Some(CountedSwitch::new(tree, node.addr));
        Switch {
            tree,
            session,
            io,
            key,
            node,
            is_proven,
            is_maintenance: false,
            sealed: None,
            new: None,
            in_doubt,
            growth: None,
            has_leaf,
            counted,
        }
    }

    async fn go_on(&mut self) -> Result<Progress, IndexError> {
        let mut found = None;
        if self.sealed.is_none() {
            if TAKE_OUT_BEFORE_SEAL.is_armed() {
                let words = self.tree.read_node(self.io, self.node).await?;
                let words = words.words().iter().map(|word| SlotWord::from_raw(*word));
                let live: Vec<SlotWord> = words.filter(|word| word.is_live()).collect();
                let proven = self.is_proven.then_some(&*self.key);
                self.tree.node_unlinked(self.io, self.node, &live, None, proven).await?;
            }
            let begun = match self.growth.as_mut() {
                Some(growth) => {
                    let words = growth.words.take();
                    self.begin_growth(words).await?
                }
                None => {
                    let (sealed, place) = join(self.seal(None), self.find()).await;
                    (sealed?, None, place?)
                }
            };
            let (sealed, leaf, place) = begun;
            self.sealed = Some(sealed);
            if let Some(leaf) = leaf.filter(|leaf| !leaf.shares(&self.key, self.node.plen)) {
                // The node is sealed, so it has to be switched: by the way to the leaf.
                self.key = Cow::Owned(leaf.key().to_vec());
                self.growth.iter_mut().for_each(|growth| growth.is_below = false);
                (self.new, self.has_leaf) = (None, false);
                return Ok(Progress::Again);
            }
            found = Some(place);
        }
        let live = self.sealed.as_deref().map(live).unwrap_or_default();
        let found = match found {
            Some(found) => found,
            None => self.find().await?,
        };
        let Some(place) = found else {
            if std::mem::take(&mut self.in_doubt) && live.len() <= 1 {
                self.unlinked(Winner::Perhaps, None, None).await?;
            }
            self.tree.counters.switch_lost.add(1);
            return Ok(Progress::Over(None));
        };
        if place.word.is_sealed() {
            let Some(node) = place.node else {
                return Err(IndexError::Corrupt("the root slot is sealed".into()));
            };
            return Ok(Progress::First(node));
        }
        let mut ops = self.io.client().ops();
        let put = self.replacement(&mut ops, &place, &live).await?;
        let retiring = self.session.prepare_retire(self.node.addr).await?;
        if !ops.is_empty() {
            self.io.post_many(ops).await?;
            self.written();
        }
        match self.publish(&place, put).await? {
            Winner::Another => {
                self.session.cancel_retire(retiring);
                Ok(Progress::Again)
            }
            winner => {
                self.tree.counters.switch_won.add(1);
                let winner = if live.len() <= 1 { Winner::Perhaps } else { winner };
                let is_new = self.new.as_ref().is_some_and(|(_, new)| put.addr() == new.addr());
                if self.has_leaf && is_new {
                    self.growth = None;
                }
                self.unlinked(winner, Some(retiring), Some((place, put))).await?;
                let is_less = !matches!(put.child(), SlotContent::Node(..));
                Ok(Progress::Over(place.node.filter(|_| is_less)))
            }
        }
    }

    /// Begins a growth: posts the seals together with every operation that does not depend on their results. Those are
    /// the leaf of the proof, the new leaf, the new node as it is if no slot has changed, and, unless the node's slot is
    /// known, a probe for a node above. Returns the node's words, the leaf of the proof, and the node's slot.
    async fn begin_growth(
        &mut self,
        words: Option<Vec<SlotWord>>,
    ) -> Result<(Vec<SlotWord>, Option<LeafCopy>, Option<SlotPlace>), IndexError> {
        let (tree, io) = (self.tree, self.io);
        let proof = self.growth.as_ref().and_then(|growth| growth.proof);
        let known = match words {
            Some(words) => words,
            None => self.words().await?,
        };
        let met = self.growth.as_mut().and_then(|growth| growth.place.take());
        let mut starts = self.starts().await?;
        let mut ops = io.client().ops();
        let open = self.add_seals(&mut ops, &known);
        // Behind the CASes, whose numbers are those of `open`.
        let leaf_read = proof.map(|word| {
            let bytes = match word.child() {
                SlotContent::Leaf(code) => leaf::read_bytes(code),
                _ => 8,
            };
            (word, ops.read(word.addr(), io.buf(bytes)))
        });
        let drafted = live(&known);
        self.draft(&mut ops, &drafted).await?;
        let probe = if met.is_none() { tree.next_probe(&self.key, &mut starts) } else { None };
        let probe = probe.map(|probe| (probe.read_in(io, &mut ops), probe));
        let Some(mut ops) = io.post_once(ops).await? else {
            (self.new, self.has_leaf) = (None, false);
            let leaf = match proof {
                Some(word) => Some(tree.read_leaf(io, word).await?),
                None => None,
            };
            let (sealed, place) = join(self.seal(None), self.find_by(starts)).await;
            return Ok((sealed?, leaf, place?));
        };
        self.written();
        if let Some((index, probe)) = probe {
            let bucket = ops.take_buf(index);
            tree.probed(self.session, &self.key, &mut starts, &probe, &bucket);
        }
        let words = sealed_by(&ops, &open, known);
        let leaf = match leaf_read {
            Some((word, index)) => Some(tree.whole_leaf(io, word, ops.take_buf(index)).await?),
            None => None,
        };
        let (sealed, place) = match met.or_else(|| self.place_in(starts.at_hand()?)) {
            Some(place) => (self.seal(Some(words)).await?, Some(place)),
            None => {
                let (sealed, place) = join(self.seal(Some(words)), self.find_by(starts)).await;
                (sealed?, place?)
            }
        };
        if live(&sealed) != drafted {
            (self.new, self.has_leaf) = (None, false);
        }
        Ok((sealed, leaf, place))
    }

    /// All of the node's slots are known to be sealed, unless a seeded bug skips that.
    fn is_sealed(&self) -> bool {
        let all = |words: &Vec<SlotWord>| words.iter().all(|word| word.is_sealed());
        self.sealed.as_ref().is_some_and(all) || SWITCH_UNSEALED.is_armed()
    }

    async fn words(&self) -> Result<Vec<SlotWord>, IndexError> {
        let buf = self.tree.read_node(self.io, self.node).await?;
        Ok(buf.words().iter().map(|word| SlotWord::from_raw(*word)).collect())
    }

    /// Adds a CAS for each slot that is not sealed; their indexes.
    fn add_seals(&self, ops: &mut Ops, words: &[SlotWord]) -> Vec<usize> {
        let is_open = |index: &usize| !words[*index].is_sealed();
        let open: Vec<usize> = match SWITCH_UNSEALED.is_armed() {
            true => Vec::new(),
            false => (0..words.len()).filter(is_open).collect(),
        };
        for index in &open {
            let word = words[*index];
            let at = self.node.addr.plus(8 * *index as u64);
            ops.cas(at, word.raw(), word.sealed().raw());
        }
        self.tree.counters.seal_cas.add(open.len() as u64);
        open
    }

    /// Seals every slot; the words that they hold for ever. Any client's CAS does.
    async fn seal(&self, mut known: Option<Vec<SlotWord>>) -> Result<Vec<SlotWord>, IndexError> {
        loop {
            let mut words = match known.take() {
                Some(words) => words,
                None => self.words().await?,
            };
            loop {
                if words.iter().all(|word| word.is_sealed()) || SWITCH_UNSEALED.is_armed() {
                    return Ok(words);
                }
                let mut ops = self.io.client().ops();
                let open = self.add_seals(&mut ops, &words);
                match self.io.post_once(ops).await? {
                    Some(ops) => words = sealed_by(&ops, &open, words),
                    None => break,
                }
            }
        }
    }

    /// The slot that leads to the node: by starts of the skip table above it, or by a fresh way, which alone says
    /// that there is none. A slot that is not sealed is in the tree.
    async fn find(&self) -> Result<Option<SlotPlace>, IndexError> {
        self.find_by(self.starts().await?).await
    }

    /// The starts above the node.
    async fn starts(&self) -> Result<Starts, IndexError> {
        let line = self.tree.line(self.session, self.io).await?;
        self.tree.starts_above(self.io, &self.key, line, self.node.plen).await
    }

    async fn find_by(&self, mut starts: Starts) -> Result<Option<SlotPlace>, IndexError> {
        let (tree, io, key) = (self.tree, self.io, &*self.key);
        let (mut trail, until) = (Vec::new(), Some(self.node.addr));
        while let Some(start) = tree.next_start(self.session, io, key, &mut starts).await? {
            if matches!(start, Start::Express(node) if node.plen >= self.node.plen) {
                continue;
            }
            let path = tree.descend(io, key, start, &mut trail, until).await?;
            match path.landing {
                PathEnd::Met(place) if path.is_fresh || place.node.is_some() => {
                    return Ok(Some(place));
                }
                _ if path.is_fresh => return Ok(None),
                _ => {}
            }
        }
        Err(IndexError::Corrupt("a fresh path from the root is not fresh".into()))
    }

    /// The slot that leads to the node, if `above` is its parent and has a slot for each byte: where it is and what it
    /// holds is known without a READ. If that is wrong, the CAS finds another word there.
    fn place_in(&self, above: NodeRef) -> Option<SlotPlace> {
        if above.kind != DartNodeType::N256 || above.plen + 1 != self.node.plen {
            return None;
        }
        let step = Step::at(&self.key, above.plen);
        let index = self.tree.shape.bucket(above.kind, step).start;
        let word = SlotWord::node(step, 0, self.node.kind, self.node.addr);
        Some(SlotPlace { at: above.addr.plus(8 * index as u64), word, step, node: Some(above) })
    }

    /// The word that goes into `place`; a new node is written by `ops`.
    async fn replacement(
        &mut self,
        ops: &mut Ops,
        place: &SlotPlace,
        live: &[SlotWord],
    ) -> Result<SlotWord, IndexError> {
        let Some(child) = place.child() else {
            return Err(IndexError::Corrupt("a node's slot leads to no node".into()));
        };
        let len = child.plen - place.bytes_before_child();
        match live {
            [] => Ok(SlotWord::tomb(place.step, self.node.addr, self.session.id())),
            [only] => match only.child() {
                SlotContent::Node(_, more) if len + 1 + more > LEN_MAX => {
                    self.new_node(ops, place, len, live).await
                }
                SlotContent::Node(_, more) => Ok(only.moved(place.step, len + 1 + more)),
                _ => Ok(only.moved(place.step, 0)),
            },
            _ => self.new_node(ops, place, len, live).await,
        }
    }

    async fn new_node(
        &mut self,
        ops: &mut Ops,
        place: &SlotPlace,
        len: usize,
        live: &[SlotWord],
    ) -> Result<SlotWord, IndexError> {
        if self.new.is_none() {
            self.draft(ops, live).await?;
        }
        let (kind, new) = self.new.as_ref().ok_or_else(no_node)?;
        Ok(SlotWord::node(place.step, len, *kind, new.addr()))
    }

    /// Makes the new node, and the new leaf in it, and adds their WRITEs to `ops`.
    async fn draft(&mut self, ops: &mut Ops, live: &[SlotWord]) -> Result<(), IndexError> {
        let mut children = live.to_vec();
        if let Some(growth) = &self.growth
            && growth.is_below
            && live.iter().all(|word| word.step() != Some(growth.step))
        {
            // A copy: if a completion is lost, it is written again.
            let mut content = self.session.client().buf(growth.leaf.bytes());
            content.words_mut().copy_from_slice(growth.content.words());
            growth.leaf.write_in(ops, content);
            children.push(SlotWord::leaf(growth.step, growth.code, growth.leaf.addr()));
            self.has_leaf = true;
        }
        debug_assert!(
            (1..children.len()).all(|at| {
                children[..at].iter().all(|other| other.step() != children[at].step())
            }),
            "INV-DART-1: a new node has two children of one step"
        );
        debug_assert!(
            children.iter().all(|child| child.is_live() && !child.is_sealed()),
            "INV-DART-3: a new node takes a sealed or dead word"
        );
        let kind = self.tree.shape.fit(&children);
        let new = self.tree.new_node(self.session, ops, kind, &children).await?;
        self.new = Some((kind, new));
        Ok(())
    }

    /// The WRITEs of [`Switch::draft`] have come back.
    fn written(&self) {
        self.new.iter().for_each(|(_, new)| new.written());
        self.growth.iter().for_each(|growth| growth.leaf.written());
    }

    /// The CAS that unlinks the node.
    ///
    /// # Errors
    /// `OutcomeUnknown` if it may have linked a leaf.
    async fn publish(&mut self, place: &SlotPlace, put: SlotWord) -> Result<Winner, IndexError> {
        debug_assert!(self.is_sealed(), "INV-DART-4: {:?} is unlinked with open slots", self.node);
        debug_assert!(!place.word.is_sealed(), "INV-DART-3: {put:?} over {:?}", place.word);
        debug_assert!(
            put.step() == place.word.step(),
            "INV-DART-1: {put:?} over the slot of {:?}",
            place.word
        );
        let new = self.new.as_ref().filter(|(_, new)| put.is_live() && put.addr() == new.addr());
        let leaf = self.growth.as_ref().filter(|_| self.has_leaf && new.is_some());
        let linked: Vec<&Unlinked> =
            new.map(|(_, new)| new).into_iter().chain(leaf.map(|growth| &growth.leaf)).collect();
        linked.iter().for_each(|object| object.keep());
        let failed = |error: IndexError| match leaf {
            Some(_) => IndexError::OutcomeUnknown(error.to_string()),
            None => error,
        };
        let mark = self.io.post_mark();
        let cas = self.io.client().cas(place.at, place.word.raw(), put.raw()).await;
        match cas {
            Ok(found) if found == place.word.raw() => {
                return Ok(Winner::Mine);
            }
            Ok(_) => {}
            Err(error) if is_open(error) => {
                let settled = self.io.again(&mut Tries::default(), mark, error).await;
                settled.map_err(|error| failed(error.into()))?;
                if new.is_some() {
                    let verdict = self.tree.judge_node(self.io, &self.key, put.addr()).await;
                    let verdict = verdict.map_err(failed)?;
                    self.tree.counters.outcomes[verdict as usize].add(1);
                    if verdict == Verdict::Done {
                        return Ok(Winner::Mine);
                    }
                } else {
                    // If the node is found no more, the claim tells.
                    self.in_doubt |= self.io.word(place.at).await? != place.word.raw();
                }
            }
            Err(error) => return Err(failed(error.into())),
        }
        linked.iter().for_each(|object| object.unkeep());
        Ok(Winner::Another)
    }

    /// The node is in the tree no more: a task takes its entries out, and its winner retires it. This switch does so itself
    /// if no operation waits for it.
    ///
    /// Until the task has moved its entries, they lead to a node all of whose slots are sealed: no reader believes
    /// them, and each goes on by a shorter start.
    async fn unlinked(
        &mut self,
        winner: Winner,
        retiring: Option<Retiring>,
        put: Option<(SlotPlace, SlotWord)>,
    ) -> Result<(), IndexError> {
        let Some(counted) = self.counted.take() else { return Ok(()) };
        let sealed = self.sealed.take().unwrap_or_default();
        let proven = self.is_proven.then(|| self.key.to_vec());
        let unlinked = UnlinkedNode { node: self.node, winner, sealed, put, proven, retiring };
        if self.is_maintenance {
            let ended = unlinked.end(self.tree, self.session).await;
            drop(counted);
            return ended;
        }
        let (tree, pin) = (Arc::clone(self.tree), self.session.pin_for_task());
        let running = self.tree.maintenance.task_begins();
        self.session.spawn(async move |session| {
            // If it fails, the node stays unretired, and the next sweep finds it.
            let _ = unlinked.end(&tree, &session).await;
            drop(counted);
            drop(pin);
            drop(running);
        });
        Ok(())
    }
}

impl UnlinkedNode {
    async fn end(self, tree: &Arc<DartTree>, session: &Session) -> Result<(), IndexError> {
        let io = session.maintenance();
        if !TAKE_OUT_BEFORE_SEAL.is_armed() {
            let live: Vec<SlotWord> = live(&self.sealed);
            let put = self.put.as_ref().map(|(place, word)| (place, *word));
            tree.node_unlinked(io, self.node, &live, put, self.proven.as_deref()).await?;
        }
        let is_mine = match self.winner {
            Winner::Mine => true,
            Winner::Another => false,
            Winner::Perhaps => self.claim(tree, session).await? || COLLAPSE_UNCLAIMED.is_armed(),
        };
        let retiring = match (is_mine, self.retiring) {
            (true, None) => Some(session.prepare_retire(self.node.addr).await?),
            (_, retiring) => retiring,
        };
        match retiring {
            Some(retiring) if is_mine => session.retire(retiring),
            Some(retiring) => session.cancel_retire(retiring),
            None => {}
        }
        Ok(())
    }

    /// Puts this session into the first dead slot of the unlinked node; whether it was the first to do so.
    async fn claim(&self, tree: &DartTree, session: &Session) -> Result<bool, IndexError> {
        let sealed = self.sealed.iter().enumerate();
        let Some((index, word)) = sealed.into_iter().find(|(_, word)| !word.is_live()) else {
            return Ok(false);
        };
        let at = self.node.addr.plus(8 * index as u64);
        if word.is_claim_of(self.node.addr) || !tree.claims.may_claim(self.node.addr) {
            return Ok(false);
        }
        let step = word.step().unwrap_or(Step::Byte(0));
        let claim = SlotWord::claim(step, self.node.addr, session.id());
        let found = session.maintenance().cas(at, word.raw(), claim.raw()).await?;
        Ok(found == word.raw())
    }
}

/// The words of a node after a list of seals: those of `open` by its first CASes.
fn sealed_by(ops: &Ops, open: &[usize], mut words: Vec<SlotWord>) -> Vec<SlotWord> {
    for (number, index) in open.iter().enumerate() {
        let (found, was) = (SlotWord::from_raw(ops.old(number)), words[*index]);
        words[*index] = if found == was { was.sealed() } else { found };
    }
    words
}

/// The live ones of sealed words, as they were before.
fn live(sealed: &[SlotWord]) -> Vec<SlotWord> {
    let plain = sealed.iter().map(|word| word.plain());
    plain.filter(|word| word.is_live()).collect()
}

fn takes_long() -> IndexError {
    unfinished_work("replacing a node")
}

fn no_node() -> IndexError {
    IndexError::Corrupt("a new node is missing".into())
}
