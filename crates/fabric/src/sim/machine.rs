//! Simulated machine: moves posted operations as events through cards and wires, and back.
//!
//! ```text
//! post -> thread -> Arrive: client's card, wire, server's card -> Execute -> effect (effects.rs)
//!   answer: server's card, wire -> Complete: client's card, thread -> Resume: the task goes on
//! ```
//!
//! An operation passes every queue in an event at the time of passing, so that it finds the queue's
//! state of that time. It passes an idle stage within the event before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::adversary::Adversary;
use super::calendar::{Calendar, Event, Kind};
use super::calls::{self, SimCalls};
use super::config::{PS, SimConfig};
use super::connections::Connections;
use super::crash::Crashes;
use super::fate::{Fate, PostTimers};
use super::health::{Direction, Health};
use super::nic::{CardLoad, Nic};
use super::record::Recorder;
use super::slots::{Failure, Poster, SimPayload, SlotState, Slots, Wake};
use super::trace::{Trace, mix};
use crate::contention;
use crate::local::OwnRegionCell;
use crate::{
    FabricError, GlobalAddr, Incarnation, Op, Ops, ServerId, Service, ServiceId, Words, access,
    canary,
};

/// A memory server, or the region of a compute server's life.
#[derive(Debug)]
pub(super) struct SimMemoryServer {
    pub words: Arc<Words>,
    /// Its card, among [`Machine::nics`].
    pub card: usize,
    /// The life whose region it is, if it is one.
    pub owner: Option<u32>,
    /// Its owner has died with it.
    pub gone: bool,
    /// Lives that have been cut off.
    pub fenced: Vec<bool>,
    /// Lives and threads that have reconnected: their earlier posts do not count.
    pub reconnected: BTreeMap<(u32, u32), u64>,
    pub health: Health,
    /// RPC threads, and how many of them are at a request: more than there are for a while, if some were
    /// taken away.
    pub rpc_threads: usize,
    pub rpc_busy: usize,
    /// Requests that wait for one.
    pub queue: VecDeque<u32>,
}

/// One life of a compute server.
#[derive(Debug, Default)]
pub(super) struct SimLife {
    pub compute: usize,
    /// Memory that it exposes.
    pub own: OwnRegionCell,
    /// The life whose region it has used last.
    pub last_region: Option<u32>,
    pub dead: bool,
    pub stopped: bool,
    /// True time at which it was stopped, for its lease.
    pub stopped_since: Option<u64>,
    /// Somebody has seen its lease expired.
    pub expired: bool,
    /// Remote operations posted.
    pub posted: u64,
    /// Replies in front of which it was stopped: the poster, the message, the reply.
    pub held: Vec<(Poster, u32, Vec<u8>)>,
}

/// The configuration's times, in picoseconds.
#[derive(Debug)]
pub(super) struct Times {
    /// One way, the least.
    pub wire: u64,
    /// One way within a machine.
    pub loopback: u64,
    pub jitter: u64,
    pub service: u64,
    pub chain_step: u64,
    pub post: u64,
    pub post_more: u64,
    pub completion: u64,
    pub handover: u64,
    pub dispatch: u64,
}

/// A line that threads of one compute server change.
struct SharedLine {
    /// The end of its last way from one thread to another.
    free: u64,
    /// The thread that has changed it last.
    thread: u32,
}

pub(super) struct Machine {
    pub now: u64,
    pub calendar: Calendar,
    pub slots: Slots,
    /// The memory servers, and behind them a place for the region of each life.
    pub servers: Vec<SimMemoryServer>,
    pub memory_servers: usize,
    /// Some life has exposed memory.
    pub has_regions: bool,
    pub lives: Vec<SimLife>,
    pub services: BTreeMap<ServiceId, Arc<dyn Service>>,
    /// Tasks to poll, in order.
    pub ready: VecDeque<u32>,
    pub adversary: Adversary,
    pub trace: Trace,
    pub times: Times,
    pub crashes: Crashes,
    pub header_bytes: u64,
    /// Lines that have been changed, if contention costs time.
    lines: BTreeMap<u64, SharedLine>,
    /// The memory of a life that exposes none.
    no_words: Arc<Words>,
    /// Events so far.
    pub events: u64,
    /// Operations that have taken effect or been refused so far.
    pub ops: u64,
    pub connections: Connections,
    pub timers: PostTimers,
    pub recorder: Option<Recorder>,
    /// Some server is slow, stopped, cut off or gone, or some link between compute servers is cut.
    pub is_ill: bool,
    /// Requests that wait at a memory server, for each of its threads, before its services are asked
    /// whether to turn them away.
    pub rpc_queue_max: usize,
    pub threads_each: usize,
    /// Cards of the memory servers, and behind them those of the compute servers.
    pub nics: Vec<Nic>,
    pub compute_servers: usize,
    /// Messages between compute servers.
    pub calls: SimCalls,
    /// Times at which the worker threads are free.
    pub threads: Vec<u64>,
    /// Posts so far, waits among them.
    pub posts: u64,
    /// An event has called a waker, which may have woken tasks.
    pub called_waker: bool,
    rng: fastrand::Rng,
    /// For the order of tasks that are ready at one instant.
    shuffle: Option<fastrand::Rng>,
}

