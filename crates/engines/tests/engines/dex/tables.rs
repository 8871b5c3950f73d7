//! Test tables: tables of the engine `dex` for its suites.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]

use farleaf_engines::TableFormat;
use farleaf_engines::dex::{Dex, DexOptions, DexTable, Durability, JoinOptions, Take};
use farleaf_fabric::{Endpoint, GlobalAddr};
use farleaf_index::bnode::Layout;
use farleaf_index::{IndexError, TableReport};
use farleaf_pool::Session;

use crate::common::{self, bnode_layout, settle};

/// The remote structure of a new table.
pub async fn create(session: &Session, format: &TableFormat) -> (GlobalAddr, Layout) {
    let layout = bnode_layout(format).for_tree(session.endpoint().random());
    (Dex::create(session, &layout).await.expect("create"), layout)
}

/// Of tables that are placed before they are loaded, since they are loaded without offloading.
pub const SUBTREE_LEVEL: u8 = 3;

/// As [`create`], with subtrees of that level on one memory server each from the beginning.
pub async fn placed(session: &Session, format: &TableFormat, level: u8) -> (GlobalAddr, Layout) {
    let layout = bnode_layout(format).for_tree(session.endpoint().random());
    (Dex::create_placed(session, &layout, level).await.expect("create"), layout)
}

/// With one durability or the other, a log that goes round quickly or does not, scans that read ahead and
/// are offloaded or do not, and holders of a leaf that do others' changes or do not.
pub fn some_durability(seed: u64, options: DexOptions) -> DexOptions {
    let (durability, log_bytes) = match seed % 3 {
        0 => (Durability::Volatile, options.log_bytes),
        1 => (Durability::Logged, options.log_bytes),
        _ => (Durability::Logged, 8 << 10),
    };
    let scan_prefetch = [8, 0, 3][(seed / 3 % 3) as usize];
    let (offload_scans, combine) = (seed % 2 == 1, [0, 64, 2][(seed % 5 % 3) as usize]);
    DexOptions { durability, log_bytes, scan_prefetch, offload_scans, combine, ..options }
}

/// As [`open`], with a cache of so many bytes as `options` say.
pub async fn try_open(
    session: &Session,
    (meta, layout): (GlobalAddr, Layout),
    options: DexOptions,
) -> Result<DexTable, IndexError> {
    let join = JoinOptions { take: Take::Nothing, take_over: true, ..JoinOptions::default() };
    Dex::open(session, meta, layout, options, join).await
}

/// The table with a cache of `frames` nodes, which takes the keys that nobody has as it meets them.
pub async fn open(
    session: &Session,
    (meta, layout): (GlobalAddr, Layout),
    frames: u64,
    options: DexOptions,
) -> DexTable {
    let options = DexOptions { cache_bytes: frames * layout.node_bytes() as u64, ..options };
    try_open(session, (meta, layout), options).await.expect("open")
}

/// Cache, remote structure and the pool's accounts are in order.
pub async fn check(session: &Session, index: &DexTable) -> TableReport {
    settle(session).await;
    assert_eq!(index.tree().check_cache(), Vec::<String>::new());
    common::check(session, &[index]).await
}
