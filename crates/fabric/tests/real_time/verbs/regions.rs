//! Region tests: memory of compute servers, reached by the card.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use farleaf_fabric::{ListenConfig, OpError, Peer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::*;

const REGION: u64 = 64 << 10;
const OWNER: ServerId = ServerId(ServerId::COMPUTE_FIRST.0 + 3);

/// A compute server that exposes a region under [`OWNER`], and the peer that it is to others.
fn owner(config: &VerbsConfig, bytes: u64) -> (Verbs, Peer) {
    let verbs = Verbs::connect(config.clone()).unwrap();
    let exposed = verbs.expose(OWNER, bytes, &ListenConfig::default()).unwrap();
    let address = exposed.map(|exposed| exposed.address);
    let incarnation = verbs.incarnation();
    (verbs, Peer { server: OWNER, incarnation, address, region_bytes: bytes })
}

fn there(offset: u64) -> GlobalAddr {
    GlobalAddr::new(OWNER, offset)
}

fn kind<T: std::fmt::Debug>(result: Result<T, OpError>) -> OpErrorKind {
    result.expect_err("it fails").kind
}

/// Work requests of the thread's cards for `body`.
async fn requests(endpoint: &VerbsEndpoint, body: impl Future<Output = ()>) -> (u64, u64) {
    let before = endpoint.posted();
    body.await;
    let after = endpoint.posted();
    (after.0 - before.0, after.1 - before.1)
}

/// Each operation on a region is one work request of the poster's card, the owner's own included; a chain is one
/// list, and a batch one list for each server. What one writer leaves is there.
#[test]
fn regions_go_by_the_card() {
    if !has_card("regions_go_by_the_card") {
        return;
    }
    let (_servers, config) = pool(1, LEASE, 1 << 20);
    let (verbs, peer) = owner(&config, REGION);
    let other = Verbs::connect(config).unwrap();
    let other = other.endpoint().unwrap();
    other.attach(peer).unwrap();
    let own = verbs.endpoint().unwrap();
    for (number, end) in (1..).zip([&other, &own]) {
        block_on(end, async {
            // Connected, and no more.
            end.faa(there(0), 1).await.expect("an FAA");
            let four = requests(end, async {
                let mut buf = end.buf(4096);
                buf.words_mut().fill(number);
                end.write(there(8192), buf).await.expect("a WRITE");
                let read = end.read(there(8192), end.buf(4096)).await.expect("a READ");
                assert!(read.words().iter().all(|word| *word == number));
                assert_eq!(end.cas(there(64), number - 1, number).await, Ok(number - 1));
                assert_eq!(end.faa(there(72), 1).await, Ok(number - 1));
            });
            assert_eq!(four.await, (4, 4));
            let chain = requests(end, async {
                let mut ops = end.ops();
                for part in 0..6 {
                    ops.write_word(there(128 + part * 8), number << 8 | part);
                }
                end.chain(ops).await.expect("a chain");
            });
            assert_eq!(chain.await, (1, 6));
            let batch = requests(end, async {
                let mut ops = end.ops();
                ops.faa(at(64), 1);
                ops.faa(there(80), 1);
                ops.read(there(128), end.buf(48));
                let ops = end.post_many(ops).await.expect("a batch");
                assert_eq!(ops.old(1), number - 1);
                assert_eq!(ops.buf(2).words()[5], number << 8 | 5);
            });
            assert_eq!(batch.await, (2, 3), "a list for each server");
        });
    }
    let words = own.own_region().expect("it exposes a region").words.clone();
    let loaded = |word: usize| words.as_slice()[word].load(Ordering::Acquire);
    assert_eq!([loaded(0), loaded(8), loaded(1024)], [2, 2, 2]);
}

