//! Effects: apply operations to the words of a simulated memory server.
//!
//! - **EFF-1** Every effect of an operation comes after it was posted and before its answer leaves
//!   (F4).
//! - **EFF-2** An operation of a chain begins after the one in front of it has wholly taken effect
//!   (F3).
//! - **EFF-3** Before every effect the server checks that its life has not been fenced; nothing of a
//!   fenced life takes effect (F6).

use super::adversary::{Later, read_masked, write_masked};
use super::calendar::{Kind, LATER_INSTANTS};
use super::config::PS;
use super::crash::PlannedFate;
use super::machine::Machine;
use super::nic::CardLoad;
use super::slots::{Poster, SimPayload, SimSlot, SlotState};
use super::trace::fold;
use crate::{Buf, Incarnation, Op, OpError, OpErrorKind, ServerId, access, canary};

impl Machine {
    /// The server's card has taken in the request, or the next operation of a chain is due.
    #[inline]
    pub(super) fn execute(&mut self, index: u32, part: u16) {
        if self.is_cut_short(index, part) {
            return self.respond(index, part);
        }
        match &self.slots[index].payload {
            SimPayload::Rpc { .. }
            | SimPayload::Fence { .. }
            | SimPayload::Reconnect { .. }
            | SimPayload::EndConnection { .. } => return self.execute_message(index),
            _ => {}
        }
        if matches!(self.slots[index].payload.op(part), Some(Op::Cas { .. } | Op::Faa { .. })) {
            let now = self.now;
            if canary::LOOPBACK_BY_PROCESSOR.is_armed() && self.is_loopback(index, part) {
                return self.effect(index, part);
            }
            let atomics = &mut self.nic_of(index, part).atomics;
            let through = atomics.pass(now, CardLoad { ops: 1, bytes: 0 });
            if through > now {
                self.calendar.push(through, Kind::Atomic, index, part);
                return;
            }
        }
        self.effect(index, part);
    }

    /// A message that is no operation on memory has arrived.
    fn execute_message(&mut self, index: u32) {
        if self.adversary.harms && self.stops_here(index, 0) {
            return;
        }
        match self.slots[index].payload {
            SimPayload::Fence { who, .. } => self.fence(index, who),
            SimPayload::Reconnect { server } => self.reconnect(index, server),
            SimPayload::EndConnection { thread, posts, .. } => {
                self.end_connection(index, thread, posts);
            }
            _ => self.enqueue(index),
        }
    }

    /// The operation's first or only instant.
    #[inline]
    pub(super) fn effect(&mut self, index: u32, part: u16) {
        self.ops += 1;
        if self.refused(index, part) {
            return self.respond(index, part);
        }
        if self.adversary.harms && self.stops_here(index, part) {
            return;
        }
        let by_processor =
            canary::LOOPBACK_BY_PROCESSOR.is_armed() && self.is_loopback(index, part);
        let slot = &mut self.slots[index];
        let place = slot.place(part).unwrap_or(0);
        let (serial, is_last) = match &slot.payload {
            SimPayload::Chain(ops) => (slot.serial, usize::from(part) + 1 == ops.len()),
            _ => (slot.serial, true),
        };
        slot.begun = part + 1;
        let Some(op) = slot.payload.op_mut(part) else { return };
        let server = &self.servers[place];
        let region = Some(&*server.words);
        let stretch = self.adversary.stretch_ps(op, serial, part);
        let window = stretch
            + if is_last {
                self.times.service
            } else {
                self.times.chain_step.min(self.times.service)
            };
        // No other atomic of the word comes between, also if the server has become slow since it came.
        let atomic_ps = self.nics[server.card].atomics.least_op_ps();
        let later = if self.adversary.tears && !by_processor {
            self.adversary.later(op, serial, part, window, atomic_ps)
        } else {
            Later::NONE
        };
        let outcome = match op {
            Op::Write { to, .. } if !later.is_none() => {
                let to = *to;
                let mask = self.adversary.mask(op, serial, part);
                let Op::Write { from, .. } = op else { return };
                access::check(region, to, from.window_len())
                    .map(|words| write_masked(words, to, from, &mask, 0))
            }
            Op::Cas { at, old, .. } | Op::Faa { at, old, .. } if !later.is_none() => {
                access::word(region, *at)
                    .map(|(words, word)| words.load(word, std::slice::from_mut(old)))
            }
            op => access::run(region, op),
        };
        if let Err(error) = outcome {
            slot.fail(error);
            self.trace.add(u64::MAX);
            return self.respond(index, part);
        }
        if later.is_none() {
            self.note(index, part);
        } else {
            slot.half = true;
            let is_atomic = matches!(slot.payload.op(part), Some(Op::Cas { .. } | Op::Faa { .. }));
            for (after, kind) in later.iter().zip(LATER_INSTANTS) {
                self.calendar.push(self.now + after, kind, index, part);
            }
            self.strike(index, part, if is_atomic { "split" } else { "torn" });
        }
        self.record_effect(index, part);
        if is_last {
            self.respond_after(index, part, stretch);
        } else {
            let mut at = self.now + self.times.chain_step + stretch;
            if self.adversary.harms {
                at = at.saturating_add(self.pause_before(index, part + 1));
            }
            self.calendar.push(at, Kind::Execute, index, part + 1);
        }
    }

