//! Damage tests: audits report each planted damage.

use farleaf_fabric::{GlobalAddr, ServerId};

use super::{Mine, SMALL, audit_of, endpoint, formatted, member, run_of, set_word, word};
use crate::{Audit, PoolError};

const ONE: ServerId = ServerId(0);

/// A member with two objects of 100 bytes, and what `check` makes of it.
fn with_objects(check: impl AsyncFnOnce(Mine, [GlobalAddr; 2])) {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let one = session.alloc(ONE, 100).await.unwrap();
        let two = session.alloc(ONE, 100).await.unwrap();
        check(session, [one, two]).await;
    });
}

#[test]
fn marks_are_checked() {
    with_objects(async |session, [one, two]| {
        let mut audit = Audit::new(&session).await.unwrap();
        let wrong = |result: Result<(), String>| result.unwrap_err();
        audit.mark(one, 100).unwrap();
        assert!(wrong(audit.mark(one, 100)).contains("twice"));
        assert!(wrong(audit.mark(two.plus(64), 100)).contains("no object starts"));
        assert!(wrong(audit.mark(two, 64)).contains("of objects of 128"));
        assert!(wrong(audit.mark(GlobalAddr::new(ONE, 4096), 64)).contains("in no block"));
        assert!(wrong(audit.mark(GlobalAddr::new(ServerId(9), 0), 64)).contains("in no block"));
        let free = GlobalAddr::new(ONE, (4 << 20) - (128 << 10));
        assert!(wrong(audit.mark(free, 64)).contains("not carved"));
        let report = audit.report(&session).await.unwrap();
        assert_eq!((report.classes[0].leaked, report.closes()), (1, false), "{report:?}");
        audit.mark(two, 100).unwrap();
        assert!(audit.report(&session).await.unwrap().closes());
    });
}

#[test]
fn live_and_free_at_once_is_found() {
    with_objects(async |session, [one, two]| {
        let (block, run, index) = run_of(&session, two);
        let at = session.pool().pair_addr(block, run.page, (index / 64) as usize);
        set_word(&session, at, 1 << (index % 64)).await;
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert_eq!(report.problems.len(), 1, "{report:?}");
        assert!(report.problems[0].contains("live and free in the bitmap"), "{report:?}");
        let elsewhere = session.pool().pair_addr(block, run.end(), 0);
        set_word(&session, elsewhere, 1).await;
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert!(report.problems.iter().any(|what| what.contains("INV-RUN-4")), "{report:?}");
    });
}

#[test]
fn live_and_retired_at_once_is_found() {
    with_objects(async |session, [one, two]| {
        let retiring = session.prepare_retire(one).await.unwrap();
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert!(report.closes(), "announced is not unlinked: {report:?}");
        let word = session.pool().geometry().retire_addr(ONE, session.id(), 0);
        set_word(&session, word, one.word()).await;
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert!(report.problems[0].contains("live and retired"), "{report:?}");
        let stray = session.pool().geometry().retire_addr(ONE, session.id(), 99);
        set_word(&session, stray, two.plus(64).word()).await;
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert!(report.problems.iter().any(|what| what.contains("has retired")), "{report:?}");
        set_word(&session, stray, 0).await;
        session.cancel_retire(retiring);
    });
}

#[test]
fn damaged_headers_and_tables_are_found_and_not_used() {
    with_objects(async |session, [one, two]| {
        let geometry = session.pool().geometry().clone();
        let (block, _) = geometry.block_of(one).unwrap();
        let front = geometry.block_addr(block);
        for (at, what) in [(0, "tag"), (1, "checksum"), (5, "checksum")] {
            let before = word(&session, front.plus(at * 8)).await;
            set_word(&session, front.plus(at * 8), 0).await;
            let report = Audit::new(&session).await.unwrap().report(&session).await.unwrap();
            assert!(report.problems[0].contains(what), "{report:?}");
            set_word(&session, front.plus(at * 8), before).await;
        }
        assert!(audit_of(&session, &[(one, 100), (two, 100)]).await.closes());
        let unused = geometry.block_word_addr(geometry.blocks(ONE).last().unwrap());
        set_word(&session, unused, 15).await;
        let report = audit_of(&session, &[(one, 100), (two, 100)]).await;
        assert!(report.problems[0].contains("block table holds"), "{report:?}");
        set_word(&session, unused, 0).await;
        // An orphan whose header is gone is not adopted.
        let fabric_end = session.endpoint().clone();
        session.leave().await.unwrap();
        let next = member(&fabric_end).await;
        set_word(&next, front, 0).await;
        let fresh = next.alloc(ONE, 100).await.unwrap();
        assert_ne!(geometry.block_of(fresh).unwrap().0, block);
        let report = audit_of(&next, &[(fresh, 100)]).await;
        assert!(report.problems[0].contains("its tag is 0x0"), "{report:?}");
    });
}

