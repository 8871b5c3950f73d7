//! Membership: joins a table with owners, learns newer maps, and takes over from dead owners.
//!
//! A compute server has a table open once, for all ranges that the map gives to its incarnation. It
//! begins to serve a range when the map names it as the owner. Before that, the former owner has
//! written everything back and dropped it, or has been cut off (`INV-COMPUTE-MAP-1`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr, Incarnation, OpKind};
use farleaf_pool::Session;

use super::map::{change_map, change_map_now, read_map};
use super::partitions::{PARTITIONS_MAX, Partitions, Range};
use super::two_slots::MapWords;
use super::{Ownership, View, count};
use crate::compute::messages::forget;
use crate::compute::migration::MoveGuard;
use crate::compute::{Owned, RangeOwner};
use crate::detach::detach;
use crate::{IndexError, OpenOptions, Seek};

/// Tries at having all partitions.
const TRIES_MAX: u32 = 1_000;

/// The partitions that a compute server takes when it opens a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// None: every key is another's, and operations travel.
    Nothing,
    /// At most so many of the partitions that nobody has.
    Free(usize),
}

/// A compute server's part in a table with owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinOptions {
    /// The partitions that it takes at once.
    pub take: Take,
    /// True if it takes a partition over when it meets a key whose owner is dead, or that nobody has.
    pub take_over: bool,
    /// True if it sends operations on others' keys to their owners. Without that they fail with `Unavailable`.
    pub calls: bool,
}

impl JoinOptions {
    /// The part of a compute server that opens a table by these options.
    pub fn of(options: &OpenOptions) -> Self {
        let take = match options.take {
            0 => Take::Nothing,
            most => Take::Free(most),
        };
        JoinOptions { take, take_over: options.take_over, calls: options.calls }
    }
}

impl Default for JoinOptions {
    fn default() -> Self {
        JoinOptions { take: Take::Free(usize::MAX), take_over: true, calls: false }
    }
}

impl Ownership {
    /// The part of a compute server that opens a table and owns nothing of it yet.
    ///
    /// Cost: 3 READs.
    ///
    /// # Errors
    /// `Unavailable` if the map names this compute server as an owner: it has the table open already.
    pub(in crate::compute) async fn join(
        words: MapWords,
        session: &Session,
        calls: bool,
    ) -> Result<Self, IndexError> {
        let map = {
            let _pin = session.begin(OpKind::Other).await?;
            read_map(&words, session).await?
        };
        let me = session.endpoint().incarnation();
        if map.owners.contains(&me.0) {
            return Err(open_already(words.meta, me));
        }
        Ok(Ownership::new(words, map, calls))
    }
}

/// The error of a compute server that the map names as an owner, and that did not open the table.
fn open_already(meta: GlobalAddr, me: Incarnation) -> IndexError {
    IndexError::Unavailable(format!(
        "compute server {me} has the table at {meta} open already, with another cache, or did not \
         close it: use that one"
    ))
}

/// Makes partitions that nobody has this compute server's, as many as `take` says.
pub(crate) async fn claim<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    take: Take,
) -> Result<(), IndexError> {
    let Take::Free(most @ 1..) = take else { return Ok(()) };
    let _pin = session.begin(OpKind::Maintenance).await?;
    let ownership = tree.ownership();
    let me = session.endpoint().incarnation();
    let map = change_map(tree, session, async move |map| {
        let mut new = map.clone();
        let free = new.owners.iter_mut().filter(|owner| **owner == 0);
        free.take(most).for_each(|owner| *owner = me.0);
        Ok::<_, IndexError>(new)
    })
    .await?;
    ownership.set_owned();
    install(tree, session, map).await
}

/// Gives all that the map says is the dead compute server `dead`'s to this one; how many partitions that were.
pub(crate) async fn take_over<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    dead: Incarnation,
) -> Result<usize, IndexError> {
    let _pin = session.begin(OpKind::Maintenance).await?;
    let me = session.endpoint().incarnation().0;
    let (map, taken) = give_away(tree, session, dead, me).await?;
    install(tree, session, map).await?;
    count(&tree.ownership().counts.takeovers);
    Ok(taken)
}

