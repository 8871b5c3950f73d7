//! Random commands on redis-server and on a gateway: the replies are the same, to the byte.
//!
//! Without redis-server on this machine (`scripts/setup.sh` installs it) the test prints that it was left out.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Resp, serve};

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

#[test]
fn replies_are_those_of_redis_server() {
    let Some(redis) = Redis::start() else {
        println!("left out: there is no redis-server on this machine");
        return;
    };
    let served = serve(|_| {});
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
            assert_eq!(shown(&ours), shown(&theirs), "step {step}: {}", sent.join(" "));
        }
    }
}
