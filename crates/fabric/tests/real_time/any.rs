//! Tests of the chosen fabric: operations through `AnyFabric` do the same as on the fabric itself.

use std::sync::Arc;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::{
    AnyFabric, Capabilities, Endpoint, Fabric, GlobalAddr, Incarnation, OpErrorKind, ServerId,
    Service, ServiceId, ServiceReply, Words,
};

const REGION_BYTES: u64 = 64 << 10;
const SERVICE: ServiceId = ServiceId(7);

/// Answers with the request, turned round.
struct Mirror;

impl Service for Mirror {
    fn call(&self, _: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        let turned = request.iter().rev().zip(&mut *reply).map(|(from, to)| *to = *from);
        ServiceReply { len: turned.count(), cpu_ns: 0 }
    }
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(0), offset)
}

/// Does everything once; returns the promises beyond the contract, and whether operations may be lost.
fn does_everything(fabric: &AnyFabric) -> (Capabilities, bool) {
    let endpoint = fabric.endpoint().unwrap();
    assert_eq!((endpoint.server_count(), endpoint.region_bytes(ServerId(0))), (1, REGION_BYTES));
    assert!(Arc::ptr_eq(endpoint.counters(), &fabric.counters()[0]));
    let same = [0; 2].map(|_| {
        endpoint.seed(5);
        endpoint.random()
    });
    assert_eq!(same[0], same[1]);
    let other = endpoint.clone();
    endpoint.executor().block_on(async {
        let mut buf = endpoint.buf(16);
        buf.words_mut().copy_from_slice(&[1, 2]);
        endpoint.write(at(64), buf).await.unwrap();
        assert_eq!(endpoint.cas(at(64), 1, 10).await, Ok(1));
        assert_eq!(endpoint.faa(at(72), 5).await, Ok(2));
        let buf = endpoint.read(at(64), endpoint.buf(16)).await.unwrap();
        assert_eq!(buf.words(), [10, 7]);
        let frame = Arc::new(Words::anonymous(4).unwrap());
        endpoint.read_frame(at(64), &frame, 1, 2).await.unwrap();
        let mut words = [0; 4];
        frame.load(0, &mut words);
        assert_eq!(words, [0, 10, 7, 0]);
        for is_chain in [true, false] {
            let mut ops = endpoint.ops();
            ops.faa(at(80), 1);
            ops.faa(at(88), 1);
            let ops =
                if is_chain { endpoint.chain(ops).await } else { endpoint.post_many(ops).await };
            let before = u64::from(!is_chain);
            assert_eq!(ops.map(|ops| (ops.old(0), ops.old(1))).unwrap(), (before, before));
        }
        let mut request = endpoint.buf(3);
        request.bytes_mut()[..3].copy_from_slice(b"abc");
        let reply = endpoint.rpc(ServerId(0), SERVICE, request, endpoint.buf(8)).await.unwrap();
        assert_eq!(reply.window_bytes(), b"cba");

        assert!(!endpoint.is_dead(endpoint.incarnation()).await);
        let alive = endpoint.fence(ServerId(0), endpoint.incarnation()).await.unwrap_err();
        assert_eq!(alive.kind, OpErrorKind::StillAlive);
        assert!(endpoint.incarnation() != Incarnation(0));
        endpoint.reconnect(ServerId(0)).await.unwrap();
        endpoint.spawn(async move {
            let began_ns = other.now_ns();
            other.sleep(1_000_000).await;
            other.yield_now().await;
            other.work(1).await;
            assert!(other.now_ns() - began_ns >= 1_000_000);
            other.faa(at(96), 1).await.unwrap();
        });
    });
    // The spawned task has ended.
    let done = endpoint.executor().block_on(async { endpoint.faa(at(96), 0).await });
    assert_eq!(done, Ok(1));
    (endpoint.capabilities(), endpoint.is_lossy())
}

#[test]
fn on_mapped_memory() {
    let mapped = Mapped::anonymous(1, REGION_BYTES).unwrap();
    let fabric = AnyFabric::Mapped(mapped.clone());
    fabric.serve(SERVICE, Arc::new(Mirror));
    assert_eq!(fabric.name(), "mapped");
    let (capabilities, is_lossy) = does_everything(&fabric);
    assert_eq!((capabilities, is_lossy), (mapped.endpoint().unwrap().capabilities(), false));
}

#[test]
fn over_tcp() {
    let words = Arc::new(Words::anonymous((REGION_BYTES / 8) as usize).unwrap());
    let server = MemoryServer::start(MemoryServerConfig::default(), words).unwrap();
    server.serve(SERVICE, Arc::new(Mirror));
    let tcp = Tcp::connect(TcpConfig::to([server.address()])).unwrap();
    let fabric = AnyFabric::Tcp(tcp.clone());
    assert_eq!(fabric.name(), "tcp");
    let (capabilities, is_lossy) = does_everything(&fabric);
    assert_eq!((capabilities, is_lossy), (tcp.endpoint().unwrap().capabilities(), true));
}
