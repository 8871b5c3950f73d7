//! Plain ART: an adaptive radix tree on disaggregated memory before SMART's steps, the baseline of its paper.
//!
//! Source: the baseline of SMART, OSDI 2023, section 2, and of DART, SIGMOD 2026; the tree is that of Leis et al., ICDE
//! 2013. It is the code of the engine [`smart`](crate::smart) with all of its steps switched off: nodes of four
//! types, an insert locks each node on its way in a table of locks, a new value is a new leaf, and no operation does
//! the work of others. `docs/papers/art.md` says what differs from the baselines of the papers.
//!
//! Its tables have the layout and the invariants of `smart`. The locks stand in front of the lock-free protocol, so
//! a compute server that dies with locks held leaves nothing half done that the protocol does not finish.
//!
//! Variant of smart.

#[cfg(feature = "lab")]
mod lab;

use farleaf_fabric::GlobalAddr;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    IndexError, KnobKind, OpenOptions, Spec, Stored, TableReport, TableSpec, Visitor, knobs,
};
use farleaf_pool::{Recovery, Session};

use crate::smart::{
    LeafLock, LeafUpdate, NodeLocks, NodeTypes, ReadDelegation, Smart, SmartOptions, SmartShape,
};

/// The engine of plain ART; its tables are those of [`Smart`] with other settings.
#[derive(Clone, Copy, Debug)]
pub struct Art;

knobs! {
    /// Settings by which one compute server opens a table of this engine; they concern it alone.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ArtOptions {
        /// Bytes of cached inner nodes for each table. 0 caches none: then each operation reads every node on its
        /// way.
        "cache" => cache_bytes: u64 = 256 << 20, KnobKind::Bytes { min: 0, max: u64::MAX }, paper "600 MB; none in DART's paper";
        /// The nodes that an operation locks in the lock table before it changes a slot: off, the node of the slot, or
        /// each node on the path that it has read.
        "node_locks" => node_locks: NodeLocks = NodeLocks::Path,
            KnobKind::Words { words: NodeLocks::WORDS, also: None }, paper "path; DART's paper has off as well";
        /// Most leaves and nodes that a scan reads at once.
        "scan_window" => scan_window: usize = 32, KnobKind::Count { min: 1, max: 256, unit: "objects" };
        /// Removed keys after which a task takes their leaves out of the tree.
        "unlink_batch" => unlink_batch: usize = 64, KnobKind::Count { min: 1, max: 4096, unit: "leaves" };
    }
}

impl From<ArtOptions> for SmartOptions {
    fn from(art: ArtOptions) -> SmartOptions {
        SmartOptions {
            cache_bytes: art.cache_bytes,
            scan_window: art.scan_window,
            unlink_batch: art.unlink_batch,
            node_locks: art.node_locks,
            types: NodeTypes::Art,
            leaf: LeafUpdate::Replaced,
            lock: LeafLock::Rear,
            read_delegation: ReadDelegation::Off,
            write_combining: false,
            ..SmartOptions::default()
        }
    }
}

impl Engine for Art {
    const NAME: &'static str = "art";
    const ABOUT: &'static str =
        "plain adaptive radix tree with locked nodes, SMART's baseline; Leis et al., ICDE 2013";
    const TRAITS: Traits = Smart::TRAITS;
    type Shape = SmartShape;
    type Options = ArtOptions;
    type Table = Smart;

    fn shape_for(spec: &Spec, wanted: SmartShape) -> Result<SmartShape, IndexError> {
        wanted.complete_forward(spec, Self::NAME)
    }

    async fn create(
        session: &Session,
        table: &TableSpec<SmartShape>,
    ) -> Result<GlobalAddr, IndexError> {
        Smart::create(session, table).await
    }

    async fn open(
        session: &Session,
        table: &Stored<SmartShape>,
        options: ArtOptions,
        _join: &OpenOptions,
    ) -> Result<Smart, IndexError> {
        Smart::open_with(session, table, options.into())
    }

    async fn walk(
        session: &Session,
        table: &Stored<SmartShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        Smart::walk(session, table, visitor, report).await
    }

    async fn redo_dead(
        session: &Session,
        table: &Stored<SmartShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        Smart::redo_dead(session, table, recovery).await
    }
}
