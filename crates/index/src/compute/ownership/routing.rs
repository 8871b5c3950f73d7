//! Routing: sends operations on other compute servers' keys to their owners.
//!
//! An operation on a foreign key is never begun here. It is sent as a whole to the owner. A receiver that does
//! not own the key says so and has done nothing; then the sender reads the map again and sends the operation
//! where that leads, a bounded number of times. [`crate::compute`] carries the messages. If nobody owns the keys, a
//! compute server that is a guest ([`Unowned`](crate::compute::Unowned)) does the operation in remote memory.
//!
//! `INV-COMPUTE-3` The receiver of a request is inside the guard for its key, as for an own operation. (At most
//! once is `INV-COMPUTE-1`.)

use std::fmt;
use std::ops::Bound;

use farleaf_fabric::{Endpoint, Incarnation, OpKind};
use farleaf_pool::Session;

use super::batch::serve_batch;
use super::membership::{free_dead, take_free};
use super::{Range, ScanEnd, count, refresh_map, take_over};
use crate::change::{Change, Outcome};
use crate::compute::messages::{OpReply, Patience, Request, send};
use crate::compute::migration::{give, own_load, share};
use crate::compute::{Owned, OwnedTable, RangeOwner, guest};
use crate::op::Op;
use crate::retry::backoff;
use crate::{Entries, Exchange, IndexError, ScanCursor, ScanRange, Seek};

farleaf_fabric::canaries! {
    pub FORWARD_UNCHECKED = "forward-unchecked",
        "a receiver executes an operation without checking that it owns the key";
}

/// Pairs that an owner is asked for at a time.
const PAIRS_ASKED_MAX: usize = 512;
/// Tries after which one in real time waits longer for the next, and how long.
const QUICK_TRIES: u32 = 16;
const PAUSE_NS: u64 = 1_000_000;

/// A key that belongs to a partition of another compute server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The partition.
    pub partition: usize,
    /// The compute server that serves it; `None` if there is none at the moment.
    pub owner: Option<Incarnation>,
    /// Epoch of the ownership map.
    pub epoch: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { partition, owner, epoch } = self;
        write!(f, "the key belongs to partition {partition} (map of epoch {epoch})")?;
        match owner {
            Some(owner) => write!(f, ", which compute server {owner} serves"),
            None => write!(f, ", which nobody serves: open it first"),
        }
    }
}

/// Returns whether operations of this kind report that the key was absent, not that it was present.
fn adds_absent(kind: OpKind) -> bool {
    matches!(kind, OpKind::Insert | OpKind::Upsert)
}

/// The reply to a change of `kind`, whose key held `held`.
pub(crate) fn reply_of(kind: OpKind, outcome: Outcome, held: Vec<u8>) -> OpReply {
    if kind == OpKind::CompareExchange {
        let exchange = if outcome.differs { Exchange::Differs } else { Exchange::Done };
        return OpReply::Exchanged(exchange, outcome.existed.then_some(held));
    }
    OpReply::Done(outcome.existed != adds_absent(kind))
}

/// The place in the key order to which an operation belongs.
pub(crate) fn seek_of(op: &Op) -> Seek<'_> {
    match op {
        Op::Get { key }
        | Op::Insert { key, .. }
        | Op::Update { key, .. }
        | Op::Upsert { key, .. }
        | Op::Remove { key }
        | Op::CompareExchange { key, .. } => Seek::At(key),
        Op::Scan { from, to, reverse, .. } => scan_begin(from, to, *reverse),
    }
}

/// The end of a range at which a scan of it begins.
pub(crate) fn scan_begin<'a>(
    from: &'a Bound<Vec<u8>>,
    to: &'a Bound<Vec<u8>>,
    reverse: bool,
) -> Seek<'a> {
    match (reverse, from, to) {
        (false, Bound::Unbounded, _) => Seek::First,
        (false, Bound::Included(key), _) => Seek::At(key),
        (false, Bound::Excluded(key), _) => Seek::After(key),
        (true, _, Bound::Unbounded) => Seek::Last,
        (true, _, Bound::Included(key) | Bound::Excluded(key)) => Seek::At(key),
    }
}

