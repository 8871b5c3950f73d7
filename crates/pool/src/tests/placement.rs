//! Placement tests: the choice of a memory server, and what becomes of a full one.

use farleaf_fabric::ServerId;

use super::{Mine, SMALL, audit_of, endpoint, formatted, member, objects_of_block};
use crate::{Placement, PoolError};

const SERVERS: usize = 3;

fn counts(objects: &[farleaf_fabric::GlobalAddr]) -> Vec<usize> {
    let on = |server: usize| objects.iter().filter(|addr| addr.server().index() == server).count();
    (0..SERVERS).map(on).collect()
}

async fn take(session: &Mine, count: usize, bytes: usize) -> Vec<farleaf_fabric::GlobalAddr> {
    let mut objects = Vec::new();
    for _ in 0..count {
        objects.push(session.alloc(session.place(), bytes).await.unwrap());
    }
    objects
}

#[test]
fn objects_are_spread_evenly() {
    let fabric = formatted(SERVERS, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let counts = counts(&take(&session, 2_000, 1024).await);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most * 10 <= least * 11, "{counts:?}");
        // Objects of two kinds that are made in turn are spread, each kind by itself.
        let mut kinds = [Vec::new(), Vec::new()];
        for number in 0..600 {
            let addr = session.alloc(session.place(), [64, 128][number % 2]).await.unwrap();
            kinds[number % 2].push(addr);
        }
        for kind in kinds {
            let counts = self::counts(&kind);
            assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
        }
    });
}

/// Objects beside others on one server fill that, but for a few, no sooner than the rest.
#[test]
fn objects_beside_others_are_there_up_to_a_share() {
    let fabric = formatted(SERVERS, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        take(&session, 300, 1024).await;
        let beside = async |server: usize, count: usize| {
            let mut objects = Vec::new();
            for _ in 0..count {
                let place = Placement::Beside(ServerId(server as u16));
                objects.push(session.alloc(place, 1024).await.unwrap());
            }
            counts(&objects)
        };
        assert_eq!(beside(1, 20).await, [0, 20, 0]);
        let all = beside(1, 3_000).await;
        assert!(all.iter().all(|count| (960..=1_040).contains(count)), "{all:?}");
        for server in 0..SERVERS {
            assert!(beside(server, 20).await[server] >= 6);
        }
        let nowhere = session.alloc(Placement::Beside(ServerId(9)), 1024).await;
        assert!(matches!(nowhere, Err(PoolError::Invalid(_))), "{nowhere:?}");
    });
}

/// Blocks that others left part-filled are used up before a new one is taken, on any server, and then the other
/// servers get as much.
#[test]
fn orphans_of_all_servers_are_used_up_before_new_blocks() {
    let fabric = formatted(SERVERS, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (left, session) = (member(&end).await, member(&end).await);
        // More than little: it has a block on each server, two of them of two.
        let mut live = take(&left, 4 * 60, 1024).await;
        left.leave().await.unwrap();
        let before = counts(&live);
        let taken = async || {
            let objects: Vec<_> = live.iter().map(|addr| (*addr, 1024)).collect();
            let report = audit_of(&session, &objects).await;
            assert!(report.closes(), "{report:?}");
            report.blocks_owned + report.blocks_orphan
        };
        let blocks = taken().await;
        let room = blocks * objects_of_block(&session, 1024) - live.len() as u64;
        let more = take(&session, room as usize, 1024).await;
        assert!(more.iter().all(|addr| !live.contains(addr)));
        live.extend(more);
        let taken = async || {
            let objects: Vec<_> = live.iter().map(|addr| (*addr, 1024)).collect();
            let report = audit_of(&session, &objects).await;
            report.blocks_owned + report.blocks_orphan
        };
        assert_eq!(taken().await, blocks, "{before:?}");
        let more = counts(&take(&session, 1_500, 1024).await);
        let all: Vec<usize> =
            counts(&live).iter().zip(more).map(|(one, other)| one + other).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(most * 10 <= least * 11, "{all:?}");
    });
}

#[test]
fn a_full_server_passes_objects_on_until_all_are_full() {
    let fabric = formatted(SERVERS, 1 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let geometry = session.pool().geometry();
        let mut live = Vec::new();
        while let Ok(addr) = session.alloc_on(ServerId(1), 1024).await {
            live.push((addr, 1024));
        }
        assert!(live.iter().all(|(addr, _)| addr.server() == ServerId(1)));
        // Near the full one there is none on it, and there is no failure before all are full.
        let full = loop {
            match session.alloc(ServerId(1), 1024).await {
                Ok(addr) => live.push((addr, 1024)),
                Err(error) => break error,
            }
        };
        let PoolError::Full { server: ServerId(1), bytes: 1024, found } = full else {
            panic!("{full}");
        };
        assert_eq!((found.free_blocks, found.others.len()), (0, 0), "{found}");
        let blocks: u32 = geometry.server_ids().map(|server| geometry.block_count(server)).sum();
        assert_eq!(live.len() as u64, u64::from(blocks) * objects_of_block(&session, 1024));
        let report = audit_of(&session, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!((report.blocks_free, report.free_by_server.as_slice()), (0, &[0, 0, 0][..]));
        // One that becomes free is found, whichever server is asked.
        let (addr, _) = live.pop().unwrap();
        session.free_unpublished(addr, 1024);
        assert_eq!(session.alloc(session.place(), 1024).await.unwrap(), addr);
    });
}

/// A member that writes little takes one block for all classes, not one on each server.
#[test]
fn a_member_that_writes_little_takes_few_blocks() {
    let options = crate::PoolOptions { block_bytes: 256 << 10, ..SMALL };
    let fabric = formatted(SERVERS, 4 << 20, options);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        for bytes in [64, 1024] {
            take(&session, 15, bytes).await;
        }
        let blocks = || session.pool().memory().block_bytes_owned / options.block_bytes;
        assert_eq!(blocks(), 1);
        take(&session, 100, 1024).await;
        assert_eq!(blocks(), SERVERS as u64);
    });
}
