//! Link tests: stopped, slow and unreachable memory servers, send queues and reconnects.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::OpErrorKind;
use crate::sim::Direction;

fn cluster(seed: u64) -> SimConfig {
    let adversary = AdversaryConfig { timeout_ns: 20_000, ..Default::default() };
    SimConfig { memory_servers: 2, compute_servers: 2, adversary, record: true, ..config(seed) }
}

/// Writers of blocks and counters on both memory servers, without end.
fn busy(sim: &Sim) -> Rc<Cell<u64>> {
    let timeouts = Rc::new(Cell::new(0));
    for client in 0..8 {
        let (endpoint, timeouts) = (endpoint(sim, client % 2), Rc::clone(&timeouts));
        sim.spawn(client % 2, async move {
            for round in 1.. {
                let addr = at((round % 2) as u16, 4096 * client as u64);
                let mut ops = endpoint.ops();
                ops.write(addr, filled(&endpoint, 32, round));
                ops.faa(addr.plus(1024), 1);
                if let Err(error) = endpoint.chain(ops).await {
                    assert_eq!(error.kind, OpErrorKind::Timeout);
                    timeouts.set(timeouts.get() + 1);
                }
            }
        });
    }
    timeouts
}

#[test]
fn a_stopped_server_does_nothing_and_goes_on_where_it_was() {
    for seed in 0..20 {
        let torn = AdversaryConfig { torn: 1.0, split_rmw: 1.0, ..cluster(seed).adversary };
        let sim = sim(SimConfig { adversary: torn, ..cluster(seed) });
        let timeouts = busy(&sim);
        let server = sim.memory_server(ServerId(1));
        sim.run_until(50_000 + 271 * seed).unwrap();
        server.stop();
        let (here, there) = (look(&sim, 0, 0, 4096), look(&sim, 1, 0, 4096));
        sim.run_until(65_000).unwrap();
        assert_eq!(timeouts.get(), 0, "too early");
        sim.run_until(150_000).unwrap();
        assert_eq!(look(&sim, 1, 0, 4096), there, "HEALTH-1");
        assert_ne!(look(&sim, 0, 0, 4096), here, "the other server works on");
        let given_up = timeouts.get();
        assert!(given_up >= 8, "{given_up}");
        server.resume();
        sim.run_until(155_000).unwrap();
        let at_late = sim.recorded().into_iter().filter(|record| {
            let effect_ns = record.effect_ns.map(|(first, _)| first);
            record.back_ns.is_some() && record.error.is_some() && effect_ns > record.back_ns
        });
        assert!(at_late.count() >= 8, "what lay in its queue has taken effect");
        sim.run_until(300_000).unwrap();
        assert_eq!(timeouts.get(), given_up, "all is well again");
    }
}

#[test]
fn a_reconnect_kills_requests_at_a_stopped_server() {
    let sim = sim(cluster(1));
    let endpoint = endpoint(&sim, 0);
    let server = sim.memory_server(ServerId(0));
    server.stop();
    let results = sim
        .block_on(async {
            let lost = endpoint.faa(at(0, 0), 1).await;
            let again = endpoint.reconnect(ServerId(0)).await;
            (lost.map_err(|error| error.kind), again.map_err(|error| error.kind))
        })
        .unwrap();
    assert_eq!(results, (Err(OpErrorKind::Timeout), Err(OpErrorKind::Timeout)));
    server.resume();
    sim.block_on(endpoint.reconnect(ServerId(0))).unwrap().unwrap();
    // They came in order: the FAA before the first reconnect.
    assert_eq!(look(&sim, 0, 0, 1), [1]);
    sim.block_on(endpoint.faa(at(0, 0), 1)).unwrap().unwrap();
    assert_eq!(look(&sim, 0, 0, 1), [2]);
}

