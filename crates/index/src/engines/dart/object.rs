//! New objects: memory that nothing refers to yet, freed unless a publishing CAS has linked it.

use std::cell::Cell;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Ops};
use farleaf_pool::{Reliable, Session};

use crate::IndexError;

/// A new object. Dropped, it is freed, unless it is linked or may be.
#[derive(Debug)]
pub(super) struct NewObject {
    session: Session,
    addr: GlobalAddr,
    bytes: usize,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Private,
    /// A WRITE was posted, and has not come back.
    Writing,
    Linked,
}

impl NewObject {
    /// Takes memory on the session's next server.
    pub(super) async fn new(session: &Session, bytes: usize) -> Result<NewObject, IndexError> {
        let addr = session.alloc(session.place(), bytes).await?;
        let state = Cell::new(State::Private);
        Ok(NewObject { session: session.clone(), addr, bytes, state })
    }

    pub(super) fn addr(&self) -> GlobalAddr {
        self.addr
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the WRITE of its content to `ops`; [`NewObject::written`] once they are back.
    pub(super) fn write_in(&self, ops: &mut Ops, content: Buf) {
        self.state.set(State::Writing);
        ops.write(self.addr, content);
    }

    pub(super) fn written(&self) {
        self.state.set(State::Private);
    }

    /// Fills it. 1 WRITE.
    pub(super) async fn write(&self, io: Reliable<'_>, content: Buf) -> Result<(), IndexError> {
        self.state.set(State::Writing);
        io.write(self.addr, content).await?;
        self.written();
        Ok(())
    }

    /// A CAS that links it is about to be posted.
    pub(super) fn link(&self) {
        self.state.set(State::Linked);
    }

    /// The CAS has not happened, and will not.
    pub(super) fn unlink(&self) {
        self.state.set(State::Private);
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        let (addr, bytes) = (self.addr, self.bytes);
        match self.state.get() {
            State::Linked => {}
            State::Writing if self.session.endpoint().is_lossy() => {
                self.session.spawn(async move |session| {
                    if session.maintenance().settle(addr.server()).await.is_ok() {
                        session.free_unpublished(addr, bytes);
                    }
                });
            }
            State::Private | State::Writing => self.session.free_unpublished(addr, bytes),
        }
    }
}
