//! PEM files: read certificates and keys.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::FabricError;

/// Reads the certificates of authorities.
///
/// # Errors
/// [`FabricError::Io`] for a file that cannot be read; [`FabricError::Config`] for one that holds no usable
/// certificate.
pub fn authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, FabricError> {
    let found = certificates(path)?;
    let mut store = RootCertStore::empty();
    for certificate in &found {
        store.add(certificate.clone()).map_err(|error| unusable(path, &error))?;
    }
    Ok(found)
}

/// Reads a certificate, with those between it and an authority's, and its key.
///
/// # Errors
/// As [`authorities`]; [`FabricError::Config`] also if the key belongs to another certificate.
pub fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FabricError> {
    let chain = certificates(certificate)?;
    let found = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| FabricError::Config(format!("no key in {}: {error}", key.display())))?;
    CertifiedKey::from_der(chain.clone(), found.clone_key(), &provider()).map_err(|error| {
        FabricError::Config(format!(
            "{} and {} are no certificate and its key: {error}",
            certificate.display(),
            key.display()
        ))
    })?;
    Ok((chain, found))
}

/// Returns the provider of cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub(crate) fn unusable(path: &Path, error: &dyn fmt::Display) -> FabricError {
    FabricError::Config(format!("the certificates in {} cannot be used: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FabricError> {
    let pem = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, &error))?;
    if found.is_empty() {
        let why = format!("there is no certificate in {}", path.display());
        return Err(FabricError::Config(why));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, FabricError> {
    fs::read(path).map_err(FabricError::io("read", path))
}
