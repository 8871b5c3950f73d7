//! Homes: finds the line of a leaf, on a memory server or in the memory of a compute server, and locks, READs and WRITEs it.
//!
//! Lines of a table with numbered partitions lie at their partition's home ([`farleaf_index::compute::partitions`]): in the
//! memory of a compute server, or, if nobody owns the partition, in table objects as `fptree` has them. An operation is inside
//! the partition guard from its first line to its last (`INV-DM-7`). It never waits for the guard there: it stops, leaves,
//! and begins again once the partition is open.
//!
//! A line in a region has the number of its leaf's place among all places for leaves in the pool. Each table has a *slice*
//! of its own of each region, so that a partition's lines can be zeroed or copied without those of other tables.

use std::cell::{Cell, OnceCell};
use std::future::Future;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, Incarnation, OpError, Ops, ServerId};
use farleaf_index::IndexError;
use farleaf_index::compute::partitions::{
    Home, InsidePartitions, MoveWay, PartitionGuard, PartitionMap, PartitionMembership,
    PartitionState, PartitionWords,
};
use farleaf_index::compute::regions::{
    RegionEnd, attach_region, has_ended, on_region, soon, while_reachable,
};
use farleaf_index::remote_lock::{
    LeftLock, Lock, LockHome, LockKeeper, try_lock_at_home, try_lock_reading,
};
use farleaf_pool::{Geometry, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::LeafTree;
use super::line::{LINE_BYTES, Line, lock_at};
use super::replicas::ReplicaCache;

farleaf_fabric::canaries! {
    pub(crate) ANSWER_UNVOUCHED = "answer-unvouched",
        "an answer from a line in this compute server's own memory is given without a look whether its lease holds";
}

/// Lines that lie side by side and have one home.
pub(super) const GROUP_LINES: u64 = 64;
/// Bytes of a group.
pub(super) const GROUP_BYTES: usize = GROUP_LINES as usize * LINE_BYTES;
/// Bytes of the pool for each partition, and bounds of their number.
const PARTITION_BYTES: u64 = 64 << 10;
const PARTITIONS: (u64, u64) = (16, 4096);
const GROUP_SEED: u64 = u64::from_le_bytes(*b"FLdmgrp1");

/// The reason for which an operation must leave the guard. Nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// This partition is closed, or another view is published.
    Closed(u32),
    /// The memory of this compute server cannot be reached any more: it is dead, or has left.
    Gone(Incarnation),
}

/// The place of a line: where it is, and the term that counts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePlace {
    pub(super) at: GlobalAddr,
    /// The compute server in whose memory it is; `None` for a memory server.
    pub(super) owner: Option<Incarnation>,
    pub(super) term: u32,
    partition: u32,
}

impl LinePlace {
    /// One of a table without partitions.
    pub(super) fn in_pool(at: GlobalAddr) -> Self {
        LinePlace { at, owner: None, term: 0, partition: 0 }
    }

    /// One at the home of a partition.
    pub(super) fn at_home(at: GlobalAddr, home: Home, partition: u32) -> Self {
        LinePlace { at, owner: home.owner, term: home.term, partition }
    }

    /// Tells whether line and leaf are on one server, so that WRITEs to both are one chain.
    pub(super) fn is_beside_leaf(&self) -> bool {
        self.owner.is_none()
    }
}

/// A line's place, or why it has none now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    At(LinePlace),
    Stop(Stop),
    /// Its home has no room for it yet.
    Unmade,
}

/// Partitions of a table whose lines lie on compute servers.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) words: PartitionWords,
    count: u32,
    /// `None` where the table is not open.
    pub(super) membership: Option<PartitionMembership>,
    pub(super) replicas: ReplicaCache,
    /// Changes READ the slot that a replica names beside the lock.
    pub(super) speculates: bool,
    /// The way of lines when this compute server opens or closes the table.
    pub(super) move_way: MoveWay,
}

/// Number of partitions of a table in a pool of that geometry.
pub(super) fn partition_count(geometry: &Geometry) -> u32 {
    let wanted = (geometry.pool_bytes() / PARTITION_BYTES).clamp(PARTITIONS.0, PARTITIONS.1);
    // The power of two at or below.
    1 << wanted.ilog2()
}

/// Bytes of a table's slice of a region.
pub(super) fn slice_bytes(geometry: &Geometry) -> u64 {
    // No leaf is smaller than 1 KiB.
    let lines = geometry.blocks_in_pool() * (geometry.options().block_bytes / 1024);
    (lines * LINE_BYTES as u64).next_multiple_of(GROUP_BYTES as u64)
}

