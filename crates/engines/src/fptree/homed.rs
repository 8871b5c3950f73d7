//! DMTree: the tree of `fptree` with its lines and locks on compute servers. The engine `dmtree` is this.
//!
//! An operation enters the partition guard once, and stays inside to its end. Where it needs a line that has no home now, or
//! whose home is gone, it stops with nothing done, leaves, waits until that is settled or settles it, and begins again. A
//! change is a task of its own, so that dropping it leaves no WRITE behind that nobody waits for.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, OpKind, ServerId};
use farleaf_index::compute::MoveError;
use farleaf_index::compute::ownership::MapWords;
use farleaf_index::compute::partitions::{
    MoveWay, PartitionCalls, PartitionMembership, PartitionWords, PartitionedTable, as_conductor,
    check_unused, create_partitions, enter, fail_over, leave, offer, read_partitions, resume,
    settle_in, tick,
};
use farleaf_index::detach::{run_to_end, unfinished_change, unfinished_work};
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::local::key_queues::{ChangeLead, ChangeTurn};
use farleaf_index::retry::Attempts;
use farleaf_index::sync::{Mutex, Ordering, lock};
use farleaf_index::{
    CacheControl, Change, CounterSet, Entries, Index, IndexError, OpenOptions, Outcome,
    OwnedChange, ScanRange, SortedPairs, Stored, TableReport, TableSpec, Visitor, open_once,
};
use farleaf_pool::{Audit, Recovery, Session};

use super::homed_options::{DmTreeOptions, DmTreeShape};
use super::homes::{Op, OpNotes, Parts, ReadNotes, Stop, partition_count};
use super::layout::LeafShape;
use super::redo::LeafRedo;
use super::replicas::ReplicaCache;
use super::{FpTreeOptions, FpTreeShape, LeafTree, count, create_leaf_tree, read_meta};

const META_TAG: u64 = u64::from_le_bytes(*b"FLdmtre1");
/// Offsets of the words of the partition map and of its lock, and of the conductor's word.
const MAP_AT: u64 = 128;
const CONDUCTOR_AT: u64 = 192;
/// Stops after which somebody else is taken to have given up: the operation goes on for a conductor that is gone.
const STOPS_PATIENT: u32 = 4;

/// A table of this engine.
#[derive(Clone, Debug)]
pub struct DmTree(HomedTable);

/// The tree as its partitions' conductor and members know it.
#[derive(Clone, Debug)]
pub(super) struct HomedTable(pub(super) Arc<LeafTree>);

impl Deref for HomedTable {
    type Target = Arc<LeafTree>;

    fn deref(&self) -> &Arc<LeafTree> {
        &self.0
    }
}

impl HomedTable {
    pub(super) fn parts(&self) -> &Parts {
        self.0.parts.as_ref().expect("a homed table has partitions")
    }
}

/// Slices of a compute server's own region that its tables have.
#[derive(Debug, Default)]
struct OwnSlices(Mutex<Vec<Option<GlobalAddr>>>);

impl OwnSlices {
    /// The slice of the table at `meta`, if there is one of `count`.
    fn take(&self, meta: GlobalAddr, count: usize) -> Option<u16> {
        let mut slices = lock(&self.0);
        slices.resize(count, None);
        let free = slices.iter().position(|of| of.is_none_or(|of| of == meta))?;
        slices[free] = Some(meta);
        u16::try_from(free).ok()
    }

    /// The table has none any more; tells whether none has.
    fn give(&self, meta: GlobalAddr) -> bool {
        let mut slices = lock(&self.0);
        slices.iter_mut().filter(|of| **of == Some(meta)).for_each(|of| *of = None);
        slices.iter().all(Option::is_none)
    }
}

fn words_of(meta: GlobalAddr, acks: GlobalAddr) -> PartitionWords {
    let map = MapWords { meta, map: meta.plus(MAP_AT), lock: meta.plus(MAP_AT + 8) };
    PartitionWords { map, conductor: meta.plus(CONDUCTOR_AT), acks }
}

fn shape_of(table: &TableSpec<DmTreeShape>) -> Result<LeafShape, IndexError> {
    LeafShape::of_words(&table.spec, &table.shape.into(), table.number)
}

fn stored(table: &Stored<DmTreeShape>) -> Stored<FpTreeShape> {
    let TableSpec { spec, shape, number } = table.table;
    Stored { table: TableSpec { spec, shape: shape.into(), number }, meta: table.meta }
}

