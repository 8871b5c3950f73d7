//! What threads of one compute server share, whatever the engine: latches and waiting.

mod latch;
mod parking_lot;

pub(crate) use latch::{Latch, Version};
pub(crate) use parking_lot::ParkingLot;
