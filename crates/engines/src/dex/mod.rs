//! DEX: a B+-tree whose nodes a compute server caches, changes in its cache and writes back.
//!
//! After B. Lu, K. Huang, C. Liang, T. Wang, E. Lo: "DEX: Scalable Range Indexing on Disaggregated
//! Memory", PVLDB 17(10), 2024. Its ideas: *logical partitioning* gives every compute server ranges
//! of keys that it alone changes, so that leaves and low inner nodes need no remote locks and may be
//! cached dirty; *path-aware caching* keeps paths from the root down, with pointers swizzled to
//! frames, and chooses victims by sampling from the bottom up; *opportunistic offloading* sends an
//! operation to the memory server when that is cheaper than reading.
//!
//! Remote memory holds the tree of `crates/index/src/blink`, byte for byte: after [`Dex::close`] either
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
//! | `index`, `options`, `stats`, `stored` | the engine interface: operations, settings, counters, tables that are not open |
//!
//! Invariants `INV-DEX-*` stand in these files; `docs/design/dex.md` lists them.

mod cache;
mod change;
mod guest;
mod index;
mod log;
pub mod offload;
mod options;
mod partition;
mod stats;
mod stored;
mod tree;

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::BlinkTree;
use farleaf_index::bnode::Layout;
use farleaf_index::compute::ownership::{Ownership, create_map};
use farleaf_index::retire::retire_all;
use farleaf_index::{IndexError, Stored};
use farleaf_pool::Session;

pub use cache::{Admission, UnknownAdmission};
pub use farleaf_index::compute::{
    Balance, BalanceOptions, Balancer, JoinOptions, MoveError, Owner, PartLoad, RangeMove, Take,
    equal_width, sampled,
};
pub use log::{Durability, UnknownDurability};
use offload::OffloadServer;
pub use options::DexOptions;
pub use stats::DexStats;
use tree::{DexFail, DexTree, OpContext};

/// Fewest frames of a cache.
const FRAMES_MIN: u64 = 8;
/// Most frames: their numbers have 32 bits, and the last is taken.
const FRAMES_MAX: u64 = 1 << 31;

/// A table of this engine and this compute server's cache of it, for all its threads. Clones share it.
///
/// [`DexOptions::durability`] chooses the failures that an acknowledged change survives. With *volatile*,
/// changes are in this compute server's memory until [`Dex::flush`] or [`Dex::close`], or until their node
/// is evicted; its death loses the others, whether they were acknowledged or not.
#[derive(Clone, Debug)]
pub struct Dex(Arc<DexTree>);

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

    fn with(
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        ownership: Ownership,
    ) -> Result<Self, IndexError> {
        Ok(Dex(Arc::new(DexTree::new(meta, layout, options, ownership)?)))
    }

    /// The table of a tree.
    fn of(tree: &Arc<DexTree>) -> Self {
        Dex(Arc::clone(tree))
    }

    /// Returns the address of its meta object.
    pub fn meta(&self) -> GlobalAddr {
        self.0.remote.meta()
    }

    /// Geometry of the nodes.
    pub fn layout(&self) -> &Layout {
        self.0.layout()
    }

    /// Returns the options of its opening.
    pub fn options(&self) -> &DexOptions {
        &self.0.options
    }

    /// Returns the counts of the cache.
    pub fn stats(&self) -> DexStats {
        self.0.stats.get(self.0.ownership.counts())
    }

    /// Returns each memory server's work for this cache; empty as long as nothing was offloaded.
    pub fn offload_servers(&self, session: &Session) -> Vec<OffloadServer> {
        self.0.offloads.server_reports(session)
    }

    /// Writes all changed nodes back. Remote memory then holds every change acknowledged before the call.
    ///
    /// Cost: 1 WRITE for each changed node.
    ///
    /// # Errors
    /// As any operation; nodes that could not be written are still in the cache.
    pub async fn flush(&self, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.flush(session).await
    }

    /// Closes the table in this member of the pool: writes everything back and gives up the ranges that
    /// this compute server owns. No operation may be running; later ones fail with `Closed`.
    ///
    /// Cost: that of a flush, and a change of the map.
    ///
    /// # Errors
    /// As [`Dex::flush`]; the table is then still open.
    pub async fn close(&self, session: &Session) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Maintenance).await?;
        self.0.close(session).await?;
        session.pool().let_go(self.meta(), &self.0);
        Ok(())
    }

    /// Returns what is wrong in the cache, each with its invariant; empty if all is well. Meant for a
    /// moment at which no operation runs.
    pub fn check_cache(&self) -> Vec<String> {
        self.0.pages.check()
    }

    /// Frees every object of the table, the meta object included. Nobody may use the table any more.
    ///
    /// # Errors
    /// As [`farleaf_index::Index::verify`].
    pub async fn destroy(&self, session: &Session) -> Result<(), IndexError> {
        if self.0.ownership.is_owned() {
            // Records that only dirty leaves refer to are found in remote memory then.
            self.flush(session).await?;
        }
        self.0.ownership.set_closed();
        let stored = Stored { table: self.layout().table(), meta: self.meta() };
        let objects = stored.collect::<Dex>(session, None).await?;
        // Another table may come to lie there.
        session.pool().let_go(self.meta(), &self.0);
        retire_all(session, objects).await
    }
}