impl SimMemoryServer {
    fn new(words: Arc<Words>, card: usize, compute_servers: usize) -> Self {
        SimMemoryServer {
            words,
            card,
            owner: None,
            gone: false,
            fenced: Vec::new(),
            reconnected: BTreeMap::new(),
            health: Health::new(compute_servers),
            rpc_threads: 0,
            rpc_busy: 0,
            queue: VecDeque::new(),
        }
    }
}

impl Machine {
    pub(super) fn new(config: &SimConfig) -> Result<Self, FabricError> {
        let servers = (0..config.memory_servers)
            .map(|server| {
                let (server, bytes) = (ServerId(server as u16), config.region_bytes);
                let words = Words::anonymous((bytes / 8) as usize)
                    .ok_or(FabricError::NoMemory { bytes, server })?;
                let card = server.index();
                Ok(SimMemoryServer {
                    rpc_threads: config.rpc.threads,
                    ..SimMemoryServer::new(Arc::new(words), card, config.compute_servers)
                })
            })
            .collect::<Result<_, FabricError>>()?;
        let cards = std::iter::repeat_n(&config.memory_nic, config.memory_servers)
            .chain(std::iter::repeat_n(&config.compute_nic, config.compute_servers));
        let (network, cpu) = (&config.network, &config.cpu);
        let wire = (network.rtt_ns - network.service_ns - network.jitter_ns) * PS / 2;
        let mut machine = Machine {
            now: 0,
            calendar: Calendar::new(),
            slots: Slots::default(),
            servers,
            memory_servers: config.memory_servers,
            has_regions: false,
            lives: Vec::new(),
            services: BTreeMap::new(),
            ready: VecDeque::new(),
            adversary: Adversary::new(config),
            trace: Trace::new(config.seed),
            times: Times {
                wire,
                loopback: network.loopback_ns.saturating_sub(network.service_ns) * PS / 2,
                jitter: network.jitter_ns * PS,
                service: network.service_ns * PS,
                chain_step: network.chain_step_ns * PS,
                post: cpu.post_ns * PS,
                post_more: cpu.post_more_ns * PS,
                completion: cpu.completion_ns * PS,
                handover: cpu.handover_ns * PS,
                dispatch: config.rpc.dispatch_ns * PS,
            },
            crashes: Crashes::default(),
            header_bytes: network.header_bytes,
            lines: BTreeMap::new(),
            no_words: Arc::new(
                Words::anonymous(0)
                    .ok_or(FabricError::NoMemory { bytes: 0, server: ServerId::COMPUTE_FIRST })?,
            ),
            events: 0,
            ops: 0,
            connections: Connections::new(config.queue_depth),
            timers: PostTimers::default(),
            recorder: config.record.then(Recorder::default),
            is_ill: false,
            rpc_queue_max: config.rpc.queue_max,
            threads_each: config.threads,
            nics: cards.map(Nic::new).collect(),
            compute_servers: config.compute_servers,
            calls: SimCalls::default(),
            threads: vec![0; config.compute_servers * config.threads],
            posts: 0,
            called_waker: false,
            rng: fastrand::Rng::with_seed(mix(config.seed, 0x0e7)),
            shuffle: (config.adversary.shuffle)
                .then(|| fastrand::Rng::with_seed(mix(config.seed, 0x5f1e))),
        };
        for compute in 0..config.compute_servers {
            machine.begin_life(compute);
        }
        Ok(machine)
    }

