//! The sending side of a queue pair, with what is in flight on it.
//!
//! - **INV-LANE-1** At most `depth` work requests are outstanding, unsignalled ones included: a place
//!   is free again when a signalled completion at or behind it has been taken.
//! - **INV-LANE-2** Work request `n` has the result word `n % depth` for itself while it is outstanding.

use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::{WordsKey, error_of};
use super::ffi::{self, ibv_send_wr, ibv_sge, ibv_wr, ibv_wr_atomic, ibv_wr_rdma};
use super::hold::Hold;
use super::pair::QueuePair;
use crate::Op;

/// Work requests in a row of which one at least is signalled.
const SIGNAL_EVERY: usize = 16;
/// Bits of a work request's number that count; those above name the lane.
const COUNT_BITS: u32 = 48;

/// Memory of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) base: u64,
    pub(crate) key: u32,
}

/// One operation to be posted.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) hold: Rc<Hold>,
    pub(crate) part: u32,
    /// Given back when it is done.
    pub(crate) slot: u32,
    /// Begins only when every READ and atomic in front of it has ended.
    pub(crate) is_fenced: bool,
}

/// The sending side of a connected queue pair.
pub(crate) struct Lane {
    pair: QueuePair,
    /// Its number among the thread's lanes.
    index: u16,
    depth: usize,
    /// Fenced operations are held back here, until the lane is empty, instead of by the card.
    holds_back: bool,
    remote: Remote,
    /// Results of atomics, `depth` of them from the first on.
    results: Arc<WordsKey>,
    ring: VecDeque<Work>,
    /// The number of the next work request.
    next: u64,
    // Kept for their memory.
    requests: Vec<ibv_send_wr>,
    places: Vec<ibv_sge>,
    /// Lists that were posted, and work requests in them.
    posted: (u64, u64),
}

/// Which lane a completion belongs to, and how far it has got.
pub(crate) fn lane_of(number: u64) -> (usize, u64) {
    ((number >> COUNT_BITS) as usize, number & ((1 << COUNT_BITS) - 1))
}

impl Lane {
    /// Over a connected pair of that depth. Numbers begin with `first`, so that a completion of an
    /// earlier lane of the same index is known for what it is.
    ///
    /// # Panics
    /// If there are fewer result words than places.
    pub(crate) fn new(
        pair: QueuePair,
        index: u16,
        depth: usize,
        remote: Remote,
        results: Arc<WordsKey>,
        first: u64,
    ) -> Lane {
        assert!(results.words().bytes() as usize >= depth * 8, "a result word for each place");
        Lane {
            index,
            depth,
            holds_back: pair.device().facts.is_soft_roce,
            pair,
            remote,
            results,
            ring: VecDeque::with_capacity(depth),
            next: first,
            requests: Vec::with_capacity(depth),
            places: Vec::with_capacity(depth),
            posted: (0, 0),
        }
    }

    /// Work requests that are outstanding.
    pub(crate) fn in_flight(&self) -> usize {
        self.ring.len()
    }

    /// Whether its work request of that number is outstanding.
    pub(crate) fn is_outstanding(&self, count: u64) -> bool {
        (self.next - self.ring.len() as u64..self.next).contains(&count)
    }

    /// The number that a lane in the place of this one begins with.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Lists that were posted so far, and work requests in them.
    pub(crate) fn posted(&self) -> (u64, u64) {
        self.posted
    }

    /// Posts as much of `backlog` as there is room for, at most `list_max` in one list; how many.
    ///
    /// # Errors
    /// What the library said. The lane is to be cut then; all that was taken from the backlog counts
    /// as in flight.
    pub(crate) fn post(
        &mut self,
        backlog: &mut VecDeque<Work>,
        list_max: usize,
    ) -> io::Result<usize> {
        let mut all = 0;
        loop {
            let room = self.depth - self.ring.len();
            let count = self.ready(backlog, room.min(list_max));
            if count == 0 {
                return Ok(all);
            }
            self.requests.clear();
            self.places.clear();
            for (position, work) in backlog.drain(..count).enumerate() {
                let is_signalled = position + 1 == count || (position + 1) % SIGNAL_EVERY == 0;
                let (request, place) = self.request(&work, is_signalled);
                self.requests.push(request);
                self.places.push(place);
                self.ring.push_back(work);
                self.next += 1;
            }
            self.send()?;
            all += count;
        }
    }

    /// How much of `backlog` may go out now, at most `most`.
    ///
    /// Soft-RoCE can forget an operation with the fence flag: its completer looks whether the requester
    /// waits, and the requester begins to wait, at the same moment; then nothing happens until the next post
    /// (seen as a chain of READs without an end, on Linux 6.1 with two processors).
    fn ready(&self, backlog: &VecDeque<Work>, most: usize) -> usize {
        let most = backlog.len().min(most);
        if !self.holds_back {
            return most;
        }
        let first = usize::from(self.ring.is_empty());
        let fenced = backlog.iter().take(most).skip(first).position(|work| work.is_fenced);
        fenced.map_or(most, |behind| first + behind)
    }

