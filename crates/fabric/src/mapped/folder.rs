//! Pool folder: holds one file per memory server and one lock file per process that uses the pool.
//!
//! ```text
//! <folder>/lock              locked while the pool is being made
//! <folder>/making            there until the pool is made
//! <folder>/unreserved        there if the pool's files take space only as it is used
//! <folder>/region-00000      the memory of server 0; its length is the region's
//! <folder>/members/<life>    locked by the process of that incarnation for as long as it lives
//! <folder>/calls/<life>      the socket at which that process takes calls, if it does
//! <folder>/exposed/<life>    the memory that that process exposes, if it does
//! ```
//!
//! The kernel releases a lock when its process ends, however it ends, also across containers that share
//! the folder. So a life is dead if its file is missing or can be locked.
//!
//! A process that joins removes the files of the dead. It removes a file only under its lock, and only
//! if the name still leads to the locked file. A life begins only once its file's name leads to the
//! file that it has locked. So nobody removes a file of the living, although that is unlocked for a
//! moment.
//!
//! If `making` exists and `lock` is free, the maker died: the folder is no pool, and the next maker of
//! a pool removes its rest.
//!
//! All space of the regions is reserved when they are made, and again when they are opened, since a copy of a
//! folder may have holes. If `unreserved` exists, nothing is reserved.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::locked::{LifeLock, Locked};
use crate::{FabricError, Incarnation, Words, space};

/// Attempts to make the own file; each fails only if another process is just joining.
const JOIN_TRIES: usize = 1000;

#[derive(Debug)]
pub(super) struct Folder {
    path: Arc<Path>,
    own: PathBuf,
    _own_lock: LifeLock,
    /// Of the process that made the pool.
    made: Option<Made>,
}

/// State of a folder after its pool was made.
#[derive(Clone, Copy, Debug)]
struct Made {
    /// The moment at which its maker joined, when its members changed last.
    joined: SystemTime,
    /// The folder was made, too.
    is_new: bool,
}

