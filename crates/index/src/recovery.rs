//! Taking over from compute servers that died.

use farleaf_fabric::Endpoint;
use farleaf_pool::{Recovered, Session};

use crate::{AnyIndex, Index, IndexError};

/// Takes over from every compute server that is known to be dead: finishes what they were doing,
/// releases their locks, and gives their memory back. `None` if there is none.
///
/// Others may go on meanwhile. Cost: 1 READ for every node of every table, and what the pool's
/// recovery needs.
///
/// # Errors
/// `Corrupt` if a table does not verify: nothing is freed then. Any other error leaves the recovery
/// to be tried again.
pub async fn recover<E: Endpoint>(session: &Session<E>) -> Result<Option<Recovered>, IndexError> {
    let Some(recovery) = session.recover_begin().await? else { return Ok(None) };
    let mut audit = recovery.audit();
    for root in session.list_roots().await? {
        let (index, _) = AnyIndex::open(&root)?;
        let report = index.verify(session, &mut audit).await?;
        if let Some(problem) = report.problems.first() {
            return Err(IndexError::Corrupt(format!("table {:?}: {problem}", root.name)));
        }
    }
    Ok(Some(session.recover_finish(recovery, &audit).await?))
}
