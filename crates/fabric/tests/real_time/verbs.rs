//! Verbs tests: the contract's suite, fences of real writers, RPCs by the card, and missing devices.
//!
//! They need an RDMA device: `make verbs` runs them in a virtual machine that has one made of software.
//! Elsewhere each prints that it was skipped and why, unless `FARLEAF_VERBS=required`.

mod calls;
mod regions;

use std::env;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::real::{Hosts, REGION_BYTES, RealHarness};
use crate::common::{die, list, listed};
use farleaf_fabric::conformance::{SERVERS, cases, run_case, run_case_on_regions};
use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::verbs::{
    CardConfig, Verbs, VerbsConfig, VerbsEndpoint, VerbsError, VerbsServer, devices,
};
use farleaf_fabric::{
    AnyFabric, Endpoint, Fabric, FabricError, GlobalAddr, Incarnation, OpErrorKind, Refusal,
    ServerId, Service, ServiceId, Words,
};

const LEASE: Duration = Duration::from_millis(500);

/// Returns whether there is a device. If not, prints the reason; panics if there has to be one.
fn has_card(test: &str) -> bool {
    let why = match devices() {
        Ok(names) if !names.is_empty() => return true,
        Ok(_) => VerbsError::NoDevice { wanted: None, found: Vec::new() }.to_string(),
        Err(error) => error.to_string(),
    };
    assert_ne!(env::var("FARLEAF_VERBS").as_deref(), Ok("required"), "{why}");
    eprintln!("{test}: skipped: {why}. `make verbs` runs it in a virtual machine");
    false
}

fn words(bytes: u64) -> Arc<Words> {
    Arc::new(Words::anonymous((bytes / 8) as usize).unwrap())
}

/// A pool of memory servers with cards, and the configuration to reach it.
fn pool(servers: usize, lease: Duration, bytes: u64) -> (Vec<VerbsServer>, VerbsConfig) {
    let pool: Vec<VerbsServer> = (0..servers)
        .map(|server| {
            let server = ServerId(server as u16);
            let config = MemoryServerConfig { server, servers, lease, ..Default::default() };
            VerbsServer::start(config, &CardConfig::default(), words(bytes)).unwrap()
        })
        .collect();
    let config = VerbsConfig::to(pool.iter().map(VerbsServer::address));
    (pool, config)
}

fn block_on<T>(endpoint: &VerbsEndpoint, body: impl Future<Output = T>) -> T {
    endpoint.executor().block_on(body)
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(0), offset)
}

/// Waits, at most 10 s, until the condition holds.
fn wait_until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

impl Hosts for Vec<VerbsServer> {
    fn serve(&self, id: ServiceId, service: &Arc<dyn Service>) {
        for server in self {
            VerbsServer::serve(server, id, Arc::clone(service));
        }
    }
}

/// Two memory servers of this process, and two compute servers.
fn harness() -> RealHarness<Verbs> {
    let (servers, config) = pool(SERVERS, LEASE, REGION_BYTES);
    let computers = (0..2).map(|_| Verbs::connect(config.clone()).unwrap()).collect();
    let pool = POOL.to_owned() + &list(servers.iter().map(VerbsServer::address));
    let victims = Some((pool, LEASE));
    let harness = RealHarness::new(computers, Box::new(servers), victims, 100);
    RealHarness { exposes: true, ..harness }
}

/// Prefix of the servers of a pool by RDMA, in the address that a process gets.
pub(crate) const POOL: &str = "verbs:";

/// Writes to `addr` until this process is killed.
pub(crate) fn be_victim(servers: &str, addr: GlobalAddr) {
    let config = VerbsConfig::to(listed(servers));
    let verbs = Verbs::connect(config).expect("the other process's servers");
    let endpoint = verbs.endpoint().expect("an endpoint");
    endpoint.executor().block_on(die(verbs, endpoint.clone(), addr, None));
}

