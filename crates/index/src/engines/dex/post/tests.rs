//! Connection tests: each end against a peer that breaks the protocol or uses another pool.
#![allow(clippy::unwrap_used)]

use farleaf_fabric::Executor;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::line::{Line, SILENCE};
use super::wire::{
    Entry, GREETING_BYTES, Hello, REPLY_HEAD_BYTES, VERSION, Welcome, decode_reply,
    decode_reply_head, encode_reply, encode_request,
};
use super::*;
use crate::IndexError;

#[path = "../../../../../fabric/tests/common/authority.rs"]
mod authority;
use authority::Authority;

const POOL: u128 = 7;
const ME: Incarnation = Incarnation(5);
const OTHER: Incarnation = Incarnation(6);
const TABLE: u64 = 4096;

fn config(pool: u128, me: Incarnation) -> PostConfig {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let (advertise, tls, insecure_public) = (None, None, false);
    PostConfig { listen, advertise, tls, insecure_public, pool, me, connections_max: 2 }
}

fn post(pool: u128, me: Incarnation) -> Post {
    Post::start(config(pool, me), || ()).unwrap()
}

fn table() -> GlobalAddr {
    GlobalAddr::from_word(TABLE).unwrap()
}

fn change() -> Request {
    Request::Upsert { key: b"key".to_vec(), value: b"value".to_vec() }
}

/// What becomes of a request from `post` to [`OTHER`], who listens at `address`.
fn ask(post: &Post, address: SocketAddr, request: Request) -> Result<Reply, IndexError> {
    let route = post.route(table());
    assert!(route.wants_address(OTHER));
    route.learn_address(OTHER, address);
    assert!(!route.wants_address(OTHER));
    let to = WrongOwner { partition: 0, owner: Some(OTHER), epoch: 1 };
    let outcome = wait(route.forward(to, request));
    let end = Instant::now() + Duration::from_secs(5);
    while !route.wants_address(OTHER) && Instant::now() < end {
        // A connection that ended is forgotten with its address; one that stays keeps it.
        thread::sleep(Duration::from_millis(1));
        if matches!(outcome, Ok(Reply::Done(_))) {
            break;
        }
    }
    outcome
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    Executor::new().block_on(future)
}

/// Somebody who takes one connection, and does with it what is told.
fn stranger(act: impl FnOnce(&mut TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || act(&mut listener.accept().unwrap().0));
    address
}

/// Greets as it should, and takes so many bytes of a request.
fn greet_and_take(stream: &mut TcpStream, bytes: usize) {
    let mut hello = [0; GREETING_BYTES];
    stream.read_exact(&mut hello).unwrap();
    let hello = Hello::decode(&hello).unwrap();
    assert_eq!((hello.pool, hello.from, hello.to), (POOL, ME, OTHER));
    let welcome = Welcome { version: VERSION, entry: Entry::LetIn, pool: POOL, me: OTHER };
    stream.write_all(&welcome.encode()).unwrap();
    stream.read_exact(&mut vec![0; bytes]).unwrap();
}

fn request_bytes() -> usize {
    encode_request(1, TABLE, &change()).unwrap().len()
}

#[test]
fn a_change_that_was_sent_has_an_unknown_outcome_and_any_other_was_not_begun() {
    let own = post(POOL, ME);
    let unknown = |outcome| matches!(outcome, Err(IndexError::OutcomeUnknown(_)));
    let lost = stranger(|stream| greet_and_take(stream, request_bytes()));
    assert!(unknown(ask(&own, lost, change())));
    // One byte of it is enough.
    let cut = stranger(|stream| greet_and_take(stream, 1));
    assert!(unknown(ask(&own, cut, change())));
    let lost = stranger(|stream| greet_and_take(stream, 24));
    assert_eq!(ask(&own, lost, Request::Get { key: vec![1] }), Ok(Reply::Gone));
    let garbage = stranger(|stream| {
        greet_and_take(stream, request_bytes());
        stream.write_all(&[0xff; 40]).unwrap();
    });
    assert!(unknown(ask(&own, garbage, change())));
    let another = stranger(|stream| {
        greet_and_take(stream, request_bytes());
        stream.write_all(&encode_reply(99, &Ok(Reply::Done(true)))).unwrap();
    });
    assert!(unknown(ask(&own, another, change())));
    let silent = stranger(|stream| drop(stream.read(&mut [0])));
    assert_eq!(ask(&own, silent, change()), Ok(Reply::Gone), "it was never greeted");
    let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    assert_eq!(ask(&own, nobody, change()), Ok(Reply::Gone));
    let answered = stranger(|stream| {
        greet_and_take(stream, request_bytes());
        stream.write_all(&encode_reply(1, &Ok(Reply::Done(true)))).unwrap();
        drop(stream.read(&mut [0]));
    });
    assert_eq!(ask(&own, answered, change()), Ok(Reply::Done(true)));
}

