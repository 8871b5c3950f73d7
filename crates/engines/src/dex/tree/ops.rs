//! Point operations: get and change single keys through the cache.
//!
//! A hit reads under optimistic lock coupling, or changes the leaf under X of its latch, and sends
//! nothing over the fabric.
//!
//! - `INV-DEX-REC` A change that takes a reference to a record out of a leaf is written through before
//!   the record is retired, so that remote memory never refers to a record that is gone.

use std::sync::Arc;

use farleaf_fabric::GlobalAddr;
use farleaf_index::bnode::{ChangeError, Image, Node, NodeMut, RecordRef, StoredValue};
use farleaf_index::detach::unfinished_change;
use farleaf_index::{Change, Decision, IndexError, Outcome, Seek};
use farleaf_pool::Session;

use super::combine::Others;
use super::split::Need;
use super::walk::{Location, SearchEnd};
use super::{DexFail, DexTree, OpContext};
use crate::dex::cache::{FrameState, IoMark, Sx};
use crate::dex::change::{LeafChange, OwnedLeafChange};
use crate::dex::offload::Offloadable;

/// The result of an attempt on a leaf.
pub(crate) enum LeafAttempt {
    /// Nothing had to be changed.
    Left(Outcome),
    /// Changed; and whether the leaf has become sparse.
    Changed(Outcome, bool),
    NoRoom,
    Again,
}

/// End of an attempt at a cached leaf, or the reason to wait.
enum LeafStep {
    Done(LeafAttempt),
    /// The change expects a value, and the leaf holds a record at this index.
    Compare(usize, RecordRef),
    /// The change has to be in a memory server before it is seen; and the record that it gives up.
    Surely(Sx, Outcome, Option<GlobalAddr>),
    /// Another client holds the leaf's latch.
    LeaveToHolder,
}

/// A cached leaf, and the attempt at it.
type LeafHit = (Location, Result<LeafStep, DexFail>);

/// Applies a change to a leaf.
pub(crate) fn apply<I: Image>(
    leaf: &mut NodeMut<'_, I>,
    change: &LeafChange<'_>,
) -> Result<(), ChangeError> {
    let found = leaf.as_node().find(change.key);
    apply_at(leaf, change, found)
}

/// Applies a change at the key's index, or at the place where the key would be.
#[inline]
pub(crate) fn apply_at<I: Image>(
    leaf: &mut NodeMut<'_, I>,
    change: &LeafChange<'_>,
    found: Result<usize, usize>,
) -> Result<(), ChangeError> {
    match (change.stored(), found) {
        (Some(value), Ok(index)) => leaf.replace(index, value),
        (Some(value), Err(_)) => leaf.insert(change.key, value).map(drop),
        (None, Ok(index)) => leaf.remove(index),
        (None, Err(_)) => Ok(()),
    }
}

