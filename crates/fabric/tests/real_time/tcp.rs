//! TCP fault tests: strangers, slow and broken connections, restarted servers, fenced compute servers.
//!
//! Tests that use raw sockets write the bytes by hand, as `docs/design/wire.md` specifies.

mod calls;
mod ends;

use std::cell::Cell;
use std::env;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Region, Tcp, TcpConfig, TcpEndpoint};
use farleaf_fabric::{
    Endpoint, Fabric, FabricError, GlobalAddr, Incarnation, OpError, OpErrorKind, ServerId, Words,
};

const REGION_BYTES: usize = 4 << 20;
const READ: u8 = 1;
const WRITE: u8 = 2;
const FAA: u8 = 4;
const BYE: u8 = 9;
const FENCED: u8 = 5;

fn words() -> Arc<Words> {
    Arc::new(Words::anonymous(REGION_BYTES / 8).unwrap())
}

fn serve(config: MemoryServerConfig) -> MemoryServer {
    MemoryServer::start(config, words()).unwrap()
}

/// A pool of `servers` memory servers, and their addresses.
fn pool(servers: usize, lease: Duration) -> (Vec<MemoryServer>, TcpConfig) {
    let pool: Vec<MemoryServer> = (0..servers)
        .map(|server| {
            let server = ServerId(server as u16);
            serve(MemoryServerConfig { server, servers, lease, ..Default::default() })
        })
        .collect();
    let config = TcpConfig::to(pool.iter().map(MemoryServer::address));
    (pool, config)
}

const LONG: Duration = Duration::from_secs(60);

fn at(server: u16, offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(server), offset)
}

fn block_on<T>(endpoint: &TcpEndpoint, body: impl Future<Output = T>) -> T {
    endpoint.executor().block_on(body)
}

fn kind<T: std::fmt::Debug>(result: Result<T, OpError>) -> OpErrorKind {
    result.expect_err("it fails").kind
}

/// `FarleafT`, version, control, incarnation, server, servers, replaced connection.
fn hello(who: u64, server: u16, servers: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"FarleafT");
    bytes[8] = 2;
    bytes[16..24].copy_from_slice(&who.to_le_bytes());
    bytes[24..26].copy_from_slice(&server.to_le_bytes());
    bytes[26..28].copy_from_slice(&servers.to_le_bytes());
    bytes
}

fn request(verb: u8, offset: u64, length: u32, operands: &[u8]) -> Vec<u8> {
    let head = [&[verb, 0, 0, 0][..], &length.to_le_bytes(), &offset.to_le_bytes()].concat();
    [&head, operands].concat()
}

/// A raw connection that has sent `greeting`.
fn knock(address: SocketAddr, greeting: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(greeting).unwrap();
    stream
}

/// A raw connection that has been let in.
fn enter(address: SocketAddr, who: u64, server: u16, servers: u16) -> TcpStream {
    let mut stream = knock(address, &hello(who, server, servers));
    let mut welcome = [0; 64];
    stream.read_exact(&mut welcome).unwrap();
    assert_eq!(&welcome[..8], b"FarleafT");
    assert_eq!(welcome[12], 0, "let in");
    stream
}

/// Status and content of the next answer.
fn answer(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 8];
    stream.read_exact(&mut head).unwrap();
    let mut content = vec![0; u32::from_le_bytes(head[4..].try_into().unwrap()) as usize];
    stream.read_exact(&mut content).unwrap();
    (head[0], content)
}

