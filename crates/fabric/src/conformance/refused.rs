//! Refusal cases: operations that must fail, and must have done nothing.

use super::tools::{at, get, ok, patterned, put, same, word};
use super::{Harness, task};
use crate::{Endpoint, GlobalAddr, OpError, OpErrorKind, ServerId};

fn is_outside<T>(result: &Result<T, OpError>, server: ServerId) -> bool {
    let is_kind = |kind| matches!(kind, OpErrorKind::OutOfBounds { .. });
    matches!(result, Err(error) if is_kind(error.kind) && error.server == server)
}

/// The last byte of a region can be reached, and the one behind it cannot. An operation that reaches over the
/// edge does nothing on this side of it.
pub(super) fn nothing_outside_is_touched<H: Harness>(harness: &H) {
    let start = harness.scratch().start;
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let out = H::buffers_out(&end);
        for server in [H::ONE, H::OTHER] {
            let region_bytes = end.region_bytes(server);
            let tail = GlobalAddr::new(server, region_bytes - 64);
            assert!(region_bytes >= start + super::SCRATCH_BYTES);
            put(&end, tail, &patterned(1, 64)).await;
            for (before_end, len) in [(1, 1), (8, 8), (64, 64), (13, 13), (0, 0)] {
                let from = GlobalAddr::new(server, region_bytes - before_end);
                let read = get(&end, from, len).await;
                same(&read, &patterned(1, 64)[64 - len..], "the last bytes");
            }
            let over: [(u64, usize); 9] = [
                (region_bytes, 1),
                (region_bytes, 8),
                (region_bytes - 1, 2),
                (region_bytes - 7, 8),
                (region_bytes - 8, 16),
                (region_bytes - 1000, 1001),
                (region_bytes + 4096, 8),
                (GlobalAddr::OFFSET_MAX - 7, 8),
                (GlobalAddr::OFFSET_MAX, 4096),
            ];
            for (offset, len) in over {
                let to = GlobalAddr::new(server, offset);
                let what = format!(
                    "{len} bytes at the region's end {:+}",
                    offset as i64 - region_bytes as i64
                );
                assert!(is_outside(&end.read(to, end.buf(len)).await, server), "READ of {what}");
                assert!(is_outside(&end.write(to, end.buf(len)).await, server), "WRITE of {what}");
            }
            for offset in [region_bytes, region_bytes + 8, GlobalAddr::OFFSET_MAX - 7] {
                let at = GlobalAddr::new(server, offset);
                assert!(is_outside(&end.cas(at, 0, 1).await, server), "CAS at {at}");
                assert!(is_outside(&end.faa(at, 1).await, server), "FAA at {at}");
                let mut ops = end.ops();
                ops.write_word(at, 1);
                assert!(is_outside(&end.post_many(ops).await, server), "batch at {at}");
            }
            same(&get(&end, tail, 64).await, &patterned(1, 64), "the region's tail");
        }
        assert_eq!(H::buffers_out(&end), out, "buffers of refused operations come home");
    })]);
}

/// Atomics at each of the seven other alignments.
pub(super) fn misaligned_atomics_do_nothing<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put(&end, base, &[0; 16]).await;
        for shift in 1..8 {
            let at = base.plus(shift);
            let wanted = OpError { server: H::ONE, kind: OpErrorKind::Misaligned { addr: at } };
            assert_eq!(end.cas(at, 0, u64::MAX).await, Err(wanted));
            assert_eq!(end.faa(at, 1).await, Err(wanted));
            let mut ops = end.ops();
            ops.cas(at, 0, u64::MAX);
            assert_eq!(end.chain(ops).await.err(), Some(wanted));
            let mut ops = end.ops();
            ops.faa(at, 1);
            assert_eq!(end.post_many(ops).await.err(), Some(wanted));
        }
        assert_eq!(get(&end, base, 16).await, [0; 16]);
    })]);
}

/// A server that does not exist has a region of 0 bytes, and everything fails there.
pub(super) fn unknown_servers_have_no_memory<H: Harness>(harness: &H) {
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let count = end.server_count();
        assert!(count >= super::SERVERS);
        for server in [ServerId(count as u16), ServerId::MAX] {
            assert_eq!(end.region_bytes(server), 0);
            let at = GlobalAddr::new(server, 4096);
            assert!(is_outside(&end.read(at, end.buf(8)).await, server));
            assert!(is_outside(&end.write(at, end.buf(8)).await, server));
            assert!(is_outside(&end.cas(at, 0, 1).await, server));
            assert!(is_outside(&end.faa(at, 1).await, server));
            let mut ops = end.ops();
            ops.faa(at, 1);
            assert!(is_outside(&end.chain(ops).await, server));
        }
    })]);
}

/// An operation behind a refused one in a chain does not happen: it would have taken effect before one in
/// front of it.
pub(super) fn a_chain_ends_at_its_error<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let outside = GlobalAddr::new(H::OTHER, end.region_bytes(H::OTHER));
        let out = H::buffers_out(&end);
        let mut ops = end.ops();
        ops.read(base, end.buf(8));
        ops.write(outside, end.buf(100));
        ops.write_word(base.plus(8), 1);
        ops.faa(base.plus(16), 1);
        ops.read(base, end.buf(64));
        assert!(is_outside(&end.chain(ops).await, H::OTHER));
        assert_eq!(word(&end, base.plus(8)).await, 0, "a WRITE behind the error");
        assert_eq!(word(&end, base.plus(16)).await, 0, "an FAA behind the error");
        assert_eq!(H::buffers_out(&end), out);
        // The endpoint works on.
        assert_eq!(ok(end.faa(base.plus(16), 5).await), 0);
    })]);
}
