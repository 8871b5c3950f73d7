//! Queue pair exchange: 64 bytes each way, by which both ends of a queue pair describe themselves.
//!
//! They travel by verb 11 of `docs/design/wire.md`, little-endian.
//!
//! | bytes | question | answer |
//! |---|---|---|
//! | 0..4 | version | version |
//! | 4 | 0 describe, 1 connect | 0 done, else why not |
//! | 5 | MTU's number | the smaller of both |
//! | 6 | READs and atomics that this end has in flight | that it answers |
//! | 7 | 1 on Ethernet | 1 on Ethernet |
//! | 8..12 | queue pair | queue pair |
//! | 12..16 | number of the first packet | number of the first packet |
//! | 16..32 | GID | GID |
//! | 32..34 | LID | LID |
//! | 34 | | findings: 1 torn words, 2 global atomics |
//! | 36..38 | RPCs that are to go as messages at a time, 0 for none | that may |
//! | 40..44 | | key of the words |
//! | 48..56 | | where they begin |

use crate::codec::{DecodeError, Reader, Writer};
use crate::raw::verbs::Ends;

/// Version of this exchange. Both sides must speak the same.
pub(super) const VERSION: u32 = 2;
const BYTES: usize = 64;

/// Question of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) version: u32,
    /// The client wants a queue pair; else only a description.
    pub(super) connects: bool,
    pub(super) mtu: u8,
    pub(super) flights: u8,
    pub(super) is_ethernet: bool,
    pub(super) ends: Ends,
    /// RPCs that the client wants to have under way as messages, each with a receive for its answer.
    pub(super) calls: u16,
}

/// Outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PairOutcome {
    Done = 0,
    OtherVersion = 1,
    /// One side is on Ethernet, the other on InfiniBand.
    OtherNetwork = 2,
    /// The server's card gives no more queue pairs.
    NoQueuePair = 3,
}

/// Answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PairAnswer {
    pub(super) version: u32,
    pub(super) outcome: PairOutcome,
    pub(super) mtu: u8,
    pub(super) answers: u8,
    pub(super) is_ethernet: bool,
    pub(super) ends: Ends,
    pub(super) torn_words: bool,
    pub(super) global_atomics: bool,
    /// Receives that are posted for requests; no more than the client wanted.
    pub(super) calls: u16,
    pub(super) key: u32,
    pub(super) base: u64,
}

impl Question {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(self.version).flag(self.connects).u8(self.mtu).u8(self.flights);
        put_ends(out.flag(self.is_ethernet), &self.ends).u16(0).u16(self.calls);
        out.padded::<BYTES>().to_vec()
    }

    /// `None` if it is no question. From another version, only the version is read.
    pub(super) fn decode(bytes: &[u8]) -> Option<Question> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let question = Question::read(&mut Reader::new(bytes)).ok()?;
        let is_whole = question.encode() == bytes && (1..=5).contains(&question.mtu);
        (question.version != VERSION || is_whole).then_some(question)
    }

    fn read(input: &mut Reader<'_>) -> Result<Question, DecodeError> {
        Ok(Question {
            version: input.u32()?,
            connects: input.u8()? == 1,
            mtu: input.u8()?,
            flights: input.u8()?,
            is_ethernet: input.u8()? == 1,
            ends: ends(input)?,
            calls: input.skip(2)?.u16()?,
        })
    }
}

impl PairAnswer {
    pub(super) fn encode(self) -> Vec<u8> {
        let findings = u8::from(self.torn_words) | u8::from(self.global_atomics) << 1;
        let mut out = Writer::default();
        out.u32(self.version).u8(self.outcome as u8).u8(self.mtu).u8(self.answers);
        put_ends(out.flag(self.is_ethernet), &self.ends).u8(findings).u8(0);
        out.u16(self.calls).u16(0).u32(self.key).u32(0).u64(self.base);
        out.padded::<BYTES>().to_vec()
    }

    /// `None` if it is no answer.
    pub(super) fn decode(bytes: &[u8]) -> Option<PairAnswer> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let answer = PairAnswer::read(&mut Reader::new(bytes)).ok()?;
        let is_whole = answer.encode() == bytes && (1..=5).contains(&answer.mtu);
        (answer.version != VERSION || is_whole).then_some(answer)
    }

    fn read(input: &mut Reader<'_>) -> Result<PairAnswer, DecodeError> {
        use PairOutcome::{Done, NoQueuePair, OtherNetwork, OtherVersion};
        let outcomes = [Done, OtherVersion, OtherNetwork, NoQueuePair];
        let version = input.u32()?;
        let outcome = input.one_of(&outcomes, |outcome| outcome as u8, "an outcome")?;
        let (mtu, answers, is_ethernet) = (input.u8()?, input.u8()?, input.u8()? == 1);
        let (ends, findings) = (ends(input)?, input.u8()?);
        Ok(PairAnswer {
            version,
            outcome,
            mtu,
            answers,
            is_ethernet,
            ends,
            torn_words: findings & 1 != 0,
            global_atomics: findings & 2 != 0,
            calls: input.skip(1)?.u16()?,
            key: input.skip(2)?.u32()?,
            base: input.skip(4)?.u64()?,
        })
    }
}

fn put_ends<'w>(out: &'w mut Writer, ends: &Ends) -> &'w mut Writer {
    out.u32(ends.queue).u32(ends.first_packet).put(&ends.gid).u16(ends.lid)
}

fn ends(input: &mut Reader<'_>) -> Result<Ends, DecodeError> {
    let (queue, first_packet) = (input.u32()?, input.u32()?);
    Ok(Ends { queue, first_packet, gid: input.array()?, lid: input.u16()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends { queue: 17, first_packet: 0x12_3456, gid: [9; 16], lid: 0x1122 };

    #[test]
    fn questions_and_answers_decode_as_they_were_encoded() {
        let question = Question {
            version: VERSION,
            connects: true,
            mtu: 5,
            flights: 16,
            is_ethernet: true,
            ends: ENDS,
            calls: 0x1234,
        };
        assert_eq!(Question::decode(&question.encode()), Some(question));
        let answer = PairAnswer {
            version: VERSION,
            outcome: PairOutcome::NoQueuePair,
            mtu: 3,
            answers: 128,
            is_ethernet: false,
            ends: ENDS,
            torn_words: true,
            global_atomics: true,
            calls: 16,
            key: 0x8765_4321,
            base: 0x7fff_1234_5678_9000,
        };
        assert_eq!(PairAnswer::decode(&answer.encode()), Some(answer));
    }

    #[test]
    fn a_malformed_question_or_answer_is_refused() {
        let question = Question {
            version: VERSION,
            connects: false,
            mtu: 1,
            flights: 1,
            is_ethernet: false,
            ends: ENDS,
            calls: 16,
        };
        let good = question.encode();
        assert_eq!(Question::decode(&good[1..]), None);
        for (at, byte) in [(4, 2), (5, 0), (5, 6), (7, 2), (34, 1), (38, 1), (63, 1)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(Question::decode(&bytes), None, "byte {at}");
        }
        // Another version may have any bytes behind its number.
        let mut bytes = good;
        (bytes[0], bytes[63]) = (9, 9);
        assert_eq!(Question::decode(&bytes).map(|question| question.version), Some(9));
    }
}
