//! Sessions: make a pool and join it.

use farleaf_fabric::{AnyEndpoint, Client};
use farleaf_pool::{Pool, PoolError, PoolOptions, Session, format};

/// Formats the memory servers of `endpoint` as a pool, and joins it.
///
/// # Errors
/// As [`format()`] and [`join`].
pub async fn make_pool(endpoint: AnyEndpoint, options: &PoolOptions) -> Result<Session, PoolError> {
    format(&Client::new(endpoint.clone()), options).await?;
    join(endpoint).await
}

/// Joins the pool as a member of its own, with one session.
///
/// # Errors
/// As [`Pool::join`] and [`Pool::session`].
pub async fn join(endpoint: AnyEndpoint) -> Result<Session, PoolError> {
    let pool = Pool::join(&Client::new(endpoint.clone())).await?;
    pool.session(endpoint).await
}
