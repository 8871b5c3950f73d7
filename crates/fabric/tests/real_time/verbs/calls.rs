//! RPC tests: RPCs by the card.

use std::cell::Cell;
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use std::{env, thread};

use farleaf_fabric::tcp::MemoryServerConfig;
use farleaf_fabric::verbs::{CardConfig, Verbs, VerbsConfig, VerbsEndpoint, VerbsServer};
use farleaf_fabric::{
    Buf, Client, Endpoint, Fabric, OpError, OpErrorKind, OpKind, ServerId, Service, ServiceId,
    ServiceReply, Words,
};

use super::{LEASE, at, block_on, declare_dead, has_card, pool, wait_until, words};
use crate::common::assert_idle;

const SERVER: ServerId = ServerId(0);
const ECHO: ServiceId = ServiceId(1);
const SLOW: ServiceId = ServiceId(2);
/// Requests under way by a card, and bytes that one may have.
const CALLS: usize = 16;
const BYTES: usize = 4096;

/// Answers with the request, each byte changed; counts in the first word of memory.
struct Echo;

impl Service for Echo {
    fn call(&self, memory: &Words, request: &[u8], reply: &mut [u8]) -> ServiceReply {
        memory.faa(0, 1);
        let len = request.len().min(reply.len());
        reply.iter_mut().zip(request).for_each(|(to, from)| *to = !*from);
        ServiceReply { len, cpu_ns: 0 }
    }
}

/// Takes ten times as many milliseconds as the request's first byte says; counts in the second word when it
/// begins, and in the third when it ends.
struct Slow;

impl Service for Slow {
    fn call(&self, memory: &Words, request: &[u8], _: &mut [u8]) -> ServiceReply {
        memory.faa(1, 1);
        thread::sleep(Duration::from_millis(10 * u64::from(request[0])));
        memory.faa(2, 1);
        ServiceReply { len: 0, cpu_ns: 0 }
    }
}

fn serve(server: &VerbsServer) {
    server.serve(ECHO, Arc::new(Echo));
    server.serve(SLOW, Arc::new(Slow));
}

/// Count of [`Echo`] or [`Slow`] in a word.
fn counted(server: &VerbsServer, word: usize) -> u64 {
    server.words().as_slice()[word].load(Ordering::SeqCst)
}

/// One server with both services.
fn served() -> (Vec<VerbsServer>, VerbsConfig) {
    let (servers, config) = pool(1, Duration::from_secs(60), 1 << 20);
    serve(&servers[0]);
    (servers, config)
}

fn filled(endpoint: &VerbsEndpoint, len: usize, seed: usize) -> Buf {
    let mut buf = endpoint.buf(len);
    buf.bytes_mut().iter_mut().zip(seed..).for_each(|(byte, at)| *byte = (at * 7 + 3) as u8);
    buf
}

/// An echo of `len` bytes into `room`; returns whether it came back right.
async fn echo(
    endpoint: &VerbsEndpoint,
    len: usize,
    room: usize,
    seed: usize,
) -> Result<(), OpError> {
    let reply = endpoint.rpc(SERVER, ECHO, filled(endpoint, len, seed), endpoint.buf(room)).await?;
    let wanted = filled(endpoint, len.min(room), seed);
    assert_eq!(reply.window_len(), wanted.len());
    let is_echo = reply.window_bytes().iter().zip(wanted.bytes()).all(|(got, sent)| *got == !*sent);
    assert!(is_echo, "an echo of {len} bytes into {room}");
    Ok(())
}

async fn slow(endpoint: &VerbsEndpoint, ten_ms: u8, len: usize) -> Result<Buf, OpError> {
    let mut request = endpoint.buf(len);
    request.bytes_mut()[0] = ten_ms;
    endpoint.rpc(SERVER, SLOW, request, endpoint.buf(8)).await
}

