//! Store lifecycle tests: opening, listing tables, closing, full pools.
#![allow(clippy::unwrap_used)]

use std::error::Error as _;
use std::thread;
use std::time::Duration;

use crate::common::{Scratch, SharedPool, eventually, key, small};
use farleaf::{Engine, ErrorKind, Farleaf, KeyFormat, OpKind, TableOptions, ValueFormat};

#[test]
fn wrong_addresses_are_explained() {
    for (uri, what) in [
        ("mem", "did you mean \"mem:\"?"),
        ("verbs://host:7000?device", "as in \"device=mlx5_0\""),
        ("/dev/shm/pool", "did you mean \"shm:/dev/shm/pool\"?"),
    ] {
        let error = Farleaf::open(uri).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn what_is_no_pool_is_not_opened() {
    let scratch = Scratch::new("no-pool");
    let error = Farleaf::open(&scratch.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
    assert!(error.to_string().contains("no such folder"), "{error}");

    std::fs::create_dir_all(scratch.path()).unwrap();
    std::fs::write(scratch.path().join("letter.txt"), "dear").unwrap();
    let error = Farleaf::open(&scratch.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
    let error = Farleaf::builder().create(true).open(&scratch.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoPool, "{error}");
    assert!(error.to_string().contains("not empty"), "{error}");

    // The right name and length, but somebody else's bytes.
    std::fs::remove_file(scratch.path().join("letter.txt")).unwrap();
    std::fs::create_dir_all(scratch.path().join("members")).unwrap();
    std::fs::write(scratch.path().join("region-00000"), vec![b'x'; 1 << 20]).unwrap();
    let error = Farleaf::open(&scratch.uri()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("not a Farleaf pool"), "{error}");
}

/// A process that cannot have the memory that it is to expose says so, exposes nothing and goes on.
#[test]
fn memory_that_cannot_be_exposed_is_named() {
    const MORE_THAN_ANY_DISK: u64 = 1 << 43;
    let scratch = Scratch::new("expose");
    let open = |bytes| {
        let builder = Farleaf::builder().create(true).pool_bytes(64 << 20).expose_bytes(bytes);
        builder.open(&scratch.uri()).unwrap()
    };
    let db = open(MORE_THAN_ANY_DISK);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for _ in 0..2 {
        let error = db.serve().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        let told = error.to_string();
        assert!(told.contains(&format!("cannot expose {MORE_THAN_ANY_DISK} bytes")), "{told}");
        assert!(told.contains("bytes free"), "{told}");
    }
    table.insert("a", "1").unwrap();
    assert_eq!(table.get("a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(db.stats().unwrap().exposed_bytes, 0);
    assert!(db.compute_servers().unwrap().iter().all(|server| server.exposed_bytes == 0));
    // Beside one that can.
    let other = open(1 << 20);
    let own = other.serve().unwrap();
    assert_eq!((own.exposed_bytes, other.stats().unwrap().exposed_bytes), (1 << 20, 1 << 20));
    let mut told: Vec<u64> =
        db.compute_servers().unwrap().iter().map(|server| server.exposed_bytes).collect();
    told.sort_unstable();
    assert_eq!(told, [0, 1 << 20]);
    other.close().unwrap();
    assert_eq!(db.compute_servers().unwrap().len(), 1);
    db.close().unwrap();
}

#[test]
fn nonsense_options_are_refused() {
    let refused = |builder: farleaf::Builder| {
        let error = builder.open("mem:").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    };
    refused(Farleaf::builder().memory_servers(0));
    refused(Farleaf::builder().pool_bytes(100));
    refused(Farleaf::builder().block_bytes(12345));
    refused(Farleaf::builder().async_workers(0));
    for bytes in [1, 5000, (1 << 44) + 4096, 1 << 44] {
        refused(Farleaf::builder().expose_bytes(bytes));
    }
    let db = small();
    for (name, options) in [
        ("", TableOptions::default()),
        (&"n".repeat(129), TableOptions::default()),
        ("t", TableOptions::default().set("node_bytes", "1000")),
        ("t", TableOptions::default().keys(KeyFormat::Bytes { max: 5000 })),
        ("t", TableOptions::default().set("node_bytes", "256")),
    ] {
        let error = db.create_table(name, options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
    assert_eq!(db.tables().unwrap(), []);
    assert!(db.verify().unwrap().closes(), "a refused table leaves nothing");
}

#[test]
fn tables_are_made_listed_and_dropped() {
    let db = small();
    let fixed = TableOptions::default()
        .engine(Engine::BTree)
        .keys(KeyFormat::Fixed(8))
        .values(ValueFormat::Fixed(16))
        .set("node_bytes", "2048");
    let users = db.create_table("users", TableOptions::default()).unwrap();
    let counts = db.create_table("counts", fixed.clone()).unwrap();
    users.insert("ada", "1815").unwrap();
    counts.insert([0; 8], [0; 16]).unwrap();

    let names: Vec<_> = db.tables().unwrap().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["users", "counts"]);
    assert_eq!(db.table("counts").unwrap().info(), counts.info());
    assert_eq!(counts.info().values, ValueFormat::Fixed(16));
    assert_eq!(counts.info().shape.get("node_bytes"), Some("2KiB"));
    assert_eq!(db.table("users").unwrap().get("ada").unwrap(), Some(b"1815".to_vec()));

    let error = db.create_table("users", fixed.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let error = db.table("user").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("did you mean \"users\"?"), "{error}");
    assert_eq!(db.table_or_create("users", fixed.clone()).unwrap().info(), users.info());
    assert_eq!(db.table_or_create("new", fixed).unwrap().info().keys, KeyFormat::Fixed(8));

    let range = users.range(..);
    db.drop_table("users").unwrap();
    for error in [
        users.get("ada").unwrap_err(),
        users.insert("ada", "1").unwrap_err(),
        range.last().unwrap().unwrap_err(),
        crate::common::block_on(users.to_async().get("ada")).unwrap_err(),
        db.table("users").unwrap_err(),
        db.drop_table("users").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    // Made anew it is another table, which the old handle does not reach.
    let again = db.create_table("users", TableOptions::default()).unwrap();
    assert_eq!(again.range(..).count(), 0);
    assert!(users.get("ada").is_err());
    let report = db.verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

#[test]
fn a_closed_store_says_so_everywhere() {
    let db = small();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert("a", "1").unwrap();
    crate::common::block_on(table.to_async().get("a")).unwrap();
    let mut range = table.range(..);
    let other = db.clone();
    thread::scope(|scope| {
        // A thread that has used the store and stays.
        let (used, is_used) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let table = &table;
        scope.spawn(move || {
            table.get("a").unwrap();
            used.send(()).unwrap();
            may_go_on.recv().unwrap();
            assert_eq!(table.get("a").unwrap_err().kind(), ErrorKind::Closed);
        });
        is_used.recv().unwrap();
        db.close().unwrap();
        go_on.send(()).unwrap();
    });
    for error in [
        table.get("a").unwrap_err(),
        table.insert("a", "2").unwrap_err(),
        range.next().unwrap().unwrap_err(),
        other.tables().unwrap_err(),
        other.stats().unwrap_err(),
        other.verify().unwrap_err(),
        other.table("t").unwrap_err(),
        crate::common::block_on(table.to_async().get("a")).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert!(range.next().is_none(), "an iterator ends after its error");
    other.close().unwrap();
}

#[test]
fn a_shared_pool_keeps_what_was_written() {
    let scratch = SharedPool::new("keeps");
    let db = scratch.open();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.insert_many((0..2000).map(|number| (key(number), key(number)))).unwrap();
    drop((db, table));
    let db = Farleaf::open(&scratch.uri()).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.range(..).count(), 2000);
    assert_eq!(table.get(key(77)).unwrap(), Some(key(77)));
    let report = db.verify().unwrap();
    assert!(report.closes(), "{:?}", report.problems().collect::<Vec<_>>());
    assert_eq!(report.tables[0].stats.keys, 2000);
}

/// A thread that has used a store and goes on holds sessions that only it can end.
#[test]
fn a_close_while_other_threads_stay_leaves_a_pool_that_adds_up() {
    let scratch = SharedPool::new("stay");
    let db = scratch.open();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    thread::scope(|scope| {
        let (used, is_used) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let table = &table;
        scope.spawn(move || {
            table.insert_many((0..1000).map(|number| (key(number), vec![1; 500]))).unwrap();
            table.remove_many((0..500).map(key)).unwrap();
            used.send(()).unwrap();
            may_go_on.recv().unwrap();
        });
        is_used.recv().unwrap();
        db.close().unwrap();
        let again = Farleaf::open(&scratch.uri()).unwrap();
        assert_eq!(again.table("t").unwrap().range(..).count(), 500);
        let report = again.verify().unwrap();
        assert!(report.closes(), "{report:?}");
        go_on.send(()).unwrap();
    });
    let report = Farleaf::open(&scratch.uri()).unwrap().verify().unwrap();
    assert!(report.closes(), "{report:?}");
}

/// More threads, one after the other, than the pool has sessions.
#[test]
fn sessions_of_threads_that_ended_come_back() {
    let db = Farleaf::builder().pool_bytes(4 << 20).open("mem:").unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for number in 0..200 {
        let table = table.clone();
        thread::spawn(move || table.insert(key(number), "v").unwrap()).join().unwrap();
    }
    assert_eq!(table.range(..).count(), 200);
}

#[test]
fn two_stores_on_one_pool_see_each_other() {
    let scratch = SharedPool::new("two");
    let (one, two) = (scratch.open(), scratch.open());
    let here = one.create_table("t", TableOptions::default()).unwrap();
    let there = two.table("t").unwrap();
    for number in 0..1000 {
        let (writer, reader) = if number % 2 == 0 { (&here, &there) } else { (&there, &here) };
        writer.insert(key(number), key(number + 1)).unwrap();
        assert_eq!(reader.get(key(number)).unwrap(), Some(key(number + 1)));
    }
    assert_eq!(here.range(..).count(), 1000);
    assert_eq!(there.range(..).rev().count(), 1000);
    assert_ne!(one.stats().unwrap().member, two.stats().unwrap().member);
    let threads: Vec<_> = [here.clone(), there.clone()]
        .into_iter()
        .map(|table| {
            thread::spawn(move || {
                (0..2000).filter(|number| table.remove(key(*number)).unwrap()).count()
            })
        })
        .collect();
    let removed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(removed, 1000, "each key is removed by exactly one");
    two.close().unwrap();
    assert_eq!(there.get("x").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(here.range(..).count(), 0);
    assert!(one.verify().unwrap().closes());
}

#[test]
fn a_full_pool_takes_more_after_deletes() {
    let db = Farleaf::builder().pool_bytes(8 << 20).open("mem:").unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let value = [1; 2000];
    for _ in 0..3 {
        let mut count = 0;
        let error = loop {
            match table.insert(key(count), value) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(count > 1000, "{count} pairs fill 8 MiB");
        assert_eq!(table.range(..).count() as u32, count, "reads go on");
        assert_eq!(table.remove_many((0..count).map(key)).unwrap(), u64::from(count));
        // The memory comes back when the epochs have moved on.
        eventually(Duration::from_secs(5), "an insert works again", || {
            table.insert(key(0), value).is_ok()
        });
    }
    assert!(db.verify().unwrap().closes());
}

#[test]
fn stats_count_what_went_over_the_fabric() {
    let db = Farleaf::builder().memory_servers(2).pool_bytes(64 << 20).open("mem:").unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    let before = db.stats().unwrap();
    assert_eq!((before.fabric, before.memory_servers), ("mapped", 2));
    assert_eq!(before.memory.pool_bytes, 64 << 20);
    table.insert_many((0..100).map(|number| (key(number), "v"))).unwrap();
    for number in 0..10 {
        table.get(key(number)).unwrap();
    }
    let counters = db.stats().unwrap().counters.since(&before.counters);
    assert_eq!(counters.ops(OpKind::Upsert), 100);
    assert_eq!(counters.ops(OpKind::Get), 10);
    assert!(counters.kind(OpKind::Get).reads >= 10);
    assert_eq!(counters.kind(OpKind::Get).writes, 0, "a read writes nothing");
}

#[test]
fn the_systems_errors_are_kept() {
    let error = Farleaf::builder().create(true).open("shm:/proc/no/pool").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains("/proc/no/pool"), "{error}");
    assert!(error.source().is_some());
}

/// Thousands of stores one after the other leave neither threads nor memory behind.
#[test]
fn stores_go_when_their_last_handle_does() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let small = || Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap();
    let stays = small();
    stays.create_table("t", TableOptions::default()).unwrap();
    let regions = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().count()
    };
    let before = (threads(), regions());
    for _ in 0..50 {
        let db = small();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        table.insert("a", "1").unwrap();
        crate::common::block_on(table.to_async().get("a")).unwrap();
    }
    // Other tests of this program run at the same time.
    let slack = 40;
    assert!(threads() < before.0 + slack, "{} threads", threads());
    assert!(regions() < before.1 + 3 * slack, "{} mappings", regions());
}
