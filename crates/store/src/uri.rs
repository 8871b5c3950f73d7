//! Pool addresses: parse the address that a store is opened by.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "etcd")]
use farleaf_cluster::{ClusterAddress, Directory, Way};
use farleaf_fabric::verbs::CardConfig;
use farleaf_index::suggest;

use crate::card;
use crate::error::{Error, ErrorKind, Result};

/// The pool that an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Uri {
    /// A new pool in this process's own memory.
    Mem,
    /// A pool in a folder of memory files.
    Shm(PathBuf),
    /// A pool of memory servers on a network: their hosts and ports, in the order of their numbers.
    Tcp(Vec<String>),
    /// The same by RDMA, and by which card of this machine.
    Verbs(Vec<String>, CardConfig),
    /// A pool whose memory servers stand in a directory, and by which card if they are reached by RDMA.
    #[cfg(feature = "etcd")]
    Etcd(ClusterAddress, CardConfig),
}

/// The end of every complaint about an address.
const UNDERSTOOD: &str = "understood are \"mem:\" (a new pool in this process's memory), \
                          \"shm:<folder>\" (a pool that the processes of this machine share), \
                          \"tcp://<host>:<port>,...\" (memory servers on a network), \
                          \"verbs://<host>:<port>,...\" (the same, reached by RDMA) and \
                          \"etcd://<host>:<port>,.../<cluster>\" (those of a cluster that etcd knows)";

impl Uri {
    pub(crate) fn parse(uri: &str) -> Result<Uri> {
        let Some((scheme, rest)) = uri.split_once(':') else {
            return Err(complain(uri, &bare(uri)));
        };
        match scheme {
            "mem" if rest.is_empty() => Ok(Uri::Mem),
            "mem" => Err(complain(uri, "; nothing may follow \"mem:\"")),
            "shm" if rest.is_empty() => {
                Err(complain(uri, "; a folder must follow, as in \"shm:/dev/shm/mypool\""))
            }
            "shm" if rest.starts_with("//") && !rest.starts_with("///") => {
                let folder = rest.trim_start_matches('/');
                let hint = format!("; did you mean \"shm:/{folder}\" or \"shm:{folder}\"?");
                Err(complain(uri, &hint))
            }
            "shm" => Ok(Uri::Shm(PathBuf::from(rest))),
            "tcp" => servers(uri, scheme, rest).map(Uri::Tcp),
            "verbs" => {
                let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
                let card = card::parse(query).map_err(|why| complain(uri, &why))?;
                Ok(Uri::Verbs(servers(uri, scheme, rest)?, card))
            }
            #[cfg(feature = "etcd")]
            "etcd" => {
                let (address, query) = uri.split_once('?').unwrap_or((uri, ""));
                let card = card::parse(query).map_err(|why| complain(uri, &why))?;
                ClusterAddress::parse(address)
                    .map(|address| Uri::Etcd(address, card))
                    .map_err(|error| complain(uri, &format!("; {error}")))
            }
            #[cfg(not(feature = "etcd"))]
            "etcd" => {
                let hint = "; this program was built without the feature \"etcd\" of farleaf";
                Err(complain(uri, hint))
            }
            _ => {
                let known = ["mem", "shm", "tcp", "verbs", "etcd"];
                let hint = suggest::nearest(scheme, known).map(|scheme| match scheme {
                    "mem" => "; did you mean \"mem:\"?".to_owned(),
                    scheme => format!("; did you mean \"{scheme}:{rest}\"?"),
                });
                Err(complain(uri, &hint.unwrap_or_default()))
            }
        }
    }

    /// # Errors
    /// `Invalid` for a pool of this machine.
    pub(crate) fn check_network(&self, uri: &str) -> Result<()> {
        match self {
            Uri::Mem | Uri::Shm(_) => Err(not_on_a_network(uri)),
            _ => Ok(()),
        }
    }
}

pub(crate) fn not_on_a_network(uri: &str) -> Error {
    let message = format!("\"{uri}\" is not a network address: write tcp://host:7000");
    Error::invalid(message)
}

/// The memory servers of an address on a network.
fn servers(uri: &str, scheme: &str, rest: &str) -> Result<Vec<String>> {
    let Some(list) = rest.strip_prefix("//") else {
        let hint = format!("; did you mean \"{scheme}://{}\"?", rest.trim_start_matches('/'));
        return Err(complain(uri, &hint));
    };
    let servers: Vec<&str> = list.trim_end_matches('/').split(',').collect();
    for server in &servers {
        if server.contains(char::is_whitespace) {
            let hint = format!(
                "; \"{server}\" holds a blank: write the servers with commas alone between them"
            );
            return Err(complain(uri, &hint));
        }
        let port = server.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let hint = format!(
                "; \"{server}\" is not a memory server: name each by host and port, as in \
                 \"{scheme}://127.0.0.1:7000,127.0.0.1:7001\""
            );
            return Err(complain(uri, &hint));
        }
    }
    Ok(servers.into_iter().map(str::to_owned).collect())
}

