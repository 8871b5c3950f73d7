//! Fuzz entry points: feed any bytes to both sides of a connection, without sockets.
//!
//! They are for `crates/fuzz-targets`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::Lease;
use super::call::{CALL_BYTES_MAX, Called, Caller, MESSAGE_BYTES_MAX, RpcAnswer, answer_of};
use super::inbox::{Inbox, Waiting};
use super::output::Output;
use super::peers::CallServer;
use super::session::{Host, Session, UNSENT_MAX};
use super::transport::{Payload, PostTable, for_each_request};
use super::wire::{ANSWER_BYTES, GREETING_BYTES, Hello, LENGTH_MAX, Welcome, decode_answer};
use crate::calls::Requests;
use crate::raw::SlabRef;
use crate::{
    CallError, GlobalAddr, Incarnation, Op, OpError, OpErrorKind, Ops, ServerId, Service,
    ServiceId, ServiceReply, Words,
};

const REGION_BYTES: usize = 64 << 10;

/// Claims to have answered with as many bytes as the request's first.
struct Boaster;

impl Service for Boaster {
    fn call(&self, _: &Words, request: &[u8], _: &mut [u8]) -> ServiceReply {
        let len = request.first().map_or(usize::MAX, |first| usize::from(*first));
        ServiceReply { len, cpu_ns: 0 }
    }
}

fn host() -> Option<Arc<Host>> {
    Host::alone(ServiceId(1), Arc::new(Boaster), REGION_BYTES)
}

/// Feeds `pieces` to a memory server as messages that came another way, and then to a client as answers.
/// Checks that the server's answers are of the protocol. Returns the number of answers.
pub fn messages<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(host) = host() else { return 0 };
    let Ok((life, _, admission)) = host.lives.enter(Incarnation(7), 0, 0) else { return 0 };
    let (caller, mut answer) = (Caller::new(&host, &life, &admission), RpcAnswer::default());
    let mut answers = 0;
    for piece in pieces {
        let room = usize::from(piece.first().copied().unwrap_or_default());
        if let Some(Ok(reply)) = answer_of(piece, ServiceId(1), room) {
            assert!(reply.len() <= room);
        }
        match caller.call(piece, &mut answer) {
            Called::Done => answers += 1,
            Called::Malformed => continue,
            other => panic!("nobody has the admission, and it is open: {other:?}"),
        }
        assert!(answer.bytes().len() <= MESSAGE_BYTES_MAX, "an answer that no place holds");
        let whole = answer_of(answer.bytes(), ServiceId(1), CALL_BYTES_MAX);
        assert!(whole.is_some(), "no answer");
    }
    answers
}

/// Feeds `pieces`, one after the other, to a memory server on one connection, behind a right greeting if
/// `greets`. Checks that its answers are of the protocol, and that it holds no more than it may. Returns the
/// number of its answers.
pub fn serve<'a>(greets: bool, pieces: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(host) = host() else { return 0 };
    let hello = Hello::to(ServerId(0), 0, Incarnation(7)).encode();
    let input = if greets { hello.to_vec() } else { Vec::new() };
    let (session, wanted_max) = (Session::default(), 16 + LENGTH_MAX);
    feed(&host, session, input, pieces, wanted_max, |_, output| {
        assert!(output.unsent().len() <= UNSENT_MAX + ANSWER_BYTES + LENGTH_MAX, "TCP-6");
    })
}

/// Feeds `pieces`, one after the other, to a compute server on one connection, behind a right greeting. It
/// treats the calls among them by their first bytes. Checks that its bytes are of the protocol, and that it
/// answers each call once. Returns the number of its answers.
pub fn calls<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> usize {
    let Some(mut host) = host() else { return 0 };
    let requests = Arc::<Requests>::default();
    requests.open();
    let me = Incarnation(9);
    if let Some(host) = Arc::get_mut(&mut host) {
        let lease = Arc::new(Lease::new(Duration::from_secs(3_600), Instant::now()));
        host.call_server = Some(CallServer { requests: Arc::clone(&requests), me, lease });
    }
    let input = Hello::to(ServerId(0), me.0, Incarnation(7)).encode().to_vec();
    let (session, wanted_max) = (Session::notifying(Arc::new(|| {})), 16 + crate::CALL_BYTES_MAX);
    feed(&host, session, input, pieces, wanted_max, |session, output| {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(mut incoming)) = requests.poll_next(ServiceId(1), &mut context) {
            let way = incoming.request.first().copied().unwrap_or_default();
            if way & 1 == 1 && incoming.begin() && way & 2 == 2 {
                let reply = std::mem::take(&mut incoming.request);
                assert!(incoming.reply(reply).is_ok(), "the connection is open");
            }
        }
        session.put_replies(output);
    })
}

