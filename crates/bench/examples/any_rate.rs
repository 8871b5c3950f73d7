//! Run-time fabric cost: compares READs and CASes through `AnyEndpoint` and `MappedEndpoint`.
//!
//! `cargo run --profile bench -p farleaf-bench --example any_rate`
//!
//! The two take turns; the ratio is the median of all turns. Bar: 1.2 for either: work of the index
//! comes on top. The last line gives the time of `btree`'s lookups and updates on mapped memory,
//! one `block_on` each, as a store does.
#![allow(clippy::disallowed_methods, reason = "real time is what is measured")]

use std::error::Error;
use std::time::Instant;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::mapped::Mapped;
use farleaf_fabric::{
    AnyEndpoint, AnyFabric, Client, Endpoint, Executor, Fabric, GlobalAddr, ServerId, ToAny,
};
use farleaf_index::{Index, OpenOptions};
use farleaf_pool::{Pool, PoolOptions, Session, format};

const REGION_BYTES: u64 = 256 << 20;
const NODE_BYTES: usize = 1024;
const KEYS: u64 = 100_000;
const OPS: u64 = 400_000;
const TURNS: usize = 21;
const BAR: f64 = 1.2;

fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = Mapped::anonymous(1, REGION_BYTES)?.endpoint()?;
    let bare = Raw::new(endpoint.clone(), endpoint.executor());
    let endpoint = AnyFabric::Mapped(Mapped::anonymous(1, REGION_BYTES)?).endpoint()?;
    let chosen = Raw::new(endpoint.clone(), endpoint.executor());
    let mut met = true;
    for (name, cas_every) in [("READ of 1 KiB", u64::MAX), ("half READ, half CAS", 2)] {
        let (bare, chosen) =
            median(|| Ok(bare.ns_per_op(cas_every)?), || Ok(chosen.ns_per_op(cas_every)?))?;
        let ratio = chosen / bare;
        println!("{name}: {bare:.1} ns bare, {chosen:.1} ns chosen, {ratio:.3} times");
        met &= ratio <= BAR;
    }
    let table = Table::new()?;
    let (get, update) = median(|| table.ns_per_op(u64::MAX), || table.ns_per_op(2))?;
    println!("btree: {get:.0} ns a get, {update:.0} ns when half are updates");
    if met { Ok(()) } else { Err("a bar was missed".into()) }
}

/// Times of the turn whose ratio is the median of all.
fn median(
    first: impl Fn() -> Result<f64, Box<dyn Error>>,
    second: impl Fn() -> Result<f64, Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut turns = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        // The first of a turn finds a warmer processor: take turns in that.
        turns.push(if turn % 2 == 0 {
            let first = first()?;
            (first, second()?)
        } else {
            let second = second()?;
            (first()?, second)
        });
    }
    turns.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    Ok(turns[TURNS / 2])
}

/// Operations of one client on nodes of a region, without an index.
struct Raw<E: Endpoint> {
    client: Client<E>,
    executor: Executor,
}

impl<E: Endpoint> Raw<E> {
    fn new(endpoint: E, executor: &Executor) -> Self {
        Raw { client: Client::new(endpoint), executor: executor.clone() }
    }

    fn ns_per_op(&self, cas_every: u64) -> Result<f64, farleaf_fabric::OpError> {
        let nodes = REGION_BYTES / 16 / NODE_BYTES as u64;
        let executor = &self.executor;
        let start = Instant::now();
        for op in 0..OPS {
            let offset = op.wrapping_mul(7_919) % nodes * NODE_BYTES as u64;
            let at = GlobalAddr::new(ServerId(0), offset);
            if op % cas_every == 1 {
                executor.block_on(self.client.cas(at, op, op + 1))?;
            } else {
                executor.block_on(self.client.read(at, self.client.buf(NODE_BYTES)))?;
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / OPS as f64)
    }
}

struct Table {
    endpoint: AnyEndpoint,
    session: Session,
    index: AnyIndex,
}

impl Table {
    fn new() -> Result<Self, Box<dyn Error>> {
        let endpoint = Mapped::anonymous(1, REGION_BYTES)?.any_endpoint()?;
        let made = endpoint.executor().block_on(async {
            let client = Client::new(endpoint.clone());
            format(&client, &PoolOptions::fitting(REGION_BYTES)).await?;
            let pool = Pool::join(&client).await?;
            let session = pool.session(endpoint.clone()).await?;
            let table = TableFormat::fixed8(Engine::BTree);
            let root = AnyIndex::create(&session, "bench", &table).await?;
            let index = AnyIndex::open(&session, &root, &OpenOptions::default()).await?;
            for number in 0..KEYS {
                let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
                index.insert(&session, &key, &number.to_le_bytes()).await?;
            }
            Ok::<_, Box<dyn Error>>((session, index))
        });
        let (session, index) = made?;
        Ok(Table { endpoint, session, index })
    }

    fn ns_per_op(&self, update_every: u64) -> Result<f64, Box<dyn Error>> {
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
