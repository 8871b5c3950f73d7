//! Clock tests: wrong clocks, leases and zombies.

use super::*;
use crate::{Incarnation, OpErrorKind};

fn skewed(seed: u64) -> SimConfig {
    SimConfig {
        compute_servers: 4,
        clock_skew_ns: 40_000,
        clock_drift_ppm: 500,
        lease_ns: 100_000,
        ..config(seed)
    }
}

#[test]
fn clocks_differ_within_their_bounds_and_never_go_back() {
    let mut largest = 0;
    for seed in 0..20 {
        let sim = sim(skewed(seed));
        let endpoints: Vec<_> = (0..4).map(|compute| endpoint(&sim, compute)).collect();
        let mut last = [0; 4];
        for step in 0..200 {
            sim.run_until(step * 7_919).unwrap();
            let now = sim.now_ns();
            for (endpoint, last) in endpoints.iter().zip(&mut last) {
                let shown = endpoint.now_ns();
                let drift = now / 2_000 + 1;
                assert!((now - drift.min(now)..=now + 40_000 + drift).contains(&shown));
                assert!(shown >= *last);
                *last = shown;
                largest = largest.max(shown.abs_diff(now));
            }
        }
        assert!(last.iter().any(|shown| *shown != last[0]));
        // One clock for every life of a compute server.
        let shown = endpoints[1].now_ns();
        assert_eq!(sim.fabric(1).restart().endpoint_on(0).unwrap().now_ns(), shown);
    }
    assert!(largest > 30_000, "{largest}");
}

#[test]
fn sleeps_follow_the_wrong_clock() {
    let mut differences = Vec::new();
    for seed in 0..10 {
        let sim = sim(SimConfig { clock_skew_ns: 0, ..skewed(seed) });
        let endpoint = endpoint(&sim, 0);
        sim.block_on(async {
            for ns in [1, 999, 10_000_000] {
                let before = endpoint.now_ns();
                endpoint.sleep(ns).await;
                let slept = endpoint.now_ns() - before;
                assert!((ns..=ns + 1).contains(&slept), "{ns}: {slept}");
            }
        })
        .unwrap();
        differences.push(sim.now_ns() as i64 - 10_001_000);
    }
    assert!(differences.iter().all(|ns| ns.abs() <= 5_010), "{differences:?}");
    assert!(differences.iter().any(|ns| *ns > 1_000), "{differences:?}");
    assert!(differences.iter().any(|ns| *ns < -1_000), "{differences:?}");
}

/// Time from the stop of server 1 to the moment at which compute server `asker` considers it dead.
fn seen_dead_after(config: SimConfig, asker: usize) -> u64 {
    let sim = sim(config);
    let (endpoint, who) = (endpoint(&sim, asker), sim.fabric(1).incarnation());
    sim.run_until(10_000).unwrap();
    sim.fabric(1).stop();
    sim.block_on(async {
        while !endpoint.is_dead(who).await {
            endpoint.sleep(500).await;
        }
    })
    .unwrap();
    sim.now_ns() - 10_000
}

#[test]
fn a_lease_runs_out_by_clocks_that_differ() {
    let exact = SimConfig { clock_skew_ns: 0, clock_drift_ppm: 0, ..skewed(1) };
    assert!((100_000..101_200).contains(&seen_dead_after(exact, 0)));
    let times: Vec<_> = (0..20).map(|seed| seen_dead_after(skewed(seed), 0)).collect();
    assert!(times.iter().all(|ns| (59_900..141_300).contains(ns)), "{times:?}");
    assert!(times.iter().any(|ns| *ns < 90_000), "early: {times:?}");
    assert!(times.iter().any(|ns| *ns > 110_000), "late: {times:?}");
}

#[test]
fn death_by_lease_is_for_good_and_only_if_somebody_looked() {
    let exact = SimConfig { clock_skew_ns: 0, clock_drift_ppm: 0, ..skewed(1) };
    for looked in [false, true] {
        let sim = sim(exact.clone());
        let (asker, stopped) = (endpoint(&sim, 0), sim.fabric(1));
        let is_dead = |who: Incarnation| sim.block_on(asker.is_dead(who)).unwrap();
        stopped.stop();
        assert!(!is_dead(stopped.incarnation()));
        sim.run_until(300_000).unwrap();
        assert!(!looked || is_dead(stopped.incarnation()));
        stopped.resume();
        sim.run_until(600_000).unwrap();
        assert_eq!(is_dead(stopped.incarnation()), looked, "LEASE-2");
        assert!(!is_dead(sim.fabric(2).incarnation()));
    }
    let none = sim(SimConfig { lease_ns: 0, ..exact });
    none.fabric(1).stop();
    none.run_until(1_000_000_000).unwrap();
    let asker = endpoint(&none, 0);
    assert_eq!(none.block_on(asker.is_dead(none.fabric(1).incarnation())), Ok(false));
}

#[test]
fn a_zombie_writes_until_it_is_fenced() {
    let sim = sim(skewed(3));
    let (asker, zombie) = (endpoint(&sim, 0), endpoint(&sim, 1));
    let who = zombie.incarnation();
    sim.spawn(1, async move {
        loop {
            if let Err(error) = zombie.faa(at(0, 0), 1).await {
                assert_eq!(error.kind, OpErrorKind::Fenced);
                return;
            }
        }
    });
    sim.run_until(50_000).unwrap();
    sim.fabric(1).stop();
    sim.run_until(400_000).unwrap();
    assert_eq!(sim.block_on(asker.is_dead(who)), Ok(true));
    let before = look(&sim, 0, 0, 1)[0];
    sim.fabric(1).resume();
    sim.run_until(500_000).unwrap();
    let after = look(&sim, 0, 0, 1)[0];
    assert!(after > before + 20, "dead to all, and writing: {before} {after}");
    sim.block_on(asker.fence(ServerId(0), who)).unwrap().unwrap();
    let fenced = look(&sim, 0, 0, 1);
    sim.run().unwrap();
    assert_eq!((look(&sim, 0, 0, 1), sim.live_tasks()), (fenced, 0), "F6");
}
