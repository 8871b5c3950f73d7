//! Placing entries: in two phases, in lists.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_pool::{Cas, Reliable, Session};

use super::entry::{BUCKET_BYTES, BUCKET_SLOTS, PrefixHash, SkipEntry};
use super::tables::{Descriptor, Role, Table};
use crate::dart::DartTree;
use crate::dart::descent::NodeRef;
use crate::dart::word::SlotWord;

farleaf_fabric::canaries! {
    pub(crate) ENTRY_VALID_AT_ONCE = "entry-valid-at-once",
        "an entry is valid before its node was seen in the tree";
    pub(crate) ENTRY_MOVED_AT_ONCE = "entry-moved-at-once",
        "an entry that is moved to another node is valid at once";
}

/// A node that is to have an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewEntry {
    pub(super) hash: PrefixHash,
    pub(super) length: usize,
    pub(super) node: NodeRef,
    /// The node whose entry it takes the place of.
    pub(super) instead: Option<GlobalAddr>,
}

/// A tentative entry, and where it is.
struct Tentative {
    at: GlobalAddr,
    entry: SkipEntry,
    node: GlobalAddr,
}

impl DartTree {
    /// Places entries of nodes that the running operation has seen in the tree, by a task.
    pub(super) fn place_later(
        self: &Arc<Self>,
        session: &Session,
        tables: Arc<Descriptor>,
        items: Vec<NewEntry>,
    ) {
        let (tree, pin) = (Arc::clone(self), session.pin_for_task());
        session.spawn(async move |session| {
            let io = session.maintenance();
            for table in tables.tables.iter().filter(|table| table.role != Role::Leaving) {
                // A hint that is not placed costs a round trip later.
                let _ = tree.place(io, table, &items).await;
            }
            drop(pin);
        });
    }

