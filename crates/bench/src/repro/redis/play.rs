//! Redis player: runs a workload on Redis over one connection.
//!
//! Client `i` makes the same operations as client `i` of a bench of the same configuration, one after
//! the other. In each step the player sends the next commands of all clients together and takes their
//! replies, as `redis-benchmark -P` does. The second command of an operation goes with the next step, so
//! that each client has an operation under way in every step. An operation's time runs from the queueing
//! of its first command until the player has checked its last reply.
//!
//! | operation | commands |
//! |---|---|
//! | get | `GET` |
//! | update, upsert | `SET` |
//! | insert | `SET`, and `ZADD` where there are scans |
//! | read-modify-write | `GET`, then `SET` |
//! | remove | `DEL`, and `ZREM` where there are scans |
//! | scan | `ZRANGE ... BYLEX LIMIT` over a sorted set of all keys, then `MGET` of what it found |

use std::{sync::Arc, time::Instant};

use farleaf_fabric::Snapshot;
use farleaf_resp::{
    RangeFrame,
    wire::{Reply, Wire},
};

use super::error::RedisError;
use crate::{
    config::BenchConfig,
    generator::{Op, OpGenerator},
    report::RunReport,
    repro::error::ReproError,
    run::{
        BenchError, Phase, Progress,
        client::VERSION_BITS,
        context::{Dataset, Found},
        table::share_of,
        tally::Tally,
    },
    workload::OpKind,
};

/// The sorted set of all keys, each with the score 0, so that they sort by their bytes. Longer than
/// any key of a number.
const ORDER: &[u8] = b"keys in order";
/// Items that are loaded with one wait.
const LOAD_ITEMS: u64 = 512;
/// Operations between two reports of progress.
const PROGRESS_OPS: u64 = 1 << 10;

/// Empties Redis, loads the items, warms up and runs. Returns the report, and the bytes of commands and
/// replies for each operation.
///
/// # Errors
/// If Redis is gone, cannot be understood, or refuses to load.
pub(super) fn run(
    config: &BenchConfig,
    wire: &mut Wire,
    progress: &dyn Progress,
) -> Result<(RunReport, f64), ReproError> {
    let mut player = Player::new(config)?;
    player.load(wire, progress)?;
    if config.warmup_ops > 0 {
        progress.begin(Phase::WarmUp, config.warmup_ops);
        player.run(wire, config.warmup_ops, progress)?;
        player.tally.restart();
    }
    progress.begin(Phase::Run, config.ops);
    let before = wire.bytes_both;
    let seconds = player.run(wire, config.ops, progress)?;
    let run = player.tally.report(seconds, &Snapshot::default());
    let bytes_per_op = (wire.bytes_both - before) as f64 / run.phase.ops.max(1) as f64;
    Ok((run, bytes_per_op))
}

/// Empties Redis and sets the keys of `data` to their first values. With `is_ordered`, a sorted set
/// holds the keys as well.
///
/// # Errors
/// If Redis is gone, cannot be understood, or refuses; those of `write_key`.
pub(super) fn set_all(
    wire: &mut Wire,
    data: &Dataset,
    is_ordered: bool,
    progress: &dyn Progress,
    write_key: impl Fn(u64, &mut Vec<u8>) -> Result<(), BenchError>,
) -> Result<(), ReproError> {
    let keys = data.space.loaded();
    progress.begin(Phase::Load, keys);
    wire.ask("FLUSHALL", &[b"FLUSHALL", b"SYNC"])?;
    let (mut key, mut value) = (Vec::new(), Vec::new());
    for first in (0..keys).step_by(LOAD_ITEMS as usize) {
        let items = first..keys.min(first + LOAD_ITEMS);
        let count = items.end - items.start;
        for item in items {
            write_key(item, &mut key)?;
            data.values.write_value(item, 0, &mut value);
            wire.put(&[b"SET", &key, &value]);
            if is_ordered {
                wire.put(&[b"ZADD", ORDER, b"0", &key]);
            }
        }
        wire.send()?;
        for _ in 0..count * (1 + u64::from(is_ordered)) {
            let reply = wire.reply("SET")?;
            if !is_done(&reply) {
                return Err(RedisError::answer("SET", &reply).into());
            }
        }
        progress.advance(count);
    }
    let there = wire.ask("DBSIZE", &[b"DBSIZE"])?;
    if there != (keys + u64::from(is_ordered)).to_string() {
        let wrong = format!("redis has {there} keys after a load of {keys}");
        return Err(ReproError::Wrong(wrong));
    }
    Ok(())
}

