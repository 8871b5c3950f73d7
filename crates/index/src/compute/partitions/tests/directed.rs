//! Directed tests: joins, costs, members that lag, and tables that cannot be dropped.

use std::pin::pin;

use farleaf_fabric::sim::{CrashPlan, CrashWay};

use super::*;
use crate::join::within;

/// Partitions where the ring has them, spread by all ways; each partition's leaf is changed before and after.
#[test]
fn partitions_follow_members_that_come_and_leave() {
    for way in [MoveWay::Copy, MoveWay::Build] {
        let cluster = Cluster::new(calm(1, 4), &[1, 1, 1, 0]);
        let who: Vec<Incarnation> = (0..3).map(|life| cluster.who(life)).collect();
        let owners = |toy: &Toy| -> Vec<Option<Incarnation>> {
            toy.own().view().map.entries.iter().map(|entry| entry.owner).collect()
        };
        for life in 1..4 {
            cluster.work(life, async |toy, session| {
                changes(&toy, &session, &mut Rng::with_seed(7), 20).await
            });
        }
        cluster.work(0, async move |toy, session| {
            let all = |owners: Vec<Option<Incarnation>>, who: &[Incarnation]| {
                who.iter().all(|who| owners.contains(&Some(*who)))
                    && owners.iter().all(|owner| owner.is_some_and(|owner| who.contains(&owner)))
            };
            rebalance(&toy, &session, way).await.map_err(|error| error.to_string())?;
            let view = toy.own().view();
            if !all(owners(&toy), &who) || !view.map.misplaced().is_empty() {
                return Err(format!("{:?} of {who:?}", owners(&toy)));
            }
            for partition in 0..PARTITIONS {
                toy.add(&session, partition).await.map_err(|error| error.to_string())?;
            }
            leave(&toy, &session, way).await.map_err(|error| error.to_string())?;
            if !all(owners(&toy), &who[1..]) {
                return Err(format!("{:?} after {who:?}", owners(&toy)));
            }
            let error = toy.add(&session, 1).await.expect_err("it has left");
            // It is not one that may have happened.
            toy.forget_pending();
            matches!(error, IndexError::Closed(_)).then_some(()).ok_or(error.to_string())
        });
        cluster.run_until(|life| cluster.lives[life].is_finished.get(), &[]).expect("an end");
        cluster.lives[0].fabric.kill();
        cluster.end(&[0]).expect("nothing is lost");
    }
}

/// A member that holds the guard keeps a partition closed; once it leaves, the partition opens. A member that dies without
/// an acknowledgement is cut off and counts as having acknowledged.
#[test]
fn a_partition_opens_when_the_last_member_has_left_it_or_is_cut_off() {
    for dies in [false, true] {
        let cluster = Cluster::new(calm(2, 3), &[1, 1, 0]);
        let who = cluster.who(0);
        let is_moved: Rc<Cell<u64>> = Rc::default();
        let moved_at = Rc::clone(&is_moved);
        cluster.work(0, async move |toy, session| {
            let all = (0..PARTITIONS).collect();
            let to = Some(who);
            let done = move_partitions(&toy, &session, all, to, MoveWay::Build).await;
            moved_at.set(session.endpoint().now_ns());
            done.map(drop).map_err(|error| error.to_string())
        });
        cluster
            .work(1, async |toy, session| changes(&toy, &session, &mut Rng::with_seed(1), 9).await);
        let is_out: Rc<Cell<u64>> = Rc::default();
        let left_at = Rc::clone(&is_out);
        cluster.work(2, async move |toy, session| {
            {
                let (inside, _) = enter(&toy, toy.own(), &session, [3])
                    .await
                    .map_err(|error| error.to_string())?;
                session.endpoint().sleep(LEASE_NS / 2).await;
                left_at.set(session.endpoint().now_ns());
                drop(inside);
            }
            tick(&toy, &session).await.map_err(|error| error.to_string())
        });
        cluster.run_for(LEASE_NS / 4).expect("no deadlock");
        assert_eq!(is_moved.get(), 0, "a member is inside");
        if dies {
            cluster.lives[2].fabric.kill();
        }
        let dead = if dies { vec![2] } else { vec![] };
        cluster.end(&dead).expect("nothing is lost");
        assert!(is_moved.get() > is_out.get());
        assert_eq!(is_out.get() == 0, dies);
    }
}

