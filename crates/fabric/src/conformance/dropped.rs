//! Dropped futures: F7, F8.

use std::pin::pin;
use std::task::Poll;

use super::tools::{
    at, filled, get, ok, patterned, poll_once, put, put_word, same, wait_until, word,
};
use super::{Harness, task};
use crate::{Buf, Endpoint, GlobalAddr, ServiceId};

/// Times that a future is dropped in each case.
const TRIES: u64 = 50;
/// Bytes of the buffers that go with them.
const LEN: usize = 1000;
/// Far longer than any operation takes: an abandoned one has ended after it.
const SETTLE_NS: u64 = 200_000;

/// Takes all the buffers that a slab might hand out again and fills them. If a buffer that an operation still
/// uses is among them, the operation or this pattern is damaged.
fn take_many<E: Endpoint>(end: &E) -> Vec<Buf> {
    (0..8).map(|number| filled(end, 1000 + number, LEN)).collect()
}

fn assert_unharmed(bufs: &[Buf]) {
    for (number, buf) in (1000..).zip(bufs) {
        same(buf.bytes(), &patterned(number, LEN), "a buffer of mine, after a dropped operation");
    }
}

async fn settle<H: Harness>(end: &H::Endpoint, out: usize) {
    end.sleep(SETTLE_NS).await;
    wait_until(end, "buffers come home", || H::buffers_out(end) == out).await;
}

/// F8: a future that is dropped before its first poll has done nothing, and its buffers are home.
pub(super) fn an_unpolled_future_does_nothing<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put(&end, base, &patterned(0, LEN)).await;
        let out = H::buffers_out(&end);
        drop(end.write(base, filled(&end, 1, LEN)));
        drop(end.read(base, end.buf(LEN)));
        drop(end.cas(base, word(&end, base).await, 0));
        drop(end.faa(base, 1));
        for as_chain in [true, false] {
            let mut ops = end.ops();
            ops.write(base, filled(&end, 2, LEN));
            ops.faa(base, 1);
            ops.read(base, end.buf(LEN));
            if as_chain { drop(end.chain(ops)) } else { drop(end.post_many(ops)) }
        }
        drop(end.rpc(H::OTHER, ServiceId(1), end.buf(8), end.buf(8)));
        assert_eq!(H::buffers_out(&end), out, "buffers are home at once");
        end.sleep(SETTLE_NS).await;
        same(&get(&end, base, LEN).await, &patterned(0, LEN), "memory");
    })]);
}

/// F7: a begun WRITE lands with the bytes that it was given, although its future is gone and other buffers
/// are filled meanwhile.
pub(super) fn a_dropped_write_lands_unseen<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let out = H::buffers_out(&end);
        for number in 1..=TRIES {
            {
                let mut write = pin!(end.write(base, filled(&end, number, LEN)));
                drop(poll_once(write.as_mut()).await);
            }
            let mine = take_many(&end);
            settle::<H>(&end, out + mine.len()).await;
            assert_unharmed(&mine);
            drop(mine);
            same(&get(&end, base, LEN).await, &patterned(number, LEN), "a dropped WRITE");
        }
        assert_eq!(H::buffers_out(&end), out);
    })]);
}

/// F7: a begun READ never lands in memory that has another holder.
pub(super) fn a_dropped_read_keeps_its_buffer<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put(&end, base, &[0xdd; LEN]).await;
        let out = H::buffers_out(&end);
        for _ in 0..TRIES {
            {
                let mut read = pin!(end.read(base, end.buf(LEN)));
                if let Poll::Ready(read) = poll_once(read.as_mut()).await {
                    same(ok(read).bytes(), &[0xdd; LEN], "a READ that was ready");
                }
            }
            let mine = take_many(&end);
            settle::<H>(&end, out + mine.len()).await;
            assert_unharmed(&mine);
        }
        assert_eq!(H::buffers_out(&end), out);
    })]);
}

/// Posts one list per try, with a WRITE, an FAA and a READ for each of `bases`, drops it, and checks its
/// effects.
async fn drop_lists<H: Harness>(end: H::Endpoint, bases: &[GlobalAddr], as_chain: bool) {
    let out = H::buffers_out(&end);
    let counts: Vec<GlobalAddr> = bases.iter().map(|base| base.plus(2048)).collect();
    for count in &counts {
        put_word(&end, *count, 0).await;
    }
    for number in 1..=TRIES {
        let mut ops = end.ops();
        for (base, count) in bases.iter().zip(&counts) {
            ops.write(*base, filled(&end, number, LEN));
            ops.faa(*count, 1);
            ops.read(base.plus(4096), end.buf(LEN));
        }
        if as_chain {
            drop(poll_once(pin!(end.chain(ops))).await);
        } else {
            drop(poll_once(pin!(end.post_many(ops))).await);
        }
        // Lists are recycled as buffers are: fill one before the dropped one is done.
        let mut other = end.ops();
        let found = other.faa(counts[0].plus(8), 1);
        let mine = take_many(&end);
        settle::<H>(&end, out + mine.len()).await;
        assert_unharmed(&mine);
        drop(mine);
        let other = ok(end.chain(other).await);
        assert_eq!((other.len(), other.old(found)), (1, number - 1));
        for (base, count) in bases.iter().zip(&counts) {
            same(&get(&end, *base, LEN).await, &patterned(number, LEN), "a dropped list");
            assert_eq!(word(&end, *count).await, number, "FAAs of dropped lists");
        }
    }
    assert_eq!(H::buffers_out(&end), out);
}

/// F7 for chains.
pub(super) fn a_dropped_chain_lands_unseen<H: Harness>(harness: &H) {
    let base = at(harness, H::OTHER, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put_word(&end, base.plus(2056), 0).await;
        drop_lists::<H>(end, &[base], true).await;
    })]);
}

/// F7 for batches.
pub(super) fn a_dropped_batch_lands_unseen<H: Harness>(harness: &H) {
    let bases = [at(harness, H::ONE, 4096), at(harness, H::OTHER, 4096)];
    harness.run(vec![task(move |end: H::Endpoint| async move {
        put_word(&end, bases[0].plus(2056), 0).await;
        drop_lists::<H>(end, &bases, false).await;
    })]);
}

/// F7 for atomics: begun and dropped, they happen, and once.
pub(super) fn a_dropped_atomic_counts_once<H: Harness>(harness: &H) {
    let base = at(harness, H::ONE, 4096);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for number in 0..TRIES {
            let _ = poll_once(pin!(end.faa(base, 1))).await;
            let _ = poll_once(pin!(end.cas(base.plus(8), number, number + 1))).await;
            end.sleep(SETTLE_NS).await;
            assert_eq!(word(&end, base).await, number + 1);
            assert_eq!(word(&end, base.plus(8)).await, number + 1);
        }
    })]);
}
