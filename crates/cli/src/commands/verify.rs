//! `farleaf verify`: checks a pool and its tables.

use farleaf::TableReport;
use serde_json::{Value, json};

use super::walk::Walk;
use super::{close, open, stats};
use crate::args::WalkArgs;
use crate::errors::Exit;
use crate::output::{Console, counted, escaped};

pub(super) fn run(args: &WalkArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let db = open(&args.pool, console)?;
    let walk = Walk::of(&db, args, console)?;
    walk.warn(console);
    let (report, is_sound) = (&walk.report, walk.is_sound());
    let mut problems: Vec<String> = report.problems().collect();
    if is_sound != Some(true) && problems.is_empty() {
        problems.push("some memory of the pool is not accounted for".to_owned());
    }
    if console.args.json {
        let table = |table: &TableReport| {
            let mut told = stats::table_json(&table.name, &table.stats);
            told["problems"] = json!(table.problems);
            told
        };
        let tables: Vec<Value> = report.tables.iter().map(table).collect();
        console.json_line(&json!({
            "sound": is_sound,
            "used_by": walk.others,
            "problems": problems,
            "tables": tables,
            "blocks_free": report.memory.blocks_free,
            "blocks_owned": report.memory.blocks_owned,
            "blocks_orphan": report.memory.blocks_orphan,
        }))?;
    } else {
        let what = if is_sound.is_none() { "doubt" } else { "problem" };
        let verdict = |table: &TableReport| match table.problems.len() {
            0 => "sound".to_owned(),
            count => counted(count as u64, what),
        };
        let row = |table: &TableReport| {
            let nodes: u64 = table.stats.nodes_per_level.iter().sum();
            let (keys, nodes) = (table.stats.keys.to_string(), nodes.to_string());
            vec![escaped(table.name.as_bytes()), keys, nodes, verdict(table)]
        };
        let mut rows: Vec<_> = report.tables.iter().map(row).collect();
        let memory = match (report.memory.closes(), is_sound) {
            (true, _) => "sound",
            (false, Some(_)) => "does not add up",
            (false, None) => "in use",
        };
        rows.push(vec!["(memory)".to_owned(), String::new(), String::new(), memory.to_owned()]);
        console.table(&["table", "keys", "nodes", "verdict"], rows)?;
        for problem in &problems {
            console.fields(&[(what, escaped(problem.as_bytes()))])?;
        }
    }
    close(db)?;
    Ok(if is_sound == Some(false) { Exit::NotFound } else { Exit::Done })
}
