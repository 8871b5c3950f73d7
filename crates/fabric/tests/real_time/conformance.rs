//! Conformance tests: run the contract's suite on every fabric.
//!
//! A new fabric is a harness and one line at the end.

use std::env;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::authority::Authority;
use crate::common::real::{Hosts, REGION_BYTES, RealHarness};
use crate::common::{die, list, listed};
use farleaf_fabric::conformance::{
    CallSurvivor, Harness, Kill, Role, SERVERS, Survivor, Task, party, victim,
};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig, SimEndpoint};
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::{
    AnyFabric, Counters, Endpoint, Fabric, GlobalAddr, ListenConfig, Peer, ServerId, Service,
    ServiceId, Words,
};

/// The compute servers themselves map the memory.
impl Hosts for () {}

/// Two threads of one process.
fn anonymous() -> RealHarness<Mapped> {
    let mapped = Mapped::anonymous(SERVERS, REGION_BYTES).expect("memory");
    let other = mapped.beside().expect("another compute server");
    let harness = RealHarness::new(vec![mapped, other], Box::new(()), None, 1);
    RealHarness { exposes: true, ..harness }
}

/// Two compute servers that have opened the same files.
fn folder() -> RealHarness<Mapped> {
    let scratch = Scratch::new();
    let (maker, guard) = Mapped::create(&scratch.0, SERVERS, REGION_BYTES).expect("create");
    guard.finish().expect("let others in");
    let other = Mapped::open(&scratch.0).expect("open");
    let path = scratch.0.to_str().expect("a path in Unicode").to_owned();
    let victims = Some((path, Duration::ZERO));
    let harness = RealHarness::new(vec![maker, other], Box::new(scratch), victims, 1);
    RealHarness { exposes: true, ..harness }
}

/// The simulator: tasks in virtual time, on two compute servers in turn. The third one is there to die.
struct SimHarness(Sim);

fn sim(torn: f64) -> SimHarness {
    let mut config = SimConfig {
        memory_servers: SERVERS,
        compute_servers: 3,
        region_bytes: REGION_BYTES,
        ..SimConfig::default()
    };
    config.adversary.torn = torn;
    SimHarness(Sim::new(config).expect("a simulation"))
}

/// All faults that still let every operation succeed.
fn rough_sim(seed: u64) -> SimHarness {
    let adversary = AdversaryConfig {
        torn: 0.5,
        split_rmw: 0.5,
        late: 0.3,
        late_ns: 15_000,
        shuffle: true,
        ..AdversaryConfig::default()
    };
    let config = SimConfig {
        memory_servers: SERVERS,
        compute_servers: 3,
        region_bytes: REGION_BYTES,
        queue_depth: 2,
        lease_ns: 1_000_000,
        clock_skew_ns: 50_000,
        clock_drift_ppm: 2_000,
        adversary,
        ..SimConfig::seeded(seed)
    };
    SimHarness(Sim::new(config).expect("a simulation"))
}

impl Harness for SimHarness {
    type Endpoint = SimEndpoint;

    fn run(&self, tasks: Vec<Task<SimEndpoint>>) {
        for (number, task) in tasks.into_iter().enumerate() {
            let compute = number % 2;
            let endpoint = self.0.fabric(compute).endpoint().expect("an endpoint");
            self.0.spawn(compute, async move { task(endpoint).await });
        }
        self.0.run().expect("every task ends");
    }

    fn scratch(&self) -> Range<u64> {
        4096..REGION_BYTES
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.0.fabric(0).serve(id, service);
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.0.counters()
    }

    fn buffers_out(endpoint: &SimEndpoint) -> usize {
        endpoint.buffers_out()
    }

    fn seed(_: &SimEndpoint, _: u64) -> bool {
        // One seed makes the whole simulation.
        false
    }

    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<SimEndpoint>) -> bool {
        let doomed = self.0.fabric(2);
        if addr.server().is_compute() {
            self.regions().iter().for_each(|peer| doomed.attach(*peer).expect("attached"));
        }
        let endpoint = doomed.endpoint().expect("an endpoint");
        self.0.spawn(2, async move { victim(endpoint, addr).await });
        let endpoint = self.0.fabric(0).endpoint().expect("an endpoint");
        self.0.spawn(0, async move {
            survivor(endpoint, Box::new(move || doomed.kill())).await;
        });
        self.0.run().expect("the survivor ends");
        true
    }

    fn connect_peers(&self) -> Vec<Peer> {
        let peers: Vec<Peer> = (0..2)
            .map(|compute| {
                let fabric = self.0.fabric(compute);
                let server = ServerId(ServerId::COMPUTE_FIRST.0 + compute as u16);
                // A case may ask twice.
                let _ = fabric.expose(server, REGION_BYTES, &ListenConfig::default());
                let (incarnation, region_bytes) = (fabric.incarnation(), REGION_BYTES);
                Peer { server, incarnation, address: None, region_bytes }
            })
            .collect();
        for compute in 0..2 {
            let fabric = self.0.fabric(compute);
            peers.iter().for_each(|peer| fabric.attach(*peer).expect("attached"));
        }
        peers
    }

    fn regions(&self) -> Vec<Peer> {
        self.connect_peers()
    }

    fn run_beside_party(
        &self,
        role: Role,
        addr: GlobalAddr,
        survivor: CallSurvivor<SimEndpoint>,
    ) -> bool {
        // Another life, which exposes itself anew.
        let doomed = self.0.fabric(2).restart();
        let endpoint = doomed.endpoint().expect("an endpoint");
        let fabric = doomed.clone();
        self.0.spawn(2, async move {
            party(fabric, endpoint, role, addr, ListenConfig::default()).await
        });
        let home = self.0.fabric(0);
        let endpoint = home.endpoint().expect("an endpoint");
        let attach = Box::new(move |peer| home.attach(peer).expect("attached"));
        self.0.spawn(0, async move {
            let own = doomed.clone();
            let end: Kill = match role {
                Role::StoppedOwner => Box::new(move || own.stop_with_region()),
                _ => Box::new(move || own.kill()),
            };
            survivor(endpoint, attach, end).await;
            doomed.kill();
        });
        self.0.run().expect("the survivor ends");
        true
    }
}

