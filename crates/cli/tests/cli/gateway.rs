//! Gateway tests: `redis` and `up --redis` as processes, what they refuse, and how they end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_gateway::new_token;

use crate::cluster::Service;
use crate::processes::{signal, wait_until};
use crate::{Pool, command, farleaf, finish};

/// A client that sends lines and reads replies of one line.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn connect(address: &str) -> Redis {
        Redis::try_connect(address).unwrap()
    }

    fn try_connect(address: &str) -> std::io::Result<Redis> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Redis(BufReader::new(socket)))
    }

    fn say(&mut self, line: &str) -> String {
        self.try_say(line).unwrap()
    }

    fn try_say(&mut self, line: &str) -> std::io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes())?;
        let mut reply = String::new();
        self.0.read_line(&mut reply)?;
        if let Some(bytes) = reply.strip_prefix('$').and_then(|it| it.trim().parse::<usize>().ok())
        {
            let mut value = vec![0; bytes + 2];
            self.0.read_exact(&mut value)?;
            reply = String::from_utf8_lossy(&value).into_owned();
        }
        Ok(reply.trim().to_owned())
    }
}

fn gateway(words: &[&str]) -> Service {
    Service::start(&[&["redis"], words, &["--address", "127.0.0.1:0"]].concat())
}

fn scratch(name: &str, text: &str) -> (Pool, PathBuf) {
    let folder = Pool::missing();
    fs::create_dir_all(&folder.folder).unwrap();
    let path = folder.folder.join(name);
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_gateway_serves_and_ends_in_order() {
    let pool = Pool::new();
    pool.run("put", &["t", "ada", "1815"]).done();
    let service = gateway(&[&pool.uri(), "--table", "t", "--metrics", "127.0.0.1:0"]);
    assert_eq!(service.told["tables"][0]["table"], "t");
    let mut redis = Redis::connect(service.address());
    assert_eq!(redis.say("GET ada"), "1815");
    assert_eq!(redis.say("SET alan 1912"), "+OK");
    assert_eq!(pool.run("get", &["t", "alan"]).done().text(), "1912\n");
    let mut metrics = TcpStream::connect(service.told["metrics"].as_str().unwrap()).unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut told = String::new();
    metrics.read_to_string(&mut told).unwrap();
    assert!(told.contains("farleaf_redis_connections 1\n"), "{told}");
    assert!(told.contains("farleaf_redis_commands_total 2\n"), "{told}");
    assert_eq!(service.end(), Some(0));
    assert_eq!(redis.try_say("PING").unwrap_or_default(), "");
    // Nothing is left behind, and the pool is in order.
    pool.run("verify", &["--exclusive"]).done();
}

#[test]
fn tables_are_made_if_that_is_asked_for() {
    let pool = Pool::new();
    let uri = pool.uri();
    farleaf(&["redis", &uri, "--table", "tt"], b"").failed(8, "did you mean \"t\"?");
    farleaf(&["redis", &uri], b"").failed(2, "none of the tables db0 to db15");
    farleaf(&["redis", &uri, "--table", "t", "--table", "t"], b"").failed(2, "given twice");
    farleaf(&["redis", &uri, "--create", "--engine", "btre"], b"").failed(2, "\"btree\"");
    farleaf(&["redis", &uri, "--create", "--table", "t", "--engine", "dart"], b"")
        .failed(2, "was made with --engine btree");
    farleaf(&["redis", &uri, "--table", "t", "--set", "cach=1MiB"], b"").failed(2, "cach");
    farleaf(&["redis", &Pool::missing().uri()], b"").failed(9, "--create makes one");
    let service =
        gateway(&[&uri, "--create", "--table", "t", "--table", "new", "--engine", "btree"]);
    let mut redis = Redis::connect(service.address());
    assert_eq!(redis.say("SELECT 1"), "+OK");
    assert_eq!(redis.say("SET a 1"), "+OK");
    assert_eq!(pool.run("get", &["new", "a"]).done().text(), "1\n");
}

#[test]
fn addresses_that_others_reach_take_users_and_tls() {
    let (_folder, users) = scratch("users.toml", &user("app", "read", "t"));
    let users = users.to_str().unwrap();
    let public = ["redis", "mem:", "--address", "0.0.0.0:0"];
    farleaf(&public, b"")
        .failed(2, "without users (--users) and TLS (--client-cert, --client-key)");
    let with_users = [&public[..], &["--users", users]].concat();
    farleaf(&with_users, b"").failed(2, "without TLS (--client-cert, --client-key)");
    farleaf(&["redis", "mem:", "--address", "nonsense"], b"").failed(2, "is not a network address");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    farleaf(&["redis", "mem:", "--address", &address], b"")
        .failed(3, &format!("cannot listen at {address}"));
    let service = Service::start(&[&public[..], &["--insecure-public"]].concat());
    let port = service.address().split(':').nth(1).unwrap();
    assert_eq!(Redis::connect(&format!("127.0.0.1:{port}")).say("PING"), "+PONG");
    let authority = crate::authority::Authority::new();
    let files = authority.files("gateway", "gateway.example");
    let (certificate, key) = (files.certificate.to_str().unwrap(), files.key.to_str().unwrap());
    let tls = ["--client-cert", certificate, "--client-key", key];
    let with_tls = [&public[..], &tls].concat();
    farleaf(&with_tls, b"").failed(2, "without users (--users):");
    let both = Service::start(&[&with_users[..], &tls, &["--create"]].concat());
    assert_eq!(both.end(), Some(0));
    farleaf(&["redis", "mem:", "--client-cert", certificate, "--client-key", "/none"], b"")
        .failed(2, "/none");
    farleaf(&["redis", "mem:", "--client-cert", certificate], b"").failed(2, "--client-key");
}

fn user(name: &str, rights: &str, table: &str) -> String {
    let (_, hash) = new_token().unwrap();
    format!(
        "[[user]]\nname = \"{name}\"\ntoken_sha256 = \"{hash}\"\ntables = [\"{table}\"]\nrights = \"{rights}\"\n"
    )
}

#[test]
fn users_have_the_tables_of_their_file() {
    let token = farleaf(&["redis", "token", "--json"], b"").done().json();
    let (token, hash) = (token["token"].as_str().unwrap(), token["token_sha256"].as_str().unwrap());
    let text = |rights: &str| {
        format!(
            "[[user]]\nname = \"app\"\ntoken_sha256 = \"{hash}\"\ntables = [\"orders\"]\nrights = \"{rights}\"\n"
        )
    };
    let (_folder, path) = scratch("users.toml", &text("write"));
    let users = path.to_str().unwrap();
    let service = gateway(&["mem:", "--create", "--users", users]);
    assert_eq!(service.told["tables"][0]["table"], "orders");
    let mut redis = Redis::connect(service.address());
    assert_eq!(redis.say("PING"), "-NOAUTH Authentication required.");
    assert_eq!(redis.say(&format!("AUTH {token}")), "+OK");
    assert_eq!(redis.say("SET a 1"), "+OK");
    // The file is read again; one that cannot be used changes nothing.
    fs::write(&path, "[[user]\n").unwrap();
    thread::sleep(Duration::from_millis(1_200));
    assert_eq!(redis.say("SET a 2"), "+OK");
    fs::write(&path, text("read")).unwrap();
    wait_until("it may only read", || redis.say("SET a 3").starts_with("-NOPERM"));
    assert!(["2", "3"].contains(&&*redis.say("GET a")));
    drop(service);
    for (text, code, words) in [
        (text("wriet"), 2, "did you mean \"write\"?"),
        (text("write").replace("tables", "table"), 2, "did you mean \"tables\"?"),
        (format!("{}{}", text("read"), text("read").replace("app", "web")), 2, "the same token"),
        (text("write").replace("orders", "odrers"), 8, "odrers"),
    ] {
        fs::write(&path, text).unwrap();
        let pool = Pool::new();
        pool.load("orders", &[], b"").done();
        farleaf(&["redis", &pool.uri(), "--users", users], b"").failed(code, words);
    }
    farleaf(&["redis", "mem:", "--users", "/none"], b"").failed(7, "/none");
}

/// With 64 open files the gateway says how many clients it takes, and tells the others.
#[test]
fn few_open_files_leave_few_connections() {
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_farleaf");
    let line = "ulimit -n 64; exec \"$0\" redis mem: --create --address 127.0.0.1:0 --json";
    shell.args(["-c", line, program]).env("FARLEAF_CONFIG", "");
    let mut process = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = told["address"].as_str().unwrap();
    let mut all: Vec<Redis> = (0..80).map(|_| Redis::connect(address)).collect();
    let mut served = 0;
    for redis in &mut all {
        match redis.try_say("PING").unwrap_or_default().as_str() {
            "+PONG" => served += 1,
            "-ERR max number of clients reached" | "" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(served, 32);
    drop(all);
    wait_until("it serves again", || {
        Redis::connect(address).try_say("PING").is_ok_and(|reply| reply == "+PONG")
    });
    signal("INT", &process);
    let output = process.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    assert!(
        err.contains("at most 32 connections at a time, because the limit of open files"),
        "{err}"
    );
}

/// Ctrl-C ends it in order while it waits for a pool, opens it, and serves.
#[test]
fn it_ends_at_every_moment() {
    let waits = ["redis", "tcp://127.0.0.1:1", "--wait", "60s", "--address", "127.0.0.1:0"];
    let pool = Pool::missing();
    let uri = pool.uri();
    let makes = ["redis", &uri, "--create", "--pool-bytes", "64MiB", "--address", "127.0.0.1:0"];
    for (words, after) in [
        (&waits[..], 300),
        (&makes[..], 20),
        (&makes[..], 40),
        (&makes[..], 60),
        (&makes[..], 80),
        (&makes[..], 120),
        (&makes[..], 500),
    ] {
        let process = command(words).spawn().unwrap();
        thread::sleep(Duration::from_millis(after));
        // A job in the background of a script ignores INT until the command listens for it.
        signal("TERM", &process);
        let began = Instant::now();
        let output = process.wait_with_output().unwrap();
        assert!(began.elapsed() < Duration::from_secs(15));
        let err = String::from_utf8_lossy(&output.stderr);
        // Before it listens for signals it ends by them.
        let code = output.status.code();
        assert!(
            code == Some(0) || code.is_none() && after < 300,
            "{words:?}, {after}: {code:?} {err}"
        );
    }
    let service = gateway(&[&uri, "--create", "--pool-bytes", "64MiB"]);
    assert_eq!(Redis::connect(service.address()).say("SET a 1"), "+OK");
    assert_eq!(service.end(), Some(0));
    pool.run("verify", &["--exclusive", "--wait", "20s"]).done();
}

/// A full pool refuses what takes room, and serves the rest.
#[test]
fn a_full_pool_is_told() {
    let pool = Pool::missing();
    let service = gateway(&[&pool.uri(), "--create", "--pool-bytes", "64MiB", "--table", "t"]);
    let mut redis = Redis::connect(service.address());
    let value = "v".repeat(30_000);
    let mut keys = 0;
    let told = loop {
        let reply = redis.say(&format!("SET key{keys} {value}"));
        if reply != "+OK" {
            break reply;
        }
        keys += 1;
        assert!(keys < 10_000, "it is never full");
    };
    assert!(told.starts_with("-OOM the pool has no memory left: "), "{told}");
    assert_eq!(redis.say("GET key0"), value);
    assert_eq!(redis.say("DEL key0"), ":1");
    assert_eq!(service.end(), Some(0));
    assert_eq!(pool.run("count", &["t"]).done().text().trim(), (keys - 1).to_string());
}

/// A gateway that stood still and was declared dead opens the pool again.
#[test]
fn a_gateway_that_was_declared_dead_comes_back() {
    let memory = Service::start(&["memory", "--size", "64MiB", "--lease", "1s"]);
    let pool = format!("tcp://{}", memory.address());
    let service = gateway(&[&pool, "--create", "--table", "t"]);
    let mut redis = Redis::connect(service.address());
    assert_eq!(redis.say("SET a 1"), "+OK");
    signal("STOP", &service.process);
    thread::sleep(Duration::from_millis(1_500));
    farleaf(&["put", &pool, "t", "b", "2", "--wait", "20s"], b"").done();
    farleaf(&["stats", &pool, "--exclusive", "--wait", "20s"], b"").done();
    signal("CONT", &service.process);
    wait_until("it serves again", || {
        let reply = redis.say("GET b");
        assert!(
            reply == "2" || reply.starts_with("-LOADING") || reply.starts_with("-TRYAGAIN"),
            "{reply}"
        );
        reply == "2"
    });
    assert_eq!(redis.say("GET a"), "1");
    assert_eq!(redis.say("SET a 3"), "+OK");
    assert_eq!(service.end(), Some(0));
}

#[test]
fn up_starts_a_gateway_and_replaces_it() {
    let service = Service::up(&["--redis", "0"]);
    let address = service.told["redis"].as_str().unwrap().to_owned();
    let mut redis = Redis::connect(&address);
    assert_eq!(redis.say("SET a 1"), "+OK");
    let told = redis.say("INFO server");
    let id = told.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().to_owned();
    Command::new("kill").args(["-9", &id]).status().unwrap();
    wait_until("another gateway serves at the same address", || {
        Redis::try_connect(&address)
            .and_then(|mut redis| redis.try_say("GET a"))
            .is_ok_and(|reply| reply == "1")
    });
    assert_eq!(service.end(), Some(0));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    finish(command(&["up", "--pool-bytes", "64MiB", "--redis", &port]), b"")
        .failed(3, "the gateway for Redis's clients does not start");
}

/// Idle connections, each of which has sent 10 KB and received 20 KB: the resident memory of the process grows by at most
/// 2 KiB for each. The pool lies in the same memory: they change nothing, and there is no sweep, whose thread takes
/// memory of its own.
#[test]
fn idle_connections_take_little() {
    const CONNECTIONS: usize = 400;
    let service = gateway(&["mem:", "--create", "--sweep", "0"]);
    let resident = || -> usize {
        let path = format!("/proc/{}/statm", service.process.id());
        let told = fs::read_to_string(path).unwrap();
        told.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let value = "v".repeat(10_000);
    let mut redis = Redis::connect(service.address());
    assert_eq!(redis.say(&format!("SET k {value}")), "+OK");
    let connect = |count: usize| -> Vec<Redis> {
        let mut all: Vec<_> = (0..count).map(|_| Redis::connect(service.address())).collect();
        for redis in &mut all {
            assert_eq!(redis.say(&format!("ECHO {value}")), value);
            assert_eq!(redis.say("GET k"), value);
        }
        all
    };
    let first = connect(20);
    let before = resident();
    let all = connect(CONNECTIONS);
    let each = (resident().saturating_sub(before)) / CONNECTIONS;
    println!("{each} bytes for each idle connection");
    assert!(each <= 2048, "{each} bytes");
    drop((first, all));
}
