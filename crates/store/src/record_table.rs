//! Record tables: the operations of a table, by the content that it has, and the calls for records alone.

use std::fmt;
use std::future::Future;
use std::iter::FusedIterator;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farleaf_engines::{AnyIndex, Content};
use farleaf_index::{Entries, Index, Op, ScanRange, SortedPairs};
use farleaf_records::{
    Expiry, Hash, Record, RecordChange, RecordError, RecordView, Records, Swept, ValueView,
    string_of, string_to_store,
};

use crate::async_table::{AsyncTable, own};
use crate::bounds::Interval;
use crate::error::{Error, Result};
use crate::range::{KeyRange, Range};
use crate::table::Table;
use crate::table_core::TableCore;
use crate::thread_context::Session;

/// The time by this machine's clock, in milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time that many milliseconds after 1970; `None` if it is beyond what the system's times can say.
fn time_of(ms: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

type TableRecords<'a> = Records<'a, AnyIndex, fn() -> u64>;

/// The operations of a table, whatever its content.
impl TableCore {
    /// The operations on records; `None` in a table of raw values.
    #[inline]
    pub(crate) fn records<'a>(&'a self, session: &'a Session) -> Option<TableRecords<'a>> {
        let of =
            || Records::new(self.index(), session, now_ms as fn() -> u64).counting(&self.expired);
        (self.info().content == Content::Records).then(of)
    }

    /// The same for a call that is for records alone.
    ///
    /// # Errors
    /// `Invalid` in a table of raw values.
    pub(crate) fn records_of<'a>(&'a self, session: &'a Session) -> Result<TableRecords<'a>> {
        self.records(session).ok_or_else(|| {
            Error::invalid(format!(
                "table \"{}\" holds raw values: expiry and hashes need a table of records, made with the content \
                 records",
                self.info().name
            ))
        })
    }

    #[inline]
    pub(crate) async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().get(session, key, value).await),
            Some(records) => self.named(records.get(key, value).await),
        }
    }

    /// Returns whether `key` is present; a hash is.
    pub(crate) async fn contains(&self, session: &Session, key: &[u8]) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().get(session, key, &mut Vec::new()).await),
            Some(records) => self.named(records.contains(key).await),
        }
    }

    /// The value that a call finds where `bytes` are stored. Without a session nothing that has expired is removed.
    pub(crate) fn content_of(&self, key: &[u8], bytes: Option<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        match (self.info().content, bytes) {
            (Content::Records, Some(bytes)) => self.named(string_of(key, bytes, now_ms)),
            (_, bytes) => Ok(bytes),
        }
    }

    /// The record that a call finds where `bytes` are stored, likewise.
    pub(crate) fn record_of(&self, key: &[u8], bytes: Option<Vec<u8>>) -> Result<Option<Record>> {
        let Some(bytes) = bytes else { return Ok(None) };
        let record = RecordView::read(&bytes).map_err(|fault| {
            let key = key.to_vec();
            RecordError::Format { key, fault }
        });
        let record = self.named(record)?;
        Ok((!record.has_expired(now_ms)).then(|| record.to_record()))
    }

    /// The operation on what is stored that gives `key` a string; `None` if none does by itself.
    pub(crate) fn upsert_op(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Option<Op> {
        let value = match (self.info().content, expiry) {
            (Content::Raw, Expiry::Never) => value.to_vec(),
            (Content::Raw, _) | (_, Expiry::Keep) => return None,
            (Content::Records, expiry) => string_to_store(value, expiry, now_ms).ok()??,
        };
        Some(Op::Upsert { key: key.to_vec(), value })
    }

    pub(crate) async fn upsert(&self, session: &Session, key: &[u8], value: &[u8]) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().upsert(session, key, value).await),
            Some(records) => self.named(records.insert(key, value, Expiry::Never).await),
        }
    }

    pub(crate) async fn insert(&self, session: &Session, key: &[u8], value: &[u8]) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().insert(session, key, value).await),
            Some(records) => self.named(records.insert_new(key, value, Expiry::Never).await),
        }
    }

    pub(crate) async fn update(&self, session: &Session, key: &[u8], value: &[u8]) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().update(session, key, value).await),
            Some(records) => self.named(records.replace(key, value, Expiry::Never).await),
        }
    }

    pub(crate) async fn remove(&self, session: &Session, key: &[u8]) -> Result<bool> {
        match self.records(session) {
            None => self.named(self.index().remove(session, key).await),
            Some(records) => self.named(records.remove(key).await),
        }
    }

    pub(crate) async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<()> {
        match self.records(session) {
            None => self.named(self.index().scan(session, range, limit, out).await),
            Some(records) => self.named(records.scan(range, limit, out).await),
        }
    }

    /// As [`TableCore::scan`], for callers who do not look at the values, which are as they are stored.
    pub(crate) async fn scan_keys(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<()> {
        match self.records(session) {
            None => self.named(self.index().scan(session, range, limit, out).await),
            Some(records) => self.named(records.scan_records(range, limit, out).await).map(drop),
        }
    }

    /// Appends the pair with the longest key that `key` begins with.
    pub(crate) async fn prefix_of(
        &self,
        session: &Session,
        key: &[u8],
        out: &mut Entries,
    ) -> Result<()> {
        match self.records(session) {
            None => self.named(self.index().longest_prefix(session, key, out).await),
            Some(records) => self.named(records.longest_prefix(key, out).await),
        }
    }

    pub(crate) async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64> {
        match self.records(session) {
            None => self.named(self.index().bulk_load(session, pairs).await),
            Some(records) => self.named(records.bulk_load(pairs).await),
        }
    }

    /// Sweeps the keys of `range`; see [`Table::sweep_expired`].
    async fn sweep(&self, session: &Session, range: &Interval, limit: usize) -> Result<Swept> {
        let records = self.records_of(session)?;
        match range.is_empty() || limit == 0 {
            true => Ok(Swept::default()),
            false => self.named(records.sweep(range.scan(false), limit).await),
        }
    }
}

