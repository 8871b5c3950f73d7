//! Adjustment: chooses the list of prefix lengths by how often leaves are read, and how deep they stand.
//!
//! Each `freq_sample`-th get counts its leaf. An adjustment goes through a sample of the tree, level by level, and
//! counts the accesses to leaves, by the length of the key, the position of the last node on the way, and those of its
//! nodes. Of a level with many nodes it takes each n-th, which then stands for n. It then chooses lengths one by one:
//! the one that saves most round trips beside those chosen before, until that is little or the table would take too many
//! entries. The new table is made as any other, beside the running operations.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

use super::begin_quietly;
use super::lengths::{Lengths, Prefixes};
use super::tables::{LENGTHS_MAX, TablesWord};
use crate::dart::DartTree;
use crate::dart::descent::{NodeRef, SlotPlace};
use crate::dart::leaf::{self, LeafCopy};
use crate::dart::meta;
use crate::dart::word::{SlotContent, SlotWord};

/// Nodes of a level that a sample has at most, and leaves.
const NODES_MAX: usize = 1_024;
const LEAVES_MAX: usize = 2 * NODES_MAX;
/// Of these, so many are read at once.
const BATCH: usize = 64;
/// Leaves for each entry of a table, at least.
const ENTRY_LEAVES: u64 = 6;
/// Kinds of ways, and lengths, that a choice goes by, so that it takes a tenth of a second at most.
const WAYS_MAX: usize = 512;
const CANDIDATES_MAX: usize = 48;
/// Accesses of which one is an insert that grows a node, for the choice.
const GROW_EVERY: u64 = 32;
/// Share of the round trips with the lengths chosen before that a further length has to save.
const LEAST_GAIN: f64 = 0.01;
/// Share of the round trips with the present list that another one has to save.
const LEAST_CHANGE: f64 = 0.05;
/// Answers between two looks at the clock.
const LOOK_EVERY: u64 = 4_096;

/// The time of the next adjustment.
#[derive(Debug, Default)]
pub(in crate::dart) struct AdjustClock {
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

/// A kind of ways: the position of their last node, and the bytes of the keys at their ends.
type Ways = (u16, u16);
/// Accesses by such ways that come by a node at each position; all come by the last.
type WayNodes = BTreeMap<u16, u64>;

/// The whole tree, as a sample of it tells.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    ways: BTreeMap<Ways, WayNodes>,
    /// Express nodes for each length.
    express: BTreeMap<u16, u64>,
    leaves: u64,
    /// Lengths of the present table.
    present: Vec<u16>,
}

/// Keeps each n-th item, so that at most `most` are left; returns n.
fn thin<T>(items: &mut Vec<T>, most: usize, random: u64) -> u64 {
    let every = items.len().div_ceil(most).max(1);
    let all = std::mem::take(items);
    *items = all.into_iter().skip(random as usize % every).step_by(every).collect();
    every as u64
}

impl Sampled {
    /// Accesses to a leaf by a way, which lists the positions of its nodes.
    fn add(&mut self, path: &[u16], key_bytes: u16, accesses: u64) {
        let Some(last) = path.last() else { return };
        let nodes = self.ways.entry((*last, key_bytes)).or_default();
        path.iter().for_each(|plen| *nodes.entry(*plen).or_default() += accesses);
    }

    /// Round trips of all accesses above their leaves with such a list, if no entry is remembered: probes, by the rule
    /// of [`super::HitRates`], and nodes. Of [`GROW_EVERY`] accesses one grows its last node, and looks for the node
    /// above from the next shorter length.
    fn round_trips(&self, lengths: &[u16]) -> u64 {
        let accesses = |(last, _): &Ways, nodes: &WayNodes| nodes.get(last).copied().unwrap_or(0);
        let nodes_from =
            |nodes: &WayNodes, from: u16| nodes.range(from..).map(|(_, count)| count).sum::<u64>();
        // Ways into which no longer length has led, and those into which the last one has.
        let mut left: Vec<(&Ways, &WayNodes)> = self.ways.iter().collect();
        let mut led: Vec<&WayNodes> = Vec::new();
        let (mut sum, mut above) = (0, 0);
        for length in lengths.iter().rev() {
            let leads = |(last, key_bytes): &Ways| last >= length && key_bytes > length;
            let (mut tries, mut hits) = (0, 0);
            for (path, nodes) in left.iter().filter(|((_, key_bytes), _)| key_bytes > length) {
                let some = accesses(path, nodes);
                tries += some;
                hits += if leads(path) { some } else { 0 };
            }
            if 2 * hits < tries {
                continue;
            }
            above += led.drain(..).map(|nodes| nodes_from(nodes, *length)).sum::<u64>();
            let (hit, missed) = left.into_iter().partition(|(path, _)| leads(path));
            left = missed;
            led.extend(hit.into_iter().map(|(_, nodes): (&Ways, _)| nodes));
            sum += tries + led.iter().map(|nodes| nodes_from(nodes, *length)).sum::<u64>();
        }
        above += led.into_iter().map(|nodes| nodes_from(nodes, 0)).sum::<u64>();
        sum += left.into_iter().map(|(_, nodes)| nodes_from(nodes, 0)).sum::<u64>();
        sum + above / GROW_EVERY
    }

