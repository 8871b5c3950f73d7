//! Leases: keep the directory entries of a process alive for as long as it runs.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::Incarnation;

use crate::directory::to_json;
use crate::etcd::LeaseId;
use crate::record::{CoordinatorRecord, Snapshot, parse};
use crate::{ClusterError, ComputeRecord, Directory, MemoryRecord};

/// Time after which etcd removes the entry of a silent holder. etcd takes up to a second more.
pub const LEASE: Duration = Duration::from_secs(3);
/// Time between two renewals of a lease, if its holder calls more often than that.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Age from which a registered compute server stands for election, so that short-lived ones do not.
const STAND_AFTER: Duration = Duration::from_secs(1);
/// Time that a memory server waits for the entry of a possibly dead one to expire, and time between tries.
const TAKE_TIME: Duration = Duration::from_secs(6);
const TAKE_EVERY: Duration = Duration::from_millis(200);

/// A lease that its holder renews.
#[derive(Debug)]
struct Lease {
    directory: Directory,
    id: LeaseId,
    renewed: Instant,
}

impl Lease {
    fn new(directory: &Directory) -> Result<Self, ClusterError> {
        let id = directory.etcd.grant(LEASE)?;
        Ok(Lease { directory: directory.clone(), id, renewed: Instant::now() })
    }

    /// Renews the lease if it is time. False if the lease had run out, with all keys that were bound to it;
    /// it is a new lease then.
    fn renew(&mut self) -> Result<bool, ClusterError> {
        if self.renewed.elapsed() < RENEW_EVERY {
            return Ok(true);
        }
        let asked = Instant::now();
        if self.directory.etcd.keep_alive(self.id)?.is_some() {
            self.renewed = asked;
            return Ok(true);
        }
        *self = Lease::new(&self.directory)?;
        Ok(false)
    }

    fn end(self) -> Result<(), ClusterError> {
        self.directory.etcd.revoke(self.id)
    }
}

/// Holder of the entry of a number.
enum EntryHolder {
    Own,
    By(SocketAddr),
    /// The entry has just run out, or this process's lease has: the next look tells.
    Changing,
}

/// A memory server's registration: its entry, and the lease that keeps it.
#[derive(Debug)]
pub struct MemoryRegistration {
    lease: Lease,
    record: MemoryRecord,
    is_written: bool,
}

impl Directory {
    /// Registers a memory server. An entry of its number with its own address is left of its earlier life,
    /// and is replaced. If an entry has another address, this waits up to 6 seconds: the entry runs out if
    /// its holder is dead.
    ///
    /// Cost: 3 requests to etcd.
    ///
    /// # Errors
    /// [`ClusterError::NumberTaken`], [`ClusterError::OtherCount`], [`ClusterError::OtherPool`];
    /// [`ClusterError::Foreign`] for an invalid entry.
    pub fn register_memory(
        &self,
        record: MemoryRecord,
    ) -> Result<MemoryRegistration, ClusterError> {
        self.check_fits(&record)?;
        let mut registration =
            MemoryRegistration { lease: Lease::new(self)?, record, is_written: false };
        let end = Instant::now() + TAKE_TIME;
        loop {
            match registration.take()? {
                EntryHolder::Own => return Ok(registration),
                EntryHolder::By(holder) if Instant::now() >= end => {
                    registration.lease.end()?;
                    return Err(self.number_taken(record.server, holder));
                }
                EntryHolder::By(_) | EntryHolder::Changing => {}
            }
            thread::sleep(TAKE_EVERY);
            registration.lease.renew()?;
        }
    }

    /// Registers a compute server.
    ///
    /// Cost: 2 requests to etcd.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn register_compute(
        &self,
        name: Incarnation,
        record: ComputeRecord,
    ) -> Result<ComputeRegistration, ClusterError> {
        let lease = Lease::new(self)?;
        let registered_at = Instant::now();
        let mut registration =
            ComputeRegistration { lease, name, record, is_written: false, registered_at };
        registration.write()?;
        Ok(registration)
    }

    fn number_taken(&self, server: u16, holder: SocketAddr) -> ClusterError {
        ClusterError::NumberTaken { name: self.name.clone(), server, holder }
    }
}

