//! libibverbs binding: wraps the card, its queues and its queue pairs in safe interfaces.
//!
//! A [`Device`] is an open card with a protection domain, [`Completions`] a completion queue,
//! [`QueuePair`] one end of a reliable connection, and a [`SendQueue`] the sending side of one with all that
//! is in flight. Each owns its parts, so that they are dropped in the right order. Memory that a card
//! reads or writes on this side belongs to a [`Hold`] meanwhile (INV-HOLD-1), or consists of [`Words`],
//! as the places of a queue pair's messages do (INV-MESSAGE-1).
//!
//! [`Words`]: crate::Words

mod completions;
mod device;
mod ffi;
mod hold;
mod library;
mod messages;
mod pair;
mod send_queue;

pub(crate) use completions::{Completion, Completions};
pub(crate) use device::{Device, PortFacts, WordsKey, device_names, registered_slab};
pub(crate) use hold::{Call, HeldLoad, Hold};
pub(crate) use pair::{Ends, Here, QueuePair, Size};
pub(crate) use send_queue::{Remote, SendQueue, Work, send_queue_of};
