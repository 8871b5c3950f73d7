//! Node switches: replace a node by a larger, smaller or clean one, by its only child, or by a TOMB.
//!
//! 1. Each slot is sealed, the empty ones too: no CAS on it succeeds any more.
//! 2. What was live is copied to a new node.
//! 3. One CAS on the slot that leads to the node puts the new one in its place. If that slot is sealed, its node
//!    is switched first.
//!
//! Any client that needs a switch runs it, any number at once; nobody waits for a particular other, and a dead
//! client leaves only sealed slots, which the next one finishes. The winner of the CAS retires the node.
//!
//! If at most one child is live, the word that is put does not tell whose CAS it was. So whoever may have
//! unlinked such a node claims it first: it puts its session into a dead slot of the node. A client whose
//! completion was lost finds out by the claim whether it is the one to retire the node. Two tasks of one session would
//! put the same word, and after a lost completion both would take it for their own. So at most one switch of a
//! compute server claims a node ([`Claims`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr, Ops};
use farleaf_pool::canary::Canary;
use farleaf_pool::{Reliable, Session, Trial, Unlinked, is_open};

use super::DartTree;
use super::descent::{NodeRef, SlotPlace, Start, WayEnd};
use super::meta;
use super::outcome::Verdict;
use super::word::{DartNodeType, LEN_MAX, SlotContent, SlotWord, Step};
use crate::IndexError;
use crate::detach::run_to_end;
use crate::retry::Attempts;
use crate::sync::{Mutex, lock};

/// The progress of a switch.
enum Progress {
    /// The node is gone. The node that has its slot may have become empty, too.
    Over(Option<NodeRef>),
    /// The node that has the slot has to be switched first.
    First(NodeRef),
    /// The slot has changed.
    Again,
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
    /// Switches `node`, to which `key` leads, to one with a free slot for `wanted`. A task does it, to its end.
    /// `is_proven` says that all keys below the node begin as `key`.
    ///
    /// # Errors
    /// `Unavailable` if that takes longer than the caller waits.
    pub(super) async fn switch(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        node: NodeRef,
        wanted: Option<Step>,
        is_proven: bool,
    ) -> Result<(), IndexError> {
        let (tree, key, patient) = (Arc::clone(self), key.to_vec(), session.without_deadline());
        self.counters.switch_started.add(1);
        let task = async move {
            let mut first = Switch::new(&tree, &patient, &key, node, wanted);
            first.is_proven = is_proven;
            tree.switch_all(first).await
        };
        run_to_end(session, Box::pin(task), ()).await.unwrap_or_else(|| {
            Err(IndexError::Unavailable(
                "replacing a node takes longer than it is waited for, as it does while a memory server \
                 cannot be reached: try again"
                    .into(),
            ))
        })
    }

    /// Runs a switch to its end, and first those of the nodes above it that are being replaced.
    async fn switch_all(self: &Arc<Self>, first: Switch<'_>) -> Result<(), IndexError> {
        let (session, io, key) = (first.session, first.io, first.key);
        let new = |node, is_proven| {
            let mut switch = Switch::new(self, session, key, node, None);
            (switch.io, switch.is_proven) = (io, is_proven);
            switch
        };
        let mut nodes = vec![first];
        let mut attempts = Attempts::default();
        while let Some(switch) = nodes.last_mut() {
            match switch.go_on().await? {
                Progress::Over(above) => {
                    let is_proven = switch.is_proven;
                    nodes.pop();
                    if let Some(node) = above
                        && self.is_nearly_empty(io, node).await?
                    {
                        nodes.push(new(node, is_proven));
                    }
                }
                Progress::First(node) => nodes.push(new(node, false)),
                Progress::Again => attempts.again(session).await?,
            }
        }
        Ok(())
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
        let running = self.maintenance.shrinks();
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
            let mut switch = Switch::new(self, session, key, node, None);
            (switch.io, switch.is_proven) = (io, true);
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
    key: &'a [u8],
    node: NodeRef,
    wanted: Option<Step>,
    /// All keys below it begin as `key`.
    is_proven: bool,
    /// Its words, once all are sealed.
    sealed: Option<Vec<SlotWord>>,
    /// The new node, if there is to be one.
    new: Option<(DartNodeType, Unlinked)>,
    /// A CAS may have unlinked the node.
    in_doubt: bool,
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.tree.claims.leave(self.node.addr);
    }
}

