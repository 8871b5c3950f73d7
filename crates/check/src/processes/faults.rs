//! Network faults: break processes, memory servers and links in a round, one at a time or together.
//!
//! In every other round faults happen *apart* from each other, with quiet around them. So the
//! driver can measure the time from each until all work goes on; only clients are at work. The
//! rounds between have all processes of a run over shared memory, and faults happen *together*.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::child::{Child, ChildKind, Ended};
use super::links::{Callers, LinkState, Way};
use super::log::now_ns;
use super::owners::{self, Owned, Ranges};
use super::round::{END_TIME_MAX, LOOK_TIME, Round, Trouble, count_kill, table_name};
use super::spec::{OwnersSpec, Role};
use super::times::{Fault, ProcessFault};

/// Quiet time around a fault of its own, in quarters of a lease. The dead are dead after one lease,
/// and after two if the memory server that judges has just been started.
const QUIET_QUARTERS: u32 = 10;
/// A slow link delays each piece by this much at most.
const SLOW_MAX: Duration = Duration::from_millis(50);
/// Faults of links, in the order of the draw.
const OF_LINKS: [ProcessFault; 4] =
    [ProcessFault::Cut, ProcessFault::HalfCut, ProcessFault::Slow, ProcessFault::EndConnections];
const OF_POSTS: [ProcessFault; 4] = [
    ProcessFault::CallCut,
    ProcessFault::CallHalfCut,
    ProcessFault::CallSlow,
    ProcessFault::CallEndConnections,
];
/// A process that could not work with the pool is started again after this time.
const RETRY_TIME: Duration = Duration::from_millis(100);

/// Faults of a round over a network.
#[derive(Debug, Default)]
pub(super) struct RoundFaults {
    /// All faults so far.
    pub(super) all: Vec<Fault>,
    under_way: Vec<UnderWay>,
    /// File for the owners of the keys, which a child looks up before the driver kills a process.
    looking: Option<PathBuf>,
    /// Processes that are to be started again.
    again: Vec<(Instant, ChildKind)>,
}

#[derive(Debug)]
struct UnderWay {
    /// Index in [`RoundFaults::all`].
    fault: usize,
    until: Instant,
    undo: Undo,
}

/// The end of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Undo {
    /// A stopped process, by its name, goes on.
    GoOn(String),
    /// A stopped memory server goes on.
    GoOnMemory(usize),
    /// A memory server is started again.
    StartMemory(usize),
    /// A memory server has been started again, and is to listen.
    AwaitMemory(usize),
    /// A link of a process, by its name, is restored.
    Restore(String, Way),
}

/// A fault to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    KillProcess,
    StopProcess,
    KillMemory,
    StopMemory,
    Link,
    Post,
}

impl Round<'_, '_> {
    /// Injects faults until the round's time is over, and ends them all.
    pub(super) fn disturb_network(&mut self, lease: Duration) -> Result<(), Trouble> {
        let quiet = lease * QUIET_QUARTERS / 4;
        let leases = self.run.config.network.as_ref().and_then(|network| network.recovery_leases);
        // The quiet time covers the time in which a recovery must end.
        let quiet = leases.map_or(quiet, |leases| quiet.max(lease.mul_f64(leases + 0.5)));
        let end = Instant::now() + self.run.config.round_time;
        let mut next = Instant::now() + if self.is_apart { lease } else { Duration::ZERO };
        loop {
            self.look(true)?;
            let now = Instant::now();
            if now >= end {
                break;
            }
            if self.is_apart {
                let is_quiet = self.faults.under_way.is_empty() && self.faults.looking.is_none();
                // Begin only faults that have time to end.
                let left = end.saturating_duration_since(now).checked_sub(quiet);
                if !is_quiet {
                    next = now + quiet;
                } else if let Some(left) = left.filter(|_| now >= next) {
                    let choice = self.choose_apart();
                    self.begin(choice, left)?;
                    next = now + quiet;
                }
            } else if now >= next {
                let choice = self.choose();
                self.begin(choice, Duration::MAX)?;
                let rate: f64 = self.rates().iter().map(|(_, rate)| rate).sum();
                next = now + self.pause(rate);
            }
            thread::sleep(LOOK_TIME);
        }
        self.put_right()
    }

