//! Fault tests: fences, kills and restarts.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::{Incarnation, OpErrorKind};

const WORDS: usize = 32;

/// Compute server 1 writes without end, in every way, on both memory servers.
fn victim(sim: &Sim) -> Rc<Cell<u64>> {
    let fenced = Rc::new(Cell::new(0));
    for client in 0..6 {
        let (endpoint, fenced) = (endpoint(sim, 1), Rc::clone(&fenced));
        sim.spawn(1, async move {
            for round in 1_u64.. {
                let addr = at((round % 2) as u16, 4096 * client);
                let buf = filled(&endpoint, WORDS, round);
                let error = match client % 3 {
                    0 => endpoint.write(addr, buf).await.err(),
                    1 => {
                        let mut ops = endpoint.ops();
                        ops.write(addr, buf);
                        ops.faa(addr.plus(512), 1);
                        ops.write_word(addr.plus(520), round);
                        endpoint.chain(ops).await.err()
                    }
                    _ => {
                        let mut ops = endpoint.ops();
                        ops.write(addr, buf);
                        ops.faa(addr.plus(512), 1);
                        endpoint.post_many(ops).await.err()
                    }
                };
                if let Some(error) = error {
                    assert_eq!(error.kind, OpErrorKind::Fenced);
                    fenced.set(fenced.get() + 1);
                }
            }
        });
    }
    fenced
}

#[test]
fn nothing_lands_after_a_fence_and_some_writes_are_cut() {
    let mut cut = 0;
    for seed in 0..30 {
        let torn = seed % 3 != 0;
        let config = if torn { hostile(seed) } else { config(seed) };
        let sim = sim(SimConfig { memory_servers: 2, compute_servers: 2, ..config });
        let fenced = victim(&sim);
        let (fencer, who) = (endpoint(&sim, 0), sim.fabric(1).incarnation());
        sim.run_until(30_000 + seed * 71).unwrap();
        assert_eq!(fenced.get(), 0);
        sim.block_on(fencer.fence(ServerId(0), who)).unwrap().unwrap();
        let (here, there) = (look(&sim, 0, 0, 4096), look(&sim, 1, 0, 4096));
        for client in 0..6 {
            let block = &here[client * 512..client * 512 + WORDS];
            let is_cut = block.iter().any(|word| *word != block[0]);
            assert!(torn || !is_cut);
            cut += usize::from(is_cut);
        }
        sim.run_until(200_000).unwrap();
        assert_eq!(look(&sim, 0, 0, 4096), here, "F6");
        assert_ne!(look(&sim, 1, 0, 4096), there, "the other server has not fenced it");
        assert!(fenced.get() > 50);
        // Idempotent, and the fencer itself goes on.
        sim.block_on(fencer.fence(ServerId(0), who)).unwrap().unwrap();
        sim.block_on(fencer.faa(at(0, 64), 1)).unwrap().unwrap();
    }
    assert!(cut > 10, "{cut}");
}

#[test]
fn small_writes_are_never_cut_if_that_is_promised() {
    let capabilities = crate::Capabilities { crash_atomic_bytes: 256, ..crate::Capabilities::NONE };
    for seed in 0..10 {
        let config = SimConfig { capabilities, ..hostile(seed) };
        let sim = sim(SimConfig { memory_servers: 2, compute_servers: 2, ..config });
        victim(&sim);
        sim.run_until(30_000 + seed * 71).unwrap();
        let (fencer, who) = (endpoint(&sim, 0), sim.fabric(1).incarnation());
        sim.block_on(fencer.fence(ServerId(0), who)).unwrap().unwrap();
        let here = look(&sim, 0, 0, 4096);
        for block in here.chunks(512).map(|chunk| &chunk[..WORDS]) {
            assert!(block.iter().all(|word| *word == block[0]));
        }
    }
}

