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
use super::machine::Machine;
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

/// State of a memory server.
#[derive(Debug)]
pub(super) struct Health {
    stopped: bool,
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
        self.inner.machine.borrow_mut().servers[self.server.index()].nic.slow(factor);
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
        self.change(|health| health.stopped = false);
        let mut machine = self.inner.machine.borrow_mut();
        let parked = std::mem::take(&mut machine.servers[self.server.index()].health.parked);
        let now = machine.now;
        for (kind, index, part) in parked {
            match instant(kind) {
                Some(instant) => {
                    // At once: an answer may be due this very instant.
                    machine.slots[index].parked -= 1;
                    machine.instant(index, part, instant);
                }
                None => machine.calendar.push(now, kind, index, part),
            }
        }
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
        machine.is_ill = machine.servers.iter().any(|server| !server.health.is_good());
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
    /// Returns whether an event has to wait because its server is stopped (HEALTH-1).
    #[cold]
    pub(super) fn park(&mut self, kind: Kind, index: u32, part: u16) -> bool {
        let waits = match kind {
            Kind::Execute | Kind::Atomic | Kind::Handled => true,
            // An answer leaves after the last effect of its operation.
            Kind::Complete | Kind::Vanish => self.slots[index].parked > 0,
            _ => instant(kind).is_some(),
        };
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
        if !self.server_of(index, part).health.cut[direction as usize][compute] {
            return false;
        }
        let name = match direction {
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
