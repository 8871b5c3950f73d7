//! Verification: visits every object of a table, and checks its invariants.
//!
//! The order is: meta object, tables of hints, then the tree by levels from R, each node's slots in order. So
//! every prefix of it can be walked again. Leaves are read only where their content matters.

use farleaf_fabric::GlobalAddr;
use farleaf_index::{IndexError, TableReport, Visitor};
use farleaf_pool::Session;

use super::DartTree;
use super::descent::{NodeRef, REPAIR};
use super::leaf::{self, LONG, LeafCopy};
use super::meta::{self, META_BYTES};
use super::word::{SlotContent, SlotWord, Step};

/// Objects that are read at once.
const BATCH: usize = 16;

/// A node that was visited, and what is known of the keys below.
#[derive(Clone, Debug)]
struct Visited {
    node: NodeRef,
    /// Steps on the way to it, and where each was taken.
    path: Vec<(usize, u8)>,
}

/// A leaf that was visited.
struct VisitedLeaf {
    word: SlotWord,
    path: Vec<(usize, u8)>,
    /// The position at which its key has to end.
    end: Option<usize>,
}

impl DartTree {
    /// Visits every object. See `Engine::walk`.
    pub(super) async fn walk(
        &self,
        session: &Session,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let io = session.reliable();
        visitor.object("meta object", self.meta, META_BYTES);
        if visitor.is_done() {
            return Ok(());
        }
        meta::check(io, self.meta, self.table).await?;
        let line = meta::read_line(io, self.meta).await?;
        if !self.walk_tables(io, line.tables, visitor, report).await? {
            return Ok(());
        }
        let mut levels = Vec::new();
        let mut leaves = 0;
        let (mut nodes, mut found) = (Vec::new(), Vec::new());
        self.visit(session, line.root, 0, &[], visitor, report, &mut nodes, &mut found).await?;
        self.check_leaves(session, &mut found, visitor, report).await?;
        leaves += report.keys;
        while !nodes.is_empty() && !visitor.is_done() {
            levels.push(nodes.len() as u64);
            let mut below = Vec::new();
            for batch in nodes.chunks(BATCH) {
                if visitor.is_done() {
                    return Ok(());
                }
                let mut ops = session.client().ops();
                for visited in batch {
                    let bytes = self.shape.bytes(visited.node.kind);
                    ops.read(visited.node.addr, io.buf(bytes));
                }
                let read = io.post_many(ops).await;
                let mut ops = read.map_err(|error| self.misled(error))?;
                for (index, visited) in batch.iter().enumerate() {
                    let words = ops.take_buf(index);
                    self.check_node(visited, words.words(), report)?;
                    for word in words.words().iter().map(|word| SlotWord::from_raw(*word)) {
                        let (plen, path) = (visited.node.plen, &visited.path);
                        let base = plen + 1;
                        let mut path = path.clone();
                        if let Some(Step::Byte(byte)) = word.step() {
                            path.push((plen, byte));
                        }
                        self.visit(
                            session, word, base, &path, visitor, report, &mut below, &mut found,
                        )
                        .await?;
                    }
                }
                self.check_leaves(session, &mut found, visitor, report).await?;
            }
            nodes = below;
        }
        leaves = leaves.max(report.keys);
        levels.push(leaves);
        levels.reverse();
        report.nodes_per_level = if leaves == 0 && levels.len() == 1 { Vec::new() } else { levels };
        Ok(())
    }

    /// Visits what `word` leads to.
    #[allow(clippy::too_many_arguments, reason = "two lists to fill, and where the word stands")]
    async fn visit(
        &self,
        session: &Session,
        word: SlotWord,
        base: usize,
        path: &[(usize, u8)],
        visitor: &mut impl Visitor,
        report: &mut TableReport,
        nodes: &mut Vec<Visited>,
        leaves: &mut Vec<VisitedLeaf>,
    ) -> Result<(), IndexError> {
        if visitor.is_done() {
            return Ok(());
        }
        match word.child() {
            SlotContent::Empty | SlotContent::Tomb => {}
            SlotContent::Node(kind, len) => {
                let node = NodeRef { addr: word.addr(), kind, plen: base + len };
                visitor.object("node", node.addr, self.shape.bytes(kind));
                report.node_bytes += self.shape.bytes(kind) as u64;
                report.inner_bytes += self.shape.bytes(kind) as u64;
                nodes.push(Visited { node, path: path.to_vec() });
            }
            SlotContent::Leaf(code) => {
                let bytes = match code {
                    LONG => self.long_bytes(session, word).await?,
                    code => leaf::read_bytes(code),
                };
                visitor.object("leaf", word.addr(), bytes);
                report.keys += 1;
                let end = (word.step() == Some(Step::End)).then(|| base - 1);
                leaves.push(VisitedLeaf { word, path: path.to_vec(), end });
            }
        }
        Ok(())
    }

    async fn long_bytes(&self, session: &Session, word: SlotWord) -> Result<usize, IndexError> {
        let io = session.reliable();
        let head = io.read(word.addr(), io.buf(leaf::read_bytes(LONG))).await;
        let head = head.map_err(|error| self.misled(error))?;
        leaf::long_bytes(head.words(), self.table, self.object_bytes_max).ok_or_else(|| {
            let at: GlobalAddr = word.addr();
            let meta = self.meta;
            IndexError::Corrupt(format!("no long leaf of the table at {meta} is at {at}; {REPAIR}"))
        })
    }

    fn check_node(
        &self,
        visited: &Visited,
        words: &[u64],
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let NodeRef { addr, kind, .. } = visited.node;
        self.check_words(visited.node, words)?;
        if let Some(problem) = self.shape.problem(kind, addr, words) {
            report.problems.push(format!("the {} at {addr}: {problem}", kind.name()));
        }
        // Half sealed, or not replaced yet: the next client that comes there finishes it.
        report.unfinished_splits +=
            u64::from(words.iter().any(|word| SlotWord::from_raw(*word).is_sealed()));
        Ok(())
    }

    /// Checks that keys stand where their bytes lead (`INV-DART-6`).
    async fn check_leaves(
        &self,
        session: &Session,
        leaves: &mut Vec<VisitedLeaf>,
        visitor: &impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        if !visitor.wants_content() {
            leaves.clear();
            return Ok(());
        }
        for batch in leaves.chunks(4 * BATCH) {
            let words: Vec<SlotWord> = batch.iter().map(|leaf| leaf.word).collect();
            let read = self.read_leaves(session.reliable(), &words).await?;
            for (visited, leaf) in batch.iter().zip(read) {
                report.data_bytes += (leaf.key().len() + leaf.value().len()) as u64;
                if let Some(problem) = misplaced(visited, &leaf) {
                    let at = visited.word.addr();
                    report.problems.push(format!("INV-DART-6: the leaf at {at}: {problem}"));
                }
            }
        }
        leaves.clear();
        Ok(())
    }
}

fn misplaced(visited: &VisitedLeaf, leaf: &LeafCopy) -> Option<String> {
    let key = leaf.key();
    if let Some((at, byte)) = visited.path.iter().find(|(at, byte)| key.get(*at) != Some(byte)) {
        return Some(format!("its key {key:?} has another byte than {byte:#x} at position {at}"));
    }
    let end = visited.end?;
    (key.len() != end).then(|| format!("its key {key:?} does not end at position {end}"))
}