/// A region is locked in memory as a whole. Too little that may be locked is an error with the number that is
/// needed; then the compute server can still take calls, and expose less.
#[test]
fn memory_that_cannot_be_locked_is_named() {
    const LIMIT: u64 = 4 << 20;
    if !has_card("memory_that_cannot_be_locked_is_named") {
        return;
    }
    let (_servers, config) = pool(1, LEASE, 1 << 20);
    let verbs = Verbs::connect(config.clone()).unwrap();
    // The kernel heeds the limit for those that may not lock without one.
    let (all, limit) = (capabilities(None).unwrap(), getrlimit(Resource::Memlock));
    let less = CapabilitySets { effective: all.effective - CapabilitySet::IPC_LOCK, ..all };
    set_capabilities(None, less).unwrap();
    let lowered = Rlimit { current: Some(LIMIT), maximum: limit.maximum };
    setrlimit(Resource::Memlock, lowered).unwrap();
    let exposed = verbs.expose(OWNER, 2 * LIMIT, &ListenConfig::default());
    let smaller = verbs.expose(OWNER, REGION, &ListenConfig::default());
    set_capabilities(None, all).unwrap();
    setrlimit(Resource::Memlock, limit).unwrap();
    let error = exposed.expect_err("more than may be locked");
    assert!(
        matches!(
            &error,
            FabricError::Verbs(VerbsError::Memory { bytes, limit_bytes: Some(LIMIT), .. })
                if *bytes == 2 * LIMIT
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    let address = smaller.expect("a region that fits").map(|exposed| exposed.address);
    let incarnation = verbs.incarnation();
    let peer = Peer { server: OWNER, incarnation, address, region_bytes: REGION };
    let other = Verbs::connect(config).unwrap().endpoint().unwrap();
    other.attach(peer).unwrap();
    assert_eq!(block_on(&other, async { other.faa(there(8), 1).await }), Ok(0));
}

/// A listener that greets as the owner does, and answers each request by garbage.
fn babbler(config: &VerbsConfig) -> SocketAddr {
    let (listener, servers) =
        (TcpListener::bind(("127.0.0.1", 0)).unwrap(), config.tcp.servers.len() as u16);
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut welcome = [0; 64];
            if stream.read_exact(&mut welcome).is_err() {
                continue;
            }
            welcome[8..].fill(0);
            (welcome[8], welcome[16]) = (2, 1);
            welcome[24..26].copy_from_slice(&OWNER.0.to_le_bytes());
            welcome[26..28].copy_from_slice(&servers.to_le_bytes());
            let _ = stream.write_all(&welcome);
            let mut question = [0; 16 + 64];
            if stream.read_exact(&mut question).is_ok() {
                // Done, with 64 bytes that are no answer.
                let _ = stream.write_all(&[&[0, 0, 0, 0, 64, 0, 0, 0][..], &[0xa5; 64]].concat());
            }
        }
    });
    address
}

/// Nobody at the address, another life there, garbage from there, a compute server that exposes less than was
/// told: each fails alone, and the right peer is reached afterwards.
#[test]
fn peers_that_are_not_what_they_seem_are_unavailable() {
    if !has_card("peers_that_are_not_what_they_seem_are_unavailable") {
        return;
    }
    let (_servers, config) = pool(1, LEASE, 1 << 20);
    let (_verbs, peer) = owner(&config, REGION);
    let other = Verbs::connect(config.clone()).unwrap().endpoint().unwrap();
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    block_on(&other, async {
        for wrong in [
            Peer { address: Some(nobody), ..peer },
            Peer { incarnation: Incarnation(9), ..peer },
            Peer { address: Some(babbler(&config)), ..peer },
        ] {
            other.attach(wrong).unwrap();
            assert_eq!(kind(other.faa(there(8), 1).await), OpErrorKind::Unavailable, "{wrong:?}");
            let mut both = other.ops();
            both.faa(at(64), 0);
            both.faa(there(8), 1);
            assert_eq!(kind(other.post_many(both).await), OpErrorKind::Unavailable);
            assert_eq!(other.faa(at(64), 0).await, Ok(0), "the memory server works on");
        }
        other.attach(peer).unwrap();
        let beyond = kind(other.read(there(REGION), other.buf(8)).await);
        assert!(matches!(beyond, OpErrorKind::OutOfBounds { .. }), "{beyond:?}");
        assert_eq!(other.faa(there(8), 1).await, Ok(0));
        // The card refuses what lies outside of the region, and the next operation connects again.
        other.attach(Peer { region_bytes: 4 * REGION, ..peer }).unwrap();
        let beyond = kind(other.faa(there(2 * REGION), 1).await);
        assert_eq!(beyond, OpErrorKind::Unavailable);
        assert_eq!(other.faa(there(8), 1).await, Ok(1));
    });
}

