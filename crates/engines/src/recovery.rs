//! Recovery: takes over from compute servers that died.

use farleaf_index::IndexError;
use farleaf_pool::{Recovered, Recovery, Session};

use super::StoredTable;
use super::drops::{finish_drops, mark_drops};

/// Takes over from every compute server that is known to be dead: finishes what they were doing,
/// releases their locks, gives their memory back, and finishes dropping the tables that they were
/// dropping. `None` if there is none; drops that were left behind are finished nevertheless.
///
/// One compute server recovers at a time: `None` also if another that lives does. This one takes all that are dead
/// when it begins, and goes on with those that have died meanwhile. It waits for others that lag
/// ([`Session::recover_finish`]); dropped meanwhile, it leaves the dead to others.
///
/// Others may go on meanwhile. Afterwards the dead compute server's ranges have no owner
/// ([`StoredTable::release_dead`]). Cost: 1 or 2 READs for every node of every table, and what the pool's
/// recovery needs; 1 READ of the root table if there is none.
///
/// # Errors
/// `Corrupt` if a table does not verify: nothing is freed then. Any other error leaves the recovery
/// to be tried again.
pub async fn recover(session: &Session) -> Result<Option<Recovered>, IndexError> {
    recover_within(session, None).await
}

/// As [`recover`], but waits for `patience_ns` at most, each of two times, for others that lag.
///
/// # Errors
/// As [`recover`].
pub async fn recover_within(
    session: &Session,
    patience_ns: Option<u64>,
) -> Result<Option<Recovered>, IndexError> {
    let mut all: Option<Recovered> = None;
    // Each round ends with at least one dead member less; others die as they will.
    while let Some(mut recovery) = given_up_on_error(session, session.recover_begin().await).await?
    {
        if let Some(ns) = patience_ns {
            recovery.set_patience(ns);
        }
        let done = finish(session, recovery).await;
        let done = given_up_on_error(session, done).await?;
        let is_complete = done.complete;
        let all = all.get_or_insert_with(|| Recovered { complete: true, ..Recovered::default() });
        all.members += done.members;
        all.blocks += done.blocks;
        all.objects_freed += done.objects_freed;
        all.complete = is_complete;
        all.problems.extend(done.problems);
        if !is_complete {
            break;
        }
    }
    let problems = finish_drops(session).await?;
    if let Some(all) = &mut all {
        all.problems.extend(problems);
    }
    Ok(all)
}

/// If a step of a recovery has failed, leaves the rest to others.
async fn given_up_on_error<T, E: Into<IndexError>>(
    session: &Session,
    step: Result<T, E>,
) -> Result<T, IndexError> {
    if step.is_err() {
        // A tick tries again, or the others find out when this compute server ends.
        let _ = session.recover_give_up().await;
    }
    step.map_err(Into::into)
}

/// Looks for lost objects in blocks whose members have left, and frees them. `None` if there is no such
/// block. Others may go on meanwhile.
///
/// Cost: 1 or 2 READs for every node of every table, and what the pool's sweep needs.
///
/// # Errors
/// As [`recover`].
pub async fn sweep(session: &Session) -> Result<Option<Recovered>, IndexError> {
    match session.sweep_begin().await? {
        Some(recovery) => {
            let swept = finish(session, recovery).await;
            Ok(Some(given_up_on_error(session, swept).await?))
        }
        None => Ok(None),
    }
}

/// Marks what all tables reach, and frees the rest of what was claimed.
async fn finish(session: &Session, mut recovery: Recovery) -> Result<Recovered, IndexError> {
    let mut audit = recovery.audit();
    let roots = session.list_roots().await?;
    let mut tables = Vec::with_capacity(roots.len());
    // Of all tables before the first walk: others wait for what the dead had to themselves. Nodes that were
    // theirs alone may be torn, and their logs tell of nodes to come.
    for root in &roots {
        let table = StoredTable::of(root)?;
        table.release_dead(session).await?;
        tables.push(table);
    }
    for (root, table) in roots.iter().zip(&tables) {
        table.redo_dead(session, &recovery).await?;
        let report = table.verify(session, &mut audit).await?;
        if let Some(problem) = report.problems.first() {
            return Err(IndexError::Corrupt(format!("table {:?}: {problem}", root.name)));
        }
    }
    mark_drops(session, &mut audit, &roots).await?;
    session.recover_forget_adopted(&mut recovery, &mut audit).await?;
    for table in &tables {
        table.before_free(session, &audit).await?;
    }
    Ok(session.recover_finish(recovery, &audit).await?)
}
