//! Deaths: a compute server dies at every remote operation of a change of a hash, one by one. Others see all of its
//! fields, or none.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_engines::{AnyIndex, Content, Engine, TableFormat, recover};
use farleaf_fabric::sim::{CountedOp, CrashPlan, CrashWay, Landing, Sim, SimConfig};
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_harness::{create_table, join, open_table, settle, simulate_pool};
use farleaf_index::{Index, Settings, Spec};
use farleaf_pool::{PoolOptions, Session};
use farleaf_records::{Expiry, Hash, RecordError, Records};

const ACTOR: usize = 1;
const KEY: &[u8] = b"user:42";
/// Virtual time that the action, and all that follows it, may take.
const LIMIT_NS: u64 = 2_000_000_000;
const NOW_MS: u64 = 1_000;

fn now_ms() -> u64 {
    NOW_MS
}

fn records<'a>(index: &'a AnyIndex, session: &'a Session) -> Records<'a, AnyIndex, fn() -> u64> {
    Records::new(index, session, now_ms as fn() -> u64)
}

/// Fields whose values say which change wrote them; longer than a leaf has room for, if `is_long`.
fn fields(version: u8, is_long: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = if is_long { 700 } else { 4 };
    (b'a'..=b'd').map(|name| (vec![name], vec![version; bytes])).collect()
}

/// The change that the compute server dies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Fields of a hash that is there.
    Set,
    /// Fields of a key that is absent.
    SetNew,
    /// Fields of a record that has expired.
    SetExpired,
    /// All fields are removed.
    Remove,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    engine: Engine,
    change: Change,
    is_long: bool,
}

impl Case {
    fn before(self) -> Hash {
        match self.change {
            Change::Set | Change::Remove => fields(1, self.is_long).into_iter().collect(),
            Change::SetNew | Change::SetExpired => Hash::new(),
        }
    }

    fn after(self) -> Hash {
        match self.change {
            Change::Remove => Hash::new(),
            _ => fields(2, self.is_long).into_iter().collect(),
        }
    }

    async fn act(self, index: &AnyIndex, session: &Session) -> Result<usize, RecordError> {
        let of = records(index, session);
        match self.change {
            Change::Remove => of.hash_remove(KEY, &[b"a", b"b", b"c", b"d"]).await,
            _ => of.hash_set(KEY, &fields(2, self.is_long)).await,
        }
    }
}

struct Cluster {
    sim: Sim,
    session: Session,
    /// The survivor's table.
    index: AnyIndex,
    actor: Option<(Session, AnyIndex)>,
}

impl Cluster {
    /// A table with the hash in it, which the actor has open and warm.
    fn new(case: Case) -> Cluster {
        let mut config = SimConfig {
            memory_servers: 2,
            compute_servers: 2,
            region_bytes: 8 << 20,
            ..SimConfig::seeded(41)
        };
        config.adversary.torn = 0.5;
        let options = PoolOptions {
            block_bytes: 256 << 10,
            clients_max: 16,
            members_max: 5,
            tables_max: 4,
            ..PoolOptions::default()
        };
        let (sim, session) = simulate_pool(config, &options).expect("a pool");
        let own = sim.fabric(ACTOR).any_endpoint().expect("an endpoint");
        let (index, actor) = sim
            .block_on(async {
                let format = TableFormat::new(case.engine, Spec::ANY);
                let format = format.with_content(Content::Records);
                let none = Settings::default();
                let index = create_table(&session, "t", &format, 64, &none).await.expect("a table");
                let of = records(&index, &session);
                for number in 0..40 {
                    let key = format!("user:{number:02}");
                    if key.as_bytes() != KEY {
                        of.insert(key.as_bytes(), b"string", Expiry::Never).await.expect("room");
                    }
                }
                match case.change {
                    Change::Set | Change::Remove => {
                        of.hash_set(KEY, &fields(1, case.is_long)).await.map(drop)
                    }
                    Change::SetNew => Ok(()),
                    // A moment that is after the clock of an operation before.
                    Change::SetExpired => {
                        let early = Records::new(&index, &session, || 1);
                        let expiry = Expiry::In(std::time::Duration::from_millis(9));
                        early.insert(KEY, b"expired", expiry).await.map(drop)
                    }
                }
                .expect("room");
                // From here on the actor owns what a single owner may have to itself.
                index.close(&session).await.expect("closed");
                let index = open_table(&session, "t", 64, &none).await.expect("open");
                let actor = join(own).await.expect("a member");
                let table = open_table(&actor, "t", 64, &none).await.expect("open");
                table.get(&actor, b"user:41", &mut Vec::new()).await.expect("warm");
                settle(&session).await.expect("settled");
                (index, (actor, table))
            })
            .expect("no deadlock");
        Cluster { sim, session, index, actor: Some(actor) }
    }

    /// Starts the change, and a reader beside it on the survivor that records what it sees.
    fn start(&mut self, case: Case) -> Started {
        let started = Started::default();
        let (session, index) = self.actor.take().expect("an actor");
        let ended = Rc::clone(&started.ended);
        self.sim.spawn(ACTOR, async move {
            let done = case.act(&index, &session).await;
            ended.set(Some(done.is_ok()));
            // An owner that has the key to itself is asked until the end.
            std::future::pending::<()>().await;
            drop((session, index));
        });
        started
    }

