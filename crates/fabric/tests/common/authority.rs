//! Test authority: makes certificates for tests of TLS.
#![allow(dead_code, reason = "each suite uses its part")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_fabric::tcp::{Tls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};

/// A certificate authority, with a folder for its files.
pub(crate) struct Authority {
    pub(crate) folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("farleaf-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { folder, issuer: Issuer::new(params, key) }
    }

    /// Makes the files of `who`, with a certificate for `name`.
    pub(crate) fn files(&self, who: &str, name: &str) -> TlsFiles {
        self.files_of(who, CertificateParams::new(vec![name.to_owned()]).unwrap())
    }

    /// Makes the files of `who`, with a certificate that has no common name.
    pub(crate) fn nameless(&self, who: &str) -> TlsFiles {
        let mut params = CertificateParams::new(vec![who.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        self.files_of(who, params)
    }

    fn files_of(&self, who: &str, params: CertificateParams) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |suffix: &str, text: String| {
            let path = self.folder.join(format!("{who}.{suffix}"));
            fs::write(&path, text).unwrap();
            path
        };
        TlsFiles {
            ca: self.folder.join("ca.pem"),
            certificate: file("pem", certificate.pem()),
            key: file("key", key.serialize_pem()),
            server_name: None,
        }
    }

    /// Loads the files of `who` that the folder's maker has left there.
    pub(crate) fn known(who: &str, folder: PathBuf) -> Tls {
        let file = |name: String| folder.join(name);
        let (certificate, key) = (file(format!("{who}.pem")), file(format!("{who}.key")));
        let ca = folder.join("ca.pem");
        Tls::load(&TlsFiles { ca, certificate, key, server_name: None }).unwrap()
    }

    pub(crate) fn somebody(&self, name: &str) -> Tls {
        Tls::load(&self.files("somebody", name)).unwrap()
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
