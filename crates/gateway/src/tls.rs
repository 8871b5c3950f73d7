//! TLS: the gateway's certificate, and the authorities of its clients' certificates.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use farleaf_fabric::tcp::Link;
use farleaf_fabric::{FabricError, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// Unsent bytes that a connection keeps enciphered: more wait as the connection's replies.
const PENDING_BYTES: usize = 16 << 10;

/// Encrypts clients' connections (TLS 1.3).
#[derive(Clone)]
pub struct GatewayTls(Arc<ServerConfig>);

impl GatewayTls {
    /// Reads files in PEM: the gateway's certificate, with those between it and an authority's, and its key. With
    /// `ca`, a client has to show a certificate that one of its authorities has signed.
    ///
    /// # Errors
    /// [`FabricError::Io`] for a file that cannot be read; [`FabricError::Config`] for a file without a certificate
    /// or key, and for a key of another certificate.
    pub fn load(certificate: &Path, key: &Path, ca: Option<&Path>) -> Result<Self, FabricError> {
        let (chain, key) = pem::identity(certificate, key)?;
        let unusable = |path: &Path, error: &dyn fmt::Display| {
            FabricError::Config(format!("{} cannot be used: {error}", path.display()))
        };
        let builder = ServerConfig::builder_with_provider(pem::provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| FabricError::Config(error.to_string()))?;
        let builder = match ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut trusted = RootCertStore::empty();
                trusted.add_parsable_certificates(pem::authorities(ca)?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), pem::provider())
                        .build()
                        .map_err(|error| unusable(ca, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| unusable(certificate, &error))?;
        // Each would cost memory, and clients of Redis keep their connections.
        config.send_tls13_tickets = 0;
        Ok(GatewayTls(Arc::new(config)))
    }

    /// The side that has accepted the connection.
    pub(crate) fn accept<S>(&self, socket: S) -> io::Result<Link<S>> {
        let mut connection =
            ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(PENDING_BYTES));
        Ok(Link::sealed(socket, connection.into()))
    }
}

impl fmt::Debug for GatewayTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is left out.
        f.debug_struct("GatewayTls").finish_non_exhaustive()
    }
}
