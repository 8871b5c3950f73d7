//! Options: settings by which one compute server opens a table.

use crate::KnobKind;

crate::knobs! {
    /// Settings of an open table.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct DartOptions {
        /// Most leaves that a scan reads at once.
        "scan_batch" => scan_batch: usize = 64, KnobKind::Count { min: 1, max: 256, unit: "leaves" };
        /// Whether a reader reads the bucket that it needs, or the whole node: a switch of the ablation.
        "buckets" => buckets: bool = true, KnobKind::Flag, paper "on (section 4.2)";
        /// Whether a blind change that lost to another blind change counts as done just before that one.
        "absorb" => absorb: bool = true, KnobKind::Flag;
    }
}
