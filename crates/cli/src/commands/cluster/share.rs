//! `farleaf cluster add`: gives a compute server that has joined its share of the ranges.

use std::thread;
use std::time::{Duration, Instant};

use farleaf::{ErrorKind, Farleaf, ServerName};
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
            infos.filter(|info| info.engine.traits().owned).map(|info| info.name).collect()
        }
        named => named.to_vec(),
    };
    let mut given = Vec::new();
    for name in names {
        if give(&db, &name, who)? {
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

/// Gives it a share of the table, unless it has something of it; whether it did.
fn give(db: &Farleaf, name: &str, to: ServerName) -> anyhow::Result<bool> {
    let table = db.table(name)?;
    let end = Instant::now() + PATIENCE;
    loop {
        if table.partitions()?.iter().any(|partition| partition.owner == Some(to)) {
            return Ok(false);
        }
        match table.give_share(to) {
            Ok(_) => return Ok(true),
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