/// Returns whether the other side has closed, with nothing more to read.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 8]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Waits, at most 5 s, until the condition holds.
fn wait_until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn malformed_requests_end_their_connection() {
    let (pool, config) = pool(1, LONG);
    let long = (2 << 20) + 1;
    let bad = [
        request(0, 0, 0, &[]),
        request(12, 0, 0, &[]),
        request(11, 0, 257, &[0; 257]),
        request(READ, 0, long, &[]),
        request(READ, 0, u32::MAX, &[]),
        request(WRITE, 64, long, &[1; 64]),
        request(FAA, 64, 9, &[1; 9]),
        request(5, u64::MAX, 0, &[]),
        [&[WRITE, 2][..], &request(WRITE, 64, 8, &[1; 8])[2..]].concat(),
        [&[WRITE, 0, 1][..], &request(WRITE, 64, 8, &[1; 8])[3..]].concat(),
    ];
    for (number, bad) in bad.iter().enumerate() {
        let mut stream = enter(config.servers[0], 7, 0, 1);
        // A request in front of it is answered or not; one behind it does not happen.
        stream.write_all(bad).unwrap();
        let _ = stream.write_all(&request(FAA, 128, 8, &1_u64.to_le_bytes()));
        assert!(is_closed(&mut stream), "request {number}");
    }
    wait_until("their connections are gone", || pool[0].connections() == 0);
    let mut all = vec![0; 64];
    pool[0].words().load(0, &mut all);
    assert!(all.iter().all(|word| *word == 0), "nothing was touched");
}

/// Verb 11, the question for another way, at a server without one: it answers so, and the connection goes on.
#[test]
fn a_server_without_a_card_says_so() {
    let (_pool, config) = pool(1, LONG);
    let mut stream = enter(config.servers[0], 7, 0, 1);
    stream.write_all(&request(11, 0, 64, &[1; 64])).unwrap();
    stream.write_all(&request(FAA, 128, 8, &1_u64.to_le_bytes())).unwrap();
    assert_eq!(answer(&mut stream), (3, Vec::new()));
    assert_eq!(answer(&mut stream), (0, vec![0; 8]));
}

#[test]
fn malformed_greetings_end_their_connection() {
    let (_pool, config) = pool(1, LONG);
    let good = hello(7, 0, 1);
    for (byte, value) in [(0, b'f'), (12, 2), (13, 2), (31, 1), (63, 1)] {
        let mut bad = good;
        bad[byte] = value;
        assert!(is_closed(&mut knock(config.servers[0], &bad)), "byte {byte}");
    }
    assert!(is_closed(&mut knock(config.servers[0], &hello(0, 0, 1))), "no incarnation");
    assert!(is_closed(&mut knock(config.servers[0], &[b'G'; 64])), "something else");
    for (byte, value, entry) in [(8, 3, 1), (24, 1, 2), (26, 3, 2)] {
        let mut bad = good;
        bad[byte] = value;
        let mut stream = knock(config.servers[0], &bad);
        let mut welcome = [0; 64];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[12], entry, "byte {byte}");
        assert!(is_closed(&mut stream));
    }
}

#[test]
fn clients_that_do_not_greet_are_closed() {
    let greeting_timeout = Duration::from_millis(100);
    let server = serve(MemoryServerConfig { greeting_timeout, ..Default::default() });
    let mut silent = knock(server.address(), b"");
    let mut slow = knock(server.address(), &hello(7, 0, 1)[..63]);
    let mut guest = enter(server.address(), 7, 0, 1);
    assert!(is_closed(&mut silent));
    assert!(is_closed(&mut slow));
    guest.write_all(&request(READ, 0, 8, &[])).unwrap();
    assert_eq!(answer(&mut guest), (0, vec![0; 8]));
}

#[test]
fn a_compute_server_that_is_silent_for_long_loses_its_connections() {
    let lease = Duration::from_millis(10);
    let server = serve(MemoryServerConfig { lease, ..Default::default() });
    let mut silent = enter(server.address(), 7, 0, 1);
    let alive = Tcp::connect(TcpConfig::to([server.address()])).unwrap();
    let endpoint = alive.endpoint().unwrap();
    assert!(is_closed(&mut silent));
    // Its signs of life keep those of others.
    block_on(&endpoint, async { endpoint.read(at(0, 0), endpoint.buf(8)).await }).unwrap();
}

