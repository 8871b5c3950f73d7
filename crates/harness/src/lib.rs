//! Harness: clusters and pools for tests, the lab and the bench, made in one way for all.
//!
//! [`simulate`] makes a simulated cluster, [`LoopbackServers`] starts servers in this process, and [`World`] runs a
//! test on any fabric. [`make_pool`] and [`join`] open a session; [`expose`] and [`tick_regularly`] are for a compute
//! server that holds lines of others. [`lab_table`] names formats of tables, [`open_table`] opens a table with a small cache;
//! [`settle`], [`audit`] and [`check_all`] judge a pool whose clients have finished. [`depth`] tells a suite how far it
//! goes with an engine, [`covers`] which formats it takes then.
//!
//! ```
//! use farleaf_harness::World;
//!
//! let roots = World::default().on_mapped(async |session| session.list_roots().await);
//! assert_eq!(roots.expect("a list").len(), 0);
//! ```

#![forbid(unsafe_code)]

mod checks;
mod cover;
mod depth;
mod error;
mod regions;
mod servers;
mod sessions;
mod tables;
mod world;

pub use checks::{audit, check_all, settle};
pub use cover::covers;
pub use depth::{Depth, depth};
pub use error::{HarnessError, ensure};
pub use regions::{expose, tick_regularly};
pub use servers::LoopbackServers;
pub use sessions::{join, make_pool};
pub use tables::{bnode_layout, create_table, lab_table, open_table, try_shape, with_shape};
pub use world::{World, simulate, simulate_pool};
