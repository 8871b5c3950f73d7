//! Retiring: gives the objects of a table back that nobody uses any more.

use farleaf_fabric::{Endpoint, GlobalAddr, OpKind};
use farleaf_pool::{PoolError, Session};

use crate::IndexError;

/// Most waits for room in the retire pages before the caller is told.
pub const WAITS_MAX: u32 = 20_000;
/// Length of each wait.
pub const WAIT_NS: u64 = 100_000;

/// Retires objects from the last to the first, in steps of an operation each: what is retired is
/// reused only after the operation that retired it, and the pool has room for so many at a time. For
/// a table that nobody has found, or that nobody uses any more.
///
/// Cost: what retiring costs, for each.
pub async fn retire_all(session: &Session, mut objects: Vec<GlobalAddr>) -> Result<(), IndexError> {
    let mut waits = 0;
    while let Some(&addr) = objects.last() {
        let pin = session.begin(OpKind::Maintenance).await?;
        match session.prepare_retire(addr).await {
            Ok(retiring) => {
                session.retire(retiring);
                objects.pop();
                waits = 0;
            }
            Err(PoolError::RetireFull) if waits < WAITS_MAX => waits += 1,
            Err(error) => return Err(error.into()),
        }
        drop(pin);
        if waits > 0 {
            session.tick().await?;
            session.endpoint().sleep(WAIT_NS).await;
        }
    }
    Ok(())
}
