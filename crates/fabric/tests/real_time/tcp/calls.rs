//! Call fault tests: calls between compute servers over TCP, with broken peers and connections.

use farleaf_fabric::{CallError, Incoming, ListenConfig, Peer, ServiceId};

use super::*;

const CALL: u8 = 12;
const REPLY: u8 = 7;
const ECHO: ServiceId = ServiceId(5);

/// A compute server, and the peer that it is to others.
fn exposed(config: &TcpConfig, number: u16) -> (Tcp, Peer) {
    let tcp = Tcp::connect(config.clone()).unwrap();
    let server = ServerId(ServerId::COMPUTE_FIRST.0 + number);
    let exposed = tcp.expose(server, 0, &ListenConfig::default()).unwrap();
    let address = exposed.map(|exposed| exposed.address);
    let peer = Peer { server, incarnation: tcp.incarnation(), address, region_bytes: 0 };
    (tcp, peer)
}

/// A raw greeting to a compute server.
fn hello_to(peer: Peer, who: u64, servers: u16) -> [u8; 64] {
    let mut bytes = hello(who, peer.server.0, servers);
    bytes[40..48].copy_from_slice(&peer.incarnation.0.to_le_bytes());
    bytes
}

fn entry(address: SocketAddr, greeting: &[u8]) -> (TcpStream, u8) {
    let mut stream = knock(address, greeting);
    let mut welcome = [0; 64];
    stream.read_exact(&mut welcome).unwrap();
    (stream, welcome[12])
}

fn call(number: u64, bytes: &[u8]) -> Vec<u8> {
    request(CALL, number << 16 | u64::from(ECHO.0), bytes.len() as u32, bytes)
}

async fn next_begun(end: &TcpEndpoint) -> Incoming {
    let mut incoming = end.next_call(ECHO).await.unwrap();
    assert!(incoming.begin());
    incoming
}

#[test]
fn a_raw_call_is_answered_as_the_page_says() {
    let (_pool, config) = pool(1, LONG);
    let (tcp, peer) = exposed(&config, 3);
    let address = peer.address.unwrap();
    let end = tcp.endpoint().unwrap();
    let (mut stream, let_in) = entry(address, &hello_to(peer, 7, 1));
    assert_eq!(let_in, 0);
    stream.write_all(&[call(9, b"abc"), call(11, b"")].concat()).unwrap();
    block_on(&end, async {
        let first = next_begun(&end).await;
        assert_eq!((first.from, &first.request[..]), (Incarnation(7), &b"abc"[..]));
        drop(end.next_call(ECHO).await.unwrap());
        first.reply(b"defg".to_vec()).unwrap();
    });
    let word = |number: u64, outcome: u64| (number << 16 | outcome).to_le_bytes().to_vec();
    assert_eq!(answer(&mut stream), (REPLY, word(11, 1)));
    assert_eq!(answer(&mut stream), (REPLY, [word(9, 0), b"defg".to_vec()].concat()));
    // A repeated number ends the connection; a begun request of it is dropped.
    stream.write_all(&call(11, b"again")).unwrap();
    assert!(is_closed(&mut stream));
}

#[test]
fn strangers_get_nowhere() {
    let (_pool, config) = pool(2, LONG);
    let (_tcp, peer) = exposed(&config, 3);
    let address = peer.address.unwrap();
    // Of another pool, for another number, another life, or none.
    let mut other_life = hello_to(peer, 7, 2);
    other_life[40] ^= 1;
    let other_number = hello_to(Peer { server: ServerId(1), ..peer }, 7, 2);
    for greeting in [hello_to(peer, 7, 1), other_number, other_life, hello(7, peer.server.0, 2)] {
        let (mut stream, entry) = entry(address, &greeting);
        assert_eq!(entry, 2);
        assert!(is_closed(&mut stream));
    }
    // A memory server takes no calls, however long they say they are.
    for bytes in [call(1, b"abc"), call(1, &[0; 100])[..50].to_vec()] {
        let mut stream = enter(config.servers[0], 7, 0, 2);
        stream.write_all(&bytes).unwrap();
        assert!(is_closed(&mut stream));
    }
    let (mut stream, _) = entry(address, &hello_to(peer, 7, 2));
    stream.write_all(&request(CALL, 1 << 16, (16 << 20) + 1, &[])).unwrap();
    assert!(is_closed(&mut stream), "a call that is too long");
}

#[test]
fn more_calls_than_may_be_under_way_end_the_connection() {
    let (_pool, config) = pool(1, LONG);
    let (_tcp, peer) = exposed(&config, 3);
    let (mut stream, _) = entry(peer.address.unwrap(), &hello_to(peer, 7, 1));
    let calls: Vec<u8> = (1..=1_025).flat_map(|number| call(number, b"")).collect();
    stream.write_all(&calls).unwrap();
    assert!(is_closed(&mut stream));
}

