//! Redis player: runs a workload on Redis over one connection.
//!
//! As many commands are under way as the workload has clients.
//!
//! Client `i` makes the same operations as client `i` of a bench with as many clients, one after
//! the other. The commands of all are sent together. An operation's time runs from the queueing of
//! its first command until the client has checked its last reply.
//!
//! | operation | commands |
//! |---|---|
//! | get | `GET` |
//! | update, upsert | `SET` |
//! | insert | `SET`, and `ZADD` where there are scans |
//! | read-modify-write | `GET`, then `SET` |
//! | remove | `DEL`, and `ZREM` where there are scans |
//! | scan | `ZRANGE ... BYLEX LIMIT` over a sorted set of all keys, then `MGET` of what it found |

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::{
    error::RedisError,
    resp::{Items, Reply, begin_command, decimal, write_command, write_word},
    wire::{Wire, answer},
};
use crate::{
    generator::{Op, OpGenerator},
    histogram::LatencyHistogram,
    item_space::ItemSpace,
    keys::KeyMaker,
    report::{LatencyUs, PhaseReport},
    repro::error::ReproError,
    run::{BenchError, Phase, Progress},
    values::ValueMaker,
    workload::{OpKind, Workload},
};

/// The sorted set of all keys, each with the score 0, so that they sort by their bytes. Longer than
/// any key of a number.
const ORDER: &[u8] = b"keys in order";
/// Pairs that are loaded with one wait.
const LOAD_PAIRS: u64 = 512;
/// Members that one `ZADD` of the load adds.
const LOAD_MEMBERS: u64 = 512;
/// Bits of a version below the writer's number, as in the bench.
const VERSION_BITS: u32 = 40;
/// Operations between two reports of progress.
const PROGRESS_OPS: u64 = 1 << 10;

/// A workload to run.
#[derive(Clone, Debug)]
pub(super) struct RedisPlan {
    pub(super) workload: Workload,
    pub(super) keys: u64,
    pub(super) key_maker: KeyMaker,
    pub(super) values: ValueMaker,
    pub(super) warmup_ops: u64,
    pub(super) ops: u64,
    /// Operations under way at a time.
    pub(super) depth: usize,
    pub(super) seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct RedisResult {
    pub(super) phase: PhaseReport,
    pub(super) latency_us: LatencyUs,
    /// Operations that were refused or answered wrongly, those of the warm-up included.
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// Bytes of commands and replies, for each operation.
    pub(super) bytes_per_op: f64,
}

impl RedisPlan {
    /// Returns whether a sorted set holds the keys as well.
    fn is_ordered(&self) -> bool {
        self.workload.mix.share(OpKind::Scan) > 0.0
    }

    /// Empties Redis, loads the items, warms up and runs.
    ///
    /// # Errors
    /// If Redis is gone, cannot be understood, or refuses to load.
    pub(super) fn run(
        &self,
        wire: &mut Wire,
        progress: &dyn Progress,
    ) -> Result<RedisResult, ReproError> {
        self.load(wire, progress)?;
        let space = Arc::new(ItemSpace::new(self.keys, self.key_maker.items_max()));
        let mut player = Player::new(self, &space)?;
        if self.warmup_ops > 0 {
            progress.begin(Phase::WarmUp, self.warmup_ops);
            player.run(wire, self.warmup_ops, progress)?;
            player.latency.clear();
        }
        progress.begin(Phase::Run, self.ops);
        let before = wire.bytes_sent + wire.bytes_received;
        let seconds = player.run(wire, self.ops, progress)?;
        let bytes = wire.bytes_sent + wire.bytes_received - before;
        let ops = player.latency.count();
        Ok(RedisResult {
            phase: PhaseReport::new(seconds, ops),
            latency_us: player.latency.summary().into(),
            errors: player.errors,
            first_error: player.first_error,
            bytes_per_op: bytes as f64 / ops.max(1) as f64,
        })
    }

