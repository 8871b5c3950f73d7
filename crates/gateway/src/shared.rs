//! Shared: the state that all connections of a gateway share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use farleaf::{ErrorKind, Farleaf, Table};

use crate::GatewayOptions;
use crate::commands::{Command, commands};
use crate::cursors::Cursors;

/// Bytes of the longest name of a command.
const NAME_BYTES_MAX: usize = 32;

/// See the [module page](self).
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) db: Farleaf,
    pub(crate) options: GatewayOptions,
    tables: Vec<Mutex<Option<Table>>>,
    /// By their names.
    commands: HashMap<&'static [u8], &'static Command>,
    cursors: Mutex<Cursors>,
    pub(crate) began: Instant,
    pub(crate) connections: AtomicUsize,
    /// Connections and commands since the gateway began.
    pub(crate) connected: AtomicU64,
    pub(crate) commands_done: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) port: AtomicUsize,
    pub(crate) stops: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(db: Farleaf, options: GatewayOptions) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Shared {
            db,
            tables: options.tables.iter().map(|_| Mutex::default()).collect(),
            commands: commands().map(|command| (command.name.as_bytes(), command)).collect(),
            // Enough to tell this gateway's cursors from those of one before it.
            cursors: Mutex::new(Cursors::new(
                since.as_nanos() as u64 ^ u64::from(std::process::id()),
            )),
            began: Instant::now(),
            connections: AtomicUsize::new(0),
            connected: AtomicU64::new(0),
            commands_done: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            port: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
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

    /// The number of tables that clients may select.
    pub(crate) fn databases(&self) -> usize {
        self.options.tables.len()
    }

    pub(crate) fn table_name(&self, database: usize) -> &str {
        self.options.tables.get(database).map_or("", String::as_str)
    }

    /// The table of a database; it is made if there is none and the gateway may make tables.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn table(&self, database: usize) -> farleaf::Result<Table> {
        let mut place = lock(&self.tables[database]);
        if let Some(table) = &*place {
            return Ok(table.clone());
        }
        let name = self.table_name(database);
        let table = match &self.options.creates {
            Some(options) => self.db.table_or_create(name, options.clone())?,
            None => self.db.table(name)?,
        };
        Ok(place.insert(table).clone())
    }

    /// Opens the table again at the next command: it was dropped.
    pub(crate) fn forget(&self, database: usize, error: &farleaf::Error) {
        if error.kind() == ErrorKind::NotFound {
            *lock(&self.tables[database]) = None;
        }
    }

    /// The table's engine, or what it would be made with.
    pub(crate) fn engine(&self, database: usize) -> String {
        match &*lock(&self.tables[database]) {
            Some(table) => table.info().engine.to_string(),
            None => String::new(),
        }
    }

    pub(crate) fn new_cursor(&self, table: u64, after: Vec<u8>) -> u64 {
        lock(&self.cursors).give(table, after)
    }

    pub(crate) fn cursor(&self, table: u64, cursor: u64) -> Option<Vec<u8>> {
        lock(&self.cursors).find(table, cursor).map(<[u8]>::to_vec)
    }

    pub(crate) fn count(&self, of: &AtomicU64) {
        of.fetch_add(1, Ordering::Relaxed);
    }
}
