//! Takeover tests: clients take over the unfinished work of a dead compute server while others go on.
//!
//! Each death of the one meets each pause of the other.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use farleaf_engines::{AnyIndex, Engine, TableFormat, recover};
use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Sim, SimConfig, Verb};
use farleaf_fabric::{AnyEndpoint, Endpoint, OpKind, ServerId, ToAny};
use farleaf_index::{Index, IndexError, ValueFormat};
use farleaf_pool::{Audit, Session};

use crate::common::{World, create, join, lab_table, open, start, with_shape};

/// Verifies, and so takes over.
const TAKER: usize = 0;
/// Dies over its change.
const DEAD: usize = 1;
/// Knows the root word of the beginning.
const WRITER: usize = 2;
/// Comes for the first time.
const READER: usize = 3;
/// Virtual time that a client waits for an operation that a stopped compute server may hold up.
const PATIENCE_NS: u64 = 2_000_000;
/// The same beside a dead one, whose locks are taken over after 10 ms.
const LONG_PATIENCE_NS: u64 = 60_000_000;

/// Walks beside somebody who takes over, each at another time and with other torn READs.
const WALKS: u64 = 1_024;

fn tiny() -> TableFormat {
    with_shape(lab_table(Engine::BTree, "u64-tiny"), &[("cap_inner", "4")])
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
        self.end_after(CrashPlan { op: k, way: CrashWay::After }, act)
    }

    /// Lets `act` end as planned; whether it came so far.
    fn end_after<F: Future<Output = ()> + 'static>(
        &self,
        plan: CrashPlan,
        act: impl FnOnce(Session, AnyIndex) -> F,
    ) -> bool {
        let fabric = self.sim.fabric(DEAD);
        fabric.plan(plan);
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

    /// A compute server that comes now.
    fn newcomer(&self) -> (Session, AnyIndex) {
        let endpoint = self.sim.fabric(READER).any_endpoint().expect("endpoint");
        let joined = async {
            let session = join(endpoint).await;
            let index = open(&session, "t").await;
            (session, index)
        };
        self.sim.block_on(joined).expect("joined")
    }

    /// Everybody goes on: the dead one is recovered, and the table is whole.
    fn end(self, keys: Option<u64>) {
        self.sim.fabric(TAKER).resume();
        // A pause that did not come in the walk must not come now: it would stop the taker's tasks.
        self.sim.fabric(TAKER).plan(CrashPlan { op: u64::MAX, way: CrashWay::PauseAfter });
        self.sim.fabric(DEAD).resume();
        self.sim.run().expect("it ends");
        self.sim.fabric(DEAD).kill();
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
            let (reports, _) = crate::common::audit(&taker, &[&index]).await;
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

/// The result of an operation, unless somebody else holds it up.
async fn patiently<T>(
    endpoint: &AnyEndpoint,
    ns: u64,
    operation: impl Future<Output = Result<T, IndexError>>,
) -> Option<T> {
    let mut operation = pin!(operation);
    let mut patience = pin!(endpoint.sleep(ns));
    poll_fn(|context| match operation.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result.expect("done"))),
        Poll::Pending => patience.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// The client that took over a dead merge wrote the left node again and let go of it before the right one was
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
                    patiently(writer.endpoint(), PATIENCE_NS, index.upsert(&writer, &at, &new))
                        .await?;
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

/// A merge left no redo record where no WRITE is ever cut short, as over tcp. If its writer died between
/// two nodes, both of the merged ones were alive, with the same keys: a change in one was not seen in the
/// other.
#[test]
fn a_dead_merge_is_finished_where_writes_are_whole() {
    let mut dead = 0;
    for k in 0.. {
        let mut config = World::default().sim_config();
        config.capabilities.crash_atomic_bytes = 1 << 20;
        let stage = Stage::set(config, async |session, index| {
            for number in 1..=9 {
                index.insert(session, &key(number), &value(0)).await.expect("insert");
            }
            for number in [2, 3] {
                index.remove(session, &key(number)).await.expect("remove");
            }
        });
        let has_died = stage.die(k, |session, index| async move {
            index.remove(&session, &key(1)).await.expect("removed");
        });
        let (writer, index) = stage.writer.clone();
        let (reader, other) = stage.newcomer();
        stage
            .sim
            .block_on(async move {
                for (round, number) in [4, 3, 2, 4].into_iter().enumerate() {
                    let new = value(round as u64);
                    index.upsert(&writer, &key(number), &new).await.expect("upsert");
                    let mut held = Vec::new();
                    assert_eq!(other.get(&reader, &key(number), &mut held).await, Ok(true));
                    assert_eq!(held, new, "death after {k}: key {number}");
                }
                reader.leave().await.expect("leave");
            })
            .expect("changed");
        stage.end(None);
        if !has_died {
            break;
        }
        dead += 1;
    }
    assert!(dead > 10, "{dead}");
}

/// A loader died, or was slow, between naming the new root and marking the old one, an empty leaf, as
/// dead. Whoever remembered the old root word saw an empty table while others saw the loaded one; and
/// once somebody had freed the dead loader's lock, a change of the old leaf was acknowledged and lost.
#[test]
fn a_loaded_table_is_never_seen_empty_again() {
    let mut loaded = 0;
    for way in [CrashWay::After, CrashWay::PauseAfter] {
        for k in 0.. {
            let stage = Stage::set(World::default().sim_config(), async |_, _| {});
            let plan = CrashPlan { op: k, way };
            let has_ended = stage.end_after(plan, |session, index| async move {
                let pairs: Vec<_> =
                    (2..=9).map(|number| (key(number).to_vec(), value(0).to_vec())).collect();
                let outcome =
                    index.bulk_load(&session, &mut crate::common::Pairs(pairs.iter())).await;
                // Others may have been first.
                assert!(matches!(outcome, Ok(8) | Err(IndexError::Invalid(_))), "{outcome:?}");
            });
            let (writer, index) = stage.writer.clone();
            let (reader, other) = stage.newcomer();
            let is_dead = way == CrashWay::After;
            let patience_ns = if is_dead { LONG_PATIENCE_NS } else { PATIENCE_NS };
            let seen = stage
                .sim
                .block_on(async move {
                    let mut held = Vec::new();
                    let seen = other.get(&reader, &key(5), &mut held).await.expect("get");
                    if seen {
                        let again = index.get(&writer, &key(5), &mut held).await;
                        assert_eq!(again, Ok(true), "{way:?} {k}: it was there");
                    }
                    let (at, new) = (key(7), value(7));
                    let put = index.upsert(&writer, &at, &new);
                    let put = patiently(writer.endpoint(), patience_ns, put).await;
                    assert!(put.is_some() || !is_dead, "{way:?} {k}: nobody takes over");
                    if put.is_some() {
                        let found = other.get(&reader, &at, &mut held).await;
                        assert_eq!((found, &held[..]), (Ok(true), &new[..]), "{way:?} {k}: lost");
                    }
                    reader.leave().await.expect("leave");
                    seen
                })
                .expect("looked");
            loaded += u64::from(seen);
            stage.end(None);
            if !has_ended {
                break;
            }
        }
    }
    assert!(loaded > 4, "{loaded}");
}

/// A root gave way to its only child, and its writer died before the old root was dead. Whoever remembers
/// that is led right by it, and changes nothing there.
#[test]
fn a_root_that_gave_way_takes_no_changes() {
    let mut dead = 0;
    for k in 0.. {
        let stage = Stage::set(World::default().sim_config(), async |session, index| {
            for number in [10, 20, 30, 40, 15] {
                index.insert(session, &key(number), &value(0)).await.expect("insert");
            }
            // One key is left in each of two leaves.
            for number in [15, 20, 40] {
                index.remove(session, &key(number)).await.expect("remove");
            }
        });
        let (writer, index) = stage.writer.clone();
        let look = async {
            // It remembers the root that is about to go.
            let inserted = index.insert(&writer, &key(31), &value(0)).await;
            assert_eq!(inserted, Ok(true));
            assert_eq!(index.remove(&writer, &key(31)).await, Ok(true));
        };
        stage.sim.block_on(look).expect("looked");
        let has_died = stage.die(k, |session, index| async move {
            for number in [30, 10] {
                index.remove(&session, &key(number)).await.expect("removed");
            }
        });
        let (reader, other) = stage.newcomer();
        stage
            .sim
            .block_on(async move {
                // Both work on the same few leaves; each sees what the other does.
                let both = [(&writer, &index), (&reader, &other)];
                for number in 1..=24 {
                    let (session, index) = both[number as usize % 2];
                    index.upsert(session, &key(number), &value(number)).await.expect("upsert");
                }
                for number in 3..=22 {
                    let (session, index) = both[number as usize / 3 % 2];
                    assert_eq!(index.remove(session, &key(number)).await, Ok(true), "{k}");
                    for (session, index) in both {
                        let gone = index.get(session, &key(number), &mut Vec::new()).await;
                        assert_eq!(gone, Ok(false), "death after {k}");
                    }
                }
                for (session, index) in both {
                    for number in [1, 2, 23, 24] {
                        let mut held = Vec::new();
                        assert_eq!(index.get(session, &key(number), &mut held).await, Ok(true));
                        assert_eq!(held, value(number), "death after {k}");
                    }
                }
                reader.leave().await.expect("leave");
            })
            .expect("changed");
        stage.end(None);
        if !has_died {
            break;
        }
        dead += 1;
    }
    assert!(dead > 10, "{dead}");
}

/// A remembered root word was trusted if a node of the table and the level was there. The memory of a
/// root leaf that had given way to a loaded tree was reused for the right half of a split, whose writer
/// died before it linked it: whoever remembered the root of before read that half for ever.
#[test]
fn a_remembered_root_is_not_a_node_that_was_never_linked() {
    let mut dead = 0;
    for k in 0.. {
        let config = SimConfig { memory_servers: 1, ..World::default().sim_config() };
        let stage = Stage::set(config, async |_, _| {});
        let (taker, index) = stage.taker.clone();
        let (dead_session, dead_index) = stage.dead.clone();
        let (writer, old) = stage.writer.clone();
        let prepare = async {
            let meta = taker.open_root("t").await.expect("root").addr;
            let client = taker.client();
            let word = client.read(meta.plus(64), client.buf(8)).await.expect("read").words()[0];
            let root = farleaf_fabric::GlobalAddr::from_word(word).expect("a leaf");
            let pairs: Vec<_> =
                [10, 12].map(|number| (key(number).to_vec(), value(0).to_vec())).to_vec();
            let outcome = index.bulk_load(&taker, &mut crate::common::Pairs(pairs.iter())).await;
            assert_eq!(outcome, Ok(2));
            // The old root is freed.
            for _ in 0..8 {
                for session in [&taker, &writer, &dead_session] {
                    session.tick().await.expect("tick");
                }
            }
            for number in [14, 16] {
                index.insert(&taker, &key(number), &value(0)).await.expect("insert");
            }
            // It is the next that its size is had from, as all before it are taken.
            let pin = taker.begin(OpKind::Other).await.expect("begin");
            let mut tries = 0;
            while taker.alloc(ServerId(0), 256).await.expect("room") != root {
                tries += 1;
                assert!(tries < 1_000, "the old root is not free");
            }
            taker.free_unpublished(root, 256);
            assert_eq!(taker.alloc(ServerId(0), 256).await, Ok(root));
            taker.free_unpublished(root, 256);
            drop(pin);
            drop(dead_index);
        };
        stage.sim.block_on(prepare).expect("prepared");
        // The one that has the memory dies in the split.
        let fabric = stage.sim.fabric(TAKER);
        fabric.plan(CrashPlan { op: k, way: CrashWay::After });
        let ended = Rc::new(RefCell::new(false));
        let over = Rc::clone(&ended);
        let (splitter, splitting) = stage.taker.clone();
        stage.sim.spawn(TAKER, async move {
            splitting.insert(&splitter, &key(11), &value(0)).await.expect("insert");
            *over.borrow_mut() = true;
        });
        while !(fabric.has_fired() && !fabric.has_in_flight() || *ended.borrow()) {
            stage.sim.run_until(stage.sim.now_ns() + 5_000).expect("runs");
        }
        let (reader, other) = stage.newcomer();
        let look = async {
            // The upper half first: what is below it leads to the root word.
            for number in [16, 14, 12, 10] {
                let new = value(number);
                assert_eq!(other.upsert(&reader, &key(number), &new).await, Ok(false));
                let mut held = Vec::new();
                assert_eq!(old.get(&writer, &key(number), &mut held).await, Ok(true));
                assert_eq!(held, new, "death after {k}: key {number}");
            }
        };
        stage.sim.block_on(look).expect("looked");
        std::mem::forget((stage, taker, index, writer, old, reader, other, dead_session));
        if *ended.borrow() {
            break;
        }
        dead += 1;
    }
    assert!(dead > 10, "{dead}");
}

/// A walk that marks for a recovery meets somebody who takes over, at every moment and with every READ
/// torn. If it took a lock word of after a release and content of before it for one node, what the dead
/// one's redo record links there, a record of a value, would be freed as lost.
#[test]
fn a_walk_sees_what_is_written_again_beside_it() {
    let format = with_shape(tiny().with_values(ValueFormat::Bytes), &[("node_bytes", "512")]);
    // Values of one length: the leaf changes in three words alone.
    let [long, new] = [7, 8].map(|byte| vec![byte; 600]);
    let (mut met, mut redo_op) = (0, None);
    for round in 0..WALKS {
        let mut config = World { seed: round, ..World::default() }.sim_config();
        config.compute_servers = 3;
        config.adversary.torn = 1.0;
        let sim = Sim::new(config).expect("sim");
        let ends = [TAKER, DEAD, WRITER].map(|at| sim.fabric(at).any_endpoint().expect("endpoint"));
        let set = async {
            let [keeper, dead, other] = ends;
            let keeper = start(keeper, &World::default().pool_options()).await;
            let index = create(&keeper, "t", &format).await;
            let (dead, other) = (join(dead).await, join(other).await);
            let (of_dead, of_other) = (open(&dead, "t").await, open(&other, "t").await);
            // It has blocks of its own for records.
            of_dead.upsert(&dead, &key(1), &long).await.expect("upsert");
            for session in [&keeper, &other] {
                session.tick().await.expect("tick");
            }
            (keeper, index, dead, of_dead, other, of_other)
        };
        let (keeper, index, dead, of_dead, other, of_other) = sim.block_on(set).expect("set");
        // It dies once it has written its redo record, which comes after the value and before the leaf.
        let fabric = sim.fabric(DEAD);
        let Some(op) = redo_op else {
            fabric.record_ops();
            let (value, own) = (new.clone(), fabric.clone());
            let ops = sim.block_on(async move {
                let done = Rc::new(RefCell::new(None));
                let over = Rc::clone(&done);
                dead.endpoint().clone().spawn(async move {
                    of_dead.upsert(&dead, &key(1), &value).await.expect("upsert");
                    *over.borrow_mut() = Some(own.recorded_ops());
                    std::mem::forget(dead);
                });
                while done.borrow().is_none() {
                    keeper.endpoint().sleep(1_000).await;
                }
                done.take().unwrap_or_default()
            });
            let ops = ops.expect("recorded");
            // The first of the chain that ends with the release.
            let is_redo = |counted: &CountedOp| {
                (counted.kind, counted.part, counted.parts) == (Verb::Write, 0, 3)
            };
            redo_op = (0..).zip(&ops).find(|(_, counted)| is_redo(counted)).map(|(at, _)| at);
            assert!(redo_op.is_some(), "{ops:?}");
            continue;
        };
        fabric.plan(CrashPlan { op, way: CrashWay::After });
        let value = new.clone();
        sim.spawn(DEAD, async move {
            let _ = of_dead.upsert(&dead, &key(1), &value).await;
        });
        while !fabric.has_fired() || fabric.has_in_flight() {
            sim.run_until(sim.now_ns() + 5_000).expect("runs");
        }
        // One takes the lock over while the other walks the table for its recovery.
        let later_ns = round % 256 * 8_000;
        // The slower the servers, the longer a READ.
        for server in 0..2 {
            sim.memory_server(ServerId(server)).slow(100);
        }
        let is_over = Rc::new(RefCell::new(false));
        let (over, ticker) = (Rc::clone(&is_over), other.clone());
        sim.spawn(WRITER, async move {
            other.endpoint().sleep(later_ns).await;
            let mut audit = Audit::new(&other).await.expect("audit");
            of_other.verify(&other, &mut audit).await.expect("verify");
            while !*over.borrow() {
                ticker.tick().await.expect("tick");
                ticker.endpoint().sleep(5_000).await;
            }
        });
        let check = async {
            while let Some(done) = recover(&keeper).await.expect("recover") {
                assert_eq!(done.problems, Vec::<String>::new(), "round {round}");
            }
            *is_over.borrow_mut() = true;
            let mut held = Vec::new();
            let has = index.get(&keeper, &key(1), &mut held).await.expect("get");
            let (_, report) = crate::common::audit(&keeper, &[&index]).await;
            assert_eq!(report.problems, Vec::<String>::new(), "round {round}, {later_ns} ns");
            assert!(report.closes(), "round {round}: {report:?}");
            assert!(has && (held == long || held == new), "round {round}");
            u64::from(held == new)
        };
        met += sim.block_on(check).expect("checked");
    }
    assert!(met + 1 >= WALKS, "the record is replayed: {met}");
}