impl Parts {
    pub(super) fn new(
        words: PartitionWords,
        geometry: &Geometry,
        membership: Option<PartitionMembership>,
        replicas: ReplicaCache,
        speculates: bool,
    ) -> Self {
        let count = partition_count(geometry);
        let move_way = MoveWay::Build;
        Parts { words, count, membership, replicas, speculates, move_way }
    }

    /// The partition of the line of that number.
    pub(super) fn partition(&self, number: u64) -> u32 {
        self.partition_of_group(number / GROUP_LINES)
    }

    /// The partition of a group of lines.
    pub(super) fn partition_of_group(&self, group: u64) -> u32 {
        let hash = xxh3_64_with_seed(&group.to_le_bytes(), GROUP_SEED);
        hash as u32 & (self.count - 1)
    }
}

/// The open table, as what a task's guard keeps.
#[derive(Debug)]
pub(super) struct GuardOf(Arc<LeafTree>);

impl AsRef<PartitionGuard> for GuardOf {
    fn as_ref(&self) -> &PartitionGuard {
        self.0.membership().expect("its operation was inside").guard()
    }
}

/// The right to use lines.
#[derive(Debug)]
pub(super) enum LineRight<'a> {
    /// Lines never move.
    Pool,
    /// An operation inside the guard.
    Inside(InsidePartitions<&'a PartitionGuard>),
    /// A task that it has left behind.
    Task(InsidePartitions<GuardOf>),
    /// The conductor: no partition opens or changes its owner meanwhile.
    Conductor(Rc<PartitionMap>),
}

/// Notes that an operation and its tasks share.
#[derive(Debug, Default)]
pub(super) struct OpNotes {
    stop: Cell<Option<Stop>>,
    /// A WRITE that changes a key has been posted, or may have been.
    is_posted: Cell<bool>,
    /// Nobody waits any more: no such WRITE is to be posted.
    is_cancelled: Cell<bool>,
    /// This operation has itself looked, not waited for another's answer.
    has_looked: Cell<bool>,
}

impl OpNotes {
    /// The reason for which the operation stopped, if it did.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.stop.take()
    }

    /// The caller waits no longer: whether the change may have happened, or may still.
    pub(super) fn cancel(&self) -> bool {
        self.is_cancelled.set(true);
        self.is_posted.get()
    }

    pub(super) fn looks(&self) {
        self.has_looked.set(true);
    }

    pub(super) fn has_looked(&self) -> bool {
        self.has_looked.get()
    }
}

/// Notes of an operation that leaves no task behind but where it meets the dead: they need no allocation till then.
#[derive(Debug, Default)]
pub(super) struct ReadNotes {
    own: OpNotes,
    of_tasks: OnceCell<Rc<OpNotes>>,
}

impl ReadNotes {
    /// The reason for which the operation, or a task of it, stopped.
    pub(super) fn stop(&self) -> Option<Stop> {
        let of_tasks = self.of_tasks.get().and_then(|notes| notes.stop());
        self.own.stop().or(of_tasks)
    }

    pub(super) fn has_looked(&self) -> bool {
        self.own.has_looked()
    }
}

/// The notes of an operation.
#[derive(Debug)]
enum Notes<'a> {
    /// Lines never move.
    Nothing,
    OfRead(&'a ReadNotes),
    Shared(Rc<OpNotes>),
}

impl Notes<'_> {
    fn get(&self) -> Option<&OpNotes> {
        match self {
            Notes::Nothing => None,
            Notes::OfRead(notes) => Some(&notes.own),
            Notes::Shared(notes) => Some(notes),
        }
    }

    fn for_task(&self) -> Notes<'static> {
        match self {
            Notes::Nothing => Notes::Nothing,
            Notes::OfRead(notes) => {
                Notes::Shared(Rc::clone(notes.of_tasks.get_or_init(Rc::default)))
            }
            Notes::Shared(notes) => Notes::Shared(Rc::clone(notes)),
        }
    }
}

/// An operation, or a task of one: its session, and its right to use lines.
#[derive(Debug)]
pub(super) struct Op<'a> {
    session: &'a Session,
    right: LineRight<'a>,
    notes: Notes<'a>,
}

impl Deref for Op<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session
    }
}

/// The right of a task that outlives its operation, or may.
#[derive(Debug)]
pub(super) struct TaskRight {
    right: LineRight<'static>,
    notes: Notes<'static>,
}

