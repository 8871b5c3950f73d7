//! Stranger tests: servers refuse bad input, log the reason, and go on serving others.
//!
//! They refuse within a bounded time and with a bounded amount of memory.
//!
//! There are no region keys over TCP: an address is an offset in the one region of a server, checked against
//! its length, and a greeting names the server that is meant.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf::{Farleaf, Table, TableOptions};
use farleaf_fabric::tcp::Tls;
use serde_json::Value;

use crate::authority::Authority;
use crate::processes::wait_until;
use crate::{command, farleaf};

/// A stranger has 5 s to greet, and is looked at every second.
const GREETING_LIMIT: Duration = Duration::from_secs(8);
/// No operation of others takes longer, on a machine that may be busy.
const SLOWEST_LIMIT: Duration = Duration::from_secs(3);
/// By so much the server's memory may grow while others send it what they like.
const GROWTH_LIMIT: u64 = 64 << 20;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// A server, and its log as it comes.
struct Target {
    process: Child,
    /// Its end ends the command.
    _stdin: ChildStdin,
    address: String,
    log: Arc<Mutex<Vec<Value>>>,
}

impl Target {
    /// A memory server.
    fn start(options: &[&str]) -> Target {
        Target::serve(&[&["memory", "--size", "64MiB"], options].concat())
    }

    fn serve(words: &[&str]) -> Target {
        let log = ["--end-with-stdin", "--json", "--log-format", "json", "--log-level", "info"];
        let mut process = command(&[words, &log].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let log = Arc::default();
        keep(process.stderr.take().unwrap(), Arc::clone(&log));
        let (stdin, address) = (process.stdin.take().unwrap(), told["address"].as_str().unwrap());
        Target { _stdin: stdin, address: address.to_owned(), process, log }
    }

    fn uri(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Why connections were refused, or closed, so far.
    fn reasons(&self, message: &str) -> Vec<String> {
        let log = self.log.lock().unwrap();
        let entries = log.iter().filter(|entry| entry["message"] == message);
        entries.map(|entry| entry["why"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until as many were refused, or closed, for that reason.
    fn await_reasons(&self, message: &str, why: &str, count: usize) {
        let end = Instant::now() + GREETING_LIMIT;
        let is_it = |told: &&String| told.contains(why);
        while self.reasons(message).iter().filter(is_it).count() < count {
            assert!(Instant::now() < end, "{message}, {why}: {:?}", self.log.lock().unwrap());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Bytes of memory that it has.
    fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    fn knock(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(GREETING_LIMIT)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// A connection that has been let in.
    fn enter(&self, who: u64) -> TcpStream {
        let mut stream = self.knock(&hello(2, who, 0, 1));
        let mut welcome = [0; 64];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!((&welcome[..8], welcome[12]), (&b"FarleafT"[..], 0), "let in");
        stream
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn keep(from: ChildStderr, log: Arc<Mutex<Vec<Value>>>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            log.lock().unwrap().push(serde_json::from_str(&line).unwrap());
        }
    });
}

/// Another client, who works all the while.
struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Duration)>,
}

impl Witness {
    fn start(uri: &str, tls: Option<Tls>) -> Witness {
        let builder = Farleaf::builder().create(true);
        let builder = if let Some(tls) = tls { builder.tls(tls) } else { builder };
        let db = builder.open(uri).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut count, mut slowest) = (0_u32, Duration::ZERO);
            while !stopped.load(Ordering::SeqCst) {
                slowest = slowest.max(operation(&table, count));
                count += 1;
            }
            drop(table);
            db.close().unwrap();
            (count, slowest)
        });
        Witness { stop, thread }
    }

    /// All its operations were answered, and none late.
    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        let (count, slowest) = self.thread.join().unwrap();
        assert!(count > 100, "{count} operations");
        assert!(slowest < SLOWEST_LIMIT, "one of {count} operations took {slowest:?}");
    }
}

fn operation(table: &Table, number: u32) -> Duration {
    let key = (number / 2 % 500).to_be_bytes();
    let from = Instant::now();
    match number % 2 {
        0 => drop(table.insert(key, number.to_be_bytes()).unwrap()),
        _ => assert_eq!(table.get(key).unwrap(), Some((number - 1).to_be_bytes().to_vec())),
    }
    from.elapsed()
}

fn hello(version: u8, who: u64, server: u16, servers: u16) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"FarleafT");
    bytes[8] = version;
    bytes[16..24].copy_from_slice(&who.to_le_bytes());
    bytes[24..26].copy_from_slice(&server.to_le_bytes());
    bytes[26..28].copy_from_slice(&servers.to_le_bytes());
    bytes
}

