//! Serving: answers other compute servers that need keys of this one.
//!
//! When it opens the first table of an engine with partitions, the store listens, starts threads that
//! answer, and publishes its address in the pool. A few tasks answer for each table, so that a long
//! task (giving a range away) delays nobody. They run independently of the other threads of the
//! process.
//!
//! - **INV-SERVE-1** The store answers requests for a table from before its first operation until no
//!   more operations can begin, and none is under way when the table closes.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use async_channel::{Receiver, Sender};
use farleaf_fabric::tcp::Tls;
use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, Processors};
use farleaf_index::dex::post::{Post, PostConfig, PostError, check_address};
use farleaf_index::dex::{Cluster, Dex};
use farleaf_index::{AnyIndex, Engine, OpenOptions};
use farleaf_pool::Root;

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::thread_context::{Session, ThreadContext, kept};

/// Requests for one table that each thread answers at a time, each with a session; and once this part of
/// the pool's sessions is taken by this store.
const SEATS: usize = 4;
const SEATS_LEAST: usize = 2;
const SPARE_PART: usize = 8;
/// Connections that other compute servers may have open to this one.
const CONNECTIONS_MAX: usize = 1024;
/// Between two looks whether those who answer have ended.
const END_WAIT_NS: u64 = 100_000;

/// How others reach this compute server.
#[derive(Clone, Debug)]
pub(crate) struct ServeOptions {
    pub(crate) listen: SocketAddr,
    /// What others are told instead.
    pub(crate) advertise: Option<SocketAddr>,
    /// How compute servers know each other; the same as for memory servers.
    pub(crate) tls: Option<Tls>,
    pub(crate) insecure_public: bool,
    pub(crate) threads: usize,
    /// Where they stay.
    pub(crate) pin: Processors,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let pin = Processors::default();
        let (advertise, tls, insecure_public) = (None, None, false);
        ServeOptions { listen, advertise, tls, insecure_public, threads: 1, pin }
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
        self.pin.check()?;
        let may_be_public = self.insecure_public || self.tls.is_some();
        Ok(check_address(self.listen, self.advertise, may_be_public)?)
    }
}

/// The answering side of a store.
#[derive(Debug)]
pub(crate) struct Serving {
    options: ServeOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Asleep,
    Running(Running),
    Stopped,
}

#[derive(Debug)]
struct Running {
    post: Arc<Post>,
    me: Incarnation,
    is_published: bool,
    /// Tables that are served, by their meta objects.
    tables: BTreeSet<GlobalAddr>,
    threads: Vec<(Sender<Opened>, JoinHandle<()>)>,
}

/// A table that a thread is to answer for, and where it says whether it does.
struct Opened {
    dex: Dex,
    desk: Arc<Cluster>,
    started: Sender<Result<()>>,
}

