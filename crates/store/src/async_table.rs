//! Async table: the async API of tables.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use farleaf_index::Entries;

use crate::bounds::Interval;
use crate::error::Result;
use crate::options::TableInfo;
use crate::range::KeyRange;
use crate::store::Farleaf;
use crate::table::CompareExchange;
use crate::table_core::TableCore;
use crate::thread_context::{Session, ThreadContext};

/// A table whose operations are futures, for programs with an async runtime (any).
///
/// The operations are done by worker threads of the store (see
/// [`Builder::async_workers`](crate::Builder::async_workers)); the futures are `Send` and
/// `'static`. An operation begins when its future is first polled. Dropping the future later does
/// not cancel it: it may take effect or not. What each does and how it fails stands at the method
/// of the same name of [`Table`](crate::Table).
///
/// ```
/// # use std::{future::Future, pin::pin, task::{Context, Poll, Waker}};
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     let mut future = pin!(future);
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
/// #             Poll::Ready(value) => return value,
/// #             Poll::Pending => std::thread::yield_now(),
/// #         }
/// #     }
/// # }
/// let db = farleaf::Farleaf::open("mem:")?;
/// let table = db.create_table("users", Default::default())?.to_async();
/// block_on(async {
///     table.insert("ada", "1815").await?;
///     assert_eq!(table.get("ada").await?, Some(b"1815".to_vec()));
///     Ok(())
/// })
/// # as farleaf::Result<()>
/// # ;
/// # Ok::<(), farleaf::Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncTable {
    store: Farleaf,
    core: Arc<TableCore>,
}

impl AsyncTable {
    pub(crate) fn new(store: Farleaf, core: Arc<TableCore>) -> Self {
        AsyncTable { store, core }
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.core.info().name
    }

    /// Returns the table's name, engine and formats.
    pub fn info(&self) -> &TableInfo {
        self.core.info()
    }

    /// See [`Table::get`](crate::Table::get).
    pub fn get<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<Option<Vec<u8>>>> + Send + 'static + use<K> {
        let key = own(key);
        self.by_session(async move |core, session| core.value(session, &key).await)
    }

    /// See [`Table::contains_key`](crate::Table::contains_key).
    pub fn contains_key<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<bool>> + Send + 'static + use<K> {
        let key = own(key);
        self.by_session(async move |core, session| core.contains(session, &key).await)
    }

    /// See [`Table::insert`](crate::Table::insert).
    pub fn insert<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        key: K,
        value: V,
    ) -> impl Future<Output = Result<bool>> + Send + 'static + use<K, V> {
        let (key, value) = (own(key), own(value));
        self.by_session(async move |core, session| core.upsert(session, &key, &value).await)
    }

    /// See [`Table::insert_new`](crate::Table::insert_new).
    pub fn insert_new<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        key: K,
        value: V,
    ) -> impl Future<Output = Result<bool>> + Send + 'static + use<K, V> {
        let (key, value) = (own(key), own(value));
        self.by_session(async move |core, session| core.insert(session, &key, &value).await)
    }

    /// See [`Table::update`](crate::Table::update).
    pub fn update<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        key: K,
        value: V,
    ) -> impl Future<Output = Result<bool>> + Send + 'static + use<K, V> {
        let (key, value) = (own(key), own(value));
        self.by_session(async move |core, session| core.update(session, &key, &value).await)
    }

    /// See [`Table::remove`](crate::Table::remove).
    pub fn remove<K: AsRef<[u8]>>(
        &self,
        key: K,
    ) -> impl Future<Output = Result<bool>> + Send + 'static + use<K> {
        let key = own(key);
        self.by_session(async move |core, session| core.remove(session, &key).await)
    }

    /// See [`Table::compare_exchange`](crate::Table::compare_exchange).
    pub fn compare_exchange<K: AsRef<[u8]>>(
        &self,
        key: K,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> impl Future<Output = Result<CompareExchange>> + Send + 'static + use<K> {
        let (key, expected, new) = (own(key), expected.map(own), new.map(own));
        self.run(async move |core, context| {
            core.compare_exchange(context, &key, expected.as_deref(), new.as_deref()).await
        })
    }

    /// The first `limit` pairs of `range`, ascending. To go on, start after the last key.
    ///
    /// # Errors
    /// See [`Table`](crate::Table).
    pub fn scan<R: KeyRange>(
        &self,
        range: R,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<R> {
        self.scan_from(range, limit, false)
    }

    /// The last `limit` pairs of `range`, descending. To go on, end before the last key.
    ///
    /// # Errors
    /// See [`Table`](crate::Table).
    pub fn scan_rev<R: KeyRange>(
        &self,
        range: R,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<R> {
        self.scan_from(range, limit, true)
    }

    fn scan_from<R: KeyRange>(
        &self,
        range: R,
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<Vec<(Vec<u8>, Vec<u8>)>>> + Send + 'static + use<R> {
        let (from, to) = range.ends();
        let range = Interval::of(from, to, self.core.info().keys);
        self.by_session(async move |core, session| {
            let mut entries = Entries::new();
            if !range.is_empty() && limit > 0 {
                core.scan(session, range.scan(reverse), limit, &mut entries).await?;
            }
            Ok(entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
        })
    }

    /// See [`Table::get_many`](crate::Table::get_many).
    pub fn get_many<K: AsRef<[u8]>, I: IntoIterator<Item = K>>(
        &self,
        keys: I,
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>>> + Send + 'static + use<K, I> {
        let keys: Vec<_> = keys.into_iter().map(own).collect();
        self.run(async move |core, context| core.get_many(context, &keys).await)
    }

    /// See [`Table::insert_many`](crate::Table::insert_many).
    pub fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>, I: IntoIterator<Item = (K, V)>>(
        &self,
        pairs: I,
    ) -> impl Future<Output = Result<u64>> + Send + 'static + use<K, V, I> {
        let pairs: Vec<_> = pairs.into_iter().map(|(key, value)| (own(key), own(value))).collect();
        self.run(async move |core, context| core.insert_many(context, &pairs).await)
    }

    /// See [`Table::remove_many`](crate::Table::remove_many).
    pub fn remove_many<K: AsRef<[u8]>, I: IntoIterator<Item = K>>(
        &self,
        keys: I,
    ) -> impl Future<Output = Result<u64>> + Send + 'static + use<K, I> {
        let keys: Vec<_> = keys.into_iter().map(own).collect();
        self.run(async move |core, context| core.remove_many(context, &keys).await)
    }

    pub(crate) fn by_session<T, O>(
        &self,
        op: O,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<T, O>
    where
        T: Send + 'static,
        O: AsyncFnOnce(&TableCore, &Session) -> Result<T> + Send + 'static,
    {
        self.run(async move |core, context| op(core, &*context.session().await?).await)
    }

    pub(crate) fn run<T, O>(
        &self,
        op: O,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<T, O>
    where
        T: Send + 'static,
        O: AsyncFnOnce(&TableCore, &ThreadContext) -> Result<T> + Send + 'static,
    {
        let (store, table) = (self.store.clone(), Arc::clone(&self.core));
        async move {
            let job = async move |context: &ThreadContext| {
                let _under_way = table.begin_async()?;
                table.explain(context, op(&table, context).await).await
            };
            store.workers().run(store.core(), job).await
        }
    }
}

impl fmt::Debug for AsyncTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncTable").field(self.info()).finish()
    }
}

pub(crate) fn own(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    bytes.as_ref().to_vec()
}
