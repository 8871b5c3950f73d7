//! Open state: keeps one shared object per address until its user closes it.
//!
//! An example is an engine's cache of a table: all threads of the member share it, and rely on it until
//! then.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::GlobalAddr;

use crate::Pool;

type Thing = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct Kept {
    things: Mutex<BTreeMap<u64, Thing>>,
    /// Addresses whose objects are being opened.
    opening: Mutex<BTreeSet<u64>>,
}

impl Kept {
    pub(crate) fn is_empty(&self) -> bool {
        self.things().is_empty()
    }

    fn things(&self) -> MutexGuard<'_, BTreeMap<u64, Thing>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to open what is to be kept at an address, until it is dropped.
#[derive(Debug)]
pub struct Opening<'a> {
    kept: &'a Kept,
    at: u64,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.kept.opening().remove(&self.at);
    }
}

impl Pool {
    /// Returns the object that is kept open at `at`, if that is a `T`.
    pub fn kept<T: Any + Send + Sync>(&self, at: GlobalAddr) -> Option<Arc<T>> {
        let thing = self.kept.things().get(&at.word()).cloned()?;
        thing.downcast().ok()
    }

    /// The right to open what is to be kept at `at`; `None` while another task of the member has it. No remote operation.
    ///
    /// A compute server takes part in a table once: of two tasks that open it at the same time, the second waits for what
    /// the first one keeps.
    pub fn opening(&self, at: GlobalAddr) -> Option<Opening<'_>> {
        let (kept, at) = (&self.kept, at.word());
        let is_first = kept.opening().insert(at);
        is_first.then(|| Opening { kept, at })
    }

    /// Keeps `thing` open at `at`, unless another thread has been quicker; gives what is kept. The
    /// pool cannot be left before it is let go.
    pub fn keep<T: Any + Send + Sync>(&self, at: GlobalAddr, thing: Arc<T>) -> Arc<T> {
        let mut things = self.kept.things();
        let kept = things.get(&at.word()).cloned().and_then(|kept| kept.downcast().ok());
        kept.unwrap_or_else(|| {
            things.insert(at.word(), Arc::clone(&thing) as Thing);
            thing
        })
    }

    /// `thing` is closed: it is kept no longer.
    pub fn let_go<T: Any + Send + Sync>(&self, at: GlobalAddr, thing: &Arc<T>) {
        let mut things = self.kept.things();
        let is_it = |kept: &Thing| std::ptr::addr_eq(Arc::as_ptr(kept), Arc::as_ptr(thing));
        if things.get(&at.word()).is_some_and(is_it) {
            things.remove(&at.word());
        }
    }
}
