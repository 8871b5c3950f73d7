//! Block audit: sums up the states of the objects of one block.

use std::collections::{BTreeMap, BTreeSet};

use super::ClassReport;
use crate::block::{CARVED_AT, check_front, pairs_in};
use crate::class::class_bytes;
use crate::geometry::BlockId;
use crate::pages::{BlockShape, Run};
use crate::words::{BlockState, BlockWord};
use crate::{PoolError, Session};

/// Marks of one block's objects.
#[derive(Debug)]
pub(super) struct AuditBlock {
    pub(super) word: BlockWord,
    /// Version of its word when it was carved.
    pub(super) carved: u64,
    /// Its runs when the audit began, ascending.
    pub(super) runs: Vec<Run>,
    /// A bit for each object, in the order of the runs' bitmaps: those of a page begin at `pair_of` it.
    pub(super) marks: Box<[u64]>,
}

impl AuditBlock {
    pub(super) fn new(
        shape: &BlockShape,
        word: BlockWord,
        carved: u64,
        runs: Vec<Run>,
    ) -> AuditBlock {
        AuditBlock { word, carved, runs, marks: vec![0; shape.pair_of(shape.pages)].into() }
    }

    /// The object that starts at an offset: its run, and its number there.
    pub(super) fn object_at(&self, offset: u64) -> Option<(&Run, u32)> {
        object_at(&self.runs, offset)
    }

    pub(super) fn marked(&self, shape: &BlockShape, run: &Run, index: u32) -> bool {
        self.marks[mark_word(shape, run, index)] >> (index % 64) & 1 == 1
    }

    /// Sums up the objects of a block that has `word` now. `retired` was read before.
    pub(super) async fn account(
        &self,
        session: &Session,
        at: BlockId,
        block_word: BlockWord,
        retired: &[u64],
        others_run: bool,
    ) -> Result<Found, PoolError> {
        let mut found = Found::default();
        let Found { sums, problems } = &mut found;
        let BlockId { server, number } = at;
        let pool = session.pool();
        let shape = pool.geometry().shape();
        let front = session.reliable().buf(shape.front_bytes() as usize);
        let front = session.reliable().read(pool.geometry().block_addr(at), front).await?;
        let front = front.words();
        if block_word.is(BlockState::Free) || front[(CARVED_AT / 8) as usize] != self.carved {
            // A recovery has found nothing in it, or its member, and let it go.
            let marked: u32 = self.marks.iter().map(|marks| marks.count_ones()).sum();
            if marked > 0 {
                problems.push(format!(
                    "INV-BLOCK-2: block {number} of server {server} was let go with {marked} live objects"
                ));
            }
            return Ok(found);
        }
        let mapped = match check_front(shape, front) {
            Ok(runs) => runs,
            Err(why) => {
                problems.push(format!("INV-BLOCK-1: block {number} of server {server}: {why}"));
                return Ok(found);
            }
        };
        let alloc = pool.alloc();
        let local = alloc.block(at);
        // Runs that this member has dropped are in the page map still.
        let runs: Vec<Run> =
            local.map_or(mapped, |local| local.runs().iter().map(|run| run.run).collect());
        let is_others = local.is_none() && !block_word.is(BlockState::Orphan);
        // Its own member gives it back at this moment, as a store's maintenance does: it is all free.
        let is_going = is_others && block_word.owner() == pool.member();
        let mut retirement = BTreeSet::new();
        for offset in retired {
            if !retirement.insert(*offset) {
                problems.push(format!(
                    "INV-RETIRE-3: block {number} of server {server}: the object at {offset:#x} is \
                     retired twice"
                ));
            }
        }
        let mut marked = 0;
        for run in &runs {
            let sums = sums.entry(run.class).or_default();
            sums.runs += 1;
            sums.run_bytes += u64::from(run.pages) * shape.page_bytes;
            sums.handed_out += u64::from(run.count);
            let pairs = pairs_in(shape, front, run);
            let local = local.and_then(|local| local.run_at(run.page));
            let is_known = self.runs.contains(run);
            for index in 0..run.count {
                let (word, bit) = ((index / 64) as usize, index % 64);
                let offset = run.offset_of(index);
                let is_marked = is_known && self.marked(shape, run, index);
                let in_bitmap = (pairs[word * 2] ^ pairs[word * 2 + 1]) >> bit & 1 == 1;
                let is_local = local.is_some_and(|local| local.is_free(index));
                let is_retired = retirement.contains(&offset);
                let claims = [
                    (is_marked, "live"),
                    (in_bitmap, "free in the bitmap"),
                    (is_local, "free at its owner"),
                    (is_retired, "retired"),
                ];
                marked += u32::from(is_marked);
                if claims.iter().filter(|(holds, _)| *holds).count() > 1 {
                    let what: Vec<&str> =
                        claims.iter().filter(|(holds, _)| *holds).map(|(_, what)| *what).collect();
                    let invariant = if is_retired { "INV-RETIRE-3" } else { "INV-ALLOC-1" };
                    problems.push(format!(
                        "{invariant}: block {number} of server {server}: the object at {offset:#x} is {}",
                        what.join(" and ")
                    ));
                }
                if is_marked {
                    sums.live += 1;
                } else if in_bitmap || is_local {
                    sums.free += 1;
                } else if is_retired {
                    sums.retired += 1;
                } else if is_going {
                    sums.free += 1;
                } else if is_others || others_run {
                    sums.held += 1;
                } else {
                    sums.leaked += 1;
                }
            }
        }
        let all_marked: u32 = self.marks.iter().map(|marks| marks.count_ones()).sum();
        if marked != all_marked {
            problems.push(format!(
                "INV-RUN-1: block {number} of server {server}: {} live objects are in no run",
                all_marked - marked
            ));
        }
        if let Some(page) = stray_page(shape, front, &runs) {
            problems.push(format!(
                "INV-RUN-4: block {number} of server {server}: the bitmaps of page {page} have bits that \
                 are no object's"
            ));
        }
        Ok(found)
    }
}

