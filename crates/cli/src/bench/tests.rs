#![allow(clippy::unwrap_used)]

use std::fs;

use clap::Parser;
use farleaf::{Farleaf, Settings};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

fn plan(options: &str) -> Result<Plan, String> {
    let words = ["bench"].into_iter().chain(options.split_whitespace());
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    line.bench.plan(&Farleaf::builder()).map_err(|failure| failure.to_string())
}

fn config(options: &str) -> BenchConfig {
    plan(options).unwrap().runs.remove(0)
}

#[test]
fn without_options_it_is_the_default() {
    assert_eq!(config(""), BenchConfig::default());
}

#[test]
fn every_option_reaches_the_configuration() {
    let config = config(
        "--engine btree --workload b --keys 2K --warmup 0 --ops 1.5M --distribution latest \
         --theta 0.7 --clients 32 --threads 4 --compute-servers 2 --memory-servers 3 --fabric sim \
         --seed 9 --key-type bytes:ordered --value-bytes 1KiB --scan-length 1-10 --rate 100K \
         --load insert --set node_bytes=4KiB --pool-bytes 1GiB --torn \
         --capabilities mapped --verify",
    );
    let expected = BenchConfig {
        engine: Engine::BTree,
        fabric: FabricKind::Sim,
        workload: Workload {
            request: RequestDistribution::Latest { theta: 0.7 },
            scan_length: ScanLength::Uniform { min: 1, max: 10 },
            ..Workload::named("b").unwrap()
        },
        keys: 2_000,
        load: LoadKind::Insert,
        warmup_ops: 0,
        warm_up: None,
        ops: 1_500_000,
        slices: 1,
        clients: 32,
        threads: 4,
        compute_servers: 2,
        memory_servers: 3,
        seed: 9,
        key_type: "bytes:ordered".parse().unwrap(),
        value_bytes: 1024,
        rate: Rate::new(100_000),
        settings: Settings::default().with("node_bytes", "4KiB"),
        parts: Parts::default(),
        pool_bytes: Some(1 << 30),
        local_ns: 0,
        torn: true,
        capabilities: CapabilityKind::Mapped,
        card_model: None,
        verify: true,
        cluster: None,
        card: farleaf::CardConfig::default(),
        tls: None,
    };
    assert_eq!(config, expected);
}

#[test]
fn every_part_reaches_the_configuration() {
    let config = config(
        "--engine dex --fabric sim --compute-servers 2 --cache 64MiB --set durability=volatile \
         --set admission=eager,single_queue=on --set offload=ratio:0.3 --partitions 6 --boundaries equal \
         --routing any --memory-threads 4",
    );
    let expected = Parts {
        partitions: Some(6),
        boundaries: Some(Boundaries::Equal),
        routing: Some(Routing::Any),
        memory_threads: Some(4),
    };
    assert_eq!(config.parts, expected);
    let set: Vec<String> =
        config.settings.iter().map(|(name, text)| format!("{name}={text}")).collect();
    let named = ["durability=volatile", "admission=eager", "single_queue=on", "offload=ratio:0.3"];
    assert_eq!(set, [&named[..], &["cache=64MiB"]].concat());
}

#[test]
fn parts_are_for_engines_that_have_them() {
    let refusal = |options: &str| plan(options).unwrap_err();
    for (options, sentence) in [
        ("--engine btree --cache 64MiB", "engine btree: no setting is named \"cache\""),
        ("--engine btree --fabric sim --memory-threads 2", "nothing that --memory-threads sets"),
        ("--engine dex --set durability=none", "volatile, logged"),
        ("--engine dex --cache 0%", "0 bytes of cache"),
        ("--engine dex --cache 101%", "0 to 100 %"),
        ("--engine dex --cache 8% --load insert", "needs --load bulk"),
        ("--engine dex --set offload=ratio:2", "ratio: and a share"),
        ("--engine dex --set offload=sometimes", "never, always, adaptive"),
        ("--engine dex --set admission=2", "again, lazy, eager, or a probability"),
        ("--engine dex --set single_queu=on", "did you mean \"single_queue\"?"),
        ("--engine dex --set offload", "name=value"),
        ("--engine all --set cahce=8%", "no setting is named \"cahce\""),
        ("--engine dex --boundaries even", "known: sampled, equal"),
        ("--engine dex --boundaries equal --key-type bytes", "take sampled"),
        ("--engine dex --compute-servers 2 --partitions 1", "1 partitions for 2 compute servers"),
        ("--engine dex --compute-servers 2 --rate 1K --routing owner", "--routing any does"),
        ("--engine dex --memory-threads 2", "the fabric mapped has no threads"),
    ] {
        let error = refusal(options);
        assert!(error.contains(sentence), "{options}: {error}");
    }
    // Of several engines, those take it that have it.
    let runs = plan("--engine all --cache 8% --set offload=always").unwrap().runs;
    let chosen = |engine| runs.iter().find(|it| it.engine == engine).unwrap().settings.clone();
    assert_eq!(chosen(Engine::BTree), Settings::default());
    assert_eq!(chosen(Engine::Dex).get("offload"), Some("always"));
    let threads = plan("--engine all --fabric tcp --memory-threads 3").unwrap().runs;
    assert!(threads.iter().all(|run| run.parts.memory_threads == Some(3)));
}