/// Releases every range that the map assigns to the dead compute server `dead`.
pub(crate) async fn free_dead<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    dead: Incarnation,
) -> Result<(), IndexError> {
    let _pin = session.begin(OpKind::Maintenance).await?;
    let (map, _) = give_away(tree, session, dead, 0).await?;
    install(tree, session, map).await
}

/// Gives all that the map says is the dead compute server `dead`'s to `to` (0 is nobody), once it is
/// cut off and its log has been replayed; the new map, and how many partitions that were. The
/// caller has a pin.
pub(crate) async fn give_away<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    dead: Incarnation,
    to: u64,
) -> Result<(Partitions, usize), IndexError> {
    let words = *tree.ownership().words();
    cut_off(&words, session, dead).await?;
    let (replaying, task_session) = (Arc::clone(tree), session.clone());
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let map = change_map(tree, session, async move |map| {
        replaying.replay(&task_session, map, dead).await?;
        let mut new = map.clone();
        for owner in new.owners.iter_mut().filter(|owner| **owner == dead.0) {
            *owner = to;
            counted.fetch_add(1, Ordering::Relaxed);
        }
        forget_intent(&mut new, dead.0);
        forget_log(&mut new, dead.0);
        Ok::<_, IndexError>(new)
    })
    .await?;
    Ok((map, taken.load(Ordering::Relaxed)))
}

/// Sees to it that nothing comes from `owner` any more; an error if it lives.
pub(in crate::compute) async fn cut_off(
    words: &MapWords,
    session: &Session,
    owner: Incarnation,
) -> Result<(), IndexError> {
    if owner.0 == 0 {
        return Ok(());
    }
    if owner == session.endpoint().incarnation() {
        return Err(open_already(words.meta, owner));
    }
    if !session.endpoint().is_dead(owner).await {
        return Err(IndexError::Unavailable(format!(
            "the partition of the table at {} belongs to compute server {owner}, which lives: \
             a partition is open in one compute server at a time",
            words.meta
        )));
    }
    session.fence(owner).await?;
    forget(session.endpoint(), owner);
    Ok(())
}

/// Makes the partition that `seek` is in this compute server's, if nobody has it. The caller has a pin.
pub(crate) async fn take_free<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    seek: Seek<'_>,
) -> Result<(), IndexError> {
    let me = session.endpoint().incarnation();
    let number = move |map: &Partitions, key: Option<(Vec<u8>, bool)>, last: bool| match key {
        Some((key, after)) => map.of(&key, after),
        None if last => map.count() - 1,
        None => 0,
    };
    let (key, last) = match seek {
        Seek::At(key) => (Some((key.to_vec(), false)), false),
        Seek::After(key) => (Some((key.to_vec(), true)), false),
        Seek::First => (None, false),
        Seek::Last => (None, true),
    };
    let map = change_map(tree, session, async move |map| {
        let mut new = map.clone();
        let number = number(map, key, last);
        if new.owners[number] == 0 {
            new.owners[number] = me.0;
        }
        Ok::<_, IndexError>(new)
    })
    .await?;
    install(tree, session, map).await
}

/// Reads the map and serves what it gives to this compute server; its epoch.
///
/// Cost: 2 READs.
pub(crate) async fn refresh_map<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
) -> Result<u64, IndexError> {
    let _pin = session.begin(OpKind::Maintenance).await?;
    let map = read_map(&tree.ownership().words, session).await?;
    let epoch = map.epoch;
    count(&tree.ownership().counts.map_reads);
    install(tree, session, map).await?;
    Ok(epoch)
}

