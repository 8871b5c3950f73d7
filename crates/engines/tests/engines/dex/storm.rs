//! Test clusters: partitioned tables of `dex` for its suites, and the checks at their end.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::TableFormat;
use farleaf_engines::dex::offload::{OFFLOAD_SERVICE, Offload};
use farleaf_engines::dex::{
    Admission, Dex, DexOptions, DexTable, Durability, JoinOptions, Take, equal_width,
};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Fabric, ToAny};
use farleaf_index::KeyFormat;
use farleaf_index::compute::OwnedTable;
use farleaf_index::{Entries, Index, ScanRange};
use farleaf_pool::{Pool, Session};

use super::hosts::Hosts;
use super::tables::{create, open};
use crate::common::clients::{COUNTERS, Model, counter_key, number_of};
use crate::common::{World, bnode_layout, join, offload_service, settle, start};

/// A compute server with its partition.
pub struct Server {
    pub pool: Arc<Pool>,
    pub index: DexTable,
    pub session: Session,
}

pub fn config(seed: u64, computes: usize) -> SimConfig {
    let mut config =
        SimConfig { compute_servers: computes, ..World { seed, ..World::default() }.sim_config() };
    config.adversary.torn = 0.5;
    config.adversary.split_rmw = 0.5;
    config.network.jitter_ns = 1_000;
    config.capabilities.cpu_visible = true;
    config
}

pub fn bounds(format: &TableFormat, count: usize) -> Vec<Vec<u8>> {
    let layout = bnode_layout(format);
    match format.spec.key {
        KeyFormat::Fixed(8..) => equal_width(layout.options().key, count).expect("fixed"),
        KeyFormat::Fixed(len) => (1..count).map(|at| vec![(at * 256 / count) as u8; len]).collect(),
        KeyFormat::Bytes { .. } => {
            let all = [&b"3"[..], b"ppp", b"user:000050/name"];
            all[..count - 1].iter().map(|bound| bound.to_vec()).collect()
        }
    }
}

const ADMISSIONS: [Admission; 4] =
    [Admission::LAZY, Admission::EAGER, Admission::Again, Admission::Chance(0.0)];
const OFFLOADS: [Offload; 4] =
    [Offload::Always, Offload::Never, Offload::Adaptive, Offload::Ratio(0.5)];

/// A partitioned table, each part open on a compute server of its own.
pub fn cluster(
    sim: &Sim,
    format: &TableFormat,
    count: usize,
    frames: u64,
) -> (Vec<Server>, Rc<Hosts>) {
    let options = World::default().pool_options();
    let endpoints: Vec<_> =
        (0..count).map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint")).collect();
    let hosts = Hosts::of(sim);
    sim.fabric(0).serve(OFFLOAD_SERVICE, offload_service());
    let servers = sim
        .block_on(async {
            let mut sessions = Vec::new();
            for endpoint in endpoints {
                if sessions.is_empty() {
                    sessions.push(start(endpoint, &options).await);
                } else {
                    sessions.push(farleaf_harness::join(endpoint).await.expect("join"));
                }
            }
            let made = create(&sessions[0], format).await;
            let whole = open(&sessions[0], made, 32, DexOptions::default()).await;
            whole.partition(&sessions[0], &bounds(format, count)).await.expect("partition");
            let mut servers = Vec::new();
            for (number, session) in sessions.into_iter().enumerate() {
                let (meta, layout) = made;
                let options = DexOptions {
                    cache_bytes: frames * layout.node_bytes() as u64,
                    admission: ADMISSIONS[number],
                    single_queue: number == 1,
                    log_bytes: 16 << 10,
                    // Each server in its own way.
                    offload: OFFLOADS[number],
                    offload_scans: number % 2 == 0,
                    combine: [64, 0, 2, 64][number],
                    ..DexOptions::default()
                };
                // Each takes the first partition that nobody has, and no other later.
                let join = JoinOptions { take: Take::Free(1), take_over: false, calls: true };
                let index = Dex::open(&session, meta, layout, options, join);
                let index = index.await.expect("open");
                servers.push(Server { pool: session.pool().clone(), index, session });
            }
            servers
        })
        .expect("made");
    (servers, hosts)
}

/// A partitioned table and compute servers that have joined it: each takes one partition while there
/// are some.
pub fn members(sim: &Sim, format: &TableFormat, cut: &[Vec<u8>], frames: u64) -> Vec<Server> {
    members_of(sim, World::default(), format, cut, frames)
}

