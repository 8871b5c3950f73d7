//! Simulator: runs memory servers with network cards in virtual time, replayable from one seed.
//!
//! ```
//! use farleaf_fabric::sim::{Sim, SimConfig};
//! use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ServerId};
//!
//! let sim = Sim::new(SimConfig { memory_servers: 2, ..SimConfig::seeded(7) })?;
//! let endpoint = sim.fabric(0).endpoint()?;
//! let there = GlobalAddr::new(ServerId(1), 4096);
//! let old = sim.block_on(async { endpoint.faa(there, 5).await })??;
//! assert_eq!(old, 0);
//! assert!(sim.now_ns() > 1_900, "about two microseconds of virtual time");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `docs/design/sim.md` says which parts of a cluster the simulator models. Invariants:
//!
//! - **SIM-1** The same configuration and the same tasks give the same run, bit for bit: the same
//!   [`Sim::trace_hash`]. All randomness follows from [`SimConfig::seed`]; nothing depends on addresses
//!   of memory, on the wall clock or on the order of a hash map.
//! - **SIM-2** Virtual time moves only when no task can go on, and never back.
//! - **SIM-3** Every wait that an endpoint offers takes virtual time, save for empty lists and no work
//!   at all, so that a loop over one lets the rest go on.

mod adversary;
mod calendar;
mod calls;
mod config;
mod connections;
mod crash;
mod effects;
mod endpoint;
mod fabric;
mod fate;
mod health;
mod leases;
mod machine;
mod nic;
mod post;
mod record;
mod regions;
mod slots;
mod tasks;
#[cfg(test)]
mod tests;
mod trace;
mod woken;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

pub use config::{AdversaryConfig, CpuConfig, NetworkConfig, NicConfig, RpcConfig, SimConfig};
pub use crash::{CountedOp, CrashPlan, CrashWay, Landing};
pub use endpoint::SimEndpoint;
pub use fabric::SimFabric;
pub use health::{Direction, SimServer};
pub use nic::{CardLoad, CardUse};
pub use record::{OpRecord, Posted, Verb};

use crate::{Counters, FabricError, ServerId, Words, contention};
use config::PS;
use machine::Machine;
use tasks::{ROOT, SimTasks, TaskFuture, Woken};

/// A run that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Tasks wait and no event is left that could wake one. Tasks of stopped servers count.
    #[error("deadlock at {now_ns} ns of virtual time: {tasks} tasks wait and nothing will happen")]
    Deadlock {
        /// Tasks that are not done, with the future of `block_on`.
        tasks: usize,
        /// Virtual time of the deadlock.
        now_ns: u64,
    },
    /// [`SimConfig::events_max`] has been reached.
    #[error("{events} events by {now_ns} ns of virtual time, and {tasks} tasks are still not done")]
    TooManyEvents {
        /// Events so far.
        events: u64,
        /// Tasks that are not done, with the future of `block_on`.
        tasks: usize,
        /// Virtual time of the last event.
        now_ns: u64,
    },
}

/// A simulated cluster, with its tasks. Dropped, it drops every task.
pub struct Sim {
    inner: Rc<SimInner>,
}

/// State that all endpoints share.
struct SimInner {
    config: SimConfig,
    machine: RefCell<Machine>,
    tasks: RefCell<SimTasks>,
    woken: Arc<Woken>,
    /// The task that is being polled.
    current: Cell<u32>,
    root_waker: Waker,
    root_woken: Cell<bool>,
    running: Cell<bool>,
    closed: Cell<bool>,
    computes: RefCell<Vec<Compute>>,
}

/// A compute server.
struct Compute {
    /// Its current life.
    life: u32,
    /// The thread that the next endpoint goes to.
    next_thread: usize,
    counters: Vec<Arc<Counters>>,
}

impl Sim {
    /// A cluster at time 0.
    ///
    /// # Errors
    /// [`FabricError::Config`] if the configuration is invalid, [`FabricError::NoMemory`] if
    /// the address space cannot be had.
    pub fn new(config: SimConfig) -> Result<Self, FabricError> {
        config.check()?;
        let woken = Arc::new(Woken::default());
        let computes = (0..config.compute_servers)
            .map(|life| Compute { life: life as u32, next_thread: 0, counters: Vec::new() })
            .collect();
        let inner = SimInner {
            machine: RefCell::new(Machine::new(&config)?),
            tasks: RefCell::default(),
            root_waker: tasks::waker(&woken, ROOT, 0),
            woken,
            current: Cell::new(ROOT),
            root_woken: Cell::new(false),
            running: Cell::new(false),
            closed: Cell::new(false),
            computes: RefCell::new(computes),
            config,
        };
        Ok(Sim { inner: Rc::new(inner) })
    }