impl TaskRight {
    /// The task as an operation of `session`.
    pub(super) fn on(self, session: &Session) -> Op<'_> {
        Op { session, right: self.right, notes: self.notes }
    }
}

/// Keeps an operation inside the guard for a lock of its own. A lock that has to be left is the membership's.
#[derive(Debug)]
struct KeptInside {
    _right: TaskRight,
    tree: Arc<LeafTree>,
    partition: u32,
}

impl LockKeeper for KeptInside {
    fn takes(&self) -> bool {
        self.tree.membership().is_some()
    }

    fn leave(self: Box<Self>, lock: LeftLock) {
        if let Some(membership) = self.tree.membership() {
            membership.leave_lock(self.partition, lock);
        }
    }
}

impl<'a> Op<'a> {
    /// One of a table whose lines never move.
    pub(super) fn in_pool(session: &'a Session) -> Self {
        Op { session, right: LineRight::Pool, notes: Notes::Nothing }
    }

    /// The conductor's work by `map`.
    pub(super) fn of_conductor(session: &'a Session, map: PartitionMap) -> Self {
        let notes = Notes::Shared(Rc::default());
        Op { session, right: LineRight::Conductor(Rc::new(map)), notes }
    }

    /// The same right for a task.
    pub(super) fn for_task(&self, tree: &Arc<LeafTree>) -> TaskRight {
        let right = match &self.right {
            LineRight::Pool => LineRight::Pool,
            LineRight::Inside(inside) => {
                LineRight::Task(inside.for_task(GuardOf(Arc::clone(tree)), self))
            }
            LineRight::Task(inside) => {
                LineRight::Task(inside.for_task(GuardOf(Arc::clone(tree)), self))
            }
            LineRight::Conductor(map) => LineRight::Conductor(Rc::clone(map)),
        };
        TaskRight { right, notes: self.notes.for_task() }
    }

    /// The entry of the guard that a lock in `partition` keeps until it has been given back.
    fn kept(&self, tree: &Arc<LeafTree>, partition: u32) -> Box<dyn LockKeeper> {
        Box::new(KeptInside { _right: self.for_task(tree), tree: Arc::clone(tree), partition })
    }

    /// The session that the operation runs on.
    pub(super) fn session(&self) -> &'a Session {
        self.session
    }

    pub(super) fn is_conductor(&self) -> bool {
        matches!(self.right, LineRight::Conductor(_))
    }

    fn is_stale(&self) -> bool {
        match &self.right {
            LineRight::Pool | LineRight::Conductor(_) => false,
            LineRight::Inside(inside) => inside.is_stale(),
            LineRight::Task(inside) => inside.is_stale(),
        }
    }

    /// The home of a partition, if it is open, and the owner's slice.
    fn home(&self, tree: &LeafTree, partition: u32) -> Option<(Home, u16)> {
        let home = match &self.right {
            LineRight::Pool => return None,
            LineRight::Inside(inside) => inside.try_enter(partition)?,
            LineRight::Task(inside) => inside.try_enter(partition)?,
            LineRight::Conductor(map) => {
                let entry = map.entries[partition as usize];
                if entry.state != PartitionState::Open {
                    return None;
                }
                let slice = entry.owner.map(|owner| map.member(owner).map(|it| it.slice));
                return Some((
                    Home { owner: entry.owner, term: entry.term },
                    slice.unwrap_or(Some(0))?,
                ));
            }
        };
        match home.owner {
            None => Some((home, 0)),
            Some(owner) => Some((home, tree.membership()?.view().slice(owner)?)),
        }
    }

    /// Notes the reason for which the operation leaves; the error for it.
    pub(super) fn stopped(&self, stop: Stop) -> IndexError {
        if let Some(notes) = self.notes.get() {
            notes.stop.set(Some(stop));
        }
        match stop {
            Stop::Closed(partition) => IndexError::Unavailable(format!(
                "the lines of partition {partition} are on their way to another compute server: try again"
            )),
            Stop::Gone(owner) => IndexError::Unavailable(format!(
                "compute server {owner}, which had the lock of a leaf, is gone: try again"
            )),
        }
    }

    /// Before a WRITE that changes a key: from here on the operation ends.
    ///
    /// # Errors
    /// `Unavailable` if nobody waits any more: nothing was done.
    pub(super) fn begin_posting(&self) -> Result<(), IndexError> {
        let Some(notes) = self.notes.get() else { return Ok(()) };
        if notes.is_cancelled.get() {
            return Err(IndexError::Unavailable("it takes longer than it is waited for".into()));
        }
        notes.is_posted.set(true);
        Ok(())
    }

    pub(super) fn notes(&self) -> Option<&OpNotes> {
        self.notes.get()
    }
}

