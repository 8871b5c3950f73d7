//! Serving: executes other compute servers' requests for keys of this one.
//!
//! At the first table of an engine with owners, the store takes calls in by the fabric, starts threads
//! that execute them, and publishes its address in the pool if it has one. If [`Builder::expose_bytes`] says so, it
//! exposes memory to the other compute servers at the same time. A few tasks of each thread take calls,
//! so that a long one delays nobody. They run independently of the other threads of the process.
//!
//! - **INV-SERVE-1** The store takes requests for a table from before its first operation until no more
//!   operations can begin, and none is under way when the table closes.
//! - **INV-SERVE-2** A store that closes takes no more requests, finishes those that were begun, tells their
//!   senders, and only then gives its ranges up.
//! - **INV-SERVE-3** A store acknowledges maps of numbered partitions until it has left their table: others wait for it.
//!
//! [`Builder::expose_bytes`]: crate::Builder::expose_bytes

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use farleaf_engines::{AnyIndex, Engine};
use farleaf_fabric::{
    Endpoint, Exposed, Fabric, FabricError, GlobalAddr, ListenConfig, Processors,
};
use farleaf_index::compute::messages::{OpReply, Request};
use farleaf_index::compute::partitions::PartitionCalls;
use farleaf_index::compute::{Host, HostedTable, number_of};
use farleaf_index::sync::lock;
use farleaf_index::{Index, IndexError, OpenOptions};
use farleaf_pool::Root;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::thread_context::{Session, ThreadContext, kept};

/// Requests that each thread executes at a time, each with a session; and once this part of the pool's sessions
/// is taken by this store.
const TASKS: usize = 4;
const TASKS_LEAST: usize = 2;
const SPARE_PART: usize = 8;
/// Connections that other compute servers may have open to this one.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes of exposed memory are a multiple of this, and fewer than the others.
const EXPOSE_GRAIN: u64 = 4096;
const EXPOSE_LIMIT: u64 = 1 << 44;
/// Between two attempts of a thread to begin.
const START_PAUSE: Duration = Duration::from_millis(50);
/// Between two rounds of the regular work of tables with partitions.
const PARTITION_TICK: Duration = Duration::from_millis(10);
/// Between two looks whether the last requests are done.
const END_WAIT_NS: u64 = 100_000;

/// Options by which others reach this compute server.
#[derive(Clone, Debug)]
pub(crate) struct ServeOptions {
    /// Its certificates are those for memory servers, too.
    pub(crate) listens: ListenConfig,
    pub(crate) threads: usize,
    /// The processors on which they stay.
    pub(crate) pin: Processors,
    /// Bytes of memory that others may use; 0 for none.
    pub(crate) expose_bytes: u64,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let listens = ListenConfig { connections_max: CONNECTIONS_MAX, ..ListenConfig::default() };
        ServeOptions { listens, threads: 1, pin: Processors::default(), expose_bytes: 0 }
    }
}

impl ServeOptions {
    /// # Errors
    /// `Invalid` if they make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=64).contains(&self.threads) {
            let count = self.threads;
            return Err(Error::invalid(format!("{count} threads that serve: it takes 1 to 64")));
        }
        let bytes = self.expose_bytes;
        if !bytes.is_multiple_of(EXPOSE_GRAIN) || bytes >= EXPOSE_LIMIT {
            return Err(Error::invalid(format!(
                "{bytes} bytes of memory to expose: it takes a multiple of {EXPOSE_GRAIN} below 16 TiB, or 0 to \
                 expose none"
            )));
        }
        self.pin.check()?;
        Ok(self.listens.check()?)
    }
}

/// A table that others may ask, in this store.
#[derive(Clone, Debug)]
struct ServedTable {
    index: AnyIndex,
    /// The store that looks after what a request retires.
    core: Weak<Core>,
}

impl HostedTable for ServedTable {
    fn meta(&self) -> GlobalAddr {
        self.index.meta()
    }

    async fn serve(
        &self,
        session: &Session,
        request: Request,
    ) -> std::result::Result<OpReply, IndexError> {
        if let Some(core) = self.core.upgrade() {
            core.activity.note();
        }
        self.index.serve(session, request).await
    }
}

