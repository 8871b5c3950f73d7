//! Offload messages: encode one request and one reply, little-endian, every byte accounted for.
//!
//! Request, 88 bytes and what follows them, together exactly as long as the lengths say:
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 4 | `FDO1` |
//! | 4 | 1 | operation: 1 get, 2 insert, 3 update, 4 upsert, 5 remove, 6 scan |
//! | 5 | 1 | level of the node |
//! | 6 | 1 | flags: 1 there is a low bound, 2 a high one, 4 keys and 8 values are of any length |
//! | 7 | 1 | 0 |
//! | 8 | 8 | address of the node |
//! | 16 | 8 | number of the tree that its checksums are bound to |
//! | 24 | 8 | the compute server's incarnation |
//! | 32 | 8 | session, 0 if none was granted yet; 0 for a get or scan |
//! | 40 | 8 | sequence number within the channel, from 1 on; 0 for a get or scan |
//! | 48 | 8 | epoch of the ownership map, 0 without one; for readers of a trace |
//! | 56 | 2 | channel; 0 for a get or scan |
//! | 58, 60 | 2, 2 | most entries of a leaf, separators of an inner node; 0 for what fits |
//! | 62 | 2 | length of the table's keys, or of the longest |
//! | 64 | 4 | bytes of a node |
//! | 68 | 4 | length of the table's values, 0 if they are of any length |
//! | 72, 74, 76 | 2, 2, 2 | lengths of the key, the low and the high bound |
//! | 78 | 2 | 0 |
//! | 80 | 4 | length of the value |
//! | 84 | 4 | 0 |
//! | 88 | | key, value, low bound (exclusive), high bound (inclusive) of the sender's partition |
//!
//! A scan's key is the place at which it goes on, empty if it comes from an end of the key space. The value
//! holds the scan's request ([`Sweep`]): 8 bytes and the far end of its range.
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 1 | flags: 1 descending; 2 without the key itself; 4 from the end of the key space; 8 there is a far end; 16 without it |
//! | 1 | 3 | 0 |
//! | 4 | 4 | pairs wanted, at least 1 |
//! | 8 | | far end |
//!
//! Reply, 32 bytes and the value:
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 4 | `FDR1` |
//! | 4 | 1 | [`Status`] |
//! | 5 | 1 | flags: 1 the value is a record's address and length, 8 bytes each; 2 the key was there |
//! | 6 | 2 | nodes looked at |
//! | 8 | 8 | address of the leaf; of `NoSession` the session that is granted |
//! | 16 | 8 | the request's sequence number |
//! | 24 | 4 | nanoseconds in the handler |
//! | 28 | 4 | length of the value |
//! | 32 | | value |
//!
//! The value of a scan's reply ([`Gathered`]), pairs of whole leaves in the scan's order:
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 4 | pairs |
//! | 4 | 2 | length of the fence that ends the last leaf |
//! | 6 | 1 | 1 if there is one; 0 if the key space ends there |
//! | 7 | 1 | leaves |
//! | 8 | | fence, then the pairs: the key's length in 2 bytes if keys are of any length; the value's in 4 if values are, with bit 31 if it is a record's address and length; key; value |

use farleaf_index::bnode::{Layout, LayoutOptions, RecordRef, StoredValue};
use farleaf_index::{KeyFormat, ValueFormat};

const REQUEST_TAG: [u8; 4] = *b"FDO1";
const REPLY_TAG: [u8; 4] = *b"FDR1";
/// Bytes of a request before key, value and bounds.
pub(crate) const REQUEST_BYTES: usize = 88;
/// Bytes of a reply before the value.
pub(crate) const REPLY_BYTES: usize = 32;

const HAS_LOW: u8 = 1;
const HAS_HIGH: u8 = 2;
const ANY_KEYS: u8 = 4;
const ANY_VALUES: u8 = 8;
const IS_RECORD: u8 = 1;
const EXISTED: u8 = 2;

/// The requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    Get = 1,
    Insert = 2,
    Update = 3,
    Upsert = 4,
    Remove = 5,
    Scan = 6,
}

