//! Lost message tests: messages come late, or nobody learns their outcome.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::sim::{OpRecord, Verb};
use crate::{OpError, OpErrorKind, Service, ServiceId, ServiceReply, Words};

/// A cluster with that adversary, which keeps records.
fn recorded(seed: u64, adversary: AdversaryConfig) -> SimConfig {
    SimConfig { adversary, record: true, memory_servers: 2, compute_servers: 2, ..config(seed) }
}

fn lossy(lost: f64) -> AdversaryConfig {
    AdversaryConfig { lost, lost_ns: 40_000, timeout_ns: 20_000, ..Default::default() }
}

fn has(record: &OpRecord, fault: &str) -> bool {
    record.faults.iter().any(|name| name.starts_with(fault))
}

fn share(records: &[OpRecord], fault: &str) -> f64 {
    records.iter().filter(|record| has(record, fault)).count() as f64 / records.len() as f64
}

/// `count` FAAs, one after the other, each to a word of its own; the results.
fn count_up(sim: &Sim, compute: usize, count: u64) -> Vec<Result<u64, OpError>> {
    let endpoint = endpoint(sim, compute);
    sim.block_on(async move {
        let mut results = Vec::new();
        for word in 0..count {
            results.push(endpoint.faa(at((word % 2) as u16, 8 * word), 1).await);
        }
        results
    })
    .unwrap()
}

#[test]
fn late_answers_are_as_many_and_as_late_as_configured() {
    let plain = sim(recorded(3, AdversaryConfig::default()));
    count_up(&plain, 0, 2000);
    let longest = |sim: &Sim| {
        let took = |record: &OpRecord| record.back_ns.unwrap() - record.posted_ns;
        sim.recorded().iter().map(took).max().unwrap()
    };
    let adversary = AdversaryConfig { late: 0.25, late_ns: 30_000, ..Default::default() };
    let sim = sim(recorded(3, adversary));
    let results = count_up(&sim, 0, 2000);
    assert!(results.iter().all(|old| *old == Ok(0)), "late, not lost");
    let records = sim.recorded();
    assert!((share(&records, "late") - 0.25).abs() < 0.03, "{}", share(&records, "late"));
    assert!(longest(&sim) <= longest(&plain) + 30_000);
    assert!(longest(&sim) > longest(&plain) + 25_000);
    // Some come late to the server, some answers come late from it.
    for late_there in [false, true] {
        let late = records.iter().filter(|record| {
            let there = record.effect_ns.unwrap().0 - record.posted_ns;
            let back = record.back_ns.unwrap() - record.effect_ns.unwrap().1;
            has(record, "late") && if late_there { there > 5_000 } else { back > 5_000 }
        });
        assert!(late.count() > 100, "late there: {late_there}");
    }
    // Nothing else is any later.
    for record in records.iter().filter(|record| record.faults.is_empty()) {
        assert!(record.back_ns.unwrap() - record.posted_ns <= longest(&plain));
    }
}

