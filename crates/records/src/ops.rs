//! Operations of a table of records: strings, expiry, and the removal of what has expired.
//!
//! - `INV-RECORD-3` A record whose moment is not after the reader's clock is absent for that reader. A reader that meets
//!   one removes it by a compare-exchange with its bytes, which no newer record has. A removal that fails changes nothing
//!   for anybody, so that no operation fails by it.
//! - `INV-RECORD-4` A change that depends on a record compares all of its bytes, the moment of expiry included. So each
//!   change takes effect at one moment, and a hash is seen as a whole.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_index::{
    Entries, Exchange, Index, IndexError, ScanRange, SortedPairs, UPDATE_ATTEMPTS_MAX, Update,
    VALUE_BYTES_MAX, update_with,
};
use farleaf_pool::Session;

use crate::error::RecordError;
use crate::expiry::Expiry;
use crate::format::{Record, RecordValue, RecordView, ValueView, string_bytes};

/// The operations of a table of records, by one session. Clocks are the caller's: milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a, I, C> {
    pub(crate) index: &'a I,
    pub(crate) session: &'a Session,
    pub(crate) now_ms: C,
    /// Counts the expired records that were removed.
    pub(crate) removed: Option<&'a AtomicU64>,
}

/// The change that [`Records::update`] is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// None.
    Leave,
    /// The key gets this record. Without fields, or if its moment of expiry has passed, it is removed.
    Put(Record),
    /// The key is removed.
    Remove,
}

/// The result of [`Records::sweep`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Keys that it has looked at.
    pub looked: u64,
    /// Expired records that it has removed.
    pub removed: u64,
    /// The last key that it has looked at, after which the next sweep goes on; `None` at the end of the table.
    pub last: Option<Vec<u8>>,
}

impl<'a, I: Index, C: Fn() -> u64> Records<'a, I, C> {
    /// The operations on `index` by `session`.
    #[inline]
    pub fn new(index: &'a I, session: &'a Session, now_ms: C) -> Self {
        Records { index, session, now_ms, removed: None }
    }

    /// The same, which counts in `removed` the expired records that it meets and removes.
    #[inline]
    #[must_use]
    pub fn counting(self, removed: &'a AtomicU64) -> Self {
        Records { removed: Some(removed), ..self }
    }

    /// Copies the string at `key` into `value`, whose content is replaced; `false` if there is none.
    ///
    /// Cost: a get; a compare-exchange more to remove a record that has expired.
    ///
    /// # Errors
    /// `WrongKind` for a hash; as [`Index::get`].
    #[inline]
    pub async fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, RecordError> {
        if !self.index.get(self.session, key, value).await? {
            return Ok(false);
        }
        let record = read(key, value)?;
        if record.has_expired(&self.now_ms) {
            self.remove_expired(key, value).await;
            value.clear();
            return Ok(false);
        }
        let header = value.len() - string(key, &record)?.len();
        value.drain(..header);
        Ok(true)
    }

