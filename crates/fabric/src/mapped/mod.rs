//! Mapped fabric: maps the pool into this process, as anonymous memory or as files of many processes.
//!
//! Operations are word-wise atomic loads and stores. They happen at the first poll, without a server
//! process. An RPC's handler runs in the caller. The fabric claims only the capabilities that word-wise
//! access gives on any processor: a process may die between any two words.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "processes that share a pool must draw different incarnations"
)]

mod calls;
mod endpoint;
mod folder;
mod regions;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use calls::{LocalPeer, MappedCalls, PeerRegion, Receivers};
pub use endpoint::MappedEndpoint;
pub use folder::CreateGuard;
use folder::Folder;
use waits::DescriptorWait;

use crate::calls::{CallLink, check_exposed, exposed_twice, region_words};
use crate::sync::lock;
use crate::{
    Capabilities, Counters, Executor, Exposed, Fabric, FabricError, Incarnation, ListenConfig,
    Peer, ServerId, Service, ServiceId, Words,
};

/// Least bytes of a region.
pub const REGION_BYTES_MIN: u64 = 64 << 10;

/// Memory servers mapped into this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Mapped(Arc<MappedShared>);

pub(crate) struct MappedShared {
    regions: Arc<[Words]>,
    incarnation: Incarnation,
    standing: Standing,
    services: Services,
    counters: Mutex<Vec<Arc<Counters>>>,
    calls: Arc<MappedCalls>,
}

type Services = Arc<RwLock<BTreeMap<ServiceId, Arc<dyn Service>>>>;

/// Way in which compute servers learn of each other.
enum Standing {
    /// By locked files.
    Folder(Folder),
    /// By lists, as all are of this process.
    Process(Arc<Process>),
}

/// The compute servers of one process.
#[derive(Default)]
struct Process {
    alive: Mutex<BTreeSet<Incarnation>>,
    /// Their queues of calls, and their regions.
    receivers: Receivers,
}

/// Promises of word-wise access by this and other processes.
const CAPABILITIES: Capabilities = Capabilities {
    // Word stores and locked instructions on one word are atomic against each other.
    write_vs_rmw: true,
    rmw_global: true,
    cpu_visible: true,
    native_atomics: true,
    needs_target_progress: false,
    ..Capabilities::NONE
};

impl Mapped {
    /// `servers` memory servers of `region_bytes` each in anonymous memory, which the system
    /// commits page by page as it is first touched.
    ///
    /// # Errors
    /// [`FabricError::Config`] for a nonsense size, [`FabricError::NoMemory`] if the address space
    /// cannot be had.
    pub fn anonymous(servers: usize, region_bytes: u64) -> Result<Self, FabricError> {
        check_geometry(servers, region_bytes)?;
        Self::anonymous_of(&vec![region_bytes; servers])
    }

