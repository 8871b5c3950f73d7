//! Deaths: a compute server dies, or is paused past its lease, at every remote operation of a script.

use farleaf_fabric::sim::{CrashPlan, CrashWay, Landing};

use super::*;

/// The life that a plan ends, and what it does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// Changes leaves and ticks, while another moves its partitions away and back.
    Changes,
    /// Moves partitions by copy to others, and to memory servers.
    MovesByCopy,
    /// The same by build.
    MovesByBuild,
    /// Takes over from a dead owner.
    FailsOver,
    /// Leaves the table.
    Leaves,
}

const VICTIM: usize = 1;
const OTHER: usize = 2;

/// Runs the script with the victim's end at `plan`; returns whether that came before the script's end.
fn death(seed: u64, script: Script, plan: CrashPlan) -> Result<bool, String> {
    let cluster = Cluster::new(calm(seed, 4), &[1, 1, 1, 0]);
    cluster.spread();
    let mut dead = Vec::new();
    if script == Script::FailsOver {
        cluster.lives[OTHER].fabric.kill();
        dead.push(OTHER);
        cluster.run_for(2 * LEASE_NS)?;
    }
    let other = cluster.who(OTHER);
    cluster.work(0, async move |toy, session| {
        let mut rng = Rng::with_seed(seed);
        changes(&toy, &session, &mut rng, 4).await?;
        if script == Script::Changes {
            let all: Vec<u32> = (0..PARTITIONS).collect();
            moved(move_partitions(&toy, &session, all, Some(other), MoveWay::Copy).await)?;
            moved(rebalance(&toy, &session, MoveWay::Build).await)?;
        }
        changes(&toy, &session, &mut rng, 4).await
    });
    for life in [OTHER, 3].into_iter().filter(|life| !dead.contains(life)) {
        cluster.work(life, async move |toy, session| {
            changes(&toy, &session, &mut Rng::with_seed(seed ^ life as u64), 8).await
        });
    }
    cluster.lives[VICTIM].fabric.plan(plan);
    cluster.work(VICTIM, async move |toy, session| {
        let mut rng = Rng::with_seed(seed + 9);
        let (some, others) = ((0..6).collect::<Vec<u32>>(), (4..12).collect::<Vec<u32>>());
        let way = if script == Script::MovesByCopy { MoveWay::Copy } else { MoveWay::Build };
        match script {
            Script::Changes => changes(&toy, &session, &mut rng, 8).await,
            Script::MovesByCopy | Script::MovesByBuild => {
                moved(move_partitions(&toy, &session, some, Some(other), way).await)?;
                moved(move_partitions(&toy, &session, others, None, way).await)?;
                moved(rebalance(&toy, &session, way).await)
            }
            Script::FailsOver => match fail_over(&toy, &session, other).await {
                Ok(()) | Err(IndexError::Closed(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            Script::Leaves => moved(leave(&toy, &session, MoveWay::Copy).await),
        }
    });
    let victim = &cluster.lives[VICTIM];
    let until_ns = cluster.sim.now_ns() + STUCK_NS;
    while !victim.fabric.has_fired() && !victim.is_finished.get() {
        if cluster.sim.now_ns() >= until_ns {
            return Err("the victim finds no end".into());
        }
        cluster.run_for(50_000)?;
    }
    let has_fired = victim.fabric.has_fired();
    if has_fired && matches!(plan.way, CrashWay::PauseBefore | CrashWay::PauseAfter) {
        // Others find it dead, and go on without it; then it thaws.
        cluster.lives[VICTIM].fabric.condemn();
        cluster.run_for(4 * LEASE_NS)?;
        cluster.lives[VICTIM].fabric.resume();
        cluster.run_for(2 * LEASE_NS)?;
    }
    if !has_fired {
        cluster.lives[VICTIM].fabric.kill();
    }
    dead.push(VICTIM);
    cluster.end(&dead).map(|()| has_fired)
}

/// Every operation of the script, by the ways in turn, until one is behind its end.
fn all_deaths(script: Script, ways: &[fn(u64) -> CrashWay]) {
    for (number, way) in (0..).zip(ways) {
        let mut op = number;
        loop {
            let plan = CrashPlan { op, way: way(op) };
            match death(number + 1, script, plan) {
                Ok(true) => op += ways.len() as u64,
                Ok(false) => break,
                Err(why) => panic!("{script:?}, {plan:?}: {why}"),
            }
            assert!(op < 5_000, "{script:?} finds no end");
        }
        assert!(op > 20, "{script:?} has more operations than {op}");
    }
}

const PAUSES: &[fn(u64) -> CrashWay] = &[|_| CrashWay::PauseBefore, |_| CrashWay::PauseAfter];
const DIES: &[fn(u64) -> CrashWay] =
    &[|_| CrashWay::Before, |_| CrashWay::After, |op| CrashWay::Within(Landing::Subset(op))];

#[test]
fn an_owner_and_client_dies_anywhere() {
    all_deaths(Script::Changes, DIES);
}

#[test]
fn a_conductor_of_moves_by_copy_dies_anywhere() {
    all_deaths(Script::MovesByCopy, DIES);
}

#[test]
fn a_conductor_of_moves_by_build_dies_anywhere() {
    all_deaths(Script::MovesByBuild, DIES);
}

#[test]
fn a_conductor_of_a_fail_over_dies_anywhere() {
    all_deaths(Script::FailsOver, DIES);
}

#[test]
fn a_member_that_leaves_dies_anywhere() {
    all_deaths(Script::Leaves, DIES);
}

#[test]
fn a_conductor_that_thaws_after_its_lease_changes_nothing() {
    all_deaths(Script::FailsOver, PAUSES);
    all_deaths(Script::MovesByCopy, PAUSES);
}

#[test]
fn a_client_that_thaws_after_its_lease_changes_nothing() {
    all_deaths(Script::Changes, PAUSES);
}
