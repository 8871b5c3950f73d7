//! Member tests: joining, tokens, death and recovery.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, GlobalAddr, ListenConfig, OpKind, ServerId};

use super::{Mine, SMALL, Scratch, audit_of, endpoint, formatted, join, kill, member, tick};
use crate::address::{ADDRESS_AT, REGION_AT};
use crate::words::{BlockState, BlockWord};
use crate::{Audit, AuditReport, LockToken, PoolError, PoolOptions, Recovered};

const ONE: ServerId = ServerId(0);
const TWO: ServerId = ServerId(1);

/// A pool folder, this process's member, and another's that can be killed.
struct Pair {
    scratch: Scratch,
    fabric: Mapped,
    end: AnyEndpoint,
}

impl Pair {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let fabric = scratch.format(2, 4 << 20);
        let end = endpoint(&fabric);
        Pair { scratch, fabric, end }
    }

    /// Lets another process do something and die.
    fn die_after<T>(&self, act: impl AsyncFnOnce(&Mine) -> T) -> T {
        let other = Mapped::open(&self.scratch.0).unwrap();
        let other_end = endpoint(&other);
        let (session, result) = other_end.executor().block_on(async {
            let session = member(&other_end).await;
            let result = act(&session).await;
            (session, result)
        });
        kill(other, other_end, session);
        result
    }

    fn run<T>(&self, act: impl AsyncFnOnce(&AnyEndpoint) -> T) -> T {
        assert!(!format!("{:?}", self.fabric).is_empty());
        self.end.executor().block_on(act(&self.end))
    }
}

/// Recovers the dead, given the live objects.
async fn recover(session: &Mine, live: &[(GlobalAddr, usize)]) -> Recovered {
    let recovery = session.recover_begin().await.unwrap().expect("somebody is dead");
    let mut audit = recovery.audit();
    live.iter().for_each(|(addr, bytes)| audit.mark(*addr, *bytes).unwrap());
    session.recover_finish(recovery, &audit).await.unwrap()
}

#[test]
fn one_thing_is_kept_open_at_an_address_and_keeps_its_member() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let session = member(&end).await;
        let (pool, at) = (session.pool(), GlobalAddr::new(ONE, 4096));
        assert_eq!(pool.kept::<u32>(at), None);
        let first = pool.keep(at, Arc::new(1_u32));
        let second = pool.keep(at, Arc::new(2_u32));
        assert!(Arc::ptr_eq(&first, &second), "who was quicker");
        assert_eq!(pool.kept::<u32>(at).as_deref(), Some(&1));
        assert_eq!(pool.kept::<u64>(at), None, "it is something else");
        let refused = session.leave().await;
        assert!(
            matches!(&refused, Err(PoolError::Invalid(why)) if why.contains("close them")),
            "{refused:?}"
        );
        pool.let_go(at, &Arc::new(1_u32));
        assert!(pool.kept::<u32>(at).is_some(), "another one was let go");
        pool.let_go(at, &first);
        session.leave().await.unwrap();
    });
}

#[test]
fn an_address_lasts_as_long_as_its_member() {
    let pair = Pair::new("address");
    let (old, new) = ("127.0.0.1:7001".parse().unwrap(), "[::1]:7002".parse().unwrap());
    pair.die_after(async |dead| {
        dead.publish_address(old).await.unwrap();
        let own = dead.members().await.unwrap();
        assert_eq!((own[0].slot, own[0].address), (0, Some(old)));
        assert_eq!(own[0].incarnation, dead.endpoint().incarnation());
    });
    pair.run(async |end| {
        let survivor = member(end).await;
        recover(&survivor, &[]).await;
        let address = survivor.pool().geometry().member_addr(0).plus(ADDRESS_AT);
        assert_eq!(super::word(&survivor, address).await, 0);
        let next = member(end).await;
        assert_eq!(next.pool().member(), 0, "the dead member's slot");
        let addresses = async |session: &Mine| -> Vec<_> {
            let members = session.members().await.unwrap();
            members.into_iter().map(|member| member.address).collect()
        };
        assert_eq!(addresses(&next).await, [None, None]);
        next.publish_address(new).await.unwrap();
        assert_eq!(addresses(&survivor).await, [Some(new), None]);
        next.leave().await.unwrap();
        assert_eq!(addresses(&survivor).await, [None]);
        assert_eq!(super::word(&survivor, address).await, 0);
    });
}