/// The table as one that is not open, or as this member has it open.
///
/// Cost: 1 READ.
async fn look_at(session: &Session, table: &Stored<DmTreeShape>) -> Result<HomedTable, IndexError> {
    if let Some(open) = session.pool().kept::<LeafTree>(table.meta) {
        return Ok(HomedTable(open));
    }
    let meta = read_meta(session, (table.meta, META_TAG, DmTree::NAME)).await?;
    let words = words_of(table.meta, meta.acks);
    let geometry = session.pool().geometry();
    let parts = Parts::new(words, geometry, None, ReplicaCache::new(0), false);
    let (shape, options) = (shape_of(table)?, FpTreeOptions::default());
    let tree = LeafTree::with(&stored(table), shape, options, &meta, Some(parts));
    Ok(HomedTable(Arc::new(tree)))
}

impl DmTree {
    /// Offers a slice of this member's memory, if it has one to spare and `weight` is not 0, and moves partitions there.
    async fn offer_memory(&self, session: &Session, weight: u16) -> Result<(), IndexError> {
        let Some(own) = session.endpoint().own_region() else { return Ok(()) };
        let meta = self.0.stored.meta;
        let bytes = session.endpoint().region_bytes(own.number);
        let count = (bytes / PartitionedTable::slice_bytes(&self.0, session)).min(1 << 16) as usize;
        if count == 0 || weight == 0 {
            return Ok(());
        }
        let slices = session.pool().keep(own_slices_at(own.number), Arc::<OwnSlices>::default());
        // Without a free slice its memory holds lines of other tables alone.
        let Some(slice) = slices.take(meta, count) else { return Ok(()) };
        offer(&self.0, session, weight, slice).await?;
        self.spread_out(session, self.0.parts().move_way).await
    }

    /// Moves partitions until each is where the ring has it. What is called off moves later, by [`settle_in`].
    async fn spread_out(&self, session: &Session, way: MoveWay) -> Result<(), IndexError> {
        match settle_in(&self.0, session, way).await {
            Ok(_) | Err(MoveError::CalledOff | MoveError::Busy | MoveError::UnknownServer(_)) => {
                Ok(())
            }
            Err(MoveError::Index(error)) => Err(error),
            Err(other) => Err(IndexError::Unavailable(other.to_string())),
        }
    }

    /// Waits for what an operation has stopped at, or settles it. The caller has no pin, and is not inside.
    async fn resolve(&self, session: &Session, stop: Stop, stops: u32) -> Result<(), IndexError> {
        let table = &self.0;
        let own = table.membership().ok_or_else(|| closed_table(table))?;
        match stop {
            Stop::Closed(partition) => drop(enter(table, own, session, [partition]).await?),
            Stop::Gone(owner) if session.endpoint().is_dead(owner).await => {
                count(&table.counts.failed_over);
                fail_over(table, session, owner).await?;
            }
            // It has left the pool: others have its partitions, or are about to.
            Stop::Gone(_) if stops.is_multiple_of(STOPS_PATIENT) => resume(table, session).await?,
            Stop::Gone(_) => tick(table, session).await?,
        }
        Ok(())
    }
}

/// The place under which a member keeps the slices of its own region.
fn own_slices_at(number: ServerId) -> GlobalAddr {
    GlobalAddr::new(number, 64)
}

fn closed_table(table: &HomedTable) -> IndexError {
    IndexError::Closed(format!("the table at {} is not open here", table.stored.meta))
}

/// Stops of one operation.
#[derive(Default)]
struct Stops {
    count: u32,
    attempts: Attempts,
}

impl Stops {
    /// After a stop: once the operation may begin again.
    async fn resolve(
        &mut self,
        table: &DmTree,
        session: &Session,
        stop: Stop,
    ) -> Result<(), IndexError> {
        self.count += 1;
        self.attempts.again(session).await?;
        table.resolve(session, stop, self.count).await
    }
}

/// The end of an attempt at a change, with the lead that it had.
type TriedChange = (Result<(Outcome, Vec<u8>), IndexError>, Option<Stop>, Option<ChangeLead>);

impl DmTree {
    fn check_open(&self, session: &Session) -> Result<(), IndexError> {
        match self.0.try_inside(session) {
            Some(_) => Ok(()),
            None => Err(closed_table(&self.0)),
        }
    }

