//! Verbs rate: READs, WRITEs and CASes per second, each posted alone and in lists of 16.
//!
//! A list rings one doorbell. If perftest (`ib_read_bw`, `ib_write_bw`, `ib_atomic_bw`) is installed,
//! its figures for the same device stand beside ours. Server and client are two processes of this
//! machine. The sides of a row take turns, several times. Each figure is the best of its turns, because
//! other load on the machine disturbs that one least.
//!
//! Usage: `verbs_rate [rpc] [SECONDS [TURNS [DEPTH]]]`: seconds per figure and turn, and the only
//! depth. With `rpc`, it compares RPCs by the card with RPCs by the connection instead. `make
//! verbs-rate` runs it in a virtual machine with Soft-RoCE, first with a clock that counts a nanosecond
//! for each instruction. Compare those figures with each other, and with nothing else.
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use std::cell::Cell;
use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::MemoryServerConfig;
use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsEndpoint, VerbsServer, devices};
use farleaf_fabric::{
    Endpoint, Fabric, GlobalAddr, ServerId, Service, ServiceId, ServiceReply, Words,
};

const REGION_BYTES: u64 = 1 << 20;
/// Range of the operations' addresses: perftest stays within one page, as well.
const PLACES_BYTES: u64 = 4096;
/// Operations per doorbell of the listed figures.
const LIST: usize = 16;
/// Operations of a task between two looks at the clock, which costs as much as some of them if it is
/// emulated.
const LOOK_EVERY: usize = 64;

type Any = Box<dyn Error>;

fn main() -> Result<(), Any> {
    let mut arguments = env::args().skip(1).peekable();
    if arguments.next_if(|what| what == "serve").is_some() {
        return serve();
    }
    let is_rpc = arguments.next_if(|what| what == "rpc").is_some();
    let seconds = arguments.next().map_or(Ok(1.0), |seconds| seconds.parse())?;
    let turns = arguments.next().map_or(Ok(3), |turns| turns.parse())?;
    let depth = arguments.next().map(|depth| depth.parse()).transpose()?;
    let time = Duration::from_secs_f64(seconds);
    let Some(device) = devices()?.into_iter().next() else {
        println!("no RDMA device here; `make verbs-rate` measures in a virtual machine");
        return Ok(());
    };
    let mut child = Command::new(env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let _server = Reaped(child);
    let config = VerbsConfig::to([line.trim().parse::<SocketAddr>()?]);
    if is_rpc {
        measure_rpcs(&config, time, turns, depth)
    } else {
        measure(&config, &device, time, turns, depth)
    }
}

/// Answers with as many bytes as there is room for.
struct Filler;

impl Service for Filler {
    fn call(&self, _: &Words, _: &[u8], reply: &mut [u8]) -> ServiceReply {
        ServiceReply { len: reply.len(), cpu_ns: 0 }
    }
}

const FILLER: ServiceId = ServiceId(1);

fn serve() -> Result<(), Any> {
    let words = Words::anonymous((REGION_BYTES / 8) as usize).ok_or("no memory")?;
    let (config, card) = (MemoryServerConfig::default(), CardConfig::default());
    let server = VerbsServer::start(config, &card, Arc::new(words))?;
    server.serve(FILLER, Arc::new(Filler));
    println!("{}", server.address());
    // Until the parent has gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A child that ends with its parent.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Clone, Copy)]
enum What {
    Read(usize),
    Write(usize),
    Cas,
    /// Of so many bytes each way.
    Rpc(usize),
}

impl What {
    fn name(self) -> String {
        match self {
            What::Read(bytes) => format!("READ {bytes}"),
            What::Write(bytes) => format!("WRITE {bytes}"),
            What::Cas => "CAS".to_owned(),
            What::Rpc(bytes) => format!("RPC {bytes}"),
        }
    }
}

/// Operations per second of `depth` tasks, each with one in flight.
fn ours(endpoint: &VerbsEndpoint, what: What, depth: usize, time: Duration) -> f64 {
    let count = Rc::new(Cell::new(0_u64));
    let start = Instant::now();
    for task in 0..depth as u64 {
        let (own, count) = (endpoint.clone(), Rc::clone(&count));
        endpoint.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(task);
            let mut place = || {
                let offset = rng.u64(..PLACES_BYTES / 64) * 64;
                GlobalAddr::new(ServerId(0), offset)
            };
            let mut buf = own.buf(match what {
                What::Read(bytes) | What::Write(bytes) | What::Rpc(bytes) => bytes,
                What::Cas => 8,
            });
            while start.elapsed() < time {
                for _ in 0..LOOK_EVERY {
                    match what {
                        What::Read(_) => buf = own.read(place(), buf).await.expect("a READ"),
                        What::Write(_) => buf = own.write(place(), buf).await.expect("a WRITE"),
                        What::Cas => drop(Some(own.cas(place(), 0, 0).await.expect("a CAS"))),
                        What::Rpc(bytes) => {
                            let call = own.rpc(ServerId(0), FILLER, own.buf(bytes), buf);
                            buf = call.await.expect("an RPC");
                        }
                    }
                    count.set(count.get() + 1);
                }
            }
        });
    }
    endpoint.executor().block_on(async {});
    count.get() as f64 / start.elapsed().as_secs_f64()
}

