//! Succession tests: a process that opens a pool full of dead members takes the place of one of them.
//!
//! It recovers that member, although others do the same or die over it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig};
use farleaf_fabric::{AnyEndpoint, Client, GlobalAddr, OpKind, ServerId, ToAny};

use super::SMALL;
use crate::member::read_table;
use crate::{Audit, Pool, PoolError, PoolOptions, Recovered, Session, format};

type Mine = Session;

const MEMBERS: usize = 3;
const OPENERS: usize = 2;
const LEASE_NS: u64 = 1_000;

/// One word per compute server: the address of the object that it has linked, or 0.
async fn make_table(session: &Mine) -> GlobalAddr {
    let table = session.alloc(ServerId(0), 64).await.unwrap();
    let mut zero = session.client().buf(64);
    zero.words_mut().fill(0);
    session.client().write(table, zero).await.unwrap();
    table
}

/// Links an object, loses one, and retires one; with luck all of it.
async fn work(session: &Mine, cell: GlobalAddr) -> Result<(), PoolError> {
    let _pinned = session.begin(OpKind::Insert).await?;
    let server = ServerId((cell.word() / 8 % 2) as u16);
    let linked = session.alloc(server, 64).await?;
    let [_lost, gone] = [session.alloc(server, 300).await?, session.alloc(server, 64).await?];
    session.reliable().cas(cell, 0, linked.word()).await?;
    session.retire(session.prepare_retire(gone).await?);
    session.tick().await
}

async fn mark(session: &Mine, table: GlobalAddr, audit: &mut Audit) {
    audit.mark(table, 64).unwrap();
    let reliable = session.reliable();
    let cells = reliable.read(table, reliable.buf(64)).await.unwrap();
    for word in cells.words().iter().filter(|word| **word != 0) {
        audit.mark(GlobalAddr::from_word(*word).unwrap(), 64).unwrap();
    }
}

async fn recover(session: &Mine, table: GlobalAddr) -> Result<Option<Recovered>, PoolError> {
    let Some(recovery) = session.recover_begin().await? else { return Ok(None) };
    let mut audit = recovery.audit();
    mark(session, table, &mut audit).await;
    session.recover_finish(recovery, &audit).await.map(Some)
}

async fn open(endpoint: AnyEndpoint) -> Result<Mine, PoolError> {
    Pool::join(&Client::new(endpoint.clone())).await?.session(endpoint).await
}

struct World {
    sim: Sim,
    table: GlobalAddr,
}

impl World {
    /// A pool whose members are all dead, with something of each that is linked, lost and retired.
    fn dead(seed: u64, adversary: AdversaryConfig) -> World {
        let config = SimConfig {
            memory_servers: 2,
            compute_servers: MEMBERS + OPENERS + 1,
            region_bytes: 2 << 20,
            lease_ns: LEASE_NS,
            adversary,
            ..SimConfig::seeded(seed)
        };
        let sim = Sim::new(config).unwrap();
        let endpoints: Vec<_> =
            (0..MEMBERS).map(|at| sim.fabric(at).any_endpoint().unwrap()).collect();
        let options = PoolOptions { members_max: MEMBERS as u32, clients_max: 16, ..SMALL };
        let made = sim.block_on(async {
            format(&Client::new(endpoints[0].clone()), &options).await.unwrap();
            let mut members = Vec::new();
            for endpoint in endpoints {
                members.push(open(endpoint).await.unwrap());
            }
            let table = make_table(&members[0]).await;
            for (at, member) in members.iter().enumerate() {
                work(member, table.plus(at as u64 * 8)).await.unwrap();
            }
            let tokens: Vec<u64> = members.iter().map(Session::lock_token).collect();
            (table, tokens, members)
        });
        let (table, tokens, members) = made.unwrap();
        for at in 0..MEMBERS {
            sim.fabric(at).kill();
        }
        drop((tokens, members));
        sim.run_until(sim.now_ns() + 2 * LEASE_NS).unwrap();
        World { sim, table }
    }

    /// Opens the pool, recovers the dead and accounts for everything; how many dead there were.
    fn end(&self, seed: u64) -> usize {
        self.sim.run_until(self.sim.now_ns() + 2 * LEASE_NS).unwrap();
        let endpoint = self.sim.fabric(MEMBERS + OPENERS).any_endpoint().unwrap();
        let recovered = self.sim.block_on(async {
            let session =
                open(endpoint).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let mut found = 0;
            while let Some(done) = recover(&session, self.table).await.unwrap() {
                assert!(done.complete && done.problems.is_empty(), "seed {seed}: {done:?}");
                found += done.members;
            }
            assert!(!session.pool().needs_recovery(), "seed {seed}");
            // What somebody lost who left in order.
            if let Some(sweep) = session.sweep_begin().await.unwrap() {
                let mut audit = sweep.audit();
                mark(&session, self.table, &mut audit).await;
                session.recover_finish(sweep, &audit).await.unwrap();
            }
            for _ in 0..8 {
                session.tick().await.unwrap();
            }
            let mut audit = Audit::new(&session).await.unwrap();
            mark(&session, self.table, &mut audit).await;
            let report = audit.report(&session).await.unwrap();
            assert!(report.closes(), "seed {seed}: {report:?}");
            let members = read_table(session.reliable(), session.pool().geometry()).await.unwrap();
            let used = members.iter().filter(|entry| entry.word.0 & 15 != 0);
            assert_eq!(used.count(), 1, "seed {seed}: {members:?}");
            let named = members.iter().filter(|entry| entry.incarnation.0 != 0);
            assert_eq!(named.count(), 1, "seed {seed}: {members:?}");
            let clients = session.pool().read_clients(session.reliable()).await.unwrap();
            assert_eq!(clients.len(), 1, "seed {seed}: {clients:?}");
            found
        });
        recovered.unwrap()
    }
}