    /// One attempt at a change, by a task.
    async fn try_change(
        &self,
        session: &Session,
        change: &Change<'_>,
        mut lead: Option<ChangeLead>,
    ) -> Result<TriedChange, IndexError> {
        let _pin = session.begin(change.kind).await?;
        let (table, of_task) = (self.0.clone(), session.clone());
        let (key, change) = (change.key.to_vec(), OwnedChange::of(change));
        let notes = Rc::new(OpNotes::default());
        let of_caller = Rc::clone(&notes);
        let task = async move {
            let noted = Rc::clone(&notes);
            let Some(op) = table.try_inside_noting(&of_task, notes) else {
                return (Err(closed_table(&table)), None, lead);
            };
            let mut held = Vec::new();
            let done = table.change_one(&op, &change.of_key(&key), &mut held, &mut lead).await;
            (done.map(|outcome| (outcome, held)), noted.stop(), lead)
        };
        match run_to_end(session, Box::pin(task), ()).await {
            Some(tried) => Ok(tried),
            None if of_caller.cancel() => Err(unfinished_change("the change")),
            None => Err(unfinished_work("the change")),
        }
    }

    async fn change_led(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
        mut lead: Option<ChangeLead>,
    ) -> Result<Outcome, IndexError> {
        let mut stops = Stops::default();
        loop {
            let (done, stop, back) = self.try_change(session, change, lead).await?;
            match (done, stop) {
                (Ok((outcome, found)), _) => {
                    if change.expected.is_some() {
                        *held = found;
                    }
                    return Ok(outcome);
                }
                (Err(_), Some(stop)) => stops.resolve(self, session, stop).await?,
                (Err(error), None) => return Err(error),
            }
            lead = back;
        }
    }
}

impl Index for DmTree {
    async fn get(
        &self,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        self.0.shape.spec.check_key(key)?;
        let mut stops = Stops::default();
        loop {
            let notes = ReadNotes::default();
            let got = {
                let _pin = session.begin(OpKind::Get).await?;
                let op = self.0.try_inside_reading(session, &notes);
                let op = op.ok_or_else(|| closed_table(&self.0))?;
                let got = self.0.get_delegated(&op, key, value).await;
                match got {
                    // Another get has looked for both, and has stopped.
                    Err(IndexError::Unavailable(_)) if !notes.has_looked() => {
                        self.0.find(&op, key, value).await
                    }
                    got => got,
                }
            };
            match (got, notes.stop()) {
                (Err(_), Some(stop)) => stops.resolve(self, session, stop).await?,
                (got, _) => return got,
            }
        }
    }

    async fn change(
        &self,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        self.0.shape.spec.check_change(change)?;
        if !self.0.options.delegate {
            return self.change_led(session, change, held, None).await;
        }
        match self.0.queues.change(session, change, held).await? {
            ChangeTurn::Lead(lead) => self.change_led(session, change, held, Some(lead)).await,
            ChangeTurn::Done(outcome) => {
                count(&self.0.counts.changes_joined);
                Ok(outcome)
            }
        }
    }

    async fn scan(
        &self,
        session: &Session,
        range: ScanRange<'_>,
        limit: usize,
        out: &mut Entries,
    ) -> Result<(), IndexError> {
        let (mut stops, before) = (Stops::default(), out.len());
        loop {
            let notes = ReadNotes::default();
            let scanned = {
                let _pin = session.begin(OpKind::Scan).await?;
                let op = self.0.try_inside_reading(session, &notes);
                let op = op.ok_or_else(|| closed_table(&self.0))?;
                self.0.scan_range(&op, range, limit, out).await
            };
            match (scanned, notes.stop()) {
                (Err(_), Some(stop)) => {
                    out.truncate(before);
                    stops.resolve(self, session, stop).await?;
                }
                (scanned, _) => return scanned,
            }
        }
    }

