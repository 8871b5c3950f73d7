//! Outcomes: judges a publishing CAS whose completion was lost.
//!
//! The thread has reconnected, so the CAS lands no more. What the slot held since is told by the slot itself, and
//! by the leaves that were there: each names what it replaced. All of them were linked under the operation's
//! pin, so none of them is reused. A new node tells by itself: a node leaves the tree only with all of its
//! slots sealed (`INV-DART-4`).

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

use super::DartTree;
use super::descent::{NodeRef, PathEnd, Start};
use super::leaf::{self, Before, HEAD_BYTES, LeafCopy};
use super::meta;
use super::word::{SESSION_MASK, SlotContent, SlotWord};

/// Leaves that a judgement follows back at most, from each place that it looks at.
const CHAIN_MAX: usize = 16;
/// The same, from all leaves below the slot together.
const CHAINS_BELOW: usize = 3 * CHAIN_MAX;
/// Nodes below a slot that a judgement reads at most.
const NODES_BELOW: usize = 4;
/// Bytes of the first READ of a leaf of unknown size.
const FIRST_BYTES: usize = 64;

/// The word that a CAS puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishedKind {
    /// A new leaf.
    Leaf,
    /// A TOMB of the leaf that was there.
    Tomb,
    /// A new node.
    Node,
}

/// One publishing CAS.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) at: GlobalAddr,
    pub(super) expected: SlotWord,
    pub(super) put: SlotWord,
    pub(super) mine: PublishedKind,
    /// Bytes of the key that lead to the slot.
    pub(super) shared: usize,
    /// If `expected` is a TOMB: the first word of what it names, as it was before the CAS was posted.
    pub(super) removed: Option<u64>,
}

/// The outcome of a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    NotDone,
    Unknown,
}

impl DartTree {
    /// Judges a CAS that lands no more.
    ///
    /// Cost: 1 READ, mostly. At most a way down, [`NODES_BELOW`] nodes and 96 leaves of 1 or 2 READs each, so that
    /// a judgement ends however many others change the key; what is open then is unknown.
    ///
    /// # Errors
    /// Those of READs; then nothing is known.
    pub(super) async fn judge(
        &self,
        session: &Session,
        io: Reliable<'_>,
        key: &[u8],
        attempt: &Attempt,
    ) -> Result<Verdict, IndexError> {
        if attempt.mine == PublishedKind::Node {
            return self.judge_node(io, key, attempt.put.addr()).await;
        }
        let session = session.id() & SESSION_MASK;
        let now = SlotWord::from_raw(io.word(attempt.at).await?).plain();
        if now == attempt.put {
            return Ok(Verdict::Done);
        }
        if now == attempt.expected {
            return match attempt.expected.child() {
                SlotContent::Tomb => self.judge_tomb(io, key, attempt).await,
                _ => Ok(Verdict::NotDone),
            };
        }
        let history = match now.child() {
            SlotContent::Leaf(_) => Before::Leaf(now.addr()),
            SlotContent::Tomb => Before::Tomb(now.addr(), now.session()),
            _ => Before::Nothing,
        };
        match self.follow(io, key, attempt, session, history, &mut { CHAIN_MAX }).await? {
            Verdict::Unknown => {}
            verdict => return Ok(verdict),
        }
        match self.judge_key(io, key, attempt, session).await? {
            Verdict::Unknown => self.judge_below(io, key, attempt, session, now).await,
            verdict => Ok(verdict),
        }
    }

    /// The new node is met from the root, or is sealed: then it was linked.
    pub(super) async fn judge_node(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        node: GlobalAddr,
    ) -> Result<Verdict, IndexError> {
        let line = meta::read_line(io, self.meta).await?;
        let path = self.descend(io, key, Start::Root(line), &mut Vec::new(), Some(node)).await?;
        if matches!(path.landing, PathEnd::Met(_)) {
            return Ok(Verdict::Done);
        }
        let first = SlotWord::from_raw(io.word(node).await?);
        Ok(if first.is_sealed() { Verdict::Done } else { Verdict::NotDone })
    }

    /// The TOMB is there again, or was there when another leaf went over it. It is the TOMB that was expected,
    /// unless what it names was used again as a leaf that came there after this one.
    async fn judge_tomb(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        attempt: &Attempt,
    ) -> Result<Verdict, IndexError> {
        let Attempt { expected, put, shared, removed, .. } = *attempt;
        let Some(removed) = removed else { return Ok(Verdict::Unknown) };
        let now = io.word(expected.addr()).await?;
        if leaf::number_of(now) == leaf::number_of(removed) {
            return Ok(Verdict::NotDone);
        }
        // A leaf that came after this one would be there still: it was unlinked under this operation's pin.
        let mut at = expected.addr();
        for count in 0..CHAIN_MAX {
            let leaf = match self.leaf_at(io, at).await? {
                Some(leaf) if count > 0 || leaf.shares(key, shared.min(key.len())) => leaf,
                _ if count == 0 => return Ok(Verdict::NotDone),
                _ => return Ok(Verdict::Unknown),
            };
            match leaf.before() {
                Before::Leaf(addr) | Before::Tomb(addr, _) if addr == put.addr() => {
                    return Ok(Verdict::Done);
                }
                Before::Leaf(addr) | Before::Tomb(addr, _) => at = addr,
                Before::Empty(_) | Before::Nothing => return Ok(Verdict::Unknown),
            }
        }
        Ok(Verdict::Unknown)
    }

