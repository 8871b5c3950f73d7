//! Endpoint parts: keep what the endpoints of all fabrics have of their own thread.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::calls::{OwnRegion, PeerCalls};
use crate::raw::SlabRef;
use crate::{Capabilities, Counters, Executor, Incarnation};

/// The region of one compute server. Its threads share the cell, since the server may expose memory after
/// they have begun.
pub(crate) type OwnRegionCell = Arc<OnceLock<OwnRegion>>;

/// The parts of an endpoint that belong to its thread, see [`crate::Endpoint::local`].
pub struct Local {
    pub(crate) pool: PoolFacts,
    pub(crate) counters: Arc<Counters>,
    pub(crate) slab: SlabRef,
    pub(crate) rng: RefCell<fastrand::Rng>,
    /// `None` in the simulator.
    real_time: Option<RealTime>,
}

/// Facts of one life of a compute server and of its pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolFacts {
    pub(crate) incarnation: Incarnation,
    pub(crate) capabilities: Capabilities,
    /// Bytes that each memory server exposes.
    pub(crate) region_bytes: Vec<u64>,
    /// Memory that this compute server exposes.
    pub(crate) own: OwnRegionCell,
}

struct RealTime {
    // Dropped before the executor, which may be the last holder of the fabric.
    calls: Arc<dyn PeerCalls>,
    executor: Executor,
}

impl Local {
    /// The parts of a simulated thread.
    pub(crate) fn simulated(
        pool: PoolFacts,
        counters: Arc<Counters>,
        slab: SlabRef,
        seed: u64,
    ) -> Self {
        let rng = RefCell::new(fastrand::Rng::with_seed(seed));
        Local { pool, counters, slab, rng, real_time: None }
    }

    /// The parts of a thread whose tasks run on `executor`.
    pub(crate) fn new(
        pool: PoolFacts,
        counters: Arc<Counters>,
        slab: SlabRef,
        seed: u64,
        executor: Executor,
        calls: Arc<dyn PeerCalls>,
    ) -> Self {
        let real_time = Some(RealTime { calls, executor });
        Local { real_time, ..Local::simulated(pool, counters, slab, seed) }
    }

    fn real_time(&self) -> &RealTime {
        let real_time = self.real_time.as_ref();
        real_time.expect("the simulator runs tasks itself: use `Sim::block_on`")
    }

    /// See [`crate::Endpoint::seed`].
    pub(crate) fn seed(&self, seed: u64) {
        self.real_time();
        self.rng.borrow_mut().seed(seed);
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.real_time().executor
    }

    pub(crate) fn calls(&self) -> &dyn PeerCalls {
        &*self.real_time().calls
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local({:?})", self.slab)
    }
}