    async fn bulk_load(
        &self,
        session: &Session,
        pairs: &mut impl SortedPairs,
    ) -> Result<u64, IndexError> {
        let (built, loaded) = {
            let _pin = session.begin(OpKind::BulkLoad).await?;
            self.0.build_leaves(session, pairs).await?
        };
        if loaded == 0 {
            return Ok(0);
        }
        let (built, mut stops) = (Rc::new(built), Stops::default());
        loop {
            let _pin = session.begin(OpKind::BulkLoad).await?;
            let (table, patient) = (self.0.clone(), session.without_deadline());
            let (notes, built) = (Rc::new(OpNotes::default()), Rc::clone(&built));
            let noted = Rc::clone(&notes);
            let task = Box::pin(async move {
                let op = table.try_inside_noting(&patient, notes);
                let op = op.ok_or_else(|| closed_table(&table))?;
                table.put_in_place(&op, &built).await
            });
            let placed = run_to_end(session, task, ()).await.unwrap_or_else(|| {
                Err(IndexError::OutcomeUnknown(
                    "the new leaves are still being put in place".into(),
                ))
            });
            drop(_pin);
            match (placed, noted.stop()) {
                (Err(_), Some(stop)) => stops.resolve(self, session, stop).await?,
                (placed, _) => return placed.map(|()| loaded),
            }
        }
    }

    async fn verify(
        &self,
        session: &Session,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        self.check_open(session)?;
        let TableSpec { spec, shape, number } = self.0.stored.table;
        let table = TableSpec { spec, shape: shape.into(), number };
        let table = Stored { table, meta: self.0.stored.meta };
        table.mark::<DmTree>(session, audit, None).await
    }

    /// Gives its partitions to others, or to memory servers.
    async fn close(&self, session: &Session) -> Result<(), IndexError> {
        let meta = self.0.stored.meta;
        if session.pool().kept::<LeafTree>(meta).is_none() {
            return Ok(());
        }
        match leave(&self.0, session, self.0.parts().move_way).await {
            Ok(()) => {}
            Err(MoveError::Index(IndexError::Closed(_))) => {}
            Err(MoveError::Index(error)) => return Err(error),
            Err(other) => {
                return Err(IndexError::Unavailable(format!(
                    "the partitions of the table at {meta} were not handed over ({other}): others take them over \
                     once this compute server has gone"
                )));
            }
        }
        session.pool().let_go(meta, &self.0.0);
        if let Some(own) = session.endpoint().own_region() {
            let at = own_slices_at(own.number);
            if let Some(slices) = session.pool().kept::<OwnSlices>(at)
                && slices.give(meta)
            {
                session.pool().let_go(at, &slices);
            }
        }
        Ok(())
    }

    fn cache(&self) -> Option<&dyn CacheControl> {
        Some(self)
    }

    fn partitions(&self) -> Option<&dyn PartitionCalls> {
        self.0.membership().is_some().then_some(&self.0 as &dyn PartitionCalls)
    }

    fn counters(&self, counters: &mut CounterSet) {
        let counts = &self.0.counts;
        for (name, counter) in counts.list().into_iter().chain(counts.list_homed()) {
            counters.add(name, counter.load(Ordering::Relaxed));
        }
        let replicas = &self.0.parts().replicas;
        counters.add("replicas", replicas.count() as u64);
        counters.add("replica_bytes", replicas.bytes());
        if let Some(own) = self.0.membership() {
            own.counters(counters);
        }
    }
}

impl CacheControl for DmTree {
    fn resident_bytes(&self) -> u64 {
        self.0.cache.bytes() + self.0.parts().replicas.bytes()
    }
}

impl Engine for DmTree {
    const NAME: &'static str = "dmtree";
    const ABOUT: &'static str = "DMTree: leaves in memory servers, their fingerprint tables and locks on compute servers; FAST 2026";

    const TRAITS: Traits = Traits { cached: true, exposes: true, ..Traits::NONE };

    type Shape = DmTreeShape;
    type Options = DmTreeOptions;
    type Table = DmTree;

    fn shape_for(
        spec: &farleaf_index::Spec,
        wanted: DmTreeShape,
    ) -> Result<DmTreeShape, IndexError> {
        farleaf_index::Shape::complete(wanted, spec)
    }

    /// Cost: 6 WRITEs of objects, and a map.
    async fn create(
        session: &Session,
        table: &TableSpec<DmTreeShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let shape = shape_of(table)?;
        let made = create_leaf_tree(session, &shape, (META_TAG, DmTree::NAME), false).await?;
        made.keep();
        let meta = made.meta.addr();
        let acks = made.acks.as_ref().map_or(GlobalAddr::NULL, |acks| acks.addr());
        let words = words_of(meta, acks);
        let count = partition_count(session.pool().geometry()) as usize;
        if let Err(error) = create_partitions(&words, session, count).await {
            made.unkeep();
            return Err(error);
        }
        Ok(meta)
    }

