//! Damage tests: objects that were overwritten and pools that are too large give typed errors, and lose nothing.

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{AnyEndpoint, Client, GlobalAddr, OpKind, ServerId, ToAny};
use farleaf_index::{
    Entries, Index, IndexError, OpenOptions, ScanRange, Settings, TableReport, Visitor,
};
use farleaf_pool::{Audit, Pool, PoolOptions, Session, format};

use super::Dart;
use super::meta::{META_ROOT, META_TABLES};
use super::word::{DartNodeType, SlotContent, SlotWord, Step};
use crate::{AnyIndex, Engine, TableFormat};

const KEYS: u64 = 300;
/// A word that no part of a table holds.
const JUNK: u64 = 0x0102_0304_0506_0708;

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

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

async fn join(endpoint: &AnyEndpoint) -> Session {
    let pool = Pool::join(&Client::new(endpoint.clone())).await.expect("join");
    pool.session(endpoint.clone()).await.expect("session")
}

async fn open(session: &Session) -> Result<Dart, IndexError> {
    open_with(session, true).await
}

async fn open_with(session: &Session, est: bool) -> Result<Dart, IndexError> {
    let root = session.open_root("t").await.expect("root");
    let settings = Settings::default()
        .with("est", if est { "true" } else { "false" })
        .with("prefixes", "1+7")
        .with("est_nodes", "1")
        // Every entry of a bucket is a candidate.
        .with("print_bits", "0");
    let options = OpenOptions { settings, ..OpenOptions::default() };
    match AnyIndex::open(session, &root, &options).await? {
        AnyIndex::Dart(dart) => Ok(dart),
        other => panic!("{other:?} is of another engine"),
    }
}

async fn fill(session: &Session) -> Dart {
    let format = TableFormat::fixed8(Engine::Dart);
    AnyIndex::create(session, "t", &format).await.expect("create");
    let dart = open(session).await.expect("open");
    for number in 0..KEYS {
        dart.upsert(session, &key(number), &[7; 8]).await.expect("upsert");
    }
    assert!(session.finish_tasks().await, "maintenance ends");
    dart.maintain(session).await.expect("a table of hints");
    assert!(session.finish_tasks().await, "maintenance ends");
    dart
}

fn on_pool(test: impl AsyncFnOnce(Session)) {
    let fabric = Mapped::anonymous(2, 64 << 20).expect("memory");
    let endpoint = fabric.any_endpoint().expect("endpoint");
    let executor = endpoint.executor().clone();
    executor.block_on(async {
        let options = PoolOptions { block_bytes: 64 << 10, ..PoolOptions::default() };
        format(&Client::new(endpoint.clone()), &options).await.expect("format");
        test(join(&endpoint).await).await;
    });
}

/// Overwrites an object; returns what was there.
async fn overwrite(session: &Session, addr: GlobalAddr, words: &[u64]) -> Vec<u64> {
    let client = session.client();
    let held = client.read(addr, client.buf(8 * words.len())).await.expect("read");
    let mut buf = client.buf(8 * words.len());
    buf.words_mut().copy_from_slice(words);
    client.write(addr, buf).await.expect("write");
    held.words().to_vec()
}

async fn objects(session: &Session, dart: &Dart, kind: &'static str) -> Vec<(GlobalAddr, usize)> {
    let _pin = session.begin(OpKind::Other).await.expect("pin");
    let mut objects = Objects(kind, Vec::new());
    dart.0.walk(session, &mut objects, &mut TableReport::default()).await.expect("walk");
    assert!(!objects.1.is_empty(), "there is no {kind}");
    objects.1
}

fn corrupt(case: &str, dart: &Dart, result: Result<(), IndexError>) {
    let Err(IndexError::Corrupt(text)) = &result else { panic!("{case}: {result:?}") };
    let told = [dart.0.meta.to_string(), "verify the table".to_owned()];
    for part in told {
        assert!(text.contains(&part), "{case}: {part:?} is missing in {text:?}");
    }
}

/// Operations that come to the damage, beside point operations.
#[derive(Clone, Copy)]
struct Met {
    /// Lookups begin at entries.
    est: bool,
    scan: bool,
    walk: bool,
}

