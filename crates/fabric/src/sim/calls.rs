//! Calls between simulated compute servers: messages through both cards, and the receiver's queues.
//!
//! ```text
//! post -> sender's card, wire, receiver's card -> queue -> a task of the receiver's
//!   reply: the task's thread, receiver's card, wire -> sender's card, thread -> the call's future
//! ```
//!
//! Fences, reconnects and ends of connections at compute servers travel the same way, and act when they arrive.
//!
//! - **MSG-1** The slot of a message ends once: by the first outcome that reaches it, or by its timer.
//!   The simulator drops and counts later outcomes.
//! - **MSG-2** The receiver's queues hold a request once, however often it arrives.
//! - **MSG-3** Only sending a message draws from the generators of [`Machine`], so that runs without
//!   calls stay as they are.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::adversary::Fault;
use super::calendar::Kind;
use super::config::PS;
use super::crash;
use super::fate::{Fate, Lost};
use super::machine::Machine;
use super::nic::CardLoad;
use super::slots::{Poster, SimPayload, SlotState, Wake};
use super::{Sim, SimEndpoint, SimFabric, SimInner};
use crate::calls::{CallOutcome, Responder, UNDER_WAY_MAX, check_number, exposed_twice};
use crate::{
    CALL_BYTES_MAX, CallError, Closed, FabricError, GlobalAddr, Incarnation, Incoming, OpError,
    OpErrorKind, Peer, ServerId, ServiceId, access, canary,
};

/// A call, as its post holds it.
#[derive(Debug)]
pub(super) struct CallPost {
    pub to: ServerId,
    pub service: ServiceId,
    pub request: Vec<u8>,
    pub outcome: Option<Result<Vec<u8>, CallError>>,
}

/// Step of a message on its way; the part of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Step {
    /// At the sender's card.
    Leave,
    /// At the receiver's card.
    Reach,
    /// Through it.
    Come,
    /// The second copy comes.
    Again,
    /// The answer is at the receiver's card.
    Back,
    /// The answer is at the sender's card.
    Home,
    /// Through it.
    Done,
}

impl Step {
    fn of(part: u16) -> Option<Step> {
        use Step::{Again, Back, Come, Done, Home, Leave, Reach};
        [Leave, Reach, Come, Again, Back, Home, Done].get(usize::from(part)).copied()
    }
}

#[derive(Debug)]
enum What {
    Call { service: ServiceId, request: Vec<u8> },
    Fence { who: Incarnation },
    Reconnect,
    EndConnection { life: Incarnation, thread: u32, posts: u64 },
}

/// A message that is under way, or waits at its receiver.
#[derive(Debug)]
struct Message {
    what: What,
    from: Poster,
    /// The receiver's life, and the number that it was sent to.
    to: u32,
    server: ServerId,
    /// The sender's post.
    slot: u32,
    serial: u64,
    /// Number of the call on its connection.
    number: u64,
    fate: Fate,
    is_begun: bool,
    outcome: Option<CallOutcome>,
    /// The post of the reply.
    reply_serial: u64,
}

impl Message {
    fn is_call(&self) -> bool {
        matches!(self.what, What::Call { .. })
    }
}

/// Requests that came to one life of a compute server.
#[derive(Debug, Default)]
struct SimReceiver {
    is_open: bool,
    has_left: bool,
    services: BTreeMap<ServiceId, SimQueue>,
    /// Posts of the requests that came.
    seen: BTreeSet<u64>,
    /// Lives that have been cut off here.
    fenced: BTreeSet<u32>,
    /// Lives and threads that have reconnected: nothing posted before these posts is begun.
    reconnected: BTreeMap<(u32, u32), u64>,
}

#[derive(Debug, Default)]
struct SimQueue {
    waiting: VecDeque<u32>,
    idle: Vec<Wake>,
}

/// Messages between two lives: how many there are, and those that wait for room (F12.10).
#[derive(Debug, Default)]
struct SimPair {
    under_way: usize,
    waiting: VecDeque<u32>,
}

/// A peer that a life has attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attached {
    pub life: u32,
    pub region_bytes: u64,
}

