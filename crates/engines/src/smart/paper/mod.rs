//! The paper's nodes: they have room for all slots, and grow in place.

pub(super) mod grow;
#[cfg(test)]
mod model;
pub(super) mod reverse;
