//! Table: the blocking API of tables.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_engines::Content;
use farleaf_index::{CacheControl, CounterSet, Entries, Index, ScanRange, SortedPairs};
use farleaf_pool::Audit;

use crate::async_table::AsyncTable;
use crate::bounds::Interval;
use crate::error::Result;
use crate::options::TableInfo;
use crate::range::{KeyRange, Range};
use crate::report::{TableReport, TableStats};
use crate::store::Farleaf;
use crate::table_core::TableCore;
use crate::thread_context::{Session, ThreadContext};

/// An ordered map from byte strings to byte strings, shared by everyone who has the pool open.
///
/// Keys sort as bytes do. Every single operation takes effect at one moment between its call and
/// its return, whoever else is at work. Clones name the same table; use them from any thread, also
/// from one that runs an async runtime (see [`Table::to_async`] if a call there must not wait).
///
/// # Errors
/// All methods fail with [`Closed`](crate::ErrorKind::Closed) after [`Farleaf::close`], with
/// [`NotFound`](crate::ErrorKind::NotFound) once the table was dropped, and with
/// [`Unavailable`](crate::ErrorKind::Unavailable) if somebody holds a lock for too long; changes fail with
/// [`Full`](crate::ErrorKind::Full) if the pool has no memory left. Unless it is
/// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown), nothing was done.
#[derive(Clone)]
pub struct Table {
    store: Farleaf,
    core: Arc<TableCore>,
}

/// The result of [`Table::compare_exchange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareExchange {
    /// The key held what was expected and holds the new value now.
    Exchanged,
    /// The key held this instead (`None`: was absent), and nothing was changed.
    Found(Option<Vec<u8>>),
}

impl Table {
    pub(crate) fn new(store: Farleaf, core: Arc<TableCore>) -> Self {
        Table { store, core }
    }

    pub(crate) fn store(&self) -> &Farleaf {
        &self.store
    }

    pub(crate) fn core(&self) -> &TableCore {
        &self.core
    }

    pub(crate) fn shared_core(&self) -> Arc<TableCore> {
        Arc::clone(&self.core)
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.core.info().name
    }

    /// Returns the table's name, engine and formats.
    pub fn info(&self) -> &TableInfo {
        self.core.info()
    }

    /// Returns the engine's own counts of what this process has done with the table, by name; in a table of records also
    /// `expired_records`, those that it has removed. The store's [`counters`](crate::Stats::counters) are those of remote
    /// operations.
    pub fn counters(&self) -> CounterSet {
        let mut counters = CounterSet::default();
        self.core.index().counters(&mut counters);
        if self.core.info().content == Content::Records {
            counters.add("expired_records", self.core.expired.load(Ordering::Relaxed));
        }
        counters
    }

    /// Returns the bytes that this process's cache of the table takes now; `None` if the engine has none.
    pub fn cache_bytes(&self) -> Option<u64> {
        self.core.index().cache().map(CacheControl::resident_bytes)
    }

    /// The same table with `async` methods, which are done by worker threads of the store.
    pub fn to_async(&self) -> AsyncTable {
        AsyncTable::new(self.store.clone(), Arc::clone(&self.core))
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// See [`Table`]; `Invalid` for a key that the table does not take.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Copies the value of `key` into `value`, whose content is replaced; `false` if there is none.
    /// Allocates only if `value` is too small.
    ///
    /// # Errors
    /// As [`Table::get`]; `value` is then arbitrary.
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        let key = key.as_ref();
        self.by_session(async |core, session| core.get(session, key, value).await)
    }

