//! TLS: proves a process's identity and checks its peers', with certificates on both sides.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ConfigSide, RootCertStore, ServerConfig,
    ServerConnection, WantsVerifier,
};

use crate::{FabricError, pem};

/// Files in PEM with a process's certificate, and with the authorities that it trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities for the other processes of the cluster. A process with a certificate
    /// that one of them has signed is let in.
    pub ca: PathBuf,
    /// This process's certificate, and those between it and one of the other side's `ca`.
    pub certificate: PathBuf,
    /// The key of this process's certificate.
    pub key: PathBuf,
    /// The name in servers' certificates. Without one, each certificate has to name the IP address at which
    /// clients reach the server.
    pub server_name: Option<String>,
}

/// Encrypts connections; both sides show certificates (TLS 1.3). The same serves a memory server and its
/// clients.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    server_name: Option<ServerName<'static>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`FabricError::Io`] for a file that cannot be read; [`FabricError::Config`] for a file without a
    /// certificate or key, a key of another certificate, and an invalid name.
    pub fn load(files: &TlsFiles) -> Result<Tls, FabricError> {
        let mut trusted = RootCertStore::empty();
        trusted.add_parsable_certificates(pem::authorities(&files.ca)?);
        let trusted = Arc::new(trusted);
        let (chain, key) = pem::identity(&files.certificate, &files.key)?;
        let provider = pem::provider();
        let vouching = |error: &dyn fmt::Display| pem::unusable(&files.ca, error);
        let own = |error: rustls::Error| pem::unusable(&files.certificate, &error);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&trusted), provider.clone())
                .build()
                .map_err(|error| vouching(&error))?;
        let mut server = versions(ServerConfig::builder_with_provider(provider.clone()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(own)?;
        // Connections are long, and few.
        server.send_tls13_tickets = 0;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&trusted), provider.clone())
                .build()
                .map_err(|error| vouching(&error))?;
        let client = versions(ClientConfig::builder_with_provider(provider))?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(chain, key)
            .map_err(own)?;
        let server_name = files.server_name.as_ref().map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| FabricError::Config(format!("\"{name}\" is not a server name")))
        });
        Ok(Tls {
            client: Arc::new(client),
            server: Arc::new(server),
            server_name: server_name.transpose()?,
        })
    }

    /// The side that has connected to the server at `address`.
    pub(super) fn connects(&self, address: IpAddr) -> Result<rustls::Connection, rustls::Error> {
        let name = self.server_name.clone().unwrap_or(ServerName::IpAddress(address.into()));
        Ok(ClientConnection::new(Arc::clone(&self.client), name)?.into())
    }

    /// The side that has accepted the connection.
    pub(super) fn accepts(&self) -> Result<rustls::Connection, rustls::Error> {
        Ok(ServerConnection::new(Arc::clone(&self.server))?.into())
    }
}

/// Equal if both are clones of one load.
impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        Arc::ptr_eq(&self.client, &other.client) && Arc::ptr_eq(&self.server, &other.server)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is left out.
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

fn versions<S: ConfigSide>(
    builder: ConfigBuilder<S, rustls::WantsVersions>,
) -> Result<ConfigBuilder<S, WantsVerifier>, FabricError> {
    builder
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| FabricError::Config(error.to_string()))
}
