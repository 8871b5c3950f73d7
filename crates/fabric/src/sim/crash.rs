//! Planned crashes: kill or pause a compute server at a chosen remote operation.
//!
//! So a test can go through all operations one by one.
//!
//! The simulator counts operations in the order of posting: each of a chain or a batch by itself, RPCs,
//! fences, calls and replies. It does not count local waits. The effect of a plan follows from the plan
//! alone, not from randomness or timing.
//!
//! - **CRASH-1** Every operation that a life posted before the chosen one takes effect, unless a fence
//!   comes first.
//! - **CRASH-2** No operation behind the chosen one does, save the rest of its batch with
//!   [`CrashWay::Skip`].
//! - **CRASH-3** No WRITE lands in a way that the configured capabilities exclude.
//! - **CRASH-4** A stopped life posts nothing.
//! - **CRASH-5** A life may lose one list before it ends: neither the chosen operation nor those behind it in its list take
//!   effect, and the client gets [`OpErrorKind::Timeout`].

use std::task::Context;

use super::adversary::{Mask, words_of, write_masked};
use super::machine::Machine;
use super::record::Verb;
use super::slots::{Poster, SimPayload, SlotState};
use super::tasks::ROOT;
use super::{SimEndpoint, SimFabric, SimInner};
use crate::{Op, OpError, OpErrorKind, access};

/// A crash or a pause, and the operation of a compute server's life at which it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPlan {
    /// The operation, from 0, counted from the moment at which the plan is given.
    pub op: u64,
    /// The crash or pause there.
    pub way: CrashWay,
}

/// Crash or pause at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashWay {
    /// The life ends: the operation and all behind it never take effect.
    Before,
    /// The operation takes effect, nothing behind it does, and the life ends without learning of
    /// it.
    After,
    /// As [`CrashWay::Before`], but if the operation is one of a batch, which has no order, the
    /// whole rest of the batch takes effect.
    Skip,
    /// The operation is a WRITE and lands in part; then the life ends. Any other operation than a
    /// WRITE, and a WRITE of at most [`crate::Capabilities::crash_atomic_bytes`], does not happen at all,
    /// unless all of it is chosen.
    Within(Landing),
    /// The life stops before the operation is posted, together with the list that it is in.
    PauseBefore,
    /// The operation is posted, with its list, and the life stops before it can learn of any
    /// completion.
    PauseAfter,
    /// The operation is posted, with its list, and the compute server that it goes to dies at that moment.
    /// For an operation on a memory server, it is the one whose region this life has used last; nobody
    /// dies if there is none, or if it is this life.
    OwnerDies,
    /// As [`CrashWay::OwnerDies`], and this life ends with it, as by [`CrashWay::Before`].
    BothDie,
}

/// Words of a WRITE that land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// The first so many; if lines are atomic, only complete lines.
    Prefix(u32),
    /// Some words, chosen by a seed. If WRITEs land in order, a prefix; if lines are atomic, whole lines.
    Subset(u64),
}

/// One operation as it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedOp {
    /// Its kind.
    pub kind: Verb,
    /// Words of the region that it touches.
    pub words: u32,
    /// Its place in the list that it was posted in.
    pub part: u16,
    /// Operations of that list.
    pub parts: u16,
    /// The list is a batch: its operations have no order.
    pub is_batch: bool,
}

/// The plans of all lives. A plan that has been carried out stays, for operations still in flight.
#[derive(Debug, Default)]
pub(super) struct Crashes {
    armed: Vec<Armed>,
    /// A plan has just ended these lives; their tasks are to be dropped.
    ending: Vec<u32>,
    /// A plan has ended a life at one of its posts, or a list is to be lost, so that posts may have a fate.
    cuts: bool,
}

/// A plan, or a mere count.
#[derive(Debug)]
struct Armed {
    life: u32,
    /// Only posts of this endpoint count.
    endpoint: Option<u32>,
    plan: Option<CrashPlan>,
    counted: u64,
    recorded: Option<Vec<CountedOp>>,
    fired: bool,
    cut: Option<Cut>,
    /// The operation from which on its list is lost, until it has been posted.
    to_lose: Option<u64>,
    lost: Option<Cut>,
}

