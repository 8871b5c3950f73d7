//! Local cluster: memory and compute servers as processes of this program on this machine.
//!
//! They end with the process that started them. A compute server that ends before is replaced: its keys are
//! served by the others meanwhile. A memory server cannot be, because its part of the data is gone with it.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use farleaf::{CardConfig, MemoryServers};
use farleaf_index::units::Size;
use serde_json::Value;

use crate::card;
use crate::config::environment_of_parts;
use crate::errors::Failure;
use crate::tls::TlsArgs;

/// Time that a server may take to end once it has been told to.
const END_TIME: Duration = Duration::from_secs(5);
/// Pauses before a compute server is started again that did not live for the longest of them: the first is
/// none, and each is twice the one before.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);

/// The memory servers to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterConfig {
    pub(crate) servers: u16,
    /// Bytes of each; `None` takes what its file has.
    pub(crate) region_bytes: Option<u64>,
    /// Threads of each.
    pub(crate) threads: usize,
    /// The folder of their files, if they have some.
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
    /// A gateway for Redis's clients, if there is one.
    gateway: Servers,
    /// Its port.
    gateway_port: u16,
    compute: Servers,
    /// Bytes that each compute server exposes.
    expose_bytes: Option<Size>,
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
    /// Its address, once it has printed it.
    address: Option<SocketAddr>,
    /// The first line that it prints.
    first_line: Receiver<String>,
    /// Its end is the server's.
    stdin: Option<ChildStdin>,
    /// The moment of its start.
    start: Instant,
    /// The pause before it is started again, if it ended now.
    pause: Duration,
    /// The moment at which another is started in its place, if it has ended.
    restart_at: Option<Instant>,
}

/// The end of a cluster's servers.
pub(crate) enum Change {
    /// A memory server has ended, though nobody told it to, in this way.
    MemoryLost(u16, ExitStatus),
    /// The same of a compute server, which is to be replaced after this pause.
    ComputeLost(u16, ExitStatus, Duration),
    /// A compute server that was started in place of another listens there.
    ComputeBack(u16, SocketAddr),
    /// The same of the gateway for Redis's clients.
    GatewayLost(ExitStatus, Duration),
    /// The same.
    GatewayBack(SocketAddr),
}

impl Cluster {
    /// Starts them all, and waits until they listen.
    pub(crate) fn start(config: &ClusterConfig) -> anyhow::Result<Cluster> {
        let (tls, card) = (config.tls.clone(), config.card.clone());
        let (gateway, compute, memory, expose_bytes) = Default::default();
        let mut cluster =
            Cluster { gateway, gateway_port: 0, compute, expose_bytes, memory, tls, card };
        // Before the first is started.
        port_of(config, config.servers.saturating_sub(1))?;
        for number in 0..config.servers {
            let server = start_memory(config, number)
                .with_context(|| format!("memory server {number} does not start"))?;
            cluster.memory.0.push(server);
        }
        Ok(cluster)
    }

    /// Starts compute servers on the pool, which is made, and waits until they listen. Each exposes so many bytes.
    pub(crate) fn start_compute(
        &mut self,
        count: u16,
        expose_bytes: Option<Size>,
    ) -> anyhow::Result<()> {
        self.expose_bytes = expose_bytes;
        for number in 0..count {
            let server = spawn_compute(&self.uri(), &self.tls, expose_bytes).and_then(Server::wait);
            let what = || format!("compute server {number} does not start");
            self.compute.0.push(server.with_context(what)?);
        }
        Ok(())
    }

    /// Starts a gateway for Redis's clients, and waits until it listens.
    pub(crate) fn start_gateway(&mut self, port: u16) -> anyhow::Result<SocketAddr> {
        self.gateway_port = port;
        let started = spawn_gateway(&self.uri(), &self.tls, port).and_then(Server::wait);
        let server = started.context("the gateway for Redis's clients does not start")?;
        let address = server.address.context("it has printed no address")?;
        self.gateway_port = address.port();
        self.gateway.0.push(server);
        Ok(address)
    }

    /// Starts a gateway by the words of `redis`, at a free port, and waits until it listens. It is not replaced.
    #[cfg(feature = "lab")]
    pub(crate) fn add_gateway(&mut self, words: &[&str]) -> anyhow::Result<SocketAddr> {
        let all = [&["redis"], words, &["--address", "127.0.0.1:0", "--end-with-stdin"]].concat();
        let words = all.iter().map(OsString::from).collect();
        let server = Server::spawn(words, &self.tls, None)?.wait()?;
        let address = server.address.context("it has printed no address")?;
        self.gateway.0.push(server);
        Ok(address)
    }

    /// The addresses at which compute servers listen.
    pub(crate) fn compute_addresses(&self) -> Vec<SocketAddr> {
        self.compute.addresses()
    }

