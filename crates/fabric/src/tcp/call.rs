//! RPC messages: encode a request and its answer for transports other than the connection.
//!
//! Each message stands whole and alone, in the form that it has on a connection (verb 5 of
//! `docs/design/wire.md`).
//!
//! - **TCP-13** The server runs an RPC that comes another way under the admission of the connection to which
//!   that way belongs, as TCP-1 demands of the connection's own.

use std::sync::Arc;

use super::lives::{AdmissionState, ConnectionAdmission, Life};
use super::output::Output;
use super::served::Served;
use super::session::{Host, carry_out};
use super::wire::{ANSWER_BYTES, REQUEST_BYTES, Request, RequestKind, Status, decode_answer};
use crate::{OpErrorKind, ServiceId};

/// Most bytes of a request, and of a reply's room, that go as a message.
pub(crate) const CALL_BYTES_MAX: usize = 4096;
/// Most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = REQUEST_BYTES + CALL_BYTES_MAX;

const _: () = assert!(ANSWER_BYTES <= REQUEST_BYTES, "an answer is no longer than a request");

/// Returns whether an RPC with such a request and room for a reply may go as a message.
pub(crate) fn fits(request_bytes: usize, room: usize) -> bool {
    request_bytes.max(room) <= CALL_BYTES_MAX
}

/// Head of a message: stands in front of the request's bytes.
pub(crate) fn head(service: ServiceId, room: usize, request_bytes: usize) -> [u8; REQUEST_BYTES] {
    let offset = (room as u64) << 32 | u64::from(service.0);
    Request { verb: RequestKind::Rpc, more: false, length: request_bytes as u32, offset }.encode()
}

/// Decodes an answer: the reply, or the reason why there is none. `None` if it is no answer to an RPC.
pub(crate) fn answer_of(
    message: &[u8],
    service: ServiceId,
    room: usize,
) -> Option<Result<&[u8], OpErrorKind>> {
    let (head, content) = message.split_first_chunk()?;
    let (status, length) = decode_answer(head).ok()?;
    if length != content.len() || length > room {
        return None;
    }
    match status {
        Status::Done => Some(Ok(content)),
        Status::NoService => Some(Err(OpErrorKind::NoService { service: service.0 })),
        _ => None,
    }
}

/// The connection in whose name, and behind whose admission, a way carries out RPCs.
pub(crate) struct Caller {
    host: Arc<Host>,
    life: Arc<Life>,
    admission: Arc<ConnectionAdmission>,
}

/// Outcome of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// It was carried out, and the answer is there.
    Done,
    /// Another request of this compute server is being carried out, or it is just being cut off: try again.
    Later,
    /// The admission is shut. Nothing of this connection is carried out any more.
    Shut,
    /// It is not of the protocol.
    Malformed,
}

/// Bytes of an answer; kept for their memory.
#[derive(Debug, Default)]
pub(crate) struct RpcAnswer(Output);

impl RpcAnswer {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.unsent()
    }
}

impl Caller {
    pub(super) fn new(
        host: &Arc<Host>,
        life: &Arc<Life>,
        admission: &Arc<ConnectionAdmission>,
    ) -> Caller {
        Caller { host: Arc::clone(host), life: Arc::clone(life), admission: Arc::clone(admission) }
    }

    /// Carries out the RPC in `message` (TCP-13). Never waits for the admission.
    pub(crate) fn call(&self, message: &[u8], answer: &mut RpcAnswer) -> Called {
        let Some((request, operands)) = decode(message) else { return Called::Malformed };
        let Some(admission) = self.admission.try_lock() else { return Called::Later };
        if *admission != AdmissionState::Open {
            return Called::Shut;
        }
        self.life.hear(self.host.now_ms());
        answer.0.clear();
        let mut served = Served::default();
        served.count(request.verb);
        carry_out(&self.host, request, operands, &mut answer.0);
        drop(admission);
        served.bytes_in = message.len() as u64;
        served.bytes_out = answer.bytes().len() as u64;
        self.host.served.add(&served);
        Called::Done
    }
}

