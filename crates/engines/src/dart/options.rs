//! Options: the shape of a table, and the settings by which one compute server opens it.

use farleaf_index::{IndexError, KnobKind, Shape, Spec, knob_words};

use super::skip_table::Prefixes;

knob_words!(Prefixes);

/// Bytes of a bucket unless the table's shape says otherwise.
const BUCKET_BYTES: u16 = 128;
/// Smallest and largest bucket in bytes.
const BUCKET_BYTES_MIN: u16 = 32;
const BUCKET_BYTES_MAX: u16 = 512;

farleaf_index::shape! {
    /// The sizes of a table's nodes.
    pub struct DartShape {
        /// Bytes of a bucket of an inner node, a power of two. The sizes of nodes follow it: the smallest is half a
        /// bucket, the largest has one slot for each byte. The engine takes 128.
        "bucket_bytes" => bucket_bytes: Option<u16> = None,
            KnobKind::Bytes { min: BUCKET_BYTES_MIN as u64, max: BUCKET_BYTES_MAX as u64 }, paper "128 (DART, Figure 9)";
    }
}

impl DartShape {
    /// Bytes of a bucket.
    pub(super) fn bucket_bytes(self) -> u16 {
        self.bucket_bytes.unwrap_or(BUCKET_BYTES)
    }
}

impl Shape for DartShape {
    /// Chooses the bucket.
    ///
    /// # Errors
    /// `Invalid` for a bucket of another size than a power of two.
    fn complete(self, _spec: &Spec) -> Result<Self, IndexError> {
        let bytes = self.bucket_bytes();
        if !bytes.is_power_of_two() || !(BUCKET_BYTES_MIN..=BUCKET_BYTES_MAX).contains(&bytes) {
            return Err(IndexError::Invalid(format!(
                "bucket size {bytes} is not a power of two from {BUCKET_BYTES_MIN} to {BUCKET_BYTES_MAX} bytes"
            )));
        }
        Ok(DartShape { bucket_bytes: Some(bytes) })
    }
}

farleaf_index::knobs! {
    /// Settings of an open table.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct DartOptions {
        /// Bytes of entries of the skip table that are remembered for each table, beside its directory. 0 remembers
        /// none: then each lookup probes the skip table.
        "cache" => cache_bytes: u64 = 1 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "1 MB, up to 400 MB";
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 64, KnobKind::Count { min: 1, max: 256, unit: "leaves" };
        /// Decides whether a reader reads the bucket that it needs, or the whole node: a switch of the ablation.
        "buckets" => buckets: bool = true, KnobKind::Flag, paper "on";
        /// Decides whether pointers say all that a reader needs of a node. If not, a reader of a bucket also reads the
        /// node's first 64 bytes, where a node with a header has it, in the same round trip: a switch of the ablation.
        "compound_pointers" => compound_pointers: bool = true, KnobKind::Flag, paper "on";
        /// Decides whether a blind change that lost to another blind change counts as done just before that one.
        "absorb" => absorb: bool = true, KnobKind::Flag;
        /// Decides whether lookups begin at entries of the skip table: a switch of the ablation.
        "est" => est: bool = true, KnobKind::Flag, paper "on";
        /// Decides whether this compute server adds and mends entries, and makes tables.
        "est_maintenance" => est_maintenance: bool = true, KnobKind::Flag, paper "on";
        /// Prefix lengths of the skip tables that this compute server makes, ascending. With `auto` a bulk load chooses
        /// them by its tree, and a table that fills by inserts begins with 1+2+4+8+16+32.
        "prefixes" => prefixes: Prefixes = Prefixes::default(), KnobKind::Words { words: &["auto"], also: Some("any ascending list of at most 16 lengths up to 1024, as 1+2+4+8+16+32") }, paper "powers of two";
        /// New nodes after which this compute server looks whether the skip table needs maintenance.
        "est_nodes" => est_nodes: u32 = 512, KnobKind::count(1, "nodes");
        /// Gets of which one counts its leaf, for the choice of prefix lengths; 0 counts none.
        "freq_sample" => freq_sample: u32 = 64, KnobKind::count(0, "gets"), paper "every R-th request";
        /// Least time between two choices of prefix lengths, which are made if lookups have become deeper or
        /// less deep; 0 keeps the list as it is.
        "adjust_s" => adjust_s: u32 = 60, KnobKind::count(0, "seconds");
        /// Answers after which the lengths are chosen anew, on average and whatever the time; 0 goes by `adjust_s`
        /// alone. Tests want it.
        "adjust_every" => adjust_every: u32 = 0, KnobKind::count(0, "answers");
        /// Bits of fingerprints in entries. Fewer make wrong starts likely, which tests want.
        "print_bits" => print_bits: u32 = 10, KnobKind::Count { min: 0, max: 10, unit: "bits" };
    }
}
