//! Orderly use: many short commands on one table at a time, none of which may fail.

use std::process::Command;
use std::{env, path::Path};

/// `FARLEAF_ORDERLY_PROCESSES=20000` makes a soak test of it.
#[test]
fn short_commands_on_one_table_never_fail() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/orderly.sh");
    let processes = env::var("FARLEAF_ORDERLY_PROCESSES").unwrap_or_else(|_| "80".to_owned());
    let run = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_farleaf"))
        .env("FARLEAF_ORDERLY_PROCESSES", processes)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    let why = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}{why}");
    assert_eq!(
        told.matches(" 0 failed (0 with an unknown outcome, 0 wrong answers)").count(),
        3,
        "{told}"
    );
}
