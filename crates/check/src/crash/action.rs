//! Crash action: the operation during which the compute server dies.

use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::sim::{Sim, SimFabric};
use farleaf_fabric::{AnyEndpoint, Endpoint, OpKind, ToAny};
use farleaf_harness::{HarnessError, expose, join, tick_regularly};
use farleaf_index::lab::{Action, WRITTEN, settings};
use farleaf_index::{Index, IndexError, ScanRange};
use farleaf_pool::{Audit, Session};

use super::formats::Format;
use crate::history::{Answer, Op};
use crate::world::{Pairs, PairsOf, ask, open_with, scan};

/// The table of the case.
pub(super) const TABLE: &str = "t";
/// A second table, to be made or dropped.
pub(super) const OTHER: &str = "other";
/// Time between two rounds of the regular work of a compute server that exposes memory.
const TICK_NS: u64 = 50_000;

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
    pub(super) fabric: SimFabric,
    pub(super) endpoint: AnyEndpoint,
    /// Settings by which it opens the table, as in `cache=0`.
    settings: &'static str,
    /// Not yet a member of the pool, if it is to join.
    pub(super) member: Option<(Session, AnyIndex)>,
}

/// Begins the regular work of a compute server that exposes memory, by a session of its own, while it `goes_on` and the
/// table is open.
pub(super) async fn begin_ticking(
    session: &Session,
    index: &AnyIndex,
    goes_on: impl Fn() -> bool + 'static,
) -> Result<(), HarnessError> {
    let own = session.pool().session(session.endpoint().clone()).await?;
    let index = index.clone();
    session.endpoint().spawn(async move {
        // An error is one that operations report as well.
        let _ = tick_regularly(&own, &index, TICK_NS, goes_on).await;
    });
    Ok(())
}

impl Actor {
    /// Compute server `compute`, which is no member yet.
    pub(super) fn new(
        sim: &Sim,
        compute: usize,
        format: &Format,
        settings: &'static str,
    ) -> Result<Actor, HarnessError> {
        let fabric = sim.fabric(compute);
        let endpoint = fabric.any_endpoint()?;
        Ok(Actor { format: *format, fabric, endpoint, settings, member: None })
    }

    /// Joins the pool, opens the table, and begins its regular work.
    pub(super) async fn enter(&mut self) -> Result<(), HarnessError> {
        let (session, index) = self.join().await?;
        if self.format.exposes() {
            begin_ticking(&session, &index, || true).await?;
        }
        self.member = Some((session, index));
        Ok(())
    }

    async fn join(&self) -> Result<(Session, AnyIndex), IndexError> {
        let session = join(self.endpoint.clone()).await?;
        if self.format.exposes() {
            expose(&self.fabric, &session, self.format.expose_bytes).await?;
        }
        let index = open_with(&session, TABLE, &settings(self.settings)).await?;
        Ok((session, index))
    }

    /// Does the action.
    pub(super) async fn act(&self, action: Action) -> Result<Answer, IndexError> {
        let nothing = Ok(Answer::Flag(true));
        let Some((session, index)) = &self.member else {
            self.join().await?;
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
                // The regular work ends with the table.
                while session.pool().sessions() > 1 {
                    session.endpoint().sleep(TICK_NS).await;
                }
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
