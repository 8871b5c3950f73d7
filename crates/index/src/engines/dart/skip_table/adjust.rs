//! Adjustment: chooses the list of prefix lengths by how often leaves are read, and how deep they stand.
//!
//! Each `freq_sample`-th get counts its leaf. An adjustment goes through a sample of the tree, level by level, and keeps,
//! for each shape of a way (the positions of its nodes), the accesses below. Of a level with many nodes it takes each
//! n-th, which then stands for n. It then chooses lengths one by one: the one that saves most levels, given those
//! chosen before, until that is little or the table would take too many entries. The new table is made as any other,
//! beside the running operations.

use std::collections::BTreeMap;
use std::rc::Rc;
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

/// Nodes of a level that a sample has at most, and leaves.
const NODES_MAX: usize = 1_024;
const LEAVES_MAX: usize = 2 * NODES_MAX;
/// Of these, so many are read at once.
const BATCH: usize = 64;
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

/// The whole tree, as a sample of it tells.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Accesses below ways, by the positions of their nodes.
    ways: BTreeMap<Rc<[u16]>, u64>,
    /// Express nodes for each length.
    express: BTreeMap<u16, u64>,
    leaves: u64,
}

/// Keeps each n-th item, so that at most `most` are left; returns n.
fn thin<T>(items: &mut Vec<T>, most: usize, random: u64) -> u64 {
    let every = items.len().div_ceil(most).max(1);
    let all = std::mem::take(items);
    *items = all.into_iter().skip(random as usize % every).step_by(every).collect();
    every as u64
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

/// A node that the walk has come to, or a leaf, and the positions of the nodes above.
struct Sample<T> {
    what: T,
    way: Rc<[u16]>,
}

/// The nodes and leaves of one level of a sample.
#[derive(Default)]
struct SampleLevel {
    nodes: Vec<Sample<NodeRef>>,
    leaves: Vec<Sample<SlotWord>>,
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

    /// Goes through a sample of the tree, under one pin.
    ///
    /// Cost: for each level of the tree at most [`NODES_MAX`] READs of nodes and [`LEAVES_MAX`] of the first words of
    /// leaves, [`BATCH`] in a round trip.
    async fn sample(&self, session: &Session) -> Result<Sampled, IndexError> {
        let _pin = begin_quietly(session).await?;
        let io = session.maintenance();
        let random = || session.endpoint().random();
        let (mut sampled, mut stands_for) = (Sampled::default(), 1);
        let line = meta::read_line(io, self.meta).await?;
        let root: SlotPlace = self.root_place(line.root);
        let root = root.child().map(|what| Sample { what, way: Rc::default() });
        let mut nodes: Vec<Sample<NodeRef>> = root.into_iter().collect();
        while !nodes.is_empty() {
            stands_for *= thin(&mut nodes, NODES_MAX, random());
            let mut below = SampleLevel::default();
            for part in nodes.chunks(BATCH) {
                self.sample_nodes(io, part, stands_for, &mut sampled, &mut below).await?;
            }
            let leaf_stands_for = stands_for * thin(&mut below.leaves, LEAVES_MAX, random());
            for part in below.leaves.chunks(BATCH) {
                let mut ops = io.client().ops();
                for leaf in part {
                    ops.read(leaf.what.addr(), io.buf(8));
                }
                let ops = io.post_many(ops).await?;
                for (index, leaf) in part.iter().enumerate() {
                    let counted = 1 + leaf::freq_of(ops.buf(index).words()[0]);
                    let way = sampled.ways.entry(Rc::clone(&leaf.way)).or_default();
                    *way += counted * leaf_stands_for;
                    sampled.leaves += leaf_stands_for;
                }
            }
            nodes = below.nodes;
        }
        Ok(sampled)
    }

    /// Notes nodes of one level, each of which stands for so many; adds the nodes and leaves below them.
    async fn sample_nodes(
        &self,
        io: Reliable<'_>,
        nodes: &[Sample<NodeRef>],
        stands_for: u64,
        sampled: &mut Sampled,
        below: &mut SampleLevel,
    ) -> Result<(), IndexError> {
        let mut ops = io.client().ops();
        for node in nodes {
            ops.read(node.what.addr, io.buf(self.shape.bytes(node.what.kind)));
        }
        let ops = io.post_many(ops).await.map_err(|error| self.misled(error))?;
        for (index, Sample { what: node, way }) in nodes.iter().enumerate() {
            self.check_words(*node, ops.buf(index).words())?;
            let above = way.last().copied();
            let way: Rc<[u16]> = way.iter().copied().chain([node.plen as u16]).collect();
            for length in above.map_or(1, |above| above + 1)..=node.plen as u16 {
                *sampled.express.entry(length).or_default() += stands_for;
            }
            for word in ops.buf(index).words().iter().map(|word| SlotWord::from_raw(*word)) {
                let way = Rc::clone(&way);
                match word.child() {
                    SlotContent::Leaf(_) => below.leaves.push(Sample { what: word, way }),
                    SlotContent::Node(kind, len) => {
                        let what = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
                        below.nodes.push(Sample { what, way });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
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
        sampled.ways.insert([0, 1, 2, 3].into(), 6_000);
        sampled.express = BTreeMap::from([(1, 10), (2, 100), (3, 900)]);
        assert_eq!(sampled.choose(1_000), [3]);
        assert_eq!(sampled.choose(500), [2], "900 entries are too many");
        // Some ways are shorter: they keep a length of their own.
        sampled.ways.insert([0, 1, 2].into(), 3_000);
        assert_eq!(sampled.choose(2_000), [2, 3]);
        assert_eq!(Sampled::default().choose(100), Vec::<u16>::new());
    }

    #[test]
    fn what_is_left_stands_for_all() {
        for (count, most, every) in [(0, 4, 1), (4, 4, 1), (5, 4, 2), (1_000, 64, 16)] {
            for random in 0..20 {
                let mut items: Vec<usize> = (0..count).collect();
                assert_eq!(thin(&mut items, most, random), every as u64);
                assert!(items.len() <= most && items.len() * every + every > count, "{items:?}");
                assert!(items.windows(2).all(|pair| pair[1] - pair[0] == every), "{items:?}");
            }
        }
    }

    #[test]
    fn hot_ways_decide() {
        let mut sampled = Sampled { leaves: 1_000, ..Sampled::default() };
        sampled.ways.insert([0, 9, 20].into(), 10);
        sampled.ways.insert([0, 1, 2, 3, 4, 5].into(), 10_000);
        sampled.express = (1..=20).map(|length| (length, 60)).collect();
        assert_eq!(sampled.choose(64).first(), Some(&5), "one length has room");
    }
}
