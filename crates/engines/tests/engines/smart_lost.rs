//! Directed faults of the engine `smart`: each post of an operation is lost, or its caller dropped there.
//!
//! A table of cases has one for each step of the protocol that another client may see half done. For each post of the
//! operation its completion is lost: the post has happened, happens never or in part, or later. A rival changes the same
//! keys once it was posted. Both results and the content must then be those of one order of the two.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::task::Poll;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::{Index, IndexError, OpenOptions, Settings, ValueFormat};
use farleaf_pool::Session;

use crate::common::{World, check, costs, join, lab_table, settle, start, with_shape};

/// A change, with the bytes of its value; `Close` unlinks what was removed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(&'static str, usize),
    Update(&'static str, usize),
    Remove(&'static str),
    RemoveAndClose(&'static str),
}
use Step::{Insert, Remove, RemoveAndClose, Update};

/// Content by key: the client that wrote it, and how long it is.
type Model = BTreeMap<&'static str, (u8, usize)>;

impl Step {
    fn key(self) -> &'static str {
        match self {
            Insert(key, _) | Update(key, _) | Remove(key) | RemoveAndClose(key) => key,
        }
    }

    /// Does it to a model by client `by`; returns what the operation must.
    fn apply(self, by: u8, model: &mut Model) -> bool {
        let there = model.contains_key(self.key());
        match self {
            Insert(key, len) if !there => drop(model.insert(key, (by, len))),
            Update(key, len) if there => drop(model.insert(key, (by, len))),
            Remove(key) | RemoveAndClose(key) => drop(model.remove(key)),
            _ => {}
        }
        there != matches!(self, Insert(..))
    }

    async fn act(self, session: &Session, index: &AnyIndex, by: u8) -> Result<bool, IndexError> {
        let key = self.key().as_bytes();
        match self {
            Insert(_, len) => index.insert(session, key, &vec![by; len]).await,
            Update(_, len) => index.update(session, key, &vec![by; len]).await,
            Remove(_) => index.remove(session, key).await,
            RemoveAndClose(_) => {
                let done = index.remove(session, key).await;
                index.close(session).await?;
                done
            }
        }
    }
}

/// An operation, the table before it, and a rival.
struct Case {
    name: &'static str,
    fill: &'static [&'static str],
    /// Removed from the table; unlinked, unless removed keys stay.
    removed: &'static [&'static str],
    unlink_batch: &'static str,
    format: fn() -> TableFormat,
    step: Step,
    rival: Step,
    /// A count that the operation raises.
    count: Option<&'static str>,
}

fn bytes() -> TableFormat {
    lab_table(Engine::Smart, "short-tiny")
}

fn reserved() -> TableFormat {
    with_shape(bytes(), &[("nodes", "reserve")])
}

fn reverse() -> TableFormat {
    with_shape(bytes().with_values(ValueFormat::Fixed(8)), &[("nodes", "reverse")])
}

const CASES: &[Case] = &[
    Case { name: "insert into room", rival: Insert("kd", 8), ..PLAIN },
    Case { name: "insert, same key", rival: Insert("kc", 8), ..PLAIN },
    Case {
        name: "insert over a slot without a child",
        removed: &["kc"],
        rival: RemoveAndClose("kc"),
        fill: &["ka", "kb", "kc"],
        ..PLAIN
    },
    Case {
        name: "revive",
        removed: &["kc"],
        unlink_batch: "64",
        fill: &["ka", "kb", "kc"],
        step: Insert("kc", 32),
        rival: Remove("kc"),
        ..PLAIN
    },
    Case {
        name: "split a leaf",
        step: Insert("ka-and-a-chain-of-some-nodes", 8),
        rival: RemoveAndClose("ka"),
        count: Some("splits"),
        ..PLAIN
    },
    Case {
        name: "split an edge",
        fill: &["kaaaa1", "kaaaa2"],
        step: Insert("kab", 8),
        rival: Insert("kaaaa3", 8),
        count: Some("splits"),
        ..PLAIN
    },
    Case { name: "update a word", step: Update("ka", 8), rival: Update("ka", 8), ..PLAIN },
    Case {
        name: "update words",
        fill: &["ka"],
        step: Update("ka", 32),
        rival: Update("ka", 31),
        ..PLAIN
    },
    Case { name: "remove", step: Remove("ka"), rival: Insert("ka", 8), ..PLAIN },
    Case {
        name: "unlink",
        unlink_batch: "64",
        step: RemoveAndClose("ka"),
        rival: Insert("ka", 8),
        count: Some("unlinked"),
        ..PLAIN
    },
    Case { name: "outgrow", step: Update("ka", 200), rival: Update("ka", 8), ..PLAIN },
    Case { name: "outgrow to a record", step: Update("ka", 3_000), rival: Remove("ka"), ..PLAIN },
    Case {
        name: "relocate",
        fill: &["k1", "k2", "k3", "k4", "k5", "k6"],
        step: Insert("k7", 8),
        rival: Insert("k8", 8),
        count: Some("relocated"),
        ..PLAIN
    },
    Case {
        name: "collapse",
        fill: &["x", "k1", "k2"],
        unlink_batch: "64",
        step: RemoveAndClose("k1"),
        rival: Insert("k3", 8),
        count: Some("nodes_removed"),
        ..PLAIN
    },
    Case {
        name: "grow in place",
        format: reserved,
        fill: &["k1", "k2", "k3", "k4"],
        step: Insert("k5", 8),
        rival: Insert("k6", 8),
        count: Some("grown"),
        ..PLAIN
    },
    Case {
        name: "split a leaf, reverse",
        format: reverse,
        step: Insert("ka-and-a-chain-of-some-nodes", 8),
        rival: Insert("ka-and-b", 8),
        count: Some("splits"),
        ..PLAIN
    },
    Case {
        name: "split an edge, reverse",
        format: reverse,
        fill: &["kaaaa1", "kaaaa2"],
        step: Insert("kab", 8),
        rival: Insert("kaaab", 8),
        count: Some("splits"),
        ..PLAIN
    },
];

