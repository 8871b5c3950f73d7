//! Figures of `Table::get_many` in Rust, for `python/bench.py`: nanoseconds for each key of batches of 1,000.
//!
//!     get_many KEYS GETS ROUNDS

use std::env;
use std::error::Error;
use std::time::Instant;

use farleaf::{Engine, Farleaf, TableOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |or: usize| numbers.next().unwrap_or(Ok(or));
    let (keys, gets, rounds) = (next(100_000)?, next(200_000)?, next(7)?);
    let pairs: Vec<Vec<u8>> = (0..keys).map(|key| format!("{key:016}").into_bytes()).collect();
    // xorshift64: any spread over the keys does.
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        usize::try_from(seed % keys as u64).unwrap_or_default()
    };
    let wanted: Vec<&[u8]> = (0..gets).map(|_| pairs[draw()].as_slice()).collect();
    let db = Farleaf::builder().pool_bytes(1 << 30).open("mem:")?;
    let mut figures = Vec::new();
    for name in ["btree", "dex", "dart", "smart"] {
        let engine: Engine = name.parse()?;
        let table = db.create_table(name, TableOptions::default().engine(engine))?;
        table.insert_many(pairs.iter().map(|key| (key, key)))?;
        let mut rounds_ns: Vec<f64> = Vec::new();
        for _ in 0..=rounds {
            let start = Instant::now();
            for keys in wanted.chunks(1000) {
                assert!(table.get_many(keys)?.iter().all(Option::is_some));
            }
            rounds_ns.push(start.elapsed().as_nanos() as f64 / gets as f64);
        }
        // The first one warms caches.
        rounds_ns.remove(0);
        rounds_ns.sort_by(f64::total_cmp);
        figures.push(format!("\"{name}\": {:.1}", rounds_ns[rounds_ns.len() / 2]));
    }
    println!("{{{}}}", figures.join(", "));
    Ok(())
}
