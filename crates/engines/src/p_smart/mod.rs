//! P-SMART: SMART whose ranges of keys are owned by compute servers, as DEX's paper compares itself with.
//!
//! Source: the baseline P-SMART of DEX, PVLDB 17(10), 2024, section 7.1: SMART (OSDI 2023) with DEX's logical
//! partitioning. The tree is that of the engine [`smart`](crate::smart), and [`PSmartTree`] adds the owners. A compute
//! server works on its own keys alone, so that its cache of inner nodes holds those of its ranges alone, and clients
//! of different compute servers never meet at a leaf.
//!
//! `docs/design/smart.md` describes what ownership changes, `docs/papers/smart.md` what differs from the papers.
//!
//! A table is SMART's own with an ownership map, which two words of its meta object name. An operation on an own key
//! is inside the range guard and is SMART's; one on another's key travels to the owner; one on a key that nobody owns
//! takes the range, or is a guest's. The protocol beneath stays that of all compute servers. Beyond it, an owner
//! believes its cache about its own nodes (`crates/engines/src/smart/own_nodes.rs`).
//!
//! All that an owner acknowledges is in remote memory, where any other compute server goes on with it. So nothing is
//! written back before a range moves, and nothing is replayed after a death: what the dead left half done the next
//! operation that meets it finishes by SMART's protocol.
//!
//! An owner may believe its cache about what only the owner changes. So whatever changes own keys ends before
//! another compute server may own them: operations and their tasks are inside the guard, removed keys are cleared
//! before a range moves, and a table that closes drains the guard before it gives its ranges up. A guest changes
//! nothing without the map's lock.
//!
//! Variant of smart.

#[cfg(feature = "lab")]
mod lab;
mod options;
mod tree;

use farleaf_fabric::{GlobalAddr, OpKind};
use farleaf_index::compute::Owned;
use farleaf_index::compute::ownership::create_map;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{IndexError, OpenOptions, Spec, Stored, TableReport, TableSpec, Visitor};
use farleaf_pool::{Recovery, Session};

pub use self::options::PSmartOptions;
pub use self::tree::PSmartTree;
use self::tree::map_words;
use crate::smart::{Smart, SmartShape, stored_tree};

/// The engine P-SMART.
#[derive(Clone, Copy, Debug)]
pub struct PSmart;

impl Engine for PSmart {
    const NAME: &'static str = "p-smart";
    const ABOUT: &'static str =
        "P-SMART: smart with owned key ranges; Lu et al., PVLDB 17(10), 2024";
    const TRAITS: Traits = Traits { owned: true, ..Smart::TRAITS };

    type Shape = SmartShape;
    type Options = PSmartOptions;
    type Table = Owned<PSmartTree>;

    fn shape_for(spec: &Spec, wanted: SmartShape) -> Result<SmartShape, IndexError> {
        wanted.complete_forward(spec, Self::NAME)
    }

    /// The table has an ownership map of one partition that nobody owns.
    async fn create(
        session: &Session,
        table: &TableSpec<SmartShape>,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = Smart::create(session, table).await?;
        // An error leaves what nobody knows of, for the recovery to sweep.
        let _pin = session.begin(OpKind::Maintenance).await?;
        create_map(&map_words(meta), session).await?;
        Ok(meta)
    }

    /// Cost: 3 READs the first time, and a change of the map if it takes something.
    async fn open(
        session: &Session,
        table: &Stored<SmartShape>,
        options: PSmartOptions,
        join: &OpenOptions,
    ) -> Result<Owned<PSmartTree>, IndexError> {
        Owned::open(session, table, options, join).await
    }

    async fn walk(
        session: &Session,
        table: &Stored<SmartShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        let tree = stored_tree(table);
        tree.visit_meta(visitor);
        match Owned::<PSmartTree>::visit_map(session, table, visitor).await? {
            Some(_) => tree.walk_behind_meta(session, visitor, report).await,
            None => Ok(()),
        }
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<SmartShape>,
    ) -> Result<usize, IndexError> {
        Owned::<PSmartTree>::release_dead(session, table).await
    }

    async fn redo_dead(
        session: &Session,
        table: &Stored<SmartShape>,
        recovery: &Recovery,
    ) -> Result<(), IndexError> {
        Smart::redo_dead(session, table, recovery).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<SmartShape>,
    ) -> Result<(), IndexError> {
        Owned::<PSmartTree>::check_unowned(session, table).await
    }
}