impl LeafTree {
    /// This compute server's part in the table's partitions.
    pub(super) fn membership(&self) -> Option<&PartitionMembership> {
        self.parts.as_ref()?.membership.as_ref()
    }

    /// Returns whether lines lie at the homes of numbered partitions.
    pub(super) fn is_homed(&self) -> bool {
        self.parts.is_some()
    }

    /// The address of line `number` in the slice of a region.
    pub(super) fn region_line(
        &self,
        session: &Session,
        server: ServerId,
        slice: u16,
        number: u64,
    ) -> GlobalAddr {
        let base = u64::from(slice) * slice_bytes(session.pool().geometry());
        GlobalAddr::new(server, base + number * LINE_BYTES as u64)
    }

    /// The line of `leaf`. If `makes`, an unowned partition gets room for it.
    ///
    /// Cost: 2 READs for the first leaf of each block whose lines are on memory servers; 1 READ for each compute server.
    pub(super) async fn reach(
        &self,
        op: &Op<'_>,
        leaf: GlobalAddr,
        makes: bool,
    ) -> Result<Reach, IndexError> {
        let Some(parts) = &self.parts else {
            return Ok(Reach::At(LinePlace::in_pool(self.lines.of(op, leaf).await?)));
        };
        let number = self.lines.number(op, leaf)?;
        let partition = parts.partition(number);
        let Some((home, slice)) = op.home(self, partition) else {
            return Ok(Reach::Stop(Stop::Closed(partition)));
        };
        let Some(owner) = home.owner else {
            let at = match makes {
                true => Some(self.lines.of_new(op, leaf).await?),
                false => self.lines.find(op, leaf).await?,
            };
            let at = at.map(|at| Reach::At(LinePlace::at_home(at, home, partition)));
            return Ok(at.unwrap_or(Reach::Unmade));
        };
        let Some(server) = attach_region(op, owner).await? else {
            return Ok(Reach::Stop(Stop::Gone(owner)));
        };
        let at = self.region_line(op, server, slice, number);
        Ok(Reach::At(LinePlace::at_home(at, home, partition)))
    }

    /// The line of `leaf`, which gets room for it.
    ///
    /// # Errors
    /// As [`LeafTree::reach`]; a reason to leave is noted.
    pub(super) async fn line_of(
        &self,
        op: &Op<'_>,
        leaf: GlobalAddr,
    ) -> Result<LinePlace, IndexError> {
        match self.reach(op, leaf, true).await? {
            Reach::At(place) => Ok(place),
            Reach::Stop(stop) => Err(op.stopped(stop)),
            Reach::Unmade => Err(self.corrupt(&format!("the leaf {leaf} has no line"))),
        }
    }

    /// The line of a new leaf.
    ///
    /// # Errors
    /// As [`LeafTree::line_of`]; `Full` if that server has no room for lines.
    pub(super) async fn line_of_new(
        &self,
        op: &Op<'_>,
        leaf: GlobalAddr,
    ) -> Result<LinePlace, IndexError> {
        match self.parts {
            None => Ok(LinePlace::in_pool(self.lines.of_new(op, leaf).await?)),
            Some(_) => self.line_of(op, leaf).await,
        }
    }

    /// Leaves if another view is published: no operation waits for a lock while others wait for it.
    ///
    /// # Errors
    /// `Unavailable`, noted.
    pub(super) fn check_fresh(&self, op: &Op<'_>, place: LinePlace) -> Result<(), IndexError> {
        if op.is_stale() { Err(op.stopped(Stop::Closed(place.partition))) } else { Ok(()) }
    }

    /// The outcome of an operation on a line's home.
    async fn at_home<T>(
        &self,
        op: &Op<'_>,
        place: LinePlace,
        posted: impl Future<Output = Result<T, OpError>>,
    ) -> Result<T, IndexError> {
        let Some(owner) = place.owner else { return Ok(posted.await?) };
        match on_region(op, owner, posted).await {
            RegionEnd::Done(done) => Ok(done),
            RegionEnd::Gone => Err(op.stopped(Stop::Gone(owner))),
            RegionEnd::Unreachable(error) => Err(error.into()),
        }
    }

