//! Record format: a header of one or nine bytes, and a string or the fields of a hash.
//!
//! | byte 0 | |
//! |---|---|
//! | bits 0 to 3 | kind: 0 a string, 1 a hash |
//! | bit 4 | eight bytes follow with the moment of expiry: milliseconds since 1970, the least byte first |
//! | bits 5, 6, 7 | 0 |
//!
//! - `INV-RECORD-1` A kind or a bit that is not in the table is that of a later version: the reader refuses the record,
//!   and no operation of this version changes it, except to remove it or to put another in its place.
//! - `INV-RECORD-2` A hash is the number of its fields and then, by ascending name and each once, the length of a name,
//!   the name, the length of its value, the value. A hash has at least one field. Numbers are in base 128, the least
//!   digits first, bit 7 set in all bytes but the last, in as few bytes as can be.
//!
//! So a record has one encoding alone, and two records are equal if their bytes are.

use std::collections::BTreeMap;
use std::fmt;

/// Longest header.
pub const HEADER_BYTES_MAX: usize = 9;

const STRING: u8 = 0;
const HASH: u8 = 1;
const KIND: u8 = 0x0f;
const EXPIRES: u8 = 0x10;

/// The fields of a hash, by name.
pub type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

/// The reason for which bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FormatFault {
    /// A later version of this program wrote it; its first byte.
    Later(u8),
    /// It is damaged: it is not as its header says, in this respect.
    Damaged(&'static str),
}

impl fmt::Display for FormatFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatFault::Later(byte) => write!(
                f,
                "was written by a later version (its first byte is {byte:#04x}): use that version"
            ),
            FormatFault::Damaged(what) => write!(f, "is damaged: {what}"),
        }
    }
}

/// A record as it lies in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Its content.
    pub value: ValueView<'a>,
    /// The moment of its expiry, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

/// The content of a record in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueView<'a> {
    /// A string of any bytes.
    String(&'a [u8]),
    /// The fields of a hash.
    Hash(HashView<'a>),
}

/// The fields of a hash in a buffer, which were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashView<'a> {
    count: usize,
    fields: &'a [u8],
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its content.
    pub value: RecordValue,
    /// The moment of its expiry, in milliseconds since 1970; `None`: it does not expire.
    pub expires_ms: Option<u64>,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordValue {
    /// A string of any bytes.
    String(Vec<u8>),
    /// The fields of a hash. Without fields, the key is absent.
    Hash(Hash),
}

impl<'a> RecordView<'a> {
    /// Reads a record. A string costs the same whatever its length; of a hash it checks all fields.
    ///
    /// # Errors
    /// The reason for which it is none.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<RecordView<'a>, FormatFault> {
        match bytes.split_first() {
            Some((&STRING, string)) => {
                Ok(RecordView { value: ValueView::String(string), expires_ms: None })
            }
            Some((&first, rest)) => RecordView::read_other(first, rest),
            None => Err(FormatFault::Damaged("it is empty")),
        }
    }

    #[cold]
    fn read_other(first: u8, rest: &'a [u8]) -> Result<RecordView<'a>, FormatFault> {
        let kind = first & KIND;
        if first & !(KIND | EXPIRES) != 0 || kind > HASH {
            return Err(FormatFault::Later(first));
        }
        let (expires_ms, content) = match (first & EXPIRES, rest.split_first_chunk()) {
            (0, _) => (None, rest),
            (_, Some((at, content))) => (Some(u64::from_le_bytes(*at)), content),
            _ => return Err(FormatFault::Damaged("it ends within its expiry")),
        };
        let value = match kind {
            STRING => ValueView::String(content),
            _ => ValueView::Hash(HashView::read(content)?),
        };
        Ok(RecordView { value, expires_ms })
    }

    /// Returns whether it is absent for a reader whose clock says `now_ms`, which is read if it matters.
    #[inline]
    pub fn has_expired(&self, now_ms: impl FnOnce() -> u64) -> bool {
        self.expires_ms.is_some_and(|at_ms| at_ms <= now_ms())
    }

    /// The record with memory of its own.
    pub fn to_record(&self) -> Record {
        let value = match self.value {
            ValueView::String(string) => RecordValue::String(string.to_vec()),
            ValueView::Hash(hash) => RecordValue::Hash(hash.to_hash()),
        };
        Record { value, expires_ms: self.expires_ms }
    }
}

impl ValueView<'_> {
    /// Its kind, in errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ValueView::String(_) => "string",
            ValueView::Hash(_) => "hash",
        }
    }
}

