//! Leave tests: compute servers of `dex` join and leave in order, and nobody's operation ends in doubt.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::dex::{Dex, DexOptions, DexTable, JoinOptions, Take};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::{Sim, SimFabric};
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, ListenConfig, ToAny};
use farleaf_index::Index;
use farleaf_index::compute::{Host, RangeCalls, number_of};

use super::hosts::Hosts;
use super::storm::{config, members, serve};
use crate::common::{join, settle};

const KEYS: u64 = 300;
/// Visits of guests.
const ROUNDS: usize = 24;

fn key_of(number: u64) -> [u8; 8] {
    (number << 40).to_be_bytes()
}

/// One life of a guest: it joins, takes a part, serves it for a while, gives it up and leaves.
async fn visit(fabric: SimFabric, endpoint: AnyEndpoint, table: &DexTable, stay_ns: u64) {
    let session = join(endpoint.clone()).await;
    let own = number_of(session.pool().member());
    fabric.expose(own, 0, &ListenConfig::default()).expect("exposed");
    let options = DexOptions { cache_bytes: 64 << 8, ..DexOptions::default() };
    let take = JoinOptions { take: Take::Nothing, take_over: true, calls: true };
    let opened = Dex::open(&session, table.meta(), *table.tree().layout(), options, take).await;
    let dex = opened.expect("open");
    let host: Arc<Host<DexTable>> = Arc::default();
    host.add(dex.clone());
    let tasks = Rc::new(Cell::new(2));
    for _ in 0..2 {
        let serving = session.pool().session(endpoint.clone()).await.expect("session");
        let serve = Arc::clone(&host).serve(serving);
        let tasks = Rc::clone(&tasks);
        endpoint.spawn(async move {
            serve.await.expect("serves");
            tasks.set(tasks.get() - 1);
        });
    }
    // Another range may just be moving.
    let _ = dex.scale_out(&session, endpoint.incarnation()).await;
    endpoint.sleep(stay_ns).await;
    let leaving = host.remove(dex.meta()).expect("it was there");
    while !leaving.is_done() {
        endpoint.sleep(1_000).await;
    }
    endpoint.leave().await;
    while tasks.get() > 0 {
        endpoint.sleep(1_000).await;
    }
    dex.close(&session).await.expect("close");
    drop(dex);
    settle(&session).await;
    // Tasks that a move has left behind may have a session for a moment.
    while session.pool().sessions() > 1 {
        endpoint.sleep(1_000).await;
    }
    session.leave().await.expect("leave");
}

/// Two guests come and go all the time, at moments that the seed chooses, while clients of the host that stays
/// use all keys.
fn come_and_go(seed: u64) -> u64 {
    let sim = Sim::new(config(seed, 3)).expect("sim");
    let hosts = Hosts::of(&sim);
    let format = TableFormat::fixed8(Engine::BTree);
    let servers = members(&sim, &format, &[key_of(100).to_vec(), key_of(200).to_vec()], 400);
    serve(&sim, 0, &servers[0], &hosts);
    // The first lives of the others have nothing to do with it.
    for compute in [1, 2] {
        let server = &servers[compute];
        let closing = async {
            server.index.close(&server.session).await.expect("close");
            server.session.leave().await.expect("leave");
        };
        sim.block_on(closing).expect("closed");
    }
    let stop = Rc::new(Cell::new(false));
    let running = Rc::new(Cell::new(2));
    for client in 0..2_u64 {
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (pool, index) = (servers[0].pool.clone(), servers[0].index.clone());
        let (stop, running) = (Rc::clone(&stop), Rc::clone(&running));
        sim.spawn(0, async move {
            let session = pool.session(endpoint).await.expect("session");
            let mut rng = fastrand::Rng::with_seed(seed ^ client);
            let mut model = BTreeMap::new();
            for step in 0_u64.. {
                if stop.get() {
                    break;
                }
                let key = key_of(rng.u64(..KEYS / 2) * 2 + client);
                if step % 4 == 0 {
                    let mut value = Vec::new();
                    let has = index.get(&session, &key, &mut value).await.expect("get");
                    assert_eq!(has.then_some(value), model.get(&key).cloned());
                } else {
                    let value = step.to_le_bytes().to_vec();
                    let new = index.upsert(&session, &key, &value).await.expect("upsert");
                    assert_eq!(new, model.insert(key, value).is_none());
                }
                session.tick().await.expect("tick");
            }
            running.set(running.get() - 1);
        });
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let guests = [1, 2].map(|compute| (compute, Rc::new(Cell::new(false))));
    let mut visits = 0;
    while visits < ROUNDS || guests.iter().any(|(_, is_there)| is_there.get()) {
        for (compute, is_there) in &guests {
            if visits < ROUNDS && !is_there.replace(true) {
                visits += 1;
                let fabric = sim.fabric(*compute).restart();
                let endpoint = fabric.any_endpoint().expect("endpoint");
                let (table, is_there) = (servers[0].index.clone(), Rc::clone(is_there));
                let stay_ns = rng.u64(..400_000);
                sim.spawn(*compute, async move {
                    visit(fabric, endpoint, &table, stay_ns).await;
                    is_there.set(false);
                });
            }
        }
        sim.run_until(sim.now_ns() + 1 + rng.u64(..50_000)).expect("runs");
    }
    stop.set(true);
    while running.get() > 0 {
        sim.run_until(sim.now_ns() + 50_000).expect("runs");
    }
    servers[0].index.tree().stats().forwarded
}

#[test]
fn compute_servers_that_leave_in_order_leave_nobody_in_doubt() {
    let forwarded: u64 = (0..12).map(|seed| come_and_go(700 + seed)).sum();
    assert!(forwarded > 100, "{forwarded} operations travelled");
}
