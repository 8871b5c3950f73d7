//! Cost tests of the engine `dmtree`: operations and bytes by kind of target, in the simulator without any capability.

use std::cell::Cell;
use std::rc::Rc;

use super::{Cluster, paper_table, sim_config};
use crate::common::{Pairs, costs, stock};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, Endpoint, Snapshot};
use farleaf_index::{Entries, Exchange, Index, KeyFormat, ScanRange, Settings, Spec, ValueFormat};
use farleaf_pool::Session;

const KEYS: u64 = 2_000;
const COUNTED: u64 = 400;
const SLOT: u64 = 48;
const LINE: u64 = 64;
const LEAF: u64 = 1664;
const NODE: u64 = 1024;

fn key(number: u64) -> Vec<u8> {
    [number.to_be_bytes(), [7; 8], [9; 8]].concat()
}

/// READs, WRITEs and CASes at memory servers, the same at compute servers with the own one, and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Verbs {
    memory: [u64; 3],
    compute: [u64; 3],
    waits: u64,
}

fn verbs(cost: Cost) -> [u64; 3] {
    assert_eq!(cost.faa, 0, "{cost:?}");
    [cost.reads, cost.writes, cost.cas]
}

fn verbs_of(cost: &Snapshot) -> Verbs {
    let (memory, compute, own) = (verbs(cost.memory()), verbs(cost.compute()), verbs(cost.own()));
    let compute = [0, 1, 2].map(|at| compute[at] + own[at]);
    Verbs { memory, compute, waits: cost.total().round_trips }
}

/// Runs `op` for numbers of keys, and lets tasks end. READs of slots of other keys with the same fingerprint stand apart.
async fn each(
    session: &Session,
    what: &str,
    expected: Verbs,
    bytes: [u64; 2],
    numbers: impl Iterator<Item = u64>,
    mut op: impl AsyncFnMut(u64),
) {
    let (mut count, mut others) = (0, 0);
    for number in numbers {
        let before = costs(session);
        op(number).await;
        assert!(session.finish_tasks().await);
        let cost = costs(session).since(&before);
        let mut found = verbs_of(&cost);
        let beside = found.memory[0] - expected.memory[0];
        let memory = cost.memory();
        assert_eq!(memory.bytes_read, bytes[0] + beside * SLOT, "{what} {number}: {cost:?}");
        assert_eq!(memory.bytes_written, bytes[1], "{what} {number}: {cost:?}");
        let lines = cost.compute().bytes_read + cost.own().bytes_read;
        assert_eq!(lines, expected.compute[0] * LINE, "{what} {number}: {cost:?}");
        found.memory[0] -= beside;
        if (expected.waits..=expected.waits + beside.min(2)).contains(&found.waits) {
            found.waits = expected.waits;
        }
        assert_eq!(found, expected, "{what} {number}: {beside} beside");
        count += 1;
        others += beside;
    }
    // 22.4 pairs a leaf, 255 fingerprints. A get of an absent key READs such a slot by the replica, and by the line.
    assert!(others * 100 <= 30 * count, "{what}: {others} of {count}");
}

/// The paper's pairs in a table of three compute servers; compute server 0 has all records and replicas, as far as it keeps them.
fn cluster(settings: &Settings) -> Cluster {
    let settings = settings.clone().with("merge", "0");
    let cluster = Cluster::new(sim_config(3), &paper_table(), 3, &settings);
    cluster.on(0, async move |session, index| {
        let pairs: Vec<_> =
            (0..KEYS).map(|number| (key(2 * number), number.to_le_bytes().to_vec())).collect();
        assert_eq!(index.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(KEYS));
        let mut value = Vec::new();
        for number in 0..KEYS {
            // The line proves an absent key absent, and brings the replica.
            let got = index.get(&session, &key(2 * number + 1), &mut value).await;
            assert_eq!(got, Ok(false));
        }
    });
    // Regular work counts as well.
    (0..3).for_each(|compute| cluster.server(compute).is_over.set(true));
    cluster.rest(1_000_000);
    cluster
}