/// The serving side of a store.
#[derive(Debug)]
pub(crate) struct Serving {
    options: ServeOptions,
    state: Mutex<ServingState>,
    /// It goes on while the store closes (INV-SERVE-3).
    ticker: Mutex<Option<Ticker>>,
}

#[derive(Debug, Default)]
enum ServingState {
    #[default]
    Asleep,
    Running(Running),
    Stopped,
}

#[derive(Debug)]
struct Running {
    host: Arc<Host<ServedTable>>,
    /// Of a fabric with a network.
    exposed: Option<Exposed>,
    /// The others know address and memory.
    is_published: bool,
    /// Ends them when it is dropped.
    goes_on: Sender<()>,
    threads: Vec<JoinHandle<()>>,
}

/// The thread that keeps up with the maps of tables with numbered partitions.
#[derive(Debug)]
struct Ticker {
    tables: Arc<PartitionedTables>,
    /// Ends it when it is dropped.
    goes_on: Sender<()>,
    thread: JoinHandle<()>,
}

/// Tables with numbered partitions, whose maps a thread keeps up with: no partition changes its owner without that.
#[derive(Debug, Default)]
struct PartitionedTables {
    tables: Mutex<Vec<AnyIndex>>,
    /// The thread has a session of the pool.
    has_session: AtomicBool,
}

impl PartitionedTables {
    fn add(&self, index: &AnyIndex) {
        let meta = |index: &AnyIndex| index.partitions().map(|table| table.meta());
        let mut tables = lock(&self.tables);
        tables.retain(|other| meta(other) != meta(index));
        tables.push(index.clone());
    }

    /// Removes the table as it was opened then: another thread may have opened it anew.
    fn remove(&self, index: &AnyIndex) {
        let counts = |index: &AnyIndex| {
            index.partitions().map(|table| std::ptr::from_ref(table.partition_counts()))
        };
        lock(&self.tables).retain(|other| counts(other) != counts(index));
    }

    /// One round of regular work. What fails now is done in the next one, and operations report what is wrong.
    async fn tick(&self, session: &Session) {
        let tables = lock(&self.tables).clone();
        for table in tables.iter().filter_map(Index::partitions) {
            let _ = table.tick(session).await;
        }
    }

    /// Nobody ticks any more.
    fn end(&self) {
        lock(&self.tables).iter().filter_map(Index::partitions).for_each(PartitionCalls::end_ticks);
    }
}

impl Serving {
    pub(crate) fn new(options: ServeOptions) -> Self {
        Serving { options, state: Mutex::default(), ticker: Mutex::default() }
    }

    /// Returns the options to open the table of `root`: if its engine has owners, it sends them what is theirs.
    pub(crate) async fn prepare(
        &self,
        core: &Arc<Core>,
        session: &Session,
        root: &Root,
        options: &OpenOptions,
    ) -> Result<OpenOptions> {
        let asks_others =
            root.engine.parse().is_ok_and(|engine: Engine| engine.traits().is_served());
        if !core.is_shared || !asks_others {
            return Ok(options.clone());
        }
        self.listen(core, session).await?;
        Ok(OpenOptions { calls: true, ..options.clone() })
    }