    /// As [`Mapped::anonymous`], with memory servers of these sizes in bytes.
    ///
    /// # Errors
    /// As [`Mapped::anonymous`].
    pub fn anonymous_of(sizes: &[u64]) -> Result<Self, FabricError> {
        let regions = (0..)
            .zip(sizes)
            .map(|(server, &bytes)| {
                check_geometry(sizes.len(), bytes)?;
                let no_memory = FabricError::NoMemory { bytes, server: ServerId(server) };
                Words::anonymous((bytes / 8) as usize).ok_or(no_memory)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self::alone(regions, Arc::default(), Services::default()))
    }

    /// Adds a compute server of this process on the same memory servers. Its life ends when its clones and
    /// endpoints are gone.
    ///
    /// # Errors
    /// As [`Mapped::open`], if the memory lies in a folder.
    pub fn beside(&self) -> Result<Self, FabricError> {
        match &self.0.standing {
            Standing::Folder(folder) => Self::open(folder.path()),
            Standing::Process(process) => {
                let (regions, process) = (Arc::clone(&self.0.regions), Arc::clone(process));
                Ok(Self::alone(regions, process, Arc::clone(&self.0.services)))
            }
        }
    }

    /// Makes a pool folder with one file per memory server, for several processes on this machine.
    /// Nobody else can open it before the guard is dropped: format it first.
    ///
    /// All space of the files is reserved, so that a file system that fills up does no harm later.
    ///
    /// # Errors
    /// [`FabricError::NoSpace`] if there is too little space; others if the folder is in use or not empty, or the
    /// system refuses. The files made so far are removed again.
    pub fn create(
        path: &Path,
        servers: usize,
        region_bytes: u64,
    ) -> Result<(Self, CreateGuard), FabricError> {
        Self::create_in(path, servers, region_bytes, true)
    }

    /// As [`Mapped::create`], with files that take space only as it is used. If their file system is full then,
    /// the system ends every process that touches new space, whether it reads or writes (SIGBUS).
    ///
    /// # Errors
    /// As [`Mapped::create`].
    pub fn create_unreserved(
        path: &Path,
        servers: usize,
        region_bytes: u64,
    ) -> Result<(Self, CreateGuard), FabricError> {
        Self::create_in(path, servers, region_bytes, false)
    }

    fn create_in(
        path: &Path,
        servers: usize,
        region_bytes: u64,
        is_reserved: bool,
    ) -> Result<(Self, CreateGuard), FabricError> {
        check_geometry(servers, region_bytes)?;
        let incarnation = Incarnation(new_number());
        let (folder, regions, guard) =
            Folder::create(path, servers, region_bytes, is_reserved, incarnation)?;
        Ok((Self::over(regions, incarnation, Standing::Folder(folder), Services::default()), guard))
    }

    /// Opens the pool folder at `path`, as one more process. Reserves the space that its files lack, unless it
    /// was made without.
    ///
    /// # Errors
    /// [`FabricError::NotAPool`] if it is no pool folder; [`FabricError::Damaged`] if a file is cut
    /// short in a way that shows in its length; [`FabricError::Io`] if the system refuses.
    pub fn open(path: &Path) -> Result<Self, FabricError> {
        let incarnation = Incarnation(new_number());
        let (folder, regions) = Folder::open(path, incarnation)?;
        Ok(Self::over(regions, incarnation, Standing::Folder(folder), Services::default()))
    }

    /// Removes the pool's files if this process has made them and no other process has ever opened the pool;
    /// returns whether it has. The pool can be used here until its end, and found by nobody.
    ///
    /// # Errors
    /// [`FabricError::Io`] if the system refuses; some of the files may then be gone, and nobody can open the rest.
    pub fn remove_if_unused(&self) -> Result<bool, FabricError> {
        match &self.0.standing {
            Standing::Folder(folder) => folder.remove_if_unused(),
            Standing::Process(_) => Ok(false),
        }
    }

    fn alone(regions: Arc<[Words]>, process: Arc<Process>, services: Services) -> Self {
        let incarnation = Incarnation(new_number());
        lock(&process.alive).insert(incarnation);
        let mapped = Self::over(regions, incarnation, Standing::Process(process), services);
        if let Standing::Process(process) = &mapped.0.standing {
            let requests = Arc::clone(&mapped.0.calls.requests);
            lock(&process.receivers).insert(incarnation, LocalPeer { requests, region: None });
        }
        mapped
    }

    fn over(
        regions: impl Into<Arc<[Words]>>,
        incarnation: Incarnation,
        standing: Standing,
        services: Services,
    ) -> Self {
        let (regions, counters, calls) = (regions.into(), Mutex::default(), Arc::default());
        Mapped(Arc::new(MappedShared { regions, incarnation, standing, services, counters, calls }))
    }
}

impl Mapped {
    /// As [`Fabric::endpoint`], for a thread that waits for descriptors as well ([`Executor::watch`]). Two descriptors
    /// more.
    ///
    /// # Errors
    /// The system's.
    pub fn watching_endpoint(&self) -> Result<MappedEndpoint, FabricError> {
        let failed = FabricError::io("wait for sockets of", Path::new("this thread"));
        let waits = DescriptorWait::new().map_err(failed)?;
        Ok(self.endpoint_on(Executor::with_driver(Rc::new(waits))))
    }

