//! Local: a thread's own executor and sessions, for programs with an event loop.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use farleaf_index::Entries;
use farleaf_records::{Expiry, Record, RecordChange, RecordError};

use crate::bounds::Interval;
use crate::error::{Error, Result};
use crate::operation::{Answer, Operation};
use crate::options::TableInfo;
use crate::range::KeyRange;
use crate::store::Farleaf;
use crate::table::{CompareExchange, Table};
use crate::table_core::TableCore;
use crate::thread_context::{Inside, Session, ThreadContext};

/// The calling thread's own executor and sessions of a store, for a program with an event loop: operations run on this
/// very thread, between its other work. It stays on its thread. Clones are the same.
///
/// A turn of an event loop is one [`Local::turn`], and a [`Local::wait`] if nothing is left to do. The wait ends when a
/// task of this thread can go on, and when there is something to read at a descriptor that is watched, such as the
/// loop's own epoll.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// let db = farleaf::Farleaf::open("mem:")?;
/// let table = db.create_table("users", Default::default())?;
/// let local = db.local()?;
/// let users = local.table(&table)?;
/// let born = Rc::new(Cell::new(None));
/// let found = Rc::clone(&born);
/// local.spawn(async move {
///     users.insert("ada", "1815").await.expect("room for it");
///     found.set(users.get("ada").await.expect("a table"));
/// });
/// while local.has_tasks() {
///     if local.turn() != Some(std::time::Duration::ZERO) && local.has_tasks() {
///         local.wait(None);
///     }
/// }
/// assert_eq!(born.take(), Some(b"1815".to_vec()));
/// # Ok::<(), farleaf::Error>(())
/// ```
///
/// Each operation that is under way has one of the pool's sessions. Of these a store takes a quarter for operations that
/// overlap; further ones wait for a session in the order in which they began.
///
/// [`Farleaf::close`] by another thread waits for the operations that are under way, for as long as this thread turns,
/// and a second at most. Then the pool is left as if this process had died, and others clear up. On this thread,
/// [`Farleaf::close`] and [`Farleaf::drop_table`] are refused while operations are under way. A task that has a
/// [`LocalTable`] keeps the store open until it ends.
#[derive(Clone)]
pub struct Local {
    /// Before the store: its sessions end before the last handle leaves the pool.
    shared: Rc<Shared>,
    store: Farleaf,
    /// Tasks that have not ended.
    tasks: Rc<Cell<usize>>,
}

struct Shared {
    context: ThreadContext,
    permits: Receiver<()>,
    /// The way back of a permit.
    permitted: Sender<()>,
}

/// The right to one operation.
struct Permit<'a>(&'a Sender<()>);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        // There is room: it was taken out.
        let _ = self.0.try_send(());
    }
}

/// A task that has not ended. It counts them by itself: a task that held the executor would never be dropped with it.
struct Live(Rc<Cell<usize>>);

impl Live {
    fn new(tasks: &Rc<Cell<usize>>) -> Live {
        tasks.set(tasks.get() + 1);
        Live(Rc::clone(tasks))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Farleaf {
    /// Returns this thread's own executor and sessions.
    ///
    /// Cost: a connection to each memory server on a network; two descriptors on mapped memory. Sessions are taken as
    /// operations need them.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) after [`Farleaf::close`]; as [`Farleaf::open`] for what cannot
    /// be reached.
    pub fn local(&self) -> Result<Local> {
        let core = self.core();
        if core.is_closed() {
            return Err(Error::closed());
        }
        let context = ThreadContext::watching(core)?;
        let count = context.sessions_most().max(1);
        let (permitted, permits) = async_channel::bounded(count);
        for _ in 0..count {
            // There is room for as many.
            let _ = permitted.try_send(());
        }
        let shared = Rc::new(Shared { context, permits, permitted });
        Ok(Local { shared, store: self.clone(), tasks: Rc::default() })
    }
}

impl Local {
    /// A table of the same store, with operations that run on this thread.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a table of another store.
    pub fn table(&self, table: &Table) -> Result<LocalTable> {
        if !Arc::ptr_eq(table.store().core(), self.store.core()) {
            return Err(Error::invalid(format!(
                "table \"{}\" is of another store than this thread's executor",
                table.name()
            )));
        }
        Ok(LocalTable { local: self.clone(), core: table.shared_core() })
    }

    /// Adds a task, which turns run until it ends.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let live = Live::new(&self.tasks);
        self.shared.context.endpoint().executor().spawn(async move {
            let _live = live;
            task.await;
        });
    }

    /// Returns whether a task of [`Local::spawn`] has not ended.
    pub fn has_tasks(&self) -> bool {
        self.tasks.get() > 0
    }

    /// Makes [`Local::wait`] end when there is something to read at `descriptor`, from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the system refuses.
    pub fn watch(&self, descriptor: &impl AsFd) -> Result<()> {
        let watched = self.shared.context.endpoint().executor().watch(descriptor);
        watched.map_err(|source: io::Error| Error::io("cannot watch a descriptor", source))
    }

    /// Runs the tasks that are ready, once each, sends what they have posted and takes what has come. Waits for nothing.
    /// Returns the time until a task is ready by itself: zero if one is ready now, `None` if none waits for a time.
    ///
    /// # Panics
    /// From inside a task of this thread's executor.
    pub fn turn(&self) -> Option<Duration> {
        self.shared.context.endpoint().executor().turn().map(Duration::from_nanos)
    }

    /// Waits until a task can go on, there is something to read at a watched descriptor, or `at_most` has passed. It may
    /// end earlier. While operations wait for servers, it spins for some microseconds before it sleeps, if no more
    /// threads of this process do so than it has processors.
    ///
    /// # Panics
    /// From inside a task of this thread's executor.
    pub fn wait(&self, at_most: Option<Duration>) {
        self.shared.context.endpoint().executor().wait(at_most);
    }

    /// Waits for `time`; other tasks of this thread go on.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.shared.context.endpoint().executor().sleep(ns)
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("store", &self.store)
            .field("tasks", &self.tasks.get())
            .finish()
    }
}

