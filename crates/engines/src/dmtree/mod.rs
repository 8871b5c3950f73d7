//! DMTree: a B-link tree in memory servers whose leaves have fingerprint tables and locks on compute servers.
//!
//! Variant of fptree.
//!
//! Source: DMTree, FAST 2026. The tree is that of the engine [`fptree`](crate::fptree): leaves of 32 unsorted slots, a line of 64
//! bytes for each with fingerprints, version and lock, records of leaves in an upper tree and in caches. [`DmTree`] puts the
//! lines into the memory of compute servers, which others read and change by the fabric (rule F11). Operations on memory
//! servers are scarce, those between compute servers are not. Compute servers keep replicas of lines, so that a get of a key
//! that is there is one READ of one slot.
//!
//! | operation, record and replica cached | memory server | compute server | waits |
//! |---|---|---|---|
//! | get | 1.08 READs | | 1 |
//! | get of an absent key | 0.09 READs | 1 READ | 1.1 |
//! | update | 1.08 READs, 1 WRITE | 1 READ, 2 CAS | 2 |
//! | insert | 0.09 READs, 1 WRITE | 1 READ, 1 WRITE, 2 CAS | 3 |
//! | remove | 1.08 READs, 1 WRITE | 1 READ, 1 WRITE, 2 CAS | 2 |
//!
//! With `write_vs_rmw` an unlock is a WRITE in place of a CAS.
//!
//! # Invariants, beside those of `fptree`
//!
//! - `INV-DM-7` An operation uses a line only inside the guard for its partition, and leaves when nothing that it posted there, or
//!   to the leaf, can still take effect.
//! - `INV-DM-8` A partition opens under a new term only when every redo record that names a leaf in it, and whose client is dead,
//!   has been carried out.
//! - `INV-DM-9` An answer rests on a slot that verifies, on a line of the present term, or on a whole leaf. Replicas are hints.
//!
//! `docs/design/dmtree.md` describes the design, `docs/papers/dmtree.md` what differs from the paper.

pub use crate::fptree::homed::DmTree;
pub use crate::fptree::homed_options::{DmTreeOptions, DmTreeShape, LineMove};
