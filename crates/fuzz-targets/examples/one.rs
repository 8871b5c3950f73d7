//! One input: gives one file to one target, as `one TARGET FILE`.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]
fn main() {
    let mut args = std::env::args().skip(1);
    let target = farleaf_fuzz_targets::target(&args.next().unwrap()).unwrap();
    for file in args {
        (target.run)(&std::fs::read(file).unwrap());
    }
}