/// Declares calls on records: blocking ones and futures, of the operation of [`Records`] of that name.
macro_rules! record_calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($key:ident $(, $arg:ident: $type:ty)*) -> $result:ty
            = |$records:ident| $does:expr;
    )+) => {
        /// Records: strings that expire, and small hashes. The table's content must be
        /// [`Content::Records`](crate::Content::Records); in a table of raw values each of these calls is `Invalid`.
        ///
        /// A record that has expired is absent from the moment at which the reader's clock has passed its time, and is
        /// removed by the first reader that meets it. So the clocks of compute servers must agree within what users accept.
        ///
        /// All other methods of a table of records read and write its strings. They find
        /// [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) where a key holds a hash.
        impl Table {
            $(
                $(#[$doc])*
                pub fn $name(&self, $key: impl AsRef<[u8]> $(, $arg: $type)*) -> Result<$result> {
                    let $key = $key.as_ref();
                    self.by_session(async |core, session| {
                        let $records = core.records_of(session)?;
                        core.named($does)
                    })
                }
            )+
        }

        /// Records, as futures.
        impl AsyncTable {
            $(
                #[doc = concat!("See [`Table::", stringify!($name), "`].")]
                pub fn $name<K: AsRef<[u8]>>(
                    &self,
                    $key: K
                    $(, $arg: $type)*
                ) -> impl Future<Output = Result<$result>> + Send + 'static + use<K> {
                    let $key = own($key);
                    self.by_session(async move |core, session| {
                        let $records = core.records_of(session)?;
                        let $key = &$key[..];
                        core.named($does)
                    })
                }
            )+
        }
    };
}

