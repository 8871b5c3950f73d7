//! Bench tests: whole runs and experiments.

mod dex;
mod redis;
mod repro;
mod runs;
mod well_formed;