pub fn members_of(
    sim: &Sim,
    world: World,
    format: &TableFormat,
    cut: &[Vec<u8>],
    frames: u64,
) -> Vec<Server> {
    sim.fabric(0).serve(OFFLOAD_SERVICE, offload_service());
    let options = world.pool_options();
    let count = sim.config().compute_servers;
    let endpoints: Vec<_> =
        (0..count).map(|compute| sim.fabric(compute).any_endpoint().expect("endpoint")).collect();
    sim.block_on(async {
        let mut servers = Vec::new();
        let mut made = None;
        for (number, endpoint) in endpoints.into_iter().enumerate() {
            let session = match number {
                0 => start(endpoint, &options).await,
                _ => join(endpoint).await,
            };
            let (meta, layout) = match made {
                Some(made) => made,
                None => {
                    let table = create(&session, format).await;
                    let whole = open(&session, table, 64, DexOptions::default()).await;
                    whole.partition(&session, cut).await.expect("partition");
                    made = Some(table);
                    table
                }
            };
            let options = DexOptions {
                cache_bytes: frames * layout.node_bytes() as u64,
                admission: ADMISSIONS[number % 4],
                flush_tasks: 1 + number % 3,
                durability: [Durability::Logged, Durability::Volatile][number % 2],
                log_bytes: 16 << 10,
                offload: OFFLOADS[number % 4],
                offload_scans: number % 4 != 3,
                combine: [64, 0, 2][number % 3],
                ..DexOptions::default()
            };
            let take = JoinOptions { take: Take::Free(1), calls: true, ..JoinOptions::default() };
            let index = Dex::open(&session, meta, layout, options, take).await;
            let index = index.expect("join");
            servers.push(Server { pool: session.pool().clone(), index, session });
        }
        servers
    })
    .expect("made")
}

/// Two tasks that answer what is sent to a compute server.
pub fn serve(sim: &Sim, compute: usize, server: &Server, cluster: &Rc<Hosts>) {
    for _ in 0..2 {
        let endpoint = sim.fabric(compute).any_endpoint().expect("endpoint");
        let (cluster, pool, index) = (cluster.clone(), server.pool.clone(), server.index.clone());
        sim.spawn(compute, async move {
            let session = pool.session(endpoint).await.expect("session");
            cluster.serve(index, session).await.expect("serves");
        });
    }
}

/// Some key of a partition: its upper bound, or the largest of all.
pub fn own_key(format: &TableFormat, count: usize, number: usize) -> Vec<u8> {
    let bytes = match format.spec.key {
        KeyFormat::Fixed(bytes) => bytes,
        KeyFormat::Bytes { .. } => 20,
    };
    bounds(format, count).get(number).cloned().unwrap_or(vec![0xff; bytes])
}

/// Each server's cache, and the whole of remote memory, are in order, and hold what the models say and
/// counters that sum up to `counted`.
pub fn finish(sim: &Sim, servers: &[Server], format: &TableFormat, expected: Model, counted: u64) {
    sim.block_on(async {
        for server in servers {
            assert_eq!(server.index.tree().check_cache(), Vec::<String>::new());
            settle(&server.session).await;
        }
        for server in servers {
            server.index.flush(&server.session).await.expect("flush");
        }
        // Each server checks its cache and the whole of remote memory.
        let mut keys = 0;
        for server in servers {
            let mut audit = farleaf_pool::Audit::new(&server.session).await.expect("audit");
            let report = server.index.verify(&server.session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.unfinished_splits, 0);
            keys = report.keys;
        }
        for server in servers {
            server.index.close(&server.session).await.expect("close");
        }
        let whole = &servers[0];
        let mut out = Entries::new();
        let btree = {
            let (meta, layout) = (whole.index.meta(), *whole.index.tree().layout());
            farleaf_engines::btree::BTree::open(meta, layout, Default::default())
        };
        btree.scan(&whole.session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len() as u64, keys);
        let counters: Vec<_> = (0..COUNTERS).map(|counter| counter_key(format, counter)).collect();
        let (mut sum, mut rest) = (0, BTreeMap::new());
        for (key, value) in out.iter() {
            if counters.iter().any(|counter| counter == key) {
                sum += number_of(value);
            } else {
                rest.insert(key.to_vec(), value.to_vec());
            }
        }
        assert_eq!(sum, counted, "increments by compare-exchange are all there, once");
        assert_eq!(rest, expected);
    })
    .expect("checked");
}
