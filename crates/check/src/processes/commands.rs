//! Short commands: runs commands of the program beside the clients of a round, and judges their times.
//!
//! Some loops run `farleaf put`, `get` and `del`, one after the other, on keys of their own in the table of the clients.
//! Each command opens the pool, does one operation and leaves. The driver kills some of them at a random moment of
//! their short life. Calls and answers go into a history file of the round, so that the checker judges them with those
//! of the clients: an acknowledged `put` is read back.
//!
//! A command may take its time if another process died or was stopped meanwhile. [`Hits`] has these moments, and
//! [`judge`] compares: a command must end within a time after the last of them that it met. Rounds whose faults happen
//! apart kill no commands, because their deaths would be further faults.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::child::{Child, ChildKind};
use super::log::{Log, now_ns};
use super::recoveries::{self, Recoveries};
use super::round::{Round, Trouble, table_name};
use super::spec::Role;
use super::values::Shape;
use crate::history::{Answer, HistoryError, Op, OperationNumber};

/// Keys of each loop: few, so that commands read what others wrote.
pub(super) const KEYS_EACH: u32 = 4;
/// Longest pause between two commands of a loop.
const PAUSE_MS_MAX: u64 = 200;
/// One in this many commands is killed, the second of them first.
const KILLED_ONE_IN: u32 = 5;
/// Life of a command before the first has ended.
const LIFE_FIRST: Duration = Duration::from_millis(80);
/// Bytes of a value, at most. In hexadecimal twice as many go over the command line.
const VALUE_BYTES_MAX: f64 = 20_000.0;
/// Late or failed commands that the finding names.
const TOLD_MAX: usize = 5;

/// Short commands of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CommandsReport {
    /// Commands run to their end, or killed.
    pub run: u64,
    /// Commands of these killed.
    pub killed: u64,
    /// Commands of these that ended by themselves with an unknown outcome.
    pub unknown: u64,
    /// Commands of these that could not reach the pool or the owner of their key, or found the pool full.
    pub unavailable: u64,
    /// The longest command that was not killed, in milliseconds.
    pub longest_ms: f64,
    /// The longest time of such a command after its start, or after the last death or end of a stop that it met, if
    /// that was later; in milliseconds.
    pub longest_beyond_ms: f64,
    /// The time allowed for that, in milliseconds. `None`: no limit.
    pub within_ms: Option<f64>,
    /// Recoveries that clients began, as far as they lived to note it.
    pub recoveries: u64,
    /// Recoveries of these given up while their process was at work.
    pub recoveries_in_vain: u64,
    /// Times that two clients recovered at once.
    pub recoveries_at_once: u64,
}

impl CommandsReport {
    /// The report of a run that has not begun.
    pub(super) fn of(within: Option<Duration>) -> Self {
        let within_ms = within.map(|within| within.as_secs_f64() * 1e3);
        CommandsReport { within_ms, ..Self::default() }
    }
}

/// Moments at which processes were killed, and spans for which they were stopped, by the clock of the histories.
#[derive(Clone, Debug, Default)]
pub(super) struct Hits {
    deaths_ns: Vec<u64>,
    /// A stop that goes on ends at `u64::MAX`.
    stops_ns: Vec<(u64, u64)>,
}

impl Hits {
    pub(super) fn kill(&mut self) {
        self.deaths_ns.push(now_ns());
        self.go_on();
    }

    pub(super) fn stop(&mut self) {
        self.stops_ns.push((now_ns(), u64::MAX));
    }

    pub(super) fn go_on(&mut self) {
        if let Some((_, until_ns)) = self.stops_ns.last_mut() {
            *until_ns = now_ns().min(*until_ns);
        }
    }

    fn add(&mut self, other: &Hits) {
        self.deaths_ns.extend(&other.deaths_ns);
        self.stops_ns.extend(&other.stops_ns);
    }

    /// The last moment up to `to_ns` at which a process was killed or was still stopped.
    fn last(&self, to_ns: u64) -> Option<u64> {
        let deaths = self.deaths_ns.iter().copied().filter(|death_ns| *death_ns <= to_ns);
        let stops = self.stops_ns.iter().filter(|(from_ns, _)| *from_ns <= to_ns);
        deaths.chain(stops.map(|(_, until_ns)| to_ns.min(*until_ns))).max()
    }
}

/// Way in which a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommandEnd {
    Answered,
    /// The driver killed it.
    Killed,
    /// It reported a change with an unknown outcome.
    Unknown,
    /// It could not reach the pool or an owner.
    Unavailable,
    /// It found the pool full.
    Full,
}

