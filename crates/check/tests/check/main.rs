//! The lab, in part: seeds, crash points, what was found before, canaries.

#[cfg(feature = "canary")]
mod canaries;
mod crash;
mod replays;
mod seeds;