    fn load(&self, wire: &mut Wire, progress: &dyn Progress) -> Result<(), ReproError> {
        let write_key = |item, key: &mut Vec<u8>| {
            self.key_maker.write_key(item, key).map_err(BenchError::from).map_err(ReproError::from)
        };
        set_all(wire, self.keys, self.values, progress, write_key)?;
        if !self.is_ordered() {
            return Ok(());
        }
        let (mut out, mut key) = (Vec::new(), Vec::new());
        for first in (0..self.keys).step_by(LOAD_MEMBERS as usize) {
            let members = first..self.keys.min(first + LOAD_MEMBERS);
            begin_command(&mut out, 2 + 2 * (members.end - members.start) as usize);
            write_word(&mut out, b"ZADD");
            write_word(&mut out, ORDER);
            for item in members {
                write_key(item, &mut key)?;
                write_word(&mut out, b"0");
                write_word(&mut out, &key);
            }
            wire.send(&mut out).map_err(RedisError::from)?;
            wire.expect("ZADD", |reply| matches!(reply, Reply::Integer(_)).then_some(()))?;
        }
        Ok(())
    }
}

/// Empties Redis and sets the keys of `keys` items to their first values.
///
/// # Errors
/// If Redis is gone, cannot be understood, or refuses; those of `write_key`.
pub(super) fn set_all(
    wire: &mut Wire,
    keys: u64,
    values: ValueMaker,
    progress: &dyn Progress,
    write_key: impl Fn(u64, &mut Vec<u8>) -> Result<(), ReproError>,
) -> Result<(), ReproError> {
    progress.begin(Phase::Load, keys);
    let ok = |reply: Reply<'_>| (reply == Reply::Simple(b"OK")).then_some(());
    wire.ask("FLUSHALL", &[b"FLUSHALL", b"SYNC"], ok)?;
    let (mut out, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..keys).step_by(LOAD_PAIRS as usize) {
        let items = first..keys.min(first + LOAD_PAIRS);
        let count = items.end - items.start;
        for item in items {
            write_key(item, &mut key)?;
            values.write_value(item, 0, &mut value);
            write_command(&mut out, &[b"SET", &key, &value]);
        }
        wire.send(&mut out).map_err(RedisError::from)?;
        for _ in 0..count {
            wire.expect("SET", ok)?;
        }
        progress.advance(count);
    }
    let there = wire.ask("DBSIZE", &[b"DBSIZE"], |reply| match reply {
        Reply::Integer(there) => Some(there),
        _ => None,
    })?;
    if there != keys as i64 {
        let wrong = format!("redis has {there} keys after a load of {keys}");
        return Err(ReproError::Wrong(wrong));
    }
    Ok(())
}

/// One client and its next operations.
struct RedisClient {
    generator: OpGenerator,
    /// Operations that it has not begun.
    left: u64,
    version: u64,
}

/// A command whose reply has not come.
struct Waiting {
    client: usize,
    op: Op,
    began_ns: u64,
    step: ReplyStep,
}

/// Meaning of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyStep {
    /// The first of two commands that are sent together.
    First,
    /// The last command of a change.
    Change,
    /// A get.
    Value,
    /// The get of a read-modify-write.
    OldValue,
    /// A scan's keys.
    Range,
    /// A scan's values: their number, and whether the first is that of the operation's item.
    Values(u32, bool),
}

/// State of the run of a workload.
struct Player<'a> {
    plan: &'a RedisPlan,
    space: &'a ItemSpace,
    all_present: bool,
    is_ordered: bool,
    clients: Vec<RedisClient>,
    waiting: VecDeque<Waiting>,
    out: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    since: Instant,
    latency: LatencyHistogram,
    done: u64,
    errors: u64,
    first_error: Option<String>,
}

impl<'a> Player<'a> {
    fn new(plan: &'a RedisPlan, space: &'a Arc<ItemSpace>) -> Result<Self, ReproError> {
        let client = |number: u64| {
            let clients = plan.depth as u64;
            let space = Arc::clone(space);
            let generator = OpGenerator::new(&plan.workload, space, plan.seed, number, clients);
            let generator = generator.map_err(BenchError::from)?;
            Ok(RedisClient { generator, left: 0, version: (number + 1) << VERSION_BITS })
        };
        Ok(Player {
            plan,
            space,
            all_present: plan.workload.mix.share(OpKind::Remove) == 0.0,
            is_ordered: plan.is_ordered(),
            clients: (0..plan.depth as u64).map(client).collect::<Result<_, ReproError>>()?,
            waiting: VecDeque::with_capacity(2 * plan.depth),
            out: Vec::new(),
            key: Vec::new(),
            value: Vec::new(),
            since: Instant::now(),
            latency: LatencyHistogram::new(),
            done: 0,
            errors: 0,
            first_error: None,
        })
    }