    /// The lengths to choose from, with their entries: positions of the nodes with most accesses.
    fn candidates(&self) -> Vec<(u16, u64)> {
        let mut accesses: BTreeMap<u16, u64> = BTreeMap::new();
        for (plen, count) in self.ways.values().flatten() {
            *accesses.entry(*plen).or_default() += count;
        }
        let mut lengths: Vec<(u64, u16)> =
            accesses.into_iter().map(|(plen, n)| (n, plen)).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let entries = |length: u16| self.express.get(&length).map(|count| (length, *count));
        lengths.into_iter().filter_map(|(_, plen)| entries(plen)).take(CANDIDATES_MAX).collect()
    }

    /// Chooses at most so many entries' worth of lengths, ascending.
    pub(super) fn choose(&self, entries_max: u64) -> Vec<u16> {
        let (mut chosen, mut now, mut entries) = (Vec::new(), self.round_trips(&[]), 0);
        let with = |chosen: &[u16], length: u16| -> Vec<u16> {
            let at = chosen.partition_point(|known| *known < length);
            [&chosen[..at], &[length], &chosen[at..]].concat()
        };
        let candidates = self.candidates();
        while chosen.len() < LENGTHS_MAX {
            let room = |length: &u16, count: &u64| {
                !chosen.contains(length) && entries + count <= entries_max.max(64)
            };
            let open = candidates.iter().filter(|(length, count)| room(length, count));
            // Of equals, the one with fewer entries, and that leads deepest.
            let best = open
                .map(|(length, count)| {
                    (self.round_trips(&with(&chosen, *length)), *count, Reverse(*length))
                })
                .min();
            let Some((then, count, Reverse(length))) = best else { break };
            let saved = now.saturating_sub(then);
            if saved == 0 || (saved as f64) < now as f64 * LEAST_GAIN {
                break;
            }
            chosen = with(&chosen, length);
            (now, entries) = (then, entries + count);
        }
        chosen
    }

    /// Chooses as [`Sampled::choose`] does, or the present list if that is nearly as good.
    fn choose_or_stay(&self) -> Vec<u16> {
        let chosen = self.choose(self.leaves / ENTRY_LEAVES);
        let (now, then) = (self.round_trips(&self.present), self.round_trips(&chosen));
        let is_better = (now.saturating_sub(then) as f64) >= now as f64 * LEAST_CHANGE;
        if is_better || self.present.is_empty() { chosen } else { self.present.clone() }
    }
}

/// A node that the walk has come to, or a leaf, and the positions of the nodes above.
struct Sample<T> {
    what: T,
    path: Rc<[u16]>,
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

    /// Chooses the list of lengths anew, and has the table replaced if another is better; the list from then on.
    pub(in crate::dart) async fn adjust(
        self: &Arc<Self>,
        session: &Session,
    ) -> Result<Option<Lengths>, IndexError> {
        let began_ns = session.endpoint().now_ns();
        let chosen = self.sample(session).await?.choose_or_stay();
        self.counters.adjust_rounds.add(1);
        self.counters.adjust_us.add((session.endpoint().now_ns() - began_ns) / 1_000);
        let Some(lengths) = Lengths::new(&chosen) else { return Ok(None) };
        self.maintenance_step(session, Some(&lengths)).await?;
        Ok(Some(lengths))
    }

    /// Chooses the lengths of the first table after a bulk load; `None` leaves the default ones.
    pub(super) async fn lengths_loaded(&self, session: &Session) -> Option<Lengths> {
        if self.options.prefixes != Prefixes::Auto {
            return None;
        }
        // Any list is right, so a failed READ need not fail the load.
        Lengths::new(&self.sample(session).await.ok()?.choose_or_stay())
    }