/// State of the run of a workload.
struct Player {
    data: Dataset,
    is_ordered: bool,
    clients: Vec<RedisClient>,
    tally: Tally,
}

/// One client and its next operations.
struct RedisClient {
    generator: OpGenerator,
    /// Operations that it has not begun.
    left: usize,
    version: u64,
    /// The operation under way, and its begin.
    op: Option<(Op, Instant)>,
    /// True if its operation's first command has been answered, and the second is next.
    is_second: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    /// The keys that a scan has found.
    keys: Vec<Vec<u8>>,
}

impl Player {
    fn new(config: &BenchConfig) -> Result<Self, BenchError> {
        let data = Dataset::new(config, config.key_type.open()?);
        let count = config.clients as u64;
        let client = |number: u64| {
            let (space, version) = (Arc::clone(&data.space), (number + 1) << VERSION_BITS);
            let generator = OpGenerator::new(&config.workload, space, config.seed, number, count)?;
            let (left, op, is_second, key, value, keys) = Default::default();
            Ok(RedisClient { generator, left, version, op, is_second, key, value, keys })
        };
        let clients = (0..count).map(client).collect::<Result<_, BenchError>>()?;
        let is_ordered = config.workload.mix.share(OpKind::Scan) > 0.0;
        Ok(Player { data, is_ordered, clients, tally: Tally::default() })
    }

    fn load(&self, wire: &mut Wire, progress: &dyn Progress) -> Result<(), ReproError> {
        let write_key = |item, key: &mut Vec<u8>| Ok(self.data.keys.write_key(item, key)?);
        set_all(wire, &self.data, self.is_ordered, progress, write_key)
    }

    /// Does `ops` operations, shared out among the clients; returns the seconds that they took.
    fn run(
        &mut self,
        wire: &mut Wire,
        ops: u64,
        progress: &dyn Progress,
    ) -> Result<f64, ReproError> {
        let Player { data, is_ordered, clients, tally } = self;
        let began = Instant::now();
        let count = clients.len();
        for (number, client) in clients.iter_mut().enumerate() {
            client.left = share_of(ops as usize, count, number);
        }
        let mut done = 0;
        loop {
            for client in &mut *clients {
                client.ask(data, *is_ordered, wire)?;
            }
            if !wire.send()? {
                break;
            }
            for client in &mut *clients {
                done += u64::from(client.take(data, *is_ordered, wire, tally)?);
            }
            if done >= PROGRESS_OPS {
                progress.advance(std::mem::take(&mut done));
            }
        }
        progress.advance(done);
        Ok(began.elapsed().as_secs_f64())
    }
}