/// A command that has ended.
#[derive(Clone, Debug)]
struct Ran {
    name: String,
    from_ns: u64,
    to_ns: u64,
    end: CommandEnd,
    said: String,
}

/// The command's time after its start, or after the last death or end of a stop that it met.
fn beyond_ms(ran: &Ran, hits: &Hits) -> f64 {
    let met_ns = hits.last(ran.to_ns).map_or(ran.from_ns, |met_ns| met_ns.max(ran.from_ns));
    (ran.to_ns - met_ns) as f64 / 1e6
}

/// Checks that the command ended within that time, and failed only because of a death or a stop.
///
/// # Errors
/// The fault of the command.
fn judge(ran: &Ran, hits: &Hits, within: Duration) -> Result<(), String> {
    let Ran { name, from_ns, to_ns, end, said } = ran;
    let within_ms = within.as_secs_f64() * 1e3;
    // A death counts as met for as long as it may be in force: its lock, for one, is held on.
    let since_ns = from_ns.saturating_sub(within.as_nanos() as u64);
    let is_met = hits.last(*to_ns).is_some_and(|met_ns| met_ns >= since_ns);
    match end {
        CommandEnd::Killed => return Ok(()),
        CommandEnd::Full => return Err(format!("{name} found the pool full: {said}")),
        CommandEnd::Unknown | CommandEnd::Unavailable if !is_met => {
            let how = if *end == CommandEnd::Unknown { "had an unknown outcome" } else { "failed" };
            return Err(format!(
                "{name} {how}, though nobody was killed or stopped within {within_ms:.0} ms before: {said}"
            ));
        }
        _ => {}
    }
    let (beyond_ms, all_ms) = (beyond_ms(ran, hits), (to_ns - from_ns) as f64 / 1e6);
    if beyond_ms <= within_ms {
        return Ok(());
    }
    Err(format!(
        "{name} took {all_ms:.0} ms, and {beyond_ms:.0} ms of them after the last death or stop that it met, allowed \
         are {within_ms:.0} ms"
    ))
}

/// Short commands of a round.
#[derive(Debug)]
pub(super) struct Commands {
    loops: Vec<Loop>,
    log: Option<Log>,
    /// The history file.
    pub(super) path: PathBuf,
    rng: fastrand::Rng,
    ran: Vec<Ran>,
    /// Kills and stops of all processes of the round.
    hits: Hits,
    /// Time that commands take about now.
    life: Duration,
    /// Files in which clients note their recoveries.
    pub(super) notes: Vec<PathBuf>,
}

#[derive(Debug)]
struct Loop {
    /// Its number in the history.
    client: u32,
    sequence: u32,
    next_at: Instant,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    call: Op,
    number: OperationNumber,
    from_ns: u64,
    output: PathBuf,
}

impl Commands {
    /// Loops that have numbers from `client` on in the history.
    pub(super) fn new(count: u32, client: u32, path: PathBuf, seed: u64) -> Self {
        let next_at = Instant::now();
        let one = |number| Loop { client: client + number, sequence: 0, next_at, running: None };
        Commands {
            loops: (0..count).map(one).collect(),
            log: None,
            path,
            rng: fastrand::Rng::with_seed(seed ^ u64::from(client) << 32),
            ran: Vec::new(),
            hits: Hits::default(),
            life: LIFE_FIRST,
            notes: Vec::new(),
        }
    }

    /// Records the kill and the stops of a child that has ended.
    pub(super) fn note_hits(&mut self, child: &Child) {
        self.hits.add(&child.hits);
    }

    /// The names of commands at work.
    pub(super) fn at_work(&self) -> impl Iterator<Item = &str> {
        self.loops.iter().filter_map(|one| Some(&*one.running.as_ref()?.child.name))
    }

    /// Draws an operation of the loop on one of its keys, of which the first has that number.
    fn draw(&mut self, at: usize, shape: Shape, first: u32) -> Op {
        let key = shape.key(first + at as u32 * KEYS_EACH + self.rng.u32(..KEYS_EACH));
        let bytes = self.rng.f64().powi(6) * VALUE_BYTES_MAX;
        let one = &mut self.loops[at];
        one.sequence += 1;
        let value = || shape.stamp(one.client, one.sequence, bytes as u32);
        match self.rng.u32(..10) {
            0..=3 => Op::Get { key },
            4..=6 => Op::Upsert { key, value: value() },
            7 | 8 => Op::Insert { key, value: value() },
            _ => Op::Remove { key },
        }
    }