/// Does what is asked if the key is this compute server's; `None` if it is not, and nothing was
/// done.
pub(super) async fn serve_own<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    op: &Op,
) -> Result<Option<OpReply>, IndexError> {
    if let Op::Scan { from, to, reverse, limit } = op {
        let range = ScanRange::between(from, to, *reverse);
        let mut out = Entries::new();
        if let Some(mut cursor) = ScanCursor::begin(range, *limit, &out)
            && table.tree().scan_own(session, &mut cursor, &mut out).await? != ScanEnd::Done
        {
            return Ok(None);
        }
        return Ok(Some(OpReply::Pairs(out)));
    }
    let inside = table.ownership().acquire(session, seek_of(op)).await?;
    if inside.is_err() && !FORWARD_UNCHECKED.is_armed() {
        return Ok(None);
    }
    if let Op::Get { key } = op {
        table.spec().check_key(key)?;
        let mut value = Vec::new();
        let has = table.tree().get_own(session, key, &mut value).await?;
        return Ok(Some(OpReply::Value(has.then_some(value))));
    }
    let Some(change) = op.change() else { return Ok(None) };
    table.spec().check_change(&change)?;
    let mut held = Vec::new();
    let outcome = table.tree().change_own(session, &change, &mut held).await?;
    Ok(Some(reply_of(change.kind, outcome, held)))
}

/// Passes an operation on keys that are not own on to their owner, wherever the map leads, or to the guest that this
/// compute server is, if nobody owns them.
///
/// Cost: none here but reading the map anew, 2 READs, each time the keys are not where it was sent, and that of the
/// guest.
///
/// # Errors
/// `Unavailable` if nobody serves the key, or it cannot be reached; `OutcomeUnknown` if its owner
/// died with a change; those of the operation.
pub(crate) async fn route<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    op: Op,
) -> Result<OpReply, IndexError> {
    let sent = route_within(table, session, &Request::Op(op), None).await?;
    sent.ok_or_else(|| IndexError::Unavailable("the table's bounds change all the time".into()))
}

/// As [`route`]; gives up with `None`, and nothing done, once the bounds are others than these.
async fn route_within<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    request: &Request,
    bounds: Option<&[Vec<u8>]>,
) -> Result<Option<OpReply>, IndexError> {
    let Request::Op(op) = request else {
        return Err(IndexError::Invalid("a request that belongs to no key".into()));
    };
    let seek = seek_of(op);
    let mut patience = Patience::new(session.endpoint());
    let mut tried = None;
    loop {
        let moved = |bounds: &[Vec<u8>]| table.ownership().view().map.bounds.as_slice() != bounds;
        if bounds.is_some_and(moved) {
            return Ok(None);
        }
        // Is it, by now?
        if let Some(reply) = serve_own(table, session, op).await? {
            session.vouch()?;
            return Ok(Some(reply));
        }
        // The view may be a newer one, by which another thread has taken the key: then serves it. Each further turn
        // takes one more view.
        let Some(to) = table.ownership().other_owner(seek) else { continue };
        if tried.replace(to.owner).is_some_and(|before| before != to.owner) {
            patience.renew(session.endpoint());
        }
        patience.tries += 1;
        if let (None, Some(guest)) = (to.owner, table.guest()) {
            if let Some(reply) = guest.serve(table, session, op).await? {
                return Ok(Some(reply));
            }
            check_patience(session, to, patience)?;
            continue;
        }
        if let Some(owner) = to.owner
            && table.ownership().calls
        {
            count(&table.ownership().counts.forwarded);
            let meta = table.ownership().words.meta;
            match send(session, meta, owner, request, patience.until_ns).await {
                Ok(None | Some(OpReply::WrongOwner { .. })) => {}
                Err(
                    IndexError::OutcomeUnknown(_)
                    | IndexError::Unavailable(_)
                    | IndexError::Closed(_),
                ) if op.is_read() => {}
                // Of the owner's, not of this compute server.
                Err(IndexError::Closed(why)) => return Err(IndexError::OutcomeUnknown(why)),
                done => return done,
            }
        }
        check_patience(session, to, patience)?;
        if find_owner(table, session, seek, to, patience).await? {
            patience.renew(session.endpoint());
        }
    }
}

