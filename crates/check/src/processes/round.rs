//! Round: runs, kills, stops and continues processes until all end; a fresh process judges the pool.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::child::{Child, ChildKind, Ended};
use super::commands::Commands;
use super::config::{Config, Counts, Launcher, Network, ProcessesError};
use super::faults::RoundFaults;
use super::judge;
use super::links::Links;
use super::memory::Memory;
use super::owners;
use super::spec::{ClientSpec, JudgeSpec, LoadSpec, RespSpec, Role, TablesSpec};
use super::values::Shape;

/// Time for a process to end by itself: longer than operations wait for a lock.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(40);
/// As `END_TIME_MAX`, for a load: nobody tells it to end, and it has all its records to write, on a busy machine too.
const LOAD_TIME_MAX: Duration = Duration::from_secs(120);
/// A client of a round goes on for so long after the round was to end, in case the driver is slow.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Time for the judge.
const JUDGE_TIME_MAX: Duration = Duration::from_secs(60);
/// Longest time between two looks at the children.
pub(super) const LOOK_TIME: Duration = Duration::from_millis(2);
/// Processes that are to die young do so within this time of their start.
const YOUNG_TIME: Duration = Duration::from_millis(25);
/// As `YOUNG_TIME`, over a network, where it takes longer to reach a pool.
const YOUNG_TIME_NETWORK: Duration = Duration::from_millis(150);
/// Quarters of a lease after which every dead process counts as dead, even if the memory server
/// that judges has just been started.
const DEATH_QUARTERS: u32 = 10;
/// Size of a pool that is made by processes that are killed over it.
const CREATION_POOL: &str = "64MiB";

/// Reason why a round did not end well.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A failed check.
    Found(String),
    Interrupted,
    Error(ProcessesError),
}

/// State that the rounds of a run share.
pub(super) struct Run<'a> {
    pub(super) config: &'a Config,
    pub(super) launcher: &'a Launcher,
    pub(super) stop: &'a AtomicBool,
    pub(super) rng: fastrand::Rng,
    /// Folder of pool and rounds.
    pub(super) folder: PathBuf,
    /// Address of the pool, if it is in shared memory.
    pub(super) pool: String,
    /// Memory servers, if the pool is on a network.
    pub(super) memory: Option<Memory<'a>>,
    /// Faults apart from each other, so far.
    pub(super) apart: u64,
    /// The next number in the history.
    pub(super) client: u32,
    /// The next number of a child.
    pub(super) child: u32,
    /// Addresses of the gateways.
    pub(super) gateways: Vec<SocketAddr>,
}

impl Run<'_> {
    /// Finds free ports for the gateways, which each of them keeps for the run.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn find_ports(&mut self) -> io::Result<()> {
        let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let all: Vec<_> = (0..self.config.gateways).map(listen).collect::<io::Result<_>>()?;
        self.gateways = all.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        Ok(())
    }
}

pub(super) struct Round<'a, 'b> {
    pub(super) run: &'b mut Run<'a>,
    pub(super) folder: PathBuf,
    pub(super) shape: Shape,
    /// Over a network: faults happen apart from each other.
    pub(super) is_apart: bool,
    pub(super) faults: RoundFaults,
    pub(super) children: Vec<Child>,
    loads: Vec<LoadSpec>,
    /// Files for the names that clients have as compute servers.
    names: Vec<PathBuf>,
    pub(super) commands: Commands,
    pub(super) counts: &'b mut Counts,
    pub(super) logs: Vec<PathBuf>,
}

/// The name of the table of that shape.
pub(super) fn table_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Words => "words",
        Shape::Strings => "strings",
    }
}

impl<'a, 'b> Round<'a, 'b> {
    /// `is_apart`: faults happen apart from each other, over a network.
    pub(super) fn new(
        run: &'b mut Run<'a>,
        folder: PathBuf,
        shape: Shape,
        is_apart: bool,
        counts: &'b mut Counts,
    ) -> Self {
        let (count, seed) = (run.config.commands, run.config.seed);
        let commands = Commands::new(count, run.client, folder.join("commands.jsonl"), seed);
        run.client += count;
        Round {
            run,
            folder,
            shape,
            is_apart,
            faults: RoundFaults::default(),
            children: Vec::new(),
            loads: Vec::new(),
            names: Vec::new(),
            commands,
            counts,
            logs: Vec::new(),
        }
    }

