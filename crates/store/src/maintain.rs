//! Maintenance: a thread of the store that ticks the pool and recovers dead compute servers.
//!
//! While operations go on, it moves the pool's epochs forward every 10 ms, so that the memory of
//! removed pairs comes back, and recovers members that died. After a quiet time it sleeps until the
//! next operation.
//!
//! The thread's own work is short, so that it ticks on while a recovery walks all tables: a second thread does that. A
//! store whose duty is not recovery ([`Builder::recovers`](crate::Builder::recovers)) recovers only if it knows of no
//! other that has the duty.
//!
//! - **INV-MAINTAIN-2** The thread sleeps only while its member is announced idle. Asleep as a live member, it would
//!   keep the epoch where it is, and with it all memory that others have retired.
//! - **INV-MAINTAIN-1** It opens the pool, looks after it and leaves it with one session: the one that
//!   operations leave free for each member. So the pool can be opened, and the dead recovered, whatever
//!   sessions operations have, and those of the dead. If there is no further session for the second thread, the
//!   first one recovers.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use farleaf_fabric::{AnyEndpoint, Endpoint};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::thread_context::{Session, ThreadContext};

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(10);
/// Ticks without an operation before it sleeps, if this member holds no epoch then. Mostly enough of them that all
/// retired memory of before is freed and the epochs stand still.
const QUIET_TICKS: u32 = 20;
/// Ticks that leaving waits for threads that are just ending.
const LEAVE_WAITS: u32 = 10;
/// Time that leaving waits for operations of other threads' [`Local`](crate::Local)s.
const LOCAL_WAIT: Duration = Duration::from_secs(1);
/// Time before a recovery that could not be done is tried again.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);
/// Time before it looks again whether somebody is to be recovered.
const RECOVERY_EVERY: Duration = Duration::from_millis(100);
/// Time for which a store whose duty is recovery sleeps when nothing happens.
const DUTY_SLEEP: Duration = Duration::from_millis(500);
/// Time between looks whether the store closes, during a recovery.
const CLOSE_LOOK_NS: u64 = 5_000_000;

/// Starts the thread, and waits until it has cleared away what dead members left. It ends, and leaves the pool,
/// once the store is closed and it is woken.
pub(crate) fn start(core: Arc<Core>) -> Result<JoinHandle<Result<()>>> {
    let (told, opened) = mpsc::sync_channel(1);
    let thread = thread::Builder::new()
        .name("farleaf-maintain".to_owned())
        .spawn(move || {
            core.activity.set_thread();
            let context = match open(&core) {
                Ok(context) => context,
                Err(error) => {
                    // The starter waits for this.
                    let _ = told.send(Err(error));
                    return Ok(());
                }
            };
            let _ = told.send(Ok(()));
            maintain(&core, &context)
        })
        .map_err(|source| Error::io("cannot start the maintenance thread", source))?;
    let gone = || Error::new(ErrorKind::Internal, "the maintenance thread ended by a panic");
    opened.recv().unwrap_or_else(|_| Err(gone()))?;
    Ok(thread)
}

/// The thread's context, with which it has recovered the dead.
fn open(core: &Arc<Core>) -> Result<ThreadContext> {
    let context = ThreadContext::new(core)?;
    let recovered: Result<_> = context.endpoint().executor().clone().block_on(async {
        let session = context.maintenance_session().await?;
        if core.recovers {
            session.serve_recovery().await?;
        }
        // One that has died is not to be relied on, though nobody may have noticed yet.
        if !session.find_recoverer().await? {
            farleaf_engines::recover(&session).await?;
        }
        Ok(())
    });
    match recovered {
        // A table that is not whole must not keep others from the pool: `verify` tells of it.
        Err(error) if error.kind() != ErrorKind::Corrupt => Err(error),
        _ => Ok(context),
    }
}

