//! Bad input tests: bad input and bad memory give typed errors, and lose nothing.

use crate::common::{Pairs, World, check, create, lab_table, settle, with_shape};
use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::{Endpoint, GlobalAddr, ServerId};
use farleaf_index::{Entries, Index, IndexError, KeyFormat, ScanRange};
use farleaf_pool::Session;

fn invalid<T: std::fmt::Debug>(result: Result<T, IndexError>, says: &str) {
    match result {
        Err(IndexError::Invalid(text)) if text.contains(says) => {}
        other => panic!("wanted Invalid with {says:?}, got {other:?}"),
    }
}

#[test]
fn keys_and_values_that_do_not_fit_are_refused() {
    World::default().on_mapped(|session| async move {
        let bytes = create(&session, "bytes", &TableFormat::default()).await;
        let longest = vec![b'k'; 1024];
        assert_eq!(bytes.upsert(&session, &longest, &vec![1; 100_000]).await, Ok(true));
        invalid(bytes.upsert(&session, &[0; 1025], b"v").await, "at most 1024 bytes");
        invalid(bytes.get(&session, &[0; 1025], &mut Vec::new()).await, "1025 bytes");
        invalid(bytes.upsert(&session, b"k", &vec![0; (1 << 20) + 1]).await, "at most 1048576");
        let fixed = create(&session, "fixed", &TableFormat::fixed8(Engine::BTree)).await;
        invalid(fixed.upsert(&session, &[0; 7], &[0; 8]).await, "exactly 8 bytes");
        invalid(fixed.upsert(&session, &[0; 8], &[0; 9]).await, "exactly 8 bytes");
        check(&session, &[&bytes, &fixed]).await;
    });
}

#[test]
fn the_longest_value_of_the_pool_is_told() {
    World { block_bytes: 4 << 20, ..World::default() }.on_mapped(|session| async move {
        let table = create(&session, "t", &TableFormat::default()).await;
        let longest = vec![9; 1 << 20];
        assert_eq!(table.upsert(&session, b"k", &longest).await, Ok(true));
        let mut value = Vec::new();
        assert_eq!(table.get(&session, b"k", &mut value).await, Ok(true));
        assert!(value == longest);
        check(&session, &[&table]).await;
    });
    World::default().on_mapped(|session| async move {
        let table = create(&session, "t", &TableFormat::default()).await;
        let refused = table.upsert(&session, b"k", &vec![9; 1 << 20]).await;
        assert!(matches!(refused, Err(IndexError::Invalid(_))), "{refused:?}");
        assert_eq!(table.get(&session, b"k", &mut Vec::new()).await, Ok(false));
        check(&session, &[&table]).await;
    });
}

#[test]
fn impossible_formats_are_refused() {
    World::default().on_mapped(|session: farleaf_pool::Session| async move {
        let with = |format: TableFormat| {
            let session = session.clone();
            async move { AnyIndex::create(&session, "t", &format).await.map(drop) }
        };
        let nodes = |bytes| with_shape(TableFormat::default(), &[("node_bytes", bytes)]);
        invalid(with(nodes("1000")).await, "power of two");
        invalid(with(nodes("1024")).await, "at least 4096");
        invalid(with(nodes("65536")).await, "redo areas");
        let key = TableFormat::default().with_keys(KeyFormat::Fixed(5000));
        invalid(with(key).await, "1024");
        create(&session, "t", &TableFormat::default()).await;
        invalid(with(TableFormat::default()).await, "already");
        let missing = AnyIndex::drop_table(&session, "other").await;
        assert_eq!(missing, Err(IndexError::NoTable("there is no table \"other\"".into())));
        AnyIndex::drop_table(&session, "t").await.expect("drop");
        check::<AnyIndex>(&session, &[]).await;
    });
}

#[test]
fn a_bulk_load_of_unsorted_pairs_leaves_the_table_empty() {
    World::default().on_mapped(|session| async move {
        let table = create(&session, "t", &TableFormat::default()).await;
        let mut pairs: Vec<_> =
            (0..3000).map(|key| (format!("{key:05}").into_bytes(), vec![1; 3000])).collect();
        pairs.swap(2500, 2501);
        let refused = table.bulk_load(&session, &mut Pairs(pairs.iter())).await;
        invalid(refused, "pair 2502 of the load is out of order");
        assert_eq!(check(&session, &[&table]).await.keys, 0);
        pairs.sort();
        pairs[2501] = pairs[2500].clone();
        invalid(table.bulk_load(&session, &mut Pairs(pairs.iter())).await, "repeats");
        pairs.dedup();
        assert_eq!(table.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(2999));
        invalid(table.bulk_load(&session, &mut Pairs(pairs.iter())).await, "empty table");
        assert_eq!(check(&session, &[&table]).await.keys, 2999);
    });
}