#[test]
fn a_lost_operation_happens_never_at_once_or_later() {
    let sim = sim(recorded(5, lossy(0.3)));
    let results = count_up(&sim, 0, 3000);
    sim.run().unwrap();
    assert_eq!(sim.in_flight(), 0, "FATE-1");
    let records = sim.recorded();
    assert!((share(&records, "lost") - 0.3).abs() < 0.03, "{}", share(&records, "lost"));
    let mut outcomes = BTreeMap::new();
    for (word, (record, result)) in records.iter().zip(results).enumerate() {
        let landed = look(&sim, (word % 2) as u16, 8 * word, 1)[0];
        assert_eq!(record.effect_ns.is_some(), landed == 1);
        let Err(error) = result else {
            assert_eq!((result, landed, has(record, "lost")), (Ok(0), 1, false));
            continue;
        };
        assert!(has(record, "lost") && error.is_unknown());
        assert_eq!((error.kind, Some(error.kind)), (OpErrorKind::Timeout, record.error));
        let waited = record.back_ns.unwrap() - record.posted_ns;
        assert!((20_000..20_200).contains(&waited), "{waited}");
        let name = record.faults[0];
        *outcomes.entry(name).or_insert(0) += 1;
        match name {
            "lost: never happens" => assert_eq!(landed, 0),
            "lost: happens" => {
                assert!(record.effect_ns.unwrap().0 < record.posted_ns + 3_000);
            }
            "lost: happens later" => {
                assert!(record.effect_ns.unwrap().0 < record.posted_ns + 43_000);
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(outcomes.len(), 3);
    assert!(outcomes.values().all(|count| (230..370).contains(count)), "{outcomes:?}");
    let after_timeout = |record: &&OpRecord| {
        record.effect_ns.is_some_and(|(first, _)| Some(first) > record.back_ns)
    };
    assert!(records.iter().filter(after_timeout).count() > 50, "after the client has given up");
}

#[test]
fn a_lost_chain_happens_up_to_some_operation() {
    let sim = sim(recorded(8, AdversaryConfig { torn: 0.5, ..lossy(1.0) }));
    let endpoint = endpoint(&sim, 0);
    let mut prefixes = BTreeMap::new();
    let mut halves = 0;
    for round in 1..400 {
        sim.block_on(async {
            let mut ops = endpoint.ops();
            ops.write_word(at(0, 0), round);
            ops.faa(at(0, 8), 1);
            ops.write(at(0, 1024), filled(&endpoint, 64, round));
            ops.write_word(at(0, 16), round);
            assert_eq!(endpoint.chain(ops).await.unwrap_err().kind, OpErrorKind::Timeout);
            endpoint.sleep(100_000).await;
        })
        .unwrap();
        let records = sim.recorded();
        let chain = &records[records.len() - 4..];
        let happened: Vec<_> = chain.iter().map_while(|record| record.effect_ns).collect();
        let count = chain.iter().filter(|record| record.effect_ns.is_some()).count();
        assert_eq!(happened.len(), count, "F3: only a prefix");
        assert!(happened.windows(2).all(|pair| pair[0].1 < pair[1].0), "F3: in order");
        assert_eq!(look(&sim, 0, 0, 1)[0] == round, count > 0);
        assert_eq!(look(&sim, 0, 16, 1)[0] == round, count > 3);
        let block = look(&sim, 0, 1024, 64);
        let is_half = block.contains(&round) && block.iter().any(|word| *word != round);
        assert_eq!(is_half, chain[2].faults.contains(&"lost: lands in part"));
        halves += u64::from(is_half);
        *prefixes.entry(count).or_insert(0) += 1;
    }
    assert!((0..5).all(|count| prefixes[&count] > 15), "{prefixes:?}");
    assert!(halves > 5, "{halves}");
}

/// Counts its calls in word 0.
struct Counting;

impl Service for Counting {
    fn call(&self, memory: &Words, _: &[u8], reply: &mut [u8]) -> ServiceReply {
        reply.fill(7);
        ServiceReply { len: memory.faa(0, 1).min(1) as usize + 1, cpu_ns: 100 }
    }
}

#[test]
fn lost_rpcs_have_run_or_have_not() {
    let sim = sim(recorded(2, lossy(0.5)));
    sim.fabric(0).serve(ServiceId(3), std::sync::Arc::new(Counting));
    let endpoint = endpoint(&sim, 0);
    let answered = sim
        .block_on(async {
            let mut answered = 0;
            for _ in 0..600 {
                let (request, reply) = (endpoint.buf(8), endpoint.buf(8));
                match endpoint.rpc(ServerId(0), ServiceId(3), request, reply).await {
                    Ok(_) => answered += 1,
                    Err(error) => assert_eq!(error.kind, OpErrorKind::Timeout),
                }
            }
            answered
        })
        .unwrap();
    sim.run().unwrap();
    let ran = look(&sim, 0, 0, 1)[0];
    assert!((250..350).contains(&answered), "{answered}");
    assert!(ran > answered + 150 && ran < 550, "two thirds of the rest ran: {ran}");
    assert_eq!(endpoint.buffers_out(), 0);
}

/// F6 and F10 for lost messages: compute server 1 posts without waiting, then it is fenced or its threads
/// reconnect. Returns the number of operations that were still to come.
fn cut_short(seed: u64, by_fence: bool) -> usize {
    let adversary = AdversaryConfig { torn: 1.0, late: 0.3, late_ns: 30_000, ..lossy(0.7) };
    let sim = sim(recorded(seed, adversary));
    let (writer, fencer) = (endpoint(&sim, 1), endpoint(&sim, 0));
    for client in 0..20 {
        let writer = writer.clone();
        sim.spawn(1, async move {
            for round in 1..20 {
                let mut ops = writer.ops();
                ops.write(at(0, 4096 * client), filled(&writer, 32, round));
                ops.faa(at(0, 4096 * client + 1024), 1);
                let posted = writer.chain(ops);
                let _ = posted.await;
            }
        });
    }
    sim.run_until(50_000 + 777 * seed).unwrap();
    let who = writer.incarnation();
    let calls_from = sim.posts();
    sim.block_on(async {
        for _ in 0..100 {
            let done = if by_fence {
                fencer.fence(ServerId(0), who).await
            } else {
                writer.reconnect(ServerId(0)).await
            };
            if done.is_ok() {
                return;
            }
        }
        panic!("lost a hundred times");
    })
    .unwrap();
    let calls = |record: &&OpRecord| matches!(record.verb, Verb::Fence | Verb::Reconnect);
    let last_call = sim.recorded().iter().rfind(calls).unwrap().serial;
    assert!(last_call > calls_from);
    let done_ns = sim.now_ns();
    // Clients go on after a reconnect; here they shall not.
    sim.fabric(1).kill();
    let to_come = sim.in_flight();
    sim.run_until(done_ns + 1_000_000).unwrap();
    assert_eq!(sim.in_flight(), 0);
    for record in sim.recorded() {
        let is_old = record.compute == 1 && record.serial < last_call;
        if let Some((_, last_ns)) = record.effect_ns
            && is_old
        {
            assert!(last_ns <= done_ns, "seed {seed}: {record:?}");
        }
    }
    to_come
}

#[test]
fn nothing_lost_lands_after_a_fence_or_a_reconnect() {
    for by_fence in [true, false] {
        let to_come: usize = (0..40).map(|seed| cut_short(seed, by_fence)).sum();
        assert!(to_come > 200, "{to_come}");
    }
}

#[test]
fn a_dropped_lost_operation_gives_everything_back() {
    let sim = sim(SimConfig { queue_depth: 1, ..recorded(4, lossy(1.0)) });
    let endpoint = endpoint(&sim, 0);
    sim.block_on(async {
        for word in 0..100 {
            let mut write = Box::pin(endpoint.write(at(0, 8 * word), filled(&endpoint, 8, 1)));
            std::future::poll_fn(|context| {
                assert!(write.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            endpoint.sleep(word * 700).await;
        }
    })
    .unwrap();
    sim.run().unwrap();
    assert_eq!((sim.in_flight(), endpoint.buffers_out()), (0, 0));
}

#[test]
fn only_posts_in_the_window_are_struck_and_by_the_same_faults() {
    let all = AdversaryConfig { torn: 0.5, split_rmw: 0.5, late: 0.2, ..lossy(0.2) };
    let run = |window| {
        let sim = sim(recorded(9, AdversaryConfig { window, ..all.clone() }));
        let endpoint = endpoint(&sim, 0);
        sim.block_on(async {
            for _ in 0..500 {
                let _ = endpoint.write(at(0, 0), filled(&endpoint, 16, 1)).await;
                let _ = endpoint.faa(at(1, 0), 1).await;
            }
        })
        .unwrap();
        let struck = |record: OpRecord| (record.serial, record.faults);
        sim.recorded().into_iter().map(struck).collect::<Vec<_>>()
    };
    let (every, some) = (run(0..u64::MAX), run(200..300));
    assert!(every.iter().filter(|(_, faults)| !faults.is_empty()).count() > 500);
    for (serial, faults) in some {
        let whole = every.iter().find(|(other, _)| *other == serial).unwrap();
        if (200..300).contains(&serial) {
            assert_eq!(faults, whole.1, "post {serial}");
        } else {
            assert!(faults.is_empty(), "post {serial}: {faults:?}");
        }
    }
    assert!(run(0..0).iter().all(|(_, faults)| faults.is_empty()));
}

#[test]
fn every_fault_together_replays() {
    let run = |seed| {
        let adversary = AdversaryConfig { torn: 0.3, split_rmw: 0.3, late: 0.3, ..lossy(0.1) };
        let adversary = AdversaryConfig { shuffle: true, ..adversary };
        let sim = sim(SimConfig { queue_depth: 3, ..recorded(seed, adversary) });
        let server = sim.memory_server(ServerId(1));
        for client in 0..24 {
            let endpoint = endpoint(&sim, client % 2);
            sim.spawn(client % 2, async move {
                for _ in 0..40 {
                    let random = endpoint.random();
                    let addr = at((random % 2) as u16, random >> 8 & 0xff8);
                    let failed = match random >> 40 & 3 {
                        0 => endpoint.read(addr, endpoint.buf(256)).await.is_err(),
                        1 => endpoint.write(addr, filled(&endpoint, 32, random)).await.is_err(),
                        2 => endpoint.faa(addr, 1).await.is_err(),
                        _ => {
                            let mut ops = endpoint.ops();
                            ops.write(addr, filled(&endpoint, 8, random));
                            ops.cas(at(1, 0), random, random + 1);
                            endpoint.post_many(ops).await.is_err()
                        }
                    };
                    if failed {
                        let _ = endpoint.reconnect(addr.server()).await;
                    }
                }
            });
        }
        sim.run_until(30_000).unwrap();
        server.stop();
        sim.run_until(70_000).unwrap();
        server.resume();
        sim.run().unwrap();
        assert_eq!(sim.in_flight(), 0);
        let mut memory = look(&sim, 0, 0, 512);
        memory.extend(look(&sim, 1, 0, 512));
        (sim.trace_hash(), sim.now_ns(), memory, sim.recorded())
    };
    for seed in 0..6 {
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed).0, run(seed + 100).0);
    }
}

#[test]
fn shuffled_tasks_run_in_an_order_of_the_seed() {
    let order = |seed, shuffle| {
        let adversary = AdversaryConfig { shuffle, ..Default::default() };
        let sim = sim(SimConfig { adversary, ..config(seed) });
        let log = Rc::new(RefCell::new(Vec::new()));
        for task in 0..20 {
            let (endpoint, log) = (endpoint(&sim, 0), Rc::clone(&log));
            sim.spawn(0, async move {
                log.borrow_mut().push(task);
                endpoint.sleep(5_000).await;
                log.borrow_mut().push(task);
            });
        }
        sim.run().unwrap();
        log.take()
    };
    let fifo: Vec<_> = (0..20).chain(0..20).collect();
    assert_eq!(order(1, false), fifo);
    assert_eq!(order(1, true), order(1, true));
    assert_ne!(order(1, true), order(2, true));
    let shuffled = order(1, true);
    for half in shuffled.chunks(20) {
        let mut sorted = half.to_vec();
        assert_ne!(sorted, fifo[..20]);
        sorted.sort_unstable();
        assert_eq!(sorted, fifo[..20]);
    }
}

/// A reconnect that gives up a late WRITE cuts it, and no later reconnect cuts it once more. Otherwise it
/// lands after the first reconnect has returned. Found by `farleaf check --seed 483` as a node with a wrong
/// checksum.
#[test]
fn a_second_reconnect_cuts_nothing_again() {
    for seed in 0..40 {
        let adversary = AdversaryConfig { torn: 1.0, lost: 0.7, lost_ns: 1_000_000, ..lossy(0.7) };
        let sim =
            sim(SimConfig { capabilities: crate::Capabilities::NONE, ..recorded(seed, adversary) });
        let endpoint = endpoint(&sim, 0);
        sim.block_on(async {
            let server = ServerId(0);
            let mut old = endpoint.buf(512);
            old.words_mut().fill(7);
            let _ = endpoint.write(at(0, 4096), old).await;
            while endpoint.reconnect(server).await.is_err() {}
            // Nobody but this one writes there, without the fabric.
            let memory = sim.memory(server).unwrap();
            memory.store(512, &[0; 64]);
            for _ in 0..3 {
                let _ = endpoint.faa(at(0, 8), 1).await;
                while endpoint.reconnect(server).await.is_err() {}
            }
            endpoint.sleep(2_000_000).await;
            let mut words = [1; 64];
            memory.load(512, &mut words);
            assert_eq!(words, [0; 64], "seed {seed}: it landed after the reconnect");
        })
        .unwrap();
    }
}
