//! Send queue: the sending side of a queue pair, with its work requests in flight.
//!
//! - **INV-SEND-1** At most `depth` work requests are outstanding, unsignalled ones included: a place
//!   is free again when a signalled completion at or behind it has been taken.
//! - **INV-SEND-2** Work request `n` has the result word `n % depth` for itself while it is outstanding.
//! - **INV-SEND-3** There are never more messages without an answer than were granted (VERBS-11), and an
//!   answer's receive is posted again before it counts as come. So neither end ever gets a message for
//!   which it has posted no receive.

use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::WordsKey;
use super::ffi::{self, ibv_send_wr, ibv_sge, ibv_wr, ibv_wr_atomic, ibv_wr_rdma};
use super::hold::Hold;
use super::pair::{BLANK, Form, QueuePair};
use crate::Op;
use crate::verbs::ClientFlow;

/// Work requests in a row of which one at least is signalled.
const SIGNAL_EVERY: usize = 16;
/// Bits of a work request's number that count; those above name the send queue, in 15 bits.
const COUNT_BITS: u32 = 48;

/// Memory of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) base: u64,
    pub(crate) key: u32,
}

/// One operation to post.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) hold: Rc<Hold>,
    pub(crate) part: u32,
    /// Returned when it is done.
    pub(crate) slot: u32,
    /// Begins only when every READ and atomic in front of it has ended.
    pub(crate) is_fenced: bool,
}

/// An outstanding work request.
#[derive(Debug)]
enum Outstanding {
    /// A READ or a WRITE.
    Op(Work),
    Atomic(Work),
    Message,
    /// A READ of a word that nobody asked for.
    Probe,
}

/// The sending side of a connected queue pair.
pub(crate) struct SendQueue {
    pair: QueuePair,
    /// Its number among the thread's send queues.
    index: u16,
    depth: usize,
    /// Soft-RoCE: this side holds fenced operations back until the send queue is empty; the card does not.
    holds_back: bool,
    remote: Remote,
    /// Results of atomics, `depth` of them from the first on.
    results: Arc<WordsKey>,
    ring: VecDeque<Outstanding>,
    /// The number of the first work request, and of the first receive.
    first: u64,
    /// The number of the next work request.
    next: u64,
    asked: ClientFlow,
    /// Bytes of messages that were put into their places and not posted.
    unposted: VecDeque<u32>,
    /// The next post tests whether the other end is still there.
    probes: bool,
    /// The list in assembly: its length, its work requests and their places.
    listed: usize,
    requests: Box<[ibv_send_wr]>,
    places: Box<[ibv_sge]>,
    /// Lists that were posted, and work requests in them.
    posted: (u64, u64),
}

/// Index of a completion's send queue, and the completion's count in it.
pub(crate) fn send_queue_of(number: u64) -> (usize, u64) {
    ((number >> COUNT_BITS) as usize, number & ((1 << COUNT_BITS) - 1))
}

impl SendQueue {
    /// Over a connected pair of that depth, which takes `granted` messages at a time. Numbers begin with
    /// `first`, so that no completion of an earlier send queue of the same index counts for this one.
    ///
    /// # Panics
    /// If there are fewer result words than places.
    pub(crate) fn new(
        pair: QueuePair,
        index: u16,
        depth: usize,
        remote: Remote,
        results: Arc<WordsKey>,
        (first, granted): (u64, u16),
    ) -> SendQueue {
        assert!(results.words().bytes() as usize >= depth * 8, "a result word for each place");
        SendQueue {
            index,
            depth,
            holds_back: pair.device().facts.is_soft_roce,
            pair,
            remote,
            results,
            ring: VecDeque::with_capacity(depth),
            first,
            next: first,
            asked: ClientFlow::new(granted),
            unposted: VecDeque::new(),
            probes: false,
            listed: 0,
            requests: vec![BLANK; depth].into(),
            places: vec![ibv_sge { addr: 0, length: 0, lkey: 0 }; depth].into(),
            posted: (0, 0),
        }
    }

    /// Work requests that are outstanding.
    pub(crate) fn in_flight(&self) -> usize {
        self.ring.len()
    }

