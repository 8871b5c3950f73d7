//! History file tests: round trips, files cut at every byte, and every kind of malformed line.

use std::io::Write;
use std::ops::Bound;

use super::*;

fn bytes(rng: &mut fastrand::Rng) -> Vec<u8> {
    (0..rng.usize(..12)).map(|_| rng.u8(..)).collect()
}

fn option(rng: &mut fastrand::Rng) -> Option<Vec<u8>> {
    rng.bool().then(|| bytes(rng))
}

fn bound(rng: &mut fastrand::Rng) -> Bound<Vec<u8>> {
    match rng.u8(..3) {
        0 => Bound::Included(bytes(rng)),
        1 => Bound::Excluded(bytes(rng)),
        _ => Bound::Unbounded,
    }
}

fn event(rng: &mut fastrand::Rng) -> Event {
    let key = bytes(rng);
    let value = bytes(rng);
    let call = match rng.u8(..7) {
        0 => Op::Get { key },
        1 => Op::Insert { key, value },
        2 => Op::Update { key, value },
        3 => Op::Upsert { key, value },
        4 => Op::Remove { key },
        5 => Op::CompareExchange { key, expected: option(rng), new: option(rng) },
        _ => Op::Scan {
            from: bound(rng),
            to: bound(rng),
            reverse: rng.bool(),
            limit: if rng.bool() { usize::MAX } else { rng.usize(..) },
        },
    };
    let answer = match &call {
        _ if rng.u8(..5) == 0 => Answer::Nothing,
        Op::Get { .. } => Answer::Value(option(rng)),
        Op::CompareExchange { .. } => Answer::Exchanged { done: rng.bool(), held: option(rng) },
        Op::Scan { .. } => {
            Answer::Pairs((0..rng.usize(..4)).map(|_| (bytes(rng), bytes(rng))).collect())
        }
        _ => Answer::Flag(rng.bool()),
    };
    let from_ns = rng.u64(..) >> rng.u32(..64);
    let answer = (rng.u8(..4) > 0).then(|| (rng.u64(from_ns..), answer));
    Event { client: rng.u32(..), call, from_ns, answer }
}

fn history(seed: u64) -> History {
    let mut rng = fastrand::Rng::with_seed(seed);
    let initial: std::collections::BTreeMap<_, _> =
        (0..rng.usize(..5)).map(|_| (bytes(&mut rng), bytes(&mut rng))).collect();
    let events = (0..rng.usize(..12)).map(|_| event(&mut rng)).collect();
    History { initial: initial.into_iter().collect(), events }
}

#[test]
fn a_history_comes_back_as_it_was() {
    for seed in 0..2000 {
        let history = history(seed);
        let mut file = Vec::new();
        write_jsonl(&mut file, &history).unwrap();
        assert_eq!(read_jsonl(&file[..]).unwrap(), history, "seed {seed}");
        let begun = begun(&history);
        assert_eq!(read_jsonl(&begun[..]).unwrap(), history, "seed {seed}");
    }
}

/// The history with operations begun and ended, ends after all begins.
fn begun(history: &History) -> Vec<u8> {
    let mut writer = HistoryWriter::new(Vec::new()).unwrap();
    for (key, value) in &history.initial {
        writer.initial(key, value).unwrap();
    }
    let mut numbers = Vec::new();
    for event in &history.events {
        numbers.push(writer.begin(event.client, &event.call, event.from_ns).unwrap());
    }
    for (number, event) in numbers.into_iter().zip(&history.events) {
        if let Some((to_ns, answer)) = &event.answer {
            writer.end(number, *to_ns, answer).unwrap();
        }
    }
    writer.into_inner()
}

#[test]
fn a_file_cut_anywhere_holds_what_was_written_before() {
    for seed in 0..20 {
        let history = history(seed);
        let file = begun(&history);
        let mut before = 0;
        for cut in 0..=file.len() {
            let part = read_jsonl(&file[..cut]).unwrap();
            let known = part.initial.len()
                + part.events.len()
                + part.events.iter().filter(|event| event.answer.is_some()).count();
            // A line counts from its last byte before the line's end on.
            let is_line = cut > 0 && (cut == file.len() || file[cut] == b'\n');
            let is_header = !file[..cut].contains(&b'\n');
            assert_eq!(
                known - before,
                usize::from(is_line && !is_header && file[cut - 1] != b'\n')
            );
            before = known;
            for (one, other) in part.events.iter().zip(&history.events) {
                assert_eq!((one.client, &one.call), (other.client, &other.call));
                assert!(one.answer.is_none() || one.answer == other.answer);
            }
        }
        assert_eq!(read_jsonl(&file[..]).unwrap(), history);
    }
}

fn fault(lines: &[&str]) -> (u64, LineFault) {
    let mut file = String::from("{\"op\":\"history\",\"version\":1}\n");
    for line in lines {
        file += line;
        file += "\n";
    }
    match read_jsonl(file.as_bytes()) {
        Err(HistoryError::Line { line, fault }) => (line, fault),
        other => panic!("{lines:?}: {other:?}"),
    }
}