/// All messages between compute servers.
#[derive(Debug, Default)]
pub(super) struct SimCalls {
    list: BTreeMap<u32, Message>,
    next: u32,
    receivers: BTreeMap<u32, SimReceiver>,
    /// The life that a number stands for, for each life.
    peers: BTreeMap<(u32, ServerId), Attached>,
    /// Lives that left in order and have ended: they had answered all that they had begun.
    left: BTreeSet<u32>,
    /// Lives that were told that another one is dead.
    told_dead: BTreeSet<(u32, u32)>,
    pairs: BTreeMap<(u32, u32), SimPair>,
    /// Calls so far on each connection.
    numbers: BTreeMap<(u32, u32, ServerId), u64>,
    /// Links between compute servers that swallow what is sent.
    cut: BTreeSet<(usize, usize)>,
    /// Answers that nobody waited for.
    stale: u64,
    /// Wakers that have been called, to be dropped without holding the machine.
    spent: Vec<Wake>,
}

impl SimCalls {
    /// The peer that `server` stands for at the life `me`.
    pub(super) fn peer(&self, me: u32, server: ServerId) -> Option<Attached> {
        self.peers.get(&(me, server)).copied()
    }

    /// Returns whether `me` was told that `who` is dead.
    pub(super) fn was_told_dead(&self, me: u32, who: u32) -> bool {
        self.told_dead.contains(&(me, who))
    }

    /// Returns whether the link from compute server `from` to `to` swallows what is sent.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Returns whether any link is cut.
    pub(super) fn has_cuts(&self) -> bool {
        !self.cut.is_empty()
    }
}

/// Returns whether a post is a message to a compute server.
pub(super) fn is_message(payload: &SimPayload) -> bool {
    match payload {
        SimPayload::Call(_) => true,
        SimPayload::Fence { server, .. }
        | SimPayload::Reconnect { server }
        | SimPayload::EndConnection { server, .. } => server.is_compute(),
        _ => false,
    }
}

fn incarnation(life: u32) -> Incarnation {
    Incarnation(u64::from(life) + 1)
}

fn gone(life: u32) -> OpErrorKind {
    OpErrorKind::Gone { who: incarnation(life) }
}

impl Machine {
    /// Sends off the message in slot `index`, which leaves its thread at `departs`.
    #[cold]
    pub(super) fn post_message(&mut self, index: u32, departs: u64) {
        let slot = &mut self.slots[index];
        let (from, serial) = (slot.poster, slot.serial);
        let (server, what) = match &mut slot.payload {
            SimPayload::Call(posted) => {
                let request = std::mem::take(&mut posted.request);
                (posted.to, What::Call { service: posted.service, request })
            }
            SimPayload::Fence { server, who } => (*server, What::Fence { who: *who }),
            SimPayload::Reconnect { server } => (*server, What::Reconnect),
            SimPayload::EndConnection { server, life, thread, posts } => {
                (*server, What::EndConnection { life: *life, thread: *thread, posts: *posts })
            }
            _ => return,
        };
        let is_call = matches!(what, What::Call { .. });
        let own = self.lives[from.life as usize].own.get().filter(|own| own.number == server);
        let own = own.map(|_| from.life).filter(|_| !is_call);
        let to = self.calls.peer(from.life, server).map(|peer| peer.life).or(own);
        let number = if is_call {
            let key = (from.life, from.thread, server);
            let count = self.calls.numbers.entry(key).or_default();
            *count += 1;
            *count
        } else {
            0
        };
        let is_long = matches!(&what, What::Call { request, .. } if request.len() > CALL_BYTES_MAX);
        // The number stands for another life than at the mark, or for none.
        let other = match what {
            What::EndConnection { life, .. } if to.map(incarnation) != Some(life) => Some(life),
            _ => None,
        };
        let outcome = match to {
            _ if is_long => Some(Err(CallError::TooLong)),
            _ if other.is_some() => {
                other.map(|who| Err(CallError::Unknown(OpErrorKind::Gone { who })))
            }
            None => Some(Err(CallError::NotBegun)),
            Some(to) if self.calls.told_dead.contains(&(from.life, to)) => {
                Some(Err(match is_call {
                    true => CallError::NotBegun,
                    false => CallError::Unknown(gone(to)),
                }))
            }
            Some(_) => None,
        };
        let is_refused = outcome.is_some();
        let message = Message {
            what,
            from,
            to: to.filter(|_| !is_refused).unwrap_or(u32::MAX),
            server,
            slot: index,
            serial,
            number,
            fate: Fate::Plain,
            is_begun: false,
            outcome,
            reply_serial: 0,
        };
        let key = (message.from.life, message.to);
        let id = self.calls.next;
        self.calls.next += 1;
        self.calls.list.insert(id, message);
        if is_refused {
            // Nobody to send it to.
            let at = departs.saturating_add(self.times.completion.max(1));
            return self.calendar.push(at, Kind::Call, id, Step::Done as u16);
        }
        if is_call {
            let pair = self.calls.pairs.entry(key).or_default();
            if pair.under_way >= UNDER_WAY_MAX {
                return pair.waiting.push_back(id);
            }
            pair.under_way += 1;
        }
        self.send_message(id, departs);
    }

