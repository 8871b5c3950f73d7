//! Redis tests: the whole comparison.
#![allow(clippy::unwrap_used)]

use std::{net::SocketAddr, sync::Arc};

use farleaf_bench::{
    NoProgress,
    repro::{Experiment, Host, HostError, Hosts, RedisError, ReproCheck, ReproError, ReproOptions},
};
use farleaf_fabric::tcp::{HugePages, MemoryServer, MemoryServerConfig, Region};

/// Systems that are compared, Redis among them; the bars between them; YCSB's workloads.
const SYSTEMS: usize = 4;
const BARS: usize = 3;
const WORKLOADS: usize = 6;

/// Memory servers as threads of this process.
struct Threads;

struct Thread(Arc<MemoryServer>);

impl Hosts for Threads {
    fn memory_server(&self, region_bytes: u64) -> Result<Box<dyn Host>, HostError> {
        let region = Region::anonymous(region_bytes, HugePages::No)?;
        let server = MemoryServer::start_over(MemoryServerConfig::default(), region)?;
        Ok(Box::new(Thread(Arc::new(server))))
    }
}

impl Host for Thread {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// The whole comparison at a small scale: all checks that hold at any scale do, and every side
/// works.
#[test]
fn all_sides_take_their_turns() {
    let options = ReproOptions { scale: 0.002, seed: 1, ..ReproOptions::default() };
    let experiment = "redis".parse::<Experiment>().unwrap();
    let report = match experiment.run(&options, &Threads, &NoProgress) {
        Err(ReproError::Redis(RedisError::Missing { .. })) => {
            eprintln!("skipped: no redis-server here (`make setup` installs it)");
            return;
        }
        ended => ended.unwrap(),
    };
    assert_eq!(report.failed().count(), 0, "{:?}", report.checks);
    let at_least = |it: &&ReproCheck| it.what.contains("at least");
    assert_eq!(report.checks.iter().filter(at_least).count(), BARS);
    assert!(report.checks.iter().filter(at_least).all(|it| it.holds.is_none()), "small");
    let [gets, ycsb] = report.tables.as_slice() else { panic!("two tables") };
    assert_eq!(gets.rows.len(), 2 + BARS);
    assert_eq!(ycsb.rows.len(), WORKLOADS * SYSTEMS);
    for row in gets.rows.iter().chain(&ycsb.rows) {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row:?}"));
        assert!(number("M op/s") > 0.0 && number("p50 us") <= number("p99 us"), "{row:?}");
        assert!(number("least") <= number("M op/s") && number("M op/s") <= number("most"));
        let is_redis = row["system"].as_str().unwrap().starts_with("redis");
        assert_eq!(row["READ /op"].is_null(), is_redis, "{row:?}");
    }
    // A row for each bar against each of the two, and for each engine on each workload.
    assert_eq!(report.rows.len(), 2 * BARS + WORKLOADS * (SYSTEMS - 1));
    assert!(report.rows.iter().all(|row| row.ratio.is_some_and(|ratio| ratio > 0.0)));
    assert!(report.svg().unwrap().contains("redis"));
}
