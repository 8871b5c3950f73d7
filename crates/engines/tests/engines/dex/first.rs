//! First operation tests: the future of a table's first operation in `dex` is dropped at any moment.
//!
//! Its compute server goes on with other work, and then dies.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::dex::{DexOptions, DexTable};
use farleaf_fabric::{AnyEndpoint, Endpoint, ToAny};
use farleaf_index::Index;
use farleaf_index::compute::OwnedTable;
use farleaf_pool::{Audit, Session};

use super::log::{Model, content, key, logged, sim_config, tiny, world};
use super::tables::{create, open};
use crate::common::{Pairs, join, settle};

/// How the first operations are put.
#[derive(Clone, Copy, Debug)]
enum First {
    /// A bulk load.
    Load,
    /// A bulk load, and a get of another session at the same time, which is waited for.
    LoadAndGet,
    /// A get.
    Get,
    /// Cutting the table into one partition, for which nothing is asked of the tree.
    Cut,
}

/// Waits for `operation` for `ns`, then drops it.
async fn within<T>(
    endpoint: &AnyEndpoint,
    ns: u64,
    operation: impl Future<Output = T>,
) -> Option<T> {
    let (mut operation, mut over) = (pin!(operation), pin!(endpoint.sleep(ns)));
    std::future::poll_fn(|context| match operation.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

fn loaded() -> Model {
    (0..40).map(|number| (key(number), key(2))).collect()
}

/// Whether the operation ended before it was to be dropped.
async fn begin(index: &DexTable, session: &Session, first: First, ns: u64) -> bool {
    let endpoint = session.endpoint();
    let pairs: Vec<_> = loaded().into_iter().collect();
    match first {
        First::Load | First::LoadAndGet => {
            let mut pairs = Pairs(pairs.iter());
            let done = within(endpoint, ns, index.bulk_load(session, &mut pairs)).await;
            assert!(matches!(done, None | Some(Ok(40))), "{done:?}");
            done.is_some()
        }
        First::Get => {
            let mut value = Vec::new();
            let done = within(endpoint, ns, index.get(session, &key(1), &mut value)).await;
            assert!(matches!(done, None | Some(Ok(false))), "{done:?}");
            done.is_some()
        }
        First::Cut => {
            let done = within(endpoint, ns, index.partition(session, &[])).await;
            assert!(matches!(done, None | Some(Ok(()))), "{done:?}");
            done.is_some()
        }
    }
}

/// Compute server 1 drops the first operation on a table after `ns`, uses another table, and dies. Gives
/// whether the operation ended before.
fn dropped(first: First, ns: u64) -> bool {
    let (sim, session, made) = world(sim_config(ns, 2), &tiny());
    let options = DexOptions { log_bytes: 100 << 10, ..logged() };
    let other = sim.block_on(async { create(&session, &tiny()).await }).expect("a second table");
    let fabric = sim.fabric(1);
    let endpoint = fabric.any_endpoint().expect("endpoint");
    let ended = Rc::new(Cell::new(false));
    {
        let ended = Rc::clone(&ended);
        sim.spawn(1, async move {
            let session = join(endpoint.clone()).await;
            let index = open(&session, made, 64, options).await;
            let busy = Rc::new(Cell::new(matches!(first, First::LoadAndGet)));
            if busy.get() {
                let (index, pool) = (index.clone(), session.pool().clone());
                let (endpoint, busy) = (endpoint.clone(), Rc::clone(&busy));
                endpoint.clone().spawn(async move {
                    let session = pool.session(endpoint).await.expect("session");
                    let mut value = Vec::new();
                    let got = index.get(&session, &key(1), &mut value).await;
                    assert!(got.is_ok(), "{got:?}");
                    busy.set(false);
                    std::mem::forget(session);
                });
            }
            ended.set(begin(&index, &session, first, ns).await);
            while busy.get() {
                endpoint.sleep(1_000).await;
            }
            // What was freed is used again.
            let second = open(&session, other, 64, options).await;
            for number in 0..40 {
                second.upsert(&session, &key(number), &key(9)).await.expect("upsert");
            }
            accounts(&session, [&index, &second]).await;
            std::mem::forget(session);
        });
    }
    sim.run().expect("runs");
    fabric.kill();
    sim.block_on(async {
        let index = open(&session, made, 64, options).await;
        let found = content(&session, &index).await;
        assert!(found.is_empty() || found == loaded(), "{found:?}");
        let loads = matches!(first, First::Load | First::LoadAndGet);
        assert!(!(ended.get() && loads) || found == loaded());
        let second = open(&session, other, 64, options).await;
        let all: Model = (0..40).map(|number| (key(number), key(9))).collect();
        assert_eq!(content(&session, &second).await, all);
        let recovery = session.recover_begin().await.expect("begin").expect("a dead member");
        let mut audit = recovery.audit();
        in_order(&session, &mut audit, [&index, &second]).await;
        session.recover_finish(recovery, &audit).await.expect("finish");
        settle(&session).await;
        let mut audit = Audit::new(&session).await.expect("audit");
        in_order(&session, &mut audit, [&index, &second]).await;
        let report = audit.report(&session).await.expect("report");
        assert_eq!(report.problems, Vec::<String>::new());
    })
    .expect("checked");
    ended.get()
}

async fn in_order(session: &Session, audit: &mut Audit, tables: [&DexTable; 2]) {
    for table in tables {
        let report = table.verify(session, audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

/// Nothing of this compute server's is in use and free, and nothing is lost.
async fn accounts(session: &Session, tables: [&DexTable; 2]) {
    settle(session).await;
    let mut audit = Audit::new(session).await.expect("audit");
    in_order(session, &mut audit, tables).await;
    let report = audit.report(session).await.expect("report");
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.classes.iter().all(|class| class.leaked == 0), "{report:#?}");
}

/// A log that may be named, and a tree that may be the table's, are not given back.
#[test]
fn the_first_operation_can_be_dropped_at_any_moment() {
    for first in [First::Load, First::LoadAndGet, First::Get, First::Cut] {
        let mut moments = 0;
        while !dropped(first, 300 * moments) {
            moments += 1;
        }
        println!("{first:?}: {moments} moments");
        assert!(moments > 10, "{first:?}: {moments} moments");
    }
}
