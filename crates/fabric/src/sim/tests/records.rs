//! Record tests: every operation leaves its record, and recording changes nothing.

use super::*;
use crate::sim::{OpRecord, Posted, Verb};
use crate::{OpErrorKind, ServiceId};

#[test]
fn every_operation_leaves_a_record() {
    let sim = sim(SimConfig { record: true, memory_servers: 2, compute_servers: 2, ..config(1) });
    let endpoint = sim.fabric(1).endpoint_on(2).unwrap();
    let other = sim.fabric(0).incarnation();
    sim.block_on(async {
        endpoint.write(at(1, 64), filled(&endpoint, 4, 5)).await.unwrap();
        endpoint.read(at(1, 64), endpoint.buf(32)).await.unwrap();
        endpoint.sleep(100).await;
        endpoint.cas(at(1, 64), 5, 6).await.unwrap();
        let mut ops = endpoint.ops();
        ops.write_word(at(0, 8), 9);
        ops.faa(at(0, 8), 2);
        endpoint.chain(ops).await.unwrap();
        let mut ops = endpoint.ops();
        ops.faa(at(0, 16), 1);
        ops.faa(at(1, 16), 3);
        endpoint.post_many(ops).await.unwrap();
        let (request, reply) = (endpoint.buf(24), endpoint.buf(8));
        endpoint.rpc(ServerId(0), ServiceId(4), request, reply).await.unwrap_err();
        endpoint.fence(ServerId(1), other).await.unwrap();
        endpoint.reconnect(ServerId(0)).await.unwrap();
        endpoint.faa(at(0, 4), 1).await.unwrap_err();
    })
    .unwrap();
    let records = sim.recorded();
    let short = |record: &OpRecord| (record.serial, record.posted, record.index, record.verb);
    let (alone, chain, batch) = (Posted::Alone, Posted::Chain, Posted::Batch);
    assert_eq!(
        records.iter().map(short).collect::<Vec<_>>(),
        [
            (1, alone, 0, Verb::Write),
            (2, alone, 0, Verb::Read),
            (4, alone, 0, Verb::Cas),
            (5, chain, 0, Verb::WriteWord),
            (5, chain, 1, Verb::Faa),
            (6, batch, 0, Verb::Faa),
            (6, batch, 1, Verb::Faa),
            (7, alone, 0, Verb::Rpc),
            (8, alone, 0, Verb::Fence),
            (9, alone, 0, Verb::Reconnect),
            (10, alone, 0, Verb::Faa),
        ]
    );
    for record in &records {
        assert_eq!((record.compute, record.thread), (1, 2));
        assert_eq!(record.life, endpoint.incarnation());
        assert!(record.posted_ns < record.back_ns.unwrap());
        assert!(record.faults.is_empty());
        if let Some((first, last)) = record.effect_ns {
            assert!(record.posted_ns < first && first <= last && last < record.back_ns.unwrap());
        }
    }
    let words = |index: usize| {
        let record: &OpRecord = &records[index];
        (record.expected, record.operand, record.old)
    };
    assert_eq!(words(2), (Some(5), Some(6), Some(5)));
    assert_eq!(words(3), (None, Some(9), None));
    assert_eq!(words(4), (None, Some(2), Some(9)));
    assert_eq!(words(6), (None, Some(3), Some(0)));
    assert_eq!(words(8), (None, Some(other.0), None));
    assert_eq!((records[0].addr, records[0].bytes), (at(1, 64), 32));
    assert_eq!((records[7].bytes, records[7].effect_ns), (24, None));
    assert_eq!(records[7].error, Some(OpErrorKind::NoService { service: 4 }));
    assert_eq!(records[10].error, Some(OpErrorKind::Misaligned { addr: at(0, 4) }));
    assert_eq!(records[10].effect_ns, None);
    assert!(records[9].effect_ns.is_some() && records[9].error.is_none());
}

#[test]
fn instants_and_faults_are_recorded_and_recording_changes_nothing() {
    let run = |record| {
        let adversary =
            AdversaryConfig { torn: 0.5, split_rmw: 0.5, late: 0.1, ..AdversaryConfig::default() };
        let sim = sim(SimConfig { record, adversary, ..config(6) });
        let endpoint = endpoint(&sim, 0);
        sim.block_on(async {
            for word in 0..500 {
                drop(endpoint.read(at(0, 0), endpoint.buf(256)).await.unwrap());
                endpoint.faa(at(0, 8 * word), 1).await.unwrap();
                endpoint.read(at(0, 0), endpoint.buf(8)).await.unwrap();
            }
        })
        .unwrap();
        (sim.trace_hash(), sim.recorded())
    };
    let (hash, records) = run(true);
    assert_eq!((hash, 0), (run(false).0, run(false).1.len()));
    assert_eq!(records.len(), 1500);
    let mut struck = [0; 2];
    for (number, record) in records.iter().enumerate() {
        let (first, last) = record.effect_ns.unwrap();
        let fault = ["torn", "split", "-"][number % 3];
        let is_struck = record.faults.contains(&fault);
        // Two instants may lie in one nanosecond.
        assert!(is_struck || first == last);
        assert!(last - first <= 300);
        if number % 3 < 2 {
            struck[number % 3] += usize::from(is_struck && first < last);
        }
    }
    assert!(struck.iter().all(|count| (200..300).contains(count)), "{struck:?}");
}

#[test]
fn torn_operations_have_two_to_four_instants() {
    let adversary = AdversaryConfig { torn: 1.0, ..Default::default() };
    let sim = sim(SimConfig { adversary, ..config(6) });
    let endpoint = endpoint(&sim, 0);
    let mut seen = [0; 5];
    // Watched from outside, in steps that are short beside the 300 ns in which it lands.
    for round in 1_000..1_200 {
        let writer = endpoint.clone();
        sim.spawn(0, async move {
            drop(writer.write(at(0, 0), filled(&writer, 64, round)).await);
        });
        let (mut states, mut last) = (0, look(&sim, 0, 0, 64));
        while sim.live_tasks() > 0 {
            sim.run_until(sim.now_ns() + 1).unwrap();
            let now = look(&sim, 0, 0, 64);
            states += usize::from(now != last);
            last = now;
        }
        assert!(last.iter().all(|word| *word == round));
        seen[states] += 1;
    }
    assert!(seen[2] > 40 && seen[3] > 40 && seen[4] > 40, "{seen:?}");
    assert_eq!(seen[0], 0);
    assert!(seen[1] < 10, "instants within one nanosecond are rare: {seen:?}");
}
