//! File locks: hold a lock on a file until the holder drops it.
//!
//! The holder unlocks by itself, because a copy of the descriptor in a child process would keep the
//! lock. The child of a `fork` closes its copies of the locks that say that its parent lives.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, TryLockError as Busy, Weak};

use crate::sync::{Mutex, thread};

/// Attempts to list a lock, each while another thread lists or forgets one.
const LIST_TRIES: usize = 10_000;

/// A file under the system's advisory lock. Dropped, it is unlocked at once.
///
/// Closing is not enough. A process that another thread is starting has copies of all descriptors until it
/// executes its program. The system keeps a lock until the last copy is closed. A process that dies releases
/// its locks all the same.
#[derive(Debug)]
pub(crate) struct Locked {
    file: File,
    /// False for the copy in the child of a fork: an unlock there would unlock the parent's.
    unlocks: bool,
}

impl Locked {
    /// Locks it for this holder alone, unless another holds it.
    ///
    /// # Errors
    /// [`TryLockError::WouldBlock`] if another holds it; else the system's error.
    pub(crate) fn try_new(file: File) -> Result<Locked, TryLockError> {
        file.try_lock()?;
        Ok(Locked { file, unlocks: true })
    }

    /// Waits until it is locked for this holder alone.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait(file: File) -> io::Result<Locked> {
        file.lock()?;
        Ok(Locked { file, unlocks: true })
    }

    /// Waits until it is locked in shared mode.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn wait_shared(file: File) -> io::Result<Locked> {
        file.lock_shared()?;
        Ok(Locked { file, unlocks: true })
    }

    /// Closes this copy of the descriptor, and leaves the lock to the other copies.
    fn close_copy(mut self) {
        self.unlocks = false;
    }

    /// The lock of a process that is starting.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> File {
        self.file.try_clone().expect("a copy")
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.unlocks {
            // Unlocking fails for no file that could be locked; if it did, the close would unlock it.
            let _ = self.file.unlock();
        }
    }
}

/// The lock by which other processes know that this one lives.
#[derive(Debug)]
pub(crate) struct LifeLock(#[allow(dead_code, reason = "held")] Arc<ListedLock>);

/// `None` in the child of a fork.
type ListedLock = Mutex<Option<Locked>>;

impl LifeLock {
    pub(crate) fn new(locked: Locked) -> LifeLock {
        LIVES.hold(locked)
    }

    /// As [`Locked::copy`].
    #[cfg(test)]
    pub(crate) fn copy(&self) -> File {
        crate::sync::lock(&self.0).as_ref().expect("not closed").copy()
    }
}

/// The life locks of this process.
static LIVES: LifeLocks = LifeLocks(Mutex::new(Vec::new()));

struct LifeLocks(Mutex<Vec<Weak<ListedLock>>>);

impl LifeLocks {
    /// Lists a lock. In the child of a fork the list may be busy for ever; the lock is not listed then.
    #[allow(
        clippy::disallowed_methods,
        reason = "threads of a process wait for one another, no tasks"
    )]
    fn hold(&self, locked: Locked) -> LifeLock {
        let held = Arc::new(Mutex::new(Some(locked)));
        for _ in 0..LIST_TRIES {
            if let Some(mut all) = unless_busy(&self.0) {
                all.retain(|life| life.strong_count() > 0);
                all.push(Arc::downgrade(&held));
                break;
            }
            thread::yield_now();
        }
        LifeLock(held)
    }

    /// Closes them all. A mutex that another thread of the parent held at the fork is never unlocked here, so its content
    /// stays as it is.
    fn close_copies(&self) {
        let Some(mut all) = unless_busy(&self.0) else { return };
        for life in all.drain(..).filter_map(|life| life.upgrade()) {
            let copy = unless_busy(&life).and_then(|mut held| held.take());
            copy.into_iter().for_each(Locked::close_copy);
        }
    }
}

fn unless_busy<T>(mutex: &Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(held) => Some(held),
        Err(Busy::Poisoned(held)) => Some(PoisonError::into_inner(held)),
        Err(Busy::WouldBlock) => None,
    }
}

/// Closes the calling process's copies of the locks by which others know that its parent lives: for the child of a
/// `fork`. Otherwise they would not recover a parent that is killed while its child goes on.
///
/// If another thread of the parent opened a store on a folder at the very moment of the fork, the copies may stay until
/// the child ends.
pub fn close_life_locks_after_fork() {
    LIVES.close_copies();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(path: &std::path::Path) -> Result<Locked, TryLockError> {
        let open = File::options().read(true).write(true).create(true).truncate(false).open(path);
        Locked::try_new(open.expect("a file"))
    }

    /// The close of a copy in a child leaves the lock to its parent.
    #[test]
    fn a_child_closes_its_copies_and_unlocks_nothing() {
        let path = std::env::temp_dir().join(format!("farleaf-life-{}", std::process::id()));
        let lives = LifeLocks(Mutex::new(Vec::new()));
        let of_child = locked(&path).expect("nobody has it");
        let of_parent = of_child.copy();
        let life = lives.hold(of_child);
        lives.close_copies();
        lives.close_copies();
        drop(life);
        assert!(matches!(locked(&path), Err(TryLockError::WouldBlock)), "the parent lives");
        drop(of_parent);
        // A life that ends by itself is unlocked, whatever copies there are.
        let ends = locked(&path).expect("the parent has ended");
        let copy = ends.copy();
        drop(lives.hold(ends));
        drop(locked(&path).expect("it has ended"));
        assert_eq!(lives.0.lock().expect("free").len(), 1, "the first one is forgotten");
        drop(copy);
        // As in a child whose parent was just listing a lock.
        let busy = lives.0.lock().expect("free");
        lives.close_copies();
        let life = lives.hold(locked(&path).expect("nobody has it"));
        assert!(matches!(locked(&path), Err(TryLockError::WouldBlock)), "listed or not");
        drop((busy, life));
        std::fs::remove_file(&path).expect("the file");
    }
}