/// Somebody at whom connections end in silence, the first of them: a router has forgotten it, so that neither
/// side hears of its end. All later requests would wait in vain.
#[test]
fn a_connection_that_is_lost_without_a_word_is_given_up() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (taken, has_taken) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        greet_and_take(&mut first, request_bytes());
        taken.send(()).unwrap();
        first.read_exact(&mut vec![0; request_bytes()]).unwrap();
        taken.send(()).unwrap();
        let (mut second, _) = listener.accept().unwrap();
        greet_and_take(&mut second, request_bytes());
        second.write_all(&encode_reply(1, &Ok(Reply::Done(true)))).unwrap();
        drop(second.read(&mut [0]));
    });
    let own = post(POOL, ME);
    let route = own.route(table());
    route.learn_address(OTHER, address);
    let to = WrongOwner { partition: 0, owner: Some(OTHER), epoch: 1 };
    let given_up = route.forward(to, change());
    has_taken.recv().unwrap();
    drop(given_up);
    // Nobody has waited for long.
    let waiting = route.forward(to, change());
    has_taken.recv().unwrap();
    thread::sleep(SILENCE);
    let mut outcome = wait(route.forward(to, change()));
    while outcome == Ok(Reply::Gone) {
        // The address is forgotten with the connection, as it may be out of date.
        route.learn_address(OTHER, address);
        outcome = wait(route.forward(to, change()));
    }
    assert_eq!(outcome, Ok(Reply::Done(true)), "over a new one");
    assert!(matches!(wait(waiting), Err(IndexError::OutcomeUnknown(_))), "over the first");
}

/// Somebody who is slow with one request, and answers others meanwhile.
#[test]
fn a_connection_on_which_something_comes_is_kept() {
    let address = stranger(|stream| {
        greet_and_take(stream, request_bytes());
        for number in [2, 3] {
            stream.read_exact(&mut vec![0; request_bytes()]).unwrap();
            stream.write_all(&encode_reply(number, &Ok(Reply::Done(true)))).unwrap();
        }
        drop(stream.read(&mut [0]));
    });
    let own = post(POOL, ME);
    let route = own.route(table());
    route.learn_address(OTHER, address);
    let to = WrongOwner { partition: 0, owner: Some(OTHER), epoch: 1 };
    let slow = route.forward(to, change());
    assert_eq!(wait(route.forward(to, change())), Ok(Reply::Done(true)));
    drop(slow);
    thread::sleep(SILENCE);
    assert_eq!(wait(route.forward(to, change())), Ok(Reply::Done(true)));
}

