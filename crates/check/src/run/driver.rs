//! Driver: makes the world, starts lives, injects faults in time, and ends the run.

use std::cell::RefCell;
use std::rc::Rc;

use farleaf_engines::{AnyIndex, StoredTable};
use farleaf_fabric::sim::{
    AdversaryConfig, Direction, NetworkConfig, OpRecord, Sim, SimConfig, SimError,
};
use farleaf_fabric::{AnyEndpoint, Client as FabricClient, Endpoint, ServerId, ToAny};
use farleaf_harness::{join, simulate};
use farleaf_index::{Index, IndexError};
use farleaf_pool::{Audit, PoolError, PoolOptions, Session, age, format};

use super::client::{Client, tick};
use super::life::{LifeState, Stage, live, take_over};
use super::outcome::{Failure, Outcome};
use super::record::RunShared;
use super::steps::Steps;
use super::table::TABLE;
use crate::history::Op;
use crate::scenario::{FaultKind, Scenario, mix};
use crate::world::PairsOf;

/// Virtual time for clients and servers to end after the faults have stopped.
const PATIENCE_NS: u64 = 3_000_000_000;
/// Most events of a whole run: a livelock makes more.
const EVENTS_MAX: u64 = 40_000_000;
/// Time between two checks for lives that were cut off.
const LOOK_NS: u64 = 100_000;
/// Times the clients' likely time in which single operations may go wrong.
const FAULTY_TIMES: u64 = 3;
/// Time between two ticks of the observer.
const KEEPER_NS: u64 = 150_000;
/// Rounds of recovery at the end, and ticks until everything retired is free.
const TAKE_OVERS: usize = 50;
const SETTLE_TICKS: usize = 12;

pub(super) fn run(scenario: &Scenario, is_recorded: bool) -> (Outcome, Vec<OpRecord>) {
    let mut outcome = Outcome::default();
    let sim = match simulate(config(scenario, is_recorded)) {
        Ok(sim) => Rc::new(sim),
        Err(error) => {
            outcome.failure = Some(Failure::Setup(error.to_string()));
            return (outcome, Vec::new());
        }
    };
    let shared = Rc::new(RunShared::new(scenario, &sim));
    let driver = Driver {
        scenario,
        sim: &sim,
        shared: Rc::clone(&shared),
        lives: RefCell::new(Vec::new()),
        marks: RefCell::default(),
    };
    if let Err(failure) = driver.run() {
        shared.fail(failure);
    }
    shared.count(|stats| {
        stats.remote_ops = sim.ops();
        stats.virtual_ns = sim.now_ns();
    });
    outcome.history = shared.history.take();
    outcome.steps = shared.steps.take();
    outcome.marks = driver.marks.take();
    outcome.trace_hash = sim.trace_hash();
    outcome.events = sim.events();
    outcome.stats = shared.stats.get();
    outcome.failure = shared.failure.take();
    (outcome, if is_recorded { sim.recorded() } else { Vec::new() })
}

fn config(scenario: &Scenario, is_recorded: bool) -> SimConfig {
    let faults = &scenario.faults;
    let defaults = AdversaryConfig::default();
    let or = |value: f64, default: u64| if value > 0.0 { value as u64 } else { default };
    SimConfig {
        memory_servers: scenario.memory_servers,
        // One more is the observer.
        compute_servers: scenario.compute_servers + 1,
        threads: threads(scenario),
        // As many blocks as with small logs.
        region_bytes: scenario.region_kib << if has_large_logs(scenario) { 12 } else { 10 },
        network: NetworkConfig {
            jitter_ns: or(faults.jitter, NetworkConfig::default().jitter_ns),
            ..NetworkConfig::default()
        },
        adversary: AdversaryConfig {
            torn: faults.torn,
            stretch_ns: faults.stretch as u64,
            split_rmw: faults.split,
            late: faults.late,
            late_ns: or(faults.late_ns, defaults.late_ns),
            lost: faults.lost,
            lost_ns: or(faults.lost_ns, defaults.lost_ns),
            timeout_ns: or(faults.timeout_ns, defaults.timeout_ns),
            // Not before the clients start.
            window: 0..0,
            shuffle: faults.shuffle > 0.0,
            repeated: faults.repeated,
        },
        events_max: EVENTS_MAX,
        queue_depth: or(faults.queue, u64::MAX).try_into().unwrap_or(usize::MAX),
        lease_ns: faults.lease as u64,
        clock_skew_ns: faults.skew as u64,
        clock_drift_ppm: faults.drift as u32,
        record: is_recorded,
        ..SimConfig::seeded(mix(scenario.seed, scenario.salt))
    }
}

