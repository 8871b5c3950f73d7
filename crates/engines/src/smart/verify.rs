//! Verification: walks the whole remote structure and checks its invariants.

use std::collections::VecDeque;
use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_index::{IndexError, TableReport, Visitor};
use farleaf_pool::Session;

use super::descent::{ReadNode, Up};
use super::ladder::{LOCKS_BYTES, lock_table_at};
use super::layout::{Edge, META_BYTES, META_LOCKS, NodeType, Slot};
use super::leaf::NewValue;
use super::tree::{Fail, Tree};

/// Nodes or leaves that are read at once.
const BATCH: usize = 128;

/// A child that is still to be visited.
struct Todo {
    slot: Slot,
    up: Up,
    prefix: Vec<u8>,
    level: usize,
}

/// A walk under way.
#[derive(Default)]
struct TreeWalk {
    /// Nodes and leaves that are still to be visited; of the nodes, the last ones next.
    inner: Vec<Todo>,
    leaves: VecDeque<Todo>,
    /// Nodes that were visited, by their distance from the root.
    nodes: Vec<u64>,
    leaves_visited: u64,
}

impl TreeWalk {
    fn add(&mut self, child: Todo) {
        match child.slot.is_leaf() {
            true => self.leaves.push_back(child),
            false => self.inner.push(child),
        }
    }

    fn is_over(&self) -> bool {
        self.inner.is_empty() && self.leaves.is_empty()
    }
}

impl Tree {
    /// Visits the meta object and the lock table, then nodes and leaves, each after its parent, and a leaf's record after it.
    /// Takes over leaves that dead clients were writing.
    ///
    /// Others may replace nodes meanwhile: it visits each object that was linked when its parent was read.
    ///
    /// Cost: 1 READ for each node, leaf and record; 128 nodes or leaves at once.
    pub(super) async fn walk(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        self.visit_meta(visitor);
        if visitor.is_done() {
            return Ok(());
        }
        self.walk_behind_meta(session, visitor, report).await
    }

    pub(crate) fn visit_meta(&self, visitor: &mut impl Visitor) {
        visitor.object("meta object", self.meta, META_BYTES);
    }

    /// As [`Tree::walk`], without the meta object.
    pub(crate) async fn walk_behind_meta(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let walked = self.try_walk(session, visitor, report).await;
        walked.map_err(|fail| fail.or_unavailable("a walk lost its way: try again"))
    }

    async fn try_walk(
        self: &Arc<Self>,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), Fail> {
        let locks = session.reliable().word(self.meta.plus(META_LOCKS)).await?;
        if locks != 0 {
            visitor.object("lock table", lock_table_at(self.meta, locks)?, LOCKS_BYTES);
            if visitor.is_done() {
                return Ok(());
            }
        }
        let root = self.root_node(session).await?;
        visitor.object("node", root.addr, NodeType::TOP.bytes());
        let mut walk = TreeWalk::default();
        self.check_gaps(session, &root, report).await?;
        self.enter(&root, Vec::new(), 0, &mut walk, report);
        while !visitor.is_done() && !walk.is_over() {
            self.visit_nodes(session, &mut walk, visitor, report).await?;
            while walk.leaves.len() >= BATCH || walk.inner.is_empty() && !walk.leaves.is_empty() {
                if visitor.is_done() {
                    break;
                }
                self.visit_leaves(session, &mut walk, visitor, report).await?;
            }
        }
        walk.nodes.push(walk.leaves_visited);
        walk.nodes.reverse();
        report.nodes_per_level = walk.nodes;
        Ok(())
    }

    /// Visits some nodes, and puts their children on the lists.
    async fn visit_nodes(
        self: &Arc<Self>,
        session: &Session,
        walk: &mut TreeWalk,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), Fail> {
        let mut batch = walk.inner.split_off(walk.inner.len().saturating_sub(BATCH));
        batch.reverse();
        // With all slots that they have room for. One behind those that count may lead to a leaf of a dead client: the
        // node grows, as with the next insert, so that what is linked is visited.
        let whole: Vec<Slot> = batch.iter().map(|at| self.shape.mode.whole_slot(at.slot)).collect();
        let mut places = Vec::new();
        for (at, whole) in batch.iter().zip(&whole) {
            let of = whole.node_type();
            let of = of.ok_or_else(|| self.corrupt(at.up.at, "its slot has no type of node"))?;
            places.push((whole.addr(), of, at.prefix.len()));
        }
        let read = self.read_all_at(session, places.into_iter()).await?;
        for ((next, whole), held) in batch.into_iter().zip(whole).zip(read) {
            let mut held = match self.met_child(session, held, whole, &next.prefix, next.up) {
                Err(Fail::Again) if self.shape.mode.moves_children() => {
                    // A node has come in front of it: that one is next.
                    let (slot, up) = self.slot_again(session, next.up).await?;
                    walk.add(Todo { slot, up, ..next });
                    continue;
                }
                held => held?,
            };
            self.shape.mode.grow_over(self, session, &mut held).await?;
            let bytes = self.object_bytes(&next)?;
            // Not before: behind the one in front of it, it is visited then.
            visitor.object("node", next.slot.addr(), bytes);
            if visitor.is_done() {
                return Ok(());
            }
            self.check_gaps(session, &held, report).await?;
            self.enter(&held, next.prefix, next.level, walk, report);
        }
        Ok(())
    }

