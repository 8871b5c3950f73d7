//! Suite of the engine `dmtree`: lines and locks in the memory of compute servers, their moves and their deaths.

mod costs;
mod deaths;
mod moves;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::ToAny;
use farleaf_fabric::sim::{Sim, SimConfig, SimFabric};
use farleaf_harness::{expose, tick_regularly};
use farleaf_index::compute::partitions::PartitionCalls;
use farleaf_index::{CounterSet, Index, IndexError, KeyFormat, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

use crate::common::{World, join, lab_table, start};

/// Time between two rounds of a compute server's regular work.
const TICK_NS: u64 = 50_000;
const LEASE_NS: u64 = 10_000_000;

/// Tables of the paper's pairs.
fn paper_table() -> TableFormat {
    let spec = Spec { key: KeyFormat::Fixed(24), value: ValueFormat::Fixed(8) };
    TableFormat::new(Engine::DmTree, spec)
}

/// Leaves of four pairs.
fn tiny_table() -> TableFormat {
    lab_table(Engine::DmTree, "u64-tiny")
}

/// A compute server that has the table open.
struct Server {
    fabric: SimFabric,
    session: Session,
    index: AnyIndex,
    /// Its regular work ends.
    is_over: Rc<Cell<bool>>,
}

impl Server {
    fn partitions(&self) -> &dyn PartitionCalls {
        self.index.partitions().expect("a table with partitions")
    }

    /// Partitions that the known map gives to it.
    fn owned(&self) -> usize {
        let me = self.fabric.incarnation();
        let map = self.partitions().known_partitions();
        map.entries.iter().filter(|entry| entry.owner == Some(me)).count()
    }
}

/// Compute servers with the same table.
struct Cluster {
    sim: Sim,
    servers: RefCell<BTreeMap<usize, Rc<Server>>>,
    /// Compute servers whose next life has not begun.
    killed: RefCell<BTreeSet<usize>>,
    settings: Settings,
    /// Time between two rounds of regular work.
    tick_ns: Cell<u64>,
}

/// The world of these tests: small, so that partitions are few.
fn world() -> World {
    World { servers: 1, region_bytes: 4 << 20, block_bytes: 64 << 10, seed: 1 }
}

fn sim_config(compute_servers: usize) -> SimConfig {
    SimConfig { compute_servers, lease_ns: LEASE_NS, ..world().sim_config() }
}

impl Cluster {
    /// `count` compute servers of `config` with a new table, whose partitions are spread over them.
    fn new(config: SimConfig, format: &TableFormat, count: usize, settings: &Settings) -> Cluster {
        let sim = Sim::new(config).expect("a simulation");
        let settings = settings.clone();
        let (servers, killed) = Default::default();
        let tick_ns = Cell::new(TICK_NS);
        let cluster = Cluster { sim, servers, killed, settings, tick_ns };
        for compute in 0..count {
            cluster.add(compute, (compute == 0).then_some(format));
        }
        cluster
    }

    fn server(&self, compute: usize) -> Rc<Server> {
        Rc::clone(&self.servers.borrow()[&compute])
    }

    /// The next life of a compute server joins, makes the table if that is asked for, and opens it.
    fn add(&self, compute: usize, makes: Option<&TableFormat>) {
        let fabric = match self.killed.borrow_mut().remove(&compute) {
            true => self.sim.fabric(compute).restart(),
            false => self.sim.fabric(compute),
        };
        let endpoint = fabric.any_endpoint().expect("an endpoint");
        let bytes = world().region_bytes / 16;
        let opened = self.sim.block_on(async {
            let session = match makes {
                Some(_) => start(endpoint, &world().pool_options()).await,
                None => join(endpoint).await,
            };
            expose(&fabric, &session, bytes).await.expect("exposed");
            if let Some(format) = makes {
                AnyIndex::create(&session, "t", format).await.expect("a table");
            }
            let opened = farleaf_harness::open_table(&session, "t", 96, &self.settings).await;
            (session, opened.expect("an open table"))
        });
        let (session, index) = opened.expect("no deadlock");
        let server = Rc::new(Server { fabric, session, index, is_over: Rc::default() });
        self.servers.borrow_mut().insert(compute, Rc::clone(&server));
        let tick_ns = self.tick_ns.get();
        self.sim.spawn(compute, async move {
            let goes_on = || !server.is_over.get();
            let ended = tick_regularly(&server.session, &server.index, tick_ns, goes_on).await;
            match ended {
                Ok(()) | Err(IndexError::Closed(_)) => {}
                Err(error) => panic!("compute server {compute}: {error}"),
            }
        });
    }

    /// Runs `work` on a compute server to its end, beside what the others do.
    fn on<T: 'static>(
        &self,
        compute: usize,
        work: impl AsyncFnOnce(Session, AnyIndex) -> T + 'static,
    ) -> T {
        let done = self.begin(compute, work);
        self.sim.run_until_done(|| done.borrow().is_some());
        done.take().expect("it has ended")
    }

    /// Begins `work` on a compute server with a session of its own; its result comes in the cell.
    fn begin<T: 'static>(
        &self,
        compute: usize,
        work: impl AsyncFnOnce(Session, AnyIndex) -> T + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let server = self.server(compute);
        let done = Rc::new(RefCell::new(None));
        let result = Rc::clone(&done);
        self.sim.spawn(compute, async move {
            let endpoint = server.session.endpoint().clone();
            let session = server.session.pool().session(endpoint).await.expect("a session");
            let ended = work(session, server.index.clone()).await;
            *result.borrow_mut() = Some(ended);
        });
        done
    }

    /// Lets all go on for a while.
    fn rest(&self, ns: u64) {
        self.sim.run_until(self.sim.now_ns() + ns).expect("it runs");
    }

    /// Kills a compute server.
    fn kill(&self, compute: usize) {
        self.sim.fabric(compute).kill();
        self.note_death(compute);
    }

    /// A compute server has been killed.
    fn note_death(&self, compute: usize) {
        self.killed.borrow_mut().insert(compute);
        let dead = self.servers.borrow_mut().remove(&compute);
        std::mem::forget(dead);
    }

    /// The sum of a counter of the table over the compute servers that live.
    fn counter(&self, name: &str) -> u64 {
        let mut all = CounterSet::default();
        self.servers.borrow().values().for_each(|server| server.index.counters(&mut all));
        all.get(name)
    }

    /// Ends all regular work, and checks table and pool from compute server `compute`; gives the number of keys.
    fn check(&self, compute: usize) -> u64 {
        let report = self.on(compute, async |session, index| {
            crate::common::settle(&session).await;
            let (reports, audit) = crate::common::audit(&session, &[&index]).await;
            assert_eq!(audit.problems, Vec::<String>::new());
            reports[0].clone()
        });
        report.keys
    }
}

