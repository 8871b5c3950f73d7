//! Verification tests: a check names each invariant that is broken in memory; wrapped versions pass.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, Endpoint, GlobalAddr, ToAny};
use farleaf_index::blink::META_ROOT_LOCK;
use farleaf_index::bnode::{Layout, LayoutOptions, Node, NodeMut};
use farleaf_index::{BlinkOptions, Entries, Index, IndexError, KeyFormat, ScanRange, ValueFormat};
use farleaf_pool::{Audit, Pool, PoolOptions, Session, format};

use super::BTree;

pub(super) const OPTIONS: PoolOptions = PoolOptions {
    block_bytes: 64 << 10,
    clients_max: 16,
    members_max: 8,
    tables_max: 4,
    redo_bytes: 16 << 10,
};
const VERSION_WORD: usize = 7;

/// Two formats: dense and slotted nodes.
fn layouts() -> [Layout; 2] {
    let dense = LayoutOptions::new(256, KeyFormat::Fixed(8), ValueFormat::Fixed(8));
    let slotted = LayoutOptions::new(512, KeyFormat::Bytes { max: 24 }, ValueFormat::Bytes);
    [dense, slotted].map(|options| Layout::new(options).expect("layout"))
}

async fn member(endpoint: AnyEndpoint) -> Session {
    let pool = Pool::join(&Client::new(endpoint.clone())).await.expect("join");
    pool.session(endpoint).await.expect("session")
}

async fn table(session: &Session, layout: &Layout, keys: u64) -> BTree {
    let layout = layout.for_tree(77);
    let meta = BTree::create(session, &layout).await.expect("create");
    let table = BTree::open(meta, layout, BlinkOptions::default());
    for key in 0..keys {
        let key = (key * 10).to_be_bytes();
        table.insert(session, &key, &key).await.expect("insert");
    }
    table
}

async fn image(table: &BTree, session: &Session, addr: GlobalAddr) -> Vec<u64> {
    let client = session.client();
    let buf = client.buf(table.layout().node_bytes());
    client.read(addr, buf).await.expect("read").words().to_vec()
}

async fn store(session: &Session, addr: GlobalAddr, image: &[u64]) {
    let mut buf = session.client().buf(image.len() * 8);
    buf.words_mut().copy_from_slice(image);
    session.client().write(addr, buf).await.expect("write");
}

/// Root first, then the levels below it from left to right.
async fn nodes(table: &BTree, session: &Session) -> Vec<GlobalAddr> {
    let (root, _) = table.tree().read_root(session).await.expect("root");
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&addr) = all.get(next) {
        let words = image(table, session, addr).await;
        let node = Node::new(table.layout(), &words);
        if node.level() > 0 {
            all.extend(
                (0..=node.count()).map(|at| {
                    GlobalAddr::from_word(node.child(at).expect("child")).expect("address")
                }),
            );
        }
        next += 1;
    }
    all
}

/// All that `verify` says, be it in its report or its error.
async fn verdict(table: &BTree, session: &Session) -> Vec<String> {
    let mut audit = Audit::new(session).await.expect("audit");
    match table.verify(session, &mut audit).await {
        Ok(report) => report.problems,
        Err(IndexError::Corrupt(why)) => vec![why],
        Err(error) => panic!("{error}"),
    }
}

fn on_mapped(test: impl AsyncFn(Session, Layout)) {
    for layout in layouts() {
        let fabric = Mapped::anonymous(1, 8 << 20).expect("memory");
        let endpoint = fabric.any_endpoint().expect("endpoint");
        endpoint.executor().clone().block_on(async {
            format(&Client::new(endpoint.clone()), &OPTIONS).await.expect("format");
            test(member(endpoint).await, layout).await;
        });
    }
}

/// Breaks the node at `addr` by `damage`, sealed again if `seals`; the report must name `invariant`,
/// and be empty once the node is mended.
async fn breaks(
    table: &BTree,
    session: &Session,
    (invariant, seals): (&str, bool),
    addr: GlobalAddr,
    damage: impl FnOnce(&mut [u64], &Layout),
) {
    let whole = image(table, session, addr).await;
    let mut broken = whole.clone();
    damage(&mut broken, table.layout());
    assert_ne!(broken, whole, "{invariant}: nothing was broken");
    if seals {
        NodeMut::new(table.layout(), &mut broken[..]).seal(99);
    }
    store(session, addr, &broken).await;
    let told = verdict(table, session).await;
    assert!(told.iter().any(|what| what.contains(invariant)), "{invariant}: {told:?}");
    store(session, addr, &whole).await;
    let told = verdict(table, session).await;
    assert!(told.is_empty(), "{invariant}: {told:?}");
}

