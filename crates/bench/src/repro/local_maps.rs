//! Local maps: every engine on mapped memory, beside ordered maps in local memory from crates.io.
//!
//! An engine is opened in the users' way, with its ownership map and guard. All sides hold the same pairs, inserted
//! in the same random order, and take turns in slices. Mapped memory has no network: the figures show the work of the
//! processor for each operation, and none of a design's savings of round trips.

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_index::knobs::{CACHE, DURABILITY};
use farleaf_index::{Index, OpenOptions, Settings};
use serde_json::{Map, Value, json};

use super::{
    Repro, ReproOptions, driver,
    error::ReproError,
    maps::{self, BenchTable, Side},
    report::{ReproReport, ReproTable},
    slices::{self, Draw, SlicePlan, THREADS, Testbed, Work, number_of},
};
use crate::{
    distribution::{Scramble, Zipfian},
    run::{BenchError, Phase, Progress},
};

const KEYS: u64 = 10_000_000;
const ROUNDS: usize = 40;
pub(super) const SCALE_MIN: f64 = 0.0001;
const THETA: f64 = 0.99;
/// Bytes of a pool for each key: of all tables, of two for each engine with a cache.
const POOL_BYTES_PER_KEY: u64 = 1_600;
/// Caches of an engine that has one: shares of the table's bytes, and their names.
const CACHES: [(f64, &str); 2] = [(3.0, "cache that holds all"), (0.08, "cache of 8 %")];
/// The least cache that every engine takes.
const CACHE_MIN: u64 = 1 << 20;
/// The maps with which all are compared, the first that this build has.
const AGAINST: [&str; 2] = [maps::MASSTREE, maps::STD_MAP];

pub(super) fn run(repro: &Repro<'_>, report: &mut ReproReport) -> Result<(), ReproError> {
    let Repro { options, progress, .. } = *repro;
    report.source = "crates.io".to_owned();
    let keys = options.scaled(KEYS);
    let testbed = Testbed::new(keys * POOL_BYTES_PER_KEY + (512 << 20), options.seed)?;
    let sides = sides(&testbed, keys, options, progress)?;
    let against = AGAINST.iter().find_map(|name| sides.iter().position(|it| it.name == *name));
    let against = against.unwrap_or(0);
    report.against = sides[against].name.clone();
    report.set("fabric", "mapped");
    report.set("seed", options.seed);
    report.set("keys", keys);
    report.set("key_bytes", 8);
    report.set("value_bytes", 8);
    report.set("loaded", "in random order, one by one");
    report.set("threads", THREADS);
    report.set("slice_ops", slices::SLICE_OPS);
    report.set("rounds", ROUNDS);
    let zipfian = Zipfian::new(THETA, keys).map_err(BenchError::from)?;
    let scramble = Scramble::new(keys, options.seed);
    let uniform = |rng: &mut fastrand::Rng| rng.u64(..keys);
    let skewed = |rng: &mut fastrand::Rng| scramble.item(zipfian.sample(rng));
    let draws: [(&str, &Draw<'_>); 2] = [("uniform", &uniform), ("zipfian 0.99", &skewed)];
    let mut shares: Vec<Map<String, Value>> =
        sides.iter().map(|side| Map::from_iter([("map".to_owned(), json!(side.name))])).collect();
    for (distribution, draw) in draws {
        for work in [Work::Get, Work::Update] {
            let plan = SlicePlan {
                sides: sides.len(),
                rounds: ROUNDS,
                draw,
                slice: &|side, thread, wanted| sides[side].map.slice(work, thread, wanted),
            };
            let times = testbed.measure(&plan, progress)?;
            let column = format!("{distribution} {}", work.name());
            for (at, side) in sides.iter().enumerate() {
                report.row(&format!("{column}, {}", side.name), "Mops", None, times.mops(at), "");
                let share = times.processor_ratio(at, against);
                shares[at].insert(column.clone(), json!((share * 1000.0).round() / 1000.0));
            }
        }
    }
    let title = format!("throughput by processor time, as a share of that of {}", report.against);
    report.tables.push(ReproTable { rows: shares, ..ReproTable::new(&title) });
    let (names, why) = maps::missing();
    names.iter().for_each(|name| report.missing(name, "Mops", None, why));
    report.note(
        "Each figure is the median over rounds; in a round every side runs for some milliseconds on both \
         threads at once, one side after the other. Shares are by processor time, so that other work of the \
         machine does not count; Mops are by real time.",
    );
    Ok(())
}

/// Makes and loads all maps.
fn sides(
    testbed: &Testbed,
    keys: u64,
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<Vec<Side>, ReproError> {
    let mut sides = Vec::new();
    for engine in driver::engines() {
        let caches: &[_] = if engine.traits().cached { &CACHES } else { &[(0.0, "")] };
        for (share, about) in caches {
            let name = match *about {
                "" => engine.name().to_owned(),
                about => format!("{engine}, {about}"),
            };
            progress.begin(Phase::Load, keys);
            let table = load(testbed, engine, &name, keys, *share, options, progress)?;
            sides.push(Side::new(name, Box::new(BenchTable(table))));
        }
    }
    progress.begin(Phase::Load, keys);
    sides.extend(maps::all(keys));
    Ok(sides)
}

/// Inserts the pairs into a table of `engine`, and opens it with a cache of that share of its bytes, warm.
fn load(
    testbed: &Testbed,
    engine: Engine,
    name: &str,
    keys: u64,
    share: f64,
    options: &ReproOptions,
    progress: &dyn Progress,
) -> Result<AnyIndex, ReproError> {
    let before = testbed.live_bytes();
    let opened = |cache: u64| {
        let settings = Settings::default()
            .with(DURABILITY, "volatile")
            .and(&options.settings)
            .with(CACHE, &cache.max(CACHE_MIN).to_string());
        let settings = engine.options_of(&settings);
        let take = usize::from(engine.traits().owned);
        OpenOptions { settings, take, ..OpenOptions::default() }
    };
    testbed.prepare(async |session| {
        let format = TableFormat::fixed8(engine);
        let root = AnyIndex::create(session, name, &format).await.map_err(BenchError::Load)?;
        let table = AnyIndex::open(session, &root, &opened(keys * 64)).await;
        let table = table.map_err(BenchError::Open)?;
        for item in 0..keys {
            let key = number_of(item).to_be_bytes();
            let new = table.insert(session, &key, &item.to_le_bytes()).await;
            if !new.map_err(BenchError::Load)? {
                return Err(ReproError::Wrong(format!("{name}: item {item} was there before")));
            }
            progress.advance(1);
        }
        table.close(session).await.map_err(BenchError::Open)?;
        let bytes = testbed.live_bytes().saturating_sub(before);
        let table = AnyIndex::open(session, &root, &opened((bytes as f64 * share) as u64)).await;
        let table = table.map_err(BenchError::Open)?;
        slices::get_all(session, &table, 0..keys).await?;
        Ok(table)
    })
}
