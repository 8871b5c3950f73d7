//! `farleaf stats`: prints counters of a pool and its tables.

use farleaf::{AuditReport, Stats, TableInfo, TableReport, TableStats};
use farleaf_fabric::Cost;
use serde_json::{Map, Value, json};

use super::compute::{by_target, verbs};
use super::walk::Walk;
use super::{close, open, tables};
use crate::args::StatsArgs;
use crate::errors::Exit;
use crate::output::{Console, escaped};

pub(super) fn run(args: &StatsArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let db = open(&args.walk.pool, console)?;
    let infos = db.tables()?;
    let walk = Walk::of(&db, &args.walk, console)?;
    walk.warn(console);
    let walked = &walk.report;
    let stats = db.stats()?;
    let cost = stats.counters.total();
    if walk.is_sound() == Some(false) {
        console.warn("the pool has problems, so that these numbers may be wrong: try verify");
    }
    let blocks = &walked.memory;
    let memory = Memory::of(blocks, stats.block_bytes);
    let info_of = |table: &TableReport| infos.iter().find(|info| info.name == table.name);
    if console.args.json {
        let table_json = |table: &TableReport| {
            let mut told = table_json(&table.name, &table.stats);
            if let (Value::Object(told), Some(Value::Object(info))) =
                (&mut told, info_of(table).map(tables::to_json))
            {
                told.extend(info);
            }
            told
        };
        let tables: Vec<Value> = walked.tables.iter().map(table_json).collect();
        let mut told = json!({
            "fabric": stats.fabric,
            "memory_servers": stats.memory_servers,
            "used_by": walk.others,
            "pool_bytes": stats.memory.pool_bytes,
            "usable_bytes": memory.usable,
            "used_bytes": memory.used,
            "reserved_bytes": memory.reserved,
            "free_bytes": memory.free,
            "block_bytes": stats.block_bytes,
            "blocks_free": blocks.blocks_free,
            "blocks_owned": blocks.blocks_owned,
            "blocks_orphan": blocks.blocks_orphan,
            "tables": tables,
            "walk": {
                "reads": cost.reads,
                "round_trips": cost.round_trips,
                "bytes_read": cost.bytes_read,
            },
            "remote_operations": targets_json(&stats),
        });
        if args.memory {
            told["memory"] = memory_json(blocks, stats.block_bytes);
        }
        console.json_line(&told)?;
    } else {
        console.fields(&[
            ("fabric", stats.fabric.to_owned()),
            ("memory_servers", stats.memory_servers.to_string()),
            ("pool_bytes", console.size(stats.memory.pool_bytes)),
            ("usable_bytes", console.size(memory.usable)),
            ("used_bytes", console.size(memory.used)),
            ("reserved_bytes", console.size(memory.reserved)),
            ("free_bytes", console.size(memory.free)),
            ("block_bytes", console.size(stats.block_bytes)),
            ("blocks_free", console.count(blocks.blocks_free)),
            ("blocks_owned", console.count(blocks.blocks_owned)),
            ("blocks_orphan", console.count(blocks.blocks_orphan)),
            ("walk_reads", console.count(cost.reads)),
            ("walk_round_trips", console.count(cost.round_trips)),
            ("walk_bytes_read", console.size(cost.bytes_read)),
        ])?;
        print_tables(&walked.tables, info_of, console)?;
        print_targets(&stats, console)?;
        if args.memory {
            print_memory(blocks, stats.block_bytes, console)?;
        }
    }
    close(db)?;
    Ok(Exit::Done)
}

/// This command's remote operations by the kind of server that they went to, as JSON tells them.
fn targets_json(stats: &Stats) -> Value {
    let told = by_target(stats).map(|(target, cost)| {
        let mut told: Map<String, Value> = verbs(&cost)
            .into_iter()
            .map(|(verb, count)| (format!("{verb}s"), count.into()))
            .collect();
        told.insert("round_trips".to_owned(), cost.round_trips.into());
        told.insert("bytes_read".to_owned(), cost.bytes_read.into());
        told.insert("bytes_written".to_owned(), cost.bytes_written.into());
        (target.to_owned(), Value::Object(told))
    });
    Value::Object(told.into_iter().collect())
}

/// The same as a table, if some went to compute servers.
fn print_targets(stats: &Stats, console: &mut Console) -> anyhow::Result<()> {
    let targets = by_target(stats);
    if targets.iter().all(|(target, cost)| *target == "memory" || cost.verbs() == 0) {
        return Ok(());
    }
    let row = |(target, cost): &(&str, Cost)| {
        let counts = verbs(cost).map(|(_, count)| console.count(count));
        let trips = console.count(cost.round_trips);
        [(*target).to_owned()].into_iter().chain(counts).chain([trips]).collect()
    };
    let rows: Vec<_> = targets.iter().map(row).collect();
    console.gap()?;
    let header = ["target", "reads", "writes", "atomics", "rpcs", "calls", "round trips"];
    Ok(console.table(&header, rows)?)
}