const PLAIN: Case = Case {
    name: "",
    fill: &["ka", "kb"],
    removed: &[],
    unlink_batch: "1",
    format: bytes,
    step: Insert("kc", 8),
    rival: Insert("kd", 8),
    count: None,
};

/// The trouble at one post of the operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    None,
    /// Its completion is lost.
    Lost(u64),
    /// The operation's future is dropped once it was posted.
    Dropped(u64),
}

async fn open(session: &Session, unlink_batch: &str) -> AnyIndex {
    let root = session.open_root("t").await.expect("root");
    let settings = Settings::default().with("cache", "1MiB").with("unlink_batch", unlink_batch);
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

/// Polls both to their ends; the first one is dropped when `is_over` says so.
async fn both<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
    is_over: impl Fn() -> bool,
) -> (Option<A>, B) {
    let (mut first, mut second) = (Some(Box::pin(first)), std::pin::pin!(second));
    let (mut one, mut two) = (None, None);
    std::future::poll_fn(move |context| {
        if let Some(future) = &mut first {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                (one, first) = (Some(done), None);
            } else if is_over() {
                first = None;
            }
        }
        if two.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            two = Some(done);
        }
        match (&first, two.take()) {
            (None, Some(done)) => Poll::Ready((one.take(), done)),
            (_, back) => {
                two = back;
                Poll::Pending
            }
        }
    })
    .await
}

