//! Client lives: track the connected, living and fenced incarnations, and cut off the fenced ones.
//!
//! - **TCP-1** The server runs a connection's requests while it holds the connection's admission, and that
//!   is open. Closing takes the admission: afterwards nothing of that connection takes effect.
//! - **TCP-2** An incarnation that has been fenced stays so: no connection of it is let in again.
//! - **TCP-7** The server closes an admission only after it has cut the other ways of its connection. If it
//!   cannot cut one, it does not answer the fence. It adds a way to an open admission only.
//! - **TCP-9** A fence is answered once it stands in the region's record, if that has one.
//! - **TCP-3** No thread takes an admission while it holds another: a fence runs between the requests around
//!   it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;

use super::offer::Way;
use super::region::Record;
use crate::Incarnation;
use crate::sync::lock;

/// State of an admission: decides whether the server carries out a connection's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionState {
    Open,
    /// Another connection has taken its place, or it has ended.
    Closed,
    /// Its compute server has been cut off.
    Fenced,
}

/// Held while requests of one connection are carried out.
pub(super) struct ConnectionAdmission {
    state: Mutex<AdmissionState>,
    /// Other ways that the connection has. Taken while the state is held, or alone.
    ways: Mutex<Vec<Box<dyn Way>>>,
    /// Threads that are about to shut it.
    closing: AtomicUsize,
}

/// A way could not be cut, or the fence could not be recorded.
#[derive(Debug)]
pub(super) struct Uncut;

impl ConnectionAdmission {
    fn open() -> Arc<ConnectionAdmission> {
        let state = Mutex::new(AdmissionState::Open);
        Arc::new(ConnectionAdmission {
            state,
            ways: Mutex::default(),
            closing: AtomicUsize::new(0),
        })
    }

    /// Adds a way; false, with the way cut, if it is closed (TCP-7).
    pub(super) fn add(&self, way: Box<dyn Way>) -> bool {
        let state = self.lock();
        let is_open = *state == AdmissionState::Open;
        if is_open {
            lock(&self.ways).push(way);
        }
        is_open
    }

    /// Cuts all ways, since the connection gets another one. The admission stays as it is.
    pub(super) fn cut_ways(&self) -> Result<(), Uncut> {
        let mut ways = lock(&self.ways);
        ways.retain_mut(|way| way.cut().is_err());
        if ways.is_empty() { Ok(()) } else { Err(Uncut) }
    }

    /// Cuts all ways and closes the admission (TCP-7). A way that could not be cut stays, and the caller can try
    /// again; the admission itself is closed in any case.
    pub(super) fn close(&self, to: AdmissionState) -> Result<(), Uncut> {
        self.closing.fetch_add(1, Ordering::SeqCst);
        let mut state = self.lock();
        *state = to;
        self.closing.fetch_sub(1, Ordering::SeqCst);
        self.cut_ways()
    }

    /// Takes the admission for requests, after the threads that want to close it: a connection that never pauses
    /// would otherwise keep those waiting.
    pub(super) fn pass(&self) -> MutexGuard<'_, AdmissionState> {
        while self.closing.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        self.lock()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, AdmissionState> {
        lock(&self.state)
    }

    /// The same without waiting; `None` if a thread holds the admission, or waits to close it: a caller that polls
    /// would otherwise keep that thread waiting.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, AdmissionState>> {
        if self.closing.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// One life of a compute server, as this memory server knows it.
pub(super) struct Life {
    /// Time at which it was last heard of, in milliseconds since the server's start.
    heard_ms: AtomicU64,
    /// It has said goodbye, or has once counted as dead.
    dead: AtomicBool,
    state: Mutex<LifeState>,
}

#[derive(Default)]
struct LifeState {
    fenced: bool,
    /// It stands in the record.
    is_recorded: bool,
    connections: BTreeMap<u64, Arc<ConnectionAdmission>>,
}

impl Life {
    fn new(heard_ms: u64, is_dead: bool, state: LifeState) -> Life {
        let (heard_ms, dead) = (AtomicU64::new(heard_ms), AtomicBool::new(is_dead));
        Life { heard_ms, dead, state: Mutex::new(state) }
    }

    #[inline]
    pub(super) fn hear(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// A sign of life; returns whether its lease goes on, because nobody has learned that it is dead.
    pub(super) fn beat(&self, now_ms: u64) -> bool {
        let _state = lock(&self.state);
        self.hear(now_ms);
        !self.dead.load(Ordering::SeqCst)
    }

    /// Returns for how long it has not been heard of.
    pub(super) fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    /// It ends in order.
    pub(super) fn end(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// A connection has gone.
    pub(super) fn leave(&self, connection: u64) {
        lock(&self.state).connections.remove(&connection);
    }
}

/// Reason for which a connection is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// Its compute server has been cut off.
    Fenced,
    /// The connection that it replaces could not be cut.
    Uncut,
}

/// All lives that this server has heard of.
pub(super) struct Lives {
    lease_ms: u64,
    record: Option<Record>,
    known: Mutex<BTreeMap<Incarnation, Arc<Life>>>,
    connections: AtomicU64,
}

impl Lives {
    pub(super) fn new(lease_ms: u64) -> Self {
        Lives { lease_ms, record: None, known: Mutex::default(), connections: AtomicU64::new(0) }
    }

