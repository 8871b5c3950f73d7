//! Store builder: collects the options for opening a store.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "etcd")]
use farleaf_cluster::{Directory, EtcdAccess};
use farleaf_engines::Engine;
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::tcp::{Tcp, TcpConfig, Tls};
use farleaf_fabric::verbs::{Verbs, VerbsConfig};
use farleaf_fabric::{AnyFabric, Client, Endpoint, FabricError, Processors, ServerId, ToAny};
use farleaf_index::knobs::CACHE;
use farleaf_index::{OpenOptions, Settings};
use farleaf_pool::PoolOptions;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::serve::ServeOptions;
use crate::store::Farleaf;
use crate::uri::{self, MemoryServers, Uri};

/// Options for opening a store; made by [`Farleaf::builder`].
///
/// ```
/// use farleaf::Farleaf;
///
/// let db = Farleaf::builder().memory_servers(4).pool_bytes(1 << 30).open("mem:")?;
/// assert_eq!(db.stats()?.memory_servers, 4);
/// # Ok::<(), farleaf::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `open`"]
pub struct Builder {
    memory_servers: usize,
    pool_bytes: u64,
    block_bytes: Option<u64>,
    create: bool,
    reserve: bool,
    async_workers: usize,
    options: OpenOptions,
    linger_timeout: Option<Duration>,
    join_timeout: Duration,
    serve: ServeOptions,
    recovers: bool,
    #[cfg(feature = "etcd")]
    etcd: EtcdAccess,
    #[cfg(feature = "etcd")]
    leaves_when_asked: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            memory_servers: 1,
            pool_bytes: 4 << 30,
            block_bytes: None,
            create: false,
            reserve: true,
            async_workers: 1,
            options: OpenOptions::default(),
            linger_timeout: None,
            join_timeout: Duration::from_secs(30),
            serve: ServeOptions::default(),
            recovers: true,
            #[cfg(feature = "etcd")]
            etcd: EtcdAccess::default(),
            #[cfg(feature = "etcd")]
            leaves_when_asked: false,
        }
    }
}

impl Builder {
    /// Memory servers of a pool that is made; on a network there are as many as the address names.
    /// Default: 1.
    pub fn memory_servers(mut self, count: usize) -> Self {
        self.memory_servers = count;
        self
    }

    /// Bytes of a pool that is made, all memory servers together. Of `mem:` the system commits memory as it
    /// is used; of `shm:` it is reserved ([`Builder::reserve`]). On a network the servers have what they were started with. Default: 4 GiB.
    pub fn pool_bytes(mut self, bytes: u64) -> Self {
        self.pool_bytes = bytes;
        self
    }

    /// Bytes of a block of a pool that is made, the unit in which compute servers take memory: a
    /// power of two, 64 KiB to 1 GiB. Default: what suits the pool's size, at most 16 MiB.
    pub fn block_bytes(mut self, bytes: u64) -> Self {
        self.block_bytes = Some(bytes);
        self
    }

    /// Sets whether `shm:<folder>` makes a pool if the folder is missing or empty, and `tcp://<servers>` and
    /// `verbs://<servers>` and `etcd://<servers>/<cluster>` if the memory servers hold none. A pool that is
    /// there is opened as it is. Default: no.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets whether all space of a pool that is made in a folder (`shm:`) is reserved at once. Without that, its
    /// files take space as it is used, and if their file system is full then, the system ends every process that
    /// touches new space (SIGBUS). Default: yes.
    pub fn reserve(mut self, reserve: bool) -> Self {
        self.reserve = reserve;
        self
    }

    /// Threads that do the work of the async API, 1 to 1024; they start when it is first used.
    /// Default: 1.
    pub fn async_workers(mut self, count: usize) -> Self {
        self.async_workers = count;
        self
    }

    /// Bytes of the cache of each table, for engines with a cache: the setting `cache`. The system commits
    /// memory as it is used. Default: 256 MiB.
    pub fn cache_bytes(self, bytes: u64) -> Self {
        self.set(CACHE, &bytes.to_string())
    }

