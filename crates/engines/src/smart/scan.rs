//! Scan: a frontier of subtrees in the order of keys, read a window at a time.
//!
//! All pointers are fresh. A subtree that is read becomes its children, a leaf its pair; the pairs at the front are
//! the result. So the READs of one level, and of neighbouring leaves, share round trips.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use farleaf_fabric::Buf;
use farleaf_index::{Entries, IndexError, ScanRange};
use farleaf_pool::Session;

use super::descent::{ReadNode, Up};
use super::layout::{Node, Slot};
use super::leaf::NewValue;
use super::tree::{Fail, Tree};

/// A part of the frontier.
pub(super) enum Item {
    /// A child that has not been read: its slot, and the bytes that all of its keys begin with.
    Child {
        slot: Slot,
        up: Up,
        prefix: Vec<u8>,
    },
    Pair {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// A pair whose value is in a record.
    Record {
        key: Vec<u8>,
        word: u64,
    },
}

impl Tree {
    /// Appends at most `limit` pairs of `range` to `out`.
    ///
    /// Cost: 1 READ for each node that holds a part of the range and for each leaf; about as many round trips as the
    /// tree has levels, and one for each window of leaves.
    pub(crate) async fn scan(
        self: &Arc<Self>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let scanned = self.try_scan(session, range, limit, out).await;
        scanned.map_err(|fail| fail.or_unavailable("a scan lost its way: try again"))
    }

    async fn try_scan(
        self: &Arc<Self>,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), Fail> {
        if limit == 0 {
            return Ok(());
        }
        let end = out.len().saturating_add(limit);
        let root = self.root_node(session).await?;
        let mut frontier: VecDeque<Item> = self.expand(&root, &[], &range).into();
        loop {
            while let Some(item) = frontier.pop_front() {
                match item {
                    Item::Pair { key, value } => out.push(&key, &value),
                    Item::Record { key, word } => {
                        let mut value = Vec::new();
                        self.read_record(session, word, &mut value).await?;
                        out.push(&key, &value);
                    }
                    child => {
                        frontier.push_front(child);
                        break;
                    }
                }
                if out.len() >= end {
                    return Ok(());
                }
            }
            if frontier.is_empty() {
                return Ok(());
            }
            self.read_window(session, &range, end - out.len(), &mut frontier).await?;
        }
    }

    /// Reads as many of the frontier's first children as are likely to have the wanted pairs, and puts what they hold
    /// in their places. 1 round trip, more for leaves that are being written.
    async fn read_window(
        self: &Arc<Self>,
        session: &Session,
        range: &ScanRange<'_>,
        wanted: usize,
        frontier: &mut VecDeque<Item>,
    ) -> Result<(), Fail> {
        let (mut ops, reliable) = (session.client().ops(), session.reliable());
        let (mut window, mut likely) = (0, 0);
        let c = session.epoch();
        for item in frontier.iter() {
            window += 1;
            let Item::Child { slot, up, .. } = item else {
                likely += 1;
                continue;
            };
            let bytes = slot.bytes();
            let bytes = bytes.ok_or_else(|| self.corrupt(up.at, "its slot has no type of node"))?;
            ops.read(slot.addr(), reliable.buf(bytes));
            // The range may begin at the end of the first.
            likely += if ops.len() == 1 { 1 } else { slot.pairs_likely() };
            if likely >= wanted || ops.len() >= self.options.scan_window {
                break;
            }
        }
        let mut ops = reliable.post_many(ops).await?;
        let (mut read, mut found, mut hints) = (0, Vec::new(), Vec::new());
        for item in frontier.drain(..window) {
            let Item::Child { slot, up, prefix } = item else {
                found.push(item);
                continue;
            };
            let image = ops.take_buf(read);
            read += 1;
            if slot.is_leaf() {
                found.extend(self.take_leaf(session, range, slot, image).await?);
            } else {
                let (addr, matched) = (slot.addr(), prefix.len());
                let (parent, stamp) = (Some(up), None);
                let mut held =
                    ReadNode { addr, image, matched, up: parent, c, stamp, is_cached: false };
                match self.check_child(&held, slot) {
                    Err(Fail::Again) => {
                        // A node has come in front of it: that one is next.
                        let (slot, up) = self.slot_again(session, up).await?;
                        found.push(Item::Child { slot, up, prefix });
                        continue;
                    }
                    checked => checked?,
                }
                hints.extend(self.shape.mode.stale_hint(self, &held, slot));
                while held.node(self).is_short() {
                    self.shape.mode.read_whole(self, session, &mut held, &prefix).await?;
                }
                self.remember(&held, &prefix);
                found.extend(self.expand(&held, &prefix, range));
            }
        }
        self.shape.mode.correct_hints(self, session, hints);
        found.into_iter().rev().for_each(|item| frontier.push_front(item));
        Ok(())
    }

