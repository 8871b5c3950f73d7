//! Damage tests: what lies in a table's objects is input. Overwritten words give typed errors, or are made anew.

use std::ops::Bound;

use crate::common::{Pairs, World, check, settle, with_shape};
use farleaf_engines::fptree::{FpTree, FpTreeShape};
use farleaf_engines::{AnyIndex, Engine, StoredTable, TableFormat};
use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_index::engine::Engine as Design;
use farleaf_index::{
    Entries, Index, IndexError, KeyFormat, OpenOptions, ScanRange, Settings, Spec, Stored,
    TableReport, ValueFormat, Visitor,
};
use farleaf_pool::{Audit, Session};

const KEYS: u64 = 200;
/// Words that no part of a table holds.
const JUNK: [u64; 3] = [0, u64::MAX, 0x0102_0304_0506_0708];

/// Objects of one kind.
struct Objects(&'static str, Vec<(GlobalAddr, usize)>);

impl Visitor for Objects {
    fn wants_content(&self) -> bool {
        false
    }

    fn object(&mut self, kind: &'static str, addr: GlobalAddr, bytes: usize) {
        if kind == self.0 {
            self.1.push((addr, bytes));
        }
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

/// Bytes of a header: the keys are long.
const HEADER: u64 = 320;
const SLOT: u64 = 16 + 8 + 32;

/// A table with pairs in slots and in records, read without a cache.
async fn fill(session: &Session) -> AnyIndex {
    let spec = Spec { key: KeyFormat::Bytes { max: 100 }, value: ValueFormat::Fixed(8) };
    let format = TableFormat::new(Engine::FpTree, spec);
    let format = with_shape(format, &[("node_bytes", "1024"), ("cap_leaf", "8")]);
    AnyIndex::create(session, "t", &format).await.expect("create");
    let table = open(session).await.expect("open");
    for number in 0..KEYS {
        let mut key = key(number);
        if number % 4 == 0 {
            key.resize(60, b'x');
        }
        table.insert(session, &key, &[7; 8]).await.expect("insert");
    }
    table
}

async fn open(session: &Session) -> Result<AnyIndex, IndexError> {
    let root = session.open_root("t").await.expect("root");
    let settings = Settings::default().with("cache", "0");
    AnyIndex::open(session, &root, &OpenOptions { settings, ..OpenOptions::default() }).await
}

async fn stored(session: &Session, name: &str) -> Stored<FpTreeShape> {
    let root = session.open_root(name).await.expect("root");
    let table = StoredTable::of(&root).expect("a table");
    table.of_engine::<FpTree>().expect("a table of fptree")
}

async fn objects(session: &Session, kind: &'static str) -> Vec<(GlobalAddr, usize)> {
    objects_of(session, "t", kind).await
}

async fn objects_of(session: &Session, name: &str, kind: &'static str) -> Vec<(GlobalAddr, usize)> {
    let _pin = session.begin(OpKind::Other).await.expect("pin");
    let mut objects = Objects(kind, Vec::new());
    let table = stored(session, name).await;
    FpTree::walk(session, &table, &mut objects, &mut TableReport::default()).await.expect("walk");
    assert!(!objects.1.is_empty(), "there is no {kind}");
    objects.1
}

async fn words(session: &Session, addr: GlobalAddr, count: usize) -> Vec<u64> {
    let endpoint = session.endpoint();
    endpoint.read(addr, endpoint.buf(8 * count)).await.expect("read").words().to_vec()
}

async fn write(session: &Session, addr: GlobalAddr, words: &[u64]) {
    let endpoint = session.endpoint();
    let mut buf = endpoint.buf(8 * words.len());
    buf.words_mut().copy_from_slice(words);
    endpoint.write(addr, buf).await.expect("write");
}

async fn fill_words(session: &Session, addr: GlobalAddr, count: usize, word: u64) {
    write(session, addr, &vec![word; count]).await;
}

fn corrupt<T: std::fmt::Debug>(what: &str, result: Result<T, IndexError>) {
    let Err(IndexError::Corrupt(text)) = &result else { panic!("{what}: {result:?}") };
    // It names the place.
    assert!(text.contains(" at ") || text.contains("leaf "), "{what}: {text}");
}

async fn verify(session: &Session, table: &AnyIndex) -> Result<TableReport, IndexError> {
    let mut audit = Audit::new(session).await.expect("audit");
    table.verify(session, &mut audit).await
}

async fn scan(session: &Session, table: &AnyIndex) -> Result<usize, IndexError> {
    let mut out = Entries::new();
    table.scan(session, ScanRange::ALL, usize::MAX, &mut out).await.map(|()| out.len())
}

/// Overwritten slots are told by every operation that comes to them, and so are headers where they count.
#[test]
fn damaged_leaves_are_told() {
    for word in JUNK {
        World::default().on_sim(move |session| async move {
            let table = fill(&session).await;
            let leaves = objects(&session, "leaf").await;
            for (leaf, bytes) in &leaves {
                let slots = (bytes - HEADER as usize) / 8;
                fill_words(&session, leaf.plus(HEADER), slots, word).await;
            }
            let (there, mut value) = (key(101), Vec::new());
            let what = format!("slots of {word:#x}");
            corrupt(&what, table.get(&session, &there, &mut value).await);
            corrupt(&what, table.update(&session, &there, &[1; 8]).await);
            corrupt(&what, table.remove(&session, &there).await);
            corrupt(&what, scan(&session, &table).await);
            corrupt(&what, verify(&session, &table).await);
        });
        World::default().on_sim(move |session| async move {
            let table = fill(&session).await;
            for (leaf, _) in objects(&session, "leaf").await {
                fill_words(&session, leaf, HEADER as usize / 8, word).await;
            }
            // Point operations and scans need no header; a split does.
            let (there, mut value) = (key(101), Vec::new());
            assert_eq!(table.get(&session, &there, &mut value).await, Ok(true));
            assert_eq!(table.update(&session, &there, &[1; 8]).await, Ok(true));
            assert_eq!(scan(&session, &table).await, Ok(KEYS as usize));
            let mut refused = None;
            for number in 0..20 {
                let between = [key(101), vec![b'0' + number]].concat();
                if let Err(error) = table.insert(&session, &between, &[2; 8]).await {
                    refused = Some(error);
                    break;
                }
            }
            let what = format!("headers of {word:#x}");
            corrupt(&what, refused.map_or(Ok(()), Err));
            corrupt(&what, verify(&session, &table).await);
        });
    }
}

/// One damaged slot is told; operations on other leaves, and on other keys of the leaf, go on.
#[test]
fn a_damaged_slot_is_told_and_others_are_served() {
    World::default().on_sim(|session| async move {
        let table = fill(&session).await;
        let (leaf, _) = objects(&session, "leaf").await[3];
        // The first slot with a pair: its check changes.
        let mut told = 0;
        for slot in 0..8 {
            let at = leaf.plus(HEADER + slot * SLOT);
            if words(&session, at, 1).await[0] & 1 == 1 {
                fill_words(&session, at.plus(8), 1, 0x77).await;
                break;
            }
        }
        let mut value = Vec::new();
        for number in 0..KEYS {
            let mut key = key(number);
            if number % 4 == 0 {
                key.resize(60, b'x');
            }
            match table.get(&session, &key, &mut value).await {
                Ok(is_there) => assert!(is_there),
                result => {
                    corrupt("a slot", result);
                    told += 1;
                }
            }
        }
        assert_eq!(told, 1);
        corrupt("a slot", scan(&session, &table).await);
    });
}

/// A line is made anew from its leaf.
#[test]
fn damaged_lines_are_made_anew() {
    for word in JUNK {
        World::default().on_sim(move |session| async move {
            let table = fill(&session).await;
            for (lines, bytes) in objects(&session, "lines").await {
                for line in (64..bytes as u64).step_by(64) {
                    // The lock stays.
                    fill_words(&session, lines.plus(line), 7, word).await;
                }
            }
            let mut value = Vec::new();
            for number in 0..KEYS / 2 {
                let mut key = key(number);
                if number % 4 == 0 {
                    key.resize(60, b'x');
                }
                assert_eq!(table.get(&session, &key, &mut value).await, Ok(true), "{number}");
                assert_eq!(table.update(&session, &key, &[9; 8]).await, Ok(true));
            }
            assert_eq!(scan(&session, &table).await, Ok(KEYS as usize));
            assert_eq!(check(&session, &[&table]).await.keys, KEYS);
        });
    }
}

/// An operation reports a wrong pointer to the lines, and writes nothing through it.
#[test]
fn damaged_directories_are_told() {
    for word in JUNK.into_iter().chain([64, 1 << 20, 31 << 20]) {
        World::default().on_sim(move |session| async move {
            fill(&session).await;
            let (directory, bytes) = objects(&session, "directory").await[0];
            fill_words(&session, directory, bytes / 8, word).await;
            let table = open(&session).await.expect("open");
            let (what, mut value) = (format!("a directory of {word:#x}"), Vec::new());
            corrupt(&what, table.get(&session, &key(101), &mut value).await);
            corrupt(&what, table.upsert(&session, &key(101), &[1; 8]).await);
            corrupt(&what, scan(&session, &table).await);
            corrupt(&what, verify(&session, &table).await);
        });
    }
    World::default().on_sim(|session| async move {
        fill(&session).await;
        for (lines, _) in objects(&session, "lines").await {
            fill_words(&session, lines, 1, 7).await;
        }
        let table = open(&session).await.expect("open");
        corrupt("lines", table.upsert(&session, &key(101), &[1; 8]).await);
    });
}

#[test]
fn damaged_records_and_meta_objects_are_told() {
    for word in JUNK {
        World::default().on_sim(move |session| async move {
            let table = fill(&session).await;
            for (record, bytes) in objects(&session, "record").await {
                fill_words(&session, record, bytes / 8, word).await;
            }
            let (mut long, mut value) = (key(100), Vec::new());
            long.resize(60, b'x');
            let what = format!("records of {word:#x}");
            corrupt(&what, table.get(&session, &long, &mut value).await);
            corrupt(&what, scan(&session, &table).await);
            assert_eq!(table.get(&session, &key(101), &mut value).await, Ok(true));
            let (meta, _) = objects(&session, "meta object").await[0];
            for number in 0..3 {
                let held = words(&session, meta.plus(8 * number), 1).await;
                fill_words(&session, meta.plus(8 * number), 1, word).await;
                corrupt(&format!("word {number} of the meta object"), open(&session).await);
                write(&session, meta.plus(8 * number), &held).await;
            }
            open(&session).await.expect("mended");
        });
    }
}

/// Limits of the table are told, with what to do, and change nothing.
#[test]
fn what_does_not_fit_is_refused() {
    World::default().on_mapped(|session| async move {
        let format = TableFormat::new(Engine::FpTree, Spec::ANY);
        let shaped = |name, value| format.shaped(&Settings::default().with(name, value));
        let text = shaped("cap_leaf", "33").expect_err("33 fingerprints").to_string();
        assert!(text.contains("a count of entries, 2 to 32"), "{text}");
        // No node size of a tree, and one whose nodes do not take two of the longest keys.
        for (bytes, why) in
            [("1000", "not a power of two"), ("1024", "do not fit in nodes of 1024 bytes")]
        {
            let odd = shaped("node_bytes", bytes).expect("a number of bytes");
            let refused = AnyIndex::create(&session, "t", &odd).await.map(drop);
            let Err(IndexError::Invalid(text)) = &refused else { panic!("{refused:?}") };
            assert!(text.contains("upper tree") && text.contains(why), "{text}");
        }
        AnyIndex::create(&session, "t", &format).await.expect("create");
        let table = open(&session).await.expect("open");
        let invalid = |result: Result<bool, IndexError>| {
            assert!(matches!(result, Err(IndexError::Invalid(_))), "{result:?}");
        };
        invalid(table.insert(&session, &[1; 1025], b"v").await);
        invalid(table.insert(&session, b"k", &vec![1; (1 << 20) + 1]).await);
        invalid(table.get(&session, &[1; 1025], &mut Vec::new()).await);
        assert_eq!(check(&session, &[&table]).await.keys, 0);
    });
}

/// A compute server's record leads to the first leaf of its table, which a bulk load has replaced, and whose memory is the
/// first leaf of another table by now: empty, and of the same version. A scan by whole leaves took it for an empty part of its
/// own table, since slots without a pair are not bound to a table. Its header is.
#[test]
fn a_leaf_of_another_table_is_no_empty_part_of_a_scan() {
    let world = World { servers: 1, ..World::default() };
    world.on_sim(|session| async move {
        let spec = Spec { key: KeyFormat::Fixed(8), value: ValueFormat::Fixed(8) };
        let format = TableFormat::new(Engine::FpTree, spec);
        let settings = Settings::default().with("filter", "false").with("delegate", "false");
        let table = farleaf_harness::create_table(&session, "t", &format, 96, &settings).await;
        let table = table.expect("a table");
        let old = farleaf_harness::open_table(&session, "t", 96, &settings).await.expect("open");
        let (first, mut value) = ([0; 8], Vec::new());
        assert_eq!(old.get(&session, &first, &mut value).await, Ok(false), "it has the record");
        let leaf = objects(&session, "leaf").await[0];
        let pairs: Vec<(Vec<u8>, Vec<u8>)> =
            (0..KEYS).map(|number| (number.to_be_bytes().to_vec(), vec![7; 8])).collect();
        assert_eq!(table.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(KEYS));
        settle(&session).await;
        let mut reused = false;
        for other in ["u", "v", "w"] {
            AnyIndex::create(&session, other, &format).await.expect("create");
            reused |= objects_of(&session, other, "leaf").await[0] == leaf;
        }
        assert!(reused, "no other table begins at {leaf:?}");
        let range = ScanRange { from: Bound::Included(&first[..]), ..ScanRange::ALL };
        let mut out = Entries::new();
        old.scan(&session, range, usize::MAX, &mut out).await.expect("a scan");
        assert_eq!(out.len() as u64, KEYS);
    });
}