/// Up to 4 KiB each way by the card, anything longer by the connection; all count as RPCs.
#[test]
fn short_rpcs_go_by_the_card_and_long_ones_by_the_connection() {
    if !has_card("short_rpcs_go_by_the_card_and_long_ones_by_the_connection") {
        return;
    }
    let (servers, config) = served();
    let sizes = [0, 1, 8, 47, 48, 49, 64, 333, 1000, BYTES - 1, BYTES, BYTES + 1, 70_000, 2 << 20];
    let pairs: Vec<(usize, usize)> =
        sizes.into_iter().flat_map(|size| [(size, size), (size, 8), (8, size)]).collect();
    let no_calls = VerbsConfig { calls: 0, ..config.clone() };
    for (config, is_by_card) in [(config, true), (no_calls, false)] {
        let fabric = Verbs::connect(config).unwrap();
        let endpoint = fabric.endpoint().unwrap();
        let client = Client::new(endpoint.clone());
        for (seed, (len, room)) in pairs.iter().copied().enumerate() {
            let before = (endpoint.posted().1, servers[0].memory_server().served());
            block_on(&endpoint, echo(&endpoint, len, room, seed)).unwrap();
            let after = (endpoint.posted().1, servers[0].memory_server().served());
            let goes = is_by_card && len.max(room) <= BYTES;
            assert_eq!(after.0 > before.0, goes, "{len} bytes, room for {room}");
            assert_eq!(after.1.rpcs - before.1.rpcs, 1);
            let bytes = after.1.bytes_in - before.1.bytes_in;
            assert!((16 + len as u64..16 + len as u64 + 64).contains(&bytes), "{bytes} of {len}");
            let (bytes, reply) = (after.1.bytes_out - before.1.bytes_out, len.min(room) as u64);
            assert!((8 + reply..8 + reply + 64).contains(&bytes), "{bytes} of {reply}");
        }
        assert_eq!(endpoint.buffers_out(), 0);
        // The client's own counters do not distinguish the ways.
        block_on(&endpoint, async {
            client.begin(OpKind::Get);
            let reply = client.rpc(SERVER, ECHO, client.buf(100), client.buf(50)).await.unwrap();
            assert_eq!(reply.window_len(), 50);
        });
        let cost = endpoint.counters().snapshot();
        let all = cost.total();
        assert_eq!((all.rpcs, all.round_trips), (1, 1));
        assert_eq!((all.bytes_written, all.bytes_read), (100, 50));
        // An unknown service gives an error, and the next call works.
        block_on(&endpoint, async {
            let nobody = endpoint.rpc(SERVER, ServiceId(9), endpoint.buf(8), endpoint.buf(8)).await;
            let kind = nobody.expect_err("no service 9").kind;
            assert_eq!(kind, OpErrorKind::NoService { service: 9 });
            echo(&endpoint, 8, 8, 1).await.unwrap();
        });
    }
}

/// Far more than are granted at a time, beside other operations, on few and many places of the send queue:
/// all come back, and nothing breaks.
#[test]
fn more_rpcs_than_are_granted_wait() {
    const TASKS: usize = 5 * CALLS;
    const ROUNDS: usize = 8;
    if !has_card("more_rpcs_than_are_granted_wait") {
        return;
    }
    let (servers, config) = served();
    for (depth, list_max, calls) in [(256, 64, 16), (4, 2, 16), (64, 64, 1), (64, 64, 3)] {
        let fabric =
            Verbs::connect(VerbsConfig { depth, list_max, calls, ..config.clone() }).unwrap();
        let endpoint = fabric.endpoint().unwrap();
        let before = (servers[0].memory_server().served().rpcs, counted(&servers[0], 0));
        let added = Rc::new(Cell::new(0));
        for task in 0..TASKS {
            let (own, added) = (endpoint.clone(), Rc::clone(&added));
            endpoint.spawn(async move {
                for round in 0..ROUNDS {
                    let len = [3, 64, 700, BYTES][(task + round) % 4];
                    echo(&own, len, len, task * 100 + round).await.unwrap();
                    if task % 3 == 0 {
                        own.faa(at(4096), 1).await.unwrap();
                        added.set(added.get() + 1);
                        drop(own.read(at(8192), own.buf(1000)).await.unwrap());
                    }
                }
            });
        }
        block_on(&endpoint, async {});
        let sum = block_on(&endpoint, async { endpoint.faa(at(4096), 0).await.unwrap() });
        assert_eq!(sum, added.get());
        block_on(&endpoint, async { endpoint.faa(at(4096), sum.wrapping_neg()).await.unwrap() });
        let all = (TASKS * ROUNDS) as u64;
        assert_eq!(servers[0].memory_server().served().rpcs - before.0, all);
        assert_eq!(counted(&servers[0], 0) - before.1, all);
        assert_eq!(endpoint.buffers_out(), 0);
        assert_eq!(servers[0].queue_pairs(), 1);
    }
}

