//! Run context: the state that all threads of a run share, and values derived from its configuration.

use std::sync::Arc;

use farleaf_engines::{SettingError, TableFormat};
use farleaf_index::{KeyFormat, OpenOptions, Spec, ValueFormat};
use farleaf_pool::{PoolError, PoolOptions};

use super::error::BenchError;
use crate::{
    config::{BenchConfig, BenchConfigError},
    generator::Op,
    item_space::ItemSpace,
    keys::{KeyError, KeyMaker},
    parts::Routing,
    values::ValueMaker,
    workload::OpKind,
};

/// Items that clients work on, with their keys and values.
#[derive(Debug)]
pub(crate) struct Dataset {
    pub(crate) keys: KeyMaker,
    pub(crate) values: ValueMaker,
    pub(crate) value_bytes: usize,
    pub(crate) space: Arc<ItemSpace>,
    /// True if every item below the frontier must be found: the workload removes none.
    pub(crate) all_present: bool,
}

/// Result of an operation.
#[derive(Debug)]
pub(crate) struct Found {
    /// True if the key was present.
    pub(crate) present: bool,
    /// The fault in the answer.
    pub(crate) wrong: Option<String>,
}

impl Found {
    /// A right answer.
    pub(crate) fn right(present: bool) -> Self {
        Found { present, wrong: None }
    }

    /// A wrong answer.
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Found { present: true, wrong: Some(what.into()) }
    }
}

impl Dataset {
    /// The items of a run of `config`, whose keys `keys` makes.
    pub(crate) fn new(config: &BenchConfig, keys: KeyMaker) -> Self {
        Dataset {
            values: ValueMaker::new(config.value_bytes),
            value_bytes: config.value_bytes,
            space: Arc::new(ItemSpace::new(config.keys, keys.items_max())),
            all_present: config.workload.mix.share(OpKind::Remove) == 0.0,
            keys,
        }
    }

    /// Makes the key of an operation, and the value of a write.
    ///
    /// # Errors
    /// [`KeyError`] if the item has no key.
    #[inline]
    pub(crate) fn prepare(
        &self,
        op: Op,
        version: u64,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<(), KeyError> {
        self.keys.write_key(op.item, key)?;
        if !matches!(op.kind, OpKind::Get | OpKind::Scan | OpKind::Remove) {
            self.values.write_value(op.item, version, value);
        }
        Ok(())
    }

    /// Checks the value that a get found.
    #[inline]
    pub(crate) fn got(&self, item: u64, value: Option<&[u8]>) -> Found {
        match value {
            Some(value) if !self.values.is_one_of(item, value) => {
                Found::wrong("a get found a value that nobody wrote")
            }
            value => Found::right(value.is_some()),
        }
    }

    /// Checks the pairs that a scan found, from `key` on.
    pub(crate) fn scanned<'a>(
        &self,
        op: Op,
        key: &[u8],
        pairs: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Found {
        let (mut count, limit) = (0, op.scan_len);
        let (mut present, mut is_sorted, mut is_written) = (false, true, true);
        let mut last: Option<&[u8]> = None;
        for (found, value) in pairs {
            count += 1;
            is_sorted &= last.map_or(found >= key, |last| last < found);
            let is_own = last.is_none() && found == key;
            present |= is_own;
            is_written &= match value {
                Some(value) => {
                    value.len() == self.value_bytes
                        && (!is_own || self.values.is_one_of(op.item, value))
                }
                // Another client may have removed the key since it was found.
                None => !self.all_present,
            };
            last = Some(found);
        }
        if count > limit {
            Found::wrong(format!("a scan for {limit} pairs found {count}"))
        } else if !is_sorted {
            Found::wrong("a scan found keys out of order")
        } else if !is_written {
            Found::wrong("a scan found a value that nobody wrote")
        } else {
            Found::right(present)
        }
    }

    /// The fault in an answer, in words.
    #[inline]
    pub(crate) fn fault(&self, op: Op, found: &Found) -> Option<String> {
        let may_miss = matches!(op.kind, OpKind::Insert | OpKind::Upsert | OpKind::Remove);
        let what = match &found.wrong {
            None if found.present || may_miss || !self.all_present => return None,
            None => "a key that must be there is absent",
            Some(what) => what,
        };
        Some(format!("{} of item {}: {what}", op.kind.name(), op.item))
    }
}

/// The configuration with all values derived from it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: BenchConfig,
    pub(super) data: Arc<Dataset>,
    pub(super) format: TableFormat,
    /// Options by which compute servers open the table, without those of a single server.
    pub(super) open: OpenOptions,
    /// True if operations begin at the owner of their key.
    pub(super) routes: bool,
    /// Tasks of each thread that execute what other compute servers send.
    pub(super) serve_tasks: usize,
    pub(super) pool: PoolOptions,
    /// Bytes of each memory server.
    pub(super) region_bytes: u64,
}

