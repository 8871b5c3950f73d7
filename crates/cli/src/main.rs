//! Program `farleaf`: see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Short-lived buffers of keys, values and replies are much of what the processor does for a hit.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    farleaf_cli::main()
}
