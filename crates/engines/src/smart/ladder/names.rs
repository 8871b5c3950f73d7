//! Names: a hash table of the cached nodes by the bytes that lead to each.
//!
//! The name of a node is the bytes in front of the one that it dispatches on. The table has a hash of each, and of the
//! names with one hash the last.

use std::collections::BTreeMap;

use farleaf_fabric::GlobalAddr;
use farleaf_index::sync::{Mutex, lock};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::changes::SHARDS;

/// Bytes that a name takes: its hash and an address, with its share of the nodes of the map.
pub(in crate::smart) const NAME_BYTES: usize = 32;

/// Addresses of cached nodes by the hashes of their names, in shards.
#[derive(Debug)]
pub(in crate::smart) struct Names(Box<[Mutex<BTreeMap<u64, u64>>]>);

impl Default for Names {
    fn default() -> Names {
        Names((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

fn hash(name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, name.len() as u64)
}

impl Names {
    fn shard(&self, hash: u64) -> &Mutex<BTreeMap<u64, u64>> {
        &self.0[hash as usize % SHARDS]
    }

    /// The address of the node of that name, or of another with the same hash.
    pub(in crate::smart) fn get(&self, name: &[u8]) -> Option<GlobalAddr> {
        let name = hash(name);
        let addr = *lock(self.shard(name)).get(&name)?;
        GlobalAddr::from_word(addr)
    }

    /// Notes the node at `addr` under its name.
    pub(in crate::smart) fn insert(&self, name: &[u8], addr: GlobalAddr) {
        let name = hash(name);
        lock(self.shard(name)).insert(name, addr.word());
    }

    /// Takes the name of the node at `addr` out, unless another node has it by now.
    pub(in crate::smart) fn remove(&self, name: &[u8], addr: GlobalAddr) {
        let name = hash(name);
        let mut names = lock(self.shard(name));
        if names.get(&name) == Some(&addr.word()) {
            names.remove(&name);
        }
    }
}