/// Keeps others out of a pool folder that is being made. Dropped without
/// [`CreateGuard::finish`], it removes what was made.
#[derive(Debug)]
pub struct CreateGuard {
    _lock: Locked,
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl CreateGuard {
    /// The pool is complete: lets other processes open it.
    ///
    /// # Errors
    /// The system's error.
    pub fn finish(mut self) -> Result<(), FabricError> {
        let making = making_path(&self.path);
        fs::remove_file(&making).map_err(FabricError::io("remove", &making))?;
        self.made.clear();
        Ok(())
    }
}

impl Drop for CreateGuard {
    fn drop(&mut self) {
        // Best effort: an earlier failure is already being reported.
        for path in self.made.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

impl Folder {
    pub(super) fn create(
        path: &Path,
        servers: usize,
        region_bytes: u64,
        is_reserved: bool,
        incarnation: Incarnation,
    ) -> Result<(Folder, Vec<Words>, CreateGuard), FabricError> {
        if path.exists() && !path.is_dir() {
            return Err(not_a_pool(path, "it is a file; name a folder that is empty or new"));
        }
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(FabricError::io("make folder", path))?;
        // Before this leaves a lock file in a foreign folder, and again once nobody can come in.
        check_empty(path)?;
        let lock_path = path.join("lock");
        let lock = Locked::try_new(open_lock(&lock_path)?).map_err(|error| match error {
            TryLockError::WouldBlock => not_a_pool(path, "another process is using or making it"),
            TryLockError::Error(source) => FabricError::io("lock", &lock_path)(source),
        })?;
        check_empty(path)?;
        let made = if is_new { vec![path.to_path_buf(), lock_path] } else { vec![lock_path] };
        let mut guard = CreateGuard { _lock: lock, path: path.to_path_buf(), made };
        let making = making_path(path);
        File::create(&making).map_err(FabricError::io("make", &making))?;
        guard.made.push(making);
        // Left of a maker that died.
        for left in left_of_a_pool(path)? {
            let gone =
                if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
            gone.map_err(FabricError::io("remove", &left))?;
        }
        space::check(path, servers as u64 * region_bytes)?;
        if !is_reserved {
            let mark = unreserved_path(path);
            File::create(&mark).map_err(FabricError::io("make", &mark))?;
            guard.made.push(mark);
        }
        let mut regions = Vec::with_capacity(servers);
        for server in 0..servers {
            let region = region_path(path, server);
            let file = File::create_new(&region).map_err(FabricError::io("make", &region))?;
            guard.made.push(region.clone());
            file.set_len(region_bytes).map_err(FabricError::io("size", &region))?;
            if is_reserved {
                space::reserve(&file, &region, region_bytes)?;
            }
            let words = Words::map(&file, (region_bytes / 8) as usize);
            regions.push(words.map_err(FabricError::io("map", &region))?);
        }
        let members = path.join("members");
        fs::create_dir(&members).map_err(FabricError::io("make folder", &members))?;
        guard.made.push(members);
        let mut folder = Folder::join(path, incarnation)?;
        folder.made = Some(Made { joined: folder.members_changed()?, is_new });
        Ok((folder, regions, guard))
    }

    pub(super) fn open(
        path: &Path,
        incarnation: Incarnation,
    ) -> Result<(Folder, Vec<Words>), FabricError> {
        if !path.exists() {
            return Err(not_a_pool(path, "there is no such folder; create the pool first"));
        }
        if !path.is_dir() {
            return Err(not_a_pool(path, "it is a file; a pool is a folder"));
        }
        if !region_path(path, 0).exists() {
            return Err(not_a_pool(path, "it holds no file region-00000; create the pool first"));
        }
        let lock_path = path.join("lock");
        // Waits for a process that is making the pool.
        let _none_makes_it = Locked::wait_shared(open_lock(&lock_path)?)
            .map_err(FabricError::io("lock", &lock_path))?;
        if making_path(path).exists() {
            let why =
                "the process that made this pool died before it was complete; make the pool again";
            return Err(not_a_pool(path, why));
        }
        let is_reserved = !unreserved_path(path).exists();
        let mut regions = Vec::new();
        loop {
            let region = region_path(path, regions.len());
            if !region.exists() {
                break;
            }
            let file = File::options()
                .read(true)
                .write(true)
                .open(&region)
                .map_err(FabricError::io("open", &region))?;
            let bytes = file.metadata().map_err(FabricError::io("look at", &region))?.len();
            if bytes < super::REGION_BYTES_MIN || !bytes.is_multiple_of(4096) {
                let why = format!("it has {bytes} bytes, which no region has: cut short?");
                return Err(FabricError::Damaged { path: region, why });
            }
            if is_reserved {
                space::reserve(&file, &region, bytes)?;
            }
            let words = Words::map(&file, (bytes / 8) as usize);
            regions.push(words.map_err(FabricError::io("map", &region))?);
        }
        if regions.is_empty() {
            return Err(not_a_pool(path, "its maker has just removed it; create the pool first"));
        }
        let folder = Folder::join(path, incarnation)?;
        Ok((folder, regions))
    }

    /// Path of the folder.
    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Makes and locks this life's own file, and removes those of the dead.
    fn join(path: &Path, incarnation: Incarnation) -> Result<Folder, FabricError> {
        let own = member_path(path, incarnation);
        for _ in 0..JOIN_TRIES {
            let lock = Locked::wait(open_lock(&own)?).map_err(FabricError::io("lock", &own))?;
            // Another process may have removed it, taking it for a dead one's, before it was locked.
            if is_at(&lock, &own) {
                let _own_lock = LifeLock::new(lock);
                let folder = Folder { path: path.into(), own, _own_lock, made: None };
                folder.remove_dead();
                return Ok(folder);
            }
        }
        let source = io::Error::other("it is being removed by others");
        Err(FabricError::io("lock", &own)(source))
    }

    /// The moment at which a process joined or left last.
    fn members_changed(&self) -> Result<SystemTime, FabricError> {
        let members = self.path.join("members");
        let told = fs::metadata(&members).and_then(|told| told.modified());
        told.map_err(FabricError::io("look at", &members))
    }

    /// Removes the pool if this process has made it and no other has ever joined; returns whether it has. The
    /// memory stays mapped here.
    pub(super) fn remove_if_unused(&self) -> Result<bool, FabricError> {
        let Some(made) = self.made else { return Ok(false) };
        let lock_path = self.path.join("lock");
        // A process that joins holds it until it has joined.
        let Ok(_none_joins) = Locked::try_new(open_lock(&lock_path)?) else { return Ok(false) };
        if self.members_changed()? != made.joined {
            return Ok(false);
        }
        // From here on nobody can open it, should this process die.
        let making = making_path(&self.path);
        File::create(&making).map_err(FabricError::io("make", &making))?;
        for left in left_of_a_pool(&self.path)? {
            let gone =
                if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
            gone.map_err(FabricError::io("remove", &left))?;
        }
        fs::remove_file(&making).map_err(FabricError::io("remove", &making))?;
        fs::remove_file(&lock_path).map_err(FabricError::io("remove", &lock_path))?;
        if made.is_new {
            // One in which somebody makes the next pool already is not empty, and stays.
            let _ = fs::remove_dir(&self.path);
        }
        Ok(true)
    }

    /// Removes the files of lives that are gone. If a file cannot be removed now, the next caller tries
    /// again.
    fn remove_dead(&self) {
        let Ok(entries) = fs::read_dir(self.path.join("members")) else { return };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.own) {
            // Opened without creating: it may be gone meanwhile.
            let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
            if let Ok(file) = Locked::try_new(file)
                && is_at(&file, &path)
            {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Returns whether the process of that life is certainly gone.
    pub(super) fn is_dead(&self, who: Incarnation) -> bool {
        is_dead(&self.path, who)
    }
}

/// Returns whether the process of that life is certainly gone, by the pool folder at `path`.
pub(super) fn is_dead(path: &Path, who: Incarnation) -> bool {
    match File::options().read(true).write(true).open(member_path(path, who)) {
        Ok(file) => Locked::try_new(file).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A missing file means "gone", which is what this life is from here on.
        let _ = fs::remove_file(&self.own);
    }
}

fn region_path(path: &Path, server: usize) -> PathBuf {
    path.join(format!("region-{server:05}"))
}

fn member_path(path: &Path, who: Incarnation) -> PathBuf {
    path.join("members").join(who.to_string())
}

/// Returns whether the name leads to that very file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn making_path(path: &Path) -> PathBuf {
    path.join("making")
}

fn unreserved_path(path: &Path) -> PathBuf {
    path.join("unreserved")
}

fn open_lock(path: &Path) -> Result<File, FabricError> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(FabricError::io("open", path))
}

/// Refuses a folder that holds anything but the rest of a creation that failed.
fn check_empty(path: &Path) -> Result<(), FabricError> {
    let entries = fs::read_dir(path).map_err(FabricError::io("list", path))?;
    let is_half_made = making_path(path).exists();
    let is_ours = |name: &str| name == "lock" || is_half_made && is_of_a_pool(name);
    if entries.flatten().any(|entry| !entry.file_name().to_str().is_some_and(is_ours)) {
        let why = "it is not empty; open what it holds, or name a folder that is empty or new";
        return Err(not_a_pool(path, why));
    }
    Ok(())
}

/// Returns whether a pool has a file or folder of that name besides its lock.
fn is_of_a_pool(name: &str) -> bool {
    let digits = name.strip_prefix("region-");
    name == "making"
        || name == "members"
        || name == "calls"
        || name == "unreserved"
        || name == "exposed"
        || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Regions and members in the folder.
fn left_of_a_pool(path: &Path) -> Result<Vec<PathBuf>, FabricError> {
    let entries = fs::read_dir(path).map_err(FabricError::io("list", path))?;
    let is_left = |name: &str| name != "making" && is_of_a_pool(name);
    let left = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_left));
    Ok(left.map(|entry| entry.path()).collect())
}

fn not_a_pool(path: &Path, why: impl Into<String>) -> FabricError {
    FabricError::NotAPool { path: path.to_path_buf(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::Mapped;
    use crate::{Endpoint, Fabric, GlobalAddr, ServerId};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farleaf-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn two_opens_share_memory_and_see_each_other_die() {
        let scratch = Scratch::new("share");
        let (one, guard) = Mapped::create(&scratch.0, 2, 1 << 20).expect("create");
        guard.finish().expect("finish");
        let two = Mapped::open(&scratch.0).expect("open");
        let (one_end, two_end) = (one.endpoint().expect("one"), two.endpoint().expect("two"));
        let addr = GlobalAddr::new(ServerId(1), 4096);
        one_end.executor().block_on(async {
            assert_eq!(one_end.cas(addr, 0, 42).await, Ok(0));
            assert_eq!(two_end.cas(addr, 42, 43).await, Ok(42));
            assert!(!one_end.is_dead(two_end.incarnation()).await);
            let refused = one_end.fence(ServerId(0), two_end.incarnation()).await;
            assert!(refused.is_err(), "the living cannot be fenced");
        });
        let gone = two_end.incarnation();
        drop((two, two_end));
        one_end.executor().block_on(async {
            assert!(one_end.is_dead(gone).await);
            assert_eq!(one_end.fence(ServerId(0), gone).await, Ok(()));
        });
    }

    /// A process died of SIGBUS when the file system was full: files took space as they were touched.
    #[test]
    fn all_space_of_a_pool_is_reserved_unless_it_was_made_without() {
        const BYTES: u64 = 1 << 20;
        let scratch = Scratch::new("reserved");
        let taken = || fs::metadata(region_path(&scratch.0, 1)).expect("there").blocks() * 512;
        let (made, guard) = Mapped::create(&scratch.0, 2, BYTES).expect("create");
        guard.finish().expect("finish");
        assert!(taken() >= BYTES, "{} bytes", taken());
        drop(made);
        // A copy may have holes.
        let file = File::options().write(true).open(region_path(&scratch.0, 1)).expect("open");
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, hole, 0, BYTES).expect("a hole");
        assert!(taken() < BYTES);
        drop(Mapped::open(&scratch.0).expect("open"));
        assert!(taken() >= BYTES, "{} bytes", taken());
        let _ = fs::remove_dir_all(&scratch.0);
        let (made, guard) = Mapped::create_unreserved(&scratch.0, 2, BYTES).expect("create");
        guard.finish().expect("finish");
        drop((made, Mapped::open(&scratch.0).expect("open")));
        assert!(taken() < BYTES, "{} bytes", taken());
        let _ = fs::remove_dir_all(&scratch.0);
        let error = Mapped::create(&scratch.0, 2, 1 << 45).expect_err("too large");
        assert!(matches!(error, FabricError::NoSpace { bytes, .. } if bytes == 1 << 46), "{error}");
        assert!(!scratch.0.exists());
    }

    /// Killed processes leave their files; the next process to join removes them.
    #[test]
    fn files_of_the_dead_are_removed_and_they_stay_dead() {
        let scratch = Scratch::new("dead-files");
        let (one, guard) = Mapped::create(&scratch.0, 1, 1 << 20).expect("create");
        guard.finish().expect("finish");
        let end = one.endpoint().expect("endpoint");
        let names = || {
            let entries = fs::read_dir(scratch.0.join("members")).expect("members").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        // As a kill leaves it: present, and unlocked.
        let dead = Incarnation(0x00de_ad00);
        File::create(member_path(&scratch.0, dead)).expect("a file");
        assert_eq!(names().len(), 2);
        let two = Mapped::open(&scratch.0).expect("open");
        assert_eq!(names().len(), 2, "of the two that live");
        assert!(!member_path(&scratch.0, dead).exists());
        let two_end = two.endpoint().expect("endpoint");
        one.endpoint().expect("endpoint").executor().block_on(async {
            assert!(end.is_dead(dead).await);
            assert_eq!(end.fence(ServerId(0), dead).await, Ok(()));
            assert!(!end.is_dead(two_end.incarnation()).await);
            assert!(!two_end.is_dead(end.incarnation()).await);
        });
        // A life whose file was removed just before it locked it makes the file anew.
        let own = member_path(&scratch.0, Incarnation(0x00be_9100));
        let late = open_lock(&own).expect("made");
        drop(Mapped::open(&scratch.0).expect("open"));
        assert!(!is_at(&late, &own));
        // A process that finds another's new file under an old name leaves it alone.
        let new = open_lock(&own).expect("made");
        new.lock().expect("lock");
        late.lock().expect("lock");
        assert!(!is_at(&late, &own) && is_at(&new, &own));
        drop(Mapped::open(&scratch.0).expect("open"));
        assert!(own.exists(), "it is locked");
    }

    /// Lives begin at once, and each removes what is unlocked: none may lose its own file.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the system's processes are what it is about")]
    fn lives_that_begin_at_once_leave_each_other_alone() {
        let scratch = Scratch::new("at-once");
        let (one, guard) = Mapped::create(&scratch.0, 1, 1 << 20).expect("create");
        guard.finish().expect("finish");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let path = &scratch.0;
                scope.spawn(move || {
                    for life in 0..100 {
                        let who = Incarnation(1 + thread * 1000 + life);
                        let folder = Folder::join(path, who).expect("join");
                        assert!(
                            is_at(&folder._own_lock.copy(), &folder.own),
                            "its file was removed"
                        );
                        assert!(!folder.is_dead(who));
                    }
                });
            }
        });
        drop(one);
    }

