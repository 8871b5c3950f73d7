//! Hooks: what changes of the tree, walks and recoveries do to the skip tables.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::{IndexError, TableReport, Visitor};
use farleaf_pool::{Audit, Cas, Reliable, Session};

use super::entry::{PrefixHash, SkipEntry};
use super::place::NewEntry;
use super::tables::{Descriptor, TablesWord};
use crate::dart::DartTree;
use crate::dart::cache;
use crate::dart::descent::{NodeRef, SlotPlace};
use crate::dart::meta::{self, META_ERA, META_TABLES};
use crate::dart::ops::Below;
use crate::dart::word::{SlotContent, SlotWord};

/// Bytes of a segment that are read at once.
const CHUNK_BYTES: usize = 16 << 10;

impl DartTree {
    /// A CAS has put `put`, which leads to a new node, into `place`. A task adds its entries, and has those of
    /// the node below that lie above the new one lead to it. All keys below it begin as `key`.
    pub(in crate::dart) fn node_linked(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        place: &SlotPlace,
        put: SlotWord,
    ) {
        self.maintenance.node_added();
        if !self.options.est || !self.options.est_maintenance {
            return;
        }
        let below = place.child();
        let Some(node) = (SlotPlace { word: put, ..*place }).child() else { return };
        let Some(line) = self.remembered.at(session.moment()) else { return };
        let Some(tables) = self.tables_at_hand(TablesWord(line.tables)) else { return };
        let Some(table) = tables.probed() else { return };
        let above = place.node.map(|node| node.plen);
        let items: Vec<NewEntry> = table
            .lengths_of(above, node.plen)
            .filter_map(|length| {
                let hash = PrefixHash::of(key.get(..length)?, self.table);
                Some(NewEntry { hash, length, node, instead: below.map(|node| node.addr) })
            })
            .collect();
        if !items.is_empty() {
            self.place_later(session, tables, items);
        }
    }

    /// A CAS has unlinked `node`, whose live words were `live`, and put `put` in its place: takes its entries
    /// out, or moves them. `proven` is a key of which the node's prefix is known to be a part.
    ///
    /// If nobody knows the prefix, as of an empty node that another has left, all entries are searched for the node.
    ///
    /// Cost: 1 READ if there is no table. Else also a probe for each length, the CASes of its entries, and a notice;
    /// without `proven`, a READ of a leaf.
    pub(in crate::dart) async fn node_unlinked(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
        live: &[SlotWord],
        put: Option<(&SlotPlace, SlotWord)>,
        proven: Option<&[u8]>,
    ) -> Result<(), IndexError> {
        let word = TablesWord(io.word(self.meta.plus(META_TABLES)).await?);
        let Some(tables) = self.tables(io, word).await? else { return Ok(()) };
        let lists = tables.tables.iter().flat_map(|table| table.lengths_of(None, node.plen));
        if lists.count() > 0 {
            let known = match proven.and_then(|key| key.get(..node.plen)) {
                Some(prefix) => Some(prefix.to_vec()),
                None => self.prefix_of(io, node, live).await?,
            };
            match known {
                Some(prefix) => {
                    let to = put.and_then(|(place, word)| SlotPlace { word, ..*place }.child());
                    self.take_out(io, &tables, node.addr, &prefix, to).await?;
                }
                None => {
                    self.counters.searched.add(1);
                    self.sift_all(io, &tables, &|entry| entry.addr() == node.addr).await?;
                }
            }
        }
        // Also if no table has its lengths any more: entries of one that was dropped may be remembered.
        cache::notify(io, self.meta, node.addr).await?;
        self.cache.forget_node(node.addr);
        Ok(())
    }

    /// Returns the bytes that all keys below a node share, by a leaf below one of its words.
    async fn prefix_of(
        &self,
        io: Reliable<'_>,
        node: NodeRef,
        live: &[SlotWord],
    ) -> Result<Option<Vec<u8>>, IndexError> {
        if node.plen == 0 {
            return Ok(Some(Vec::new()));
        }
        for word in live {
            let leaf = match word.child() {
                SlotContent::Leaf(_) => *word,
                SlotContent::Node(kind, len) => {
                    let below = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
                    match self.some_leaf(io, below, None, &[], true).await? {
                        Below::Leaf(word) => word,
                        Below::Empty(..) | Below::Stale => continue,
                    }
                }
                _ => continue,
            };
            let leaf = self.read_leaf(io, leaf).await?;
            return Ok(leaf.key().get(..node.plen).map(<[u8]>::to_vec));
        }
        Ok(None)
    }

