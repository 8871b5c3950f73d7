//! DEX tests: the suites of the engine `dex`.

mod storm;
mod tables;

mod admission;
mod bulk;
mod cluster;
mod concurrent;
mod costs;
mod crash;
mod first;
mod guest;
mod hosts;
mod hot_leaves;
mod leave;
mod log;
mod model;
mod move_crash;
mod moves;
mod offload;
mod offload_scans;
mod partitions;
mod rules;
mod stored;
