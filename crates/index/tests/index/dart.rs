//! DART tests: costs of operations with and without the skip table, its maintenance, and wrong starts.

use crate::common::model::Run;
use crate::common::{Pairs, World, check, cost_since, costs, settle};
use farleaf_fabric::{Cost, OpKind};
use farleaf_index::engines::dart::Dart;
use farleaf_index::{AnyIndex, Engine, Index, OpenOptions, Settings, TableFormat};
use farleaf_pool::Session;

async fn opened(session: &Session, format: &TableFormat, settings: &[(&str, &str)]) -> AnyIndex {
    let root = AnyIndex::create(session, "t", format).await.expect("create");
    let settings =
        settings.iter().fold(Settings::default(), |all, (name, text)| all.with(name, text));
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

fn dart(index: &AnyIndex) -> &Dart {
    match index {
        AnyIndex::Dart(dart) => dart,
        other => panic!("{other:?} is of another engine"),
    }
}

fn counter(index: &AnyIndex, name: &str) -> u64 {
    let all = dart(index).counters();
    all.iter().find(|(known, _)| *known == name).expect("such a counter").1
}

/// A small tree of the shape that 60 million random keys have: nodes of few leaves at one position, here 3.
fn pairs() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for prefix in 0..600_u32 {
        let head = prefix.wrapping_mul(0x9e37_79b1).to_be_bytes();
        for leaf in 0..7_u64 {
            let mut key = head[..3].to_vec();
            key.extend_from_slice(&(leaf * 0x2f_1234_5678).to_be_bytes()[3..]);
            pairs.push((key, vec![leaf as u8; 8]));
        }
    }
    pairs.sort();
    pairs.dedup_by(|a, b| a.0 == b.0);
    pairs
}

async fn costs_at_length_three(session: Session) {
    let format = TableFormat {
        value: farleaf_index::bnode::ValueFormat::Bytes,
        ..TableFormat::fixed8(Engine::Dart)
    };
    let index = opened(&session, &format, &[("prefixes", "3"), ("cache", "0")]).await;
    let pairs = pairs();
    let first_token = session.lock_token();
    let loaded = index.bulk_load(&session, &mut Pairs(pairs.iter())).await;
    assert_eq!(loaded, Ok(pairs.len() as u64));
    // A session has 65,536 tokens for an operation, and a load may bring more leaves.
    assert!(session.lock_token() - first_token < 16);
    let entries = dart(&index).entries(&session).await.expect("entries");
    assert!(entries.valid > 500 && entries.tentative == 0 && entries.astray == 0, "{entries:?}");
    let mut value = Vec::new();
    assert_eq!(index.get(&session, &pairs[0].0, &mut value).await, Ok(true));
    // The few prefixes whose bucket had no slot left cost more.
    let (mut round_trips, mut cheap) = (0, Vec::new());
    for (key, held) in &pairs {
        let before = costs(&session);
        assert_eq!(index.get(&session, key, &mut value).await, Ok(true));
        assert_eq!(&value, held);
        let cost = cost_since(&session, &before, OpKind::Get);
        round_trips += cost.round_trips;
        if cost.round_trips == 3 {
            assert!(cost.reads == 3 && cost.bytes_read <= 64 + 64 + 64, "{cost:?}");
            cheap.push(key);
        }
    }
    let mean = round_trips as f64 / pairs.len() as f64;
    assert!(mean <= 3.1, "{mean} round trips a get");
    for key in cheap.iter().step_by(97) {
        let mut absent = key.to_vec();
        absent[7] ^= 0x55;
        let before = costs(&session);
        assert_eq!(index.get(&session, &absent, &mut value).await, Ok(false));
        let cost = cost_since(&session, &before, OpKind::Get);
        assert_eq!((cost.reads, cost.round_trips), (3, 3), "{cost:?}");
    }
    let key = cheap[cheap.len() / 2];
    let before = costs(&session);
    assert_eq!(index.update(&session, key, b"new").await, Ok(true));
    let cost = cost_since(&session, &before, OpKind::Update);
    assert_eq!((cost.reads, cost.writes, cost.cas), (3, 1, 1), "{cost:?}");
    assert_eq!(cost.round_trips, 4, "{cost:?}");
    let mut new = key.to_vec();
    new[3] ^= 0x77;
    let before = costs(&session);
    assert_eq!(index.insert(&session, &new, b"new").await, Ok(true));
    let cost = cost_since(&session, &before, OpKind::Insert);
    assert_eq!((cost.reads, cost.writes, cost.cas), (3, 1, 1), "{cost:?}");
    assert_eq!(cost.round_trips, 4, "{cost:?}");
    let before = costs(&session);
    assert_eq!(index.remove(&session, &new).await, Ok(true));
    let cost = cost_since(&session, &before, OpKind::Remove);
    assert_eq!((cost.reads, cost.writes, cost.cas), (3, 0, 1), "{cost:?}");
    assert_eq!(cost.round_trips, 4, "{cost:?}");
    let nothing = costs(&session).since(&before).kind(OpKind::Maintenance);
    assert_eq!(nothing, Cost::default(), "nothing has to be replaced");
    assert_eq!(counter(&index, "crc_fail"), 0);
    check(&session, &[&index]).await;
}

