//! File space: reserves what a mapped file needs, so that a full file system refuses instead of killing.
//!
//! A file that has holes takes space as it is touched through a mapping, also by a read. If its file system has
//! none left, the system kills the process that touched it (SIGBUS).

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use crate::FabricError;

/// Attempts of a reservation that signals interrupt.
const TRIES: usize = 100;

/// Refuses `bytes` that do not fit on the file system of `path`.
///
/// # Errors
/// [`FabricError::NoSpace`], or the system's error.
pub(crate) fn check(path: &Path, bytes: u64) -> Result<(), FabricError> {
    match free(path)? {
        free if free < bytes => Err(FabricError::NoSpace { path: path.to_path_buf(), bytes, free }),
        _ => Ok(()),
    }
}

/// Reserves the first `bytes` of the file at `path`, unless they are. Its content stays.
///
/// Warns on a file system that cannot reserve space.
///
/// # Errors
/// [`FabricError::NoSpace`] with the bytes that are missing, or the system's error.
pub(crate) fn reserve(file: &File, path: &Path, bytes: u64) -> Result<(), FabricError> {
    let has = file.metadata().map_err(FabricError::io("look at", path))?.blocks() * 512;
    if has >= bytes {
        return Ok(());
    }
    let mut reserved = Err(Errno::INTR);
    for _ in 0..TRIES {
        reserved = fallocate(file, FallocateFlags::empty(), 0, bytes);
        if reserved != Err(Errno::INTR) {
            break;
        }
    }
    match reserved {
        Err(Errno::NOSPC | Errno::DQUOT) => {
            let (bytes, free) = (bytes - has, free(path)?);
            Err(FabricError::NoSpace { path: path.to_path_buf(), bytes, free })
        }
        Err(Errno::OPNOTSUPP) => {
            let path = path.display();
            tracing::warn!(%path, "the file system cannot reserve space: if it fills up, its users die");
            Ok(())
        }
        reserved => reserved.map_err(FabricError::io("reserve space for", path)),
    }
}

/// Bytes that are free for this process on the file system of `path`.
fn free(path: &Path) -> Result<u64, FabricError> {
    let space = statvfs(path).map_err(FabricError::io("look at the space of", path))?;
    Ok(space.f_bavail * space.f_frsize)
}
