//! Life: one life of a compute server in a run.
//!
//! It joins the pool, runs its clients, keeps its epochs going, recovers the dead, and leaves.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::{AnyIndex, recover};
use farleaf_fabric::sim::SimFabric;
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, ListenConfig};
use farleaf_harness::join;
use farleaf_index::compute::number_of;
use farleaf_index::{Index, IndexError};
use farleaf_pool::{PoolError, Session};

use super::client::{Client, CutOff, tick};
use super::outcome::Failure;
use super::record::RunShared;

/// Time between two rounds of maintenance.
const MAINTENANCE_NS: u64 = 60_000;
/// Attempts to join, and to leave.
const ATTEMPTS: usize = 200;
/// Looks whether its last work for others has ended: a request may wait for a cut link.
const LEAVE_LOOKS: usize = 20_000;
const ATTEMPT_NS: u64 = 100_000;

/// Stage of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its clients work.
    Works,
    /// They have finished; it leaves the pool.
    Leaves,
    /// It has left.
    Done,
    /// It was cut off.
    CutOff,
    /// It was killed.
    Dead,
}

/// State that the driver and a life's tasks share.
pub(super) struct LifeState {
    pub(super) stage: Cell<Stage>,
    /// Clients that work.
    working: Cell<usize>,
    is_cut_off: Cell<bool>,
}

impl LifeState {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(LifeState {
            stage: Cell::new(Stage::Works),
            working: Cell::new(0),
            is_cut_off: Cell::new(false),
        })
    }
}

/// Runs one life; `clients` are the numbers of its clients, each with an endpoint.
pub(super) async fn live(
    shared: Rc<RunShared>,
    state: Rc<LifeState>,
    fabric: SimFabric,
    endpoint: AnyEndpoint,
    clients: Vec<(usize, AnyEndpoint)>,
) {
    let ended = try_live(&shared, &state, &fabric, endpoint, clients).await;
    state.stage.set(match ended {
        Ok(()) => Stage::Done,
        Err(CutOff) => Stage::CutOff,
    });
}

async fn try_live(
    shared: &Rc<RunShared>,
    state: &Rc<LifeState>,
    fabric: &SimFabric,
    endpoint: AnyEndpoint,
    clients: Vec<(usize, AnyEndpoint)>,
) -> Result<(), CutOff> {
    let joined = insist(shared, &endpoint, "join", async || Ok(join(endpoint.clone()).await?));
    let Some(maintenance) = joined.await? else { return Ok(()) };
    let number = number_of(maintenance.pool().member());
    let expose_bytes = shared.scenario.expose_kib << 10;
    if let Err(error) = fabric.expose(number, expose_bytes, &ListenConfig::default()) {
        shared.fail(Failure::Setup(error.to_string()));
        return Ok(());
    }
    if expose_bytes > 0 {
        let published = insist(shared, &endpoint, "publish its memory", async || {
            Ok(maintenance.publish_region(expose_bytes).await?)
        });
        if published.await?.is_none() {
            return Ok(());
        }
    }
    let opened =
        insist(shared, &endpoint, "open", async || shared.table.open(&maintenance, true).await);
    let Some(index) = opened.await? else { return Ok(()) };
    let is_over = Rc::new(Cell::new(false));
    let serving = insist(shared, &endpoint, "serve others", async || {
        let on_cut_off = {
            let state = Rc::clone(state);
            move || state.is_cut_off.set(true)
        };
        let sessions = async || Ok(maintenance.pool().session(endpoint.clone()).await?);
        shared.table.serve(shared, &index, &is_over, on_cut_off, sessions).await
    });
    if serving.await?.is_none() {
        return Ok(());
    }
    for (number, endpoint) in clients {
        if shared.left[number].borrow().is_empty() {
            continue;
        }
        let pool = Arc::clone(maintenance.pool());
        let opened = insist(shared, &endpoint, "open a session", async || {
            Ok(pool.session(endpoint.clone()).await?)
        });
        let Some(session) = opened.await? else { return Ok(()) };
        state.working.set(state.working.get() + 1);
        let client = Client {
            id: shared.new_client(),
            shared: Rc::clone(shared),
            number,
            session,
            index: index.clone(),
            known: BTreeMap::new(),
        };
        let state = Rc::clone(state);
        endpoint.spawn(async move {
            let ended = client.work().await;
            state.is_cut_off.set(state.is_cut_off.get() || ended.is_err());
            state.working.set(state.working.get() - 1);
        });
    }
    while state.working.get() > 0 {
        maintain(shared, state, &maintenance).await?;
        endpoint.sleep(MAINTENANCE_NS).await;
    }
    state.stage.set(Stage::Leaves);
    is_over.set(true);
    endpoint.leave().await;
    leave(shared, state, &maintenance, &index).await
}

