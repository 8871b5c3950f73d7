//! Gateway: serves tables to Redis's clients, in RESP2 and RESP3.
#![forbid(unsafe_code)]

pub mod resp;
