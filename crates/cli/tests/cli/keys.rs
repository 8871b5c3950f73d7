//! Key tests: get, put, del, scan, tables, drop, stats and verify.

use serde_json::json;

use crate::Pool;

#[test]
fn keys_are_put_got_and_deleted() {
    let pool = Pool::new();
    let put = |words: &[&str]| pool.run("put", words);
    put(&["t", "ada", "1815"]).done();
    put(&["t", "alan", "1912", "--if-absent"]).done();
    put(&["t", "alan", "0", "--if-absent"]).failed(1, "key \"alan\" exists");
    put(&["t", "grace", "0", "--if-present"]).failed(1, "key \"grace\" does not exist");
    put(&["t", "ada", "1816", "--if-present"]).done();

    assert_eq!(pool.run("get", &["t", "ada"]).done().text(), "1816\n");
    let two = pool.run("get", &["t", "alan", "nobody", "ada"]).failed(1, "no key \"nobody\"");
    assert_eq!(two.text(), "alan\t1912\nada\t1816\n");
    let quiet = pool.run("get", &["t", "nobody", "-q"]).failed(1, "");
    assert_eq!((quiet.text(), quiet.err), (String::new(), String::new()));

    pool.run("del", &["t", "ada", "nobody"]).failed(1, "no key \"nobody\"");
    pool.run("del", &["t", "alan"]).done();
    assert_eq!(pool.scan("t"), "");
}

#[test]
fn values_expire_in_tables_of_records() {
    let pool = Pool::new();
    pool.run("put", &["t", "a", "1", "--expires-in", "1s"]).failed(2, "holds raw values");
    let put = |words: &[&str]| {
        pool.run("put", &[&["r"], words, &["--create", "--content", "records"]].concat())
    };
    put(&["a", "1", "--expires-in", "1ms"]).done();
    put(&["b", "2", "--expires-in", "1h"]).done();
    put(&["c", "3", "--expires-in", "1ms", "--if-present"]).failed(1, "does not exist");
    put(&["c", "3", "--expires-in", "1h", "--if-absent"]).done();
    put(&["c", "4", "--expires-in", "1h", "--if-absent"]).failed(1, "exists");
    put(&["d", "3", "--expires-in", "soon"]).failed(2, "soon");
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(pool.scan("r"), "b\t2\nc\t3\n");
}

/// `del` took its keys from the command line alone, one round trip after the other.
#[test]
fn keys_to_delete_come_from_a_file_or_standard_input() {
    let pool = Pool::new();
    let lines: String = (0..3000).map(|number| format!("key {number}\n")).collect();
    pool.load("t", &[], lines.as_bytes()).done();
    let del = |words: &[&str], input: &[u8]| {
        pool.run_with("del", &[&["t", "--json"], words].concat(), input)
    };
    let (first, rest) = lines.split_at(lines.find("key 2500").unwrap());
    let removed = del(&["-"], first.as_bytes()).done().json();
    assert_eq!(removed, json!({ "removed": 2500, "absent": 0 }));
    let path = pool.folder.with_extension("keys");
    std::fs::write(&path, format!("{rest}\nnobody\n")).unwrap();
    let removed = del(&["--keys-from", path.to_str().unwrap()], b"").failed(1, "").json();
    assert_eq!(removed, json!({ "removed": 500, "absent": 1 }));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(pool.scan("t"), "");
    pool.load("t", &[], b"a\nb\n").done();
    del(&["--keys-from", "-", "--hex"], b"61\nxy\n62\n").failed(7, "standard input: line 2");
    assert_eq!(pool.scan("t"), "b\t\n");
    let long = [vec![b'x'; 1025], b"\nb\n".to_vec()].concat();
    del(&["-"], &long).failed(7, "line 1 (record 1): a key of 1025 bytes");
    del(&["--keys-from", "/does/not/exist"], b"").failed(7, "cannot read /does/not/exist");
    del(&[], b"").failed(2, "<KEY>");
}