/// A full pool says so, loses nothing, and takes keys again after deletes.
#[test]
fn a_full_pool_is_usable_after_deletes() {
    let world = World { servers: 2, region_bytes: 4 << 20, block_bytes: 64 << 10, seed: 3 };
    for format in [TableFormat::fixed8(Engine::BTree), TableFormat::default()] {
        world.on_mapped(|session| async move {
            let table = create(&session, "t", &format).await;
            for round in 0..3_u64 {
                let mut count = 0_u64;
                let full = loop {
                    let key = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round).to_be_bytes();
                    match table.insert(&session, &key, &count.to_be_bytes()).await {
                        Ok(new) => assert!(new),
                        Err(error) => break error,
                    }
                    count += 1;
                };
                assert!(matches!(full, IndexError::Full(_)), "{full:?}");
                assert!(count > 10_000, "{count}");
                assert_eq!(check(&session, &[&table]).await.keys, count);
                let mut out = Entries::new();
                table.scan(&session, ScanRange::ALL, usize::MAX, &mut out).await.expect("scan");
                assert_eq!(out.len() as u64, count);
                for (key, _) in out.iter() {
                    assert_eq!(table.remove(&session, key).await, Ok(true));
                }
                settle(&session).await;
                assert_eq!(check(&session, &[&table]).await.keys, 0);
            }
        });
    }
}

/// Overwritten nodes give `Corrupt`, from every operation, whatever they were overwritten with.
#[test]
fn corrupt_nodes_are_told() {
    for fill in [0, u64::MAX, 0x0102_0304_0506_0708] {
        World::default().on_mapped(|session| async move {
            let keys = TableFormat::default().with_keys(KeyFormat::Bytes { max: 100 });
            let format = with_shape(keys, &[("node_bytes", "1024")]);
            let table = create(&session, "t", &format).await;
            for key in 0..200_u64 {
                table.upsert(&session, &key.to_be_bytes(), b"value").await.expect("upsert");
            }
            overwrite_leaves(&session, fill).await;
            let corrupt = |result: Result<bool, IndexError>| {
                assert!(matches!(result, Err(IndexError::Corrupt(_))), "{fill:#x}: {result:?}");
            };
            let key = 77_u64.to_be_bytes();
            corrupt(table.get(&session, &key, &mut Vec::new()).await);
            let scan = table.scan(&session, ScanRange::ALL, usize::MAX, &mut Entries::new()).await;
            corrupt(scan.map(|()| true));
            let mut audit = farleaf_pool::Audit::new(&session).await.expect("audit");
            corrupt(table.verify(&session, &mut audit).await.map(|_| true));
        });
    }
}

/// Overwrites everything but the lock word of whatever looks like a leaf in server 0's and 1's
/// memory.
async fn overwrite_leaves(session: &Session, fill: u64) {
    let endpoint = session.endpoint();
    let mut hit = 0;
    for server in 0..endpoint.server_count() {
        let server = ServerId(server as u16);
        for offset in (0..endpoint.region_bytes(server) - 1024).step_by(64) {
            let addr = GlobalAddr::new(server, offset);
            let head = endpoint.read(addr, endpoint.buf(64)).await.expect("read");
            let [_, own, _, _, _, meta, ..] = *head.words() else { continue };
            let [kind, level, _, _, _, tag, ..] = meta.to_le_bytes();
            if own == addr.word() && kind == 1 && level == 0 && tag == 0xf7 {
                let mut junk = endpoint.buf(1016);
                junk.words_mut().fill(fill);
                endpoint.write(addr.plus(8), junk).await.expect("write");
                hit += 1;
            }
        }
    }
    assert!(hit > 5);
}

/// Dropping a table gives all of it back, also when it has more nodes and records than a client can
/// have retired at a time (it once failed there and left the memory lost).
#[test]
fn a_large_table_can_be_dropped() {
    World::default().on_mapped(|session| async move {
        let format = lab_table(Engine::BTree, "u64-small");
        let table = create(&session, "nodes", &format).await;
        let pairs: Vec<_> = (0..20_000_u64)
            .map(|key| (key.to_be_bytes().to_vec(), key.to_be_bytes().to_vec()))
            .collect();
        assert_eq!(table.bulk_load(&session, &mut Pairs(pairs.iter())).await, Ok(20_000));
        let long = create(&session, "records", &TableFormat::default()).await;
        for key in 0..1_500_u64 {
            long.upsert(&session, &key.to_be_bytes(), &[7; 5_000]).await.expect("upsert");
        }
        for name in ["nodes", "records"] {
            AnyIndex::drop_table(&session, name).await.expect("drop");
        }
        settle(&session).await;
        check::<AnyIndex>(&session, &[]).await;
        let (_, audit) = crate::common::audit::<AnyIndex>(&session, &[]).await;
        assert_eq!(audit.classes.iter().map(|class| class.live).sum::<u64>(), 0);
    });
}
