//! Walking the whole remote structure.

use std::collections::BTreeMap;
use std::sync::Arc;

use farleaf_fabric::{Buf, Endpoint, GlobalAddr, OpKind};
use farleaf_pool::{Audit, LockToken, PoolError, Session};

use super::read::{Restarts, Seek};
use super::records::record_bytes;
use super::{Fail, META_BYTES, META_ROOT_LOCK, Tree, grow};
use crate::IndexError;
use crate::index::TableReport;
use crate::node::{Kind, Node, RecordRef, Stored, verify_image};

/// Waits of a table's destruction for one object's place, and how long each takes: others' epochs
/// have to move on.
const DESTROY_WAITS_MAX: u32 = 20_000;
const DESTROY_WAIT_NS: u64 = 100_000;
/// Problems that are told in full.
const PROBLEMS_MAX: usize = 100;

/// What a walk does with what it comes by.
trait Visitor {
    /// A node, once each.
    fn node(&mut self, addr: GlobalAddr, bytes: usize);
    /// A record, once for each reference.
    fn record(&mut self, record: RecordRef);
}

impl Tree {
    /// Checks every node and marks everything reachable in `audit`.
    ///
    /// Cost: 1 READ per node.
    pub(super) async fn verify<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        audit: &mut Audit,
    ) -> Result<TableReport, IndexError> {
        let mut report = TableReport::default();
        let mut marker = Marker { audit, problems: Vec::new() };
        marker.mark(self.meta, META_BYTES, "the meta object");
        self.walk(session, &mut report, &mut marker).await?;
        report.problems.append(&mut marker.problems);
        if report.problems.len() > PROBLEMS_MAX {
            let more = report.problems.len() - PROBLEMS_MAX;
            report.problems.truncate(PROBLEMS_MAX);
            report.problems.push(format!("and {more} more"));
        }
        Ok(report)
    }

    /// Frees everything, in steps of an operation each: what is retired is reused only after the
    /// operation that retired it, and the pool has room for so many retired objects at a time.
    ///
    /// Cost: 1 READ per node, then what retiring costs per object.
    pub(super) async fn destroy<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
    ) -> Result<(), IndexError> {
        let mut collector = Collector::default();
        {
            let _pin = session.begin(OpKind::Other).await?;
            self.walk(session, &mut TableReport::default(), &mut collector).await?;
        }
        collector.objects.push(self.meta);
        let mut waits = 0;
        while let Some(&addr) = collector.objects.last() {
            let _pin = session.begin(OpKind::Maintenance).await?;
            match session.announce_retire(addr).await {
                Ok(retiring) => {
                    session.retire(retiring);
                    collector.objects.pop();
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

    async fn walk<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        report: &mut TableReport,
        visitor: &mut impl Visitor,
    ) -> Result<(), IndexError> {
        self.check_meta(session, report).await?;
        let (_, top) = self.refresh_root(session).await?;
        report.nodes_per_level = vec![0; usize::from(top) + 1];
        // Low fences of the nodes that the level above points to, by address.
        let mut expected: BTreeMap<u64, Option<Vec<u8>>> = BTreeMap::new();
        for level in (0..=top).rev() {
            expected = self.walk_level(session, level, expected, report, visitor).await?;
        }
        Ok(())
    }

    /// Walks one level from left to right; gives what it says of the level below.
    async fn walk_level<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        level: u8,
        mut expected: BTreeMap<u64, Option<Vec<u8>>>,
        report: &mut TableReport,
        visitor: &mut impl Visitor,
    ) -> Result<BTreeMap<u64, Option<Vec<u8>>>, IndexError> {
        let mut below = BTreeMap::new();
        let mut fence: Option<Vec<u8>> = None;
        let mut unpointed = 0;
        loop {
            let seek = fence.as_deref().map_or(Seek::First, Seek::After);
            let (addr, image) = self.find(session, seek, level).await?;
            let node = Node::new(&self.layout, image.words());
            report.nodes_per_level[usize::from(level)] += 1;
            report.node_bytes += self.layout.node_bytes() as u64;
            visitor.node(addr, self.layout.node_bytes());
            self.check_node(session, addr, &image, report).await?;
            let mut low = Vec::new();
            let low = node.low_fence(&mut low).then_some(low);
            if low != fence {
                report.problems.push(format!(
                    "INV-BT-1: node {addr} (level {level}) does not start where its left neighbour ends"
                ));
            }
            match expected.remove(&addr.word()) {
                Some(said) if said != low => report.problems.push(format!(
                    "INV-BT-4: the parent of node {addr} (level {level}) has another low fence for it"
                )),
                Some(_) => {}
                None => unpointed += 1,
            }
            if level > 0 {
                self.children(&node, low, &mut below);
            } else {
                self.leaf(&node, addr, report, visitor);
            }
            let mut high = Vec::new();
            if !node.high_fence(&mut high) {
                if node.right() != 0 {
                    report.problems.push(format!(
                        "INV-BT-1: node {addr} (level {level}) is the last and has a right sibling"
                    ));
                }
                break;
            }
            fence = Some(high);
        }
        for (addr, _) in expected {
            report.problems.push(format!(
                "INV-BT-4: a parent points to {addr:#x}, which is no node of level {level}"
            ));
        }
        // The root has no parent; others without one are splits that nobody has finished yet.
        if usize::from(level) + 1 < report.nodes_per_level.len() {
            report.unfinished_splits += unpointed;
        }
        Ok(below)
    }

    async fn find<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        seek: Seek<'_>,
        level: u8,
    ) -> Result<(GlobalAddr, Buf), IndexError> {
        let mut restarts = Restarts::default();
        loop {
            match self.node_at(session, seek, level).await {
                Ok(found) => return Ok(found),
                Err(Fail::Restart) => restarts.again(self, session).await?,
                Err(Fail::Error(error)) => return Err(error),
            }
        }
    }

    /// Checks the node's own content, and that nobody dead holds its lock.
    async fn check_node<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        addr: GlobalAddr,
        image: &Buf,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        if let Err(error) = verify_image(&self.layout, image.words(), addr.word()) {
            report.problems.push(format!("node {addr}: {error}"));
        }
        let lock = image.words()[0];
        if lock == 0 {
            return Ok(());
        }
        if LockToken::from_word(lock).is_none() {
            report.problems.push(format!(
                "INV-BT-5: the lock word of node {addr} is {lock:#018x}, which names nobody"
            ));
        } else if session.owner_is_dead(lock).await? {
            self.recover(session, addr, lock).await?;
        }
        Ok(())
    }

    async fn check_meta<E: Endpoint>(
        self: &Arc<Self>,
        session: &Session<E>,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let client = session.client();
        let meta = client.read(self.meta, client.buf(META_BYTES)).await?;
        let (magic, lock) = (meta.words()[0], meta.words()[META_ROOT_LOCK as usize / 8]);
        if magic != grow::MAGIC {
            report.problems.push(format!(
                "the meta object at {} begins with {magic:#018x}, which is not its tag",
                self.meta
            ));
        }
        if LockToken::from_word(lock).is_some() {
            if session.owner_is_dead(lock).await? {
                client.cas(self.meta.plus(META_ROOT_LOCK), lock, 0).await?;
            }
        } else if lock != 0 {
            report.problems.push(format!(
                "INV-BT-5: the root's lock word is {lock:#018x}, which names nobody"
            ));
        }
        Ok(())
    }

    /// The children of an inner node with the low fences that it gives them.
    fn children(
        &self,
        node: &Node<'_, u64>,
        low: Option<Vec<u8>>,
        below: &mut BTreeMap<u64, Option<Vec<u8>>>,
    ) {
        let mut bound = low;
        for index in 0..=node.count() {
            below.insert(node.child(index).unwrap_or(0), bound.take());
            let mut separator = Vec::new();
            node.separator(index, &mut separator);
            bound = Some(separator);
        }
    }

    fn leaf(
        &self,
        node: &Node<'_, u64>,
        addr: GlobalAddr,
        report: &mut TableReport,
        visitor: &mut impl Visitor,
    ) {
        debug_assert_eq!(node.kind(), Kind::Leaf);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for index in 0..node.count() {
            node.key(index, &mut key);
            report.keys += 1;
            report.data_bytes += key.len() as u64;
            match node.value(index, &mut value) {
                Some(Stored::Inline) => report.data_bytes += value.len() as u64,
                Some(Stored::Record(record)) => {
                    report.data_bytes += record.len;
                    report.record_bytes += record_bytes(record.len as usize) as u64;
                    match self.record_place(record) {
                        Ok(_) => visitor.record(record),
                        Err(error) => report.problems.push(format!("leaf {addr}: {error}")),
                    }
                }
                None => {}
            }
        }
    }
}

struct Marker<'a> {
    audit: &'a mut Audit,
    problems: Vec<String>,
}

impl Marker<'_> {
    fn mark(&mut self, addr: GlobalAddr, bytes: usize, what: &str) {
        if let Err(problem) = self.audit.mark(addr, bytes) {
            self.problems.push(format!("{what} at {addr}: {problem}"));
        }
    }
}

impl Visitor for Marker<'_> {
    fn node(&mut self, addr: GlobalAddr, bytes: usize) {
        self.mark(addr, bytes, "the node");
    }

    fn record(&mut self, record: RecordRef) {
        if let Some(addr) = GlobalAddr::from_word(record.addr) {
            self.mark(addr, record_bytes(record.len as usize), "the value record");
        }
    }
}

#[derive(Default)]
struct Collector {
    objects: Vec<GlobalAddr>,
}

impl Visitor for Collector {
    fn node(&mut self, addr: GlobalAddr, _bytes: usize) {
        self.objects.push(addr);
    }

    fn record(&mut self, record: RecordRef) {
        self.objects.extend(GlobalAddr::from_word(record.addr));
    }
}