impl Context {
    /// Checks the configuration and derives the other values.
    ///
    /// # Errors
    /// `Config`, `Lines`, `TooFewLines`, `Table`.
    pub(super) fn new(config: &BenchConfig) -> Result<Arc<Self>, BenchError> {
        config.validate()?;
        let keys = config.key_type.open()?;
        if let Some(lines) = keys.items_max()
            && lines < config.keys
        {
            return Err(BenchError::TooFewLines { keys: config.keys, lines });
        }
        let format = table_format(config, &keys)?;
        format.complete().map_err(BenchError::Table)?;
        let servers = config.memory_servers as u64;
        let region_bytes = match config.pool_bytes {
            Some(bytes) => bytes / servers,
            None => region_bytes(config, &keys),
        };
        let region_bytes = region_bytes & !4095;
        let mut pool = PoolOptions::fitting(region_bytes);
        let several = config.engine.traits().owned && config.compute_servers > 1;
        let routes = several && config.parts.routing(config) == Routing::Owner;
        let serve_tasks = match (several, routes) {
            (false, _) => 0,
            // Scans go on at the next owner.
            (true, true) => 1,
            // As many as other compute servers can have sent.
            (true, false) => config.clients.div_ceil(config.threads),
        };
        // A session for each client and serving task, one for each server's maintenance, and a few to set up.
        let sessions = config.clients + config.threads * serve_tasks + config.compute_servers + 8;
        let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
        pool.clients_max = pool.clients_max.max(sessions);
        pool.members_max = pool.members_max.max(config.compute_servers as u32 + 1);
        let redo_bytes = u32::try_from(format.redo_bytes()).unwrap_or(u32::MAX);
        pool.redo_bytes = pool.redo_bytes.max(redo_bytes.next_multiple_of(64));
        let open = OpenOptions {
            calls: several,
            settings: config.engine.options_of(&config.settings),
            ..OpenOptions::default()
        };
        if config.cache_share().is_none() {
            // Before the load.
            format.check_options(&open.settings).map_err(BenchError::Open)?;
        }
        Ok(Arc::new(Context {
            open,
            routes,
            serve_tasks,
            data: Arc::new(Dataset::new(config, keys)),
            config: config.clone(),
            format,
            pool,
            region_bytes,
        }))
    }

    /// The bench's error if the pool refuses.
    pub(super) fn refused(&self, source: PoolError) -> BenchError {
        BenchError::Pool { pool_bytes: self.pool_bytes(), source }
    }

    /// Bytes of memory that each compute server exposes; 0 if the engine has no use for them. A line for each KiB of
    /// the pool, which is committed as it is used.
    pub(super) fn exposed_bytes(&self) -> u64 {
        match self.config.engine.traits().exposes {
            true => self.pool_bytes().div_ceil(16).next_multiple_of(4096),
            false => 0,
        }
    }

    /// Bytes of all memory servers together.
    pub(super) fn pool_bytes(&self) -> u64 {
        self.region_bytes * self.config.memory_servers as u64
    }
}

/// Dense nodes for numbers, slotted ones for everything else; keys and values of one length where the kind of keys has
/// one and the engine takes it.
fn table_format(config: &BenchConfig, keys: &KeyMaker) -> Result<TableFormat, BenchError> {
    let engine = config.engine;
    let value = ValueFormat::Fixed(config.value_bytes);
    let format = match (keys, config.value_bytes) {
        (KeyMaker::U64(_) | KeyMaker::Randint, 8) => TableFormat::fixed8(engine),
        _ => {
            let key = KeyFormat::Bytes { max: keys.key_bytes_max() };
            TableFormat::new(engine, Spec { key, value: ValueFormat::Bytes })
        }
    };
    let settings = config.settings_with_cache(|_| 256 << 20);
    let shape = engine.split(&settings).map_err(BenchConfigError::from)?.0;
    let shaped = |format: TableFormat| {
        let setting = |error| BenchConfigError::from(SettingError { engine, error });
        format.shaped(&shape).map_err(setting)
    };
    if let Some(bytes) = keys.key_bytes() {
        let spec = Spec { key: KeyFormat::Fixed(bytes), value };
        let format = shaped(TableFormat::new(engine, spec))?;
        if format.complete().is_ok() {
            return Ok(format);
        }
    }
    let format = shaped(format)?;
    // All values have one length: a shape that asks for that gets it.
    let fixed = format.with_values(value);
    Ok(if format.complete().is_err() && fixed.complete().is_ok() { fixed } else { format })
}

/// Bytes of each memory server that certainly hold the items. Only touched memory is committed, so
/// that too much costs nothing.
fn region_bytes(config: &BenchConfig, keys: &KeyMaker) -> u64 {
    let mix = &config.workload.mix;
    let added = mix.share(OpKind::Insert) + mix.share(OpKind::Upsert);
    let ops = config.ops.saturating_add(config.warmup_ops);
    let items = config.keys as f64 + (added * 1.1 + 0.01) * ops as f64;
    // Nodes are at least half full but for the first few; records round up by less than half;
    // changes of records leave old ones behind until they are reclaimed.
    let item_bytes = (keys.key_bytes_max() + config.value_bytes + 40) as f64;
    // Nodes that reserve their room are nearly empty: up to 0.4 of them for each key.
    let reserves = config.settings.get("nodes") == Some("reserve");
    let item_bytes = item_bytes + if reserves { 300.0 } else { 0.0 };
    let servers = config.memory_servers as f64;
    // Each compute server has a block of each size of object on each memory server.
    let blocks = config.compute_servers as f64 * 16.0 * (16 << 20) as f64;
    let clients = config.clients as f64 * (512 << 10) as f64;
    (3.0 * items * item_bytes / servers + blocks + clients) as u64 + (256 << 20)
}