    fn send_message(&mut self, id: u32, departs: u64) {
        let Some(message) = self.calls.list.get(&id) else { return };
        let (index, serial) = (message.slot, message.serial);
        let bytes = self.message_load(message).bytes;
        let compute = self.lives[message.from.life as usize].compute;
        let transfer = self.nics[self.memory_servers + compute].outbound.transfer_ps(bytes);
        let mut at = departs.saturating_add(transfer + self.wire());
        let mut fate = Fate::Plain;
        if self.adversary.harms {
            fate = self.adversary.fate(serial, 0, 1);
            match fate {
                Fate::Plain => {}
                Fate::Late { there_ps, .. } => {
                    self.strike_message_of(id, "late");
                    at = at.saturating_add(there_ps);
                }
                Fate::Lost(lost) => {
                    if self.waits_for(index, serial) {
                        self.wind_up(index, departs);
                    }
                    let (name, longer) = lost.effect();
                    at = at.saturating_add(longer);
                    self.strike_message_of(id, name);
                }
            }
        }
        let repeated = self.adversary.config.repeated;
        if self.adversary.strikes(Fault::Repeated, repeated, serial, 0) {
            let most = self.adversary.config.late_ns * PS;
            let after = 1 + self.adversary.roll(Fault::RepeatedBy, serial, 0) % most;
            self.strike_message_of(id, "repeated");
            self.calendar.push(at.saturating_add(after), Kind::Call, id, Step::Again as u16);
        }
        if let Some(message) = self.calls.list.get_mut(&id) {
            message.fate = fate;
        }
        self.calendar.push(at, Kind::Call, id, Step::Leave as u16);
    }

    fn message_load(&self, message: &Message) -> CardLoad {
        let sent = match &message.what {
            What::Call { request, .. } => request.len(),
            _ => 8,
        };
        CardLoad { ops: 1, bytes: self.header_bytes + sent as u64 }
    }

    /// A message takes a step of its way.
    #[cold]
    pub(super) fn step_message(&mut self, id: u32, part: u16) {
        let Some(step) = Step::of(part) else { return };
        // A message that is not listed any more has been given up.
        let Some(message) = self.calls.list.get(&id) else { return };
        let from = self.lives[message.from.life as usize].compute;
        let to = self.lives.get(message.to as usize).map_or(from, |life| life.compute);
        let answer = match &message.outcome {
            Some(Ok(reply)) => reply.len() as u64,
            _ => 8,
        };
        let answer = CardLoad { ops: 1, bytes: self.header_bytes + answer };
        let (index, now) = (message.slot, self.now);
        match step {
            Step::Leave => {
                let load = self.message_load(message);
                let through = self.nics[self.memory_servers + from].outbound.pass(now, load);
                self.next_step(id, Step::Reach, through);
            }
            Step::Reach => {
                let load = self.message_load(message);
                if self.calls.cut.contains(&(from, to)) {
                    self.strike_message_of(id, "request cut off");
                    return self.lose_message(id);
                }
                let through = self.nics[self.memory_servers + to].inbound.pass(now, load);
                self.next_step(id, Step::Come, through);
            }
            Step::Come => self.come(id),
            Step::Again => self.come_again(id),
            Step::Back => {
                let late = match message.fate {
                    Fate::Plain => 0,
                    Fate::Late { back_ps, .. } => back_ps,
                    Fate::Lost(_) => return self.lose_message(id),
                };
                if self.calls.cut.contains(&(to, from)) {
                    self.strike_message_of(id, "reply cut off");
                    return self.lose_message(id);
                }
                let pipe = &mut self.nics[self.memory_servers + to].outbound;
                let sent = pipe.pass(now + pipe.transfer_ps(answer.bytes), answer);
                let at = sent + self.wire() + self.times.completion + late;
                self.next_step(id, Step::Home, at);
            }
            Step::Home => {
                let through = self.nics[self.memory_servers + from].inbound.pass(now, answer);
                self.next_step(id, Step::Done, through);
            }
            Step::Done => {
                let is_short =
                    self.crashes.fate(message.reply_serial, 0) != crash::PlannedFate::Happens;
                if is_short {
                    return self.lose_message(id);
                }
                self.end_message(id, index);
            }
        }
    }