impl DexTree {
    /// Copies the value of `key` into `value` if every node on the way is cached; else `None`. Touches
    /// nothing but frames, so it needs no pin.
    #[inline]
    pub(crate) fn get_cached(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<bool>, IndexError> {
        self.ownership.check_open()?;
        Ok(match self.hit(key).and_then(|location| self.value_in(location, key, value)) {
            Some(Some(StoredValue::Inline)) => Some(true),
            Some(None) => {
                value.clear();
                Some(false)
            }
            Some(Some(StoredValue::Record(_))) | None => None,
        })
    }

    /// Copies a leaf's value of `key` into `value`; `None` if the leaf changed meanwhile.
    #[inline]
    fn value_in(
        &self,
        location: Location,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Option<Option<StoredValue>> {
        let node = self.pages.frames.node(self.layout(), location.frame);
        let stored = match node.find(key) {
            Ok(index) => node.value(index, value),
            Err(_) => None,
        };
        self.pages.frames.latch(location.frame).validate(location.version).then_some(stored)
    }

    /// Copies `key`'s value into `value`; `false` if there is none.
    ///
    /// Cost: none if the leaf is cached; 1 READ for a value in a record.
    pub(crate) async fn get(
        self: &Arc<Self>,
        session: &Session,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, IndexError> {
        let mut context = OpContext::get();
        loop {
            match self.find(session, Seek::At(key), 0, &mut context).await? {
                SearchEnd::Offload(mark) => {
                    if let Some(has) =
                        Box::pin(self.get_offloaded(session, mark, key, value)).await?
                    {
                        return Ok(has);
                    }
                    context.fall_back();
                }
                SearchEnd::Node(location) => {
                    let Some(stored) = self.value_in(location, key, value) else {
                        context.again(self, session).await?;
                        continue;
                    };
                    match stored {
                        Some(StoredValue::Inline) => return Ok(true),
                        Some(StoredValue::Record(record)) => {
                            self.remote.read_record(session, record, value).await?;
                            return Ok(true);
                        }
                        None => {
                            value.clear();
                            return Ok(false);
                        }
                    }
                }
                SearchEnd::Missing(mark) => match Box::pin(self.stream(session, mark)).await {
                    Ok(image) => {
                        let node = Node::new(self.layout(), image.words());
                        let Ok(index) = node.find(key) else {
                            value.clear();
                            return Ok(false);
                        };
                        self.remote.value_of(session, &node, index, value).await?;
                        return Ok(true);
                    }
                    Err(fail) => context.after(fail, self, session).await?,
                },
                SearchEnd::Awaited(addr) => {
                    if let Some(has) = Box::pin(self.join_read(addr, key, value)).await {
                        return Ok(has);
                    }
                    context.step()?;
                }
                SearchEnd::TooLow | SearchEnd::Crowded => return Err(self.no_level()),
            }
        }
    }

    /// Changes one key; leaves its old value in `held` if the change expects one.
    pub(crate) async fn modify(
        self: &Arc<Self>,
        session: &Session,
        change: &Change<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Outcome, IndexError> {
        let _pin = session.begin(change.kind).await?;
        let mut leaf_change = LeafChange { change: *change, record: None };
        if let Some(value) = leaf_change.value
            && self.remote.needs_record(value.len())
        {
            leaf_change.record = Some(self.remote.write_record(session, value).await?);
        }
        // Most changes end here, without the futures below, which would be moved for each of them.
        let result = match self.change_hit(&leaf_change, held) {
            Ok(Some((
                _,
                Ok(LeafStep::Done(end @ (LeafAttempt::Changed(..) | LeafAttempt::Left(_)))),
            ))) => Ok(end),
            Ok(hit) => self.modify_with_record(session, &leaf_change, held, hit).await,
            Err(error) => Err(error),
        };
        let published = matches!(result, Ok(LeafAttempt::Changed(..)));
        let unknown = matches!(result, Err(IndexError::OutcomeUnknown(_)));
        if let Some(record) = leaf_change.record
            && !published
            && !unknown
        {
            let (addr, bytes) = self.remote.record_place(record)?;
            session.free_unpublished(addr, bytes);
        }
        match result? {
            LeafAttempt::Changed(outcome, sparse) => {
                if sparse {
                    Box::pin(self.merge(session, change.key)).await;
                }
                Ok(outcome)
            }
            LeafAttempt::Left(outcome) => Ok(outcome),
            LeafAttempt::NoRoom | LeafAttempt::Again => Err(self.no_level()),
        }
    }

    /// Goes on with a change, after the first attempt at the leaf if that is cached.
    async fn modify_with_record(
        self: &Arc<Self>,
        session: &Session,
        change: &LeafChange<'_>,
        held: &mut Vec<u8>,
        mut hit: Option<LeafHit>,
    ) -> Result<LeafAttempt, IndexError> {
        let mut context = OpContext::change(Offloadable::of(change));
        loop {
            let attempt = if let Some((location, step)) = hit.take() {
                self.finish_change(session, location, step, change, held).await
            } else {
                match self.find(session, Seek::At(change.key), 0, &mut context).await? {
                    SearchEnd::Node(location) => {
                        hit = Some((location, self.change_cached(location, change, held)));
                        continue;
                    }
                    SearchEnd::Offload(mark) => {
                        let owned = OwnedLeafChange::of(change);
                        match Box::pin(self.change_offloaded(session, mark, owned)).await? {
                            Some((outcome, true)) => Ok(LeafAttempt::Changed(outcome, false)),
                            Some((outcome, false)) => Ok(LeafAttempt::Left(outcome)),
                            None => {
                                context.fall_back();
                                continue;
                            }
                        }
                    }
                    SearchEnd::Missing(mark) => {
                        let change = OwnedLeafChange::of(change);
                        Box::pin(self.change_streamed(session, mark, change, held)).await
                    }
                    SearchEnd::TooLow | SearchEnd::Awaited(_) | SearchEnd::Crowded => {
                        return Err(self.no_level());
                    }
                }
            };
            match attempt {
                Ok(LeafAttempt::Again) => context.again(self, session).await?,
                Ok(LeafAttempt::NoRoom) => {
                    // A split needs the leaf in the cache.
                    context.must_cache();
                    let need = Need::Room(OwnedLeafChange::of(change));
                    match Box::pin(self.split(session, need)).await {
                        Ok(()) => {}
                        Err(fail) => context.after(fail, self, session).await?,
                    }
                }
                Ok(done) => return Ok(done),
                Err(fail) => context.after(fail, self, session).await?,
            }
        }
    }

    /// Makes the first attempt at a change if every node on the way to the leaf is cached; else `None`.
    #[inline]
    fn change_hit(
        self: &Arc<Self>,
        change: &LeafChange<'_>,
        held: &mut Vec<u8>,
    ) -> Result<Option<LeafHit>, IndexError> {
        self.ownership.check_open()?;
        Ok(self
            .hit(change.key)
            .map(|location| (location, self.change_cached(location, change, held))))
    }

    /// Ends an attempt that may have to wait.
    async fn finish_change(
        self: &Arc<Self>,
        session: &Session,
        location: Location,
        mut step: Result<LeafStep, DexFail>,
        change: &LeafChange<'_>,
        held: &mut Vec<u8>,
    ) -> Result<LeafAttempt, DexFail> {
        loop {
            match step? {
                LeafStep::Done(attempt) => return Ok(attempt),
                LeafStep::Compare(index, record) => {
                    self.remote.read_record(session, record, held).await?;
                    step = self.change_found(location, change, Ok(index), Some(held));
                }
                LeafStep::Surely(sx, outcome, old_record) => {
                    let change = OwnedLeafChange::of(change);
                    let done = self.change_surely(session, sx, change, outcome, old_record);
                    return Box::pin(done).await;
                }
                LeafStep::LeaveToHolder => {
                    return Box::pin(self.leave_to_holder(location.frame, change)).await;
                }
            }
        }
    }

    /// One attempt at a leaf that is cached, as far as it goes without waiting.
    #[inline]
    fn change_cached(
        self: &Arc<Self>,
        location: Location,
        change: &LeafChange<'_>,
        held: &mut Vec<u8>,
    ) -> Result<LeafStep, DexFail> {
        let node = self.pages.frames.node(self.layout(), location.frame);
        let found = node.find(change.key);
        if change.expected.is_none() {
            return self.change_found(location, change, found, None);
        }
        held.clear();
        let stored = found.ok().and_then(|index| node.value(index, held));
        if let (Ok(index), Some(StoredValue::Record(record))) = (found, stored) {
            let is_valid = self.pages.frames.latch(location.frame).validate(location.version);
            return Ok(match is_valid {
                true => LeafStep::Compare(index, record),
                false => LeafStep::Done(LeafAttempt::Again),
            });
        }
        self.change_found(location, change, found, stored.is_some().then_some(held))
    }

    /// Changes a cached leaf where its key was `found`, if it still `holds` what the change expects.
    fn change_found(
        self: &Arc<Self>,
        location: Location,
        change: &LeafChange<'_>,
        found: Result<usize, usize>,
        holds: Option<&[u8]>,
    ) -> Result<LeafStep, DexFail> {
        let latch = &self.pages.frames.ctl(location.frame).latch;
        let node = self.pages.frames.node(self.layout(), location.frame);
        let old_record = found.ok().and_then(|index| node.record(index));
        if !latch.validate(location.version) {
            return Ok(LeafStep::Done(LeafAttempt::Again));
        }
        let outcome = match change.decide(found.is_ok(), holds) {
            Decision::Leave(outcome) => return Ok(LeafStep::Done(LeafAttempt::Left(outcome))),
            Decision::Apply(outcome) => outcome,
        };
        if old_record.is_some() || self.log.logs_changes() {
            let old_record = match old_record {
                Some(record) => Some(self.remote.record_place(record)?.0),
                None => None,
            };
            let sx = self.pages.try_sx(location.frame, location.version);
            return Ok(
                sx.map_or(LeafStep::LeaveToHolder, |sx| LeafStep::Surely(sx, outcome, old_record))
            );
        }
        if !latch.try_x(location.version) {
            if latch.is_held() {
                return Ok(LeafStep::LeaveToHolder);
            }
            return Ok(LeafStep::Done(LeafAttempt::Again));
        }
        // Nothing has changed since it was looked at, so it is still Hot.
        debug_assert_eq!(self.pages.frames.ctl(location.frame).state(), FrameState::Hot);
        let mut leaf = self.pages.frames.node_mut(self.layout(), location.frame);
        let changed = apply_at(&mut leaf, change, found);
        let mut shrinks = change.value.is_none();
        if changed.is_ok() {
            self.pages.frames.ctl(location.frame).set_dirty(true);
            if self.options.combine > 0 && self.combiner.has_work(location.frame.into()) {
                let others = self.combine(location.frame, &mut leaf);
                shrinks |= others.remove();
                others.answer();
            }
        }
        let sparse = shrinks && self.is_sparse(&leaf.as_node());
        let step = match changed {
            Ok(()) => Ok(LeafStep::Done(LeafAttempt::Changed(outcome, sparse))),
            Err(ChangeError::NoRoom) => Ok(LeafStep::Done(LeafAttempt::NoRoom)),
            Err(error) => Err(self.damaged(location.frame, error).into()),
        };
        self.pages.release_x(location.frame);
        step
    }

    /// Changes a cached leaf such that the change is in a memory server before it is seen: logs it, or
    /// writes the leaf through if it takes a record or gives one up (`INV-DEX-REC`, `INV-DEX-LOG-5`) or
    /// the log has no room. Others' changes of the leaf that are logged go with one that is.
    ///
    /// Cost: 1 WRITE; 1 more if it gives up a record, 1 more if it is written through and there is a
    /// journal.
    async fn change_surely(
        self: &Arc<Self>,
        session: &Session,
        sx: Sx,
        change: OwnedLeafChange,
        outcome: Outcome,
        old_record: Option<GlobalAddr>,
    ) -> Result<LeafAttempt, DexFail> {
        let done = self
            .detach_within(session, |tree, session| async move {
                let frame = sx.frame();
                let ctl = tree.pages.frames.ctl(frame);
                let mut image = session.client().buf(tree.layout().node_bytes());
                tree.pages.frames.copy(frame, image.words_mut());
                let mut leaf = NodeMut::new(tree.layout(), image.words_mut());
                let borrowed = change.borrowed();
                match apply(&mut leaf, &borrowed) {
                    Ok(()) => {}
                    Err(ChangeError::NoRoom) => return Ok(LeafAttempt::NoRoom),
                    Err(error) => {
                        return Err(tree.damaged(frame, error).into());
                    }
                }
                let is_logged = old_record.is_none() && borrowed.record.is_none();
                let others = is_logged.then(|| tree.combine(frame, &mut leaf));
                let mut shrinks =
                    old_record.is_some() || borrowed.record.is_some() || borrowed.value.is_none();
                shrinks |= others.as_ref().is_some_and(Others::remove);
                let sparse = shrinks && tree.is_sparse(&leaf.as_node());
                let logged = match &others {
                    Some(others) if !tree.log.is_kept_full_by(ctl.oldest()) => {
                        let changes = std::iter::once(&change).chain(others.changes());
                        let appended = tree.log.append_changes(&session, &sx, changes).await;
                        tree.ownership.must_succeed(appended)?
                    }
                    _ => false,
                };
                if logged {
                    sx.into_x();
                    tree.pages.frames.store(frame, image.words());
                    ctl.set_dirty(true);
                    others.into_iter().for_each(Others::answer);
                    tree.pages.release_x(frame);
                    tree.make_log_room(&session);
                    return Ok(LeafAttempt::Changed(outcome, sparse));
                }
                let retiring = match old_record {
                    Some(record) => Some(session.prepare_retire(record).await?),
                    None => None,
                };
                let version = tree.log.version(0, ctl.version());
                let image = tree.pages.remote_image(image, version);
                let addr = tree.pages.frames.addr(frame);
                tree.stats.written_through.add();
                let written = session.reliable().copy(&image);
                if let Err(error) = tree.write_page(&session, addr, written, 8).await {
                    return Err(IndexError::OutcomeUnknown(error.to_string()).into());
                }
                sx.into_x();
                tree.pages.frames.store(frame, image.words());
                ctl.set_version(version);
                ctl.set_dirty(false);
                others.into_iter().for_each(Others::answer);
                tree.pages.release_x(frame);
                if let Some(retiring) = retiring {
                    session.retire(retiring);
                }
                // The leaf that was written through may have been all that kept a part of the log.
                tree.make_log_room(&session);
                Ok(LeafAttempt::Changed(outcome, sparse))
            })
            .await;
        done.unwrap_or_else(|| Err(unfinished_change("the change").into()))
    }

    /// Applies a change in the cache alone; `false` if the leaf has no room.
    pub(crate) fn apply_now(
        &self,
        location: Location,
        change: &OwnedLeafChange,
    ) -> Result<bool, DexFail> {
        if !self.pages.frames.ctl(location.frame).latch.try_x(location.version) {
            return Err(DexFail::Restart);
        }
        let mut leaf = self.pages.frames.node_mut(self.layout(), location.frame);
        let changed = apply(&mut leaf, &change.borrowed());
        if changed.is_ok() {
            self.pages.frames.ctl(location.frame).set_dirty(true);
        }
        let addr = self.pages.frames.addr(location.frame);
        self.pages.release_x(location.frame);
        match changed {
            Ok(()) => Ok(true),
            Err(ChangeError::NoRoom) => Ok(false),
            Err(error) => Err(self.remote.damaged(addr, error).into()),
        }
    }

    /// Changes a marked leaf that the cache does not admit. Runs to its end whatever becomes of the caller.
    ///
    /// Cost: 1 READ, and 1 WRITE if it is changed; 1 more if it gives up a record.
    async fn change_streamed(
        self: &Arc<Self>,
        session: &Session,
        mark: IoMark,
        change: OwnedLeafChange,
        held: &mut Vec<u8>,
    ) -> Result<LeafAttempt, DexFail> {
        let mut found_there = std::mem::take(held);
        let done = self
            .detach_within(session, |tree, session| async move {
                let attempt = tree.change_marked(&session, mark, &change, &mut found_there).await;
                (attempt, found_there)
            })
            .await;
        let (attempt, found_there) =
            done.unwrap_or_else(|| (Err(unfinished_change("the change").into()), Vec::new()));
        *held = found_there;
        attempt
    }

    async fn change_marked(
        self: &Arc<Self>,
        session: &Session,
        mark: IoMark,
        owned: &OwnedLeafChange,
        held: &mut Vec<u8>,
    ) -> Result<LeafAttempt, DexFail> {
        let mut image = match self.read_marked(session, &mark).await? {
            Ok(image) => image,
            Err(heal) => {
                drop(mark);
                // Boxed, as in `load_now`.
                Box::pin(self.heal(session, heal)).await?;
                return Err(DexFail::Restart);
            }
        };
        self.stats.leaves_streamed.add();
        let change = owned.borrowed();
        let node = Node::new(self.layout(), image.words());
        let found = node.find(change.key);
        if change.expected.is_some() {
            held.clear();
            if let Ok(index) = found {
                self.remote.value_of(session, &node, index, held).await?;
            }
        }
        let holds = found.is_ok().then_some(held.as_slice());
        let outcome = match change.decide(found.is_ok(), holds) {
            Decision::Leave(outcome) => return Ok(LeafAttempt::Left(outcome)),
            Decision::Apply(outcome) => outcome,
        };
        let old_record = found.ok().and_then(|index| node.record(index));
        let version = self.log.version(0, node.version());
        let mut leaf = NodeMut::new(self.layout(), image.words_mut());
        match apply(&mut leaf, &change) {
            Ok(()) => {}
            Err(ChangeError::NoRoom) => return Ok(LeafAttempt::NoRoom),
            Err(error) => return Err(self.remote.damaged(mark.addr(), error).into()),
        }
        leaf.seal(version);
        let retiring = match old_record {
            Some(record) => {
                let (addr, _) = self.remote.record_place(record)?;
                Some(session.prepare_retire(addr).await?)
            }
            None => None,
        };
        self.stats.written_streamed.add();
        if let Err(error) = self.write_page(session, mark.addr(), image, 8).await {
            return Err(IndexError::OutcomeUnknown(error.to_string()).into());
        }
        if let Some(retiring) = retiring {
            session.retire(retiring);
        }
        // A leaf that is not cached is not merged.
        Ok(LeafAttempt::Changed(outcome, false))
    }
}
