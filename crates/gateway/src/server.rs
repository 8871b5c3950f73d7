//! Server: starts and ends a gateway's event loops.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use farleaf::Farleaf;
use mio::net::TcpListener;
use mio::{Poll, Waker};

use crate::GatewayOptions;
use crate::event_loop::{Dealt, EventLoop, Listening, WAKER};
use crate::shared::Shared;
use crate::sweeper;
use crate::users::{Users, UsersError};

/// Clients that the kernel connects before the gateway accepts them. Beyond `mio`'s 128 a client would try again after a
/// second. The kernel takes its own limit (`net.core.somaxconn`) if that is less.
const BACKLOG: i32 = 4_096;

/// A failure to start a gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// A user has a table that the gateway does not serve.
    #[error(transparent)]
    Users(#[from] UsersError),
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses a thread or an event queue.
    #[error("cannot start a thread of the gateway: {0}")]
    Start(#[source] io::Error),
}

/// A gateway that serves clients until it is dropped or [stopped](Gateway::stop).
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

/// Numbers of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayCounts {
    /// Connections now.
    pub connections: u64,
    /// Bytes of clients' own buffers now.
    pub client_bytes: u64,
    /// Connections since it began.
    pub connected: u64,
    /// Commands since it began.
    pub commands: u64,
    /// Connections that were refused because there were too many.
    pub refused: u64,
    /// Connections that it closed because their clients broke a limit.
    pub closed: u64,
}

impl Gateway {
    /// Listens, and serves the tables of `db` from now on.
    ///
    /// # Errors
    /// `Options`, `Users`, `Listen`, `Start`: nothing is served.
    pub fn start(db: Farleaf, options: GatewayOptions) -> Result<Gateway, GatewayError> {
        if options.tables.is_empty() {
            return Err(GatewayError::Options("a gateway needs a table to serve".to_owned()));
        }
        if !(1..=GatewayOptions::THREADS_MAX).contains(&options.threads) {
            return Err(GatewayError::Options(format!(
                "{} threads: a gateway has 1 to {}",
                options.threads,
                GatewayOptions::THREADS_MAX
            )));
        }
        if options.sweep_percent > 100 {
            let percent = options.sweep_percent;
            return Err(GatewayError::Options(format!(
                "a sweep of {percent} % a second: at most 100"
            )));
        }
        if options.connections_max == 0 {
            return Err(GatewayError::Options("no connections: give at least 1".to_owned()));
        }
        if let Some(users) = &options.users {
            users.check_tables(&options.tables)?;
        }
        let address = options.listen;
        let refused = |source| GatewayError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(refused)?;
        rustix::net::listen(&listener, BACKLOG).map_err(|error| refused(error.into()))?;
        let address = listener.local_addr().map_err(refused)?;
        let mut listener = Some(listener);
        let shared = Arc::new(Shared::new(db, options));
        shared.port.store(address.port().into(), Ordering::Relaxed);
        let mut loops = Vec::new();
        for _ in 0..shared.options.threads {
            let poll = Poll::new().map_err(GatewayError::Start)?;
            let waker = Waker::new(poll.registry(), WAKER).map_err(GatewayError::Start)?;
            loops.push((poll, Dealt::default(), Arc::new(waker)));
        }
        let deals: Vec<_> =
            loops.iter().map(|(_, dealt, waker)| (Arc::clone(dealt), Arc::clone(waker))).collect();
        let wakers = deals.iter().map(|(_, waker)| Arc::clone(waker)).collect();
        // Nobody else has set them.
        let _ = shared.wakers.set(wakers);
        let mut gateway = Gateway { shared, address, threads: Vec::new() };
        for (number, (poll, dealt, _)) in loops.into_iter().enumerate() {
            let listens = listener.take().map(|listener| Listening::new(listener, deals.clone()));
            let event_loop = EventLoop::new(poll, Arc::clone(&gateway.shared), dealt, listens);
            let event_loop = event_loop.map_err(GatewayError::Start)?;
            let name = format!("farleaf-redis-{number}");
            let pin = gateway.shared.options.pin.clone();
            let thread = thread::Builder::new().name(name).spawn(move || {
                pin.pin(number);
                event_loop.run();
            });
            gateway.threads.push(thread.map_err(GatewayError::Start)?);
        }
        if gateway.shared.options.sweep_percent > 0 {
            let shared = Arc::clone(&gateway.shared);
            let thread = thread::Builder::new().name("farleaf-redis-sweep".to_owned());
            let thread = thread.spawn(move || sweeper::run(&shared));
            gateway.threads.push(thread.map_err(GatewayError::Start)?);
        }
        Ok(gateway)
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its numbers of now.
    pub fn counts(&self) -> GatewayCounts {
        let shared = &self.shared;
        GatewayCounts {
            connections: shared.connections.load(Ordering::Relaxed) as u64,
            client_bytes: shared.client_bytes.load(Ordering::Relaxed) as u64,
            connected: shared.connected.load(Ordering::Relaxed),
            commands: shared.commands_done.load(Ordering::Relaxed),
            refused: shared.refused.load(Ordering::Relaxed),
            closed: shared.closed.load(Ordering::Relaxed),
        }
    }

    /// Tells whether a command has found that the pool is lost. Clients are told `LOADING` until
    /// [`reopen`](Gateway::reopen).
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// Has clients be told `LOADING`, because the pool is lost.
    pub fn lose(&self) {
        self.shared.lose();
    }

    /// Serves the tables of `db`, another opening of the pool.
    pub fn reopen(&self, db: Farleaf) {
        self.shared.reopen(db);
    }

    /// Takes another list of users. Clients whose user is gone, or has another token, are closed.
    ///
    /// # Errors
    /// A user has a table that is not served: the list of before stays.
    pub fn set_users(&self, users: Users) -> Result<(), UsersError> {
        users.check_tables(&self.shared.options.tables)?;
        self.shared.set_users(users);
        Ok(())
    }

    /// Accepts nothing more, answers what has been received, and ends: within 10 s.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.stops.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for thread in self.threads.drain(..) {
            // The sweeper sleeps.
            thread.thread().unpark();
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
