//! Checks: the order of a pool and of its tables, once their clients have finished.

use farleaf_engines::AnyIndex;
use farleaf_index::{Index, IndexError, TableReport};
use farleaf_pool::{Audit, AuditReport, PoolError, Session};

use crate::{HarnessError, ensure};

/// Ticks after which every retired object is free, if no other member runs.
const SETTLE_TICKS: usize = 8;

/// Reclaims every retired object, if no other member runs.
///
/// # Errors
/// As [`Session::tick`].
pub async fn settle(session: &Session) -> Result<(), PoolError> {
    for _ in 0..SETTLE_TICKS {
        session.tick().await?;
    }
    Ok(())
}

/// Walks `tables` and the pool. The reports hold the problems found.
///
/// # Errors
/// Any failure to walk.
pub async fn audit<I: Index>(
    session: &Session,
    tables: &[&I],
) -> Result<(Vec<TableReport>, AuditReport), IndexError> {
    let mut audit = Audit::new(session).await?;
    let mut reports = Vec::new();
    for table in tables {
        reports.push(table.verify(session, &mut audit).await?);
    }
    Ok((reports, audit.report(session).await?))
}

/// Opens every table of the pool by `open` and walks the tables and the pool, if no other member runs. Returns the
/// tables' reports, and the number of unreachable objects.
///
/// # Errors
/// The first problem found.
pub async fn check_all(
    session: &Session,
    open: impl AsyncFn(&Session, &str) -> Result<AnyIndex, IndexError>,
) -> Result<(Vec<TableReport>, u64), HarnessError> {
    settle(session).await?;
    let mut tables = Vec::new();
    for root in session.list_roots().await? {
        tables.push(open(session, &root.name).await?);
    }
    let tables: Vec<&AnyIndex> = tables.iter().collect();
    let (reports, audit) = audit(session, &tables).await?;
    for report in &reports {
        if let Some(problem) = report.problems.first() {
            return Err(HarnessError(format!("verify: {problem}")));
        }
    }
    if let Some(problem) = audit.problems.first() {
        return Err(HarnessError(format!("audit: {problem}")));
    }
    let lost: u64 = audit.classes.iter().map(|class| class.leaked).sum();
    let classes = &audit.classes;
    let closes = lost > 0 || audit.closes();
    ensure(closes, || format!("the pool's accounts do not close: {classes:?}"))?;
    Ok((reports, lost))
}
