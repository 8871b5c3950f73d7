//! Local synchronization: latches, parking lot, queues, combiner, delegation and copies of remote nodes for the tasks of one
//! compute server.

pub mod combiner;
pub mod delegation;
pub mod hand_over;
pub mod key_queues;
pub mod latch;
pub mod lock_queue;
pub mod node_cache;
pub mod parking_lot;
pub mod slot_hints;
#[cfg(all(test, not(loom)))]
mod wakes;

pub use combiner::{Combiner, Ended, Taken};
pub use delegation::{Delegation, Lead, Turn};
pub use hand_over::{Entered, Entering, HandOver, Holding, Passing};
pub use latch::{Latch, Version};
pub use lock_queue::{LockQueue, QueuePlace, Queued};
pub use node_cache::{CachedNode, NodeCache, NodeCacheCounts};
pub use parking_lot::ParkingLot;
pub use slot_hints::SlotHints;