    /// READs a line: the line, if it is whole and of the present term, and its lock word. 1 READ.
    pub(super) async fn read_line(
        &self,
        op: &Op<'_>,
        place: LinePlace,
    ) -> Result<(Option<Line>, u64), IndexError> {
        let reliable = op.reliable();
        let read = reliable.read(place.at, reliable.buf(LINE_BYTES));
        let buf = self.at_home(op, place, read).await?;
        Ok(Line::decode(self.shape.tree, place, &buf))
    }

    /// READs the line of `leaf` for an operation that has another way, if it can be had soon: of a living owner, in an open
    /// partition. A line from this compute server's own memory is vouched for.
    ///
    /// Cost: 1 READ.
    ///
    /// # Errors
    /// `Closed` if others may have declared this compute server dead.
    pub(super) async fn peek_line(
        &self,
        op: &Op<'_>,
        leaf: GlobalAddr,
    ) -> Result<Option<Line>, IndexError> {
        let Reach::At(place) = self.reach(op, leaf, false).await? else { return Ok(None) };
        let Some(owner) = place.owner else { return Ok(self.read_line(op, place).await?.0) };
        let Some(buf) = self.peek_words(op, place).await? else { return Ok(None) };
        self.vouch_for(op, owner)?;
        Ok(Line::decode(self.shape.tree, place, &buf).0)
    }

    /// READs a line's words, if they can be had soon. 1 READ.
    pub(super) async fn peek_words(
        &self,
        op: &Op<'_>,
        place: LinePlace,
    ) -> Result<Option<Buf>, IndexError> {
        if place.owner.is_none() {
            let reliable = op.reliable();
            return Ok(Some(reliable.read(place.at, reliable.buf(LINE_BYTES)).await?));
        }
        let read = op.client().read(place.at, op.client().buf(LINE_BYTES));
        Ok(soon(op, read).await.and_then(Result::ok))
    }

    /// An operation inside the guard; `None` where lines never move, or the table is not open.
    pub(super) fn try_inside<'a>(&'a self, session: &'a Session) -> Option<Op<'a>> {
        self.try_inside_noting(session, Rc::default())
    }

