//! TCP read rate: compares READs on loopback with a bare client and server that only move bytes.
//!
//! The bare client writes all requests of a batch at once and spins for all answers. The bare server
//! copies each answer out of its memory. Both sides use the same bytes per request and answer, and the
//! same kind of memory. Client and server are two processes, each on a core of its own if there are
//! two.
//!
//! `cargo run --profile bench -p farleaf-fabric --example tcp_rate [SECONDS [BYTES DEPTH]]`: seconds
//! per row, and the only row. Every row alternates between bare, a `TcpEndpoint` and an `AnyEndpoint`,
//! which stores use, in rounds of 20 ms. Each side begins in turn. Figures are medians of the rounds,
//! ratios medians of the ratios to the bare round of the same turn. At depth 1 a ratio is that of
//! times, else of rates. The last row shows the processor time of an idle memory server.
//!
//! `tcp_rate count OPS BYTES DEPTH [ADDRESS]`: does OPS READs and reads no clock, for counting
//! instructions. ADDRESS is that of a `tcp_rate serve`.
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use std::cell::Cell;
use std::env;
use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use farleaf_fabric::tcp::{MemoryServer, MemoryServerConfig, Tcp, TcpConfig};
use farleaf_fabric::{AnyFabric, Endpoint, Executor, Fabric, GlobalAddr, ServerId, Words};

