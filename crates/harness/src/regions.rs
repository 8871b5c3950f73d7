//! Regions: compute servers that expose memory, and their regular work.

use farleaf_engines::AnyIndex;
use farleaf_fabric::{Endpoint, Fabric, ListenConfig};
use farleaf_index::compute::number_of;
use farleaf_index::{Index, IndexError};
use farleaf_pool::Session;

/// Exposes `bytes` of the memory of `fabric` to other compute servers, and publishes them in the member's entry.
///
/// Cost: that of [`Session::publish_region`].
///
/// # Errors
/// `Invalid` if the fabric refuses; those of [`Session::publish_region`].
pub async fn expose(fabric: &impl Fabric, session: &Session, bytes: u64) -> Result<(), IndexError> {
    let number = number_of(session.pool().member());
    let exposed = fabric.expose(number, bytes, &ListenConfig::default());
    exposed.map_err(|error| IndexError::Invalid(error.to_string()))?;
    Ok(session.publish_region(bytes).await?)
}

/// Does the regular work of a serving compute server every `every_ns`, while it `goes_on`: ticks the pool and the
/// partitions of an open table. The next round does what fails for lack of a server.
///
/// # Errors
/// `Closed` once the table was closed, or this compute server was declared dead; those of [`Session::tick`] and
/// [`tick`](farleaf_index::compute::partitions::PartitionCalls::tick).
pub async fn tick_regularly(
    session: &Session,
    index: &AnyIndex,
    every_ns: u64,
    goes_on: impl Fn() -> bool,
) -> Result<(), IndexError> {
    while goes_on() {
        session.endpoint().sleep(every_ns).await;
        let ticked = async {
            session.tick().await?;
            match index.partitions() {
                Some(table) => table.tick(session).await,
                None => Ok(()),
            }
        };
        match ticked.await {
            Ok(()) | Err(IndexError::Unavailable(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