#[test]
fn the_killed_stop_and_what_they_posted_may_land() {
    let sim = sim(SimConfig { memory_servers: 2, compute_servers: 2, ..hostile(4) });
    let steps = Rc::new(Cell::new(0));
    let (endpoint_1, count) = (endpoint(&sim, 1), Rc::clone(&steps));
    let watch = endpoint_1.clone();
    sim.spawn(1, async move {
        loop {
            endpoint_1.faa(at(0, 0), 1).await.unwrap();
            count.set(count.get() + 1);
        }
    });
    sim.run_until(50_000).unwrap();
    let victim = sim.fabric(1);
    let other = endpoint(&sim, 0);
    assert_eq!(sim.block_on(other.is_dead(victim.incarnation())), Ok(false));
    // Let it post, and kill it before the operation can have arrived.
    let before = steps.get();
    while steps.get() == before {
        sim.run_until(sim.now_ns() + 10).unwrap();
    }
    victim.kill();
    let seen = steps.get();
    assert_eq!(look(&sim, 0, 0, 1), [seen]);
    sim.run().unwrap();
    assert_eq!((steps.get(), sim.live_tasks(), sim.in_flight()), (seen, 0, 0));
    assert_eq!(look(&sim, 0, 0, 1), [seen + 1], "not fenced: it landed");
    assert_eq!(sim.block_on(other.is_dead(victim.incarnation())), Ok(true));
    assert_eq!(watch.buffers_out(), 0);
    assert!(victim.endpoint().is_err());
    // A holder of one of its endpoints can do nothing with it.
    sim.spawn(1, async { panic!("the dead run nothing") });
    assert!(sim.block_on(watch.faa(at(0, 0), 1)).is_err());
    assert_eq!(look(&sim, 0, 0, 1), [seen + 1]);
}

#[test]
fn a_fence_after_a_kill_stops_what_is_in_flight() {
    let mut landed = 0;
    for delay in (0..2_400).step_by(50) {
        let sim = sim(SimConfig { compute_servers: 2, ..config(4) });
        let (writer, fencer) = (endpoint(&sim, 1), endpoint(&sim, 0));
        sim.spawn(1, async move {
            writer.sleep(1_000).await;
            drop(writer.write(at(0, 0), filled(&writer, 8, 1)).await);
        });
        sim.run_until(delay).unwrap();
        sim.fabric(1).kill();
        let who = sim.fabric(1).incarnation();
        sim.block_on(fencer.fence(ServerId(0), who)).unwrap().unwrap();
        let after = look(&sim, 0, 0, 8);
        sim.run().unwrap();
        assert_eq!(look(&sim, 0, 0, 8), after, "F6");
        landed += after[0];
    }
    assert!((1..48).contains(&landed), "some in time, some not: {landed}");
}

#[test]
fn a_restart_is_a_new_life() {
    let sim = sim(SimConfig { compute_servers: 2, ..config(1) });
    let old = sim.fabric(1);
    let (fencer, former) = (endpoint(&sim, 0), old.endpoint().unwrap());
    let new = old.restart();
    assert_ne!(new.incarnation(), old.incarnation());
    assert_eq!(sim.fabric(1).incarnation(), new.incarnation());
    let current = new.endpoint().unwrap();
    assert_eq!(current.incarnation(), new.incarnation());
    sim.block_on(async {
        fencer.fence(ServerId(0), old.incarnation()).await.unwrap();
        assert!(fencer.is_dead(old.incarnation()).await);
        assert!(!fencer.is_dead(new.incarnation()).await);
        assert!(fencer.is_dead(Incarnation(77)).await, "nobody of that name lives");
        fencer.fence(ServerId(0), Incarnation(77)).await.unwrap();
        current.faa(at(0, 0), 1).await.unwrap();
    })
    .unwrap();
    assert!(sim.block_on(former.faa(at(0, 0), 1)).is_err());
    assert_eq!(look(&sim, 0, 0, 1), [1]);
}

#[test]
fn a_task_may_kill_its_own_server() {
    let sim = sim(SimConfig { compute_servers: 2, ..config(1) });
    let (own, endpoint) = (sim.fabric(1), endpoint(&sim, 1));
    let after = Rc::new(Cell::new(false));
    let set = Rc::clone(&after);
    sim.spawn(1, async move {
        endpoint.faa(at(0, 0), 1).await.unwrap();
        own.kill();
        endpoint.faa(at(0, 0), 1).await.unwrap();
        set.set(true);
    });
    sim.run().unwrap();
    assert!(!after.get());
    assert_eq!(Rc::strong_count(&after), 1, "the task has been dropped");
    assert_eq!(look(&sim, 0, 0, 1), [1]);
}