    fn next_step(&mut self, id: u32, step: Step, at: u64) {
        if at > self.now {
            self.calendar.push(at, Kind::Call, id, step as u16);
        } else {
            self.step_message(id, step as u16);
        }
    }

    fn strike_message_of(&mut self, id: u32, fault: &'static str) {
        if let Some(message) = self.calls.list.get(&id)
            && self.slots[message.slot].serial == message.serial
        {
            self.strike(message.slot, 0, fault);
        }
    }

    /// A message has come to its receiver.
    fn come(&mut self, id: u32) {
        let Some(message) = self.calls.list.get(&id) else { return };
        let (to, serial, from) = (message.to, message.serial, message.from);
        let is_short = self.crashes.fate(serial, 0) != crash::PlannedFate::Happens;
        if is_short || matches!(message.fate, Fate::Lost(Lost::Never { .. })) {
            return self.lose_message(id);
        }
        if self.calls.left.contains(&to) {
            // Its last word on the connection was that it begins nothing more.
            return self.send_back(id, Err(CallError::NotBegun));
        }
        if self.lives[to as usize].dead {
            return self.lose_message(id);
        }
        self.ops += 1;
        self.trace.add(serial);
        let receiver = self.calls.receivers.entry(to).or_default();
        let is_fenced = receiver.fenced.contains(&from.life);
        let outcome = match &message.what {
            What::Call { .. } if !receiver.is_open => Err(CallError::NotBegun),
            What::Call { service, .. } => {
                let (service, is_new) = (*service, receiver.seen.insert(serial));
                if is_new || canary::DELIVER_TWICE.is_armed() {
                    self.queue(id, to, service);
                }
                return;
            }
            _ if is_fenced => Err(CallError::Unknown(OpErrorKind::Fenced)),
            What::Fence { who } => {
                let who = *who;
                if let Some(life) = self.life_of(who)
                    && let Some(receiver) = self.calls.receivers.get_mut(&to)
                {
                    receiver.fenced.insert(life as u32);
                    // A fenced life keeps its own region (F11.10).
                    if life as u32 != to {
                        self.fence_at(self.place_of_life(to), life as u32);
                    }
                }
                Ok(Vec::new())
            }
            What::Reconnect => {
                let last = receiver.reconnected.entry((from.life, from.thread)).or_default();
                *last = (*last).max(serial);
                self.settle_at(self.place_of_life(to), from, serial);
                Ok(Vec::new())
            }
            What::EndConnection { thread, posts, .. } => {
                let (key, posts) = ((from.life, *thread), *posts);
                let last = receiver.reconnected.entry(key).or_default();
                *last = (*last).max(posts + 1);
                self.end_at(self.place_of_life(to), key, posts);
                Ok(Vec::new())
            }
        };
        self.send_back(id, outcome);
    }

    /// The second copy of a message has come (MSG-2).
    fn come_again(&mut self, id: u32) {
        let Some(Message { what: What::Call { service, .. }, to, serial, .. }) =
            self.calls.list.get(&id)
        else {
            return;
        };
        let (service, to, serial) = (*service, *to, *serial);
        let Some(receiver) = self.calls.receivers.get_mut(&to) else { return };
        let is_new = receiver.is_open && receiver.seen.insert(serial);
        let is_dead = self.lives[to as usize].dead;
        if !is_dead && (is_new || canary::DELIVER_TWICE.is_armed()) {
            self.queue(id, to, service);
        }
    }

    fn queue(&mut self, id: u32, to: u32, service: ServiceId) {
        let receiver = self.calls.receivers.entry(to).or_default();
        let service = receiver.services.entry(service).or_default();
        service.waiting.push_back(id);
        let idle = std::mem::take(&mut service.idle);
        self.wake_all(idle);
    }

    fn wake_all(&mut self, idle: Vec<Wake>) {
        for wake in &idle {
            self.called_waker |= wake.wake(&mut self.ready);
        }
        self.calls.spent.extend(idle);
    }

    /// The answer leaves the receiver, if it lives.
    fn send_back(&mut self, id: u32, outcome: CallOutcome) {
        self.send_back_at(id, outcome, self.now.saturating_add(self.times.service));
    }

    fn send_back_at(&mut self, id: u32, outcome: CallOutcome, at: u64) {
        let Some(message) = self.calls.list.get_mut(&id) else { return };
        if message.outcome.is_none() {
            message.outcome = Some(outcome);
            self.calendar.push(at, Kind::Call, id, Step::Back as u16);
        }
    }

