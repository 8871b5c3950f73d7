//! Server session: turns the request bytes of one connection into answer bytes, without its socket.
//!
//! - **TCP-6** While [`UNSENT_MAX`] bytes of answers wait, the server runs no more requests. So a
//!   reader that is slow, or asks for more than it takes, costs a bounded amount of memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use super::call::Caller;
use super::lives::{AdmissionState, ConnectionAdmission, Denied, Life, Lives};
use super::offer::Offer;
use super::output::Output;
use super::peers::{CallServer, GateAdmission};
use super::region::Region;
use super::served::{Served, Tally};
use super::server::MemoryServerConfig;
use super::wire::{
    ANSWER_BYTES, GREETING_BYTES, GreetingStatus, Hello, LENGTH_MAX, REQUEST_BYTES, Request,
    RequestKind, Status, VERSION, Welcome, called, encode_answer, reply_head, word_at,
};
use crate::calls::{Replies, Reply};
use crate::sync::lock;
use crate::wake::Notify;
use crate::{
    GlobalAddr, Incarnation, OpError, OpErrorKind, ServerId, Service, ServiceId, Words, access,
};

/// Bytes of unsent answers from which on the server carries out no more requests of that connection. One more
/// answer may exceed them.
pub(super) const UNSENT_MAX: usize = 4 << 20;

/// Requests by which the server fetches memory ahead: about as long as the memory takes.
const AHEAD: usize = 16;

/// State that all connections of a server share.
pub(super) struct Host {
    pub(super) server: ServerId,
    pub(super) servers: u16,
    pub(super) lease_ms: u32,
    pub(super) connections_max: usize,
    pub(super) words: Arc<Words>,
    pub(super) region_id: u64,
    pub(super) services: RwLock<BTreeMap<ServiceId, Arc<dyn Service>>>,
    pub(super) lives: Lives,
    /// Another way to the words, if the server offers one.
    pub(super) offer: Option<Arc<dyn Offer>>,
    /// For the calls of compute servers, if this is a compute server.
    pub(super) call_server: Option<CallServer>,
    /// Connections whose operations go over themselves, and connections with another way.
    pub(super) ways: Mutex<[usize; 2]>,
    pub(super) start: Instant,
    /// Connections that have been let in.
    pub(super) guests: AtomicUsize,
    pub(super) served: Tally,
}

impl Host {
    /// The host of `region`, which serves another way too if there is an `offer`.
    pub(super) fn new(
        config: &MemoryServerConfig,
        region: Region,
        offer: Option<Arc<dyn Offer>>,
        call_server: Option<CallServer>,
    ) -> Host {
        let lease_ms = config.lease.as_millis() as u32;
        Host {
            server: config.server,
            servers: config.servers as u16,
            lease_ms,
            connections_max: config.connections_max,
            words: region.words,
            region_id: region.id,
            services: RwLock::default(),
            lives: match region.record {
                Some(record) => Lives::recorded(lease_ms.into(), record),
                None => Lives::new(lease_ms.into()),
            },
            offer,
            call_server,
            ways: Mutex::default(),
            start: Instant::now(),
            guests: AtomicUsize::new(0),
            served: Tally::default(),
        }
    }

    /// A host with a pool of its own, without a network; `None` without memory.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn alone(
        id: ServiceId,
        service: Arc<dyn Service>,
        region_bytes: usize,
    ) -> Option<Arc<Host>> {
        let lease = std::time::Duration::from_secs(1);
        let config = MemoryServerConfig { lease, connections_max: 1, ..Default::default() };
        let words = Words::anonymous(region_bytes / 8)?;
        let host = Host::new(&config, Region::over(Arc::new(words)), None, None);
        host.serve(id, service);
        Some(Arc::new(host))
    }

    /// Adds a service that answers RPCs.
    pub(super) fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.services.write().unwrap_or_else(PoisonError::into_inner).insert(id, service);
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// Reason for which a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Gone {
    /// The other side has closed it, or all has been said.
    #[error("it has ended")]
    Ended,
    /// The network has failed, or TLS refuses the bytes.
    #[error("{0}")]
    Broken(io::Error),
    /// The bytes are no greeting, or no request.
    #[error("what came is not of this protocol")]
    Nonsense,
    /// Its compute server has another connection in its place.
    #[error("another connection has taken its place")]
    Replaced,
    /// A fence, or a close, that could not be carried out whole. The caller tries again.
    #[error("a compute server could not be cut off whole")]
    Uncut,
    /// It was silent for too long.
    #[error("nothing was heard of it for too long")]
    Silent,
}

