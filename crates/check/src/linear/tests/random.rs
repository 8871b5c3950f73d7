//! Random histories: small random histories against every possible order.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A history of an atomic map: each operation takes effect at a random moment of its time.
/// `late_of` in ten operations get no answer, and take effect at any later moment, or never.
fn atomic(rng: &mut fastrand::Rng, count: usize, keys: usize, late_of: u8) -> History {
    let names = &["a", "b", "c", "d"][..keys];
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for name in names {
        if rng.bool() {
            map.insert(bytes(name), bytes("0"));
        }
    }
    let initial = map.clone().into_iter().collect();
    let mut events = Vec::new();
    // Moments at which something takes effect: time, event, key of a scan's look.
    let mut effects: Vec<(u64, usize, Option<Vec<u8>>)> = Vec::new();
    let mut client_free = [0; 3];
    for at in 0..count {
        let client = rng.usize(..client_free.len());
        let from_ns = client_free[client] + rng.u64(0..3);
        let to_ns = from_ns + rng.u64(0..8);
        client_free[client] = to_ns;
        let name = names[rng.usize(..names.len())];
        let new = if rng.bool() { at.to_string() } else { rng.u8(0..2).to_string() };
        let old = rng.u8(0..2).to_string();
        let call = match rng.u8(..8) {
            0 | 1 => get(name),
            2 => insert(name, &new),
            3 => update(name, &new),
            4 => upsert(name, &new),
            5 => remove(name),
            6 => exchange(name, rng.bool().then_some(&*old), rng.bool().then_some(&*new)),
            _ => Op::Scan {
                from: Bound::Unbounded,
                to: Bound::Unbounded,
                reverse: rng.bool(),
                limit: rng.usize(0..4),
            },
        };
        let is_scan = matches!(call, Op::Scan { .. });
        if !is_scan && rng.u8(..10) < late_of {
            if rng.bool() {
                effects.push((from_ns + rng.u64(0..40), at, None));
            }
            events.push(unknown(client as u32, from_ns, call));
            continue;
        }
        let answer = if is_scan { Answer::Pairs(Vec::new()) } else { Answer::Nothing };
        if is_scan {
            for name in names {
                effects.push((rng.u64(from_ns..=to_ns), at, Some(bytes(name))));
            }
        } else {
            effects.push((rng.u64(from_ns..=to_ns), at, None));
        }
        events.push(event(client as u32, from_ns, to_ns, call, answer));
    }
    // Of one client at one moment, in its own order.
    effects.sort_by_key(|effect| (effect.0, effect.1));
    for (_, at, look) in effects {
        let event = &mut events[at];
        if let Some(key) = look {
            if let (Some((_, Answer::Pairs(pairs))), Some(value)) =
                (&mut event.answer, map.get(&key))
            {
                pairs.push((key, value.clone()));
            }
            continue;
        }
        let told = apply(&mut map, &event.call);
        if let Some((_, answer)) = &mut event.answer {
            *answer = told;
        }
    }
    for event in &mut events {
        if let (Op::Scan { reverse, limit, .. }, Some((_, Answer::Pairs(pairs)))) =
            (&event.call, &mut event.answer)
        {
            pairs.sort();
            if *reverse {
                pairs.reverse();
            }
            pairs.truncate(*limit);
        }
    }
    History { initial, events }
}

fn apply(map: &mut BTreeMap<Vec<u8>, Vec<u8>>, call: &Op) -> Answer {
    let key = call.key().expect("no scan");
    let held = map.get(key).cloned();
    let (new, answer) = match call {
        Op::Insert { value, .. } => {
            (held.clone().or(Some(value.clone())), Answer::Flag(held.is_none()))
        }
        Op::Update { value, .. } => {
            (held.clone().map(|_| value.clone()), Answer::Flag(held.is_some()))
        }
        Op::Upsert { value, .. } => (Some(value.clone()), Answer::Flag(held.is_none())),
        Op::Remove { .. } => (None, Answer::Flag(held.is_some())),
        Op::CompareExchange { expected, new, .. } => {
            let done = *expected == held;
            (if done { new.clone() } else { held.clone() }, Answer::Exchanged { done, held })
        }
        Op::Get { .. } | Op::Scan { .. } => (held.clone(), Answer::Value(held)),
    };
    match new {
        Some(value) => map.insert(key.to_vec(), value),
        None => map.remove(key),
    };
    answer
}

/// Changes an answer, or its time.
fn mutate(rng: &mut fastrand::Rng, history: &mut History) {
    let count = history.events.len();
    let event = &mut history.events[rng.usize(..count)];
    let Some((to_ns, answer)) = &mut event.answer else {
        // A client has one operation under way at a time.
        event.client = 100 + rng.u32(..100);
        event.from_ns += rng.u64(0..10);
        return;
    };
    let other = rng.bool().then(|| bytes(&rng.u8(0..3).to_string()));
    match answer {
        _ if rng.u8(..4) == 0 => {
            event.client = 100 + rng.u32(..100);
            event.from_ns = to_ns.saturating_sub(rng.u64(0..3));
        }
        Answer::Value(value) => *value = other,
        Answer::Flag(flag) => *flag = !*flag,
        Answer::Exchanged { done, .. } if rng.bool() => *done = !*done,
        Answer::Exchanged { held, .. } => *held = other,
        Answer::Pairs(pairs) if !pairs.is_empty() => {
            let at = rng.usize(..pairs.len());
            match other {
                Some(value) => pairs[at].1 = value,
                None => drop(pairs.remove(at)),
            }
        }
        Answer::Pairs(_) | Answer::Nothing => *to_ns = event.from_ns,
    }
}