    /// Takes part in the table; and offers this member's memory, if it has any.
    ///
    /// Cost: 7 remote operations the first time, and a change of the map.
    async fn open(
        session: &Session,
        table: &Stored<DmTreeShape>,
        options: DmTreeOptions,
        _join: &OpenOptions,
    ) -> Result<DmTree, IndexError> {
        let opened = open_once(session, table.meta, async || {
            let meta = {
                let _pin = session.begin(OpKind::Other).await?;
                read_meta(session, (table.meta, META_TAG, DmTree::NAME)).await?
            };
            let words = words_of(table.meta, meta.acks);
            let membership = PartitionMembership::join(words, session).await?;
            let budget = if options.replica { options.cache_bytes } else { 0 };
            let (geometry, replicas) = (session.pool().geometry(), ReplicaCache::new(budget));
            let speculates = options.speculate;
            let mut parts = Parts::new(words, geometry, Some(membership), replicas, speculates);
            parts.move_way = options.move_way.into();
            let shared = FpTreeOptions::from(options);
            let shape = shape_of(table)?;
            Ok(LeafTree::with(&stored(table), shape, shared, &meta, Some(parts)))
        })
        .await?;
        let open = DmTree(HomedTable(opened.thing));
        if opened.is_first {
            open.offer_memory(session, options.weight).await?;
        }
        Ok(open)
    }

    /// Cost: 1 READ for each node and record, 3 for each leaf.
    async fn walk(
        session: &Session,
        table: &Stored<DmTreeShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let tree = look_at(session, table).await?;
        tree.walk_all(session, visitor, report).await
    }

    /// Gives the partitions of the dead to others.
    async fn release_dead(
        session: &Session,
        table: &Stored<DmTreeShape>,
    ) -> Result<usize, IndexError> {
        let (tree, dead, is_closed) = {
            let _pin = session.begin(OpKind::Maintenance).await?;
            let tree = look_at(session, table).await?;
            let map = read_partitions(&tree.parts().words, session).await?;
            let lives = session.members().await?;
            let mut dead: Vec<Incarnation> = Vec::new();
            for member in &map.members {
                let who = member.incarnation;
                let is_gone = !lives.iter().any(|life| life.incarnation == who);
                if is_gone || session.endpoint().is_dead(who).await {
                    dead.push(who);
                }
            }
            (tree, dead, map.is_closed())
        };
        for who in &dead {
            fail_over(&tree, session, *who).await?;
        }
        if is_closed && dead.is_empty() {
            resume(&tree, session).await?;
        }
        Ok(dead.len())
    }

    /// Finishes the splits and merges of the dead, as the conductor: their records are zeroed when the recovery ends.
    ///
    /// Cost: 1 READ for each memory server and dead client.
    async fn redo_dead(
        session: &Session,
        table: &Stored<DmTreeShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        let (tree, records) = {
            let _pin = session.begin(OpKind::Maintenance).await?;
            let tree = look_at(session, table).await?;
            let mut records = Vec::new();
            for &client in recovery.clients() {
                for server in 0..session.endpoint().server_count() {
                    let area = recovery.redo_addr(ServerId(server as u16), client);
                    records.extend(tree.read_redo(session, area).await?);
                }
            }
            (tree, records)
        };
        if records.is_empty() {
            return Ok(());
        }
        as_conductor(&tree, session, async move |table, session, map| {
            let op = Op::of_conductor(session, map.clone());
            for record in &records {
                match record {
                    LeafRedo::Pending(pending) => table.finish_left(&op, pending).await?,
                    LeafRedo::Update(update) => table.finish_left_update(&op, update).await?,
                }
            }
            Ok(())
        })
        .await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<DmTreeShape>,
    ) -> Result<(), IndexError> {
        if session.pool().kept::<LeafTree>(table.meta).is_some() {
            let told = format!("the table at {} is open here: close it first", table.meta);
            return Err(IndexError::Unavailable(told));
        }
        let _pin = session.begin(OpKind::Other).await?;
        let tree = look_at(session, table).await?;
        check_unused(&tree.parts().words, session).await
    }
}