/// Memory servers on loopback, and their certificate authority, if they speak TLS.
struct Network(Vec<MemoryServer>, #[expect(dead_code, reason = "its files")] Option<Authority>);

impl Hosts for Network {
    fn serve(&self, id: ServiceId, service: &Arc<dyn Service>) {
        for server in &self.0 {
            server.serve(id, Arc::clone(service));
        }
    }
}

const LEASE: Duration = Duration::from_millis(300);

/// Two compute servers that reach memory servers on loopback.
fn tcp(threads: usize, authority: Option<Authority>) -> RealHarness<Tcp> {
    let tls = authority.as_ref().map(|authority| authority.somebody("127.0.0.1"));
    let servers: Vec<MemoryServer> = (0..SERVERS)
        .map(|server| {
            let words = Words::anonymous((REGION_BYTES / 8) as usize).expect("memory");
            let config = MemoryServerConfig {
                server: ServerId(server as u16),
                servers: SERVERS,
                threads,
                lease: LEASE,
                tls: tls.clone(),
                ..MemoryServerConfig::default()
            };
            MemoryServer::start(config, Arc::new(words)).expect("a memory server")
        })
        .collect();
    let listen = ListenConfig { tls: tls.clone(), ..ListenConfig::default() };
    let config = TcpConfig { tls, ..TcpConfig::to(servers.iter().map(MemoryServer::address)) };
    let computers = (0..2).map(|_| Tcp::connect(config.clone()).expect("connected")).collect();
    let addresses = list(servers.iter().map(MemoryServer::address));
    let pool = match &authority {
        Some(authority) => format!("{}@{addresses}", authority.folder.display()),
        None => addresses,
    };
    let hosts = Box::new(Network(servers, authority));
    let victims = Some((pool, LEASE));
    RealHarness { listen, exposes: true, ..RealHarness::new(computers, hosts, victims, 20) }
}

/// Writes to `addr` until this process is killed.
pub(crate) fn be_victim(pool: &str, addr: GlobalAddr) {
    if let Some((folder, servers)) = pool.split_once('@') {
        let tls = Some(Authority::known("somebody", PathBuf::from(folder)));
        let config = TcpConfig { tls: tls.clone(), ..TcpConfig::to(listed(servers)) };
        let tcp = Tcp::connect(config).expect("the other process's servers");
        let endpoint = tcp.endpoint().expect("an endpoint");
        return endpoint.executor().block_on(die(tcp, endpoint.clone(), addr, tls));
    }
    if pool.starts_with('/') {
        let mapped = Mapped::open(Path::new(pool)).expect("the other process's pool");
        let endpoint = mapped.endpoint().expect("an endpoint");
        return endpoint.executor().block_on(die(mapped, endpoint.clone(), addr, None));
    }
    let tcp = Tcp::connect(TcpConfig::to(listed(pool))).expect("the other process's servers");
    let endpoint = tcp.endpoint().expect("an endpoint");
    endpoint.executor().block_on(die(tcp, endpoint.clone(), addr, None));
}

/// A folder of its own, removed at the end: in shared memory where there is some.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let shared = PathBuf::from("/dev/shm");
        let parent = if shared.is_dir() { shared } else { env::temp_dir() };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        Scratch(parent.join(format!("farleaf-conformance-{}-{number}", std::process::id())))
    }
}

impl Hosts for Scratch {}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

mod mapped_anonymous {
    farleaf_fabric::conformance_tests!(super::anonymous());
}

mod mapped_folder {
    farleaf_fabric::conformance_tests!(super::folder());
}

mod tcp_one_thread {
    farleaf_fabric::conformance_tests!(super::tcp(1, None));
}

mod tcp_three_threads {
    farleaf_fabric::conformance_tests!(super::tcp(3, None));
}

mod tcp_with_tls {
    farleaf_fabric::conformance_tests!(super::tcp(2, Some(super::Authority::new())));
}

mod any_mapped {
    farleaf_fabric::conformance_tests!(super::anonymous().through(super::AnyFabric::Mapped));
}

mod any_mapped_folder {
    farleaf_fabric::conformance_tests!(super::folder().through(super::AnyFabric::Mapped));
}

mod any_tcp {
    farleaf_fabric::conformance_tests!(super::tcp(2, None).through(super::AnyFabric::Tcp));
}

mod simulated {
    farleaf_fabric::conformance_tests!(super::sim(0.0));
}

mod simulated_torn {
    farleaf_fabric::conformance_tests!(super::sim(1.0));
}

mod simulated_rough {
    farleaf_fabric::conformance_tests!(super::rough_sim(11));
}