/// The first operations of a session take tokens for its locks.
async fn warm(session: &Session, index: &AnyIndex) {
    for number in 0..4 {
        assert_eq!(index.update(session, &key(2 * number), &[0; 8]).await, Ok(true));
    }
    assert!(session.finish_tasks().await);
}

async fn point_operations(session: Session, index: AnyIndex) {
    let (mut value, mut held) = (Vec::new(), Vec::new());
    let there = || (0..COUNTED).map(|number| 2 * number);
    let absent = || (0..COUNTED).map(|number| 2 * number + 1);
    // So that no leaf becomes empty.
    let half = || (0..COUNTED).map(|number| 4 * number);
    let none = [0; 3];
    warm(&session, &index).await;

    let get = Verbs { memory: [1, 0, 0], compute: none, waits: 1 };
    each(&session, "get", get, [SLOT, 0], there(), async |number| {
        assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(true));
    })
    .await;

    let get = Verbs { memory: none, compute: [1, 0, 0], waits: 1 };
    each(&session, "get of an absent key", get, [0, 0], absent(), async |number| {
        assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(false));
    })
    .await;

    let update = Verbs { memory: [1, 1, 0], compute: [1, 0, 2], waits: 2 };
    each(&session, "update", update, [SLOT, 16], there(), async |number| {
        assert_eq!(index.update(&session, &key(number), &[1; 8]).await, Ok(true));
    })
    .await;
    each(&session, "upsert", update, [SLOT, 16], there(), async |number| {
        assert_eq!(index.upsert(&session, &key(number), &[2; 8]).await, Ok(false));
    })
    .await;

    let missing = Verbs { memory: none, compute: [1, 0, 2], waits: 1 };
    each(&session, "update of an absent key", missing, [0, 0], absent(), async |number| {
        assert_eq!(index.update(&session, &key(number), &[1; 8]).await, Ok(false));
    })
    .await;

    let exchange = Verbs { waits: 3, ..update };
    each(&session, "compare_exchange", exchange, [SLOT, 16], there(), async |number| {
        let (old, new) = ([2; 8], [4; 8]);
        let key = key(number);
        let exchange =
            index.compare_exchange(&session, &key, Some(&old), Some(&new), &mut held).await;
        assert_eq!(exchange, Ok((Exchange::Done, true)));
    })
    .await;

    let remove = Verbs { memory: [1, 1, 0], compute: [1, 1, 2], waits: 2 };
    each(&session, "remove", remove, [SLOT, 24], half(), async |number| {
        assert_eq!(index.remove(&session, &key(number)).await, Ok(true));
    })
    .await;

    let insert = Verbs { memory: [0, 1, 0], compute: [1, 1, 2], waits: 3 };
    each(&session, "insert", insert, [0, SLOT], half(), async |number| {
        assert_eq!(index.insert(&session, &key(number), &[6; 8]).await, Ok(true));
    })
    .await;
}

#[test]
fn point_operations_cost_what_the_design_says() {
    let cluster = cluster(&Settings::default());
    cluster.on(0, point_operations);
    assert_eq!(cluster.check(0), KEYS);
}

/// Without replicas a get READs the line first, and no change speculates.
#[test]
fn without_replicas_a_get_reads_a_line_and_a_slot() {
    let cluster = cluster(&Settings::default().with("replica", "false"));
    cluster.on(0, async |session, index| {
        let mut value = Vec::new();
        let there = || (0..COUNTED).map(|number| 2 * number);
        warm(&session, &index).await;
        let get = Verbs { memory: [1, 0, 0], compute: [1, 0, 0], waits: 2 };
        each(&session, "get", get, [SLOT, 0], there(), async |number| {
            assert_eq!(index.get(&session, &key(number), &mut value).await, Ok(true));
        })
        .await;
        let update = Verbs { memory: [1, 1, 0], compute: [1, 0, 2], waits: 3 };
        each(&session, "update", update, [SLOT, 16], there(), async |number| {
            assert_eq!(index.update(&session, &key(number), &[1; 8]).await, Ok(true));
        })
        .await;
    });
}