    /// Visits the descriptor and the segments; whether the walk goes on.
    pub(in crate::dart) async fn walk_tables(
        &self,
        io: Reliable<'_>,
        word: u64,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<bool, IndexError> {
        let word = TablesWord(word);
        let Some((addr, bytes)) = word.place() else { return Ok(true) };
        visitor.object("descriptor", addr, bytes);
        report.node_bytes += bytes as u64;
        if visitor.is_done() {
            return Ok(false);
        }
        let Some(tables) = self.tables(io, word).await? else { return Ok(true) };
        for table in &tables.tables {
            for segment in &table.segments {
                visitor.object("segment", *segment, table.segment_bytes());
                report.node_bytes += table.segment_bytes() as u64;
                if visitor.is_done() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Takes out the entries, valid or tentative, of objects that a recovery is about to free.
    ///
    /// Cost: 1 READ for each 16 KiB of each table.
    pub(in crate::dart) async fn take_out_unmarked(
        &self,
        session: &Session,
        marks: &Audit,
    ) -> Result<(), IndexError> {
        let io = session.maintenance();
        let line = meta::read_line(io, self.meta).await?;
        let Some(tables) = self.tables(io, TablesWord(line.tables)).await? else { return Ok(()) };
        let is_gone = |entry: SkipEntry| marks.is_marked(entry.addr()) == Some(false);
        self.sift_all(io, &tables, &is_gone).await?;
        // Compute servers may remember entries of nodes that are freed without a notice. Twice does no harm.
        let mut ops = io.client().ops();
        ops.faa(self.meta.plus(META_ERA), 1);
        io.post_many(ops).await?;
        Ok(())
    }

    /// Takes out all entries that `is_gone` names. 1 READ for each 16 KiB of each table.
    async fn sift_all(
        &self,
        io: Reliable<'_>,
        tables: &Descriptor,
        is_gone: &impl Fn(SkipEntry) -> bool,
    ) -> Result<(), IndexError> {
        for table in &tables.tables {
            for segment in &table.segments {
                self.sift(io, *segment, table.segment_bytes(), is_gone).await?;
            }
        }
        Ok(())
    }

    async fn sift(
        &self,
        io: Reliable<'_>,
        segment: GlobalAddr,
        bytes: usize,
        is_gone: &impl Fn(SkipEntry) -> bool,
    ) -> Result<(), IndexError> {
        for from in (0..bytes).step_by(CHUNK_BYTES) {
            let at = segment.plus(from as u64);
            loop {
                let words = io.read(at, io.buf(CHUNK_BYTES.min(bytes - from))).await?;
                let is_gone = |word: u64| word != 0 && is_gone(SkipEntry(word));
                let gone = words.words().iter().enumerate().filter(|(_, word)| is_gone(**word));
                let list: Vec<Cas> = gone
                    .map(|(slot, word)| Cas {
                        at: at.plus(8 * slot as u64),
                        expected: *word,
                        new: 0,
                    })
                    .collect();
                if list.is_empty() {
                    break;
                }
                for part in list.chunks(64) {
                    io.cas_many(part).await?;
                }
            }
        }
        Ok(())
    }

    /// The tables, if this compute server knows them.
    fn tables_at_hand(&self, word: TablesWord) -> Option<Arc<Descriptor>> {
        word.place()?;
        self.known(word)
    }
}

/// Entries of the skip tables, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryReport {
    /// Valid entries.
    pub valid: u64,
    /// Tentative entries: a client has not gone on yet, or died.
    pub tentative: u64,
    /// Valid entries that lead to no node of the tree. In a quiet table there is none, unless a switch left
    /// a node unretired.
    pub astray: u64,
    /// Slots.
    pub slots: u64,
}

/// The inner nodes of a walk.
#[derive(Default)]
struct Nodes(std::collections::BTreeSet<GlobalAddr>);

impl Visitor for Nodes {
    fn wants_content(&self) -> bool {
        false
    }

    fn object(&mut self, kind: &'static str, addr: GlobalAddr, _bytes: usize) {
        if kind == "node" {
            self.0.insert(addr);
        }
    }
}

impl DartTree {
    /// Counts the entries of all tables. The caller is pinned, and nobody changes the table.
    pub(in crate::dart) async fn count_entries(
        &self,
        session: &Session,
    ) -> Result<EntryReport, IndexError> {
        let io = session.reliable();
        let (mut nodes, mut report) = (Nodes::default(), EntryReport::default());
        self.walk(session, &mut nodes, &mut TableReport::default()).await?;
        let line = meta::read_line(io, self.meta).await?;
        let Some(tables) = self.tables(io, TablesWord(line.tables)).await? else {
            return Ok(report);
        };
        for table in &tables.tables {
            for segment in &table.segments {
                let words = io.read(*segment, io.buf(table.segment_bytes())).await?;
                report.slots += words.words().len() as u64;
                let entries = words.words().iter().map(|word| SkipEntry(*word));
                for entry in entries.filter(|entry| !entry.is_free()) {
                    if entry.is_tentative() {
                        report.tentative += 1;
                    } else {
                        report.valid += 1;
                        report.astray += u64::from(!nodes.0.contains(&entry.addr()));
                    }
                }
            }
        }
        Ok(report)
    }
}
