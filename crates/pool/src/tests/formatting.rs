//! Format tests: format and open pools, and refuse every damaged superblock.

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{Client, Endpoint, Fabric, GlobalAddr, ServerId};

use super::{SMALL, endpoint, formatted};
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};
use crate::{FormatFault, Geometry, Pool, PoolError, PoolOptions, format, format_once, superblock};

const REGION: u64 = 4 << 20;

/// Opens the fabric after `change` was written to word `word` of `server`'s superblock.
fn opened(fabric: &Mapped, change: Option<(u16, u64, u64)>) -> Result<Geometry, PoolError> {
    let end = endpoint(fabric);
    let client = Client::new(end.clone());
    end.executor().block_on(async {
        if let Some((server, word, value)) = change {
            let mut buf = client.buf(8);
            buf.words_mut()[0] = value;
            client.write(GlobalAddr::new(ServerId(server), word * 8), buf).await.unwrap();
        }
        let lines = Reconnects::new(client.endpoint().server_count());
        let opened = superblock::open(Reliable::new(&client, &lines, PATIENCE_NS)).await;
        opened.map(|(geometry, _)| geometry)
    })
}

fn fault(result: Result<Geometry, PoolError>) -> (u16, FormatFault) {
    match result {
        Err(PoolError::Format(error)) => (error.server.0, error.fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_formatted_opens_with_the_same_options() {
    for options in [SMALL, PoolOptions::fitting(REGION)] {
        let fabric = formatted(3, REGION, options);
        let geometry = opened(&fabric, None).unwrap();
        assert_eq!((geometry.options(), geometry.servers()), (&options, 3));
    }
}

#[test]
fn every_kind_of_bad_superblock_is_refused_by_name() {
    let refused = |change| fault(opened(&formatted(2, REGION, SMALL), Some(change)));
    let fresh = Mapped::anonymous(2, REGION).unwrap();
    assert_eq!(fault(opened(&fresh, None)), (0, FormatFault::NotFormatted));
    assert_eq!(refused((1, 0, 0)), (1, FormatFault::NotFormatted));
    assert_eq!(refused((1, 0, 77)), (1, FormatFault::Foreign));
    assert_eq!(refused((0, 1, 9)), (0, FormatFault::Version { found: 9, supported: 3 }));
    for word in 2..19 {
        assert_eq!(refused((1, word, u64::MAX)), (1, FormatFault::Checksum), "word {word}");
    }
}

/// Copies superblocks between pools: what a mixed-up list of servers looks like.
#[test]
fn regions_that_do_not_belong_together_are_refused() {
    let copied = |from: &Mapped, server: u16, to: &Mapped, as_server: u16| {
        let (one, two) = (endpoint(from), endpoint(to));
        one.executor().block_on(async {
            let at = GlobalAddr::new(ServerId(server), 0);
            let page = one.read(at, one.buf(4096)).await.unwrap();
            let mut copy = two.buf(4096);
            copy.bytes_mut().copy_from_slice(page.bytes());
            two.write(GlobalAddr::new(ServerId(as_server), 0), copy).await.unwrap();
        });
        fault(opened(to, None))
    };
    let pool = || formatted(2, REGION, SMALL);
    let (_, found) = copied(&pool(), 1, &pool(), 1);
    assert!(matches!(found, FormatFault::PoolId { .. }), "{found:?}");
    let one = pool();
    assert_eq!(copied(&one, 0, &one, 1), (1, FormatFault::ServerId { found: 0 }));
    let longer = formatted(2, REGION + 4096, SMALL);
    let length = |found, expected| (0, FormatFault::Length { found, expected });
    assert_eq!(copied(&longer, 0, &pool(), 0), length(REGION, REGION + 4096));
    assert_eq!(copied(&pool(), 0, &longer, 0), length(REGION + 4096, REGION));
    let three = formatted(3, REGION, SMALL);
    let count = FormatFault::ServerCount { found: 2, expected: 3 };
    assert_eq!(copied(&three, 0, &Mapped::anonymous(2, REGION).unwrap(), 0), (0, count));
}

#[test]
fn nonsense_options_are_refused_and_change_nothing() {
    let fabric = formatted(1, REGION, SMALL);
    let end = endpoint(&fabric);
    let client = Client::new(end.clone());
    let huge = PoolOptions { block_bytes: 1 << 30, ..SMALL };
    let refused = end.executor().block_on(format(&client, &huge));
    assert!(matches!(refused, Err(PoolError::Invalid(_))));
    assert!(opened(&fabric, None).is_ok());
}

#[test]
fn formatting_again_forgets_everything() {
    let fabric = formatted(1, REGION, SMALL);
    let end = endpoint(&fabric);
    let client = Client::new(end.clone());
    end.executor().block_on(async {
        let session = super::member(&end).await;
        session.alloc(ServerId(0), 100).await.unwrap();
        session.create_root("t", "btree", &[0; 64], GlobalAddr::NULL).await.unwrap();
        format(&client, &SMALL).await.unwrap();
        assert_eq!(session.tick().await, Err(PoolError::Closed), "the old member is gone");
        let session = super::member(&end).await;
        assert_eq!(session.pool().member(), 0);
        assert_eq!(session.list_roots().await, Ok(Vec::new()));
        let report = super::audit_of(&session, &[]).await;
        assert_eq!((report.blocks_owned, report.blocks_orphan), (0, 0));
        assert!(report.closes());
    });
    assert!(fabric.endpoint().is_ok());
    end.executor().block_on(async { assert!(Pool::join(&client).await.is_ok()) });
}

fn once(fabric: &Mapped) -> Result<bool, PoolError> {
    let end = endpoint(fabric);
    let client = Client::new(end.clone());
    end.executor().block_on(format_once(&client, &SMALL))
}

/// Stores a word of `server`'s superblock page.
fn store(fabric: &Mapped, server: u16, word: u64, value: u64) {
    let end = endpoint(fabric);
    end.executor().block_on(async {
        let mut buf = end.buf(8);
        buf.words_mut()[0] = value;
        end.write(GlobalAddr::new(ServerId(server), word * 8), buf).await.unwrap();
    });
}

const CLAIM: u64 = 511;

#[test]
#[allow(clippy::disallowed_methods, reason = "processes that make a pool race for real")]
fn a_pool_is_made_once_and_by_one() {
    let path = std::env::temp_dir().join(format!("farleaf-format-once-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let (fabric, guard) = Mapped::create(&path, 2, REGION).unwrap();
    guard.finish().unwrap();
    let made: Vec<bool> = std::thread::scope(|scope| {
        let make = || once(&Mapped::open(&path).unwrap()).unwrap();
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
    assert_eq!(opened(&fabric, None).unwrap().options(), &SMALL);
    assert!(!once(&fabric).unwrap());
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_a_dead_maker_left_is_made_whole() {
    // A life that this fabric has never heard of is a dead one's.
    for left in [&[(0, CLAIM, 77)][..], &[(0, CLAIM, 77), (1, 5, 1)], &[(0, CLAIM, 77), (0, 0, 9)]]
    {
        let fabric = Mapped::anonymous(2, REGION).unwrap();
        for (server, word, value) in left {
            store(&fabric, *server, *word, *value);
        }
        assert!(once(&fabric).unwrap());
        opened(&fabric, None).unwrap();
        assert!(!once(&fabric).unwrap());
    }
}

/// A server that has lost its memory must not cost the others theirs.
#[test]
fn a_pool_that_is_whole_in_part_is_not_made_anew() {
    let fabric = formatted(2, REGION, SMALL);
    store(&fabric, 1, 0, 0);
    assert_eq!(once(&fabric).unwrap_err(), {
        let fault = FormatFault::NotFormatted;
        PoolError::Format(crate::FormatError { server: ServerId(1), fault })
    });
    assert_eq!(fault(opened(&fabric, None)), (1, FormatFault::NotFormatted));
}