/// Goes by `map` from now on, unless a newer one is known; the engine takes in what has become this
/// compute server's by it. The caller has a pin.
pub(crate) async fn install<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
    map: Partitions,
) -> Result<(), IndexError> {
    let ownership = tree.ownership();
    ownership.check_open()?;
    let guard = &ownership.guard;
    let me = session.endpoint().incarnation().0;
    let gained = |view: &View, map: &Partitions| {
        let had = |range: Range| view.map.around(&range).is_some_and(|number| view.owned[number]);
        let mine = |at: usize| map.owners[at] == me;
        (0..map.count()).any(|at| mine(at) && !had(map.owned_range(at)))
    };
    let map = match map.epoch > guard.view().map.epoch && gained(&guard.view(), &map) {
        true => tree.prepare_to_own(session, map).await?,
        false => map,
    };
    let mut gains = false;
    guard.change(|view| {
        if map.epoch <= view.map.epoch {
            return None;
        }
        let owned: Vec<bool> = map.owners.iter().map(|owner| *owner == me).collect();
        gains = gained(view, &map);
        Some(View { map, owned, cuts: view.cuts.clone(), closed: view.closed.clone() })
    });
    if gains {
        ownership.set_owned();
        tree.take_in(session).await?;
    }
    ownership.wake();
    Ok(())
}

/// A table all of which is this compute server's and closed: no operation is inside until this is dropped.
#[derive(Debug)]
pub struct WholeTable {
    /// Bounds of its partitions.
    pub bounds: Vec<Vec<u8>>,
    _moving: MoveGuard,
}

/// Makes all partitions this compute server's and closes them.
///
/// Cost: 3 READs; a change of the map if a partition is nobody's.
///
/// # Errors
/// `Unavailable` if another compute server has a partition, or gets one.
pub(crate) async fn close_whole<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
) -> Result<WholeTable, IndexError> {
    own_all(table, session).await?;
    let Some(moving) = MoveGuard::begin(table.ownership()) else {
        return Err(IndexError::Unavailable("a range is being given away: try again".into()));
    };
    // From here on no other compute server changes the map, but one that comes and owns nothing.
    let guard = &table.ownership().guard;
    let view = guard.change(|view| Some(View { closed: Some(Range::default()), ..view.clone() }));
    if !view.owned.iter().all(|owned| *owned) {
        return Err(IndexError::Unavailable("a range was given away: try again".into()));
    }
    guard.drain(session).await;
    Ok(WholeTable { bounds: view.map.bounds.clone(), _moving: moving })
}

/// Sees to it that all partitions are this compute server's.
async fn own_all<T: RangeOwner>(table: &Owned<T>, session: &Session) -> Result<(), IndexError> {
    let ownership = table.ownership();
    let me = session.endpoint().incarnation();
    for _ in 0..TRIES_MAX {
        refresh_map(table.tree(), session).await?;
        let view = ownership.view();
        let owners = || view.map.owners.iter().copied().map(Incarnation).enumerate();
        if let Some((number, owner)) = owners().find(|(_, who)| who.0 != 0 && *who != me) {
            if (table.takes_over() || table.guest().is_some())
                && session.endpoint().is_dead(owner).await
            {
                take_over(table.tree(), session, owner).await?;
                continue;
            }
            return Err(IndexError::Unavailable(format!(
                "a bulk load needs all of the table at {}, and compute server {owner} owns partition \
                 {number}: end that process first, or insert the pairs one by one (farleaf load \
                 without --sorted)",
                ownership.words.meta
            )));
        }
        if owners().all(|(_, owner)| owner == me) {
            return Ok(());
        }
        claim(table.tree(), session, Take::Free(usize::MAX)).await?;
    }
    Err(IndexError::Unavailable("the table's partitions change owners all the time".into()))
}