/// Right of a connection's operations to reach the words one way.
///
/// - **TCP-10** If the processor's atomics and those of another way are not atomic against each other, no two
///   connections have passes for different ways.
struct Pass {
    host: Arc<Host>,
    by_card: bool,
}

impl Pass {
    /// `None` if others have the other way.
    fn get(host: &Arc<Host>, by_card: bool) -> Option<Pass> {
        let mixes = host.offer.as_ref().is_none_or(|offer| offer.mixes());
        let mut ways = lock(&host.ways);
        if !mixes && ways[usize::from(!by_card)] > 0 {
            return None;
        }
        ways[usize::from(by_card)] += 1;
        Some(Pass { host: Arc::clone(host), by_card })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut ways = lock(&self.host.ways);
        ways[usize::from(self.by_card)] -= 1;
    }
}

/// A connection that has greeted and was let in.
struct Guest {
    life: Arc<Life>,
    number: u64,
    admission: Arc<ConnectionAdmission>,
    host: Arc<Host>,
    /// None for a connection that only carries signs of life.
    pass: Option<Pass>,
    who: Incarnation,
    /// The calls of a compute server's connection.
    replies: Option<Arc<Replies>>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.replies.iter().for_each(|replies| replies.close());
        // A way that cannot be cut stays known, so that a fence tries again (TCP-7).
        match self.admission.close(AdmissionState::Closed) {
            Ok(_) => self.life.leave(self.number),
            // Then its way has not ended.
            Err(_) => std::mem::forget(self.pass.take()),
        }
        self.host.guests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State of a connection.
#[derive(Default)]
pub(super) struct Session {
    guest: Option<Guest>,
    /// An operation of the chain that is being carried out has failed.
    broken: bool,
    ends: bool,
    /// Reason in the answer to its greeting, if it was not let in.
    refused: Option<GreetingStatus>,
    /// Called when a reply to a call is ready.
    notify: Option<Notify>,
}

impl Session {
    /// A session whose calls other threads may answer; they then call `notify`.
    pub(super) fn notifying(notify: Notify) -> Self {
        Session { notify: Some(notify), ..Session::default() }
    }

    /// Adds the replies that are ready.
    #[inline]
    pub(super) fn put_replies(&self, output: &mut Output) {
        if let Some(Guest { replies: Some(replies), .. }) = &self.guest {
            for Reply { number, outcome, bytes } in replies.take_ready() {
                output.push(&reply_head(number, outcome, bytes.len()));
                output.push(&bytes);
            }
        }
    }

    /// All that stood in the output has been given to the system.
    #[inline]
    pub(super) fn sent(&self) {
        if let Some(Guest { replies: Some(replies), .. }) = &self.guest {
            replies.sent();
        }
    }

    /// It has not greeted.
    pub(super) fn is_stranger(&self) -> bool {
        self.guest.is_none()
    }

    /// Returns the reason in the answer to its greeting, if it was not let in.
    pub(super) fn refused(&self) -> Option<GreetingStatus> {
        self.refused
    }

    /// Returns whether to close it once everything has been sent.
    pub(super) fn ends(&self) -> bool {
        self.ends
    }

    /// Returns for how long its compute server has been silent.
    pub(super) fn silent_ms(&self, now_ms: u64) -> u64 {
        self.guest.as_ref().map_or(0, |guest| guest.life.silent_ms(now_ms))
    }

    /// Bytes of input that must fit, to carry out the request at the head of `input`.
    pub(super) fn wanted(&self, input: &[u8]) -> usize {
        match &self.guest {
            // A client that has not greeted may only send its greeting.
            None => GREETING_BYTES,
            Some(_) => {
                let request = input.first_chunk().and_then(|head| Request::decode(head).ok());
                REQUEST_BYTES + request.map_or(0, Request::operand_bytes)
            }
        }
    }

