//! Churn: many short loads at a time, some killed, leave the pool's blocks in proportion to the data.

use std::process::Command;
use std::{env, path::Path};

/// `FARLEAF_CHURN_SECONDS=600` makes a soak test of it.
#[test]
fn blocks_stay_in_proportion_to_the_data_after_many_loads() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/churn.sh");
    let seconds = env::var("FARLEAF_CHURN_SECONDS").unwrap_or_else(|_| "10".to_owned());
    let run = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_farleaf"))
        .env("FARLEAF_CHURN_SECONDS", seconds)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    let why = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{told}{why}");
    assert_eq!(told.matches(" killed, 0 failed; ").count(), 2, "{told}");
}
