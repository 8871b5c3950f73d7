//! Wire format: encodes and decodes the bytes of a connection, as `docs/design/wire.md` specifies.
//!
//! All integers are little-endian. A connection begins with a [`Hello`] and a [`Welcome`], 64 bytes
//! each. Then the client sends requests, and the server answers each in the order of the requests:
//!
//! ```text
//! request:  verb u8 | more u8 | 0 u16 | length u32 | offset u64 | operands
//! answer:   status u8 | 0 u8 | 0 u16 | length u32 | content
//! ```
//!
//! [`Status::Reply`] answers calls ([`RequestKind::Call`]) instead, whenever their replies are ready.
//!
//! No decoder trusts the other side: it refuses every message that is not exactly of this form.

use crate::calls::Outcome;
use crate::codec::{DecodeError, Reader, Writer};
use crate::{CALL_BYTES_MAX, Capabilities, Incarnation, OpErrorKind, ServerId, ServiceId};

/// Version of this protocol. Both sides must speak the same.
pub(crate) const VERSION: u32 = 2;
/// First bytes of both greetings.
const MAGIC: [u8; 8] = *b"FarleafT";
/// Bytes of a greeting.
pub(crate) const GREETING_BYTES: usize = 64;
/// Bytes of a request in front of its operands.
pub(crate) const REQUEST_BYTES: usize = 16;
/// Bytes of an answer in front of its content.
pub(crate) const ANSWER_BYTES: usize = 8;
/// Most bytes that a READ or WRITE moves, or that an RPC's request or reply has.
pub(crate) const LENGTH_MAX: usize = 2 << 20;
/// Most bytes of a question.
pub(crate) const QUESTION_MAX: usize = 256;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RequestKind {
    /// `length` bytes from `offset`. No operands; they are the answer's content.
    Read = 1,
    /// Stores the `length` bytes that follow at `offset`.
    Write = 2,
    /// Operands: expected, new. Content: the word that was there.
    Cas = 3,
    /// Operand: the addend. Content: the word that was there.
    Faa = 4,
    /// `offset`: number of the service in the low 16 bits, room for the reply in the high 32. The
    /// `length` bytes that follow are the request.
    Rpc = 5,
    /// Operand: an incarnation, to be cut off.
    Fence = 6,
    /// Operand: an incarnation. Content: one byte, whether it is dead.
    IsDead = 7,
    /// Nothing but a sign of life.
    Beat = 8,
    /// This compute server ends in order; its incarnation is dead from here on.
    Bye = 9,
    /// Operand: the new value of the aligned word at `offset`.
    WriteWord = 10,
    /// The `length` bytes that follow are a question about another way to the words, see
    /// [`super::offer`]. Content: the answer.
    Ask = 11,
    /// `offset`: the service in the low 16 bits, the call's number in the high 48. The `length` bytes
    /// that follow are the request. Its answer is a [`Status::Reply`], in any order.
    Call = 12,
}

impl RequestKind {
    #[inline]
    fn of(byte: u8) -> Option<RequestKind> {
        use RequestKind::{
            Ask, Beat, Bye, Call, Cas, Faa, Fence, IsDead, Read, Rpc, Write, WriteWord,
        };
        // In the order of their numbers.
        const ALL: [RequestKind; 12] =
            [Read, Write, Cas, Faa, Rpc, Fence, IsDead, Beat, Bye, WriteWord, Ask, Call];
        ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }

    /// Returns whether compute servers take it from each other.
    pub(crate) fn is_for_peers(self) -> bool {
        !matches!(
            self,
            RequestKind::Rpc | RequestKind::IsDead | RequestKind::Beat | RequestKind::Bye
        )
    }

    /// Returns whether it is carried out without the connection's gate.
    #[inline]
    pub(crate) fn is_without_gate(self) -> bool {
        matches!(
            self,
            RequestKind::Fence
                | RequestKind::IsDead
                | RequestKind::Beat
                | RequestKind::Bye
                | RequestKind::Ask
                | RequestKind::Call
        )
    }

