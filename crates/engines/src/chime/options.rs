//! Options: the shape of a table of this engine, and the settings by which one compute server opens it.

use farleaf_index::blink::{
    BlinkOptions, GuardedShape, HopscotchOptions, PointRead, RememberOptions, TreeLayouts,
    lock_words,
};
use farleaf_index::{
    IndexError, KeyFormat, KnobKind, Shape, Spec, TableSpec, ValueFormat, knobs, shape, words,
};

/// Slots of a neighbourhood unless the table says otherwise.
const NEIGHBOURHOOD: u16 = 8;
/// Slots of a leaf unless the table says otherwise, and the most bytes that they take: records of two leaves and an inner
/// node fit in the redo areas of a pool.
const USUAL_SLOTS: usize = 72;
const USUAL_LEAF_BYTES_MAX: usize = 7 << 10;

/// One word of a few.
const fn word_of(words: &'static [&'static str]) -> KnobKind {
    KnobKind::Words { words, also: None }
}

shape! {
    /// The geometry of a table's nodes and of its lock tables.
    pub struct ChimeShape {
        /// Bytes of an inner node, a power of two; of a leaf as well if keys or values have no fixed length in whole
        /// words. The engine takes 1024 for short keys and values of fixed length, else 4096.
        "node_bytes" => node_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "1 KB";
        /// Bytes of a leaf, a multiple of 64. The engine takes what 72 slots need, up to 7 KiB: 1792 for keys and values of
        /// 8 bytes.
        "leaf_bytes" => leaf_bytes: Option<u32> = None, KnobKind::Bytes { min: 256, max: 64 << 10 }, paper "64 slots";
        /// Slots in which a key may lie: what a get reads of a leaf.
        "neighbourhood" => neighbourhood: Option<u16> = None, KnobKind::Count { min: 2, max: 16, unit: "slots" },
            paper "8";
        /// Most entries of a leaf, if fewer than fit.
        "cap_leaf" => cap_leaf: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "entries" };
        /// Most separators of an inner node, if fewer than fit.
        "cap_inner" => cap_inner: Option<u16> = None, KnobKind::Count { min: 2, max: 65_535, unit: "separators" };
        /// Lock words of each memory server, a power of two. Nodes share them. A server with little memory has fewer: they
        /// take a 256th of it at most.
        "lock_words" => lock_words: Option<u32> = None, KnobKind::Count { min: 1, max: 1 << 24, unit: "words" },
            paper "in the leaf";
    }
}

/// Bytes of a guarded leaf with the usual number of slots.
fn usual_leaf_bytes(spec: &Spec) -> usize {
    let (KeyFormat::Fixed(key), ValueFormat::Fixed(value)) = (spec.key, spec.value) else {
        return USUAL_LEAF_BYTES_MAX;
    };
    let fences = if key > 8 { 2 * key } else { 0 };
    let bytes = 64 + fences + USUAL_SLOTS * (key + value + 8);
    bytes.next_multiple_of(256).min(USUAL_LEAF_BYTES_MAX)
}

impl ChimeShape {
    fn tree(&self, spec: &Spec) -> GuardedShape {
        let ChimeShape { node_bytes, leaf_bytes, cap_leaf, cap_inner, .. } = *self;
        let neighbourhood = usize::from(self.neighbourhood.unwrap_or(NEIGHBOURHOOD));
        let usual_leaf_bytes = usual_leaf_bytes(spec);
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
    pub(super) fn layouts_of(table: &TableSpec<ChimeShape>) -> Result<TreeLayouts, IndexError> {
        table.shape.tree(&table.spec).layouts(&table.spec, table.number)
    }
}

impl Shape for ChimeShape {
    /// Chooses the sizes of nodes, leaves and neighbourhoods, and the count of lock words.
    ///
    /// # Errors
    /// `Invalid` if there are no such nodes, a leaf has fewer slots than a neighbourhood, or the lock words are no power of
    /// two.
    fn complete(self, spec: &Spec) -> Result<Self, IndexError> {
        let words = lock_words(self.lock_words)?;
        let TreeLayouts { nodes, leaves } = self.tree(spec).layouts(spec, 0)?;
        let node_bytes = nodes.node_bytes() as u32;
        let leaf_bytes = leaves.map_or(node_bytes, |leaf| leaf.leaf_bytes() as u32);
        Ok(ChimeShape {
            node_bytes: Some(node_bytes),
            leaf_bytes: Some(leaf_bytes),
            neighbourhood: Some(self.neighbourhood.unwrap_or(NEIGHBOURHOOD)),
            lock_words: Some(words),
            ..self
        })
    }