    /// A message has come to its end without an answer: its sender gives up in time.
    fn lose_message(&mut self, id: u32) {
        if let Some(message) = self.calls.list.get(&id) {
            let (slot, serial) = (message.slot, message.serial);
            if self.waits_for(slot, serial) {
                self.wind_up(slot, self.now);
            }
            self.remove_message(id);
        }
    }

    fn remove_message(&mut self, id: u32) {
        let Some(message) = self.calls.list.remove(&id) else { return };
        if message.is_call()
            && let Some(pair) = self.calls.pairs.get_mut(&(message.from.life, message.to))
        {
            if let Some(at) = pair.waiting.iter().position(|waiting| *waiting == id) {
                // It never left.
                pair.waiting.remove(at);
                return;
            }
            match pair.waiting.pop_front() {
                Some(next) => self.send_message(next, self.now),
                None => pair.under_way -= 1,
            }
        }
    }

    /// Returns whether the post of a message still waits for its outcome.
    fn waits_for(&self, index: u32, serial: u64) -> bool {
        let slot = &self.slots[index];
        slot.serial == serial && slot.state == SlotState::Flying && slot.missing > 0
    }

    /// The answer has come to the sender.
    fn end_message(&mut self, id: u32, index: u32) {
        let Some(message) = self.calls.list.get_mut(&id) else { return };
        let (serial, from, to, server) = (message.serial, message.from, message.to, message.server);
        let number = message.number;
        let is_call = message.is_call();
        let is_reconnect = matches!(message.what, What::Reconnect);
        let Some(mut outcome) = message.outcome.take() else { return };
        self.trace.add(outcome.as_ref().map_or(u64::MAX, |reply| reply.len() as u64));
        self.remove_message(id);
        let is_told_dead = self.calls.told_dead.contains(&(from.life, to));
        if outcome.is_ok() && is_call && is_told_dead && !self.calls.left.contains(&to) {
            outcome = Err(CallError::Unknown(gone(to)));
        }
        if is_reconnect && outcome.is_ok() {
            self.give_up_older(from, server, serial);
            self.calls.numbers.remove(&(from.life, from.thread, server));
        }
        if self.waits_for(index, serial) {
            return self.give_outcome(index, outcome);
        }
        self.calls.stale += 1;
        if canary::STALE_REPLY.is_armed() && is_call {
            let same = self.calls.list.values().find(|other| {
                (other.from.life, other.from.thread, other.server, other.number)
                    == (from.life, from.thread, server, number)
            });
            if let Some(other) = same.map(|other| other.slot) {
                self.give_outcome(other, outcome);
            }
        }
    }

    /// The sender's post ends (MSG-1).
    pub(super) fn give_outcome(&mut self, index: u32, outcome: CallOutcome) {
        let slot = &mut self.slots[index];
        let server = slot.server(0).unwrap_or(ServerId(0));
        match &mut slot.payload {
            SimPayload::Call(posted) => posted.outcome = Some(outcome),
            _ => match outcome {
                Ok(_) => {}
                Err(CallError::Unknown(kind)) => slot.fail(OpError { server, kind }),
                // There is nobody.
                Err(_) => slot.fail(access::out_of_bounds(None, GlobalAddr::new(server, 0), 0)),
            },
        }
        slot.missing = 0;
        let done = self.take_completion(index);
        self.after_reconnect(index, true);
        self.resume_at(index, done);
    }

    /// A timer fires: nobody knows what became of the message.
    pub(super) fn time_out_message(&mut self, index: u32) {
        if self.slots[index].state == SlotState::Flying && self.slots[index].missing > 0 {
            let told = if canary::LOST_IS_NOT_BEGUN.is_armed() {
                CallError::NotBegun
            } else {
                CallError::Unknown(OpErrorKind::Timeout)
            };
            self.give_outcome(index, Err(told));
        }
    }

    /// A reconnect has come back: what that thread sent before is given up.
    fn give_up_older(&mut self, from: Poster, server: ServerId, serial: u64) {
        let theirs = |message: &Message| {
            (message.from.life, message.from.thread) == (from.life, from.thread)
                && message.server == server
                && message.serial < serial
        };
        self.give_up(theirs, OpErrorKind::Timeout);
    }

