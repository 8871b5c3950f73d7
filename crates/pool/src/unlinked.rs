//! Unlinked objects: allocated objects that nothing refers to yet.

use std::cell::Cell;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, OpError, ServerId};

use crate::{PoolError, Session};

/// A new object that is freed unless it is kept: whatever becomes of the operation that made it.
///
/// If a WRITE to it may still be under way, a task frees it once that has ended.
#[derive(Debug)]
#[must_use = "it is freed when dropped"]
pub struct Unlinked {
    session: Session,
    addr: GlobalAddr,
    bytes: usize,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Still,
    /// A WRITE was posted, and has not come back.
    Writing,
    Kept,
}

impl Session {
    /// As [`Session::alloc`]; the object is freed when what this gives is dropped, until it is kept.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub async fn alloc_unlinked(&self, on: ServerId, bytes: usize) -> Result<Unlinked, PoolError> {
        let addr = self.alloc(on, bytes).await?;
        Ok(Unlinked { session: self.clone(), addr, bytes, state: Cell::new(State::Still) })
    }
}

impl Unlinked {
    /// Its address.
    pub fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// It is linked, or about to be by an operation that will be finished in any case.
    pub fn keep(&self) {
        self.state.set(State::Kept);
    }

    /// Fills it. 1 WRITE.
    ///
    /// # Errors
    /// As [`crate::Reliable::write`].
    pub async fn write(&self, content: Buf) -> Result<(), OpError> {
        self.state.set(State::Writing);
        self.session.reliable().write(self.addr, content).await?;
        self.state.set(State::Still);
        Ok(())
    }
}

impl Drop for Unlinked {
    fn drop(&mut self) {
        let (addr, bytes) = (self.addr, self.bytes);
        match self.state.get() {
            State::Kept => {}
            State::Writing if self.session.endpoint().is_lossy() => {
                self.session.spawn(async move |session| {
                    if session.maintenance().settle(addr.server()).await.is_ok() {
                        session.free_unpublished(addr, bytes);
                    }
                });
            }
            State::Still | State::Writing => self.session.free_unpublished(addr, bytes),
        }
    }
}