#[test]
fn a_region_lasts_as_long_as_its_member() {
    const BYTES: u64 = 64 << 10;
    let pair = Pair::new("region");
    let listen = ListenConfig::default();
    pair.fabric.expose(ServerId::COMPUTE_FIRST, 4096, &listen).unwrap();
    pair.die_after(async |dead| {
        dead.publish_region(BYTES).await.unwrap();
        let own = dead.members().await.unwrap();
        assert_eq!((own[0].slot, own[0].region_bytes, own[0].address), (0, BYTES, None));
        let peer = own[0].peer();
        assert_eq!((peer.server, peer.region_bytes), (ServerId::COMPUTE_FIRST, BYTES));
        for bytes in [1, 4097, 1 << 44] {
            let refused = dead.publish_region(bytes).await;
            assert!(matches!(&refused, Err(PoolError::Invalid(why)) if why.contains("4096")));
        }
    });
    pair.run(async |end| {
        let survivor = member(end).await;
        recover(&survivor, &[]).await;
        let region = survivor.pool().geometry().member_addr(0).plus(REGION_AT);
        assert_eq!(super::word(&survivor, region).await, 0, "recovery clears it");
        let next = member(end).await;
        assert_eq!(next.pool().member(), 0, "the dead member's slot");
        next.publish_region(2 * BYTES).await.unwrap();
        let bytes = async |session: &Mine| -> Vec<_> {
            let members = session.members().await.unwrap();
            members.into_iter().map(|member| member.region_bytes).collect()
        };
        assert_eq!(bytes(&survivor).await, [2 * BYTES, 0]);
        next.leave().await.unwrap();
        assert_eq!(super::word(&survivor, region).await, 0, "leaving clears it");
    });
}

#[test]
fn members_and_clients_run_out_and_come_back() {
    let fabric = formatted(1, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let mut members = Vec::new();
        for slot in 0..4 {
            members.push(member(&end).await);
            assert_eq!(members[slot].pool().member(), slot as u32);
        }
        let none = crate::Pool::join(&farleaf_fabric::Client::new(end.clone())).await;
        assert_eq!(none.unwrap_err(), PoolError::NoSlot("member", 4));
        members.swap_remove(1).leave().await.unwrap();
        let pool = join(&end).await;
        assert_eq!(pool.member(), 1);
        let mut sessions = Vec::new();
        for _ in 0..5 {
            sessions.push(pool.session(end.clone()).await.unwrap());
        }
        let none = pool.session(end.clone()).await;
        assert_eq!(none.unwrap_err(), PoolError::NoSlot("client", 8));
        let refused = sessions[0].leave().await;
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{refused:?}");
        sessions.truncate(1);
        let clone = sessions[0].clone();
        assert!(matches!(sessions[0].leave().await, Err(PoolError::Invalid(_))));
        drop(clone);
        tick(&sessions[0], 5).await;
        sessions.push(pool.session(end.clone()).await.unwrap());
        sessions.pop();
        sessions[0].leave().await.unwrap();
    });
}

#[test]
fn tokens_never_repeat_for_a_member_and_client() {
    let pair = Pair::new("tokens");
    let mut seen = BTreeSet::new();
    pair.run(async |end| {
        let pool = join(end).await;
        let keeper = pool.session(end.clone()).await.unwrap();
        for _ in 0..5 {
            let session = pool.session(end.clone()).await.unwrap();
            assert_eq!(session.id(), 1, "the client is used again");
            for _ in 0..1000 {
                let token = session.lock_token();
                assert!(seen.insert(token), "{:?}", LockToken::from_word(token));
                assert_eq!(LockToken::from_word(token).unwrap().client(), 1);
            }
            drop(session);
            tick(&keeper, 2).await;
        }
        keeper.leave().await.unwrap();
    });
    // A clean end gave unused numbers back: 5000 have been used of this client.
    let dead = pair.die_after(async |session| session.lock_token());
    assert_eq!(LockToken::from_word(dead).unwrap().member(), 0);
    pair.run(async |end| {
        let session = member(end).await;
        recover(&session, &[]).await;
        let pool = join(end).await;
        assert_eq!(pool.member(), 0, "the dead member's slot");
        let again = pool.session(end.clone()).await.unwrap();
        let token = again.lock_token();
        assert_eq!(LockToken::from_word(token).unwrap().member(), 0);
        assert!(seen.insert(token) && token != dead);
        assert_eq!(session.owner_is_dead(dead).await, Ok(true));
        assert_eq!(session.owner_is_dead(token).await, Ok(false));
        assert_eq!(again.owner_is_dead(token).await, Ok(false));
        assert_eq!(again.owner_is_dead(session.lock_token()).await, Ok(false));
        assert_eq!(again.owner_is_dead(dead).await, Ok(true), "of its own slot's earlier life");
    });
}

