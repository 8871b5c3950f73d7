//! Taking a table apart.
//!
//! The order of a table's objects: the meta object, then the levels from the root downwards, each from
//! left to right, a leaf's value records after it. They are retired from the last to the first, so
//! what is left is always a prefix, and a walk that ends after so many objects reads nothing else.
//! The order is the same in every walk, as nobody changes the table any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_pool::{Audit, PoolError, Session};

use super::records::record_bytes;
use super::verify::{Marker, Visitor};
use super::{META_BYTES, Tree};
use crate::IndexError;
use crate::index::TableReport;
use crate::node::RecordRef;

/// Waits of a table's destruction for one object's place, and how long each takes: others' epochs
/// have to move on.
const DESTROY_WAITS_MAX: u32 = 20_000;
const DESTROY_WAIT_NS: u64 = 100_000;

impl Tree {
    /// The first `left` of the table's objects, or all, in order.
    ///
    /// Cost: 1 READ per node, within an operation.
    ///
    /// # Errors
    /// `Corrupt` if there are fewer, or one is linked twice.
    pub(super) async fn collect<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
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
    pub(super) async fn mark_left<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
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

    /// Frees everything, in steps of an operation each: what is retired is reused only after the
    /// operation that retired it, and the pool has room for so many retired objects at a time. For a
    /// table that nobody has found.
    ///
    /// Cost: 1 READ per node, then what retiring costs per object.
    pub(super) async fn destroy<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
    ) -> Result<(), IndexError> {
        let mut objects = self.collect(session, None).await?;
        let mut waits = 0;
        while let Some(&addr) = objects.last() {
            let _pin = session.begin(OpKind::Maintenance).await?;
            match session.announce_retire(addr).await {
                Ok(retiring) => {
                    session.retire(retiring);
                    objects.pop();
                    waits = 0;
                }
                Err(PoolError::RetireFull) if waits < DESTROY_WAITS_MAX => waits += 1,
                Err(error) => return Err(error.into()),
            }
            drop(_pin);
            if waits > 0 {
                session.tick().await?;
                session.endpoint().sleep(DESTROY_WAIT_NS).await;
            }
        }
        Ok(())
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
