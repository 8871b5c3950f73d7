//! Lab tests: seeds, crash points, former findings and canaries, drawings, and the pages of the documentation.

#[cfg(feature = "canary")]
mod canaries;
mod crash;
mod docs;
mod replays;
mod runs;
mod seeds;
mod trace;
