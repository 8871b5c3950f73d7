//! Recovery: takes over from compute servers that died.

use farleaf_index::IndexError;
use farleaf_pool::{Recovered, Recovery, Session};

use super::StoredTable;
use super::drops::{finish_drops, mark_drops};

/// Takes over from every compute server that is known to be dead: finishes what they were doing,
/// releases their locks, gives their memory back, and finishes dropping the tables that they were
/// dropping. `None` if there is none; drops that were left behind are finished nevertheless.
///
/// Others may go on meanwhile. What a dead one had of a table to itself is nobody's then
/// ([`StoredTable::release_dead`]). Cost: 1 READ for every node of every table, and what the pool's
/// recovery needs; 1 READ of the root table if there is none.
///
/// # Errors
/// `Corrupt` if a table does not verify: nothing is freed then. Any other error leaves the recovery
/// to be tried again.
pub async fn recover(session: &Session) -> Result<Option<Recovered>, IndexError> {
    let Some(recovery) = session.recover_begin().await? else {
        finish_drops(session).await?;
        return Ok(None);
    };
    let mut done = finish(session, recovery).await?;
    done.problems.extend(finish_drops(session).await?);
    Ok(Some(done))
}

/// Looks for lost objects in blocks whose members have left, and frees them. `None` if there is no such
/// block. Others may go on meanwhile.
///
/// Cost: 1 READ for every node of every table, and what the pool's sweep needs.
///
/// # Errors
/// As [`recover`].
pub async fn sweep(session: &Session) -> Result<Option<Recovered>, IndexError> {
    match session.sweep_begin().await? {
        Some(recovery) => Ok(Some(finish(session, recovery).await?)),
        None => Ok(None),
    }
}

/// Marks what all tables reach, and frees the rest of what was claimed.
async fn finish(session: &Session, mut recovery: Recovery) -> Result<Recovered, IndexError> {
    let mut audit = recovery.audit();
    let roots = session.list_roots().await?;
    let mut tables = Vec::with_capacity(roots.len());
    for root in &roots {
        let table = StoredTable::of(root)?;
        // Nodes that were theirs alone may be torn, and their logs tell of nodes to come.
        table.release_dead(session).await?;
        table.redo_dead(session, &recovery).await?;
        let report = table.verify(session, &mut audit).await?;
        if let Some(problem) = report.problems.first() {
            return Err(IndexError::Corrupt(format!("table {:?}: {problem}", root.name)));
        }
        tables.push(table);
    }
    mark_drops(session, &mut audit, &roots).await?;
    session.recover_forget_adopted(&mut recovery, &mut audit).await?;
    for table in &tables {
        table.before_free(session, &audit).await?;
    }
    Ok(session.recover_finish(recovery, &audit).await?)
}
