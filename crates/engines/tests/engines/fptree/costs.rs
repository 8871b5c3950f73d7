//! Cost tests of the engine `fptree`: the remote operations and bytes of every operation, to the verb, on the simulator
//! without any capability of its fabric.

use super::{KEYS, LINE, SLOT, key, table};
use crate::common::{World, check, cost_since, costs, settle, stock};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, OpKind};
use farleaf_index::{Exchange, Index, KeyFormat, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

/// READs, WRITEs, CASes, waits.
type Verbs = [u64; 4];

/// Bytes of a leaf, of a node of records, of a line without its lock, and of a lock and an unlock.
const LEAF: u64 = 1664;
const NODE: u64 = 1024;
const TABLE: u64 = 56;
const LOCKED: u64 = 16;

fn verbs_of(cost: Cost) -> Verbs {
    assert_eq!(cost.faa, 0, "{cost:?}");
    [cost.reads, cost.writes, cost.cas, cost.round_trips]
}

/// The cost of changes by `expected` verbs and `bytes` that are read and written.
#[derive(Clone, Copy, Debug)]
struct Expected {
    verbs: Verbs,
    bytes: [u64; 2],
}

/// READs of slots of other keys with the same fingerprint: those beyond `expected`, as their bytes show.
fn of_other_keys(cost: Cost, expected: Expected) -> u64 {
    let others = cost.reads - expected.verbs[0];
    assert_eq!(cost.bytes_read, expected.bytes[0] + others * SLOT, "{cost:?}, {expected:?}");
    assert_eq!(cost.bytes_written, expected.bytes[1], "{cost:?}, {expected:?}");
    others
}

/// A change of leaves costs what is expected. The word of the upper tree's root is READ where the epoch has moved on; with
/// it, and with slots of other keys in one or two waits, there may be READs more, which their bytes show.
fn costs_as(cost: Cost, expected: Expected) {
    let [reads, writes, cas, waits] = expected.verbs;
    let beyond = cost.reads - reads;
    let root = (beyond * SLOT + expected.bytes[0] - cost.bytes_read) / (SLOT - 8);
    assert!(root <= 1, "{cost:?}, {expected:?}");
    let cost = Cost { reads: cost.reads - root, bytes_read: cost.bytes_read - 8 * root, ..cost };
    let others = of_other_keys(cost, expected);
    assert_eq!([cost.writes, cost.cas], [writes, cas], "{cost:?}, {expected:?}");
    let waits = waits + root..=waits + root + others.min(2);
    assert!(waits.contains(&cost.round_trips), "{cost:?}, {expected:?}");
}

fn on_bare_sim(test: impl AsyncFnOnce(Session)) {
    let world = World { region_bytes: 16 << 20, ..World::default() };
    world.on_sim_with(world.sim_config(), test);
}

/// Runs `op` for numbers of keys. Slots of other keys with the same fingerprint are READ in the wait of the right slot,
/// or, where no slot is right, in one more: such operations stand apart.
async fn each(
    session: &Session,
    kind: OpKind,
    (verbs, bytes): (Verbs, [u64; 2]),
    numbers: impl Iterator<Item = u64>,
    mut op: impl AsyncFnMut(u64),
) {
    assert!(!session.endpoint().capabilities().write_vs_rmw);
    let (mut count, mut others) = (0, 0);
    for number in numbers {
        let before = costs(session);
        op(number).await;
        let cost = cost_since(session, &before, kind);
        assert_eq!(costs(session).since(&before).total(), cost, "and nothing beside it");
        let (found, beside) = (verbs_of(cost), of_other_keys(cost, Expected { verbs, bytes }));
        count += 1;
        if beside > 0 {
            others += beside;
            assert_eq!([found[1], found[2]], [verbs[1], verbs[2]], "{kind:?} {number}");
            assert!((verbs[3]..=verbs[3] + 1).contains(&found[3]), "{kind:?} {found:?}");
        } else {
            assert_eq!(found, verbs, "{kind:?} {number}: READs, WRITEs, CASes, waits");
        }
    }
    // 22.4 pairs a leaf, 255 fingerprints.
    assert!(others * 100 >= count && others * 100 <= 17 * count, "{kind:?}: {others} of {count}");
}

async fn point_operations(session: Session) {
    let index = table(&session).await;
    let (mut value, mut held) = (Vec::new(), Vec::new());
    // Even numbers are there.
    let there = || (0..400).map(|number| 2 * number);
    let absent = || (0..400).map(|number| 2 * number + 1);
    // So that no leaf becomes empty.
    let half = || (0..400).map(|number| 4 * number);
    each(&session, OpKind::Get, ([2, 0, 0, 2], [LINE + SLOT, 0]), there(), async |number| {
        assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(true));
    })
    .await;
    each(&session, OpKind::Get, ([1, 0, 0, 1], [LINE, 0]), absent(), async |number| {
        assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(false));
    })
    .await;
    each(
        &session,
        OpKind::Update,
        ([2, 1, 2, 3], [LINE + SLOT, 16 + LOCKED]),
        there(),
        async |number| {
            assert_eq!(index.update(&session, &key(number), &[1; 8]).await, Ok(true));
        },
    )
    .await;
    each(&session, OpKind::Update, ([1, 0, 2, 2], [LINE, LOCKED]), absent(), async |number| {
        assert_eq!(index.update(&session, &key(number), &[1; 8]).await, Ok(false));
    })
    .await;
    each(
        &session,
        OpKind::Upsert,
        ([2, 1, 2, 3], [LINE + SLOT, 16 + LOCKED]),
        there(),
        async |number| {
            assert_eq!(index.upsert(&session, &key(number), &[2; 8]).await, Ok(false));
        },
    )
    .await;
    each(
        &session,
        OpKind::Insert,
        ([2, 0, 2, 3], [LINE + SLOT, LOCKED]),
        there(),
        async |number| {
            assert_eq!(index.insert(&session, &key(number), &[3; 8]).await, Ok(false));
        },
    )
    .await;
    each(
        &session,
        OpKind::CompareExchange,
        ([2, 1, 2, 3], [LINE + SLOT, 16 + LOCKED]),
        there(),
        async |number| {
            let (old, new) = ([2; 8], [4; 8]);
            let exchange = index
                .compare_exchange(&session, &key(number), Some(&old), Some(&new), &mut held)
                .await;
            assert_eq!(exchange, Ok((Exchange::Done, true)));
        },
    )
    .await;
    each(
        &session,
        OpKind::CompareExchange,
        ([2, 0, 2, 3], [LINE + SLOT, LOCKED]),
        there(),
        async |number| {
            let (old, new) = ([2; 8], [5; 8]);
            let exchange = index
                .compare_exchange(&session, &key(number), Some(&old), Some(&new), &mut held)
                .await;
            assert_eq!(exchange, Ok((Exchange::Differs, true)));
            assert_eq!(held, [4; 8]);
        },
    )
    .await;
    each(&session, OpKind::Remove, ([1, 0, 2, 2], [LINE, LOCKED]), absent(), async |number| {
        assert_eq!(index.remove(&session, &key(number)).await, Ok(false));
    })
    .await;
    each(
        &session,
        OpKind::Remove,
        ([2, 2, 2, 3], [LINE + SLOT, 24 + TABLE + LOCKED]),
        half(),
        async |number| {
            assert_eq!(index.remove(&session, &key(number)).await, Ok(true));
        },
    )
    .await;
    each(
        &session,
        OpKind::Insert,
        ([1, 2, 2, 2], [LINE, TABLE + SLOT + LOCKED]),
        half(),
        async |number| {
            assert_eq!(index.insert(&session, &key(number), &[6; 8]).await, Ok(true));
        },
    )
    .await;
    assert_eq!(check(&session, &[&index]).await.keys, KEYS);
}