/// Another life under the same number has other memory, and no operation for the old one lands there (VERBS-14).
#[test]
fn a_number_leads_to_one_life() {
    if !has_card("a_number_leads_to_one_life") {
        return;
    }
    let (_servers, config) = pool(1, LEASE, 1 << 20);
    let other = Verbs::connect(config.clone()).unwrap().endpoint().unwrap();
    let mut lives = Vec::new();
    for _ in 0..4 {
        let (verbs, peer) = owner(&config, REGION);
        lives.push(verbs);
        block_on(&other, async {
            other.attach(peer).unwrap();
            // As many operations in flight as the next life finds unfinished.
            for number in 0..20 {
                let own = other.clone();
                other.spawn(async move {
                    let added = own.faa(there(4096 + 8 * (number % 3)), 1).await;
                    let is_fine = |kind| matches!(kind, OpErrorKind::Gone { .. });
                    assert!(added.is_ok() || is_fine(kind(added)), "{added:?}");
                });
            }
            assert_eq!(other.faa(there(8), 1).await, Ok(0), "zeroed");
        });
    }
    for verbs in &lives {
        let own = verbs.endpoint().unwrap();
        let sums = block_on(&own, async {
            let read = own.read(there(4096), own.buf(24)).await.expect("its own");
            read.words().iter().sum::<u64>()
        });
        assert_eq!(sums, 20, "all of its own, and nobody else's");
    }
}

/// F6 at a region, with a victim in the middle of long WRITEs: from the fence's return on, no byte changes. The
/// owner's own operations go on, and a fence does not reach them.
#[test]
fn a_fence_stops_a_writer_at_a_region() {
    const BLOCK: usize = 1 << 20;
    const ROUNDS: u64 = 6;
    if !has_card("a_fence_stops_a_writer_at_a_region") {
        return;
    }
    let (servers, config) = pool(1, Duration::from_secs(60), 1 << 20);
    let (verbs, peer) = owner(&config, 2 << 20);
    let own = verbs.endpoint().unwrap();
    let words = own.own_region().expect("it exposes a region").words.clone();
    let fencer = Verbs::connect(config.clone()).unwrap().endpoint().unwrap();
    fencer.attach(peer).unwrap();
    for round in 1..=ROUNDS {
        let victim = Verbs::connect(config.clone()).unwrap();
        let who = victim.incarnation();
        let writer = thread::spawn(move || {
            let endpoint = victim.endpoint().unwrap();
            endpoint.attach(peer).unwrap();
            block_on(&endpoint, async {
                for count in 1.. {
                    let mut buf = endpoint.buf(BLOCK);
                    buf.words_mut().fill(round << 32 | count);
                    if endpoint.write(there(1 << 20), buf).await.is_err()
                        || endpoint.faa(there(64), 1).await.is_err()
                    {
                        break;
                    }
                }
                kind(endpoint.reconnect(OWNER).await)
            })
        });
        let counter = || words.as_slice()[8].load(Ordering::SeqCst);
        let before = counter();
        wait_until("the victim writes", || counter() > before + 2);
        declare_dead(servers[0].address(), who);
        block_on(&fencer, async {
            fencer.fence(ServerId(0), who).await.expect("fenced at the memory server");
            fencer.fence(OWNER, who).await.expect("fenced at the region");
        });
        let mut left = vec![0; BLOCK / 8];
        words.load((1 << 20) / 8, &mut left);
        let count = counter();
        block_on(&own, async {
            for _ in 0..3 {
                own.sleep(60_000_000).await;
                let read = own.read(there(1 << 20), own.buf(BLOCK)).await.expect("its own");
                assert!(read.words() == left, "a WRITE landed behind the fence");
                assert_eq!(
                    own.faa(there(64), 0).await,
                    Ok(count),
                    "an FAA landed behind the fence"
                );
            }
        });
        assert_eq!(writer.join().unwrap(), OpErrorKind::Fenced);
    }
}

