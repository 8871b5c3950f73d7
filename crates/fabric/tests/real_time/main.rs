//! Real-time tests: the contract on every fabric, and memory servers over TCP, TLS and RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "a network is real time and real threads")]

#[path = "../common/authority.rs"]
mod authority;
mod common;

mod any;
mod conformance;
mod tcp;
mod tls;
#[cfg(feature = "verbs")]
mod verbs;

/// Not a test of its own: the process that a harness's `run_beside_victim` kills.
#[test]
fn dies_when_asked_to() {
    let Some((pool, addr)) = common::asked_to_die() else { return };
    #[cfg(feature = "verbs")]
    if let Some(servers) = pool.strip_prefix(verbs::POOL) {
        return verbs::be_victim(servers, addr);
    }
    conformance::be_victim(&pool, addr);
}
