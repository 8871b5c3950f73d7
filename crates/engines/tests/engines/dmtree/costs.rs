//! Cost tests of the engine `dmtree`: operations and bytes by kind of target, in the simulator without any capability.

use super::{Cluster, paper_table, sim_config};
use crate::common::{Pairs, costs};
use farleaf_engines::AnyIndex;
use farleaf_fabric::{Cost, Snapshot};
use farleaf_index::{Entries, Exchange, Index, ScanRange, Settings};
use farleaf_pool::Session;

const KEYS: u64 = 2_000;
const COUNTED: u64 = 400;
const SLOT: u64 = 48;
const LINE: u64 = 64;

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
