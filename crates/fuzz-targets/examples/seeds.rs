//! Seeds: write the first inputs of every target's corpus, `fuzz/corpus/<target>/seed-*`.
//!
//! `cargo run -p farleaf-fuzz-targets --example seeds`. What the fuzzer has found beside them stays.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    node(&corpus);
    superblock(&corpus);
    regions(&corpus);
    leaves(&corpus);
    fabric(&corpus);
    records(&corpus);
    values(&corpus);
    texts(&corpus);
    wire(&corpus);
    history(&corpus);
    resp(&corpus);
    offload(&corpus);
    messages(&corpus);
}

fn write(corpus: &Path, target: &str, name: &str, bytes: &[u8]) {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(format!("seed-{name}")), bytes).unwrap();
}

/// Commands of Redis's clients, whole, inline and broken.
fn resp(corpus: &Path) {
    let array =
        b"\x02*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n*1\r\n$4\r\nPING\r\n*0\r\n*-1\r\n";
    write(corpus, "resp", "array", array);
    write(corpus, "resp", "inline", b"\x04set \"a b\\n\\x41\" 'c\\'d' \"\"\r\nPING\n");
    write(corpus, "resp", "auth", b"\x03*2\r\n$4\r\nAUTH\r\n$5\r\ntoken\r\n*17\r\n");
    write(corpus, "resp", "broken", b"\x06*2\r\n$3\r\nGET\r\n$-1\r\n");
}

/// Each layout, as a leaf and as an inner node, sealed, with a changed word.
fn node(corpus: &Path) {
    for layout in 0..10_u8 {
        for (kind, name) in [(1, "leaf"), (2, "inner")] {
            let mode = kind | 4 | layout << 4;
            let keys = [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 0];
            let change = [5, 0, 7, 2, 200, 9, 0, 1, 3];
            let bytes = [&[layout, mode][..], &keys, &change].concat();
            write(corpus, "node", &format!("{layout}-{name}"), &bytes);
        }
    }
    write(corpus, "node", "raw", &[[1, 0].as_slice(), &[0x41; 256]].concat());
}

/// A real superblock as it is and sealed anew, and formatting with usual and extreme options.
fn superblock(corpus: &Path) {
    let image = farleaf_fuzz_targets::image_bytes();
    // Of 64 KiB << 5 = 2 MiB, as the image's.
    write(corpus, "superblock", "real", &[&[0, 5, 0][..], &image[..152]].concat());
    write(corpus, "superblock", "sealed", &[&[2, 5, 0][..], &image[..152]].concat());
    let options = |mode: u8, block: u8, rest: [u16; 4]| {
        let rest: Vec<u8> = rest.iter().flat_map(|option| option.to_le_bytes()).collect();
        [&[mode, 9, 0, block][..], &rest].concat()
    };
    write(corpus, "superblock", "usual", &options(1, 20, [16, 64, 16, 64]));
    write(corpus, "superblock", "small", &options(1, 16, [1, 1, 1, 1]));
    write(corpus, "superblock", "tables", &options(1, 16, [16, 64, 65535, 64]));
    write(corpus, "superblock", "members", &options(0x81, 16, [4096, 32767, 255, 1]));
    let changed = [&options(0x63, 16, [4, 4, 4, 64])[..], &[8, 6, 1, 0, 17, 2, 1]].concat();
    write(corpus, "superblock", "changed", &changed);
}

/// One change in each area, then every operation.
fn regions(corpus: &Path) {
    for (target, selectors) in [("pool", 8_u8), ("table", 20)] {
        for selector in 0..selectors {
            let change = [selector, 7, 1, 1, 3];
            let ops: Vec<u8> =
                (0..16).step_by(2).flat_map(|what| [what | selector << 4, 9]).collect();
            let alive = [&[0xfe, 1][..], &change, &ops].concat();
            write(corpus, target, &format!("alive-{selector:02}"), &alive);
            let dead = [&[0xff, 1][..], &change, &[1, 0, 0, 0, 12, 9, 15, 20, 5, 0, 2, 0]].concat();
            write(corpus, target, &format!("dead-{selector:02}"), &dead);
        }
        let all: Vec<u8> = (0..12).flat_map(|what| [what + 4, 30]).collect();
        write(corpus, target, "whole", &[&[0, 0][..], &all].concat());
        write(corpus, target, "whole-dead", &[1, 0, 1, 0, 0, 0, 2, 0, 3, 0, 8, 14, 12, 3, 7, 0]);
    }
}