/// F7, F8: a begun RPC is carried out although its caller is gone, also if it had to wait. Its buffers are
/// freed.
#[test]
fn a_dropped_rpc_is_carried_out_unseen() {
    const DROPPED: usize = 3 * CALLS;
    if !has_card("a_dropped_rpc_is_carried_out_unseen") {
        return;
    }
    let (servers, config) = served();
    let fabric = Verbs::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    for round in 1..=5 {
        block_on(&endpoint, async {
            for number in 0..DROPPED {
                let request = filled(&endpoint, 500, number);
                let mut call = pin!(endpoint.rpc(SERVER, ECHO, request, endpoint.buf(500)));
                assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            drop(endpoint.rpc(SERVER, ECHO, endpoint.buf(8), endpoint.buf(8)));
            echo(&endpoint, 700, 700, round).await.unwrap();
        });
        assert_eq!(
            counted(&servers[0], 0),
            (round * (DROPPED + 1)) as u64,
            "never polled, never sent"
        );
        assert_eq!(endpoint.buffers_out(), 0);
    }
}

/// F6 with a victim that sends RPCs all the time. From the fence's return on, none is carried out, sent or
/// not, and another compute server notices nothing.
#[test]
fn a_fence_stops_rpcs_that_are_under_way() {
    const ROUNDS: u64 = 8;
    if !has_card("a_fence_stops_rpcs_that_are_under_way") {
        return;
    }
    let (servers, config) = served();
    let fabric = Verbs::connect(config.clone()).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    for round in 1..=ROUNDS {
        let victim = Verbs::connect(config.clone()).unwrap();
        let who = victim.incarnation();
        let before = counted(&servers[0], 0);
        let caller = thread::spawn(move || {
            let endpoint = victim.endpoint().unwrap();
            let (answered, ended) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(None)));
            for task in 0..2 * CALLS {
                let (own, answered, ended) =
                    (endpoint.clone(), Rc::clone(&answered), Rc::clone(&ended));
                endpoint.spawn(async move {
                    loop {
                        match echo(&own, 64, 64, task).await {
                            Ok(()) => answered.set(answered.get() + 1),
                            Err(error) => return ended.set(Some(error.kind)),
                        }
                    }
                });
            }
            block_on(&endpoint, async {});
            let back = block_on(&endpoint, async { endpoint.reconnect(SERVER).await });
            (answered.get(), ended.get(), back.map_err(|error| error.kind))
        });
        wait_until("the victim calls", || counted(&servers[0], 0) > before + 40);
        thread::sleep(Duration::from_millis(round % 5));
        declare_dead(servers[0].address(), who);
        block_on(&endpoint, async { endpoint.fence(SERVER, who).await.expect("fenced") });
        let at_fence = counted(&servers[0], 0);
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(50));
            assert_eq!(counted(&servers[0], 0), at_fence, "an RPC behind the fence");
        }
        let (answered, ended, back) = caller.join().unwrap();
        assert!(answered <= at_fence - before, "answers to what was never done");
        assert!(matches!(ended, Some(OpErrorKind::Unavailable | OpErrorKind::Fenced)), "{ended:?}");
        assert_eq!(back, Err(OpErrorKind::Fenced));
        block_on(&endpoint, echo(&endpoint, 100, 100, 5)).unwrap();
        assert_eq!(servers[0].queue_pairs(), 1, "the victim's queue pairs are gone");
    }
}