    /// Returns whether `key` is present, in a table of records also if it holds a hash. Costs what [`Table::get`] does.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        self.by_session(async |core, session| core.contains(session, key).await)
    }

    /// Adds or changes `key`; `true` if it was absent. In a table of records, a record that has expired and is still
    /// stored counts as present: to tell would cost a get.
    ///
    /// # Errors
    /// See [`Table`]; `Invalid` for a key or value that the table does not take.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.upsert(session, key, value).await)
    }

    /// Adds `key`; `false` if it is present, and then nothing is changed.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub fn insert_new(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.insert(session, key, value).await)
    }

    /// Changes `key`; `false` if it is absent, and then nothing is changed.
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.update(session, key, value).await)
    }

    /// Removes `key`; `false` if it was absent.
    ///
    /// # Errors
    /// See [`Table`]; `Invalid` for a key that the table does not take.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = key.as_ref();
        self.by_session(async |core, session| core.remove(session, key).await)
    }

    /// Gives `key` the value `new` (`None`: removes it) if it holds `expected` (`None`: is
    /// absent), as one step.
    ///
    /// ```
    /// use farleaf::{CompareExchange, Farleaf, TableOptions};
    ///
    /// let table = Farleaf::open("mem:")?.create_table("t", TableOptions::default())?;
    /// let taken = table.compare_exchange("lock", None, Some(b"me"))?;
    /// assert_eq!(taken, CompareExchange::Exchanged);
    /// let taken = table.compare_exchange("lock", None, Some(b"you"))?;
    /// assert_eq!(taken, CompareExchange::Found(Some(b"me".to_vec())));
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::insert`].
    pub fn compare_exchange(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareExchange> {
        let key = key.as_ref();
        self.run(async |core, context| core.compare_exchange(context, key, expected, new).await)
    }

    /// The pairs whose keys lie in `range`, ascending; `.rev()` for descending.
    ///
    /// A range that ends before it starts is empty. Entries are fetched in growing chunks as the
    /// iterator goes on; see [`Range`] for what it promises while others write.
    ///
    /// ```
    /// # let table = farleaf::Farleaf::open("mem:")?.create_table("t", Default::default())?;
    /// table.insert_many([("ant", "6"), ("bee", "6"), ("cat", "4")])?;
    /// for pair in table.range("b"..) {
    ///     let (key, value) = pair?;
    ///     println!("{} has {} legs", key.escape_ascii(), value.escape_ascii());
    /// }
    /// let last = table.range(..).rev().next().expect("three pairs")?;
    /// assert_eq!(last, (b"cat".to_vec(), b"4".to_vec()));
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    pub fn range(&self, range: impl KeyRange) -> Range {
        let (from, to) = range.ends();
        Range::new(self.clone(), Interval::of(from, to, self.core.info().keys))
    }

    /// The pairs whose keys start with `prefix`, ascending.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        let prefix = prefix.as_ref().to_vec();
        Range::new(self.clone(), Interval::prefix(prefix, self.core.info().keys))
    }

    /// The pair with the smallest key.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn first_key_value(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.end(false)
    }

    /// The pair with the largest key.
    ///
    /// # Errors
    /// See [`Table`].
    pub fn last_key_value(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.end(true)
    }

    fn end(&self, reverse: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let mut entries = Entries::new();
        self.scan(ScanRange { reverse, ..ScanRange::ALL }, 1, &mut entries)?;
        Ok(entries.get(0).map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    /// The values of `keys`, in their order. Up to 32 reads are in flight at once. In a table whose keys have owners, each
    /// of the other compute servers gets one message for all of its keys, here and in the two methods below.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.run(async |core, context| core.get_many(context, &keys).await)
    }

    /// Adds or changes many keys; returns how many were absent. Of pairs with the same key the
    /// last counts. Up to 32 operations are in flight at once; this is no transaction, others can
    /// see some of the pairs before the rest.
    ///
    /// # Errors
    /// As [`Table::insert`]; some of the pairs may then be in the table.
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let pairs: Vec<(K, V)> = pairs.into_iter().collect();
        self.run(async |core, context| core.insert_many(context, &pairs).await)
    }

    /// Removes many keys; returns how many were present. Up to 32 operations are in flight at
    /// once; this is no transaction.
    ///
    /// # Errors
    /// As [`Table::remove`]; some of the keys may then be gone.
    pub fn remove_many<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<u64> {
        let keys: Vec<K> = keys.into_iter().collect();
        self.run(async |core, context| core.remove_many(context, &keys).await)
    }

    /// Fills an empty table from pairs that are sorted by key, without repetition; returns how
    /// many. Much quicker than inserting them and leaves fuller nodes.
    ///
    /// # Errors
    /// As [`Table::insert`]; `Invalid` also if the table is not empty or a key is not larger than
    /// the one before. The table is then still empty.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64> {
        let mut pairs = Pairs { rest: pairs.into_iter(), lent: None };
        self.by_session(async |core, session| core.bulk_load(session, &mut pairs).await)
    }

    /// Counts of keys, bytes and nodes. Walks the whole table: 1 round trip for every node.
    ///
    /// # Errors
    /// See [`Table`]; `Corrupt` if the walk cannot go on.
    pub fn stats(&self) -> Result<TableStats> {
        Ok(self.verify()?.stats)
    }

    /// Checks every node of the table against the invariants of its engine. Meant for a quiet
    /// table: changes that are under way may be reported as problems. 1 round trip for every node.
    ///
    /// # Errors
    /// See [`Table`]; `Corrupt` if the walk cannot go on.
    pub fn verify(&self) -> Result<TableReport> {
        self.run(async |core, context| {
            let session = context.session().await?;
            let mut audit = Audit::new(&session).await?;
            core.verify(&session, &mut audit).await
        })
    }

    /// Appends at most `limit` pairs of `range`, whose ends are possible keys, to `out`.
    pub(crate) fn scan(&self, range: ScanRange<'_>, limit: usize, out: &mut Entries) -> Result<()> {
        self.by_session(async |core, session| core.scan(session, range, limit, out).await)
    }

    pub(crate) fn by_session<T>(
        &self,
        op: impl AsyncFnOnce(&TableCore, &Session) -> Result<T>,
    ) -> Result<T> {
        self.run(async |core, context| op(core, &*context.session().await?).await)
    }

    pub(crate) fn run<T>(
        &self,
        op: impl AsyncFnOnce(&TableCore, &ThreadContext) -> Result<T>,
    ) -> Result<T> {
        let core = &self.core;
        ThreadContext::run(self.store.core(), async |context| {
            core.check_present()?;
            core.explain(context, op(core, context).await).await
        })
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(self.core.info()).finish()
    }
}

/// An iterator's pairs, lent one at a time.
struct Pairs<K, V, I: Iterator<Item = (K, V)>> {
    rest: I,
    lent: Option<(K, V)>,
}

impl<K: AsRef<[u8]>, V: AsRef<[u8]>, I: Iterator<Item = (K, V)>> SortedPairs for Pairs<K, V, I> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        self.lent = self.rest.next();
        self.lent.as_ref().map(|(key, value)| (key.as_ref(), value.as_ref()))
    }
}