/// A missing key, table and pool ended in one code.
#[test]
fn exit_codes_tell_what_is_missing() {
    let (pool, missing) = (Pool::new(), Pool::missing());
    for command in ["get", "del"] {
        pool.run(command, &["t", "nobody"]).failed(1, "no key \"nobody\"");
        pool.run(command, &["u", "nobody"]).failed(8, "no table \"u\"");
        missing.run(command, &["t", "nobody"]).failed(9, "create the pool first");
    }
    missing.run("stats", &[]).failed(9, "create the pool first");
    pool.run("repartition", &["u"]).failed(8, "no table \"u\"");
}

#[test]
fn values_come_from_standard_input_to_the_byte() {
    let pool = Pool::new();
    let value: Vec<u8> = (0..=255).cycle().take(5000).collect();
    pool.run_with("put", &["t", "all bytes", "-"], &value).done();
    assert_eq!(pool.run("get", &["t", "all bytes", "--raw"]).done().out, value);
    pool.run_with("put", &["t", "long", "-"], &vec![b'x'; (1 << 20) + 1])
        .failed(7, "longer than 1048576 bytes");
    pool.run_with("put", &["t", "2a", "-", "--hex"], b"00 ff\n").done();
    assert_eq!(pool.run("get", &["t", "*"]).done().out, b"\x00\xff\n");
    assert_eq!(pool.run("get", &["t", "2a", "--hex"]).done().text(), "00ff\n");
    pool.run("get", &["t", "2g", "--hex"]).failed(2, "is not hexadecimal");
}

#[test]
fn scans_start_end_and_turn_where_asked() {
    let pool = Pool::new();
    pool.load("t", &["--format", "tsv"], b"a\t1\nab\t2\nabc\t3\nb\t4\nc\t5\n").done();
    let scan = |options: &[&str]| {
        let words: Vec<&str> = ["t"].into_iter().chain(options.iter().copied()).collect();
        pool.run("scan", &words).done().text()
    };
    assert_eq!(scan(&[]), "a\t1\nab\t2\nabc\t3\nb\t4\nc\t5\n");
    assert_eq!(scan(&["--keys-only", "--prefix", "ab"]), "ab\nabc\n");
    assert_eq!(scan(&["-k", "--from", "ab", "--to", "c"]), "ab\nabc\nb\n");
    assert_eq!(scan(&["-k", "--reverse", "--limit", "2"]), "c\nb\n");
    assert_eq!(scan(&["-k", "--reverse", "--to", "b", "-n", "1"]), "abc\n");
    assert_eq!(scan(&["--count", "--from", "b"]), "2\n");
    assert_eq!(scan(&["--count", "--from", "z", "--to", "a"]), "0\n");
    assert_eq!(scan(&["--hex", "--prefix", "6162", "-n", "1"]), "6162\t32\n");
    assert_eq!(scan(&["--count", "--json"]), "{\"count\":5}\n");
    pool.run("scan", &["t", "--prefix", "a", "--from", "b"]).failed(2, "cannot be used with");
}

#[test]
fn keys_near_a_key_are_printed_with_their_values() {
    let pool = Pool::new();
    pool.load("t", &["--format", "tsv"], b"/usr\t1\n/usr/lib\t2\n/usr/lib64\t3\n/var\t4\n").done();
    let get = |words: &[&str]| pool.run("get", &[&["t"], words].concat());
    let found = |words: &[&str]| get(words).done().text();
    assert_eq!(found(&["--floor", "/usr/m"]), "/usr/lib64\t3\n");
    assert_eq!(found(&["--floor", "/usr"]), "/usr\t1\n");
    assert_eq!(found(&["--lower", "/usr/lib"]), "/usr\t1\n");
    assert_eq!(found(&["--ceiling", "/usr/l"]), "/usr/lib\t2\n");
    assert_eq!(found(&["--higher", "/usr/lib"]), "/usr/lib64\t3\n");
    assert_eq!(found(&["--longest-prefix", "/usr/lib/x", "/usr/x"]), "/usr/lib\t2\n/usr\t1\n");
    assert_eq!(found(&["--longest-prefix", "--hex", "2f7661722f78"]), "2f766172\t34\n");
    get(&["--floor", "/"]).failed(1, "no key at or below \"/\"");
    get(&["--higher", "/var"]).failed(1, "no key above \"/var\"");
    let none = get(&["--longest-prefix", "/tmp", "--json"]);
    let none = none.failed(1, "no key that is a prefix of \"/tmp\"").json();
    assert_eq!(none, json!({ "asked": "/tmp", "key": null }));
    let one = get(&["--longest-prefix", "/var/x", "--json"]).done().json();
    assert_eq!(one, json!({ "asked": "/var/x", "key": "/var", "value": "4" }));
    get(&["--floor", "--higher", "a"]).failed(2, "cannot be used with");
    get(&["--floor"]).failed(2, "<KEY>");
}

