//! `farleaf cluster drain`: a compute server hands over what it has of tables, and ends.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::ServerName;
use serde_json::json;

use super::{ClusterOf, find};
use crate::commands::{close, open};
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
    refuse_last_owner(cluster, who, &snapshot.leaving, console)?;
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

/// Refuses if a table has its numbered partitions in the memory of `who`, and no other compute server that stays has memory
/// for them.
fn refuse_last_owner(
    cluster: &ClusterOf,
    who: ServerName,
    leaving: &BTreeSet<ServerName>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let db = open(&cluster.uri, console)?;
    let mut last_of = None;
    let infos = db.tables()?.into_iter();
    for info in infos.filter(|info| info.engine.traits().exposes) {
        let shares = db.table(&info.name)?.partition_shares()?;
        let has_memory = |name: &ServerName| {
            shares.iter().any(|share| share.owner == Some(*name) && share.weight > 0)
        };
        let mut others = shares.iter().filter_map(|share| share.owner);
        let is_heir = |name: &ServerName| *name != who && !leaving.contains(name);
        if has_memory(&who) && !others.any(|name| is_heir(&name) && has_memory(&name)) {
            last_of = Some(info.name);
            break;
        }
    }
    close(db)?;
    match last_of {
        None => Ok(()),
        Some(table) => Err(Failure::usage(format!(
            "compute server {who} is the last one with memory for table \"{table}\": start another one with \
             --expose-bytes first, or end this one by a signal, which moves the table's lines to memory servers"
        ))
        .into()),
    }
}