#[test]
fn a_locks_owner_is_dead_only_when_it_is() {
    let pair = Pair::new("owner");
    let other = Mapped::open(&pair.scratch.0).unwrap();
    let other_end = endpoint(&other);
    let theirs = other_end.executor().block_on(member(&other_end));
    let token = theirs.lock_token();
    let (session, redo) = pair.run(async |end| {
        let session = member(end).await;
        assert_eq!(session.owner_is_dead(token).await, Ok(false));
        assert_eq!(session.owner_is_dead(session.lock_token()).await, Ok(false));
        for word in [0, 5, u64::MAX, LockToken::new(4, 0, 0).word()] {
            assert!(matches!(session.owner_is_dead(word).await, Err(PoolError::Corrupt(_))));
        }
        assert!(matches!(session.redo_addr_of(ONE, 0), Err(PoolError::Corrupt(_))));
        let redo = session.redo_addr_of(TWO, token).unwrap();
        assert_eq!(redo, theirs.redo_addr(TWO));
        assert_ne!(redo, session.redo_addr(TWO));
        assert_eq!(session.redo_bytes(), SMALL.redo_bytes as usize);
        (session, redo)
    });
    other_end.executor().block_on(super::set_word(&theirs, redo, 42));
    kill(other, other_end, theirs);
    pair.run(async |_| {
        assert_eq!(session.owner_is_dead(token).await, Ok(true));
        assert_eq!(super::word(&session, redo).await, 42, "left for the finisher");
        recover(&session, &[]).await;
        assert_eq!(super::word(&session, redo).await, 0);
        assert_eq!(session.recover_begin().await.map(|found| found.is_none()), Ok(true));
    });
}

/// The dead member had linked, lost, retired and announced objects, in its own blocks and in
/// another's.
#[test]
fn a_dead_members_blocks_are_rebuilt() {
    let pair = Pair::new("rebuild");
    let (survivor, theirs) = pair.run(async |end| {
        let survivor = member(end).await;
        let theirs: Vec<_> = [100, 100, 100, 100].to_vec();
        let mut objects = Vec::new();
        for bytes in theirs {
            objects.push(survivor.alloc(ONE, bytes).await.unwrap());
        }
        (survivor, objects)
    });
    let linked = pair.die_after(async |dead| {
        let pinned = dead.begin(OpKind::Insert).await.unwrap();
        let mut linked = Vec::new();
        for _ in 0..10 {
            linked.push((dead.alloc(TWO, 300).await.unwrap(), 300));
            dead.alloc(TWO, 300).await.unwrap();
        }
        // Two unlinked and retired, one announced and not unlinked.
        for addr in &theirs[..2] {
            let retiring = dead.prepare_retire(*addr).await.unwrap();
            dead.retire(retiring);
        }
        dead.tick().await.unwrap();
        drop(dead.prepare_retire(theirs[2]).await.unwrap());
        drop(pinned);
        linked
    });
    pair.run(async |_| {
        let mut live = linked.clone();
        live.extend([(theirs[2], 100), (theirs[3], 100)]);
        let done = recover(&survivor, &live).await;
        let block = survivor.pool().geometry().block_of(linked[0].0).unwrap().0;
        assert!(done.complete && done.problems.is_empty(), "{done:?}");
        assert_eq!((done.members, done.blocks), (1, 1));
        let report = audit_of(&survivor, &live).await;
        assert!(report.closes(), "{report:?}");
        assert_eq!(report.blocks_orphan, 1);
        let at = survivor.pool().geometry().block_word_addr(block);
        let word = BlockWord(super::word(&survivor, at).await);
        assert_eq!(word.state(), Ok(BlockState::Orphan));
        // The orphan is adopted and its free objects are handed out.
        let more = survivor.alloc(TWO, 300).await.unwrap();
        assert_eq!(survivor.pool().geometry().block_of(more).unwrap().0, block);
        live.push((more, 300));
        assert!(audit_of(&survivor, &live).await.closes());
    });
}