    /// A setting by which this process opens tables, as in `.set("cache", "64MiB")`; tables of engines that
    /// do not have it go without. [`Engine::options`] lists them, and so does `farleaf engines NAME`.
    /// [`Builder::open`] refuses a name that no engine has and a value that makes no sense.
    ///
    /// ```
    /// use farleaf::Farleaf;
    ///
    /// let db = Farleaf::builder().set("cache", "64MiB").set("durability", "volatile").open("mem:")?;
    /// let error = Farleaf::builder().set("cahce", "64MiB").open("mem:").unwrap_err();
    /// assert!(error.to_string().contains("did you mean \"cache\"?"));
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.options.settings.set(name, value);
        self
    }

    /// All of `settings`, as by [`Builder::set`].
    pub fn set_all(mut self, settings: &Settings) -> Self {
        self.options.settings.set_all(settings);
        self
    }

    /// Sets how long a call that is over may be kept by what it must not leave half done on a memory server
    /// that cannot be reached. Then this process leaves the pool as if it had died: others finish or undo
    /// what it has begun, and its operations fail with [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    /// For pools on a network. Default: 10 s.
    pub fn linger_timeout(mut self, limit: Duration) -> Self {
        self.linger_timeout = Some(limit);
        self
    }

    /// Sets how long [`Builder::open`] waits if every entry of the pool's member table is taken, and an operation if
    /// others have all sessions: until a compute server leaves or the lease of a dead one runs out. Default: 30 s, which
    /// is two leases and more.
    pub fn join_timeout(mut self, limit: Duration) -> Self {
        self.join_timeout = limit;
        self
    }

    /// Connections to memory servers and between compute servers are encrypted, and both sides show
    /// certificates. All of a pool must have been started so. What goes by RDMA is not encrypted:
    /// there, certificates say who is let in, and no more. Default: neither.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.serve.listens.tls = Some(tls);
        self
    }

    /// The address at which other compute servers ask for the keys that this one has to itself, in tables of
    /// an engine whose compute servers own keys; port 0 takes a free one. It listens
    /// once the first such table is opened. Default: `127.0.0.1:0`.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.serve.listens.listen = address;
        self
    }

    /// The address that other compute servers are told, if they do not reach this one at [`Builder::listen`]: in
    /// a container, behind a translation of addresses (NAT) or a forwarder, or listening on all addresses of
    /// the machine (`0.0.0.0`). Port 0 stands for the one that it listens on. With [`Builder::tls`] the
    /// certificate is made out to this address. Nothing more is opened by it. Default: where it listens
    /// ([`Farleaf::listens`]).
    ///
    /// ```no_run
    /// use farleaf::Farleaf;
    ///
    /// let inside = "0.0.0.0:7100".parse()?;
    /// let outside = "10.0.0.7:31100".parse()?;
    /// let builder = Farleaf::builder().listen(inside).insecure_public(true).advertise(outside);
    /// let db = builder.open("tcp://10.0.0.1:7000")?;
    /// assert_eq!(db.serve()?.address, Some(outside));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.serve.listens.advertise = Some(address);
        self
    }

    /// Allows [`Builder::listen`] an address that other machines reach without [`Builder::tls`]: whoever
    /// reaches it can read and change the tables. Default: no.
    pub fn insecure_public(mut self, allow: bool) -> Self {
        self.serve.listens.insecure_public = allow;
        self
    }

    /// Bytes of memory that this process exposes to other compute servers, which read and write it as they do a memory
    /// server's, until it closes the store: a multiple of 4,096, below 16 TiB; 0 for none. Engines that keep a part
    /// of their tables in compute servers take it from there; a process that exposes none keeps no such part. It is
    /// exposed when the process begins to listen ([`Builder::listen`]). Memory is taken as it is used, but on a pool
    /// in a folder (`shm:`) its space is reserved at once, and with RDMA (`verbs://`) all of it is locked. What cannot
    /// be had is the error of the call that begins to listen; the store goes on. Default: 0.
    pub fn expose_bytes(mut self, bytes: u64) -> Self {
        self.serve.expose_bytes = bytes;
        self
    }

    /// Threads that answer other compute servers, 1 to 64. Default: 1.
    pub fn serve_threads(mut self, count: usize) -> Self {
        self.serve.threads = count;
        self
    }

    /// Processors on which the threads stay that answer other compute servers, one on each in turn. Those that
    /// are not there, or not for this process, are refused when the store is opened. Default: any.
    pub fn pin_serve_threads(mut self, processors: Processors) -> Self {
        self.serve.pin = processors;
        self
    }

    /// Sets how many partitions of a table of an engine with owners are taken at once when it is opened, of
    /// those that nobody has. Others are taken when a key of theirs is used. Default: 0.
    pub fn take_partitions(mut self, count: usize) -> Self {
        self.options.take = count;
        self
    }

    /// Sets how many operations on keys that nobody has this process does before it becomes their owner, for tables
    /// of an engine with owners. Each is slower than an owner's, and such operations of all processes exclude each
    /// other. Suits a process that does a few operations and ends: others need not wait for what it had to
    /// itself. Default: 0.
    pub fn guest_operations(mut self, count: u64) -> Self {
        self.options.guest_operations = count;
        self
    }

    /// Sets whether this process recovers compute servers that have died, as long as it has the pool open. One that
    /// does not leaves the dead to those that do, and recovers only if none of those lives. Suits a process that
    /// does a few operations and ends. Default: yes.
    pub fn recovers(mut self, recovers: bool) -> Self {
        self.recovers = recovers;
        self
    }

    /// Sets how etcd is reached for the directory of a cluster (`etcd://`), and as whom: by TLS, and as a user.
    /// Default: by plain HTTP, and as nobody.
    ///
    /// ```no_run
    /// use farleaf::{EtcdAccess, EtcdTlsFiles, Farleaf};
    ///
    /// let files = EtcdTlsFiles { ca: "/etc/farleaf/etcd-ca.pem".into(), identity: None };
    /// let access = EtcdAccess::default().tls(&files)?.user("orders", "its password");
    /// let db = Farleaf::builder().etcd(access).open("etcd://etcd.example:2379/orders")?;
    /// # Ok::<(), farleaf::Error>(())
    /// ```
    #[cfg(feature = "etcd")]
    pub fn etcd(mut self, access: EtcdAccess) -> Self {
        self.etcd = access;
        self
    }

    /// Says in the directory of a cluster (`etcd://`) that this process looks at
    /// [`ClusterState::is_leaving`](crate::ClusterState::is_leaving), and then hands over and closes the
    /// store, so that `farleaf cluster drain` may ask it to. Default: no.
    #[cfg(feature = "etcd")]
    pub fn leaves_when_asked(mut self, leaves: bool) -> Self {
        self.leaves_when_asked = leaves;
        self
    }

    /// Opens the pool at `uri`; see [`Farleaf::open`].
    ///
    /// # Errors
    /// As [`Farleaf::open`]; [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) also for sizes that
    /// make no sense, [`ErrorKind::Full`](crate::ErrorKind::Full) if memory cannot be had.
    pub fn open(self, uri: &str) -> Result<Farleaf> {
        let uri_parsed = Uri::parse(uri)?;
        if !(1..=1024).contains(&self.async_workers) {
            let count = self.async_workers;
            return Err(Error::invalid(format!("{count} async workers: it takes 1 to 1024")));
        }
        self.serve.check()?;
        Engine::check_some(Engine::ALL, &self.options.settings)
            .map_err(|error| Error::invalid(error.to_string()))?;
        let is_shared = uri_parsed != Uri::Mem;
        #[cfg(feature = "etcd")]
        let mut registering = None;
        let fabric = match uri_parsed {
            Uri::Mem => self.make_anonymous().map(AnyFabric::Mapped),
            Uri::Shm(folder) if self.create => self.open_or_make(&folder).map(AnyFabric::Mapped),
            Uri::Shm(folder) => Mapped::open(&folder).map(AnyFabric::Mapped).map_err(Error::from),
            Uri::Tcp(_) | Uri::Verbs(..) => {
                self.locate(uri).and_then(|servers| self.connect(servers)).map(|(fabric, _)| fabric)
            }
            #[cfg(feature = "etcd")]
            Uri::Etcd(address, card) => {
                let directory = Directory::with(&address, &self.etcd);
                MemoryServers::registered(&directory, &card)
                    .and_then(|servers| self.connect(servers))
                    .map(|(fabric, is_new)| {
                        registering = Some((directory, is_new));
                        fabric
                    })
            }
        };
        let core = fabric
            .and_then(|fabric| {
                let (options, serve) = (self.options.clone(), self.serve.clone());
                Core::join(fabric, is_shared, self.recovers, self.join_timeout, options, serve)
            })
            .map_err(|error| error.within(format_args!("cannot open \"{uri}\"")))?;
        let started = Farleaf::start(core, self.async_workers);
        #[cfg(feature = "etcd")]
        let started = started.and_then(|db| {
            if let Some((directory, is_new)) = registering {
                db.register(&directory, is_new, self.leaves_when_asked)?;
            }
            Ok(db)
        });
        started.map_err(|error| error.within(format_args!("cannot open \"{uri}\"")))
    }

    /// Finds the memory servers that a pool's address names, as in `tcp://host:7000,host:7001` or
    /// `verbs://host:7000?device=mlx5_0`, and how they are reached. Of a cluster, as in
    /// `etcd://host:2379/name`, where its memory servers say that they are (feature `etcd`).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for the address of a pool of this machine, and for
    /// what is none; `Io` or `Unavailable` for a host that is not found. For a cluster as [`Farleaf::open`].
    pub fn locate(&self, uri: &str) -> Result<MemoryServers> {
        match Uri::parse(uri)? {
            Uri::Tcp(servers) => MemoryServers::named(&servers, None),
            Uri::Verbs(servers, card) => MemoryServers::named(&servers, Some(card)),
            #[cfg(feature = "etcd")]
            Uri::Etcd(address, card) => {
                MemoryServers::registered(&Directory::with(&address, &self.etcd), &card)
            }
            Uri::Mem | Uri::Shm(_) => Err(uri::not_on_a_network(uri)),
        }
    }

    fn make_anonymous(&self) -> Result<Mapped> {
        let fabric = Mapped::anonymous(self.memory_servers, self.region_bytes()?)?;
        self.format(&fabric)?;
        Ok(fabric)
    }

    fn open_or_make(&self, folder: &Path) -> Result<Mapped> {
        match Mapped::open(folder) {
            Err(FabricError::NotAPool { .. }) => {}
            opened => return Ok(opened?),
        }
        let create = if self.reserve { Mapped::create } else { Mapped::create_unreserved };
        match create(folder, self.memory_servers, self.region_bytes()?) {
            Ok((fabric, guard)) => {
                self.format(&fabric)?;
                guard.finish()?;
                Ok(fabric)
            }
            // Somebody else may have made it meanwhile.
            Err(refused @ FabricError::NotAPool { .. }) => {
                Mapped::open(folder).map_err(|_| refused.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to memory servers, and makes a pool of them if that is asked for and they hold none; whether
    /// it has.
    fn connect(&self, servers: MemoryServers) -> Result<(AnyFabric, bool)> {
        let tcp = self.network(servers.addresses);
        let fabric = match servers.card {
            None => AnyFabric::Tcp(Tcp::connect(tcp)?),
            Some(card) => {
                let config = VerbsConfig { tcp, card, ..VerbsConfig::to([]) };
                AnyFabric::Verbs(Verbs::connect(config)?)
            }
        };
        let is_new = self.create && self.make_on(&fabric)?;
        Ok((fabric, is_new))
    }

    fn network(&self, servers: Vec<SocketAddr>) -> TcpConfig {
        let mut config = TcpConfig::to(servers);
        config.linger_timeout = self.linger_timeout.unwrap_or(config.linger_timeout);
        config.tls = self.serve.listens.tls.clone();
        config
    }

    /// Makes a pool on memory servers that hold none; returns whether it has.
    fn make_on(&self, fabric: &AnyFabric) -> Result<bool> {
        let endpoint = fabric.any_endpoint()?;
        let executor = endpoint.executor().clone();
        let regions = 0..endpoint.server_count() as u16;
        let least = regions.map(|server| endpoint.region_bytes(ServerId(server))).min();
        let options = self.options(least.unwrap_or(0));
        let client = Client::new(endpoint);
        Ok(executor.block_on(farleaf_pool::format_once(&client, &options))?)
    }

    /// Returns the layout of a pool with such regions.
    fn options(&self, region_bytes: u64) -> PoolOptions {
        let options = PoolOptions::fitting(region_bytes);
        let block_bytes = self.block_bytes.unwrap_or(options.block_bytes);
        PoolOptions { block_bytes, ..options }
    }

    fn format(&self, fabric: &Mapped) -> Result<()> {
        let options = self.options(self.region_bytes()?);
        let endpoint = fabric.any_endpoint()?;
        let executor = endpoint.executor().clone();
        let client = Client::new(endpoint);
        executor.block_on(farleaf_pool::format(&client, &options))?;
        Ok(())
    }

    /// Bytes of each server's region.
    fn region_bytes(&self) -> Result<u64> {
        let servers = self.memory_servers as u64;
        if servers == 0 {
            return Err(Error::invalid("0 memory servers: a pool has at least one"));
        }
        Ok(self.pool_bytes / servers / 4096 * 4096)
    }
}
