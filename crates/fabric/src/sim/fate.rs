//! Message fate: delays messages, and loses messages or their answers.
//!
//! A message is a single operation, a chain, a part of a batch, an RPC, a fence or a reconnect.
//!
//! - **FATE-1** A post whose answer may never come has a timer. When that fires, the client gets
//!   `Timeout` and forgets the post. The machine keeps its part of the post, buffers included (F7),
//!   until every message of it has ended.
//! - **FATE-2** Every message ends exactly once: by its answer, or by [`Machine::vanish`] after
//!   its last effect.

use super::adversary::{Adversary, Fault};
use super::calendar::Kind;
use super::calls;
use super::config::PS;
use super::machine::Machine;
use super::slots::{GivenUp, SimPayload, SlotState};
use crate::{Op, ServerId};

/// Fate of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing.
    Plain,
    /// It takes longer, there and back.
    Late { there_ps: u64, back_ps: u64 },
    /// Its answer never comes.
    Lost(Lost),
}

/// Real effect of a lost message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// Operations before `part` of its list happen, the rest never.
    Never { part: u16 },
    /// As if nothing were wrong.
    Happens,
    /// Operations before `part` of its list happen, the rest after the delay.
    Later { part: u16, after_ps: u64 },
}

impl Lost {
    /// Returns its name in records, and the time by which the whole message comes later.
    pub(super) fn effect(self) -> (&'static str, u64) {
        match self {
            Lost::Never { part: 0 } => ("lost: never happens", 0),
            Lost::Never { .. } => ("lost: a prefix happens", 0),
            Lost::Happens => ("lost: happens", 0),
            Lost::Later { part: 0, after_ps } => ("lost: happens later", after_ps),
            Lost::Later { .. } => ("lost: the rest happens later", 0),
        }
    }
}

impl Adversary {
    /// Returns the fate of message `part` of a post, a list of `count` operations.
    pub(super) fn fate(&self, serial: u64, part: u16, count: usize) -> Fate {
        let roll = |fault| self.roll(fault, serial, part);
        if self.strikes(Fault::Lost, self.config.lost, serial, part) {
            let prefix = (roll(Fault::Prefix) % count.max(1) as u64) as u16;
            return Fate::Lost(match roll(Fault::Outcome) % 3 {
                0 => Lost::Never { part: prefix },
                1 => Lost::Happens,
                _ => {
                    let after_ps = 1 + roll(Fault::LostBy) % (self.config.lost_ns * PS);
                    Lost::Later { part: prefix, after_ps }
                }
            });
        }
        if self.strikes(Fault::Late, self.config.late, serial, part) {
            let all = 1 + roll(Fault::LateBy) % (self.config.late_ns * PS);
            let way = roll(Fault::LateWay);
            let there_ps = match way % 3 {
                0 => all,
                1 => 0,
                _ => (way >> 8) % (all + 1),
            };
            return Fate::Late { there_ps, back_ps: all - there_ps };
        }
        Fate::Plain
    }
}

/// PostTimers of posts, by number: a timer may outlive its slot.
#[derive(Debug, Default)]
pub(super) struct PostTimers {
    list: Vec<(u32, u64)>,
    free: Vec<u32>,
}

impl Machine {
    /// Returns the fate of the message that carries `part` of a slot's list.
    #[cold]
    pub(super) fn fate(&self, index: u32, part: u16) -> Fate {
        let slot = &self.slots[index];
        let part = if matches!(slot.payload, SimPayload::Batch(_)) { part } else { 0 };
        self.adversary.fate(slot.serial, part, slot.payload.message_ops())
    }

    /// A message sets off at `departs`: returns by how much longer it will take, and winds up its timer if it
    /// is lost.
    #[cold]
    pub(super) fn meet_fate(&mut self, index: u32, part: u16, departs: u64) -> u64 {
        match self.fate(index, part) {
            Fate::Plain => 0,
            Fate::Late { there_ps, .. } => {
                self.strike_message(index, part, "late");
                there_ps
            }
            Fate::Lost(lost) => {
                self.wind_up(index, departs);
                let (name, longer) = lost.effect();
                self.strike_message(index, part, name);
                longer
            }
        }
    }