    fn node_bytes(&self, spec: &Spec) -> usize {
        self.tree(spec).node_bytes(spec)
    }

    fn redo_bytes(&self, spec: &Spec) -> usize {
        self.tree(spec).redo_bytes(spec)
    }
}

words! {
    /// The part of a leaf that a change reads under its lock.
    #[derive(Default)]
    ChangeRead {
        /// The leaf.
        Leaf = "leaf",
        /// The neighbourhood of the key; the leaf if that has no room.
        #[default]
        Neighbourhood = "neighbourhood",
    }
}

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ChimeOptions {
        /// Bytes of copies of inner nodes and of hints for each table. 0 keeps none: then each operation reads every node on
        /// its way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "100 MB";
        /// A get or an update of a hot key reads the slot that had the key last.
        "speculate" => speculate: bool = true, KnobKind::Flag, paper "true";
        /// Share of the cache that hints to slots of hot keys may take, 16 bytes each.
        "hot" => hot: f64 = 0.3, KnobKind::Share, paper "0.3";
        /// The part of a leaf that a get reads: the leaf, its header and a neighbourhood, or a neighbourhood alone.
        "point_read" => point_read: PointRead = PointRead::Neighbourhood, word_of(PointRead::WORDS),
            paper "neighbourhood";
        /// The part of a leaf that a change reads under its lock.
        "insert_read" => insert_read: ChangeRead = ChangeRead::Neighbourhood, word_of(ChangeRead::WORDS),
            paper "by a vacancy bitmap";
        /// Gets of one key share a READ that began after all of them, and changes of one that is there a lock and a WRITE.
        "delegate" => delegate: bool = true, KnobKind::Flag, paper "true";
        /// Most operations that share a READ or a WRITE; 0 sets no limit.
        "batch_limit" => batch_limit: usize = 8, KnobKind::count(0, "operations"), paper "0";
        /// Times in a row that a lock goes from one task of this compute server to the next; 0 releases it each time.
        "hand_over" => hand_over: u32 = 8, KnobKind::count(0, "passes"), paper "0";
        /// A change locks and reads in one chain. Else it waits for the lock first.
        "combine_lock" => combine_lock: bool = true, KnobKind::Flag, paper "true";
        /// Share of a node that a bulk load fills; 0.7 leaves room as random inserts do.
        "bulk_fill" => bulk_fill: f64 = 0.7, KnobKind::Share;
        /// A node that is filled below this share is merged with a neighbour, if the sum is at most `merge_sum`.
        "merge_low" => merge_low: f64 = 0.25, KnobKind::Share, paper "0";
        /// Share of a node that two nodes may fill together to be merged.
        "merge_sum" => merge_sum: f64 = 0.6, KnobKind::Share;
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 8, KnobKind::Count { min: 1, max: 256, unit: "leaves" }, paper "all";
    }
}

impl ChimeOptions {
    /// The settings of the tree.
    pub(super) fn blink(&self) -> BlinkOptions {
        let ChimeOptions { bulk_fill, merge_low, merge_sum, scan_batch, .. } = *self;
        BlinkOptions { bulk_fill, merge_low, merge_sum, scan_batch }
    }

    /// Bytes of hints.
    fn hint_bytes(&self) -> u64 {
        if self.speculate { (self.cache_bytes as f64 * self.hot) as u64 } else { 0 }
    }

    /// The settings of what the compute server remembers of inner nodes, and of its locks.
    pub(super) fn remember(&self) -> RememberOptions {
        let ChimeOptions { hand_over, combine_lock, .. } = *self;
        let cache_bytes = self.cache_bytes - self.hint_bytes();
        let (write_entries, read_locks, hand_image) = (true, false, true);
        RememberOptions {
            cache_bytes,
            hand_over,
            hand_image,
            combine_lock,
            write_entries,
            read_locks,
        }
    }

    /// The settings of leaves with neighbourhoods.
    pub(super) fn hopscotch(&self) -> HopscotchOptions {
        HopscotchOptions {
            hint_bytes: self.hint_bytes(),
            point_read: self.point_read,
            change_near: self.insert_read == ChangeRead::Neighbourhood,
        }
    }
}