#[test]
fn links_break_one_way_and_for_one_compute_server() {
    for direction in [Direction::Requests, Direction::Replies] {
        let sim = sim(cluster(1));
        let (cut, other) = (endpoint(&sim, 1), endpoint(&sim, 0));
        let server = sim.memory_server(ServerId(0));
        server.cut(1, direction);
        for endpoint in [&cut, &other] {
            let (start, is_cut) = (sim.now_ns(), std::ptr::eq(endpoint, &raw const cut));
            let result = sim.block_on(endpoint.faa(at(0, 0), 1)).unwrap();
            assert_eq!(
                result.map_err(|error| error.kind).err(),
                is_cut.then_some(OpErrorKind::Timeout)
            );
            assert!(!is_cut || (20_000..20_200).contains(&(sim.now_ns() - start)));
            sim.block_on(endpoint.faa(at(1, 0), 1)).unwrap().unwrap();
        }
        let happened = u64::from(direction == Direction::Replies);
        assert_eq!(look(&sim, 0, 0, 1), [1 + happened], "HEALTH-2");
        server.heal(1);
        assert_eq!(sim.block_on(cut.faa(at(0, 0), 1)), Ok(Ok(1 + happened)));
    }
}

#[test]
fn a_slow_server_is_as_slow_as_asked() {
    let config = SimConfig { network: exact(), threads: 32, ..cluster(1) };
    let latency = |sim: &Sim, server| {
        let (endpoint, start) = (endpoint(sim, 0), sim.now_ns());
        sim.block_on(endpoint.faa(at(server, 0), 1)).unwrap().unwrap();
        sim.now_ns() - start
    };
    let rate = |sim: &Sim| {
        for client in 0..200 {
            let endpoint = endpoint(sim, 0);
            sim.spawn(0, async move {
                loop {
                    endpoint.faa(at(0, 8 * client), 1).await.unwrap();
                }
            });
        }
        sim.run_until(sim.now_ns() + 100_000).unwrap();
        let before = sim.ops();
        sim.run_until(sim.now_ns() + 500_000).unwrap();
        (sim.ops() - before) as f64
    };
    let (plain, slow) = (sim(config.clone()), sim(config));
    slow.memory_server(ServerId(0)).slow(10);
    let (usual, slower) = (latency(&plain, 0), latency(&slow, 0));
    assert!((2_700..3_000).contains(&(slower - usual)), "nine times 300 ns: {usual} {slower}");
    assert_eq!(latency(&plain, 1), latency(&slow, 1));
    let ratio = rate(&plain) / rate(&slow);
    assert!((9.5..10.5).contains(&ratio), "{ratio}");
    slow.memory_server(ServerId(0)).slow(1.0);
    assert!(!slow.inner.machine.borrow().is_ill);
}

