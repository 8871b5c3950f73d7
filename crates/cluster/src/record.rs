//! Records: the values that the directory stores.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use farleaf_fabric::Incarnation;
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::etcd::Pair;

/// Parses the name of a compute server.
fn incarnation(text: &str) -> Result<Incarnation, String> {
    digits(text, 16).map(|number| Incarnation(number as u64))
}

/// Lower case, so that each number has one text.
fn digits(text: &str, count: usize) -> Result<u128, String> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let number = u128::from_str_radix(text, 16).ok();
    number
        .filter(|number| *number != 0 && text.len() == count && text.bytes().all(is_digit))
        .ok_or_else(|| format!("{text:?} does not have {count} hexadecimal digits"))
}

/// The number of a pool, in text of 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct PoolId(pub(crate) u128);

impl From<PoolId> for String {
    fn from(id: PoolId) -> String {
        format!("{:032x}", id.0)
    }
}

impl TryFrom<String> for PoolId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        digits(&text, 32).map(PoolId)
    }
}

/// The pool of a cluster, as the directory names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    id: PoolId,
    /// Its memory servers.
    pub servers: u16,
}

impl PoolRecord {
    pub(crate) fn new(id: u128, servers: u16) -> Self {
        PoolRecord { id: PoolId(id), servers }
    }

    /// Returns the number that the pool got when it was made.
    pub fn id(&self) -> u128 {
        self.id.0
    }
}

/// Fabric by which clients reach a memory server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// By TCP. An entry without this field means TCP.
    #[default]
    Tcp,
    /// By RDMA.
    Verbs,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Tcp => "tcp",
            Way::Verbs => "verbs",
        })
    }
}

/// Entry of a memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRecord {
    /// Address at which clients reach it.
    pub address: SocketAddr,
    /// Its number.
    pub server: u16,
    /// Memory servers that the cluster has.
    pub servers: u16,
    /// Bytes that it exposes.
    pub bytes: u64,
    /// Fabric by which clients reach it.
    #[serde(default)]
    pub fabric: Way,
    pool: Option<PoolId>,
}

impl MemoryRecord {
    /// Memory server `server` of `servers`, reached by TCP. `pool` is the pool whose data it holds, if it
    /// holds any.
    pub fn new(
        address: SocketAddr,
        (server, servers): (u16, u16),
        bytes: u64,
        pool: Option<u128>,
    ) -> Self {
        let fabric = Way::default();
        MemoryRecord { address, server, servers, bytes, fabric, pool: pool.map(PoolId) }
    }

    /// The same, reached by `fabric`.
    pub fn by(self, fabric: Way) -> Self {
        MemoryRecord { fabric, ..self }
    }

    /// The same, with the data of `pool`.
    pub(crate) fn holding(self, pool: Option<u128>) -> Self {
        MemoryRecord { pool: pool.map(PoolId), ..self }
    }

    /// Returns the pool whose data it holds.
    pub fn pool(&self) -> Option<u128> {
        self.pool.map(|pool| pool.0)
    }
}

/// Entry of a compute server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRecord {
    /// Address at which it answers other compute servers, if it does.
    pub address: Option<SocketAddr>,
    /// The process, for people: host and process id.
    pub process: String,
    /// If it is asked to leave, it hands its ranges over and does so.
    pub serves: bool,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct CoordinatorRecord {
    #[serde(with = "name")]
    pub(crate) name: Incarnation,
}

/// The form of a compute server's name in a value.
mod name {
    use super::*;

