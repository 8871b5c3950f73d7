//! Records: store values that do not fit into a leaf beside the nodes.
//!
//! A record is written in whole before a leaf refers to it and never changed. Layout, words:
//! 0 tag, 1 length of the value in bytes, 2 checksum of length and value; then the value, padded
//! with zeros to 8 bytes.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::BlinkTree;
use crate::IndexError;
use crate::VALUE_BYTES_MAX;
use crate::bnode::{Node, RecordRef, StoredValue};

const HEADER_BYTES: usize = 24;
const TAG: u64 = u64::from_le_bytes(*b"FLvalue1");

/// Bytes that a record of a value of `len` bytes takes.
pub(super) fn record_bytes(len: usize) -> usize {
    HEADER_BYTES + len.next_multiple_of(8)
}

impl BlinkTree {
    /// Copies value `index` of a leaf into `value`: nothing more, or 1 READ of its record.
    ///
    /// # Errors
    /// As [`BlinkTree::read_record`].
    #[inline]
    pub async fn value_of(
        &self,
        session: &Session,
        node: &Node<'_, u64>,
        index: usize,
        value: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        match node.value(index, value) {
            Some(StoredValue::Inline) => Ok(()),
            Some(StoredValue::Record(record)) => self.read_record(session, record, value).await,
            None => Err(IndexError::Corrupt(format!(
                "a leaf of the table at {} ends before its entry {index}",
                self.meta
            ))),
        }
    }

    /// Reads a value outside of a node into `value`.
    ///
    /// Cost: 1 READ.
    ///
    /// # Errors
    /// `Corrupt` if that is no record, or another one; `Unavailable`.
    pub async fn read_record(
        &self,
        session: &Session,
        record: RecordRef,
        value: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        let (addr, bytes) = self.record_place(record)?;
        let reliable = session.reliable();
        let buf = reliable.read(addr, reliable.buf(bytes)).await?;
        value.clear();
        value.extend_from_slice(self.record_value(&buf, record)?);
        Ok(())
    }

    /// Address and bytes of a record.
    pub fn record_place(&self, record: RecordRef) -> Result<(GlobalAddr, usize), IndexError> {
        let addr = self.pointer(record.addr, self.meta)?;
        match usize::try_from(record.len) {
            Ok(len) if len <= VALUE_BYTES_MAX => Ok((addr, record_bytes(len))),
            _ => Err(IndexError::Corrupt(format!(
                "the value at {addr} is said to have {} bytes; the longest has {VALUE_BYTES_MAX}",
                record.len
            ))),
        }
    }

    /// The value in a record that was read.
    pub(super) fn record_value<'b>(
        &self,
        buf: &'b Buf,
        record: RecordRef,
    ) -> Result<&'b [u8], IndexError> {
        let [tag, len, sum] = [buf.words()[0], buf.words()[1], buf.words()[2]];
        if tag == TAG && len == record.len {
            let value = &buf.bytes()[HEADER_BYTES..HEADER_BYTES + record.len as usize];
            if sum == xxh3_64_with_seed(value, len) {
                return Ok(value);
            }
        }
        Err(IndexError::Corrupt(format!(
            "the value record at server:offset {:?} does not hold the {} bytes that its leaf says",
            GlobalAddr::from_word(record.addr),
            record.len
        )))
    }

    /// Writes a value to a new record. 1 WRITE, 1 round trip.
    pub(super) async fn write_record(
        &self,
        session: &Session,
        value: &[u8],
    ) -> Result<UnlinkedRecord, IndexError> {
        let bytes = record_bytes(value.len());
        let object = session.alloc_unlinked(session.place(), bytes).await?;
        object.write(fill_record(session.client().buf(bytes), value)).await?;
        Ok(UnlinkedRecord { object, len: value.len() as u64 })
    }
}

/// A record that no leaf refers to yet; freed when dropped, unless it is kept.
#[derive(Debug)]
pub(super) struct UnlinkedRecord {
    object: Unlinked,
    len: u64,
}

impl UnlinkedRecord {
    pub(super) fn reference(&self) -> RecordRef {
        RecordRef { addr: self.object.addr().word(), len: self.len }
    }

    /// A leaf is about to refer to it.
    pub(super) fn keep(&self) {
        self.object.keep();
    }
}

/// Makes a record of `value` in a buffer of [`record_bytes`].
pub(super) fn fill_record(mut buf: Buf, value: &[u8]) -> Buf {
    let len = value.len() as u64;
    let last = buf.words().len() - 1;
    buf.words_mut()[last] = 0;
    buf.words_mut()[..3].copy_from_slice(&[TAG, len, xxh3_64_with_seed(value, len)]);
    buf.bytes_mut()[HEADER_BYTES..HEADER_BYTES + value.len()].copy_from_slice(value);
    buf
}
