//! Commands: their replies, their order, and what a lost or dropped table does to them.

use std::thread;

use farleaf::Farleaf;
use farleaf_gateway::{Multi, Overlap};

use crate::common::{Resp, command, serve};

#[test]
fn strings_answer_as_redis_does() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    for (line, reply) in [
        ("PING", "+PONG\r\n"),
        ("get ada", "$-1\r\n"),
        ("SET ada 1815", "+OK\r\n"),
        ("GET ada", "$4\r\n1815\r\n"),
        ("SET ada 1 NX", "$-1\r\n"),
        ("SET alan 1912 XX", "$-1\r\n"),
        ("SET ada 1816 IFEQ 1815", "+OK\r\n"),
        ("SET ada 1 IFEQ 1815", "$-1\r\n"),
        ("SET ada 1815 GET", "$4\r\n1816\r\n"),
        ("SET ada x NX GET", "$4\r\n1815\r\n"),
        ("GET ada", "$4\r\n1815\r\n"),
        ("SETNX ada 7", ":0\r\n"),
        ("SETNX alan 1912", ":1\r\n"),
        ("MGET ada nobody alan", "*3\r\n$4\r\n1815\r\n$-1\r\n$4\r\n1912\r\n"),
        ("EXISTS ada ada nobody", ":2\r\n"),
        ("STRLEN ada", ":4\r\n"),
        ("GETRANGE ada 1 -2", "$2\r\n81\r\n"),
        ("TYPE ada", "+string\r\n"),
        ("TYPE nobody", "+none\r\n"),
        ("APPEND ada !", ":5\r\n"),
        ("SETRANGE ada 6 x", ":7\r\n"),
        ("INCR count", ":1\r\n"),
        ("INCRBY count 41", ":42\r\n"),
        ("DECRBY count 2", ":40\r\n"),
        ("DECR count", ":39\r\n"),
        ("INCR ada", "-ERR value is not an integer or out of range\r\n"),
        ("INCRBYFLOAT count 0.5", "$4\r\n39.5\r\n"),
        ("GETDEL count", "$4\r\n39.5\r\n"),
        ("DEL ada alan nobody", ":2\r\n"),
        ("MSET a 1 b 2", "+OK\r\n"),
        ("DELIFEQ a 2", ":0\r\n"),
        ("DELIFEQ a 1", ":1\r\n"),
        (
            "SET a 1 EX 5",
            "-ERR SET with an expiry needs a table of records: \"db0\" holds raw values (make it with --content \
             records)\r\n",
        ),
        ("GET", "-ERR wrong number of arguments for 'get' command\r\n"),
        ("SET a", "-ERR wrong number of arguments for 'set' command\r\n"),
        ("SET a b c", "-ERR syntax error\r\n"),
        ("NONSENSE a b", "-ERR unknown command 'NONSENSE', with args beginning with: 'a' 'b' \r\n"),
        (
            "LPUSH a b",
            "-ERR unknown command 'LPUSH': farleaf has no lists; docs/redis-commands.md has what it has\r\n",
        ),
    ] {
        assert_eq!(resp.say(line), reply, "{line}");
    }
}

