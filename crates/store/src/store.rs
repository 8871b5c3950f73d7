//! Store: an open pool, and the tables in it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_engines::AnyIndex;
use farleaf_fabric::{AnyFabric, Endpoint, Fabric, Snapshot};
use farleaf_index::Settings;
use farleaf_index::sync::lock;
use farleaf_pool::{Audit, PoolError};

use crate::builder::Builder;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::maintain;
use crate::options::{TableInfo, TableOptions};
use crate::partitions::ComputeServer;
#[cfg(feature = "etcd")]
use crate::registered::{ClusterState, Registered};
use crate::report::{Stats, VerifyReport};
use crate::table::Table;
use crate::thread_context::{self, ThreadContext};
use crate::uri::Uri;
use crate::workers::Workers;

/// An open pool with its tables. Clones are handles of the same; use them from any thread.
///
/// Once the last handle, table and iterator is dropped, the pool is left; [`Farleaf::close`] does
/// the same at once and says whether it worked.
#[derive(Clone)]
pub struct Farleaf {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
    workers: Workers,
    maintenance: Mutex<Option<JoinHandle<Result<()>>>>,
    #[cfg(feature = "etcd")]
    registered: Mutex<Option<Registered>>,
}

impl Farleaf {
    /// Opens the pool at `uri` with default options.
    ///
    /// `mem:` makes a new pool in this process's memory, which goes with the last handle: 4 GiB
    /// on one memory server, of which the system commits what is used. `shm:<folder>` opens the
    /// pool in that folder, which processes of this machine share; [`Builder::create`] makes one.
    /// `tcp://<host>:<port>,<host>:<port>` connects to the memory servers of a pool, named in the order
    /// of their numbers; `verbs://` reaches them by RDMA, for which this machine and theirs have cards.
    /// The card may be named, as in `verbs://<host>:<port>?device=mlx5_0&port=1&gid=3&mtu=4096`;
    /// what is left out is chosen: the first device with an active port, that port, its first routable
    /// RoCE v2 address, and the largest packets that both sides carry.
    /// `etcd://<host>:<port>,<host>:<port>/<cluster>` connects to those that are registered under the
    /// cluster's name in the directory that etcd keeps at these addresses, by TCP or by RDMA, as they say
    /// there, and registers this process (feature `etcd`). A card may be said as for `verbs://`.
    ///
    /// If a compute server that had the pool open has died, what it left is cleared away first,
    /// which walks all tables.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an address that is not understood (the message lists those that
    /// are) or names memory servers that are others than were meant, [`ErrorKind::NoPool`] if there is
    /// none, [`ErrorKind::Corrupt`] if what is there is damaged or of another version,
    /// [`ErrorKind::Unavailable`] if a memory server cannot be reached, or RDMA not be used,
    /// [`ErrorKind::Full`] if it takes no more connections, [`ErrorKind::Io`] if the system refuses. For a
    /// cluster also `Unavailable` if etcd cannot be reached, or not all memory servers are registered;
    /// `NoPool` if there is no such cluster; `Invalid` if its memory servers do not belong together, or to
    /// another pool than it had; `Corrupt` if the directory holds what Farleaf has not written.
    pub fn open(uri: &str) -> Result<Farleaf> {
        Farleaf::builder().open(uri)
    }

    /// Opens the pool of the memory servers at `uri`, as in `tcp://host:7000,host:7001`, by RDMA as in
    /// `verbs://host:7000,host:7001`, or of the cluster that it names, as in `etcd://host:2379/orders`.
    ///
    /// A connection that is lost is made anew by the next operation; one that finds no server within a
    /// second fails with [`ErrorKind::Unavailable`]. Should a server stay away for longer than 10 seconds
    /// from a call that it must end, this process leaves the pool as if it had died, so that others can
    /// go on, and every operation fails with [`ErrorKind::Closed`].
    ///
    /// # Errors
    /// As [`Farleaf::open`]; [`ErrorKind::Invalid`] also for the address of a pool on this machine.
    pub fn connect(uri: &str) -> Result<Farleaf> {
        Uri::parse(uri)?.check_network(uri)?;
        Farleaf::open(uri)
    }

    /// Options for opening.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The handle of a store that has just joined its pool. Clears away what dead members left.
    pub(crate) fn start(core: Arc<Core>, async_workers: usize) -> Result<Farleaf> {
        let handle = Handle {
            core,
            workers: Workers::new(async_workers),
            maintenance: Mutex::new(None),
            #[cfg(feature = "etcd")]
            registered: Mutex::new(None),
        };
        let db = Farleaf { handle: Arc::new(handle) };
        let thread = maintain::start(Arc::clone(db.core()))?;
        *lock(&db.handle.maintenance) = Some(thread);
        Ok(db)
    }

    /// Removes a pool in a folder (`shm:`) that this process has made, if it has no tables and no other process has
    /// ever opened it; returns whether it has. For a program that fails before it has used a new pool.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses.
    pub fn remove_if_unused(&self) -> Result<bool> {
        let AnyFabric::Mapped(mapped) = &self.core().fabric else { return Ok(false) };
        Ok(self.tables()?.is_empty() && mapped.remove_if_unused()?)
    }

