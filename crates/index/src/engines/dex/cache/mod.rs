//! Page cache: frames that hold nodes, the table that finds them, and the choice of victims.
//!
//! | file | content |
//! |---|---|
//! | `frames` | images of nodes and their state |
//! | `mapping_table` | remote addresses to frames, and marks of work under way |
//! | `cooling_map`, `cooling_queue` | frames that are about to be evicted |
//! | `free_frames` | frames without a node |
//! | `admission_policy` | which missed leaves stay |
//! | `eviction` | sampling, cooling, eviction |
//! | `miss` | marks of nodes that are read |

mod admission_policy;
mod cooling_map;
mod cooling_queue;
mod eviction;
mod frames;
mod free_frames;
mod mapping_table;
mod miss;

pub(crate) use admission_policy::Ghosts;
pub use admission_policy::{Admission, UnknownAdmission};
pub(crate) use cooling_map::CoolingMap;
pub(crate) use eviction::{OwnedFrame, Sx};
pub(crate) use frames::{Frames, State, TOP};
pub(crate) use free_frames::FreeFrames;
pub(crate) use mapping_table::{Entry, MappingTable};
pub(crate) use miss::{Arrival, Heal, IoMark};
