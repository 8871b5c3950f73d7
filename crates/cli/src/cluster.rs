//! Local cluster: memory and compute servers as processes of this program on this machine.
//!
//! They end with the process that started them.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farleaf::{CardConfig, MemoryServers};
use serde_json::Value;

use crate::card;
use crate::config::environment_of_parts;
use crate::tls::TlsArgs;

/// How long a server may take to end once it has been told to.
const END_TIME: Duration = Duration::from_secs(5);

/// What memory servers are to be started.
#[derive(Clone, Debug)]
pub(crate) struct ClusterConfig {
    pub(crate) servers: u16,
    /// Bytes of each; `None` takes what its file has.
    pub(crate) region_bytes: Option<u64>,
    /// Threads of each.
    pub(crate) threads: usize,
    /// Where their files lie, if they have some.
    pub(crate) folder: Option<PathBuf>,
    /// The first one's port; the others have those behind it. 0 takes free ones.
    pub(crate) port: u16,
    pub(crate) tls: TlsArgs,
    /// The card by which they are reached, if not by TCP alone.
    pub(crate) card: Option<CardConfig>,
}

/// Memory servers that are at work, and compute servers on their pool. They end when this is dropped, or
/// this process ends in any way: each waits for the end of its standard input.
#[derive(Debug)]
pub(crate) struct Cluster {
    compute: Servers,
    memory: Servers,
    tls: TlsArgs,
    card: Option<CardConfig>,
}

/// Servers that end together.
#[derive(Debug, Default)]
struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    process: Child,
    address: SocketAddr,
    /// Its end is the server's.
    stdin: Option<ChildStdin>,
}

impl Cluster {
    /// Starts them all, and waits until they listen.
    pub(crate) fn start(config: &ClusterConfig) -> anyhow::Result<Cluster> {
        let (tls, card) = (config.tls.clone(), config.card.clone());
        let (compute, memory) = (Servers::default(), Servers::default());
        let mut cluster = Cluster { compute, memory, tls, card };
        for number in 0..config.servers {
            let server = start_memory(config, number)
                .with_context(|| format!("memory server {number} does not start"))?;
            cluster.memory.0.push(server);
        }
        Ok(cluster)
    }

    /// Starts compute servers on the pool, which is made, and waits until they listen.
    pub(crate) fn start_compute(&mut self, count: u16) -> anyhow::Result<()> {
        let uri = self.uri();
        for number in 0..count {
            let words = ["compute", &uri, "--end-with-stdin"].map(OsString::from);
            let server = start(words.to_vec(), &self.tls, None)
                .with_context(|| format!("compute server {number} does not start"))?;
            self.compute.0.push(server);
        }
        Ok(())
    }

    /// Where compute servers listen.
    pub(crate) fn compute_addresses(&self) -> Vec<SocketAddr> {
        self.compute.0.iter().map(|server| server.address).collect()
    }

    /// Where they listen, in the order of their numbers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.memory.0.iter().map(|server| server.address).collect()
    }

    /// The address of the pool.
    pub(crate) fn uri(&self) -> String {
        MemoryServers::new(self.addresses(), self.card.clone()).uri()
    }

    /// One that has ended, although nobody has told it to.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let mut kinds = [("memory", &mut self.memory), ("compute", &mut self.compute)].into_iter();
        kinds.find_map(|(kind, servers)| {
            let has_ended = |server: &mut Server| !matches!(server.process.try_wait(), Ok(None));
            let number = servers.0.iter_mut().position(has_ended)?;
            Some(format!("{kind} server {number}"))
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // All at once, and then each in turn.
        for server in &mut self.0 {
            drop(server.stdin.take());
        }
        let end = Instant::now() + END_TIME;
        for server in &mut self.0 {
            while matches!(server.process.try_wait(), Ok(None)) {
                if Instant::now() >= end {
                    // It hangs; nothing more can be done about a failure of this.
                    let _ = server.process.kill();
                    let _ = server.process.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

fn start_memory(config: &ClusterConfig, number: u16) -> anyhow::Result<Server> {
    let port = match config.port {
        0 => 0,
        first => first.checked_add(number).context("there is no such port")?,
    };
    let mut words = ["memory", "--end-with-stdin"].map(OsString::from).to_vec();
    let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
    option("--server", number.to_string().into());
    option("--servers", config.servers.to_string().into());
    option("--threads", config.threads.to_string().into());
    option("--listen", format!("127.0.0.1:{port}").into());
    if let Some(bytes) = config.region_bytes {
        option("--size", bytes.to_string().into());
    }
    if let Some(folder) = &config.folder {
        option("--file", folder.join(format!("memory-{number:05}")).into());
    }
    start(words, &config.tls, config.card.as_ref())
}

/// Starts this program with these words, and waits until it says where it listens.
fn start(words: Vec<OsString>, tls: &TlsArgs, card: Option<&CardConfig>) -> anyhow::Result<Server> {
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    // Whoever starts them says what begins and ends.
    command.args(words).args(["--json", "--color", "never", "--log-level", "warn"]);
    for (name, value) in environment_of_parts() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    tls.tell(&mut command);
    if let Some(card) = card {
        card::tell(card, &mut command);
    }
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a process")?;
    let stdin = process.stdin.take();
    let mut line = String::new();
    if let Some(stdout) = process.stdout.take() {
        // An error is on standard error, which is ours.
        BufReader::new(stdout).read_line(&mut line).context("cannot hear it")?;
    }
    let told: Option<Value> = serde_json::from_str(&line).ok();
    let address = told.as_ref().and_then(|told| told["address"].as_str()?.parse().ok());
    let Some(address) = address else {
        let _ = process.kill();
        let status = process.wait().context("cannot wait for it")?;
        bail!("it said why, and ended with {status}");
    };
    Ok(Server { process, address, stdin })
}
