//! Server: commands about the gateway itself.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::connection::REDIS_VERSION;
use super::records::{Held, held};
use super::{Call, Command, Plan, SYNTAX, commands, integer, lower, unknown_subcommand};
use crate::pattern;
use farleaf_resp::replies::Replies;

const GROUP: &str = "server";

pub(super) const COMMANDS: &[Command] = &[
    Command::new("info", -1, GROUP, "Tells of the gateway.", info).differs(
        "sections server, clients, memory, persistence, stats, replication, cluster and keyspace",
    ),
    Command::new("command", -1, GROUP, "Tells of commands.", command),
    Command::new("config", -2, GROUP, "Tells of settings.", config)
        .differs("GET of a few settings that clients ask for, and RESETSTAT"),
    Command::new("time", 1, GROUP, "Tells the gateway's time.", time),
    Command::new("role", 1, GROUP, "Tells that this is a master.", role),
    Command::new("slowlog", -2, GROUP, "Tells of slow commands.", slowlog).differs("always empty"),
    Command::new("memory", -2, GROUP, "Tells the bytes of a pair.", memory)
        .differs("USAGE alone: bytes of key and value"),
    Command::new("object", -2, "generic", "Tells how a value is kept.", object)
        .differs("ENCODING alone: raw, or listpack for a hash"),
    Command::new("module", -2, GROUP, "Tells of modules: there are none.", module),
    Command::new("acl", -2, GROUP, "Tells who the client is.", acl).differs("WHOAMI alone"),
    Command::new("latency", -2, GROUP, "Tells of latencies.", latency).differs("always empty"),
];

/// Resident bytes of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn info(call: &mut Call<'_>) -> Result<Plan, String> {
    let shared = call.shared;
    let wanted: Vec<String> = call.rest().iter().map(|word| lower(word)).collect();
    let wants = |section: &str| {
        let everything = ["all", "default", "everything"];
        wanted.is_empty()
            || wanted.iter().any(|it| it == section || everything.contains(&it.as_str()))
    };
    let mut text = String::new();
    let mut section = |name: &str, lines: &[(&str, String)]| {
        if wants(&name.to_lowercase()) {
            let _ = write!(text, "{}# {name}\r\n", if text.is_empty() { "" } else { "\r\n" });
            for (key, value) in lines {
                let _ = write!(text, "{key}:{value}\r\n");
            }
        }
    };
    let seconds = shared.began.elapsed().as_secs();
    section(
        "Server",
        &[
            ("redis_version", REDIS_VERSION.to_owned()),
            ("server_name", "farleaf".to_owned()),
            ("farleaf_version", env!("CARGO_PKG_VERSION").to_owned()),
            ("redis_mode", "standalone".to_owned()),
            ("process_id", std::process::id().to_string()),
            ("tcp_port", shared.port.load(Ordering::Relaxed).to_string()),
            ("uptime_in_seconds", seconds.to_string()),
            ("uptime_in_days", (seconds / 86_400).to_string()),
        ],
    );
    let clients = shared.connections.load(Ordering::Relaxed).to_string();
    let most = shared.options.connections_max.to_string();
    let bytes = shared.client_bytes.load(Ordering::Relaxed).to_string();
    section(
        "Clients",
        &[
            ("connected_clients", clients),
            ("blocked_clients", "0".to_owned()),
            ("maxclients", most),
            ("clients_bytes", bytes),
        ],
    );
    section("Memory", &[("used_memory", resident_bytes().to_string())]);
    let loading = u8::from(shared.is_lost()).to_string();
    section("Persistence", &[("loading", loading)]);
    let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed).to_string();
    section(
        "Stats",
        &[
            ("total_connections_received", of(&shared.connected)),
            ("total_commands_processed", of(&shared.commands_done)),
            ("rejected_connections", of(&shared.refused)),
            ("client_connections_closed_by_limits", of(&shared.closed)),
            ("expired_keys", shared.expired().to_string()),
        ],
    );
    section("Replication", &[("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]);
    section("Cluster", &[("cluster_enabled", "0".to_owned())]);
    let user = call.client.user.as_deref();
    let tables: Vec<(String, String)> = (0..shared.databases(call.client))
        .filter_map(|number| {
            let place = shared.place(user, number)?;
            let (engine, counted) = shared.known(place)?;
            let name = shared.table_name(place);
            let table = (format!("table{number}"), format!("name={name},engine={engine}"));
            // As redis-cli --stat reads it. Keys are not counted for it.
            let keys = counted.map(|(keys, at)| {
                let age = at.elapsed().as_secs();
                (format!("db{number}"), format!("keys={keys},keys_age_seconds={age}"))
            });
            Some([Some(table), keys])
        })
        .flatten()
        .flatten()
        .collect();
    let tables: Vec<(&str, String)> =
        tables.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    section("Keyspace", &tables);
    call.reply(|replies| replies.verbatim(&text))
}

fn command(call: &mut Call<'_>) -> Result<Plan, String> {
    let names: Vec<String> = call.args.iter().skip(2).map(|name| lower(name)).collect();
    match call.word().as_str() {
        "" => call.reply(|replies| {
            replies.array(commands().count());
            commands().for_each(|command| entry(replies, command));
        }),
        "count" => call.reply(|replies| replies.integer(commands().count() as i64)),
        "list" => call.reply(|replies| {
            replies.array(commands().count());
            commands().for_each(|command| replies.bulk(command.name.as_bytes()));
        }),
        "info" => call.reply(|replies| {
            let names: Vec<&str> = match names.is_empty() {
                true => commands().map(|command| command.name).collect(),
                false => names.iter().map(String::as_str).collect(),
            };
            replies.array(names.len());
            for name in names {
                match call.shared.command(name.as_bytes()) {
                    Some(command) => entry(replies, command),
                    None => replies.null(),
                }
            }
        }),
        "docs" => call.reply(|replies| {
            let is_wanted = |command: &&Command| {
                names.is_empty() || names.iter().any(|name| name == command.name)
            };
            let wanted: Vec<_> = commands().filter(is_wanted).collect();
            replies.map(wanted.len());
            for command in wanted {
                replies.bulk(command.name.as_bytes());
                replies.map(2);
                replies.bulk(b"summary");
                replies.bulk(command.about.as_bytes());
                replies.bulk(b"group");
                replies.bulk(command.group.as_bytes());
            }
        }),
        _ => Err(unknown_subcommand(call)),
    }
}

fn entry(replies: &mut Replies, command: &Command) {
    replies.array(6);
    replies.bulk(command.name.as_bytes());
    replies.integer(command.arity.into());
    replies.set(command.flags.len());
    command.flags.iter().for_each(|flag| replies.simple(flag));
    command.keys.iter().for_each(|key| replies.integer((*key).into()));
}

/// Settings that clients and benchmarks ask for.
const SETTINGS: [(&str, &str); 6] = [
    ("save", ""),
    ("appendonly", "no"),
    ("maxmemory", "0"),
    ("maxmemory-policy", "noeviction"),
    ("proto-max-bulk-len", "67108864"),
    ("timeout", "0"),
];

fn config(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.word().as_str() {
        "get" if call.args.len() > 2 => {
            let mut all: Vec<(&str, String)> =
                SETTINGS.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            all.push(("databases", call.shared.databases(call.client).to_string()));
            all.push(("maxclients", call.shared.options.connections_max.to_string()));
            let patterns: Vec<String> = call.args[2..].iter().map(|it| lower(it)).collect();
            all.retain(|(name, _)| {
                patterns.iter().any(|it| pattern::matches(it.as_bytes(), name.as_bytes()))
            });
            call.reply(|replies| {
                replies.map(all.len());
                for (name, value) in &all {
                    replies.bulk(name.as_bytes());
                    replies.bulk(value.as_bytes());
                }
            })
        }
        "resetstat" => call.reply(|replies| replies.simple("OK")),
        "set" | "rewrite" => {
            Err("ERR settings are those of the command line: start the gateway with others"
                .to_owned())
        }
        "get" => Err("ERR wrong number of arguments for 'config|get' command".to_owned()),
        _ => Err(unknown_subcommand(call)),
    }
}

fn time(call: &mut Call<'_>) -> Result<Plan, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.reply(|replies| {
        replies.array(2);
        replies.bulk(since.as_secs().to_string().as_bytes());
        replies.bulk(since.subsec_micros().to_string().as_bytes());
    })
}