fn request(verb: u8, offset: u64, length: u32) -> Vec<u8> {
    [&[verb, 0, 0, 0][..], &length.to_le_bytes(), &offset.to_le_bytes()].concat()
}

/// Reads until the other side has closed; how much came.
fn read_to_end(stream: &mut TcpStream) -> usize {
    let (mut count, mut bytes) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return count,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("it is not closed: {error}"),
        }
    }
}

#[test]
fn whoever_sends_nonsense_or_nothing_is_refused_and_harms_nobody() {
    let server = Target::start(&["--lease", "200ms"]);
    let witness = Witness::start(&server.uri(), None);
    thread::sleep(Duration::from_millis(200));
    let before = server.resident_bytes();
    // Those who do not go on: they are waited for at the end.
    let mut silent = server.knock(b"");
    let mut half = server.knock(&hello(2, 7, 0, 1)[..63]);
    let mut deaf = server.enter(8);
    deaf.write_all(&request(READ, 0, 1 << 20).repeat(400)).unwrap();
    let mut half_a_write = server.enter(9);
    half_a_write.write_all(&[&request(WRITE, 64, 1 << 20)[..], &[1; 10]].concat()).unwrap();

    let tls_hello = [&[0x16, 3, 1, 2, 0, 1][..], &[0; 58]].concat();
    for garbage in [&[b'x'; 64][..], &tls_hello, &b"GET / HTTP/1.1\r\n".repeat(4)] {
        assert_eq!(read_to_end(&mut server.knock(garbage)), 0, "closed without a word");
    }
    server.await_reasons("refused", "what came is not of this protocol", 3);
    for greeting in [hello(99, 7, 0, 1), hello(2, 7, 5, 9)] {
        assert_eq!(read_to_end(&mut server.knock(&greeting)), 64, "told why");
    }
    server.await_reasons("refused", "another version of the protocol", 1);
    server.await_reasons("refused", "server of another number", 1);
    // Let in, and then nonsense.
    let mut guest = server.enter(10);
    guest.write_all(&request(0xee, 0, 0)).unwrap();
    assert_eq!(read_to_end(&mut guest), 0);
    server.await_reasons("closed", "what came is not of this protocol", 1);
    // Memory that there is not: the operation is refused, and the connection goes on.
    let mut guest = server.enter(11);
    guest.write_all(&[request(READ, 1 << 47, 8), request(READ, 0, 8)].concat()).unwrap();
    let mut answers = [0; 8 + 8 + 8];
    guest.read_exact(&mut answers).unwrap();
    assert!(answers[0] != 0 && answers[8] == 0, "{answers:?}");

    assert_eq!(read_to_end(&mut silent) + read_to_end(&mut half), 0);
    server.await_reasons("refused", "nothing was heard of it for too long", 2);
    assert_eq!(read_to_end(&mut half_a_write), 0);
    // It has taken nothing of 400 MiB so far; the server held a few of them.
    server.await_reasons("closed", "nothing was heard of it for too long", 3);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_LIMIT, "{grown} bytes");
    assert!(read_to_end(&mut deaf) < 64 << 20, "what was on its way");
    witness.end();
}