    /// Returns the length of its operands, if that is fixed.
    #[inline]
    fn operand_bytes(self) -> Option<usize> {
        match self {
            RequestKind::Read | RequestKind::Beat | RequestKind::Bye => Some(0),
            RequestKind::Faa
            | RequestKind::Fence
            | RequestKind::IsDead
            | RequestKind::WriteWord => Some(8),
            RequestKind::Cas => Some(16),
            RequestKind::Write | RequestKind::Rpc | RequestKind::Ask | RequestKind::Call => None,
        }
    }
}

/// The beginning of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) verb: RequestKind,
    /// The next request is of the same chain: not carried out if this one fails.
    pub(crate) more: bool,
    pub(crate) length: u32,
    pub(crate) offset: u64,
}

/// A request that is not of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Request {
    #[inline]
    pub(crate) fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = self.verb as u8;
        bytes[1] = self.more.into();
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// The request, if it is a READ that is not in front of others in a chain.
    #[inline(always)]
    pub(crate) fn read_alone(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let first = word_at(bytes, 0);
        let (kind, length) = (first as u32, (first >> 32) as u32);
        let is_read = kind == RequestKind::Read as u32 && length as usize <= LENGTH_MAX;
        let offset = word_at(bytes, 8);
        is_read.then_some(Request { verb: RequestKind::Read, more: false, length, offset })
    }

    #[inline]
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, Malformed> {
        let [verb, more @ 0..=1, 0, 0, ..] = *bytes else { return Err(Malformed) };
        let verb = RequestKind::of(verb).ok_or(Malformed)?;
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let offset = word_at(bytes, 8);
        let request = Request { verb, more: more == 1, length, offset };
        if verb == RequestKind::Read {
            // Most are.
            return if length as usize <= LENGTH_MAX { Ok(request) } else { Err(Malformed) };
        }
        let fits = match verb.operand_bytes() {
            Some(operands) => length as usize == operands,
            None if verb == RequestKind::Call => length as usize <= CALL_BYTES_MAX,
            None => length as usize <= LENGTH_MAX,
        };
        let fits = fits && (verb != RequestKind::Ask || length as usize <= QUESTION_MAX);
        let room_fits = verb != RequestKind::Rpc || offset >> 32 <= LENGTH_MAX as u64;
        if !fits || !room_fits {
            return Err(Malformed);
        }
        Ok(request)
    }

    /// Bytes that follow.
    #[inline]
    pub(crate) fn operand_bytes(self) -> usize {
        self.verb.operand_bytes().unwrap_or(self.length as usize)
    }
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// The content is the verb's result.
    Done = 0,
    OutOfBounds = 1,
    Misaligned = 2,
    NoService = 3,
    StillAlive = 4,
    /// This incarnation has been cut off: nothing was done, and nothing ever will be.
    Fenced = 5,
    /// An operation in front of it in its chain failed: nothing was done.
    Skipped = 6,
    /// The reply to a call. The content begins with a word: how the call ended in the low 16 bits, its
    /// number in the high 48.
    Reply = 7,
}

impl Status {
    #[inline]
    fn of(byte: u8) -> Option<Status> {
        use Status::{
            Done, Fenced, Misaligned, NoService, OutOfBounds, Reply, Skipped, StillAlive,
        };
        const ALL: [Status; 8] =
            [Done, OutOfBounds, Misaligned, NoService, StillAlive, Fenced, Skipped, Reply];
        ALL.get(usize::from(byte)).copied()
    }

    /// Returns the status that stands for an error.
    pub(crate) fn of_error(kind: &OpErrorKind) -> Status {
        match kind {
            OpErrorKind::Misaligned { .. } => Status::Misaligned,
            OpErrorKind::NoService { .. } => Status::NoService,
            OpErrorKind::StillAlive => Status::StillAlive,
            OpErrorKind::Fenced => Status::Fenced,
            _ => Status::OutOfBounds,
        }
    }
}