/// One round of maintenance.
async fn maintain(
    shared: &Rc<RunShared>,
    state: &LifeState,
    maintenance: &Session,
) -> Result<(), CutOff> {
    if state.is_cut_off.get() {
        return Err(CutOff);
    }
    tick(shared, maintenance).await?;
    if maintenance.pool().needs_recovery() {
        take_over(shared, maintenance).await?;
    }
    Ok(())
}

/// Recovers the dead, if there are any.
pub(super) async fn take_over(shared: &RunShared, session: &Session) -> Result<bool, CutOff> {
    match recover(session).await {
        Ok(None) => Ok(false),
        Ok(Some(recovered)) => {
            shared.count(|stats| stats.recovered += recovered.members as u64);
            if let Some(problem) = recovered.problems.first() {
                shared.fail(Failure::Recovery(problem.clone()));
            }
            Ok(true)
        }
        Err(IndexError::Closed(_)) => Err(CutOff),
        Err(IndexError::Unavailable(_)) => Ok(false),
        Err(error) => {
            shared.fail(Failure::Recovery(error.to_string()));
            Ok(false)
        }
    }
}

/// Closes the table and leaves the pool. Tasks of given-up operations may delay it for a while.
async fn leave(
    shared: &Rc<RunShared>,
    state: &LifeState,
    maintenance: &Session,
    index: &AnyIndex,
) -> Result<(), CutOff> {
    // Its own, and that which keeps up with partitions until the table is closed.
    let lasting = 1 + usize::from(index.partitions().is_some());
    for _ in 0..LEAVE_LOOKS {
        // A task that still works for others, or moves a range, has a session.
        if maintenance.pool().sessions() <= lasting {
            break;
        }
        maintain(shared, state, maintenance).await?;
        maintenance.endpoint().sleep(ATTEMPT_NS).await;
    }
    let mut why = String::new();
    let mut is_open = true;
    for _ in 0..ATTEMPTS {
        maintain(shared, state, maintenance).await?;
        if is_open {
            match index.close(maintenance).await {
                Ok(()) => is_open = false,
                Err(IndexError::Closed(_)) => return Err(CutOff),
                Err(IndexError::Corrupt(why)) => {
                    shared.fail(Failure::Corrupt(format!("close: {why}")));
                    return Ok(());
                }
                Err(error) => why = error.to_string(),
            }
        }
        if is_open {
            maintenance.endpoint().sleep(ATTEMPT_NS).await;
            continue;
        }
        match maintenance.leave().await {
            Ok(()) => return Ok(()),
            Err(PoolError::Corrupt(why)) => {
                shared.fail(Failure::Corrupt(format!("leave: {why}")));
                return Ok(());
            }
            Err(PoolError::Closed) => return Err(CutOff),
            Err(error) => match IndexError::from(error) {
                IndexError::Closed(_) => return Err(CutOff),
                error => why = error.to_string(),
            },
        }
        maintenance.endpoint().sleep(ATTEMPT_NS).await;
    }
    shared.fail(Failure::Stuck(format!("a compute server could not leave the pool: {why}")));
    Ok(())
}

/// Tries again after failures of the fabric. `None` after a failure of the run.
async fn insist<T>(
    shared: &RunShared,
    endpoint: &AnyEndpoint,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, IndexError>,
) -> Result<Option<T>, CutOff> {
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        match attempt().await {
            Ok(done) => return Ok(Some(done)),
            Err(IndexError::Closed(_)) => return Err(CutOff),
            Err(IndexError::Corrupt(why)) => {
                shared.fail(Failure::Corrupt(format!("{what}: {why}")));
                return Ok(None);
            }
            Err(error) => why = error.to_string(),
        }
        if shared.stop.get() {
            return Ok(None);
        }
        endpoint.sleep(ATTEMPT_NS).await;
    }
    shared.fail(Failure::Stuck(format!("cannot {what}: {why}")));
    Ok(None)
}
