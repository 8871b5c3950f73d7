//! Record: a value that does not fit into its leaf, in an object of its own that never changes.
//!
//! A leaf names it by one word, its address with the size of the object in the low 6 bits. So another record is one
//! changed word. Layout as that of the records of B+-trees: tag, length, checksum, value.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::{IndexError, VALUE_BYTES_MAX};
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::size_bytes;
use super::tree::Tree;

const HEADER_BYTES: usize = 24;
const TAG: u64 = u64::from_le_bytes(*b"FLvalue1");
const CLASSES: usize = 53;
const CLASS: u64 = 63;

/// A record that no leaf refers to yet; freed when dropped, unless it is kept.
#[derive(Debug)]
pub(super) struct NewRecord {
    object: Unlinked,
    class: usize,
}

impl NewRecord {
    /// The word that names it.
    pub(super) fn word(&self) -> u64 {
        self.object.addr().word() | self.class as u64
    }

    pub(super) fn keep(&self) {
        self.object.keep();
    }

    pub(super) fn unkeep(&self) {
        self.object.unkeep();
    }
}

impl Tree {
    /// Writes a value to a new record. 1 WRITE.
    pub(super) async fn write_record(
        &self,
        session: &Session,
        value: &[u8],
    ) -> Result<NewRecord, IndexError> {
        let bytes = HEADER_BYTES + value.len().next_multiple_of(8);
        let class = (0..CLASSES).find(|class| size_bytes(*class) >= bytes);
        let class = class.ok_or_else(|| {
            IndexError::Invalid(format!(
                "a value of {} bytes: records hold {VALUE_BYTES_MAX}",
                value.len()
            ))
        })?;
        let object = session.alloc_unlinked(session.place(), size_bytes(class)).await?;
        let mut buf = session.client().buf(bytes);
        let len = value.len() as u64;
        if let Some(last) = buf.words_mut().last_mut() {
            *last = 0;
        }
        buf.words_mut()[..3].copy_from_slice(&[TAG, len, xxh3_64_with_seed(value, len)]);
        buf.bytes_mut()[HEADER_BYTES..HEADER_BYTES + value.len()].copy_from_slice(value);
        object.write(buf).await?;
        Ok(NewRecord { object, class })
    }

    /// Address and bytes of the record that a leaf's word names.
    pub(super) fn record_place(&self, word: u64) -> Result<(GlobalAddr, usize), IndexError> {
        let class = (word & CLASS) as usize;
        let addr = GlobalAddr::from_word(word & !CLASS).filter(|addr| !addr.is_null());
        match addr {
            Some(addr) if class < CLASSES => Ok((addr, size_bytes(class))),
            _ => {
                let what = format!("a leaf names the record {word:#018x}, which is not an address");
                Err(self.corrupt(self.meta, &what))
            }
        }
    }

    /// READs the value in a record: 1 READ.
    pub(super) async fn read_record(
        &self,
        session: &Session,
        word: u64,
        value: &mut Vec<u8>,
    ) -> Result<(), IndexError> {
        let (addr, bytes) = self.record_place(word)?;
        let reliable = session.reliable();
        let buf = reliable.read(addr, reliable.buf(bytes)).await?;
        value.clear();
        value.extend_from_slice(self.record_value(addr, &buf)?);
        Ok(())
    }

    /// The value in a record that was read.
    pub(super) fn record_value<'b>(
        &self,
        addr: GlobalAddr,
        buf: &'b Buf,
    ) -> Result<&'b [u8], IndexError> {
        let [tag, len, sum] = [buf.words()[0], buf.words()[1], buf.words()[2]];
        let room = (buf.len() - HEADER_BYTES) as u64;
        if tag == TAG && len <= room {
            let value = &buf.bytes()[HEADER_BYTES..HEADER_BYTES + len as usize];
            if sum == xxh3_64_with_seed(value, len) {
                return Ok(value);
            }
        }
        Err(self.corrupt(addr, "no whole value record is there"))
    }
}