    /// As [`LeafTree::try_inside`], with the notes of an operation.
    pub(super) fn try_inside_noting<'a>(
        &'a self,
        session: &'a Session,
        notes: Rc<OpNotes>,
    ) -> Option<Op<'a>> {
        self.inside(session, Notes::Shared(notes))
    }

    /// As [`LeafTree::try_inside`], of an operation that changes nothing.
    pub(super) fn try_inside_reading<'a>(
        &'a self,
        session: &'a Session,
        notes: &'a ReadNotes,
    ) -> Option<Op<'a>> {
        self.inside(session, Notes::OfRead(notes))
    }

    fn inside<'a>(&'a self, session: &'a Session, notes: Notes<'a>) -> Option<Op<'a>> {
        let membership = self.membership()?;
        let (inside, []) = membership.guard().try_enter(session.id(), [])?;
        // After it has entered: whoever closes the table waits for those that are inside.
        if membership.is_closed() {
            return None;
        }
        Some(Op { session, right: LineRight::Inside(inside), notes })
    }

    /// Vouches for what was read in the memory of `owner`, if that is this compute server. Another's memory refuses one that was
    /// declared dead.
    pub(super) fn vouch_for(&self, op: &Op<'_>, owner: Incarnation) -> Result<(), IndexError> {
        if owner == op.endpoint().incarnation() && !ANSWER_UNVOUCHED.is_armed() {
            op.vouch()?;
        }
        Ok(())
    }

    /// Tries once to lock a line, and READs it; the inner error is the lock word that was found.
    ///
    /// Cost: 1 CAS and 1 READ, 1 round trip.
    pub(super) async fn try_lock_line(
        self: &Arc<Self>,
        op: &Op<'_>,
        place: LinePlace,
        expected: u64,
        token: u64,
    ) -> Result<Result<(Lock, Option<Line>), u64>, IndexError> {
        let (word, what) = (lock_at(place.at), (place.at, LINE_BYTES));
        let locked = if self.is_homed() {
            let home = LockHome { owner: place.owner, kept: op.kept(self, place.partition) };
            let posted = try_lock_at_home(op, word, (expected, token), what, home);
            self.at_home(op, place, posted).await?
        } else {
            try_lock_reading(op, word, expected, token, what).await?
        };
        Ok(locked.map(|(lock, buf)| (lock, Line::decode(self.shape.tree, place, &buf).0)))
    }

    /// Gives back the lock of a line that was not changed. A lock that may move is given back by a task.
    pub(super) async fn give_back(&self, lock: Lock) -> Result<(), IndexError> {
        if self.is_homed() {
            lock.release_unawaited(|_, _| {});
            return Ok(());
        }
        lock.release().await
    }

    /// WRITEs a line under its lock. 1 WRITE.
    ///
    /// # Errors
    /// `Unavailable`: the lock may be dropped, and is given back once the WRITE takes no more effect.
    pub(super) async fn write_line(
        &self,
        op: &Op<'_>,
        lock: &mut Lock,
        place: LinePlace,
        line: &Line,
    ) -> Result<(), IndexError> {
        let written = self.put_line(op, place, line).await;
        if written.is_err() {
            lock.doubt();
        }
        written
    }

    /// WRITEs a line that nobody else writes.
    pub(super) async fn put_line(
        &self,
        op: &Op<'_>,
        place: LinePlace,
        line: &Line,
    ) -> Result<(), IndexError> {
        let content = line.encode(op, self.shape.tree, place);
        self.at_home(op, place, op.reliable().write(place.at, content)).await
    }

    /// WRITEs a line in the middle of a change that is done to its end: it is lost if its home is gone.
    pub(super) async fn put_line_if_there(
        &self,
        op: &Op<'_>,
        place: LinePlace,
        line: &Line,
    ) -> Result<(), IndexError> {
        let content = line.encode(op, self.shape.tree, place);
        let write = op.reliable().write(place.at, content);
        let Some(owner) = place.owner else { return Ok(write.await?) };
        match on_region(op, owner, write).await {
            RegionEnd::Done(()) | RegionEnd::Gone => Ok(()),
            RegionEnd::Unreachable(error) => Err(error.into()),
        }
    }

    /// WRITEs a line, leaves `word` in its lock, and waits for that. A home that is gone needs neither. One that cannot be
    /// reached gets both later: until then its lock stays.
    ///
    /// Cost: 1 WRITE and 1 CAS (a WRITE with `write_vs_rmw`), 1 round trip.
    pub(super) async fn finish_line(
        &self,
        op: &Op<'_>,
        place: LinePlace,
        lock: Lock,
        line: Option<&Line>,
        word: u64,
    ) -> Result<(), IndexError> {
        let mut ops = op.client().ops();
        if let Some(line) = line {
            ops.write(place.at, line.encode(op, self.shape.tree, place));
        }
        let finished = lock.finish(ops, word, None);
        let Some(owner) = place.owner else { return finished.await };
        match while_reachable(op, owner, finished).await {
            Some(Err(_)) if has_ended(op, owner).await => Ok(()),
            None => Ok(()),
            Some(finished) => finished,
        }
    }

    /// READs the lines of `places`, on memory servers, at once. 1 READ each, 1 round trip.
    pub(super) async fn read_lines(
        &self,
        op: &Op<'_>,
        places: &[LinePlace],
    ) -> Result<Vec<Option<Line>>, IndexError> {
        let reliable = op.reliable();
        let mut ops = reliable.client().ops();
        for place in places {
            ops.read(place.at, reliable.buf(LINE_BYTES));
        }
        let ops = reliable.post_many(ops).await?;
        Ok(self.lines_in(ops, places))
    }

    fn lines_in(&self, mut ops: Ops, places: &[LinePlace]) -> Vec<Option<Line>> {
        let lines = places.iter().enumerate();
        lines
            .map(|(at, place)| Line::decode(self.shape.tree, *place, &ops.take_buf(at)).0)
            .collect()
    }

    /// READs the lines of `places` at once; `None` for one that is not of the present term, and for all if some home does not
    /// answer soon.
    ///
    /// Cost: 1 READ each, 1 round trip.
    ///
    /// # Errors
    /// `Closed` if others may have declared this compute server dead.
    pub(super) async fn peek_lines(
        &self,
        op: &Op<'_>,
        places: &[LinePlace],
    ) -> Result<Vec<Option<Line>>, IndexError> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let mut ops = op.client().ops();
        for place in places {
            ops.read(place.at, op.client().buf(LINE_BYTES));
        }
        let posted = op.client().post_many(ops);
        let read = match places.iter().any(|place| place.owner.is_some()) {
            true => soon(op, posted).await,
            false => Some(posted.await),
        };
        let Some(Ok(ops)) = read else { return Ok(vec![None; places.len()]) };
        for owner in places.iter().filter_map(|place| place.owner) {
            self.vouch_for(op, owner)?;
        }
        Ok(self.lines_in(ops, places))
    }
}