    /// A later instant of a torn operation, from 1 on.
    pub(super) fn instant(&mut self, index: u32, part: u16, instant: u8) {
        let refused = self.refused(index, part);
        let slot = &mut self.slots[index];
        if refused {
            slot.half = false;
            return;
        }
        let serial = slot.serial;
        let place = slot.place(part).unwrap_or(0);
        let Some(op) = slot.payload.op_mut(part) else { return };
        let words = &*self.servers[place].words;
        let mask = self.adversary.mask(op, serial, part);
        let is_last = instant == mask.last() || !matches!(op, Op::Read { .. } | Op::Write { .. });
        match op {
            Op::Read { from, into } => read_masked(words, *from, into, &mask, instant),
            Op::Write { to, from } => write_masked(words, *to, from, &mask, instant),
            Op::Cas { at, expected, new, old } => {
                if old == expected {
                    words.store((at.offset() / 8) as usize, &[*new]);
                }
            }
            Op::Faa { at, add, old } => {
                words.store((at.offset() / 8) as usize, &[old.wrapping_add(*add)]);
            }
            Op::WriteWord { .. } => {}
        }
        slot.half = !is_last;
        self.record_effect(index, part);
        if is_last {
            self.note(index, part);
        }
    }

    /// Returns whether the server refuses the operation: it has fenced the operation's life, or the
    /// connection has been given up since.
    #[inline]
    pub(super) fn refused(&mut self, index: u32, part: u16) -> bool {
        let Some(error) = self.refusal(index, part) else { return false };
        self.slots[index].fail(error);
        self.strike(index, part, "refused");
        true
    }

    /// Returns the reason for which the destination refuses an operation, if it does.
    #[inline]
    fn refusal(&self, index: u32, part: u16) -> Option<OpError> {
        let slot = &self.slots[index];
        let server = slot.server(part)?;
        let at = self.servers.get(slot.place(part)?)?;
        let Poster { thread, life, .. } = slot.poster;
        let kind = if at.fenced[life as usize] {
            OpErrorKind::Fenced
        } else if !at.reconnected.is_empty()
            && at.reconnected.get(&(life, thread)).is_some_and(|last| slot.serial < *last)
        {
            OpErrorKind::Timeout
        } else {
            return None;
        };
        Some(OpError { server, kind })
    }

    /// Folds a finished effect into the trace.
    #[inline]
    fn note(&mut self, index: u32, part: u16) {
        let Some(op) = self.slots[index].payload.op(part) else { return };
        let (kind, what) = match op {
            Op::Read { into, .. } => (1, content(into)),
            Op::Write { from, .. } => (2, content(from)),
            Op::WriteWord { value, .. } => (3, *value),
            Op::Cas { expected, new, old, .. } => (4, fold(&[*expected, *new, *old])),
            Op::Faa { add, old, .. } => (5, fold(&[*add, *old])),
        };
        self.trace.add(op.addr().word());
        self.trace.add((op.bytes() as u64) << 8 | kind);
        self.trace.add(what);
    }

    /// An RPC has arrived: an idle thread takes it, or it waits for one.
    fn enqueue(&mut self, index: u32) {
        let each_max = self.rpc_queue_max;
        let server = self.server_of(index, 0);
        if server.rpc_busy < server.rpc_threads {
            server.rpc_busy += 1;
            return self.call(index);
        }
        let queue_max = each_max.saturating_mul(server.rpc_threads);
        if server.queue.len() >= queue_max && self.turned_away(index) {
            return self.respond(index, 0);
        }
        self.server_of(index, 0).queue.push_back(index);
    }

    /// The queue is full: returns whether the request's service answers it at once.
    fn turned_away(&mut self, index: u32) -> bool {
        if self.refused(index, 0) {
            return true;
        }
        let slot = &mut self.slots[index];
        let SimPayload::Rpc { service, reply_len, list } = &mut slot.payload else { return false };
        let (Some(handler), [_, Op::Read { into: reply, .. }]) =
            (self.services.get(service), list.as_mut_slice())
        else {
            return false;
        };
        let (at, room) = (reply.window_start(), reply.window_len());
        let Some(answer) = handler.busy(&mut reply.bytes_mut()[at..at + room]) else {
            return false;
        };
        *reply_len = answer.len.min(room) as u32;
        self.ops += 1;
        self.trace.add(u64::from(*reply_len));
        true
    }

