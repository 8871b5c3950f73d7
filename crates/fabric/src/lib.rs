//! Fabric: one-sided operations on disaggregated memory, on mapped memory, TCP, RDMA or a simulator.
//!
//! Everything above this crate relies on one contract, the trait [`Endpoint`]: READ, WRITE, CAS and FAA
//! on memory of other servers, chains of them, RPC, fencing, a clock, randomness and tasks. It promises
//! the least that hardware gives, so that code that is right here is right on a network card.
//! [`contract`] states the contract, method by method. `docs/design/fabric.md` explains its shape, and
//! how it fits TCP and verbs.
//!
//! | implementation | memory | time |
//! |---|---|---|
//! | [`mapped`] | mapped into this process: anonymous, or files that several processes share | real |
//! | [`tcp`] | that of memory servers on a network, over TCP | real |
//! | `verbs` | that of memory servers, by RDMA (feature `verbs`) | real |
//! | [`sim`] | simulated memory servers with network cards | virtual, one seed, replayable |
//!
//! The program chooses the fabric of an [`AnyFabric`] at run time.
//!
//! All unsafe code of the project is in the private module `raw`.
#![deny(unsafe_code)]

mod access;
mod addr;
mod any;
mod calls;
pub mod canary;
mod client;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contention;
pub mod contract;
mod contract_types;
mod counters;
mod error;
mod exec;
mod local;
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
mod socket_waiter;
mod space;
mod sync;
mod tasks;
pub mod tcp;
mod timers;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wake;

pub use addr::{GlobalAddr, ServerId};
pub use any::{AnyEndpoint, AnyFabric, ToAny};
pub use calls::{
    CALL_BYTES_MAX, CallError, Closed, Exposed, Incoming, ListenConfig, OwnRegion, Peer,
};
#[cfg(any(test, feature = "canary"))]
pub use canary::ArmedCanary;
pub use canary::Canary;
pub use client::{Client, Unawaited};
pub use contention::SharedLines;
pub use contract::{Endpoint, Fabric};
pub use contract_types::{
    Capabilities, ConnectionMark, Incarnation, Service, ServiceId, ServiceReply,
};
pub use counters::{Cost, Counters, OpKind, Snapshot};
pub use error::{FabricError, OpError, OpErrorKind, Refusal, missing_rights};
pub use exec::{Executor, yield_now};
pub use local::Local;
pub use locked::close_life_locks_after_fork;
pub use ops::{Op, Ops};
pub use processors::Processors;
pub use raw::{Buf, Slab, Words, exit_on_bus_error};
