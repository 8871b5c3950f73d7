//! File locks: hold a lock on a file until the holder drops it.
//!
//! The holder unlocks by itself, because a copy of the descriptor in a child process would keep the
//! lock.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;

/// A file under the system's advisory lock. Dropped, it is unlocked at once.
///
/// Closing is not enough: a process that is just being started by another thread has copies of all
/// descriptors until it executes its program, and the system keeps a lock until the last copy is closed.
/// A process that dies unlocks all the same.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    /// Locks it for this holder alone, if nobody else has it.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if somebody has it; else what the system says.
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

    /// Waits until it is locked for all who share it so.
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
        // It fails for no file that could be locked; and then the system unlocks it when it is closed.
        let _ = self.0.unlock();
    }
}
