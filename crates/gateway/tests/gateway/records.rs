//! Records: expiry and hashes by Redis's commands, and what they are in tables of raw values.

use std::thread;
use std::time::Duration;

use farleaf::{Content, TableOptions};

use crate::common::{Resp, Served, serve};

/// A gateway whose tables are of records.
pub(crate) fn serve_records() -> Served {
    serve(|options| {
        options.creates = Some(TableOptions::default().content(Content::Records));
    })
}

fn check(resp: &mut Resp, lines: &[(&str, &str)]) {
    for (line, reply) in lines {
        assert_eq!(resp.say(line), *reply, "{line}");
    }
}

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

#[test]
fn keys_expire_as_in_redis() {
    let served = serve_records();
    let mut resp = Resp::connect(served.gateway.address());
    check(
        &mut resp,
        &[
            ("TTL ada", ":-2\r\n"),
            ("SET ada 1815", "+OK\r\n"),
            ("TTL ada", ":-1\r\n"),
            ("PTTL ada", ":-1\r\n"),
            ("EXPIRE ada 100", ":1\r\n"),
            ("TTL ada", ":100\r\n"),
            ("EXPIRE ada 50 GT", ":0\r\n"),
            ("EXPIRE ada 200 NX", ":0\r\n"),
            ("EXPIRE ada 200 XX", ":1\r\n"),
            ("TTL ada", ":200\r\n"),
            ("INCR ada", ":1816\r\n"),
            ("APPEND ada !", ":5\r\n"),
            ("TTL ada", ":200\r\n"),
            ("SET ada 1 KEEPTTL", "+OK\r\n"),
            ("TTL ada", ":200\r\n"),
            ("SET ada 2 XX KEEPTTL GET", "$1\r\n1\r\n"),
            ("TTL ada", ":200\r\n"),
            ("SET ada 3 GET", "$1\r\n2\r\n"),
            ("TTL ada", ":-1\r\n"),
            ("EXPIREAT ada 4000000000", ":1\r\n"),
            ("EXPIRETIME ada", ":4000000000\r\n"),
            ("PEXPIRETIME ada", ":4000000000000\r\n"),
            ("PERSIST ada", ":1\r\n"),
            ("PERSIST ada", ":0\r\n"),
            ("SETEX ada 100 x", "+OK\r\n"),
            ("TTL ada", ":100\r\n"),
            ("GETEX ada EX 300", "$1\r\nx\r\n"),
            ("TTL ada", ":300\r\n"),
            ("GETEX ada PERSIST", "$1\r\nx\r\n"),
            ("TTL ada", ":-1\r\n"),
            // The same unit may come again, and another may not.
            ("SET ada x EX 5 EX 100", "+OK\r\n"),
            ("TTL ada", ":100\r\n"),
            ("GETEX ada EX 5 EX 300", "$1\r\nx\r\n"),
            ("TTL ada", ":300\r\n"),
            ("GETEX ada PERSIST PERSIST", "$1\r\nx\r\n"),
            ("TTL ada", ":-1\r\n"),
            ("GETEX ada EX 5 PX 5", "-ERR syntax error\r\n"),
            ("GETEX ada EX 5 PERSIST", "-ERR syntax error\r\n"),
            ("GETEX ada PERSIST EX 5", "-ERR syntax error\r\n"),
            ("GETEX ada EX", "-ERR syntax error\r\n"),
            ("SET ada y EX 100 NX", "$-1\r\n"),
            ("SET ada y EX 100 XX", "+OK\r\n"),
            ("SET ada z EX 200 IFEQ x", "$-1\r\n"),
            ("SET ada z EX 200 IFEQ y", "+OK\r\n"),
            ("TTL ada", ":200\r\n"),
            ("PEXPIRE ada 0", ":1\r\n"),
            ("GET ada", "$-1\r\n"),
            ("EXPIRE ada 10", ":0\r\n"),
            ("SET ada 1 EXAT 1", "+OK\r\n"),
            ("EXISTS ada", ":0\r\n"),
            ("SET ada 1 EX 0", "-ERR invalid expire time in 'set' command\r\n"),
            ("SET ada 1 EX x", "-ERR value is not an integer or out of range\r\n"),
            ("SET ada 1 EX 5 KEEPTTL", "-ERR syntax error\r\n"),
            ("SET ada 1 EX 5 PX 5", "-ERR syntax error\r\n"),
            ("PSETEX ada -1 v", "-ERR invalid expire time in 'psetex' command\r\n"),
            ("EXPIRE ada 9223372036854775807", "-ERR invalid expire time in 'expire' command\r\n"),
            (
                "EXPIRE ada 1 GT LT",
                "-ERR GT and LT options at the same time are not compatible\r\n",
            ),
        ],
    );
    // Every command finds an expired key absent.
    for key in ["a", "b", "c", "d", "e"] {
        assert_eq!(resp.say(&format!("SET {key} 1 PX 30")), "+OK\r\n");
    }
    resp.say("SET f 1");
    thread::sleep(Duration::from_millis(40));
    check(
        &mut resp,
        &[
            ("DEL a", ":0\r\n"),
            ("SETNX b 2", ":1\r\n"),
            ("MGET c f", "*2\r\n$-1\r\n$1\r\n1\r\n"),
            ("INCR d", ":1\r\n"),
            ("TTL d", ":-1\r\n"),
            ("SCAN 0", "*2\r\n$1\r\n0\r\n*3\r\n$1\r\nb\r\n$1\r\nd\r\n$1\r\nf\r\n"),
            ("DBSIZE", ":3\r\n"),
        ],
    );
    let info = resp.say("INFO stats");
    let expired = info.lines().find_map(|line| line.strip_prefix("expired_keys:"));
    assert!(expired.is_some_and(|count| count.trim() != "0"), "{info}");
}

