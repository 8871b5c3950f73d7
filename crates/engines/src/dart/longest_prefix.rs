//! Longest prefix: the deepest key on the way to a key.
//!
//! All keys that a key begins with end on its way: each in the END slot of a node of the way, or in the leaf that the
//! way ends in. So one descent finds the longest, if it READs the bucket of the END slot beside that of the next byte.
//!
//! A way that begins at an entry of the skip table shows the nodes from there on alone. A prefix that it finds proves that
//! the entry's node lies on the key's way, so no longer one is elsewhere. If it finds none, the prefix ends in a node
//! above, which no entry need lead to: the way from R shows all.

use std::sync::Arc;

use farleaf_fabric::{Buf, OpKind};
use farleaf_index::retry::Attempts;
use farleaf_index::{Entries, IndexError};
use farleaf_pool::{Reliable, Session};

use super::DartTree;
use super::descent::{NodeRef, Start};
use super::hashed_node::{BucketPlace, find};
use super::leaf;
use super::word::{SlotContent, SlotWord, Step};

/// Leaves that are READ at once.
const WINDOW: usize = 8;

/// The content of a slot or the end of a way, as far as a reader may believe it.
enum Belief<T> {
    Known(T),
    /// Sealed words, which this start may not believe.
    Stale,
}

impl DartTree {
    /// Appends the pair with the longest key that `key` begins with to `out`, if there is one.
    ///
    /// Cost: the round trips of a get, if the prefix ends at or below the node that the skip table leads to; those of a
    /// get from the root more if not. 2 READs for each node on the way, and 1 for each leaf in which a prefix may end.
    pub(super) async fn longest_prefix(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Get).await?;
        let io = session.reliable();
        let mut line = self.line(session, io).await?;
        let mut starts = self.starts(io, key, line).await?;
        let mut attempts = Attempts::default();
        let mut start = match self.next_start(session, io, key, &mut starts).await? {
            Some(start) => start,
            None => self.root_start(session, io, line).await?,
        };
        loop {
            let is_root = matches!(start, Start::Root(_));
            let leaves = self.leaves_on_way(io, key, start).await?;
            let is_stale = matches!(leaves, Belief::Stale);
            if let Belief::Known(leaves) = leaves
                && (self.push_first(io, key, &leaves, out).await? || is_root)
            {
                return Ok(());
            }
            start = if is_root && is_stale {
                attempts.again(session).await?;
                line = self.fresh_line(session, io).await?;
                Start::Root(line)
            } else {
                self.root_start(session, io, line).await?
            };
        }
    }

    /// The leaves on the way to `key` in which a prefix of it may end, the deepest first: 1 round trip for each node.
    async fn leaves_on_way(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        start: Start,
    ) -> Result<Belief<Vec<SlotWord>>, IndexError> {
        let mut leaves = Vec::new();
        let (mut is_fresh, mut on_lasting_root, mut next) = match start {
            Start::Express(node) => (false, false, Some(node)),
            Start::Root(line) => {
                let place = self.root_place(line.root);
                leaves.extend(leaf_in(place.word));
                (!line.is_remembered, line.is_remembered, place.child())
            }
        };
        while let Some(node) = next.take_if(|node| node.plen <= key.len()) {
            let step = Step::at(key, node.plen);
            let (bucket, ends) = self.read_step_and_end(io, node, step).await?;
            let Belief::Known(word) = look(bucket.words(), step, is_fresh) else {
                return Ok(Belief::Stale);
            };
            // It was in the tree just now.
            is_fresh |= std::mem::take(&mut on_lasting_root);
            if step != Step::End {
                let ends = ends.as_ref().unwrap_or(&bucket);
                let Belief::Known(end) = look(ends.words(), Step::End, is_fresh) else {
                    return Ok(Belief::Stale);
                };
                leaves.extend(end.and_then(leaf_in));
            }
            let Some(word) = word else { break };
            leaves.extend(leaf_in(word));
            if let SlotContent::Node(kind, len) = word.child() {
                let plen = node.plen + 1 + len;
                next = Some(NodeRef { addr: word.addr(), kind, plen });
            }
        }
        leaves.reverse();
        Ok(Belief::Known(leaves))
    }

    /// READs the buckets of a node that own `step` and the end of a key, the latter if it is another: 1 round trip.
    async fn read_step_and_end(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
        step: Step,
    ) -> Result<(Buf, Option<Buf>), IndexError> {
        let [slots, ends] = [step, Step::End].map(|step| self.shape.bucket(node.kind, step));
        if slots == ends {
            return Ok((self.read_bucket(io, node, step).await?, None));
        }
        let mut ops = io.client().ops();
        let numbers = [slots, ends]
            .map(|slots| ops.read(node.addr.plus(8 * slots.start as u64), io.buf(8 * slots.len())));
        let read = io.post_many(ops).await;
        let mut read = read.map_err(|error| self.misled(error))?;
        let [bucket, ends] = numbers.map(|number| read.take_buf(number));
        self.check_words(node, bucket.words())?;
        self.check_words(node, ends.words())?;
        Ok((bucket, Some(ends)))
    }

    /// Appends the pair of the first of `leaves` whose key `key` begins with; whether there is one. 1 round trip for each
    /// window of them.
    async fn push_first(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        leaves: &[SlotWord],
        out: &mut Entries,
    ) -> Result<bool, IndexError> {
        for window in leaves.chunks(WINDOW) {
            let mut ops = io.client().ops();
            let mut numbers = Vec::with_capacity(window.len());
            for word in window {
                if let SlotContent::Leaf(code) = word.child() {
                    let number = ops.read(word.addr(), io.buf(leaf::read_bytes(code)));
                    numbers.push((*word, number));
                }
            }
            let read = io.post_many(ops).await;
            let mut read = read.map_err(|error| self.misled(error))?;
            for (word, number) in numbers {
                let image = read.take_buf(number);
                let leaf = self.whole_leaf(io, word, image).await?;
                if key.starts_with(leaf.key()) {
                    out.push(leaf.key(), leaf.value());
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

fn leaf_in(word: SlotWord) -> Option<SlotWord> {
    matches!(word.child(), SlotContent::Leaf(_)).then_some(word)
}

/// The word of a step in its bucket, if it has one.
fn look(words: &[u64], step: Step, is_fresh: bool) -> Belief<Option<SlotWord>> {
    let (word, is_sealed) = match find(words, step) {
        BucketPlace::At(_, word) => (Some(word), word.is_sealed()),
        BucketPlace::Empty(_, word) => (None, word.is_sealed()),
        BucketPlace::Full => (None, words.iter().all(|word| SlotWord::from_raw(*word).is_sealed())),
    };
    match is_sealed && !is_fresh {
        true => Belief::Stale,
        false => Belief::Known(word),
    }
}
