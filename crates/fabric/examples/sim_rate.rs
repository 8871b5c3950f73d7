//! Simulator speed: counts remote operations per second of real time.
//!
//! Clients chase pointers: each READ's address depends on the words of the READ before it. Run it with
//! `cargo run --profile bench -p farleaf-fabric --example sim_rate [operations]`.
#![allow(clippy::disallowed_methods, reason = "real time is what it measures")]

use std::time::Instant;

use farleaf_fabric::sim::{AdversaryConfig, Sim, SimConfig};
use farleaf_fabric::{Endpoint, Fabric, GlobalAddr, ServerId};

const REGION_BYTES: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ops = std::env::args().nth(1).map_or(Ok(4_000_000), |ops| ops.parse())?;
    println!("clients  bytes  adversary   M ops/s real   events/op   M ops/s virtual");
    for clients in [144, 1_000] {
        for bytes in [64, 1024] {
            for torn in [0.0, 1.0] {
                run(ops, clients, bytes, torn)?;
            }
        }
    }
    Ok(())
}

fn run(ops: u64, clients: u64, bytes: usize, torn: f64) -> Result<(), Box<dyn std::error::Error>> {
    let adversary = AdversaryConfig { torn, ..Default::default() };
    let config = SimConfig { region_bytes: REGION_BYTES, adversary, ..SimConfig::seeded(1) };
    let sim = Sim::new(config)?;
    fill(&sim);
    let fabric = sim.fabric(0);
    let threads: Vec<_> = (0..4).map(|_| fabric.endpoint()).collect::<Result<_, _>>()?;
    for client in 0..clients {
        let endpoint = threads[client as usize % 4].clone();
        let first = client * 7_919 * 1024 % REGION_BYTES;
        endpoint.clone().spawn(async move {
            let mut buf = endpoint.buf(bytes);
            let mut at = first;
            for _ in 0..ops / clients {
                match endpoint.read(GlobalAddr::new(ServerId(0), at), buf).await {
                    Ok(read) => buf = read,
                    Err(error) => return eprintln!("{error}"),
                }
                let words = buf.words();
                at = (words[0] ^ words[words.len() - 1]) * 1024 % REGION_BYTES;
            }
        });
    }
    let start = Instant::now();
    sim.run()?;
    let (real, ops) = (start.elapsed().as_secs_f64(), sim.ops() as f64);
    println!(
        "{clients:7}  {bytes:5}  {:9}  {:13.2}  {:10.2}  {:16.1}",
        if torn > 0.0 { "torn" } else { "none" },
        ops / real / 1e6,
        sim.events() as f64 / ops,
        ops / sim.now_ns() as f64 * 1e3,
    );
    Ok(())
}

/// Random words everywhere, so that pages are committed and pointers lead anywhere.
fn fill(sim: &Sim) {
    let Some(memory) = sim.memory(ServerId(0)) else { return };
    let mut rng = fastrand::Rng::with_seed(5);
    let mut page = vec![0; 512];
    for first in (0..REGION_BYTES as usize / 8).step_by(page.len()) {
        page.iter_mut().for_each(|word| *word = rng.u64(..) >> 20);
        memory.store(first, &page);
    }
}