/// The post at which a life ended, or of which it loses the rest.
#[derive(Clone, Copy, Debug)]
struct Cut {
    serial: u64,
    part: u16,
    way: CrashWay,
}

/// Fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedFate {
    Happens,
    Never,
    InPart(Landing),
}

impl Crashes {
    /// Returns the fate of `part` of the post `serial`.
    #[inline]
    pub(super) fn fate(&self, serial: u64, part: u16) -> PlannedFate {
        if !self.cuts {
            return PlannedFate::Happens;
        }
        let mut cuts = self.armed.iter().flat_map(|armed| armed.cut.into_iter().chain(armed.lost));
        let Some(cut) = cuts.find(|cut| cut.serial == serial) else { return PlannedFate::Happens };
        let is_at = part == cut.part;
        match cut.way {
            _ if part < cut.part => PlannedFate::Happens,
            CrashWay::Before | CrashWay::BothDie | CrashWay::Skip if is_at => PlannedFate::Never,
            CrashWay::After if is_at => PlannedFate::Happens,
            CrashWay::Within(landing) if is_at => PlannedFate::InPart(landing),
            CrashWay::Skip => PlannedFate::Happens,
            _ => PlannedFate::Never,
        }
    }

    /// The plan of the poster's life or endpoint that has not been carried out, and its number for
    /// the next operation.
    fn of(&mut self, poster: Poster) -> Option<&mut Armed> {
        self.armed.iter_mut().find(|armed| {
            !armed.fired
                && armed.life == poster.life
                && armed.endpoint.is_none_or(|endpoint| endpoint == poster.endpoint)
        })
    }
}

/// The operations of a payload, as they count.
fn counted(payload: &SimPayload) -> impl Iterator<Item = CountedOp> + '_ {
    let parts = payload.op_count() as u16;
    let is_batch = matches!(payload, SimPayload::Batch(_));
    (0..parts).filter_map(move |part| {
        let words = payload.op(part).map_or(0, |op| words_of(op).len() as u32);
        Some(CountedOp { kind: Verb::of(payload, part)?, words, part, parts, is_batch })
    })
}

impl Machine {
    /// A task of `poster`'s life is about to post `payload`. True if it has to wait until its life is
    /// resumed.
    #[inline]
    pub(super) fn holds(&mut self, poster: Poster, payload: &SimPayload) -> bool {
        if self.crashes.armed.is_empty() {
            return false;
        }
        let life = &mut self.lives[poster.life as usize];
        if life.stopped {
            return true;
        }
        let Some(armed) = self.crashes.of(poster) else { return false };
        let next = armed.counted..armed.counted + payload.op_count() as u64;
        match armed.plan {
            Some(CrashPlan { op, way: CrashWay::PauseBefore }) if next.contains(&op) => {
                armed.fired = true;
                life.stopped = true;
                true
            }
            _ => false,
        }
    }

    /// Counts a post's operations, and carries out the plan if it names one of them.
    #[inline]
    pub(super) fn count(&mut self, index: u32) {
        let slot = &self.slots[index];
        let (life, count) = (slot.poster.life, slot.payload.op_count() as u64);
        self.lives[life as usize].posted += count;
        if self.crashes.armed.is_empty() || count == 0 {
            return;
        }
        let Some(armed) = self.crashes.of(slot.poster) else { return };
        let first = armed.counted;
        armed.counted += count;
        if let Some(recorded) = &mut armed.recorded {
            recorded.extend(counted(&slot.payload));
        }
        if let Some(op) = armed.to_lose.take_if(|op| (first..first + count).contains(op)) {
            let (serial, part, way) = (slot.serial, (op - first) as u16, CrashWay::Before);
            armed.lost = Some(Cut { serial, part, way });
        }
        let Some(plan) = armed.plan.filter(|plan| (first..first + count).contains(&plan.op)) else {
            return;
        };
        armed.fired = true;
        match plan.way {
            CrashWay::PauseBefore => {}
            CrashWay::PauseAfter => self.lives[life as usize].stopped = true,
            CrashWay::OwnerDies => {
                let owner = self.owner_of(index, (plan.op - first) as u16);
                self.crashes.ending.extend(owner);
            }
            way => {
                let part = (plan.op - first) as u16;
                let owner = self.owner_of(index, part).filter(|_| way == CrashWay::BothDie);
                let Some(armed) =
                    self.crashes.armed.iter_mut().find(|armed| {
                        armed.fired && armed.life == life && armed.plan == Some(plan)
                    })
                else {
                    return;
                };
                armed.cut = Some(Cut { serial: self.slots[index].serial, part, way });
                self.crashes.cuts = true;
                self.crashes.ending.push(life);
                self.crashes.ending.extend(owner);
            }
        }
    }

