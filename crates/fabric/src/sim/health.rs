//! Server health: makes memory servers slow, stopped or unreachable.
//!
//! - **HEALTH-1** At a stopped server nothing takes effect. Arriving requests wait in order. An
//!   operation that the stop interrupted goes on when the server resumes.
//! - **HEALTH-2** A request that a broken link swallows never happens; one whose answer it swallows
//!   has happened.

use std::collections::VecDeque;
use std::rc::Rc;

use super::SimInner;
use super::calendar::{Kind, LATER_INSTANTS};
use super::machine::{Machine, SimMemoryServer};
use crate::ServerId;

/// A direction of the link between a compute server and a memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the memory server: a swallowed request never happens.
    Requests,
    /// From the memory server: the request happens, and no answer comes.
    Replies,
}

/// One memory server of a [`super::Sim`], to be disturbed, also from inside tasks. Every change counts from
/// this instant of virtual time.
#[derive(Clone)]
pub struct SimServer {
    inner: Rc<SimInner>,
    server: ServerId,
}

/// State of a memory server, or of a region.
#[derive(Debug)]
pub(super) struct Health {
    pub stopped: bool,
    /// Events that have come meanwhile.
    parked: VecDeque<(Kind, u32, u16)>,
    /// Compute servers whose requests, and those whose replies, do not get through.
    cut: [Vec<bool>; 2],
    /// Factor by which everything takes longer.
    pub slow: f64,
}

impl Health {
    pub(super) fn new(compute_servers: usize) -> Self {
        let cut = [vec![false; compute_servers], vec![false; compute_servers]];
        Health { stopped: false, parked: VecDeque::new(), cut, slow: 1.0 }
    }

    fn is_good(&self) -> bool {
        !self.stopped && self.slow == 1.0 && !self.cut.iter().flatten().any(|cut| *cut)
    }
}

impl SimServer {
    pub(super) fn new(inner: Rc<SimInner>, server: ServerId) -> Self {
        SimServer { inner, server }
    }

    /// Its number.
    pub fn id(&self) -> ServerId {
        self.server
    }

    /// Makes its card and its CPU take `factor` times as long from now on; 1 is as configured.
    ///
    /// # Panics
    /// If the factor is not from 1 to 1,000,000.
    pub fn slow(&self, factor: impl Into<f64>) {
        let factor = factor.into();
        assert!((1.0..=1e6).contains(&factor), "a server that is {factor} times slower");
        self.change(|health| health.slow = factor);
        self.inner.machine.borrow_mut().nics[self.server.index()].slow(factor);
    }

    /// Gives it `threads` threads for handlers from now on, in place of [`super::RpcConfig::threads`]. If
    /// those are fewer, the others end after their present requests.
    ///
    /// # Panics
    /// If there are none.
    pub fn set_rpc_threads(&self, threads: usize) {
        assert!(threads > 0, "a server without threads for handlers");
        let mut machine = self.inner.machine.borrow_mut();
        let server = &mut machine.servers[self.server.index()];
        server.rpc_threads = threads;
        // A thread of a stopped server takes requests once it has ended its present one.
        if !server.health.stopped {
            machine.take_requests(self.server);
        }
    }

    /// Stops it: nothing takes effect until [`SimServer::resume`]. Requests wait meanwhile;
    /// their clients get `Timeout` after [`super::AdversaryConfig::timeout_ns`]. Answers that have
    /// left arrive.
    pub fn stop(&self) {
        self.change(|health| health.stopped = true);
    }

    /// Lets it go on. Waiting requests now take effect in order, also after their client's timeout, unless
    /// their life has been fenced or their thread has reconnected.
    pub fn resume(&self) {
        self.inner.machine.borrow_mut().resume_place(self.server.index());
    }

    /// Breaks the link with compute server `compute` in one direction. Clients get `Timeout` after
    /// [`super::AdversaryConfig::timeout_ns`].
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn cut(&self, compute: usize, direction: Direction) {
        self.change(|health| health.cut[direction as usize][compute] = true);
    }

