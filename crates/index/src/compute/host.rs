//! Host: executes other compute servers' requests for the tables of this one.
//!
//! Each task of [`Host::serve`] takes requests from its own thread's endpoint, with a session of its own.
//! Requests that move a range run in tasks of their own, so that no other request waits for them.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farleaf_fabric::{Endpoint, GlobalAddr, Incoming};
use farleaf_pool::Session;

use super::messages::{decode_request, encode_reply};
use super::{HostedTable, TABLE_SERVICE};
use crate::IndexError;
use crate::join::within;
use crate::sync::{Mutex, lock};

/// Time between two ticks of a serving task's session.
const TICK_NS: u64 = 100_000;
/// The same in real time.
const REAL_TICK_NS: u64 = 10_000_000;
/// Ticks without a request after which a task in real time sleeps until the next request. One in the simulator ticks
/// as seldom as real time has it: a compute server that was cut off finds out by its ticks.
const QUIET_TICKS: u32 = 20;

/// The tables of one compute server that others may ask.
#[derive(Debug)]
pub struct Host<T>(Mutex<BTreeMap<u64, Hosted<T>>>);

#[derive(Debug)]
struct Hosted<T> {
    table: T,
    /// Requests that were begun and are not done.
    running: Arc<AtomicUsize>,
}

/// A table that begins no more requests.
#[derive(Debug)]
pub struct Leaving(Arc<AtomicUsize>);

impl Leaving {
    /// Returns whether all requests that were begun are done.
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// A request that is being executed.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> Default for Host<T> {
    fn default() -> Self {
        Host(Mutex::default())
    }
}

impl<T: HostedTable> Host<T> {
    /// Takes requests for `table` from now on; false if it does already.
    pub fn add(&self, table: T) -> bool {
        let key = table.meta().word();
        let mut tables = lock(&self.0);
        if tables.contains_key(&key) {
            return false;
        }
        tables.insert(key, Hosted { table, running: Arc::default() });
        true
    }

    /// Takes no more requests for the table with this meta object; `None` if it took none.
    pub fn remove(&self, table: GlobalAddr) -> Option<Leaving> {
        lock(&self.0).remove(&table.word()).map(|hosted| Leaving(hosted.running))
    }

    /// The table, for one more request.
    fn enter(&self, table: GlobalAddr) -> Option<(T, Running)> {
        let tables = lock(&self.0);
        let Hosted { table, running } = tables.get(&table.word())?;
        running.fetch_add(1, Ordering::SeqCst);
        Some((table.clone(), Running(Arc::clone(running))))
    }

    /// Executes requests, one at a time, until this compute server leaves ([`Endpoint::leave`]). Ticks the
    /// session. In real time somebody else has to tick the member's sessions while there are no requests.
    ///
    /// # Errors
    /// In the simulator those of ticks: this compute server has been cut off. In real time the next tick
    /// does what one could not do.
    pub async fn serve(self: Arc<Self>, session: Session) -> Result<(), IndexError> {
        let endpoint = session.endpoint().clone();
        let is_real = endpoint.waits_in_real_time();
        let tick_ns = if is_real { REAL_TICK_NS } else { TICK_NS };
        let mut ticked_ns = endpoint.now_ns();
        let mut quiet_ticks = 0;
        loop {
            let is_quiet = quiet_ticks >= QUIET_TICKS;
            let tick_ns = if is_quiet { REAL_TICK_NS } else { tick_ns };
            let rests = is_real && is_quiet;
            let next = {
                let call = pin!(endpoint.next_call(TABLE_SERVICE));
                if rests { Some(call.await) } else { within(&endpoint, call, tick_ns).await }
            };
            match next {
                // Time for a tick.
                None => {}
                // This compute server has left.
                Some(None) => return Ok(()),
                Some(Some(incoming)) => {
                    quiet_ticks = 0;
                    self.take(&session, incoming).await;
                }
            }
            if endpoint.now_ns() - ticked_ns >= tick_ns {
                quiet_ticks += 1;
                // Without requests the ticks of one session are enough for all of its member.
                let ticked = match is_quiet {
                    true => session.tick_if_due().await,
                    false => session.tick().await,
                };
                match ticked {
                    Err(error) if !is_real => return Err(error.into()),
                    _ => {}
                }
                ticked_ns = endpoint.now_ns();
            }
        }
    }

    /// Executes a request, or drops it unbegun if its table is not here.
    async fn take(&self, session: &Session, mut incoming: Incoming) {
        let decoded = decode_request(&incoming.request);
        let (table, op) = match decoded {
            Ok(decoded) => decoded,
            Err(malformed) => {
                if incoming.begin() {
                    let told = Err(IndexError::Invalid(format!("a message: {malformed}")));
                    // A sender that has gone needs no reply; so below.
                    let _ = incoming.reply(encode_reply(&told));
                }
                return;
            }
        };
        let Some((table, running)) = self.enter(table) else { return };
        if !incoming.begin() {
            return;
        }
        if !op.moves() {
            let _ = incoming.reply(encode_reply(&table.serve(session, op).await));
            return drop(running);
        }
        let (pool, endpoint) = (Arc::clone(session.pool()), session.endpoint().clone());
        session.endpoint().spawn(async move {
            let outcome = match pool.session(endpoint).await {
                Ok(own) => table.serve(&own, op).await,
                Err(error) => Err(error.into()),
            };
            let _ = incoming.reply(encode_reply(&outcome));
            drop(running);
        });
    }
}