    /// The other life whose region the part of a post goes to, or else the one whose region its life has
    /// used last.
    fn owner_of(&self, index: u32, part: u16) -> Option<u32> {
        let slot = &self.slots[index];
        let me = slot.poster.life;
        let message = slot.server(part).and_then(|server| self.calls.peer(me, server));
        let place = slot.place(part).and_then(|place| self.servers.get(place));
        let owner = place.and_then(|place| place.owner).or(message.map(|peer| peer.life));
        owner.or(self.lives[me as usize].last_region).filter(|owner| *owner != me)
    }

    /// Returns whether a plan keeps this operation from taking effect in whole. If the plan lets a part land,
    /// that part has then landed.
    pub(super) fn is_cut_short(&mut self, index: u32, part: u16) -> bool {
        let slot = &self.slots[index];
        let landing = match self.crashes.fate(slot.serial, part) {
            PlannedFate::Happens => return false,
            PlannedFate::Never => None,
            PlannedFate::InPart(landing) => Some(landing),
        };
        let Some(server) = slot.server(part) else { return true };
        let place = slot.place(part).and_then(|place| self.servers.get(place));
        let is_fenced = place.is_none_or(|at| at.fenced[slot.poster.life as usize]);
        if let Some(landing) = landing
            && !is_fenced
        {
            self.ops += 1;
            self.land(index, part, landing);
        }
        // The dead learn no error; it keeps the fence from cutting the operation once more.
        self.slots[index].fail(OpError { server, kind: OpErrorKind::Timeout });
        self.trace.add(u64::from(part) << 32 | 0xdead);
        true
    }

    fn land(&mut self, index: u32, part: u16, landing: Landing) {
        let slot = &self.slots[index];
        let capabilities = self.adversary.capabilities();
        let Some(op @ Op::Write { to, from }) = slot.payload.op(part) else { return };
        let Some(server) = slot.place(part).and_then(|place| self.servers.get(place)) else {
            return;
        };
        let region = Some(&*server.words);
        let Ok(words) = access::check(region, *to, from.window_len()) else { return };
        let mask = match landing {
            Landing::Prefix(count) if count as usize >= words_of(op).len() => {
                Mask::prefix(op, count, false)
            }
            _ if from.window_len() <= capabilities.crash_atomic_bytes as usize => return,
            Landing::Prefix(count) => Mask::prefix(op, count, capabilities.line_atomic),
            Landing::Subset(seed) => Mask::subset(op, seed, &capabilities),
        };
        write_masked(words, *to, from, &mask, 0);
        self.trace.add(to.word());
    }

    /// Returns whether anything remote of a life may still take effect.
    fn has_in_flight(&self, life: u32) -> bool {
        (0..self.slots.end()).map(|index| &self.slots[index]).any(|slot| {
            slot.poster.life == life
                && matches!(slot.state, SlotState::Flying | SlotState::Abandoned)
                && slot.payload.op_count() > 0
        }) || self.has_messages(life)
    }
}

impl SimInner {
    /// As [`Machine::holds`], for the polled task, which is woken again once its life goes on.
    #[inline]
    pub(super) fn holds(
        &self,
        poster: Poster,
        payload: &SimPayload,
        context: &Context<'_>,
    ) -> bool {
        let current = self.current.get();
        // Only tasks of that life stop with it.
        if current == ROOT || self.tasks.borrow().life(current) != Some(poster.life) {
            return false;
        }
        let holds = self.machine.borrow_mut().holds(poster, payload);
        if holds {
            // The next poll finds the task stopped and keeps it until its life is resumed.
            context.waker().wake_by_ref();
        }
        holds
    }