    /// The memory servers as the current life of compute server `compute` reaches them.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn fabric(&self, compute: usize) -> SimFabric {
        let life = self.inner.computes.borrow()[compute].life;
        SimFabric::new(Rc::clone(&self.inner), compute, life)
    }

    /// Adds a task to the current life of `compute`.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn spawn(&self, compute: usize, task: impl Future<Output = ()> + 'static) {
        let life = self.inner.computes.borrow()[compute].life;
        self.inner.spawn(life, Box::pin(task));
    }

    /// Runs until every task is done and nothing is in flight any more.
    ///
    /// # Errors
    /// [`SimError`]; the caller can still inspect the simulation, and it can go on if something changes.
    ///
    /// # Panics
    /// If called from a task.
    pub fn run(&self) -> Result<(), SimError> {
        let _running = self.inner.enter();
        while self.inner.turn(u64::MAX) {
            self.inner.check_events()?;
        }
        match self.live_tasks() {
            0 => Ok(()),
            tasks => Err(SimError::Deadlock { tasks, now_ns: self.now_ns() }),
        }
    }

    /// Runs all that happens up to `ns` of virtual time, and sets the clock to it.
    ///
    /// # Errors
    /// [`SimError::TooManyEvents`].
    ///
    /// # Panics
    /// If called from a task.
    pub fn run_until(&self, ns: u64) -> Result<(), SimError> {
        let _running = self.inner.enter();
        let until = ns.saturating_mul(PS);
        while self.inner.turn(until) {
            self.inner.check_events()?;
        }
        let mut machine = self.inner.machine.borrow_mut();
        machine.now = machine.now.max(until);
        Ok(())
    }

    /// Runs until `root` is done; other tasks may then not be. `root` belongs to no compute
    /// server: nothing kills or stops it.
    ///
    /// # Errors
    /// [`SimError`]; `root` is dropped.
    ///
    /// # Panics
    /// If called from a task.
    pub fn block_on<T>(&self, root: impl Future<Output = T>) -> Result<T, SimError> {
        let inner = &*self.inner;
        let _running = inner.enter();
        let mut root = pin!(root);
        let mut context = Context::from_waker(&inner.root_waker);
        inner.root_woken.set(true);
        loop {
            if inner.root_woken.take() {
                inner.current.set(ROOT);
                if let Poll::Ready(value) = root.as_mut().poll(&mut context) {
                    return Ok(value);
                }
            }
            if !inner.turn(u64::MAX) {
                let tasks = self.live_tasks() + 1;
                return Err(SimError::Deadlock { tasks, now_ns: self.now_ns() });
            }
            inner.check_events()?;
        }
    }

    /// Virtual time since the start.
    pub fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    /// A hash over every event and every effect so far: time, operation, address, length, result.
    pub fn trace_hash(&self) -> u64 {
        self.inner.machine.borrow().trace.hash()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.inner.machine.borrow().events
    }

    /// Remote operations that have reached their server so far, each of a chain or batch.
    pub fn ops(&self) -> u64 {
        self.inner.machine.borrow().ops
    }

    /// Tasks that are not done.
    pub fn live_tasks(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    /// Operations and waits that have not come back.
    pub fn in_flight(&self) -> usize {
        self.inner.machine.borrow().slots.in_use()
    }

    /// The memory of `server`, to read or fill without virtual time; `None` if there is no such server.
    pub fn memory(&self, server: ServerId) -> Option<Arc<Words>> {
        let machine = self.inner.machine.borrow();
        let servers = &machine.servers[..machine.memory_servers];
        servers.get(server.index()).map(|server| Arc::clone(&server.words))
    }

    /// The counters of every endpoint of every compute server so far.
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        let computes = self.inner.computes.borrow();
        computes.iter().flat_map(|compute| compute.counters.iter().cloned()).collect()
    }

    /// Memory server `server`, to stop it, slow it down or cut its links.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn memory_server(&self, server: ServerId) -> SimServer {
        let servers = self.inner.config.memory_servers;
        assert!(server.index() < servers, "there is no memory server {server}");
        SimServer::new(Rc::clone(&self.inner), server)
    }

    /// Posts so far, waits among them: the numbers of [`AdversaryConfig::window`].
    pub fn posts(&self) -> u64 {
        self.inner.machine.borrow().posts
    }

    /// Ends [`AdversaryConfig::window`] here: the adversary's faults strike no later post.
    pub fn calm(&self) {
        let mut machine = self.inner.machine.borrow_mut();
        let next = machine.posts + 1;
        let window = &mut machine.adversary.config.window;
        window.end = window.end.min(next);
    }

    /// The remote operations so far in the order in which they were posted, each of a chain or
    /// batch, if [`SimConfig::record`] is on: the newest 1,048,576.
    pub fn recorded(&self) -> Vec<OpRecord> {
        let machine = self.inner.machine.borrow();
        machine.recorder.as_ref().map_or_else(Vec::new, record::Recorder::to_vec)
    }

    /// Confines faults to posts with these numbers from here on, as
    /// [`AdversaryConfig::window`] does from the start.
    pub fn set_fault_window(&self, window: std::ops::Range<u64>) {
        self.inner.machine.borrow_mut().adversary.config.window = window;
    }

    /// Returns the configuration of the cluster.
    pub fn config(&self) -> &SimConfig {
        &self.inner.config
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Tasks hold endpoints, which hold this: dropping the tasks breaks the cycle.
        self.inner.closed.set(true);
        let futures = self.inner.tasks.borrow_mut().clear_all(None);
        drop(futures);
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (now_ns, tasks) = (self.now_ns(), self.live_tasks());
        write!(f, "Sim({now_ns} ns, {tasks} tasks, {} events)", self.events())
    }
}

