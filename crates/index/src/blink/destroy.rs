//! Taking a table apart.
//!
//! The order of a table's objects: the meta object, then the levels from the root downwards, each from
//! left to right, a leaf's value records after it. They are retired from the last to the first, so
//! what is left is always a prefix, and a walk that ends after so many objects reads nothing else.
//! The order is the same in every walk, as nobody changes the table any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_pool::{Audit, Session};

use super::records::record_bytes;
use super::verify::{Marker, Visitor};
use super::{META_BYTES, Tree};
use crate::IndexError;
use crate::bnode::RecordRef;
use crate::index::TableReport;

impl Tree {
    /// The first `left` of the table's objects, or all, in order.
    ///
    /// Cost: 1 READ per node, within an operation.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer, or one is linked twice.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        session: &Session,
        left: Option<u64>,
    ) -> Result<Vec<GlobalAddr>, IndexError> {
        let most = left.unwrap_or(u64::MAX);
        let mut collector = Collector { objects: Vec::new(), most };
        if most > 0 {
            let _pin = session.begin(OpKind::Other).await?;
            collector.add(self.meta);
            self.walk(session, &mut TableReport::default(), &mut collector).await?;
        }
        let objects = collector.objects;
        if left.is_some_and(|left| left != objects.len() as u64) {
            let found = objects.len();
            return Err(IndexError::Corrupt(format!("{found} of {most} objects are left")));
        }
        let different: BTreeSet<GlobalAddr> = objects.iter().copied().collect();
        if different.len() != objects.len() {
            return Err(IndexError::Corrupt("an object is linked twice".into()));
        }
        Ok(objects)
    }

    /// Marks the first `left` of the table's objects. What was found wrong.
    ///
    /// Cost: 1 READ per node.
    pub(crate) async fn mark_left(
        self: &Arc<Self>,
        session: &Session,
        audit: &mut Audit,
        left: u64,
    ) -> Result<Vec<String>, IndexError> {
        let (marker, mut report) = (Marker { audit, problems: Vec::new() }, TableReport::default());
        let mut limited = Limited { marker, left };
        if left > 0 {
            limited.left -= 1;
            limited.marker.mark(self.meta, META_BYTES, "the meta object");
            self.walk(session, &mut report, &mut limited).await?;
        }
        if limited.left > 0 {
            report.problems.push(format!("{} of {left} objects are not there", limited.left));
        }
        report.problems.append(&mut limited.marker.problems);
        Ok(report.problems)
    }
}

struct Collector {
    objects: Vec<GlobalAddr>,
    most: u64,
}

impl Collector {
    fn add(&mut self, addr: GlobalAddr) {
        if !self.is_done() {
            self.objects.push(addr);
        }
    }
}

impl Visitor for Collector {
    fn is_done(&self) -> bool {
        self.objects.len() as u64 >= self.most
    }

    fn node(&mut self, addr: GlobalAddr, _bytes: usize) {
        self.add(addr);
    }

    fn record(&mut self, record: RecordRef) {
        if let Some(addr) = GlobalAddr::from_word(record.addr) {
            self.add(addr);
        }
    }
}

struct Limited<'a> {
    marker: Marker<'a>,
    left: u64,
}

impl Limited<'_> {
    fn mark(&mut self, addr: GlobalAddr, bytes: usize, what: &str) {
        if self.left > 0 {
            self.left -= 1;
            self.marker.mark(addr, bytes, what);
        }
    }
}

impl Visitor for Limited<'_> {
    fn is_done(&self) -> bool {
        self.left == 0
    }

    fn node(&mut self, addr: GlobalAddr, bytes: usize) {
        self.mark(addr, bytes, "the node");
    }

    fn record(&mut self, record: RecordRef) {
        if let Some(addr) = GlobalAddr::from_word(record.addr) {
            self.mark(addr, record_bytes(record.len as usize), "the value record");
        }
    }
}
