//! Models: explore every order of small steps of rules that no single run shows, and of what breaks them.
//!
//! Each remote operation is a step, and so is each word of a READ or WRITE whose order matters. The search goes on to
//! its end, or to the first fault. Each rule that a model leaves out must show one.

#![allow(clippy::disallowed_types, reason = "the order of the set is never looked at")]

mod cached_prefix;
mod collapse;
mod own_leaf;
mod own_nodes;
mod seen_leaf;
mod torn_leaf;

use std::collections::HashSet;
use std::hash::Hash;

/// A protocol in small: its states, and what must not be.
pub(super) trait Model: Copy + Eq + Hash {
    /// The rule that a variant leaves out.
    type Broken: Copy;

    /// All states that can come next.
    fn next(self, broken: Self::Broken) -> Vec<Self>;

    /// The fault of this state, if it has one; `is_end` if nothing comes next.
    fn fault(&self, broken: Self::Broken, is_end: bool) -> Option<&'static str>;
}

/// The first fault, and the number of states seen.
pub(super) fn explore<M: Model>(
    firsts: impl IntoIterator<Item = M>,
    broken: M::Broken,
) -> (Option<&'static str>, usize) {
    let mut open: Vec<M> = firsts.into_iter().collect();
    let mut seen: HashSet<M> = open.iter().copied().collect();
    while let Some(state) = open.pop() {
        let next = state.next(broken);
        if let Some(fault) = state.fault(broken, next.is_empty()) {
            return (Some(fault), seen.len());
        }
        open.extend(next.into_iter().filter(|next| seen.insert(*next)));
    }
    (None, seen.len())
}