fn maintain(core: &Arc<Core>, context: &ThreadContext) -> Result<()> {
    let executor = context.endpoint().executor().clone();
    let mut seen_ops = None;
    let mut quiet_ticks = 0;
    let mut recovering = Recovering::default();
    while !core.is_closed() {
        let ops = core.op_locks.ops();
        let is_quiet = ops.is_some() && ops == seen_ops;
        quiet_ticks = if is_quiet { quiet_ticks + 1 } else { 0 };
        seen_ops = ops;
        executor.block_on(async {
            let Ok(session) = context.maintenance_session().await else { return };
            // A tick that fails changes nothing; the next one tries again, and the operations
            // report what is wrong.
            let _ = session.tick().await;
            if core.pool.has_left_drops() {
                // A drop that cannot go on now goes on after another tick.
                let _ = farleaf_engines::continue_drops(&session).await;
            }
            if recovering.is_due(core) && !recovering.start(core) {
                let recovered = recover(core, &session).await;
                recovering.note(Some(recovered));
            }
        });
        // While this member holds the epoch, others wait for its next tick, with or without operations of its own.
        let is_at_rest = core.pool.is_at_rest() && !core.pool.has_left_drops();
        if quiet_ticks < QUIET_TICKS || !is_at_rest {
            thread::park_timeout(TICK);
            continue;
        }
        core.activity.set_idle();
        if core.op_locks.ops() != seen_ops {
            core.activity.wake();
        }
        while core.activity.is_idle() && !core.is_closed() {
            if core.recovers {
                thread::park_timeout(DUTY_SLEEP);
                break;
            }
            thread::park();
        }
        // A store that only looks after others sleeps again after one tick.
        quiet_ticks = if core.activity.is_idle() { quiet_ticks } else { 0 };
    }
    recovering.end();
    leave(core, context)
}

/// Recovers the dead, unless the store closes meanwhile; whether all that was begun is done.
async fn recover(core: &Core, session: &Session) -> bool {
    match unless_closed(core, session.endpoint(), farleaf_engines::recover(session)).await {
        Some(recovered) => recovered.is_ok_and(|done| done.is_none_or(|done| done.complete)),
        None => {
            // If that fails, the others find out when this store has left the pool.
            let _ = session.recover_give_up().await;
            false
        }
    }
}

/// The result of `work`, unless the store closes meanwhile. A recovery that is ending goes on to its end.
async fn unless_closed<T>(
    core: &Core,
    endpoint: &AnyEndpoint,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut closing = pin!(async {
        while !core.is_closed() || core.pool.is_ending_recovery() {
            endpoint.sleep(CLOSE_LOOK_NS).await;
        }
    });
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => closing.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// The recovery that a second thread does for the maintenance thread.
#[derive(Default)]
struct Recovering {
    thread: Option<JoinHandle<Option<bool>>>,
    /// Not before.
    after: Option<Instant>,
    /// There was no session for the second thread: this one recovers.
    is_inline: bool,
}

impl Recovering {
    /// Tells whether somebody is to be recovered by this store now.
    fn is_due(&mut self, core: &Core) -> bool {
        if let Some(ended) = self.thread.take_if(|thread| thread.is_finished()) {
            // One that panicked has said so.
            self.note(ended.join().unwrap_or(Some(false)));
        }
        self.thread.is_none()
            && core.pool.needs_recovery()
            && (core.recovers || !core.pool.has_recoverer())
            && self.after.is_none_or(|after| Instant::now() >= after)
    }

    /// Starts the thread; `false` if the caller is to recover.
    fn start(&mut self, core: &Arc<Core>) -> bool {
        if self.is_inline {
            return false;
        }
        let core = Arc::clone(core);
        let work = move || {
            let context = ThreadContext::new(&core).ok()?;
            let executor = context.endpoint().executor().clone();
            executor.block_on(async {
                let session = context.maintenance_session();
                let session = unless_closed(&core, context.endpoint(), session).await?.ok()?;
                Some(recover(&core, &session).await)
            })
        };
        let thread = thread::Builder::new().name("farleaf-recover".to_owned()).spawn(work).ok();
        self.is_inline = thread.is_none();
        self.thread = thread;
        !self.is_inline
    }

    /// Notes how a recovery has ended; `None`: there was no session for it.
    fn note(&mut self, ended: Option<bool>) {
        self.is_inline = ended.is_none();
        let pause = match ended {
            Some(true) => RECOVERY_EVERY,
            Some(false) => RECOVERY_PAUSE,
            None => Duration::ZERO,
        };
        self.after = Some(Instant::now() + pause);
    }

    /// Waits for the thread, which ends soon once the store is closed.
    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            // As above.
            let _ = thread.join();
        }
    }
}

