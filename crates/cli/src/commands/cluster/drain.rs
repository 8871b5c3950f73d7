//! `farleaf cluster drain`: a compute server hands over its ranges, and ends.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{ClusterOf, find};
use crate::errors::{Exit, Failure};
use crate::output::Console;

/// Between two looks whether it has left.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(
    cluster: &ClusterOf,
    server: &str,
    timeout: Duration,
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let directory = cluster.directory(console)?;
    let snapshot = directory.look()?;
    let (who, record) = find(&snapshot, server)?;
    if !record.serves {
        return Err(Failure::usage(format!(
            "compute server {who} ({}) is a program that has the pool open, and leaves when it \
             ends: farleaf repartition TABLE drain takes its keys away",
            record.process
        ))
        .into());
    }
    let is_other = |name| name != who && !snapshot.leaving.contains(&name);
    if !snapshot.compute.iter().any(|(name, record)| record.serves && is_other(*name)) {
        return Err(Failure::usage(format!(
            "no other compute server could take what {who} has: start one first, or end this one \
             by a signal, which leaves its keys to whoever uses them next"
        ))
        .into());
    }
    directory.ask_to_leave(who)?;
    let end = Instant::now() + timeout;
    while directory.look()?.compute.contains_key(&who) {
        if Instant::now() >= end {
            return Err(Failure::unavailable(format!(
                "compute server {who} has been asked to leave, and is still there: it may be busy \
                 handing over, or hang; status shows whether it goes on"
            ))
            .into());
        }
        thread::sleep(LOOK_EVERY);
    }
    if console.args.json {
        console.json_line(&json!({ "drained": who.to_string() }))?;
    }
    Ok(Exit::Done)
}
