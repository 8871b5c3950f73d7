//! Lab: shows that an engine keeps its promises, or finds the seed that breaks it.

#![forbid(unsafe_code)]

#[cfg(feature = "canary")]
pub mod canaries;
pub mod crash;
pub mod history;
pub mod linear;
pub mod processes;
pub mod report;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod trace;
pub mod world;
