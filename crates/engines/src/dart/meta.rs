//! Meta object: where a table's root entry points, and the memory of its check line.
//!
//! Line 0: tag, version, table's number. Line 1, the *check line*: the root slot R, and the descriptor word D
//! of the skip table, the era, and the number of notices. Line 2: the maintenance lock. Behind it: the ring of
//! notices (`cache.rs`).
//!
//! R is a slot like any other, but it is in no node, and never sealed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_pool::{Reliable, Session};

use super::descent::REPAIR;
use super::word::{SlotContent, SlotWord};

farleaf_fabric::canaries! {
    pub(crate) REMEMBER_FOREVER = "remember-forever",
        "what is remembered of a table's root is used at any later moment";
}

/// Bytes of the meta object.
pub(super) const META_BYTES: usize = META_RING as usize + 8 * RING_PLACES as usize;
/// Offset of R.
pub(super) const META_ROOT: u64 = 64;
/// Offset of D.
pub(super) const META_TABLES: u64 = 72;
/// Offset of the era, a number that rises when nodes are freed without notices.
pub(super) const META_ERA: u64 = 80;
/// Offset of the number of notices.
pub(super) const META_HEAD: u64 = 88;
/// Offset of the maintenance lock.
pub(super) const META_LOCK: u64 = 128;
/// Offset of the ring of notices.
pub(super) const META_RING: u64 = 256;
/// Places of the ring.
pub(super) const RING_PLACES: u64 = 1_024;
const LINE_BYTES: usize = 64;
const TAG: u64 = u64::from_le_bytes(*b"FLdart01");
const VERSION: u64 = 2;

/// Writes the meta object of an empty table. 1 WRITE.
pub(super) async fn create(session: &Session, table: u32) -> Result<GlobalAddr, IndexError> {
    let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
    let mut content = session.client().buf(META_BYTES);
    content.words_mut().fill(0);
    content.words_mut()[..3].copy_from_slice(&[TAG, VERSION, u64::from(table)]);
    meta.write(content).await?;
    meta.keep();
    Ok(meta.addr())
}

/// Checks line 0 of a meta object.
pub(super) async fn check(
    io: Reliable<'_>,
    meta: GlobalAddr,
    table: u32,
) -> Result<(), IndexError> {
    let line = io.read(meta, io.buf(LINE_BYTES)).await?;
    let found = &line.words()[..3];
    if found[0] != TAG || found[2] != u64::from(table) {
        let what = format!("no meta object of the table is at {meta}; {REPAIR}");
        return Err(IndexError::Corrupt(what));
    }
    if found[1] != VERSION {
        return Err(IndexError::Invalid(format!(
            "the table at {meta} has version {} of engine dart, this program reads {VERSION}: use the program \
             that made it",
            found[1]
        )));
    }
    Ok(())
}

/// The check line, as one operation uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckLine {
    pub(super) root: SlotWord,
    pub(super) tables: u64,
    pub(super) era: u64,
    /// Notices so far.
    pub(super) head: u64,
    /// This operation did not read them itself.
    pub(super) is_remembered: bool,
}

/// READs the check line.
pub(super) async fn read_line(io: Reliable<'_>, meta: GlobalAddr) -> Result<CheckLine, IndexError> {
    let line = io.read(meta.plus(META_ROOT), io.buf(LINE_BYTES)).await?;
    let root = SlotWord::from_raw(line.words()[0]);
    if !root.is_legal() || root.is_sealed() {
        let what = format!(
            "the root slot of the table at {meta} holds {:#x}, which is no word of it; {REPAIR}",
            root.raw()
        );
        return Err(IndexError::Corrupt(what));
    }
    let [_, tables, era, head, ..] = *line.words() else {
        return Err(IndexError::Corrupt(format!("the check line at {meta} is cut short")));
    };
    Ok(CheckLine { root, tables, era, head, is_remembered: false })
}

/// The check line as this compute server has seen it in the present moment.
///
/// The objects that it names are not reused while the moment stays the same (pool, INV-EPOCH-7). It may have left the
/// tree: an operation that uses R of here believes only unsealed words, until it has read one.
#[derive(Debug, Default)]
pub(super) struct CachedRoot {
    /// 0 while the words are being changed.
    moment: AtomicU64,
    root: AtomicU64,
    tables: AtomicU64,
    changing: Mutex<()>,
}

impl CachedRoot {
    /// The line, if it is of this moment, and R is of use to another operation.
    #[inline]
    pub(super) fn at(&self, moment: u64) -> Option<CheckLine> {
        let is_of_it = || match self.moment.load(Ordering::Acquire) {
            known if REMEMBER_FOREVER.is_armed() => known != 0,
            known => known == moment,
        };
        if !is_of_it() {
            return None;
        }
        let root = SlotWord::from_raw(self.root.load(Ordering::Acquire));
        let tables = self.tables.load(Ordering::Acquire);
        let line = CheckLine { root, tables, era: 0, head: 0, is_remembered: true };
        is_of_it().then_some(line)
    }

    /// The line was read after `moment` was asked for.
    pub(super) fn remember(&self, line: CheckLine, moment: u64) {
        let _changing = self.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.moment.store(0, Ordering::Release);
        self.root.store(line.root.raw(), Ordering::Release);
        self.tables.store(line.tables, Ordering::Release);
        self.moment.store(moment, Ordering::Release);
    }
}

impl CheckLine {
    /// Returns whether R can be used although this operation has not read it: nothing comes above a node that
    /// dispatches on the first byte.
    pub(super) fn has_lasting_root(&self) -> bool {
        matches!(self.root.child(), SlotContent::Node(_, 0))
    }
}
