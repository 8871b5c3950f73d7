//! Hot leaf tests: latch holders do waiting changes of `dex`, and readers answer waiting gets.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_engines::dex::{Admission, DexOptions, Durability};
use farleaf_engines::{Engine, TableFormat};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{Endpoint, ToAny};
use farleaf_index::Index;

use super::log::{key, logged, sim_config, world};
use super::tables::{check, create, open};
use crate::common::{Pairs, World, costs, start};

/// Sixteen changes of one leaf at a time: one round trip each, or two for all.
#[test]
fn logged_changes_of_one_leaf_share_a_write() {
    const TOGETHER: u64 = 16;
    for combine in [0, 4, 64] {
        let (sim, session, made) = world(sim_config(1, 1), &TableFormat::fixed8(Engine::BTree));
        let options = DexOptions { combine, log_bytes: 64 << 10, ..logged() };
        let opening = open(&session, made, 200, options);
        let index = sim.block_on(opening).expect("opened");
        sim.block_on(async {
            for number in 0..TOGETHER {
                index.upsert(&session, &key(number), &key(0)).await.expect("upsert");
            }
            let pool = session.pool();
            let mut sessions = Vec::new();
            for _ in 0..TOGETHER {
                sessions.push(pool.session(session.endpoint().clone()).await.expect("session"));
            }
            let (before, stats) = (costs(&session), index.tree().stats());
            let left = Rc::new(Cell::new(TOGETHER));
            for (number, session) in (0_u64..).zip(sessions) {
                let (index, left) = (index.clone(), Rc::clone(&left));
                let endpoint = session.endpoint().clone();
                endpoint.spawn(async move {
                    // Of each kind; one changes nothing.
                    let key = key(number);
                    let done = match number % 4 {
                        0 => index.upsert(&session, &key, &key).await.map(|new| !new),
                        1 => index.update(&session, &key, &key).await,
                        2 => index.remove(&session, &key).await,
                        _ => index.insert(&session, &key, &key).await.map(|new| !new),
                    };
                    assert_eq!(done, Ok(true));
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                session.endpoint().sleep(1_000).await;
            }
            let writes = costs(&session).since(&before).total().writes;
            let now = index.tree().stats();
            assert_eq!(now.log_records - stats.log_records, 3 * TOGETHER / 4);
            // Twelve by themselves, five at a time, or all.
            let expected = match combine {
                0 => (12, 0),
                4 => (3, 9),
                _ => (1, 11),
            };
            assert_eq!((writes, now.combined), expected, "{combine}");
            let mut value = Vec::new();
            for number in 0..TOGETHER {
                let has = index.get(&session, &key(number), &mut value).await.expect("get");
                assert_eq!(has, number % 4 != 2);
                assert!(!has || value == key(if number % 4 == 3 { 0 } else { number }));
            }
            check(&session, &index).await;
        })
        .expect("runs");
    }
}

/// Gets of a leaf that is not kept, at a time: one READ answers all, also those of keys that are not there; a value
/// in a record is another READ, and its own. Beside a change of the same leaf each still finds what was
/// there before it or after it.
#[test]
fn gets_of_one_leaf_share_a_read() {
    const TOGETHER: u64 = 16;
    let (sim, session, made) = world(sim_config(1, 1), &TableFormat::default());
    let options = DexOptions { admission: Admission::Chance(0.0), ..DexOptions::default() };
    sim.block_on(async {
        let index = open(&session, made, 16, options).await;
        let long = vec![7; 4_000];
        let pairs: Vec<_> = (0..8_000)
            .map(|number| (key(2 * number), if number == 5 { long.clone() } else { key(number) }))
            .collect();
        assert_eq!(index.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(8_000));
        // Leaves fill the frames that were never used.
        let mut value = Vec::new();
        for number in (0..8_000).rev() {
            assert_eq!(index.get(&session, &key(2 * number), &mut value).await, Ok(true));
        }
        let pool = session.pool();
        let mut sessions = Vec::new();
        for _ in 0..TOGETHER {
            sessions.push(pool.session(session.endpoint().clone()).await.expect("session"));
        }
        for changes in [false, true] {
            let (before, stats) = (costs(&session), index.tree().stats());
            let left = Rc::new(Cell::new(TOGETHER));
            for (number, session) in (0..TOGETHER).zip(sessions.iter().cloned()) {
                let (index, left, long) = (index.clone(), Rc::clone(&left), long.clone());
                session.endpoint().clone().spawn(async move {
                    let mut value = Vec::new();
                    if changes && number == 3 {
                        let done = index.update(&session, &key(6), &key(77)).await;
                        assert_eq!(done, Ok(true));
                    } else {
                        let has = index.get(&session, &key(number), &mut value).await;
                        assert_eq!(has, Ok(number % 2 == 0), "{number}");
                        let expected = match number {
                            10 => long,
                            6 if changes && value != key(3) => key(77),
                            _ => key(number / 2),
                        };
                        assert!(number % 2 == 1 || value == expected, "{number}: {value:?}");
                    }
                    left.set(left.get() - 1);
                });
            }
            while left.get() > 0 {
                session.endpoint().sleep(1_000).await;
            }
            let reads = costs(&session).since(&before).total().reads;
            let joined = index.tree().stats().gets_joined - stats.gets_joined;
            println!("{reads} READs, {joined} gets joined one");
            if changes {
                // One READ of the change's, and the leaf again and again between.
                assert!(reads <= 6 && joined >= TOGETHER - 6, "{reads} {joined}");
            } else {
                // The first's, and of who wants the record the leaf and that.
                assert_eq!((reads, joined), (3, TOGETHER - 2));
            }
        }
        check(&session, &index).await;
    })
    .expect("runs");
}

/// Threads that change keys of one leaf all the time find what each has left there itself, and every outcome
/// is that of the key's one owner.
#[test]
#[allow(clippy::disallowed_methods, reason = "real threads are what this is about")]
fn threads_at_one_leaf_do_each_others_changes() {
    const THREADS: u64 = 4;
    const STEPS: u64 = 2_000;
    for durability in [Durability::Volatile, Durability::Logged] {
        let fabric = Mapped::anonymous(2, 32 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        let executor = endpoint.executor().clone();
        let (session, index) = executor.block_on(async {
            let session = start(endpoint, &World::default().pool_options()).await;
            let made = create(&session, &TableFormat::fixed8(Engine::BTree)).await;
            let options = DexOptions { combine: 8, durability, ..DexOptions::default() };
            {
                let index = open(&session, made, 64, options).await;
                (session, index)
            }
        });
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, fabric, index) = (session.pool().clone(), fabric.clone(), index.clone());
                scope.spawn(move || {
                    let endpoint = fabric.any_endpoint().expect("endpoint");
                    let executor = endpoint.executor().clone();
                    executor.block_on(async {
                        for part in 0..2 {
                            let (pool, index) = (pool.clone(), index.clone());
                            let endpoint = endpoint.clone();
                            executor.spawn(async move {
                                let session = pool.session(endpoint).await.expect("session");
                                let (key, mut value) = (key(2 * thread + part), Vec::new());
                                for step in 0..STEPS {
                                    let new = self::key(step);
                                    let done = match step % 3 {
                                        0 => index.insert(&session, &key, &new).await,
                                        1 => index.upsert(&session, &key, &new).await,
                                        _ => index.remove(&session, &key).await,
                                    };
                                    assert_eq!(done, Ok(step % 3 != 1));
                                    let has = index.get(&session, &key, &mut value).await;
                                    assert_eq!(has, Ok(step % 3 != 2));
                                    assert!(step % 3 == 2 || value == new);
                                }
                            });
                        }
                    });
                });
            }
        });
        println!("{durability:?}: {} done by others", index.tree().stats().combined);
        executor.block_on(async { drop(check(&session, &index).await) });
    }
}
