//! Lab: the seeded bugs, crash cases and small tables of this engine, and the settings that the lab draws for it.

use farleaf_index::blink::canaries::{
    ABSENT_AT_ONCE, ANSWER_BEFORE_WRITE, FORGET_RETIRE, HOPS_IN_ONE_CHAIN, HOPS_UNRECORDED,
    LEARN_FOR_SIBLING, LOSE_LEAF_REDO, SCAN_BACK, SCAN_UNCOUNTED, SEPARATOR_UNCHECKED,
    SIBLING_TAKEN_ALONE, SPECULATE_BY_KEY, UNLOCK_BEFORE_WRITE, UNLOCK_RIGHT_EARLY,
};
use farleaf_index::blink::lab;
use farleaf_index::bnode::BnodeShape;
use farleaf_index::bnode::canaries::{
    BUILD_CLEARS_TORN, BUILD_KEEPS_TORN, CLEAR_BEFORE_COPY, DEAD_KEEPS_SLOTS, REWRITE_KEEPS_STAMP,
    UPDATE_ONE_OF_TWO,
};
use farleaf_index::lab::{
    CrashState, CrashStep, Hunt, Lab, LabSize, Order, Variant, changes, choose, grow, met,
    met_before,
};
use farleaf_index::{
    IndexError, KeyFormat, Settings, Spec, Stored, TableReport, TableSpec, ValueFormat,
};
use farleaf_pool::Session;
use fastrand::Rng;

use super::{Chime, ChimeShape, JOIN_OPEN_READ, open_tree, without_copies};

/// Operations on few keys by several clients of each compute server, which share READs and WRITEs.
const HOT: &[(&str, &str)] = &[
    ("workload", "hot"),
    ("set", "delegate=true,batch_limit=8"),
    ("compute-servers", "2"),
    ("clients", "8"),
];
/// Leaves in which pairs hop, and gets and changes READ neighbourhoods.
const HOPPING_LEAVES: &str = "leaf_bytes=256,neighbourhood=2,cache=256MiB,point_read=neighbourhood,\
                              insert_read=neighbourhood,speculate=false,delegate=false";
/// Hops beside READs of neighbourhoods and leaves, where a torn operation takes as long as several others.
const STRETCHED: &[(&str, &str)] = &[
    ("format", "u64-tiny"),
    ("workload", "mixed|churn"),
    ("set", HOPPING_LEAVES),
    ("memory-servers", "1"),
    ("compute-servers", "3"),
    ("clients", "18"),
    ("keys", "15|40"),
    ("ops", "60"),
    ("think-ns", "0"),
    ("event", "none"),
    ("faults", "torn=1,stretch=8000"),
];
/// Many hops, of which each takes as long as one operation, beside READs of their slots that take as long as several.
const HOPPING: &[(&str, &str)] = &[
    ("format", "u64-tiny"),
    ("workload", "mixed"),
    ("set", HOPPING_LEAVES),
    ("memory-servers", "1"),
    ("compute-servers", "3"),
    ("clients", "18"),
    ("keys", "40"),
    ("ops", "500"),
    ("think-ns", "0"),
    ("event", "none"),
    ("faults", "torn=0.6,stretch=10000"),
];

impl Lab for Chime {
    // A record may hold an inner node and two leaves.
    const REDO_BYTES: u32 = 4 << 10;

    fn hunts() -> Vec<Hunt> {
        let any = [
            &UNLOCK_BEFORE_WRITE,
            &ANSWER_BEFORE_WRITE,
            &SEPARATOR_UNCHECKED,
            &UNLOCK_RIGHT_EARLY,
            &FORGET_RETIRE,
            &SCAN_BACK,
            &CLEAR_BEFORE_COPY,
            &SIBLING_TAKEN_ALONE,
            &DEAD_KEEPS_SLOTS,
            &REWRITE_KEEPS_STAMP,
            &LEARN_FOR_SIBLING,
            &SPECULATE_BY_KEY,
        ];
        let mut hunts = any.map(Hunt::any).to_vec();
        hunts.extend([
            Hunt::at(&BUILD_CLEARS_TORN, "u64-tiny/update"),
            Hunt::at(&BUILD_KEEPS_TORN, "u64-tiny/insert"),
            // Values of several words stand in slots of leaves.
            Hunt::at(&LOSE_LEAF_REDO, "wide/update"),
            Hunt::with(&JOIN_OPEN_READ, HOT),
            Hunt::with(&ABSENT_AT_ONCE, HOPPING),
            Hunt::with(&SCAN_UNCOUNTED, STRETCHED),
            // Two hops of one insert, a lost chain that ended behind them, and a death in the next try.
            Hunt::at(&HOPS_IN_ONE_CHAIN, "hops/insert-hops-lost"),
            // A death between two WRITEs of a hop, then a remove, or a death in an update, of the pair that moved.
            Hunt::at(&UPDATE_ONE_OF_TWO, "hops/insert-over-two-copies"),
            // The same beside a client that remembers the stamps: each of two keeps a hint to another copy.
            Hunt::at(&HOPS_UNRECORDED, "hops/update-over-two-copies"),
        ]);
        hunts
    }