/// Held while the simulation runs.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl SimInner {
    fn enter(&self) -> Running<'_> {
        assert!(!self.running.replace(true), "a simulation runs inside itself");
        Running(&self.running)
    }

    fn now_ps(&self) -> u64 {
        self.machine.borrow().now
    }

    fn now_ns(&self) -> u64 {
        self.now_ps() / PS
    }

    fn spawn(&self, life: u32, future: TaskFuture) {
        if self.closed.get() || self.machine.borrow().lives[life as usize].dead {
            return;
        }
        let task = self.tasks.borrow_mut().insert(&self.woken, life, future);
        self.machine.borrow_mut().ready.push_back(task);
    }

    fn check_events(&self) -> Result<(), SimError> {
        let machine = self.machine.borrow();
        if machine.events < self.config.events_max {
            return Ok(());
        }
        let (events, now_ns) = (machine.events, machine.now / PS);
        Err(SimError::TooManyEvents { events, tasks: self.tasks.borrow().len(), now_ns })
    }

    /// Polls one task, after as many events as it takes. False if nothing is left up to `until`.
    #[inline]
    fn turn(&self, until: u64) -> bool {
        let task = {
            let mut machine = self.machine.borrow_mut();
            loop {
                self.woken.drain(|task, generation| {
                    if task == ROOT || self.tasks.borrow().is_current(task, generation) {
                        machine.ready.push_back(task);
                    }
                });
                if let Some(task) = machine.next_ready() {
                    break task;
                }
                if !machine.step(until) {
                    return false;
                }
            }
        };
        if task == ROOT {
            self.root_woken.set(true);
        } else {
            self.poll(task);
        }
        true
    }

    #[inline]
    fn poll(&self, task: u32) {
        let mut taken = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(life) = tasks.life(task) else { return };
            if self.machine.borrow().lives[life as usize].stopped {
                return tasks.park(task);
            }
            let Some(taken) = tasks.take(task) else { return };
            taken
        };
        self.current.set(task);
        let waker = Rc::clone(&taken.waker);
        let mut context = Context::from_waker(&waker);
        let mut poll = || taken.future.as_mut().poll(&mut context);
        let polled =
            if self.config.cpu.handover_ns > 0 { contention::noting(poll) } else { poll() };
        self.current.set(ROOT);
        // A value that is dropped here may call back: no borrow may be held.
        let rest = match polled {
            Poll::Ready(()) => {
                self.tasks.borrow_mut().finish(task, taken.generation);
                Some(taken.future)
            }
            Poll::Pending => self.tasks.borrow_mut().put(task, taken),
        };
        drop(rest);
    }

    /// The life of an incarnation ends: its tasks are dropped at once.
    fn kill(&self, life: u32) {
        {
            let mut machine = self.machine.borrow_mut();
            machine.lives[life as usize].dead = true;
            machine.end_receiver(life);
            machine.end_region(life);
        }
        let futures = self.tasks.borrow_mut().clear_all(Some(life));
        drop(futures);
    }

    fn stop(&self, life: u32) {
        let mut machine = self.machine.borrow_mut();
        let now = machine.now;
        let life = &mut machine.lives[life as usize];
        life.stopped = true;
        life.stopped_since.get_or_insert(now);
    }

    fn resume(&self, life: u32) {
        let mut machine = self.machine.borrow_mut();
        machine.lives[life as usize].stopped = false;
        machine.lives[life as usize].stopped_since = None;
        machine.release_replies(life);
        let place = machine.place_of_life(life);
        if machine.servers[place].health.stopped {
            machine.resume_place(place);
        }
        machine.ready.extend(self.tasks.borrow_mut().unpark(life));
    }
}