    /// Plays the round to the judge's verdict.
    pub(super) fn play(&mut self) -> Result<(), Trouble> {
        for _ in 0..self.run.config.processes {
            self.start_client()?;
        }
        if !self.is_apart {
            for place in 0..self.run.gateways.len() {
                self.start_gateway(place)?;
                self.start_resp()?;
            }
            self.start_tables()?;
            self.start_load()?;
        }
        match self.network().map(|network| network.lease) {
            Some(lease) => self.disturb_network(lease)?,
            None => {
                if self.run.rng.bool() {
                    self.start_creation()?;
                }
                self.disturb()?;
            }
        }
        self.end_all()?;
        for _ in 0..self.run.rng.u32(..3) {
            // No other process is there to recover the dead, and this one dies over it.
            self.start_opener()?;
            self.wait_for_all(END_TIME_MAX)?;
        }
        // Only a walk over all blocks finds an object that a process took out of a table and did
        // not hand over before its death. A recovery makes this walk if nobody else is there.
        let name = self.name("dying");
        self.start(name, ChildKind::Dying, Role::Die(self.direct()), None)?;
        self.wait_for_all(END_TIME_MAX)?;
        self.wait_for_deaths()?;
        self.judge()
    }

    /// Waits until every dead process counts as dead: over a network, when their leases are over.
    fn wait_for_deaths(&mut self) -> Result<(), Trouble> {
        let Some(network) = self.network() else { return Ok(()) };
        let end = Instant::now() + network.lease * DEATH_QUARTERS / 4;
        while Instant::now() < end {
            self.check_interrupt()?;
            thread::sleep(LOOK_TIME);
        }
        Ok(())
    }

