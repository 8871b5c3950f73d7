//! Trace tests: a run is drawn whole, and its data stay data.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use farleaf_check::history::{Answer, Event, Op};
use farleaf_check::run::{Failure, Outcome, run_with};
use farleaf_check::scenario::{Choices, Scenario};
use farleaf_check::trace::write_html;
use serde_json::Value;

/// The data of a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("const D = ").unwrap();
    serde_json::from_str(rest.split_once(";\n").unwrap().0).unwrap()
}

#[test]
fn a_run_is_drawn_whole() {
    let mut choices = Choices::default();
    let pinned = [
        // An engine whose clients work on the memory servers themselves.
        ("engine", "btree"),
        ("compute-servers", "2"),
        ("clients", "3"),
        ("ops", "12"),
        ("event", "kill:1@40000"),
    ];
    for (flag, text) in pinned {
        choices.set(flag, text).unwrap();
    }
    let scenario = choices.scenario(4);
    let (outcome, records) = run_with(&scenario, true);
    let mut page = Vec::new();
    write_html(&mut page, &scenario, &outcome, &records).unwrap();
    let page = String::from_utf8(page).unwrap();
    let data = data(&page);
    assert_eq!(data["replay"], scenario.to_string());
    assert_eq!(data["lanes"].as_array().unwrap().len(), 3 + 2 + 1);
    let events = data["events"].as_array().unwrap();
    assert_eq!(events.len(), outcome.history.events.len());
    let ops = data["ops"].as_array().unwrap();
    assert_eq!(ops.len(), records.len());
    assert!(ops.len() > events.len());
    let marks: Vec<&str> = data["marks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mark| mark["what"].as_str().unwrap())
        .collect();
    assert!(marks.contains(&"start") && marks.contains(&"kill:1"), "{marks:?}");
    // Every client's lane has remote operations of its own within its operations' time.
    for lane in 0..3 {
        let event = events.iter().find(|event| event["lane"] == lane).unwrap();
        let (from, to) = (event["from"].as_u64(), event["to"].as_u64().or(Some(u64::MAX)));
        let is_its = |op: &&Value| {
            op["lane"] == lane && op["at"].as_u64() >= from && op["at"].as_u64() <= to
        };
        assert!(ops.iter().any(|op| is_its(&op)), "lane {lane}");
    }
    // The page loads nothing from elsewhere.
    for word in ["http://", "https://", "src=", "@import", "url("] {
        let rest = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!rest.contains(word), "{word}");
    }
}

#[test]
fn blamed_events_are_marked_and_data_cannot_end_the_script() {
    let scenario = Scenario::from_seed(1, &Choices::default());
    let key = b"</script>".to_vec();
    let event = Event {
        client: 0,
        call: Op::Get { key: key.clone() },
        from_ns: 5,
        answer: Some((9, Answer::Value(None))),
    };
    let failure =
        Failure::NotLinearizable { key: Some(key), why: "because".to_owned(), events: vec![0] };
    let mut outcome = Outcome { failure: Some(failure), ..Outcome::default() };
    outcome.history.events.push(event);
    outcome.steps.push(Some((0, 3)));
    let mut page = Vec::new();
    write_html(&mut page, &scenario, &outcome, &[]).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert_eq!(page.matches("</script>").count(), 1);
    let data = data(&page);
    assert_eq!(data["events"][0]["blamed"], true);
    assert_eq!(data["events"][0]["key"], "\"</script>\"");
    assert_eq!(data["key"], data["events"][0]["key"]);
    assert_eq!(data["kind"], "not-linearizable");
}