    /// Makes a table.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is one of that name; [`ErrorKind::Invalid`] for a
    /// name that is empty or longer than 128 bytes, or options that make no sense;
    /// [`ErrorKind::Full`] if the pool has no room.
    pub fn create_table(&self, name: &str, options: TableOptions) -> Result<Table> {
        let (format, settings) = options.split()?;
        self.run(async |core, context| {
            let session = context.session().await?;
            match session.open_root(name).await {
                Err(PoolError::NoSuchTable(_)) => {}
                Ok(_) => return Err(PoolError::TableExists(name.to_owned()).into()),
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = AnyIndex::create(&session, name, &format).await {
                // Somebody else may have been quicker than the look above.
                if session.open_root(name).await.is_ok() {
                    return Err(PoolError::TableExists(name.to_owned()).into());
                }
                return Err(Error::from(error).within(format_args!("cannot make table {name:?}")));
            }
            core.open_table(context, name, &settings).await
        })
        .map(|table| Table::new(self.clone(), table))
    }

    /// Opens a table.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none of that name; the message names the nearest one.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.open_table(name, &Settings::default())
    }

    fn open_table(&self, name: &str, settings: &Settings) -> Result<Table> {
        let table =
            self.run(async |core, context| core.open_table(context, name, settings).await)?;
        Ok(Table::new(self.clone(), table))
    }