impl MemoryRegistration {
    /// Renews the entry, and makes it anew if it was lost or has to change. Call it every second or more
    /// often. `pool` is the pool whose data the server holds.
    ///
    /// Cost: 1 request to etcd each second, 1 more for a change.
    ///
    /// # Errors
    /// [`ClusterError::NumberTaken`] if another server has got the number; errors of etcd. The next call
    /// tries again; the server can go on meanwhile.
    pub fn keep(&mut self, pool: Option<u128>) -> Result<(), ClusterError> {
        let is_kept = self.lease.renew()?;
        let record = self.record.holding(pool);
        self.is_written &= is_kept && record == self.record;
        self.record = record;
        if self.is_written {
            return Ok(());
        }
        match self.take()? {
            EntryHolder::By(holder) => {
                Err(self.lease.directory.number_taken(record.server, holder))
            }
            EntryHolder::Own | EntryHolder::Changing => Ok(()),
        }
    }

    /// Ends the entry.
    ///
    /// # Errors
    /// See [`ClusterError`]; the entry then runs out by itself.
    pub fn leave(self) -> Result<(), ClusterError> {
        self.lease.end()
    }

    /// Writes the entry, unless another server has it.
    fn take(&mut self) -> Result<EntryHolder, ClusterError> {
        let directory = &self.lease.directory;
        let key = directory.memory_key(self.record.server);
        let value = to_json(&self.record);
        let mut revision = 0;
        // First as if there were no entry, then over the entry that was found.
        for _ in 0..2 {
            match directory.etcd.put_if(&key, &value, Some(self.lease.id), revision)? {
                Ok(()) => {
                    self.is_written = true;
                    return Ok(EntryHolder::Own);
                }
                // The entry has just run out, or this process's lease has.
                Err(None) => break,
                Err(Some(pair)) => {
                    let foreign = |why| ClusterError::Foreign { key: key.clone(), why };
                    let holder: MemoryRecord = parse(&pair.value).map_err(foreign)?;
                    if holder.address != self.record.address {
                        return Ok(EntryHolder::By(holder.address));
                    }
                    revision = pair.revision;
                }
            }
        }
        Ok(EntryHolder::Changing)
    }
}

/// A compute server's registration: its entry, and its part in the election.
#[derive(Debug)]
pub struct ComputeRegistration {
    lease: Lease,
    name: Incarnation,
    record: ComputeRecord,
    is_written: bool,
    registered_at: Instant,
}

/// State of the directory as a compute server last read it.
#[derive(Clone, Debug)]
pub struct View {
    /// The whole directory.
    pub snapshot: Snapshot,
    /// This compute server is the coordinator, which recovers the dead.
    pub is_coordinator: bool,
    /// Somebody asks this compute server to hand over and leave.
    pub is_leaving: bool,
}

impl ComputeRegistration {
    /// Renews the entry, reads the directory, and stands for election if there is no coordinator. Makes the
    /// entry anew if it was lost or has to change. Call it every second or more often.
    ///
    /// Cost: 1 request to etcd, 1 more each second, 1 more for a change or an election.
    ///
    /// # Errors
    /// See [`ClusterError`]. The next call tries again; work on the pool need not wait for it.
    pub fn beat(&mut self, address: Option<SocketAddr>) -> Result<View, ClusterError> {
        let is_kept = self.lease.renew()?;
        self.is_written &= is_kept && address == self.record.address;
        self.record.address = address;
        if !self.is_written {
            self.write()?;
        }
        let snapshot = self.lease.directory.look()?;
        let mut is_coordinator = snapshot.coordinator == Some(self.name);
        if snapshot.coordinator.is_none() && self.registered_at.elapsed() >= STAND_AFTER {
            is_coordinator = self.stand()?;
        }
        let is_leaving = snapshot.leaving.contains(&self.name);
        Ok(View { snapshot, is_coordinator, is_leaving })
    }

    /// Ends the entry, and the role of coordinator with it.
    ///
    /// # Errors
    /// See [`ClusterError`]; the entry then runs out by itself.
    pub fn leave(self) -> Result<(), ClusterError> {
        self.lease.end()
    }

    fn write(&mut self) -> Result<(), ClusterError> {
        let Lease { directory, id, .. } = &self.lease;
        let key = directory.key(&format!("compute/{}", self.name));
        // If the lease has run out just now, the next beat notices it.
        self.is_written = directory.etcd.put(&key, &to_json(&self.record), Some(*id))?;
        Ok(())
    }

    /// Tries to become coordinator; returns whether it is.
    fn stand(&self) -> Result<bool, ClusterError> {
        let Lease { directory, id, .. } = &self.lease;
        let value = to_json(&CoordinatorRecord { name: self.name });
        let key = directory.key("coordinator");
        Ok(directory.etcd.put_if(&key, &value, Some(*id), 0)?.is_ok())
    }
}
