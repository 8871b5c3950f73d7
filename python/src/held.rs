//! Held: keeps a handle of the store for the process that opened it.
//!
//! - **INV-PYFORK-1** In the child of a fork, nothing of before the fork is used or dropped. The handle's locks may be held
//!   by threads that the child does not have, and its drop would leave the pool in the parent's name.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

use crate::error::of_class;

/// Forks between this process and the one that loaded the module.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is the child of a fork; the package has Python call it there.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    farleaf::forget_after_fork();
}

/// A handle, and the process that it is of.
pub(crate) struct Held<T: Send> {
    /// `None` while it is dropped.
    value: Option<T>,
    forks: u64,
}

impl<T: Send> Held<T> {
    pub(crate) fn new(value: T) -> Self {
        Held { value: Some(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// The handle.
    ///
    /// # Errors
    /// `ClosedError` in the child of a fork.
    #[inline]
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.is_own() => Ok(value),
            _ => Err(of_class(
                py,
                "ClosedError",
                "the store was opened before fork: open it in the child".to_owned(),
            )),
        }
    }

    fn is_own(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if !self.is_own() {
            std::mem::forget(value);
            return;
        }
        // The last handle of a store waits for its threads.
        let mut value = Some(value);
        if Python::try_attach(|py| py.detach(|| drop(value.take()))).is_none() {
            drop(value);
        }
    }
}