/// Every case of the contract's suite; `FARLEAF_CASE` picks some by a part of their names.
fn keeps_the_contract<F>(test: &str, harness: impl Fn() -> RealHarness<F>)
where
    F: Fabric + Sync,
{
    if !has_card(test) {
        return;
    }
    let only = env::var("FARLEAF_CASE").unwrap_or_default();
    for case in cases::<RealHarness<F>>() {
        if case.name.contains(&only) {
            let start = Instant::now();
            run_case(case.name, harness());
            eprintln!("{:>6} ms  {}", start.elapsed().as_millis(), case.name);
            if case.is_of_memory {
                let start = Instant::now();
                assert!(run_case_on_regions(case.name, harness()), "it exposes regions");
                let elapsed_ms = start.elapsed().as_millis();
                eprintln!("{elapsed_ms:>6} ms  {} on regions", case.name);
            }
        }
    }
}

#[test]
fn the_contract_is_kept() {
    keeps_the_contract("the_contract_is_kept", harness);
}

#[test]
fn the_contract_is_kept_by_a_chosen_fabric() {
    let harness = || harness().through(AnyFabric::Verbs);
    keeps_the_contract("the_contract_is_kept_by_a_chosen_fabric", harness);
}

/// Says goodbye in another's name, so that it counts as dead while it goes on.
fn declare_dead(address: SocketAddr, who: Incarnation) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut hello = [0; 64];
    hello[..8].copy_from_slice(b"FarleafT");
    // Of version 2, and one that carries signs of life.
    (hello[8], hello[12]) = (2, 1);
    hello[16..24].copy_from_slice(&who.0.to_le_bytes());
    hello[26] = 1;
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    stream.write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
}

/// F6 with a victim in the middle of long WRITEs, again and again. From the fence's return on, no byte
/// changes, and another compute server notices nothing.
#[test]
fn a_fence_stops_a_writer_in_its_tracks() {
    const BLOCK: usize = 1 << 20;
    const ROUNDS: u64 = 12;
    if !has_card("a_fence_stops_a_writer_in_its_tracks") {
        return;
    }
    let (servers, config) = pool(1, Duration::from_secs(60), 4 << 20);
    let words = servers[0].words();
    let fabric = Verbs::connect(config.clone()).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    let (mut torn, mut kinds) = (0, Vec::new());
    for round in 1..=ROUNDS {
        let victim = Verbs::connect(config.clone()).unwrap();
        let who = victim.incarnation();
        let writer = thread::spawn(move || {
            let endpoint = victim.endpoint().unwrap();
            block_on(&endpoint, async {
                let mut count = 0_u64;
                loop {
                    count += 1;
                    let mut buf = endpoint.buf(BLOCK);
                    buf.words_mut().fill(round << 32 | count);
                    let written = endpoint.write(at(1 << 20), buf).await;
                    let added = match written {
                        Ok(_) => endpoint.faa(at(64), 1).await.map(drop),
                        Err(error) => Err(error),
                    };
                    if let Err(error) = added {
                        // A fence must withstand further attempts, and reconnects.
                        let again = endpoint.write(at(1 << 20), endpoint.buf(BLOCK)).await;
                        assert!(again.is_err(), "a WRITE behind the fence");
                        let back = endpoint.reconnect(ServerId(0)).await;
                        return (count, error.kind, back.map_err(|error| error.kind));
                    }
                }
            })
        });
        // The victim is really writing.
        let counter = || words.as_slice()[8].load(std::sync::atomic::Ordering::SeqCst);
        let before = counter();
        wait_until("the victim writes", || counter() > before + 2);
        thread::sleep(Duration::from_millis(round % 7));
        declare_dead(servers[0].address(), who);
        block_on(&endpoint, async {
            endpoint.fence(ServerId(0), who).await.expect("fenced");
            let read = async || {
                let buf = endpoint.read(at(1 << 20), endpoint.buf(BLOCK)).await.expect("a READ");
                buf.words().to_vec()
            };
            let mut there = vec![0; BLOCK / 8];
            words.load((1 << 20) / 8, &mut there);
            let count = counter();
            for _ in 0..4 {
                endpoint.sleep(60_000_000).await;
                assert!(read().await == there, "a WRITE landed behind the fence");
                assert_eq!(counter(), count, "an FAA landed behind the fence");
            }
            torn += u32::from(there.iter().any(|word| *word != there[0]));
        });
        let (count, kind, back) = writer.join().unwrap();
        assert!(count > 2);
        assert!(matches!(kind, OpErrorKind::Unavailable | OpErrorKind::Fenced), "{kind:?}");
        assert_eq!(back, Err(OpErrorKind::Fenced));
        kinds.push(kind);
        assert_eq!(servers[0].queue_pairs(), 1, "the victim's queue pairs are gone");
    }
    eprintln!("{ROUNDS} fences: {torn} cut a WRITE in two; the victims saw {kinds:?}");
}