/// Leaves the pool with the context's session. The last thing that a store does; no operation is under way.
pub(crate) fn leave(core: &Arc<Core>, context: &ThreadContext) -> Result<()> {
    if !core.is_shared {
        // The pool goes with the mapping.
        return Ok(());
    }
    core.serving.stop();
    let local_until = Instant::now() + LOCAL_WAIT;
    while core.local_ops.load(Ordering::SeqCst) > 0 && Instant::now() < local_until {
        thread::sleep(TICK);
    }
    let has_local_ops = core.local_ops.load(Ordering::SeqCst) > 0;
    // Threads that are just ending still have sessions.
    for _ in 0..LEAVE_WAITS {
        if core.pool.sessions() <= context.idle_sessions() + core.serving.tick_sessions() {
            break;
        }
        thread::sleep(TICK);
    }
    let executor = context.endpoint().executor().clone();
    executor.block_on(async {
        let session = context.maintenance_session().await?;
        if has_local_ops {
            core.serving.stop_ticking();
            // Their thread does not run them: what they hold is cleared up by others.
            session.leave_as_dead().await?;
            return Ok(());
        }
        let closed = core.close_tables(&session).await;
        core.serving.stop_ticking();
        if core.pool.sessions() == 1 && closed.is_ok() {
            session.leave().await?;
        } else {
            // Threads that go on without using the store hold sessions that only they can end. Or a
            // table could not be closed: what it has to itself is freed when this process ends.
            session.leave_as_dead().await?;
        }
        closed
    })
}

#[cfg(test)]
mod tests {
    use farleaf_fabric::{Endpoint, OpKind};

    use super::*;
    use crate::options::TableOptions;
    use crate::store::Farleaf;

    #[test]
    fn the_thread_sleeps_when_nothing_happens_and_wakes_when_something_does() {
        let db = Farleaf::builder().pool_bytes(64 << 20).open("mem:").unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        for _ in 0..3 {
            table.insert("a", "1").unwrap();
            assert!(!db.core().activity.is_idle(), "an operation wakes it");
            let end = Instant::now() + Duration::from_secs(10);
            while !db.core().activity.is_idle() {
                assert!(Instant::now() < end, "it never sleeps");
                thread::sleep(TICK);
            }
        }
    }

    /// A member fell asleep just when it had gone live to free the last that it had retired. Then nobody's retired
    /// memory came back, and a drop in another member waited for that for ever.
    #[test]
    fn a_member_that_sleeps_holds_no_epoch() {
        let folder = std::env::temp_dir().join(format!("farleaf-rest-{}", std::process::id()));
        let uri = format!("shm:{}", folder.display());
        let open = || Farleaf::builder().create(true).pool_bytes(64 << 20).open(&uri).unwrap();
        let (other, db) = (open(), open());
        let made = other.create_table("t", TableOptions::default()).unwrap();
        let table = db.table("t").unwrap();
        let big = [7; 4000];
        for round in 0..12_u64 {
            for number in 0..4_u8 {
                made.insert([number], big).unwrap();
            }
            let idle = Instant::now() + Duration::from_secs(10);
            // The objects that it retires are of the other's blocks, and may be freed when the other ends its
            // operation: at about the last tick before it sleeps.
            let hold_ns = (100 + 10 * round) * 1_000_000;
            thread::scope(|scope| {
                let core = other.core();
                let holder = scope.spawn(move || {
                    ThreadContext::run(core, async |context| {
                        let session = context.session().await?;
                        let _pin = session.begin(OpKind::Other).await?;
                        context.endpoint().sleep(hold_ns).await;
                        Ok(())
                    })
                });
                for number in 0..4_u8 {
                    table.insert([number], [round as u8; 3000]).unwrap();
                }
                holder.join().unwrap().unwrap();
            });
            while !db.core().activity.is_idle() {
                assert!(Instant::now() < idle, "it never sleeps");
                thread::sleep(Duration::from_millis(1));
            }
            assert!(db.core().pool.is_at_rest(), "round {round}");
        }
        drop((made, table, db, other));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
