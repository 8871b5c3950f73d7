//! TLS tests: the fabric `tcp` works over TLS, and refuses clients without a valid certificate.

use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::authority::Authority;
use farleaf_fabric::tcp::{
    MemoryServer, MemoryServerConfig, Tcp, TcpConfig, TcpEndpoint, Tls, TlsFiles,
};
use farleaf_fabric::{
    Endpoint, Fabric, FabricError, GlobalAddr, OpErrorKind, Refusal, ServerId, Words,
};

const BYTES: u64 = 4 << 20;
const NAME: &str = "memory.farleaf.test";

fn serve(tls: Option<Tls>) -> MemoryServer {
    let words = Words::anonymous((BYTES / 8) as usize).unwrap();
    let config = MemoryServerConfig { tls, lease: Duration::from_secs(60), ..Default::default() };
    MemoryServer::start(config, Arc::new(words)).unwrap()
}

fn config(server: &MemoryServer, tls: Option<Tls>) -> TcpConfig {
    TcpConfig { tls, ..TcpConfig::to([server.address()]) }
}

fn block_on<T>(endpoint: &TcpEndpoint, body: impl Future<Output = T>) -> T {
    endpoint.executor().block_on(body)
}

fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(ServerId(0), offset)
}

/// Large READs and WRITEs among small ones, so that sockets and ciphers are full at every point.
async fn work(endpoint: &TcpEndpoint) {
    const LARGE: usize = 1 << 20;
    for round in 0..4_u64 {
        let mut buf = endpoint.buf(LARGE);
        for (word, at) in buf.words_mut().iter_mut().zip(0_u64..) {
            *word = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round;
        }
        let expected = buf.words().to_vec();
        endpoint.write(at(4096), buf).await.unwrap();
        assert_eq!(endpoint.faa(at(64), 1).await.unwrap(), round);
        let mut ops = endpoint.ops();
        for part in 0..3 {
            ops.read(at(4096 + part * 8), endpoint.buf(LARGE));
            ops.read(at(4096 + part * 64), endpoint.buf(64));
        }
        let ops = endpoint.post_many(ops).await.unwrap();
        for (op, (skip, len)) in
            ops.iter().zip((0..3).flat_map(|part| [(part, LARGE), (part * 8, 64)]))
        {
            let farleaf_fabric::Op::Read { into, .. } = op else { panic!("{op:?}") };
            let of = expected.iter().skip(skip).take(len / 8).count();
            assert_eq!(&into.words()[..of], &expected[skip..skip + of]);
        }
    }
}

#[test]
fn the_same_work_is_done_with_tls() {
    let authority = Authority::new();
    let server = serve(Some(authority.somebody("127.0.0.1")));
    let tcp = Tcp::connect(config(&server, Some(authority.somebody("client")))).unwrap();
    let endpoint = tcp.endpoint().unwrap();
    block_on(&endpoint, async {
        work(&endpoint).await;
        endpoint.reconnect(ServerId(0)).await.unwrap();
        assert_eq!(endpoint.faa(at(64), 1).await.unwrap(), 4);
        assert_eq!(endpoint.buffers_out(), 0);
    });
}

/// A certificate may be for a name; then clients have to know the name.
#[test]
fn servers_are_known_by_their_names() {
    let authority = Authority::new();
    let server = serve(Some(authority.somebody(NAME)));
    let refused = Tcp::connect(config(&server, Some(authority.somebody("client"))));
    let refused = refused.expect_err("the address is not in the certificate").to_string();
    assert!(refused.contains("this side does not trust it"), "{refused}");
    let files =
        TlsFiles { server_name: Some(NAME.to_owned()), ..authority.files("named", "client") };
    let tcp = Tcp::connect(config(&server, Some(Tls::load(&files).unwrap()))).unwrap();
    let endpoint = tcp.endpoint().unwrap();
    assert_eq!(block_on(&endpoint, endpoint.faa(at(8), 5)).unwrap(), 0);
}