    fn object_bytes(&self, at: &Todo) -> Result<usize, Fail> {
        let bytes = at.slot.object_bytes();
        Ok(bytes.ok_or_else(|| self.corrupt(at.up.at, "its slot has no type of node"))?)
    }

    /// Visits some leaves.
    async fn visit_leaves(
        self: &Arc<Self>,
        session: &Session,
        walk: &mut TreeWalk,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), Fail> {
        let batch: Vec<Todo> = walk.leaves.drain(..walk.leaves.len().min(BATCH)).collect();
        let reliable = session.reliable();
        let mut ops = session.client().ops();
        for Todo { slot, .. } in &batch {
            ops.read(slot.addr(), reliable.buf(slot.leaf_class().bytes()));
        }
        let mut ops = reliable.post_many(ops).await?;
        for (index, at) in batch.iter().enumerate() {
            let bytes = self.object_bytes(at)?;
            visitor.object("leaf", at.slot.addr(), bytes);
            if visitor.is_done() {
                return Ok(());
            }
            walk.leaves_visited += 1;
            self.visit_leaf(session, at, ops.take_buf(index), visitor, report).await?;
        }
        Ok(())
    }

    /// Checks that slots fill from left to right. Those of one READ may be of different moments: what was unused
    /// in front of a used slot is looked at again.
    async fn check_gaps(
        &self,
        session: &Session,
        held: &ReadNode,
        report: &mut TableReport,
    ) -> Result<(), Fail> {
        let used = |slot: Slot| !slot.is_empty();
        let Some(last) = held.node(self).slots().rposition(used) else { return Ok(()) };
        if held.node(self).slots().take(last).all(used) {
            return Ok(());
        }
        let reliable = session.reliable();
        let again = reliable.read(held.addr, reliable.buf(held.image.len())).await?;
        if again.words()[2..2 + last].iter().any(|word| !used(Slot(*word))) {
            report.problems.push(format!("INV-SMART-1: node {} has a gap in its slots", held.addr));
        }
        Ok(())
    }

    /// Checks a node, and puts its children on the list.
    fn enter(
        &self,
        held: &ReadNode,
        mut prefix: Vec<u8>,
        level: usize,
        walk: &mut TreeWalk,
        report: &mut TableReport,
    ) {
        let node = held.node(self);
        if walk.nodes.len() <= level {
            walk.nodes.resize(level + 1, 0);
        }
        walk.nodes[level] += 1;
        let of = node.node_type().unwrap_or(NodeType::TOP);
        let bytes = of.object_bytes() as u64;
        report.node_bytes += bytes;
        report.inner_bytes += bytes;
        report.reserved_bytes += bytes - of.bytes() as u64;
        report.unfinished_splits += u64::from(node.first_word().is_dead());
        prefix.extend((held.matched..node.dispatch()).filter_map(|at| node.byte_at(at)));
        let mut edges: Vec<Edge> =
            node.slots().filter(|slot| !slot.is_empty()).map(Slot::edge).collect();
        edges.sort_unstable();
        if let Some(twice) = edges.windows(2).find(|pair| pair[0] == pair[1]) {
            let what = format!("INV-SMART-1: node {} has two slots for {:?}", held.addr, twice[0]);
            report.problems.push(what);
        }
        for (index, slot) in node.slots().enumerate().filter(|(_, slot)| slot.has_child()) {
            let up = held.up_of(index, slot);
            let mut prefix = prefix.clone();
            prefix.extend(slot.edge().as_byte());
            walk.add(Todo { slot: slot.thawed(), up, prefix, level: level + 1 });
        }
    }

    async fn visit_leaf(
        self: &Arc<Self>,
        session: &Session,
        at: &Todo,
        image: Buf,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), Fail> {
        let addr = at.slot.addr();
        let image = self.settle_leaf(session, addr, image).await?;
        let leaf = self.leaf(addr, &image);
        report.node_bytes += image.len() as u64;
        report.problems.extend(self.shape.mode.leaf_problem(&self.shape, addr, image.words()[0]));
        let ends = at.slot.edge() == Edge::END;
        let fits =
            leaf.key().starts_with(&at.prefix) && (!ends || leaf.key().len() == at.prefix.len());
        if !fits {
            report.problems.push(format!(
                "INV-SMART-2: the key {:?} of the leaf at {addr} does not begin with its path {:?}",
                leaf.key(),
                at.prefix
            ));
        }
        if !self.spec.takes_key(leaf.key().len()) {
            report.problems.push(format!("the table takes no key like that of the leaf at {addr}"));
        }
        let value_bytes = match leaf.content() {
            NewValue::Absent => return Ok(()),
            NewValue::Inline(value) => value.len(),
            NewValue::Record(word) => {
                let (record, bytes) = self.record_place(word)?;
                visitor.object("value record", record, bytes);
                report.record_bytes += bytes as u64;
                if visitor.is_done() {
                    return Ok(());
                }
                let mut value = Vec::new();
                self.read_record(session, word, &mut value).await?;
                value.len()
            }
        };
        if !self.spec.takes_value(value_bytes) {
            report
                .problems
                .push(format!("the table takes no value like that of the leaf at {addr}"));
        }
        report.keys += 1;
        report.data_bytes += (leaf.key().len() + value_bytes) as u64;
        Ok(())
    }
}