    /// Judges the commands that have ended, and adds them to the report.
    fn judge(
        &self,
        recovered: &Recoveries,
        within: Option<Duration>,
        report: &mut CommandsReport,
    ) -> Result<(), String> {
        let mut found = Vec::new();
        for ran in &self.ran {
            report.run += 1;
            match ran.end {
                CommandEnd::Answered => {}
                CommandEnd::Killed => {
                    report.killed += 1;
                    continue;
                }
                CommandEnd::Unknown => report.unknown += 1,
                CommandEnd::Unavailable | CommandEnd::Full => report.unavailable += 1,
            }
            report.longest_ms = report.longest_ms.max((ran.to_ns - ran.from_ns) as f64 / 1e6);
            report.longest_beyond_ms = report.longest_beyond_ms.max(beyond_ms(ran, &self.hits));
            found.extend(within.and_then(|within| judge(ran, &self.hits, within).err()));
        }
        report.recoveries += recovered.begun;
        report.recoveries_in_vain += recovered.in_vain;
        report.recoveries_at_once += recovered.at_once;
        if within.is_some() && recovered.in_vain > 0 {
            found.push(format!("{} recoveries were in vain", recovered.in_vain));
        }
        if within.is_some() && recovered.at_once > 0 {
            found.push(format!("{} times two processes recovered at once", recovered.at_once));
        }
        let more = found.len().saturating_sub(TOLD_MAX);
        found.truncate(TOLD_MAX);
        if more > 0 {
            found.push(format!("and {more} more"));
        }
        if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
    }
}

impl Round<'_, '_> {
    /// Handles commands that have ended, kills those whose time has come, and starts others if `renew` says so.
    pub(super) fn run_commands(&mut self, renew: bool) -> Result<(), Trouble> {
        for at in 0..self.commands.loops.len() {
            if let Some(running) = self.commands.loops[at].running.take() {
                self.look_at_command(at, running)?;
            } else if renew && self.commands.loops[at].next_at <= Instant::now() {
                self.start_command(at)?;
            }
        }
        Ok(())
    }

    fn start_command(&mut self, at: usize) -> Result<(), Trouble> {
        let shape = self.shape;
        let call = self.commands.draw(at, shape, self.run.config.keys);
        let (pool, links) = self.way()?;
        let name = self.name("command");
        let role = Role::Command(words(&call, &pool, shape));
        let output = self.folder.join(format!("{name}.out"));
        let client = self.commands.loops[at].client;
        let path = self.commands.path.clone();
        let log = match self.commands.log.take() {
            Some(log) => Ok(log),
            None => Log::create(&path),
        };
        let log = log.map_err(|error| self.cannot_note(error))?;
        let number = self.commands.log.insert(log).begin(client, &call);
        let number = number.map_err(|error| self.cannot_note(error))?;
        let from_ns = now_ns();
        let (launcher, kind) = (self.run.launcher, ChildKind::Command);
        let child = Child::start(launcher, &self.folder, name, kind, role, Some(&output));
        let mut child = child.map_err(|source| self.io(source))?;
        child.links = links;
        let begun: u32 = self.commands.loops.iter().map(|one| one.sequence).sum();
        if !self.is_apart && begun % KILLED_ONE_IN == 2 {
            let life = self.commands.life.mul_f64(self.commands.rng.f64());
            child.kill_at = Some(Instant::now() + life);
        }
        self.commands.loops[at].running = Some(Running { child, call, number, from_ns, output });
        Ok(())
    }

    /// Handles the end of a command, or puts it back into its loop.
    fn look_at_command(&mut self, at: usize, mut running: Running) -> Result<(), Trouble> {
        let child = &mut running.child;
        let Some(status) = child.exit().map_err(|source| self.io(source))? else {
            if child.kill_at.is_some_and(|kill_at| kill_at <= Instant::now()) {
                child.kill_at = None;
                child.kill();
            }
            self.commands.loops[at].running = Some(running);
            return Ok(());
        };
        let to_ns = now_ns();
        let Running { child, call, number, from_ns, output } = running;
        self.commands.note_hits(&child);
        let said = child.last_errors();
        let failed = |why: &str| {
            let shown = call.key().unwrap_or_default().escape_ascii();
            let what = words(&call, "POOL", self.shape)[0].clone();
            Trouble::Found(format!("{} ({what} of key {shown}) {why}: {said}", child.name))
        };
        let end = match status.code() {
            Some(0 | 1) => CommandEnd::Answered,
            None if child.is_killed() => CommandEnd::Killed,
            Some(3) => CommandEnd::Unavailable,
            Some(4) => CommandEnd::Full,
            Some(6) => CommandEnd::Unknown,
            _ => return Err(failed(&format!("ended with {status}"))),
        };
        let answer = match (end, &call) {
            (CommandEnd::Answered, _) => {
                let told = fs::read_to_string(&output).map_err(|source| self.io(source))?;
                let is_done = status.success();
                Some(answer(&call, self.shape, is_done, &told, &said).map_err(|why| failed(&why))?)
            }
            // Changes may have been made before the command failed to leave the pool.
            (CommandEnd::Unavailable, Op::Get { .. }) => Some(Answer::Nothing),
            _ => None,
        };
        if let (Some(log), Some(answer)) = (&mut self.commands.log, &answer) {
            let noted = log.end(number, answer);
            noted.map_err(|error| self.cannot_note(error))?;
        }
        if end == CommandEnd::Answered {
            let life = Duration::from_nanos(to_ns - from_ns);
            self.commands.life = (self.commands.life * 3 + life) / 4;
        }
        let pause = Duration::from_millis(self.commands.rng.u64(..PAUSE_MS_MAX));
        self.commands.loops[at].next_at = Instant::now() + pause;
        let what = words(&call, "POOL", self.shape)[0].clone();
        let name = format!("{} ({what})", child.name);
        self.commands.ran.push(Ran { name, from_ns, to_ns, end, said });
        Ok(())
    }

