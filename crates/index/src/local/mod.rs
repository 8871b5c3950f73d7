//! What threads of one compute server share, whatever the engine: latches, waiting, and work that is left for
//! others.

mod combiner;
mod latch;
mod parking_lot;

pub(crate) use combiner::{Combiner, Ended, Taken};
pub(crate) use latch::{Latch, Version};
pub(crate) use parking_lot::ParkingLot;
