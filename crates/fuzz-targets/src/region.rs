//! Region target: opens, walks, changes, recovers and verifies damaged regions.
//!
//! Input: what is sealed again and who is dead, changes of words, operations. Every operation ends
//! with a result or a typed error, in bounded virtual time.

use farleaf_engines::{AnyIndex, StoredTable, TableFormat, recover};
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{Endpoint, ServerId, ToAny};
use farleaf_harness::join;
use farleaf_index::{Entries, Index, IndexError, OpenOptions, ScanRange};
use farleaf_pool::{Audit, PoolError, Session};

use crate::bytes::Bytes;
use crate::image::{
    Image, MAKER, TABLES, config, image, key, leaves_image, seal_block, seal_node, seal_root,
    seal_superblock,
};

const CHANGES_MAX: usize = 12;
const OPS_MAX: usize = 12;
/// Virtual time after which no further operation begins.
const LATE_NS: u64 = 1_000_000_000;

/// Damages what the pool itself has: tables of members, clients and blocks, retire pages, roots.
pub(crate) fn run_pool(input: &[u8]) {
    let image = image();
    let areas = image.areas;
    let carved = image.carved();
    run(input, &image, |selector, offset| {
        let within = |from: usize, to: usize| from + offset % (to - from);
        match selector % 8 {
            0 => within(0, 20),
            1 => within(512, 521),
            2 => within(1024, areas.clients),
            3 => within(areas.clients, areas.roots),
            4 => within(areas.roots, areas.client_areas),
            5 => within(areas.client_areas, areas.block_table),
            6 => areas.block_table + offset % areas.block_count,
            _ => carved[offset % carved.len()] + offset / 8 % 64,
        }
    });
}

/// Damages what tables consist of: nodes, records, meta objects, redo records.
pub(crate) fn run_table(input: &[u8]) {
    let image = image();
    let areas = image.areas;
    run(input, &image, |selector, offset| {
        let table = &image.tables[usize::from(selector) % image.tables.len()];
        let node = table.nodes[offset % table.nodes.len()];
        let inside = offset / table.nodes.len();
        match selector / 4 % 5 {
            0 | 1 => node + inside % table.layout.node_words(),
            // The header and what comes right behind it, where damage is worst.
            2 => node + inside % 12,
            3 => table.meta + offset % 32,
            _ => areas.client_areas + offset % (areas.block_table - areas.client_areas),
        }
    });
}

/// Damages what tables of leaves with lines consist of: leaves, lines, directories, records, meta objects, redo records.
pub(crate) fn run_leaves(input: &[u8]) {
    let image = leaves_image();
    let (areas, filled) = (image.areas, image.filled());
    run(input, &image, |selector, offset| match selector % 4 {
        0 => image.tables[offset % image.tables.len()].meta + offset / 4 % 32,
        1 => areas.client_areas + offset % (areas.block_table - areas.client_areas),
        // More words than an offset tells apart.
        part => filled[(offset * 2 + usize::from(part)) % filled.len()],
    });
}

