//! Process tests: run real processes on one pool, and kill, stop and continue them at random.
//!
//! The *driver* ([`run`]) makes a pool with small nodes and plays rounds. In a round, child
//! processes do random operations on few keys and write each call and its answer to files that
//! survive them. Others make and drop tables, load records, open the pool, make pools. The driver
//! kills (`kill -9`), stops (SIGSTOP) and continues all of these at seeded moments and starts new
//! ones in their place. Then all processes end, some by a kill, and one or two die during the
//! recovery. At last a *judge* opens the pool: it recovers and verifies every node. It accounts for
//! all memory before and after dropping what is left over, and reads the table, which ends the
//! history. The driver merges the history files and checks them.
//!
//! - **INV-PROC-1** A line about an operation is in the page cache before the operation begins, and one
//!   about its answer after it has ended; both with times of one clock. So an operation that the table
//!   shows is in the history, and its time spans the moment at which it took effect.
//! - **INV-PROC-2** Every value is written once and names its writer, and its bytes show damage.
//! - **INV-PROC-3** No child outlives the driver, however that ends: the kernel kills children whose
//!   parent dies.
//!
//! Beside all these run short commands, as users run them ([`CommandsReport`]). Some are killed in their short life, and
//! the times of the others are compared with the deaths and stops that they met.
//!
//! A stopped process is alive: on shared memory nobody may take its locks. The others wait for it
//! or give up with an error that says so, and when it goes on, it goes on correctly.
//!
//! Or the pool is one of memory servers ([`Network`]): processes of the run over files, which the
//! driver kills and starts again, stops and continues. Every process reaches them through links of
//! its own, a proxy in the driver, which cuts, slows and restores them. If keys have owners,
//! clients ask each other over such links: each advertises the address of a link that leads to it.
//! A process that is silent for a lease may be declared dead there: a client that learns this opens
//! the pool anew and goes on. From the histories the report derives the times until all work goes
//! on ([`NetworkReport`]).
//!
//! - **INV-PROC-4** Judge and recovery begin when every memory server runs again and every dead
//!   process counts as dead. Nothing else may be needed for the pool to be whole.
//!
//! With gateways, Redis's clients work beside the others: children that send commands to gateways, `farleaf redis`
//! processes that are killed and stopped as all are. A command whose connection broke has no answer.
//!
//! The seed decides the actions; real processes do not replay exactly.

mod calls;
mod child;
mod client;
mod commands;
mod config;
mod faults;
mod judge;
mod links;
mod loads;
mod log;
mod memory;
mod owners;
mod recoveries;
mod resp;
mod round;
mod spec;
mod tables;
mod times;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use std::{fs, io, process};

use farleaf::{Farleaf, KeyFormat, Settings, TableOptions, ValueFormat};

pub use self::commands::CommandsReport;
pub use self::config::{
    Config, Counts, Launcher, Network, ProcessesError, ProcessesReport, RoundFailure,
};
use self::memory::Memory;
use self::round::{Round, Run, Trouble, records_path, table_name};
pub use self::spec::{ChildEnd, run_child};
pub use self::times::{FaultReport, NetworkReport, ProcessFault, Times};
use self::values::Shape;
use crate::history::{Answer, Event, History, HistoryError, merge};
use crate::linear;

/// Small blocks: every process has some of each size of objects, and many have the pool open.
const BLOCK_BYTES: u64 = 256 << 10;

/// Content of a table, by stamps.
type Content = Vec<(Vec<u8>, Vec<u8>)>;

/// Plays rounds until the time is over, a check fails, or `stop` is set (checked every few
/// milliseconds). Calls `note` after every round with the counts of all rounds so far.
///
/// Starts processes and waits for all of them; the calling thread is the one whose end kills them.
///
/// # Errors
/// [`ProcessesError`] if the run could not be made. A failed check is no error:
/// [`ProcessesReport::failure`].
pub fn run(
    config: &Config,
    launcher: &Launcher,
    stop: &AtomicBool,
    note: &mut dyn FnMut(&ProcessesReport),
) -> Result<ProcessesReport, ProcessesError> {
    config.check()?;
    let begin = Instant::now();
    let folder = make_folder(config)?;
    let mut report = ProcessesReport {
        seed: config.seed,
        rounds: 0,
        counts: Counts::default(),
        commands: CommandsReport::of(config.commands_within),
        network: config.network.as_ref().map(NetworkReport::of),
        seconds: 0.0,
        check_seconds: 0.0,
        is_interrupted: false,
        folder: Some(folder.clone()),
        failure: None,
    };
    let played = play(config, launcher, stop, &folder, begin, &mut report, note);
    report.seconds = begin.elapsed().as_secs_f64();
    let is_kept = config.keep || report.failure.is_some();
    if !is_kept {
        fs::remove_dir_all(&folder).map_err(|source| io_error("remove", &folder, source))?;
        report.folder = None;
    }
    played.map(|()| report)
}