/// A scan READs the line of each leaf at its home, then the slots that it names: two waits for a window.
#[test]
fn a_scan_reads_lines_at_compute_servers() {
    let cluster = cluster(&Settings::default());
    cluster.on(0, async |session, index| {
        let leaves = KEYS.div_ceil(22);
        warm(&session, &index).await;
        let before = costs(&session);
        let mut out = Entries::new();
        index.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
        assert_eq!(out.len() as u64, KEYS);
        let cost = costs(&session).since(&before);
        let found = verbs_of(&cost);
        assert_eq!(found.compute, [leaves, 0, 0], "{cost:?}");
        assert!((leaves..=leaves + 8).contains(&found.memory[0]), "{cost:?}, {leaves} leaves");
        assert!(found.waits <= 2 * (leaves.div_ceil(16) + leaves / 10 + 2), "{cost:?}");
    });
}

/// A change that does nothing locks and looks.
#[test]
fn changes_without_an_effect_lock_and_look() {
    let cluster = cluster(&Settings::default());
    cluster.on(0, async |session, index| {
        let mut held = Vec::new();
        let there = || (0..COUNTED).map(|number| 2 * number);
        let absent = || (0..COUNTED).map(|number| 2 * number + 1);
        warm(&session, &index).await;
        let looked = Verbs { memory: [1, 0, 0], compute: [1, 0, 2], waits: 2 };
        each(&session, "insert of a present key", looked, [SLOT, 0], there(), async |number| {
            assert_eq!(index.insert(&session, &key(number), &[3; 8]).await, Ok(false));
        })
        .await;
        each(&session, "exchange that differs", looked, [SLOT, 0], there(), async |number| {
            let (old, new) = ([9; 8], [5; 8]);
            let exchange = index
                .compare_exchange(&session, &key(number), Some(&old), Some(&new), &mut held)
                .await;
            assert_eq!(exchange, Ok((Exchange::Differs, true)));
        })
        .await;
        let missing = Verbs { memory: [0; 3], compute: [1, 0, 2], waits: 1 };
        each(&session, "remove of an absent key", missing, [0, 0], absent(), async |number| {
            assert_eq!(index.remove(&session, &key(number)).await, Ok(false));
        })
        .await;
    });
}

/// A value that is no word has a record of its own: 1 WRITE and 1 wait more for a put, 1 READ and 1 wait more for a get. A
/// put needs the slot that it replaces, so it READs no slot before the lock.
#[test]
fn a_record_costs_a_write_or_a_read() {
    for value in [ValueFormat::Bytes, ValueFormat::Fixed(16)] {
        let bytes = if value == ValueFormat::Bytes { 100 } else { 16 };
        let spec = Spec { key: KeyFormat::Fixed(24), value };
        let format = TableFormat::new(Engine::DmTree, spec);
        let cluster = Cluster::new(sim_config(3), &format, 3, &Settings::default());
        cluster.on(0, async move |session, index| {
            for number in 0..20 {
                let inserted = index.insert(&session, &key(number), &vec![1; bytes]).await;
                assert_eq!(inserted, Ok(true));
            }
            assert!(session.finish_tasks().await);
            // Taking memory for records costs as well.
            stock(&session, &[24 + 24 + bytes], 4).await;
        });
        (0..3).for_each(|compute| cluster.server(compute).is_over.set(true));
        cluster.rest(1_000_000);
        cluster.on(0, async move |session, index| {
            let mut value = Vec::new();
            let cost_of = async |what: &str, expected: Verbs, before: Snapshot| {
                assert!(session.finish_tasks().await);
                let found = verbs_of(&costs(&session).since(&before));
                assert_eq!(found, expected, "{what} of {bytes} bytes");
            };
            // The first operations of a session take tokens for its locks.
            let updated = index.update(&session, &key(3), &vec![2; bytes]).await;
            assert_eq!(updated, Ok(true));
            assert!(session.finish_tasks().await);
            let before = costs(&session);
            assert_eq!(index.get(&session, &key(7), &mut value).await, Ok(true));
            let get = Verbs { memory: [2, 0, 0], compute: [0; 3], waits: 2 };
            cost_of("get", get, before).await;
            let before = costs(&session);
            let inserted = index.insert(&session, &key(30), &vec![2; bytes]).await;
            assert_eq!(inserted, Ok(true));
            let insert = Verbs { memory: [0, 2, 0], compute: [1, 1, 2], waits: 4 };
            cost_of("insert", insert, before).await;
            let before = costs(&session);
            let updated = index.update(&session, &key(7), &vec![2; bytes]).await;
            assert_eq!(updated, Ok(true));
            let update = Verbs { memory: [1, 2, 0], compute: [1, 0, 2], waits: 4 };
            cost_of("update", update, before).await;
        });
        assert_eq!(cluster.check(0), 21);
    }
}