    /// Ends the life whose plan the last post has carried out.
    #[inline]
    pub(super) fn end_planned(&self) {
        if self.machine.borrow().crashes.ending.is_empty() {
            return;
        }
        let ending = std::mem::take(&mut self.machine.borrow_mut().crashes.ending);
        ending.into_iter().for_each(|life| self.kill(life));
    }
}

impl SimFabric {
    /// From now on, counts this life's remote operations from 0, and carries out `plan` at the operation that
    /// it names. Replaces an earlier plan of this life.
    pub fn plan(&self, plan: CrashPlan) {
        self.arm(None, Some(plan), false);
    }

    /// As [`SimFabric::plan`], but counts posts of `endpoint` alone. The whole life ends or stops.
    ///
    /// # Panics
    /// If the endpoint is of another life.
    pub fn plan_at(&self, endpoint: &SimEndpoint, plan: CrashPlan) {
        assert_eq!(endpoint.poster().life, self.life(), "an endpoint of another life");
        self.arm(Some(endpoint.poster().endpoint), Some(plan), false);
    }

    /// Loses the operation `op` and those behind it in its list: they never take effect, and the client gets
    /// [`OpErrorKind::Timeout`]. The life goes on. Counts from 0 at the plan or the record that was asked for last.
    ///
    /// # Panics
    /// If there is neither.
    pub fn lose(&self, op: u64) {
        let life = self.life();
        let crashes = &mut self.inner().machine.borrow_mut().crashes;
        let Some(armed) = crashes.armed.iter_mut().find(|armed| armed.life == life) else {
            panic!("a life counts its operations before it loses one of them");
        };
        armed.to_lose = Some(op);
        crashes.cuts = true;
    }

    /// From now on, notes this life's remote operations, in the order of posting: those that a plan
    /// given at the same moment could name. Takes the place of an earlier plan of this life.
    pub fn record_ops(&self) {
        self.arm(None, None, true);
    }

    /// Returns the operations noted since [`SimFabric::record_ops`].
    pub fn recorded_ops(&self) -> Vec<CountedOp> {
        let machine = self.inner().machine.borrow();
        let armed = machine.crashes.armed.iter().find(|armed| armed.life == self.life());
        armed.and_then(|armed| armed.recorded.clone()).unwrap_or_default()
    }

    /// Remote operations that this life has posted since it began.
    pub fn ops_counted(&self) -> u64 {
        self.inner().machine.borrow().lives[self.life() as usize].posted
    }

    /// Returns whether this life's plan has been carried out.
    pub fn has_fired(&self) -> bool {
        let machine = self.inner().machine.borrow();
        machine.crashes.armed.iter().any(|armed| armed.life == self.life() && armed.fired)
    }

    /// Returns whether an operation that this life posted may still take effect.
    pub fn has_in_flight(&self) -> bool {
        self.inner().machine.borrow().has_in_flight(self.life())
    }

    /// Tasks of this life that are not done.
    pub fn live_tasks(&self) -> usize {
        self.inner().tasks.borrow().len_of(self.life())
    }

    /// From now on, this life is dead to others, as when its lease has run out. Others may fence it; it may
    /// run on all the same.
    pub fn condemn(&self) {
        self.inner().machine.borrow_mut().lives[self.life() as usize].expired = true;
    }

    fn arm(&self, endpoint: Option<u32>, plan: Option<CrashPlan>, records: bool) {
        let (life, recorded) = (self.life(), records.then(Vec::new));
        let crashes = &mut self.inner().machine.borrow_mut().crashes;
        crashes.armed.retain(|armed| armed.life != life);
        let (cut, to_lose, lost) = (None, None, None);
        let armed =
            Armed { life, endpoint, plan, counted: 0, recorded, fired: false, cut, to_lose, lost };
        crashes.armed.push(armed);
    }
}
