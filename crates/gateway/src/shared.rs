//! Shared: the state that all connections of a gateway share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farleaf::{ErrorKind, Farleaf, Table};
use mio::Waker;
use ring::rand::{SecureRandom, SystemRandom};

use crate::GatewayOptions;
use crate::client::{Client, Clients};
use crate::commands::{Command, commands};
use crate::cursors::Cursors;
use crate::users::{User, Users};

/// Time for which a count of all keys is good enough.
const COUNTED_FOR: Duration = Duration::from_secs(60);

/// Bytes of the longest name of a command.
const NAME_BYTES_MAX: usize = 32;

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Shared {
    db: RwLock<Farleaf>,
    pub(crate) options: GatewayOptions,
    tables: Vec<Mutex<Place>>,
    /// By their names.
    commands: HashMap<&'static [u8], &'static Command>,
    cursors: Mutex<Cursors>,
    users: RwLock<Arc<Users>>,
    pub(crate) clients: Mutex<Clients>,
    pub(crate) wakers: OnceLock<Vec<Arc<Waker>>>,
    pub(crate) began: Instant,
    pub(crate) connections: AtomicUsize,
    /// Connections and commands since the gateway began.
    pub(crate) connected: AtomicU64,
    pub(crate) commands_done: AtomicU64,
    /// Clients beyond the most, and clients that were closed because they took nothing or too much.
    pub(crate) refused: AtomicU64,
    pub(crate) closed: AtomicU64,
    /// Bytes of clients' own buffers.
    pub(crate) client_bytes: AtomicUsize,
    pub(crate) port: AtomicUsize,
    pub(crate) stops: AtomicBool,
    /// The pool was lost, and is not open again yet.
    is_lost: AtomicBool,
}

/// A table that clients may select.
#[derive(Debug, Default)]
struct Place {
    table: Option<Table>,
    /// The last count of its keys, and its moment.
    counted: Option<(u64, Instant)>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(db: Farleaf, options: GatewayOptions) -> Self {
        let mut random = [0; 8];
        // Without random bytes a cursor of a gateway before this one may be taken for another's of this one, if both
        // stand for the same table.
        let _ = SystemRandom::new().fill(&mut random);
        let users = Arc::new(options.users.clone().unwrap_or_default());
        Shared {
            db: RwLock::new(db),
            tables: options.tables.iter().map(|_| Mutex::default()).collect(),
            commands: commands().map(|command| (command.name.as_bytes(), command)).collect(),
            cursors: Mutex::new(Cursors::new(u64::from_le_bytes(random))),
            users: RwLock::new(users),
            clients: Mutex::default(),
            wakers: OnceLock::new(),
            began: Instant::now(),
            connections: AtomicUsize::new(0),
            connected: AtomicU64::new(0),
            commands_done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            client_bytes: AtomicUsize::new(0),
            port: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            options,
        }
    }

