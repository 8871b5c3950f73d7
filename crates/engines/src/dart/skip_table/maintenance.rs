//! Maintenance: makes tables, replaces those that are too small, and drops old ones.
//!
//! The holder of the maintenance lock does one step at a time, in a task. A new table is named by the descriptor,
//! as *filling*, before its first entry goes in: from then on switches keep it. When it is full of all that is
//! in the tree, it becomes the *current* one, and the old one is *leaving*: nobody probes it, but switches
//! still take entries out of it, because operations that read the descriptor before may be probing. Three epochs
//! later none of them runs, and the old table is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::IndexError;
use farleaf_index::remote_lock::lock_word;
use farleaf_pool::{Session, Tries, Unlinked, is_open};

use super::begin_quietly;
use super::entry::BUCKET_SLOTS;
use super::lengths::{Lengths, Prefixes};
use super::tables::{Descriptor, Role, Table, TablesWord};
use crate::dart::DartTree;
use crate::dart::meta::{self, META_LOCK, META_TABLES};

/// Bytes of a segment at most.
const SEGMENT_BYTES_MAX: usize = 1 << 20;
/// Waits for running maintenance, and how long each takes.
const WAITS_MAX: u32 = 100_000;
const WAIT_NS: u64 = 20_000;
/// Share of a table's slots that its entries fill when it is made.
const LOAD: f64 = 0.55;
/// Epochs after which no operation probes a table that was left.
const LEAVE_EPOCHS: u64 = 3;
/// A table is replaced by a larger one after this share of its slots in entries without a slot.
const DROPPED_SHARE: u64 = 32;

/// This compute server's view of when maintenance is due.
#[derive(Debug, Default)]
pub(in crate::dart) struct Maintenance {
    is_running: AtomicBool,
    /// Tasks that look at a node after a remove, or retire one.
    tasks: Arc<AtomicUsize>,
    /// New nodes since the last step.
    nodes: AtomicU64,
    /// `est_dropped` when the present table was made.
    dropped: AtomicU64,
    /// The descriptor word that named a leaving table, and the epoch when this compute server first saw it.
    left: (AtomicU64, AtomicU64),
}

impl Maintenance {
    pub(in crate::dart) fn node_added(&self) {
        self.nodes.fetch_add(1, Ordering::Relaxed);
    }

    /// A task begins to look at a node after a remove, or to retire one; it ends when the value is dropped.
    pub(in crate::dart) fn task_begins(&self) -> RunningTask {
        self.tasks.fetch_add(1, Ordering::SeqCst);
        RunningTask(Arc::clone(&self.tasks))
    }

    fn is_idle(&self) -> bool {
        !self.is_running.load(Ordering::SeqCst) && self.tasks.load(Ordering::SeqCst) == 0
    }
}

/// A task that looks at a node after a remove, or retires one.
pub(in crate::dart) struct RunningTask(Arc<AtomicUsize>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The work of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dart) enum Stepped {
    Nothing,
    Something,
}

impl DartTree {
    /// Has a task do a step of maintenance, if one is due.
    #[inline]
    pub(in crate::dart) fn maintain_if_due(self: &Arc<Self>, session: &Session) {
        let due = self.options.est_nodes as u64;
        if !self.options.est
            || !self.options.est_maintenance
            || self.maintenance.nodes.load(Ordering::Relaxed) < due
            || self.maintenance.is_running.swap(true, Ordering::SeqCst)
        {
            return;
        }
        self.maintenance.nodes.store(0, Ordering::Relaxed);
        let tree = Arc::clone(self);
        session.spawn(async move |session| {
            // Work that is left is done after as many nodes more.
            let stepped = tree.maintenance_step(&session, None).await;
            if stepped == Ok(Stepped::Something) {
                // A table that was left is dropped some epochs later.
                tree.maintenance.nodes.store(due, Ordering::Relaxed);
            }
            tree.maintenance.is_running.store(false, Ordering::SeqCst);
        });
    }

    /// Waits until no maintenance of this compute server is under way.
    ///
    /// # Errors
    /// `Unavailable` if that takes long.
    pub(in crate::dart) async fn maintenance_ended(
        &self,
        session: &Session,
    ) -> Result<(), IndexError> {
        for _ in 0..WAITS_MAX {
            if self.maintenance.is_idle() && !self.adjust_clock.is_running() {
                return Ok(());
            }
            session.endpoint().sleep(WAIT_NS).await;
        }
        Err(IndexError::Unavailable(
            "maintenance of a skip table takes long: close the table later".into(),
        ))
    }