fn play(
    config: &Config,
    launcher: &Launcher,
    stop: &AtomicBool,
    folder: &Path,
    begin: Instant,
    report: &mut ProcessesReport,
    note: &mut dyn FnMut(&ProcessesReport),
) -> Result<(), ProcessesError> {
    let records = records_path(folder);
    loads::write(&records).map_err(|source| io_error("write", &records, source))?;
    let servers = folder.join("memory");
    let start = |network| Memory::start(config, network, launcher, &servers, stop);
    let memory = config.network.as_ref().map(start).transpose();
    let memory = memory.map_err(|source| io_error("start memory servers in", &servers, source))?;
    if stop.load(Ordering::Relaxed) {
        report.is_interrupted = true;
        return Ok(());
    }
    let pool = match &memory {
        Some(memory) => memory.uri(),
        None => format!("shm:{}", folder.join("pool").display()),
    };
    make_pool(config, &pool)?;
    let mut run = Run {
        config,
        launcher,
        stop,
        rng: fastrand::Rng::with_seed(config.seed),
        folder: folder.to_owned(),
        pool,
        memory,
        apart: 0,
        client: 0,
        child: 0,
        gateways: Vec::new(),
    };
    run.find_ports().map_err(|source| io_error("find ports for gateways of", folder, source))?;
    let mut contents: BTreeMap<&str, Content> = BTreeMap::new();
    while report.rounds == 0 || begin.elapsed() < config.time {
        report.rounds += 1;
        let round_folder = folder.join(format!("round-{:04}", report.rounds));
        fs::create_dir(&round_folder)
            .map_err(|source| io_error("make folder", &round_folder, source))?;
        let shape = Shape::ALL[run.rng.usize(..Shape::ALL.len())];
        let is_apart = config.network.is_some() && report.rounds % 2 == 1;
        let content = contents.entry(table_name(shape)).or_default();
        let initial = log::write_initial(&round_folder, content)
            .map_err(|source| io_error("write the content to", &round_folder, source))?;
        let mut round =
            Round::new(&mut run, round_folder.clone(), shape, is_apart, &mut report.counts);
        let played = round.play();
        let commands_in_time = round.judge_commands(&mut report.commands);
        let commands_log = round.commands.path.clone();
        let mut logs = std::mem::take(&mut round.logs);
        logs.insert(0, initial);
        let (faults, keys) = (std::mem::take(&mut round.faults.all), round.keys());
        let opened_anew = round.opened_anew();
        // Kills the rest, after an interrupt or a failure.
        drop(round);
        let checked = played.and_then(|()| {
            let from = Instant::now();
            let mut histories = read(&logs)?;
            let mut in_time = Ok(());
            if let Some(network) = &mut report.network {
                network.opened_anew += opened_anew;
                let events: Vec<&Event> = histories.iter().flat_map(|one| &one.events).collect();
                for fault in &faults {
                    let added = network.add(report.rounds, fault, &keys, &events);
                    in_time = in_time.and(added);
                }
            }
            // The times of the faults are those of the clients: a command takes time to start.
            histories.splice(1..1, read(&[commands_log])?);
            let checked = check(histories, content, &mut report.counts);
            report.check_seconds += from.elapsed().as_secs_f64();
            // A wrong answer tells more than a late one.
            checked.and(in_time.and(commands_in_time).map_err(Trouble::Found))
        });
        match checked {
            Ok(()) => {}
            Err(Trouble::Interrupted) => {
                report.is_interrupted = true;
                return Ok(());
            }
            Err(Trouble::Error(error)) => return Err(error),
            Err(Trouble::Found(what)) => {
                let files = |_| servers.display().to_string();
                let pool = config.network.as_ref().map_or_else(|| run.pool.clone(), files);
                let round = report.rounds;
                report.failure = Some(RoundFailure { round, what, folder: round_folder, pool });
                return Ok(());
            }
        }
        if !config.keep {
            fs::remove_dir_all(&round_folder)
                .map_err(|source| io_error("remove", &round_folder, source))?;
        }
        report.seconds = begin.elapsed().as_secs_f64();
        note(report);
    }
    Ok(())
}

/// Reads a round's history files.
fn read(logs: &[PathBuf]) -> Result<Vec<History>, Trouble> {
    let mut histories = Vec::new();
    for path in logs {
        match log::read(path) {
            Ok(history) => histories.extend(history),
            Err(HistoryError::Io(error)) => {
                return Err(Trouble::Error(io_error("read", path, error)));
            }
            Err(error) => {
                return Err(Trouble::Found(format!("{}: {error}", path.display())));
            }
        }
    }
    Ok(histories)
}

