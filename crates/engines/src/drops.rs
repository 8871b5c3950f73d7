//! Drops: frees a table's objects, and finishes the drops of dead compute servers.
//!
//! See `farleaf_pool::drops` for the invariants. The work is a task: it goes on if its caller goes away.

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_index::IndexError;
use farleaf_index::oneshot::{self, Receiver};
use farleaf_index::retire::{PATIENCE_NS, WAIT_NS};
use farleaf_pool::{Audit, Dropping, LeftDrop, PoolError, Root, Session};

use super::StoredTable;

/// Objects that are retired in one step.
const BATCH: usize = 64;
/// Walks of a table until two agree: dead compute servers' changes are finished by them.
const WALKS_MAX: usize = 16;

type DropOutcome = Result<(), IndexError>;

/// Takes a drop to its end in a task, or leaves it to the member if that takes long (INV-DROP-4). The caller is told.
pub(crate) fn spawn(
    session: &Session,
    drop: impl AsyncFnOnce(&Session) -> Result<Dropping, IndexError> + 'static,
) -> Receiver<DropOutcome> {
    let (sender, receiver) = oneshot::channel();
    session.spawn(async move |session| {
        let outcome = match drop(&session).await {
            Ok(dropping) => finish(&session, dropping).await,
            Err(error) => Err(error),
        };
        sender.send(outcome);
    });
    receiver
}

/// Retires what is left of a table, and ends the drop.
async fn finish(session: &Session, mut of: Dropping) -> DropOutcome {
    let collected = collect_left(session, &mut of).await;
    let done = match collected {
        Ok(objects) => go_on(session, LeftDrop { of, objects }, PATIENCE_NS).await,
        Err(IndexError::Corrupt(why)) => give_up(session, of, &why).await,
        Err(error) => Err(error),
    };
    done.map(drop)
}

/// The table is damaged. A sweep finds the rest: it must not keep others from recovery.
async fn give_up(session: &Session, of: Dropping, why: &str) -> Result<bool, IndexError> {
    let why = format!("table {:?} was dropped, but is damaged: {why}", of.root.name);
    end(session, LeftDrop { of, objects: Vec::new() }, PATIENCE_NS).await?;
    Err(IndexError::Corrupt(why))
}

/// Retires the objects, and ends the drop. After `patience_ns` in which others let nothing be reused, or kept the root
/// lock, the drop is the member's again.
async fn go_on(
    session: &Session,
    mut left: LeftDrop,
    patience_ns: u64,
) -> Result<bool, IndexError> {
    match retire(session, &mut left, patience_ns).await {
        Ok(true) => end(session, left, patience_ns).await,
        Ok(false) => Err(leave(session, left)),
        Err(IndexError::Corrupt(why)) => give_up(session, left.of, &why).await,
        Err(error) => Err(error),
    }
}

async fn end(session: &Session, left: LeftDrop, patience_ns: u64) -> Result<bool, IndexError> {
    let until_ns = session.endpoint().now_ns().saturating_add(patience_ns);
    loop {
        match session.end_drop(left.of.clone()).await {
            Err(PoolError::Busy(_)) if session.endpoint().now_ns() < until_ns => {
                session.endpoint().sleep(WAIT_NS).await;
            }
            Err(PoolError::Busy(_)) => return Err(leave(session, left)),
            ended => return Ok(ended.map(|()| true)?),
        }
    }
}

/// Leaves the drop to the member's next [`continue_drops`]; the error that says so.
fn leave(session: &Session, left: LeftDrop) -> IndexError {
    let name = left.of.root.name.clone();
    session.pool().leave_drop(left);
    IndexError::Unavailable(format!(
        "table {name:?} is dropped, and its memory is freed as soon as other compute servers let it be reused"
    ))
}

/// The objects that are left of the table.
async fn collect_left(session: &Session, of: &mut Dropping) -> Result<Vec<GlobalAddr>, IndexError> {
    let table = StoredTable::of(&of.root)?;
    if of.left.is_some() {
        return table.collect(session, of.left).await;
    }
    let all = collect_all(session, &table).await?;
    session.count_drop(of, all.len() as u64).await?;
    Ok(all)
}