#[test]
fn point_operations_cost_what_the_design_says() {
    on_bare_sim(point_operations);
}

/// A record adds a WRITE and a wait to a put, and a READ and a wait to a get.
async fn records(session: Session) {
    let spec = Spec { key: KeyFormat::Fixed(24), value: ValueFormat::Bytes };
    let format = TableFormat::new(Engine::FpTree, spec);
    let settings = Settings::default().with("merge", "0");
    let index = farleaf_harness::create_table(&session, "t", &format, 96, &settings).await;
    let index = index.expect("a table");
    for number in 0..20 {
        assert_eq!(index.insert(&session, &key(number), &[1; 100]).await, Ok(true));
    }
    // Taking memory for records costs as well.
    stock(&session, &[24 + 24 + 100], 4).await;
    let mut value = Vec::new();
    let before = costs(&session);
    assert_eq!(index.get(&session, &key(7), &mut value).await, Ok(true));
    assert_eq!(verbs_of(cost_since(&session, &before, OpKind::Get)), [3, 0, 0, 3]);
    let before = costs(&session);
    assert_eq!(index.insert(&session, &key(30), &[2; 100]).await, Ok(true));
    assert_eq!(verbs_of(cost_since(&session, &before, OpKind::Insert)), [1, 3, 2, 3]);
    let before = costs(&session);
    assert_eq!(index.update(&session, &key(7), &[2; 100]).await, Ok(true));
    let replaced = verbs_of(cost_since(&session, &before, OpKind::Update));
    assert_eq!(replaced, [2, 2, 2, 4], "the old record is retired without a verb");
    assert_eq!(check(&session, &[&index]).await.keys, 21);
}

#[test]
fn a_record_costs_a_write_or_a_read() {
    on_bare_sim(records);
}

