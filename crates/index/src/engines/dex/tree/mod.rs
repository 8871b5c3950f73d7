//! Tree: the operations on the cached B+-tree, and the changes of its shape.

mod bulk;
mod combine;
mod flush;
mod heal;
mod merge;
mod ops;
mod placement;
mod prefetch;
mod scan;
mod split;
mod verify;
mod walk;

pub(crate) use combine::{Combined, Others};
pub(crate) use ops::{Intent, OwnedIntent, unfinished_change};
pub(crate) use placement::{SUBTREE_LEVEL, check_level, check_placement, place_table};
pub(crate) use split::Need;
pub(crate) use walk::{Seek, Spot, Unfinished, Walk};
