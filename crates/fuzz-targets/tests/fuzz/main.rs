//! Target tests: the fuzzers' targets without a fuzzer, on their corpus, findings and seeds.

mod findings;
mod fuzz_smoke;
mod wire;
