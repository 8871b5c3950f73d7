//! Fabric target: operations of any address and length, and RPCs with any reply, on both fabrics.
//!
//! An example service answers, because no service of the project's own fits.
//!
//! Input: operations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{
    AnyEndpoint, Client, Fabric, GlobalAddr, OpErrorKind, ServerId, Service, ServiceId,
    ServiceReply, ToAny, Words,
};

use crate::bytes::Bytes;

const REGION_BYTES: u64 = 64 << 10;
const OPS_MAX: usize = 24;

/// Adds to the word that the request names, and claims to have written as much as the request
/// says.
struct Example;

impl Service for Example {
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let mut bytes = Bytes::new(request);
        let (offset, len) = (bytes.u16(), bytes.u16());
        if let Some(word) = memory.as_slice().get(usize::from(offset)) {
            let old = word.fetch_add(1, Ordering::SeqCst).to_le_bytes();
            let whole = old.len().min(reply.len());
            reply[..whole].copy_from_slice(&old[..whole]);
        }
        ServiceReply { len: usize::from(len), cpu_ns: u64::from(bytes.u16()) }
    }
}

pub(crate) fn run(input: &[u8]) {
    let config = SimConfig {
        memory_servers: 2,
        region_bytes: REGION_BYTES,
        events_max: 100_000,
        ..SimConfig::seeded(1)
    };
    let sim = Sim::new(config).expect("a simulator");
    sim.fabric(0).serve(ServiceId(1), Arc::new(Example));
    let endpoint = sim.fabric(0).any_endpoint().expect("an endpoint");
    let simulated = sim.block_on(operate(endpoint, input)).expect("it ends");

    let mapped = Mapped::anonymous(2, REGION_BYTES).expect("memory");
    mapped.serve(ServiceId(1), Arc::new(Example));
    let endpoint = mapped.any_endpoint().expect("an endpoint");
    let executor = endpoint.executor().clone();
    let on_mapped = executor.block_on(operate(endpoint, input));
    assert_eq!(simulated, on_mapped, "both fabrics answer alike");
}

/// Returns the results, as far as the contract determines them.
async fn operate(endpoint: AnyEndpoint, input: &[u8]) -> Vec<Result<u64, Option<OpErrorKind>>> {
    let client = Client::new(endpoint);
    let mut bytes = Bytes::new(input);
    let mut results = Vec::new();
    for _ in 0..OPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let what = bytes.u8();
        let addr = match what >> 4 {
            0 => GlobalAddr::from_word(bytes.u64()).unwrap_or(GlobalAddr::NULL),
            1 => GlobalAddr::new(ServerId(0), REGION_BYTES - u64::from(bytes.u8())),
            2 => GlobalAddr::new(ServerId(1), u64::from(bytes.u16())),
            _ => GlobalAddr::new(ServerId(u16::from(what & 1)), u64::from(bytes.u8()) * 8),
        };
        let len = usize::from(bytes.u16());
        let result = match what % 8 {
            0 => client.read(addr, client.buf(len)).await.map(|buf| sum(buf.bytes())),
            1 => {
                let mut buf = client.buf(len);
                buf.bytes_mut().fill(what);
                client.write(addr, buf).await.map(|buf| buf.len() as u64)
            }
            2 => client.cas(addr, len as u64, bytes.u64()).await,
            3 => client.faa(addr, bytes.u64()).await,
            4 => {
                let mut ops = client.ops();
                ops.read(addr, client.buf(len));
                ops.faa(GlobalAddr::new(addr.server(), u64::from(bytes.u16())), 1);
                client.chain(ops).await.map(|ops| sum(ops.buf(0).bytes()) ^ ops.old(1))
            }
            5 => {
                let mut ops = client.ops();
                ops.read(addr, client.buf(len));
                ops.write_word(GlobalAddr::new(ServerId(1), u64::from(bytes.u16())), 5);
                // No order: the READ may see the WRITE or not.
                client.post_many(ops).await.map(|ops| ops.buf(0).len() as u64)
            }
            _ => {
                let request = bytes.take(len % 32);
                let mut buf = client.buf(request.len());
                buf.bytes_mut().copy_from_slice(request);
                let mut reply = client.buf(usize::from(bytes.u8()));
                reply.bytes_mut().fill(0);
                let (server, service) = (addr.server(), ServiceId(u16::from(what % 8 - 6)));
                let reply = client.rpc(server, service, buf, reply).await;
                reply.map(|reply| sum(reply.window_bytes()) ^ reply.window_len() as u64)
            }
        };
        // A failed list does not tell what it has done, so from here on the fabrics may differ; nor does a
        // batch tell which of its errors came first.
        let may_differ = result.is_err() && matches!(what % 8, 4 | 5);
        results.push(result.map_err(|error| (what % 8 != 5).then_some(error.kind)));
        if may_differ {
            break;
        }
    }
    results
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte))
}
