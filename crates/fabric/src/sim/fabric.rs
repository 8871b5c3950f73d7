//! Simulated fabric: one compute server of the simulated cluster.

use std::rc::Rc;
use std::sync::Arc;

use super::slots::Poster;
use super::trace::mix;
use super::{SimEndpoint, SimInner};
use crate::{
    Counters, Exposed, Fabric, FabricError, Incarnation, ListenConfig, Peer, ServerId, Service,
    ServiceId,
};

/// One life of a compute server: the way to its endpoints, and the switch that ends it.
#[derive(Clone)]
pub struct SimFabric {
    inner: Rc<SimInner>,
    compute: usize,
    life: u32,
}

impl SimFabric {
    pub(super) fn new(inner: Rc<SimInner>, compute: usize, life: u32) -> Self {
        SimFabric { inner, compute, life }
    }

    pub(super) fn inner(&self) -> &SimInner {
        &self.inner
    }

    pub(super) fn life(&self) -> u32 {
        self.life
    }

    /// An endpoint for worker thread `thread`. Endpoints of one thread share its time.
    ///
    /// # Errors
    /// [`FabricError::Config`] if there is no such thread or this life has ended.
    pub fn endpoint_on(&self, thread: usize) -> Result<SimEndpoint, FabricError> {
        let config = &self.inner.config;
        if thread >= config.threads {
            return Err(FabricError::Config(format!(
                "worker thread {thread} of compute server {}: it has {}",
                self.compute, config.threads
            )));
        }
        if self.inner.machine.borrow().lives[self.life as usize].dead {
            return Err(FabricError::Config(format!(
                "compute server {} has been killed: restart it",
                self.compute
            )));
        }
        let counters = Counters::new(config.memory_servers);
        let mut computes = self.inner.computes.borrow_mut();
        let all = &mut computes[self.compute].counters;
        let seed = mix(mix(config.seed, u64::from(self.life) << 32 | 0xe9), all.len() as u64);
        let number = all.len() as u32;
        all.push(Arc::clone(&counters));
        let thread = (self.compute * config.threads + thread) as u32;
        let poster = Poster { thread, life: self.life, endpoint: number };
        Ok(SimEndpoint::new(Rc::clone(&self.inner), poster, counters, seed))
    }

    /// Its incarnation.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(u64::from(self.life) + 1)
    }

    /// The compute server's number.
    pub fn compute(&self) -> usize {
        self.compute
    }

    /// As [`crate::Endpoint::attach`].
    ///
    /// # Errors
    /// As [`crate::Endpoint::attach`].
    pub fn attach(&self, peer: Peer) -> Result<(), FabricError> {
        self.inner.machine.borrow_mut().attach_peer(self.life, peer)
    }

    /// As [`crate::Endpoint::detach`].
    pub fn detach(&self, server: ServerId) {
        self.inner.machine.borrow_mut().detach_peer(self.life, server);
    }

    /// Ends this life: its tasks are dropped at once. Its posts may still take effect until it is fenced, and
    /// nothing comes back any more.
    pub fn kill(&self) {
        self.inner.kill(self.life);
    }

    /// Stops its tasks, like a paused process: its posts go on. Results, timers and wake-ups are kept until
    /// [`SimFabric::resume`]. Its lease runs out ([`super::SimConfig::lease_ns`]).
    pub fn stop(&self) {
        self.inner.stop(self.life);
    }

    /// Lets its tasks go on.
    pub fn resume(&self) {
        self.inner.resume(self.life);
    }

    /// Ends this life and begins the compute server's next, with another incarnation. Later calls of
    /// [`super::Sim::fabric`] and [`super::Sim::spawn`] mean the new life.
    #[must_use]
    pub fn restart(&self) -> SimFabric {
        self.kill();
        let life = self.inner.machine.borrow_mut().begin_life(self.compute);
        self.inner.computes.borrow_mut()[self.compute].life = life;
        SimFabric::new(Rc::clone(&self.inner), self.compute, life)
    }
}

impl std::fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFabric(compute server {}, {:?})", self.compute, self.incarnation())
    }
}

impl Fabric for SimFabric {
    type Endpoint = SimEndpoint;

    /// Goes to the next worker thread, round robin.
    fn endpoint(&self) -> Result<SimEndpoint, FabricError> {
        let thread = {
            let compute = &mut self.inner.computes.borrow_mut()[self.compute];
            let next = (compute.next_thread + 1) % self.inner.config.threads;
            std::mem::replace(&mut compute.next_thread, next)
        };
        self.endpoint_on(thread)
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    /// Every memory server answers it from now on.
    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.inner.machine.borrow_mut().services.insert(id, service);
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.inner.computes.borrow()[self.compute].counters.clone()
    }

    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        _listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError> {
        self.expose_region(number, bytes)?;
        Ok(None)
    }
}
