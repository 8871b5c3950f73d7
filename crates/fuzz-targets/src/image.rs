//! Pool image: a small pool as its regions hold it, which the targets of remote memory damage.
//!
//! It has tables, retired objects of a client, and a member that has not left.

use std::cell::OnceCell;
use std::rc::Rc;

use farleaf_engines::{AnyIndex, Engine, TableFormat};
use farleaf_fabric::sim::{Sim, SimConfig};
use farleaf_fabric::{Endpoint, GlobalAddr, ServerId, ToAny};
use farleaf_harness::{bnode_layout, lab_table, make_pool, with_shape};
use farleaf_index::bnode::{Layout, NodeMut, verify_image};
use farleaf_index::{Index, OpenOptions};
use farleaf_pool::PoolOptions;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const REGION_BYTES: u64 = 2 << 20;
/// The compute server that made the pool; the other one meets the damage.
pub(crate) const MAKER: usize = 1;
/// Events after which a run counts as endless: a wait of 10 s for a lock takes a million.
const EVENTS_MAX: u64 = 4_000_000;
const SUPERBLOCK_WORDS: usize = 18;
const ROOT_WORDS: usize = 32;

pub(crate) const TABLES: [&str; 3] = ["fixed", "bytes", "long"];

/// The image of one engine's tables, and where its parts are, in words.
pub(crate) struct Image {
    pub(crate) words: Vec<u64>,
    pub(crate) areas: Areas,
    pub(crate) tables: Vec<TableImage>,
}

/// First words of areas and the end of the last; see `docs/design/pool.md`.
#[derive(Clone, Copy)]
pub(crate) struct Areas {
    pub(crate) clients: usize,
    pub(crate) roots: usize,
    pub(crate) client_areas: usize,
    pub(crate) block_table: usize,
    pub(crate) blocks: usize,
    pub(crate) block_words: usize,
    pub(crate) block_count: usize,
}

/// A table's nodes: first words.
pub(crate) struct TableImage {
    pub(crate) layout: Layout,
    pub(crate) nodes: Vec<usize>,
    /// First word of the meta object.
    pub(crate) meta: usize,
}

pub(crate) fn config() -> SimConfig {
    SimConfig {
        compute_servers: 2,
        region_bytes: REGION_BYTES,
        events_max: EVENTS_MAX,
        ..SimConfig::seeded(1)
    }
}

fn options() -> PoolOptions {
    PoolOptions {
        block_bytes: 64 << 10,
        clients_max: 4,
        members_max: 4,
        tables_max: 8,
        redo_bytes: 4096,
    }
}

/// The image of tables that consist of nodes alone, made once per thread: the same in every process.
pub(crate) fn image() -> Rc<Image> {
    thread_local! {
        static IMAGE: OnceCell<Rc<Image>> = const { OnceCell::new() };
    }
    IMAGE.with(|image| Rc::clone(image.get_or_init(|| Rc::new(make(Engine::BTree)))))
}

/// That of tables whose leaves have lines and hang below a tree of records.
pub(crate) fn leaves_image() -> Rc<Image> {
    thread_local! {
        static IMAGE: OnceCell<Rc<Image>> = const { OnceCell::new() };
    }
    IMAGE.with(|image| Rc::clone(image.get_or_init(|| Rc::new(make(Engine::FpTree)))))
}

