//! Settings tests: settings of the environment and of a file, and `config show`.

use std::fs;
use std::path::Path;

use crate::{Pool, command, farleaf, finish};

/// Runs with a file of settings and some variables.
fn with(file: &Path, variables: &[(&str, &str)], words: &[&str]) -> crate::Run {
    let mut command = command(words);
    command.env("FARLEAF_CONFIG", file).envs(variables.iter().copied());
    finish(command, b"")
}

fn file(text: &str) -> (Pool, std::path::PathBuf) {
    let pool = Pool::missing();
    fs::create_dir_all(&pool.folder).unwrap();
    let file = pool.folder.join("farleaf.toml");
    fs::write(&file, text).unwrap();
    (pool, file)
}

#[test]
fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
    let (_pool, file) = file("[memory]\nsize = '64MiB'\nthreads = 2\nlease = '3s'\n");
    let variables = [("FARLEAF_MEMORY_THREADS", "3"), ("FARLEAF_MEMORY_HUGE_PAGES", "yes")];
    let told = with(&file, &variables, &["config", "show", "memory", "--origin", "--json"]);
    let told = told.done().json();
    let of = |name: &str| (told[name]["value"].clone(), told[name]["origin"].clone());
    let line = |number: usize| format!("{}:{number}", file.display()).into();
    assert_eq!(of("size"), ("64MiB".into(), line(2)));
    assert_eq!(of("lease"), ("3s".into(), line(4)));
    assert_eq!(of("threads"), ("3".into(), "FARLEAF_MEMORY_THREADS".into()));
    assert_eq!(of("huge-pages"), ("yes".into(), "FARLEAF_MEMORY_HUGE_PAGES".into()));
    assert_eq!(of("servers"), ("1".into(), "default".into()));
    assert_eq!(of("file"), (serde_json::Value::Null, "not set".into()));
    let lines = with(&file, &[], &["config", "show", "memory"]).done().text();
    assert!(lines.lines().any(|line| line == "size\t64MiB"), "{lines}");
    assert!(lines.lines().any(|line| line == "file\t-"), "{lines}");
    // The memory that a compute server exposes, in each place.
    let (_pool, exposes) = self::file("[compute]\nexpose-bytes = '64MiB'\n");
    let show = ["config", "show", "compute", "--origin", "--json"];
    let of_compute = |variables: &[(&str, &str)]| {
        with(&exposes, variables, &show).done().json()["expose-bytes"]["value"].clone()
    };
    assert_eq!(of_compute(&[]), "64MiB");
    assert_eq!(of_compute(&[("FARLEAF_COMPUTE_EXPOSE_BYTES", "1MiB")]), "1MiB");
    let pool = Pool::new();
    let compute = ["compute", &pool.uri(), "--expose-bytes", "5000"];
    with(&exposes, &[], &compute).failed(2, "it takes a multiple of 4096");
    // A password has no place in a file.
    let (_pool, secret) = self::file("etcd-password = 'x'\n");
    with(&secret, &[], &["config", "show"]).failed(2, "no option etcd-password");
    // And so it is done: the file's size is refused, the command line's is not.
    let (_pool, file) = self::file("[memory]\nsize = '1'\n");
    with(&file, &[], &["memory", "--end-with-stdin"]).failed(2, "");
    with(&file, &[], &["memory", "--end-with-stdin", "--size", "1MiB"]).done();
}

#[test]
fn settings_that_make_no_sense_are_told_with_their_place() {
    let refused = |text: &str, words: &str| {
        let (_pool, file) = file(text);
        let told = with(&file, &[], &["tables", "shm:/nowhere"]).failed(2, words);
        assert!(told.err.contains(&format!("{}:", file.display())), "{}", told.err);
    };
    refused("[memory]\nsise = '1GiB'\n", "2: memory has no option sise; did you mean \"size\"?");
    refused("[memroy]\n", "1: there is no command memroy; did you mean \"memory\"?");
    refused("jason = true\n", "1: all commands has no option jason; did you mean \"json\"?");
    refused("[memory]\nthreads = 'many'\n", "2: invalid value 'many' for '--threads <COUNT>'");
    refused("[memory\n", "1: ");
    let missing = Path::new("/nowhere/farleaf.toml");
    with(missing, &[], &["config", "show"]).failed(7, "cannot read /nowhere/farleaf.toml");
    let none = Path::new("");
    with(none, &[("FARLEAF_MEMORY_THREADS", "many")], &["memory"])
        .failed(2, "FARLEAF_MEMORY_THREADS is set in the environment");
    with(none, &[], &["config", "show", "memroy"]).failed(2, "memroy");
    farleaf(&["config"], b"").failed(2, "show");
}

/// Settings for servers that stand alone are not for those that a command starts.
#[test]
fn servers_of_a_cluster_of_this_machine_are_as_it_says() {
    let (pool, file) = file("[memory]\nlisten = '203.0.113.1:1'\nfile = '/nowhere/memory'\n");
    let bench = ["bench", "--fabric", "tcp", "--keys", "1K", "--ops", "1K", "--json"];
    let variables = [("FARLEAF_MEMORY_SIZE", "7"), ("FARLEAF_COMPUTE_POOL", "tcp://127.0.0.1:1")];
    with(&file, &variables, &bench).done();
    drop(pool);
}
