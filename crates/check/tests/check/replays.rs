//! Replays: command lines that once showed a bug pass.
//!
//! A line keeps its meaning only as long as seeds draw the same scenarios. So each line states all
//! that matters, as `--shrink` left it, and the test beside the mended code stays the proof.

use farleaf_check::run::run;
use farleaf_check::scenario::Choices;

/// Past bugs, each with the command line that showed it.
const FOUND: &[(&str, &str)] = &[
    (
        "two sessions of one member took the same free block; the second, refused, noted the block \
         as one whose outcome is unknown, and a tick freed it while the first was carving it",
        "--engine btree --seed 6927 --ops 18 --keys 1 --faults jitter=200 \
         --only 0:15,17/1:13/2:13-14/3:16-17/5:0/6:8/7:8",
    ),
    (
        "the same, found by an allocation",
        "--engine btree --seed 881 --salt 2 --memory-servers 2 --clients 4 --ops 15 --preload 0 \
         --faults jitter=1500 --only 0:0-7/1:0-9/3:0-14",
    ),
    (
        "the simulator let a WRITE land that an earlier reconnect had cut",
        "--engine btree --seed 2090 --salt 3 --memory-servers 1 --ops 73 --keys 1 --window 108..151 \
         --event restart:1@17074368 --only 0:37-54,64-72",
    ),
    (
        "the same, met by a writer",
        "--engine btree --seed 483 --salt 3 --ops 77 --preload 1 \
         --faults torn=0.5,lost=0.02,lost-ns=1000000,shuffle=1 --window 81..207 \
         --event restart:1@3010657 --only 0:62-70,74-76/1:14,16-20,23-24,26",
    ),
    (
        "a session gave up a block while another of its member tried to adopt it by an old look at \
         the table: it was in nobody's accounts, and stayed the member's for ever",
        "--engine btree --seed 3085 --memory-servers 1 --ops 60 --keys 7 --think-ns 0 --faults none \
         --window 0..0 --event none --only 0:50-51/2:27-30/5:54-55,59",
    ),
    (
        "the same, among others",
        "--engine btree --seed 7991 --faults jitter=1000,shuffle=1 --window 0..0 --event none \
         --only 0:5,25,43/2:22/4:0/5:15-16,30/6:0-1/7:0,2,5/8:4,10,40",
    ),
    (
        "what a session that had ended left retired in other members' blocks was never confirmed; its \
         member left while a scan of another still held them, and they were lost",
        "--engine btree --seed 4243 --clients 2 --ops 148 --keys 573 --region-kib 8192 --faults none \
         --event none --only 0:99,147/1:60",
    ),
    (
        "the same, at two memory servers less",
        "--engine btree --seed 10764 --memory-servers 1 --clients 5 --ops 90 --keys 540 \
         --region-kib 8192 --faults none --event none --only 3:34/4:9,85,89",
    ),
    (
        "a walk took the claim of a node that was unlinked meanwhile for a child that is there twice",
        "--engine dart --seed 5679 --salt 1 --ops 28 --think-ns 0 --faults none --window 0..0 \
         --event kill:0@1175870,restart:0@26429066 --only 0:2-5/1:18,22,26-27/2:6,12,16",
    ),
    (
        "a walk visited a node, found one in front of it that a split had just linked, and visited it again \
         behind that one",
        "--engine smart --seed 9306 --salt 3 --ops 253 --keys 200 --faults none \
         --event cut-replies:0-1@651752,kill:0@5542892,restart:0@9405772 \
         --only 0:200-205,209-243,245-248,250-252",
    ),
    (
        "a bulk load counted the pairs of a leaf that is cut at its last key as if its fence were shorter, \
         and had no room for the fence",
        "--engine fptree --seed 143 --format bytes-tiny",
    ),
    (
        "a recovery was about to fence a peer that another thread had detached, and took that for corrupt memory",
        "--engine dmtree --seed 7394 --salt 2 --ops 73 --keys 1 --region-kib 8192 --faults none --window 0..0 \
         --event kill:2@979150 --only 1:64-71",
    ),
    (
        "a scan that READ a whole leaf took the room behind its last slot for torn slots, and waited for its change",
        "--engine dmtree --seed 6402 --salt 3 --memory-servers 1 --ops 11 --keys 285 --think-ns 0 --faults none \
         --aged no --only 1:1,10",
    ),
    (
        "the same, in a full pool",
        "--engine dmtree --seed 9091 --compute-servers 1 --impatience 0 --faults none \
         --only 0:489,509,516,544-545,556,558,578-579,590,592,597",
    ),
];

#[test]
fn past_bugs_stay_fixed() {
    for (story, line) in FOUND {
        let (mut choices, mut seed) = (Choices::default(), 0);
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.chunks_exact(2) {
            match pair[0].strip_prefix("--") {
                Some("seed") => seed = pair[1].parse().expect("a seed"),
                Some(flag) => choices.set(flag, pair[1]).expect(line),
                None => panic!("{line}"),
            }
        }
        let outcome = run(&choices.scenario(seed));
        assert_eq!(outcome.failure, None, "farleaf check {line}\n{story}");
        assert!(outcome.stats.ops > 0);
    }
}