/// The beginning of an answer.
#[inline]
pub(crate) fn encode_answer(status: Status, length: u32) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[0] = status as u8;
    bytes[4..].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Status and length of an answer.
#[inline]
pub(crate) fn decode_answer(bytes: &[u8; ANSWER_BYTES]) -> Result<(Status, usize), Malformed> {
    let word = u64::from_le_bytes(*bytes);
    let length = (word >> 32) as usize;
    if word as u32 != 0 {
        return decode_other(word as u32, length);
    }
    // Most are done.
    if length <= LENGTH_MAX { Ok((Status::Done, length)) } else { Err(Malformed) }
}

#[cold]
fn decode_other(status: u32, length: usize) -> Result<(Status, usize), Malformed> {
    let status = u8::try_from(status).ok().and_then(Status::of).ok_or(Malformed)?;
    let fits = match status {
        Status::Reply => (REPLY_WORD_BYTES..=REPLY_WORD_BYTES + CALL_BYTES_MAX).contains(&length),
        _ => length == 0,
    };
    if fits { Ok((status, length)) } else { Err(Malformed) }
}

/// Bytes of a reply's content in front of the reply.
pub(crate) const REPLY_WORD_BYTES: usize = 8;

/// Head of a call with a request of `length` bytes.
pub(crate) fn call_head(number: u64, service: ServiceId, length: usize) -> Request {
    let offset = number << 16 | u64::from(service.0);
    Request { verb: RequestKind::Call, more: false, length: length as u32, offset }
}

/// Number and service of a call.
pub(crate) fn called(request: &Request) -> (u64, ServiceId) {
    (request.offset >> 16, ServiceId(request.offset as u16))
}

/// Head of a reply of `length` bytes.
pub(crate) fn reply_head(number: u64, outcome: Outcome, length: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let content = (REPLY_WORD_BYTES + length) as u32;
    bytes[..8].copy_from_slice(&encode_answer(Status::Reply, content));
    bytes[8..].copy_from_slice(&(number << 16 | outcome as u64).to_le_bytes());
    bytes
}

/// Number, outcome and bytes of a reply, from its content.
pub(crate) fn decode_reply(content: &[u8]) -> Result<(u64, Outcome, &[u8]), Malformed> {
    let (word, reply) = content.split_first_chunk().ok_or(Malformed)?;
    let word = u64::from_le_bytes(*word);
    let outcome = u8::try_from(word & 0xffff).ok().and_then(Outcome::of).ok_or(Malformed)?;
    if outcome != Outcome::Done && !reply.is_empty() {
        return Err(Malformed);
    }
    Ok((word >> 16, outcome, reply))
}

/// First message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// This connection carries signs of life, and ends with its compute server.
    pub(crate) control: bool,
    /// Its operations go by the server's card, not by this connection.
    pub(crate) by_card: bool,
    pub(crate) incarnation: u64,
    /// The number of the intended server, and of all servers.
    pub(crate) server: u16,
    pub(crate) servers: u16,
    /// The connection that this one replaces; 0 for none.
    pub(crate) replaces: u64,
    /// The life of the intended compute server; 0 for a memory server.
    pub(crate) meant: u64,
}

impl Hello {
    /// Greeting of a thread to the life `meant` of `server`, in a pool of one memory server.
    pub(crate) fn to(server: ServerId, meant: u64, from: Incarnation) -> Hello {
        Hello {
            version: VERSION,
            control: false,
            by_card: false,
            incarnation: from.0,
            server: server.0,
            servers: 1,
            replaces: 0,
            meant,
        }
    }

    pub(crate) fn encode(self) -> [u8; GREETING_BYTES] {
        let mut out = Writer::default();
        out.put(&MAGIC).u32(self.version).flag(self.control).flag(self.by_card).u16(0);
        out.u64(self.incarnation).u16(self.server).u16(self.servers).u32(0);
        out.u64(self.replaces).u64(self.meant).padded()
    }

