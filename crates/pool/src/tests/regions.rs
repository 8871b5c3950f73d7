//! Tests of regions: memory that members expose, under fences and lost completions.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig};
use farleaf_fabric::{
    AnyEndpoint, Client, Endpoint, Fabric, GlobalAddr, ListenConfig, OpErrorKind, Peer, ServerId,
    ToAny,
};

use super::{Mine, SMALL, member};
use crate::canary::{Canary, MEMBERS_BEFORE_FENCE, OF_REGIONS, REGION_UNSETTLED};
use crate::format;
use crate::reliable::{PATIENCE_NS, Reconnects, Reliable};

const BYTES: u64 = 64 << 10;

fn session_of(sim: &Sim, compute: usize) -> Mine {
    let end = sim.fabric(compute).any_endpoint().unwrap();
    sim.block_on(member(&end)).unwrap()
}

/// INV-MEM-4: a life that is cut off has no way to a region that appears while it is being cut off, at any
/// moment of the fence.
fn fences_while_a_region_appears() {
    for step in 0..40 {
        let config =
            SimConfig { compute_servers: 3, region_bytes: 4 << 20, ..SimConfig::seeded(step) };
        let sim = Sim::new(config).unwrap();
        let maker = Client::new(sim.fabric(0).any_endpoint().unwrap());
        sim.block_on(format(&maker, &SMALL)).unwrap().unwrap();
        let sessions = [0, 1, 2].map(|compute| session_of(&sim, compute));
        let [fencer, owner, zombie] = sessions;
        // The fencer's own region, so that fences look for others.
        let own = fencer.pool().member();
        let number = |member: u32| ServerId(ServerId::COMPUTE_FIRST.0 + member as u16);
        sim.fabric(0).expose(number(own), BYTES, &ListenConfig::default()).unwrap();
        let who = sim.fabric(2).incarnation();
        sim.fabric(2).condemn();
        let fenced = Rc::new(Cell::new(None));
        let (told, exposing) = (Rc::clone(&fenced), sim.fabric(1));
        sim.spawn(0, async move {
            fencer.publish_region(BYTES).await.unwrap();
            fencer.endpoint().sleep(20_000).await;
            fencer.fence(who).await.unwrap();
            told.set(Some(
                exposing.region().map(|words| words.as_slice()[8].load(Ordering::Relaxed)),
            ));
        });
        let fabric = sim.fabric(1);
        sim.spawn(1, async move {
            owner.endpoint().sleep(19_000 + step * 250).await;
            let member = owner.pool().member();
            fabric.expose(number(member), BYTES, &ListenConfig::default()).unwrap();
            owner.publish_region(BYTES).await.unwrap();
            owner.endpoint().sleep(200_000).await;
        });
        sim.spawn(2, async move {
            let own = zombie.endpoint().incarnation();
            let mut known: Vec<Peer> = Vec::new();
            for _ in 0..200 {
                let client = zombie.client();
                if let Ok(members) = zombie.members().await {
                    known = members.iter().map(|member| member.peer()).collect();
                    known.retain(|peer| peer.region_bytes > 0 && peer.incarnation != own);
                }
                for peer in &known {
                    zombie.endpoint().attach(*peer).unwrap();
                    // Refused once the fence has been there.
                    let _ = client.faa(GlobalAddr::new(peer.server, 64), 1).await;
                }
                zombie.endpoint().sleep(500).await;
            }
        });
        sim.run_until(600_000).unwrap();
        let seen = fenced.get().expect("the fence has returned");
        let now = sim.fabric(1).region().unwrap().as_slice()[8].load(Ordering::Relaxed);
        assert_eq!(now, seen.unwrap_or(0), "step {step}: something landed behind the fence");
    }
}

/// INV-SETTLE-1 on regions: what is posted again after a lost completion does not land once more, later.
fn writes_settle_on_regions() {
    for seed in 0..10 {
        let adversary = AdversaryConfig { lost: 0.3, lost_ns: 300_000, ..Default::default() };
        let config = SimConfig { compute_servers: 2, adversary, ..SimConfig::seeded(seed) };
        let sim = Sim::new(config).unwrap();
        let (server, owner) = (ServerId::COMPUTE_FIRST, sim.fabric(1));
        owner.expose(server, BYTES, &ListenConfig::default()).unwrap();
        let peer =
            Peer { server, incarnation: owner.incarnation(), address: None, region_bytes: BYTES };
        sim.fabric(0).attach(peer).unwrap();
        let endpoint: AnyEndpoint = sim.fabric(0).any_endpoint().unwrap();
        let (client, lines) = (Client::new(endpoint.clone()), Reconnects::new(1));
        let at = GlobalAddr::new(server, 64);
        sim.block_on(async {
            let reliable = Reliable::new(&client, &lines, PATIENCE_NS);
            for round in 1..=60 {
                reliable.write_word(at, round).await.unwrap();
                assert_eq!(reliable.word(at).await, Ok(round), "seed {seed}");
                let own = reliable.cas_release(at.plus(64), round - 1, round).await;
                assert_eq!(own, Ok(round - 1), "seed {seed}");
            }
        })
        .unwrap();
    }
}

/// `Gone` passes through at once, and patience with a region has the length of that with a memory server.
#[test]
fn a_lost_region_is_not_waited_for() {
    let sim = Sim::new(SimConfig { compute_servers: 2, ..SimConfig::seeded(1) }).unwrap();
    let (server, owner) = (ServerId::COMPUTE_FIRST, sim.fabric(1));
    owner.expose(server, BYTES, &ListenConfig::default()).unwrap();
    let incarnation = owner.incarnation();
    let peer = Peer { server, incarnation, address: None, region_bytes: BYTES };
    sim.fabric(0).attach(peer).unwrap();
    let endpoint = sim.fabric(0).any_endpoint().unwrap();
    let (client, lines) = (Client::new(endpoint.clone()), Reconnects::new(1));
    sim.block_on(async {
        let reliable = Reliable::new(&client, &lines, PATIENCE_NS);
        let at = GlobalAddr::new(server, 64);
        sim.cut(0, 1);
        let since_ns = endpoint.now_ns();
        let lost = reliable.word(at).await.unwrap_err();
        assert_eq!((lost.kind, lost.server), (OpErrorKind::Timeout, server));
        let waited_ns = endpoint.now_ns() - since_ns;
        assert!((PATIENCE_NS..2 * PATIENCE_NS).contains(&waited_ns), "{waited_ns}");
        sim.heal(0, 1);
        assert_eq!(reliable.word(at).await, Ok(0));
        owner.kill();
        assert!(endpoint.is_dead(incarnation).await);
        let since_ns = endpoint.now_ns();
        let gone = reliable.word(at).await.unwrap_err();
        assert_eq!(gone.kind, OpErrorKind::Gone { who: incarnation });
        assert!(endpoint.now_ns() - since_ns < 100_000);
    })
    .unwrap();
}

/// The checks of regions pass, and find the seeded bugs.
#[test]
fn canaries_of_regions_are_found() {
    let finds: [(&'static Canary, fn()); 2] = [
        (&MEMBERS_BEFORE_FENCE, fences_while_a_region_appears),
        (&REGION_UNSETTLED, writes_settle_on_regions),
    ];
    assert_eq!(finds.map(|(canary, _)| canary)[..], *OF_REGIONS);
    for (canary, find) in finds {
        find();
        #[cfg(feature = "canary")]
        {
            let _armed = canary.arm();
            assert!(catch_unwind(AssertUnwindSafe(find)).is_err(), "{canary:?} was not found");
        }
        #[cfg(not(feature = "canary"))]
        let _ = canary;
    }
}
