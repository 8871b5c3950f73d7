//! Taking over what a dead compute server left half done, while others go on: each death of the one
//! meets each pause of the other.

mod common;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use common::{World, create, join, open, start};
use farleaf_fabric::sim::{CrashPlan, CrashWay, Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric};
use farleaf_index::{AnyIndex, Engine, Index, IndexError, TableFormat, recover};
use farleaf_pool::{Audit, Session};

/// Verifies, and so takes over.
const TAKER: usize = 0;
/// Dies over its change.
const DEAD: usize = 1;
/// Knows the root word of the beginning.
const WRITER: usize = 2;
/// Comes for the first time.
const READER: usize = 3;
/// How long anybody waits for an operation that somebody else may hold up.
const PATIENCE_NS: u64 = 2_000_000;

fn tiny() -> TableFormat {
    TableFormat {
        cap_leaf: Some(4),
        cap_inner: Some(4),
        node_bytes: Some(256),
        ..TableFormat::fixed8(Engine::BTree)
    }
}

struct Stage {
    sim: Sim,
    taker: (Session, AnyIndex),
    dead: (Session, AnyIndex),
    writer: (Session, AnyIndex),
}

impl Stage {
    /// An empty table that the writer has looked into, then filled by `fill`.
    fn set(config: SimConfig, fill: impl AsyncFnOnce(&Session, &AnyIndex)) -> Stage {
        // There are no leases: whoever is stopped is not taken for dead.
        let config = SimConfig { compute_servers: 4, ..config };
        let sim = Sim::new(config).expect("sim");
        let [taker, dead, writer] =
            [TAKER, DEAD, WRITER].map(|at| sim.fabric(at).any_endpoint().expect("endpoint"));
        let (taker, dead, writer) = sim
            .block_on(async {
                let session = start(taker, &World::default().pool_options()).await;
                let index = create(&session, "t", &tiny()).await;
                let taker = (session, index);
                let session = join(dead).await;
                let index = open(&session, "t").await;
                let dead = (session, index);
                let session = join(writer).await;
                let index = open(&session, "t").await;
                assert_eq!(index.get(&session, &key(1), &mut Vec::new()).await, Ok(false));
                let writer = (session, index);
                fill(&dead.0, &dead.1).await;
                (taker, dead, writer)
            })
            .expect("the stage is set");
        Stage { sim, taker, dead, writer }
    }