#[test]
fn who_has_no_certificate_or_that_of_others_is_refused_and_harms_nobody() {
    let (authority, others) = (Authority::new(), Authority::new());
    let ours = authority.files("all", "127.0.0.1");
    let theirs = others.files("others", "127.0.0.1");
    let flags = |files: &farleaf_fabric::tcp::TlsFiles| -> Vec<String> {
        let named = [("--tls-ca", &ours.ca), ("--tls-cert", &files.certificate)];
        let named = named.into_iter().chain([("--tls-key", &files.key)]);
        named.flat_map(|(flag, file)| [flag.to_owned(), file.display().to_string()]).collect()
    };
    let (own, foreign) = (flags(&ours), flags(&theirs));
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let server = Target::start(&own);
    let witness = Witness::start(&server.uri(), Some(Tls::load(&ours).unwrap()));
    thread::sleep(Duration::from_millis(200));
    let before = server.resident_bytes();
    let mut half = server.knock(&[0x16, 3, 1, 2, 0, 1]);
    // No TLS, no certificate of those who are trusted.
    read_to_end(&mut server.knock(&hello(2, 7, 0, 1)));
    server.await_reasons("refused", "", 1);
    let uri = server.uri();
    farleaf(&["tables", &uri], b"").failed(3, "it accepts TLS only");
    let refused = server.reasons("refused").len();
    farleaf(&[&["tables", &uri][..], &foreign].concat(), b"").failed(3, "ertificate");
    server.await_reasons("refused", "", refused + 1);
    farleaf(&[&["tables", &uri][..], &own].concat(), b"").done();
    assert_eq!(read_to_end(&mut half), 0);
    server.await_reasons("refused", "nothing was heard of it for too long", 1);
    let reasons = server.reasons("refused");
    assert!(reasons.iter().all(|why| !why.is_empty()), "{reasons:?}");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_LIMIT, "{grown} bytes");
    witness.end();
}

/// More than the server takes: those beyond are closed at once, the others when they do not greet.
#[test]
fn ten_thousand_connections_harm_nobody() {
    const COUNT: usize = 10_000;
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let most = files.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX);
    if most < COUNT + 500 {
        eprintln!("skipped: this process may open {most} files, and needs {COUNT} (ulimit -n)");
        return;
    }
    let server = Target::start(&[]);
    let witness = Witness::start(&server.uri(), None);
    thread::sleep(Duration::from_millis(200));
    let before = server.resident_bytes();
    let mut crowd = Vec::new();
    for _ in 0..COUNT {
        crowd.push(TcpStream::connect(&server.address).unwrap());
    }
    // For want of room, or, where connecting takes them long, of a greeting.
    server.await_reasons("refused", "", 1);
    let known = ["as many connections", "nothing was heard of it for too long"];
    let reasons = server.reasons("refused");
    assert!(reasons.iter().all(|why| known.iter().any(|it| why.contains(it))), "{reasons:?}");
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_LIMIT, "{grown} bytes for {COUNT} connections");
    for stream in &mut crowd {
        stream.set_read_timeout(Some(GREETING_LIMIT)).unwrap();
        assert_eq!(read_to_end(stream), 0);
    }
    // There is room again, and the log was not filled by them.
    drop(Farleaf::open(&server.uri()).unwrap());
    let told = server.reasons("refused").len();
    assert!((1..2_000).contains(&told), "{told} entries for {COUNT} connections");
    witness.end();
}

/// The same of a compute server, whom others ask for the keys that it has.
#[test]
fn a_compute_server_refuses_strangers_and_answers_others() {
    let memory = Target::start(&[]);
    let uri = memory.uri();
    let put = ["put", &uri, "d", "key", "value", "--create", "--engine", "dex"];
    farleaf(&put, b"").done();
    let server = Target::serve(&["compute", &uri]);
    let show = ["repartition", &uri, "d", "--json"];
    wait_until("it has the table", || {
        farleaf(&show, b"").done().json()["partitions"][0]["owner"].is_string()
    });
    let before = server.resident_bytes();
    assert_eq!(read_to_end(&mut server.knock(&[b'x'; 64])), 0, "closed without a word");
    server.await_reasons("refused", "what came is not of this protocol", 1);
    // A greeting to a memory server is answered, as one that went to the wrong server, and the connection closed.
    assert_eq!(read_to_end(&mut server.knock(&hello(2, 7, 0, 1))), 64, "an answer of 64 bytes");
    let mut silent = server.knock(b"");
    let mut half = server.knock(&hello(2, 7, 0, 1)[..8]);
    let crowd: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    for number in 0..5 {
        let from = Instant::now();
        assert_eq!(farleaf(&["get", &uri, "d", "key"], b"").done().text(), "value\n", "{number}");
        assert!(from.elapsed() < GREETING_LIMIT, "{:?}", from.elapsed());
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_LIMIT, "{grown} bytes");
    assert_eq!(read_to_end(&mut silent) + read_to_end(&mut half), 0);
    server.await_reasons("refused", "nothing was heard of it for too long", 1);
    drop(crowd);
    // One in a second is told.
    let told = server.reasons("refused").len();
    assert!(told < 60, "{told} entries");
}