    #[test]
    fn a_folder_that_is_no_pool_is_refused_with_a_reason() {
        let scratch = Scratch::new("refuse");
        let why = |result: Result<Mapped, FabricError>| result.expect_err("refused").to_string();
        assert!(why(Mapped::open(&scratch.0)).contains("no such folder"));
        fs::create_dir_all(&scratch.0).expect("folder");
        assert!(why(Mapped::open(&scratch.0)).contains("no file region-00000"));
        fs::write(scratch.0.join("region-00000"), [1; 100]).expect("a short file");
        assert!(why(Mapped::open(&scratch.0)).contains("cut short"));
        let create = |bytes| Mapped::create(&scratch.0, 1, bytes).map(|(mapped, _)| mapped);
        fs::remove_file(scratch.0.join("lock")).expect("made by opening");
        assert!(why(create(1 << 20)).contains("not empty"));
        assert!(!scratch.0.join("lock").exists(), "a foreign folder stays as it was");
        assert!(why(create(100)).contains("multiple of 4096"));
        let file = scratch.0.join("region-00000");
        assert!(why(Mapped::open(&file)).contains("it is a file"));
    }

    /// A process that is killed while it makes a pool leaves a folder that the next maker can use.
    #[test]
    fn a_killed_creation_keeps_nobody_from_making_the_pool() {
        let scratch = Scratch::new("killed-creation");
        let (mapped, guard) = Mapped::create(&scratch.0, 2, 1 << 20).expect("create");
        let busy = Mapped::create(&scratch.0, 1, 1 << 20).expect_err("its maker lives").to_string();
        assert!(busy.contains("another process"), "{busy}");
        // As the death of the process leaves it: unlocked, and complete.
        guard._lock.unlock().expect("unlock");
        std::mem::forget(guard);
        std::mem::forget(mapped);
        let why = Mapped::open(&scratch.0).expect_err("half made").to_string();
        assert!(why.contains("make the pool again"), "{why}");
        let (mapped, guard) = Mapped::create(&scratch.0, 1, 1 << 20).expect("create again");
        guard.finish().expect("finish");
        drop(mapped);
        Mapped::open(&scratch.0).expect("open");
        assert!(!scratch.0.join("region-00001").exists(), "of the dead maker");
        let why = Mapped::create(&scratch.0, 1, 1 << 20).expect_err("it is a pool").to_string();
        assert!(why.contains("not empty"), "{why}");
        // A foreign folder is left alone, even if its files have a pool's names.
        fs::write(making_path(&scratch.0), "").expect("a file");
        fs::write(scratch.0.join("thesis"), "").expect("a file");
        assert!(Mapped::create(&scratch.0, 1, 1 << 20).is_err());
        assert!(scratch.0.join("region-00000").exists());
    }

    #[test]
    fn a_creation_that_is_not_finished_leaves_nothing() {
        let scratch = Scratch::new("unfinished");
        drop(Mapped::create(&scratch.0, 1, 1 << 20).expect("create"));
        assert!(!scratch.0.exists());
        let huge = Mapped::create(&scratch.0, 1, 1 << 47).expect_err("no such space");
        assert!(huge.to_string().contains("do not fit"), "{huge}");
        assert!(!scratch.0.exists());
    }
}