record_calls! {
    /// The record of `key`: a string or a hash, and its moment of expiry.
    ///
    /// Cost: a get; a compare-exchange more to remove a record that has expired, here and in the methods below.
    ///
    /// # Errors
    /// As [`Table::get`]; `Corrupt` for a record of a later version of this program.
    fn record(key) -> Option<Record> = |records| records.record(key).await;

    /// Gives `key` a string that expires; `true` if the key was absent, as [`Table::insert`] says it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farleaf::{Content, Expiry, Farleaf, TableOptions};
    ///
    /// let options = TableOptions::default().content(Content::Records);
    /// let table = Farleaf::open("mem:")?.create_table("sessions", options)?;
    /// table.insert_with("ada", b"1815".to_vec(), Expiry::In(Duration::from_secs(60)))?;
    /// assert!(table.expiry("ada")?.flatten().is_some());
    /// table.insert("ada", "1816")?;
    /// assert_eq!(table.expiry("ada")?, Some(None), "a plain insert drops it");
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// Cost: that of [`Table::insert`]; with [`Expiry::Keep`] a get and a compare-exchange.
    ///
    /// # Errors
    /// As [`Table::insert`].
    fn insert_with(key, value: Vec<u8>, expiry: Expiry) -> bool =
        |records| records.insert(key, &value, expiry).await;

    /// As [`Table::insert_new`], with a moment of expiry.
    ///
    /// # Errors
    /// As [`Table::insert`].
    fn insert_new_with(key, value: Vec<u8>, expiry: Expiry) -> bool =
        |records| records.insert_new(key, &value, expiry).await;

    /// As [`Table::update`], with a moment of expiry.
    ///
    /// # Errors
    /// As [`Table::insert`].
    fn replace_with(key, value: Vec<u8>, expiry: Expiry) -> bool =
        |records| records.replace(key, &value, expiry).await;

    /// The moment of expiry of `key` (`Some(None)`: it does not expire); `None` if the key is absent.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Table::record`].
    fn expiry(key) -> Option<Option<SystemTime>> =
        |records| records.expires_ms(key).await.map(|held| held.map(|at_ms| at_ms.and_then(time_of)));

    /// Gives the record of `key` another moment of expiry, or none ([`Expiry::Never`]); `false` if the key is absent. In
    /// the past, the key is absent at once.
    ///
    /// Cost: a get and a compare-exchange.
    ///
    /// # Errors
    /// As [`Table::record`], and those of a change.
    fn set_expiry(key, expiry: Expiry) -> bool = |records| records.set_expiry(key, expiry).await;

    /// The fields of the hash of `key`; none if the key is absent.
    ///
    /// ```
    /// use farleaf::{Content, Farleaf, TableOptions};
    ///
    /// let options = TableOptions::default().content(Content::Records);
    /// let table = Farleaf::open("mem:")?.create_table("users", options)?;
    /// let fields = vec![(b"name".to_vec(), b"Ada".to_vec()), (b"born".to_vec(), b"1815".to_vec())];
    /// assert_eq!(table.hash_set("ada", fields)?, 2, "all at one moment");
    /// assert_eq!(table.hash_get("ada", vec![b"born".to_vec()])?, [Some(b"1815".to_vec())]);
    /// assert_eq!(table.hash("ada")?.len(), 2);
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Table::record`]; `WrongType` for a string, here and in the methods below.
    fn hash(key) -> Hash = |records| records.hash(key).await;

    /// The values of `fields` of the hash of `key`, in their order.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Table::hash`].
    fn hash_get(key, fields: Vec<Vec<u8>>) -> Vec<Option<Vec<u8>>> =
        |records| records.hash_get(key, &fields).await;

    /// The number of fields of the hash of `key`.
    ///
    /// Cost: a get.
    ///
    /// # Errors
    /// As [`Table::hash`].
    fn hash_len(key) -> usize = |records| records.hash_len(key).await;

    /// Gives fields of the hash of `key` values, all at one moment; returns how many of the fields were new. The hash
    /// expires when it would have.
    ///
    /// Cost: a get and a compare-exchange; a compare-exchange more for each change by another meanwhile.
    ///
    /// # Errors
    /// As [`Table::hash`], and those of a change; `Invalid` if the hash would be longer than any value, 1 MiB.
    fn hash_set(key, fields: Vec<(Vec<u8>, Vec<u8>)>) -> usize =
        |records| records.hash_set(key, &fields).await;

    /// Removes fields of the hash of `key`, all at one moment; returns how many were there. Without fields, the key is
    /// absent.
    ///
    /// Cost: as [`Table::hash_set`].
    ///
    /// # Errors
    /// As [`Table::hash_set`].
    fn hash_remove(key, fields: Vec<Vec<u8>>) -> usize =
        |records| records.hash_remove(key, &fields).await;
}

