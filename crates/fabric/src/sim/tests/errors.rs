//! Error tests: bad addresses, unknown services and absurd configurations give typed errors.

use super::*;
use crate::mapped::Mapped;
use crate::sim::SimFabric;
use crate::{FabricError, OpError, OpErrorKind, ServiceId};

/// One list of bad operations; the answers on any fabric.
async fn bad<E: Endpoint>(endpoint: &E) -> Vec<OpError> {
    let region = endpoint.region_bytes(ServerId(0));
    let mut chain = endpoint.ops();
    chain.write_word(at(0, 64), 7);
    chain.write_word(at(0, 73), 7);
    vec![
        endpoint.read(at(0, region - 8), endpoint.buf(16)).await.unwrap_err(),
        endpoint.write(at(0, region), endpoint.buf(1)).await.unwrap_err(),
        endpoint.cas(at(0, 4), 0, 1).await.unwrap_err(),
        endpoint.faa(at(9, 8), 1).await.unwrap_err(),
        endpoint.read(at(9, 8), endpoint.buf(24)).await.unwrap_err(),
        endpoint.chain(chain).await.unwrap_err(),
        endpoint
            .rpc(ServerId(0), ServiceId(5), endpoint.buf(1), endpoint.buf(1))
            .await
            .unwrap_err(),
        endpoint
            .rpc(ServerId(9), ServiceId(5), endpoint.buf(1), endpoint.buf(1))
            .await
            .unwrap_err(),
    ]
}

#[test]
fn bad_operations_fail_as_they_do_when_mapped() {
    for config in [config(1), hostile(1)] {
        let sim = sim(config);
        let simulated = endpoint(&sim, 0);
        let seen = sim.block_on(bad(&simulated)).unwrap();
        let mapped = Mapped::anonymous(1, 1 << 20).unwrap().endpoint().unwrap();
        let expected = mapped.executor().block_on(bad(&mapped));
        assert_eq!(seen, expected);
        assert!(matches!(seen[2].kind, OpErrorKind::Misaligned { .. }));
        assert_eq!(seen[6].kind, OpErrorKind::NoService { service: 5 });
        assert_eq!(look(&sim, 0, 64, 2), [7, 0], "what stands in front of the bad one is done");
        assert_eq!(simulated.buffers_out(), 0);
        assert_eq!(sim.in_flight(), 0);
    }
}

#[test]
fn empty_operations_are_harmless() {
    let sim = sim(hostile(1));
    let endpoint = endpoint(&sim, 0);
    sim.block_on(async {
        assert!(endpoint.chain(endpoint.ops()).await.unwrap().is_empty());
        assert!(endpoint.post_many(endpoint.ops()).await.unwrap().is_empty());
        assert!(endpoint.read(at(0, 64), endpoint.buf(0)).await.unwrap().is_empty());
        assert!(endpoint.write(at(0, 64), endpoint.buf(0)).await.unwrap().is_empty());
        endpoint.work(0).await;
    })
    .unwrap();
}

#[test]
fn absurd_configurations_are_refused() {
    let refused = |change: fn(&mut SimConfig)| {
        let mut config = config(1);
        change(&mut config);
        assert!(matches!(Sim::new(config).unwrap_err(), FabricError::Config(_)));
    };
    refused(|config| config.memory_servers = 0);
    refused(|config| config.compute_servers = 0);
    refused(|config| config.threads = 0);
    refused(|config| config.region_bytes = 100);
    refused(|config| config.memory_nic.atomics_per_s = 0);
    refused(|config| config.compute_nic.in_bits_per_s = u64::MAX);
    refused(|config| config.network.rtt_ns = 100);
    refused(|config| config.network.service_ns = u64::MAX);
    refused(|config| config.cpu.yield_ns = 0);
    refused(|config| config.rpc.dispatch_ns = u64::MAX);
    refused(|config| config.adversary.torn = f64::NAN);
    refused(|config| config.adversary.late = 1.5);
    refused(|config| config.adversary.lost = -0.1);
    refused(|config| config.adversary.late_ns = 0);
    refused(|config| config.adversary.lost_ns = u64::MAX);
    refused(|config| config.adversary.timeout_ns = 0);
    refused(|config| config.queue_depth = 0);
    refused(|config| config.lease_ns = u64::MAX);
    refused(|config| config.clock_skew_ns = u64::MAX);
    refused(|config| config.clock_drift_ppm = 10_001);
    let fabric: SimFabric = sim(config(1)).fabric(0);
    assert!(matches!(fabric.endpoint_on(4), Err(FabricError::Config(_))));
}

#[test]
fn large_regions_cost_nothing_until_touched() {
    let sim = sim(SimConfig { memory_servers: 4, region_bytes: 16 << 30, ..config(1) });
    let endpoint = endpoint(&sim, 0);
    let last = at(3, (16 << 30) - 8);
    assert_eq!(sim.block_on(endpoint.faa(last, 5)).unwrap(), Ok(0));
    assert_eq!(look(&sim, 3, (16 << 30) - 8, 1), [5]);
}
