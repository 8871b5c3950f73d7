//! Cache counters: count hits, misses, evictions, write-backs and the other work of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use farleaf_index::compute::ownership::OwnershipCounts;

/// A count that any thread adds to.
#[derive(Debug, Default)]
pub(crate) struct StatCount(AtomicU64);

impl StatCount {
    pub(crate) fn add(&self) {
        self.add_many(1);
    }

    pub(crate) fn add_many(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The purpose of the READ of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The way down of an operation on a key, or of a change of the tree's shape.
    #[default]
    Descent,
    /// A scan.
    Scan,
    /// A scan, which will want it.
    Prefetch,
    /// An operation that a memory server was to do and did not.
    Fallback,
}

impl Stats {
    /// Counts a READ of a node that was missed.
    pub(crate) fn note_read(&self, cause: Cause, level: u8, shared: bool) {
        let count = match (cause, level) {
            _ if shared => &self.reads_shared,
            (Cause::Descent, 0) => &self.reads_leaf,
            (Cause::Descent, _) => &self.reads_inner,
            (Cause::Scan, 0) => &self.reads_scan_leaf,
            (Cause::Scan, _) => &self.reads_scan_inner,
            (Cause::Prefetch, _) => &self.reads_prefetch,
            (Cause::Fallback, 0) => &self.reads_fallback_leaf,
            (Cause::Fallback, _) => &self.reads_fallback_inner,
        };
        count.add();
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)+; $($(#[$owned_doc:meta])* $owned:ident,)+) => {
        /// Counts of what the cache of one compute server has done. Hits are not counted: they touch
        /// nothing that threads share.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DexStats {
            $($(#[$doc])* pub $name: u64,)+
            $($(#[$owned_doc])* pub $owned: u64,)+
        }

        impl DexStats {
            /// Operations on a key that read its leaf, or had a memory server look for it.
            pub fn leaf_misses(&self) -> u64 {
                let offloaded = self.offload_ok + self.offload_absent + self.offload_exists;
                self.reads_leaf + self.reads_fallback_leaf + offloaded
            }

            /// Every count by its name.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [
                    $((stringify!($name), self.$name),)+
                    $((stringify!($owned), self.$owned),)+
                ]
                .into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Stats {
            $(pub(crate) $name: StatCount,)+
        }

        impl Stats {
            pub(crate) fn get(&self, owned: &OwnershipCounts) -> DexStats {
                DexStats {
                    $($name: self.$name.get(),)+
                    $($owned: owned.$owned.load(Ordering::Relaxed),)+
                }
            }

            /// Adds what another cache has done for this one.
            pub(crate) fn take_in(&self, other: &Stats) {
                $(self.$name.add_many(other.$name.get());)+
            }
        }
    };
}

stats! {
    /// READs of the root, behind one of the root word.
    reads_root,
    /// READs of inner nodes on the way of an operation on a key, or of a change of the tree's shape.
    reads_inner,
    /// READs of leaves for the same.
    reads_leaf,
    /// READs of inner nodes on a scan's way.
    reads_scan_inner,
    /// READs of leaves that a scan missed.
    reads_scan_leaf,
    /// READs of leaves beside those, which the scan was likely to want.
    reads_prefetch,
    /// READs of inner nodes of operations that a memory server was to do and did not.
    reads_fallback_inner,
    /// READs of leaves for the same.
    reads_fallback_leaf,
    /// Nodes read that others may write, each counted once, however often it was torn.
    reads_shared,
    /// Copies of shared nodes that were compared with remote memory, counted in the same way.
    reads_compared,
    /// READs of a neighbour, to find out what a crash has left.
    reads_heal,
    /// Further READs of a node that was not whole, or not the node that it must be.
    reads_again,
    /// Of the READs of a scan that read ahead, those whose leaf was not in order: read again when it comes.
    reads_in_vain,
    /// Leaves that the cache does not admit, written because they were changed.
    written_streamed,
    /// Cached leaves written through, for a record's sake or for want of room in the log.
    written_through,
    /// Inner nodes read into frames.
    inner_admitted,
    /// Leaves read into frames.
    leaves_admitted,
    /// Leaves read and not admitted.
    leaves_streamed,
    /// Frames that were Cooling and were wanted again.
    second_chances,
    /// Frames that became Cooling.
    cooled,
    /// Frames that were evicted.
    evicted,
    /// Nodes written back because their frame was wanted.
    written_back,
    /// Nodes written by a flush.
    flushed,
    /// Samples that were no candidates for cooling.
    sample_misses,
    /// Frames that were looked for in vain.
    frames_wanting,
    /// Walks that began again.
    restarts,
    /// Waits for another task's remote operation on a node.
    waits,
    /// Gets answered by another task's READ of a leaf that is not admitted.
    gets_joined,
    /// Changes that the holder of their leaf's latch executed.
    combined,
    /// Splits.
    splits,
    /// Merges.
    merges,
    /// Shared nodes that were dropped because they were out of date.
    refreshes,
    /// Separators added that a crash had left out.
    separators_healed,
    /// Merges finished that a crash had cut short.
    merges_finished,
    /// Merges undone that a crash had cut short before the left node had taken all in.
    merges_undone,
    /// Changes that were logged.
    log_records,
    /// WRITEs to the log, each of all changes that had come together.
    log_writes,
    /// Changes that found no room in the log and were written through.
    log_full,
    /// Nodes written back to make room in the log.
    log_cleaned,
    /// Images of nodes that were put into the journal.
    journalled,
    /// WRITEs to the journal, each of all images that had come together.
    journal_writes,
    /// Changes of a dead owner's log that remote memory did not have.
    replayed,
    /// Nodes whose last WRITE a death had cut short, written again.
    repaired,
    /// Misses that could be offloaded and were to be.
    offload_chosen,
    /// Misses that could be offloaded and were not to be.
    offload_declined,
    /// Decisions of both kinds that explore the costs.
    offload_explored,
    /// Misses that could not be offloaded for want of the capability `cpu_visible`.
    offload_blind,
    /// Gets that joined others at a node.
    offload_joined,
    /// Offloaded operations that found or changed their key.
    offload_ok,
    /// Of those, requests of scans.
    offload_scans,
    /// Pairs that they brought.
    offload_scan_pairs,
    /// Those whose key was not there.
    offload_absent,
    /// Inserts whose key was there.
    offload_exists,
    /// Those told to fetch: the leaf has no room, or a record is involved.
    offload_need_smo,
    /// Offloaded operations told to fetch: a node is not the one that the sender takes it for.
    offload_wrong_fence,
    /// Those told to fetch: the way leads to another memory server.
    offload_cross_server,
    /// Offloaded operations turned away by a memory server that had too much to do.
    offload_busy,
    /// Those that were not understood.
    offload_refused,
    /// Those that met no such service.
    offload_no_service,
    /// Sessions that memory servers have granted, a request each.
    offload_sessions,
    /// Requests sent again because a completion was lost.
    offload_resent,
    /// Changes, and gets, of which no answer was to be had.
    offload_unknown,
    /// Cached leaves that were dropped because a memory server had changed them.
    offload_invalidated,
    /// Nanoseconds of memory servers' threads, by their own account.
    offload_handler_ns,
    /// Nodes written back because their range was given away.
    moved_nodes,
    /// Shared nodes found current, that lie in this compute server's range by now.
    adopted,
    ;
    /// Operations that were sent to their key's owner.
    forwarded,
    /// Operations that waited for a range that was being given away.
    parked,
    /// Readings of the ownership map.
    map_reads,
    /// Ranges that were given away.
    moves,
    /// Dead compute servers whose partitions were taken over.
    takeovers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_added_and_named() {
        let (stats, other) = (Stats::default(), Stats::default());
        stats.reads_leaf.add();
        other.reads_leaf.add_many(3);
        other.merges.add_many(2);
        stats.take_in(&other);
        let sum = stats.get(&OwnershipCounts::default());
        assert_eq!(sum, DexStats { reads_leaf: 4, merges: 2, ..DexStats::default() });
        let named: Vec<_> = sum.named().filter(|(_, count)| *count > 0).collect();
        assert_eq!(named, [("reads_leaf", 4), ("merges", 2)]);
    }
}
