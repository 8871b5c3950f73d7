//! TLS options: the certificates by which memory servers and clients identify each other.

use std::path::PathBuf;
use std::process;

use clap::Args;
use farleaf::{Tls, TlsFiles};

use crate::errors::Failure;

const CA: &str = "FARLEAF_TLS_CA";
const CERT: &str = "FARLEAF_TLS_CERT";
const KEY: &str = "FARLEAF_TLS_KEY";
const NAME: &str = "FARLEAF_TLS_NAME";

/// Given together, all but the name. Whatever reaches a network takes them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS for pools on a network")]
pub(crate) struct TlsArgs {
    /// Certificates (PEM) of those who vouch for the other side
    #[arg(long, global = true, env = CA, hide_env_values = true, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// This side's certificate (PEM)
    #[arg(long, global = true, env = CERT, hide_env_values = true, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, global = true, env = KEY, hide_env_values = true, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The name in memory servers' certificates [default: the address at which each is reached]
    #[arg(long, global = true, env = NAME, hide_env_values = true, value_name = "NAME")]
    tls_name: Option<String>,
}

impl TlsArgs {
    /// Loads the files that they name; `None` if they name none.
    ///
    /// # Errors
    /// A usage error for files that are missing or no use.
    pub(crate) fn load(&self) -> Result<Option<Tls>, Failure> {
        let files = match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (None, None, None) if self.tls_name.is_none() => return Ok(None),
            (Some(ca), Some(certificate), Some(key)) => TlsFiles {
                ca: ca.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
                server_name: self.tls_name.clone(),
            },
            _ => {
                return Err(Failure::usage(
                    "TLS takes all of --tls-ca, --tls-cert and --tls-key (or FARLEAF_TLS_CA and so on)",
                ));
            }
        };
        Tls::load(&files).map(Some).map_err(|error| Failure::usage(error.to_string()))
    }

    /// Tells a process that is to be started the same.
    pub(crate) fn tell(&self, process: &mut process::Command) {
        for (name, file) in [(CA, &self.tls_ca), (CERT, &self.tls_cert), (KEY, &self.tls_key)] {
            if let Some(file) = file {
                process.env(name, file);
            }
        }
        if let Some(name) = &self.tls_name {
            process.env(NAME, name);
        }
    }
}