/// perftest's figure for about as many operations as a turn at `rate` has, so that both bests are found in
/// the same way; each request is signalled. `None` if perftest is missing.
fn perftest(
    device: &str,
    what: What,
    depth: usize,
    listed: bool,
    rate: f64,
    time: Duration,
) -> Option<f64> {
    let (program, size) = match what {
        What::Read(bytes) => ("ib_read_bw", Some(bytes)),
        What::Write(bytes) => ("ib_write_bw", Some(bytes)),
        What::Cas => ("ib_atomic_bw", None),
        What::Rpc(_) => return None,
    };
    let operations = ((rate * time.as_secs_f64()) as usize).max(1000).next_multiple_of(LIST);
    let mut arguments: Vec<String> = ["-d", device, "-x", "1", "-F"].map(str::to_owned).into();
    arguments.extend(["-n".to_owned(), operations.to_string()]);
    if let Some(size) = size {
        arguments.extend(["-s".to_owned(), size.to_string()]);
    } else {
        arguments.extend(["-A", "CMP_AND_SWAP"].map(str::to_owned));
    }
    arguments.extend(["-t".to_owned(), depth.to_string(), "-p".to_owned(), "18555".to_owned()]);
    let list = LIST.to_string();
    if listed {
        arguments.extend(["-l".to_owned(), list.clone(), "-Q".to_owned(), list]);
    } else {
        arguments.extend(["-Q", "1"].map(str::to_owned));
    }
    let mut run = Command::new(program);
    run.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Reaped(run.spawn().ok()?);
    thread::sleep(Duration::from_millis(400));
    let output = Command::new(program).args(&arguments).arg("127.0.0.1").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // #bytes #iterations peak average rate: the last in millions per second.
    let numbers = |line: &str| -> Vec<f64> {
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let rate = text.lines().map(numbers).find(|numbers| numbers.len() == 5 && numbers[1] >= 1000.0);
    rate.map(|numbers| numbers[4] * 1e6)
}

fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::NAN, f64::max)
}

/// RPCs by the card and by the connection, in turn.
fn measure_rpcs(
    config: &VerbsConfig,
    time: Duration,
    turns: usize,
    only: Option<usize>,
) -> Result<(), Any> {
    let endpoint = |calls| -> Result<VerbsEndpoint, Any> {
        Ok(Verbs::connect(VerbsConfig { calls, ..config.clone() })?.endpoint()?)
    };
    let (by_card, by_connection) = (endpoint(config.calls)?, endpoint(0)?);
    println!("RPCs per second, best of {turns}");
    println!("{:<10} {:>5} | {:>8} {:>10} {:>6}", "", "depth", "card", "connection", "ratio");
    for bytes in [8, 256, 1024, 4096] {
        for depth in
            [1, 4, 16, 64].into_iter().filter(|depth| only.is_none_or(|only| only == *depth))
        {
            let mut all: [Vec<f64>; 2] = Default::default();
            for _ in 0..turns {
                all[0].push(ours(&by_card, What::Rpc(bytes), depth, time));
                all[1].push(ours(&by_connection, What::Rpc(bytes), depth, time));
            }
            let [card, connection] = all.map(best);
            let (name, ratio) = (What::Rpc(bytes).name(), card / connection);
            println!("{name:<10} {depth:>5} | {card:>8.0} {connection:>10.0} {ratio:>6.2}");
        }
    }
    Ok(())
}

fn measure(
    config: &VerbsConfig,
    device: &str,
    time: Duration,
    turns: usize,
    only: Option<usize>,
) -> Result<(), Any> {
    let endpoint = |list_max| -> Result<(Verbs, VerbsEndpoint), Any> {
        let fabric = Verbs::connect(VerbsConfig { list_max, ..config.clone() })?;
        let endpoint = fabric.endpoint()?;
        Ok((fabric, endpoint))
    };
    let (alone, listed) = (endpoint(1)?, endpoint(LIST)?);
    println!("{}: operations per second, best of {turns}", alone.0.place());
    println!(
        "{:<10} {:>5} | {:>8} {:>8} {:>6} | {:>8} {:>8} {:>6} | {:>6}",
        "", "depth", "alone", "perftest", "ratio", "listed", "perftest", "ratio", "gain"
    );
    for what in [What::Read(64), What::Read(1024), What::Write(64), What::Write(1024), What::Cas] {
        for depth in [1, 16, 64].into_iter().filter(|depth| only.is_none_or(|only| only == *depth))
        {
            let mut all: [Vec<f64>; 4] = Default::default();
            for _ in 0..turns {
                let rate = ours(&alone.1, what, depth, time);
                all[0].push(rate);
                all[1].extend(perftest(device, what, depth, false, rate, time));
                if depth >= LIST {
                    let rate = ours(&listed.1, what, depth, time);
                    all[2].push(rate);
                    all[3].extend(perftest(device, what, depth, true, rate, time));
                }
            }
            let [alone, theirs, listed, theirs_listed] = all.map(best);
            println!(
                "{:<10} {depth:>5} | {alone:>8.0} {theirs:>8.0} {:>6.2} | {listed:>8.0} \
                 {theirs_listed:>8.0} {:>6.2} | {:>6.2}",
                what.name(),
                alone / theirs,
                listed / theirs_listed,
                listed / alone
            );
        }
    }
    Ok(())
}