#[test]
fn requests_may_come_byte_by_byte() {
    let (_pool, config) = pool(1, LONG);
    let mut stream = enter(config.servers[0], 7, 0, 1);
    stream.set_nodelay(true).unwrap();
    let all = [
        request(FAA, 64, 8, &5_u64.to_le_bytes()),
        request(READ, 64, 8, &[]),
        request(WRITE, 65, 3, b"abc"),
        request(READ, 64, 5, &[]),
    ]
    .concat();
    for byte in all {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(answer(&mut stream), (0, vec![0; 8]));
    assert_eq!(answer(&mut stream), (0, 5_u64.to_le_bytes().to_vec()));
    assert_eq!(answer(&mut stream), (0, vec![]));
    assert_eq!(answer(&mut stream), (0, b"\x05abc\0".to_vec()));
}

/// A client asks for 400 MiB and takes nothing: the server holds a few of them, and serves others.
#[test]
fn a_slow_reader_costs_little() {
    let (_pool, config) = pool(1, LONG);
    let mut slow = enter(config.servers[0], 7, 0, 1);
    let before = resident_bytes();
    let count = 400;
    slow.write_all(&request(READ, 0, 1 << 20, &[]).repeat(count)).unwrap();
    let mut other = enter(config.servers[0], 8, 0, 1);
    for _ in 0..100 {
        other.write_all(&request(READ, 0, 8, &[])).unwrap();
        assert_eq!(answer(&mut other), (0, vec![0; 8]));
        thread::sleep(Duration::from_millis(1));
    }
    let grown = resident_bytes().saturating_sub(before);
    // Other tests of this process run meanwhile.
    assert!(grown < 100 << 20, "{grown} bytes are held");
    // A client that takes the answers late gets all of them.
    for _ in 0..count {
        assert_eq!(answer(&mut slow).1.len(), 1 << 20);
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_client_that_shuts_down_sending_gets_its_answers() {
    let (pool, config) = pool(1, LONG);
    let mut stream = enter(config.servers[0], 7, 0, 1);
    let part = &request(WRITE, 0, 100, &[1; 100])[..50];
    stream.write_all(&request(FAA, 64, 8, &1_u64.to_le_bytes()).repeat(500)).unwrap();
    stream.write_all(part).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    for number in 0..500_u64 {
        assert_eq!(answer(&mut stream), (0, number.to_le_bytes().to_vec()));
    }
    assert!(is_closed(&mut stream));
    let mut first = [0];
    pool[0].words().load(0, &mut first);
    assert_eq!(first, [0], "half a WRITE is none");
}

#[test]
fn an_address_is_loopback_unless_told() {
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let public = MemoryServerConfig { listen, ..Default::default() };
    let refused = MemoryServer::start(public.clone(), words()).expect_err("public");
    assert!(refused.to_string().contains("insecure_public"), "{refused}");
    MemoryServer::start(MemoryServerConfig { insecure_public: true, ..public }, words()).unwrap();
}

#[test]
fn invalid_configurations_are_refused() {
    let usual = MemoryServerConfig::default();
    for bad in [
        MemoryServerConfig { threads: 0, ..usual.clone() },
        MemoryServerConfig { servers: 0, ..usual.clone() },
        MemoryServerConfig { server: ServerId(1), ..usual.clone() },
        MemoryServerConfig { servers: 70_000, ..usual.clone() },
        MemoryServerConfig { lease: Duration::ZERO, ..usual.clone() },
    ] {
        let refused = MemoryServer::start(bad, words()).expect_err("refused");
        assert!(matches!(refused, FabricError::Config(_)), "{refused}");
    }
    assert!(matches!(Tcp::connect(TcpConfig::to([])), Err(FabricError::Config(_))));
    let taken = serve(usual.clone());
    let again = MemoryServerConfig { listen: taken.address(), ..usual };
    let refused = MemoryServer::start(again, words()).expect_err("taken");
    assert!(matches!(refused, FabricError::Unreachable { .. }), "{refused}");
}

#[test]
fn the_order_of_servers_is_checked() {
    let (pool, mut config) = pool(2, LONG);
    config.servers.reverse();
    let refused = Tcp::connect(config.clone()).expect_err("the wrong order");
    assert!(refused.to_string().contains("order"), "{refused}");
    config.servers.truncate(1);
    let refused = Tcp::connect(config).expect_err("too few");
    assert!(matches!(refused, FabricError::Refused { .. }), "{refused}");
    drop(pool);
}

/// A server of something else, which sends `greets` to each client and nothing more.
fn something_else(greets: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut streams = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(greets);
            streams.push(stream);
        }
    });
    address
}

