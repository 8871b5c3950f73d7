//! What it costs that a store's fabric is chosen when the program runs: lookups and updates on mapped
//! memory through `AnyEndpoint`, beside the same through `MappedEndpoint`.
//!
//! `cargo run --profile bench -p farleaf-bench --example any_rate`
//!
//! The two are measured in turn; the ratio is the median of all turns'. Bar: 1.1 for either.
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use std::time::Instant;

use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{AnyFabric, Client, Fabric, RealTime};
use farleaf_index::{AnyIndex, Engine, Index, OpenOptions, TableFormat};
use farleaf_pool::{Pool, PoolOptions, Session, format};

const KEYS: u64 = 100_000;
const OPS: u64 = 400_000;
const TURNS: usize = 21;
const BAR: f64 = 1.1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let region_bytes = 256 << 20;
    let bare = Bench::new(&Mapped::anonymous(1, region_bytes)?, region_bytes)?;
    let chosen = AnyFabric::Mapped(Mapped::anonymous(1, region_bytes)?);
    let chosen = Bench::new(&chosen, region_bytes)?;
    let mut met = true;
    for (name, update_every) in [("get", u64::MAX), ("half get, half update", 2)] {
        let mut turns = Vec::with_capacity(TURNS);
        for turn in 0..TURNS {
            // Who comes first has the warmer processor now and the colder one then.
            let pair = if turn % 2 == 0 {
                let first = bare.ns_per_op(update_every)?;
                (first, chosen.ns_per_op(update_every)?)
            } else {
                let first = chosen.ns_per_op(update_every)?;
                (bare.ns_per_op(update_every)?, first)
            };
            turns.push(pair);
        }
        turns.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let (bare, chosen) = turns[TURNS / 2];
        let ratio = chosen / bare;
        println!("{name}: {bare:.0} ns bare, {chosen:.0} ns chosen, {ratio:.3} times");
        met &= ratio <= BAR;
    }
    if met { Ok(()) } else { Err("a bar was missed".into()) }
}

struct Bench<E: RealTime> {
    endpoint: E,
    session: Session<E>,
    index: AnyIndex,
}

impl<E: RealTime> Bench<E> {
    fn new<F: Fabric<Endpoint = E>>(
        fabric: &F,
        region_bytes: u64,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let endpoint = fabric.endpoint()?;
        let made = endpoint.executor().block_on(async {
            let client = Client::new(endpoint.clone());
            format(&client, &PoolOptions::fitting(region_bytes)).await?;
            let pool = Pool::join(&client).await?;
            let session = pool.session(endpoint.clone()).await?;
            let table = TableFormat::fixed8(Engine::BTree);
            let root = AnyIndex::create(&session, "bench", &table).await?;
            let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await?;
            for number in 0..KEYS {
                let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                index.insert(&session, &key, &number.to_le_bytes()).await?;
            }
            Ok::<_, Box<dyn std::error::Error>>((session, index))
        });
        let (session, index) = made?;
        Ok(Bench { endpoint, session, index })
    }

    /// One `block_on` per operation, as a store does it.
    fn ns_per_op(&self, update_every: u64) -> Result<f64, Box<dyn std::error::Error>> {
        let executor = self.endpoint.executor();
        let mut value = Vec::new();
        let start = Instant::now();
        for op in 0..OPS {
            let number = op.wrapping_mul(7_919) % KEYS;
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            let found = if op % update_every == 1 {
                let value = op.to_le_bytes();
                executor.block_on(self.index.update(&self.session, &key, &value))?
            } else {
                executor.block_on(self.index.get(&self.session, &key, &mut value))?
            };
            assert!(found, "a key that was loaded");
        }
        Ok(start.elapsed().as_nanos() as f64 / OPS as f64)
    }
}
