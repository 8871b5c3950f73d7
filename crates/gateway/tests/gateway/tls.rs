//! TLS: encrypted connections, and clients that speak something else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use farleaf_gateway::GatewayTls;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::authority::Authority;
use crate::common::{Resp, Served, command, serve};

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn connect(served: &Served, authority: &Authority, own: Option<&str>) -> Encrypted {
    let mut trusted = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(authority.folder.join("ca.pem")).unwrap();
    trusted.add(ca).unwrap();
    let provider = farleaf_fabric::pem::provider();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let files = authority.files(own, own);
            let chain = vec![CertificateDer::from_pem_file(files.certificate).unwrap()];
            let key = PrivateKeyDer::from_pem_file(files.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let name = ServerName::try_from("gateway.example").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(served.gateway.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    StreamOwned::new(client, socket)
}

fn ask(stream: &mut Encrypted, bytes: &[u8], expected: usize) -> std::io::Result<Vec<u8>> {
    stream.write_all(bytes)?;
    let mut reply = vec![0; expected];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

fn encrypted(authority: &Authority, asks_clients: bool) -> Served {
    let files = authority.files("gateway", "gateway.example");
    let ca = asks_clients.then_some(files.ca.as_path());
    let tls = GatewayTls::load(&files.certificate, &files.key, ca).unwrap();
    serve(|options| options.tls = Some(tls))
}

#[test]
fn commands_and_large_replies_travel_encrypted() {
    let authority = Authority::new();
    let served = encrypted(&authority, false);
    let mut stream = connect(&served, &authority, None);
    assert_eq!(ask(&mut stream, b"PING\r\n", 7).unwrap(), b"+PONG\r\n");
    let value: Vec<u8> = (0..1 << 20).map(|number: u32| (number % 251) as u8).collect();
    assert_eq!(ask(&mut stream, &command(&[b"SET", b"k", &value]), 5).unwrap(), b"+OK\r\n");
    // More than the gateway keeps for a client: it goes on as the client reads.
    let gets = 8;
    let head = b"$1048576\r\n";
    let all = ask(
        &mut stream,
        &command(&[b"GET", b"k"]).repeat(gets),
        gets * (head.len() + value.len() + 2),
    );
    for reply in all.unwrap().chunks(head.len() + value.len() + 2) {
        assert!(reply.starts_with(head) && reply[head.len()..].starts_with(&value));
    }
    // Others go on while a client speaks something else.
    let mut plain = Resp::connect(served.gateway.address());
    plain.send(b"PING\r\n");
    assert!(plain.is_over());
    assert_eq!(ask(&mut stream, b"PING\r\n", 7).unwrap(), b"+PONG\r\n");
}

#[test]
fn clients_show_certificates_if_they_are_asked_for() {
    let authority = Authority::new();
    let served = encrypted(&authority, true);
    let mut known = connect(&served, &authority, Some("client"));
    assert_eq!(ask(&mut known, b"PING\r\n", 7).unwrap(), b"+PONG\r\n");
    let mut unknown = connect(&served, &authority, None);
    assert!(ask(&mut unknown, b"PING\r\n", 7).is_err());
    let stranger = Authority::new();
    let files = stranger.files("gateway", "gateway.example");
    let error = GatewayTls::load(&files.certificate, &authority.folder.join("gateway.key"), None);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no certificate and its key"), "{error}");
}