/// Memory servers of a pool, and how they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryServers {
    /// The addresses at which they listen, in the order of their numbers.
    pub addresses: Vec<SocketAddr>,
    /// The card of this machine by which they are reached, if that is by RDMA: what it leaves out is chosen
    /// when the pool is opened. `None` for TCP.
    pub card: Option<CardConfig>,
}

impl MemoryServers {
    /// Those that `servers` names, each a host and a port. Of several addresses that a host has, this tries each in
    /// the order of the system's resolver, and takes the first that accepts a connection.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for a host that is not found; [`ErrorKind::Unavailable`] if none of several addresses can be
    /// reached.
    pub(crate) fn named(servers: &[String], card: Option<CardConfig>) -> Result<Self> {
        let addresses = servers.iter().map(|server| resolve(server)).collect::<Result<_>>()?;
        Ok(MemoryServers { addresses, card })
    }

    /// Those that are registered in a cluster's directory; by `card` if they are reached by RDMA.
    ///
    /// # Errors
    /// As [`Directory::memory_servers`]; `Invalid` for a card that they are not reached by.
    #[cfg(feature = "etcd")]
    pub(crate) fn registered(directory: &Directory, card: &CardConfig) -> Result<Self> {
        let (addresses, way) = directory.memory_servers()?;
        if way == Way::Tcp && *card != CardConfig::default() {
            return Err(Error::invalid(format!(
                "the memory servers of cluster \"{}\" are reached by TCP: {} is for those that were \
                 started with --fabric verbs",
                directory.name(),
                card::query(card)
            )));
        }
        Ok(MemoryServers { addresses, card: (way == Way::Verbs).then(|| card.clone()) })
    }

    /// Memory servers at these addresses; reached by TCP, or by a card.
    pub fn new(addresses: Vec<SocketAddr>, card: Option<CardConfig>) -> Self {
        MemoryServers { addresses, card }
    }

    /// The address of the pool on them, as [`Farleaf::open`](crate::Farleaf::open) takes it.
    pub fn uri(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        let addresses = addresses.join(",");
        match &self.card {
            None => format!("tcp://{addresses}"),
            Some(card) => format!("verbs://{addresses}{}", card::query(card)),
        }
    }
}

/// The longest time for making a connection to one of several addresses of a host.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// The address of `server`, a host and a port. Of several that the host has, the first that takes connections, in the
/// order of the system's resolver.
fn resolve(server: &str) -> Result<SocketAddr> {
    let refused = |source| Error::io(format!("cannot find the memory server {server}"), source);
    let mut found: Vec<SocketAddr> = server.to_socket_addrs().map_err(refused)?.collect();
    let mut seen = BTreeSet::new();
    found.retain(|address| seen.insert(*address));
    choose(server, &found, |address| TcpStream::connect_timeout(address, CONNECT_TIME).map(drop))
}

/// The first of `found` that `connect` reaches; a single one is not tried.
fn choose(
    server: &str,
    found: &[SocketAddr],
    connect: impl Fn(&SocketAddr) -> io::Result<()>,
) -> Result<SocketAddr> {
    let unavailable = |why| {
        Error::new(
            ErrorKind::Unavailable,
            format!("cannot reach the memory server {server}: {why}"),
        )
    };
    match found {
        [] => Err(unavailable("the host has no address".to_owned())),
        [only] => Ok(*only),
        _ => {
            let mut tried = Vec::new();
            for address in found {
                match connect(address) {
                    Ok(()) => return Ok(*address),
                    Err(error) => tried.push(format!("{address} ({error})")),
                }
            }
            Err(unavailable(format!("tried {}", tried.join(", "))))
        }
    }
}

/// A hint for an address without a colon.
fn bare(uri: &str) -> String {
    if uri.contains(['/', '.']) {
        format!("; did you mean \"shm:{uri}\"?")
    } else if suggest::nearest(uri, ["mem"]).is_some() {
        "; did you mean \"mem:\"?".to_owned()
    } else {
        String::new()
    }
}

fn complain(uri: &str, hint: &str) -> Error {
    Error::invalid(format!("cannot open \"{uri}\"{hint}{} {UNDERSTOOD}", glue(hint)))
}