    /// Returns whether a lost message stops here for good. A torn WRITE may land in part first.
    #[cold]
    pub(super) fn stops_here(&mut self, index: u32, part: u16) -> bool {
        let Fate::Lost(Lost::Never { part: last }) = self.fate(index, part) else { return false };
        let slot = &self.slots[index];
        if matches!(slot.payload, SimPayload::Chain(_)) && part != last {
            return false;
        }
        if slot.payload.op(part).is_some_and(|op| {
            matches!(op, Op::Write { .. }) && self.adversary.is_torn(op, slot.serial, part)
        }) {
            self.land_in_part(index, part, "lost: lands in part");
        }
        self.vanish(index);
        true
    }

    /// Returns the time that a lost chain waits before its operation `part`.
    #[cold]
    pub(super) fn pause_before(&self, index: u32, part: u16) -> u64 {
        match self.fate(index, part) {
            Fate::Lost(Lost::Later { part: first, after_ps }) if first == part => after_ps,
            _ => 0,
        }
    }

    /// The client will get `Timeout` when the limit after `from_ps` is over, unless the answer comes before.
    #[cold]
    pub(super) fn wind_up(&mut self, index: u32, from_ps: u64) {
        let timer = (index, self.slots[index].serial);
        let number = match self.timers.free.pop() {
            Some(number) => {
                self.timers.list[number as usize] = timer;
                number
            }
            None => {
                self.timers.list.push(timer);
                (self.timers.list.len() - 1) as u32
            }
        };
        let at = from_ps.saturating_add(self.adversary.config.timeout_ns * PS).max(self.now);
        self.calendar.push(at, Kind::Timeout, number, 0);
    }

    /// As [`Machine::wind_up`], from the time of the post.
    pub(super) fn wind_up_from_post(&mut self, index: u32) {
        self.wind_up(index, self.slots[index].posted);
    }

    /// A timer fires.
    #[cold]
    pub(super) fn timer_fires(&mut self, number: u32) {
        let (index, serial) = self.timers.list[number as usize];
        self.timers.free.push(number);
        let slot = &self.slots[index];
        if slot.serial == serial && slot.state != SlotState::Free {
            if calls::is_message(&slot.payload) {
                return self.time_out_message(index);
            }
            let server = (0..slot.parts).find_map(|part| slot.server(part));
            let server = server.unwrap_or(ServerId(0));
            self.time_out(index, GivenUp { server, gone: None });
        }
    }

    /// The client gives up waiting, unless the answer is in.
    #[cold]
    pub(super) fn time_out(&mut self, index: u32, given_up: GivenUp) {
        let slot = &mut self.slots[index];
        let is_answered = slot.missing == 0 && !slot.silent;
        if slot.state == SlotState::Abandoned && !is_answered {
            self.release_all(index);
            return self.after_reconnect(index, false);
        }
        if slot.state != SlotState::Flying || is_answered {
            return;
        }
        slot.timed_out = Some(given_up);
        slot.state = if slot.missing == 0 { SlotState::Done } else { SlotState::TimedOut };
        let Self { slots, threads, .. } = self;
        let slot = &slots[index];
        let free = &mut threads[slot.poster.thread as usize];
        *free = (*free).max(self.now).saturating_add(self.times.completion);
        let is_dead = self.lives[slot.poster.life as usize].dead;
        self.record_back(index);
        self.release_all(index);
        self.after_reconnect(index, false);
        if is_dead {
            return;
        }
        self.called_waker |= self.slots[index].wake.wake(&mut self.ready);
    }

    /// A message has come to its end without an answer.
    pub(super) fn vanish(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        slot.silent = true;
        slot.missing -= 1;
        if slot.missing == 0 {
            self.end_in_doubt(index);
        }
    }

    /// Nothing of a post is under way any more, and its client does not learn the outcome.
    #[cold]
    pub(super) fn end_in_doubt(&mut self, index: u32) {
        match self.slots[index].state {
            SlotState::Abandoned => {
                self.release_all(index);
                self.after_reconnect(index, false);
                self.slots.remove(index);
            }
            SlotState::TimedOut => self.slots[index].state = SlotState::Done,
            // By FATE-1 it has a timer.
            SlotState::Flying | SlotState::Done | SlotState::Free => {}
        }
    }
}