    /// Carries out the whole requests in `input`; returns their bytes. It leaves some if it has to send the
    /// answers first (TCP-6).
    pub(super) fn take(
        &mut self,
        host: &Arc<Host>,
        input: &[u8],
        output: &mut Output,
    ) -> Result<usize, Gone> {
        let (mut served, before) = (Served::default(), output.unsent_bytes());
        let taken = self.take_counted(host, input, output, &mut served);
        if let Ok(taken) = taken {
            served.bytes_in = taken as u64;
            served.bytes_out = (output.unsent_bytes() - before) as u64;
        }
        host.served.add(&served);
        taken
    }

    fn take_counted(
        &mut self,
        host: &Arc<Host>,
        input: &[u8],
        output: &mut Output,
        served: &mut Served,
    ) -> Result<usize, Gone> {
        let mut taken = 0;
        if self.guest.is_none() {
            let Some(greeting) = input.first_chunk() else { return Ok(0) };
            taken = GREETING_BYTES;
            self.greet(host, greeting, output)?;
        }
        let Some(guest) = &self.guest else { return Ok(taken) };
        guest.life.hear(host.now_ms());
        for ahead in 0..=AHEAD {
            prefetch(host, &input[taken..], ahead);
        }
        loop {
            // Under this admission, as many requests as need no other admission.
            let admission = guest.admission.pass();
            match *admission {
                AdmissionState::Open => {}
                AdmissionState::Closed => return Err(Gone::Replaced),
                AdmissionState::Fenced => {
                    output.push(&encode_answer(Status::Fenced, 0));
                    self.ends = true;
                    return Ok(taken);
                }
            }
            let mut special = None;
            while let Some(head) = input[taken..].first_chunk::<REQUEST_BYTES>()
                && output.unsent_bytes() <= UNSENT_MAX
            {
                if let Some(read) = Request::read_alone(head)
                    && !self.broken
                {
                    // The most frequent request.
                    taken += REQUEST_BYTES;
                    prefetch(host, &input[taken..], AHEAD);
                    served.count(RequestKind::Read);
                    carry_out(host, read, &[], output);
                    continue;
                }
                let request = Request::decode(head).map_err(|_| Gone::Nonsense)?;
                if host.call_server.is_some() && !request.verb.is_for_peers() {
                    return Err(Gone::Nonsense);
                }
                let start = taken + REQUEST_BYTES;
                let Some(operands) = input.get(start..start + request.operand_bytes()) else {
                    if request.verb == RequestKind::Call && guest.replies.is_none() {
                        // No room for a call that nobody takes.
                        return Err(Gone::Nonsense);
                    }
                    break;
                };
                taken = start + operands.len();
                prefetch(host, &input[taken..], AHEAD);
                if request.verb.is_without_gate() {
                    special = Some((request, operands));
                    break;
                }
                if self.broken {
                    output.push(&encode_answer(Status::Skipped, 0));
                } else {
                    served.count(request.verb);
                    self.broken = !carry_out(host, request, operands, output);
                }
                self.broken &= request.more;
            }
            drop(admission);
            let Some((request, operands)) = special else { return Ok(taken) };
            self.broken = false;
            answer_special(host, guest, request, operands, output)?;
        }
    }