    /// Goes through a sample of the tree, under one pin.
    ///
    /// Cost: for each level of the tree at most [`NODES_MAX`] READs of nodes and [`LEAVES_MAX`] of the heads of leaves,
    /// [`BATCH`] in a round trip; 1 READ of the directory if it is not known.
    async fn sample(&self, session: &Session) -> Result<Sampled, IndexError> {
        let _pin = begin_quietly(session).await?;
        let io = session.maintenance();
        let random = || session.endpoint().random();
        let (mut sampled, mut stands_for) = (Sampled::default(), 1);
        let line = meta::read_line(io, self.meta).await?;
        let tables = self.tables(io, TablesWord(line.tables)).await?;
        let present = tables.as_ref().and_then(|tables| tables.probed());
        sampled.present.extend(present.iter().flat_map(|table| &table.lengths));
        let root: SlotPlace = self.root_place(line.root);
        let root = root.child().map(|what| Sample { what, path: Rc::default() });
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
                    ops.read(leaf.what.addr(), io.buf(leaf::HEAD_BYTES));
                }
                let ops = io.post_many(ops).await?;
                for (index, leaf) in part.iter().enumerate() {
                    let (key_bytes, counted) = leaf::accesses_of(ops.buf(index).words());
                    sampled.add(&leaf.path, key_bytes, counted * leaf_stands_for);
                    sampled.leaves += leaf_stands_for;
                }
            }
            nodes = below.nodes;
        }
        let mut ways: Vec<_> = std::mem::take(&mut sampled.ways).into_iter().collect();
        thin(&mut ways, WAYS_MAX, random());
        sampled.ways = ways.into_iter().collect();
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
        for (index, Sample { what: node, path }) in nodes.iter().enumerate() {
            self.check_words(*node, ops.buf(index).words())?;
            let above = path.last().copied();
            let path: Rc<[u16]> = path.iter().copied().chain([node.plen as u16]).collect();
            for length in above.map_or(1, |above| above + 1)..=node.plen as u16 {
                *sampled.express.entry(length).or_default() += stands_for;
            }
            for word in ops.buf(index).words().iter().map(|word| SlotWord::from_raw(*word)) {
                let path = Rc::clone(&path);
                match word.child() {
                    SlotContent::Leaf(_) => below.leaves.push(Sample { what: word, path }),
                    SlotContent::Node(kind, len) => {
                        let what = NodeRef { addr: word.addr(), kind, plen: node.plen + 1 + len };
                        below.nodes.push(Sample { what, path });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// READs a leaf; now and then counts that, in the same list.
    pub(in crate::dart) async fn read_counted_leaf(
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
        sampled.add(&[0, 1, 2, 3], 8, 6_000);
        sampled.express = BTreeMap::from([(1, 10), (2, 100), (3, 900)]);
        assert_eq!(sampled.choose(1_000), [2, 3], "2 leads to the nodes above");
        assert_eq!(sampled.choose(999), [1, 3]);
        assert_eq!(sampled.choose(100), [2], "900 entries are too many");
        // Some ways are shorter: they keep a length of their own.
        sampled.add(&[0, 1, 2], 8, 3_000);
        assert_eq!(sampled.choose(2_000), [2, 3]);
        assert_eq!(Sampled::default().choose(100), Vec::<u16>::new());
    }

    /// Long keys with many nodes: as many ways as a choice goes by take it 0.1 s.
    #[test]
    fn a_choice_goes_by_few_of_many_lengths() {
        let mut sampled = Sampled { leaves: 1 << 20, ..Sampled::default() };
        for number in 0..WAYS_MAX as u16 {
            let path: Vec<u16> =
                (0..20 + number % 60).map(|node| node * (1 + number % 7)).collect();
            sampled.add(&path, path[path.len() - 1] + 1 + number % 50, 1 + u64::from(number));
        }
        sampled.express = (1..=600).map(|length| (length, 100)).collect();
        assert_eq!(sampled.candidates().len(), CANDIDATES_MAX);
        let chosen = sampled.choose(1 << 16);
        assert!(sampled.round_trips(&chosen) < sampled.round_trips(&[]) / 2, "{chosen:?}");
    }

    #[test]
    fn lengths_that_mostly_miss_save_nothing() {
        let mut sampled = Sampled { leaves: 6_000, ..Sampled::default() };
        sampled.express = BTreeMap::from([(2, 10), (9, 100)]);
        sampled.add(&[0, 1, 2], 16, 6_000);
        sampled.add(&[0, 1, 2, 6, 9], 16, 2_000);
        assert_eq!(sampled.round_trips(&[]), 28_000);
        assert_eq!(sampled.round_trips(&[9]), 28_000, "three of four keys have no node there");
        assert_eq!(sampled.round_trips(&[2]), 8_000 + 12_000 + 28_000 / 32);
        assert_eq!(sampled.choose(1_000), [2]);
        // Keys that are as short are not looked for there.
        let mut sampled = Sampled { leaves: 6_000, express: sampled.express, ..Sampled::default() };
        sampled.add(&[0, 1, 2], 9, 6_000);
        sampled.add(&[0, 1, 2, 6, 9], 16, 2_000);
        assert_eq!(sampled.round_trips(&[9]), 18_000 + 2_000 + 2_000 + 10_000 / 32);
        assert_eq!(sampled.choose(1_000), [2, 9]);
    }

    #[test]
    fn a_list_that_is_nearly_as_good_stays() {
        let mut sampled = Sampled { leaves: 60_000, ..Sampled::default() };
        sampled.express = BTreeMap::from([(1, 10), (2, 100), (3, 900)]);
        sampled.add(&[0, 1, 2, 3], 8, 6_000);
        assert_eq!(sampled.choose_or_stay(), [2, 3]);
        sampled.add(&[0, 1, 2], 8, 100);
        assert_eq!(sampled.choose_or_stay(), [2, 3]);
        sampled.present = vec![3];
        assert_eq!(sampled.choose_or_stay(), [3], "2 would save less than a twentieth");
        sampled.present = vec![1, 2];
        assert_eq!(sampled.choose_or_stay(), [2, 3]);
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
        sampled.add(&[0, 9, 20], 24, 10);
        sampled.add(&[0, 1, 2, 3, 4, 5], 24, 10_000);
        sampled.express = (1..=20).map(|length| (length, 60)).collect();
        assert_eq!(sampled.choose(64).first(), Some(&5), "one length has room");
    }
}