    /// With the incarnations that were fenced before, and a record for further ones.
    pub(super) fn recorded(lease_ms: u64, record: Record) -> Self {
        let fenced = |who| {
            let state = LifeState { fenced: true, is_recorded: true, ..LifeState::default() };
            (who, Arc::new(Life::new(0, true, state)))
        };
        let known = Mutex::new(record.fenced().into_iter().map(fenced).collect());
        Lives { known, record: Some(record), ..Lives::new(lease_ms) }
    }

    /// The life of that incarnation. If this server has not heard of it, it is heard of now, and `is_dead`.
    fn life(&self, who: Incarnation, now_ms: u64, is_dead: bool) -> Arc<Life> {
        let new = || Arc::new(Life::new(now_ms, is_dead, LifeState::default()));
        Arc::clone(lock(&self.known).entry(who).or_insert_with(new))
    }

    /// Lets a connection in. A connection that it replaces does nothing any more.
    pub(super) fn enter(
        &self,
        who: Incarnation,
        replaces: u64,
        now_ms: u64,
    ) -> Result<(Arc<Life>, u64, Arc<ConnectionAdmission>), Denied> {
        let life = self.life(who, now_ms, false);
        let mut state = lock(&life.state);
        if state.fenced {
            return Err(Denied::Fenced);
        }
        if let Some(admission) = state.connections.get(&replaces) {
            if admission.close(AdmissionState::Closed).is_err() {
                return Err(Denied::Uncut);
            }
            state.connections.remove(&replaces);
        }
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let admission = ConnectionAdmission::open();
        state.connections.insert(number, Arc::clone(&admission));
        drop(state);
        life.hear(now_ms);
        Ok((life, number, admission))
    }

    /// Returns whether a life has ended or was silent for a whole lease; if so it stays dead. A life that
    /// this server has never heard of may belong to a time before its start.
    pub(super) fn is_dead(&self, who: Incarnation, now_ms: u64) -> bool {
        let Some(life) = lock(&self.known).get(&who).cloned() else {
            return now_ms > 2 * self.lease_ms;
        };
        // Not between a sign of life and its answer.
        let _state = lock(&life.state);
        if life.silent_ms(now_ms) > self.lease_ms {
            life.end();
        }
        life.dead.load(Ordering::SeqCst)
    }

    /// Cuts a life off. The caller holds no admission (TCP-3). After a failure no connection of it is let in, but
    /// it may still act by a way that could not be cut: try again.
    pub(super) fn fence(&self, who: Incarnation, now_ms: u64) -> Result<(), Uncut> {
        let life = self.life(who, now_ms, true);
        // They stay in the list until they are shut: another fence must wait for them.
        let admissions = {
            let mut state = lock(&life.state);
            state.fenced = true;
            if let Some(record) = self.record.as_ref().filter(|_| !state.is_recorded) {
                if !record.add(who) {
                    return Err(Uncut);
                }
                state.is_recorded = true;
            }
            state.connections.clone()
        };
        life.end();
        let mut fenced = Ok(());
        for (number, admission) in admissions {
            match admission.close(AdmissionState::Fenced) {
                Ok(()) => life.leave(number),
                Err(uncut) => fenced = Err(uncut),
            }
        }
        fenced
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Region;
    use super::*;
    use crate::ServerId;

    const WHO: Incarnation = Incarnation(9);

    #[test]
    fn a_fence_shuts_every_gate_and_refuses_new_connections() {
        let lives = Lives::new(100);
        let (_, _, first) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, second) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, other) = lives.enter(Incarnation(8), 0, 0).expect("in");
        lives.fence(WHO, 1).expect("cut off");
        assert_eq!(*first.lock(), AdmissionState::Fenced);
        assert_eq!(*second.lock(), AdmissionState::Fenced);
        assert_eq!(*other.lock(), AdmissionState::Open);
        assert_eq!(lives.enter(WHO, 0, 2).err(), Some(Denied::Fenced));
        assert!(lives.is_dead(WHO, 2));
    }

    /// A connection that carries out requests without a pause lets a fence close its admission.
    #[test]
    fn requests_let_a_fence_pass() {
        for _ in 0..50 {
            let admission = ConnectionAdmission::open();
            let held = admission.pass();
            let closes = Arc::clone(&admission);
            let fence = thread::spawn(move || closes.close(AdmissionState::Fenced));
            while admission.closing.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            drop(held);
            assert_eq!(*admission.pass(), AdmissionState::Fenced);
            fence.join().expect("a fence").expect("nothing else to cut");
        }
    }