/// The owner of a leaf's line dies: the first change builds the line from the leaf, 1 READ of the leaf and 1 WRITE of the line,
/// and has no replica to go by.
#[test]
fn the_first_change_after_a_fail_over_builds_the_line() {
    let cluster = cluster(&Settings::default());
    let dead = cluster.server(2).fabric.incarnation();
    cluster.kill(2);
    // The other member's acknowledgements.
    let is_over = Rc::new(Cell::new(false));
    let other = {
        let is_over = Rc::clone(&is_over);
        cluster.begin(1, async move |session, index| {
            while !is_over.get() {
                index.partitions().expect("partitions").tick(&session).await.expect("a tick");
                session.endpoint().sleep(super::TICK_NS).await;
            }
        })
    };
    cluster.on(0, async move |session, index| {
        while !session.endpoint().is_dead(dead).await {
            session.endpoint().sleep(super::TICK_NS).await;
        }
        let partitions = index.partitions().expect("partitions");
        partitions.take_over_partitions(&session, dead).await.expect("taken over");
        warm(&session, &index).await;
        let mut built = 0;
        let build = Verbs { memory: [2, 1, 0], compute: [1, 1, 2], waits: 5 };
        for number in (0..KEYS).map(|number| 2 * number) {
            let before = costs(&session);
            assert_eq!(index.update(&session, &key(number), &[8; 8]).await, Ok(true));
            assert!(session.finish_tasks().await);
            let cost = costs(&session).since(&before);
            let mut found = verbs_of(&cost);
            if found.compute[1] == 0 {
                continue;
            }
            let beside = found.memory[0] - build.memory[0];
            assert_eq!(cost.memory().bytes_read, LEAF + SLOT + beside * SLOT, "{cost:?}");
            assert_eq!(cost.memory().bytes_written, 16, "{cost:?}");
            found.memory[0] -= beside;
            assert_eq!(found, build, "{number}: {cost:?}");
            built += 1;
        }
        assert!(built > 10, "{built}");
    });
    assert!(cluster.counter("lines_built") > 10);
    is_over.set(true);
    cluster.rest(1_000_000);
    assert_eq!(other.take(), Some(()));
    assert_eq!(cluster.check(0), KEYS);
}