#[test]
fn keys_are_ranged_over_by_bytes() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    for key in ["ada", "alan", "barbara", "edsger", "grace"] {
        assert_eq!(resp.say(&format!("SET {key} {}", key.len())), "+OK\r\n");
    }
    for (line, reply) in [
        ("ZRANGEBYLEX db0 [a (b", "*2\r\n$3\r\nada\r\n$4\r\nalan\r\n"),
        ("ZRANGEBYLEX db0 - + LIMIT 1 2", "*2\r\n$4\r\nalan\r\n$7\r\nbarbara\r\n"),
        ("ZREVRANGEBYLEX db0 + (barbara", "*2\r\n$5\r\ngrace\r\n$6\r\nedsger\r\n"),
        ("ZRANGE db0 [f - BYLEX REV LIMIT 0 1", "*1\r\n$6\r\nedsger\r\n"),
        ("ZLEXCOUNT db0 - +", ":5\r\n"),
        ("ZLEXCOUNT db0 + -", ":0\r\n"),
        ("ZREMRANGEBYLEX db0 [b (c", ":1\r\n"),
        (
            "ZRANGEBYLEX other - +",
            "-ERR sorted sets are not supported; to range over the keys of the table, name it: \"db0\"\r\n",
        ),
        ("ZRANGEBYLEX db0 a +", "-ERR min or max not valid string range item\r\n"),
        ("ZRANGE db0 0 -1", "-ERR keys have no ranks: range over them with BYLEX\r\n"),
        ("FARLEAF.RANGE [a (b", "*4\r\n$3\r\nada\r\n$1\r\n3\r\n$4\r\nalan\r\n$1\r\n4\r\n"),
        ("FARLEAF.RANGE - + KEYS REV LIMIT 1", "*1\r\n$5\r\ngrace\r\n"),
        ("FARLEAF.FLOOR b", "*2\r\n$4\r\nalan\r\n$1\r\n4\r\n"),
        ("FARLEAF.CEILING b", "*2\r\n$6\r\nedsger\r\n$1\r\n6\r\n"),
        ("FARLEAF.LONGESTPREFIX adaline", "*2\r\n$3\r\nada\r\n$1\r\n3\r\n"),
        ("FARLEAF.LONGESTPREFIX xyz", "$-1\r\n"),
        ("FARLEAF.LONGESTRUN ada alan nobody grace", ":2\r\n"),
        ("DBSIZE", ":4\r\n"),
        ("KEYS *a*", "*3\r\n$3\r\nada\r\n$4\r\nalan\r\n$5\r\ngrace\r\n"),
        ("FLUSHDB", "-ERR FLUSHDB is off: start the gateway with --allow-flush\r\n"),
    ] {
        assert_eq!(resp.say(line), reply, "{line}");
    }
    // Another table is another world.
    assert_eq!(resp.say("SELECT 1"), "+OK\r\n");
    assert_eq!(resp.say("DBSIZE"), ":0\r\n");
    assert_eq!(resp.say("SELECT 2"), "-ERR DB index is out of range\r\n");
}

/// A pipeline is answered in its order, reads see the writes in front of them, and a protocol change in the middle
/// leaves the replies in front of it as they were.
#[test]
fn a_pipeline_keeps_its_order() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    let mut all = Vec::new();
    for number in 0..500 {
        let value = number.to_string();
        all.extend(command(&[b"SET", b"k", value.as_bytes()]));
        all.extend(command(&[b"GET", b"k"]));
        all.extend(command(&[b"GET", b"absent"]));
    }
    all.extend(command(&[b"HELLO", b"3"]));
    all.extend(command(&[b"GET", b"absent"]));
    all.extend(command(&[b"SELECT", b"1"]));
    all.extend(command(&[b"GET", b"k"]));
    resp.send(&all);
    for number in 0..500 {
        let value = number.to_string();
        assert_eq!(resp.reply(), b"+OK\r\n");
        assert_eq!(resp.reply(), format!("${}\r\n{value}\r\n", value.len()).into_bytes());
        assert_eq!(resp.reply(), b"$-1\r\n");
    }
    assert!(resp.reply().starts_with(b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"));
    assert_eq!(resp.reply(), b"_\r\n");
    assert_eq!(resp.reply(), b"+OK\r\n");
    assert_eq!(resp.reply(), b"_\r\n", "another table");
}

/// A scan returns every key that stays, once, in order, with a new connection for each call and writers beside it.
#[test]
fn a_scan_returns_each_key_once() {
    const KEYS: usize = 100_000;
    let served = serve(|options| options.threads = 2);
    let address = served.gateway.address();
    let mut resp = Resp::connect(address);
    let name = |number: usize| format!("stays{number:05}");
    assert_eq!(resp.say("SET stays00000 x"), "+OK\r\n");
    let table = served.db.table("db0").unwrap();
    table.insert_many((0..KEYS).map(|number| (name(number), "x"))).unwrap();
    let writer = thread::spawn(move || {
        let mut resp = Resp::connect(address);
        for number in (0..KEYS).step_by(KEYS / 2_000) {
            let key = format!("stays{number:05}x");
            resp.ask(&[b"SET", key.as_bytes(), b"x"]);
            resp.ask(&[b"DEL", key.as_bytes()]);
        }
    });
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let reply = Resp::connect(address).say(&format!("SCAN {cursor} COUNT 700 MATCH stays*"));
        let lines: Vec<&str> = reply.split("\r\n").collect();
        cursor = lines[2].to_owned();
        let keys = lines[4..].iter().filter(|line| line.starts_with("stays"));
        seen.extend(keys.filter(|key| key.len() == 10).map(|key| (*key).to_owned()));
        if cursor == "0" {
            break;
        }
        assert!(cursor.parse::<u64>().unwrap() < 1 << 53);
    }
    writer.join().unwrap();
    let expected: Vec<String> = (0..KEYS).map(name).collect();
    assert_eq!(seen, expected);
    let told = Resp::connect(address).say("SCAN 4711");
    assert_eq!(told, "-ERR cursor 4711 is not known here any more: start again with 0\r\n");
}

