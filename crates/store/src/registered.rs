//! Registration: keeps this process's entry in a cluster's directory up to date.
//!
//! If this compute server is the coordinator, the thread also recovers the dead.
//!
//! The pool's members know each other and need no directory. But nobody notices a death while nobody
//! works, because members check each other only during operations. The coordinator checks the directory
//! all the time. A member of the pool without an entry there may be dead, may never have had one, or
//! may not reach etcd. Every recovery asks the fabric, which decides that the member is dead.
//!
//! - **INV-REG-1** No part of the pool waits for etcd: the thread alone talks to it, and no operation
//!   waits for the thread. Closing does, for as long as one request to etcd may take.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farleaf_cluster::{ComputeRecord, ComputeRegistration, Directory, View};
use farleaf_fabric::{Endpoint, Incarnation};
use farleaf_index::sync::lock;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::thread_context::ThreadContext;

/// Between two looks at the directory.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Ticks after which a member that does nothing is announced idle.
const IDLE_TICKS: u32 = 3;

/// State of a process in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterState {
    /// etcd has answered when it was last asked; else this process may have no entry there.
    pub is_registered: bool,
    /// It is the one that looks after compute servers that have died.
    pub is_coordinator: bool,
    /// Somebody asks it to hand over what it has, and to close the store
    /// ([`Builder::leaves_when_asked`](crate::Builder::leaves_when_asked)).
    pub is_leaving: bool,
}

/// An entry in the directory, and the thread that keeps it.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Its end ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<ComputeRegistration>,
    state: Arc<Mutex<ClusterState>>,
}

impl Registered {
    /// Makes the entry, in the directory of the pool that `core` has joined.
    pub(crate) fn start(
        core: &Arc<Core>,
        directory: &Directory,
        is_new: bool,
        leaves_when_asked: bool,
    ) -> Result<Registered> {
        let servers = core.pool.geometry().servers() as u16;
        directory.agree_on_pool(core.pool.id(), servers, is_new)?;
        let me = ThreadContext::run(core, async |context| Ok(context.endpoint().incarnation()))?;
        let record = ComputeRecord {
            address: core.serving.address(),
            process: process(),
            serves: leaves_when_asked,
        };
        let registration = directory.register_compute(me, record)?;
        let state =
            Arc::new(Mutex::new(ClusterState { is_registered: true, ..Default::default() }));
        let (stop, stopped) = mpsc::channel();
        let (core, told) = (Arc::clone(core), Arc::clone(&state));
        let thread = thread::Builder::new()
            .name("farleaf-cluster".to_owned())
            .spawn(move || attend(&core, me, registration, &told, &stopped))
            .map_err(|source| Error::io("cannot start the thread of the cluster", source))?;
        Ok(Registered { stop, thread, state })
    }

    pub(crate) fn state(&self) -> ClusterState {
        *lock(&self.state)
    }

    /// Ends the thread, which has no session of the pool any more then; the entry, if it has not panicked.
    pub(crate) fn stop(self) -> Option<ComputeRegistration> {
        drop(self.stop);
        self.thread.join().ok()
    }
}

/// Keeps the entry, and does the coordinator's work, until it is stopped.
fn attend(
    core: &Arc<Core>,
    me: Incarnation,
    mut registration: ComputeRegistration,
    told: &Mutex<ClusterState>,
    stopped: &Receiver<()>,
) -> ComputeRegistration {
    // The coordinator has one.
    let mut context = None;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK_EVERY) {
        let view = registration.beat(core.serving.address());
        let (is_coordinator, is_leaving) =
            view.as_ref().map_or((false, false), |view| (view.is_coordinator, view.is_leaving));
        {
            let mut told = lock(told);
            // A process that was asked to leave leaves, whether etcd is there or not.
            let is_leaving = told.is_leaving || is_leaving;
            *told = ClusterState { is_registered: view.is_ok(), is_coordinator, is_leaving };
        }
        match view {
            Ok(view) if view.is_coordinator => look_after(core, me, &view, &mut context),
            _ => context = None,
        }
    }
    registration
}

/// Recovers the pool from those who are dead, if any can be: who has just come into office looks in any case,
/// since its predecessor may have died over it. What fails is tried again at the next look.
fn look_after(core: &Arc<Core>, me: Incarnation, view: &View, context: &mut Option<ThreadContext>) {
    let is_new = context.is_none();
    if is_new {
        *context = ThreadContext::new(core).ok();
    }
    let Some(context) = context else { return };
    let looked: Result<()> = context.endpoint().executor().block_on(async {
        let session = context.maintenance_session().await?;
        let mut is_called_for = is_new || core.pool.needs_recovery();
        for member in session.members().await? {
            let who = member.incarnation;
            let has_entry = who == me || view.snapshot.compute.contains_key(&who);
            is_called_for |= !has_entry && context.endpoint().is_dead(who).await;
        }
        if is_called_for {
            let recovered = farleaf_engines::recover(&session).await;
            // It has taken part in epochs, and the maintenance thread may sleep: it is announced idle again,
            // so that it holds up nobody's.
            for _ in 0..IDLE_TICKS {
                session.tick().await?;
            }
            recovered?;
        }
        Ok(())
    });
    // A pool that cannot be reached, or has no session left, is looked at again.
    let _ = looked;
}

/// Returns this process's host and number.
fn process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), std::process::id())
}