const REGION_BYTES: u64 = 64 << 20;
/// Bytes of a bare request, as of ours, and of what stands in front of an answer's content.
const BARE_REQUEST: usize = 16;
const BARE_ANSWER: usize = 8;
/// One measurement of one side, and what comes before it.
const ROUND: Duration = Duration::from_millis(20);
const WARM_UP: Duration = Duration::from_millis(2);
/// Time that the bare server polls before it sleeps: longer than any client takes between two batches.
const BARE_SPIN: Duration = Duration::from_micros(200);
/// Time over which the example watches an idle server.
const IDLE: Duration = Duration::from_secs(5);
/// Largest part of a core that an idle server may use.
const IDLE_BAR: f64 = 0.01;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map(|text| text.parse::<usize>()).transpose();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve()?,
        Some("bare") => bare_server()?,
        Some("count") => {
            let [ops, bytes, depth] =
                [number(1)?, number(2)?, number(3)?].map(|it| it.unwrap_or(64));
            count(ops, bytes, depth, arguments.get(4))?;
        }
        seconds => {
            let seconds = seconds.map_or(Ok(2.0), str::parse)?;
            return measure(seconds, number(1)?.zip(number(2)?));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts this process on the first core of those that it may use, or the second, if there are two.
fn pin(core: usize) -> Outcome<()> {
    let allowed = sched_getaffinity(None)?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    if let Some(core) = cores.nth(core) {
        let mut own = CpuSet::new();
        own.set(core);
        sched_setaffinity(None, &own)?;
    }
    Ok(())
}

/// A child that serves until it is dropped, and its address.
struct Server(Child, SocketAddr);

impl Server {
    fn start(what: &str) -> Outcome<Server> {
        let mut child = Command::new(env::current_exe()?)
            .arg(what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Server(child, line.trim().parse()?))
    }

    /// Ticks of the processor that it has used: hundredths of a second.
    fn ticks(&self) -> Outcome<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let behind_name = stat.rsplit_once(')').ok_or("no stat")?.1;
        let field = |at| behind_name.split_whitespace().nth(at).ok_or("a short stat");
        Ok(field(11)?.parse::<u64>()? + field(12)?.parse::<u64>()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> Outcome<()> {
    pin(1)?;
    let words = Words::anonymous((REGION_BYTES / 8) as usize).ok_or("no memory")?;
    words.store(0, &vec![7; (REGION_BYTES / 8) as usize]);
    let server = MemoryServer::start(MemoryServerConfig::default(), Arc::new(words))?;
    println!("{}", server.address());
    // Until the parent has gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Answers requests `length u64 | offset u64` with `length u64` and a copy of memory.
fn bare_server() -> Outcome<()> {
    pin(1)?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    let mut memory = MmapMut::map_anon(REGION_BYTES as usize)?;
    // As the region of a memory server; a system without huge pages goes on with small ones.
    let _ = memory.advise(Advice::HugePage);
    memory.fill(7);
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (mut input, mut filled, mut output) = (vec![0; 64 << 10], 0, Vec::new());
    let mut busy_at = Instant::now();
    loop {
        match stream.read(&mut input[filled..]) {
            Ok(0) => return Ok(()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::yield_now();
                if busy_at.elapsed() > BARE_SPIN {
                    // The other sides are measured: it sleeps until its turn comes.
                    stream.set_nonblocking(false)?;
                    stream.peek(&mut [0])?;
                    stream.set_nonblocking(true)?;
                    busy_at = Instant::now();
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        busy_at = Instant::now();
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
            sent += some(stream.write(&output[sent..]));
        }
    }
}

/// Bytes that were moved. If there are none, other threads run.
fn some(moved: std::io::Result<usize>) -> usize {
    moved.unwrap_or_else(|_| {
        thread::yield_now();
        0
    })
}

/// A place to READ from.
fn place(rng: &mut fastrand::Rng) -> u64 {
    rng.u64(..(REGION_BYTES - 4096) / 64) * 64
}

/// The other side of [`bare_server`].
fn bare_client(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// READs per second of whole batches, spinning.
fn bare(mut stream: &TcpStream, depth: usize, bytes: usize) -> f64 {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut answer = vec![0; depth * (BARE_ANSWER + bytes)];
    let mut request = Vec::new();
    let mut run = |time: Duration| {
        let (start, mut count) = (Instant::now(), 0);
        loop {
            request.clear();
            for _ in 0..depth {
                request.extend_from_slice(&(bytes as u64).to_le_bytes());
                request.extend_from_slice(&place(&mut rng).to_le_bytes());
            }
            let mut sent = 0;
            while sent < request.len() {
                sent += some(stream.write(&request[sent..]));
            }
            let mut filled = 0;
            while filled < answer.len() {
                filled += some(stream.read(&mut answer[filled..]));
            }
            black_box(&answer);
            count += depth;
            let taken = start.elapsed();
            if taken >= time {
                return count as f64 / taken.as_secs_f64();
            }
        }
    };
    run(WARM_UP);
    run(ROUND)
}

/// READs of `depth` tasks, each with one READ in flight, until `goes_on` says no; how many.
fn reads<E: Endpoint + Clone + 'static>(
    (endpoint, executor): (&E, &Executor),
    depth: usize,
    bytes: usize,
    goes_on: impl Fn() -> bool + Clone + 'static,
) -> usize {
    let count = Rc::new(Cell::new(0));
    for task in 0..depth {
        let (own, count, goes_on) = (endpoint.clone(), Rc::clone(&count), goes_on.clone());
        endpoint.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task as u64);
            let mut buf = own.buf(bytes);
            while goes_on() {
                for _ in 0..64 {
                    let from = GlobalAddr::new(ServerId(0), place(&mut rng));
                    buf = own.read(from, buf).await.expect("READ");
                    black_box(&buf);
                    count.set(count.get() + 1);
                }
            }
        });
    }
    executor.block_on(async {});
    count.get()
}

/// READs per second.
fn ours<E: Endpoint + Clone + 'static>(of: (&E, &Executor), depth: usize, bytes: usize) -> f64 {
    let run = |time: Duration| {
        let start = Instant::now();
        let count = reads(of, depth, bytes, move || start.elapsed() < time);
        count as f64 / start.elapsed().as_secs_f64()
    };
    run(WARM_UP);
    run(ROUND)
}

fn count(ops: usize, bytes: usize, depth: usize, address: Option<&String>) -> Outcome<()> {
    let server = address.is_none().then(|| Server::start("serve")).transpose()?;
    let address = match (address, &server) {
        (Some(address), _) => address.parse()?,
        (None, server) => server.as_ref().ok_or("no server")?.1,
    };
    let fabric = Tcp::connect(TcpConfig::to([address]))?;
    let left = Rc::new(Cell::new(ops / 64));
    let goes_on = move || left.get() > 0 && left.replace(left.get() - 1) > 0;
    let endpoint = fabric.endpoint()?;
    println!("{} READs", reads((&endpoint, endpoint.executor()), depth, bytes, goes_on));
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Limits of a row: its ratio to the bare batch, and READs per second.
struct Bar {
    ratio: Option<f64>,
    rate: f64,
}

fn bar(bytes: usize, depth: usize) -> Bar {
    let of = |ratio, rate| Bar { ratio, rate };
    match (bytes, depth) {
        // Of times: at most.
        (_, 1) => of(Some(1.15), 0.0),
        (64, 16) => of(Some(0.85), 0.8e6),
        (64, 64) => of(Some(0.85), 2e6),
        (64, 256) => of(Some(0.85), 4e6),
        (1024, 64) => of(None, 0.7e6),
        _ => of(None, 0.0),
    }
}

fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "falls short" }
}

fn measure(seconds: f64, only: Option<(usize, usize)>) -> Outcome<ExitCode> {
    let turns = (seconds / 3.0 / (ROUND + WARM_UP).as_secs_f64()).ceil().max(1.0) as usize;
    let (server, bare_one) = (Server::start("serve")?, Server::start("bare")?);
    // Not before: children have their parent's cores.
    pin(0)?;
    let fabric = Tcp::connect(TcpConfig::to([server.1]))?;
    let bare_stream = bare_client(bare_one.1)?;
    let (endpoint, any) = (fabric.endpoint()?, AnyFabric::Tcp(fabric.clone()).endpoint()?);
    println!(
        "medians of {turns} turns, READs/s; ratios to bare: of times at depth 1, else of rates"
    );
    println!(
        "{:>6} {:>6} {:>11} {:>11} {:>11} {:>6} {:>6}  bar",
        "bytes", "depth", "bare", "tcp", "any", "tcp", "any"
    );
    let mut all_hold = true;
    for (bytes, depth) in [64, 1024].into_iter().flat_map(|b| [1, 16, 64, 256].map(|d| (b, d))) {
        if only.is_some_and(|only| only != (bytes, depth)) {
            continue;
        }
        let mut figures = [const { Vec::new() }; 3];
        for turn in 0..turns {
            for side in (0..3).map(|side| (turn + side) % 3) {
                figures[side].push(match side {
                    0 => bare(&bare_stream, depth, bytes),
                    1 => ours((&endpoint, endpoint.executor()), depth, bytes),
                    _ => ours((&any, any.executor()), depth, bytes),
                });
            }
        }
        let ratios = [1, 2].map(|side: usize| {
            let pairs = figures[0].iter().zip(&figures[side]);
            median(
                pairs
                    .map(|(bare, ours)| if depth == 1 { bare / ours } else { ours / bare })
                    .collect(),
            )
        });
        let [bare, tcp, any] = figures.map(median);
        let Bar { ratio, rate } = bar(bytes, depth);
        let holds = match ratio {
            Some(most) if depth == 1 => ratios[0] <= most,
            Some(least) => ratios[0] >= least && tcp >= rate,
            None => tcp >= rate,
        };
        let wanted = ratio.map_or(String::new(), |ratio| format!("{ratio} "));
        let rate = if rate > 0.0 { format!("{rate} ") } else { String::new() };
        let verdict = if wanted.len() + rate.len() > 0 { verdict(holds) } else { "none" };
        println!(
            "{bytes:>6} {depth:>6} {bare:>11.0} {tcp:>11.0} {any:>11.0} {:>6.2} {:>6.2}  {wanted}{rate}{verdict}",
            ratios[0], ratios[1]
        );
        all_hold &= holds;
    }
    if only.is_none() {
        drop(any);
        let before = server.ticks()?;
        thread::sleep(IDLE);
        let used = (server.ticks()? - before) as f64 / 100.0 / IDLE.as_secs_f64();
        let holds = used < IDLE_BAR;
        println!(
            "an idle memory server with a client: {used:.4} of a core  {IDLE_BAR} {}",
            verdict(holds)
        );
        all_hold &= holds;
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
