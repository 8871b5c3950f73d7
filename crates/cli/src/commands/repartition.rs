//! `farleaf repartition`: shows the owners of a table's partitions, and moves partitions while clients run.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use farleaf::{ComputeServer, KeyFormat, Partition, PartitionShare, ServerName, Table};
use serde_json::{Map, Value, json};

use super::{bytes_of, close, open_table, server_by};
use crate::args::TableArgs;
use crate::errors::{Exit, Failure};
use crate::output::{Console, Look};
use crate::settings::SetArgs;

#[derive(Clone, Debug, Args)]
pub(crate) struct RepartitionArgs {
    #[command(flatten)]
    pub(crate) table: TableArgs,
    #[command(subcommand)]
    pub(crate) what: Option<RepartitionCommand>,
    /// Read and print keys in hexadecimal
    #[arg(long, global = true)]
    pub(crate) hex: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RepartitionCommand {
    /// Print partitions with their owners, and the compute servers [default]
    Show,
    /// Give a range, which one compute server owns, to another
    Move {
        /// The taker: a name or an address, as printed by show
        #[arg(value_name = "SERVER")]
        to: String,
        /// The keys above this one; without it, from the first
        #[arg(long, value_name = "KEY")]
        above: Option<OsString>,
        /// Up to this key, itself included; without it, to the last
        #[arg(long, value_name = "KEY")]
        up_to: Option<OsString>,
    },
    /// Move the boundary between a partition and the next to another key of the two
    Boundary {
        /// The partition's number, as printed by show
        number: usize,
        /// The key that becomes its last
        key: OsString,
    },
    /// Give a compute server a share: about half of what the one with the most to do has
    ///
    /// Of a table with numbered partitions, its share by its weight. It takes that by itself when it opens the table, so
    /// this is for one that was drained.
    Add {
        /// The taker: a name or an address, as printed by show
        #[arg(value_name = "SERVER")]
        to: String,
    },
    /// Let a compute server give up all that it has, to the owners of what is beside it
    ///
    /// Numbered partitions go to all others, as the ring places them.
    Drain {
        /// The compute server: a name or an address, as printed by show
        #[arg(value_name = "SERVER")]
        who: String,
    },
}

pub(super) fn run(args: &RepartitionArgs, console: &mut Console) -> anyhow::Result<Exit> {
    let (db, table) = open_table(&args.table, &SetArgs::default(), console)?;
    let is_numbered = table.info().engine.traits().exposes;
    // Refuses tables without partitions, whatever was asked for.
    let partitions = if is_numbered { Vec::new() } else { table.partitions()? };
    match &args.what {
        None | Some(RepartitionCommand::Show) if is_numbered => show_shares(&table, console)?,
        None | Some(RepartitionCommand::Show) => show(&table, &partitions, args.hex, console)?,
        Some(RepartitionCommand::Move { to, above, up_to }) => {
            let bound = |key: &Option<OsString>| {
                key.as_ref().map(|key| key_of(&table, key, args.hex)).transpose()
            };
            let (low, high) = (bound(above)?, bound(up_to)?);
            let to = server(&table, to)?;
            table.move_range(low.as_deref(), high.as_deref(), to)?;
            tell(console, "moved", to)?;
        }
        Some(RepartitionCommand::Boundary { number, key }) => {
            let key = key_of(&table, key, args.hex)?;
            table.move_boundary(*number, &key)?;
            if console.args.json {
                console.json_line(&json!({ "moved": number }))?;
            }
        }
        Some(RepartitionCommand::Add { to }) => {
            let to = server(&table, to)?;
            if !table.give_share(to)? {
                console.detail(format_args!("it has its share already"));
            }
            tell(console, "added", to)?;
        }
        Some(RepartitionCommand::Drain { who }) => {
            let who = server(&table, who)?;
            let given = table.drain(who)?;
            let what = if is_numbered { "partitions" } else { "ranges" };
            console.detail(format_args!("{given} {what} have been given"));
            tell(console, "drained", who)?;
        }
    }
    drop(table);
    close(db)?;
    Ok(Exit::Done)
}

fn tell(console: &mut Console, what: &str, who: ServerName) -> anyhow::Result<()> {
    if console.args.json {
        console.json_line(&json!({ what: who.to_string() }))?;
    }
    Ok(())
}

fn key_of(table: &Table, key: &OsString, hex: bool) -> Result<Vec<u8>, Failure> {
    let key = bytes_of(key, hex)?;
    match table.info().keys {
        KeyFormat::Fixed(bytes) if key.len() != bytes => Err(Failure::usage(format!(
            "a bound of {} bytes: keys of table \"{}\" have {bytes} (--hex reads hexadecimal)",
            key.len(),
            table.name()
        ))),
        _ => Ok(key),
    }
}

/// The compute servers of the pool, without this command.
fn others(table: &Table) -> anyhow::Result<Vec<ComputeServer>> {
    let mut servers = table.compute_servers()?;
    servers.retain(|server| !server.is_own);
    Ok(servers)
}

/// The compute server of that name or address; not this command.
fn server(table: &Table, text: &str) -> anyhow::Result<ServerName> {
    let others = others(table)?.into_iter();
    server_by(text, others.map(|server| (server.name, server.address))).map_err(|hint| {
        // A name that nobody has is no mistake of form: it may be of one that has gone.
        let is_name = text.parse::<ServerName>().is_ok();
        let what = if is_name {
            "no compute server has that name"
        } else {
            "no compute server has that name or address"
        };
        let told = format!(
            "compute server \"{text}\": {what} in this pool{hint}; show prints those that there are"
        );
        Failure::new(Exit::NoTable, told).into()
    })
}

/// Prints numbered partitions by their owners.
fn show_shares(table: &Table, console: &mut Console) -> anyhow::Result<()> {
    let (shares, servers) = (table.partition_shares()?, others(table)?);
    if console.args.json {
        let share = |share: &PartitionShare| {
            json!({
                "owner": share.owner.map(|owner| owner.to_string()),
                "weight": share.weight,
                "partitions": share.partitions,
                "closed": share.closed,
                "moving": share.moving,
            })
        };
        let shares: Vec<Value> = shares.iter().map(share).collect();
        let servers: Vec<Value> = servers.iter().map(server_value).collect();
        let told = json!({ "table": table.name(), "shares": shares, "servers": servers });
        return Ok(console.json_line(&told)?);
    }
    let mut rows = Vec::new();
    for share in &shares {
        let owner = share.owner.map_or("memory servers".to_owned(), |owner| owner.to_string());
        let counts = [usize::from(share.weight), share.partitions, share.closed, share.moving];
        rows.push([owner].into_iter().chain(counts.map(|count| count.to_string())).collect());
    }
    rows.extend(servers.iter().map(server_row));
    console.table(&["owner", "weight", "partitions", "closed", "moving"], rows)?;
    Ok(())
}

fn server_value(server: &ComputeServer) -> Value {
    json!({ "name": server.name.to_string(), "address": server.address })
}

fn server_row(server: &ComputeServer) -> Vec<String> {
    let address = server.address.map_or("-".to_owned(), |address| address.to_string());
    vec!["server".to_owned(), server.name.to_string(), address]
}

fn show(
    table: &Table,
    partitions: &[Partition],
    hex: bool,
    console: &mut Console,
) -> anyhow::Result<()> {
    let servers = others(table)?;
    if console.args.json {
        let partition = |partition: &Partition| {
            let mut object = Map::new();
            let look = if hex { Look::Hex } else { Look::AsIs };
            let bounds = [("above", &partition.low), ("up_to", &partition.high)];
            for (name, bound) in bounds {
                match bound {
                    Some(key) => look.put(name, key, &mut object),
                    None => drop(object.insert(name.to_owned(), Value::Null)),
                }
            }
            let owner = partition.owner.map(|owner| owner.to_string());
            object.insert("owner".to_owned(), json!(owner));
            object.insert("operations".to_owned(), json!(partition.operations));
            Value::Object(object)
        };
        let partitions: Vec<Value> = partitions.iter().map(partition).collect();
        let servers: Vec<Value> = servers.iter().map(server_value).collect();
        let told = json!({ "table": table.name(), "partitions": partitions, "servers": servers });
        return Ok(console.json_line(&told)?);
    }
    let bound = |key: &Option<Vec<u8>>| match key {
        None => "-".to_owned(),
        Some(key) if hex => crate::output::hex(key),
        Some(key) => crate::output::escaped(key),
    };
    let mut rows = Vec::new();
    for (number, partition) in partitions.iter().enumerate() {
        let owner = partition.owner.map_or("nobody".to_owned(), |owner| owner.to_string());
        let operations = partition.operations.map_or("-".to_owned(), |count| count.to_string());
        let (low, high) = (bound(&partition.low), bound(&partition.high));
        rows.push(vec![number.to_string(), low, high, owner, operations]);
    }
    rows.extend(servers.iter().map(server_row));
    console.table(&["partition", "above", "up to", "owner", "operations"], rows)?;
    Ok(())
}
