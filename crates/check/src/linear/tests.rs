//! Checker tests: known histories, and small random ones against a checker that tries every order.

mod known;
mod random;

use std::ops::Bound;

use super::{Checked, Limits, Violation, check};
use crate::history::{Answer, Event, History, Op};

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn event(client: u32, from_ns: u64, to_ns: u64, call: Op, answer: Answer) -> Event {
    Event { client, call, from_ns, answer: Some((to_ns, answer)) }
}

fn unknown(client: u32, from_ns: u64, call: Op) -> Event {
    Event { client, call, from_ns, answer: None }
}

fn get(key: &str) -> Op {
    Op::Get { key: bytes(key) }
}

fn insert(key: &str, value: &str) -> Op {
    Op::Insert { key: bytes(key), value: bytes(value) }
}

fn upsert(key: &str, value: &str) -> Op {
    Op::Upsert { key: bytes(key), value: bytes(value) }
}

fn update(key: &str, value: &str) -> Op {
    Op::Update { key: bytes(key), value: bytes(value) }
}

fn remove(key: &str) -> Op {
    Op::Remove { key: bytes(key) }
}

fn exchange(key: &str, expected: Option<&str>, new: Option<&str>) -> Op {
    Op::CompareExchange { key: bytes(key), expected: expected.map(bytes), new: new.map(bytes) }
}

fn scan(limit: usize) -> Op {
    Op::Scan { from: Bound::Unbounded, to: Bound::Unbounded, reverse: false, limit }
}

fn value(value: &str) -> Answer {
    Answer::Value(Some(bytes(value)))
}

fn pairs(pairs: &[(&str, &str)]) -> Answer {
    Answer::Pairs(content(pairs))
}

fn content(pairs: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect()
}

const ABSENT: Answer = Answer::Value(None);
const YES: Answer = Answer::Flag(true);
const NO: Answer = Answer::Flag(false);

fn run(initial: &[(&str, &str)], events: Vec<Event>) -> Result<Checked, Violation> {
    let history = History { initial: content(initial), events };
    check(&history, &Limits::default())
}

#[track_caller]
fn right(initial: &[(&str, &str)], events: Vec<Event>) {
    match run(initial, events) {
        Ok(checked) => assert!(checked.is_decided()),
        Err(violation) => panic!("{violation}"),
    }
}

#[track_caller]
fn wrong(initial: &[(&str, &str)], events: Vec<Event>) -> Violation {
    run(initial, events).expect_err("it should have been refused")
}
