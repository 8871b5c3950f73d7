//! Placement tests: engines spread their memory evenly, and use servers in proportion to their size.

use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat};
use farleaf_fabric::ServerId;
use farleaf_index::knobs::CACHE;
use farleaf_index::{Index, IndexError, KeyFormat, OpenOptions, Settings, Spec};
use farleaf_pool::{AuditReport, Session};

use crate::common::{Pairs, World, audit, growing_engines, settle};

/// Values that go to records of their own in trees.
const VALUE_BYTES: usize = 3_000;

fn long_values(engine: Engine) -> TableFormat {
    TableFormat::new(engine, Spec::ANY).with_keys(KeyFormat::Bytes { max: 32 })
}

async fn create(session: &Session, format: &TableFormat, more: &[(&str, &str)]) -> AnyIndex {
    AnyIndex::create(session, "t", format).await.expect("create");
    let root = session.open_root("t").await.expect("root");
    let table = StoredTable::of(&root).expect("table");
    let cache_bytes = 400 * table.format().node_bytes();
    let mut settings = Settings::default().with(CACHE, &cache_bytes.to_string());
    for (name, value) in more {
        settings = settings.with(name, value);
    }
    let settings = table.format().engine.known(&settings);
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

/// Live bytes on each memory server.
fn live_bytes(report: &AuditReport) -> Vec<u64> {
    let on = |server: usize| {
        let owners = report.owners.iter().filter(|owner| usize::from(owner.server) == server);
        owners.map(|owner| owner.live_bytes).sum()
    };
    (0..report.free_by_server.len()).map(on).collect()
}

/// Fills the pool with random keys until it is full: every server is used up.
async fn fill(session: Session, engine: Engine, more: &[(&str, &str)]) {
    let index = create(&session, &long_values(engine), more).await;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut count = 0_u64;
    let full = loop {
        let key = rng.u64(..).to_be_bytes();
        match index.insert(&session, &key, &[7; VALUE_BYTES]).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        if count.is_multiple_of(32) {
            session.tick().await.expect("tick");
        }
    };
    assert!(matches!(full, IndexError::Full(_)), "{full}");
    settle(&session).await;
    let (_, report) = audit(&session, &[&index]).await;
    let geometry = session.pool().geometry();
    let blocks_of = |server: usize| geometry.block_count(ServerId(server as u16)).into();
    let blocks: Vec<u64> = (0..geometry.servers()).map(blocks_of).collect();
    let block_bytes = geometry.options().block_bytes;
    let live = live_bytes(&report);
    let usable: Vec<u64> = blocks.iter().map(|blocks| blocks * block_bytes).collect();
    let percent = |part: u64, all: u64| part * 100 / all;
    let each: Vec<u64> = live.iter().zip(&usable).map(|(live, of)| percent(*live, *of)).collect();
    let all = percent(live.iter().sum(), usable.iter().sum());
    println!(
        "{engine} {more:?}: {count} records; {each:?} % of the servers are live, {all} % of all"
    );
    for (server, free) in report.free_by_server.iter().enumerate() {
        assert!(free * 20 <= blocks[server], "{engine}: server {server} has {free} free blocks");
        assert!(each[server] >= 85, "{engine} {more:?}: {live:?}");
    }
    let is_tree = matches!(engine, Engine::BTree | Engine::Dex);
    assert!(all >= if is_tree { 95 } else { 90 }, "{engine} {more:?}: {live:?} of {usable:?}");
    index.close(&session).await.expect("close");
}

/// One server has four times the bytes of the other.
#[test]
fn servers_of_unequal_size_are_filled_both() {
    let world = World::default();
    let sizes = [64 << 20, 16 << 20];
    for engine in growing_engines() {
        world.on_mapped_of(&sizes, async |session| fill(session, engine, &[]).await);
        if engine == Engine::Dex {
            let more = [("offload", "always")];
            world.on_mapped_of(&sizes, async |session| fill(session, engine, &more).await);
        }
    }
}

/// Keys that come in order and at random, one by one and in bulk.
async fn spread(session: Session, engine: Engine, is_sorted: bool, is_bulk: bool) {
    // A log is one object, as large as many nodes.
    let index = create(&session, &long_values(engine), &[("durability", "volatile")]).await;
    let mut rng = fastrand::Rng::with_seed(9);
    let mut keys: Vec<u64> = (0..6_000).map(|_| rng.u64(..)).collect();
    if is_sorted || is_bulk {
        keys.sort_unstable();
        keys.dedup();
    }
    let value = |key: u64| vec![1; if key.is_multiple_of(16) { VALUE_BYTES } else { 200 }];
    if is_bulk {
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            keys.iter().map(|key| (key.to_be_bytes().to_vec(), value(*key))).collect();
        let loaded = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(pairs.len() as u64));
    } else {
        for (number, key) in (0_u64..).zip(keys) {
            index.insert(&session, &key.to_be_bytes(), &value(key)).await.expect("insert");
            if number.is_multiple_of(32) {
                session.tick().await.expect("tick");
            }
        }
    }
    settle(&session).await;
    let (_, report) = audit(&session, &[&index]).await;
    let live = live_bytes(&report);
    println!("{engine}, sorted {is_sorted}, bulk {is_bulk}: {live:?} live bytes");
    let (least, most) = (live.iter().min().unwrap_or(&0), live.iter().max().unwrap_or(&0));
    assert!(most * 10 <= least * 11, "{engine}, sorted {is_sorted}, bulk {is_bulk}: {live:?}");
    index.close(&session).await.expect("close");
}

#[test]
fn nodes_and_records_are_spread_evenly() {
    let world = World { servers: 4, region_bytes: 16 << 20, ..World::default() };
    for engine in growing_engines() {
        for (is_sorted, is_bulk) in [(false, false), (true, false), (true, true)] {
            world.on_mapped(|session| spread(session, engine, is_sorted, is_bulk));
        }
    }
}
