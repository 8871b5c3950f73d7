//! The suites of the engines: one program, because what they share takes longer to build than they run.

mod common;

mod bad_input;
mod concurrent;
mod costs;
mod dex;
mod drops;
mod model;
mod takeover;
mod unknown;
