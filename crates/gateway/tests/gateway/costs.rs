//! Costs: a command's remote operations are those of the library's call, exactly.

use std::collections::BTreeSet;
use std::time::Duration;

use farleaf::{Content, Cost, Expiry, Farleaf, OpKind, Operation, Table, TableOptions};
use farleaf_gateway::{Gateway, GatewayOptions};

use crate::common::{Resp, Served};

/// A command, and the library's call that does the same.
type Pair = (&'static str, fn(&Table) -> farleaf::Result<()>);

const PAIRS: &[Pair] = &[
    ("GET k0500", |table| table.get("k0500").map(drop)),
    ("GET absent", |table| table.get("absent").map(drop)),
    ("STRLEN k0500", |table| table.get("k0500").map(drop)),
    ("EXISTS k0500", |table| table.get("k0500").map(drop)),
    ("TYPE k0500", |table| table.get("k0500").map(drop)),
    ("GETRANGE k0500 0 1", |table| table.get("k0500").map(drop)),
    ("MGET k0100 k0500 k0900", |table| table.get_many(["k0100", "k0500", "k0900"]).map(drop)),
    ("SET k0500 x", |table| table.insert("k0500", "x").map(drop)),
    ("SET new0 x", |table| table.insert("new0", "x").map(drop)),
    ("SET k0500 x NX", |table| table.insert_new("k0500", "x").map(drop)),
    ("SETNX k0500 x", |table| table.insert_new("k0500", "x").map(drop)),
    ("SET k0500 y XX", |table| table.update("k0500", "y").map(drop)),
    ("SET k0500 z IFEQ y", |table| {
        table.compare_exchange("k0500", Some(b"y"), Some(b"z")).map(drop)
    }),
    ("DELIFEQ k0500 other", |table| {
        table.compare_exchange("k0500", Some(b"other"), None).map(drop)
    }),
    ("MSET k0100 a k0900 b", |table| {
        let inserts =
            [("k0100", "a"), ("k0900", "b")].map(|(key, value)| Operation::Insert(key, value));
        table.run_batch(inserts).map(drop)
    }),
    ("DEL k0501", |table| table.remove("k0501").map(drop)),
    ("INCR count", |table| table.update_with("count", |_| Some(b"1".to_vec())).map(drop)),
    ("INCR count", |table| table.update_with("count", |_| Some(b"2".to_vec())).map(drop)),
    ("APPEND count x", |table| table.update_with("count", |_| Some(b"2x".to_vec())).map(drop)),
    ("GETDEL count", |table| table.update_with("count", |_| None).map(drop)),
    ("FARLEAF.FLOOR k0502x", |table| table.floor("k0502x").map(drop)),
    ("FARLEAF.CEILING k0502x", |table| table.ceiling("k0502x").map(drop)),
    ("FARLEAF.LONGESTPREFIX k0502x", |table| table.longest_prefix("k0502x").map(drop)),
    ("FARLEAF.LONGESTRUN k0502 k0503 no", |table| {
        table.longest_run(["k0502", "k0503", "no"]).map(drop)
    }),
    ("ZLEXCOUNT db0 [k01 (k02", |table| table.count("k01".."k02").map(drop)),
    ("ZRANGEBYLEX db0 [k01 (k02 LIMIT 0 5", |table| {
        table.range("k01".."k02").take(5).try_for_each(|pair| pair.map(drop))
    }),
    ("ZREMRANGEBYLEX db0 [k0300 (k0304", |table| table.remove_range("k0300".."k0304").map(drop)),
];

/// The same for commands on records.
const RECORD_PAIRS: &[Pair] = &[
    ("GET k0500", |table| table.get("k0500").map(drop)),
    ("HGET h a", |table| table.record("h").map(drop)),
    ("HMGET h a x", |table| table.hash_get("h", fields(&["a", "x"])).map(drop)),
    ("HGETALL h", |table| table.hash("h").map(drop)),
    ("HLEN absent", |table| table.hash_len("absent").map(drop)),
    ("HSET h a 1 c 2", |table| {
        let fields = [("a", "1"), ("c", "2")];
        table.hash_set("h", fields.map(|(name, value)| (name.into(), value.into())).to_vec())?;
        Ok(())
    }),
    ("HSET new f 1", |table| table.hash_set("new", vec![(b"f".to_vec(), b"1".to_vec())]).map(drop)),
    ("HDEL h a x", |table| table.hash_remove("h", fields(&["a", "x"])).map(drop)),
    ("HDEL new f", |table| table.hash_remove("new", fields(&["f"])).map(drop)),
    ("TTL k0500", |table| table.expiry("k0500").map(drop)),
    ("EXPIRE k0500 100", |table| table.set_expiry("k0500", after(100)).map(drop)),
    ("EXPIRE absent 100", |table| table.set_expiry("absent", after(100)).map(drop)),
    ("GETEX k0500 EX 200", |table| table.set_expiry("k0500", after(200)).map(drop)),
    ("PERSIST k0500", |table| table.set_expiry("k0500", Expiry::Never).map(drop)),
    ("SETEX k0500 100 x", |table| table.insert_with("k0500", b"x".to_vec(), after(100)).map(drop)),
    ("SET k0500 y EX 300", |table| table.insert_with("k0500", b"y".to_vec(), after(300)).map(drop)),
    ("SET k0500 z KEEPTTL", |table| {
        table.insert_with("k0500", b"z".to_vec(), Expiry::Keep).map(drop)
    }),
    ("DEL k0501 h", |table| table.run_batch(["k0501", "h"].map(Operation::Remove)).map(drop)),
];

/// A moment. Commands on one key have different ones: the same would change nothing, or fewer words.
fn after(seconds: u64) -> Expiry {
    Expiry::In(Duration::from_secs(seconds))
}

fn fields(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// A filled table of an engine in a pool of its own.
fn filled(engine: &str, content: Content) -> (Farleaf, Table) {
    let db = Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap();
    let mut options = TableOptions::default().engine(engine.parse().unwrap()).content(content);
    if engine == "dart" {
        // It draws lots: one get of 64 counts its leaf by an FAA, and one probe of 8 counts for the choice of lengths at
        // which a lookup probes the skip table.
        options = options.set("freq_sample", "0").set("est", "off");
    }
    let table = db.create_table("db0", options).unwrap();
    table.insert_many((0..1_000).map(|number| (format!("k{number:04}"), "value"))).unwrap();
    if content == Content::Records {
        let held = ["a", "b"].map(|name| (name.as_bytes().to_vec(), b"value".to_vec()));
        table.hash_set("h", held.to_vec()).unwrap();
    }
    (db, table)
}

/// Remote operations of all kinds since the pool was opened. Maintenance is left out: it goes by the clock.
fn cost(db: &Farleaf) -> Vec<(OpKind, Cost)> {
    let counters = db.stats().unwrap().counters;
    let kinds = [
        OpKind::Get,
        OpKind::Insert,
        OpKind::Update,
        OpKind::Upsert,
        OpKind::Remove,
        OpKind::CompareExchange,
        OpKind::Scan,
    ];
    kinds.iter().map(|kind| (*kind, counters.kind(*kind))).collect()
}

/// Attempts of an engine, in one of which at least each command costs exactly what its call costs.
const ATTEMPTS: usize = 20;

#[test]
fn a_command_costs_what_its_call_costs() {
    check(PAIRS, Content::Raw);
}

#[test]
fn a_command_on_records_costs_what_its_call_costs() {
    check(RECORD_PAIRS, Content::Records);
}

fn check(pairs: &[Pair], content: Content) {
    for engine in ["btree", "dex", "smart", "dart"] {
        let mut inexact: BTreeSet<usize> = (0..pairs.len()).collect();
        for number in 0..ATTEMPTS {
            inexact = &inexact & &attempt(number, engine, pairs, content);
            if inexact.is_empty() {
                break;
            }
        }
        let lines: Vec<_> = inexact.iter().map(|at| pairs[*at].0).collect();
        assert!(lines.is_empty(), "{engine}: never exact: {lines:?}");
    }
}

/// Runs all commands beside their calls; returns those where one side read the table's root again, and the other not.
///
/// A thread's sessions look after the epoch each 64 operations of it. Each attempt begins with another number of them,
/// so that this falls on other commands.
fn attempt(number: usize, engine: &str, pairs: &[Pair], content: Content) -> BTreeSet<usize> {
    let (theirs, table) = filled(engine, content);
    let (ours, own) = filled(engine, content);
    // A cached slot of `smart` proves its leaf only if the leaf was born by the epoch at which the node was READ. The load
    // leaves some that do not, if the epoch moves on under it; a get of each READs those nodes again.
    for table in [&table, &own] {
        table.get_many((0..1_000).map(|number| format!("k{number:04}"))).unwrap();
    }
    let mut options = GatewayOptions::new(vec!["db0".to_owned()]);
    // Sweeps go by the clock.
    options.sweep_percent = 0;
    let gateway = Gateway::start(ours.clone(), options).unwrap();
    let served = Served { db: ours, gateway };
    let mut resp = Resp::connect(served.gateway.address());
    for _ in 0..number {
        table.get("k0000").unwrap();
        assert!(resp.say("GET k0000").starts_with('$'));
    }
    let mut inexact = BTreeSet::new();
    for (at, (line, call)) in pairs.iter().enumerate() {
        // Both sides know the root of this epoch. The first of these fills what a thread has cached.
        table.get("k0000").unwrap();
        assert!(resp.say("GET k0000").starts_with('$'));
        let before = [cost(&theirs), cost(&served.db)];
        call(&table).unwrap();
        let reply = resp.say(line);
        assert!(!reply.starts_with('-'), "{engine}, {line}: {reply}");
        let after = [cost(&theirs), cost(&served.db)];
        for (place, (kind, _)) in after[0].iter().enumerate() {
            let [theirs, ours] = [0, 1].map(|side| after[side][place].1 - before[side][place].1);
            if ours != theirs {
                assert!(
                    differ_by_root_reads(engine, ours, theirs),
                    "{engine}, {line}: {kind:?} costs {ours:?}, not {theirs:?}"
                );
                inexact.insert(at);
            }
        }
    }
    inexact
}

/// If the epoch moves on, as it does by the clock, `btree` reads the word of its root again, and `dart` its line.
fn differ_by_root_reads(engine: &str, one: Cost, other: Cost) -> bool {
    let (less, more) = if one.reads < other.reads { (one, other) } else { (other, one) };
    let extra = more.reads - less.reads;
    let bytes = more.bytes_read.saturating_sub(less.bytes_read);
    let fits = match engine {
        "btree" => bytes == extra * 8,
        "dart" => bytes == extra * 64,
        _ => false,
    };
    let reads = Cost {
        reads: more.reads,
        round_trips: less.round_trips + extra,
        bytes_read: more.bytes_read,
        ..less
    };
    fits && more == reads
}
