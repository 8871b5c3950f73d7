//! Express skip table: leads lookups to nodes deep in the tree.
//!
//! It is a table of *hints*: entries that are missing, double or late cost round trips, never answers. What must
//! hold is `INV-DART-5`: a valid entry leads to no freed node. So an entry is added in two phases: tentative,
//! and valid once a slot of its node was then read unsealed. The winner of a switch takes the entries of the
//! old node out after the CAS that unlinked it, from each table that the descriptor names then, before it
//! retires the node.
//!
//! A node under a parent at position a is *express* for each length of the list above a and up to its own
//! position. An operation tries the longest length below that of its key, then shorter ones, then R.

mod adjust;
mod entry;
mod fill;
mod hooks;
mod lengths;
mod maintenance;
mod place;
mod tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, OpKind, Ops};
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

pub(super) use self::adjust::AdjustClock;
use self::entry::{BUCKET_BYTES, PrefixHash, SkipEntry};
pub use self::hooks::EntryReport;
pub use self::lengths::Lengths;
pub use self::lengths::Prefixes;
pub(super) use self::maintenance::Maintenance;
use self::place::NewEntry;
#[cfg(feature = "lab")]
pub(super) use self::place::{ENTRY_MOVED_AT_ONCE, ENTRY_VALID_AT_ONCE};
pub(super) use self::tables::KnownTables;
use self::tables::{Descriptor, LENGTHS_MAX, TablesWord};
use super::DartTree;
use super::descent::{NodeRef, Path, PathEnd, SlotPlace, Start};
use super::meta::CheckLine;

/// Probes of a length after which older ones count less.
const TRIES_MAX: u32 = 1_024;
/// Probes of a length that are made before its share of hits counts.
const TRIES_LEAST: u32 = 16;
/// Of so many probes one counts.
const NOTED: u64 = 8;
/// A length that hits seldom is probed nevertheless, once in so many lookups.
const SELDOM: u64 = 64;

/// Hits and misses of probes, by length of the list.
#[derive(Debug, Default)]
pub(in crate::dart) struct HitRates([(AtomicU32, AtomicU32); LENGTHS_MAX]);