    /// Lets `act` die after operation `k`; whether it came so far.
    fn die<F: Future<Output = ()> + 'static>(
        &self,
        k: u64,
        act: impl FnOnce(Session, AnyIndex) -> F,
    ) -> bool {
        let fabric = self.sim.fabric(DEAD);
        fabric.plan(CrashPlan { op: k, way: CrashWay::After });
        let (session, index) = self.dead.clone();
        let ended = Rc::new(RefCell::new(false));
        let (over, acting) = (Rc::clone(&ended), act(session, index));
        self.sim.spawn(DEAD, async move {
            acting.await;
            *over.borrow_mut() = true;
        });
        while !(fabric.has_fired() && !fabric.has_in_flight() || *ended.borrow()) {
            self.sim.run_until(self.sim.now_ns() + 5_000).expect("runs");
        }
        fabric.has_fired()
    }

    /// Lets the taker walk the table until it is stopped after operation `j`; whether it came so far.
    fn walk_until(&self, j: u64) -> bool {
        let fabric = self.sim.fabric(TAKER);
        let (session, index) = self.taker.clone();
        let audit = self.sim.block_on(async { Audit::new(&session).await.expect("audit") });
        let mut audit = audit.expect("looked");
        fabric.plan(CrashPlan { op: j, way: CrashWay::PauseAfter });
        let ended = Rc::new(RefCell::new(false));
        let over = Rc::clone(&ended);
        self.sim.spawn(TAKER, async move {
            let report = index.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
            *over.borrow_mut() = true;
        });
        while !(fabric.has_fired() && !fabric.has_in_flight() || *ended.borrow()) {
            self.sim.run_until(self.sim.now_ns() + 5_000).expect("runs");
        }
        !*ended.borrow()
    }

    /// Everybody goes on: the dead one is recovered, and the table is whole.
    fn end(self, keys: Option<u64>) {
        self.sim.fabric(TAKER).resume();
        self.sim.run().expect("it ends");
        let Stage { sim, taker: (taker, index), writer: (writer, _), dead } = self;
        std::mem::forget(dead);
        let is_over = Rc::new(RefCell::new(false));
        let over = Rc::clone(&is_over);
        // Recovery frees nothing beside one who never ticks.
        sim.spawn(WRITER, async move {
            while !*over.borrow() {
                writer.tick().await.expect("tick");
                writer.endpoint().sleep(5_000).await;
            }
        });
        sim.block_on(async move {
            while let Some(done) = recover(&taker).await.expect("recover") {
                assert_eq!((done.problems, done.complete), (Vec::new(), true));
            }
            *is_over.borrow_mut() = true;
            let (reports, _) = common::audit(&taker, &[&index]).await;
            assert_eq!(reports[0].problems, Vec::<String>::new());
            if let Some(keys) = keys {
                assert_eq!(reports[0].keys, keys);
            }
        })
        .expect("it ends");
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn value(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// What an operation gives, unless somebody else holds it up.
async fn patiently<T>(
    endpoint: &AnyEndpoint,
    operation: impl Future<Output = Result<T, IndexError>>,
) -> Option<T> {
    let mut operation = pin!(operation);
    let mut patience = pin!(endpoint.sleep(PATIENCE_NS));
    poll_fn(|context| match operation.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result.expect("done"))),
        Poll::Pending => patience.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Whoever took over a dead merge wrote the left node again and let go of it before the right one was
/// dead. A writer whose way to the left node is older than the separator of the right one changed a key
/// there, and was told so; a reader that came by the parent found the right node's old content.
#[test]
fn a_merge_that_is_finished_for_the_dead_lets_go_of_left_last() {
    let (mut dead, mut stopped, mut written) = (0, 0, 0);
    for k in 0.. {
        let mut has_died = false;
        for j in 0.. {
            let stage = Stage::set(World::default().sim_config(), async |session, index| {
                for number in 1..=9 {
                    index.insert(session, &key(number), &value(0)).await.expect("insert");
                }
                // Of the first two leaves, {1, 2} and {3, 4}, two keys are left.
                for number in [2, 3] {
                    index.remove(session, &key(number)).await.expect("remove");
                }
            });
            has_died = stage.die(k, |session, index| async move {
                index.remove(&session, &key(1)).await.expect("removed");
            });
            let is_stopped = has_died && stage.walk_until(j);
            let (writer, index) = stage.writer.clone();
            let reader = stage.sim.fabric(READER).any_endpoint().expect("endpoint");
            let seen = stage
                .sim
                .block_on(async move {
                    let (at, new) = (key(4), value(7));
                    patiently(writer.endpoint(), index.upsert(&writer, &at, &new)).await?;
                    let reader = join(reader).await;
                    let index = open(&reader, "t").await;
                    let mut held = Vec::new();
                    assert_eq!(index.get(&reader, &key(4), &mut held).await, Ok(true));
                    reader.leave().await.expect("leave");
                    Some(held)
                })
                .expect("looked");
            if let Some(held) = seen {
                assert_eq!(held, value(7), "death after {k}, pause after {j}: an older value");
                written += u64::from(is_stopped);
            }
            stage.end(None);
            if !is_stopped {
                break;
            }
            stopped += 1;
        }
        if !has_died {
            break;
        }
        dead += 1;
    }
    assert!(dead > 10 && stopped > 100 && written > 10, "{dead} {stopped} {written}");
}
