//! Listen tests: `--listen` of all commands that own keys.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::cluster::Service;
use crate::processes::wait_until;
use crate::{Pool, Run, command, farleaf, finish};

/// A pool on a network with an empty table `d` of dex and a table `b` of btree.
fn cluster() -> Service {
    let cluster = Service::up(&[]);
    for (table, engine) in [("d", "dex"), ("b", "btree")] {
        let words =
            ["load", cluster.pool(), table, "-", "--engine", engine, "--set", "node_bytes=4096"];
        farleaf(&words, b"key\n").done();
    }
    cluster
}

fn show(pool: &str) -> Value {
    farleaf(&["repartition", pool, "d", "--json"], b"").done().json()
}

/// Returns the address of the owner of all keys, if there is one and it says so.
fn owner_at(pool: &str) -> Option<String> {
    let told = show(pool);
    let owner = told["partitions"][0]["owner"].as_str()?.to_owned();
    let mut servers = told["servers"].as_array()?.iter();
    let server = servers.find(|server| server["name"] == *owner)?;
    server["address"].as_str().map(str::to_owned)
}

/// Runs a load that goes on while others look, and ends it.
fn loading(mut command: Command, and_meanwhile: impl FnOnce()) {
    let mut load = command.spawn().unwrap();
    let mut stdin = load.stdin.take().unwrap();
    // More than a guest does, so that it comes to own the keys.
    for number in 0..100 {
        writeln!(stdin, "key-{number:03}").unwrap();
    }
    and_meanwhile();
    drop(stdin);
    assert_eq!(load.wait().unwrap().code(), Some(0));
}

#[test]
fn a_load_is_reached_where_it_is_told_to_listen() {
    let cluster = cluster();
    let pool = cluster.pool();
    let words = ["load", pool, "d", "-", "--batch", "1"];
    let folder = Pool::missing();
    fs::create_dir_all(&folder.folder).unwrap();
    let file = folder.folder.join("farleaf.toml");
    fs::write(&file, "listen = '127.0.0.4:0'\n").unwrap();
    let by_option = command(&[&words[..], &["--listen", "127.0.0.2:0"]].concat());
    let mut by_variable = command(&words);
    by_variable.env("FARLEAF_LISTEN", "127.0.0.3:0");
    let mut by_file = command(&words);
    by_file.env("FARLEAF_CONFIG", &file);
    let mut elsewhere = command(&[&words[..], &["--listen", "0.0.0.0:0"]].concat());
    elsewhere.env("FARLEAF_ADVERTISE", "127.0.0.5:0").env("FARLEAF_INSECURE_PUBLIC", "true");
    let told = [
        (by_option, "127.0.0.2"),
        (by_variable, "127.0.0.3"),
        (by_file, "127.0.0.4"),
        (elsewhere, "127.0.0.5"),
    ];
    for (command, address) in told.into_iter().chain([(command(&words), "127.0.0.1")]) {
        loading(command, || {
            wait_until("it has the keys", || owner_at(pool).is_some());
            let at = owner_at(pool).unwrap();
            let (ip, port) = at.split_once(':').unwrap();
            assert_eq!(ip, address);
            assert_ne!(port.parse(), Ok(0_u16), "the port that it took");
            // It answers there.
            farleaf(&["put", pool, "d", "second", "2"], b"").done();
            assert_eq!(farleaf(&["get", pool, "d", "second"], b"").done().text(), "2\n");
            assert_eq!(owner_at(pool), Some(at));
        });
    }
}

#[test]
fn where_nobody_can_listen_is_refused() {
    let cluster = cluster();
    let (pool, dex, btree) = (cluster.pool(), "d", "b");
    let get = |table: &str, options: &[&str]| -> Run {
        farleaf(&[&["get", pool, table, "key"], options].concat(), b"")
    };
    get(dex, &["--listen", "nowhere"]).failed(2, "invalid value 'nowhere' for '--listen");
    let mut set = command(&["get", pool, "d", "key"]);
    set.env("FARLEAF_LISTEN", "nowhere");
    finish(set, b"").failed(2, "FARLEAF_LISTEN is set in the environment");
    // An address of documentation, which no machine has.
    let foreign = ["--listen", "192.0.2.1:0", "--insecure-public"];
    get(dex, &foreign[..2]).failed(2, "--insecure-public");
    get(btree, &foreign[..2]).failed(2, "--insecure-public");
    get(dex, &foreign).failed(2, "not an address of this machine");
    for all in ["0.0.0.0:0", "[::]:0"] {
        get(dex, &["--listen", all]).failed(2, "--insecure-public");
        get(dex, &["--listen", all, "--insecure-public"]).failed(2, "stands for all addresses");
    }
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let at_taken = ["--listen", &taken];
    get(dex, &at_taken).failed(3, "another process listens there; port 0 takes a free one");
    farleaf(&[&["compute", pool][..], &at_taken].concat(), b"")
        .failed(3, "another process listens");
    // Nobody has keys of this table to himself.
    get(btree, &at_taken).done();
    drop(held);
    get(dex, &at_taken).done();
    // On shared memory compute servers ask each other, too.
    let shared = Pool::missing();
    shared.load("d", &["--create", "--pool-bytes", "64MiB", "--engine", "dex"], b"key\n").done();
    shared.run("get", &["d", "key", "--listen", "0.0.0.0:0"]).failed(2, "--insecure-public");
    shared.run("get", &["d", "key", "--listen", "127.0.0.2:0"]).done();
}

