//! File locks: hold a lock on a file until the holder drops it.
//!
//! The holder unlocks by itself, because a copy of the descriptor in a child process would keep the
//! lock.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;

/// A file under the system's advisory lock. Dropped, it is unlocked at once.
///
/// Closing is not enough. A process that another thread is starting has copies of all descriptors until it
/// executes its program. The system keeps a lock until the last copy is closed. A process that dies releases
/// its locks all the same.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Locks it for this holder alone, unless another holds it.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another holds it; else the system's error.
    pub(crate) fn try_new(file: File) -> Result<Locked, TryLockError> {
        file.try_lock()?;
        Ok(Locked(file))
    }

    /// Waits until it is locked for this holder alone.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait(file: File) -> io::Result<Locked> {
        file.lock()?;
        Ok(Locked(file))
    }

    /// Waits until it is locked in shared mode.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait_shared(file: File) -> io::Result<Locked> {
        file.lock_shared()?;
        Ok(Locked(file))
    }

    /// The lock of a process that is starting.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> File {
        self.0.try_clone().expect("a copy")
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Unlocking fails for no file that could be locked; if it did, the close would unlock it.
        let _ = self.0.unlock();
    }
}