/// Retires the objects from the last to the first; false once others have let nothing be reused for `patience_ns`.
async fn retire(
    session: &Session,
    left: &mut LeftDrop,
    patience_ns: u64,
) -> Result<bool, IndexError> {
    let mut waits_since = None;
    while !left.objects.is_empty() {
        let from = left.objects.len().saturating_sub(BATCH);
        let pin = session.begin(OpKind::Maintenance).await?;
        let retired = session.retire_dropped(&mut left.of, &left.objects[from..]).await?;
        drop(pin);
        left.objects.truncate(left.objects.len() - retired);
        if retired > 0 {
            waits_since = None;
            continue;
        }
        session.tick().await?;
        let now_ns = session.endpoint().now_ns();
        if now_ns - *waits_since.get_or_insert(now_ns) >= patience_ns {
            return Ok(false);
        }
        session.endpoint().sleep(WAIT_NS).await;
    }
    Ok(true)
}

/// Goes on with the drops that sessions of this member have left to it, each until it has to wait. To be called now and
/// then by a member with such drops ([`Pool::has_left_drops`](farleaf_pool::Pool::has_left_drops)).
///
/// Cost: 5 CAS and 2 READs for each, and what retiring its objects costs.
///
/// # Errors
/// `Corrupt` if one is damaged: it has ended then, and a sweep finds the rest. Any other error leaves the drop to the
/// recovery of this member.
pub async fn continue_drops(session: &Session) -> Result<(), IndexError> {
    let mut all = Vec::new();
    while let Some(left) = session.pool().take_left_drop() {
        all.push(left);
    }
    let mut outcome = Ok(());
    for mut left in all {
        let done = match session.take_drop(&left.of).await {
            Ok(Some(of)) => {
                left.of = of;
                go_on(session, left, 0).await
            }
            Ok(None) => continue,
            Err(PoolError::Busy(_)) => Err(leave(session, left)),
            Err(error) => Err(error.into()),
        };
        match done {
            Ok(_) | Err(IndexError::Unavailable(_)) => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// All objects of a table that nobody changes any more, but to finish what the dead have begun.
async fn collect_all(
    session: &Session,
    table: &StoredTable,
) -> Result<Vec<GlobalAddr>, IndexError> {
    let mut before = table.collect(session, None).await?;
    for _ in 0..WALKS_MAX {
        let after = table.collect(session, None).await?;
        if after == before {
            return Ok(after);
        }
        before = after;
    }
    Err(IndexError::Corrupt("it is being changed still".into()))
}

/// Marks what is left of the tables that are being dropped. Every walk that looks for lost objects
/// needs it, after those of all tables; `walked` are their roots, some of which may have been
/// dropped since.
///
/// Cost: 1 READ of the root table for each 4,096 entries, and 1 for every node.
///
/// # Errors
/// `Corrupt` if one does not verify. Of a dead compute server's drop, such a table is given up
/// instead: what it consists of counts as lost.
pub async fn mark_drops(
    session: &Session,
    audit: &mut Audit,
    walked: &[Root],
) -> Result<(), IndexError> {
    for of in session.list_drops().await? {
        if walked.contains(&of.root) {
            continue;
        }
        let name = of.root.name.clone();
        let table = StoredTable::of(&of.root)?;
        let problem = match of.left {
            Some(left) => table.mark(session, audit, Some(left)).await,
            None => table.verify(session, audit).await,
        };
        let problem = match problem.map(|report| report.problems) {
            Ok(problems) => problems.into_iter().next(),
            Err(IndexError::Corrupt(why)) => Some(why),
            Err(error) => return Err(error),
        };
        if let Some(problem) = problem {
            if !session.owner_is_dead(of.owner()).await? {
                return Err(IndexError::Corrupt(format!("dropped table {name:?}: {problem}")));
            }
            session.abandon_drop(of).await?;
        }
    }
    Ok(())
}

/// Finishes the drops of compute servers that have died, and were recovered, or have left. What went
/// wrong with some.
///
/// Cost: 1 READ of the root table for each 4,096 entries if there is none.
pub(crate) async fn finish_drops(session: &Session) -> Result<Vec<String>, IndexError> {
    // A damaged one has ended, and its dropper is not there to be told.
    let _ = continue_drops(session).await;
    let mut under_way = Vec::new();
    for of in session.list_drops().await? {
        under_way.push(spawn(session, async move |session| {
            match session.adopt_drop(&of).await? {
                Some(adopted) => Ok(adopted),
                None => Err(IndexError::Unavailable(
                    "another compute server completes this drop".into(),
                )),
            }
        }));
    }
    let mut problems = Vec::new();
    for outcome in under_way {
        match outcome.await {
            Ok(()) | Err(IndexError::Unavailable(_)) => {}
            Err(IndexError::Corrupt(why)) => problems.push(why),
            Err(error) => return Err(error),
        }
    }
    Ok(problems)
}