#[test]
fn verify_names_the_invariant_that_is_broken() {
    on_mapped(async |session, layout| {
        let table = table(&session, &layout, 60).await;
        let all = nodes(&table, &session).await;
        assert!(verdict(&table, &session).await.is_empty());
        let root = all[0];
        let words = image(&table, &session, root).await;
        assert_eq!(Node::new(table.layout(), &words).level(), 1);
        let [one, two, three] = [all[1], all[2], all[3]];
        // A leaf that leads past its neighbour.
        breaks(&table, &session, ("INV-BT-1", true), one, |words, layout| {
            NodeMut::new(layout, words).set_right(three.word());
        })
        .await;
        // The last leaf leads on.
        breaks(
            &table,
            &session,
            ("INV-BT-1", true),
            *all.last().expect("leaf"),
            |words, layout| {
                NodeMut::new(layout, words).set_right(one.word());
            },
        )
        .await;
        // Two leaves have changed places in their parent.
        breaks(&table, &session, ("INV-BT-4", true), root, |words, _| {
            for word in words.iter_mut() {
                if *word == two.word() {
                    *word = three.word();
                } else if *word == three.word() {
                    *word = two.word();
                }
            }
        })
        .await;
        // A lock that no token opens; the lock word is not under the checksum.
        breaks(&table, &session, ("INV-BT-5", false), two, |words, _| words[0] = 5).await;
        let meta_lock = table.tree().meta().plus(META_ROOT_LOCK);
        store(&session, meta_lock, &[5]).await;
        let told = verdict(&table, &session).await;
        assert!(told.iter().any(|what| what.contains("INV-BT-5")), "{told:?}");
        store(&session, meta_lock, &[0]).await;
        breaks(&table, &session, ("INV-NODE-4", false), two, |words, _| words[9] ^= 1).await;
        // Children are words of their own in both layouts.
        breaks(&table, &session, ("INV-NODE-3", true), root, |words, _| {
            let at = words.iter().position(|word| *word == two.word()).expect("child");
            words[at] = 0;
        })
        .await;
        if layout.is_dense() {
            // A dense leaf's keys and values follow the header, key by key.
            let first = 8;
            breaks(&table, &session, ("INV-NODE-2", true), two, |words, layout| {
                let (mut one, mut two) = (Vec::new(), Vec::new());
                let node = Node::new(layout, &*words);
                node.key(0, &mut one);
                node.key(1, &mut two);
                let word = |key: &[u8]| u64::from_be_bytes(key.try_into().expect("8 bytes"));
                let (one, two) = (word(&one), word(&two));
                let other = (first..words.len()).find(|at| words[*at] == two).expect("key");
                assert_eq!(words[first], one);
                words.swap(first, other);
            })
            .await;
            // The first key is the low fence.
            breaks(&table, &session, ("INV-NODE-1", true), two, |words, _| {
                words[first] = words[2];
            })
            .await;
            // The low fence is another than the left neighbour's high one.
            for invariant in ["INV-BT-1", "INV-BT-4"] {
                breaks(&table, &session, (invariant, true), two, |words, _| words[2] -= 1).await;
            }
        } else {
            // Holes are counted in the upper 16 bits of word 2.
            breaks(&table, &session, ("INV-NODE-5", true), two, |words, _| {
                words[2] ^= 1 << 48;
            })
            .await;
            breaks(&table, &session, ("INV-NODE-5", true), two, |words, _| {
                // The second entry's cell is the first one's.
                words[9] = words[8];
            })
            .await;
        }
    });
}

/// The 64-bit version of a node goes from its largest to 0 like from any other to the next: readers
/// know images by their checksum, and nothing compares versions.
#[test]
fn versions_wrap_under_a_storm() {
    for (seed, layout) in (1..).zip(layouts()) {
        let mut config = SimConfig {
            memory_servers: 1,
            compute_servers: 2,
            region_bytes: 8 << 20,
            ..SimConfig::seeded(seed)
        };
        config.adversary.torn = 0.5;
        let sim = Rc::new(Sim::new(config).expect("sim"));
        let endpoint = sim.fabric(0).any_endpoint().expect("endpoint");
        let (session, table) = sim
            .block_on(async move {
                format(&Client::new(endpoint.clone()), &OPTIONS).await.expect("format");
                let session = member(endpoint).await;
                let table = table(&session, &layout, 60).await;
                table.tree().age(&session).await.expect("age");
                (session, table)
            })
            .expect("the simulation ends");
        let done = Rc::new(Cell::new(0));
        for client in 0..4_u64 {
            let endpoint = sim.fabric(client as usize % 2).any_endpoint().expect("endpoint");
            let (table, done) = (table.clone(), Rc::clone(&done));
            sim.spawn(client as usize % 2, async move {
                let session = member_of(endpoint, client).await;
                let mut model = BTreeMap::new();
                let mut rng = fastrand::Rng::with_seed(client);
                for round in 0..150_u64 {
                    // Keys of its own, among everybody's.
                    let key = (rng.u64(..60) * 10 + client + 1).to_be_bytes();
                    if rng.u8(..3) == 0 {
                        let was = table.remove(&session, &key).await.expect("remove");
                        assert_eq!(was, model.remove(&key).is_some());
                    } else {
                        let value = round.to_be_bytes();
                        let is_new = table.upsert(&session, &key, &value).await.expect("upsert");
                        assert_eq!(is_new, model.insert(key, value).is_none());
                    }
                    let mut value = Vec::new();
                    let found = table.get(&session, &key, &mut value).await.expect("get");
                    assert_eq!(
                        found.then_some(&value[..]),
                        model.get(&key).map(|value| &value[..])
                    );
                }
                done.set(done.get() + 1);
            });
        }
        sim.run().expect("the simulation ends");
        assert_eq!(done.get(), 4);
        sim.block_on(async move {
            assert_eq!(verdict(&table, &session).await, Vec::<String>::new());
            let mut wrapped = 0;
            for addr in nodes(&table, &session).await {
                let words = image(&table, &session, addr).await;
                wrapped += usize::from(words[VERSION_WORD] < 1000);
            }
            assert!(wrapped > 5, "{wrapped} nodes have wrapped");
            let mut out = Entries::new();
            table.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
            assert!(out.len() >= 60);
        })
        .expect("the simulation ends");
    }
}

async fn member_of(endpoint: AnyEndpoint, client: u64) -> Session {
    // One after the other, so that each finds a free slot at its first try.
    endpoint.sleep(client * 100_000).await;
    member(endpoint).await
}