impl Serving {
    pub(crate) fn new(options: ServeOptions) -> Self {
        Serving { options, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the table of `root` is opened: with a way to those who own its keys, if its engine has owners.
    pub(crate) async fn prepare(
        &self,
        core: &Arc<Core>,
        session: &Session,
        root: &Root,
        options: &OpenOptions,
    ) -> Result<OpenOptions> {
        let has_owners = root.engine.parse().is_ok_and(|engine: Engine| engine.traits().owned);
        if !core.is_shared || !has_owners {
            return Ok(options.clone());
        }
        let post = self.listen(core, session).await?;
        Ok(OpenOptions { forward: Some(post.route(root.addr)), ..options.clone() })
    }

    /// Where others reach it, if they do.
    #[cfg(feature = "etcd")]
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.post(Post::address)
    }

    /// Where it listens, if it does.
    pub(crate) fn listens(&self) -> Option<SocketAddr> {
        self.post(Post::listens)
    }

    fn post(&self, ask: impl FnOnce(&Post) -> SocketAddr) -> Option<SocketAddr> {
        match &*self.state() {
            State::Running(running) => Some(ask(&running.post)),
            State::Asleep | State::Stopped => None,
        }
    }

    /// Listens, and lets the pool know where, unless that is done.
    pub(crate) async fn listen(&self, core: &Arc<Core>, session: &Session) -> Result<Arc<Post>> {
        let (post, is_published) = self.start(core, session)?;
        if !is_published {
            session.publish_address(post.address()).await?;
            if let State::Running(running) = &mut *self.state() {
                running.is_published = true;
            }
        }
        Ok(post)
    }

    /// Listens, and starts the threads, unless that is done.
    fn start(&self, core: &Arc<Core>, session: &Session) -> Result<(Arc<Post>, bool)> {
        let mut state = self.state();
        match &*state {
            State::Running(running) => {
                return Ok((Arc::clone(&running.post), running.is_published));
            }
            State::Stopped => return Err(Error::closed()),
            State::Asleep => {}
        }
        let me = session.endpoint().incarnation();
        let config = PostConfig {
            listen: self.options.listen,
            advertise: self.options.advertise,
            tls: self.options.tls.clone(),
            insecure_public: self.options.insecure_public,
            pool: core.pool.id(),
            me,
            connections_max: CONNECTIONS_MAX,
        };
        // The memory that an answer retires is looked after.
        let noting: Weak<Core> = Arc::downgrade(core);
        let note = move || {
            if let Some(core) = noting.upgrade() {
                core.activity.note();
            }
        };
        let post = Arc::new(Post::start(config, note)?);
        let mut threads = Vec::new();
        for number in 0..self.options.threads {
            let (sender, receiver) = async_channel::unbounded();
            let (core, pin) = (Arc::clone(core), self.options.pin.clone());
            let thread = thread::Builder::new()
                .name(format!("farleaf-serve-{number}"))
                .spawn(move || {
                    pin.pin(number);
                    serve(&core, &receiver);
                })
                .map_err(|source| Error::io("cannot start a serving thread", source))?;
            threads.push((sender, thread));
        }
        let (tables, is_published) = (BTreeSet::new(), false);
        let told = Arc::clone(&post);
        *state = State::Running(Running { post, me, is_published, tables, threads });
        Ok((told, false))
    }

    /// Answers for a table that has been opened, unless that is done already.
    pub(crate) async fn serve(&self, index: &AnyIndex) -> Result<()> {
        let AnyIndex::Dex(dex) = index else { return Ok(()) };
        let mut waits = Vec::new();
        {
            let mut state = self.state();
            let State::Running(running) = &mut *state else { return Ok(()) };
            if !running.tables.insert(dex.meta()) {
                return Ok(());
            }
            let desk = running.post.desk(dex.meta());
            for (thread, _) in &running.threads {
                let (started, has_started) = async_channel::bounded(1);
                let opened = Opened { dex: dex.clone(), desk: Arc::clone(&desk), started };
                // A thread that is gone leaves its wait without an answer.
                let _ = thread.try_send(opened);
                waits.push(has_started);
            }
        }
        for wait in waits {
            let gone = || Error::new(ErrorKind::Internal, "a serving thread has ended by itself");
            let started = wait.recv().await.unwrap_or_else(|_| Err(gone()));
            if let Err(error) = started {
                self.forget(dex);
                return Err(error);
            }
        }
        Ok(())
    }

    /// It has not come to be served, or is served no more.
    fn forget(&self, dex: &Dex) -> Option<(Arc<Cluster>, Incarnation)> {
        let mut state = self.state();
        let State::Running(running) = &mut *state else { return None };
        if !running.tables.remove(&dex.meta()) {
            return None;
        }
        let desk = running.post.desk(dex.meta());
        desk.leave(running.me);
        Some((desk, running.me))
    }

    /// Answers for the table no more; what is under way has ended then.
    pub(crate) async fn leave(&self, session: &Session, index: &AnyIndex) {
        let AnyIndex::Dex(dex) = index else { return };
        let Some((desk, me)) = self.forget(dex) else { return };
        while !desk.has_left(me) {
            session.endpoint().sleep(END_WAIT_NS).await;
        }
    }

    /// Answers nobody any more, and ends the threads; what is under way has ended then.
    pub(crate) fn stop(&self) {
        let state = std::mem::replace(&mut *self.state(), State::Stopped);
        let State::Running(Running { post, me, tables, threads, .. }) = state else { return };
        for table in tables {
            post.desk(table).leave(me);
        }
        for (sender, thread) in threads {
            drop(sender);
            // One that panicked has said so.
            let _ = thread.join();
        }
        post.shut_down();
    }
}

/// A thread that answers: tasks for each table.
fn serve(core: &Arc<Core>, tables: &Receiver<Opened>) {
    let context = match ThreadContext::new(core) {
        Ok(context) => context,
        Err(error) => {
            // Whoever opens a table reports it.
            while let Ok(opened) = tables.recv_blocking() {
                let _ = opened.started.try_send(Err(error.clone()));
            }
            return;
        }
    };
    let endpoint = context.endpoint();
    endpoint.executor().block_on(async {
        while let Ok(Opened { dex, desk, started }) = tables.recv().await {
            let sessions_max = core.pool.geometry().options().clients_max as usize;
            let is_scarce = core.pool.sessions() >= sessions_max / SPARE_PART;
            let wanted = if is_scarce { SEATS_LEAST } else { SEATS };
            let mut seats = 0;
            let mut refused = None;
            while seats < wanted {
                match core.pool.session_leaving(endpoint.clone(), kept(core)).await {
                    Ok(session) => {
                        let seat = desk.serve(dex.clone(), session);
                        // It ends when the table is closed, and in no other way.
                        endpoint.spawn(async move { drop(seat.await) });
                        seats += 1;
                    }
                    Err(error) => {
                        refused = Some(Error::from(error));
                        break;
                    }
                }
            }
            let result = refused.filter(|_| seats == 0).map_or(Ok(()), Err);
            // Nobody may be left who waits for it.
            let _ = started.try_send(result);
        }
    });
}

impl From<PostError> for Error {
    #[cold]
    fn from(error: PostError) -> Self {
        let told = error.to_string();
        match error {
            PostError::Listen { source, .. } => match source.kind() {
                io::ErrorKind::AddrNotAvailable => {
                    Error::invalid(format!("{told}: it is not an address of this machine"))
                }
                io::ErrorKind::AddrInUse => Error::io(
                    format!("{told}: somebody else listens there; port 0 takes a free one"),
                    source,
                ),
                _ => Error::io(told, source),
            },
            _ => Error::invalid(told),
        }
    }
}
