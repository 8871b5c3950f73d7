//! Open state: keeps one shared object per address until its user closes it.
//!
//! An example is an engine's cache of a table: all threads of the member share it, and rely on it until
//! then.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::GlobalAddr;

use crate::Pool;

type Thing = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<BTreeMap<u64, Thing>>);

impl Kept {
    pub(crate) fn is_empty(&self) -> bool {
        self.things().is_empty()
    }

    fn things(&self) -> MutexGuard<'_, BTreeMap<u64, Thing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Returns the object that is kept open at `at`, if that is a `T`.
    pub fn kept<T: Any + Send + Sync>(&self, at: GlobalAddr) -> Option<Arc<T>> {
        let thing = self.kept.things().get(&at.word()).cloned()?;
        thing.downcast().ok()
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
