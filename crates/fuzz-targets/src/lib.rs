//! Fuzz targets: one function per kind of input that comes from outside.
//!
//! Each takes any bytes and returns. A panic, an endless loop or memory out of proportion is a finding.
//! libFuzzer (`fuzz/`, `make fuzz`) calls these functions, and so does an ordinary test with a corpus
//! and a fixed number of seeded mutations (`tests/fuzz/fuzz_smoke.rs`). The input of each mended
//! finding stays as a test in `tests/fuzz/findings.rs`.
//!
//! Beyond its own few bytes, a target reads real formats: a region's words, a node's image, a file.
//! Checksums would stop most mutations early. So an input can tell a target of remote memory to correct
//! the checksums.

#![forbid(unsafe_code)]

mod bytes;
mod fabric;
mod history;
mod image;
mod keys;
mod messages;
mod node;
mod offload;
mod records;
mod region;
mod resp;
mod superblock;
mod text;
mod values;
mod wire;
mod ycsb;

pub use region::image_bytes;

/// One kind of input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of its corpus, of its libFuzzer wrapper.
    pub name: &'static str,
    /// Gives it any bytes.
    pub run: fn(&[u8]),
    /// Bytes beyond which an input tells nothing new.
    pub input_bytes_max: usize,
    /// Most memory that one call may hold at a time, beside 64 times the input.
    pub memory_bytes_max: u64,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "node", run: node::run, input_bytes_max: 4096, memory_bytes_max: 1 << 20 },
    Target {
        name: "superblock",
        run: superblock::run,
        input_bytes_max: 512,
        memory_bytes_max: 96 << 20,
    },
    Target {
        name: "pool",
        run: region::run_pool,
        input_bytes_max: 1024,
        memory_bytes_max: 32 << 20,
    },
    Target {
        name: "table",
        run: region::run_table,
        input_bytes_max: 1024,
        memory_bytes_max: 32 << 20,
    },
    Target {
        name: "leaves",
        run: region::run_leaves,
        input_bytes_max: 1024,
        memory_bytes_max: 32 << 20,
    },
    Target { name: "fabric", run: fabric::run, input_bytes_max: 1024, memory_bytes_max: 32 << 20 },
    Target { name: "records", run: records::run, input_bytes_max: 4096, memory_bytes_max: 4 << 20 },
    Target { name: "values", run: values::run, input_bytes_max: 4096, memory_bytes_max: 1 << 20 },
    Target { name: "keys", run: keys::run, input_bytes_max: 4096, memory_bytes_max: 4 << 20 },
    Target { name: "ycsb", run: ycsb::run, input_bytes_max: 2048, memory_bytes_max: 4 << 20 },
    Target { name: "text", run: text::run, input_bytes_max: 256, memory_bytes_max: 4 << 20 },
    Target { name: "offload", run: offload::run, input_bytes_max: 1024, memory_bytes_max: 2 << 20 },
    Target {
        name: "messages",
        run: messages::run,
        input_bytes_max: 4096,
        memory_bytes_max: 1 << 20,
    },
    Target { name: "wire", run: wire::run, input_bytes_max: 4096, memory_bytes_max: 16 << 20 },
    Target { name: "resp", run: resp::run, input_bytes_max: 4096, memory_bytes_max: 4 << 20 },
    Target { name: "history", run: history::run, input_bytes_max: 4096, memory_bytes_max: 8 << 20 },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