impl Operation {
    fn from_byte(byte: u8) -> Option<Self> {
        use Operation::{Get, Insert, Remove, Scan, Update, Upsert};
        [Get, Insert, Update, Upsert, Remove, Scan].into_iter().find(|it| *it as u8 == byte)
    }

    /// Returns whether the operation changes nothing, so that it may be repeated.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Operation::Get | Operation::Scan)
    }

    /// Returns whether the request carries a value.
    pub(crate) fn puts(self) -> bool {
        matches!(self, Operation::Insert | Operation::Update | Operation::Upsert)
    }
}

/// The result that a memory server replies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Done; of a get, found.
    Ok = 1,
    /// The key is not there, and nothing was done.
    Absent = 2,
    /// The key is there, and nothing was done.
    Exists = 3,
    /// The tree's shape would have to change, or a record be freed: fetch.
    NeedSmo = 4,
    /// A node is not what the sender takes it for, or is not the sender's alone: fetch.
    WrongFence = 5,
    /// The way leads to another memory server: fetch.
    CrossServer = 6,
    /// Too much to do: fetch.
    Busy = 7,
    /// The session is not known, and nothing was done; another one is granted.
    NoSession = 8,
    /// The request is not one: nothing was done.
    Refused = 9,
}

impl Status {
    fn from_byte(byte: u8) -> Option<Self> {
        use Status::{
            Absent, Busy, CrossServer, Exists, NeedSmo, NoSession, Ok, Refused, WrongFence,
        };
        [Ok, Absent, Exists, NeedSmo, WrongFence, CrossServer, Busy, NoSession, Refused]
            .into_iter()
            .find(|it| *it as u8 == byte)
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OffloadRequest<'a> {
    pub(crate) operation: Operation,
    pub(crate) level: u8,
    pub(crate) node: u64,
    pub(crate) incarnation: u64,
    pub(crate) session: u64,
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    pub(crate) channel: u16,
    /// The layout of the tree, with the number that its checksums are bound to.
    pub(crate) layout: Layout,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// The sender's partition, low exclusive, high inclusive.
    pub(crate) low: Option<&'a [u8]>,
    pub(crate) high: Option<&'a [u8]>,
}

impl<'a> OffloadRequest<'a> {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let options = self.layout.options();
        let bound = |bound: Option<&[u8]>| bound.map_or(0, <[u8]>::len);
        let mut flags = 0;
        flags |= if self.low.is_some() { HAS_LOW } else { 0 };
        flags |= if self.high.is_some() { HAS_HIGH } else { 0 };
        let key_len = match options.key {
            KeyFormat::Fixed(len) => len,
            KeyFormat::Bytes { max } => {
                flags |= ANY_KEYS;
                max
            }
        };
        let value_len = match options.value {
            ValueFormat::Fixed(len) => len,
            ValueFormat::Bytes => {
                flags |= ANY_VALUES;
                0
            }
        };
        let mut bytes = Vec::with_capacity(
            REQUEST_BYTES + self.key.len() + self.value.len() + bound(self.low) + bound(self.high),
        );
        bytes.extend(REQUEST_TAG);
        bytes.extend([self.operation as u8, self.level, flags, 0]);
        let words = [
            self.node,
            self.layout.tree(),
            self.incarnation,
            self.session,
            self.sequence,
            self.epoch,
        ];
        bytes.extend(words.into_iter().flat_map(u64::to_le_bytes));
        let caps = [self.channel, options.cap_leaf.unwrap_or(0), options.cap_inner.unwrap_or(0)];
        bytes.extend(caps.into_iter().flat_map(u16::to_le_bytes));
        bytes.extend((key_len as u16).to_le_bytes());
        bytes.extend((options.node_bytes as u32).to_le_bytes());
        bytes.extend((value_len as u32).to_le_bytes());
        let lens = [self.key.len(), bound(self.low), bound(self.high), 0];
        bytes.extend(lens.into_iter().flat_map(|len| (len as u16).to_le_bytes()));
        bytes.extend((self.value.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        debug_assert_eq!(bytes.len(), REQUEST_BYTES);
        for part in [self.key, self.value, self.low.unwrap_or(&[]), self.high.unwrap_or(&[])] {
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// Decodes bytes that anybody may have sent; `None` if they are not a request, or one that no table
    /// has.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(REQUEST_BYTES)?;
        let flags = head[6];
        let zeros = [head[7], head[78], head[79], head[84], head[85], head[86], head[87]];
        let known = HAS_LOW | HAS_HIGH | ANY_KEYS | ANY_VALUES;
        if head[..4] != REQUEST_TAG || flags & !known != 0 || zeros != [0; 7] {
            return None;
        }
        let cap = |at| Some(u16_at(head, at)).filter(|cap| *cap != 0);
        let key_len = usize::from(u16_at(head, 62));
        let value_len = u32_at(head, 68) as usize;
        let options = LayoutOptions {
            node_bytes: u32_at(head, 64) as usize,
            key: match flags & ANY_KEYS {
                0 => KeyFormat::Fixed(key_len),
                _ => KeyFormat::Bytes { max: key_len },
            },
            value: match flags & ANY_VALUES {
                0 => ValueFormat::Fixed(value_len),
                _ if value_len == 0 => ValueFormat::Bytes,
                _ => return None,
            },
            cap_leaf: cap(58),
            cap_inner: cap(60),
        };
        let layout = Layout::new(options).ok()?.for_tree(u64_at(head, 16));
        let lens = [
            usize::from(u16_at(head, 72)),
            u32_at(head, 80) as usize,
            usize::from(u16_at(head, 74)),
            usize::from(u16_at(head, 76)),
        ];
        let mut rest = rest;
        let mut parts = [&rest[..0]; 4];
        for (part, len) in parts.iter_mut().zip(lens) {
            (*part, rest) = rest.split_at_checked(len)?;
        }
        let [key, value, low, high] = parts;
        let operation = Operation::from_byte(head[4])?;
        let bounds = [(HAS_LOW, low), (HAS_HIGH, high)];
        let absent = bounds.iter().any(|(flag, bound)| flags & flag == 0 && !bound.is_empty());
        let fits = match operation {
            Operation::Scan => {
                Sweep::decode(value).is_some_and(|sweep| sweep.fits(&layout, key.len()))
            }
            _ if operation.puts() => layout.takes_key(key.len()) && layout.takes_value(value.len()),
            _ => layout.takes_key(key.len()) && value.is_empty(),
        };
        if !rest.is_empty() || absent || !fits {
            return None;
        }
        Some(OffloadRequest {
            operation,
            level: head[5],
            node: u64_at(head, 8),
            incarnation: u64_at(head, 24),
            session: u64_at(head, 32),
            sequence: u64_at(head, 40),
            epoch: u64_at(head, 48),
            channel: u16_at(head, 56),
            layout,
            key,
            value,
            low: (flags & HAS_LOW != 0).then_some(low),
            high: (flags & HAS_HIGH != 0).then_some(high),
        })
    }
}

const DESCENDING: u8 = 1;
const WITHOUT_KEY: u8 = 2;
const FROM_END: u8 = 4;
const HAS_FAR: u8 = 8;
const WITHOUT_FAR: u8 = 16;
const SWEEP_BYTES: usize = 8;

/// The request of a scan, beside the key at which it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep<'a> {
    pub(crate) reverse: bool,
    /// Not the key itself.
    pub(crate) excluded: bool,
    /// From the end of the key space; there is no key.
    pub(crate) from_end: bool,
    /// Most pairs.
    pub(crate) wanted: u32,
    /// The end of the range, and whether it is excluded.
    pub(crate) far: Option<(&'a [u8], bool)>,
}

impl<'a> Sweep<'a> {
    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut flags = 0;
        flags |= if self.reverse { DESCENDING } else { 0 };
        flags |= if self.excluded { WITHOUT_KEY } else { 0 };
        flags |= if self.from_end { FROM_END } else { 0 };
        let (far, excluded) = self.far.unwrap_or((&[], false));
        flags |= if self.far.is_some() { HAS_FAR } else { 0 };
        flags |= if excluded { WITHOUT_FAR } else { 0 };
        let mut bytes = Vec::with_capacity(SWEEP_BYTES + far.len());
        bytes.extend([flags, 0, 0, 0]);
        bytes.extend(self.wanted.to_le_bytes());
        bytes.extend_from_slice(far);
        bytes
    }

    /// Decodes bytes that anybody may have sent.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (head, far) = bytes.split_at_checked(SWEEP_BYTES)?;
        let flags = head[0];
        let is = |flag| flags & flag != 0;
        let known = DESCENDING | WITHOUT_KEY | FROM_END | HAS_FAR | WITHOUT_FAR;
        let wanted = u32_at(head, 4);
        let no_far = !is(HAS_FAR) && (is(WITHOUT_FAR) || !far.is_empty());
        if flags & !known != 0 || head[1..4] != [0; 3] || wanted == 0 || no_far {
            return None;
        }
        let far = is(HAS_FAR).then_some((far, is(WITHOUT_FAR)));
        let (reverse, excluded, from_end) = (is(DESCENDING), is(WITHOUT_KEY), is(FROM_END));
        Some(Sweep { reverse, excluded, from_end, wanted, far })
    }