    /// The command of that name, however it is written. Nothing is allocated.
    pub(crate) fn command(&self, name: &[u8]) -> Option<&'static Command> {
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.commands.get(&*lower).copied()
    }

    /// The store.
    pub(crate) fn db(&self) -> Farleaf {
        self.db.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves another opening of the pool, because the one before was lost.
    pub(crate) fn reopen(&self, db: Farleaf) {
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = db;
        for place in &self.tables {
            *lock(place) = Place::default();
        }
        self.is_lost.store(false, Ordering::SeqCst);
    }

    /// Takes another list of users.
    pub(crate) fn set_users(&self, users: Users) {
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(users);
        self.wake_all();
    }

    pub(crate) fn users(&self) -> Arc<Users> {
        Arc::clone(&self.users.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has every event loop look after its connections.
    pub(crate) fn wake_all(&self) {
        for waker in self.wakers.get().into_iter().flatten() {
            // A thread that has ended needs no waking.
            let _ = waker.wake();
        }
    }

    /// Tells whether the client may use tables: there are no users, or it is one.
    pub(crate) fn knows(&self, client: &Client) -> bool {
        self.options.users.is_none() || client.user.is_some()
    }

    /// The number of tables that the client may select.
    pub(crate) fn databases(&self, client: &Client) -> usize {
        client.user.as_ref().map_or(self.options.tables.len(), |user| user.tables.len())
    }

    /// The place of the table that the client selects by `number`.
    pub(crate) fn place(&self, user: Option<&User>, number: usize) -> Option<usize> {
        match user {
            None => (number < self.options.tables.len()).then_some(number),
            Some(user) => {
                let name = user.tables.get(number)?;
                self.options.tables.iter().position(|table| table == name)
            }
        }
    }

    pub(crate) fn table_name(&self, place: usize) -> &str {
        self.options.tables.get(place).map_or("", String::as_str)
    }

    /// The table of a place; it is made if there is none and the gateway may make tables.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn table(&self, place: usize) -> farleaf::Result<Table> {
        let mut held = lock(&self.tables[place]);
        if let Some(table) = &held.table {
            return Ok(table.clone());
        }
        let (name, db) = (self.table_name(place), self.db());
        let table = match &self.options.creates {
            Some(options) => db.table_or_create(name, options.clone())?,
            None => db.table(name)?,
        };
        Ok(held.table.insert(table).clone())
    }

    /// The pool is lost.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }

    /// Takes note of a failure: a table that was dropped is opened again by the next command.
    pub(crate) fn note(&self, place: usize, error: &farleaf::Error) {
        match error.kind() {
            ErrorKind::NotFound => *lock(&self.tables[place]) = Place::default(),
            ErrorKind::Closed => self.lose(),
            _ => {}
        }
    }

    /// The tables that are open.
    pub(crate) fn opened(&self) -> Vec<Table> {
        self.tables.iter().filter_map(|place| lock(place).table.clone()).collect()
    }

    /// Expired records that this process has removed from the tables that are open.
    pub(crate) fn expired(&self) -> u64 {
        self.opened().iter().map(|table| table.counters().get("expired_records")).sum()
    }

    /// The table's engine, if it is open, and the last count of its keys.
    pub(crate) fn known(&self, place: usize) -> Option<(String, Option<(u64, Instant)>)> {
        let held = lock(&self.tables[place]);
        held.table.as_ref().map(|table| (table.info().engine.to_string(), held.counted))
    }

    /// Counts the keys of a table, unless that was done of late.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn count_keys(&self, place: usize, table: &Table) -> farleaf::Result<u64> {
        if let Some((count, at)) = lock(&self.tables[place]).counted
            && at.elapsed() < COUNTED_FOR
            && count > COUNTED_ALWAYS
        {
            return Ok(count);
        }
        let count = table.count(..)?;
        lock(&self.tables[place]).counted = Some((count, Instant::now()));
        Ok(count)
    }

    pub(crate) fn new_cursor(&self, place: usize, after: Vec<u8>) -> u64 {
        lock(&self.cursors).give(place as u64, after)
    }

    pub(crate) fn cursor(&self, place: usize, cursor: u64) -> Option<Vec<u8>> {
        lock(&self.cursors).find(place as u64, cursor).map(<[u8]>::to_vec)
    }

    pub(crate) fn count(&self, of: &AtomicU64) {
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells whether the pool was lost, and is not open again yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    /// Tells whether clients' buffers have twice as much as they may.
    pub(crate) fn is_full(&self) -> bool {
        self.client_bytes.load(Ordering::Relaxed) > 2 * self.options.client_memory
    }

    /// Tells whether clients' buffers have more than they may.
    pub(crate) fn is_short(&self) -> bool {
        self.client_bytes.load(Ordering::Relaxed) > self.options.client_memory
    }
}

/// Tables with fewer keys are counted by each that asks: that is quick, and exact.
const COUNTED_ALWAYS: u64 = 10_000;
