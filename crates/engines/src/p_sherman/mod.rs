//! P-Sherman: Sherman whose ranges of keys are owned by compute servers, as DEX's paper compares itself with.
//!
//! Source: the baseline P-Sherman of DEX, PVLDB 17(10), 2024, section 7.1: Sherman (SIGMOD 2022) with DEX's logical
//! partitioning. Nobody has released it. The tree is that of the engine [`sherman`](crate::sherman), and [`PShermanTree`]
//! adds the owners.
//!
//! A table is Sherman's own with an ownership map, which two words of its meta object name. An operation on an own key is
//! inside the range guard; one on another's key travels to the owner; one on a key that nobody owns takes the range, or is a
//! guest's. A bound between ranges is the high fence of a leaf, so each guarded leaf has one owner. Its changes need no
//! remote lock: tasks of the owner take turns (`crates/index/src/blink/own_leaves.rs`). Nodes above the leaves stay shared,
//! under their lock words. Leaves of keys or values without a fixed length in whole words have one checksum, and are
//! changed under their lock words by owners and guests alike.
//!
//! | operation, inner nodes cached, keys and values of 8 bytes | READ | WRITE | CAS | waits |
//! |---|---|---|---|---|
//! | get | 1 leaf | 0 | 0 | 1 |
//! | update, insert, remove | 1 leaf | 1 | 0 | 2 |
//! | the same, the turn passed on with the leaf's content | 0 | 1 | 0 | 1 |
//!
//! All that an owner acknowledges is in remote memory. So nothing is written back before a range moves. Before a dead
//! owner's range opens, the redo records of its splits and merges are carried out; a slot that it has half written is mended
//! by the next owner that meets it. A guest works by Sherman's lock words, under the map's lock.
//!
//! `docs/design/sherman.md` describes what ownership changes.
//!
//! Variant of sherman.

#[cfg(feature = "lab")]
mod lab;
mod options;
mod tree;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::blink::{BlinkTree, LeafRule};
use farleaf_index::compute::Owned;
use farleaf_index::compute::ownership::create_map;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{IndexError, OpenOptions, Stored, TableReport, TableSpec, Visitor};
use farleaf_pool::Session;

pub use self::options::PShermanOptions;
pub use self::tree::PShermanTree;
use self::tree::map_words;
use crate::sherman::{Sherman, ShermanShape, open_tree, without_copies};

/// The engine P-Sherman.
#[derive(Clone, Copy, Debug)]
pub struct PSherman;

impl Engine for PSherman {
    const NAME: &'static str = "p-sherman";
    const ABOUT: &'static str =
        "P-Sherman: sherman with owned key ranges; Lu et al., PVLDB 17(10), 2024";
    const TRAITS: Traits = Traits { owned: true, ..Sherman::TRAITS };

    type Shape = ShermanShape;
    type Options = PShermanOptions;
    type Table = Owned<PShermanTree>;

    /// The table has an ownership map of one partition that nobody owns.
    async fn create(
        session: &Session,
        table: &TableSpec<ShermanShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = Sherman::create(session, table).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&map_words(meta), session).await?;
        Ok(meta)
    }

    /// Cost: 5 READs the first time, and a change of the map if it takes something.
    async fn open(
        session: &Session,
        table: &Stored<ShermanShape>,
        options: PShermanOptions,
        join: &OpenOptions,
    ) -> Result<Owned<PShermanTree>, IndexError> {
        Owned::open(session, table, options, join).await
    }

    /// Cost: 3 READs of the map, 2 READs for each node, 1 for each lock table.
    async fn walk(
        session: &Session,
        table: &Stored<ShermanShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        BlinkTree::visit_meta_object(table.meta, visitor);
        if Owned::<PShermanTree>::visit_map(session, table, visitor).await?.is_none() {
            return Ok(());
        }
        let tree = open_tree(session, table, &without_copies(), LeafRule::Unowned).await?;
        tree.walk_nodes(session, visitor, report).await
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<ShermanShape>,
    ) -> Result<usize, IndexError> {
        Owned::<PShermanTree>::release_dead(session, table).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<ShermanShape>,
    ) -> Result<(), IndexError> {
        Owned::<PShermanTree>::check_unowned(session, table).await
    }
}