    /// Does `ops` operations, shared out among the clients; returns the seconds that they took.
    fn run(
        &mut self,
        wire: &mut Wire,
        ops: u64,
        progress: &dyn Progress,
    ) -> Result<f64, ReproError> {
        let began = Instant::now();
        let clients = self.clients.len() as u64;
        for client in 0..self.clients.len() {
            self.clients[client].left = ops / clients + u64::from((client as u64) < ops % clients);
            self.begin(client)?;
        }
        let unread = |source| RedisError::Reply { command: "an operation", source };
        while !self.waiting.is_empty() {
            if !self.out.is_empty() {
                wire.send(&mut self.out).map_err(RedisError::from)?;
            }
            wire.receive().map_err(RedisError::from)?;
            while let Some((reply, used)) = wire.reply().map_err(unread)? {
                self.take(reply)?;
                wire.consume(used);
                if self.done == PROGRESS_OPS {
                    progress.advance(std::mem::take(&mut self.done));
                }
            }
        }
        progress.advance(std::mem::take(&mut self.done));
        Ok(began.elapsed().as_secs_f64())
    }

    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64
    }

    /// Begins a client's next operation, if it has one.
    fn begin(&mut self, client: usize) -> Result<(), ReproError> {
        let RedisClient { generator, left, version } = &mut self.clients[client];
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        let Some(op) = generator.next_op() else {
            *left = 0;
            return Ok(());
        };
        *version += 1;
        let version = *version;
        self.plan.key_maker.write_key(op.item, &mut self.key).map_err(BenchError::from)?;
        let changes = !matches!(op.kind, OpKind::Get | OpKind::Scan | OpKind::Remove);
        if changes {
            self.plan.values.write_value(op.item, version, &mut self.value);
        }
        let began_ns = self.now_ns();
        let (key, out) = (self.key.as_slice(), &mut self.out);
        let mut first = None;
        let step = match op.kind {
            OpKind::Get | OpKind::ReadModifyWrite => {
                write_command(out, &[b"GET", key]);
                if op.kind == OpKind::Get { ReplyStep::Value } else { ReplyStep::OldValue }
            }
            OpKind::Update | OpKind::Upsert | OpKind::Insert => {
                write_command(out, &[b"SET", key, &self.value]);
                if op.kind == OpKind::Insert && self.is_ordered {
                    first = Some(ReplyStep::First);
                    write_command(out, &[b"ZADD", ORDER, b"0", key]);
                }
                ReplyStep::Change
            }
            OpKind::Remove => {
                write_command(out, &[b"DEL", key]);
                if self.is_ordered {
                    first = Some(ReplyStep::First);
                    write_command(out, &[b"ZREM", ORDER, key]);
                }
                ReplyStep::Change
            }
            OpKind::Scan => {
                // The range begins with the key itself.
                self.value.clear();
                self.value.push(b'[');
                self.value.extend_from_slice(key);
                let mut digits = [0; 20];
                let limit = decimal(op.scan_len.into(), &mut digits);
                let words: [&[u8]; 8] =
                    [b"ZRANGE", ORDER, &self.value, b"+", b"BYLEX", b"LIMIT", b"0", limit];
                write_command(out, &words);
                ReplyStep::Range
            }
        };
        for step in first.into_iter().chain([step]) {
            self.waiting.push_back(Waiting { client, op, began_ns, step });
        }
        Ok(())
    }

    /// Takes the reply to the command that has waited longest.
    fn take(&mut self, reply: Reply<'_>) -> Result<(), ReproError> {
        let Some(waiting) = self.waiting.pop_front() else {
            return Err(answer("nothing that was asked", &reply).into());
        };
        let wrong = match (waiting.step, reply) {
            (_, Reply::Error(words)) => Some(words.escape_ascii().to_string()),
            (
                ReplyStep::First | ReplyStep::Change,
                Reply::Simple(b"OK") | Reply::Integer(0 | 1),
            ) => None,
            (ReplyStep::Value, Reply::Bulk(value)) => self.check_value(waiting.op.item, value),
            (ReplyStep::OldValue, Reply::Bulk(value)) => {
                let wrong = self.check_value(waiting.op.item, value);
                if wrong.is_none() {
                    self.replace(waiting)?;
                    return Ok(());
                }
                wrong
            }
            (ReplyStep::Range, Reply::Array(keys)) => {
                let item = waiting.op.item;
                self.plan.key_maker.write_key(item, &mut self.key).map_err(BenchError::from)?;
                match self.check_range(waiting.op, keys) {
                    Ok(_) if keys.len() == 0 => None,
                    Ok(present) => {
                        begin_command(&mut self.out, 1 + keys.len());
                        write_word(&mut self.out, b"MGET");
                        keys.flatten().for_each(|key| write_word(&mut self.out, key));
                        let step = ReplyStep::Values(keys.len() as u32, present);
                        self.waiting.push_back(Waiting { step, ..waiting });
                        return Ok(());
                    }
                    Err(wrong) => Some(wrong.to_owned()),
                }
            }
            (ReplyStep::Values(count, present), Reply::Array(values)) => {
                self.check_values(waiting.op.item, count, present, values)
            }
            (_, other) => Some(answer("an operation", &other).to_string()),
        };
        if let Some(what) = wrong {
            self.errors += 1;
            let Waiting { op, .. } = waiting;
            let told = || format!("{} of item {}: {what}", op.kind.name(), op.item);
            self.first_error.get_or_insert_with(told);
        } else if waiting.step != ReplyStep::First {
            let nanos = self.now_ns().saturating_sub(waiting.began_ns);
            self.latency.record(nanos);
        }
        if waiting.step == ReplyStep::First {
            return Ok(());
        }
        if waiting.op.kind == OpKind::Insert {
            self.space.acknowledge(waiting.op.item);
        }
        self.done += 1;
        self.begin(waiting.client)
    }

    /// The second half of a read-modify-write.
    fn replace(&mut self, waiting: Waiting) -> Result<(), ReproError> {
        let item = waiting.op.item;
        self.plan.key_maker.write_key(item, &mut self.key).map_err(BenchError::from)?;
        let version = self.clients[waiting.client].version;
        self.plan.values.write_value(item, version, &mut self.value);
        write_command(&mut self.out, &[b"SET", &self.key, &self.value]);
        self.waiting.push_back(Waiting { step: ReplyStep::Change, ..waiting });
        Ok(())
    }

    /// Returns the fault in the value of an item, if there is one.
    fn check_value(&self, item: u64, value: Option<&[u8]>) -> Option<String> {
        match value {
            None if self.all_present => Some("a key that must be there is absent".to_owned()),
            Some(value) if !self.plan.values.is_one_of(item, value) => {
                Some("a get found a value that nobody wrote".to_owned())
            }
            _ => None,
        }
    }

    /// Returns whether a scan's first key is that of its item, which is `self.key`; or the fault.
    fn check_range(&self, op: Op, keys: Items<'_>) -> Result<bool, &'static str> {
        let first = { keys }.next().flatten();
        let present = first.is_some_and(|key| key == self.key);
        if keys.len() > op.scan_len as usize {
            Err("a scan found more pairs than it asked for")
        } else if first.is_some_and(|key| key < self.key.as_slice())
            || !keys.is_sorted_by(|left, right| left < right)
        {
            Err("a scan found keys out of order")
        } else if !present && self.all_present {
            Err("a key that must be there is absent")
        } else {
            Ok(present)
        }
    }

    /// Returns the fault in a scan's values, if there is one.
    fn check_values(
        &self,
        item: u64,
        count: u32,
        present: bool,
        mut values: Items<'_>,
    ) -> Option<String> {
        if values.len() != count as usize {
            return Some("a scan has more keys than values".to_owned());
        }
        let of_item = |value: Option<&[u8]>| {
            !present || value.is_none_or(|value| self.plan.values.is_one_of(item, value))
        };
        let whole = |value: Option<&[u8]>| match value {
            Some(value) => value.len() == self.plan.values.value_bytes(),
            None => !self.all_present,
        };
        let right = { values }.next().is_none_or(of_item) && values.all(whole);
        (!right).then(|| "a scan found a value that nobody wrote".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        NoProgress,
        keys::KeyOrder,
        repro::redis::{server::RedisServer, tests::start},
    };

    const KEYS: u64 = 500;

    fn plan(workload: &str) -> RedisPlan {
        RedisPlan {
            workload: workload.parse().unwrap(),
            keys: KEYS,
            key_maker: KeyMaker::U64(KeyOrder::Hashed),
            values: ValueMaker::new(20),
            warmup_ops: 100,
            ops: 3000,
            depth: 16,
            seed: 7,
        }
    }

    fn count(server: &RedisServer, command: &[&[u8]]) -> i64 {
        let number = |reply: Reply<'_>| match reply {
            Reply::Integer(count) => Some(count),
            _ => None,
        };
        server.connect().unwrap().ask("a count", command, number).unwrap()
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
            let result = plan(workload).run(&mut wire, &NoProgress).unwrap();
            assert_eq!((result.errors, result.first_error), (0, None), "{workload}");
            assert_eq!(result.phase.ops, 3000, "{workload}");
            assert!(result.phase.ops_per_s > 0.0 && result.bytes_per_op > 20.0);
            assert!(result.latency_us.p50 > 0.0 && result.latency_us.p99 <= result.latency_us.max);
        }
    }

    /// Keys and sorted set agree, and there are as many inserts as were made.
    #[test]
    fn inserted_keys_are_present() {
        let Some(server) = start("inserted_keys_are_present") else { return };
        let mut wire = server.connect().unwrap();
        let result = plan("insert=1,scan=0.001").run(&mut wire, &NoProgress).unwrap();
        assert_eq!(result.errors, 0, "{:?}", result.first_error);
        let ordered = count(&server, &[b"ZCARD", ORDER]);
        assert!((KEYS as i64 + 3000..=KEYS as i64 + 3100).contains(&ordered), "{ordered}");
        assert_eq!(count(&server, &[b"DBSIZE"]), ordered + 1);
        plan("insert=1").run(&mut wire, &NoProgress).unwrap();
        assert_eq!(count(&server, &[b"DBSIZE"]), KEYS as i64 + 3100, "no sorted set without scans");
    }

    #[test]
    fn foreign_changes_are_reported() {
        let Some(server) = start("foreign_changes_are_reported") else { return };
        let mut wire = server.connect().unwrap();
        let plan = plan("get=1,scan=1");
        plan.load(&mut wire, &NoProgress).unwrap();
        let space = Arc::new(ItemSpace::new(KEYS, None));
        let mut errors = Vec::new();
        let mut run = |wire: &mut Wire| {
            let mut player = Player::new(&plan, &space).unwrap();
            player.run(wire, 2000, &NoProgress).unwrap();
            errors.push(player.first_error.unwrap_or_default());
        };
        run(&mut wire);
        let mut key = Vec::new();
        let any = |_: Reply<'_>| Some(());
        for item in 0..KEYS {
            plan.key_maker.write_key(item, &mut key).unwrap();
            wire.ask("SET", &[b"SET", &key, b"strange, of 20 bytes"], any).unwrap();
        }
        run(&mut wire);
        wire.ask("FLUSHALL", &[b"FLUSHALL"], any).unwrap();
        run(&mut wire);
        wire.ask("SET", &[b"SET", ORDER, b"no set"], any).unwrap();
        run(&mut wire);
        let [right, foreign, absent, refused] = errors.try_into().unwrap();
        assert_eq!(right, "");
        assert!(foreign.contains("a value that nobody wrote"), "{foreign}");
        assert!(absent.contains("a key that must be there is absent"), "{absent}");
        assert!(refused.contains("absent") || refused.contains("WRONGTYPE"), "{refused}");
    }
}