/// A region serves memory and calls under its own bounds. Whatever else a memory server serves ends the
/// connection. A client does not believe that a region is larger than it is.
#[test]
fn a_region_serves_memory_and_calls_alone() {
    const REGION: u64 = 64 << 10;
    let (_pool, config) = pool(1, LONG);
    let owner = Tcp::connect(config.clone()).unwrap();
    let server = ServerId(ServerId::COMPUTE_FIRST.0 + 3);
    let refused = |bytes| owner.expose(server, bytes, &ListenConfig::default()).unwrap_err();
    assert!(refused(4097).to_string().contains("multiple of 4096"));
    assert!(
        refused(1 << 47).to_string().contains("compute server 16387"),
        "memory that is not to be had"
    );
    let exposed = owner.expose(server, REGION, &ListenConfig::default()).unwrap().unwrap();
    let (incarnation, address) = (owner.incarnation(), Some(exposed.address));
    let peer = Peer { server, incarnation, address, region_bytes: REGION };
    let enter = || entry(exposed.address, &hello_to(peer, 7, 1)).0;
    let mut stream = enter();
    stream.write_all(&request(FAA, 8, 8, &5_u64.to_le_bytes())).unwrap();
    assert_eq!(answer(&mut stream), (0, vec![0; 8]));
    stream.write_all(&request(READ, REGION - 8, 16, &[])).unwrap();
    assert_eq!(answer(&mut stream).0, 1, "out of bounds");
    stream.write_all(&request(READ, 8, 8, &[])).unwrap();
    assert_eq!(answer(&mut stream), (0, 5_u64.to_le_bytes().to_vec()));
    for (verb, operands) in [(5, vec![1; 8]), (7, vec![1; 8]), (8, Vec::new()), (BYE, Vec::new())] {
        let mut stream = enter();
        stream.write_all(&request(verb, 0, operands.len() as u32, &operands)).unwrap();
        assert!(is_closed(&mut stream), "verb {verb}");
    }
    let tcp = Tcp::connect(config).unwrap();
    let end = tcp.endpoint().unwrap();
    end.attach(Peer { region_bytes: 2 * REGION, ..peer }).unwrap();
    block_on(&end, async {
        let there = |offset| GlobalAddr::new(server, offset);
        assert_eq!(end.faa(there(8), 1).await, Ok(5));
        let beyond = kind(end.read(there(REGION), end.buf(8)).await);
        assert!(matches!(beyond, OpErrorKind::OutOfBounds { .. }), "{beyond:?}");
        assert_eq!(end.faa(there(8), 1).await, Ok(6), "the connection goes on");
        // Another life is meant: whoever answers there is not it.
        end.attach(Peer { incarnation: Incarnation(9), ..peer }).unwrap();
        assert_eq!(kind(end.faa(there(8), 1).await), OpErrorKind::Unavailable);
        // Nobody answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Some(listener.local_addr().unwrap());
        drop(listener);
        end.attach(Peer { address, ..peer }).unwrap();
        assert_eq!(kind(end.faa(there(8), 1).await), OpErrorKind::Unavailable);
        // A peer that greets as it should, and answers with what is no answer.
        end.attach(Peer { address: Some(babbler(peer)), ..peer }).unwrap();
        assert_eq!(kind(end.faa(there(8), 1).await), OpErrorKind::Unavailable);
        end.attach(peer).unwrap();
        assert_eq!(end.faa(there(8), 1).await, Ok(7));
    });
}

/// Listens as `peer` does, and answers the first request of each connection by garbage.
fn babbler(peer: Peer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut greeting = [0; 64];
            if stream.read_exact(&mut greeting).is_ok() {
                // `FarleafT`, version, let in, number of the connection, server and servers.
                let mut welcome = hello(1, peer.server.0, 1);
                welcome[32..40].copy_from_slice(&peer.region_bytes.to_le_bytes());
                let _ = stream.write_all(&welcome);
                let _ = stream.read_exact(&mut [0; 24]);
                let _ = stream.write_all(&[0xa5; 100]);
            }
        }
    });
    address
}

#[test]
fn an_address_that_may_not_be_told_is_refused() {
    let (_pool, config) = pool(1, LONG);
    let tcp = Tcp::connect(config).unwrap();
    let number = ServerId::COMPUTE_FIRST;
    let why =
        |listen: ListenConfig| tcp.expose(number, 0, &listen).expect_err("refused").to_string();
    let at = |ip: [u8; 4]| SocketAddr::from((ip, 0));
    let public = ListenConfig { listen: at([192, 0, 2, 1]), ..Default::default() };
    assert!(why(public).contains("insecure_public"));
    let all = ListenConfig { listen: at([0; 4]), insecure_public: true, ..Default::default() };
    assert!(why(all.clone()).contains("stands for all addresses"));
    let advertised = ListenConfig { advertise: Some(at([127, 0, 0, 1])), ..all };
    let told = tcp.expose(number, 0, &advertised).unwrap().unwrap();
    assert!(told.address.ip().is_loopback() && told.address.port() != 0);
    assert_eq!(told.listens.port(), told.address.port());
    assert!(why(ListenConfig::default()).contains("once in its life"));
    let nowhere =
        Peer { server: number, incarnation: Incarnation(3), address: None, region_bytes: 0 };
    assert!(tcp.endpoint().unwrap().attach(nowhere).is_err());
}