    /// Goes back through what a slot held, by at most `left` leaves.
    async fn follow(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        attempt: &Attempt,
        session: u32,
        mut history: Before,
        left: &mut usize,
    ) -> Result<Verdict, IndexError> {
        let Attempt { at, expected, put, mine, .. } = *attempt;
        let over_leaf = matches!(expected.child(), SlotContent::Leaf(_));
        while *left > 0 {
            *left -= 1;
            let leaf = match history {
                Before::Nothing => return Ok(Verdict::Unknown),
                Before::Empty(slot) => {
                    let is_it = slot == at && expected.is_empty();
                    return Ok(if is_it { Verdict::NotDone } else { Verdict::Unknown });
                }
                Before::Leaf(leaf) if mine == PublishedKind::Leaf && leaf == put.addr() => {
                    return Ok(Verdict::Done);
                }
                Before::Tomb(leaf, _) if mine == PublishedKind::Leaf && leaf == put.addr() => {
                    return Ok(Verdict::Done);
                }
                Before::Leaf(leaf) if over_leaf && leaf == expected.addr() => {
                    return Ok(Verdict::NotDone);
                }
                Before::Tomb(leaf, by) if over_leaf && leaf == expected.addr() => {
                    let is_mine = mine == PublishedKind::Tomb && by == session;
                    return Ok(if is_mine { Verdict::Done } else { Verdict::NotDone });
                }
                Before::Tomb(leaf, by)
                    if expected.is_tomb()
                        && (leaf, by) == (expected.addr(), expected.session()) =>
                {
                    return self.judge_tomb(io, key, attempt).await;
                }
                Before::Leaf(leaf) | Before::Tomb(leaf, _) => leaf,
            };
            match self.leaf_at(io, leaf).await? {
                Some(leaf) => history = leaf.before(),
                None => return Ok(Verdict::Unknown),
            }
        }
        Ok(Verdict::Unknown)
    }

    /// The slot tells nothing: what the key holds now may.
    async fn judge_key(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        attempt: &Attempt,
        session: u32,
    ) -> Result<Verdict, IndexError> {
        let line = meta::read_line(io, self.meta).await?;
        let path = self.descend(io, key, Start::Root(line), &mut Vec::new(), None).await?;
        let PathEnd::Slot(place, _) = path.landing else { return Ok(Verdict::Unknown) };
        let history = match place.word.child() {
            SlotContent::Leaf(_) => {
                let leaf = self.read_leaf(io, place.word).await?;
                if leaf.difference(key).is_some() {
                    return Ok(Verdict::Unknown);
                }
                Before::Leaf(place.word.addr())
            }
            SlotContent::Tomb => Before::Tomb(place.word.addr(), place.word.session()),
            _ => return Ok(Verdict::Unknown),
        };
        self.follow(io, key, attempt, session, history, &mut { CHAIN_MAX }).await
    }

    /// The slot leads to a node, and the key is absent: leaves below tell what was in the slot before.
    async fn judge_below(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        attempt: &Attempt,
        session: u32,
        now: SlotWord,
    ) -> Result<Verdict, IndexError> {
        let (mut nodes, mut leaves) = (vec![now], Vec::new());
        for _ in 0..NODES_BELOW {
            let Some(word) = nodes.pop() else { break };
            let SlotContent::Node(kind, _) = word.child() else { break };
            let node = NodeRef { addr: word.addr(), kind, plen: 0 };
            let words = self.read_node(io, node).await?;
            for word in words.words().iter().map(|word| SlotWord::from_raw(*word)) {
                match word.child() {
                    SlotContent::Leaf(_) => leaves.push(Before::Leaf(word.addr())),
                    SlotContent::Tomb => leaves.push(Before::Tomb(word.addr(), word.session())),
                    SlotContent::Node(..) => nodes.push(word),
                    SlotContent::Empty => {}
                }
            }
        }
        let mut left = CHAINS_BELOW;
        for history in leaves.into_iter().take(CHAIN_MAX) {
            match self.follow(io, key, attempt, session, history, &mut left).await? {
                Verdict::Unknown => {}
                verdict => return Ok(verdict),
            }
        }
        Ok(Verdict::Unknown)
    }

    /// The leaf at an address, if there is one. 1 or 2 READs.
    async fn leaf_at(
        &self,
        io: Reliable<'_>,
        addr: GlobalAddr,
    ) -> Result<Option<LeafCopy>, IndexError> {
        let first = io.read(addr, io.buf(FIRST_BYTES)).await?;
        let words = first.words();
        let (key, value) = (words[2] >> 32 & 0xffff, words[3] & 0xffff_ffff);
        let bytes = (HEAD_BYTES + key as usize + value as usize).next_multiple_of(8);
        if bytes <= FIRST_BYTES {
            return Ok(LeafCopy::parse(first, self.table));
        }
        if (words[3] >> 32) as u32 != self.table || bytes > self.object_bytes_max {
            return Ok(None);
        }
        let all = io.read(addr, io.buf(bytes)).await?;
        Ok(LeafCopy::parse(all, self.table))
    }
}