/// The text between a hint and the list.
fn glue(hint: &str) -> &'static str {
    if hint.ends_with('?') { "" } else { ";" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Farleaf;

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!(Uri::parse("mem:").expect("mem"), Uri::Mem);
        let shm = |path: &str| Uri::Shm(PathBuf::from(path));
        assert_eq!(Uri::parse("shm:/dev/shm/p").expect("absolute"), shm("/dev/shm/p"));
        assert_eq!(Uri::parse("shm:some/p").expect("relative"), shm("some/p"));
        assert_eq!(Uri::parse("shm:///dev/shm/p").expect("slashes"), shm("/dev/shm/p"));
        let tcp = |servers: &[&str]| Uri::Tcp(servers.iter().map(ToString::to_string).collect());
        assert_eq!(Uri::parse("tcp://a.b:7000").expect("one"), tcp(&["a.b:7000"]));
        assert_eq!(Uri::parse("tcp://a:7,[::1]:8/").expect("two"), tcp(&["a:7", "[::1]:8"]));
        #[cfg(feature = "etcd")]
        {
            let cluster = ClusterAddress::new(["a:7", "[::1]:8"], "c").expect("a cluster");
            let found = Uri::parse("etcd://a:7,[::1]:8/c").expect("etcd");
            assert_eq!(found, Uri::Etcd(cluster.clone(), CardConfig::default()));
            let found = Uri::parse("etcd://a:7,[::1]:8/c?gid=2").expect("with a card");
            let card = CardConfig { gid_index: Some(2), ..CardConfig::default() };
            assert_eq!(found, Uri::Etcd(cluster, card));
        }
        let Uri::Verbs(servers, card) =
            Uri::parse("verbs://a:7,b:8/?mtu=1024&port=1").expect("verbs")
        else {
            panic!("it is of verbs");
        };
        assert_eq!(
            (servers, card.mtu, card.port),
            (vec!["a:7".into(), "b:8".into()], Some(1024), Some(1))
        );
        assert_eq!(card.device, None);
    }

    #[test]
    fn what_is_said_of_cards_is_understood() {
        let locate = |uri| Farleaf::builder().locate(uri).expect("an address");
        for uri in ["verbs://127.0.0.1:7?device=a&gid=2", "tcp://127.0.0.1:7,127.0.0.1:8"] {
            assert_eq!(locate(uri).uri(), uri);
        }
        assert_eq!(locate("tcp://127.0.0.1:7").card, None);
    }

    /// A host with an IPv6 address before the one that a server listens at could not be reached, nor a server on
    /// the IPv6 address of a host that has both.
    #[test]
    fn each_address_of_a_host_is_tried_in_its_order() {
        let [first, second]: [SocketAddr; 2] =
            ["[::1]:7", "127.0.0.1:7"].map(|address| address.parse().expect("an address"));
        let reaches = |open: &[SocketAddr]| {
            let connect = |address: &SocketAddr| match open.contains(address) {
                true => Ok(()),
                false => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            };
            choose("host:7", &[first, second], connect)
        };
        assert_eq!(reaches(&[first, second]).expect("both"), first);
        assert_eq!(reaches(&[second]).expect("the second"), second);
        let error = reaches(&[]).expect_err("none");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let told = error.to_string();
        assert!(
            told.contains("host:7: tried [::1]:7 (connection refused), 127.0.0.1:7 ("),
            "{told}"
        );
        let never = |_: &SocketAddr| panic!("a single address is not tried");
        assert_eq!(choose("host:7", &[second], never).expect("one"), second);
    }

    #[test]
    fn wrong_addresses_say_what_would_be_right() {
        for (uri, hint) in [
            ("mem", "did you mean \"mem:\"?"),
            ("", "understood are"),
            ("mem:4GiB", "nothing may follow"),
            ("mme:", "did you mean \"mem:\"?"),
            ("MEM:", "did you mean \"mem:\"?"),
            ("shm:", "a folder must follow"),
            ("smh:/p", "did you mean \"shm:/p\"?"),
            ("shm://pool", "did you mean \"shm:/pool\" or \"shm:pool\"?"),
            ("/dev/shm/p", "did you mean \"shm:/dev/shm/p\"?"),
            ("tcp:host:1", "did you mean \"tcp://host:1\"?"),
            ("tpc://host:1", "did you mean \"tcp://host:1\"?"),
            ("tcp://", "\"\" is not a memory server"),
            ("tcp://host:1, host:2", "\" host:2\" holds a blank"),
            ("verbs://host:1 ,host:2", "\"host:1 \" holds a blank"),
            ("tcp://host", "\"host\" is not a memory server"),
            ("tcp://host:1,:2", "\":2\" is not a memory server"),
            ("tcp://host:1,host:70000", "\"host:70000\" is not a memory server"),
            ("verbs:host:1", "did you mean \"verbs://host:1\"?"),
            ("verb://host:1", "did you mean \"verbs://host:1\"?"),
            ("verbs://host", "\"host\" is not a memory server"),
            ("verbs://host:1?gid=x", "takes an index into the GID table"),
            #[cfg(feature = "etcd")]
            ("etcd://host:1", "names no cluster behind the servers"),
            #[cfg(feature = "etcd")]
            ("etcd://host:1/c?gid=x", "takes an index into the GID table"),
            #[cfg(not(feature = "etcd"))]
            ("etcd://host:1/c", "without the feature \"etcd\""),
            ("etdc://host:1/c", "did you mean \"etcd://host:1/c\"?"),
            ("postgres://x", "understood are \"mem:\""),
        ] {
            let error = Uri::parse(uri).expect_err(uri);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{uri}");
            assert!(error.to_string().contains(hint), "{uri}: {error}");
            assert!(error.to_string().contains("\"shm:<folder>\""), "{uri}: {error}");
        }
    }
}
