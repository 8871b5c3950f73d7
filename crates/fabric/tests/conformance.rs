//! The contract's suite on every fabric. A new fabric is a harness and one line at the end.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "mapped memory is raced for by real threads")]

#[path = "common/authority.rs"]
mod authority;
mod common;

use std::env;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use authority::Authority;
use common::{Reaped, asked_to_die, list, listed};
use farleaf_fabric::conformance::{Harness, SCRATCH_BYTES, SERVERS, Survivor, Task, victim};
use farleaf_fabric::mapped::{Mapped, MappedEndpoint};
use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig, SimEndpoint};
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig, TcpEndpoint};
use farleaf_fabric::{Counters, Fabric, GlobalAddr, ServerId, Service, ServiceId, Words};

const REGION_BYTES: u64 = 4096 + SCRATCH_BYTES;

/// Mapped memory: every task on a thread of its own, the compute servers taken in turn.
struct MappedHarness {
    computers: Vec<Mapped>,
    folder: Option<Scratch>,
}

/// Two threads of one process.
fn anonymous() -> MappedHarness {
    let mapped = Mapped::anonymous(SERVERS, REGION_BYTES).expect("memory");
    MappedHarness { computers: vec![mapped], folder: None }
}

/// Two compute servers that have opened the same files.
fn folder() -> MappedHarness {
    let scratch = Scratch::new();
    let (maker, guard) = Mapped::create(&scratch.0, SERVERS, REGION_BYTES).expect("create");
    guard.finish().expect("let others in");
    let other = Mapped::open(&scratch.0).expect("open");
    MappedHarness { computers: vec![maker, other], folder: Some(scratch) }
}

/// Every task on a thread of its own, of the compute servers in turn.
fn run_on_threads<F: Fabric + Sync>(
    computers: &[F],
    tasks: Vec<Task<F::Endpoint>>,
    run: impl Fn(F::Endpoint, Task<F::Endpoint>) + Sync,
) {
    thread::scope(|scope| {
        for (task, computer) in tasks.into_iter().zip(computers.iter().cycle()) {
            let run = &run;
            scope.spawn(move || run(computer.endpoint().expect("an endpoint"), task));
        }
    });
}

impl Harness for MappedHarness {
    type Endpoint = MappedEndpoint;

    fn run(&self, tasks: Vec<Task<MappedEndpoint>>) {
        run_on_threads(&self.computers, tasks, |endpoint, task| {
            endpoint.executor().block_on(task(endpoint.clone()));
        });
    }

    fn scratch(&self) -> Range<u64> {
        4096..REGION_BYTES
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        for computer in &self.computers {
            computer.serve(id, Arc::clone(&service));
        }
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.computers.iter().flat_map(Fabric::counters).collect()
    }

    fn buffers_out(endpoint: &MappedEndpoint) -> usize {
        endpoint.buffers_out()
    }

    fn seed(endpoint: &MappedEndpoint, seed: u64) -> bool {
        endpoint.seed(seed);
        true
    }

    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<MappedEndpoint>) -> bool {
        let Some(folder) = &self.folder else { return false };
        let child = Reaped::victim(folder.0.to_str().expect("a path in Unicode"), addr);
        let endpoint = self.computers[0].endpoint().expect("an endpoint");
        endpoint.executor().block_on(child.beside(endpoint.clone(), survivor, Duration::ZERO));
        true
    }
}

/// The simulator: tasks in virtual time, on two compute servers in turn.
struct SimHarness(Sim);

fn sim(torn: f64) -> SimHarness {
    let mut config = SimConfig {
        memory_servers: SERVERS,
        compute_servers: 2,
        region_bytes: REGION_BYTES,
        ..SimConfig::default()
    };
    config.adversary.torn = torn;
    SimHarness(Sim::new(config).expect("a simulation"))
}