/// A member that joins stops before each of its operations, while all partitions change hands; then it goes on, and changes
/// every leaf.
fn join_beside_moves(op: u64) -> Result<bool, String> {
    let mut config = calm(6, 3);
    config.lease_ns = 1_000_000_000;
    let mut cluster = Cluster::new(config, &[1, 1]);
    cluster.spread();
    let fabric = cluster.sim.fabric(2);
    let pooled = client(&cluster.sim, 2);
    let session = cluster.sim.block_on(session_of(&pooled)).expect("no deadlock");
    let session = session.map_err(|error| error.to_string())?;
    let log = Log { adds: 0, transfers: 0, pending: Pending::Nothing, wrong: None };
    let log = Rc::new(RefCell::new(log));
    let joined: Rc<RefCell<Option<Toy>>> = Rc::default();
    let (places, note) = (cluster.places, Rc::clone(&log));
    let (out, joining) = (Rc::clone(&joined), session.clone());
    fabric.plan(CrashPlan { op, way: CrashWay::PauseBefore });
    cluster.sim.spawn(2, async move {
        let toy = Toy::join(places, &joining, note).await.expect("joined");
        for partition in 0..PARTITIONS {
            toy.add(&joining, partition).await.expect("a change");
        }
        *out.borrow_mut() = Some(toy);
    });
    let is_asked: Rc<Cell<bool>> = Rc::default();
    let asked = Rc::clone(&is_asked);
    let first = cluster.who(0);
    cluster.work(0, async move |toy, session| {
        while !asked.get() {
            session.endpoint().sleep(10_000).await;
            tick(&toy, &session).await.map_err(|error| error.to_string())?;
        }
        let all = (0..PARTITIONS).collect();
        moved(move_partitions(&toy, &session, all, Some(first), MoveWay::Copy).await)?;
        changes(&toy, &session, &mut Rng::with_seed(op), 30).await
    });
    cluster.work(1, async |_, _| Ok(()));
    cluster.run_for(200_000)?;
    let has_fired = fabric.has_fired();
    is_asked.set(true);
    cluster.run_for(20_000_000)?;
    fabric.resume();
    let until_ns = cluster.sim.now_ns() + STUCK_NS;
    while joined.borrow().is_none() {
        if cluster.sim.now_ns() >= until_ns {
            return Err("the joiner finds no end".into());
        }
        cluster.run_for(100_000)?;
    }
    let toy = joined.take().ok_or("no toy")?;
    let (is_finished, last) = (Rc::default(), Rc::default());
    cluster.lives.push(Life { fabric, session, toy, log, is_finished, last });
    cluster.work(2, async |_, _| Ok(()));
    cluster.end(&[]).map(|()| has_fired)
}

/// Joins with a stop before each operation; the first that goes wrong.
fn joins() -> Option<String> {
    for op in 0..1_000 {
        match join_beside_moves(op) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(why) => return Some(format!("stopped before operation {op}: {why}")),
        }
    }
    Some("a join has no end".into())
}

#[test]
fn a_member_takes_part_before_it_reads_its_first_map() {
    assert_eq!(joins(), None);
    let armed = MAP_BEFORE_ACK.arm();
    let found = joins();
    drop(armed);
    assert!(found.is_some(), "the wrong order was not found");
}

