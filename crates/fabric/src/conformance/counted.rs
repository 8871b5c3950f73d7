//! Counter cases: a [`Client`] counts every operation.

use std::sync::Arc;

use super::tools::{at, ok, wait_for_word};
use super::{Harness, task};
use crate::{Client, Cost, Endpoint, OpKind, Service, ServiceId, ServiceReply, Snapshot, Words};

const SIX: ServiceId = ServiceId(3);

/// Answers any request with six bytes.
struct Six;

impl Service for Six {
    fn call(&self, _: &Words, _: &[u8], reply: &mut [u8]) -> ServiceReply {
        reply[..6].fill(6);
        ServiceReply { len: 6, cpu_ns: 0 }
    }
}

/// A scripted list of operations costs what it must, to the operation and the byte, per server
/// and per kind.
pub(super) fn every_operation_is_counted_exactly<H: Harness>(harness: &H) {
    harness.serve(SIX, Arc::new(Six));
    let (near, far) = (at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096));
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let client = Client::new(end.clone());
        let before = end.counters().snapshot();

        client.begin(OpKind::Get);
        ok(client.read(near, client.buf(100)).await);
        ok(client.read(far, client.buf(64).window(8..24)).await);
        let frame = Arc::new(Words::anonymous(16).expect("128 bytes of memory"));
        ok(client.read_frame(far, &frame, 4, 8).await);

        client.begin(OpKind::Update);
        client.begin(OpKind::Update);
        ok(client.cas(near, 0, 1).await);
        ok(client.cas(near, 0, 1).await);
        ok(client.faa(far, 5).await);
        ok(client.write(far, client.buf(24)).await);
        ok(client.write(far, client.buf(24).window(..0)).await);

        assert_eq!(client.charge_to(OpKind::Maintenance), OpKind::Update);
        let mut chain = client.ops();
        chain.write(far, client.buf(16));
        chain.write_word(far, 1);
        chain.cas(far, 9, 9);
        chain.read(far, client.buf(32));
        chain.faa(far, 0);
        ok(client.chain(chain).await);

        client.begin(OpKind::Scan);
        let mut batch = client.ops();
        batch.read(near, client.buf(8));
        batch.read(far, client.buf(40));
        batch.write(near, client.buf(9));
        batch.faa(far, 0);
        ok(client.post_many(batch).await);
        // Regions answer no RPCs.
        let has_rpcs = u64::from(!far.server().is_compute());
        if has_rpcs > 0 {
            ok(client.rpc(far.server(), SIX, client.buf(10), client.buf(50)).await);
        }
        ok(client.chain(client.ops()).await);

        let counts = end.counters().snapshot().since(&before);
        let none = Cost::default();
        let get = Cost { reads: 3, round_trips: 3, bytes_read: 100 + 16 + 64, ..none };
        let update = Cost {
            writes: 2,
            cas: 2,
            faa: 1,
            round_trips: 5,
            bytes_written: 2 * 8 + 8 + 24,
            ..none
        };
        let maintenance = Cost {
            reads: 1,
            writes: 2,
            cas: 1,
            faa: 1,
            chains: 1,
            round_trips: 1,
            bytes_read: 32,
            bytes_written: 16 + 8 + 8 + 8,
            ..none
        };
        let scan = Cost {
            reads: 2,
            writes: 1,
            faa: 1,
            rpcs: has_rpcs,
            round_trips: 1 + has_rpcs,
            bytes_read: 8 + 40 + 6 * has_rpcs,
            bytes_written: 9 + 8 + 10 * has_rpcs,
            ..none
        };
        assert_eq!(counts.kind(OpKind::Get), get);
        assert_eq!(counts.kind(OpKind::Update), update);
        assert_eq!(counts.kind(OpKind::Maintenance), maintenance);
        assert_eq!(counts.kind(OpKind::Scan), scan);
        let mut all = none;
        [get, update, maintenance, scan].into_iter().for_each(|cost| all += cost);
        assert_eq!(counts.total(), all, "something counted for a kind that was not begun");

        let on_near = Cost {
            reads: 2,
            writes: 1,
            cas: 2,
            round_trips: 1 + 2 + 1,
            bytes_read: 100 + 8,
            bytes_written: 16 + 9,
            ..none
        };
        if near.server().is_compute() {
            // The first task's compute server owns the first region.
            assert_eq!((counts.own(), counts.server(near.server())), (on_near, none));
            assert_eq!((counts.compute(), counts.memory()), (all - on_near, none));
        } else {
            assert_eq!(counts.server(near.server()), on_near);
            assert_eq!((counts.compute(), counts.own()), (none, none));
        }
        assert_eq!(counts.server(far.server()), all - on_near);
        assert_eq!(counts.server_count(), end.server_count());
        let ops = OpKind::ALL.map(|kind| counts.ops(kind));
        assert_eq!(ops, [1, 0, 2, 0, 0, 0, 1, 0, 0, 0], "index operations");
        assert_eq!((counts.total().atomics(), counts.total().verbs()), (6, 6 + 5 + 6 + has_rpcs));
    })]);
}

/// The counters of several endpoints can be summed after the endpoints are gone.
pub(super) fn finished_endpoints_stay_counted<H: Harness>(harness: &H) {
    const TASKS: u64 = 3;
    let (near, barrier) = (at(harness, H::ONE, 4096), at(harness, H::ONE, 64));
    let before = Snapshot::of(&harness.counters());
    let tasks = (1..=TASKS).map(|me| {
        task(move |end: H::Endpoint| async move {
            let client = Client::new(end.clone());
            client.begin(OpKind::Insert);
            for _ in 0..me * 10 {
                ok(client.write(near.plus(me * 8), client.buf(8)).await);
            }
            // Operations on the endpoint itself are not counted.
            ok(end.faa(barrier, 1).await);
            wait_for_word(&end, barrier, |done| done == TASKS).await;
        })
    });
    harness.run(tasks.collect());
    let counts = Snapshot::of(&harness.counters()).since(&before);
    let writes = (1..=TASKS).map(|me| me * 10).sum::<u64>();
    let wanted = Cost { writes, round_trips: writes, bytes_written: writes * 8, ..Cost::default() };
    assert_eq!(counts.kind(OpKind::Insert), wanted);
    assert_eq!(counts.total(), wanted);
    assert_eq!(counts.ops(OpKind::Insert), TASKS);
}
