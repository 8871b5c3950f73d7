//! Cards, by libibverbs: a binding of what is used, behind safe faces.
//!
//! A [`Device`] is an open card with a protection domain, [`Completions`] a completion queue,
//! [`QueuePair`] one end of a reliable connection, and a [`Lane`] the sending side of one with all that
//! is in flight. Each holds what it is made of, so that things go in the right order. What a card
//! reads or writes on this side belongs to a [`Hold`] meanwhile (INV-HOLD-1), or consists of [`Words`],
//! as the places of a queue pair's messages do (INV-MAIL-1).
//!
//! [`Words`]: crate::Words

mod completions;
mod device;
mod ffi;
mod hold;
mod lane;
mod library;
mod messages;
mod pair;

pub(crate) use completions::Completions;
pub(crate) use device::{Device, PortFacts, WordsKey, device_names, registered_slab};
pub(crate) use hold::{Call, Hold, Load};
pub(crate) use lane::{Lane, Remote, Work, lane_of};
pub(crate) use pair::{Ends, Here, QueuePair, Size};
