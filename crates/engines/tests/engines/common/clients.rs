//! Test clients: clients of one table that know their own keys' values and count up together.

use std::collections::BTreeMap;

use farleaf_engines::TableFormat;
use farleaf_index::{Entries, Exchange, Index, KeyFormat, ScanRange, ValueFormat};
use farleaf_pool::Session;

use super::{key, value};

/// Keys with their values.
pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The factor on the number of seeds: `FARLEAF_SOAK=50 cargo test -p farleaf-engines`.
pub fn soak() -> u64 {
    std::env::var("FARLEAF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

/// Runs `steps` operations of a client, and checks what its keys hold at the end. Gives how often it has
/// counted up.
pub async fn run(
    session: &Session,
    index: &impl Index,
    format: &TableFormat,
    client: usize,
    seed: u64,
    steps: usize,
) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed ^ client as u64);
    let (mut model, mut counted) = (Model::new(), 0);
    for step in 0..steps {
        if step % 8 == 0 {
            session.tick().await.expect("tick");
        }
        one_step(session, index, format, client, &mut rng, &mut model, step).await;
        if step % 10 == 0 {
            // Now and then a value that is a record.
            let value_bytes = if rng.u8(..8) == 0 { 5_000 } else { 8 };
            count_up(session, index, format, &mut rng, value_bytes).await;
            counted += 1;
        }
    }
    for (key, held) in &model {
        let mut found = Vec::new();
        assert_eq!(index.get(session, key, &mut found).await, Ok(true));
        assert_eq!(&found, held);
    }
    counted
}

/// One operation on the keys that end in the client's number, which nobody else changes and whose values
/// `model` has, or a scan over everything.
pub async fn one_step(
    session: &Session,
    index: &impl Index,
    format: &TableFormat,
    client: usize,
    rng: &mut fastrand::Rng,
    model: &mut Model,
    step: usize,
) {
    let mut key = key(format, rng, 150);
    match format.spec.key {
        KeyFormat::Fixed(bytes) => key[bytes - 1] = client as u8,
        KeyFormat::Bytes { max } => {
            key.truncate(max - 1);
            key.push(client as u8);
        }
    }
    let value = value(format, rng);
    match rng.u8(..20) {
        0..11 => {
            let new = index.upsert(session, &key, &value).await.expect("upsert");
            assert_eq!(new, model.insert(key, value).is_none());
        }
        11 => {
            let new = index.insert(session, &key, &value).await.expect("insert");
            assert_eq!(new, !model.contains_key(&key));
            model.entry(key).or_insert(value);
        }
        12 => {
            let there = index.update(session, &key, &value).await.expect("update");
            assert_eq!(there, model.contains_key(&key));
            model.entry(key).and_modify(|held| *held = value);
        }
        13..17 => {
            let gone = index.remove(session, &key).await.expect("remove");
            assert_eq!(gone, model.remove(&key).is_some());
        }
        17 | 18 => {
            let mut found = Vec::new();
            let has = index.get(session, &key, &mut found).await.expect("get");
            assert_eq!(has.then_some(found), model.get(&key).cloned());
        }
        _ => {
            let mut out = Entries::new();
            let range = ScanRange { reverse: step.is_multiple_of(2), ..ScanRange::ALL };
            index.scan(session, range, usize::MAX, &mut out).await.expect("scan");
            let mut keys: Vec<_> = out.iter().map(|(key, _)| key.to_vec()).collect();
            if range.reverse {
                keys.reverse();
            }
            assert!(keys.is_sorted_by(|a, b| a < b), "in order, each once");
            let own = out.iter().filter(|(key, _)| key.last() == Some(&(client as u8)));
            let seen: BTreeMap<_, _> =
                own.map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            assert_eq!(&seen, model, "nobody else changes these keys");
            // The same with a limit.
            let limit = keys.len() / 2;
            let mut some = Entries::new();
            index.scan(session, range, limit, &mut some).await.expect("scan");
            assert!(some.len() <= limit);
        }
    }
}

/// Adds one to some counter by compare-exchange; a value of bytes gets `value_bytes`.
pub async fn count_up(
    session: &Session,
    index: &impl Index,
    format: &TableFormat,
    rng: &mut fastrand::Rng,
    value_bytes: usize,
) {
    let key = counter_key(format, rng.u64(..COUNTERS));
    let bytes = match format.spec.value {
        ValueFormat::Fixed(bytes) => bytes,
        ValueFormat::Bytes => value_bytes,
    };
    let mut expected: Option<Vec<u8>> = None;
    loop {
        let mut new = (expected.as_deref().map_or(0, number_of) + 1).to_le_bytes().to_vec();
        new.resize(bytes, 0);
        let mut found = Vec::new();
        let (exchange, had) = index
            .compare_exchange(session, &key, expected.as_deref(), Some(&new), &mut found)
            .await
            .expect("compare_exchange");
        if exchange == Exchange::Done {
            return;
        }
        expected = had.then_some(found);
    }
}

pub const COUNTERS: u64 = 4;

/// A key that no client has: its last byte is none of their numbers.
pub fn counter_key(format: &TableFormat, counter: u64) -> Vec<u8> {
    match format.spec.key {
        KeyFormat::Fixed(bytes) => {
            let mut key = vec![(counter * 60) as u8; bytes];
            key[bytes - 1] = 0xcc;
            key
        }
        KeyFormat::Bytes { .. } => vec![b"1cpz"[counter as usize], 0xcc],
    }
}

pub fn number_of(value: &[u8]) -> u64 {
    value.iter().take(8).enumerate().map(|(at, byte)| u64::from(*byte) << (8 * at)).sum()
}

/// The sum of all counters in the table: how often clients counted up.
pub async fn sum_of_counters(session: &Session, index: &impl Index, format: &TableFormat) -> u64 {
    let mut sum = 0;
    for counter in 0..COUNTERS {
        let mut found = Vec::new();
        let key = counter_key(format, counter);
        if index.get(session, &key, &mut found).await == Ok(true) {
            sum += number_of(&found);
        }
    }
    sum
}