impl RedisClient {
    /// Puts the next commands, of the operation under way or of the next one, if there is one.
    fn ask(&mut self, data: &Dataset, is_ordered: bool, wire: &mut Wire) -> Result<(), BenchError> {
        let op = match self.op {
            Some((op, _)) => op,
            None if self.left == 0 => return Ok(()),
            None => {
                let Some(op) = self.generator.next_op() else {
                    self.left = 0;
                    return Ok(());
                };
                self.left -= 1;
                self.version += 1;
                data.prepare(op, self.version, &mut self.key, &mut self.value)?;
                self.op = Some((op, Instant::now()));
                op
            }
        };
        let RedisClient { key, value, keys, .. } = self;
        match (op.kind, self.is_second) {
            (OpKind::Get, _) | (OpKind::ReadModifyWrite, false) => wire.put(&[b"GET", key]),
            (OpKind::Remove, _) => wire.put(&[b"DEL", key]),
            (OpKind::Scan, false) => {
                // The range begins with the key itself.
                let from = [b"[", key.as_slice()].concat();
                let limit = op.scan_len.to_string();
                let limit = [b"LIMIT", &b"0"[..], limit.as_bytes()];
                let words = [&[b"ZRANGE", ORDER, &from, b"+", b"BYLEX"], &limit[..]];
                wire.put(&words.concat());
            }
            (OpKind::Scan, true) => {
                let words = [&b"MGET"[..]].into_iter().chain(keys.iter().map(Vec::as_slice));
                wire.put(&words.collect::<Vec<_>>());
            }
            _ => wire.put(&[b"SET", key, value]),
        }
        match op.kind {
            OpKind::Insert if is_ordered => wire.put(&[b"ZADD", ORDER, b"0", key]),
            OpKind::Remove if is_ordered => wire.put(&[b"ZREM", ORDER, key]),
            _ => {}
        }
        Ok(())
    }

    /// Takes the replies to its commands; returns whether its operation is over.
    fn take(
        &mut self,
        data: &Dataset,
        is_ordered: bool,
        wire: &mut Wire,
        tally: &mut Tally,
    ) -> Result<bool, RedisError> {
        let Some((op, began)) = self.op else { return Ok(false) };
        let mut found = self.found(op, data, &wire.reply(op.kind.name())?);
        if is_ordered && matches!(op.kind, OpKind::Insert | OpKind::Remove) {
            let second = self.found(op, data, &wire.reply(op.kind.name())?);
            found.wrong = found.wrong.or(second.wrong);
        }
        let fault = data.fault(op, &found);
        let goes_on = match op.kind {
            OpKind::ReadModifyWrite => true,
            OpKind::Scan => !self.keys.is_empty(),
            _ => false,
        };
        self.is_second = goes_on && fault.is_none() && !self.is_second;
        if self.is_second {
            return Ok(false);
        }
        if op.kind == OpKind::Insert {
            data.space.acknowledge(op.item);
        }
        match fault {
            Some(fault) => tally.wrong(|| fault),
            None => tally.done(op.kind, began.elapsed().as_nanos() as u64),
        }
        self.op = None;
        Ok(true)
    }

    /// Looks at a reply.
    fn found(&mut self, op: Op, data: &Dataset, reply: &Reply<'_>) -> Found {
        let is_scan = op.kind == OpKind::Scan;
        let is_get = match op.kind {
            OpKind::ReadModifyWrite => !self.is_second,
            kind => kind == OpKind::Get,
        };
        match &reply.frame {
            RangeFrame::BulkString(_) if is_get => data.got(op.item, reply.string(&reply.frame)),
            RangeFrame::Null if is_get => data.got(op.item, None),
            _ if !is_get && !is_scan && is_done(reply) => Found::right(true),
            RangeFrame::Array(keys) if is_scan && !self.is_second => {
                self.keys.resize_with(keys.len(), Vec::new);
                for (own, found) in self.keys.iter_mut().zip(keys) {
                    own.clear();
                    own.extend_from_slice(reply.string(found).unwrap_or_default());
                }
                // The second reply completes the pairs.
                Found::right(!keys.is_empty())
            }
            RangeFrame::Array(values) if is_scan && values.len() == self.keys.len() => {
                let values = values.iter().map(|value| reply.string(value));
                data.scanned(op, &self.key, self.keys.iter().map(Vec::as_slice).zip(values))
            }
            _ => Found::wrong(RedisError::answer(op.kind.name(), reply).to_string()),
        }
    }
}

