//! Memory servers on this machine, as processes of this very program that end with whoever has
//! started them.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::tls::TlsArgs;

/// How long a memory server may take to end once it has been told to.
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
}

/// Memory servers that are at work. They end when this is dropped, or this process ends in any way:
/// each waits for the end of its standard input.
#[derive(Debug)]
pub(crate) struct Cluster {
    servers: Vec<Server>,
}

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
        let mut cluster = Cluster { servers: Vec::new() };
        for number in 0..config.servers {
            let server = start(config, number)
                .with_context(|| format!("memory server {number} does not start"))?;
            cluster.servers.push(server);
        }
        Ok(cluster)
    }

    /// Where they listen, in the order of their numbers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.address).collect()
    }

    /// The address of the pool.
    pub(crate) fn uri(&self) -> String {
        let addresses: Vec<_> = self.addresses().iter().map(SocketAddr::to_string).collect();
        format!("tcp://{}", addresses.join(","))
    }

    /// The number of one that has ended, although nobody has told it to.
    pub(crate) fn ended(&mut self) -> Option<usize> {
        let has_ended = |server: &mut Server| !matches!(server.process.try_wait(), Ok(None));
        self.servers.iter_mut().position(has_ended)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // All at once, and then each in turn.
        for server in &mut self.servers {
            drop(server.stdin.take());
        }
        let end = Instant::now() + END_TIME;
        for server in &mut self.servers {
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

fn start(config: &ClusterConfig, number: u16) -> anyhow::Result<Server> {
    let port = match config.port {
        0 => 0,
        first => first.checked_add(number).context("there is no such port")?,
    };
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.args(["memory", "--end-with-stdin", "--json", "--color", "never"]);
    command.args(["--server", &number.to_string(), "--servers", &config.servers.to_string()]);
    command.args(["--threads", &config.threads.to_string()]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    if let Some(bytes) = config.region_bytes {
        command.args(["--size", &bytes.to_string()]);
    }
    if let Some(folder) = &config.folder {
        command.arg("--file").arg(folder.join(format!("memory-{number:05}")));
    }
    config.tls.tell(&mut command);
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
