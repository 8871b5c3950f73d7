//! Unlinked objects: allocated objects that nothing refers to yet.

use std::cell::Cell;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, OpError, Ops};

use crate::{Placement, PoolError, Reliable, Session};

/// A new object that is freed unless it is kept: whatever becomes of the operation that made it.
///
/// If a WRITE to it may still be under way, a task frees it once that has ended.
#[derive(Debug)]
#[must_use = "it is freed when dropped"]
pub struct Unlinked {
    session: Session,
    addr: GlobalAddr,
    bytes: usize,
    /// A WRITE was posted, and has not come back.
    is_writing: Cell<bool>,
    is_kept: Cell<bool>,
}

impl Session {
    /// As [`Session::alloc`]; the object is freed when what this gives is dropped, until it is kept.
    ///
    /// # Errors
    /// As [`Session::alloc`].
    pub async fn alloc_unlinked(
        &self,
        place: impl Into<Placement>,
        bytes: usize,
    ) -> Result<Unlinked, PoolError> {
        let addr = self.alloc(place, bytes).await?;
        let (is_writing, is_kept) = (Cell::new(false), Cell::new(false));
        Ok(Unlinked { session: self.clone(), addr, bytes, is_writing, is_kept })
    }
}

impl Unlinked {
    /// Its address.
    pub fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Bytes that it was allocated with.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// It is linked, or about to be by an operation that will be finished in any case.
    pub fn keep(&self) {
        self.is_kept.set(true);
    }

    /// Takes [`Unlinked::keep`] back: the CAS that was to link the object has lost, and no try at it takes
    /// effect any more. The object may be used for the next try.
    pub fn unkeep(&self) {
        self.is_kept.set(false);
    }

    /// Fills it. 1 WRITE.
    ///
    /// # Errors
    /// As [`crate::Reliable::write`].
    pub async fn write(&self, content: Buf) -> Result<(), OpError> {
        self.write_by(self.session.reliable(), content).await
    }

    /// As [`Unlinked::write`], by another client of the session: [`Session::maintenance`], say.
    ///
    /// # Errors
    /// As [`crate::Reliable::write`].
    pub async fn write_by(&self, io: Reliable<'_>, content: Buf) -> Result<(), OpError> {
        self.is_writing.set(true);
        io.write(self.addr, content).await?;
        self.is_writing.set(false);
        Ok(())
    }

    /// As [`Unlinked::write`], but adds the WRITE to `ops`, which the caller posts, as a list or a chain.
    /// Once that has succeeded, the caller says so by [`Unlinked::written`], and links the object after:
    /// never by a CAS of the same chain, because a lost chain does not tell how far it came.
    pub fn write_in(&self, ops: &mut Ops, content: Buf) {
        self.is_writing.set(true);
        ops.write(self.addr, content);
    }

    /// The WRITE of [`Unlinked::write_in`] has come back.
    pub fn written(&self) {
        self.is_writing.set(false);
    }
}

impl Drop for Unlinked {
    fn drop(&mut self) {
        let (addr, bytes) = (self.addr, self.bytes);
        if self.is_kept.get() {
            return;
        }
        if self.is_writing.get() && self.session.endpoint().is_lossy() {
            self.session.spawn(async move |session| {
                if session.maintenance().settle(addr.server()).await.is_ok() {
                    session.free_unpublished(addr, bytes);
                }
            });
            return;
        }
        self.session.free_unpublished(addr, bytes);
    }
}