    fn run_until(&self, is_over: impl Fn() -> bool, what: &str) {
        let limit_ns = self.sim.now_ns() + LIMIT_NS;
        while !is_over() {
            self.sim.run_until(self.sim.now_ns() + 2_000).expect("no deadlock");
            assert!(self.sim.now_ns() < limit_ns, "{what}: it does not end");
        }
    }

    /// Recovers the dead and reads the hash three times, with a change of another field between.
    fn survive(&self, case: Case, what: &str) -> Hash {
        let (session, index) = (&self.session, &self.index);
        let seen = self.sim.block_on(async {
            while recover(session).await.expect(what).is_some() {}
            let of = records(index, session);
            let first = of.hash(KEY).await.expect(what);
            assert_eq!(of.hash(KEY).await.as_ref(), Ok(&first), "{what}");
            let after = of.hash_set(KEY, &[("z", "later")]).await;
            assert_eq!(after, Ok(1), "{what}");
            let mut with_later = first.clone();
            with_later.insert(b"z".to_vec(), b"later".to_vec());
            assert_eq!(of.hash(KEY).await, Ok(with_later), "{what}");
            first
        });
        let seen = seen.expect("no deadlock");
        assert!(seen == case.before() || seen == case.after(), "{what}: {seen:?}");
        seen
    }
}

#[derive(Clone, Default)]
struct Started {
    ended: Rc<Cell<Option<bool>>>,
}

/// The remote operations of the change.
fn operations(case: Case) -> Vec<CountedOp> {
    let mut cluster = Cluster::new(case);
    let fabric = cluster.sim.fabric(ACTOR);
    fabric.record_ops();
    let started = cluster.start(case);
    cluster.run_until(|| started.ended.get().is_some(), "without a death");
    assert_eq!(started.ended.get(), Some(true), "{case:?}");
    fabric.recorded_ops()
}

#[test]
fn a_hash_is_changed_in_whole_or_not_at_all() {
    let outcomes = RefCell::new((0, 0));
    for engine in Engine::ALL.iter().filter(|engine| crate::is_chosen(engine)) {
        let mut points = 0;
        let cases = [
            (Change::Set, false),
            (Change::Set, true),
            (Change::SetNew, false),
            (Change::SetExpired, false),
            (Change::Remove, false),
        ];
        for (change, is_long) in cases {
            let case = Case { engine: *engine, change, is_long };
            let ops = operations(case);
            assert!(!ops.is_empty(), "{case:?}");
            for number in 0..ops.len() as u64 {
                let ways =
                    [CrashWay::Before, CrashWay::After, CrashWay::Within(Landing::Subset(number))];
                for way in ways {
                    let what = format!("{case:?}, {way:?} operation {number} of {}", ops.len());
                    let mut cluster = Cluster::new(case);
                    let fabric = cluster.sim.fabric(ACTOR);
                    fabric.plan(CrashPlan { op: number, way });
                    let _started = cluster.start(case);
                    cluster.run_until(|| fabric.has_fired() && !fabric.has_in_flight(), &what);
                    let seen = cluster.survive(case, &what);
                    let mut outcomes = outcomes.borrow_mut();
                    match seen == case.before() {
                        true => outcomes.0 += 1,
                        false => outcomes.1 += 1,
                    }
                    points += 1;
                }
            }
        }
        assert!(points > 20, "{engine}: {points}");
    }
    let (before, after) = outcomes.into_inner();
    println!("{before} deaths left the old hash, {after} the new one");
    assert!(before > 0 && after > 0);
}

/// A reader beside a writer sees each change of several fields in whole, in their order.
#[test]
fn a_reader_sees_each_change_of_a_hash_in_whole() {
    for engine in Engine::ALL.iter().filter(|engine| crate::is_chosen(engine)) {
        let case = Case { engine: *engine, change: Change::Set, is_long: true };
        let cluster = Cluster::new(case);
        if cluster.index.owned().is_some() {
            // The writer owns the key, and serves nobody here.
            continue;
        }
        let (writer, table) = cluster.actor.expect("an actor");
        let written = Rc::new(Cell::new(1));
        let last = Rc::clone(&written);
        cluster.sim.spawn(ACTOR, async move {
            for version in 2..40 {
                let done = records(&table, &writer)
                    .hash_set(KEY, &fields(version, version % 2 == 0))
                    .await;
                done.expect("a change");
                last.set(version);
            }
        });
        let (session, index) = (&cluster.session, &cluster.index);
        let seen = cluster.sim.block_on(async {
            let (mut seen, mut kinds) = (1, 0);
            while written.get() < 39 {
                let hash = records(index, session).hash(KEY).await.expect("a hash");
                let version = hash[&b"a"[..]][0];
                let whole: Hash =
                    fields(version, version % 2 == 0 || version == 1).into_iter().collect();
                assert_eq!(hash, whole, "{engine}");
                assert!(version >= seen, "{engine}: {version} after {seen}");
                kinds += u32::from(version > seen);
                seen = version;
                session.endpoint().sleep(500).await;
            }
            kinds
        });
        assert!(seen.expect("no deadlock") > 3, "{engine}");
    }
}