    /// The calls that are `theirs` end for their senders. Those that have not left never do.
    fn give_up(&mut self, theirs: impl Fn(&Message) -> bool, kind: OpErrorKind) {
        let calls = self.calls.list.iter().filter(|(_, message)| message.is_call());
        let given_up = calls.filter(|(_, message)| theirs(message));
        let given_up: Vec<_> =
            given_up.map(|(id, message)| (*id, message.slot, message.serial)).collect();
        for (id, slot, serial) in given_up {
            let has_left = !self.calls.pairs.values().any(|pair| pair.waiting.contains(&id));
            if !has_left {
                self.calls.pairs.values_mut().for_each(|pair| pair.waiting.retain(|at| *at != id));
                self.calls.list.remove(&id);
            }
            if self.waits_for(slot, serial) {
                let told = if has_left { CallError::Unknown(kind) } else { CallError::NotBegun };
                self.give_outcome(slot, Err(told));
            }
        }
    }

    /// A life has ended: what was on its way to it goes nowhere.
    pub(super) fn end_receiver(&mut self, life: u32) {
        if let Some(receiver) = self.calls.receivers.remove(&life) {
            let begun = |one: &Message| one.to == life && one.is_begun && one.outcome.is_none();
            let has_answered = !self.calls.list.values().any(begun);
            let idle = receiver.services.into_values().flat_map(|service| service.idle);
            self.calls.spent.extend(idle);
            if receiver.has_left && has_answered {
                self.calls.left.insert(life);
                return;
            }
        }
        // Replies that have left arrive.
        let is_lost = |message: &Message| message.to == life && message.outcome.is_none();
        let lost: Vec<u32> =
            self.calls.list.iter().filter(|(_, one)| is_lost(one)).map(|(id, _)| *id).collect();
        lost.into_iter().for_each(|id| self.lose_message(id));
    }

    /// `me` was told that `who` is dead: it takes no reply of it any more (F12.6).
    pub(super) fn tell_dead(&mut self, me: u32, who: u32) {
        let mut peers = self.calls.peers.iter();
        let is_peer = peers.any(|((life, _), peer)| (*life, peer.life) == (me, who));
        if is_peer && self.calls.told_dead.insert((me, who)) {
            if !self.calls.left.contains(&who) {
                self.give_up(|one| one.from.life == me && one.to == who, gone(who));
            }
            self.end_region_posts(me, who);
        }
    }

    /// Returns whether a request of a life may still come to a receiver.
    pub(super) fn has_messages(&self, life: u32) -> bool {
        self.calls.list.values().any(|message| {
            message.from.life == life && !message.is_begun && message.outcome.is_none()
        })
    }
}

/// Obligation of a simulated request's receiver.
struct SimResponder {
    inner: Rc<SimInner>,
    /// The thread that took it, which pays for the reply.
    taker: Poster,
    id: u32,
    is_begun: bool,
    is_done: bool,
}

impl SimResponder {
    fn is_alive(&self, machine: &Machine) -> bool {
        !machine.lives[self.taker.life as usize].dead
    }
}

impl Responder for SimResponder {
    fn begin(&mut self) -> bool {
        let mut machine = self.inner.machine.borrow_mut();
        if !self.is_alive(&machine) {
            return false;
        }
        let Some(message) = machine.calls.list.get(&self.id) else { return false };
        let (from, serial) = (message.from, message.serial);
        let Some(receiver) = machine.calls.receivers.get(&self.taker.life) else { return false };
        let is_fenced =
            receiver.fenced.contains(&from.life) && !canary::BEGIN_BEHIND_FENCE.is_armed();
        let last = receiver.reconnected.get(&(from.life, from.thread));
        if is_fenced || last.is_some_and(|last| serial < *last) {
            return false;
        }
        if let Some(message) = machine.calls.list.get_mut(&self.id) {
            message.is_begun = true;
        }
        self.is_begun = true;
        machine.trace.add(serial);
        true
    }

    fn reply(&mut self, reply: Vec<u8>) -> Result<(), Closed> {
        assert!(self.is_begun, "a reply to a request that was not begun");
        self.is_done = true;
        let inner = Rc::clone(&self.inner);
        let is_stopped = inner.holds_reply(self.taker);
        let sent = {
            let mut machine = inner.machine.borrow_mut();
            let life = &machine.lives[self.taker.life as usize];
            let has_lease = !life.dead && !life.expired;
            let may_leave = has_lease || !life.dead && canary::REPLY_AS_ZOMBIE.is_armed();
            if is_stopped {
                // It leaves once its life goes on.
                machine.lives[self.taker.life as usize].held.push((self.taker, self.id, reply));
                return Ok(());
            }
            if may_leave {
                machine.send_reply(self.taker, self.id, reply);
            } else if !life.dead {
                machine.lose_message(self.id);
            }
            may_leave
        };
        inner.end_planned();
        if sent { Ok(()) } else { Err(Closed) }
    }
}

