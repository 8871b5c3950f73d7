//! Tests of tables whose objects point back: costs beside those of births, stale words, and what is refused.

use std::collections::BTreeMap;

use crate::common::{Pairs, World, check, cost_since, costs, settle, stock, with_shape};
use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat};
use farleaf_fabric::{Cost, Endpoint, GlobalAddr, OpKind, ServerId};
use farleaf_index::{Index, IndexError, KeyFormat, OpenOptions, Settings, ValueFormat};
use farleaf_pool::Session;

/// Place of the root word in the meta object.
const META_ROOT: u64 = 64;

fn format(nodes: &str) -> TableFormat {
    with_shape(TableFormat::fixed8(Engine::Smart), &[("nodes", nodes)])
}

async fn create(session: &Session, name: &str, format: &TableFormat, cache: &str) -> AnyIndex {
    AnyIndex::create(session, name, format).await.expect("create");
    open(session, name, cache).await
}

async fn open(session: &Session, name: &str, cache: &str) -> AnyIndex {
    let root = session.open_root(name).await.expect("root");
    let settings = Settings::default().with("cache", cache);
    let options = OpenOptions { settings, ..OpenOptions::default() };
    AnyIndex::open(session, &root, &options).await.expect("open")
}

/// READs, WRITEs, CASes and round trips.
fn verbs(cost: Cost) -> [u64; 4] {
    [cost.reads, cost.writes, cost.cas, cost.round_trips]
}

async fn insert(session: &Session, index: &AnyIndex, key: u64) -> [u64; 4] {
    let (before, key) = (costs(session), key.to_be_bytes());
    assert_eq!(index.insert(session, &key, &key).await, Ok(true), "{key:?}");
    verbs(cost_since(session, &before, OpKind::Insert))
}

async fn get(session: &Session, index: &AnyIndex, key: u64) -> [u64; 4] {
    let (before, key) = (costs(session), key.to_be_bytes());
    let mut value = Vec::new();
    assert_eq!(index.get(session, &key, &mut value).await, Ok(true), "{key:?}");
    assert_eq!(value, key);
    verbs(cost_since(session, &before, OpKind::Get))
}

fn counts(index: &AnyIndex) -> BTreeMap<&'static str, u64> {
    let AnyIndex::Smart(smart) = index else { panic!("it is no table of this engine") };
    smart.counts().into_iter().collect()
}

/// A split costs one CAS more for the leaf that moves down, two for a node; all else costs the same.
#[test]
fn a_split_costs_the_pointers_back() {
    World::default().on_mapped(|session| async move {
        stock(&session, &[64, 128, 2_072, 2_080], 20).await;
        let (mut found, mut tables) = (Vec::new(), Vec::new());
        for (name, nodes) in [("birth", "reserve"), ("reverse", "reverse")] {
            let index = create(&session, name, &format(nodes), "64MiB").await;
            for key in 0..3 {
                insert(&session, &index, key << 16).await;
            }
            let mut costs = vec![get(&session, &index, 1 << 16).await];
            // Into room, beside a leaf, and beside a node's compressed bytes.
            costs.push(insert(&session, &index, 3 << 16).await);
            costs.push(insert(&session, &index, 3 << 16 | 1).await);
            costs.push(insert(&session, &index, 1 << 40).await);
            let key = (1_u64 << 16).to_be_bytes();
            for kind in [OpKind::Update, OpKind::Remove, OpKind::Upsert] {
                let before = self::costs(&session);
                let done = match kind {
                    OpKind::Update => index.update(&session, &key, &[1; 8]).await,
                    OpKind::Remove => index.remove(&session, &key).await,
                    _ => index.upsert(&session, &key, &[2; 8]).await,
                };
                assert_eq!(done, Ok(true));
                costs.push(verbs(cost_since(&session, &before, kind)));
            }
            found.push(costs);
            tables.push(index);
        }
        crate::common::check(&session, &tables.iter().collect::<Vec<_>>()).await;
        let [births, backs] = [&found[0], &found[1]];
        assert_eq!(births[..2], [[1, 0, 0, 1], [1, 1, 1, 2]]);
        let more: Vec<[u64; 4]> = births
            .iter()
            .zip(backs)
            .map(|(birth, back)| std::array::from_fn(|at| back[at] - birth[at]))
            .collect();
        let none = [0; 4];
        // The CASes of one split share a round trip.
        assert_eq!(more, [none, none, [0, 0, 1, 1], [0, 0, 2, 1], none, none, none]);
    });
}

/// After splits by another handle, a cached pointer proves nothing once; then each get costs one READ again.
#[test]
fn splits_leave_no_stale_pointers() {
    World::default().on_mapped(|session| async move {
        let writer = create(&session, "t", &format("reverse"), "64MiB").await;
        let reader = open(&session, "t", "64MiB").await;
        let mut rng = fastrand::Rng::with_seed(4);
        let keys: Vec<u64> = (0..600).map(|_| rng.u64(..) & 0x00ff_000f_0f00_00ff).collect();
        let mut there = Vec::new();
        for key in keys {
            if there.contains(&key) {
                continue;
            }
            insert(&session, &writer, key).await;
            there.push(key);
            get(&session, &reader, there[rng.usize(..there.len())]).await;
        }
        let unproven = counts(&reader)["unproven"];
        assert!(counts(&writer)["splits"] > 100 && unproven > 20, "{unproven}");
        for _ in 0..2 {
            for key in &there {
                get(&session, &reader, *key).await;
            }
        }
        for key in &there {
            assert_eq!(get(&session, &reader, *key).await, [1, 0, 0, 1], "{key:#x}");
        }
        // Each insert has turned what it moved.
        assert_eq!((counts(&reader)["stale_back"], counts(&writer)["stale_back"]), (0, 0));
        assert_eq!(check(&session, &[&writer]).await.keys, there.len() as u64);
    });
}