impl HitRates {
    fn note(&self, length: usize, is_hit: bool, random: u64) {
        let (tries, hits) = &self.0[length];
        // Threads share the counts: they change seldom.
        if tries.load(Ordering::Relaxed) >= TRIES_LEAST && !random.is_multiple_of(NOTED) {
            return;
        }
        let now = tries.fetch_add(1, Ordering::Relaxed);
        if is_hit {
            hits.fetch_add(1, Ordering::Relaxed);
        }
        if now > TRIES_MAX {
            tries.store(now / 2, Ordering::Relaxed);
            hits.store(hits.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }

    /// Returns whether a probe of that length is worth its round trip.
    fn is_likely(&self, length: usize) -> bool {
        let (tries, hits) = &self.0[length];
        let (tries, hits) = (tries.load(Ordering::Relaxed), hits.load(Ordering::Relaxed));
        tries < TRIES_LEAST || hits >= tries / 2
    }
}

/// The starts that an operation has left, in their order.
pub(super) struct Starts {
    line: CheckLine,
    roots: u8,
    tables: Option<Arc<Descriptor>>,
    /// Lengths of the list that are left, from the front.
    lengths: usize,
    /// Nodes that the last probe found, with the index of its length.
    found: Vec<(usize, NodeRef)>,
    /// The start in use, if it is an entry's.
    used: Option<(usize, NodeRef)>,
    /// The start in use, or in `found`, is remembered.
    is_remembered: bool,
    /// A remembered entry led nowhere: no further one is tried.
    has_forgotten: bool,
    /// Entries that are probed from here on may be remembered (`INV-DART-8`).
    generation: u64,
    /// Lengths whose probes led nowhere: no entry, or one of a node that is gone or another's.
    missed: Vec<(usize, Option<NodeRef>)>,
}

/// A READ of the skip table for one length.
pub(super) struct SkipProbe {
    /// Address of the bucket.
    at: GlobalAddr,
    hash: PrefixHash,
    /// Of the length in the list.
    index: usize,
    length: usize,
}

impl SkipProbe {
    /// Adds its READ to a list; the index there.
    pub(super) fn read_in(&self, io: Reliable<'_>, ops: &mut Ops) -> usize {
        ops.read(self.at, io.buf(BUCKET_BYTES))
    }
}

impl Starts {
    /// The root alone.
    pub(super) fn root(line: CheckLine) -> Starts {
        Starts {
            line,
            roots: 0,
            tables: None,
            lengths: 0,
            found: Vec::new(),
            used: None,
            is_remembered: false,
            has_forgotten: false,
            generation: 0,
            missed: Vec::new(),
        }
    }

    /// The node that is the next start, if it is known.
    pub(super) fn at_hand(&self) -> Option<NodeRef> {
        self.found.last().map(|(_, node)| *node)
    }
}

impl DartTree {
    /// The starts of an operation on `key`.
    pub(super) async fn starts(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        line: CheckLine,
    ) -> Result<Starts, IndexError> {
        self.starts_above(io, key, line, key.len()).await
    }

    /// Those by prefixes of fewer than `bytes` bytes.
    pub(super) async fn starts_above(
        &self,
        io: Reliable<'_>,
        key: &[u8],
        line: CheckLine,
        bytes: usize,
    ) -> Result<Starts, IndexError> {
        let mut starts = Starts { generation: self.cache.generation(), ..Starts::root(line) };
        if self.options.est {
            starts.tables = self.tables(io, TablesWord(line.tables)).await?;
            if let Some(table) = starts.tables.as_ref().and_then(|tables| tables.probed()) {
                let lengths = table.lengths.iter();
                let bytes = bytes.min(key.len());
                starts.lengths = lengths.take_while(|it| usize::from(**it) < bytes).count();
            }
        }
        Ok(starts)
    }

    /// The next start; `None` after the root. 1 READ for a probe.
    pub(super) async fn next_start(
        &self,
        session: &Session,
        io: Reliable<'_>,
        key: &[u8],
        starts: &mut Starts,
    ) -> Result<Option<Start>, IndexError> {
        loop {
            if let Some((length, node)) = starts.found.pop() {
                starts.used = Some((length, node));
                return Ok(Some(Start::Express(node)));
            }
            if starts.lengths == 0 {
                break;
            }
            self.probe(session, io, key, starts).await?;
        }
        starts.used = None;
        starts.roots += 1;
        match starts.roots {
            1 => Ok(Some(self.root_start(session, io, starts.line).await?)),
            2 if starts.line.is_remembered => {
                Ok(Some(Start::Root(self.fresh_line(session, io).await?)))
            }
            _ => Ok(None),
        }
    }

    /// Looks for the node behind the prefix of the next length: among what is remembered, then by 1 READ.
    async fn probe(
        &self,
        session: &Session,
        io: Reliable<'_>,
        key: &[u8],
        starts: &mut Starts,
    ) -> Result<(), IndexError> {
        let Some(probe) = self.next_probe(key, starts) else { return Ok(()) };
        let now_and_then = || session.endpoint().random().is_multiple_of(SELDOM);
        if !self.hit_rates.is_likely(probe.index) && !now_and_then() {
            return Ok(());
        }
        let bucket = io.read(probe.at, io.buf(BUCKET_BYTES)).await;
        let bucket = bucket.map_err(|error| self.misled(error))?;
        self.probed(session, key, starts, &probe, &bucket);
        Ok(())
    }

    /// The probe for the next length; `None` if there is none, or its node is remembered, which then is the next start.
    pub(super) fn next_probe(&self, key: &[u8], starts: &mut Starts) -> Option<SkipProbe> {
        starts.lengths = starts.lengths.checked_sub(1)?;
        let index = starts.lengths;
        let table = starts.tables.as_ref().and_then(|tables| tables.probed())?;
        let length = usize::from(table.lengths[index]);
        let hash = PrefixHash::of(&key[..length], self.table);
        if !starts.has_forgotten
            && let Some(node) = self.cache.find(hash.0, length)
            && node.plen <= key.len()
        {
            self.counters.cache_hit.add(1);
            starts.is_remembered = true;
            starts.found.push((index, node));
            return None;
        }
        Some(SkipProbe { at: table.bucket(hash), hash, index, length })
    }

    /// Takes the nodes from the bucket that a probe has read.
    pub(super) fn probed(
        &self,
        session: &Session,
        key: &[u8],
        starts: &mut Starts,
        probe: &SkipProbe,
        bucket: &Buf,
    ) {
        let Some(table) = starts.tables.as_ref().and_then(|tables| tables.probed()) else { return };
        self.counters.est_probe.add(1);
        let SkipProbe { hash, index, length, .. } = *probe;
        let entries = bucket.words().iter().map(|word| SkipEntry(*word));
        let nodes = entries.filter(|entry| !entry.is_tentative());
        let nodes = nodes.filter_map(|entry| entry.node(hash, table.print_bits, (index, length)));
        // A key that ends in front of the node is not below it.
        starts.found.extend(nodes.filter(|node| node.plen <= key.len()).map(|node| (index, node)));
        let is_hit = !starts.found.is_empty();
        self.hit_rates.note(index, is_hit, session.endpoint().random());
        if !is_hit {
            self.counters.est_miss.add(1);
            starts.missed.push((index, None));
        } else if starts.found.len() > 1 {
            self.counters.est_multi.add(1);
        }
    }

    /// A start has led to an answer, or has not (`None`); `answered` says whether the way's bytes are proven.
    /// A task mends what led nowhere, once the way is known.
    pub(super) fn starts_ended(
        self: &Arc<Self>,
        session: &Session,
        starts: &mut Starts,
        key: &[u8],
        path: &Path,
        trail: &[SlotPlace],
        answered: Option<bool>,
    ) {
        let has_answer = answered.is_some();
        if let Some((length, node)) = starts.used.take() {
            let is_remembered = std::mem::take(&mut starts.is_remembered);
            let prefix = starts.tables.as_ref().and_then(|tables| tables.probed());
            let prefix = prefix.map(|table| usize::from(table.lengths[length]));
            let prefix = prefix.map(|bytes| (PrefixHash::of(&key[..bytes], self.table).0, bytes));
            if has_answer {
                self.counters.est_hit.add(1);
                if let (Some((hash, bytes)), false) = (prefix, is_remembered) {
                    self.cache.learn(starts.generation, hash, bytes, node);
                }
            } else if let (Some((hash, bytes)), true) = (prefix, is_remembered) {
                // The table may know better: the same length again.
                self.counters.cache_stale.add(1);
                self.cache.forget(hash, bytes);
                starts.has_forgotten = true;
                starts.lengths = length + 1;
            } else {
                match path.landing {
                    PathEnd::Stale => self.counters.est_sealed.add(1),
                    _ => self.counters.est_wrong.add(1),
                }
                starts.missed.push((length, Some(node)));
            }
        }
        if has_answer {
            self.answered(session, path.levels);
        }
        if !has_answer
            || starts.missed.is_empty()
            || !path.is_fresh
            || !self.options.est_maintenance
        {
            return;
        }
        let Some(tables) = starts.tables.clone() else { return };
        let Some(table) = tables.probed() else { return };
        let mut items = Vec::new();
        for (length, instead) in starts.missed.drain(..) {
            let length = usize::from(table.lengths[length]);
            // The node that is express for the length, if the way has come by one.
            let node = trail.iter().find_map(|place| {
                let child = place.child()?;
                let above = place.node.map(|node| node.plen);
                let is_it = above.is_none_or(|above| length > above) && length <= child.plen;
                (is_it && child.plen <= key.len()).then_some(child)
            });
            if let Some(node) = node {
                let hash = PrefixHash::of(&key[..length], self.table);
                items.push(NewEntry { hash, length, node, instead: instead.map(|node| node.addr) });
            }
        }
        // If skipped bytes of the way are unproven, the entry might be another prefix's.
        if items.is_empty() || answered != Some(true) {
            return;
        }
        self.counters.est_repaired.add(items.len() as u64);
        self.place_later(session, tables, items);
    }
}

/// A pin for maintenance: what follows counts for the caller's kind of operation as before.
async fn begin_quietly(session: &Session) -> Result<farleaf_pool::Pinned<'_>, IndexError> {
    let kind = session.client().charge_to(OpKind::Maintenance);
    let pin = session.begin(OpKind::Maintenance).await;
    session.client().charge_to(kind);
    Ok(pin?)
}