    /// A compute server starts; returns its life's number.
    pub(super) fn begin_life(&mut self, compute: usize) -> u32 {
        self.lives.push(SimLife { compute, ..SimLife::default() });
        let card = self.memory_servers + compute;
        self.servers.push(SimMemoryServer {
            owner: Some((self.lives.len() - 1) as u32),
            ..SimMemoryServer::new(Arc::clone(&self.no_words), card, self.compute_servers)
        });
        self.servers.iter_mut().for_each(|server| server.fenced.resize(self.lives.len(), false));
        (self.lives.len() - 1) as u32
    }

    /// The memory of a life that exposes none.
    pub(super) fn no_words(&self) -> Arc<Words> {
        Arc::clone(&self.no_words)
    }

    /// Returns the life that an incarnation names, if it ever began.
    pub(super) fn life_of(&self, who: Incarnation) -> Option<usize> {
        let index = usize::try_from(who.0.checked_sub(1)?).ok()?;
        (index < self.lives.len()).then_some(index)
    }

    /// Sends `payload` off; returns the slot that will hold its result.
    #[inline]
    pub(super) fn post(&mut self, poster: Poster, payload: SimPayload, wake: Wake) -> u32 {
        let (parts, listed) = match &payload {
            SimPayload::Chain(ops) => (1, ops.len()),
            SimPayload::Batch(ops) => (ops.len(), ops.len()),
            _ => (1, 1),
        };
        assert!(listed <= usize::from(u16::MAX), "{listed} operations in one list: at most 65535");
        self.posts += 1;
        let thread = poster.thread;
        if self.times.handover > 0 {
            contention::changed(|line| self.take_line(thread, line));
        }
        let now = self.now;
        let is_beyond = payload.is_beyond(self.memory_servers);
        let index = self.slots.insert(poster, self.posts, now, parts as u16, payload, wake);
        if is_beyond {
            self.find_places(index);
        }
        self.count(index);
        match self.slots[index].payload {
            SimPayload::Sleep { ps } => {
                let at = self.now.saturating_add(ps);
                self.calendar.push(at, Kind::Timer, index, 0);
                return index;
            }
            SimPayload::Work { ps } => {
                let at = self.occupy(thread, ps);
                self.calendar.push(at, Kind::Resume, index, 0);
                return index;
            }
            SimPayload::Call(_)
            | SimPayload::Fence { .. }
            | SimPayload::Reconnect { .. }
            | SimPayload::EndConnection { .. }
                if calls::is_message(&self.slots[index].payload) =>
            {
                let departs = self.occupy(thread, self.times.post);
                self.record_post(index);
                if !self.settles_region(index) || self.begin_reconnect(index) {
                    self.post_message(index, departs);
                }
                return index;
            }
            _ => {}
        }
        let cost = self.times.post + (listed as u64 - 1) * self.times.post_more;
        let departs = self.occupy(thread, cost);
        self.record_post(index);
        if matches!(self.slots[index].payload, SimPayload::Reconnect { .. }) {
            if self.begin_reconnect(index) {
                self.depart_now(index, 0, departs);
            }
            return index;
        }
        for part in 0..parts as u16 {
            if self.connections.may_hold() && self.hold(index, part) {
                continue;
            }
            self.depart(index, part, departs);
        }
        index
    }

    /// As [`Machine::depart`], for rare calls.
    #[cold]
    pub(super) fn depart_now(&mut self, index: u32, part: u16, departs: u64) {
        if calls::is_message(&self.slots[index].payload) {
            return self.post_message(index, departs);
        }
        self.depart(index, part, departs);
    }

    #[inline(always)]
    fn depart(&mut self, index: u32, part: u16, departs: u64) {
        let place = self.slots[index].place(part).unwrap_or(0);
        let slot = &self.slots[index];
        if place >= self.servers.len() || slot.has_place_of_life() && slot.error.is_some() {
            return self.refuse_departure(index, part, departs);
        }
        if let Some(op @ Op::Read { from, .. }) = self.slots[index].payload.op(part) {
            // Real time only: the words are on their way while other events are handled.
            self.servers[place].words.prefetch((from.offset() / 8) as usize, op.bytes());
        }
        let bytes = self.request(index, part).bytes;
        let transfer = self.client_nic(index).outbound.transfer_ps(bytes);
        let mut at = departs.saturating_add(transfer + self.wire_to(index, part));
        if self.adversary.harms {
            at = at.saturating_add(self.meet_fate(index, part, departs));
        }
        self.calendar.push(at, Kind::Arrive, index, part);
    }