    /// A bulk load has filled the tree: makes its table.
    pub(in crate::dart) async fn table_loaded(self: &Arc<Self>, session: &Session) {
        if !self.options.est || !self.options.est_maintenance {
            return;
        }
        // Without a table, lookups begin at the root, and later maintenance makes one.
        self.maintenance.nodes.store(0, Ordering::Relaxed);
        // A task: a caller that goes away leaves no table half made. The load waits for it, because a table that only
        // answers gets would never make one.
        let (tree, patient) = (Arc::clone(self), session.without_deadline());
        let task = async move {
            let wish = tree.lengths_loaded(&patient).await;
            tree.maintenance_step(&patient, wish.as_ref()).await
        };
        let (sender, receiver) = farleaf_index::oneshot::channel();
        session.spawn(async move |_| sender.send(task.await.is_ok()));
        receiver.await;
    }

    /// Does what is due: makes a table, fills it, or drops one. A table with other lengths than `wish` is
    /// replaced.
    pub(in crate::dart) async fn maintenance_step(
        &self,
        session: &Session,
        wish: Option<&Lengths>,
    ) -> Result<Stepped, IndexError> {
        let io = session.maintenance();
        let lock_at = self.meta.plus(META_LOCK);
        let holder = io.word(lock_at).await?;
        if holder != 0 && !session.owner_is_dead(holder).await? {
            return Ok(Stepped::Nothing);
        }
        let lock = lock_word(session, lock_at).await?;
        let stepped = self.step(session, wish).await;
        lock.release().await?;
        stepped
    }

    async fn step(&self, session: &Session, wish: Option<&Lengths>) -> Result<Stepped, IndexError> {
        let io = session.maintenance();
        let pin = begin_quietly(session).await?;
        let line = meta::read_line(io, self.meta).await?;
        let word = TablesWord(line.tables);
        let tables = self.tables(io, word).await?;
        drop(pin);
        let tables = tables.as_deref().cloned().unwrap_or_default();
        if tables.tables.iter().any(|table| table.role == Role::Leaving) {
            return self.drop_left(session, word, tables).await;
        }
        if let Some(table) = tables.tables.iter().find(|table| table.role == Role::Filling).cloned()
        {
            return self.fill_up(session, word, tables, &table).await;
        }
        let present = tables.probed().map(|table| table.lengths.clone());
        let wish = wish.map(|lengths| lengths.as_slice().to_vec());
        let lengths = wish.or(present).unwrap_or_else(|| {
            let lengths = match self.options.prefixes {
                Prefixes::Auto => Lengths::default(),
                Prefixes::List(lengths) => lengths,
            };
            lengths.as_slice().to_vec()
        });
        let slots = |table: &Table| table.bytes() / 8;
        let dropped = self.counters.est_dropped.value();
        let (is_due, least) = match tables.probed() {
            None => (true, 0),
            Some(table) => {
                let more = dropped.saturating_sub(self.maintenance.dropped.load(Ordering::Relaxed));
                let is_full = more > slots(table) / DROPPED_SHARE;
                (is_full || table.lengths != lengths, if is_full { 2 * slots(table) } else { 0 })
            }
        };
        if !is_due {
            return Ok(Stepped::Nothing);
        }
        let entries = self.fill(session, &lengths, None).await?;
        self.maintenance.dropped.store(dropped, Ordering::Relaxed);
        let slots = ((entries as f64 / LOAD) as u64).max(least).max(2 * BUCKET_SLOTS as u64);
        self.add_table(session, word, tables, lengths, slots).await
    }

