//! Log tests: acknowledged changes of `dex` with durability `logged` survive every death.
//!
//! The owner dies at any remote operation, also in the middle of a recovery, with WRITEs cut short.
//! Other tests check the costs of the log.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::dex::{Admission, Dex, DexOptions, DexTable, Durability, JoinOptions, Take};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::sim::{CrashPlan, CrashWay, Landing, Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, OpKind, ToAny};
use farleaf_index::bnode::Layout;
use farleaf_index::compute::OwnedTable;
use farleaf_index::{Entries, Exchange, Index, IndexError, ScanRange};
use farleaf_pool::{Audit, ClassReport, Pool, Session};

use super::tables::{check, create, open};
use crate::common::clients::soak;
use crate::common::{World, cost_since, costs, join, lab_table, settle, start};

pub(crate) type Key = Vec<u8>;
pub(crate) type Model = BTreeMap<Key, Vec<u8>>;
pub(crate) type Made = (GlobalAddr, Layout);

pub(crate) fn key(number: u64) -> Key {
    number.to_be_bytes().to_vec()
}

pub(crate) fn tiny() -> TableFormat {
    lab_table(Engine::BTree, "u64-tiny")
}

/// Keys and values of any length, with values in records.
fn bytes() -> TableFormat {
    lab_table(Engine::BTree, "bytes-tiny")
}

pub(crate) fn logged() -> DexOptions {
    DexOptions { durability: Durability::Logged, ..DexOptions::default() }
}

/// What a victim does next.
#[derive(Clone, Debug)]
enum Step {
    Insert(Key, Vec<u8>),
    Update(Key, Vec<u8>),
    Upsert(Key, Vec<u8>),
    Remove(Key),
    Exchange(Key, Option<Vec<u8>>, Option<Vec<u8>>),
    Get(Key),
    Flush,
}

impl Step {
    /// What it leaves under its key, if it changes that.
    fn effect(&self, model: &Model) -> Option<(Key, Option<Vec<u8>>)> {
        match self {
            Step::Insert(key, value) if !model.contains_key(key) => {
                Some((key.clone(), Some(value.clone())))
            }
            Step::Update(key, value) if model.contains_key(key) => {
                Some((key.clone(), Some(value.clone())))
            }
            Step::Upsert(key, value) => Some((key.clone(), Some(value.clone()))),
            Step::Remove(key) => Some((key.clone(), None)),
            Step::Exchange(key, expected, new) if model.get(key) == expected.as_ref() => {
                Some((key.clone(), new.clone()))
            }
            _ => None,
        }
    }

    async fn run(
        &self,
        session: &Session,
        index: &DexTable,
        model: &Model,
    ) -> Result<(), IndexError> {
        match self {
            Step::Insert(key, value) => {
                let added = index.insert(session, key, value).await?;
                assert_eq!(added, !model.contains_key(key), "{self:?}");
            }
            Step::Update(key, value) => {
                let done = index.update(session, key, value).await?;
                assert_eq!(done, model.contains_key(key), "{self:?}");
            }
            Step::Upsert(key, value) => {
                let added = index.upsert(session, key, value).await?;
                assert_eq!(added, !model.contains_key(key), "{self:?}");
            }
            Step::Remove(key) => {
                let done = index.remove(session, key).await?;
                assert_eq!(done, model.contains_key(key), "{self:?}");
            }
            Step::Exchange(key, expected, new) => {
                let (expected, new) = (expected.as_deref(), new.as_deref());
                let mut held = Vec::new();
                let (exchange, had) =
                    index.compare_exchange(session, key, expected, new, &mut held).await?;
                let holds = model.get(key).map(Vec::as_slice);
                assert_eq!(exchange == Exchange::Done, holds == expected, "{self:?}");
                assert_eq!(had.then_some(held.as_slice()), holds, "{self:?}");
            }
            Step::Get(key) => {
                let mut held = Vec::new();
                let has = index.get(session, key, &mut held).await?;
                assert_eq!(has.then_some(&held), model.get(key), "{self:?}");
            }
            Step::Flush => index.flush(session).await?,
        }
        Ok(())
    }
}

