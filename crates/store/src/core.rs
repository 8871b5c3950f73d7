//! Store core: the state that all handles, threads and tasks of one store share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_engines::StoredTable;
use farleaf_fabric::{AnyFabric, Client, Endpoint, ToAny};
use farleaf_index::sync::lock;
use farleaf_index::{OpenOptions, Settings, suggest};
use farleaf_pool::{Pool, PoolError, Root};

use crate::error::{Error, ErrorKind, Result};
use crate::op_lock::{Activity, OpLocks};
use crate::serve::{ServeOptions, Serving};
use crate::table_core::TableCore;
use crate::thread_context::{Session, ThreadContext};
use crate::turns::Turns;

/// One compute server's membership in a pool, and the tables that it has open.
///
/// It holds no handle, so that dropping the last handle is what closes the store.
pub(crate) struct Core {
    /// Number of the store in this process.
    pub(crate) number: u64,
    pub(crate) fabric: AnyFabric,
    /// True if others may have the pool open.
    pub(crate) is_shared: bool,
    /// Recovers the dead, whoever else does.
    pub(crate) recovers: bool,
    /// See [`Stats::tears_words`](crate::Stats::tears_words).
    pub(crate) tears_words: bool,
    pub(crate) pool: Arc<Pool>,
    /// Time that it waits for what the dead hold until they are recovered.
    pub(crate) patience_ns: u64,
    pub(crate) op_locks: OpLocks,
    pub(crate) activity: Activity,
    /// Operations of [`Local`](crate::Local)s that are under way.
    pub(crate) local_ops: AtomicUsize,
    /// Sessions that are being made beside others of the same call.
    pub(crate) making: AtomicUsize,
    /// Options for opening tables.
    options: OpenOptions,
    /// The part that answers other compute servers.
    pub(crate) serving: Serving,
    closed: AtomicBool,
    pub(crate) turns: Turns,
    /// Those that this process has opened, by name.
    tables: Mutex<BTreeMap<String, Arc<TableCore>>>,
}

static STORES: AtomicU64 = AtomicU64::new(0);

impl Core {
    /// Joins the pool that `fabric` reaches; waits up to `patience` for an entry of its member table.
    pub(crate) fn join(
        fabric: AnyFabric,
        is_shared: bool,
        recovers: bool,
        patience: Duration,
        options: OpenOptions,
        serve: ServeOptions,
    ) -> Result<Arc<Core>> {
        let endpoint = fabric.any_endpoint()?;
        let executor = endpoint.executor().clone();
        let tears_words = !endpoint.capabilities().word_atomic;
        let client = Client::new(endpoint);
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let pool = executor.block_on(Pool::join_within(&client, patience_ns))?;
        Ok(Arc::new(Core {
            number: STORES.fetch_add(1, Ordering::Relaxed),
            fabric,
            is_shared,
            recovers: recovers && is_shared,
            tears_words,
            pool,
            patience_ns,
            op_locks: OpLocks::default(),
            activity: Activity::default(),
            local_ops: AtomicUsize::new(0),
            making: AtomicUsize::new(0),
            options,
            serving: Serving::new(serve),
            closed: AtomicBool::new(false),
            turns: Turns::default(),
            tables: Mutex::default(),
        }))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Lets no more operations begin; `false` if that was so already.
    pub(crate) fn set_closed(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// The table of that name, opened if need be, with `settings` before those of the store.
    pub(crate) async fn open_table(
        self: &Arc<Self>,
        context: &ThreadContext,
        name: &str,
        settings: &Settings,
    ) -> Result<Arc<TableCore>> {
        let session = context.session().await?;
        self.open_by(&session, name, settings).await
    }

    /// As [`Core::open_table`], by `session`.
    pub(crate) async fn open_by(
        self: &Arc<Self>,
        session: &Session,
        name: &str,
        settings: &Settings,
    ) -> Result<Arc<TableCore>> {
        let _turn = self.turns.take(name).await;
        match session.open_root(name).await {
            Ok(root) => self.open_root(session, root, settings).await,
            Err(PoolError::NoSuchTable(_)) => {
                let opened = lock(&self.tables).get(name).cloned();
                if let Some(opened) = opened {
                    self.forget(session, &opened).await;
                }
                Err(no_such_table(session, name).await)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The table of that root, opened if need be, in the name's turn.
    async fn open_root(
        self: &Arc<Self>,
        session: &Session,
        root: Root,
        settings: &Settings,
    ) -> Result<Arc<TableCore>> {
        let opened = lock(&self.tables).get(&root.name).cloned();
        if let Some(opened) = opened {
            if *opened.root() == root {
                return Ok(opened);
            }
            // Dropped and made anew by another process.
            self.forget(session, &opened).await;
        }
        let mut options = self.serving.prepare(self, session, &root, &self.options).await?;
        let table = StoredTable::of(&root)?;
        options.settings.set_all(settings);
        options.settings = table.format().engine.options_of(&options.settings);
        let table = Arc::new(TableCore::open(session, root, &options).await?);
        // INV-SERVE-1
        self.serving.serve(self, table.index());
        lock(&self.tables).insert(table.info().name.clone(), Arc::clone(&table));
        Ok(table)
    }

    /// Takes a table out of the list of opened ones; from here on its handles fail. A newer one of
    /// the same name, which another thread has made meanwhile, stays.
    pub(crate) async fn forget(&self, session: &Session, table: &Arc<TableCore>) {
        table.set_dropped();
        {
            let mut tables = lock(&self.tables);
            let name = &table.info().name;
            if tables.get(name).is_some_and(|opened| Arc::ptr_eq(opened, table)) {
                tables.remove(name);
            }
        }
        // It is gone: there is nobody who could miss what is not closed.
        let _ = self.close_table(session, table).await;
    }

    /// Closes a table, of which no operation of this process is under way.
    pub(crate) async fn close_table(&self, session: &Session, table: &TableCore) -> Result<()> {
        self.serving.leave(session, table.index()).await;
        table.close(session).await?;
        // One that could not be left is acknowledged for as before, until the store ends.
        self.serving.forget(table.index());
        Ok(())
    }

    /// Closes all tables; no operation is under way. The first error, if there is one.
    pub(crate) async fn close_tables(&self, session: &Session) -> Result<()> {
        let tables = std::mem::take(&mut *lock(&self.tables));
        let mut closed = Ok(());
        for table in tables.into_values() {
            closed = closed.and(self.close_table(session, &table).await);
        }
        closed
    }
}

/// The error for a name that no table has, with the nearest one that a table has.
#[cold]
pub(crate) async fn no_such_table(session: &Session, name: &str) -> Error {
    let roots = session.list_roots().await.unwrap_or_default();
    let hint = suggest::hint(name, roots.iter().map(|root| root.name.as_str()));
    Error::new(ErrorKind::NotFound, format!("there is no table \"{name}\"{hint}"))
}