/// A compute server that has seen nothing of the table yet is told of the damage by every operation. Once the
/// memory is as it was, nothing is missing.
async fn told_and_healed(
    session: &Session,
    case: &str,
    damaged: Vec<(GlobalAddr, Vec<u64>)>,
    met: Met,
) {
    let mut held = Vec::new();
    for (addr, words) in &damaged {
        held.push((*addr, overwrite(session, *addr, words).await));
    }
    let other = join(session.endpoint()).await;
    let dart = open_with(&other, met.est).await.expect("open");
    let found = dart.get(&other, &key(77), &mut Vec::new()).await;
    corrupt(&format!("{case}, get"), &dart, found.map(drop));
    let updated = dart.update(&other, &key(78), &[8; 8]).await;
    corrupt(&format!("{case}, update"), &dart, updated.map(drop));
    let inserted = dart.insert(&other, &key(80), &[8; 8]).await;
    corrupt(&format!("{case}, insert"), &dart, inserted.map(drop));
    let removed = dart.remove(&other, &key(79)).await;
    corrupt(&format!("{case}, remove"), &dart, removed.map(drop));
    if met.scan {
        let scanned = dart.scan(&other, ScanRange::ALL, 400, &mut Entries::new()).await;
        corrupt(&format!("{case}, scan"), &dart, scanned);
    }
    if met.walk {
        let mut audit = Audit::new(&other).await.expect("audit");
        let verified = dart.verify(&other, &mut audit).await.map(drop);
        corrupt(&format!("{case}, verify"), &dart, verified);
    }
    for (addr, words) in &held {
        overwrite(session, *addr, words).await;
    }
    // The first one remembers the check line for a while.
    let other = join(session.endpoint()).await;
    let dart = open(&other).await.expect("open");
    for number in 0..KEYS {
        let mut value = Vec::new();
        assert_eq!(dart.get(&other, &key(number), &mut value).await, Ok(true), "{case}");
        assert_eq!(value, [7; 8], "{case}");
    }
    let mut audit = Audit::new(&other).await.expect("audit");
    let report = dart.verify(&other, &mut audit).await.expect("verified");
    assert_eq!((report.keys, report.problems), (KEYS, Vec::<String>::new()), "{case}");
}

#[test]
fn damaged_nodes_leaves_and_descriptors_are_told() {
    for (kind, fills, scan) in [
        ("node", [JUNK, u64::MAX].as_slice(), true),
        ("leaf", &[0, JUNK, u64::MAX], true),
        ("descriptor", &[0, JUNK, u64::MAX], false),
    ] {
        on_pool(async |session: Session| {
            let dart = fill(&session).await;
            for word in fills {
                let all = objects(&session, &dart, kind).await;
                let all = all.into_iter().map(|(addr, bytes)| (addr, vec![*word; bytes / 8]));
                let case = format!("{kind} {word:#x}");
                told_and_healed(
                    &session,
                    &case,
                    all.collect(),
                    Met { est: true, scan, walk: true },
                )
                .await;
            }
        });
    }
}

/// Slots whose leaves have changed places: an insert took the place where the keys differ for one behind the node, and made a
/// chain without end.
#[test]
fn leaves_in_slots_of_other_bytes_are_told() {
    on_pool(async |session: Session| {
        let dart = fill(&session).await;
        let mut damaged = Vec::new();
        for (addr, bytes) in objects(&session, &dart, "node").await {
            let client = session.client();
            let read = client.read(addr, client.buf(bytes)).await.expect("read");
            let mut words = read.words().to_vec();
            let is_leaf =
                |at: &usize| matches!(SlotWord::from_raw(words[*at]).child(), SlotContent::Leaf(_));
            let leaves: Vec<usize> = (0..words.len()).filter(is_leaf).collect();
            for (index, at) in leaves.iter().enumerate() {
                let next = SlotWord::from_raw(read.words()[leaves[(index + 1) % leaves.len()]]);
                let step = SlotWord::from_raw(words[*at]).step().expect("a step");
                words[*at] = next.moved(step, 0).raw();
            }
            damaged.push((addr, words));
        }
        for est in [true, false] {
            let met = Met { est, scan: false, walk: false };
            told_and_healed(&session, "leaves that changed places", damaged.clone(), met).await;
        }
    });
}

