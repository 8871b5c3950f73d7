//! DEX: a B+-tree whose nodes a compute server caches, changes in its cache and writes back.
//!
//! After B. Lu, K. Huang, C. Liang, T. Wang, E. Lo: "DEX: Scalable Range Indexing on Disaggregated
//! Memory", PVLDB 17(10), 2024. Its ideas: *logical partitioning* gives every compute server ranges
//! of keys that it alone changes, so that leaves and low inner nodes need no remote locks and may be
//! cached dirty; *path-aware caching* keeps paths from the root down, with pointers swizzled to
//! frames, and chooses victims by sampling from the bottom up; *opportunistic offloading* sends an
//! operation to the memory server when that is cheaper than reading.
//!
//! Remote memory holds the tree of `crates/index/src/blink`, byte for byte: once the table is closed, either
//! engine can open it. `docs/design/dex.md` lists the differences to the paper with their reasons, the
//! costs, and the missing parts.
//!
//! | folder or file | content |
//! |---|---|
//! | `cache/` | the page cache: frames, mapping table, cooling map, eviction; no keys, no I/O |
//! | `tree/` | operations, changes of shape, shared nodes, write-back, replay of a dead owner's log |
//! | `log/` | changes and images of nodes in pool memory |
//! | `offload/` | operations that memory servers execute |
//! | `partition`, `guest` | this engine's side of ownership and of work on keys that nobody owns, which are [`farleaf_index::compute`]'s |
//! | `options`, `stats`, `stored` | the engine interface: settings, counters, tables that are not open |
//!
//! Invariants `INV-DEX-*` stand in these files; `docs/design/dex.md` lists them.

mod cache;
mod change;
mod guest;
#[cfg(feature = "lab")]
mod lab;
mod log;
pub mod offload;
mod options;
mod partition;
mod stats;
mod stored;
mod tree;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::BlinkTree;
use farleaf_index::bnode::Layout;
use farleaf_index::compute::Owned;
use farleaf_index::compute::ownership::create_map;
use farleaf_index::retire::retire_all;
use farleaf_index::{IndexError, Stored};
use farleaf_pool::Session;

pub use cache::{Admission, UnknownAdmission};
pub use farleaf_index::compute::{
    Balance, BalanceOptions, Balancer, JoinOptions, MoveError, Owner, PartLoad, RangeMove, Take,
    equal_width, sampled,
};
pub use log::{Durability, UnknownDurability};
pub use options::DexOptions;
pub use stats::DexStats;
pub use tree::{ADOPT_UNCHECKED, DexTree, TRUST_OLD_COPY};
use tree::{DexFail, OpContext};

/// Fewest frames of a cache.
const FRAMES_MIN: u64 = 8;
/// Most frames: their numbers have 32 bits, and the last is taken.
const FRAMES_MAX: u64 = 1 << 31;

/// The engine DEX.
#[derive(Clone, Copy, Debug)]
pub struct Dex;

/// An open table of this engine, with this compute server's cache of it. Clones share it.
pub type DexTable = Owned<DexTree>;

impl Dex {
    /// Makes the remote structure of an empty table, with an ownership map of one partition that nobody
    /// owns; returns the address of its meta object. Its nodes are spread until it is opened with offloading.
    ///
    /// Cost: 1 CAS, 4 WRITEs, 5 round trips.
    ///
    /// # Errors
    /// `Full` if the pool has no room.
    pub async fn create(session: &Session, layout: &Layout) -> Result<GlobalAddr, IndexError> {
        let meta = BlinkTree::create(session, layout).await?;
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&partition::map_words(meta), session).await?;
        Ok(meta)
    }

    /// As [`Dex::create`], with subtrees of a height that stay together from the beginning: nodes of
    /// `subtree_level` and all below them on one memory server, as long as it has room. Higher ones can be
    /// offloaded at from further up, lower ones spread smaller tables over more servers.
    ///
    /// # Errors
    /// As [`Dex::create`]; `Invalid` if it is more than 30.
    pub async fn create_placed(
        session: &Session,
        layout: &Layout,
        subtree_level: u8,
    ) -> Result<GlobalAddr, IndexError> {
        tree::check_level(subtree_level)?;
        let meta = Dex::create(session, layout).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        tree::place_table(session, meta, subtree_level).await?;
        Ok(meta)
    }

    /// Opens a table in this member of the pool, with the part that this compute server takes.
    ///
    /// Cost: 4 READs for a new cache, and a change of the map if it takes something.
    ///
    /// # Errors
    /// For a new cache: `Invalid` for one of fewer than 8 nodes and for options that make no sense, `Full` if
    /// there is no memory for it; `Unavailable` if another member of this compute server has the table open.
    pub async fn open(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        join: JoinOptions,
    ) -> Result<DexTable, IndexError> {
        let table = Stored { table: layout.table(), meta };
        Owned::join(session, &table, options, join, 0).await
    }

    /// Frees every object of the table, the meta object included. Nobody may use the table any more.
    ///
    /// # Errors
    /// As [`farleaf_index::Index::verify`].
    pub async fn destroy(table: &DexTable, session: &Session) -> Result<(), IndexError> {
        let ownership = table.ownership();
        if ownership.is_owned() {
            // Records that only dirty leaves refer to are found in remote memory then.
            table.flush(session).await?;
        }
        ownership.set_closed();
        let objects = table.stored().collect::<Dex>(session, None).await?;
        // Another table may come to lie there.
        table.let_go(session);
        retire_all(session, objects).await
    }
}