    fn cannot_note(&self, error: HistoryError) -> Trouble {
        match error {
            HistoryError::Io(source) => self.io(source),
            error => Trouble::Found(format!("cannot write the history of commands: {error}")),
        }
    }

    /// Adds the commands of the round to the report, and judges them if a limit is set.
    ///
    /// # Errors
    /// The commands that were late or failed, and the recoveries in vain.
    pub(super) fn judge_commands(&self, report: &mut CommandsReport) -> Result<(), String> {
        let recovered = recoveries::read(&self.commands.notes);
        self.commands.judge(&recovered, self.run.config.commands_within, report)
    }
}

/// The words of the command that makes that call.
fn words(call: &Op, pool: &str, shape: Shape) -> Vec<String> {
    let (name, value, options) = match call {
        Op::Get { .. } => ("get", None, vec!["--hex"]),
        Op::Remove { .. } => ("del", None, vec!["--hex"]),
        Op::Insert { value, .. } => ("put", Some(value), vec!["--hex", "--if-absent"]),
        Op::Upsert { value, .. } => ("put", Some(value), vec!["--hex", "--verbose"]),
        other => unreachable!("commands make no such call: {other:?}"),
    };
    let key = hex(call.key().unwrap_or_default());
    let mut words = vec![name.to_owned(), pool.to_owned(), table_name(shape).to_owned(), key];
    words.extend(value.map(|value| hex(&shape.value(value))));
    words.extend(options.into_iter().map(str::to_owned));
    words
}