    /// Places entries in one table. The caller is pinned, and has seen the nodes in the tree.
    ///
    /// Cost: 1 READ, 1 CAS, 1 READ and 1 CAS for each, in 4 round trips.
    pub(super) async fn place(
        &self,
        io: Reliable<'_>,
        table: &Table,
        items: &[NewEntry],
    ) -> Result<(), IndexError> {
        if items.is_empty() {
            return Ok(());
        }
        let mut ops = io.client().ops();
        for item in items {
            ops.read(table.bucket(item.hash), io.buf(BUCKET_BYTES));
        }
        let ops = io.post_many(ops).await?;
        // Several items may have one bucket.
        let mut buckets: BTreeMap<GlobalAddr, [u64; BUCKET_SLOTS]> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let mut words = [0; BUCKET_SLOTS];
            words.copy_from_slice(ops.buf(index).words());
            buckets.entry(table.bucket(item.hash)).or_insert(words);
        }
        let (mut list, mut placed) = (Vec::new(), Vec::new());
        for item in items {
            let bucket = table.bucket(item.hash);
            let Some(number) = table.number_of(item.length) else { continue };
            let Some(words) = buckets.get_mut(&bucket) else { continue };
            let new =
                SkipEntry::tentative(item.hash, table.print_bits, (number, item.length), item.node);
            let Some(new) = new else { continue };
            let at = |slot: usize| bucket.plus(8 * slot as u64);
            if let Some(slot) =
                words.iter().position(|word| SkipEntry(*word).valid() == new.valid())
            {
                if SkipEntry(words[slot]).is_tentative() {
                    self.counters.est_tentative.add(1);
                    placed.push(Tentative { at: at(slot), entry: new, node: item.node.addr });
                }
                continue;
            }
            let old = |word: &u64| {
                *word != 0 && item.instead.is_some_and(|instead| SkipEntry(*word).addr() == instead)
            };
            let slot =
                words.iter().position(old).or_else(|| words.iter().position(|word| *word == 0));
            let Some(slot) = slot else {
                self.counters.est_dropped.add(1);
                continue;
            };
            if ENTRY_VALID_AT_ONCE.is_armed() {
                list.push(Cas { at: at(slot), expected: words[slot], new: new.valid().0 });
                continue;
            }
            list.push(Cas { at: at(slot), expected: words[slot], new: new.0 });
            words[slot] = new.0;
            placed.push(Tentative { at: at(slot), entry: new, node: item.node.addr });
        }
        let found = if list.is_empty() { Vec::new() } else { io.cas_many(&list).await? };
        for (cas, found) in list.iter().zip(found) {
            if found != cas.expected {
                placed.retain(|tentative| tentative.at != cas.at);
            }
        }
        self.validate(io, placed).await
    }

    /// Makes tentative entries valid whose nodes are in the tree, and takes the others out: each was there
    /// before a slot of its node is read.
    async fn validate(&self, io: Reliable<'_>, placed: Vec<Tentative>) -> Result<(), IndexError> {
        if placed.is_empty() {
            return Ok(());
        }
        let mut ops = io.client().ops();
        for tentative in &placed {
            ops.read(tentative.node, io.buf(8));
        }
        let ops = io.post_many(ops).await?;
        let verdicts = placed.iter().enumerate().map(|(index, tentative)| {
            let is_sealed = SlotWord::from_raw(ops.buf(index).words()[0]).is_sealed();
            let new = if is_sealed { SkipEntry::FREE } else { tentative.entry.valid() };
            Cas { at: tentative.at, expected: tentative.entry.0, new: new.0 }
        });
        let list: Vec<Cas> = verdicts.collect();
        io.cas_many(&list).await?;
        Ok(())
    }

    /// Takes the entries of an unlinked node out of every table, or moves them to `to`. `prefix` is what all
    /// keys below the node share. Returns once none is left.
    ///
    /// Cost: 1 READ of a bucket for each length, and for each entry 1 CAS; moved ones 1 READ and 1 CAS more.
    pub(super) async fn take_out(
        &self,
        io: Reliable<'_>,
        tables: &Descriptor,
        node: GlobalAddr,
        prefix: &[u8],
        to: Option<NodeRef>,
    ) -> Result<(), IndexError> {
        for table in &tables.tables {
            // All lengths: a node may have been put above this one, and have left its entries.
            let lengths: Vec<usize> = table.lengths_of(None, prefix.len()).collect();
            let mut is_left = !lengths.is_empty();
            while is_left {
                is_left = false;
                let mut ops = io.client().ops();
                let hashes: Vec<PrefixHash> = lengths
                    .iter()
                    .map(|length| PrefixHash::of(&prefix[..*length], self.table))
                    .collect();
                for hash in &hashes {
                    ops.read(table.bucket(*hash), io.buf(BUCKET_BYTES));
                }
                let ops = io.post_many(ops).await?;
                let (mut list, mut moved) = (Vec::new(), Vec::new());
                for (index, hash) in hashes.iter().enumerate() {
                    let bucket = table.bucket(*hash);
                    for (slot, word) in ops.buf(index).words().iter().enumerate() {
                        let (entry, at) = (SkipEntry(*word), bucket.plus(8 * slot as u64));
                        if entry.is_free() || entry.addr() != node {
                            continue;
                        }
                        // Several lengths may have one bucket.
                        if list.iter().any(|cas: &Cas| cas.at == at) {
                            continue;
                        }
                        let its = hashes.iter().zip(&lengths).find(|(hash, length)| {
                            let number = table.number_of(**length).unwrap_or_default();
                            let found = entry.node(**hash, table.print_bits, (number, **length));
                            table.bucket(**hash) == bucket && found.is_some()
                        });
                        let its = its.zip(to.filter(|_| table.role != Role::Leaving));
                        let new = its.and_then(|((_, length), to)| {
                            Some((entry.moved(*length, to)?, to.addr))
                        });
                        let new_word = new.map_or(SkipEntry::FREE, |(entry, _)| entry);
                        let at_once = ENTRY_MOVED_AT_ONCE.is_armed();
                        let new_word = if at_once { new_word.valid() } else { new_word };
                        list.push(Cas { at, expected: *word, new: new_word.0 });
                        if let Some((entry, node)) = new {
                            moved.push(Tentative { at, entry, node });
                        }
                    }
                }
                if !list.is_empty() {
                    let found = io.cas_many(&list).await?;
                    for (cas, found) in list.iter().zip(found) {
                        if found != cas.expected {
                            moved.retain(|tentative| tentative.at != cas.at);
                        }
                    }
                    self.validate(io, moved).await?;
                    // Others may have added one meanwhile.
                    is_left = true;
                }
            }
        }
        Ok(())
    }
}
