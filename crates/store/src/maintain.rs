//! Maintenance: a thread of the store that ticks the pool and recovers dead compute servers.
//!
//! While operations go on, it moves the pool's epochs forward every 10 ms, so that the memory of
//! removed pairs comes back, and recovers members that died. After a quiet time it sleeps until the
//! next operation.
//!
//! - **INV-MAINTAIN-1** It opens the pool, looks after it and leaves it with one session: the one that
//!   operations leave free for each member. So the pool can be opened, and the dead recovered, whatever
//!   sessions operations have, and those of the dead.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::thread_context::ThreadContext;

/// Time between two ticks.
const TICK: Duration = Duration::from_millis(10);
/// Ticks without an operation before it sleeps. Enough of them that all retired memory of before
/// is freed and the epochs stand still.
const QUIET_TICKS: u32 = 20;
/// Ticks that leaving waits for threads that are just ending.
const LEAVE_WAITS: u32 = 10;
/// Time before a recovery that could not be done is tried again.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);

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
        let session = context.upkeep_session().await?;
        Ok(farleaf_engines::recover(&session).await?)
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
    let mut recover_after = Instant::now();
    while !core.is_closed() {
        let ops = core.gates.ops();
        let is_quiet = ops.is_some() && ops == seen_ops;
        quiet_ticks = if is_quiet { quiet_ticks + 1 } else { 0 };
        seen_ops = ops;
        executor.block_on(async {
            let Ok(session) = context.upkeep_session().await else { return };
            // A tick that fails changes nothing; the next one tries again, and the operations
            // report what is wrong.
            let _ = session.tick().await;
            if core.pool.needs_recovery() && Instant::now() >= recover_after {
                let recovered = farleaf_engines::recover(&session).await;
                let is_done = recovered.is_ok_and(|done| done.is_none_or(|done| done.complete));
                let pause = if is_done { Duration::ZERO } else { RECOVERY_PAUSE };
                recover_after = Instant::now() + pause;
            }
        });
        if quiet_ticks < QUIET_TICKS {
            thread::park_timeout(TICK);
            continue;
        }
        core.activity.set_idle();
        if core.gates.ops() != seen_ops {
            core.activity.wake();
        }
        while core.activity.is_idle() && !core.is_closed() {
            thread::park();
        }
        quiet_ticks = 0;
    }
    leave(core, context)
}

/// Leaves the pool with the context's session. The last thing that a store does; no operation is under way.
pub(crate) fn leave(core: &Arc<Core>, context: &ThreadContext) -> Result<()> {
    if !core.is_shared {
        // The pool goes with the mapping.
        return Ok(());
    }
    core.serving.stop();
    // Threads that are just ending still have sessions.
    for _ in 0..LEAVE_WAITS {
        if core.pool.sessions() <= context.idle_sessions() {
            break;
        }
        thread::sleep(TICK);
    }
    let executor = context.endpoint().executor().clone();
    executor.block_on(async {
        let session = context.upkeep_session().await?;
        let closed = core.close_tables(&session).await;
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
}