    /// `None` if it is no greeting of this protocol. From another version, only the version is read.
    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Hello> {
        let hello = Hello::read(&mut Reader::new(bytes)).ok()?;
        let is_whole = hello.encode() == *bytes && hello.incarnation != 0;
        (hello.version != VERSION || is_whole).then_some(hello)
    }

    fn read(input: &mut Reader<'_>) -> Result<Hello, DecodeError> {
        input.exactly(&MAGIC, "a greeting")?;
        Ok(Hello {
            version: input.u32()?,
            control: input.u8()? == 1,
            by_card: input.u8()? == 1,
            incarnation: input.skip(2)?.u64()?,
            server: input.u16()?,
            servers: input.u16()?,
            replaces: input.skip(4)?.u64()?,
            meant: input.u64()?,
        })
    }
}

/// Decision of a server to let a client in, or its reason not to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub(crate) enum GreetingStatus {
    #[default]
    #[error("let in")]
    LetIn = 0,
    #[error("it speaks another version of the protocol")]
    OtherVersion = 1,
    /// The server has another number, or the pool another number of servers.
    #[error("it looks for a server of another number, or of another pool")]
    OtherServer = 2,
    #[error("its compute server has been cut off")]
    Fenced = 3,
    /// As many connections as it allows are open.
    #[error("there are as many connections as are allowed")]
    Full = 4,
    /// Others reach the words another way, and the two ways' atomics are not atomic against each other.
    #[error("others reach the words another way (by RDMA, or by TCP alone)")]
    OtherWay = 5,
}

/// Answer of a server to a [`Hello`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) version: u32,
    pub(crate) status: GreetingStatus,
    pub(crate) server: u16,
    pub(crate) servers: u16,
    /// The connection's number, for [`Hello::replaces`].
    pub(crate) connection: u64,
    pub(crate) region_bytes: u64,
    /// Identity of the memory: another number once its content is not the same.
    pub(crate) region_id: u64,
    /// Time without a sign of life after which a compute server counts as dead.
    pub(crate) lease_ms: u32,
}

impl Welcome {
    pub(crate) fn encode(self) -> [u8; GREETING_BYTES] {
        let mut out = Writer::default();
        out.put(&MAGIC).u32(self.version).u8(self.status as u8).put(&[0; 3]);
        out.u64(self.connection).u16(self.server).u16(self.servers).u32(self.lease_ms);
        out.u64(self.region_bytes).u64(self.region_id).padded()
    }

    /// `None` if it is no greeting of this protocol.
    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Welcome> {
        Welcome::read(&mut Reader::new(bytes)).ok()
    }

    fn read(input: &mut Reader<'_>) -> Result<Welcome, DecodeError> {
        use GreetingStatus::{Fenced, Full, LetIn, OtherServer, OtherVersion, OtherWay};
        let statuses = [LetIn, OtherVersion, OtherServer, Fenced, Full, OtherWay];
        input.exactly(&MAGIC, "a greeting")?;
        Ok(Welcome {
            version: input.u32()?,
            status: input.one_of(&statuses, |status| status as u8, "a status")?,
            connection: input.skip(3)?.u64()?,
            server: input.u16()?,
            servers: input.u16()?,
            lease_ms: input.u32()?,
            region_bytes: input.u64()?,
            region_id: input.u64()?,
        })
    }
}

