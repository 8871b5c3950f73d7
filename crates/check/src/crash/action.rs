//! Crash action: the operation during which the compute server dies.

use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::AnyEndpoint;
use farleaf_fabric::{Client, OpKind};
use farleaf_harness::{HarnessError, join};
use farleaf_index::{Entries, Index, IndexError, ScanRange, Settings, SortedPairs};
use farleaf_pool::{Audit, Pool, Session};

use super::formats::Format;
use crate::history::{Answer, Op};
use crate::world::{ask, open, open_with};

/// The table of the case.
pub(super) const TABLE: &str = "t";
/// A second table, to be made or dropped.
pub(super) const OTHER: &str = "other";
/// Version of values that the table is filled with.
pub(super) const INITIAL: u32 = 1;
/// Version of values that the action writes.
pub(super) const WRITTEN: u32 = 2;

/// An action. Keys are numbers; see [`Format::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Get(u32),
    Insert(u32),
    Update(u32),
    Upsert(u32),
    Remove(u32),
    /// A remove, and what its engine does in the background to give up the space.
    RemoveAndClose(u32),
    /// Expected version and new version; 0 stands for an absent key.
    Exchange(u32, u32, u32),
    Scan {
        reverse: bool,
    },
    /// Fills the empty table with this many keys.
    BulkLoad(u32),
    CreateTable,
    DropTable,
    Join,
    Leave,
    Ticks(u32),
    /// An object of a size that nobody has used yet.
    Alloc,
    Recover,
    Verify,
    /// Work of the engine in the background, by its name.
    Background(&'static str),
}

impl Action {
    /// The key of the action, if it has one.
    pub(super) fn key(self) -> Option<u32> {
        match self {
            Action::Get(key)
            | Action::Insert(key)
            | Action::Update(key)
            | Action::Upsert(key)
            | Action::Remove(key)
            | Action::RemoveAndClose(key)
            | Action::Exchange(key, ..) => Some(key),
            _ => None,
        }
    }

    /// The call for a history, if the action has a key.
    pub(super) fn call(self, format: &Format) -> Option<Op> {
        let number = self.key()?;
        let key = format.key(number);
        let value = format.value(number, WRITTEN);
        let version = |version: u32| (version != 0).then(|| format.value(number, version));
        Some(match self {
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
}

/// The compute server that acts.
pub(super) struct Actor {
    pub(super) format: Format,
    pub(super) endpoint: AnyEndpoint,
    /// Not yet a member of the pool, if it is to join.
    pub(super) member: Option<(Session, AnyIndex)>,
}

/// Joins the pool and opens the table; what this member removes stays where it is if it `keeps_removed`.
pub(super) async fn enter(
    endpoint: AnyEndpoint,
    keeps_removed: bool,
) -> Result<(Session, AnyIndex), HarnessError> {
    let session = join(endpoint).await?;
    let index = match keeps_removed {
        true => open_with(&session, TABLE, &Settings::default().with("unlink_batch", "64")).await?,
        false => open(&session, TABLE).await?,
    };
    Ok((session, index))
}

impl Actor {
    /// Does the action.
    pub(super) async fn act(&self, action: Action) -> Result<Answer, IndexError> {
        let nothing = Ok(Answer::Flag(true));
        let Some((session, index)) = &self.member else {
            let client = Client::new(self.endpoint.clone());
            let session = Pool::join(&client).await?.session(self.endpoint.clone()).await?;
            open(&session, TABLE).await?;
            return nothing;
        };
        match action {
            Action::Scan { reverse } => {
                let range = ScanRange { reverse, ..ScanRange::ALL };
                Ok(Answer::Pairs(scan(session, index, range).await?))
            }
            Action::BulkLoad(count) => {
                let mut pairs =
                    Bulk { format: &self.format, next: 0, count, pair: Default::default() };
                index.bulk_load(session, &mut pairs).await.map(|_| Answer::Flag(true))
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
                let Some(call) = action.call(&self.format) else { return nothing };
                let answer = ask(session, index, &call).await?;
                if let Action::RemoveAndClose(_) = action {
                    index.close(session).await?;
                }
                Ok(answer)
            }
        }
    }
}

pub(super) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// All pairs of a range.
pub(super) async fn scan(
    session: &Session,
    index: &AnyIndex,
    range: ScanRange<'_>,
) -> Result<Pairs, IndexError> {
    let mut out = Entries::new();
    index.scan(session, range, usize::MAX, &mut out).await?;
    Ok(out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

/// The pairs that [`Action::BulkLoad`] loads.
pub(super) fn bulk_pairs(format: &Format, count: u32) -> Pairs {
    (0..count)
        .map(|index| (10 + 10 * index, WRITTEN))
        .map(|(number, version)| (format.key(number), format.value(number, version)))
        .collect()
}

struct Bulk<'a> {
    format: &'a Format,
    next: u32,
    count: u32,
    pair: (Vec<u8>, Vec<u8>),
}

impl SortedPairs for Bulk<'_> {
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        if self.next == self.count {
            return None;
        }
        self.next += 1;
        let number = 10 * self.next;
        self.pair = (self.format.key(number), self.format.value(number, WRITTEN));
        Some((&self.pair.0, &self.pair.1))
    }
}