/// Returns the request in a message, if it is an RPC whose answer fits into a message.
fn decode(message: &[u8]) -> Option<(Request, &[u8])> {
    let (head, operands) = message.split_first_chunk()?;
    let request = Request::decode(head).ok()?;
    let is_call = request.verb == RequestKind::Rpc && !request.more;
    let is_whole = request.operand_bytes() == operands.len();
    let fits = fits(operands.len(), (request.offset >> 32) as usize);
    (is_call && is_whole && fits).then_some((request, operands))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Incarnation, Service, ServiceReply, Words};

    const ECHO: ServiceId = ServiceId(3);
    const WHO: Incarnation = Incarnation(9);

    /// Answers with the request, and counts.
    struct Echo(Arc<AtomicUsize>);

    impl Service for Echo {
        fn call(&self, _: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
            self.0.fetch_add(1, Ordering::SeqCst);
            let len = request.len().min(reply.len());
            reply[..len].copy_from_slice(&request[..len]);
            ServiceReply { len, cpu_ns: 0 }
        }
    }

    /// A server, a compute server that it has let in, and the count of its service's calls.
    fn caller() -> (Arc<Host>, Caller, Arc<AtomicUsize>) {
        let calls = Arc::<AtomicUsize>::default();
        let host = Host::alone(ECHO, Arc::new(Echo(Arc::clone(&calls))), 4096).expect("memory");
        let (life, _, admission) = host.lives.enter(WHO, 0, 0).expect("in");
        let caller = Caller::new(&host, &life, &admission);
        (host, caller, calls)
    }

    fn message(service: ServiceId, room: usize, request: &[u8]) -> Vec<u8> {
        [&head(service, room, request.len())[..], request].concat()
    }

    #[test]
    fn a_call_is_answered_and_counted_as_an_rpc() {
        let (host, caller, calls) = caller();
        let mut answer = RpcAnswer::default();
        for len in [0, 1, 100, CALL_BYTES_MAX] {
            let request = vec![len as u8; len];
            let message = message(ECHO, CALL_BYTES_MAX, &request);
            assert!(message.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(caller.call(&message, &mut answer), Called::Done);
            assert!(answer.bytes().len() <= MESSAGE_BYTES_MAX);
            assert_eq!(answer_of(answer.bytes(), ECHO, len), Some(Ok(&request[..])));
        }
        // Cut to the room for it.
        assert_eq!(caller.call(&message(ECHO, 3, b"12345"), &mut answer), Called::Done);
        assert_eq!(answer_of(answer.bytes(), ECHO, 3), Some(Ok(&b"123"[..])));
        assert_eq!(answer_of(answer.bytes(), ECHO, 2), None, "longer than was asked for");
        let nobody = ServiceId(4);
        assert_eq!(caller.call(&message(nobody, 8, &[]), &mut answer), Called::Done);
        let named = Err(OpErrorKind::NoService { service: 4 });
        assert_eq!(answer_of(answer.bytes(), nobody, 8), Some(named));
        assert_eq!(calls.load(Ordering::SeqCst), 5);
        let served = host.served.sums();
        assert_eq!(served.rpcs, 6);
        assert_eq!(served.bytes_in, 6 * 16 + 101 + CALL_BYTES_MAX as u64 + 5);
        assert_eq!(served.bytes_out, 6 * 8 + 101 + CALL_BYTES_MAX as u64 + 3);
    }

    #[test]
    fn nothing_is_carried_out_behind_a_shut_gate() {
        let (host, caller, calls) = caller();
        let (mut answer, message) = (RpcAnswer::default(), message(ECHO, 8, b"8"));
        let held = caller.admission.lock();
        assert_eq!(caller.call(&message, &mut answer), Called::Later);
        drop(held);
        assert_eq!(caller.call(&message, &mut answer), Called::Done);
        host.lives.fence(WHO, 1).expect("cut off");
        assert_eq!(caller.call(&message, &mut answer), Called::Shut);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_message_that_is_no_rpc_is_refused() {
        let (_host, caller, calls) = caller();
        let mut answer = RpcAnswer::default();
        let good = message(ECHO, 8, b"12345678");
        // Another verb, one of a chain, a byte out of place, another length, too much room.
        for (at, byte) in [(0, 2), (0, 6), (0, 99), (1, 1), (2, 1), (4, 7), (4, 9), (13, 0x11)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(caller.call(&bytes, &mut answer), Called::Malformed, "byte {at}");
        }
        for cut in [0, 1, 15, 23] {
            assert_eq!(caller.call(&good[..cut], &mut answer), Called::Malformed, "{cut} bytes");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        assert_eq!(answer_of(&[0; 7], ECHO, 9), None);
        assert_eq!(answer_of(&[0, 0, 0, 0, 1, 0, 0, 0], ECHO, 9), None, "half of an answer");
        assert_eq!(answer_of(&[5, 0, 0, 0, 0, 0, 0, 0], ECHO, 9), None, "fences have no answer");
    }
}
