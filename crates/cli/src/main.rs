//! Program `farleaf`: see the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    farleaf_cli::main()
}
