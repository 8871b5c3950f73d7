//! Smoke test: every target on its corpus and on a fixed number of seeded mutations of it.
//!
//! `FARLEAF_SOAK=n` runs n times as many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use farleaf_fuzz_targets::{TARGETS, Target, target};

/// Mutations per target. Fewer where one takes longer.
fn mutations(name: &str) -> u32 {
    let soak = std::env::var("FARLEAF_SOAK").ok().and_then(|soak| soak.parse().ok()).unwrap_or(1);
    let count: u32 = match name {
        "superblock" | "pool" | "table" | "leaves" => 300,
        "fabric" => 500,
        _ => 3_000,
    };
    count.saturating_mul(soak)
}

/// The inputs in a target's folder, by name.
fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name);
    let files = std::fs::read_dir(&folder).expect("the target's corpus");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() >= 3, "{} has hardly a corpus", target.name);
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("read it"))).collect()
}

/// One to four small changes, or a part of another input.
fn mutate(input: &mut Vec<u8>, others: &[(PathBuf, Vec<u8>)], rng: &mut fastrand::Rng) {
    for _ in 0..rng.u8(1..5) {
        let at = rng.usize(..=input.len());
        match rng.u8(..7) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => {
                input[at] = rng.choice([0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b':']).unwrap_or(0)
            }
            2 => input.insert(at, rng.u8(..)),
            3 if at < input.len() => drop(input.remove(at)),
            4 => input.truncate(at),
            5 => {
                let (_, other) = &others[rng.usize(..others.len())];
                let from = rng.usize(..=other.len());
                let to = other.len().min(from + rng.usize(..32));
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
            _ => input.extend((0..rng.u8(..16)).map(|_| rng.u8(..))),
        }
    }
}

/// Runs one input and says which it was if it fails.
fn try_one(target: &Target, input: &[u8], name: &str) -> Duration {
    let start = Instant::now();
    let memory = allocation_counter::measure(|| {
        let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        assert!(ended.is_ok(), "{} fails on {name}: {}", target.name, input.escape_ascii());
    });
    let most = target.memory_bytes_max + 64 * input.len() as u64;
    assert!(
        memory.bytes_max <= most,
        "{} takes {} bytes for {name}: {}",
        target.name,
        memory.bytes_max,
        input.escape_ascii()
    );
    start.elapsed()
}

fn smoke(name: &str) {
    let target = target(name).expect("a target");
    let corpus = corpus(target);
    // Memory that is allocated once per thread does not count for the inputs.
    (target.run)(&[]);
    let mut longest = Duration::ZERO;
    for (path, input) in &corpus {
        longest = longest.max(try_one(target, input, &path.display().to_string()));
    }
    let mut rng = fastrand::Rng::with_seed(1);
    for number in 0..mutations(name) {
        let mut input = corpus[rng.usize(..corpus.len())].1.clone();
        mutate(&mut input, &corpus, &mut rng);
        input.truncate(target.input_bytes_max);
        longest = longest.max(try_one(target, &input, &format!("mutation {number}")));
    }
    // Far above what any takes on a busy machine, far below a loop without a bound.
    assert!(longest < Duration::from_secs(20), "{name} takes {longest:?} for one input");
}

macro_rules! smoke {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            smoke(stringify!($name));
        })+

        #[test]
        fn every_target_is_here() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

smoke!(
    node, superblock, pool, table, leaves, fabric, records, values, keys, ycsb, text, offload,
    messages, wire, resp, history
);
