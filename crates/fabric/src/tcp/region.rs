//! Memory region: the words that a memory server exposes, and the record of fences beside them.
//!
//! A region's file:
//!
//! ```text
//! 0          header: magic, version, server, servers, bytes, id (words), zero up to 4 KiB
//! 4 KiB      incarnations that have been fenced, a word each; the first zero word ends them
//! 2 MiB      the words that compute servers reach
//! ```
//!
//! - **TCP-8** The magic word is stored last, when the file has its length and the rest of its header.
//! - **TCP-9** The server answers a fence once its incarnation stands in the file, so that a restarted
//!   server still knows the incarnations that it has cut off.
//!
//! With the feature `dax`, a device of memory (`/dev/dax0.0`) holds the same, in one mapping. If its first 2
//! MiB are zero, the device is unused: the server makes a region on it and sets its words to zero.
//!
//! The content of a mapped file outlives the process, however that ends, but not a crash of the
//! machine.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt;
#[cfg(feature = "dax")]
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

#[cfg(feature = "dax")]
use super::dax::{Dax, SYS};
use crate::locked::Locked;
use crate::mapped::{check_geometry, new_number};
use crate::sync::lock;
use crate::{FabricError, Incarnation, ServerId, Words, space};

/// `FARLEAFR`.
const MAGIC: u64 = u64::from_le_bytes(*b"FARLEAFR");
const VERSION: u64 = 1;
/// Words of the header that are used.
const HEADER_WORDS: usize = 6;
/// Words of the fenced incarnations, and byte at which the exposed words begin: a huge page's border, for
/// files on memory that has such pages.
const FENCED_AT: usize = 4096 / 8;
pub(super) const WORDS_AT: u64 = 2 << 20;

/// Use of huge pages that were set aside for a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// It does.
    Yes,
    /// It was not wanted, or there are too few huge pages: the system chooses.
    No,
}

/// Memory to serve, by one server at a time.
#[derive(Debug)]
pub struct Region {
    pub(super) words: Arc<Words>,
    pub(super) id: u64,
    pub(super) record: Option<Record>,
    huge_pages: HugePages,
}

/// Knowledge of a server that has to outlive it.
#[derive(Debug)]
pub(super) struct Record {
    words: Words,
    /// Number of fenced incarnations.
    fenced: Mutex<usize>,
    /// Keeps other servers away.
    _file: Locked,
}

impl Region {
    /// `bytes` of zeroed memory of this process alone, on huge pages if that is `wanted` and there
    /// are enough of them. It goes when the process ends.
    ///
    /// # Errors
    /// [`FabricError::Config`] for an invalid size, [`FabricError::NoMemory`] if it cannot be had.
    pub fn anonymous(bytes: u64, wanted: HugePages) -> Result<Region, FabricError> {
        check_geometry(1, bytes)?;
        let len = (bytes / 8) as usize;
        let huge = (wanted == HugePages::Yes).then(|| Words::anonymous_huge(len)).flatten();
        let huge_pages = if huge.is_some() { HugePages::Yes } else { HugePages::No };
        let words = huge.or_else(|| Words::anonymous(len));
        let words = words.ok_or(FabricError::NoMemory { bytes, server: ServerId(0) })?;
        Ok(Region { huge_pages, ..Region::over(Arc::new(words)) })
    }

    /// Takes words of this process. Served again by the same process, they keep their id.
    pub fn over(words: Arc<Words>) -> Region {
        static OF_PROCESS: OnceLock<u64> = OnceLock::new();
        let id = OF_PROCESS.get_or_init(new_number).wrapping_add(words.number());
        Region { words, id, record: None, huge_pages: HugePages::No }
    }

