//! `farleaf cluster add`: gives a compute server that has joined its share of the tables.

use std::thread;
use std::time::{Duration, Instant};

use farleaf::{ErrorKind, ServerName, Table};
use serde_json::json;

use super::{ClusterOf, find};
use crate::commands::{close, open};
use crate::errors::{Exit, Failure};
use crate::output::Console;

/// Time to wait for it to open a table, or for another move to end; and between attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const TRY_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(
    cluster: &ClusterOf,
    server: &str,
    tables: &[String],
    console: &mut Console,
) -> anyhow::Result<Exit> {
    let snapshot = cluster.directory(console)?.look()?;
    let (who, record) = find(&snapshot, server)?;
    if !record.serves {
        return Err(Failure::usage(format!(
            "compute server {who} ({}) is a program that has the pool open: farleaf compute starts \
             those that serve others",
            record.process
        ))
        .into());
    }
    let db = open(&cluster.uri, console)?;
    let names = match tables {
        [] => {
            let infos = db.tables()?.into_iter();
            infos.filter(|info| info.engine.traits().is_served()).map(|info| info.name).collect()
        }
        named => named.to_vec(),
    };
    let mut given = Vec::new();
    for name in names {
        let table = db.table(&name)?;
        let is_numbered = table.info().engine.traits().exposes;
        if is_numbered && tables.is_empty() && !exposes(&table, who)? {
            console.detail(format_args!("it exposes no memory for table \"{name}\""));
        } else if give(&table, who, is_numbered)? {
            given.push(name);
        } else {
            console.detail(format_args!("it has a part of table \"{name}\" already"));
        }
    }
    close(db)?;
    if console.args.json {
        console.json_line(&json!({ "added": who.to_string(), "tables": given }))?;
    } else {
        console.table(&[], given.into_iter().map(|name| vec!["table".to_owned(), name]))?;
    }
    Ok(Exit::Done)
}

/// Returns whether it has memory for numbered partitions.
fn exposes(table: &Table, who: ServerName) -> anyhow::Result<bool> {
    let servers = table.compute_servers()?;
    Ok(servers.iter().any(|server| server.name == who && server.exposed_bytes > 0))
}

/// Gives it a share of the table, unless it has something of it, or all of its share; whether it did.
fn give(table: &Table, to: ServerName, is_numbered: bool) -> anyhow::Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        if !is_numbered && table.partitions()?.iter().any(|partition| partition.owner == Some(to)) {
            return Ok(false);
        }
        match table.give_share(to) {
            Ok(gave) => return Ok(gave),
            // It has not opened the table yet, or another move is under way.
            Err(error) if may_pass(error.kind()) && Instant::now() < end => {
                thread::sleep(TRY_EVERY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn may_pass(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Unavailable)
}