impl<'a> Switch<'a> {
    fn new(
        tree: &'a Arc<DartTree>,
        session: &'a Session,
        key: &'a [u8],
        node: NodeRef,
        wanted: Option<Step>,
    ) -> Self {
        let io = session.reliable();
        let (is_proven, in_doubt) = (false, false);
        tree.claims.enter(node.addr);
        Switch {
            tree,
            session,
            io,
            key,
            node,
            wanted,
            is_proven,
            sealed: None,
            new: None,
            in_doubt,
        }
    }

    async fn go_on(&mut self) -> Result<Progress, IndexError> {
        if self.sealed.is_none() {
            if Canary::TakeOutBeforeSeal.is_armed() {
                let words = self.tree.read_node(self.io, self.node).await?;
                let words = words.words().iter().map(|word| SlotWord::from_raw(*word));
                let live: Vec<SlotWord> = words.filter(|word| word.is_live()).collect();
                let proven = self.is_proven.then_some(self.key);
                self.tree.node_unlinked(self.io, self.node, &live, None, proven).await?;
            }
            self.sealed = Some(self.seal().await?);
        }
        let live: Vec<SlotWord> = self.sealed.iter().flatten().map(|word| word.plain()).collect();
        let live: Vec<SlotWord> = live.into_iter().filter(|word| word.is_live()).collect();
        let Some(place) = self.find().await? else {
            if std::mem::take(&mut self.in_doubt) && live.len() <= 1 {
                self.unlinked(Winner::Perhaps, None, &live, None).await?;
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
        self.io.post_many(ops).await?;
        if let Some((_, new)) = &self.new {
            new.written();
        }
        match self.publish(&place, put).await? {
            Winner::Another => {
                self.session.cancel_retire(retiring);
                Ok(Progress::Again)
            }
            winner => {
                self.tree.counters.switch_won.add(1);
                let winner = if live.len() <= 1 { Winner::Perhaps } else { winner };
                self.unlinked(winner, Some(retiring), &live, Some((&place, put))).await?;
                let is_less = !matches!(put.child(), SlotContent::Node(..));
                Ok(Progress::Over(place.node.filter(|_| is_less)))
            }
        }
    }

    /// Seals every slot; the words that they hold for ever. Any client's CAS does.
    async fn seal(&self) -> Result<Vec<SlotWord>, IndexError> {
        let node = self.node;
        loop {
            let buf = self.tree.read_node(self.io, node).await?;
            let mut words: Vec<SlotWord> =
                buf.words().iter().map(|word| SlotWord::from_raw(*word)).collect();
            loop {
                let open: Vec<usize> =
                    (0..words.len()).filter(|index| !words[*index].is_sealed()).collect();
                if open.is_empty() || Canary::SwitchUnsealed.is_armed() {
                    return Ok(words);
                }
                let mut ops = self.io.client().ops();
                for index in &open {
                    let word = words[*index];
                    let at = node.addr.plus(8 * *index as u64);
                    ops.cas(at, word.raw(), word.sealed().raw());
                }
                self.tree.counters.seal_cas.add(open.len() as u64);
                let posting = self.io.posting();
                match self.io.client().post_many(ops).await {
                    Ok(ops) => {
                        for (number, index) in open.into_iter().enumerate() {
                            let found = SlotWord::from_raw(ops.old(number));
                            let was = words[index];
                            words[index] = if found == was { was.sealed() } else { found };
                        }
                    }
                    Err(error) if is_open(error) => {
                        self.io.again(&mut Trial::default(), posting, error).await?;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// The slot that leads to the node, by a fresh way.
    async fn find(&self) -> Result<Option<SlotPlace>, IndexError> {
        let line = meta::read_line(self.io, self.tree.meta).await?;
        let (start, until) = (Start::Root(line), Some(self.node.addr));
        let way = self.tree.descend(self.io, self.key, start, &mut Vec::new(), until).await?;
        Ok(match way.landing {
            WayEnd::Met(place) => Some(place),
            _ => None,
        })
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
            let kind = self.tree.shape.fit(live, self.wanted);
            let new = self.tree.new_node(self.session, ops, kind, live).await?;
            self.new = Some((kind, new));
        }
        let (kind, new) = self.new.as_ref().ok_or_else(no_node)?;
        Ok(SlotWord::node(place.step, len, *kind, new.addr()))
    }

    /// The CAS that unlinks the node.
    async fn publish(&mut self, place: &SlotPlace, put: SlotWord) -> Result<Winner, IndexError> {
        let new = self.new.as_ref().filter(|(_, new)| put.is_live() && put.addr() == new.addr());
        new.iter().for_each(|(_, new)| new.keep());
        let posting = self.io.posting();
        let cas = self.io.client().cas(place.at, place.word.raw(), put.raw()).await;
        match cas {
            Ok(found) if found == place.word.raw() => {
                return Ok(Winner::Mine);
            }
            Ok(_) => {}
            Err(error) if is_open(error) => {
                self.io.again(&mut Trial::default(), posting, error).await?;
                if new.is_some() {
                    let verdict = self.tree.judge_node(self.io, self.key, put.addr()).await?;
                    self.tree.counters.outcomes[verdict as usize].add(1);
                    if verdict == Verdict::Done {
                        return Ok(Winner::Mine);
                    }
                } else {
                    // If the node is found no more, the claim tells.
                    self.in_doubt |= self.io.word(place.at).await? != place.word.raw();
                }
            }
            Err(error) => return Err(error.into()),
        }
        new.iter().for_each(|(_, new)| new.unkeep());
        Ok(Winner::Another)
    }

    /// The node is in the tree no more: its winner takes its entries out, and retires it.
    async fn unlinked(
        &mut self,
        winner: Winner,
        retiring: Option<farleaf_pool::Retiring>,
        live: &[SlotWord],
        put: Option<(&SlotPlace, SlotWord)>,
    ) -> Result<(), IndexError> {
        let proven = self.is_proven.then_some(self.key);
        if !Canary::TakeOutBeforeSeal.is_armed() {
            self.tree.node_unlinked(self.io, self.node, live, put, proven).await?;
        }
        let is_mine = match winner {
            Winner::Mine => true,
            Winner::Another => false,
            Winner::Perhaps => self.claim().await? || Canary::CollapseUnclaimed.is_armed(),
        };
        let retiring = match (is_mine, retiring) {
            (true, None) => Some(self.session.prepare_retire(self.node.addr).await?),
            (_, retiring) => retiring,
        };
        match retiring {
            Some(retiring) if is_mine => self.session.retire(retiring),
            Some(retiring) => self.session.cancel_retire(retiring),
            None => {}
        }
        Ok(())
    }

    /// Puts this session into the first dead slot of the unlinked node; whether it was the first to do so.
    async fn claim(&self) -> Result<bool, IndexError> {
        let sealed = self.sealed.iter().flatten().enumerate();
        let Some((index, word)) = sealed.into_iter().find(|(_, word)| !word.is_live()) else {
            return Ok(false);
        };
        let at = self.node.addr.plus(8 * index as u64);
        if word.is_claim_of(self.node.addr) || !self.tree.claims.may_claim(self.node.addr) {
            return Ok(false);
        }
        let step = word.step().unwrap_or(Step::Byte(0));
        let claim = SlotWord::claim(step, self.node.addr, self.session.id());
        let found = self.io.cas(at, word.raw(), claim.raw()).await?;
        Ok(found == word.raw())
    }
}

fn no_node() -> IndexError {
    IndexError::Corrupt("a new node is missing".into())
}