/// Changes of words of leaves and lines, then every operation.
fn leaves(corpus: &Path) {
    for part in 0..4_u8 {
        for place in [1_u8, 17, 51, 120] {
            let change = [part, 7, place, place % 8, 3];
            let ops: Vec<u8> = (0..16).step_by(2).flat_map(|what| [what | part << 4, 9]).collect();
            let alive = [&[0xfe, 1][..], &change, &ops].concat();
            write(corpus, "leaves", &format!("alive-{part}-{place:03}"), &alive);
            let dead = [&[0xff, 1][..], &change, &[1, 0, 0, 0, 12, 9, 15, 20, 5, 0, 2, 0]].concat();
            write(corpus, "leaves", &format!("dead-{part}-{place:03}"), &dead);
        }
    }
}

fn fabric(corpus: &Path) {
    let inside: Vec<u8> = (0..6).flat_map(|what| [what | 0x40, 9, 64, 0, 1, 0, 0]).collect();
    write(corpus, "fabric", "inside", &inside);
    let beyond: Vec<u8> = (0..6).flat_map(|what| [what | 0x10, 9, 64, 0, 1, 0, 0]).collect();
    write(corpus, "fabric", "beyond", &beyond);
    write(corpus, "fabric", "call", &[0x47, 0, 6, 0, 8, 0, 8, 0, 100, 0, 16]);
    write(corpus, "fabric", "claims", &[0x47, 0, 6, 0, 8, 0, 255, 255, 100, 0, 16]);
    write(corpus, "fabric", "nobody", &[0x46, 0, 6, 0, 8, 0, 8, 0, 100, 0, 16]);
}

fn records(corpus: &Path) {
    // Format, options (column of the key, of the value, header), value's column, buffer.
    let cases: [(&str, [u8; 4], &[u8]); 7] = [
        ("lines", [0, 0, 0, 3], b"one\ntwo\r\n\nthree"),
        ("tsv", [1, 4, 1, 0], b"k\tv\nk2\tv2\n"),
        ("csv", [2, 4, 1, 7], b"\"a \"\"b\"\"\",1\r\nc,\"two\nlines\"\n"),
        ("csv-header", [2, 0x45, 5, 2], b"a,b\n1,2\n3,4\n"),
        ("csv-open", [2, 4, 1, 2], b"a,\"b\n1,2\n"),
        ("binary", [3, 0, 0, 5], b"\x03\0\0\0key\x02\0\0\0vv\x01\0\0\0a\0\0\0\0"),
        ("binary-long", [3, 0, 0, 5], b"\xff\xff\xff\xffkey"),
    ];
    for (name, front, file) in cases {
        // The third byte is read only if the value has a column.
        let front = if front[1] >> 1 & 3 >= 2 {
            front.to_vec()
        } else {
            [&front[..2], &front[3..]].concat()
        };
        write(corpus, "records", name, &[&front, file].concat());
    }
}

/// A string and a hash, with and without expiry; a record of a later version.
fn values(corpus: &Path) {
    write(corpus, "values", "string", b"\x001815");
    write(corpus, "values", "string-expires", b"\x10\x08\x07\x06\x05\x04\x03\x02\x01x");
    write(corpus, "values", "hash", b"\x01\x02\x01a\x00\x01b\x0222");
    write(corpus, "values", "hash-expires", b"\x11\x01\0\0\0\0\0\0\0\x01\x00\x01v");
    let long = [&b"\x01\x01\x01f\xac\x02"[..], &[b'v'; 300]].concat();
    write(corpus, "values", "hash-long", &long);
    write(corpus, "values", "later", b"\x42 later");
}