    /// READs a slot again: it leads to another child by now.
    pub(super) async fn slot_again(
        &self,
        session: &Session,
        up: Up,
    ) -> Result<(Slot, Up), IndexError> {
        let word = session.reliable().word(up.at).await?;
        if !Slot(word).has_child() {
            return Err(self.corrupt(up.at, "INV-SMART-8: its child is gone"));
        }
        Ok((Slot(word).thawed(), Up { word, ..up }))
    }

    async fn take_leaf(
        self: &Arc<Self>,
        session: &Session,
        range: &ScanRange<'_>,
        slot: Slot,
        image: Buf,
    ) -> Result<Option<Item>, Fail> {
        let image = self.settle_leaf(session, slot.addr(), image).await?;
        let leaf = self.leaf(slot.addr(), &image);
        if !range.holds(leaf.key()) {
            return Ok(None);
        }
        let key = leaf.key().to_vec();
        Ok(match leaf.content() {
            NewValue::Absent => None,
            NewValue::Inline(value) => Some(Item::Pair { key, value: value.to_vec() }),
            NewValue::Record(word) => Some(Item::Record { key, word }),
        })
    }

    /// Forgets the cached nodes that may lead to keys of `range`.
    pub(crate) fn forget_range(&self, range: &ScanRange<'_>) {
        self.cache.forget_all(|prefix| meets(range, prefix));
    }

    /// The children of a node that may hold keys of the range, in the range's order.
    pub(super) fn expand(
        &self,
        held: &ReadNode,
        prefix: &[u8],
        range: &ScanRange<'_>,
    ) -> Vec<Item> {
        let node: Node<'_> = held.node(self);
        let mut prefix = prefix.to_vec();
        prefix.extend((held.matched..node.dispatch()).filter_map(|at| node.byte_at(at)));
        let slots = node.slots().enumerate().filter(|(_, slot)| slot.has_child());
        let mut children: Vec<(usize, Slot)> = slots.collect();
        children.sort_unstable_by_key(|(_, slot)| slot.edge());
        if range.reverse {
            children.reverse();
        }
        let child = |(index, slot): (usize, Slot)| {
            let mut prefix = prefix.clone();
            prefix.extend(slot.edge().as_byte());
            let up = held.up_of(index, slot);
            meets(range, &prefix).then_some(Item::Child { slot, up, prefix })
        };
        children.into_iter().filter_map(child).collect()
    }
}

/// Returns whether a key that begins with `prefix` may be in the range.
pub(super) fn meets(range: &ScanRange<'_>, prefix: &[u8]) -> bool {
    let above = match range.from {
        Bound::Unbounded => true,
        Bound::Included(from) | Bound::Excluded(from) => {
            prefix >= &from[..prefix.len().min(from.len())]
        }
    };
    let below = match range.to {
        Bound::Unbounded => true,
        Bound::Included(to) | Bound::Excluded(to) => {
            prefix <= to || prefix.len() < to.len() && prefix == &to[..prefix.len()]
        }
    };
    above && below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_meet_ranges() {
        let range = |from, to| ScanRange { from, to, reverse: false };
        let some = range(Bound::Included(&b"bc"[..]), Bound::Excluded(&b"de"[..]));
        for (prefix, is_in) in [
            (&b""[..], true),
            (b"a", false),
            (b"b", true),
            (b"bb", false),
            (b"bc", true),
            (b"bcx", true),
            (b"c", true),
            (b"d", true),
            (b"dd", true),
            (b"de", true),
            (b"dea", false),
            (b"df", false),
            (b"e", false),
        ] {
            assert_eq!(meets(&some, prefix), is_in, "{prefix:?}");
        }
        assert!(meets(&ScanRange::ALL, b"x"));
    }
}