#[test]
fn a_send_queue_holds_what_exceeds_it_in_order() {
    for depth in [1, 3, 8] {
        let sim = sim(SimConfig { queue_depth: depth, ..cluster(2) });
        let endpoint = endpoint(&sim, 0);
        for client in 0..12 {
            let endpoint = endpoint.clone();
            sim.spawn(0, async move {
                for round in 0..20 {
                    if (client + round) % 5 == 0 {
                        let mut ops = endpoint.ops();
                        (0..4).for_each(|word| _ = ops.faa(at(0, 8 * word), 1));
                        drop(endpoint.chain(ops).await.unwrap());
                    } else {
                        endpoint.faa(at(client as u16 % 2, 0), 1).await.unwrap();
                    }
                }
            });
        }
        sim.run().unwrap();
        for server in 0..2 {
            let mut records = sim.recorded();
            records.retain(|record| record.server == ServerId(server));
            // Leaving in posted order shows as arriving so, up to jitter: with depth 1, exactly.
            let effects: Vec<_> =
                records.iter().map(|record| record.effect_ns.unwrap().0).collect();
            assert!(depth > 1 || effects.is_sorted());
            let one_by_one = records.windows(2).all(|pair| {
                pair[0].serial == pair[1].serial
                    || pair[1].effect_ns.unwrap().0 > pair[0].back_ns.unwrap()
            });
            assert_eq!(one_by_one, depth == 1, "CONN-1");
            // At every instant at the server, what is under way there is within the limit.
            for one in &records {
                let now = one.effect_ns.unwrap().0;
                let under_way = records.iter().filter(|other| {
                    let effect_ns = other.effect_ns.unwrap();
                    effect_ns.0 <= now && other.back_ns.unwrap() > now && effect_ns.1 + 900 > now
                });
                let chained = if depth < 4 { 4 } else { depth };
                assert!(under_way.count() <= chained.max(depth));
            }
        }
        let held = sim.recorded().iter().filter(|record| record.faults.contains(&"held")).count();
        assert!(if depth == 8 { held > 20 } else { held > 200 }, "{depth}: {held}");
        assert_eq!(sim.in_flight(), 0);
    }
    // A batch that exceeds it goes in turns.
    let took = |depth| {
        let sim = sim(SimConfig { queue_depth: depth, ..cluster(2) });
        let endpoint = endpoint(&sim, 0);
        let mut ops = endpoint.ops();
        (0..10).for_each(|word| _ = ops.faa(at(0, 8 * word), 1));
        sim.block_on(endpoint.post_many(ops)).unwrap().unwrap();
        sim.now_ns()
    };
    assert!(took(usize::MAX) < 4_000 && took(10) < 4_000);
    assert!(took(1) > 18_000 && took(5) > 4_000, "{} {}", took(1), took(5));
}

#[test]
fn posts_during_a_reconnect_leave_after_it() {
    for seed in 0..20 {
        let sim = sim(cluster(seed));
        let endpoint = endpoint(&sim, 0);
        let result = Rc::new(Cell::new(None));
        let (poster, set) = (endpoint.clone(), Rc::clone(&result));
        sim.spawn(0, async move {
            let before = poster.faa(at(0, 0), 1);
            set.set(Some(before.await.map_err(|error| error.kind)));
        });
        let late = endpoint.clone();
        sim.spawn(0, async move {
            late.sleep(100 * seed + 200).await;
            late.faa(at(0, 8), 1).await.unwrap();
            late.faa(at(1, 8), 1).await.unwrap();
        });
        sim.block_on(async {
            endpoint.sleep(100 * seed + 1).await;
            endpoint.reconnect(ServerId(0)).await.unwrap();
        })
        .unwrap();
        let settled = result.get().expect("the older one has come back");
        let landed = look(&sim, 0, 0, 1)[0];
        assert!(settled.is_err() || landed == 1);
        assert_eq!(look(&sim, 0, 8, 1), [0], "CONN-2: it is still here");
        sim.run().unwrap();
        assert_eq!(look(&sim, 0, 0, 1), [landed], "F10");
        assert_eq!(look(&sim, 0, 8, 1), [1]);
        let records = sim.recorded();
        let back_ns = records.iter().find(|record| record.bytes == 0).unwrap().back_ns.unwrap();
        let late = records.iter().find(|record| record.addr == at(0, 8)).unwrap();
        assert!(late.posted_ns < back_ns && late.effect_ns.unwrap().0 > back_ns);
    }
}

#[test]
fn the_fenced_cannot_reconnect() {
    let sim = sim(cluster(1));
    let (fencer, fenced) = (endpoint(&sim, 0), endpoint(&sim, 1));
    sim.block_on(fencer.fence(ServerId(0), fenced.incarnation())).unwrap().unwrap();
    let refused = sim.block_on(fenced.reconnect(ServerId(0))).unwrap().unwrap_err();
    assert_eq!(refused.kind, OpErrorKind::Fenced);
    sim.block_on(fenced.reconnect(ServerId(1))).unwrap().unwrap();
    let nobody = sim.block_on(fencer.reconnect(ServerId(9))).unwrap().unwrap_err();
    assert!(matches!(nobody.kind, OpErrorKind::OutOfBounds { .. }));
}