fn texts(corpus: &Path) {
    write(corpus, "keys", "plain", b"alpha\nbeta\r\n\nalpha\ngamma");
    write(corpus, "keys", "empty", b"\n\r\n\n");
    write(corpus, "keys", "long", &[b'x'; 1100]);
    let file: &[u8] = b"# a comment\nworkload=site.ycsb.workloads.CoreWorkload\nrecordcount=1000\n\
        readproportion=0.5\nupdateproportion : 0.5\nrequestdistribution zipfian\nfieldcount=\\\n  2\n";
    write(corpus, "ycsb", "a", &[&[0][..], file].concat());
    write(corpus, "ycsb", "override", &[&[14][..], b"recordcount=1e", file].concat());
    write(corpus, "ycsb", "escapes", b"\0ke\\u0079=\\u00e9\\n\\t\\\nreadproportion=1\n");
    write(
        corpus,
        "ycsb",
        "scan",
        b"\0scanproportion=1\nmaxscanlength=5\nscanlengthdistribution=uniform\n",
    );
    let texts = [
        "1_000",
        "2.5M",
        "64KiB",
        "1GB",
        "8%",
        "0.08",
        "250K",
        "1.5M/s",
        "250ns",
        "1.5s",
        "2m",
        "shm:",
        "mem:x",
        "shm://pool",
        "read=0.5,update=0.5",
        "zipfian:0.99",
        "hotspot:0.2,0.8",
        "latest",
        "uniform:1-100",
        "lines:keys.txt",
        "u64:ordered",
        "btree",
        "sim",
        "ycsb-a",
        "closed:8",
        "open:100K",
        "99999999999999999999",
        "1e309",
        "-1",
        "0",
    ];
    for (number, text) in texts.iter().enumerate() {
        write(corpus, "text", &format!("{number:02}"), text.as_bytes());
    }
}