/// If a peer ends while no call is under way, a later call is not begun.
#[test]
fn a_call_of_a_peer_that_has_ended_is_not_begun() {
    let (_pool, config) = pool(1, LONG);
    let (other, peer) = exposed(&config, 1);
    let tcp = Tcp::connect(config).unwrap();
    let end = tcp.endpoint().unwrap();
    end.attach(peer).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = other.endpoint().unwrap();
            block_on(&theirs, async {
                next_begun(&theirs).await.reply(vec![1]).unwrap();
            });
        });
        block_on(&end, async {
            assert_eq!(end.call(peer.server, ECHO, Vec::new()).await, Ok(vec![1]));
        });
    });
    drop(other);
    block_on(&end, async {
        for _ in 0..3 {
            let called = end.call(peer.server, ECHO, Vec::new()).await;
            assert_eq!(called, Err(CallError::NotBegun));
        }
        assert!(end.is_dead(peer.incarnation).await, "it has said goodbye");
        assert_eq!(end.call(peer.server, ECHO, Vec::new()).await, Err(CallError::NotBegun));
    });
}

/// A receiver leaves while senders call it all the time: each call is done or not begun.
#[test]
fn a_receiver_that_leaves_leaves_no_call_unknown() {
    const TASKS: u64 = 8;
    let (_pool, config) = pool(1, LONG);
    let tcp = Tcp::connect(config.clone()).unwrap();
    for round in 0..20 {
        let (other, peer) = exposed(&config, round);
        tcp.endpoint().unwrap().attach(peer).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let end = tcp.endpoint().unwrap();
                    let left = Rc::new(Cell::new(TASKS));
                    for _ in 0..TASKS {
                        let (calling, left) = (end.clone(), Rc::clone(&left));
                        end.spawn(async move {
                            let mut last = Ok(Vec::new());
                            while last.is_ok() {
                                last = calling.call(peer.server, ECHO, vec![1; 100]).await;
                            }
                            assert_eq!(last, Err(CallError::NotBegun));
                            left.set(left.get() - 1);
                        });
                    }
                    block_on(&end, async {
                        while left.get() > 0 {
                            end.sleep(100_000).await;
                        }
                    });
                });
            }
            let theirs = other.endpoint().unwrap();
            block_on(&theirs, async {
                let serving = theirs.clone();
                theirs.spawn(async move {
                    while let Some(mut incoming) = serving.next_call(ECHO).await {
                        if incoming.begin() {
                            serving.yield_now().await;
                            incoming.reply(vec![2; 100]).unwrap();
                        }
                    }
                });
                theirs.sleep(10_000_000 + u64::from(round) * 100_000).await;
                theirs.leave().await;
            });
            drop((theirs, other));
        });
    }
}

/// F12.10, and a thread that sleeps is woken by a reply: many calls from some threads at once.
#[test]
fn threads_call_each_other_at_once() {
    let (_pool, config) = pool(1, LONG);
    let computers: Vec<_> = (0..2).map(|number| exposed(&config, number)).collect();
    let peers: Vec<Peer> = computers.iter().map(|(_, peer)| *peer).collect();
    for (tcp, _) in &computers {
        let end = tcp.endpoint().unwrap();
        peers.iter().for_each(|peer| end.attach(*peer).unwrap());
    }
    let done = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (computers, peers, done) = (&computers, &peers, &done);
            scope.spawn(move || {
                let me = thread as usize % 2;
                let end = computers[me].0.endpoint().unwrap();
                let serving = end.clone();
                let to = peers[1 - me].server;
                block_on(&end, async {
                    end.spawn(async move {
                        while let Some(mut incoming) = serving.next_call(ECHO).await {
                            assert!(incoming.begin());
                            let reply = incoming.request.clone();
                            incoming.reply(reply).unwrap();
                        }
                    });
                    let left = Rc::new(Cell::new(200));
                    for number in 0..200_u64 {
                        let (calling, left) = (end.clone(), Rc::clone(&left));
                        end.spawn(async move {
                            let request = vec![thread as u8; number as usize * 100];
                            let reply = calling.call(to, ECHO, request.clone()).await;
                            assert_eq!(reply, Ok(request));
                            left.set(left.get() - 1);
                        });
                    }
                    while left.get() > 0 {
                        end.sleep(100_000).await;
                    }
                    // Others may still call this one: it goes on until another thread has seen all.
                    let waits = end.clone();
                    let (sender, all) = std::sync::mpsc::channel();
                    scope.spawn(move || {
                        done.wait();
                        let _ = sender.send(());
                    });
                    while all.try_recv().is_err() {
                        waits.sleep(1_000_000).await;
                    }
                    waits.leave().await;
                });
            });
        }
    });
}
