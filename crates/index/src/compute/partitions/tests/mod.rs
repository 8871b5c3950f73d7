//! Partitions under test: a toy table on simulated compute servers, with moves, deaths and lost messages.

mod deaths;
mod directed;
mod left;
mod scaling;
mod toy;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farleaf_fabric::sim::{Sim, SimConfig, SimFabric};
use farleaf_fabric::{Canary, Client, Endpoint, Fabric, Incarnation, ListenConfig, ToAny};
use farleaf_pool::{PoolOptions, Session, format};
use fastrand::Rng;

use super::*;
use crate::compute::MoveError;
use toy::{Log, PARTITIONS, Pending, Places, Toy, session_of};

const LEASE_NS: u64 = 3_000_000;
/// Bytes of memory that a compute server exposes.
const REGION_BYTES: u64 = 4096;
/// Virtual time after which a run that has not ended is stuck.
const STUCK_NS: u64 = 11_000_000_000;

/// One life of a compute server in the table.
struct Life {
    fabric: SimFabric,
    session: Session,
    toy: Toy,
    log: Rc<RefCell<Log>>,
    is_finished: Rc<Cell<bool>>,
    /// It is to make the last changes, once those have been found dead.
    last: Rc<RefCell<Option<Vec<Incarnation>>>>,
}

/// A simulated cluster with the table.
struct Cluster {
    sim: Sim,
    places: Places,
    lives: Vec<Life>,
    /// Everybody has finished: workers stop ticking.
    is_over: Rc<Cell<bool>>,
}

/// A run without faults other than planned ones.
fn calm(seed: u64, compute_servers: usize) -> SimConfig {
    SimConfig {
        compute_servers,
        region_bytes: 4 << 20,
        lease_ns: LEASE_NS,
        ..SimConfig::seeded(seed)
    }
}

/// A run with torn and late operations, lost completions and tasks in any order.
fn rough(seed: u64, compute_servers: usize) -> SimConfig {
    let mut config = calm(seed, compute_servers);
    let adversary = &mut config.adversary;
    (adversary.torn, adversary.split_rmw, adversary.shuffle) = (0.3, 0.3, true);
    (adversary.late, adversary.late_ns) = (0.1, 30_000);
    (adversary.lost, adversary.lost_ns) = (0.01, 100_000);
    config
}

fn client(sim: &Sim, compute: usize) -> Client {
    Client::new(sim.fabric(compute).any_endpoint().expect("an endpoint"))
}

impl Cluster {
    /// Each compute server of `config` takes part with one of `weights`; partitions are where the ring has them.
    fn new(config: SimConfig, weights: &[u16]) -> Cluster {
        let sim = Sim::new(config).expect("a simulation");
        let options = PoolOptions { clients_max: 16, members_max: 8, ..PoolOptions::default() };
        let options =
            PoolOptions { block_bytes: 64 << 10, tables_max: 4, redo_bytes: 4096, ..options };
        let made = sim.block_on(async {
            format(&client(&sim, 0), &options).await.expect("a pool");
            let session = session_of(&client(&sim, 0)).await.expect("a session");
            (Places::create(&session).await.expect("a table"), session)
        });
        let (places, first) = made.expect("no deadlock");
        let mut cluster = Cluster { sim, places, lives: Vec::new(), is_over: Rc::default() };
        cluster.join(0, Some(first), weights[0]);
        for (compute, weight) in weights.iter().enumerate().skip(1) {
            cluster.join(compute, None, *weight);
        }
        cluster
    }

    /// The next life of a compute server joins, while others tick.
    fn join(&mut self, compute: usize, session: Option<Session>, weight: u16) -> usize {
        let fabric = self.sim.fabric(compute);
        let log = Log { adds: 0, transfers: 0, pending: Pending::Nothing, wrong: None };
        let log = Rc::new(RefCell::new(log));
        let client = client(&self.sim, compute);
        let places = self.places;
        let joined = self.sim.block_on(async {
            let session = match session {
                Some(session) => session,
                None => session_of(&client).await.expect("a session"),
            };
            let number = crate::compute::number_of(session.pool().member());
            fabric.expose(number, REGION_BYTES, &ListenConfig::default()).expect("exposed");
            session.publish_region(REGION_BYTES).await.expect("published");
            let toy = Toy::join(places, &session, Rc::clone(&log)).await.expect("joined");
            if weight > 0 {
                offer(&toy, &session, weight, 0).await.expect("offered");
            }
            (session, toy)
        });
        let (session, toy) = joined.expect("no deadlock");
        let (is_finished, last) = (Rc::default(), Rc::default());
        self.lives.push(Life { fabric, session, toy, log, is_finished, last });
        self.lives.len() - 1
    }

    fn who(&self, life: usize) -> Incarnation {
        self.lives[life].fabric.incarnation()
    }