/// Queue pairs come and go with their threads, and a server that ends is noticed.
#[test]
fn queue_pairs_end_with_their_threads() {
    if !has_card("queue_pairs_end_with_their_threads") {
        return;
    }
    let (mut servers, mut config) = pool(2, LEASE, 1 << 20);
    config.tcp.op_timeout = Duration::from_secs(2);
    let fabric = Verbs::connect(config).unwrap();
    let first = fabric.endpoint().unwrap();
    let second = fabric.endpoint().unwrap();
    assert_eq!(servers[0].queue_pairs(), 2);
    drop(second);
    wait_until("the second thread's are gone", || servers[0].queue_pairs() == 1);
    block_on(&first, async {
        first.reconnect(ServerId(0)).await.expect("a new queue pair");
        assert_eq!(first.faa(at(64), 3).await, Ok(0));
    });
    assert_eq!(servers[0].queue_pairs(), 1);
    servers.truncate(1);
    block_on(&first, async {
        let gone = first.faa(GlobalAddr::new(ServerId(1), 64), 1).await.expect_err("it is gone");
        assert!(matches!(gone.kind, OpErrorKind::Unavailable | OpErrorKind::Timeout));
        let again = first.reconnect(ServerId(1)).await.expect_err("still gone");
        assert_eq!(again.kind, OpErrorKind::Unavailable);
        assert_eq!(first.faa(at(64), 3).await, Ok(3), "the other server serves on");
    });
}

/// More operations than a queue pair takes, in one list and in many tasks: they wait, and all happen. Ready
/// ones go out by few doorbells.
#[test]
fn more_operations_than_fit_wait() {
    if !has_card("more_operations_than_fit_wait") {
        return;
    }
    let (_servers, mut config) = pool(1, LEASE, 1 << 20);
    (config.depth, config.list_max) = (8, 4);
    let fabric = Verbs::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    block_on(&endpoint, async {
        let before = endpoint.posted();
        let mut ops = endpoint.ops();
        for _ in 0..200 {
            ops.faa(at(64), 1);
        }
        let ops = endpoint.chain(ops).await.expect("a long chain");
        assert!((0..200).all(|number| ops.old(number) == number as u64), "out of order");
        let after = endpoint.posted();
        assert_eq!(after.1 - before.1, 200);
        assert_eq!(after.0 - before.0, 50, "lists of 4");
        let sum = endpoint.read(at(64), endpoint.buf(8)).await.expect("a READ");
        assert_eq!(sum.words(), [200]);
    });
    for _ in 0..50 {
        let own = endpoint.clone();
        endpoint.spawn(async move {
            own.faa(at(64), 1).await.expect("an FAA");
        });
    }
    block_on(&endpoint, async {});
    let sum = block_on(&endpoint, async { endpoint.faa(at(64), 0).await });
    assert_eq!(sum, Ok(250));
}