/// Every verb as a server gets it, what is wrong with one, and answers as a client gets them.
fn wire(corpus: &Path) {
    let request = |verb: u8, more: u8, offset: u64, length: u32, operands: &[u8]| {
        let head = [&[verb, more, 0, 0][..], &length.to_le_bytes(), &offset.to_le_bytes()].concat();
        [&head, operands].concat()
    };
    let word = 7_u64.to_le_bytes();
    let verbs = [
        request(1, 0, 64, 24, &[]),
        request(2, 0, 61, 11, b"hello world"),
        request(3, 0, 64, 16, &[word, word].concat()),
        request(4, 0, 64, 8, &word),
        request(5, 0, 9 << 32 | 1, 3, &[5, 6, 7]),
        request(6, 0, 0, 8, &9_u64.to_le_bytes()),
        request(7, 0, 0, 8, &word),
        request(8, 0, 0, 0, &[]),
        request(10, 0, 72, 8, &word),
        request(9, 0, 0, 0, &[]),
    ]
    .concat();
    write(corpus, "wire", "verbs", &[&[2, 255][..], &verbs].concat());
    write(corpus, "wire", "pieces", &[&[2, 2][..], &verbs].concat());
    let chain = [request(4, 1, 1 << 40, 8, &word), request(4, 0, 64, 8, &word)].concat();
    write(corpus, "wire", "chain", &[&[2, 255][..], &chain].concat());
    let oneself = [request(9, 0, 0, 0, &[]), request(6, 0, 0, 8, &word)].concat();
    write(corpus, "wire", "fenced", &[&[2, 255][..], &oneself, &verbs].concat());
    let long = [request(5, 0, 2 << 52 | 1, 0, &[]), request(1, 0, 0, 1 << 16, &[])].concat();
    write(corpus, "wire", "long", &[&[2, 255][..], &long.repeat(8)].concat());
    let call = request(5, 0, 9 << 32 | 1, 3, &[5, 6, 7]);
    let nobody = request(5, 0, 9 << 32 | 2, 3, &[5, 6, 7]);
    let verb = request(2, 0, 64, 3, &[5, 6, 7]);
    write(corpus, "wire", "messages", &[&[4, 18][..], &call, &nobody, &verb, &call].concat());
    let mut hello = [&[0, 255][..], b"FarleafT", &[2, 0, 0, 0, 0, 0, 0, 0], &word].concat();
    hello.extend([0, 0, 1, 0]);
    hello.resize(66, 0);
    write(corpus, "wire", "hello", &[&hello, &verbs[..]].concat());

    let answer = |status: u8, content: &[u8]| {
        [&[status, 0, 0, 0][..], &(content.len() as u32).to_le_bytes(), content].concat()
    };
    // READ of 16 bytes, WRITE, CAS, chain, batch, RPC, fence, question.
    let posts = [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17];
    let list = [answer(0, &[1; 16]), answer(0, &[]), answer(0, &word)].concat();
    let all = [
        answer(0, &[1; 16]),
        answer(0, &[]),
        answer(0, &word),
        list.clone(),
        list,
        answer(0, &[2; 5]),
        answer(0, &[]),
        answer(0, &[1]),
    ]
    .concat();
    let front = |piece: u8| [&[1, piece, 8][..], &posts].concat();
    write(corpus, "wire", "answers", &[front(255), all.clone()].concat());
    write(corpus, "wire", "answers-pieces", &[front(0), all.clone()].concat());
    let abandoned = [&[1, 255, 8][..], &posts.map(|post| post | 0x80), &all].concat();
    write(corpus, "wire", "answers-abandoned", &abandoned);
    let statuses: Vec<u8> = (1..7).flat_map(|status| answer(status, &[])).collect();
    write(corpus, "wire", "statuses", &[front(255), statuses].concat());
    write(corpus, "wire", "answers-short", &[front(255), answer(0, &[1; 15])].concat());
}