/// Feeds `input`, and then `pieces`, to a session. Calls `between` whenever requests have been taken. Checks that
/// the session wants at most `wanted_max` bytes at a time. Returns the number of answers.
fn feed<'a>(
    host: &Arc<Host>,
    mut session: Session,
    mut input: Vec<u8>,
    pieces: impl Iterator<Item = &'a [u8]>,
    wanted_max: usize,
    mut between: impl FnMut(&Session, &mut Output),
) -> usize {
    let (mut output, mut answers, mut greeted) = (Output::default(), 0, false);
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let Ok(taken) = session.take(host, &input, &mut output) else { return answers };
            input.drain(..taken);
            between(&session, &mut output);
            answers += count_answers(output.unsent(), &mut greeted);
            output.sent(output.unsent_bytes());
            if session.ends() {
                return answers;
            }
            if taken == 0 {
                break;
            }
        }
        assert!(session.wanted(&input) <= wanted_max, "more room than any request needs");
    }
    answers
}

/// Takes the bytes of a server apart.
fn count_answers(mut sent: &[u8], greeted: &mut bool) -> usize {
    if !*greeted && let Some((welcome, rest)) = sent.split_first_chunk::<GREETING_BYTES>() {
        assert!(Welcome::decode(welcome).is_some(), "a greeting");
        (*greeted, sent) = (true, rest);
    }
    let mut count = 0;
    while let Some((head, rest)) = sent.split_first_chunk::<ANSWER_BYTES>() {
        let Ok((_, length)) = decode_answer(head) else { panic!("no answer: {head:?}") };
        sent = &rest[length..];
        count += 1;
    }
    assert!(sent.is_empty(), "half an answer");
    count
}

/// Feeds `pieces` as answers to a client with posts by `posts`. Checks that each post comes back once and
/// that no buffer is lost. Returns the number of posts that came back without an error.
pub fn ask<'a>(posts: &[u8], pieces: impl Iterator<Item = &'a [u8]>) -> usize {
    let slab = SlabRef::new();
    let (mut table, mut inbox) = (PostTable::default(), Inbox::default());
    let mut slots = Vec::new();
    for post in posts {
        let (slot, opened, _) = table.posts.open(&Context::from_waker(Waker::noop()));
        opened.kept = payload(&slab, *post);
        let mut parts = 0;
        if matches!(table.posts.slot(slot).kept, Payload::Call(..)) {
            inbox.expect_reply(Waiting { slot, part: 0 });
            parts = 1;
        }
        for_each_request(&table.posts.slot(slot).kept, |_, _, _| {
            inbox.expect(Waiting { slot, part: parts });
            parts += 1;
        });
        table.posts.slot(slot).missing = parts;
        // Some futures have been dropped.
        let is_abandoned = post & 0x80 != 0;
        if is_abandoned {
            let _ = table.posts.abandon(slot);
        }
        slots.push((slot, is_abandoned));
    }
    inbox.mark(|| 0);
    let lost = OpError { server: ServerId(0), kind: OpErrorKind::Unavailable };
    'pieces: for mut piece in pieces {
        if let Some(greeting) = piece.first_chunk() {
            let _ = Welcome::decode(greeting);
        }
        while !piece.is_empty() {
            let room = inbox.room();
            assert!(!room.is_empty());
            let count = room.len().min(piece.len());
            room[..count].copy_from_slice(&piece[..count]);
            piece = &piece[count..];
            if inbox.came(count, &mut table).is_err() {
                break 'pieces;
            }
        }
    }
    inbox.lose(lost, &mut table);
    inbox.lose_calls(CallError::Unknown(OpErrorKind::Unavailable), &mut table);
    assert!(inbox.is_empty() && inbox.oldest_ns().is_none());
    let mut done = 0;
    for (slot, is_abandoned) in slots {
        let slot = table.posts.slot(slot);
        assert_eq!(slot.missing, 0, "a post that never comes back");
        if is_abandoned {
            assert!(matches!(slot.kept, Payload::Empty), "kept for nobody");
            continue;
        }
        done += usize::from(slot.error.is_none());
        slot.kept = Payload::Empty;
    }
    assert_eq!(slab.buffers_out(), 0, "a buffer is lost");
    done
}

fn payload(slab: &SlabRef, post: u8) -> Payload {
    let len = usize::from(post & 0x78);
    let at = GlobalAddr::new(ServerId(0), 64);
    let read = || Op::Read { from: at, into: slab.buf(len) };
    let cas = || Op::Cas { at, expected: 1, new: 2, old: 0 };
    let list = || {
        let mut ops = Ops::new(slab.clone());
        ops.read(at, slab.buf(len));
        ops.write_word(at, 3);
        ops.faa(at, 4);
        ops
    };
    match post % 8 {
        0 => Payload::Op(read()),
        1 => Payload::Op(Op::Write { to: at, from: slab.buf(len) }),
        2 => Payload::Op(cas()),
        3 => Payload::Chain(list()),
        4 => Payload::Batch(list()),
        5 => Payload::Rpc {
            server: ServerId(0),
            service: ServiceId(1),
            request: slab.buf(len),
            reply: slab.buf(len),
            reply_len: 0,
        },
        6 => Payload::Fence(ServerId(0), Incarnation(9)),
        7 if len >= 64 => Payload::Call(ServerId::COMPUTE_FIRST, ServiceId(1), vec![7; len]),
        _ => Payload::IsDead(ServerId(0), Incarnation(9), false),
    }
}