    /// Returns whether a table has such keys.
    pub(crate) fn fits(&self, layout: &Layout, key_len: usize) -> bool {
        let place =
            if self.from_end { key_len == 0 && !self.excluded } else { layout.takes_key(key_len) };
        place && self.far.is_none_or(|(far, _)| layout.takes_key(far.len()))
    }
}

/// Bytes of a scan's findings before the fence.
pub(crate) const FOUND_BYTES: usize = 8;
/// Bit of a value's length that says that it is a record's address and length.
const RECORD_BIT: u32 = 1 << 31;

/// The pairs that a memory server has found for a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gathered {
    pub(crate) count: u32,
    pub(crate) leaves: u8,
    /// The fence that ends the last leaf in the scan's direction.
    pub(crate) fence: Option<Vec<u8>>,
    /// The pairs, one behind the other.
    pub(crate) pairs: Vec<u8>,
}

/// A pair that was sent: key, where its value is, and the value if it is inline.
pub(crate) type Pair<'a> = (&'a [u8], StoredValue, &'a [u8]);

impl Gathered {
    /// Adds a pair; `false` if there is no room for such a value, which is a record where values have one
    /// length.
    pub(crate) fn push(
        &mut self,
        layout: &Layout,
        key: &[u8],
        stored: StoredValue,
        value: &[u8],
    ) -> bool {
        let options = layout.options();
        if let KeyFormat::Bytes { .. } = options.key {
            self.pairs.extend((key.len() as u16).to_le_bytes());
        }
        let record;
        let (value, bit) = match stored {
            StoredValue::Inline => (value, 0),
            StoredValue::Record(RecordRef { addr, len }) => {
                record = [addr.to_le_bytes(), len.to_le_bytes()].concat();
                (&record[..], RECORD_BIT)
            }
        };
        match options.value {
            ValueFormat::Bytes => self.pairs.extend((value.len() as u32 | bit).to_le_bytes()),
            ValueFormat::Fixed(_) if bit != 0 => return false,
            ValueFormat::Fixed(_) => {}
        }
        self.pairs.extend_from_slice(key);
        self.pairs.extend_from_slice(value);
        self.count += 1;
        true
    }

