//! Linearizability checker: decides whether a table may produce a [`History`].
//!
//! # Rules
//!
//! **Operations on one key** are linearizable: each takes effect at one moment between its call and
//! its answer, with the answer of a map in memory at that moment. The checker goes key by key. That
//! is enough: a history is linearizable if each object's part of it is (Herlihy and Wing, TOPLAS
//! 1990, section 3.3).
//!
//! - An operation without an answer may take effect at any moment after its call, or never, also
//!   after its client's next operations.
//! - An operation answered with [`Answer::Nothing`] is left out.
//! - Two operations of which one ends at the nanosecond at which the other begins count as
//!   overlapping, unless they are of one client: then the first comes first.
//!
//! **A scan** looks at each key of its range at some moment between its call and its answer, not
//! necessarily at the same one. So it returns every key that was present throughout, none that was
//! absent throughout, and for each key a value that it had meanwhile. A scan that returns as many
//! pairs as its limit allows has looked at the range up to the last key that it returned; one that
//! returns fewer has looked at all of it. It returns each key once, in order, in its range, at
//! most as many as its limit.
//!
//! For the search each look of a scan at a key is a get of that key, with the same call and answer
//! times. It found the value returned, or found the key absent. That is exactly the rule: the get
//! of an absent key has a place if the key was absent at some moment of the scan. The order with
//! that place must explain all other answers as well. Looks at keys that nobody changes are
//! compared with the initial content, without a search.
//!
//! # Cost
//!
//! A key's operations cost about a step each as long as few overlap. The worst case is exponential
//! in the number of changes to one key that overlap, or have no answer. [`Limits`] bounds it; a
//! key whose search ran into a limit is reported in [`Checked::undecided`], and is then neither
//! right nor wrong.

mod ops;
mod report;
mod search;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use report::show_range;
pub use report::{Held, KeyViolation, Row, ScanFault, ScanViolation, Violation};

use crate::history::History;

#[cfg(doc)]
use crate::history::Answer;

/// Bounds of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps for one key. A step looks at one operation as the next in an order, takes some
    /// nanoseconds and up to 40 bytes of memory, which the next key uses again.
    pub key_steps_max: u64,
    /// Steps for the whole history.
    pub steps_max: u64,
}

impl Default for Limits {
    /// About a second for one key, and two minutes for a history.
    fn default() -> Self {
        Limits { key_steps_max: 10_000_000, steps_max: 2_000_000_000 }
    }
}

/// A key for which the search ran into a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// The key.
    pub key: Vec<u8>,
    /// Its operations, looks of scans included.
    pub operations: usize,
    /// Those of them without an answer.
    pub unknown: usize,
    /// The steps taken.
    pub steps: u64,
}

/// Result of a check that found nothing wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "some keys may be undecided"]
pub struct Checked {
    /// Operations, including those without an answer, excluding those that certainly did nothing.
    pub operations: usize,
    /// Operations of these without an answer.
    pub unknown: usize,
    /// Operations of these that are scans.
    pub scans: usize,
    /// Looks of scans at keys with changes.
    pub looks: usize,
    /// Keys with changes.
    pub keys: usize,
    /// Steps taken.
    pub steps: u64,
    /// The keys for which nothing is known, in order.
    pub undecided: Vec<Undecided>,
}

impl Checked {
    /// Returns whether no key is undecided: then the history is one that a table may produce.
    pub fn is_decided(&self) -> bool {
        self.undecided.is_empty()
    }
}

/// Checks `history` against the rules above.
///
/// # Errors
/// The first violation in time. A key's violation shows at the answer that no order of its
/// operations explains.
pub fn check(history: &History, limits: &Limits) -> Result<Checked, Violation> {
    let mut checked = Checked::default();
    let mut found: Option<(u64, Violation)> = None;
    let mut steps_left = limits.steps_max;
    let mut search = search::Search::default();
    let mut others = 0;
    let mut keep = |at_ns: u64, violation: &mut dyn FnMut() -> Violation| {
        if found.is_some() {
            others += 1;
        }
        if found.as_ref().is_none_or(|&(first_ns, _)| at_ns < first_ns) {
            found = Some((at_ns, violation()));
        }
    };
    let table = split::Table::new(history, &mut checked, &mut keep)?;
    table.each_key(&mut checked, &mut |key, part, checked| {
        let mut steps = limits.key_steps_max.min(steps_left);
        let granted = steps;
        let verdict = search.run(&part.ops, part.initial, &mut steps, None);
        let used = granted - steps;
        steps_left -= used;
        checked.steps += used;
        match verdict {
            search::SearchVerdict::Ordered => {}
            search::SearchVerdict::GaveUp => checked.undecided.push(Undecided {
                key: key.to_vec(),
                operations: part.ops.len(),
                unknown: part.ops.iter().filter(|op| !op.is_known()).count(),
                steps: used,
            }),
            search::SearchVerdict::Impossible { blocked } => {
                keep(part.ops[blocked as usize].to_ns, &mut || {
                    Violation::Key(report::explain(history, key, part, blocked, used))
                });
            }
        }
    });
    match found {
        None => Ok(checked),
        Some((_, violation)) => Err(violation.with_others(others)),
    }
}
