//! Engine tests: the suites of all engines, in one program because their shared code builds slowly.

mod common;

mod art;
mod bad_input;
mod batches;
mod chime;
mod concurrent;
mod costs;
mod dart;
mod deaths;
mod dex;
mod dmtree;
mod drops;
mod fptree;
mod hot_key;
mod model;
mod owned;
mod placement;
mod sherman;
mod small_caches;
mod smart;
mod smart_damage;
mod smart_lost;
mod smart_maintenance;
mod smart_reserved;
mod smart_reverse;
mod takeover;
mod unknown;
