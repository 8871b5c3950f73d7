//! Records: pairs and fences that do not fit into a leaf, in objects of their own that never change.
//!
//! Layout, words: 0 tag, 1 bytes of the key | bytes of the value << 32, 2 checksum; then the key, then the value. A word
//! names a record: its address with the size of the object in the low 6 bits, so that another record is one changed word.

use farleaf_fabric::{Buf, GlobalAddr};
use farleaf_index::{IndexError, VALUE_BYTES_MAX};
use farleaf_pool::{Session, Unlinked};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::LeafTree;
use super::layout::Fence;

const HEADER_BYTES: usize = 24;
const TAG: u64 = u64::from_le_bytes(*b"FLfprec1");
const CLASSES: usize = 53;
const CLASS: u64 = 63;

/// A record that nothing refers to yet; freed when dropped, unless it is kept.
#[derive(Debug)]
pub(super) struct NewPairRecord {
    object: Unlinked,
    class: usize,
}

impl NewPairRecord {
    pub(super) fn word(&self) -> u64 {
        self.object.addr().word() | self.class as u64
    }

    pub(super) fn keep(&self) {
        self.object.keep();
    }
}

/// Bytes of the objects of a class: 64, 128, 192 and 256, then four to each doubling.
const fn size_bytes(class: usize) -> usize {
    if class < 4 {
        return 64 * (class + 1);
    }
    let (doubling, part) = ((class - 4) / 4, (class - 4) % 4);
    (256 << doubling) / 4 * (5 + part)
}

impl LeafTree {
    /// Writes a pair to a new record. 1 WRITE.
    pub(super) async fn write_record(
        &self,
        session: &Session,
        key: &[u8],
        value: &[u8],
    ) -> Result<NewPairRecord, IndexError> {
        let bytes = (HEADER_BYTES + key.len() + value.len()).next_multiple_of(8);
        let class = (0..CLASSES).find(|class| size_bytes(*class) >= bytes).ok_or_else(|| {
            IndexError::Invalid(format!(
                "a value of {} bytes: records hold {VALUE_BYTES_MAX}",
                value.len()
            ))
        })?;
        let object = session.alloc_unlinked(session.place(), size_bytes(class)).await?;
        let mut buf = session.client().buf(bytes);
        if let Some(last) = buf.words_mut().last_mut() {
            *last = 0;
        }
        let lengths = key.len() as u64 | (value.len() as u64) << 32;
        buf.bytes_mut()[HEADER_BYTES..][..key.len()].copy_from_slice(key);
        buf.bytes_mut()[HEADER_BYTES + key.len()..][..value.len()].copy_from_slice(value);
        let content = &buf.bytes()[HEADER_BYTES..HEADER_BYTES + key.len() + value.len()];
        let sum = xxh3_64_with_seed(content, self.shape.tree ^ lengths);
        buf.words_mut()[..3].copy_from_slice(&[TAG, lengths, sum]);
        object.write(buf).await?;
        Ok(NewPairRecord { object, class })
    }

    /// Address and bytes of the record that a word names.
    pub(super) fn record_place(&self, word: u64) -> Result<(GlobalAddr, usize), IndexError> {
        let class = (word & CLASS) as usize;
        match GlobalAddr::from_word(word & !CLASS) {
            Some(addr) if class < CLASSES && !addr.is_null() => Ok((addr, size_bytes(class))),
            _ => {
                Err(self
                    .corrupt(&format!("a leaf names the record {word:#018x}, which is no address")))
            }
        }
    }

    /// READs the pair in a record, into `pair`. 1 READ.
    pub(super) async fn read_record(
        &self,
        session: &Session,
        word: u64,
    ) -> Result<(Vec<u8>, Vec<u8>), IndexError> {
        let (addr, bytes) = self.record_place(word)?;
        let reliable = session.reliable();
        let buf = reliable.read(addr, reliable.buf(bytes)).await?;
        self.pair_of(addr, &buf)
    }

    /// The pair in a record that was read.
    pub(super) fn pair_of(
        &self,
        addr: GlobalAddr,
        buf: &Buf,
    ) -> Result<(Vec<u8>, Vec<u8>), IndexError> {
        let [tag, lengths, sum] = [buf.words()[0], buf.words()[1], buf.words()[2]];
        let (key, value) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        if tag == TAG && key.saturating_add(value) <= buf.len() - HEADER_BYTES {
            let content = &buf.bytes()[HEADER_BYTES..HEADER_BYTES + key + value];
            if sum == xxh3_64_with_seed(content, self.shape.tree ^ lengths) {
                return Ok((content[..key].to_vec(), content[key..].to_vec()));
            }
        }
        Err(self.corrupt(&format!("no whole record is at {addr}")))
    }

    /// The key that a fence is; `None` if the leaf is open on that side.
    pub(super) async fn fence_key(
        &self,
        session: &Session,
        fence: &Fence,
    ) -> Result<Option<Vec<u8>>, IndexError> {
        match fence {
            Fence::Open => Ok(None),
            Fence::Inline(key) => Ok(Some(key.clone())),
            Fence::Record(word) => Ok(Some(self.read_record(session, *word).await?.0)),
        }
    }

    /// The fence that `key` is, with its record if it needs one.
    pub(super) async fn new_fence(
        &self,
        session: &Session,
        key: &[u8],
    ) -> Result<(Fence, Option<NewPairRecord>), IndexError> {
        if self.shape.fence_fits(key.len()) {
            return Ok((Fence::Inline(key.to_vec()), None));
        }
        let record = self.write_record(session, key, &[]).await?;
        Ok((Fence::Record(record.word()), Some(record)))
    }
}