#[test]
fn a_server_of_something_else_is_recognised() {
    let brief = |address| TcpConfig {
        connect_timeout: Duration::from_millis(100),
        ..TcpConfig::to([address])
    };
    let web = something_else(&[b'H'; 64]);
    let refused = Tcp::connect(brief(web)).expect_err("no memory server");
    assert!(matches!(refused, FabricError::Refused { .. }), "{refused}");
    let silent = something_else(b"");
    let unreachable = Tcp::connect(brief(silent)).expect_err("says nothing");
    assert!(matches!(unreachable, FabricError::Unreachable { .. }), "{unreachable}");
    let closed = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let unreachable = Tcp::connect(brief(closed)).expect_err("nobody there");
    assert!(matches!(unreachable, FabricError::Unreachable { .. }), "{unreachable}");
}

#[test]
fn more_connections_than_allowed_are_refused() {
    let server = serve(MemoryServerConfig { connections_max: 2, ..Default::default() });
    let config = TcpConfig::to([server.address()]);
    let first = Tcp::connect(config.clone()).unwrap();
    let endpoint = first.endpoint().unwrap();
    let refused = Tcp::connect(config.clone()).expect_err("full");
    assert!(refused.to_string().contains("limit of connections"), "{refused}");
    drop(endpoint);
    // The place of the other one is free once the server has noticed its end.
    wait_until("a place", || server.connections() == 1);
    let endpoint = first.endpoint().unwrap();
    block_on(&endpoint, async { endpoint.faa(at(0, 64), 1).await }).unwrap();
}

/// A server that lets everybody in and answers nothing.
#[test]
fn an_operation_takes_no_longer_than_allowed() {
    let mut welcome = Vec::from(hello(0, 0, 1));
    welcome[28..32].copy_from_slice(&60_000_u32.to_le_bytes());
    welcome[32..40].copy_from_slice(&4096_u64.to_le_bytes());
    let address = something_else(welcome.leak());
    let op_timeout = Duration::from_millis(100);
    let config = TcpConfig { op_timeout, ..TcpConfig::to([address]) };
    let config = TcpConfig { connect_timeout: Duration::from_millis(100), ..config };
    let fabric = Tcp::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    let start = Instant::now();
    block_on(&endpoint, async {
        let error = kind(endpoint.read(at(0, 0), endpoint.buf(8)).await);
        assert_eq!(error, OpErrorKind::Timeout);
        assert!((op_timeout..20 * op_timeout).contains(&start.elapsed()));
        // The connection is of no use: its answers could belong to given-up requests.
        assert_eq!(kind(endpoint.faa(at(0, 0), 1).await), OpErrorKind::Unavailable);
        endpoint.reconnect(ServerId(0)).await.unwrap();
        assert_eq!(kind(endpoint.faa(at(0, 0), 1).await), OpErrorKind::Timeout);
    });
    assert_eq!(endpoint.buffers_out(), 0);
}

#[test]
fn the_longest_buffers_go_and_come() {
    let (_pool, config) = pool(1, LONG);
    let fabric = Tcp::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    block_on(&endpoint, async {
        let mut buf = endpoint.buf(2 << 20);
        buf.bytes_mut().fill(7);
        buf = endpoint.write(at(0, 3), buf).await.unwrap();
        buf.bytes_mut().fill(0);
        let back = endpoint.read(at(0, 3), buf).await.unwrap();
        assert!(back.bytes().iter().all(|byte| *byte == 7));
        // A chain of them is longer than the answers that may wait.
        let mut ops = endpoint.ops();
        for _ in 0..8 {
            ops.read(at(0, 3), endpoint.buf(2 << 20));
        }
        let ops = endpoint.chain(ops).await.unwrap();
        assert!((0..8).all(|index| ops.buf(index).bytes().iter().all(|byte| *byte == 7)));
    });
}

