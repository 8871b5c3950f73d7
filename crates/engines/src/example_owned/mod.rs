//! Example engine with owners: sorted lists under one remote lock, built for tests only (feature `example`).
//!
//! It shows that an engine with a shape setting, a structural change, a seeded bug and owners is one folder and its two
//! lines in `lib.rs`. The meta object names a directory, which names the lists in the order of their first keys. Both
//! never change: a change writes a new list, or two if that has become too long, and a new directory, then names that
//! and gives the lock back in one chain. Compute servers own ranges of keys; nothing is cached.
//!
//! | operation | READ | WRITE | CAS | round trips |
//! |---|---|---|---|---|
//! | get | 5 | 0 | 0 | 5 |
//! | change | 5 | 4, 5 with a split | 1 | 10, 11 |
//! | scan of n lists | 3 + 2 n | 0 | 0 | 3 + 2 n |
//!
//! - `INV-EXO-1` A directory and its lists are written in whole before the meta object names the directory. So the table
//!   is whole at every moment, and a dead holder of the lock has left nothing half done. A change runs in a task to its end.
//! - `INV-EXO-2` What a change replaces is retired once the meta object names the new directory; a reader holds a pin.
//! - `INV-EXO-3` The lists are in order, none is empty or longer than the shape says, and the directory has the first
//!   key of each.
#![cfg(feature = "example")]

#[cfg(feature = "lab")]
mod lab;
mod tree;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::compute::Owned;
use farleaf_index::compute::ownership::create_map;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{
    IndexError, KnobKind, KnobOf, Knobs, OpenOptions, Shape, Stored, TableReport, TableSpec,
    Visitor, shape,
};
use farleaf_pool::Session;

pub use self::tree::ListsTree;
use self::tree::{Lists, META_BYTES, META_TAG, map_words};

/// The engine.
#[derive(Clone, Copy, Debug)]
pub struct ExampleOwned;

shape! {
    /// The lists of a table.
    pub struct ListsShape {
        /// Most pairs of a list; auto is 64.
        "list_pairs" => list_pairs: Option<u16> = None, KnobKind::Count { min: 2, max: 1024, unit: "pairs" };
    }
}

impl Shape for ListsShape {}

/// Nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListsOptions;

impl Knobs for ListsOptions {
    fn list() -> &'static [KnobOf<Self>] {
        &[]
    }
}

impl Engine for ExampleOwned {
    const NAME: &'static str = "example-owned";
    const ABOUT: &'static str = "sorted lists with owned key ranges: an example, for tests only";
    const TRAITS: Traits = Traits { owned: true, ..Traits::NONE };

    type Shape = ListsShape;
    type Options = ListsOptions;
    type Table = Owned<ListsTree>;

    /// Cost: 1 CAS, 2 WRITEs and a chain.
    async fn create(
        session: &Session,
        _table: &TableSpec<ListsShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = session.alloc_unlinked(session.place(), META_BYTES).await?;
        let mut content = session.client().buf(META_BYTES);
        content.words_mut().fill(0);
        content.words_mut()[0] = META_TAG;
        meta.write(content).await?;
        meta.keep();
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&map_words(meta.addr()), session).await?;
        Ok(meta.addr())
    }

    async fn open(
        session: &Session,
        table: &Stored<ListsShape>,
        options: ListsOptions,
        join: &OpenOptions,
    ) -> Result<Owned<ListsTree>, IndexError> {
        Owned::open(session, table, options, join).await
    }

    /// Cost: 6 READs, and 2 for each list.
    async fn walk(
        session: &Session,
        table: &Stored<ListsShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        visitor.object("meta object", table.meta, META_BYTES);
        if Owned::<ListsTree>::visit_map(session, table, visitor).await?.is_some() {
            Lists(*table).walk(session, visitor, report).await?;
        }
        Ok(())
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<ListsShape>,
    ) -> Result<usize, IndexError> {
        Owned::<ListsTree>::release_dead(session, table).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<ListsShape>,
    ) -> Result<(), IndexError> {
        Owned::<ListsTree>::check_unowned(session, table).await
    }
}
