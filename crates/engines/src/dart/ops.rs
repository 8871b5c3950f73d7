//! Point operations: get, and one change of one key, each by the starts that it has.

use std::sync::Arc;

use farleaf_fabric::{Buf, OpKind};
use farleaf_index::retry::Attempts;
use farleaf_index::{Change, IndexError, Outcome};
use farleaf_pool::{Reliable, Session};

use super::DartTree;
use super::changing::{AttemptEnd, Changing};
use super::descent::{NodeRef, Path, PathEnd};
use super::skip_table::Starts;
use super::word::{SlotContent, SlotWord, Step};

farleaf_fabric::canaries! {
    pub(crate) ABSENT_UNPROVEN = "absent-unproven",
        "a lookup that began at an entry answers that a key is absent without a proof";
}

/// A leaf below a node, or a node below it that has none.
pub(super) enum Below {
    Leaf(SlotWord),
    /// The node, and a key whose bytes lead there.
    Empty(NodeRef, Vec<u8>),
    /// A sealed word on a way that may not believe it.
    Stale,
}

impl DartTree {
    /// Copies `key`'s value into `value`, which is cleared; `false` if there is none.
    pub(super) async fn get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let _pin = session.begin(OpKind::Get).await?;
        let io = session.reliable();
        value.clear();
        let line = self.line(session, io).await?;
        let mut starts = self.starts(io, key, line).await?;
        let mut trail = Vec::new();
        while let Some(start) = self.next_start(session, io, key, &mut starts).await? {
            let path = self.descend(io, key, start, &mut trail, None).await?;
            let answer = self.answer(session, io, key, &path, value).await?;
            let is_proven = answer == Some(true) || !path.has_gaps;
            let mended = answer.map(|_| is_proven);
            self.starts_ended(session, &mut starts, key, &path, &trail, mended);
            if let Some(found) = answer {
                return Ok(found);
            }
        }
        Err(IndexError::Unavailable(
            "a lookup found no path through the table, because others change it: try again".into(),
        ))
    }

    /// Returns a way's answer on its key; `None` if this start says nothing.
    async fn answer(
        &self,
        session: &Session,
        io: Reliable<'_>,
        key: &[u8],
        path: &Path,
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, IndexError> {
        let (node, bucket) = match &path.landing {
            PathEnd::Stale | PathEnd::Met(_) => return Ok(None),
            PathEnd::Slot(place, bucket) => {
                if let SlotContent::Leaf(_) = place.word.child() {
                    let leaf = self.read_counted_leaf(session, io, place.word).await?;
                    if self.difference(place, &leaf, key)?.is_none() {
                        value.extend_from_slice(leaf.value());
                        return Ok(Some(true));
                    }
                    // Below the same node: it proves that the key belongs there.
                    let is_proof = path.is_fresh
                        || leaf.shares(key, place.plen())
                        || ABSENT_UNPROVEN.is_armed();
                    return Ok(is_proof.then_some(false));
                }
                (place.node, bucket.as_ref())
            }
            PathEnd::Edge(place) => (place.node, None),
            PathEnd::Full(node, bucket) => (Some(*node), Some(bucket)),
        };
        if path.is_fresh || ABSENT_UNPROVEN.is_armed() {
            return Ok(Some(false));
        }
        let Some(node) = node else { return Ok(Some(false)) };
        self.counters.proof_reads.add(1);
        match self.some_leaf(io, node, bucket, &[], false).await? {
            Below::Leaf(word) => {
                let leaf = self.read_leaf(io, word).await?;
                Ok(leaf.shares(key, node.plen).then_some(false))
            }
            Below::Empty(..) | Below::Stale => Ok(None),
        }
    }

    /// A leaf below `node`: of the bucket that was read, or the leftmost. `key` leads to the node.
    pub(super) async fn some_leaf(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
        bucket: Option<&Buf>,
        key: &[u8],
        is_fresh: bool,
    ) -> Result<Below, IndexError> {
        let may_follow = |word: &SlotWord| is_fresh || !word.is_sealed();
        let in_bucket = bucket.into_iter().flat_map(|bucket| bucket.words());
        let mut leaves = in_bucket
            .map(|word| SlotWord::from_raw(*word))
            .filter(|word| matches!(word.child(), SlotContent::Leaf(_)) && may_follow(word));
        if let Some(word) = leaves.next() {
            return Ok(Below::Leaf(word));
        }
        let mut path = key.get(..node.plen).unwrap_or(key).to_vec();
        let mut node = node;
        loop {
            path.resize(node.plen, 0);
            let words = self.read_node(io, node).await?;
            let words = || words.words().iter().map(|word| SlotWord::from_raw(*word));
            let leaf = words()
                .find(|word| matches!(word.child(), SlotContent::Leaf(_)) && may_follow(word));
            if let Some(word) = leaf {
                return Ok(Below::Leaf(word));
            }
            let inner = words().filter(|word| word.is_live() && may_follow(word));
            let Some(word) = inner.min_by_key(|word| word.step()) else {
                let is_stale = !is_fresh && words().any(|word| word.is_sealed());
                return Ok(if is_stale { Below::Stale } else { Below::Empty(node, path) });
            };
            let (SlotContent::Node(kind, len), Some(Step::Byte(byte))) =
                (word.child(), word.step())
            else {
                return Ok(Below::Stale);
            };
            path.push(byte);
            node = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
        }
    }

    /// Changes one key. What it held is left in `held` if the change has an expectation.
    pub(super) async fn change(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let _pin = session.begin(change.kind).await?;
        let io = session.reliable();
        let mut line = self.line(session, io).await?;
        let mut attempts = Attempts::default();
        let mut changing = Changing { tree: self, session, io, change, held, leaf: None };
        let mut trail = Vec::new();
        let mut starts = self.starts(io, change.key, line).await?;
        self.maintain_if_due(session);
        loop {
            let Some(start) = self.next_start(session, io, change.key, &mut starts).await? else {
                attempts.again(session).await?;
                line = self.fresh_line(session, io).await?;
                starts = Starts::root(line);
                continue;
            };
            let path = self.descend(io, change.key, start, &mut trail, None).await?;
            let step = changing.attempt(&path, &trail).await?;
            let mended = match step {
                AttemptEnd::Done(outcome) => Some(outcome.existed || !path.has_gaps),
                _ => None,
            };
            self.starts_ended(session, &mut starts, change.key, &path, &trail, mended);
            match step {
                AttemptEnd::Done(outcome) => return Ok(outcome),
                AttemptEnd::NextStart => {}
                AttemptEnd::Again => {
                    attempts.again(session).await?;
                    line = self.fresh_line(session, io).await?;
                    starts = Starts::root(line);
                }
            }
        }
    }
}