    /// Makes a zeroed table of at least so many slots, names it, and fills it.
    async fn add_table(
        &self,
        session: &Session,
        word: TablesWord,
        mut tables: Descriptor,
        lengths: Vec<u16>,
        slots: u64,
    ) -> Result<Stepped, IndexError> {
        let bytes = (8 * slots as usize).next_power_of_two();
        let most = SEGMENT_BYTES_MAX.min(prev_power_of_two(self.object_bytes_max));
        let segment = bytes.min(most);
        let io = session.maintenance();
        let mut objects = Vec::new();
        // As many segments as it takes: they need not be a power of two.
        for _ in 0..(8 * slots as usize).div_ceil(segment) {
            let object = session.alloc_unlinked(session.place(), segment).await?;
            let mut zeros = io.buf(segment);
            zeros.words_mut().fill(0);
            object.write_by(io, zeros).await?;
            objects.push(object);
        }
        tables.tables.push(Table {
            role: Role::Filling,
            lengths,
            print_bits: self.options.print_bits,
            bucket_bits: (segment / super::BUCKET_BYTES).ilog2(),
            segments: objects.iter().map(Unlinked::addr).collect(),
        });
        let Some(word) = self.set_tables(session, word, &tables, objects, &[]).await? else {
            return Ok(Stepped::Nothing);
        };
        let Some(table) = tables.tables.last().cloned() else { return Ok(Stepped::Nothing) };
        self.fill_up(session, word, tables, &table).await
    }

    /// Fills a table, which is the current one then.
    async fn fill_up(
        &self,
        session: &Session,
        word: TablesWord,
        mut tables: Descriptor,
        table: &Table,
    ) -> Result<Stepped, IndexError> {
        self.fill(session, &table.lengths, Some(table)).await?;
        for table in &mut tables.tables {
            table.role = match table.role {
                Role::Current | Role::Leaving => Role::Leaving,
                Role::Filling => Role::Current,
            };
        }
        self.set_tables(session, word, &tables, Vec::new(), &[]).await?;
        self.counters.tables_filled.add(1);
        Ok(Stepped::Something)
    }

    /// Drops tables that were left long ago.
    async fn drop_left(
        &self,
        session: &Session,
        word: TablesWord,
        mut tables: Descriptor,
    ) -> Result<Stepped, IndexError> {
        let (of, epoch) = &self.maintenance.left;
        if of.swap(word.0, Ordering::Relaxed) != word.0 {
            epoch.store(session.epoch(), Ordering::Relaxed);
        }
        if session.epoch() < epoch.load(Ordering::Relaxed) + LEAVE_EPOCHS {
            return Ok(Stepped::Nothing);
        }
        let left = tables.tables.iter().filter(|table| table.role == Role::Leaving);
        let segments: Vec<GlobalAddr> = left.flat_map(|table| table.segments.clone()).collect();
        tables.tables.retain(|table| table.role != Role::Leaving);
        self.set_tables(session, word, &tables, Vec::new(), &segments).await?;
        self.counters.tables_dropped.add(1);
        Ok(Stepped::Something)
    }

    /// Puts a new descriptor in place of the one that `word` names, which is retired, with `unlinked`. The new
    /// word; `None` if it was another's turn.
    async fn set_tables(
        &self,
        session: &Session,
        word: TablesWord,
        tables: &Descriptor,
        objects: Vec<Unlinked>,
        unlinked: &[GlobalAddr],
    ) -> Result<Option<TablesWord>, IndexError> {
        let _pin = begin_quietly(session).await?;
        let io = session.maintenance();
        let (descriptor, code) = self.new_descriptor(session, tables).await?;
        let new = word.next(Some((descriptor.addr(), code)));
        let old = word.place().map(|(addr, _)| addr);
        let mut retiring = Vec::new();
        for addr in old.iter().chain(unlinked) {
            retiring.push(session.prepare_retire(*addr).await?);
        }
        let at = self.meta.plus(META_TABLES);
        let linked = || objects.iter().chain([&descriptor]);
        linked().for_each(Unlinked::keep);
        let mark = io.post_mark();
        let found = match io.client().cas(at, word.0, new.0).await {
            Ok(found) => found,
            Err(error) if is_open(error) => {
                io.again(&mut Tries::default(), mark, error).await?;
                // The lock is this client's: nobody else changes the word.
                if io.word(at).await? == new.0 { word.0 } else { new.0 }
            }
            Err(error) => return Err(error.into()),
        };
        if found != word.0 {
            linked().for_each(Unlinked::unkeep);
            for retiring in retiring {
                session.cancel_retire(retiring);
            }
            return Ok(None);
        }
        retiring.into_iter().for_each(|retiring| session.retire(retiring));
        Ok(Some(new))
    }
}

fn prev_power_of_two(bytes: usize) -> usize {
    1 << bytes.max(64).ilog2()
}