#[test]
fn who_works_on_something_else_is_told_and_told_of() {
    let own = post(POOL, ME);
    let refused = |address, words: &str| match ask(&own, address, change()) {
        Err(IndexError::Unavailable(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    };
    let elsewhere = post(8, OTHER);
    refused(elsewhere.address(), "works on another pool");
    let newer = stranger(|stream| {
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        let welcome = Welcome { version: 9, entry: Entry::LetIn, pool: POOL, me: OTHER };
        stream.write_all(&welcome.encode()).unwrap();
    });
    refused(newer, "speaks version 9");
    let web = stranger(|stream| {
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        stream.write_all(&[b'H'; 64]).unwrap();
    });
    refused(web, "does not answer as one of Farleaf");
    // An address that is out of date leads to whoever listens there by now.
    let next = post(POOL, Incarnation(77));
    assert_eq!(ask(&own, next.address(), change()), Ok(Reply::Gone));
    eventually("both have refused one", || (elsewhere.refused(), next.refused()) == (1, 1));
}

/// Who got hold of a connection that was still being made, and sends once it has been refused.
#[test]
fn who_comes_late_to_a_refused_connection_is_told_why() {
    let (own, elsewhere) = (post(POOL, ME), post(8, OTHER));
    let line = Line::open(&own.shared, OTHER, elsewhere.address());
    eventually("it has ended", || line.is_ended());
    match line.send(table(), &change()) {
        Err(IndexError::Unavailable(why)) => assert!(why.contains("another pool"), "{why}"),
        Ok(_) => panic!("it was sent, or nobody is said to be there"),
        Err(other) => panic!("{other}"),
    }
}

/// A connection to `post`, greeted as `hello` says; how it was received.
fn connect(post: &Post, hello: Hello) -> (TcpStream, Option<Welcome>) {
    let mut stream = TcpStream::connect(post.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&hello.encode()).unwrap();
    let mut bytes = [0; GREETING_BYTES];
    let welcome = stream.read_exact(&mut bytes).ok().and_then(|()| Welcome::decode(&bytes));
    (stream, welcome)
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn strangers_are_not_let_in_and_harm_nobody() {
    let office = post(POOL, OTHER);
    let hello = Hello { version: VERSION, pool: POOL, from: ME, to: OTHER };
    let entry = |hello| {
        let welcome = connect(&office, hello).1?;
        assert!((welcome.pool, welcome.me) == (0, Incarnation(0)), "it tells nothing");
        Some(welcome.entry)
    };
    assert_eq!(entry(Hello { version: 2, ..hello }), Some(Entry::OtherVersion));
    assert_eq!(entry(Hello { pool: 9, ..hello }), Some(Entry::OtherPool));
    assert_eq!(entry(Hello { to: ME, ..hello }), Some(Entry::OtherServer));
    let mut web = TcpStream::connect(office.address()).unwrap();
    web.write_all(&[b'G'; 64]).unwrap();
    assert_eq!(web.read(&mut [0; 64]).unwrap_or(0), 0, "closed without a word");
    eventually("they are counted", || office.refused() == 4);
    eventually("they are gone", || lock(&office.shared.incoming).is_empty());

    let (mut first, welcome) = connect(&office, hello);
    assert_eq!(welcome.map(|welcome| welcome.entry), Some(Entry::LetIn));
    // No request, and one that claims to be too long.
    for garbage in
        [[0xff; 24], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
    {
        let (mut other, _) = connect(&office, hello);
        other.write_all(&garbage).unwrap();
        assert_eq!(other.read(&mut [0; 64]).unwrap_or(0), 0, "closed");
        drop(other);
        eventually("it is gone", || lock(&office.shared.incoming).len() == 1);
    }
    let (_second, _) = connect(&office, hello);
    assert_eq!(entry(hello), Some(Entry::Full));
    // The first is served all the while; nobody serves the table.
    first.write_all(&encode_request(3, TABLE, &change()).unwrap()).unwrap();
    let mut head = [0; REPLY_HEAD_BYTES];
    first.read_exact(&mut head).unwrap();
    let (length, number) = decode_reply_head(&head).unwrap();
    let mut content = vec![0; length];
    first.read_exact(&mut content).unwrap();
    assert_eq!((number, decode_reply(&content)), (3, Ok(Ok(Reply::Gone))));
    office.shut_down();
    assert_eq!(first.read(&mut [0]).unwrap_or(0), 0, "it is closed with the post");
}

/// Whoever says nothing has a thread for a while; beyond some of those, nobody has.
#[test]
fn a_crowd_that_says_nothing_is_bounded_and_sent_away() {
    let office = post(POOL, OTHER);
    let hello = Hello { version: VERSION, pool: POOL, from: ME, to: OTHER };
    let (mut first, _) = connect(&office, hello);
    let crowd: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(office.address()).unwrap()).collect();
    eventually("those beyond are closed at once", || office.refused() >= 200 - 65);
    assert!(lock(&office.shared.incoming).len() <= 2 + 64);
    first.write_all(&encode_request(3, TABLE, &change()).unwrap()).unwrap();
    first.read_exact(&mut [0; REPLY_HEAD_BYTES]).unwrap();
    eventually("the others are sent away", || office.refused() == 200);
    for mut stream in crowd {
        assert_eq!(stream.read(&mut [0; 8]).unwrap_or(0), 0);
    }
    eventually("the first is left", || lock(&office.shared.incoming).len() == 1);
}

/// It asks for more and more, and takes no reply: what waits for it is bounded, and it is closed.
#[test]
fn who_takes_no_replies_loses_its_connection() {
    let office = post(POOL, OTHER);
    let (mut deaf, _) =
        connect(&office, Hello { version: VERSION, pool: POOL, from: ME, to: OTHER });
    let request = encode_request(3, TABLE, &change()).unwrap();
    let some = request.repeat(1000);
    let end = Instant::now() + Duration::from_secs(60);
    while deaf.write_all(&some).is_ok() {
        assert!(Instant::now() < end, "it goes on");
    }
    eventually("it is gone", || lock(&office.shared.incoming).is_empty());
}

#[test]
fn compute_servers_know_each_other_by_their_certificates() {
    let sealed = |me, tls: &Tls| {
        Post::start(PostConfig { tls: Some(tls.clone()), ..config(POOL, me) }, || ()).unwrap()
    };
    let ours = Authority::new();
    let (tls, other_tls) = (ours.somebody("127.0.0.1"), ours.somebody("127.0.0.1"));
    let (own, other) = (sealed(ME, &tls), sealed(OTHER, &other_tls));
    let to = |owner| WrongOwner { partition: 0, owner: Some(owner), epoch: 1 };
    let route = own.route(table());
    route.learn_address(OTHER, other.address());
    // Nobody serves the table there; the second is more than fits into one record.
    let large = Request::Upsert { key: b"key".to_vec(), value: vec![7; 5 << 20] };
    for request in [change(), large, change()] {
        assert_eq!(wait(route.forward(to(OTHER), request)), Ok(Reply::Gone));
    }
    assert_eq!((other.refused(), lock(&other.shared.incoming).len()), (0, 1));

    let refused = |from: &Post, words: &str| match ask(from, other.address(), change()) {
        Err(IndexError::Unavailable(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    };
    refused(&post(POOL, ME), "lets nobody in without TLS");
    let theirs = Authority::new();
    refused(&sealed(ME, &theirs.somebody("127.0.0.1")), "do not agree on TLS");
    // Vouched for, and made out to another name: it may ask, and nobody asks it.
    let misnamed = sealed(Incarnation(8), &ours.somebody("192.0.2.1"));
    route.learn_address(Incarnation(8), misnamed.address());
    match wait(route.forward(to(Incarnation(8)), change())) {
        Err(IndexError::Unavailable(why)) => assert!(why.contains("do not agree on TLS"), "{why}"),
        other => panic!("{other:?}"),
    }
    eventually("they are counted", || (other.refused(), misnamed.refused()) == (2, 1));
    // Who speaks TLS where nobody does comes to nobody, and no change of it has begun.
    let open = post(POOL, Incarnation(9));
    route.learn_address(Incarnation(9), open.address());
    assert_eq!(wait(route.forward(to(Incarnation(9)), change())), Ok(Reply::Gone));
}

#[test]
fn public_addresses_are_refused_unless_asked_for() {
    let refused = |address: &str| check_address(address.parse().unwrap(), None, false);
    assert!(matches!(refused("0.0.0.0:0"), Err(PostError::Public(_))));
    assert!(matches!(refused("192.0.2.1:80"), Err(PostError::Public(_))));
    assert!(refused("[::1]:0").is_ok());
    let any = |advertise: Option<&str>| {
        let advertise = advertise.map(|address| address.parse().unwrap());
        check_address("0.0.0.0:7".parse().unwrap(), advertise, true)
    };
    assert!(matches!(any(None), Err(PostError::NoAddress(_))));
    assert!(matches!(any(Some("[::]:7")), Err(PostError::NoAddress(_))));
    assert!(any(Some("192.0.2.1:80")).is_ok());
    // What is told does not open what is listened on, nor close it.
    let loopback = "127.0.0.1:7".parse().unwrap();
    assert!(check_address(loopback, Some("192.0.2.1:80".parse().unwrap()), false).is_ok());
    let open = check_address("192.0.2.1:80".parse().unwrap(), Some(loopback), false);
    assert!(matches!(open, Err(PostError::Public(_))));
    let taken = post(POOL, ME).address();
    let held = TcpListener::bind(taken).unwrap();
    let again = Post::start(PostConfig { listen: taken, ..config(POOL, ME) }, || ());
    assert!(matches!(again, Err(PostError::Listen { .. })));
    drop(held);
}

/// As behind a translation of addresses: others are told an address that leads there.
#[test]
fn others_are_told_the_address_that_is_advertised() {
    let told = |advertise: &str| {
        let listen = "0.0.0.0:0".parse().unwrap();
        let advertise = Some(advertise.parse().unwrap());
        let public = PostConfig { listen, advertise, insecure_public: true, ..config(POOL, OTHER) };
        let post = Post::start(public, || ()).unwrap();
        (post.address(), post.listens(), post)
    };
    let (address, listens, other) = told("127.0.0.1:0");
    assert_eq!(address, SocketAddr::from(([127, 0, 0, 1], listens.port())));
    assert!(listens.ip().is_unspecified());
    // Nobody serves the table there.
    let own = post(POOL, ME);
    let (route, to) =
        (own.route(table()), WrongOwner { partition: 0, owner: Some(OTHER), epoch: 1 });
    route.learn_address(OTHER, address);
    assert_eq!(wait(route.forward(to, change())), Ok(Reply::Gone));
    assert_eq!(lock(&other.shared.incoming).len(), 1, "it was let in");
    // It ends all the same.
    other.shut_down();
    assert!(TcpStream::connect(address).is_err());
    let (address, listens, _other) = told("192.0.2.1:7000");
    assert_eq!(address, "192.0.2.1:7000".parse().unwrap());
    assert_ne!(listens.port(), 0);
}
