//! Directory: reads and writes one cluster's part of etcd.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use farleaf_fabric::Incarnation;

use crate::etcd::Etcd;
use crate::record::{MemoryRecord, PoolRecord, Snapshot, Way, number_text, parse};
use crate::{ClusterAddress, ClusterError, EtcdAccess, Foreign};

/// Prefix of all keys.
const ROOT: &str = "/farleaf/";
/// Names that an error lists.
const NAMES_MAX: usize = 8;
/// Most tries to write the pool's record while others change it.
const ATTEMPTS_MAX: usize = 16;

/// The directory of a cluster. Clones share it; use it from any thread.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(crate) etcd: Arc<Etcd>,
    pub(crate) name: String,
}

impl Directory {
    /// The directory of the cluster at `address`, with `access` to etcd. Sends no request yet.
    pub fn with(address: &ClusterAddress, access: &EtcdAccess) -> Self {
        let etcd = Arc::new(Etcd::with(address.endpoints().iter().cloned(), access));
        Directory { etcd, name: address.name().to_owned() }
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the whole directory.
    ///
    /// Cost: 1 request to etcd.
    ///
    /// # Errors
    /// [`ClusterError::Unreachable`] and other errors of etcd; so do all functions here.
    pub fn look(&self) -> Result<Snapshot, ClusterError> {
        let prefix = self.key("");
        Ok(Snapshot::of(&prefix, &self.etcd.list(&prefix)?))
    }

    /// Returns the addresses of the cluster's memory servers, in the order of their numbers, and their common
    /// fabric.
    ///
    /// Cost: 1 request to etcd; another if there is no such cluster.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchCluster`]; [`ClusterError::Missing`] if some are not registered;
    /// [`ClusterError::OtherCount`] and [`ClusterError::OtherWay`] if they do not agree; [`ClusterError::Foreign`] for an entry of a memory
    /// server that makes no sense.
    pub fn memory_servers(&self) -> Result<(Vec<SocketAddr>, Way), ClusterError> {
        let snapshot = self.look()?;
        let memory = self.key("memory/");
        if let Some(found) = snapshot.foreign.iter().find(|found| found.key.starts_with(&memory)) {
            return Err(foreign(found));
        }
        let servers = match (snapshot.memory.values().next(), snapshot.pool) {
            (_, Some(pool)) => pool.servers,
            (Some(record), None) => record.servers,
            (None, None) => return Err(self.no_such_cluster()?),
        };
        for record in snapshot.memory.values() {
            self.check_count(record, servers)?;
        }
        let missing = (0..servers).filter(|server| !snapshot.memory.contains_key(server));
        let missing: Vec<String> = missing.map(|server| server.to_string()).collect();
        if !missing.is_empty() {
            let (name, verb) = (self.name.clone(), if missing.len() == 1 { "is" } else { "are" });
            let missing = format!("{} {verb}", missing.join(", "));
            return Err(ClusterError::Missing { name, missing, servers });
        }
        let fabric = snapshot.memory.values().next().map_or(Way::Tcp, |record| record.fabric);
        for record in snapshot.memory.values() {
            self.check_way(record, fabric)?;
        }
        Ok((snapshot.memory.values().map(|record| record.address).collect(), fabric))
    }

    /// Makes the directory name the pool `id` of `servers` memory servers, which the caller has just opened
    /// at the registered addresses. If `is_new`, the pool was just made and replaces one whose memory is
    /// gone.
    ///
    /// Cost: 1 request to etcd; the first time 2.
    ///
    /// # Errors
    /// [`ClusterError::OtherPool`].
    pub fn agree_on_pool(&self, id: u128, servers: u16, is_new: bool) -> Result<(), ClusterError> {
        let key = self.key("pool");
        let own = PoolRecord::new(id, servers);
        let value = to_json(&own);
        for _ in 0..ATTEMPTS_MAX {
            let pair = self.etcd.get(&key)?;
            if let Some(pair) = &pair {
                let known: PoolRecord = parse(&pair.value)
                    .map_err(|why| ClusterError::Foreign { key: key.clone(), why })?;
                if known == own {
                    return Ok(());
                }
                if !is_new {
                    return Err(self.other_pool(known, id, "its memory servers hold data".into()));
                }
            }
            let revision = pair.map_or(0, |pair| pair.revision);
            if self.etcd.put_if(&key, &value, None, revision)?.is_ok() {
                return Ok(());
            }
        }
        let why = "it is changed without end".to_owned();
        Err(ClusterError::Foreign { key, why })
    }

    /// Asks a compute server to hand its ranges over and to leave. A server whose record says that it does
    /// not hand over ignores that. The request ends with the compute server's lease.
    ///
    /// Cost: 2 requests to etcd.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchServer`].
    pub fn ask_to_leave(&self, who: Incarnation) -> Result<(), ClusterError> {
        let found = self.etcd.get(&self.key(&format!("compute/{who}")))?;
        let gone =
            || ClusterError::NoSuchServer { name: self.name.clone(), server: who.to_string() };
        let lease = found.and_then(|pair| pair.lease).ok_or_else(gone)?;
        let is_there = self.etcd.put(&self.key(&format!("leave/{who}")), "", Some(lease))?;
        if is_there { Ok(()) } else { Err(gone()) }
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{ROOT}{}/{rest}", self.name)
    }

    pub(crate) fn memory_key(&self, server: u16) -> String {
        self.key(&format!("memory/{}", number_text(server)))
    }

    /// # Errors
    /// [`ClusterError`] with the reason for which a memory server cannot become part of the cluster.
    pub(crate) fn check_fits(&self, record: &MemoryRecord) -> Result<(), ClusterError> {
        let snapshot = self.look()?;
        if let Some(pool) = snapshot.pool {
            self.check_count(record, pool.servers)?;
            if let Some(found) = record.pool().filter(|found| *found != pool.id()) {
                let what = format!("memory server {} holds data", record.server);
                return Err(self.other_pool(pool, found, what));
            }
        }
        let mut others = snapshot.memory.values().filter(|other| other.server != record.server);
        others.try_for_each(|other| {
            self.check_count(record, other.servers)?;
            self.check_way(record, other.fabric)
        })
    }

    fn check_way(&self, record: &MemoryRecord, fabric: Way) -> Result<(), ClusterError> {
        if record.fabric == fabric {
            return Ok(());
        }
        Err(ClusterError::OtherWay {
            name: self.name.clone(),
            server: record.server,
            address: record.address,
            fabric: record.fabric,
            others: fabric,
        })
    }

    fn check_count(&self, record: &MemoryRecord, servers: u16) -> Result<(), ClusterError> {
        if record.servers == servers {
            return Ok(());
        }
        Err(ClusterError::OtherCount {
            name: self.name.clone(),
            server: record.server,
            address: record.address,
            servers: record.servers,
            others: servers,
        })
    }

    fn other_pool(&self, known: PoolRecord, found: u128, what: String) -> ClusterError {
        ClusterError::OtherPool { name: self.name.clone(), expected: known.id(), found, what }
    }

    fn no_such_cluster(&self) -> Result<ClusterError, ClusterError> {
        let pairs = match self.etcd.list_keys(ROOT) {
            // A user may have the right to see one cluster alone.
            Err(ClusterError::NotAllowed { .. }) => Vec::new(),
            pairs => pairs?,
        };
        let rest = pairs.iter().filter_map(|pair| pair.key.strip_prefix(ROOT));
        let names: BTreeSet<&str> =
            rest.filter_map(|rest| rest.split_once('/')).map(|(name, _)| name).collect();
        let names: Vec<&str> =
            names.into_iter().filter(|name| *name != self.name).take(NAMES_MAX).collect();
        let others =
            if names.is_empty() { String::new() } else { format!(", but {}", names.join(", ")) };
        Ok(ClusterError::NoSuchCluster {
            name: self.name.clone(),
            etcd: self.etcd.endpoints(),
            others,
        })
    }
}

pub(crate) fn foreign(found: &Foreign) -> ClusterError {
    ClusterError::Foreign { key: found.key.clone(), why: found.why.clone() }
}

/// A record has no map keys, and nothing else that could fail.
pub(crate) fn to_json(record: &impl serde::Serialize) -> String {
    serde_json::to_string(record).unwrap_or_default()
}