/// Changes of records that depend on what they are, sweeps, and ranges of records.
impl Table {
    /// Gives `key` the record that `change` makes of the one that it holds (`None`: is absent), as one step; returns
    /// that one. `change` runs again each time that another client has changed the key meanwhile.
    ///
    /// Cost: a get, and a compare-exchange unless nothing is to change; a compare-exchange more for each change by
    /// another.
    ///
    /// # Errors
    /// Those of `change`; as [`Table::update_with`]; as [`Table::record`].
    pub fn update_record(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&Record>) -> std::result::Result<RecordChange, RecordError>,
    ) -> Result<Option<Record>> {
        let key = key.as_ref();
        self.by_session(async |core, session| {
            core.named(core.records_of(session)?.update(key, change).await)
        })
    }

    /// Changes the fields of the hash of `key` by `change`, as one step; returns what `change` returned last. It runs
    /// again each time that another client has changed the key meanwhile. The hash expires when it would have.
    ///
    /// Cost: as [`Table::update_record`].
    ///
    /// # Errors
    /// Those of `change`; as [`Table::hash_set`].
    pub fn hash_update_with<T: Default>(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(&mut Hash) -> std::result::Result<T, RecordError>,
    ) -> Result<T> {
        let key = key.as_ref();
        self.by_session(async |core, session| {
            core.named(core.records_of(session)?.hash_change(key, change).await)
        })
    }

    /// Looks at `limit` keys of `range`, from its beginning, and removes the records among them that have expired. The
    /// next sweep goes on behind the last of these keys.
    ///
    /// Readers remove only what they meet: a caller who wants the memory of the rest back sweeps now and then.
    ///
    /// Cost: a scan of `limit` pairs, and a compare-exchange for each record that it removes.
    ///
    /// # Errors
    /// See [`Table`]; `Invalid` in a table of raw values.
    pub fn sweep_expired(&self, range: impl KeyRange, limit: usize) -> Result<Swept> {
        let (from, to) = range.ends();
        let range = Interval::of(from, to, self.info().keys);
        self.by_session(async |core, session| core.sweep(session, &range, limit).await)
    }

    /// The records whose keys lie in `range`, ascending, hashes among them; `.rev()` for descending. See
    /// [`Table::range`], of which this is the form for tables of records; in one of raw values the first pair is
    /// `Invalid`.
    pub fn range_records(&self, range: impl KeyRange) -> RecordRange {
        let (from, to) = range.ends();
        RecordRange(Range::of_records(self.clone(), Interval::of(from, to, self.info().keys)))
    }

    /// The keys of `range` with their strings, ascending, in a table of any content; `.rev()` for descending. A hash is
    /// no string: its value is `None`, where [`Table::range`] ends with `WrongType`. In all else as [`Table::range`].
    ///
    /// ```
    /// use farleaf::{Content, Farleaf, TableOptions};
    ///
    /// let options = TableOptions::default().content(Content::Records);
    /// let table = Farleaf::open("mem:")?.create_table("users", options)?;
    /// table.insert("ada", "1815")?;
    /// table.hash_set("alan", vec![(b"born".to_vec(), b"1912".to_vec())])?;
    /// let strings = table.range_strings("a"..).map(|pair| Ok(pair?.1.is_some())).collect::<farleaf::Result<Vec<_>>>()?;
    /// assert_eq!(strings, [true, false]);
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    pub fn range_strings(&self, range: impl KeyRange) -> StringRange {
        match self.info().content {
            Content::Raw => StringRange(self.range(range)),
            Content::Records => StringRange(self.range_records(range).0),
        }
    }

    /// Appends at most `limit` pairs of `range` to `out`, with the bytes of their records.
    pub(crate) fn scan_records(
        &self,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<()> {
        self.by_session(async |core, session| {
            core.records_of(session)?;
            core.scan_keys(session, range, limit, out).await
        })
    }
}

