//! A real etcd for tests, on free ports of this machine, which ends with whoever has started it.
#![allow(dead_code, reason = "every test program uses a part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::{ClusterAddress, Etcd};

/// Runs etcd until standard input ends, however that comes about.
const RUN: &str =
    "\"$@\" >/dev/null 2>&1 & server=$!; cat >/dev/null; kill -9 $server; wait $server";

/// One server of etcd.
pub(crate) struct Server {
    program: String,
    process: Option<Child>,
    client: u16,
    peer: u16,
    folder: PathBuf,
}

/// Starts etcd. `None` if this machine has none, which is said.
pub(crate) fn start(test: &str) -> Option<Server> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let program = std::env::var("FARLEAF_ETCD").unwrap_or_else(|_| "etcd".to_owned());
    if Command::new(&program).arg("--version").output().is_err() {
        eprintln!("{test}: skipped: no etcd here (Debian: etcd-server; `make setup` installs it)");
        return None;
    }
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = parent.join(format!("farleaf-etcd-{}-{count}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let listeners = [0; 2].map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let [client, peer] = listeners.map(|listener| listener.local_addr().unwrap().port());
    let mut server = Server { program, process: None, client, peer, folder };
    server.restart();
    Some(server)
}

impl Server {
    /// Its address for clients.
    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    pub(crate) fn address(&self, name: &str) -> ClusterAddress {
        ClusterAddress::new([self.endpoint()], name).unwrap()
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        self.address(name).to_string()
    }

    pub(crate) fn client(&self) -> Etcd {
        Etcd::new([self.endpoint()])
    }

    /// Kills it. Its data stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
    }

    /// Stops it (`STOP`), or lets it go on (`CONT`).
    pub(crate) fn signal(&self, name: &str) {
        let shell = self.process.as_ref().unwrap().id();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        // The one that is not `cat`.
        let children = children.unwrap();
        let etcd = children.split_whitespace().find(|child| {
            let program = std::fs::read_to_string(format!("/proc/{child}/comm"));
            program.is_ok_and(|program| program.trim() != "cat")
        });
        let signalled = Command::new("kill").args(["-s", name, etcd.unwrap()]).status();
        assert!(signalled.unwrap().success());
    }

    /// Starts it over the data that it has, where it was, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.client), url(self.peer));
        let process = Command::new("sh")
            .args(["-c", RUN, "etcd", &self.program, "--name", "test", "--data-dir"])
            .arg(&self.folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(process);
        let (etcd, end) = (self.client(), Instant::now() + Duration::from_secs(30));
        // What is asked of all has a leader to answer.
        while let Err(error) = etcd.get("started") {
            assert!(Instant::now() < end, "etcd does not start: {error}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until `is_so`, at most `limit`; how long it took.
#[track_caller]
pub(crate) fn eventually(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}
