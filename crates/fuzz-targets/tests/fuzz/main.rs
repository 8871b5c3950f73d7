//! The fuzzers' targets without a fuzzer: their corpus, what was found, what their seeds reach.

mod findings;
mod fuzz_smoke;
mod wire;