impl<'a> HashView<'a> {
    fn read(content: &'a [u8]) -> Result<HashView<'a>, FormatFault> {
        let mut fields = content;
        let count = number(&mut fields)?;
        let hash = HashView { count, fields };
        let (mut rest, mut before) = (fields, None);
        for _ in 0..count {
            let (name, _) = field(&mut rest)?;
            if before.is_some_and(|before| name <= before) {
                return Err(FormatFault::Damaged("its fields do not ascend"));
            }
            before = Some(name);
        }
        match (count, rest.len()) {
            (0, _) => Err(FormatFault::Damaged("it is a hash without fields")),
            (_, 0) => Ok(hash),
            _ => Err(FormatFault::Damaged("bytes follow its last field")),
        }
    }

    /// The number of fields.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The fields with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut rest = self.fields;
        // They were checked.
        (0..self.count).map_while(move |_| field(&mut rest).ok())
    }

    /// The value of a field.
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// The fields with memory of their own.
    pub fn to_hash(&self) -> Hash {
        self.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }
}

impl Record {
    /// A string that does not expire.
    pub fn string(string: impl Into<Vec<u8>>) -> Record {
        Record { value: RecordValue::String(string.into()), expires_ms: None }
    }

    /// About the length of its string, or of the names and values of its fields.
    pub fn bytes(&self) -> usize {
        match &self.value {
            RecordValue::String(string) => string.len(),
            RecordValue::Hash(hash) => hash_bytes(hash),
        }
    }

    /// The bytes of the record, as they are stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.value {
            RecordValue::String(string) => string_bytes(string, self.expires_ms),
            RecordValue::Hash(hash) => {
                let mut bytes = header(HASH, self.expires_ms, hash_bytes(hash));
                push_number(&mut bytes, hash.len());
                for (name, value) in hash {
                    for part in [name, value] {
                        push_number(&mut bytes, part.len());
                        bytes.extend_from_slice(part);
                    }
                }
                bytes
            }
        }
    }
}

/// The bytes of the record of a string.
pub(crate) fn string_bytes(string: &[u8], expires_ms: Option<u64>) -> Vec<u8> {
    let mut bytes = header(STRING, expires_ms, string.len());
    bytes.extend_from_slice(string);
    bytes
}

fn header(kind: u8, expires_ms: Option<u64>, content_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES_MAX + content_bytes);
    bytes.push(kind | if expires_ms.is_some() { EXPIRES } else { 0 });
    bytes.extend(expires_ms.into_iter().flat_map(u64::to_le_bytes));
    bytes
}

/// About the length of the content of a hash.
fn hash_bytes(hash: &Hash) -> usize {
    hash.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>() + 2
}

fn push_number(bytes: &mut Vec<u8>, number: usize) {
    let mut rest = number;
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// Takes a number off the front. No number in a value is above its length, so five bytes are enough.
fn number(rest: &mut &[u8]) -> Result<usize, FormatFault> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let Some((byte, behind)) = rest.split_first() else {
            return Err(FormatFault::Damaged("it ends within a hash"));
        };
        *rest = behind;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return match (shift, byte) {
                (1.., 0) => Err(FormatFault::Damaged("a number in it is longer than it need be")),
                _ => Ok(number),
            };
        }
    }
    Err(FormatFault::Damaged("a number in it is above all lengths"))
}