/// The object that starts at an offset of a block with these runs: its run, and its number there.
pub(crate) fn object_at(runs: &[Run], offset: u64) -> Option<(&Run, u32)> {
    let at = runs.partition_point(|run| run.offset_of(0) <= offset).checked_sub(1)?;
    Some((&runs[at], runs[at].object_at(offset)?))
}

/// The word of the marks of an object.
pub(crate) fn mark_word(shape: &BlockShape, run: &Run, index: u32) -> usize {
    shape.pair_of(run.page) + (index / 64) as usize
}

/// The known states of the objects of one block.
#[derive(Default)]
pub(super) struct Found {
    /// By class.
    pub(super) sums: BTreeMap<usize, ClassReport>,
    pub(super) problems: Vec<String>,
}

impl Found {
    pub(super) fn adds_up(&self) -> bool {
        self.problems.is_empty() && self.sum(|sums| sums.leaked) == 0
    }

    pub(super) fn sum(&self, of: impl Fn(&ClassReport) -> u64) -> u64 {
        self.sums.values().map(of).sum()
    }

    pub(super) fn bytes(&self, of: impl Fn(&ClassReport) -> u64) -> u64 {
        self.sums.iter().map(|(class, sums)| of(sums) * class_bytes(*class)).sum()
    }
}

/// The first page whose bitmaps show a free object where no run has one (INV-RUN-4).
fn stray_page(shape: &BlockShape, front: &[u64], runs: &[Run]) -> Option<u32> {
    let mut valid = vec![0; shape.pair_of(shape.pages)];
    for run in runs {
        (0..run.words())
            .for_each(|word| valid[shape.pair_of(run.page) + word] = run.valid_bits(word));
    }
    let pairs = front[shape.pairs_at(0) as usize / 8..].chunks_exact(2);
    let stray = pairs.zip(&valid).position(|(pair, valid)| (pair[0] ^ pair[1]) & !valid != 0)?;
    (0..shape.pages).rfind(|page| shape.pair_of(*page) <= stray)
}