/// Clients of both threads add to one number: no addition is lost.
#[test]
fn additions_of_many_clients_all_count() {
    let served = serve(|options| options.threads = 2);
    let address = served.gateway.address();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            thread::spawn(move || {
                let mut resp = Resp::connect(address);
                for _ in 0..100 {
                    assert!(resp.say("INCR count").starts_with(':'));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(Resp::connect(address).say("GET count"), "$3\r\n400\r\n");
    let table = served.db.table("db0").unwrap();
    assert_eq!(table.get("count").unwrap().as_deref(), Some(&b"400"[..]), "the library sees it");
}

/// Clients' newest versions, at connect.
#[test]
fn handshakes_of_clients_are_answered() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    assert!(resp.say("HELLO 3").starts_with("%7\r\n"));
    assert_eq!(
        resp.say("CLIENT MAINT_NOTIFICATIONS ON"),
        "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"
    );
    assert_eq!(resp.say("CLIENT SETINFO LIB-NAME redis-py"), "+OK\r\n");
    assert_eq!(resp.say("CLIENT SETINFO lib-ver 8.1.0"), "+OK\r\n");
    assert!(resp.say("CLIENT INFO").contains("lib-name=redis-py lib-ver=8.1.0"));
    assert!(
        resp.say("CLIENT TRACKING ON OPTIN").starts_with("-ERR CLIENT TRACKING is not supported")
    );
    assert_eq!(resp.say("CLUSTER SLOTS"), "-ERR This instance has cluster support disabled\r\n");
    assert!(resp.say("INFO").contains("loading:0\r\n"));
    assert_eq!(resp.say("CONFIG GET save"), "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    assert_eq!(resp.say("HELLO 4"), "-NOPROTO unsupported protocol version\r\n");
    assert!(resp.say("AUTH secret").starts_with("-ERR AUTH <password> called without"));
    assert!(
        resp.say("MULTI").starts_with("-ERR MULTI is not supported: there are no transactions")
    );
    assert_eq!(resp.say("EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(resp.say("COMMAND COUNT").as_bytes()[0], b':');
    assert!(
        resp.say("COMMAND INFO get nothing")
            .starts_with("*2\r\n*6\r\n$3\r\nget\r\n:2\r\n~1\r\n+readonly\r\n")
    );
    assert!(resp.say("COMMAND DOCS get").contains("Returns the value of a key."));
    assert_eq!(resp.say("RESET"), "+RESET\r\n");
    assert_eq!(resp.say("GET absent"), "$-1\r\n", "RESP2 again");
    assert_eq!(resp.say("QUIT"), "+OK\r\n");
    assert!(resp.is_closed());
}

/// The bytes that clients send at once at their connect, as recorded beside redis-server, and how each reply begins.
#[test]
fn recorded_handshakes_are_answered() {
    const MAINT: &str = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.";
    let served = serve(|_| {});
    let recorded: &[(&str, &[(&str, &str)])] = &[
        (
            "redis-py 8.1.0, go-redis 9.23.0",
            &[
                ("HELLO 3", "%7"),
                ("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none", MAINT),
                ("CLIENT SETINFO LIB-NAME redis-py", "+OK"),
                ("CLIENT SETINFO LIB-VER 8.1.0", "+OK"),
                ("SELECT 1", "+OK"),
            ],
        ),
        (
            "ioredis 6.0.0",
            &[
                ("hello 3", "%7"),
                ("client SETINFO LIB-NAME ioredis", "+OK"),
                ("client SETINFO LIB-VER 6.0.0", "+OK"),
                ("info", "="),
            ],
        ),
        (
            "rueidis 1.0.79",
            &[
                ("HELLO 3", "%7"),
                ("CLIENT TRACKING ON OPTIN", "-ERR CLIENT TRACKING is not supported"),
                ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
            ],
        ),
        (
            "jedis 6.2.0",
            &[
                ("CLIENT SETINFO lib-name jedis", "+OK"),
                ("CLIENT SETINFO lib-ver 6.2.0", "+OK"),
                ("GET absent", "$-1"),
            ],
        ),
        (
            "lettuce 6.8.1",
            &[
                ("HELLO 3", "%7"),
                ("SELECT 1", "+OK"),
                ("CLIENT SETINFO lib-name Lettuce", "+OK"),
                ("CLIENT SETINFO lib-ver 6.8.1", "+OK"),
            ],
        ),
        ("redis-cli 7 -3 -n 1", &[("SELECT 1", "+OK"), ("HELLO 3", "%7")]),
        (
            "redis-benchmark 7",
            &[("CONFIG GET save", "*2\r\n$4\r\nsave"), ("CONFIG GET appendonly", "*2\r\n$10")],
        ),
        ("memtier", &[("HELLO 2", "*14"), ("SELECT 1", "+OK"), ("SET a 1", "+OK")]),
        ("memtier -3", &[("HELLO 3", "%7"), ("SELECT 1", "+OK"), ("GET absent", "_")]),
    ];
    for (client, lines) in recorded {
        let mut resp = Resp::connect(served.gateway.address());
        let words = |line: &str| command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        resp.send(&lines.iter().flat_map(|(line, _)| words(line)).collect::<Vec<_>>());
        for (line, expected) in *lines {
            let reply = String::from_utf8(resp.reply()).unwrap();
            assert!(reply.starts_with(expected), "{client}: {line}: {reply}");
        }
    }
}

/// `redis-cli --stat` prints these, and nonsense for one that is missing.
#[test]
fn info_has_the_numbers_that_redis_cli_prints() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    assert_eq!((resp.say("SET a 1"), resp.say("DBSIZE")), ("+OK\r\n".into(), ":1\r\n".into()));
    let told = resp.say("INFO");
    assert!(told.contains("\r\ndb0:keys=1,"), "{told}");
    let number = |name: &str| -> u64 {
        let prefix = format!("{name}:");
        let found = told.lines().find_map(|line| line.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("{name}: {told}")).trim().parse().unwrap()
    };
    assert!(number("used_memory") > 1 << 20);
    assert_eq!(number("connected_clients"), 1);
    assert_eq!(number("blocked_clients"), 0);
    assert_eq!(number("total_connections_received"), 1);
    number("total_commands_processed");
}

/// A table that was dropped is made anew by the next command.
#[test]
fn a_dropped_table_comes_back_empty() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    assert_eq!(resp.say("SET a 1"), "+OK\r\n");
    served.db.drop_table("db0").unwrap();
    let told = resp.say("GET a");
    assert!(told.starts_with("-ERR ") && told.contains("db0"), "{told}");
    assert_eq!(resp.say("GET a"), "$-1\r\n");
    assert_eq!(resp.say("SET a 2"), "+OK\r\n");
}

/// Clients are told that the pool is being opened, and go on once it is.
#[test]
fn a_lost_pool_is_loading_until_it_is_open_again() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    assert_eq!(resp.say("SET a 1"), "+OK\r\n");
    served.db.clone().close().unwrap();
    for line in ["GET a", "SET a 1", "INCR a", "SCAN 0", "MGET a b"] {
        assert_eq!(resp.say(line), "-LOADING farleaf is opening the pool\r\n", "{line}");
    }
    assert!(served.gateway.is_lost());
    assert!(resp.say("INFO").contains("loading:1\r\n"));
    let again = Farleaf::builder().pool_bytes(128 << 20).open("mem:").unwrap();
    served.gateway.reopen(again);
    assert_eq!(resp.say("GET a"), "$-1\r\n");
    assert!(resp.say("INFO").contains("loading:0\r\n"));
    assert!(!served.gateway.is_lost());
}

/// Of a gateway that takes `MULTI` for a sequence: its replies are redis-server's.
#[test]
fn a_sequence_runs_at_exec() {
    let served = serve(|options| options.multi = Multi::Sequence);
    let mut resp = Resp::connect(served.gateway.address());
    let mut other = Resp::connect(served.gateway.address());
    assert_eq!(resp.say("EXEC"), "-ERR EXEC without MULTI\r\n");
    assert_eq!(resp.say("MULTI"), "+OK\r\n");
    assert_eq!(resp.say("MULTI"), "-ERR MULTI calls can not be nested\r\n");
    assert_eq!(resp.say("WATCH a"), "-ERR WATCH inside MULTI is not allowed\r\n");
    for line in ["SET a 1", "INCR a", "INCR b x", "GET a"] {
        let expected = if line == "INCR b x" {
            "-ERR wrong number of arguments for 'incr' command\r\n"
        } else {
            "+QUEUED\r\n"
        };
        assert_eq!(resp.say(line), expected);
    }
    assert_eq!(other.say("GET a"), "$-1\r\n", "nothing has run");
    assert_eq!(
        resp.say("EXEC"),
        "-EXECABORT Transaction discarded because of previous errors.\r\n"
    );
    assert_eq!(other.say("GET a"), "$-1\r\n");
    // In one packet, with a failure in the middle and commands behind it.
    let lines =
        ["MULTI", "SET a x", "INCR a", "GET a", "EXEC", "GET a", "MULTI", "DISCARD", "PING"];
    let all: Vec<u8> = lines
        .iter()
        .flat_map(|line| command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()))
        .collect();
    resp.send(&all);
    for reply in ["+OK", "+QUEUED", "+QUEUED", "+QUEUED"] {
        assert_eq!(resp.reply(), format!("{reply}\r\n").into_bytes());
    }
    assert_eq!(
        String::from_utf8(resp.reply()).unwrap(),
        "*3\r\n+OK\r\n-ERR value is not an integer or out of range\r\n$1\r\nx\r\n"
    );
    for reply in ["$1\r\nx", "+OK", "+OK", "+PONG"] {
        assert_eq!(resp.reply(), format!("{reply}\r\n").into_bytes());
    }
    assert!(resp.say("WATCH a").starts_with("-ERR WATCH is not supported"));
    // `UNWATCH` is a command of the sequence, and arguments that are too many refuse it.
    let refused = |name: &str| format!("-ERR wrong number of arguments for '{name}' command\r\n");
    let aborted = "-EXECABORT Transaction discarded because of";
    for (line, reply) in [
        ("UNWATCH", "+OK\r\n".to_owned()),
        ("MULTI", "+OK\r\n".to_owned()),
        ("UNWATCH", "+QUEUED\r\n".to_owned()),
        ("SET a 7", "+QUEUED\r\n".to_owned()),
        ("EXEC", "*2\r\n+OK\r\n+OK\r\n".to_owned()),
        ("MULTI", "+OK\r\n".to_owned()),
        ("DISCARD x", refused("discard")),
        ("EXEC", format!("{aborted} previous errors.\r\n")),
        ("MULTI", "+OK\r\n".to_owned()),
        ("EXEC x", format!("{aborted}: wrong number of arguments for 'exec' command\r\n")),
        ("EXEC", "-ERR EXEC without MULTI\r\n".to_owned()),
        ("GET a", "$1\r\n7\r\n".to_owned()),
    ] {
        assert_eq!(resp.say(line), reply, "{line}");
    }
}

/// Commands of more keys than run together answer as those of few.
#[test]
fn commands_of_many_keys_run_in_parts() {
    let served = serve(|_| {});
    let mut resp = Resp::connect(served.gateway.address());
    let names: Vec<String> = (0..1_000).map(|number| format!("k{number}")).collect();
    let with = |word: &'static str, has_values: bool| {
        let mut args: Vec<&[u8]> = vec![word.as_bytes()];
        for name in &names {
            args.push(name.as_bytes());
            if has_values {
                args.push(name.as_bytes());
            }
        }
        command(&args)
    };
    // A read in front and one behind keep their places.
    let mut all = command(&[b"GET", b"k7"]);
    all.extend(with("MSET", true));
    all.extend(command(&[b"GET", b"k7"]));
    all.extend(with("MGET", false));
    all.extend(with("EXISTS", false));
    all.extend(with("DEL", false));
    all.extend(with("EXISTS", false));
    resp.send(&all);
    assert_eq!(resp.reply(), b"$-1\r\n");
    assert_eq!(resp.reply(), b"+OK\r\n");
    assert_eq!(resp.reply(), b"$2\r\nk7\r\n");
    let values: String =
        names.iter().map(|name| format!("${}\r\n{name}\r\n", name.len())).collect();
    assert_eq!(String::from_utf8(resp.reply()).unwrap(), format!("*1000\r\n{values}"));
    assert_eq!(resp.reply(), b":1000\r\n");
    assert_eq!(resp.reply(), b":1000\r\n");
    assert_eq!(resp.reply(), b":0\r\n");
}

/// A connection sees its own changes in their order, also beside commands that run together.
#[test]
fn pipelined_commands_on_one_key_run_in_order() {
    for overlap in [Overlap::Nothing, Overlap::Reads, Overlap::All] {
        let served = serve(|options| options.overlap = overlap);
        let mut resp = Resp::connect(served.gateway.address());
        let mut all = Vec::new();
        for number in 0..300 {
            let (key, value) = (format!("k{}", number % 3), number.to_string());
            all.extend(command(&[b"SET", key.as_bytes(), value.as_bytes()]));
            all.extend(command(&[b"GET", key.as_bytes()]));
        }
        resp.send(&all);
        for number in 0..300 {
            assert_eq!(resp.reply(), b"+OK\r\n", "{overlap:?}");
            let value = number.to_string();
            let expected = format!("${}\r\n{value}\r\n", value.len());
            assert_eq!(String::from_utf8(resp.reply()).unwrap(), expected, "{overlap:?}");
        }
    }
}
