//! Slots: hold simulated operations in flight, and waits, until their futures take them back.
//!
//! - **SLOT-1** A slot is given back exactly once: by the future that takes its result, or, if that
//!   was dropped, when the last message comes to its end. Until then it owns the buffers (F7).
//! - **SLOT-2** No event names a slot that has been given back; timers name it with its serial.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::task::Waker;

use super::calls::CallPost;
use crate::{Incarnation, Op, OpError, OpErrorKind, Ops, ServerId, ServiceId};

/// Thread, life and endpoint of a post.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Poster {
    /// Worker thread, counted over all compute servers.
    pub thread: u32,
    pub life: u32,
    /// Number of the endpoint, counted over its compute server's lives.
    pub endpoint: u32,
}

/// Content of a post; comes back with the results in it.
#[derive(Debug, Default)]
pub(super) enum SimPayload {
    /// Nothing: the slot is free, or its result has been taken.
    #[default]
    Empty,
    Op(Op),
    Chain(Ops),
    Batch(Ops),
    /// The request as a WRITE and the reply as a READ: they travel, and own the buffers.
    Rpc {
        service: ServiceId,
        reply_len: u32,
        list: Ops,
    },
    Fence {
        server: ServerId,
        who: Incarnation,
    },
    Reconnect {
        server: ServerId,
    },
    /// Ends what `thread` of the poster's life had posted before post number `posts` was over (F13), at the region
    /// of `life` if `server` is a compute server.
    EndConnection {
        server: ServerId,
        life: Incarnation,
        thread: u32,
        posts: u64,
    },
    /// A call of another compute server.
    Call(Box<CallPost>),
    /// A reply to a call; it has no waiter.
    Reply,
    /// A wait that leaves the thread to others.
    Sleep {
        ps: u64,
    },
    /// A wait that occupies the thread.
    Work {
        ps: u64,
    },
}

impl SimPayload {
    /// The operation `part` of a chain, a batch or a single one.
    #[inline]
    pub(super) fn op(&self, part: u16) -> Option<&Op> {
        match self {
            SimPayload::Op(op) => Some(op),
            SimPayload::Chain(ops) | SimPayload::Batch(ops) => Some(ops.get(usize::from(part))),
            _ => None,
        }
    }

    /// As [`SimPayload::op`], to write.
    #[inline]
    pub(super) fn op_mut(&mut self, part: u16) -> Option<&mut Op> {
        match self {
            SimPayload::Op(op) => Some(op),
            SimPayload::Chain(ops) | SimPayload::Batch(ops) => Some(ops.get_mut(usize::from(part))),
            _ => None,
        }
    }

    /// Returns the number of its remote operations: 0 for a wait.
    pub(super) fn op_count(&self) -> usize {
        match self {
            SimPayload::Chain(ops) | SimPayload::Batch(ops) => ops.len(),
            SimPayload::Empty | SimPayload::Sleep { .. } | SimPayload::Work { .. } => 0,
            _ => 1,
        }
    }

    /// Returns whether an operation of it goes to another server than the first `memory_servers`, or a
    /// reconnect does.
    #[inline]
    pub(super) fn is_beyond(&self, memory_servers: usize) -> bool {
        let is_beyond = |server: ServerId| server.index() >= memory_servers;
        match self {
            SimPayload::Op(op) => is_beyond(op.addr().server()),
            SimPayload::Chain(ops) => ops.server().is_some_and(is_beyond),
            SimPayload::Batch(ops) => ops.iter().any(|op| is_beyond(op.addr().server())),
            SimPayload::Rpc { list, .. } => list.server().is_some_and(is_beyond),
            SimPayload::Reconnect { server } => is_beyond(*server),
            SimPayload::Fence { server, .. } | SimPayload::EndConnection { server, .. } => {
                is_beyond(*server) && !server.is_compute()
            }
            _ => false,
        }
    }

    /// Returns the number of operations of each of its messages: a chain is one.
    pub(super) fn message_ops(&self) -> usize {
        match self {
            SimPayload::Chain(ops) => ops.len(),
            _ => 1,
        }
    }
}

/// Error of a post, if it failed. Boxed, because it is large and rare.
pub(super) type Failure = Option<Box<OpError>>;

/// Waiter of a post.
#[derive(Debug, Default)]
pub(super) enum Wake {
    #[default]
    Nobody,
    /// A task of the simulator, by its number: no reference counts, no lock.
    Task(u32),
    /// A waker between the task and the operation, such as that of a join of several.
    Other(Waker),
}

impl Wake {
    /// Wakes the waiter, a task by adding it to `ready`. Returns whether that has called a waker.
    #[inline]
    pub(super) fn wake(&self, ready: &mut VecDeque<u32>) -> bool {
        match self {
            Wake::Nobody => {}
            Wake::Task(task) => ready.push_back(*task),
            Wake::Other(waker) => waker.wake_by_ref(),
        }
        matches!(self, Wake::Other(_))
    }

