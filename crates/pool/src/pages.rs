//! Pages: divide a block, in runs of which each holds objects of one size class.
//!
//! A block consists of at most 256 pages. The first ones are its *front*: the header, the *page map*, a word
//! for each page, and the bitmaps *given* and *taken*, whose words stand in pairs. The owner of the block
//! carves runs out of the other pages.
//!
//! A word of the page map, bits: 0-1 state (0 in no run, 1 first page of a run, 2 further page), 2-16 bytes of
//! an object / 64, 17-24 number of the run's pages, or of a further page its distance from the first, 25-63
//! version. An object's page alone so tells where its run begins, and the bits of the object.
//!
//! INV-RUN-1: only the owner of a block WRITEs its page map, and it hands out objects of a run only after that
//! WRITE has ended. While an object of a run is in use, the words of the run's pages stay as they are.
//! INV-RUN-2: each carving of a run changes all of its words: the version is one above the highest of before.
//! So two words that are equal, in a block that was not carved in between, are of the same run.
//! INV-RUN-3: a run counts only if all of its words name it. An owner that dies in the WRITE leaves words of
//! two carvings; no object of either was in use, unless all words of the earlier run are still there.
//! INV-RUN-4: the two words of a pair are equal in pages of no run. So a run is carved by the WRITE of its
//! words alone.

use crate::class::{CLASS_COUNT, OBJECT_ALIGN, class_bytes, class_of_size};

/// Bytes of a block's header, in front of its page map.
pub(crate) const BLOCK_HEADER_BYTES: u64 = 64;
/// Bytes of a pair of bitmap words.
pub(crate) const PAIR_BYTES: u64 = 16;
const PAGES_MAX: u64 = 256;
const PAGE_BYTES_MIN: u64 = 1024;
/// A run's pages waste at most this part of them, if there is such a number of pages.
const WASTE_PART: u64 = 8;
/// Objects of so many bytes, and of a page or more, have runs of the fewest pages.
const LARGE_BYTES: u64 = 32 << 10;
/// A long run has at least this part of a block's pages.
const LONG_RUN_PART: u32 = 16;

/// Division of all blocks of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub(crate) page_bytes: u64,
    pub(crate) pages: u32,
    /// Pages of the front.
    pub(crate) front_pages: u32,
    /// Pairs of bitmap words of a page.
    pairs: u32,
    /// Per class, the fewest pages of a run; 0 if a block is too small.
    run_pages: Vec<u32>,
}

/// A run of pages of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) class: usize,
    pub(crate) page: u32,
    pub(crate) pages: u32,
    /// Number of objects.
    pub(crate) count: u32,
    /// Offset of the first in the block.
    start: u64,
}

impl Run {
    /// Bytes of an object.
    pub(crate) fn object_bytes(&self) -> u64 {
        class_bytes(self.class)
    }

    /// Words of each of its two bitmaps.
    pub(crate) fn words(&self) -> usize {
        self.count.div_ceil(64) as usize
    }

    /// The object that starts at `offset` of the block.
    pub(crate) fn object_at(&self, offset: u64) -> Option<u32> {
        let from_first = offset.checked_sub(self.start)?;
        let index = from_first / self.object_bytes();
        (from_first % self.object_bytes() == 0 && index < u64::from(self.count))
            .then_some(index as u32)
    }

    /// Offset in the block of the object `index`.
    pub(crate) fn offset_of(&self, index: u32) -> u64 {
        self.start + u64::from(index) * self.object_bytes()
    }

    /// The bits of word `word` of a bitmap that stand for objects.
    pub(crate) fn valid_bits(&self, word: usize) -> u64 {
        match u64::from(self.count).saturating_sub(word as u64 * 64) {
            0 => 0,
            left @ 1..=63 => (1 << left) - 1,
            _ => u64::MAX,
        }
    }

    /// The first page after it.
    pub(crate) fn end(&self) -> u32 {
        self.page + self.pages
    }
}

