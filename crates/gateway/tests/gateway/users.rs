//! Users: tokens, tables and rights; and what a client may do before it has said who it is.

use std::time::{Duration, Instant};

use farleaf_gateway::{Gateway, GatewayOptions, Users, new_token};

use crate::common::{Resp, Served, command, serve};

struct Tokens {
    served: Served,
    reader: String,
    writer: String,
    admin: String,
}

fn file(users: &[(&str, &str, &str, &str)]) -> String {
    let user = |(name, hash, tables, rights): &(&str, &str, &str, &str)| {
        format!(
            "[[user]]\nname = \"{name}\"\ntoken_sha256 = \"{hash}\"\ntables = [{tables}]\nrights = \"{rights}\"\n"
        )
    };
    users.iter().map(user).collect()
}

/// A gateway with three users; the reader's tables are in another order.
fn gateway(change: impl FnOnce(&mut GatewayOptions)) -> Tokens {
    let [reader, writer, admin] = [(); 3].map(|()| new_token().unwrap());
    let users = file(&[
        ("reader", &reader.1, "\"db1\", \"db0\"", "read"),
        ("writer", &writer.1, "\"db0\"", "write"),
        ("admin", &admin.1, "\"db0\", \"db1\"", "admin"),
    ]);
    let served = serve(|options| {
        options.users = Some(Users::parse(&users).unwrap());
        options.allow_flush = true;
        change(options);
    });
    Tokens { served, reader: reader.0, writer: writer.0, admin: admin.0 }
}