    /// Returns the most bytes of a pair of a table.
    pub(crate) fn pair_bytes_max(layout: &Layout) -> usize {
        let value = match layout.options().value {
            ValueFormat::Fixed(len) => len,
            ValueFormat::Bytes => 4 + layout.inline_value_max().max(RECORD_BYTES),
        };
        2 + key_bytes_max(layout) + value
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let fence = self.fence.as_deref().unwrap_or(&[]);
        let mut bytes = Vec::with_capacity(FOUND_BYTES + fence.len() + self.pairs.len());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend((fence.len() as u16).to_le_bytes());
        bytes.extend([u8::from(self.fence.is_some()), self.leaves]);
        bytes.extend_from_slice(fence);
        bytes.extend_from_slice(&self.pairs);
        bytes
    }

    /// Decodes the pairs of a reply; `None` if the bytes are not that of a table of `layout`.
    pub(crate) fn decode(layout: &Layout, bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(FOUND_BYTES)?;
        let (fence, pairs) = rest.split_at_checked(usize::from(u16_at(head, 4)))?;
        let fence = match head[6] {
            0 if fence.is_empty() => None,
            1 => Some(fence.to_vec()),
            _ => return None,
        };
        let count = u32_at(head, 0);
        let found = Gathered { count, leaves: head[7], fence, pairs: pairs.to_vec() };
        let mut rest = pairs;
        for _ in 0..count {
            rest = pair(layout, rest)?.1;
        }
        (rest.is_empty() && found.leaves > 0).then_some(found)
    }

