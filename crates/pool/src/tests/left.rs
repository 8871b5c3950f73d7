//! Tests of left clients: whoever dies over leaving or adopting, no object is lost or freed twice.

use std::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::sim::{CrashPlan, CrashWay, Sim, SimConfig};
use farleaf_fabric::{Client, Endpoint, GlobalAddr, OpKind, ServerId, ToAny};

use super::{Mine, SMALL, audit_of, member};
use crate::format;

const LEAVER: usize = 0;
const ADOPTER: usize = 1;
const SURVIVOR: usize = 2;
const KEPT: usize = 40;

/// One member leaves while another reads what it has retired, a third adopts what it left and one of both dies after
/// its remote operation `k`. Whether it came so far.
fn die_after(dying: usize, k: u64) -> bool {
    let config = SimConfig {
        memory_servers: 2,
        compute_servers: 3,
        region_bytes: 4 << 20,
        ..SimConfig::default()
    };
    let sim = Sim::new(config).unwrap();
    let ends = [LEAVER, ADOPTER, SURVIVOR].map(|at| sim.fabric(at).any_endpoint().unwrap());
    let [leaving, adopting, surviving] = ends;
    let set = async {
        format(&Client::new(surviving.clone()), &SMALL).await.unwrap();
        let survivor = member(&surviving).await;
        let (leaver, adopter) = (member(&leaving).await, member(&adopting).await);
        // In blocks of its own and in another's, on both servers.
        let kept = [
            survivor.alloc(ServerId(0), KEPT).await.unwrap(),
            leaver.alloc(ServerId(1), KEPT).await.unwrap(),
        ];
        let mut gone = vec![
            leaver.alloc(ServerId(0), KEPT).await.unwrap(),
            leaver.alloc(ServerId(1), KEPT).await.unwrap(),
        ];
        if dying != LEAVER {
            // What a dead one has not announced of others' blocks waits for a sweep (INV-REC-3).
            gone.push(survivor.alloc(ServerId(1), KEPT).await.unwrap());
        }
        (survivor, leaver, adopter, kept, gone)
    };
    let (survivor, leaver, adopter, kept, gone) = sim.block_on(set).unwrap();
    let reading = sim.block_on(survivor.begin(OpKind::Get)).unwrap().unwrap();
    let retire = async {
        let _pinned = leaver.begin(OpKind::Remove).await.unwrap();
        for addr in gone {
            let retiring = leaver.prepare_retire(addr).await.unwrap();
            leaver.retire(retiring);
        }
    };
    sim.block_on(retire).unwrap();
    sim.fabric(dying).plan(CrashPlan { op: k, way: CrashWay::After });
    let run = |compute: usize, act: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let ended = Rc::new(Cell::new(false));
        let over = Rc::clone(&ended);
        sim.spawn(compute, async move {
            act.await;
            over.set(true);
        });
        let fabric = sim.fabric(compute);
        while !ended.get() && (!fabric.has_fired() || fabric.has_in_flight()) {
            sim.run_until(sim.now_ns() + 10_000).unwrap();
        }
    };
    run(LEAVER, Box::pin(async move { leaver.leave().await.unwrap() }));
    run(
        ADOPTER,
        Box::pin(async move {
            for _ in 0..6 {
                adopter.tick().await.unwrap();
            }
            adopter.leave().await.unwrap();
        }),
    );
    drop(reading);
    let live = kept.map(|addr| (addr, KEPT));
    sim.block_on(end(&survivor, &live, &format!("{dying} dies after {k}"))).unwrap();
    sim.fabric(dying).has_fired()
}

/// All that was retired is free in the end, and nobody is left but the survivor.
async fn end(survivor: &Mine, live: &[(GlobalAddr, usize)], what: &str) {
    for _ in 0..24 {
        survivor.tick().await.unwrap();
        if let Some(recovery) = survivor.recover_begin().await.unwrap() {
            let mut audit = recovery.audit();
            live.iter().for_each(|(addr, bytes)| audit.mark(*addr, *bytes).unwrap());
            let done = survivor.recover_finish(recovery, &audit).await.unwrap();
            assert!(done.complete && done.problems.is_empty(), "{what}: {done:?}");
        }
        survivor.endpoint().sleep(1_000_000).await;
    }
    let report = audit_of(survivor, live).await;
    assert!(report.closes(), "{what}: {report:?}");
    let sums = report
        .classes
        .iter()
        .fold((0, 0), |(live, retired), class| (live + class.live, retired + class.retired));
    assert_eq!(sums, (live.len() as u64, 0), "{what}: {report:?}");
    let clients = survivor.pool().read_clients(survivor.maintenance()).await.unwrap();
    assert_eq!(clients.len(), 1, "{what}: {clients:?}");
    assert_eq!(survivor.members().await.unwrap().len(), 1, "{what}");
}

#[test]
fn deaths_over_leaving_and_adopting_lose_nothing() {
    for dying in [LEAVER, ADOPTER] {
        let deaths = (0..).take_while(|k| die_after(dying, *k)).count();
        assert!(deaths > 20, "{deaths} operations of {dying}");
    }
}
