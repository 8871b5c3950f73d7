//! Test etcd: a real etcd on free ports of this machine, which ends with the test that started it.
#![allow(dead_code, reason = "every test program uses a part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_cluster::{ClusterAddress, ClusterError, Etcd, EtcdAccess};

/// Runs etcd until standard input ends, for whatever reason.
const RUN: &str =
    "\"$@\" >/dev/null 2>&1 & server=$!; cat >/dev/null; kill -9 $server; wait $server";

/// One server of etcd.
pub(crate) struct Server {
    program: String,
    process: Option<Child>,
    client: u16,
    peer: u16,
    folder: PathBuf,
    tls: Option<ServerTls>,
    access: EtcdAccess,
}

/// Files of an etcd that speaks TLS.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Authority that must have signed clients' certificates, if etcd asks for them.
    pub(crate) clients: Option<PathBuf>,
}

/// Starts etcd. If this machine has none, prints that and returns `None`.
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
    let (tls, access) = (None, EtcdAccess::default());
    let mut server = Server { program, process: None, client, peer, folder, tls, access };
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
        Etcd::with([self.endpoint()], &self.access)
    }

    /// Starts it anew with TLS; clients use `access`.
    pub(crate) fn restart_with(&mut self, tls: ServerTls, access: EtcdAccess) {
        (self.tls, self.access) = (Some(tls), access);
        self.restart();
    }

    /// Adds the users `root` and `names`, who may read and write the keys of cluster `c`. The password of
    /// each is its name. Call it while etcd speaks plain HTTP.
    pub(crate) fn turn_users_on(&self, names: &[&str]) {
        // From "/farleaf/c/" up to "/farleaf/c0".
        let keys = r#""key":"L2ZhcmxlYWYvYy8=","range_end":"L2ZhcmxlYWYvYzA=""#;
        self.tell("role/add", r#"{"name":"some"}"#);
        let right = format!(r#"{{"permType":"READWRITE",{keys}}}"#);
        self.tell("role/grant", &format!(r#"{{"name":"some","perm":{right}}}"#));
        self.tell("role/add", r#"{"name":"root"}"#);
        self.add_user("root", "root");
        names.iter().for_each(|name| self.add_user(name, "some"));
        self.tell("enable", "{}");
    }

    fn add_user(&self, name: &str, role: &str) {
        self.tell("user/add", &format!(r#"{{"name":"{name}","password":"{name}"}}"#));
        self.tell("user/grant", &format!(r#"{{"user":"{name}","role":"{role}"}}"#));
    }

    /// Adds one more user, once users are turned on.
    pub(crate) fn add_another_user(&self) {
        let answer = self.tell("authenticate", r#"{"name":"root","password":"root"}"#);
        let token = answer.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next());
        let header = format!("Authorization: {}\r\n", token.unwrap());
        self.tell_as(&header, "user/add", r#"{"name":"another","password":"another"}"#);
    }

    fn tell(&self, what: &str, body: &str) -> String {
        self.tell_as("", what, body)
    }

    /// Sends a request about users by plain HTTP; it must succeed.
    fn tell_as(&self, header: &str, what: &str, body: &str) -> String {
        let mut socket = TcpStream::connect(self.endpoint()).unwrap();
        let head = format!("POST /v3/auth/{what} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
        socket.write_all(format!("{head}{header}\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert!(answer.lines().next().unwrap().contains(" 200 "), "{what}: {answer}");
        answer
    }

    /// Kills it. Its data stays.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
    }

    /// Stops it (`STOP`), or resumes it (`CONT`).
    pub(crate) fn signal(&self, name: &str) {
        let children = self.children();
        let (etcd, _) = children.iter().find(|(_, program)| program != "cat").unwrap();
        let signalled = Command::new("kill").args(["-s", name, etcd]).status();
        assert!(signalled.unwrap().success());
    }

    /// Number and program of each running child of the shell, in the order of their start: etcd and `cat`.
    fn children(&self) -> Vec<(String, String)> {
        let shell = self.process.as_ref().unwrap().id();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        let children = children.unwrap();
        let running = children.split_whitespace().filter_map(|child| {
            let program = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
            // One that has ended, and is not waited for, has no arguments.
            let arguments = std::fs::read(format!("/proc/{child}/cmdline")).ok()?;
            (!arguments.is_empty()).then(|| (child.to_owned(), program.trim().to_owned()))
        });
        running.collect()
    }

    /// Starts it over its data, at the same address, and waits until it answers.
    ///
    /// It ends at once if another program has one of its ports, as connections of other tests may while it is away. Then
    /// it is started again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.spawn();
        let (etcd, end) = (self.client(), Instant::now() + Duration::from_secs(30));
        // A request to all servers succeeds only if there is a leader.
        while let Err(error @ (ClusterError::Unreachable { .. } | ClusterError::NotEtcd { .. })) =
            etcd.get("started")
        {
            assert!(Instant::now() < end, "etcd does not start: {error}");
            thread::sleep(Duration::from_millis(20));
            // The shell starts `cat` after etcd.
            if matches!(self.children().as_slice(), [(_, program)] if program == "cat") {
                self.kill();
                self.spawn();
            }
        }
    }

    fn spawn(&mut self) {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client);
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let mut command = Command::new("sh");
        command
            .args(["-c", RUN, "etcd", &self.program, "--name", "test", "--data-dir"])
            .arg(&self.folder)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.certificate).arg("--key-file").arg(&tls.key);
            if let Some(ca) = &tls.clients {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(ca);
            }
        }
        let process = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        self.process = Some(process);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until `is_so`, at most `limit`; returns the time that it took.
#[track_caller]
pub(crate) fn eventually(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}
