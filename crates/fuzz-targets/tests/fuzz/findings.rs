//! Findings: inputs that once broke something, each with its story.

use farleaf_fuzz_targets::target;

fn run(name: &str, input: &[u8]) {
    (target(name).expect("a target").run)(input);
}

/// A pool that is formatted for 65,535 tables, as it may be: its root table was read into one
/// buffer, which cannot be longer than 2 MiB, and whoever opened a table panicked.
#[test]
fn a_root_table_may_be_longer_than_a_buffer() {
    run("superblock", b"\x01\x09\x00\x10\x10\x00\x40\x00\xff\xff\x40\x00");
}

/// `0.09309` was kept as 9.309000000000001 %, and that was read as another number again: digits
/// beyond 2^53 were rounded before they were divided.
#[test]
fn a_share_is_printed_as_it_is_read() {
    run("text", b"0.09309");
    run("text", b"9.309000000000001%");
}
