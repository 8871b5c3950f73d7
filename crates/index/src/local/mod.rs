//! Local synchronization: latches, parking lot, combiner and delegation for the threads of one compute server.

mod combiner;
mod delegation;
mod latch;
mod parking_lot;

pub(crate) use combiner::{Combiner, Ended, Taken};
pub(crate) use delegation::{Delegation, Lead, Turn};
pub(crate) use latch::{Latch, Version};
pub(crate) use parking_lot::ParkingLot;