    /// A thread begins a request: the handler's effects have this instant.
    fn call(&mut self, index: u32) {
        self.ops += 1;
        let mut cpu_ps = self.times.dispatch;
        if self.is_ill {
            cpu_ps = self.slowed(index, 0, cpu_ps);
        }
        if !self.refused(index, 0) {
            let slot = &mut self.slots[index];
            let (Some(server), Some(place)) = (slot.server(0), slot.place(0)) else { return };
            let SimPayload::Rpc { service, reply_len, list } = &mut slot.payload else { return };
            if let Some(handler) = self.services.get(service) {
                let memory = &self.servers[place].words;
                let [Op::Write { from: request, .. }, Op::Read { into: reply, .. }] =
                    list.as_mut_slice()
                else {
                    return;
                };
                let (at, room) = (reply.window_start(), reply.window_len());
                let into = &mut reply.bytes_mut()[at..at + room];
                let answer = handler.call(memory, request.window_bytes(), into);
                *reply_len = answer.len.min(room) as u32;
                cpu_ps = cpu_ps.saturating_add(answer.cpu_ns.saturating_mul(PS));
                self.trace.add(u64::from(*reply_len));
                self.trace.add(content(request));
                self.record_effect(index, 0);
            } else {
                let kind = OpErrorKind::NoService { service: service.0 };
                slot.fail(OpError { server, kind });
            }
        }
        self.calendar.push(self.now.saturating_add(cpu_ps), Kind::Handled, index, 0);
    }

    /// A handler is done: its answer goes out, its thread takes the next request.
    pub(super) fn handled(&mut self, index: u32) {
        self.respond(index, 0);
        let server = self.server_of(index, 0);
        server.rpc_busy -= 1;
        if let Some(server) = self.slots[index].server(0) {
            self.take_requests(server);
        }
    }

    /// Idle threads of a server take waiting requests.
    pub(super) fn take_requests(&mut self, server: ServerId) {
        loop {
            let server = &mut self.servers[server.index()];
            if server.rpc_busy >= server.rpc_threads {
                return;
            }
            let Some(next) = server.queue.pop_front() else { return };
            server.rpc_busy += 1;
            self.call(next);
        }
    }

    /// Cuts off `who` from the server that the fence in slot `index` has come to.
    fn fence(&mut self, index: u32, who: Incarnation) {
        self.ops += 1;
        if !self.refused(index, 0)
            && let Some(life) = self.life_of(who)
            && let Some(place) = self.slots[index].place(0)
        {
            self.fence_at(place, life as u32);
        }
        self.trace.add(who.0);
        self.record_effect(index, 0);
        self.respond(index, 0);
    }

    /// Nothing that `life` has posted takes effect at `place` from here on.
    pub(super) fn fence_at(&mut self, place: usize, life: u32) {
        if !self.servers[place].fenced[life as usize] {
            self.cut(place, |slot| slot.poster.life == life);
            self.servers[place].fenced[life as usize] = true;
        }
    }

    /// Lets some of the WRITEs that have not begun, of slots that are `theirs`, land in part, now or never.
    pub(super) fn cut(&mut self, place: usize, theirs: impl Fn(&SimSlot) -> bool) {
        for index in 0..self.slots.end() {
            let slot = &self.slots[index];
            if slot.state == SlotState::Free
                || !theirs(slot)
                || slot.half
                || slot.held > 0
                || slot.error.is_some()
            {
                continue;
            }
            let next = match &slot.payload {
                SimPayload::Op(_) => 0,
                SimPayload::Chain(_) => slot.begun,
                _ => continue,
            };
            let is_planned = self.crashes.fate(slot.serial, next) != PlannedFate::Happens;
            if slot.begun > next || slot.missing == 0 || is_planned {
                continue;
            }
            if usize::from(next) >= slot.payload.message_ops() {
                continue;
            }
            let Some(Op::Write { from, .. }) = slot.payload.op(next) else { continue };
            // An operation that an earlier reconnect cut lands no more, even if it is cut again.
            if slot.place(next) != Some(place)
                || self.refusal(index, next).is_some()
                || !self.adversary.cuts(from, slot.serial, next)
            {
                continue;
            }
            self.land_in_part(index, next, "cut");
        }
    }

    /// The words of a WRITE that belong to its first instant land, because of `fault`, and no others.
    pub(super) fn land_in_part(&mut self, index: u32, part: u16, fault: &'static str) {
        let slot = &self.slots[index];
        let Some(op @ Op::Write { to, from }) = slot.payload.op(part) else { return };
        let Some(server) = slot.place(part).and_then(|place| self.servers.get(place)) else {
            return;
        };
        let region = Some(&*server.words);
        if let Ok(words) = access::check(region, *to, from.window_len()) {
            let mask = self.adversary.mask(op, slot.serial, part);
            write_masked(words, *to, from, &mask, 0);
            self.trace.add(to.word());
            self.record_effect(index, part);
            self.strike(index, part, fault);
        }
    }
}

/// A summary of a buffer's window.
#[inline]
fn content(buf: &Buf) -> u64 {
    let (at, len) = (buf.window_start(), buf.window_len());
    if (at | len).is_multiple_of(8) {
        fold(&buf.words()[at / 8..(at + len) / 8])
    } else {
        buf.window_bytes().iter().fold(0, |sum: u64, byte| sum.rotate_left(8) ^ u64::from(*byte))
    }
}
