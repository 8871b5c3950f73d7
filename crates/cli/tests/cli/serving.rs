//! Serving tests: metrics, health, logs, and the systemd units that start servers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Service;
use crate::processes::{signal, wait_until};
use crate::{Pool, command, farleaf, finish};

/// Status line and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: farleaf\r\nConnection: close\r\n\r\n").unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// The value of a metric, by its name with labels.
fn metric(address: &str, name: &str) -> u64 {
    let (status, body) = ask(address, "GET /metrics");
    assert!(status.contains("200"), "{status}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let line = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("there is no {name} in: {body}")).parse().unwrap()
}

impl Service {
    fn metrics(&self) -> &str {
        self.told["metrics"].as_str().unwrap()
    }
}

#[test]
fn servers_answer_for_their_metrics_and_health() {
    let options = ["--size", "64MiB", "--metrics", "127.0.0.1:0"];
    let memory = Service::start(&[&["memory"], &options[..]].concat());
    let pool = format!("tcp://{}", memory.address());
    let put = ["put", &pool, "t", "a", "1", "--create", "--engine", "dex"];
    farleaf(&put, b"").done();
    assert_eq!(metric(memory.metrics(), "farleaf_region_bytes"), 64 << 20);
    let reads = metric(memory.metrics(), "farleaf_operations_total{operation=\"read\"}");
    assert!(reads > 0);
    assert!(metric(memory.metrics(), "farleaf_network_bytes_total{direction=\"out\"}") > 0);
    assert!(metric(memory.metrics(), "farleaf_connections_let_in_total") > 0);
    assert_eq!(metric(memory.metrics(), "farleaf_connections_refused_total"), 0);
    assert_eq!(ask(memory.metrics(), "GET /healthz"), ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    assert!(ask(memory.metrics(), "GET /").0.contains("404"));
    assert!(ask(memory.metrics(), "POST /metrics").0.contains("405"));
    assert!(ask(memory.metrics(), "nonsense").0.contains("40"));

    let told = farleaf(&["stats", &pool, "--json"], b"").done().json();
    let targets = &told["remote_operations"];
    assert_eq!(targets["memory"]["reads"], told["walk"]["reads"]);
    assert_eq!(targets["memory"]["round_trips"], told["walk"]["round_trips"]);
    assert_eq!((&targets["compute"]["calls"], &targets["own"]["atomics"]), (&0.into(), &0.into()));
    let compute = ["compute", &pool, "--metrics", "127.0.0.1:0", "--expose-bytes", "1MiB"];
    let compute = Service::start(&compute);
    assert_eq!(compute.told["exposed_bytes"], 1 << 20);
    assert_eq!(metric(compute.metrics(), "farleaf_exposed_bytes"), 1 << 20);
    let target = |target: &str, operation: &str| {
        let labels = format!("{{target=\"{target}\",operation=\"{operation}\"}}");
        metric(compute.metrics(), &format!("farleaf_target_operations_total{labels}"))
    };
    assert!(target("memory", "read") > 0 && target("memory", "write") > 0);
    assert_eq!((target("compute", "read"), target("own", "atomic")), (0, 0));
    farleaf(&["get", &pool, "t", "a"], b"").done();
    assert_eq!(metric(compute.metrics(), "farleaf_tables"), 1);
    assert_eq!(metric(compute.metrics(), "farleaf_memory_servers"), 1);
    metric(compute.metrics(), "farleaf_remote_operations_total{kind=\"get\",operation=\"read\"}");
    metric(compute.metrics(), "farleaf_engine_events_total{table=\"t\",event=\"map_reads\"}");
    metric(compute.metrics(), "farleaf_cache_bytes{table=\"t\"}");
    assert_eq!(ask(compute.metrics(), "GET /healthz").1, "ok\n");
    assert!(metric(memory.metrics(), "farleaf_operations_total{operation=\"read\"}") > reads);

    // A pool that stands still makes it ill, and well again.
    signal("STOP", &memory.process);
    let is_ill = || ask(compute.metrics(), "GET /healthz").0.contains("503");
    wait_until("it is ill", is_ill);
    assert!(ask(compute.metrics(), "GET /healthz").1.contains("memory server 0"));
    signal("CONT", &memory.process);
    // Unless it has been declared dead meanwhile, and has ended.
    wait_until("it is well again, or has ended", || {
        TcpStream::connect(compute.metrics()).is_err()
            || ask(compute.metrics(), "GET /healthz").1 == "ok\n"
    });
    drop(compute);
    assert_eq!(memory.end(), Some(0));
}

#[test]
fn metrics_are_refused_at_an_address_that_is_taken() {
    let memory = Service::start(&["memory", "--size", "1MiB"]);
    let words = ["memory", "--size", "1MiB", "--end-with-stdin", "--metrics", memory.address()];
    farleaf(&words, b"").failed(3, "for metrics");
}

#[test]
fn whoever_is_refused_is_told_of_in_the_log() {
    let words = ["memory", "--size", "1MiB", "--end-with-stdin", "--json", "--log-format", "json"];
    let mut command = command(&[&words[..], &["--log-level", "info"]].concat());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(server.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    let address = told["address"].as_str().unwrap();
    // Bytes that are no greeting, and nothing at all.
    for bytes in [vec![b'x'; 64], Vec::new()] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "it is not let in");
    }
    drop(server.stdin.take());
    let ended = server.wait_with_output().unwrap();
    assert!(ended.status.success());
    let log = String::from_utf8(ended.stderr).unwrap();
    let entries: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| -> Vec<&Value> {
        entries.iter().filter(|entry| entry["message"] == message).collect()
    };
    assert_eq!((of("serves").len(), of("ends").len()), (1, 1), "{log}");
    let refused = of("refused");
    assert_eq!(refused.len(), 2, "{log}");
    assert_eq!(refused[0]["why"], "what came is not of this protocol");
    assert_eq!(refused[1]["why"], "it has ended");
    for entry in refused {
        assert_eq!(entry["level"], "WARN");
        assert!(entry["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{entry}");
    }
}

#[test]
fn systemd_hears_when_a_server_serves_and_that_it_ends() {
    let pool = Pool::missing();
    fs::create_dir_all(&pool.folder).unwrap();
    let path = pool.folder.join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let heard = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let start = |words: &[&str]| {
        let mut command = command(&[words, &["--json", "--end-with-stdin"]].concat());
        command.env("NOTIFY_SOCKET", &path);
        let service = Service::of(command);
        let said = heard();
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(said[0], "READY=1");
        assert_eq!(said[1], format!("STATUS=serves at {}", service.address()));
        service
    };
    let memory = start(&["memory", "--size", "64MiB"]);
    let address = format!("tcp://{}", memory.address());
    farleaf(&["put", &address, "t", "a", "1", "--create"], b"").done();
    let compute = start(&["compute", &address]);
    let gateway = start(&["redis", &address, "--create", "--address", "127.0.0.1:0"]);
    for service in [gateway, compute, memory] {
        assert_eq!(service.end(), Some(0));
        assert!(heard().starts_with("STOPPING=1\n"));
    }
}

#[test]
fn health_is_asked_for_by_a_command() {
    let words = ["memory", "--size", "64MiB", "--metrics", "localhost:0"];
    let memory = Service::start(&words);
    let health = |address: &str| farleaf(&["health", address], b"");
    assert_eq!(health(memory.metrics()).done().text(), "health\tok\n");
    let json = farleaf(&["health", memory.metrics(), "--json"], b"").done().json();
    assert_eq!(json, serde_json::json!({ "healthy": true }));
    // A port that speaks something else.
    health(memory.address()).failed(3, "nothing answers at");
    let pool = format!("tcp://{}", memory.address());
    farleaf(&["put", &pool, "t", "a", "1", "--create", "--engine", "dex"], b"").done();
    let compute = Service::start(&["compute", &pool, "--metrics", "127.0.0.1:0"]);
    health(compute.metrics()).done();
    signal("STOP", &memory.process);
    wait_until("the compute server is ill", || health(compute.metrics()).code == 3);
    health(compute.metrics()).failed(3, "not well: ");
    signal("CONT", &memory.process);
    drop(compute);
    let metrics = memory.metrics().to_owned();
    assert_eq!(memory.end(), Some(0));
    health(&metrics).failed(3, "memory, compute and redis do at the address of --metrics");
    health("127.0.0.1").failed(2, "neither an IP address nor a host that is known here");
}

#[test]
fn the_units_of_systemd_start_what_there_is() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    let mut count = 0;
    for unit in fs::read_dir(folder).unwrap() {
        let path = unit.unwrap().path();
        if path.extension().is_none_or(|kind| kind != "service") {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let starts = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let starts = starts.replace("%i", "0").replace("%S", "/var/lib");
        let mut words = starts.split(' ');
        assert_eq!(words.next(), Some("/usr/bin/farleaf"));
        let words: Vec<&str> = words.chain(["--help"]).collect();
        // Options before --help are read first.
        finish(command(&words), b"").done();
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn a_gateway_answers_for_its_metrics_and_makes_tables_as_asked() {
    let pool = Pool::missing();
    let shape = ["--engine", "btree", "--set", "node_bytes=4KiB"];
    let options = ["--create", "--pool-bytes", "64MiB", "--address", "127.0.0.1:0"];
    let words = [&["redis", &pool.uri()], &options[..], &shape, &["--metrics", "127.0.0.1:0"]];
    let gateway = Service::start(&words.concat());
    let mut client = TcpStream::connect(gateway.address()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(b"SET a 1\r\nGET a\r\nHSET h f 1\r\n").unwrap();
    let expected = b"+OK\r\n$1\r\n1\r\n:1\r\n";
    let mut told = vec![0; expected.len()];
    client.read_exact(&mut told).unwrap();
    assert_eq!(told, expected);
    assert_eq!(metric(gateway.metrics(), "farleaf_redis_connections"), 1);
    assert_eq!(metric(gateway.metrics(), "farleaf_redis_commands_total"), 3);
    assert_eq!(metric(gateway.metrics(), "farleaf_redis_connections_refused_total"), 0);
    assert_eq!(metric(gateway.metrics(), "farleaf_memory_servers"), 1);
    metric(gateway.metrics(), "farleaf_recoveries_total{state=\"begun\"}");
    assert_eq!(ask(gateway.metrics(), "GET /healthz").1, "ok\n");
    // Made at its first use.
    let tables = pool.run("tables", &["--json"]).done().json();
    let tables = &tables["tables"];
    assert_eq!(tables[0]["table"], "db0");
    assert_eq!(tables[0]["shape"]["node_bytes"], "4KiB");
    assert_eq!(tables[0]["content"], "records");
    assert_eq!(pool.run("get", &["db0", "a"]).done().text(), "1\n");
    pool.run("get", &["db0", "h"]).failed(2, "the key \"h\" holds a hash");
    let scan = |option: &str| pool.run("scan", &["db0", option]).done().text();
    assert_eq!((scan("--keys-only"), scan("--count")), ("a\nh\n".into(), "2\n".into()));
    assert_eq!(scan("--json"), "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"h\",\"value\":null}\n");
    let lines = pool
        .run("scan", &["db0"])
        .failed(2, "the key \"h\" holds a hash, for which no line stands");
    assert_eq!(lines.text(), "a\t1\n");
    assert_eq!(gateway.end(), Some(0));
    farleaf(&["redis", "tcp://127.0.0.1:1", "--create", "--pool-bytes", "1GiB"], b"")
        .failed(2, "have the size that they were started with");
}
