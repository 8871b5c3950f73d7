//! Engines: one folder for each design, and the table of them.

pub mod btree;
pub mod dex;
