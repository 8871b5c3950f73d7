//! Checker speed: counts the operations that the checker checks per second, on one core.
//!
//! `cargo run --profile test -p farleaf-check --example check_rate -- [operations]`: histories of an
//! atomic map, whose operations overlap as much as `clients` at a time allow.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use farleaf_check::history::{Answer, Event, History, Op};
use farleaf_check::linear::{Limits, check};

struct Shape {
    name: &'static str,
    clients: u32,
    keys: u64,
    /// For each thousand operations.
    scans: u64,
    /// For each thousand operations.
    unknown: u64,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "many keys", clients: 32, keys: 100_000, scans: 0, unknown: 1 },
    Shape { name: "few keys", clients: 32, keys: 100, scans: 0, unknown: 1 },
    Shape { name: "one key", clients: 8, keys: 1, scans: 0, unknown: 0 },
    Shape { name: "scans of 20", clients: 32, keys: 1000, scans: 100, unknown: 1 },
    Shape { name: "much unknown", clients: 32, keys: 1000, scans: 10, unknown: 50 },
];

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    println!("{:<14} {:>9} {:>9} {:>10} {:>12}", "history", "ops", "looks", "undecided", "ops/s");
    for shape in &SHAPES {
        let history = history(shape, count);
        let start = Instant::now();
        match check(&history, &Limits::default()) {
            Ok(checked) => println!(
                "{:<14} {:>9} {:>9} {:>10} {:>12.0}",
                shape.name,
                checked.operations,
                checked.looks,
                checked.undecided.len(),
                checked.operations as f64 / start.elapsed().as_secs_f64()
            ),
            Err(violation) => {
                eprintln!("{}: a right history was refused\n{violation}", shape.name);
                std::process::exit(1);
            }
        }
    }
}

/// Operations that take effect at a random moment of their time.
fn history(shape: &Shape, count: u64) -> History {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for key in (0..shape.keys).step_by(2) {
        map.insert(key.to_be_bytes().to_vec(), b"initial".to_vec());
    }
    let initial = map.clone().into_iter().collect();
    let mut free = vec![0; shape.clients as usize];
    let mut events = Vec::new();
    let mut effects = Vec::new();
    for at in 0..count {
        let client = rng.u32(..shape.clients);
        let from_ns = free[client as usize] + rng.u64(0..1000);
        let to_ns = from_ns + rng.u64(1000..10_000);
        free[client as usize] = to_ns;
        let key = rng.u64(..shape.keys).to_be_bytes().to_vec();
        let value = at.to_be_bytes().to_vec();
        let is_scan = rng.u64(..1000) < shape.scans;
        let call = match rng.u8(..10) {
            _ if is_scan => Op::Scan {
                from: Bound::Included(key),
                to: Bound::Unbounded,
                reverse: false,
                limit: 20,
            },
            0..5 => Op::Get { key },
            5..7 => Op::Upsert { key, value },
            7 => Op::Insert { key, value },
            8 => Op::Update { key, value },
            _ => Op::Remove { key },
        };
        let is_unknown = !is_scan && rng.u64(..1000) < shape.unknown;
        let late = if is_unknown { rng.u64(..100_000) } else { 0 };
        if !(is_unknown && rng.bool()) {
            effects.push((rng.u64(from_ns..=to_ns) + late, at as usize));
        }
        let answer = (!is_unknown).then_some((to_ns, Answer::Nothing));
        events.push(Event { client, call, from_ns, answer });
    }
    effects.sort_unstable();
    for (_, at) in effects {
        let told = apply(&mut map, &events[at].call);
        if let Some((_, answer)) = &mut events[at].answer {
            *answer = told;
        }
    }
    History { initial, events }
}

fn apply(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, call: &Op) -> Answer {
    match call {
        Op::Get { key } => Answer::Value(map.get(key).cloned()),
        Op::Insert { key, value } => {
            let is_new = !map.contains_key(key);
            map.entry(key.clone()).or_insert_with(|| value.clone());
            Answer::Flag(is_new)
        }
        Op::Update { key, value } => Answer::Flag(match map.get_mut(key) {
            Some(held) => {
                held.clone_from(value);
                true
            }
            None => false,
        }),
        Op::Upsert { key, value } => Answer::Flag(map.insert(key.clone(), value.clone()).is_none()),
        Op::Remove { key } => Answer::Flag(map.remove(key).is_some()),
        Op::Scan { from, to, limit, .. } => {
            let range = map.range((from.clone(), to.clone())).take(*limit);
            Answer::Pairs(range.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        Op::CompareExchange { .. } => Answer::Nothing,
    }
}
