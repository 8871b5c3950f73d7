//! Counters: what an open table has done, beside the fabric's counts of remote operations.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Parts of a count, so that threads seldom share a cache line.
const PARTS: usize = 8;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PART: usize = THREADS.fetch_add(1, Ordering::Relaxed) % PARTS;
}

/// A thread's part of a count, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(AtomicU64);

/// One count.
#[derive(Debug, Default)]
pub(super) struct PartedCount([Part; PARTS]);

impl PartedCount {
    #[inline]
    pub(super) fn add(&self, count: u64) {
        if count > 0 {
            self.0[PART.with(|part| *part)].0.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn value(&self) -> u64 {
        self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).sum()
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident: $name:literal,)+) => {
        /// Counts of an open table's work.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $($(#[doc = $doc])+ pub(super) $field: PartedCount,)+
            /// Judged completions that were lost: done, not done, unknown.
            pub(super) outcomes: [PartedCount; 3],
        }

        impl Counters {
            /// All counts by name.
            pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
                let mut all = vec![$(($name, self.$field.value())),+];
                let outcomes = ["outcome_done", "outcome_not_done", "outcome_unknown"];
                all.extend(outcomes.into_iter().zip(self.outcomes.iter().map(PartedCount::value)));
                all
            }
        }
    };
}

counters! {
    /// READs for a proof that a key belongs where its way ends.
    proof_reads: "proof_reads",
    /// Inserts that found no slot.
    slot_taken: "cas_slot_taken",
    /// Publishing CASes that found another word.
    changed: "cas_changed",
    /// Changes that met a sealed slot.
    met_seal: "cas_sealed",
    /// Objects that a change of unknown outcome has linked or not, or unlinked or not: a sweep frees those that no
    /// table reaches.
    undecided: "undecided_objects",
    /// Sealing CASes.
    seal_cas: "seal_cas",
    /// Switches begun.
    switch_started: "switch_started",
    /// Switches that this compute server has completed.
    switch_won: "switch_won",
    /// Switches that another was quicker at.
    switch_lost: "switch_lost",
    /// New nodes over a leaf or an edge.
    split: "split",
    /// Nodes of chains.
    chain: "chain",
    /// TOMBs left by removes.
    tomb_made: "tomb_made",
    /// TOMBs that a new leaf has replaced.
    tomb_reused: "tomb_reused",
    /// Blind changes that counted as done just before another.
    absorbed: "absorbed",
    /// Answered operations.
    answers: "answers",
    /// Nodes that operations have read on the ways that led to answers.
    levels: "levels",
    /// Unlinked nodes for whose entries all tables were searched, because nobody knew their prefix.
    searched: "switch_searched",
    /// Probes of the skip table.
    est_probe: "est_probe",
    /// Answers that an entry led to.
    est_hit: "est_hit",
    /// Probes that found no entry.
    est_miss: "est_miss",
    /// Probes that found several.
    est_multi: "est_multi",
    /// Entries of nodes that were being replaced.
    est_sealed: "est_sealed",
    /// Entries that led to another prefix's node.
    est_wrong: "est_wrong_prefix",
    /// Entries that found their bucket full.
    est_dropped: "est_dropped",
    /// Entries that operations have had mended.
    est_repaired: "est_repaired",
    /// Tentative entries of other clients that were made valid or taken out.
    est_tentative: "est_tentative",
    /// Starts at remembered entries.
    cache_hit: "cache_hit",
    /// Those that led nowhere.
    cache_stale: "cache_stale",
    /// Notices that were heeded.
    notices_heeded: "notices_heeded",
    /// Times that all was forgotten because too many notices had come.
    cache_emptied: "cache_emptied",
    /// Adjustments of the list of lengths.
    adjust_rounds: "adjust_rounds",
    /// Microseconds that they took to choose.
    adjust_us: "adjust_us",
    /// Tables that were filled.
    tables_filled: "tables_filled",
    /// Tables that were dropped.
    tables_dropped: "tables_dropped",
    /// READs of a leaf whose checksum did not fit: must be 0.
    crc_fail: "crc_fail",
}