    /// Returns whether both certainly wake the same task.
    pub(super) fn is_same(&self, other: &Wake) -> bool {
        match (self, other) {
            (Wake::Task(one), Wake::Task(other)) => one == other,
            (Wake::Other(one), Wake::Other(other)) => one.will_wake(other),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotState {
    #[default]
    Free,
    Flying,
    /// Its result waits for the future.
    Done,
    /// The future was dropped: completes unseen.
    Abandoned,
    /// The client has received `Timeout`, or is about to: completes unseen, as soon as the future has taken
    /// that.
    TimedOut,
}

/// A server that a client waits for no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenUp {
    pub server: ServerId,
    /// Its life, if that has ended.
    pub gone: Option<u32>,
}

/// The place of a server that does not exist.
pub(super) const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct SimSlot {
    pub payload: SimPayload,
    pub state: SlotState,
    pub poster: Poster,
    /// Number of the post.
    pub serial: u64,
    /// Time of the post, in picoseconds.
    pub posted: u64,
    /// Messages of the post.
    pub parts: u16,
    /// Those of them that have not left yet.
    pub held: u16,
    /// Later instants that wait at stopped servers.
    pub parked: u16,
    /// A message of it has ended without an answer.
    pub silent: bool,
    /// The client gives up: the server that did not answer, or whose life it was told has ended.
    pub timed_out: Option<GivenUp>,
    /// Places of the servers of a post to compute servers, one for each operation of a batch, otherwise one.
    /// Empty for a post to memory servers alone, whose places are their numbers.
    pub places: Vec<u32>,
    /// Number of its first record, if there are records.
    pub record: u64,
    /// Completions still to come.
    pub missing: u16,
    /// Operations of a chain, or of a single one, that have begun to take effect.
    pub begun: u16,
    /// The last of them is between its two instants.
    pub half: bool,
    pub error: Failure,
    pub wake: Wake,
}

impl SimSlot {
    /// Returns the destination of `part`; `None` for a wait.
    #[inline]
    pub(super) fn server(&self, part: u16) -> Option<ServerId> {
        match &self.payload {
            SimPayload::Rpc { list, .. } => list.server(),
            SimPayload::Call(posted) => Some(posted.to),
            SimPayload::Fence { server, .. }
            | SimPayload::Reconnect { server }
            | SimPayload::EndConnection { server, .. } => Some(*server),
            _ => self.payload.op(part).map(|op| op.addr().server()),
        }
    }

    /// Returns the place of the destination of `part` among the machine's servers: a memory server's number,
    /// or that of a life's region. It was settled at the post (F11.5).
    #[inline]
    pub(super) fn place(&self, part: u16) -> Option<usize> {
        if self.places.is_empty() {
            return self.server(part).map(ServerId::index);
        }
        let part = if self.places.len() == 1 { 0 } else { usize::from(part) };
        Some(self.places[part] as usize)
    }

    /// Returns whether one of its parts may go to a region.
    pub(super) fn has_place_of_life(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns whether the thread and life of `poster` posted it.
    pub(super) fn is_by(&self, poster: Poster) -> bool {
        (self.poster.thread, self.poster.life) == (poster.thread, poster.life)
    }

    /// Returns the error that the client receives.
    pub(super) fn failure(&self) -> Option<OpError> {
        let told = |given_up: GivenUp| {
            let gone = |life| OpErrorKind::Gone { who: Incarnation(u64::from(life) + 1) };
            let kind = given_up.gone.map_or(OpErrorKind::Timeout, gone);
            OpError { server: given_up.server, kind }
        };
        self.timed_out.map(told).or_else(|| self.error.as_deref().copied())
    }

    /// Notes an error unless there is one already.
    pub(super) fn fail(&mut self, error: OpError) {
        self.error.get_or_insert_with(|| Box::new(error));
    }
}

/// A slab of slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    list: Vec<SimSlot>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes a slot for a post of `parts` parts.
    #[inline]
    pub(super) fn insert(
        &mut self,
        poster: Poster,
        serial: u64,
        posted: u64,
        parts: u16,
        payload: SimPayload,
        wake: Wake,
    ) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        // Field by field: the slot is large, and most of it is already right.
        let slot = &mut self[index];
        slot.payload = payload;
        slot.state = SlotState::Flying;
        slot.poster = poster;
        slot.serial = serial;
        slot.posted = posted;
        slot.parts = parts;
        slot.missing = parts;
        slot.begun = 0;
        slot.half = false;
        slot.wake = wake;
        index
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.list.push(SimSlot { record: u64::MAX, ..SimSlot::default() });
        (self.list.len() - 1) as u32
    }

    /// Gives the slot back, with the buffers that it still holds. Returns the waker, which the caller drops
    /// without holding the machine.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> Wake {
        let slot = &mut self[index];
        debug_assert_ne!(slot.state, SlotState::Free, "SLOT-1");
        slot.state = SlotState::Free;
        slot.payload = SimPayload::Empty;
        slot.error = None;
        slot.silent = false;
        slot.timed_out = None;
        if !slot.places.is_empty() {
            slot.places = Vec::new();
        }
        let wake = std::mem::take(&mut slot.wake);
        self.free.push(index);
        wake
    }

    /// Number of slots in use.
    pub(super) fn in_use(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// One more than the largest number ever in use.
    pub(super) fn end(&self) -> u32 {
        self.list.len() as u32
    }
}

impl Index<u32> for Slots {
    type Output = SimSlot;

    #[inline]
    fn index(&self, index: u32) -> &SimSlot {
        &self.list[index as usize]
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut SimSlot {
        &mut self.list[index as usize]
    }
}
