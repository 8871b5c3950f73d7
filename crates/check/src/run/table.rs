//! Run table: opens a run's table on each compute server, and runs the tasks of partitioned engines.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::{AnyIndex, Engine, StoredTable};
use farleaf_fabric::Endpoint;
use farleaf_index::compute::{Host, MoveError, OwnedTable, RangeCalls, sampled};
use farleaf_index::knobs::DURABILITY;
use farleaf_index::{Index, IndexError, OpenOptions, Settings};
use farleaf_pool::{Root, Session};
use fastrand::Rng;

use super::outcome::Failure;
use super::record::RunShared;
use super::steps::Steps;
use crate::scenario::{Scenario, mix};

/// The table's name.
pub(super) const TABLE: &str = "t";
/// Tasks that run operations of other compute servers.
const SERVERS: usize = 2;
/// Time between two rounds of the regular work of a table with partitions.
const TICK_NS: u64 = 60_000;
/// Time between two moves of a compute server.
const MOVE_NS: u64 = 250_000;

/// The setup of a run's table that its compute servers agree on. Follows from the seed.
#[derive(Debug)]
pub(super) struct TableSetup {
    engine: Engine,
    settings: Settings,
    /// Partitions of the table at first.
    partitions: usize,
    /// True if each compute server takes its share when it joins, false if it takes what is free.
    shares: bool,
    /// True if compute servers give ranges away.
    moves: bool,
    /// Operations on keys that nobody owns which a compute server does before it takes such keys.
    guest_operations: u64,
    /// Bounds of partitions, drawn from the keys.
    keys: Vec<Vec<u8>>,
}

impl TableSetup {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut rng = Rng::with_seed(mix(scenario.seed, 0x7ab1e));
        let several = scenario.compute_servers > 1;
        let most = if several { 2 * scenario.compute_servers } else { 2 };
        TableSetup {
            engine: scenario.engine,
            settings: scenario.settings.clone(),
            partitions: rng.usize(1..=most),
            // Not with so little room that a log may find none.
            shares: scenario.region_kib >= 4 << 10 && rng.bool(),
            moves: several && rng.bool(),
            guest_operations: [0, 0, 0, 4, 40, 1000][rng.usize(..6)],
            keys: Steps::new(scenario).keys(),
        }
    }

    /// Opens the table, for a compute server that serves others or, alone at the end, does not.
    pub(super) async fn open(
        &self,
        session: &Session,
        serves: bool,
    ) -> Result<AnyIndex, IndexError> {
        let root = session.open_root(TABLE).await?;
        // The observer writes nothing that must last, and needs no room for a log.
        let settings = match serves {
            true => self.settings.clone(),
            false => self.settings.clone().with(DURABILITY, "volatile"),
        };
        let options = OpenOptions {
            settings: self.engine.options_of(&settings),
            take: usize::from(serves && self.shares),
            take_over: true,
            guest_operations: self.guest_operations,
            calls: serves,
        };
        AnyIndex::open(session, &root, &options).await
    }

    /// Marks the table as made and filled, so that compute servers can open it.
    pub(super) async fn hand_over(
        &self,
        session: &Session,
        root: &Root,
        index: AnyIndex,
        aged: bool,
    ) -> Result<(), IndexError> {
        match index.owned() {
            Some(table) if self.partitions > 1 => {
                table.partition(session, &sampled(&self.keys, self.partitions)).await?;
            }
            _ => index.close(session).await?,
        }
        if aged {
            StoredTable::of(root)?.age(session).await?;
        }
        Ok(())
    }

    /// Lets a compute server do its part for the others until it leaves ([`Endpoint::leave`]); `sessions`
    /// gives each task a session of its own.
    ///
    /// # Errors
    /// Those of `sessions`.
    pub(super) async fn serve(
        &self,
        shared: &Rc<RunShared>,
        index: &AnyIndex,
        is_over: &Rc<Cell<bool>>,
        on_cut_off: impl Fn() + Clone + 'static,
        mut sessions: impl AsyncFnMut() -> Result<Session, IndexError>,
    ) -> Result<(), IndexError> {
        if index.partitions().is_some() {
            // Until it has left the table: others wait for its acknowledgements.
            let (session, index, shared) = (sessions().await?, index.clone(), Rc::clone(shared));
            session.endpoint().clone().spawn(async move {
                let Some(table) = index.partitions() else { return };
                while !shared.stop.get() {
                    if let Err(IndexError::Closed(_)) = table.tick(&session).await {
                        return;
                    }
                    session.endpoint().sleep(TICK_NS).await;
                }
            });
        }
        if index.owned().is_none() {
            return Ok(());
        }
        let host: Arc<Host<AnyIndex>> = Arc::default();
        host.add(index.clone());
        for _ in 0..SERVERS {
            let (session, on_cut_off) = (sessions().await?, on_cut_off.clone());
            let endpoint = session.endpoint().clone();
            let serving = Arc::clone(&host).serve(session);
            endpoint.spawn(async move {
                if serving.await.is_err() {
                    on_cut_off();
                }
            });
        }
        if self.moves {
            let (session, index) = (sessions().await?, index.clone());
            let (shared, is_over) = (Rc::clone(shared), Rc::clone(is_over));
            session.endpoint().clone().spawn(async move {
                let Some(table) = index.owned() else { return };
                while !is_over.get() && !shared.stop.get() {
                    shared.table.move_some(&shared, &session, table).await;
                    session.endpoint().sleep(MOVE_NS + session.endpoint().random() % MOVE_NS).await;
                }
            });
        }
        Ok(())
    }

    /// Gives some range to somebody, as far as that is possible now.
    async fn move_some(&self, shared: &RunShared, session: &Session, table: &dyn OwnedTable) {
        let endpoint = session.endpoint();
        let random = |below: usize| (endpoint.random() % below.max(1) as u64) as usize;
        let (_, bounds, _) = table.known_map();
        // Some of them are leaving, or dead.
        let members = session.members().await.unwrap_or_default();
        let (Some(key), Some(to)) =
            (self.keys.get(random(self.keys.len())), members.get(random(members.len())))
        else {
            return;
        };
        let number = bounds.partition_point(|bound| bound < key);
        let low = number.checked_sub(1).map(|before| bounds[before].as_slice());
        let high = bounds.get(number).map(Vec::as_slice);
        // The keys below the chosen one, those above it, or all of the partition.
        let (low, high) = match random(3) {
            0 => (low, Some(key.as_slice())),
            1 => (Some(key.as_slice()), high),
            _ => (low, high),
        };
        let moved = table.move_range(session, low, high, to.incarnation).await;
        match moved {
            Ok(_) => shared.count(|stats| stats.moved += 1),
            Err(MoveError::Index(error @ (IndexError::Corrupt(_) | IndexError::Invalid(_)))) => {
                shared.fail(Failure::Corrupt(format!("a move of a range: {error}")));
            }
            Err(_) => {}
        }
    }
}
