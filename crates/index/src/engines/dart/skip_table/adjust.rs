//! Adjustment: chooses the list of prefix lengths by how often leaves are read, and how deep they stand.
//!
//! Each `freq_sample`-th get counts its leaf. An adjustment goes through a sample of the tree and keeps, for each
//! shape of a way (the positions of its nodes), the accesses below. It then chooses lengths one by one: the one
//! that saves most levels, given those chosen before, until that is little or the table would take too many
//! entries. The new table is made as any other, beside the running operations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_pool::{Reliable, Session};

use super::begin_quietly;
use super::lengths::Lengths;
use super::tables::LENGTHS_MAX;
use crate::IndexError;
use crate::engines::dart::DartTree;
use crate::engines::dart::descent::{NodeRef, SlotPlace};
use crate::engines::dart::leaf::{self, LeafCopy};
use crate::engines::dart::meta;
use crate::engines::dart::word::{SlotContent, SlotWord};

/// Subtrees of the second level of which one is sampled, in a large tree.
const SAMPLE: u64 = 64;
/// Leaves that an adjustment reads at most, and at once.
const LEAVES_MAX: usize = 1 << 20;
const BATCH: usize = 64;
/// Nodes above which a tree is sampled.
const SMALL_TREE: usize = 512;
/// Share of all accesses' levels that a further length has to save.
const LEAST_GAIN: f64 = 0.02;
/// Answers between two looks at the clock.
const LOOK_EVERY: u64 = 4_096;

/// The time of the next adjustment.
#[derive(Debug, Default)]
pub(in crate::engines::dart) struct AdjustClock {
    is_running: AtomicBool,
    /// Answers and levels at the last look.
    before: (AtomicU64, AtomicU64),
    /// Levels of an answer, in thousandths, after the last adjustment; 0 before the first look.
    depth: AtomicU64,
    last_ns: AtomicU64,
}

impl AdjustClock {
    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::SeqCst)
    }
}

/// A sample of the tree.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Accesses below ways, by the positions of their nodes.
    ways: BTreeMap<Vec<u16>, u64>,
    /// Express nodes for each length.
    express: BTreeMap<u16, u64>,
    leaves: u64,
}

impl Sampled {
    /// Chooses at most so many entries' worth of lengths, ascending.
    pub(super) fn choose(&self, entries_max: u64) -> Vec<u16> {
        let total: u64 = self.ways.iter().map(|(way, weight)| way.len() as u64 * weight).sum();
        let (mut chosen, mut entries): (Vec<u16>, u64) = (Vec::new(), 0);
        // Nodes that a lookup reads from its start, behind a probe.
        let levels =
            |way: &[u16], length: u16| way.iter().filter(|plen| **plen >= length).count() as u64;
        while chosen.len() < LENGTHS_MAX {
            let gain = |length: u16| -> u64 {
                let saved = self.ways.iter().map(|(way, weight)| {
                    let with = |length: &u16| Some(levels(way, *length)).filter(|left| *left > 0);
                    let now = chosen.iter().filter_map(with).min().unwrap_or(way.len() as u64);
                    let then = with(&length).unwrap_or(now);
                    now.saturating_sub(then) * weight
                });
                saved.sum()
            };
            let room = |length: &u16, count: &u64| {
                !chosen.contains(length) && entries + count <= entries_max.max(64)
            };
            let open = self.express.iter().filter(|(length, count)| room(length, count));
            // Of equal gains, the shorter list of entries.
            let best = open
                .map(|(length, count)| (gain(*length), std::cmp::Reverse(*count), *length))
                .max();
            let Some((saved, count, length)) = best else { break };
            if saved == 0 || (saved as f64) < total as f64 * LEAST_GAIN {
                break;
            }
            chosen.push(length);
            entries += count.0;
        }
        chosen.sort_unstable();
        chosen
    }
}

/// A subtree that the walk has come to: the positions of the nodes above.
struct WalkedSubtree {
    node: NodeRef,
    way: Vec<u16>,
}

