//! Buffer holds: keep the buffers of operations in flight owned until the card is done with them.
//!
//! - **INV-HOLD-1** While a card may read or write a buffer, a [`super::SendQueue`] has a clone of the
//!   [`Hold`] that owns it. The send queue drops its clone when the work request has completed, or when the
//!   queue pair has been destroyed.
//! - **INV-HOLD-2** Code changes or moves the buffers of a hold only while the hold has one owner. So
//!   nobody sees a buffer that a card may write.

use std::cell::UnsafeCell;
use std::rc::Rc;

use crate::{Buf, Op, Ops, ServerId, ServiceId};

/// Operations that were posted together.
#[derive(Debug, Default)]
pub(crate) enum HeldLoad {
    #[default]
    Empty,
    One(Op),
    Chain(Ops),
    Batch(Ops),
    Call(Call),
}

/// An RPC. No card touches its buffers.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) server: ServerId,
    pub(crate) service: ServiceId,
    pub(crate) request: Buf,
    pub(crate) reply: Buf,
    /// Bytes of the reply that came.
    pub(crate) reply_len: usize,
}

impl crate::post::Load for HeldLoad {
    #[inline]
    fn is_empty(&self) -> bool {
        !matches!(self, HeldLoad::Call(_)) && self.ops().next().is_none()
    }

    #[inline]
    fn into_op(self) -> Result<Op, Self> {
        match self {
            HeldLoad::One(op) => Ok(op),
            other => Err(other),
        }
    }

    #[inline]
    fn into_ops(self) -> Result<Ops, Self> {
        match self {
            HeldLoad::Chain(ops) | HeldLoad::Batch(ops) => Ok(ops),
            other => Err(other),
        }
    }
}

impl HeldLoad {
    /// Its operations, in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        let (one, many) = match self {
            HeldLoad::Empty | HeldLoad::Call(_) => (None, None),
            HeldLoad::One(op) => (Some(op), None),
            HeldLoad::Chain(ops) | HeldLoad::Batch(ops) => (None, Some(ops)),
        };
        one.into_iter().chain(many.into_iter().flat_map(Ops::iter))
    }

    fn part(&self, part: u32) -> &Op {
        match self {
            HeldLoad::One(op) => op,
            HeldLoad::Chain(ops) | HeldLoad::Batch(ops) => ops.get(part as usize),
            HeldLoad::Empty | HeldLoad::Call(_) => {
                unreachable!("INV-HOLD-2: nothing is taken out of what is in flight")
            }
        }
    }

    fn part_mut(&mut self, part: u32) -> &mut Op {
        match self {
            HeldLoad::One(op) => op,
            HeldLoad::Chain(ops) | HeldLoad::Batch(ops) => ops.get_mut(part as usize),
            HeldLoad::Empty | HeldLoad::Call(_) => {
                unreachable!("INV-HOLD-2: nothing is taken out of what is in flight")
            }
        }
    }
}

/// A load that send queues share while it is in flight. The default is empty.
#[derive(Default)]
pub(crate) struct Hold(UnsafeCell<HeldLoad>);

impl Hold {
    /// Exchanges what it holds, if nobody else has it.
    pub(crate) fn swap(this: &mut Rc<Hold>, load: HeldLoad) -> Result<HeldLoad, HeldLoad> {
        match Rc::get_mut(this) {
            Some(hold) => Ok(std::mem::replace(hold.0.get_mut(), load)),
            None => Err(load),
        }
    }

    /// The RPC that it holds, if it is one and nobody else has it.
    pub(crate) fn call_mut(this: &mut Rc<Hold>) -> Option<&mut Call> {
        match Rc::get_mut(this)?.0.get_mut() {
            HeldLoad::Call(call) => Some(call),
            _ => None,
        }
    }

    /// Calls `with` for the RPC that it holds. Not to be called from inside of itself.
    pub(crate) fn with_call<T>(&self, with: impl FnOnce(&Call) -> T) -> T {
        // SAFETY: as in `with` below.
        match unsafe { &*self.0.get() } {
            HeldLoad::Call(call) => with(call),
            _ => unreachable!("INV-HOLD-2: nothing is taken out of what is in flight"),
        }
    }

    /// Calls `with` for one operation. Not to be called from inside of itself.
    pub(super) fn with<T>(&self, part: u32, with: impl FnOnce(&Op) -> T) -> T {
        // SAFETY: a hold stays on its thread, the only exclusive views are made in `swap`, which takes
        // a hold of one owner, and in `set_old`, which ends before anybody else runs.
        let op = unsafe { &*self.0.get() }.part(part);
        with(op)
    }

    /// Stores the word that an atomic found.
    pub(super) fn set_old(&self, part: u32, found: u64) {
        // SAFETY: as in `with`; no other view exists on this thread now.
        match unsafe { &mut *self.0.get() }.part_mut(part) {
            Op::Cas { old, .. } | Op::Faa { old, .. } => *old = found,
            Op::Read { .. } | Op::Write { .. } | Op::WriteWord { .. } => {}
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hold")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GlobalAddr;

    #[test]
    fn a_shared_hold_is_not_exchanged() {
        let mut hold = Rc::<Hold>::default();
        let faa = Op::Faa { at: GlobalAddr::NULL, add: 1, old: 0 };
        assert!(matches!(Hold::swap(&mut hold, HeldLoad::One(faa)), Ok(HeldLoad::Empty)));
        let in_flight = Rc::clone(&hold);
        assert!(Hold::swap(&mut hold, HeldLoad::Empty).is_err());
        in_flight.set_old(0, 7);
        drop(in_flight);
        let load = Hold::swap(&mut hold, HeldLoad::Empty);
        assert!(matches!(load, Ok(HeldLoad::One(Op::Faa { old: 7, .. }))));
    }
}
