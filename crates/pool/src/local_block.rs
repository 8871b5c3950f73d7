//! Local block: an owned block as its owner knows it, with its runs and their free objects.

use farleaf_fabric::GlobalAddr;

use crate::PoolError;
use crate::pages::{BlockShape, MapWord, Run, longest_stretch, stretches};
use crate::words::BlockWord;

/// One owned block.
#[derive(Debug)]
pub(crate) struct LocalBlock {
    /// Its word of the block table.
    pub(crate) word: BlockWord,
    /// Its page map in the pool; pages of a run that was dropped since keep their words.
    map: Box<[u64]>,
    /// For each page, the first page of its run; 0 if it is in none.
    firsts: Box<[u8]>,
    /// Ascending by page.
    runs: Vec<LocalRun>,
    /// Words of *taken* of pages in no run, which need not be zero (INV-RUN-4); none if all are.
    taken: Box<[u64]>,
    /// Objects in use.
    in_use: u32,
    /// Pages in no run.
    pub(crate) free_pages: u32,
    /// Somebody harvests it, carves in it or decides about it: it must not be taken out.
    pub(crate) busy: bool,
    /// Objects that are retired, or about to be, and not announced (INV-RETIRE-4).
    pub(crate) retired: u32,
    /// Objects that were taken from it since it became this member's.
    pub(crate) taken_count: u32,
}

/// A run of an owned block.
#[derive(Debug)]
pub(crate) struct LocalRun {
    pub(crate) run: Run,
    free: Box<[u64]>,
    pub(crate) free_count: u32,
    hint: usize,
    /// Words of *taken* as last seen.
    taken: Box<[u64]>,
    /// A harvest was begun and has not ended: its CASes may be under way.
    pub(crate) harvesting: bool,
    /// Its words are being written.
    carving: bool,
}

/// The known objects and pages of a block that has left the accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) runs: Vec<LeftRun>,
    /// The page map as it is to be, if it is another.
    pub(crate) map: Option<Box<[u64]>>,
    /// The longest stretch of pages in no run.
    pub(crate) stretch: u32,
}

/// The known objects of a run of such a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftRun {
    pub(crate) run: Run,
    /// Free at the owner.
    pub(crate) free: Box<[u64]>,
    /// Words of *taken* as last seen.
    pub(crate) taken: Box<[u64]>,
}

/// A run that was carved here, and the words that are to be written for it: from a page on.
pub(crate) struct Carving {
    pub(crate) run: Run,
    pub(crate) from: u32,
    pub(crate) words: Vec<u64>,
}

impl LocalBlock {
    /// A block with that page map and those runs, of which no object is known to be free. `taken` has all words of
    /// *taken*, or none if they are zero.
    pub(crate) fn new(
        shape: &BlockShape,
        word: BlockWord,
        map: Box<[u64]>,
        runs: &[Run],
        taken: Box<[u64]>,
    ) -> LocalBlock {
        let mut block = LocalBlock {
            word,
            map,
            firsts: vec![0; shape.pages as usize].into(),
            runs: Vec::with_capacity(runs.len()),
            taken,
            in_use: 0,
            free_pages: shape.usable_pages(),
            busy: false,
            retired: 0,
            taken_count: 0,
        };
        runs.iter().for_each(|run| block.insert(shape, *run));
        block
    }

    fn insert(&mut self, shape: &BlockShape, run: Run) {
        self.firsts[run.page as usize..run.end() as usize].fill(run.page as u8);
        self.free_pages -= run.pages;
        self.in_use += run.count;
        let first = shape.pair_of(run.page);
        let taken = match self.taken.is_empty() {
            true => vec![0; run.words()].into(),
            false => self.taken[first..first + run.words()].into(),
        };
        let at = self.runs.partition_point(|other| other.run.page < run.page);
        self.runs.insert(at, LocalRun { taken, ..LocalRun::in_use(run) });
    }

    pub(crate) fn runs(&self) -> &[LocalRun] {
        &self.runs
    }

    fn index_of(&self, page: u32) -> Option<usize> {
        let first = u32::from(*self.firsts.get(page as usize)?);
        (first > 0).then(|| self.runs.binary_search_by_key(&first, |run| run.run.page).ok())?
    }

    /// The run of a page.
    pub(crate) fn run_at(&self, page: u32) -> Option<&LocalRun> {
        self.index_of(page).map(|index| &self.runs[index])
    }

    pub(crate) fn run_at_mut(&mut self, page: u32) -> Option<&mut LocalRun> {
        self.index_of(page).map(|index| &mut self.runs[index])
    }

    /// Tells whether no object is in use, retired, or on its way through somebody's hands.
    pub(crate) fn is_free(&self) -> bool {
        self.in_use == 0 && self.retired == 0 && self.is_idle()
    }

    /// Tells whether nobody has it in hand, and no harvest or carving of it is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy && self.runs.iter().all(|run| !run.harvesting && !run.carving)
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Takes an object of the run; its offset in the block.
    pub(crate) fn take(&mut self, page: u32) -> Option<u64> {
        let run = self.run_at_mut(page)?;
        let index = run.take()?;
        let offset = run.run.offset_of(index);
        self.in_use += 1;
        self.taken_count = self.taken_count.saturating_add(1);
        Some(offset)
    }

