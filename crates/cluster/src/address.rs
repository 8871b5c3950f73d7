//! Cluster addresses: parse addresses that name a cluster in etcd.

use std::fmt;

use crate::ClusterError;

/// Longest name of a cluster.
const NAME_BYTES_MAX: usize = 64;
/// An example of an address, for error messages.
const EXAMPLE: &str = "as in etcd://10.0.0.1:2379,10.0.0.2:2379/orders";

/// Address of a cluster's directory: servers of etcd, and the cluster's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAddress {
    endpoints: Vec<String>,
    name: String,
}

impl ClusterAddress {
    /// The cluster `name` in the directory that servers of etcd at `endpoints` keep: a host and a port
    /// each, tried in turn.
    ///
    /// # Errors
    /// [`ClusterError::Address`] for an endpoint that is none, or a name that is empty, longer than 64
    /// bytes, or has anything in it but letters, digits, `.`, `_` and `-`.
    pub fn new<S: Into<String>>(
        endpoints: impl IntoIterator<Item = S>,
        name: &str,
    ) -> Result<Self, ClusterError> {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        if endpoints.is_empty() {
            return Err(ClusterError::Address(format!("no server of etcd was named, {EXAMPLE}")));
        }
        for endpoint in &endpoints {
            let port = endpoint.rsplit_once(':').filter(|(host, _)| is_host(host));
            if port.is_none_or(|(_, port)| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
                return Err(ClusterError::Address(format!(
                    "\"{endpoint}\" is no server of etcd: each is a host and a port, {EXAMPLE}"
                )));
            }
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(ClusterError::Address(format!(
                "\"{name}\" is no name of a cluster: it has 1 to {NAME_BYTES_MAX} letters, digits, \
                 '.', '_' and '-', {EXAMPLE}"
            )));
        }
        Ok(ClusterAddress { endpoints, name: name.to_owned() })
    }

    /// Reads `etcd://host:port,host:port/name`.
    ///
    /// # Errors
    /// [`ClusterError::Address`] names the fault.
    pub fn parse(uri: &str) -> Result<Self, ClusterError> {
        let wrong = |why: &str| ClusterError::Address(format!("\"{uri}\" {why}, {EXAMPLE}"));
        let rest =
            uri.strip_prefix("etcd://").ok_or_else(|| wrong("does not begin with etcd://"))?;
        let (endpoints, name) =
            rest.split_once('/').ok_or_else(|| wrong("names no cluster behind the servers"))?;
        ClusterAddress::new(endpoints.split(','), name)
    }

    /// The servers of etcd.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ClusterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.name)
    }
}

/// A host has nothing that would end the host's part of a URL.
fn is_host(host: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inner {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        for uri in ["etcd://a.b:2379/c", "etcd://127.0.0.1:1,[::1]:2,h-1:65535/My.pool_2-x"] {
            assert_eq!(ClusterAddress::parse(uri).unwrap().to_string(), uri);
        }
        let address = ClusterAddress::parse("etcd://a:1,b:2/c").unwrap();
        assert_eq!((address.endpoints().len(), address.name()), (2, "c"));
    }

    #[test]
    fn an_invalid_address_names_its_fault() {
        for (uri, what) in [
            ("etcd:a:1/c", "does not begin with etcd://"),
            ("etcd://a:1", "names no cluster"),
            ("etcd://a:1/", "no name of a cluster"),
            ("etcd://a:1/c/d", "no name of a cluster"),
            ("etcd://a:1/c d", "no name of a cluster"),
            ("etcd:///c", "\"\" is no server of etcd"),
            ("etcd://a/c", "\"a\" is no server of etcd"),
            ("etcd://a:1,/c", "\"\" is no server of etcd"),
            ("etcd://a:0/c", "\"a:0\" is no server of etcd"),
            ("etcd://a@b:1/c", "is no server of etcd"),
            ("etcd://::1:1/c", "is no server of etcd"),
        ] {
            let error = ClusterAddress::parse(uri).unwrap_err().to_string();
            assert!(error.contains(what), "{uri}: {error}");
            assert!(error.contains("as in etcd://"), "{uri}: {error}");
        }
        assert!(ClusterAddress::new(["a:1"], &"x".repeat(65)).is_err());
        assert!(ClusterAddress::new(Vec::<String>::new(), "x").is_err());
    }
}