    /// A part that goes nowhere comes back at once: there is no such server, or its life has ended.
    #[cold]
    fn refuse_departure(&mut self, index: u32, part: u16, departs: u64) {
        let slot = &self.slots[index];
        let server = slot.server(part).unwrap_or(ServerId(0));
        let addr = slot.payload.op(part).map_or(GlobalAddr::new(server, 0), Op::addr);
        let bytes = slot.payload.op(part).map_or(0, Op::bytes);
        // A failure that was found at the post stands.
        self.slots[index].fail(access::out_of_bounds(None, addr, bytes));
        let at = departs.saturating_add(self.times.completion.max(1));
        self.calendar.push(at, Kind::Taken, index, part);
    }

    /// Occupies the thread; returns the end of that time.
    #[inline]
    pub(super) fn occupy(&mut self, thread: u32, ps: u64) -> u64 {
        let free = &mut self.threads[thread as usize];
        *free = (*free).max(self.now).saturating_add(ps);
        *free
    }

    /// The thread changes a line of its processor's cache. It waits until those before it have changed it, and for the
    /// line if the last of them was another thread.
    fn take_line(&mut self, thread: u32, line: u64) {
        let free = &mut self.threads[thread as usize];
        let wants = (*free).max(self.now);
        let held = self.lines.entry(line).or_insert(SharedLine { free: 0, thread });
        if held.thread != thread {
            *free = wants.max(held.free).saturating_add(self.times.handover);
            *held = SharedLine { free: *free, thread };
        }
    }

    /// The latency of one message.
    #[inline(always)]
    pub(super) fn wire(&mut self) -> u64 {
        let jitter = self.times.jitter;
        self.times.wire + if jitter == 0 { 0 } else { self.rng.u64(0..=jitter) }
    }

    /// The latency of one message of an operation, which takes no wire within a machine.
    #[inline(always)]
    pub(super) fn wire_to(&mut self, index: u32, part: u16) -> u64 {
        if !self.slots[index].places.is_empty() && self.is_loopback(index, part) {
            return self.times.loopback;
        }
        self.wire()
    }

    /// Returns whether an operation goes to the region of the life that posts it.
    pub(super) fn is_loopback(&self, index: u32, part: u16) -> bool {
        let slot = &self.slots[index];
        let server = slot.place(part).and_then(|place| self.servers.get(place));
        server.is_some_and(|server| server.owner == Some(slot.poster.life))
    }

    /// The card of the compute server that posted something.
    #[inline]
    pub(super) fn client_nic(&mut self, index: u32) -> &mut Nic {
        let compute = self.compute(index);
        &mut self.nics[self.memory_servers + compute]
    }

    #[inline]
    pub(super) fn compute(&self, index: u32) -> usize {
        self.lives[self.slots[index].poster.life as usize].compute
    }

    /// Handles events until a task can go on or a waker has been called. False if no event is left
    /// up to `until`.
    #[inline]
    pub(super) fn step(&mut self, until: u64) -> bool {
        self.called_waker = false;
        while self.ready.is_empty() && !self.called_waker {
            let Some(event) = self.calendar.pop(until) else { return false };
            self.begin(event);
            self.handle(event);
        }
        if self.shuffle.is_some() {
            self.finish_instant();
        }
        true
    }

    /// Handles all events of this instant, so that there is an order to draw.
    #[cold]
    fn finish_instant(&mut self) {
        while let Some(event) = self.calendar.pop(self.now) {
            self.begin(event);
            self.handle(event);
        }
    }

