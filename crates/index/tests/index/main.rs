//! Engine tests: the suites of all engines, in one program because their shared code builds slowly.

mod common;

mod bad_input;
mod concurrent;
mod costs;
mod dart;
mod dex;
mod drops;
mod model;
mod placement;
mod smart;
mod takeover;
mod unknown;