fn part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], FormatFault> {
    let length = number(rest)?;
    let Some((part, behind)) = rest.split_at_checked(length) else {
        return Err(FormatFault::Damaged("it ends within a field"));
    };
    *rest = behind;
    Ok(part)
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], &'a [u8]), FormatFault> {
    Ok((part(rest)?, part(rest)?))
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn hash(fields: &[(&str, &str)]) -> RecordValue {
        let own =
            |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        RecordValue::Hash(fields.iter().map(own).collect())
    }

    /// The format, to the byte: a record of today must be read by every later version.
    #[test]
    fn records_have_these_bytes() {
        for (value, expires_ms, bytes) in [
            (RecordValue::String(Vec::new()), None, &b"\0"[..]),
            (RecordValue::String(b"1815".to_vec()), None, b"\x001815"),
            (
                RecordValue::String(b"x".to_vec()),
                Some(0x0102_0304_0506_0708),
                b"\x10\x08\x07\x06\x05\x04\x03\x02\x01x",
            ),
            (hash(&[("b", "22"), ("a", "")]), None, b"\x01\x02\x01a\x00\x01b\x0222"),
            (hash(&[("", "v")]), Some(1), b"\x11\x01\0\0\0\0\0\0\0\x01\x00\x01v"),
        ] {
            let record = Record { value, expires_ms };
            assert_eq!(record.to_bytes(), bytes);
            assert_eq!(RecordView::read(bytes).unwrap().to_record(), record);
        }
        let long = hash(&[("f", &"v".repeat(300))]);
        let bytes = Record { value: long, expires_ms: None }.to_bytes();
        assert_eq!(bytes[..6], *b"\x01\x01\x01f\xac\x02");
    }

    #[test]
    fn a_later_version_and_damage_are_told_apart() {
        for first in [2, 0x0f, 0x20, 0x40, 0x80, 0x12, 0xff] {
            let bytes = [first, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(RecordView::read(&bytes), Err(FormatFault::Later(first)));
        }
        for damaged in [
            &b""[..],
            b"\x10\0\0\0\0\0\0\0",
            b"\x01",
            b"\x01\0",
            b"\x01\x01\x01a\x01",
            b"\x01\x01\x01a\0\0",
            b"\x01\x02\x01b\0\x01a\0",
            b"\x01\x02\x01a\0\x01a\0",
            b"\x01\x81\0\x01a\0",
            b"\x01\xff\xff\xff\xff\xff\x01",
            b"\x11\0\0",
        ] {
            let fault = RecordView::read(damaged);
            assert!(matches!(fault, Err(FormatFault::Damaged(_))), "{damaged:?}: {fault:?}");
        }
        let text = FormatFault::Later(0x42).to_string();
        assert!(text.contains("later version") && text.contains("0x42"), "{text}");
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut rng = Rng::with_seed(41);
        let bytes = |rng: &mut Rng, most| {
            let len = rng.usize(..most);
            (0..len).map(|_| rng.u8(..)).collect::<Vec<u8>>()
        };
        for _ in 0..2_000 {
            let value = match rng.bool() {
                true => RecordValue::String(bytes(&mut rng, 300)),
                false => {
                    let count = rng.usize(1..20);
                    let mut field = || (bytes(&mut rng, 6), bytes(&mut rng, 200));
                    RecordValue::Hash((0..count).map(|_| field()).collect())
                }
            };
            let expires_ms = rng.bool().then(|| rng.u64(..));
            let record = Record { value, expires_ms };
            let stored = record.to_bytes();
            let view = RecordView::read(&stored).unwrap();
            assert_eq!(view.to_record(), record);
            if let (ValueView::Hash(view), RecordValue::Hash(hash)) = (view.value, &record.value) {
                assert_eq!(view.len(), hash.len());
                for (name, value) in hash {
                    assert_eq!(view.get(name), Some(&value[..]));
                }
                assert_eq!(view.get(b"no such field"), None);
            }
        }
    }
}