/// Asks one compute server; `None` if it did not begin.
pub(crate) async fn ask<T: OwnedTable + ?Sized>(
    table: &T,
    session: &Session,
    who: Incarnation,
    request: Request,
) -> Result<Option<OpReply>, IndexError> {
    if who == session.endpoint().incarnation() {
        return table.serve(session, request).await.map(Some);
    }
    if !table.part().calls {
        return Ok(None);
    }
    // A move of a range has no time limit.
    let until_ns = Patience::new(session.endpoint()).until_ns.filter(|_| request.is_read());
    send(session, table.meta(), who, &request, until_ns).await
}

/// # Errors
/// `Unavailable` if an operation on the keys of `to` has been tried for long.
fn check_patience(session: &Session, to: Owner, patience: Patience) -> Result<(), IndexError> {
    if !patience.is_over(session.endpoint().now_ns()) {
        return Ok(());
    }
    Err(IndexError::Unavailable(match patience.until_ns {
        Some(_) => format!("{to} and which does not answer"),
        None => format!("after {} tries: {to}", patience.tries),
    }))
}

/// Called if the owner that the map named does not serve the key: reads the map again. If the owner is dead, or there is
/// none, takes its place if this compute server owns ranges. A guest releases a dead owner's ranges and does not take
/// them. Returns whether the owner is dead.
async fn find_owner<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    seek: Seek<'_>,
    before: Owner,
    patience: Patience,
) -> Result<bool, IndexError> {
    let tries = patience.tries;
    if refresh_map(table.tree(), session).await? != before.epoch {
        // A way that has not been tried.
        return Ok(false);
    }
    let takes_over = table.takes_over();
    let refused = || Err(IndexError::Unavailable(before.to_string()));
    match before.owner {
        None if !takes_over => refused(),
        None => {
            let _pin = session.begin(OpKind::Maintenance).await?;
            take_free(table.tree(), session, seek).await.map(|()| false)
        }
        Some(owner) if session.endpoint().is_dead(owner).await => {
            let given = if takes_over {
                take_over(table.tree(), session, owner).await.map(drop)
            } else if table.guest().is_some() {
                free_dead(table.tree(), session, owner).await
            } else {
                let why = format!("{before}, and is dead: take it over");
                return Err(IndexError::Unavailable(why));
            };
            match given {
                // Somebody else is at it.
                Err(IndexError::Unavailable(_)) => {
                    backoff(session, tries).await;
                    Ok(true)
                }
                given => given.map(|()| true),
            }
        }
        Some(_) if !table.ownership().calls => refused(),
        Some(_) => {
            // It is just getting there, or leaving.
            if patience.until_ns.is_some() && tries > QUICK_TRIES {
                session.endpoint().sleep(PAUSE_NS).await;
            } else {
                backoff(session, tries).await;
            }
            Ok(false)
        }
    }
}

/// Passes a get on to the owner of its key.
///
/// # Errors
/// `Unavailable` if nobody serves the key, or its owner cannot be reached; those of the get.
pub(crate) async fn forward_get<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<bool, IndexError> {
    match route(table, session, Op::Get { key: key.to_vec() }).await? {
        OpReply::Value(found) => {
            let has = found.is_some();
            *value = found.unwrap_or_default();
            Ok(has)
        }
        other => Err(unexpected(&other)),
    }
}

/// Passes a change on to the owner of its key; what the key held is left in `held` if the change has an
/// expectation.
pub(crate) async fn forward_change<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    change: &Change<'_>,
    held: &mut Vec<u8>,
) -> Result<Outcome, IndexError> {
    match route(table, session, Op::of(change)).await? {
        OpReply::Done(done) => {
            Ok(Outcome { existed: done != adds_absent(change.kind), differs: false })
        }
        OpReply::Exchanged(exchange, found) => {
            let existed = found.is_some();
            *held = found.unwrap_or_default();
            Ok(Outcome { existed, differs: exchange == Exchange::Differs })
        }
        other => Err(unexpected(&other)),
    }
}

