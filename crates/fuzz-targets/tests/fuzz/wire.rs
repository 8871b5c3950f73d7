//! Wire seed tests: the seeds of `wire` reach the code that they are meant for.
//!
//! A target that refuses all its inputs at once would find nothing.

use std::path::PathBuf;

use farleaf_fabric::tcp::fuzz;

fn seed(name: &str) -> Vec<u8> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
    std::fs::read(corpus.join(format!("seed-{name}"))).expect("the seed")
}

#[test]
fn every_verb_is_answered() {
    for (name, answers) in [("verbs", 10), ("pieces", 10), ("chain", 2), ("long", 16)] {
        let seed = seed(name);
        assert_eq!(fuzz::serve(true, seed[2..].chunks(7)), answers, "{name}");
        assert_eq!(fuzz::serve(true, seed[2..].chunks(4096)), answers, "{name}");
    }
    // Its own fence, and then the end.
    assert_eq!(fuzz::serve(true, seed("fenced")[2..].chunks(4096)), 3);
    assert_eq!(fuzz::serve(false, seed("hello")[2..].chunks(4096)), 10);
}

#[test]
fn every_post_is_answered() {
    for (name, done) in [("answers", 8), ("answers-abandoned", 0), ("answers-short", 0)] {
        let seed = seed(name);
        let (posts, answers) = seed[3..].split_at(8);
        assert_eq!(fuzz::ask(posts, answers.chunks(3)), done, "{name}");
        assert_eq!(fuzz::ask(posts, answers.chunks(4096)), done, "{name}");
    }
}

#[test]
fn calls_and_replies_are_told_apart() {
    let calls = seed("calls");
    for piece in [7, 4096] {
        assert_eq!(fuzz::calls(calls[2..].chunks(piece)), 5, "four calls and a READ");
        assert_eq!(fuzz::serve(true, calls[2..].chunks(piece)), 0, "no memory server takes calls");
    }
    let replies = seed("replies");
    let (posts, answers) = replies[3..].split_at(3);
    for piece in [3, 4096] {
        assert_eq!(fuzz::ask(posts, answers.chunks(piece)), 2, "done, not begun, and unknown");
    }
}
