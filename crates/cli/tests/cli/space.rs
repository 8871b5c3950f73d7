//! File space tests: pools on a file system that is full.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use crate::{Pool, Run};

#[test]
fn a_pool_of_files_reserves_its_space_unless_told_not_to() {
    const BYTES: u64 = 16 << 20;
    let taken =
        |pool: &Pool| fs::metadata(pool.folder.join("region-00000")).unwrap().blocks() * 512;
    let pool = Pool::missing();
    pool.load("t", &["--create", "--pool-bytes", "16MiB"], b"a\n").done();
    assert!(taken(&pool) >= BYTES, "{} bytes", taken(&pool));
    let sparse = Pool::missing();
    sparse.load("t", &["--create", "--pool-bytes", "16MiB", "--no-reserve"], b"a\n").done();
    sparse.run("get", &["t", "a"]).done();
    assert!(taken(&sparse) < BYTES, "{} bytes", taken(&sparse));
    sparse.load("t", &["--no-reserve"], b"a\n").failed(2, "--create");
    // Far more than any machine has.
    let huge = Pool::missing();
    let options = ["--create", "--pool-bytes", "64TiB"];
    huge.load("t", &options, b"a\n").failed(4, "70368744177664 bytes do not fit into");
    assert!(!huge.folder.exists());
    let file = pool.folder.join("memory");
    let file = file.to_str().unwrap();
    crate::farleaf(&["memory", "--size", "64TiB", "--file", file], b"")
        .failed(4, "do not fit into");
}

/// Runs `script` in a mount namespace of its own; `None` where the system does not allow that.
fn with_own_mounts(script: &str, arguments: &[&str]) -> Option<Run> {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.args(arguments).env("FARLEAF_CONFIG", "").stdin(Stdio::null());
    let ended = command.output().ok()?;
    let err = String::from_utf8(ended.stderr).unwrap();
    if err.starts_with("unshare: ") || ended.status.code() == Some(99) {
        eprintln!("not tested, as there are no mount namespaces here: {err}");
        return None;
    }
    Some(Run { code: ended.status.code().unwrap_or(-1), out: ended.stdout, err })
}

/// Two pools of 50 MiB were made on 64 MiB; the load into the second one died with 135 and no word.
#[test]
fn a_full_file_system_kills_no_command_without_a_word() {
    const SCRIPT: &str = r#"
        mount -t tmpfs -o size=64m farleaf "$1" || exit 99
        farleaf() { "$program" "$@"; echo "$name $?"; }
        program=$2
        keys() { seq 1 20; }
        value=$(head -c 100000 /dev/zero | tr '\0' x)
        name=one;    keys | farleaf load -q shm:$1/one t - --create --pool-bytes 40MiB
        name=two;    keys | farleaf load -q shm:$1/two t - --create --pool-bytes 40MiB
        name=left;   ls $1/two 2>/dev/null; echo "$name $?"
        name=sparse; keys | farleaf load -q shm:$1/sparse t - --create --pool-bytes 20MiB --no-reserve
        dd if=/dev/zero of=$1/fill bs=64k 2>/dev/null
        name=more;   keys | farleaf load -q shm:$1/one t - --value "$value"
        name=sound;  farleaf verify -q shm:$1/one
        name=full;   seq 1 200 | farleaf load -q shm:$1/sparse t - --value "$value"
        name=walked; farleaf verify -q shm:$1/sparse
    "#;
    let pool = Pool::missing();
    fs::create_dir_all(&pool.folder).unwrap();
    let arguments = [pool.folder.to_str().unwrap(), env!("CARGO_BIN_EXE_farleaf")];
    let Some(run) = with_own_mounts(SCRIPT, &arguments) else { return };
    let (told, err) = (run.text(), &run.err);
    let code = |name: &str| -> i32 {
        let mut found =
            told.lines().rev().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.next().unwrap_or_else(|| panic!("{name} is not in {told}{err}"))
    };
    assert_eq!(
        (code("one"), code("two"), code("more"), code("sound")),
        (0, 4, 0, 0),
        "{told}{err}"
    );
    assert!(err.contains("41943040 bytes do not fit into"), "{err}");
    assert_eq!(code("left"), 2, "the second pool is gone: {told}{err}");
    assert_eq!((code("sparse"), code("full")), (0, 4), "{told}{err}");
    assert!(err.contains("its file system is full"), "{err}");
    assert!([0, 1, 4].contains(&code("walked")), "{told}{err}");
}
