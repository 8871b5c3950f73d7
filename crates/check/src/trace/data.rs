//! Trace data: the content of the drawing, as JSON.

use farleaf_fabric::sim::OpRecord;
use serde_json::{Value, json};

use crate::history::{Answer, Op};
use crate::linear::show_range;
use crate::run::{Failure, Outcome, threads};
use crate::scenario::Scenario;

/// Bytes of a value in the drawing.
const SHOWN: usize = 24;
/// Remote operations in the drawing: of a run that never ends, the first and the last.
const FIRST: usize = 20_000;
const LAST: usize = 10_000;

pub(super) fn of(scenario: &Scenario, outcome: &Outcome, records: &[OpRecord]) -> Value {
    let (clients, computes) = (scenario.clients, scenario.compute_servers);
    let lanes: Vec<String> = (0..clients)
        .map(|client| format!("client {client} (C{})", client % computes))
        .chain((0..computes).map(|compute| format!("maintenance of C{compute}")))
        .chain(["looker-on".to_owned()])
        .collect();
    let looker = clients + computes;
    let (hot_key, hot_events) = match &outcome.failure {
        Some(Failure::NotLinearizable { key, events, .. }) => (key.as_deref(), &events[..]),
        _ => (None, &[][..]),
    };
    let events: Vec<Value> = outcome
        .history
        .events
        .iter()
        .enumerate()
        .map(|(place, event)| {
            let step = outcome.steps.get(place).copied().flatten();
            let (to_ns, answer) = match &event.answer {
                Some((to_ns, answer)) => (Some(*to_ns), told_answer(answer)),
                None => (None, "no answer".to_owned()),
            };
            json!({
                "lane": step.map_or(looker, |(client, _)| client),
                "step": step.map(|(_, step)| step),
                "life": event.client,
                "verb": verb(&event.call),
                "key": event.call.key().map(shown),
                "call": told_call(&event.call),
                "answer": answer,
                "failed": matches!(&event.answer, Some((_, Answer::Nothing))),
                "from": event.from_ns,
                "to": to_ns,
                "blamed": hot_events.contains(&place),
            })
        })
        .collect();
    let each = threads(scenario);
    let left_out = records.len().saturating_sub(FIRST + LAST);
    let (first, rest) = records.split_at(records.len().min(FIRST));
    let ops: Vec<Value> = first
        .iter()
        .chain(&rest[left_out..])
        .map(|record| {
            let client = record.compute + record.thread * computes;
            let lane = match (record.compute < computes, record.thread + 1 < each) {
                (true, true) if client < clients => client,
                (true, _) => clients + record.compute,
                (false, _) => looker,
            };
            json!({
                "lane": lane,
                "post": record.serial,
                "verb": record.verb.name(),
                "posted": format!("{:?}", record.posted).to_lowercase(),
                "life": record.life.0,
                "server": record.server.0,
                "addr": format!("{}", record.addr),
                "bytes": record.bytes,
                "at": record.posted_ns,
                "first": record.effect_ns.map(|(first, _)| first),
                "last": record.effect_ns.map(|(_, last)| last),
                "back": record.back_ns,
                "expected": record.expected.map(hex),
                "operand": record.operand.map(hex),
                "old": record.old.map(hex),
                "faults": record.faults,
                "error": record.error.map(|error| error.to_string()),
            })
        })
        .collect();
    let marks: Vec<Value> =
        outcome.marks.iter().map(|(ns, what)| json!({ "at": ns, "what": what })).collect();
    json!({
        "replay": scenario.to_string(),
        "failure": outcome.failure.as_ref().map(ToString::to_string),
        "kind": outcome.failure.as_ref().map(Failure::kind),
        "key": hot_key.map(shown),
        "lanes": lanes,
        "marks": marks,
        "events": events,
        "ops": ops,
        "left_out": left_out,
    })
}

fn hex(word: u64) -> String {
    format!("{word:#x}")
}

/// Bytes as printable ASCII, or in hexadecimal; cut short.
fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN)];
    let is_text = !cut.is_empty() && cut.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = if is_text {
        format!("\"{}\"", String::from_utf8_lossy(cut))
    } else {
        cut.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    match bytes.len() {
        0 => "(empty)".to_owned(),
        len if len > SHOWN => format!("{text}.. ({len} bytes)"),
        _ => text,
    }
}

fn maybe(value: &Option<Vec<u8>>) -> String {
    value.as_deref().map_or("absent".to_owned(), shown)
}

fn verb(call: &Op) -> &'static str {
    match call {
        Op::Get { .. } => "get",
        Op::Insert { .. } => "insert",
        Op::Update { .. } => "update",
        Op::Upsert { .. } => "upsert",
        Op::Remove { .. } => "remove",
        Op::CompareExchange { .. } => "cmpxchg",
        Op::Scan { .. } => "scan",
    }
}

fn told_call(call: &Op) -> String {
    let key = call.key().map(shown).unwrap_or_default();
    match call {
        Op::Get { .. } | Op::Remove { .. } => format!("{} {key}", verb(call)),
        Op::Insert { value, .. } | Op::Update { value, .. } | Op::Upsert { value, .. } => {
            format!("{} {key} = {}", verb(call), shown(value))
        }
        Op::CompareExchange { expected, new, .. } => {
            format!("compare-exchange {key}: {} -> {}", maybe(expected), maybe(new))
        }
        Op::Scan { from, to, reverse, limit } => {
            let (low, high) = show_range(from, to, ["(..", "..)"], shown);
            let way = if *reverse { "down" } else { "up" };
            let limit = if *limit == usize::MAX { "all".to_owned() } else { limit.to_string() };
            format!("scan {low}, {high} {way}, {limit}")
        }
    }
}

fn told_answer(answer: &Answer) -> String {
    match answer {
        Answer::Value(value) => maybe(value),
        Answer::Flag(flag) => flag.to_string(),
        Answer::Exchanged { done, held } => {
            format!("{}, held {}", if *done { "done" } else { "differs" }, maybe(held))
        }
        Answer::Pairs(pairs) => {
            let first = pairs
                .iter()
                .take(6)
                .map(|(key, value)| format!("{} = {}", shown(key), shown(value)));
            let first = first.collect::<Vec<_>>().join("; ");
            format!("{} pairs: {first}{}", pairs.len(), if pairs.len() > 6 { "; .." } else { "" })
        }
        Answer::Nothing => "failed, did nothing".to_owned(),
    }
}
