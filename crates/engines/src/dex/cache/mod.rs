//! Page cache: frames that hold copies of remote nodes, and the choice of those that leave.
//!
//! It knows nodes, their children and their latches, but no keys, and posts no remote operation: a caller
//! that needs a frame hands in the way to write dirty victims ([`PageCache::take_frame`]).
//!
//! | file | content |
//! |---|---|
//! | `frames` | images of nodes, each with a latch and its state |
//! | `swizzle` | child pointers that name frames |
//! | `mapping_table` | remote addresses to frames, and marks of work under way |
//! | `io_mark` | the right to work on a node that is not cached, and its admission |
//! | `eviction` | sampling, cooling, eviction |
//! | `cooling_map`, `cooling_queue` | frames that are about to be evicted |
//! | `free_frames` | frames that hold no node |
//! | `admission_policy` | the choice of missed leaves that stay |
//! | `check` | the invariants of all of these |

mod admission_policy;
mod check;
mod cooling_map;
mod cooling_queue;
mod eviction;
mod frames;
mod free_frames;
mod io_mark;
mod mapping_table;
mod swizzle;

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::bnode::Layout;
use farleaf_index::local::ParkingLot;
use farleaf_pool::Session;

use crate::dex::DexOptions;
use crate::dex::stats::Stats;
use admission_policy::Ghosts;
pub use admission_policy::{Admission, UnknownAdmission};
use cooling_map::CoolingMap;
#[cfg(feature = "lab")]
pub(crate) use eviction::COOL_UNWRITTEN;
pub(crate) use eviction::{OwnedFrame, Sx};
pub(crate) use frames::{FrameState, Frames, TOP};
use free_frames::FreeFrames;
pub(crate) use io_mark::{IoMark, MissedChild};
pub(crate) use mapping_table::{Mapping, MappingTable};

/// Frames that one operation needs at most: a path in the tallest tree that fits in a pool, whose nodes have two children
/// each, and what a split of each level takes.
const PATH_FRAMES: usize = 48;

/// The cached nodes of one table on one compute server. All threads share it.
#[derive(Debug)]
pub(crate) struct PageCache {
    layout: Layout,
    pub(crate) frames: Frames,
    pub(crate) map: MappingTable,
    /// Tasks that wait for a latch or for an address.
    pub(crate) lot: ParkingLot,
    cooling: CoolingMap,
    free: FreeFrames,
    admission: Admission,
    /// Leaves that were missed before, if the admission policy counts them.
    ghosts: Option<Ghosts>,
    /// Victims that are sampled at a time.
    sample_count: u32,
    /// Cooling buckets that are looked into before victims are sampled.
    probe_buckets: usize,
    stats: Arc<Stats>,
}

impl PageCache {
    /// Makes `count` free frames for nodes of `layout`, and the reserve.
    ///
    /// # Errors
    /// `Full` if this compute server has no memory for them.
    pub(crate) fn new(
        layout: Layout,
        count: usize,
        options: &DexOptions,
        stats: Arc<Stats>,
    ) -> Result<Self, IndexError> {
        let counts_misses = options.admission == Admission::Again;
        let reserve = PATH_FRAMES.saturating_sub(count);
        Ok(PageCache {
            layout,
            frames: Frames::new(&layout, count + reserve)?,
            map: MappingTable::new(count),
            lot: ParkingLot::new(64),
            cooling: CoolingMap::new(count, options.cooling_ratio, options.single_queue),
            free: FreeFrames::new(count, reserve),
            admission: options.admission,
            ghosts: counts_misses.then(|| Ghosts::new(count)),
            sample_count: options.sample_count,
            probe_buckets: options.probe_buckets,
            stats,
        })
    }

    /// The geometry of the cached nodes.
    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the bytes of the frames in use.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.free.used_count() as u64 * self.layout.node_bytes() as u64
    }

    /// Returns the key under which tasks wait for a frame's latch. No address has bit 63.
    pub(crate) fn frame_key(frame: u32) -> u64 {
        1 << 63 | u64::from(frame)
    }

    /// Releases X and wakes the tasks that wait for the latch.
    pub(crate) fn release_x(&self, frame: u32) {
        self.frames.ctl(frame).latch.release_x();
        self.lot.unpark(Self::frame_key(frame));
    }

    /// Waits until nobody holds the latch.
    pub(crate) async fn wait_for_frame(&self, frame: u32) {
        let latch = &self.frames.ctl(frame).latch;
        self.lot.park(Self::frame_key(frame), || !latch.is_held()).await;
    }

    /// Waits until no task works on the node at `addr` remotely.
    pub(crate) async fn wait_for_node(&self, addr: u64) {
        self.lot.park(addr, || !self.is_worked_on(addr)).await;
    }

    /// Returns whether a task works on the node at `addr` remotely.
    pub(crate) fn is_worked_on(&self, addr: u64) -> bool {
        matches!(self.map.get(addr), Some(Mapping::Io | Mapping::OffX | Mapping::OffS(_)))
    }

    /// Returns whether the leaf at `addr`, which an operation has just missed, is to be cached. Draws a number
    /// only if the policy admits by chance.
    pub(crate) fn admits(&self, session: &Session, addr: u64) -> bool {
        match (self.admission, &self.ghosts) {
            (Admission::Again, Some(ghosts)) => ghosts.note(addr) || self.free.has_fresh(),
            (Admission::Again, None) => true,
            (Admission::Chance(chance), _) => {
                self.free.has_fresh()
                    || chance >= 1.0
                    || share_of(session.endpoint().random()) < chance
            }
        }
    }
}

/// Turns a random number into one from 0 to 1, which it never is.
pub(crate) fn share_of(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}
