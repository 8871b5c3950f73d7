//! Memory pool: regions, blocks, size classes, epochs, retired objects, named roots and recovery.
//!
//! Compute servers (*members*) share the memory of all servers with one-sided operations alone.
//! `docs/design/pool.md` describes layout, protocols and costs; the modules state the invariants.
//!
//! ```
//! use farleaf_fabric::mapped::Mapped;
//! use farleaf_fabric::{Client, OpKind, ToAny};
//! use farleaf_pool::{Pool, PoolOptions, format};
//!
//! let fabric = Mapped::anonymous(2, 8 << 20)?;
//! let endpoint = fabric.any_endpoint()?;
//! endpoint.clone().executor().block_on(async {
//!     let client = Client::new(endpoint.clone());
//!     format(&client, &PoolOptions::fitting(8 << 20)).await?;
//!     let pool = Pool::join(&client).await?;
//!     let session = pool.session(endpoint).await?;
//!
//!     let pinned = session.begin(OpKind::Insert).await?;
//!     let addr = session.alloc(session.place(), 1000).await?;
//!     // ... WRITE the object, link it; later, in another operation, take it out again:
//!     let retiring = session.prepare_retire(addr).await?;
//!     // ... unlink it.
//!     session.retire(retiring);
//!     drop(pinned);
//!     session.tick().await?;
//!     session.leave().await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod alloc;
mod audit;
mod block;
pub mod canary;
mod class;
mod clients;
mod drops;
mod epoch;
mod error;
mod fullness;
mod geometry;
mod inbox;
mod left;
mod local_block;
mod member;
mod on_drop;
mod open_tables;
mod owned_blocks;
mod pages;
mod pins;
mod placement;
mod pool;
mod recover;
mod recoverer;
mod reliable;
mod remote_free;
mod retire;
mod root;
mod session;
mod superblock;
mod sync;
mod tick;
mod token;
mod unlinked;
mod words;
mod wraparound;

pub use address::Member;
pub use audit::{Audit, AuditReport, ClassReport, OwnerReport};
pub use drops::{Dropping, LeftDrop};
pub use error::{FormatError, FormatFault, PoolError};
pub use fullness::Fullness;
pub use geometry::{Geometry, Place, PoolOptions};
pub use open_tables::Opening;
pub use placement::Placement;
pub use pool::{MemoryUse, Pool};
pub use recover::{Recovered, Recovery};
pub use recoverer::RecoveryCounts;
pub use reliable::{Cas, PostMark, Reliable, Tries, is_open};
pub use retire::Retiring;
pub use root::Root;
pub use session::{OwnedPin, Pinned, Session};
pub use superblock::{SUPERBLOCK_WORDS, format, format_once, pool_id_of};
pub use token::LockToken;
pub use unlinked::Unlinked;
pub use wraparound::age;

#[cfg(test)]
mod tests;