/// An error names the missing property of the card.
#[test]
fn an_error_names_the_missing_part() {
    let mut config = VerbsConfig::to([SocketAddr::from(([127, 0, 0, 1], 9))]);
    config.card.mtu = Some(1500);
    let error = Verbs::connect(config.clone()).expect_err("no such MTU").to_string();
    assert!(error.contains("an MTU of 1500 bytes"), "{error}");
    config.card = CardConfig { device: Some("farleaf9".to_owned()), ..CardConfig::default() };
    let error = Verbs::connect(config.clone()).expect_err("no such device");
    assert!(
        matches!(
            &error,
            FabricError::Verbs(VerbsError::NoLibrary { .. } | VerbsError::NoDevice { .. })
        ),
        "{error}"
    );
    if !has_card("an_error_names_the_missing_part") {
        return;
    }
    assert!(error.to_string().contains("there are"), "{error}");
    config.card = CardConfig { gid_index: Some(250), ..CardConfig::default() };
    let error = Verbs::connect(config.clone()).expect_err("an empty GID");
    assert!(matches!(error, FabricError::Verbs(VerbsError::Gid { index: 250, .. })), "{error}");
    config.card = CardConfig { port: Some(77), ..CardConfig::default() };
    let error = Verbs::connect(config.clone()).expect_err("no such port");
    assert!(matches!(error, FabricError::Verbs(VerbsError::Port { port: 77, .. })), "{error}");
    config.card = CardConfig::default();
    let error = Verbs::connect(config.clone()).expect_err("nobody listens there");
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");
    // A memory server without a card.
    let plain = MemoryServer::start(MemoryServerConfig::default(), words(4096)).unwrap();
    config.tcp.servers = vec![plain.address()];
    let error = Verbs::connect(config.clone()).expect_err("it serves tcp alone");
    assert!(matches!(error, FabricError::Refused { reason: Refusal::NoCard, .. }), "{error}");
    assert!(error.to_string().contains("serves tcp alone"), "{error}");
    // A server of another version.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    config.tcp.servers = vec![listener.local_addr().unwrap()];
    let newer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        let mut welcome = [0; 64];
        welcome[..8].copy_from_slice(b"FarleafT");
        (welcome[8], welcome[12]) = (9, 1);
        stream.write_all(&welcome).unwrap();
    });
    let error = Verbs::connect(config).expect_err("another version");
    assert!(matches!(error, FabricError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("version 9"), "{error}");
    newer.join().unwrap();
}

/// An operation that must not stay half done is tried until the pool is given up, as on tcp.
#[test]
fn a_call_is_not_kept_for_ever_by_a_server_that_is_gone() {
    if !has_card("a_call_is_not_kept_for_ever_by_a_server_that_is_gone") {
        return;
    }
    let (mut servers, mut config) = pool(2, Duration::from_secs(60), 1 << 20);
    config.tcp.linger_timeout = Duration::from_millis(200);
    let fabric = Verbs::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    drop(servers.pop());
    let gone = GlobalAddr::new(ServerId(1), 64);
    let patient = endpoint.clone();
    block_on(&endpoint, async {
        endpoint.spawn(async move {
            while patient.faa(gone, 1).await.map_err(|error| error.kind) != Err(OpErrorKind::Fenced)
            {
                // Each attempt fails.
                let _ = patient.reconnect(ServerId(1)).await;
                patient.sleep(1_000_000).await;
            }
        });
    });
    block_on(&endpoint, async {
        // Nothing happens on the other servers: others may take over from here on.
        let there = endpoint.faa(at(64), 1).await.map_err(|error| error.kind);
        assert_eq!(there, Err(OpErrorKind::Fenced));
        let back = endpoint.reconnect(ServerId(0)).await.map_err(|error| error.kind);
        assert_eq!(back, Err(OpErrorKind::Fenced));
    });
    assert!(matches!(fabric.endpoint(), Err(FabricError::GivenUp)));
}

const POOR: &str = "FARLEAF_TEST_POOR";