/// Bytes of a pool by use: usable are used, reserved and free.
struct Memory {
    /// Of all blocks; the rest of the pool is its own tables.
    usable: u64,
    /// Of objects that tables hold.
    used: u64,
    /// The rest of the blocks that are taken: objects to come, objects that were freed, and what is left between.
    reserved: u64,
    /// Of blocks that nobody has taken.
    free: u64,
}

impl Memory {
    fn of(blocks: &AuditReport, block_bytes: u64) -> Memory {
        let used = blocks.classes.iter().map(|class| class.live * class.bytes).sum();
        let free = blocks.blocks_free * block_bytes;
        let taken = (blocks.blocks_owned + blocks.blocks_orphan) * block_bytes;
        Memory { usable: free + taken, used, reserved: taken.saturating_sub(used), free }
    }
}

fn print_tables<'a>(
    walked: &[TableReport],
    info_of: impl Fn(&TableReport) -> Option<&'a TableInfo>,
    console: &mut Console,
) -> anyhow::Result<()> {
    if walked.is_empty() {
        return Ok(());
    }
    let row = |table: &TableReport| {
        let stats = &table.stats;
        let levels: Vec<String> = stats.nodes_per_level.iter().map(u64::to_string).collect();
        vec![
            escaped(table.name.as_bytes()),
            info_of(table).map(|info| info.engine.to_string()).unwrap_or_default(),
            console.count(stats.keys),
            console.size(stats.data_bytes),
            console.size(stats.node_bytes),
            console.size(stats.record_bytes),
            levels.join(","),
            stats.parts.join("; "),
        ]
    };
    let rows: Vec<_> = walked.iter().map(row).collect();
    console.gap()?;
    let header = ["table", "engine", "keys", "data", "nodes", "records", "nodes by level", "parts"];
    Ok(console.table(&header, rows)?)
}

/// Memory by server, by owner and by class, as JSON tells it.
fn memory_json(blocks: &AuditReport, block_bytes: u64) -> Value {
    let servers = (0_u64..)
        .zip(&blocks.free_by_server)
        .map(|(server, free)| json!({ "memory_server": server, "free_bytes": free * block_bytes }));
    let owners = blocks.owners.iter().map(|owner| {
        json!({
            "memory_server": owner.server,
            "member": owner.member,
            "blocks": owner.blocks,
            "used_bytes": owner.live_bytes,
            "reserved_bytes": (owner.blocks * block_bytes).saturating_sub(owner.live_bytes),
            "reserved_free_bytes": owner.free_bytes,
        })
    });
    let classes = blocks.classes.iter().map(|class| {
        let used = class.live * class.bytes;
        json!({
            "object_bytes": class.bytes,
            "runs": class.runs,
            "used_bytes": used,
            "reserved_bytes": class.run_bytes.saturating_sub(used),
            "reserved_free_bytes": class.free * class.bytes,
            "retired_bytes": class.retired * class.bytes,
            "held_bytes": class.held * class.bytes,
            "lost_bytes": class.leaked * class.bytes,
        })
    });
    json!({
        "servers": servers.collect::<Vec<_>>(),
        "owners": owners.collect::<Vec<_>>(),
        "classes": classes.collect::<Vec<_>>(),
    })
}

/// The same as tables: a row begins with what it is of.
fn print_memory(
    blocks: &AuditReport,
    block_bytes: u64,
    console: &mut Console,
) -> anyhow::Result<()> {
    let line = |of: String, blocks: String, [taken, used, free]: [u64; 3]| {
        let sizes = [used, taken.saturating_sub(used), free].map(|bytes| console.size(bytes));
        [of, blocks].into_iter().chain(sizes).collect()
    };
    let row = |of: String, blocks: u64, used: u64, free: u64| {
        line(of, console.count(blocks), [blocks * block_bytes, used, free])
    };
    let servers = (0..).zip(&blocks.free_by_server).map(|(server, free)| {
        let owners = blocks.owners.iter().filter(|owner| u64::from(owner.server) == server);
        let (count, used) =
            owners.fold((0, 0), |(count, used), it| (count + it.blocks, used + it.live_bytes));
        row(format!("server {server}"), count, used, free * block_bytes)
    });
    let owners = blocks.owners.iter().map(|owner| {
        let of = match owner.member {
            Some(member) => format!("member {member} on server {}", owner.server),
            None => format!("nobody on server {}", owner.server),
        };
        row(of, owner.blocks, owner.live_bytes, 0)
    });
    let classes = blocks.classes.iter().map(|class| {
        let of = format!("objects of {} bytes", class.bytes);
        // Blocks have runs of several sizes.
        line(of, String::new(), [class.run_bytes, class.live * class.bytes, 0])
    });
    let rows: Vec<_> = servers.chain(owners).chain(classes).collect();
    console.gap()?;
    Ok(console.table(&["memory", "blocks", "used", "reserved", "free"], rows)?)
}

/// A table's counts as JSON tells them.
pub(super) fn table_json(name: &str, stats: &TableStats) -> Value {
    json!({
        "table": name,
        "keys": stats.keys,
        "data_bytes": stats.data_bytes,
        "nodes_bytes": stats.node_bytes,
        "record_bytes": stats.record_bytes,
        "nodes_per_level": stats.nodes_per_level,
        "parts": stats.parts,
    })
}
