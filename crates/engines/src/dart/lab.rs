//! Lab: the seeded bugs, crash cases and small tables of this engine, the settings that the lab draws for it, and the
//! maintenance of the skip table, by the names of its crash cases.

use farleaf_index::lab::{CrashState, Hunt, Lab, LabSize, changes, merges, node_inserts};
use farleaf_index::{IndexError, Settings, Spec, TableReport, TableSpec};
use farleaf_pool::Session;

use super::cache::IGNORE_NOTICES;
use super::changing::{ABSORB_ANY, ERASE_REMOVED, INSERT_UNPROVEN};
use super::descent::BELIEVE_SEALED;
use super::hashed_node::FILL_ANY_SLOT;
use super::meta::REMEMBER_FOREVER;
use super::node_switch::{COLLAPSE_UNCLAIMED, SWITCH_UNSEALED, TAKE_OUT_BEFORE_SEAL};
use super::ops::ABSENT_UNPROVEN;
use super::publish::LOST_IS_NOT_DONE;
use super::skip_table::{ENTRY_MOVED_AT_ONCE, ENTRY_VALID_AT_ONCE};
use super::{Dart, DartShape, KEEP_ENTRIES_OF_FREED};

/// Makes a skip table and fills it.
const MAKE: &str = "skip-table-make";
/// Makes one, replaces it by one with other lengths, and drops the old one.
const REPLACE: &str = "skip-table-replace";
/// Chooses the lengths by the accesses, and replaces the skip table by one with them.
const ADJUST: &str = "skip-table-adjust";

/// Lookups begin at entries of the skip table, any of a bucket. Nodes are replaced again and again, and each has entries.
const ENTRIES: &[(&str, &str)] = &[
    ("workload", "churn"),
    ("set", "est=true,est_maintenance=true,print_bits=0,est_nodes=1,prefixes=1+2+3+4+5+6+7"),
    ("compute-servers", "3"),
    ("clients", "6"),
    ("keys", "20"),
];
/// The same. Nodes with entries come and go while clients die.
const DEATHS: &[(&str, &str)] = &[
    ("workload", "churn"),
    ("set", "est=true,est_maintenance=true,print_bits=0,est_nodes=4"),
    ("compute-servers", "3"),
    ("memory-servers", "1"),
    ("keys", "60"),
    ("ops", "200"),
    ("think-ns", "2000"),
    ("event", "kill:1@200000,kill:2@500000,restart:1@900000,restart:2@1200000"),
];

impl Lab for Dart {
    const UNLINKS_LATER: bool = true;
    const BACKGROUND: &'static [&'static str] = &[MAKE, REPLACE, ADJUST];

    fn hunts() -> Vec<Hunt> {
        vec![
            Hunt::any(&ERASE_REMOVED),
            Hunt::any(&FILL_ANY_SLOT),
            Hunt::any(&SWITCH_UNSEALED),
            Hunt::any(&ABSORB_ANY),
            Hunt::any(&BELIEVE_SEALED),
            Hunt::with(&ENTRY_VALID_AT_ONCE, ENTRIES),
            Hunt::with(&ENTRY_MOVED_AT_ONCE, ENTRIES),
            Hunt::any(&TAKE_OUT_BEFORE_SEAL),
            Hunt::with(&KEEP_ENTRIES_OF_FREED, DEATHS),
            Hunt::any(&IGNORE_NOTICES),
            Hunt::any(&REMEMBER_FOREVER),
            Hunt::any(&ABSENT_UNPROVEN),
            Hunt::any(&INSERT_UNPROVEN),
            Hunt::any(&LOST_IS_NOT_DONE),
            Hunt::any(&COLLAPSE_UNCLAIMED),
        ]
    }

    fn shape(size: LabSize, _spec: &Spec) -> DartShape {
        match size {
            LabSize::Tiny => DartShape { bucket_bytes: Some(32) },
            LabSize::Small | LabSize::Usual => DartShape::default(),
        }
    }

    fn draw(rng: &mut fastrand::Rng, _table: &TableSpec<DartShape>) -> Settings {
        let pick = |rng: &mut fastrand::Rng, list: &[&'static str]| list[rng.usize(..list.len())];
        let settings = Settings::default()
            .with("est_nodes", pick(rng, &["1", "4", "32", "100000"]))
            .with("print_bits", pick(rng, &["0", "1", "10"]))
            .with("prefixes", pick(rng, &["auto", "1+2+4+8+16+32", "1+2+3+4+5+6+7", "3", "7"]))
            .with("scan_batch", pick(rng, &["1", "3", "64"]))
            .with("cache", pick(rng, &["0", "400", "64KiB"]))
            .with("absorb", pick(rng, &["true", "true", "false"]))
            .with("buckets", pick(rng, &["true", "true", "false"]))
            .with("compound_pointers", pick(rng, &["true", "true", "false"]))
            .with("est", pick(rng, &["true", "true", "true", "true", "false"]))
            .with("est_maintenance", pick(rng, &["true", "true", "true", "true", "false"]))
            .with("adjust_every", pick(rng, &["0", "0", "50", "300"]))
            .with("freq_sample", pick(rng, &["0", "1", "64"]));
        settings.with("bucket_bytes", pick(rng, &["32", "64", "128", "128", "256", "512"]))
    }

    fn is_change(name: &str, before: &TableReport, after: &TableReport) -> bool {
        changes::in_radix(name, before, after)
    }

    fn cases() -> Vec<(&'static str, CrashState)> {
        let mut cases = merges("leaf-merge");
        cases.extend(node_inserts());
        cases
    }

    async fn work_in_background(
        table: &Dart,
        session: &Session,
        name: &str,
    ) -> Result<(), IndexError> {
        table.maintain_by_name(session, name).await
    }
}

impl Dart {
    /// Does the maintenance of that name.
    ///
    /// # Errors
    /// `Invalid` for another name; as [`Dart::maintain`].
    async fn maintain_by_name(&self, session: &Session, name: &str) -> Result<(), IndexError> {
        let invalid = |what: String| IndexError::Invalid(format!("engine dart: {what}"));
        match name {
            MAKE => self.maintain(session).await,
            ADJUST => self.adjust(session).await.map(drop),
            REPLACE => {
                for lengths in ["1", "2+3"] {
                    let refused = |_| invalid(format!("no prefix lengths: {lengths}"));
                    let lengths = lengths.parse().map_err(refused)?;
                    self.set_prefixes(session, &lengths).await?;
                }
                for _ in 0..4 {
                    session.tick().await?;
                    self.maintain(session).await?;
                }
                Ok(())
            }
            _ => Err(invalid(format!("no maintenance is named \"{name}\""))),
        }
    }
}
