//! List cases: results of chains and batches, and F3 for the thread that posts.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::tools::{at, filled, get, ok, patterned, poll_once, put, put_word, same, word};
use super::{Harness, task};
use crate::{Endpoint, Op, Ops};

/// F3: later operations of a chain see the effects of earlier ones, READs in front of WRITEs included.
pub(super) fn a_chain_sees_itself<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put_word(&end, base, 0).await;
        for round in 0..500 {
            let mut ops = end.ops();
            let before = ops.read(base, end.buf(8));
            ops.cas(base, round * 4, round * 4 + 1);
            let after_cas = ops.read(base, end.buf(8));
            ops.write_word(base, round * 4 + 2);
            let after_write = ops.read(base, end.buf(8));
            let faa = ops.faa(base, 1);
            let swap = ops.cas(base, round * 4 + 3, round * 4 + 4);
            let last = ops.read(base, end.buf(8));
            let ops = ok(end.chain(ops).await);
            let read = |index: usize| ops.buf(index).words()[0] - round * 4;
            assert_eq!(
                [read(before), read(after_cas), read(after_write), read(last)],
                [0, 1, 2, 4],
                "READs between the others"
            );
            assert_eq!([ops.old(faa), ops.old(swap)], [round * 4 + 2, round * 4 + 3]);
        }
        // A long READ in front of a WRITE over all of it returns the old bytes.
        let long = base.plus(64);
        put(&end, long, &patterned(1, 8192)).await;
        let mut ops = end.ops();
        let old = ops.read(long, end.buf(8192));
        ops.write(long, filled(&end, 2, 8192));
        let new = ops.read(long, end.buf(8192));
        let ops = ok(end.chain(ops).await);
        same(ops.buf(old).bytes(), &patterned(1, 8192), "READ before WRITE");
        same(ops.buf(new).bytes(), &patterned(2, 8192), "READ behind WRITE");
    })]);
}

/// A CAS that finds another word stores nothing; operations behind it happen.
pub(super) fn a_failed_swap_lets_the_chain_go_on<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put_word(&end, base, 7).await;
        put_word(&end, base.plus(8), 0).await;
        let mut ops = end.ops();
        let failed = ops.cas(base, 8, 9);
        ops.write_word(base.plus(8), 1);
        let added = ops.faa(base.plus(8), 1);
        let read = ops.read(base, end.buf(16));
        let ops = ok(end.chain(ops).await);
        assert_eq!((ops.old(failed), ops.old(added)), (7, 1));
        assert_eq!(ops.buf(read).words(), [7, 2]);
        assert_eq!(word(&end, base).await, 7);
    })]);
}

/// Every result stands where its operation was added; buffers can be taken out.
pub(super) fn results_stand_at_their_index<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let out = H::buffers_out(&end);
        for index in 0..40 {
            put_word(&end, base.plus(index * 8), 100 + index).await;
        }
        for as_chain in [true, false] {
            let mut ops = end.ops();
            for index in 0..40u64 {
                let at = base.plus(index * 8);
                let added = match index % 3 {
                    0 => ops.read(at, end.buf(16).window(4..12)),
                    1 => ops.faa(at, 0),
                    _ => ops.cas(at, 100 + index, 100 + index),
                };
                assert_eq!(added as u64, index);
            }
            assert_eq!((ops.len(), ops.server()), (40, Some(H::ONE)));
            let posted = if as_chain { end.chain(ops).await } else { end.post_many(ops).await };
            let mut ops = ok(posted);
            assert_eq!(ops.len(), 40);
            for index in 0..40 {
                let found = if index % 3 == 0 {
                    let buf = ops.take_buf(index);
                    u64::from_le_bytes(buf.window_bytes().try_into().expect("8 bytes"))
                } else {
                    ops.old(index)
                };
                assert_eq!(found, 100 + index as u64, "operation {index}, chain: {as_chain}");
            }
            assert!(ops.iter().all(|op| op.bytes() == if is_read(op) { 0 } else { 8 }));
        }
        assert_eq!(H::buffers_out(&end), out, "a list keeps no buffers");
    })]);
}

fn is_read(op: &Op) -> bool {
    matches!(op, Op::Read { .. })
}

/// Operations on several servers posted together are all done at completion.
pub(super) fn post_many_reaches_every_server<H: Harness>(harness: &H) {
    let bases = [at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096)];
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for round in 1..=200 {
            for base in bases {
                put(&end, base.plus(512), &patterned(round, 300)).await;
                put_word(&end, base.plus(1024), round).await;
            }
            let mut ops = end.ops();
            let mut posted = Vec::new();
            for (base, number) in bases.into_iter().zip(1..) {
                ops.write(base.plus(3), filled(&end, round * 10 + number, 333));
                ops.write_word(base.plus(2048), round * 10 + number);
                let read = ops.read(base.plus(512), end.buf(300));
                let faa = ops.faa(base.plus(1024), number);
                let cas = ops.cas(base.plus(2048 + 8), round - 1, round);
                posted.push((read, faa, cas));
            }
            let ops = ok(end.post_many(ops).await);
            for ((base, number), (read, faa, cas)) in bases.into_iter().zip(1..).zip(posted) {
                same(ops.buf(read).bytes(), &patterned(round, 300), "a READ of a batch");
                assert_eq!((ops.old(faa), ops.old(cas)), (round, round - 1));
                let written = get(&end, base.plus(3), 333).await;
                same(&written, &patterned(round * 10 + number, 333), "a WRITE of a batch");
                assert_eq!(word(&end, base.plus(2048)).await, round * 10 + number);
                assert_eq!(word(&end, base.plus(2048 + 8)).await, round);
                assert_eq!(word(&end, base.plus(1024)).await, round + number);
            }
        }
    })]);
}

/// A chain or a batch of nothing is done.
pub(super) fn an_empty_list_completes<H: Harness>(harness: &H) {
    harness.run(vec![task(move |end: H::Endpoint| async move {
        assert!(ok(end.chain(end.ops()).await).is_empty());
        assert!(ok(end.post_many(end.ops()).await).is_empty());
        assert_eq!(end.ops().server(), None);
    })]);
}

/// A chain over two servers is a mistake of this program: it panics and does nothing.
pub(super) fn a_chain_goes_to_one_server<H: Harness>(harness: &H) {
    let (near, far) = (at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096));
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let mut ops = end.ops();
        ops.faa(near, 1);
        ops.faa(far, 1);
        let posted = posts_without_panic(&end, ops).await;
        assert!(!posted, "a chain over two servers was taken");
        assert_eq!((word(&end, near).await, word(&end, far).await), (0, 0));
    })]);
}

async fn posts_without_panic<E: Endpoint>(end: &E, ops: Ops) -> bool {
    let Ok(chain) = catch_unwind(AssertUnwindSafe(|| end.chain(ops))) else { return false };
    let mut chain = std::pin::pin!(chain);
    let mut poll = std::pin::pin!(poll_once(chain.as_mut()));
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| poll.as_mut().poll(context)));
        std::task::Poll::Ready(polled.is_ok())
    })
    .await
}