#[test]
fn hashes_are_those_of_redis() {
    let served = serve_records();
    let mut resp = Resp::connect(served.gateway.address());
    check(
        &mut resp,
        &[
            ("HSET h b 2 a 1", ":2\r\n"),
            ("HSET h a 3 c 4", ":1\r\n"),
            ("HGET h a", "$1\r\n3\r\n"),
            ("HGET h x", "$-1\r\n"),
            ("HGET nobody x", "$-1\r\n"),
            ("HMGET h a x c", "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n4\r\n"),
            (
                "HGETALL h",
                "*6\r\n$1\r\na\r\n$1\r\n3\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n4\r\n",
            ),
            ("HGETALL nobody", "*0\r\n"),
            ("HKEYS h", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"),
            ("HVALS h", "*3\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n4\r\n"),
            ("HLEN h", ":3\r\n"),
            ("HEXISTS h b", ":1\r\n"),
            ("HEXISTS h x", ":0\r\n"),
            ("HSTRLEN h b", ":1\r\n"),
            ("HSETNX h b 9", ":0\r\n"),
            ("HSETNX h d text", ":1\r\n"),
            ("HINCRBY h a 39", ":42\r\n"),
            ("HINCRBY h d 1", "-ERR hash value is not an integer\r\n"),
            ("HINCRBYFLOAT h a 0.5", "$4\r\n42.5\r\n"),
            ("HINCRBYFLOAT h a inf", "-ERR value is NaN or Infinity\r\n"),
            (
                "HSCAN h 0 MATCH [bd] COUNT 5",
                "*2\r\n$1\r\n0\r\n*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nd\r\n$4\r\ntext\r\n",
            ),
            ("HDEL h a x d", ":2\r\n"),
            ("HMSET h e 5", "+OK\r\n"),
            ("TYPE h", "+hash\r\n"),
            ("EXISTS h h", ":2\r\n"),
            ("OBJECT ENCODING h", "$8\r\nlistpack\r\n"),
            ("MEMORY USAGE h", ":7\r\n"),
            ("SET s text", "+OK\r\n"),
            ("MGET s h", "*2\r\n$4\r\ntext\r\n$-1\r\n"),
            ("GET h", WRONG_TYPE),
            ("STRLEN h", WRONG_TYPE),
            ("INCR h", WRONG_TYPE),
            ("SET h x GET", WRONG_TYPE),
            ("GETDEL h", WRONG_TYPE),
            ("GETEX h EX 5", WRONG_TYPE),
            ("HSET s a 1", WRONG_TYPE),
            ("HGETALL s", WRONG_TYPE),
            ("HLEN s", WRONG_TYPE),
            ("SETNX h x", ":0\r\n"),
            ("EXPIRE h 100", ":1\r\n"),
            ("HSET h f 6", ":1\r\n"),
            ("TTL h", ":100\r\n"),
            ("SCAN 0 TYPE hash", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nh\r\n"),
            ("SCAN 0 TYPE string", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\ns\r\n"),
            ("KEYS *", "*2\r\n$1\r\nh\r\n$1\r\ns\r\n"),
            ("ZRANGEBYLEX db0 - +", "*2\r\n$1\r\nh\r\n$1\r\ns\r\n"),
            ("FARLEAF.RANGE - +", "*4\r\n$1\r\nh\r\n$-1\r\n$1\r\ns\r\n$4\r\ntext\r\n"),
            ("FARLEAF.FLOOR h", WRONG_TYPE),
            ("FARLEAF.LONGESTRUN h s x", ":2\r\n"),
            ("HDEL h b c e f", ":4\r\n"),
            ("EXISTS h", ":0\r\n"),
            ("HSET h a 1", ":1\r\n"),
            ("SET h now-a-string", "+OK\r\n"),
            ("HSET h a", "-ERR wrong number of arguments for 'hset' command\r\n"),
            ("HSET h a 1 b", "-ERR wrong number of arguments for 'hset' command\r\n"),
            ("HSCAN h x", "-ERR invalid cursor\r\n"),
            ("HINCRBY h a x", "-ERR value is not an integer or out of range\r\n"),
        ],
    );
    assert_eq!(resp.say("HELLO 3").as_bytes()[0], b'%');
    assert_eq!(resp.say("DEL h"), ":1\r\n");
    assert_eq!(resp.say("HSET h a 1"), ":1\r\n");
    assert_eq!(resp.say("HGETALL h"), "%1\r\n$1\r\na\r\n$1\r\n1\r\n");
    let long = vec![b'x'; 1 << 20];
    let refused = resp.ask(&[b"HSET", b"h", b"long", &long]);
    let refused = String::from_utf8(refused).unwrap();
    assert!(refused.starts_with("-ERR ") && refused.contains("a hash of "), "{refused}");
    assert_eq!(resp.say("HLEN h"), ":1\r\n");
}

#[test]
fn tables_of_raw_values_say_what_they_lack() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    resp.say("SET ada 1815");
    for command in
        ["EXPIRE ada 5", "TTL ada", "PERSIST ada", "SETEX ada 5 v", "HSET ada a 1", "HGET ada a"]
    {
        let name = command.split(' ').next().unwrap();
        let text = format!(
            "-ERR {name} needs a table of records: \"db0\" holds raw values (make it with --content records)\r\n"
        );
        assert_eq!(resp.say(command), text);
    }
    check(
        &mut resp,
        &[
            ("SET ada 1816 KEEPTTL", "+OK\r\n"),
            ("GETEX ada", "$4\r\n1816\r\n"),
            ("TYPE ada", "+string\r\n"),
            ("GET ada", "$4\r\n1816\r\n"),
        ],
    );
}

/// Records that no client meets are removed, and their memory is given back.
#[test]
fn the_sweeper_removes_records_that_no_client_reads() {
    let served = serve_records();
    let mut resp = Resp::connect(served.gateway.address());
    for number in 0..50 {
        assert_eq!(resp.say(&format!("SET key{number} v PX 20")), "+OK\r\n");
    }
    resp.say("SET stays v");
    let table = served.db.table("db0").unwrap();
    let mut left = 51;
    for _ in 0..100 {
        left = table.stats().unwrap().keys;
        if left == 1 {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(left, 1, "keys that are stored");
    assert!(resp.say("INFO stats").contains("expired_keys:50\r\n"));
}
