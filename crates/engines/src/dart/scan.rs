//! Scans: pairs of a range in order, from either end.
//!
//! A scan goes down from R, fresh: it reads whole nodes, expands the first part of what it knows until that has
//! leaves enough, and reads the leaves in lists. An edge that skips bytes and may cross a bound is judged by a
//! leaf below it. Each window of leaves has its own pin.

use std::collections::VecDeque;
use std::ops::Bound;

use farleaf_fabric::OpKind;
use farleaf_index::{Entries, IndexError, ScanRange};
use farleaf_pool::{Reliable, Session};

use super::DartTree;
use super::descent::NodeRef;
use super::leaf::{self, LeafCopy};
use super::meta;
use super::ops::Below;
use super::word::{SlotContent, SlotWord, Step};

/// Pairs that a scan returns under one pin.
const WINDOW_PAIRS: usize = 1_024;
/// Nodes that are read at once.
const NODES_AT_ONCE: usize = 16;

/// Something that a scan has yet to go through.
enum ScanItem {
    Node(NodeRef, Edges),
    Leaf(SlotWord),
}

/// True if all that was dispatched on so far is the same as in a bound's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edges {
    low: bool,
    high: bool,
}

/// The bounds of a window.
struct Bounds<'a> {
    low: &'a [u8],
    /// `None`: no upper bound.
    high: Option<&'a [u8]>,
}

