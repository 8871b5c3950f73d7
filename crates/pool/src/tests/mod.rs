//! Pool tests: the pool as a whole, on mapped memory.
#![allow(clippy::unwrap_used)]

mod allocation;
mod churn;
mod costs;
mod damage;
mod epochs;
mod formatting;
mod inbox;
mod left;
mod members;
mod model;
mod openers;
mod pins;
mod placement;
mod regions;
mod reuse;
mod roots;
mod runs;
mod simulated;
mod succession;
mod tasks;
mod unknown;
mod waits;
mod wraps;

use std::path::PathBuf;
use std::sync::Arc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, ToAny};

use crate::geometry::BlockId;
use crate::pages::Run;
use crate::{Audit, AuditReport, Pool, PoolOptions, Session, format};

pub(super) type Mine = Session;

/// Small blocks and tables.
pub(super) const SMALL: PoolOptions = PoolOptions {
    block_bytes: 64 << 10,
    clients_max: 8,
    members_max: 4,
    tables_max: 4,
    redo_bytes: 4096,
};

/// Memory servers in this process, formatted.
pub(super) fn formatted(servers: usize, region_bytes: u64, options: PoolOptions) -> Mapped {
    let fabric = Mapped::anonymous(servers, region_bytes).unwrap();
    let end = fabric.any_endpoint().unwrap();
    let client = Client::new(end.clone());
    end.executor().block_on(format(&client, &options)).unwrap();
    fabric
}

pub(super) async fn join(end: &AnyEndpoint) -> Arc<Pool> {
    Pool::join(&Client::new(end.clone())).await.unwrap()
}

/// A new member's only session.
pub(super) async fn member(end: &AnyEndpoint) -> Mine {
    join(end).await.session(end.clone()).await.unwrap()
}

/// The audit's report if the live objects are just these.
pub(super) async fn audit_of(session: &Mine, live: &[(GlobalAddr, usize)]) -> AuditReport {
    let mut audit = Audit::new(session).await.unwrap();
    for (addr, bytes) in live {
        audit.mark(*addr, *bytes).unwrap();
    }
    audit.report(session).await.unwrap()
}

/// Objects of so many bytes that a block holds if all of it is of their class, in runs as small as may be.
pub(super) fn objects_of_block(session: &Mine, bytes: usize) -> u64 {
    let shape = session.pool().geometry().shape();
    let class = crate::class::class_of(bytes).unwrap();
    let pages = shape.run_pages(class);
    let run = shape.run(class, shape.front_pages, pages);
    u64::from(shape.usable_pages() / pages) * u64::from(run.count)
}

/// The run of the object at `addr` in an own block, its block, and its number in the run.
pub(super) fn run_of(session: &Mine, addr: GlobalAddr) -> (BlockId, Run, u32) {
    let geometry = session.pool().geometry();
    let (block, offset) = geometry.block_of(addr).unwrap();
    let page = geometry.shape().page_of(offset);
    let run = session.pool().alloc().block(block).unwrap().run_at(page).unwrap().run;
    (block, run, run.object_at(offset).unwrap())
}

/// READs one word.
pub(super) async fn word(session: &Mine, at: GlobalAddr) -> u64 {
    session.client().read(at, session.client().buf(8)).await.unwrap().words()[0]
}

/// WRITEs one word.
pub(super) async fn set_word(session: &Mine, at: GlobalAddr, value: u64) {
    let mut buf = session.client().buf(8);
    buf.words_mut()[0] = value;
    session.client().write(at, buf).await.unwrap();
}

pub(super) async fn tick(session: &Mine, times: usize) {
    for _ in 0..times {
        session.tick().await.unwrap();
    }
}

/// A pool folder that is removed at the end.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farleaf-pool-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }

    /// Makes a formatted pool in it.
    pub(super) fn format(&self, servers: usize, region_bytes: u64) -> Mapped {
        let (fabric, guard) = Mapped::create(&self.0, servers, region_bytes).unwrap();
        let end = fabric.any_endpoint().unwrap();
        end.executor().block_on(format(&Client::new(end.clone()), &SMALL)).unwrap();
        guard.finish().unwrap();
        fabric
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Ends a mapped member without a word, as a killed process does.
pub(super) fn kill(fabric: Mapped, end: AnyEndpoint, session: Mine) {
    drop((session, end, fabric));
}

pub(super) fn endpoint(fabric: &Mapped) -> AnyEndpoint {
    let end = fabric.any_endpoint().unwrap();
    end.seed(1);
    assert!(end.server_count() > 0);
    end
}