    /// Has a life do `work`, and tick until all have finished.
    fn work(
        &self,
        life: usize,
        work: impl AsyncFnOnce(Toy, Session) -> Result<(), String> + 'static,
    ) {
        let Life { fabric, session, toy, log, is_finished, last } = &self.lives[life];
        let (session, toy, log) = (session.clone(), toy.clone(), Rc::clone(log));
        let (is_finished, last) = (Rc::clone(is_finished), Rc::clone(last));
        let is_over = Rc::clone(&self.is_over);
        self.sim.spawn(fabric.compute(), async move {
            let wrong = |what: String| {
                log.borrow_mut().wrong.get_or_insert(what);
            };
            if let Err(why) = work(toy.clone(), session.clone()).await {
                wrong(why);
            }
            is_finished.set(true);
            while !is_over.get() {
                session.endpoint().sleep(20_000).await;
                let dead = last.take();
                let is_last = dead.is_some();
                let ticked = async {
                    session.tick().await?;
                    tick(&toy, &session).await?;
                    match dead {
                        Some(dead) => last_changes(&toy, &session, dead).await,
                        None => Ok(()),
                    }
                };
                let ticked = ticked.await;
                is_finished.set(is_finished.get() || is_last);
                if let Err(error) = ticked {
                    // The table was left, or this life was cut off.
                    if !matches!(error, IndexError::Closed(_)) || is_last {
                        wrong(error.to_string());
                    }
                    return;
                }
            }
        });
    }

    /// Moves partitions to where the ring has them, by the first life; all others acknowledge.
    fn spread(&self) {
        let is_done = Cell::new(false);
        let first = &self.lives[0];
        let moves = async {
            rebalance(&first.toy, &first.session, MoveWay::Copy).await.expect("moved");
            is_done.set(true);
        };
        let others = async {
            while !is_done.get() {
                for Life { session, toy, .. } in &self.lives[1..] {
                    tick(toy, session).await.expect("a tick");
                }
                first.session.endpoint().sleep(10_000).await;
            }
        };
        self.sim.block_on(crate::join::join(moves, others)).expect("no deadlock");
    }

    /// Runs until all that live have finished, has the first of them change every leaf, and compares the table
    /// with what was acknowledged.
    fn end(&self, dead: &[usize]) -> Result<(), String> {
        self.run_until(|life| self.lives[life].is_finished.get(), dead)?;
        let alive = |life: &usize| !dead.contains(life);
        let last = (0..self.lives.len()).find(alive).ok_or("nobody is left")?;
        let Life { session, toy, .. } = &self.lives[last];
        self.lives[last].is_finished.set(false);
        let dead_lives = dead.iter().map(|life| self.who(*life)).collect();
        *self.lives[last].last.borrow_mut() = Some(dead_lives);
        self.run_until(|life| self.lives[life].is_finished.get(), dead)?;
        self.is_over.set(true);
        self.run_for(1_000_000)?;
        for (number, life) in (0..).zip(&self.lives).filter(|(number, _)| alive(number)) {
            if let Some(why) = life.log.borrow_mut().wrong.take() {
                return Err(format!("life {number}: {why}"));
            }
        }
        self.sim.calm();
        let ended = self.sim.block_on(async {
            toy.verify(session).await?;
            self.places.totals(session).await.map_err(|error| error.to_string())
        });
        self.compare(ended.map_err(|error| error.to_string())??)
    }

    /// Compares the leaves' counts and sums with what was acknowledged, and what may have happened.
    fn compare(&self, (count, sum): (u64, u64)) -> Result<(), String> {
        let (mut adds, mut transfers, mut possible) = (0, 0, vec![(0, 0)]);
        for life in &self.lives {
            let log = life.log.borrow();
            adds += log.adds;
            transfers += log.transfers;
            let more = match log.pending {
                Pending::Nothing => continue,
                Pending::Add => (1, 1),
                Pending::Transfer => (2, 0),
            };
            let with: Vec<(u64, u64)> =
                possible.iter().map(|(count, sum)| (count + more.0, sum + more.1)).collect();
            possible.extend(with);
        }
        let least = (adds + 2 * transfers, adds);
        let is_right =
            possible.iter().any(|more| (least.0 + more.0, least.1 + more.1) == (count, sum));
        is_right.then_some(()).ok_or(format!(
            "count {count} and sum {sum} of all leaves, acknowledged are {least:?}, and perhaps {possible:?}"
        ))
    }

    /// Runs until `is_done` of every life but the dead.
    fn run_until(&self, is_done: impl Fn(usize) -> bool, dead: &[usize]) -> Result<(), String> {
        let until_ns = self.sim.now_ns() + STUCK_NS;
        let lives = || (0..self.lives.len()).filter(|life| !dead.contains(life));
        while let Some(busy) = lives().find(|life| !is_done(*life)) {
            if self.sim.now_ns() >= until_ns {
                return Err(format!("life {busy} finds no end"));
            }
            self.run_for(500_000)?;
        }
        Ok(())
    }

