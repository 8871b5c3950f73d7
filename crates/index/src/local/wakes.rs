//! Wakes: counts how often a waker was used, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

#[derive(Default)]
pub(super) struct Wakes(pub(super) AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
