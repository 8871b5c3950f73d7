//! Who is connected, who lives, and who has been cut off.
//!
//! - **TCP-1** Requests of a connection are carried out while its gate is held and open. Closing a
//!   gate takes it: afterwards nothing of that connection takes effect.
//! - **TCP-2** An incarnation that has been fenced stays so: no connection of it is let in again.
//! - **TCP-3** Nobody takes a gate while holding another: a fence is carried out between the
//!   requests around it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Incarnation;

/// Whether a connection's requests are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateState {
    Open,
    /// Another connection has taken its place, or it has ended.
    Closed,
    /// Its compute server has been cut off.
    Fenced,
}

/// Held while requests of one connection are carried out.
#[derive(Debug)]
pub(super) struct Gate(Mutex<GateState>);

impl Gate {
    pub(super) fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One life of a compute server, as this memory server knows it.
#[derive(Debug)]
pub(super) struct Life {
    /// When it was last heard of, in milliseconds since the server's start.
    heard_ms: AtomicU64,
    /// It has said goodbye, or has been taken for dead once.
    dead: AtomicBool,
    state: Mutex<LifeState>,
}

#[derive(Debug, Default)]
struct LifeState {
    fenced: bool,
    connections: BTreeMap<u64, Arc<Gate>>,
}

impl Life {
    fn state(&self) -> MutexGuard<'_, LifeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn hear(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// How long it has not been heard of.
    pub(super) fn silent_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed))
    }

    /// It ends in order.
    pub(super) fn end(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// A connection has gone.
    pub(super) fn leave(&self, connection: u64) {
        self.state().connections.remove(&connection);
    }
}

/// All lives that this server has heard of.
#[derive(Debug)]
pub(super) struct Lives {
    lease_ms: u64,
    known: Mutex<BTreeMap<Incarnation, Arc<Life>>>,
    connections: AtomicU64,
}

impl Lives {
    pub(super) fn new(lease_ms: u64) -> Self {
        Lives { lease_ms, known: Mutex::default(), connections: AtomicU64::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Incarnation, Arc<Life>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in; `None` if its compute server has been cut off. The connection that it
    /// replaces does nothing any more.
    pub(super) fn enter(
        &self,
        who: Incarnation,
        replaces: u64,
        now_ms: u64,
    ) -> Option<(Arc<Life>, u64, Arc<Gate>)> {
        let life = Arc::clone(self.known().entry(who).or_insert_with(|| {
            Arc::new(Life {
                heard_ms: AtomicU64::new(now_ms),
                dead: AtomicBool::new(false),
                state: Mutex::default(),
            })
        }));
        let mut state = life.state();
        if state.fenced {
            return None;
        }
        if let Some(gate) = state.connections.remove(&replaces) {
            *gate.lock() = GateState::Closed;
        }
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let gate = Arc::new(Gate(Mutex::new(GateState::Open)));
        state.connections.insert(number, Arc::clone(&gate));
        drop(state);
        life.hear(now_ms);
        Some((life, number, gate))
    }

    /// Whether a life has ended or was not heard of for a whole lease; if so it stays dead. One that
    /// this server has never heard of may belong to a time before its start.
    pub(super) fn is_dead(&self, who: Incarnation, now_ms: u64) -> bool {
        let Some(life) = self.known().get(&who).cloned() else { return now_ms > 2 * self.lease_ms };
        if life.silent_ms(now_ms) > self.lease_ms {
            life.end();
        }
        life.dead.load(Ordering::SeqCst)
    }

    /// Cuts a life off. The caller holds no gate (TCP-3).
    pub(super) fn fence(&self, who: Incarnation, now_ms: u64) {
        let life = Arc::clone(self.known().entry(who).or_insert_with(|| {
            Arc::new(Life {
                heard_ms: AtomicU64::new(now_ms),
                dead: AtomicBool::new(true),
                state: Mutex::default(),
            })
        }));
        let gates = {
            let mut state = life.state();
            state.fenced = true;
            std::mem::take(&mut state.connections)
        };
        life.end();
        for gate in gates.values() {
            *gate.lock() = GateState::Fenced;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Incarnation = Incarnation(9);

    #[test]
    fn a_fence_closes_every_gate_and_the_door() {
        let lives = Lives::new(100);
        let (_, _, first) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, second) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, other) = lives.enter(Incarnation(8), 0, 0).expect("in");
        lives.fence(WHO, 1);
        assert_eq!(*first.lock(), GateState::Fenced);
        assert_eq!(*second.lock(), GateState::Fenced);
        assert_eq!(*other.lock(), GateState::Open);
        assert!(lives.enter(WHO, 0, 2).is_none());
        assert!(lives.is_dead(WHO, 2));
    }

    #[test]
    fn a_replaced_connection_does_nothing_more() {
        let lives = Lives::new(100);
        let (_, number, first) = lives.enter(WHO, 0, 0).expect("in");
        let (_, _, second) = lives.enter(WHO, number, 0).expect("in");
        assert_eq!(*first.lock(), GateState::Closed);
        assert_eq!(*second.lock(), GateState::Open);
    }

    #[test]
    fn a_lease_runs_out_once_and_for_all() {
        let lives = Lives::new(100);
        let (life, _, _) = lives.enter(WHO, 0, 0).expect("in");
        assert!(!lives.is_dead(WHO, 100));
        life.hear(100);
        assert!(!lives.is_dead(WHO, 200));
        assert!(lives.is_dead(WHO, 201));
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
