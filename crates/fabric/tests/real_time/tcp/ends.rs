//! Ended connection tests: a link holds bytes back, and one thread settles what another one lost (F13).

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use farleaf_fabric::{ConnectionMark, ListenConfig, Peer};

use super::*;

const OWNER: ServerId = ServerId(ServerId::COMPUTE_FIRST.0 + 3);
const REGION: u64 = 64 << 10;
/// Far longer than bytes take from one end to the other.
const SETTLE: Duration = Duration::from_millis(100);

/// Bytes of a connection from its client that a link holds back.
const NONE: usize = 0;
const ALL: usize = 1;
const BEHIND_GREETING: usize = 2;

/// A link to a compute server, which clients reach through it. It counts connections, and holds bytes of each back as
/// told.
struct Link {
    address: SocketAddr,
    made: Arc<AtomicUsize>,
    held: Arc<[AtomicUsize; 16]>,
}

impl Link {
    fn to(server: SocketAddr) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (made, held) = (Arc::<AtomicUsize>::default(), Arc::<[AtomicUsize; 16]>::default());
        let (count, holds) = (Arc::clone(&made), Arc::clone(&held));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, held) = (client.unwrap(), Arc::clone(&holds));
                let number = count.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(server).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || forward(back.0, back.1, |_| true));
                thread::spawn(move || {
                    forward(client, server, |sent| match held[number].load(Ordering::SeqCst) {
                        NONE => true,
                        BEHIND_GREETING => sent < 64,
                        _ => false,
                    });
                });
            }
        });
        Link { address, made, held }
    }

    /// From now on, of the connection of that number.
    fn hold(&self, connection: usize, what: usize) {
        self.held[connection].store(what, Ordering::SeqCst);
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }
}