impl BlockShape {
    pub(crate) fn new(block_bytes: u64) -> Self {
        let page_bytes = (block_bytes / PAGES_MAX).max(PAGE_BYTES_MIN);
        let pages = (block_bytes / page_bytes) as u32;
        let pairs = (page_bytes / OBJECT_ALIGN).div_ceil(64) as u32;
        let mut shape =
            BlockShape { page_bytes, pages, front_pages: 0, pairs, run_pages: Vec::new() };
        shape.front_pages = shape.front_bytes().div_ceil(page_bytes) as u32;
        shape.run_pages = (0..CLASS_COUNT).map(|class| shape.fewest_pages(class)).collect();
        shape
    }

    /// The fewest pages whose run of the class wastes little, or the least.
    fn fewest_pages(&self, class: usize) -> u32 {
        let (bytes, most) = (class_bytes(class), self.pages - self.front_pages);
        let waste = |pages: u32| u64::from(pages) * self.page_bytes % bytes;
        let fewest = bytes.div_ceil(self.page_bytes) as u32;
        let mut pages = fewest..=most.min(fewest * 8);
        let good = |pages: &u32| waste(*pages) * WASTE_PART <= u64::from(*pages) * self.page_bytes;
        let least = |pages: &u32| (waste(*pages) << 32) / u64::from(*pages);
        pages.clone().find(good).or_else(|| pages.by_ref().min_by_key(least)).unwrap_or(0)
    }

    /// Bytes of header, page map and bitmaps.
    pub(crate) fn front_bytes(&self) -> u64 {
        self.pairs_at(self.pages)
    }

    /// Bytes of header and page map.
    pub(crate) fn map_end(&self) -> u64 {
        self.map_at(self.pages)
    }

    /// Offset of a page's word of the page map.
    pub(crate) fn map_at(&self, page: u32) -> u64 {
        BLOCK_HEADER_BYTES + u64::from(page) * 8
    }

    /// Offset of the first pair of a page.
    pub(crate) fn pairs_at(&self, page: u32) -> u64 {
        self.map_end() + self.pair_of(page) as u64 * PAIR_BYTES
    }

    /// Number of pairs of the pages in front of this one.
    pub(crate) fn pair_of(&self, page: u32) -> usize {
        page as usize * self.pairs as usize
    }

    /// Pages that can be in runs.
    pub(crate) fn usable_pages(&self) -> u32 {
        self.pages - self.front_pages
    }

    /// Bytes that can be in objects.
    pub(crate) fn usable_bytes(&self) -> u64 {
        u64::from(self.usable_pages()) * self.page_bytes
    }

    /// The page at an offset of a block.
    pub(crate) fn page_of(&self, offset: u64) -> u32 {
        (offset / self.page_bytes) as u32
    }

    /// The fewest pages of a run of the class; 0 if a block is too small for it.
    pub(crate) fn run_pages(&self, class: usize) -> u32 {
        self.run_pages[class]
    }

    /// Pages of a member's next run of a class of which it has `owned` pages: as many again, so that runs are few. In
    /// a pool that is nearly full, no more than an eighth of them. For large objects, the fewest: a WRITE of page words
    /// is little beside theirs, and their pages come back one by one.
    pub(crate) fn next_run_pages(&self, class: usize, owned: u32, is_tight: bool) -> u32 {
        let fewest = self.run_pages(class);
        let wanted = match class_bytes(class) >= self.page_bytes.max(LARGE_BYTES) {
            true => fewest,
            false if is_tight => owned / 8,
            false => owned,
        };
        (wanted.min(self.usable_pages()) / fewest * fewest).max(fewest)
    }

    /// Tells whether a run of so many pages is long: it is carved at the other end of a stretch than short ones.
    pub(crate) fn is_long(&self, pages: u32) -> bool {
        pages >= self.pages / LONG_RUN_PART
    }

    pub(crate) fn run(&self, class: usize, page: u32, pages: u32) -> Run {
        let count = u64::from(pages) * self.page_bytes / class_bytes(class);
        Run { class, page, pages, count: count as u32, start: u64::from(page) * self.page_bytes }
    }

