//! Listen addresses: the addresses at which memory servers and owners of keys accept connections.

use std::net::{SocketAddr, ToSocketAddrs};

use clap::Args;

use crate::errors::Failure;

/// Every command that may serve others takes them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Where it listens for others")]
pub(crate) struct ListenArgs {
    /// Address at which it listens, which others are told; port 0 takes a free one, and a host's name stands for its
    /// first address [default: 127.0.0.1:0]
    #[arg(long, global = true, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    listen: Option<SocketAddr>,
    /// Address at which others reach it, if that is another: in a container, behind NAT, or with 0.0.0.0 for
    /// --listen; port 0 stands for the one that it listens on
    #[arg(long, global = true, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    pub(crate) advertise: Option<SocketAddr>,
    /// Listen on an address that other machines reach without TLS: whoever reaches it can read and
    /// change all that is there
    #[arg(long, global = true)]
    pub(crate) insecure_public: bool,
}

/// Parses the address of an option: an IP address, or a host's name of which the first address counts, and a port.
pub(crate) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    found.ok_or_else(|| {
        "it is neither an IP address nor a host that is known here, with a port: write 127.0.0.1:7000".to_owned()
    })
}

impl ListenArgs {
    /// Returns the address at which to listen.
    ///
    /// # Errors
    /// A usage error for an address that other machines reach without TLS, unless that was asked for.
    pub(crate) fn address(&self, has_tls: bool) -> Result<SocketAddr, Failure> {
        let address = self.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        if !address.ip().is_loopback() && !has_tls && !self.insecure_public {
            return Err(Failure::usage(format!(
                "{address} can be reached from other machines, and nobody is authenticated: listen on \
                 127.0.0.1, set up TLS (--tls-ca and so on), or give --insecure-public in a network \
                 where you trust every machine"
            )));
        }
        Ok(address)
    }

    /// True if an address was named.
    pub(crate) fn is_given(&self) -> bool {
        self.listen.is_some() || self.advertise.is_some()
    }
}