/// The words of the pool that is damaged, for who wants to look at it.
pub fn image_bytes() -> Vec<u8> {
    image().words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn run(input: &[u8], image: &Image, place: impl Fn(u8, usize) -> usize) {
    let mut bytes = Bytes::new(input);
    let mode = bytes.u8();
    let mut words = image.words.clone();
    let mut changed = Vec::new();
    for _ in 0..usize::from(bytes.u8()) % (CHANGES_MAX + 1) {
        let (selector, offset) = (bytes.u8(), usize::from(bytes.u16()));
        let at = place(selector, offset);
        words[at] = bytes.change(words[at]);
        changed.push(at);
    }
    seal(&mut words, image, &changed, mode);
    let sim = Sim::new(config()).expect("a simulator");
    sim.memory(ServerId(0)).expect("server 0").store(0, &words);
    if mode & 1 != 0 {
        sim.fabric(MAKER).kill();
    }
    let endpoint = sim.fabric(0).any_endpoint().expect("an endpoint");
    let opened = sim.block_on(async {
        let session = join(endpoint).await?;
        for count in 0..OPS_MAX {
            // Some wait for a lock for up to 10 s; once is enough.
            let is_late = session.endpoint().now_ns() > LATE_NS;
            if count > 0 && (bytes.is_empty() || is_late) {
                break;
            }
            operate(&session, &mut bytes).await;
        }
        Ok::<_, PoolError>(())
    });
    match opened.expect("it ends") {
        Ok(()) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Makes checksums right again, so that more is behind them than a refusal.
fn seal(words: &mut [u64], image: &Image, changed: &[usize], mode: u8) {
    let areas = image.areas;
    for at in changed {
        if *at < 18 && mode & 2 != 0 {
            seal_superblock(words);
        }
        if (areas.roots..areas.client_areas).contains(at) && mode & 4 != 0 {
            let root = areas.roots + (at - areas.roots) / 32 * 32;
            if root + 32 <= areas.client_areas {
                seal_root(words, root);
            }
        }
        if *at >= areas.blocks && mode & 8 != 0 {
            let inside = (at - areas.blocks) % areas.block_words;
            if inside < 5 {
                seal_block(words, at - inside);
            }
        }
        for table in &image.tables {
            let node_words = table.layout.node_words();
            let hit = table.nodes.iter().find(|node| (**node..**node + node_words).contains(at));
            if let Some(node) = hit
                && mode & 16 != 0
            {
                seal_node(words, *node, &table.layout);
            }
        }
    }
}

async fn operate(session: &Session, bytes: &mut Bytes<'_>) {
    let (what, number) = (bytes.u8(), bytes.u8());
    let name = TABLES[usize::from(what / 16) % TABLES.len()];
    let result: Result<(), IndexError> = match what % 16 {
        0 => verify(session).await,
        1 => recover(session).await.map(drop),
        2 => sweep(session).await,
        3 => session.tick().await.map_err(IndexError::from),
        4 => session.list_roots().await.map(drop).map_err(IndexError::from),
        5 => AnyIndex::drop_table(session, name).await,
        6 => {
            let format = TableFormat::default();
            match AnyIndex::create(session, "new", &format).await {
                Ok(root) => match AnyIndex::open(session, &root, &OpenOptions::default()).await {
                    Ok(table) => table.upsert(session, b"k", b"v").await.map(drop),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            }
        }
        7 => session.leave().await.map_err(IndexError::from),
        what => match session.open_root(name).await.map_err(IndexError::from) {
            Ok(root) => match AnyIndex::open(session, &root, &OpenOptions::default()).await {
                Ok(table) => on_table(session, &table, what, u64::from(number)).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        },
    };
    if let Err(error) = result {
        assert!(!error.to_string().is_empty());
    }
}

async fn on_table(
    session: &Session,
    table: &AnyIndex,
    what: u8,
    number: u64,
) -> Result<(), IndexError> {
    let key = key(number * 2);
    match what {
        8 | 9 => table.get(session, &key, &mut Vec::new()).await.map(drop),
        10 => {
            let mut out = Entries::new();
            let range = ScanRange { reverse: number % 2 == 1, ..ScanRange::ALL };
            table.scan(session, range, 1000, &mut out).await
        }
        11 => {
            let mut out = Entries::new();
            let from = std::ops::Bound::Included(&key[..]);
            let range = ScanRange { from, reverse: number % 2 == 1, ..ScanRange::ALL };
            table.scan(session, range, 5, &mut out).await
        }
        12 | 13 => table.upsert(session, &key, &number.to_le_bytes()).await.map(drop),
        14 => table.upsert(session, &key, &[9; 2000]).await.map(drop),
        _ => table.remove(session, &key).await.map(drop),
    }
}

async fn verify(session: &Session) -> Result<(), IndexError> {
    let mut audit = Audit::new(session).await?;
    for root in session.list_roots().await? {
        StoredTable::of(&root)?.verify(session, &mut audit).await?;
    }
    audit.report(session).await?;
    Ok(())
}

async fn sweep(session: &Session) -> Result<(), IndexError> {
    let Some(recovery) = session.sweep_begin().await? else { return Ok(()) };
    let mut audit = recovery.audit();
    for root in session.list_roots().await? {
        StoredTable::of(&root)?.verify(session, &mut audit).await?;
    }
    session.recover_finish(recovery, &audit).await?;
    Ok(())
}