    /// The address that others use, if there is one.
    #[cfg(feature = "etcd")]
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.exposed().map(|exposed| exposed.address)
    }

    /// Returns the address at which it listens, if it does.
    pub(crate) fn listens(&self) -> Option<SocketAddr> {
        self.exposed().map(|exposed| exposed.listens)
    }

    fn exposed(&self) -> Option<Exposed> {
        match &*lock(&self.state) {
            ServingState::Running(running) => running.exposed,
            ServingState::Asleep | ServingState::Stopped => None,
        }
    }

    /// Bytes of memory that others may use now.
    pub(crate) fn exposed_bytes(&self) -> u64 {
        match &*lock(&self.state) {
            ServingState::Running(_) => self.options.expose_bytes,
            ServingState::Asleep | ServingState::Stopped => 0,
        }
    }

    /// Takes calls in, and lets the pool know address and memory, unless that is done; the address, if there is
    /// one.
    pub(crate) async fn listen(
        &self,
        core: &Arc<Core>,
        session: &Session,
    ) -> Result<Option<SocketAddr>> {
        self.start(core)?;
        let (address, is_published) = match &*lock(&self.state) {
            ServingState::Running(running) => {
                (running.exposed.map(|exposed| exposed.address), running.is_published)
            }
            ServingState::Asleep | ServingState::Stopped => return Err(Error::closed()),
        };
        let expose_bytes = self.options.expose_bytes;
        if !is_published && (address.is_some() || expose_bytes > 0) {
            // A member that reads the address finds the memory as well.
            if expose_bytes > 0 {
                session.publish_region(expose_bytes).await?;
            }
            if let Some(address) = address {
                session.publish_address(address).await?;
            }
            if let ServingState::Running(running) = &mut *lock(&self.state) {
                running.is_published = true;
            }
        }
        Ok(address)
    }

    /// Takes calls in and starts the threads, unless that is done.
    fn start(&self, core: &Arc<Core>) -> Result<()> {
        let mut state = lock(&self.state);
        match &*state {
            ServingState::Running(_) => return Ok(()),
            ServingState::Stopped => return Err(Error::closed()),
            ServingState::Asleep => {}
        }
        let listens = &self.options.listens;
        let number = number_of(core.pool.member());
        let exposed = core.fabric.expose(number, self.options.expose_bytes, listens);
        let exposed = exposed.map_err(|error| not_exposed(error, &self.options))?;
        let host: Arc<Host<ServedTable>> = Arc::default();
        let (goes_on, ends) = async_channel::bounded(1);
        let mut threads = Vec::new();
        for number in 0..self.options.threads {
            let (core, pin) = (Arc::clone(core), self.options.pin.clone());
            let (host, ends) = (Arc::clone(&host), ends.clone());
            let thread = thread::Builder::new()
                .name(format!("farleaf-serve-{number}"))
                .spawn(move || {
                    pin.pin(number);
                    serve(&core, &host, &ends);
                })
                .map_err(|source| Error::io("cannot start a serving thread", source))?;
            threads.push(thread);
        }
        let running = Running { host, exposed, is_published: false, goes_on, threads };
        *state = ServingState::Running(running);
        Ok(())
    }

    /// Takes requests for a table that has been opened, unless it does already.
    pub(crate) fn serve(&self, core: &Arc<Core>, index: &AnyIndex) {
        if index.partitions().is_some() {
            self.tick_partitions(core, index);
        }
        if index.owned().is_none() {
            return;
        }
        if let ServingState::Running(running) = &*lock(&self.state) {
            running.host.add(ServedTable { index: index.clone(), core: Arc::downgrade(core) });
        }
    }

    /// Keeps up with the partitions of a table, by a thread of its own: operations wait for it.
    fn tick_partitions(&self, core: &Arc<Core>, index: &AnyIndex) {
        if !matches!(*lock(&self.state), ServingState::Running(_)) {
            return;
        }
        let mut ticker = lock(&self.ticker);
        if let Some(ticker) = &*ticker {
            return ticker.tables.add(index);
        }
        let tables = Arc::<PartitionedTables>::default();
        tables.add(index);
        let (goes_on, ends) = async_channel::bounded(1);
        let (core, ticked) = (Arc::clone(core), Arc::clone(&tables));
        let thread = thread::Builder::new().name("farleaf-partitions".to_owned());
        // If that fails the next table tries again; operations that wait for a partition do it meanwhile.
        if let Ok(thread) = thread.spawn(move || tick_until_closed(&core, &ticked, &ends)) {
            *ticker = Some(Ticker { tables, goes_on, thread });
        }
    }

    /// Sessions of the pool that the thread has which keeps up with partitions.
    pub(crate) fn tick_sessions(&self) -> usize {
        let ticker = lock(&self.ticker);
        let has_session = |ticker: &Ticker| ticker.tables.has_session.load(Ordering::SeqCst);
        usize::from(ticker.as_ref().is_some_and(has_session))
    }

    /// The table has been left: its partitions are no concern of this store any more.
    pub(crate) fn forget(&self, index: &AnyIndex) {
        if let Some(ticker) = &*lock(&self.ticker) {
            ticker.tables.remove(index);
        }
    }

    /// Ends the thread that keeps up with partitions.
    pub(crate) fn stop_ticking(&self) {
        let Some(Ticker { goes_on, thread, .. }) = lock(&self.ticker).take() else { return };
        drop(goes_on);
        // One that panicked has said so.
        let _ = thread.join();
    }

    /// Takes requests for the table no more; those that were begun are done then.
    pub(crate) async fn leave(&self, session: &Session, index: &AnyIndex) {
        if index.owned().is_none() {
            return;
        }
        let leaving = match &*lock(&self.state) {
            ServingState::Running(running) => running.host.remove(index.meta()),
            ServingState::Asleep | ServingState::Stopped => None,
        };
        while leaving.as_ref().is_some_and(|leaving| !leaving.is_done()) {
            session.endpoint().sleep(END_WAIT_NS).await;
        }
    }

    /// Takes no more requests, and ends the threads; those that were begun are done then, and their senders
    /// know.
    pub(crate) fn stop(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), ServingState::Stopped);
        let ServingState::Running(Running { goes_on, threads, .. }) = state else { return };
        drop(goes_on);
        for thread in threads {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// A thread that executes requests, until `ends` is closed.
fn serve(core: &Arc<Core>, host: &Arc<Host<ServedTable>>, ends: &Receiver<()>) {
    let context = loop {
        match ThreadContext::new(core) {
            Ok(context) => break context,
            Err(_) if ends.is_closed() => return,
            // The memory servers cannot be reached now. Requests wait.
            Err(_) => thread::sleep(START_PAUSE),
        }
    };
    let endpoint = context.endpoint();
    endpoint.executor().block_on(async {
        let (runs, all_ended) = async_channel::bounded::<()>(1);
        let mut tasks = 0;
        while tasks < tasks_wanted(core) && !ends.is_closed() {
            match core.pool.session_leaving(endpoint.clone(), kept(core)).await {
                Ok(session) => {
                    let (host, runs) = (Arc::clone(host), runs.clone());
                    endpoint.spawn(async move {
                        // It ends when this compute server leaves, and in no other way.
                        let _ = host.serve(session).await;
                        drop(runs);
                    });
                    tasks += 1;
                }
                Err(_) if tasks > 0 => break,
                // The pool's sessions are taken. Requests wait.
                Err(_) => endpoint.sleep(START_PAUSE.as_nanos() as u64).await,
            }
        }
        drop(runs);
        let _ = ends.recv().await;
        endpoint.leave().await;
        let _ = all_ended.recv().await;
    });
}

/// A thread that does the regular work of tables with partitions, until `ends` is closed.
fn tick_until_closed(core: &Arc<Core>, tables: &PartitionedTables, ends: &Receiver<()>) {
    let mut context = None;
    while !ends.is_closed() {
        if context.is_none() {
            context = ThreadContext::new(core).ok();
        }
        if let Some(context) = &context {
            context.endpoint().executor().block_on(async {
                let session = core.pool.session_leaving(context.endpoint().clone(), kept(core));
                let Ok(session) = session.await else { return };
                tables.has_session.store(true, Ordering::SeqCst);
                while !ends.is_closed() {
                    tables.tick(&session).await;
                    context.endpoint().sleep(PARTITION_TICK.as_nanos() as u64).await;
                }
                tables.end();
            });
            tables.has_session.store(false, Ordering::SeqCst);
        }
        thread::sleep(PARTITION_TICK);
    }
}

/// Tasks of a thread, by how many of the pool's sessions this store has taken.
fn tasks_wanted(core: &Core) -> usize {
    let sessions_max = core.pool.geometry().options().clients_max as usize;
    if core.pool.sessions() >= sessions_max / SPARE_PART { TASKS_LEAST } else { TASKS }
}

/// The error for an address at which it cannot listen, or for memory that it cannot expose.
#[cold]
fn not_exposed(error: FabricError, options: &ServeOptions) -> Error {
    let (listen, bytes) = (options.listens.listen, options.expose_bytes);
    let source = match error {
        FabricError::Unreachable { source, .. } => source,
        error if bytes > 0 => {
            let error = Error::from(error);
            let told =
                format!("cannot expose {bytes} bytes of memory to other compute servers: {error}");
            return Error::new(error.kind(), told);
        }
        error => return error.into(),
    };
    let told = format!("cannot listen on {listen}");
    match source.kind() {
        io::ErrorKind::AddrNotAvailable => {
            Error::invalid(format!("{told}: it is not an address of this machine"))
        }
        io::ErrorKind::AddrInUse => Error::io(
            format!("{told}: another process listens there; port 0 takes a free one"),
            source,
        ),
        _ => Error::io(told, source),
    }
}
