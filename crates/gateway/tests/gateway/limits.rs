//! Limits: clients that send too much, take nothing, or are too many.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use farleaf::{ErrorKind, KeyFormat, TableOptions, ValueFormat};
use farleaf_gateway::{Gateway, GatewayError, GatewayOptions};

use crate::common::{Resp, command, serve};
use crate::records::serve_records;

#[test]
fn bytes_that_are_no_commands_end_the_connection_with_a_word() {
    let served = serve(|_| {});
    for (bytes, text) in [
        (&b"*1\r\n$x\r\n"[..], "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*x\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*65537\r\n", "-ERR Protocol error: too many arguments: 65537, limit 65536\r\n"),
        (b"*2\r\n$3\r\nGET\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
    ] {
        let mut resp = Resp::connect(served.gateway.address());
        resp.send(bytes);
        assert_eq!(String::from_utf8(resp.reply()).unwrap(), text);
        assert!(resp.is_closed());
    }
    // Others do not notice.
    assert_eq!(Resp::connect(served.gateway.address()).say("PING"), "+PONG\r\n");
}

/// Its connections end a while after the word, so that it keeps the gateway busy ten times a second and not more.
#[test]
fn a_client_that_is_refused_and_comes_again_waits() {
    let served = serve(|_| {});
    let began = Instant::now();
    let before = served.gateway.counts().connected;
    while began.elapsed() < Duration::from_secs(1) {
        let mut resp = Resp::connect(served.gateway.address());
        // The gateway reads no more than it takes to refuse.
        let _ = resp.try_send(&[b'x'; 300_000]);
        assert_eq!(resp.reply(), b"-ERR Protocol error: too big inline request\r\n");
        assert!(resp.is_closed());
    }
    let connected = served.gateway.counts().connected - before;
    assert!((1..=11).contains(&connected), "{connected} connections in {:?}", began.elapsed());
    // One that goes by itself leaves its place at once, and nothing of either is left.
    let mut resp = Resp::connect(served.gateway.address());
    resp.send(b"*x\r\n");
    drop(resp);
    let end = Instant::now() + Duration::from_secs(10);
    while served.gateway.counts().connections > 0 || served.gateway.counts().client_bytes > 0 {
        assert!(Instant::now() < end, "{:?}", served.gateway.counts());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn keys_and_values_beyond_the_tables_limits_are_refused() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    let reply = resp.ask(&[b"SET", &[b'k'; 2_000], b"v"]);
    assert!(reply.starts_with(b"-ERR ") && reply.windows(4).any(|it| it == b"1024"), "{reply:?}");
    let reply = resp.ask(&[b"SET", b"k", &vec![b'v'; (1 << 20) + 1]]);
    assert!(reply.starts_with(b"-ERR "), "{:?}", String::from_utf8_lossy(&reply));
    let reply = resp.ask(&[b"SETRANGE", b"k", b"1048576", b"x"]);
    assert!(
        reply.starts_with(b"-ERR string exceeds maximum"),
        "{:?}",
        String::from_utf8_lossy(&reply)
    );
    assert_eq!(resp.ask(&[b"SET", b"k", &vec![b'v'; 1 << 20]]), b"+OK\r\n");
    assert_eq!(resp.ask(&[b"STRLEN", b"k"]), b":1048576\r\n");
    assert_eq!(resp.say("PING"), "+PONG\r\n");
}

#[test]
fn keys_and_values_of_another_length_are_refused() {
    let served = serve(|options| {
        let table = TableOptions::default().keys(KeyFormat::Fixed(8));
        options.creates = Some(table.values(ValueFormat::Fixed(2)));
    });
    let mut resp = Resp::connect(served.gateway.address());
    assert_eq!(resp.say("SET 12345678 ab"), "+OK\r\n");
    for line in ["SET short ab", "GET short", "DEL 123456789", "MSET 12345678 cd short ab"] {
        let reply = resp.say(line);
        assert!(reply.starts_with("-ERR ") && reply.contains("a key of "), "{line}: {reply}");
    }
    for line in ["SET 12345678 abc", "APPEND 12345678 c"] {
        let reply = resp.say(line);
        assert!(reply.contains("a value of 3 bytes: this table takes "), "{line}: {reply}");
    }
    assert_eq!(resp.say("GET 12345678"), "$2\r\ncd\r\n");
}

/// A client that asks for 1 GiB and reads nothing, and one that asks for it in one command: the gateway keeps little of
/// that and serves the others; once the clients read, they get all.
#[test]
fn a_client_that_takes_nothing_holds_up_nobody_else() {
    const VALUE_BYTES: usize = 1 << 20;
    let served = serve(|_| {});
    let mut slow =
        [Resp::connect(served.gateway.address()), Resp::connect(served.gateway.address())];
    let value = vec![b'v'; VALUE_BYTES];
    assert_eq!(slow[0].ask(&[b"SET", b"k", &value]), b"+OK\r\n");
    slow[0].send(&command(&[b"GET", b"k"]).repeat(1_024));
    let mut mget: Vec<&[u8]> = vec![b"MGET"];
    mget.resize(1_025, b"k");
    slow[1].send(&command(&mget));
    let mut other = Resp::connect(served.gateway.address());
    let mut most = 0;
    for _ in 0..1_000 {
        let began = Instant::now();
        assert_eq!(other.say("PING"), "+PONG\r\n");
        assert!(began.elapsed() < Duration::from_secs(5));
        most = most.max(served.gateway.counts().client_bytes);
    }
    // A part of commands whose values are larger than those of before, at most.
    assert!(most < 200 << 20, "{most} bytes");
    for _ in 0..64 {
        assert_eq!(slow[0].reply().len(), VALUE_BYTES + "$1048576\r\n\r\n".len());
    }
    slow[1].skip("*1024\r\n".len());
    for _ in 0..64 {
        slow[1].skip(VALUE_BYTES + "$1048576\r\n\r\n".len());
    }
    // Parts are small by now, once the last replies are counted out.
    let end = Instant::now() + Duration::from_secs(20);
    while served.gateway.counts().client_bytes >= 16 << 20 {
        assert!(Instant::now() < end, "{:?}", served.gateway.counts());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Large hashes count as large values do: once the gateway has met some, it reads a few of them at a time.
#[test]
fn large_hashes_run_in_small_parts() {
    const FIELDS: usize = 1_000;
    const FIELD_BYTES: usize = 1_000;
    let served = serve_records();
    let mut slow = Resp::connect(served.gateway.address());
    let value = vec![b'v'; FIELD_BYTES];
    let names: Vec<_> = (0..FIELDS).map(|number| format!("{number:04}")).collect();
    let mut fields: Vec<&[u8]> = vec![b"HSET", b"k"];
    fields.extend(names.iter().flat_map(|name| [name.as_bytes(), &value]));
    assert_eq!(slow.ask(&fields), b":1000\r\n");
    slow.send(&command(&[b"HGETALL", b"k"]).repeat(256));
    for _ in 0..70 {
        assert!(slow.reply().len() > FIELDS * FIELD_BYTES);
    }
    let end = Instant::now() + Duration::from_secs(20);
    while served.gateway.counts().client_bytes >= 16 << 20 {
        assert!(Instant::now() < end, "{:?}", served.gateway.counts());
        thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel connects clients while the gateway's only thread is busy: none of them waits to try again.
#[test]
fn a_busy_gateway_lets_nobody_wait_to_connect() {
    let served = serve(|_| {});
    let mut busy = Resp::connect(served.gateway.address());
    for number in 0..2_000 {
        let key = format!("{}{number}", "a".repeat(1_000));
        assert_eq!(busy.ask(&[b"SET", key.as_bytes(), b"v"]), b"+OK\r\n");
    }
    // Each key takes some 250,000 steps.
    let pattern = format!("*{}b", "a".repeat(500));
    busy.send(&command(&[b"KEYS", pattern.as_bytes()]));
    thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    let all: Vec<_> = (0..300).map(|_| Resp::connect(served.gateway.address())).collect();
    let took = began.elapsed();
    assert_eq!(served.gateway.counts().connections, 1, "the gateway was busy meanwhile");
    assert!(took < Duration::from_millis(900), "{took:?}");
    assert_eq!(busy.reply(), b"*0\r\n");
    drop(all);
}

/// Clients that take nothing for long, send nothing for long, or do not say who they are, are closed.
#[test]
fn clients_that_stand_still_are_closed() {
    let served = serve(|options| {
        options.slow_client = Duration::from_secs(1);
        options.idle = Some(Duration::from_secs(2));
    });
    let mut slow = Resp::connect(served.gateway.address());
    let value = vec![b'v'; 1 << 20];
    assert_eq!(slow.ask(&[b"SET", b"k", &value]), b"+OK\r\n");
    slow.send(&command(&[b"GET", b"k"]).repeat(64));
    let mut idle = Resp::connect(served.gateway.address());
    assert_eq!(idle.say("PING"), "+PONG\r\n");
    let end = Instant::now() + Duration::from_secs(20);
    while served.gateway.counts().closed < 2 {
        assert!(Instant::now() < end, "{:?}", served.gateway.counts());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(idle.is_closed());
    assert_eq!(served.gateway.counts().client_bytes, 0);
}

/// 1,000 clients that send half a command each: their bytes stay below the limit, and others are served.
#[test]
fn half_commands_take_no_more_than_their_share() {
    const MEMORY: usize = 8 << 20;
    let served = serve(|options| options.client_memory = MEMORY);
    let mut other = Resp::connect(served.gateway.address());
    let half = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n"[..], &[b'v'; 30_000]].concat();
    let mut all = Vec::new();
    let mut most = 0;
    for number in 0..1_000 {
        let mut resp = Resp::connect(served.gateway.address());
        resp.send(&half);
        all.push(resp);
        if number % 50 == 0 {
            let began = Instant::now();
            assert_eq!(other.say("SET other 1"), "+OK\r\n");
            assert!(began.elapsed() < Duration::from_secs(5));
            most = most.max(served.gateway.counts().client_bytes);
        }
    }
    assert_eq!(other.say("GET other"), "$1\r\n1\r\n");
    most = most.max(served.gateway.counts().client_bytes);
    assert!(most <= 2 * MEMORY as u64 + (1 << 20), "{most} bytes");
    // Those that end give their bytes back.
    drop(all);
    let end = Instant::now() + Duration::from_secs(20);
    while served.gateway.counts().connections > 1 {
        assert!(Instant::now() < end, "{:?}", served.gateway.counts());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.say("GET other"), "$1\r\n1\r\n");
    let mut large = Resp::connect(served.gateway.address());
    assert_eq!(large.ask(&[b"SET", b"k", &vec![b'v'; 1 << 20]]), b"+OK\r\n");
}

/// A client that has sent all that it wants, more than its replies may wait for, and says so.
#[test]
fn all_commands_run_for_a_client_that_sends_nothing_more() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    let value = vec![b'v'; 1 << 20];
    assert_eq!(resp.ask(&[b"SET", b"k", &value]), b"+OK\r\n");
    let gets = 24;
    resp.send(&command(&[b"GET", b"k"]).repeat(gets));
    resp.send(&command(&[b"SET", b"last", b"1"]));
    resp.end();
    for _ in 0..gets {
        assert_eq!(resp.reply().len(), value.len() + "$1048576\r\n\r\n".len());
    }
    assert_eq!(resp.reply(), b"+OK\r\n");
    assert!(resp.is_closed());
}

#[test]
fn one_client_more_than_allowed_is_told() {
    let served = serve(|options| options.connections_max = 2);
    let mut held: Vec<_> = (0..2).map(|_| Resp::connect(served.gateway.address())).collect();
    for resp in &mut held {
        assert_eq!(resp.say("PING"), "+PONG\r\n");
    }
    let mut more = Resp::connect(served.gateway.address());
    assert_eq!(more.reply(), b"-ERR max number of clients reached\r\n");
    assert!(more.is_closed());
    drop(held.pop());
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let mut again = Resp::connect(served.gateway.address());
        again.send(&command(&[b"PING"]));
        if again.reply() == b"+PONG\r\n" {
            break;
        }
        assert!(Instant::now() < end, "a place is free again");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_served() {
    let served = serve(|_| {});
    let refusal = |change: fn(&mut GatewayOptions)| {
        let mut options = GatewayOptions::new(vec!["t".to_owned()]);
        change(&mut options);
        Gateway::start(served.db.clone(), options).unwrap_err().to_string()
    };
    assert_eq!(refusal(|it| it.tables.clear()), "a gateway needs a table to serve");
    assert_eq!(refusal(|it| it.threads = 0), "0 threads: a gateway has 1 to 64");
    assert_eq!(refusal(|it| it.connections_max = 0), "no connections: give at least 1");
    let mut taken = GatewayOptions::new(vec!["t".to_owned()]);
    taken.listen = served.gateway.address();
    let error = Gateway::start(served.db.clone(), taken).unwrap_err();
    assert!(matches!(error, GatewayError::Listen { .. }), "{error}");
}

/// Ends while a client has commands under way: they are answered, and the store can be closed.
#[test]
fn stopping_answers_what_was_received() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    assert_eq!(resp.say("SET a 1"), "+OK\r\n");
    let mut half = TcpStream::connect(served.gateway.address()).unwrap();
    half.write_all(b"*2\r\n$3\r\nGET").unwrap();
    served.gateway.stop();
    assert!(resp.is_closed());
    assert_eq!(served.db.table("db0").unwrap().get("a").unwrap().as_deref(), Some(&b"1"[..]));
    let table = served.db.table("db0").unwrap();
    served.db.close().unwrap();
    assert_eq!(table.get("a").unwrap_err().kind(), ErrorKind::Closed);
}