/// A table whose operations run on the thread of a [`Local`], which made it. What each does and how it fails stands at
/// the method of the same name of [`Table`]. A future that is dropped leaves its operation undone, done, or done later.
#[derive(Clone)]
pub struct LocalTable {
    local: Local,
    core: Arc<TableCore>,
}

impl LocalTable {
    /// The table's name.
    pub fn name(&self) -> &str {
        &self.core.info().name
    }

    /// Returns the table's name, engine and formats.
    pub fn info(&self) -> &TableInfo {
        self.core.info()
    }

    /// See [`Table::get`].
    ///
    /// # Errors
    /// As there, here and in all methods of this type.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.by_session(async |core, session| core.value(session, key.as_ref()).await).await
    }

    /// See [`Table::get_into`].
    pub async fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<bool> {
        self.by_session(async |core, session| core.get(session, key.as_ref(), value).await).await
    }

    /// See [`Table::contains_key`].
    pub async fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.by_session(async |core, session| core.contains(session, key.as_ref()).await).await
    }

    /// See [`Table::insert`].
    pub async fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.upsert(session, key, value).await).await
    }

    /// See [`Table::insert_new`].
    pub async fn insert_new(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.insert(session, key, value).await).await
    }

    /// See [`Table::update`].
    pub async fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| core.update(session, key, value).await).await
    }

    /// See [`Table::remove`].
    pub async fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.by_session(async |core, session| core.remove(session, key.as_ref()).await).await
    }

    /// See [`Table::compare_exchange`].
    pub async fn compare_exchange(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareExchange> {
        let key = key.as_ref();
        self.by_session(async |core, session| core.exchange(session, key, expected, new).await)
            .await
    }

    /// The first `limit` pairs of `range`, ascending, or descending if `reverse`. To go on, start behind the last key.
    pub async fn scan(
        &self,
        range: impl KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (from, to) = range.ends();
        let range = Interval::of(from, to, self.info().keys);
        self.by_session(async |core, session| {
            let mut entries = Entries::new();
            if !range.is_empty() && limit > 0 {
                core.scan(session, range.scan(reverse), limit, &mut entries).await?;
            }
            Ok(entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
        })
        .await
    }

    /// See [`Table::get_many`].
    pub async fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.run(async |core, context| core.get_many(context, keys).await).await
    }

    /// See [`Table::insert_many`].
    pub async fn insert_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: &[(K, V)],
    ) -> Result<u64> {
        self.run(async |core, context| core.insert_many(context, pairs).await).await
    }

    /// See [`Table::remove_many`].
    pub async fn remove_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<u64> {
        self.run(async |core, context| core.remove_many(context, keys).await).await
    }

    /// See [`Table::longest_run`].
    pub async fn longest_run<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<usize> {
        self.run(async |core, context| core.longest_run(context, keys).await).await
    }

    /// See [`Table::run_batch`].
    pub async fn run_batch<B: AsRef<[u8]>>(
        &self,
        operations: &[Operation<B>],
    ) -> Result<Vec<Result<Answer>>> {
        self.run(async |core, context| core.run_batch(context, operations).await).await
    }

    /// See [`Table::update_with`].
    pub async fn update_with(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        self.run(async |core, context| core.update_with(context, key, change).await).await
    }

    /// See [`Table::record`].
    pub async fn record(&self, key: impl AsRef<[u8]>) -> Result<Option<Record>> {
        let key = key.as_ref();
        self.by_session(async |core, session| {
            core.named(core.records_of(session)?.record(key).await)
        })
        .await
    }

    /// See [`Table::insert_with`].
    pub async fn insert_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: Expiry,
    ) -> Result<bool> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.by_session(async |core, session| {
            core.named(core.records_of(session)?.insert(key, value, expiry).await)
        })
        .await
    }

    /// See [`Table::update_record`].
    pub async fn update_record(
        &self,
        key: impl AsRef<[u8]>,
        change: impl FnMut(Option<&Record>) -> std::result::Result<RecordChange, RecordError>,
    ) -> Result<Option<Record>> {
        let key = key.as_ref();
        self.by_session(async |core, session| {
            core.named(core.records_of(session)?.update(key, change).await)
        })
        .await
    }

    async fn by_session<T>(
        &self,
        op: impl AsyncFnOnce(&TableCore, &Session) -> Result<T>,
    ) -> Result<T> {
        self.run(async |core, context| op(core, &*context.session().await?).await).await
    }

    pub(crate) async fn run<T>(
        &self,
        op: impl AsyncFnOnce(&TableCore, &ThreadContext) -> Result<T>,
    ) -> Result<T> {
        let (store, shared) = (self.local.store.core(), &self.local.shared);
        // The other end lives as long.
        let _ = shared.permits.recv().await;
        let _permit = Permit(&shared.permitted);
        let _inside = Inside::begin(store);
        let _under_way = self.core.begin_async()?;
        // After the count of operations, by which a thread that closes the store sees this one.
        fence(Ordering::SeqCst);
        if store.is_closed() {
            return Err(Error::closed());
        }
        shared.context.count_job();
        self.core.explain(&shared.context, op(&self.core, &shared.context).await).await
    }
}

impl fmt::Debug for LocalTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalTable").field(self.info()).finish()
    }
}
