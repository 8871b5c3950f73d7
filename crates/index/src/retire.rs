//! Retiring: gives the objects of a table back that nobody uses any more.

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_pool::{PoolError, Session};

use crate::IndexError;

/// Time of waits for room in the retire pages before the caller is told.
pub const PATIENCE_NS: u64 = 2_000_000_000;
/// Length of each wait.
pub const WAIT_NS: u64 = 100_000;

/// Retires objects from the last to the first, in steps of an operation each: what is retired is
/// reused only after the operation that retired it, and the pool has room for so many at a time. For
/// a table that nobody has found, or that nobody uses any more.
///
/// Cost: what retiring costs, for each.
pub async fn retire_all(session: &Session, mut objects: Vec<GlobalAddr>) -> Result<(), IndexError> {
    let mut waits_since = None;
    while let Some(&addr) = objects.last() {
        let pin = session.begin(OpKind::Maintenance).await?;
        match session.prepare_retire(addr).await {
            Ok(retiring) => {
                session.retire(retiring);
                objects.pop();
                waits_since = None;
            }
            Err(PoolError::RetireFull) => {
                let now_ns = session.endpoint().now_ns();
                if now_ns - *waits_since.get_or_insert(now_ns) >= PATIENCE_NS {
                    return Err(PoolError::RetireFull.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        drop(pin);
        if waits_since.is_some() {
            session.tick().await?;
            session.endpoint().sleep(WAIT_NS).await;
        }
    }
    Ok(())
}