/// All that may go wrong while every operation still succeeds.
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
        compute_servers: 2,
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
        let doomed = self.0.fabric(1);
        let endpoint = doomed.endpoint().expect("an endpoint");
        self.0.spawn(1, async move { victim(endpoint, addr).await });
        let endpoint = self.0.fabric(0).endpoint().expect("an endpoint");
        self.0.spawn(0, async move {
            survivor(endpoint, Box::new(move || doomed.kill())).await;
        });
        self.0.run().expect("the survivor ends");
        true
    }
}

/// Memory servers on loopback, and two compute servers that reach them.
struct TcpHarness {
    servers: Vec<MemoryServer>,
    computers: Vec<Tcp>,
    /// Who vouches for them, if they speak TLS.
    authority: Option<Authority>,
}

const LEASE: Duration = Duration::from_millis(300);

fn tcp(threads: usize, authority: Option<Authority>) -> TcpHarness {
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
    let config = TcpConfig { tls, ..TcpConfig::to(servers.iter().map(MemoryServer::address)) };
    let computers = (0..2).map(|_| Tcp::connect(config.clone()).expect("connected")).collect();
    TcpHarness { servers, computers, authority }
}

impl Harness for TcpHarness {
    type Endpoint = TcpEndpoint;

    fn run(&self, tasks: Vec<Task<TcpEndpoint>>) {
        run_on_threads(&self.computers, tasks, |endpoint, task| {
            endpoint.executor().block_on(task(endpoint.clone()));
        });
    }

    fn scratch(&self) -> Range<u64> {
        4096..REGION_BYTES
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        for server in &self.servers {
            server.serve(id, Arc::clone(&service));
        }
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.computers.iter().flat_map(Fabric::counters).collect()
    }

    fn buffers_out(endpoint: &TcpEndpoint) -> usize {
        endpoint.buffers_out()
    }

    fn seed(endpoint: &TcpEndpoint, seed: u64) -> bool {
        endpoint.seed(seed);
        true
    }

    fn rounds(&self, rounds: u64) -> u64 {
        rounds / 20
    }

    fn run_beside_victim(&self, addr: GlobalAddr, survivor: Survivor<TcpEndpoint>) -> bool {
        let servers = list(self.servers.iter().map(MemoryServer::address));
        let pool = match &self.authority {
            Some(authority) => format!("{}@{servers}", authority.folder.display()),
            None => servers,
        };
        let child = Reaped::victim(&pool, addr);
        let endpoint = self.computers[0].endpoint().expect("an endpoint");
        endpoint.executor().block_on(child.beside(endpoint.clone(), survivor, LEASE));
        true
    }
}

/// Not a test of its own: the process that a harness's `run_beside_victim` kills.
#[test]
fn dies_when_asked_to() {
    let Some((pool, addr)) = asked_to_die() else { return };
    if let Some((folder, servers)) = pool.split_once('@') {
        let tls = Some(Authority::known("somebody", PathBuf::from(folder)));
        let config = TcpConfig { tls, ..TcpConfig::to(listed(servers)) };
        let tcp = Tcp::connect(config).expect("the other process's servers");
        let endpoint = tcp.endpoint().expect("an endpoint");
        return endpoint.executor().block_on(victim(endpoint.clone(), addr));
    }
    if pool.starts_with('/') {
        let mapped = Mapped::open(&PathBuf::from(pool)).expect("the other process's pool");
        let endpoint = mapped.endpoint().expect("an endpoint");
        return endpoint.executor().block_on(victim(endpoint.clone(), addr));
    }
    let tcp = Tcp::connect(TcpConfig::to(listed(&pool))).expect("the other process's servers");
    let endpoint = tcp.endpoint().expect("an endpoint");
    endpoint.executor().block_on(victim(endpoint.clone(), addr));
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

mod simulated {
    farleaf_fabric::conformance_tests!(super::sim(0.0));
}

mod simulated_torn {
    farleaf_fabric::conformance_tests!(super::sim(1.0));
}

mod simulated_rough {
    farleaf_fabric::conformance_tests!(super::rough_sim(11));
}