    fn run_for(&self, ns: u64) -> Result<(), String> {
        self.sim.run_until(self.sim.now_ns() + ns).map_err(|error| error.to_string())
    }
}

/// Takes over from the dead, and changes every leaf, so that nothing stays half done.
async fn last_changes(
    toy: &Toy,
    session: &Session,
    dead: Vec<Incarnation>,
) -> Result<(), IndexError> {
    for who in dead {
        while !session.endpoint().is_dead(who).await {
            session.endpoint().sleep(100_000).await;
        }
        fail_over(toy, session, who).await?;
    }
    for partition in 0..PARTITIONS {
        toy.add(session, partition).await?;
    }
    tick(toy, session).await
}

/// Random changes, `count` of them.
async fn changes(toy: &Toy, session: &Session, rng: &mut Rng, count: usize) -> Result<(), String> {
    for _ in 0..count {
        let (p, q) = (rng.u32(..PARTITIONS), rng.u32(..PARTITIONS));
        let done = async {
            session.tick().await?;
            tick(toy, session).await?;
            match p == q || rng.bool() {
                true => toy.add(session, p).await,
                false => toy.transfer(session, p.min(q), p.max(q)).await,
            }
        };
        match done.await {
            Ok(()) => {}
            // This life was taken for dead.
            Err(IndexError::Closed(_) | IndexError::OutcomeUnknown(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Moves that may end without success: their giver or taker died, or has left.
fn moved<R>(done: Result<R, MoveError>) -> Result<(), String> {
    match done {
        Ok(_)
        | Err(
            MoveError::CalledOff
            | MoveError::Busy
            | MoveError::UnknownServer(_)
            | MoveError::Index(
                IndexError::Unavailable(_) | IndexError::Closed(_) | IndexError::OutcomeUnknown(_),
            ),
        ) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// One random run: four compute servers change leaves, partitions move, compute servers die and come back.
fn random_run(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let config = if rng.bool() { rough(seed, 4) } else { calm(seed, 4) };
    let mut cluster = Cluster::new(config, &[1, 2, 1, 0]);
    let mut dead = Vec::new();
    let members: Vec<Incarnation> = (0..3).map(|life| cluster.who(life)).collect();
    for life in 0..4 {
        let (mut rng, members) = (Rng::with_seed(rng.u64(..)), members.clone());
        cluster.work(life, async move |toy, session| {
            for _ in 0..rng.usize(2..5) {
                changes(&toy, &session, &mut rng, 6).await?;
                let way = if rng.bool() { MoveWay::Copy } else { MoveWay::Build };
                if rng.u8(..3) == 0 {
                    moved(rebalance(&toy, &session, way).await)?;
                } else {
                    let to = members.get(rng.usize(..4)).copied();
                    let some = (0..PARTITIONS).filter(|_| rng.u8(..3) == 0).collect();
                    moved(move_partitions(&toy, &session, some, to, way).await)?;
                }
            }
            changes(&toy, &session, &mut rng, 6).await
        });
    }
    for _ in 0..rng.usize(..3) {
        cluster.run_for(rng.u64(1_000..3_000_000))?;
        let life = rng.usize(1..4);
        if dead.contains(&life) {
            continue;
        }
        dead.push(life);
        let (compute, comes_back) = (cluster.lives[life].fabric.compute(), rng.bool());
        cluster.lives[life].fabric.kill();
        if comes_back {
            let _ = cluster.lives[life].fabric.restart();
            let next = cluster.join(compute, None, 1);
            let mut rng = Rng::with_seed(rng.u64(..));
            cluster.work(next, async move |toy, session| {
                changes(&toy, &session, &mut rng, 8).await?;
                moved(rebalance(&toy, &session, MoveWay::Copy).await)?;
                changes(&toy, &session, &mut rng, 8).await
            });
        }
    }
    cluster.end(&dead)
}

/// Runs seeds until one goes wrong; the first that does, and what it found.
fn first_wrong(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, random_run(seed).err()?)))
}

#[test]
fn random_runs_lose_nothing() {
    assert_eq!(first_wrong(0..200), None);
}

/// The step done wrong is found by the same runs.
fn is_found(canary: &'static Canary) {
    let armed = canary.arm();
    let found = first_wrong(0..2_000);
    drop(armed);
    assert!(found.is_some(), "{} was not found", canary.name);
}

#[test]
fn an_acknowledgement_without_a_drain_is_found() {
    is_found(&ACK_UNDRAINED);
}

#[test]
fn an_opening_without_acknowledgements_is_found() {
    is_found(&OPEN_UNACKNOWLEDGED);
}

#[test]
fn an_opening_before_the_work_of_the_dead_is_found() {
    is_found(&OPEN_UNFINISHED);
}

#[test]
fn terms_that_are_ignored_are_found() {
    is_found(&IGNORE_TERM);
}

#[test]
fn a_second_conductor_is_found() {
    is_found(&TWO_CONDUCTORS);
}