/// A server ends while operations are in flight, and comes back over the same words.
#[test]
fn a_server_may_go_and_come_back() {
    let (mut pool, config) = pool(2, LONG);
    let fabric = Tcp::connect(config.clone()).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    block_on(&endpoint, async { endpoint.faa(at(1, 64), 5).await }).unwrap();
    let gone = pool.pop().unwrap();
    let (address, kept) = (gone.address(), Arc::clone(gone.words()));
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        drop(gone);
    });
    block_on(&endpoint, async {
        let error = loop {
            if let Err(error) = endpoint.read(at(1, 64), endpoint.buf(4096)).await {
                break error;
            }
        };
        assert_eq!((error.kind, error.server), (OpErrorKind::Unavailable, ServerId(1)));
        // The other one goes on; this one stays away.
        endpoint.faa(at(0, 64), 1).await.unwrap();
        assert_eq!(kind(endpoint.faa(at(1, 64), 1).await), OpErrorKind::Unavailable);
        assert_eq!(kind(endpoint.reconnect(ServerId(1)).await), OpErrorKind::Unavailable);
    });
    stopper.join().unwrap();
    let again = MemoryServerConfig {
        listen: address,
        server: ServerId(1),
        servers: 2,
        lease: LONG,
        ..Default::default()
    };
    let again = MemoryServer::start(again, kept).unwrap();
    block_on(&endpoint, async {
        // An operation behind a reconnect waits for it (F10).
        let mut ops = endpoint.ops();
        ops.faa(at(1, 64), 1);
        let both = futures_join(endpoint.reconnect(ServerId(1)), endpoint.chain(ops)).await;
        both.0.unwrap();
        assert_eq!(both.1.unwrap().old(0), 5);
    });
    assert_eq!(again.connections(), 1, "the thread's; signs of life come when they are due");
    // A server with other memory, even of the same size, is another server: the old content is gone.
    drop(again);
    let config = MemoryServerConfig {
        listen: address,
        server: ServerId(1),
        servers: 2,
        ..Default::default()
    };
    let _other = MemoryServer::start(config, words()).unwrap();
    block_on(&endpoint, async {
        assert_eq!(kind(endpoint.reconnect(ServerId(1)).await), OpErrorKind::Fenced);
        assert_eq!(kind(endpoint.faa(at(0, 64), 1).await), OpErrorKind::Fenced);
    });
    assert!(matches!(fabric.endpoint(), Err(FabricError::GivenUp)));
}

/// A call waits for an operation that must not stay half done, but not for ever.
#[test]
fn a_call_is_not_kept_for_ever_by_a_server_that_is_gone() {
    let (mut pool, config) = pool(2, LONG);
    let linger_timeout = Duration::from_millis(200);
    let fabric = Tcp::connect(TcpConfig { linger_timeout, ..config.clone() }).unwrap();
    let other = Tcp::connect(config).unwrap();
    let (endpoint, other) = (fabric.endpoint().unwrap(), other.endpoint().unwrap());
    let who = endpoint.incarnation();
    let start = Instant::now();
    pool.pop();
    let patient = endpoint.clone();
    block_on(&endpoint, async {
        endpoint.spawn(async move {
            while kind(patient.faa(at(1, 64), 1).await) != OpErrorKind::Fenced {
                let _ = patient.reconnect(ServerId(1)).await;
                patient.sleep(1_000_000).await;
            }
        });
    });
    assert!(start.elapsed() >= linger_timeout);
    assert!(!endpoint.holds_lease(), "it has said goodbye");
    block_on(&endpoint, async {
        // Nothing happens on the other servers: others may take over from here on.
        assert_eq!(kind(endpoint.faa(at(0, 64), 1).await), OpErrorKind::Fenced);
        assert_eq!(kind(endpoint.reconnect(ServerId(0)).await), OpErrorKind::Fenced);
    });
    assert!(matches!(fabric.endpoint(), Err(FabricError::GivenUp)));
    wait_until("it has said goodbye", || block_on(&other, other.is_dead(who)));
}

