//! `farleaf tables` and `farleaf drop`: list tables, and drop one.

use std::collections::BTreeMap;

use farleaf::{Content, Farleaf, TableInfo};
use serde_json::{Value, json};

use super::{close, open};
use crate::args::{PoolArgs, TableArgs};
use crate::errors::Exit;
use crate::formats::{key_format, value_format};
use crate::output::{Console, escaped};

pub(super) fn list(args: &PoolArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let db = open(&args.pool, console)?;
    let tables = db.tables()?;
    if console.args.json {
        let tables: Vec<Value> = tables.iter().map(to_json).collect();
        console.json_line(&json!({ "tables": tables }))?;
    } else if tables.is_empty() {
        console.note("the pool has no tables");
    } else {
        let row = |table: &TableInfo| {
            vec![
                escaped(table.name.as_bytes()),
                table.engine.to_string(),
                key_format(table.keys),
                match table.content {
                    Content::Raw => value_format(table.values),
                    content => content.to_string(),
                },
                shape(table),
            ]
        };
        let header = ["table", "engine", "keys", "values", "shape"];
        console.table(&header, tables.iter().map(row))?;
    }
    close(db)?;
    Ok(Exit::Done)
}

pub(super) fn drop_table(args: &TableArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let db = open(&args.pool, console)?;
    db.drop_table(&args.table).inspect_err(|error| tell_server(error, &db, console))?;
    if console.args.json {
        console.json_line(&json!({ "dropped": args.table }))?;
    } else {
        console.detail(format_args!("dropped table \"{}\"", args.table));
    }
    close(db)?;
    Ok(Exit::Done)
}

/// Says where the compute server listens that `error` names.
fn tell_server(error: &farleaf::Error, db: &Farleaf, console: &Console) {
    let told = error.to_string();
    let servers = db.compute_servers().unwrap_or_default();
    let named = servers.iter().find(|server| told.contains(&server.name.to_string()));
    if let Some((name, address)) = named.and_then(|server| Some((server.name, server.address?))) {
        console.note(format_args!("compute server {name} listens at {address}"));
    }
}

/// The settings of a table's shape.
fn shape(table: &TableInfo) -> String {
    let settings: Vec<String> =
        table.shape.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if settings.is_empty() { "-".to_owned() } else { settings.join(" ") }
}

/// A table as JSON tells it.
pub(super) fn to_json(table: &TableInfo) -> Value {
    json!({
        "table": table.name,
        "engine": table.engine.name(),
        "key_format": key_format(table.keys),
        "value_format": value_format(table.values),
        "content": table.content.name(),
        "shape": table.shape.iter().collect::<BTreeMap<_, _>>(),
    })
}