/// Members die one after another, the second while it recovers the first.
#[test]
fn a_recoverer_that_dies_is_replaced() {
    let pair = Pair::new("recoverer");
    let kept = pair.die_after(async |first| {
        first.alloc(ONE, 64).await.unwrap();
        first.alloc(ONE, 64).await.unwrap()
    });
    let second_kept = pair.die_after(async |second| {
        let kept = second.alloc(TWO, 64).await.unwrap();
        let recovery = second.recover_begin().await.unwrap().unwrap();
        assert_eq!(recovery.members(), 1);
        std::mem::forget(recovery);
        kept
    });
    pair.run(async |end| {
        let survivor = member(end).await;
        let live = [(kept, 64), (second_kept, 64)];
        let recovery = survivor.recover_begin().await.unwrap().unwrap();
        assert_eq!(recovery.members(), 2);
        let while_active = survivor.recover_begin().await.unwrap();
        assert!(while_active.is_none());
        // Dropped: claimed still, and begun anew.
        drop(recovery);
        let done = recover(&survivor, &live).await;
        assert!(done.complete && done.problems.is_empty(), "{done:?}");
        assert_eq!((done.members, done.blocks), (2, 2));
        assert!(audit_of(&survivor, &live).await.closes());
        assert_eq!(join(end).await.member(), 0, "the slots are free again");
    });
}

/// An object that a live client has announced is left alone, wherever it is; and an audit that was
/// begun before the recovery is refused.
/// A member that could not wait for what it had retired gave its blocks up all the same. Whoever took one
/// over held the retired object for used, and the recovery could not tell: it was lost.
#[test]
fn who_leaves_something_retired_is_not_dead_and_others_free_it() {
    let pair = Pair::new("leaves-retired");
    let other = Mapped::open(&pair.scratch.0).unwrap();
    let other_end = endpoint(&other);
    let keeper = pair.run(async |end| member(end).await);
    let (leaver, kept) = other_end.executor().block_on(async {
        let leaver = member(&other_end).await;
        let [kept, gone] =
            [leaver.alloc(ONE, 64).await.unwrap(), leaver.alloc(ONE, 64).await.unwrap()];
        let retiring = leaver.prepare_retire(gone).await.unwrap();
        leaver.retire(retiring);
        (leaver, kept)
    });
    pair.run(async |_| {
        let pin = keeper.begin(OpKind::Get).await.unwrap();
        other_end.executor().block_on(async { leaver.leave().await.unwrap() });
        drop(pin);
        drop(leaver);
        assert!(keeper.recover_begin().await.unwrap().is_none(), "nobody is dead");
        // Of the same size, so that it takes a block over if there is one to take.
        let own = keeper.alloc(ONE, 64).await.unwrap();
        let live = [(kept, 64), (own, 64)];
        let report = audit_of(&keeper, &live).await;
        assert_eq!(report.classes[0].retired, 1, "it is in the page: {report:?}");
        assert!(report.closes(), "{report:?}");
        tick(&keeper, 12).await;
        let report = audit_of(&keeper, &live).await;
        assert_eq!(report.classes[0].retired, 0, "adopted and freed: {report:?}");
        assert!(report.closes(), "{report:?}");
        let clients = keeper.pool().read_clients(keeper.maintenance()).await.unwrap();
        assert_eq!(clients.len(), 1, "{clients:?}");
    });
}