/// A caller that goes away at any moment of a join leaves no member behind that acknowledges nothing.
#[test]
fn who_drops_a_join_takes_no_part() {
    let mut dropped = 0;
    for after_ns in (0..40_000).step_by(500) {
        let cluster = Cluster::new(calm(6, 3), &[1, 1]);
        let words = cluster.places.words;
        let pooled = client(&cluster.sim, 2);
        let session =
            cluster.sim.block_on(session_of(&pooled)).expect("no deadlock").expect("a session");
        let joined = cluster.sim.block_on(async {
            let joined = {
                let joining = pin!(PartitionMembership::join(words, &session));
                within(session.endpoint(), joining, after_ns).await
            };
            session.endpoint().sleep(200_000).await;
            joined
        });
        if joined.expect("no deadlock").is_some() {
            continue;
        }
        dropped += 1;
        let again = cluster.sim.block_on(PartitionMembership::join(words, &session));
        assert!(again.expect("no deadlock").is_ok(), "dropped after {after_ns} ns");
    }
    assert!(dropped > 10, "{dropped} of the joins were dropped");
}

/// A tick costs one batch of two READs while nothing changes, and entering costs nothing.
#[test]
fn ticks_and_entries_cost_what_they_say() {
    let cluster = Cluster::new(calm(3, 1), &[1]);
    let Life { fabric, session, toy, .. } = &cluster.lives[0];
    let ops = |work: &dyn Fn()| {
        let before = fabric.ops_counted();
        work();
        fabric.ops_counted() - before
    };
    let ticked = ops(&|| {
        let done = cluster.sim.block_on(tick(toy, session)).expect("no deadlock");
        done.expect("a tick");
    });
    assert_eq!(ticked, 2);
    let entered = ops(&|| {
        let entering = enter(toy, toy.own(), session, [1, 2, 3]);
        let (inside, homes) =
            cluster.sim.block_on(entering).expect("no deadlock").expect("all are open");
        assert_eq!(homes, [Home { owner: None, term: 1 }; 3]);
        drop(inside);
    });
    assert_eq!(entered, 0);
}

/// A table that another living member has open cannot be dropped; the dead and the former lives do not count.
#[test]
fn a_table_in_use_is_named_with_its_user() {
    let cluster = Cluster::new(calm(4, 2), &[1, 1]);
    let session = cluster.lives[0].session.clone();
    let words = cluster.places.words;
    let check = || cluster.sim.block_on(check_unused(&words, &session)).expect("no deadlock");
    let error = check().expect_err("two members");
    assert!(error.to_string().contains(&cluster.who(1).to_string()), "{error}");
    cluster.lives[1].fabric.kill();
    cluster.run_for(2 * LEASE_NS).expect("no deadlock");
    check().expect("the other one is dead");
    let again = PartitionMembership::join(words, &session);
    let error = cluster.sim.block_on(again).expect("no deadlock").expect_err("open already");
    assert!(matches!(error, IndexError::Unavailable(_)), "{error}");
}

#[test]
fn moves_and_tables_that_make_no_sense_are_refused() {
    let cluster = Cluster::new(calm(5, 2), &[1, 0]);
    let Life { session, toy, .. } = &cluster.lives[0];
    let stranger = cluster.who(1);
    let block = |to, number| {
        let moving = move_partitions(toy, session, vec![number], to, MoveWay::Copy);
        cluster.sim.block_on(moving).expect("no deadlock")
    };
    assert_eq!(block(Some(stranger), 1), Err(MoveError::UnknownServer(stranger)));
    let error = block(None, PARTITIONS).expect_err("no such partition");
    assert!(matches!(error, MoveError::Index(IndexError::Invalid(_))), "{error}");
    for count in [0, NUMBERED_PARTITIONS_MAX + 1] {
        let made = create_partitions(&cluster.places.words, session, count);
        let error = cluster.sim.block_on(made).expect("no deadlock").expect_err("a bad count");
        assert!(matches!(error, IndexError::Invalid(_)), "{error}");
    }
    let alive = cluster.who(1);
    let error = cluster.sim.block_on(fail_over(toy, session, alive)).expect("no deadlock");
    assert!(matches!(error, Err(IndexError::Unavailable(_))), "{error:?}");
}