/// F13 with another thread in the middle of long WRITEs: from the end's return on, no byte changes. The thread works on by
/// a new queue pair, at a memory server once it has reconnected.
#[test]
fn an_end_stops_the_writer_of_another_thread() {
    const BLOCK: usize = 1 << 20;
    const ROUNDS: u64 = 4;
    if !has_card("an_end_stops_the_writer_of_another_thread") {
        return;
    }
    let (servers, config) = pool(1, Duration::from_secs(60), 2 << 20);
    let (verbs, peer) = owner(&config, 2 << 20);
    let region = verbs.endpoint().unwrap().own_region().unwrap().words.clone();
    let both = Verbs::connect(config).unwrap();
    let other = both.endpoint().unwrap();
    other.attach(peer).unwrap();
    let mut kinds = Vec::new();
    for (round, server) in (1..=ROUNDS).flat_map(|round| [(round, ServerId(0)), (round, OWNER)]) {
        let words = if server == OWNER { &region } else { servers[0].words() };
        let to = move |offset| GlobalAddr::new(server, offset);
        let stops = Arc::new(AtomicBool::new(false));
        let ((tells, told), (go, goes)) = (channel(), channel::<()>());
        let (own, is_stopped) = (both.clone(), Arc::clone(&stops));
        let writer = thread::spawn(move || {
            let endpoint = own.endpoint().unwrap();
            let written = block_on(&endpoint, async {
                endpoint.faa(to(64), 1).await.expect("connected");
                tells.send(endpoint.connection(server).expect("it was used")).unwrap();
                let mut written = Ok(());
                while written.is_ok() && !is_stopped.load(Ordering::SeqCst) {
                    let mut buf = endpoint.buf(BLOCK);
                    buf.words_mut().fill(endpoint.random());
                    written = endpoint.write(to(1 << 20), buf).await.map(drop);
                    if written.is_ok() && !is_stopped.load(Ordering::SeqCst) {
                        written = endpoint.faa(to(64), 1).await.map(drop);
                    }
                }
                written.map_err(|error| error.kind)
            });
            goes.recv().unwrap();
            block_on(&endpoint, async {
                if server != OWNER && endpoint.faa(to(72), 0).await.is_err() {
                    endpoint.reconnect(server).await.expect("a new queue pair");
                }
                endpoint.faa(to(72), 1).await.expect("it works on");
            });
            written
        });
        let mark = told.recv().unwrap();
        let counter = || words.as_slice()[8].load(Ordering::SeqCst);
        let before = counter();
        wait_until("the other thread writes", || counter() > before + 2);
        thread::sleep(Duration::from_millis(round));
        stops.store(true, Ordering::SeqCst);
        block_on(&other, async {
            other.end_connection(mark).await.expect("ended");
            let mut left = vec![0; BLOCK / 8];
            words.load((1 << 20) / 8, &mut left);
            let count = counter();
            for _ in 0..3 {
                other.sleep(60_000_000).await;
                let read =
                    other.read(to(1 << 20), other.buf(BLOCK)).await.expect("the caller's own");
                assert!(read.words() == left, "a WRITE landed behind the end");
                assert_eq!(other.faa(to(64), 0).await, Ok(count), "an FAA landed behind the end");
            }
            other.end_connection(mark).await.expect("again");
        });
        go.send(()).unwrap();
        kinds.push(writer.join().unwrap());
        assert_eq!(words.as_slice()[9].load(Ordering::SeqCst), round);
    }
    eprintln!("the writers saw {kinds:?}");
}

/// More compute servers than one completion queue takes, each with a region, and more operations than a queue
/// pair takes.
#[test]
fn many_regions_are_reached_at_once() {
    const OWNERS: u64 = 11;
    if !has_card("many_regions_are_reached_at_once") {
        return;
    }
    let (_servers, mut config) = pool(1, Duration::from_secs(60), 1 << 20);
    config.depth = 16;
    let other = Verbs::connect(config.clone()).unwrap().endpoint().unwrap();
    let number = |owner: u64| ServerId(ServerId::COMPUTE_FIRST.0 + owner as u16);
    let owners: Vec<Verbs> = (0..OWNERS)
        .map(|owner| {
            let (verbs, server) = (Verbs::connect(config.clone()).unwrap(), number(owner));
            let exposed = verbs.expose(server, REGION, &ListenConfig::default()).unwrap();
            let address = exposed.map(|exposed| exposed.address);
            let incarnation = verbs.incarnation();
            other.attach(Peer { server, incarnation, address, region_bytes: REGION }).unwrap();
            verbs
        })
        .collect();
    block_on(&other, async {
        for round in 0..2 {
            let mut ops = other.ops();
            for part in 0..40 * OWNERS {
                ops.faa(GlobalAddr::new(number(part % OWNERS), 64), 1);
            }
            let ops = other.post_many(ops).await.expect("a large batch");
            let mut seen: Vec<u64> = (0..40).map(|part| ops.old(part * OWNERS as usize)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (40 * round..40 * (round + 1)).collect::<Vec<u64>>());
        }
    });
    drop(owners);
}
