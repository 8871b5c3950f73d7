//! Local synchronization: latches, parking lot, queues, combiner and delegation for the threads of one compute server.

pub mod combiner;
pub mod delegation;
pub mod key_queues;
pub mod latch;
pub mod lock_queue;
pub mod parking_lot;
#[cfg(all(test, not(loom)))]
mod wakes;

pub use combiner::{Combiner, Ended, Taken};
pub use delegation::{Delegation, Lead, Turn};
pub use latch::{Latch, Version};
pub use lock_queue::{LockQueue, QueuePlace, Queued};
pub use parking_lot::ParkingLot;