    /// Makes objects of a run free; how many were not.
    pub(crate) fn add(&mut self, page: u32, word: usize, bits: u64) -> u32 {
        let Some(run) = self.run_at_mut(page) else { return 0 };
        let added = run.add(word, bits);
        self.in_use -= added;
        added
    }

    /// Tells whether the run can be dropped.
    pub(crate) fn can_drop(&self, page: u32) -> bool {
        !self.busy && self.run_at(page).is_some_and(LocalRun::is_droppable)
    }

    /// Drops a run without an object in use: its pages are in no run. Only here: in the pool its words stay,
    /// until another run is carved there or the block is given up.
    pub(crate) fn drop_run(&mut self, shape: &BlockShape, page: u32) {
        let Some(index) = self.index_of(page) else { return };
        let LocalRun { run, taken, .. } = self.runs.remove(index);
        if self.taken.is_empty() && taken.iter().any(|word| *word != 0) {
            self.taken = vec![0; shape.pair_of(shape.pages)].into();
        }
        if !self.taken.is_empty() {
            let first = shape.pair_of(run.page);
            self.taken[first..first + taken.len()].copy_from_slice(&taken);
        }
        self.firsts[run.page as usize..run.end() as usize].fill(0);
        self.free_pages += run.pages;
    }

    /// The place for a run of the class: at most `wanted` pages, at least `fewest`, and a multiple of these, in the
    /// shortest stretch that has so many.
    pub(crate) fn place(&self, shape: &BlockShape, wanted: u32, fewest: u32) -> Option<(u32, u32)> {
        if self.free_pages < fewest {
            return None;
        }
        let all = || stretches(shape, |page| self.firsts[page as usize] == 0);
        let fitting = all().filter(|(_, pages)| *pages >= wanted).min_by_key(|(_, pages)| *pages);
        let longest = || all().max_by_key(|(_, pages)| *pages);
        let (first, found) = fitting.or_else(longest)?;
        let pages = found.min(wanted) / fewest * fewest;
        // So that runs of few pages, which come and go, do not cut up what long ones need.
        let page = if shape.is_long(pages) { first + found - pages } else { first };
        (pages > 0).then_some((page, pages))
    }

    /// Carves a run here; nothing of it is free before [`LocalBlock::carved`].
    pub(crate) fn carve(&mut self, shape: &BlockShape, run: Run) -> Carving {
        // Stale words around it are cleared as well, so that each run that they name has all of its words.
        let stale = shape.runs(&self.map).unwrap_or_default();
        let (mut from, mut end) = (run.page, run.end());
        for run in stale.iter().filter(|other| other.page < run.end() && run.page < other.end()) {
            (from, end) = (from.min(run.page), end.max(run.end()));
        }
        let words = &mut self.map[from as usize..end as usize];
        let version = words.iter().map(|word| MapWord(*word).version()).max().unwrap_or(0) + 1;
        words.fill(MapWord::free(version).0);
        words[(run.page - from) as usize..]
            .iter_mut()
            .zip(shape.run_words(&run, version))
            .for_each(|(word, new)| {
                *word = new;
            });
        let words = words.to_vec();
        self.insert(shape, run);
        if let Some(new) = self.run_at_mut(run.page) {
            new.carving = true;
        }
        Carving { run, from, words }
    }

    /// The words of the run are in the pool: its objects are free.
    pub(crate) fn carved(&mut self, page: u32) {
        let Some(run) = self.run_at_mut(page) else { return };
        run.carving = false;
        for word in 0..run.free.len() {
            run.add(word, run.run.valid_bits(word));
        }
        self.in_use -= self.run_at(page).map_or(0, |run| run.run.count);
    }

    /// The longest stretch of pages in no run, or in runs without an object in use.
    pub(crate) fn stretch(&self, shape: &BlockShape) -> u32 {
        longest_stretch(shape, |page| self.run_at(page).is_none_or(LocalRun::is_droppable))
    }

    /// Its word, and all that others have to know once the block is nobody's.
    pub(crate) fn into_left(mut self, shape: &BlockShape) -> (BlockWord, Left) {
        let dropped: Vec<u32> =
            self.runs.iter().filter(|run| run.is_droppable()).map(|run| run.run.page).collect();
        dropped.into_iter().for_each(|page| self.drop_run(shape, page));
        let mut map = self.map.clone();
        for (word, first) in map.iter_mut().zip(&self.firsts) {
            let free = MapWord::free(MapWord(*word).version());
            // A free page's word keeps the version, so that the next carving changes it.
            *word = if *first == 0 { free.0 } else { *word };
        }
        let stretch = self.stretch(shape);
        let runs = self.runs.into_iter().map(|LocalRun { run, free, taken, .. }| LeftRun {
            run,
            free,
            taken,
        });
        let left = Left { runs: runs.collect(), map: (map != self.map).then_some(map), stretch };
        (self.word, left)
    }
}

