//! Simulator tests: the simulator as a whole.
#![allow(clippy::unwrap_used)]

mod calls;
mod clocks;
mod crash;
mod ended;
mod errors;
mod faults;
mod links;
mod order;
mod records;
mod regions;
mod replay;
mod tasks;
mod timing;
mod unknown;

use super::{AdversaryConfig, NetworkConfig, Sim, SimConfig, SimEndpoint};
use crate::{Buf, Endpoint, Fabric, GlobalAddr, ServerId};

/// An address.
fn at(server: u16, offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(server), offset)
}

/// The default cluster with small regions.
fn config(seed: u64) -> SimConfig {
    SimConfig { region_bytes: 1 << 20, ..SimConfig::seeded(seed) }
}

/// All faults are on.
fn hostile(seed: u64) -> SimConfig {
    SimConfig {
        adversary: AdversaryConfig { torn: 1.0, split_rmw: 1.0, ..Default::default() },
        ..config(seed)
    }
}

/// A network without jitter.
fn exact() -> NetworkConfig {
    NetworkConfig { jitter_ns: 0, ..NetworkConfig::default() }
}

fn sim(config: SimConfig) -> Sim {
    Sim::new(config).unwrap()
}

/// A buffer of `words` times `word`.
fn filled(endpoint: &SimEndpoint, words: usize, word: u64) -> Buf {
    let mut buf = endpoint.buf(words * 8);
    buf.words_mut().fill(word);
    buf
}

/// The words of a server, without virtual time.
fn look(sim: &Sim, server: u16, offset: usize, words: usize) -> Vec<u64> {
    let mut seen = vec![0; words];
    sim.memory(ServerId(server)).unwrap().load(offset / 8, &mut seen);
    seen
}

fn endpoint(sim: &Sim, compute: usize) -> SimEndpoint {
    sim.fabric(compute).endpoint().unwrap()
}
