//! Case tools: helpers that the conformance cases share.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use super::Harness;
use crate::{Buf, Endpoint, GlobalAddr, ServerId};

/// Longest wait for something that must come, in the fabric's own time.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Values below this differ in one byte alone, which nothing tears. So a case can show races of plain WRITEs
/// and READs on fabrics whose words are not atomic ([`crate::Capabilities::word_atomic`]).
const BYTE_VALUES: u64 = 250;

/// Times that a case counts up in words that others READ meanwhile.
pub(super) fn countable<E: Endpoint>(end: &E, rounds: u64) -> u64 {
    if end.capabilities().word_atomic { rounds } else { rounds.min(BYTE_VALUES) }
}

/// Two servers, by number.
pub(super) const ONE: ServerId = ServerId(0);
pub(super) const OTHER: ServerId = ServerId(1);

/// The address `offset` bytes into the scratch memory of `server`.
pub(super) fn at<H: Harness>(harness: &H, server: ServerId, offset: u64) -> GlobalAddr {
    GlobalAddr::new(server, harness.scratch().start + offset)
}

/// The result of an operation that must succeed.
#[track_caller]
pub(super) fn ok<T>(result: Result<T, crate::OpError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("an operation that must succeed: {error}"),
    }
}

/// Writes `bytes`.
pub(super) async fn put<E: Endpoint>(end: &E, to: GlobalAddr, bytes: &[u8]) {
    let mut buf = end.buf(bytes.len());
    buf.bytes_mut().copy_from_slice(bytes);
    ok(end.write(to, buf).await);
}

/// Reads `len` bytes.
pub(super) async fn get<E: Endpoint>(end: &E, from: GlobalAddr, len: usize) -> Vec<u8> {
    ok(end.read(from, end.buf(len)).await).bytes().to_vec()
}

/// Writes one word.
pub(super) async fn put_word<E: Endpoint>(end: &E, to: GlobalAddr, word: u64) {
    put(end, to, &word.to_le_bytes()).await;
}

/// Reads one word.
pub(super) async fn word<E: Endpoint>(end: &E, from: GlobalAddr) -> u64 {
    ok(end.read(from, end.buf(8)).await).words()[0]
}

/// Reads `count` words.
pub(super) async fn words<E: Endpoint>(end: &E, from: GlobalAddr, count: usize) -> Vec<u64> {
    ok(end.read(from, end.buf(count * 8)).await).words().to_vec()
}

/// Reads a word until it has the awaited value; returns it.
pub(super) async fn wait_for_word<E: Endpoint>(
    end: &E,
    from: GlobalAddr,
    wanted: impl Fn(u64) -> bool,
) -> u64 {
    let start_ns = end.now_ns();
    loop {
        let now = word(end, from).await;
        if wanted(now) {
            return now;
        }
        assert!(end.now_ns() - start_ns < PATIENCE_NS, "{from} stays {now:#x}");
        end.yield_now().await;
    }
}

/// Waits until a local condition holds.
pub(super) async fn wait_until<E: Endpoint>(end: &E, what: &str, so: impl Fn() -> bool) {
    let start_ns = end.now_ns();
    while !so() {
        assert!(end.now_ns() - start_ns < PATIENCE_NS, "waited in vain: {what}");
        end.sleep(1_000).await;
    }
}

/// Waits until all of `count` tasks have come for the `round`-th time (from 1) to the barrier at
/// `at`, a word that was 0 before the first.
pub(super) async fn meet<E: Endpoint>(end: &E, at: GlobalAddr, count: u64, round: u64) {
    ok(end.faa(at, 1).await);
    wait_for_word(end, at, |arrived| arrived >= count * round).await;
}

/// Polls a future once, as a `select` does with a branch that loses.
pub(super) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Byte `index` of the pattern number `number`; neighbours and patterns differ.
pub(super) fn pattern(number: u64, index: usize) -> u8 {
    let mixed = (number << 32 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8 ^ (mixed >> 31) as u8
}

/// `len` bytes of the pattern number `number`.
pub(super) fn patterned(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|index| pattern(number, index)).collect()
}

/// A buffer with `len` bytes of the pattern number `number`.
pub(super) fn filled<E: Endpoint>(end: &E, number: u64, len: usize) -> Buf {
    let mut buf = end.buf(len);
    buf.bytes_mut().copy_from_slice(&patterned(number, len));
    buf
}

/// Asserts that two stretches are equal, and says where they differ without printing them.
#[track_caller]
pub(super) fn same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    if let Some(index) = (0..found.len()).find(|index| found[*index] != wanted[*index]) {
        let (found, wanted) = (found[index], wanted[index]);
        panic!("{what}: byte {index} is {found:#04x}, wanted {wanted:#04x}");
    }
}
