//! RESP: the protocol of Redis's clients, versions 2 and 3.

pub mod replies;
pub mod request;

pub use request::number;