impl Drop for SimResponder {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut machine = self.inner.machine.borrow_mut();
        if self.is_alive(&machine) {
            let told = match self.is_begun {
                true => CallError::Unknown(OpErrorKind::Unavailable),
                false => CallError::NotBegun,
            };
            machine.send_back(self.id, Err(told));
        }
    }
}

impl Machine {
    /// Counts and sends a reply.
    fn send_reply(&mut self, taker: Poster, id: u32, reply: Vec<u8>) {
        self.posts += 1;
        let (serial, now) = (self.posts, self.now);
        let index = self.slots.insert(taker, serial, now, 1, SimPayload::Reply, Wake::Nobody);
        self.count(index);
        self.slots.remove(index);
        let departs = self.occupy(taker.thread, self.times.post);
        if let Some(message) = self.calls.list.get_mut(&id) {
            message.reply_serial = serial;
        }
        self.send_back_at(id, Ok(reply), departs);
    }

    /// A life goes on: replies that it was stopped in front of leave, if it still has its lease.
    pub(super) fn release_replies(&mut self, life: u32) {
        let held = std::mem::take(&mut self.lives[life as usize].held);
        for (taker, id, reply) in held {
            let life = &self.lives[life as usize];
            if !life.dead && (!life.expired || canary::REPLY_AS_ZOMBIE.is_armed()) {
                self.send_reply(taker, id, reply);
            } else {
                self.lose_message(id);
            }
        }
    }
}

impl SimInner {
    /// Returns whether the life of the polled task is to stop, or has stopped, in front of a reply.
    fn holds_reply(&self, taker: Poster) -> bool {
        let is_own = self.tasks.borrow().life(self.current.get()) == Some(taker.life);
        is_own && self.machine.borrow_mut().holds(taker, &SimPayload::Reply)
    }

    /// Returns whether a request for `service` waits; false once this compute server has left.
    fn poll_call(&self, taker: Poster, service: ServiceId, context: &Context<'_>) -> Poll<bool> {
        let wake = self.wake(context);
        let (polled, spent) = {
            let mut machine = self.machine.borrow_mut();
            let polled = machine.poll_call(taker, service, wake);
            (polled, std::mem::take(&mut machine.calls.spent))
        };
        // They may call the machine.
        drop(spent);
        polled
    }
}

impl Machine {
    fn poll_call(&mut self, taker: Poster, service: ServiceId, wake: Wake) -> Poll<bool> {
        let SimCalls { receivers, spent, .. } = &mut self.calls;
        let receiver = receivers.entry(taker.life).or_default();
        let service = receiver.services.entry(service).or_default();
        if receiver.has_left || !service.waiting.is_empty() {
            spent.push(wake);
            return Poll::Ready(!receiver.has_left);
        }
        let is_there = service.idle.iter().any(|other| other.is_same(&wake));
        if is_there {
            spent.push(wake)
        } else {
            service.idle.push(wake)
        }
        Poll::Pending
    }

    fn take_call(
        &mut self,
        taker: Poster,
        service: ServiceId,
    ) -> Option<(u32, Incarnation, Vec<u8>)> {
        let SimCalls { receivers, list, .. } = &mut self.calls;
        let service = receivers.get_mut(&taker.life)?.services.get_mut(&service)?;
        while let Some(id) = service.waiting.pop_front() {
            // A message that is not listed any more has been given up.
            let Some(Message { what: What::Call { request, .. }, from, .. }) = list.get_mut(&id)
            else {
                continue;
            };
            let request = match canary::DELIVER_TWICE.is_armed() {
                true => request.clone(),
                false => std::mem::take(request),
            };
            return Some((id, Incarnation(u64::from(from.life) + 1), request));
        }
        None
    }
}

impl SimEndpoint {
    pub(super) async fn take_call(&self, service: ServiceId) -> Option<Incoming> {
        let (inner, taker) = (self.inner_rc(), self.poster());
        let taking_ps = (inner.config.cpu.completion_ns * PS).max(1);
        loop {
            let is_there = poll_fn(|context| inner.poll_call(taker, service, context)).await;
            if !is_there {
                return None;
            }
            // The request is taken at the end, so that a wait that is given up takes none with it.
            self.wait(SimPayload::Work { ps: taking_ps }).await;
            let taken = inner.machine.borrow_mut().take_call(taker, service);
            if let Some((id, from, request)) = taken {
                let responder = SimResponder { inner, taker, id, is_begun: false, is_done: false };
                return Some(Incoming::new(from, request, Box::new(responder)));
            }
        }
    }

