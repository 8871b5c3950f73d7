//! Record cost: what a get of a table of records costs more than one of a table of raw values.
//!
//! Both tables have the same keys and strings, in the memory of this process, and are read in turn. Prints the medians of
//! both and of the ratio of neighbouring rounds, for each engine that is named: `record_cost dex btree`. Where a table
//! lies changes its time by some percent, so they are made several times, one of them first in turn.

use std::time::Instant;

use farleaf::{Content, Engine, Farleaf, Result, Table, TableOptions};

const KEYS: u32 = 100_000;
const GETS: u32 = 200_000;
const POOLS: usize = 6;
const ROUNDS: usize = 11;
const VALUE: [u8; 64] = [7; 64];

fn key(number: u32) -> [u8; 12] {
    let mut key = *b"key:00000000";
    key[4..].copy_from_slice(format!("{number:08}").as_bytes());
    key
}

/// Nanoseconds of a get.
fn round(table: &Table, keys: &[[u8; 12]]) -> Result<f64> {
    let mut value = Vec::with_capacity(VALUE.len() + 16);
    let begin = Instant::now();
    for key in keys {
        assert!(table.get_into(key, &mut value)?, "it was loaded");
    }
    assert_eq!(value, VALUE, "a string without a header");
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(GETS))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let engines: Vec<Engine> = named.iter().filter_map(|name| name.parse().ok()).collect();
    assert_eq!(engines.len(), named.len(), "names of engines: {named:?}");
    // The same for both tables: a linear congruential generator.
    let mut state = 1_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        key((state >> 8) % KEYS)
    };
    let keys: Vec<_> = (0..GETS).map(|_| draw()).collect();
    println!("engine\traw ns\trecords ns\tratio");
    for engine in engines {
        let (mut of_raw, mut of_records, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for pool in 0..POOLS {
            let db = Farleaf::builder().pool_bytes(256 << 20).open("mem:")?;
            let table = |content: Content| -> Result<Table> {
                let options = TableOptions::default().engine(engine).content(content);
                let table = db.create_table(&format!("{content:?}"), options)?;
                table.bulk_load((0..KEYS).map(|number| (key(number), VALUE)))?;
                Ok(table)
            };
            let (raw, records) = if pool % 2 == 0 {
                let raw = table(Content::Raw)?;
                (raw, table(Content::Records)?)
            } else {
                let records = table(Content::Records)?;
                (table(Content::Raw)?, records)
            };
            // The first round warms up.
            for number in 0..=ROUNDS {
                let (one, other) = if number % 2 == 0 {
                    let one = round(&raw, &keys)?;
                    (one, round(&records, &keys)?)
                } else {
                    let other = round(&records, &keys)?;
                    (round(&raw, &keys)?, other)
                };
                if number > 0 {
                    of_raw.push(one);
                    of_records.push(other);
                    ratios.push(other / one);
                }
            }
            db.close()?;
        }
        let [one, other, ratio] = [of_raw, of_records, ratios].map(median);
        println!("{engine}\t{one:.1}\t{other:.1}\t{ratio:.4}");
    }
    Ok(())
}