#[test]
fn a_second_free_from_elsewhere_is_an_error() {
    with_objects(async |session, [one, _]| {
        let other = member(&session.endpoint().clone()).await;
        let client = other.reliable();
        other.pool().give_back(client, &[one]).await.unwrap();
        let twice = other.pool().give_back(client, &[one]).await;
        assert!(matches!(twice, Err(PoolError::Corrupt(_))), "{twice:?}");
        let no_object = other.pool().give_back(client, &[one.plus(64)]).await;
        assert!(matches!(no_object, Err(PoolError::Corrupt(_))), "{no_object:?}");
        let announced = other.prepare_retire(GlobalAddr::NULL).await;
        assert!(matches!(announced, Err(PoolError::Corrupt(_))), "{announced:?}");
    });
}

/// Each word that breaks a numbered invariant of the tables is told by the invariant's name, and
/// nothing else is.
#[test]
fn audits_name_the_invariant_that_is_broken() {
    with_objects(async |session, [one, two]| {
        let geometry = session.pool().geometry().clone();
        let live = [(one, 100), (two, 100)];
        let (block, _) = geometry.block_of(one).unwrap();
        let free_client = geometry.options().clients_max - 1;
        let own = geometry.client_addr(session.id());
        for (name, at, value) in [
            ("INV-BLOCK-1", geometry.block_addr(block).plus(8), 1),
            ("INV-RUN-1", session.pool().map_addr(block, 9), 3),
            ("INV-RUN-4", session.pool().pair_addr(block, 9, 0), 1 << 63),
            ("INV-RETIRE-1", geometry.retire_addr(ONE, session.id(), 9), two.plus(64).word()),
            ("INV-CLIENT-1", geometry.retire_addr(ONE, free_client, 9), two.word()),
            ("INV-CLIENT-2", own.plus(16), 1 << 40),
            ("INV-MEM-1", geometry.member_addr(3), 7 << 32 | 2),
            ("INV-EPOCH-2", geometry.epoch_addr(), 0),
            ("INV-EPOCH-2", geometry.epoch_addr(), 1 << 48),
            ("INV-ROOT-1", geometry.root_lock_addr(), 77),
        ] {
            let before = word(&session, at).await;
            set_word(&session, at, value).await;
            let mut audit = Audit::new(&session).await.unwrap();
            if !["INV-BLOCK-1", "INV-RUN-1"].contains(&name) {
                for (addr, bytes) in live {
                    audit.mark(addr, bytes).unwrap();
                }
            }
            let problems = audit.report(&session).await.unwrap().problems;
            assert!(problems.iter().any(|what| what.contains(name)), "{name}: {problems:?}");
            let is_named = |what: &String| what.contains(name) || what.contains("INV-EPOCH-3");
            assert!(problems.iter().all(is_named), "{name}: {problems:?}");
            set_word(&session, at, before).await;
        }
        // An epoch that a member announces before there is one.
        let announced = geometry.member_addr(session.pool().member).plus(16);
        let before = word(&session, announced).await;
        set_word(&session, announced, 1 << 48 | 4_000).await;
        let report = audit_of(&session, &live).await;
        assert!(report.problems[0].contains("INV-EPOCH-3"), "{report:?}");
        set_word(&session, announced, before).await;
        // The same name twice.
        session.create_root("same", "btree", &[0; 64], one).await.unwrap();
        for at in (0..256).step_by(8) {
            let copied = word(&session, geometry.root_addr(0).plus(at)).await;
            set_word(&session, geometry.root_addr(1).plus(at), copied).await;
        }
        let report = audit_of(&session, &live).await;
        assert!(report.problems[0].contains("INV-ROOT-2"), "{report:?}");
        set_word(&session, geometry.root_addr(1), 0).await;
        assert!(audit_of(&session, &live).await.closes());
    });
}
