//! Offload marks: mark nodes at which operations are offloaded, and hold their pins.

use std::sync::Arc;

use farleaf_index::local::Version;

use crate::dex::cache::{IoMark, Mapping, PageCache};

/// Readers that may come to one mark before all of them have to be done: then a task that wants the node
/// for something else gets a turn.
const JOINED_MAX: u32 = 64;
/// An `OffS` entry counts readers that are under way in its low half, and all that came in its high one.
const ONE_READER: u32 = 1;
const ONE_JOINED: u32 = 1 << 16;

fn readers(word: u32) -> u32 {
    word & (ONE_JOINED - 1)
}

/// The right to offload at a node: its mark and a pin on its parent. Dropping it gives both back.
#[derive(Debug)]
pub(crate) struct OffloadMark {
    pages: Arc<PageCache>,
    addr: u64,
    parent: u32,
    /// The node's level.
    pub(crate) level: u8,
    reads: bool,
}

impl OffloadMark {
    /// Turns an I/O mark into one of offloading, for a reader or a change.
    pub(crate) fn of(mark: IoMark, reads: bool) -> OffloadMark {
        let to = if reads { Mapping::OffS(ONE_READER + ONE_JOINED) } else { Mapping::OffX };
        let (addr, parent, level) = (mark.addr, mark.parent, mark.level);
        OffloadMark { pages: mark.convert(to), addr, parent, level, reads }
    }

    /// Joins the readers at a node, below a parent that was Hot at `version`, if more may come.
    pub(crate) fn join(
        pages: &Arc<PageCache>,
        addr: u64,
        parent: u32,
        version: Version,
        level: u8,
    ) -> Option<OffloadMark> {
        let Some(Mapping::OffS(word)) = pages.map.get(addr) else { return None };
        if word / ONE_JOINED >= JOINED_MAX || !pages.frames.pin(parent, version) {
            return None;
        }
        let to = Mapping::OffS(word + ONE_READER + ONE_JOINED);
        if !pages.map.exchange(addr, Some(Mapping::OffS(word)), Some(to)) {
            pages.frames.unpin(parent);
            return None;
        }
        Some(OffloadMark { pages: Arc::clone(pages), addr, parent, level, reads: true })
    }

    /// The node's address.
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns whether it is a reader's.
    pub(crate) fn reads(&self) -> bool {
        self.reads
    }
}

impl Drop for OffloadMark {
    fn drop(&mut self) {
        let map = &self.pages.map;
        if self.reads {
            // Others come and go.
            while let Some(Mapping::OffS(word)) = map.get(self.addr) {
                let left = (readers(word) > 1).then(|| Mapping::OffS(word - ONE_READER));
                if map.exchange(self.addr, Some(Mapping::OffS(word)), left) {
                    break;
                }
            }
        } else {
            let gone = map.exchange(self.addr, Some(Mapping::OffX), None);
            debug_assert!(gone, "INV-DEX-MAP-2");
        }
        self.pages.frames.unpin(self.parent);
        self.pages.lot.unpark(self.addr);
    }
}