/// Not a test of its own: a process with the errors of a user without rights.
#[test]
fn prints_errors_without_rights() {
    let Ok(wanted) = env::var(POOR) else { return };
    if wanted == "memory" {
        let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
        rustix::process::setrlimit(rustix::process::Resource::Memlock, limit).expect("a limit");
    }
    let config = MemoryServerConfig::default();
    let error = VerbsServer::start(config, &CardConfig::default(), words(4 << 20))
        .expect_err("this user may not");
    let is_wanted = match &error {
        FabricError::Verbs(VerbsError::Memory { bytes, limit_bytes, .. }) => {
            wanted == "memory" && *bytes == 4 << 20 && *limit_bytes == Some(1 << 20)
        }
        FabricError::Verbs(VerbsError::Denied { .. }) => wanted == "device",
        _ => false,
    };
    assert!(is_wanted, "{error}");
    eprintln!("{error}");
}

/// A user who may not lock memory, or open the device, learns the reason and the remedy.
#[test]
fn a_user_without_rights_learns_the_reason() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    // It changes the rights of a device, so it runs only in a machine of its own.
    if env::var("FARLEAF_VERBS").as_deref() != Ok("required")
        || !rustix::process::getuid().is_root()
    {
        eprintln!("a_user_without_rights_learns_the_reason: skipped: `make verbs` runs it");
        return;
    }
    let device = "/dev/infiniband/uverbs0";
    for (wanted, mode) in [("memory", 0o666), ("device", 0o600)] {
        set_permissions(device, Permissions::from_mode(mode)).expect("other rights");
        let poor = Command::new(env::current_exe().expect("this test's path"))
            .args(["--exact", "verbs::prints_errors_without_rights", "--nocapture"])
            .env(POOR, wanted)
            .uid(65_534)
            .output();
        set_permissions(device, Permissions::from_mode(0o666)).expect("the rights before");
        let poor = poor.expect("a process");
        let said = String::from_utf8_lossy(&poor.stderr);
        assert!(poor.status.success(), "{wanted}: {said}");
        eprint!("{said}");
    }
}

/// A client of `tcp` is served when nobody uses the card, and the other way round.
#[test]
fn tcp_clients_are_served_when_no_card_is_used() {
    if !has_card("tcp_clients_are_served_when_no_card_is_used") {
        return;
    }
    let (servers, mut config) = pool(1, LEASE, 1 << 20);
    config.tcp.connect_timeout = Duration::from_millis(300);
    let fabric = Verbs::connect(config.clone()).unwrap();
    let capabilities = fabric.endpoint().unwrap().capabilities();
    assert!(capabilities.native_atomics && !capabilities.cpu_visible);
    eprintln!("{} on {}: {capabilities:?}", fabric.place(), servers[0].card());
    let connect_timeout = Duration::from_millis(300);
    let tcp = TcpConfig { connect_timeout, ..TcpConfig::to([servers[0].address()]) };
    let tcp = Tcp::connect(tcp).unwrap();
    let by_card = fabric.endpoint().unwrap();
    let old = block_on(&by_card, async { by_card.faa(at(64), 7).await });
    assert_eq!(old, Ok(0));
    // Not both at a time: their atomics are not atomic against each other.
    let refused = |error: FabricError| {
        let is_other = matches!(error, FabricError::Refused { reason: Refusal::OtherWay, .. });
        assert!(is_other, "{error}");
    };
    refused(tcp.endpoint().expect_err("the card is in use"));
    drop(by_card);
    let by_tcp = tcp.endpoint().unwrap();
    assert_eq!(by_tcp.executor().block_on(async { by_tcp.faa(at(64), 1).await }), Ok(7));
    refused(fabric.endpoint().expect_err("the connection is in use"));
    refused(Verbs::connect(config).expect_err("the connection is in use"));
    drop(by_tcp);
    let by_card = fabric.endpoint().unwrap();
    assert_eq!(block_on(&by_card, async { by_card.faa(at(64), 1).await }), Ok(8));
}