/// Merges a round's histories and checks them: the first has the content of the table before the round, the last is
/// the judge's. `content` becomes the content after the round.
fn check(
    histories: Vec<History>,
    content: &mut Content,
    counts: &mut Counts,
) -> Result<(), Trouble> {
    let judge = histories.last().and_then(|history| history.events.last());
    let last = match judge.and_then(|event| event.answer.as_ref()) {
        Some((_, Answer::Pairs(pairs))) => pairs.clone(),
        _ => return Err(Trouble::Found("the judge did not read the table".to_owned())),
    };
    let history = merge(histories).map_err(|error| Trouble::Found(error.to_string()))?;
    *content = last;
    let refused = |event: &&Event| matches!(event.answer, Some((_, Answer::Nothing)));
    let events = &history.events;
    counts.operations += events.len() as u64;
    counts.refused += events.iter().filter(refused).count() as u64;
    counts.unknown += events.iter().filter(|event| event.answer.is_none()).count() as u64;
    match linear::check(&history, &linear::Limits::default()) {
        Ok(checked) => {
            counts.keys_checked += checked.keys as u64;
            counts.keys_undecided += checked.undecided.len() as u64;
            Ok(())
        }
        Err(violation) => Err(Trouble::Found(violation.to_string())),
    }
}

/// The folder for pool and histories.
fn make_folder(config: &Config) -> Result<PathBuf, ProcessesError> {
    let folder = config.folder.clone().unwrap_or_else(|| {
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        parent.join(format!("farleaf-processes-{}", process::id()))
    });
    fs::create_dir_all(&folder).map_err(|source| io_error("make folder", &folder, source))?;
    let mut inside = fs::read_dir(&folder).map_err(|source| io_error("list", &folder, source))?;
    if inside.next().is_some() {
        let folder = folder.display();
        return Err(ProcessesError::Config(format!(
            "{folder} is not empty: name a folder that is new or empty"
        )));
    }
    folder.canonicalize().map_err(|source| io_error("look at", &folder, source))
}

/// A pool with a table of each shape, in small nodes.
fn make_pool(config: &Config, pool: &str) -> Result<(), ProcessesError> {
    let builder = Farleaf::builder().create(true).pool_bytes(config.pool_bytes);
    let db = builder.block_bytes(BLOCK_BYTES).open(pool)?;
    for shape in Shape::ALL {
        let nodes = |bytes| config.engine.known(&Settings::default().with("node_bytes", bytes));
        let options = TableOptions::default().engine(config.engine);
        let options = match shape {
            Shape::Words => {
                let words = options.keys(KeyFormat::Fixed(8)).values(ValueFormat::Fixed(8));
                words.set_all(&nodes("256"))
            }
            Shape::Strings => options.keys(KeyFormat::Bytes { max: 32 }).set_all(&nodes("512")),
        };
        db.create_table(table_name(shape), options)?;
    }
    Ok(db.close()?)
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> ProcessesError {
    ProcessesError::Io { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ops::Bound;

    use super::*;
    use crate::history::Op;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("farleaf-{name}-{}", process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// A client that writes a key, is killed over a second write if `is_killed`, and a judge that
    /// finds `found` in the table.
    fn verdict(found: &[u8], is_killed: bool) -> Result<Counts, String> {
        let scratch = Scratch::new(&format!("verdict-{}-{is_killed}", found[0]));
        let names = ["client.jsonl", "nobody.jsonl", "content.jsonl"];
        let logs: Vec<PathBuf> = names.iter().map(|name| scratch.0.join(name)).collect();
        let mut client = log::Log::create(&logs[0]).unwrap();
        let put = |value: &[u8]| Op::Upsert { key: b"k".to_vec(), value: value.to_vec() };
        let number = client.begin(0, &put(b"first")).unwrap();
        client.end(number, &Answer::Flag(true)).unwrap();
        let number = client.begin(0, &put(b"second")).unwrap();
        if !is_killed {
            client.end(number, &Answer::Flag(false)).unwrap();
        }
        let mut judge = log::Log::create(&logs[2]).unwrap();
        let (from, to) = (Bound::Unbounded, Bound::Unbounded);
        let all = Op::Scan { from, to, reverse: false, limit: usize::MAX };
        let number = judge.begin(9, &all).unwrap();
        let pairs = vec![(b"k".to_vec(), found.to_vec())];
        judge.end(number, &Answer::Pairs(pairs.clone())).unwrap();
        let (mut content, mut counts) = (Vec::new(), Counts::default());
        match read(&logs).and_then(|read| check(read, &mut content, &mut counts)) {
            Ok(()) => {
                assert_eq!(content, pairs);
                Ok(counts)
            }
            Err(Trouble::Found(what)) => Err(what),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn acknowledged_writes_must_be_present_and_others_may() {
        let counts = verdict(b"second", false).unwrap();
        assert_eq!((counts.operations, counts.unknown, counts.keys_checked), (3, 0, 1));
        assert!(verdict(b"first", false).unwrap_err().contains("no order"));
        assert_eq!(verdict(b"first", true).unwrap().unknown, 1);
        assert!(verdict(b"second", true).is_ok());
        assert!(verdict(b"third", true).unwrap_err().contains("no order"));
    }

    #[test]
    fn a_folder_that_is_not_empty_is_refused() {
        let scratch = Scratch::new("full-folder");
        fs::write(scratch.0.join("thesis"), "mine").unwrap();
        let config = Config { folder: Some(scratch.0.clone()), ..Config::default() };
        assert!(matches!(make_folder(&config), Err(ProcessesError::Config(_))));
    }
}