#[test]
fn malformed_lines_are_refused_with_their_place() {
    let get = r#"{"client":1,"op":"get","key":"aw==","from_ns":5,"to_ns":6,"result":null}"#;
    let field = |field: &'static str| move |fault: &LineFault| matches!(fault, LineFault::Field { field: found, .. } if *found == field);
    let check = |line: &str, is_right: &dyn Fn(&LineFault) -> bool| {
        let (number, found) = fault(&[get, line]);
        assert_eq!(number, 3, "{line}");
        assert!(is_right(&found), "{line}: {found}");
    };
    let edit = |from: &str, to: &str| {
        assert!(get.contains(from));
        get.replace(from, to)
    };
    check("", &|fault| matches!(fault, LineFault::Json(_)));
    check("{\"op\":", &|fault| matches!(fault, LineFault::Json(_)));
    check("[1]", &|fault| *fault == LineFault::NotObject);
    check(&edit("get", "got"), &|fault| *fault == LineFault::UnknownOp("got".into()));
    check(&edit("\"get\"", "7"), &field("op"));
    check(&edit("\"to_ns\"", "\"x\":1,\"to_ns\""), &|fault| {
        *fault == LineFault::UnknownField("x".into())
    });
    check(&edit("\"key\":\"aw==\",", ""), &|fault| *fault == LineFault::Missing("key"));
    check(&edit("aw==", "aw"), &field("key"));
    check(&edit("aw==", "*w=="), &field("key"));
    check(&edit("\"aw==\"", "12"), &field("key"));
    check(&edit("\"client\":1", "\"client\":4294967296"), &field("client"));
    check(&edit("\"client\":1", "\"client\":-1"), &field("client"));
    check(&edit("\"from_ns\":5", "\"from_ns\":5.5"), &field("from_ns"));
    check(&edit("\"to_ns\":6", "\"to_ns\":18446744073709551616"), &field("to_ns"));
    check(&edit("\"to_ns\":6", "\"to_ns\":4"), &|fault| {
        *fault == LineFault::Times { from_ns: 5, to_ns: 4 }
    });
    check(&edit("\"result\":null", "\"result\":true"), &field("result"));
    check(&edit("\"result\":null", "\"result\":{\"failed\":1}"), &field("result"));
    check(&edit(",\"result\":null", ""), &|fault| *fault == LineFault::Missing("result"));
    check(&edit("6,\"result\":null", "null,\"result\":\"aw==\""), &field("result"));
    let scan = r#"{"client":1,"op":"scan","from":null,"to":null,"reverse":false,"limit":null,"from_ns":5,"to_ns":6,"result":[]}"#;
    for (from, to, name) in [
        ("\"from\":null", "\"from\":{}", "from"),
        ("\"to\":null", "\"to\":{\"included\":1}", "to"),
        ("false", "0", "reverse"),
        ("\"limit\":null", "\"limit\":-1", "limit"),
        ("[]", "[[\"aw==\"]]", "result"),
        ("[]", "null", "result"),
    ] {
        check(&scan.replace(from, to), &field(name));
    }
    check(r#"{"op":"initial","key":"aw=="}"#, &|fault| *fault == LineFault::Missing("value"));
    check(r#"{"end":3,"to_ns":6,"result":true}"#, &|fault| *fault == LineFault::NotBegun(3));
    check(r#"{"op":"history","version":1}"#, &|fault| matches!(fault, LineFault::UnknownOp(_)));
    let begin = r#"{"begin":0,"client":1,"op":"get","key":"aw==","from_ns":5}"#;
    assert_eq!(fault(&[begin, begin]), (3, LineFault::BegunTwice(0)));
    let end = r#"{"end":0,"to_ns":4,"result":null}"#;
    assert_eq!(fault(&[begin, end]), (3, LineFault::Times { from_ns: 5, to_ns: 4 }));
    let initial = r#"{"op":"initial","key":"aw==","value":""}"#;
    assert_eq!(fault(&[initial, initial]), (3, LineFault::InitialTwice));
}

#[test]
fn another_version_or_file_is_refused() {
    for (file, expected) in [
        ("{\"op\":\"history\",\"version\":2}\n", LineFault::Version(2)),
        ("{\"op\":\"initial\",\"key\":\"\",\"value\":\"\"}\n", LineFault::Header),
    ] {
        let found = read_jsonl(file.as_bytes());
        let Err(HistoryError::Line { line: 1, fault }) = found else { panic!("{found:?}") };
        assert_eq!(fault, expected);
    }
    assert_eq!(read_jsonl(&b""[..]).unwrap(), History::default());
}

#[test]
fn long_lines_are_bounded() {
    let endless = std::io::repeat(b' ');
    let found = read_jsonl(endless);
    let Err(HistoryError::Line { line: 1, fault }) = found else { panic!("{found:?}") };
    assert_eq!(fault, LineFault::TooLong);
    let mut writer = HistoryWriter::new(Vec::new()).unwrap();
    let long = writer.initial(&[0; LINE_BYTES_MAX], &[]);
    assert!(matches!(long, Err(HistoryError::TooLong { .. })));
    // It was not written, and the file is whole.
    writer.initial(b"k", b"v").unwrap();
    assert_eq!(read_jsonl(&writer.into_inner()[..]).unwrap().initial.len(), 1);
}

/// Has room for some bytes only.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_follows_half_a_line() {
    let mut writer = HistoryWriter::new(Full(40)).unwrap();
    assert!(matches!(writer.initial(b"key", b"value"), Err(HistoryError::Io(_))));
    writer.out.0 = 1000;
    assert!(matches!(writer.initial(b"key", b"value"), Err(HistoryError::Broken)));
}

#[test]
fn histories_of_processes_come_together() {
    let event =
        |client, from_ns| Event { client, call: Op::Get { key: vec![1] }, from_ns, answer: None };
    let pair = |value: u8| vec![(vec![1], vec![value])];
    let one = History { initial: pair(7), events: vec![event(1, 30), event(1, 10)] };
    let two = History { initial: pair(7), events: vec![event(2, 20)] };
    let merged = merge([one.clone(), two]).unwrap();
    assert_eq!(merged.initial, pair(7));
    assert_eq!(merged.events, [event(1, 10), event(2, 20), event(1, 30)]);
    let three = History { initial: pair(8), events: vec![] };
    assert!(
        matches!(merge([one, three]), Err(HistoryError::InitialConflict { key }) if key == [1])
    );
}
