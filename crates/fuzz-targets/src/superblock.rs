//! Superblock target: recognizes regions that may or may not be a pool, and formats them.
//!
//! Input: mode, length of the region, then the superblock as it is, changes of a right one, or
//! options to format with.

use farleaf_engines::recover;
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Client, ServerId, ToAny};
use farleaf_pool::{Audit, Pool, PoolError, PoolOptions, format};

use crate::bytes::Bytes;
use crate::image::seal_superblock;

/// Events after which a run counts as endless.
const EVENTS_MAX: u64 = 3_000_000;

pub(crate) fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mode = bytes.u8();
    // 64 KiB to 32 MiB, page by page.
    let region_bytes = (65536_u64 << (bytes.u8() % 10)) + u64::from(bytes.u8()) * 4096;
    let config = SimConfig { region_bytes, events_max: EVENTS_MAX, ..SimConfig::seeded(1) };
    let Ok(sim) = Sim::new(config) else { return };
    let endpoint = sim.fabric(0).any_endpoint().expect("an endpoint");
    let memory = sim.memory(ServerId(0)).expect("server 0");
    let client = Client::new(endpoint.clone());
    if mode & 1 == 0 {
        let mut words = vec![0; 512];
        for (word, chunk) in words.iter_mut().zip(bytes.rest().chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        if mode & 2 != 0 {
            seal_superblock(&mut words);
        }
        memory.store(0, &words);
    } else {
        let options = PoolOptions {
            block_bytes: if mode & 8 != 0 { bytes.u64() } else { 1 << (bytes.u8() % 40) },
            clients_max: bytes.u16().into(),
            members_max: u32::from(bytes.u16()) + u32::from(mode >> 7),
            tables_max: u32::from(bytes.u16()) + u32::from(mode >> 7),
            redo_bytes: u32::from(bytes.u16()) * 64,
        };
        // The memory before may be zero or not.
        memory.store(0, &[u64::from(mode & 16); 8]);
        let formatted = sim.block_on(format(&client, &options)).expect("formatting ends");
        match formatted {
            Ok(_) => {}
            Err(PoolError::Invalid(_)) => return,
            Err(error) => panic!("formatting with {options:?} gives {error:?}"),
        }
        let mut words = vec![0; 512];
        memory.load(0, &mut words);
        for _ in 0..mode >> 5 & 3 {
            let at = usize::from(bytes.u8() % 20);
            words[at] = bytes.change(words[at]);
        }
        if mode & 2 != 0 {
            seal_superblock(&mut words);
        }
        memory.store(0, &words);
    }
    let opened = sim.block_on(async {
        let pool = Pool::join(&client).await?;
        let session = pool.session(endpoint.clone()).await?;
        let roots = session.list_roots().await?;
        assert!(roots.is_empty(), "nobody has made a table");
        session.create_root("t", "e", &[0; 64], farleaf_fabric::GlobalAddr::NULL).await?;
        assert_eq!(session.list_roots().await?.len(), 1);
        let addr = session.alloc(ServerId(0), 64).await?;
        session.free_unpublished(addr, 64);
        let audit = Audit::new(&session).await?;
        let _ = audit.report(&session).await?;
        let _ = recover(&session).await;
        session.tick().await?;
        drop(session.drop_root("t").await?);
        session.leave().await
    });
    match opened.expect("opening ends") {
        Ok(()) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