impl DartTree {
    /// Notes an answered operation; has a task adjust the list of lengths if that is due.
    pub(super) fn answered(self: &Arc<Self>, session: &Session, levels: usize) {
        self.counters.levels.add(levels as u64);
        let clock = &self.adjust_clock;
        self.counters.answers.add(1);
        let (seconds, every) = (self.options.adjust_s, u64::from(self.options.adjust_every));
        let look_every = if every > 0 { every } else { LOOK_EVERY };
        if (seconds == 0 && every == 0)
            || !self.options.est
            || !self.options.est_maintenance
            || !session.endpoint().random().is_multiple_of(look_every)
        {
            return;
        }
        let answers = self.counters.answers.value();
        let now_ns = session.endpoint().now_ns();
        let levels = self.counters.levels.value();
        let (answers_before, levels_before) = &clock.before;
        let some = answers.saturating_sub(answers_before.swap(answers, Ordering::Relaxed)).max(1);
        let depth =
            levels.saturating_sub(levels_before.swap(levels, Ordering::Relaxed)) * 1_000 / some;
        let known = clock.depth.load(Ordering::Relaxed);
        let is_time = now_ns.saturating_sub(clock.last_ns.load(Ordering::Relaxed))
            >= u64::from(seconds) * 1_000_000_000;
        let (is_time, has_drifted) =
            (every > 0 || is_time, every > 0 || depth.abs_diff(known) * 10 > known);
        if !is_time || !has_drifted || clock.is_running.swap(true, Ordering::SeqCst) {
            return;
        }
        clock.last_ns.store(now_ns, Ordering::Relaxed);
        clock.depth.store(depth, Ordering::Relaxed);
        let tree = Arc::clone(self);
        session.spawn(async move |session| {
            // A failed adjustment is tried again when the next one is due.
            let _ = tree.adjust(&session).await;
            tree.adjust_clock.is_running.store(false, Ordering::SeqCst);
        });
    }