#[test]
fn what_the_living_have_retired_is_left_to_them() {
    let pair = Pair::new("living");
    let objects = pair.die_after(async |dead| {
        [dead.alloc(ONE, 64).await.unwrap(), dead.alloc(ONE, 64).await.unwrap()]
    });
    pair.run(async |end| {
        let survivor = member(end).await;
        let early = Audit::new(&survivor).await.unwrap();
        let pinned = survivor.begin(OpKind::Remove).await.unwrap();
        let retiring = survivor.prepare_retire(objects[0]).await.unwrap();
        survivor.retire(retiring);
        drop(pinned);
        let recovery = survivor.recover_begin().await.unwrap().unwrap();
        let mut audit = Audit::new(&survivor).await.unwrap();
        audit.mark(objects[1], 64).unwrap();
        let done = survivor.recover_finish(recovery, &audit).await.unwrap();
        assert!(done.complete && done.problems.is_empty(), "{done:?}");
        let report = audit_of(&survivor, &[(objects[1], 64)]).await;
        assert_eq!(report.classes[0].retired, 1);
        assert!(report.closes(), "{report:?}");
        tick(&survivor, 5).await;
        let report = audit_of(&survivor, &[(objects[1], 64)]).await;
        assert_eq!((report.classes[0].retired, report.closes()), (0, true), "{report:?}");
        drop(early);
    });
}

/// From its beginning to the reading of the retire pages, a recovery holds everything back.
#[test]
fn a_recovery_under_way_holds_objects_back() {
    let pair = Pair::new("holds");
    pair.die_after(async |_| ());
    pair.run(async |end| {
        let survivor = member(end).await;
        let recovery = survivor.recover_begin().await.unwrap().unwrap();
        let pinned = survivor.begin(OpKind::Remove).await.unwrap();
        let addr = survivor.alloc(ONE, 64).await.unwrap();
        let retiring = survivor.prepare_retire(addr).await.unwrap();
        survivor.retire(retiring);
        drop(pinned);
        tick(&survivor, 20).await;
        assert_eq!(survivor.pool().memory().retired_bytes, 64);
        drop(recovery);
        tick(&survivor, 3).await;
        assert_eq!(survivor.pool().memory().retired_bytes, 0);
    });
}

/// Two clients announce the same object; the one that does not unlink it dies before it cancels.
/// The object is freed by the other and handed out again: recovery must leave it alone.
#[test]
fn a_stale_announcement_frees_nothing() {
    let pair = Pair::new("stale");
    let (survivor, object) = pair.run(async |end| {
        let survivor = member(end).await;
        let object = survivor.alloc(ONE, 64).await.unwrap();
        (survivor, object)
    });
    pair.die_after(async |dead| drop(dead.prepare_retire(object).await.unwrap()));
    pair.run(async |_| {
        let pinned = survivor.begin(OpKind::Remove).await.unwrap();
        let retiring = survivor.prepare_retire(object).await.unwrap();
        survivor.retire(retiring);
        drop(pinned);
        tick(&survivor, 4).await;
        assert_eq!(survivor.alloc(ONE, 64).await, Ok(object), "in use again, not linked yet");
        let done = recover(&survivor, &[]).await;
        assert_eq!((done.objects_freed, done.problems.len()), (0, 0), "{done:?}");
        assert!(audit_of(&survivor, &[(object, 64)]).await.closes());
        survivor.free_unpublished(object, 64);
    });
}

/// Two recoverers at once: each one's pin once kept the other's wait from ending, and both walked again and again.
#[test]
fn one_member_recovers_at_a_time() {
    let pair = Pair::new("one-at-a-time");
    let kept = pair.die_after(async |dead| dead.alloc(ONE, 64).await.unwrap());
    pair.run(async |end| {
        let (first, second) = (member(end).await, member(end).await);
        let begun = first.recover_begin().await.unwrap().expect("somebody is dead");
        assert!(second.recover_begin().await.unwrap().is_none(), "the first one does it");
        assert!(second.sweep_begin().await.unwrap().is_none(), "a sweep walks as well");
        // Dropped, it is the first one's until a tick of it.
        drop(begun);
        assert!(second.recover_begin().await.unwrap().is_none());
        tick(&first, 1).await;
        let done = recover(&second, &[(kept, 64)]).await;
        assert!(done.complete && done.members == 1, "{done:?}");
        assert!(first.recover_begin().await.unwrap().is_none(), "nobody is dead any more");
        let counts = |session: &Mine| {
            let counts = session.pool().recovery_counts();
            (counts.begun, counts.done, counts.in_vain)
        };
        assert_eq!((counts(&first), counts(&second)), ((1, 0, 1), (1, 1, 0)));
        assert!(audit_of(&second, &[(kept, 64)]).await.closes());
    });
}

