//! Walks: visiting every object of a table, for recovery, dropping, audits and verification.
//!
//! An engine visits the objects of a table that nobody changes in an order that stays the same, and every
//! prefix of that order can be walked again. A drop retires objects from the last to the first, so what is
//! left of a table is always such a prefix.

use std::collections::BTreeSet;

use farleaf_fabric::GlobalAddr;
use farleaf_pool::Audit;

use crate::IndexError;

/// Problems that a report holds in full.
const PROBLEMS_MAX: usize = 100;
/// Problems of objects after which a walk ends. If damage has led a pointer back to where the walk comes from, it meets
/// the same objects again and again.
const WALK_PROBLEMS_MAX: usize = 10_000;

/// The findings of an engine's walk over its remote structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    /// Keys present.
    pub keys: u64,
    /// Bytes of keys and values.
    pub data_bytes: u64,
    /// Bytes of nodes.
    pub node_bytes: u64,
    /// Bytes of inner nodes, of those, where an engine tells them apart.
    pub inner_bytes: u64,
    /// Bytes of inner nodes that are reserved for slots to come, of those.
    pub reserved_bytes: u64,
    /// Pairs that inserts have moved within leaves, as leaves that count this say. It grows until a leaf is freed.
    pub hops: u64,
    /// Bytes of records outside of nodes.
    pub record_bytes: u64,
    /// Nodes per level, leaves first.
    pub nodes_per_level: Vec<u64>,
    /// Nodes that no parent knows yet: splits that nobody has finished. They are legal, and finished
    /// by whoever meets them.
    pub unfinished_splits: u64,
    /// Violated invariants, each with its name, place and what was found. Empty if all is well.
    pub problems: Vec<String>,
}

/// Receives the objects of a walk.
pub trait Visitor {
    /// Tells whether the walk may end: it then looks at no further object.
    fn is_done(&self) -> bool {
        false
    }

    /// Returns whether the visitor needs the content of objects that lead to no others: keys, values, checksums.
    fn wants_content(&self) -> bool {
        true
    }

    /// Takes one object: its kind (`"node"`), address and bytes.
    fn object(&mut self, kind: &'static str, addr: GlobalAddr, bytes: usize);
}

/// Marks objects as live in an audit, the first `left` of them if that is given.
pub struct Marker<'a> {
    audit: &'a mut Audit,
    left: Option<u64>,
    problems: Vec<String>,
}

impl<'a> Marker<'a> {
    /// Marks the first `left` objects in `audit`, or all.
    pub fn new(audit: &'a mut Audit, left: Option<u64>) -> Self {
        Marker { audit, left, problems: Vec::new() }
    }

    /// Completes the report of a walk with what was wrong with the objects.
    ///
    /// # Errors
    /// That of the walk; one that found damage names what the walk found before it.
    pub fn finish(
        self,
        walked: Result<(), IndexError>,
        mut report: TableReport,
    ) -> Result<TableReport, IndexError> {
        report.problems.extend(self.problems);
        if let Err(IndexError::Corrupt(why)) = &walked
            && !report.problems.is_empty()
        {
            report.problems.truncate(PROBLEMS_MAX);
            let found = report.problems.join("; ");
            return Err(IndexError::Corrupt(format!("{why}; found before: {found}")));
        }
        walked?;
        if let Some(left) = self.left.filter(|left| *left > 0) {
            report.problems.push(format!("{left} objects that should be left are not there"));
        }
        if report.problems.len() > PROBLEMS_MAX {
            let more = report.problems.len() - PROBLEMS_MAX;
            report.problems.truncate(PROBLEMS_MAX);
            report.problems.push(format!("and {more} more"));
        }
        Ok(report)
    }
}

impl Visitor for Marker<'_> {
    fn is_done(&self) -> bool {
        self.left == Some(0) || self.problems.len() >= WALK_PROBLEMS_MAX
    }

    fn object(&mut self, kind: &'static str, addr: GlobalAddr, bytes: usize) {
        match &mut self.left {
            Some(0) => return,
            Some(left) => *left -= 1,
            None => {}
        }
        if let Err(problem) = self.audit.mark(addr, bytes) {
            self.problems.push(format!("the {kind} at {addr}: {problem}"));
        }
    }
}

/// Collects the addresses of objects, the first `left` of them if that is given.
pub struct Collector {
    objects: Vec<GlobalAddr>,
    different: BTreeSet<GlobalAddr>,
    left: Option<u64>,
}

impl Collector {
    /// Collects the first `left` objects, or all.
    pub fn new(left: Option<u64>) -> Self {
        Collector { objects: Vec::new(), different: BTreeSet::new(), left }
    }

    /// The objects in the order of the walk.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer than should be left, or one is linked twice.
    pub fn finish(self) -> Result<Vec<GlobalAddr>, IndexError> {
        if self.is_twisted() {
            return Err(IndexError::Corrupt("an object is linked twice".into()));
        }
        let Collector { objects, left, .. } = self;
        if let Some(left) = left.filter(|left| *left != objects.len() as u64) {
            let found = objects.len();
            return Err(IndexError::Corrupt(format!("{found} of {left} objects are left")));
        }
        Ok(objects)
    }

    /// Returns whether an object was met twice. A walk that went on might never end.
    fn is_twisted(&self) -> bool {
        self.different.len() != self.objects.len()
    }
}

impl Visitor for Collector {
    fn is_done(&self) -> bool {
        self.is_twisted() || self.left.is_some_and(|left| self.objects.len() as u64 >= left)
    }

    fn wants_content(&self) -> bool {
        false
    }

    fn object(&mut self, _kind: &'static str, addr: GlobalAddr, _bytes: usize) {
        if !self.is_done() {
            self.objects.push(addr);
            self.different.insert(addr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pointer of a damaged table led back up: the walk of a drop went round for ever.
    #[test]
    fn a_walk_that_goes_in_a_circle_ends() {
        let mut collector = Collector::new(None);
        let circle = (1..=3_u64).cycle().map_while(|at| GlobalAddr::from_word(at * 64));
        let mut steps = 0;
        for addr in circle {
            if collector.is_done() {
                break;
            }
            collector.object("node", addr, 64);
            steps += 1;
        }
        assert_eq!(steps, 4);
        let told = IndexError::Corrupt("an object is linked twice".into());
        assert_eq!(collector.finish(), Err(told));
    }
}