/// A fence waits for the request in progress. The next ones, which have reached the server, are never begun.
#[test]
fn requests_that_wait_behind_a_slow_one_are_fenced() {
    if !has_card("requests_that_wait_behind_a_slow_one_are_fenced") {
        return;
    }
    let (servers, config) = served();
    let fabric = Verbs::connect(config.clone()).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    let victim = Verbs::connect(config).unwrap();
    let who = victim.incarnation();
    let caller = thread::spawn(move || {
        let endpoint = victim.endpoint().unwrap();
        let answered = Rc::new(Cell::new(0));
        for _ in 0..CALLS {
            let (own, answered) = (endpoint.clone(), Rc::clone(&answered));
            endpoint.spawn(async move {
                match slow(&own, 30, 8).await {
                    Ok(_) => answered.set(answered.get() + 1),
                    Err(error) => assert_eq!(error.kind, OpErrorKind::Unavailable),
                }
            });
        }
        let start = Instant::now();
        block_on(&endpoint, async {});
        (answered.get(), start.elapsed())
    });
    wait_until("the first is being carried out", || counted(&servers[0], 1) == 1);
    declare_dead(servers[0].address(), who);
    block_on(&endpoint, async { endpoint.fence(SERVER, who).await.expect("fenced") });
    let (begun, done) = (counted(&servers[0], 1), counted(&servers[0], 2));
    assert_eq!(begun, done, "the fence has waited for what was being carried out");
    thread::sleep(Duration::from_millis(400));
    assert_eq!(counted(&servers[0], 1), begun, "begun behind the fence");
    // One, if the machine is not very slow: none overtakes a waiting fence.
    assert!(begun <= 3, "{begun} were begun");
    let (answered, took) = caller.join().unwrap();
    assert!(answered <= begun, "{answered} answers");
    // The client probes the server, and does not wait until the time is over.
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// F10: an RPC sent before a reconnect is not carried out behind it, and one posted meanwhile is.
#[test]
fn a_reconnect_ends_rpcs_that_are_under_way() {
    if !has_card("a_reconnect_ends_rpcs_that_are_under_way") {
        return;
    }
    let (servers, config) = served();
    let fabric = Verbs::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    for _ in 0..CALLS {
        let own = endpoint.clone();
        endpoint.spawn(async move {
            let kind = slow(&own, 20, 8).await.map(drop).map_err(|error| error.kind);
            assert!(matches!(kind, Ok(()) | Err(OpErrorKind::Timeout)), "{kind:?}");
        });
    }
    block_on(&endpoint, async {
        endpoint.sleep(300_000_000).await;
        let mut again = pin!(endpoint.reconnect(SERVER));
        assert!(again.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let own = endpoint.clone();
        endpoint.spawn(async move { echo(&own, 9, 9, 9).await.unwrap() });
        again.await.expect("a new queue pair");
        let begun = counted(&servers[0], 1);
        assert!(begun < CALLS as u64 / 2, "{begun} were begun");
        endpoint.sleep(300_000_000).await;
        assert_eq!(counted(&servers[0], 1), begun, "begun behind the reconnect");
    });
    assert_eq!(counted(&servers[0], 0), 1);
    assert_eq!(endpoint.buffers_out(), 0);
    assert_eq!(servers[0].queue_pairs(), 1);
}

/// A handler takes too long: its caller gives the queue pair up, and gets another.
#[test]
fn an_rpc_that_takes_too_long_times_out() {
    if !has_card("an_rpc_that_takes_too_long_times_out") {
        return;
    }
    let (servers, mut config) = served();
    config.tcp.op_timeout = Duration::from_millis(400);
    let fabric = Verbs::connect(config).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    block_on(&endpoint, async {
        let late = slow(&endpoint, 120, 8).await.map(drop).map_err(|error| error.kind);
        assert_eq!(late, Err(OpErrorKind::Timeout));
        let lost = echo(&endpoint, 8, 8, 0).await.map_err(|error| error.kind);
        assert_eq!(lost, Err(OpErrorKind::Unavailable));
        // The server lets a new connection in when the handler has ended.
        endpoint.sleep(1_500_000_000).await;
        endpoint.reconnect(SERVER).await.expect("a new queue pair");
        echo(&endpoint, 8, 8, 0).await.unwrap();
    });
    assert_eq!(counted(&servers[0], 2), 1);
}

/// While the server carries out a long RPC for one connection, under its gate, RPCs of others go on; its own
/// wait.
#[test]
fn a_held_gate_delays_no_other_connection() {
    if !has_card("a_held_gate_delays_no_other_connection") {
        return;
    }
    let (servers, config) = served();
    let fabric = Verbs::connect(config.clone()).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    let busy = thread::spawn(move || {
        let fabric = Verbs::connect(config).unwrap();
        let endpoint = fabric.endpoint().unwrap();
        let own = endpoint.clone();
        // Too long for the card.
        endpoint.spawn(async move { drop(slow(&own, 60, BYTES + 1).await.unwrap()) });
        block_on(&endpoint, async {
            endpoint.sleep(60_000_000).await;
            echo(&endpoint, 8, 8, 0).await.unwrap();
        });
    });
    wait_until("the long one is being carried out", || counted(&servers[0], 1) == 1);
    let mut count = 0;
    while counted(&servers[0], 2) == 0 {
        block_on(&endpoint, echo(&endpoint, 64, 64, count)).unwrap();
        count += 1;
        assert!(count < 1_000_000);
    }
    assert!(count > 3, "{count} RPCs beside a handler of 600 ms");
    busy.join().unwrap();
}

/// A client that waits for an answer notices the server's end, and so does one that asks later.
#[test]
fn a_server_that_ends_is_noticed_by_its_callers() {
    if !has_card("a_server_that_ends_is_noticed_by_its_callers") {
        return;
    }
    let (mut servers, mut config) = pool(1, LEASE, 1 << 20);
    serve(&servers[0]);
    config.tcp.op_timeout = Duration::from_secs(3);
    let fabric = Verbs::connect(config).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (count, stopping) = (Arc::clone(&calls), Arc::clone(&stop));
    let caller = thread::spawn(move || {
        let endpoint = fabric.endpoint().unwrap();
        for task in 0..4 {
            let (own, count, stop) = (endpoint.clone(), Arc::clone(&count), Arc::clone(&stopping));
            endpoint.spawn(async move {
                loop {
                    match echo(&own, 64, 64, task).await {
                        Ok(()) => count.fetch_add(1, Ordering::SeqCst),
                        Err(error) => {
                            assert!(stop.load(Ordering::SeqCst), "{error}");
                            let lost = [OpErrorKind::Unavailable, OpErrorKind::Timeout];
                            assert!(lost.contains(&error.kind), "{error}");
                            return;
                        }
                    };
                }
            });
        }
        block_on(&endpoint, async {});
        let again = block_on(&endpoint, async { endpoint.reconnect(SERVER).await });
        assert_eq!(again.map_err(|error| error.kind), Err(OpErrorKind::Unavailable));
        assert_eq!(endpoint.buffers_out(), 0);
    });
    wait_until("it is called", || calls.load(Ordering::SeqCst) > 20);
    stop.store(true, Ordering::SeqCst);
    servers.clear();
    caller.join().unwrap();
}

/// Many threads come and go, on a server with two threads; a thread that stays is served.
#[test]
fn callers_come_and_go() {
    if !has_card("callers_come_and_go") {
        return;
    }
    let lease = Duration::from_secs(60);
    let config = MemoryServerConfig { threads: 2, lease, ..Default::default() };
    let server = VerbsServer::start(config, &CardConfig::default(), words(1 << 20)).unwrap();
    serve(&server);
    let fabric = Verbs::connect(VerbsConfig::to([server.address()])).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    for round in 0..12 {
        thread::scope(|scope| {
            for caller in 0..2 {
                let fabric = &fabric;
                scope.spawn(move || {
                    let endpoint = fabric.endpoint().unwrap();
                    for _ in 0..CALLS {
                        let own = endpoint.clone();
                        endpoint.spawn(async move { echo(&own, 64, 64, caller).await.unwrap() });
                    }
                    block_on(&endpoint, async {});
                });
            }
            block_on(&endpoint, echo(&endpoint, 64, 64, round)).unwrap();
        });
        wait_until("their queue pairs are gone", || server.queue_pairs() == 1);
    }
    assert_eq!(counted(&server, 0), 12 * (2 * CALLS as u64 + 1));
}

const IDLE: &str = "FARLEAF_TEST_IDLE";

/// Not a test of its own: the process that [`an_idle_server_uses_no_processor`] starts.
#[test]
fn is_idle_when_asked_to() {
    if env::var_os(IDLE).is_none() {
        return;
    }
    let lease = Duration::from_secs(60);
    let config = MemoryServerConfig { threads: 3, lease, ..Default::default() };
    let server = VerbsServer::start(config, &CardConfig::default(), words(1 << 20)).unwrap();
    serve(&server);
    let fabric = Verbs::connect(VerbsConfig::to([server.address()])).unwrap();
    let endpoint = fabric.endpoint().unwrap();
    block_on(&endpoint, echo(&endpoint, 64, 64, 0)).unwrap();
    thread::sleep(Duration::from_millis(200));
    eprintln!("{:?} in an idle second", assert_idle());
    // And it wakes up again.
    block_on(&endpoint, echo(&endpoint, 64, 64, 0)).unwrap();
}

#[test]
fn an_idle_server_uses_no_processor() {
    if !has_card("an_idle_server_uses_no_processor") {
        return;
    }
    let idle = Command::new(env::current_exe().unwrap())
        .args(["--exact", "verbs::calls::is_idle_when_asked_to", "--nocapture"])
        .env(IDLE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&idle.stderr);
    assert!(idle.status.success(), "{said}");
    eprint!("{said}");
}