/// A server that is restarted over its file has the same words. It lets in living incarnations, and none that
/// it had cut off.
#[test]
fn a_server_is_started_again_over_its_file() {
    let path = env::temp_dir().join(format!("farleaf-tcp-file-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let start = |listen| {
        let region = Region::file(&path, Some(REGION_BYTES as u64), ServerId(0), 1).unwrap();
        let config = MemoryServerConfig { listen, lease: LONG, ..Default::default() };
        MemoryServer::start_over(config, region).unwrap()
    };
    let server = start(MemoryServerConfig::default().listen);
    let config = TcpConfig::to([server.address()]);
    let lives = Tcp::connect(config.clone()).unwrap();
    let endpoint = lives.endpoint().unwrap();
    let mut fenced = enter(server.address(), 7, 0, 1);
    fenced.write_all(&request(BYE, 0, 0, &[])).unwrap();
    assert_eq!(answer(&mut fenced), (0, vec![]));
    block_on(&endpoint, async {
        endpoint.faa(at(0, 64), 5).await.unwrap();
        endpoint.fence(ServerId(0), Incarnation(7)).await.unwrap();
    });
    drop(server);
    let server = start(config.servers[0]);
    block_on(&endpoint, async {
        endpoint.reconnect(ServerId(0)).await.unwrap();
        assert_eq!(endpoint.faa(at(0, 64), 1).await, Ok(5));
    });
    let mut again = knock(server.address(), &hello(7, 0, 1));
    let mut welcome = [0; 64];
    again.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[12], 3, "fenced");
    std::fs::remove_file(&path).unwrap();
}

/// Both, the first one polled first.
async fn futures_join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        use std::task::Poll::{Pending, Ready};
        if first.is_none()
            && let Ready(value) = a.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Ready(value) = b.as_mut().poll(context)
        {
            second = Some(value);
        }
        if first.is_some() && second.is_some() { Ready(()) } else { Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

#[test]
fn the_living_cannot_be_fenced() {
    let (_pool, config) = pool(2, LONG);
    let (one, two) = (Tcp::connect(config.clone()).unwrap(), Tcp::connect(config).unwrap());
    let (one, two) = (one.endpoint().unwrap(), two.endpoint().unwrap());
    let who = two.incarnation();
    block_on(&one, async {
        for server in 0..2 {
            assert_eq!(kind(one.fence(ServerId(server), who).await), OpErrorKind::StillAlive);
        }
        assert!(!one.is_dead(who).await);
    });
    block_on(&two, async {
        for server in 0..2 {
            two.faa(at(server, 64), 1).await.unwrap();
        }
    });
}

#[test]
fn a_compute_server_that_says_goodbye_is_dead_at_once() {
    let (_pool, config) = pool(1, LONG);
    let one = Tcp::connect(config.clone()).unwrap();
    let endpoint = one.endpoint().unwrap();
    let other = Tcp::connect(config).unwrap();
    let who = other.incarnation();
    let last = other.endpoint().unwrap();
    drop(other);
    block_on(&endpoint, async { assert!(!endpoint.is_dead(who).await, "an endpoint is left") });
    drop(last);
    block_on(&endpoint, async {
        assert!(endpoint.is_dead(who).await);
        endpoint.fence(ServerId(0), who).await.unwrap();
    });
}

/// An incarnation lives, but counts as dead: its later posts fail, and do nothing.
#[test]
fn a_fenced_compute_server_does_nothing_more() {
    let (pool, config) = pool(2, LONG);
    let one = Tcp::connect(config.clone()).unwrap();
    let other = Tcp::connect(config.clone()).unwrap();
    let who = other.incarnation();
    let (judge, fenced) = (one.endpoint().unwrap(), other.endpoint().unwrap());
    // A connection says goodbye in its name.
    let mut raw = enter(config.servers[0], who.0, 0, 2);
    raw.write_all(&request(BYE, 0, 0, &[])).unwrap();
    assert_eq!(answer(&mut raw), (0, vec![]));
    block_on(&judge, async {
        assert!(judge.is_dead(who).await);
        judge.fence(ServerId(0), who).await.unwrap();
        judge.fence(ServerId(1), who).await.unwrap();
    });
    // Over a connection that stood open, as bytes.
    raw.write_all(&request(FAA, 64, 8, &1_u64.to_le_bytes())).unwrap();
    assert_eq!(answer(&mut raw).0, FENCED);
    assert!(is_closed(&mut raw));
    block_on(&fenced, async {
        for server in 0..2 {
            assert_eq!(kind(fenced.faa(at(server, 64), 1).await), OpErrorKind::Fenced);
            let error = kind(fenced.read(at(server, 64), fenced.buf(8)).await);
            assert_eq!(error, OpErrorKind::Fenced);
            assert_eq!(kind(fenced.reconnect(ServerId(server)).await), OpErrorKind::Fenced);
            assert_eq!(kind(fenced.faa(at(server, 64), 1).await), OpErrorKind::Fenced);
        }
    });
    let refused = other.endpoint().expect_err("cut off");
    assert!(matches!(refused, FabricError::CutOff { .. }), "{refused}");
    for server in &pool {
        let mut word = [0];
        server.words().load(8, &mut word);
        assert_eq!(word, [0], "an FAA behind the fence");
    }
    assert_eq!(fenced.buffers_out(), 0);
}

/// A lease: an incarnation that is silent for longer is dead, and stays so.
#[test]
fn a_silent_compute_server_is_dead() {
    let (_pool, config) = pool(1, Duration::from_millis(60));
    let one = Tcp::connect(config.clone()).unwrap();
    let endpoint = one.endpoint().unwrap();
    let mut silent = enter(config.servers[0], 7, 0, 1);
    block_on(&endpoint, async {
        let who = Incarnation(7);
        assert!(!endpoint.is_dead(who).await);
        while !endpoint.is_dead(who).await {
            endpoint.sleep(5_000_000).await;
        }
        silent.write_all(&request(READ, 0, 8, &[])).unwrap();
        assert_eq!(answer(&mut silent).0, 0, "not cut off yet");
        assert!(endpoint.is_dead(who).await);
        endpoint.fence(ServerId(0), who).await.unwrap();
        // A compute server that sends signs of life meanwhile stays alive.
        assert!(!endpoint.is_dead(one.incarnation()).await);
    });
    let mut again = knock(config.servers[0], &hello(7, 0, 1));
    let mut welcome = [0; 64];
    again.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[12], 3, "fenced for good");
}

