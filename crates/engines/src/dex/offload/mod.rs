//! Offloading: sends an operation that misses a low node to the memory server of the node's subtree.
//!
//! The memory server walks the subtree in its own memory, in place of READs of the path by the compute
//! server.
//!
//! | file | what |
//! |---|---|
//! | `model` | when it is worth it |
//! | `wire` | the messages, byte by byte |
//! | `handler`, `range` | what the memory server does, for a scan leaf by leaf |
//! | `mark` | the `OffX` and `OffS` marks |
//! | `client`, `channels` | what the compute server does, and how its changes are numbered |
//!
//! - `INV-DEX-OFF-3` An operation is offloaded at a node N under a mark of N in the mapping table, with
//!   the parent pinned: N is not cached then, so nothing below it is Hot (`INV-DEX-PATH`), and what is
//!   Cooling is clean (`INV-DEX-CLEAN`). So remote memory has N's subtree as it is, no WRITE to it is in
//!   flight (`INV-DEX-WB`), and nothing of it comes into the cache but through N.
//! - `INV-DEX-OFF-4` Changes exclude each other and readers at N (`OffX`); readers share N (`OffS`).
//!   Nested nodes are never marked at a time: a mark's parent is Hot.
//! - `INV-DEX-OFF-5` A mark goes only when its request cannot take effect any more: after a definite
//!   reply, or after a new connection (F10). Before that, the cached copy of the leaf that was changed
//!   goes; it can only be a Cooling one.
//! - `INV-DEX-OFF-6` An operation is offloaded once at most, a scan once for each subtree that it comes to
//!   and as often as replies end within one; when told to fetch, it fetches, a scan to its end.
//!
//! There are no orphans: a shared parent that is out of date is dropped with all below it,
//! and a shared node is not offloaded at.

mod channels;
mod client;
mod handler;
mod mark;
mod model;
mod range;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use channels::Channel;
pub use client::OffloadServer;
pub(crate) use client::{Asked, Offloadable, Offloads, Question, Target};
pub use handler::{OFFLOAD_SERVICE, OffloadService, OffloadServiceStats};
pub(crate) use mark::OffloadMark;
pub use model::{Offload, OffloadError};
pub(crate) use wire::{
    FOUND_BYTES, Gathered, OffloadReply, Operation, RECORD_BYTES, Status, Sweep, key_bytes_max,
    u64_at,
};
