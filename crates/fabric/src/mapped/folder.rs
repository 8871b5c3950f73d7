//! A pool folder: one file per memory server, one lock file per process that uses it.
//!
//! ```text
//! <folder>/lock              locked while the pool is being made
//! <folder>/region-00000      the memory of server 0; its length is the region's
//! <folder>/members/<life>    locked by the process of that incarnation for as long as it lives
//! ```
//!
//! The kernel gives a lock back when its process is gone, however it went, also across containers
//! that share the folder. So a life is proven dead when its file is missing or can be locked.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::{FabricError, Incarnation, Words};

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    own: PathBuf,
    _own_lock: File,
}

/// Keeps others out of a pool folder that is being made. Dropped without
/// [`CreateGuard::finish`], it removes what was made.
#[derive(Debug)]
pub struct CreateGuard {
    lock: File,
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl CreateGuard {
    /// The pool is complete: lets others in.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self) -> Result<(), FabricError> {
        self.made.clear();
        self.lock.unlock().map_err(|source| io_error("unlock", &self.path, source))
    }
}

impl Drop for CreateGuard {
    fn drop(&mut self) {
        // Best effort on the way out of a failure that is already being reported.
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
        incarnation: Incarnation,
    ) -> Result<(Folder, Vec<Words>, CreateGuard), FabricError> {
        if path.exists() && !path.is_dir() {
            return Err(not_a_pool(path, "it is a file; name a folder that is empty or new"));
        }
        let is_new = !path.exists();
        fs::create_dir_all(path).map_err(|source| io_error("make folder", path, source))?;
        // Before a lock file is left in somebody else's folder, and again when nobody can come in.
        check_empty(path)?;
        let lock_path = path.join("lock");
        let lock = open_lock(&lock_path)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(not_a_pool(path, "another process is using or making it"));
            }
            Err(TryLockError::Error(source)) => {
                return Err(io_error("lock", &lock_path, source));
            }
        }
        check_empty(path)?;
        let made = if is_new { vec![path.to_path_buf(), lock_path] } else { vec![lock_path] };
        let mut guard = CreateGuard { lock, path: path.to_path_buf(), made };
        check_space(path, servers as u64 * region_bytes)?;
        let mut regions = Vec::with_capacity(servers);
        for server in 0..servers {
            let region = region_path(path, server);
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&region)
                .map_err(|source| io_error("make", &region, source))?;
            guard.made.push(region.clone());
            file.set_len(region_bytes).map_err(|source| io_error("size", &region, source))?;
            let words = Words::map(&file, (region_bytes / 8) as usize);
            regions.push(words.map_err(|source| io_error("map", &region, source))?);
        }
        let members = path.join("members");
        fs::create_dir(&members).map_err(|source| io_error("make folder", &members, source))?;
        guard.made.push(members);
        let folder = Folder::join(path, incarnation)?;
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
        let making = open_lock(&lock_path)?;
        // Waits for a process that is just making the pool.
        making.lock_shared().map_err(|source| io_error("lock", &lock_path, source))?;
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
                .map_err(|source| io_error("open", &region, source))?;
            let bytes =
                file.metadata().map_err(|source| io_error("look at", &region, source))?.len();
            if bytes < super::REGION_BYTES_MIN || !bytes.is_multiple_of(4096) {
                let why = format!("it has {bytes} bytes, which no region has: cut short?");
                return Err(FabricError::Damaged { path: region, why });
            }
            let words = Words::map(&file, (bytes / 8) as usize);
            regions.push(words.map_err(|source| io_error("map", &region, source))?);
        }
        let folder = Folder::join(path, incarnation)?;
        Ok((folder, regions))
    }

    /// Makes and locks this life's own file.
    fn join(path: &Path, incarnation: Incarnation) -> Result<Folder, FabricError> {
        let own = member_path(path, incarnation);
        let lock = open_lock(&own)?;
        lock.lock().map_err(|source| io_error("lock", &own, source))?;
        Ok(Folder { path: path.to_path_buf(), own, _own_lock: lock })
    }

    /// Whether the process of that life is gone for certain.
    pub(super) fn is_dead(&self, who: Incarnation) -> bool {
        let path = member_path(&self.path, who);
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => file.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
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

fn open_lock(path: &Path) -> Result<File, FabricError> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|source| io_error("open", path, source))
}

/// Refuses a folder that holds anything but the lock of a creation that failed.
fn check_empty(path: &Path) -> Result<(), FabricError> {
    let entries = fs::read_dir(path).map_err(|source| io_error("list", path, source))?;
    if entries.flatten().any(|entry| entry.file_name() != "lock") {
        let why = "it is not empty; open what it holds, or name a folder that is empty or new";
        return Err(not_a_pool(path, why));
    }
    Ok(())
}

/// Memory files grow as they are touched; running out then would kill the process.
fn check_space(path: &Path, bytes: u64) -> Result<(), FabricError> {
    let space = rustix::fs::statvfs(path)
        .map_err(|source| io_error("look at the space of", path, source.into()))?;
    let free = space.f_bavail * space.f_frsize;
    if free < bytes {
        return Err(FabricError::Config(format!(
            "a pool of {bytes} bytes does not fit into {}, which has {free} bytes free: \
             ask for a smaller one",
            path.display()
        )));
    }
    Ok(())
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> FabricError {
    FabricError::Io { what, path: path.to_path_buf(), source }
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

    #[test]
    fn what_is_no_pool_is_refused_with_a_reason() {
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

    #[test]
    fn a_creation_that_is_not_finished_leaves_nothing() {
        let scratch = Scratch::new("unfinished");
        drop(Mapped::create(&scratch.0, 1, 1 << 20).expect("create"));
        assert!(!scratch.0.exists());
        let huge = Mapped::create(&scratch.0, 1, 1 << 47).expect_err("no such space");
        assert!(huge.to_string().contains("does not fit"), "{huge}");
        assert!(!scratch.0.exists());
    }
}