    /// The memory in the file at `path`, of memory server `server` of `servers`, as it was left. If there is
    /// no file, this makes one of `bytes` zeroed bytes. The file may lie on any file system that can map
    /// files; on `/dev/shm` and the like it is plain memory. All of the
    /// file's space is reserved now, so that a file system that fills up does no harm later.
    ///
    /// With the feature `dax`, `path` may be a device of memory, as `/dev/dax0.0`. On an unused device this makes a region of
    /// `bytes`, else of all, and sets it to zero.
    ///
    /// # Errors
    /// [`FabricError::Config`] if there is no file and `bytes` is missing or invalid, or if the file is of
    /// another size or server. [`FabricError::NotARegion`] if it is no region, or another process serves it.
    /// [`FabricError::Damaged`] if it was cut short; [`FabricError::Io`] if the system refuses.
    pub fn file(
        path: &Path,
        bytes: Option<u64>,
        server: ServerId,
        servers: usize,
    ) -> Result<Region, FabricError> {
        let mut options = File::options();
        options.read(true).write(true);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(bytes) = bytes else {
                    return Err(FabricError::Config(format!(
                        "{} is not there: say how many bytes to make it with",
                        path.display()
                    )));
                };
                return Region::make(path, bytes, server, servers);
            }
            opened => opened.map_err(FabricError::io("open", path))?,
        };
        let told = file.metadata().map_err(FabricError::io("look at", path))?;
        if told.file_type().is_char_device() {
            #[cfg(feature = "dax")]
            {
                let dax = Dax::look(Path::new(SYS), path, told.rdev())?;
                return Region::device(file, path, dax, bytes, (server, servers));
            }
            #[cfg(not(feature = "dax"))]
            {
                let why = "it is a device: give a file, or build with the feature `dax` for a \
                           device of memory";
                return Err(not_a_region(path, why));
            }
        }
        let file = lock_file(file, path)?;
        let length = told.len();
        if length < WORDS_AT {
            return Err(not_a_region(
                path,
                "it is not a memory server's file, or the process that made it died before it was complete",
            ));
        }
        let record = map(&file, path, 0, WORDS_AT)?;
        let mut header = [0; HEADER_WORDS];
        record.load(0, &mut header);
        let (of_bytes, id) = check_header(path, header, bytes, (server, servers))?;
        if length != WORDS_AT + of_bytes || check_geometry(1, of_bytes).is_err() {
            let why = format!("it has {length} bytes for a region of {of_bytes}: cut short?");
            return Err(FabricError::Damaged { path: path.to_path_buf(), why });
        }
        space::reserve(&file, path, length)?;
        Region::of_file(file, path, record, of_bytes, id)
    }

    /// The region on a device, as it was left; or a new one on an unused device.
    #[cfg(feature = "dax")]
    fn device(
        file: File,
        path: &Path,
        dax: Dax,
        bytes: Option<u64>,
        numbers: (ServerId, usize),
    ) -> Result<Region, FabricError> {
        let file = lock_file(file, path)?;
        let (cut, len) = ((WORDS_AT / 8) as usize, (dax.bytes / 8) as usize);
        let (record, words) =
            Words::map_device(&file, cut, len).map_err(FabricError::io("map", path))?;
        let mut header = [0; HEADER_WORDS];
        record.load(0, &mut header);
        let (of_bytes, id) = if header[0] == MAGIC {
            let (of_bytes, id) = check_header(path, header, bytes, numbers)?;
            if of_bytes > words.bytes() || check_geometry(1, of_bytes).is_err() {
                let why = format!("it has {} bytes for a region of {of_bytes}", dax.bytes);
                return Err(FabricError::Damaged { path: path.to_path_buf(), why });
            }
            (of_bytes, id)
        } else {
            let of_bytes = dax.region_bytes(path, bytes)?;
            check_geometry(1, of_bytes)?;
            // If its maker died before it wrote the magic word, there may be more of a header.
            let is_zero = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::SeqCst) == 0;
            if header[0] != 0 || !record.as_slice()[HEADER_WORDS..].iter().all(is_zero) {
                let why =
                    "it holds something else: if nobody needs that, set its first 2 MiB to zero";
                return Err(not_a_region(path, why));
            }
            tracing::info!(path = %path.display(), bytes = of_bytes, "sets a device to zero");
            let exposed = &words.as_slice()[..(of_bytes / 8) as usize];
            exposed.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            (of_bytes, write_header(&record, of_bytes, numbers))
        };
        let words = words.shortened((of_bytes / 8) as usize);
        Ok(Region::with_record(file, record, words, id))
    }

    fn make(
        path: &Path,
        bytes: u64,
        server: ServerId,
        servers: usize,
    ) -> Result<Region, FabricError> {
        check_geometry(1, bytes)?;
        if path.parent() == Some(Path::new("/dev")) {
            return Err(FabricError::Config(format!(
                "there is no device {}, and no files are made among devices: daxctl list and ndctl list \
                 print those of memory; /dev/shm is for files",
                path.display()
            )));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        space::check(folder.unwrap_or(Path::new(".")), bytes + WORDS_AT)?;
        let file = File::create_new(path).map_err(FabricError::io("make", path))?;
        let file = lock_file(file, path)?;
        let made = || -> Result<(Words, u64), FabricError> {
            file.set_len(WORDS_AT + bytes).map_err(FabricError::io("size", path))?;
            space::reserve(&file, path, WORDS_AT + bytes)?;
            let record = map(&file, path, 0, WORDS_AT)?;
            let id = write_header(&record, bytes, (server, servers));
            Ok((record, id))
        };
        match made() {
            Ok((record, id)) => Region::of_file(file, path, record, bytes, id),
            Err(error) => {
                // The caller gets the earlier failure.
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    fn of_file(
        file: Locked,
        path: &Path,
        record: Words,
        bytes: u64,
        id: u64,
    ) -> Result<Region, FabricError> {
        let words = map(&file, path, WORDS_AT, bytes)?;
        Ok(Region::with_record(file, record, words, id))
    }

    fn with_record(file: Locked, record: Words, words: Words, id: u64) -> Region {
        let list = &record.as_slice()[FENCED_AT..];
        let fenced = list.iter().position(|word| word.load(Ordering::SeqCst) == 0);
        let fenced = Mutex::new(fenced.unwrap_or(list.len()));
        let record = Record { words: record, fenced, _file: file };
        Region { words: Arc::new(words), id, record: Some(record), huge_pages: HugePages::No }
    }

    /// The words that are exposed.
    #[cfg(feature = "verbs")]
    pub(crate) fn words(&self) -> &Arc<Words> {
        &self.words
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Returns whether it lies on huge pages that were set aside.
    pub fn huge_pages(&self) -> HugePages {
        self.huge_pages
    }
}

impl Record {
    /// Returns the fenced incarnations.
    pub(super) fn fenced(&self) -> Vec<Incarnation> {
        let count = *lock(&self.fenced);
        let mut words = vec![0; count];
        self.words.load(FENCED_AT, &mut words);
        words.into_iter().map(Incarnation).collect()
    }

    /// Adds an incarnation that is about to be fenced and is not recorded yet; false if there is no room.
    pub(super) fn add(&self, who: Incarnation) -> bool {
        let mut count = lock(&self.fenced);
        let Some(word) = self.words.as_slice()[FENCED_AT..].get(*count) else { return false };
        word.store(who.0, Ordering::SeqCst);
        *count += 1;
        true
    }
}

/// Returns bytes and id of the region with this header.
fn check_header(
    path: &Path,
    header: [u64; HEADER_WORDS],
    bytes: Option<u64>,
    (server, servers): (ServerId, usize),
) -> Result<(u64, u64), FabricError> {
    let [magic, version, of_server, of_servers, of_bytes, id] = header;
    if magic != MAGIC {
        return Err(not_a_region(
            path,
            "it is not a memory server's file, or the process that made it died before it was complete",
        ));
    }
    if version != VERSION {
        let why = format!("it has version {version}, this program reads {VERSION}");
        return Err(not_a_region(path, why));
    }
    if (of_server, of_servers) != (server.0.into(), servers as u64) {
        return Err(FabricError::Config(format!(
            "{} is of memory server {of_server} of {of_servers}, not {server} of {servers}",
            path.display()
        )));
    }
    if let Some(bytes) = bytes.filter(|bytes| *bytes != of_bytes) {
        return Err(FabricError::Config(format!(
            "{} holds {of_bytes} bytes, not {bytes}: leave the size out to take what is there",
            path.display()
        )));
    }
    Ok((of_bytes, id))
}

/// Writes the header of a new region, and gives it an id.
fn write_header(record: &Words, bytes: u64, (server, servers): (ServerId, usize)) -> u64 {
    let id = new_number();
    record.store(1, &[VERSION, server.0.into(), servers as u64, bytes, id]);
    record.as_slice()[0].store(MAGIC, Ordering::SeqCst);
    id
}

fn map(file: &File, path: &Path, from: u64, bytes: u64) -> Result<Words, FabricError> {
    let words = Words::map_from(file, from, (bytes / 8) as usize);
    words.map_err(FabricError::io("map", path))
}

fn lock_file(file: File, path: &Path) -> Result<Locked, FabricError> {
    Locked::try_new(file).map_err(|error| match error {
        TryLockError::WouldBlock => not_a_region(path, "another process serves it"),
        TryLockError::Error(source) => FabricError::io("lock", path)(source),
    })
}

pub(super) fn not_a_region(path: &Path, why: impl Into<String>) -> FabricError {
    FabricError::NotARegion { path: path.to_path_buf(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farleaf-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const BYTES: u64 = 1 << 20;

    fn open(path: &Path, bytes: Option<u64>) -> Result<Region, FabricError> {
        Region::file(path, bytes, ServerId(1), 2)
    }

    #[test]
    fn words_identity_and_fences_are_found_again() {
        let scratch = Scratch::new("region-again");
        let made = open(&scratch.0, Some(BYTES)).expect("make");
        assert_eq!(made.bytes(), BYTES);
        made.words.store(7, &[77]);
        let record = made.record.as_ref().expect("a record");
        assert!(record.add(Incarnation(5)) && record.add(Incarnation(3)));
        let busy = open(&scratch.0, None).expect_err("it is served").to_string();
        assert!(busy.contains("another process serves it"), "{busy}");
        let id = made.id;
        drop(made);
        let again = open(&scratch.0, None).expect("open");
        assert_eq!((again.id, again.bytes()), (id, BYTES));
        assert_eq!(again.words.as_slice()[7].load(Ordering::SeqCst), 77);
        let record = again.record.as_ref().expect("a record");
        assert_eq!(record.fenced(), [Incarnation(5), Incarnation(3)]);
        assert!(record.add(Incarnation(9)));
        assert_eq!(record.fenced().last(), Some(&Incarnation(9)));
    }

    #[test]
    fn a_region_that_does_not_fit_is_refused_with_a_reason() {
        let scratch = Scratch::new("region-refused");
        let why = |bytes| open(&scratch.0, bytes).expect_err("refused").to_string();
        assert!(why(None).contains("how many bytes"));
        assert!(why(Some(100)).contains("multiple of 4096"));
        assert!(why(Some(1 << 47)).contains("do not fit"));
        assert!(!scratch.0.exists());
        std::fs::write(&scratch.0, [1; 100]).expect("a file of somebody's");
        assert!(why(None).contains("not a memory server's file"));
        assert_eq!(std::fs::read(&scratch.0).expect("still there"), [1; 100]);
        std::fs::remove_file(&scratch.0).expect("remove");
        drop(open(&scratch.0, Some(BYTES)).expect("make"));
        assert!(why(Some(2 * BYTES)).contains("holds 1048576 bytes"));
        let other = Region::file(&scratch.0, None, ServerId(0), 2).expect_err("another server's");
        assert!(other.to_string().contains("memory server 1 of 2, not 0 of 2"), "{other}");
        let file = File::options().write(true).open(&scratch.0).expect("open");
        file.set_len(WORDS_AT + BYTES - 4096).expect("cut");
        assert!(why(None).contains("cut short"));
    }

    /// A server died of SIGBUS when its file system was full: its file took space as it was written.
    #[test]
    fn all_space_of_a_file_is_reserved() {
        let scratch = Scratch::new("region-reserved");
        let taken = || std::fs::metadata(&scratch.0).expect("there").blocks() * 512;
        drop(open(&scratch.0, Some(BYTES)).expect("make"));
        assert!(taken() >= WORDS_AT + BYTES, "{} bytes", taken());
        // A copy of it may have holes.
        let file = File::options().write(true).open(&scratch.0).expect("open");
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, WORDS_AT, BYTES).expect("a hole");
        assert!(taken() < WORDS_AT + BYTES);
        drop(open(&scratch.0, None).expect("open"));
        assert!(taken() >= WORDS_AT + BYTES, "{} bytes", taken());
    }

    /// A server that is restarted at once gets its file, also while another thread starts a process.
    #[test]
    fn a_starting_process_keeps_no_region() {
        let scratch = Scratch::new("region-started");
        let made = open(&scratch.0, Some(BYTES)).expect("make");
        let of_child = made.record.as_ref().expect("a record")._file.copy();
        drop(made);
        let again = open(&scratch.0, None).expect("nobody serves it");
        drop(of_child);
        let busy = open(&scratch.0, None).expect_err("it is served").to_string();
        assert!(busy.contains("another process serves it"), "{busy}");
        drop(again);
    }

    #[test]
    fn a_full_record_takes_no_more_fences() {
        let scratch = Scratch::new("region-full");
        let region = open(&scratch.0, Some(BYTES)).expect("make");
        let record = region.record.as_ref().expect("a record");
        let room = WORDS_AT as usize / 8 - FENCED_AT;
        assert!((1..=room as u64).all(|who| record.add(Incarnation(who))));
        assert!(!record.add(Incarnation(1 << 40)));
        assert_eq!(record.fenced().len(), room);
        drop(region);
        let again = open(&scratch.0, None).expect("open");
        assert_eq!(again.record.expect("a record").fenced().len(), room);
        assert_eq!(again.words.as_slice()[0].load(Ordering::SeqCst), 0, "nothing ran over");
    }

    /// A file in place of a device: it is mapped like one, and never cut or extended.
    #[cfg(feature = "dax")]
    #[test]
    fn a_device_is_taken_where_nobody_has_it_and_found_again() {
        let scratch = Scratch::new("region-device");
        let size = 4 * WORDS_AT;
        let dax = Dax::of(size, 1 << 21);
        let open_on = |bytes: Option<u64>, server: u16| {
            let file = File::options().read(true).write(true).open(&scratch.0).expect("open");
            Region::device(file, &scratch.0, dax, bytes, (ServerId(server), 2))
        };
        let device = File::create_new(&scratch.0).expect("make");
        device.set_len(size).expect("size");
        let fill = |from: u64, bytes: &[u8]| {
            use std::os::unix::fs::FileExt;
            File::options().write(true).open(&scratch.0).expect("open").write_all_at(bytes, from)
        };
        let why = |bytes, server| open_on(bytes, server).expect_err("refused").to_string();
        // Foreign data anywhere in the first part is left alone.
        for at in [0, 1024, WORDS_AT - 8] {
            fill(at, b"a superblock").expect("write");
            let told = why(None, 0);
            assert!(told.contains("holds something else"), "{told}");
            fill(at, &[0; 12]).expect("write");
        }
        fill(WORDS_AT, &[0; 4]).expect("write");
        assert!(why(Some(4 * WORDS_AT), 0).contains("has room for 6291456 bytes"));
        assert!(why(Some(100), 0).contains("multiple of 4096"));
        // The rest is set to zero; a maker that died leaves no more than that.
        fill(WORDS_AT + 800, b"rubbish").expect("write");
        fill(8, &[1, 0, 0, 0, 0, 0, 0, 0]).expect("write");
        let made = open_on(None, 0).expect("make");
        assert_eq!(made.bytes(), 3 * WORDS_AT);
        assert!(made.words.as_slice().iter().all(|word| word.load(Ordering::SeqCst) == 0));
        made.words.store(7, &[77]);
        assert!(made.record.as_ref().expect("a record").add(Incarnation(5)));
        assert!(why(None, 0).contains("another process serves it"));
        let id = made.id;
        drop(made);
        let again = open_on(None, 0).expect("open");
        assert_eq!((again.id, again.bytes()), (id, 3 * WORDS_AT));
        assert_eq!(again.words.as_slice()[7].load(Ordering::SeqCst), 77);
        assert_eq!(again.record.as_ref().expect("a record").fenced(), [Incarnation(5)]);
        drop(again);
        assert!(why(None, 1).contains("memory server 0 of 2, not 1 of 2"));
        assert!(why(Some(WORDS_AT), 0).contains("holds 6291456 bytes"));
        assert_eq!(device.metadata().expect("there").len(), size);
        // The region was made on a larger device.
        let smaller = Dax::of(2 * WORDS_AT, 1 << 21);
        let file = File::options().read(true).write(true).open(&scratch.0).expect("open");
        let told = Region::device(file, &scratch.0, smaller, None, (ServerId(0), 2));
        assert!(matches!(told, Err(FabricError::Damaged { .. })), "{told:?}");
    }

    #[cfg(feature = "dax")]
    #[test]
    fn a_part_of_a_device_can_be_taken() {
        let scratch = Scratch::new("region-device-part");
        let file = File::options().read(true).write(true).create_new(true).open(&scratch.0);
        let file = file.expect("make");
        file.set_len(4 * WORDS_AT).expect("size");
        let dax = Dax::of(4 * WORDS_AT, 1 << 21);
        let part = Region::device(file, &scratch.0, dax, Some(BYTES), (ServerId(0), 1));
        assert_eq!(part.expect("make").bytes(), BYTES);
    }

    #[test]
    fn other_devices_are_refused_and_none_are_made() {
        let told = open(Path::new("/dev/null"), None).expect_err("no memory").to_string();
        let why = if cfg!(feature = "dax") { "not a memory device (DAX)" } else { "feature `dax`" };
        assert!(told.contains(why), "{told}");
        let told = open(Path::new("/dev/dax7.7"), Some(BYTES)).expect_err("not there").to_string();
        assert!(told.contains("no device /dev/dax7.7"), "{told}");
    }

    #[test]
    fn memory_without_huge_pages_is_had_all_the_same() {
        let region = Region::anonymous(4 << 20, HugePages::Yes).expect("memory");
        assert_eq!(region.bytes(), 4 << 20);
        region.words.store(1, &[1]);
        assert_eq!(region.words.as_slice()[1].load(Ordering::SeqCst), 1);
        assert!(Region::anonymous(100, HugePages::No).is_err());
    }
}