    /// Handles due events: children that ended, memory servers that listen, faults that are over.
    fn look(&mut self, renew: bool) -> Result<(), Trouble> {
        self.check_interrupt()?;
        self.reap(renew)?;
        let Some(memory) = &mut self.run.memory else { return Ok(()) };
        let started = memory.look().map_err(|error| Trouble::Found(error.to_string()))?;
        let now = Instant::now();
        for started in started {
            let waits = Undo::AwaitMemory(started.server);
            let under_way = &mut self.faults.under_way;
            if let Some(at) = under_way.iter().position(|under_way| under_way.undo == waits) {
                let fault = &mut self.faults.all[under_way.swap_remove(at).fault];
                (fault.until_ns, fault.listens_ns) = (started.from_ns, Some(started.listens_ns));
            }
        }
        let over = |under_way: &UnderWay| under_way.until <= now;
        let over: Vec<UnderWay> = self.faults.under_way.extract_if(.., |open| over(open)).collect();
        for under_way in over {
            self.undo(under_way)?;
        }
        self.keep_dates(now);
        let again: Vec<_> = self.faults.again.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, kind) in again.into_iter().filter(|_| renew) {
            match kind {
                ChildKind::Tables => self.start_tables()?,
                _ => self.start_load()?,
            }
        }
        Ok(())
    }

    fn undo(&mut self, under_way: UnderWay) -> Result<(), Trouble> {
        let UnderWay { fault, undo, until } = under_way;
        self.faults.all[fault].until_ns = now_ns();
        match undo {
            Undo::GoOn(name) => {
                let stopped = self.children.iter_mut().find(|child| child.name == name);
                if let Some(child) = stopped.filter(|child| child.continue_at.is_some()) {
                    child.go_on();
                }
            }
            Undo::Restore(name, way) => {
                let links = self.children.iter().find(|child| child.name == name);
                if let Some(links) = links.and_then(|child| child.links.as_ref()) {
                    links.set(way, LinkState::Fair, None);
                }
            }
            Undo::GoOnMemory(server) => {
                if let Some(memory) = &mut self.run.memory {
                    memory.go_on(server);
                }
            }
            Undo::StartMemory(server) => {
                if let Some(memory) = &mut self.run.memory {
                    let started = memory.start_again(server);
                    started.map_err(|source| self.io(source))?;
                }
                let until = until + END_TIME_MAX;
                let undo = Undo::AwaitMemory(server);
                self.faults.under_way.push(UnderWay { fault, until, undo });
            }
            Undo::AwaitMemory(server) => {
                return Err(Trouble::Found(format!(
                    "memory server {server} does not listen {} s after its new start",
                    END_TIME_MAX.as_secs()
                )));
            }
        }
        Ok(())
    }

    /// Ends all faults under way, and waits until the memory servers listen.
    fn put_right(&mut self) -> Result<(), Trouble> {
        self.faults.again.clear();
        for under_way in &mut self.faults.under_way {
            if !matches!(under_way.undo, Undo::AwaitMemory(_)) {
                under_way.until = Instant::now();
            }
        }
        while !self.faults.under_way.is_empty() || self.faults.looking.is_some() {
            self.look(false)?;
            thread::sleep(LOOK_TIME);
        }
        Ok(())
    }

    fn rates(&self) -> [(Choice, f64); 6] {
        let config = self.run.config;
        let network = config.network.as_ref();
        let memory = network.map_or(0.0, |network| network.memory_faults_per_second) / 2.0;
        let links = network.map_or(0.0, |network| network.link_faults_per_second);
        [
            (Choice::KillProcess, config.kills_per_second),
            (Choice::StopProcess, config.stops_per_second),
            (Choice::KillMemory, memory),
            (Choice::StopMemory, memory),
            (Choice::Link, links),
            (Choice::Post, config.post_rate()),
        ]
    }

    /// Draws a fault by the rates; `None` if all are 0.
    fn choose(&mut self) -> Option<Choice> {
        let rates = self.rates();
        let mut left = self.run.rng.f64() * rates.iter().map(|(_, rate)| rate).sum::<f64>();
        let chosen = rates.into_iter().find(|(_, rate)| {
            left -= rate;
            left < 0.0
        });
        chosen.map(|(choice, _)| choice)
    }

    /// The same, but each third fault is a death of a compute server, and each third one of a
    /// memory server. So a short run has times of both.
    fn choose_apart(&mut self) -> Option<Choice> {
        let wanted = match self.run.apart % 3 {
            0 => Some(Choice::KillProcess),
            1 => Some(Choice::KillMemory),
            _ => None,
        };
        self.run.apart += 1;
        let rates = self.rates();
        let may_be =
            |wanted: &Choice| rates.iter().any(|(what, rate)| what == wanted && *rate > 0.0);
        wanted.filter(may_be).or_else(|| self.choose())
    }

    /// Begins the fault, for `longest` at most.
    fn begin(&mut self, choice: Option<Choice>, longest: Duration) -> Result<(), Trouble> {
        let Some(choice) = choice else { return Ok(()) };
        match choice {
            Choice::KillProcess if self.is_apart && self.run.config.engine.traits().owned => {
                return self.look_for_owners();
            }
            Choice::KillProcess if self.is_apart => self.kill_client(&[]),
            Choice::KillProcess if self.run.rng.u32(..4) == 0 => return self.start_opener(),
            Choice::KillProcess => {
                if let Some(killed) = self.kill_somebody() {
                    self.note(ProcessFault::KillCompute, killed, None);
                }
            }
            Choice::StopProcess => {
                let part = self.run.rng.f64().powi(2);
                let time = self.run.config.stop_time_max.mul_f64(part).min(longest);
                let until = Instant::now() + time;
                if let Some(name) = self.stop_somebody(until) {
                    let fault = self.note(ProcessFault::StopCompute, name.clone(), None);
                    let undo = Undo::GoOn(name);
                    self.faults.under_way.push(UnderWay { fault, until, undo });
                }
            }
            Choice::KillMemory | Choice::StopMemory => self.strike_memory(choice, longest),
            Choice::Link => self.strike_link(longest),
            Choice::Post => self.strike_post(longest),
        }
        Ok(())
    }

    fn outage(&mut self, longest: Duration) -> Instant {
        let most = self.run.config.network.as_ref().map(|network| network.outage_time_max);
        let part = self.run.rng.f64();
        Instant::now() + most.unwrap_or_default().mul_f64(part).min(longest)
    }

    fn strike_memory(&mut self, choice: Choice, longest: Duration) {
        let until = self.outage(longest);
        let is_struck = |server: usize| {
            self.faults.under_way.iter().any(|under_way| match under_way.undo {
                Undo::GoOnMemory(other) | Undo::StartMemory(other) | Undo::AwaitMemory(other) => {
                    other == server
                }
                Undo::GoOn(_) | Undo::Restore(..) => false,
            })
        };
        let Some(memory) = &mut self.run.memory else { return };
        let server = self.run.rng.usize(..memory.count());
        if is_struck(server) || !memory.is_there(server) {
            return;
        }
        let (what, undo) = match choice {
            Choice::KillMemory => {
                memory.kill(server);
                (ProcessFault::KillMemory, Undo::StartMemory(server))
            }
            _ => {
                memory.stop(server, until);
                (ProcessFault::StopMemory, Undo::GoOnMemory(server))
            }
        };
        let fault = self.note(what, format!("memory server {server}"), None);
        self.faults.under_way.push(UnderWay { fault, until, undo });
    }

    fn strike_link(&mut self, longest: Duration) {
        let until = self.outage(longest);
        let servers = self.run.memory.as_ref().map_or(1, |memory| memory.count());
        let server = self.run.rng.usize(..servers);
        let at = self.run.rng.usize(..self.children.len().max(1));
        let Some(child) = self.children.get(at) else { return };
        let who = format!("{} to memory server {server}", child.name);
        self.strike(at, Way::Memory(server), None, who, until);
    }

    /// Strikes the links of all others to a client, or that of one other, over which they ask it
    /// for keys.
    fn strike_post(&mut self, longest: Duration) {
        let until = self.outage(longest);
        let is_client = |child: &Child| child.kind == ChildKind::Client && !child.is_killed();
        let clients: Vec<usize> =
            (0..self.children.len()).filter(|at| is_client(&self.children[*at])).collect();
        let one_of = |rng: &mut fastrand::Rng| rng.usize(..clients.len().max(1));
        let (asked, asks) = (one_of(&mut self.run.rng), one_of(&mut self.run.rng));
        let is_all = asks == asked || self.run.rng.bool();
        let (Some(&at), Some(&asks)) = (clients.get(asked), clients.get(asks)) else { return };
        let name = |at: usize| &self.children[at].name;
        let (callers, from) = if is_all {
            (None, "all")
        } else {
            (Some(owners::incarnations(&self.names_path(name(asks)))), &**name(asks))
        };
        let who = format!("{from} to {}", name(at));
        self.strike(at, Way::Post, callers, who, until);
    }

    /// Begins a fault of a link of that child for these callers, unless the link has one already.
    fn strike(&mut self, at: usize, way: Way, callers: Callers, who: String, until: Instant) {
        let kind = self.run.rng.usize(..OF_LINKS.len());
        let (is_way, part) = (self.run.rng.bool(), self.run.rng.f64());
        let Some(child) = self.children.get(at).filter(|child| !child.is_killed()) else { return };
        let Some(links) = &child.links else { return };
        let undo = Undo::Restore(child.name.clone(), way);
        if self.faults.under_way.iter().any(|under_way| under_way.undo == undo) {
            return;
        }
        let what = if way == Way::Post { OF_POSTS } else { OF_LINKS }[kind];
        let link_state = match OF_LINKS[kind] {
            ProcessFault::Cut => LinkState::Cut { requests: true, replies: true },
            ProcessFault::HalfCut => LinkState::Cut { requests: is_way, replies: !is_way },
            ProcessFault::Slow => LinkState::Slow(SLOW_MAX.mul_f64(part)),
            _ => {
                links.end_connections(way, &callers);
                self.note(what, who, None);
                return;
            }
        };
        links.set(way, link_state, callers);
        let fault = self.note(what, who, None);
        self.faults.under_way.push(UnderWay { fault, until, undo });
    }

    fn note(&mut self, what: ProcessFault, who: String, had: Option<Ranges>) -> usize {
        let (now, is_alone) = (now_ns(), self.is_apart);
        self.faults.all.push(Fault {
            what,
            who,
            from_ns: now,
            until_ns: now,
            listens_ns: None,
            had,
            is_alone,
        });
        self.faults.all.len() - 1
    }

    /// Starts a child that looks up the owners of the keys, before a kill.
    fn look_for_owners(&mut self) -> Result<(), Trouble> {
        let name = self.name("owners");
        let owners = self.folder.join(format!("{name}.json"));
        let role = Role::Owners(OwnersSpec {
            pool: self.direct(),
            table: table_name(self.shape).to_owned(),
            owners: owners.clone(),
        });
        self.faults.looking = Some(owners);
        self.start(name, ChildKind::Owners, role, None)
    }

    /// Handles a child that has ended in a way of its own; returns true if nothing else is left to
    /// do.
    pub(super) fn has_looked(&mut self, child: &Child, ended: Ended, renew: bool) -> bool {
        match child.kind {
            ChildKind::Owners => {
                let owned = self.faults.looking.take().map(|path| owners::read(&path));
                if renew {
                    self.kill_client(&owned.unwrap_or_default());
                }
                true
            }
            // It could not work with the pool, as may happen for a while.
            ChildKind::Tables | ChildKind::Load(_) if renew && ended == Ended::NotStarted => {
                self.faults.again.push((Instant::now() + RETRY_TIME, child.kind.clone()));
                true
            }
            _ => false,
        }
    }

    /// Kills the client that owns most keys, if the owners are known, or else any.
    fn kill_client(&mut self, owned: &[Owned]) {
        let keys = self.keys();
        let chance = self.run.rng.u64(..);
        let has = |child: &Child| {
            let names = owners::names(&self.names_path(&child.name));
            let had = names.last().map(|name| Ranges::of(name, owned)).unwrap_or_default();
            (keys.iter().filter(|key| had.contains(key)).count(), had)
        };
        let may_die = |child: &&mut Child| child.kind == ChildKind::Client && !child.is_killed();
        let counted = self.children.iter().map(has).collect::<Vec<_>>();
        let clients = self.children.iter_mut().zip(counted).filter(|(child, _)| may_die(child));
        let chosen = (0_u64..).zip(clients).max_by_key(|(number, (_, (count, _)))| {
            (*count, number.wrapping_add(1).wrapping_mul(chance))
        });
        let Some((_, (child, (_, had)))) = chosen else { return };
        child.kill();
        count_kill(self.counts, &child.kind);
        let name = child.name.clone();
        let had = (!owned.is_empty()).then_some(had);
        self.note(ProcessFault::KillCompute, name, had);
    }
}