/// Tries to connect; returns the reason of the refusal.
fn refusal(server: &MemoryServer, tls: Option<Tls>) -> String {
    match Tcp::connect(config(server, tls)).expect_err("refused") {
        FabricError::Refused { reason: Refusal::NotTrusted, why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn an_untrusted_process_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let server = serve(Some(ours.somebody("127.0.0.1")));
    let why = refusal(&server, None);
    assert!(why.contains("accepts TLS only"), "{why}");
    let why = refusal(&server, Some(theirs.somebody("client")));
    assert!(why.contains("this side does not trust it"), "{why}");
    // It trusts the server, which does not trust it.
    let mixed = TlsFiles { ca: ours.folder.join("ca.pem"), ..theirs.files("mixed", "client") };
    let why = refusal(&server, Some(Tls::load(&mixed).unwrap()));
    assert!(why.contains("does not trust this side's certificate"), "{why}");
    assert_eq!(server.connections(), 0);
    let plain = serve(None);
    let why = refusal(&plain, Some(ours.somebody("client")));
    assert!(why.contains("does not use TLS"), "{why}");
    assert_eq!(plain.connections(), 0);
}

/// A client that sends random bytes, or stops in the middle, costs the others nothing.
#[test]
fn noise_before_the_handshake_harms_nobody() {
    let authority = Authority::new();
    let server = serve(Some(authority.somebody("127.0.0.1")));
    let tcp = Tcp::connect(config(&server, Some(authority.somebody("client")))).unwrap();
    let endpoint = tcp.endpoint().unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut silent = Vec::new();
    for round in 0..40_usize {
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The head of a handshake record, of a length that is not sent; or random bytes.
        let mut noise: Vec<u8> = (0..rng.usize(1..400)).map(|_| rng.u8(..)).collect();
        if round % 2 == 0 {
            let head = [22, 3, 1, 0x3f, 0xff];
            noise.splice(..noise.len().min(5), head);
        }
        // The server may have closed the connection.
        let _ = stranger.write_all(&noise);
        if round % 4 == 0 {
            silent.push(stranger);
        } else {
            let _ = stranger.shutdown(std::net::Shutdown::Write);
            // The server sends at most an alert, and then the end.
            let _ = stranger.read_to_end(&mut Vec::new());
        }
        assert_eq!(block_on(&endpoint, endpoint.faa(at(8), 1)).unwrap(), round as u64);
    }
    assert_eq!(server.connections(), 2, "the client's two");
}

#[test]
fn a_public_address_is_fine_with_tls() {
    let authority = Authority::new();
    let words = || Arc::new(Words::anonymous(1024).unwrap());
    let listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let public = |tls| MemoryServerConfig { listen, tls, ..Default::default() };
    let refused = MemoryServer::start(public(None), words()).expect_err("nobody is authenticated");
    assert!(refused.to_string().contains("set up TLS"), "{refused}");
    MemoryServer::start(public(Some(authority.somebody("0.0.0.0"))), words()).unwrap();
}

#[test]
fn unusable_files_are_reported() {
    let authority = Authority::new();
    let good = authority.files("good", "client");
    let other = authority.files("other", "client");
    let why = |files: TlsFiles| Tls::load(&files).expect_err("no use").to_string();
    let gone = authority.folder.join("gone.pem");
    let said = why(TlsFiles { ca: gone, ..good.clone() });
    assert!(said.contains("cannot read") && said.contains("gone.pem"), "{said}");
    let said = why(TlsFiles { ca: good.key.clone(), ..good.clone() });
    assert!(said.contains("no certificate in"), "{said}");
    let said = why(TlsFiles { key: good.certificate.clone(), ..good.clone() });
    assert!(said.contains("no key in"), "{said}");
    let said = why(TlsFiles { key: other.key, ..good.clone() });
    assert!(said.contains("no certificate and its key"), "{said}");
    let said = why(TlsFiles { server_name: Some("no name".to_owned()), ..good.clone() });
    assert!(said.contains("\"no name\" is not a server name"), "{said}");
    let torn = authority.folder.join("torn.pem");
    let pem = fs::read(&good.certificate).unwrap();
    fs::write(&torn, &pem[..pem.len() / 2]).unwrap();
    why(TlsFiles { certificate: torn, ..good });
}

/// A server that has fenced an incarnation says so through TLS.
#[test]
fn a_fenced_compute_server_learns_it() {
    let authority = Authority::new();
    let words = Arc::new(Words::anonymous(1024).unwrap());
    let lease = Duration::from_millis(50);
    let tls = Some(authority.somebody("127.0.0.1"));
    let server =
        MemoryServer::start(MemoryServerConfig { tls, lease, ..Default::default() }, words)
            .unwrap();
    let client = || Tcp::connect(config(&server, Some(authority.somebody("client")))).unwrap();
    let (judge, victim) = (client(), client());
    let (judging, endpoint) = (judge.endpoint().unwrap(), victim.endpoint().unwrap());
    let who = victim.incarnation();
    drop(victim);
    block_on(&judging, async {
        // Its endpoint keeps it alive.
        assert!(!judging.is_dead(who).await);
        let error = judging.fence(ServerId(0), who).await.expect_err("it lives");
        assert_eq!(error.kind, OpErrorKind::StillAlive);
    });
    drop(endpoint);
    block_on(&judging, async {
        while !judging.is_dead(who).await {
            judging.sleep(1_000_000).await;
        }
        judging.fence(ServerId(0), who).await.unwrap();
    });
}