    pub(super) fn serialize<S: Serializer>(name: &Incarnation, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(name)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Incarnation, D::Error> {
        incarnation(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A key that Farleaf does not write, or one with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The whole key.
    pub key: String,
    /// The fault of the key or value.
    pub why: String,
}

/// The directory of a cluster, all at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its pool, if one has been made.
    pub pool: Option<PoolRecord>,
    /// Memory servers that are registered, by their numbers.
    pub memory: BTreeMap<u16, MemoryRecord>,
    /// Compute servers that are registered.
    pub compute: BTreeMap<Incarnation, ComputeRecord>,
    /// The compute server that recovers the dead, if there is one.
    pub coordinator: Option<Incarnation>,
    /// Compute servers that are asked to leave.
    pub leaving: BTreeSet<Incarnation>,
    /// Keys that Farleaf has not written, and entries that make no sense.
    pub foreign: Vec<Foreign>,
}

impl Snapshot {
    /// Parses the keys below `prefix`.
    pub(crate) fn of(prefix: &str, pairs: &[Pair]) -> Self {
        let mut snapshot = Snapshot::default();
        for pair in pairs {
            let Some(rest) = pair.key.strip_prefix(prefix) else { continue };
            if let Err(why) = snapshot.add(rest, &pair.value) {
                snapshot.foreign.push(Foreign { key: pair.key.clone(), why });
            }
        }
        snapshot
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key.split_once('/').unwrap_or((key, "")) {
            ("pool", "") => self.pool = Some(parse(value)?),
            ("memory", number) => {
                let record: MemoryRecord = parse(value)?;
                check_memory(number, &record)?;
                self.memory.insert(record.server, record);
            }
            ("compute", name) => {
                self.compute.insert(incarnation(name)?, parse(value)?);
            }
            ("coordinator", "") => {
                self.coordinator = Some(parse::<CoordinatorRecord>(value)?.name);
            }
            ("leave", name) => {
                self.leaving.insert(incarnation(name)?);
            }
            _ => return Err("it is none of Farleaf's keys".to_owned()),
        }
        Ok(())
    }
}

/// Returns the number of a memory server as its key has it.
pub(crate) fn number_text(server: u16) -> String {
    format!("{server:05}")
}

fn check_memory(number: &str, record: &MemoryRecord) -> Result<(), String> {
    let MemoryRecord { server, servers, .. } = record;
    if number_text(*server) != number {
        return Err(format!("it is of memory server {server}"));
    }
    if server >= servers {
        return Err(format!("there is no memory server {server} of {servers}"));
    }
    Ok(())
}

pub(crate) fn parse<T: DeserializeOwned>(value: &str) -> Result<T, String> {
    serde_json::from_str(value).map_err(|error| format!("its value is malformed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pairs: &[(&str, &str)]) -> Snapshot {
        let pair = |(key, value): &(&str, &str)| Pair {
            key: format!("/p/{key}"),
            value: (*value).to_owned(),
            revision: 1,
            lease: None,
        };
        Snapshot::of("/p/", &pairs.iter().map(pair).collect::<Vec<_>>())
    }

    #[test]
    fn records_parse_as_they_were_written() {
        let address = "[::1]:7000".parse().unwrap();
        let memory = MemoryRecord::new(address, (1, 2), 4096, Some(7));
        let compute = ComputeRecord { address: None, process: "h:1".to_owned(), serves: true };
        let pool = PoolRecord::new(u128::MAX, 2);
        let text = |value: Result<String, serde_json::Error>| value.unwrap();
        let found = snapshot(&[
            ("pool", &text(serde_json::to_string(&pool))),
            ("memory/00001", &text(serde_json::to_string(&memory))),
            ("compute/00000000000000ff", &text(serde_json::to_string(&compute))),
            ("coordinator", r#"{"name":"00000000000000ff","more":1}"#),
            ("leave/00000000000000ff", ""),
        ]);
        assert_eq!(found.foreign, []);
        assert_eq!((found.pool, found.memory[&1]), (Some(pool), memory));
        assert_eq!((pool.id(), memory.pool()), (u128::MAX, Some(7)));
        assert_eq!(found.compute[&Incarnation(255)], compute);
        assert_eq!(found.coordinator, Some(Incarnation(255)));
        assert!(found.leaving.contains(&Incarnation(255)));
    }

    #[test]
    fn the_fabric_of_a_memory_server_is_parsed() {
        let way = |fabric: &str| {
            let value =
                format!(r#"{{"address":"1.2.3.4:5","server":0,"servers":1,"bytes":1{fabric}}}"#);
            let found = snapshot(&[("memory/00000", &value)]);
            found.memory.get(&0).map(|record| record.fabric).ok_or(found.foreign)
        };
        // An entry from before there was a choice.
        assert_eq!(way(""), Ok(Way::Tcp));
        assert_eq!(way(r#","fabric":"tcp""#), Ok(Way::Tcp));
        assert_eq!(way(r#","fabric":"verbs""#), Ok(Way::Verbs));
        let foreign = way(r#","fabric":"pigeon""#).unwrap_err();
        assert!(foreign[0].why.contains("`pigeon`, expected `tcp` or `verbs`"), "{foreign:?}");
        let record = MemoryRecord::new("1.2.3.4:5".parse().unwrap(), (0, 1), 1, None);
        let record = record.by(Way::Verbs).holding(Some(7));
        let value = serde_json::to_string(&record).unwrap();
        assert_eq!(snapshot(&[("memory/00000", &value)]).memory[&0], record);
        assert_eq!((record.fabric, record.pool()), (Way::Verbs, Some(7)));
    }

    #[test]
    fn foreign_keys_are_reported_and_left_out() {
        let memory = |server: u16, servers: u16| {
            let address = "1.2.3.4:5".parse().unwrap();
            let record = MemoryRecord::new(address, (server, servers), 1, None);
            serde_json::to_string(&record).unwrap()
        };
        for (key, value, why) in [
            ("letter", "dear", "none of Farleaf's keys"),
            ("pool", "{}", "its value is malformed"),
            ("pool", r#"{"id":"12","servers":1}"#, "32 hexadecimal digits"),
            ("pool/x", "{}", "none of Farleaf's keys"),
            ("memory/00000", "\u{fffd}", "its value is malformed"),
            ("memory/00000", &memory(1, 2), "it is of memory server 1"),
            ("memory/0", &memory(0, 2), "it is of memory server 0"),
            ("memory/00002", &memory(2, 2), "no memory server 2 of 2"),
            ("compute/ff", "{}", "16 hexadecimal digits"),
            ("compute/00000000000000FF", "{}", "16 hexadecimal digits"),
            ("compute/0000000000000000", "{}", "16 hexadecimal digits"),
            ("compute/00000000000000ff", "[]", "its value is malformed"),
            ("coordinator", "me", "its value is malformed"),
            ("leave/me", "", "16 hexadecimal digits"),
        ] {
            let found = snapshot(&[(key, value)]);
            assert_eq!(found.foreign.len(), 1, "{key}");
            assert_eq!(found.foreign[0].key, format!("/p/{key}"));
            assert!(found.foreign[0].why.contains(why), "{key}: {}", found.foreign[0].why);
            let rest = Snapshot { foreign: Vec::new(), ..found };
            assert_eq!(rest, Snapshot::default(), "{key}");
        }
    }
}
