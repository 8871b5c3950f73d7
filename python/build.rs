//! Build check: refuses platforms on which Farleaf does not run, and says which it runs on.

use std::env;
use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let (os, width, order) = (target("OS"), target("POINTER_WIDTH"), target("ENDIAN"));
    if os != "linux" || width != "64" || order != "little" {
        println!(
            "cargo::error=farleaf runs on 64-bit little-endian Linux (x86-64, AArch64), not on {os} with {width} bits \
             ({order}-endian): use a gateway on a Linux machine from here, docs/redis.md says how"
        );
        exit(1);
    }
}