    /// Addresses of the memory servers, in the order of their numbers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.memory.addresses()
    }

    /// The address of the pool.
    pub(crate) fn uri(&self) -> String {
        MemoryServers::new(self.addresses(), self.card.clone()).uri()
    }

    /// Looks after the servers, without waiting for any: starts compute servers in place of those that have
    /// ended. Returns what has changed since the last look.
    ///
    /// # Errors
    /// The system refuses to start a process, or to tell of one.
    pub(crate) fn look(&mut self) -> anyhow::Result<Vec<Change>> {
        let mut changes = Vec::new();
        for (number, server) in (0..).zip(&mut self.memory.0) {
            if let Some(status) = server.process.try_wait().context("cannot look after it")? {
                changes.push(Change::MemoryLost(number, status));
            }
        }
        let (uri, tls, port) = (self.uri(), &self.tls, self.gateway_port);
        let expose_bytes = self.expose_bytes;
        for (number, server) in (0..).zip(&mut self.compute.0) {
            changes.extend(match server.look(|| spawn_compute(&uri, tls, expose_bytes))? {
                Watched::Same => None,
                Watched::Lost(status, pause) => Some(Change::ComputeLost(number, status, pause)),
                Watched::Back(address) => Some(Change::ComputeBack(number, address)),
            });
        }
        for server in &mut self.gateway.0 {
            changes.extend(match server.look(|| spawn_gateway(&uri, tls, port))? {
                Watched::Same => None,
                Watched::Lost(status, pause) => Some(Change::GatewayLost(status, pause)),
                Watched::Back(address) => Some(Change::GatewayBack(address)),
            });
        }
        Ok(changes)
    }
}

fn spawn_compute(pool: &str, tls: &TlsArgs, expose_bytes: Option<Size>) -> anyhow::Result<Server> {
    let mut words = ["compute", pool, "--end-with-stdin"].map(OsString::from).to_vec();
    words.extend(expose_bytes.map(|size| OsString::from(format!("--expose-bytes={}", size.0))));
    Server::spawn(words, tls, None)
}

fn spawn_gateway(pool: &str, tls: &TlsArgs, port: u16) -> anyhow::Result<Server> {
    let address = format!("127.0.0.1:{port}");
    let words = ["redis", pool, "--create", "--address", &address, "--end-with-stdin"];
    Server::spawn(words.map(OsString::from).to_vec(), tls, None)
}

/// The outcome of a look at a server that is replaced if it ends.
enum Watched {
    Same,
    /// It has ended in this way, and is to be replaced after this pause.
    Lost(ExitStatus, Duration),
    /// It was started in place of another, and listens there.
    Back(SocketAddr),
}

impl Servers {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().filter_map(|server| server.address).collect()
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

/// The port of memory server `number`; 0 for any.
fn port_of(config: &ClusterConfig, number: u16) -> Result<u16, Failure> {
    let first = config.port;
    if first == 0 {
        return Ok(0);
    }
    first.checked_add(number).ok_or_else(|| {
        Failure::usage(format!(
            "--port {first}: port {first} + {number} is above 65535, the last one"
        ))
    })
}

fn start_memory(config: &ClusterConfig, number: u16) -> anyhow::Result<Server> {
    let port = port_of(config, number)?;
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
    Server::spawn(words, &config.tls, config.card.as_ref())?.wait()
}

impl Server {
    /// Starts this program with these words.
    fn spawn(
        words: Vec<OsString>,
        tls: &TlsArgs,
        card: Option<&CardConfig>,
    ) -> anyhow::Result<Server> {
        let mut command = Command::new(env::current_exe().context("cannot find this program")?);
        // The parent process prints what begins and ends.
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
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (tell, first_line) = mpsc::channel();
        // An error is on standard error, which is ours.
        let read = move || {
            let mut line = String::new();
            if let Some(stdout) = stdout
                && BufReader::new(stdout).read_line(&mut line).is_ok()
            {
                // Nobody listens any more if the cluster ends.
                let _ = tell.send(line);
            }
        };
        thread::Builder::new()
            .name("farleaf-server".to_owned())
            .spawn(read)
            .context("cannot start a thread")?;
        let (start, pause) = (Instant::now(), Duration::ZERO);
        Ok(Server { process, address: None, first_line, stdin, start, pause, restart_at: None })
    }

    /// Looks after it: starts another in its place if its time has come.
    fn look(&mut self, spawn: impl FnOnce() -> anyhow::Result<Server>) -> anyhow::Result<Watched> {
        if let Some(restart_at) = self.restart_at {
            if restart_at <= Instant::now() {
                let pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
                *self = Server { pause, ..spawn()? };
            }
        } else if let Some(status) = self.process.try_wait().context("cannot look after it")? {
            if self.start.elapsed() > PAUSE_LONGEST {
                self.pause = Duration::ZERO;
            }
            self.restart_at = Some(Instant::now() + self.pause);
            return Ok(Watched::Lost(status, self.pause));
        } else if self.address.is_none() && self.has_told() {
            return Ok(self.address.map_or(Watched::Same, Watched::Back));
        }
        Ok(Watched::Same)
    }

    /// Waits until it says where it listens.
    fn wait(mut self) -> anyhow::Result<Server> {
        if let Ok(line) = self.first_line.recv() {
            self.address = address_in(&line);
        }
        if self.address.is_some() {
            return Ok(self);
        }
        let _ = self.process.kill();
        let status = self.process.wait().context("cannot wait for it")?;
        Err(Failure::of_process(status).into())
    }

    /// Returns whether it has printed its address.
    fn has_told(&mut self) -> bool {
        if let Ok(line) = self.first_line.try_recv() {
            self.address = address_in(&line);
        }
        self.address.is_some()
    }
}

/// The address in the line that a server prints first.
fn address_in(line: &str) -> Option<SocketAddr> {
    let told: Value = serde_json::from_str(line).ok()?;
    told["address"].as_str()?.parse().ok()
}
