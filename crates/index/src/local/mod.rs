//! Local synchronization: latches, parking lot and combiner for the threads of one compute server.

mod combiner;
mod latch;
mod parking_lot;

pub(crate) use combiner::{Combiner, Ended, Taken};
pub(crate) use latch::{Latch, Version};
pub(crate) use parking_lot::ParkingLot;