#[test]
fn a_token_opens_its_users_tables_and_no_others() {
    let tokens = gateway(|_| {});
    let address = tokens.served.gateway.address();
    let mut writer = Resp::connect(address);
    for line in ["GET a", "SELECT 0", "MULTI", "NONSENSE", "INFO", "COMMAND", "CLIENT LIST"] {
        assert_eq!(writer.say(line), "-NOAUTH Authentication required.\r\n", "{line}");
    }
    assert!(writer.say("HELLO 3").starts_with("-NOAUTH HELLO must be called with"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    assert_eq!(writer.say("AUTH nonsense"), wrong);
    assert_eq!(writer.say(&format!("AUTH reader {}", tokens.writer)), wrong);
    assert_eq!(writer.say(&format!("AUTH {}", tokens.writer)), "+OK\r\n");
    assert_eq!(writer.say("ACL WHOAMI"), "$6\r\nwriter\r\n");
    assert_eq!(writer.say("SET a 1"), "+OK\r\n");
    assert_eq!(writer.say("SELECT 1"), "-ERR DB index is out of range\r\n");
    assert_eq!(
        writer.say("FLUSHDB"),
        "-NOPERM user \"writer\" may not FLUSHDB: that takes the rights \"admin\"\r\n"
    );
    assert_eq!(
        writer.say("CLIENT KILL ID 1"),
        "-NOPERM user \"writer\" may not CLIENT KILL: that takes the rights \"admin\"\r\n"
    );
    assert!(writer.say("SLOWLOG LEN").starts_with("-NOPERM "));

    let mut reader = Resp::connect(address);
    assert!(
        reader
            .say(&format!("HELLO 3 AUTH reader {} SETNAME r", tokens.reader))
            .starts_with("%7\r\n")
    );
    assert_eq!(reader.say("CLIENT GETNAME"), "$1\r\nr\r\n");
    assert_eq!(reader.say("GET a"), "_\r\n", "its first table is db1");
    assert_eq!(reader.say("SELECT 1"), "+OK\r\n");
    assert_eq!(reader.say("GET a"), "$1\r\n1\r\n");
    assert_eq!(reader.say("ZRANGEBYLEX db0 - +"), "*1\r\n$1\r\na\r\n");
    for line in ["SET a 2", "DEL a", "INCR a", "ZREMRANGEBYLEX db0 - +", "APPEND a x"] {
        assert_eq!(
            reader.say(line),
            "-NOPERM user \"reader\" may not write table \"db0\"\r\n",
            "{line}"
        );
    }

    let mut admin = Resp::connect(address);
    assert_eq!(
        admin.say(&format!("AUTH default {}", tokens.admin)),
        "+OK\r\n",
        "as clients without names do"
    );
    assert!(admin.say("CLIENT LIST").contains("user=reader"));
    assert_eq!(admin.say("CLIENT KILL USER reader"), ":1\r\n");
    assert!(reader.is_closed());
    assert_eq!(admin.say("CLIENT KILL 127.0.0.1:1"), "-ERR No such client\r\n");
    assert_eq!(admin.say("FLUSHDB"), "+OK\r\n");
    assert_eq!(writer.say("GET a"), "$-1\r\n");
    assert_eq!(writer.say("RESET"), "+RESET\r\n");
    assert_eq!(writer.say("GET a"), "-NOAUTH Authentication required.\r\n");
}

#[test]
fn a_new_list_of_users_holds_at_once() {
    let tokens = gateway(|_| {});
    let gateway = &tokens.served.gateway;
    let connect = |token: &str| {
        let mut resp = Resp::connect(gateway.address());
        assert_eq!(resp.say(&format!("AUTH {token}")), "+OK\r\n");
        resp
    };
    let (mut reader, mut writer) = (connect(&tokens.reader), connect(&tokens.writer));
    let hash = |token: &str| {
        let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    // The writer may only read from now on, and the reader is gone.
    let users = file(&[("writer", &hash(&tokens.writer), "\"db0\"", "read")]);
    gateway.set_users(Users::parse(&users).unwrap()).unwrap();
    assert!(reader.is_closed());
    let end = Instant::now() + Duration::from_secs(10);
    while !writer.say("SET a 1").starts_with("-NOPERM") {
        assert!(Instant::now() < end);
    }
    let wrong = users.replace("db0", "db7");
    let error = gateway.set_users(Users::parse(&wrong).unwrap()).unwrap_err().to_string();
    assert_eq!(
        error,
        "user \"writer\": the gateway serves no table \"db7\"; did you mean \"db0\"?"
    );
    assert_eq!(writer.say("GET a").as_bytes()[0], b'$', "the list of before holds");
    let mut options = GatewayOptions::new(vec!["db0".to_owned()]);
    options.users = Some(Users::parse(&wrong).unwrap());
    let error = Gateway::start(tokens.served.db.clone(), options).unwrap_err().to_string();
    assert!(error.contains("serves no table \"db7\""), "{error}");
}

/// Bytes without end, many arguments, large ones, and replies that nobody takes: each connection ends, and the gateway
/// has kept a few KiB of it.
#[test]
fn before_auth_little_is_taken() {
    let tokens = gateway(|_| {});
    let gateway = &tokens.served.gateway;
    for (bytes, text) in [
        (&b"*17\r\n"[..], "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        (b"*2\r\n$4\r\nAUTH\r\n$5000\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"),
        (&[b'x'; 9_000], "-ERR Protocol error: too big inline request\r\n"),
    ] {
        let mut resp = Resp::connect(gateway.address());
        resp.send(bytes);
        assert_eq!(String::from_utf8(resp.reply()).unwrap(), text);
        assert!(resp.is_closed());
    }
    let mut endless = Resp::connect(gateway.address());
    let gets = command(&[b"GET", b"k"]).repeat(1_000);
    let end = Instant::now() + Duration::from_secs(20);
    // Its replies are not read: at some point the gateway has enough.
    while endless.try_send(&gets).is_ok() {
        assert!(gateway.counts().client_bytes < 64 << 10);
        assert!(Instant::now() < end, "nothing ends it");
    }
    // One that comes again waits.
    let (began, before) = (Instant::now(), gateway.counts().connected);
    while began.elapsed() < Duration::from_secs(1) {
        let mut endless = Resp::connect(gateway.address());
        while endless.try_send(&gets).is_ok() {}
    }
    let connected = gateway.counts().connected - before;
    assert!((1..=11).contains(&connected), "{connected} connections in {:?}", began.elapsed());
    let mut good = Resp::connect(gateway.address());
    assert_eq!(good.say(&format!("AUTH {}", tokens.admin)), "+OK\r\n");
}

#[test]
fn mistakes_are_told_with_the_nearest_name() {
    let told = |text: &str| Users::parse(text).unwrap_err().to_string();
    let good = file(&[("app", &new_token().unwrap().1, "\"a\", \"b\"", "write")]);
    let users = Users::parse(&good).unwrap();
    assert_eq!(users.tables(), ["a", "b"]);
    assert_eq!(
        told(&good.replace("rights", "right")),
        "user 1 (\"app\"): \"right\" is not known here; did you mean \"rights\"?; a user has name, token_sha256, tables \
         and rights"
    );
    assert_eq!(
        told(&good.replace("write", "wriet")),
        "user 1 (\"app\"): there are no rights \"wriet\"; did you mean \"write\"?: write read, write or admin"
    );
    assert_eq!(
        told(&good.replace("[\"a\", \"b\"]", "7")),
        "user 1 (\"app\"): tables is no list of names: write tables = [\"orders\", \"carts\"]"
    );
    assert!(told(&good.replace("[[user]]", "[[users]]")).contains("did you mean \"user\"?"));
    assert!(told(&good.replace("256 = \"", "256 = \"+")).contains("64 hexadecimal digits"));
    assert!(told(&good.replace("\"app\"", "\"a b\"")).contains("no space"));
    assert!(told("").contains("there is no user"));
    assert!(told("[[user]\n").contains("line 1"), "{}", told("[[user]\n"));
    assert_eq!(told(&format!("{good}{good}")), "two users have the name \"app\"");
    let renamed = good.replace("\"app\"", "\"web\"");
    let twice = told(&format!("{good}{renamed}"));
    assert!(twice.starts_with("users \"app\" and \"web\" have the same token"), "{twice}");
    let error = users.check_tables(&["aa".to_owned(), "b".to_owned()]).unwrap_err().to_string();
    assert_eq!(error, "user \"app\": the gateway serves no table \"a\"; did you mean \"aa\"?");
}