/// Forwards bytes while they may pass, by the number of those before.
fn forward(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn(usize) -> bool) {
    let (mut bytes, mut sent) = ([0; 64], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while !may_pass(sent) {
            thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        sent += count;
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// An owner of a region, its words, and the peer that it is to others through a link.
fn behind_link(config: &TcpConfig) -> (Tcp, Arc<Words>, Link, Peer) {
    let owner = Tcp::connect(config.clone()).unwrap();
    let exposed = owner.expose(OWNER, REGION, &ListenConfig::default()).unwrap().unwrap();
    let words = Arc::clone(&owner.endpoint().unwrap().own_region().unwrap().words);
    let link = Link::to(exposed.address);
    let (incarnation, address) = (owner.incarnation(), Some(link.address));
    (owner, words, link, Peer { server: OWNER, incarnation, address, region_bytes: REGION })
}

fn there(offset: u64) -> GlobalAddr {
    GlobalAddr::new(OWNER, offset)
}

fn word(words: &Words, offset: u64) -> u64 {
    words.as_slice()[offset as usize / 8].load(Ordering::SeqCst)
}

/// Posts an addition, and drops it after some time, in which the thread runs.
async fn lose(end: &TcpEndpoint, to: GlobalAddr) {
    let mut add = pin!(end.faa(to, 1));
    let first = std::future::poll_fn(|context| std::task::Poll::Ready(add.as_mut().poll(context)));
    assert!(first.await.is_pending());
    end.sleep(SETTLE.as_nanos() as u64).await;
}

/// A thread of `tcp` that does `before`, names its operations on the region, and does not run until it is told to do
/// `after`.
fn idle_thread<F: Future<Output = ()>, G: Future<Output = ()>>(
    tcp: &Tcp,
    before: impl FnOnce(TcpEndpoint) -> F + Send + 'static,
    after: impl FnOnce(TcpEndpoint) -> G + Send + 'static,
) -> (Receiver<Option<ConnectionMark>>, Sender<()>, thread::JoinHandle<()>) {
    let ((tells, told), (go, goes)) = (channel(), channel());
    let tcp = tcp.clone();
    let thread = thread::spawn(move || {
        let end = tcp.endpoint().unwrap();
        block_on(&end, before(end.clone()));
        tells.send(end.connection(OWNER)).unwrap();
        goes.recv().unwrap();
        block_on(&end, after(end.clone()));
    });
    (told, go, thread)
}

fn connected(config: TcpConfig, peer: Peer) -> (Tcp, TcpEndpoint) {
    let tcp = Tcp::connect(config).unwrap();
    let end = tcp.endpoint().unwrap();
    end.attach(peer).unwrap();
    (tcp, end)
}

/// An operation was sent, and is on its way. The other thread does not run, and works on when it does.
#[test]
fn what_is_on_its_way_never_lands_once_its_connection_is_ended() {
    let (_pool, config) = pool(1, LONG);
    let (_owner, words, link, peer) = behind_link(&config);
    let (tcp, end) = connected(config, peer);
    let link = Arc::new(link);
    let holds = Arc::clone(&link);
    let before = async move |end: TcpEndpoint| {
        assert_eq!(end.faa(there(8), 1).await, Ok(0));
        holds.hold(0, ALL);
        lose(&end, there(8)).await;
    };
    let after = async |end: TcpEndpoint| assert_eq!(end.faa(there(8), 1).await, Ok(1));
    let (told, go, thread) = idle_thread(&tcp, before, after);
    let mark = told.recv().unwrap().expect("an operation is under way");
    assert_eq!(mark.server(), OWNER);
    block_on(&end, async {
        assert_eq!(end.faa(there(16), 1).await, Ok(0));
        assert_eq!(end.end_connection(mark).await, Ok(()));
        assert_eq!(link.made(), 3, "the thread's, the caller's, and one that greets alone");
        assert_eq!(end.end_connection(mark).await, Ok(()), "again");
        assert_eq!(end.faa(there(16), 1).await, Ok(1), "the caller's own");
    });
    let made = link.made();
    link.hold(0, NONE);
    thread::sleep(SETTLE);
    assert_eq!(word(&words, 8), 1);
    go.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(link.made(), made + 1, "the thread's new connection, and none of the caller's");
    assert_eq!(word(&words, 8), 2);
}

/// An operation waits for a connection, whose greeting is on its way. It is never sent, also if the server lets the
/// connection in.
#[test]
fn what_waits_for_a_connection_is_never_sent_once_that_is_ended() {
    let (_pool, config) = pool(1, LONG);
    let (_owner, words, link, peer) = behind_link(&config);
    let (tcp, end) = connected(config, peer);
    link.hold(0, ALL);
    let before = async |end: TcpEndpoint| lose(&end, there(8)).await;
    let after = async |end: TcpEndpoint| {
        // The connection that was being made serves later operations.
        end.sleep(SETTLE.as_nanos() as u64).await;
        assert_eq!(end.faa(there(8), 1).await, Ok(0));
    };
    let (told, go, thread) = idle_thread(&tcp, before, after);
    let mark = told.recv().unwrap().expect("an operation waits");
    assert_eq!(block_on(&end, end.end_connection(mark)), Ok(()));
    assert_eq!(link.made(), 1, "nothing was sent, so there is nothing to greet for");
    link.hold(0, NONE);
    thread::sleep(SETTLE);
    go.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!((link.made(), word(&words, 8)), (1, 1));
    assert_eq!(block_on(&end, end.end_connection(mark)), Ok(()), "its thread has gone");
}

/// An operation waited for a connection when it was named, and was sent on it afterwards.
#[test]
fn what_was_sent_behind_the_mark_never_lands_once_its_connection_is_ended() {
    let (_pool, config) = pool(1, LONG);
    let (_owner, words, link, peer) = behind_link(&config);
    let (tcp, end) = connected(config, peer);
    let link = Arc::new(link);
    link.hold(0, ALL);
    let (gives, given) = channel();
    let passes = Arc::clone(&link);
    let before = async move |end: TcpEndpoint| {
        lose(&end, there(8)).await;
        gives.send(end.connection(OWNER).expect("an operation waits")).unwrap();
        passes.hold(0, BEHIND_GREETING);
        end.sleep(SETTLE.as_nanos() as u64).await;
    };
    let after = async |end: TcpEndpoint| assert_eq!(end.faa(there(8), 1).await, Ok(0));
    let (told, go, thread) = idle_thread(&tcp, before, after);
    let (mark, later) = (given.recv().unwrap(), told.recv().unwrap().unwrap());
    assert_ne!(mark, later);
    assert_eq!(block_on(&end, end.end_connection(mark)), Ok(()));
    assert_eq!(link.made(), 2);
    link.hold(0, NONE);
    thread::sleep(SETTLE);
    assert_eq!(word(&words, 8), 0);
    assert_eq!(block_on(&end, end.end_connection(later)), Ok(()));
    go.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(word(&words, 8), 1);
}

/// The thread that lost an operation has gone, with its end of the connection; the bytes are still on their way.
#[test]
fn what_a_thread_left_never_lands_once_its_connection_is_ended() {
    let (_pool, config) = pool(1, LONG);
    let (_owner, words, link, peer) = behind_link(&config);
    let (tcp, end) = connected(config, peer);
    let link = Arc::new(link);
    let holds = Arc::clone(&link);
    let before = async move |end: TcpEndpoint| {
        assert_eq!(end.faa(there(8), 1).await, Ok(0));
        holds.hold(0, ALL);
        lose(&end, there(8)).await;
    };
    let (told, go, thread) = idle_thread(&tcp, before, async |_| {});
    let mark = told.recv().unwrap().expect("an operation is under way");
    go.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(block_on(&end, end.end_connection(mark)), Ok(()));
    link.hold(0, NONE);
    thread::sleep(SETTLE);
    assert_eq!(word(&words, 8), 1);
}

/// Nobody at the address, a fence, another life, and the news of a death. A thread that posted nothing has no mark.
#[test]
fn an_end_that_fails_says_why() {
    let (_pool, config) = pool(1, LONG);
    let (owner, words, link, peer) = behind_link(&config);
    let (tcp, end) = connected(config.clone(), peer);
    assert_eq!(end.connection(OWNER), None, "nothing was posted");
    assert_eq!(end.connection(ServerId(7)), None, "there is no such server");
    block_on(&end, async { end.faa(there(8), 1).await }).unwrap();
    let mark = end.connection(OWNER).unwrap();
    let other = tcp.endpoint().unwrap();
    let ends = |mark| block_on(&other, async { other.end_connection(mark).await });
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    other.attach(Peer { address: Some(nobody), ..peer }).unwrap();
    assert_eq!(kind(ends(mark)), OpErrorKind::Unavailable);
    other.attach(peer).unwrap();
    assert_eq!(ends(mark), Ok(()));
    // The connection was dropped as the address changed.
    block_on(&end, async { end.faa(there(8), 1).await }).unwrap();
    let mark = end.connection(OWNER).unwrap();
    other.attach(Peer { incarnation: Incarnation(9), ..peer }).unwrap();
    let gone = OpErrorKind::Gone { who: peer.incarnation };
    assert_eq!(kind(ends(mark)), gone);
    other.detach(OWNER);
    assert_eq!(kind(ends(mark)), gone);
    other.attach(peer).unwrap();
    assert_eq!(ends(mark), Ok(()), "the life that it was for");
    // A fenced compute server ends nothing.
    let (fenced, late) = connected(config.clone(), peer);
    block_on(&late, async { late.faa(there(8), 1).await }).unwrap();
    let doubt = late.connection(OWNER).unwrap();
    let who = fenced.incarnation();
    let mut raw = enter(config.servers[0], who.0, 0, 1);
    raw.write_all(&request(BYE, 0, 0, &[])).unwrap();
    assert_eq!(answer(&mut raw), (0, vec![]));
    block_on(&other, async {
        other.fence(ServerId(0), who).await.unwrap();
        other.fence(OWNER, who).await.unwrap();
    });
    let refused = block_on(&late, async { late.end_connection(doubt).await });
    assert_eq!(kind(refused), OpErrorKind::Fenced);
    assert_eq!(word(&words, 8), 3);
    drop(owner);
    drop(link);
    block_on(&other, async {
        assert!(other.is_dead(peer.incarnation).await, "it has said goodbye");
        assert_eq!(kind(other.end_connection(mark).await), gone);
    });
    assert_eq!(end.connection(OWNER), None, "nothing can be under way there");
}

/// A greeting in the place of a connection that the server does not know is let in, and harms nobody.
#[test]
fn an_unknown_connection_is_replaced_by_none() {
    let (_pool, config) = pool(1, LONG);
    let mut stream = enter(config.servers[0], 7, 0, 1);
    let mut greeting = hello(7, 0, 1);
    (greeting[12], greeting[32]) = (1, 77);
    let mut welcome = [0; 64];
    knock(config.servers[0], &greeting).read_exact(&mut welcome).unwrap();
    assert_eq!((welcome[12], welcome[16]), (0, 2), "let in, as the second");
    stream.write_all(&request(FAA, 64, 8, &1_u64.to_le_bytes())).unwrap();
    assert_eq!(answer(&mut stream), (0, vec![0; 8]));
}
