//! Activity guard: tracks the operations that run on a store, and wakes the maintenance thread.
//!
//! - **INV-OP-LOCK-1** A thread that sets a flag and then passes all operation locks ([`OpLocks::pass`]) knows that no
//!   operation runs that took its lock without seeing the flag, if operations check the flag while they hold it.
//!   The mutex orders the two.
//! - **INV-OP-LOCK-2** While the maintenance thread sleeps, no operation has begun that it has not
//!   counted: it first says that it sleeps, and then counts once more; an operation first counts,
//!   and then looks whether it sleeps.
//!
//! Modelled in `crates/threads`.

use std::sync::{PoisonError, TryLockError};

use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::thread::{self, Thread};
use crate::sync::{Arc, Mutex, MutexGuard, Weak};

/// Tells others that a context is at work: locked while an operation of the blocking API runs.
#[derive(Debug, Default)]
pub(crate) struct OpLock {
    /// Operations begun.
    ops: Mutex<u64>,
}

impl OpLock {
    /// Takes the lock for an operation.
    #[inline]
    pub(crate) fn enter(&self, activity: &Activity) -> MutexGuard<'_, u64> {
        let mut ops = self.lock();
        *ops += 1;
        activity.note();
        ops
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The operation locks of all threads.
#[derive(Debug, Default)]
pub(crate) struct OpLocks(Mutex<Vec<Weak<OpLock>>>);

impl OpLocks {
    pub(crate) fn add(&self, lock: &Arc<OpLock>) {
        self.list().push(Arc::downgrade(lock));
    }

    /// Waits until every operation of the blocking API that runs now has ended.
    pub(crate) fn pass(&self) {
        let locks: Vec<_> = self.list().iter().filter_map(Weak::upgrade).collect();
        for lock in locks {
            drop(lock.lock());
        }
        // A lock whose context is gone has no mutex to pass; that it is gone was read without order.
        fence(Ordering::Acquire);
    }

    /// Operations begun by the threads that are still there; `None` if one runs now.
    pub(crate) fn ops(&self) -> Option<u64> {
        let mut locks = self.list();
        locks.retain(|lock| lock.strong_count() > 0);
        locks.iter().filter_map(Weak::upgrade).try_fold(0_u64, |sum, lock| {
            match lock.ops.try_lock() {
                Ok(ops) => Some(sum.wrapping_add(*ops)),
                Err(TryLockError::Poisoned(ops)) => Some(sum.wrapping_add(*ops.into_inner())),
                Err(TryLockError::WouldBlock) => None,
            }
        })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<OpLock>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the maintenance thread when something happens after a quiet time.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    is_idle: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Activity {
    /// An operation begins. It holds its lock; see [`Activity::set_idle`].
    #[inline]
    pub(crate) fn note(&self) {
        if self.is_idle.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes the maintenance thread.
    #[cold]
    pub(crate) fn wake(&self) {
        self.is_idle.store(false, Ordering::SeqCst);
        if let Some(thread) = &*self.thread() {
            thread.unpark();
        }
    }

    /// The maintenance thread is the calling one.
    pub(crate) fn set_thread(&self) {
        *self.thread() = Some(thread::current());
    }

    /// The maintenance thread is about to sleep. It then looks at every lock once more: an
    /// operation that it does not see there takes its lock later and finds the flag set.
    pub(crate) fn set_idle(&self) {
        self.is_idle.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::SeqCst)
    }

    fn thread(&self) -> MutexGuard<'_, Option<Thread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