/// All kinds of changes, in an order that splits and merges; values in records where `long`.
fn steps(rng: &mut fastrand::Rng, count: usize, space: u64, long: bool) -> Vec<Step> {
    let mut model = Model::new();
    let mut steps = Vec::new();
    for number in 0..count {
        let key = key(rng.u64(..space));
        let len = match rng.u8(..4) {
            0 if long => 600,
            1 if long => 20,
            _ => 8,
        };
        let value = vec![rng.u8(..); len];
        // Growing first, shrinking in the end.
        let shrinks = rng.usize(..count) < number;
        let step = match rng.u8(..16) {
            0..4 if !shrinks => Step::Insert(key, value),
            4..6 if !shrinks => Step::Update(key, value),
            0..3 => Step::Upsert(key, value),
            3 => Step::Get(key),
            4 | 5 => Step::Update(key, value),
            6 | 7 => Step::Exchange(key.clone(), model.get(&key).cloned(), Some(value)),
            8 => Step::Exchange(key.clone(), model.get(&key).cloned(), None),
            9 => Step::Exchange(key, Some(vec![1; 8]), Some(value)),
            10 if number % 3 == 0 => Step::Flush,
            11 => Step::Get(key),
            _ if shrinks => Step::Remove(key),
            _ => Step::Upsert(key, value),
        };
        if let Some((key, value)) = step.effect(&model) {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
        steps.push(step);
    }
    steps
}

/// What is known of the table: what has been acknowledged, and what was under way.
#[derive(Clone, Debug, Default)]
struct Known {
    model: Model,
    under_way: Option<(Key, Option<Vec<u8>>)>,
}

impl Known {
    fn begin(&mut self, step: &Step) {
        self.under_way = step.effect(&self.model);
    }

    fn end(&mut self) {
        match self.under_way.take() {
            Some((key, Some(value))) => drop(self.model.insert(key, value)),
            Some((key, None)) => drop(self.model.remove(&key)),
            None => {}
        }
    }

    /// Makes `found` what is known, if it may be.
    fn settle(&mut self, found: Model) {
        if found != self.model {
            self.end();
        }
        self.under_way = None;
        assert_eq!(found, self.model);
    }
}

pub(crate) fn sim_config(seed: u64, computes: usize) -> SimConfig {
    SimConfig { compute_servers: computes, ..World { seed, ..World::default() }.sim_config() }
}

/// Compute server 1 as a member of the pool.
fn joined(sim: &Sim) -> (AnyEndpoint, Arc<Pool>) {
    let endpoint = sim.fabric(1).any_endpoint().expect("endpoint");
    let pool = sim.block_on(Pool::join(&Client::new(endpoint.clone())));
    (endpoint, pool.expect("runs").expect("joined"))
}

/// A simulation with a pool and a table, made by compute server 0.
pub(crate) fn world(config: SimConfig, format: &TableFormat) -> (Sim, Session, Made) {
    let sim = Sim::new(config).expect("sim");
    let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
    let options = World::default().pool_options();
    let (session, made) = sim
        .block_on(async {
            let session = start(endpoint, &options).await;
            let made = create(&session, format).await;
            (session, made)
        })
        .expect("made");
    (sim, session, made)
}

/// Compute server 1 goes through `steps`; from `planned` on, the plan counts. It is dead afterwards.
/// Gives what is known, and whether the plan was carried out.
fn live_and_die(
    sim: &Sim,
    made: Made,
    (frames, options): (u64, DexOptions),
    steps: &[Step],
    (planned, plan): (usize, CrashPlan),
) -> (Known, bool) {
    let known: Rc<RefCell<Known>> = Rc::default();
    let fabric = sim.fabric(1);
    {
        let (known, steps, fabric) = (Rc::clone(&known), steps.to_vec(), fabric.clone());
        let endpoint = fabric.any_endpoint().expect("endpoint");
        sim.spawn(1, async move {
            let session = join(endpoint).await;
            let index = open(&session, made, frames, options).await;
            for (number, step) in steps.iter().enumerate() {
                if number == planned {
                    fabric.plan(plan);
                }
                session.tick().await.expect("tick");
                let model = {
                    let mut known = known.borrow_mut();
                    known.begin(step);
                    known.model.clone()
                };
                step.run(&session, &index, &model).await.expect("works");
                known.borrow_mut().end();
            }
            // Nothing is closed.
            std::mem::forget(session);
        });
    }
    sim.run().expect("runs");
    let fired = fabric.has_fired();
    if !fired {
        fabric.kill();
    }
    let known = known.borrow().clone();
    (known, fired)
}

pub(crate) async fn content(session: &Session, index: &DexTable) -> Model {
    try_content(session, index).await.expect("scan")
}

pub(crate) async fn try_content(session: &Session, index: &DexTable) -> Result<Model, IndexError> {
    let mut out = Entries::new();
    index.scan(session, ScanRange::ALL, usize::MAX, &mut out).await?;
    Ok(out.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
}

/// Opens the table after a death: exactly what is known is there, all is in order, and when the pool
/// has been recovered nothing is lost of it, also not the dead one's log.
async fn take_over(session: &Session, made: Made, known: &mut Known) -> DexTable {
    let index = open(session, made, 64, logged()).await;
    known.settle(content(session, &index).await);
    settle(session).await;
    assert_eq!(index.tree().check_cache(), Vec::<String>::new());
    if let Some(recovery) = session.recover_begin().await.expect("begin") {
        let mut audit = recovery.audit();
        let report = index.verify(session, &mut audit).await.expect("verify");
        assert_eq!(report.problems, Vec::<String>::new());
        let done = session.recover_finish(recovery, &audit).await.expect("finish");
        assert_eq!(done.problems, Vec::<String>::new());
    }
    let report = check(session, &index).await;
    assert_eq!(report.keys, known.model.len() as u64);
    index
}

const WAYS: [CrashWay; 5] = [
    CrashWay::Before,
    CrashWay::After,
    CrashWay::Within(Landing::Prefix(3)),
    CrashWay::Within(Landing::Subset(1)),
    CrashWay::Within(Landing::Subset(2)),
];

/// Deaths at each operation of `count` steps, one after the other; how many there were.
fn die_everywhere(format: TableFormat, frames: u64, options: DexOptions, seed: u64) -> [u64; 3] {
    let long = format.spec.key == TableFormat::default().spec.key;
    let mut rng = fastrand::Rng::with_seed(seed);
    let steps = steps(&mut rng, 110, 60, long);
    let mut sums = [0; 3];
    for op in 0.. {
        let way = WAYS[(op + seed) as usize % WAYS.len()];
        let (sim, session, made) = world(sim_config(seed, 2), &format);
        let plan = (30, CrashPlan { op, way });
        let (mut known, fired) = live_and_die(&sim, made, (frames, options), &steps, plan);
        let stats = sim
            .block_on(async {
                let index = take_over(&session, made, &mut known).await;
                let stats = index.tree().stats();
                // And on it goes.
                for step in &steps {
                    known.begin(step);
                    step.run(&session, &index, &known.model).await.expect("works");
                    known.end();
                    session.tick().await.expect("tick");
                }
                assert_eq!(content(&session, &index).await, known.model);
                check(&session, &index).await;
                index.close(&session).await.expect("close");
                stats
            })
            .expect("checked");
        sums[0] += 1;
        sums[1] += stats.replayed;
        sums[2] += stats.repaired;
        if !fired {
            break;
        }
    }
    println!("seed {seed}: {sums:?} deaths, done again, repaired");
    sums
}

#[test]
fn every_operation_can_be_the_last() {
    for seed in 0..soak() {
        for (format, frames) in [(tiny(), 64), (bytes(), 12)] {
            let options =
                DexOptions { log_bytes: 8 << 10, admission: Admission::Chance(0.3), ..logged() };
            let [deaths, replayed, repaired] = die_everywhere(format, frames, options, seed);
            assert!(deaths > 100 && replayed > 0 && repaired > 0);
        }
    }
}

/// The second compute server dies while it takes over; the third takes over from both.
#[test]
fn a_recovery_can_be_cut_short_anywhere() {
    let (mut deaths, mut replayed) = (0, 0);
    for (number, format) in [tiny(), bytes()].into_iter().enumerate() {
        let seed = 7 + number as u64;
        let steps = steps(&mut fastrand::Rng::with_seed(seed), 80, 40, number == 1);
        let options = DexOptions { log_bytes: 16 << 10, ..logged() };
        for op in 0.. {
            let (sim, session, made) = world(sim_config(seed, 3), &format);
            let first = CrashPlan { op: 20 + op % 50, way: WAYS[2 + op as usize % 3] };
            let (mut known, _) = live_and_die(&sim, made, (64, options), &steps, (40, first));
            let second = sim.fabric(2);
            let endpoint = second.any_endpoint().expect("endpoint");
            let plan = CrashPlan { op, way: WAYS[op as usize % WAYS.len()] };
            let (fabric, small) = (second.clone(), op % 2 == 0);
            sim.spawn(2, async move {
                let session = join(endpoint).await;
                fabric.plan(plan);
                let index = open(&session, made, if small { 10 } else { 64 }, options).await;
                content(&session, &index).await;
                std::mem::forget(session);
            });
            sim.run().expect("runs");
            let fired = second.has_fired();
            if !fired {
                second.kill();
            }
            replayed += sim
                .block_on(async {
                    let index = take_over(&session, made, &mut known).await;
                    index.close(&session).await.expect("close");
                    index.tree().stats().replayed
                })
                .expect("checked");
            deaths += 1;
            if !fired {
                break;
            }
        }
    }
    println!("{deaths} deaths, {replayed} done again by the third");
    assert!(deaths > 60 && replayed > 0, "{deaths} {replayed}");
}

/// One of two partitions' owners dies; the other goes on, and takes the partition over.
#[test]
fn a_dead_owner_of_a_partition_loses_nothing() {
    for op in (0..120).step_by(3) {
        let (sim, session, made) = world(sim_config(op, 2), &tiny());
        let index = sim.block_on(open(&session, made, 64, logged())).expect("opened");
        sim.block_on(async { index.partition(&session, &[key(1000)]).await.expect("cut") })
            .expect("cut");
        let known: Rc<RefCell<Known>> = Rc::default();
        let fabric = sim.fabric(1);
        let endpoint = fabric.any_endpoint().expect("endpoint");
        let options = DexOptions { log_bytes: 8 << 10, cache_bytes: 64 * 256, ..logged() };
        {
            let (known, fabric) = (Rc::clone(&known), fabric.clone());
            sim.spawn(1, async move {
                let session = join(endpoint).await;
                let (meta, layout) = made;
                let join =
                    JoinOptions { take: Take::Free(2), take_over: false, ..JoinOptions::default() };
                let index = Dex::open(&session, meta, layout, options, join).await;
                let index = index.expect("open");
                for number in 0..60_u64 {
                    if number == 20 {
                        let way = WAYS[op as usize / 3 % WAYS.len()];
                        fabric.plan(CrashPlan { op, way });
                    }
                    let step = match number % 5 {
                        4 => Step::Remove(key(1001 + number * 7 % 40)),
                        _ => Step::Upsert(key(1001 + number * 7 % 40), key(number)),
                    };
                    let model = {
                        let mut known = known.borrow_mut();
                        known.begin(&step);
                        known.model.clone()
                    };
                    step.run(&session, &index, &model).await.expect("works");
                    known.borrow_mut().end();
                }
                std::mem::forget(session);
            });
        }
        let own = sim
            .block_on(async {
                let (meta, layout) = made;
                let join =
                    JoinOptions { take: Take::Free(1), take_over: false, ..JoinOptions::default() };
                let own = Dex::open(&session, meta, layout, options, join).await;
                let own = own.expect("open");
                for number in 0..40_u64 {
                    own.upsert(&session, &key(number), &key(number)).await.expect("upsert");
                    session.tick().await.expect("tick");
                }
                own
            })
            .expect("runs");
        sim.run().expect("runs");
        fabric.kill();
        let mut known = known.borrow().clone();
        sim.block_on(async {
            assert_eq!(own.take_over(&session, fabric.incarnation()).await, Ok(1));
            let mut found = Model::new();
            for number in 1001..1060 {
                let mut value = Vec::new();
                if own.get(&session, &key(number), &mut value).await.expect("get") {
                    found.insert(key(number), value);
                }
            }
            known.settle(found);
            let recovery = session.recover_begin().await.expect("begin").expect("a dead member");
            let mut audit = recovery.audit();
            let report = own.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.keys, 40 + known.model.len() as u64);
            session.recover_finish(recovery, &audit).await.expect("finish");
            own.close(&session).await.expect("close");
            settle(&session).await;
            let mut audit = Audit::new(&session).await.expect("audit");
            let report = own.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
            let audit = audit.report(&session).await.expect("report");
            // The dead one had named two maps, and retired their predecessors in blocks of the living:
            // the pool finds those when it is swept (`docs/design/pool.md`).
            let lost: Vec<_> = audit.classes.iter().filter(|class| class.leaked > 0).collect();
            let few = lost.iter().all(|class| class.bytes == 128 && class.leaked <= 2);
            assert!(audit.problems.is_empty() && few, "{audit:#?}");
            let all = |class: &ClassReport| class.live + class.free + class.retired + class.leaked;
            assert!(audit.classes.iter().all(|class| class.handed_out == all(class)), "{audit:#?}");
        })
        .expect("checked");
    }
}

/// Alone a change is one WRITE of 48 bytes; those of a thread that come together share WRITEs.
#[test]
fn changes_that_come_together_share_a_write() {
    const TOGETHER: u64 = 16;
    let (sim, session, made) = world(sim_config(1, 1), &TableFormat::fixed8(Engine::BTree));
    let options = DexOptions { log_bytes: 64 << 10, ..logged() };
    let index = sim.block_on(open(&session, made, 200, options)).expect("opened");
    sim.block_on(async {
        for number in 0..64 * TOGETHER {
            index.upsert(&session, &key(number), &key(0)).await.expect("upsert");
        }
        index.flush(&session).await.expect("flush");
        for (kind, number) in [(OpKind::Update, 5), (OpKind::Remove, 6), (OpKind::Insert, 6)] {
            let before = costs(&session);
            match kind {
                OpKind::Update => drop(index.update(&session, &key(number), &key(1)).await),
                OpKind::Remove => drop(index.remove(&session, &key(number)).await),
                _ => drop(index.insert(&session, &key(number), &key(1)).await),
            }
            let cost = cost_since(&session, &before, kind);
            let bytes = if kind == OpKind::Remove { 40 } else { 48 };
            assert_eq!(
                (cost.writes, cost.round_trips, cost.bytes_written),
                (1, 1, bytes),
                "{kind:?}"
            );
            assert_eq!((cost.reads, cost.cas + cost.faa), (0, 0), "{kind:?}");
        }
        // As many sessions of one thread, each at a leaf of its own.
        let pool = session.pool();
        let mut sessions = Vec::new();
        for _ in 0..TOGETHER {
            sessions.push(pool.session(session.endpoint().clone()).await.expect("session"));
        }
        let (before, stats) = (costs(&session), index.tree().stats());
        let left = Rc::new(Cell::new(TOGETHER));
        for (number, session) in sessions.into_iter().enumerate() {
            let (index, left) = (index.clone(), Rc::clone(&left));
            let endpoint = session.endpoint().clone();
            endpoint.spawn(async move {
                let key = key(number as u64 * 64 + 32);
                assert_eq!(index.update(&session, &key, &key).await, Ok(true));
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            session.endpoint().sleep(1_000).await;
        }
        let cost = cost_since(&session, &before, OpKind::Update);
        // The first alone, all others together.
        assert_eq!((cost.writes, cost.bytes_written), (2, TOGETHER * 48), "{cost:?}");
        let now = index.tree().stats();
        assert_eq!(now.log_records - stats.log_records, TOGETHER);
        assert_eq!(now.log_writes - stats.log_writes, 2);
        check(&session, &index).await;
    })
    .expect("runs");
}

/// A log that is small for what goes through it: it goes round many times, changes find no room and
/// are written through, and a death at the end loses nothing.
#[test]
fn a_log_that_is_too_small_only_costs_more() {
    const CLIENTS: u64 = 40;
    let (sim, session, made) = world(sim_config(3, 2), &TableFormat::fixed8(Engine::BTree));
    let fabric = sim.fabric(1);
    let (endpoint, pool) = joined(&sim);
    let options = DexOptions { log_bytes: 8 << 10, ..logged() };
    let opening = async {
        let session = pool.session(endpoint.clone()).await.expect("session");
        open(&session, made, 400, options).await
    };
    let index = sim.block_on(opening).expect("opened");
    let acked: Rc<RefCell<Model>> = Rc::default();
    for client in 0..CLIENTS {
        let (pool, endpoint, index) = (pool.clone(), endpoint.clone(), index.clone());
        let acked = Rc::clone(&acked);
        sim.spawn(1, async move {
            let session = pool.session(endpoint).await.expect("session");
            for number in 0..240_u64 {
                // Each in leaves of its own: every record keeps another frame.
                let key = key(client * 60 + number % 60);
                let value = (number << 32 | client).to_be_bytes();
                index.upsert(&session, &key, &value).await.expect("upsert");
                acked.borrow_mut().insert(key, value.to_vec());
                if number % 16 == 0 {
                    session.tick().await.expect("tick");
                }
            }
            std::mem::forget(session);
        });
    }
    sim.run().expect("runs");
    let stats = index.tree().stats();
    println!("{stats:?}");
    // 160 records fill it.
    assert!(stats.log_records > 20 * 160 && stats.log_writes < stats.log_records);
    assert!(stats.log_full > 0 && stats.log_cleaned > 0);
    assert!(stats.journal_writes < stats.journalled, "images share WRITEs, too");
    // Once few come there is room again, and the last of all are only in the log.
    let last = index.clone();
    let acked_too = Rc::clone(&acked);
    sim.spawn(1, async move {
        let session = pool.session(endpoint).await.expect("session");
        for number in 0..64_u64 {
            last.upsert(&session, &key(0), &key(number)).await.expect("upsert");
            acked_too.borrow_mut().insert(key(0), key(number));
        }
        std::mem::forget(session);
    });
    sim.run().expect("runs");
    assert!(index.tree().stats().log_records > stats.log_records);
    drop(index);
    fabric.kill();
    let mut known = Known { model: acked.borrow().clone(), under_way: None };
    sim.block_on(async {
        let index = take_over(&session, made, &mut known).await;
        assert!(index.tree().stats().replayed > 0);
    })
    .expect("checked");
}

/// The log is an object of the table's: counted while it is there, and gone after a close.
#[test]
fn a_log_is_accounted_for() {
    World::default().on_sim(async |session| {
        let made = create(&session, &tiny()).await;
        for round in 0..3 {
            let index = open(&session, made, 64, logged()).await;
            for number in 0..50_u64 {
                index.upsert(&session, &key(number), &key(round)).await.expect("upsert");
            }
            check(&session, &index).await;
            index.close(&session).await.expect("close");
            check(&session, &index).await;
        }
        let index = open(&session, made, 64, logged()).await;
        index.upsert(&session, &key(7), &key(9)).await.expect("upsert");
        Dex::destroy(&index, &session).await.expect("destroy");
        settle(&session).await;
        let audit = Audit::new(&session).await.expect("audit");
        let report = audit.report(&session).await.expect("report");
        assert!(report.closes(), "{report:#?}");
        assert_eq!(report.classes.iter().map(|class| class.live).sum::<u64>(), 0);
    });
}

/// A small log is refused, and nothing is left behind.
#[test]
fn a_log_without_room_for_records_is_refused() {
    World::default().on_sim(async |session| {
        let made = create(&session, &tiny()).await;
        let index = open(&session, made, 64, DexOptions { log_bytes: 4 << 10, ..logged() }).await;
        let refused = index.upsert(&session, &key(1), &key(1)).await;
        assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
    });
}

/// Bulk loading over a log that has changes of the same keys: they do not come back.
#[test]
fn changes_before_a_bulk_load_do_not_come_back() {
    let (sim, session, made) = world(sim_config(5, 2), &tiny());
    let fabric = sim.fabric(1);
    let endpoint = fabric.any_endpoint().expect("endpoint");
    sim.spawn(1, async move {
        let session = join(endpoint).await;
        let index = open(&session, made, 64, logged()).await;
        for number in 0..3 {
            index.upsert(&session, &key(number), &key(1)).await.expect("upsert");
        }
        for number in 0..3 {
            index.remove(&session, &key(number)).await.expect("remove");
        }
        let pairs: Vec<_> = (0..40).map(|number| (key(number), key(2))).collect();
        let loaded = index.bulk_load(&session, &mut crate::common::Pairs(pairs.iter())).await;
        assert_eq!(loaded, Ok(40));
        std::mem::forget(session);
    });
    sim.run().expect("runs");
    fabric.kill();
    sim.block_on(async {
        let index = open(&session, made, 64, logged()).await;
        let loaded: Model = (0..40).map(|number| (key(number), key(2))).collect();
        assert_eq!(content(&session, &index).await, loaded);
        let mut audit = Audit::new(&session).await.expect("audit");
        let report = index.verify(&session, &mut audit).await.expect("verify");
        assert_eq!((report.problems, report.keys), (Vec::new(), 40));
    })
    .expect("checked");
}

/// Without a log, but with a journal: changes may be lost, nodes are not.
#[test]
fn a_journal_keeps_nodes_whole() {
    let options = DexOptions {
        durability: Durability::Volatile,
        wb_journal: true,
        admission: Admission::Chance(0.3),
        ..DexOptions::default()
    };
    let mut repaired = 0;
    for (number, format) in [tiny(), bytes()].into_iter().enumerate() {
        let seed = 20 + number as u64;
        let steps = steps(&mut fastrand::Rng::with_seed(seed), 90, 30, number == 1);
        let mut ever: BTreeMap<Key, Vec<Vec<u8>>> = BTreeMap::new();
        for step in &steps {
            if let Step::Insert(key, value)
            | Step::Update(key, value)
            | Step::Upsert(key, value)
            | Step::Exchange(key, _, Some(value)) = step
            {
                ever.entry(key.clone()).or_default().push(value.clone());
            }
        }
        for op in 0..200 {
            let (sim, session, made) = world(sim_config(seed, 2), &format);
            let plan = CrashPlan { op, way: WAYS[2 + op as usize % 3] };
            let (_, fired) = live_and_die(&sim, made, (12, options), &steps, (30, plan));
            repaired += sim
                .block_on(async {
                    let index = open(&session, made, 64, options).await;
                    for (key, value) in content(&session, &index).await {
                        assert!(ever[&key].contains(&value), "{key:?} never held {value:?}");
                    }
                    let mut audit = Audit::new(&session).await.expect("audit");
                    let report = index.verify(&session, &mut audit).await.expect("verify");
                    assert_eq!(report.problems, Vec::<String>::new());
                    index.tree().stats().repaired
                })
                .expect("checked");
            if !fired {
                break;
            }
        }
    }
    assert!(repaired > 0);
}

/// Completions are lost while clients of one thread share a log; then their compute server dies.
#[test]
fn lost_completions_lose_no_change() {
    const CLIENTS: u64 = 6;
    for seed in 0..8 * soak() {
        let mut config = sim_config(seed, 2);
        config.adversary.torn = 0.3;
        config.adversary.late = 0.05;
        config.adversary.lost = [0.01, 0.05][seed as usize % 2];
        config.adversary.shuffle = true;
        let format = if seed % 4 < 2 { tiny() } else { bytes() };
        let (sim, session, made) = world(config, &format);
        let fabric = sim.fabric(1);
        let (endpoint, pool) = joined(&sim);
        let options =
            DexOptions { log_bytes: 8 << 10, admission: Admission::Chance(0.3), ..logged() };
        let index = sim
            .block_on(open(&session, made, [20, 200][seed as usize / 2 % 2], options))
            .expect("opened");
        let acked: Rc<RefCell<Model>> = Rc::default();
        for client in 0..CLIENTS {
            let (pool, endpoint, index) = (pool.clone(), endpoint.clone(), index.clone());
            let acked = Rc::clone(&acked);
            sim.spawn(1, async move {
                let session = pool.session(endpoint).await.expect("session");
                let mut rng = fastrand::Rng::with_seed(seed << 8 | client);
                for _ in 0..80 {
                    let key = key(rng.u64(..30) * CLIENTS + client);
                    let held = acked.borrow().contains_key(&key);
                    let mut found = Vec::new();
                    match rng.u8(..4) {
                        0 => {
                            let gone = index.remove(&session, &key).await.expect("remove");
                            assert_eq!(gone, held);
                            acked.borrow_mut().remove(&key);
                        }
                        1 => {
                            let has = index.get(&session, &key, &mut found).await.expect("get");
                            assert_eq!(has.then_some(&found), acked.borrow().get(&key));
                        }
                        _ => {
                            let long = format.spec.key == bytes().spec.key && rng.u8(..4) == 0;
                            let value = vec![rng.u8(..); if long { 700 } else { 8 }];
                            let new = index.upsert(&session, &key, &value).await.expect("upsert");
                            assert_eq!(new, !held);
                            acked.borrow_mut().insert(key, value);
                        }
                    }
                    let _ = session.tick().await;
                }
                std::mem::forget(session);
            });
        }
        sim.run().expect("runs");
        drop(index);
        fabric.kill();
        sim.calm();
        let mut known = Known { model: acked.borrow().clone(), under_way: None };
        sim.block_on(async { take_over(&session, made, &mut known).await }).expect("checked");
    }
}

/// A memory server cannot be reached for longer than anybody waits: changes in doubt have happened or
/// not, all others are exact, and a death after loses nothing.
#[test]
fn a_memory_server_that_goes_away_leaves_doubt_about_what_was_under_way_alone() {
    const CLIENTS: u64 = 5;
    type Held = BTreeMap<Key, Vec<Option<Vec<u8>>>>;
    let mut doubts = 0;
    for seed in 0..6 * soak() {
        let mut config = sim_config(seed, 2);
        config.adversary.torn = 0.3;
        config.adversary.lost = 0.01;
        let (sim, session, made) = world(config, &tiny());
        let fabric = sim.fabric(1);
        let (endpoint, pool) = joined(&sim);
        let options =
            DexOptions { log_bytes: 8 << 10, admission: Admission::Chance(0.3), ..logged() };
        let index = sim
            .block_on(open(&session, made, [20, 200][seed as usize / 2 % 2], options))
            .expect("opened");
        // What each key may hold.
        let held: Rc<RefCell<Held>> = Rc::default();
        let in_doubt = Rc::new(Cell::new(0));
        for client in 0..CLIENTS {
            let (pool, endpoint, index) = (pool.clone(), endpoint.clone(), index.clone());
            let (held, in_doubt) = (Rc::clone(&held), Rc::clone(&in_doubt));
            sim.spawn(1, async move {
                let session = pool.session(endpoint.clone()).await.expect("session");
                let mut rng = fastrand::Rng::with_seed(seed << 8 | client);
                for number in 0..400_u64 {
                    let key = key(rng.u64(..20) * CLIENTS + client);
                    let new = (rng.u8(..3) > 0).then(|| (number << 8 | client).to_be_bytes());
                    let done = match &new {
                        Some(value) => index.upsert(&session, &key, value).await.map(drop),
                        None => index.remove(&session, &key).await.map(drop),
                    };
                    let new = new.map(Vec::from);
                    match done {
                        Ok(()) => drop(held.borrow_mut().insert(key, vec![new])),
                        Err(IndexError::OutcomeUnknown(_)) => {
                            in_doubt.set(in_doubt.get() + 1);
                            held.borrow_mut().entry(key).or_insert_with(|| vec![None]).push(new);
                        }
                        Err(IndexError::Unavailable(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let _ = session.tick().await;
                    endpoint.sleep(1_000).await;
                }
                std::mem::forget(session);
            });
        }
        sim.run_until(sim.now_ns() + 300_000 + seed * 31_117).expect("runs");
        let server = sim.memory_server(farleaf_fabric::ServerId(seed as u16 % 2));
        server.stop();
        sim.run_until(sim.now_ns() + 2_500_000_000).expect("runs");
        server.resume();
        sim.run().expect("runs");
        drop(index);
        fabric.kill();
        sim.calm();
        doubts += in_doubt.get();
        let held = held.borrow().clone();
        sim.block_on(async {
            let index = open(&session, made, 64, logged()).await;
            for (key, values) in held {
                let mut found = Vec::new();
                let has = index.get(&session, &key, &mut found).await.expect("get");
                let found = has.then_some(found);
                assert!(values.contains(&found), "{key:?} holds {found:?}, not of {values:?}");
            }
            let mut audit = Audit::new(&session).await.expect("audit");
            let report = index.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
        })
        .expect("checked");
    }
    assert!(doubts > 0, "nobody ran out of patience");
}

/// More leaves than the cache has frames that goes through the log, which has changes of each leaf from
/// its beginning to its end: they are written meanwhile, and what comes later is not taken for done.
#[test]
fn leaves_are_written_while_a_log_is_gone_through() {
    for op in [None, Some(40), Some(200), Some(700)] {
        let (sim, session, made) = world(sim_config(11, 3), &tiny());
        let mut rng = fastrand::Rng::with_seed(11);
        let mut steps: Vec<Step> =
            (0..400).map(|number| Step::Upsert(key(number), key(0))).collect();
        steps.push(Step::Flush);
        steps.extend((0..1200).map(|number| Step::Upsert(key(rng.u64(..400)), key(number))));
        let options = DexOptions { log_bytes: 200 << 10, ..logged() };
        let never = CrashPlan { op: u64::MAX, way: CrashWay::Before };
        let (mut known, _) = live_and_die(&sim, made, (1_000, options), &steps, (0, never));
        if let Some(op) = op {
            let fabric = sim.fabric(2);
            let endpoint = fabric.any_endpoint().expect("endpoint");
            sim.spawn(2, async move {
                let session = join(endpoint).await;
                let way = CrashWay::Within(Landing::Subset(op));
                fabric.plan(CrashPlan { op, way });
                let index = open(&session, made, 10, options).await;
                content(&session, &index).await;
            });
            sim.run().expect("runs");
            assert!(sim.fabric(2).has_fired(), "it was still at it");
        }
        sim.block_on(async {
            let index = open(&session, made, 10, options).await;
            known.settle(content(&session, &index).await);
            let stats = index.tree().stats();
            assert!(stats.replayed > 0 && stats.written_back > 0, "{stats:?}");
            let mut audit = Audit::new(&session).await.expect("audit");
            let report = index.verify(&session, &mut audit).await.expect("verify");
            assert_eq!((report.problems, report.keys), (Vec::new(), 400));
        })
        .expect("checked");
    }
}

/// The memory of a node that was merged away holds a value by the time of a death; the journal still
/// has the node's image, which must not be written over it.
#[test]
fn an_image_of_a_freed_node_is_not_written_over_what_came_after() {
    for round in 0..8_u64 {
        let (sim, session, made) = world(sim_config(round, 2), &bytes());
        let fabric = sim.fabric(1);
        let endpoint = fabric.any_endpoint().expect("endpoint");
        let node_bytes = made.1.node_bytes();
        let value = move |number: u64| vec![number as u8; node_bytes - 100];
        // Memory is used again once everybody has moved on.
        let other = session.clone();
        sim.spawn(0, async move {
            for _ in 0..200 {
                other.tick().await.expect("tick");
                other.endpoint().sleep(5_000).await;
            }
        });
        sim.spawn(1, async move {
            let session = join(endpoint).await;
            let index = open(&session, made, 64, logged()).await;
            for number in 0..40 {
                index.upsert(&session, &key(number), &key(1)).await.expect("upsert");
            }
            for number in 2..40 {
                index.remove(&session, &key(number)).await.expect("remove");
                if number > 36 - round {
                    break;
                }
            }
            let merges = index.tree().stats().merges;
            assert!(merges > 0);
            for _ in 0..20 {
                session.tick().await.expect("tick");
                session.endpoint().sleep(10_000).await;
            }
            for number in 100..106 {
                index.upsert(&session, &key(number), &value(number)).await.expect("upsert");
            }
            std::mem::forget(session);
        });
        sim.run().expect("runs");
        fabric.kill();
        sim.block_on(async {
            let index = open(&session, made, 64, logged()).await;
            let content = content(&session, &index).await;
            for number in 100..106 {
                assert_eq!(content.get(&key(number)), Some(&value(number)));
            }
            let mut audit = Audit::new(&session).await.expect("audit");
            let report = index.verify(&session, &mut audit).await.expect("verify");
            assert_eq!(report.problems, Vec::<String>::new());
        })
        .expect("checked");
    }
}
