//! Store tests: the library's public API over memory of this machine.

mod common;

mod forward;
mod futures;
mod local;
mod operations;
mod ordered;
mod processes;
mod races;
mod records;
mod stores;
mod tables;

/// Returns whether the tests run over memory servers.
const OVER_NETWORK: bool = false;