    /// Tiny leaves have 4 slots in neighbourhoods of 2, so that pairs hop.
    fn shape(size: LabSize, spec: &Spec) -> ChimeShape {
        let BnodeShape { node_bytes, cap_leaf, cap_inner } = lab::shape(size, spec);
        let slotted = ChimeShape { node_bytes, cap_leaf, cap_inner, ..ChimeShape::default() };
        let is_guarded = matches!(
            (spec.key, spec.value),
            (KeyFormat::Fixed(key), ValueFormat::Fixed(value)) if key % 8 == 0 && value % 8 == 0
        );
        let leaf_bytes = node_bytes.map(|bytes| bytes.max(256));
        match size {
            _ if !is_guarded => slotted,
            LabSize::Tiny => {
                ChimeShape { leaf_bytes, neighbourhood: Some(2), cap_leaf: Some(4), ..slotted }
            }
            LabSize::Small => {
                ChimeShape { leaf_bytes: Some(512), neighbourhood: Some(4), ..slotted }
            }
            LabSize::Usual => slotted,
        }
    }

    fn variants() -> &'static [Variant] {
        const HOPS: Variant = Variant {
            name: "hops",
            settings: "",
            value_bytes: None,
            object_bytes: 256,
            expose_bytes: 0,
            cases: Some(&[
                "insert-hop",
                "insert-after-hop",
                "get-after-hop",
                "recover-hop",
                "insert-over-two-copies",
                "get-over-two-copies",
                "update-over-two-copies",
                "insert-hops-lost",
            ]),
            is_drawn: false,
        };
        const WIDE_HOPS: Variant =
            Variant { name: "wide-hops", cases: Some(&["update-over-two-copies"]), ..WIDE };
        const WIDE: Variant =
            Variant { settings: "node_bytes=512,leaf_bytes=512", ..Variant::WIDE };
        &[HOPS, WIDE, WIDE_HOPS]
    }

    fn draw(rng: &mut Rng, _table: &TableSpec<ChimeShape>) -> Settings {
        Settings::default()
            .with("cache", choose(rng, &["0", "2KiB", "16KiB", "256MiB", "256MiB"]))
            .with("speculate", choose(rng, &["true", "true", "false"]))
            .with("hot", choose(rng, &["0.1", "0.3", "0.9"]))
            .with("point_read", choose(rng, &["neighbourhood", "neighbourhood", "header", "leaf"]))
            .with("insert_read", choose(rng, &["neighbourhood", "neighbourhood", "leaf"]))
            .with("delegate", choose(rng, &["true", "true", "false"]))
            .with("batch_limit", choose(rng, &["0", "2", "8", "8"]))
            .with("hand_over", choose(rng, &["0", "1", "8", "8"]))
            .with("combine_lock", choose(rng, &["true", "true", "false"]))
            .with("scan_batch", choose(rng, &["1", "3", "8"]))
            .with("bulk_fill", choose(rng, &["0.3", "0.7", "1.0"]))
            .with("lock_words", choose(rng, &["1", "64", "4096", "4096"]))
            .with("neighbourhood", choose(rng, &["2", "3", "8"]))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        let hops = after.hops.wrapping_sub(before.hops);
        match name {
            "hop" => changes::in_btree("none", before, after) && hops > 0,
            "hops" => changes::in_btree("none", before, after) && hops > 1,
            _ => changes::in_btree(name, before, after),
        }
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        let hop = grow("hop", Order::Mixed).of_variants();
        // A wide table loses no level by one remove.
        let mut cases = lab::cases_after(true, "leaf-merge");
        // The last WRITEs of an insert with a hop: copy, count, the slot that was left, the new slot, the release.
        cases.extend([
            ("insert-hop", hop),
            ("insert-after-hop", met(hop, 2, CrashStep::Found)),
            ("get-after-hop", met(hop, 2, CrashStep::Get)),
            ("recover-hop", hop.recovered(2)),
            // The pair stands in two slots, whole.
            ("insert-over-two-copies", met_before(hop, 1, CrashStep::Found)),
            ("get-over-two-copies", met_before(hop, 1, CrashStep::Get)),
            // A reader learns of the second one while a death has torn the first.
            ("update-over-two-copies", met_before(hop, 1, CrashStep::LongestUpdate).approached()),
            // The release is lost: of an insert with two hops or more, it alone, or all if they are one chain.
            ("insert-hops-lost", grow("hops", Order::Mixed).of_variants().losing_last()),
        ]);
        cases
    }

    /// Gives every node one of the last versions that there are.
    ///
    /// Cost: 3 READs and 1 WRITE for each node.
    async fn age(session: &Session, table: &Stored<ChimeShape>) -> Result<(), IndexError> {
        open_tree(session, table, &without_copies()).await?.age(session).await
    }
}