fn role(call: &mut Call<'_>) -> Result<Plan, String> {
    call.reply(|replies| {
        replies.array(3);
        replies.bulk(b"master");
        replies.integer(0);
        replies.array(0);
    })
}

fn slowlog(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.word().as_str() {
        "get" => call.reply(|replies| replies.array(0)),
        "len" => call.reply(|replies| replies.integer(0)),
        "reset" => call.reply(|replies| replies.simple("OK")),
        _ => Err(unknown_subcommand(call)),
    }
}

fn memory(call: &mut Call<'_>) -> Result<Plan, String> {
    if call.word() != "usage" {
        return Err(unknown_subcommand(call));
    }
    match &call.args[2..] {
        [_] => {}
        [_, word, count] if lower(word) == "samples" => drop(integer(count)?),
        _ => return Err(SYNTAX.to_owned()),
    }
    let key = call.args[2].to_vec();
    Ok(Plan::Alone(Box::new(move |table, _, replies| {
        let bytes = |hash: farleaf::Hash| -> usize {
            hash.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        match held(table, &key)? {
            Some(Held::String(value)) => replies.integer((key.len() + value.len()) as i64),
            Some(Held::Hash(hash)) => replies.integer((key.len() + bytes(hash)) as i64),
            None => replies.null(),
        }
        Ok(())
    })))
}

fn object(call: &mut Call<'_>) -> Result<Plan, String> {
    if call.word() != "encoding" || call.args.len() != 3 {
        return Err(unknown_subcommand(call));
    }
    let key = call.args[2].to_vec();
    Ok(Plan::Alone(Box::new(move |table, _, replies| {
        match held(table, &key)? {
            Some(Held::String(_)) => replies.bulk(b"raw"),
            Some(Held::Hash(_)) => replies.bulk(b"listpack"),
            None => replies.null(),
        }
        Ok(())
    })))
}

fn module(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.word().as_str() {
        "list" => call.reply(|replies| replies.array(0)),
        _ => Err(unknown_subcommand(call)),
    }
}

fn acl(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.word().as_str() {
        "whoami" => {
            let name = call.client.user.as_ref().map_or("default", |user| user.name.as_str());
            call.reply(|replies| replies.bulk(name.as_bytes()))
        }
        _ => Err(unknown_subcommand(call)),
    }
}

fn latency(call: &mut Call<'_>) -> Result<Plan, String> {
    match call.word().as_str() {
        "latest" => call.reply(|replies| replies.array(0)),
        "reset" => call.reply(|replies| replies.integer(0)),
        _ => Err(unknown_subcommand(call)),
    }
}