#[test]
fn defaults_give_way_to_what_was_asked_for() {
    assert_eq!(config("--clients 1").threads, 1);
    let four = config("--compute-servers 4");
    assert_eq!((four.clients, four.threads), (16, 4));
}

#[test]
fn nonsense_is_refused_with_a_sentence() {
    for (options, sentence) in [
        ("--clients 0", "0 clients"),
        ("--ops 0", "0 ops"),
        ("--threads 17", "17 threads for 16 clients"),
        ("--theta 0", "theta must be a finite number above 0"),
        ("--theta -1", "theta must be a finite number above 0"),
        ("--theta 0.5 --distribution uniform", "the distribution is uniform"),
        ("--workload red-only", "did you mean \"read-only\"?"),
        ("--distribution zipfain", "did you mean \"zipfian\"?"),
        ("--engine btre", "did you mean \"btree\"?"),
        ("--engine btree,none", "no engine is named \"none\""),
        ("--fabric maped", "did you mean \"mapped\"?"),
        ("--compute-servers 3", "16 clients cannot be shared evenly"),
        ("--connect tcp://127.0.0.1:7", "needs --fabric tcp"),
        ("--fabric tcp --connect verbs://127.0.0.1:7", "needs --fabric verbs"),
        ("--fabric verbs --connect tcp://127.0.0.1:7", "needs --fabric tcp"),
        ("--fabric verbs --connect verbs://127.0.0.1:7?gid=all", "an index into the GID table"),
        ("--fabric verbs --connect verbs://127.0.0.1:7 --mtu 1024", "an address says it itself"),
        ("--fabric tcp --device rxe0", "need --fabric verbs"),
        ("--fabric tcp --connect tcp://nowhere", "\"nowhere\" is not a memory server"),
        ("--fabric tcp --connect tcp://127.0.0.1:7 --pool-bytes 1GiB", "cannot be used with"),
        ("--torn", "torn words are the simulator's"),
        ("--keys many", "is not a count"),
        ("--pool-bytes 4G", "say GiB (1024) or GB (1000)"),
        ("--rate 0", "at least 1 per second"),
        ("--workload a -p readproportion=1", "cannot be used with"),
        ("-p readproportion", "is not of the form property=value"),
        ("-P /does/not/exist", "cannot read workload file"),
    ] {
        let error = plan(options).unwrap_err();
        assert!(error.contains(sentence), "{options}: {error}");
    }
}

#[test]
fn a_cluster_says_how_many_servers_there_are() {
    let config = config("--fabric tcp --connect tcp://127.0.0.1:7,127.0.0.1:8,127.0.0.1:9");
    assert_eq!(config.memory_servers, 3);
    assert!(matches!(config.cluster, Some(Cluster::Shared(servers)) if servers.len() == 3));
    assert_eq!(plan("--fabric tcp").unwrap().runs[0].cluster, None);
}

#[test]
fn a_card_is_asked_for_by_options_or_by_the_address() {
    let own = config("--fabric verbs --device rxe0 --device-port 2 --gid-index 3 --mtu 1024");
    let card = own.card.clone();
    assert_eq!((card.device.as_deref(), card.port), (Some("rxe0"), Some(2)));
    assert_eq!((card.gid_index, card.mtu, own.cluster), (Some(3), Some(1024), None));
    let pool = "verbs://127.0.0.1:7?device=rxe0&port=2&gid=3&mtu=1024";
    let others = config(&format!("--fabric verbs --connect {pool}"));
    assert_eq!((others.card, others.memory_servers), (card, 1));
}

#[test]
fn engines_are_a_list() {
    assert_eq!(plan("--engine all").unwrap().runs.len(), Engine::ALL.len());
    assert_eq!(plan("--engine btree,btree").unwrap().runs.len(), 1);
}

#[test]
fn workload_files_count_and_options_win_over_them() {
    let path = std::env::temp_dir().join(format!("farleaf-bench-{}", std::process::id()));
    let text = "recordcount=500\noperationcount=700\nworkload=site.ycsb.workloads.CoreWorkload\n\
        readproportion=1\nupdateproportion=0\nthreadcount=4\nfieldcount=2\nfieldlength=10\n\
        maxexecutiontime=9\ncolour=blue\n";
    fs::write(&path, text).unwrap();
    let options = format!("-P {} -p recordcount=600 --ops 800", path.display());
    let plan = plan(&options);
    fs::remove_file(&path).unwrap();
    let mut plan = plan.unwrap();
    assert_eq!(plan.ignored, ["colour", "maxexecutiontime"]);
    let config = plan.runs.remove(0);
    assert_eq!((config.keys, config.ops, config.clients, config.value_bytes), (600, 800, 4, 20));
    assert_eq!(config.workload.mix.to_string(), "get=100");
    assert_eq!(config.key_type.to_string(), "bytes");
}