/// Members that could not end a recovery once left the pool as dead, and were the next to be recovered.
#[test]
fn who_drops_a_recovery_leaves_in_order() {
    let pair = Pair::new("drops-and-leaves");
    let kept = pair.die_after(async |dead| dead.alloc(ONE, 64).await.unwrap());
    pair.run(async |end| {
        let (survivor, leaver) = (member(end).await, member(end).await);
        let slot = leaver.pool().member();
        drop(leaver.recover_begin().await.unwrap().expect("somebody is dead"));
        leaver.leave().await.unwrap();
        assert_eq!(join(end).await.member(), slot, "its entry is free");
        let done = recover(&survivor, &[(kept, 64)]).await;
        assert!(done.complete && done.problems.is_empty(), "{done:?}");
        assert_eq!((done.members, done.blocks), (1, 1), "the dead one alone");
        assert!(audit_of(&survivor, &[(kept, 64)]).await.closes());
    });
}

/// A recovery once gave up after 200 looks at a member that lagged, and the tables were walked anew.
#[test]
fn a_recovery_waits_for_a_laggard_and_keeps_its_audit() {
    let pair = Pair::new("laggard");
    pair.die_after(async |dead| dead.alloc(ONE, 64).await.unwrap());
    pair.run(async |end| {
        let (survivor, laggard) = (member(end).await, member(end).await);
        let is_over = Rc::new(Cell::new(false));
        let over = Rc::clone(&is_over);
        end.executor().spawn(async move {
            let reading = laggard.begin(OpKind::Get).await.unwrap();
            laggard.endpoint().sleep(1_500_000_000).await;
            over.set(true);
            drop(reading);
            tick(&laggard, 2).await;
        });
        // Until it reads.
        survivor.endpoint().sleep(20_000_000).await;
        let done = recover(&survivor, &[]).await;
        assert!(is_over.get(), "it frees nothing while another may hold it");
        assert!(done.complete && done.objects_freed > 0, "{done:?}");
        let counts = survivor.pool().recovery_counts();
        assert_eq!((counts.begun, counts.done, counts.in_vain), (1, 1, 0));
    });
}

/// A third member that is announced live and does not tick: nothing is freed, a later recovery does.
///
/// The dead's blocks once became orphans, and the dead was forgotten. Then a member adopted such a
/// block, or all left the pool, and what the dead had held was lost for good: nobody had a reason to
/// look for it. Found by processes that were killed while others were stopped.
#[test]
fn without_the_others_ticks_recovery_frees_nothing_yet() {
    let pair = Pair::new("stuck");
    pair.die_after(async |dead| dead.alloc(ONE, 64).await.unwrap());
    pair.run(async |end| {
        let (survivor, stuck) = (member(end).await, member(end).await);
        let reading = stuck.begin(OpKind::Get).await.unwrap();
        let mut recovery = survivor.recover_begin().await.unwrap().expect("somebody is dead");
        recovery.set_patience(300_000_000);
        let audit = recovery.audit();
        let done = survivor.recover_finish(recovery, &audit).await.unwrap();
        assert!(!done.complete && done.objects_freed == 0, "{done:?}");
        let counts = survivor.pool().recovery_counts();
        assert_eq!((counts.begun, counts.done, counts.in_vain), (1, 0, 1));
        let report = audit_of(&survivor, &[]).await;
        assert_eq!(report.blocks_orphan, 0, "nobody can adopt what holds lost objects");
        assert!(survivor.pool().needs_recovery());
        drop(reading);
        tick(&stuck, 2).await;
        let done = recover(&survivor, &[]).await;
        assert!(done.complete && done.members == 1, "{done:?}");
        assert!(!survivor.pool().needs_recovery());
        let report = audit_of(&survivor, &[]).await;
        assert!(report.closes() && report.classes.is_empty(), "{report:?}");
        assert_eq!(survivor.sweep_begin().await.map(|found| found.is_none()), Ok(true));
    });
}

/// `verify` while the maintenance thread of the same store recovered a member that had left with retired objects:
/// those of a block that the recovery let go were neither retired nor free for it, and called leaked.
#[test]
fn an_audit_that_began_before_a_recovery_adds_up_after_it() {
    let report = audit_around_recovery(true);
    assert!(report.closes(), "{report:?}");
    assert_eq!(report.classes.iter().map(|class| class.live).sum::<u64>(), 1);
    // A live object in a block that was let go is a problem all the same.
    let report = audit_around_recovery(false);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].contains("was let go with 1 live objects"), "{report:?}");
}