    pub(super) fn leave_calls(&self) {
        let mut machine = self.inner().machine.borrow_mut();
        let machine = &mut *machine;
        let receiver = machine.calls.receivers.entry(self.poster().life).or_default();
        (receiver.is_open, receiver.has_left) = (false, true);
        let services = std::mem::take(&mut receiver.services);
        for service in services.into_values() {
            service.waiting.into_iter().for_each(|id| {
                machine.send_back(id, Err(CallError::NotBegun));
            });
            machine.wake_all(service.idle);
        }
    }
}

impl SimFabric {
    /// Makes its card take `factor` times as long for everything from now on; 1 is as configured.
    ///
    /// # Panics
    /// If the factor is not from 1 to 1,000,000.
    pub fn slow(&self, factor: impl Into<f64>) {
        let factor = factor.into();
        assert!((1.0..=1e6).contains(&factor), "a server that is {factor} times slower");
        let mut machine = self.inner().machine.borrow_mut();
        let card = machine.memory_servers + self.compute();
        machine.nics[card].slow(factor);
    }
}

impl Machine {
    /// A life takes calls in from now on.
    pub(super) fn open_receiver(&mut self, life: u32) -> Result<(), FabricError> {
        let receiver = self.calls.receivers.entry(life).or_default();
        if receiver.is_open || receiver.has_left {
            return Err(exposed_twice());
        }
        receiver.is_open = true;
        Ok(())
    }

    /// Makes `peer.server` stand for that life at the life `me`.
    pub(super) fn attach_peer(&mut self, me: u32, peer: Peer) -> Result<(), FabricError> {
        check_number(peer.server)?;
        let Some(life) = self.life_of(peer.incarnation) else {
            return Err(FabricError::Config(format!("there is no life {}", peer.incarnation)));
        };
        let attached = Attached { life: life as u32, region_bytes: peer.region_bytes };
        let before = self.calls.peers.insert((me, peer.server), attached);
        if let Some(before) = before.filter(|before| before.life != life as u32) {
            self.give_up_peer(me, peer.server, before.life);
        }
        Ok(())
    }

    /// Makes `server` stand for nobody at the life `me`.
    pub(super) fn detach_peer(&mut self, me: u32, server: ServerId) {
        if let Some(before) = self.calls.peers.remove(&(me, server)) {
            self.give_up_peer(me, server, before.life);
        }
    }

    fn give_up_peer(&mut self, me: u32, server: ServerId, who: u32) {
        let theirs = |one: &Message| one.from.life == me && one.server == server && one.to == who;
        self.give_up(theirs, gone(who));
        self.end_region_posts(me, who);
    }
}

impl SimInner {
    /// The attached peers of a life.
    pub(super) fn peers(&self, life: u32) -> Vec<Peer> {
        let machine = self.machine.borrow();
        let peers = machine.calls.peers.range((life, ServerId(0))..=(life, ServerId::MAX));
        let peers = peers.map(|((_, server), who)| Peer {
            server: *server,
            incarnation: Incarnation(u64::from(who.life) + 1),
            address: None,
            region_bytes: who.region_bytes,
        });
        peers.collect()
    }
}

impl Sim {
    /// Breaks the link from compute server `from` to compute server `to`: what `from` sends on it does
    /// not arrive. Senders of calls get `Unknown` after [`super::AdversaryConfig::timeout_ns`].
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn cut(&self, from: usize, to: usize) {
        let computes = self.inner.config.compute_servers;
        assert!(from.max(to) < computes, "compute servers {from} and {to} of {computes}");
        let mut machine = self.inner.machine.borrow_mut();
        machine.calls.cut.insert((from, to));
        machine.look_for_ills();
    }

    /// Mends the link from compute server `from` to compute server `to`.
    pub fn heal(&self, from: usize, to: usize) {
        let mut machine = self.inner.machine.borrow_mut();
        machine.calls.cut.remove(&(from, to));
        machine.look_for_ills();
    }

    /// Answers to calls that came when their senders waited for them no more.
    pub fn stale_replies(&self) -> u64 {
        self.inner.machine.borrow().calls.stale
    }
}