fn make(engine: Engine) -> Image {
    let sim = Sim::new(config()).expect("a simulator");
    let endpoint = sim.fabric(MAKER).any_endpoint().expect("an endpoint");
    let layouts = sim
        .block_on(async move {
            let session = make_pool(endpoint.clone(), &options()).await.expect("a pool");
            let mut tables = Vec::new();
            for (name, format) in TABLES.into_iter().zip(formats(engine)) {
                let root = AnyIndex::create(&session, name, &format).await.expect("create");
                let options = OpenOptions::default();
                let table = AnyIndex::open(&session, &root, &options).await.expect("open");
                for number in 0..60_u64 {
                    let value = if name == "long" && number % 4 == 0 {
                        vec![number as u8; 3000]
                    } else {
                        number.to_le_bytes().to_vec()
                    };
                    table.upsert(&session, &key(number * 7), &value).await.expect("upsert");
                }
                // Some nodes merge and die, and stay retired.
                for number in 20..35_u64 {
                    table.remove(&session, &key(number * 7)).await.expect("remove");
                }
                let number = TableFormat::number_of(&root);
                tables.push((bnode_layout(&format).for_tree(number), root.addr));
            }
            // Tasks that splits and merges spawned come to their end.
            endpoint.sleep(1_000_000).await;
            // A session that is dropped does nothing remote: the member stays as if it had died.
            tables
        })
        .expect("the pool is made");
    let memory = sim.memory(ServerId(0)).expect("server 0");
    let mut words = vec![0; REGION_BYTES as usize / 8];
    memory.load(0, &mut words);
    let areas = Areas::of(&words);
    let tables = layouts.into_iter().map(|(layout, meta)| {
        let bytes = layout.node_bytes() / 8;
        let nodes = (areas.blocks..words.len() - bytes).step_by(8).filter(|at| {
            let addr = GlobalAddr::new(ServerId(0), *at as u64 * 8).word();
            verify_image(&layout, &words[*at..at + bytes], addr).is_ok()
        });
        let nodes = nodes.collect();
        TableImage { layout, nodes, meta: meta.offset() as usize / 8 }
    });
    let tables = tables.collect();
    Image { words, areas, tables }
}

fn formats(engine: Engine) -> [TableFormat; 3] {
    let bytes = with_shape(lab_table(engine, "short-tiny"), &[("node_bytes", "512")]);
    let whole = with_shape(bytes, &[("cap_leaf", "auto"), ("cap_inner", "auto")]);
    [lab_table(engine, "u64-tiny"), whole, bytes]
}

pub(crate) fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

impl Areas {
    fn of(words: &[u64]) -> Areas {
        Areas {
            clients: words[12] as usize / 8,
            roots: words[13] as usize / 8,
            client_areas: words[14] as usize / 8,
            block_table: words[15] as usize / 8,
            blocks: words[16] as usize / 8,
            block_words: words[7] as usize / 8,
            block_count: words[17] as usize,
        }
    }
}

impl Image {
    /// Words that hold something: of all objects, and of the areas of clients.
    pub(crate) fn filled(&self) -> Vec<usize> {
        let holds = |at: &usize| self.words[*at] != 0;
        let of_clients = self.areas.client_areas..self.areas.block_table;
        of_clients.chain(self.areas.blocks..self.words.len()).filter(holds).collect()
    }

    /// First words of the blocks that are carved.
    pub(crate) fn carved(&self) -> Vec<usize> {
        let Areas { block_table, blocks, block_words, block_count, .. } = self.areas;
        (0..block_count)
            .filter(|block| self.words[block_table + block] & 15 != 0)
            .map(|block| blocks + block * block_words)
            .collect()
    }
}

/// Makes the superblock's checksum right.
pub(crate) fn seal_superblock(words: &mut [u64]) {
    words[SUPERBLOCK_WORDS] = xxh3_64(&bytes(&words[..SUPERBLOCK_WORDS]));
}

/// Makes a root entry's checksum right.
pub(crate) fn seal_root(words: &mut [u64], at: usize) {
    let entry = &mut words[at..at + ROOT_WORDS];
    entry[29] = xxh3_64(&bytes(&entry[1..28]));
}

/// Makes a block header's checksum right.
pub(crate) fn seal_block(words: &mut [u64], at: usize) {
    words[at + 5] = xxh3_64(&bytes(&words[at..at + 5]));
}

/// Makes a node's checksum right.
pub(crate) fn seal_node(words: &mut [u64], at: usize, layout: &Layout) {
    let image = &mut words[at..at + layout.node_words()];
    let version = image[7];
    NodeMut::new(layout, image).seal(version);
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