/// Cuts a table of one partition at `bounds`, and closes it; see [`crate::compute::OwnedTable::partition`].
pub(crate) async fn cut<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    bounds: &[Vec<u8>],
) -> Result<(), IndexError> {
    let whole = close_whole(table, session).await?;
    if !whole.bounds.is_empty() {
        return Err(IndexError::Invalid(format!(
            "this is done before a table is partitioned, and this one has {} partitions",
            whole.bounds.len() + 1
        )));
    }
    let _pin = session.begin(OpKind::Maintenance).await?;
    let sorted = bounds.is_sorted_by(|a, b| a < b);
    let takes = |bound: &Vec<u8>| table.spec().takes_key(bound.len());
    if !sorted || !bounds.iter().all(takes) || bounds.len() >= PARTITIONS_MAX {
        return Err(IndexError::Invalid(format!(
            "bounds of partitions must ascend, be keys of the table, and be fewer than {PARTITIONS_MAX}"
        )));
    }
    for bound in bounds {
        table.tree().make_bound(session, bound, false).await?;
    }
    let (tree, task_session, bounds) = (Arc::clone(table.tree()), session.clone(), bounds.to_vec());
    let me = session.endpoint().incarnation().0;
    detach(session, async move {
        let _whole = whole;
        tree.flush(&task_session).await?;
        change_map_now(&tree, &task_session, async |map| {
            // All of it is this compute server's, and given up with the cut.
            if map.owners != [me] {
                return Err(IndexError::Invalid("the table is partitioned already".into()));
            }
            let mut cut = Partitions::cut(&bounds);
            cut.logs = map.logs.iter().copied().filter(|(owner, _)| *owner != me).collect();
            Ok(cut)
        })
        .await?;
        tree.ownership().set_closed();
        Ok::<_, IndexError>(())
    })
    .await?;
    table.let_go(session);
    Ok(())
}

/// Gives everything up that the map says is this compute server's, or is about to be, once the table is
/// closed: also what it has come to have and could not begin to serve, for want of room. Does nothing the
/// second time. The caller has a pin.
pub async fn release_once<T: RangeOwner>(
    tree: &Arc<T>,
    session: &Session,
) -> Result<(), IndexError> {
    let ownership = tree.ownership();
    if ownership.is_released.load(Ordering::Acquire) {
        return Ok(());
    }
    let me = session.endpoint().incarnation();
    // Not before it is closed: a giver asks whether it is open once its intent stands in the map.
    let map = read_map(&ownership.words, session).await?;
    if map.holders().contains(&me) {
        release_all(tree, session).await?;
    }
    ownership.is_released.store(true, Ordering::Release);
    Ok(())
}

/// Gives everything up that the map says is this compute server's.
async fn release_all<T: RangeOwner>(tree: &Arc<T>, session: &Session) -> Result<(), IndexError> {
    let me = session.endpoint().incarnation().0;
    change_map(tree, session, async move |map| {
        let mut new = map.clone();
        new.owners.iter_mut().filter(|owner| **owner == me).for_each(|owner| *owner = 0);
        forget_intent(&mut new, me);
        forget_log(&mut new, me);
        Ok::<_, IndexError>(new)
    })
    .await?;
    debug_assert!(tree.ownership().is_closed());
    Ok(())
}

/// A move that `who` gives or takes in does not come about.
pub(crate) fn forget_intent(map: &mut Partitions, who: u64) {
    if map.intent.as_ref().is_some_and(|intent| intent.from == who || intent.to == who) {
        map.intent = None;
    }
}

/// The log of `who`, which has been replayed or is empty, is of no use once it owns nothing.
fn forget_log(map: &mut Partitions, who: u64) {
    if !map.owners.contains(&who) {
        map.logs.retain(|(owner, _)| *owner != who);
    }
}

/// The map of a table, and the dead compute servers that it names. The caller has a pin.
pub(crate) async fn dead_holders(
    words: &MapWords,
    session: &Session,
) -> Result<(Partitions, Vec<Incarnation>), IndexError> {
    let map = read_map(words, session).await?;
    let mut dead = Vec::new();
    for who in map.holders() {
        let is_other = who != session.endpoint().incarnation();
        if is_other && session.endpoint().is_dead(who).await {
            dead.push(who);
        }
    }
    Ok((map, dead))
}

/// Refuses a table of which some compute server owns a part. The caller has a pin.
pub async fn check_unowned(words: &MapWords, session: &Session) -> Result<(), IndexError> {
    let map = read_map(words, session).await?;
    let me = session.endpoint().incarnation();
    match map.holders().into_iter().next() {
        None => Ok(()),
        Some(who) if who == me => Err(IndexError::Invalid(
            "the table is open in this compute server: close it first".into(),
        )),
        Some(who) => Err(IndexError::Invalid(format!(
            "compute server {who} has the table open: end that process, or drop the table in it"
        ))),
    }
}