    /// Returns the fence that ends the last leaf in the scan's direction; `None` if the key space ends it.
    pub(crate) fn fence(&self) -> Option<&[u8]> {
        self.fence.as_deref()
    }

    /// Returns the pairs in the scan's order.
    pub(crate) fn pairs<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = Pair<'a>> {
        let mut rest = &self.pairs[..];
        std::iter::from_fn(move || {
            let (pair, behind) = pair(layout, rest)?;
            rest = behind;
            Some(pair)
        })
    }
}

/// Decodes the pair that `bytes` begin with; returns it and the bytes behind it.
fn pair<'a>(layout: &Layout, bytes: &'a [u8]) -> Option<(Pair<'a>, &'a [u8])> {
    let options = layout.options();
    let mut rest = bytes;
    let mut take = |len: usize| {
        let taken;
        (taken, rest) = rest.split_at_checked(len)?;
        Some(taken)
    };
    let key_len = match options.key {
        KeyFormat::Fixed(len) => len,
        KeyFormat::Bytes { .. } => usize::from(u16_at(take(2)?, 0)),
    };
    let (value_len, is_record) = match options.value {
        ValueFormat::Fixed(len) => (len, false),
        ValueFormat::Bytes => {
            let len = u32_at(take(4)?, 0);
            ((len & !RECORD_BIT) as usize, len & RECORD_BIT != 0)
        }
    };
    let (key, value) = (take(key_len)?, take(value_len)?);
    let stored = match is_record {
        false => StoredValue::Inline,
        true if value.len() != RECORD_BYTES => return None,
        true => StoredValue::Record(RecordRef { addr: u64_at(value, 0), len: u64_at(value, 8) }),
    };
    layout.takes_key(key.len()).then_some(((key, stored, value), rest))
}

/// Returns the bytes of a table's longest key.
pub(crate) fn key_bytes_max(layout: &Layout) -> usize {
    match layout.options().key {
        KeyFormat::Fixed(len) => len,
        KeyFormat::Bytes { max } => max,
    }
}

/// A reply without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffloadReply {
    pub(crate) status: Status,
    pub(crate) is_record: bool,
    pub(crate) existed: bool,
    pub(crate) nodes: u16,
    /// The leaf, or the session that is granted.
    pub(crate) leaf: u64,
    pub(crate) sequence: u64,
    pub(crate) handler_ns: u32,
    pub(crate) value_len: u32,
}

impl OffloadReply {
    /// Makes a reply of a status alone.
    pub(crate) fn bare(status: Status) -> Self {
        OffloadReply {
            status,
            is_record: false,
            existed: false,
            nodes: 0,
            leaf: 0,
            sequence: 0,
            handler_ns: 0,
            value_len: 0,
        }
    }

    /// Encodes the reply without its value.
    pub(crate) fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[..4].copy_from_slice(&REPLY_TAG);
        bytes[4] = self.status as u8;
        bytes[5] |= if self.is_record { IS_RECORD } else { 0 };
        bytes[5] |= if self.existed { EXISTED } else { 0 };
        bytes[6..8].copy_from_slice(&self.nodes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.leaf.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.handler_ns.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.value_len.to_le_bytes());
        bytes
    }

    /// Decodes a reply and its value; `None` if the bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, value) = bytes.split_at_checked(REPLY_BYTES)?;
        if head[..4] != REPLY_TAG || head[5] & !(IS_RECORD | EXISTED) != 0 {
            return None;
        }
        let answer = OffloadReply {
            status: Status::from_byte(head[4])?,
            is_record: head[5] & IS_RECORD != 0,
            existed: head[5] & EXISTED != 0,
            nodes: u16_at(head, 6),
            leaf: u64_at(head, 8),
            sequence: u64_at(head, 16),
            handler_ns: u32_at(head, 24),
            value_len: u32_at(head, 28),
        };
        let fits = answer.value_len as usize == value.len()
            && (!answer.is_record || value.len() == RECORD_BYTES);
        fits.then_some((answer, value))
    }
}