#[test]
fn pointers_out_of_the_pool_are_told() {
    on_pool(async |session: Session| {
        let dart = fill(&session).await;
        let tree = Met { est: false, scan: true, walk: true };
        let tables = Met { est: true, scan: false, walk: true };
        let entries = Met { walk: false, ..tables };
        let nowhere =
            [GlobalAddr::new(ServerId(200), 1 << 20), GlobalAddr::new(ServerId(1), (1 << 40) - 64)];
        for addr in nowhere {
            let place = u64::from(addr.server().0) << 40 | addr.offset();
            let (at, meta) = (addr.to_string(), dart.0.meta);
            for (what, word) in [
                ("leaf", SlotWord::leaf(Step::ROOT, 1, addr)),
                ("long leaf", SlotWord::leaf(Step::ROOT, 15, addr)),
                ("node", SlotWord::node(Step::ROOT, 0, DartNodeType::N8, addr)),
                ("sealed word", SlotWord::node(Step::ROOT, 0, DartNodeType::N8, addr).sealed()),
            ] {
                let words = vec![(meta.plus(META_ROOT), vec![word.raw()])];
                told_and_healed(&session, &format!("root {what} at {at}"), words, tree).await;
            }
            let words = vec![(meta.plus(META_TABLES), vec![1 << 48 | place | 2 << 2])];
            told_and_healed(&session, &format!("descriptor at {at}"), words, tables).await;
            // Valid entries of an N8, for the second length of the list.
            let entry = place | 1 << 49 | 1 << 2;
            let segments = objects(&session, &dart, "segment").await;
            let words =
                segments.into_iter().map(|(addr, bytes)| (addr, vec![entry; bytes / 8])).collect();
            told_and_healed(&session, &format!("entries of {at}"), words, entries).await;
        }
    });
}

/// Entries that are no entries of a key's length are passed over.
#[test]
fn damaged_entries_cost_round_trips_alone() {
    on_pool(async |session: Session| {
        let dart = fill(&session).await;
        for word in [JUNK | 1 << 48, u64::MAX, 1 << 5] {
            for (addr, bytes) in objects(&session, &dart, "segment").await {
                overwrite(&session, addr, &vec![word; bytes / 8]).await;
            }
            let other = join(session.endpoint()).await;
            let dart = open(&other).await.expect("open");
            for number in 0..KEYS {
                let mut value = Vec::new();
                assert_eq!(dart.get(&other, &key(number), &mut value).await, Ok(true), "{word:#x}");
                assert_eq!(value, [7; 8]);
            }
        }
    });
}

#[test]
fn a_damaged_or_later_meta_object_is_refused() {
    on_pool(async |session: Session| {
        let meta = fill(&session).await.0.meta;
        overwrite(&session, meta.plus(8), &[99]).await;
        let other = join(session.endpoint()).await;
        let refused = open(&other).await.map(drop);
        assert!(
            matches!(&refused, Err(IndexError::Invalid(text)) if text.contains("version 99")),
            "{refused:?}"
        );
        overwrite(&session, meta, &[JUNK]).await;
        let refused = open(&other).await.map(drop);
        assert!(
            matches!(&refused, Err(IndexError::Corrupt(text)) if text.contains("no meta object")),
            "{refused:?}"
        );
    });
}

#[test]
fn a_pool_of_more_servers_than_words_name_is_refused() {
    let region_bytes = 2 << 20;
    let fabric = Mapped::anonymous(257, region_bytes).expect("memory");
    let endpoint = fabric.any_endpoint().expect("endpoint");
    let executor = endpoint.executor().clone();
    executor.block_on(async {
        let options = PoolOptions::fitting(region_bytes);
        format(&Client::new(endpoint.clone()), &options).await.expect("format");
        let session = join(&endpoint).await;
        let refused = |result: Result<(), IndexError>| match result {
            Err(IndexError::Invalid(text)) => {
                assert!(text.contains("at most 256 memory servers, this one has 257"), "{text}");
                assert!(text.contains("choose another engine"), "{text}");
            }
            other => panic!("{other:?}"),
        };
        let format = TableFormat::fixed8(Engine::Dart);
        refused(AnyIndex::create(&session, "t", &format).await.map(drop));
        // A table that came there nevertheless, such as by a copy of a smaller pool's memory.
        let meta = session.alloc_unlinked(session.place(), 64).await.expect("memory");
        meta.keep();
        let params = format.to_params(7);
        session.create_root("t", "dart", &params, meta.addr()).await.expect("root");
        refused(open(&session).await.map(drop));
    });
}