/// Without this, the pool could never be opened again.
#[test]
fn a_pool_whose_members_are_all_dead_opens() {
    let world = World::dead(1, AdversaryConfig::default());
    assert_eq!(world.end(1), MEMBERS);
}

/// The dead's tokens are dead to their successor, and to others, before they are recovered; and the drop that
/// one of them had begun waits for that.
#[test]
fn a_successors_tokens_are_not_those_of_the_life_before() {
    let world = World::dead(2, AdversaryConfig::default());
    let endpoint = world.sim.fabric(MEMBERS).any_endpoint().unwrap();
    let other = world.sim.fabric(MEMBERS + 1).any_endpoint().unwrap();
    world
        .sim
        .block_on(async {
            let (first, second) = (open(endpoint).await.unwrap(), open(other).await.unwrap());
            assert_eq!((first.pool().member(), second.pool().member()), (0, 1));
            let clients = first.pool().read_clients(first.reliable()).await.unwrap();
            assert_eq!(clients.len(), MEMBERS + 2, "those of the dead are kept");
            for slot in 0..MEMBERS as u32 {
                let token = crate::LockToken::new(slot, slot, 0).word();
                for session in [&first, &second] {
                    assert_eq!(session.owner_is_dead(token).await, Ok(true), "slot {slot}");
                    assert_eq!(session.is_forgotten(token).await, Ok(false), "slot {slot}");
                }
            }
            let own = first.lock_token();
            assert_eq!(first.owner_is_dead(own).await, Ok(false));
            assert_eq!(second.owner_is_dead(own).await, Ok(false));
            let done = recover(&first, world.table).await.unwrap().unwrap();
            assert_eq!(
                (done.members, done.complete),
                (2, true),
                "its own slot's, and that of nobody"
            );
            let forgotten = crate::LockToken::new(0, 0, 0).word();
            assert_eq!(second.is_forgotten(forgotten).await, Ok(true));
            let kept = crate::LockToken::new(1, 1, 0).word();
            assert_eq!(first.is_forgotten(kept).await, Ok(false), "the second's to recover");
            for _ in 0..2 {
                first.tick().await.unwrap();
            }
            let done = recover(&second, world.table).await.unwrap().unwrap();
            assert_eq!((done.members, done.complete), (1, true));
            assert_eq!(first.is_forgotten(kept).await, Ok(true));
        })
        .unwrap();
}

/// Openers that die at any moment, one after the other and beside each other, with operations that come late.
#[test]
fn successors_die_at_any_moment_and_the_next_one_opens() {
    let (mut opened, mut dead) = (0, 0);
    for seed in 0..300_u64 {
        let adversary =
            AdversaryConfig { late: 0.3, late_ns: 10_000, torn: 0.1, ..AdversaryConfig::default() };
        let world = World::dead(seed, adversary);
        let sessions = Rc::new(RefCell::new(Vec::new()));
        let ended = Rc::new(Cell::new(0));
        for opener in MEMBERS..MEMBERS + OPENERS {
            let endpoint = world.sim.fabric(opener).any_endpoint().unwrap();
            let (table, sessions, ended) = (world.table, Rc::clone(&sessions), Rc::clone(&ended));
            world.sim.spawn(opener, async move {
                // Who meets others at it may find no place; it is to try again.
                if let Ok(session) = open(endpoint).await {
                    let cell = table.plus(opener as u64 * 8);
                    let done = work(&session, cell).await;
                    assert!(done.is_ok(), "{done:?}");
                    recover(&session, table).await.unwrap();
                    for _ in 0..3 {
                        session.tick().await.unwrap();
                    }
                    sessions.borrow_mut().push((opener, session));
                }
                ended.set(ended.get() + 1);
            });
        }
        world.sim.run_until(world.sim.now_ns() + seed * 331 % 120_000).unwrap();
        opened += usize::from(ended.get() == OPENERS);
        world.sim.fabric(MEMBERS).kill();
        if seed % 3 == 0 {
            world.sim.fabric(MEMBERS + 1).kill();
        } else {
            world.sim.run_until(world.sim.now_ns() + 20_000_000).unwrap();
        }
        if seed % 3 != 0 {
            let left = sessions.borrow_mut().pop_if(|(opener, _)| *opener > MEMBERS);
            let (_, session) = left.unwrap_or_else(|| panic!("seed {seed}: it found no place"));
            world.sim.block_on(async { session.leave().await.unwrap() }).unwrap();
        }
        dead += world.end(seed);
    }
    assert!(opened < 290, "some die on the way: {opened} of 300 did not");
    assert!(dead > 250, "{dead} were left to the last one");
}