/// Bytes of a value that is a record's address and length.
pub(crate) const RECORD_BYTES: usize = 16;

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// Two bytes, zeros beyond the end.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or(0));
    byte(at) | byte(at + 1) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(layout: Layout, key: &'a [u8], value: &'a [u8]) -> OffloadRequest<'a> {
        OffloadRequest {
            operation: Operation::Upsert,
            level: 2,
            node: 0x0001_0000_0000_4000,
            incarnation: 7,
            session: 8,
            sequence: 9,
            epoch: 10,
            channel: 11,
            layout,
            key,
            value,
            low: None,
            high: Some(&[0xaa; 8]),
        }
    }

    fn layout() -> Layout {
        let options = LayoutOptions {
            cap_leaf: Some(4),
            ..LayoutOptions::new(1024, KeyFormat::Fixed(8), ValueFormat::Fixed(16))
        };
        Layout::new(options).expect("layout").for_tree(0x1122_3344_5566_7788)
    }

    #[test]
    fn a_request_has_these_bytes() {
        let bytes = ask(layout(), &[1; 8], &[2; 16]).encode();
        let mut expected = b"FDO1".to_vec();
        expected.extend([4, 2, 2, 0]);
        expected
            .extend([0, 0x40, 0, 0, 0, 0, 1, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        for word in [7_u8, 8, 9, 10] {
            expected.extend([word, 0, 0, 0, 0, 0, 0, 0]);
        }
        expected.extend([11, 0, 4, 0, 0, 0, 8, 0, 0, 4, 0, 0, 16, 0, 0, 0]);
        expected.extend([8, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([1; 8]);
        expected.extend([2; 16]);
        expected.extend([0xaa; 8]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn requests_come_back_and_nothing_else_passes_for_one() {
        let fixed = ask(layout(), &[1; 8], &[2; 16]);
        assert_eq!(OffloadRequest::decode(&fixed.encode()), Some(fixed.clone()));
        let options = LayoutOptions::new(1024, KeyFormat::Bytes { max: 40 }, ValueFormat::Bytes);
        let any = Layout::new(options).expect("layout").for_tree(5);
        let any = OffloadRequest { low: Some(&[]), ..ask(any, &[], b"some value") };
        assert_eq!(OffloadRequest::decode(&any.encode()), Some(any));
        let get = OffloadRequest { operation: Operation::Get, value: &[], ..fixed.clone() };
        assert_eq!(OffloadRequest::decode(&get.encode()), Some(get));

        let bytes = fixed.encode();
        for len in 0..bytes.len() {
            assert_eq!(OffloadRequest::decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(OffloadRequest::decode(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 3, 4, 6, 7, 58, 59, 62, 64, 65, 68, 71, 72, 74, 76, 78, 80, 84, 87] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x81;
            assert_eq!(OffloadRequest::decode(&wrong), None, "byte {at}");
        }
        // A get has no value, and keys have the table's length.
        let wrong = OffloadRequest { operation: Operation::Get, ..fixed.clone() };
        assert_eq!(OffloadRequest::decode(&wrong.encode()), None);
        assert_eq!(
            OffloadRequest::decode(&OffloadRequest { key: &[1; 7], ..fixed }.encode()),
            None
        );
    }

    #[test]
    fn replies_come_back_and_nothing_else_passes_for_one() {
        let answer = OffloadReply {
            is_record: true,
            nodes: 3,
            leaf: 0x0001_0000_0000_4000,
            sequence: 9,
            handler_ns: 500,
            value_len: 16,
            ..OffloadReply::bare(Status::Ok)
        };
        let bytes = [&answer.encode()[..], &[5; 16]].concat();
        let head = [b'F', b'D', b'R', b'1', 1, 1, 3, 0, 0, 0x40, 0, 0, 0, 0, 1, 0, 9, 0, 0, 0];
        assert_eq!(bytes[..20], head);
        assert_eq!(bytes[20..32], [0, 0, 0, 0, 0xf4, 1, 0, 0, 16, 0, 0, 0]);
        assert_eq!(OffloadReply::decode(&bytes), Some((answer, &[5; 16][..])));
        assert_eq!(OffloadReply::decode(&bytes[..47]), None);
        assert_eq!(OffloadReply::decode(&bytes[..31]), None);
        for at in [0, 4, 5, 28] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            assert_eq!(OffloadReply::decode(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn what_a_scan_wants_and_gets_comes_back_and_nothing_else_passes_for_it() {
        let sweep = Sweep {
            reverse: true,
            excluded: true,
            from_end: false,
            wanted: 0x1234,
            far: Some((&[3; 8], true)),
        };
        let bytes = sweep.encode();
        assert_eq!(bytes, [&[27, 0, 0, 0, 0x34, 0x12, 0, 0][..], &[3; 8]].concat());
        assert_eq!(Sweep::decode(&bytes), Some(sweep));
        for (at, flip) in [(0, 32), (0, 8), (1, 1), (3, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            assert_eq!(Sweep::decode(&wrong), None, "byte {at}");
        }
        let none = Sweep { wanted: 0, ..sweep };
        assert!(Sweep::decode(&none.encode()).is_none() && Sweep::decode(&bytes[..7]).is_none());
        // Its ends must be keys of the table.
        let asked = |key, sweep: Sweep<'_>| {
            let value = sweep.encode();
            let ask = ask(layout(), key, &value);
            let bytes = OffloadRequest { operation: Operation::Scan, ..ask }.encode();
            OffloadRequest::decode(&bytes).is_some()
        };
        assert!(asked(&[1; 8], sweep) && !asked(&[1; 7], sweep) && !asked(&[], sweep));
        assert!(!asked(&[1; 8], Sweep { far: Some((&[3; 9], true)), ..sweep }));
        let from_end = Sweep { from_end: true, excluded: false, ..sweep };
        assert!(asked(&[], from_end) && !asked(&[1; 8], from_end));
        assert!(!asked(&[], Sweep { excluded: true, ..from_end }));

        let options = LayoutOptions::new(1024, KeyFormat::Bytes { max: 40 }, ValueFormat::Bytes);
        let any = Layout::new(options).expect("layout");
        let mut found = Gathered { leaves: 2, fence: Some(b"zz".to_vec()), ..Gathered::default() };
        let record = StoredValue::Record(RecordRef { addr: 5, len: 6 });
        assert!(found.push(&any, b"key", StoredValue::Inline, b"value"));
        assert!(found.push(&any, b"", record, &[]));
        let bytes = found.encode();
        let mut expected = vec![2, 0, 0, 0, 2, 0, 1, 2, b'z', b'z', 3, 0, 5, 0, 0, 0];
        expected.extend(b"keyvalue");
        expected.extend([0, 0, 16, 0, 0, 128, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes, expected);
        assert_eq!(Gathered::decode(&any, &bytes), Some(found.clone()));
        let pairs: Vec<_> = found.pairs(&any).collect();
        assert_eq!(pairs[0], (&b"key"[..], StoredValue::Inline, &b"value"[..]));
        assert_eq!((pairs[1].0, pairs[1].1), (&b""[..], record));
        for len in 0..bytes.len() {
            assert_eq!(Gathered::decode(&any, &bytes[..len]), None, "{len} bytes");
        }
        for (at, flip) in [(0, 1), (4, 1), (6, 1), (6, 2), (7, 2), (10, 128), (12, 1), (26, 1)] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            assert_eq!(Gathered::decode(&any, &wrong), None, "byte {at}");
        }
        // In a table whose values have one length, a record has no room.
        assert!(!Gathered::default().push(&layout(), &[1; 8], record, &[]));
    }
}