impl LocalRun {
    /// A run of which nothing is known to be free.
    fn in_use(run: Run) -> LocalRun {
        LocalRun {
            run,
            free: vec![0; run.words()].into(),
            free_count: 0,
            hint: 0,
            taken: Box::default(),
            harvesting: false,
            carving: false,
        }
    }

    /// Tells whether no object is in use.
    pub(crate) fn is_wholly_free(&self) -> bool {
        self.free_count == self.run.count
    }

    fn is_droppable(&self) -> bool {
        self.is_wholly_free() && !self.harvesting && !self.carving
    }

    /// Tells whether the object is free here.
    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.free[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    fn take(&mut self) -> Option<u32> {
        let word = self.next_free_word()?;
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.free_count -= 1;
        Some(word as u32 * 64 + bit)
    }

    /// The first word from the hint on, around, with a free object.
    fn next_free_word(&mut self) -> Option<usize> {
        let words = self.free.len();
        if self.free.get(self.hint).is_none_or(|word| *word == 0) {
            self.hint = (self.hint + 1..words).chain(0..words).find(|at| self.free[*at] != 0)?;
        }
        Some(self.hint)
    }

    /// Makes objects free; how many were not.
    fn add(&mut self, word: usize, bits: u64) -> u32 {
        let new = bits & !self.free[word];
        self.free[word] |= new;
        self.free_count += new.count_ones();
        new.count_ones()
    }

    /// A word of *taken* holds `value`: the objects whose bits have changed.
    pub(crate) fn note_taken(&mut self, word: usize, value: u64) -> u64 {
        std::mem::replace(&mut self.taken[word], value) ^ value
    }
}

/// The error for an address where no object starts.
pub(crate) fn no_object(addr: GlobalAddr) -> PoolError {
    PoolError::Corrupt(format!("no object starts at {addr}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::class_of;

    fn run_of(shape: &BlockShape, bytes: usize, page: u32, pages: u32) -> Run {
        shape.run(class_of(bytes).unwrap_or_default(), page, pages)
    }

    /// INV-RUN-3: whichever words of a carving have come when the owner dies, each page is in one run at most, and
    /// runs with objects in use are as they were.
    #[test]
    fn a_carving_that_came_in_part_leaves_whole_runs() {
        let shape = BlockShape::new(64 << 10);
        let no_taken = || vec![0; shape.pair_of(shape.pages)].into_boxed_slice();
        let word = BlockWord(0);
        let mut before = vec![0; shape.pages as usize];
        let mut local = LocalBlock::new(&shape, word, before.clone().into(), &[], no_taken());
        // In use: before, between and behind the runs that are dropped.
        let kept = [(64, 2, 1), (4096, 7, 4), (960, 16, 2)]
            .map(|(bytes, page, pages)| run_of(&shape, bytes, page, pages));
        let dropped = [(2560, 3, 4), (128, 11, 3)]
            .map(|(bytes, page, pages)| run_of(&shape, bytes, page, pages));
        for run in kept.iter().chain(&dropped) {
            let carving = local.carve(&shape, *run);
            let at = carving.from as usize;
            before[at..at + carving.words.len()].copy_from_slice(&carving.words);
            local.carved(run.page);
        }
        for run in &kept {
            assert!(local.take(run.page).is_some());
        }
        dropped.iter().for_each(|run| local.drop_run(&shape, run.page));
        assert_eq!(local.place(&shape, 2, 1), Some((3, 2)), "the shortest stretch that suits");
        assert_eq!(local.place(&shape, 5, 1), Some((11, 5)), "the next one");
        assert_eq!(local.place(&shape, 20, 10), Some((44, 20)), "a long one at the end");
        // Over the end of one dropped run and free pages behind it; over the midst of the other.
        for (bytes, page, pages) in [(1024, 12, 4), (320, 4, 1), (512, 3, 2), (2048, 12, 2)] {
            let new = run_of(&shape, bytes, page, pages);
            let mut local = LocalBlock::new(&shape, word, before.clone().into(), &kept, no_taken());
            let carving = local.carve(&shape, new);
            let count = carving.words.len();
            for landed in 0..1_u32 << count {
                let mut map = before.clone();
                for (at, word) in carving.words.iter().enumerate() {
                    if landed >> at & 1 == 1 {
                        map[carving.from as usize + at] = *word;
                    }
                }
                let found = shape.runs(&map).expect("no word is nonsense");
                assert!(kept.iter().all(|run| found.contains(run)), "{landed:#b}");
                let is_known =
                    |run: &Run| kept.contains(run) || dropped.contains(run) || *run == new;
                assert!(found.iter().all(is_known), "{landed:#b}: {found:?}");
                let are_apart = found.windows(2).all(|pair| pair[0].end() <= pair[1].page);
                assert!(are_apart, "{landed:#b}: {found:?}");
                assert!(landed + 1 < 1 << count || found.contains(&new), "{found:?}");
            }
        }
    }
}
