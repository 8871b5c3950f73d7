//! READs per second over TCP on loopback, beside a bare batch of the same size: a client that writes all
//! requests of a batch at once, and spins for all answers; the same bytes, and no more than that. Client
//! and server are two processes; all spin by yielding, on whatever core the system gives them.
//! The two are measured in turn, ten times; the figures are the best of each, which others on the
//! machine disturb least, and their ratio beside the median of all pairs' ratios.
//!
//! Usage: `tcp_rate [SECONDS [BYTES DEPTH]]`: seconds per row, and the only row.
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig, TcpEndpoint};
use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ServerId, Words};

const REGION_BYTES: u64 = 64 << 20;
/// Bytes of a bare request, as of ours, and of what stands in front of an answer's content.
const BARE_REQUEST: usize = 16;
const BARE_ANSWER: usize = 8;
/// Measurements of each.
const PAIRS: u32 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        Some("serve") => serve(),
        Some("bare") => bare_server(),
        seconds => {
            let seconds = seconds.map_or(Ok(1.0), str::parse)?;
            let only = arguments.map(|number| number.parse()).collect::<Result<Vec<usize>, _>>()?;
            measure(seconds, &only)
        }
    }
}

/// A child that serves until it is dropped, and its address.
struct Server(Child, SocketAddr);

impl Server {
    fn start(what: &str) -> Result<Server, Box<dyn Error>> {
        let mut child = Command::new(env::current_exe()?)
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Server(child, line.trim().parse()?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let words = Words::anonymous((REGION_BYTES / 8) as usize).ok_or("no memory")?;
    let server = MemoryServer::start(MemoryServerConfig::default(), Arc::new(words))?;
    println!("{}", server.address());
    // Until the parent has gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Answers batches: `count u32 | length u32`, then `count` requests; each gets a copy of memory.
fn bare_server() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    let memory = vec![7_u8; REGION_BYTES as usize];
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let (mut input, mut filled, mut output) = (vec![0; 64 << 10], 0, Vec::new());
        'open: loop {
            match stream.read(&mut input[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::yield_now();
                    continue;
                }
                Err(_) => break,
            }
            let mut taken = 0;
            output.clear();
            while filled - taken >= BARE_REQUEST {
                let word = |at: usize| {
                    let bytes = &input[taken + at..taken + at + 8];
                    u64::from_le_bytes(bytes.try_into().expect("8 bytes")) as usize
                };
                let (length, offset) = (word(0), word(8));
                output.extend_from_slice(&(length as u64).to_le_bytes());
                output.extend_from_slice(&memory[offset..offset + length]);
                taken += BARE_REQUEST;
            }
            input.copy_within(taken..filled, 0);
            filled -= taken;
            let mut sent = 0;
            while sent < output.len() {
                match stream.write(&output[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        std::thread::yield_now();
                    }
                    Err(_) => break 'open,
                }
            }
        }
    }
}

/// What was moved; if that is nothing, others run.
fn some(moved: std::io::Result<usize>) -> usize {
    moved.unwrap_or_else(|_| {
        std::thread::yield_now();
        0
    })
}

/// READs per second of whole batches, spinning; and the mean time of one batch.
fn bare(address: SocketAddr, depth: usize, bytes: usize, time: Duration) -> f64 {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    stream.set_nonblocking(true).expect("nonblocking");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut answer = vec![0; depth * (BARE_ANSWER + bytes)];
    let mut request = Vec::new();
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        request.clear();
        for _ in 0..depth {
            let offset = rng.u64(..(REGION_BYTES - 4096) / 64) * 64;
            request.extend_from_slice(&(bytes as u64).to_le_bytes());
            request.extend_from_slice(&offset.to_le_bytes());
        }
        let mut sent = 0;
        while sent < request.len() {
            sent += some(stream.write(&request[sent..]));
        }
        let mut filled = 0;
        while filled < answer.len() {
            filled += some(stream.read(&mut answer[filled..]));
        }
        std::hint::black_box(&answer);
        count += depth as u64;
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// READs per second of `depth` tasks, each with one READ in flight.
fn ours(endpoint: &TcpEndpoint, depth: usize, bytes: usize, time: Duration) -> f64 {
    let count = Rc::new(std::cell::Cell::new(0_u64));
    let start = Instant::now();
    for task in 0..depth {
        let (own, count) = (endpoint.clone(), Rc::clone(&count));
        endpoint.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task as u64);
            let mut buf = own.buf(bytes);
            while start.elapsed() < time {
                for _ in 0..16 {
                    let offset = rng.u64(..(REGION_BYTES - 4096) / 64) * 64;
                    buf = own.read(GlobalAddr::new(ServerId(0), offset), buf).await.expect("READ");
                    std::hint::black_box(&buf);
                    count.set(count.get() + 1);
                }
            }
        });
    }
    endpoint.executor().block_on(async {});
    count.get() as f64 / start.elapsed().as_secs_f64()
}

fn measure(seconds: f64, only: &[usize]) -> Result<(), Box<dyn Error>> {
    let time = Duration::from_secs_f64(seconds / f64::from(2 * PAIRS));
    let (server, bare_one) = (Server::start("serve")?, Server::start("bare")?);
    let fabric = Tcp::connect(TcpConfig::to([server.1]))?;
    let endpoint = fabric.endpoint()?;
    println!(
        "{:>6} {:>6} {:>12} {:>12} {:>6} {:>7}",
        "bytes", "depth", "bare/s", "ours/s", "best", "median"
    );
    for bytes in [64, 1024] {
        for depth in [1, 16, 64, 256] {
            if !only.is_empty() && only != [bytes, depth] {
                continue;
            }
            let mut pairs = Vec::new();
            for _ in 0..PAIRS {
                let bare = bare(bare_one.1, depth, bytes, time);
                pairs.push((bare, ours(&endpoint, depth, bytes, time)));
            }
            let mut ratios: Vec<f64> = pairs.iter().map(|(bare, ours)| ours / bare).collect();
            ratios.sort_by(f64::total_cmp);
            let bare = pairs.iter().map(|pair| pair.0).fold(0.0, f64::max);
            let ours = pairs.iter().map(|pair| pair.1).fold(0.0, f64::max);
            let (best, median) = (ours / bare, ratios[ratios.len() / 2]);
            println!("{bytes:>6} {depth:>6} {bare:>12.0} {ours:>12.0} {best:>6.2} {median:>7.2}");
        }
    }
    Ok(())
}
