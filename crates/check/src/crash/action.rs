//! Crash action: the operation during which the compute server dies.

use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::{AnyEndpoint, OpKind};
use farleaf_harness::{HarnessError, join};
use farleaf_index::lab::{Action, WRITTEN, settings};
use farleaf_index::{Index, IndexError, ScanRange};
use farleaf_pool::{Audit, Session};

use super::formats::Format;
use crate::history::{Answer, Op};
use crate::world::{Pairs, PairsOf, ask, open, open_with, scan};

/// The table of the case.
pub(super) const TABLE: &str = "t";
/// A second table, to be made or dropped.
pub(super) const OTHER: &str = "other";
/// The call of an action for a history, if it has a key.
pub(super) fn call_of(action: Action, format: &Format) -> Option<Op> {
    let number = action.key()?;
    let key = format.key(number);
    let value = format.value(number, WRITTEN);
    let version = |version: u32| (version != 0).then(|| format.value(number, version));
    Some(match action {
        Action::Insert(_) => Op::Insert { key, value },
        Action::Update(_) => Op::Update { key, value },
        Action::Upsert(_) => Op::Upsert { key, value },
        Action::Remove(_) | Action::RemoveAndClose(_) => Op::Remove { key },
        Action::Exchange(_, expected, new) => {
            Op::CompareExchange { key, expected: version(expected), new: version(new) }
        }
        _ => Op::Get { key },
    })
}

/// The compute server that acts.
pub(super) struct Actor {
    pub(super) format: Format,
    pub(super) endpoint: AnyEndpoint,
    /// Not yet a member of the pool, if it is to join.
    pub(super) member: Option<(Session, AnyIndex)>,
}

/// Joins the pool and opens the table by these settings, as in `cache=0`.
pub(super) async fn enter(
    endpoint: AnyEndpoint,
    chosen: &str,
) -> Result<(Session, AnyIndex), HarnessError> {
    let session = join(endpoint).await?;
    let index = open_with(&session, TABLE, &settings(chosen)).await?;
    Ok((session, index))
}

impl Actor {
    /// Does the action.
    pub(super) async fn act(&self, action: Action) -> Result<Answer, IndexError> {
        let nothing = Ok(Answer::Flag(true));
        let Some((session, index)) = &self.member else {
            let session = join(self.endpoint.clone()).await?;
            open(&session, TABLE).await?;
            return nothing;
        };
        match action {
            Action::Scan { reverse } => {
                let range = ScanRange { reverse, ..ScanRange::ALL };
                Ok(Answer::Pairs(scan(session, index, range, usize::MAX).await?))
            }
            Action::BulkLoad(count) => {
                let pairs = bulk_pairs(&self.format, count);
                index.bulk_load(session, &mut PairsOf(pairs.iter())).await?;
                nothing
            }
            Action::CreateTable => {
                AnyIndex::create(session, OTHER, &self.format.table).await?;
                nothing
            }
            Action::DropTable => {
                AnyIndex::drop_table(session, OTHER).await?;
                nothing
            }
            Action::Leave => {
                index.close(session).await?;
                session.leave().await?;
                nothing
            }
            Action::Ticks(count) => {
                for _ in 0..count {
                    session.tick().await?;
                }
                nothing
            }
            Action::Alloc => {
                let _pin = session.begin(OpKind::Other).await?;
                let addr = session.alloc(session.place(), 3_000).await?;
                session.free_unpublished(addr, 3_000);
                nothing
            }
            Action::Recover => {
                while recover(session).await?.is_some() {}
                nothing
            }
            Action::Background(work) => {
                index.work_in_background(session, work).await?;
                nothing
            }
            Action::Verify => {
                let mut audit = Audit::new(session).await?;
                let report = index.verify(session, &mut audit).await?;
                match report.problems.first() {
                    Some(problem) => Err(IndexError::Corrupt(problem.clone())),
                    None => nothing,
                }
            }
            _ => {
                let Some(call) = call_of(action, &self.format) else { return nothing };
                let answer = ask(session, index, &call).await?;
                if let Action::RemoveAndClose(_) = action {
                    index.close(session).await?;
                }
                Ok(answer)
            }
        }
    }
}

/// The pairs that [`Action::BulkLoad`] loads.
pub(super) fn bulk_pairs(format: &Format, count: u32) -> Pairs {
    let pair = |number| (format.key(number), format.value(number, WRITTEN));
    (1..=count).map(|index| pair(10 * index)).collect()
}
