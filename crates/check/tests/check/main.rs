//! The lab in part: seeds, crash points, former findings, canaries; and the pages of the documentation.

#[cfg(feature = "canary")]
mod canaries;
mod crash;
mod docs;
mod replays;
mod seeds;
