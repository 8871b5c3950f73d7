//! RPC cases: requests and replies of services.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::tools::{ONE, OTHER, at, filled, ok, patterned, put_word, same, word};
use super::{Harness, task};
use crate::{Endpoint, OpErrorKind, ServerId, Service, ServiceId, ServiceReply, Words};

const ECHO: ServiceId = ServiceId(7);
const MEMORY: ServiceId = ServiceId(65_535);

/// Answers with the request, back to front; at most as long as the reply.
struct Echo;

impl Service for Echo {
    fn call(&self, _: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let len = request.len().min(reply.len());
        for (to, from) in reply.iter_mut().zip(request.iter().rev()) {
            *to = *from;
        }
        ServiceReply { len, cpu_ns: 100 }
    }
}

/// Adds 1 to the word whose offset the request holds; answers with the old word.
struct AddOne;

impl Service for AddOne {
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let nothing = ServiceReply { len: 0, cpu_ns: 0 };
        let Ok(offset) = request.try_into().map(u64::from_le_bytes) else { return nothing };
        let Some(word) = memory.as_slice().get((offset / 8) as usize) else { return nothing };
        let old = word.fetch_add(1, Ordering::SeqCst);
        reply[..8].copy_from_slice(&old.to_le_bytes());
        ServiceReply { len: 8, cpu_ns: 100 }
    }
}

fn serve<H: Harness>(harness: &H) {
    harness.serve(ECHO, Arc::new(Echo));
    harness.serve(MEMORY, Arc::new(AddOne));
}

/// Requests and replies of all lengths, on every server.
pub(super) fn an_echo_comes_back_whole<H: Harness>(harness: &H) {
    serve(harness);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let out = H::buffers_out(&end);
        for server in [ONE, OTHER] {
            for (number, len) in (1..).zip([0, 1, 7, 8, 9, 64, 333, 1000, 4096]) {
                let request = filled(&end, number, len);
                let reply = ok(end.rpc(server, ECHO, request, end.buf(len)).await);
                let mut wanted = patterned(number, len);
                wanted.reverse();
                same(reply.window_bytes(), &wanted, "an echo");
            }
        }
        assert_eq!(H::buffers_out(&end), out, "requests and replies come home");
    })]);
}

/// The reply's window is cut to the bytes that the service wrote; the request is its window; nothing beside
/// either window counts or changes.
pub(super) fn a_reply_is_cut_to_the_written_bytes<H: Harness>(harness: &H) {
    serve(harness);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let request = filled(&end, 1, 64);
        let mut reply = end.buf(100);
        reply.bytes_mut().fill(0x77);
        let (request, reply) = (request.window(10..16), reply.window(20..60));
        let reply = ok(end.rpc(OTHER, ECHO, request, reply).await);
        assert_eq!((reply.window_start(), reply.window_len()), (20, 6));
        let mut wanted = patterned(1, 64)[10..16].to_vec();
        wanted.reverse();
        same(reply.window_bytes(), &wanted, "a short reply");
        let beside = reply.bytes()[..20].iter().chain(&reply.bytes()[60..]);
        assert!(beside.copied().all(|byte| byte == 0x77), "beside the reply's window");
        // A reply longer than its buffer is cut to the buffer.
        let reply = ok(end.rpc(ONE, ECHO, end.buf(64), end.buf(3)).await);
        assert_eq!((reply.window_start(), reply.window_len()), (0, 3));
    })]);
}

/// An unknown service or server gives an error, and the next call works.
pub(super) fn an_unknown_service_is_named<H: Harness>(harness: &H) {
    serve(harness);
    harness.run(vec![task(move |end: H::Endpoint| async move {
        let out = H::buffers_out(&end);
        let refused = end.rpc(OTHER, ServiceId(8), end.buf(8), end.buf(8)).await;
        let error = refused.expect_err("service 8 is not there");
        assert_eq!(error.server, OTHER);
        assert_eq!(error.kind, OpErrorKind::NoService { service: 8 });
        let nowhere = ServerId(end.server_count() as u16);
        assert!(end.rpc(nowhere, ECHO, end.buf(8), end.buf(8)).await.is_err());
        assert_eq!(H::buffers_out(&end), out);
        ok(end.rpc(OTHER, ECHO, end.buf(8), end.buf(8)).await);
    })]);
}

/// A handler works on the memory of the called server. Every later operation sees its changes. If the fabric
/// claims `cpu_visible`, the handler sees completed WRITEs.
pub(super) fn a_handler_works_on_its_servers_memory<H: Harness>(harness: &H) {
    serve(harness);
    let places = [at(harness, ONE, 4096), at(harness, OTHER, 4096)];
    harness.run(vec![task(move |end: H::Endpoint| async move {
        for round in 1..=100 {
            for (place, value) in places.into_iter().zip([round * 10, round * 20]) {
                put_word(&end, place, value).await;
            }
            for (place, value) in places.into_iter().zip([round * 10, round * 20]) {
                let mut request = end.buf(8);
                request.words_mut()[0] = place.offset();
                let reply = ok(end.rpc(place.server(), MEMORY, request, end.buf(16)).await);
                assert_eq!(reply.window_len(), 8);
                let seen = reply.words()[0];
                if end.capabilities().cpu_visible {
                    assert_eq!(seen, value, "the handler sees a completed WRITE");
                    assert_eq!(word(&end, place).await, value + 1, "a READ sees the handler's");
                }
            }
        }
        // A bad request is the handler's to refuse.
        let reply = ok(end.rpc(ONE, MEMORY, end.buf(5), end.buf(16)).await);
        assert_eq!(reply.window_len(), 0);
    })]);
}