/// One address is for one process; those that it starts have their own.
#[test]
fn a_fixed_port_is_not_for_the_processes_that_a_command_starts() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = held.local_addr().unwrap().to_string();
    let with = |words: &[&str]| {
        let mut command = command(words);
        command.env("FARLEAF_LISTEN", &taken).env("FARLEAF_INSECURE_PUBLIC", "true");
        command
    };
    let options = ["--pool-bytes", "64MiB", "--listen", &taken, "--end-with-stdin"];
    let up = with(&[&["up", "--compute", "2", "--json"][..], &options].concat());
    let up = finish(up, b"").done();
    assert!(up.err.contains("--listen and --advertise have no effect here"), "{}", up.err);
    assert_eq!(up.json()["compute_servers"].as_array().unwrap().len(), 2);
    let bench = ["bench", "--engine", "dex", "--fabric", "tcp", "--keys", "1K", "--ops", "1K"];
    finish(with(&[&bench[..], &["--json"]].concat()), b"").done();
    let folder = Pool::missing();
    let folder = folder.folder.to_str().unwrap();
    let check = ["check", "processes", "--engine", "dex", "--pool", folder, "--time", "2s"];
    finish(with(&[&check[..], &["--json"]].concat()), b"").done();
    drop(held);
}

#[test]
fn where_it_listens_is_set_for_all_commands_or_for_one() {
    let folder = Pool::missing();
    fs::create_dir_all(&folder.folder).unwrap();
    let file = folder.folder.join("farleaf.toml");
    let run = |text: &str, variables: &[(&str, &str)], words: &[&str]| {
        fs::write(&file, text).unwrap();
        let mut command = command(words);
        command.env("FARLEAF_CONFIG", &file).envs(variables.iter().copied());
        finish(command, b"")
    };
    let (all, one) = ("listen = '127.0.0.2:0'\n", "[memory]\nlisten = '127.0.0.3:0'\n");
    let both = [all, one].concat();
    let (all_set, one_set) =
        (("FARLEAF_LISTEN", "127.0.0.4:0"), ("FARLEAF_MEMORY_LISTEN", "127.0.0.5:0"));
    let line = |number: usize| format!("{}:{number}", file.display());
    let memory = ["memory", "--size", "1MiB", "--end-with-stdin", "--json"];
    let address = |run: Run| {
        let told = run.done().json();
        told["address"].as_str().unwrap().split_once(':').unwrap().0.to_owned()
    };
    let check = |text: &str, variables: &[(&str, &str)], value: &str, origin: &str| {
        let words = ["config", "show", "memory", "--origin", "--json"];
        let told = run(text, variables, &words).done().json();
        assert_eq!(told["listen"]["value"], value, "{text} {variables:?}");
        assert_eq!(told["listen"]["origin"], origin, "{text} {variables:?}");
        let ip = value.trim_end_matches(":0");
        assert_eq!(address(run(text, variables, &memory)), ip, "{text} {variables:?}");
        let given = [&memory[..], &["--listen", "127.0.0.6:0"]].concat();
        assert_eq!(address(run(text, variables, &given)), "127.0.0.6");
        let given = [&["--listen", "127.0.0.6:0"][..], &memory].concat();
        assert_eq!(address(run(text, variables, &given)), "127.0.0.6");
    };
    check(one, &[], "127.0.0.3:0", &line(2));
    check(&both, &[], "127.0.0.3:0", &line(3));
    check(&both, &[one_set], "127.0.0.5:0", one_set.0);
    check(&both, &[all_set], "127.0.0.4:0", all_set.0);
    check(&both, &[all_set, one_set], "127.0.0.5:0", one_set.0);
    check(all, &[one_set], "127.0.0.5:0", one_set.0);
    check("", &[all_set, one_set], "127.0.0.5:0", one_set.0);
    // A setting for all is listed with the options that all take.
    let told = |variables: &[(&str, &str)]| {
        run(&both, variables, &["config", "show", "--origin", "--json"]).done().json()
    };
    assert_eq!(told(&[])["listen"]["value"], "127.0.0.2:0");
    assert_eq!(told(&[])["listen"]["origin"], *line(1));
    assert_eq!(told(&[all_set])["listen"]["origin"], "FARLEAF_LISTEN");
    assert_eq!(told(&[all_set])["insecure-public"]["origin"], "default");
    assert_eq!(address(run(all, &[], &memory)), "127.0.0.2");
    assert_eq!(address(run(all, &[all_set], &memory)), "127.0.0.4");
    // A flag, too; and it is for that command alone.
    let public = "[memory]\nlisten = '0.0.0.0:0'\ninsecure-public = true\n";
    assert_eq!(address(run(public, &[], &memory)), "0.0.0.0");
    let set = [("FARLEAF_INSECURE_PUBLIC", "true"), ("FARLEAF_MEMORY_INSECURE_PUBLIC", "false")];
    let public = "[memory]\nlisten = '0.0.0.0:0'\n";
    assert_eq!(address(run(public, &set[..1], &memory)), "0.0.0.0");
    run(public, &set, &memory).failed(2, "--insecure-public");
    run("[memory]\nlisten = 'nowhere'\n", &[], &["config", "show"])
        .failed(2, "farleaf.toml:2: invalid value 'nowhere' for '--listen");
}
