//! Suite of the engines `sherman` and `p-sherman`: exact costs, locks that are passed on, stale copies, damage, and owned
//! leaves.

pub(crate) mod copies;
pub(crate) mod costs;
mod damage;
mod handing;
mod locks;
mod owned;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind, Snapshot};
use farleaf_index::{CounterSet, Index, Settings};
use farleaf_pool::Session;

use crate::common::Pairs;

pub(crate) fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

pub(crate) fn settings(list: &[(&str, &str)]) -> Settings {
    list.iter().fold(Settings::default(), |all, (name, value)| all.with(name, value))
}

/// A table of 8 + 8 bytes with every other number below `2 * keys`, all inner nodes cached.
async fn loaded(session: &Session, keys: u64, list: &[(&str, &str)]) -> AnyIndex {
    loaded_as(session, Engine::Sherman, keys, list).await
}

/// The same of another engine.
pub(crate) async fn loaded_as(
    session: &Session,
    engine: Engine,
    keys: u64,
    list: &[(&str, &str)],
) -> AnyIndex {
    let format = TableFormat::fixed8(engine);
    let index =
        farleaf_harness::create_table(session, "t", &format, 1 << 16, &settings(list)).await;
    let index = index.expect("a table");
    let pairs: Vec<_> =
        (0..keys).map(|key| (number(2 * key).to_vec(), key.to_le_bytes().to_vec())).collect();
    assert_eq!(index.bulk_load(session, &mut Pairs(pairs.iter())).await, Ok(keys));
    let mut value = Vec::new();
    for key in 0..keys {
        assert_eq!(index.get(session, &number(2 * key), &mut value).await, Ok(true));
        assert_eq!(value, key.to_le_bytes());
    }
    index
}

/// READs, WRITEs, CASes, round trips; bytes READ, bytes written with 8 for each CAS.
pub(crate) type Row = ([u64; 4], [u64; 2]);

pub(crate) fn row(cost: Cost) -> Row {
    let verbs = [cost.reads, cost.writes, cost.cas, cost.round_trips];
    (verbs, [cost.bytes_read, cost.bytes_written])
}

pub(crate) fn since(session: &Session, before: &Snapshot, kind: OpKind) -> Row {
    let snapshot: Snapshot = session.endpoint().counters().snapshot().since(before);
    assert_eq!(snapshot.kind(kind), snapshot.total(), "nothing beside it");
    row(snapshot.kind(kind))
}

pub(crate) fn counters(index: &AnyIndex) -> CounterSet {
    let mut counters = CounterSet::default();
    Index::counters(index, &mut counters);
    counters
}