/// The same as futures.
impl AsyncTable {
    /// See [`Table::update_record`].
    pub fn update_record<K: AsRef<[u8]>, F>(
        &self,
        key: K,
        change: F,
    ) -> impl Future<Output = Result<Option<Record>>> + Send + 'static + use<K, F>
    where
        F: FnMut(Option<&Record>) -> std::result::Result<RecordChange, RecordError>
            + Send
            + 'static,
    {
        let key = own(key);
        self.by_session(async move |core, session| {
            core.named(core.records_of(session)?.update(&key, change).await)
        })
    }

    /// See [`Table::hash_update_with`].
    pub fn hash_update_with<K: AsRef<[u8]>, T, F>(
        &self,
        key: K,
        change: F,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<K, T, F>
    where
        T: Default + Send + 'static,
        F: FnMut(&mut Hash) -> std::result::Result<T, RecordError> + Send + 'static,
    {
        let key = own(key);
        self.by_session(async move |core, session| {
            core.named(core.records_of(session)?.hash_change(&key, change).await)
        })
    }

    /// See [`Table::sweep_expired`].
    pub fn sweep_expired<R: KeyRange>(
        &self,
        range: R,
        limit: usize,
    ) -> impl Future<Output = Result<Swept>> + Send + 'static + use<R> {
        let (from, to) = range.ends();
        let range = Interval::of(from, to, self.info().keys);
        self.by_session(async move |core, session| core.sweep(session, &range, limit).await)
    }
}

/// The records of a range of a table; made by [`Table::range_records`]. It promises what [`Range`] does.
pub struct RecordRange(Range);

impl RecordRange {
    fn read(pair: Option<Result<(Vec<u8>, Vec<u8>)>>) -> Option<Result<(Vec<u8>, Record)>> {
        Some(pair?.and_then(|(key, bytes)| match RecordView::read(&bytes) {
            Ok(record) => {
                let record = record.to_record();
                Ok((key, record))
            }
            Err(fault) => Err(RecordError::Format { key, fault }.into()),
        }))
    }
}

impl Iterator for RecordRange {
    type Item = Result<(Vec<u8>, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        RecordRange::read(self.0.next())
    }
}

impl DoubleEndedIterator for RecordRange {
    fn next_back(&mut self) -> Option<Self::Item> {
        RecordRange::read(self.0.next_back())
    }
}

impl FusedIterator for RecordRange {}

impl fmt::Debug for RecordRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordRange").field(&self.0).finish()
    }
}

/// The keys and strings of a range of a table; made by [`Table::range_strings`]. It promises what [`Range`] does.
pub struct StringRange(Range);

/// A key and its string; `None` for a hash.
type KeyString = Result<(Vec<u8>, Option<Vec<u8>>)>;

impl StringRange {
    fn read(&self, pair: Option<Result<(Vec<u8>, Vec<u8>)>>) -> Option<KeyString> {
        Some(pair?.and_then(|(key, mut bytes)| {
            if !self.0.is_of_records() {
                return Ok((key, Some(bytes)));
            }
            let header = match RecordView::read(&bytes) {
                Ok(RecordView { value: ValueView::String(string), .. }) => {
                    Some(bytes.len() - string.len())
                }
                Ok(_) => None,
                Err(fault) => return Err(RecordError::Format { key, fault }.into()),
            };
            let string = header.map(|header| {
                bytes.drain(..header);
                bytes
            });
            Ok((key, string))
        }))
    }
}

impl Iterator for StringRange {
    type Item = KeyString;

    fn next(&mut self) -> Option<KeyString> {
        let pair = self.0.next();
        self.read(pair)
    }
}

impl DoubleEndedIterator for StringRange {
    fn next_back(&mut self) -> Option<KeyString> {
        let pair = self.0.next_back();
        self.read(pair)
    }
}

impl FusedIterator for StringRange {}

impl fmt::Debug for StringRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StringRange").field(&self.0).finish()
    }
}
