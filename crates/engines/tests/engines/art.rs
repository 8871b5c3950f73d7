//! Tests of plain ART and of the steps from it to SMART: the remote operations of each.

use crate::common::{Pairs, World, check, cost_since, costs};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Cost, OpKind};
use farleaf_index::{Index, OpenOptions, Settings};
use farleaf_pool::Session;

fn number(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

async fn open(session: &Session, engine: Engine, settings: &[(&str, &str)]) -> AnyIndex {
    let root = AnyIndex::create(session, "t", &TableFormat::fixed8(engine)).await.expect("create");
    let settings =
        settings.iter().fold(Settings::default(), |all, (name, text)| all.with(name, text));
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

/// What a warm update and a warm insert into a node with room cost.
fn costs_of(engine: Engine, settings: &'static [(&str, &str)]) -> [Cost; 2] {
    let found = std::rc::Rc::new(std::cell::Cell::new([Cost::default(); 2]));
    let told = std::rc::Rc::clone(&found);
    World::default().on_mapped(|session| async move {
        let index = open(&session, engine, settings).await;
        // Their node has 54 slots or more, and room.
        for key in 0..40 {
            assert_eq!(index.insert(&session, &number(2 * key), &number(1)).await, Ok(true));
        }
        for key in 0..40 {
            assert_eq!(index.get(&session, &number(2 * key), &mut Vec::new()).await, Ok(true));
        }
        assert_eq!(index.update(&session, &number(4), &number(2)).await, Ok(true));
        let before = costs(&session);
        assert_eq!(index.update(&session, &number(8), &number(3)).await, Ok(true));
        let update = cost_since(&session, &before, OpKind::Update);
        let before = costs(&session);
        assert_eq!(index.insert(&session, &number(9), &number(4)).await, Ok(true));
        let insert = cost_since(&session, &before, OpKind::Insert);
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(8), &mut value).await, Ok(true));
        assert_eq!(value, number(3));
        assert_eq!(check(&session, &[&index]).await.keys, 41);
        told.set([update, insert]);
    });
    found.get()
}

const REPLACED: &[(&str, &str)] =
    &[("leaf", "replaced"), ("lock", "table"), ("write_combining", "false")];
const TABLE: &[(&str, &str)] = &[("lock", "table"), ("write_combining", "false")];
const REAR: &[(&str, &str)] = &[("write_combining", "false")];

/// The paper's ladder: each step takes remote operations away and adds none.
#[test]
fn each_step_from_art_to_smart_costs_less() {
    let ladder = [
        ("art", costs_of(Engine::Art, &[("cache", "0")])),
        ("+ cache", costs_of(Engine::Art, &[])),
        ("+ lock-free nodes", costs_of(Engine::Art, &[("node_locks", "off")])),
        ("+ in-place leaves", costs_of(Engine::Smart, TABLE)),
        ("+ rear lock", costs_of(Engine::Smart, REAR)),
        ("+ delegation, combining", costs_of(Engine::Smart, &[])),
    ];
    for (step, costs) in &ladder {
        for (what, cost) in ["update", "insert"].iter().zip(costs) {
            let Cost { reads, writes, cas, round_trips, .. } = cost;
            println!("{step}: {what} {reads} READ, {writes} WRITE, {cas} CAS, {round_trips} trips");
        }
    }
    for steps in ladder.windows(2) {
        for at in [0, 1] {
            let (from, to) = (steps[0].1[at], steps[1].1[at]);
            assert!(to.round_trips <= from.round_trips, "{}: {from:?}, {to:?}", steps[1].0);
        }
    }
    let verbs = |cost: Cost| [cost.reads, cost.writes, cost.cas, cost.round_trips];
    assert_eq!(verbs(ladder[3].1[0]), [1, 1, 3, 5]);
    assert_eq!(verbs(ladder[4].1[0]), [1, 1, 1, 3]);
    assert_eq!(verbs(ladder[5].1[0]), [1, 1, 1, 3]);
    // Two locks, given back in one round trip.
    assert_eq!(ladder[1].1[1].cas, ladder[2].1[1].cas + 2 * LOCKED_NODES);
    assert_eq!(ladder[1].1[1].round_trips, ladder[2].1[1].round_trips + LOCKED_NODES + 1);
    assert_eq!(verbs(ladder[5].1[1]), [1, 1, 1, 2]);
    let locked = costs_of(Engine::Smart, REPLACED)[0];
    assert!(locked.round_trips > ladder[3].1[0].round_trips, "{locked:?}");
}

/// Nodes that a warm insert has on its way: the cached one.
const LOCKED_NODES: u64 = 1;

/// A table that one engine's settings have filled is the same for the others.
#[test]
fn members_with_different_switches_share_a_table() {
    World::default().on_sim(|session| async move {
        let index =
            open(&session, Engine::Smart, &[("types", "4-16-48-256"), ("node_locks", "path")])
                .await;
        let root = session.open_root("t").await.expect("root");
        let settings = Settings::default().with("leaf", "replaced").with("lock", "table");
        let options = OpenOptions { settings, ..OpenOptions::default() };
        let other = AnyIndex::open(&session, &root, &options).await.expect("open");
        for key in 0..300_u64 {
            let (one, two) = if key % 2 == 0 { (&index, &other) } else { (&other, &index) };
            assert_eq!(one.insert(&session, &number(key), &number(1)).await, Ok(true));
            assert_eq!(two.update(&session, &number(key), &number(2)).await, Ok(true));
            assert_eq!(one.update(&session, &number(key), &number(3)).await, Ok(true));
            session.tick().await.expect("tick");
        }
        assert_eq!(check(&session, &[&index]).await.keys, 300);
        let mut value = Vec::new();
        assert_eq!(index.get(&session, &number(7), &mut value).await, Ok(true));
        assert_eq!(value, number(3));
    });
}

/// Bytes that a get READs without a cache, after a bulk load of one node with `children` leaves.
fn bytes_of_a_get(engine: Engine, children: u64) -> u64 {
    let found = std::rc::Rc::new(std::cell::Cell::new(0));
    let told = std::rc::Rc::clone(&found);
    World::default().on_mapped(move |session| async move {
        let index = open(&session, engine, &[("cache", "0")]).await;
        let pairs: Vec<_> =
            (0..children).map(|key| (number(key).to_vec(), number(1).to_vec())).collect();
        assert_eq!(index.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(children));
        let before = costs(&session);
        assert_eq!(index.get(&session, &number(1), &mut Vec::new()).await, Ok(true));
        told.set(cost_since(&session, &before, OpKind::Get).bytes_read);
        assert_eq!(check(&session, &[&index]).await.keys, children);
    });
    found.get()
}

/// A bulk load gave plain ART the node sizes of SMART, so that its gets READ too little.
#[test]
fn a_bulk_load_of_art_has_four_node_types() {
    for (children, art, smart) in [(3, 6, 6), (10, 22, 14), (25, 54, 30), (100, 257, 110)] {
        let more = bytes_of_a_get(Engine::Art, children) - bytes_of_a_get(Engine::Smart, children);
        assert_eq!(more, 8 * (art - smart), "{children} children");
    }
}