    fn network(&self) -> Option<&'a Network> {
        self.run.memory.as_ref().map(|memory| memory.network)
    }

    /// The pool's address without links.
    pub(super) fn direct(&self) -> String {
        self.run.memory.as_ref().map_or_else(|| self.run.pool.clone(), Memory::uri)
    }

    /// The pool's address for one more process, and its links, if there are some.
    pub(super) fn way(&self) -> Result<(String, Option<Links>), Trouble> {
        let Some(memory) = &self.run.memory else { return Ok((self.run.pool.clone(), None)) };
        let links = Links::open(&memory.targets()).map_err(|source| self.io(source))?;
        Ok((links.uri(), Some(links)))
    }

    /// The keys that clients work with.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        (0..self.run.config.keys).map(|number| self.shape.key(number)).collect()
    }

    /// The number of times that clients opened the pool anew, after being cut off or giving it up.
    pub(super) fn opened_anew(&self) -> u64 {
        let names = self.names.iter().map(|path| owners::names(path).len().saturating_sub(1));
        names.sum::<usize>() as u64
    }

    /// The file in which a client notes its names as a compute server.
    pub(super) fn names_path(&self, client: &str) -> PathBuf {
        self.folder.join(format!("{client}.names"))
    }

    /// Kills, stops and continues until the round's time is over.
    fn disturb(&mut self) -> Result<(), Trouble> {
        let end = Instant::now() + self.run.config.round_time;
        let (kills, stops) = (self.run.config.kills_per_second, self.run.config.stops_per_second);
        let mut kill_at = Instant::now() + self.pause(kills);
        let mut stop_at = Instant::now() + self.pause(stops);
        loop {
            self.check_interrupt()?;
            self.reap(true)?;
            let now = Instant::now();
            self.keep_dates(now);
            if now >= end {
                return Ok(());
            }
            if now >= kill_at {
                kill_at = now + self.pause(kills);
                if self.run.rng.u32(..4) == 0 {
                    self.start_opener()?;
                } else {
                    self.kill_somebody();
                }
            }
            if now >= stop_at {
                stop_at = now + self.pause(stops);
                let part = self.run.rng.f64().powi(4);
                self.stop_somebody(now + self.run.config.stop_time_max.mul_f64(part));
            }
            let next = [kill_at, stop_at, end, now + LOOK_TIME].into_iter().min();
            thread::sleep(next.map_or(LOOK_TIME, |next| next.saturating_duration_since(now)));
        }
    }

    /// A time between two events of that mean rate.
    pub(super) fn pause(&mut self, per_second: f64) -> Duration {
        const LONG: f64 = 1e6;
        let seconds = -(1.0 - self.run.rng.f64()).ln() / per_second;
        Duration::from_secs_f64(seconds.min(LONG))
    }

    /// Kills and continues every child whose time has come.
    pub(super) fn keep_dates(&mut self, now: Instant) {
        for child in &mut self.children {
            if child.kill_at.is_some_and(|at| at <= now) && !child.is_killed() {
                child.kill_at = None;
                child.kill();
                count_kill(self.counts, &child.kind);
            }
            if child.continue_at.is_some_and(|at| at <= now) {
                child.go_on();
            }
        }
    }

    /// Kills one, if it is not dead already; the name of a client.
    pub(super) fn kill_somebody(&mut self) -> Option<String> {
        let at = self.run.rng.usize(..self.children.len().max(1));
        let child = self.children.get_mut(at).filter(|child| !child.is_killed())?;
        child.kill();
        count_kill(self.counts, &child.kind);
        (child.kind == ChildKind::Client).then(|| child.name.clone())
    }

    /// Stops one, if it is not stopped or dead already; its name.
    pub(super) fn stop_somebody(&mut self, until: Instant) -> Option<String> {
        let at = self.run.rng.usize(..self.children.len().max(1));
        let may_stop = |child: &&mut Child| !child.is_killed() && child.continue_at.is_none();
        let child = self.children.get_mut(at).filter(may_stop)?;
        child.stop(until);
        self.counts.stops += 1;
        Some(child.name.clone())
    }

    /// Handles children that have ended; `renew` starts others in their place.
    pub(super) fn reap(&mut self, renew: bool) -> Result<(), Trouble> {
        let mut at = 0;
        while at < self.children.len() {
            let Some(ended) = self.children[at].ended().map_err(|source| self.io(source))? else {
                at += 1;
                continue;
            };
            let child = self.children.swap_remove(at);
            self.commands.note_hits(&child);
            self.handle_end(&child, ended, renew)?;
        }
        self.run_commands(renew)
    }

    fn handle_end(&mut self, child: &Child, ended: Ended, renew: bool) -> Result<(), Trouble> {
        match ended {
            Ended::Badly(status) => {
                let (name, said) = (&child.name, child.last_errors());
                return Err(Trouble::Found(format!("process {name} ended with {status}: {said}")));
            }
            Ended::NotStarted => self.counts.not_started += 1,
            Ended::Killed | Ended::Done => {}
        }
        if self.run.memory.is_some() && self.has_looked(child, ended, renew) {
            return Ok(());
        }
        let is_done = ended == Ended::Done;
        match &child.kind {
            ChildKind::Client | ChildKind::Resp | ChildKind::Gateway(_) | ChildKind::Tables
                if is_done && renew =>
            {
                let name = &child.name;
                Err(Trouble::Found(format!("process {name} ended, although nobody told it to")))
            }
            ChildKind::Client if renew => self.start_client(),
            ChildKind::Resp if renew => self.start_resp(),
            ChildKind::Gateway(place) if renew => self.start_gateway(*place),
            ChildKind::Tables if renew => self.start_tables(),
            ChildKind::Load(number) => {
                self.counts.loads += u64::from(is_done);
                self.loads[*number].acknowledged = is_done;
                if renew { self.start_load() } else { Ok(()) }
            }
            ChildKind::Creation(folder) if is_done => {
                fs::remove_dir_all(folder).map_err(|source| self.io(source))
            }
            // The remains of a killed creation must not keep the next one from making the pool.
            ChildKind::Creation(folder) => {
                let folder = folder.clone();
                self.create(folder, None)
            }
            _ => Ok(()),
        }
    }

    fn start_client(&mut self) -> Result<(), Trouble> {
        let name = self.name("client");
        let logs = (0..self.run.config.threads)
            .map(|thread| self.folder.join(format!("{name}-{thread}.jsonl")));
        let logs: Vec<PathBuf> = logs.collect();
        self.logs.extend(logs.iter().cloned());
        let (pool, mut links) = self.way()?;
        let names = links.is_some().then(|| self.names_path(&name));
        self.names.extend(names.clone());
        let recoveries = self.folder.join(format!("{name}.recoveries"));
        self.commands.notes.push(recoveries.clone());
        let post = links.as_mut().zip(names.clone()).filter(|_| self.run.config.post_rate() > 0.0);
        let advertise = post.map(|(links, notes)| links.open_post(notes)).transpose();
        let advertise = advertise.map_err(|source| self.io(source))?;
        let role = Role::Client(ClientSpec {
            pool,
            table: table_name(self.shape).to_owned(),
            shape: self.shape,
            keys: self.run.config.keys,
            logs,
            client: self.run.client,
            seed: self.run.rng.u64(..),
            names,
            recoveries: Some(recoveries),
            advertise,
            expose_bytes: self.run.config.expose_bytes,
            work_time_max: self.run.config.round_time + STALL_TIME_MAX,
        });
        self.run.client += self.run.config.clients_each();
        self.counts.clients += 1;
        self.start(name, ChildKind::Client, role, links)
    }

    /// A gateway at the address of that place.
    fn start_gateway(&mut self, place: usize) -> Result<(), Trouble> {
        let name = self.name("gateway");
        let (pool, links) = self.way()?;
        let address = self.run.gateways[place].to_string();
        let words = ["redis", &pool, "--table", table_name(self.shape), "--address", &address];
        let options = ["--end-with-stdin", "--quiet", "--log-level", "warn", "--json"];
        let words = words.into_iter().chain(options).map(str::to_owned).collect();
        self.start(name, ChildKind::Gateway(place), Role::Command(words), links)
    }

    /// A client of the gateways.
    fn start_resp(&mut self) -> Result<(), Trouble> {
        let name = self.name("resp");
        let threads = self.run.config.threads;
        let logs = (0..threads).map(|thread| self.folder.join(format!("{name}-{thread}.jsonl")));
        let logs: Vec<PathBuf> = logs.collect();
        self.logs.extend(logs.iter().cloned());
        let role = Role::Resp(RespSpec {
            gateways: self.run.gateways.clone(),
            shape: self.shape,
            keys: self.run.config.keys,
            logs,
            client: self.run.client,
            seed: self.run.rng.u64(..),
            work_time_max: self.run.config.round_time + STALL_TIME_MAX,
        });
        self.run.client += self.run.config.clients_each();
        self.counts.clients += 1;
        self.start(name, ChildKind::Resp, role, None)
    }

    pub(super) fn start_tables(&mut self) -> Result<(), Trouble> {
        let name = self.name("tables");
        let (pool, links) = self.way()?;
        let role = Role::Tables(TablesSpec {
            pool,
            prefix: format!("{name}-"),
            engine: self.run.config.engine.to_string(),
            seed: self.run.rng.u64(..),
        });
        self.start(name, ChildKind::Tables, role, links)
    }

    pub(super) fn start_load(&mut self) -> Result<(), Trouble> {
        let name = self.name("load");
        let (pool, links) = self.way()?;
        let sorted = self.run.rng.bool();
        let records = records_path(&self.run.folder).display().to_string();
        let mut words = vec!["load".to_owned(), pool, name.clone(), records];
        words.extend(["--quiet", "--format", "tsv"].map(str::to_owned));
        words.extend(["--engine".to_owned(), self.run.config.engine.to_string()]);
        if sorted {
            words.push("--sorted".to_owned());
        }
        let number = self.loads.len();
        self.loads.push(LoadSpec { table: name.clone(), sorted, acknowledged: false });
        self.start(name, ChildKind::Load(number), Role::Command(words), links)?;
        if self.run.rng.bool() {
            // At some moment of a load that takes its time.
            self.die_within(self.young_time() * 8);
        }
        Ok(())
    }

    /// A process that opens the pool and is killed soon.
    pub(super) fn start_opener(&mut self) -> Result<(), Trouble> {
        let name = self.name("opener");
        let (pool, links) = self.way()?;
        let words = vec!["tables".to_owned(), pool];
        self.start(name, ChildKind::Opener, Role::Command(words), links)?;
        self.die_within(self.young_time());
        Ok(())
    }

    fn young_time(&self) -> Duration {
        if self.run.memory.is_some() { YOUNG_TIME_NETWORK } else { YOUNG_TIME }
    }

    fn start_creation(&mut self) -> Result<(), Trouble> {
        let name = self.name("creation");
        self.create(self.folder.join(name), Some(YOUNG_TIME))
    }

    /// A process that makes another pool, and is killed over it if `within` says so.
    fn create(&mut self, folder: PathBuf, within: Option<Duration>) -> Result<(), Trouble> {
        let name = self.name("creator");
        let (uri, records) = (format!("shm:{}", folder.display()), records_path(&self.run.folder));
        let records = records.display().to_string();
        let words = ["load", &uri, "t", &records, "--quiet", "--format", "tsv", "--sorted"];
        let words = words.into_iter().chain(["--create", "--pool-bytes", CREATION_POOL]);
        let role = Role::Command(words.map(str::to_owned).collect());
        self.start(name, ChildKind::Creation(folder), role, None)?;
        if let Some(time) = within {
            self.die_within(time);
        }
        Ok(())
    }

    /// Starts a child, which has the links for itself.
    pub(super) fn start(
        &mut self,
        name: String,
        kind: ChildKind,
        role: Role,
        links: Option<Links>,
    ) -> Result<(), Trouble> {
        let child = Child::start(self.run.launcher, &self.folder, name, kind, role, None);
        let mut child = child.map_err(|source| self.io(source))?;
        child.links = links;
        self.children.push(child);
        Ok(())
    }

    /// Lets the child that was started last die within that time.
    fn die_within(&mut self, time: Duration) {
        let part = self.run.rng.f64();
        if let Some(child) = self.children.last_mut() {
            child.kill_at = Some(Instant::now() + time.mul_f64(part));
        }
    }

    pub(super) fn name(&mut self, what: &str) -> String {
        self.run.child += 1;
        format!("{what}-{}", self.run.child)
    }

    /// Ends all children, some by `kill -9`, and waits for it.
    fn end_all(&mut self) -> Result<(), Trouble> {
        for child in &mut self.children {
            let may_die =
                matches!(child.kind, ChildKind::Client | ChildKind::Tables | ChildKind::Load(_))
                    || matches!(child.kind, ChildKind::Resp | ChildKind::Gateway(_));
            if may_die && !child.is_killed() && self.run.rng.u32(..3) == 0 {
                child.kill();
                count_kill(self.counts, &child.kind);
            }
            if child.continue_at.is_some() {
                child.go_on();
            }
            child.end();
        }
        let loads = self.children.iter().any(|child| matches!(child.kind, ChildKind::Load(_)));
        self.wait_for_all(if loads { LOAD_TIME_MAX } else { END_TIME_MAX })
    }

    fn wait_for_all(&mut self, time: Duration) -> Result<(), Trouble> {
        let end = Instant::now() + time;
        loop {
            self.check_interrupt()?;
            self.reap(false)?;
            let now = Instant::now();
            self.keep_dates(now);
            if self.children.is_empty() && self.commands.at_work().next().is_none() {
                return Ok(());
            }
            if now >= end {
                let names = self.children.iter().map(|child| &*child.name);
                let names: Vec<&str> = names.chain(self.commands.at_work()).collect();
                let (names, seconds) = (names.join(", "), time.as_secs());
                let why = format!("{names}: still at work {seconds} s after it was to end");
                return Err(Trouble::Found(why));
            }
            thread::sleep(LOOK_TIME);
        }
    }

    /// A fresh process recovers, verifies, and writes down the content.
    fn judge(&mut self) -> Result<(), Trouble> {
        let (log, verdict) = (self.folder.join("content.jsonl"), self.folder.join("verdict.json"));
        let name = self.name("judge");
        let role = Role::Judge(JudgeSpec {
            pool: self.direct(),
            table: table_name(self.shape).to_owned(),
            shape: self.shape,
            stay: Shape::ALL.map(|shape| table_name(shape).to_owned()).to_vec(),
            loads: self.loads.clone(),
            log: log.clone(),
            client: self.run.client,
            verdict: verdict.clone(),
        });
        self.run.client += 1;
        self.start(name, ChildKind::Judge, role, None)?;
        self.wait_for_all(JUDGE_TIME_MAX)?;
        let verdict = judge::read(&verdict).map_err(Trouble::Found)?;
        self.counts.tables_left += verdict.dropped;
        self.logs.push(log);
        if verdict.problems.is_empty() {
            return Ok(());
        }
        Err(Trouble::Found(verdict.problems.join("\n")))
    }

    pub(super) fn check_interrupt(&self) -> Result<(), Trouble> {
        if self.run.stop.load(Ordering::Relaxed) { Err(Trouble::Interrupted) } else { Ok(()) }
    }

    pub(super) fn io(&self, source: io::Error) -> Trouble {
        let path = self.folder.clone();
        Trouble::Error(ProcessesError::Io { what: "run processes in", path, source })
    }
}

/// The file of the records to load.
pub(super) fn records_path(folder: &Path) -> PathBuf {
    folder.join("records.tsv")
}

pub(super) fn count_kill(counts: &mut Counts, kind: &ChildKind) {
    match kind {
        ChildKind::Client => counts.kills_clients += 1,
        ChildKind::Tables => counts.kills_tables += 1,
        ChildKind::Load(_) => counts.kills_loads += 1,
        ChildKind::Opener => counts.kills_openers += 1,
        ChildKind::Creation(_) => counts.kills_creations += 1,
        ChildKind::Gateway(_) => counts.kills_gateways += 1,
        ChildKind::Resp => counts.kills_resp += 1,
        // Those of commands are in the report of commands.
        ChildKind::Command
        | ChildKind::Dying
        | ChildKind::Judge
        | ChildKind::Memory
        | ChildKind::Owners => {}
    }
}
