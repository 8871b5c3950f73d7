//! Random commands on redis-server and on a gateway: the replies are the same, to the byte.
//!
//! Without redis-server on this machine (`scripts/setup.sh` installs it) the test prints that it was left out.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Resp, Served, serve};
use crate::records::serve_records;

/// A redis-server of this test.
struct Redis {
    process: Child,
    address: SocketAddr,
}

impl Redis {
    /// Starts one; `None` if this machine has none.
    fn start() -> Option<Redis> {
        let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", &address.port().to_string(), "--save", "", "--appendonly", "no"])
            .args(["--bind", "127.0.0.1"])
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let redis = Redis { process, address };
        let end = Instant::now() + Duration::from_secs(10);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "redis-server does not come up");
            thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A random command of those that the table calls *yes*.
fn draw(rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let key = |rng: &mut fastrand::Rng| -> Vec<u8> {
        let keys: [&[u8]; 8] = [b"a", b"b", b"ab", b"a\0", b"\xff", b"key:1", b"key:2", b"n"];
        keys[rng.usize(..keys.len())].to_vec()
    };
    let value = |rng: &mut fastrand::Rng| -> Vec<u8> {
        let values: [&[u8]; 8] =
            [b"", b"x", b"12", b"-7", b"007", b"9223372036854775807", b"a\r\nb", b"text"];
        values[rng.usize(..values.len())].to_vec()
    };
    let number = |rng: &mut fastrand::Rng| -> Vec<u8> {
        let numbers: [&[u8]; 9] =
            [b"0", b"1", b"-1", b"3", b"-3", b"100", b"9223372036854775807", b"x", b"1.5"];
        numbers[rng.usize(..numbers.len())].to_vec()
    };
    let word = |word: &str| word.as_bytes().to_vec();
    match rng.u32(..24) {
        0 | 1 => vec![word("GET"), key(rng)],
        2 | 3 => vec![word("SET"), key(rng), value(rng)],
        4 => vec![word("set"), key(rng), value(rng), word(["NX", "XX", "bad"][rng.usize(..3)])],
        5 => vec![word("SET"), key(rng), value(rng), word("XX"), word("GET")],
        6 => vec![word("SETNX"), key(rng), value(rng)],
        7 => vec![word("GETSET"), key(rng), value(rng)],
        8 => vec![word("GETDEL"), key(rng)],
        9 => vec![word("MGET"), key(rng), key(rng), key(rng)],
        10 => vec![word("MSET"), key(rng), value(rng), key(rng), value(rng)],
        11 => vec![word("DEL"), key(rng), key(rng)],
        12 => vec![word("EXISTS"), key(rng), key(rng)],
        13 => vec![word("STRLEN"), key(rng)],
        14 => vec![word("GETRANGE"), key(rng), number(rng), number(rng)],
        15 => vec![word("APPEND"), key(rng), value(rng)],
        16 => vec![word("SETRANGE"), key(rng), vec![b'0' + rng.u8(..6)], value(rng)],
        17 => vec![word("INCR"), key(rng)],
        18 => vec![word("INCRBY"), key(rng), number(rng)],
        19 => vec![word("DECRBY"), key(rng), number(rng)],
        20 => vec![word("TYPE"), key(rng)],
        21 => vec![word("GET")],
        22 => vec![word("PING"), value(rng)],
        _ => vec![word("ECHO"), value(rng)],
    }
}

/// A random command on records: expiry far off or in the past, and hashes. Replies that depend on the order of fields, or
/// on a clock by the millisecond, are left out: a time of `GT` is far from every other time of the run.
fn draw_record(rng: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    if rng.u8(..3) == 0 {
        return draw(rng);
    }
    let key = |rng: &mut fastrand::Rng| ["a", "b", "key:1", "n"][rng.usize(..4)].to_owned();
    let field = |rng: &mut fastrand::Rng| ["f", "g", "h", ""][rng.usize(..4)].to_owned();
    let value = |rng: &mut fastrand::Rng| ["", "1", "-7", "text", "007"][rng.usize(..5)].to_owned();
    let time = |rng: &mut fastrand::Rng| {
        ["100", "1000", "0", "-1", "x", "9223372036854775807"][rng.usize(..6)].to_owned()
    };
    let moment = |rng: &mut fastrand::Rng| ["4000000000", "1", "0"][rng.usize(..3)].to_owned();
    let word = str::to_owned;
    let (k, f) = (key(rng), field(rng));
    let far = (rng.u32(1..1_000_000) * 4_000).to_string();
    let later = ["0", "-1", "x", "9223372036854775807", &far, &far][rng.usize(..6)].to_owned();
    let words = match rng.u32(..37) {
        0 | 1 => vec![word("HSET"), k, f, value(rng)],
        2 => vec![word("HSET"), k, f, value(rng), field(rng), value(rng)],
        3 => vec![word("HMSET"), k, f, value(rng)],
        4 => vec![word("HSETNX"), k, f, value(rng)],
        5 => vec![word("HGET"), k, f],
        6 => vec![word("HMGET"), k, f, field(rng)],
        7 => vec![word("HDEL"), k, f],
        8 => vec![word("HDEL"), k, f, field(rng)],
        9 => vec![word("HLEN"), k],
        10 => vec![word("HEXISTS"), k, f],
        11 => vec![word("HSTRLEN"), k, f],
        12 => vec![word("HINCRBY"), k, f, ["1", "-5", "x"][rng.usize(..3)].to_owned()],
        13 => vec![word("HSET"), k, f],
        14 => vec![word("TTL"), k],
        15 => vec![word("PERSIST"), k],
        16 => vec![word("EXPIRE"), k, time(rng)],
        17 => vec![word("EXPIRE"), k, time(rng), word(["NX", "XX", "LT"][rng.usize(..3)])],
        18 => vec![word("EXPIRE"), k, time(rng), word("NX"), word(["XX", "bad"][rng.usize(..2)])],
        19 => vec![word("EXPIREAT"), k, moment(rng)],
        20 => vec![word("PEXPIRE"), k, word(["100000", "-1", "x"][rng.usize(..3)])],
        21 => vec![word("SETEX"), k, time(rng), value(rng)],
        22 => vec![word("PSETEX"), k, word(["200000", "0"][rng.usize(..2)]), value(rng)],
        23 => vec![word("GETEX"), k],
        24 => vec![word("GETEX"), k, word("EX"), time(rng)],
        25 => vec![word("GETEX"), k, word("PERSIST")],
        26 => vec![word("SET"), k, value(rng), word("EX"), time(rng)],
        27 => vec![word("SET"), k, value(rng), word("KEEPTTL")],
        28 => vec![word("SET"), k, value(rng), word("EXAT"), moment(rng), word("GET")],
        29 => vec![
            word("SET"),
            k,
            value(rng),
            word(["NX", "XX"][rng.usize(..2)]),
            word("EX"),
            time(rng),
        ],
        30 => vec![word("SET"), k, value(rng), word("EX"), time(rng), word("KEEPTTL")],
        31 => vec![
            word("SET"),
            k,
            value(rng),
            word("EX"),
            time(rng),
            word(["EX", "PX"][rng.usize(..2)]),
            word("500000"),
        ],
        32 => vec![
            word("GETEX"),
            k,
            word(["EX", "PERSIST"][rng.usize(..2)]),
            word(["PERSIST", "100"][rng.usize(..2)]),
        ],
        33 => vec![word("HINCRBYFLOAT"), k, f, word(["inf", "-inf", "x"][rng.usize(..3)])],
        34 => vec![word("GETDEL"), k],
        35 => vec![word("EXPIRE"), k, later, word("GT")],
        _ => vec![word("TYPE"), k],
    };
    words.into_iter().map(String::into_bytes).collect()
}

#[test]
fn replies_are_those_of_redis_server() {
    play(&serve(|_| {}), draw);
}

#[test]
fn replies_on_records_are_those_of_redis_server() {
    play(&serve_records(), draw_record);
}

/// Seconds that may have been rounded at different moments.
fn are_near(ours: &[u8], theirs: &[u8]) -> bool {
    let seconds = |reply: &[u8]| -> Option<i64> {
        let text = std::str::from_utf8(reply).ok()?;
        text.strip_prefix(':')?.trim_end().parse().ok().filter(|seconds| *seconds >= 0)
    };
    seconds(ours).zip(seconds(theirs)).is_some_and(|(ours, theirs)| ours.abs_diff(theirs) <= 1)
}

fn play(served: &Served, draw: impl Fn(&mut fastrand::Rng) -> Vec<Vec<u8>>) {
    let Some(redis) = Redis::start() else {
        println!("left out: there is no redis-server on this machine");
        return;
    };
    for version in [b"2", b"3"] {
        let mut sides = [Resp::connect(redis.address), Resp::connect(served.gateway.address())];
        for side in &mut sides {
            side.ask(&[b"HELLO", version]);
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for step in 0..10_000 {
            let command = draw(&mut rng);
            let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            let [theirs, ours] = &mut sides;
            let (theirs, ours) = (theirs.ask(&args), ours.ask(&args));
            let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let sent: Vec<String> = command.iter().map(|arg| shown(arg)).collect();
            let is_same = ours == theirs || sent[0] == "TTL" && are_near(&ours, &theirs);
            let (ours, theirs) = (shown(&ours), shown(&theirs));
            assert!(is_same, "step {step}: {}: {ours}, redis-server {theirs}", sent.join(" "));
        }
    }
}