/// The requests of the first half of many tasks leave while the others run. If tasks take long, as the first
/// ones may, because they allocate, a part of the half leaves before, and no more.
#[test]
fn half_of_many_requests_do_not_wait_for_the_others() {
    const TASKS: u64 = 256;
    const PART: u64 = 32;
    let (pool, config) = pool(1, LONG);
    let endpoint = Tcp::connect(config).unwrap().endpoint().unwrap();
    let server = Arc::new(pool.into_iter().next().unwrap());
    let mut all_seen = Vec::new();
    while all_seen.last() != Some(&(TASKS / 2)) {
        assert!(all_seen.len() < 20, "never a half: {all_seen:?}");
        let before = server.served().reads;
        let seen = Rc::new(Cell::new(0));
        for task in 0..TASKS {
            let (own, server, seen) = (endpoint.clone(), Arc::clone(&server), Rc::clone(&seen));
            endpoint.spawn(async move {
                if task == TASKS - 1 {
                    let done = || server.served().reads - before;
                    wait_until("a part is done", || done() >= PART);
                    thread::sleep(Duration::from_millis(20));
                    seen.set(done());
                }
                own.read(at(0, 64 * task), own.buf(64)).await.unwrap();
            });
        }
        block_on(&endpoint, async {});
        assert_eq!(server.served().reads - before, TASKS);
        let seen = seen.get();
        assert!(seen <= TASKS / 2 && seen.is_multiple_of(PART), "{seen} before the last had run");
        all_seen.push(seen);
    }
}

