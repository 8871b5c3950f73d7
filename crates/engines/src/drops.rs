//! Drops: frees a table's objects, and finishes the drops of dead compute servers.
//!
//! See `farleaf_pool::drops` for the invariants. The work is a task: it goes on if its caller goes away.

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_index::IndexError;
use farleaf_index::oneshot::{self, Receiver, Sender};
use farleaf_index::retire::{WAIT_NS, WAITS_MAX};
use farleaf_pool::{Audit, Dropping, PoolError, Root, Session};

use super::StoredTable;

/// Objects that are retired in one step.
const BATCH: usize = 64;
/// Walks of a table until two agree: dead compute servers' changes are finished by them.
const WALKS_MAX: usize = 16;

type DropOutcome = Result<(), IndexError>;

/// Takes a drop to its end in a task. The caller is told when it has ended, or that it takes long.
pub(crate) fn spawn(
    session: &Session,
    drop: impl AsyncFnOnce(&Session) -> Result<Dropping, IndexError> + 'static,
) -> Receiver<DropOutcome> {
    let (sender, receiver) = oneshot::channel();
    session.spawn(async move |session| {
        let mut sender = Some(sender);
        let outcome = match drop(&session).await {
            Ok(dropping) => finish(&session, dropping, &mut sender).await,
            Err(error) => Err(error),
        };
        if let Some(sender) = sender {
            sender.send(outcome);
        }
    });
    receiver
}

/// Retires what is left of a table, and ends the drop.
async fn finish(
    session: &Session,
    mut of: Dropping,
    sender: &mut Option<Sender<DropOutcome>>,
) -> DropOutcome {
    match retire(session, &mut of, sender).await {
        // A sweep finds the rest: it must not keep others from recovery.
        Err(IndexError::Corrupt(why)) => {
            let why = format!("table {:?} was dropped, but is damaged: {why}", of.root.name);
            end(session, &of).await?;
            Err(IndexError::Corrupt(why))
        }
        Err(error) => Err(error),
        Ok(()) => end(session, &of).await,
    }
}

async fn end(session: &Session, of: &Dropping) -> DropOutcome {
    for _ in 0..WAITS_MAX {
        match session.end_drop(of.clone()).await {
            Err(PoolError::Busy(_)) => session.endpoint().sleep(WAIT_NS).await,
            ended => return Ok(ended?),
        }
    }
    Err(IndexError::Unavailable("another compute server keeps the root lock".into()))
}

async fn retire(
    session: &Session,
    of: &mut Dropping,
    sender: &mut Option<Sender<DropOutcome>>,
) -> DropOutcome {
    let table = StoredTable::of(&of.root)?;
    let mut objects = match of.left {
        Some(_) => table.collect(session, of.left).await?,
        None => {
            let all = collect_all(session, &table).await?;
            session.count_drop(of, all.len() as u64).await?;
            all
        }
    };
    let mut waits = 0;
    while !objects.is_empty() {
        let from = objects.len().saturating_sub(BATCH);
        let pin = session.begin(OpKind::Maintenance).await?;
        let retired = session.retire_dropped(of, &objects[from..]).await?;
        drop(pin);
        objects.truncate(objects.len() - retired);
        if retired > 0 {
            waits = 0;
            continue;
        }
        session.tick().await?;
        session.endpoint().sleep(WAIT_NS).await;
        waits += 1;
        if waits == WAITS_MAX
            && let Some(sender) = sender.take()
        {
            sender.send(Err(IndexError::Unavailable(format!(
                "table {:?} is dropped, and its memory is freed as soon as other compute servers \
                 let it be reused",
                of.root.name
            ))));
        }
    }
    Ok(())
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
