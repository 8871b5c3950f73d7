//! Lab: the seeded bugs, crash cases and small tables of this engine, and the settings that the lab draws for it.

use farleaf_fabric::canary::{DELIVER_TWICE, LOST_IS_NOT_BEGUN};
use farleaf_index::blink::lab;
use farleaf_index::bnode::BnodeShape;
use farleaf_index::compute::canaries::{FORWARD_UNCHECKED, GIVE_UNDRAINED};
use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, changes, choose};
use farleaf_index::units::Size;
use farleaf_index::{Settings, Shape, Spec, TableReport, TableSpec};
use farleaf_pool::canary::ANSWER_AS_ZOMBIE;
use fastrand::Rng;

use super::Dex;
use super::cache::COOL_UNWRITTEN;
use super::log::LOSE_LOG_RECORD;
use super::tree::{ADOPT_UNCHECKED, REPLAY_OLDER, SPLIT_OLD_FIRST};

impl Lab for Dex {
    fn hunts() -> Vec<Hunt> {
        [
            &ADOPT_UNCHECKED,
            &COOL_UNWRITTEN,
            &LOSE_LOG_RECORD,
            &REPLAY_OLDER,
            &FORWARD_UNCHECKED,
            &GIVE_UNDRAINED,
            &ANSWER_AS_ZOMBIE,
            &SPLIT_OLD_FIRST,
            &LOST_IS_NOT_BEGUN,
            &DELIVER_TWICE,
        ]
        .map(Hunt::any)
        .to_vec()
    }

    fn shape(size: LabSize, spec: &Spec) -> BnodeShape {
        lab::shape(size, spec)
    }

    fn draw(rng: &mut Rng, table: &TableSpec<BnodeShape>) -> Settings {
        let frames = choose(rng, &[48, 48, 96, 400]);
        let cache = Size(frames * table.shape.node_bytes(&table.spec) as u64);
        Settings::default()
            .with("cache", &cache.to_string())
            .with("durability", "logged")
            .with("log_bytes", choose(rng, &["8KiB", "8KiB", "24KiB"]))
            .with("admission", choose(rng, &["again", "again", "again", "0.1", "0.5", "1"]))
            .with("cooling_ratio", choose(rng, &["0.1", "0.3"]))
            .with("single_queue", choose(rng, &["false", "false", "false", "true"]))
            .with("offload", draw_offload(rng))
            .with("offload_scans", &rng.bool().to_string())
            .with("combine", choose(rng, &["0", "4", "64"]))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_btree(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        lab::cases(false)
    }
}

fn draw_offload(rng: &mut Rng) -> &'static str {
    match rng.u8(..12) {
        0 => "ratio:0.5",
        1 => "always",
        2 => "adaptive",
        _ => "never",
    }
}