fn bytes_of(bound: Bound<&[u8]>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

impl DartTree {
    /// Appends at most `limit` pairs of `range` to `out`.
    pub(super) async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let mut last: Option<Vec<u8>> = None;
        let mut left = limit;
        while left > 0 {
            // A window of its own: a long scan holds no memory back.
            let window = match last.as_deref() {
                None => range,
                Some(last) if range.reverse => ScanRange { to: Bound::Excluded(last), ..range },
                Some(last) => ScanRange { from: Bound::Excluded(last), ..range },
            };
            let wanted = left.min(WINDOW_PAIRS);
            let kind = if last.is_none() { OpKind::Scan } else { OpKind::Other };
            let _pin = session.begin(kind).await?;
            session.client().charge_to(OpKind::Scan);
            let found = self.window(session.reliable(), window, wanted, out).await?;
            left -= found;
            if found < wanted {
                break;
            }
            last = out.get(out.len() - 1).map(|(key, _)| key.to_vec());
        }
        Ok(())
    }

    /// The first pairs of a range, `wanted` unless there are fewer; how many.
    async fn window(
        &self,
        io: Reliable<'_>,
        range: ScanRange<'_>,
        wanted: usize,
        out: &mut Entries,
    ) -> Result<usize, IndexError> {
        let bounds = Bounds { low: bytes_of(range.from).unwrap_or(&[]), high: bytes_of(range.to) };
        let line = meta::read_line(io, self.meta).await?;
        let mut items = VecDeque::new();
        self.add(io, &mut items, line.root, 0, Edges { low: true, high: true }, &bounds).await?;
        let mut found = 0;
        let mut before: Option<Vec<u8>> = None;
        while found < wanted && !items.is_empty() {
            let most = (wanted - found).min(self.options.scan_batch);
            self.expand(io, &mut items, most, &bounds, range.reverse).await?;
            let leaves: Vec<SlotWord> = std::iter::from_fn(|| match items.front() {
                Some(ScanItem::Leaf(word)) => {
                    let word = *word;
                    items.pop_front();
                    Some(word)
                }
                _ => None,
            })
            .take(most)
            .collect();
            for leaf in self.read_leaves(io, &leaves).await? {
                if !range.holds(leaf.key()) {
                    continue;
                }
                let in_order = before.as_deref().is_none_or(|before| match range.reverse {
                    true => leaf.key() < before,
                    false => leaf.key() > before,
                });
                if !in_order {
                    return Err(IndexError::Corrupt(format!(
                        "INV-DART-6: keys of the table at {} are not in order",
                        self.meta
                    )));
                }
                out.push(leaf.key(), leaf.value());
                before = Some(leaf.key().to_vec());
                found += 1;
                if found == wanted {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Returns the nodes among the first items, as many as are likely to lead to `most` leaves.
    fn likely_wanted(
        &self,
        items: &VecDeque<ScanItem>,
        most: usize,
        bounds: &Bounds<'_>,
        reverse: bool,
    ) -> Vec<NodeRef> {
        let (mut likely, mut nodes) = (0, Vec::new());
        for item in items {
            if likely >= most || nodes.len() >= NODES_AT_ONCE {
                break;
            }
            likely += match item {
                ScanItem::Leaf(_) => 1,
                ScanItem::Node(node, edges) => {
                    nodes.push(*node);
                    match reverse {
                        // The range may begin at the node's end.
                        false if edges.low && !bounds.low.is_empty() => 1,
                        true if edges.high && bounds.high.is_some() => 1,
                        _ => self.shape.children_likely(node.kind),
                    }
                }
            };
        }
        nodes
    }

    /// READs nodes until the first `most` items are leaves.
    async fn expand(
        &self,
        io: Reliable<'_>,
        items: &mut VecDeque<ScanItem>,
        most: usize,
        bounds: &Bounds<'_>,
        reverse: bool,
    ) -> Result<(), IndexError> {
        loop {
            let nodes = self.likely_wanted(items, most, bounds, reverse);
            if nodes.is_empty() {
                return Ok(());
            }
            let mut ops = io.client().ops();
            for node in &nodes {
                ops.read(node.addr, io.buf(self.shape.bytes(node.kind)));
            }
            let read = io.post_many(ops).await;
            let mut read = read.map_err(|error| self.misled(error))?;
            let mut number = 0;
            let mut rest = std::mem::take(items);
            while let Some(item) = rest.pop_front() {
                let (node, edges) = match item {
                    ScanItem::Node(node, edges) if number < nodes.len() => (node, edges),
                    item => {
                        items.push_back(item);
                        continue;
                    }
                };
                let words = read.take_buf(number);
                number += 1;
                self.check_words(node, words.words())?;
                let mut children: Vec<SlotWord> =
                    words.words().iter().map(|word| SlotWord::from_raw(*word)).collect();
                children.retain(|word| word.is_live());
                children.sort_unstable_by_key(|word| word.step());
                if reverse {
                    children.reverse();
                }
                for word in children {
                    let Some(step) = word.step() else { continue };
                    let Some(edges) = side(step, node.plen, edges, bounds) else { continue };
                    self.add(io, items, word, node.plen + 1, edges, bounds).await?;
                }
            }
        }
    }

    /// Adds what `word` leads to behind `base` bytes, unless all of it is out of bounds.
    async fn add(
        &self,
        io: Reliable<'_>,
        items: &mut VecDeque<ScanItem>,
        word: SlotWord,
        base: usize,
        mut edges: Edges,
        bounds: &Bounds<'_>,
    ) -> Result<(), IndexError> {
        match word.child() {
            SlotContent::Empty | SlotContent::Tomb => {}
            SlotContent::Leaf(_) => items.push_back(ScanItem::Leaf(word)),
            SlotContent::Node(kind, len) => {
                let node = NodeRef { addr: word.addr(), kind, plen: base + len };
                let matters = |at_edge: bool, bound: Option<&[u8]>| {
                    at_edge && bound.is_some_and(|bound| bound.len() > base)
                };
                if len > 0
                    && (matters(edges.low, Some(bounds.low)) || matters(edges.high, bounds.high))
                {
                    // The skipped bytes are known by a leaf.
                    match self.some_leaf(io, node, None, &[], true).await? {
                        Below::Leaf(word) => {
                            let leaf = self.read_leaf(io, word).await?;
                            match skipped(leaf.key(), base..node.plen, edges, bounds) {
                                Some(known) => edges = known,
                                None => return Ok(()),
                            }
                        }
                        // Nothing is known of it: it stays.
                        Below::Empty(..) | Below::Stale => {
                            edges = Edges { low: false, high: false }
                        }
                    }
                } else if len > 0 {
                    // The bound ends here: all below is on one side of it.
                    if edges.high && bounds.high.is_some() {
                        return Ok(());
                    }
                    edges.low = false;
                }
                items.push_back(ScanItem::Node(node, edges));
            }
        }
        Ok(())
    }

    /// READs leaves in one list.
    pub(super) async fn read_leaves(
        &self,
        io: Reliable<'_>,
        words: &[SlotWord],
    ) -> Result<Vec<LeafCopy>, IndexError> {
        let mut ops = io.client().ops();
        for word in words {
            let SlotContent::Leaf(code) = word.child() else { continue };
            ops.read(word.addr(), io.buf(leaf::read_bytes(code)));
        }
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        let read = io.post_many(ops).await;
        let mut ops = read.map_err(|error| self.misled(error))?;
        let mut leaves = Vec::with_capacity(words.len());
        for (index, word) in words.iter().enumerate() {
            leaves.push(self.whole_leaf(io, *word, ops.take_buf(index)).await?);
        }
        Ok(leaves)
    }
}

/// The edges behind `step` at position `plen`; `None` if all below is out of bounds.
fn side(step: Step, plen: usize, mut edges: Edges, bounds: &Bounds<'_>) -> Option<Edges> {
    if edges.low {
        let bound = Step::at(bounds.low, plen);
        // A bound that ends here is below all that goes on.
        if step < bound {
            return None;
        }
        edges.low = step == bound && step != Step::End;
    }
    if edges.high
        && let Some(high) = bounds.high
    {
        let bound = Step::at(high, plen);
        if step > bound {
            return None;
        }
        edges.high = step == bound && step != Step::End;
    }
    Some(edges)
}

/// The edges behind the bytes `skipped` of `key`; `None` if all below is out of bounds.
fn skipped(
    key: &[u8],
    skipped: std::ops::Range<usize>,
    edges: Edges,
    bounds: &Bounds<'_>,
) -> Option<Edges> {
    skipped.clone().try_fold(edges, |edges, plen| side(Step::at(key, plen), plen, edges, bounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_of_a_bound_are_told() {
        let bounds = Bounds { low: b"bc", high: Some(b"bd") };
        let both = Edges { low: true, high: true };
        assert_eq!(side(Step::Byte(b'a'), 0, both, &bounds), None);
        assert_eq!(side(Step::Byte(b'b'), 0, both, &bounds), Some(both));
        assert_eq!(side(Step::Byte(b'c'), 0, both, &bounds), None);
        let low = Edges { low: true, high: false };
        assert_eq!(side(Step::Byte(b'c'), 1, both, &bounds), Some(low));
        assert_eq!(side(Step::End, 1, both, &bounds), None);
        // "bc" itself, and what goes on behind it.
        let none = Edges { low: false, high: false };
        assert_eq!(side(Step::End, 2, low, &bounds), Some(none));
        assert_eq!(side(Step::Byte(0), 2, low, &bounds), Some(none));
        let high = Edges { low: false, high: true };
        assert_eq!(side(Step::End, 2, high, &bounds), Some(none), "\"bd\"");
        assert_eq!(side(Step::Byte(0), 2, high, &bounds), None, "behind \"bd\"");
        assert_eq!(
            skipped(
                b"xbcq",
                1..3,
                Edges { low: true, high: true },
                &Bounds { low: b"xbb", high: None }
            ),
            Some(high)
        );
    }
}