    /// A server that is restarted over its file refuses the incarnations that it has cut off.
    #[test]
    fn a_fence_outlives_the_server() {
        let path = std::env::temp_dir().join(format!("farleaf-fenced-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let lives = || {
            let region = Region::file(&path, Some(64 << 10), ServerId(0), 1).expect("a region");
            Lives::recorded(100, region.record.expect("a record"))
        };
        let before = lives();
        before.enter(WHO, 0, 0).expect("in");
        for _ in 0..2 {
            before.fence(WHO, 1).expect("cut off");
        }
        drop(before);
        let after = lives();
        assert_eq!(after.record.as_ref().map(Record::fenced), Some(vec![WHO]), "once");
        assert_eq!(after.enter(WHO, 0, 2).err(), Some(Denied::Fenced));
        assert!(after.is_dead(WHO, 2), "from the first moment on");
        assert!(after.enter(Incarnation(8), 0, 2).is_ok());
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn a_replaced_connection_does_nothing_more() {
        let lives = Lives::new(100);
        let (_, number, first) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, second) = lives.enter(WHO, number, 0).expect("in");
        assert_eq!(*first.lock(), AdmissionState::Closed);
        assert_eq!(*second.lock(), AdmissionState::Open);
    }

    /// A way that can be cut only after so many attempts, and a flag that it has been cut.
    struct Stubborn(u32, Arc<AtomicBool>);

    impl Way for Stubborn {
        fn cut(&mut self) -> std::io::Result<()> {
            if self.0 > 0 {
                self.0 -= 1;
                return Err(std::io::ErrorKind::ResourceBusy.into());
            }
            self.1.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    #[test]
    fn a_fence_is_not_done_before_every_way_is_cut() {
        let lives = Lives::new(100);
        let cut: [Arc<AtomicBool>; 2] = Default::default();
        let (_, number, admission) = lives.enter(WHO, 0, 0).expect("in");
        assert!(admission.add(Box::new(Stubborn(2, Arc::clone(&cut[0])))));
        assert!(admission.add(Box::new(Stubborn(0, Arc::clone(&cut[1])))));
        assert_eq!(lives.enter(WHO, number, 0).err(), Some(Denied::Uncut));
        assert!(lives.fence(WHO, 1).is_err());
        assert_eq!(*admission.lock(), AdmissionState::Fenced);
        assert!(!cut[0].load(Ordering::SeqCst) && cut[1].load(Ordering::SeqCst));
        lives.fence(WHO, 1).expect("the third attempt");
        assert!(cut[0].load(Ordering::SeqCst));
        assert!(!admission.add(Box::new(Stubborn(0, Arc::default()))), "a way behind the fence");
    }

    /// A second fence is answered only when the first has shut the admissions, behind which requests may be
    /// running.
    #[test]
    fn no_fence_returns_before_every_gate_is_shut() {
        let lives = Lives::new(100);
        let (_, _, admission) = lives.enter(WHO, 0, 0).expect("in");
        let returned = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let request = admission.lock();
            for _ in 0..2 {
                scope.spawn(|| {
                    lives.fence(WHO, 1).expect("cut off");
                    returned.fetch_add(1, Ordering::SeqCst);
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(returned.load(Ordering::SeqCst), 0);
            drop(request);
        });
        assert_eq!(returned.load(Ordering::SeqCst), 2);
    }

    /// A connection that sends one request after the other, without a pause, does not delay a fence.
    #[test]
    fn no_request_overtakes_a_waiting_fence() {
        let lives = Lives::new(100);
        let (_, _, admission) = lives.enter(WHO, 0, 0).expect("in");
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let request = admission.try_lock().expect("nobody has it");
            assert!(admission.try_lock().is_none(), "it is taken");
            scope.spawn(|| {
                begun.store(true, Ordering::SeqCst);
                lives.fence(WHO, 1).expect("cut off");
            });
            while !begun.load(Ordering::SeqCst) || admission.closing.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            drop(request);
            let next = admission.try_lock();
            assert!(next.is_none_or(|state| *state == AdmissionState::Fenced));
        });
        assert!(admission.try_lock().is_some_and(|state| *state == AdmissionState::Fenced));
    }

    #[test]
    fn a_lease_runs_out_once_and_for_all() {
        let lives = Lives::new(100);
        let (life, _, _) = lives.enter(WHO, 0, 0).expect("in");
        assert!(!lives.is_dead(WHO, 100));
        assert!(life.beat(100), "its lease goes on");
        assert!(!lives.is_dead(WHO, 200));
        assert!(lives.is_dead(WHO, 201));
        assert!(!life.beat(201), "others have been told");
        life.hear(202);
        assert!(lives.is_dead(WHO, 203), "others may have acted on it");
    }

    #[test]
    fn an_unknown_life_is_given_time_to_come_back() {
        let lives = Lives::new(100);
        assert!(!lives.is_dead(WHO, 200));
        assert!(lives.is_dead(WHO, 201));
    }
}