/// A scan over all partitions that `range` meets, each by its owner.
pub(crate) async fn scan_all<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    range: ScanRange<'_>,
    limit: usize,
    out: &mut Entries,
) -> Result<(), IndexError> {
    let end = out.len().saturating_add(limit);
    if scan_until_cut(table, session, range, limit, out).await? {
        return Ok(());
    }
    // Behind what has come so far.
    let (mut from, mut to) = (range.from.map(<[u8]>::to_vec), range.to.map(<[u8]>::to_vec));
    loop {
        let Some((last, _)) = out.last() else { return Ok(()) };
        *(if range.reverse { &mut to } else { &mut from }) = Bound::Excluded(last.to_vec());
        let rest = ScanRange::between(&from, &to, range.reverse);
        let limit = end.saturating_sub(out.len());
        if scan_until_cut(table, session, rest, limit, out).await? {
            return Ok(());
        }
    }
}

/// As [`scan_all`], up to a reply that holds a part of what was asked for; whether all is done.
async fn scan_until_cut<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    range: ScanRange<'_>,
    limit: usize,
    out: &mut Entries,
) -> Result<bool, IndexError> {
    let Some(mut cursor) = ScanCursor::begin(range, limit, out) else { return Ok(true) };
    loop {
        if table.tree().scan_own(session, &mut cursor, out).await? == ScanEnd::Done {
            return Ok(true);
        }
        let view = table.ownership().view();
        // By this view: the number that the scan met may be of an older one, and stand for other keys in this. If the
        // keys have become this compute server's, it scans on. Each further turn takes one more view.
        let Some(number) = view.foreign_at(cursor.seek()) else { continue };
        // Of one partition as it is known here; its owner has all of it, or says that it has not,
        // and once the bounds are others it is cut anew.
        let (low, high) = view.map.range(number);
        let (from, to, limit) = cursor.rest_in(low, high, out);
        let is_guests = table.guest().is_some() && view.map.owners[number] == 0;
        let asked = limit.min(if is_guests { guest::PAIRS_MAX } else { PAIRS_ASKED_MAX });
        let scan = Request::Op(Op::Scan { from, to, reverse: range.reverse, limit: asked });
        let routed = route_within(table, session, &scan, Some(&view.map.bounds));
        let (pairs, is_part) = match Box::pin(routed).await? {
            Some(OpReply::Pairs(pairs)) => {
                let is_part = pairs.len() >= asked && asked < limit;
                (pairs, is_part)
            }
            Some(OpReply::Part(pairs)) if !pairs.is_empty() => (pairs, true),
            Some(other) => return Err(unexpected(&other)),
            None => continue,
        };
        pairs.iter().take(limit).for_each(|(key, value)| out.push(key, value));
        if is_part {
            return Ok(false);
        }
        if !cursor.skip_to(if range.reverse { low } else { high }, out) {
            return Ok(true);
        }
    }
}

/// Executes a request that another compute server has sent. If its keys are not this compute server's,
/// nothing is done and the reply says so.
///
/// # Errors
/// Those of the request.
pub(crate) async fn serve<T: RangeOwner>(
    table: &Owned<T>,
    session: &Session,
    request: Request,
) -> Result<OpReply, IndexError> {
    let op = match request {
        Request::Op(op) => op,
        Request::Batch(ops) => return serve_batch(table, session, &ops).await,
        Request::Hello => {
            table.ownership().check_open()?;
            return Ok(OpReply::Done(true));
        }
        Request::Learn { epoch } => {
            if table.ownership().view().map.epoch < epoch {
                refresh_map(table.tree(), session).await?;
            }
            return Ok(OpReply::Done(true));
        }
        Request::Give { low, high, to } => {
            return Ok(OpReply::Moved(give(table, session, Range { low, high }, to).await));
        }
        Request::Share { to } => return Ok(OpReply::Moved(share(table, session, to).await)),
        Request::Load { decay } => return Ok(OpReply::Load(own_load(table.ownership(), decay))),
    };
    if let Some(reply) = serve_own(table, session, &op).await? {
        session.vouch()?;
        return Ok(reply);
    }
    refresh_map(table.tree(), session).await?;
    let reply = serve_own(table, session, &op).await?;
    session.vouch()?;
    Ok(reply.unwrap_or(OpReply::WrongOwner { epoch: table.ownership().view().map.epoch }))
}

/// A reply to another request.
pub(crate) fn unexpected(reply: &OpReply) -> IndexError {
    IndexError::OutcomeUnknown(format!("the key's owner answered another request: {reply:?}"))
}