    /// Hands the list that has been put together to the card.
    fn send(&mut self) -> io::Result<()> {
        let Some(qp) = self.pair.qp() else { return Err(io::ErrorKind::NotConnected.into()) };
        let (requests, places) = (self.requests.as_mut_ptr(), self.places.as_mut_ptr());
        let count = self.requests.len();
        for at in 0..count {
            // SAFETY: `at`, and `at + 1` where it is used, are below the length of both.
            unsafe {
                (*requests.add(at)).sg_list = places.add(at);
                (*requests.add(at)).next =
                    if at + 1 < count { requests.add(at + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the pair is there; the list is whole, and its buffers are owned by the ring until
        // they have completed or the pair is destroyed (INV-HOLD-1).
        let code = unsafe {
            let context = (*qp.as_ptr()).context;
            ((*context).ops.post_send)(qp.as_ptr(), requests, &mut bad)
        };
        self.posted.0 += 1;
        self.posted.1 += count as u64;
        if code == 0 { Ok(()) } else { Err(error_of(code)) }
    }

    /// The work request of an operation.
    fn request(&self, work: &Work, is_signalled: bool) -> (ibv_send_wr, ibv_sge) {
        let result = self.next as usize % self.depth;
        let result_place = ibv_sge {
            addr: self.results.base() + result as u64 * 8,
            length: 8,
            lkey: self.results.local(),
        };
        let inline_max = self.pair.inline_max();
        work.hold.with(work.part, |op| {
            let remote_addr = self.remote.base.wrapping_add(op.addr().offset());
            let rkey = self.remote.key;
            let mut send_flags = if is_signalled { ffi::IBV_SEND_SIGNALED } else { 0 };
            if work.is_fenced && !self.holds_back {
                send_flags |= ffi::IBV_SEND_FENCE;
            }
            let plain = ibv_wr { rdma: ibv_wr_rdma { remote_addr, rkey } };
            let (opcode, wr, place) = match op {
                Op::Read { into, .. } => (ffi::IBV_WR_RDMA_READ, plain, place_of(into.place())),
                Op::Write { from, .. } => {
                    let place = place_of(from.place());
                    if place.length <= inline_max {
                        send_flags |= ffi::IBV_SEND_INLINE;
                    }
                    (ffi::IBV_WR_RDMA_WRITE, plain, place)
                }
                Op::WriteWord { value, .. } if inline_max >= 8 => {
                    // Copied by the card's driver before the post returns.
                    send_flags |= ffi::IBV_SEND_INLINE;
                    let addr = ptr::from_ref(value).expose_provenance() as u64;
                    (ffi::IBV_WR_RDMA_WRITE, plain, ibv_sge { addr, length: 8, lkey: 0 })
                }
                Op::WriteWord { value, .. } => {
                    self.results.words().store(result, &[*value]);
                    (ffi::IBV_WR_RDMA_WRITE, plain, result_place)
                }
                Op::Cas { expected, new, .. } => {
                    let atomic =
                        ibv_wr_atomic { remote_addr, compare_add: *expected, swap: *new, rkey };
                    (ffi::IBV_WR_ATOMIC_CMP_AND_SWP, ibv_wr { atomic }, result_place)
                }
                Op::Faa { add, .. } => {
                    let atomic = ibv_wr_atomic { remote_addr, compare_add: *add, swap: 0, rkey };
                    (ffi::IBV_WR_ATOMIC_FETCH_AND_ADD, ibv_wr { atomic }, result_place)
                }
            };
            let request = ibv_send_wr {
                wr_id: u64::from(self.index) << COUNT_BITS | self.next,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: 1,
                opcode,
                send_flags,
                imm_data: 0,
                wr,
                behind: [0; 7],
            };
            (request, place)
        })
    }

    /// All up to number `count` have ended well: takes their results and calls `done` with their
    /// slots. What belongs to an earlier lane is ignored.
    pub(crate) fn retire(&mut self, count: u64, mut done: impl FnMut(u32)) {
        let mut number = self.next - self.ring.len() as u64;
        while number <= count
            && let Some(work) = self.ring.pop_front()
        {
            let result = number as usize % self.depth;
            let found = self.results.words().as_slice()[result].load(Ordering::Acquire);
            work.hold.set_old(work.part, found);
            let slot = work.slot;
            drop(work);
            done(slot);
            number += 1;
        }
    }

    /// Stops sending: what is in flight completes, or is flushed.
    pub(crate) fn stop(&mut self) {
        self.pair.stop();
    }

    /// Cuts the connection: when this returns, no operation of it takes effect on this side's memory.
    /// Calls `lost` with the slots of all that was outstanding.
    pub(crate) fn cut(&mut self, mut lost: impl FnMut(u32)) {
        let cut = self.pair.cut();
        for work in self.ring.drain(..) {
            let slot = work.slot;
            if cut.is_err() {
                // A card that could not be stopped may still write there.
                std::mem::forget(work);
            }
            lost(slot);
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({}, {} in flight)", self.index, self.ring.len())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.cut(|_| {});
        if self.pair.qp().is_some() {
            std::mem::forget(Arc::clone(&self.results));
        }
    }
}

fn place_of((addr, length, lkey): (u64, u32, u32)) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}