    /// Returns whether `key` holds a record, whatever it is.
    ///
    /// Cost: that of [`Records::get`].
    ///
    /// # Errors
    /// As [`Index::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool, RecordError> {
        Ok(self.with_record(key, |_| Ok(())).await?.is_some())
    }

    /// The record at `key`.
    ///
    /// Cost: that of [`Records::get`].
    ///
    /// # Errors
    /// As [`Index::get`].
    pub async fn record(&self, key: &[u8]) -> Result<Option<Record>, RecordError> {
        self.with_record(key, |record| Ok(record.to_record())).await
    }

    /// The result of `look` at the record of `key`, if there is one.
    pub(crate) async fn with_record<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(&RecordView<'_>) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RecordError> {
        let mut bytes = Vec::new();
        if !self.index.get(self.session, key, &mut bytes).await? {
            return Ok(None);
        }
        let record = read(key, &bytes)?;
        if record.has_expired(&self.now_ms) {
            self.remove_expired(key, &bytes).await;
            return Ok(None);
        }
        look(&record).map(Some)
    }

    /// Gives `key` a string; `true` if the key was absent. A record that has expired and is still stored counts as
    /// present here: to tell would cost a get.
    ///
    /// Cost: an upsert; a get and a compare-exchange in its place with [`Expiry::Keep`].
    ///
    /// # Errors
    /// `TooLong`; as [`Index::upsert`].
    pub async fn insert(
        &self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<bool, RecordError> {
        if expiry == Expiry::Keep {
            let put = |held: Option<&Record>| {
                let expires_ms = held.and_then(|record| record.expires_ms);
                Ok(RecordChange::Put(Record { expires_ms, ..Record::string(value) }))
            };
            return Ok(self.update(key, put).await?.is_none());
        }
        match self.bytes_to_store(value, expiry)? {
            Some(bytes) => Ok(self.index.upsert(self.session, key, &bytes).await?),
            None => Ok(!self.index.remove(self.session, key).await?),
        }
    }

    /// Gives an absent key a string; `false` if it is present, and then nothing is changed.
    ///
    /// Cost: an insert; a get and a compare-exchange more if the key is stored.
    ///
    /// # Errors
    /// As [`Records::insert`].
    pub async fn insert_new(
        &self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<bool, RecordError> {
        if let Some(bytes) = self.bytes_to_store(value, expiry)?
            && self.index.insert(self.session, key, &bytes).await?
        {
            return Ok(true);
        }
        let put = |held: Option<&Record>| {
            let expires_ms = expiry.at_ms((self.now_ms)(), None);
            Ok(match held {
                None => RecordChange::Put(Record { expires_ms, ..Record::string(value) }),
                Some(_) => RecordChange::Leave,
            })
        };
        Ok(self.update(key, put).await?.is_none())
    }

    /// Gives a present key a string; `false` if it is absent, and then nothing is changed.
    ///
    /// Cost: a get and a compare-exchange.
    ///
    /// # Errors
    /// As [`Records::insert`].
    pub async fn replace(
        &self,
        key: &[u8],
        value: &[u8],
        expiry: Expiry,
    ) -> Result<bool, RecordError> {
        let put = |held: Option<&Record>| {
            let Some(held) = held else { return Ok(RecordChange::Leave) };
            let expires_ms = expiry.at_ms((self.now_ms)(), held.expires_ms);
            Ok(RecordChange::Put(Record { expires_ms, ..Record::string(value) }))
        };
        Ok(self.update(key, put).await?.is_some())
    }

    /// Removes `key`, whatever it holds; `false` if it was absent.
    ///
    /// Cost: a get, and a remove if the key is present.
    ///
    /// # Errors
    /// As [`Index::remove`]. A record that is damaged, or of a later version, is removed.
    pub async fn remove(&self, key: &[u8]) -> Result<bool, RecordError> {
        match self.with_record(key, |_| Ok(())).await {
            Ok(None) => return Ok(false),
            Ok(Some(())) | Err(RecordError::Format { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.index.remove(self.session, key).await?)
    }

    /// Gives `key` the string `new` (`None`: removes it) if it holds the string `expected` (`None`: is absent), as one
    /// step. The new string does not expire. `Some` is the string that the key held instead (or its absence).
    ///
    /// Cost: a compare-exchange; one more if the record that it met has a moment of expiry.
    ///
    /// # Errors
    /// As [`Records::insert`]; `WrongKind` for a hash.
    #[allow(clippy::option_option, reason = "not done, and what it held")]
    pub async fn compare_exchange(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Option<Option<Vec<u8>>>, RecordError> {
        let new = match new {
            Some(new) => self.bytes_to_store(new, Expiry::Never)?,
            None => None,
        };
        let mut stored = expected.map(|expected| string_bytes(expected, None));
        for _ in 0..UPDATE_ATTEMPTS_MAX {
            let mut found = Vec::new();
            let (old, new) = (stored.as_deref(), new.as_deref());
            let exchanged =
                self.index.compare_exchange(self.session, key, old, new, &mut found).await?;
            let is_there = match exchanged {
                (Exchange::Done, _) => return Ok(None),
                (Exchange::Differs, is_there) => is_there,
            };
            let mut held = None;
            if is_there {
                let record = read(key, &found)?;
                if !record.has_expired(&self.now_ms) {
                    held = Some(string(key, &record)?);
                }
            }
            if held != expected {
                return Ok(Some(held.map(<[u8]>::to_vec)));
            }
            // It is what was expected, in other bytes.
            stored = is_there.then_some(found);
        }
        let why = "others changed the key before each attempt to compare it: try again";
        Err(IndexError::Unavailable(why.to_owned()).into())
    }

    /// Gives `key` the record that `change` makes of the one that it holds (`None`: is absent), as one step; returns
    /// that one.
    ///
    /// Cost: a get, and a compare-exchange unless nothing is to change; a compare-exchange more for each change by
    /// another.
    ///
    /// # Errors
    /// Those of `change`; as [`Records::insert`]; `Unavailable` also if others change the key all the time.
    pub async fn update(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<&Record>) -> Result<RecordChange, RecordError>,
    ) -> Result<Option<Record>, RecordError> {
        let mut held = None;
        update_with(self.index, self.session, key, |bytes| {
            held = None;
            if let Some(bytes) = bytes {
                let record = read(key, bytes)?;
                held = (!record.has_expired(&self.now_ms)).then(|| record.to_record());
            }
            match change(held.as_ref())? {
                // The first change that meets an expired record removes it.
                RecordChange::Leave if held.is_none() => Ok(Update::Remove),
                RecordChange::Leave => Ok(Update::Leave),
                RecordChange::Remove => Ok(Update::Remove),
                RecordChange::Put(record) => self.to_store(&record),
            }
        })
        .await?;
        Ok(held)
    }

    /// As [`Records::update`], of the string that the key holds; what it returns keeps the moment of expiry.
    ///
    /// # Errors
    /// As [`Records::update`]; `WrongKind` for a hash.
    pub async fn update_string(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, RecordError> {
        let held = self
            .update(key, |held| {
                let held_string = held.map(|record| owned_string(key, record)).transpose()?;
                let expires_ms = held.and_then(|record| record.expires_ms);
                Ok(match change(held_string) {
                    new if new.as_deref() == held_string => RecordChange::Leave,
                    Some(new) => RecordChange::Put(Record { expires_ms, ..Record::string(new) }),
                    None => RecordChange::Remove,
                })
            })
            .await?;
        Ok(held.and_then(|record| match record.value {
            RecordValue::String(string) => Some(string),
            RecordValue::Hash(_) => None,
        }))
    }

    /// Appends at most `limit` pairs of `range` to `out`, in order, each with the bytes of its record, without those
    /// that have expired; returns the number of these. See [`Index::scan`] for what it promises while others write.
    ///
    /// Cost: that of a scan; of another one if records have expired, and a compare-exchange for each of them.
    ///
    /// # Errors
    /// As [`Index::scan`]; `Format`.
    pub async fn scan_records(
        &self,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<u64, RecordError> {
        let end = out.len().saturating_add(limit);
        let (mut chunk, mut last, mut expired) = (Entries::new(), None::<Vec<u8>>, 0);
        while out.len() < end {
            let asked = end - out.len();
            let behind = last.as_deref().map(Bound::Excluded);
            let rest = match behind {
                None => range,
                Some(to) if range.reverse => ScanRange { to, ..range },
                Some(from) => ScanRange { from, ..range },
            };
            chunk.clear();
            self.index.scan(self.session, rest, asked, &mut chunk).await?;
            for (key, bytes) in chunk.iter() {
                if read(key, bytes)?.has_expired(&self.now_ms) {
                    expired += 1;
                    self.remove_expired(key, bytes).await;
                } else {
                    out.push(key, bytes);
                }
            }
            if chunk.len() < asked {
                break;
            }
            last = chunk.last().map(|(key, _)| key.to_vec());
        }
        Ok(expired)
    }

    /// As [`Records::scan_records`], with the strings of the records.
    ///
    /// # Errors
    /// As [`Records::scan_records`]; `WrongKind` for a hash.
    pub async fn scan(
        &self,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), RecordError> {
        let mut records = Entries::new();
        self.scan_records(range, limit, &mut records).await?;
        for (key, bytes) in records.iter() {
            out.push(key, string(key, &read(key, bytes)?)?);
        }
        Ok(())
    }

    /// Appends the pair with the longest key that `key` begins with to `out`, if there is one; see
    /// [`Index::longest_prefix`], whose cost it has, and once more for each expired record that it meets.
    ///
    /// # Errors
    /// As [`Index::longest_prefix`]; `WrongKind` for a hash.
    pub async fn longest_prefix(&self, key: &[u8], out: &mut Entries) -> Result<(), RecordError> {
        let (mut found, mut probe) = (Entries::new(), key);
        loop {
            found.clear();
            self.index.longest_prefix(self.session, probe, &mut found).await?;
            let Some((prefix, bytes)) = found.get(0) else { return Ok(()) };
            let record = read(prefix, bytes)?;
            if !record.has_expired(&self.now_ms) {
                out.push(prefix, string(prefix, &record)?);
                return Ok(());
            }
            self.remove_expired(prefix, bytes).await;
            // Gone or not, it is passed over: the prefix is shorter.
            let Some(shorter) = prefix.len().checked_sub(1) else { return Ok(()) };
            probe = &key[..shorter];
        }
    }

    /// Fills an empty table with strings that do not expire; see [`Index::bulk_load`].
    ///
    /// # Errors
    /// As [`Index::bulk_load`].
    pub async fn bulk_load(&self, pairs: &mut impl SortedPairs) -> Result<u64, RecordError> {
        let mut records = StringPairs { pairs, key: Vec::new(), bytes: Vec::new() };
        Ok(self.index.bulk_load(self.session, &mut records).await?)
    }

    /// The moment at which `key` expires, in milliseconds since 1970 (`Some(None)`: it does not); `None` if the key is
    /// absent.
    ///
    /// Cost: that of [`Records::get`].
    ///
    /// # Errors
    /// As [`Index::get`].
    #[allow(clippy::option_option, reason = "absent, without expiry, with")]
    pub async fn expires_ms(&self, key: &[u8]) -> Result<Option<Option<u64>>, RecordError> {
        self.with_record(key, |record| Ok(record.expires_ms)).await
    }

    /// Gives the record at `key`, whatever it is, another moment of expiry; `false` if the key is absent.
    ///
    /// Cost: a get and a compare-exchange.
    ///
    /// # Errors
    /// As [`Records::update`].
    pub async fn set_expiry(&self, key: &[u8], expiry: Expiry) -> Result<bool, RecordError> {
        let set = |held: Option<&Record>| {
            let Some(held) = held else { return Ok(RecordChange::Leave) };
            let expires_ms = expiry.at_ms((self.now_ms)(), held.expires_ms);
            Ok(RecordChange::Put(Record { expires_ms, value: held.value.clone() }))
        };
        Ok(self.update(key, set).await?.is_some())
    }

    /// Looks at `limit` keys of `range`, from its beginning, and removes the records among them that have expired.
    ///
    /// Cost: a scan, and a compare-exchange for each record that it removes.
    ///
    /// # Errors
    /// As [`Index::scan`]. A value that is no record stays.
    pub async fn sweep(&self, range: ScanRange<'_>, limit: usize) -> Result<Swept, RecordError> {
        let mut chunk = Entries::new();
        self.index.scan(self.session, range, limit, &mut chunk).await?;
        let mut removed = 0;
        for (key, bytes) in chunk.iter() {
            if RecordView::read(bytes).is_ok_and(|record| record.has_expired(&self.now_ms)) {
                removed += u64::from(self.remove_expired(key, bytes).await);
            }
        }
        let is_over = chunk.len() < limit;
        let last = chunk.last().filter(|_| !is_over).map(|(key, _)| key.to_vec());
        Ok(Swept { looked: chunk.len() as u64, removed, last })
    }

    /// Removes the expired record that `bytes` are (`INV-RECORD-3`); whether it did.
    #[cold]
    async fn remove_expired(&self, key: &[u8], bytes: &[u8]) -> bool {
        let mut found = Vec::new();
        let removed =
            self.index.compare_exchange(self.session, key, Some(bytes), None, &mut found).await;
        let is_removed = matches!(removed, Ok((Exchange::Done, _)));
        if let Some(count) = self.removed.filter(|_| is_removed) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        is_removed
    }

    fn bytes_to_store(&self, value: &[u8], expiry: Expiry) -> Result<Option<Vec<u8>>, RecordError> {
        string_to_store(value, expiry, &self.now_ms)
    }

    /// The change that puts a record.
    fn to_store(&self, record: &Record) -> Result<Update, RecordError> {
        let is_over = record.expires_ms.is_some_and(|at_ms| at_ms <= (self.now_ms)());
        let (what, is_empty) = match &record.value {
            RecordValue::String(_) => ("string", false),
            RecordValue::Hash(hash) => ("hash", hash.is_empty()),
        };
        if is_over || is_empty {
            return Ok(Update::Remove);
        }
        let bytes = record.to_bytes();
        check_length(what, bytes.len())?;
        Ok(Update::Put(bytes))
    }
}

/// The bytes to store for a string; `None` if it expires at once. [`Expiry::Keep`] counts as [`Expiry::Never`].
///
/// # Errors
/// `TooLong`.
pub fn string_to_store(
    value: &[u8],
    expiry: Expiry,
    now_ms: impl Fn() -> u64,
) -> Result<Option<Vec<u8>>, RecordError> {
    let expires_ms = match expiry {
        Expiry::Never => None,
        expiry => expiry.at_ms(now_ms(), None),
    };
    let bytes = string_bytes(value, expires_ms);
    check_length("string", bytes.len())?;
    let is_over = expires_ms.is_some_and(|at_ms| at_ms <= now_ms());
    Ok((!is_over).then_some(bytes))
}

/// The string of the record that `bytes` are, in their memory; `None` if it has expired.
///
/// # Errors
/// `WrongKind` for a hash, `Format`.
pub fn string_of(
    key: &[u8],
    mut bytes: Vec<u8>,
    now_ms: impl FnOnce() -> u64,
) -> Result<Option<Vec<u8>>, RecordError> {
    let record = read(key, &bytes)?;
    if record.has_expired(now_ms) {
        return Ok(None);
    }
    let header = bytes.len() - string(key, &record)?.len();
    bytes.drain(..header);
    Ok(Some(bytes))
}

fn check_length(what: &'static str, bytes: usize) -> Result<(), RecordError> {
    match bytes > VALUE_BYTES_MAX {
        true => Err(RecordError::TooLong { what, bytes, most: VALUE_BYTES_MAX }),
        false => Ok(()),
    }
}

#[inline]
pub(crate) fn read<'b>(key: &[u8], bytes: &'b [u8]) -> Result<RecordView<'b>, RecordError> {
    RecordView::read(bytes).map_err(|fault| RecordError::Format { key: key.to_vec(), fault })
}

/// The string that a record is.
#[inline]
pub(crate) fn string<'b>(key: &[u8], record: &RecordView<'b>) -> Result<&'b [u8], RecordError> {
    match record.value {
        ValueView::String(string) => Ok(string),
        other => Err(wrong_kind(key, other.name(), "string")),
    }
}

fn owned_string<'b>(key: &[u8], record: &'b Record) -> Result<&'b [u8], RecordError> {
    match &record.value {
        RecordValue::String(string) => Ok(string),
        RecordValue::Hash(_) => Err(wrong_kind(key, "hash", "string")),
    }
}

#[cold]
pub(crate) fn wrong_kind(key: &[u8], holds: &'static str, wanted: &'static str) -> RecordError {
    RecordError::WrongKind { key: key.to_vec(), holds, wanted }
}

/// Pairs of strings, as the pairs of records that they become.
struct StringPairs<'a, P> {
    pairs: &'a mut P,
    key: Vec<u8>,
    bytes: Vec<u8>,
}

impl<P: SortedPairs> SortedPairs for StringPairs<'_, P> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.pairs.next()?;
        self.key.clear();
        self.key.extend_from_slice(key);
        self.bytes = string_bytes(value, None);
        Some((&self.key, &self.bytes))
    }
}
