//! Root tests: make, find and drop named tables.

use farleaf_fabric::{GlobalAddr, ServerId};

use super::{SMALL, Scratch, endpoint, formatted, kill, member, set_word, tick};
use crate::PoolError;

#[test]
fn tables_are_made_found_listed_and_dropped() {
    let fabric = formatted(2, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        let addr = GlobalAddr::new(ServerId(1), 1 << 20);
        let params = std::array::from_fn(|at| at as u8);
        let long = "n".repeat(128);
        let made = one.create_root(&long, "btree-of-16-byte", &params, addr).await.unwrap();
        assert_eq!((&made.name, made.params, made.addr), (&long, params, addr));
        assert_eq!(two.open_root(&long).await, Ok(made.clone()));
        let exists = two.create_root(&long, "dex", &params, addr).await;
        assert_eq!(exists, Err(PoolError::TableExists(long.clone())));
        for name in ["a", "b", "\u{e9}"] {
            two.create_root(name, "dex", &[0; 64], addr).await.unwrap();
        }
        let full = one.create_root("e", "dex", &[0; 64], addr).await;
        assert_eq!(full, Err(PoolError::NoSlot("table", 4)));
        let names: Vec<String> =
            one.list_roots().await.unwrap().into_iter().map(|root| root.name).collect();
        assert_eq!(names, [long.as_str(), "a", "b", "\u{e9}"]);
        let dropping = one.drop_root(&long).await.unwrap();
        assert_eq!((&dropping.root, dropping.left), (&made, None));
        assert_eq!(two.open_root(&long).await, Err(PoolError::NoSuchTable(long.clone())));
        assert_eq!(two.drop_root("x").await, Err(PoolError::NoSuchTable("x".into())));
        // Its entry is in use until it has ended, and known to those who walk; the name is free.
        let full = one.create_root("e", "dex", &[0; 64], addr).await;
        assert_eq!(full, Err(PoolError::NoSlot("table", 4)));
        assert_eq!(two.list_drops().await, Ok(vec![dropping.clone()]));
        assert_eq!(two.adopt_drop(&dropping).await, Ok(None), "its owner lives");
        one.end_drop(dropping).await.unwrap();
        assert_eq!(two.list_drops().await, Ok(Vec::new()));
        assert_eq!(one.create_root(&long, "dex", &[0; 64], addr).await.unwrap().slot, 0);
        for name in ["", &"n".repeat(129)] {
            let refused = one.create_root(name, "dex", &[0; 64], addr).await;
            assert!(matches!(refused, Err(PoolError::Invalid(_))));
        }
    });
}

#[test]
fn a_damaged_entry_is_reported_and_the_others_stay_usable() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        for name in ["a", "b"] {
            session.create_root(name, "dex", &[0; 64], GlobalAddr::NULL).await.unwrap();
        }
        let at = session.pool().geometry().root_addr(0);
        set_word(&session, at.plus(8), u64::MAX).await;
        assert!(matches!(session.open_root("a").await, Err(PoolError::Corrupt(_))));
        assert!(matches!(session.list_roots().await, Err(PoolError::Corrupt(_))));
        assert_eq!(session.open_root("b").await.unwrap().slot, 1);
        session.create_root("c", "dex", &[0; 64], GlobalAddr::NULL).await.unwrap();
    });
}

/// A member dies with the root lock in hand and a half-made entry; the next one goes on.
#[test]
fn a_dead_creators_lock_and_entry_are_taken_over() {
    let scratch = Scratch::new("root");
    let fabric = scratch.format(1, 4 << 20);
    let end = endpoint(&fabric);
    let other = farleaf_fabric::mapped::Mapped::open(&scratch.0).unwrap();
    let other_end = endpoint(&other);
    let dead = other_end.executor().block_on(async {
        let dead = member(&other_end).await;
        let geometry = dead.pool().geometry();
        set_word(&dead, geometry.root_lock_addr(), dead.lock_token()).await;
        set_word(&dead, geometry.root_addr(0), 1 << 4 | 1).await;
        dead
    });
    kill(other, other_end, dead);
    end.executor().block_on(async {
        let session = member(&end).await;
        let root = session.create_root("t", "dex", &[0; 64], GlobalAddr::NULL).await.unwrap();
        assert_eq!(root.slot, 0);
        assert_eq!(session.list_roots().await, Ok(vec![root]));
    });
}

/// A dropped call leaves the lock behind; its member's next tick gives it back.
#[test]
fn a_dropped_calls_lock_is_given_back() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (one, two) = (member(&end).await, member(&end).await);
        let at = one.pool().geometry().root_lock_addr();
        let token = one.lock_token();
        set_word(&one, at, token).await;
        one.pool().root_leftover.store(token, std::sync::atomic::Ordering::SeqCst);
        tick(&one, 1).await;
        assert_eq!(super::word(&one, at).await, 0);
        two.create_root("t", "dex", &[0; 64], GlobalAddr::NULL).await.unwrap();
        // Without a tick, its own member takes it over.
        set_word(&one, at, one.lock_token()).await;
        one.drop_root("t").await.unwrap();
    });
}