    fn endpoint_on(&self, executor: Executor) -> MappedEndpoint {
        let counters = Counters::new(self.0.regions.len());
        let mut all = lock(&self.0.counters);
        let seed = self.0.incarnation.0 ^ (all.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = all.len() as u64;
        all.push(Arc::clone(&counters));
        MappedEndpoint::new(Arc::clone(&self.0), counters, seed, number, executor)
    }
}

impl Fabric for Mapped {
    type Endpoint = MappedEndpoint;

    fn endpoint(&self) -> Result<MappedEndpoint, FabricError> {
        Ok(self.endpoint_on(Executor::new()))
    }

    fn name(&self) -> &'static str {
        "mapped"
    }

    fn serve(&self, id: ServiceId, service: Arc<dyn Service>) {
        self.0.services.write().unwrap_or_else(PoisonError::into_inner).insert(id, service);
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        lock(&self.0.counters).clone()
    }

    /// Compute servers of one process reach each other's queues and memory. Those of a folder also listen at
    /// a socket in it, and expose a file.
    fn expose(
        &self,
        number: ServerId,
        bytes: u64,
        _listen: &ListenConfig,
    ) -> Result<Option<Exposed>, FabricError> {
        check_exposed(number, bytes)?;
        let region = self.0.make_region(number, bytes)?;
        let folder = self.0.folder();
        let exposed = self.0.calls.expose(number, region.clone(), self.0.incarnation, folder);
        match (&exposed, &self.0.standing) {
            (Ok(()), Standing::Process(process)) => {
                if let Some(peer) = lock(&process.receivers).get_mut(&self.0.incarnation) {
                    peer.region = region;
                }
            }
            (Err(_), Standing::Folder(folder)) if self.0.calls.own.get().is_none() => {
                regions::remove(folder.path(), self.0.incarnation);
            }
            _ => {}
        }
        exposed.map(|()| None)
    }
}

impl MappedShared {
    /// Folder of the pool's files, if it has some.
    fn folder(&self) -> Option<&Arc<Path>> {
        match &self.standing {
            Standing::Folder(folder) => Some(folder.path()),
            Standing::Process(_) => None,
        }
    }

    /// A link to a peer, in the place of the connection that `number` names; `None` if it has ended.
    fn link(&self, peer: Peer, number: Arc<AtomicU64>) -> Option<Arc<CallLink>> {
        match &self.standing {
            Standing::Folder(folder) => {
                calls::connect(folder.path(), self.incarnation, peer, number)
            }
            Standing::Process(process) => {
                let receiver = lock(&process.receivers).get(&peer.incarnation)?.requests.clone();
                Some(CallLink::new(self.incarnation, peer.incarnation, Some(receiver)))
            }
        }
    }

    /// See [`crate::Endpoint::fence`], at a compute server: `who` is dead.
    fn fence_at(&self, peer: Peer, who: Incarnation) {
        if let Standing::Process(process) = &self.standing
            && let Some(receiver) = lock(&process.receivers).get(&peer.incarnation)
        {
            receiver.requests.fence(who);
        }
    }

    /// Memory for this compute server's region; `None` for 0 bytes.
    fn make_region(&self, number: ServerId, bytes: u64) -> Result<Option<Arc<Words>>, FabricError> {
        match &self.standing {
            Standing::Folder(folder) if bytes > 0 => {
                // A second call must leave the first one's file alone.
                if self.calls.requests.is_open() || self.calls.own.get().is_some() {
                    return Err(exposed_twice());
                }
                regions::create(folder.path(), self.incarnation, bytes).map(Some)
            }
            _ => region_words(number, bytes),
        }
    }