/// The word at byte `at`.
///
/// # Panics
/// If there are no 8 bytes.
#[inline]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Promises of this fabric: only the server's own CPU touches its words, one request after the other once it
/// has come in whole.
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    write_vs_rmw: true,
    rmw_global: true,
    cpu_visible: true,
    // A WRITE runs after its last byte has come, under the same lock that a fence takes.
    crash_atomic_bytes: LENGTH_MAX as u32,
    ..Capabilities::NONE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_decode_as_they_were_encoded() {
        for (verb, length) in [
            (RequestKind::Read, 2 << 20),
            (RequestKind::Write, 0),
            (RequestKind::Cas, 16),
            (RequestKind::Faa, 8),
            (RequestKind::Rpc, 77),
            (RequestKind::Fence, 8),
            (RequestKind::IsDead, 8),
            (RequestKind::Beat, 0),
            (RequestKind::Bye, 0),
            (RequestKind::WriteWord, 8),
            (RequestKind::Ask, 256),
        ] {
            let request = Request { verb, more: length == 16, length, offset: 0x1234_5678_9abc };
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn calls_and_replies_decode_as_they_were_encoded() {
        let last = (1 << 48) - 1;
        let request = call_head(last, ServiceId(7), CALL_BYTES_MAX);
        assert_eq!(Request::decode(&request.encode()), Ok(request));
        assert_eq!(called(&request), (last, ServiceId(7)));
        let long = Request { length: CALL_BYTES_MAX as u32 + 1, ..request };
        assert_eq!(Request::decode(&long.encode()), Err(Malformed));
        let bytes = [&reply_head(5, Outcome::Done, 3)[..], b"abc"].concat();
        let head = bytes.first_chunk().expect("a head");
        assert_eq!(decode_answer(head), Ok((Status::Reply, 11)));
        assert_eq!(decode_reply(&bytes[8..]), Ok((5, Outcome::Done, &b"abc"[..])));
        // Too short, too long, an unknown outcome, and bytes with an outcome that has none.
        for length in [7, CALL_BYTES_MAX as u32 + 9] {
            assert_eq!(decode_answer(&encode_answer(Status::Reply, length)), Err(Malformed));
        }
        assert_eq!(decode_reply(&(5_u64 << 16 | 3).to_le_bytes()), Err(Malformed));
        let unknown = [&(5_u64 << 16 | 2).to_le_bytes()[..], b"a"].concat();
        assert_eq!(decode_reply(&unknown), Err(Malformed));
    }

    #[test]
    fn a_malformed_request_is_refused() {
        let good = Request { verb: RequestKind::Cas, more: false, length: 16, offset: 8 }.encode();
        for (at, byte) in [(0, 0), (0, 13), (1, 2), (2, 1), (3, 1), (4, 15), (7, 1)] {
            let mut bytes = good;
            bytes[at] = byte;
            assert_eq!(Request::decode(&bytes), Err(Malformed), "byte {at}");
        }
        let long = Request {
            verb: RequestKind::Write,
            more: false,
            length: LENGTH_MAX as u32 + 1,
            offset: 0,
        };
        assert_eq!(Request::decode(&long.encode()), Err(Malformed));
        let room = Request { verb: RequestKind::Rpc, more: false, length: 1, offset: u64::MAX };
        assert_eq!(Request::decode(&room.encode()), Err(Malformed));
    }

    #[test]
    fn greetings_decode_as_they_were_encoded() {
        let hello = Hello {
            version: VERSION,
            control: true,
            by_card: true,
            incarnation: 7,
            server: 3,
            servers: 4,
            replaces: 1 << 40,
            meant: 11,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let newer = Hello { version: 9, ..hello };
        assert_eq!(Hello::decode(&newer.encode()).map(|hello| hello.version), Some(9));
        assert_eq!(Hello::decode(&Hello { incarnation: 0, ..hello }.encode()), None);
        let mut foreign = hello.encode();
        foreign[0] = b'G';
        assert_eq!(Hello::decode(&foreign), None);
        let welcome = Welcome {
            version: VERSION,
            status: GreetingStatus::Full,
            server: 1,
            servers: 2,
            connection: 5,
            region_bytes: 1 << 30,
            region_id: 0x0123_4567_89ab_cdef,
            lease_ms: 500,
        };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    }
}
