//! History target: files of histories, and the checker on their content.

use farleaf_check::history::{read_jsonl, write_jsonl};
use farleaf_check::linear::{Limits, check};

/// A history that was read is written as the same again, and gets a verdict.
pub(crate) fn run(input: &[u8]) {
    let history = match read_jsonl(input) {
        Ok(history) => history,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut written = Vec::new();
    write_jsonl(&mut written, &history).expect("what was read can be written");
    let again = read_jsonl(&*written).expect("what was written can be read");
    assert_eq!(again, history);
    let limits = Limits { key_steps_max: 10_000, steps_max: 20_000 };
    let verdict = check(&history, &limits);
    assert_eq!(format!("{:?}", check(&again, &limits)), format!("{verdict:?}"));
}
