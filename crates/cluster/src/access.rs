//! etcd access: addresses, certificates and user for a connection to etcd.

use std::fmt;
use std::path::PathBuf;

use crate::ClusterError;
use crate::tls::Tls;

/// Access to etcd: by plain HTTP and without a user, unless the caller adds TLS or a user.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    pub(crate) tls: Option<Tls>,
    pub(crate) user: Option<User>,
}

/// Files in PEM for TLS to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTlsFiles {
    /// Certificates of the authorities for etcd's servers. A server's certificate has to name the host by
    /// which clients address it.
    pub ca: PathBuf,
    /// This process's certificate, with its key. An etcd that was started with `--client-cert-auth` asks for
    /// it.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl EtcdAccess {
    /// Adds TLS. Reads the files.
    ///
    /// # Errors
    /// [`ClusterError::Files`] for a file that cannot be read, or holds no certificate or key, or for a key
    /// of another certificate.
    pub fn tls(mut self, files: &EtcdTlsFiles) -> Result<Self, ClusterError> {
        self.tls = Some(Tls::load(files)?);
        Ok(self)
    }

    /// Adds a user of etcd.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some(User { name: name.into(), password: password.into() });
        self
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The password is left out.
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let told = format!("{:?}", EtcdAccess::default().user("u", "secret"));
        assert!(told.contains("\"u\"") && !told.contains("secret"), "{told}");
    }
}
