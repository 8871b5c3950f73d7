//! Options: the shape of a table of this engine, and the settings by which one compute server opens it.

use farleaf_index::blink::{BlinkOptions, GuardedShape, RememberOptions, TreeLayouts, lock_words};
use farleaf_index::{IndexError, KnobKind, Shape, Spec, TableSpec, knobs, shape, words};

/// One word of a few.
const fn word_of(words: &'static [&'static str]) -> KnobKind {
    KnobKind::Words { words, also: None }
}

shape! {
    /// The geometry of a table's nodes and of its lock tables.
    pub struct ShermanShape {
        /// Bytes of an inner node, a power of two; of a leaf as well if keys or values have no fixed length in whole
        /// words. The engine takes 1024 for short keys and values of fixed length, else 4096.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "1 KB";
        /// Bytes of a leaf whose slots are written one by one, a multiple of 64. The engine takes as many as for an inner
        /// node, or the least that holds the pairs.
        "leaf_bytes" => leaf_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "1 KB";
        /// Most entries of a leaf, if fewer than fit.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "entries" };
        /// Most separators of an inner node, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
        /// Lock words of each memory server, a power of two. Nodes share them. A server with little memory has fewer: they
        /// take a 256th of it at most.
        "lock_words" => lock_words: Option<u32> = None, KnobKind::Count { min: 1, max: 1 << 24, unit: "words" },
            paper "32768 in the memory of the network card";
    }
}

impl ShermanShape {
    fn tree(&self) -> GuardedShape {
        let ShermanShape { node_bytes, leaf_bytes, cap_leaf, cap_inner, .. } = *self;
        let usual_leaf_bytes = node_bytes.map_or(1024, |bytes| bytes as usize);
        let neighbourhood = 0;
        GuardedShape {
            node_bytes,
            leaf_bytes,
            usual_leaf_bytes,
            cap_leaf,
            cap_inner,
            neighbourhood,
        }
    }

    /// The layouts of a table.
    pub(super) fn layouts_of(table: &TableSpec<ShermanShape>) -> Result<TreeLayouts, IndexError> {
        table.shape.tree().layouts(&table.spec, table.number)
    }
}

impl Shape for ShermanShape {
    /// Chooses the sizes of nodes and leaves, and the count of lock words.
    ///
    /// # Errors
    /// `Invalid` if there are no such nodes, or the lock words are no power of two.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        let words = lock_words(self.lock_words)?;
        let TreeLayouts { nodes, leaves } = self.tree().layouts(spec, 0)?;
        let node_bytes = nodes.node_bytes() as u32;
        let leaf_bytes = leaves.map_or(node_bytes, |leaf| leaf.leaf_bytes() as u32);
        Ok(ShermanShape {
            node_bytes: Some(node_bytes),
            leaf_bytes: Some(leaf_bytes),
            lock_words: Some(words),
            ..self
        })
    }

    fn node_bytes(&self, spec: &Spec) -> usize {
        self.tree().node_bytes(spec)
    }

    fn redo_bytes(&self, spec: &Spec) -> usize {
        self.tree().redo_bytes(spec)
    }
}

words! {
    /// The part of a leaf that a change writes back.
    #[derive(Default)]
    WriteBack {
        /// The slot of the pair.
        #[default]
        Entry = "entry",
        /// The leaf.
        Node = "node",
    }
}

words! {
    /// The way in which a get makes sure that a leaf is whole.
    #[derive(Default)]
    LeafRead {
        /// By the checks of header and slots: 1 READ.
        #[default]
        Guard = "guard",
        /// By READs of the lock word before and after the leaf as well: 3 READs.
        Locked3 = "locked3",
    }
}

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ShermanOptions {
        /// Bytes of copies of inner nodes for each table. 0 keeps none: then each operation reads every node on its way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "1000 MB";
        /// Times in a row that a lock goes from one task of this compute server to the next; 0 releases it each time.
        "hand_over" => hand_over: u32 = 8, KnobKind::count(0, "passes"), paper "8";
        /// A lock that is passed on takes the node's content along, which saves a READ.
        "hand_image" => hand_image: bool = true, KnobKind::Flag, paper "false";
        /// A change locks and reads its leaf in one chain. Else it waits for the lock first.
        "combine_lock" => combine_lock: bool = true, KnobKind::Flag, paper "false";
        /// The part of a leaf that a change writes back: its entry or the node.
        "write_back" => write_back: WriteBack = WriteBack::Entry, word_of(WriteBack::WORDS), paper "entry";
        /// The way in which a get reads a leaf. guard: one READ, which proves itself. locked3: the lock word, the leaf, the
        /// lock word, as the authors of DEX measured Sherman; a change reads a word more as well.
        "read" => read: LeafRead = LeafRead::Guard, word_of(LeafRead::WORDS), paper "versions (Sherman), locked3 (DEX)";
        /// Share of a node that a bulk load fills; 0.7 leaves room as random inserts do.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// A node that is filled below this share is merged with a neighbour, if the sum is at most `merge_sum`.
        "merge_low" => merge_low: f64 = 0.25, KnobKind::Share, paper "0";
        /// Share of a node that two nodes may fill together to be merged.
        "merge_sum" => merge_sum: f64 = 0.75, KnobKind::Share;
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 16, KnobKind::Count { min: 1, max: 256, unit: "leaves" }, paper "32";
    }
}

impl ShermanOptions {
    /// The settings of the tree.
    pub(super) fn blink(&self) -> BlinkOptions {
        let ShermanOptions { bulk_fill, merge_low, merge_sum, scan_batch, .. } = *self;
        BlinkOptions { bulk_fill, merge_low, merge_sum, scan_batch }
    }

    /// The settings of what the compute server remembers of it.
    pub(super) fn remember(&self) -> RememberOptions {
        let ShermanOptions { cache_bytes, hand_over, hand_image, combine_lock, .. } = *self;
        RememberOptions {
            cache_bytes,
            hand_over,
            hand_image,
            combine_lock,
            write_entries: self.write_back == WriteBack::Entry,
            read_locks: self.read == LeafRead::Locked3,
        }
    }
}
