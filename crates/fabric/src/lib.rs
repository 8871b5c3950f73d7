//! One-sided operations on disaggregated memory, and the machines that carry them.
//!
//! Everything above this crate is written against one contract, the trait [`Endpoint`]: READ,
//! WRITE, CAS and FAA on memory of other servers, chains of them, RPC, fencing, a clock,
//! randomness and tasks. It promises the least that hardware gives, so that code that is right
//! here is right on a network card. The contract stands at [`contract`], method by method; why it
//! has this shape and how it fits TCP and verbs stands in `docs/design/fabric.md`.
//!
//! | implementation | memory | time |
//! |---|---|---|
//! | [`mapped`] | mapped into this process: anonymous, or files that several processes share | real |
//! | [`tcp`] | that of memory servers on a network, over TCP | real |
//! | `verbs` | that of memory servers, by RDMA (feature `verbs`) | real |
//! | [`sim`] | simulated memory servers with network cards | virtual, one seed, replayable |
//!
//! [`AnyFabric`] is `mapped`, `tcp` or `verbs`, chosen when the program runs.
//!
//! All unsafe code of the project is in the private module `raw`.
#![deny(unsafe_code)]

mod access;
mod addr;
mod any;
mod calls;
mod canary;
mod client;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
mod contract_types;
mod counters;
mod error;
mod exec;
mod locked;
pub mod mapped;
mod ops;
pub mod pem;
mod post;
mod posts;
mod processors;
mod raw;
pub mod sim;
mod single;
mod sync;
mod tasks;
pub mod tcp;
mod timers;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wake;

pub use addr::{GlobalAddr, ServerId};
pub use any::{AnyEndpoint, AnyFabric};
pub use calls::{CALL_BYTES_MAX, CallError, Closed, Incoming, ListenConfig, Peer};
#[cfg(any(test, feature = "canary"))]
pub use canary::ArmedCanary;
pub use canary::Canary;
pub use client::Client;
pub use contract::{Endpoint, Fabric};
pub use contract_types::{Capabilities, Incarnation, Service, ServiceId, ServiceReply};
pub use counters::{Cost, Counters, OpKind, Snapshot};
pub use error::{FabricError, OpError, OpErrorKind, Refusal};
pub use exec::{Executor, RealTime, yield_now};
pub use ops::{Op, Ops};
pub use processors::Processors;
pub use raw::{Buf, Slab, Words};