/// Runs a simulation until something has come about.
trait RunUntil {
    fn run_until_done(&self, is_done: impl Fn() -> bool);
}

impl RunUntil for Sim {
    fn run_until_done(&self, is_done: impl Fn() -> bool) {
        let end_ns = self.now_ns() + 120_000_000_000;
        while !is_done() {
            assert!(self.now_ns() < end_ns, "it takes more than 120 s");
            self.run_until(self.now_ns() + 20_000).expect("it runs");
        }
    }
}

fn key8(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn value8(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Inserts `numbers`, and finds them again from another compute server.
fn fill(cluster: &Cluster, from: usize, to: usize, numbers: std::ops::Range<u64>) {
    let of_get = numbers.clone();
    cluster.on(from, async move |session, index| {
        for number in numbers {
            assert_eq!(index.insert(&session, &key8(number), &value8(number)).await, Ok(true));
        }
    });
    cluster.on(to, async move |session, index| {
        let mut value = Vec::new();
        for number in of_get {
            let got = index.get(&session, &key8(number), &mut value).await;
            assert_eq!((got, &value), (Ok(true), &value8(number)), "{number}");
        }
    });
}

#[test]
fn lines_lie_on_all_compute_servers_and_all_use_them() {
    let cluster = Cluster::new(sim_config(3), &tiny_table(), 3, &Settings::default());
    let owned: Vec<usize> = (0..3).map(|at| cluster.server(at).owned()).collect();
    // The last has the latest map.
    assert!(owned[2] > 4, "{owned:?}");
    fill(&cluster, 0, 1, 0..600);
    assert_eq!(cluster.check(2), 600);
    cluster.on(1, async |session, index| {
        let mut value = Vec::new();
        for number in 0..600 {
            assert_eq!(index.get(&session, &key8(number + 600), &mut value).await, Ok(false));
            if number % 3 != 0 {
                assert_eq!(index.remove(&session, &key8(number)).await, Ok(true));
            }
        }
    });
    assert_eq!(cluster.check(0), 200);
    for compute in 0..3 {
        let server = cluster.server(compute);
        let map = server.partitions().known_partitions();
        assert!(map.entries.iter().all(|entry| entry.owner.is_some()), "all have an owner");
    }
}