#[test]
fn keys_of_a_range_are_counted() {
    let pool = Pool::new();
    let lines: String = (0..3000).map(|number| format!("key {number}\n")).collect();
    pool.load("t", &[], lines.as_bytes()).done();
    let count = |words: &[&str]| pool.run("count", &[&["t"], words].concat()).done().text();
    assert_eq!(count(&[]), "3000\n");
    assert_eq!(count(&["--prefix", "key 29"]), "111\n");
    // "key 29" and "key 290".
    assert_eq!(count(&["--from", "key 29", "--to", "key 2900"]), "2\n");
    assert_eq!(count(&["--from", "z", "--to", "a"]), "0\n");
    assert_eq!(count(&["--hex", "--prefix", "6b", "--json"]), "{\"count\":3000}\n");
    pool.run("count", &["t", "--prefix", "a", "--from", "b"]).failed(2, "cannot be used with");
    pool.run("count", &["u"]).failed(8, "no table \"u\"");
}

#[test]
fn json_is_one_object_a_line() {
    let pool = Pool::new();
    pool.load("t", &[], b"text\n\xff\xfe\n").done();
    let scanned = pool.run("scan", &["t", "--json"]).done().text();
    let lines: Vec<&str> = scanned.lines().collect();
    assert_eq!(lines, [r#"{"key":"text","value":""}"#, r#"{"key_hex":"fffe","value":""}"#]);
    let got = pool.run("get", &["t", "nobody", "--json"]).failed(1, "no key");
    assert_eq!(got.json(), json!({ "key": "nobody", "value": null }));
    let put = pool.run("put", &["t", "text", "x", "--if-absent", "--json"]).failed(1, "");
    assert_eq!(put.json(), json!({ "changed": false }));
    let deleted = pool.run("del", &["t", "text", "nobody", "--json"]).failed(1, "");
    assert_eq!(deleted.json(), json!({ "removed": 1, "absent": 1 }));
}

#[test]
fn tables_are_made_listed_and_dropped() {
    let pool = Pool::missing();
    pool.run("put", &["users", "1", "ann"]).failed(9, "create the pool first");
    pool.run("load", &["users", "/dev/null"]).failed(9, "--create makes one");
    let small = ["--create", "--pool-bytes", "64MiB", "--memory-servers", "2"];
    let put = |words: &[&str]| pool.run("put", &[words, &small].concat());
    put(&["users", "1", "ann"]).done();
    pool.run("put", &["user", "1", "ann"]).failed(8, "did you mean \"users\"?");
    put(&["--key-format", "fixed:8", "--value-format", "fixed:2", "--hex", "n", "00", "00"])
        .failed(2, "");
    put(&["n", "12345678", "ab", "--key-format", "fixed:8", "--value-format", "fixed:2"]).done();
    put(&["n", "12345678", "ab", "--key-format", "bytes"])
        .failed(2, "was made with --key-format fixed:8, not bytes:1024");
    put(&["n", "short", "ab"]).failed(2, "table \"n\"");

    let listed = pool.run("tables", &[]).done().text();
    let [users, n] = [
        "users\tbtree\tbytes:1024\tbytes\tnode_bytes=4KiB",
        "n\tbtree\tfixed:8\tfixed:2\tnode_bytes=1KiB",
    ];
    assert_eq!(listed, format!("{users}\n{n}\n"));
    let listed = pool.run("tables", &["--json"]).done().json();
    assert_eq!(listed["tables"][1]["key_format"], "fixed:8");
    assert_eq!(listed["tables"][1]["engine"], "btree");

    pool.run("drop", &["users"]).done();
    pool.run("drop", &["users"]).failed(8, "no table \"users\"");
    assert_eq!(pool.run("tables", &[]).done().text().lines().count(), 1);
    assert!(pool.run("verify", &[]).done().text().contains("sound"));
}

#[test]
fn stats_and_verify_tell_what_is_there() {
    let pool = Pool::new();
    let input: String = (0..3000).map(|number| format!("key {number}\n")).collect();
    pool.load("t", &["--value", "ten bytes."], input.as_bytes()).done();

    let stats = pool.run("stats", &["--json"]).done().json();
    assert_eq!(stats["fabric"], "mapped");
    assert_eq!(stats["memory_servers"], 1);
    assert_eq!(stats["pool_bytes"], 64 << 20);
    let table = &stats["tables"][0];
    assert_eq!((&table["table"], &table["keys"]), (&json!("t"), &json!(3000)));
    assert_eq!(table["data_bytes"], input.len() - 3000 + 30_000);
    assert_eq!(table["key_format"], "bytes:1024");
    let lines = pool.run("stats", &[]).done().text();
    assert!(lines.contains("pool_bytes\t67108864\n"), "{lines}");
    assert!(lines.contains("\nt\tbtree\t3000\t"), "{lines}");

    let bytes = |name: &str| stats[name].as_u64().unwrap();
    let parts = bytes("used_bytes") + bytes("reserved_bytes") + bytes("free_bytes");
    assert_eq!(bytes("usable_bytes"), parts);
    assert!(bytes("usable_bytes") < 64 << 20 && bytes("usable_bytes") > 48 << 20, "{stats}");
    assert!(bytes("used_bytes") >= table["nodes_bytes"].as_u64().unwrap(), "{stats}");
    assert_eq!(stats["used_by"], 0);

    // By owner the same bytes; by class without what is in no run.
    let told = pool.run("stats", &["--json", "--memory"]).done().json();
    for part in ["owners", "classes"] {
        let sum = |name: &str| -> u64 {
            let rows = told["memory"][part].as_array().unwrap();
            rows.iter().map(|row| row[name].as_u64().unwrap()).sum()
        };
        assert_eq!(sum("used_bytes"), bytes("used_bytes"), "{part}: {told}");
        let reserved = sum("reserved_bytes");
        assert!(reserved <= bytes("reserved_bytes"), "{part}: {told}");
        assert!(part == "classes" || reserved == bytes("reserved_bytes"), "{part}: {told}");
    }
    assert_eq!(told["memory"]["servers"][0]["free_bytes"], stats["free_bytes"]);
    let lines = pool.run("stats", &["--memory"]).done().text();
    assert!(lines.contains("\nserver 0\t"), "{lines}");
    assert!(lines.contains("\nnobody on server 0\t"), "{lines}");
    assert!(lines.contains("\nobjects of "), "{lines}");

    let verified = pool.run("verify", &["--json"]).done().json();
    assert_eq!((&verified["sound"], &verified["problems"]), (&json!(true), &json!([])));
    assert_eq!(verified["tables"][0]["keys"], 3000);
}

/// Bytes of a node are changed behind the store's back.
#[test]
fn damage_is_found() {
    let pool = Pool::new();
    let input: String = (0..2000).map(|number| format!("key {number}\n")).collect();
    pool.load("t", &["--value", "needle in a haystack"], input.as_bytes()).done();
    let region = pool.folder.join("region-00000");
    let mut bytes = std::fs::read(&region).unwrap();
    let needle = b"needle in a haystack";
    let places: Vec<usize> = (0..bytes.len() - needle.len())
        .filter(|at| bytes[*at] == needle[0] && bytes[*at..].starts_with(needle))
        .collect();
    assert!(places.len() >= 2000, "{}", places.len());
    for at in places {
        bytes[at] = b'N';
    }
    std::fs::write(&region, bytes).unwrap();
    let run = pool.run("verify", &[]);
    assert!(matches!(run.code, 1 | 5), "{} {}", run.code, run.err);
    let told = format!("{}{}", run.text(), run.err);
    assert!(told.contains("checksum") || told.contains("problem"), "{told}");
}