    /// Posts the receives for a send queue's answers, as long as its pair is not connected.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn expect_answers(
        pair: &mut QueuePair,
        index: u16,
        (first, count): (u64, u16),
    ) -> io::Result<()> {
        (0..u64::from(count)).try_for_each(|number| pair.expect(number, tag(index, first + number)))
    }

    /// Returns whether the other end takes messages at all.
    pub(crate) fn takes_messages(&self) -> bool {
        self.asked.is_granted()
    }

    /// Returns whether [`SendQueue::put`] may take one more message.
    pub(crate) fn has_room(&self) -> bool {
        self.asked.has_room()
    }

    /// Takes a message; the next [`SendQueue::post`] sends it.
    ///
    /// # Errors
    /// If the pair takes none.
    ///
    /// # Panics
    /// If there is no room, or it is too long.
    pub(crate) fn put(&mut self, parts: [&[u8]; 2]) -> io::Result<()> {
        let bytes = self.pair.put(self.asked.put(), parts)?;
        self.unposted.push_back(bytes);
        Ok(())
    }

    /// Copies the answer whose receive has completed with number `count`, and posts the receive anew.
    /// `None` if it belongs to an earlier send queue.
    pub(crate) fn heard(
        &mut self,
        count: u64,
        bytes: u32,
        into: &mut Vec<u8>,
    ) -> Option<io::Result<()>> {
        let number = self.asked.next_answer();
        if count != self.first + number {
            return None;
        }
        if !self.asked.answered() {
            return Some(Err(io::ErrorKind::InvalidData.into()));
        }
        // As many receives are posted as there are places: this one is the last of a round.
        let again = number + self.pair.places();
        let taken = self.pair.take(number, bytes, into);
        Some(taken.and_then(|()| self.pair.expect(again, tag(self.index, self.first + again))))
    }

    /// Makes the next [`SendQueue::post`] test the other end: if it is gone, a work request fails.
    pub(crate) fn probe(&mut self) {
        self.probes = true;
    }

    /// Returns whether [`SendQueue::post`] has work that comes from no backlog.
    pub(crate) fn has_unposted(&self) -> bool {
        self.probes || !self.unposted.is_empty()
    }

    /// Returns whether the work request with that count is outstanding.
    pub(crate) fn is_outstanding(&self, count: u64) -> bool {
        (self.next - self.ring.len() as u64..self.next).contains(&count)
    }

    /// The first number for a send queue that replaces this one.
    pub(crate) fn next(&self) -> u64 {
        self.next.max(self.first + self.asked.next_answer() + self.pair.places())
    }

    /// Number of posted lists, and of work requests in them.
    pub(crate) fn posted(&self) -> (u64, u64) {
        self.posted
    }

    /// Posts messages, and as much of `backlog` as there is room for, at most `list_max` in one list. Returns
    /// the number of work requests.
    ///
    /// # Errors
    /// The library's error. Then the caller must cut the send queue; all that it took from the backlog counts
    /// as in flight.
    pub(crate) fn post(
        &mut self,
        backlog: &mut VecDeque<Work>,
        list_max: usize,
    ) -> io::Result<usize> {
        let mut all = 0;
        loop {
            let room = (self.depth - self.ring.len()).min(list_max);
            self.listed = 0;
            while self.listed < room
                && let Some((form, entry)) = self.own()?
            {
                self.add(form, entry);
            }
            // Work requests in front of the backlog count for it as in flight.
            let count = self.ready(backlog, room - self.listed);
            for work in backlog.drain(..count) {
                let (form, is_atomic) = self.form(&work);
                self.add(
                    form,
                    if is_atomic { Outstanding::Atomic(work) } else { Outstanding::Op(work) },
                );
            }
            if self.listed == 0 {
                return Ok(all);
            }
            all += self.listed;
            self.send()?;
        }
    }

    /// Adds to the list in assembly.
    #[inline(always)]
    fn add(&mut self, Form { opcode, send_flags, wr, place }: Form, entry: Outstanding) {
        let request = &mut self.requests[self.listed];
        request.wr_id = tag(self.index, self.next);
        (request.opcode, request.send_flags, request.wr) = (opcode, send_flags, wr);
        self.places[self.listed] = place;
        self.listed += 1;
        if self.listed.is_multiple_of(SIGNAL_EVERY) {
            request.send_flags |= ffi::IBV_SEND_SIGNALED;
        }
        self.ring.push_back(entry);
        self.next += 1;
    }

    /// The next work request that comes from no backlog.
    fn own(&mut self) -> io::Result<Option<(Form, Outstanding)>> {
        if let Some(bytes) = self.unposted.pop_front() {
            let number = self.asked.all() - 1 - self.unposted.len() as u64;
            return Ok(Some((self.pair.message(number, bytes)?, Outstanding::Message)));
        }
        if !std::mem::take(&mut self.probes) {
            return Ok(None);
        }
        let rdma = ibv_wr_rdma { remote_addr: self.remote.base, rkey: self.remote.key };
        let (wr, place) = (ibv_wr { rdma }, self.result_place());
        let form = Form { opcode: ffi::IBV_WR_RDMA_READ, send_flags: 0, wr, place };
        Ok(Some((form, Outstanding::Probe)))
    }

    /// Place for the result of the next work request (INV-SEND-2).
    fn result_place(&self) -> ibv_sge {
        let addr = self.results.base() + self.result() as u64 * 8;
        ibv_sge { addr, length: 8, lkey: self.results.local() }
    }

    fn result(&self) -> usize {
        self.next as usize % self.depth
    }

    /// Returns how many of `backlog` may go out now, at most `most`.
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

    /// Hands the assembled list, which is not empty, to the card.
    fn send(&mut self) -> io::Result<()> {
        let (list, places) = (&mut self.requests[..self.listed], &mut self.places[..self.listed]);
        if let Some(last) = list.last_mut() {
            last.send_flags |= ffi::IBV_SEND_SIGNALED;
        }
        let mut next = ptr::null_mut();
        for (request, place) in list.iter_mut().zip(places).rev() {
            (request.sg_list, request.next) = (place, next);
            next = request;
        }
        self.posted.0 += 1;
        self.posted.1 += self.listed as u64;
        // SAFETY: the list is whole; its buffers are owned by the ring until they have completed or the
        // pair is destroyed (INV-HOLD-1), or are words that stay as long (INV-MESSAGE-1, and the results).
        unsafe { self.pair.post(next) }
    }

    /// Parameters of an operation's work request, and whether it has a result word.
    #[inline(always)]
    fn form(&self, work: &Work) -> (Form, bool) {
        let inline_max = self.pair.inline_max();
        work.hold.with(work.part, |op| {
            let remote_addr = self.remote.base.wrapping_add(op.addr().offset());
            let rkey = self.remote.key;
            let mut send_flags = 0;
            if work.is_fenced && !self.holds_back {
                send_flags |= ffi::IBV_SEND_FENCE;
            }
            let plain = ibv_wr { rdma: ibv_wr_rdma { remote_addr, rkey } };
            let atomic = |compare_add, swap| ibv_wr {
                atomic: ibv_wr_atomic { remote_addr, compare_add, swap, rkey },
            };
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
                    self.results.words().store(self.result(), &[*value]);
                    (ffi::IBV_WR_RDMA_WRITE, plain, self.result_place())
                }
                Op::Cas { expected, new, .. } => {
                    let wr = atomic(*expected, *new);
                    (ffi::IBV_WR_ATOMIC_CMP_AND_SWP, wr, self.result_place())
                }
                Op::Faa { add, .. } => {
                    (ffi::IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(*add, 0), self.result_place())
                }
            };
            let is_atomic = matches!(op, Op::Cas { .. } | Op::Faa { .. });
            (Form { opcode, send_flags, wr, place }, is_atomic)
        })
    }

    /// All up to number `count` have succeeded: takes their results and calls `done` with their slots.
    /// Ignores numbers of an earlier send queue.
    pub(crate) fn retire(&mut self, count: u64, mut done: impl FnMut(u32)) {
        let mut number = self.next - self.ring.len() as u64;
        while number <= count
            && let Some(entry) = self.ring.pop_front()
        {
            if let Outstanding::Atomic(work) = &entry {
                let result = number as usize % self.depth;
                let found = self.results.words().as_slice()[result].load(Ordering::Acquire);
                work.hold.set_old(work.part, found);
            }
            match entry {
                Outstanding::Op(work) | Outstanding::Atomic(work) => {
                    let slot = work.slot;
                    drop(work);
                    done(slot);
                }
                Outstanding::Message => self.asked.sent(),
                Outstanding::Probe => {}
            }
            number += 1;
        }
    }

    /// Stops sending: work requests in flight complete, or are flushed.
    pub(crate) fn stop(&mut self) {
        self.pair.stop();
    }

    /// Cuts the connection: when this returns, no operation of it takes effect on this side's memory. Calls
    /// `lost` with the slots of all outstanding operations.
    pub(crate) fn cut(&mut self, mut lost: impl FnMut(u32)) {
        let cut = self.pair.cut();
        for entry in self.ring.drain(..) {
            let (Outstanding::Op(work) | Outstanding::Atomic(work)) = entry else { continue };
            let slot = work.slot;
            if cut.is_err() {
                // A card that could not be stopped may still write there.
                std::mem::forget(work);
            }
            lost(slot);
        }
    }
}

impl std::fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendQueue({}, {} in flight)", self.index, self.ring.len())
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.cut(|_| {});
        if self.pair.is_there() {
            std::mem::forget(Arc::clone(&self.results));
        }
    }
}

/// The number of a send queue's work request or receive.
fn tag(index: u16, count: u64) -> u64 {
    u64::from(index) << COUNT_BITS | count
}

fn place_of((addr, length, lkey): (u64, u32, u32)) -> ibv_sge {
    ibv_sge { addr, length, lkey }
}