/// The report of an audit that is begun before a member that has left is recovered and ends after it; the recovery
/// knows of the object that is live, or frees it.
fn audit_around_recovery(knows: bool) -> AuditReport {
    let fabric = formatted(2, 4 << 20, SMALL);
    let end = endpoint(&fabric);
    end.executor().block_on(async {
        let (survivor, leaver) = (member(&end).await, member(&end).await);
        let kept = leaver.alloc(ONE, 64).await.unwrap();
        let mut gone = vec![leaver.alloc(ONE, 64).await.unwrap()];
        for _ in 0..4 {
            gone.push(leaver.alloc(TWO, 3000).await.unwrap());
        }
        let pinned = leaver.begin(OpKind::Remove).await.unwrap();
        for addr in gone {
            let retiring = leaver.prepare_retire(addr).await.unwrap();
            leaver.retire(retiring);
        }
        drop(pinned);
        leaver.leave_as_dead().await.unwrap();
        let mut audit = Audit::new(&survivor).await.unwrap();
        audit.mark(kept, 64).unwrap();
        let before = audit.report(&survivor).await.unwrap();
        assert_eq!(before.problems, Vec::<String>::new());
        let live: &[_] = if knows { &[(kept, 64)] } else { &[] };
        let done = recover(&survivor, live).await;
        assert!(done.complete && done.members == 1, "{done:?}");
        audit.report(&survivor).await.unwrap()
    })
}

/// Costs of a larger client table: a tick nothing, a session nothing as long as there are few, a recovery
/// two READs of all of it.
#[test]
fn a_larger_client_table_costs_what_it_says() {
    let mut blocks = Vec::new();
    let [small, large] = [256, 1024].map(|clients_max| {
        let fabric = formatted(1, 64 << 20, PoolOptions { clients_max, ..SMALL });
        let end = endpoint(&fabric);
        let cost = || end.counters().snapshot().total();
        end.executor().block_on(async {
            let (survivor, dead) = (member(&end).await, member(&end).await);
            let kept = dead.alloc(ONE, 64).await.unwrap();
            dead.leave_as_dead().await.unwrap();
            let mut costs = Vec::new();
            let before = cost();
            survivor.tick().await.unwrap();
            costs.push(cost() - before);
            let before = cost();
            let mut sessions = vec![survivor.pool().session(end.clone()).await.unwrap()];
            costs.push(cost() - before);
            let before = cost();
            let done = recover(&survivor, &[(kept, 64)]).await;
            assert!(done.complete, "{done:?}");
            costs.push(cost() - before);
            while sessions.len() < 199 {
                sessions.push(survivor.pool().session(end.clone()).await.unwrap());
            }
            let before = cost();
            sessions.push(survivor.pool().session(end.clone()).await.unwrap());
            costs.push(cost() - before);
            blocks.push(u64::from(survivor.pool().geometry().block_count(ONE)));
            costs
        })
    });
    let ([tick, session, recovery, many], [tick_large, session_large, recovery_large, many_large]) =
        (<[_; 4]>::try_from(small).unwrap(), <[_; 4]>::try_from(large).unwrap());
    assert_eq!((tick, session), (tick_large, session_large));
    // Of the table 4 KiB, of the entry 32 bytes.
    assert_eq!((session.reads, session.bytes_read, session.cas), (2, 64 * 64 + 32, 2));
    assert_eq!(recovery.verbs(), recovery_large.verbs());
    // There are fewer blocks, whose table it reads once.
    let fewer = (blocks[0] - blocks[1]) * 8;
    assert_eq!(recovery_large.bytes_read + fewer - recovery.bytes_read, 2 * (1024 - 256) * 64);
    assert_eq!((recovery.verbs(), recovery.bytes_read + recovery.bytes_written), (45, 69_848));
    // 64 entries, 128, and of the rest up to 256.
    assert_eq!((many.reads, many.bytes_read), (session.reads + 2, 256 * 64 + 32));
    assert_eq!((many_large.reads, many_large.bytes_read), (session.reads + 2, 448 * 64 + 32));
}
