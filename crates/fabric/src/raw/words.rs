//! Shared words: memory that other threads, processes or cards may write at any time.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::copy::LINE_WORDS;
use super::copy::{self, STEP_WORDS};

/// Steps behind the first one of a copy that are fetched beside it.
const STEPS_AHEAD: usize = 3;

/// Anonymous memory from this size on asks for huge pages.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_FROM_BYTES: usize = 64 << 20;

/// A stretch of 8-byte words shared with other threads and processes.
///
/// All access is by word with atomic loads and stores, so that a racing writer can tear an
/// operation between words but never within one.
pub struct Words {
    first: NonNull<AtomicU64>,
    len: usize,
    /// Keeps the memory alive.
    _map: Arc<MmapRaw>,
    /// Kind of its memory, for people.
    kind: &'static str,
    number: u64,
}

/// Mappings of this process so far.
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the memory is only reached as `&[AtomicU64]`, which is Sync, and nothing about the
// allocation or the mapping belongs to one thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// `len` zeroed words of anonymous memory. The system commits pages when they are first
    /// touched, also beyond what the machine has. `None` if the address space cannot be had.
    pub fn anonymous(len: usize) -> Option<Words> {
        // The allocator would zero memory that is aligned to a page by hand, and so commit it all.
        let bytes = len.max(1).checked_mul(8)?;
        let mut options = MmapOptions::new();
        options.len(bytes);
        #[cfg(not(miri))]
        options.no_reserve_swap();
        let map = MmapRaw::from(options.map_anon().ok()?);
        // Random reads of a large region otherwise miss the address cache nearly every time. A
        // system that has no huge pages goes on with small ones.
        #[cfg(all(target_os = "linux", not(miri)))]
        if bytes >= HUGE_FROM_BYTES {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Words::whole(map, len, "anonymous")
    }

    /// As [`Words::anonymous`], on huge pages that the system has set aside for such requests, all
    /// taken at once. `None` if there are too few of them.
    pub fn anonymous_huge(len: usize) -> Option<Words> {
        let mut options = MmapOptions::new();
        options.len(len.max(1).checked_mul(8)?).huge(None);
        Words::whole(MmapRaw::from(options.map_anon().ok()?), len, "anonymous")
    }

    /// The first `len` words of `file`, shared with every process that maps it.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` if the file is shorter.
    pub fn map(file: &File, len: usize) -> io::Result<Words> {
        Words::map_from(file, 0, len)
    }

    /// `len` words of `file` from byte `offset` on, shared with every process that maps them.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` if the file is shorter, `InvalidInput` if `offset` is no multiple
    /// of 64 KiB, which every system can map from.
    pub fn map_from(file: &File, offset: u64, len: usize) -> io::Result<Words> {
        if file.metadata()?.len() < offset + len as u64 * 8 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !offset.is_multiple_of(64 << 10) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let map = MmapOptions::new().offset(offset).len(len * 8).map_raw(file)?;
        Words::whole(map, len, "file").ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// All `len` words of a device of memory, shared with every process that maps it: the first `cut` of
    /// them, and the others. A device does not tell its length. The caller knows that it has so many words,
    /// in whole units of its alignment, and the device checks that.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` if one of the sides would have no words.
    #[cfg(feature = "dax")]
    pub(crate) fn map_device(file: &File, cut: usize, len: usize) -> io::Result<(Words, Words)> {
        if cut == 0 || cut >= len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let map = MmapOptions::new().len(len * 8).map_raw(file)?;
        let all = Words::whole(map, len, "device");
        let all = all.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        // SAFETY: the mapping has `len` words, and `cut` is less.
        let second = unsafe { all.first.add(cut) };
        let others = Words::over(second, len - cut, Arc::clone(&all._map), all.kind);
        Ok((all.shortened(cut), others))
    }

    /// Returns the first `len` of its words; the others stay mapped, and nobody reaches them.
    ///
    /// # Panics
    /// If there are fewer.
    #[cfg(feature = "dax")]
    pub(crate) fn shortened(self, len: usize) -> Words {
        assert!(len <= self.len, "{len} words of {}", self.len);
        Words { len, ..self }
    }

    /// All `len` words of a mapping. `None` if it has no address.
    fn whole(map: MmapRaw, len: usize, kind: &'static str) -> Option<Words> {
        let first = NonNull::new(map.as_mut_ptr())?.cast();
        Some(Words::over(first, len, Arc::new(map), kind))
    }

    fn over(first: NonNull<AtomicU64>, len: usize, map: Arc<MmapRaw>, kind: &'static str) -> Words {
        let number = MAPPINGS.fetch_add(1, Ordering::Relaxed);
        Words { first, len, _map: map, kind, number }
    }

    /// Number of this mapping in this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The words themselves.
    #[inline]
    pub fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `first` points to `len` words that `_map` keeps alive and readable and
        // writable for as long as `self` lives; both sources align them to a page. `AtomicU64` has
        // interior mutability, so that others may write them meanwhile. A mapped file that
        // somebody cuts short raises SIGBUS, which stops the process; it is not undefined.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.len as u64 * 8
    }

    /// Copies words from `first` on into `into`. Every word is one atomic load; the loads have no order.
    /// Later loads return words that are at least as new.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    pub fn load(&self, first: usize, into: &mut [u64]) {
        // The copy waits for the lines of one step at a time.
        for step in (STEP_WORDS..into.len()).step_by(STEP_WORDS).take(STEPS_AHEAD) {
            self.prefetch(first + step, STEP_WORDS * 8);
        }
        copy::load(&self.as_slice()[first..first + into.len()], into);
    }

    /// Asks the processor to fetch `bytes` bytes from word `first` on, at most 1 KiB of them, for later
    /// loads. Does nothing on processors without such a request, and for words out of bounds.
    #[inline]
    pub fn prefetch(&self, first: usize, bytes: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let words = self.as_slice();
            let mut left = bytes.min(STEP_WORDS * 8);
            let mut at = first;
            while let Some(word) = words.get(at) {
                // SAFETY: every x86-64 processor has SSE; a prefetch changes and checks nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast_const().cast()) };
                if left <= LINE_WORDS * 8 {
                    return;
                }
                left -= LINE_WORDS * 8;
                at += LINE_WORDS;
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (first, bytes);
    }

    /// Stores `from` from word `first` on. Every word is one atomic store; the stores have no order. After
    /// the return, every later operation of any thread sees them.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    pub fn store(&self, first: usize, from: &[u64]) {
        copy::store(&self.as_slice()[first..first + from.len()], from);
    }

    /// Copies bytes from any byte offset. Words are loaded whole.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline]
    pub fn load_bytes(&self, offset: usize, into: &mut [u8]) {
        copy::load_bytes(self.as_slice(), offset, into);
    }

    /// Stores bytes at any byte offset. Whole words are stored as one; the first and the last may
    /// be covered in part, and are then changed by CAS so that the neighbours' bytes stay.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn store_bytes(&self, offset: usize, from: &[u8]) {
        copy::store_bytes(self.as_slice(), offset, from);
    }

    /// CAS on one word; returns the old word.
    ///
    /// # Panics
    /// If `word` is out of bounds.
    #[inline]
    pub fn cas(&self, word: usize, expected: u64, new: u64) -> u64 {
        copy::cas(&self.as_slice()[word], expected, new)
    }

    /// FAA on one word; returns the old word.
    ///
    /// # Panics
    /// If `word` is out of bounds.
    #[inline]
    pub fn faa(&self, word: usize, add: u64) -> u64 {
        copy::faa(&self.as_slice()[word], add)
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Words({} words, {})", self.len, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_words_load_back() {
        let words = Words::anonymous(1000).expect("8 KB of memory");
        let data: Vec<u64> = (0..300).map(|i| i * 0x0101_0101).collect();
        words.store(7, &data);
        let mut back = vec![0; 300];
        words.load(7, &mut back);
        assert_eq!(back, data);
        assert_eq!(words.cas(7, data[0], 9), data[0]);
        assert_eq!(words.cas(7, data[0], 10), 9);
        assert_eq!(words.faa(7, u64::MAX), 9);
        assert_eq!(words.as_slice()[7].load(Ordering::Relaxed), 8);
    }

    #[test]
    fn any_byte_range_is_stored_and_nothing_beside_it() {
        let words = Words::anonymous(16).expect("memory");
        for offset in 0..24 {
            for len in 0..40 {
                words.store(0, &[u64::MAX; 16]);
                let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
                words.store_bytes(offset, &data);
                let mut all = [0; 128];
                words.load_bytes(0, &mut all);
                assert_eq!(&all[offset..offset + len], &data[..]);
                let beside = all[..offset].iter().chain(&all[offset + len..]);
                assert!(beside.copied().all(|byte| byte == 0xff), "{offset} {len}");
                let mut back = vec![0; len];
                words.load_bytes(offset, &mut back);
                assert_eq!(back, data);
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_short_file_is_refused() {
        let file = tempfile();
        file.set_len(100).expect("set length");
        let refused = Words::map(&file, 64).expect_err("64 words need 512 bytes");
        assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof);
        file.set_len(512).expect("set length");
        let one = Words::map(&file, 64).expect("map");
        let other = Words::map(&file, 64).expect("map again");
        one.store(3, &[77]);
        assert_eq!(other.as_slice()[3].load(Ordering::Relaxed), 77);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("farleaf-words-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .expect("open a temporary file");
        std::fs::remove_file(&path).expect("unlink it");
        file
    }
}
