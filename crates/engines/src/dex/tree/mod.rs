//! Tree: one compute server's B+-tree of a table, over the page cache and remote memory.
//!
//! | file | content |
//! |---|---|
//! | `walk` | the descent by optimistic lock coupling |
//! | `miss`, `pages` | nodes that are not cached; READs and WRITEs of nodes |
//! | `ops`, `combine`, `offloaded` | gets and changes; by a latch's holder; by a memory server |
//! | `scan`, `prefetch` | scans, and the leaves that they read ahead |
//! | `split`, `merge`, `heal` | changes of the tree's shape, and those that a crash left half done |
//! | `bulk` | bulk load |
//! | `write_back`, `replay` | dirty nodes to remote memory; a dead owner's log |
//! | `placement` | memory servers of new nodes |
//! | `verify` | checks of the cache and of remote memory |
//! | `shared`, `sweep`, `adopt` | inner nodes that cross bounds; nodes of a range that changes owners |
//! | `context`, `crowd`, `tasks` | attempts of one operation; turns of those that find no frame; steps that run to their end |

mod adopt;
mod bulk;
mod combine;
mod context;
mod crowd;
mod heal;
mod merge;
mod miss;
mod offloaded;
mod ops;
mod pages;
mod placement;
mod prefetch;
mod replay;
mod scan;
mod shared;
mod split;
mod sweep;
mod tasks;
mod verify;
mod walk;
mod write_back;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use farleaf_fabric::GlobalAddr;
use farleaf_index::IndexError;
use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::{ChangeError, Layout, Node, Word};
use farleaf_index::compute::ownership::{Ownership, Range};
use farleaf_index::local::Combiner;
use farleaf_index::retry::backoff;
use farleaf_pool::Session;

use crate::dex::cache::PageCache;
use crate::dex::change::OwnedLeafChange;
use crate::dex::log::Log;
use crate::dex::offload::{OffloadServer, Offloads};
use crate::dex::stats::{DexStats, Stats};
use crate::dex::{DexOptions, FRAMES_MAX};
pub use adopt::ADOPT_UNCHECKED;
use combine::Combined;
pub(crate) use context::{DexFail, OpContext};
use crowd::Crowd;
pub(crate) use placement::{check_level, check_placement, place_for, place_table};
#[cfg(feature = "lab")]
pub(crate) use replay::REPLAY_OLDER;
pub use shared::TRUST_OLD_COPY;
use shared::{Posts, Proofs};
pub(crate) use split::Need;
#[cfg(feature = "lab")]
pub(crate) use split::SPLIT_OLD_FIRST;
pub(crate) use walk::UnfinishedSplit;

/// Returns the range of a node's keys, by its fences.
pub(crate) fn range_of<W: Word>(node: &Node<'_, W>) -> Range {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    let low = node.low_fence(&mut low).then_some(low);
    let high = node.high_fence(&mut high).then_some(high);
    Range { low, high }
}

/// One compute server's tree of a table, and its cache, for all its threads.
///
/// [`DexOptions::durability`] chooses the failures that an acknowledged change survives. With *volatile*,
/// changes are in this compute server's memory until the table is flushed or closed, or until their node
/// is evicted; its death loses the others, whether they were acknowledged or not.
#[derive(Debug)]
pub struct DexTree {
    pub(crate) remote: RemoteTree,
    /// The keys that it serves.
    pub(crate) ownership: Arc<Ownership>,
    posts: Posts,
    proofs: Proofs,
    crowd: Arc<Crowd>,
    pub(crate) options: DexOptions,
    pub(crate) pages: Arc<PageCache>,
    pub(crate) log: Log,
    pub(crate) offloads: Arc<Offloads>,
    /// Changes that wait for a frame's latch.
    combiner: Combiner<OwnedLeafChange, Combined>,
    /// Keys of gets that wait for another task's READ of a leaf, and their values.
    shared_reads: Combiner<Vec<u8>, Option<Vec<u8>>>,
    pub(crate) stats: Arc<Stats>,
    /// Tasks that make room in the log.
    room_tasks: AtomicU32,
    /// Entries of a leaf as the last scan found them; 0 before the first. A hint.
    leaf_entries: AtomicUsize,
}

impl DexTree {
    /// Makes an empty cache of the table at `meta`, which serves the keys that `ownership` gives it.
    ///
    /// # Errors
    /// `Invalid` for options with which no table of such nodes can be opened; `Full` if this compute
    /// server has no memory for the frames.
    pub(crate) fn empty(
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        ownership: Arc<Ownership>,
    ) -> Result<Self, IndexError> {
        options.check(&layout)?;
        let frames = options.cache_bytes / layout.node_bytes() as u64;
        let frames = frames.min(FRAMES_MAX) as usize;
        let remote_options = BlinkOptions {
            bulk_fill: options.bulk_fill,
            merge_low: options.merge_low,
            merge_sum: options.merge_sum,
            ..BlinkOptions::default()
        };
        let stats = Arc::new(Stats::default());
        let pages = Arc::new(PageCache::new(layout, frames, &options, Arc::clone(&stats))?);
        Ok(DexTree {
            log: Log::new(meta, &options, Arc::clone(&pages), Arc::clone(&stats)),
            offloads: Arc::new(Offloads::new(&options, Arc::clone(&pages), Arc::clone(&stats))),
            pages,
            combiner: Combiner::new(64),
            shared_reads: Combiner::new(64),
            stats,
            room_tasks: AtomicU32::new(0),
            leaf_entries: AtomicUsize::new(0),
            remote: RemoteTree::open(meta, layout, remote_options),
            ownership,
            posts: Posts::default(),
            proofs: Proofs::default(),
            crowd: Arc::default(),
            options,
        })
    }

    /// Geometry of the nodes.
    #[inline]
    pub fn layout(&self) -> &Layout {
        self.pages.layout()
    }

    /// Returns the options of its opening.
    pub fn options(&self) -> &DexOptions {
        &self.options
    }

    /// Returns the counts of the cache.
    pub fn stats(&self) -> DexStats {
        self.stats.get(self.ownership.counts())
    }

    /// Returns each memory server's work for this cache; empty as long as nothing was offloaded.
    pub fn offload_servers(&self, session: &Session) -> Vec<OffloadServer> {
        self.offloads.server_reports(session)
    }

    /// Returns what is wrong in the cache, each with its invariant; empty if all is well. Meant for a
    /// moment at which no operation runs.
    pub fn check_cache(&self) -> Vec<String> {
        self.pages.check()
    }

    pub(crate) fn no_level(&self) -> IndexError {
        IndexError::Corrupt(format!(
            "the table at {} has lost its lowest level",
            self.remote.meta()
        ))
    }

    /// Returns the error that says that the node in a frame could not be changed as it must be.
    pub(crate) fn damaged(&self, frame: u32, error: ChangeError) -> IndexError {
        self.remote.damaged(self.pages.frames.addr(frame), error)
    }

    /// Waits until no task works on a child of a frame. The caller holds the frame's SX, so that no further
    /// task begins. Gives up after a while.
    pub(crate) async fn drain_pins(&self, session: &Session, frame: u32) -> bool {
        for attempt in 0..64 {
            if self.pages.frames.ctl(frame).pins() == 0 {
                return true;
            }
            backoff(session, attempt).await;
        }
        false
    }
}