/// A split, and a refresh by another compute server's records.
#[test]
fn splits_and_refreshes_cost_what_the_design_says() {
    let cluster = cluster(&Settings::default());
    let upper = 2;
    cluster.on(0, async move |session, index| {
        warm(&session, &index).await;
        // Taking memory costs as well.
        stock(&session, &[LEAF as usize, NODE as usize], 16).await;
        // A first attempt locks and READs the line; the insert behind the split is as any.
        let split = Verbs { memory: [1 + upper, 7, 2], compute: [3, 3, 6], waits: upper + 11 };
        let (mut splits, mut upper_splits) = (0, 0);
        for number in (2 * 22..2 * 12 * 22).filter(|number| number % 2 == 1) {
            let before = costs(&session);
            assert_eq!(index.insert(&session, &key(number), &[1; 8]).await, Ok(true));
            assert!(session.finish_tasks().await);
            let cost = costs(&session).since(&before);
            let mut found = verbs_of(&cost);
            if found.memory[1] == 1 {
                continue;
            }
            splits += 1;
            if found.memory[1] > split.memory[1] {
                // A node of records that is full is split with it.
                upper_splits += 1;
                continue;
            }
            // The word of the root where the epoch has moved on, and slots of other keys.
            let beside = found.memory[0] - split.memory[0];
            assert!(beside <= 4, "{number}: {cost:?}");
            found.memory[0] -= beside;
            let waits = split.waits..=split.waits + beside;
            assert!(waits.contains(&found.waits), "{number}: {cost:?}");
            found.waits = split.waits;
            assert_eq!(found, split, "{number}: {cost:?}");
        }
        assert!(splits >= 9 && upper_splits <= 1, "{splits}, {upper_splits}");
    });
    cluster.on(1, async move |session, index| {
        let mut value = Vec::new();
        // It has neither records nor replicas of before: the first get of a leaf descends.
        assert_eq!(index.get(&session, &key(2 * 13 * 22), &mut value).await, Ok(true));
        assert_eq!(index.get(&session, &key(2 * 14 * 22 + 8), &mut value).await, Ok(true));
    });
    cluster.on(0, async move |session, index| {
        for number in (2 * 14 * 22..2 * 15 * 22 + 44).filter(|number| number % 2 == 1) {
            assert_eq!(index.insert(&session, &key(number), &[1; 8]).await, Ok(true));
        }
        assert!(session.finish_tasks().await);
    });
    cluster.on(1, async move |session, index| {
        let mut value = Vec::new();
        let before = costs(&session);
        assert_eq!(index.get(&session, &key(2 * 14 * 22 + 8), &mut value).await, Ok(true));
        let cost = costs(&session).since(&before);
        // The slot of the old version, the header, the line at its home, and the slot.
        let refresh = Verbs { memory: [3, 0, 0], compute: [1, 0, 0], waits: 4 };
        assert_eq!(verbs_of(&cost), refresh, "{cost:?}");
        assert_eq!(cost.memory().bytes_read, 2 * SLOT + 128, "{cost:?}");
    });
}

/// The merge of an empty leaf: READs of the levels above, twice; 6 WRITEs and 2 CAS at memory servers.
#[test]
fn a_merge_of_an_empty_leaf_costs_what_the_design_says() {
    let cluster = cluster(&Settings::default());
    cluster.on(0, async move |session, index| {
        warm(&session, &index).await;
        let mut merges = 0;
        let mut found_costs = Vec::new();
        for number in (0..KEYS / 2).map(|number| 2 * number) {
            let before = costs(&session);
            assert_eq!(index.remove(&session, &key(number)).await, Ok(true));
            assert!(session.finish_tasks().await);
            let cost = costs(&session).since(&before);
            let found = verbs_of(&cost);
            if found.memory[1] == 1 {
                continue;
            }
            merges += 1;
            // A sparse node of records looks for a neighbour of its own.
            if found.memory[2] == 2 {
                found_costs.push(found);
            }
        }
        assert!(merges > 20 && found_costs.len() > merges / 2, "{merges}, {}", found_costs.len());
        for found in found_costs {
            assert_eq!(found.memory[1..], [1 + 6, 2], "{found:?}");
            // Those of the remove: lock, line and unlock, and the line without the key.
            assert_eq!(found.compute[1..], [1 + 1, 2 + 4], "{found:?}");
            assert!((3..=9).contains(&found.compute[0]), "{found:?}");
            assert!((4..=12).contains(&found.memory[0]), "{found:?}");
        }
    });
}
