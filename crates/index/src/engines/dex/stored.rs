//! The engine as one of several: tables with an ownership map from the first, opened once in each
//! member of the pool; and what there is to do about a table that is not open.

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_pool::{Audit, Session};

use super::gate::View;
use super::log_object::{log_objects, mark_logs};
use super::member::{JoinOptions, Part, Take};
use super::partitions::{Partitions, change_map_now};
use super::placement::check_placement;
use super::{Cache, Dex, DexOptions, Durability, FRAMES_MIN};
use crate::blink::BlinkOptions;
use crate::blink::remote::RemoteTree;
use crate::bnode::Layout;
use crate::index::TableReport;
use crate::{IndexError, OpenOptions};

fn remote(meta: GlobalAddr, layout: Layout) -> RemoteTree {
    RemoteTree::open(meta, layout, BlinkOptions::default())
}

impl Dex {
    /// As [`Dex::create`], with an ownership map of one partition that nobody owns, so that any compute
    /// server can join.
    pub(crate) async fn create_cut(
        session: &Session,
        layout: &Layout,
    ) -> Result<GlobalAddr, IndexError> {
        let meta = Dex::create(session, layout).await?;
        let _pin = session.begin(OpKind::Maintenance).await?;
        let remote = remote(meta, *layout);
        // An error leaves what nobody knows of, for the recovery to sweep.
        change_map_now(&remote, session, async |_| Ok(Partitions::cut(&[]))).await?;
        Ok(meta)
    }

    /// The cache that this member of the pool has of the table, or a new one that has joined it. It takes
    /// partitions on as it meets them.
    ///
    /// Cost: 3 READs for a new one.
    pub(crate) async fn open_kept(
        session: &Session,
        meta: GlobalAddr,
        layout: Layout,
        options: &OpenOptions,
    ) -> Result<Self, IndexError> {
        if let Some(cache) = session.pool().kept::<Cache>(meta) {
            return Ok(Dex(cache));
        }
        let join = JoinOptions { take: Take::Nothing, take_over: options.take_over };
        let forward = options.forward.clone();
        let new = Dex::join_with(session, meta, layout, options.dex, forward, join).await?;
        // Kept before it takes anything: what it has from then on is this cache's, whatever fails.
        let dex = Dex(session.pool().keep(meta, new.0));
        if options.take > 0 {
            let _pin = session.begin(OpKind::Maintenance).await?;
            dex.0.claim(session, None, options.take).await?;
        }
        Ok(dex)
    }

    /// As [`Dex::close`], for what [`Dex::open_kept`] has opened.
    pub(crate) async fn close_kept(&self, session: &Session) -> Result<(), IndexError> {
        self.close(session).await?;
        session.pool().let_go(self.meta(), &self.0);
        Ok(())
    }
}

/// The objects of a table beside those of its tree: the ownership map and the logs, with their bytes.
/// The caller has a pin.
///
/// Cost: 3 READs, and 1 for each log.
pub(crate) async fn extras(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
) -> Result<Vec<(GlobalAddr, usize)>, IndexError> {
    let remote = remote(meta, layout);
    let map = Cache::read_map(&remote, session).await?;
    let mut extras: Vec<_> = map.map(|map| (map.addr, map.bytes)).into_iter().collect();
    extras.append(&mut log_objects(&remote, session).await?);
    Ok(extras)
}

/// Checks a table as it lies in the pool. The caller has a pin.
///
/// Cost: 1 READ for each level of each node, 1 more for inner nodes of a placed table, and a few.
pub(crate) async fn verify_stored(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
    audit: &mut Audit,
) -> Result<TableReport, IndexError> {
    verify_remote(&remote(meta, layout), session, audit).await
}

pub(super) async fn verify_remote(
    remote: &RemoteTree,
    session: &Session,
    audit: &mut Audit,
) -> Result<TableReport, IndexError> {
    let mut report = remote.verify(session, audit).await?;
    if report.problems.is_empty() {
        report.problems = check_placement(remote, session).await?;
    }
    if let Some(map) = Cache::read_map(remote, session).await?
        && let Err(problem) = audit.mark(map.addr, map.bytes)
    {
        report.problems.push(format!("the ownership map at {}: {problem}", map.addr));
    }
    report.problems.append(&mut mark_logs(remote, session, audit).await?);
    Ok(report)
}

/// See [`crate::StoredTable::release_dead`].
pub(crate) async fn release_dead(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
) -> Result<usize, IndexError> {
    let _pin = session.begin(OpKind::Maintenance).await?;
    let Some(map) = Cache::read_map(&remote(meta, layout), session).await? else { return Ok(0) };
    let mut dead = Vec::new();
    for who in map.holders() {
        let is_other = who != session.endpoint().incarnation();
        if is_other && session.endpoint().is_dead(who).await {
            dead.push(who);
        }
    }
    if dead.is_empty() {
        return Ok(0);
    }
    let options = DexOptions {
        cache_bytes: FRAMES_MIN * layout.node_bytes() as u64,
        durability: Durability::Volatile,
        ..DexOptions::default()
    };
    let part = Part::of_view(View::new(map));
    let dex = Dex::with(meta, layout, options, Some(part))?;
    dex.0.take_placement(session.steady().word(RemoteTree::placement_word(meta)).await?);
    for who in &dead {
        dex.0.give_away(session, *who, 0).await?;
    }
    Ok(dead.len())
}

/// Refuses a table that somebody has a part of to itself. The caller has no pin.
pub(crate) async fn check_unowned(
    session: &Session,
    meta: GlobalAddr,
    layout: Layout,
) -> Result<(), IndexError> {
    let _pin = session.begin(OpKind::Other).await?;
    let map = Cache::read_map(&remote(meta, layout), session).await?;
    let me = session.endpoint().incarnation();
    match map.into_iter().flat_map(|map| map.holders()).next() {
        None => Ok(()),
        Some(who) if who == me => Err(IndexError::Invalid(
            "the table is open in this compute server: close it first".into(),
        )),
        Some(who) => Err(IndexError::Invalid(format!(
            "compute server {who} has the table open: close it there first"
        ))),
    }
}
