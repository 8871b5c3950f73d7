//! Costs: a command's remote operations are those of the library's call, exactly.

use std::collections::BTreeSet;

use farleaf::{Cost, Farleaf, OpKind, Operation, Table, TableOptions};
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

/// A filled table of an engine in a pool of its own.
fn filled(engine: &str) -> (Farleaf, Table) {
    let db = Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap();
    let mut options = TableOptions::default().engine(engine.parse().unwrap());
    if engine == "dart" {
        // It draws lots: one get of 64 counts its leaf by an FAA, and one probe of 8 counts for the choice of lengths at
        // which a lookup probes the skip table.
        options = options.set("freq_sample", "0").set("est", "off");
    }
    let table = db.create_table("db0", options).unwrap();
    table.insert_many((0..1_000).map(|number| (format!("k{number:04}"), "value"))).unwrap();
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
    for engine in ["btree", "dex", "smart", "dart"] {
        let mut inexact: BTreeSet<usize> = (0..PAIRS.len()).collect();
        for _ in 0..ATTEMPTS {
            inexact = &inexact & &attempt(engine);
            if inexact.is_empty() {
                break;
            }
        }
        let lines: Vec<_> = inexact.iter().map(|at| PAIRS[*at].0).collect();
        assert!(lines.is_empty(), "{engine}: never exact: {lines:?}");
    }
}

/// Runs all commands beside their calls; returns those where one side read the table's root again, and the other not.
fn attempt(engine: &str) -> BTreeSet<usize> {
    let (theirs, table) = filled(engine);
    let (ours, _own) = filled(engine);
    let gateway =
        Gateway::start(ours.clone(), GatewayOptions::new(vec!["db0".to_owned()])).unwrap();
    let served = Served { db: ours, gateway };
    let mut resp = Resp::connect(served.gateway.address());
    let mut inexact = BTreeSet::new();
    for (at, (line, call)) in PAIRS.iter().enumerate() {
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
    let bytes = match engine {
        "btree" => 8,
        "dart" => 64,
        _ => return false,
    };
    let (less, more) = if one.reads < other.reads { (one, other) } else { (other, one) };
    let extra = more.reads - less.reads;
    more == Cost {
        reads: more.reads,
        round_trips: less.round_trips + extra,
        bytes_read: less.bytes_read + extra * bytes,
        ..less
    }
}