    /// The next task to poll.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        match &mut self.shuffle {
            Some(rng) if self.ready.len() > 1 => {
                let chosen = rng.usize(..self.ready.len());
                self.ready.swap_remove_back(chosen)
            }
            _ => self.ready.pop_front(),
        }
    }

    #[inline(always)]
    fn begin(&mut self, event: Event) {
        self.now = event.at;
        self.events += 1;
        let what = u64::from(event.slot) << 16 | u64::from(event.part);
        self.trace.add(event.at ^ (event.kind as u64) << 60 ^ what.rotate_left(20));
    }

    #[inline(always)]
    fn handle(&mut self, event: Event) {
        let (slot, part) = (event.slot, event.part);
        if self.is_ill && self.park(event.kind, slot, part) {
            return;
        }
        match event.kind {
            Kind::Arrive => self.leave_client(slot, part),
            Kind::Reach => self.reach_server(slot, part, self.request(slot, part)),
            Kind::Execute => self.execute(slot, part),
            Kind::Atomic => self.effect(slot, part),
            Kind::Second => self.instant(slot, part, 1),
            Kind::Third => self.instant(slot, part, 2),
            Kind::Fourth => self.instant(slot, part, 3),
            Kind::Handled => self.handled(slot),
            Kind::Complete => self.take_answer(slot, part),
            Kind::Taken => self.complete(slot, part),
            Kind::Vanish => self.vanish(slot),
            Kind::Timeout => self.timer_fires(slot),
            Kind::Resume => self.resume(slot),
            Kind::Call => self.step_message(slot, part),
            Kind::Timer => {
                let free_at = self.threads[self.slots[slot].poster.thread as usize];
                self.resume_at(slot, free_at);
            }
        }
    }

    #[inline(always)]
    fn leave_client(&mut self, index: u32, part: u16) {
        let load = self.request(index, part);
        let now = self.now;
        let through = self.client_nic(index).outbound.pass(now, load);
        if through > self.now {
            self.calendar.push(through, Kind::Reach, index, part);
        } else {
            self.reach_server(index, part, load);
        }
    }

    #[inline]
    fn reach_server(&mut self, index: u32, part: u16, load: CardLoad) {
        if canary::NUMBER_FOLLOWS_SLOT.is_armed() {
            self.follow_slot(index, part);
        }
        if self.is_ill && self.swallows(index, part, Direction::Requests) {
            return self.vanish(index);
        }
        let now = self.now;
        let through = self.nic_of(index, part).inbound.pass(now, load);
        if through > self.now {
            self.calendar.push(through, Kind::Execute, index, part);
        } else if !self.is_ill || !self.park(Kind::Execute, index, part) {
            self.execute(index, part);
        }
    }

    /// The server's answer leaves, at the earliest when its card is done with the operation.
    #[inline]
    pub(super) fn respond(&mut self, index: u32, part: u16) {
        self.respond_after(index, part, 0);
    }

    /// As [`Machine::respond`], with an operation that took `stretch_ps` longer.
    #[inline]
    pub(super) fn respond_after(&mut self, index: u32, part: u16, stretch_ps: u64) {
        let load = self.response(index, part);
        let (now, mut service, mut late) = (self.now, self.times.service + stretch_ps, 0);
        if self.is_ill {
            service = self.slowed(index, part, service);
            if self.swallows(index, part, Direction::Replies) {
                return self.calendar.push(now + service, Kind::Vanish, index, part);
            }
        }
        if self.adversary.harms {
            match self.fate(index, part) {
                Fate::Plain => {}
                Fate::Late { back_ps, .. } => late = back_ps,
                Fate::Lost(_) => {
                    return self.calendar.push(now + service, Kind::Vanish, index, part);
                }
            }
        }
        let pipe = &mut self.nic_of(index, part).outbound;
        let sent = pipe.pass(now + service + pipe.transfer_ps(load.bytes), load);
        let at = sent + self.wire_to(index, part) + self.times.completion + late;
        self.calendar.push(at, Kind::Complete, index, part);
    }

    #[inline(always)]
    fn take_answer(&mut self, index: u32, part: u16) {
        let load = self.response(index, part);
        let now = self.now;
        let through = self.client_nic(index).inbound.pass(now, load);
        if through > self.now {
            self.calendar.push(through, Kind::Taken, index, part);
        } else {
            self.complete(index, part);
        }
    }

    #[inline(always)]
    fn complete(&mut self, index: u32, part: u16) {
        self.release(index, part);
        self.slots[index].missing -= 1;
        let done = self.take_completion(index);
        let slot = &self.slots[index];
        if slot.missing == 0 {
            if slot.silent || slot.timed_out.is_some() {
                return self.end_in_doubt(index);
            }
            self.after_reconnect(index, true);
            self.resume_at(index, done);
        }
    }

    /// The thread takes one completion, beginning `completion` ago if it was free then; returns the end of that
    /// time.
    #[inline(always)]
    pub(super) fn take_completion(&mut self, index: u32) -> u64 {
        let completion = self.times.completion;
        let free = &mut self.threads[self.slots[index].poster.thread as usize];
        *free = (*free).max(self.now.saturating_sub(completion)).saturating_add(completion);
        *free
    }

    #[inline(always)]
    pub(super) fn resume_at(&mut self, index: u32, at: u64) {
        if at > self.now {
            self.calendar.push(at, Kind::Resume, index, 0);
        } else {
            self.resume(index);
        }
    }

    #[inline]
    pub(super) fn resume(&mut self, index: u32) {
        let slot = &mut self.slots[index];
        if slot.state == SlotState::Abandoned {
            self.slots.remove(index);
            return;
        }
        slot.state = SlotState::Done;
        if self.lives[slot.poster.life as usize].dead {
            return;
        }
        self.record_back(index);
        self.called_waker |= self.slots[index].wake.wake(&mut self.ready);
    }

    /// Returns the result of a post that has come back. The slot stays until [`Machine::give_back`].
    #[inline]
    pub(super) fn result(&mut self, index: u32) -> Option<(&mut SimPayload, Failure)> {
        let slot = &mut self.slots[index];
        let is_there = matches!(slot.state, SlotState::Done | SlotState::TimedOut);
        if !is_there || self.lives[slot.poster.life as usize].dead {
            return None;
        }
        if slot.timed_out.is_some() {
            let failure = slot.failure().map(Box::new);
            return Some((&mut slot.payload, failure));
        }
        Some((&mut slot.payload, slot.error.take()))
    }

    /// Finishes with a slot. The caller drops the waker without holding the machine, which it may call.
    #[inline]
    pub(super) fn give_back(&mut self, index: u32) -> Wake {
        if self.slots[index].state == SlotState::Done {
            return self.slots.remove(index);
        }
        self.abandon(index)
    }

    /// Its future is gone: the operation goes on unseen, if it is under way. Returns the waker, as
    /// [`Machine::give_back`] does.
    pub(super) fn abandon(&mut self, index: u32) -> Wake {
        let slot = &mut self.slots[index];
        if slot.state == SlotState::Done {
            return self.slots.remove(index);
        }
        if slot.missing > 0 && calls::is_message(&slot.payload) {
            // Its request goes on without it.
            self.forget_waiting(index);
            self.after_reconnect(index, false);
            return self.slots.remove(index);
        }
        if slot.silent && slot.missing == 0 {
            self.after_reconnect(index, false);
            self.release_all(index);
            return self.slots.remove(index);
        }
        slot.state = SlotState::Abandoned;
        std::mem::take(&mut slot.wake)
    }

    #[inline]
    pub(super) fn server_of(&mut self, index: u32, part: u16) -> &mut SimMemoryServer {
        let place = self.slots[index].place(part).unwrap_or(0);
        &mut self.servers[place]
    }

    /// The card of the server that an operation goes to.
    #[inline]
    pub(super) fn nic_of(&mut self, index: u32, part: u16) -> &mut Nic {
        let place = self.slots[index].place(part).unwrap_or(0);
        &mut self.nics[self.servers[place].card]
    }

    /// Returns the load of a request: a chain is one message, and its operations count.
    #[inline]
    fn request(&self, index: u32, part: u16) -> CardLoad {
        let header = self.header_bytes;
        let sent = |op: &Op| if matches!(op, Op::Read { .. }) { 0 } else { op.bytes() as u64 };
        match &self.slots[index].payload {
            SimPayload::Chain(ops) => load_of(ops, |op| header + sent(op)),
            SimPayload::Rpc { list, .. } => CardLoad { ops: 1, bytes: header + sent(list.get(0)) },
            _ => CardLoad {
                ops: 1,
                bytes: header + self.slots[index].payload.op(part).map_or(0, sent),
            },
        }
    }

    /// Returns the load of an answer.
    #[inline]
    fn response(&self, index: u32, part: u16) -> CardLoad {
        let header = self.header_bytes;
        let slot = &self.slots[index];
        if slot.error.is_some() {
            return CardLoad { ops: 1, bytes: header };
        }
        let returned = |op: &Op| match op {
            Op::Read { into, .. } => into.window_len() as u64,
            Op::Write { .. } | Op::WriteWord { .. } => 0,
            Op::Cas { .. } | Op::Faa { .. } => 8,
        };
        match &slot.payload {
            SimPayload::Chain(ops) => load_of(ops, |op| header + returned(op)),
            SimPayload::Rpc { reply_len, .. } => {
                CardLoad { ops: 1, bytes: header + u64::from(*reply_len) }
            }
            _ => CardLoad { ops: 1, bytes: header + slot.payload.op(part).map_or(0, returned) },
        }
    }
}

fn load_of(ops: &Ops, bytes: impl Fn(&Op) -> u64) -> CardLoad {
    CardLoad { ops: ops.len() as u64, bytes: ops.iter().map(bytes).sum() }
}
