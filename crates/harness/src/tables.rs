//! Tables: make a table, and open it with a cache that holds some of it.

use farleaf_engines::{AnyIndex, StoredTable, TableFormat};
use farleaf_index::knobs::CACHE;
use farleaf_index::{IndexError, OpenOptions, Settings};
use farleaf_pool::Session;

/// Makes a table and opens it; see [`open_table`].
///
/// # Errors
/// As [`AnyIndex::create`] and [`AnyIndex::open`].
pub async fn create_table(
    session: &Session,
    name: &str,
    format: &TableFormat,
    cache_nodes: u64,
    settings: &Settings,
) -> Result<AnyIndex, IndexError> {
    AnyIndex::create(session, name, format).await?;
    open_table(session, name, cache_nodes, settings).await
}

/// Opens a table with a cache of `cache_nodes` nodes, if its engine has one. Settings that the engine does not know
/// are left out. A compute server that has the table open gets the same one again.
///
/// # Errors
/// As [`AnyIndex::open`].
pub async fn open_table(
    session: &Session,
    name: &str,
    cache_nodes: u64,
    settings: &Settings,
) -> Result<AnyIndex, IndexError> {
    let root = session.open_root(name).await?;
    let format = *StoredTable::of(&root)?.format();
    let cache_bytes = cache_nodes * u64::from(format.node_bytes());
    let cache = Settings::default().with(CACHE, &cache_bytes.to_string());
    let settings = format.engine.options_of(&cache.and(settings));
    AnyIndex::open(session, &root, &OpenOptions { settings, ..OpenOptions::default() }).await
}