/// A new connection is let in while others keep every thread busy.
#[test]
fn a_busy_server_lets_others_in() {
    let (_pool, config) = pool(1, LONG);
    let fabric = Tcp::connect(config.clone()).unwrap();
    let busy = fabric.endpoint().unwrap();
    let end = Instant::now() + Duration::from_millis(300);
    for task in 0..64 {
        let own = busy.clone();
        busy.spawn(async move {
            while Instant::now() < end {
                own.faa(at(0, 64 * task), 1).await.unwrap();
            }
        });
    }
    let newcomers = thread::spawn(move || {
        let mut count = 0;
        while Instant::now() < end {
            let fabric = Tcp::connect(config.clone()).unwrap();
            let endpoint = fabric.endpoint().unwrap();
            block_on(&endpoint, async { endpoint.faa(at(0, 8), 1).await }).unwrap();
            count += 1;
        }
        count
    });
    block_on(&busy, async {});
    assert!(newcomers.join().unwrap() >= 3);
}

/// A server's thread watches busy connections by itself, and registers them again later.
#[test]
fn a_busy_connection_is_served_after_a_pause() {
    let (pool, config) = pool(1, LONG);
    // As many as a thread watches, and more.
    for clients in [1, 4, 6] {
        let fabric = Tcp::connect(config.clone()).unwrap();
        let begun = Arc::new(Barrier::new(clients));
        let clients: Vec<_> = (0..clients as u64)
            .map(|client| {
                let (fabric, begun) = (fabric.clone(), Arc::clone(&begun));
                thread::spawn(move || {
                    let endpoint = fabric.endpoint().unwrap();
                    let word = at(0, 64 * client);
                    let mut slowest = Duration::ZERO;
                    block_on(&endpoint, async {
                        let first = endpoint.faa(word, 0).await.unwrap();
                        begun.wait();
                        for count in 0..900 {
                            if count % 300 == 299 {
                                endpoint.sleep(30_000_000).await;
                            }
                            let start = Instant::now();
                            assert_eq!(endpoint.faa(word, 1).await.unwrap(), first + count);
                            slowest = slowest.max(start.elapsed());
                        }
                    });
                    slowest
                })
            })
            .collect();
        for client in clients {
            let slowest = client.join().unwrap();
            assert!(slowest < Duration::from_secs(1), "{slowest:?}");
        }
        drop(fabric);
        // It notices the end.
        let start = Instant::now();
        while pool[0].connections() > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "{} left", pool[0].connections());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

const IDLE: &str = "FARLEAF_TEST_IDLE";

/// Not a test of its own: the process that [`an_idle_side_uses_no_processor`] starts.
#[test]
fn is_idle_when_asked_to() {
    if env::var_os(IDLE).is_none() {
        return;
    }
    let config =
        |server| MemoryServerConfig { server, servers: 2, threads: 3, ..Default::default() };
    let pool = [0, 1].map(|server| serve(config(ServerId(server))));
    let fabric = Tcp::connect(TcpConfig::to(pool.iter().map(MemoryServer::address))).unwrap();
    // Nobody is idle before all have begun, even if a busy machine takes long for that.
    let (begun, ended) = (Arc::new(Barrier::new(4)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (fabric, begun, ended) = (fabric.clone(), Arc::clone(&begun), Arc::clone(&ended));
            thread::spawn(move || {
                let endpoint = fabric.endpoint().unwrap();
                block_on(&endpoint, async {
                    endpoint.faa(at(1, 64), 1).await.unwrap();
                    begun.wait();
                    while !ended.load(Ordering::Relaxed) {
                        endpoint.sleep(1_500_000_000).await;
                    }
                    endpoint.faa(at(1, 64), 1).await.unwrap();
                });
            })
        })
        .collect();
    begun.wait();
    thread::sleep(Duration::from_millis(200));
    crate::common::assert_idle();
    ended.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn an_idle_side_uses_no_processor() {
    let idle = Command::new(env::current_exe().unwrap())
        .args(["--exact", "tcp::is_idle_when_asked_to", "--nocapture"])
        .env(IDLE, "1")
        .output()
        .unwrap();
    assert!(idle.status.success(), "{}", String::from_utf8_lossy(&idle.stderr));
}