/// A life that the driver has begun.
struct Life {
    compute: usize,
    state: Rc<LifeState>,
}

struct Driver<'a> {
    scenario: &'a Scenario,
    sim: &'a Rc<Sim>,
    shared: Rc<RunShared>,
    /// The latest life of each compute server.
    lives: RefCell<Vec<Life>>,
    marks: RefCell<Vec<(u64, String)>>,
}

impl Driver<'_> {
    fn run(&self) -> Result<(), Failure> {
        let keeper = self.sim.block_on(self.set_up()).map_err(stuck)??;
        let start_ns = self.sim.now_ns();
        let posts = self.sim.posts();
        let window = self.scenario.window;
        self.sim.set_fault_window(
            posts.saturating_add(window.from) + 1
                ..posts.saturating_add(window.to).saturating_add(1),
        );
        self.mark("start".to_owned());
        self.keep(&keeper);
        for compute in 0..self.scenario.compute_servers {
            let life = self.begin(compute)?;
            self.lives.borrow_mut().push(life);
        }
        for event in &self.scenario.events.0 {
            self.run_until(start_ns.saturating_add(event.at_ns))?;
            if self.shared.stop.get() {
                return Ok(());
            }
            self.happen(event.kind)?;
        }
        // Single operations go wrong while clients are at work, also after the last event or without one, but for servers
        // that stand still until the end.
        let faulty_ns = start_ns.saturating_add(FAULTY_TIMES * self.scenario.likely_ns());
        while self.sim.now_ns() < faulty_ns && !self.is_over() && !self.shared.stop.get() {
            self.run_until(faulty_ns.min(self.sim.now_ns() + LOOK_NS))?;
        }
        if self.shared.stop.get() {
            return Ok(());
        }
        self.end(keeper)
    }

    /// Makes pool and table; returns the observer's session.
    async fn set_up(&self) -> Result<Session, Failure> {
        let setup = |error: IndexError| Failure::Setup(error.to_string());
        let pool = |error: PoolError| setup(error.into());
        let fabric = self.sim.fabric(self.scenario.compute_servers);
        let endpoint = fabric.any_endpoint().map_err(|error| Failure::Setup(error.to_string()))?;
        let client = FabricClient::new(endpoint.clone());
        format(&client, &pool_options(self.scenario)).await.map_err(pool)?;
        if self.scenario.aged {
            age(&client).await.map_err(pool)?;
        }
        let session = join(endpoint).await.map_err(pool)?;
        let table = self.scenario.table();
        let root = AnyIndex::create(&session, TABLE, &table).await.map_err(setup)?;
        let index = self.shared.table.open(&session, false).await.map_err(setup)?;
        let pairs = self.shared.history.borrow().initial.clone();
        if !pairs.is_empty() {
            let loaded = index.bulk_load(&session, &mut PairsOf(pairs.iter())).await;
            match loaded {
                Ok(loaded) if loaded == pairs.len() as u64 => {}
                Ok(loaded) => {
                    let why = format!("loaded {loaded} of {} pairs", pairs.len());
                    return Err(Failure::Setup(why));
                }
                // A small pool: the table is still empty.
                Err(IndexError::Full(_)) => self.shared.history.borrow_mut().initial.clear(),
                Err(error) => return Err(setup(error)),
            }
        }
        let handed = self.shared.table.hand_over(&session, &root, index, self.scenario.aged).await;
        handed.map_err(setup)?;
        Ok(session)
    }

    /// Keeps the observer's epochs going.
    fn keep(&self, keeper: &Session) {
        let (keeper, shared) = (keeper.clone(), Rc::clone(&self.shared));
        let at = self.scenario.compute_servers;
        self.sim.spawn(at, async move {
            while !shared.stop.get() {
                if tick(&shared, &keeper).await.is_err() {
                    shared.fail(Failure::Stuck("the looker-on was cut off".to_owned()));
                }
                keeper.endpoint().sleep(KEEPER_NS).await;
            }
        });
    }

    /// Begins the current life of a compute server.
    fn begin(&self, compute: usize) -> Result<Life, Failure> {
        let fabric = self.sim.fabric(compute);
        // Every client has a thread of its own, and maintenance another: so a record of remote
        // operations shows the client of each.
        let endpoint = |thread: usize| {
            let endpoint = fabric.endpoint_on(thread);
            endpoint.map(AnyEndpoint::from).map_err(|error| Failure::Setup(error.to_string()))
        };
        let clients = (compute..self.scenario.clients)
            .step_by(self.scenario.compute_servers)
            .enumerate()
            .map(|(thread, client)| Ok((client, endpoint(thread)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let state = LifeState::new();
        let maintenance = endpoint(threads(self.scenario) - 1)?;
        let (shared, own) = (Rc::clone(&self.shared), Rc::clone(&state));
        let life = live(shared, own, fabric.clone(), maintenance, clients);
        self.sim.spawn(compute, life);
        Ok(Life { compute, state })
    }

    /// Injects one of the scenario's faults.
    fn happen(&self, kind: FaultKind) -> Result<(), Failure> {
        let is_there = kind.compute().is_none_or(|at| at < self.scenario.compute_servers)
            && kind.server().is_none_or(|at| at < self.scenario.memory_servers);
        if !is_there {
            return Ok(());
        }
        self.mark(kind.to_string());
        let server = |at: usize| self.sim.memory_server(ServerId(at as u16));
        match kind {
            FaultKind::Kill(compute) => self.kill(compute),
            FaultKind::Restart(compute) => self.restart(compute)?,
            FaultKind::Stop(compute) => self.sim.fabric(compute).stop(),
            FaultKind::StopWithRegion(compute) => self.sim.fabric(compute).stop_with_region(),
            FaultKind::Resume(compute) => self.sim.fabric(compute).resume(),
            FaultKind::Slow(at, factor) => server(at).slow(factor.clamp(1, 1_000)),
            FaultKind::StopMemory(at) => server(at).stop(),
            FaultKind::ResumeMemory(at) => server(at).resume(),
            FaultKind::CutRequests(compute, at) => server(at).cut(compute, Direction::Requests),
            FaultKind::CutReplies(compute, at) => server(at).cut(compute, Direction::Replies),
            FaultKind::Heal(compute, at) => server(at).heal(compute),
            FaultKind::CutCalls(from, to) => self.sim.cut(from, to),
            FaultKind::HealCalls(from, to) => self.sim.heal(from, to),
        }
        Ok(())
    }

    fn kill(&self, compute: usize) {
        let lives = self.lives.borrow();
        let state = &lives[compute].state;
        if state.stage.get() != Stage::Dead {
            state.stage.set(Stage::Dead);
            self.sim.fabric(compute).kill();
            self.shared.count(|stats| stats.killed += 1);
        }
    }

    fn restart(&self, compute: usize) -> Result<(), Failure> {
        self.kill(compute);
        let _ = self.sim.fabric(compute).restart();
        self.shared.count(|stats| stats.restarted += 1);
        let life = self.begin(compute)?;
        self.lives.borrow_mut()[compute] = life;
        Ok(())
    }

    /// Runs up to a moment; restarts lives that are cut off.
    fn run_until(&self, ns: u64) -> Result<(), Failure> {
        while self.sim.now_ns() < ns && !self.shared.stop.get() {
            self.sim.run_until(ns.min(self.sim.now_ns() + LOOK_NS)).map_err(stuck)?;
            self.revive()?;
        }
        Ok(())
    }

    /// Restarts lives that are cut off.
    fn revive(&self) -> Result<(), Failure> {
        let cut_off: Vec<usize> = {
            let lives = self.lives.borrow();
            let cut_off = lives.iter().filter(|life| life.state.stage.get() == Stage::CutOff);
            cut_off.map(|life| life.compute).collect()
        };
        for compute in cut_off {
            self.shared.count(|stats| stats.cut_off += 1);
            self.mark(format!("cut-off:{compute}"));
            self.restart(compute)?;
        }
        Ok(())
    }

    /// Stops the faults, waits for the end of all clients and servers, and makes the last checks.
    fn end(&self, keeper: Session) -> Result<(), Failure> {
        self.mark("faults stop".to_owned());
        self.sim.set_fault_window(0..0);
        for server in 0..self.scenario.memory_servers {
            let server = self.sim.memory_server(ServerId(server as u16));
            server.slow(1);
            server.resume();
            (0..self.scenario.compute_servers).for_each(|compute| server.heal(compute));
        }
        let computes = 0..self.scenario.compute_servers;
        for (from, to) in computes.clone().flat_map(|at| computes.clone().map(move |to| (at, to))) {
            self.sim.heal(from, to);
        }
        computes.for_each(|at| self.sim.fabric(at).resume());
        let until_ns = self.sim.now_ns() + PATIENCE_NS;
        while !self.is_over() && !self.shared.stop.get() {
            if self.sim.now_ns() >= until_ns {
                return Err(self.still_at_work());
            }
            self.run_until(self.sim.now_ns() + LOOK_NS)?;
        }
        if self.shared.failure.borrow().is_some() {
            return Ok(());
        }
        self.mark("last look".to_owned());
        self.shared.stop.set(true);
        // The observer's own task ends.
        self.sim.run_until(self.sim.now_ns() + 2 * KEEPER_NS).map_err(stuck)?;
        self.sim.block_on(self.look(keeper)).map_err(stuck)?
    }

    /// Tells whether every compute server has done its work, or is dead.
    fn is_over(&self) -> bool {
        let lives = self.lives.borrow();
        let mut stages = lives.iter().map(|life| life.state.stage.get());
        stages.all(|stage| matches!(stage, Stage::Done | Stage::Dead))
    }

    fn still_at_work(&self) -> Failure {
        let lives = self.lives.borrow();
        let mut told: Vec<String> = Vec::new();
        for life in lives.iter() {
            let stage = life.state.stage.get();
            if !matches!(stage, Stage::Done | Stage::Dead) {
                told.push(format!("compute server {} {stage:?}", life.compute));
            }
        }
        let history = self.shared.history.borrow();
        for event in history.events.iter().filter(|event| event.answer.is_none()).rev().take(4) {
            told.push(format!("client {} waits since {} ns", event.client, event.from_ns));
        }
        Failure::Stuck(format!(
            "after {} ms of virtual time: {}",
            PATIENCE_NS / 1_000_000,
            told.join(", ")
        ))
    }

    /// Recovers the dead, reads everything, and checks table and pool.
    async fn look(&self, keeper: Session) -> Result<(), Failure> {
        let closed = || Failure::Stuck("the looker-on was cut off".to_owned());
        let corrupt = |error: IndexError| Failure::Corrupt(error.to_string());
        let endpoint = &keeper.endpoint().clone();
        let mut quiet = 0;
        for _ in 0..TAKE_OVERS {
            tick(&self.shared, &keeper).await.map_err(|_| closed())?;
            let did = take_over(&self.shared, &keeper).await.map_err(|_| closed())?;
            let is_quiet = !did && !keeper.pool().needs_recovery();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 3 {
                break;
            }
            endpoint.sleep(KEEPER_NS).await;
        }
        if quiet < 3 {
            return Err(Failure::Recovery("there are dead left to take over from".to_owned()));
        }
        let root = keeper.open_root(TABLE).await.map_err(|error| corrupt(error.into()))?;
        let index = self.shared.table.open(&keeper, false).await.map_err(corrupt)?;
        self.read_all(&keeper, &index).await?;
        // Maintenance that the last look began would change the table beside the audit.
        if !keeper.finish_tasks().await {
            return Err(Failure::Stuck("a task of the looker-on does not end".to_owned()));
        }
        // First the cached table, then its form in the pool when nobody has it open.
        let mut audit = Audit::new(&keeper).await.map_err(|error| corrupt(error.into()))?;
        let report = index.verify(&keeper, &mut audit).await.map_err(corrupt)?;
        if !report.problems.is_empty() {
            return Err(Failure::Damaged(report.problems));
        }
        index.close(&keeper).await.map_err(corrupt)?;
        let table = StoredTable::of(&root).map_err(corrupt)?;
        let keeper =
            if self.scenario.loses_memory() { self.replace(keeper).await? } else { keeper };
        let keeper = &keeper;
        for _ in 0..SETTLE_TICKS {
            tick(&self.shared, keeper).await.map_err(|_| closed())?;
            endpoint.sleep(20_000).await;
        }
        let mut audit = Audit::new(keeper).await.map_err(|error| corrupt(error.into()))?;
        let report = table.verify(keeper, &mut audit).await.map_err(corrupt)?;
        if !report.problems.is_empty() {
            return Err(Failure::Damaged(report.problems));
        }
        let report = audit.report(keeper).await.map_err(|error| corrupt(error.into()))?;
        if !report.problems.is_empty() {
            return Err(Failure::Leaked(report.problems.join("; ")));
        }
        if !report.closes() {
            let open = report
                .classes
                .iter()
                .filter(|class| class.handed_out != class.live + class.free + class.retired);
            return Err(Failure::Leaked(format!("{:?}", open.collect::<Vec<_>>())));
        }
        Ok(())
    }

    /// The observer leaves, and comes back as another member that looks for lost objects. The dead
    /// may have lost some in its former blocks as well.
    async fn replace(&self, keeper: Session) -> Result<Session, Failure> {
        let failed = |error: PoolError| Failure::Recovery(error.to_string());
        let endpoint = keeper.endpoint().clone();
        for attempt in 0.. {
            match keeper.leave().await {
                Ok(()) => break,
                // Tasks of the table may hold the session for a moment.
                Err(PoolError::Invalid(_)) if attempt < TAKE_OVERS => {}
                Err(error) => return Err(failed(error)),
            }
            endpoint.sleep(KEEPER_NS).await;
        }
        drop(keeper);
        let keeper = join(endpoint).await.map_err(failed)?;
        let closed = || Failure::Stuck("the looker-on was cut off".to_owned());
        while take_over(&self.shared, &keeper).await.map_err(|_| closed())? {}
        sweep(&keeper).await?;
        Ok(keeper)
    }

    /// A last look at all keys, one by one and in scans, as one more client.
    async fn read_all(&self, keeper: &Session, index: &AnyIndex) -> Result<(), Failure> {
        use std::ops::Bound::Unbounded;
        let mut client = Client {
            shared: Rc::clone(&self.shared),
            number: 0,
            id: self.shared.new_client(),
            session: keeper.clone(),
            index: index.clone(),
            known: Default::default(),
        };
        let scan =
            |reverse| Op::Scan { from: Unbounded, to: Unbounded, reverse, limit: usize::MAX };
        let keys = Steps::new(self.scenario).keys().into_iter().map(|key| Op::Get { key });
        for call in [scan(false), scan(true)].into_iter().chain(keys) {
            keeper.endpoint().sleep(1).await;
            let told = client.run(None, call.clone()).await;
            match told {
                Ok(Some(crate::history::Answer::Nothing)) | Ok(None) | Err(_) => {
                    let why = self.shared.refusal.borrow();
                    let why = format!("{call:?} is not answered in a quiet pool: {why}");
                    return Err(Failure::Stuck(why));
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(())
    }

    fn mark(&self, what: String) {
        self.marks.borrow_mut().push((self.sim.now_ns(), what));
    }
}

/// Looks for objects that were lost in blocks without an owner.
async fn sweep(keeper: &Session) -> Result<(), Failure> {
    let swept = match farleaf_engines::sweep(keeper).await {
        Ok(None) => return Ok(()),
        Ok(Some(swept)) => swept,
        Err(IndexError::Corrupt(why)) => return Err(Failure::Damaged(vec![why])),
        Err(error) => return Err(Failure::Recovery(error.to_string())),
    };
    match swept.problems.first() {
        None if swept.complete => Ok(()),
        None => Err(Failure::Recovery("a sweep of a quiet pool was not complete".to_owned())),
        Some(problem) => Err(Failure::Recovery(problem.clone())),
    }
}

/// Worker threads of each compute server: one per client, and one for maintenance.
pub(crate) fn threads(scenario: &Scenario) -> usize {
    scenario.clients.div_ceil(scenario.compute_servers) + 1
}

fn stuck(error: SimError) -> Failure {
    Failure::Stuck(error.to_string())
}

/// Returns whether a log, which with its journal is one object, needs larger blocks than usual.
fn has_large_logs(scenario: &Scenario) -> bool {
    scenario.engine.traits().logged && scenario.table().node_bytes() > 512
}

/// Small blocks, and room for a few lives of every client.
fn pool_options(scenario: &Scenario) -> PoolOptions {
    let is_small = scenario.region_kib < 4 << 10;
    PoolOptions {
        block_bytes: if has_large_logs(scenario) { 256 << 10 } else { 64 << 10 },
        clients_max: if is_small { 48 } else { 128 },
        members_max: 32,
        tables_max: 4,
        redo_bytes: 16 << 10,
    }
}
