//! RESP: the protocol of Redis's clients, versions 2 and 3, from both sides.
//!
//! The gateway reads [requests](request) and writes [replies]; what measures or checks a server speaks over a [wire].
#![forbid(unsafe_code)]

pub mod replies;
pub mod request;
pub mod wire;

pub use redis_protocol::resp2::types::RangeFrame;
pub use request::number;