    /// Opens a table, or makes it if there is none of that name. An existing one keeps the options
    /// that it was made with; see [`Table::info`]. Of the settings in `options` it takes those of its engine by
    /// which a table is opened.
    ///
    /// # Errors
    /// As [`Farleaf::create_table`], except `AlreadyExists`.
    pub fn table_or_create(&self, name: &str, options: TableOptions) -> Result<Table> {
        let settings = options.settings().clone();
        match self.open_table(name, &settings) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            table => return table,
        }
        match self.create_table(name, options) {
            // Somebody else was quicker.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.open_table(name, &settings)
            }
            table => table,
        }
    }

    /// Takes a table out of the pool and frees its memory. Its handles in this process fail with
    /// [`ErrorKind::NotFound`] from then on; no other process may be using it. The name is free for a
    /// new table at once. Others may recover dead processes meanwhile; should this one die over it,
    /// they finish it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none of that name; [`ErrorKind::Invalid`] from inside
    /// an operation of this store (an iterator that a bulk load reads).
    pub fn drop_table(&self, name: &str) -> Result<()> {
        let core = self.core();
        let table = self.run(async |core, context| {
            core.open_table(context, name, &Settings::default()).await
        })?;
        thread_context::check_outside(core)?;
        // From here on new operations fail, through handles that are made meanwhile too; those that
        // have begun end first.
        if !table.set_dropped() {
            // Another thread is dropping it.
            return Err(table.gone());
        }
        core.op_locks.pass();
        while table.has_async_ops() {
            std::thread::sleep(Duration::from_micros(100));
        }
        self.run(async |core, context| {
            let session = context.session().await?;
            core.close_table(&session, &table).await?;
            let dropped = AnyIndex::drop_table(&session, name).await;
            let _turn = core.turns.take(name).await;
            core.forget(&session, &table).await;
            Ok(dropped?)
        })
    }

    /// All tables, in the order in which they stand in the pool.
    ///
    /// # Errors
    /// See [`Farleaf::verify`].
    pub fn tables(&self) -> Result<Vec<TableInfo>> {
        self.run(async |_, context| {
            let session = context.session().await?;
            let mut tables = Vec::new();
            for root in session.list_roots().await? {
                tables.push(TableInfo::of(&root)?);
            }
            Ok(tables)
        })
    }

    /// Numbers of the store, as this process sees them. No remote operation.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after [`Farleaf::close`].
    pub fn stats(&self) -> Result<Stats> {
        let core = self.core();
        if core.is_closed() {
            return Err(Error::closed());
        }
        let geometry = core.pool.geometry();
        Ok(Stats {
            fabric: core.fabric.name(),
            tears_words: core.tears_words,
            memory_servers: geometry.servers(),
            block_bytes: geometry.options().block_bytes,
            member: core.pool.member(),
            memory: core.pool.memory(),
            recoveries: core.pool.recovery_counts(),
            exposed_bytes: core.serving.exposed_bytes(),
            counters: Snapshot::of(&core.fabric.counters()),
        })
    }

    /// Listens for other compute servers from now on, and not only once a table is opened whose engine needs
    /// that; this compute server, with the address that others use, if the pool is on a network.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for `mem:`, which nobody else can open; [`ErrorKind::Io`] if the system
    /// refuses.
    pub fn serve(&self) -> Result<ComputeServer> {
        self.run(async |core, context| {
            if !core.is_shared {
                return Err(Error::invalid("a mem: pool has no other compute servers"));
            }
            let session = context.session().await?;
            let address = core.serving.listen(core, &session).await?;
            let member = farleaf_pool::Member {
                slot: core.pool.member(),
                generation: core.pool.generation(),
                incarnation: session.endpoint().incarnation(),
                address,
                region_bytes: session.endpoint().own_region().map_or(0, |own| own.words.bytes()),
            };
            Ok(ComputeServer::of(member, member.incarnation))
        })
    }

    /// Returns the address at which this process listens for others, once it does ([`Farleaf::serve`]): at
    /// [`Builder::listen`](crate::Builder::listen), with the port that it took. Others are told another
    /// address if [`Builder::advertise`](crate::Builder::advertise) says so.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after [`Farleaf::close`].
    pub fn listens(&self) -> Result<Option<SocketAddr>> {
        self.run(async |core, _| Ok(core.serving.listens()))
    }

    /// The compute servers that have the pool open, by their numbers there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]; [`ErrorKind::Closed`] after [`Farleaf::close`].
    pub fn compute_servers(&self) -> Result<Vec<ComputeServer>> {
        self.run(async |_, context| {
            let session = context.session().await?;
            let me = session.endpoint().incarnation();
            let members = session.members().await?.into_iter();
            Ok(members.map(|member| ComputeServer::of(member, me)).collect())
        })
    }

    /// Returns this process's state in its cluster; `None` for a pool that was not opened by a cluster's name
    /// (`etcd://`). As it was when the directory was last looked at, less than a second ago if etcd
    /// answers. No remote operation.
    #[cfg(feature = "etcd")]
    pub fn cluster(&self) -> Option<ClusterState> {
        lock(&self.handle.registered).as_ref().map(Registered::state)
    }

    /// Registers this process in its cluster's directory until the store is closed.
    #[cfg(feature = "etcd")]
    pub(crate) fn register(
        &self,
        directory: &farleaf_cluster::Directory,
        is_new: bool,
        leaves_when_asked: bool,
    ) -> Result<()> {
        let registered = Registered::start(self.core(), directory, is_new, leaves_when_asked)?;
        *lock(&self.handle.registered) = Some(registered);
        Ok(())
    }

    /// Checks every node of every table and accounts for every object of the pool. Meant for a
    /// quiet store: changes that are under way may be reported as problems.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the walk cannot go on, [`ErrorKind::Closed`] after
    /// [`Farleaf::close`].
    pub fn verify(&self) -> Result<VerifyReport> {
        self.run(async |core, context| {
            let session = context.session().await?;
            let mut audit = Audit::new(&session).await?;
            let mut tables = Vec::new();
            let mut roots = Vec::new();
            for root in session.list_roots().await? {
                let table = match core.open_by(&session, &root.name, &Settings::default()).await {
                    // Dropped meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    table => table?,
                };
                tables.push(table.verify(&session, &mut audit).await?);
                roots.push(table.root().clone());
            }
            farleaf_engines::mark_drops(&session, &mut audit, &roots).await?;
            let memory = audit.report(&session).await?;
            Ok(VerifyReport { tables, memory })
        })
    }

    /// Leaves the pool: waits for the operations that have begun, in all threads, and gives back
    /// what this compute server holds. Every other handle, table and iterator of this store fails
    /// with [`ErrorKind::Closed`] from then on. What a shared pool holds stays.
    ///
    /// A thread that has used the store and goes on keeps its memory mapped, or its connections, until
    /// it next uses any store, or ends. What it held of a shared pool is then cleared away by whoever opens the pool
    /// next, as if this process had died.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] from inside an operation of this store; it is then still open.
    /// Otherwise it is closed, and the error says what could not be given back; other members
    /// clear that away.
    pub fn close(self) -> Result<()> {
        thread_context::check_outside(self.core())?;
        self.handle.shut_down()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    pub(crate) fn workers(&self) -> &Workers {
        &self.handle.workers
    }

    fn run<T>(&self, op: impl AsyncFnOnce(&Arc<Core>, &ThreadContext) -> Result<T>) -> Result<T> {
        ThreadContext::run(self.core(), async |context| op(self.core(), context).await)
    }
}

impl fmt::Debug for Farleaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Farleaf")
            .field("fabric", &self.core().fabric)
            .field("is_closed", &self.core().is_closed())
            .finish()
    }
}

impl Handle {
    /// Ends everything, once. The caller is not inside an operation of the store.
    fn shut_down(&self) -> Result<()> {
        if !self.core.set_closed() {
            return Ok(());
        }
        #[cfg(feature = "etcd")]
        let seat = lock(&self.registered).take().and_then(Registered::stop);
        self.workers.close();
        self.core.op_locks.pass();
        thread_context::note_closed();
        thread_context::purge();
        self.core.activity.wake();
        let left = match lock(&self.maintenance).take() {
            Some(thread) => thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "the maintenance thread ended by a panic"))
            }),
            None => ThreadContext::new(&self.core)
                .and_then(|context| maintain::leave(&self.core, &context)),
        };
        // Last, so that who waits for the entry's end finds that all is handed over. If etcd is away, it
        // runs out by itself.
        #[cfg(feature = "etcd")]
        if let Some(seat) = seat {
            let _ = seat.leave();
        }
        left
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody is left to hear of a failure; the other members clear up after this one.
        let _ = self.shut_down();
    }
}
