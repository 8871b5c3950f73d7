//! TLS to etcd: configures TLS, and explains why a request failed over it.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farleaf_fabric::{FabricError, pem};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, Stream};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::{ClusterError, EtcdTlsFiles};

/// Longest wait for a connection, and for a server's word after the handshake.
const CONNECT_TIME: Duration = Duration::from_secs(1);
const ANSWER_TIME: Duration = Duration::from_millis(500);

/// Certificate authorities that this side trusts, and its own certificate.
#[derive(Clone)]
pub(crate) struct Tls {
    /// The same in the form for requests.
    pub(crate) agent: TlsConfig,
    config: Arc<ClientConfig>,
    has_identity: bool,
}

impl Tls {
    pub(crate) fn load(files: &EtcdTlsFiles) -> Result<Tls, ClusterError> {
        let unusable = |error: FabricError| ClusterError::Files(told(&error));
        let trusted = pem::authorities(&files.ca).map_err(unusable)?;
        let identity = files.identity.as_ref();
        let identity = identity.map(|(chain, key)| pem::identity(chain, key));
        let identity = identity.transpose().map_err(unusable)?;
        let shown = match (&identity, &files.identity) {
            (Some((chain, _)), Some((_, key))) => Some(in_agent(chain, key)?),
            _ => None,
        };
        let agent = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(pem::provider())
            .root_certs(RootCerts::new_with_certs(&certificates(&trusted)))
            .client_cert(shown)
            .build();
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(trusted);
        let has_identity = identity.is_some();
        let unusable = |error: rustls::Error| ClusterError::Files(error.to_string());
        let config = ClientConfig::builder_with_provider(pem::provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(store);
        let config = match identity {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(unusable)?,
            None => config.with_no_client_auth(),
        };
        Ok(Tls { agent, config: Arc::new(config), has_identity })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is left out.
        f.debug_struct("Tls").field("has_identity", &self.has_identity).finish_non_exhaustive()
    }
}

/// The same for `ureq`, which reads keys from PEM only.
fn in_agent(chain: &[CertificateDer<'_>], key: &Path) -> Result<ClientCert, ClusterError> {
    let pem = fs::read(key).map_err(ureq::Error::Io);
    let read = pem.and_then(|pem| PrivateKey::from_pem(&pem)).map_err(|error| {
        ClusterError::Files(format!("the key in {} cannot be used: {error}", key.display()))
    })?;
    Ok(ClientCert::new_with_certs(&certificates(chain), read))
}

fn certificates(of: &[CertificateDer<'_>]) -> Vec<Certificate<'static>> {
    of.iter().map(|der| Certificate::from_der(der).to_owned()).collect()
}

/// The error, with the system's.
fn told(error: &FabricError) -> String {
    match error {
        FabricError::Io { source, .. } => format!("{error}: {source}"),
        error => error.to_string(),
    }
}

/// Returns the mismatch of TLS for which a server broke off a request, if that is the reason. The request's
/// own error need not tell: the server's alert is lost if the client wrote more before the close.
pub(crate) fn diagnose(endpoint: &str, tls: Option<&Tls>) -> Option<ClusterError> {
    let endpoint_text = || endpoint.to_owned();
    let Some(tls) = tls else {
        // Nobody has named an authority, so the handshake ends with the server's certificate if the server
        // shows one.
        let config = ClientConfig::builder_with_provider(pem::provider())
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let spoken = shake_hands(endpoint, Arc::new(config)).err()?;
        let is_tls = matches!(in_tls(&spoken), Some(rustls::Error::InvalidCertificate(_)));
        return is_tls.then(|| ClusterError::WantsTls { endpoint: endpoint_text() });
    };
    let error = shake_hands(endpoint, Arc::clone(&tls.config)).err()?;
    let endpoint = endpoint_text();
    match in_tls(&error) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            Some(ClusterError::NotTrusted { endpoint, why: why.to_string() })
        }
        Some(rustls::Error::AlertReceived(alert)) if is_of_certificates(*alert) => {
            Some(if tls.has_identity {
                ClusterError::CertificateRefused { endpoint, why: format!("{alert:?}") }
            } else {
                ClusterError::WantsCertificate { endpoint }
            })
        }
        _ if answers_plainly(&endpoint) => Some(ClusterError::WantsPlain { endpoint }),
        _ => None,
    }
}

/// Makes a connection with TLS, writes nothing, and waits a moment for the server's reaction.
fn shake_hands(endpoint: &str, config: Arc<ClientConfig>) -> io::Result<()> {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut socket = connect(endpoint)?;
    match Stream::new(&mut connection, &mut socket).read(&mut [0]) {
        Err(error) if is_silence(&error) && !connection.is_handshaking() => Ok(()),
        Ok(1..) => Ok(()),
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) => Err(error),
    }
}

/// Returns whether the server answers HTTP without TLS.
fn answers_plainly(endpoint: &str) -> bool {
    let ask = || -> io::Result<[u8; 5]> {
        let mut socket = connect(endpoint)?;
        socket.write_all(b"GET /version HTTP/1.0\r\n\r\n")?;
        let mut begin = [0; 5];
        socket.read_exact(&mut begin)?;
        Ok(begin)
    };
    ask().is_ok_and(|begin| &begin == b"HTTP/")
}

fn connect(endpoint: &str) -> io::Result<TcpStream> {
    let mut connected = Err(io::Error::from(io::ErrorKind::NotFound));
    // Each address of the host, in the order of the system's resolver.
    for address in endpoint.to_socket_addrs()? {
        connected = TcpStream::connect_timeout(&address, CONNECT_TIME);
        if connected.is_ok() {
            break;
        }
    }
    let socket = connected?;
    socket.set_read_timeout(Some(ANSWER_TIME))?;
    socket.set_write_timeout(Some(ANSWER_TIME))?;
    Ok(socket)
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn in_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns whether the alert rejects a client's certificate, or its absence.
fn is_of_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}
