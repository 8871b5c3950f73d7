//! RESP: the protocol of Redis's clients, versions 2 and 3, from both sides.
//!
//! The gateway reads [requests](request) and writes [replies]. A program that measures or checks a server speaks over a
//! wire (feature `client`).
#![forbid(unsafe_code)]

pub mod replies;
pub mod request;
#[cfg(feature = "client")]
pub mod wire;

#[cfg(feature = "client")]
pub use redis_protocol::resp2::types::RangeFrame;
pub use request::number;
