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
        let mut bytes = vec![0; BYTES];
        bytes[..4].copy_from_slice(&self.version.to_le_bytes());
        bytes[4..8].copy_from_slice(&[
            self.connects.into(),
            self.mtu,
            self.flights,
            self.is_ethernet.into(),
        ]);
        put_ends(&mut bytes, &self.ends);
        bytes[36..38].copy_from_slice(&self.calls.to_le_bytes());
        bytes
    }

    /// `None` if it is no question. From another version, only the version is read.
    pub(super) fn decode(bytes: &[u8]) -> Option<Question> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let question = Question {
            version: u32_at(bytes, 0),
            connects: bytes[4] == 1,
            mtu: bytes[5],
            flights: bytes[6],
            is_ethernet: bytes[7] == 1,
            ends: ends(bytes),
            calls: calls(bytes),
        };
        let is_whole = question.encode() == bytes && (1..=5).contains(&question.mtu);
        (question.version != VERSION || is_whole).then_some(question)
    }
}

impl PairAnswer {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        bytes[..4].copy_from_slice(&self.version.to_le_bytes());
        bytes[4..8].copy_from_slice(&[
            self.outcome as u8,
            self.mtu,
            self.answers,
            self.is_ethernet.into(),
        ]);
        put_ends(&mut bytes, &self.ends);
        bytes[34] = u8::from(self.torn_words) | u8::from(self.global_atomics) << 1;
        bytes[36..38].copy_from_slice(&self.calls.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.key.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.base.to_le_bytes());
        bytes
    }

    /// `None` if it is no answer.
    pub(super) fn decode(bytes: &[u8]) -> Option<PairAnswer> {
        use PairOutcome::{Done, NoQueuePair, OtherNetwork, OtherVersion};
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let outcomes = [Done, OtherVersion, OtherNetwork, NoQueuePair];
        let mut base = [0; 8];
        base.copy_from_slice(&bytes[48..56]);
        let answer = PairAnswer {
            version: u32_at(bytes, 0),
            outcome: outcomes.into_iter().find(|outcome| *outcome as u8 == bytes[4])?,
            mtu: bytes[5],
            answers: bytes[6],
            is_ethernet: bytes[7] == 1,
            ends: ends(bytes),
            torn_words: bytes[34] & 1 != 0,
            global_atomics: bytes[34] & 2 != 0,
            calls: calls(bytes),
            key: u32_at(bytes, 40),
            base: u64::from_le_bytes(base),
        };
        let is_whole = answer.encode() == bytes && (1..=5).contains(&answer.mtu);
        (answer.version != VERSION || is_whole).then_some(answer)
    }
}

fn put_ends(bytes: &mut [u8], ends: &Ends) {
    bytes[8..12].copy_from_slice(&ends.queue.to_le_bytes());
    bytes[12..16].copy_from_slice(&ends.first_packet.to_le_bytes());
    bytes[16..32].copy_from_slice(&ends.gid);
    bytes[32..34].copy_from_slice(&ends.lid.to_le_bytes());
}

fn ends(bytes: &[u8; BYTES]) -> Ends {
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[16..32]);
    Ends {
        queue: u32_at(bytes, 8),
        first_packet: u32_at(bytes, 12),
        gid,
        lid: u16::from_le_bytes([bytes[32], bytes[33]]),
    }
}

fn calls(bytes: &[u8; BYTES]) -> u16 {
    u16::from_le_bytes([bytes[36], bytes[37]])
}

fn u32_at(bytes: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
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
