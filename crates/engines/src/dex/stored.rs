//! Engine interface of DEX: makes, opens and walks tables.

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, Service, ServiceId};
use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::compute::Owned;
use farleaf_index::engine::{Engine, Traits};
use farleaf_index::{IndexError, OpenOptions, Stored, TableReport, TableSpec, Visitor};
use farleaf_pool::Session;

use super::log::read_log;
use super::offload::{OFFLOAD_SERVICE, OffloadService};
use super::tree::check_placement;
use super::{Dex, DexOptions, DexTable};

impl Engine for Dex {
    const NAME: &'static str = "dex";
    const ABOUT: &'static str = "DEX: B+-tree with owned key ranges, a cache on each compute server, and \
                                 offloading; Lu et al., PVLDB 17(10), 2024";

    const TRAITS: Traits =
        Traits { cached: true, owned: true, logged: true, offloads: true, exposes: false };
    type Shape = BnodeShape;
    type Options = DexOptions;
    type Table = DexTable;

    /// The table has an ownership map of one partition that nobody owns.
    ///
    /// Cost: 1 CAS, 5 WRITEs.
    async fn create(
        session: &Session,
        table: &TableSpec<BnodeShape>,
    ) -> Result<GlobalAddr, IndexError> {
        Dex::create(session, &Layout::of(table)?).await
    }

    /// Cost: 4 READs the first time.
    async fn open(
        session: &Session,
        table: &Stored<BnodeShape>,
        options: DexOptions,
        join: &OpenOptions,
    ) -> Result<DexTable, IndexError> {
        Owned::open(session, table, options, join).await
    }

    fn check_options(
        options: &DexOptions,
        table: &TableSpec<BnodeShape>,
    ) -> Result<(), IndexError> {
        options.check(&Layout::of(table)?)
    }

    async fn walk(
        session: &Session,
        table: &Stored<BnodeShape>,
        visitor: &mut impl Visitor,
        report: &mut TableReport,
    ) -> Result<(), IndexError> {
        walk_stored(table, session, visitor, report).await
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<BnodeShape>,
    ) -> Result<usize, IndexError> {
        DexTable::release_dead(session, table).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<BnodeShape>,
    ) -> Result<(), IndexError> {
        DexTable::check_unowned(session, table).await
    }

    fn services(life: u64) -> Vec<(ServiceId, Arc<dyn Service>)> {
        vec![(OFFLOAD_SERVICE, Arc::new(OffloadService::new(life, None)))]
    }
}

/// Visits the meta object, the ownership map, the logs, then the tree. The caller has a pin.
///
/// Cost: that of [`farleaf_index::blink::BlinkTree::walk`], 1 READ more for inner nodes of a placed table, 3, and 1 for
/// each log.
async fn walk_stored(
    table: &Stored<BnodeShape>,
    session: &Session,
    visitor: &mut impl Visitor,
    report: &mut TableReport,
) -> Result<(), IndexError> {
    let remote = RemoteTree::open(table.meta, Layout::of(table)?, BlinkOptions::default());
    remote.visit_meta(visitor);
    let Some(map) = DexTable::visit_map(session, table, visitor).await? else { return Ok(()) };
    for (_, word) in map.logs {
        if visitor.is_done() {
            return Ok(());
        }
        let log = read_log(&remote, session, word).await?;
        visitor.object("log", log.addr, log.bytes());
    }
    if visitor.is_done() {
        return Ok(());
    }
    remote.walk_nodes(session, visitor, report).await?;
    if report.problems.is_empty() && !visitor.is_done() {
        report.problems = check_placement(&remote, session).await?;
    }
    Ok(())
}