    /// Takes the greeting of a new connection.
    fn greet(
        &mut self,
        host: &Arc<Host>,
        greeting: &[u8; GREETING_BYTES],
        output: &mut Output,
    ) -> Result<(), Gone> {
        let hello = Hello::decode(greeting).ok_or(Gone::Nonsense)?;
        let mut welcome = Welcome {
            version: VERSION,
            status: GreetingStatus::LetIn,
            server: host.server.0,
            servers: host.servers,
            connection: 0,
            region_bytes: host.words.bytes(),
            region_id: host.region_id,
            lease_ms: host.lease_ms,
        };
        let pass = (!hello.control).then(|| Pass::get(host, hello.by_card));
        if hello.version != VERSION {
            welcome.status = GreetingStatus::OtherVersion;
        } else if (hello.server, hello.servers) != (host.server.0, host.servers)
            || hello.meant != host.call_server.as_ref().map_or(0, |call_server| call_server.me.0)
        {
            welcome.status = GreetingStatus::OtherServer;
        } else if matches!(pass, Some(None)) {
            welcome.status = GreetingStatus::OtherWay;
        } else if host.guests.fetch_add(1, Ordering::Relaxed) >= host.connections_max {
            host.guests.fetch_sub(1, Ordering::Relaxed);
            welcome.status = GreetingStatus::Full;
        } else {
            let (who, pass) = (Incarnation(hello.incarnation), pass.flatten());
            match host.lives.enter(who, hello.replaces, host.now_ms()) {
                Ok((life, number, admission)) => {
                    welcome.connection = number;
                    let replies = host.call_server.as_ref().zip(self.notify.clone()).map(
                        |(call_server, notify)| {
                            let (admission, lease) =
                                (Arc::clone(&admission), Arc::clone(&call_server.lease));
                            let admission = Box::new(GateAdmission { admission, lease });
                            call_server.requests.connection(admission, notify)
                        },
                    );
                    let has_left = matches!(replies, Some(None));
                    let (replies, served) = (replies.flatten(), &host.served);
                    let host = Arc::clone(host);
                    let guest = Guest { life, number, admission, host, pass, who, replies };
                    if has_left {
                        // Its sender then knows that nothing was begun.
                        return Err(Gone::Ended);
                    }
                    Tally::one(&served.let_in);
                    self.guest = Some(guest);
                }
                Err(denied) => {
                    host.guests.fetch_sub(1, Ordering::Relaxed);
                    welcome.status = match denied {
                        Denied::Fenced => GreetingStatus::Fenced,
                        // The client may come again.
                        Denied::Uncut => return Err(Gone::Uncut),
                    };
                }
            }
        }
        output.push(&welcome.encode());
        self.ends = self.guest.is_none();
        self.refused = self.ends.then_some(welcome.status);
        Ok(())
    }
}

/// Fetches the memory that the READ `ahead` requests further on will need, if those are READs: a hint, right
/// for any bytes.
#[inline]
fn prefetch(host: &Host, coming: &[u8], ahead: usize) {
    let at = ahead * REQUEST_BYTES;
    let Some(head) = coming.get(at..at + REQUEST_BYTES) else { return };
    if head[0] == RequestKind::Read as u8 {
        let length = word_at(head, 0) >> 32;
        host.words.prefetch((word_at(head, 8) / 8) as usize, length as usize);
    }
}

/// Carries out a request that touches memory; returns whether it was done.
#[inline(always)]
pub(super) fn carry_out(
    host: &Host,
    request: Request,
    operands: &[u8],
    output: &mut Output,
) -> bool {
    let Request { verb, offset, length, .. } = request;
    let before = output.end();
    let done = match verb {
        RequestKind::Read => read(host, offset, length as usize, output),
        RequestKind::Write => write(host, offset, operands, output),
        RequestKind::Cas | RequestKind::Faa | RequestKind::WriteWord => {
            atomic(host, verb, offset, operands, output)
        }
        RequestKind::Rpc => call(host, offset, operands, output),
        RequestKind::Beat
        | RequestKind::Fence
        | RequestKind::IsDead
        | RequestKind::Bye
        | RequestKind::Ask
        | RequestKind::Call => {
            output.push(&encode_answer(Status::Done, 0));
            Ok(())
        }
    };
    if let Err(error) = &done {
        output.truncate(before);
        output.push(&encode_answer(Status::of_error(&error.kind), 0));
    }
    done.is_ok()
}

/// Returns the words around `offset`, if they all exist.
#[inline]
fn region(host: &Host, offset: u64, bytes: usize) -> Result<&Words, OpError> {
    if offset > GlobalAddr::OFFSET_MAX {
        return Err(access::out_of_bounds(None, GlobalAddr::new(host.server, 0), bytes));
    }
    access::check(Some(&*host.words), GlobalAddr::new(host.server, offset), bytes)
}

#[inline(always)]
fn read(host: &Host, offset: u64, len: usize, output: &mut Output) -> Result<(), OpError> {
    let words = region(host, offset, len)?;
    let (head, content) = output.room(ANSWER_BYTES + len).split_at_mut(ANSWER_BYTES);
    head.copy_from_slice(&encode_answer(Status::Done, len as u32));
    words.load_bytes(offset as usize, content);
    Ok(())
}

#[inline]
fn write(host: &Host, offset: u64, bytes: &[u8], output: &mut Output) -> Result<(), OpError> {
    region(host, offset, bytes.len())?.store_bytes(offset as usize, bytes);
    output.push(&encode_answer(Status::Done, 0));
    Ok(())
}

#[inline]
fn atomic(
    host: &Host,
    verb: RequestKind,
    offset: u64,
    operands: &[u8],
    output: &mut Output,
) -> Result<(), OpError> {
    region(host, offset, 8)?;
    let addr = GlobalAddr::new(host.server, offset);
    let (words, word) = access::word(Some(&*host.words), addr)?;
    let old = match verb {
        RequestKind::Cas => words.cas(word, word_at(operands, 0), word_at(operands, 8)),
        RequestKind::Faa => words.faa(word, word_at(operands, 0)),
        _ => {
            words.store(word, &[word_at(operands, 0)]);
            output.push(&encode_answer(Status::Done, 0));
            return Ok(());
        }
    };
    output.push(&encode_answer(Status::Done, 8));
    output.push(&old.to_le_bytes());
    Ok(())
}

fn call(host: &Host, target: u64, request: &[u8], output: &mut Output) -> Result<(), OpError> {
    let (service, room) = (ServiceId(target as u16), (target >> 32) as usize);
    let services = host.services.read().unwrap_or_else(PoisonError::into_inner);
    let Some(handler) = services.get(&service).cloned() else {
        let kind = OpErrorKind::NoService { service: service.0 };
        return Err(OpError { server: host.server, kind });
    };
    drop(services);
    let at = output.end();
    let room = room.min(LENGTH_MAX);
    let (head, content) = output.room(ANSWER_BYTES + room).split_at_mut(ANSWER_BYTES);
    // Content that others have read is not for the handler's caller.
    content.fill(0);
    let len = handler.call(&host.words, request, content).len.min(room);
    head.copy_from_slice(&encode_answer(Status::Done, len as u32));
    output.truncate(at + ANSWER_BYTES + len);
    Ok(())
}

/// Carries out a request about lives or ways, without a admission.
fn answer_special(
    host: &Host,
    guest: &Guest,
    request: Request,
    operands: &[u8],
    output: &mut Output,
) -> Result<(), Gone> {
    let now_ms = host.now_ms();
    match request.verb {
        RequestKind::Call => {
            let (Some(call_server), Some(replies)) = (&host.call_server, &guest.replies) else {
                return Err(Gone::Nonsense);
            };
            let (number, service) = called(&request);
            let is_taken = replies.take_in(
                &call_server.requests,
                guest.who,
                number,
                service,
                operands.to_vec(),
            );
            return if is_taken { Ok(()) } else { Err(Gone::Nonsense) };
        }
        RequestKind::Fence => {
            let who = Incarnation(word_at(operands, 0));
            // Server 0 decides on deaths; clients ask the others after it.
            let is_judge = host.server == ServerId(0);
            let status = if is_judge && !host.lives.is_dead(who, now_ms) {
                Status::StillAlive
            } else {
                // A client that gets no answer tries again.
                host.lives.fence(who, now_ms).map_err(|_| Gone::Uncut)?;
                tracing::info!(compute_server = %format_args!("{:016x}", who.0), "cut off");
                Tally::one(&host.served.fenced);
                Status::Done
            };
            output.push(&encode_answer(status, 0));
        }
        RequestKind::Beat => {
            let status = if guest.life.beat(now_ms) { Status::Done } else { Status::Fenced };
            output.push(&encode_answer(status, 0));
        }
        RequestKind::IsDead => {
            let is_dead = host.lives.is_dead(Incarnation(word_at(operands, 0)), now_ms);
            output.push(&encode_answer(Status::Done, 1));
            output.push(&[is_dead.into()]);
        }
        RequestKind::Ask => {
            let goes = guest.pass.as_ref().is_some_and(|pass| pass.by_card);
            let Some(offer) = host.offer.as_ref().filter(|_| goes) else {
                output.push(&encode_answer(Status::NoService, 0));
                return Ok(());
            };
            // A connection has one way at a time.
            guest.admission.cut_ways().map_err(|_| Gone::Uncut)?;
            let caller = Caller::new(&guest.host, &guest.life, &guest.admission);
            let offered = offer.answer(operands, caller).ok_or(Gone::Nonsense)?;
            // If the admission has been shut meanwhile, the caller notices, and does not send this answer.
            if offered.way.is_none_or(|way| guest.admission.add(way)) {
                output.push(&encode_answer(Status::Done, offered.answer.len() as u32));
                output.push(&offered.answer);
            }
        }
        _ => {
            guest.life.end();
            output.push(&encode_answer(Status::Done, 0));
        }
    }
    Ok(())
}
