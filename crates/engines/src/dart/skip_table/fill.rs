//! Filling: goes through the nodes of the tree that are express, and places their entries.
//!
//! Each part of the tree has a pin and a fresh way of its own, so that the walk holds no memory back for long.

use std::collections::VecDeque;

use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

use super::begin_quietly;
use super::entry::PrefixHash;
use super::place::NewEntry;
use super::tables::Table;
use crate::dart::DartTree;
use crate::dart::descent::{NodeRef, PathEnd, Start};
use crate::dart::meta;
use crate::dart::ops::Below;
use crate::dart::word::{SlotContent, SlotWord, Step};

/// Nodes under one pin.
const NODES_PER_PIN: usize = 1_024;
/// Nodes that are read, and entries that are placed, at once.
const BATCH: usize = 32;

/// A node to be gone through, and what is known of its prefix: at least all that its parent shares and the
/// byte that leads to it.
struct FoundNode {
    node: NodeRef,
    above: Option<usize>,
    known: Vec<u8>,
}

impl DartTree {
    /// Places the entries of all express nodes in `table`; returns their number. Without a table it only
    /// counts, for that list of lengths.
    pub(super) async fn fill(
        &self,
        session: &Session,
        lengths: &[u16],
        table: Option<&Table>,
    ) -> Result<u64, IndexError> {
        let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
        let mut count = 0;
        while let Some(path) = parts.pop() {
            let pin = begin_quietly(session).await?;
            count +=
                self.fill_part(session.maintenance(), &path, lengths, table, &mut parts).await?;
            drop(pin);
        }
        Ok(count)
    }

    /// The same below one path; adds what is left of it to `parts`.
    async fn fill_part(
        &self,
        io: Reliable<'_>,
        path: &[u8],
        lengths: &[u16],
        table: Option<&Table>,
        parts: &mut Vec<Vec<u8>>,
    ) -> Result<u64, IndexError> {
        let longest = lengths.last().map_or(0, |length| usize::from(*length));
        let line = meta::read_line(io, self.meta).await?;
        let mut trail = Vec::new();
        let below = self.descend(io, path, Start::Root(line), &mut trail, None).await?;
        let is_there = |node: &NodeRef| node.plen >= path.len();
        let node = match below.landing {
            PathEnd::Edge(place) => place.child().filter(is_there),
            PathEnd::Slot(place, _) => place.node.filter(is_there),
            PathEnd::Full(node, _) => Some(node).filter(is_there),
            PathEnd::Met(_) | PathEnd::Stale => None,
        };
        let Some(node) = node else { return Ok(0) };
        let parent = trail.iter().rev().find(|place| place.child() == Some(node));
        let above = parent.and_then(|place| place.node).map(|node| node.plen);
        // The tree may have changed since the path was proven: then the node has another prefix, and entries for
        // this one would be found by nobody who takes the node's out. A leaf tells.
        let mut found = VecDeque::from([FoundNode { node, above, known: Vec::new() }]);
        let (mut nodes, mut count, mut items) = (0, 0, Vec::new());
        while !found.is_empty() {
            if nodes >= NODES_PER_PIN {
                parts.extend(found.drain(..).map(|found| found.known));
                break;
            }
            let mut batch: Vec<FoundNode> = found.drain(..found.len().min(BATCH)).collect();
            nodes += batch.len();
            for found in &mut batch {
                self.learn(io, found, longest).await?;
                let express = lengths.iter().map(|length| usize::from(*length)).filter(|length| {
                    found.above.is_none_or(|above| *length > above)
                        && *length <= found.node.plen.min(found.known.len())
                });
                for length in express {
                    let hash = PrefixHash::of(&found.known[..length], self.table);
                    items.push(NewEntry { hash, length, node: found.node, instead: None });
                    count += 1;
                }
            }
            if let Some(table) = table {
                for part in items.chunks(2 * BATCH) {
                    self.place(io, table, part).await?;
                }
            }
            items.clear();
            batch.retain(|found| found.node.plen < longest && found.known.len() >= found.node.plen);
            self.children(io, batch, &mut found).await?;
        }
        Ok(count)
    }

    /// Completes what is known of a node's prefix, if it matters, by a leaf below.
    async fn learn(
        &self,
        io: Reliable<'_>,
        found: &mut FoundNode,
        longest: usize,
    ) -> Result<(), IndexError> {
        if found.known.len() >= found.node.plen || found.known.len() >= longest {
            return Ok(());
        }
        if let Below::Leaf(word) = self.some_leaf(io, found.node, None, &[], true).await? {
            let leaf = self.read_leaf(io, word).await?;
            if let Some(prefix) = leaf.key().get(..found.node.plen) {
                found.known = prefix.to_vec();
            }
        }
        Ok(())
    }

    /// The inner nodes below a batch of nodes whose prefixes are known.
    async fn children(
        &self,
        io: Reliable<'_>,
        batch: Vec<FoundNode>,
        found: &mut VecDeque<FoundNode>,
    ) -> Result<(), IndexError> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut ops = io.client().ops();
        for found in &batch {
            ops.read(found.node.addr, io.buf(self.shape.bytes(found.node.kind)));
        }
        let ops = io.post_many(ops).await?;
        for (index, FoundNode { node, known, .. }) in batch.into_iter().enumerate() {
            let words = ops.buf(index);
            self.check_words(node, words.words())?;
            for word in words.words().iter().map(|word| SlotWord::from_raw(*word)) {
                let (SlotContent::Node(kind, len), Some(Step::Byte(byte))) =
                    (word.child(), word.step())
                else {
                    continue;
                };
                let mut path = known[..node.plen].to_vec();
                path.push(byte);
                let child = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
                found.push_back(FoundNode { node: child, above: Some(node.plen), known: path });
            }
        }
        Ok(())
    }
}