/// Every operation in one line, an operation in two, and what is not linearizable.
fn history(corpus: &Path) {
    let header = "{\"op\":\"history\",\"version\":1}\n";
    let first = "{\"op\":\"initial\",\"key\":\"aw==\",\"value\":\"MQ==\"}\n";
    let of = |client: u32, rest: &str| format!("{{\"client\":{client},{rest}}}\n");
    let whole = [
        of(0, r#""op":"get","key":"aw==","from_ns":1,"to_ns":2,"result":"MQ==""#),
        of(0, r#""op":"insert","key":"eg==","value":"Mg==","from_ns":3,"to_ns":4,"result":true"#),
        of(1, r#""op":"update","key":"aw==","value":"Mw==","from_ns":3,"to_ns":6,"result":true"#),
        of(0, r#""op":"upsert","key":"aw==","value":"NA==","from_ns":5,"to_ns":null"#),
        of(1, r#""op":"remove","key":"eg==","from_ns":7,"to_ns":8,"result":true"#),
        of(
            1,
            r#""op":"compare_exchange","key":"eg==","expected":null,"value":"Mg==","from_ns":9,"to_ns":10,"result":{"done":true,"held":null}"#,
        ),
        of(
            2,
            r#""op":"scan","from":{"included":"aw=="},"to":null,"reverse":false,"limit":null,"from_ns":11,"to_ns":12,"result":[["aw==","Mw=="],["eg==","Mg=="]]"#,
        ),
    ];
    write(corpus, "history", "whole", [header, first, &whole.concat()].concat().as_bytes());
    let begun =
        format!("{{\"begin\":17,{}", &of(3, r#""op":"remove","key":"aw==","from_ns":3"#)[1..]);
    let ended = "{\"end\":17,\"to_ns\":5,\"result\":true}\n";
    write(corpus, "history", "begun", [header, first, &begun, ended].concat().as_bytes());
    write(corpus, "history", "cut", [header, first, &begun, &ended[..9]].concat().as_bytes());
    let wrong = of(0, r#""op":"get","key":"aw==","from_ns":1,"to_ns":2,"result":null"#);
    write(corpus, "history", "wrong", [header, first, &wrong].concat().as_bytes());
}

/// Each operation in each layout, on a key that is there and one that is not; with damage of either kind;
/// requests that are none.
fn offload(corpus: &Path) {
    for layout in 0..4_u8 {
        for operation in 1..6_u8 {
            let name = |what: &str| format!("{layout}-{operation}-{what}");
            let both = [layout, 0, 2, operation, 2, 0, 0, operation, 3, 0, 0];
            write(corpus, "offload", &name("sound"), &both);
            // A word of the leaf, of the inner node, sealed or not.
            let sealed = [layout | 0x10, 1, 9, 0, 7, 2, 1, operation, 2, 0, 0];
            write(corpus, "offload", &name("sealed"), &sealed);
            let torn = [layout, 1, 5, 1, 7, 2, 1, operation, 2, 0, 0];
            write(corpus, "offload", &name("torn"), &torn);
            // Twice the same, and then a changed byte of the request.
            let again =
                [layout, 0, 3, operation, 2, 0, 0, operation, 2, 1, 0, operation, 2, 2, 1, 9, 1];
            write(corpus, "offload", &name("again"), &again);
        }
    }
    // Scans: up and down, with the key and without, to a far end, from an end.
    for layout in 0..4_u8 {
        for (at, number) in [0x02, 0x0a, 0x17, 0x43, 0xc6, 0x21, 0x29, 0x4e].into_iter().enumerate()
        {
            let scan = [layout, 0, 2, 6, number, 0, 0, 6, number ^ 1, 0, 0];
            write(corpus, "offload", &format!("{layout}-6-{at}"), &scan);
            let torn = [layout | (number & 0x10), 1, 5, 1, 7, 2, 1, 6, number, 0, 0];
            write(corpus, "offload", &format!("{layout}-6-{at}-torn"), &torn);
        }
    }
    write(corpus, "offload", "raw", &[[0x80, 0].as_slice(), b"FDO1", &[1; 92]].concat());
    write(corpus, "offload", "short", &[0x80, 0, b'F']);
}

/// A request and a reply of each kind.
fn messages(corpus: &Path) {
    let words =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let text = |text: &[u8]| [&(text.len() as u32).to_le_bytes(), text].concat();
    let (key, some, number) = (text(b"key"), [&[1][..], &text(b"v")].concat(), words(&[9]));
    let requests = [
        ("get", [&[1][..], &key].concat()),
        ("upsert", [&[4][..], &key, &key].concat()),
        ("exchange", [&[6][..], &key, &some, &[0]].concat()),
        ("scan", [&[7, 1][..], &key, &[2], &key, &[1], &number].concat()),
        ("greet", vec![8]),
        ("give", [&[10, 0][..], &some, &number].concat()),
        ("load", vec![12, 1]),
    ];
    let table = words(&[4096]);
    for (name, op) in requests {
        write(corpus, "messages", &format!("ask-{name}"), &[&[0][..], &table, &op].concat());
    }
    let load = [&number[..], &[0], &some, &number, &[2, 0, 0, 0], &key, &key].concat();
    let replies = [
        ("value", [&[1][..], &some].concat()),
        ("done", vec![2, 1]),
        ("exchanged", vec![3, 0, 0]),
        ("pairs", [&[4][..], &key, &key, &key, &key].concat()),
        ("moved", [&[7][..], &number].concat()),
        ("not-moved", [&[8, 5][..], &number].concat()),
        ("loads", [&[9][..], &load, &load].concat()),
        ("error", [&[10, 3][..], &key].concat()),
        ("move-error", [&[8, 11, 2][..], &key].concat()),
    ];
    for (name, content) in replies {
        write(corpus, "messages", &format!("told-{name}"), &[vec![1], content].concat());
    }
}