    /// Chooses the list of lengths anew, and has the table replaced if it is another.
    pub(in crate::engines::dart) async fn adjust(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<Option<Lengths>, IndexError> {
        let began_ns = session.endpoint().now_ns();
        let sampled = self.sample(session).await?;
        let chosen = sampled.choose(sampled.leaves / 6);
        self.counters.adjust_rounds.add(1);
        self.counters.adjust_us.add((session.endpoint().now_ns() - began_ns) / 1_000);
        let Some(lengths) = Lengths::new(&chosen) else { return Ok(None) };
        self.maintenance_step(session, Some(&lengths)).await?;
        Ok(Some(lengths))
    }

    /// Goes through the tree, or a sample of its subtrees, each under a pin of its own.
    async fn sample(&self, session: &Session) -> Result<Sampled, IndexError> {
        let mut sampled = Sampled::default();
        let tops = {
            let _pin = begin_quietly(session).await?;
            self.tops(session.maintenance(), &mut sampled).await?.len()
        };
        let takes_all = tops <= SMALL_TREE;
        for number in 0..tops {
            if !takes_all && !session.endpoint().random().is_multiple_of(SAMPLE) {
                continue;
            }
            if sampled.leaves as usize >= LEAVES_MAX {
                break;
            }
            let _pin = begin_quietly(session).await?;
            let io = session.maintenance();
            // A fresh way, as the tree may have changed.
            let tops = self.tops(io, &mut Sampled::default()).await?;
            let Some(top) = tops.into_iter().nth(number) else { break };
            self.sample_below(io, top, &mut sampled).await?;
        }
        Ok(sampled)
    }

    /// The nodes of the second level; what is above is noted.
    async fn tops(
        &self,
        io: Reliable<'_>,
        sampled: &mut Sampled,
    ) -> Result<Vec<WalkedSubtree>, IndexError> {
        let line = meta::read_line(io, self.meta).await?;
        let root: SlotPlace = self.root_place(line.root);
        let Some(node) = root.child() else { return Ok(Vec::new()) };
        let mut tops = Vec::new();
        let below = self.expand_one(io, WalkedSubtree { node, way: Vec::new() }, sampled).await?;
        if below.is_empty() {
            return Ok(vec![WalkedSubtree { node, way: Vec::new() }]);
        }
        tops.extend(below);
        Ok(tops)
    }

    async fn sample_below(
        &self,
        io: Reliable<'_>,
        top: WalkedSubtree,
        sampled: &mut Sampled,
    ) -> Result<(), IndexError> {
        let mut open = VecDeque::from([top]);
        while let Some(below) = open.pop_front() {
            open.extend(self.expand_one(io, below, sampled).await?);
            if sampled.leaves as usize >= LEAVES_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Notes a node and its leaves; the nodes below it.
    async fn expand_one(
        &self,
        io: Reliable<'_>,
        below: WalkedSubtree,
        sampled: &mut Sampled,
    ) -> Result<Vec<WalkedSubtree>, IndexError> {
        let WalkedSubtree { node, mut way } = below;
        let above = way.last().copied();
        way.push(node.plen as u16);
        for length in above.map_or(1, |above| above + 1)..=node.plen as u16 {
            *sampled.express.entry(length).or_default() += 1;
        }
        let words = self.read_node(io, node).await?;
        let words = words.words().iter().map(|word| SlotWord::from_raw(*word));
        let (mut leaves, mut nodes) = (Vec::new(), Vec::new());
        for word in words {
            match word.child() {
                SlotContent::Leaf(_) => leaves.push(word),
                SlotContent::Node(kind, len) => {
                    let node = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
                    nodes.push(WalkedSubtree { node, way: way.clone() });
                }
                _ => {}
            }
        }
        for part in leaves.chunks(BATCH) {
            let mut ops = io.client().ops();
            for word in part {
                ops.read(word.addr(), io.buf(8));
            }
            let ops = io.post_many(ops).await?;
            let counted = (0..part.len()).map(|index| 1 + leaf::freq_of(ops.buf(index).words()[0]));
            *sampled.ways.entry(way.clone()).or_default() += counted.sum::<u64>();
            sampled.leaves += part.len() as u64;
        }
        Ok(nodes)
    }

    /// READs a leaf; now and then counts that, in the same list.
    pub(in crate::engines::dart) async fn read_counted_leaf(
        &self,
        session: &Session,
        io: Reliable<'_>,
        word: SlotWord,
    ) -> Result<LeafCopy, IndexError> {
        let every = u64::from(self.options.freq_sample);
        let SlotContent::Leaf(code) = word.child() else { return self.read_leaf(io, word).await };
        if every == 0 || !self.options.est || !session.endpoint().random().is_multiple_of(every) {
            return self.read_leaf(io, word).await;
        }
        let mut ops = io.client().ops();
        let read = ops.read(word.addr(), io.buf(leaf::read_bytes(code)));
        ops.faa(word.addr(), 1);
        let guard = Counting { session, addr: word.addr(), is_posted: true };
        let posted = io.post_many(ops).await;
        let mut ops = posted?;
        guard.came_back();
        self.whole_leaf(io, word, ops.take_buf(read)).await
    }
}

/// An FAA that has been posted: it must land before the pin is dropped, or it would change another object.
struct Counting<'a> {
    session: &'a Session,
    addr: GlobalAddr,
    is_posted: bool,
}

impl Counting<'_> {
    fn came_back(mut self) {
        self.is_posted = false;
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if !self.is_posted || !self.session.endpoint().is_lossy() {
            return;
        }
        let (pin, server) = (self.session.hold(), self.addr.server());
        self.session.spawn(async move |session| {
            // An error is final: this compute server has been cut off.
            let _ = session.maintenance().settle(server).await;
            drop(pin);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_that_saves_most_is_chosen_first() {
        // Random keys: every way has nodes at 0, 1, 2 and 3.
        let mut sampled = Sampled { leaves: 6_000, ..Sampled::default() };
        sampled.ways.insert(vec![0, 1, 2, 3], 6_000);
        sampled.express = BTreeMap::from([(1, 10), (2, 100), (3, 900)]);
        assert_eq!(sampled.choose(1_000), [3]);
        assert_eq!(sampled.choose(500), [2], "900 entries are too many");
        // Some ways are shorter: they keep a length of their own.
        sampled.ways.insert(vec![0, 1, 2], 3_000);
        assert_eq!(sampled.choose(2_000), [2, 3]);
        assert_eq!(Sampled::default().choose(100), Vec::<u16>::new());
    }

    #[test]
    fn hot_ways_decide() {
        let mut sampled = Sampled { leaves: 1_000, ..Sampled::default() };
        sampled.ways.insert(vec![0, 9, 20], 10);
        sampled.ways.insert(vec![0, 1, 2, 3, 4, 5], 10_000);
        sampled.express = (1..=20).map(|length| (length, 60)).collect();
        assert_eq!(sampled.choose(64).first(), Some(&5), "one length has room");
    }
}