/// Runs a case; gives how many posts its operation has made, and what it counted.
fn run(case: &Case, seed: u64, trouble: Trouble, has_rival: bool) -> (u64, u64) {
    let what = format!("{}, seed {seed}, {trouble:?}, rival: {has_rival}", case.name);
    let mut config =
        World { seed, servers: 1, region_bytes: 8 << 20, block_bytes: 64 << 10 }.sim_config();
    config.compute_servers = 2;
    config.adversary.lost = 1.0;
    config.adversary.window = 0..0;
    let sim = Sim::new(config).expect("sim");
    let [own, other] = [0, 1].map(|it| sim.fabric(it).any_endpoint().expect("endpoint"));
    let posts = Cell::new(0);
    let counted = Cell::new(0);
    sim.block_on(async {
        let session =
            start(own, &World { block_bytes: 64 << 10, ..World::default() }.pool_options()).await;
        AnyIndex::create(&session, "t", &(case.format)()).await.expect("create");
        let index = open(&session, case.unlink_batch).await;
        let mut model = Model::new();
        for key in case.fill.iter().copied() {
            assert_eq!(Insert(key, 8).act(&session, &index, 0).await, Ok(true));
            Insert(key, 8).apply(0, &mut model);
        }
        for key in case.removed.iter().copied() {
            assert_eq!(Remove(key).act(&session, &index, 0).await, Ok(true));
            Remove(key).apply(0, &mut model);
        }
        let rival_session = join(other).await;
        let rival_index = open(&rival_session, "1").await;
        for key in case.fill.iter() {
            rival_index.get(&rival_session, key.as_bytes(), &mut Vec::new()).await.expect("get");
        }
        settle(&session).await;
        let count = |index: &AnyIndex| {
            let AnyIndex::Smart(smart) = index else { panic!("it is no table of this engine") };
            let of = |name| smart.counts().into_iter().find(|it| it.0 == name).map(|it| it.1);
            case.count.map_or(1, |name| of(name).expect("a count"))
        };
        let (counts_before, from) = (count(&index), sim.posts());
        let at = match trouble {
            Trouble::None => u64::MAX,
            Trouble::Lost(at) => {
                sim.set_fault_window(from + at + 1..from + at + 2);
                at
            }
            Trouble::Dropped(at) => at,
        };
        let is_posted = || sim.posts() > from + at.min(1 << 32);
        let own = async {
            let done = case.step.act(&session, &index, 1).await;
            posts.set(sim.posts() - from);
            done
        };
        let rival = async {
            if !has_rival && !matches!(trouble, Trouble::Dropped(_)) {
                return None;
            }
            let mut waits = 0;
            while !is_posted() && waits < 4_000 {
                rival_session.endpoint().sleep(100).await;
                waits += 1;
            }
            if !has_rival {
                return None;
            }
            Some(case.rival.act(&rival_session, &rival_index, 2).await)
        };
        let is_dropped = || matches!(trouble, Trouble::Dropped(_)) && is_posted();
        let (done, rival_done) = both(own, rival, is_dropped).await;
        sim.calm();
        counted.set(count(&index) + 1 - counts_before);
        if let Some(done) = &done {
            assert!(done.is_ok(), "{what}: {done:?}");
        }
        assert!(!matches!(rival_done, Some(Err(_))), "{what}: {rival_done:?}");
        assert!(session.finish_tasks().await && rival_session.finish_tasks().await, "{what}");
        let mut content = Model::new();
        let keys = case.fill.iter().copied().chain([case.step.key(), case.rival.key()]);
        for key in keys {
            let mut held = Vec::new();
            for (session, index) in [(&rival_session, &rival_index), (&session, &index)] {
                if index.get(session, key.as_bytes(), &mut held).await.expect("get") {
                    let by = held.first().copied().unwrap_or_default();
                    assert!(held.iter().all(|byte| *byte == by), "{what}: {held:?}");
                    content.insert(key, (by, held.len()));
                } else {
                    assert!(!content.contains_key(key), "{what}: {key} is there and not");
                }
            }
        }
        // The states that the two orders give; a dropped operation may not have happened.
        let mut steps = vec![(case.step, 1, done.map(|done| done.ok()))];
        steps.extend(rival_done.map(|done| (case.rival, 2, Some(done.ok()))));
        let orders = [steps.clone(), steps.iter().rev().copied().collect()];
        let alone = || steps.iter().copied().filter(|it| it.2.is_some()).collect::<Vec<_>>();
        let mut all = orders.to_vec();
        if steps[0].2.is_none() {
            all.push(alone());
        }
        let fits = all.iter().any(|order| {
            let mut state = model.clone();
            let answers = order.iter().all(|(step, by, done)| {
                let answer = step.apply(*by, &mut state);
                done.is_none_or(|done| done == Some(answer))
            });
            answers && state == content
        });
        assert!(fits, "{what}: {steps:?} after {model:?} leave {content:?}");
        // No lock stays behind, and no memory is lost.
        let before_ns = session.endpoint().now_ns();
        for key in case.fill.iter() {
            index.upsert(&session, key.as_bytes(), &[9; 8]).await.expect("upsert");
        }
        assert!(session.endpoint().now_ns() - before_ns < 1_000_000, "{what}: it waited");
        rival_index.close(&rival_session).await.expect("close");
        rival_session.leave().await.expect("leave");
        check(&session, &[&index]).await;
    })
    .expect("the simulation ends");
    (posts.get(), counted.get())
}

#[test]
fn each_lost_completion_is_judged() {
    for case in CASES {
        let (posts, counted) = run(case, 1, Trouble::None, false);
        assert!(posts >= 2 && counted >= 1, "{}: {posts} posts, {counted}", case.name);
        for at in 0..posts {
            for seed in 1..4 {
                run(case, seed, Trouble::Lost(at), false);
                run(case, seed + 10, Trouble::Lost(at), true);
            }
        }
    }
}

#[test]
fn a_caller_dropped_at_any_post_leaves_nothing_half_done() {
    for case in CASES {
        let (posts, _) = run(case, 1, Trouble::None, false);
        for at in 0..posts {
            run(case, 1, Trouble::Dropped(at), false);
            run(case, 2, Trouble::Dropped(at), true);
        }
    }
}

/// 300 gets of one key begin at once: a READ serves as many as the batch limit lets it.
#[test]
fn gets_of_one_key_share_reads() {
    for (limit, most) in [("0", 2), ("8", 300 / 8 + 2)] {
        let sim = Sim::new(World::default().sim_config()).expect("sim");
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        sim.block_on(async {
            let session = start(endpoint, &World::default().pool_options()).await;
            AnyIndex::create(&session, "t", &bytes()).await.expect("create");
            let root = session.open_root("t").await.expect("root");
            let settings = Settings::default().with("batch_limit", limit);
            let options = OpenOptions { settings, ..OpenOptions::default() };
            let index = AnyIndex::open(&session, &root, &options).await.expect("open");
            assert_eq!(index.insert(&session, b"hot", b"value").await, Ok(true));
            assert_eq!(index.get(&session, b"hot", &mut Vec::new()).await, Ok(true));
            let (before, left) = (costs(&session), std::rc::Rc::new(Cell::new(300)));
            for _ in 0..300 {
                let (session, index, left) = (session.clone(), index.clone(), left.clone());
                session.clone().endpoint().spawn(async move {
                    let mut held = Vec::new();
                    assert_eq!(index.get(&session, b"hot", &mut held).await, Ok(true));
                    assert_eq!(held, b"value");
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                session.endpoint().sleep(1_000).await;
            }
            let reads = costs(&session).since(&before).total().reads;
            assert!((1..=most).contains(&reads), "limit {limit}: {reads} READs");
        })
        .expect("the simulation ends");
    }
}