/// Returns whether there is an order, by trying all: each key by itself, a scan as a look at each
/// key.
fn reference(history: &History) -> bool {
    let mut keys: BTreeSet<&[u8]> = history.initial.iter().map(|pair| &pair.0[..]).collect();
    for event in &history.events {
        keys.extend(event.call.key());
        if let Some((_, Answer::Pairs(pairs))) = &event.answer {
            keys.extend(pairs.iter().map(|pair| &pair.0[..]));
        }
    }
    keys.into_iter().all(|key| {
        let mut map = BTreeMap::new();
        if let Some(pair) = history.initial.iter().find(|pair| pair.0 == key) {
            map.insert(key.to_vec(), pair.1.clone());
        }
        let mut events = Vec::new();
        for (place, event) in history.events.iter().enumerate() {
            let mut event = event.clone();
            if let Op::Scan { reverse, limit, .. } = event.call {
                let Some((_, Answer::Pairs(pairs))) = &event.answer else { continue };
                let is_behind = pairs.last().is_some_and(|last| {
                    if reverse { key < &last.0[..] } else { key > &last.0[..] }
                });
                if pairs.len() == limit && (limit == 0 || is_behind) {
                    continue;
                }
                let seen = pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1.clone());
                event.call = Op::Get { key: key.to_vec() };
                event.answer = event.answer.map(|(to_ns, _)| (to_ns, Answer::Value(seen)));
            }
            if event.call.key() == Some(key) {
                events.push((place, event));
            }
        }
        any_order(&events, &mut vec![false; events.len()], &map)
    })
}

fn any_order(
    events: &[(usize, Event)],
    placed: &mut [bool],
    map: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> bool {
    let is_done = |(at, (_, event)): (usize, &(usize, Event))| placed[at] || event.answer.is_none();
    if events.iter().enumerate().all(is_done) {
        return true;
    }
    for at in 0..events.len() {
        let (place, event) = &events[at];
        let must_wait = events.iter().enumerate().any(|(other, (other_place, before))| {
            !placed[other]
                && before.answer.as_ref().is_some_and(|&(to_ns, _)| {
                    to_ns < event.from_ns
                        || (to_ns == event.from_ns
                            && before.client == event.client
                            && other_place < place)
                })
        });
        if placed[at] || must_wait {
            continue;
        }
        let mut after = map.clone();
        let told = apply(&mut after, &event.call);
        if event.answer.as_ref().is_none_or(|(_, answer)| *answer == told) {
            placed[at] = true;
            if any_order(events, placed, &after) {
                return true;
            }
            placed[at] = false;
        }
    }
    false
}

fn soak() -> u64 {
    std::env::var("FARLEAF_SOAK").ok().and_then(|times| times.parse().ok()).unwrap_or(1)
}

#[test]
fn every_history_of_an_atomic_map_is_right() {
    for seed in 0..3000 * soak() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(1..120);
        let late_of = rng.u8(0..4);
        let keys = rng.usize(1..=4);
        let history = atomic(&mut rng, count, keys, late_of);
        match check(&history, &Limits::default()) {
            Ok(checked) => assert!(checked.is_decided(), "seed {seed}: {:?}", checked.undecided),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
}

#[test]
fn the_search_agrees_with_trying_every_order() {
    let mut right = 0;
    let mut wrong = 0;
    for seed in 0..12_000 * soak() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(2..10);
        let late_of = rng.u8(0..5);
        let keys = rng.usize(1..=2);
        let mut history = atomic(&mut rng, count, keys, late_of);
        for _ in 0..rng.usize(0..4) {
            mutate(&mut rng, &mut history);
        }
        let expected = reference(&history);
        let found = check(&history, &Limits::default());
        match &found {
            Ok(checked) => assert!(checked.is_decided(), "seed {seed}"),
            // The example has no order either, and each row is one of the history.
            Err(Violation::Key(violation)) => {
                let shown = violation.rows.iter().map(|row| history.events[row.event].clone());
                let starts: Vec<_> = violation.starts.clone();
                let shown: Vec<Event> = shown.collect();
                for start in starts {
                    use super::super::Held;
                    let held = match start {
                        Held::Absent => None,
                        Held::Value(value) => Some(value),
                        Held::Unseen => Some(bytes("unseen")),
                    };
                    let initial = held.map(|value| (violation.key.clone(), value));
                    let initial = initial.into_iter().collect();
                    let part = History { initial, events: shown.clone() };
                    assert!(!reference_of(&part, &violation.key), "seed {seed}: {violation}");
                }
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
        assert_eq!(found.is_ok(), expected, "seed {seed}: {found:?} {history:#?}");
        *(if expected { &mut right } else { &mut wrong }) += 1;
    }
    assert!(right > 2000 && wrong > 2000, "{right} right, {wrong} wrong: too one-sided");
}

/// [`reference`] for one key, scans being looks at that key.
fn reference_of(history: &History, key: &[u8]) -> bool {
    let mut part = history.clone();
    for event in &mut part.events {
        if let (Op::Scan { .. }, Some((_, answer))) = (&event.call, &mut event.answer)
            && let Answer::Pairs(pairs) = answer
        {
            let seen = pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1.clone());
            event.call = Op::Get { key: key.to_vec() };
            *answer = Answer::Value(seen);
        }
    }
    reference(&part)
}