/// A split, a refresh by another compute server's records, and a merge. `upper` is the height of the tree of records.
async fn changes_of_leaves(session: Session) {
    let index = table(&session).await;
    let old = crate::common::open(&session, "t").await;
    let upper = check(&session, &[&index]).await.nodes_per_level.len() as u64 - 1;
    assert_eq!(upper, 2);
    let mut value = Vec::new();
    // The second leaf to the twelfth: 22 of 32 slots are full.
    let (first, last) = (2 * 22, 2 * 44);
    assert_eq!(old.get(&session, &key(first), &mut value).await, Ok(true));
    // Taking memory costs as well.
    stock(&session, &[LEAF as usize, NODE as usize], 16).await;
    // A first attempt only locks and READs the line; the insert behind the split is as any.
    let split = Expected {
        verbs: [upper + 2 + 2, 8 + 2, 5 + 3, upper + 7 + 3],
        bytes: [LEAF + LINE + upper * NODE + 2 * LINE, 5_952 + 8 + TABLE + SLOT + LOCKED],
    };
    // A node of records that is full is split with it: the new node, the old one with a redo record, and the parent's.
    let with_upper = Expected {
        verbs: [upper + 2 + 4, 8 + 5, 5 + 5, upper + 7 + 7],
        bytes: [split.bytes[0] + 2 * NODE, split.bytes[1] + 3_144],
    };
    let (mut splits, mut upper_splits) = (0, 0);
    for number in (first..2 * 12 * 22).filter(|number| number % 2 == 1) {
        let before = costs(&session);
        assert_eq!(index.insert(&session, &key(number), &[1; 8]).await, Ok(true));
        let cost = costs(&session).since(&before).total();
        let is_upper = cost.writes > split.verbs[1];
        if cost.writes > 2 {
            costs_as(cost, if is_upper { with_upper } else { split });
            (splits, upper_splits) = (splits + 1, upper_splits + u64::from(is_upper));
        }
    }
    assert!(
        splits >= 9 && upper_splits == 1,
        "{splits} splits, {upper_splits} of nodes of records"
    );

    // The other one's record is old: the line, the header, and the get.
    let before = costs(&session);
    assert_eq!(old.get(&session, &key(first), &mut value).await, Ok(true));
    let refresh = Expected { verbs: [4, 0, 0, 4], bytes: [2 * LINE + 128 + SLOT, 0] };
    costs_as(costs(&session).since(&before).total(), refresh);
    // The rest of the range is that of a leaf whose header it READs first. The leaf's table object is new to it: 1 READ of a
    // word of the directory, 1 of the object's header.
    let before = costs(&session);
    assert_eq!(old.get(&session, &key(last - 2), &mut value).await, Ok(true));
    let cost = costs(&session).since(&before).total();
    let of_neighbour = Expected { verbs: [5, 0, 0, 5], bytes: [128 + 8 + 2 * LINE + SLOT, 0] };
    assert_eq!(of_other_keys(cost, of_neighbour), 0, "{cost:?}");
    assert_eq!(verbs_of(cost), of_neighbour.verbs);

    // A leaf that becomes empty is merged with its neighbour; nothing moves. Then it looks for the next one to merge.
    settle(&session).await;
    let (mut merges, mut upper_merges, mut full) = (0, 0, 0);
    for number in 0..2 * KEYS / 8 {
        let before = costs(&session);
        for number in 8 * number..8 * number + 8 {
            if index.get(&session, &key(number), &mut value).await == Ok(true) {
                assert_eq!(index.remove(&session, &key(number)).await, Ok(true));
            }
        }
        let cost = cost_since(&session, &before, OpKind::Maintenance);
        if cost.writes == 0 {
            continue;
        }
        merges += 1;
        // A sparse node of records looks for a neighbour of its own.
        if cost.cas > 6 {
            upper_merges += 1;
            continue;
        }
        // The word of the root, two locked lines and two leaves, the levels above them twice, and the lines of up to three
        // leaves at each look. In the end the upper tree loses a level.
        let root = u64::from(cost.bytes_read % LINE == 8);
        let lines = |levels: u64| cost.reads - root - 2 - 2 * levels;
        let bytes = |levels| 2 * LEAF + 2 * levels * NODE + lines(levels) * LINE + 8 * root;
        let levels = (1..=upper).find(|levels| cost.bytes_read == bytes(*levels));
        let levels = levels.unwrap_or_else(|| panic!("{cost:?}"));
        assert!((2..=2 + 3 + 3).contains(&lines(levels)), "{cost:?}");
        let expected = [cost.reads, 7, 6, 2 * levels + 10 + root];
        assert_eq!((verbs_of(cost), cost.bytes_written), (expected, 4_368), "{cost:?}");
        full += u64::from(levels == upper);
    }
    let counts = format!("{merges}, {upper_merges} beside one above, {full} below all levels");
    assert!(merges > 80 && upper_merges < merges / 2 && full > merges / 2, "{counts}");
    assert_eq!(check(&session, &[&index]).await.keys, 0);
}

#[test]
fn splits_refreshes_and_merges_cost_what_the_design_says() {
    on_bare_sim(changes_of_leaves);
}