/// The answer that a command gave by its exit code, its output and its messages.
fn answer(
    call: &Op,
    shape: Shape,
    is_done: bool,
    told: &str,
    said: &str,
) -> Result<Answer, String> {
    match call {
        Op::Get { .. } if is_done => {
            let value = bytes_of_hex(told.trim()).ok_or_else(|| format!("printed {told:?}"))?;
            Ok(Answer::Value(Some(shape.stamp_of(&value)?)))
        }
        Op::Get { .. } => Ok(Answer::Value(None)),
        Op::Upsert { .. } => match said.lines().map(str::trim).find_map(|line| match line {
            "farleaf: added" => Some(true),
            "farleaf: changed" => Some(false),
            _ => None,
        }) {
            Some(is_new) if is_done => Ok(Answer::Flag(is_new)),
            _ => Err("said neither that it added nor that it changed the key".to_owned()),
        },
        _ => Ok(Answer::Flag(is_done)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MS: u64 = 1_000_000;
    const WITHIN: Duration = Duration::from_millis(300);

    fn ran(from_ms: u64, to_ms: u64, end: CommandEnd) -> Ran {
        let (name, said) = ("command-1 (put)".to_owned(), "cannot reach it".to_owned());
        Ran { name, from_ns: from_ms * MS, to_ns: to_ms * MS, end, said }
    }

    fn hits(deaths_ms: &[u64], stops_ms: &[(u64, u64)]) -> Hits {
        Hits {
            deaths_ns: deaths_ms.iter().map(|at| at * MS).collect(),
            stops_ns: stops_ms.iter().map(|(from, until)| (from * MS, until * MS)).collect(),
        }
    }

    #[test]
    fn a_slow_command_is_found() {
        let slow = ran(1000, 1400, CommandEnd::Answered);
        let found = judge(&slow, &Hits::default(), WITHIN).unwrap_err();
        assert!(found.contains("took 400 ms, and 400 ms of them after"), "{found}");
        // A death before it, or after it, excuses nothing; one 290 ms before its end does.
        assert!(judge(&slow, &hits(&[900, 1401], &[]), WITHIN).is_err());
        assert_eq!(judge(&slow, &hits(&[1110], &[]), WITHIN), Ok(()));
        let found = judge(&slow, &hits(&[1050], &[]), WITHIN).unwrap_err();
        assert!(found.contains("took 400 ms, and 350 ms of them after"), "{found}");
        // So do a stop that ended then, and one that goes on.
        assert_eq!(judge(&slow, &hits(&[], &[(500, 1110)]), WITHIN), Ok(()));
        assert_eq!(judge(&slow, &hits(&[], &[(500, u64::MAX / MS)]), WITHIN), Ok(()));
        assert!(judge(&slow, &hits(&[], &[(500, 1050), (1401, 1500)]), WITHIN).is_err());
    }

    #[test]
    fn a_killed_command_is_no_fault_and_no_time() {
        let mut commands = Commands::new(1, 0, PathBuf::new(), 1);
        commands.ran = vec![ran(0, 9000, CommandEnd::Killed), ran(0, 200, CommandEnd::Answered)];
        let mut report = CommandsReport::of(Some(WITHIN));
        let judged = commands.judge(&Recoveries::default(), Some(WITHIN), &mut report);
        assert_eq!(judged, Ok(()));
        assert_eq!((report.run, report.killed, report.longest_ms), (2, 1, 200.0));
        commands.ran.push(ran(0, 500, CommandEnd::Answered));
        let judged = commands.judge(&Recoveries::default(), Some(WITHIN), &mut report);
        assert!(judged.unwrap_err().contains("allowed are 300 ms"));
        let told = commands.judge(&Recoveries::default(), None, &mut report);
        assert_eq!((told, report.longest_beyond_ms), (Ok(()), 500.0), "without a limit");
    }

    #[test]
    fn a_failure_needs_a_death_under_it() {
        for end in [CommandEnd::Unknown, CommandEnd::Unavailable] {
            let failed = ran(1000, 1100, end);
            assert!(judge(&failed, &Hits::default(), WITHIN).is_err());
            assert!(judge(&failed, &hits(&[600], &[]), WITHIN).is_err(), "long over");
            assert_eq!(judge(&failed, &hits(&[800], &[]), WITHIN), Ok(()));
            assert_eq!(judge(&failed, &hits(&[], &[(200, 1050)]), WITHIN), Ok(()));
        }
        let full = ran(1000, 1100, CommandEnd::Full);
        assert!(judge(&full, &hits(&[1050], &[]), WITHIN).is_err());
    }

    #[test]
    fn recoveries_in_vain_or_at_once_fail_a_judged_run() {
        let commands = Commands::new(0, 0, PathBuf::new(), 1);
        for (in_vain, at_once, why) in [(1, 0, "in vain"), (0, 1, "at once")] {
            let recovered = Recoveries { begun: 2, in_vain, at_once };
            let mut report = CommandsReport::default();
            let judged = commands.judge(&recovered, Some(WITHIN), &mut report);
            assert!(judged.unwrap_err().contains(why));
            assert_eq!(commands.judge(&recovered, None, &mut report), Ok(()));
        }
    }

    #[test]
    fn a_command_answers_by_its_code_and_its_words() {
        let (shape, key) = (Shape::Words, vec![0, 0xfe]);
        let value = shape.stamp(3, 4, 0);
        let get = Op::Get { key: key.clone() };
        let put = Op::Upsert { key: key.clone(), value: value.clone() };
        let put_words = words(&put, "POOL", shape).join(" ");
        assert_eq!(put_words, "put POOL words 00fe 0300000004000000 --hex --verbose");
        let told = answer(&get, shape, true, "0300000004000000\n", "");
        assert_eq!(told, Ok(Answer::Value(Some(value))));
        assert_eq!(answer(&get, shape, false, "", ""), Ok(Answer::Value(None)));
        assert!(answer(&get, shape, true, "03000\n", "").unwrap_err().contains("printed"));
        assert!(answer(&get, shape, true, "0300\n", "").unwrap_err().contains("wrong length"));
        let said = "farleaf: opened\nfarleaf: changed";
        assert_eq!(answer(&put, shape, true, "", said), Ok(Answer::Flag(false)));
        assert!(answer(&put, shape, true, "", "").is_err());
        let remove = Op::Remove { key };
        assert_eq!(answer(&remove, shape, false, "", ""), Ok(Answer::Flag(false)));
    }
}
