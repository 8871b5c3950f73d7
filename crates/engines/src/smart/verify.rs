//! Verification: walks the whole remote structure and checks its invariants.

use std::collections::VecDeque;
use std::sync::Arc;

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::{IndexError, TableReport, Visitor};
use farleaf_pool::Session;

use super::descent::{ReadNode, Up};
use super::ladder::{LOCKS_BYTES, lock_table_at};
use super::layout::{Edge, META_BYTES, META_LOCKS, NodeType, Slot};
use super::leaf::NewValue;
use super::tree::{Fail, Tree};

/// Leaves that are read at once.
const BATCH: usize = 32;

/// A child that is still to be visited.
struct Todo {
    slot: Slot,
    up: Up,
    prefix: Vec<u8>,
    level: usize,
}

impl Tree {
    /// Visits the meta object and the lock table, then the nodes and leaves from the root down, children in the order of their slots,
    /// a leaf's record after it. Takes over leaves that dead clients were writing.
    ///
    /// Others may replace nodes meanwhile: it visits each object that was linked when its parent was read.
    ///
    /// Cost: 1 READ for each node, leaf and record; up to 32 leaves of a node at once.
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
        // Nodes by their distance from the root, then the leaves.
        let (mut nodes, mut leaves) = (Vec::new(), 0);
        let (mut todo, mut ahead) = (Vec::new(), VecDeque::new());
        self.check_gaps(session, &root, report).await?;
        self.enter(&root, Vec::new(), 0, &mut nodes, &mut todo, report);
        while let Some(next) = todo.pop() {
            if visitor.is_done() {
                break;
            }
            let Some(bytes) = next.slot.object_bytes() else {
                return Err(self.corrupt(next.up.at, "its slot has no type of node").into());
            };
            let addr = next.slot.addr();
            if next.slot.is_leaf() {
                visitor.object("leaf", addr, bytes);
                if visitor.is_done() {
                    break;
                }
                leaves += 1;
                let image = self.read_ahead(session, &next, &todo, &mut ahead).await?;
                self.visit_leaf(session, &next, image, visitor, report).await?;
            } else {
                let held = match self.read_all_slots(session, &next).await {
                    Err(Fail::Again) if self.shape.mode.moves_children() => {
                        // A node has come in front of it: that one is next.
                        let (slot, up) = self.slot_again(session, next.up).await?;
                        todo.push(Todo { slot, up, ..next });
                        continue;
                    }
                    held => held?,
                };
                // Not before: behind the one in front of it, it is visited then.
                visitor.object("node", addr, bytes);
                if visitor.is_done() {
                    break;
                }
                self.check_gaps(session, &held, report).await?;
                self.enter(&held, next.prefix, next.level, &mut nodes, &mut todo, report);
            }
        }
        nodes.push(leaves);
        nodes.reverse();
        report.nodes_per_level = nodes;
        Ok(())
    }

    /// READs a node with all slots that it has room for. One behind those that count may lead to a leaf of a dead
    /// client: the node grows, as with the next insert, so that what is linked is visited.
    async fn read_all_slots(&self, session: &Session, at: &Todo) -> Result<ReadNode, Fail> {
        let whole = self.shape.mode.whole_slot(at.slot);
        let mut held =
            self.read_child(session, whole, (&at.prefix, at.prefix.len()), at.up).await?;
        self.shape.mode.grow_over(self, session, &mut held).await?;
        Ok(held)
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
        nodes: &mut Vec<u64>,
        todo: &mut Vec<Todo>,
        report: &mut TableReport,
    ) {
        let node = held.node(self);
        if nodes.len() <= level {
            nodes.push(0);
        }
        nodes[level] += 1;
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
        let slots = node.slots().enumerate().rev().filter(|(_, slot)| slot.has_child());
        todo.extend(slots.map(|(index, slot)| {
            let up = held.up_of(index, slot);
            let mut prefix = prefix.clone();
            prefix.extend(slot.edge().as_byte());
            Todo { slot: slot.thawed(), up, prefix, level: level + 1 }
        }));
    }

    /// READs a leaf, and with it those that follow at once; these wait in `ahead` for their turn.
    async fn read_ahead(
        &self,
        session: &Session,
        at: &Todo,
        todo: &[Todo],
        ahead: &mut VecDeque<(GlobalAddr, Buf)>,
    ) -> Result<Buf, Fail> {
        if let Some((addr, image)) = ahead.pop_front()
            && addr == at.slot.addr()
        {
            return Ok(image);
        }
        let next = todo.iter().rev().take_while(|next| next.slot.is_leaf()).take(BATCH - 1);
        let slots: Vec<Slot> = [at].into_iter().chain(next).map(|todo| todo.slot).collect();
        let reliable = session.reliable();
        let mut ops = session.client().ops();
        for slot in &slots {
            ops.read(slot.addr(), reliable.buf(slot.leaf_class().bytes()));
        }
        let mut ops = reliable.post_many(ops).await?;
        let images = slots.iter().enumerate().skip(1);
        *ahead = images.map(|(index, slot)| (slot.addr(), ops.take_buf(index))).collect();
        Ok(ops.take_buf(0))
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
