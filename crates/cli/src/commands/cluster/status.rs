//! `farleaf cluster status`: lists the members of a cluster by its directory and by its pool.

use std::net::SocketAddr;

use farleaf::{ComputeServer, ServerName};
use farleaf_cluster::{ComputeRecord, Directory, Snapshot, Way};
use serde_json::{Value, json};

use super::ClusterOf;
use crate::commands::{builder, close};
use crate::errors::{Exit, told};
use crate::output::Console;

/// The findings of the directory and of the pool.
struct Status {
    directory: Directory,
    snapshot: Snapshot,
    /// Members of the pool, without this command.
    members: Vec<ComputeServer>,
    /// Why the pool cannot be used.
    trouble: Option<anyhow::Error>,
}

pub(super) fn run(cluster: &ClusterOf, console: &mut Console) -> anyhow::Result<Exit> {
    let directory = cluster.directory(console)?;
    let snapshot = directory.look()?;
    if snapshot == Snapshot::default() {
        // Nobody has ever been there.
        directory.memory_servers()?;
    }
    let (members, trouble) = match ask_pool(cluster, console) {
        Ok(members) => (members, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let status = Status { directory, snapshot, members, trouble };
    if console.args.json {
        console.json_line(&status.to_json())?;
    } else {
        console.table(&["who", "name", "address", "state", "process"], status.rows())?;
    }
    Ok(if status.trouble.is_some() { Exit::NotFound } else { Exit::Done })
}

/// Opens the pool as one who does not register, and asks who is there.
fn ask_pool(cluster: &ClusterOf, console: &Console) -> anyhow::Result<Vec<ComputeServer>> {
    let builder = builder(console)?;
    let servers = builder.locate(&cluster.uri)?;
    let db = builder.open(&servers.uri())?;
    let mut members = db.compute_servers()?;
    members.retain(|member| !member.is_own);
    close(db)?;
    Ok(members)
}

impl Status {
    /// Members of the pool that have no entry.
    fn lapsed(&self) -> impl Iterator<Item = &ComputeServer> {
        self.members.iter().filter(|member| !self.snapshot.compute.contains_key(&member.name))
    }

    fn is_member(&self, name: &ServerName) -> bool {
        self.trouble.is_some() || self.members.iter().any(|member| member.name == *name)
    }

    /// Summary of a registered compute server, in a few words.
    fn state(&self, name: &ServerName) -> Vec<&'static str> {
        let states = [
            (self.snapshot.coordinator == Some(*name), "coordinator"),
            (self.snapshot.leaving.contains(name), "leaving"),
            (!self.is_member(name), "no member of the pool"),
        ];
        states.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word).collect()
    }

    /// Memory servers that have no entry.
    fn missing(&self) -> Vec<u16> {
        let Snapshot { pool, memory, .. } = &self.snapshot;
        let count = pool.map(|pool| pool.servers);
        let count = count.or(memory.values().next().map(|record| record.servers));
        (0..count.unwrap_or(0)).filter(|server| !memory.contains_key(server)).collect()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let snapshot = &self.snapshot;
        let row = |words: [&str; 5]| words.map(str::to_owned).to_vec();
        let text = |address: Option<SocketAddr>| address.map_or("-".into(), |it| it.to_string());
        let id = snapshot.pool.map_or("-".to_owned(), |pool| format!("{:032x}", pool.id()));
        let trouble = self.trouble.as_ref().map_or("in use".to_owned(), told);
        let mut rows = vec![row(["cluster", self.directory.name(), "-", &trouble, "-"])];
        rows.push(row(["pool", &id, "-", "-", "-"]));
        for (server, record) in &snapshot.memory {
            let state = match (record.pool(), snapshot.pool) {
                (Some(held), Some(pool)) if held != pool.id() => "of another pool",
                (Some(_), _) => "registered",
                (None, _) => "empty",
            };
            let state = match record.fabric {
                Way::Tcp => state.to_owned(),
                fabric => format!("{state}, {fabric}"),
            };
            rows.push(row([
                "memory",
                &server.to_string(),
                &text(Some(record.address)),
                &state,
                "-",
            ]));
        }
        for server in self.missing() {
            rows.push(row(["memory", &server.to_string(), "-", "missing", "-"]));
        }
        for (name, record) in &snapshot.compute {
            let mut states = self.state(name);
            states.insert(0, if record.serves { "serves" } else { "program" });
            let (address, states) = (text(record.address), states.join(", "));
            rows.push(row(["compute", &name.to_string(), &address, &states, &record.process]));
        }
        for member in self.lapsed() {
            let name = member.name.to_string();
            rows.push(row(["compute", &name, &text(member.address), "no entry", "-"]));
        }
        for found in &snapshot.foreign {
            rows.push(row(["foreign", &found.key, "-", &found.why, "-"]));
        }
        rows
    }

    fn to_json(&self) -> Value {
        let snapshot = &self.snapshot;
        let memory: Vec<Value> = snapshot
            .memory
            .values()
            .map(|record| {
                json!({
                    "server": record.server,
                    "address": record.address,
                    "bytes": record.bytes,
                    "fabric": record.fabric,
                    "pool": record.pool().map(|id| format!("{id:032x}")),
                })
            })
            .collect();
        let compute = |(name, record): (&ServerName, &ComputeRecord)| {
            json!({
                "name": name.to_string(),
                "address": record.address,
                "process": record.process,
                "serves": record.serves,
                "is_coordinator": snapshot.coordinator == Some(*name),
                "is_leaving": snapshot.leaving.contains(name),
                "is_member": self.is_member(name),
            })
        };
        let compute: Vec<Value> = snapshot.compute.iter().map(compute).collect();
        let without_entry: Vec<Value> = self
            .lapsed()
            .map(|member| json!({ "name": member.name.to_string(), "address": member.address }))
            .collect();
        let foreign: Vec<Value> =
            snapshot.foreign.iter().map(|it| json!({ "key": it.key, "why": it.why })).collect();
        json!({
            "cluster": self.directory.name(),
            "pool": snapshot.pool.map(|pool| format!("{:032x}", pool.id())),
            "coordinator": snapshot.coordinator.map(|name| name.to_string()),
            "memory_servers": memory,
            "missing_memory_servers": self.missing(),
            "compute_servers": compute,
            "without_entry": without_entry,
            "foreign": foreign,
            "trouble": self.trouble.as_ref().map(told),
        })
    }
}
