//! Real-time harness: runs the contract's suite on every fabric in real time.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use farleaf_fabric::conformance::{CallSurvivor, Harness, Role, SCRATCH_BYTES, Survivor, Task};
use farleaf_fabric::{
    Counters, Endpoint, Fabric, GlobalAddr, ListenConfig, Peer, ServerId, Service, ServiceId,
};

use super::Reaped;

pub(crate) const REGION_BYTES: u64 = 4096 + SCRATCH_BYTES;

/// Servers that live as long as the compute servers that use them.
pub(crate) trait Hosts: 'static {
    /// Adds a service to the memory servers of this process.
    fn serve(&self, _id: ServiceId, _service: &Arc<dyn Service>) {}
}

/// Every task on a thread of its own, of the compute servers in turn.
pub(crate) struct RealHarness<F> {
    pub(crate) computers: Vec<F>,
    pub(crate) hosts: Box<dyn Hosts>,
    /// Address for a process that opens the same pool to die in it, and the time for which it counts as alive
    /// after that. None if there can be no such process.
    pub(crate) victims: Option<(String, Duration)>,
    /// Factor by which a round trip takes longer than on memory of this process, about.
    pub(crate) slowness: u64,
    /// The compute servers, once they take calls.
    pub(crate) peers: OnceLock<Vec<Peer>>,
    /// Settings with which they listen for calls.
    pub(crate) listen: ListenConfig,
    /// They expose regions.
    pub(crate) exposes: bool,
}

impl<F: Fabric> RealHarness<F> {
    pub(crate) fn new(
        computers: Vec<F>,
        hosts: Box<dyn Hosts>,
        victims: Option<(String, Duration)>,
        slowness: u64,
    ) -> Self {
        let (peers, listen) = (OnceLock::new(), ListenConfig::default());
        RealHarness { computers, hosts, victims, slowness, peers, listen, exposes: false }
    }

    /// The same through another fabric.
    pub(crate) fn through<G: Fabric>(self, wrap: impl Fn(F) -> G) -> RealHarness<G> {
        let RealHarness { computers, hosts, victims, slowness, peers, listen, exposes } = self;
        RealHarness {
            computers: computers.into_iter().map(wrap).collect(),
            hosts,
            victims,
            slowness,
            peers,
            listen,
            exposes,
        }
    }
}

impl<F: Fabric + Sync> Harness for RealHarness<F> {
    type Endpoint = F::Endpoint;

    fn run(&self, tasks: Vec<Task<F::Endpoint>>) {
        thread::scope(|scope| {
            for (task, computer) in tasks.into_iter().zip(self.computers.iter().cycle()) {
                scope.spawn(move || {
                    let endpoint = computer.endpoint().expect("an endpoint");
                    endpoint.executor().block_on(task(endpoint.clone()));
                });
            }
        });
    }

    fn scratch(&self) -> Range<u64> {
        4096..REGION_BYTES
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.hosts.serve(id, &service);
        for computer in &self.computers {
            computer.serve(id, Arc::clone(&service));
        }
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.computers.iter().flat_map(Fabric::counters).collect()
    }

    fn buffers_out(endpoint: &F::Endpoint) -> usize {
        endpoint.buffers_out()
    }

    fn seed(endpoint: &F::Endpoint, seed: u64) -> bool {
        endpoint.seed(seed);
        true
    }

    fn rounds(&self, rounds: u64) -> u64 {
        rounds / self.slowness
    }

    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<F::Endpoint>) -> bool {
        let Some((pool, lease)) = &self.victims else { return false };
        let peers = if addr.server().is_compute() { self.regions() } else { Vec::new() };
        let child = Reaped::victim(pool, addr, None, &peers);
        let endpoint = self.computers[0].endpoint().expect("an endpoint");
        endpoint.executor().block_on(child.beside(endpoint.clone(), survivor, *lease));
        true
    }

    fn connect_peers(&self) -> Vec<Peer> {
        let expose = || {
            let peers: Vec<Peer> = (ServerId::COMPUTE_FIRST.0..)
                .zip(&self.computers)
                .map(|(number, computer)| {
                    let server = ServerId(number);
                    let region_bytes = if self.exposes { REGION_BYTES } else { 0 };
                    let exposed = computer.expose(server, region_bytes, &self.listen);
                    let address = exposed.expect("exposed").map(|exposed| exposed.address);
                    let endpoint = computer.endpoint().expect("an endpoint");
                    let incarnation = endpoint.incarnation();
                    Peer { server, incarnation, address, region_bytes }
                })
                .collect();
            for computer in &self.computers {
                let endpoint = computer.endpoint().expect("an endpoint");
                peers.iter().for_each(|peer| endpoint.attach(*peer).expect("attached"));
            }
            peers
        };
        self.peers.get_or_init(expose).clone()
    }

    fn regions(&self) -> Vec<Peer> {
        if self.exposes { self.connect_peers() } else { Vec::new() }
    }

    fn run_beside_party(
        &self,
        role: Role,
        addr: GlobalAddr,
        survivor: CallSurvivor<F::Endpoint>,
    ) -> bool {
        let Some((pool, lease)) = &self.victims else { return false };
        let child = Reaped::victim(pool, addr, Some(role), &[]);
        let endpoint = self.computers[0].endpoint().expect("an endpoint");
        let home = endpoint.clone();
        let attach = Box::new(move |peer| home.attach(peer).expect("attached"));
        let run = child.beside_party(endpoint.clone(), role, attach, survivor, *lease);
        endpoint.executor().block_on(run);
        true
    }
}
