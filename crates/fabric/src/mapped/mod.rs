//! The pool mapped into this process: anonymous memory, or files that several processes share.
//!
//! Operations are word-wise atomic loads and stores; they are done when first polled and no server
//! process takes part. An RPC's handler runs in the caller. Of the capabilities only those hold
//! that word-wise access gives on any processor: a process may be killed between any two words.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "processes that share a pool must draw different incarnations"
)]

mod endpoint;
mod folder;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use endpoint::MappedEndpoint;
pub use folder::CreateGuard;
use folder::Folder;
pub(crate) use folder::check_space;

use crate::{
    Capabilities, Counters, Fabric, FabricError, Incarnation, ServerId, Service, ServiceId, Words,
};

/// Least bytes of a region.
pub const REGION_BYTES_MIN: u64 = 64 << 10;

/// Memory servers mapped into this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Mapped(Arc<Shared>);

pub(crate) struct Shared {
    regions: Vec<Words>,
    incarnation: Incarnation,
    folder: Option<Folder>,
    services: RwLock<BTreeMap<ServiceId, Arc<dyn Service>>>,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl Mapped {
    /// `servers` memory servers of `region_bytes` each in anonymous memory, which the system
    /// commits page by page as it is first touched.
    ///
    /// # Errors
    /// [`FabricError::Config`] for a nonsense size, [`FabricError::NoMemory`] if the address space
    /// cannot be had.
    pub fn anonymous(servers: usize, region_bytes: u64) -> Result<Self, FabricError> {
        check_geometry(servers, region_bytes)?;
        let regions = (0..servers)
            .map(|server| {
                let server = ServerId(server as u16);
                Words::anonymous((region_bytes / 8) as usize)
                    .ok_or(FabricError::NoMemory { bytes: region_bytes, server })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self::over(regions, new_incarnation(), None))
    }

    /// Makes a pool folder with one file per memory server, for several processes on this machine.
    /// Nobody else can open it before the guard is dropped: format it first.
    ///
    /// # Errors
    /// [`FabricError`]: the folder is in use or not empty, there is too little space, or the
    /// system refuses. What was made is removed again.
    pub fn create(
        path: &Path,
        servers: usize,
        region_bytes: u64,
    ) -> Result<(Self, CreateGuard), FabricError> {
        check_geometry(servers, region_bytes)?;
        let incarnation = new_incarnation();
        let (folder, regions, guard) = Folder::create(path, servers, region_bytes, incarnation)?;
        Ok((Self::over(regions, incarnation, Some(folder)), guard))
    }

    /// Opens the pool folder at `path`, as one more process.
    ///
    /// # Errors
    /// [`FabricError::NotAPool`] if it is no pool folder; [`FabricError::Damaged`] if a file is cut
    /// short in a way that shows in its length; [`FabricError::Io`] if the system refuses.
    pub fn open(path: &Path) -> Result<Self, FabricError> {
        let incarnation = new_incarnation();
        let (folder, regions) = Folder::open(path, incarnation)?;
        Ok(Self::over(regions, incarnation, Some(folder)))
    }

    fn over(regions: Vec<Words>, incarnation: Incarnation, folder: Option<Folder>) -> Self {
        let (services, counters) = Default::default();
        Mapped(Arc::new(Shared { regions, incarnation, folder, services, counters }))
    }
}

impl Fabric for Mapped {
    type Endpoint = MappedEndpoint;

    fn endpoint(&self) -> Result<MappedEndpoint, FabricError> {
        let counters = Counters::new(self.0.regions.len());
        let mut all = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = self.0.incarnation.0 ^ (all.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        all.push(Arc::clone(&counters));
        Ok(MappedEndpoint::new(Arc::clone(&self.0), counters, seed))
    }

    fn name(&self) -> &'static str {
        "mapped"
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.0.services.write().unwrap_or_else(PoisonError::into_inner).insert(id, service);
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        self.0.counters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Shared {
    fn region(&self, server: ServerId) -> Option<&Words> {
        self.regions.get(server.index())
    }

    /// What word-wise access by this and other processes gives.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Word stores and locked instructions on one word are atomic against each other.
            write_vs_rmw: true,
            rmw_global: true,
            cpu_visible: true,
            native_atomics: true,
            needs_target_progress: false,
            ..Capabilities::NONE
        }
    }

    fn is_dead(&self, who: Incarnation) -> bool {
        who != self.incarnation && self.folder.as_ref().is_none_or(|folder| folder.is_dead(who))
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} memory servers, {:?}", self.regions.len(), self.folder)
    }
}

/// Refuses a number of servers or a region's size that no pool has.
pub(crate) fn check_geometry(servers: usize, region_bytes: u64) -> Result<(), FabricError> {
    if servers == 0 || servers > usize::from(ServerId::MAX.0) {
        return Err(FabricError::Config(format!(
            "{servers} memory servers: a pool has 1 to {}",
            ServerId::MAX
        )));
    }
    if region_bytes < REGION_BYTES_MIN
        || !region_bytes.is_multiple_of(4096)
        || region_bytes > crate::GlobalAddr::OFFSET_MAX
    {
        return Err(FabricError::Config(format!(
            "a region of {region_bytes} bytes: it takes a multiple of 4096, at least {REGION_BYTES_MIN}"
        )));
    }
    Ok(())
}

/// A number that no other life of a compute server has had. The only randomness in this crate that
/// does not come from a seed: two processes must never agree.
fn new_incarnation() -> Incarnation {
    let random = RandomState::new().hash_one(std::process::id());
    Incarnation(random | 1)
}