/// A dead client leaves a word behind: the next fresh reader corrects it.
#[test]
fn a_reader_corrects_a_stale_word() {
    World::default().on_mapped(|session| async move {
        let index = create(&session, "t", &format("reverse"), "64MiB").await;
        for key in 0..3 {
            insert(&session, &index, key).await;
        }
        get(&session, &index, 1).await;
        let endpoint = session.endpoint();
        let word =
            async |addr| endpoint.read(addr, endpoint.buf(8)).await.expect("read").words()[0];
        let child = |slot: u64| {
            let offset = (slot >> 24 & ((1 << 39) - 1)) * 64;
            GlobalAddr::new(ServerId((slot >> 16 & 0xff) as u16), offset)
        };
        let meta = session.open_root("t").await.expect("root").addr;
        let root = GlobalAddr::from_word(word(meta.plus(META_ROOT)).await).expect("an address");
        let node = child(word(root.plus(16)).await);
        let leaf = child(word(node.plus(24)).await);
        for object in [leaf, node] {
            let right = word(object).await;
            // The slot behind the right one, which leads elsewhere.
            let stale = endpoint.cas(object, right, right + 1).await;
            assert_eq!(stale, Ok(right));
            let cold = open(&session, "t", "0").await;
            if object == leaf {
                // The leaf proves nothing; the node and the leaf are READ again.
                assert_eq!(get(&session, &index, 1).await, [3, 0, 0, 3]);
            } else {
                get(&session, &cold, 1).await;
            }
            settle(&session).await;
            assert_eq!(word(object).await, right);
            assert_eq!(get(&session, &index, 1).await, [1, 0, 0, 1]);
            let corrected = counts(&index)["stale_back"] + counts(&cold)["stale_back"];
            assert_eq!(corrected, if object == leaf { 1 } else { 2 });
            assert_eq!(check(&session, &[&index]).await.keys, 3);
        }
    });
}

/// A loaded table names each slot, chains of nodes included, and the leaves of removed keys stay.
#[test]
fn a_loaded_table_points_back() {
    World::default().on_mapped(|session| async move {
        let key = KeyFormat::Bytes { max: 60 };
        let format = format("reverse").with_keys(key);
        let index = create(&session, "t", &format, "64MiB").await;
        let mut rng = fastrand::Rng::with_seed(9);
        let mut pairs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for at in 0..3_000_u64 {
            let mut key = vec![b'p'; rng.usize(..40)];
            key.extend((0..rng.usize(..6)).map(|_| rng.u8(..4)));
            pairs.insert(key, at.to_be_bytes().to_vec());
        }
        let sorted: Vec<_> = pairs.clone().into_iter().collect();
        let count = sorted.len() as u64;
        assert_eq!(index.bulk_load(&session, &mut Pairs(sorted.iter())).await, Ok(count));
        let loaded = check(&session, &[&index]).await;
        assert_eq!(loaded.keys, count);
        for (key, value) in &sorted {
            let mut held = Vec::new();
            assert_eq!(index.get(&session, key, &mut held).await, Ok(true));
            assert_eq!(&held, value);
        }
        for (key, value) in &sorted {
            let (before, mut held) = (costs(&session), Vec::new());
            assert_eq!(index.get(&session, key, &mut held).await, Ok(true));
            assert_eq!(&held, value);
            assert_eq!(cost_since(&session, &before, OpKind::Get).reads, 1, "{key:?}");
            assert_eq!(index.remove(&session, key).await, Ok(true));
        }
        assert_eq!(counts(&index)["stale_back"], 0);
        index.close(&session).await.expect("close");
        let emptied = check(&session, &[&index]).await;
        assert_eq!((emptied.keys, emptied.inner_bytes), (0, loaded.inner_bytes));
        assert_eq!(emptied.nodes_per_level, loaded.nodes_per_level);
    });
}

#[test]
fn what_would_use_an_address_again_is_refused() {
    World::default().on_mapped(|session| async move {
        let reverse = format("reverse");
        let of = |engine| with_shape(TableFormat::fixed8(engine), &[("nodes", "reverse")]);
        for (format, why) in [
            (reverse.with_values(ValueFormat::Bytes), "values of one length"),
            (reverse.with_values(ValueFormat::Fixed(1_500)), "too long"),
            (of(Engine::Art), "tables of the engine smart"),
            (of(Engine::PSmart), "tables of the engine smart"),
        ] {
            let made = AnyIndex::create(&session, "t", &format).await;
            let Err(IndexError::Invalid(said)) = made else { panic!("{format:?}: {made:?}") };
            assert!(said.contains(why), "{said}");
        }
        let root = AnyIndex::create(&session, "t", &reverse).await.expect("create");
        let stored = StoredTable::of(&root).expect("a table");
        assert_eq!(stored.format().shape().get("nodes"), Some("reverse"));
        let settings = Settings::default().with("leaf", "replaced");
        let options = OpenOptions { settings, ..OpenOptions::default() };
        let opened = AnyIndex::open(&session, &root, &options).await;
        let Err(IndexError::Invalid(said)) = opened else { panic!("{opened:?}") };
        assert!(said.contains("leaf=in-place"), "{said}");
    });
}