    /// The runs of a page map, ascending (INV-RUN-3).
    ///
    /// # Errors
    /// The fault, if a word makes no sense.
    pub(crate) fn runs(&self, map: &[u64]) -> Result<Vec<Run>, String> {
        let mut runs: Vec<Run> = Vec::new();
        for (page, word) in (0..self.pages).zip(map) {
            let word = MapWord(*word);
            let nonsense = || {
                format!("its page map breaks INV-RUN-1: the word of page {page} is {:#x}", word.0)
            };
            let Some(part) = word.part(page, self).ok_or_else(nonsense)? else { continue };
            let (class, first, pages) = part;
            let Some(pages) = pages else { continue };
            let is_whole = (1..pages).all(|at| {
                let further = MapWord(map.get((first + at) as usize).copied().unwrap_or(0));
                further == word.further(at)
            });
            if is_whole {
                runs.push(self.run(class, first, pages));
            }
        }
        Ok(runs)
    }

    /// The words of a run's pages.
    pub(crate) fn run_words(&self, run: &Run, version: u64) -> impl Iterator<Item = u64> + use<> {
        let first = MapWord::first(class_bytes(run.class), run.pages, version);
        (0..run.pages).map(move |at| if at == 0 { first.0 } else { first.further(at).0 })
    }
}

const FREE: u64 = 0;
const FIRST: u64 = 1;
const FURTHER: u64 = 2;

/// A word of the page map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapWord(pub(crate) u64);

impl MapWord {
    fn new(state: u64, bytes: u64, pages: u32, version: u64) -> MapWord {
        MapWord(state | (bytes / OBJECT_ALIGN) << 2 | u64::from(pages) << 17 | version << 25)
    }

    /// The word of a page in no run.
    pub(crate) fn free(version: u64) -> MapWord {
        MapWord::new(FREE, 0, 0, version)
    }

    fn first(bytes: u64, pages: u32, version: u64) -> MapWord {
        MapWord::new(FIRST, bytes, pages, version)
    }

    /// The word of the page so far behind the one with this word.
    fn further(self, distance: u32) -> MapWord {
        MapWord::new(FURTHER, self.object_bytes(), distance, self.version())
    }

    pub(crate) fn version(self) -> u64 {
        self.0 >> 25
    }

    /// Bytes of an object of the run.
    pub(crate) fn object_bytes(self) -> u64 {
        (self.0 >> 2 & 0x7fff) * OBJECT_ALIGN
    }

    /// Of a page in a run: the class, the first page, and if this is the first the number of pages.
    #[expect(clippy::option_option, reason = "nonsense, no run, a run")]
    fn part(self, page: u32, shape: &BlockShape) -> Option<Option<(usize, u32, Option<u32>)>> {
        let number = (self.0 >> 17) as u32 & 0xff;
        if self.0 & 3 == FREE {
            return Some(None);
        }
        let class = class_of_size(self.object_bytes())?;
        let (first, pages) = match self.0 & 3 {
            FIRST => (page, Some(number)),
            FURTHER => (page.checked_sub(number)?, None),
            _ => return None,
        };
        let holds = |pages| u64::from(pages) * shape.page_bytes >= class_bytes(class);
        let is_whole = pages.is_none_or(holds);
        let is_inside = first >= shape.front_pages && page + pages.unwrap_or(1) <= shape.pages;
        let is_further = pages.is_some() || number > 0;
        (is_whole && is_inside && is_further).then_some(Some((class, first, pages)))
    }

    /// Class and first page of the run of a page with this word; `None` if it is in none.
    pub(crate) fn run_at(self, page: u32, shape: &BlockShape) -> Option<(usize, u32)> {
        let (class, first, _) = self.part(page, shape)??;
        Some((class, first))
    }
}

/// The longest stretch of usable pages that `is_free`.
pub(crate) fn longest_stretch(shape: &BlockShape, is_free: impl Fn(u32) -> bool) -> u32 {
    stretches(shape, is_free).map(|(_, pages)| pages).max().unwrap_or(0)
}

/// The stretches of usable pages that `is_free`: first page, and number of pages.
pub(crate) fn stretches(
    shape: &BlockShape,
    is_free: impl Fn(u32) -> bool,
) -> impl Iterator<Item = (u32, u32)> {
    let (mut next, end) = (shape.front_pages, shape.pages);
    std::iter::from_fn(move || {
        let first = (next..end).find(|page| is_free(*page))?;
        next = (first..end).find(|page| !is_free(*page)).unwrap_or(end);
        Some((first, next - first))
    })
}
