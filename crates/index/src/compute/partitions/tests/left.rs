//! A lock that is left at an owner behind a cut link.

use super::super::left_locks::give_back_left;
use super::*;
use crate::compute::regions::attach_region;
use crate::remote_lock::{LeftLock, LockHome, LockKeeper, try_lock_at_home};
use farleaf_fabric::OpKind;
use toy::{LINE_BYTES, LOCK_AT};

#[derive(Debug)]
struct GuardOf(Toy);

impl AsRef<PartitionGuard> for GuardOf {
    fn as_ref(&self) -> &PartitionGuard {
        self.0.own().guard()
    }
}

/// Keeps an operation of the toy table inside.
#[derive(Debug)]
struct KeptInside {
    toy: Toy,
    _inside: InsidePartitions<GuardOf>,
    partition: u32,
}

impl LockKeeper for KeptInside {
    fn takes(&self) -> bool {
        true
    }

    fn leave(self: Box<Self>, lock: LeftLock) {
        self.toy.own().leave_lock(self.partition, lock);
    }
}

/// Locks the line of `partition`, and gives the lock back once `is_cut`.
async fn lock_until_cut(
    toy: &Toy,
    session: &Session,
    partition: u32,
    is_cut: &Cell<bool>,
) -> Result<(), IndexError> {
    let (inside, [home]) = enter(toy, toy.own(), session, [partition]).await?;
    let _pin = session.begin(OpKind::Update).await?;
    let owner = home.owner.expect("an owner");
    let server = attach_region(session, owner).await?.expect("a region");
    let line = GlobalAddr::new(server, u64::from(partition) * LINE_BYTES);
    let kept = inside.for_task(GuardOf(toy.clone()), session);
    let kept = Box::new(KeptInside { toy: toy.clone(), _inside: kept, partition });
    let (change, what) = ((0, session.lock_token()), (line, LINE_BYTES as usize));
    let home = LockHome { owner: home.owner, kept };
    let locked = try_lock_at_home(session, line.plus(LOCK_AT), change, what, home).await?;
    let (lock, _) = locked.expect("nobody has the lock");
    while !is_cut.get() {
        session.endpoint().sleep(10_000).await;
    }
    drop(lock);
    Ok(())
}

/// The link from a holder to the owner of its lock is cut, and the partition is to be moved by copy. It stays where it is
/// until the link is there again; then it moves, with a free lock.
fn move_beside_a_left_lock() -> Result<(), String> {
    let cluster = Cluster::new(calm(11, 3), &[1, 1, 1]);
    cluster.spread();
    let (owner, taker) = (cluster.who(1), cluster.who(2));
    let own = Rc::new(cluster.lives[0].toy.clone());
    let owner_of = |number: u32| own.own().view().home(number).and_then(|home| home.owner);
    let partition = (0..PARTITIONS).find(|number| owner_of(*number) == Some(owner)).expect("one");
    let (is_cut, is_healed): (Rc<Cell<bool>>, Rc<Cell<bool>>) = Default::default();
    let (cut, healed) = (Rc::clone(&is_cut), Rc::clone(&is_healed));
    cluster.work(0, async move |toy, session| {
        let locked = lock_until_cut(&toy, &session, partition, &cut).await;
        locked.map_err(|error| error.to_string())?;
        while !healed.get() || toy.own().left.len() > 0 {
            give_back_left(&toy, &session);
            tick(&toy, &session).await.map_err(|error| error.to_string())?;
            session.endpoint().sleep(100_000).await;
        }
        Ok(())
    });
    cluster.work(1, async |_, _| Ok(()));
    let moves: Rc<RefCell<Vec<Result<(), MoveError>>>> = Rc::default();
    let (is_left, results) = (Rc::clone(&own), Rc::clone(&moves));
    cluster.work(2, async move |toy, session| {
        while is_left.own().left.len() == 0 {
            session.endpoint().sleep(100_000).await;
        }
        while results.borrow().last().is_none_or(|last| last.is_err()) {
            let moved =
                move_partitions(&toy, &session, vec![partition], Some(taker), MoveWay::Copy).await;
            results.borrow_mut().push(moved.map(drop));
        }
        Ok(())
    });
    cluster.run_for(1_000_000)?;
    cluster.sim.cut(0, 1);
    is_cut.set(true);
    cluster.run_for(3_000_000_000)?;
    let early = std::mem::take(&mut *moves.borrow_mut());
    cluster.sim.heal(0, 1);
    is_healed.set(true);
    cluster.end(&[])?;
    let is_busy = |moved: &Result<(), MoveError>| matches!(moved, Err(MoveError::Busy));
    if early.is_empty() || !early.iter().all(is_busy) {
        return Err(format!("moves while the link was cut: {early:?}"));
    }
    match moves.borrow().last() {
        Some(Ok(())) => Ok(()),
        last => Err(format!("the move after that: {last:?}")),
    }
}

#[test]
fn a_partition_with_a_left_lock_stays_until_that_is_free() {
    assert_eq!(move_beside_a_left_lock(), Ok(()));
}

#[test]
fn an_acknowledgement_beside_a_left_lock_is_found() {
    let armed = ACK_LEFT.arm();
    let found = move_beside_a_left_lock();
    drop(armed);
    assert!(found.is_err(), "ack-left was not found");
}
