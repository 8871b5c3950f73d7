//! etcd options: the addresses, certificates and user for etcd.

use std::env;
use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use farleaf::{EtcdAccess, EtcdTlsFiles};

use crate::errors::Failure;

/// The user's password. It has no option, so that it stands on no command line and in no file of settings.
pub(crate) const PASSWORD: &str = "FARLEAF_ETCD_PASSWORD";

/// Every command that takes the address of a cluster takes them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "etcd of a cluster (etcd://, --etcd)")]
pub(crate) struct EtcdArgs {
    /// Certificates (PEM) of those who vouch for etcd, which then speaks TLS
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    etcd_tls_ca: Option<PathBuf>,
    /// The certificate (PEM) that etcd is shown, if it wants one
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    etcd_tls_cert: Option<PathBuf>,
    /// That certificate's key (PEM)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    etcd_tls_key: Option<PathBuf>,
    /// The user of etcd, if it has users
    #[arg(long, global = true, value_name = "NAME")]
    etcd_user: Option<String>,
    /// A file with the user's password, if FARLEAF_ETCD_PASSWORD does not hold it
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// The access that they ask for.
    ///
    /// # Errors
    /// A usage error for files that are missing or no use, and for what is not given together.
    pub(crate) fn load(&self) -> Result<EtcdAccess, Failure> {
        let mut access = EtcdAccess::default();
        let (certificate, key) = (&self.etcd_tls_cert, &self.etcd_tls_key);
        if certificate.is_some() != key.is_some() {
            return Err(Failure::usage(
                "a certificate for etcd needs both --etcd-tls-cert and --etcd-tls-key (or \
                 FARLEAF_ETCD_TLS_CERT and so on)",
            ));
        }
        match (self.etcd_tls_ca.clone(), certificate.clone().zip(key.clone())) {
            (Some(ca), identity) => {
                let files = EtcdTlsFiles { ca, identity };
                access = access.tls(&files).map_err(|error| Failure::usage(error.to_string()))?;
            }
            (None, None) => {}
            (None, Some(_)) => {
                return Err(Failure::usage(
                    "TLS to etcd needs --etcd-tls-ca (or FARLEAF_ETCD_TLS_CA), the authority to trust",
                ));
            }
        }
        let password = self.password()?;
        match (&self.etcd_user, password) {
            (Some(user), Some(password)) => Ok(access.user(user, password)),
            (None, None) => Ok(access),
            (Some(user), None) => Err(Failure::usage(format!(
                "the user \"{user}\" of etcd has a password: name a file with it \
                 (--etcd-password-file), or set {PASSWORD}"
            ))),
            (None, Some(_)) => Err(Failure::usage(
                "a password for etcd is given without a user: name one (--etcd-user)",
            )),
        }
    }

    fn password(&self) -> Result<Option<String>, Failure> {
        let set = env::var_os(PASSWORD).filter(|password| !password.is_empty());
        let (source, text) = match (&self.etcd_password_file, set) {
            (Some(_), Some(_)) => {
                return Err(Failure::usage(format!(
                    "the password for etcd is given twice: by --etcd-password-file and by {PASSWORD}"
                )));
            }
            (None, None) => return Ok(None),
            (None, Some(set)) => (PASSWORD.to_owned(), set.into_string().ok()),
            (Some(file), None) => {
                let bytes = fs::read(file).map_err(|error| {
                    Failure::usage(format!("cannot read {}: {error}", file.display()))
                })?;
                (file.display().to_string(), String::from_utf8(bytes).ok())
            }
        };
        let text = text.ok_or_else(|| Failure::usage(format!("{source} is not text in UTF-8")))?;
        // The end of the line is the editor's.
        let password = text.trim_end_matches(['\n', '\r']);
        if password.is_empty() {
            return Err(Failure::usage(format!("there is no password in {source}")));
        }
        Ok(Some(password.to_owned()))
    }
}