    /// Returns whether any compute server may have exposed memory.
    fn may_meet_regions(&self) -> bool {
        match &self.standing {
            Standing::Folder(folder) => regions::may_exist(folder.path()),
            Standing::Process(process) => {
                lock(&process.receivers).values().any(|peer| peer.region.is_some())
            }
        }
    }

    /// Memory that the number of a compute server stands for.
    fn peer_region(&self, server: ServerId) -> PeerRegion {
        self.calls.region(server, self.incarnation, |peer| match &self.standing {
            Standing::Folder(folder) => regions::open(folder.path(), peer),
            Standing::Process(process) => {
                lock(&process.receivers).get(&peer.incarnation)?.region.clone()
            }
        })
    }

    fn region(&self, server: ServerId) -> Option<&Words> {
        self.regions.get(server.index())
    }

    fn is_dead(&self, who: Incarnation) -> bool {
        if who == self.incarnation {
            return false;
        }
        match &self.standing {
            Standing::Folder(folder) => folder.is_dead(who),
            Standing::Process(process) => !lock(&process.alive).contains(&who),
        }
    }
}

impl Drop for MappedShared {
    fn drop(&mut self) {
        self.calls.end();
        match &self.standing {
            Standing::Process(process) => {
                lock(&process.receivers).remove(&self.incarnation);
                lock(&process.alive).remove(&self.incarnation);
            }
            Standing::Folder(folder) if self.calls.own.get().is_some() => {
                regions::remove(folder.path(), self.incarnation);
            }
            Standing::Folder(_) => {}
        }
    }
}

impl std::fmt::Debug for MappedShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} memory servers", self.regions.len())?;
        match &self.standing {
            Standing::Folder(folder) => write!(f, ", {folder:?}"),
            Standing::Process(_) => write!(f, " of this process"),
        }
    }
}

/// Refuses a number of servers or a region's size that no pool has.
pub(crate) fn check_geometry(servers: usize, region_bytes: u64) -> Result<(), FabricError> {
    check_servers(servers)?;
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

/// Refuses a number of servers that no pool has.
pub(crate) fn check_servers(servers: usize) -> Result<(), FabricError> {
    if servers == 0 || servers > ServerId::COMPUTE_FIRST.index() {
        return Err(FabricError::Config(format!(
            "{servers} memory servers: a pool has 1 to {}",
            ServerId::COMPUTE_FIRST
        )));
    }
    Ok(())
}

/// A number that no other life of a compute server, and no other region, has had. The only randomness in
/// this crate that does not come from a seed: two processes must never agree.
pub(crate) fn new_number() -> u64 {
    RandomState::new().hash_one(std::process::id()) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, GlobalAddr};

    #[test]
    fn compute_servers_of_one_process_share_memory_and_see_each_other_die() {
        let one = Mapped::anonymous(2, REGION_BYTES_MIN).expect("memory");
        let two = one.beside().expect("another");
        let (one_end, two_end) = (one.endpoint().expect("one"), two.endpoint().expect("two"));
        let (first, second) = (one_end.incarnation(), two_end.incarnation());
        assert_ne!(first, second);
        let addr = GlobalAddr::new(ServerId(1), 4096);
        one_end.executor().block_on(async {
            assert_eq!(one_end.cas(addr, 0, 42).await, Ok(0));
            assert!(!one_end.is_dead(second).await);
            assert!(one_end.fence(ServerId(0), second).await.is_err(), "the living are not fenced");
        });
        drop((one, two));
        two_end.executor().block_on(async {
            assert_eq!(two_end.cas(addr, 42, 43).await, Ok(42));
            assert!(!two_end.is_dead(first).await, "its endpoint lives");
        });
        drop(one_end);
        two_end.executor().block_on(async {
            assert!(two_end.is_dead(first).await);
            assert_eq!(two_end.fence(ServerId(0), first).await, Ok(()));
            assert!(two_end.is_dead(Incarnation(7)).await, "nobody has ever had that life");
        });
    }
}
