//! Memory servers: processes over files, which the driver kills and starts again.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::child::{Child, ChildKind};
use super::config::{Config, Launcher, Network};
use super::links::{Target, address_of, pool_uri};
use super::log::now_ns;
use super::round::LOOK_TIME;
use super::spec::Role;

/// Time for a memory server to listen.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// Memory servers, in the order of their numbers.
pub(super) struct Memory<'a> {
    pub(super) network: &'a Network,
    launcher: &'a Launcher,
    folder: PathBuf,
    region_bytes: u64,
    servers: Vec<Server>,
    starts: u32,
}

struct Server {
    target: Target,
    state: ServerState,
}

enum ServerState {
    /// Started at this time; its standard output goes into the file.
    Starting(Child, PathBuf, u64),
    Serving(Child),
    Gone,
}

/// Begin and end of a memory server's new start: when it was started and when it listened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    pub(super) server: usize,
    pub(super) from_ns: u64,
    pub(super) listens_ns: u64,
}

impl<'a> Memory<'a> {
    /// Starts them over new files in `folder`, and waits until they listen or `stop` is set.
    ///
    /// # Errors
    /// The system's error, or the output of a server that does not start.
    pub(super) fn start(
        config: &Config,
        network: &'a Network,
        launcher: &'a Launcher,
        folder: &Path,
        stop: &AtomicBool,
    ) -> io::Result<Memory<'a>> {
        fs::create_dir(folder)?;
        let servers = u64::from(network.memory_servers);
        let mut memory = Memory {
            network,
            launcher,
            folder: folder.to_owned(),
            region_bytes: config.pool_bytes / servers / 4096 * 4096,
            servers: Vec::new(),
            starts: 0,
        };
        for number in 0..usize::from(network.memory_servers) {
            memory.servers.push(Server { target: Target::default(), state: ServerState::Gone });
            memory.start_again(number)?;
        }
        memory.wait(stop)?;
        Ok(memory)
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Addresses at which the servers listen; none while one is away.
    pub(super) fn targets(&self) -> Vec<Target> {
        self.servers.iter().map(|server| Arc::clone(&server.target)).collect()
    }

    /// The pool's address without links; all are there.
    pub(super) fn uri(&self) -> String {
        pool_uri(self.servers.iter().filter_map(|server| address_of(&server.target)))
    }

    /// Returns whether it serves, or would if it were not stopped.
    pub(super) fn is_there(&self, number: usize) -> bool {
        matches!(self.servers[number].state, ServerState::Serving(_))
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, number: usize) {
        let server = &mut self.servers[number];
        set(&server.target, None);
        // Dropping a child kills it and waits for its end.
        server.state = ServerState::Gone;
    }

    pub(super) fn stop(&mut self, number: usize, until: Instant) {
        if let ServerState::Serving(child) = &mut self.servers[number].state {
            child.stop(until);
        }
    }

    pub(super) fn go_on(&mut self, number: usize) {
        if let ServerState::Serving(child) = &mut self.servers[number].state {
            child.go_on();
        }
    }

    /// Starts it over its file; [`Memory::look`] tells when it listens.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start_again(&mut self, number: usize) -> io::Result<()> {
        self.starts += 1;
        let name = format!("memory-{number}-{}", self.starts);
        // The names that `farleaf up --folder` gives, so that it serves what a run has left.
        let file = self.folder.join(format!("memory-{number:05}"));
        let mut words = vec!["memory".to_owned(), "--end-with-stdin".to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--server", number.to_string());
        option("--servers", self.network.memory_servers.to_string());
        option("--size", self.region_bytes.to_string());
        option("--file", file.display().to_string());
        option("--lease", format!("{}ms", self.network.lease.as_millis()));
        option("--color", "never".to_owned());
        option("--log-level", "warn".to_owned());
        words.push("--json".to_owned());
        let output = self.folder.join(format!("{name}.out"));
        let from_ns = now_ns();
        let role = Role::Command(words);
        let child = Child::start(
            self.launcher,
            &self.folder,
            name,
            ChildKind::Memory,
            role,
            Some(&output),
        )?;
        self.servers[number].state = ServerState::Starting(child, output, from_ns);
        Ok(())
    }

    /// Returns the servers that listen since the last call.
    ///
    /// # Errors
    /// The output of a server that has ended by itself.
    pub(super) fn look(&mut self) -> io::Result<Vec<Started>> {
        let mut started = Vec::new();
        for (number, server) in self.servers.iter_mut().enumerate() {
            let child = match &mut server.state {
                ServerState::Starting(child, _, _) | ServerState::Serving(child) => child,
                ServerState::Gone => continue,
            };
            if child.ended()?.is_some() {
                let said = child.last_errors();
                return Err(io::Error::other(format!("memory server {number} has ended: {said}")));
            }
            let ServerState::Starting(_, output, from_ns) = &server.state else { continue };
            let Some(address) = address_in(output)? else { continue };
            let listens_ns = now_ns();
            started.push(Started { server: number, from_ns: *from_ns, listens_ns });
            set(&server.target, Some(address));
            let state = std::mem::replace(&mut server.state, ServerState::Gone);
            if let ServerState::Starting(child, _, _) = state {
                server.state = ServerState::Serving(child);
            }
        }
        Ok(started)
    }

    fn wait(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let end = Instant::now() + START_TIME_MAX;
        while !(0..self.count()).all(|number| self.is_there(number)) {
            self.look()?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(io::Error::other(format!(
                    "memory servers do not listen after {} s",
                    START_TIME_MAX.as_secs()
                )));
            }
            thread::sleep(LOOK_TIME);
        }
        Ok(())
    }
}

fn set(target: &Mutex<Option<SocketAddr>>, address: Option<SocketAddr>) {
    *target.lock().unwrap_or_else(PoisonError::into_inner) = address;
}

/// Returns the address that it has printed, once the whole line is there.
fn address_in(output: &Path) -> io::Result<Option<SocketAddr>> {
    let said = fs::read_to_string(output)?;
    let Some((line, _)) = said.split_once('\n') else { return Ok(None) };
    let told: Option<Value> = serde_json::from_str(line).ok();
    let address = told.as_ref().and_then(|told| told["address"].as_str()?.parse().ok());
    let strange = || io::Error::other(format!("a memory server said no address: {line}"));
    address.map(Some).ok_or_else(strange)
}
