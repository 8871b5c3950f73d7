//! Engine interface of DEX: opens a table once per member, and walks tables that nobody has open.

use std::sync::Arc;

use farleaf_fabric::{GlobalAddr, OpKind, Service, ServiceId};
use farleaf_index::blink::BlinkOptions;
use farleaf_index::blink::remote::RemoteTree;
use farleaf_index::bnode::{BnodeShape, Layout};
use farleaf_index::compute::JoinOptions;
use farleaf_index::compute::ownership::{
    Ownership, View, check_unowned, claim, dead_holders, give_away, read_map,
};
use farleaf_index::engine::{Engine, Traits, choose};
use farleaf_index::units::Size;
use farleaf_index::{
    IndexError, OpenOptions, Settings, Shape, Stored, TableReport, TableSpec, Visitor,
};
use farleaf_pool::Session;
use farleaf_pool::canary::Canary;
use fastrand::Rng;

use super::log::read_log;
use super::offload::{OFFLOAD_SERVICE, OffloadService};
use super::partition::map_words;
use super::tree::{check_placement, place_for};
use super::{Dex, DexOptions, DexTree, Durability, FRAMES_MIN};

fn remote(meta: GlobalAddr, layout: Layout) -> RemoteTree {
    RemoteTree::open(meta, layout, BlinkOptions::default())
}

impl Dex {
    /// Opens a table in this member of the pool: gives the cache that the member has of it, or a new one, which
    /// is empty.
    ///
    /// Cost: 4 READs for a new cache, and a change of the map if it takes something.
    ///
    /// # Errors
    /// For a new cache: `Invalid` for one of fewer than 8 nodes and for options that make no sense, `Full` if
    /// there is no memory for it; `Unavailable` if another member of this compute server has the table open.
    pub async fn open(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        join: JoinOptions,
    ) -> Result<Self, IndexError> {
        if let Some(cache) = session.pool().kept::<DexTree>(meta) {
            return Ok(Dex(cache));
        }
        let placement = {
            let _pin = session.begin(OpKind::Other).await?;
            session.reliable().word(RemoteTree::placement_word(meta)).await?
        };
        let words = map_words(meta);
        let ownership = match Ownership::join_or_kept::<DexTree>(words, session, join).await? {
            Ok(joined) => joined,
            Err(cache) => return Ok(Dex(cache)),
        };
        let new = Dex::with(meta, layout, options, ownership)?;
        let placement = place_for(session, meta, placement, new.0.options.offload).await?;
        new.0.take_placement(placement);
        // Kept before it takes anything: what it has from then on is this cache's, whatever fails.
        let dex = Dex(session.pool().keep(meta, new.0));
        claim(&dex, session, join.take).await?;
        Ok(dex)
    }

    /// As [`Dex::open`], by the settings of the store.
    pub(crate) async fn open_kept(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        options: DexOptions,
        join: &OpenOptions,
    ) -> Result<Self, IndexError> {
        let (joins, is_guest) = JoinOptions::of(join);
        let dex = Dex::open(session, meta, layout, options, joins).await?;
        if is_guest {
            dex.be_guest(join.guest_operations);
        }
        Ok(dex)
    }
}

impl Engine for Dex {
    const NAME: &'static str = "dex";
    const ABOUT: &'static str = "DEX: B+-tree with owned key ranges, a cache on each compute server, and \
                                 offloading; Lu et al., PVLDB 17(10), 2024";

    const TRAITS: Traits = Traits {
        cached: true,
        owned: true,
        logged: true,
        offloads: true,
        exposes: false,
        splits: true,
        merges: true,
        shrinks: false,
        upper_tree: false,
        radix: false,
    };
    const CANARIES: &'static [Canary] = &[
        Canary::AdoptUnchecked,
        Canary::CoolUnwritten,
        Canary::LoseLogRecord,
        Canary::ReplayOlder,
        Canary::ForwardUnchecked,
        Canary::GiveUndrained,
        Canary::AnswerAsZombie,
        Canary::SplitOldFirst,
        Canary::LostIsNotBegun,
        Canary::DeliverTwice,
    ];

    type Shape = BnodeShape;
    type Options = DexOptions;
    type Table = Dex;

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
    ) -> Result<Dex, IndexError> {
        Dex::open_kept(session, table.meta, Layout::of(table)?, options, join).await
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
        walk_stored(&remote(table.meta, Layout::of(table)?), session, visitor, report).await
    }

    async fn release_dead(
        session: &Session,
        table: &Stored<BnodeShape>,
    ) -> Result<usize, IndexError> {
        release_dead(session, table.meta, Layout::of(table)?).await
    }

    async fn check_unowned(
        session: &Session,
        table: &Stored<BnodeShape>,
    ) -> Result<(), IndexError> {
        let _pin = session.begin(OpKind::Other).await?;
        check_unowned(&map_words(table.meta), session).await
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

    fn services(life: u64) -> Vec<(ServiceId, Arc<dyn Service>)> {
        vec![(OFFLOAD_SERVICE, Arc::new(OffloadService::new(life, None)))]
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

/// Visits the meta object, the ownership map, the logs, then the tree. The caller has a pin.
///
/// Cost: that of [`farleaf_index::blink::BlinkTree::walk`], 1 READ more for inner nodes of a placed table, 3, and 1 for
/// each log.
async fn walk_stored(
    remote: &RemoteTree,
    session: &Session,
    visitor: &mut impl Visitor,
    report: &mut TableReport,
) -> Result<(), IndexError> {
    remote.visit_meta(visitor);
    if visitor.is_done() {
        return Ok(());
    }
    let map = read_map(&map_words(remote.meta()), session).await?;
    visitor.object("ownership map", map.place.addr, map.place.bytes);
    for (_, word) in map.logs {
        if visitor.is_done() {
            return Ok(());
        }
        let log = read_log(remote, session, word).await?;
        visitor.object("log", log.addr, log.bytes());
    }
    if visitor.is_done() {
        return Ok(());
    }
    remote.walk_nodes(session, visitor, report).await?;
    if report.problems.is_empty() && !visitor.is_done() {
        report.problems = check_placement(remote, session).await?;
    }
    Ok(())
}

async fn release_dead(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
) -> Result<usize, IndexError> {
    let _pin = session.begin(OpKind::Maintenance).await?;
    let words = map_words(meta);
    let (map, dead) = dead_holders(&words, session).await?;
    if dead.is_empty() {
        return Ok(0);
    }
    let options = DexOptions {
        cache_bytes: FRAMES_MIN * layout.node_bytes() as u64,
        durability: Durability::Volatile,
        ..DexOptions::default()
    };
    let ownership = Ownership::of_view(words, View::new(map));
    let dex = Dex::with(meta, layout, options, ownership)?;
    dex.0.take_placement(session.reliable().word(RemoteTree::placement_word(meta)).await?);
    for who in &dead {
        give_away(&dex, session, *who, 0).await?;
    }
    Ok(dead.len())
}