#[test]
fn a_get_takes_three_round_trips_and_a_change_one_more() {
    World::default().on_mapped(costs_at_length_three);
    let sim = farleaf_fabric::sim::Sim::new(World::default().sim_config()).expect("sim");
    let endpoint = farleaf_fabric::Fabric::any_endpoint(&sim.fabric(0)).expect("endpoint");
    let options = World::default().pool_options();
    sim.block_on(async move {
        costs_at_length_three(crate::common::start(endpoint, &options).await).await;
    })
    .expect("the simulation ends");
}

/// Without the skip table each level costs the READ of a bucket.
#[test]
fn without_the_skip_table_each_level_is_read() {
    World::default().on_mapped(|session| async move {
        let index = opened(&session, &TableFormat::fixed8(Engine::Dart), &[("est", "false")]).await;
        let pairs = pairs();
        index.bulk_load(&session, &mut Pairs(pairs.iter())).await.expect("loaded");
        let mut value = Vec::new();
        index.get(&session, &pairs[0].0, &mut value).await.expect("get");
        let before = costs(&session);
        assert_eq!(index.get(&session, &pairs[700].0, &mut value).await, Ok(true));
        let cost = cost_since(&session, &before, OpKind::Get);
        assert!(cost.reads == cost.round_trips && (3..=5).contains(&cost.reads), "{cost:?}");
        check(&session, &[&index]).await;
    });
}

/// Random operations with a table that is made, filled and replaced all the time, and with fingerprints so
/// short that every start may be wrong.
#[test]
fn wrong_starts_and_maintenance_change_no_answer() {
    for (seed, bits) in [(1, "0"), (2, "1"), (3, "10")] {
        for (name, format) in crate::common::formats_of(&[Engine::Dart]) {
            println!("{name}, fingerprints of {bits} bits");
            World::default().on_mapped(|session| async move {
                let settings =
                    [("est_nodes", "1"), ("print_bits", bits), ("prefixes", "1+2+3+4+5+6+7+12+24")];
                let index = opened(&session, &format, &settings).await;
                let mut run = Run::new(session.clone(), index, format, seed, 300, |_| Vec::new());
                run.random_operations(12_000).await;
                settle(&session).await;
                let entries = dart(&run.index).entries(&session).await.expect("entries");
                assert_eq!(entries.astray, 0, "{entries:?}");
                assert!(counter(&run.index, "est_probe") > 50, "{:?}", dart(&run.index).counters());
                assert_eq!(counter(&run.index, "crc_fail"), 0);
            });
        }
    }
}

/// A table with other lengths takes the place of the present one, whose memory is freed.
#[test]
fn a_new_list_of_lengths_makes_a_new_table() {
    World::default().on_mapped(|session| async move {
        let format = TableFormat::fixed8(Engine::Dart);
        let index = opened(&session, &format, &[("prefixes", "2")]).await;
        let pairs = pairs();
        index.bulk_load(&session, &mut Pairs(pairs.iter())).await.expect("loaded");
        let lengths = "1+3".parse().expect("lengths");
        dart(&index).set_prefixes(&session, &lengths).await.expect("replaced");
        for _ in 0..24 {
            dart(&index).maintain(&session).await.expect("maintenance");
            // The epoch moves on where there is something to free.
            assert_eq!(index.update(&session, &pairs[0].0, &pairs[0].1).await, Ok(true));
            settle(&session).await;
        }
        assert_eq!(counter(&index, "tables_filled"), 2);
        assert_eq!(counter(&index, "tables_dropped"), 1);
        let mut value = Vec::new();
        for (key, held) in &pairs {
            assert_eq!(index.get(&session, key, &mut value).await, Ok(true));
            assert_eq!(&value, held);
        }
        let entries = dart(&index).entries(&session).await.expect("entries");
        assert!(entries.valid > 500 && entries.astray == 0, "{entries:?}");
        check(&session, &[&index]).await;
    });
}

/// Gets of some keys are counted; the lengths that are chosen lead to the nodes that have their leaves.
#[test]
fn lengths_follow_the_accesses() {
    World::default().on_mapped(|session| async move {
        let format = TableFormat::fixed8(Engine::Dart);
        let settings = [("prefixes", "1"), ("freq_sample", "1")];
        let index = opened(&session, &format, &settings).await;
        let pairs = pairs();
        index.bulk_load(&session, &mut Pairs(pairs.iter())).await.expect("loaded");
        let mut value = Vec::new();
        for (key, _) in pairs.iter().chain(&pairs) {
            assert_eq!(index.get(&session, key, &mut value).await, Ok(true));
        }
        let chosen = dart(&index).adjust(&session).await.expect("adjusted").expect("some lengths");
        assert!(chosen.as_slice().contains(&3), "{chosen}");
        settle(&session).await;
        let before = costs(&session);
        assert_eq!(index.get(&session, &pairs[40].0, &mut value).await, Ok(true));
        assert_eq!(index.get(&session, &pairs[41].0, &mut value).await, Ok(true));
        let cost = cost_since(&session, &before, OpKind::Get);
        // The first reads the check line and the descriptor.
        assert!(cost.round_trips <= 8, "{cost:?}");
        check(&session, &[&index]).await;
    });
}