/// Returns whether a change has been made.
fn is_done(reply: &Reply<'_>) -> bool {
    match &reply.frame {
        RangeFrame::Integer(count) => matches!(count, 0 | 1),
        frame @ RangeFrame::SimpleString(_) => reply.string(frame) == Some(b"OK"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        NoProgress,
        keys::{KeyOrder, KeySpec},
        repro::redis::{server::RedisServer, tests::start},
    };

    const KEYS: u64 = 500;

    fn plan(workload: &str) -> BenchConfig {
        BenchConfig {
            workload: workload.parse().unwrap(),
            keys: KEYS,
            key_type: KeySpec::U64(KeyOrder::Hashed),
            value_bytes: 20,
            warmup_ops: 100,
            ops: 3000,
            clients: 16,
            seed: 7,
            ..BenchConfig::default()
        }
    }

    fn count(server: &RedisServer, command: &[&[u8]]) -> u64 {
        server.connect().unwrap().ask("a count", command).unwrap().parse().unwrap()
    }

    #[test]
    fn all_kinds_of_operations_are_answered_rightly() {
        let Some(server) = start("all_kinds_of_operations_are_answered_rightly") else { return };
        let mut wire = server.connect().unwrap();
        for workload in [
            "ycsb-a",
            "ycsb-c",
            "ycsb-d",
            "ycsb-e",
            "ycsb-f",
            "get=1,update=1,insert=1,scan=1,rmw=1,remove=1,upsert=1",
        ] {
            let (result, bytes_per_op) = run(&plan(workload), &mut wire, &NoProgress).unwrap();
            assert_eq!((result.errors, result.first_error), (0, None), "{workload}");
            assert_eq!(result.phase.ops, 3000, "{workload}");
            assert!(result.phase.ops_per_s > 0.0 && bytes_per_op > 20.0);
            assert!(result.latency_us.p50 > 0.0 && result.latency_us.p99 <= result.latency_us.max);
        }
    }

    /// Keys and sorted set agree, and there are as many inserts as were made.
    #[test]
    fn inserted_keys_are_present() {
        let Some(server) = start("inserted_keys_are_present") else { return };
        let mut wire = server.connect().unwrap();
        let (result, _) = run(&plan("insert=1,scan=0.001"), &mut wire, &NoProgress).unwrap();
        assert_eq!(result.errors, 0, "{:?}", result.first_error);
        let ordered = count(&server, &[b"ZCARD", ORDER]);
        assert!((KEYS + 3000..=KEYS + 3100).contains(&ordered), "{ordered}");
        assert_eq!(count(&server, &[b"DBSIZE"]), ordered + 1);
        run(&plan("insert=1"), &mut wire, &NoProgress).unwrap();
        assert_eq!(count(&server, &[b"DBSIZE"]), KEYS + 3100, "no sorted set without scans");
    }

    #[test]
    fn foreign_changes_are_reported() {
        let Some(server) = start("foreign_changes_are_reported") else { return };
        let mut wire = server.connect().unwrap();
        let plan = plan("get=1,scan=1");
        Player::new(&plan).unwrap().load(&mut wire, &NoProgress).unwrap();
        let mut errors = Vec::new();
        let mut run = |wire: &mut Wire| {
            let mut player = Player::new(&plan).unwrap();
            player.run(wire, 2000, &NoProgress).unwrap();
            errors.push(player.tally.first_error().unwrap_or_default().to_owned());
        };
        run(&mut wire);
        let mut key = Vec::new();
        let keys = plan.key_type.open().unwrap();
        for item in 0..KEYS {
            keys.write_key(item, &mut key).unwrap();
            wire.ask("SET", &[b"SET", &key, b"strange, of 20 bytes"]).unwrap();
        }
        run(&mut wire);
        wire.ask("FLUSHALL", &[b"FLUSHALL"]).unwrap();
        run(&mut wire);
        wire.ask("SET", &[b"SET", ORDER, b"no set"]).unwrap();
        run(&mut wire);
        let [right, foreign, absent, refused] = errors.try_into().unwrap();
        assert_eq!(right, "");
        assert!(foreign.contains("a value that nobody wrote"), "{foreign}");
        assert!(absent.contains("a key that must be there is absent"), "{absent}");
        assert!(refused.contains("absent") || refused.contains("WRONGTYPE"), "{refused}");
    }
}
