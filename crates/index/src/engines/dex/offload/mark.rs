//! Offload marks: mark nodes at which operations are offloaded, and hold their pins.

use std::sync::Arc;

use super::super::{Cache, Version};
use crate::engines::dex::cache::Entry;
use crate::engines::dex::cache::IoMark;

/// Readers that may come to one mark before all of them have to be done: who wants the node otherwise
/// gets a turn.
const JOINED_MAX: u32 = 64;
/// An `OffS` entry counts readers that are under way in its low half, and all that came in its high one.
const ONE_READER: u32 = 1;
const ONE_JOINED: u32 = 1 << 16;

fn readers(word: u32) -> u32 {
    word & (ONE_JOINED - 1)
}

/// The right to offload at a node: its mark and a pin on its parent. Dropped, both are given back.
#[derive(Debug)]
pub(in super::super) struct Off {
    cache: Arc<Cache>,
    addr: u64,
    parent: u32,
    /// The node's level.
    pub(super) level: u8,
    reads: bool,
}

impl Off {
    /// Makes a claim's mark one of offloading, for a reader or a change.
    pub(in super::super) fn of(mut claim: IoMark, reads: bool) -> Off {
        let to = if reads { Entry::OffS(ONE_READER + ONE_JOINED) } else { Entry::OffX };
        let marked = claim.cache.map.exchange(claim.addr, Some(Entry::Io), Some(to));
        debug_assert!(marked, "INV-DEX-MAP-2");
        claim.armed = false;
        let cache = Arc::clone(&claim.cache);
        Off { cache, addr: claim.addr, parent: claim.parent, level: claim.level, reads }
    }

    /// Joins the readers at a node, below a parent that was Hot at `version`, if more may come.
    pub(in super::super) fn join(
        cache: &Arc<Cache>,
        addr: u64,
        parent: u32,
        version: Version,
        level: u8,
    ) -> Option<Off> {
        let Some(Entry::OffS(word)) = cache.map.get(addr) else { return None };
        if word / ONE_JOINED >= JOINED_MAX || !cache.frames.pin(parent, version) {
            return None;
        }
        let to = Entry::OffS(word + ONE_READER + ONE_JOINED);
        if !cache.map.exchange(addr, Some(Entry::OffS(word)), Some(to)) {
            cache.frames.unpin(parent);
            return None;
        }
        Some(Off { cache: Arc::clone(cache), addr, parent, level, reads: true })
    }

    /// The node.
    pub(super) fn addr(&self) -> u64 {
        self.addr
    }

    /// Whether it is a reader's.
    pub(super) fn reads(&self) -> bool {
        self.reads
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let map = &self.cache.map;
        if self.reads {
            // Others come and go.
            while let Some(Entry::OffS(word)) = map.get(self.addr) {
                let left = (readers(word) > 1).then(|| Entry::OffS(word - ONE_READER));
                if map.exchange(self.addr, Some(Entry::OffS(word)), left) {
                    break;
                }
            }
        } else {
            let gone = map.exchange(self.addr, Some(Entry::OffX), None);
            debug_assert!(gone, "INV-DEX-MAP-2");
        }
        self.cache.frames.unpin(self.parent);
        self.cache.lot.unpark(self.addr);
    }
}