    /// Mends the link with compute server `compute` in both directions.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn heal(&self, compute: usize) {
        self.change(|health| health.cut.iter_mut().for_each(|cut| cut[compute] = false));
    }

    /// Returns whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.inner.machine.borrow().servers[self.server.index()].health.stopped
    }

    fn change(&self, change: impl FnOnce(&mut Health)) {
        let mut machine = self.inner.machine.borrow_mut();
        change(&mut machine.servers[self.server.index()].health);
        machine.look_for_ills();
    }
}

impl std::fmt::Debug for SimServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimServer({})", self.server)
    }
}

/// The number of an operation's later instant.
fn instant(kind: Kind) -> Option<u8> {
    let later = LATER_INSTANTS.iter().position(|later| *later == kind);
    later.map(|at| at as u8 + 1)
}

impl Machine {
    /// Notes whether any server or link needs a look at each step.
    pub(super) fn look_for_ills(&mut self) {
        let is_ill = |server: &SimMemoryServer| server.gone || !server.health.is_good();
        self.is_ill = self.servers.iter().any(is_ill) || self.calls.has_cuts();
    }

    /// Nothing takes effect at `place` until [`Machine::resume_place`].
    pub(super) fn stop_place(&mut self, place: usize) {
        self.servers[place].health.stopped = true;
        self.look_for_ills();
    }

    /// Lets the requests that wait at a stopped server take effect, in order.
    pub(super) fn resume_place(&mut self, place: usize) {
        self.servers[place].health.stopped = false;
        self.look_for_ills();
        let parked = std::mem::take(&mut self.servers[place].health.parked);
        let now = self.now;
        for (kind, index, part) in parked {
            match instant(kind) {
                Some(instant) => {
                    // At once: an answer may be due this very instant.
                    self.slots[index].parked -= 1;
                    self.instant(index, part, instant);
                }
                None => self.calendar.push(now, kind, index, part),
            }
        }
    }

    /// Returns whether an event has to wait because its server is stopped (HEALTH-1).
    #[cold]
    pub(super) fn park(&mut self, kind: Kind, index: u32, part: u16) -> bool {
        let waits = match kind {
            Kind::Execute | Kind::Atomic | Kind::Handled => true,
            // An answer leaves after the last effect of its operation.
            Kind::Complete | Kind::Vanish => {
                self.slots[index].parked > 0 || self.is_gone(index, part)
            }
            _ => instant(kind).is_some(),
        };
        if waits && self.is_gone(index, part) {
            return self.goes_nowhere(kind, index, part);
        }
        if !waits || !self.server_of(index, part).health.stopped {
            return false;
        }
        if instant(kind).is_some() {
            self.slots[index].parked += 1;
        }
        self.server_of(index, part).health.parked.push_back((kind, index, part));
        self.strike(index, part, "server stopped");
        self.wind_up_from_post(index);
        true
    }

    /// Returns whether the link swallows a message in that direction.
    #[cold]
    pub(super) fn swallows(&mut self, index: u32, part: u16, direction: Direction) -> bool {
        let compute = self.compute(index);
        let is_cut = match self.server_of(index, part).owner {
            None => self.server_of(index, part).health.cut[direction as usize][compute],
            Some(owner) => {
                let owner = self.lives[owner as usize].compute;
                let (from, to) = match direction {
                    Direction::Requests => (compute, owner),
                    Direction::Replies => (owner, compute),
                };
                self.calls.is_cut(from, to) || self.is_gone(index, part)
            }
        };
        if !is_cut {
            return false;
        }
        let name = match direction {
            _ if self.is_gone(index, part) => "owner dead",
            Direction::Requests => "request cut off",
            Direction::Replies => "reply cut off",
        };
        self.strike_message(index, part, name);
        self.wind_up_from_post(index);
        true
    }

    /// A time that a memory server takes for something, if it is slow.
    #[cold]
    pub(super) fn slowed(&mut self, index: u32, part: u16, ps: u64) -> u64 {
        (ps as f64 * self.server_of(index, part).health.slow) as u64
    }
}
